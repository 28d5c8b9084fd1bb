"""The folder of the journals of a run's servers.

A journal is replayed by servers of the same kind: what a push means depends on the numbers of
groups and tasks, on the strategy and, where servers apply it, on the optimizer; where a group goes
on, on the batches of a push. So little of a job may be changed.

<folder>/servers/run.json           the job, the starts so far, the placement, the history by then
<folder>/servers/history            what the history came to since, a line of JSON for each report
<folder>/servers/server-<n>/        a journal: horn/parameter_server/journal.py
<folder>/servers/losses-<group>     of its epoch so far: loss_journal.py
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from horn.checkpoint import Checkpoints, disk
from horn.errors import CheckpointError, Conflict
from horn.job import Job
from horn.partition.placement import Placement
from horn.training.cursor import plain_row
from horn.training.identity import check_same

logger = logging.getLogger(__name__)

# Of all that is in the folder. Raised where run.json, a message that servers write down or a loss
# has another field, which an older horn would leave out. OLDEST and later are read: what is absent
# has its default.
FORMAT, OLDEST = 4, 1
ATTEMPTS = 1 << 20  # of each start of the run
LEAST_BYTES = 1 << 20  # of lines before run.json is written again with what they say


def _check(found: Any) -> None:
    """Check run.json. Raises ValueError, KeyError or TypeError: this horn does not write such."""
    if found["format"] not in range(OLDEST, FORMAT + 1):
        raise ValueError(
            f"it is of format {found['format']}, this horn reads formats {OLDEST} to {FORMAT}; "
            f"resume it with the horn that wrote it, or begin in another folder"
        )
    kinds = {"identity": dict, "n_starts": int, "n_written": int, "rows": list, "told": list}
    if found["format"] < 4:  # they had no lines
        found["n_written"] = 0
    odd = [name for name, kind in kinds.items() if not isinstance(found.get(name), kind)]
    if odd or found["n_starts"] < 1 or not all(isinstance(row, dict) for row in found["rows"]):
        raise ValueError(f"its {odd[0] if odd else 'rows or n_starts'} is not as horn writes it")


def _placement(said: Mapping[str, Any]) -> Placement:
    links = {(int(layer), int(link)): str(where) for layer, link, where in said["links"]}
    return Placement(links, {int(layer): str(where) for layer, where in said["layers"]})


def check_no_journals(folder: Path, resume: bool) -> None:
    """Check that a folder is not of a run with servers. Raises CheckpointError or Conflict."""
    if (folder / "servers" / "run.json").exists():
        raise _other_kind(folder, "has what servers of another run were told", resume)


def _other_kind(folder: Path, what: str, resume: bool) -> CheckpointError | Conflict:
    if not resume:
        return Conflict(f"{folder} {what}; choose another folder")
    what += ", and downpour and easgd, which have servers, and strategies without cannot go on "
    return CheckpointError(
        str(folder), f"{what}from each other; take the strategy that wrote it, or another folder"
    )


class JournalFolder:
    """The folder of one run.

    n_starts : of the run, with this one; its first attempt is ``first_attempt``. rows : of the
    history. incomplete : reports of some groups on later epochs.

    Raises
    ------
    Conflict : not to be resumed, but there is a run. CheckpointError : it is another job's (which
    ``is_changed`` allows for parts that are ``changeable``), or cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        mine: Mapping[str, Any],
        resume: bool,
        is_changed: bool = False,
        changeable: Collection[str] = (),
    ) -> None:
        self.path = folder / "servers"
        self.mine = json.loads(json.dumps(mine))
        self.identity = self.mine  # of the job that the folder is of
        if there := Checkpoints(folder).iterations():
            what = f"has checkpoints of a run without servers, the newest of iteration {there[-1]}"
            raise _other_kind(folder, what, resume)
        self.n_starts, self.rows = 1, list[dict[str, Any]]()
        self.incomplete: list[dict[str, Any]] = []
        self._placement: Placement | None = None
        self._is_failing = False
        self._n_written = 0  # how often run.json was; lines are of what they follow
        self._left_bytes = 0  # of lines, until it is written again
        file = self.path / "run.json"
        try:
            found = json.loads(file.read_text("utf-8")) if file.exists() else None
            if found is not None:
                _check(found)
                if "placement" in found:  # the first start may have ended before it had one
                    self._placement = _placement(found["placement"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(str(file), f"cannot be read: {error}") from error
        if found is not None and not resume:
            raise Conflict(
                f"{self.path} has what servers of another run were told; resume it, or choose "
                f"another folder"
            )
        if found is not None:
            self.identity = found["identity"]
            check_same(str(file), self.identity, self.mine, is_changed, changeable)
            self.n_starts, self.rows = found["n_starts"] + 1, found["rows"]
            self.incomplete, self._n_written = found["told"], found["n_written"]
            self._read_lines()
        self._write()

    @property
    def first_attempt(self) -> int:
        return self.n_starts * ATTEMPTS

    def placement(self, find: Callable[[], Placement]) -> Placement:
        """The placement of the first start, which found it: the servers' pieces are cut by it, and
        another host or transport may have another that is cheapest.
        """
        if self._placement is None:
            self._placement = find()
            self._write()
        return self._placement

    def take_over(self) -> None:
        """Write that the folder is of this job: its servers came back from what is in it."""
        if self.identity != self.mine:
            self.identity = self.mine
            self._write()

    def drop_partial(self, job: Job) -> None:
        """Drop the row of the epoch in which a shorter run ended: ``job`` reports all of it."""
        last = self.rows[-1] if self.rows else None
        if last is None:
            return
        end = min(last["epoch"] * job.iterations_per_epoch, job.n_iterations)
        if last["iteration"] < end:
            self.rows = self.rows[:-1]

    def keep(
        self, rows: Sequence[Mapping[str, Any]], incomplete: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Write what is new of the history, and the reports on later epochs. Where that fails, as
        in a folder that was moved away, the run goes on, and each later call tries again.
        """
        first = min(len(rows), len(self.rows))  # of what is new, or has a new column of a callback
        while first and plain_row(rows[first - 1]) != self.rows[first - 1]:
            first -= 1
        if first == len(rows) and list(incomplete) == self.incomplete and not self._is_failing:
            return
        self.rows[first:] = [plain_row(row) for row in rows[first:]]
        self.incomplete = [dict(one) for one in incomplete]
        try:
            self._append(first)
        except CheckpointError as error:
            if not self._is_failing:
                logger.warning("history of the run not kept, which goes on reason=%s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _append(self, first: int) -> None:
        """Write the rows from ``first`` on, and the reports: all of the history would take as long
        as many epochs. Not fsynced, as in journals.
        """
        said = {"after": self._n_written, "at": first, "rows": self.rows[first:],
                "told": self.incomplete}  # fmt: skip
        line = json.dumps(said).encode() + b"\n"
        self._left_bytes -= len(line)
        if self._is_failing or self._left_bytes < 0:
            self._write()
            return
        file = self.path / "history"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(file, flags, 0o600)
            try:
                if os.write(descriptor, line) != len(line):  # the disk is full
                    self._write()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise disk.failed(file, "cannot be written", error) from error

    def _read_lines(self) -> None:
        """Add what was appended. A last line that is cut short is of a process that was killed."""
        file = self.path / "history"
        try:
            lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
            for said in map(json.loads, lines):
                if said["after"] == self._n_written:
                    self.rows[said["at"] :] = [dict(row) for row in said["rows"]]
                    self.incomplete = [dict(one) for one in said["told"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(str(file), f"cannot be read: {error}") from error

    def _write(self) -> None:
        """Write run.json durably, unlike journals: no run can resume without it."""
        file = self.path / "run.json"
        self._n_written += 1
        said = {"format": FORMAT, "identity": self.identity, "n_starts": self.n_starts,
                "n_written": self._n_written, "rows": self.rows,
                "told": self.incomplete}  # fmt: skip
        if (placed := self._placement) is not None:
            links = [[*key, where] for key, where in placed.links.items()]
            said["placement"] = {"links": links, "layers": list(placed.layers.items())}
        text, new = json.dumps(said).encode(), file.with_suffix(".new")
        disk.make_folder(self.path)
        disk.create(new, [text])
        disk.rename(new, file)
        disk.sync_folder(self.path)
        try:
            (self.path / "history").unlink(missing_ok=True)
        except OSError as error:
            raise disk.failed(self.path / "history", "cannot be removed", error) from error
        self._left_bytes = max(len(text), LEAST_BYTES)
