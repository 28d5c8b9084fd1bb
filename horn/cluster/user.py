"""The unprivileged user of a root agent's jobs; the agent holds the cluster's key. Folders that a
job may write belong to that user, and are not trusted. docs/notes/0071.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from horn.errors import JobError, NotFound
from horn.executor.processes import import_paths

PROBE_S = 60.0  # for an interpreter to start and to import what a job needs


@dataclass(frozen=True)
class JobUser:
    """The account that jobs run as. name : of the account, or its number where there is none."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def named(cls, text: str) -> JobUser:
        """Find an account by name or number. Raises JobError: none, or root, or we are not root."""
        try:
            entry = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
            found = cls(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
        except (KeyError, OverflowError):
            if not text.isdecimal() or not 0 <= int(text) < 2**32 - 1:
                raise JobError(f"--user {text}: this machine has no such user") from None
            found = cls(text, int(text), int(text), "/")
        if found.uid == 0:
            raise JobError(f"--user {text}: that is root; name a user who may do less")
        if os.geteuid() != 0:
            raise JobError(
                f"--user {text}: only a worker that runs as root can run jobs as somebody else; "
                f"this one has uid {os.geteuid()}: leave --user out, or start it as {found.name}"
            )
        return found

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name,
                "XDG_CACHE_HOME": os.path.join(self.home, ".cache")}  # fmt: skip

    def give(self, folder: Path) -> None:
        """Make this user the owner of a folder and its content. Only root may write to its parent,
        so that it cannot be replaced meanwhile. Raises JobError: it is a third user's, or the file
        system refuses.
        """
        found = os.lstat(folder)
        if found.st_uid == self.uid:
            return
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            raise JobError(
                f"{folder} belongs to uid {found.st_uid}, and jobs run as {self.name} (uid "
                f"{self.uid}) here: chown -R {self.name} {folder}, or name the other with --user"
            )
        try:
            # The folder itself comes last: until then no other user gets into it.
            for _, folders, files, at in os.fwalk(folder, topdown=False, follow_symlinks=False):
                for name in (*folders, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=at, follow_symlinks=False)
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)
        except OSError as error:
            raise JobError(
                f"{folder} cannot be given to {self.name}, whom jobs run as: {error.strerror}; "
                f"on NFS root's rights end at its server (root_squash)"
            ) from error

    def let_through(self, folder: Path) -> None:
        """Let this user enter a folder. Raises JobError: others than root may change its path."""
        whole = folder.resolve()
        for path in (whole, *whole.parents):
            found = path.stat()
            mode = stat.S_IMODE(found.st_mode)
            if found.st_uid != os.geteuid() or (mode & 0o022 and not mode & stat.S_ISVTX):
                raise JobError(
                    f"{path} has mode {mode:04o} and belongs to uid {found.st_uid}: where jobs run "
                    f"as {self.name}, only root may change what the worker's folders are in; "
                    f"chown root {path}; chmod go-w {path}; or choose another folder"
                )
        whole.chmod(stat.S_IMODE(whole.stat().st_mode) | 0o011)

    def check(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Check that this user can import horn and work below a folder. Raises JobError."""
        program = (
            "import os, sys; os.stat(sys.argv[1]); sys.path[:] = sys.argv[2:]; import horn.train"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", program, f"{folder}/.", *import_paths()],
                cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=PROBE_S, user=self.uid, group=self.gid, extra_groups=[],
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        except OSError as error:
            why = f"{error.filename or sys.executable}: {error.strerror}"
        except subprocess.TimeoutExpired:
            why = f"an interpreter was not ready after {PROBE_S:g} s"
        else:
            if done.returncode == 0:
                return
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise JobError(
            f"jobs cannot run as {self.name} (uid {self.uid}): {why}. That user must be able to "
            f"read {sys.prefix} and horn, and to enter the folders above {folder}"
        )


def opened(path: str | os.PathLike[str], flags: int, folder: int | None = None) -> int:
    """An ``opener`` for folders that others write to. It opens plain files with one name only, so
    that no link or pipe makes a holder of the key read or write elsewhere, or wait. folder : an
    open one that path is in. Raises NotFound: none is there. JobError: it is something else, or
    cannot be opened.
    """
    safely = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | safely, 0o600, dir_fd=folder)
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except OSError as error:
        raise JobError(f"{path} cannot be opened: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise JobError(f"{path} is a link or no regular file: a job put it there; it is not used")
    return fd


def is_plain(path: Path) -> bool:
    """Whether ``opened`` would open it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
