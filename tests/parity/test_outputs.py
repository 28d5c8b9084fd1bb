"""Several outputs with targets, losses and weights of their own, and losses between layers: the
same interpreted, compiled, on tasks and in groups; gradients are those of the weighted total.

HORN_EXAMPLES=2000 tries as many networks, other ones in every run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.data import Dataset, as_dataset
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS
from horn.weights import weighed
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import agree
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import BACKENDS, compare, is_illegal, of_group, of_one, place, steps
from tests.transport.groups import good

EXAMPLES = os.environ.get("HORN_EXAMPLES")
N = 12
ENGINES = ("python", *BACKENDS)


class Product(horn.Neuron):
    """No weighted sum: its weights' gradients are derived message by message."""

    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 + 0.2 * m.input * m.weight
        self.feedforward(p)


class Toward(horn.Neuron):
    """An output that reads its own target."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        self.feedforward(y + 0.1 * self.target if self.training else y)


def apart(a, b):
    return 0.5 * (a - b) ** 2 + 0.1 * a * b


def held(a, b):
    return (a - horn.math.stop_gradient(b)) ** 2


def sparse(y):
    return abs(y)


HIDDEN = [
    {"activation": "tanh"}, {"activation": "sigmoid", "bias": False}, {"neuron": Product},
    {"neuron": horn.neurons.Dropout, "activation": "tanh"},
    {"neuron": horn.neurons.BatchDropout, "activation": "sigmoid"},
    {"activation": "softmax"}, {"activation": "tanh", "connect": horn.Sparse(fan_in=2)},
]  # fmt: skip
HEADS = [
    ("labels", 3, {"activation": "softmax", "loss": "cross_entropy"}),
    ("numbers", 2, {"loss": "squared_error"}),
    ("numbers", 3, {"activation": "softmax", "loss": "squared_error"}),
    ("numbers", 2, {"neuron": Toward, "loss": "squared_error"}),
    ("shares", 2, {"activation": "sigmoid", "loss": "binary_cross_entropy"}),
    ("sides", 1, {"activation": "sigmoid", "loss": "binary_cross_entropy"}),
    ("none", 2, {"activation": "tanh"}),
]  # fmt: skip
WEIGHTS = st.sampled_from([1.0, 0.0, 0.3, 2.0])
OPTIMIZERS = [
    horn.SGD(0.1, momentum=0.5), horn.SGD(0.1), horn.SGD(0.1, clip_norm=0.3), horn.Adam(0.01),
]  # fmt: skip


@dataclass
class Several:
    """A network, what it learns from, and how."""

    network: horn.Network
    data: Dataset
    optimizer: Any
    text: str


@st.composite
def several(draw: st.DrawFn) -> Several:
    net, said = horn.Network(seed=draw(st.integers(0, 9))), []
    below = [net.input(4, name="x")]
    for k in range(draw(st.integers(1, 3))):
        how = draw(st.sampled_from(HIDDEN))
        under = draw(st.lists(st.sampled_from(below), min_size=1, max_size=2, unique=True))
        below.append(net.layer(4, inputs=under, name=f"h{k}", **how))
        said.append((how, [layer.name for layer in under]))
    rng, y = np.random.default_rng(1), {}
    for k in range(draw(st.integers(0, 3))):
        kind, size, how = draw(st.sampled_from(HEADS))
        weight, under = draw(WEIGHTS), draw(st.sampled_from(below))
        below.append(net.output(size, inputs=under, name=f"out{k}", weight=weight, **how))
        said.append((kind, how, weight, under.name))
        y |= {} if kind == "none" else {f"out{k}": targets(kind, size, rng)}
    alike = [layer for layer in below if layer.size == 4]
    n_between = draw(st.integers(0 if y else 1, 2))
    for _ in range(n_between):
        a, b = draw(st.sampled_from(alike)), draw(st.sampled_from([None, *alike]))
        f, weight = sparse if b is None else draw(st.sampled_from([apart, held])), draw(WEIGHTS)
        net.loss(a, b, f, weight=weight)
        said.append((a.name, b and b.name, f.__name__, weight))
    data = as_dataset((rng.normal(size=(N, 4)), y or None))
    data = data.of_outputs(net.compared, net.has_several)
    if draw(st.booleans()) and net.is_judged:
        data = weighed(data, rng.choice([0.0, 0.5, 3.0], N), net)
    net.check()
    return Several(net, data, draw(st.sampled_from(OPTIMIZERS)), repr((said, data.weight)))


def targets(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "labels":
        return rng.integers(0, size, N)
    if kind == "sides":
        return rng.integers(0, 2, N)
    return rng.random((N, size)) if kind == "shares" else rng.normal(size=(N, size))


def setup_of(case: Several, batch: int = 5) -> Setup:
    return Setup(case.network, case.optimizer, "labels", batch, "float64", 1)


def law(n: int) -> Any:
    return settings(
        max_examples=int(EXAMPLES or n), deadline=None, derandomize=EXAMPLES is None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@pytest.mark.timeout(0 if EXAMPLES else 600)
@law(8)
@given(case=several())
def test_the_interpreter_is_the_law(case: Several) -> None:
    all_agree(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@law(300)
@given(case=several())
def test_more_networks_are_interpreted(case: Several) -> None:
    all_agree(case)


def all_agree(case: Several) -> None:
    note(case.text)
    engines = [make(backend, setup_of(case)) for backend in ENGINES]
    agree(engines, ENGINES, case.data, 5)
    found = [engine.results(case.data) for engine in engines]
    for (total, right, outputs, each), who in zip(found, ENGINES, strict=True):
        assert right == found[0][1], who
        assert total == pytest.approx(found[0][0], rel=1e-9, abs=1e-12), who
        np.testing.assert_allclose(outputs, found[0][2], rtol=1e-9, atol=1e-10, err_msg=who)
        np.testing.assert_allclose(each, found[0][3], rtol=1e-9, atol=1e-10, err_msg=who)
        weights = [layer.loss_weight for layer in case.network.judged]
        assert total == pytest.approx(float(np.dot(weights, each)), rel=1e-9, abs=1e-9)


@pytest.mark.timeout(0 if EXAMPLES else 300)
@law(12)
@given(case=several())
def test_gradients_are_finite_differences_of_the_weighted_total(case: Several) -> None:
    note(case.text)
    # What stop_gradient holds, and |y| at 0, are no differences.
    if any(layer.activation.f in (held, sparse) for layer in case.network.layers):
        return
    check_gradients("kernels", setup_of(case), case.data, 3)


PLACED = {
    "n_tasks": st.sampled_from([2, 3]),
    "links": st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=14, max_size=14),
    "layers": st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=9, max_size=9),
}


@pytest.mark.timeout(0 if EXAMPLES else 600)
@law(5)
@given(case=several(), **PLACED)
def test_tasks_do_what_one_does(
    case: Several, n_tasks: int, links: list[str], layers: list[str]
) -> None:
    on_tasks(case, n_tasks, links, layers)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@law(120)
@given(case=several(), **PLACED)
def test_more_tasks_do(case: Several, n_tasks: int, links: list[str], layers: list[str]) -> None:
    on_tasks(case, n_tasks, links, layers)


def on_tasks(case: Several, n_tasks: int, links: list[str], layers: list[str]) -> None:
    note(case.text)
    placement, batches = place(case.network, links, layers), steps(5, 2)
    note(repr(placement))
    for backend in BACKENDS:
        one = of_one(backend, setup_of(case), case.data, batches)
        alone = of_group(backend, setup_of(case), case.data, batches, placement, 1)
        if is_illegal(alone):
            return
        group = of_group(backend, setup_of(case), case.data, batches, placement, n_tasks)
        compare(good(alone), one, backend)
        compare(good(group), one, backend)


@pytest.mark.timeout(0 if EXAMPLES else 600)
@law(6)
@given(case=several(), n_groups=st.sampled_from([2, 3]), n_tasks=st.sampled_from([1, 2]))
def test_groups_do_what_one_does(case: Several, n_groups: int, n_tasks: int) -> None:
    in_groups(case, n_groups, n_tasks)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@law(80)
@given(case=several(), n_groups=st.sampled_from([2, 3]), n_tasks=st.sampled_from([1, 2]))
def test_more_groups_do(case: Several, n_groups: int, n_tasks: int) -> None:
    in_groups(case, n_groups, n_tasks)


def in_groups(case: Several, n_groups: int, n_tasks: int) -> None:
    note(case.text)
    placement, batches = horn.partition.placement.Placement.default(case.network), steps(5, 2)
    one = of_one("kernels", setup_of(case), case.data, batches)
    found = of_groups("kernels", setup_of(case), case.data, batches, placement, n_groups, n_tasks)
    compare(good(found), one, f"{n_groups} groups of {n_tasks}")
