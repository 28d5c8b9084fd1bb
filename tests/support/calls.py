"""How much is done, as the number of calls: the same on every machine, however busy."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls_of(work: Callable[[], Any]) -> int:
    """The calls of functions in a piece of work; each item of a generator counts as one."""
    n_calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal n_calls
        n_calls += event.endswith("call")

    gc.collect()
    gc.disable()  # what ends objects of tests before would be counted, too
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return n_calls
