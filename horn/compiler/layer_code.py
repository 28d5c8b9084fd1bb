"""The IR of every layer of a network, with its gradients while the program is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from horn import ir, losses
from horn.ir import ZERO, Node, Op, derive
from horn.ir.neuron_ir import BackwardIR, ForwardIR
from horn.language.layers import Reading
from horn.layers import Layer, Link
from horn.network import Network
from horn.neuron import WEIGHT, carried


@dataclass
class LayerCode:
    """The IR of one layer, its gradients, and the state of its compilation.

    is_heard : an output layer that others hear, with a delay.
    upstream, deltas : d loss / d output, d loss / d sum of each weight (b, o) by the name of the
    input and the weight, once they are known.
    """

    layer: Layer
    reading: Reading
    forward: ForwardIR
    backward: BackwardIR | None = None
    interlayer: Node | None = None
    is_heard: bool = False
    upstream: Node | None = None
    deltas: dict[str, dict[str, Node]] = field(default_factory=dict)

    def rewrite(self, forward: ForwardIR) -> None:
        """Replace the forward, and with it its gradients."""
        self.forward = forward
        vars(self).pop("derived", None)

    @property
    def stable(self) -> bool:
        """Whether ``derived`` starts from the summed input of a sigmoid, for its cross-entropy."""
        return (
            self.layer.loss == losses.LOSSES["binary_cross_entropy"]
            and self.interlayer is None
            and not self.is_heard
            and self.forward.output.op is Op.SIGMOID
        )

    @cached_property
    def derived(self) -> derive.Derived:
        """The gradients of the forward; inference needs none."""
        root = self.forward
        if self.stable:
            root = ForwardIR(root.output.args[0], root.states, root.pushes, None)
        return self.reading.derived(root, self.layer, carried(self.layer.neuron))

    @property
    def is_local(self) -> bool:
        return bool(self.forward.pushes)

    @property
    def reads_target(self) -> bool:
        """Whether its neurons read self.target in forward."""
        return any(ir.contains(root, Op.TARGET) for root in self.forward.roots)

    @property
    def sends_delta(self) -> bool:
        """Whether gradients flow back through this layer."""
        return bool(self.deltas) or self.upstream is not None


@dataclass(frozen=True)
class Outgoing:
    """A link seen from its source."""

    receiver: LayerCode
    position: int
    link: Link


class NetworkCode:
    """The code of each layer except the input, by its index, and the links that leave each layer.
    ``written``: the layers whose written backward is used; None for all. reading : as for
    ``lower.training_program``.
    """

    def __init__(
        self, network: Network, training: bool, written: frozenset[int] | None = None,
        reading: Reading | None = None,
    ) -> None:  # fmt: skip
        self.reading = reading = reading or Reading()
        self.layers: dict[int, LayerCode] = {}
        for layer in network.layers[1:]:
            own = written is None or layer.index in written
            read = reading.layer(layer, training, own, network.receivers(layer))
            heard = layer.kind == "output" and bool(network.receivers(layer))
            self.layers[layer.index] = LayerCode(layer, reading, *read, heard)
        self.outgoing: dict[int, list[Outgoing]] = {layer.index: [] for layer in network.layers}
        for code in self.layers.values():
            for position, link in enumerate(code.layer.links):
                self.outgoing[link.source.index].append(Outgoing(code, position, link))

    def of(self, layer: Layer) -> LayerCode:
        """The code of a layer; the input's computes nothing."""
        found = self.layers.get(layer.index)
        return found or LayerCode(layer, self.reading, ForwardIR(ZERO, {}, {}, None))

    def check_messages(self) -> None:
        """Check that a written backward and its receivers agree on delta and push."""
        for code in self.layers.values():
            written = code.backward
            if written is None:
                continue
            for out in self.outgoing[code.layer.index]:
                receiver, name = out.receiver, code.layer.neuron.__name__
                other = receiver.layer.neuron.__name__
                pushes, deltas = bool(written.pushes), bool(written.reads[Op.DELTA])
                _check_weights(name, written, receiver.layer)
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


def _check_weights(name: str, written: BackwardIR, receiver: Layer) -> None:
    """Check that a written backward names weights that the synapses to a receiver have."""
    has, where = tuple(receiver.weights), f"toward {receiver.name} ({receiver.neuron.__name__})"
    listed = ", ".join(has)
    for op, word in ((Op.WEIGHT, "m."), (Op.DELTA, "m.delta.")):
        for asked in written.reads[op]:
            weight = WEIGHT if op is Op.WEIGHT and asked is None else asked
            if weight in has or (weight is None and len(has) == 1):
                continue
            read = "m.delta" if weight is None else f"{word}{weight}"
            raise written.error(
                f"{name}.backward reads {read} {where}, whose synapses have {listed}: read "
                f"{word}{has[0]}, or m.gradient (d loss / d input), or leave backward out",
            )
    for pushed in written.pushes:
        if pushed not in has and (pushed or len(has) > 1):
            said = f'push(..., to="{pushed}")' if pushed else "push without to="
            raise written.error(
                f"{name}.backward has {said} {where}, whose synapses have {listed}: say "
                f'to="{has[0]}"',
            )
