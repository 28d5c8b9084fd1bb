"""The time that a job may take, and how what does not end by itself then is ended.

A loop looks at the clock after each update, the parent of tasks all the time. What does not come
there, as from a callback, is interrupted where it is, ``INTERRUPT_S`` after the time is over, by an
exception in the main thread, as at Ctrl-C; the loading of a file at once. What catches that, or
stays in C, is ended with its process ``END_S`` later, where that is horn's.
"""

from __future__ import annotations

import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from horn.errors import Timeout
from horn.sources import is_user_file

GRACE_S = 5.0  # for tasks to stop at a boundary, with the model of it
INTERRUPT_S = 10.0  # after the time, from when on it is interrupted
END_S = 15.0  # for an interrupted run to end, which keeps its model
LOADING = "while its file was loaded"
NUMBER = signal.SIGURG  # ignored where nobody listens: it may come late


class Interrupted(Timeout):
    """A run was interrupted after its time. where : what it did, in words."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self.where = timeout_s, ""
        super().__init__(timeout_s)

    def __str__(self) -> str:
        return _said(self.timeout_s, self.where)


def _said(timeout_s: float, where: str) -> str:
    where = where and f" {where}"
    return f"the job took more than {timeout_s:g} s{where}; raise timeout (--timeout)"


@dataclass(frozen=True)
class Deadline:
    """The end of a job's time. timeout_s : None for none. begun : monotonic. end : ends the process
    with a sentence, where it may be ended.
    """

    timeout_s: float | None
    begun: float = field(default_factory=time.monotonic)
    end: Callable[[str], None] | None = None

    @property
    def at(self) -> float | None:
        """When the time is over, on the monotonic clock."""
        return None if self.timeout_s is None else self.begun + self.timeout_s


@contextmanager
def interrupting(
    deadline: Deadline, where: str = "", after_s: float | None = None
) -> Iterator[Callable[[], None]]:
    """Interrupt what runs here, if this is the main thread, ``after_s`` from a deadline on, by
    default INTERRUPT_S. Gives a function that puts an end to that. Raises Interrupted. where : for
    it, unless it knows better.
    """
    main, at, timeout_s = threading.main_thread(), deadline.at, deadline.timeout_s
    is_over = threading.Event()
    if at is None or timeout_s is None or threading.current_thread() is not main:
        yield is_over.set
        return
    interrupts_at = at + (INTERRUPT_S if after_s is None else after_s)
    # None: a program that Python is a part of handles it, and could not be given it back.
    before = signal.getsignal(NUMBER)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set() and time.monotonic() >= interrupts_at:
            raise Interrupted(timeout_s)
        if callable(before):  # that of a run around this one
            before(number, frame)

    def watch() -> None:
        if is_over.wait(max(interrupts_at - time.monotonic(), 0.0)):
            return
        if before is not None:
            signal.pthread_kill(main.ident or 0, NUMBER)
        if deadline.end is None or is_over.wait(END_S):
            return
        place = _line(sys._current_frames().get(main.ident or 0))
        said = _said(timeout_s, f"{where}, and could not be interrupted".removeprefix(", "))
        deadline.end(f"{place}{said}")

    watcher = threading.Thread(target=watch, name="horn-deadline", daemon=True)
    try:
        if before is not None:
            signal.signal(NUMBER, interrupt)
        watcher.start()
        yield is_over.set
    except Interrupted as error:
        error.where = error.where or where
        raise
    finally:
        is_over.set()
        if before is not None:
            signal.signal(NUMBER, before)
        if watcher.ident is not None:  # it was started
            watcher.join()


def _line(frame: FrameType | None) -> str:
    """The user's line that a thread is at, as a line; "" if it is at none."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{number}  {linecache.getline(file, number).strip()}\n"
