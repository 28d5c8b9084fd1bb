"""Elastic averaging: the formulas, what is measured, and where a group goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.job import Job
from horn.partition.placement import Placement
from horn.strategies import Leave, Pull, Push, Topology, View
from horn.strategies._replica import Replica
from horn.strategies.easgd import EASGD
from tests.strategies.together import together
from tests.transport.groups import good

N_SAMPLES, BATCH, N_STEPS = 60, 6, 22


def a_job(optimizer: horn.Optimizer) -> Job:
    net = horn.Network(seed=5)
    net.input(7, keep=0.9)
    net.layer(9, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.integers(0, 3, N_SAMPLES)
    return Job(net, (x, y), optimizer=optimizer, batch_size=BATCH, iterations=N_STEPS,
               dtype="float64")  # fmt: skip


def rows_of(step: int) -> np.ndarray:
    return (np.arange(BATCH) * 7 + step) % N_SAMPLES


@pytest.mark.parametrize(
    "optimizer", [horn.SGD(0.1), horn.SGD(0.05, momentum=0.9), horn.Adam(0.01)]
)
@pytest.mark.parametrize("n_tasks", [1, 2])
def test_one_group_and_the_centre_follow_the_formulas(optimizer, n_tasks):
    """Algorithms 1 and 2; after batch 10 an epoch ends, and the centre is measured."""
    job, rate = a_job(optimizer), 0.3
    engine = make("kernels", Setup(job.network, job.optimizer, "labels", BATCH, job.dtype, 1))
    engine.bind(job.data)
    centre = {name: array.copy() for name, array in engine.parameters().items()}
    expected = []
    for k in range(N_STEPS):
        engine.step(rows_of(k), iteration=k, first_sample=100 * k)
        own = engine.parameters()
        if (k + 1) % 4 == 0:
            moved = {name: rate * (own[name] - centre[name]) for name in own}
            centre = {name: centre[name] + moved[name] for name in own}
            own = {name: own[name] - moved[name] for name in own}
            memory = engine.memory()
            engine.recall({**memory, "parameter": own}, engine.updates)
        expected.append(own)
        if k == 9:
            measured = dict(centre)
    last = engine.parameters()  # two batches after the last exchange
    centre = {name: centre[name] + rate * (last[name] - centre[name]) for name in last}

    def body(replica: Replica) -> Any:
        found = []
        for k in range(N_STEPS):
            replica.step(rows_of(k), iteration=k, first_sample=100 * k)
            found.append({name: a.copy() for name, a in replica.parameters().items()})
            if k == 9:
                replica.settle()
                at_epoch_end = {name: a.copy() for name, a in replica.parameters().items()}
        replica.conclude()
        end = replica.parameters()
        return found, at_epoch_end, end, {name: replica.places(name) for name in end}

    found = good(together(EASGD(every=4, moving_rate=rate), job, Placement.default(job.network),
                          Topology(1, n_tasks, 2), body))  # fmt: skip
    for steps, at_epoch_end, end, places in found[:n_tasks]:

        def mine(whole: dict[str, np.ndarray], name: str, places: Any = places) -> np.ndarray:
            part = whole[name]
            for axis, at in enumerate(places[name]):
                part = part[(slice(None),) * axis + (at,)]
            return part

        close = {"rtol": 1e-9, "atol": 1e-12}
        for k, parameters in enumerate(steps):
            for name, array in parameters.items():
                np.testing.assert_allclose(array, mine(expected[k], name), **close, err_msg=f"{k}")
        for name, array in at_epoch_end.items():
            np.testing.assert_allclose(array, mine(measured, name), **close)
        for name, array in end.items():
            np.testing.assert_allclose(array, mine(centre, name), **close)


def a_view(group: int = 0, n_groups: int = 4) -> View:
    return View(group, 0, Topology(n_groups, 1, 1), {"w": np.full(2, 5.0)}, {}, n_samples=3)


def exchanged(strategy: EASGD, memory: Any, view: View, centre: float) -> list[Any]:
    """One batch; servers answer a pull at once."""
    found = list(strategy.before_batch(memory, view))
    for request in found:
        assert isinstance(request, Pull) and request.is_early and request.into is memory.centre
        request.into["w"].fill(centre)
    view.n_batches += 1
    return found + [
        (r.clock, r.samples, r.gradients["w"].tolist()) for r in strategy.after_batch(memory, view)
    ]


def test_both_move_by_the_same():
    strategy, view = EASGD(every=2, moving_rate=0.8), a_view()
    memory = strategy.begin(view)
    assert exchanged(strategy, memory, view, 0.0) == []
    asked = exchanged(strategy, memory, view, 1.0)
    # 5 and 1 are 4 apart. The group goes a fifth of it; a server takes a quarter of what is pushed.
    np.testing.assert_allclose(view.parameters["w"], 5.0 - 0.2 * 4.0)
    assert asked[0] == Pull(0, is_early=True, into=memory.centre)
    clock, samples, pushed = asked[1]
    assert (clock, samples) == (0, 6)
    np.testing.assert_allclose(pushed, [-0.8 * 4.0] * 2)
    assert exchanged(strategy, memory, view, 0.0) == []
    assert exchanged(strategy, memory, view, 0.0)[1][:2] == (1, 6)


def test_the_centre_moves_no_further_in_an_exchange_of_more_groups_that_came_later():
    server = EASGD().server(a_job(horn.SGD(0.1)), 0, (), Topology(2, 1, 1))
    assert server._weight(0, 5, len(server.active)) == 1 / 2
    server.grow(5)
    assert [server._weight(g, 5, len(server.active)) for g in range(5)] == [1 / 5] * 5


def test_a_group_goes_on_with_its_own_weights_after_the_centre_was_measured():
    strategy, view = EASGD(every=2), a_view()
    memory = strategy.begin(view)
    assert list(strategy.at_epoch_end(memory, view)) == [Pull(0)]
    view.parameters["w"].fill(1.0)  # as servers have it
    assert list(strategy.before_batch(memory, view)) == []
    assert view.parameters["w"].tolist() == [5.0, 5.0]
    assert list(strategy.at_epoch_end(memory, a_view(1))) == []  # nobody measures there


def test_it_ends_with_its_own_weights_too():
    for group in (0, 1):
        strategy, view = EASGD(every=2, moving_rate=0.5), a_view(group)
        memory = strategy.begin(view)
        exchanged(strategy, memory, view, 0.0)
        list(strategy.at_epoch_end(memory, view))
        if group == 0:
            view.parameters["w"].fill(1.0)
        kinds = []
        for request in strategy.at_end(memory, view):
            kinds.append(type(request))
            if isinstance(request, Pull) and request.into is not None:
                request.into["w"].fill(1.0)
            if isinstance(request, Push):
                assert request.gradients["w"].tolist() == [-2.0, -2.0]
        assert kinds == [Pull, Push, Leave] + [Pull] * (group == 0)
        assert memory.clock == 1


def test_nothing_is_exchanged_at_the_end_where_nothing_was_trained_since():
    strategy, view = EASGD(every=2), a_view(1)
    memory = strategy.begin(view)
    assert list(strategy.at_end(memory, view)) == [Leave()]


def test_a_group_that_comes_back_goes_on_after_its_last_exchange():
    strategy = EASGD(every=7)
    memory = strategy.begin(a_view())
    assert strategy.returns(memory, 3) == 21 and memory.clock == 3
