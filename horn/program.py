"""The compiler's output for a backend: named buffers and a list of statements over them. Pure
data.

Every statement works in a *frame*: the letters b, o, i of its expressions stand for the rows of the
batch, the neurons of ``frame.layer``, and, in the frame of a link, the neurons of the link's source
layer. A ``LOAD(name, axes)`` node is the content of buffer ``name`` seen along these letters, in
the order "boi", which is also the order of the buffer's own axes.

Buffers have absolute axes: "b" (rows, at most the batch size), "n<k>" (neurons of layer k),
"e<k>.<j>" (synapses of the sparse link j of layer k, in CSR order; in the link's frame such a
buffer is seen along "oi"), "w<k>.<j>" (the weights that the synapses of such a link share), "m<k>"
(the kinds of neurons of layer k). No axes: one number.

In the frame of a sparse link an expression lives on the edges: "bi" values are taken at the edge's
source, "bo" values at its receiver, "oi" values at the edge.

Compact layers: in a training program some layers are computed for their live neurons only
(per-batch dropout). ``Live`` finds them; from then on the axis "n<k>" of every buffer that is not
``full`` has only the live neurons, in ascending order. ``Take`` makes compact copies of full
buffers. A ``Loop`` with ``scatter`` writes (and reads) full buffers at the live places only:
optimizer updates.

Shares: a program that several tasks run (horn/partition) has axes of which each task has its part.
"b@own", "n<k>@own": a contiguous range of rows, of neurons (``Share.neurons``). "e<k>.<j>@o",
"e<k>.<j>@i": the synapses of own receivers, of own sources. "n<k>@in<l>.<j>": the sources that own
receivers of a sparse link listen to; "n<k>@out<l>.<j>": the receivers that own sources reach.
"n<k>@map", "w<k>.<j>@map": own channels of all positions, and what they share; "e<k>.<j>@m".
"w<k>.<j>@below", "e<k>.<j>@c": of the weights of a convolution, those of own channels of the layer
below; the synapses of own channels of the senders.
"n<k>@own.grp", "n<k>@grp": the range of own or all neurons that the task's group has, where groups
divide an update; with "+1" and so on, the range of the next group and so on, around.
``Frame.split`` says along which letter the work of a frame is divided; ``letter_axes`` what its
letters then name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from horn import ir
from horn.ir import Node, Op
from horn.layers import Layer, Link
from horn.network import Network


@dataclass(frozen=True)
class Frame:
    """The meaning of the letters in an expression. ``link`` is the place of the link among the
    layer's, or None: then there is no i. ``split``: the letter along which tasks divide the work,
    or "": each does all of it; "m": o by channels; "c": i by channels. ``grouped``: groups divide
    it too, along o (dense links only); ``turn``: the number of groups further on that it is for.
    ``shared``: o names the numbers that synapses share, or that neurons of a kind do, instead of
    the synapses or neurons.
    """

    layer: int
    link: int | None = None
    split: str = ""
    grouped: bool = False
    turn: int = 0
    shared: bool = False


def layer_of(axis: str) -> int:
    """The layer whose neurons an axis has in full; else -1."""
    return int(axis[1:]) if axis.startswith("n") and "@" not in axis else -1


def base(axis: str) -> str:
    """The whole axis of an axis or of a share of it."""
    return axis.partition("@")[0]


ERRORS = -1  # the "link" of a frame in which neurons of a layer (o) hear the errors of outputs (i)


@dataclass(frozen=True)
class ErrorLink:
    """Dense, from the output layer to a hidden one, without weights."""

    source: Layer
    edges: None = None


def link_of(network: Network, frame: Frame) -> Link | ErrorLink:
    """The link of a frame that has one."""
    assert frame.link is not None
    if frame.link == ERRORS:
        return ErrorLink(network.last)
    return network.layers[frame.layer].links[frame.link]


def letter_axes(network: Network, frame: Frame, letters: str) -> tuple[str, ...]:
    """The axes that letters name in a frame."""
    if frame.shared:
        assert letters in ("", "o"), letters
        if frame.link is not None and (tie := network.layers[frame.layer].links[frame.link].tie):
            frame = Frame(tie.layer.index, tie.position, shared=True)
            if not tie.link.is_shared:
                return (f"e{frame.layer}.{frame.link}",) * len(letters)
        place = f"m{frame.layer}" if frame.link is None else f"w{frame.layer}.{frame.link}"
        return (place,) * len(letters)
    rows = "b@own" if frame.split == "b" else "b"
    receivers = f"n{frame.layer}"
    if frame.link is None:
        names = {"b": rows, "o": receivers + {"o": "@own", "m": "@map"}.get(frame.split, "")}
        return tuple(names[letter] for letter in letters)
    link = link_of(network, frame)
    place = f"{frame.layer}.{frame.link}"
    is_sparse = link.edges is not None
    if is_sparse and "o" in letters and "i" in letters:
        edges = f"e{place}" + (f"@{frame.split}" if frame.split in ("o", "i", "m", "c") else "")
        return (rows, edges) if "b" in letters else (edges,)
    sources = f"n{link.source.index}"
    if frame.split == "o":
        receivers, sources = receivers + "@own", sources + (f"@in{place}" if is_sparse else "")
    elif frame.split == "m":  # a convolution hears all channels, a window its own
        is_own = isinstance(link, Link) and not link.is_shared
        receivers, sources = receivers + "@map", sources + ("@map" if is_own else "")
    elif frame.split == "c":
        sources += "@map"
    elif frame.split == "i":
        receivers, sources = receivers + (f"@out{place}" if is_sparse else ""), sources + "@own"
    if frame.grouped:
        receivers = of_group(receivers, frame.turn)
    return tuple({"b": rows, "o": receivers, "i": sources}[letter] for letter in letters)


def of_group(axis: str, turn: int = 0) -> str:
    """The range of an axis for the task's group, or for the group ``turn`` further on."""
    return axis + (".grp" if "@" in axis else "@grp") + (f"+{turn}" if turn else "")


def in_all_groups(axis: str) -> str:
    """The axis without its range of a group; itself if it has none."""
    return axis.partition("+")[0].removesuffix(".grp").removesuffix("@grp")


def each_of(network: Network, name: str, frame: Frame) -> str:
    """The expanded buffer of a learned array: a number per synapse of a link, or neuron."""
    if frame.link is None or frame.link == ERRORS:
        return f"{name}.each"
    is_tied = network.layers[frame.layer].links[frame.link].tie is not None
    return f"{name}.each.{frame.layer}.{frame.link}" if is_tied else f"{name}.each"


def axis_letter(network: Network, frame: Frame, axis: str) -> str:
    """The letter of an axis in a frame: "oi" for synapses."""
    whole = base(axis)
    if whole[0] in "mw" or (frame.shared and whole[0] == "e"):
        return "o"
    if whole == "b" or whole.startswith("e"):
        return "b" if whole == "b" else "oi"
    if whole == f"n{frame.layer}":
        return "o"
    assert frame.link is not None, f"{axis} is no axis of {frame}"
    assert whole == f"n{link_of(network, frame).source.index}", (axis, frame)
    return "i"


def turned_axes(network: Network, s: Turn, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of weights (or gradients) at their owner, from those of a tied link's synapses; a
    share of the one is the same share of the other.
    """
    tie = network.layers[s.frame.layer].links[s.frame.link or 0].tie
    assert tie is not None
    there = f"n{tie.layer.index}", f"n{tie.link.source.index}"
    given = axes[::-1] if s.transposed else axes
    return tuple(b + a[len(base(a)) :] for a, b in zip(given, there, strict=True))


def letters_of(network: Network, frame: Frame, axes: tuple[str, ...]) -> str:
    """The letters of a buffer's axes in a frame, in their order."""
    return "".join(axis_letter(network, frame, axis) for axis in axes)


@dataclass(frozen=True)
class Buffer:
    """An array of the program.

    role : "learned" (a weight, bias or Parameter), "state", "slot" (the optimizer's memory),
    "constant" (``value`` says which), "view" (this task's share of the buffer ``value[0]``, in the
    memory), "late" (the buffer ``value[0]`` as it is ``value[1]`` steps ago; steps ahead where
    that is negative), "given" (filled from outside before every batch), "carried" (the values of
    each row of the batch at a step, which the next step reads; of one step, also in repeats), or
    "work".
    full : it has all neurons of its layers even where they are compact.
    span : in sequences, the buffer has its content at every step, and this many steps before the
    first and after the last one besides, which are 0 unless they are written; None: of one step.
    """

    name: str
    axes: tuple[str, ...]
    role: str = "work"
    full: bool = False
    value: tuple[
        Any, ...
    ] = ()  # of a constant: ("index", layer, first), ("fan_in", layer), ("fan_out", layer)
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Statement:
    """One step of a program."""


@dataclass(frozen=True)
class Repeat(Statement):
    """The body once for each step of a sequence, in their order or in ``reverse``. Buffers have
    their content of that step; outside of repeats that of the last repeat's end, at first step 0.
    """

    body: tuple[Statement, ...]
    reverse: bool = False


@dataclass(frozen=True)
class AllSteps(Statement):
    """The body once, over all steps together: b are the rows of the batch at every step."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Parts(Statement):
    """A sequence in parts of ``length`` steps, the last one of the remaining steps; repeats and all
    steps are those of the part, buffers have as many. ``sums``: the buffers to which parts add
    their content, each of them from "<name>.here".

    ``forward`` runs for one part after the other, except the last, and carries delayed outputs and
    States on. Then, from the last part to the first, each from its carried beginning: ``forward``
    again, ``behind``, of the last part ``judge``, and ``backward``, which continues the part
    behind.
    """

    length: int
    forward: tuple[Statement, ...]
    behind: tuple[Statement, ...]
    judge: tuple[Statement, ...]
    backward: tuple[Statement, ...]
    sums: frozenset[str] = frozenset()

    @property
    def body(self) -> tuple[Statement, ...]:
        """All four bodies in order, as they run for the last part."""
        return self.forward + self.behind + self.judge + self.backward


@dataclass(frozen=True)
class Input(Statement):
    """out (b, n0) = the batch's samples, scaled; of sequences those of this step."""

    out: str


@dataclass(frozen=True)
class Target(Statement):
    """out = the batch's targets: labels as numbers (b,), or values (b, n); or its samples' weights
    (b,).
    """

    out: str
    # "label", "value" (one number per sample), "values", "input", or "weight"; of sequences that
    # end early 1 where a step is the sample's own ("valid"), or the last of these ("last"), else 0
    kind: str
    each_step: bool = False  # of sequences: those of this step
    first: int = -1  # of several outputs: the first of the columns that are this one's


@dataclass(frozen=True)
class TargetRead:
    """The way in which an output reads its targets: the kind of a Target, and its first column in
    those of several outputs.
    """

    output: str
    kind: str
    first: int = -1


# The kind of the only output; the reads of several outputs; None where nothing is judged.
Targets: TypeAlias = str | tuple[TargetRead, ...] | None


@dataclass(frozen=True)
class Draw(Statement):
    """out = random numbers. kind "uniform" or "normal"; per "sample" (b, n), "sequence" (b,
    n), the same at every step, "batch" (n), "run" (n), or "synapse" (o, i), drawn once.

    ``layer`` names the key and the neurons; for "synapse" see note 0001, point 10 (``link`` is the
    link's position; out is a weight's shape, or (n,) for the bias, where link = number of links).
    """

    out: str
    kind: str
    per: str
    layer: int
    site: int
    link: int = 0


@dataclass(frozen=True)
class Matmul(Statement):
    """out = sum over ``axis`` of a * b.

    The operands' letters are in the link's frame: forward a (b,i), b (o,i), axis i -> (b,o);
    backward a (b,o), b (o,i), axis o -> (b,i); gradient a (b,o), b (b,i), axis b -> (o,i).
    ``out_axes`` are the letters of out.
    """

    frame: Frame
    out: str
    out_axes: str
    a: str
    a_axes: str
    b: str
    b_axes: str
    axis: str


@dataclass(frozen=True)
class Output:
    """A result of a Loop: ``node`` stored, or reduced over ``axis`` with ``monoid``. ``letters``:
    of the buffer's axes, where a layer hears itself and its axes do not tell; else "".
    """

    buffer: str
    node: Node
    axis: str = ""
    monoid: str = ""
    letters: str = ""


@dataclass(frozen=True)
class Loop(Statement):
    """A fused pass over the frame's domain: all outputs have the same domain (the union of their
    axes before reduction) and the same axis.

    An output may be a buffer that is also loaded (in place, elementwise).
    With ``scatter`` full buffers are read and written at the live neurons of compact layers.
    """

    frame: Frame
    outputs: tuple[Output, ...]
    scatter: bool = False


@dataclass(frozen=True)
class Update(Statement):
    """A weight update fused with its gradient: velocity = momentum * velocity - lr * inv_rows *
    (sum over b of a * b); weight += velocity.

    Without momentum (velocity is None): weight -= lr * inv_rows * (...). a (b,o), b (b,i), in the
    link's frame. Of compact layers a and b have the live neurons, and weight and velocity, which
    are whole, change at the live places only.

    parts (o,i): the contributions of other groups' rows to the sum.
    """

    frame: Frame
    weight: str
    velocity: str | None
    momentum: float
    a: str
    b: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rank(Statement):
    """out (b, n) = the number of neurons of the frame's layer with a larger number in the array, or
    with an equal one and a smaller index.
    """

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class ChannelSum(Statement):
    """out, shaped as the array (b, n) or (n,), = the sum over positions of a neuron's channel."""

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class BatchSum(Statement):
    """out, shaped as the array (b, n), = at each row the sum over all rows of a step. In sequences
    only, inside repeats.
    """

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class Live(Statement):
    """The live neurons of a layer: where ``mask`` (n,) is not 0. ``all_live`` in programs that do
    not drop.
    """

    layer: int
    mask: str


@dataclass(frozen=True)
class Take(Statement):
    """out = the part of a full buffer that belongs to live neurons, along every axis of a compact
    layer.
    """

    out: str
    array: str


@dataclass(frozen=True)
class Expand(Statement):
    """out = the shared number of each synapse of the frame's link, or each neuron of its layer."""

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class ScatterAdd(Statement):
    """out = for each shared number of the frame's link, or its layer, the sum over all synapses or
    neurons that share it.
    """

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class Turn(Statement):
    """out (o, i) = the weights of a dense link, for the synapses of the frame's link, which is tied
    to it; ``back``: gradients of those synapses, for the link that owns the weights.
    """

    frame: Frame
    out: str
    array: str
    transposed: bool
    back: bool = False


@dataclass(frozen=True)
class Convolve(Statement):
    """A sum of products over the windows of the frame's link, whose weights are shared.

    axis "i": out (b, o) = the sum over messages of a (b, i) and the weights b; "o": out (b, i) =
    the sum over receivers of a (b, o) and the weights b; "b": out, shared as the weights are, = the
    sum over the batch and all that share a weight of a (b, o) and b (b, i).
    """

    frame: Frame
    out: str
    a: str
    b: str
    axis: str


@dataclass(frozen=True)
class Reverse(Statement):
    """out, shaped as the array (b, n), = at each step of a sequence the array at the step equally
    far from its other end; behind a sequence's end the array itself. Over all steps.
    """

    frame: Frame
    out: str
    array: str


@dataclass(frozen=True)
class Pick(Statement):
    """out = the elements of an array (whole along its axes) that out's axes name. Local."""

    out: str
    array: str


@dataclass(frozen=True)
class Move(Statement):
    """out = the elements that out's axes name of an array whose shares lie with several tasks.

    With a ``monoid`` ("sum", "prod", "max", "min", "any", "all") every task has a part of each
    number, and they are combined in task order. ``across`` groups: between the tasks of all groups
    that have the same share, where each group has a part. ``level`` : of the sum's tree
    (group_sums.py), None where all groups do it at once; without a monoid, the first group's
    numbers.
    """

    out: str
    array: str
    monoid: str = ""
    across: bool = False
    level: int | None = None


@dataclass(frozen=True)
class Post(Statement):
    """Send this task's blocks of the moves. ``superstep`` counts from 0 in a batch."""

    superstep: int
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Collect(Statement):
    """Wait for the others' blocks of the moves, and write their outs."""

    superstep: int
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Mark(Statement):
    """The end of a segment, where a caller acts between the statements."""


@dataclass(frozen=True)
class Program:
    """Statements in order, and the buffers they use.

    ``prologue`` runs once (synapse draws, per="run" draws); ``statements`` per batch. ``outputs``
    are the buffers (b, n) that the outputs send, ``loss`` the buffer (b,) of each sample's loss or
    None, ``losses`` that of each loss by itself, of inference. ``probes`` maps the names of
    ``Engine.probe`` to buffers. ``aggregates`` are buffers (b,): each sample's number of each
    aggregate. ``steps``: the steps of sequences, else 0; ``kept``: buffers of sequences that are
    read afterwards, at every step.
    """

    network: Network
    buffers: dict[str, Buffer]
    prologue: tuple[Statement, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    loss: str | None
    compact: frozenset[int] = frozenset()
    probes: dict[str, str] = field(default_factory=dict)
    aggregates: tuple[str, ...] = ()
    steps: int = 0
    losses: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    @property
    def steps_of_buffers(self) -> int:
        """The number of steps that buffers of all steps hold: with parts, those of a part."""
        parts = (s.length for s in self.statements if isinstance(s, Parts))
        return next(parts, self.steps)

    @property
    def shown(self) -> frozenset[str]:
        """The buffers that are read when all statements have run. Of sequences ``kept`` has the
        probes that are asked for; a stream, which is of one step, is asked for any.
        """
        found = {*self.outputs, *self.losses, *self.aggregates, *self.kept}
        found |= set() if self.loss is None else {self.loss}
        return frozenset(found.union(self.probes.values()) if self.steps <= 1 else found)


ROW_WEIGHT = "#row_weight"  # the given buffer (b,): how often each row's gradient counts


def members_of(layer: Layer) -> str:
    """The given buffer (b, n) that marks the members of each sample, of a masked layer."""
    return f"{layer.name}#members"


def segments(program: Program) -> list[tuple[Statement, ...]]:
    """The statements between exchanges: one more than there are posts, collects and marks. In a
    repeat with exchanges, each piece between two of them is a repeated segment.
    """
    found: list[list[Statement]] = [[]]
    for statement in program.statements:
        if exchanges(statement):
            assert isinstance(statement, Repeat)
            inside: list[list[Statement]] = [[]]
            for each in statement.body:
                if isinstance(each, (Post, Collect)):
                    inside.append([])
                else:
                    inside[-1].append(each)
            found += [[Repeat(tuple(body), statement.reverse)] for body in inside]
            found.append([])
        elif isinstance(statement, (Post, Collect, Mark)):
            found.append([])
        else:
            found[-1].append(statement)
    return [tuple(part) for part in found]


def exchanges(s: Statement) -> bool:
    """Whether it is a repeat in which tasks exchange something at every step."""
    return isinstance(s, Repeat) and any(isinstance(each, Post) for each in s.body)


def every(statements: Iterable[Statement]) -> Iterator[Statement]:
    """All statements, including those in the bodies of repeats, all steps and parts."""
    for statement in statements:
        if isinstance(statement, (Repeat, AllSteps, Parts)):
            yield from every(statement.body)
        else:
            yield statement


def in_order(statements: Iterable[Statement]) -> list[Statement]:
    """The statements, with those of parts in the order of the last part."""
    found: list[Statement] = []
    for statement in statements:
        found += statement.body if isinstance(statement, Parts) else (statement,)
    return found


def out_letters(
    network: Network, frame: Frame, output: Output, buffers: Mapping[str, Buffer]
) -> str:
    """The letters of the buffer that an output is stored in, in a frame."""
    return output.letters or letters_of(network, frame, buffers[output.buffer].axes)


def reads(statement: Statement) -> tuple[str, ...]:
    """The buffers that a statement reads."""
    if isinstance(statement, (Repeat, AllSteps, Parts)):
        return tuple(dict.fromkeys(name for each in statement.body for name in reads(each)))
    if isinstance(statement, Loop):
        return _loads(*(o.node for o in statement.outputs))
    if isinstance(statement, (Convolve, Matmul)):
        return (statement.a, statement.b)
    if isinstance(statement, Update):
        return (statement.a, statement.b, *statement.parts, *writes(statement))
    if isinstance(statement, (ChannelSum, Move, Pick, Take, Rank, Expand, ScatterAdd, Turn)):
        return (statement.array,)
    if isinstance(statement, (BatchSum, Reverse)):
        return (statement.array,)
    return (statement.mask,) if isinstance(statement, Live) else ()


@lru_cache(maxsize=4096)  # a planner asks for equal expressions hundreds of times
def _loads(*nodes: Node) -> tuple[str, ...]:
    return tuple(node.value for node in ir.walk(*nodes) if node.op is Op.LOAD)


def writes(statement: Statement) -> tuple[str, ...]:
    """The buffers that a statement writes."""
    if isinstance(statement, (Repeat, AllSteps, Parts)):
        return tuple(dict.fromkeys(name for each in statement.body for name in writes(each)))
    if isinstance(statement, (Mark, Live, Post)):
        return ()
    if isinstance(statement, Loop):
        return tuple(o.buffer for o in statement.outputs)
    if isinstance(statement, Update):
        return tuple(name for name in (statement.weight, statement.velocity) if name is not None)
    if isinstance(statement, Collect):
        return tuple(m.out for m in statement.moves)
    return (statement.out,)  # type: ignore[attr-defined]


def changed_early(buffers: Mapping[str, Buffer], statements: Sequence[Statement]) -> dict[int, str]:
    """The numbers of the statements that change a learned array or a slot which a later one reads,
    and that array. All gradients are of the numbers that the batch began with.
    """
    found: dict[int, str] = {}
    read: set[str] = set()  # by statements after this one that do not change it themselves
    for number in reversed(range(len(statements))):
        written = writes(statements[number])
        for name in written:
            if name in read and buffers[name].role in ("learned", "slot"):
                found[number] = name
        read.update(name for name in reads(statements[number]) if name not in written)
    return found


def verify(program: Program) -> None:
    """Check that every expression obeys the table of IR and names existing buffers, that every
    buffer is written before it is read, and that no gradient reads what an update has changed.
    """
    statements = list(every(program.statements))
    for number, name in changed_early(program.buffers, statements).items():
        raise AssertionError(f"{name} is read after its update: {statements[number]}")
    written = {b.name for b in program.buffers.values() if b.role != "work"}
    seen: set[Node] = set()
    for statement in (*every(program.prologue), *statements):
        for name in reads(statement):
            assert name in written, f"{name} is read before it is written: {statement}"
        written.update(writes(statement))
        if isinstance(statement, Loop):
            for node in ir.verify(*(o.node for o in statement.outputs), seen=seen):
                assert node.op in ir.LOWERED, f"{node!r} is left in a lowered program"
                assert node.op not in (Op.REDUCE, Op.MATMUL), f"{node!r} is not scheduled"
