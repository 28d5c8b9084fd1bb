"""The losses of a group's epoch so far, in a file that outlives its processes.

Servers know after how many batches a group goes on, not what these lost. Records have a place by
their update, and take that of the one ``N_KEPT`` updates before; nothing is fsynced, as in the
servers' journals beside it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from pathlib import Path

from horn.errors import JournalError

N_KEPT = 1 << 15  # updates; a group goes back by a few pushes. 1.6 MB


@dataclass(frozen=True)
class EpochSums:
    """An epoch after ``iteration`` updates of the training: ``done`` samples with known losses,
    ``total`` the sum of these, own_total that of the own_samples that were the group's. seconds :
    since the run began.
    """

    iteration: int
    done: int
    total: float
    own_total: float
    own_samples: int
    seconds: float


RECORD = struct.Struct("<qqddqd")


class LossJournal:
    """The file of one group. Raises JournalError : it cannot be opened, read or written."""

    def __init__(self, path: Path) -> None:
        self.path, self._fd = path, -1
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed(0, "opened", error) from error

    def keep(self, sums: EpochSums) -> None:
        at = _place(sums.iteration)
        try:
            os.pwrite(self._fd, RECORD.pack(*astuple(sums)), at)
        except OSError as error:
            raise self._failed(at, "written", error) from error

    def newest(self, first: int, last: int) -> EpochSums | None:
        """The newest record of those after ``first`` + 1 to ``last`` updates; None without any. A
        process that is killed may have pushed a batch and not written its record.
        """
        for iteration in range(last, max(first, last - N_KEPT), -1):
            at = _place(iteration)
            try:
                found = os.pread(self._fd, RECORD.size, at)
            except OSError as error:
                raise self._failed(at, "read", error) from error
            if len(found) == RECORD.size and RECORD.unpack(found)[0] == iteration:
                return EpochSums(*RECORD.unpack(found))
        return None

    def close(self) -> None:
        os.close(self._fd)

    def _failed(self, at: int, what: str, error: OSError) -> JournalError:
        remedy = "make room, or choose another folder"
        return JournalError(str(self.path), at, f"cannot be {what}: {error.strerror}; {remedy}")


def _place(iteration: int) -> int:
    return iteration % N_KEPT * RECORD.size
