"""The search for the cheapest placement of a program.

It tries all placements where they are few, else descends from several starts, one choice at a time.
The same job gets the same placement every time on one machine: the order of trials is fixed, and a
choice changes only for a significant gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from horn import ir
from horn.errors import CompileError
from horn.network import Network
from horn.partition.forms import Form
from horn.partition.placement import (
    CHANNELS,
    INPUT_CHANNELS,
    LAYER_SPLITS,
    LINK_SPLITS,
    Placement,
    has_channels,
)
from horn.partition.rewrite import Partition, homes, layer_homes, partition
from horn.partition.supersteps import Ends, scheduled
from horn.planner.cost_model import Costs
from horn.program import (
    BatchSum,
    Buffer,
    ChannelSum,
    Convolve,
    Expand,
    Frame,
    Loop,
    Matmul,
    Program,
    Rank,
    Reverse,
    ScatterAdd,
    Statement,
    Turn,
    Update,
    each_of,
    reads,
    writes,
)

MAX_ALL = 100  # up to so many placements are all tried
N_STARTS = 2  # starts of a descent, the best of several
# Descent tries more placements the deeper a network is, and each takes longer: this limit is some
# seconds; after it the best placement so far is taken.
MAX_STATEMENTS = 100_000
GAIN = 0.999  # a change counts if its time is less than this part of the old one

Forms = dict[Form, str]
# Statements partitioned every time: they have one form, or change the forms of others.
WHOLE = (BatchSum, ChannelSum, Convolve, Expand, Rank, Reverse, ScatterAdd, Turn)
Choice = tuple[str, ...]  # a word per link, then one per layer, in their order


class PartitionCache:
    """Partitioned statements, for placements that differ in few choices.

    A statement's partition is the same whenever its frame's split, the forms of the contents that
    it touches, and the homes of learned arrays among them are the same.
    """

    def __init__(self, program: Program) -> None:
        self.program = program  # its statements keep their ids
        self.frames: dict[Frame, int] = {}  # numbered
        learned = homes(program.network, Placement()).keys()
        # Of each statement: its frame, what it touches, the learned arrays of these.
        self.touched = {
            id(s): (
                self.frames.setdefault(s.frame, len(self.frames)),
                names := _touched(s),
                [n if n in learned else n.rpartition("/")[0] for n in names
                 if n in learned or n.rpartition("/")[0] in learned],
            )
            for s in program.statements
            if isinstance(s, (Loop, Matmul, Update))
        }  # fmt: skip
        self.partitioned: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.numbers: dict[tuple[tuple[Form, str], ...], int] = {}
        self.forms: list[Forms] = []  # by their number
        self.has_states = bool(program.network.synapse_states)
        self.homes: dict[tuple[Any, ...], dict[str, tuple[str, ...]]] = {}
        self.ends: dict[int, Ends] = {}

    def number_of(self, forms: Forms) -> int:
        key = tuple(forms.items())
        if key not in self.numbers:
            self.numbers[key] = len(self.forms)
            self.forms.append(dict(forms))
        return self.numbers[key]


def _touched(s: Statement) -> tuple[str, ...]:
    if isinstance(s, Loop):
        nodes = ir.walk(*(o.node for o in s.outputs))
        loaded = [node.value for node in nodes if node.op is ir.Op.LOAD]
        return tuple(dict.fromkeys([*loaded, *(o.buffer for o in s.outputs)]))
    if isinstance(s, Matmul):
        return (s.a, s.b, s.out)
    if isinstance(s, Update):
        slots = () if s.velocity is None else (s.velocity,)
        return (s.a, s.b, s.weight, *slots, f"{s.weight}.gradient")
    return (*reads(s), *writes(s)) if isinstance(s, WHOLE) else ()


class CachingPartition(Partition):
    """A partition that looks up each statement in the cache before it computes it."""

    def __init__(
        self, program: Program, placement: Placement, results: Iterable[str], cache: PartitionCache
    ) -> None:
        self.cache = cache
        super().__init__(program, placement, results)
        self.numbers: dict[str, int] = {}  # content -> the number of its forms
        self.splits = [self.placement.at(frame).split for frame in cache.frames]

    def homes(self) -> dict[str, tuple[str, ...]]:
        if self.cache.has_states:
            return super().homes()
        known, found = self.cache.homes, dict[str, tuple[str, ...]]()
        links, layers = self.placement.links, self.placement.layers
        for layer in self.network.layers[1:]:
            index = layer.index
            words = [links.get((index, k)) for k in range(len(layer.links))]
            key = (index, layers.get(index), *words)
            if key not in known:
                known[key] = layer_homes(self.network, layer, self.placement)
            found |= known[key]
        return found

    def in_order(self, s: Statement) -> None:
        if isinstance(s, (Loop, Matmul, Update)):  # of no sequence: nothing is heard late
            self.cached(s)
        else:
            self.rewritten(s)

    def rewritten(self, s: Statement) -> None:
        names = {*_touched(s), *(f"{name}.each" for name in _touched(s))}
        if isinstance(s, Convolve):
            names.add(each_of(self.network, s.b, s.frame))
        self.restore_forms(names)
        super().rewritten(s)
        for name in names & self.task.forms.keys():
            self.numbers[name] = self.cache.number_of(self.task.forms[name])

    def cached(self, s: Loop | Matmul | Update) -> None:
        """Add what a statement becomes, from the cache if that has it."""
        cache, task = self.cache, self.task
        frame, names, learned = cache.touched[id(s)]
        key = (
            id(s),
            self.splits[frame],
            *map(self.numbers.get, names),
            *map(task.homes.__getitem__, learned),
        )
        found = cache.partitioned.get(key)
        if found is None:
            found = cache.partitioned[key] = self.apart(s, names)
        statements, prologue, buffers, after = found
        task.statements.extend(statements)
        task.prologue.extend(prologue)
        task.buffers.update(buffers)
        self.numbers.update(after)

    def restore_forms(self, names: Iterable[str]) -> None:
        """Write the forms of some contents to the task, which ``cached`` only numbers."""
        for name in names:
            if name in self.numbers:
                self.task.forms[name] = dict(self.cache.forms[self.numbers[name]])

    def result_of(self, name: str) -> str:
        self.restore_forms([name])
        return super().result_of(name)

    def apart(self, s: Loop | Matmul | Update, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Partition a statement apart from the others, for the cache."""
        self.restore_forms(names)
        task, buffers = self.task, TrackedBuffers(self.task.buffers)
        kept, task.prologue, task.buffers = (task.prologue, task.buffers), [], buffers
        try:
            with task.apart() as statements:
                super().rewritten(s)
            after = {n: self.cache.number_of(task.forms[n]) for n in names if n in task.forms}
            return tuple(statements), tuple(task.prologue), buffers.noted(), after
        finally:
            task.prologue, task.buffers = kept


class TrackedBuffers(dict[str, Buffer]):
    """Buffers that record the names that were read or added."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        super().__init__(buffers)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Buffer:
        self.names[name] = None
        return super().__getitem__(name)

    def __setitem__(self, name: str, buffer: Buffer) -> None:
        self.names[name] = None
        super().__setitem__(name, buffer)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            self.names[str(name)] = None
            return True
        return False

    def setdefault(self, name: str, buffer: Buffer) -> Buffer:
        self.names[name] = None
        return super().setdefault(name, buffer)

    def noted(self) -> dict[str, Buffer]:
        return {name: super(TrackedBuffers, self).__getitem__(name) for name in self.names}


class Search:
    """Tries placements of one program; remembers the cost of each.

    fixed : the placements of some links. inference : a program that must be legal, too.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        fixed: Mapping[tuple[int, int], str],
        inference: Program | None = None,
    ) -> None:
        self.program, self.costs, self.inference = program, costs, inference
        self.network: Network = program.network
        self.links = [
            (layer.index, position)
            for layer in self.network.layers
            for position in range(len(layer.links))
        ]
        worked = {
            s.frame.layer
            for s in program.statements
            if isinstance(s, Loop) and s.frame.link is None
        }
        self.layers = [layer.index for layer in self.network.layers if layer.index in worked]
        self.options: list[tuple[str, ...]] = [
            (fixed[link],) if link in fixed else self.link_options(*link) for link in self.links
        ] + [self.layer_options(layer) for layer in self.layers]
        self.divided = {layer for (layer, _), where in fixed.items() if where != "replicated"}
        self.costed: dict[Choice, float | CompileError] = {}
        # What has been tried, in order: seconds that it takes at least. Most of them are not
        # followed: what tasks compute and pack is more than the best takes with waiting.
        self.least_s: dict[Choice, float] = {}
        self.cache = PartitionCache(program)

    def link_options(self, layer: int, position: int) -> tuple[str, ...]:
        of = self.network.layers[layer]
        has = has_channels(of.links[position]) and layer in self.layers
        hears = of.links[position].mixes_channels
        return (*LINK_SPLITS, *([CHANNELS] if has else []), *([INPUT_CHANNELS] if hears else []))

    def layer_options(self, layer: int) -> tuple[str, ...]:
        """The splits of a layer: by channels, too, if a link or convolution of it has them."""
        of = self.network.layers
        has = any(
            CHANNELS in self.link_options(x, k)
            if x == layer
            else of[x].links[k].source.index == layer and of[x].links[k].mixes_channels
            for x, k in self.links
        )
        return (*LAYER_SPLITS, *([CHANNELS] if has and of[layer].extents else []))

    def run(self) -> tuple[Placement, Program]:
        """Find the placement, and its program, which for one task is the original. Raises
        CompileError if no placement is legal.
        """
        if self.costs.n_tasks == 1:
            first = tuple(options[0] for options in self.options)
            return self.placement(first), self.program
        if self.program.steps:  # tasks exchange nothing between its steps, unless pins say so
            divided = [x for x in self.network.layers if x.index in self.divided]
            found = Placement.receivers(divided) if divided else Placement.rows(self.network)
            loss = self.program.loss
            return found, partition(self.program, found, [] if loss is None else [loss])
        while True:
            is_small = math.prod(map(len, self.options)) <= MAX_ALL
            best = self.best_of_all() if is_small else self.best_by_descent()
            if best is None:
                tried = (self.costed.get(choice) for choice in self.least_s)
                raise next(e for e in tried if isinstance(e, CompileError))
            error = self.refused(best)
            if error is None:
                return self.placement(best), self.program_of(best)
            self.costed[best] = error

    def refused(self, choice: Choice) -> CompileError | None:
        """The reason why the network cannot predict with this placement, or None."""
        if (program := self.inference) is not None:
            try:
                asked = (*program.outputs, *program.losses, program.loss)
                results = [name for name in dict.fromkeys(asked) if name is not None]
                partition(program, self.placement(choice), results)
            except CompileError as error:
                return error
        return None

    def best_of_all(self) -> Choice | None:
        best: Choice | None = None
        for choice in itertools.product(*self.options):
            if self.is_below(choice, math.inf if best is None else GAIN * self.seconds(best)):
                best = choice
        return best

    def best_by_descent(self) -> Choice | None:
        """Descend from the best starts, by single changes, then by pairs; the best placement."""
        starts: list[Choice] = []  # the cheapest, of equals the first
        for start in dict.fromkeys(self.starts()):
            if len(starts) < N_STARTS or self.is_below(start, self.seconds(starts[-1])):
                starts = sorted([*starts, start], key=self.seconds)[:N_STARTS]
        best: Choice | None = None
        for start in starts:
            end = self.descend(start, [[at] for at in range(len(self.options))])
            if self.seconds(end) == float("inf"):
                continue
            if best is None or self.seconds(end) < GAIN * self.seconds(best):
                best = end
        return best if best is None else self.descend(best, self.pairs())

    def starts(self) -> Iterator[Choice]:
        n, m = len(self.links), len(self.layers)
        turns = [("receiver", "sender")[layer % 2 == 0] for layer, _ in self.links]
        for links in (turns, ["receiver"] * n, ["sender"] * n, ["replicated"] * n):
            words = self.fitting(links)
            for mode in LAYER_SPLITS:
                yield (*words, *[mode] * m)
                yield (*words, *[mode] * (m - 1), "all")
        if any(INPUT_CHANNELS in options for options in self.options):
            for first in (0, 1):  # maps that stay where they are, of every other layer
                ends = [(INPUT_CHANNELS, CHANNELS)[layer % 2 == first] for layer, _ in self.links]
                for mode in ("neurons", "rows"):
                    work = [CHANNELS if layer % 2 == first else mode for layer in self.layers]
                    yield self.fitting([*ends, *work])

    def fitting(self, words: list[str]) -> Choice:
        """The words where they are options; elsewhere the first option."""
        return tuple(
            word if word in options else options[0]
            for word, options in zip(words, self.options, strict=False)
        )

    def pairs(self) -> list[list[int]]:
        """The positions, in a choice, of a link and of each layer that it touches."""
        return [
            [at, len(self.links) + self.layers.index(end)]
            for at, (layer, position) in enumerate(self.links)
            for end in (layer, self.network.layers[layer].links[position].source.index)
            if end in self.layers
        ]

    def descend(self, choice: Choice, changes: list[list[int]]) -> Choice:
        """Descend from a choice while changes help, each of one position or several at once."""
        last = None
        while last != choice:
            last = choice
            for places in changes:
                for words in itertools.product(*(self.options[at] for at in places)):
                    other = list(choice)
                    for at, word in zip(places, words, strict=True):
                        other[at] = word
                    if not self.may_try(tuple(other)):
                        continue
                    if self.is_below(tuple(other), GAIN * self.seconds(choice)):
                        choice = tuple(other)
        return choice

    def may_try(self, choice: Choice) -> bool:
        """Whether it was tried, or the limit of trials allows it."""
        return choice in self.least_s or (
            len(self.least_s) * len(self.program.statements) < MAX_STATEMENTS
        )

    def seconds(self, choice: Choice) -> float:
        self.is_below(choice, math.inf)
        found = self.costed[choice]
        return math.inf if isinstance(found, CompileError) else found

    def is_below(self, choice: Choice, limit: float) -> bool:
        """Whether a placement takes less than so many seconds. Most that take more are neither
        scheduled nor followed.
        """
        if choice not in self.costed and self.least_s.get(choice, 0.0) < limit:
            self.least_s.setdefault(choice, 0.0)
            try:
                self.follow(choice, limit)
            except CompileError as error:
                self.costed[choice] = error
        found = self.costed.get(choice, math.inf)
        return not isinstance(found, CompileError) and found < limit

    def follow(self, choice: Choice, limit: float) -> None:
        """Cost a placement, until it takes as long as the limit. Raises CompileError."""
        program = self.partitioned(choice)
        self.least_s[choice] = self.costs.least_s(program, limit)
        if self.least_s[choice] >= limit:
            return
        program = scheduled(program, self.cache.ends)
        self.least_s[choice] += self.costs.further_s(program)
        if self.least_s[choice] >= limit:
            return
        self.costed[choice] = self.costs.seconds(program)

    def program_of(self, choice: Choice) -> Program:
        """The program of every task. Raises CompileError."""
        return scheduled(self.partitioned(choice), self.cache.ends)

    def partitioned(self, choice: Choice) -> Program:
        results = [] if self.program.loss is None else [self.program.loss]
        return CachingPartition(self.program, self.placement(choice), results, self.cache).run()

    def placement(self, choice: Choice) -> Placement:
        n = len(self.links)
        layers = dict(zip(self.layers, choice[n:], strict=True))
        idle = {layer.index: "neurons" for layer in self.network.layers}
        return Placement(dict(zip(self.links, choice[:n], strict=True)), {**idle, **layers})
