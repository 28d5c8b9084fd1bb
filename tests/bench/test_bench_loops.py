"""The bench of loops runs: answers agree, table and file are complete. No time is asserted."""

import json

import numpy as np

from tests.bench import bench_loops
from tests.bench.bench_loops import NEURONS


def test_a_short_run_compares_answers_prints_a_table_and_writes_a_file(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(bench_loops, "ORDINARY", (72, 16))
    file = tmp_path / "out.json"
    assert bench_loops.main(["--seconds", "0", "--no-torch", "--json", str(file)]) == 0
    assert np.float64(1e-310) * np.float64(0.5) > 0.0  # the C left subnormal numbers alone
    assert "horn, ms" in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert [row["neuron"] for row in rows] == list(NEURONS)
    assert all(row["horn"] > 0 for row in rows)


def test_a_neuron_with_two_weights_beside_one(capsys):
    assert bench_loops.main(["--stacked", "--seconds", "0"]) == 0
    assert "gated" in capsys.readouterr().out
