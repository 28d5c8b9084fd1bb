"""Evaluation of an engine over a whole data set: losses, the fraction of right answers, metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from horn.answers import checked_answer_kind, n_answers, n_right
from horn.data import Dataset, check_classes, check_features, check_labels, check_targets
from horn.data.checks import check_target_shape
from horn.data.in_steps import check_answers
from horn.errors import ModelError
from horn.metrics import Metric, score
from horn.network import Network
from horn.outputs import each, loss_column, part_of

if TYPE_CHECKING:
    from horn.backends import Engine

Array = np.ndarray[Any, Any]


def measure(
    engine: Engine,
    network: Network,
    data: Dataset,
    target: str | None,
    wanted: Iterable[Metric] = (),
) -> dict[str, float]:
    """{"loss": mean, "acc": fraction right, ...} of an engine over a whole data set, in inference.
    wanted : metrics that fit.
    """
    if len(network.judged) > 1 or network.has_several:
        return _measure_each(engine, network, data, target, list(wanted))
    others = [metric for metric in wanted if metric.name != "acc"]
    outputs: Array | None = None
    if others:
        total, right, outputs, _ = engine.results(data)
    else:
        total, right = engine.losses(data)
    found = {"loss": float(total) / len(data)}
    if checked_answer_kind(network, data, target):
        found["acc"] = int(right) / n_answers(network, data)
    for metric in others:
        assert outputs is not None
        found[metric.name] = score(metric, network, data, target, outputs)
    return found


def _measure_each(
    engine: Engine, network: Network, data: Dataset, target: str | None, wanted: list[Metric]
) -> dict[str, float]:
    """Measure a network with several outputs or losses, as ``measure``."""
    total, _, outputs, of_each = engine.results(data)
    found = {"loss": float(total) / len(data)}
    for layer, own in zip(network.judged, of_each, strict=True):
        found[loss_column(layer)] = float(own) / len(data)
    for view in each(network, data, target):
        own_outputs = part_of(outputs, view.layer, view.columns)
        kind = view.answer_kind(target)
        if kind is not None and view.data.y is not None:
            right = n_right(kind, own_outputs, view.data.y, view.data.lengths)
            found[f"{view.prefix}acc"] = right / n_answers(view.network, view.data)
        for metric in wanted:
            if metric.name != "acc" and view.takes(metric, target):
                value = score(metric, view.network, view.data, target, own_outputs)
                found[f"{view.prefix}{metric.name}"] = value
    return found


def check_fit(network: Network, data: Dataset, target: str | None) -> None:
    """Raise unless a model with this network can be evaluated on these data."""
    owner = "this model"
    check_features(data, network.n_features, owner)
    if not network.is_judged:
        raise ModelError(f"{owner} has no loss, so there is nothing to evaluate; use predict")
    if network.has_several and target == "labels":
        for output in network.outputs:
            if output.loss is not None:
                check_fit(network.alone(output), data.of_output(output.name), target)
        return
    last = network.last
    check_answers(data, network.steps, last.each_step, owner)
    if target != "labels" or last.loss is None:
        return
    where = f"output({last.size}, {last.activation_name})"
    has_labels = data.y is None or data.has_labels
    check_classes(data, last.size, where)
    if has_labels and last.size > 1:
        check_labels(data, last.size, where)
    elif not has_labels or data.y is None:
        check_targets(data, math.prod(network.answers), where)
        check_target_shape(data, last.shape, data.name, where)
