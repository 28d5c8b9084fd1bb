"""What layers see and cost, from a model file's description or a network's: plain data, no arrays.

``LayerCost.field`` is the part of the input that one neuron hears of, by dimension, () if it is all
of it; ``multiply_adds`` is how many weighted messages one sample makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class LayerCost(NamedTuple):
    """Of one layer. synapses : messages of one sample, weighted or not."""

    field: tuple[int, ...]
    synapses: int
    multiply_adds: int

    @property
    def seen(self) -> str:
        """The field in words."""
        return " × ".join(map(str, self.field)) or "all"


class _Sight(NamedTuple):
    """Along one dimension of the input: how many positions a neuron hears of, and how far apart
    the first ones of neighbours are.
    """

    reach: int
    jump: int


def costs(layers: Sequence[Mapping[str, Any]]) -> list[LayerCost]:
    """Of each layer, the input first.

    layers : ``size``, ``shape`` if there is one, and ``links``, each with ``source`` (a layer's
    number), ``weights`` (how many each synapse has) and ``weight`` (what they are called),
    ``connection`` (its name), ``windows`` (what it was told, if it goes by shapes), ``synapses``
    (their number, of others that are sparse) and ``tied`` (the layer whose weights it has, and
    whether it goes the other way).
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
        # what is heard late, of this layer or a later one, is of all the input
        below = [sights[k] if k < len(sights) else () for k in (x["source"] for x in links)]
        seen = [_through(layers, *each) for each in zip(links, below, strict=True)]
        # of several ways the widest; a way to all of the input is to all of it
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
    """The layer that listens, the one below and the link whose synapses a link has: of another, if
    it is tied.
    """
    while link.get("tied"):
        layer = layers[link["tied"]["layer"]]
        link = next(each for each in layer["links"] if each["weight"] == link["weight"])
    return layer, layers[link["source"]], link


def _through(
    layers: Sequence[Mapping[str, Any]], link: Mapping[str, Any], below: tuple[_Sight, ...]
) -> tuple[_Sight, ...]:
    """What is seen through a link; () is all."""
    turned = False
    while tied := link.get("tied"):
        turned ^= tied["transposed"]
        owners = layers[tied["layer"]]["links"]
        link = next(each for each in owners if each["weight"] == link["weight"])
    if link["connection"] == "OneToOne":
        return below
    told = link.get("windows")
    if not told or "kernel" not in told or not below:
        return ()
    sizes = (_each(told, name, len(below)) for name in ("kernel", "stride", "dilation"))
    if turned:  # each position hears of those whose windows it is in
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
    told = link.get("windows")
    if not told or "kernel" not in told:
        return int(link.get("synapses") or layer["size"] * below["size"])
    space, channels = below["shape"][:-1], int(below["shape"][-1])
    n = len(space)
    taps = 1
    for size, out, kernel, step, apart, before in zip(
        space,
        layer["shape"],
        *(_each(told, name, n) for name in ("kernel", "stride", "dilation")),
        _before(told, space, layer["shape"]),
        strict=False,
    ):
        first = (p * step - before for p in range(out))
        taps *= sum(0 <= at + k * apart < size for at in first for k in range(kernel))
    maps = int(layer["shape"][-1])
    if link["connection"] == "Window":  # its own channel and the neighbours that there are
        reach = int(told["channels"]) // 2
        return taps * sum(
            min(c + reach, channels - 1) - max(c - reach, 0) + 1 for c in range(channels)
        )
    return taps * maps * (channels // int(told.get("groups", 1)))


def _before(told: Mapping[str, Any], space: Sequence[int], shape: Sequence[int]) -> list[int]:
    """How many positions of the first window lie outside, by dimension."""
    n, padding = len(space), told["padding"]
    if padding == "valid":
        return [0] * n
    if padding != "same":
        return _each(told, "padding", n)
    sizes = (_each(told, name, n) for name in ("kernel", "stride", "dilation"))
    return [
        max((out - 1) * step + (kernel - 1) * apart + 1 - size, 0) // 2
        for size, out, kernel, step, apart in zip(space, shape, *sizes, strict=False)
    ]


def _each(told: Mapping[str, Any], name: str, n: int) -> list[int]:
    value = told[name]
    return [int(value)] * n if isinstance(value, (int, float)) else [int(v) for v in value]


def memory_bytes(parameters: int, units: int, rows: int, itemsize: int) -> int:
    """What a layer takes in a training step of so many samples: its parameters, and an output, a
    summed input and a delta per neuron and sample.
    """
    return itemsize * (parameters + 3 * units * rows)
