"""The partition of one task's program into one that every task of a group runs on its share.

Every frame gets a split (placement.py), and with it every letter an axis, whole or a share. Each
statement then finds its operands in the form that its frame reads; where a buffer has another
form, a Move goes before. Contents that any task can make (draws, data, constants) are made in the
requested form. See docs/notes/0021-one-network-over-many-tasks.md.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from horn import ir
from horn.errors import CompileError
from horn.ir import Op, Scalar, const, load
from horn.layers import Layer
from horn.network import Network
from horn.partition.forms import Form, TaskBuffers
from horn.partition.placement import Placement
from horn.partition.share import has_whole_positions
from horn.partition.supersteps import scheduled
from horn.program import (
    AllSteps,
    BatchSum,
    Buffer,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Loop,
    Matmul,
    Move,
    Output,
    Parts,
    Program,
    Rank,
    Repeat,
    Reverse,
    ScatterAdd,
    Statement,
    Target,
    Turn,
    Update,
    base,
    each_of,
    every,
    letter_axes,
    letters_of,
    out_letters,
    reads,
    turned_axes,
    writes,
)

COMBINED = ("sum", "prod", "max", "min", "any", "all")


class Partition:
    """Rewrites one program. ``results``: buffers that every task needs whole at the end.

    n_groups : the number of groups that share the rows of a batch.
    """

    def __init__(
        self, program: Program, placement: Placement, results: Iterable[str], n_groups: int = 1
    ) -> None:
        assert not program.compact, "a group computes its layers whole"
        found = splits(program.network, placement) if program.steps else set()
        if {"i", "m", "c"} & found or {"b", "o"} <= found:
            raise CompileError(
                "tasks of a network of sequences divide the rows of the batch, or the receivers of "
                "layers, not both; place their weights receiver, or all weights replicated"
            )
        self.program, self.n_groups = program, n_groups
        self.placement = placement.within(program.network)
        self.network: Network = program.network
        self.results = tuple(results)
        self.task = TaskBuffers(program, self.homes(), n_groups)
        self.deferred: list[Loop | Update] = []  # updates of weights that groups divide
        self.heard_late = self.late_forms()  # the forms in which other steps are read
        self.of_steps: dict[tuple[str, Form], str] = {}  # the buffers with these forms
        self.of_one_step: set[tuple[str, Form]] = set()  # forms that were made at one step alone

    def homes(self) -> dict[str, tuple[str, ...]]:
        return homes(self.network, self.placement)

    def late_forms(self) -> dict[str, list[Form]]:
        """The forms of delayed buffers that are read at another step."""
        found: dict[str, list[Form]] = {}
        if not any(buffer.role == "late" for buffer in self.program.buffers.values()):
            return found  # the statements of long neurons have many operands
        for s in every(self.program.statements):
            if not isinstance(s, (Loop, Matmul, Update, Convolve)):
                continue
            frame = self.placement.at(s.frame)
            for name, letters in operands(s):
                buffer = self.program.buffers[name]
                if buffer.role == "late":
                    form = Form(letter_axes(self.network, frame, letters))
                    forms = found.setdefault(buffer.value[0], [])
                    forms += [form] if form not in forms else []
        return found

    def run(self) -> Program:
        for statement in self.program.statements:
            self.in_order(statement)
        self.update_divided()
        before = self.program
        if self.n_groups > 1 and before.loss in self.results:
            before = self.program = self.with_total(before)
        whole = {name: self.result_of(name) for name in self.results}
        for view, (name, form) in self.task.late.items():
            delay = self.task.buffers[view].value[1]
            self.task.buffers[view] = dataclasses.replace(
                self.task.buffers[view], value=(self.of_steps.get((name, form), name), delay)
            )
        self.task.statements.extend(
            Move(name, part, "", across=True) for name, part in self.task.scattered.items()
        )
        return dataclasses.replace(
            before,
            buffers=self.task.buffers,
            prologue=tuple(self.task.prologue),
            statements=tuple(self.task.statements),
            outputs=tuple(whole.get(name, name) for name in before.outputs),
            loss=before.loss if before.loss is None else whole.get(before.loss, before.loss),
            compact=frozenset(),
            probes={},
            aggregates=tuple(whole.get(name, name) for name in before.aggregates),
            losses=tuple(whole.get(name, name) for name in before.losses),
        )

    def with_total(self, program: Program) -> Program:
        """Sum the losses of all groups, since each group has only its samples'."""
        assert program.loss is not None
        total = "loss.total"
        program.buffers[total] = Buffer(total, ())
        output = Output(total, load(program.loss, "b"), "b", "sum")
        self.loop(Loop(Frame(self.network.last.index), (output,)))
        self.results = tuple(total if name == program.loss else name for name in self.results)
        return dataclasses.replace(program, loss=total)

    def result_of(self, name: str) -> str:
        """The buffer with the whole of a result, moved at every step if it has all steps."""
        with self.task.apart() as made:
            found = self.task.find(name, Form(self.program.buffers[name].axes))
        if made and self.program.buffers[name].span is not None:
            made = [Repeat(tuple(made))]
        self.task.statements += made
        return found

    # --- statements

    def in_order(self, s: Statement) -> None:
        """Rewrite a statement of the program, or of a part of a sequence. A statement of one step
        makes what has all steps in the form that it reads for this step alone: bodies that run at
        all steps make it for all.
        """
        if isinstance(s, (Repeat, AllSteps, Parts)):
            for name, form in self.of_one_step:
                self.task.forms[name].pop(form, None)
            self.of_one_step.clear()
            self.statement(s)
            return
        wide = [name for name in reads(s) if self.program.buffers[name].span is not None]
        had = {name: {*self.task.forms.get(name, ())} for name in wide}
        self.statement(s)
        for name, before in had.items():
            new = self.task.forms[name].keys() - before if before else ()
            self.of_one_step |= {(name, form) for form in new}
        self.of_one_step -= {each for each in self.of_one_step if each[0] in writes(s)}

    def statement(self, s: Statement) -> None:
        self.rewritten(s)
        if not isinstance(s, (Repeat, AllSteps, Parts)):
            for name in writes(s):
                for form in self.heard_late.get(name, ()):
                    self.of_steps[name, form] = self.task.find(name, form)

    def rewritten(self, s: Statement) -> None:
        RULES[type(s)](self, s)

    def source(self, s: Input | Target | Draw) -> None:
        self.task.sources[s.out] = s
        if self.program.steps:  # it is made where it stands, step by step
            own = Frame(self.network.last.index)
            (rows,) = letter_axes(self.network, self.placement.at(own), "b")
            axes = self.program.buffers[s.out].axes
            self.task.find(s.out, Form(tuple(rows if a == "b" else a for a in axes)))

    def body(self, s: Repeat | AllSteps) -> None:
        """Rewrite a body of sequences. Moves, and statements without rows, are not inside AllSteps:
        rows travel step by step.
        """
        with self.task.apart() as inside:
            for each in s.body:
                self.statement(each)
        if isinstance(s, Repeat):
            self.task.statements.append(dataclasses.replace(s, body=tuple(inside)))
            return

        def kind(each: Statement) -> type[Statement] | None:
            if not self.has_rows(each):
                return None
            return Repeat if isinstance(each, Move) else AllSteps

        for of, statements in itertools.groupby(inside, kind):
            part = tuple(statements)
            self.task.statements.extend(part if of is None else [of(part)])  # type: ignore[call-arg]

    def parts(self, s: Parts) -> None:
        """Rewrite a sequence in parts: the sums over parts stay this task's part of a sum. Their
        moves, and statements that depend on them, come behind all parts.
        """
        behind = list[Statement]()
        known: set[str] = set()  # complete after all parts
        bodies = list[tuple[Statement, ...]]()
        for body in (s.forward, s.behind, s.judge, s.backward):
            with self.task.apart() as made:
                for each in body:
                    if isinstance(each, Loop) and each.outputs[0].buffer in s.sums:
                        self.add_up(each)
                    else:
                        self.in_order(each)
            inside = list[Statement]()
            moves = [each for each in every(made) if isinstance(each, Move)]
            if any(self.has_rows(move) for move in moves):
                raise CompileError(
                    'recompute="sqrt" computes steps again, and of a layer whose receivers are '
                    "divided among tasks a part travels at each; leave the pin out, or recompute"
                )
            for each in made:
                if isinstance(each, Move) or known & {*reads(each)}:
                    assert not self.has_rows(each), f"{each} is of one part"
                    behind.append(each)
                    known |= {*writes(each)}
                else:
                    inside.append(each)
            bodies.append(tuple(inside))
        forward, after, judge, backward = bodies
        again = dataclasses.replace(
            s, forward=forward, behind=after, judge=judge, backward=backward
        )
        self.task.statements += [again, *behind]

    def add_up(self, s: Loop) -> None:
        """Add this task's, or group's, sum of a part to that of the other parts."""
        (output,) = s.outputs
        (form,) = self.task.forms[f"{output.buffer}.here"]
        (zero,) = self.task.forms[output.buffer]  # which is 0 in every form
        assert form.axes == zero.axes, (form, zero)
        self.task.forms[output.buffer] = {form: self.task.forms[output.buffer][zero]}
        frame, here = self.placement.at(s.frame), self.task.forms[f"{output.buffer}.here"][form]
        whole = self.task.forms[output.buffer][form]
        letters = output.letters
        both = load(whole, letters) + load(here, letters)
        added = dataclasses.replace(output, buffer=whole, node=both)
        self.task.statements.append(dataclasses.replace(s, frame=frame, outputs=(added,)))

    def has_rows(self, s: Statement) -> bool:
        names = {*reads(s), *writes(s)}
        draws = isinstance(s, Loop) and any("b" in o.node.axes for o in s.outputs)
        return draws or any(base(a) == "b" for name in names for a in self.task.buffers[name].axes)

    def matmul(self, s: Matmul) -> None:
        frame = self.placement.at(s.frame)
        a = self.task.operand(s.a, s.a_axes, frame)
        b = self.task.operand(s.b, s.b_axes, frame)
        monoid = "sum" if s.axis == frame.split else ""
        across = "sum" if s.axis == "b" and self.n_groups > 1 else ""
        axes = letter_axes(self.network, frame, s.out_axes)
        out = self.task.result(s.out, Form(axes, monoid, across))
        self.task.statements.append(dataclasses.replace(s, frame=frame, a=a, b=b, out=out))

    def batch_sum(self, s: BatchSum) -> None:
        """Rewrite a sum over the batch, which needs a task with all rows. Raises CompileError."""
        if self.placement.at(s.frame).split == "b" or self.n_groups > 1:
            layer = self.network.layers[s.frame.layer]
            raise CompileError(
                f'{layer.name} ({layer.neuron.__name__}): asks the batch (over="batch") at each '
                "step of sequences, of which several tasks or groups have parts: these would wait "
                "for one another at every step. Train in one process; with groups that have "
                'batches of their own, strategy="easgd"; or, in a job that neither is stateful nor '
                "recomputes, with tasks that divide its neurons, "
                f'pins={{"{layer.name}": "receiver"}}'
            )
        self.whole_layer(s)

    def whole_layer(self, s: Rank | BatchSum | ChannelSum | Reverse) -> None:
        """Let every task compute the whole layer: ranks compare all with all, and a channel's
        positions lie with several tasks. In sequences tasks have rows, with all steps.
        """
        frame = self.placement.at(s.frame)
        frame = frame if frame.split == "b" else dataclasses.replace(frame, split="")
        letters = letters_of(self.network, frame, self.program.buffers[s.array].axes)
        array = self.task.operand(s.array, letters, frame)
        out = self.task.result(s.out, Form(letter_axes(self.network, frame, letters)))
        self.task.statements.append(dataclasses.replace(s, frame=frame, array=array, out=out))

    def convolve(self, s: Convolve) -> None:
        """Rewrite a convolution over the task's positions, with all their channels, or over its
        channels of all positions, at either end. Else it runs synapse by synapse, with sums of the
        shared numbers as other loops.
        """
        frame, letters = self.placement.at(s.frame), {"i": "bi", "o": "bo", "b": "bo"}[s.axis]
        whole = dataclasses.replace(frame, shared=True)
        layer = self.network.layers[s.frame.layer]
        divided = {"o": layer, "i": layer.links[s.frame.link or 0].source}.get(frame.split)
        if divided is not None and not has_whole_positions(self.network, divided):
            self.convolve_edges(s, letters)
            return
        a = self.task.operand(s.a, letters, frame)
        monoid = "sum" if s.axis == letter_of(frame) else ""
        if s.axis != "b":
            b = self.task.operand(s.b, "o", whole)
            axes = letter_axes(self.network, frame, {"i": "bo", "o": "bi"}[s.axis])
            form = Form(axes, monoid)
        else:
            b = self.task.operand(s.b, "bi", frame)
            across = "sum" if self.n_groups > 1 else ""
            (axis,) = letter_axes(self.network, whole, "o")
            if mine := frame.split in ("m", "c"):  # the maps are one end, if turned the other
                is_of_maps = (frame.split == "m") != layer.links[s.frame.link or 0].is_turned
                axis += "@map" if is_of_maps else "@below"
            form = Form((axis,), "sum" if frame.split and not mine else "", across)
        name = self.task.result(s.out, form)
        self.task.statements.append(dataclasses.replace(s, frame=frame, a=a, b=b, out=name))

    def convolve_edges(self, s: Convolve, letters: str) -> None:
        synapses = letter_axes(self.network, s.frame, "oi")
        a = load(s.a, letters)
        if s.axis == "b":
            each = f"{s.out}.each"
            self.program.buffers.setdefault(each, Buffer(each, synapses))
            self.loop(Loop(s.frame, (Output(each, a * load(s.b, "bi"), "b", "sum"),)))
            self.scatter_add(ScatterAdd(s.frame, s.out, each))
            return
        each = each_of(self.network, s.b, s.frame)
        if each not in self.task.forms:
            self.program.buffers.setdefault(each, Buffer(each, synapses))
            self.expand(Expand(s.frame, each, s.b))
        self.loop(Loop(s.frame, (Output(s.out, a * load(each, "oi"), s.axis, "sum"),)))

    def expand(self, s: Expand) -> None:
        frame = self.placement.at(s.frame)
        array = self.task.operand(s.array, "o", dataclasses.replace(frame, shared=True))
        letters = "o" if frame.link is None else "oi"
        out = self.task.result(s.out, Form(letter_axes(self.network, frame, letters)))
        self.task.statements.append(dataclasses.replace(s, frame=frame, array=array, out=out))

    def scatter_add(self, s: ScatterAdd) -> None:
        """Rewrite a sum over shared numbers: a task's or group's part of each stays a part."""
        frame = self.placement.at(s.frame)
        letters = "o" if frame.link is None else "oi"
        axes = letter_axes(self.network, frame, letters)
        here = [form for form in self.task.forms[s.array] if form.axes == axes]
        have = here[0] if here else Form(axes)
        array = self.task.find(s.array, have)
        monoid = have.monoid or ("sum" if frame.split in ("o", "i", "m", "c") else "")
        shared = letter_axes(self.network, dataclasses.replace(frame, shared=True), "o")
        out = self.task.result(s.out, Form(shared, monoid, have.across))
        self.task.statements.append(dataclasses.replace(s, frame=frame, array=array, out=out))

    def turn(self, s: Turn) -> None:
        """Rewrite a transposition: a task's part of a gradient stays a part."""
        frame, names = self.placement.at(s.frame), (s.array, s.out)
        here = letter_axes(self.network, frame, "oi")
        there = turned_axes(self.network, s, here)
        made, read = (there, here) if s.back else (here, there)
        forms = [form for form in self.task.forms.get(s.array, {}) if form.axes == read]
        have = forms[0] if forms and s.back else Form(read)
        array = self.task.find(names[0], have)
        out = self.task.result(names[1], Form(made, have.monoid, have.across))
        self.task.statements.append(dataclasses.replace(s, frame=frame, array=array, out=out))

    def loop_or_update(self, s: Loop) -> None:
        if self.is_divided(s):
            self.deferred.append(s)
            return
        roles = {self.program.buffers[o.buffer].role for o in s.outputs}
        if roles & {"learned", "state"}:
            self.update_divided()  # it may read old values that are kept between batches
        self.loop(s)

    def update_divided(self) -> None:
        for update in self.deferred:
            if isinstance(update, Update):  # with the parts from other groups
                frame = self.placement.at(update.frame)
                self.update_fused(update, dataclasses.replace(frame, grouped=True))
            else:
                self.loop(update, grouped=True)
        self.deferred = []

    def is_divided(self, s: Loop) -> bool:
        """Whether it updates a weight that groups divide: each group updates a part, when the
        gradient is known and after everything else, so that gradients travel meanwhile.
        """
        names = [o.buffer for o in s.outputs]
        return self.task.divides and any(name in self.task.weights for name in names)

    def loop(self, s: Loop, grouped: bool = False) -> None:
        assert not s.scatter
        frame = dataclasses.replace(self.placement.at(s.frame), grouped=grouped)
        nodes = [self.task.expression(o.node, frame) for o in s.outputs]
        outputs = []
        for o, node in zip(s.outputs, nodes, strict=True):
            letters = ir.union(out_letters(self.network, frame, o, self.program.buffers))
            monoid = o.monoid if o.axis and o.axis == letter_of(frame) else ""
            if monoid and monoid not in COMBINED:
                raise CompileError(self.not_combined(s.frame))
            across = o.monoid if o.axis == "b" and self.n_groups > 1 else ""
            form = Form(letter_axes(self.network, frame, letters), monoid, across)
            outputs.append(
                dataclasses.replace(o, buffer=self.task.result(o.buffer, form), node=node)
            )
        self.task.statements.append(dataclasses.replace(s, frame=frame, outputs=tuple(outputs)))

    def not_combined(self, frame: Frame) -> str:
        """The message that a divided link or layer cannot combine places (argmax)."""
        layer = self.network.layers[frame.layer]
        who = f"{layer.name} ({layer.neuron.__name__})"
        position = -1 if frame.link is None else frame.link
        if (where := self.placement.links.get((frame.layer, position))) is None:
            return (
                f"{who}: which is the largest, or the smallest, cannot be combined of what several "
                "tasks have; leave the pins out, or train on one task"
            )
        return (
            f"pin {layer.called(position)}={where}: {who} compares its messages (which is the "
            "largest or the smallest, their order), and what several tasks have of them cannot be "
            f"combined; pin layer {layer.name!r} to receiver"
        )

    def update(self, s: Update) -> None:
        """Rewrite a fused update: it stays one where each task has all rows of its group; else the
        gradient is summed first.
        """
        frame = self.placement.at(s.frame)
        if frame.split != "b" and self.task.divides and not self.program.steps:
            self.update_others(s, frame)
            return
        if frame.split != "b" and self.n_groups == 1:
            self.update_fused(s, frame)
            return
        gradient = f"{s.weight}.gradient"
        if gradient not in self.program.buffers:
            self.program.buffers[gradient] = Buffer(gradient, self.program.buffers[s.weight].axes)
        self.matmul(Matmul(s.frame, gradient, "oi", s.a, "bo", s.b, "bi", "b"))
        step = -(Scalar("learning_rate") * (Scalar("inv_rows") * load(gradient, "oi")))
        names = [s.weight]
        if s.velocity is not None:
            step = const(s.momentum) * load(s.velocity, "oi") + step
            names = [s.velocity, s.weight]
        values = [step, load(s.weight, "oi") + step][-len(names) :]
        outputs = [Output(n, v, letters="oi") for n, v in zip(names, values, strict=True)]
        update = Loop(s.frame, tuple(outputs))
        if self.is_divided(update):
            self.deferred.append(update)
        else:
            self.loop(update)

    def update_others(self, s: Update, frame: Frame) -> None:
        """Send the gradients of this group's rows to the groups that update them, range by range;
        the update of its own range waits for theirs.
        """
        mine = letter_axes(self.network, dataclasses.replace(frame, grouped=True), "oi")
        self.task.operand(s.a, "bo", frame)  # all of it: its ranges are views
        parts = []
        for turn in range(1, self.n_groups):
            theirs = dataclasses.replace(frame, grouped=True, turn=turn)
            a, b = self.task.operand(s.a, "bo", theirs), self.task.operand(s.b, "bi", theirs)
            sent, got = f"{s.weight}.gradient.{turn}", f"{s.weight}.part.{turn}"
            self.task.new(sent, Form(letter_axes(self.network, theirs, "oi")))
            self.task.new(got, Form(mine))
            self.task.statements.append(Matmul(theirs, sent, "oi", a, "bo", b, "bi", "b"))
            self.task.statements.append(Move(got, sent, "", across=True))
            parts.append(got)
        self.deferred.append(dataclasses.replace(s, parts=tuple(parts)))

    def update_fused(self, s: Update, frame: Frame) -> None:
        weight = self.task.operand(s.weight, "oi", frame)
        velocity = None if s.velocity is None else self.task.operand(s.velocity, "oi", frame)
        a, b = self.task.operand(s.a, "bo", frame), self.task.operand(s.b, "bi", frame)
        self.task.statements.append(
            dataclasses.replace(s, frame=frame, weight=weight, velocity=velocity, a=a, b=b)
        )
        for name in (s.weight, s.velocity):
            if name is not None:
                self.task.result(name, Form(letter_axes(self.network, frame, "oi")))


RULES: dict[type[Statement], Callable[[Partition, Any], None]] = {
    Repeat: Partition.body,
    AllSteps: Partition.body,
    Parts: Partition.parts,
    Input: Partition.source,
    Target: Partition.source,
    Draw: Partition.source,
    Loop: Partition.loop_or_update,
    Matmul: Partition.matmul,
    Update: Partition.update,
    Rank: Partition.whole_layer,
    ChannelSum: Partition.whole_layer,
    Reverse: Partition.whole_layer,
    BatchSum: Partition.batch_sum,
    Convolve: Partition.convolve,
    Expand: Partition.expand,
    ScatterAdd: Partition.scatter_add,
    Turn: Partition.turn,
}


def operands(s: Loop | Matmul | Update | Convolve) -> list[tuple[str, str]]:
    """The buffers that a statement reads, with their letters; without shared weights."""
    if isinstance(s, Loop):
        nodes = ir.walk(*(o.node for o in s.outputs))
        return [(node.value, node.axes) for node in nodes if node.op is Op.LOAD]
    if isinstance(s, Matmul):
        return [(s.a, s.a_axes), (s.b, s.b_axes)]
    if isinstance(s, Update) or s.axis == "b":
        return [(s.a, "bo"), (s.b, "bi")]
    return [(s.a, {"i": "bi", "o": "bo"}[s.axis])]


def letter_of(frame: Frame) -> str:
    """The letter along which tasks divide the work of a frame, if any."""
    return {"m": "o", "c": "i"}.get(frame.split, frame.split)


def splits(network: Network, placement: Placement) -> set[str]:
    """The letters that the frames of layers and links are divided by."""
    placement = placement.within(network)
    frames = [Frame(layer.index, k) for layer in network.layers for k in range(len(layer.links))]
    frames += [Frame(layer.index) for layer in network.layers]
    return {placement.at(frame).split for frame in frames}


def homes(network: Network, placement: Placement) -> dict[str, tuple[str, ...]]:
    """The axes of each learned array and State where they live."""
    placement = placement.within(network)
    found: dict[str, tuple[str, ...]] = {}
    for layer in network.layers[1:]:
        found |= layer_homes(network, layer, placement)
    for array in network.synapse_states:
        frame = placement.at(Frame(array.layer.index, array.position))
        found[array.name] = letter_axes(network, frame, "o" if array.position is None else "oi")
    return found


def layer_homes(network: Network, layer: Layer, placement: Placement) -> dict[str, tuple[str, ...]]:
    """The homes of one layer's arrays, by where its links and its own work are; without states of
    synapses.
    """
    found: dict[str, tuple[str, ...]] = {}
    for position, link in enumerate(layer.links):
        frame = placement.at(Frame(layer.index, position))
        if link.tie is not None:  # where its owner has it
            continue
        shared = dataclasses.replace(frame, shared=True)
        of_link = (shared, "o") if link.is_shared else (frame, "oi")
        found |= dict.fromkeys(link.weights.values(), letter_axes(network, *of_link))
    own = placement.at(Frame(layer.index, shared=bool(layer.kinds)))
    found |= dict.fromkeys(layer.vertex_shapes, letter_axes(network, own, "o"))
    vertex = letter_axes(network, placement.at(Frame(layer.index)), "o")
    found |= dict.fromkeys((f"{layer.name}.{name}" for name in layer.states), vertex)
    return found


def partition(
    program: Program, placement: Placement, results: Iterable[str] = (), n_groups: int = 1
) -> Program:
    """The program of every task. ``results`` are whole at the end; ``outputs`` and ``loss`` name
    their whole form if they are among them. With several groups, each has a part of the rows.

    Raises
    ------
    CompileError : a reduction over what the placement divides is no monoid (argmax).
    """
    return scheduled(Partition(program, placement, results, n_groups).run())
