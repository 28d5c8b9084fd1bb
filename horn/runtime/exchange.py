"""The blocks of a program's moves: who owes whom what, and how it gets in and out of arrays.

One rule gives every block: the places that the source has and the destination wants, axis by axis.
What several tasks have a part of is combined in task order, whoever came first.

Where each neuron's values for the batch lie together, blocks lie so too: (neurons, rows) instead of
(rows, neurons), so that no copy has to turn them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horn.backends._compiled import Runner
from horn.compiler import group_sums
from horn.compiler.program import Collect, Mark, Move, Post, Program, base, segments, writes
from horn.compiler.share import Array, Places, Share, count
from horn.compiler.supersteps import rendezvous, roots
from horn.language import ir
from horn.runtime.task import CollectInstruction as CollectStep
from horn.runtime.task import ComputeInstruction, Instruction
from horn.runtime.task import PostInstruction as PostStep
from horn.transport import Channel

Index = tuple[Any, ...]  # of one axis each: a slice, or int64 places
SMALL = 16_384  # numbers: beyond, one more copy should cost more than a block (estimated)
_COMBINE: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.maximum, "all": np.minimum,
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """Part of a move: what ``src`` has of what ``dst`` wants, in the arrays of both.

    part : its channel, None where source and destination are one task.
    """

    src: int
    taken: Index
    put: Index
    shape: tuple[int, ...]
    part: int | None


def blocks_of(
    move: Move,
    program: Program,
    shares: Mapping[int, Share],
    batch_size: int,
    dtype: str,
    first_part: int = 0,
    layout: str = "batch",
    rank: int | None = None,
) -> tuple[list[Channel], dict[int, list[Block]]]:
    """The channels of a move, and for every destination its blocks in task order; with a rank only
    those that it sends or wants.

    ``shares`` of all who take part by rank, ``dtype`` as in a Channel. A block that several of them
    want is one channel.
    """
    have = program.buffers[move.array].axes
    want = program.buffers[move.out].axes
    channels: list[Channel] = []
    wanted: dict[int, list[Block]] = {rank: [] for rank in shares}
    # Most want the same places as others: a group of n has n squared pairs.
    wants: dict[Any, tuple[Index, list[int]]] = {}
    for reader, share in shares.items():
        places, known = _of_axes(share, want, batch_size)
        wants.setdefault(known, (places, []))[1].append(reader)
    met: dict[tuple[Any, Any], tuple[Index, Index, tuple[int, ...], Any]] = {}
    for source, src in shares.items():
        sent: dict[tuple[Any, ...], int] = {}
        readers: dict[int, list[int]] = {}
        shapes: dict[int, tuple[int, ...]] = {}
        places, known = _of_axes(src, have, batch_size)
        for their_key, (theirs, who) in wants.items():
            found = met.get((known, their_key))
            if found is None:
                meets = [_meet(a, b) for a, b in zip(places, theirs, strict=True)]
                taken, put = tuple(m[0] for m in meets), tuple(m[1] for m in meets)
                found = taken, put, tuple(map(count, taken)), tuple(map(_key, taken))
                met[known, their_key] = found
            taken, put, shape, key = found
            if 0 in shape:
                continue
            others = [reader for reader in who if reader != source]
            part = None
            if others:
                part = sent.setdefault(key, first_part + len(channels) + len(sent))
                readers.setdefault(part, []).extend(others)
                shapes[part] = shape
            for reader in who if rank in (None, source) else (rank,) if rank in who else ():
                at = None if reader == source else part
                wanted[reader].append(Block(source, taken, put, shape, at))
        for part, tasks in readers.items():
            label = f"{move.array} to {move.out}"
            turned = is_turned(have, layout)
            shape = shapes[part][::-1] if turned else shapes[part]
            order = (
                "turned" if turned else ""
            )  # another BLAS may choose otherwise: then agree fails
            to = tuple(sorted(tasks))
            channels.append(Channel(part, source, to, dtype, shape, label, order))
    return channels, wanted


def is_turned(axes: tuple[str, ...], layout: str) -> bool:
    """Whether blocks of a buffer have its axes the other way round."""
    return layout == "neuron" and len(axes) == 2 and base(axes[0]) == "b"


def _key(places: Places) -> Any:
    return (places.start, places.stop) if isinstance(places, slice) else places.tobytes()


def _of_axes(share: Share, axes: Sequence[str], batch_size: int) -> tuple[Index, Any]:
    """What a share has along axes, and what is equal where that is."""
    places = tuple(_global(share, axis, batch_size) for axis in axes)
    return places, tuple(map(_key, places))


def _meet(a: Places, b: Places) -> tuple[Places, Places]:
    """Where what both have lies: along what the source has, along what the destination wants."""
    if isinstance(a, slice) and isinstance(b, slice):
        start = max(a.start, b.start)
        stop = max(min(a.stop, b.stop), start)
        return (
            slice(start - a.start, stop - a.start),
            slice(start - b.start, stop - b.start),
        )
    left = np.arange(a.start, a.stop) if isinstance(a, slice) else a
    right = np.arange(b.start, b.stop) if isinstance(b, slice) else b
    _, at_a, at_b = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return _tight(at_a), _tight(at_b)


def _tight(places: Array) -> Places:
    """A slice where the places are a range."""
    if not len(places):
        return slice(0, 0)
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places.astype(np.int64)


def _global(share: Share, axis: str, batch_size: int) -> Places:
    if base(axis) == "b":
        return share.rows(axis, batch_size, batch_size)
    return share.places(axis)


class ArrayRegion:
    """Places of an array, as a block has them: a view, or what is picked of it along one axis."""

    __slots__ = ("view", "axis", "places", "shape")

    def __init__(self, array: Array, index: Index, turned: bool) -> None:
        if turned:
            array, index = array.T, index[::-1]
        picked = [axis for axis, places in enumerate(index) if not isinstance(places, slice)]
        assert len(picked) <= 1, "only one axis is picked"
        self.axis = 0
        self.places: Any = None
        if picked:
            (self.axis,) = picked
            self.places = index[self.axis]
        ranges = tuple(p if isinstance(p, slice) else slice(None) for p in index)
        self.view: Array = array[ranges] if ranges else array
        self.shape = tuple(
            len(self.places) if axis in picked else n for axis, n in enumerate(self.view.shape)
        )

    def read(self) -> Array:
        return self.view if self.places is None else self.view.take(self.places, self.axis)

    def read_into(self, block: Array) -> None:
        block = _cut(block, self.shape)
        if self.places is None:
            block[...] = self.view
        else:  # the places are inside; "raise" would go through a copy
            self.view.take(self.places, self.axis, block, mode="clip")

    def write(self, content: Array) -> None:
        content = _cut(content, self.shape)
        if self.places is None:
            self.view[...] = content
        else:
            self.view[(slice(None),) * self.axis + (self.places,)] = content

    def covers(self, array: Array) -> bool:
        """Whether it is all of an array, which may be turned."""
        return self.places is None and sorted(self.shape) == sorted(array.shape)

    def is_same(self, other: ArrayRegion) -> bool:
        """Whether both are the same memory."""
        a, b = self.view, other.view
        return (
            self.places is None
            and other.places is None
            and (a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides)
        )


@dataclass(frozen=True, slots=True)
class Unpacking:
    """What a collect does for one move: where each block goes, and its channel or, of this task's
    own, where it lies. ``combine`` is None where they do not overlap; ``fills``: each block is all
    of ``out``.
    """

    out: Array
    pieces: list[tuple[ArrayRegion, ArrayRegion | int]]
    combine: Any
    identity: float
    fills: bool

    def take(self, inbox: Callable[[int], Array]) -> None:
        if self.combine is None:
            for region, what in self.pieces:
                region.write(inbox(what) if isinstance(what, int) else what.read())
            return
        parts = [
            (region, _cut(inbox(what) if isinstance(what, int) else what.read(), region.shape))
            for region, what in self.pieces
        ]
        if self.fills:
            self._fold([part for _, part in parts], parts[0][0].view)
            return
        self.out[...] = self.identity
        for region, part in parts:
            region.write(self.combine(region.read(), part))

    def _fold(self, parts: list[Array], out: Array) -> None:
        if len(parts) == 1:
            out[...] = parts[0]
            return
        self.combine(parts[0], parts[1], out=out)
        for part in parts[2:]:
            self.combine(out, part, out=out)


@dataclass(frozen=True, slots=True)
class ReadInPlace:
    """What a collect does for a move of one block that is read where it came."""

    runner: Runner
    name: str
    part: int

    def take(self, inbox: Callable[[int], Array]) -> None:
        self.runner.settle(self.name, inbox(self.part))


class SumBundle:
    """Small sums over groups that travel together: one block each way instead of one per sum.

    pieces : array, out and how many numbers, one after the other in a block. sources : the part of
    each group in order, None for this task's own; ``sent`` is that which goes out, None if nobody
    wants it. All have the same monoid.
    """

    def __init__(
        self,
        runner: Runner,
        pieces: list[tuple[str, str, int]],
        sources: list[int | None],
        sent: int | None,
        monoid: str,
        dtype: str,
    ) -> None:
        self.runner, self.pieces, self.sources, self.sent = runner, pieces, sources, sent
        self.combine = _COMBINE[monoid]
        self.mine = np.empty(sum(n for _, _, n in pieces), dtype)
        self.total = np.empty_like(self.mine)
        ends = np.cumsum([n for _, _, n in pieces]).tolist()
        self.places = [slice(end - n, end) for end, (_, _, n) in zip(ends, pieces, strict=True)]

    def pack(self, outbox: Callable[[int], Array]) -> None:
        for (array, _, _), place in zip(self.pieces, self.places, strict=True):
            self.mine[place] = self.runner.array(array).reshape(-1)
        if self.sent is not None:
            outbox(self.sent)[...] = self.mine

    def unpack(self, inbox: Callable[[int], Array]) -> None:
        parts = [self.mine if part is None else inbox(part) for part in self.sources]
        self.total[...] = parts[0]
        for part in parts[1:]:
            self.combine(self.total, part, out=self.total)
        for (_, out, _), place in zip(self.pieces, self.places, strict=True):
            self.runner.target_array(out).reshape(-1)[...] = self.total[place]


class Exchange:
    """One program's moves at one task: its script, its channels, and the copies.

    It is the ``ScriptHandler`` of a Group: computes segments, packs and unpacks blocks.
    """

    def __init__(
        self,
        runner: Runner,
        share: Share,
        batch_size: int,
        dtype: Any,
        first_part: int,
        group: int = 0,
        n_groups: int = 1,
        outbox: Callable[[int], Array] | None = None,
        can_share: bool = False,
    ) -> None:
        program = runner.program
        self.runner, self.program, self.share = runner, program, share
        self.channels: list[Channel] = []
        n = share.n_tasks
        self.rank = group * n + share.task
        self._n_groups, self._batch_size = n_groups, batch_size
        shares = {
            g * n + t: Share(share.network, t, n, g, n_groups)
            for g in range(n_groups)
            for t in range(n)
        }
        shares[self.rank] = share
        inside = [{g * n + t: shares[g * n + t] for t in range(n)} for g in range(n_groups)]
        across = [{g * n + t: shares[g * n + t] for g in range(n_groups)} for t in range(n)]
        code = np.dtype(dtype).newbyteorder("<").str
        self.common: dict[str, int] = {}  # learned array -> the part that groups have in common
        self._can_share = can_share
        self._moved: list[list[Channel]] = []  # by superstep, those of its blocks
        self._signals: list[tuple[list[int], list[int]]] = []  # superstep -> outboxes, inboxes
        self._bundles: list[list[SumBundle]] = []  # by superstep
        self._own: list[list[tuple[str, Index, int]]] = []  # superstep -> array, places, part
        self._wanted: list[list[tuple[Move, list[Block]]]] = []
        self._sent: dict[
            int, list[tuple[ArrayRegion, int]]
        ] = {}  # superstep -> what leaves by channel
        self._arrivals: dict[int, list[Unpacking | ReadInPlace]] = {}
        steps: list[Instruction] = [ComputeInstruction(0, self._what(0))]
        segment = 0
        parts: dict[int, tuple[int, ...]] = {}
        for statement in program.statements:
            if isinstance(statement, Mark):
                segment += 1
                steps.append(ComputeInstruction(segment, self._what(segment)))
                continue
            if not isinstance(statement, (Post, Collect)):
                continue
            label = _words(statement)
            if isinstance(statement, Post):
                parts[statement.superstep] = self._plan(
                    statement, inside, across, batch_size, code, first_part
                )
                steps.append(PostStep(statement.superstep, parts[statement.superstep], label))
            else:
                steps.append(CollectStep(statement.superstep, parts[statement.superstep], label))
            segment += 1
            steps.append(ComputeInstruction(segment, self._what(segment)))
        self.script = tuple(steps)
        self._outbox = outbox
        self._made: dict[int, list[tuple[str, int]]] = {}  # segment -> what it makes in outboxes
        self._read: dict[str, int] = {}  # buffer -> the part whose inbox it is read in
        if runner.is_static:
            self._find_in_place()

    def _find_in_place(self) -> None:
        """Buffers that need no copy: one is one block that others want, and is made where they
        find it; another is one block that comes, and is read where it came. Both move with every
        batch. Blocks with rows stay, because a short batch has fewer.
        """
        names = [name for own in self._own for name, _, _ in own]
        names += [move.out for wanted in self._wanted for move, _ in wanted]
        made = {
            name: segment
            for segment, statements in reversed(list(enumerate(segments(self.program))))
            for statement in statements
            for name in writes(statement)
        }
        kept = {  # what is also used here, by way of its array
            move.array
            for wanted in self._wanted
            for move, blocks in wanted
            if any(block.part is None for block in blocks)
        }
        for own in self._own if self._outbox is not None else ():
            for name, taken, part in own:
                if names.count(name) > 1 or name in kept or name not in made:
                    continue
                if self._is_block(name, taken):
                    self._made.setdefault(made[name], []).append((name, part))
        for wanted in self._wanted:
            for move, blocks in wanted:
                if len(blocks) != 1 or names.count(move.out) != 1 or move.out in made:
                    continue
                (block,) = blocks
                if block.part is not None and self._is_block(move.out, block.put):
                    self._read[move.out] = block.part

    def _is_block(self, name: str, places: Index) -> bool:
        """Whether a buffer is just these places of it, and free to lie anywhere."""
        buffer, array = self.program.buffers[name], self.runner.array(name)
        return (
            buffer.role == "work"
            and bool(buffer.axes)
            and all(base(axis) != "b" for axis in buffer.axes)
            and array.flags.c_contiguous
            and ArrayRegion(array, places, False).covers(array)
        )

    def _what(self, segment: int) -> str:
        """What a segment computes, for people: the first thing and the last."""
        made = [name for statement in segments(self.program)[segment] for name in writes(statement)]
        return " to ".join(dict.fromkeys((made[0], made[-1]))) if made else "nothing"

    def _plan(
        self,
        post: Post,
        inside: Sequence[Mapping[int, Share]],
        across: Sequence[Mapping[int, Share]],
        batch_size: int,
        code: str,
        first_part: int,
    ) -> tuple[int, ...]:
        """The channels of a superstep, of all ranks; what this one has to do for it."""
        begun = len(self.channels)
        own: list[tuple[str, Index, int]] = []
        wanted: list[tuple[Move, list[Block]]] = []
        signals: tuple[list[int], list[int]] = ([], [])
        small: dict[tuple[str, int | None], list[Move]] = {}
        for move in post.moves:
            if self._is_small(move):
                small.setdefault((move.monoid, move.level), []).append(move)
                continue
            if self._may_share(move, across):
                self._share(move, across, signals, code, first_part)
                continue
            if move.level is not None:
                self._climb(move, move.level, own, wanted, code, first_part)
                continue
            for shares in across if move.across else inside:
                next_part = first_part + len(self.channels)
                channels, blocks = blocks_of(
                    move,
                    self.program,
                    shares,
                    batch_size,
                    code,
                    next_part,
                    self.runner.layout,
                    self.rank,
                )
                self.channels.extend(channels)
                if self.rank not in shares:
                    continue
                places = {b.part: b.taken for mine in blocks.values() for b in mine}
                own.extend(
                    (move.array, places[channel.part], channel.part)
                    for channel in channels
                    if channel.src == self.rank
                )
                wanted.append((move, blocks[self.rank]))
        bundles = [
            bundle
            for (_, level), moves in small.items()
            for shares in self._circles(level, across)
            if (bundle := self._bundle(moves, shares, code, first_part)) is not None
        ]
        while len(self._own) <= post.superstep:
            self._bundles.append([])
            self._own.append([])
            self._wanted.append([])
            self._signals.append(([], []))
            self._moved.append([])
        self._own[post.superstep], self._wanted[post.superstep] = own, wanted
        self._signals[post.superstep] = signals
        self._bundles[post.superstep] = bundles
        sent = [channel for channel in self.channels[begun:] if not channel.common]
        self._moved[post.superstep] = sent
        return tuple(channel.part for channel in sent)

    def _circles(
        self, level: int | None, across: Sequence[Mapping[int, Share]]
    ) -> list[Mapping[int, Share]]:
        """The ranks that add up what they have, at a level of the tree."""
        if level is None:
            return [*across]
        circles = _circles_at(self._n_groups, level)
        n = self.share.n_tasks
        return [
            {g * n + t: shares[g * n + t] for g in circle}
            for t, shares in enumerate(across)
            for circle in circles
        ]

    def _climb(
        self,
        move: Move,
        level: int,
        own: list[tuple[str, Index, int]],
        wanted: list[tuple[Move, list[Block]]],
        code: str,
        first_part: int,
    ) -> None:
        """The channels of a move at a level of the tree: all tasks of a circle have as much."""
        n = self.share.n_tasks
        axes = self.program.buffers[move.array].axes
        turned = is_turned(axes, self.runner.layout)
        label, order = f"{move.array} to {move.out}", "turned" if turned else ""
        for task in range(n):
            share = Share(self.share.network, task, n)
            shape = tuple(share.length(axis, self._batch_size) for axis in axes)
            whole = tuple(slice(0, length) for length in shape)
            if 0 in shape:
                continue
            for circle in _circles_at(self._n_groups, level):
                ranks = [group * n + task for group in circle]
                blocks = []
                for src in ranks if move.monoid else ranks[:1]:
                    others = tuple(rank for rank in ranks if rank != src)
                    part = first_part + len(self.channels)
                    if others:
                        sent = shape[::-1] if turned else shape
                        self.channels.append(Channel(part, src, others, code, sent, label, order))
                        if src == self.rank:
                            own.append((move.array, whole, part))
                    blocks.append(Block(src, whole, whole, shape, part))
                if self.rank in ranks:
                    mine = [
                        replace(block, part=None) if block.src == self.rank else block
                        for block in blocks
                    ]
                    wanted.append((move, mine))

    def _is_small(self, move: Move) -> bool:
        """Whether it is a sum, or the like, over groups that is better not alone: each block costs
        some 20 us of Python.
        """
        have, want = self.program.buffers[move.array].axes, self.program.buffers[move.out].axes
        if not move.across or not move.monoid or have != want:
            return False
        if any(base(axis) == "b" for axis in have):
            return False
        return math.prod(self.share.length(axis, 0) for axis in have) <= SMALL

    def _bundle(
        self, moves: list[Move], shares: Mapping[int, Share], code: str, first_part: int
    ) -> SumBundle | None:
        """The channels of small sums of the same kind; what this task does for them."""
        first = first_part + len(self.channels)
        is_alone = len(shares) == 1
        parts = {rank: None if is_alone else first + k for k, rank in enumerate(shares)}
        axes = [self.program.buffers[move.array].axes for move in moves]
        for rank, share in shares.items():
            sizes = [math.prod(share.length(axis, 0) for axis in names) for names in axes]
            others = tuple(other for other in shares if other != rank)
            label = ", ".join(move.array for move in moves)
            part = parts[rank]
            if part is not None:
                self.channels.append(Channel(part, rank, others, code, (sum(sizes),), label))
            if rank == self.rank:
                pieces = [(m.array, m.out, n) for m, n in zip(moves, sizes, strict=True)]
        if self.rank not in shares:
            return None
        sources = [None if rank == self.rank else part for rank, part in parts.items()]
        monoid, mine = moves[0].monoid, parts[self.rank]
        return SumBundle(self.runner, pieces, sources, mine, monoid, code)

    def _may_share(self, move: Move, across: Sequence[Mapping[int, Share]]) -> bool:
        """Whether groups can have a learned array in common, of which each updates a part: where
        all have said, since they last read it in the batch, that they have got so far, before
        anybody writes it. In the next batch nobody writes before that either.
        """
        program = self.program
        if not (self._can_share and move.across and not move.monoid):
            return False
        moves = [m for s in program.statements if isinstance(s, Post) for m in s.moves]
        if program.buffers[move.out].role != "learned" or any(
            move.out in roots(program, (m.array, m.out)) for m in moves if m is not move
        ):
            return False
        everybody = {(a, b) for shares in across for a in shares for b in shares if a != b}
        return move.out in roots(program, (move.array,)) and any(
            everybody <= {(c.src, dst) for c in self._moved[step] for dst in c.dsts}
            for step in rendezvous(program, move.out)
        )

    def _share(
        self,
        move: Move,
        across: Sequence[Mapping[int, Share]],
        signals: tuple[list[int], list[int]],
        code: str,
        first_part: int,
    ) -> None:
        """Memory in common instead of blocks; the first such move of a superstep brings blocks of
        nothing, which say that the parts are written.
        """
        is_first = not signals[0]
        for shares in across:
            ranks = list(shares)
            shape = tuple(
                shares[ranks[0]].length(axis, 0) for axis in self.program.buffers[move.out].axes
            )
            part = first_part + len(self.channels)
            if self.rank in ranks:
                self.common[move.out] = part
            self.channels.append(
                Channel(part, ranks[0], tuple(ranks[1:]), code, shape, move.out, common=True)
            )
            for src in ranks if is_first else ():
                part = first_part + len(self.channels)
                if self.rank in ranks:
                    signals[src != self.rank].append(part)
                others = tuple(rank for rank in ranks if rank != src)
                self.channels.append(Channel(part, src, others, code, (0,), "parts are written"))

    def forget(self) -> None:
        """Arrays have moved: look them up again."""
        self._sent.clear()
        self._arrivals.clear()

    # --- Work

    def compute(self, index: int) -> None:
        for name, part in self._made.get(index, ()):
            assert self._outbox is not None
            self.runner.settle(name, self._outbox(part))
        self.runner.compute(index)

    def pack(self, index: int, outbox: Callable[[int], Array]) -> None:
        for part in self._signals[index][0]:
            outbox(part)
        for bundle in self._bundles[index]:
            bundle.pack(outbox)
        sent = self._sent.get(index)
        for region, part in self._find_sent(index) if sent is None else sent:
            region.read_into(outbox(part))

    def unpack(self, index: int, inbox: Callable[[int], Array]) -> None:
        for part in self._signals[index][1]:
            inbox(part)
        arrivals = self._arrivals.get(index)
        with np.errstate(all="ignore"):  # a sum may overflow here as it may inside a task
            for arrival in self._find_arrivals(index) if arrivals is None else arrivals:
                arrival.take(inbox)
            for bundle in self._bundles[index]:
                bundle.unpack(inbox)

    def _find_sent(self, index: int) -> list[tuple[ArrayRegion, int]]:
        made = {part for pairs in self._made.values() for _, part in pairs}
        sent = [
            (ArrayRegion(self.runner.array(name), taken, self._is_turned(name)), part)
            for name, taken, part in self._own[index]
            if part not in made
        ]
        if self.runner.is_static:
            self._sent[index] = sent
        return sent

    def _find_arrivals(self, index: int) -> list[Unpacking | ReadInPlace]:
        arrivals = [self._arrival(move, blocks) for move, blocks in self._wanted[index]]
        if self.runner.is_static:
            self._arrivals[index] = arrivals
        return arrivals

    def _arrival(self, move: Move, blocks: list[Block]) -> Unpacking | ReadInPlace:
        turned = self._is_turned(move.out)
        array, out = self.runner.array(move.array), self.runner.target_array(move.out)
        pieces: list[tuple[ArrayRegion, ArrayRegion | int]] = []
        for block in blocks:
            region = ArrayRegion(out, block.put, turned)
            if block.part is not None:
                pieces.append((region, block.part))
                continue
            own = ArrayRegion(array, block.taken, turned)
            if move.monoid or not own.is_same(region):
                pieces.append((region, own))
        if move.out in self._read:
            return ReadInPlace(self.runner, move.out, self._read[move.out])
        fills = bool(pieces) and all(region.covers(out) for region, _ in pieces)
        combine = _COMBINE[move.monoid] if move.monoid else None
        return Unpacking(out, pieces, combine, ir.IDENTITY.get(move.monoid, 0.0), fills)

    def _is_turned(self, name: str) -> bool:
        return is_turned(self.program.buffers[name].axes, self.runner.layout)


def _cut(block: Array, shape: tuple[int, ...]) -> Array:
    """A block without the rows that a short batch does not have."""
    return block if block.shape == shape else block[tuple(slice(0, n) for n in shape)]


def _circles_at(n_groups: int, level: int) -> group_sums.Circles:
    found = group_sums.levels(n_groups)
    return found[level] if level < len(found) else group_sums.handing(n_groups)


def _words(statement: Post | Collect) -> str:
    return ", ".join(move.array for move in statement.moves)
