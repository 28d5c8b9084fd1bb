"""Assumed machines: their figures as text with units."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horn.errors import JobError, set_once
from horn.planner.machine import Machine

_BITS = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "tbit": 1e12 / 8}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_FLOPS = {"m": 1e6, "g": 1e9, "t": 1e12}
# word: its field, its units, an example
_WORDS: dict[str, tuple[str, dict[str, float], str]] = {
    "tasks": ("tasks", {"": 1.0}, "64"),
    "cores": ("cores", {"": 1.0}, "64"),
    "bandwidth": ("bandwidth_bytes_per_s", {**_BITS, **_BYTES}, "10Gbit or 1.2GB"),
    "latency": ("latency_s", _SECONDS, "50us"),
    "flops": ("flops_per_s", _FLOPS, "100G"),
}


@dataclass(frozen=True)
class Assumption:
    """Assumed figures of a machine; None : the figure of this one.

    tasks : the number. cores : for all tasks; by default one each. bandwidth_bytes_per_s : of one
    task, each way. latency_s : from a post to the wake-up of the other task. flops_per_s : of one
    task, in large products; all computing is scaled by it.
    """

    tasks: int | None = None
    cores: int | None = None
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    flops_per_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Assumption:
        """Read text such as "tasks=64,bandwidth=10Gbit,latency=50us". Raises JobError."""
        found: dict[str, Any] = {}
        for part in text.split(","):
            word, equals, value = (piece.strip() for piece in part.partition("="))
            if word not in _WORDS or not equals:
                allowed = ", ".join(f"{name}={example}" for name, (*_, example) in _WORDS.items())
                raise JobError(f"assume {part.strip()!r}: write any of {allowed}")
            name, units, example = _WORDS[word]
            set_once(found, name, _number(word, value, units, example), f"assume {word}")
        return cls(**found | {k: int(found[k]) for k in ("tasks", "cores") if k in found})

    def machine(self, here: Machine, n_tasks: int, transport: str) -> Machine:
        if self == Assumption():
            return here
        changes: dict[str, Any] = {"n_cores": self.cores or max(n_tasks, here.n_cores)}
        if self.bandwidth_bytes_per_s is not None:
            changes["bandwidth_bytes_per_s"] = {
                **here.bandwidth_bytes_per_s, transport: self.bandwidth_bytes_per_s
            }  # fmt: skip
        if self.latency_s is not None:
            changes["latency_s"] = {**here.latency_s, transport: self.latency_s}
        if self.flops_per_s is not None:
            changes.update(_scaled(here, here.flops_per_s / self.flops_per_s))
        return dataclasses.replace(here, **changes)


def _scaled(here: Machine, factor: float) -> dict[str, Any]:
    names = ("row_s", "weight_s", "edge_s", "stream_s", "operation_s", "left_s", "apply_s",
             "strip_s", "view_s", "fetch_s", "fetch_row_s", "fold_s", "fold_row_s", "cross_s",
             "result_s", "tile_s", "tile_result_s", "window_s", "pool_s", "synapse_s",
             "synapse_once_s", "synapse_alone_s", "draw_s", "input_s")  # fmt: skip

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: times(part) for key, part in value.items()}
        return tuple(map(times, value)) if isinstance(value, tuple) else value * factor

    return {name: times(getattr(here, name)) for name in names}


def _number(word: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z]*)(?:/s)?", text)
    unit = found[2].lower() if found else ""
    if not found or unit not in units or not float(found[1]) > 0:
        raise JobError(f"assume {word}={text}: write a number from above 0, as in {word}={example}")
    value = float(found[1]) * units[unit]
    if not 1e-30 < value < 1e30:  # of infinite costs no placement is the least
        raise JobError(f"assume {word}={text}: no machine has this; write, say, {word}={example}")
    if units == {"": 1.0} and not value.is_integer():
        raise JobError(f"assume {word}={text}: write a whole number, as in {word}={example}")
    return value
