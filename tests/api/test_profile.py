"""Where the time of training goes: every statement with its time, layer and line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.errors import JobError


class Tuned(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:  # loop
            total += horn.math.tanh(m.input * m.weight)
        self.feedforward(horn.math.exp(-total * total))  # end


def job() -> horn.Job:
    rng = np.random.default_rng(0)
    net = horn.Network(seed=3)
    net.input(60)
    net.layer(50, neuron=Tuned)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = rng.standard_normal((400, 60)).astype("float32")
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), batch_size=40, epochs=2)


def line(mark: str) -> str:
    rows = Path(__file__).read_text().splitlines()
    (number,) = [k for k, row in enumerate(rows, 1) if row.endswith(f"  # {mark}")]
    return f"test_profile.py:{number}"


def test_every_statement_has_its_time_and_line(tmp_path: Path) -> None:
    run = horn.train(job(), profile=tmp_path / "p.json", threads=1)
    profile = run.profile
    assert profile is not None and profile.steps == 20
    assert all(row.seconds > 0 for row in profile.statements if "part of" not in row.text)
    assert 0 < sum(row.seconds for row in profile.statements) <= profile.seconds
    loops = [row for row in profile.statements if row.place == line("loop")]
    assert any("tanh" in row.text and row.layer == "layer1" for row in loops)
    ends = [row for row in profile.statements if row.place == line("end")]
    assert any(row.text.startswith("layer1.output = exp(") for row in ends)
    rows = str(profile).splitlines()
    assert rows[0].split() == ["share", "us/step", "layer", "phase", "line", "statement"]
    longest = max(profile.statements, key=lambda row: row.seconds)
    assert len(rows) == len(profile.statements) + 2 and rows[1].split()[3] == longest.layer
    trace = json.loads((tmp_path / "p.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(profile.statements) and trace["otherData"]["steps"] == 20
    assert {event["args"]["line"] for event in events} >= {line("loop"), line("end")}
    assert all(a["ts"] <= b["ts"] for a, b in zip(events, events[1:], strict=False))


def test_a_profile_that_cannot_be_written_costs_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trained model was lost to a FileNotFoundError."""

    class Removes(horn.Callback):
        def on_train_begin(self, context):
            folder.rmdir()

    (folder := tmp_path / "gone").mkdir()
    watched = job().with_settings(callbacks=[Removes()])
    run = horn.train(watched, profile=folder / "p.json", progress=False)
    assert run.iterations == 20 and run.profile is not None and run.profile.steps == 20
    said = "gone/p.json: cannot be written (No such file or directory); the run is there without it"
    assert said in caplog.text


def test_it_changes_no_bit_and_is_not_there_unless_asked_for() -> None:
    plain, timed = horn.train(job()), horn.train(job(), profile=True)
    assert plain.profile is None and timed.profile is not None
    for name, array in plain.model.parameters.items():
        np.testing.assert_array_equal(timed.model.parameters[name], array)


def test_it_is_of_one_process_and_of_the_kernels() -> None:
    with pytest.raises(JobError, match="profile is of one process; trace tells"):
        horn.train(job(), profile=True, tasks=2)
    with pytest.raises(JobError, match='profile is of the backend "kernels"'):
        horn.train(job(), profile=True, backend="reference")
