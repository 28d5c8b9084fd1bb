"""Descriptors that travel beside messages over unix sockets.

Linux lets all processes of a user have so many under way, sent and not received, as one of them may
open (RLIMIT_NOFILE): a send beyond fails with ETOOMANYREFS, and may be tried again when others have
received. Root has no such limit.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import resource
import socket
from collections.abc import Iterator

from horn.errors import JobError

# Of memory that others read: nobody can write to it or resize it any more.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
CROWDED_S = 0.002  # until a send is tried again: nothing tells that others have received


def receive(sock: socket.socket, n_bytes: int, most: int) -> tuple[bytes, list[int], int]:
    """Receive a packet, ``most`` descriptors at most, and the flags of the message. No process that
    is started inherits them: socket.recv_fds takes flags, and drops them.
    """
    fds = array.array("i")
    room = socket.CMSG_LEN(most * fds.itemsize)
    packet, ancillary, flags, _ = sock.recvmsg(n_bytes, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return packet, list(fds), flags


def is_sealed(fd: int) -> bool:
    """Whether a descriptor is of a memfd with SEALS, which can be mapped without danger."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # a file has none
        return False


def is_crowded(error: OSError) -> bool:
    """Whether a send failed because too many descriptors of this user are under way."""
    return error.errno == errno.ETOOMANYREFS


def crowded() -> str:
    """The hint for a user whose sends fail for this until a deadline."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{most} open files of this user are under way between processes, as many as may be "
        f"(ulimit -n): raise that limit, or look for a process that does not read"
    )


def shortage() -> str:
    """The hint where this process may open no more files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process has {most} files open, as many as it may (ulimit -n); close what a callback "
        f"or the job's file has opened"
    )


@contextlib.contextmanager
def opening(where: str) -> Iterator[None]:
    """Raise JobError if this process, or the machine, may open no more files."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        why = shortage() if error.errno == errno.EMFILE else f"this machine: {error.strerror}"
        raise JobError(f"{where}: {why}") from error
