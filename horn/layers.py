"""Layers, the links between them, and the synapse arrays that they remember.

Frozen descriptions; ``Network`` makes and joins them, and its module's docstring says how their
arrays are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from horn.activations import ACTIVATIONS, Activation
from horn.connections import Connection, Edges, PlacedConnection
from horn.connections.convolution import Convolution
from horn.connections.placed import PLACED
from horn.connections.tied import Tied
from horn.connections.transposed_convolution import TransposedConvolution
from horn.delays import Delayed
from horn.errors import ModelError
from horn.initializers import Initializer
from horn.losses import Loss
from horn.mistakes import LAYER_ATTRIBUTES, no_attribute
from horn.neuron import (
    WEIGHT,
    Neuron,
    Parameter,
    State,
    SynapseState,
    Weight,
    declarations,
    has_backward,
    reads_weights,
)

Interlayer = Callable[[Any], Any]
Connects = Connection | PlacedConnection
Heard: TypeAlias = "Layer | Delayed"
Inputs: TypeAlias = "Heard | Sequence[Heard] | Mapping[str, Heard]"


@dataclass(frozen=True, eq=False)
class Link:
    """One connection into a layer: its source, its kind, and its initial weights.

    ``edges`` is None for a dense connection.
    """

    source: Layer
    connection: Connects
    edges: Edges | None
    init: Initializer
    weight: str  # the name of its weight array, or the stem of several
    names: tuple[str, ...] = (WEIGHT,)  # of the weights of each synapse
    input: str = ""  # the name of its messages in a neuron: messages.<input>
    delay: int = 0  # in steps, after which the source's output is heard
    is_reversed: bool = False  # the sequence is heard from its last step to its first

    @property
    def tie(self) -> Tied | None:
        """The tie to the link whose weights it shares, or None."""
        return self.connection if isinstance(self.connection, Tied) else None

    @cached_property
    def weights(self) -> dict[str, str]:
        """The names of its weight arrays by weight: another link's, if it is tied to that."""
        return {name: array_name(self.weight, name) for name in self.names}

    def shape(self, n_receivers: int) -> tuple[int, ...]:
        """The shape of a weight array."""
        if self.edges is None:
            return (n_receivers, self.source.size)
        return self.edges.weight_shape or (self.edges.n,)

    @property
    def heard(self) -> str:
        """The source in words, for people: its input's name, layer and delay."""
        ago = f" {self.delay} step{'s' * (self.delay > 1)} ago" if self.delay else ""
        ago = " reversed" if self.is_reversed else ago
        return (f"{self.input}: " if self.input else "") + self.source.name + ago

    @property
    def is_shared(self) -> bool:
        """Whether synapses share weights."""
        return self.edges is not None and self.edges.is_shared

    @property
    def is_placed(self) -> bool:
        """Whether the connection depends on the shapes of the layers, and determines them."""
        return hasattr(self.connection, "at")

    @property
    def owner(self) -> Link:
        """The link that owns its weights: itself, unless it is tied to another."""
        return self if self.tie is None else self.tie.link

    @property
    def is_turned(self) -> bool:
        """Whether it leads from the windows' receivers to their sources: it has the weights of
        another link transposed, or its convolution is, or not both.
        """
        is_back = type(self.owner.connection) is TransposedConvolution
        return is_back != (self.tie is not None and bool(self.tie.transposed))

    @property
    def convolves(self) -> bool:
        """Whether sums of products over its windows, or its owner's, run in convolution kernels:
        then the layers at its ends have the shapes of those at the owner's.
        """
        if type(self.owner.connection) not in (Convolution, TransposedConvolution):
            return False
        if self.tie is None:
            return True
        there = self.tie.layer if self.tie.transposed else self.owner.source
        return bool(self.source.shape == there.shape)

    @property
    def windows(self) -> tuple[Convolution, tuple[int, ...]]:
        """Of a link that convolves: the convolution that has its windows, its own, its owner's, or
        that which one of them is the way back of; and the shape of the layer they look at.
        """
        connection, below = self.owner.connection, self.owner.source.shape
        if isinstance(connection, TransposedConvolution):
            return connection.back(below), connection.shape(below, self.weight)
        assert isinstance(connection, Convolution)
        return connection, below

    @property
    def mixes_channels(self) -> bool:
        """Whether it convolves, and each map receives all channels below."""
        return self.convolves and self.windows[0].groups == 1

    @property
    def is_known(self) -> bool:
        """Whether it is a shaped connection of horn, whose settings determine its synapses."""
        return PLACED.get(type(self.connection).__name__) is type(self.connection)

    @property
    def kept_edges(self) -> dict[str, Any]:
        """The arrays of its synapses that a model file keeps, by the ends of their names."""
        if self.edges is None or self.is_known or self.tie is not None:
            return {}
        found = {"indptr": self.edges.indptr, "indices": self.edges.indices}
        return found | ({} if self.edges.weight is None else {"weight": self.edges.weight})

    def n_synapses(self, n_receivers: int) -> tuple[int, ...]:
        """The shape of an array with a number for each synapse."""
        if self.edges is None:
            return (n_receivers, self.source.size)
        return (self.edges.n,)

    def fan_out(self, n_receivers: int) -> int:
        """Synapses per source: the mean, rounded up, where they differ. Where weights are shared,
        as PyTorch counts it: maps * taps, whatever the groups, the stride and the border leave.
        """
        if self.edges is None:
            return n_receivers
        if (shape := self.edges.weight_shape) is not None:
            return math.prod(shape[1:] if self.is_turned else shape[:-1])
        return -(-self.edges.n // self.source.size)


@dataclass(frozen=True, eq=False)
class Layer:
    """A set of neurons of one class with one activation. Made by ``Network``; read-only.

    ``kind`` is "input", "hidden" or "output". ``keep`` and ``per`` are the input's dropout.
    ``extents`` is its shape if it is not flat. ``kinds``: neuron o is of kind o % kinds, as for the
    maps of a convolution, all positions of which are one neuron; None where every neuron is of its
    own kind. ``parts``: name and size of each input of a network with several, side by side.
    ``steps``: of the input, the steps of a sequence; 0 is no sequence. ``each_step``: of the
    output, whether each step is judged, or the last one alone. ``loss_weight``: a factor of its
    loss. ``answers``: whether its outputs are an answer; the layer of a ``Network.loss`` is a loss
    alone.
    """

    index: int
    name: str
    size: int
    kind: str
    neuron: type[Neuron]
    activation: Activation
    activation_name: str
    interlayer: Interlayer | None = None
    links: tuple[Link, ...] = ()
    bias: Initializer | None = None
    loss: Loss | None = None
    keep: float = 1.0
    per: str = "sample"
    extents: tuple[int, ...] = ()
    kinds: int | None = None
    parts: tuple[tuple[str, int], ...] = ()
    steps: int = 0
    each_step: bool = False
    loss_weight: float = 1.0
    answers: bool = True

    def __post_init__(self) -> None:
        _ = self.declarations  # kept from now on: IPython's %autoreload changes a class in place

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("a layer", name, dir(self), LAYER_ATTRIBUTES)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its neurons, channels last; (size,) if it is flat."""
        return self.extents or (self.size,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its messages, ``messages.<name>``, in the order of the links."""
        return tuple(dict.fromkeys(link.input for link in self.links if link.input))

    @property
    def groups(self) -> tuple[str, ...]:
        """``inputs``, and "" if there are messages without a name, as the bias is."""
        bare = self.bias is not None or any(not link.input for link in self.links)
        return (*self.inputs, *([""] if bare else []))

    def end_of(self, group: str, weight: str) -> str:
        """The end of a delta's name: for the sum of one input's messages with one weight."""
        end = f".{group}" if group else ""
        return f"{end}.{weight}" if len(self.weights) > 1 else end

    def again(self, position: int) -> int:
        """The number of links before this one that come from the same layer."""
        source = self.links[position].source
        return sum(link.source is source for link in self.links[:position])

    @property
    def n_kinds(self) -> int:
        """The number of biases, and of values per Parameter: neurons of a kind share them."""
        return self.kinds or self.size

    @property
    def n_positions(self) -> int:
        """The number of positions at which each channel has a neuron; 0 if it is flat."""
        return self.size // self.extents[-1] if self.extents else 0

    @property
    def has_weights(self) -> bool:
        """Whether its synapses have weights: with windows only if the class reads them."""
        if not self.links or not all(link.is_placed for link in self.links):
            return True
        return has_backward(self.neuron) or self.neuron.interpreted or reads_weights(self.neuron)

    @cached_property
    def fan_in(self) -> int:
        """Synapses per neuron, the bias apart (the largest, where they differ)."""
        total = np.zeros(self.size, np.int64)
        for link in self.links:
            total += link.source.size if link.edges is None else np.diff(link.edges.indptr)
        return int(total.max(initial=0))

    @cached_property
    def typical_fan_in(self) -> int:
        """Synapses per neuron over all links, the bias apart: the mean, rounded up, where they
        differ. Initialisers scale by it.
        """
        total = 0
        for link in self.links:
            shape = None if link.edges is None else link.edges.weight_shape
            if link.edges is None:
                total += link.source.size * self.size
            elif shape is not None and link.tie is None and not link.is_turned:
                total += math.prod(shape[1:]) * self.size
            else:
                total += link.edges.n
        return -(-total // self.size)

    @cached_property
    def declarations(self) -> dict[type, dict[str, Any]]:
        """What the neuron class declared when the layer was made, by kind and name."""
        return declarations(self.neuron)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The learned numbers that the neuron class declares."""
        return self.declarations[Parameter]

    @property
    def states(self) -> dict[str, Parameter]:
        """The remembered numbers that the neuron class declares."""
        return self.declarations[State]

    @property
    def weights(self) -> dict[str, Weight]:
        """The weights of each incoming synapse."""
        return self.declarations[Weight]

    @cached_property
    def biases(self) -> dict[str, str]:
        """The arrays of the bias synapse's weights by their names; none without a bias."""
        if self.bias is None:
            return {}
        return {name: array_name(f"{self.name}.bias", name) for name in self.weights}

    def key_of(self, weight: str) -> tuple[int, ...]:
        """The key of its initial draws, besides the link: each weight draws its own."""
        return () if weight == WEIGHT else (1 + list(self.weights).index(weight),)

    @property
    def vertex_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of each neuron's learned arrays outside links: biases, Parameters."""
        names = (*self.biases.values(), *(f"{self.name}.{name}" for name in self.parameters))
        return dict.fromkeys(names, (self.n_kinds,))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all learned arrays that it owns."""
        weights = {
            array: link.shape(self.size)
            for link in self.links
            for array in link.weights.values()
            if link.tie is None
        }
        return {**weights, **self.vertex_shapes}

    @property
    def learned(self) -> tuple[str, ...]:
        """All learned arrays that it reads, also those of a layer that it is tied to."""
        of_links = (array for link in self.links for array in link.weights.values())
        return *of_links, *self.vertex_shapes

    def incoming(self, state: str, position: int | None) -> str:
        """The array of a SynapseState in forward, for one link or (None) the bias synapses."""
        if position is None:
            return f"{self.name}.bias.{state}"
        return f"{self.name}.{state}{self.suffix(position)}"

    def suffix(self, position: int) -> str:
        """The end of the names of a link's arrays, where a layer has several, or names them."""
        link = self.links[position]
        return suffix(link.input, link.source, len(self.links))

    def called(self, position: int) -> str:
        """The name of a link, which is the name of its weights unless it is tied."""
        return f"{self.name}.weight{self.suffix(position)}"

    def outgoing(self, state: str, receiver: Layer, position: int) -> str:
        """The array of a SynapseState in backward, for a link of the receiver."""
        several = sum(link.source is self for link in receiver.links) > 1
        end = f".{receiver.links[position].input}" if several else ""
        return f"{self.name}.{state}.to.{receiver.name}{end}"

    def __repr__(self) -> str:
        return f"<{self.name}: {self.size} {self.neuron.__name__}>"


@dataclass(frozen=True)
class SynapseArray:
    """The array of one SynapseState of the neurons of ``owner``, the ``place``-th of their class,
    over one link of the receiver ``layer``, or over its bias synapses (position None).
    """

    name: str
    state: SynapseState
    layer: Layer
    position: int | None
    owner: Layer
    place: int

    @property
    def shape(self) -> tuple[int, ...]:
        if self.position is None:
            return (self.layer.size,)
        return self.layer.links[self.position].n_synapses(self.layer.size)


class InputNeuron(Neuron):
    """The neurons of an input layer. They send the features of a sample."""

    def forward(self, messages: Any) -> None:
        raise ModelError("an input neuron has no messages")


def named_inputs(
    inputs: Layer | Sequence[Layer] | Mapping[str, Layer] | None,
    layers: tuple[Layer, ...],
    where: str,
) -> tuple[tuple[str, ...], tuple[Layer, ...]]:
    """The names ("" of those without one) and layers that ``inputs`` gives a new layer."""
    if isinstance(inputs, Mapping):
        names, sources = tuple(inputs), tuple(inputs.values())
        for name in names:
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
                raise ModelError(
                    f"{where}: an input is called by a word that neurons read, as messages.x; got "
                    f"{name!r}"
                )
    else:
        sources = (
            layers[-1:] if inputs is None else (inputs,) if isinstance(inputs, Layer)
            else tuple(inputs)
        )  # fmt: skip
        names = ("",) * len(sources)
    if not sources:
        raise ModelError(f"{where}: inputs is empty; name at least one layer")
    for source in sources:
        if not isinstance(source, Layer) or source not in layers:
            raise ModelError(
                f"{where}: inputs must be layers of this network, as net.input and "
                f"net.layer return them; got {source!r}"
            )
    called = [source.name for source in sources]  # each Delayed has a stand-in of its own
    twice = [name for k, name in enumerate(called) if name in called[:k] and not names[k]]
    if twice:
        raise ModelError(
            f"{where}: {twice[0]} is named twice in inputs; give each connection a name, as "
            'inputs={"x": ..., "y": ...}'
        )
    return names, sources


def later(name: str, index: int, shape: tuple[int, ...]) -> Layer:
    """A stand-in for a layer that is added later, which a delayed connection names."""
    size = math.prod(shape)
    return Layer(
        index, name, size, "later", InputNeuron, ACTIVATIONS["identity"], "identity", extents=shape
    )


def suffix(name: str, source: Layer, n_links: int) -> str:
    """The end of the names of the arrays of one link of a layer."""
    if name:
        return f".{name}"
    return f".{source.name}" if n_links > 1 else ""


def array_name(stem: str, weight: str) -> str:
    return stem if weight == WEIGHT else f"{stem}.{weight}"
