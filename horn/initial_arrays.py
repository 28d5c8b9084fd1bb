"""The arrays of a network before training: drawn from its seed, each from a key of its own."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np

from horn import initializers
from horn.errors import ModelError
from horn.initializers import Initializer
from horn.layers import Layer, SynapseArray
from horn.neuron import Parameter, SynapseState, declared, mentions


def parameters(layers: Sequence[Layer], seed: int, dtype: Any) -> dict[str, Any]:
    """Every learned array by name. Raises ModelError: those of a layer take more memory than there
    is.
    """
    arrays: dict[str, Any] = {}
    for layer in layers[1:]:
        try:
            arrays |= _of_layer(layer, seed, dtype)
        except MemoryError as error:
            raise _too_large(layer) from error
    return arrays


def _of_layer(layer: Layer, seed: int, dtype: Any) -> dict[str, Any]:
    """The learned arrays that a layer owns."""
    arrays: dict[str, Any] = {}
    for position, link in enumerate(layer.links):
        shape = link.shape(layer.size)
        if link.tie is not None:
            continue
        again = layer.again(position)  # the first has the key of the only one
        of_link = (5, again) if again else (0,)
        for name, array in link.weights.items():
            path = (layer.index, link.source.index, *of_link, *layer.key_of(name))
            init = _given(layer.weights[name].init, link.init, f"{layer.name}.{name}")
            rng = initializers.generator(seed, *path)
            fan_out = link.fan_out(layer.size)
            values = init.values(shape, layer.typical_fan_in, fan_out, rng)
            arrays[array] = _own(values, dtype)
    for name, array in layer.biases.items():
        rng = initializers.generator(seed, layer.index, 0, 2, *layer.key_of(name))
        assert layer.bias is not None
        init = _given(layer.weights[name].bias, layer.bias, f"{layer.name}.{name}: bias")
        values = init.values((layer.n_kinds,), layer.fan_in, layer.size, rng)
        arrays[array] = _own(values, dtype)
    for position, (name, parameter) in enumerate(layer.parameters.items()):
        arrays[f"{layer.name}.{name}"] = _initial(
            layer, position, parameter, dtype, layer.n_kinds, seed
        )
    return arrays


def _too_large(layer: Layer) -> ModelError:
    n = sum(math.prod(shape) for shape in layer.shapes.values())
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    there = there if limit == resource.RLIM_INFINITY else min(there, limit)
    return ModelError(
        f"{layer.name}: out of memory: its {layer.size:,} neurons have {n:,} learned numbers, "
        f"{8 * n / 1e9:,.1f} GB where they are drawn, and this process may have "
        f"{there / 1e9:,.1f} GB; make the layer smaller, or its connection sparse"
    )


def states(layers: Sequence[Layer], seed: int, dtype: Any) -> dict[str, Any]:
    """Every State and SynapseState by name."""
    arrays = {
        f"{layer.name}.{name}": _initial(layer, 1000 + position, state, dtype, layer.size, seed)
        for layer in layers[1:]
        for position, (name, state) in enumerate(layer.states.items())
    }
    for found in synapse_states(layers):
        layer, where = found.layer, f"{found.owner.neuron.__name__}.{found.state.name}"
        init = initializers.resolve(found.state.initial, where)
        position = 0 if found.position is None else 1 + found.position
        path = (found.owner.index, found.place, 4, layer.index, position)
        rng = initializers.generator(seed, *path)
        values = init.values(found.shape, layer.typical_fan_in, layer.size, rng)
        arrays[found.name] = _own(values, dtype)
    return arrays


def synapse_states(layers: Sequence[Layer]) -> list[SynapseArray]:
    """The arrays of the SynapseStates that methods name."""
    found = []
    for layer in layers[1:]:
        for place, (name, state) in enumerate(declared(layer.neuron, SynapseState).items()):
            if mentions(layer.neuron, "forward", name):
                bias = () if layer.bias is None else (None,)
                found += [
                    SynapseArray(layer.incoming(name, k), state, layer, k, layer, place)
                    for k in (*range(len(layer.links)), *bias)
                ]
            if layer.kind == "hidden" and mentions(layer.neuron, "backward", name):
                found += [
                    SynapseArray(layer.outgoing(name, x, k), state, x, k, layer, place)
                    for x in layers
                    for k, link in enumerate(x.links)
                    if link.source is layer
                ]
    return found


def _initial(
    layer: Layer, position: int, parameter: Parameter, dtype: Any, n: int, seed: int
) -> Any:
    where = f"{layer.neuron.__name__}.{parameter.name}"
    init = initializers.resolve(parameter.initial, where)
    rng = initializers.generator(seed, layer.index, position, 3)
    return _own(init.values((n,), layer.fan_in, layer.size, rng), dtype)


def _own(values: Any, dtype: Any) -> Any:
    """A copy: training writes into it, and the caller keeps the given array."""
    return np.array(values, dtype, order="C")


def _given(own: Any, of_layer: Initializer, where: str) -> Initializer:
    """The initializer of a Weight, or else of its layer."""
    return of_layer if own is None else initializers.resolve(own, where)
