"""Signals that end a command: Ctrl-C that waits for a good moment, and exceptions not lost."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

CTRL_C = (signal.SIGINT,)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what ends a command
AGAIN_S = 0.1  # for a finalizer to end
SAY_AFTER_S = 1.0  # an update that ends sooner needs no sentence
#: Said where training, told to stop, goes on for a while: an interpreted update takes minutes.
STOPPING = (
    "training stops after the update under way; Ctrl-C, or the stop button, again ends it at once, "
    "with nothing"
)


class Ended(SystemExit, KeyboardInterrupt):
    """A signal that ends a command; ``code`` is the command's. It counts as Ctrl-C, too: Python's
    compiler, where it folds a constant such as 2**64, hears signals, and drops what their handlers
    raise unless it is a KeyboardInterrupt.
    """


@contextmanager
def interrupts(
    stop_requested: threading.Event, is_wanted: bool = True, numbers: tuple[int, ...] = CTRL_C,
    *, waiting: str = "",
) -> Iterator[list[int]]:  # fmt: skip
    """The first of these signals sets ``stop_requested``, the second is its exception. Gives a list
    of those that came. waiting : a sentence that is logged if nothing has ended soon after the
    first.
    """
    heard: list[int] = []
    ended = threading.Event()
    not_yet = _thread.allocate_lock()  # a handler may release it wherever it interrupts Python
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if stop_requested.is_set():
            raise exception_of(number)
        stop_requested.set()
        if not_yet.locked():
            not_yet.release()

    def say() -> None:
        not_yet.acquire()
        if not ended.wait(SAY_AFTER_S):
            import logging  # whoever trains has it; horn --help does without

            logging.getLogger(__name__).warning(waiting)

    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        del before[signal.SIGHUP]
    # None: a program that Python is a part of handles it, and could not be given it back.
    before = {number: handler for number, handler in before.items() if handler is not None}
    not_yet.acquire()
    telling = threading.Thread(target=say, name="horn-stopping", daemon=True)
    for number in before:
        signal.signal(number, interrupt)
    try:
        if waiting:
            with suppress(RuntimeError):  # the system has no more threads: it ends without a word
                telling.start()
        yield heard
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        if not_yet.locked():
            not_yet.release()
        if telling.ident is not None:
            telling.join(SAY_AFTER_S)


def exception_of(number: int) -> BaseException:
    """The exception of a signal that ends a command: it carries the exit code, or is Ctrl-C's."""
    return KeyboardInterrupt() if number == signal.SIGINT else Ended(128 + number)


def end_on_signals() -> None:
    """SIGTERM and SIGHUP end a command by an exception, as Ctrl-C does. Each comes again where a
    finalizer or a weakref's callback heard of it: Python only tells of exceptions there.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise exception_of(number)

    try:
        signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # it is ignored under nohup
            signal.signal(signal.SIGHUP, stop)
    except ValueError:  # not in the main thread: a test, or someone's program
        return
    sys.unraisablehook = _hear_again


def _hear_again(lost: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception was lost; tell of other exceptions."""
    number = signal_of(lost.exc_value)
    if number is None:
        sys.__unraisablehook__(lost)
        return

    def send() -> None:
        time.sleep(AGAIN_S)  # else the same finalizer hears of it
        os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())  # takes no lock, which this thread may hold


def signal_of(error: BaseException | None) -> signal.Signals | None:
    """The signal of which an exception tells; None if it tells of something else."""
    if isinstance(error, Ended):
        return next((number for number in ENDING_SIGNALS if error.code == 128 + number), None)
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def ending_of(error: BaseException | None) -> tuple[str, int]:
    """What has ended a command, in words, Ctrl-C if it is not known, and the exit code."""
    number = signal_of(error) or signal.SIGINT
    return "Ctrl-C" if number == signal.SIGINT else number.name, 128 + number
