"""The law of the compiler: a compiled network computes what the user's own methods compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

import horn
from horn.backends import Setup, make
from horn.data import Dataset
from tests.parity.generated import Case, cases, optimizer

COMPILED = ("reference", "kernels")


def compare(
    network: Any,
    opt: Any,
    batch: int,
    *backends: str,
    steps: int = 2,
    target: str = "labels",
    data: Dataset | None = None,
) -> None:
    """Probe and step the interpreter and the backends, and compare every value by name."""
    data = data or samples(network)
    names = ("python", *(backends or COMPILED))
    engines = [make(b, Setup(network, opt, target, batch, "float64", 1)) for b in names]
    agree(engines, names, data, batch, steps)


def samples(network: Any) -> Dataset:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, max(network.last.size, 2), 12)
    return Dataset(rng.standard_normal((12, network.n_inputs)), labels)


def agree(
    engines: Sequence[Any], names: tuple[str, ...], data: Dataset, batch: int, steps: int = 2
) -> None:
    """As ``compare``, of engines that are there."""
    for engine in engines:
        engine.bind(data)
    first = 0
    for step in range(steps):
        rows = (np.arange(batch) * 5 + step) % len(data)
        at = {"iteration": step, "first_sample": first}
        same([e.probe(rows, **at) for e in engines], names, f"step {step}", 1e-11)
        same([{"loss": np.asarray(e.step(rows, **at))} for e in engines], names, f"step {step}")
        same([e.parameters() for e in engines], names, f"after step {step}")
        same([e.states() for e in engines], names, f"after step {step}")
        first += batch
    some = data.x[: batch + 2]
    same([{"outputs": e.outputs(some)} for e in engines], names, "prediction")


def same(
    found: list[Mapping[str, Any]], names: tuple[str, ...], when: str, atol: float = 1e-10
) -> None:
    """Every backend found what the first one, the interpreter, found."""
    expected = found[0]
    for got, who in zip(found[1:], names[1:], strict=True):
        # Which sum is told an error of is a matter of how a program is written; gradients are not.
        apart = set(got) ^ set(expected)
        assert all(".delta" in name for name in apart), f"{when}, {who}: {apart}"
        for name in set(got) & set(expected):
            message = f"{when}, {who}: {name}"
            np.testing.assert_allclose(
                got[name], expected[name], rtol=1e-9, atol=atol, err_msg=message
            )


def generated(n: int) -> Any:
    return settings(
        max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.timeout(900)
@generated(60)
@given(case=cases())
def test_generated_networks(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    all_agree(case, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@generated(300)
@given(case=cases())
def test_more_generated_networks(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    all_agree(case, tmp_path_factory)


def all_agree(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    note(case.text)
    network = case.module(tmp_path_factory.getbasetemp()).network()
    names = ("python", *COMPILED)
    engines = [engine_or_refusal(network, case, b) for b in names]
    assert len({isinstance(e, str) for e in engines}) == 1, engines
    if not isinstance(engines[0], str):
        agree(engines, names, samples(network), case.batch)


def engine_or_refusal(network: Any, case: Case, backend: str) -> Any:
    """One backend's, which has probed; or what it says against the network."""
    try:
        engine = make(backend, Setup(network, optimizer(case), "labels", case.batch, "float64", 1))
        engine.bind(Dataset(np.ones((2, network.n_inputs)), np.zeros(2, np.int64)))
        engine.probe(np.arange(1), iteration=0, first_sample=0)
    except horn.HornError as error:
        return str(error)
    return engine


class Joins(horn.Neuron):
    """The value of ``and`` and ``or`` is that of the operand which decides."""

    keep = 0.5
    gain = horn.Parameter(0.3)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        a = self.keep or 1.0
        b = self.training and 0.5
        c = (z > 0.0) or 0.25
        d = z > 0.1 and z * 2.0
        e = z and 3.0
        f = (self.gain > 5.0 or z) and (z < 1.0 or 0.7)
        g = 0.0 or z or 2.0
        h = 0.4 < a < 0.6 and b or c
        self.feedforward(z * a + b + c * self.gain + d + e + f + g + h)


def test_and_and_or_are_the_operand_that_decides() -> None:
    net = horn.Network(seed=1)
    net.input(5)
    net.layer(7, neuron=Joins)
    net.output(3, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 4)
