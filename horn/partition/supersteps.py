"""The order of a partitioned program: early sends, late receives, few exchanges.

Statements without inputs from other tasks go first, in their own order. When only waiting
statements are left, all moves under way are collected at once, except for the latest that no
statement needs yet: so a batch has few supersteps, and computation meanwhile overlaps with them.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Sequence

from horn.program import (
    AllSteps,
    Collect,
    Move,
    Parts,
    Post,
    Program,
    Repeat,
    Statement,
    reads,
    writes,
)

STEP = "#step"  # the step that buffers of sequences show: repeats change it


@dataclasses.dataclass(frozen=True)
class Ends:
    """The buffers behind what a statement reads, and behind what it writes; and what it writes."""

    statement: Statement  # which keeps its ``id``
    taken: set[str]
    made: set[str]
    written: tuple[str, ...]


def scheduled(program: Program, known: dict[int, Ends] | None = None) -> Program:
    """The program with its moves as posts and collects.

    A move is posted with those that it is collected with, as soon as the last of their arrays is
    written. Supersteps are numbered in the order of their posts. known : the ends of statements, by
    their ``id``, for one who schedules many programs of the same statements.
    """
    known = {} if known is None else known
    inner, program = in_repeats(program)
    order = reordered(program, known)
    written: dict[str, int] = {}
    trips: list[tuple[int, int, list[Move]]] = []  # posted after, collected before, moves
    for place, item in enumerate(order):
        if isinstance(item, list):
            ready = max(written.get(move.array, -1) for move in item)
            trips.append((ready, place, item))
            written.update((move.out, place) for move in item)
        else:
            written.update(dict.fromkeys(known[id(item)].written, place))
    posts: dict[int, list[Statement]] = {}
    collects: dict[int, Statement] = {}
    for superstep, (ready, place, moves) in enumerate(sorted(trips, key=lambda t: t[:2]), inner):
        posts.setdefault(ready, []).append(Post(superstep, tuple(moves)))
        collects[place] = Collect(superstep, tuple(moves))
    result: list[Statement] = [*posts.get(-1, ())]
    for place, item in enumerate(order):
        result.append(collects[place] if isinstance(item, list) else item)
        result.extend(posts.get(place, ()))
    return dataclasses.replace(program, statements=tuple(result))


def in_repeats(program: Program) -> tuple[int, Program]:
    """The program with the moves in repeats as posts and collects, and the number of these posts,
    which are numbered first.
    """
    number, found = 0, list[Statement]()
    for statement in program.statements:
        if isinstance(statement, Repeat) and any(isinstance(s, Move) for s in statement.body):
            inside = scheduled(dataclasses.replace(program, statements=statement.body)).statements
            body = tuple(
                dataclasses.replace(s, superstep=s.superstep + number)
                if isinstance(s, (Post, Collect)) else s
                for s in inside
            )  # fmt: skip
            number += sum(isinstance(s, Post) for s in body)
            statement = dataclasses.replace(statement, body=body)
        found.append(statement)
    return number, dataclasses.replace(program, statements=tuple(found))


def reordered(program: Program, known: dict[int, Ends]) -> list[Statement | list[Move]]:
    """The statements in their new order, with the moves that are collected together as lists."""
    statements = program.statements
    before = dependencies(program, known)
    after: list[list[int]] = [[] for _ in statements]
    missing = [len(earlier) for earlier in before]
    for number, earlier in enumerate(before):
        for other in earlier:
            after[other].append(number)
    ready = [
        number for number, n in enumerate(missing) if not n and not _is_move(statements, number)
    ]
    flying = {number for number, n in enumerate(missing) if not n and _is_move(statements, number)}
    newest: set[int] = set()  # moves whose array the last statement wrote
    undone = set(range(len(statements)))
    first = 0  # all statements before it are done or under way
    result: list[Statement | list[Move]] = []

    def finish(number: int) -> None:
        undone.remove(number)
        for other in after[number]:
            missing[other] -= 1
            if missing[other]:
                continue
            if _is_move(statements, other):
                flying.add(other)
                newest.add(other)
            else:
                heapq.heappush(ready, other)

    while undone:
        if ready:
            number = heapq.heappop(ready)
            result.append(statements[number])
            newest.clear()
            finish(number)
            continue
        while first < len(statements) and (first not in undone or first in flying):
            first += 1
        needed = flying if first == len(statements) else before[first] & flying
        if not needed:  # it waits for a move that itself waits for one
            needed = {min(flying)}
        together = sorted(needed | (flying - newest))
        flying.difference_update(together)
        newest.clear()
        result.append([statements[n] for n in together])  # type: ignore[misc]
        for number in together:
            finish(number)
        newest.clear()
    return result


def _is_move(statements: Sequence[Statement], number: int) -> bool:
    return isinstance(statements[number], Move)


def dependencies(program: Program, known: dict[int, Ends]) -> list[set[int]]:
    """The earlier statements that each statement depends on: writers of its inputs, readers and
    writers of its outputs. A view counts as its array. In sequences, a statement that reads one
    step of a buffer keeps its place between two repeats.
    """
    writer: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    result: list[set[int]] = []
    for number, statement in enumerate(program.statements):
        earlier: set[int] = set()
        ends = known.get(id(statement))
        if ends is None:
            ends = known[id(statement)] = ends_of(program, statement)
        taken, made = ends.taken, ends.made
        for name in (*taken, *made):
            if name in writer:
                earlier.add(writer[name])
        for name in made:
            earlier |= readers.pop(name, set())
            writer[name] = number
        for name in taken:
            readers.setdefault(name, set()).add(number)
        earlier.discard(number)
        result.append(earlier)
    return result


def ends_of(program: Program, statement: Statement) -> Ends:
    written = writes(statement)
    taken, made = roots(program, reads(statement)), roots(program, written)
    if isinstance(statement, (Repeat, Parts)):
        made.add(STEP)
    elif not isinstance(statement, AllSteps) and has_steps(program, taken | made):
        taken.add(STEP)
    return Ends(statement, taken, made, written)


def has_steps(program: Program, names: Iterable[str]) -> bool:
    """Whether one of these has its content at every step."""
    return bool(program.steps) and any(program.buffers[n].span is not None for n in names)


def roots(program: Program, names: Iterable[str]) -> set[str]:
    """The buffers behind views, and behind views of other steps."""
    found = set()
    for name in names:
        while program.buffers[name].role in ("view", "late"):
            name = program.buffers[name].value[0]
        found.add(name)
    return found


class IdleSupersteps:
    """The supersteps in which no task of a program needs a buffer; the program is looked through
    once for all buffers.
    """

    def __init__(self, program: Program) -> None:
        self._first_write: dict[str, int] = {}
        self._last_read: dict[str, int] = {}
        posted: dict[int, int] = {}
        self._trips: list[tuple[int, int, int]] = []  # superstep, its post, its collect
        for place, statement in enumerate(program.statements):
            if isinstance(statement, Post):
                posted[statement.superstep] = place
            elif isinstance(statement, Collect):
                self._trips.append((statement.superstep, posted[statement.superstep], place))
            else:
                written = roots(program, writes(statement))
                for name in written:
                    self._first_write.setdefault(name, place)
                read = roots(program, reads(statement)) - written
                self._last_read.update(dict.fromkeys(read, place))

    def of(self, name: str) -> list[int]:
        """The supersteps after a task's last read of a buffer and before its first write in a
        batch: a peer that took part in one misses no write. Empty where something reads it later.
        """
        last, first = self._last_read.get(name, -1), self._first_write.get(name, math.inf)
        return [step for step, post, collect in self._trips if last < post and collect < first]
