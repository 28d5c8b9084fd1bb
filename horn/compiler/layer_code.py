"""The IR of every layer of a network, and what is known of it while its program is built."""

from __future__ import annotations

from dataclasses import dataclass, field

from horn import losses
from horn.compiler.contraction import exact_sums
from horn.language import derive
from horn.language.ir import ZERO, Node, Op
from horn.language.layers import read_layer
from horn.language.neuron_ir import BackwardIR, ForwardIR
from horn.network import Layer, Link, Network


@dataclass
class LayerCode:
    """The IR of one layer, its gradients, and how far its program has got.

    stable : ``derived`` starts from the summed input of a sigmoid with binary cross-entropy.
    exact : sums that are no matrix products (contraction.exact_sums).
    upstream, delta : d loss / d output, d loss / d sum (b, o), once they are known.
    """

    layer: Layer
    forward: ForwardIR
    backward: BackwardIR | None = None
    interlayer: Node | None = None
    derived: derive.Derived = field(init=False)
    stable: bool = field(init=False)
    exact: frozenset[Node] = field(init=False)
    upstream: Node | None = None
    delta: Node | None = None

    def __post_init__(self) -> None:
        self.rewrite(self.forward)

    def rewrite(self, forward: ForwardIR) -> None:
        """Another forward in the place of the first."""
        self.forward = root = forward
        self.stable = (
            self.layer.loss is losses.LOSSES["binary_cross_entropy"]
            and self.interlayer is None
            and forward.output.op is Op.SIGMOID
        )
        if self.stable:
            root = ForwardIR(forward.output.args[0], forward.states, forward.push, None)
        self.derived = derive.derive(root, self.layer.parameters)
        self.exact = exact_sums(forward.output, *forward.states.values())

    @property
    def is_local(self) -> bool:
        return self.forward.push is not None

    @property
    def sends_delta(self) -> bool:
        """Whether anything flows back through this layer."""
        return self.delta is not None or self.upstream is not None


@dataclass(frozen=True)
class Outgoing:
    """A link seen from its source."""

    receiver: LayerCode
    position: int
    link: Link


class NetworkCode:
    """The code of each layer with neurons of its own, by its index, and the links that leave each
    layer. ``written``: the layers whose written backward is used; None for all.
    """

    def __init__(
        self, network: Network, training: bool, written: frozenset[int] | None = None
    ) -> None:
        self.layers = {
            layer.index: LayerCode(
                layer, *read_layer(layer, training, written is None or layer.index in written)
            )
            for layer in network.layers[1:]
        }
        self.outgoing: dict[int, list[Outgoing]] = {layer.index: [] for layer in network.layers}
        for code in self.layers.values():
            for position, link in enumerate(code.layer.links):
                self.outgoing[link.source.index].append(Outgoing(code, position, link))

    def of(self, layer: Layer) -> LayerCode:
        """A layer's code; that of the input computes nothing."""
        return self.layers.get(layer.index) or LayerCode(layer, ForwardIR(ZERO, {}, None, None))

    def check_messages(self) -> None:
        """A written backward and its receivers must mean the same by delta and push."""
        for code in self.layers.values():
            written = code.backward
            if written is None:
                continue
            for out in self.outgoing[code.layer.index]:
                receiver, name = out.receiver, code.layer.neuron.__name__
                other = receiver.layer.neuron.__name__
                pushes, deltas = written.push is not None, written.uses_delta
                if pushes and receiver.is_local:
                    raise written.error(
                        f"{name}.backward pushes toward {receiver.layer.name}, but {other} "
                        "learns from its own push in forward: leave the push out of "
                        f"{name}.backward",
                    )
                if (pushes or deltas) and not receiver.derived.is_weighted_sum:
                    what = "m.delta" if deltas else "push"
                    raise written.error(
                        f"{name}.backward uses {what} toward {receiver.layer.name}, but "
                        f"{other}.forward is more than a function of sum(input * weight) and has"
                        " no one delta: read m.gradient, and do not push, or leave backward out",
                    )
