"""The answers of a model: the outputs of its output layers for samples, or for sequences of any
length, and the labels that they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn import losses
from horn.answers import answer_kind
from horn.backends import Array
from horn.data import Dataset, in_steps, units
from horn.data.classes import Classes, as_array
from horn.errors import DataError, ModelError
from horn.layers import Layer
from horn.mistakes import shown
from horn.model_engines import ModelEngines
from horn.model_inputs import ModelInputs, lengths_of
from horn.model_stream import alike
from horn.network import Network
from horn.outputs import part_of


@dataclass
class ModelAnswers:
    """The answers of one model, which its engines compute.

    Other fields are those of ``Model``.
    """

    network: Network
    dtype: str
    target: str | None
    facts: Mapping[str, Any]
    classes: Classes | Mapping[str, Classes | None] | None
    inputs: ModelInputs
    engines: ModelEngines

    def of_list(self, x: list[Any], lengths: Array, labels: bool) -> Any:
        """The same of sequences of different lengths: those of like lengths together, so that one
        long sequence among short ones does not fill all of them up.
        """
        units.unit_of(x, np.empty(0), "x")  # one type, if some are bytes
        found: list[Any] = [None] * len(x)
        try:
            for rows in alike(lengths, 1, 2 * int(lengths.sum())):
                part = in_steps.sequences([x[k] for k in rows])
                self._put(found, rows, self.of(part, labels, rows))
        except DataError:
            self.inputs.whole(in_steps.sequences(x))  # which names the row among all
            raise
        if not self.network.has_several:
            return found if self.network.last.each_step else np.stack(found)
        each = {output.name: [one[output.name] for one in found] for output in self.network.outputs}
        return {
            output.name: each[output.name] if output.each_step else np.stack(each[output.name])
            for output in self.network.outputs
        }

    def _put(self, found: list[Any], rows: Array, answers: Any) -> None:
        """Put the answers to some sequences in their places."""
        for at, k in enumerate(rows):
            is_by_name = isinstance(answers, Mapping)
            found[k] = {n: a[at] for n, a in answers.items()} if is_by_name else answers[at]

    def of(self, x: Any, labels: bool, drawn: Array | None = None) -> Any:
        """The outputs for each sample, or the labels; for several outputs by their names. drawn :
        of sequences that are heard in pieces, however long: as of ``outputs_of``.
        """
        if self.network.has_several:
            return self._of_each(x, labels, drawn)
        if drawn is not None or self.inputs.is_long(x):
            found = self._of_long(x, drawn)
            found = self.labels(found) if labels else found
            ends = lengths_of(x) if self.network.last.each_step else None
            return found if ends is None else _cut(found, ends, is_array=False)
        data = self.inputs.dataset(x, "x")
        n, (*each, n_outputs) = len(data), self.network.answers
        shape = (n, *each) if labels else (n, *each, n_outputs)
        found = np.empty(shape, np.int64 if labels else self.dtype)
        for rows, outputs in self.engines.outputs(data):
            found[rows] = self._classes_of(outputs) if labels else outputs
        named = found if self.classes is None or not labels else as_array(self.only_classes)[found]
        if not each or data.lengths is None:
            return named
        return _cut(named, data.lengths, is_array=getattr(x, "ndim", 0) > 1)

    def _of_each(self, x: Any, labels: bool, drawn: Array | None) -> dict[str, Array]:
        """The same of several outputs, by their names."""
        network, lengths = self.network, None
        if drawn is not None or self.inputs.is_long(x):
            sent, is_one = self._sent_of_long(x, drawn), self.inputs.is_one_sequence(x)
            lengths = lengths_of(x)
        else:
            data, is_one = self.inputs.dataset(x, "x"), False
            sent, lengths = self._sent(data), data.lengths
        found: dict[str, Any] = {}
        for output in network.outputs:
            part = part_of(sent, output, network.columns[output.name])
            part = self.labels_of_one(output, part) if labels else np.ascontiguousarray(part)
            found[output.name] = part[0] if is_one else part
            if output.each_step and lengths is not None:
                is_array = getattr(x, "ndim", 0) > 1
                found[output.name] = _cut(part, lengths, is_array=is_array)
        return found

    def _sent(self, data: Dataset) -> Array:
        """The outputs of all output layers, side by side."""
        found = np.empty((len(data), *self.network.answers), self.dtype)
        for rows, outputs in self.engines.outputs(data):
            found[rows] = outputs
        return found

    def labels_of_one(self, output: Layer, sent: Any) -> Any:
        """The labels by one of several outputs; its numbers, if it tells no classes apart."""
        if isinstance(sent, list):
            return [self.labels_of_one(output, one) for one in sent]
        classes = self.classes if isinstance(self.classes, Mapping) else {}
        own = classes.get(output.name)
        is_side = self.is_side(output)
        tells = output.name in classes or is_side or output.loss == losses.LOSSES["cross_entropy"]
        if not tells or (output.size == 1 and not is_side and own is None):
            return np.ascontiguousarray(sent)
        is_one = output.size == 1
        numbers = (sent[..., 0] > 0.5).astype(np.int64) if is_one else sent.argmax(axis=-1)
        return numbers if own is None else as_array(own)[numbers]

    def is_side(self, output: Layer) -> bool:
        """Whether an output is a single number that tells two classes apart."""
        network = self.network.alone(output) if self.network.has_several else self.network
        return answer_kind(network, self.target, np.empty((0, 1))) == "side"

    def _of_long(self, x: Any, drawn: Array | None) -> Array:
        """The answers to sequences with more steps than ``net.input`` has."""
        found = self._sent_of_long(x, drawn)
        found = found if self.network.last.each_step else found[:, -1]
        return found[0] if self.inputs.is_one_sequence(x) else found

    def _sent_of_long(self, x: Any, drawn: Array | None) -> Array:
        """The outputs at each step of such sequences, side by side."""
        self.inputs.check_pieces()
        return self.engines.outputs_of_pieces(self.inputs.whole(x), drawn)

    def labels(self, outputs: Any) -> Any:
        """The labels that outputs name: ``Model.labels_of``."""
        if isinstance(outputs, list):  # of sequences that end early, one of each
            return [self.labels(one) for one in outputs]
        if isinstance(outputs, Mapping):
            known = {output.name: output for output in self.network.outputs}
            return {name: self.labels_of_one(known[name], a) for name, a in outputs.items()}
        if not getattr(outputs, "shape", ()):
            raise ModelError(
                "labels_of takes what predict returns, an array (..., n_outputs) or a list of such "
                f"arrays; of lists of numbers numpy.asarray makes one; got {shown(outputs)}"
            )
        found = self._classes_of(outputs)
        return found if self.classes is None else as_array(self.only_classes)[found]

    @property
    def only_classes(self) -> Classes:
        """The classes of the only output."""
        assert self.classes is not None and not isinstance(self.classes, Mapping)
        return self.classes

    def _classes_of(self, outputs: Array) -> Array:
        """The number of the class that each row of outputs names."""
        is_side = self.facts.get("answers") == "side" or self.is_side(self.network.last)
        if outputs.shape[-1] == 1 and (is_side or self.classes is not None):
            return (outputs[..., 0] > 0.5).astype(np.int64)
        if self.facts.get("answers") == "each":
            raise ModelError(
                "labels: each output of this model answers by itself, as it learned several labels "
                "per sample; write  model.predict(x) > 0.5"
            )
        if outputs.shape[-1] == 1:
            raise ModelError(
                "labels: the only output of this model is a number, no class; write  "
                "model.predict(x)"
            )
        return np.asarray(outputs.argmax(axis=-1))


def _cut(found: Array, lengths: Array, is_array: bool) -> Any:
    """Cut answers to the steps of their sequences. is_array : all are equally long."""
    if is_array:
        return found[:, : lengths[0]]
    return [row[:n] for row, n in zip(found, lengths, strict=True)]
