"""The training loop of a job, epoch by epoch: the same in one process and in each task of a group.

An epoch is a permutation of the samples, by (seed, epoch): each is seen exactly once, and the last
batch of an epoch may be smaller; pieces of a sequence follow one another, batch after batch. The
loss of a row of the history is the mean over the epoch's samples, each measured before its update.
In a group every task runs this loop over its share of the network: losses and scores are the same
everywhere, so all decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from time import perf_counter
from typing import Any

from horn.aggregates import COLUMNS
from horn.backends import Array, Engine
from horn.errors import Stopped, Timeout
from horn.job import Job
from horn.schedules import SettableRate
from horn.training.batches import BatchSource
from horn.training.cursor import Cursor, plain
from horn.training.deadline import Deadline
from horn.training.divergence import DivergenceGuard
from horn.training.history import History
from horn.training.loop_control import LoopControl
from horn.training.loss_journal import EpochSums, LossJournal
from horn.training.measuring import Measuring
from horn.training.progress import Progress
from horn.training.steady_rate import SteadyRate


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

    begun : when the run began (``perf_counter``). deadline : of the job's time. control : hears of
    each step, and decides with the loop. source : of the batches; None : all of the job's, in the
    order of its seed. is_share, views : as of ``DivergenceGuard``. is_watcher : this loop measures,
    and keeps the best model; else another group does. is_apart : its group is not joined with the
    others: the loss of a step is that of the group's own samples, and ``control.before_end``
    changes the model, so the last row is not of the model that is kept.

    ``go_on``, before ``run``, with the arrays, the ``history`` and the ``cursor`` of a moment gives
    the same rows and the same model from then on.

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
    control: LoopControl = LoopControl()
    source: InitVar[BatchSource | None] = None
    is_share: InitVar[bool] = False
    views: InitVar[Callable[[], Mapping[str, Array]] | None] = None
    is_watcher: bool = True
    is_apart: bool = False

    def __post_init__(
        self,
        source: BatchSource | None,
        is_share: bool,
        views: Callable[[], Mapping[str, Array]] | None,
    ) -> None:
        self.batches = source or BatchSource(self.job)
        self.guard = DivergenceGuard(self.job, self.engine, is_share, views)
        self.measuring = Measuring(self.job, self.engine, self.batches.take is not None)
        self._ends_at = self.deadline.at  # monotonic, which perf_counter is, too
        self.steady_rate = SteadyRate(self.job.optimizer)
        self.recalled: dict[str, Any] = {}  # callbacks' state in the cursor of a resumed loop
        self.history, self.own = History(), OwnLoss()
        self.iteration = self.epoch = 0
        self.done, self.total = 0, 0.0  # samples of the current epoch, the sum of their losses
        self.unseen = 0  # those of them without known losses
        self.earlier_s = 0.0  # seconds of training before ``begun``
        self.is_halted = self.is_ended = False
        self.is_stepping = False  # within an update: the arrays may be of two
        self.best: BestModel | None = None
        self.stopped_early = False

    def cursor(self) -> Cursor:
        best = self.best
        return Cursor(
            iteration=self.iteration, epoch=self.epoch, done=self.done, total=self.total,
            own_total=float(self.own.total),
            own_samples=self.own.samples,
            seconds=perf_counter() - self.begun + self.earlier_s,
            best=None if best is None else (float(plain(best.score)), best.epoch, best.iteration),
            updates=self.engine.updates, callbacks=self.control.memory(),
        )  # fmt: skip

    def go_on(self, cursor: Cursor, best: BestModel | None, earlier_s: float = 0.0) -> None:
        """Resume from a cursor, with arrays and history set. earlier_s : of training before
        ``begun``.
        """
        self.iteration, self.epoch, self.done = cursor.iteration, cursor.epoch, cursor.done
        self.total, self.best, self.earlier_s = cursor.total, best, earlier_s
        self.unseen, self.recalled = 0, cursor.callbacks
        self.own = OwnLoss(cursor.own_total, cursor.own_samples)
        self.guard.keep(self.iteration, 0)

    def sums(self) -> EpochSums:
        """What the epoch comes to so far, for ``skip_to``."""
        own, seconds = self.own, perf_counter() - self.begun + self.earlier_s
        n_known = self.done - self.unseen
        return EpochSums(
            self.iteration, n_known, self.total, float(own.total), own.samples, seconds
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
        job, control = self.job, self.control
        while self.iteration < job.n_iterations or self.done:
            n_before = self.iteration
            row = self._epoch()
            if row is None:
                self.is_halted = True
                return
            epoch = self.epoch
            control.before_measuring()
            if self.is_watcher:
                row |= self.measuring.epoch()
            if not job.network.is_judged:  # there is no loss to become NaN
                self._check_finite()
            self.history.rows.append(row)
            if self.is_watcher:
                self._keep_best(row)
            self.watcher.epoch(row)
            patience = job.early_stopping.patience if job.early_stopping else None
            stop = bool(patience and self.best and epoch - self.best.epoch >= patience)
            stop = control.after_epoch(epoch, stop or self.is_ended)
            self.done = 0
            if stop:  # without a checkpoint: who began there would go on after the end
                self.stopped_early = self.iteration < job.n_iterations
                break
            if n_before < self.iteration < job.n_iterations and control.at_boundary():
                self.is_halted = True
                return
        control.before_end()

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
            test = None if job.test is None else self.measuring.of(job.test)
            is_other = self.is_apart or self.is_halted
            last = self.measuring.last
            metrics = {"test": test} if test else last(self.history, epoch, is_other)
        except KeyboardInterrupt:  # all data of an interpreted network may take minutes
            if not self.is_halted:
                raise
            test, metrics = None, {}
        return LoopResult(self.iteration, iteration, self.stopped_early, epoch, test, metrics)

    def _epoch(self) -> dict[str, Any] | None:
        """Run the next epoch, or the rest of one, and return its row; None if it was halted."""
        job, step, control = self.job, self.engine.step, self.control
        if not self.done:
            self.epoch += 1
            self.total, self.unseen, self.own = 0.0, 0, OwnLoss()
            self.guard.keep(self.iteration)
        epoch, done_before, begun = self.epoch, self.done, perf_counter()
        order, counts = self.batches.order(epoch), self.batches.counts
        n_iterations, n_before = job.n_iterations, order.before(self.done)
        n_steps = min(job.iterations_per_epoch, n_iterations - self.iteration + n_before)
        next_report_s = begun + self.watcher.interval_s
        batches = self.batches.read(order, n_before, n_steps, self._gives_up)
        is_settable = isinstance(job.optimizer.learning_rate, SettableRate)
        rate: float | None = None
        for number in range(n_before, n_steps):
            control.before_update(self.iteration)
            batch = next(batches, None)
            if batch is None:  # of a stream, which was asked to stop
                if self.iteration:
                    return None
                raise Stopped(0, "")
            rows, first_sample = batch
            self.is_stepping = True
            loss = step(rows, iteration=self.iteration, first_sample=first_sample)
            if not math.isfinite(loss):
                raise self.guard.diverged(f"the loss became {loss}", self.iteration, epoch)
            self.iteration += 1
            self.is_stepping = False
            self.total += loss * counts(rows)
            self.done += len(rows)
            own = control.own_loss()
            if own is not None:
                self.own.add(*own)
            # Of a batch with fewer samples than groups, some have none.
            is_known = own is None or own[1] > 0 or not self.is_apart
            if not is_known:
                self.unseen += len(rows)
            now = perf_counter()
            if now >= next_report_s and (mean := self.mean_loss) is not None:
                next_report_s = now + self.watcher.interval_s
                speed = (self.done - done_before) / (now - begun)
                self.watcher.step(epoch, self.iteration, mean, speed)
            self._check_time(now)
            if is_settable:
                rate = job.optimizer.rate(self.iteration - 1)  # a callback may set another
            if control.after_update(epoch, self.iteration, loss if is_known else None):
                self.is_ended = True
                break
            if self.iteration == n_iterations:
                control.at_boundary()  # here: a longer run goes on within this epoch
            elif number + 1 < n_steps and control.at_boundary():
                return None
        self.steady_rate.check()
        self.steady_rate.note(self.iteration - 1)
        self.steady_rate.check()
        now = perf_counter()
        return dict.fromkeys((*COLUMNS, *job.aggregates)) | {
            "epoch": epoch,
            "iteration": self.iteration,
            "loss": self.mean_loss if job.network.is_judged else None,
            "learning_rate": job.optimizer.rate(self.iteration - 1) if rate is None else rate,
            "seconds": now - self.begun + self.earlier_s,
            "samples_per_s": (self.done - done_before) / max(now - begun, 1e-9),
        }

    @property
    def mean_loss(self) -> float | None:
        """The mean loss of the epoch so far; None if none is known."""
        n = self.done - self.unseen
        return self.total / n if n else None

    def _gives_up(self) -> bool:
        """Whether not to wait for a stream any longer. Raises Timeout."""
        self._check_time(perf_counter(), ", where its stream gave no more samples")
        return self.batches.is_stopping()

    def _check_time(self, now: float, where: str = "") -> None:
        if self._ends_at is not None and now > self._ends_at:
            raise overdue(self.job, self.deadline, self.iteration, self.epoch, where)

    def _check_finite(self) -> None:
        self.guard.check(self.iteration - 1, self.epoch)

    def _keep_best(self, row: Mapping[str, Any]) -> None:
        stopping = self.job.early_stopping
        if stopping is None and not self.job.keep_best:
            return
        score = self.job.score(row)
        margin = stopping.min_delta if stopping else 0.0
        if self.best is None or score < self.best.score - margin:
            arrays = self.engine.parameters(), self.engine.states()
            self.best = BestModel(score, row["epoch"], row["iteration"], *arrays)


def overdue(job: Job, deadline: Deadline, iteration: int, epoch: int, where: str = "") -> Timeout:
    return Timeout(
        f"the job took more than {deadline.timeout_s:g} s; stopped at iteration "
        f"{iteration} of {job.n_iterations} (epoch {epoch}){where}; raise timeout (--timeout)"
    )
