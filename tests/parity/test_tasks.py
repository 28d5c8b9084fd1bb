"""The law of placement: any number of tasks, placed in any way, compute what one task computes.

HORN_EXAMPLES=2000 tries as many networks, other ones in every run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.data import Dataset
from horn.errors import CompileError
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS, Placement
from horn.partition.share import Share
from horn.program import Draw, base
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Transport
from tests.parity.generated import Case, cases, optimizer
from tests.support.combinations import share
from tests.transport.groups import SCHEMES, good, run_threads

BACKENDS = ("reference", "kernels")
N_TASKS = (1, 2, 3, 5)
N_STEPS = 5
N_SAMPLES = 12
EXAMPLES = os.environ.get("HORN_EXAMPLES")


@dataclass
class Found:
    """What one task has after some steps. ``draws``: what its draws drew in the last step, by
    buffer, with the buffer's axes.
    """

    losses: list[float]
    outputs: np.ndarray
    total: float
    arrays: dict[str, np.ndarray]
    places: dict[str, tuple[Any, ...]]
    draws: dict[str, tuple[np.ndarray, tuple[str, ...]]]


def steps(batch: int, short: int) -> list[np.ndarray]:
    """The rows of each step; those of step ``short`` are fewer than a batch."""
    sizes = [max(1, batch - 2) if step == short else batch for step in range(N_STEPS)]
    return [(np.arange(n) * 5 + step) % N_SAMPLES for step, n in enumerate(sizes)]


def trained(engine: Any, data: Dataset, batches: Sequence[np.ndarray]) -> list[float]:
    engine.bind(data)
    return [engine.step(rows, iteration=k, first_sample=100 * k) for k, rows in enumerate(batches)]


def arrays_of(engine: Any) -> dict[str, np.ndarray]:
    return {**engine.parameters(), **engine.states(), **engine.slots()}


def of_one(backend: str, setup: Setup, data: Dataset, batches: Sequence[np.ndarray]) -> Found:
    engine = make(backend, setup)
    losses = trained(engine, data, batches)
    outputs, total = engine.outputs(data.x), engine.losses(data)[0]
    return Found(losses, outputs, total, arrays_of(engine), {}, {})


def of_group(
    backend: str,
    setup: Setup,
    data: Dataset,
    batches: Sequence[np.ndarray],
    placement: Placement,
    n_tasks: int,
    scheme: str = "inproc",
) -> list[Any]:
    """What every task found, or the exception that it raised."""

    def body(transport: Transport) -> Found:
        engine = GroupEngine(setup, placement, Group(transport, timeout_s=60), backend=backend)
        losses = trained(engine, data, batches)
        draws = draws_of(engine)
        outputs, total = engine.outputs(data.x), engine.losses(data)[0]
        arrays = arrays_of(engine)
        places = {name: engine.places(name) for name in arrays}
        return Found(losses, outputs, total, arrays, places, draws)

    return run_threads(scheme, n_tasks, body)


def draws_of(engine: GroupEngine) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    runner = engine.training_runner
    program = runner.program
    return {
        s.out: (np.array(runner.value(s.out)), program.buffers[s.out].axes)
        for s in (*program.prologue, *program.statements)
        if isinstance(s, Draw)
    }


def part(array: np.ndarray, index: Sequence[Any]) -> np.ndarray:
    for axis, places in enumerate(index):
        array = array[(slice(None),) * axis + (places,)]
    return array


def same(found: Any, expected: Any, what: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10, err_msg=what)


def compare(group: Sequence[Found], one: Found, who: str) -> None:
    """Every task has what one task has: outputs and losses whole, its share of the arrays."""
    for task, found in enumerate(group):
        where = f"{who}, task {task} of {len(group)}"
        same(found.losses, one.losses, f"{where}: losses")
        same(found.outputs, one.outputs, f"{where}: outputs")
        same(found.total, one.total, f"{where}: loss of the data")
        assert found.arrays.keys() == one.arrays.keys(), where
        for name, array in found.arrays.items():
            same(array, part(one.arrays[name], found.places[name]), f"{where}: {name}")


def compare_draws(group: Sequence[Found], alone: Found, setup: Setup, n_rows: int) -> None:
    """Every task drew its part of what one task of the same placement drew, to the bit."""
    for task, found in enumerate(group):
        share = Share(setup.network, task, len(group))
        assert found.draws.keys() == alone.draws.keys()
        for name, (array, axes) in found.draws.items():
            index = [
                share.rows(axis, n_rows, setup.batch_size)
                if base(axis) == "b"
                else share.places(axis)
                for axis in axes
            ]
            np.testing.assert_array_equal(array, part(alone.draws[name][0], index), name)


def labelled(network: Any) -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((N_SAMPLES, network.n_inputs))
    return Dataset(x, rng.integers(0, network.last.size, N_SAMPLES))


def place(network: Any, links: Sequence[str], layers: Sequence[str]) -> Placement:
    """A placement from as many choices as it needs."""
    names = [(layer.index, k) for layer in network.layers for k in range(len(layer.links))]
    return Placement(
        dict(zip(names, links, strict=False)),
        {layer.index: how for layer, how in zip(network.layers, layers, strict=False)},
    )


def is_illegal(results: Sequence[Any]) -> bool:
    """Whether every task says that the placement needs a combiner that is none."""
    said = [isinstance(r, CompileError) and "cannot be combined" in str(r) for r in results]
    assert len(set(said)) == 1, results
    return said[0]


@pytest.mark.timeout(0 if EXAMPLES else 900)
@settings(
    max_examples=int(EXAMPLES or 20),
    deadline=None,
    derandomize=EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
)
@given(
    case=cases(),
    n_tasks=st.sampled_from(N_TASKS[1:]),
    links=st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=8, max_size=8),
    layers=st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=5, max_size=5),
    short=st.integers(0, N_STEPS - 1),
)
def test_any_number_of_tasks_computes_what_one_does(
    case: Case,
    n_tasks: int,
    links: list[str],
    layers: list[str],
    short: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    note(case.text)
    network = case.module(tmp_path_factory.getbasetemp()).network()
    setup = Setup(network, optimizer(case), "labels", case.batch, "float64", 1)
    data, batches = labelled(network), steps(case.batch, short)
    placement = place(network, links, layers)
    note(f"{n_tasks} tasks, {placement}, {case.optimizer}, batch {case.batch}")
    for backend in BACKENDS:
        try:
            one = of_one(backend, setup, data, batches)
        except horn.HornError:  # what is refused is tested elsewhere
            assume(False)
        alone = of_group(backend, setup, data, batches, placement, 1)
        assume(not is_illegal(alone))
        group = of_group(backend, setup, data, batches, placement, n_tasks)
        compare(good(alone), one, backend)
        compare(good(group), one, backend)
        compare_draws(group, alone[0], setup, len(batches[-1]))


# What the generated networks do not have.


def network(*, loss: tuple[str, str] = ("softmax", "cross_entropy"), last: int = 3) -> Any:
    """Dense, sparse, dropped per sample and per batch, larger than any number of tasks."""
    net = horn.Network(seed=4)
    net.input(9, keep=0.8)
    net.layer(11, activation="relu")
    net.layer(8, activation="tanh", connect=horn.Sparse(fan_in=3))
    net.output(last, activation=loss[0], loss=loss[1])
    return net


PLACEMENTS = {
    "owned": (("receiver", "sender", "receiver"), ("neurons",) * 4),
    "rows": (("replicated",) * 3, ("rows",) * 4),
    "mixed": (("receiver", "replicated", "sender"), ("all", "rows", "neurons", "all")),
    "sent": (("sender", "receiver", "replicated"), ("rows", "neurons", "all", "neurons")),
}


@pytest.mark.parametrize(
    "kind, placed, n_tasks", share(3, ["values", "value", "input"], PLACEMENTS, N_TASKS)
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_targets_of_every_kind(backend, kind, placed, n_tasks):
    last = {"values": 5, "value": 1, "input": 9}[kind]
    net = network(loss=("sigmoid", "squared_error"), last=last)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (N_SAMPLES, 9), np.uint8)
    y = {
        "values": rng.random((N_SAMPLES, 5)), "value": rng.integers(0, 2, N_SAMPLES), "input": None,
    }[kind]  # fmt: skip
    data = Dataset(x, y, 1 / 255)
    target = "input" if kind == "input" else "labels"
    setup = Setup(net, horn.SGD(0.1, momentum=0.9), target, 7, "float64", 1)
    batches, placement = steps(7, 2), place(net, *PLACEMENTS[placed])
    one = of_one(backend, setup, data, batches)
    compare(good(of_group(backend, setup, data, batches, placement, n_tasks)), one, backend)


PLAIN = ("x", "a", "b", "c", "d")
NESTED = ("in/x", "block1", "block1/conv", "block1/conv/c", "block2/out")


def nested_job(names: Sequence[str], epochs: int = 2) -> horn.Job:
    """Layers that hear several: the names of their weights have those of the others, too."""
    net = horn.Network(seed=3)
    x = net.input(6, name=names[0])
    a = net.layer(8, neuron=horn.Dropout, activation="tanh", name=names[1])
    b = net.layer(8, activation="tanh", inputs=[x, a], name=names[2])
    some = {a: horn.Sparse(sources=lambda k: [k, (k + 1) % 8]), b: horn.Dense()}
    net.layer(6, inputs=[a, b], connect=some, name=names[3])
    net.output(2, loss="squared_error", name=names[4])
    rng = np.random.default_rng(0)
    data = rng.normal(size=(16, 6)), rng.normal(size=(16, 2))
    return horn.Job(net, data, horn.Adam(0.05), epochs=epochs, batch_size=8, dtype="float64")


@pytest.mark.parametrize("placed", PLACEMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_whose_names_have_a_slash(backend, placed):
    found = []
    for names in (PLAIN, NESTED):
        job = nested_job(names)
        setup = Setup(job.network, job.optimizer, "labels", 8, "float64", 1)
        placement = place(job.network, *PLACEMENTS[placed])
        batches = [np.arange(8), np.arange(8, 16)]
        one = of_one(backend, setup, job.data, batches)
        group = good(of_group(backend, setup, job.data, batches, placement, 2))
        compare(group, one, backend)
        found.append([each.tobytes() for f in (one, *group) for each in f.arrays.values()])
    assert sorted(found[0]) == sorted(found[1])


@pytest.mark.cluster
@pytest.mark.parametrize("how", [{"pins": {"block1/conv": "sender"}}, {"groups": 2}], ids=str)
def test_checkpoints_and_models_of_layers_whose_names_have_a_slash(how, tmp_path):
    job = nested_job(NESTED)
    whole = horn.train(job, tasks=2, progress=False, **how).model
    saved = {"checkpoints": str(tmp_path / "run"), "progress": False}
    horn.train(nested_job(NESTED, 1), tasks=2, **saved, **how)
    resumed = horn.train(job, tasks=2, resume=True, **saved, **how).model
    resumed.save(tmp_path / "nested.horn")
    loaded = horn.Model.load(tmp_path / "nested.horn")
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array, name)
    begun = horn.Job(job.network, job.data, initial=tmp_path / "nested.horn")
    assert begun.network.initial_parameters("float64").keys() == whole.parameters.keys()


@pytest.mark.net
@pytest.mark.parametrize("placed", PLACEMENTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_transport_gives_the_same_bits(backend, placed):
    net = network()
    data = labelled(net)
    setup = Setup(net, horn.Adam(0.01), "labels", 7, "float32", 1)
    batches, placement = steps(7, 2), place(net, *PLACEMENTS[placed])
    found = {
        scheme: [
            {"losses": f.losses, "outputs": f.outputs.tobytes()}
            | {name: array.tobytes() for name, array in f.arrays.items()}
            for f in good(of_group(backend, setup, data, batches, placement, 3, scheme))
        ]
        for scheme in SCHEMES
    }
    assert len(found) >= 4
    for scheme, results in found.items():
        assert results == found["inproc"], scheme


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_inside_the_tasks_change_nothing(n_threads, monkeypatch):
    monkeypatch.setattr("horn.scheduling.choices.MIN_WORK_PER_THREAD", 1)
    net = network()
    data = labelled(net)
    batches, placement = steps(7, 2), place(net, *PLACEMENTS["mixed"])
    setups = [Setup(net, horn.SGD(0.1), "labels", 7, "float64", n) for n in (1, n_threads)]
    one = of_one("kernels", setups[0], data, batches)
    compare(good(of_group("kernels", setups[1], data, batches, placement, 2)), one, "kernels")


class Winner(horn.Neuron):
    """Sends on the largest message: which one it was decides where the gradient goes."""

    def forward(self, messages):
        best = -10.0
        for m in messages:
            v = m.input * m.weight
            if v > best:
                best = v
        self.feedforward(self.activation(best))


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)], ids=["dense", "sparse"])
@pytest.mark.parametrize("where", LINK_SPLITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argmax_over_what_is_divided_is_refused(backend, where, connect):
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(5, neuron=Winner, activation="tanh", connect=connect)
    net.output(3, activation="softmax", loss="cross_entropy")
    setup = Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1)
    data, batches = labelled(net), steps(4, 1)
    placement = place(net, (where, "receiver"), ("neurons",) * 3)
    results = of_group(backend, setup, data, batches, placement, 2)
    assert is_illegal(results) == (where == "sender")
    if where != "sender":
        compare(good(results), of_one(backend, setup, data, batches), backend)
