"""The links of a layer that is added to a network: its sources and its synapses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horn import initializers
from horn.connections import Connection, Edges, Placed
from horn.connections._matrix import is_matrix
from horn.connections.dense import Dense
from horn.connections.one_to_one import OneToOne
from horn.connections.sparse import as_connection, checked
from horn.connections.tied import Tied
from horn.delays import Delayed, Reversed, delays, reversals
from horn.errors import ModelError, is_whole
from horn.initializers import Initializer
from horn.layers import Layer, Link, later, named_inputs, suffix
from horn.mistakes import shown
from horn.neuron import Neuron, weights_of


@dataclass(frozen=True)
class Wired:
    """The shape of a layer, the synapses of its links, and its kinds of neurons."""

    shape: tuple[int, ...]
    edges: list[Edges | None]
    kinds: int | None


def linked(
    layer: tuple[int, str],
    inputs: Any,
    connect: Any,
    size: Any,
    init: Any,
    initial: str | float | Initializer,
    neuron: type[Neuron],
    layers: tuple[Layer, ...],
    seed: int,
) -> tuple[tuple[Link, ...], Wired]:
    """The links of a new layer with this index and name, and its resulting shape and synapses.

    init : as given, initial : resolved. The others: as for ``Network.layer``.
    """
    index, name = layer
    where = f"layer {index} {name!r}"
    late, turned = delays(inputs), reversals(inputs)
    inputs = heard(inputs, size, name, layers)
    not_yet = () if inputs is None else tuple(x for x in _members(inputs) if _is_later(x))
    names, sources = named_inputs(inputs, (*layers, *not_yet), where)
    late = late or [0] * len(sources)
    turned = turned if len(turned) == len(sources) else [False] * len(sources)
    is_each = isinstance(connect, Mapping) and not is_matrix(connect)  # scipy's dok is a dict
    each = [None if is_each else connect] * len(sources)
    if is_each:
        called = [name or source.name for name, source in zip(names, sources, strict=True)]
        for key, value in connect.items():
            places = [k for k, source in enumerate(sources) if key is source or key == called[k]]
            if not places:
                raise ModelError(
                    f"{where}: connect names {key!r}, which is not among its inputs; the "
                    "keys are layers of inputs, or their names"
                )
            for k in places:
                each[k] = value
    connections: list[Any] = [Dense() if c is None else as_connection(c, where) for c in each]
    for source, connection in zip(sources, connections, strict=True):
        is_shaped = hasattr(connection, "at") and type(connection) is not OneToOne
        if source.kind == "later" and source.index < 0 and is_shaped:
            raise ModelError(
                f"{where}: {source.name!r} comes later, and {connection!r:.80} goes by its shape; "
                "take horn.Sparse, horn.OneToOne or a matrix, which are made when it is added, or "
                "leave connect out"
            )
    found = wired(list(zip(connections, sources, strict=True)), size, index, name, seed)
    links = []
    for input_name, source, connection, edges, delay, is_reversed in zip(
        names, sources, connections, found.edges, late, turned, strict=True
    ):
        own = getattr(connection, "initial", None)  # a matrix whose values are the weights
        if own is not None and init is not None:
            raise ModelError(
                f"{where}: init={init!r} and the values of a matrix are both given; drop one"
            )
        weight = f"{name}.weight{suffix(input_name, source, len(sources))}"
        if isinstance(connection, Tied):
            connection = connection.resolved(source.size, where)
            if connection.layer not in layers:
                raise ModelError(
                    f"{where}: Tied({connection.layer.name}) is of a layer of another network; "
                    "take one of this network"
                )
            weight = _tied(connection, neuron, where)
        drawn = initializers.resolve(own or initial, where)
        how: dict[str, Any] = {"input": input_name, "delay": delay, "is_reversed": is_reversed}
        links.append(Link(source, connection, edges, drawn, weight, **how))
    return tuple(links), found


def heard(inputs: Any, size: Any, own: str, layers: Sequence[Layer]) -> Any:
    """``inputs`` with a layer instead of each ``Delayed``: a stand-in for a layer added later."""
    if isinstance(inputs, Mapping):
        return {key: heard(each, size, own, layers) for key, each in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return [heard(each, size, own, layers) for each in inputs]
    known = {layer.name: layer for layer in layers}
    if isinstance(inputs, Reversed):
        if isinstance(inputs.layer, str) and inputs.layer not in known:
            raise ModelError(
                f"{own}: hears {inputs!r}, but no layer is called so yet; there are "
                f"{', '.join(known)}"
            )
        return known[inputs.layer] if isinstance(inputs.layer, str) else inputs.layer
    if not isinstance(inputs, Delayed):
        return inputs
    asked = inputs.layer
    if asked is None or asked == own:
        if not inputs.steps:
            raise ModelError(cycle([own, own]))
        shape = extents(size, own) if size is not None else (1,)
        return later(own, len(layers), shape)
    if isinstance(asked, str) and asked not in known:
        return later(asked, -1, (1,))
    found = known[asked] if isinstance(asked, str) else asked
    if not inputs.steps:
        raise ModelError(
            f"{own}: Delayed({getattr(found, 'name', found)}, steps=0) is no delay; name the "
            "layer itself, or steps=1"
        )
    return found


def wired(pairs: Sequence[tuple[Any, Layer]], size: Any, index: int, name: str, seed: int) -> Wired:
    """The synapses of connections, each from a source, and the shape of the layer: the given one,
    or (None) that of the connections.
    """
    where = f"layer {index} {name!r}"
    if size is not None:
        pairs = _heard_by_itself(pairs, index, extents(size, where))
    for connection, source in pairs:
        if size is None and source.kind == "later" and hasattr(connection, "at"):
            raise ModelError(
                f"{where}: {connection!r} looks at the places of {source.name!r}, which is heard "
                "late and has none yet; say the size of the layer, as net.layer((28, 28, 8), ...)"
            )
    placed = {
        k: _placed(connection, source, where)
        for k, (connection, source) in enumerate(pairs)
        if hasattr(connection, "at") and source.index >= 0
    }
    if size is None and not placed:
        raise ModelError(f"{where}: how many neurons? net.layer(100), as an example")
    said = {found.shape for found in placed.values()}
    if len(said) > 1:
        raise ModelError(
            f"{where}: its connections make layers of shape {' and '.join(map(str, said))}; "
            f"they must be the same"
        )
    shape = said.pop() if said else extents(size, where)
    if placed and size is not None and math.prod(extents(size, where)) != math.prod(shape):
        raise ModelError(
            f"{where}: its connection makes a layer of shape {shape}, {math.prod(shape)} "
            f"neurons, but size is {size}; leave size out"
        )
    pairs = _heard_by_itself(pairs, index, shape)
    kinds = {found.kinds for found in placed.values()} - {None}
    edges = [
        placed[k].edges
        if k in placed
        else _edges(
            connection,
            source,
            math.prod(shape),
            index,
            name,
            sum(other.index == source.index for _, other in pairs[:k]),
            seed,
        )
        for k, (connection, source) in enumerate(pairs)
    ]
    return Wired(shape, edges, kinds.pop() if kinds else None)


def _heard_by_itself(
    pairs: Sequence[tuple[Any, Layer]], index: int, shape: tuple[int, ...]
) -> list[tuple[Any, Layer]]:
    """The connections with their sources; a layer that hears itself late has this shape."""
    return [
        (c, later(s.name, index, shape) if s.kind == "later" and s.index == index else s)
        for c, s in pairs
    ]


def _edges(
    connection: Connection,
    source: Layer,
    size: int,
    index: int,
    name: str,
    again: int,
    seed: int,
) -> Edges | None:
    """The synapses of a connection. again : the number of earlier ones from the same source."""
    if source.index < 0:  # made when the layer is added
        return None
    path = (1,) if not again else (6, again)
    rng = initializers.generator(seed, index, source.index, *path)
    try:
        found = connection.edges(source.size, size, rng)
        is_own = _is_own(connection, "edges")
        return checked(found, source.size, size, _kind(connection)) if is_own else found
    except ModelError as error:
        # the cause is of a user's function; without one its own traceback says nothing
        raise ModelError(f"layer {index} {name!r}: {error}") from error.__cause__


def drawn_later(link: Link, index: int) -> Link:
    """A link of layer ``index`` as it is before a later source is there, which may have another
    size by then.
    """
    source = link.source
    return replace(link, source=later(source.name, -1, (1,))) if source.index > index else link


def late_edges(listener: Layer, position: int, source: Layer, seed: int) -> Edges | None:
    """The synapses of a link from a layer that is added after its listener. Raises ModelError."""
    connection = listener.links[position].connection
    where = f"layer {listener.index} {listener.name!r}"
    if not hasattr(connection, "at"):
        again = sum(link.source.name == source.name for link in listener.links[:position])
        size, index, name = listener.size, listener.index, listener.name
        return _edges(connection, source, size, index, name, again, seed)
    found = _placed(connection, source, where)
    if found.shape != listener.shape:
        raise ModelError(
            f"{where}: {connection!r} from {source.name!r} makes a layer of shape {found.shape}, "
            f"but it has shape {listener.shape}; give both layers the same"
        )
    return found.edges


def _placed(connection: Any, source: Layer, where: str) -> Placed:
    found = connection.at(source.shape, where)
    if not _is_own(connection, "at"):
        return found  # type: ignore[no-any-return]
    whose = f"{where}: {_kind(connection)}"
    if not isinstance(found, Placed):
        raise ModelError(
            f"{whose}: at() must return horn.connections.Placed(shape, edges), got {shown(found)}"
        )
    shape = extents(found.shape, whose)
    return replace(found, shape=shape, edges=checked(found.edges, source.size, math.prod(shape),
                                                     whose))  # fmt: skip


def _is_own(connection: Any, method: str) -> bool:
    """Whether a method of a connection is the user's, whose synapses no one has checked."""
    made = getattr(getattr(type(connection), method, None), "__module__", "")
    return not made.startswith("horn.connections.")


def _kind(connection: Any) -> str:
    return type(connection).__name__


def moved(link: Link, layers: Mapping[int, Layer] | Sequence[Layer]) -> Link:
    """The same link between other layers, found by the indices of its own."""
    connection = link.connection
    if isinstance(connection, Tied):
        connection = replace(connection, layer=layers[connection.layer.index])
    old = link.source
    is_there = old.index in layers if isinstance(layers, Mapping) else old.index < len(layers)
    source = layers[old.index] if is_there else later(old.name, old.index, old.shape)
    return replace(link, source=source, connection=connection)


def _tied(tie: Tied, neuron: type[Neuron], where: str) -> str:
    """The stem of the array names that a link of these neurons is tied to. Raises ModelError."""
    has, missing = tie.link.weights, [n for n in weights_of(neuron) if n not in tie.link.weights]
    if missing:
        raise ModelError(
            f"{where}: the synapses of {neuron.__name__} have {', '.join(missing)}, and those of "
            f"{tie.layer.name}, whose weights they are to have, {', '.join(has)}; declare the same"
        )
    return str(tie.link.weight)


def _members(inputs: Any) -> list[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def _is_later(source: Any) -> bool:
    return isinstance(source, Layer) and source.kind == "later"


def path(start: Layer, end: Layer) -> list[str]:
    """The names of the layers from one to another that hears it, over links without a delay."""
    if start is end:
        return [start.name]
    for link in end.links:
        if not link.delay and link.source.kind != "later" and link.source.index >= start.index:
            found = path(start, link.source)
            if found:
                return [*found, end.name]
    return []


def cycle(names: list[str]) -> str:
    """What is wrong with layers that hear one another at once; one name: with one that is heard
    before it is there, though not in a circle.
    """
    if len(names) == 1:
        return (
            f"{names[0]} is heard without a delay by a layer before it; add {names[0]} first, and "
            f"name it there, or hear it late, as horn.Delayed({names[0]!r}, steps=1)"
        )
    return (
        f"layers hear one another in a circle without a delay: {' -> '.join(names)}; hear one of "
        f"them late, as horn.Delayed({names[-2]!r}, steps=1)"
    )


def extents(size: int | Sequence[int], where: str) -> tuple[int, ...]:
    """The shape of a layer from a number of neurons, or a shape with channels last."""
    if not isinstance(size, (tuple, list)):
        return (whole_size(size, where),)  # type: ignore[arg-type]
    if not 1 <= len(size) <= 3:
        raise ModelError(
            f"{where}: a shape is (n,), (n, channels) or (height, width, channels), got {size!r}"
        )
    return tuple(whole_size(n, where) for n in size)


def whole_size(size: int, where: str) -> int:
    if not is_whole(size, 1):
        raise ModelError(
            f"{where}: the number of neurons must be a whole number from 1, got {shown(size)}"
        )
    return int(size)
