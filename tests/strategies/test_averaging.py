"""Model averaging: when there is a mean, and what it is equal to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.job import Job
from horn.partition.placement import Placement
from horn.strategies import Mean, Topology, View
from horn.strategies._replica import Replica
from horn.strategies.averaging import Averaging
from tests.strategies.together import together
from tests.transport.groups import good

N_SAMPLES, N_STEPS, BATCH = 60, 12, 6
LINEAR = {
    "momentum": horn.SGD(0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": horn.SGD(0.05, momentum=0.9, nesterov=True),
    "plain": horn.SGD(horn.Cosine(0.1, N_STEPS)),
}


def a_job(optimizer: horn.Optimizer, **more: Any) -> Job:
    net = horn.Network(seed=5)
    net.input(7, keep=0.9)
    net.layer(9, neuron=horn.neurons.Dropout, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.integers(0, 3, N_SAMPLES)
    return Job(net, (x, y), optimizer=optimizer, batch_size=BATCH, iterations=N_STEPS,
               dtype="float64", **more)  # fmt: skip


def batches() -> list[np.ndarray]:
    return [(np.arange(BATCH) * 7 + step) % N_SAMPLES for step in range(N_STEPS)]


def alone(job: Job) -> dict[str, np.ndarray]:
    """What one task has after these batches."""
    engine = make("kernels", Setup(job.network, job.optimizer, "labels", BATCH, job.dtype, 1))
    engine.bind(job.data)
    for k, rows in enumerate(batches()):
        engine.step(rows, iteration=k, first_sample=100 * k)
    return engine.parameters()


def steps(replica: Replica) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """The parameters after each batch, and which part of them it is."""
    found = []
    for k, rows in enumerate(batches()):
        replica.step(rows, iteration=k, first_sample=100 * k)
        found.append({name: array.copy() for name, array in replica.parameters().items()})
    replica.conclude()
    found.append({name: array.copy() for name, array in replica.parameters().items()})
    return found, {name: replica.places(name) for name in found[-1]}


@pytest.mark.parametrize("optimizer", LINEAR)
@pytest.mark.parametrize(("n_groups", "n_tasks"), [(2, 1), (3, 2)])
def test_the_mean_after_every_batch_is_what_one_task_computes(optimizer, n_groups, n_tasks):
    """Of an optimizer that is linear in the gradient, and batches that divide evenly."""
    job = a_job(LINEAR[optimizer])
    found = good(together(Averaging(every=1), job, Placement.default(job.network),
                          Topology(n_groups, n_tasks), steps))  # fmt: skip
    one = alone(job)
    for parameters, places in found:
        for name, array in parameters[-1].items():
            expected = one[name]
            for axis, at in enumerate(places[name]):
                expected = expected[(slice(None),) * axis + (at,)]
            np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_groups_are_equal_after_each_mean_and_differ_in_between():
    job = a_job(horn.Adam(0.01))
    found = good(together(Averaging(every=5), job, Placement.default(job.network),
                          Topology(3, 1), steps))  # fmt: skip
    first, *others = [parameters for parameters, _ in found]
    for k, mine in enumerate(first):
        is_equal = [all((a == theirs[k][n]).all() for n, a in mine.items()) for theirs in others]
        assert is_equal == [k in (4, 9, N_STEPS)] * 2, k  # the last is after the end


def a_view(n_batches: int) -> View:
    return View(0, 0, Topology(2, 1), {"w": np.zeros(2)}, {}, n_batches)


def test_nothing_is_averaged_twice():
    """Where an epoch, or training, ends with a mean."""
    strategy = Averaging(every=3)
    memory = strategy.begin(a_view(0))
    asked = []
    for n in range(1, 8):
        view = a_view(n)
        found = list(strategy.after_batch(memory, view))
        found += strategy.at_epoch_end(memory, view) if n in (3, 7) else []
        asked.append(len(found))
        assert all(isinstance(r, Mean) and r.arrays[0] is view.parameters["w"] for r in found)
    assert asked == [0, 0, 1, 0, 0, 1, 1]
    assert list(strategy.at_end(memory, a_view(7))) == []
    assert len(list(strategy.at_end(memory, a_view(8)))) == 1
