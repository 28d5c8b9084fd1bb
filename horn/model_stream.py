"""A model that hears a sequence step by step, and text that a model continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np

from horn.backends import Setup, StepEngine, make
from horn.data import Dataset, as_dataset, check_names, check_shape
from horn.data.arrays import as_numbers
from horn.data.characters import codes, one_hot
from horn.data.normalization import Normalization
from horn.data.units import Unit, unit_heard, unit_of
from horn.errors import DataError, ModelError, is_whole
from horn.formats import tables
from horn.network import Network

Array = np.ndarray[Any, Any]
NUMBERS = 1 << 24  # of sequences, or of their answers, that are floating point at once, about


class ModelStream:
    """Answers a sequence step by step, however long it is: ``stream(x)``.

    Delayed outputs and States of sequences (``State(per="sample")``) are kept from call to call. So
    a sequence in pieces is answered as the whole is, to the last digit but the order of sums.
    ``at`` : the number of steps so far. ``n_features`` : the numbers of a step. ``names`` : the
    names that ``last`` knows, ``of_neurons`` those of layers and States. Not for several
    threads at once.

    setup : of its network. scale : what the bytes are worth that the model learned from; None: it
    learned from none. normalization, feature_names : of the features of a step. is_current :
    whether interpreted neurons are what they were when it began. warn_of_units : is told the first
    steps.

    Raises
    ------
    ModelError : the network is one of samples, not of sequences.
    """

    def __init__(
        self, setup: Setup, backend: str, parameters: Mapping[str, Array],
        states: Mapping[str, Array], *, updates: int = 0, scale: float | None = None,
        normalization: Normalization | None = None, feature_names: tuple[str, ...] = (),
        is_current: Callable[[], bool] | None = None,
        warn_of_units: Callable[[Dataset], None] | None = None,
    ) -> None:  # fmt: skip
        network: Network = setup.network
        if not network.steps:
            raise ModelError(
                "stream is for a network of sequences, net.input(n, steps=...); predict answers "
                "samples that have nothing to do with one another"
            )
        self.at = self._sample = 0
        self.n_features, self._columns = network.n_inputs, network.columns
        self._n_outputs = sum(layer.size for layer in network.outputs)
        self._shape = network.layers[0].shape
        sending = [layer for layer in network.layers if layer.answers]  # losses are not computed
        kept = [f"{each.name}.{k}" for each in sending[1:] for k in each.states]
        self.of_neurons = (*(layer.name for layer in sending), *kept)
        self.names = (*self.of_neurons, *(each.name for each in network.synapse_states))
        self._scale, self._normalization = scale, normalization
        self._feature_names, self._is_current = feature_names, is_current
        self._dtype: Any = setup.dtype
        self._warn_of_units = warn_of_units
        # One row: waking a second thread takes longer than its half of the work.
        steps = replace(setup, network=network.of_steps(1), optimizer=None, batch_size=1, threads=1)
        self._engine = cast(StepEngine, make(backend, steps))
        self._engine.load(parameters, states, updates=updates)
        self._engine.forget()  # compiled now, of what the neurons are when it begins

    def __repr__(self) -> str:
        return f"<ModelStream of {self.n_features} features, after {self.at:,} steps>"

    def __call__(self, x: Any) -> Any:
        """The outputs of the last layer at a step, (n_outputs,), or at several, (steps, n_outputs);
        with several outputs by name.

        x : (features,), or (steps, features); a picture has the shape of the input, too. Bytes are
        scaled as those of its training data were. A dataset, as a file is read: each row is a step.
        """
        if self._is_current is not None and not self._is_current():
            raise ModelError(
                "stream: a neuron of this model, or a number that it reads, was changed after the "
                "stream began; model.stream() begins another, which answers as the model learned"
            )
        x = as_dataset(x, "stream: x") if tables.is_table(x) and np.ndim(x) == 2 else x
        if isinstance(x, Dataset):
            check_names(x, self._feature_names, "this model")
            if x.n_features == self.n_features:
                check_shape(x, self._shape, "this model")
            given, unit = x.x, Unit(x.scale, x.scale_is)
        else:
            given = as_numbers(x, "stream: x")
            unit = unit_of(x, given, "stream")
        scale = unit.scale
        if given.dtype == np.uint8:
            scale = unit_heard(unit, self._scale, bool(self._feature_names))
        found = (len(x), *x.shape) if isinstance(x, Dataset) and x.shape else given.shape
        before, picture = given.shape[: -len(self._shape)], given.shape[-len(self._shape) :]
        if picture == self._shape and (given.ndim > 2 or picture[-1] != self.n_features):
            given = given.reshape(*before, self.n_features)
        if given.shape[-1:] != (self.n_features,) or given.ndim not in (1, 2):
            of_step = "" if len(self._shape) == 1 else f" in the shape {self._shape}"
            raise DataError(
                f"stream: x has shape {found}, but a step has {self.n_features} features{of_step}: "
                f"({self.n_features},), or (steps, {self.n_features}) of several"
            )
        steps, is_one = given.reshape(-1, self.n_features), given.ndim == 1
        if self._normalization is not None or given.dtype != self._dtype or scale != 1.0:
            steps = self._converted(steps, scale)
        if not np.isfinite(steps).all():
            step, feature = np.argwhere(~np.isfinite(steps))[0]
            raise DataError(
                f"stream: feature {feature} of step {self.at + step} is "
                f"{given.reshape(steps.shape)[step, feature]}, no finite {self._dtype}, and would "
                "be in all that the stream answers from there on; fill it in, or leave the step out"
            )
        if self._warn_of_units is not None and not self.at and len(steps):
            given = given.reshape(steps.shape)
            first = x if isinstance(x, Dataset) else as_dataset(given, "stream: x")
            self._warn_of_units(first.with_fields(scale=scale))
        sent = np.empty((len(steps), self._n_outputs), self._dtype)
        for k in range(len(steps)):
            sent[k] = self._engine.go_on(steps[k : k + 1], self.at, self._sample)[0]
            self.at += 1
        sent = sent[0] if is_one else sent
        if len(self._columns) == 1:
            return sent
        return {name: sent[..., columns] for name, columns in self._columns.items()}

    def _converted(self, steps: Array, scale: float) -> Array:
        """Steps as the network hears them: of its type, scaled or normalized."""
        with np.errstate(over="ignore"):
            if self._normalization is not None:
                center, factor = self._normalization.steps(scale, steps.dtype, self._dtype)
                found: Array = (steps.astype(center.dtype) - center) * factor
                return found.astype(self._dtype)
            steps = steps.astype(self._dtype)
            steps *= scale
        return steps

    def last(self, name: str) -> Array:
        """A layer's outputs at the latest step, or a State after it: (size,); a SynapseState after
        it: (n_synapses,), in the order of the weights.

        name : of a layer, or "layer.state", as in ``names``.

        Raises
        ------
        ModelError : there is no such name, or there was no step yet.
        """
        self.check(name)
        if not self.at:
            raise ModelError(f"{name}: nothing was heard yet; call the stream with a step first")
        return np.array(self._engine.last(name), self._dtype).reshape(-1)

    def check(self, name: str) -> None:
        """Raise ModelError for a name that ``last`` does not know."""
        if name not in self.names:
            raise ModelError(
                f"{name!r} is neither a layer nor a State or SynapseState; there are "
                f"{', '.join(self.names)}"
            )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied or pickled: what it has heard lies in arrays of its engine."""
        raise ModelError(
            "a stream cannot be copied or pickled; model.stream() begins another, which is where "
            "this one is once it has heard the same steps"
        )

    def reset(self, sample: int = 0) -> None:
        """Begin a new sequence. sample : the row of ``predict`` whose draws its neurons have."""
        self._engine.forget()
        self.at, self._sample = 0, sample


def outputs_of(
    engine: StepEngine, data: Dataset, network: Network, dtype: Any, drawn: Array | None = None
) -> Array:
    """The answers at each step of sequences of any length, (n, steps, n_outputs), which are heard
    in pieces; behind the end of a sequence they are any. engine : of ``network``, with an answer at
    each step. data : whole sequences. drawn (n,) : the numbers of the sequences, by which their
    neurons draw; None: their rows.
    """
    steps, features, (_, outputs) = network.steps, network.n_inputs, network.answers
    n, length = len(data), data.n_features // features
    ends = np.full(n, length) if data.lengths is None else data.lengths
    found = np.zeros((n, length, outputs), dtype)
    for rows in alike(ends, steps, NUMBERS // max(features, outputs)):
        longest = int(ends[rows[0]])
        count, numbers = -(-longest // steps), longest * features
        x = np.zeros((len(rows), count * steps * features), dtype)
        heard = data.with_fields(x=data.x[:, :numbers], lengths=None, shape=())
        x[:, :numbers] = heard.read(rows, np.empty((len(rows), numbers), dtype))
        # One that is over hears a step of each piece, and nobody its answers.
        here = np.clip(ends[rows, None] - steps * np.arange(count), 1, steps).ravel()
        first = rows if drawn is None else drawn[rows]
        sent = engine.outputs(x.reshape(len(here), -1), here, count, first=first)
        found[rows, :longest] = sent.reshape(len(rows), count * steps, -1)[:, :longest]
    return found


def alike(lengths: Array, piece: int, most: int) -> Iterator[Array]:
    """The rows of sequences to be heard together, the longest first: none has less than half of its
    steps, and all, as long as it is, have at ``most`` so many together. piece : at least as many
    steps are heard of each.
    """
    rows = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(rows):
        longest = lengths[rows[start]]
        shorter = np.searchsorted(-lengths[rows], -longest / 2, side="right")
        stop = min(shorter, start + max(most // max(longest, piece), 1))
        yield rows[start:stop]
        start = stop


def recorded(stream: ModelStream, data: Dataset, names: Sequence[str]) -> dict[str, list[Array]]:
    """The outputs of layers, and States, for each sequence, (steps, size); see ``Model.record``."""
    names = names or stream.of_neurons
    for name in names:
        stream.check(name)
    found: dict[str, list[Array]] = {name: [] for name in names}
    sequence = np.empty((1, data.n_features))
    given = data.with_fields(normalization=None)  # the stream normalizes
    for row in range(len(data)):
        heard = given.read(np.array([row]), sequence).reshape(-1, stream.n_features)
        steps: dict[str, list[Array]] = {name: [] for name in names}
        stream.reset(row)
        for step in heard if data.lengths is None else heard[: data.lengths[row]]:
            stream(step)
            for name in names:
                steps[name].append(stream.last(name))
        for name in names:
            found[name].append(np.array(steps[name]))
    return found


def written(
    stream: ModelStream, letters: Sequence[str], prefix: str, n: int, temperature: float, seed: int
) -> str:
    """Write a text that continues ``prefix`` by n letters, each drawn with the probabilities that
    the stream answers after those before it; see ``Model.generate``.
    """
    if not isinstance(prefix, str):
        remedy = "prefix.decode()" if isinstance(prefix, bytes) else "the characters themselves"
        raise DataError(f"generate: prefix is text, got {prefix!r}; pass {remedy}")
    if not prefix:
        raise DataError("generate: prefix is what the text begins with, one character at least")
    if not is_whole(n, 0):
        raise DataError(f"generate: n is how many characters to write, from 0; got {n!r}")
    if not is_whole(seed, 0):
        raise DataError(f"generate: seed is a whole number from 0; got {seed!r}")
    is_number = isinstance(temperature, (int, float, np.number))
    if not is_number or not 0 <= temperature < float("inf"):
        raise DataError(
            f"generate: temperature is from 0 (always the likeliest) on, 1 as the model says; got "
            f"{temperature!r}"
        )
    said = stream(one_hot(codes(prefix, letters, "prefix"), len(letters)).astype(np.float64))[-1]
    found = []
    for draw in np.random.default_rng(seed).random(n):
        place = _chosen(said.astype(np.float64), temperature, draw)
        found.append(letters[place])
        said = stream(np.eye(1, len(letters), place)[0])
    return prefix + "".join(found)


def _chosen(p: Array, temperature: float, draw: float) -> int:
    """Choose a place with probability proportional to p ** (1 / temperature). draw : in [0, 1)."""
    if temperature == 0:
        return int(p.argmax())
    with np.errstate(divide="ignore", over="ignore"):
        apart = np.log(p / p.max()) / temperature
    grown = np.exp(apart).cumsum()
    return int(np.searchsorted(grown, draw * grown[-1], side="right"))
