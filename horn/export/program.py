"""The compiled inference program, statement by statement, as calls to a Graph of another library.

A value is an array with an axis for each letter: b (rows), o (the neurons of the statement's
layer), i (those of the link's source). The synapses of a sparse link are a table (o, k): k is up to
the largest number of synapses of a neuron, and places without a synapse are left out of reductions.
"""

from __future__ import annotations

import logging
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
logger = logging.getLogger(__name__)

# A table of places that is larger, and so many times its synapses, is warned of.
MANY_PLACES, MOSTLY_EMPTY = 1_000_000, 8
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
    """The synapses of a sparse link as (o, k): number, sender, and whether there is one."""

    edges: Array
    sources: Array
    is_there: Array

    @classmethod
    def of(cls, edges: Edges) -> Table:
        counts = np.diff(edges.indptr)
        place = np.arange(max(int(counts.max(initial=0)), 1))
        is_there = place < counts[:, None]
        numbers = np.where(is_there, edges.indptr[:-1, None] + place, 0).astype(np.int64)
        sources = np.asarray(edges.indices, np.int64)
        sources = sources if len(sources) else np.zeros(1, np.int64)
        return cls(numbers, sources[numbers], is_there)


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


def _warn_of_hubs(layer: Layer, table: Table, n: int) -> None:
    """Warn of a table that is mostly places without a synapse: every row has the longest one's."""
    places, (rows, most) = table.is_there.size, table.is_there.shape
    if places >= MANY_PLACES and places > MOSTLY_EMPTY * n:
        logger.warning(
            "layer %d %r: what is exported lists %d places for each of its %s neurons, as many as "
            "one of them has synapses, %s for %s synapses: a large file, and slow. Put neurons "
            "with many synapses into a layer of their own, or predict with horn",
            layer.index, layer.name, most, f"{rows:,}", f"{places:,}", f"{n:,}",
        )  # fmt: skip


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
        self.done: dict[str, T] = {}
        self.tables: dict[tuple[int, int], Table] = {}

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
        return [self.done[name] for name in self.of.program.outputs]

    def expanded(self, s: Expand) -> T:
        """The shared numbers of synapses at their places in the table, or of neurons."""
        if s.frame.link is None:
            layer = self.network.layers[s.frame.layer]
            index = np.arange(layer.size) % layer.n_kinds
        else:
            edges = link_of(self.network, s.frame).edges
            assert edges is not None and edges.weight is not None
            weight = np.asarray(edges.weight, np.int64)
            weight = weight if len(weight) else np.zeros(1, np.int64)
            index = weight[self.table(s.frame).edges]
        return self.graph.take(self.graph.flat(self.shared(s.array)), 0, index)

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

    def load(self, name: str) -> T:
        if name in self.done:
            return self.done[name]
        array = self.of.arrays[name] if name in self.of.arrays else self.of.runner.once[name]
        value = self.given(name, array)
        axes = self.buffers[name].axes
        if axes and axes[-1].startswith("e"):  # one number per synapse, at its place in the table
            layer, link = (int(k) for k in axes[-1][1:].split("."))
            value = self.graph.take(value, len(axes) - 1, self.table(Frame(layer, link)).edges)
        self.done[name] = value
        return value

    def table(self, frame: Frame) -> Table:
        assert frame.link is not None
        key = frame.layer, frame.link
        if key not in self.tables:
            edges = link_of(self.network, frame).edges
            assert edges is not None
            self.tables[key] = Table.of(edges)
            _warn_of_hubs(self.network.layers[frame.layer], self.tables[key], edges.n)
        return self.tables[key]

    def is_sparse(self, frame: Frame) -> bool:
        return frame.link is not None and link_of(self.network, frame).edges is not None

    def output(self, frame: Frame, output: Output) -> T:
        """One result of a loop."""
        graph, node = self.graph, output.node
        letters = out_letters(self.network, frame, output, self.buffers)
        domain = ir.union(node.axes, output.axis, letters)
        on_table = self.is_sparse(frame) and "i" in domain
        if on_table and output.axis != "i" and "o" not in domain:
            on_table = False  # an output of the senders alone
        if on_table:
            domain = ir.union(domain, "o")
        value = self.evaluate(node, frame, domain, on_table)
        if node.op in BOOLEAN:
            value = graph.apply("number", [value])
        there = ir.union(node.axes, "o") if on_table and "i" in node.axes else node.axes
        for place, letter in enumerate(domain):
            if letter != "b" and letter not in there:
                value = graph.repeat(value, place, self.length(frame, letter, on_table))
        if output.axis:
            place = domain.index(output.axis)
            if on_table:
                value = self.where_synapses_are(value, frame, domain, output.monoid)
            value = graph.reduce(value, place, output.monoid)
        return value

    def length(self, frame: Frame, letter: str, on_table: bool) -> int:
        if letter == "o":
            return self.network.layers[frame.layer].size
        if on_table:
            return int(self.table(frame).edges.shape[1])
        return link_of(self.network, frame).source.size

    def where_synapses_are(self, value: T, frame: Frame, domain: str, monoid: str) -> T:
        """Put the neutral number of a monoid at places without a synapse."""
        is_there = self.table(frame).is_there
        if is_there.all():
            return value
        graph = self.graph
        name = f"#synapses.{frame.layer}.{frame.link}"
        if name not in self.done:
            self.done[name] = graph.array(name, is_there.astype(self.of.runner.dtype))
        mask = graph.apply("truth", [self.done[name]])
        if "b" in domain:
            mask = graph.spread(mask, [0])
        neutral = graph.number(ir.IDENTITY[monoid.removeprefix("arg")])
        return graph.apply("select", [mask, value, neutral])

    def evaluate(self, root: Node, frame: Frame, domain: str, on_table: bool) -> T:
        """An expression with all axes of the domain, some of length 1."""
        done: dict[Node, T] = {}
        graph = self.graph
        for node in ir.walk(root):
            if node.op is Op.CONST:
                done[node] = graph.number(float(node.value))
            elif node.op is Op.SCALAR:
                done[node] = graph.number(self.of.scalars[node.value])
            elif node.op is Op.LOAD:
                done[node] = self.seen(self.load(node.value), node.axes, frame, domain, on_table)
            elif node.op is Op.MESSAGE_DRAW:
                drawn = self.drawn(node, frame, on_table)
                done[node] = self.seen(drawn, node.axes, frame, domain, on_table)
            else:
                values = [done[a] for a in node.args]
                for k, a in enumerate(node.args):
                    wants_truth = node.op in _LOGICAL or (node.op is Op.SELECT and k == 0)
                    if wants_truth != (a.op in BOOLEAN):
                        values[k] = graph.apply("truth" if wants_truth else "number", [values[k]])
                done[node] = graph.apply(node.op.value, values)
        return done[root]

    def drawn(self, node: Node, frame: Frame, on_table: bool) -> T:
        """The draws that belong to a synapse for the whole run."""
        name = f"#draws.{frame.layer}.{frame.link}.{node.value}.{node.axes}"
        if name not in self.done:
            value = message_draws(self.of.runner, node, frame)
            array = self.graph.array(name, np.ascontiguousarray(value))
            if on_table and node.axes == "oi":
                array = self.graph.take(array, 0, self.table(frame).edges)
            self.done[name] = array
        return self.done[name]

    def seen(self, value: T, axes: str, frame: Frame, domain: str, on_table: bool) -> T:
        """A buffer along the letters of the domain."""
        if on_table and "i" in axes and "o" not in axes:
            value = self.graph.take(value, axes.index("i"), self.table(frame).sources)
            axes = ir.union(axes, "o")
        missing = [place for place, letter in enumerate(domain) if letter not in axes]
        return self.graph.spread(value, missing) if axes and missing else value


__all__ = ["Array", "Graph", "Translation"]
