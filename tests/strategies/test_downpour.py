"""Downpour: the law of the synchronous one, and what holds for the asynchronous."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.compiler.placement import Placement
from horn.job import Job
from horn.runtime.replica import Replica
from horn.strategies import Leave, Pull, Push, Topology, View
from horn.strategies.downpour import Downpour, Memory
from tests.strategies.together import together
from tests.transport.groups import good

N_SAMPLES, N_STEPS = 60, 20
OPTIMIZERS = {
    "momentum": horn.SGD(0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": horn.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": horn.Adagrad(0.05),
    "adam": horn.Adam(0.01, clip_value=0.1),
}


def a_job(optimizer: horn.Optimizer, batch: int = 4) -> Job:
    net = horn.Network(seed=5)
    net.input(7, keep=0.9)
    net.layer(9, neuron=horn.neurons.Dropout, activation="tanh")
    net.layer(6, activation="sigmoid")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.integers(0, 3, N_SAMPLES)
    return Job(net, (x, y), optimizer=optimizer, batch_size=batch, iterations=N_STEPS,
               dtype="float64")  # fmt: skip


def batches(size: int) -> list[np.ndarray]:
    """Of all groups; one in the middle is short."""
    sizes = [size if step != 7 else max(1, size - 3) for step in range(N_STEPS)]
    return [(np.arange(n) * 7 + step) % N_SAMPLES for step, n in enumerate(sizes)]


def whole_batches(job: Job, n_groups: int) -> dict[str, np.ndarray]:
    """What one task has after the same batches."""
    size = n_groups * job.batch_size
    engine = make("kernels", Setup(job.network, job.optimizer, "labels", size, job.dtype, 1))
    engine.bind(job.data)
    for k, rows in enumerate(batches(size)):
        engine.step(rows, iteration=k, first_sample=100 * k)
    return engine.parameters()


def trained(replica: Replica, size: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    for k, rows in enumerate(batches(size)):
        replica.step(rows, iteration=k, first_sample=100 * k)
    replica.conclude()
    parameters = replica.parameters()
    return parameters, {name: replica.places(name) for name in parameters}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n_servers", [1, 3])
@pytest.mark.parametrize(("n_groups", "n_tasks"), [(1, 1), (2, 1), (3, 2)])
def test_synchronous_downpour_is_one_task_with_the_whole_batch(
    optimizer, n_servers, n_groups, n_tasks
):
    job = a_job(OPTIMIZERS[optimizer])
    topology = Topology(n_groups, n_tasks, n_servers)
    size = n_groups * job.batch_size
    found = good(together(
        Downpour(max_staleness=0), job, Placement.default(job.network), topology,
        lambda replica: trained(replica, size),
    ))  # fmt: skip
    one = whole_batches(job, n_groups)
    for parameters, places in found[:n_tasks]:  # group 0 has the end
        for name, array in parameters.items():
            expected = one[name]
            for axis, at in enumerate(places[name]):
                expected = expected[(slice(None),) * axis + (at,)]
            np.testing.assert_allclose(array, expected, rtol=1e-10, atol=1e-12, err_msg=name)


# the steps alone


def a_view(group: int = 0) -> View:
    return View(group, 0, Topology(2, 1, 1), {"w": np.zeros(2)}, {"w/pushed": np.zeros(2)})


def batch(
    strategy: Downpour, memory: Memory, view: View, total: float, samples: int
) -> tuple[list[int], list[Any]]:
    """A batch that leaves ``total`` in the slot, if there are samples: the clocks it pulls at, and
    what it pushes, as it is when it goes.
    """
    view.n_samples = samples
    asked = list(strategy.before_batch(memory, view))
    if samples:
        view.slots["w/pushed"][:] = total
    view.n_batches += 1
    pushed = [(r.clock, r.samples, r.gradients["w"].tolist()) for r in asked if isinstance(r, Push)]
    assert list(strategy.after_batch(memory, view)) == []
    assert all(r.is_early for r in asked)
    return [r.clock for r in asked if isinstance(r, Pull)], pushed


def test_pushes_count_batches_and_samples():
    strategy, memory, view = Downpour(push_every=2, pull_every=3), Memory(), a_view()
    asked = []
    for number in range(7):
        pulls, found = batch(strategy, memory, view, 1.0 + number, 4)
        asked += pulls
        assert found == ([] if number % 2 == 0 else [(number // 2, 8, [1.0 + number] * 2)])
        if found:
            assert view.slots["w/pushed"].tolist() == [0.0, 0.0]
    assert asked == [0, 1, 3]  # before batches 0, 3 and 6
    ending = [r if not isinstance(r, Push) else (r.clock, r.samples)
              for r in strategy.at_end(memory, view)]  # fmt: skip
    assert ending == [(3, 4), Leave(), Pull(4, final=True)]
    assert list(strategy.at_end(memory, a_view(1))) == [Leave()]


def test_a_group_without_samples_of_a_batch_pushes_nothing_of_it():
    strategy, memory, view = Downpour(), Memory(), a_view()
    assert batch(strategy, memory, view, 3.0, 4)[1] == [(0, 4, [3.0, 3.0])]
    assert batch(strategy, memory, view, 3.0, 0)[1] == [
        (1, 0, [0.0, 0.0])
    ]  # as the last one left it


def test_a_group_without_samples_of_a_batch_keeps_what_it_has_gathered():
    strategy, memory, view = Downpour(push_every=2), Memory(), a_view()
    assert batch(strategy, memory, view, 3.0, 4)[1] == []
    assert batch(strategy, memory, view, 3.0, 0)[1] == [(0, 4, [3.0, 3.0])]


def test_only_group_0_pulls_before_it_is_measured():
    strategy, memory = Downpour(), Memory(clock=4)
    assert list(strategy.at_epoch_end(memory, a_view(0))) == [Pull(4)]
    assert list(strategy.at_epoch_end(memory, a_view(1))) == []


def test_replicas_step_on_their_own_between_pulls_only():
    job = a_job(horn.SGD(0.25, momentum=0.9, clip_norm=2.0))
    for pull_every, push_every in ((1, 1), (3, 1), (1, 2), (3, 2)):
        own = Downpour(push_every=push_every, pull_every=pull_every).optimizer(job)
        w, slots = own.update(1.0, 2.0, {"pushed": 10.0}, own.rate(0), 1)
        assert w == (0.5 if pull_every > 1 else 1.0)
        assert slots == {"pushed": 12.0 if push_every > 1 else 2.0}
        assert own.clip_norm == 2.0
