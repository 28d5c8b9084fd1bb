"""Checks that a written backward is the gradient of its forward.

Each layer whose class writes ``backward`` is tried alone, the others derived, in double precision
on a few samples of the job's own data: its pushes, also to its Parameters, and its deltas are
compared with central finite differences of the loss.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from horn import explain
from horn.activations import ACTIVATIONS, Activation
from horn.backends import Array, Setup
from horn.backends.kernels import Engine, Runner
from horn.compiler import lower
from horn.data import Dataset
from horn.errors import CompileError, ModelError, shown_file
from horn.job import Job
from horn.language.layers import Reading
from horn.language.scope import push_of
from horn.language.source import source_of
from horn.layers import Layer
from horn.network import Network
from horn.neuron import has_backward
from horn.optimizers import SGD, Direct
from horn.program import Program

SAMPLES, ENTRIES, STEP, TOLERANCE = 6, 4, 1e-5, 1e-4
ROUNDING = 16 * 2.0**-52  # of a difference of two losses, relative to one


@dataclass(frozen=True)
class ComparedNumber:
    """A gradient beside its finite difference. what : the user's call that makes it."""

    array: str
    place: tuple[int, ...]
    written: float
    expected: float
    what: str

    @property
    def error(self) -> float:
        """The difference relative to the larger of the two."""
        return _error(self.written, self.expected)


def _error(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-7)


@dataclass(frozen=True)
class LayerCheck:
    """The check of one layer. backward : "written", "derived" or "none". worst : the number that
    differs most, if any was compared.
    """

    layer: str
    neuron: str
    backward: str
    runs_as: str
    kind: str
    worst: ComparedNumber | None = None
    compared: int = 0

    @property
    def ok(self) -> bool:
        return self.worst is None or self.worst.error <= TOLERANCE


def check_network(job: Job) -> list[LayerCheck]:
    """A row per layer. Raises CompileError if a neuron cannot be compiled."""
    net, reading = job.network, Reading()
    ways = explain.runs_as(net, reading)
    compared = {layer: list(entries) for layer, entries in _comparisons(job)}
    rows = []
    for layer in net.layers[1:]:
        written = has_backward(layer.neuron) and layer.kind != "output"
        kind = "interpreted" if layer.neuron.interpreted else explain.kind(layer, reading)
        if kind == "local rule" and not written:
            backward = "none (learns from its push)"
        elif not net.is_judged and not written:
            backward = "none (no loss)"
        else:
            backward = "written" if written else "derived"
        entries = compared.get(layer, [])
        worst = max(entries, key=lambda e: e.error, default=None)
        names = layer.name, layer.neuron.__name__
        rows.append(LayerCheck(*names, backward, ways[layer.name], kind, worst, len(entries)))
    return rows


def check_job(job: Job) -> None:
    """Raise ModelError at the first layer whose written backward is not the gradient of its
    forward.
    """
    for layer, entries in _comparisons(job):
        for entry in entries:
            if entry.error > TOLERANCE:
                raise ModelError(describe(layer, entry))


POINTS = tuple(0.5 * k - 2.9 for k in range(13))  # z where derivatives are compared; not 0


def check_activations(network: Network) -> None:
    """Raise ModelError at the first activation whose written derivative is not that of its f, by
    central differences in double precision.
    """
    for layer in network.layers[1:]:
        activation = layer.activation
        if ACTIVATIONS.get(activation.name) is activation:
            continue
        for what, written in (("df", activation.df), ("df_at", activation.df_at)):
            if written is None:
                continue
            for z in POINTS:
                place = _differs(activation, what, z)
                if place:
                    raise ModelError(f"{layer.name}: activation {activation.name!r}: {place}")


def _differs(activation: Activation, what: str, z: float) -> str:
    """The sentence on a written derivative that is not the slope at z; "" where it is the slope,
    or where there is no slope.
    """
    try:
        y = float(activation(z))
        given = float(activation.df(y) if what == "df" else activation.df_at(z))  # type: ignore
        wide, narrow = (
            (float(activation(z + h)) - float(activation(z - h))) / (2 * h)
            for h in (STEP, STEP / 2)
        )
    except (ArithmeticError, ValueError, TypeError, AttributeError, CompileError):
        return ""  # f is undefined here, or is for the compiler alone
    if not np.isfinite([y, given, wide, narrow]).all():
        return ""
    scale = max(abs(given), abs(narrow), 1e-3)
    if abs(wide - narrow) > 0.1 * TOLERANCE * scale or abs(given - narrow) <= TOLERANCE * scale:
        return ""
    of = f"df({y:.6g}), of the output," if what == "df" else f"df_at({z:.6g})"
    hint = ""
    if what == "df":
        hint = "; df takes the output y = f(z): one that takes z is df_at"
    return (
        f"{of} is {given:.6g}, but f has the slope {narrow:.6g} at z = {z:.6g} by finite "
        f"differences{hint}. Correct it, leave it out and horn derives it, or pass check=False to "
        f"the Job if it is meant to differ"
    )


def describe(layer: Layer, entry: ComparedNumber) -> str:
    source = source_of(layer.neuron.backward)  # type: ignore[attr-defined]
    nodes = ast.walk(source.tree)
    calls = [n.lineno for n in nodes if isinstance(n, ast.Call) and _word(n) == entry.what]
    line = source.first_line + min(calls, default=1) - 1
    place, ratio = ", ".join(map(str, entry.place)), ""
    if abs(entry.expected) > 1e-9:
        ratio = f" ({entry.written / entry.expected:.6g} times what it should be)"
    return (
        f"{shown_file(source.file)}:{line}, in {layer.neuron.__name__}.backward: {entry.what} is "
        f"not the gradient of the loss. d loss / d {entry.array}[{place}] is {entry.expected:.6g} "
        f"by finite differences, but backward gives {entry.written:.6g}"
        f"{ratio}. Correct it, leave backward out and horn derives it, or pass check=False to the "
        f"Job if it is meant to differ"
    )


def _word(call: ast.Call) -> str:
    """A call of push or backpropagate, as ``ComparedNumber.what``; "" for others."""
    if not isinstance(call.func, ast.Attribute):
        return ""
    if call.func.attr != "push":
        return f"self.{call.func.attr}(...)"
    to = [key.value.value for key in call.keywords if isinstance(key.value, ast.Constant)]
    return push_of(str(to[0]) if to else "")


def _comparisons(job: Job) -> Iterator[tuple[Layer, Iterator[ComparedNumber]]]:
    """The layers whose written backward can be compared, each with ``_compare``."""
    layers = [
        layer
        for layer in job.network.layers[1:]
        if has_backward(layer.neuron) and layer.kind != "output" and not layer.neuron.interpreted
    ]
    if layers and job.network.is_judged and job.target is not None:
        tried = _Loss(job)
        for layer in layers:
            yield layer, _compare(tried, job, layer)


def _compare(tried: _Loss, job: Job, layer: Layer) -> Iterator[ComparedNumber]:
    """The gradients of the arrays that this layer's backward decides, beside finite differences."""
    net = job.network
    rng = np.random.default_rng(net.seed)
    own = [array for link in layer.links for array in link.weights.values()]
    mine = dict.fromkeys([*own, *layer.biases.values()], "self.backpropagate(...)")
    if not isinstance(job.optimizer, Direct):  # of Direct the pushes are updates
        links = [link for other in net.layers for link in other.links if link.source is layer]
        pushed = {
            array: push_of(name if len(link.names) > 1 else "")
            for link in links
            for name, array in link.weights.items()
        }
        pushed |= {f"{layer.name}.{n}": f'self.push(..., to="{n}")' for n in layer.parameters}
        mine = pushed | mine
    gradients = tried.gradients(layer, mine)
    for name, what in mine.items():
        gradient = gradients.get(name)
        if gradient is None or not gradient.size:
            continue
        flat = np.abs(gradient).ravel()
        largest = int(flat.argmax())  # a wrong factor shows where the gradient is large
        others = rng.choice(flat.size, min(ENTRIES - 1, flat.size), replace=False)
        for index in dict.fromkeys([largest, *map(int, others)]):
            place = tuple(int(k) for k in np.unravel_index(index, gradient.shape))
            written = float(gradient[place])
            expected = tried.slope(name, place, written)
            if expected is not None:
                yield ComparedNumber(name, place, written, expected, what)


class _Loss:
    """The training loss on a few samples, as a function of the learned arrays. Of each layer whose
    gradients are asked for a step is compiled; all others are the loss alone.
    """

    def __init__(self, job: Job) -> None:
        self.network = job.network.freezing(())  # frozen arrays are compared, too
        self.optimizer = Direct(0.0) if isinstance(job.optimizer, Direct) else SGD(0.0)
        self.rate = job.optimizer.rate(0)  # as neurons read it; the weights are put back
        self.data: Dataset = job.data[:SAMPLES]
        self.setup = Setup(self.network, self.optimizer, job.target, len(self.data), "float64")
        self.engine = Engine(self.setup)
        self.target = self.engine.target_kind(self.data)
        self.arrays = self.engine.arrays
        self.program = lower.loss_program(self.network, self.optimizer, self.target)
        self.runner = self.made(self.program)

    def made(self, program: Program) -> Runner:
        self.engine.allocate(program)
        runner = Runner(program, self.arrays, self.setup, len(self.data))
        runner.bind(self.data)
        return runner

    def run(self, runner: Runner) -> None:
        n = len(self.data)
        scalars = {"learning_rate": self.rate, "iteration": 0.0, "updates": 1.0}
        runner.run(np.arange(n), scalars | {"rows": float(n), "inv_rows": 1 / n}, 0)

    def loss(self) -> float:
        assert self.program.loss is not None
        self.run(self.runner)
        return float(self.runner.value(self.program.loss).mean())

    def gradients(self, layer: Layer, wanted: Iterable[str]) -> dict[str, Array]:
        """The gradients of these arrays with the layer's written backward, by name, in the arrays'
        shapes; a program's may be flat.
        """
        others = self.engine.memory()["parameter"].keys() - set(wanted)
        network, written = self.network.freezing(others), frozenset({layer.index})
        program = lower.training_program(
            network, self.optimizer, self.target, fuse=False, written=written
        )
        runner = self.made(program)
        kept = {name: array.copy() for name, array in self.arrays.items() if name not in others}
        self.run(runner)
        for name, array in kept.items():
            self.arrays[name][...] = array
        return {
            name: runner.value(program.probes[f"{name}.gradient"]).reshape(array.shape)
            for name, array in kept.items()
            if f"{name}.gradient" in program.probes
        }

    def slope(self, name: str, place: tuple[int, ...], written: float) -> float | None:
        """The central difference, or None where the loss has a kink within the step, or rounding
        hides how it differs from ``written``; of half the step, unless the whole one agrees.
        """
        array = self.arrays[name]
        start = float(array[place])
        found = []
        for h in (STEP, STEP / 2):
            array[place] = start + h
            up = self.loss()
            array[place] = start - h
            down = self.loss()
            array[place] = start
            found.append((up - down) / (2 * h))
            if _error(written, found[0]) <= 0.1 * TOLERANCE:
                return found[0]
        wide, narrow = found
        smooth = abs(wide - narrow) <= 0.1 * TOLERANCE * max(abs(wide), abs(narrow)) + 1e-9
        hidden = abs(narrow - written) <= ROUNDING * abs(up) / STEP
        return narrow if smooth and not hidden else None
