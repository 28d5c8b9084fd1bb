"""Per-batch dropout made real: who sits a batch out is not computed at all (note 0001, point 8).

A layer whose silent neurons nobody can notice is *compact*: its buffers hold the live neurons only.
Where they would be noticed (an interlayer, a sparse link, a maximum over messages, ...) everything
is computed and only the updates leave them out.
"""

from __future__ import annotations

from horn.compiler import derive, ir
from horn.compiler.ir import Node, Op, const, leaf, load, make, select
from horn.compiler.messages import ZERO, Code, Messages, Outgoing
from horn.compiler.program import Frame, Live, Output
from horn.compiler.scope import BackwardIR, ForwardIR
from horn.network import Layer, Network
from horn.optimizers import Optimizer


class Thinning(Messages):
    """Finds the layers that per-batch draws thin out."""

    def __init__(self, network: Network, optimizer: Optimizer | None) -> None:
        super().__init__(network, optimizer)
        self.thin = True  # whether layers may be compact
        self.masks: dict[int, Node] = {}  # layer -> who is live, where some sit out

    def code(
        self, layer: Layer, forward: ForwardIR, backward: BackwardIR | None, interlayer: Node | None
    ) -> Code:
        raise NotImplementedError

    def sit_out(self) -> None:
        """Find the layers that per-batch draws thin out, and compute only their live neurons where
        that changes nothing.
        """
        first = self.network.layers[0]
        out: dict[int, Node] = {}
        for code in self.codes.values():
            if code.forward.sits_out is not None:
                out[code.layer.index] = code.forward.sits_out
        candidates = [k for k in out if self.can_compact(self.codes[k])]
        if first.keep < 1.0 and first.per == "batch":
            u = leaf(Op.DRAW, "o", ("uniform", 0, "batch"))
            out[0] = make(Op.NOT, make(Op.LT, u, const(first.keep)))
            if all(
                o.link.edges is None and (o.receiver.derived.is_weighted_sum)
                for o in self.outgoing[0]
            ):
                candidates.append(0)
        if not self.thin:
            candidates = []
        for k, condition in sorted(out.items()):
            layer = self.network.layers[k]
            code = self.codes.get(k) or Code(
                layer,
                ForwardIR(ZERO, {}, None, None),
                None,
                derive.derive(ForwardIR(ZERO, {}, None, None), ()),
                None,
            )
            live = select(condition, ZERO, const(1.0))
            mask = self.buffer(f"{layer.name}#live", (f"n{k}",), full=True)
            self.loop(Frame(k), [Output(mask, self.at_vertex(live, code, "forward"))])
            self.masks[k] = load(mask, "o")
            if k in candidates:
                self.emit(Live(k, mask))
        self.known.clear()
        self.stored.clear()
        self.compact = frozenset(candidates)
        for k in candidates:
            if k:
                self.codes[k] = self.thinned(self.codes[k], out[k])

    def thinned(self, code: Code, condition: Node) -> Code:
        """The layer's code where nobody sits out."""
        forward = code.forward
        kept = ForwardIR(
            ir.assume(forward.output, condition, False),
            forward.states,
            None if forward.push is None else ir.assume(forward.push, condition, False),
            forward.sits_out,
        )
        found = self.code(code.layer, kept, code.backward, code.interlayer)
        for outgoing in self.outgoing.values():
            for position, o in enumerate(outgoing):
                if o.receiver is code:
                    outgoing[position] = Outgoing(found, o.position, o.link)
        return found

    def can_compact(self, code: Code) -> bool:
        """Whether leaving the silent neurons out of every array changes nothing."""
        layer = code.layer
        if layer.kind != "hidden" or layer.interlayer is not None or layer.states or code.is_local:
            return False
        links = [*layer.links, *(o.link for o in self.outgoing[layer.index])]
        if any(link.edges is not None for link in links):
            return False
        roots = [code.forward.output, *([code.backward.delta] if code.backward else [])]
        if any(n.op is Op.DRAW and n.value[2] == "sample" for n in ir.walk(*roots)):
            return False  # a draw per sample names every neuron of the layer
        if not all(
            o.receiver.derived.is_weighted_sum and not o.receiver.is_local
            for o in self.outgoing[layer.index]
        ):
            return False
        for (
            link
        ) in layer.links:  # senders that loop over their messages must not notice the silent ones
            sender = self.codes.get(link.source.index)
            if sender is None or sender.backward is None:
                continue
            for n in ir.walk(sender.backward.delta, *sender.backward.parameters.values()):
                if n.op is Op.REDUCE and not (n.value[0] == "sum" and vanishes(n.args[0])):
                    return False
        return True


def vanishes(node: Node) -> bool:
    """Whether a message expression of backward is 0 where the receiver's delta is."""
    found: set[Node] = set()
    for n in ir.walk(node):
        zeros = [a in found for a in n.args]
        if n.op in (Op.DELTA, Op.GRADIENT) or (n.op is Op.MUL and any(zeros)):
            found.add(n)
        elif n.op in (Op.ADD, Op.SUB, Op.NEG) and all(zeros):
            found.add(n)
    return node in found
