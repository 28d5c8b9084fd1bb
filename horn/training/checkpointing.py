"""Checkpoints of a training: their content, and how a training resumes from them.

Parts are written in a thread, one at a time, from copies made between two updates.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horn import defaults
from horn.backends import Array
from horn.checkpoint import ArrayPiece, CheckpointReader, Checkpoints, WrittenPart, write_part
from horn.errors import CheckpointError, Conflict, Fenced, ProtocolError, Stopped
from horn.job import Job
from horn.training.cursor import Cursor, plain_row
from horn.training.history import History
from horn.training.identity import check_same
from horn.training.journals import JournalFolder, check_no_journals
from horn.training.loop import BestModel, TrainingLoop

logger = logging.getLogger(__name__)

BEST = "best-"  # prefix of the kinds of the best model's arrays


def part_name(rank: int) -> str:
    return f"rank-{rank}"


def saved_arrays(loop: TrainingLoop, owned: Collection[str] | None = None) -> list[ArrayPiece]:
    """Copies of the engine's memory and the best model. owned : arrays to save, None for all."""
    engine = loop.engine
    kinds: dict[str, Mapping[str, Array]] = dict(engine.memory())
    if loop.best is not None:
        kinds |= {f"{BEST}parameter": loop.best.parameters, f"{BEST}state": loop.best.states}
    return [
        ArrayPiece(kind, name, array.copy(), engine.places(name))
        for kind, arrays in kinds.items()
        for name, array in arrays.items()
        if owned is None or name in owned
    ]


def restore(
    loop: TrainingLoop,
    opened: CheckpointReader,
    part: str,
    group: int | None = None,
    earlier_s: float | None = None,
    goes_on: bool = True,
    scales: Mapping[str, float] | None = None,
) -> Mapping[str, Any]:
    """Resume a loop, whose engine is bound, from a checkpoint, and return the facts of its part.

    part : by name; if there is none, the first. group : use only parts of this group. earlier_s :
    seconds of training before ``loop.begun``; None takes them from the checkpoint. goes_on : False
    where nothing is learned any more from sequences in pieces. scales : of this run's strategy;
    weights with other scales are converted to those of the same model. Raises CheckpointError.
    """
    facts = opened.parts()
    parts = None
    if group is not None:
        parts = [name for name in facts if facts[name].get("group") == group]
        facts = {name: facts[name] for name in parts}
        if not parts:
            raise CheckpointError(str(opened.path), f"has no part of group {group}")
    own = facts.get(part)
    found = own if own is not None else facts[min(facts)]
    cursor = _cursor(opened, found)
    if own is None and group is None:  # the losses of this group's own samples are not known
        cursor.own_total, cursor.own_samples = 0.0, 0
    engine, factors = loop.engine, _factors(opened, scales or {})
    has_slots = set(opened.names("slot"))

    def cut(kind: str, names: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: array.copy()  # a new slot: the optimizer was changed knowingly
            if kind == "slot" and name not in has_slots
            else opened.cut(kind, name, engine.places(name), array.dtype, parts)
            for name, array in names.items()
        }

    memory = engine.memory()
    arrays = {k: cut(k, a) if goes_on or k != "heard" else a for k, a in memory.items()}
    arrays["parameter"] = {
        name: array * array.dtype.type(factors[name]) if factors.get(name, 1.0) != 1.0 else array
        for name, array in arrays["parameter"].items()
    }
    engine.recall(arrays, cursor.updates)
    best = None
    if cursor.best is not None and loop.is_watcher:
        kept = [cut(f"{BEST}{kind}", memory[kind]) for kind in ("parameter", "state")]
        best = BestModel(*cursor.best, *kept)
    loop.history = History(rows_of(opened))
    loop.go_on(cursor, best, cursor.seconds if earlier_s is None else earlier_s)
    return found


def _factors(opened: CheckpointReader, mine: Mapping[str, float]) -> dict[str, float]:
    """The factors, by name, that turn the weights of a checkpoint into those of the same model
    under a strategy that scales by ``mine``.
    """
    identity = opened.facts.get("identity")
    if not identity:  # of this run, which has only just stopped
        return {}
    theirs = identity.get("scales", {})
    return {name: theirs.get(name, 1.0) / mine.get(name, 1.0) for name in {*theirs, *mine}}


class SaveNotes:
    """Tells the user that checkpoints fail, and that they are saved again: once each. on_failing :
    called with the reason when they begin to fail. reason : why the last one is not saved, "" if it
    is.
    """

    def __init__(
        self, note: Callable[[str], None], on_failing: Callable[[str], None] | None = None
    ) -> None:
        self.note, self.on_failing = note, on_failing
        self.is_failing, self.reason = False, ""

    def failed(self, iteration: int, reason: object) -> None:
        level = logging.INFO if self.is_failing else logging.WARNING
        logger.log(level, "checkpoint not saved iteration=%d reason=%s", iteration, reason)
        self.reason = str(reason)
        if not self.is_failing:
            self.is_failing = True
            if self.on_failing is not None:
                self.on_failing(self.reason)
            self.note(
                f"The checkpoint of iteration {iteration:,} is not saved, and the run goes on "
                f"without it: {reason}"
            )

    def saved(self, iteration: int) -> None:
        self.reason = ""
        if self.is_failing:
            self.is_failing = False
            self.note(f"Checkpoints are saved again: that of iteration {iteration:,} is there.")


class PartWriter:
    """Writes parts in a thread, one at a time. ``check``, ``write`` and ``wait`` raise Fenced once
    a higher attempt has written a checkpoint: its tasks are to go on, not these.
    """

    def __init__(self, checkpoints: Checkpoints, attempt: int) -> None:
        self.checkpoints, self.attempt = checkpoints, attempt
        self._thread: threading.Thread | None = None
        self._fenced: Fenced | None = None

    def write(
        self,
        iteration: int,
        name: str,
        found: Sequence[ArrayPiece],
        facts: Mapping[str, Any],
        then: Callable[[WrittenPart | CheckpointError], None],
    ) -> None:
        """Begin to write a part, once the last one is written. then : called in the thread with the
        part, or with the error; it may raise Fenced.
        """
        self.wait()

        def work() -> None:
            try:
                then(self._written(iteration, name, found, facts))
            except Fenced as error:
                logger.warning("checkpoint not saved iteration=%d reason=%s", iteration, error)
                self._fenced = error

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _written(
        self, iteration: int, name: str, found: Sequence[ArrayPiece], facts: Mapping[str, Any]
    ) -> WrittenPart | CheckpointError:
        try:
            folder = self.checkpoints.begin(iteration, self.attempt)
            return write_part(folder, name, found, facts)
        except CheckpointError as error:
            return error
        except Fenced:
            raise
        except Exception as error:  # the top of the thread: it costs the checkpoint, not the run
            logger.exception("part not written iteration=%d", iteration)
            path = self.checkpoints.temporary(iteration, self.attempt)
            what = f"cannot be written ({type(error).__name__}: {error}); the log has more"
            return CheckpointError(str(path), what, exit_code=1)

    def check(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()


def check_fits(
    opened: CheckpointReader, job: Job, mine: Mapping[str, Any], is_changed: bool = False
) -> None:
    """Raise CheckpointError if it is of another job. is_changed : log the differences."""
    theirs, path = opened.facts.get("identity"), str(opened.path)
    if not isinstance(theirs, dict):
        raise CheckpointError(path, "says nothing of the job that it is of")
    check_same(path, theirs, mine, is_changed)
    if opened.iteration > job.n_iterations:
        what = f"is of iteration {opened.iteration}, but this job ends at {job.n_iterations}"
        raise CheckpointError(path, f"{what}; give it more epochs, or an earlier checkpoint")
    _warn_of_epochs(opened, job)


def _warn_of_epochs(opened: CheckpointReader, job: Job) -> None:
    """Warn where an epoch has become another number of updates, which are what is counted."""
    at, per, rows = opened.iteration, job.iterations_per_epoch, opened.facts.get("rows")
    first = rows[0] if isinstance(rows, list) and rows else None
    was = first.get("iteration") if isinstance(first, dict) else None
    # The row of a run that ended in its first epoch is of a part of it.
    if not isinstance(was, int) or was == per or not 0 < was < at:
        return
    logger.warning(
        "%s: epochs had %d updates and have %d now. Updates are counted: it goes on after update "
        "%d, which was in epoch %d and is in epoch %d of this job; %d are left, more with a larger "
        "epochs=", opened.path, was, per, at, math.ceil(at / was), math.ceil(at / per),
        job.n_iterations - at,
    )  # fmt: skip


def checkpoint_to_resume(
    checkpoints: Checkpoints | None,
    resume: bool | str | os.PathLike[str],
    job: Job,
    mine: Mapping[str, Any],
    is_changed: bool = False,
) -> CheckpointReader | None:
    """Find the checkpoint to begin from; None to begin anew. is_changed : it may be another job's.
    Raises CheckpointError; Conflict if a run is not to be resumed, but the folder has checkpoints.
    """
    opened = None
    if checkpoints is not None:
        check_no_journals(checkpoints.path, resume is not False)
    if resume is True:
        opened = None if checkpoints is None else checkpoints.latest()
    elif resume is not False:
        path = Path(resume)
        is_one = (path / "MANIFEST.json").exists()
        opened = Checkpoints(path.parent).open(path) if is_one else Checkpoints(path).latest()
        if opened is None:
            what = "has no checkpoint that can be used; name one, or the folder of a run"
            raise CheckpointError(str(path), what, 4)
    elif checkpoints is not None and (there := checkpoints.iterations()):
        raise Conflict(
            f"{checkpoints.path} has checkpoints of another run, the newest of iteration "
            f"{there[-1]}; resume it, or choose another folder"
        )
    if opened is not None:
        check_fits(opened, job, mine, is_changed)
    return opened


def cursor_of(opened: CheckpointReader) -> Cursor:
    """The cursor of the first task. Raises CheckpointError."""
    facts = opened.parts()
    if not facts:
        raise CheckpointError(str(opened.path), "has no part; use an older checkpoint")
    return _cursor(opened, facts[min(facts)])


def _cursor(opened: CheckpointReader, facts: Mapping[str, Any]) -> Cursor:
    try:
        return Cursor.from_json(facts["cursor"])
    except (ProtocolError, KeyError, TypeError, ValueError) as error:
        raise _odd(opened, error) from error


def _odd(opened: CheckpointReader, error: Exception) -> CheckpointError:
    what = f"is not as this horn writes it ({type(error).__name__}: {error}"[:300]
    return CheckpointError(str(opened.path), f"{what}); use an older checkpoint")


def stopped(
    last: tuple[int, Path] | None,
    iteration: int,
    reason: str = "",
    start: CheckpointReader | None = None,
) -> Stopped:
    """The error of a run that was stopped after an iteration. last : its last checkpoint. reason :
    why one could not be saved since, "" if none failed. start : the one that it began from.
    """
    if last is not None and last[0] == iteration:
        return Stopped(iteration, str(last[1]))
    since = last[0] if last is not None else 0 if start is None else start.iteration
    if since == iteration:  # it has done nothing
        return stopped_at(start)
    return Stopped(iteration, "", reason, since)


def stopped_at(start: CheckpointReader | None) -> Stopped:
    """The error of a run that was stopped before its first update."""
    return Stopped(0, "") if start is None else Stopped(start.iteration, str(start.path))


def rows_of(opened: CheckpointReader) -> list[dict[str, Any]]:
    try:
        return [dict(row) for row in opened.facts.get("rows", [])]
    except (TypeError, ValueError) as error:
        raise _odd(opened, error) from error


@dataclass(frozen=True)
class CheckpointSchedule:
    """The place and times of checkpoints. every : iterations, seconds : between two; or None."""

    folder: Path
    every: int | None = None
    seconds: float | None = None
    keep: int = defaults.KEPT_CHECKPOINTS


@dataclass(frozen=True)
class RecoverySettings:
    """When a run saves checkpoints, and how it recovers.

    schedule : when and where to save; None : never. mine : the job's identity. start : the one
    to begin from. stop_requested : set to stop the run at a boundary, with a checkpoint.
    max_restarts : failures in a row without a new checkpoint, after which the run is given up.
    journals : of servers, instead of a schedule.
    """

    schedule: CheckpointSchedule | None = None
    mine: Mapping[str, Any] = field(default_factory=dict)
    start: CheckpointReader | None = None
    stop_requested: threading.Event = field(default_factory=threading.Event)
    max_restarts: int = 0
    journals: JournalFolder | None = None


def manifest_facts(
    mine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], groups: int = 1, tasks: int = 1
) -> dict[str, Any]:
    """The facts of a manifest. rows : of the history so far."""
    found = [plain_row(row) for row in rows]
    return {"identity": dict(mine), "rows": found, "groups": groups, "tasks": tasks}


@dataclass(eq=False)
class LocalCheckpoints:
    """Saves the training of one process, as its loop's ``at_boundary``.

    stop_requested : set to stop it at the next boundary, with a checkpoint. last : the iteration
    and path of the newest checkpoint. note : takes words for the user, in the loop's thread. Raises
    Fenced: a higher attempt has written a checkpoint.
    """

    schedule: CheckpointSchedule
    mine: Mapping[str, Any]
    attempt: int
    stop_requested: threading.Event
    note: Callable[[str], None]
    last: tuple[int, Path] | None = None

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.schedule.folder, self.schedule.keep)
        self.checkpoints.sweep()
        attempt = max(self.attempt, self.checkpoints.next_attempt())
        self.writer = PartWriter(self.checkpoints, attempt)
        self._said: deque[str] = deque()  # in the writer's thread
        self.notes = SaveNotes(self._said.append)
        self.loop: TrainingLoop | None = None
        self._next_at = self._after(time.monotonic())

    def _after(self, now: float) -> float:
        return math.inf if self.schedule.seconds is None else now + self.schedule.seconds

    def __call__(self) -> bool:
        loop, now = self.loop, time.monotonic()
        assert loop is not None
        self._say()
        self.writer.check()
        stop = self.stop_requested.is_set()
        is_due = self.schedule.every is not None and loop.iteration % self.schedule.every == 0
        if stop or is_due or now >= self._next_at:
            self._next_at = self._after(now)
            self._save(loop)
        return stop

    def _save(self, loop: TrainingLoop) -> None:
        iteration = loop.iteration
        facts = manifest_facts(self.mine, loop.history.rows)

        def then(found: WrittenPart | CheckpointError) -> None:
            folder = self.checkpoints.temporary(iteration, self.writer.attempt)
            try:
                if isinstance(found, CheckpointError):
                    self.checkpoints.discard(folder)
                    raise found
                self.last = iteration, self.checkpoints.commit(folder, iteration, facts, [found])
            except (CheckpointError, Conflict) as error:
                self.notes.failed(iteration, error)
            else:
                self.notes.saved(iteration)

        own = {"rank": 0, "group": 0, "cursor": loop.cursor().to_json()}
        self.writer.write(iteration, part_name(0), saved_arrays(loop), own, then)

    def _say(self) -> None:
        while self._said:
            self.note(self._said.popleft())

    def close(self) -> None:
        with suppress(Fenced):  # the run has ended, and its model is there
            self.writer.wait()
        self._say()
