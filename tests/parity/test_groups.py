"""The law of allreduce: groups x tasks compute what one task computes with the whole batch.

HORN_EXAMPLES=2000 tries as many networks, other ones in every run.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup
from horn.data import Dataset
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS, Placement
from horn.runtime import exchange
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Transport
from tests.parity.generated import Case, cases, optimizer
from tests.parity.test_tasks import (
    BACKENDS,
    Found,
    arrays_of,
    compare,
    is_illegal,
    labelled,
    of_one,
    place,
    steps,
    trained,
)
from tests.support.combinations import share
from tests.transport.groups import good, run_threads

EXAMPLES = os.environ.get("HORN_EXAMPLES")
OPTIMIZERS = {
    "momentum": horn.SGD(0.05, momentum=0.9),
    "nesterov": horn.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "clipped": horn.SGD(0.1, clip_norm=0.2),
    "adam": horn.Adam(0.01),
}
FEW_OPTIMIZERS = [
    "momentum", "clipped", *(pytest.param(k, marks=pytest.mark.slow) for k in ("nesterov", "adam")),
]  # fmt: skip


def of_groups(
    backend: str,
    setup: Setup,
    data: Dataset,
    batches: Sequence[np.ndarray],
    placement: Placement,
    n_groups: int,
    n_tasks: int,
    scheme: str = "inproc",
) -> list[Any]:
    """What every task of every group found, or the exception that it raised."""

    def body(transport: Transport) -> Found:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, placement, group, backend=backend, n_groups=n_groups)
        losses = trained(engine, data, batches)
        outputs, total = engine.outputs(data.x), engine.losses(data)[0]
        arrays = arrays_of(engine)
        places = {name: engine.places(name) for name in arrays}
        return Found(losses, outputs, total, arrays, places, {})

    return run_threads(scheme, n_groups * n_tasks, body)


class Gained(horn.Neuron):
    """Its synapses' gradients depend on a Parameter that is learned, too."""

    gain = horn.Parameter(0.8)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += self.gain * m.input * m.weight
        self.feedforward(self.activation(total))


def test_weights_and_parameters_are_updated_from_the_same_values():
    net = horn.Network(seed=0)
    net.input(2)
    net.layer(4, neuron=Gained, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    setup = Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1)
    data, batches = labelled(net), steps(3, 3)
    for backend in BACKENDS:
        one = of_one(backend, setup, data, batches)
        found = of_groups(backend, setup, data, batches, Placement.default(net), 2, 1)
        compare(good(found), one, backend)


class Remembers(horn.Neuron):
    """A local rule that reads, per sample, what the optimizer of its weights remembers."""

    def forward(self, messages):
        mask = self.bernoulli(0.6) if self.training else 0.6
        if mask == 0:
            self.feedforward(0.0)
            return
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(total))
        for m in messages:
            self.push(self.output * (m.input - self.output * m.weight) + 0.5 * m.previous_update)


def test_what_groups_divide_is_whole_where_it_is_read():
    net = horn.Network(seed=0)
    net.input(5)
    net.layer(4, neuron=Remembers, activation="tanh")
    net.output(3, activation="tanh", loss="squared_error")
    setup = Setup(net, horn.Direct(0.1), "labels", 3, "float64", 1)
    data, batches = labelled(net), steps(3, 2)
    for backend in BACKENDS:
        one = of_one(backend, setup, data, batches)
        found = of_groups(backend, setup, data, batches, Placement.default(net), 2, 2)
        compare(good(found), one, backend)


@pytest.mark.parametrize("most", range(1, 9))
def test_tasks_with_unequal_shares_agree_on_which_sums_share_a_block(most, monkeypatch):
    monkeypatch.setattr(exchange, "SMALL", most)
    net = horn.Network(seed=0)
    net.input(4)
    net.layer(5, connect=horn.Sparse(fan_in=2), activation="tanh")  # tasks have 3 and 2 neurons
    net.output(3, activation="softmax", loss="cross_entropy")
    setup = Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1)
    data, batches = labelled(net), steps(3, 2)
    one = of_one("kernels", setup, data, batches)
    found = of_groups("kernels", setup, data, batches, Placement.default(net), 2, 2)
    compare(good(found), one, "kernels")


class Dropped(horn.Neuron):
    """Dropout per sample, a learned gain, and a State."""

    keep = 0.5
    gain = horn.Parameter(1.0)
    trace = horn.State(0.0)

    def forward(self, messages):
        mask = self.bernoulli(self.keep) if self.training else self.keep
        total = sum(m.input * m.weight for m in messages)
        self.trace = 0.9 * self.trace + 0.1 * total
        self.feedforward(self.activation(total) * mask * self.gain)


def network() -> horn.Network:
    net = horn.Network(seed=4)
    net.input(9, keep=0.8)
    net.layer(7, neuron=Dropped, activation="tanh")
    net.layer(6, activation="relu", connect=horn.Sparse(fan_in=3))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@functools.cache
def ten_steps(backend: str, how: str) -> tuple[Any, ...]:
    """A job, and what one task finds."""
    net = network()
    setup = Setup(net, OPTIMIZERS[how], "labels", 7, "float64", 1)
    data, batches = labelled(net), steps(7, 2) * 2
    assert len(batches) == 10
    return net, setup, data, batches, of_one(backend, setup, data, batches)


@pytest.mark.parametrize("how, n_groups, n_tasks", share(3, FEW_OPTIMIZERS, (1, 2, 3), (1, 2)))
@pytest.mark.parametrize(
    "scheme, backend",
    [
        *(("inproc", backend) for backend in BACKENDS),
        ("shm", "kernels"),
        *(pytest.param("shm", b, marks=pytest.mark.slow) for b in BACKENDS if b != "kernels"),
    ],
)
def test_groups_equal_one_task_over_10_steps(scheme, backend, how, n_groups, n_tasks):
    net, setup, data, batches, one = ten_steps(backend, how)
    for links in (("receiver",) * 3, ("replicated", "receiver", "sender")):
        placement = place(net, links, ("all", "neurons", "rows", "all"))
        found = of_groups(backend, setup, data, batches, placement, n_groups, n_tasks, scheme)
        compare(good(found), one, backend)


@pytest.mark.parametrize(
    "backend, n_groups, n_tasks",
    [
        *((backend, 17, 1) for backend in BACKENDS),
        ("kernels", 19, 2),
        pytest.param("kernels", 50, 1, marks=pytest.mark.slow),
        pytest.param("reference", 19, 2, marks=pytest.mark.slow),
        pytest.param("reference", 50, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("how", ["momentum", pytest.param("clipped", marks=pytest.mark.slow)])
def test_many_groups_sum_along_a_tree_and_equal_one_task(backend, how, n_groups, n_tasks):
    net = network()
    setup = Setup(net, OPTIMIZERS[how], "labels", 60, "float64", 1)
    data = labelled(net)
    batches = [np.arange(60) % len(data), np.arange(51) % len(data)]  # some groups have no row
    one = of_one(backend, setup, data, batches)
    for links in (("receiver",) * 3, ("replicated", "receiver", "sender")):
        placement = place(net, links, ("all", "neurons", "rows", "all"))
        found = of_groups(backend, setup, data, batches, placement, n_groups, n_tasks)
        compare(good(found), one, backend)


def test_groups_on_one_host_have_weights_in_common_and_always_compute_the_same():
    net = horn.Network(seed=2)
    net.input(40)
    net.layer(30, activation="relu")
    net.output(1, activation="tanh", loss="squared_error")  # a neuron for two groups
    setup = Setup(net, horn.SGD(0.1, momentum=0.9), "labels", 8, "float32", 1)
    data, batches = labelled(net), steps(8, 2)

    def body(transport: Transport) -> tuple[dict[str, np.ndarray], int, np.ndarray]:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, Placement.default(net), group, n_groups=2)
        trained(engine, data, batches[:2])
        before = engine.outputs(data.x)  # another program, and another plan
        trained(engine, data, batches[2:])
        assert np.isfinite(before).all()
        return engine.parameters(), group.spent.sent_bytes, engine.arrays["layer1.weight"]

    found = good(run_threads("shm", 2, body))
    again = good(run_threads("shm", 2, body))
    for name, array in found[0][0].items():
        for other in (found[1][0], again[0][0], again[1][0]):
            np.testing.assert_array_equal(array, other[name])
    gradients = 4 * (30 * 40 // 2 + 30)  # what a group owes of each batch, biases and loss aside
    assert found[0][1] < len(batches) * (gradients + 400)
    mine, theirs = found[0][2], found[1][2]
    mine[0, 0] = 7.0
    assert theirs[0, 0] == 7.0


def test_nobody_goes_on_before_all_have_written_what_groups_have_in_common():
    """A group that goes on from a checkpoint would read what a late one begins with."""
    net = horn.Network(seed=2)
    net.input(4)
    net.output(2, activation="tanh", loss="squared_error")
    setup = Setup(net, horn.SGD(0.1), "labels", 8, "float32", 1)
    data = labelled(net)
    is_on = threading.Event()

    def body(transport: Transport) -> tuple[bool, dict[str, np.ndarray]]:
        is_late, common = False, transport.common

        def late(part: int) -> np.ndarray:
            nonlocal is_late
            is_late |= is_on.wait(0.2)
            return common(part)

        if transport.task == 1:
            transport.common = late  # type: ignore[method-assign]
        engine = GroupEngine(setup, Placement.default(net), Group(transport, timeout_s=60),
                             n_groups=2)  # fmt: skip
        engine.bind(data)
        kept = {kind: {name: array + 1 for name, array in arrays.items()}
                for kind, arrays in engine.memory().items()}  # fmt: skip
        if transport.task == 0:
            engine.recall(kept, 3)
            is_on.set()
        assert is_on.wait(60)
        return is_late, engine.parameters()

    (_, first), (is_late, second) = good(run_threads("shm", 2, body))
    assert not is_late
    for name, array in net.initial_parameters(np.dtype("float32")).items():
        np.testing.assert_array_equal(first[name], array + 1)
        if name.endswith("weight"):  # a bias is each one's own
            np.testing.assert_array_equal(second[name], first[name])


def test_nobody_goes_back_to_other_weights_before_all_have_measured():
    """At the end of a run each group loads the best model, where the others have theirs as well."""
    net = horn.Network(seed=2)
    net.input(4)
    net.output(2, activation="tanh", loss="squared_error")
    setup = Setup(net, horn.SGD(0.1), "labels", 8, "float32", 1)
    data = labelled(net)
    is_loaded = threading.Event()

    def body(transport: Transport) -> tuple[bool, dict[str, np.ndarray], dict[str, np.ndarray]]:
        engine = GroupEngine(setup, Placement.default(net), Group(transport, timeout_s=60),
                             n_groups=2)  # fmt: skip
        engine.bind(data)
        best = {name: array + 1 for name, array in engine.parameters().items()}
        engine.group.wait_all()
        is_late = transport.task == 1 and is_loaded.wait(0.2)  # it is still measuring
        measured = engine.parameters()
        engine.load(best)
        is_loaded.set()
        return is_late, measured, engine.parameters()

    found = good(run_threads("shm", 2, body))
    for name, array in net.initial_parameters(np.dtype("float32")).items():
        for is_late, measured, loaded in found:
            assert not is_late
            np.testing.assert_array_equal(measured[name], array)
            np.testing.assert_array_equal(loaded[name], array + 1)


def test_more_groups_than_rows():
    net = network()
    setup = Setup(net, horn.SGD(0.1), "labels", 2, "float64", 1)
    data, batches = labelled(net), steps(2, 3)
    one = of_one("kernels", setup, data, batches)
    found = of_groups("kernels", setup, data, batches, Placement.default(net), 3, 1)
    compare(good(found), one, "kernels")


@pytest.mark.timeout(0 if EXAMPLES else 300)
@settings(
    max_examples=int(EXAMPLES or 12),
    deadline=None,
    derandomize=EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
)
@given(
    case=cases(),
    topology=st.sampled_from([(2, 1), (3, 1), (2, 2)]),
    links=st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=8, max_size=8),
    layers=st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=5, max_size=5),
)
def test_generated_networks_in_groups(
    case: Case,
    topology: tuple[int, int],
    links: list[str],
    layers: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    note(case.text)
    net = case.module(tmp_path_factory.getbasetemp()).network()
    setup = Setup(net, optimizer(case), "labels", case.batch, "float64", 1)
    data, batches = labelled(net), steps(case.batch, 2)
    placement = place(net, links, layers)
    note(f"{topology} groups x tasks, {placement}, {case.optimizer}, batch {case.batch}")
    for backend in BACKENDS:
        try:
            one = of_one(backend, setup, data, batches)
        except horn.HornError:  # what is refused is tested elsewhere
            assume(False)
        found = of_groups(backend, setup, data, batches, placement, *topology)
        assume(not is_illegal(found))
        compare(good(found), one, backend)
