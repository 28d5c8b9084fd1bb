"""The blocks of a program's moves: who owes whom what, and how it gets in and out of arrays.

One rule gives every block: the places that the source has and the destination wants, axis by axis.
What several tasks have a part of is combined in task order, whoever came first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.backends.compiled import Runner
from horn.compiler import ir
from horn.compiler.partition import writes
from horn.compiler.program import Collect, Move, Post, Program, base, segments
from horn.compiler.share import Array, Places, Share, count
from horn.runtime.task import Collect as CollectStep
from horn.runtime.task import Compute, Instruction
from horn.runtime.task import Post as PostStep
from horn.transport import Channel

Index = tuple[Any, ...]  # of one axis each: a slice, or int64 places
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
) -> tuple[list[Channel], dict[int, list[Block]]]:
    """The channels of a move, and for every destination its blocks in task order.

    ``shares`` of all who take part by rank, ``dtype`` as in a Channel. A block that several of them
    want is one channel.
    """
    have = program.buffers[move.array].axes
    want = program.buffers[move.out].axes
    channels: list[Channel] = []
    wanted: dict[int, list[Block]] = {rank: [] for rank in shares}
    for source, src in shares.items():
        sent: dict[tuple[Any, ...], int] = {}
        readers: dict[int, list[int]] = {}
        shapes: dict[int, tuple[int, ...]] = {}
        for reader, dst in shares.items():
            meets = [_meet(src, a, dst, b, batch_size) for a, b in zip(have, want, strict=True)]
            taken, put = tuple(m[0] for m in meets), tuple(m[1] for m in meets)
            shape = tuple(map(count, taken))
            if 0 in shape:
                continue
            part = None
            if source != reader:
                key = tuple(map(_key, taken))
                part = sent.setdefault(key, first_part + len(channels) + len(sent))
                readers.setdefault(part, []).append(reader)
                shapes[part] = shape
            wanted[reader].append(Block(source, taken, put, shape, part))
        for part, tasks in readers.items():
            label = f"{move.array} to {move.out}"
            channels.append(Channel(part, source, tuple(tasks), dtype, shapes[part], label))
    return channels, wanted


def _key(places: Places) -> Any:
    return (places.start, places.stop) if isinstance(places, slice) else places.tobytes()


def _meet(src: Share, have: str, dst: Share, want: str, batch_size: int) -> tuple[Places, Places]:
    """Where what both have lies: along the source's axis, along the destination's."""
    a, b = _global(src, have, batch_size), _global(dst, want, batch_size)
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


class Exchange:
    """One program's moves at one task: its script, its channels, and the copies.

    It is the ``Work`` of a Group: computes segments, packs and unpacks blocks.
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
    ) -> None:
        program = runner.program
        self.runner, self.program, self.share = runner, program, share
        self.channels: list[Channel] = []
        n = share.n_tasks
        tasks = [Share(share.network, task, n) for task in range(n)]
        tasks[share.task] = share
        self.rank = group * n + share.task
        inside = [{g * n + t: tasks[t] for t in range(n)} for g in range(n_groups)]
        across = [{g * n + t: tasks[t] for g in range(n_groups)} for t in range(n)]
        code = np.dtype(dtype).newbyteorder("<").str
        self._own: list[list[tuple[str, Index, int]]] = []  # superstep -> array, places, part
        self._wanted: list[list[tuple[Move, list[Block]]]] = []
        steps: list[Instruction] = [Compute(0, self._what(0))]
        segment = 0
        parts: dict[int, tuple[int, ...]] = {}
        for statement in program.statements:
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
            steps.append(Compute(segment, self._what(segment)))
        self.script = tuple(steps)

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
        for move in post.moves:
            for shares in across if move.across else inside:
                next_part = first_part + len(self.channels)
                channels, blocks = blocks_of(
                    move, self.program, shares, batch_size, code, next_part
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
        while len(self._own) <= post.superstep:
            self._own.append([])
            self._wanted.append([])
        self._own[post.superstep], self._wanted[post.superstep] = own, wanted
        return tuple(channel.part for channel in self.channels[begun:])

    # --- Work

    def compute(self, index: int) -> None:
        self.runner.compute(index)

    def pack(self, index: int, outbox: Callable[[int], Array]) -> None:
        for name, taken, part in self._own[index]:
            _copy(_at(self.runner.array(name), taken), outbox(part))

    def unpack(self, index: int, inbox: Callable[[int], Array]) -> None:
        for move, blocks in self._wanted[index]:
            out = self.runner.target_array(move.out)
            if move.monoid:
                self._combine(move, blocks, out, inbox)
                continue
            for block in blocks:
                _put(out, block.put, self._content(move, block, inbox))

    def _content(self, move: Move, block: Block, inbox: Callable[[int], Array]) -> Array:
        if block.part is None:
            return _at(self.runner.array(move.array), block.taken)
        return inbox(block.part)

    def _combine(
        self, move: Move, blocks: list[Block], out: Array, inbox: Callable[[int], Array]
    ) -> None:
        combine = _COMBINE[move.monoid]
        if blocks and all(
            block.shape == blocks[0].shape and _is_all(block, out) for block in blocks
        ):
            parts = [_cut(self._content(move, block, inbox), out.shape) for block in blocks]
            if len(parts) == 1:
                np.copyto(out, parts[0])
                return
            combine(parts[0], parts[1], out=out)
            for part in parts[2:]:
                combine(out, part, out=out)
            return
        out[...] = ir.IDENTITY[move.monoid]
        for block in blocks:
            content = self._content(move, block, inbox)
            here = _at(out, block.put)
            _put(out, block.put, combine(here, _cut(content, here.shape)))


def _is_all(block: Block, out: Array) -> bool:
    """Whether a block covers its destination (rows may be fewer in a short batch)."""
    return all(
        isinstance(p, slice) and p.start == 0 and p.stop >= n
        for p, n in zip(block.put, out.shape, strict=True)
    )


def _at(array: Array, index: Index) -> Array:
    if all(isinstance(places, slice) for places in index):
        return array[index] if index else array
    if len(index) == 1:
        return array[index[0]]
    for axis, places in enumerate(index):
        array = array[(slice(None),) * axis + (places,)]
    return array


def _put(out: Array, index: Index, content: Array) -> None:
    if all(isinstance(places, slice) for places in index):
        here = out[index] if index else out
        np.copyto(here, _cut(content, here.shape))
        return
    slices = [p for p in index if isinstance(p, slice)]
    assert len(slices) == len(index) - 1, "only one axis is picked"
    shape = tuple(
        len(range(*p.indices(n))) if isinstance(p, slice) else len(p)
        for p, n in zip(index, out.shape, strict=True)
    )
    out[index] = _cut(content, shape)


def _cut(block: Array, shape: tuple[int, ...]) -> Array:
    """A block without the rows that a short batch does not have."""
    return block if block.shape == shape else block[tuple(slice(0, n) for n in shape)]


def _copy(array: Array, block: Array) -> None:
    np.copyto(_cut(block, array.shape), array)


def _words(statement: Post | Collect) -> str:
    return ", ".join(move.array for move in statement.moves)
