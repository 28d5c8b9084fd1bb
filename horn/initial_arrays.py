"""The arrays of a network before training: drawn from its seed, each from a key of its own."""

from __future__ import annotations

import math
import os
import random
import resource
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from horn import initializers, texts
from horn.errors import HornError, ModelError
from horn.initializers import Initializer, Shape
from horn.layers import Layer, SynapseArray
from horn.neuron import SynapseState, declared, mentions

Fans = tuple[int, int]
ASKED_TWICE = 1_000_000  # numbers, at most: of more, a user's own initialiser is asked once


def parameters(
    layers: Sequence[Layer], seed: int, dtype: Any, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Every learned array by name: a copy of the given one, or drawn. Raises ModelError: those of a
    layer take more memory than there is, or an initialiser gives no numbers of that shape.
    """
    arrays: dict[str, Any] = {}
    for layer in layers[1:]:
        try:
            arrays |= _of_layer(layer, seed, dtype, given)
        except MemoryError as error:
            raise _too_large(layer) from error
    return arrays


def _of_layer(layer: Layer, seed: int, dtype: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The learned arrays that a layer owns."""
    arrays: dict[str, Any] = {}

    def add(array: str, init: Initializer, shape: Shape, fans: Fans, *path: int) -> None:
        if array in given:
            arrays[array] = np.array(given[array], dtype, order="C")
        else:
            arrays[array] = _drawn(array, init, shape, fans, dtype, seed, *path)

    for position, link in enumerate(layer.links):
        if link.tie is not None:
            continue
        again = layer.again(position)  # the first has the key of the only one
        of_link = (5, again) if again else (0,)
        fans = layer.typical_fan_in, link.fan_out(layer.size)
        for name, array in link.weights.items():
            path = (layer.index, link.source.index, *of_link, *layer.key_of(name))
            init = _given(layer.weights[name].init, link.init, f"{layer.name}.{name}")
            add(array, init, link.shape(layer.size), fans, *path)
    fans = layer.fan_in, layer.size
    for name, array in layer.biases.items():
        assert layer.bias is not None
        init = _given(layer.weights[name].bias, layer.bias, f"{layer.name}.{name}: bias")
        add(array, init, (layer.n_kinds,), fans, layer.index, 0, 2, *layer.key_of(name))
    for position, (name, parameter) in enumerate(layer.parameters.items()):
        init = initializers.resolve(parameter.initial, f"{layer.neuron.__name__}.{name}")
        add(f"{layer.name}.{name}", init, (layer.n_kinds,), fans, layer.index, position, 3)
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
    """Every State and SynapseState by name. Raises ModelError as ``parameters``."""
    arrays = {}
    for layer in layers[1:]:
        for position, (name, state) in enumerate(layer.states.items()):
            init = initializers.resolve(state.initial, f"{layer.neuron.__name__}.{name}")
            array, fans = f"{layer.name}.{name}", (layer.fan_in, layer.size)
            key = layer.index, 1000 + position, 3
            arrays[array] = _drawn(array, init, (layer.size,), fans, dtype, seed, *key)
    for found in synapse_states(layers):
        layer, where = found.layer, f"{found.owner.neuron.__name__}.{found.state.name}"
        init = initializers.resolve(found.state.initial, where)
        position = 0 if found.position is None else 1 + found.position
        path = (found.owner.index, found.place, 4, layer.index, position)
        fans = layer.typical_fan_in, layer.size
        arrays[found.name] = _drawn(found.name, init, found.shape, fans, dtype, seed, *path)
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


def _drawn(
    array: str, init: Initializer, shape: Shape, fans: Fans, dtype: Any, seed: int, *path: int
) -> Any:
    """An array of the network, from the generator of its path: a copy, since training writes into
    it. Raises ModelError: an initialiser of the user's own returns no finite numbers of this shape,
    or others when it is asked again. HornError: it raises another error.
    """
    rng = initializers.generator(seed, *path)
    if type(init).__module__ == initializers.__name__:
        try:
            return np.array(init.values(shape, *fans, rng), dtype, order="C")
        except ModelError as error:  # the model's file does not have it
            raise ModelError(f"{array}: {error}") from None
    wanted = (
        f"{array}: {type(init).__name__}.values({shape}, {fans[0]}, {fans[1]}, rng) must return an "
        f"array of finite numbers, of shape {shape}, but"
    )
    ask: Any = init.values
    shared = _shared_generators()
    try:
        found = again = np.asarray(ask(shape, *fans, rng))
        if found.size <= ASKED_TWICE:
            found = found.copy()  # it may be an array of its own, which it changes
            again = np.asarray(ask(shape, *fans, initializers.generator(seed, *path)))
    except (HornError, MemoryError):
        raise
    except Exception as error:
        raised = None if error.__traceback__ is None else error.__traceback__.tb_next
        line = "" if raised is None else texts.shown(ask, raised.tb_lineno)
        raise HornError(f"{wanted} it raised {type(error).__name__}: {error}{line}") from error
    code = getattr(ask, "__code__", None)
    line = "" if code is None else texts.shown(ask, code.co_firstlineno)
    if _shared_generators() != shared:
        raise ModelError(
            f"{wanted} it drew from np.random or random, which all of the program shares; draw "
            f"from rng, as rng.normal(size=shape): then a seed always gives the same{line}"
        )
    if found.dtype.kind not in "biuf":
        raise ModelError(f"{wanted} it returned {_in_words(found)}{line}")
    if not np.array_equal(found, again, equal_nan=True):
        raise ModelError(
            f"{wanted} it returned another when it was asked again; draw from rng, as "
            f"rng.normal(size=shape), and from nothing that changes: then a seed always gives the "
            f"same{line}"
        )
    if found.shape != shape:
        what = f"the number {found}" if not found.shape else f"shape {found.shape}"
        raise ModelError(f"{wanted} it returned {what}{line}")
    with np.errstate(over="ignore"):  # told below
        values = np.array(found, dtype, order="C")
    if not (finite := np.isfinite(values)).all():
        place = tuple(map(int, np.unravel_index(finite.argmin(), shape)))
        if type(init).__module__.startswith("horn."):  # the numbers of a matrix
            raise ModelError(
                f"{array}: an initial value is {found[place]:g}, too large for {np.dtype(dtype)}; "
                f'scale them, or take dtype="float64"'
            )
        raise ModelError(f"{wanted} it returned {found[place]} at {place}{line}")
    return values


def _shared_generators() -> Any:
    """The states of the generators of np.random and of random."""
    numpy: Any = np.random.get_state(legacy=False)
    own = {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in numpy["state"].items()}
    return {**numpy, "state": own}, random.getstate()


def _in_words(found: Any) -> str:
    """What is no array of real numbers, in words."""
    if not found.shape:
        return repr(found.item())[:80]
    kinds = {"c": "complex numbers", "U": "text", "S": "bytes"}
    return kinds.get(found.dtype.kind, f"an array of {found.dtype}")


def _given(own: Any, of_layer: Initializer, where: str) -> Initializer:
    """The initializer of a Weight, or else of its layer."""
    return of_layer if own is None else initializers.resolve(own, where)
