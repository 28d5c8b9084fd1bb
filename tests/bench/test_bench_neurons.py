"""The bench of neurons runs: answers agree, table and file are complete. No time is asserted."""

import json

import pytest

from tests.bench import bench_neurons
from tests.bench.bench_neurons import NEURONS, Row


@pytest.mark.parametrize("name", NEURONS)
def test_compiled_and_interpreted_agree(name):
    bench_neurons.check(NEURONS[name])


def test_a_short_run_prints_a_table_and_writes_a_file(tmp_path, capsys):
    file = tmp_path / "out.json"
    code = bench_neurons.main(["--seconds", "0", "--json", str(file), "Weighted", "Tuned"])
    assert code == 0
    printed = capsys.readouterr().out
    assert "ns per connection and sample" in printed and "fused loop" in printed
    rows = json.loads(file.read_text())["rows"]
    assert [r["neuron"] for r in rows] == ["Weighted", "Tuned"]
    assert all(r["ratio"] > 0 for r in rows)


@pytest.mark.parametrize(("dense", "fused", "held"), [(6e3, 300, 2), (4e3, 300, 1), (6e3, 100, 1)])
def test_claims_are_judged(dense, fused, held):
    rows = [
        Row("Weighted", "matrix products", "", 1.0, "", 1.0, dense),
        Row("Tuned", "fused loop", "", 1.0, "", 1.0, fused),
    ]
    assert sum(holds for _, holds in bench_neurons.claims(rows)) == held
