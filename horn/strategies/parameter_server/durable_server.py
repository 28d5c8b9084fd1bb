"""A parameter server that groups may leave, come back to and join, and that comes back itself.

Around the pure ``Server``: who may speak (epochs), what was said before (clocks), where a group
goes on, and the whole state as plain facts and arrays. Pure, too. See docs/notes/0061.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from horn.backends import Array
from horn.errors import ProtocolError
from horn.strategies.parameter_server.pieces import Bundle, bundles
from horn.strategies.parameter_server.server import Server, _Kept
from horn.wire.frames import (
    EndOfEpoch,
    JoinServers,
    LeaveServers,
    Meta,
    ParameterData,
    PullParameters,
    PushAcknowledged,
    PushGradients,
    ServersReady,
)

FORMAT = 1  # of ``state``
MOST_GROUPS = 4096

Answer = tuple[int, Meta, Array | None]


class LastingServer:
    """One server. Messages have the block of a bundle, not an array per piece.

    n_changes : messages that changed it; the others need no journal. n_stale : messages of an epoch
    that is over. n_repeated : pieces that came again.

    Raises
    ------
    ProtocolError : a message that does not fit, or a state that is not of this server.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.n_first = server.topology.n_groups  # the groups that the job began with
        self.n_changes = self.n_stale = self.n_repeated = 0
        self._fences: dict[int, int] = {}  # by group: the epoch below which nothing counts
        self._lives: dict[int, int] = {}  # by group: the epoch that has joined, or is joining
        self._here: dict[int, set[int]] = {}  # by group: its tasks that have joined
        self._clocks: dict[int, tuple[int | None, bool]] = {}  # by group: as it was welcomed
        # Of groups that came later: who has not said yet, in this life, where it goes on; who has
        # pushed.
        self._fresh: set[int] = set()
        self._begun: set[int] = set()
        self._asked: dict[int, PullParameters] = {}  # by group: its pull that waits
        self._pulled: dict[int, PullParameters] = {}  # by group: its last pull that was answered
        self._given: dict[int, dict[int, Array]] = {}  # by group: shared pieces, as it got them
        self._bundles: dict[int, Bundle] = {}
        self._list_bundles()

    def _list_bundles(self) -> None:
        s = self.server
        every = bundles(s.pieces, s.topology, s.dtype.itemsize)
        self._bundles = {b.part: b for b in every if b.server == s.number}

    @property
    def is_done(self) -> bool:
        return self.server.is_done

    def expect(self, groups: Iterable[int], epoch: int) -> bool:
        """These groups come, in this epoch or a later one: of those that have not yet, the end that
        they said of an earlier start does not count. Whether there was one.
        """
        s, found = self.server, False
        for group in groups:
            if group in s.left and self._lives.get(group, -1) < epoch:
                found = True
                s.left.discard(group)
                if group == 0:
                    s._final.clear()
        return found

    def fence(self, group: int, epoch: int) -> None:
        """Another has the place: what has a lower epoch does not count any more."""
        self._fences[group] = max(self._fences.get(group, 0), epoch)

    def is_stale(self, group: int, epoch: int) -> bool:
        return epoch < max(self._fences.get(group, 0), self._lives.get(group, 0))

    def on(self, src: int, meta: Meta, block: Array | None, epoch: int) -> list[Answer]:
        """A message of rank ``src``; what to send, and to which rank."""
        s = self.server
        group, task = divmod(src, s.topology.n_tasks)
        if self.is_stale(group, epoch):
            self.n_stale += 1
            return []
        if isinstance(meta, JoinServers):
            return self._join(group, task, epoch)
        if epoch != self._lives.get(group):
            what = f"{type(meta).__name__} of epoch {epoch}, in which it has not joined"
            raise s._wrong(group, task, what)
        match meta:
            case PushGradients():
                return self._push(src, meta, block)
            case ParameterData():
                return self._begin(src, meta, block)
            case PullParameters():
                return self._want(src, meta)
            case LeaveServers(is_thanks=True):
                if task in s._final:
                    return [(src, meta, None)]
                return [(src, meta, None), *self._do(src, meta)]
            case LeaveServers():
                if task in s._leavers.get(group, ()):
                    return [(src, meta, None)]
                return self._do(src, meta)
            case EndOfEpoch():
                return self._do(src, meta)
        raise s._wrong(group, task, f"{type(meta).__name__} is nothing for a server")

    def _do(self, src: int, meta: Meta, arrays: Sequence[Array] = ()) -> list[Answer]:
        """What is new goes to the server."""
        return self._answers(self.server.on(src, meta, arrays))

    def _answers(self, answers: Sequence[tuple[int, Meta, tuple[Array, ...]]]) -> list[Answer]:
        """Something has changed, and this follows."""
        self.n_changes += 1
        found: list[Answer] = []
        given: dict[int, dict[int, Array]] = {}
        for rank, answer, values in answers:
            if not isinstance(answer, ParameterData):
                found.append((rank, answer, None))
                continue
            group = rank // self.server.topology.n_tasks
            answer = msgspec.structs.replace(answer, turn=self._asked[group].turn)
            found.append((rank, answer, np.concatenate(values)))
            shared = given.setdefault(group, {})
            for index, w in zip(answer.pieces, values, strict=True):
                if index not in shared and len(self.server.kept[index].piece.holders) > 1:
                    shared[index] = w.copy()
        for group in [g for g in self._asked if g not in self.server._pulls]:
            self._pulled[group] = self._asked.pop(group)
            self._given[group] = given.get(group, {})
        return found

    # those who come

    def _join(self, group: int, task: int, epoch: int) -> list[Answer]:
        s, n_tasks = self.server, self.server.topology.n_tasks
        if group >= MOST_GROUPS:
            raise s._wrong(group, task, f"joins, but there may be {MOST_GROUPS} groups")
        if group >= s.topology.n_groups:
            n = s.topology.n_groups
            s.grow(group + 1)
            s.left |= set(range(n, group))  # of them nobody has heard
            self._list_bundles()
        if epoch > self._lives.get(group, -1):
            if group >= self.n_first:
                self._fresh.add(group)
            self._lives[group] = epoch
            self._here[group] = set()
            for known in (s._pulls, s._leavers, self._clocks, self._pulled, self._given,
                          self._asked):  # fmt: skip
                known.pop(group, None)
            s.left.discard(group)
            if group == 0:
                s._final.clear()
        here = self._here[group]
        if task not in here:
            self.n_changes += 1
            here.add(task)
            if len(here) == n_tasks:
                self._clocks[group] = self._where(group)
                tasks = range(n_tasks)
                return [self._welcome(s.topology.rank(group, t)) for t in tasks]
        return [self._welcome(s.topology.rank(group, task))] if len(here) == n_tasks else []

    def _welcome(self, rank: int) -> Answer:
        clock, is_new = self._clocks[rank // self.server.topology.n_tasks]
        return rank, ServersReady(clock=clock, is_new=is_new), None

    def _where(self, group: int) -> tuple[int | None, bool]:
        """The clock at which a group goes on, or a new one may begin."""
        s = self.server
        if not s.mine:
            return None, False
        pushes = [kept.n_pushes for kept in s.kept.values()]
        if group < self.n_first or group in self._begun:
            return min((n[group] for n in pushes), default=0), False
        others = [g for g in self._lives if g != group]
        there = [g for g in others if g not in s.left] or others
        clock = min((n[g] for n in pushes for g in there), default=0)
        for n in pushes:  # it must not hold up the others until it says more
            n[group] = clock
        return clock, True

    # what they say

    def _block(
        self, src: int, meta: PushGradients | ParameterData, block: Array | None
    ) -> list[Array]:
        s = self.server
        bundle = self._bundles.get(meta.part)
        group, task = divmod(src, s.topology.n_tasks)
        if bundle is None or bundle.rank != src or not bundle.is_push:
            raise s._wrong(group, task, f"bundle {meta.part} is not its to send")
        if meta.pieces != tuple(piece.index for piece in bundle.pieces):
            raise s._wrong(group, task, f"pieces {meta.pieces} in bundle {meta.part}")
        if block is None or block.shape != (len(bundle),):
            got = "nothing" if block is None else f"{block.dtype} {block.shape}"
            expected = f"expected {s.dtype} ({len(bundle)},)"
            raise s._wrong(group, task, f"bundle {meta.part}: got {got}, {expected}")
        return bundle.cut(block)

    def _push(self, src: int, meta: PushGradients, block: Array | None) -> list[Answer]:
        s, group = self.server, src // self.server.topology.n_tasks
        new = []
        for index, array in zip(meta.pieces, self._block(src, meta, block), strict=True):
            kept = s.kept.get(index)
            if kept is not None and meta.clock < kept.n_pushes[group]:
                self.n_repeated += 1
            else:
                new.append((index, array))
        answers: list[Answer] = [(src, PushAcknowledged(part=meta.part, clock=meta.clock), None)]
        if new:
            self._begun |= {group} if group >= self.n_first else set()
            said = PushGradients(
                pieces=tuple(index for index, _ in new),
                clock=meta.clock,
                samples=meta.samples,
                part=meta.part,
            )
            answers += self._do(src, said, [array for _, array in new])
        return answers

    def _begin(self, src: int, meta: ParameterData, block: Array | None) -> list[Answer]:
        s = self.server
        arrays = self._block(src, meta, block)
        new = [(i, a) for i, a in zip(meta.pieces, arrays, strict=True) if i not in s.kept]
        answers: list[Answer] = [(src, PushAcknowledged(part=meta.part), None)]
        if new:
            said = ParameterData(pieces=tuple(index for index, _ in new), part=meta.part)
            answers += self._do(src, said, [array for _, array in new])
        return answers

    def _want(self, src: int, meta: PullParameters) -> list[Answer]:
        s = self.server
        group = src // s.topology.n_tasks
        asked, pulled = self._asked.get(group), self._pulled.get(group)
        if pulled is not None and meta.turn <= pulled.turn:
            return self._again(src, meta)
        if asked is not None and meta.turn <= asked.turn:
            return []  # it is answered when it can be, to all tasks
        if group in self._fresh:
            self._fresh.discard(group)
            for kept in s.kept.values():
                kept.n_pushes[group] = max(kept.n_pushes[group], meta.clock)
        self._asked[group] = meta
        s._pulls[group] = meta  # each of its tasks says so: the first may find the server gone
        return self._answers(s._answers())

    def _again(self, src: int, meta: PullParameters) -> list[Answer]:
        """To one task the answer that it may not have got, of shared pieces the same version."""
        s, found = self.server, list[Answer]()
        given = self._given.get(src // s.topology.n_tasks, {})
        for bundle in self._bundles.values():
            if bundle.rank == src and not bundle.is_push:
                indices = tuple(piece.index for piece in bundle.pieces)
                values = [given.get(k, s.kept[k].w) for k in indices]
                answer = ParameterData(
                    pieces=indices, clock=meta.clock, part=bundle.part, turn=meta.turn
                )
                found.append((src, answer, np.concatenate(values)))
        return found

    # the whole of it

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All that it is, as plain facts and arrays by name; the arrays are its own."""
        s = self.server
        arrays: dict[str, Array] = {}
        waiting = []
        for index, kept in s.kept.items():
            arrays[f"parameter/{index}"] = kept.w
            arrays |= {f"slot/{name}/{index}": slot for name, slot in kept.slots.items()}
            for clock, found in kept.waiting.items():
                for group, (samples, array) in found.items():
                    waiting.append([index, clock, group, samples])
                    arrays[f"waiting/{index}/{clock}/{group}"] = array
        for group, shared in self._given.items():
            arrays |= {f"given/{group}/{index}": array for index, array in shared.items()}
        kept_facts = [[i, k.n_updates, list(k.n_pushes), list(k.pulled)] for i, k in s.kept.items()]
        facts = {
            "format": FORMAT,
            "server": s.number,
            "dtype": s.dtype.str,
            "slots": list(s.optimizer.slots),
            "n_tasks": s.topology.n_tasks,
            "n_groups": s.topology.n_groups,
            "n_first": self.n_first,
            "kept": kept_facts,
            "waiting": waiting,
            "staleness": sorted(s.staleness.items()),
            "n_pushes": s.n_pushes,
            "left": sorted(s.left),
            "pulls": _wanted(s._pulls),
            "leavers": [[g, sorted(tasks)] for g, tasks in s._leavers.items()],
            "final": sorted(s._final),
            "verdicts": [[g, epoch, stop] for (g, epoch), stop in s._verdicts.items()],
            "stop_after": s._stop_after,
            "fences": sorted(self._fences.items()),
            "lives": sorted(self._lives.items()),
            "here": [[g, sorted(tasks)] for g, tasks in self._here.items()],
            "clocks": [[g, clock, is_new] for g, (clock, is_new) in self._clocks.items()],
            "fresh": sorted(self._fresh),
            "begun": sorted(self._begun),
            "asked": _wanted(self._asked),
            "pulled": _wanted(self._pulled),
            "given": [[g, sorted(shared)] for g, shared in self._given.items()],
            "n_changes": self.n_changes,
            "n_repeated": self.n_repeated,
        }
        return facts, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Become what ``state`` said; of a server with the same pieces."""
        s = self.server
        wanted = {"format": FORMAT, "server": s.number, "dtype": s.dtype.str,
                  "slots": list(s.optimizer.slots), "n_tasks": s.topology.n_tasks,
                  "n_first": self.n_first}  # fmt: skip
        for what, value in wanted.items():
            if facts.get(what) != value:
                raise ProtocolError(
                    f"server {s.number}: a state with {what} {facts.get(what)!r}, expected "
                    f"{value!r}; it is of another job, or of another horn"
                )
        try:
            self._restore(facts, arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"server {s.number}: its state lacks {error}") from error

    def _restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        s = self.server
        s.grow(facts["n_groups"])
        self._list_bundles()
        s.kept = {}
        for index, n_updates, n_pushes, pulled in facts["kept"]:
            piece = s._by_index[index]
            slots = {name: np.array(arrays[f"slot/{name}/{index}"]) for name in s.optimizer.slots}
            w = np.array(arrays[f"parameter/{index}"])
            if w.shape != (len(piece),) or w.dtype != s.dtype:
                raise ValueError(f"{s.dtype} ({len(piece)},) for piece {index}, but has {w.shape}")
            s.kept[index] = _Kept(piece, w, slots, n_updates, list(n_pushes), list(pulled))
        for index, clock, group, samples in facts["waiting"]:
            array = np.array(arrays[f"waiting/{index}/{clock}/{group}"])
            s.kept[index].waiting.setdefault(clock, {})[group] = (samples, array)
        s.staleness = Counter(dict(facts["staleness"]))
        s.n_pushes, s.left = facts["n_pushes"], set(facts["left"])
        s._pulls = _read_wanted(facts["pulls"])
        s._leavers = {g: set(tasks) for g, tasks in facts["leavers"]}
        s._final, s._stop_after = set(facts["final"]), facts["stop_after"]
        s._verdicts = {(g, epoch): stop for g, epoch, stop in facts["verdicts"]}
        self._fences, self._lives = dict(facts["fences"]), dict(facts["lives"])
        self._here = {g: set(tasks) for g, tasks in facts["here"]}
        self._clocks = {g: (clock, is_new) for g, clock, is_new in facts["clocks"]}
        self._fresh, self._begun = set(facts["fresh"]), set(facts["begun"])
        self._asked, self._pulled = _read_wanted(facts["asked"]), _read_wanted(facts["pulled"])
        self._given = {
            g: {index: np.array(arrays[f"given/{g}/{index}"]) for index in indices}
            for g, indices in facts["given"]
        }
        self.n_changes, self.n_repeated = facts["n_changes"], facts["n_repeated"]


def _wanted(found: Mapping[int, PullParameters]) -> list[list[Any]]:
    return [[group, w.clock, w.final, w.turn] for group, w in found.items()]


def _read_wanted(said: Sequence[Sequence[Any]]) -> dict[int, PullParameters]:
    return {group: PullParameters(clock=c, final=final, turn=n) for group, c, final, n in said}
