"""Every backend in its folder, and one of somebody else, against the interpreter."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import backends
from horn.backends import Engine, Setup
from horn.data import Dataset
from horn.errors import JobError
from horn.neurons import Dropout

JUDGE = "python"
BATCH = 4


class Counting(horn.Neuron):
    """A State, a bias and a weight that learn: all that an engine keeps."""

    gain = horn.Parameter(0.5)
    seen = horn.State(0.0)

    def forward(self, messages: Any) -> None:
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.seen = self.seen + 1.0
        self.feedforward(self.activation(total * self.gain))


def network() -> horn.Network:
    net = horn.Network(seed=5)
    net.input(6)
    net.layer(5, neuron=Counting, activation="tanh")
    net.layer(4, neuron=Dropout, connect=horn.Sparse(fan_in=3), activation="relu")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def samples() -> Dataset:
    rng = np.random.default_rng(2)
    return Dataset(rng.standard_normal((12, 6)), rng.integers(0, 3, 12))


def engine(backend: str, optimizer: horn.Adam | None = None) -> Engine:
    optimizer = optimizer or horn.Adam(0.05, weight_decay=0.1, clip_norm=0.4)
    made = backends.make(backend, Setup(network(), optimizer, "labels", BATCH, "float64", 1))
    made.bind(samples())
    return made


def steps(made: Engine, first: int, n: int) -> list[float]:
    """The losses of batches ``first``, ``first + 1``, ..."""
    return [
        made.step(np.arange(12)[k % 3 * BATCH :][:BATCH], iteration=k, first_sample=k * BATCH)
        for k in range(first, first + n)
    ]


def everything(made: Engine) -> dict[str, np.ndarray]:
    return {**made.parameters(), **made.states(), **made.slots()}


def assert_same(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], **close: Any
) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(found[name], array, err_msg=name, **close)


def test_it_learns_what_the_interpreter_learns(backend: str) -> None:
    """Losses of batches, learned arrays, States and the optimizer's memory."""
    judge, made = engine(JUDGE), engine(backend)
    assert steps(made, 0, 5) == pytest.approx(steps(judge, 0, 5), rel=1e-9)
    assert made.updates == judge.updates == 5
    assert_same(everything(made), everything(judge), rtol=1e-8, atol=1e-11)


def test_what_it_probes_is_what_the_interpreter_probes(backend: str) -> None:
    rows = np.array([3, 1, 2])
    found, expected = (
        e.probe(rows, iteration=2, first_sample=7) for e in map(engine, (backend, JUDGE))
    )
    common = found.keys() & expected.keys()
    assert {"loss", "layer1.output", "layer3.output"} <= common
    assert any(name.endswith(".gradient") for name in common)
    assert_same(*({n: d[n] for n in common} for d in (found, expected)), rtol=1e-8, atol=1e-11)


def test_it_infers_and_measures_as_the_interpreter(backend: str) -> None:
    made, judge, data = engine(backend), engine(JUDGE), samples()
    np.testing.assert_allclose(made.outputs(data.x), judge.outputs(data.x), rtol=1e-9)
    assert made.losses(data) == pytest.approx(judge.losses(data), rel=1e-9)


def test_no_rows_have_no_outputs(backend: str) -> None:
    found = engine(backend).outputs(np.empty((0, 6)))
    assert found.shape == (0, 3) and found.dtype == np.float64


def test_it_goes_on_from_what_another_backend_has(backend: str) -> None:
    """What ``load`` is given is the whole state: arrays, States, memory, number of updates."""
    judge = engine(JUDGE)
    steps(judge, 0, 2)
    made = engine(backend)
    made.load(judge.parameters(), judge.states(), judge.slots(), judge.updates)
    steps(judge, 2, 2), steps(made, 2, 2)
    assert_same(everything(made), everything(judge), rtol=1e-8, atol=1e-11)


def test_memory_taken_and_given_back_is_the_same_run(backend: str) -> None:
    """A run that is interrupted anywhere goes on to the same bits."""
    whole, first, second = engine(backend), engine(backend), engine(backend)
    steps(whole, 0, 4)
    steps(first, 0, 2)
    second.recall(first.memory(), first.updates)
    steps(second, 2, 2)
    for name, array in everything(whole).items():
        np.testing.assert_array_equal(everything(second)[name], array, err_msg=name)


@pytest.mark.parametrize("method", ["step", "probe"])
@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([], ValueError, "got 0 rows for a batch of 4; pass 1 to 4"),
        ([0, 1, 2, 3, 4], ValueError, "got 5 rows for a batch of 4; pass 1 to 4"),
        ([0, -1], IndexError, r"rows must be in 0 to 11, got array\(\[ 0, -1\]\)"),
        ([12], IndexError, r"rows must be in 0 to 11, got array\(\[12\]\)"),
    ],
    ids=["none", "too many", "below", "beyond"],
)
def test_rows_that_make_no_batch_are_refused(backend, rows, error, said, method) -> None:
    made = engine(backend)
    before = made.parameters()
    with pytest.raises(error, match=said):
        getattr(made, method)(np.array(rows, np.int64), iteration=0, first_sample=0)
    for name, array in made.parameters().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("method", ["step", "probe"])
@pytest.mark.parametrize(
    "rows", [[True, False], [0.9, 1.5], [[0, 1], [2, 3]]], ids=["a mask", "floats", "a matrix"]
)
def test_rows_that_are_no_whole_numbers_are_refused(backend, rows, method) -> None:
    """A mask was the rows 1 and 0, or fewer rows; floats were told in words of NumPy."""
    made, given = engine(backend), np.array(rows)
    said = rf"rows are a vector of whole numbers, got {given.shape} of {given.dtype}; of a mask"
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
        getattr(made, method)(given, iteration=0, first_sample=0)


def test_copies_are_copies(backend: str) -> None:
    made = engine(backend)
    before = everything(made)
    for array in everything(made).values():
        array[...] = 99.0
    assert_same(everything(made), before, rtol=0)


def test_memory_of_another_shape_is_refused(backend: str) -> None:
    made = engine(backend)
    memory = made.memory()
    kind, arrays = next(iter(memory.items()))
    name = next(iter(arrays))
    wrong = {**memory, kind: {**arrays, name: np.zeros((1, 1, 1))}}
    words = rf"array '{name}': got shape \(1, 1, 1\), expected"
    with pytest.raises(horn.ModelError, match=words):
        made.recall(wrong, 0)
    with pytest.raises(horn.ModelError, match=f"array '{name}' is missing, expected"):
        made.recall({**memory, kind: {k: a for k, a in arrays.items() if k != name}}, 0)


def test_arrays_of_another_name_or_shape_are_not_loaded(backend: str) -> None:
    made = engine(backend)
    name = next(iter(made.parameters()))
    with pytest.raises(horn.ModelError, match="no array 'elsewhere' in this network; it has"):
        made.load({"elsewhere": np.zeros(1)})
    words = rf"array '{name}': got shape \(1, 1, 1\), expected"
    with pytest.raises(horn.ModelError, match=words):
        made.load({name: np.zeros((1, 1, 1))})


def test_slots_of_another_name_or_shape_are_not_loaded(backend: str) -> None:
    """Not before data are bound either; what comes before the wrong one is not written."""
    optimizer = horn.Adam()
    made = backends.make(backend, Setup(network(), optimizer, "label", BATCH, "float64", 1))
    before = made.parameters()
    name = next(iter(before))
    slot = f"{name}/{optimizer.slots[0]}"
    given = {name: before[name] + 1.0}
    with pytest.raises(horn.ModelError, match=rf"array '{slot}': got shape \(1,\), expected"):
        made.load(given, slots={slot: np.zeros(1)})
    for wrong in ("elsewhere", f"{name}/elsewhere", f"elsewhere/{optimizer.slots[0]}"):
        with pytest.raises(horn.ModelError, match=f"no array '{wrong}' in this network"):
            made.load(given, slots={wrong: np.zeros(1)})
    assert_same(made.parameters(), before, rtol=0)


# what is there is found


THEIRS = """
from horn.backends.reference import Engine

made = []

class Mine(Engine):
    def __init__(self, setup):
        made.append(self)
        super().__init__(setup)

BACKEND = Mine
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("horn.backends.mine", "mine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["mine", "mine:Mine"])
def test_one_file_more_is_one_backend_more(name: str, folder: Path) -> None:
    (folder / "mine.py").write_text(THEIRS)
    assert "mine" in backends.names()
    job = horn.Job(network(), samples(), batch_size=BATCH, iterations=3, dtype="float64")
    run = horn.train(job, backend=name)
    assert run.model.backend == name
    module = importlib.import_module("horn.backends.mine" if name == "mine" else "mine")
    assert module.made
    expected = horn.train(job, backend="reference").model.parameters
    for array, value in expected.items():
        np.testing.assert_array_equal(run.model.parameters[array], value)


def test_what_is_no_backend_says_what_it_lacks(folder: Path) -> None:
    (folder / "mine.py").write_text("class Half:\n    runner = None\n    def step(self): ...\n")
    with pytest.raises(JobError, match=r"backend mine:Half: .* has no bind, outputs"):
        backends.load("mine:Half")
    with pytest.raises(JobError, match="backend mine:Nothing: .*has no attribute"):
        backends.load("mine:Nothing")
    with pytest.raises(JobError, match="no backend is called 'kernel'; did you mean kernels?"):
        backends.load("kernel")


class Bent(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(sum(horn.math.tanh(m.input * m.weight) for m in messages))


@pytest.mark.parametrize("chosen", ["reference", "kernels"])
def test_sums_of_many_floats_keep_their_digits(chosen: str) -> None:
    """Over the messages of sparse connections, and over the samples of a batch."""
    n = 200_000
    x = (0.1 + 0.01 * np.random.default_rng(0).random((1, n))).astype(np.float32)
    wide = horn.Network()
    wide.input(n)
    edges = horn.Sparse(csr=(np.array([0, n]), np.arange(n)))
    wide.output(1, neuron=Bent, connect=edges, bias=False, init=0.5, loss="squared_error")
    made = backends.make(chosen, Setup(wide, horn.SGD(0.1), "targets", 1, "float32", 1))
    expected = np.tanh(0.5 * x.astype(np.float64)).sum()
    assert made.outputs(x)[0, 0] == pytest.approx(expected, rel=1e-6)

    long = horn.Network()
    long.input(1)
    long.layer(3, init=0.5)
    long.output(1, init=0.3, loss="squared_error")
    made = backends.make(chosen, Setup(long, horn.SGD(0.1), "targets", n, "float32", 1))
    made.bind(Dataset(x.T, np.ones((n, 1), np.float32)))
    found = made.probe(np.arange(n), iteration=0, first_sample=0)["layer1.bias.gradient"]
    expected = 0.3 * np.mean(0.9 * 0.5 * x.astype(np.float64) - 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
