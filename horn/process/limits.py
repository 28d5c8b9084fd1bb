"""The limits that a job's process applies before any of the user's code runs.

A job's code may do what its uid may; these limits keep an honest mistake (a loop that allocates,
forks or writes) from taking the host with it, and keep what is the agent's (descriptors, variables
of the environment, its terminal) out of it. They are no sandbox: docs/security.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from horn.errors import JobError, text_of

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
UMASK = 0o077
NO_THREAD = "can't start new thread"  # a RuntimeError of Python's
# The agent's variables that a job's processes may have; all others are left out.
ALLOWED = frozenset(
    "PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR SHELL TERM NO_COLOR FORCE_COLOR "
    "PYTHONPATH PYTHONHASHSEED PYTHONFAULTHANDLER PYTHONUNBUFFERED VIRTUAL_ENV LD_LIBRARY_PATH "
    "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS BLIS_NUM_THREADS OPENBLAS_CORETYPE "
    "OPENBLAS_L2_SIZE XDG_CACHE_HOME CUDA_VISIBLE_DEVICES HORN_DATA HORN_SEED "
    "HORN_LOG_LEVEL HORN_INSECURE".split()
)
ALLOWED_PREFIXES = ("LC_",)


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of each process of a job. None: the agent's own.

    memory_bytes : private memory (RLIMIT_DATA). address_bytes : all mappings (RLIMIT_AS).
    n_processes : and threads of the uid, beyond the present ones; not for root. file_bytes : of one
    file. uid, gid : to run as; only root can.
    """

    memory_bytes: int | None = None
    address_bytes: int | None = None
    n_files: int = 1024
    n_processes: int | None = 1024
    file_bytes: int | None = None
    uid: int | None = None
    gid: int | None = None


def apply(limits: ProcessLimits, *, keep: Iterable[int] = (), parent: int | None = None) -> None:
    """Apply limits to this process and its children. ``keep``: descriptors besides 0, 1 and 2.
    ``parent``: end with it. Raises JobError: a limit cannot be set; the job must not run.
    """
    if os.getsid(0) != os.getpid():
        if os.getpgrp() == os.getpid():  # its leader can begin no session
            raise JobError(
                "a job's process leads a process group of another session; start it with "
                "start_new_session=True"
            )
        os.setsid()
    os.umask(UMASK)
    kept = {0, 1, 2, *keep}
    for fd in map(int, os.listdir("/proc/self/fd")):  # the listing's own is closed already
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)
    _set(resource.RLIMIT_CORE, 0, "core")
    _set(resource.RLIMIT_NOFILE, limits.n_files, "n_files")
    if limits.file_bytes is not None:
        _set(resource.RLIMIT_FSIZE, limits.file_bytes, "file_bytes")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error of the write, not a death
    if limits.uid is not None or limits.gid is not None:
        _become(limits)
    if limits.n_processes is not None:
        _set(resource.RLIMIT_NPROC, _n_threads(os.getuid()) + limits.n_processes, "n_processes")
    if limits.memory_bytes is not None:
        _set(resource.RLIMIT_DATA, limits.memory_bytes, "memory_bytes")
    if limits.address_bytes is not None:
        _set(resource.RLIMIT_AS, limits.address_bytes, "address_bytes")
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if parent is not None:  # last: a change of uid clears it
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def out_of_memory(error: MemoryError, is_ours: bool = False) -> str:
    """A MemoryError as a sentence, with the limit of this process, if it has one. is_ours : it came
    from horn's own arrays, not from a line of the user's; then with what needs less.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    limit = f": a process may have {most / 1e6:,.0f} MB here (horn worker --memory, or ulimit -d)"
    what = f"; {text}" if (text := text_of(error)) else ""
    less = "; use a smaller batch_size, fewer neurons, or dtype float32" if is_ours else ""
    return f"out of memory{limit if most != resource.RLIM_INFINITY else ''}{what}{less}"


def too_few_processes(error: BaseException) -> str:
    """What to do about a process or a thread that the system did not start; "" for other errors."""
    is_thread = isinstance(error, RuntimeError) and text_of(error) == NO_THREAD
    if not is_thread and not (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        return ""
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = "" if most == resource.RLIM_INFINITY else f", {most:,} now"
    return (
        f"this user may have no more processes and threads, of all its programs together{limit}; "
        f"raise ulimit -u (in a container: its limit of pids), or ask for fewer tasks and threads"
    )


def guard() -> None:
    """Protect a process that has the cluster's key: no core file, and nobody reads its memory."""
    _set(resource.RLIMIT_CORE, 0, "core")
    _prctl(PR_SET_DUMPABLE, 0)


def environment(
    extra: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a job's process: the allowed ones of ``base`` (by default this process's
    environment), and ``extra``.
    """
    found = {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
    }
    return {**found, **(extra or {})}


def _become(limits: ProcessLimits) -> None:
    uid = os.getuid() if limits.uid is None else limits.uid
    gid = os.getgid() if limits.gid is None else limits.gid
    if uid == os.getuid() and gid == os.getgid():
        return
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except PermissionError:
        raise JobError(
            f"jobs are to run as uid {uid}, gid {gid}, but only an agent that runs as root can "
            f"do that, and this one has uid {os.getuid()}"
        ) from None
    if uid != 0:  # there must be no way back
        try:
            os.setuid(0)
        except PermissionError:
            return
        raise JobError("the uid was not given up; the job is not run")


def _set(kind: int, wanted: int, name: str) -> None:
    """Set soft and hard limit, never above the present one."""
    _, hard = resource.getrlimit(kind)
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError) as error:
        raise JobError(f"the limit {name}={wanted} cannot be set: {error}") from None


def _n_threads(uid: int) -> int:
    """The number of processes and threads of a uid, which RLIMIT_NPROC counts."""
    n = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            # A name is any bytes, and it may be cut within a character.
            status = Path(entry.path, "status").read_text("utf-8", "replace")
        except OSError:
            continue  # it has ended
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if facts["Uid"].split()[0] == str(uid):
            n += int(facts["Threads"])
    return n


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise JobError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
