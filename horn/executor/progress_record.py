"""The progress of a job over all its attempts: rows of the history, made of the groups' reports.

It knows neither processes nor clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from horn.aggregates import COLUMNS
from horn.job import Job
from horn.process.control import BatchDone, EpochRow
from horn.training.progress import Progress


class ProgressRecord:
    """The progress of a job over all attempts: ``rows`` of the history, epoch and iteration.
    incomplete : that of an earlier record.
    """

    def __init__(
        self,
        job: Job,
        watcher: Progress,
        rows: Sequence[Mapping[str, Any]] = (),
        incomplete: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.job, self.watcher = job, watcher
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]
        self.epoch, self.iteration = len(self.rows) + 1, 0
        self.is_shown, self.resumed = False, ""  # resumed : a note for the beginning
        # Epochs and updates that callbacks have not seen yet. None: there are no callbacks.
        self.unseen: deque[Mapping[str, Any] | BatchDone] | None = None
        self._n_shown = len(self.rows)
        self._heard: dict[int, dict[int, EpochRow]] = {}  # epoch, group: not in ``rows`` yet
        self._latest: dict[int, int] = {}  # group: the last epoch that it reported
        self._gone: set[int] = set()  # groups that have left and are not waited for
        for said in incomplete:
            self._note(msgspec.convert(said, EpochRow))

    @property
    def incomplete(self) -> list[dict[str, Any]]:
        """Reports of epochs that are not in ``rows`` yet, plain, for a file."""
        return [msgspec.to_builtins(row) for said in self._heard.values() for row in said.values()]

    def begin(self) -> None:
        if not self.is_shown:
            self.is_shown = True
            self.watcher.begin(self.job)
            if self.resumed:
                self.watcher.note(self.resumed)
                self.resumed = ""

    def end(self) -> None:
        if self.is_shown:
            self.is_shown = False
            self.watcher.end()

    def back_to(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Go back to where another attempt begins. Reported epochs are not shown again."""
        self.rows = [dict(row) for row in rows]
        self.epoch, self.iteration = len(self.rows) + 1, iteration
        self._heard.clear()
        self._latest.clear()
        if self.unseen is not None:
            self.unseen.clear()

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self.epoch, self.iteration = epoch, iteration
        self.watcher.step(epoch, iteration, loss, samples_per_s)

    def hear(self, row: EpochRow, n_groups: int, is_joined: bool) -> None:
        epoch = int(row.values["epoch"])  # type: ignore[arg-type]
        if self.unseen is not None and row.group == 0 and epoch <= len(self.rows):
            self.unseen.append(self.rows[epoch - 1])  # for a restarted group, which waits for it
        self._note(row)
        self.put(n_groups, is_joined)

    def _note(self, row: EpochRow) -> None:
        epoch, group = int(row.values["epoch"]), row.group  # type: ignore[arg-type]
        self._latest[group] = max(epoch, self._latest.get(group, 0))
        if epoch > len(self.rows):
            self._heard.setdefault(epoch, {})[group] = row

    def known(self, n_groups: int) -> set[int]:
        """Numbers of the first groups, and of later ones that have reported."""
        return {*range(n_groups), *self._latest}

    def without(self, group: int) -> None:
        """Expect no reports of a group that is absent or has left."""
        self._gone.add(group)

    def put(self, n_groups: int, is_joined: bool, is_over: bool = False) -> None:
        """Add the rows of epochs that no group will report any more: each has, or has reported a
        later one, as after a recovery. A later group counts from its first report. is_over : no
        more reports come; the last epoch is group 0's.
        """
        while True:
            epoch = len(self.rows) + 1
            found = self._heard.get(epoch, {})
            if is_over and epoch > self._latest.get(0, 0):
                return
            here = self.known(n_groups) - self._gone
            missing = sorted(here - found.keys())
            if not is_over and any(self._latest.get(g, 0) <= epoch for g in missing):
                return
            self._heard.pop(epoch, None)
            self.rows.append(merged(found, is_joined) if 0 in found else self._unknown(epoch))
            self.epoch, self.iteration = epoch, int(self.rows[-1]["iteration"])
            if self.unseen is not None:
                self.unseen.append(self.rows[-1])
            if epoch > self._n_shown and 0 in found:
                self.watcher.epoch(self.rows[-1])
            self._n_shown = max(epoch, self._n_shown)

    def _unknown(self, epoch: int) -> dict[str, Any]:
        """An empty row for an epoch that group 0 reported to a process that has ended."""
        iteration = min(epoch * self.job.iterations_per_epoch, self.job.n_iterations)
        columns = (*COLUMNS, *self.job.aggregates)
        return {**dict.fromkeys(columns), "epoch": epoch, "iteration": iteration}


def merged(found: Mapping[int, EpochRow], is_joined: bool) -> dict[str, Any]:
    """Merge the groups' reports of an epoch into one row. What group 0 measured counts; where
    groups are not joined, the loss is that of all groups' samples, and their speeds are added.
    """
    row: dict[str, Any] = dict(found[0].values)
    # A group that came back at the end of an epoch has had no sample of it.
    said = [one for _, one in sorted(found.items()) if one.own is not None and one.own[1]]
    known = [one.own for one in said if one.own is not None]
    if len(known) < 2 or row["loss"] is None:
        return row
    n = sum(samples for _, samples in known)
    row["group_loss"], row["groups"] = [loss for loss, _ in known], [one.group for one in said]
    if is_joined:
        return row
    row["loss"] = sum(loss * samples for loss, samples in known) / n
    speeds: list[Any] = [one.values["samples_per_s"] for one in said]
    shares = zip(speeds, known, strict=True)
    row["samples_per_s"] = sum(speed * samples / n for speed, (_, samples) in shares)
    return row
