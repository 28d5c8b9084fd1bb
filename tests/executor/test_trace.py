"""The file that shows what every task did when."""

from __future__ import annotations

import json

from horn.executor import trace
from horn.process.control import TraceEvents
from horn.process.reporting import TraceRecorder


def test_a_recorder_keeps_the_first_and_counts_the_rest():
    recorder = TraceRecorder(3)
    for k in range(5):
        recorder("compute", "layer1, forward", k, float(k), k + 0.5)
    assert [event[2] for event in recorder.events] == [0, 1, 2]
    assert recorder.n_left_out == 2


def test_a_row_per_task_and_a_line_where_a_superstep_ended_for_all(tmp_path):
    first = (("compute", "layer1", 0, 5.0, 5.5), ("wait", "layer1", 0, 5.5, 6.0))
    second = (("compute", "layer1", 0, 5.25, 6.0), ("wait", "layer1", 0, 6.0, 6.25))
    path = tmp_path / "t.json"
    trace.write(path, {3: TraceEvents(second, 4), 0: TraceEvents(first, 0)}, [{"task": 0}])
    whole = json.loads(path.read_text())
    events = whole["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["task 0", "task 3"], "by rank, whoever has none"
    work = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert work == [
        (0, "compute layer1", 0.0, 500_000.0), (0, "wait layer1", 500_000.0, 500_000.0),
        (3, "compute layer1", 250_000.0, 750_000.0), (3, "wait layer1", 1_000_000.0, 250_000.0),
    ]  # fmt: skip
    (line,) = [e for e in events if e["ph"] == "i"]
    assert (line["ts"], line["s"], line["name"]) == (1_250_000.0, "g", "superstep 0")
    assert whole["otherData"]["left_out"] == 4


def test_a_trace_of_nothing_is_a_trace(tmp_path):
    trace.write(tmp_path / "t.json", {0: TraceEvents((), 0)}, [])
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == 1
