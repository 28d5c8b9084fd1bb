"""What a model is asked about, read as the data were that it learned from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn.data import (
    Dataset,
    Normalization,
    check_features,
    check_names,
    check_range,
    check_shape,
    in_steps,
    lanes,
)
from horn.data.checks import check_columns, other_units
from horn.data.classes import Classes
from horn.data.conversion import as_heard
from horn.data.inputs import side_by_side
from horn.data.pictures import in_colours
from horn.data.stream import read
from horn.data.targets import named
from horn.delays import hears_reversed
from horn.errors import DataError, ModelError
from horn.formats.tables import names_of
from horn.formats.tensors import apart
from horn.network import Network

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

CHUNK_ROWS = 1024  # samples that are floating point at once in ``predict``


def lengths_of(x: Any) -> Array | None:
    return x.lengths if isinstance(x, Dataset) else None


@dataclass
class ModelInputs:
    """The inputs of a model: their shapes, units, names, and the lengths of sequences.

    The fields are those of ``Model``.
    """

    network: Network
    dtype: str
    facts: Mapping[str, Any]
    classes: Classes | Mapping[str, Classes | None] | None
    normalization: Normalization | None
    feature_names: tuple[str, ...]
    _has_warned_of_units: bool = field(default=False, init=False)

    def dataset(self, data: Any, what: str) -> Dataset:
        """x, or (x, y), as a checked dataset. Raises DataError, ModelError: it does not fit."""
        what = data.name if isinstance(data, Dataset) else what
        if isinstance(data, Dataset) and data.is_text and isinstance(self.classes, tuple):
            data.with_classes(self.classes, "this model")  # an alphabet, whatever its size
        net, names = self.network, self.feature_names
        x = data[0] if isinstance(data, tuple) and data else data
        if len(net.inputs) == 1 and not net.steps:  # before text that the model does not read
            check_columns(names_of(x), names, what, "x[list(model.feature_names)]")
        found = read(self._arranged(data, what), what)
        if isinstance(data, Dataset):
            by = ", ".join(map(repr, names)) + " alone, in this order"
            check_columns(found.feature_names, names, what, by)
        check_features(found, net.n_features, "this model", net.layers[0].shape)
        check_names(found, self.feature_names, "this model")
        if len(self.network.inputs) == 1 and not self.network.steps:
            check_shape(found, self.network.layers[0].shape, "this model")
        return self._scaled(found)

    def warn_of_units(self, found: Dataset) -> None:
        """Warn once, where data seem to count in other units than the training data."""
        if not self._has_warned_of_units and (said := other_units(found, self.facts)):
            self._has_warned_of_units = True
            logger.warning("%s: %s", found.name, said)

    def _scaled(self, found: Dataset) -> Dataset:
        found = as_heard(found, self.facts.get("scale"), bool(self.feature_names))
        self.warn_of_units(found)
        if self.normalization is not found.normalization:
            found = found.with_fields(normalization=self.normalization)
        check_range(found, self.dtype)
        return found

    def _arranged(self, data: Any, what: str) -> Any:
        network = self.network
        data = named(data, network.compared, what)
        if not network.steps:
            data = in_colours(data, network.layers[0].shape)
            return side_by_side(data, network.input_shapes, what, "this model")
        data = in_steps.flat(data, network.layers[0].shape)
        x = data[0] if isinstance(data, tuple) and data else data
        asks_each = network.judges_each and network.answers_each
        if asks_each and self.is_long(x) and lengths_of(x) is None:
            return self._in_pieces(lanes.whole(data, network.n_inputs, network.target_shapes, what))
        if self.is_one_sequence(x):
            raise DataError(
                f"{what}: its rows are the steps of one "
                "sequence, which this model answers by its last step: pass it as one sample, x of "
                f"shape (1, steps, {network.n_inputs}), with one answer; a file of it is np.savez("
                "path, x=x[None], y=[answer])"
            )
        return in_steps.of_steps(
            data, network.steps, network.layers[0].shape, network.target_shapes, what
        )

    def check_pieces(self) -> None:
        """Raise ModelError where pieces of a sequence do not tell what the model answers."""
        if hears_reversed(self.network.layers):
            raise ModelError(
                "a layer of this model hears another from the end of the sequence: it answers "
                f"whole sequences of at most {self.network.steps:,} steps, not pieces of longer "
                "ones"
            )

    def _in_pieces(self, data: Dataset) -> Dataset:
        """Whole sequences in pieces of the network's steps. Steps at their end that fill no piece
        are one that is shorter; a model of a stateful job is judged as there, without them.
        """
        features, steps = self.network.n_inputs, self.network.steps
        length = data.n_features // features
        if length > steps:
            self.check_pieces()
        if length % steps and not (length > steps and self.facts.get("stateful")):
            return lanes.to_the_end(data, features, steps)
        return lanes.pieces(data, features, steps, 1, "x")

    def is_long(self, x: Any) -> bool:
        """Whether x is one sequence, or several with more steps than ``net.input`` has."""
        steps, n = self.network.steps, self.network.n_inputs
        if steps == 1 and self.facts.get("stateful") and _is_long(x, 2, n):
            return True  # rows (steps, n) are not as many sequences of one step, as elsewhere
        return bool(steps) and _is_long(x, steps, n)

    def is_one_sequence(self, x: Any) -> bool:
        """Whether x is one sequence, whose rows are its steps."""
        x = in_steps.flat(x, self.network.layers[0].shape)
        return self.is_long(x) and lanes.is_alone(x, self.network.n_inputs)

    def is_short(self, x: Any) -> bool:
        """Whether x is an array of one sequence, of no more steps than the network's."""
        is_one = not isinstance(x, Dataset) and self.is_one_sequence(x)
        return is_one and len(x) <= self.network.steps

    def listed(self, x: Any) -> Any:
        """A column, a tuple or an array of sequences as a list; anything else unchanged."""
        steps, shape = self.network.steps, self.network.layers[0].shape
        x = apart(in_steps.flat(in_steps.in_a_row(x, shape), shape)) if steps else x
        return list(x) if steps and isinstance(x, tuple) and len(x) != 2 else x  # two are (x, y)

    def lengths_of_list(self, x: Any) -> Array | None:
        """The lengths of ``listed`` sequences of different ones, where some have more steps than
        ``net.input`` has; None of anything else, also of what has steps of another shape.
        """
        steps, features = self.network.steps, self.network.n_inputs
        if not steps or not isinstance(x, list) or not in_steps.is_ragged(x):
            return None
        lengths = np.array([len(one) if hasattr(one, "__len__") else 0 for one in x])
        if lengths.max() <= steps or max(map(np.ndim, x)) > 2:
            return None
        fit = [np.shape(one)[1:] == (features,) or features == np.ndim(one) == 1 for one in x]
        if any(fit) and not all(fit):
            in_steps.sequences(x)  # which raises the error
        return lengths if all(fit) else None

    def sequences(self, x: Any) -> Any:
        """As ``listed``, but sequences of which some have more steps than ``net.input`` has as a
        dataset.
        """
        x = self.listed(x)
        return x if self.lengths_of_list(x) is None else in_steps.sequences(x)

    def whole(self, x: Any) -> Dataset:
        """Sequences with more steps than ``net.input`` has, as a dataset."""
        net, ends = self.network, lengths_of(x)
        given = x if ends is None else x.with_fields(lengths=None)
        found = lanes.whole(given, net.n_inputs, net.target_shapes, "x")
        if ends is not None:
            found = found.with_fields(lengths=ends, shape=x.shape)
        check_names(found, self.feature_names, "this model")
        return self._scaled(found)


def _is_long(x: Any, steps: int, features: int) -> bool:
    """Whether x is one long sequence, or several with more steps than the network's."""
    if isinstance(x, Dataset):
        n, most, of_step = x.n_features, steps * features, np.prod(x.shape[1:] or (features,))
        return bool(
            of_step == features and (n > most or (steps > 1 and lanes.is_alone(x, features)))
        )
    x = apart(x)
    shape = getattr(x, "shape", None)
    if shape is None and isinstance(x, list):
        if in_steps.is_ragged(x):
            return False
        shape = np.shape(x)
    if not isinstance(shape, tuple):
        return False
    if len(shape) == 3:
        return bool(shape[1] > steps and shape[2] == features)
    if len(shape) == 2:
        return bool(shape[1] == features < steps * features or shape[1] > steps * features)
    return len(shape) == 1 and features == 1 < steps and shape[0] > 0
