"""The exchange of one program's moves at one task: its script, its channels, and the copies.

Every rank plans the channels of all ranks, and they must find the same. So what decides which
channels there are is never read from this task's own share, which may be larger or smaller than
others': only which blocks it sends and wants, and where these lie, is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn import ir
from horn.backends._compiled import Runner
from horn.partition import group_sums
from horn.partition.share import Array, Share
from horn.partition.supersteps import IdleSupersteps, roots
from horn.program import Move, Post, Statement, base, segments, writes
from horn.runtime.blocks import Block, Index, blocks_of, is_turned
from horn.runtime.copies import COMBINE, ArrayRegion, ReadInPlace, SumBundle, Unpacking
from horn.runtime.outline import Outline, Turns
from horn.runtime.task import (
    CollectInstruction,
    ComputeInstruction,
    Instruction,
    PostInstruction,
    Script,
)
from horn.transport import Channel

SMALL = 16_384  # numbers: beyond, one more copy should cost more than a block (estimated)


@dataclass
class SuperstepBlocks:
    """This task's part of a superstep."""

    own: list[tuple[str, Index, int]]  # array, places, part: blocks to send
    wanted: list[tuple[Move, list[Block]]]
    signals: tuple[list[int], list[int]]  # parts of empty blocks: to send, to receive
    bundles: list[SumBundle]
    channels: list[Channel]  # of blocks, of all ranks


class Exchange:
    """The ``ScriptHandler`` of a program: computes segments, packs and unpacks blocks.

    first_part : the number of its first channel. outbox : ``Group.outbox``. can_share : whether
    the transport has memory in common.
    """

    def __init__(
        self,
        runner: Runner,
        share: Share,
        batch_size: int,
        dtype: Any,
        first_part: int,
        outbox: Callable[[int], Array] | None = None,
        can_share: bool = False,
    ) -> None:
        program = runner.program
        self.runner, self.program, self.share = runner, program, share
        n, groups = share.n_tasks, range(share.n_groups)
        self.rank = share.group * n + share.task
        self._batch_size, self._outbox, self._can_share = batch_size, outbox, can_share
        self._first_part, self._code = first_part, np.dtype(dtype).newbyteorder("<").str
        every = [[Share(share.network, t, n, g, share.n_groups) for t in range(n)] for g in groups]
        every[share.group][share.task] = share
        # the tasks of each group, and the same task of all groups, by rank
        self._inside = [{g * n + t: x for t, x in enumerate(every[g])} for g in groups]
        self._across = [{g * n + t: every[g][t] for g in groups} for t in range(n)]
        self.channels: list[Channel] = []
        self.common: dict[str, int] = {}  # learned array -> the part that groups have in common
        self._ours: dict[int, SuperstepBlocks] = {}
        # By superstep of the program, and step of the sequence where it is one of many.
        self._sent: dict[tuple[int, int], list[tuple[ArrayRegion, int]]] = {}
        self._arrivals: dict[tuple[int, int], list[Unpacking | ReadInPlace]] = {}
        self._outline = Outline(program)
        if can_share:  # what ``_may_share`` asks for each learned array, found once
            moves = [move for post in self._outline.posts for move in post.moves]
            ends = (roots(program, (move.array, move.out)) for move in moves)
            self._n_moves = Counter(name for some in ends for name in some)
            self._idle = IdleSupersteps(program)
            self._meets: dict[int, bool] = {}
        self._labels = [_what(statements) for statements in segments(program)]
        for post in self._outline.posts:
            self._ours[post.superstep] = self._part_of(post)
        self._scripts: dict[int, tuple[Script, Turns]] = {}  # by the steps of a batch
        self._turns = Turns([], [])
        self._n_rows = -1  # rows of the batch whose regions are known
        self._made: dict[int, list[tuple[str, int]]] = {}  # segment -> buffers made in outboxes
        self._read: dict[str, int] = {}  # buffer -> the part whose inbox it is read in
        if runner.is_static:
            self._find_in_place()

    @property
    def script(self) -> Script:
        """The script of the batch that has begun: as long as its sequences, where tasks exchange at
        each step of these.
        """
        n_steps = self.runner.n_steps if self._outline.has_turns else 1
        if n_steps not in self._scripts:
            self._scripts[n_steps] = self._written(n_steps)
        script, self._turns = self._scripts[n_steps]
        return script

    def _written(self, n_steps: int) -> tuple[Script, Turns]:
        steps, turns = list[Instruction](), Turns([], [])
        running: dict[int, int] = {}  # superstep of the program -> of the script
        for statement, segment, step in self._outline.walk(n_steps):
            if statement is None:
                steps.append(ComputeInstruction(len(turns.segments), self._labels[segment]))
                turns.segments.append((segment, step))
                continue
            if isinstance(statement, Post):
                running[statement.superstep] = len(turns.supersteps)
                turns.supersteps.append((statement.superstep, step))
            kind = PostInstruction if isinstance(statement, Post) else CollectInstruction
            parts = tuple(channel.part for channel in self._ours[statement.superstep].channels)
            label = ", ".join(move.array for move in statement.moves)
            steps.append(kind(running[statement.superstep], parts, label))
        return tuple(steps), turns

    def _channel(
        self, src: int, to: tuple[int, ...], shape: tuple[int, ...], label: str, **settings: Any
    ) -> int:
        part = self._first_part + len(self.channels)
        self.channels.append(Channel(part, src, to, self._code, shape, label, **settings))
        return part

    def _find_in_place(self) -> None:
        """Buffers without a copy: a buffer that is a single outgoing block is computed in the
        outbox, one that is a single incoming block is read in the inbox. Both move with every
        batch. Blocks with rows are copied, because a short batch has fewer.
        """
        own = [entry for ours in self._ours.values() for entry in ours.own]
        wanted = [entry for ours in self._ours.values() for entry in ours.wanted]
        n_uses = Counter([name for name, _, _ in own] + [move.out for move, _ in wanted])
        made = {
            name: segment
            for segment, statements in reversed(list(enumerate(segments(self.program))))
            for statement in statements
            for name in writes(statement)
        }
        # arrays that this task also reads itself
        kept = {move.array for move, blocks in wanted if any(b.part is None for b in blocks)}
        for name, taken, part in own if self._outbox is not None else ():
            if n_uses[name] == 1 and name not in kept and name in made:
                if self._is_block(name, taken):
                    self._made.setdefault(made[name], []).append((name, part))
        for move, blocks in wanted:
            if len(blocks) == 1 and n_uses[move.out] == 1 and move.out not in made:
                (block,) = blocks
                if block.part is not None and self._is_block(move.out, block.put):
                    self._read[move.out] = block.part

    def _is_block(self, name: str, places: Index) -> bool:
        """Whether a block is a whole work buffer without rows, which may lie anywhere in memory."""
        buffer, array = self.program.buffers[name], self.runner.array(name)
        return (
            buffer.role == "work"
            and bool(buffer.axes)
            and all(base(axis) != "b" for axis in buffer.axes)
            and array.flags.c_contiguous
            and ArrayRegion(array, places, False).covers(array)
        )

    def _part_of(self, post: Post) -> SuperstepBlocks:
        """Plan a superstep: the channels of all ranks, and the blocks that this one sends and
        wants.
        """
        begun = len(self.channels)
        ours = SuperstepBlocks([], [], ([], []), [], [])
        small: dict[tuple[str, int | None], list[Move]] = {}
        for move in post.moves:
            if self._is_small(move):
                small.setdefault((move.monoid, move.level), []).append(move)
            elif self._may_share(move):
                self._share(move, ours)
            elif move.level is not None:
                self._climb(move, move.level, ours)
            else:
                for shares in self._across if move.across else self._inside:
                    self._exchange(move, shares, ours)
        for (_, level), moves in small.items():
            for shares in self._circles(level):
                self._bundle(moves, shares, ours)
        ours.channels += [channel for channel in self.channels[begun:] if not channel.common]
        return ours

    def _exchange(self, move: Move, shares: Mapping[int, Share], ours: SuperstepBlocks) -> None:
        channels, blocks = blocks_of(
            move, self.program, shares, self._batch_size, self._code,
            self._first_part + len(self.channels), self.runner.layout, self.rank,
        )  # fmt: skip
        self.channels += channels
        if self.rank in shares:
            places = {b.part: b.taken for mine in blocks.values() for b in mine}
            mine = [channel.part for channel in channels if channel.src == self.rank]
            ours.own += [(move.array, places[part], part) for part in mine]
            ours.wanted.append((move, blocks[self.rank]))

    def _circles(self, level: int | None) -> list[dict[int, Share]]:
        """The circles of ranks that add up their arrays at a level of the tree."""
        if level is None:
            return self._across
        n = self.share.n_tasks
        return [
            {g * n + t: shares[g * n + t] for g in circle}
            for t, shares in enumerate(self._across)
            for circle in _circles_at(self.share.n_groups, level)
        ]

    def _climb(self, move: Move, level: int, ours: SuperstepBlocks) -> None:
        """Plan a move at a level of the tree; all ranks of a circle have arrays of one shape."""
        axes = self.program.buffers[move.array].axes
        turned = is_turned(axes, self.runner.layout)
        label, order = f"{move.array} to {move.out}", "turned" if turned else ""
        for circle in self._circles(level):
            ranks = list(circle)
            # without groups: which task it is alone decides how much it has
            share = Share(self.share.network, circle[ranks[0]].task, self.share.n_tasks)
            shape = tuple(share.length(axis, self._batch_size) for axis in axes)
            whole = tuple(slice(0, length) for length in shape)
            if 0 in shape:
                continue
            blocks = []
            for src in ranks if move.monoid else ranks[:1]:
                others = tuple(rank for rank in ranks if rank != src)
                part = None
                if others:
                    sent = shape[::-1] if turned else shape
                    part = self._channel(src, others, sent, label, order=order)
                    if src == self.rank:
                        ours.own.append((move.array, whole, part))
                own_part = None if src == self.rank else part
                blocks.append(Block(src, whole, whole, shape, own_part))
            if self.rank in ranks:
                ours.wanted.append((move, blocks))

    def _is_small(self, move: Move) -> bool:
        """Whether a move is a small sum, or the like, over groups: these share a block, since each
        block costs some 20 us of Python.
        """
        have, want = self.program.buffers[move.array].axes, self.program.buffers[move.out].axes
        if not move.across or not move.monoid or have != want:
            return False
        if any(base(axis) == "b" for axis in have):
            return False
        # A group's tasks have unequal shares; that of one task is the same in all groups.
        of_group = self._inside[self.share.group].values()
        return all(_n_numbers(share, have) <= SMALL for share in of_group)

    def _bundle(
        self, moves: list[Move], shares: Mapping[int, Share], ours: SuperstepBlocks
    ) -> None:
        """Plan small sums of one kind: a channel for each rank, and what is packed and unpacked."""
        label = ", ".join(move.array for move in moves)
        axes = [self.program.buffers[move.array].axes for move in moves]
        parts: dict[int, int | None] = dict.fromkeys(shares)
        for rank, share in shares.items():
            sizes = [_n_numbers(share, names) for names in axes]
            if others := tuple(other for other in shares if other != rank):
                parts[rank] = self._channel(rank, others, (sum(sizes),), label)
            if rank == self.rank:
                pieces = [(m.array, m.out, n) for m, n in zip(moves, sizes, strict=True)]
        if self.rank in shares:
            sent = parts.pop(self.rank)
            sources = [parts.get(rank) for rank in shares]  # None: this task's own
            bundle = SumBundle(self.runner, pieces, sources, sent, moves[0].monoid, self._code)
            ours.bundles.append(bundle)

    def _may_share(self, move: Move) -> bool:
        """Whether groups can have a learned array in common, of which each updates a part: if in
        every batch, between the last read by any of them and the first write, there is a superstep
        in which each sends every other a block.
        """
        if not (self._can_share and move.across and not move.monoid):
            return False
        if self.program.buffers[move.out].role != "learned" or self._n_moves[move.out] > 1:
            return False
        return move.out in roots(self.program, (move.array,)) and any(
            self._meet_all(step) for step in self._idle.of(move.out)
        )

    def _meet_all(self, superstep: int) -> bool:
        """Whether in a superstep, planned already, each group's task sends every other a block."""
        if superstep not in self._meets:
            channels = self._ours[superstep].channels
            pairs = {(channel.src, dst) for channel in channels for dst in channel.dsts}
            self._meets[superstep] = all(
                (a, b) in pairs for shares in self._across for a in shares for b in shares if a != b
            )
        return self._meets[superstep]

    def _share(self, move: Move, ours: SuperstepBlocks) -> None:
        """Plan memory in common for a move; the first such move of a superstep adds empty blocks as
        signals.
        """
        is_first = not ours.signals[0]
        axes = self.program.buffers[move.out].axes
        for shares in self._across:
            first, *others = shares
            shape = tuple(shares[first].length(axis, 0) for axis in axes)
            part = self._channel(first, tuple(others), shape, move.out, common=True)
            if self.rank in shares:
                self.common[move.out] = part
            for src in shares if is_first else ():
                to = tuple(rank for rank in shares if rank != src)
                part = self._channel(src, to, (0,), "parts are written")
                if self.rank in shares:
                    ours.signals[src != self.rank].append(part)

    def forget(self) -> None:
        """Forget where arrays lie, because they have moved."""
        self._sent.clear()
        self._arrivals.clear()

    # --- ScriptHandler

    def compute(self, index: int) -> None:
        segment, step = self._turns.segments[index]
        for name, part in self._made.get(segment, ()):
            assert self._outbox is not None
            self.runner.settle(name, self._outbox(part))
        self.runner.compute(segment, step)

    def _known(self, index: int) -> tuple[int, int]:
        """The program's superstep and the step of the sequence, for superstep ``index`` of the
        script. Where rows lie step after step, a shorter batch has them elsewhere: arrays are
        looked up again.
        """
        if self._outline.has_turns and self.runner.n_rows != self._n_rows:
            self.forget()
            self._n_rows = self.runner.n_rows
        return self._turns.supersteps[index]

    def pack(self, index: int, outbox: Callable[[int], Array]) -> None:
        key = self._known(index)
        ours, sent = self._ours[key[0]], self._sent.get(key)
        for part in ours.signals[0]:
            outbox(part)
        for bundle in ours.bundles:
            bundle.pack(outbox)
        if sent is None:
            made = {part for pairs in self._made.values() for _, part in pairs}
            sent = [
                (ArrayRegion(self.runner.array(name), taken, self._is_turned(name)), part)
                for name, taken, part in ours.own
                if part not in made
            ]
            if self.runner.is_static:
                self._sent[key] = sent
        for region, part in sent:
            region.read_into(outbox(part))

    def unpack(self, index: int, inbox: Callable[[int], Array]) -> None:
        key = self._known(index)
        ours, arrivals = self._ours[key[0]], self._arrivals.get(key)
        for part in ours.signals[1]:
            inbox(part)
        with np.errstate(all="ignore"):  # a sum may overflow here as it may inside a task
            if arrivals is None:
                arrivals = [self._arrival(move, blocks) for move, blocks in ours.wanted]
                if self.runner.is_static:
                    self._arrivals[key] = arrivals
            for arrival in arrivals:
                arrival.take(inbox)
            for bundle in ours.bundles:
                bundle.unpack(inbox)

    def _arrival(self, move: Move, blocks: list[Block]) -> Unpacking | ReadInPlace:
        turned = self._is_turned(move.out)
        array, out = self.runner.array(move.array), self.runner.target_array(move.out)
        pieces: list[tuple[ArrayRegion, ArrayRegion | int]] = []
        begins = False
        for block in blocks:
            region = ArrayRegion(out, block.put, turned)
            if block.part is not None:
                pieces.append((region, block.part))
                continue
            own = ArrayRegion(array, block.taken, turned)
            is_there = own.is_same(region)
            if move.monoid and self._is_mine(move) and region.covers(out):
                begins = True
                pieces[:0] = [] if is_there else [(region, own)]
            elif move.monoid or not is_there:
                pieces.append((region, own))
        if move.out in self._read:
            return ReadInPlace(self.runner, move.out, self._read[move.out])
        fills = bool(pieces) and all(region.covers(out) for region, _ in pieces)
        combine = COMBINE[move.monoid] if move.monoid else None
        return Unpacking(out, pieces, combine, ir.IDENTITY.get(move.monoid, 0.0), fills, begins)

    def _is_mine(self, move: Move) -> bool:
        """Whether each number that a move combines belongs to one task, which may add in its own
        order: neurons are divided, and tasks have overlapping parts of them.
        """
        have, want = self.program.buffers[move.array].axes, self.program.buffers[move.out].axes
        is_own = [b.endswith("@own") and base(a) != a != b for a, b in zip(have, want, strict=True)]
        return not move.across and move.level is None and any(is_own)

    def _is_turned(self, name: str) -> bool:
        return is_turned(self.program.buffers[name].axes, self.runner.layout)


def _circles_at(n_groups: int, level: int) -> group_sums.Circles:
    found = group_sums.levels(n_groups)
    return found[level] if level < len(found) else group_sums.handing(n_groups)


def _n_numbers(share: Share, axes: Iterable[str]) -> int:
    """The numbers that a share has of an array without rows."""
    return math.prod(share.length(axis, 0) for axis in axes)


def _what(statements: Iterable[Statement]) -> str:
    """The first and the last name that a segment computes, for people."""
    made = [name for statement in statements for name in writes(statement)]
    return " to ".join(dict.fromkeys((made[0], made[-1]))) if made else "nothing"
