"""The arrays of a program's constants: places, numbers of messages, ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from horn.backends import Array
from horn.compiler.messages import MessageExpressions
from horn.errors import ModelError
from horn.layers import Layer, Link
from horn.network import Network
from horn.partition.share import Share, edge_link

MOST_PLACES = {"float32": 1 << 24}  # whole numbers from 0 that a dtype has without a gap


def constant(
    value: tuple[Any, ...], network: Network, dtype: Any, share: Share, axes: tuple[str, ...]
) -> Array:
    """The array of a "constant" buffer, or a task's share of it."""
    kind, layer = value[0], network.layers[value[1]]
    if kind == "edge":  # places among the receiver's synapses, as an argmax over them finds
        edges = share.edges(*edge_link(axes[0]), axes[0].partition("@")[2])
        places = np.arange(len(edges.sources)) - edges.indptr[edges.receivers]
        _check_places(layer, MessageExpressions.offsets(layer)[value[2] + 1], dtype)
        return places.astype(dtype)
    if kind == "ones":
        whole = np.ones(layer.size, dtype)
    elif kind == "index":
        _check_places(layer, value[2] + layer.size, dtype)
        whole = np.arange(value[2], value[2] + layer.size).astype(dtype)
    elif kind == "before":
        before = _before(layer, value[2])
        _check_places(layer, int(before.max(initial=0)) + layer.links[value[2]].source.size, dtype)
        whole = before.astype(dtype)
    elif kind == "place":
        edges = layer.links[value[2]].edges
        assert edges is not None
        counts = np.diff(edges.indptr)
        first = edges.indptr[:-1] - _before(layer, value[2])
        places = np.arange(edges.n) - np.repeat(first, counts)
        _check_places(layer, int(places.max(initial=-1)) + 1, dtype)
        whole = places.astype(dtype)
    elif kind == "fan_in" and len(value) > 2:
        whole = _counts(layer, [k for k in layer.links if k.input == value[2]]).astype(dtype)
    else:
        whole = _fans(kind, layer, network).astype(dtype)
    return np.ascontiguousarray(share.part(whole, axes))


def _check_places(layer: Layer, n: int, dtype: Any) -> None:
    """Check that a dtype has all whole numbers below n, which are compared to find one of them."""
    most = MOST_PLACES.get(np.dtype(dtype).name, n)
    if n > most:
        raise ModelError(
            f"{layer.name}: {n} neurons or messages are numbered, of which {np.dtype(dtype).name} "
            f'tells the first {most} apart: say dtype="float64", or make the layers smaller'
        )


def _before(layer: Layer, position: int) -> Array:
    """The number of messages of each neuron over earlier links."""
    return _counts(layer, layer.links[:position])


def _counts(layer: Layer, links: Iterable[Link]) -> Array:
    """The number of messages of each neuron over some of its links."""
    count = np.zeros(layer.size)
    for link in links:
        count += link.source.size if link.edges is None else np.diff(link.edges.indptr)
    return count


def _fans(kind: str, layer: Layer, network: Network) -> Array:
    """The number of messages of each neuron, forward ("fan_in") or backward ("fan_out")."""
    if kind == "fan_in":
        return _before(layer, len(layer.links)) + float(layer.bias is not None)
    assert kind == "fan_out"
    count = np.zeros(layer.size)
    for other in network.layers:
        for link in other.links:
            if link.source is layer:
                if link.edges is None:
                    count += other.size
                else:
                    count += np.bincount(link.edges.indices, minlength=layer.size)
    return count
