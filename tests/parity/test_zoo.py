"""The laws, for every neuron of examples/zoo; and each of them learns.

A file of the zoo has ``job()``. It has learned if the loss fell to half, or, where it says
``learned(run)``, if that is true. The laws are tried on its network made small.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import horn
from horn import summary
from horn.backends import Setup
from horn.data import Dataset
from horn.language.layers import Reading
from horn.neuron import has_backward
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import is_illegal, of_group, of_one, place
from tests.transport.groups import good

FILES = sorted((Path(__file__).parents[2] / "examples/zoo").glob("*.py"))


# Whose compiling takes long (a loop of 40 passes over the messages is 40 loops); sequences; rules
# of a form that others here have.
LONG = ("k_max", "lif", "predictive_coding", "learned_feedback", "neural_gas")
PARAMS = [pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ()) for path in FILES]


@pytest.fixture(params=PARAMS, ids=[path.stem for path in FILES])
def zoo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path: Path = request.param
    spec = importlib.util.spec_from_file_location(f"zoo_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, found.__name__, found)  # its source is read again
    spec.loader.exec_module(found)
    return found


def small(job: horn.Job) -> Any:
    """The job's network with few neurons in every layer."""
    layers = job.network.layers
    sizes = {layers[0].name: 5}
    for layer in layers[1:]:
        sizes[layer.name] = 4 if layer is not layers[-1] else min(3, layer.size)
        for link in layer.links:  # what says itself how many neurons there are
            if isinstance(link.connection, horn.OneToOne):
                sizes[layer.name] = sizes[link.source.name]
            if isinstance(link.connection, horn.Tied):
                tied = link.connection.resolved(link.source.size, layer.name)
                end = tied.link.source if tied.transposed else tied.layer
                sizes[layer.name] = sizes[end.name]
    return job.network.rebuilt(changes={name: {"size": size} for name, size in sizes.items()})


def samples(network: Any) -> Dataset:
    """As different from every initial weight as random numbers are: no kinks are met."""
    rng = np.random.default_rng(1)
    shape = (12, network.steps, network.n_inputs) if network.steps else (12, network.n_inputs)
    x, labels = rng.random(shape), rng.integers(0, network.last.size, 12)
    return horn.data.as_dataset((x, labels)) if network.steps else Dataset(x, labels)


def setup(job: horn.Job, network: Any, batch: int) -> Setup:
    return Setup(network, job.optimizer, job.target, batch, "float64", 1)


def test_it_names_its_source_and_is_short(zoo: ModuleType) -> None:
    assert "Source: " in (zoo.__doc__ or "")
    assert len(Path(zoo.__file__ or "").read_text().splitlines()) < 60


def test_it_is_compiled_as_it_is_interpreted(zoo: ModuleType) -> None:
    job = zoo.job()
    network = small(job)
    compare(network, job.optimizer, 4, target=job.target or "labels", data=samples(network))


def test_its_derived_gradients_are_finite_differences(zoo: ModuleType) -> None:
    job = zoo.job()
    network = small(job)
    pushes = any(Reading().layer(x, training=True)[0].pushes for x in network.layers[1:])
    local = pushes or any(has_backward(x.neuron) for x in network.layers[1:])
    if network.last.loss is None or local:
        pytest.skip("it has a rule of its own")
    if "stop_gradient" in Path(zoo.__file__ or "").read_text():
        pytest.skip("its derivative is not that of its value, on purpose")
    check_gradients("kernels", setup(job, network, 4), samples(network))


@pytest.mark.parametrize(
    "where", ["receiver", "sender", pytest.param("replicated", marks=pytest.mark.slow)]
)
def test_tasks_compute_what_one_does(zoo: ModuleType, where: str) -> None:
    job = zoo.job()
    network = small(job)
    if network.steps and where == "sender":
        pytest.skip("weights of sequences lie where their neurons are, or with each task")
    given, data = setup(job, network, 6), samples(network)
    batches = [np.arange(6), np.arange(4, 10), np.arange(5)]
    by_rows = network.steps and where == "replicated"
    placement = place(network, (where,) * 4, ("rows" if by_rows else "neurons",) * 4)
    results = of_group("kernels", given, data, batches, placement, 2)
    if not is_illegal(results):
        compare_tasks(good(results), of_one("kernels", given, data, batches), "kernels")


def test_groups_compute_what_one_does(zoo: ModuleType) -> None:
    job = zoo.job()
    network = small(job)
    given, data = setup(job, network, 6), samples(network)
    batches = [np.arange(6), np.arange(4, 10)]
    one = of_one("kernels", given, data, batches)
    found = good(of_groups("kernels", given, data, batches, place(network, (), ()), 2, 1))
    for each in found:
        np.testing.assert_allclose(each.outputs, one.outputs, rtol=1e-9, atol=1e-11)


def test_it_learns(zoo: ModuleType) -> None:
    run = horn.train(zoo.job(), threads=1, progress=False)
    learned = getattr(zoo, "learned", None)
    if learned is not None:
        assert learned(run)
    else:
        assert run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]


def test_the_page_of_the_zoo_has_it_and_says_how_it_runs(zoo: ModuleType) -> None:
    page = (Path(__file__).parents[2] / "docs/zoo.md").read_text()
    name = Path(zoo.__file__ or "").stem
    [row] = [line for line in page.splitlines() if f"[{name}](" in line]
    ways = {row.runs_as for row in summary.layers(zoo.job().network) if row.neuron != "input"}
    assert all(way in row for way in ways if way)
