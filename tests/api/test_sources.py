"""Saved sources that run again: in several threads at once, and saved once more."""

from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import texts
from horn.errors import ModelError
from horn.module_source import is_same
from horn.sources import CapturedCode, SourceCapture

# ``first`` waits, while it runs again, for what the test does in between.
NEURONS = """
from __future__ import annotations
import threading
import horn

def gate(thing):
    getattr(threading.current_thread(), "wait", int)()
    return thing

first = gate(horn.Neuron)
from dataclasses import dataclass
from typing import ClassVar
from horn import math
from gains_of_a_test import gain as amplified
import gains_of_a_test as gains

class Bent(first):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(amplified(math.tanh(total)) * gains.tenth(1.0))

class Same(Bent):
    pass

@dataclass
class Settings:
    rate: float = 0.5
    names: ClassVar[tuple] = ("rate",)
"""
GAINS = """
def gain(z):
    return FACTOR * z

def tenth(z):
    return 0.1 * z

FACTOR = 3.0
"""
X = np.random.default_rng(0).normal(size=(5, 3))


@pytest.fixture
def neurons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of neurons, in a folder that is no longer found after ``forget``."""
    (tmp_path / "neurons_of_a_test.py").write_text(NEURONS)
    (tmp_path / "gains_of_a_test.py").write_text(GAINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("neurons_of_a_test")
    forget()


def forget() -> None:
    for name in ("neurons_of_a_test", "gains_of_a_test"):
        sys.modules.pop(name, None)


@pytest.fixture
def saved(neurons: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a model whose source is found nowhere else."""
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=neurons.Bent, name="bent")
    net.layer(4, neuron=neurons.Same, name="same")
    net.output(1, loss="squared_error")
    job = horn.Job(net, (X, X[:, :1]), epochs=1)
    path = tmp_path / "model.horn"
    horn.train(job, progress=False).model.save(path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    forget()
    return path


class Paused(threading.Thread):
    """A thread whose captured module stops in its middle until ``go``."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call, self.stopped, self.let = call, threading.Event(), threading.Event()
        self.start()
        assert self.stopped.wait(20)

    def wait(self) -> None:
        self.stopped.set()
        assert self.let.wait(20)

    def run(self) -> None:
        self.found = self.call()

    def go(self) -> Any:
        self.let.set()
        self.join(20)
        return self.found


def test_a_part_of_a_loaded_model_has_all_of_its_source(saved: Path, tmp_path: Path) -> None:
    """What its modules imported from one another was left out."""
    model = horn.Model.load(saved)
    model.cut("same").save(tmp_path / "part.horn")
    horn.Model.load(tmp_path / "part.horn").cut("same").save(tmp_path / "again.horn")
    expected = model.activations(X, "same")
    assert np.ptp(expected) > 0.01
    for name in ("part.horn", "again.horn"):
        np.testing.assert_array_equal(horn.Model.load(tmp_path / name).predict(X), expected)


def test_a_model_is_saved_whole_while_another_thread_loads_it(saved: Path, tmp_path: Path) -> None:
    """A module that another thread had half run was taken for that of the model."""
    model = horn.Model.load(saved)
    expected = model.activations(X, "same")
    other = Paused(lambda: horn.Model.load(saved))
    for layer in ("bent", "same"):
        model.cut(layer).save(tmp_path / f"{layer}.horn")
    at_once = horn.Model.load(saved).activations(X, "same")
    loaded = other.go()
    np.testing.assert_array_equal(at_once, expected)
    np.testing.assert_array_equal(loaded.activations(X, "same"), expected)
    np.testing.assert_array_equal(horn.Model.load(tmp_path / "same.horn").predict(X), expected)
    bent = horn.Model.load(tmp_path / "bent.horn").predict(X)
    np.testing.assert_array_equal(bent, model.activations(X, "bent"))


def test_each_of_two_threads_finds_its_own_module_while_it_runs(neurons: Any) -> None:
    """A dataclass looks its annotations up in the module of its name."""
    capture = SourceCapture()
    references = [capture.reference(neurons.Settings), capture.reference(neurons.Bent)]
    sources = capture.sources()

    def both() -> tuple[Any, Any]:
        code = CapturedCode(sources, "")
        return code.resolve(references[0]), code.resolve(references[1])

    first = Paused(both)
    second = Paused(both)
    made = [first.go()[0], second.go()[0]]
    assert [[field.name for field in fields(each)] for each in made] == [["rate"], ["rate"]]
    assert made[0] is not made[1]


def test_a_source_that_does_not_run_is_no_module_and_says_so_each_time() -> None:
    text = "def helper():\n    return 1\n\nvalue = 1 / 0\n"
    source = {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest(), "file": "bad.py",
              "package": "", "constants": {}, "run": [1, 4]}  # fmt: skip
    code, before = CapturedCode({"bad": source}, "here"), set(sys.modules)
    for _ in range(2):
        with pytest.raises(ModelError, match="saved source of bad.py, line 4, .*ZeroDivisionError"):
            code.resolve({"module": "bad", "name": "helper"})
        assert code.modules == {} and set(sys.modules) == before


def test_names_of_modules_are_free_again(saved: Path) -> None:
    """A process that loads a model often keeps the modules of the last load alone."""
    horn.Model.load(saved)
    before = {name for name in sys.modules if name.startswith("horn_source_")}
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(horn.Model.load, saved).result()
    assert {name for name in sys.modules if name.startswith("horn_source_")} == before


BENDER = """
class Bender(horn.Neuron):
    def forward(self, messages):
        self.feedforward(bend(sum(m.input * m.weight for m in messages)))
"""
INVERTED = "def right(z):\n    return abs(z)\n\ndef wrong(z):\n    return z\n\n"
CHOSEN = "flag = True\nif flag:\n    {}\nelse:\n    {}\n"
MADE = "def make(k):\n    def f(z):\n        return k * abs(z)\n    return f\n\nk = 2.0\n"


def given_again(folder: Path, namespace: dict[str, Any]) -> bool:
    """Whether the file of a model with a neuron answers as the model itself."""
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=namespace["Bender"])
    net.output(1, loss="squared_error")
    job = horn.Job(net, (X, X[:, :1]), epochs=1)
    model = horn.train(job, progress=False).model
    model.save(folder / "bender.horn")
    answers = horn.Model.load(folder / "bender.horn").predict(X)
    return bool(np.array_equal(answers, model.predict(X)))


def ran(text: str, folder: Path, name: str) -> dict[str, Any]:
    """The names of a module after it was imported."""
    (folder / f"{name}.py").write_text(f"import horn\n{text}{BENDER}")
    return vars(importlib.import_module(name))


@pytest.mark.parametrize(
    "text",
    [
        CHOSEN.format("def bend(z): return abs(z)", "def bend(z): return z"),
        CHOSEN.format("bend = lambda z: abs(z)", "bend = lambda z: z"),
        INVERTED + CHOSEN.format("bend = right", "bend = wrong"),
        CHOSEN.format("def bend(z): return abs(z)", "pass") + "def plain(z): return z\n",
        "def bend(z): return abs(z)\nflag = False\nif flag:\n    def bend(z): return z\n",
        "flag = 1\nmatch flag:\n    case 1:\n        def bend(z): return abs(z)\n"
        "    case _:\n        def bend(z): return z\n",
        "flag = 1\ntry:\n    1 / (flag - 1)\n    def bend(z): return z\n"
        "except ZeroDivisionError:\n    def bend(z): return abs(z)\n",
        "for flag in (1.0, 2.0):\n    def bend(z, k=flag): return k * abs(z)\n",
        INVERTED + "bend = right\ndef right(z): return z\n",
    ],
)
def test_a_function_is_saved_as_it_was_defined_whatever_a_condition_says_now(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ran(text, tmp_path, f"bent_{request.node.callspec.indices['text']}")
    module["flag"] = not module.get("flag")
    assert given_again(tmp_path, module)


@pytest.mark.parametrize(
    ("text", "is_now"),
    [
        (MADE + "bend = make(k)\n", ("k", 3.0)),
        (MADE + "bend = make(2.0 * k)\n", ("k", 3.0)),
        (INVERTED + "k = 0\nbend = [right, wrong][k]\n", ("k", 1)),
        ("k = 0\nbend = (lambda z: z) if k else (lambda z: abs(z))\n", ("k", 1)),
    ],
)
def test_a_function_that_its_statement_no_longer_gives_is_not_saved_as_another(
    text: str,
    is_now: tuple[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ran(text, tmp_path, f"chosen_{request.node.callspec.indices['text']}")
    assert given_again(tmp_path, module)
    module[is_now[0]] = is_now[1]
    with pytest.raises(ModelError, match="bend is now .* no statement of .* says so"):
        given_again(tmp_path, module)


def test_a_loops_variable_is_not_saved_as_what_the_loop_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ran(INVERTED + "for bend in (right, wrong):\n    pass\n", tmp_path, "looped")
    with pytest.raises(ModelError, match="bend is now wrong, but no statement of looped.py says"):
        given_again(tmp_path, module)


@pytest.mark.parametrize(
    "text",
    [
        f"def bend(z): return abs(z)\n{BENDER}\n1 / 0\ndef bend(z): return z\n",
        f"def bend(z): return abs(z)\n{BENDER}\n1 / 0{BENDER.replace('bend(', '2.0 * (')}",
    ],
)
def test_what_a_failed_text_did_not_reach_is_not_saved(text: str, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"horn": horn}
    with pytest.raises(ZeroDivisionError):
        exec(text, namespace)
    assert given_again(tmp_path, namespace)


COUNTS = """
def counting(least):
    def count(n):
        return 1 if n < least else count(n - 1) + count(n - 2)
    return count

def mutual():
    def even(n):
        return n == 0 or odd(n - 1)
    def odd(n):
        return n != 0 and even(n - 1)
    return even

made = counting(2)

def by_made(n):
    return made(n)
"""


def test_a_function_inside_a_function_that_calls_itself_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ran(COUNTS, tmp_path, "counts_itself")
    for function in (module["counting"](2), module["by_made"]):
        capture = SourceCapture()
        reference = capture.reference(function)
        assert CapturedCode(capture.sources(), "a model").resolve(reference)(5) == 8
    with pytest.raises(ModelError, match="odd reads 'even' of the function around it"):
        SourceCapture().reference(module["mutual"]())
    assert is_same(module["counting"](2), module["made"])
    assert not is_same(module["counting"](3), module["made"])


class BendAlike(horn.Neuron):
    def bent(self, z):
        return 0.5 * z


class Bend(horn.Neuron):
    bent = BendAlike.bent

    def forward(self, messages):
        self.feedforward(self.bent(sum(m.input * m.weight for m in messages)))


def test_a_class_is_not_looked_for_where_one_is_whose_name_begins_as_its_own():
    assert texts.code_of(Bend) is Bend.forward.__code__
