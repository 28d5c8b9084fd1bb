"""The backward pass of a program: each layer's delta, and the updates that it leads to."""

from __future__ import annotations

from functools import cached_property

from horn import ir
from horn.compiler.layer_code import LayerCode, Outgoing
from horn.compiler.messages import MessageExpressions, state_back, swap, where_member
from horn.compiler.storage import Storage
from horn.compiler.thinning import Thinning
from horn.compiler.updates import Updates
from horn.ir import UPSTREAM, ZERO, Node, Op, const, leaf, load, select
from horn.layers import Layer
from horn.program import Frame, Output


class Backward:
    """Goes through the layers from the last to the first. ``masked``: as for
    ``lower.training_program``.
    """

    def __init__(
        self,
        storage: Storage,
        messages: MessageExpressions,
        thinning: Thinning,
        updates: Updates,
        masked: frozenset[int],
    ) -> None:
        self.storage, self.messages, self.thinning = storage, messages, thinning
        self.code, self.updates, self.masked = messages.code, updates, masked
        self.asked = self.who_is_asked()
        self.is_judged = False

    @cached_property
    def flows(self) -> set[int]:
        """The layers of ``who_is_heard``, once it is known whether there is a loss."""
        return self.who_is_heard()

    def run(self) -> None:
        if self.storage.steps:
            self.run_steps()
            return
        with self.messages.together():
            for code in self.code.layers.values():
                self.updates.incoming_traces(code)
        for layer in reversed(self.storage.network.layers):
            self.layer(layer)
        self.updates.finish()

    def run_steps(self) -> None:
        """Write the deltas of sequences, step by step backwards; then gradients over all steps."""
        self.storage.begin("backward")
        layers = [self.code.layers[x.index] for x in reversed(self.storage.network.layers[1:])]
        for code in layers:
            self.delta(code)
        for code in layers:
            self.send_back(code)
        self.storage.begin("last")
        for layer in reversed(self.storage.network.layers):
            code_of = self.code.layers.get(layer.index)
            if code_of is not None:
                self.updates.update_vertex(code_of)
            for out in self.code.outgoing[layer.index]:
                self.updates.update_link(out)
        self.updates.finish()

    def send_back(self, code: LayerCode) -> None:
        """Write the gradients for earlier steps: of a layer's delayed sources and own States."""
        layer = code.layer
        if layer.index not in self.flows:
            return
        for position, link in enumerate(layer.links):
            if not link.delay or link.source.index not in self.flows:
                continue
            out, frame = Outgoing(code, position, link), Frame(layer.index, position)
            part = self.storage.reduced(
                self.messages.input_gradient(out), "o", "sum", frame,
                f"{link.source.name}.gradient",
            )  # fmt: skip
            self.send(back_of(out), link.source, swap(part))
        states = code.derived.states
        each = self.messages.each_at_vertex(states.values(), code, "forward")
        for name, found in zip(states, each, strict=True):
            self.send(state_back(layer, name), layer, found)

    def send(self, name: str, layer: Layer, node: Node) -> None:
        self.storage.buffer(name, ("b", f"n{layer.index}"))
        self.storage.loop(Frame(layer.index), [Output(name, node)])

    def who_is_heard(self) -> set[int]:
        """The layers that gradients flow back through, at any step."""
        first, derived = list[int](), set[int]()
        for index, code in self.code.layers.items():
            is_derived = not code.is_local and index in self.asked
            judged = code.layer.loss is not None and self.is_judged
            if code.backward is not None or (is_derived and judged):
                first.append(index)
            elif is_derived:
                derived.add(index)
        links = {
            k: [x.source.index for x in code.layer.links] for k, code in self.code.layers.items()
        }
        return _reached(first, links, derived)

    def who_is_asked(self) -> set[int]:
        """The layers whose delta is needed: they, or layers that they depend on, have arrays that
        are not frozen, or a written backward, which may have States.
        """
        frozen, layers = self.storage.network.frozen, self.code.layers
        first = [
            index
            for index, code in layers.items()
            if code.backward is not None or not frozen.issuperset(code.layer.learned)
        ]
        links = {k: [o.receiver.layer.index for o in out] for k, out in self.code.outgoing.items()}
        return _reached(first, links, set(layers))

    def layer(self, layer: Layer) -> None:
        """Write this layer's delta, then the updates of its own arrays (bias, parameters) and of
        its outgoing weights.
        """
        code = self.code.layers.get(layer.index)
        if code is not None:
            self.delta(code)
            self.updates.update_vertex(code)
        for out in self.code.outgoing[layer.index]:
            self.updates.update_link(out)

    def delta(self, code: LayerCode) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        stem = f"{layer.name}.delta"
        if code.backward is not None:
            node = self.messages.at_vertex(code.backward.delta, code, "backward")
            here = self.thinning.takes_part(layer.index)
            taking_part = const(1.0) if here is None else here
            node = select(taking_part, node, ZERO)  # a neuron that sits out is not called
            (name,) = layer.weights
            delta = self.storage.store(node, frame, "bo", stem)
            code.deltas = {group: {name: delta} for group in layer.groups}
            code.upstream = None
            for name, node in code.backward.states.items():
                now = self.storage.buffer(
                    self.storage.fresh(f"{layer.name}.{name}.after"), ("b", f"n{layer.index}")
                )
                before = self.state_now(layer, name, code)
                after = self.messages.at_vertex(node, code, "backward")
                self.storage.loop(frame, [Output(now, select(taking_part, after, before))])
                self.updates.states[layer.index, name] = load(now, "bo")
        else:
            if code.is_local or layer.index not in self.asked:
                code.upstream = None
            elif layer.kind == "output":
                code.upstream = self.of_output(code)
            else:
                code.upstream = self.from_receivers(code)
                if code.upstream is not None and layer.index in self.masked:
                    code.upstream = where_member(layer, code.upstream)
            if code.upstream is None:
                return
            if code.interlayer is not None and layer.kind != "output":
                code.upstream = self.messages.through_interlayer(code, code.upstream)
            self.messages.known[layer.index, "forward", UPSTREAM] = code.upstream
            if code.derived.is_weighted_sum:
                found = {
                    stem + layer.end_of(group, name): node
                    for group, of_weights in code.derived.deltas.items()
                    for name, node in of_weights.items()
                }
                nodes = self.messages.all_at_vertex([*found.values()], code, "forward")
                found = dict(zip(found, nodes, strict=True))
                if not self.storage.steps:  # which need some step by step, and others once
                    found = self.storage.together(found, frame)
                for group, of_weights in code.derived.deltas.items():
                    code.deltas[group] = {}
                    for name in of_weights:
                        own = stem + layer.end_of(group, name)
                        code.deltas[group][name] = self.storage.store(found[own], frame, "bo", own)
            else:
                code.upstream = self.storage.store(
                    code.upstream, frame, "bo", f"{layer.name}.upstream"
                )
                self.messages.known[layer.index, "forward", UPSTREAM] = code.upstream
        for group, deltas in code.deltas.items():
            for name, each in deltas.items():
                self.storage.probes[stem + layer.end_of(group, name)] = each.value

    def state_now(self, layer: Layer, name: str, code: LayerCode) -> Node:
        """The value of a State after forward."""
        now = self.messages.states.get((layer.index, name))
        if now is None:
            return self.messages.at_vertex(leaf(Op.STATE, "bo", name), code, "forward")
        return now

    def sends(self, out: Outgoing) -> bool:
        """Whether gradients flow back along a link."""
        if out.link.delay:
            return out.receiver.layer.index in self.flows
        return out.receiver.sends_delta

    def of_output(self, code: LayerCode) -> Node | None:
        """The gradient of the output: from the loss, and from its delayed receivers."""
        returned = self.from_receivers(code)
        if returned is not None and code.interlayer is not None:
            returned = self.messages.through_interlayer(code, returned, "late")
        if returned is None or code.upstream is None:
            return code.upstream if returned is None else returned
        return ir.add(code.upstream, returned)

    def from_receivers(self, code: LayerCode) -> Node | None:
        """d loss / d output: the sum of m.gradient over the outgoing synapses. None if no gradient
        flows back.
        """
        live = [o for o in self.code.outgoing[code.layer.index] if self.sends(o)]
        if not live:
            return None
        total: Node = ZERO
        for out in live:
            if out.link.delay:  # from the later step that heard it
                axes = ("b", f"n{code.layer.index}")
                ahead = self.storage.late(back_of(out), axes, -out.link.delay)
                total = ir.add(total, load(ahead, "bo"))
                continue
            frame = Frame(out.receiver.layer.index, out.position)
            gradient = self.messages.input_gradient(out)
            if ir.is_const(gradient, 0.0):  # an input that the receiver does not read
                continue
            part = self.storage.reduced(gradient, "o", "sum", frame, f"{code.layer.name}.gradient")
            if out.link.is_reversed:  # from the mirrored step that heard it
                self.send(back_of(out), code.layer, swap(part))
                axes = ("b", f"n{code.layer.index}")
                back = self.storage.reversed(back_of(out), axes, code.layer.index)
                total = ir.add(total, load(back, "bo"))
                continue
            total = ir.add(total, swap(part))
        return total


def _reached(first: list[int], links: dict[int, list[int]], among: set[int]) -> set[int]:
    """The first layers, and those among others that links lead to from them."""
    found, ahead = set(first), first
    while ahead:
        new = (set(links[ahead.pop()]) & among) - found
        found |= new
        ahead.extend(new)
    return found


def back_of(out: Outgoing) -> str:
    """The buffer of the gradient that a delayed or reversed link returns to its source."""
    return f"{out.link.source.name}.from.{out.receiver.layer.name}.{out.position}"
