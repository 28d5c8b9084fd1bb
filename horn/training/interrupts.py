"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(stop_requested: threading.Event, is_wanted: bool = True) -> Iterator[None]:
    """The first Ctrl-C sets ``stop_requested``, the second is KeyboardInterrupt."""
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop_requested.is_set():
            raise KeyboardInterrupt
        stop_requested.set()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
