"""Exit codes of processes, in words, and what a process writes that nobody takes any more."""

from __future__ import annotations

import errno
import io
import signal
import sys
from typing import Any, TextIO

from horn.errors import FULL

CLOSED = (
    "The job's code has closed sys.stdout or sys.stderr, where horn writes as well: leave them "
    "open, and use contextlib.redirect_stdout"
)


class LossyFile(io.FileIO):
    """A descriptor whose writes are dropped where they fail with one of the errors ``dropped``."""

    def __init__(self, descriptor: int, dropped: tuple[int, ...]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.dropped = dropped

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self.dropped:
                raise
            return len(data)


def _lossy(stream: TextIO, descriptor: int, *dropped: int) -> TextIO:
    lossy = io.BufferedWriter(LossyFile(descriptor, dropped))
    is_by_line = getattr(stream, "line_buffering", False)
    return io.TextIOWrapper(lossy, stream.encoding, stream.errors, None, is_by_line)


def outlive_log() -> None:
    """What a full disk, a closed terminal, or a pipe that nobody reads any more, does not take of
    stderr costs the words, no run.
    """
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        sys.stderr = _lossy(sys.stderr, 2, *FULL, errno.EPIPE)


def outlive_reader() -> None:
    """What is printed to stdout is dropped once its reader has gone, as grep -m1 has: for what does
    more than to print.
    """
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        sys.stdout.flush()
        sys.stdout = _lossy(sys.stdout, 1, errno.EPIPE)


def outlives_reader() -> bool:
    """Whether a reader who goes is no error of stdout's."""
    return isinstance(getattr(getattr(sys.stdout, "buffer", None), "raw", None), LossyFile)


def write_last(text: str = "") -> bool:
    """Write a text to stderr, and all that was printed; False where the user's code has closed the
    streams, or taken them away.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
    except (AttributeError, ValueError, OSError):
        return False
    return True


def how_it_ended(code: int) -> tuple[str, str]:
    """Describe an exit code in words, with a hint or "". Codes below 0 are signals."""
    if code >= 0:
        return f"ended with exit code {code}", ""
    try:
        how = f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        how = f"was killed by signal {-code}"
    if -code == signal.SIGKILL:
        return how, "If nobody did, it was the kernel, for memory: see dmesg."
    if -code == signal.SIGBUS:
        return how, (
            "A file that it had mapped, as of its data, was cut short or cannot be read from its "
            "disk: give changed data a new file, which takes the old one's name when it is whole."
        )
    return how, ""
