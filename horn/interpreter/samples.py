"""The samples of a data set as neurons read them: step by step, with their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.data import Dataset
from horn.errors import DataError
from horn.interpreter.calls import Moment
from horn.interpreter.passes import Numbers, Sample
from horn.layers import Layer
from horn.network import Network

Array = np.ndarray[Any, Any]
SampleTargets = dict[int, list[float]]  # by the index of the judged layer


def by_step(network: Network, targets: SampleTargets, steps: int) -> list[SampleTargets]:
    """The targets of each step of a sample: a layer that is judged at the last step alone has that
    target at all of them.
    """
    found: list[SampleTargets] = [{} for _ in range(steps)]
    for index, target in targets.items():
        layer = network.layers[index]
        for t, at in enumerate(found):
            own = slice(t * layer.size, (t + 1) * layer.size)
            at[index] = target[own] if layer.each_step else target
    return found


def is_judged_at(layer: Layer, step: int, steps: int) -> bool:
    """Whether a judged layer's loss looks at a step of a sequence."""
    return layer.each_step or step == steps - 1


def by_reversals(network: Network) -> list[int]:
    """The number of reversals between the input and each layer."""
    levels, is_new = [0] * len(network.layers), True
    while is_new:
        is_new = False
        for layer in network.layers:
            for link in layer.links:
                least = levels[link.source.index] + link.is_reversed
                if least > levels[layer.index]:
                    levels[layer.index], is_new = least, True
    return levels


def sample_before(network: Network, kept: Mapping[str, Array], row: int, states: Numbers) -> Sample:
    """A sample one step before its piece of a sequence. kept : carried numbers from the last batch.
    row : of the batch. states : the other States.
    """
    own, past = {name: array[row] for name, array in kept.items()}, []
    before = {n: own[f"{n}.now"][-1].tolist() for n in states if f"{n}.now" in own}
    for ago in range(1, longest(network) + 1):
        sent = [own.get(f"{layer.name}.output") for layer in network.layers]
        heard = [[] if a is None or len(a) < ago else a[-ago].tolist() for a in sent]
        past.append(Sample(Moment(network.seed, True, 0, 0, 0.0), {**states, **before}, heard))
    past[0].past = past[1:]
    return past[0]


def longest(network: Network) -> int:
    """The longest delay of a link, in steps, at least 1."""
    return max([1, *(link.delay for layer in network.layers for link in layer.links)])


def flat(arrays: Mapping[str, Array]) -> Numbers:
    """The arrays as flat lists of Python floats."""
    return {name: np.asarray(array, np.float64).ravel().tolist() for name, array in arrays.items()}


def read_sample(
    network: Network, kind: str | None, data: Dataset, row: int
) -> tuple[list[float], SampleTargets]:
    """A sample, and its targets, one per output neuron (note 0001, point 3), of each judged layer.
    kind : the job's ``target``.
    """
    x: list[float] = data.read(np.array([row]), np.empty((1, data.x.shape[1])))[0].tolist()
    found: SampleTargets = {}
    for layer in network.judged if kind is not None else ():
        if not layer.answers:  # a loss between layers has no targets
            found[layer.index] = [0.0] * layer.size * (network.steps if layer.each_step else 1)
        elif kind == "input":
            found[layer.index] = x
        elif data.y is None:
            raise DataError(f"{layer.name} has a loss, but the data have no labels; pass (x, y)")
        elif network.has_several:
            part = data.targets_of(layer.name)
            found[layer.index] = _targets(layer.size, data.y[row, part.columns], part.is_labels)
        else:
            found[layer.index] = _targets(layer.size, data.y[row], data.has_labels)
    return x, found


def _targets(size: int, y: Any, are_labels: bool) -> list[float]:
    """The targets of an output's neurons."""
    if not are_labels or size == 1:
        return [float(v) for v in np.atleast_1d(y)]
    return [float(k == v) for v in np.atleast_1d(y) for k in range(size)]
