"""A job's folder of checkpoints: begin, commit, open the newest, remove the oldest."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horn import defaults
from horn.checkpoint import disk, manifest
from horn.checkpoint.opened import CheckpointReader
from horn.checkpoint.parts import SUFFIX, WrittenPart
from horn.errors import CheckpointError, Conflict, Fenced

logger = logging.getLogger(__name__)

FOLDER_NAME = re.compile(
    r"ckpt-(?P<iteration>\d{9,18})-(?P<attempt>\d{4,20})(?P<ending>|\.tmp|\.old)"
)


@dataclass(frozen=True, order=True)
class CheckpointFolder:
    """A folder by its name; in the order of age: a later attempt is newer whatever its iteration,
    since it began from a checkpoint of an earlier.
    """

    attempt: int
    iteration: int
    ending: str
    path: Path


class Checkpoints:
    """The checkpoints of one job in a folder of their own; the newest ``keep`` are kept. Only the
    process that starts the tasks of the highest attempt writes.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = defaults.KEPT_CHECKPOINTS) -> None:
        if keep < 1:
            raise CheckpointError(str(path), f"keep is {keep}; keep 1 or more checkpoints")
        self.path, self.keep = Path(path), keep

    def sweep(self, below_attempt: int | None = None) -> list[Path]:
        """Remove the leftovers of killed writers, of attempts below one if it is given; the folders
        that were removed.
        """
        removed = [
            found.path
            for found in self._found()
            if found.ending and (below_attempt is None or found.attempt < below_attempt)
            if disk.remove(found.path)
        ]
        if removed:
            logger.info("leftovers removed folder=%s n=%d", self.path, len(removed))
        return removed

    def next_attempt(self) -> int:
        """An attempt above all that have begun a checkpoint here; 0 in an empty folder."""
        return max((found.attempt for found in self._found()), default=-1) + 1

    def temporary(self, iteration: int, attempt: int) -> Path:
        """The folder in which every rank writes its part of a checkpoint."""
        return self.path / f"{_name(iteration, attempt)}.tmp"

    def begin(self, iteration: int, attempt: int) -> Path:
        """Make the temporary folder (0700), unless it is there. Raises CheckpointError; Fenced if a
        higher attempt has written a checkpoint.
        """
        self.check_attempt(attempt)
        temporary = self.temporary(iteration, attempt)
        disk.make_folder(temporary)
        return temporary

    def commit(
        self,
        temporary: Path,
        iteration: int,
        facts: Mapping[str, Any],
        parts: Sequence[WrittenPart],
    ) -> Path:
        """Make the parts one checkpoint, by a rename; then remove all but the newest ``keep``.
        After an error the temporary folder is gone, and earlier checkpoints are as they were.
        Raises CheckpointError; Fenced if a higher attempt has written a checkpoint, Conflict if
        this one has this iteration already.
        """
        name = FOLDER_NAME.fullmatch(temporary.name)
        if name is None or int(name["iteration"]) != iteration or name["ending"] != ".tmp":
            what = f"is not the temporary folder of iteration {iteration}"
            raise CheckpointError(str(temporary), what)
        attempt = int(name["attempt"])
        target = self.path / _name(iteration, attempt)
        is_done = False
        try:
            self.check_attempt(attempt)
            self._check_parts(temporary, parts)
            manifest.write(temporary, iteration, attempt, facts, parts)
            disk.sync_folder(temporary)
            self._make_way(target)
            disk.rename(temporary, target)
            self._sync_or_undo(temporary, target)
            is_done = True
        finally:
            if not is_done:
                self.discard(temporary)
        self._remove_old()
        n_bytes = sum(part.n_bytes for part in parts)
        logger.info("checkpoint written path=%s parts=%d n_bytes=%d", target, len(parts), n_bytes)
        return target

    def discard(self, temporary: Path) -> None:
        disk.remove(temporary)

    def latest(self) -> CheckpointReader | None:
        """The newest checkpoint that verifies, None if none does; logs the others."""
        for found in sorted(self._complete(), reverse=True):
            try:
                return self._opened(found.path, verify=True)
            except CheckpointError as error:
                logger.warning("checkpoint passed over: %s", error)
        return None

    def open(self, at: int | str | os.PathLike[str], verify: bool = True) -> CheckpointReader:
        """Open a checkpoint by its iteration (of the last attempt that has it) or path.

        Without ``verify`` each part is verified when something of it is used. Raises
        CheckpointError: none (exit code 4), or damaged (2).
        """
        if not isinstance(at, int):
            path = Path(at)
            try:
                if not path.is_dir():
                    raise CheckpointError(str(path), "no such checkpoint; check the name", 4)
            except OSError as error:
                raise disk.failed(path, "cannot be read", error) from error
            return self._opened(path, verify)
        complete = self._complete()
        having = [found for found in complete if found.iteration == at]
        if not having:
            known = ", ".join(map(str, sorted({found.iteration for found in complete})))
            what = f"has no checkpoint of iteration {at} (there are: {known or 'none'})"
            raise CheckpointError(str(self.path), what, 4)
        return self._opened(max(having).path, verify)

    def iterations(self) -> list[int]:
        """The iterations of the complete checkpoints, newest last, by their names."""
        return [found.iteration for found in sorted(self._complete())]

    def _opened(self, path: Path, verify: bool) -> CheckpointReader:
        name = FOLDER_NAME.fullmatch(path.name)
        if name is not None and name["ending"]:
            raise CheckpointError(str(path), "is an unfinished checkpoint; use another")
        opened = CheckpointReader(path)
        if name is not None:
            got, expected = (opened.iteration, opened.attempt), (name["iteration"], name["attempt"])
            if got != tuple(map(int, expected)):
                raise CheckpointError(
                    str(path),
                    f"is the checkpoint of iteration {got[0]}, attempt {got[1]} by its manifest; "
                    "give it its own name again",
                )
        if verify:
            opened.verify()
        return opened

    def _found(self) -> list[CheckpointFolder]:
        """All folders with the name of a checkpoint; no links."""
        found = []
        try:
            for entry in os.scandir(self.path):
                name = FOLDER_NAME.fullmatch(entry.name)
                if name is not None and entry.is_dir(follow_symlinks=False):
                    numbers = int(name["attempt"]), int(name["iteration"])
                    found.append(CheckpointFolder(*numbers, name["ending"], self.path / entry.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk.failed(self.path, "cannot be read", error) from error
        return found

    def _complete(self) -> list[CheckpointFolder]:
        return [found for found in self._found() if not found.ending]

    def check_attempt(self, attempt: int) -> None:
        """Raise Fenced if a higher attempt has written a checkpoint."""
        newest = max((found.attempt for found in self._complete()), default=attempt)
        if newest > attempt:
            raise Fenced(
                f"attempt {attempt} of {self.path}",
                f"attempt {newest} has written a checkpoint there",
            )

    def _check_parts(self, temporary: Path, parts: Sequence[WrittenPart]) -> None:
        names = [part.name for part in parts]
        if not parts or len(set(names)) != len(names):
            raise CheckpointError(str(temporary), f"has the parts {names}, expected each once")
        for part in parts:
            try:
                with disk.reading(temporary / f"{part.name}{SUFFIX}", part.n_bytes):
                    pass
            except CheckpointError as error:
                what = f"is not as its task wrote it: {error.what}"
                raise CheckpointError(error.path, what, 1, error.errno) from None
        disk.remove_others(temporary, {f"{name}{SUFFIX}" for name in names})

    def _make_way(self, target: Path) -> None:
        """Remove a damaged checkpoint of this name; a good one is a Conflict."""
        if not target.exists():
            return
        try:
            self._opened(target, verify=True)
        except CheckpointError as error:
            logger.warning("checkpoint replaced: %s", error)
            self._remove(target)
        else:
            raise Conflict(
                f"{target}: is a good checkpoint already; go on with another attempt "
                "(next_attempt) to write this iteration anew"
            )

    def _sync_or_undo(self, temporary: Path, target: Path) -> None:
        """Undo a rename that may not be on the disk."""
        try:
            disk.sync_folder(self.path)
        except CheckpointError:
            try:
                disk.rename(target, temporary)
            except CheckpointError as error:
                logger.warning("left behind: %s", error)
            raise

    def _remove_old(self) -> None:
        """Remove all but the newest ``keep``; only a warning says what could not be removed."""
        try:
            old = sorted(self._complete(), reverse=True)[self.keep :]
        except CheckpointError as error:
            logger.warning("left behind: %s", error)
            return
        for found in old:
            try:
                self._remove(found.path)
            except CheckpointError as error:
                logger.warning("left behind: %s", error)

    def _remove(self, path: Path) -> None:
        """Rename a checkpoint, then remove it: leftovers of a crash are no checkpoint."""
        old = path.with_name(f"{path.name}.old")
        disk.remove(old)
        disk.rename(path, old)
        disk.remove(old)


def _name(iteration: int, attempt: int) -> str:
    return f"ckpt-{iteration:09d}-{attempt:04d}"
