"""The timeline of all tasks, as a file for chrome://tracing and its like."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from horn.atomic_write import atomic_write
from horn.process.control import TraceEvents

MAX_EVENTS = 100_000  # in all, about 15 MB of JSON


def write(
    path: str | os.PathLike[str],
    traces: Mapping[int, TraceEvents],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write a Chrome trace: a row per task, and a line through all where a superstep ended.
    traces : by task; some may have none. rows : the counters.
    """
    events: list[dict[str, Any]] = []
    zero = min((e[3] for trace in traces.values() for e in trace.events), default=0.0)
    ends: dict[int, float] = {}
    for task, trace in sorted(traces.items()):
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": task,
                       "args": {"name": f"task {task}"}})  # fmt: skip
        for phase, label, superstep, begin, end in trace.events:
            events.append({
                "ph": "X", "pid": 0, "tid": task, "cat": phase,
                "name": f"{phase} {label}".strip(),
                "ts": round((begin - zero) * 1e6, 3), "dur": round((end - begin) * 1e6, 3),
                "args": {"superstep": superstep},
            })  # fmt: skip
            if phase == "wait":
                ends[superstep] = max(ends.get(superstep, 0.0), end)
    for superstep, end in sorted(ends.items()):
        events.append({
            "ph": "i", "s": "g", "pid": 0, "tid": 0, "cat": "barrier",
            "name": f"superstep {superstep}", "ts": round((end - zero) * 1e6, 3),
        })  # fmt: skip
    whole = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "counters": list(rows),
            "left_out": sum(trace.n_left_out for trace in traces.values()),
        },
    }
    with atomic_write(path) as file:
        file.write(json.dumps(whole).encode())
