"""From the IR of every layer to one program: forward, loss, backward, updates.

A program is built front to back, each room on the one below: storage (buffers), messages (what a
neuron reads), thinning (who sits out), updates, and here the order of things.
"""

from __future__ import annotations

from collections.abc import Sequence

from horn import losses
from horn.activations import softmax
from horn.aggregates import Aggregate
from horn.compiler import derive, ir, parse
from horn.compiler.contract import exact_sums
from horn.compiler.ir import Node, Op, const, leaf, load, make, mul, select
from horn.compiler.messages import OUTPUT, TARGET, UPSTREAM, ZERO, Code, Outgoing, swap
from horn.compiler.program import Frame, Input, Output, Program, Take, Target, verify
from horn.compiler.scope import BackwardIR, Context, ForwardIR
from horn.compiler.updates import Updates
from horn.errors import CompileError
from horn.network import Layer, Network
from horn.neuron import has_backward
from horn.optimizers import Optimizer

ROW_WEIGHT = "#row_weight"


def members_of(layer: Layer) -> str:
    """The buffer that says who takes part, of a masked layer."""
    return f"{layer.name}#members"


def read_layer(
    layer: Layer, training: bool, written: bool = True
) -> tuple[ForwardIR, BackwardIR | None, Node | None]:
    """Parse one layer's neuron; without ``written`` as if it had no backward."""
    context = Context(layer.neuron, layer.activation, layer.index, training)
    forward = parse.forward(context)
    backward = None
    if training and written and has_backward(layer.neuron) and layer.kind != "output":
        backward = parse.backward(context)
        _check_written(layer, forward, backward)
    interlayer = parse.function(layer.interlayer, OUTPUT) if layer.interlayer is not None else None
    return forward, backward, interlayer


def read_aggregate(aggregate: Aggregate) -> Node:
    """What an aggregate's function makes of a layer's outputs: one number per sample.

    Raises
    ------
    CompileError : it is not in the language of interlayers, or makes a number per neuron.
    """
    function = aggregate.of_layer
    node = parse.function(function, OUTPUT)
    if "o" not in node.axes:
        return node
    name = getattr(function, "__name__", repr(function))
    problem = (
        f"{name} makes one number per neuron, but an aggregate is one number of the whole layer; "
        "return output.mean(), output.sum(), output.max() or output.min() of it"
    )
    raise parse.error_of(function, problem)


def _check_written(layer: Layer, forward: ForwardIR, backward: BackwardIR) -> None:
    name = layer.neuron.__name__
    if layer.interlayer is not None:
        raise _at(
            backward.place,
            f"{name} writes backward, but {layer.name} has an interlayer, which "
            "mixes its neurons: leave backward out and horn derives it",
        )
    if not derive.weighted_sum(forward.output)[0]:
        raise _at(
            backward.place,
            f"{name} writes backward, but its forward is more than a function of "
            "sum(input * weight), so it has no one delta: leave backward out and "
            "horn derives it",
        )


def _at(place: CompileError, problem: str) -> CompileError:
    error = CompileError(problem)
    error.__dict__.update({**place.__dict__, "problem": problem})
    return error


class Builder(Updates):
    """Builds one program. ``optimizer`` None: inference. ``written``: the layers whose written
    backward is used; None for all. ``masked``: as for ``training_program``.
    """

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer | None,
        target: str | None,
        *,
        fuse: bool,
        thin: bool = True,
        written: frozenset[int] | None = None,
        masked: frozenset[int] = frozenset(),
        aggregates: Sequence[Aggregate] = (),
    ) -> None:
        super().__init__(network, optimizer, fuse=fuse)
        self.target, self.thin, self.written, self.masked = target, thin, written, masked
        self.aggregates = aggregates

    def build(self) -> Program:
        net = self.network
        parsed = {
            layer.index: read_layer(
                layer, self.training, self.written is None or layer.index in self.written
            )
            for layer in net.layers[1:]
        }
        for layer in net.layers[1:]:
            forward, backward, interlayer = parsed[layer.index]
            self.codes[layer.index] = self.code(layer, forward, backward, interlayer)
        for layer in net.layers[1:]:
            for position, link in enumerate(layer.links):
                self.outgoing[link.source.index].append(
                    Outgoing(self.codes[layer.index], position, link)
                )
        if self.training:
            self.check_messages()
            self.sit_out()
        self.input()
        for layer in net.layers[1:]:
            self.forward(self.codes[layer.index])
        loss = self.loss() if self.target is not None and net.loss is not None else None
        aggregates = tuple(self.aggregate(k, each) for k, each in enumerate(self.aggregates))
        if self.training:
            for layer in reversed(net.layers):
                self.backward(layer)
            self.keep_states()
            for name, frame, gradient in self.pending:
                self.apply(name, frame, gradient)
            self.apply_clipped()
        for layer in net.layers:
            self.probes.setdefault(f"{layer.name}.output", self.output_name(layer))
        program = Program(
            net,
            self.buffers,
            tuple(self.prologue),
            tuple(self.statements),
            self.output_name(net.last),
            loss,
            self.compact,
            self.probes,
            frozenset(layer.index for layer in net.layers[1:] if self.codes[layer.index].exact),
            aggregates,
        )
        verify(program)
        return program

    def code(
        self, layer: Layer, forward: ForwardIR, backward: BackwardIR | None, interlayer: Node | None
    ) -> Code:
        stable = (
            layer.loss is losses.LOSSES["binary_cross_entropy"]
            and interlayer is None
            and forward.output.op is Op.SIGMOID
        )
        root = (
            forward
            if not stable
            else ForwardIR(forward.output.args[0], forward.states, forward.push, None)
        )
        return Code(
            layer, forward, backward, derive.derive(root, layer.parameters), interlayer, stable,
            exact_sums(forward.output, *forward.states.values()),
        )  # fmt: skip

    def check_messages(self) -> None:
        """A written backward and its receivers must mean the same by delta and push."""
        for code in self.codes.values():
            written = code.backward
            if written is None:
                continue
            for out in self.outgoing[code.layer.index]:
                receiver, name = out.receiver, code.layer.neuron.__name__
                other = receiver.layer.neuron.__name__
                pushes, deltas = written.push is not None, written.uses_delta
                if pushes and receiver.is_local:
                    raise _at(
                        written.place,
                        f"{name}.backward pushes toward {receiver.layer.name}, but {other} "
                        "learns from its own push in forward: leave the push out of "
                        f"{name}.backward",
                    )
                if (pushes or deltas) and not receiver.derived.is_weighted_sum:
                    what = "m.delta" if deltas else "push"
                    raise _at(
                        written.place,
                        f"{name}.backward uses {what} toward {receiver.layer.name}, but "
                        f"{other}.forward is more than a function of sum(input * weight) and has"
                        " no one delta: read m.gradient, and do not push, or leave backward out",
                    )

    # -- forward

    def input(self) -> None:
        first = self.network.layers[0]
        output = self.output_name(first)
        axes = ("b", "n0")
        if first.keep == 1.0:
            self.buffer(output, axes)
            self.emit(Input(output))
            return
        data = self.buffer(f"{first.name}.data", axes, full=True)
        self.emit(Input(data))
        if 0 in self.compact:
            self.buffer(output, axes)
            self.emit(Take(output, data))
            return
        x = load(data, "bo")
        if not self.training:
            value = mul(x, const(first.keep))
        elif first.per == "batch":
            value = select(make(Op.NE, self.masks[0], ZERO), x, ZERO)
        else:
            u = self.draw(leaf(Op.DRAW, "bo", ("uniform", 0, "sample")), first)
            value = select(make(Op.LT, u, const(first.keep)), x, ZERO)
        self.buffer(output, axes)
        self.loop(Frame(0), [Output(output, value)])

    def forward(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        axes = ("b", f"n{layer.index}")
        sent = self.output_name(layer)
        value = self.at_vertex(code.forward.output, code, "forward")
        if layer.index in self.masked:
            self.buffer(members_of(layer), axes, "given")
            value = self.where_member(layer, value)
        states: list[Output] = []
        if self.training:
            for name, node in code.forward.states.items():
                now = self.buffer(f"{layer.name}.{name}.now", axes)
                states.append(Output(now, self.at_vertex(node, code, "forward")))
        if code.interlayer is None:
            self.buffer(sent, axes)
            self.loop(frame, [Output(sent, value), *states])
            self.remember(value, sent)
        else:
            raw = self.buffer(f"{layer.name}.raw", axes)
            self.loop(frame, [Output(raw, value), *states])
            self.remember(value, raw)
            self.known[(layer.index, "inter", OUTPUT)] = load(raw, "bo")
            value = self.at_vertex(code.interlayer, code, "inter")
            self.buffer(sent, axes)
            self.loop(frame, [Output(sent, value)])
            self.remember(value, sent)
        for output in states:
            self.known[(layer.index, "state", output.buffer.split(".")[-2])] = load(
                output.buffer, "bo"
            )

    def where_member(self, layer: Layer, value: Node) -> Node:
        """A value of the neurons that a row has, 0 elsewhere; for a masked layer."""
        return select(make(Op.NE, load(members_of(layer), "bo"), ZERO), value, ZERO)

    # -- aggregates

    def aggregate(self, number: int, aggregate: Aggregate) -> str:
        """Each sample's number (b,), of what a layer sent."""
        layer = next(one for one in self.network.layers if one.name == aggregate.layer)
        silent = ForwardIR(ZERO, {}, None, None)
        code = self.codes.get(layer.index) or Code(
            layer, silent, None, derive.derive(silent, ()), None
        )
        value = self.at_vertex(read_aggregate(aggregate), code, "aggregate")
        name = self.buffer(f"aggregate.{number}", ("b",))
        self.loop(Frame(layer.index), [Output(name, value)])
        return name

    # -- loss

    def target_node(self) -> Node:
        last = self.network.last
        axis = f"n{last.index}"
        if self.target == "label":
            name = self.buffer("target", ("b",), full=True)
            self.emit(Target(name, "label"))
            return select(make(Op.EQ, load(name, "b"), self.index(last, "o")), const(1.0), ZERO)
        if self.target == "value":
            name = self.buffer("target", ("b",), full=True)
            self.emit(Target(name, "value"))
            return load(name, "b")
        name = self.buffer("target", ("b", axis), full=True)
        self.emit(Target(name, self.target or ""))
        return load(name, "bo")

    def loss(self) -> str:
        """Each sample's loss, and d loss / d output of the last layer's neurons (before its
        interlayer).
        """
        last = self.network.last
        code = self.codes[last.index]
        frame = Frame(last.index)
        loss = last.loss
        assert loss is not None
        t = self.target_node()
        y = load(self.output_name(last), "bo")
        name, is_whole = self.buffer("loss", ("b",)), False
        if last.interlayer is softmax and loss is losses.LOSSES["cross_entropy"]:
            # log y without taking y: log sum exp. d loss / d raw = y * sum(t) - t; sum(t) is 1 for
            # labels.
            raw = load(f"{last.name}.raw", "bo")
            top = self.reduction_loop(raw, "o", "max", frame, f"{last.name}.max")
            total = self.reduction_loop(
                make(Op.EXP, raw - top), "o", "sum", frame, f"{last.name}.sum"
            )
            per_neuron = t * (make(Op.LOG, total) - (raw - top))
            wide = t if "o" in t.axes else self.spread_o(t, frame)
            sum_t = (
                const(1.0)
                if self.target == "label"
                else self.reduction_loop(wide, "o", "sum", frame, "target.sum")
            )
            adjoint = y * sum_t - t
        elif code.stable:
            z = self.at_vertex(code.forward.output.args[0], code, "forward")
            per_neuron = make(Op.SOFTPLUS, z) - t * z
            adjoint = y - t
        else:
            formula = parse.function(loss.f, OUTPUT, TARGET)
            is_whole = "o" not in formula.axes  # one number for the layer: it is the loss
            for abstract, here in ((OUTPUT, y), (TARGET, t)):
                self.known[(last.index, "loss", abstract)] = here
            per_neuron = self.at_vertex(formula, code, "loss")
            slope = derive.gradient(formula, const(1.0), [OUTPUT], layerwide=True)[OUTPUT]
            adjoint = self.at_vertex(slope, code, "loss")
            if last.interlayer is not None:
                adjoint = self.through_interlayer(code, adjoint)
        if is_whole:
            self.loop(frame, [Output(name, per_neuron)])
        else:
            if "o" not in per_neuron.axes:
                per_neuron = self.spread_o(per_neuron, frame)
            self.loop(frame, [Output(name, per_neuron, "o", "sum")])
        if self.masked:
            adjoint = adjoint * load(self.buffer(ROW_WEIGHT, ("b",), "given"), "b")
        if self.training:
            code.upstream = (
                self.store(adjoint, frame, "bo", f"{last.name}.upstream")
                if not self.fuse
                else adjoint
            )
        return name

    def spread_o(self, node: Node, frame: Frame) -> Node:
        return make(Op.MUL, node, self.ones(frame, "o"))

    def through_interlayer(self, code: Code, sent: Node) -> Node:
        """d loss / d (what the neurons fed forward), from d loss / d (what the layer sent)."""
        layer = code.layer
        frame = Frame(layer.index)
        assert code.interlayer is not None
        sent = self.store(sent, frame, "bo", f"{layer.name}.sent")
        if layer.interlayer is softmax:  # its Jacobian in closed form: y (g - sum(g y))
            y = load(self.output_name(layer), "bo")
            inner = self.reduction_loop(sent * y, "o", "sum", frame, f"{layer.name}.inner")
            return y * (sent - inner)
        slope = derive.gradient(code.interlayer, UPSTREAM, [OUTPUT], layerwide=True)[OUTPUT]
        self.known[(layer.index, "inter", UPSTREAM)] = sent
        return self.at_vertex(slope, code, "inter")

    # -- backward

    def backward(self, layer: Layer) -> None:
        """This layer's delta, then the updates of what it listens to with (bias, parameters) and of
        its outgoing weights.
        """
        code = self.codes.get(layer.index)
        if code is not None:
            self.delta(code)
            self.update_vertex(code)
        for out in self.outgoing[layer.index]:
            self.update_link(out)

    def delta(self, code: Code) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        stem = f"{layer.name}.delta"
        if code.backward is not None:
            node = self.at_vertex(code.backward.delta, code, "backward")
            here = None if layer.index in self.compact else self.masks.get(layer.index)
            taking_part = const(1.0) if here is None else make(Op.NE, here, ZERO)
            node = select(taking_part, node, ZERO)  # who sits out is not asked
            code.delta = self.store(node, frame, "bo", stem)
            code.upstream = None
            for name, node in code.backward.states.items():
                now = self.buffer(
                    self.fresh(f"{layer.name}.{name}.after"), ("b", f"n{layer.index}")
                )
                before = self.state_now(layer, name, code)
                after = self.at_vertex(node, code, "backward")
                self.loop(frame, [Output(now, select(taking_part, after, before))])
                self.known[(layer.index, "kept", name)] = load(now, "bo")
        else:
            if layer.kind != "output" and not code.is_local:
                code.upstream = self.from_receivers(code)
                if code.upstream is not None and layer.index in self.masked:
                    code.upstream = self.where_member(layer, code.upstream)
            elif code.is_local:
                code.upstream = None
            if code.upstream is None:
                return
            if code.interlayer is not None and layer.kind != "output":
                code.upstream = self.through_interlayer(code, code.upstream)
            self.known[(layer.index, "forward", UPSTREAM)] = code.upstream
            if code.derived.is_weighted_sum:
                assert code.derived.delta is not None
                node = self.at_vertex(code.derived.delta, code, "forward")
                code.delta = self.store(node, frame, "bo", stem)
            else:
                code.upstream = self.store(code.upstream, frame, "bo", f"{layer.name}.upstream")
                self.known[(layer.index, "forward", UPSTREAM)] = code.upstream
        if code.delta is not None:
            self.probes[stem] = code.delta.value

    def state_now(self, layer: Layer, name: str, code: Code) -> Node:
        """A State as forward left it."""
        now = self.known.get((layer.index, "state", name))
        return self.at_vertex(leaf(Op.STATE, "bo", name), code, "forward") if now is None else now

    def from_receivers(self, code: Code) -> Node | None:
        """d loss / d output: the sum of m.gradient over the outgoing synapses. None if nothing
        flows back.
        """
        live = [o for o in self.outgoing[code.layer.index] if o.receiver.sends_delta]
        if not live:
            return None
        total: Node = ZERO
        for out in live:
            frame = Frame(out.receiver.layer.index, out.position)
            part = self.reduced(
                self.input_gradient(out), "o", "sum", frame, f"{code.layer.name}.gradient"
            )
            total = ir.add(total, swap(part))
        return total


def training_program(
    network: Network,
    optimizer: Optimizer,
    target: str | None,
    *,
    fuse: bool = True,
    thin: bool = True,
    written: frozenset[int] | None = None,
    masked: frozenset[int] = frozenset(),
) -> Program:
    """One training step. ``target`` is the kind of Target, or None without a loss. ``fuse=False``
    keeps every value that probes ask for, ``thin=False`` all neurons in every layer.

    ``written`` : the layers whose written backward is used, the others' being derived; None for
    all.
    ``masked`` : hidden layers without interlayer, State, push or written backward, of which each
    row of the batch has some neurons only: where ``members_of(layer)`` (b, n) is not 0. The
    gradient of each row's loss counts ``ROW_WEIGHT`` (b,) times. The caller fills both.
    """
    return Builder(
        network, optimizer, target, fuse=fuse, thin=thin, written=written, masked=masked
    ).build()


def inference_program(
    network: Network, target: str | None, aggregates: Sequence[Aggregate] = ()
) -> Program:
    """Outputs, with a target the loss of each sample, and its number of each aggregate."""
    return Builder(network, None, target, fuse=True, aggregates=aggregates).build()
