"""Receptive fields and costs of layers, from a model file's description or a network's: plain
data, no arrays.

``LayerCost.field`` is the part of the input that reaches one neuron, by dimension, () for all of
it; ``multiply_adds`` is the number of weighted messages for one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# The arrays of a link's synapses in a model file, by the ends of their names.
EDGE_ARRAYS = ("indptr", "indices", "weight")


class LayerCost(NamedTuple):
    """The costs of one layer. synapses : messages of one sample, weighted or not."""

    field: tuple[int, ...]
    synapses: int
    multiply_adds: int

    @property
    def seen(self) -> str:
        """The field in words."""
        return " × ".join(map(str, self.field)) or "all"


class _Sight(NamedTuple):
    """The receptive field along one dimension of the input: the number of positions that reach a
    neuron, and the distance between the first positions of neighbours.
    """

    reach: int
    jump: int


def costs(layers: Sequence[Mapping[str, Any]]) -> list[LayerCost]:
    """The cost of each layer, the input first.

    layers : ``size``, ``shape`` if there is one, and ``links``, each with ``source`` (a layer's
    number), ``weights`` (the number per synapse) and ``weight`` (their name), ``connection`` (its
    name), ``windows`` (its settings, if it goes by shapes), ``synapses`` (their number, for other
    sparse ones) and ``tied`` (the layer whose weights it has, and whether it goes the other way).
    """
    extents = tuple(layers[0].get("shape", ()))[:-1]
    sights: list[tuple[_Sight, ...]] = []
    found = []
    for layer in layers:
        links = layer.get("links", ())
        if not links:  # the input
            sights.append(tuple(_Sight(1, 1) for _ in extents))
            found.append(LayerCost((1,) * len(extents), 0, 0))
            continue
        counts = [_synapses(*_owner(layers, layer, link)) for link in links]
        # a delayed output, of this layer or a later one, depends on the whole input
        below = [sights[k] if k < len(sights) else () for k in (x["source"] for x in links)]
        seen = [_through(layers, *each) for each in zip(links, below, strict=True)]
        # over several ways the widest field; one way to the whole input makes it the whole
        sight = tuple(
            _Sight(max(s.reach for s in ways), max(s.jump for s in ways))
            for ways in zip(*seen, strict=True)
        ) if all(seen) else ()  # fmt: skip
        sights.append(sight)
        field = tuple(min(s.reach, n) for s, n in zip(sight, extents, strict=False))
        weighed = (n * link["weights"] for n, link in zip(counts, links, strict=True))
        found.append(LayerCost(field, sum(counts), sum(weighed)))
    return found


def _owner(
    layers: Sequence[Mapping[str, Any]], layer: Mapping[str, Any], link: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """The listening layer, the layer below and the link that own a link's synapses: those of
    another link, if it is tied.
    """
    while link.get("tied"):
        layer = layers[link["tied"]["layer"]]
        link = next(each for each in layer["links"] if each["weight"] == link["weight"])
    return layer, layers[link["source"]], link


def _through(
    layers: Sequence[Mapping[str, Any]], link: Mapping[str, Any], below: tuple[_Sight, ...]
) -> tuple[_Sight, ...]:
    """The receptive field through a link; () is the whole input."""
    turned = False
    while tied := link.get("tied"):
        turned ^= tied["transposed"]
        owners = layers[tied["layer"]]["links"]
        link = next(each for each in owners if each["weight"] == link["weight"])
    if link["connection"] == "OneToOne":
        return below
    turned ^= link["connection"] == "TransposedConvolution"
    windows = link.get("windows")
    if not windows or "kernel" not in windows or not below:
        return ()
    sizes = (_each(windows, name, len(below)) for name in ("kernel", "stride", "dilation"))
    if turned:  # each position hears the positions whose windows it is in
        return tuple(
            _Sight(s.reach + (kernel - 1) * apart // step * s.jump, max(s.jump // step, 1))
            for s, kernel, step, apart in zip(below, *sizes, strict=True)
        )
    return tuple(
        _Sight(s.reach + (kernel - 1) * apart * s.jump, s.jump * step)
        for s, kernel, step, apart in zip(below, *sizes, strict=True)
    )


def _synapses(layer: Mapping[str, Any], below: Mapping[str, Any], link: Mapping[str, Any]) -> int:
    if link["connection"] in ("OneToOne", "Part"):
        return int(layer["size"])
    windows = link.get("windows")
    if not windows or "kernel" not in windows:
        return int(link.get("synapses") or layer["size"] * below["size"])
    if link["connection"] == "TransposedConvolution":  # the maps look, in as many windows
        layer, below = below, layer
    space, channels = below["shape"][:-1], int(below["shape"][-1])
    n = len(space)
    taps = 1
    for size, out, kernel, step, apart, before in zip(
        space,
        layer["shape"],
        *(_each(windows, name, n) for name in ("kernel", "stride", "dilation")),
        _before(windows, space, layer["shape"]),
        strict=False,
    ):
        first = (p * step - before for p in range(out))
        taps *= sum(0 <= at + k * apart < size for at in first for k in range(kernel))
    maps = int(layer["shape"][-1])
    if link["connection"] == "Window":  # its own channel and the existing neighbours
        reach = int(windows["channels"]) // 2
        return taps * sum(
            min(c + reach, channels - 1) - max(c - reach, 0) + 1 for c in range(channels)
        )
    return taps * maps * (channels // int(windows.get("groups", 1)))


def _before(windows: Mapping[str, Any], space: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The number of positions of the first window outside the layer, by dimension."""
    n, padding = len(space), windows["padding"]
    if padding == "valid":
        return [0] * n
    if padding != "same":
        each = padding if isinstance(padding, (list, tuple)) else [padding] * n
        return [int(ends[0] if isinstance(ends, (list, tuple)) else ends) for ends in each]
    sizes = (_each(windows, name, n) for name in ("kernel", "stride", "dilation"))
    return [
        max((out - 1) * step + (kernel - 1) * apart + 1 - size, 0) // 2
        for size, out, kernel, step, apart in zip(space, shape, *sizes, strict=False)
    ]


def _each(windows: Mapping[str, Any], name: str, n: int) -> list[int]:
    value = windows[name]
    return [int(value)] * n if isinstance(value, (int, float)) else [int(v) for v in value]


def memory_bytes(parameters: int, units: int, rows: int, itemsize: int) -> int:
    """The memory of a layer in a training step, in bytes: its parameters, and an output, a summed
    input and a delta per neuron and sample. rows : samples of a step.
    """
    return itemsize * (parameters + 3 * units * rows)
