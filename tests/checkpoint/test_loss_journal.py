"""What a group that comes back to servers has lost in its epoch until there."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import horn
from horn.backends import Setup, make
from horn.errors import JournalError
from horn.training.loop import TrainingLoop
from horn.training.loop_control import LoopControl
from horn.training.loss_journal import N_KEPT, EpochSums, LossJournal
from horn.training.progress import Progress


def sums(iteration: int) -> EpochSums:
    return EpochSums(iteration, 20 * iteration, iteration / 3, iteration / 7, 10 * iteration, 0.5)


def test_the_newest_record_of_an_epoch_is_found(tmp_path: Path):
    journal = LossJournal(tmp_path / "servers" / "losses-1")
    for iteration in (10, 11, 12):
        journal.keep(sums(iteration))
    journal.close()
    again = LossJournal(journal.path)
    assert again.newest(0, 12) == again.newest(11, 13) == again.newest(0, 14) == sums(12)
    assert again.newest(9, 11) == sums(11)
    assert again.newest(12, 20) is None  # these are of the epoch before
    again.keep(sums(10 + N_KEPT))  # in its place
    assert again.newest(0, 10) is None and again.newest(0, 10 + N_KEPT) == sums(10 + N_KEPT)
    assert journal.path.stat().st_size == 13 * 48
    again.close()


def of_known_losses() -> tuple[horn.Job, Any]:
    """A job of 39 batches of 100, and an engine whose n-th batch loses n."""
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, horn.data.digits(), epochs=1, batch_size=100)
    engine = make("kernels", Setup(net, job.optimizer, job.target, 100, job.dtype))
    engine.bind(job.data)
    engine.step = lambda rows, iteration, first_sample: float(iteration + 1)
    return job, engine


@pytest.mark.parametrize("n_kept, unknown", [(15, 0), (14, 1)])
def test_a_group_that_comes_back_has_the_loss_of_its_whole_epoch(
    n_kept: int, unknown: int, tmp_path: Path
):
    """But for a batch that it pushed and was killed before it wrote what it had lost."""
    job, engine = of_known_losses()
    journal, n = LossJournal(tmp_path / "losses-0"), len(job.data)

    def loop(age_s: float) -> TrainingLoop:
        control = Keeping()
        control.loop = TrainingLoop(
            job, engine, Progress(), perf_counter() - age_s, control=control
        )
        return control.loop

    class Keeping(LoopControl):
        loop: TrainingLoop

        def own_loss(self) -> tuple[float, int]:
            return float(self.loop.iteration), 50

        def after_update(self, epoch: int, iteration: int, loss: float) -> bool:
            if self.loop is calm and iteration <= n_kept:
                journal.keep(calm.sums())
            return False

    calm = loop(100.0)
    calm.run()
    killed = loop(0.0)  # another run began later
    killed.skip_to(15, journal)
    killed.run()
    journal.close()
    [row], [whole] = killed.history, calm.history
    lost = 15 * 100.0 * unknown
    assert whole["loss"] == (sum(range(1, 39)) * 100 + 39 * (n - 3800)) / n
    assert row["loss"] == (whole["loss"] * n - lost) / (n - 100 * unknown)
    assert killed.own.samples == calm.own.samples - 50 * unknown
    assert killed.own.total == calm.own.total - 15 * 50 * unknown
    assert row["iteration"] == whole["iteration"] == 39 and row["seconds"] >= 100.0


def test_a_group_that_comes_back_twice_in_an_epoch_counts_what_is_unknown_only_once(tmp_path: Path):
    """On another host its first batches are unknown; killed there, it took their losses for 0."""
    job, engine = of_known_losses()
    journal, rows = LossJournal(tmp_path / "losses-0"), []
    for first, last in ((15, 20), (20, 39)):

        class Keeping(LoopControl):
            def after_update(self, epoch: int, iteration: int, loss: float) -> bool:
                if iteration <= last:  # noqa: B023
                    journal.keep(loop.sums())  # noqa: B023
                return False

        loop = TrainingLoop(job, engine, Progress(), perf_counter(), control=Keeping())
        loop.skip_to(first, journal)
        loop.run()
        rows += loop.history
    journal.close()
    n = len(job.data) - 1500
    assert [row["loss"] for row in rows] == [(sum(range(16, 39)) * 100 + 39 * (n - 2300)) / n] * 2


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path):
    (tmp_path / "servers").write_text("")
    with pytest.raises(JournalError, match="losses-0, byte 0: cannot be opened: .*; make room"):
        LossJournal(tmp_path / "servers" / "losses-0")
