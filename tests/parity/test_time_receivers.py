"""Layers of sequences whose neurons tasks divide: what they send travels at every step, and
together the tasks compute what one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup
from horn.checkpoint import Checkpoints
from horn.compiler import lower
from horn.errors import CompileError, JobError, ModelError
from horn.network import Network
from horn.partition.placement import Placement
from horn.partition.rewrite import partition
from horn.program import Post, Repeat, segments
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Transport
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import of_one
from tests.parity.test_time import BATCHES, elman, job_of, task
from tests.parity.test_time_ragged import job_of as ragged
from tests.parity.test_time_statistics import job_of as asking
from tests.parity.test_time_together import alike
from tests.support.runs import bits
from tests.transport.groups import good, run_threads


def of_all(net: Network) -> Placement:
    return Placement.default(net)


def of_hidden(net: Network) -> Placement:
    return Placement.receivers(net.layers[1:-1])


def of_first(net: Network) -> Placement:
    return Placement.receivers(net.layers[1:2])


def agree(job: horn.Job, backend: str, n_tasks: int, place: Callable[[Network], Placement]) -> None:
    """Losses, answers, weights, States and slots, of batches of which one is short."""
    setup = Setup(job.network, job.optimizer, "labels", len(job.data), "float64", 1)
    one = of_one(backend, setup, job.data, BATCHES)
    everybody = of_groups(backend, setup, job.data, BATCHES, place(job.network), 1, n_tasks)
    for rank, found in enumerate(good(everybody)):
        alike(found.losses, one.losses, f"{rank}: losses")
        alike(found.outputs, one.outputs, f"{rank}: outputs")
        alike(found.total, one.total, f"{rank}: loss of the data")
        assert found.arrays.keys() == one.arrays.keys()
        for name, array in found.arrays.items():
            alike(array, one.arrays[name][found.places[name]], f"{rank}: {name}")


@pytest.mark.parametrize(
    ("make", "seed", "backend", "n_tasks", "place"),
    [
        (job_of, 103, "kernels", 3, of_all), (job_of, 105, "reference", 2, of_first),
        (ragged, 104, "kernels", 2, of_hidden),
    ],
)  # fmt: skip
def test_the_law(make, seed, backend, n_tasks, place):
    agree(make(seed), backend, n_tasks, place)


@pytest.mark.slow
@pytest.mark.parametrize("place", [of_all, of_hidden, of_first])
@pytest.mark.parametrize("make", [job_of, ragged, asking])
@pytest.mark.parametrize("seed", range(100, 140))
def test_the_law_at_length(seed, make, place):
    agree(make(seed), ("reference", "kernels")[seed % 2], 2 + seed // 2 % 2, place)


def test_tasks_exchange_once_forward_and_once_back_at_every_step():
    """2T supersteps of a recurrent layer, and nothing else that has rows."""
    net = elman(7, each=True)
    program = lower.training_program(net, horn.SGD(0.1), "label", thin=False)
    found = partition(program, of_hidden(net), [program.loss])
    inside = [
        [s for s in statement.body if isinstance(s, Post)]
        for statement in found.statements if isinstance(statement, Repeat)
    ]  # fmt: skip
    assert sorted(map(len, inside)) == [0] * (len(inside) - 2) + [1, 1]
    assert not any(isinstance(s, Post) for s in found.statements)
    assert len(segments(found)) == 1 + 2 * (3 + 1)  # three parts of each, one behind

    job = horn.Job(net, (np.zeros((4, 7, 3)), np.zeros((4, 7), int)), dtype="float64")
    setup = Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1)

    def body(transport: Transport) -> int:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, of_hidden(net), group)
        engine.bind(job.data)
        engine.step(np.arange(4), iteration=0, first_sample=0)
        return group.spent.n_supersteps

    assert good(run_threads("inproc", 2, body)) == [2 * 7, 2 * 7]


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((16, steps, 3), np.float32), np.zeros(16, int)


def test_a_plan_counts_what_travels_at_every_step():
    """Rows unless a pin says otherwise; a pinned layer costs messages by step."""

    def plan(steps: int, **pins: str) -> Any:
        job = horn.Job(elman(steps), data(steps), optimizer=horn.SGD(0.1), batch_size=16)
        return horn.plan(job, tasks=2, pins=pins)

    rows, few, many = plan(100), plan(10, h="receiver"), plan(100, h="receiver")
    assert [layer.partition for layer in rows.layers] == ["all", "rows", "rows"]
    assert [layer.partition for layer in many.layers] == ["all", "2 + 2", "all"]
    assert set(rows.as_dict()["placement"].values()) == {"replicated"}
    assert many.as_dict()["placement"]["h.weight.h"] == "receiver"
    assert many.n_messages == 10 * few.n_messages == 2 * 2 * 100
    assert many.n_bytes == 10 * few.n_bytes
    assert many.predicted_s > rows.predicted_s
    assert "2 + 2" in str(many)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("how", [{"tasks": 2}, {"tasks": 3, "transport": "tcp"}])
def test_tasks_of_processes_go_on_exactly(how, tmp_path):
    """What one process computes; killed and resumed the same bits."""
    given = task(True, dtype="float64")
    one = horn.train(given, progress=False)
    how = {**how, "pins": {"h": "receiver"}, "progress": False}
    whole = horn.train(given, checkpoints=tmp_path, checkpoint_every=3, keep_checkpoints=99, **how)
    for name, array in one.model.parameters.items():
        alike(whole.model.parameters[name], array, name)
    assert whole.history[-1]["val_loss"] == pytest.approx(one.history[-1]["val_loss"], abs=1e-9)
    rest = horn.train(given, resume=Checkpoints(tmp_path).open(6).path, **how)
    assert bits(rest) == bits(whole)


def test_of_the_batch_tasks_are_asked_that_have_all_rows():
    """By rows it is refused with this remedy, which the law covers."""
    net = asking(100).network
    program = lower.training_program(net, horn.SGD(0.1), "label", thin=False)
    with pytest.raises(CompileError, match=r'asks the batch .*; or, .* pins={"[^"]*": "receiver"}'):
        partition(program, Placement.rows(net), [program.loss])
    partition(program, of_all(net), [program.loss])
    agree(asking(103), "kernels", 2, of_hidden)


def test_rows_and_receivers_are_not_divided_together():
    """Rows of all steps lie step by step: a task's share of them is no range."""
    net = elman(3)
    program = lower.training_program(net, horn.SGD(0.1), "labels", thin=False)
    rows, all_of = Placement.rows(net), Placement.default(net)
    for mixed in (Placement(rows.links, all_of.layers), Placement(all_of.links, rows.layers)):
        with pytest.raises(CompileError, match="rows of the batch, or .*not both"):
            partition(program, mixed, [program.loss])
    for legal in (rows, all_of):
        partition(program, legal, [program.loss])


def test_what_is_refused():
    job = horn.Job(elman(3), data(3), optimizer=horn.SGD(0.1))
    for pins, sentence in (
        ({"h": "sender"}, "pin h.weight.layer0=sender: .* h=receiver, which sends a part"),
        ({"h.weight.h": "receiver", "h.weight.layer0": "replicated"}, "pin h.weight.layer0=repl"),
    ):
        with pytest.raises(ModelError, match=sentence):
            horn.plan(job, tasks=2, pins=pins)
    with pytest.raises(ModelError, match='pin h=receiver: tasks of recompute="sqrt" divide the ro'):
        horn.plan(job.with_settings(recompute="sqrt"), tasks=2, pins={"h": "receiver"})
    for how in ({"groups": 2}, {"strategy": "downpour"}):
        with pytest.raises(JobError, match="pin h: .* the tasks of one group"):
            horn.train(job, tasks=2, pins={"h": "receiver"}, progress=False, **how)
