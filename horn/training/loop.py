"""The training loop of a job, epoch by epoch: the same in one process and in each task of a group.

An epoch is a permutation of the samples, by (seed, epoch): each is seen exactly once, and the last
batch of an epoch may be smaller; pieces of a sequence follow one another, batch after batch. The
loss of a row of the history is the mean over the epoch's samples, each measured before its update.
In a group every task runs this loop over its share of the network: losses and scores are the same
everywhere, so all decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from time import perf_counter
from typing import Any, overload

import numpy as np

from horn import html
from horn.aggregates import COLUMNS, named
from horn.backends import Array, Engine
from horn.data import Dataset
from horn.data.augment import AugmentedBatch
from horn.data.order import BatchRows
from horn.errors import Diverged, Stopped, Timeout
from horn.evaluation import measure
from horn.job import Job
from horn.metrics import n_answers
from horn.mistakes import NoSuchAttribute, NoSuchKey, NoSuchRow
from horn.outputs import better, has_answers
from horn.topology import share
from horn.training.cursor import Cursor, plain, plain_row
from horn.training.deadline import Deadline
from horn.training.divergence import KeptArrays, NonFinite, diverged
from horn.training.loss_journal import EpochSums, LossJournal
from horn.training.progress import Progress

KEPT_EVERY = 100  # iterations between copies of small arrays: below a hundredth of the time,
KEPT_BYTES = 1 << 26  # and of larger ones none
CHECKED_AT_ONCE = 1 << 20  # numbers that are looked at together for NaN and infinity
DEALS_APART = 1_000_003  # between the seeds of orders that are not the same


class History:
    """One row per epoch, and columns by name.

    ``history[0]`` and ``history[-1]`` are rows (dicts), ``history["loss"]`` is a column (a list),
    ``history[5:]`` a History of those rows, and iteration gives the rows. What was not measured is
    None. Columns: epoch (from 1; the last may be partial), iteration (updates so far), loss (of the
    training samples, as they were learned from), acc (of a sample of them, a twentieth, after the
    epoch), val_loss, val_acc, learning_rate (of the last update), seconds (since the start),
    samples_per_s, group_loss (of each group's own samples; None with one group), groups (whose
    these are, by number), then those of the job's aggregates, and val_NAME of each of its metrics.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns. A job resumed from a checkpoint may have had others before."""
        return (*COLUMNS, *dict.fromkeys(name for row in self.rows for name in named(row)))

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in COLUMNS and key not in self.columns:
                close = key.replace("accuracy", "acc")
                meant = f"write {close!r}; " if close in self.columns else ""
                raise NoSuchKey(f"{key!r}; {meant}columns: {', '.join(self.columns)}")
            return [row.get(key) for row in self.rows]  # of other aggregates before: None
        if isinstance(key, tuple):
            raise NoSuchKey(f"{key!r}; a column at a time: history[{key[0]!r}]")
        if isinstance(key, slice):
            return History(self.rows[key])
        try:
            return self.rows[key]
        except IndexError:
            n = len(self.rows)
            rows = f"its rows are 0 to {n - 1}, the last also -1" if n else "it has no rows"
            raise NoSuchRow(f"history[{key}]: the history has {n} epochs; {rows}") from None

    def __getattr__(self, name: str) -> Any:
        column = name if name in COLUMNS else "loss"
        hint = f"; columns go by name, as history[{column!r}], rows by number, history[-1]"
        raise NoSuchAttribute(f"a History has no {name!r}{'' if name[0] == '_' else hint}")

    def keys(self) -> tuple[str, ...]:
        """The columns: ``dict(history)`` is a dict of lists."""
        return self.columns

    _ipython_key_completions_ = keys

    def __contains__(self, key: object) -> bool:
        return key in (self.columns if isinstance(key, str) else self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        last = f", last: {html.plain(self.rows[-1])}" if self.rows else ""
        return f"<History of {len(self)} epochs{last}>"

    def _repr_html_(self) -> str:
        return html.epochs(self.rows)


@dataclass
class BestModel:
    """The model of the best epoch so far; in a group, this task's share of it."""

    score: float
    epoch: int
    iteration: int
    parameters: dict[str, Array]
    states: dict[str, Array]


@dataclass
class OwnLoss:
    """The sum of the losses of a group's own samples in an epoch."""

    total: float = 0.0
    samples: int = 0

    def add(self, loss: float, samples: int) -> None:
        self.total += loss * samples
        self.samples += samples


@dataclass(frozen=True)
class LoopResult:
    """The result of a loop. ``iteration`` and ``best_epoch`` are of the model that was kept."""

    iterations: int
    iteration: int
    stopped_early: bool
    best_epoch: int | None
    test: dict[str, float] | None
    metrics: dict[str, dict[str, float]]


@dataclass(eq=False)
class TrainingLoop:
    """The training loop of one job.

    begun : when the run began (``perf_counter``). deadline : of the job's time. is_share : the
    engine has a share of the arrays, so that an error cannot name the neuron; ``trouble`` has its
    place. views : gives the learned arrays without copying them. on_iteration : called with the
    number of each update before it. is_watcher : this loop measures, and keeps the best model; else
    another group does. before_measuring : called at the end of each epoch. on_epoch : called after
    each epoch with its number and whether this group wants to stop; returns whether all stop.
    before_end : called after the last step. own_of : gives the loss of the group's own samples in
    the last batch, and their number; ``own`` sums them over the epoch. is_changed_at_end :
    before_end changes the model, so the last row is not of the model that is kept. part : this
    group's number and the number of groups: of each batch it reads its part. deal : the number of
    the order of the samples; groups that began together have the same. at_boundary : called after
    each update, of the last one in an epoch that another follows after the epoch's end; returns
    whether to stop there, and then ``is_halted``. on_batch : called after each update, before that,
    with its epoch, the updates so far and its loss; returns whether its epoch, and training, end
    with it. take : gives the next rows of a stream, which has an order of its own; its rows cannot
    be measured again; it waits until its second argument says not to, then gives None. is_stopping
    : whether a stop is asked for, which ends such a wait. batches : changes the rows of a batch;
    the engine is bound to its data.

    ``go_on``, before ``run``, with the arrays and the ``cursor`` of a moment gives the same rows
    and the same model from then on.

    Raises
    ------
    Diverged : the loss, or a weight, became NaN or infinite. Timeout : it took too long. Stopped :
    a stream gave nothing until a stop was asked for, before the first update.
    """

    job: Job
    engine: Engine
    watcher: Progress
    begun: float
    deadline: Deadline = Deadline(None)
    _: KW_ONLY
    is_share: bool = False
    views: Callable[[], Mapping[str, Array]] | None = None
    on_iteration: Callable[[int], None] | None = None
    is_watcher: bool = True
    before_measuring: Callable[[], None] | None = None
    on_epoch: Callable[[int, bool], bool] | None = None
    before_end: Callable[[], None] | None = None
    own_of: Callable[[], tuple[float, int]] | None = None
    part: tuple[int, int] = (0, 1)
    is_changed_at_end: bool = False
    at_boundary: Callable[[], bool] | None = None
    deal: int = 0
    on_batch: Callable[[int, int, float], bool] | None = None
    take: Callable[[int, Callable[[], bool]], Array | None] | None = None
    is_stopping: Callable[[], bool] = lambda: False
    batches: AugmentedBatch | None = None

    def __post_init__(self) -> None:
        job = self.job
        self._ends_at = self.deadline.at  # monotonic, which perf_counter is, too
        self.callbacks: Callable[[], dict[str, Any]] = dict  # their state, for the cursor
        self.recalled: dict[str, Any] = {}  # their state in the cursor that the loop resumed from
        self.history, self.own = History(), OwnLoss()
        self.iteration = self.epoch = 0
        self.done, self.total = 0, 0.0  # samples of the current epoch, the sum of their losses
        self.unseen = 0  # those of them without known losses
        self.earlier_s = 0.0  # seconds of training before ``begun``
        self.is_halted = self.is_ended = False
        self.is_stepping = False  # within an update: the arrays may be of two
        self.kept: KeptArrays | None = None
        self.best: BestModel | None = None
        self.stopped_early = False
        self.trouble: NonFinite | None = None
        self.has_answers = has_answers(job.network, job.data, job.target)
        # each loss and accuracy has a name
        self.is_several = job.network.has_several or len(job.network.judged) > 1
        is_wanted = self.has_answers or job.aggregates or self.is_several
        self.sample = _sample(job) if is_wanted and self.take is None else None

    def cursor(self) -> Cursor:
        best = self.best
        return Cursor(
            iteration=self.iteration, epoch=self.epoch, done=self.done, total=self.total,
            own_total=float(self.own.total),
            own_samples=self.own.samples,
            seconds=perf_counter() - self.begun + self.earlier_s,
            rows=[plain_row(row) for row in self.history],
            best=None if best is None else (float(plain(best.score)), best.epoch, best.iteration),
            updates=self.engine.updates, callbacks=self.callbacks(),
        )  # fmt: skip

    def go_on(self, cursor: Cursor, best: BestModel | None, earlier_s: float = 0.0) -> None:
        """Resume from a cursor, with the arrays set. earlier_s : of training before ``begun``."""
        self.iteration, self.epoch, self.done = cursor.iteration, cursor.epoch, cursor.done
        self.total, self.best, self.earlier_s = cursor.total, best, earlier_s
        self.unseen, self.recalled = 0, cursor.callbacks
        self.own = OwnLoss(cursor.own_total, cursor.own_samples)
        self._keep(0)
        self.history = History(cursor.rows)

    def sums(self) -> EpochSums:
        """What the epoch comes to so far, for ``skip_to``."""
        own, seconds = self.own, perf_counter() - self.begun + self.earlier_s
        return EpochSums(
            self.iteration, self.done, self.total, float(own.total), own.samples, seconds
        )

    def skip_to(self, iteration: int, journal: LossJournal | None = None) -> None:
        """Begin after ``iteration`` updates, whose losses are as the ``journal`` has them. At the
        end of an epoch, the row of the epoch is still to be made.
        """
        job, n = self.job, len(self.job.data)
        self.iteration = min(iteration, job.n_iterations)
        if not self.iteration:
            return
        per_epoch = job.iterations_per_epoch
        self.epoch = -(-self.iteration // per_epoch)
        n_before = (self.epoch - 1) * per_epoch
        self.done = self.unseen = min((self.iteration - n_before) * job.batch_size, n)
        sums = None if journal is None else journal.newest(n_before, self.iteration)
        if sums is not None and sums.done <= self.done:
            self.unseen, self.total = self.done - sums.done, sums.total
            self.own = OwnLoss(sums.own_total, sums.own_samples)
            # Another run, or another host, may have begun later.
            self.earlier_s = max(0.0, sums.seconds - (perf_counter() - self.begun))

    def run(self) -> None:
        """Run all epochs, or until the loop is stopped early or halted."""
        job = self.job
        while self.iteration < job.n_iterations or self.done:
            n_before = self.iteration
            row = self._epoch()
            if row is None:
                self.is_halted = True
                return
            epoch = self.epoch
            if self.before_measuring is not None:
                self.before_measuring()
            if self.is_watcher:
                self._watch(row)
            if not job.network.is_judged:  # there is no loss to become NaN
                self._check_finite()
            self.history.rows.append(row)
            if self.is_watcher:
                self._keep_best(row)
            self.watcher.epoch(row)
            patience = job.early_stopping.patience if job.early_stopping else None
            stop = bool(patience and self.best and epoch - self.best.epoch >= patience)
            stop = stop or self.is_ended
            if self.on_epoch is not None:
                stop = self.on_epoch(epoch, stop)
            self.done = 0
            if stop:  # without a checkpoint: who began there would go on after the end
                self.stopped_early = self.iteration < job.n_iterations
                break
            if n_before < self.iteration < job.n_iterations and self._pass_boundary():
                self.is_halted = True
                return
        if self.before_end is not None:
            self.before_end()

    def _watch(self, row: dict[str, Any]) -> None:
        job = self.job
        if self.sample is not None and job.aggregates:
            _, right, combined = self.engine.watch(self.sample)
            n = len(self.sample)
            if self.has_answers and not job.network.has_several:
                row["acc"] = int(right) / n_answers(job.network, self.sample)
            for (name, aggregate), value in zip(job.aggregates.items(), combined, strict=True):
                row[name] = aggregate.of(float(value), n)
        elif self.sample is not None and not self.is_several:
            row["acc"] = measure(self.engine, job.network, self.sample, job.target)["acc"]
        if self.sample is not None and self.is_several:
            found = measure(self.engine, job.network, self.sample, job.target)
            names = [name for name in found if name != "loss"]  # that is of the training
            row |= {name: _finite(found[name]) for name in names}
        if job.validation is not None and job.network.is_judged:
            found = _measure(self.engine, job, job.validation)
            row["val_loss"], row["val_acc"] = found.pop("loss"), found.pop("acc", None)
            row |= {f"val_{name}": _finite(value) for name, value in found.items()}

    def finish(self) -> LoopResult:
        """Load the best model, if one was kept, and measure it. Of a run that is halted Ctrl-C ends
        the measuring alone.
        """
        job, best, iteration = self.job, self.best, self.iteration
        self._check_finite()
        if not self.is_watcher:
            return LoopResult(iteration, iteration, self.stopped_early, None, None, {})
        epoch = None
        if best is not None:
            iteration, epoch = best.iteration, best.epoch
            self.engine.load(best.parameters, best.states, None, iteration)
        try:
            test = None if job.test is None else _measure(self.engine, job, job.test)
            metrics = {"test": test} if test else self._last_metrics()
        except KeyboardInterrupt:  # all data of an interpreted network may take minutes
            if not self.is_halted:
                raise
            test, metrics = None, {}
        return LoopResult(self.iteration, iteration, self.stopped_early, epoch, test, metrics)

    def _epoch(self) -> dict[str, Any] | None:
        """Run the next epoch, or the rest of one, and return its row; None if it was halted."""
        job, step = self.job, self.engine.step
        pieces = job.data.pieces if self.take is None else 1
        n, size = len(job.data) // pieces, job.batch_size
        if not self.done:
            self.epoch += 1
            self.total, self.unseen, self.own = 0.0, 0, OwnLoss()
            self._keep(KEPT_EVERY)
        epoch, done_before, begun, take = self.epoch, self.done, perf_counter(), self.take
        seed = job.network.seed + DEALS_APART * self.deal
        lengths = job.data.lengths if take is None else None
        batches = BatchRows(n, size, pieces, seed, epoch - 1, lengths, job.buckets)
        sample, n_before = (epoch - 1) * n, batches.before(self.done)
        n_iterations = job.n_iterations
        n_steps = min(job.iterations_per_epoch, n_iterations - self.iteration + n_before)
        next_report_s = begun + self.watcher.interval_s
        for number in range(n_before, n_steps):
            start = number // pieces * size
            if take is None:
                rows = batches[number]
            elif (taken := take(min(size, n - start), self._gives_up)) is not None:
                rows = taken
            elif self.iteration:
                return None
            else:
                raise Stopped(0, "")
            if self.on_iteration is not None:
                self.on_iteration(self.iteration)
            if take is None and number + 1 < n_steps:
                self._expect(batches[number + 1])
            if self.batches is not None:
                rows = self.batches.read(rows, epoch, slice(*share(len(rows), *self.part)))
            self.is_stepping = True
            loss = step(rows, iteration=self.iteration, first_sample=sample + start)
            if not math.isfinite(loss):
                raise self._diverged(f"the loss became {loss}", self.iteration, epoch)
            self.iteration += 1
            self.is_stepping = False
            self.total += loss * self._counts(rows)
            self.done += len(rows)
            if self.own_of is not None:
                self.own.add(*self.own_of())
            now = perf_counter()
            if now >= next_report_s:
                next_report_s = now + self.watcher.interval_s
                speed = (self.done - done_before) / (now - begun)
                mean = self.total / (self.done - self.unseen)
                self.watcher.step(epoch, self.iteration, mean, speed)
            self._check_time(now)
            if self.on_batch is not None and self.on_batch(epoch, self.iteration, loss):
                self.is_ended = True
                break
            if self.iteration == n_iterations:
                self._pass_boundary()  # here: a longer run goes on within this epoch
            elif number + 1 < n_steps and self._pass_boundary():
                return None
        now = perf_counter()
        n_seen = self.done - self.unseen
        return dict.fromkeys((*COLUMNS, *job.aggregates)) | {
            "epoch": epoch,
            "iteration": self.iteration,
            "loss": self.total / n_seen if n_seen and job.network.is_judged else None,
            "learning_rate": job.optimizer.rate(self.iteration - 1),
            "seconds": now - self.begun + self.earlier_s,
            "samples_per_s": (self.done - done_before) / max(now - begun, 1e-9),
        }

    def _gives_up(self) -> bool:
        """Whether not to wait for a stream any longer. Raises Timeout."""
        self._check_time(perf_counter(), ", where its stream gave no more samples")
        return self.is_stopping()

    def _check_time(self, now: float, where: str = "") -> None:
        if self._ends_at is not None and now > self._ends_at:
            raise overdue(self.job, self.deadline, self.iteration, self.epoch, where)

    def _pass_boundary(self) -> bool:
        """Save what is to be saved after this update; returns whether to stop there."""
        return self.at_boundary is not None and self.at_boundary()

    def _counts(self, rows: Array) -> float:
        """The weight of a batch in an epoch's mean loss: its number of samples; if sequences end
        early and only steps are judged, their number of steps in mean lengths.
        """
        lengths = self.job.data.lengths if self.take is None else None
        if lengths is None or not self.job.network.judges_each:
            return len(rows)
        return float(lengths[rows].sum() / lengths.mean())

    def _keep(self, least: int) -> None:
        """Copy the arrays, if ``least`` iterations have passed since the last copy."""
        since = self.iteration - (self.kept.iteration if self.kept else 0)
        if self.is_share or since < least:
            return
        memory = self.engine.memory()
        if sum(a.nbytes for kind in memory.values() for a in kind.values()) <= KEPT_BYTES:
            copies = {k: {n: a.copy() for n, a in kind.items()} for k, kind in memory.items()}
            self.kept = KeptArrays(self.iteration, self.engine.updates, copies)

    def _expect(self, rows: Array) -> None:
        """Announce the next batch to the data: this group reads only its own part of it."""
        group, n_groups = self.part
        self.job.data.expect(rows[slice(*share(len(rows), group, n_groups))])

    def _keep_best(self, row: Mapping[str, Any]) -> None:
        stopping = self.job.early_stopping
        if stopping is None and not self.job.keep_best:
            return
        score = self.job.score(row)
        margin = stopping.min_delta if stopping else 0.0
        if self.best is None or score < self.best.score - margin:
            arrays = self.engine.parameters(), self.engine.states()
            self.best = BestModel(score, row["epoch"], row["iteration"], *arrays)

    def _last_metrics(self) -> dict[str, dict[str, float]]:
        """The last metrics: of the validation data, else the training data; none without loss."""
        job = self.job
        if not job.network.is_judged:
            return {}
        is_other = self.is_changed_at_end or self.is_halted  # than the model of the last row
        if job.validation is not None and is_other and self.best is None:
            return {"validation": _measure(self.engine, job, job.validation)}
        if job.validation is not None:
            # Not by its place: a group that came back to servers has the rows since then.
            own = [r for r in self.history if self.best and r["epoch"] == self.best.epoch]
            row = own[0] if own else self.history[-1]
            columns = better(job.network, job.metrics, job.validation, job.target)
            found = {name.removeprefix("val_"): row.get(name) for name in columns}
            return {"validation": {k: v for k, v in found.items() if v is not None}}
        if self.take is not None:
            return {}
        return {"training": _measure(self.engine, job, job.data)}

    def _check_finite(self) -> None:
        views = self.views or self.engine.parameters
        if not all(map(_is_finite, views().values())):
            raise self._diverged("a weight is not finite", self.iteration - 1, self.epoch)

    def _diverged(self, what: str, iteration: int, epoch: int) -> Diverged:
        self.trouble = NonFinite(what, iteration, epoch)
        if self.is_share:
            return Diverged(what)
        return diverged(self.job, self.engine.parameters(), self.trouble, self.kept)


def overdue(job: Job, deadline: Deadline, iteration: int, epoch: int, where: str = "") -> Timeout:
    return Timeout(
        f"the job took more than {deadline.timeout_s:g} s; stopped at iteration "
        f"{iteration} of {job.n_iterations} (epoch {epoch}){where}; raise timeout (--timeout)"
    )


def _is_finite(array: Array) -> bool:
    """Whether all numbers of an array are finite; in pieces, which need little memory."""
    step = max(CHECKED_AT_ONCE * len(array) // max(array.size, 1), 1)
    pieces = (array[start : start + step] for start in range(0, len(array), step))
    return all(np.isfinite(piece).all() for piece in pieces)


def _sample(job: Job) -> Dataset:
    """The part of the training data that is measured after an epoch."""
    data, step = job.data, job.looks_at_every
    if data.pieces > 1:
        of_first: Dataset = data.with_first_pieces(job.looked_pieces)
        return of_first
    y = None if data.y is None else np.ascontiguousarray(data.y[::step])
    x = np.ascontiguousarray(data.x[::step])
    lengths = None if data.lengths is None else data.lengths[::step]
    sample: Dataset = data.with_fields(x=x, y=y, ids=None, weight=None, lengths=lengths)
    return sample


def _measure(engine: Engine, job: Job, data: Any) -> dict[str, float]:
    if not job.network.is_judged:
        return {}
    return measure(engine, job.network, data, job.target, job.metrics)


def _finite(value: float) -> float | None:
    """The value, or None if it is not finite, as in JSON."""
    return value if math.isfinite(value) else None
