"""What computes the answers of a model: engines of its network as it was when it learned."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from horn import metrics
from horn.backends import Array, Setup, is_compiled, make, target_kind
from horn.data import Dataset
from horn.data.lanes import longer
from horn.description import Description, rebuild
from horn.evaluation import measure
from horn.initial import sparse_edges
from horn.metrics import Metric
from horn.model_inputs import CHUNK_ROWS
from horn.model_stream import NUMBERS, outputs_of
from horn.network import Network
from horn.network_checks import check_as_made
from horn.sources import CapturedCode

if TYPE_CHECKING:
    from horn.backends import Engine

PIECE_STEPS = 32  # of long sequences at once: to begin a piece takes as long as some steps,
PIECE_NUMBERS = 1 << 14  # and more outputs of all neurons leave room for few sequences at once
DESCRIBED = ("network", "sources", "metrics")  # entries that ``Description`` writes


@dataclass
class ModelEngines:
    """The engines of one model, made when they are first needed. Threads may ask at the same time:
    one waits for the other.

    code : of the neurons, kept when it learned; None if nothing was. metrics : what the model
    measures. Other fields are those of ``Model``. learned : the network made of what was kept, as
    of a file; None as long as the neurons are what they were. lock : who has it computes. cuts :
    models of parts, by their last layer.
    """

    network: Network
    parameters: Mapping[str, Array]
    states: Mapping[str, Array]
    dtype: str
    target: str | None
    backend: str
    threads: int | None
    facts: Mapping[str, Any]
    code: Description | None
    metrics: tuple[Metric, ...]
    learned: Network | None = None
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    cuts: dict[str, Any] = field(default_factory=dict, init=False)
    _engine: Engine | None = field(default=None, init=False)
    _of_pieces: Any = field(default=None, init=False)  # it answers each step of a long sequence
    _is_of_former: bool = field(default=False, init=False)  # whose numbers the engine has
    _compiled: set[object] = field(default_factory=set, init=False)  # what they computed before

    @property
    def updates(self) -> int:
        return int(self.facts.get("iteration", 0))

    def outputs(self, data: Dataset) -> Iterator[tuple[slice, Array]]:
        """The outputs of all output layers, side by side, of so many samples at a time."""
        n = len(data)
        is_as_read = data.x.dtype == self.dtype and data.scale == 1 and data.normalization is None
        buffer = np.empty((min(n, CHUNK_ROWS), data.n_features), self.dtype)
        for start in range(0, n, CHUNK_ROWS):
            rows = slice(start, min(start + CHUNK_ROWS, n))
            x = buffer[: rows.stop - start]
            if is_as_read:
                x[...] = data.x[rows]
            else:
                data.read(np.arange(start, rows.stop), x)
            lengths = None if data.lengths is None else data.lengths[rows]
            with self.lock:
                asked = "answers" if lengths is None else "answers of different lengths"
                found = self._ready(asked).outputs(x, lengths=lengths, first=start)
            yield rows, found

    def outputs_of_pieces(self, data: Dataset, drawn: Array | None = None) -> Array:
        """The outputs at each step, side by side, of sequences with more steps than the network;
        those of the last step behind it. drawn : as of ``outputs_of``.
        """
        with self.lock:
            engine = self._ready_for_pieces("answers of pieces")
            sent = outputs_of(engine, data, engine.network, self.dtype, drawn)
        if data.lengths is not None:
            for row, n in zip(sent, data.lengths, strict=True):
                row[n:] = row[n - 1]
        return sent

    def measured(self, data: Dataset, wanted: tuple[Metric, ...]) -> dict[str, float]:
        """The losses and metrics of these data."""
        steps = steps_of_piece(self.network)
        with self.lock:
            if data.pieces > 1 and self.network.steps < steps and data.x.size <= NUMBERS:
                data = longer(data, self.network.n_inputs, steps)
                kind = target_kind(self.network, self.target, data)
                pieces = self._ready_for_pieces((kind, data.lengths is None, "of pieces"))
                return measure(pieces, pieces.network, data, self.target, wanted)
            engine = self._ready_to_judge(data)
            return measure(engine, self.network, data, self.target, wanted)

    def judged(self, data: Dataset) -> Array:
        """The outputs by which ``measured`` judges these data: (n, n_outputs), of each step (n,
        steps, n_outputs).
        """
        with self.lock:
            return self._ready_to_judge(data).results(data)[2]

    def _ready_for_pieces(self, asked: object) -> Any:
        """The engine of long sequences, whose outputs answer each step. Call it with the lock."""
        self._check_learned(asked)
        if self._of_pieces is None:
            network = self.as_learned()
            self._of_pieces = self._engine_of(network.of_steps(steps_of_piece(network)))
        return self._of_pieces

    def _ready_to_judge(self, data: Dataset) -> Engine:
        return self._ready((target_kind(self.network, self.target, data), data.lengths is None))

    def as_learned(self) -> Network:
        """The network as it was when it learned. Its neurons may read other numbers by now, of a
        cell that was run again or of a class that was changed; then it is made of what was kept.
        """
        code = self.code
        with self.lock:  # a thread may be about to take the engine
            if self.learned is not None or not code or not code.manifest:
                return self.learned or self._as_made()
            kept = len(code.manifest.get("metrics", ())) == len(self.metrics)
            now = Description.of(self.network, self.metrics if kept else ()).manifest
            if any(now.get(part) != code.manifest.get(part) for part in DESCRIBED):
                arrays = {**self.parameters, **sparse_edges(self.network)}
                self.learned = rebuild(code.manifest, arrays, "the model").of_model()
                self.metrics = metrics_of(code.manifest, "the model") if kept else self.metrics
                self._engine = self._of_pieces = None
                self.cuts.clear()
            return self.learned or self._as_made()

    def _as_made(self) -> Network:
        """The network itself. ModelError : a class was changed in place since it was made."""
        check_as_made(self.network.layers)
        return self.network

    def take(self, before: ModelEngines) -> None:
        """Take the engine of a model before this one, of the same layers and settings, instead of
        compiling. Its numbers are set when this model is asked, the first time after this; the
        former model compiles anew if it is asked again.
        """
        ours, theirs = (
            (each.network.layers, each.network.seed, each.dtype, each.target, each.backend,
             each.threads, each.code)
            for each in (self, before)
        )  # fmt: skip
        with before.lock:
            if before.learned is None and ours == theirs:
                self._engine, self._is_of_former = before._engine, True
                self._compiled = before._compiled
                before._engine, before._compiled = None, set()

    def _ready(self, asked: object) -> Engine:
        """The engine, for what is asked of it now. Call it with the lock."""
        self._check_learned(asked)
        if self._engine is None:
            self._engine = self._engine_of(self.as_learned())
        elif self._is_of_former:
            self._engine.load(self.parameters, self.states, updates=self.updates)
        self._is_of_former = False
        return self._engine

    def _check_learned(self, asked: object) -> None:
        """Make engines anew where a neuron has changed since they compiled what they computed
        before: they would compile what is asked now of what it is by now.
        """
        if asked not in self._compiled:
            self.as_learned()
            if is_compiled(self.backend, self.network):  # else it is read whenever it computes
                self._compiled.add(asked)

    def _engine_of(self, network: Network) -> Engine:
        """An engine of this network, or of one with the same learned arrays."""
        network = network.beginning_with(self.parameters, {})  # nothing is drawn
        setup = Setup(network, None, self.target, CHUNK_ROWS, dtype=self.dtype,
                      threads=self.threads)  # fmt: skip
        engine = make(self.backend, setup)
        engine.load(self.parameters, self.states, updates=self.updates)
        return engine


def steps_of_piece(network: Network) -> int:
    """The steps of long sequences that are heard at once: those of the network, or more if there
    are few.
    """
    n_neurons = sum(layer.size for layer in network.layers)
    return max(network.steps, min(PIECE_STEPS, PIECE_NUMBERS // n_neurons))


def metrics_of(manifest: Mapping[str, Any], origin: str) -> tuple[Metric, ...]:
    """The metrics of a model file's manifest. origin : the file, for messages."""
    if "metrics" not in manifest:
        return ()
    return metrics.from_json(manifest["metrics"], CapturedCode(dict(manifest["sources"]), origin))
