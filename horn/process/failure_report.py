"""The report of a task that failed, for its parent: any error, within the limits of a message."""

from __future__ import annotations

import dataclasses
import time
import traceback
from typing import Any

from horn.errors import BarrierTimeout, MemberLost
from horn.process.control import TEXT_CHARACTERS, FailureReport
from horn.process.limits import out_of_memory
from horn.sources import line_of
from horn.training.divergence import NonFinite
from horn.transport import PeerLost
from horn.wire.text import wire_text

MAX_TRACEBACK = 60_000  # characters, the last ones


def failure_report(
    error: BaseException, where: str, label: str, trouble: NonFinite | None
) -> FailureReport:
    """Report ``error``. where : the task's position; label : of the step there. trouble : what was
    not finite, if that is the failure. Raises what an error of the user's raises that cannot say
    what it is.
    """
    more: dict[str, Any] = {}
    if isinstance(error, BarrierTimeout):
        more = {"absent": error.absent, "absent_ranks": error.absent_ranks,
                "arrived": error.arrived, "hint": _sent(error.hint),
                "timeout_s": error.timeout_s}  # fmt: skip
    elif isinstance(error, MemberLost):
        more = {"lost": error.lost, "lost_ranks": error.lost_ranks}
        if isinstance(error, PeerLost):
            more["reason"] = _sent(error.reason)
    text = out_of_memory(error) if isinstance(error, MemoryError) else str(error)
    line = line_of(error)
    return FailureReport(
        kinds=tuple(c.__name__ for c in type(error).__mro__),
        text=_sent(text),
        when=time.monotonic(),
        where=_sent(where),
        label=_sent(label),
        line=line and (_sent(line[0]), line[1], _sent(line[2])),
        traceback=_sent("".join(traceback.format_exception(error))[-MAX_TRACEBACK:]),
        trouble=None if trouble is None else dataclasses.astuple(trouble),
        **more,
    )


def _sent(text: str) -> str:
    return wire_text(text, TEXT_CHARACTERS)
