"""The lowering of all layers' IR to one program: forward, loss, backward, updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from horn.aggregates import Aggregate
from horn.compiler.backward import Backward
from horn.compiler.fusion import with_pairs
from horn.compiler.layer_code import LayerCode, NetworkCode
from horn.compiler.messages import MessageExpressions, where_member
from horn.compiler.output_losses import Losses
from horn.compiler.sequences import StepValues
from horn.compiler.steps import Arrangement
from horn.compiler.storage import Phase, Storage
from horn.compiler.thinning import Thinning
from horn.compiler.updates import Updates
from horn.ir import (
    OUTPUT,
    ZERO,
    Op,
    const,
    leaf,
    load,
    make,
    mul,
    select,
)
from horn.language.layers import Reading, read_aggregate
from horn.network import Network
from horn.optimizers import Optimizer
from horn.program import (
    Frame,
    Input,
    Output,
    Program,
    Take,
    Target,
    TargetRead,
    Targets,
    members_of,
    verify,
)

VALID = "valid"  # in sequences that end early: 1 at the sample's own steps, else 0


class Builder:
    """Builds one program from its parts: the code of each layer, storage (buffers and statements),
    messages (a neuron's reads), thinning (neurons that sit out), sequences (what steps hand on)
    and, in training, updates and backward.

    optimizer : None for inference. learns : whether a training step has its backward and changes
    arrays; else it is its loss alone. The rest is as for ``training_program``.
    """

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer | None,
        target: Targets,
        *,
        fuse: bool = True,
        thin: bool = True,
        written: frozenset[int] | None = None,
        masked: frozenset[int] = frozenset(),
        weighs: str = "",
        ragged: bool = False,
        part: int = 0,
        learns: bool = True,
        reading: Reading | None = None,
    ) -> None:
        self.part, self.is_inference = part, optimizer is None
        self.network, self.masked, self.fuse = network, masked, fuse
        self.is_judged = target is not None and network.is_judged
        self.ragged = ragged
        if isinstance(target, str):
            target = (TargetRead(network.last.name, target),)
        reads = {read.output: read for read in target or ()}
        self.code = NetworkCode(network, optimizer is not None, written, reading)
        self.storage = Storage(network)
        self.messages = MessageExpressions(self.storage, self.code, optimizer)
        learns = learns and optimizer is not None
        self.losses = Losses(
            network, self.storage, self.messages, self.code, reads, weighs=weighs, ragged=ragged,
            masked=bool(masked), fuse=fuse, sends=learns,
        )  # fmt: skip
        self.messages.target = self.losses.target
        # Gradients of losses of the last step of sequences, and their layers.
        self.seeds: dict[str, int] = {}
        self.thinning = Thinning(self.storage, self.messages, thin and not network.steps)
        self.training: Backward | None = None
        if optimizer is not None and learns:
            fuses = fuse and not part  # with parts, gradients add up, and are applied afterwards
            updates = Updates(self.storage, self.messages, self.thinning, optimizer, fuse=fuses)
            self.training = Backward(self.storage, self.messages, self.thinning, updates, masked)
        self.sequences = StepValues(self.storage, self.messages, self.training, ragged)

    def build(self, aggregates: Sequence[Aggregate] = ()) -> Program:
        net, storage = self.network, self.storage
        if storage.steps:
            storage.begin("first")
        if not self.is_inference:
            self.code.check_messages()
            self.thinning.sit_out()
        if storage.steps:
            storage.begin("forward")
        self.input()
        for code in self.code.layers.values():
            if code.layer.answers or self.is_judged or self.training is not None:
                self.forward(code)
        is_judged = self.is_judged
        losses: tuple[str, ...] = ()
        if storage.steps:
            loss, losses, measured = self.judge(is_judged, aggregates)
        else:
            losses = tuple(map(self.losses.write, net.judged)) if is_judged else ()
            loss = self.losses.total(losses) if is_judged else None
            measured = tuple(self.aggregate(k, each) for k, each in enumerate(aggregates))
        if self.training is not None:
            self.training.is_judged = is_judged
            self.training.run()
        for layer in net.layers:
            storage.probes.setdefault(f"{layer.name}.output", self.messages.output_name(layer))
        storage.drop_unread()
        keep: list[str] = []
        if storage.steps:
            is_asked = net.answers_each or self.ragged
            keep = [self.messages.output_name(one) for one in net.outputs] if is_asked else []
            keep += self.seeds
            keep += [] if self.fuse or self.training is None else storage.probes.values()
            keep = [name for name in keep if storage.buffers[name].role == "work"]
            keep = [name for name in keep if "b" in storage.buffers[name].axes]
            found = Arrangement(
                net, storage.buffers, storage.phases, keep, self.seeds, self.part
            ).statements()
            storage.statements = list(found)
        else:
            storage.statements = with_pairs(storage.statements)
        program = Program(
            net,
            storage.buffers,
            tuple(storage.prologue),
            tuple(storage.statements),
            tuple(map(self.messages.output_name, net.outputs)),
            loss,
            storage.compact,
            storage.probes,
            measured,
            storage.steps,
            losses if self.training is None else (),
            frozenset(keep),
        )
        verify(program)
        return program

    def input(self) -> None:
        first = self.network.layers[0]
        output = self.messages.output_name(first)
        axes = ("b", "n0")
        if self.ragged:
            self.storage.emit(Target(self.storage.buffer(VALID, ("b",), full=True), VALID, True))
            self.storage.valid = load(VALID, "b")
        if first.keep == 1.0:
            self.storage.buffer(output, axes)
            self.storage.emit(Input(output))
            return
        data = self.storage.buffer(f"{first.name}.data", axes, full=True)
        self.storage.emit(Input(data))
        if 0 in self.storage.compact:
            self.storage.buffer(output, axes)
            self.storage.emit(Take(output, data))
            return
        x = load(data, "bo")
        if self.is_inference:
            value = mul(x, const(first.keep))
        elif first.per == "batch":
            here = self.thinning.takes_part(0)
            assert here is not None
            value = select(here, x, ZERO)
        else:
            u = self.messages.draw(leaf(Op.DRAW, "bo", ("uniform", 0, first.per)), first)
            value = select(make(Op.LT, u, const(first.keep)), x, ZERO)
        self.storage.buffer(output, axes)
        self.storage.loop(Frame(0), [Output(output, value)])

    def forward(self, code: LayerCode) -> None:
        layer = code.layer
        frame = Frame(layer.index)
        axes = ("b", f"n{layer.index}")
        sent = self.messages.output_name(layer)
        if self.training is not None and code.reads_target:
            self.losses.target(layer)  # where all steps are computed: who pushes hears it at each
        if self.storage.steps:
            self.sequences.start_traces(code)
        value = self.messages.at_vertex(code.forward.output, code, "forward")
        if layer.index in self.masked:
            self.storage.buffer(members_of(layer), axes, "given")
            value = where_member(layer, value)
        states: list[Output] = []
        if self.training is not None or self.storage.steps:
            each = self.messages.each_at_vertex(code.forward.states.values(), code, "forward")
            for name in code.forward.states:
                now = self.storage.buffer(f"{layer.name}.{name}.now", axes)
                after = next(each)
                states.append(Output(now, self.sequences.kept_behind_end(now, axes, after)))
        if self.storage.steps:
            self.sequences.start_states(code)
        parts = self.sequences.parts_of_gradients(code)
        for name in parts:
            self.storage.buffer(name, axes)
        kept = [*states, *(Output(name, node) for name, node in parts.items())]
        if code.interlayer is None:
            self.storage.buffer(sent, axes)
            self.storage.loop(frame, [Output(sent, self.sequences.kept(layer, value)), *kept])
            self.storage.remember(value, sent)
        else:
            raw = self.storage.buffer(self.storage.apart(f"{layer.name}.raw"), axes)
            self.storage.loop(frame, [Output(raw, value), *kept])
            self.storage.remember(value, raw)
        for name, node in parts.items():
            self.storage.remember(node, name)
        if code.interlayer is not None:
            self.messages.known[layer.index, "interlayer", OUTPUT] = load(raw, "bo")
            value = self.messages.at_vertex(code.interlayer, code, "interlayer")
            self.storage.buffer(sent, axes)
            self.storage.loop(frame, [Output(sent, self.sequences.kept(layer, value))])
            self.storage.remember(value, sent)
        for name, output in zip(code.forward.states, states, strict=False):
            self.messages.states[layer.index, name] = load(output.buffer, "bo")
        if self.storage.steps:
            self.sequences.assign_traces(code)

    def judge(
        self, is_judged: bool, aggregates: Sequence[Aggregate]
    ) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
        """The loss of sequences, of each step or of the last, that of each output by itself, and
        the aggregates of the last step.

        In sequences that end early each sample has its own last step: all steps are computed, and
        those that are not the last count 0.
        """
        judged = self.network.judged if is_judged else ()
        found = {
            layer: self.losses.write(layer) for layer in judged if layer.each_step or self.ragged
        }
        measured: tuple[str, ...] = ()
        if self.ragged:
            measured = tuple(self.aggregate(k, each) for k, each in enumerate(aggregates))
        with self.aside("judge"):
            for layer in judged:
                if layer in found:
                    continue
                found[layer] = self.losses.write(layer)
                code = self.code.layers[layer.index]
                if code.upstream is not None:  # of the last step; at the others it stays 0
                    code.upstream = self.storage.store(
                        code.upstream, Frame(layer.index), "bo", f"{layer.name}.judged"
                    )
                    self.seeds[code.upstream.value] = layer.index
            losses = tuple(found[layer] for layer in judged)
            loss = self.losses.total(losses) if is_judged else None
            if not self.ragged:
                measured = tuple(self.aggregate(k, each) for k, each in enumerate(aggregates))
            if self.training is not None:
                self.training.updates.keep_states()
                self.training.updates.sum_gathered()
        return loss, losses, measured

    @contextmanager
    def aside(self, phase: Phase) -> Iterator[None]:
        known = dict(self.messages.known)
        with self.storage.aside(phase):
            yield
        self.messages.known.clear()
        self.messages.known.update(known)

    def aggregate(self, number: int, aggregate: Aggregate) -> str:
        """Write each sample's number (b,) of an aggregate, from a layer's outputs."""
        layer = next(one for one in self.network.layers if one.name == aggregate.layer)
        code = self.code.of(layer)
        value = self.messages.at_vertex(read_aggregate(aggregate), code, "aggregate")
        name, frame = f"aggregate.{number}", Frame(layer.index)
        if self.ragged:
            step = self.storage.store(value, frame, "b", f"{name}.step")
            return self.losses.summed(name, frame, select(self.losses.at_last(), step, ZERO))
        self.storage.buffer(name, ("b",))
        self.storage.loop(frame, [Output(name, value)])
        return name


def training_program(
    network: Network,
    optimizer: Optimizer,
    target: Targets,
    *,
    fuse: bool = True,
    thin: bool = True,
    written: frozenset[int] | None = None,
    masked: frozenset[int] = frozenset(),
    weighs: str = "",
    ragged: bool = False,
    part: int = 0,
    reading: Reading | None = None,
) -> Program:
    """The program of one training step. ``target`` is how targets are read: "label", "value",
    "values" or "input", the kinds of ``program.Target``; of several outputs the read of each; None
    where nothing is judged.
    ``fuse=False`` keeps every value for probes, ``thin=False`` all neurons in every layer.

    ``written`` : the layers whose written backward is used, the others' being derived; None for
    all.
    ``masked`` : hidden layers without interlayer, State, push or written backward, of which each
    row of the batch has some neurons only: where ``members_of(layer)`` (b, n) is not 0. The
    gradient of each row's loss counts ``ROW_WEIGHT`` (b,) times. The caller fills both.
    weighs : the loss of each "sample", or "step", is multiplied with its weight in the data, and so
    its gradients.
    ragged : of sequences that end early, as the data say (``Dataset.lengths``).
    part : the steps of a sequence that are in memory at a time (``Job(recompute="sqrt")``); 0: all.
    reading : the text of the layers that programs share; None reads it anew.
    """
    return Builder(
        network, optimizer, target, fuse=fuse, thin=thin, written=written, masked=masked,
        weighs=weighs, ragged=ragged, part=part, reading=reading,
    ).build()  # fmt: skip


def loss_program(network: Network, optimizer: Optimizer, target: Targets) -> Program:
    """The program of a training step's loss, with its draws, which changes no array. Written
    backwards are not read.
    """
    return Builder(network, optimizer, target, written=frozenset(), learns=False).build()


def inference_program(
    network: Network, target: Targets, aggregates: Sequence[Aggregate] = (),
    ragged: bool = False, reading: Reading | None = None,
) -> Program:  # fmt: skip
    """The program of inference: outputs, with a target the loss of each sample, and aggregates."""
    return Builder(network, None, target, ragged=ragged, reading=reading).build(aggregates)
