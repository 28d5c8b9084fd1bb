"""The changes of a batch: gradients averaged over the batch, and the optimizer's formula for every
learned number.
"""

from __future__ import annotations

from dataclasses import replace

from horn import ir
from horn.compiler.layer_code import LayerCode, Outgoing
from horn.compiler.messages import MessageExpressions
from horn.compiler.storage import Storage
from horn.compiler.thinning import Thinning
from horn.connections.tied import one_rule
from horn.errors import ModelError
from horn.ir import ZERO, Node, Op, Scalar, leaf, load, make, mul, select
from horn.ir.contraction import contract, monomials
from horn.ir.formulas import trace_update
from horn.ir.tracing import trace
from horn.layers import Link
from horn.neuron import carried
from horn.optimizers import Optimizer
from horn.program import Frame, Output, Update, changed_early

Gradient = tuple[str, Frame, Node]  # (array, frame, gradient)


class Updates:
    """Gradients and updates of weights, biases, Parameters and States. ``fuse``: compute updates
    inside the gradient's matrix product where possible.
    """

    def __init__(
        self,
        storage: Storage,
        messages: MessageExpressions,
        thinning: Thinning,
        optimizer: Optimizer,
        *,
        fuse: bool,
    ) -> None:
        self.storage, self.messages, self.thinning = storage, messages, thinning
        self.code, self.optimizer, self.fuse = messages.code, optimizer, fuse
        self.clipped: list[Gradient] = []  # waiting for their common norm
        self.pending: list[Gradient] = []  # of biases and Parameters, which others still load
        self.states: dict[tuple[int, str], Node] = {}  # (layer, State) -> its value after backward
        self.n_steps = max(storage.steps, 1)
        self.traces: list[Gradient] = []  # the new SynapseStates
        self.gathered: dict[tuple[int, int | None, str], Node] = {}  # pushes, over all steps
        self.of_tied: dict[str, list[tuple[Node, bool]]] = {}  # (a link's gradient, is it pushed)

    def update_vertex(self, code: LayerCode) -> None:
        layer, frozen = code.layer, self.storage.network.frozen
        frame = Frame(layer.index)
        own = replace(frame, shared=bool(layer.kinds))
        axes = self.storage.axes_of(own, "o")
        for full, per_sample in self.parameter_gradients(code).items():
            gradient = self.mean_of(per_sample, frame, f"{full}.gradient", bool(layer.kinds))
            self.update(full, axes, own, "o", gradient, pushed=code.backward is not None)
        with self.messages.together():
            for name, array in layer.biases.items():
                stem, node = f"{array}.gradient", self.gathered.get((layer.index, None, name))
                mean = self.mean_of if node is None else self.of_gathered
                if node is None and array not in frozen:
                    node = self.weight_gradient(code, None, name)
                if node is not None:
                    gradient = mean(node, frame, stem, bool(layer.kinds))
                    self.update(array, axes, own, "o", gradient, pushed=code.is_local)

    def parameter_gradients(self, code: LayerCode) -> dict[str, Node]:
        """d loss / d each Parameter per sample, or what is pushed to it, by its array."""
        layer, written = code.layer, code.backward
        frozen = self.storage.network.frozen
        arrays = {name: f"{layer.name}.{name}" for name in layer.parameters}
        arrays = {name: array for name, array in arrays.items() if array not in frozen}
        if written is not None:
            pushed = [written.parameters[name] for name in arrays]
            each = self.messages.all_at_vertex(pushed, code, "backward")
            each = [self.valid(node) for node in each]
        elif code.upstream is not None:
            derived = [code.derived.parameters[name] for name in arrays]
            each = self.messages.all_at_vertex(derived, code, "forward")
        else:
            return {}
        stems = [f"{array}.per_sample" for array in arrays.values()]
        found = self.storage.together(dict(zip(stems, each, strict=True)), Frame(layer.index))
        return dict(zip(arrays.values(), found.values(), strict=True))

    def gather(self, code: LayerCode) -> None:
        """Sum the pushes of a layer step by step, in sequences where its SynapseStates have one
        step only.
        """
        layer, frozen = code.layer, self.storage.network.frozen
        arrays: list[tuple[int | None, str, str]] = [
            (k, name, array) for k, x in enumerate(layer.links) for name, array in x.weights.items()
        ]
        arrays += [(None, name, array) for name, array in layer.biases.items()]
        for position, name, array in arrays:
            node = None if array in frozen else self.weight_gradient(code, position, name)
            if node is None:
                continue
            frame, letters = Frame(layer.index, position), "bo" if position is None else "boi"
            axes = self.storage.axes_of(frame, letters)
            explicit = self.storage.explicit_letters(frame, letters)
            pushed = self.storage.buffer(self.storage.fresh(f"{array}.pushed"), axes, "carried")
            with self.storage.at("first"):
                self.storage.loop(frame, [Output(pushed, ZERO, letters=explicit)])
            value = load(pushed, letters) + node
            self.storage.loop(frame, [Output(pushed, value, letters=explicit)])
            self.gathered[layer.index, position, name] = load(pushed, letters)

    def sum_gathered(self) -> None:
        """Sum the gathered pushes over the batch, after the last step."""
        for (layer, position, name), node in self.gathered.items():
            stem = f"{node.value}.sum"
            frame = Frame(layer, position)
            self.gathered[layer, position, name] = self.storage.reduction_loop(
                node, "b", "sum", frame, stem
            )

    def of_gathered(self, node: Node, frame: Frame, stem: str, is_shared: bool) -> Node:
        """The mean gradient from pushes summed over the batch and the steps."""
        if is_shared:
            node = self.storage.added(node, frame, stem)
        return mul(node, Scalar("inv_rows"))

    def mean(self, node: Node, frame: Frame, stem: str, of_steps: int = 0) -> Node:
        """The mean over the batch of an expression; without b its sum over ``of_steps`` steps."""
        if "b" not in node.axes:
            return node if of_steps < 2 else node * float(of_steps)
        total = self.storage.reduction_loop(node, "b", "sum", frame, stem)
        return mul(total, Scalar("inv_rows"))

    def mean_of(self, node: Node, frame: Frame, stem: str, is_shared: bool) -> Node:
        """The mean as ``mean``; for shared numbers summed over the synapses that share one."""
        if not is_shared:
            return self.mean(node, frame, stem, self.n_steps)
        if (live := self.thinning.live_synapse(frame)) is not None:
            node = select(live, node, ZERO)
        elif frame.link is not None and node.axes == "boi":
            link = self.storage.link(frame)
            if isinstance(link, Link) and link.convolves:
                found = self.storage.convolved(node, "b", frame, link, stem)
                if found is not None:
                    return mul(found, Scalar("inv_rows"))
        is_mean = "b" in node.axes
        if is_mean:
            node = self.storage.reduction_loop(node, "b", "sum", frame, f"{stem}.sum")
        elif self.n_steps > 1:
            node = node * float(self.n_steps)
        added = self.storage.added(node, frame, stem)
        return mul(added, Scalar("inv_rows")) if is_mean else added

    def valid(self, pushed: Node) -> Node:
        """A push at the steps of a sequence, 0 behind its end, where derived gradients are 0."""
        return pushed if self.storage.valid is None else mul(pushed, self.storage.valid)

    def weight_gradient(self, code: LayerCode, position: int | None, name: str) -> Node | None:
        """d loss / d a weight per sample, for one link (or the bias) of a receiver, by the derived
        rule or its own push; None if it has none.
        """

        def at(node: Node) -> Node:
            if position is None:
                return self.messages.at_bias(node, code)
            return self.messages.at_link(node, code, position)

        if code.is_local:
            push = code.forward.pushes.get(name)
            found = None if push is None else self.valid(at(push))
            if push is None or found is None or not ir.contains(push, Op.OF_INPUT):
                return found
            return None if ir.is_const(found, 0.0) else found  # no push for this input
        if code.deltas:
            group = "" if position is None else code.layer.links[position].input
            delta = code.deltas[group][name]
            return delta if position is None else mul(delta, at(leaf(Op.INPUT, "bi")))
        if code.upstream is not None and not code.derived.is_weighted_sum:
            return at(code.derived.weights[name])
        return None

    def update_link(self, out: Outgoing) -> None:
        """Update the weights of a link, of which every gradient may read any."""
        frame, is_shared = Frame(out.receiver.layer.index, out.position), out.link.is_shared
        own, letters = replace(frame, shared=is_shared), "o" if is_shared else "oi"
        axes = self.storage.axes_of(own, letters)
        arrays = frozenset(out.link.weights.values())
        learned = {
            n: a for n, a in out.link.weights.items() if a not in self.storage.network.frozen
        }
        with self.messages.together():
            found = {array: self.link_gradient(out, name) for name, array in learned.items()}
        self.outgoing_traces(out)
        if not self.storage.tied.isdisjoint(arrays):
            self.tie(out, found)
            return
        for array, (gradient, _) in found.items():
            if isinstance(gradient, Node) and _loads(gradient) & (arrays - {array}):
                stored = self.storage.store(gradient, own, letters, f"{array}.mean_gradient")
                found[array] = stored, found[array][1]
        for array, (gradient, pushed) in found.items():
            if isinstance(gradient, Node):
                self.update(array, axes, own, letters, gradient, pushed=pushed)
            elif gradient is not None:
                self.storage.emit(gradient)

    def tie(self, out: Outgoing, found: dict[str, tuple[Node | Update | None, bool]]) -> None:
        """Keep a link's gradient of tied arrays, in the form of their owner."""
        tie, own = out.link.tie, Frame(out.receiver.layer.index, out.position)
        for array, (gradient, pushed) in found.items():
            if gradient is None:
                continue
            assert isinstance(gradient, Node)
            stem = f"{array}.gradient.{own.layer}.{own.link}"
            if out.link.is_shared:
                shared = replace(own, shared=True)
                gradient = self.storage.store(gradient, shared, "o", stem)
                if tie is not None and not tie.link.is_shared:  # where the owner is sparse
                    gradient = load(gradient.value, "oi")
            elif tie is None:
                gradient = self.storage.store(gradient, own, "oi", stem)
            else:
                gradient = self.storage.turned_back(gradient, own, bool(tie.transposed), stem)
            self.of_tied.setdefault(array, []).append((gradient, pushed))

    def finish_tied(self) -> None:
        """Update tied arrays once, with the sum of their links' gradients."""
        for layer in self.storage.network.layers:
            for position, link in enumerate(layer.links):
                own = Frame(layer.index, position, shared=link.is_shared)
                letters = "o" if link.is_shared else "oi"
                for array in link.weights.values() if link.tie is None else ():
                    terms = self.of_tied.get(array)
                    if terms is None:
                        continue
                    of_both = len({pushed for _, pushed in terms}) > 1
                    if of_both and self.optimizer.tells_pushes_apart:
                        raise ModelError(one_rule(array))
                    total: Node = ZERO
                    for node, _ in terms:
                        total = ir.add(total, node)
                    axes = self.storage.axes_of(own, letters)
                    self.update(array, axes, own, letters, total, pushed=terms[0][1])

    def link_gradient(self, out: Outgoing, name: str) -> tuple[Node | Update | None, bool]:
        """The mean gradient of one weight, or an update that computes it itself, or None if there
        is none; and whether it is pushed.
        """
        code, position, link = out.receiver, out.position, out.link
        array = link.weights[name]
        sender = self.code.layers.get(link.source.index)
        frame = Frame(code.layer.index, position)
        self.messages.weight(code.layer, position, name)
        gathered = self.gathered.get((code.layer.index, position, name))
        if gathered is not None:
            stem = f"{array}.gradient"
            return self.of_gathered(gathered, frame, stem, link.is_shared), True
        push = None
        if sender is not None and sender.backward is not None:
            push = sender.backward.push_to(name, link.names)
        node: Node | None
        if sender is not None and push is not None:
            node = self.valid(self.messages.at_outgoing(push, sender, out))
        else:
            node = self.weight_gradient(code, position, name)
        pushed = push is not None or code.is_local
        tied = array in self.storage.tied
        if node is not None and tied and (live := self.thinning.live_synapse(frame)) is not None:
            node = select(live, node, ZERO)
        fused = None if node is None or tied else self.fused_update(link, array, frame, node)
        if node is None or fused is not None:
            return fused, pushed
        if link.is_shared:
            return self.mean_of(node, frame, f"{array}.gradient", True), pushed
        return self.mean_over_link(node, frame, f"{array}.gradient"), pushed

    def mean_over_link(self, node: Node, frame: Frame, stem: str) -> Node:
        """The mean over the batch of a link's expression, by a product where it is one."""
        found = None
        if "b" in node.axes and self.storage.link(frame).edges is None:
            rows: Node = Scalar("rows")
            found = contract(node, "b", rows * float(self.n_steps) if self.storage.steps else rows)
        if found is None:
            return self.mean(node, frame, stem, self.n_steps)
        return mul(self.storage.resolve(found, frame, stem), Scalar("inv_rows"))

    def incoming_traces(self, code: LayerCode) -> None:
        """Store the SynapseStates that forward assigns in a layer, before any update."""
        for name, node in code.forward.traces.items():
            for position, _ in enumerate(code.layer.links):
                here = self.messages.at_link(node, code, position)
                frame = Frame(code.layer.index, position)
                self.keep_trace(code.layer.incoming(name, position), frame, here)
            if code.layer.bias is not None:
                here = self.messages.at_bias(node, code)
                self.keep_trace(code.layer.incoming(name, None), Frame(code.layer.index), here)

    def outgoing_traces(self, out: Outgoing) -> None:
        """Assignments of a sender's backward to SynapseStates of a link, without silent neurons."""
        sender = self.code.layers.get(out.link.source.index)
        if sender is None or sender.backward is None:
            return
        frame = Frame(out.receiver.layer.index, out.position)
        asked = self.thinning.takes_part(out.link.source.index, "i")
        for name, node in sender.backward.traces.items():
            array = sender.layer.outgoing(name, out.receiver.layer, out.position)
            after = self.messages.at_outgoing(node, sender, out)
            if asked is not None:
                after = select(asked, after, self.messages.trace(array, frame))
            self.keep_trace(array, frame, after)

    def keep_trace(self, array: str, frame: Frame, node: Node) -> None:
        """Store the mean over the batch of a SynapseState's new values, to be kept at the end."""
        before, stem = self.messages.trace(array, frame), f"{array}.mean"
        if node is before:
            return
        link = frame.link is not None
        mean = self.mean_over_link(node, frame, stem) if link else self.mean(node, frame, stem)
        letters = "oi" if link else "o"
        self.traces.append((array, frame, self.storage.store(mean, frame, letters, stem)))

    def fused_update(self, link: Link, array: str, frame: Frame, node: Node) -> Update | None:
        """The update inside the gradient's matrix product, where the optimizer is plain enough."""
        momentum = self.optimizer.plain_momentum
        if not self.fuse or momentum is None or link.edges is not None:
            return None
        if self.thinning.live_synapse(frame) is not None:
            return None
        terms = monomials(node)
        if terms is None or len(terms) != 1 or terms[0][0] != 1.0 or len(terms[0][1]) != 2:
            return None
        a, b = sorted(terms[0][1], key=lambda n: n.axes != "bo")
        if a.op is not Op.LOAD or b.op is not Op.LOAD or (a.axes, b.axes) != ("bo", "bi"):
            return None
        velocity = None
        if momentum:
            velocity = f"{array}/velocity"
            self.storage.persistent(velocity, self.storage.axes_of(frame, "oi"), "slot")
        return Update(frame, array, velocity, momentum, a.value, b.value)

    def update(
        self,
        name: str,
        axes: tuple[str, ...],
        frame: Frame,
        letters: str,
        gradient: Node,
        pushed: bool,
    ) -> None:
        """Apply the optimizer to one array, now, or once all gradients are known (clip_norm)."""
        self.storage.persistent(name, axes, "learned")
        o = self.optimizer
        live = self.thinning.live_number(frame)
        if not self.fuse:
            if live is not None:
                gradient = select(live, gradient, ZERO)
            gradient = self.storage.store(gradient, frame, letters, f"{name}.mean_gradient")
            self.storage.probes[f"{name}.gradient"] = gradient.value
        elif gradient.op is not Op.LOAD:
            gradient = self.storage.lift_out(gradient, frame, letters, set(), {})
        if not pushed:
            gradient = trace(o.of_derived, gradient, Scalar("learning_rate"))
        w = None if frame.link is None else self.storage.learned(name, axes, letters)
        gradient = trace(o.prepared, gradient, w)
        if live is not None:
            gradient = select(live, gradient, ZERO)
        if o.clip_norm is not None:
            gradient = self.storage.store(gradient, frame, letters, f"{name}.clipped")
            self.clipped.append((name, frame, gradient))
        elif frame.link is None:
            gradient = self.storage.store(gradient, frame, letters, f"{name}.mean_gradient")
            self.pending.append((name, frame, gradient))
        else:
            self.apply(name, frame, gradient)

    def apply(self, name: str, frame: Frame, gradient: Node) -> None:
        o = self.optimizer
        axes = self.storage.buffers[name].axes
        letters = "o" if frame.link is None or frame.shared else "oi"
        slots = {}
        for slot in o.slots:
            if slot not in o.kept_slots:
                slots[slot] = ZERO
                continue
            self.storage.persistent(f"{name}/{slot}", axes, "slot")
            slots[slot] = load(f"{name}/{slot}", letters)
        w = load(name, letters)
        new, memory = trace_update(o, w, gradient, slots)
        results = [
            (name, w, new),
            *((f"{name}/{s}", slots[s], m) for s, m in memory.items() if slots[s].op is Op.LOAD),
        ]
        results = [found for found in results if found[2] is not found[1]]
        live = self.thinning.live_number(frame)
        if live is not None:
            results = [(buffer, old, select(live, value, old)) for buffer, old, value in results]
        scatter = any(axis == f"n{k}" for k in self.storage.compact for axis in axes)
        if results:
            self.storage.loop(
                frame,
                [
                    Output(buffer, value, letters=self.storage.explicit_letters(frame, letters))
                    for buffer, _, value in results
                ],
                scatter,
            )

    def finish(self) -> None:
        """Write the statements that wait for the end of the backward pass."""
        self.finish_tied()
        if not self.storage.steps:
            self.keep_states()
        for name, frame, mean in self.traces:
            self.storage.loop(frame, [Output(name, mean)])
        for name, frame, gradient in self.pending:
            self.apply(name, frame, gradient)
        self.apply_clipped()
        self.hold_back()

    def hold_back(self) -> None:
        """Put the updates of what a later gradient reads behind all gradients.

        The rest stay beside their gradients, where these need no memory of their own: the weights
        of a layer are read by the gradient of its inputs, before its update, and by no other,
        unless its neurons are more than weighted sums and have several inputs.
        """
        emitted, held = self.storage.statements, dict[int, None]()
        numbers = list(range(len(emitted)))
        while True:
            early = changed_early(self.storage.buffers, [emitted[n] for n in numbers])
            new = {numbers[place] for place in early} - held.keys()
            if not new:
                break
            held = dict.fromkeys(sorted(new | held.keys()))  # these read what others change, too
            numbers = [n for n in range(len(emitted)) if n not in held] + [*held]
        emitted[:] = [emitted[n] for n in numbers]

    def apply_clipped(self) -> None:
        """Scale all gradients together so that their norm is at most clip_norm, and apply them."""
        if self.optimizer.clip_norm is None or not self.clipped:
            return
        total: Node = ZERO
        for name, frame, gradient in self.clipped:
            square = gradient * gradient
            if "i" in square.axes:
                square = self.storage.reduction_loop(square, "i", "sum", frame, f"{name}.squares")
            over = frame if frame.shared else Frame(frame.layer)
            total = total + self.storage.reduction_loop(square, "o", "sum", over, f"{name}.norm")
        frame = Frame(self.storage.network.last.index)
        factor = trace(self.optimizer.clip_factor, make(Op.SQRT, total))
        scale = self.storage.store(factor, frame, "", "clip")
        for name, frame, gradient in self.clipped:
            self.apply(name, frame, gradient * scale)

    def keep_states(self) -> None:
        """Keep the mean over the samples of each State at the end of a batch."""
        for code in self.code.layers.values():
            layer = code.layer
            frame = Frame(layer.index)
            for name in layer.states:
                key = (layer.index, name)
                if name in carried(layer.neuron):
                    continue
                now = self.states.get(key, self.messages.states.get(key))
                if now is None:
                    continue
                full = f"{layer.name}.{name}"
                self.storage.persistent(full, (f"n{layer.index}",), "state")
                self.storage.loop(frame, [Output(full, self.mean(now, frame, f"{full}.sum"))])
        for kept in self.storage.network.synapse_states:
            of_step = self.messages.traces.get(kept.name)
            if of_step is None or kept.state.per == "sample":
                continue
            node = load(of_step.now, "b" + of_step.letters)
            mean = self.mean(node, of_step.frame, f"{kept.name}.sum")
            explicit = self.storage.explicit_letters(of_step.frame, of_step.letters)
            self.storage.loop(of_step.frame, [Output(kept.name, mean, letters=explicit)])


def _loads(root: Node) -> set[str]:
    """The buffers that an expression reads."""
    return {node.value for node in ir.walk(root) if node.op is Op.LOAD}
