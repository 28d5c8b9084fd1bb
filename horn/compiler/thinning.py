"""Per-batch dropout: neurons that sit a batch out are not computed at all (note 0001, point 8).

A layer whose silent neurons have no effect is *compact*: its buffers hold the live neurons only.
Where they have one (an interlayer, a sparse link, a maximum over messages, ...) everything
is computed and only the updates leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable

from horn import ir
from horn.compiler.layer_code import LayerCode
from horn.compiler.messages import MessageExpressions
from horn.compiler.storage import Storage
from horn.ir import ZERO, Node, Op, const, leaf, load, make, select
from horn.ir.neuron_ir import ForwardIR
from horn.language.layers import asks
from horn.layers import Link
from horn.neuron import OF_A_SAMPLE
from horn.program import Frame, Live, Output


class Thinning:
    """Finds the layers that per-batch draws thin out. ``thin``: whether they may be compact."""

    def __init__(self, storage: Storage, messages: MessageExpressions, thin: bool) -> None:
        self.storage, self.messages, self.thin = storage, messages, thin
        self.network, self.code = storage.network, messages.code
        self.masks: dict[int, str] = {}  # layer -> the mask of its live neurons, where some sit out

    def takes_part(self, layer: int, letter: str = "o") -> Node | None:
        """Whether a neuron takes part in the batch, as a mask; None if all do or it is compact."""
        if layer not in self.masks or layer in self.storage.compact:
            return None
        return make(Op.NE, load(self.masks[layer], letter), ZERO)

    def live_synapse(self, frame: Frame) -> Node | None:
        """Whether both ends of a synapse take part, likewise; None for shared numbers."""
        if frame.shared:
            return None
        here = self.takes_part(frame.layer)
        if frame.link is None:
            return here
        there = self.takes_part(self.storage.link(frame).source.index, "i")
        if here is None or there is None:
            return there if here is None else here
        return make(Op.AND, here, there)

    def live_number(self, frame: Frame) -> Node | None:
        """Whether a number of a link or layer is learned, likewise; None for tied ones."""
        link = None if frame.link is None else self.storage.link(frame)
        if isinstance(link, Link) and not self.storage.tied.isdisjoint(link.weights.values()):
            return None
        return self.live_synapse(frame)

    def sit_out(self) -> None:
        """Find the layers that per-batch draws thin out, and compute only their live neurons where
        that changes nothing.
        """
        first = self.network.layers[0]
        out: dict[int, Node] = {}
        for code in self.code.layers.values():
            if code.forward.sits_out is not None:
                out[code.layer.index] = code.forward.sits_out
        candidates = [k for k in out if self.can_compact(self.code.layers[k])]
        if first.keep < 1.0 and first.per == "batch":
            u = leaf(Op.DRAW, "o", ("uniform", 0, "batch"))
            out[0] = make(Op.NOT, make(Op.LT, u, const(first.keep)))
            links = [o.link for o in self.code.outgoing[0]]
            if self.are_plain(links) and self.are_deaf(0) and not self.remembers(0):
                candidates.append(0)
        if not self.thin:
            candidates = []
        for k, condition in sorted(out.items()):
            layer = self.network.layers[k]
            code = self.code.of(layer)
            live = select(condition, ZERO, const(1.0))
            mask = self.storage.buffer(f"{layer.name}#live", (f"n{k}",), full=True)
            self.storage.loop(
                Frame(k), [Output(mask, self.messages.at_vertex(live, code, "forward"))]
            )
            self.masks[k] = mask
            if k in candidates:
                self.storage.emit(Live(k, mask))
        self.messages.known.clear()
        self.storage.stored.clear()
        self.storage.compact = frozenset(candidates)
        for k in candidates:
            if k:
                self.code.layers[k].rewrite(without(self.code.layers[k].forward, out[k]))

    def remembers(self, layer: int) -> bool:
        """Whether a synapse to or from a layer has a SynapseState."""
        links = ((x.layer, x.position) for x in self.network.synapse_states)
        ends = [(x, x if k is None else x.links[k].source) for x, k in links]
        return any(layer in (x.index, source.index) for x, source in ends)

    def can_compact(self, code: LayerCode) -> bool:
        """Whether leaving the silent neurons out of every array changes nothing."""
        layer = code.layer
        if layer.kind != "hidden" or layer.interlayer is not None or layer.states or code.is_local:
            return False
        if asks(code.forward):
            return False
        links = [*layer.links, *(o.link for o in self.code.outgoing[layer.index])]
        if not self.are_plain(links) or self.remembers(layer.index):
            return False
        if any(
            n.op in (Op.MESSAGE_DRAW, Op.ERROR, Op.ERROR_DRAW)
            or (n.op is Op.DRAW and n.value[2] in OF_A_SAMPLE)
            for n in ir.walk(*code.forward.roots, *(code.backward.roots if code.backward else []))
        ):
            return False  # a draw per sample, or per message, numbers all neurons of the layer
        if any(o.receiver.is_local for o in self.code.outgoing[layer.index]):
            return False
        if not self.are_deaf(layer.index):
            return False
        for link in layer.links:  # a sender's loop over messages must not notice the silent ones
            sender = self.code.layers.get(link.source.index)
            if sender is None or sender.backward is None:
                continue
            roots = sender.backward.roots
            drawn = any(ir.contains(root, Op.MESSAGE_DRAW) for root in roots)
            if drawn or notices(roots, Op.DELTA, Op.GRADIENT):
                return False
        return True

    def are_plain(self, links: Iterable[Link]) -> bool:
        """Whether links are dense, with weights of their own."""
        tied = self.storage.tied
        return all(x.edges is None and tied.isdisjoint(x.weights.values()) for x in links)

    def are_deaf(self, layer: int) -> bool:
        """Whether nothing that the receivers of a layer compute notices inputs of 0."""
        receivers = [o.receiver for o in self.code.outgoing[layer]]
        return all(
            x.derived.is_weighted_sum and not notices(x.forward.roots[1:], Op.INPUT)
            for x in receivers
        )


def without(forward: ForwardIR, condition: Node) -> ForwardIR:
    """A layer's forward under the condition that no neuron sits out."""
    return ForwardIR(
        ir.assume(forward.output, condition, False),
        forward.states,
        {name: ir.assume(push, condition, False) for name, push in forward.pushes.items()},
        forward.sits_out,
        forward.traces,
    )


def notices(roots: Iterable[Node], *zeros: Op) -> bool:
    """Whether expressions notice messages of which these reads are 0."""
    return any(
        n.value[0] != "sum" or not vanishes(n.args[0], zeros)
        for n in ir.walk(*roots)
        if n.op is Op.REDUCE and n.value[1] == "i"
    )


def vanishes(node: Node, zeros: tuple[Op, ...]) -> bool:
    """Whether a message expression is 0 where these reads are."""
    found: set[Node] = set()
    for n in ir.walk(node):
        of_zeros = [a in found for a in n.args]
        if n.op in zeros or (n.op is Op.MUL and any(of_zeros)):
            found.add(n)
        elif n.op in (Op.ADD, Op.SUB, Op.NEG) and all(of_zeros):
            found.add(n)
    return node in found
