"""What the outputs of a network answer, and how many answers are right.

The network's last layer and the targets decide what an output means, here alone, for the accuracy
and every metric:

=========  ================================================  =====================================
meaning    network and targets                               what is right
=========  ================================================  =====================================
"label"    integer labels, several outputs                   the largest output is the label's
"one-hot"  rows of zeros and a one, any loss but             the largest output is where the 1 is
           binary_cross_entropy
"side"     one output, sigmoid or binary_cross_entropy,      above 0.5 where the target is 1
           targets 0 and 1
"each"     several outputs, binary_cross_entropy, rows of    each output by itself, above 0.5 where
           zeros and ones (multi-label)                      its target is 1
=========  ================================================  =====================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.data import Dataset
from horn.data.lengths import within
from horn.losses import LOSSES
from horn.network import Network

Array = np.ndarray[Any, Any]


def answer_kind(network: Network, target: str | None, y: Array | None) -> str | None:
    """The kind of answer that the outputs are, by the network and the shape of the targets; None
    for numbers, which are neither right nor wrong.
    """
    last = network.last
    if target != "labels" or last.loss is None or y is None or network.has_several:
        return None
    is_binary = last.loss == LOSSES["binary_cross_entropy"]
    if last.size == 1:
        return "side" if is_binary or last.activation.name == "sigmoid" else None
    if y.dtype.kind == "i":
        return "label"
    return "each" if is_binary else "one-hot"


def checked_answer_kind(network: Network, data: Dataset, target: str | None) -> str | None:
    """As ``answer_kind``, and None too unless targets are zeros and ones as needed."""
    kind, y = answer_kind(network, target, data.y), data.y
    if kind is None or kind == "label":
        return kind
    assert y is not None
    if y.size % network.last.size:  # ``Job.check_data`` says what is wrong
        return kind
    rows = y.reshape(-1, network.last.size)
    if data.lengths is not None and network.last.each_step:
        rows = rows[within(data.lengths, network.steps).ravel()]
    if not ((rows == 0) | (rows == 1)).all():
        return None
    if kind == "one-hot" and (rows.sum(axis=1) != 1).any():
        return None
    return kind


def n_right(kind: str | None, outputs: Array, y: Array, lengths: Array | None = None) -> int:
    """The number of right answers; NaN is never right. outputs (n, n_outputs) · y and ``lengths``
    are the data set's, for these rows.
    """
    if kind is None:
        return 0
    outputs, y = by_step(outputs, y, lengths)
    if kind in ("label", "one-hot"):
        expected = y if kind == "label" else y.argmax(axis=1)
        said = outputs.argmax(axis=1)  # argmax finds a NaN
        is_number = ~np.isnan(outputs[np.arange(len(said)), said])
        return int(((said == expected) & is_number).sum())
    is_right = (outputs > 0.5) == (y.reshape(outputs.shape) > 0.5)
    return int((is_right & ~np.isnan(outputs)).sum())


def by_step(outputs: Array, y: Array, lengths: Array | None = None) -> tuple[Array, Array]:
    """The outputs and targets of sequences with an answer at each step, in a row per step; with
    ``lengths`` only the sequences' own steps.
    """
    if outputs.ndim < 3:
        return outputs, y
    own = within(lengths, outputs.shape[1]).ravel() if lengths is not None else slice(None)
    outputs = outputs.reshape(-1, outputs.shape[-1])
    y = y.reshape(-1) if y.dtype.kind == "i" else y.reshape(outputs.shape)
    return outputs[own], y[own]


def n_answers(network: Network, data: Dataset) -> int:
    """The number of answers in a data set that can be right."""
    kind = answer_kind(network, "labels", data.y)
    n = len(data)
    if network.last.each_step:
        n = n * network.steps if data.lengths is None else int(data.lengths.sum())
    return n * network.last.size if kind == "each" else n
