"""Checks that the parts of a job fit its network, and their resolution to names and arrays."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from horn.aggregates import COLUMNS, Aggregate, check_name
from horn.data import (
    Dataset,
    check_classes,
    check_features,
    check_finite,
    check_labels,
    check_range,
    check_shape,
)
from horn.data.checks import check_target_shape
from horn.data.in_steps import check_answers
from horn.errors import DataError, ModelError
from horn.layers import Layer
from horn.losses import LOSSES
from horn.mistakes import shown
from horn.network import Network
from horn.optimizers import SGD, Optimizer

ROUNDING = 1e-6  # of shares that were computed
_OF_SHARES = {  # losses of targets from 0 to 1, and what to do about others
    LOSSES["cross_entropy"]: 'remap y, as y / 255, pass labels as whole numbers, or learn numbers '
                             'with loss="squared_error"',
    LOSSES["binary_cross_entropy"]: "remap y, or use one output per class with softmax and "
                                    "cross_entropy",
}  # fmt: skip


def check_slots(network: Network, optimizer: Optimizer) -> None:
    """Raise ModelError if a weight has the name of another's slot: of links of h from layers a and
    a/velocity one is called h.weight.a/velocity, as the velocity of the other is.
    """
    names = {name for layer in network.layers[1:] for name in layer.learned}
    for name in sorted(names):
        array, _, slot = name.rpartition("/")
        if array in names and slot in optimizer.slots:
            raise ModelError(
                f"Job: {name} is a weight, and what {type(optimizer).__name__} keeps of {array} "
                f"has the same name; give the layer that ends with /{slot} another one"
            )


def check_fits(network: Network, target: str | None, dtype: str, data: Any, what: str) -> None:
    """Check that a dataset, or stream, fits a network. Raises DataError with the remedy."""
    if data.n_features == network.n_inputs < network.n_features:
        raise DataError(
            f"{what}: its rows are the steps of one long sequence, but the network takes "
            f"{network.steps} steps at a time; write Job(..., stateful=True), or cut it: "
            f"horn.data.text(path, {network.steps})"
        )
    check_features(data, network.n_features)
    if len(network.inputs) == 1 and not network.steps:
        check_shape(data, network.layers[0].shape)
    check_finite(data)
    check_range(data, dtype)
    if target == "labels" and data.targets:
        for output in network.outputs:
            if output.loss is not None:
                part, where = data.of_output(output.name), f"{what}: {output.name}"
                check_answers(part, network.steps, output.each_step, where)
                check_targets_of(network.alone(output), part, where)
        return
    check_answers(data, network.steps, network.last.each_step, what)
    if network.has_several and network.compared and data.y is None and target == "labels":
        raise DataError(
            f"{what} has no targets, but the network has the outputs "
            f"{', '.join(network.compared)}; pass (x, {{name: targets}}), by these names"
        )
    if network.last.loss is None or (network.has_several and data.y is None):
        return
    if target == "input":
        if network.steps and not network.last.each_step:
            raise DataError(
                'target="input" of sequences compares each step; write net.output(..., '
                "each_step=True)"
            )
        if network.last.size != network.n_inputs:
            raise DataError(
                f'target="input" compares {network.last.name} ({network.last.size} neurons) with '
                f"the input ({network.n_inputs} features); make them equal"
            )
    else:
        check_targets_of(network, data, what)


def check_targets_of(network: Network, data: Dataset, what: str) -> None:
    """Check that the data have the targets of a network with one output. Raises DataError."""
    last = network.last
    assert last.loss is not None
    if data.y is None:
        raise DataError(
            f"{what} has no labels, but {last.name} has loss {last.loss.name!r}; "
            'pass (x, y), or target="input"'
        )
    check_target_shape(data, last.shape, what, last.name)
    if data.classes is not None and data.y.ndim == 1:
        check_classes(data, last.size, last.name)
    elif data.has_labels and last.size > 1:
        check_labels(data, last.size, last.name)
    elif data.y.shape[1:] != (math.prod(network.answers),) and (data.y.ndim > 1 or last.size > 1):
        given = data.target_shape or data.y.shape[1:]
        labels = ", or labels as whole numbers, y.ravel().astype(int)"
        labels = labels if data.y.shape[1:] == (1,) else ""
        shape = last.shape if data.target_shape else (last.size,)
        remedy = f"; pass {(len(data), *shape)}{labels}"
        if _is_of_positions(last) and data.y.shape[1:] == (last.n_positions,):
            remedy = f". {_of_each_position(last)}"
        raise DataError(
            f"{what}: targets have shape {(len(data), *given)}, but {last.name} has "
            f"{last.size} neuron{'s' * (last.size > 1)}{remedy}"
        )
    elif last.loss in _OF_SHARES:
        _check_between_0_and_1(data, last.loss.name, what)
        if _is_of_positions(last) and (sums := data.y.sum(axis=1)).max() > 1.0 + ROUNDING:
            row = int(sums.argmax())
            raise DataError(
                f"{what}: the targets of row {row} sum to {sums[row]:g}, but those of a softmax to "
                f"1. {_of_each_position(last)}"
            )


def _is_of_positions(last: Layer) -> bool:
    """Whether it is a softmax over the neurons of several positions."""
    return last.activation_name == "softmax" and last.n_positions > 1


def _of_each_position(last: Layer) -> str:
    return (
        f"{last.name}'s softmax is over all its {last.size} neurons together; classes of each of "
        f"its {last.n_positions} positions take a neuron that hears its position (docs/space.md, "
        '"A class for each position")'
    )


def frozen_of(given: Any, network: Network) -> tuple[tuple[str, ...], set[str]]:
    """The names in ``frozen``, and the arrays that they mean. Raises ModelError."""
    if isinstance(given, Mapping):
        raise ModelError(
            "Job: frozen is a list of layers and arrays, each of which is frozen as a whole, not a "
            f"dict with masks or truth values; write frozen={list(given)!r:.80}"
        )
    if isinstance(given, (str, Layer)) or not isinstance(given, Iterable):
        raise ModelError(
            'Job: frozen is a list of layers and arrays, as ["layer1", "layer2.bias"]; '
            f"got {given!r}"
        )
    layers = {layer.name: layer for layer in network.layers[1:]}
    arrays = {name for layer in layers.values() for name in layer.shapes}
    tied = {n: {a for link in each.links if link.tie for a in link.weights.values()}
            for n, each in layers.items()}  # fmt: skip
    names, found = [], set[str]()
    for each in given:
        name = each.name if isinstance(each, Layer) else each
        if name in layers:
            found |= layers[name].shapes.keys() | tied[name]
        elif name in arrays:
            found.add(name)
        else:
            known = [*layers, *sorted(arrays)]
            close = difflib.get_close_matches(str(name), known, 1)
            meant = f"; did you mean {close[0]}?" if close else "."
            raise ModelError(
                f"Job: frozen: the network has no layer and no array {name!r}{meant} It has "
                f"{', '.join(known)}"
            )
        names.append(name)
    if found and found == arrays:
        raise ModelError("Job: frozen is all that the network could learn; leave something out")
    return tuple(names), found


def check_names_of_aggregates(aggregates: Mapping[str, Aggregate], columns: Iterable[str]) -> None:
    """Raise ModelError for an aggregate with the name of another column of the validation data."""
    for column in columns:
        for name in (column, column.removeprefix("val_")):
            if name in aggregates and name not in COLUMNS:
                raise ModelError(
                    f"Job: an aggregate is called {name!r}, which is the column of "
                    f"{column.removeprefix('val_')!r}, a loss or metric; give it another name"
                )


def no_optimizer(given: Any) -> str:
    if type(given).__module__.startswith("torch."):
        return "Job: optimizer must be one of horn, as horn.SGD(0.1); got one of PyTorch"
    if not isinstance(given, (str, type)):
        remedy = "data are one argument, a pair: horn.Job(net, (x, y))"
        if type(given) is int:
            remedy = f"a number of epochs has a name: horn.Job(net, (x, y), epochs={given!r})"
        elif isinstance(given, float):
            remedy = f"a learning rate is the optimizer's: horn.SGD({given!r})"
        elif given is None:
            remedy = "leave it out for the usual one"
        elif isinstance(given, list) and any(isinstance(each, Optimizer) for each in given):
            remedy = "a job has one: write it without the list"
        return (
            f"Job: optimizer must be an optimizer such as horn.SGD(0.1), got {shown(given)}; "
            f"{remedy}"
        )
    called = given if isinstance(given, str) else given.__name__
    known = {each.__name__.lower(): each for each in Optimizer.__subclasses__()}
    meant = known.get(called.lower(), SGD)
    rate = getattr(meant, "learning_rate", 0.1)
    return (
        f"Job: optimizer must be an optimizer, got {given!r}; write horn.{meant.__name__}"
        f"(learning_rate={rate})"
    )


def aggregates_of(given: Any, network: Network) -> dict[str, Aggregate]:
    if not isinstance(given, Mapping):
        raise ModelError(
            "Job: aggregates is a dict from a column's name to a horn.Aggregate, got "
            f'{given!r}; write aggregates={{"active": horn.Aggregate("layer1", active)}}'
        )
    found = {}
    for name, aggregate in given.items():
        check_name(name)
        where = f"Job: aggregates: {name!r}"
        if not isinstance(aggregate, Aggregate):
            raise ModelError(
                f"{where} must be a horn.Aggregate, got {aggregate!r}; write "
                f'horn.Aggregate("layer1", function)'
            )
        layer = aggregate.layer
        if isinstance(layer, Layer) and any(layer is own for own in network.layers):
            layer = layer.name
        known = [own.name for own in network.layers]
        if isinstance(layer, Layer):
            raise ModelError(
                f"{where} is of {layer!r} of another network; pass what net.layer of this one "
                f"returned, or a name ({', '.join(known)})"
            )
        if layer not in known:
            raise ModelError(
                f"{where} is of layer {layer!r}, which the network does not have; its layers are "
                f"{', '.join(known)}"
            )
        found[name] = replace(aggregate, layer=layer)
    return found


def _check_between_0_and_1(data: Dataset, loss: str, what: str) -> None:
    """Check targets that a loss takes for shares: labels of one output neuron are its targets.
    Their sum is not looked at: a row of zeros says nothing of its sample.
    """
    assert data.y is not None
    low, high = float(data.y.min()), float(data.y.max())
    if not -ROUNDING <= low <= high <= 1.0 + ROUNDING:
        raise DataError(
            f"{what}: {loss} has targets from 0 to 1, got {low:g} to {high:g}; "
            f"{_OF_SHARES[LOSSES[loss]]}"
        )
