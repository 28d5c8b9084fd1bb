"""Where tasks cut the neurons of a layer: evenly, or at quantiles of their synapses."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from horn.connections.one_to_one import OneToOne
from horn.layers import Layer
from horn.network import Network
from horn.topology import share

Array = np.ndarray[Any, Any]

# The work of a cut by synapses is at most so much of that of even numbers of neurons, in tenths:
# a gain of less is within what tasks wait for anyhow, and even numbers keep neurons that hear each
# other one to one on one task.
GAIN_TENTHS = 9

_KNOWN: weakref.WeakKeyDictionary[Network, dict[tuple[int, int, int], Array]]
_KNOWN = weakref.WeakKeyDictionary()


def cuts(network: Network, index: int, n_tasks: int) -> Array:
    """The first neuron of each task's share of a layer, and the end of the last share.

    Shape (n_tasks + 1,), int64, ascending; shares may be empty. They follow from the network and
    the number of tasks alone, so every process finds the same, whatever it runs.
    """
    known = _KNOWN.setdefault(network, {})
    key = len(network.layers), index, n_tasks  # a network may still grow
    if key not in known:
        known[key] = _cuts(network, network.layers[index], n_tasks)
    return known[key]


def _cuts(network: Network, layer: Layer, n_tasks: int) -> Array:
    even = np.array([share(layer.size, task, n_tasks)[0] for task in range(n_tasks)] + [layer.size])
    if n_tasks == 1 or layer.extents or is_tied(network, layer):
        return even
    work = _work(network, layer)
    if work.min() == work.max():
        for link in layer.links:  # messages of one neuron to one stay within a task
            if isinstance(link.connection, OneToOne) and not link.delay and not link.source.extents:
                return cuts(network, link.source.index, n_tasks)
        return even
    ends = np.concatenate([[0], np.cumsum(work)])
    # The neuron nearest to each quantile, in whole numbers: no rounding that differs by machine.
    wanted = ends[-1] * np.arange(n_tasks + 1)
    after = np.minimum(np.searchsorted(ends * n_tasks, wanted), layer.size)
    before = np.maximum(after - 1, 0)
    is_nearer = wanted - ends[before] * n_tasks < ends[after] * n_tasks - wanted
    found = np.where(is_nearer, before, after)
    most, most_even = (int(np.diff(ends[each]).max()) for each in (found, even))
    return found if 10 * most <= GAIN_TENTHS * most_even else even


def _work(network: Network, layer: Layer) -> Array:
    """(n_neurons,) the number of synapses of each neuron, and 1 for itself. Of an input those that
    it sends through, since it has no others; elsewhere those that it receives by.
    """
    work = np.ones(layer.size, np.int64)
    for link in layer.links:
        if link.edges is None:
            work += link.source.size
        else:
            ends = np.asarray(link.edges.indptr, np.int64)
            work += ends[1:] - ends[:-1]
    if layer.links:
        return work
    for other in network.layers:
        for link in other.links:
            if link.source is layer and link.edges is None:
                work += other.size
            elif link.source is layer and link.edges is not None:
                work += np.bincount(np.asarray(link.edges.indices), minlength=layer.size)
    return work


def is_tied(network: Network, layer: Layer, *, dense_only: bool = False) -> bool:
    """Whether a layer is at an end of links that share weights by a tie, where the shares of two
    layers have to be equal.
    """
    for other in network.layers:
        for link in other.links:
            if (tie := link.tie) is not None and not (dense_only and tie.link.edges is not None):
                if layer in (other, link.source, tie.layer, tie.link.source):
                    return True
    return False
