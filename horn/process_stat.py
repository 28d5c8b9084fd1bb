"""What Linux says of a process, in /proc/PID/stat."""

from __future__ import annotations

STATE, SESSION, START_TICKS = 0, 3, 19  # places among the fields; see proc_pid_stat(5)


def process_stat(pid: int) -> list[bytes]:
    """The fields of a process from its state on, after its name, in which anything may be; none
    without such a process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger has stopped a process."""
    return process_stat(pid)[: STATE + 1] in ([b"T"], [b"t"])
