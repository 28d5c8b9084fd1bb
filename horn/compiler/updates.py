"""What a batch changes: gradients averaged over the batch, and the optimizer's formula for every
learned number.
"""

from __future__ import annotations

from collections.abc import Callable

from horn.compiler import ir
from horn.compiler.contract import contract, monomials
from horn.compiler.ir import Node, Op, Scalar, const, leaf, load, make, mul, select
from horn.compiler.messages import ZERO, Code, Outgoing
from horn.compiler.program import Frame, Output, Update
from horn.compiler.thinning import Thinning
from horn.network import Link, Network
from horn.optimizers import SGD, Direct, Optimizer


class Updates(Thinning):
    """Gradients and updates of weights, biases, Parameters and States. ``fuse``: inside the
    gradient's matrix product where possible.
    """

    def __init__(self, network: Network, optimizer: Optimizer | None, *, fuse: bool) -> None:
        super().__init__(network, optimizer)
        self.fuse = fuse
        self.probes: dict[str, str] = {}
        self.gradients: list[tuple[str, Frame, Node]] = []  # waiting for their common norm
        self.pending: list[
            tuple[str, Frame, Node]
        ] = []  # of biases and parameters, which others still load

    def update_vertex(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        axes = (f"n{layer.index}",)
        for name in layer.parameters:
            written = code.backward
            if written is not None:
                per_sample = self.at_vertex(written.parameters[name], code, "backward")
            elif code.upstream is not None:
                per_sample = self.at_vertex(code.derived.parameters[name], code, "forward")
            else:
                continue
            gradient = self.mean(per_sample, frame, f"{layer.name}.{name}")
            self.update(
                f"{layer.name}.{name}", axes, frame, "o", gradient, pushed=written is not None
            )
        if layer.bias is not None:
            node = self.weight_gradient(code, None)
            if node is not None:
                mean = self.mean(node, frame, layer.bias_name)
                self.update(layer.bias_name, axes, frame, "o", mean, pushed=code.is_local)

    def mean(self, per_sample: Node, frame: Frame, name: str) -> Node:
        """The mean over the batch of a vertex expression (b, o)."""
        if "b" not in per_sample.axes:
            return per_sample
        stem = f"{name}.gradient"
        return mul(self.reduction_loop(per_sample, "b", "sum", frame, stem), Scalar("inv_rows"))

    def weight_gradient(self, code: Code, position: int | None) -> Node | None:
        """d loss / d weight per sample of one link (or the bias) of a receiver, by the derived rule
        or its own push; None if it has none.
        """
        at: Callable[[Node], Node] = (
            (lambda n: self.at_bias(n, code))
            if position is None
            else (lambda n: self.at_link(n, code, position))
        )
        if code.forward.push is not None:
            return at(code.forward.push)
        if code.delta is not None:
            return code.delta if position is None else mul(code.delta, at(leaf(Op.INPUT, "bi")))
        if code.upstream is not None and not code.derived.is_weighted_sum:
            return at(code.derived.weight)
        return None

    def update_link(self, out: Outgoing) -> None:
        code, position, link = out.receiver, out.position, out.link
        sender = self.codes.get(link.source.index)
        frame = Frame(code.layer.index, position)
        axes = self.axes_of(frame, "oi")
        self.weight(code.layer, position)
        written = (
            sender is not None and sender.backward is not None and sender.backward.push is not None
        )
        if written:
            assert (
                sender is not None
                and sender.backward is not None
                and sender.backward.push is not None
            )
            node: Node | None = self.at_outgoing(sender.backward.push, sender, out)
        else:
            node = self.weight_gradient(code, position)
        if node is None:
            return
        if self.fused_update(link, frame, node):
            return
        if "b" not in node.axes:
            gradient = node
        elif link.edges is None and (found := contract(node, "b", Scalar("rows"))) is not None:
            gradient = mul(
                self.resolve(found, frame, f"{link.weight}.gradient"), Scalar("inv_rows")
            )
        else:
            total = self.reduction_loop(node, "b", "sum", frame, f"{link.weight}.gradient")
            gradient = mul(total, Scalar("inv_rows"))
        self.update(link.weight, axes, frame, "oi", gradient, pushed=written or code.is_local)

    def fused_update(self, link: Link, frame: Frame, node: Node) -> bool:
        """The update inside the gradient's matrix product, where the optimizer is plain enough."""
        o = self.optimizer
        if not (self.fuse and isinstance(o, SGD) and type(o) is SGD and not o.nesterov):
            return False
        if (
            o.weight_decay
            or o.clip_value is not None
            or o.clip_norm is not None
            or link.edges is not None
        ):
            return False
        if {frame.layer, link.source.index} & set(self.masks) - self.compact:
            return False
        terms = monomials(node)
        if terms is None or len(terms) != 1 or terms[0][0] != 1.0 or len(terms[0][1]) != 2:
            return False
        a, b = sorted(terms[0][1], key=lambda n: n.axes != "bo")
        if a.op is not Op.LOAD or b.op is not Op.LOAD or (a.axes, b.axes) != ("bo", "bi"):
            return False
        velocity = None
        if o.momentum:
            velocity = f"{link.weight}/velocity"
            self.persistent(velocity, self.axes_of(frame, "oi"), "slot")
        self.emit(Update(frame, link.weight, velocity, o.momentum, a.value, b.value))
        return True

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
        self.persistent(name, axes, "learned")
        o = self.optimizer
        assert o is not None
        if not self.fuse:
            here = self.live_synapse(frame)
            if here is not None:
                gradient = select(here, gradient, ZERO)
            gradient = self.store(gradient, frame, letters, f"{name}.mean_gradient")
            self.probes[f"{name}.gradient"] = gradient.value
        elif gradient.op is not Op.LOAD:
            gradient = self.lift_out(gradient, frame, letters)
        if isinstance(o, Direct) and not pushed:
            gradient = (
                -Scalar("learning_rate") * gradient
            )  # only what is pushed is an update already
        if o.weight_decay and letters == "oi":
            gradient = gradient + o.weight_decay * self.learned(name, axes, letters)
        if o.clip_value is not None:
            low, high = const(-o.clip_value), const(o.clip_value)
            gradient = make(Op.MINIMUM, make(Op.MAXIMUM, gradient, low), high)
        live = self.live_synapse(frame)
        if live is not None:
            gradient = select(live, gradient, ZERO)
        if o.clip_norm is not None:
            self.gradients.append(
                (name, frame, self.store(gradient, frame, letters, f"{name}.clipped"))
            )
        elif frame.link is None:
            self.pending.append(
                (name, frame, self.store(gradient, frame, letters, f"{name}.mean_gradient"))
            )
        else:
            self.apply(name, frame, gradient)

    def apply(self, name: str, frame: Frame, gradient: Node) -> None:
        o = self.optimizer
        assert o is not None
        axes = self.buffers[name].axes
        letters = "o" if frame.link is None else "oi"
        slots = {}
        for slot in o.slots:
            if slot == "velocity" and isinstance(o, SGD) and not o.momentum:
                slots[slot] = ZERO
                continue
            self.persistent(f"{name}/{slot}", axes, "slot")
            slots[slot] = load(f"{name}/{slot}", letters)
        w = load(name, letters)
        new, memory = o.update(w, gradient, slots, Scalar("learning_rate"), Scalar("updates"))
        results = [
            (name, w, new),
            *(
                (f"{name}/{s}", slots[s], ir.lift(m))
                for s, m in memory.items()
                if slots[s].op is Op.LOAD
            ),
        ]
        results = [found for found in results if found[2] is not found[1]]
        live = self.live_synapse(frame)
        if live is not None:
            results = [(buffer, old, select(live, value, old)) for buffer, old, value in results]
        scatter = any(axis == f"n{k}" for k in self.compact for axis in axes)
        if results:
            self.loop(frame, [Output(buffer, value) for buffer, _, value in results], scatter)

    def live_synapse(self, frame: Frame) -> Node | None:
        """Where a synapse takes part in the batch, if it may not and its arrays are whole."""
        ends = [(frame.layer, "o")]
        if frame.link is not None:
            ends.append((self.link(frame).source.index, "i"))
        result: Node | None = None
        for k, letter in ends:
            if k in self.masks and k not in self.compact:
                here = make(Op.NE, load(self.masks[k].value, letter), ZERO)
                result = here if result is None else make(Op.AND, result, here)
        return result

    def apply_clipped(self) -> None:
        """Scale all gradients together so that their norm is at most clip_norm, and apply them."""
        o = self.optimizer
        if o is None or o.clip_norm is None or not self.gradients:
            return
        total: Node = ZERO
        for name, frame, gradient in self.gradients:
            square = gradient * gradient
            if "i" in square.axes:
                square = self.reduction_loop(square, "i", "sum", frame, f"{name}.squares")
            total = total + self.reduction_loop(
                square, "o", "sum", Frame(frame.layer), f"{name}.norm"
            )
        frame = Frame(self.network.last.index)
        norm = make(Op.SQRT, total)
        scale = self.store(
            select(norm > o.clip_norm, o.clip_norm / norm, const(1.0)), frame, "", "clip"
        )
        for name, frame, gradient in self.gradients:
            self.apply(name, frame, gradient * scale)

    def keep_states(self) -> None:
        """At the end of a batch a neuron keeps the mean over the samples of each State."""
        for code in self.codes.values():
            layer = code.layer
            frame = Frame(layer.index)
            for name in layer.states:
                now = self.known.get(
                    (layer.index, "kept", name), self.known.get((layer.index, "state", name))
                )
                if now is None:
                    continue
                full = f"{layer.name}.{name}"
                self.persistent(full, (f"n{layer.index}",), "state")
                if "b" in now.axes:
                    now = mul(
                        self.reduction_loop(now, "b", "sum", frame, f"{full}.sum"),
                        Scalar("inv_rows"),
                    )
                self.loop(frame, [Output(full, now)])
