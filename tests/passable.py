"""Another user must be able to read Python and horn, which may lie below folders of root's alone.

In a mount namespace of its own a process sees a copy of such folders that others may enter: nothing
of this machine changes, and nothing is left of it when the process has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import horn

# $1: where a file system in memory may be; then, after each --, what is closed, and the command.
SCRIPT = """
set -e
room=$1; shift
mount -t tmpfs horn-test "$room"
n=0
while [ "$1" != -- ]; do
  n=$((n + 1)); mkdir "$room/up$n" "$room/work$n"
  mount -t overlay horn-test -o "lowerdir=$1,upperdir=$room/up$n,workdir=$room/work$n" "$1"
  chmod 711 "$1"; shift
done
shift
exec "$@"
"""


def closed() -> list[str]:
    """Folders above Python and horn that only their owner may enter, the highest first."""
    wanted = {sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.base_prefix,
              str(Path(horn.__file__).parents[1])}  # fmt: skip
    above = {folder for path in wanted for folder in Path(path).parents}
    return sorted(str(folder) for folder in above if not folder.stat().st_mode & 0o001)


def can_be_another_user() -> bool:
    """Whether there is such a namespace here."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    with passable() as command:
        return subprocess.run([*command, "true"], capture_output=True).returncode == 0


@contextlib.contextmanager
def passable() -> Iterator[list[str]]:
    """What to put before a command, which keeps its process."""
    with tempfile.TemporaryDirectory(prefix="horn-passable-") as room:
        yield ["unshare", "--mount", "--propagation", "private",
               "sh", "-c", SCRIPT, "sh", room, *closed(), "--"]  # fmt: skip


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A new one that others may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="horn-test-") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)
