"""A whole run with servers in which processes are killed: what ended starts again, nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import CheckpointError, Conflict, JobError, TaskFailed
from horn.strategies.downpour import Downpour
from horn.strategies.easgd import EASGD
from horn.training.progress import Progress
from tests.faults.springs import Holds, Late
from tests.support.combinations import share

pytestmark = pytest.mark.cluster


def job(epochs: int = 4, **more: Any) -> horn.Job:
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(16, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.digits()
    return horn.Job(net, data=data, optimizer=horn.SGD(0.1), batch_size=20, epochs=epochs, **more)


SETTINGS: dict[str, Any] = {"groups": 2, "servers": 1, "strategy": "downpour"}


PER_EPOCH = job().iterations_per_epoch


@dataclass(frozen=True)
class Sprung(Downpour):
    """With a spring in every process: of schedules only servers are asked."""

    spring: Any = None


@dataclass(frozen=True)
class SprungApart(EASGD):
    """The same of groups that keep weights of their own."""

    spring: Any = None


def held(spring: Any, kind: Any = Sprung, **settings: Any) -> dict[str, Any]:
    """The same settings, with a spring."""
    return SETTINGS | {"strategy": kind(spring=spring, **settings)}


def pid_of(rank: int) -> int:
    """The process of this one's that is listed as <job>:<rank>."""
    for found in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(found.read_text().rpartition(")")[2].split()[1])
            name = (found.parent / "cmdline").read_bytes().rstrip(b"\0").rpartition(b":")[2]
        except (OSError, IndexError):
            continue  # it has ended
        if parent == os.getpid() and name == str(rank).encode():
            return int(found.parent.name)
    raise LookupError(f"no process of rank {rank}")


class Killer(Progress):
    """Kills ranks at certain epochs, and notes what is said and shown. mark : a file that is made
    when all are killed.
    """

    interval_s = 0.0  # of every step

    def __init__(self, plan: dict[int, list[int]], mark: Path) -> None:
        self.plan, self.notes, self.epochs = dict(plan), [], []
        self.pids: dict[int, set[int]] = {}
        self.mark = mark

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        for rank in self.plan.pop(epoch, []):
            os.kill(pid_of(rank), signal.SIGKILL)
            if not self.plan:
                self.mark.touch()

    def epoch(self, row: Any) -> None:
        self.epochs.append(row["epoch"])
        for rank in range(3):
            try:
                self.pids.setdefault(rank, set()).add(pid_of(rank))
            except LookupError:
                pass  # it has finished, or is not there yet

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    "who, how",
    share(
        2,
        [(0, "group 0"), (1, "group 1"), (2, "server 0")],
        [(Sprung, {}, 1), (Sprung, {"server_optimizer": "adagrad"}, 2), (SprungApart, {}, 1)],
    ),
)
def test_only_what_ended_starts_again(tmp_path, who, how):
    """how : its last is how many batches of the job are an iteration."""
    (rank, unit), (kind, settings, n_shared) = who, how
    killer = Killer({2: [rank]}, tmp_path / "killed")
    # In the middle of epoch 2, in which all are then.
    spring = Holds(str(killer.mark), (PER_EPOCH + PER_EPOCH // 2) // n_shared)
    run = horn.train(job(), checkpoints=tmp_path / "c", progress=killer,
                     **held(spring, kind, **settings))  # fmt: skip
    assert [note.partition(" (")[0] for note in killer.notes] == [f"Restarting {unit}"]
    assert killer.epochs == [1, 2, 3, 4] == run.history["epoch"]
    assert all(len(pids) <= (2 if other == rank else 1) for other, pids in killer.pids.items())
    assert run.metrics["training"]["acc"] > 0.85
    roles = {row["role"]: row for row in run.counters}
    assert (roles["server 0"]["n_replayed"] > 0) == (rank == 2)


class Dies(horn.Callback):
    """Kills group 1 after update 5, once."""

    everywhere = True

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def on_batch_end(self, context: Any) -> None:
        if context.group == 1 and context.iteration == 5 and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


def test_losses_are_of_whole_epochs_whoever_dies_and_seconds_go_on(tmp_path):
    def trained(name: str, iterations: int, **more: Any) -> horn.History:
        given = job(None, iterations=iterations, callbacks=(Dies(str(tmp_path / "flag")),))
        given = given.with_settings(batch_size=200)  # of each group: ten updates are an epoch
        return horn.train(given, groups=2, strategy=Downpour(max_staleness=0), progress=False,
                          checkpoints=tmp_path / name, **more).history  # fmt: skip

    first = trained("killed", 14)
    assert (tmp_path / "flag").exists()
    resumed, calm = trained("killed", 30, resume=True), trained("calm", 30)
    assert calm["iteration"] == resumed["iteration"] == [10, 15] and first["iteration"] == [7]
    assert resumed["loss"] == calm["loss"]
    assert resumed["group_loss"] == calm["group_loss"]
    assert first["seconds"][0] < resumed["seconds"][0] < resumed["seconds"][1]


def test_a_run_goes_on_from_what_its_servers_were_told(tmp_path):
    first = horn.train(job(2), checkpoints=tmp_path, **SETTINGS)
    more = horn.train(job(4), checkpoints=tmp_path, resume=True, **SETTINGS)
    assert more.history["epoch"] == [1, 2, 3, 4]
    assert more.history["loss"][:2] == first.history["loss"]
    assert more.metrics["training"]["loss"] < first.metrics["training"]["loss"]
    again = horn.train(job(4), checkpoints=tmp_path, resume=True, **SETTINGS)
    for name, array in more.model.parameters.items():
        assert np.array_equal(array, again.model.parameters[name])


class DiesOnce(horn.Callback):
    """Group 0 ends at the end of epoch 3, while it waits for the decision of callbacks."""

    everywhere = True

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def on_epoch_end(self, context: Any) -> None:
        if context.group == 0 and context.epoch == 3 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("strategy", [Downpour(push_every=5), Downpour(max_staleness=0), EASGD()])
def test_group_0_may_end_while_a_callback_reads_the_model(tmp_path, strategy):
    """Its parent waited for the parts of a process that had gone, without end."""
    mark, best = tmp_path / "died", tmp_path / "best.horn"
    callbacks = [DiesOnce(str(mark)), horn.ModelCheckpoint(best, monitor="loss")]
    run = horn.train(job(5, callbacks=callbacks), groups=2, servers=1, strategy=strategy,
                     checkpoints=tmp_path / "c", timeout=100, progress=False)  # fmt: skip
    assert mark.exists() and run.history["epoch"] == [1, 2, 3, 4, 5]
    assert horn.Model.load(best).network.n_inputs == 64


@pytest.mark.parametrize("strategy", [Downpour(max_staleness=0), EASGD()])
def test_the_best_epoch_after_a_resume_is_found_in_the_history(tmp_path, strategy):
    """A group that comes back knows the rows since then: of another epoch were the metrics, or it
    was an IndexError after all the training."""
    settings = {"groups": 2, "servers": 1, "strategy": strategy, "checkpoints": tmp_path}
    for epochs in (2, 5):
        given = job(epochs, validation=0.1, keep_best=True)
        run = horn.train(given, resume=epochs > 2, progress=False, **settings)
    assert run.best_epoch is not None and run.best_epoch > 2
    row = run.history[run.best_epoch - 1]
    found = run.metrics["validation"]
    assert (found["loss"], found["acc"]) == (row["val_loss"], row["val_acc"])


class Counts(horn.Neuron):
    """Its State says how many batches its group has computed since it started."""

    n = horn.State(0.0)

    def forward(self, messages):
        if self.training:
            self.n = self.n + 1
        self.feedforward(horn.math.tanh(sum(m.input * m.weight for m in messages)))


@pytest.mark.parametrize("strategy", [Downpour(), Downpour(push_every=5), EASGD()])
@pytest.mark.parametrize("n", [1, 2])
def test_a_run_that_goes_on_leaves_out_no_batch(tmp_path, strategy, n):
    """After a last push of fewer batches than others it went on where a whole one would end."""
    x = np.linspace(-1, 1, 80).reshape(40, 2)

    def trained(iterations: int, **how: Any) -> horn.Model:
        net = horn.Network(seed=3)
        net.input(2)
        net.layer(4, neuron=Counts, name="counts")
        net.output(1, loss="squared_error")
        given = horn.Job(net, (x, x[:, :1] ** 2), optimizer=horn.SGD(0.05), batch_size=8,
                         iterations=iterations)  # fmt: skip
        return horn.train(given, progress=False, **how).model

    settings = {"strategy": strategy, "groups": n, "servers": 1, "checkpoints": tmp_path}
    trained(25, **settings)
    for begun, end in ((25, 37), (37, 50)):
        model = trained(end, resume=True, **settings)
        assert model.states["counts.n"].tolist() == [end - begun] * 4
    if n == 1 and isinstance(strategy, Downpour):  # as if it trained alone
        alone = trained(50)
        for name, array in alone.parameters.items():
            np.testing.assert_allclose(model.parameters[name], array, rtol=1e-4, atol=1e-6)


def test_servers_wait_for_tasks_that_come_late_to_a_run_that_was_done(tmp_path):
    """They know its end from before, and find nobody there."""
    mark = tmp_path / "late"
    spring = Late(str(mark), n_workers=2)
    for epochs in (1, 2, 2):
        run = horn.train(job(epochs), checkpoints=tmp_path / "c", resume=mark.exists(),
                         **held(spring))  # fmt: skip
        assert run.history["epoch"] == list(range(1, epochs + 1))
        mark.touch()


def test_another_runs_folder_is_refused(tmp_path):
    horn.train(job(1), checkpoints=tmp_path, **SETTINGS)
    with pytest.raises(Conflict, match="servers of another run were told; resume it, or choose"):
        horn.train(job(1), checkpoints=tmp_path, **SETTINGS)
    with pytest.raises(
        CheckpointError, match="is of another job: its number of servers is [12], here 2"
    ):
        horn.train(job(1), checkpoints=tmp_path, resume=True, **{**SETTINGS, "servers": 2})


def test_who_dies_again_and_again_is_given_up(tmp_path):
    class Poisoned(Killer):
        threads: list[threading.Thread] = []

        def note(self, text: str) -> None:
            super().note(text)
            self.threads.append(threading.Thread(target=self.again))
            self.threads[-1].start()

        def again(self) -> None:
            """Its successor, as soon as there is one."""
            ends = time.monotonic() + 60.0
            while time.monotonic() < ends:
                try:
                    os.kill(pid_of(2), signal.SIGKILL)
                    return
                except LookupError:
                    time.sleep(0.001)  # between two looks

    killer = Poisoned({1: [2]}, tmp_path / "killed")
    # No group is through an epoch, which would give a server new attempts.
    spring = Holds(str(tmp_path / "never"), PER_EPOCH // 2)
    with pytest.raises(TaskFailed, match="server 0 .*"):
        horn.train(job(200), checkpoints=tmp_path / "c", progress=killer, max_restarts=2,
                   **held(spring))  # fmt: skip
    for thread in killer.threads:
        thread.join()
    assert len(killer.notes) == 2


@pytest.mark.parametrize("more", [{"checkpoint_every": 5}, {"checkpoint_seconds": 1.0}])
def test_what_makes_no_sense_with_servers_is_refused(tmp_path, more):
    with pytest.raises(JobError, match="every push is kept in the checkpoints folder"):
        horn.train(job(1), checkpoints=tmp_path, **more, **SETTINGS)
