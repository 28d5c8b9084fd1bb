"""Backends: engines that run the same network behind one interface.

``python`` is the interpreter (horn/interpreter), the specification. ``reference`` runs the
compiled program with NumPy, the judge. ``kernels`` runs it with Cython and BLAS, the default. A
backend is never replaced by another silently. Each file here is one, its last line ``BACKEND``
(horn/registry.py); files with an underscore hold shared code of compiled ones. ``horn.scheduling``
decides how the kernels will run a program, before there is a tape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from horn import registry
from horn.aggregates import Aggregate
from horn.data import Dataset
from horn.errors import DataError, JobError, ModelError
from horn.layers import Layer
from horn.network import Network
from horn.optimizers import Optimizer
from horn.program import TargetRead, Targets

if TYPE_CHECKING:
    from horn.language.layers import Reading  # the interpreter needs none

Array = np.ndarray[Any, Any]
Memory = dict[str, dict[str, Array]]
Places = slice | Array  # along one axis of a whole array
INTERPRETER = "python"  # the backend of interpreted neurons


@dataclass(frozen=True)
class Setup:
    """The settings of an engine. ``optimizer`` is None for an engine that only predicts.

    target : "labels", "input" or None, as in Job. batch_size : the largest batch of ``step``.
    threads : the most; None means the cores of the machine. aggregates : those that ``watch``
    measures, their layers by name. recompute : as in Job. reading : what was read of the network
    before, for checks; None reads it anew.
    """

    network: Network
    optimizer: Optimizer | None = None
    target: str | None = "labels"
    batch_size: int = 32
    dtype: str = "float32"
    threads: int | None = None
    aggregates: tuple[Aggregate, ...] = ()
    recompute: str | None = None
    reading: Reading | None = None


class Engine(Protocol):
    """A network with its learned arrays, ready to run.

    Arrays are named as in ``Network.initial_parameters`` and always seen in the user's shapes:
    weights (fan_out, fan_in) or (n_edges,), the rest (fan_out,). Slots of the optimizer are named
    "<array>/<slot>".
    """

    @property
    def updates(self) -> int:
        """The number of updates that the arrays have had."""

    def bind(self, data: Dataset) -> None:
        """Set the data set that ``step`` reads its rows from."""

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """Make one update from the samples ``rows`` (int64 indices into the data, from 0), at least
        one and at most ``batch_size``. Returns the mean loss before it (0.0 without a loss).
        Raises ValueError (how many, or no whole numbers), IndexError (which).

        ``first_sample`` is the global number of the first row: draws of row k use first_sample + k.

        With data in pieces (``Dataset.pieces``) the sequences of a batch begin in the step of their
        first pieces, and go on in the next ones.
        """

    def outputs(self, x: Array, lengths: Array | None = None, *, first: int = 0) -> Array:
        """The outputs of the last layer, in inference: (n, features) as stored -> (n, n_outputs).
        ``x`` is already scaled. lengths : of sequences that end early, as in ``Dataset``; behind
        the end the last output is repeated; of no rows there are none, (0, n_outputs). first : the
        number of its first row, for draws, where more is asked than once.
        """

    def losses(self, data: Dataset) -> tuple[float, int]:
        """The sum of the losses in inference over a whole data set, and the number of right answers
        (``horn.answers.answer_kind``; 0 where there is no right and wrong).
        """

    def results(self, data: Dataset) -> tuple[float, int, Array, list[float]]:
        """The results of ``losses``, the outputs of the last layer, (n, n_outputs), several outputs
        side by side, and the sum of each loss by itself, in the order of ``Network.judged``.
        """

    def watch(self, data: Dataset) -> tuple[float, int, list[float]]:
        """The results of ``losses``, and each aggregate's numbers of all samples combined: their
        sum (for a mean too), minimum or maximum.
        """

    def probe(self, rows: Array, *, iteration: int, first_sample: int) -> dict[str, Array]:
        """The values of a training step, without the update; for tests, ``horn check`` and the
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
        """Overwrite the arrays; ``updates`` is the number of their updates so far (Adam's t, and
        the iteration in predict).
        """

    def memory(self) -> Memory:
        """All that steps change, not copied, to look at before the next one: {"parameter": arrays,
        "state": ..., "slot": ...}. After ``bind``; in a group, this task's share. With data in
        pieces also "heard": the numbers that sequences of the last batch carry on,
        ``Network.remembered``, (batch_size, steps, n) each.
        """

    def recall(self, memory: Mapping[str, Mapping[str, Array]], updates: int) -> None:
        """Overwrite all that ``memory`` has, after ``bind``: the engine continues as its source
        would have. Slots that it does not have are ignored.

        Raises
        ------
        ModelError : an array is missing, or of another shape.
        """

    def places(self, name: str) -> tuple[Places, ...]:
        """The places of each axis of an array of ``memory`` that this engine has."""


class StepEngine(Engine, Protocol):
    """An engine of a network of sequences that also answers step by step, or in pieces."""

    def outputs(
        self, x: Array, lengths: Array | None = None, pieces: int = 1, *, first: int | Array = 0
    ) -> Array:
        """The outputs as ``Engine.outputs``; ``pieces`` rows in turn are one sequence. first : also
        the numbers of all sequences, for draws, where they do not follow one another.
        """

    def go_on(self, x: Array, at: int, sample: int = 0) -> Array:
        """The outputs for a sequence x (1, steps * features), as ``outputs``, which continues where
        the one before it ended, after ``at`` steps in all. It draws as the row ``sample`` of
        ``outputs`` does.
        """

    def last(self, name: str) -> Array:
        """The output of a layer at the last step of ``go_on`` on a network of one step, or a
        carried State (``per="sample"``) after it; of any shape, its numbers in order.
        """

    def forget(self) -> None:
        """Begin a new sequence with the next ``go_on``."""


class Backend(Engine, Protocol):
    """The class that a backend's file names: an engine made from a setup.

    runner : the class that runs one compiled program (``_compiled.Runner``), which tasks can
    divide; None without the compiler.
    """

    runner: ClassVar[Any]

    def __init__(self, setup: Setup) -> None: ...


def check_fits(own: Mapping[str, Array], name: str, new: Array) -> None:
    """Check that an array has the name and the shape of one of an engine's. Raises ModelError."""
    if name not in own:
        raise ModelError(f"no array {name!r} in this network; it has {', '.join(own) or 'none'}")
    if np.shape(new) != own[name].shape:
        raise ModelError(f"array {name!r}: got shape {np.shape(new)}, expected {own[name].shape}")


def check_batch(rows: Array, batch_size: int) -> None:
    """Check that these may be the samples of a step, whatever the data. Raises ValueError."""
    rows = np.asarray(rows)
    if rows.size and (rows.dtype.kind not in "iu" or rows.ndim != 1):
        raise ValueError(
            f"rows are a vector of whole numbers, got {rows.shape} of {rows.dtype}; "
            "of a mask pass np.flatnonzero(mask)"
        )
    if not 0 < len(rows) <= batch_size:
        raise ValueError(
            f"got {len(rows)} rows for a batch of {batch_size}; pass 1 to {batch_size}"
        )


def check_rows(rows: Array, n_samples: int) -> None:
    """Check that a data set has these samples. Raises IndexError."""
    if len(rows) and not 0 <= np.min(rows) <= np.max(rows) < n_samples:
        raise no_rows(rows, n_samples)


def no_rows(rows: Array, n_samples: int) -> IndexError:
    """The complaint about samples that a data set does not have."""
    return IndexError(f"rows must be in 0 to {n_samples - 1}, got {rows!r}")


def fitting(
    own: Mapping[str, Mapping[str, Array]], given: Mapping[str, Mapping[str, Array]]
) -> Iterator[tuple[Array, Array]]:
    """Each array of an engine's memory with its new value; all are checked before the first."""
    found = []
    for kind, arrays in own.items():
        for name, array in arrays.items():
            if name not in given.get(kind, {}):
                raise ModelError(f"array {name!r} is missing, expected {array.shape}")
            check_fits(arrays, name, given[kind][name])
            found.append((array, given[kind][name]))
    return iter(found)


def combined(aggregate: Aggregate, before: float, numbers: Array) -> float:
    """Combine an aggregate of the samples so far with the numbers (n,) of further ones."""
    if aggregate.monoid == "sum":
        return before + float(numbers.sum(dtype=np.float64))
    largest = np.max if aggregate.monoid == "max" else np.min
    return float(largest(numbers, initial=before))


def number_of_step(piece: int, steps: int) -> int:
    """The offset to a sample's number, by which it draws, in a piece of its sequence: its first
    step, whatever the steps of pieces are. After 2**30 steps the numbers begin anew.
    """
    return piece * steps % 2**30 << 32


def names() -> list[str]:
    """The names of all backends."""
    return registry.names(__name__)


def load(name: str) -> type[Backend]:
    """A backend by its name, or module:Class for one of the user's.

    Raises
    ------
    JobError : there is none, or it lacks something; names those that exist, or what it lacks.
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
    load(backend)  # a wrong name is an error, whichever runs
    return load(in_use(backend, setup.network))(setup)


def target_kind(network: Network, target: str | None, data: Dataset) -> Targets:
    """The way in which a Target statement reads a data set; None without a loss or labels. With
    several outputs the reads of those compared with targets, () where all losses are between
    layers.
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
    """The backend that runs a network under this setting: "python" if any neuron is interpreted."""
    return INTERPRETER if any(layer.neuron.interpreted for layer in network.layers) else backend


def is_compiled(backend: str, network: Network) -> bool:
    """Whether the compiler reads the network for that backend; only then can tasks divide it."""
    return load(in_use(backend, network)).runner is not None
