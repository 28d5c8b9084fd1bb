"""The compiled inference program, statement by statement, as calls to a Graph of another library.

A value is an array with an axis for each letter: b (rows), o (the neurons of the statement's
layer), i (those of the link's source). The synapses of a sparse link are a table (o, k): k is up to
the largest number of synapses of a neuron, and places without a synapse are left out of reductions.
Where most places would have none, neurons with about as many synapses have a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from horn import ir
from horn.backends import Setup, in_use
from horn.backends._reference_loops import message_draws
from horn.backends.reference import Runner
from horn.compiler import lower
from horn.connections import Edges
from horn.connections.windows import Sizes, Span
from horn.data.normalization import Normalization
from horn.delays import hears_reversed
from horn.errors import CompileError, ModelError
from horn.ir import BOOLEAN, Node, Op
from horn.layers import Layer
from horn.network import Network
from horn.program import (
    AllSteps,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Frame,
    Input,
    Loop,
    Matmul,
    Output,
    Program,
    Rank,
    Repeat,
    Statement,
    Turn,
    link_of,
    out_letters,
    reads,
    writes,
)

Array = np.ndarray[Any, Any]
T = TypeVar("T")

MOSTLY_EMPTY = 2  # places of a table for each synapse, above which it is divided
_LOGICAL = (Op.AND, Op.OR, Op.NOT)


class Graph(Protocol[T]):
    """The operations needed of another library. Arrays are NumPy's, in the type of the model."""

    def array(self, name: str, value: Array) -> T:
        """A learned array, a State's or a constant; requested once per name."""

    def number(self, value: float) -> T:
        """A number without axes."""

    def apply(self, name: str, values: Sequence[T]) -> T:
        """An elementwise operation by its name in ``ir.Op``; "number" makes numbers of truth
        values, "truth" truth values of numbers. Axes of length 1 are repeated, as in NumPy.
        """

    def spread(self, value: T, places: Sequence[int]) -> T:
        """Insert axes of length 1, at these places of the result."""

    def repeat(self, value: T, place: int, n: int) -> T:
        """Repeat an axis of length 1."""

    def take(self, value: T, place: int, index: Array) -> T:
        """Take the elements of an index (o, k) along one axis, which becomes two."""

    def join(self, values: Sequence[T], place: int) -> T:
        """One array of several, behind one another along an axis."""

    def matmul(self, letters: str, a: T, b: T) -> T:
        """A sum of products, in the notation of einsum."""

    def flat(self, value: T) -> T:
        """All numbers along one axis."""

    def convolve(self, value: T, weights: T, below: Sizes, spans: Sequence[Span], groups: int) -> T:
        """Convolve (b, positions * channels) with (maps, *kernel, channels / groups): (b, positions
        * maps).
        """

    def convolve_back(
        self, value: T, weights: T, maps: Sizes, spans: Sequence[Span], groups: int
    ) -> T:
        """Convolve (b, positions * maps) back with the same weights: (b, positions * channels)."""

    def reduce(self, value: T, place: int, monoid: str) -> T:
        """Reduce one axis away. monoid : "sum", "prod", "max", "min", "any", "all", "argmax",
        "argmin".
        """

    def rank(self, value: T, n: int) -> T:
        """The ranks in (b, n): the number in its row of larger ones, or equal ones before it."""

    def in_time(
        self, x: T, before: Sequence[tuple[int, T | None]],
        step: Callable[[T, Sequence[T]], tuple[Sequence[T], Sequence[T]]],
    ) -> list[T]:  # fmt: skip
        """The outputs of each step, (b, steps, n) each, for x (b, steps, features). before : the
        values before the first step: for each (b, n) the n, and the (n,) numbers; None: zeros.
        step : from a step's x (b, features) and the values before it, the values before the next
        step, and the outputs.
        """


@dataclass(frozen=True)
class Table:
    """The synapses of some receivers of a sparse link as (o, k): number, sender, and whether there
    is one. number : of the table among those of its link. receivers : (o,); None for all.
    """

    number: int
    receivers: Array | None
    edges: Array
    sources: Array
    is_there: Array

    @classmethod
    def of(cls, edges: Edges) -> list[Table]:
        """The tables of a link: one, or where most of its places would be without a synapse one for
        the receivers of 2, of 3 to 4, of 5 to 8 synapses, and so on.
        """
        counts = np.diff(edges.indptr)
        doublings = np.ceil(np.log2(np.maximum(counts, 1)))
        kinds = np.unique(doublings)
        if len(kinds) == 1 or counts.max() * len(counts) <= MOSTLY_EMPTY * edges.n:
            return [cls._of(edges, counts, 0, None)]
        rows = [np.flatnonzero(doublings == kind) for kind in kinds]
        return [cls._of(edges, counts, k, own) for k, own in enumerate(rows)]

    @classmethod
    def _of(cls, edges: Edges, counts: Array, number: int, receivers: Array | None) -> Table:
        first = edges.indptr[:-1]
        if receivers is not None:
            counts, first = counts[receivers], first[receivers]
        place = np.arange(max(int(counts.max(initial=0)), 1))
        is_there = place < counts[:, None]
        numbers = np.where(is_there, first[:, None] + place, 0).astype(np.int64)
        sources = np.asarray(edges.indices, np.int64)
        sources = sources if len(sources) else np.zeros(1, np.int64)
        return cls(number, receivers, numbers, sources[numbers], is_there)


class Translation(Generic[T]):
    """The inference program of one model, for any Graph.

    arrays : learned arrays and States by name. updates : their number of updates, which neurons may
    read. normalization : of each feature, before the network sees it.

    Raises
    ------
    CompileError : an operation of the program does not exist elsewhere; names it.
    """

    def __init__(
        self,
        network: Network,
        arrays: Mapping[str, Array],
        dtype: str,
        updates: int,
        normalization: Normalization | None = None,
    ) -> None:
        _check(network)
        self.each_step = [layer.each_step for layer in network.outputs]
        network = network.of_steps(1) if network.steps else network
        self.network, self.arrays = network, arrays
        self.normalization = normalization
        self.program = lower.inference_program(network, None)
        setup = Setup(network, None, None, 1, dtype)
        self.runner = Runner(self.program, dict(arrays), setup, 1)
        self.scalars = {"iteration": float(updates), "updates": updates + 1.0, "learning_rate": 0.0}
        self.runner.scalars = self.scalars
        self.carried = Carried()
        if network.steps:
            self.statements, self.carried = _of_a_step(self.program)
        else:
            self.statements = _needed(self.program.statements, self.program.outputs)
        for statement in self.statements:
            self._check(statement)

    def run(self, graph: Graph[T], x: T) -> list[T]:
        """The outputs (b, n) of each output layer, for samples x (b, features); for sequences
        x (b, steps, features) at every step, (b, steps, n).
        """
        if not self.network.steps:
            return _Run(self, graph, x).result()
        carried, size = self.carried, {f"n{k.index}": k.size for k in self.network.layers}

        def step(x: T, before: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
            run = _Run(self, graph, x)
            run.done |= dict(zip(carried.late, before, strict=True))
            sent = run.result()
            return [run.load(name) for name in carried.becomes], sent

        before = []
        for name, begins in zip(carried.late, carried.begins, strict=True):
            array = None
            if begins:
                array = graph.array(begins, np.asarray(self.arrays[begins], self.runner.dtype))
            whole = name.rpartition("~")[0]
            before.append((size[self.program.buffers[whole].axes[1]], array))
        return graph.in_time(x, before, step)

    def _check(self, statement: Statement) -> None:
        if isinstance(statement, Draw):
            _refuse(self.network.layers[statement.layer], f"self.{_word(statement.kind)} draws a "
                    f"number per {statement.per}")  # fmt: skip
        if isinstance(statement, Loop):
            layer = self.network.layers[statement.frame.layer]
            for output in statement.outputs:
                for node in ir.walk(output.node):
                    if node.op is Op.MESSAGE_DRAW and node.value[2] != "run":
                        _refuse(layer, f"self.{_word(node.value[0])} draws a number per message")


def _check(network: Network) -> None:
    if in_use("kernels", network) != "kernels":
        slow = next(layer for layer in network.layers if layer.neuron.interpreted)
        _refuse(slow, "@horn.interpreted runs it message by message in Python")
    if hears_reversed(network.layers):
        raise CompileError(
            "a layer that hears a sequence from its end (horn.Reversed) cannot be exported: what "
            "is exported goes step by step. Predict with horn, or export a network without it"
        )
    if network.steps and network.synapse_states:
        name = network.synapse_states[0].name
        raise CompileError(
            f"{name}: a SynapseState of a network of sequences cannot be exported: a number for "
            "each sample and synapse. Predict with horn, or keep what is remembered in a "
            'horn.State(0.0, per="sample")'
        )


def _refuse(layer: Layer, what: str) -> None:
    raise CompileError(
        f"layer {layer.index} {layer.name!r}: {layer.neuron.__name__} cannot be exported: {what}, "
        f"which other libraries have no words for. Predict with horn, or write the neuron so that "
        f"it does not where self.training is False"
    )


def _word(kind: str) -> str:
    return "normal" if kind == "normal" else "uniform (or bernoulli)"


@dataclass(frozen=True)
class Carried:
    """The values that go on from step to step: buffers of late numbers, their buffers one step
    later, and the States that they begin with, "" for zeros.
    """

    late: tuple[str, ...] = ()
    becomes: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()


def _of_a_step(program: Program) -> tuple[list[Statement], Carried]:
    """The statements of one step, and its carried values. With a delay of several steps, every step
    between is carried, too.
    """
    statements: list[Statement] = []
    for each in program.statements:
        if isinstance(each, (Repeat, AllSteps)):
            statements += each.body
        elif not any(program.buffers[name].role == "late" for name in writes(each)):
            statements.append(each)  # the others write the beginning of States
    wanted: set[str] = set(program.outputs)
    steps: dict[str, int] = {}
    while True:
        found = _needed(statements, wanted)
        read = {name for statement in found for name in reads(statement)} | wanted
        for name in read:
            if (buffer := program.buffers[name]).role == "late":
                whole, delay = buffer.value
                steps[whole] = max(steps.get(whole, 0), delay)
        if wanted >= steps.keys():
            break
        wanted |= steps.keys()
    late, becomes, begins = [], [], []
    for whole, most in steps.items():
        state = whole.removesuffix(".now")
        known = program.buffers.get(state)
        for delay in range(1, most + 1):
            late.append(f"{whole}~{delay}")
            becomes.append(f"{whole}~{delay - 1}" if delay > 1 else whole)
            begins.append(state if known is not None and known.role == "state" else "")
    return found, Carried(tuple(late), tuple(becomes), tuple(begins))


def _needed(statements: Sequence[Statement], outputs: Iterable[str]) -> list[Statement]:
    """The statements that the outputs depend on, in order."""
    wanted, found = {*outputs}, []
    for statement in reversed(statements):
        if wanted & set(writes(statement)):
            wanted |= set(reads(statement))
            found.append(statement)
    return found[::-1]


class _Run(Generic[T]):
    """One pass over the statements."""

    def __init__(self, of: Translation[T], graph: Graph[T], x: T) -> None:
        self.of, self.graph, self.x = of, graph, x
        self.network, self.buffers = of.network, of.program.buffers
        self.done: dict[str, T | list[T]] = {}  # at synapses one for each table
        self.known_tables: dict[tuple[int, int], list[Table]] = {}

    def result(self) -> list[T]:
        for statement in self.of.statements:
            if isinstance(statement, Input):
                self.done[statement.out] = self.features()
            elif isinstance(statement, Matmul):
                letters = f"{statement.a_axes},{statement.b_axes}->{statement.out_axes}"
                a, b = self.load(statement.a), self.load(statement.b)
                self.done[statement.out] = self.graph.matmul(letters, a, b)
            elif isinstance(statement, Expand):
                self.done[statement.out] = self.expanded(statement)
            elif isinstance(statement, Turn):
                self.done[statement.out] = self.turned(statement)
            elif isinstance(statement, ChannelSum):
                self.done[statement.out] = self.channel_sum(statement)
            elif isinstance(statement, Convolve):
                self.done[statement.out] = self.convolved(statement)
            elif isinstance(statement, Rank):
                self.done[statement.out] = self.graph.rank(
                    self.load(statement.array), self.network.layers[statement.frame.layer].size
                )
            elif isinstance(statement, Loop):
                made = [self.output(statement.frame, output) for output in statement.outputs]
                for output, value in zip(statement.outputs, made, strict=True):
                    self.done[output.buffer] = value
            else:
                raise ModelError(f"{type(statement).__name__} in a program of inference")
        return [self.load(name) for name in self.of.program.outputs]

    def expanded(self, s: Expand) -> T | list[T]:
        """The shared numbers of synapses at their places in the tables, or of neurons."""
        flat = self.graph.flat(self.shared(s.array))
        if s.frame.link is None:
            layer = self.network.layers[s.frame.layer]
            return self.graph.take(flat, 0, np.arange(layer.size) % layer.n_kinds)
        edges = link_of(self.network, s.frame).edges
        assert edges is not None and edges.weight is not None
        weight = np.asarray(edges.weight, np.int64)
        weight = weight if len(weight) else np.zeros(1, np.int64)
        return [self.graph.take(flat, 0, weight[table.edges]) for table in self.tables(s.frame)]

    def turned(self, s: Turn) -> T:
        """The weights of another layer, transposed if the tie is."""
        shape = np.shape(self.of.arrays[s.array])
        index = np.arange(np.prod(shape)).reshape(shape)
        flat = self.graph.flat(self.shared(s.array))
        return self.graph.take(flat, 0, index.T if s.transposed else index)

    def channel_sum(self, s: ChannelSum) -> T:
        """Sum (b, n) or (n,) over positions: picked by channel and position, then by neuron."""
        layer = self.network.layers[s.frame.layer]
        place = len(self.of.program.buffers[s.array].axes) - 1
        neurons, maps = np.arange(layer.size), layer.extents[-1]
        by_channel = np.ascontiguousarray(neurons.reshape(-1, maps).T)
        picked = self.graph.take(self.load(s.array), place, by_channel)
        total = self.graph.reduce(picked, place + 1, "sum")
        return self.graph.take(total, place, neurons % maps)

    def convolved(self, s: Convolve) -> T:
        assert s.axis == "i", s
        link = self.network.layers[s.frame.layer].links[s.frame.link or 0]
        connection, below = link.windows
        groups, spans = connection.groups, connection.spans(below, link.weight)
        a, w = self.load(s.a), self.shared(s.b)
        if link.is_turned:
            return self.graph.convolve_back(a, w, link.source.shape, spans, groups)
        return self.graph.convolve(a, w, below, spans, groups)

    def shared(self, name: str) -> T:
        """A weight array in its own shape, which a table of synapses (``load``) has not."""
        return self.given(name, self.of.arrays[name])

    def given(self, name: str, value: Array) -> T:
        """An array of the model; a zero in place of one without numbers, that padding can take."""
        array = np.asarray(value, self.of.runner.dtype)
        if not array.size:
            name, array = f"#none.{name}", np.zeros([max(n, 1) for n in array.shape], array.dtype)
        return self.graph.array(name, array)

    def features(self) -> T:
        """The outputs of the input layer: x, normalized as by the model."""
        if self.of.normalization is None:
            return self.x
        center, factor = (
            self.graph.spread(self.graph.array(f"#normalization.{name}", value), [0])
            for name, value in zip(
                ("center", "factor"),
                self.of.normalization.steps(1.0, self.of.runner.dtype, self.of.runner.dtype),
                strict=True,
            )
        )
        apart = self.graph.apply("sub", [self.x, center])
        return self.graph.apply("mul", [apart, factor])

    def load(self, name: str, table: Table | None = None) -> T:
        """A buffer; of one with a number per synapse those of a table."""
        if name not in self.done:
            self.done[name] = self.loaded(name)
        return self.of_table(self.done[name], table)

    def of_table(self, value: T | list[T], table: Table | None) -> T:
        if not isinstance(value, list):
            return value
        assert table is not None
        return value[table.number]

    def loaded(self, name: str) -> T | list[T]:
        array = self.of.arrays[name] if name in self.of.arrays else self.of.runner.once[name]
        value = self.given(name, array)
        axes = self.buffers[name].axes
        if not axes or not axes[-1].startswith("e"):
            return value
        layer, link = (int(k) for k in axes[-1][1:].split("."))  # one number per synapse
        tables = self.tables(Frame(layer, link))
        return [self.graph.take(value, len(axes) - 1, table.edges) for table in tables]

    def tables(self, frame: Frame) -> list[Table]:
        assert frame.link is not None
        key = frame.layer, frame.link
        if key not in self.known_tables:
            edges = link_of(self.network, frame).edges
            assert edges is not None
            self.known_tables[key] = Table.of(edges)
        return self.known_tables[key]

    def is_sparse(self, frame: Frame) -> bool:
        return frame.link is not None and link_of(self.network, frame).edges is not None

    def output(self, frame: Frame, output: Output) -> T | list[T]:
        """One result of a loop."""
        letters = out_letters(self.network, frame, output, self.buffers)
        domain = ir.union(output.node.axes, output.axis, letters)
        on_table = self.is_sparse(frame) and "i" in domain
        if on_table and output.axis != "i" and "o" not in domain:
            on_table = False  # an output of the senders alone
        if not on_table:
            return self.of_rows(frame, output, domain, None)
        domain, tables = ir.union(domain, "o"), self.tables(frame)
        found = [self.of_rows(frame, output, domain, table) for table in tables]
        if output.axis != "i":
            return found
        receivers = [table.receivers for table in tables if table.receivers is not None]
        if not receivers:
            return found[0]
        place = domain.index("o")
        order = np.argsort(np.concatenate(receivers))
        return self.graph.take(self.graph.join(found, place), place, order)

    def of_rows(self, frame: Frame, output: Output, domain: str, table: Table | None) -> T:
        """One result of a loop, for the receivers of a table; None: for all."""
        graph, node = self.graph, output.node
        value = self.evaluate(node, frame, domain, table)
        if node.op in BOOLEAN:
            value = graph.apply("number", [value])
        there = ir.union(node.axes, "o") if table and "i" in node.axes else node.axes
        for place, letter in enumerate(domain):
            if letter != "b" and letter not in there:
                value = graph.repeat(value, place, self.length(frame, letter, table))
        if output.axis:
            place = domain.index(output.axis)
            if table is not None:
                value = self.where_synapses_are(value, frame, domain, output.monoid, table)
            value = graph.reduce(value, place, output.monoid)
        return value

    def length(self, frame: Frame, letter: str, table: Table | None) -> int:
        if table is not None:
            return int(table.edges.shape["oi".index(letter)])
        layer = self.network.layers[frame.layer]
        return layer.size if letter == "o" else link_of(self.network, frame).source.size

    def where_synapses_are(
        self, value: T, frame: Frame, domain: str, monoid: str, table: Table
    ) -> T:
        """Put the neutral number of a monoid at places without a synapse."""
        if table.is_there.all():
            return value
        graph, dtype = self.graph, self.of.runner.dtype
        name = f"#synapses.{frame.layer}.{frame.link}.{table.number}"
        mask = graph.apply("truth", [graph.array(name, table.is_there.astype(dtype))])
        if "b" in domain:
            mask = graph.spread(mask, [0])
        neutral = graph.number(ir.IDENTITY[monoid.removeprefix("arg")])
        return graph.apply("select", [mask, value, neutral])

    def evaluate(self, root: Node, frame: Frame, domain: str, table: Table | None) -> T:
        """An expression with all axes of the domain, some of length 1."""
        done: dict[Node, T] = {}
        graph = self.graph
        for node in ir.walk(root):
            if node.op is Op.CONST:
                done[node] = graph.number(float(node.value))
            elif node.op is Op.SCALAR:
                done[node] = graph.number(self.of.scalars[node.value])
            elif node.op is Op.LOAD:
                loaded = self.load(node.value, table)
                done[node] = self.seen(loaded, node.axes, domain, table)
            elif node.op is Op.MESSAGE_DRAW:
                drawn = self.drawn(node, frame, table)
                done[node] = self.seen(drawn, node.axes, domain, table)
            else:
                values = [done[a] for a in node.args]
                for k, a in enumerate(node.args):
                    wants_truth = node.op in _LOGICAL or (node.op is Op.SELECT and k == 0)
                    if wants_truth != (a.op in BOOLEAN):
                        values[k] = graph.apply("truth" if wants_truth else "number", [values[k]])
                done[node] = graph.apply(node.op.value, values)
        return done[root]

    def drawn(self, node: Node, frame: Frame, table: Table | None) -> T:
        """The draws that belong to a synapse for the whole run."""
        name = f"#draws.{frame.layer}.{frame.link}.{node.value}.{node.axes}"
        if name not in self.done:
            value = message_draws(self.of.runner, node, frame)
            array = self.graph.array(name, np.ascontiguousarray(value))
            self.done[name] = array
            if table is not None and node.axes == "oi":
                each = self.tables(frame)
                self.done[name] = [self.graph.take(array, 0, own.edges) for own in each]
        return self.of_table(self.done[name], table)

    def seen(self, value: T, axes: str, domain: str, table: Table | None) -> T:
        """A buffer along the letters of the domain, at the receivers of a table."""
        if table is not None and "i" in axes and "o" not in axes:
            value = self.graph.take(value, axes.index("i"), table.sources)
            axes = ir.union(axes, "o")
        elif table is not None and table.receivers is not None and "o" in axes and "i" not in axes:
            value = self.graph.take(value, axes.index("o"), table.receivers)
        missing = [place for place, letter in enumerate(domain) if letter not in axes]
        return self.graph.spread(value, missing) if axes and missing else value


__all__ = ["Array", "Graph", "Translation"]
