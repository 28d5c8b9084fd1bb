"""The history of groups that do not wait for one another, and of some that were started again."""

import os

import pytest

from horn.errors import ProtocolError
from horn.executor.monitor import TaskMonitor
from horn.executor.progress_record import ProgressRecord
from horn.process.control import ArrayShare, BatchProgress, EpochRow, GroupReady
from horn.topology import Topology
from horn.training.progress import Progress
from tests.support.runs import job


class Told(Progress):
    def __init__(self):
        self.epochs, self.said = [], []

    def begin(self, job):
        self.said.append("begin")

    def step(self, epoch, iteration, loss, samples_per_s):
        self.said.append(iteration)

    def epoch(self, row):
        self.epochs.append(row["epoch"])
        self.said.append(row["iteration"])


def row(epoch, group):
    values = {"epoch": epoch, "iteration": 10 * epoch, "loss": 0.5, "samples_per_s": 1.0}
    return EpochRow(values, group, (0.25 * (group + 1), 4))


@pytest.fixture
def record():
    return ProgressRecord(job(), Told())


def hear(record, *pairs, n_groups=2):
    for epoch, group in pairs:
        record.hear(row(epoch, group), n_groups, is_joined=False)
    return [found["epoch"] for found in record.rows]


def test_an_epoch_is_put_when_all_groups_have_told_of_it(record):
    assert hear(record, (1, 1), (2, 1), (1, 0)) == [1]
    assert record.rows[0]["group_loss"] == [0.25, 0.5] and record.rows[0]["groups"] == [0, 1]
    assert hear(record, (2, 0)) == [1, 2] == record.watcher.epochs


def test_a_group_without_a_sample_of_an_epoch_has_no_loss_of_it(record):
    """One that started again where the epoch ends."""
    without = EpochRow(row(1, 1).values, 1, (0.0, 0))
    for told in (row(1, 0), without, row(1, 2)):
        record.hear(told, 3, is_joined=False)
    assert record.rows[0]["group_loss"] == [0.25, 0.75] and record.rows[0]["groups"] == [0, 2]
    assert record.rows[0]["loss"] == 0.5


def test_what_some_have_told_of_outlives_a_start(record):
    assert hear(record, (1, 0), (2, 0), (3, 0), (1, 1)) == [1]
    again = ProgressRecord(job(), Told(), record.rows, record.incomplete)
    assert hear(again, (2, 1), (3, 1)) == [1, 2, 3] and again.watcher.epochs == [2, 3]
    assert again.rows[2]["loss"] == 0.375


def test_an_epoch_told_of_to_somebody_who_has_gone_leaves_a_row_and_holds_nothing_up(record):
    """Group 0 goes on in epoch 4, and what it said of epoch 3 went with who heard it."""
    assert hear(record, (1, 0), (1, 1), (2, 0), (2, 1)) == [1, 2]
    again = ProgressRecord(job(), Told(), record.rows, record.incomplete)
    assert hear(again, (3, 1), (4, 1), (4, 0)) == [1, 2, 3, 4]
    assert again.rows[2]["loss"] is None and again.rows[2]["iteration"] > 0
    assert again.watcher.epochs == [4]


def test_the_last_epoch_is_that_of_group_0(record):
    """Others were stopped before they came so far."""
    hear(record, (1, 0), (1, 1), (2, 0), (3, 0), (5, 1))
    record.put(1, False, is_over=True)
    assert [found["epoch"] for found in record.rows] == [1, 2, 3]


def test_who_begins_before_a_checkpoint_tells_again(record):
    hear(record, (1, 0), (1, 1), (2, 0), (2, 1), (3, 0))
    record.back_to(10, record.rows[:1])
    assert hear(record, (2, 0)) == [1] and hear(record, (2, 1)) == [1, 2]
    assert record.watcher.epochs == [1, 2]  # epochs that were told are not told again


@pytest.mark.parametrize(
    "first", [BatchProgress(1, 10, 0.5, 1.0), row(1, 0)], ids=["step", "epoch"]
)
def test_what_a_task_tells_before_the_start_of_another_is_read_begins_the_progress(record, first):
    """Each task has its own pipe: the order between two of them is that of reading."""
    monitor = TaskMonitor(record, Topology(1, 2), {0: 10, 1: 11})
    for rank, said in (
        (0, GroupReady(0.1)),
        (0, first),
        (1, GroupReady(0.1)),
        (0, BatchProgress(1, 11, 0.5, 1.0)),
    ):
        monitor.hear(rank, said)
    assert record.watcher.said == ["begin", 10, 11]


def test_a_share_whose_memory_may_still_change_is_refused(record):
    """To cut it short while it is read would end this process by SIGBUS."""
    monitor = TaskMonitor(record, Topology(1, 1), {0: 10})
    fd = os.memfd_create("unsealed")
    os.truncate(fd, 100)
    with pytest.raises(ProtocolError, match="task 0: the memory of its share may still change"):
        monitor.hear(0, ArrayShare(()), [fd])
