"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CTRL_C = (signal.SIGINT,)
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what ends a command


@contextmanager
def interrupts(
    stop_requested: threading.Event, is_wanted: bool = True, numbers: tuple[int, ...] = CTRL_C
) -> Iterator[list[int]]:
    """The first of these signals sets ``stop_requested``, the second is its exception. Gives a list
    of those that came.
    """
    heard: list[int] = []
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if stop_requested.is_set():
            raise exception_of(number)
        stop_requested.set()

    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exception_of(number: int) -> BaseException:
    """The exception of a signal that ends a command: it carries the exit code, or is Ctrl-C's."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
