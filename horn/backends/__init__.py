"""Backends: ways to run the same network, with one face.

``python`` is the interpreter (horn/interpreter), the specification. ``reference`` runs the
compiled program with NumPy, the judge. ``kernels`` runs it with Cython and BLAS, the default. A
backend is never replaced by another silently. Each file here is one, its last line ``BACKEND``
(horn/registry.py); files with an underscore are what compiled ones share. How the kernels will run
a program, before there is a tape, is ``horn.scheduling``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from horn import registry
from horn.aggregates import Aggregate
from horn.data import Dataset
from horn.errors import DataError, JobError, ModelError
from horn.layers import MAX_STEPS, Layer
from horn.network import Network
from horn.optimizers import Optimizer
from horn.program import TargetRead, Targets

Array = np.ndarray[Any, Any]
Memory = dict[str, dict[str, Array]]
Places = slice | Array  # along one axis of a whole array
INTERPRETER = "python"  # the one for neurons that the compiler is not to read


@dataclass(frozen=True)
class Setup:
    """What an engine is made from. ``optimizer`` is None for an engine that only predicts.

    target : "labels", "input" or None, as in Job. batch_size : the largest batch of ``step``.
    threads : at most so many; None means the cores of the machine. aggregates : what ``watch``
    measures, their layers by name. recompute : as in Job.
    """

    network: Network
    optimizer: Optimizer | None = None
    target: str | None = "labels"
    batch_size: int = 32
    dtype: str = "float32"
    threads: int | None = None
    aggregates: tuple[Aggregate, ...] = ()
    recompute: str | None = None


class Engine(Protocol):
    """A network with its learned arrays, ready to run.

    Arrays are named as in ``Network.initial_parameters`` and always seen in the user's shapes:
    weights (fan_out, fan_in) or (n_edges,), the rest (fan_out,). Slots of the optimizer are named
    "<array>/<slot>".
    """

    @property
    def updates(self) -> int:
        """How many the arrays have had."""

    def bind(self, data: Dataset) -> None:
        """The data set that ``step`` reads its rows from."""

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """One update from the samples ``rows`` (int64 indices into the data). Returns the mean loss
        before it (0.0 without a loss).

        ``first_sample`` is the global number of the first row: draws of row k use first_sample + k.

        Of data in pieces (``Dataset.pieces``) the sequences of a batch begin in the step of their
        first pieces, and go on in the next ones.
        """

    def outputs(self, x: Array, lengths: Array | None = None) -> Array:
        """What the last layer sends, in inference: (n, features) as stored -> (n, n_outputs). ``x``
        is already scaled. lengths : of sequences that end early, as ``Dataset`` has them; behind
        the end is what was there.
        """

    def losses(self, data: Dataset) -> tuple[float, int]:
        """In inference over a whole data set: the sum of the losses, and how many answers are right
        (``horn.metrics.answers``; 0 where there is no right and wrong).
        """

    def results(self, data: Dataset) -> tuple[float, int, Array, list[float]]:
        """As ``losses``, and what the last layer sends: (n, n_outputs), of several outputs side by
        side; and the sum of each loss by itself, in the order of ``Network.judged``.
        """

    def watch(self, data: Dataset) -> tuple[float, int, list[float]]:
        """As ``losses``, and what each aggregate's numbers of all samples are combined to: their
        sum (for a mean too), minimum or maximum.
        """

    def probe(self, rows: Array, *, iteration: int, first_sample: int) -> dict[str, Array]:
        """What a training step computes, without the update; for tests, ``horn check`` and the
        curious.

        "<layer>.output" (b, n) for every layer (the input too), "<layer>.delta" (b, n) for
        weighted-sum layers that a delta reaches, "<array>.gradient" in the array's shape (mean over
        the batch; before decay and clipping), "loss" ().
        """

    def parameters(self) -> dict[str, Array]:
        """Copies of the learned arrays."""

    def states(self) -> dict[str, Array]:
        """Copies of the State arrays, as kept between batches."""

    def slots(self) -> dict[str, Array]:
        """Copies of the optimizer's memory; empty without an optimizer."""

    def load(
        self,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        slots: Mapping[str, Array] | None = None,
        updates: int = 0,
    ) -> None:
        """Overwrite the arrays; ``updates`` is how many updates they have had (what Adam's t
        counts, and predict's iteration).
        """

    def memory(self) -> Memory:
        """All that steps change, not copied, to look at before the next one: {"parameter": arrays,
        "state": ..., "slot": ...}. After ``bind``; in a group, this task's share. Of data in
        pieces also "heard": what the sequences of the last batch take along,
        ``Network.remembered``, (batch_size, steps, n) each.
        """

    def recall(self, memory: Mapping[str, Mapping[str, Array]], updates: int) -> None:
        """Overwrite all that ``memory`` has, after ``bind``: the engine goes on as the one that it
        was taken from would have. More slots than it has are left aside.

        Raises
        ------
        ModelError : an array is missing, or of another shape.
        """

    def places(self, name: str) -> tuple[Places, ...]:
        """What of each axis of an array of ``memory`` this engine has."""


class StepEngine(Engine, Protocol):
    """An engine of a network of sequences that also answers one as it comes, or in pieces."""

    def outputs(self, x: Array, lengths: Array | None = None, pieces: int = 1) -> Array:
        """As ``Engine.outputs``; so many rows in turn are one sequence."""

    def go_on(self, x: Array, at: int) -> Array:
        """What the last layer sends for a sequence x (1, steps * features), as ``outputs``, which
        goes on where the one before it ended, after ``at`` steps in all.
        """

    def last(self, name: str) -> Array:
        """What a layer sent at the last step of ``go_on`` on a network of one step, or what a State
        of its sequence (``per="sample"``) is after it; of any shape, its numbers in order.
        """

    def forget(self) -> None:
        """What ``go_on`` gets next is the beginning of a sequence."""


class Backend(Engine, Protocol):
    """What a backend's file names: an engine that is made from a setup.

    runner : what runs one compiled program (``_compiled.Runner``), which tasks can divide; None
    where the compiler is not asked.
    """

    runner: ClassVar[Any]

    def __init__(self, setup: Setup) -> None: ...


def fitting(
    own: Mapping[str, Mapping[str, Array]], given: Mapping[str, Mapping[str, Array]]
) -> Iterator[tuple[Array, Array]]:
    """Each array of an engine's memory with what it is to become; all are looked at first."""
    found = []
    for kind, arrays in own.items():
        for name, array in arrays.items():
            new = given.get(kind, {}).get(name)
            if new is None or new.shape != array.shape:
                got = "it is missing" if new is None else f"its shape is {new.shape}"
                raise ModelError(f"{kind} {name}: {got}, expected {array.shape}")
            found.append((array, new))
    return iter(found)


def combined(aggregate: Aggregate, before: float, numbers: Array) -> float:
    """An aggregate of the samples so far and of some more, whose numbers (n,) these are."""
    if aggregate.monoid == "sum":
        return before + float(numbers.sum(dtype=np.float64))
    largest = np.max if aggregate.monoid == "max" else np.min
    return float(largest(numbers, initial=before))


def number_of_step(piece: int, steps: int) -> int:
    """What is added to the number of a sample, by which it draws, in a piece of its sequence; of
    more steps than draws have room for they begin anew.
    """
    return piece % (MAX_STEPS // steps) * steps << 32


def names() -> list[str]:
    """The backends there are."""
    return registry.names(__name__)


def load(name: str) -> type[Backend]:
    """A backend by its name, or module:Class for one of the user's.

    Raises
    ------
    JobError : there is none, or it lacks something; says which there are, or what.
    """
    found = registry.load(__name__, "backend", name)
    methods = [x for x, value in vars(Engine).items() if x[0] != "_" and callable(value)]
    missing = [x for x in ("runner", *methods) if not hasattr(found, x)]
    if missing:
        raise JobError(f"backend {name}: {found!r} has no {', '.join(missing)}")
    backend: type[Backend] = found
    return backend


def make(backend: str, setup: Setup) -> Engine:
    """The engine of a backend, by name, with the network's initial arrays.

    A network with an ``@horn.interpreted`` neuron runs on "python", as its class says.
    """
    load(backend)  # a name that is none is said, whatever runs
    return load(in_use(backend, setup.network))(setup)


def target_kind(network: Network, target: str | None, data: Dataset) -> Targets:
    """What Target statement reads a data set; None without a loss or labels. Of several outputs how
    each that is compared with targets reads them, nothing where losses are between layers alone.
    """
    if not network.is_judged or target is None:
        return None
    if not network.compared:
        return ()
    if target == "input":
        return "input"
    if data.y is None:
        return None
    if not network.has_several:
        return _kind(network.last, data.has_labels)
    places = {part.name: part for part in data.targets}
    if missing := [name for name in network.compared if name not in places]:
        raise DataError(f"{data.name}: there are no targets of {', '.join(missing)}")
    return tuple(
        TargetRead(name, _kind(output, places[name].is_labels), places[name].first)
        for output in network.judged
        if (name := output.name) in network.compared
    )


def _kind(output: Layer, has_labels: bool) -> str:
    if has_labels:
        return "label" if output.size > 1 else "value"
    return "values"


def in_use(backend: str, network: Network) -> str:
    """What runs a network when ``backend`` is asked for: "python" if any neuron is interpreted."""
    return INTERPRETER if any(layer.neuron.interpreted for layer in network.layers) else backend


def is_compiled(backend: str, network: Network) -> bool:
    """Whether the compiler reads the network for what runs it; only then can tasks divide it."""
    return load(in_use(backend, network)).runner is not None
