"""Exit codes of processes, in words. Pure."""

from __future__ import annotations

import signal


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
