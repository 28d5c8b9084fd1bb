"""The weights of samples in the learned loss: ``Job(sample_weight=, class_weight=)``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.answers import checked_answer_kind
from horn.data import Dataset
from horn.data.classes import SHOWN
from horn.data.lengths import within
from horn.data.sample_weights import as_weight
from horn.errors import DataError, ModelError
from horn.network import Network

Array = np.ndarray[Any, Any]


def weighed(data: Dataset, weight: Any, network: Network) -> Dataset:
    """Replace the weights of the data by one per sample, or of sequences whose steps are all judged
    by one per step. Raises DataError.
    """
    steps = data.n_features // network.n_inputs if network.steps and network.judges_each else 0
    weight = as_weight(weight, len(data), data.name, steps, data.lengths)
    return data.with_fields(weight=weight)


def by_class(given: Any, network: Network, target: str | None, data: Dataset) -> Dataset:
    """Multiply the weights of the data by weights of their classes.

    given : {label: weight}, the labels as the user gave them, 1 for missing ones; or "balanced",
    by which each class that occurs has the same total weight, and the sum of all weights is the
    number of samples. Where each step is answered both are of steps: weights (n, steps). Raises
    ModelError, DataError.
    """
    if network.last.each_step and len(network.judged) > 1:
        raise ModelError(
            f"Job: class_weight of each step is of one loss, but there are "
            f"{', '.join(layer.name for layer in network.judged)}; give sample_weight, one number "
            "per sequence"
        )
    labels = _labels(network, target, data)
    there = np.ones(labels.shape, bool)
    if labels.ndim == 2 and data.lengths is not None:  # not what is filled up
        there = within(data.lengths, labels.shape[1])
    n_classes = max(network.last.size, 2, len(data.classes or ()))
    if isinstance(given, Mapping):
        by_label = _of_mapping(given, data.classes or tuple(range(n_classes)))
    elif isinstance(given, str) and given == "balanced":
        count = np.bincount(labels[there], minlength=n_classes)
        by_label = count.sum() / np.maximum(count, 1) / np.count_nonzero(count)
    else:
        raise ModelError(
            f'Job: class_weight is "balanced" or a dict, as {{0: 1.0, 1: 5.0}}; got {given!r:.80}'
        )
    weight = by_label[labels]
    if not weight[there].any():
        raise ModelError(
            "Job: class_weight is 0 for the class of every sample; nothing would be learned"
        )
    if data.weight is not None:
        earlier = data.weight
        weight *= earlier[:, None] if weight.ndim > earlier.ndim else earlier
    return data.with_fields(weight=weight)


def _of_mapping(given: Mapping[Any, Any], classes: tuple[Any, ...]) -> Array:
    found, places = np.ones(len(classes)), {label: k for k, label in enumerate(classes)}
    for label, weight in given.items():
        if label not in places:
            known = ", ".join(map(repr, classes[:SHOWN])) + ", ..." * (len(classes) > SHOWN)
            raise ModelError(
                f"Job: class_weight has a weight for {label!r}, but the classes are {known}"
            )
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
            raise ModelError(f"Job: class_weight[{label!r}] is {weight!r}; give a number from 0")
        if not 0 <= weight <= sys.float_info.max:  # nor is it NaN
            raise ModelError(
                f"Job: class_weight[{label!r}] is {weight!s:.20}; weights are finite numbers "
                "from 0 (0: the class is not learned from)"
            )
        found[places[label]] = weight
    return found


def _labels(network: Network, target: str | None, data: Dataset) -> Array:
    """(n,) the class of each sample; where each step is answered (n, steps)."""
    kind = checked_answer_kind(network, data, target)
    if kind not in ("label", "one-hot", "side"):
        what = "several labels per sample" if kind == "each" else "no classes"
        raise DataError(
            f"{data.name}: class_weight is by the class of a sample, but here are {what} (output "
            f"{network.last.size}, {network.last.activation_name}); give sample_weight, one number "
            f"per sample"
        )
    assert data.y is not None
    rows = data.y.reshape(-1, network.last.size) if kind == "one-hot" else data.y.reshape(-1, 1)
    found: Array = rows.argmax(axis=1) if kind == "one-hot" else rows[:, 0].astype(np.int64)
    if found.max() >= max(network.last.size, 2):
        raise DataError(f"{data.name}: label {found.max()} has no output of {network.last.name}")
    return found.reshape(len(data), -1) if network.last.each_step else found
