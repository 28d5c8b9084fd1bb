"""The place of weights and of the computation of neurons, when several tasks hold one network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from horn.connections.window import Window
from horn.errors import JobError, ModelError
from horn.layers import Layer, Link
from horn.network import Network
from horn.program import ERRORS, Frame

# The place of a link's weights: with the receiver, with the sender, or everywhere (then the rows of
# the batch are divided). The letter that tasks divide in the link's frames. In layers with a shape
# tasks have rows of the image: weights that all positions share are everywhere.
LINK_SPLITS = {"receiver": "o", "sender": "i", "replicated": "b"}
# A layer's own work: by the owner of each neuron, by rows of the batch, or by every task.
LAYER_SPLITS = {"neurons": "o", "rows": "b", "all": ""}
# By channels: each task has some channels of every position. For links through windows, each of
# whose receivers of a channel hears all channels below or its own (``has_channels``), and for
# layers with a shape; elsewhere it is by receivers, and by neurons.
CHANNELS = "channels"
# By channels of the senders: each task sums the messages of its channels of the layer below, for
# all receivers. For convolutions without groups, and links tied to them; elsewhere by senders.
INPUT_CHANNELS = "input_channels"
PLACES = (*LINK_SPLITS, CHANNELS, INPUT_CHANNELS)  # of links


@dataclass(frozen=True)
class Placement:
    """The split of a group's work: one of PLACES for every link (layer, position), one of
    LAYER_SPLITS or CHANNELS for every layer.

    Where nothing is named, every task has everything: ``Placement()`` is that of one task.
    """

    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    layers: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def default(cls, network: Network) -> Placement:
        """All weights with the receiver, every layer computed by its neurons' owners."""
        links = {
            (layer.index, position): "receiver"
            for layer in network.layers
            for position in range(len(layer.links))
        }
        return cls(links, {layer.index: "neurons" for layer in network.layers})

    @classmethod
    def rows(cls, network: Network) -> Placement:
        """All weights everywhere, the rows of the batch divided."""
        links = dict.fromkeys(cls.default(network).links, "replicated")
        return cls(links, {layer.index: "rows" for layer in network.layers})

    @classmethod
    def receivers(cls, layers: Iterable[Layer]) -> Placement:
        """The receivers of these layers divided, everything else everywhere."""
        mine = list(layers)
        links = {(x.index, position): "receiver" for x in mine for position in range(len(x.links))}
        return cls(links, {layer.index: "neurons" for layer in mine})

    def within(self, network: Network) -> Placement:
        """The same placement, by channels only where there are channels to divide."""
        links, layers = dict(self.links), dict(self.layers)
        for layer in network.layers:
            for position, link in enumerate(layer.links):
                key = layer.index, position
                if links.get(key) == CHANNELS and not has_channels(link):
                    links[key] = "receiver"
                if links.get(key) == INPUT_CHANNELS and not link.mixes_channels:
                    links[key] = "sender"
            if layers.get(layer.index) == CHANNELS and not layer.extents:
                layers[layer.index] = "neurons"
        return Placement(links, layers)

    def at(self, frame: Frame) -> Frame:
        """A frame with its split. Every task has shared numbers whole."""
        if frame.shared:
            return frame
        if frame.link is None or frame.link == ERRORS:
            return Frame(frame.layer, frame.link, _LAYERS[self.layers.get(frame.layer, "all")])
        where = self.links.get((frame.layer, frame.link))
        return Frame(frame.layer, frame.link, "" if where is None else _LINKS[where])


def has_channels(link: Link) -> bool:
    """Whether tasks can divide a link by channels of the receivers."""
    connection = link.connection
    return link.mixes_channels or (type(connection) is Window and connection.channels == 1)


_LINKS = {**LINK_SPLITS, CHANNELS: "m", INPUT_CHANNELS: "c"}
_LAYERS = {**LAYER_SPLITS, CHANNELS: "m"}


def check_pins(pins: object) -> None:
    """Raise JobError for what is no mapping of names."""
    if pins is not None and not isinstance(pins, Mapping):
        raise JobError(
            f'pins say of layers where their weights live, {{"layer1": "receiver"}}; got {pins!r}'
        )


def pinned(network: Network, pins: Mapping[str, str] | None) -> dict[tuple[int, int], str]:
    """Pins as links: {"layer2": "sender"} fixes all links of a layer, {"layer2.weight.a": ...} one.

    Raises
    ------
    ModelError : no such layer or weight, or no such placement. JobError : no pins at all.
    """
    check_pins(pins)
    found = {}
    for name, where in (pins or {}).items():
        if not isinstance(where, str) or where not in _LINKS:
            raise ModelError(
                f"pin {name}={where}: weights live with the {', the '.join(list(LINK_SPLITS)[:2])} "
                f"or are replicated; windows may be divided by {CHANNELS} or {INPUT_CHANNELS}"
            )
        mine = [
            (layer.index, position)
            for layer in network.layers
            for position in range(len(layer.links))
            if name in (layer.name, layer.called(position))
        ]
        if not mine:
            raise ModelError(f"pin {name}={where}: {_known(network.layers)}")
        for layer, position in mine:
            of = network.layers[layer]
            if where == CHANNELS and not has_channels(of.links[position]):
                raise ModelError(
                    f"pin {name}={where}: only convolutions without groups, and windows within a "
                    f"channel, are divided by {CHANNELS}; pin it to receiver"
                )
            if where == INPUT_CHANNELS and not of.links[position].mixes_channels:
                raise ModelError(
                    f"pin {name}={where}: only convolutions without groups, and what is tied to "
                    f"them, are divided by {INPUT_CHANNELS}; pin it to sender"
                )
        found.update(dict.fromkeys(mine, where))
    return found


def _known(layers: tuple[Layer, ...]) -> str:
    names = [layer.name for layer in layers if layer.links]
    return f"no layer with weights is called so; there are {', '.join(names)}"
