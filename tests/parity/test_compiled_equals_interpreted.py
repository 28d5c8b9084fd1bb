"""The law of the compiler: a compiled network computes what the user's own methods compute, message
by message.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

import horn
from horn.backends import Setup, make
from horn.data import Dataset
from tests.parity.generated import Case, cases, optimizer

COMPILED = ["reference"] + (
    ["kernels"] if importlib.util.find_spec("horn.backends.kernels") else []
)


def compare(
    network: Any, opt: Any, batch: int, backend: str, *, steps: int = 2, target: str = "labels"
) -> None:
    """Probe and step both, and compare every value by name."""
    rng = np.random.default_rng(1)
    n_out = network.last.size
    data = Dataset(rng.standard_normal((12, network.n_inputs)), rng.integers(0, max(n_out, 2), 12))
    engines = [
        make(b, Setup(network, opt, target, batch, "float64", 1)) for b in ("python", backend)
    ]
    for engine in engines:
        engine.bind(data)
    first = 0
    for step in range(steps):
        rows = (np.arange(batch) * 5 + step) % 12
        expected, got = (e.probe(rows, iteration=step, first_sample=first) for e in engines)
        assert set(expected) == set(got)
        for name in expected:
            np.testing.assert_allclose(
                got[name], expected[name], rtol=1e-9, atol=1e-11, err_msg=f"step {step} {name}"
            )
        losses = [e.step(rows, iteration=step, first_sample=first) for e in engines]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9, atol=1e-12)
        for what in ("parameters", "states"):
            expected, got = (getattr(e, what)() for e in engines)
            assert set(expected) == set(got)
            for name in expected:
                np.testing.assert_allclose(
                    got[name],
                    expected[name],
                    rtol=1e-9,
                    atol=1e-10,
                    err_msg=f"after step {step} {name}",
                )
        first += batch
    expected, got = (e.outputs(data.x) for e in engines)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", COMPILED)
@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(case=cases())
def test_generated_networks(
    backend: str, case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    note(case.text)
    network = case.module(_folder(tmp_path_factory)).network()
    refusals = [refusal(network, case, b) for b in ("python", backend)]
    assert (refusals[0] is None) == (refusals[1] is None), refusals
    if refusals[0] is None:
        compare(network, optimizer(case), case.batch, backend)


def refusal(network: Any, case: Case, backend: str) -> str | None:
    """What one backend says against a network, if anything."""
    try:
        engine = make(backend, Setup(network, optimizer(case), "labels", case.batch, "float64", 1))
        engine.bind(Dataset(np.ones((2, network.n_inputs)), np.zeros(2, np.int64)))
        engine.probe(np.arange(1), iteration=0, first_sample=0)
    except horn.HornError as error:
        return str(error)
    return None


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp()
