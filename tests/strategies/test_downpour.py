"""Downpour: the law of the synchronous one, and what holds for the asynchronous."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.errors import JobError
from horn.job import Job
from horn.partition.placement import Placement
from horn.strategies import Leave, Pull, Push, Topology, View
from horn.strategies._replica import Replica
from horn.strategies.averaging import Averaging
from horn.strategies.downpour import Accumulate, Downpour, DownpourMemory, Moving
from horn.strategies.easgd import EASGD
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


@pytest.mark.parametrize(
    "strategy, batch, said",
    [
        (Downpour(), 6, ""),  # an epoch of ten
        (Downpour(), 8, "strategy.push_every is 10 batches, but an epoch has 8: .* set strategy"),
        (Downpour(push_every=8), 8, ""),
        (
            Downpour(),
            60,
            r"stands still for up to 10 epochs; set strategy.push_every=1, or a smaller",
        ),
        (Downpour(server_optimizer="job"), 30, ""),  # pushes every batch
        (Downpour(push_every=2, server_optimizer="job"), 30, "push_every is 2 .* an epoch has 1:"),
        (EASGD(), 20, "strategy.every is 10 batches, but an epoch has 3: .* up to 4 epochs"),
        (EASGD(every=3), 20, ""),
        (Averaging(), 60, ""),
    ],
)
def test_an_epoch_that_is_over_before_servers_hear_of_it_is_warned_of(
    strategy: Any, batch: int, said: str
) -> None:
    """Its val_loss stood still, and early stopping stopped."""
    job = strategy.prepared(a_job(horn.SGD(0.1), batch), Topology(2, 1, 1))
    found = strategy.advice(job)
    assert re.search(said, found) if said else not found
    assert not strategy.advice(job.with_settings(iterations=1)), "one epoch is pushed at its end"


def batches(size: int) -> list[np.ndarray]:
    """Of all groups; one in the middle is short."""
    sizes = [size if step != 7 else max(1, size - 3) for step in range(N_STEPS)]
    return [(np.arange(n) * 7 + step) % N_SAMPLES for step, n in enumerate(sizes)]


def whole_batches(job: Job, n_groups: int = 1) -> dict[str, np.ndarray]:
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
    same(found[:n_tasks], one)  # group 0 has the end


def same(found: list[Any], whole: dict[str, np.ndarray]) -> None:
    """What tasks have is their share of ``whole``."""
    for parameters, places in found:
        for name, array in parameters.items():
            expected = whole[name]
            for axis, at in enumerate(places[name]):
                expected = expected[(slice(None),) * axis + (at,)]
            np.testing.assert_allclose(array, expected, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("n_tasks", "push_every"), [(1, None), (2, 1), (2, 7)])
def test_one_group_whose_changes_are_pushed_is_one_task(optimizer, n_tasks, push_every):
    """With schedule, decay and clipping of the job; some changes are pushed at the end only."""
    job = a_job(OPTIMIZERS[optimizer], batch=8)
    found = good(together(
        Downpour(push_every=push_every), job, Placement.default(job.network),
        Topology(1, n_tasks, 2), lambda replica: trained(replica, 8),
    ))  # fmt: skip
    same(found[:n_tasks], whole_batches(job))


MODES = {
    "changes": Downpour(),
    "changes, pulled less often": Downpour(push_every=4, pull_every=8),
    "changes, pulled more often": Downpour(push_every=6, pull_every=2),
    "changes, a staleness": Downpour(max_staleness=1),
    "gradients": Downpour(server_optimizer="job"),
    "gradients, own steps": Downpour(server_optimizer="job", push_every=2, pull_every=4),
    "synchronous, own steps": Downpour(max_staleness=0, pull_every=7),
}


@pytest.mark.parametrize("mode", MODES)
def test_measuring_changes_nothing(mode):
    """Group 0 went on from the servers' parameters: it took the steps since its last push again."""
    job = a_job(OPTIMIZERS["momentum"], batch=8)

    def ran(per_epoch: int) -> dict[str, np.ndarray]:
        def body(replica: Replica) -> dict[str, np.ndarray]:
            losses = []
            for k, rows in enumerate(batches(8)):
                losses.append(replica.step(rows, iteration=k, first_sample=100 * k))
                if (k + 1) % per_epoch == 0:
                    replica.settle()
            replica.conclude()
            return replica.parameters() | {"losses": np.array(losses)}

        placement, topology = Placement.default(job.network), Topology(1, 1, 1)
        own: dict[str, np.ndarray] = good(together(MODES[mode], job, placement, topology, body))[0]
        return own

    expected = ran(per_epoch=N_STEPS)
    for per_epoch in (3, 5, 15):
        for name, array in ran(per_epoch).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name}, {per_epoch}")


@pytest.mark.parametrize("per_epoch", [3, 5, 15])
def test_what_is_measured_is_what_servers_have_been_told(per_epoch):
    job, push_every = a_job(OPTIMIZERS["momentum"], batch=8), 4
    engine = make("kernels", Setup(job.network, job.optimizer, "labels", 8, job.dtype, 1))
    engine.bind(job.data)
    expected = [{n: a.copy() for n, a in engine.parameters().items()}]
    for k, rows in enumerate(batches(8)):
        engine.step(rows, iteration=k, first_sample=100 * k)
        expected.append({n: a.copy() for n, a in engine.parameters().items()})

    def body(replica: Replica) -> None:
        for k, rows in enumerate(batches(8)):
            replica.step(rows, iteration=k, first_sample=100 * k)
            if (k + 1) % per_epoch == 0:
                replica.settle()
                told = (k + 1) // push_every * push_every
                for name, array in replica.parameters().items():
                    np.testing.assert_allclose(array, expected[told][name], rtol=1e-10, atol=1e-12)
        replica.conclude()
        for name, array in replica.parameters().items():
            np.testing.assert_allclose(array, expected[-1][name], rtol=1e-10, atol=1e-12)

    good(together(Downpour(push_every=push_every), job, Placement.default(job.network),
                  Topology(1, 1, 1), body))  # fmt: skip


class Traced(horn.Neuron):
    """Pushes what of itself it remembers, and leaves its bias to the loss."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        total = 0.0
        for m in messages:
            total += m.delta * m.weight
            self.push(0.5 * m.previous_update - 0.1 * m.delta * self.output - 0.01 * m.weight)
        self.backpropagate(total * self.activation.derivative(self.output))


@pytest.mark.parametrize(("n_tasks", "push_every"), [(1, 1), (2, 7)])
def test_changes_that_neurons_push_themselves_are_those_of_one_task(n_tasks, push_every):
    """horn.Direct was refused, as if gradients were pushed."""
    net = horn.Network(seed=5)
    net.input(7)
    net.layer(9, neuron=Traced, activation="tanh")
    net.layer(6, neuron=Traced, activation="sigmoid")
    net.output(3, activation="softmax", loss="cross_entropy")
    job = a_job(horn.Direct(0.05, clip_norm=0.3), batch=8).with_settings(network=net, check=False)
    Downpour().check(job, Topology(1, n_tasks, 2))
    found = good(together(
        Downpour(push_every=push_every), job, Placement.default(job.network),
        Topology(1, n_tasks, 2), lambda replica: trained(replica, 8),
    ))  # fmt: skip
    same(found[:n_tasks], whole_batches(job))


class Counting(horn.Neuron):
    """Its changes are the same whatever the weights."""

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
            self.push(0.01 * m.input + 0.5 * m.previous_update)
        self.feedforward(total)


@pytest.mark.parametrize(
    "neuron, optimizer",
    [(horn.Standard, horn.SGD(0.05, momentum=0.9)), (Counting, horn.Direct(0.05))],
    ids=["SGD", "Direct"],
)
@pytest.mark.parametrize("pull_every", [1, 3])
def test_changes_of_several_groups_add_up_to_their_mean(pull_every, neuron, optimizer):
    """Without curvature (no weights are read but in the decay of none) order does not matter: here
    each group's gradient is the same whatever the weights, so servers come to the mean of all.
    """
    net = horn.Network(seed=5)
    net.input(7)
    net.output(3, neuron=neuron, activation="identity", loss=linear)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.normal(size=(N_SAMPLES, 3))
    job = Job(net, (x, y), optimizer=optimizer, batch_size=12, iterations=N_STEPS, dtype="float64")
    strategy = Downpour(push_every=3, pull_every=pull_every)

    def body(replica: Replica) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        for k, rows in enumerate(even(12)):
            replica.step(rows, iteration=k, first_sample=100 * k)
        replica.conclude()
        parameters = replica.parameters()
        return parameters, {name: replica.places(name) for name in parameters}

    found = good(together(strategy, job, Placement.default(net), Topology(3, 1, 2), body))
    engine = make("kernels", Setup(net, job.optimizer, "labels", 12, job.dtype, 1))
    engine.bind(job.data)
    for k, rows in enumerate(even(12)):
        engine.step(rows, iteration=k, first_sample=100 * k)
    same(found[:1], engine.parameters())


def linear(y, t):
    return y * t


def even(size: int) -> list[np.ndarray]:
    return [(np.arange(size) * 7 + step) % N_SAMPLES for step in range(N_STEPS)]


# the steps alone


def a_view(group: int = 0) -> View:
    return View(group, 0, Topology(2, 1, 1), {"w": np.zeros(2)}, {"w/pushed": np.zeros(2)})


def batch(
    strategy: Downpour, memory: DownpourMemory, view: View, total: float, samples: int
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


def test_by_default_changes_of_ten_batches_are_pushed():
    strategy, memory, view = Downpour(), DownpourMemory(), a_view()
    pulls, pushes = [], []
    for _ in range(21):
        found = batch(strategy, memory, view, 2.0, 3)
        pulls += found[0]
        pushes += found[1]
    assert (pulls, pushes) == ([0, 1, 2], [(0, 30, [2.0, 2.0]), (1, 30, [2.0, 2.0])])
    assert strategy.returns(memory, 2) == 20


def test_pushes_say_their_batches_and_are_at_the_same_ones_after_a_return():
    strategy, memory, view = Downpour(), DownpourMemory(), a_view()
    view.n_batches = view.n_batches + 25  # where the last run ended
    said = []
    for _ in range(16):
        view.n_samples = 1
        said += [(r.batches, r.samples) for r in strategy.before_batch(memory, view)
                 if isinstance(r, Push)]  # fmt: skip
        view.n_batches += 1
        list(strategy.after_batch(memory, view))
    said += [(r.batches, r.samples) for r in strategy.at_end(memory, view) if isinstance(r, Push)]
    assert said == [(30, 5), (40, 10), (41, 1)]


def test_what_no_gradient_reaches_is_pushed_as_0():
    """It was a KeyError."""
    strategy, memory = Downpour(push_every=1), DownpourMemory()
    view = View(0, 0, Topology(2, 1, 1), {"w": np.zeros(2), "v": np.ones(3)},
                {"w/pushed": np.ones(2)})  # fmt: skip
    view.n_samples = 1
    [push] = [r for r in strategy.before_batch(memory, view) if isinstance(r, Push)]
    assert {n: a.tolist() for n, a in push.gradients.items()} == {"w": [1, 1], "v": [0, 0, 0]}


@pytest.mark.parametrize(
    "settings, cadence, batch_size, iterations",
    [
        ({}, (10, 10), 4, 20),
        ({"push_every": 3}, (3, 3), 4, 20),
        ({"push_every": 3, "pull_every": 6}, (3, 6), 4, 20),
        ({"max_staleness": 1}, (10, 10), 4, 20),
        ({"max_staleness": 0}, (1, 1), 12, 7),
        ({"server_optimizer": "adagrad"}, (1, 1), 12, 7),
        ({"server_optimizer": "job", "push_every": 3}, (3, 1), 12, 7),
        ({"server_optimizer": horn.Adam(0.01)}, (1, 1), 12, 7),
    ],
)
def test_groups_share_batches_where_changes_are_pushed(settings, cadence, batch_size, iterations):
    strategy, job = Downpour(**settings), a_job(horn.SGD(0.1))
    prepared = strategy.prepared(job, Topology(3, 1, 1))
    assert (strategy.push_batches, strategy.pull_batches) == cadence
    assert (prepared.batch_size, prepared.iterations) == (batch_size, iterations)
    assert strategy.averages == (batch_size == 4)
    assert isinstance(strategy.optimizer(job), Moving if strategy.averages else Accumulate)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_pushed_is_what_the_steps_took(optimizer):
    inner = OPTIMIZERS[optimizer]
    for keep in (True, False):
        own = Moving.of(inner, keep)
        assert own.prepared(0.5, 2.0) == inner.prepared(0.5, 2.0)
        assert own.clip_norm == inner.clip_norm
        assert own.rate(3) == inner.rate(3) and own.slots == (*inner.slots, "pushed")
        w = other = first = 1.5
        slots, others = dict.fromkeys(own.slots, 0.0), dict.fromkeys(inner.slots, 0.0)
        for t in range(1, 5):
            before = w
            w, slots = own.update(w, 0.5 / t, slots, own.rate(t), t)
            other, others = inner.update(other, 0.5 / t, others, inner.rate(t), t)
            assert w == other and {n: slots[n] for n in others} == others
            since = first if keep else before
            assert slots["pushed"] == pytest.approx(since - w, rel=1e-12)


class Own(horn.SGD):
    def rate(self, iteration):
        return 0.25 * super().rate(iteration)

    def prepared(self, g, w=None):
        return 2.0 * g

    def clip_factor(self, norm):
        return 1.0 / (1.0 + norm)

    def of_derived(self, g, lr):
        return -g


def test_groups_take_every_method_of_the_jobs_optimizer():
    job = a_job(horn.SGD(0.5)).with_settings(optimizer=Own(0.5, clip_norm=1.0))
    for settings, prepared in (({}, 1.0), ({"server_optimizer": "job", "pull_every": 2}, 0.5)):
        own = Downpour(**settings).optimizer(job)  # servers prepare pushed gradients
        assert (own.rate(3), own.clip_factor(3.0), own.prepared(0.5)) == (0.125, 0.25, prepared)
    w, slots = Accumulate.of(Own(0.5), False, steps=True).update(1.0, 0.5, {}, 0.125, 1)
    assert (w, slots) == (0.9375, {"pushed": 0.5})
    assert Moving.of(Own(0.5), False).of_derived(0.5, 0.125) == -0.5
    Downpour().check(job, Topology(2, 1, 1))
    for settings in {"server_optimizer": "adagrad"}, {"max_staleness": 0}:
        with pytest.raises(
            JobError, match='needs gradients, but Own tells .* or server_optimizer="average" witho'
        ):
            Downpour(**settings).check(job, Topology(2, 1, 1))


def test_a_plain_step_remembers_nothing_but_what_is_pushed():
    own = Moving.of(horn.SGD(0.5), True)
    assert own.slots == ("pushed",)
    assert own.update(1.0, 0.5, {"pushed": 1.0}, 0.5, 1) == (0.75, {"pushed": 1.25})


def test_the_rate_of_servers_may_follow_a_schedule():
    """Of the updates of all groups."""
    cosine, topology = horn.Cosine(0.5, 10), Topology(2, 1, 1)
    for strategy, wanted in (
        (Downpour(server_optimizer="adagrad", learning_rate=cosine), horn.Adagrad(cosine)),
        (Downpour(server_optimizer=horn.Adam(cosine)), horn.Adam(cosine)),
        (Downpour(server_optimizer="job"), horn.SGD(cosine)),
        (Downpour(learning_rate=0.3), horn.SGD(1.0)),
    ):
        job = strategy.prepared(a_job(horn.SGD(cosine)), topology)
        assert strategy.server(job, 0, (), topology).optimizer == wanted


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"server_optimizer": horn.Direct()}, "server_optimizer must be"),
        ({"server_optimizer": "adam"}, '"average", "adagrad", "job" or an optimizer'),
        ({"server_optimizer": horn.Adam(clip_norm=1.0)}, "clip_norm"),
        ({"server_optimizer": "average", "max_staleness": 0}, "with max_staleness=0 servers"),
        ({"learning_rate": -0.5}, "learning_rate must be above 0, and finite, got -0.5"),
    ],
)
def test_what_it_cannot_do_is_said(settings, words):
    with pytest.raises(JobError, match=words):
        Downpour(**settings)


def rate_of(iteration):
    return 0.5 / (1 + iteration)


def test_the_rate_of_servers_may_be_a_function():
    """It was refused as a number that is not above 0."""
    strategy = Downpour(server_optimizer="adagrad", learning_rate=rate_of)
    job = strategy.prepared(a_job(horn.SGD(0.1)), Topology(2, 1, 1))
    assert job.optimizer.rate(4) == 0.1


@pytest.mark.parametrize("rate", [True, "0.1", horn.Cosine, lambda a, b: 0.1])
def test_a_rate_of_servers_that_is_none_is_refused_at_once(rate):
    with pytest.raises(JobError, match="downpour: .*learning_rate"):
        Downpour(learning_rate=rate)


def test_pushes_count_batches_and_samples():
    strategy, memory, view = Downpour(2, 3, server_optimizer="job"), DownpourMemory(), a_view()
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
    strategy, memory, view = Downpour(server_optimizer="job"), DownpourMemory(), a_view()
    assert batch(strategy, memory, view, 3.0, 4)[1] == [(0, 4, [3.0, 3.0])]
    assert batch(strategy, memory, view, 3.0, 0)[1] == [
        (1, 0, [0.0, 0.0])
    ]  # as the last one left it


def test_a_group_without_samples_of_a_batch_keeps_what_it_has_gathered():
    strategy, memory, view = (
        Downpour(push_every=2, server_optimizer="job"),
        DownpourMemory(),
        a_view(),
    )
    assert batch(strategy, memory, view, 3.0, 4)[1] == []
    assert batch(strategy, memory, view, 3.0, 0)[1] == [(0, 4, [3.0, 3.0])]


def test_own_weights_are_set_aside_unless_the_next_batch_pulls():
    strategy, memory, view = Downpour(push_every=2), DownpourMemory(), a_view()
    for n_batches, own in ((3, 5.0), (4, 1.0)):
        view.n_batches, view.n_samples = n_batches, 1
        view.parameters["w"].fill(5.0)
        list(strategy.at_epoch_end(memory, view))
        view.parameters["w"].fill(1.0)  # as servers have it
        list(strategy.before_batch(memory, view))
        assert view.parameters["w"].tolist() == [own, own] and not memory.aside


def test_only_group_0_pulls_before_it_is_measured():
    strategy, memory = Downpour(), DownpourMemory(clock=4)
    assert list(strategy.at_epoch_end(memory, a_view(0))) == [Pull(4)]
    assert list(strategy.at_epoch_end(memory, a_view(1))) == []


def test_replicas_step_on_their_own_between_pulls_only():
    job = a_job(horn.SGD(0.25, momentum=0.9, clip_norm=2.0))
    for pull_every, push_every in ((1, 1), (3, 1), (1, 2), (3, 2)):
        own = Downpour(push_every, pull_every, server_optimizer="job").optimizer(job)
        w, slots = own.update(1.0, 2.0, {"pushed": 10.0}, own.rate(0), 1)
        assert w == (0.5 if pull_every > 1 else 1.0)
        assert slots == {"pushed": 12.0 if push_every > 1 else 2.0}
        assert own.clip_norm == 2.0
