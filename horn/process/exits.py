"""Exit codes of processes, in words, and what a process still writes before it ends."""

from __future__ import annotations

import signal
import sys


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
