"""A parameter server: a pure state machine, a message in, messages out.

It keeps its pieces of the parameters and the optimizer's slots of them, each with a clock of its
own. Where the strategy is synchronous, sums are taken in the order of groups; else gradients count
in the order of arrival.

A durable server outlives its clients and its own process. Groups leave, come back and join again:
it refuses earlier attempts, recognizes repeated pushes by their clocks, and acknowledges every
change. ``server_state`` has its whole state as plain facts. See docs/notes/0061 and 0121.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from horn.backends import Array
from horn.errors import ProtocolError
from horn.optimizers import Optimizer
from horn.parameter_server.pieces import ParameterBundle, ParameterPiece, bundles
from horn.parameter_server.updates import Policy, ServerPiece
from horn.topology import Topology
from horn.wire.messages import (
    EndOfEpoch,
    JoinServers,
    LeaveServers,
    Meta,
    ParameterData,
    PullParameters,
    PushAcknowledged,
    PushGradients,
    ServersReady,
    Verdict,
)

MOST_GROUPS = 4096
NOTHING_GIVEN: Mapping[int, Array] = {}

Answer = tuple[int, Meta, tuple[Array, ...]]


@dataclass
class GroupState:
    """What a server knows of a group."""

    has_left: bool = False  # it will push no more
    leavers: set[int] = field(default_factory=set)  # tasks that have left
    measures: bool = False  # what it pulled last
    verdicts: dict[int, bool] = field(default_factory=dict)  # epoch -> stop
    least: float | None = None  # as ``_pushed`` has found it,
    n_least: int = 0  # and the pieces with no more pushes than that
    # The rest is for a durable server:
    fence: int = 0  # the lowest attempt that counts
    life: int = -1  # the attempt that has joined, or is joining
    here: set[int] = field(default_factory=set)  # tasks that have joined
    clock: tuple[int | None, bool, int | None] | None = None  # as in its welcome
    batches: dict[int, int] = field(default_factory=dict)  # by clock, with that of its start
    pulled: PullParameters | None = None  # the last pull that was answered,
    given: dict[int, Array] = field(default_factory=dict)  # and the shared pieces of the answer
    is_fresh: bool = False  # a later group that has neither pulled nor pushed in this attempt
    has_begun: bool = False  # a later group that has pushed


class ParameterServer:
    """One server. A message has the block of a bundle, an answer an array per piece of it.

    is_durable : clients and the server may restart. Then tasks join first, every message has its
    sender's attempt, and changes are acknowledged and may be repeated.
    staleness : counts pushed pieces by how many updates they were late. n_changes : messages that
    changed the state, which the journal needs. n_stale : messages of earlier attempts. n_repeated :
    repeated pieces.

    Raises
    ------
    ProtocolError : a message that does not fit the pieces, or that comes out of its turn.
    """

    def __init__(
        self,
        number: int,
        pieces: Iterable[ParameterPiece],
        optimizer: Optimizer,
        topology: Topology,
        policy: Policy,
        dtype: str,
        is_durable: bool = False,
    ) -> None:
        self.number, self.topology, self.policy = number, topology, policy
        self.n_first = topology.n_groups  # the groups that share the data
        self.optimizer, self.dtype, self.is_durable = optimizer, np.dtype(dtype), is_durable
        self.pieces = tuple(pieces)
        self.mine = tuple(piece for piece in self.pieces if piece.server == number)
        self.kept: dict[int, ServerPiece] = {}
        self.staleness: Counter[int] = Counter()
        self.n_pushes = self.n_changes = self.n_stale = self.n_repeated = 0
        self.groups = {number: GroupState() for number in range(topology.n_groups)}
        self.final: set[int] = set()  # tasks of group 0 that have the final parameters
        self.pulls: dict[int, PullParameters] = {}  # by group: the waiting pull, in their order
        self.stop_after: int | None = None
        self._bundles: dict[int, ParameterBundle] = {}  # by part
        self._pulled_by: dict[int, list[ParameterBundle]] = {}  # by rank
        self._add_bundles(range(topology.n_workers))

    def _add_bundles(self, ranks: range) -> None:
        size = self.dtype.itemsize
        for bundle in bundles(self.pieces, self.topology, size, ranks=ranks, server=self.number):
            self._bundles[bundle.part] = bundle
            if not bundle.is_push:
                self._pulled_by.setdefault(bundle.rank, []).append(bundle)

    def grow(self, n_groups: int) -> None:
        """Make room for ``n_groups`` groups; the new ones have pushed nothing."""
        n_before, n_more = self.topology.n_workers, n_groups - self.topology.n_groups
        self.topology = replace(self.topology, n_groups=n_groups)
        for kept in self.kept.values():
            kept.n_pushes += [0] * n_more
            kept.pulled += [0] * n_more
        for number in range(n_groups):
            self.group(number).least = None
        self._add_bundles(range(n_before, self.topology.n_workers))

    def group(self, number: int) -> GroupState:
        """A group, which may be one that has not joined yet."""
        return self.groups.setdefault(number, GroupState())

    @property
    def active(self) -> list[int]:
        """The groups that may still push."""
        return [g for g in range(self.topology.n_groups) if not self.groups[g].has_left]

    @property
    def measuring(self) -> set[int]:
        """The groups that measure what they pulled last."""
        return {number for number, group in self.groups.items() if group.measures}

    @property
    def is_done(self) -> bool:
        """Whether all groups have left, and every task of group 0 has the final parameters."""
        return len(self.final) == self.topology.n_tasks and not self.active

    @property
    def at_first(self) -> Topology:
        """The topology at the beginning of the run, by which it numbers and names ranks."""
        return replace(self.topology, n_groups=self.n_first)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The ranks of the groups that may still push."""
        return tuple(rank for group in self.active for rank in self.at_first.ranks(group))

    def clocks_in_words(self) -> str:
        """The clock of each group that may still push, in words."""
        groups = self.active if self.kept else []
        clocks = [f"clock {self._pushed(group):.0f} of group {group}" for group in groups]
        return ", ".join(clocks) or ("its end" if self.kept else "its beginning")

    def expect(self, groups: Iterable[int], attempt: int) -> bool:
        """Expect these groups to start with the run, in this attempt or a later one: if they left,
        or were to stop, in an earlier one, it does not count. Whether there was any such.
        """
        known = {number: self.groups[number] for number in groups if number in self.groups}
        back = {number: group for number, group in known.items() if group.life < attempt}
        ended = [number for number, group in back.items() if group.has_left]
        stopped = [group for group in back.values() if True in group.verdicts.values()]
        is_stopped = 0 in back and self.stop_after is not None
        for number in ended:
            self._reopen(number)
        for group in stopped:
            group.verdicts = {epoch: stop for epoch, stop in group.verdicts.items() if not stop}
        if is_stopped:
            self.stop_after = None
        return bool(ended or stopped or is_stopped)

    def _reopen(self, number: int) -> None:
        self.groups[number].has_left = False
        if number == 0:
            self.final.clear()

    def fence(self, number: int, attempt: int) -> None:
        """Ignore lower attempts of a group from now on."""
        group = self.group(number)
        group.fence = max(group.fence, attempt)

    def is_stale(self, number: int, attempt: int) -> bool:
        group = self.groups.get(number)
        return group is not None and attempt < max(group.fence, group.life)

    def on(
        self, src: int, meta: Meta, block: Array | None = None, attempt: int = 0
    ) -> list[Answer]:
        """Handle a message of rank ``src``; return the answers, whose arrays are the server's own,
        to be copied before the next message.
        """
        group, task = divmod(src, self.topology.n_tasks)
        if self.is_durable:
            if self.is_stale(group, attempt):
                self.n_stale += 1
                return []
            if isinstance(meta, JoinServers):
                return self._join(group, task, attempt)
            if group not in self.groups or attempt != self.groups[group].life:
                what = f"{type(meta).__name__} of attempt {attempt}, in which it has not joined"
                raise self._wrong(group, task, what)
        elif not 0 <= src < self.topology.n_workers:
            raise ProtocolError(
                f"server {self.number}: {type(meta).__name__} of {self.topology.name(src)}, "
                f"expected one of tasks 0 to {self.topology.n_workers - 1}"
            )
        match meta:
            case ParameterData():
                return self._begin(src, meta, block)
            case PushGradients():
                return self._push(src, meta, block)
            case PullParameters():
                return self._want(src, meta)
            case LeaveServers(is_thanks=True):
                return self._thank(src, meta)
            case LeaveServers():
                return self._leave(src, meta)
            case EndOfEpoch(epoch=of, stop=stop):
                verdict = Verdict(epoch=of, stop=self._verdict(group, of, stop))
                return self._changed([(src, verdict, ())])
        raise self._wrong(group, task, f"{type(meta).__name__} is nothing for a server")

    def _wrong(self, group: int, task: int, what: str, piece: int | None = None) -> ProtocolError:
        where = f"server {self.number}: group {group}, task {task}"
        return ProtocolError(f"{where}{'' if piece is None else f', piece {piece}'}: {what}")

    # joining and leaving

    def _join(self, group: int, task: int, attempt: int) -> list[Answer]:
        n = self.topology.n_groups
        if group >= MOST_GROUPS:
            raise self._wrong(group, task, f"joins, but there may be {MOST_GROUPS} groups")
        if group >= n:
            self.grow(group + 1)
            for number in range(n, group):
                self.groups[number].has_left = True  # they never joined
        own = self.groups[group]
        if attempt > own.life:
            own.is_fresh = own.is_fresh or group >= self.n_first
            own.life, own.clock, own.pulled, own.measures = attempt, None, None, False
            own.here, own.leavers, own.given = set(), set(), {}
            self.pulls.pop(group, None)
            self._reopen(group)
        of_group = range(self.topology.n_tasks)
        if task not in own.here:
            self.n_changes += 1
            own.here.add(task)
            if len(own.here) == len(of_group):
                own.clock = self._where(group)
                return [self._welcome(group, t) for t in of_group]
        return [self._welcome(group, task)] if len(own.here) == len(of_group) else []

    def _welcome(self, group: int, task: int) -> Answer:
        where = self.groups[group].clock
        assert where is not None
        clock, is_new, batches = where
        ready = ServersReady(clock=clock, is_new=is_new, batches=batches)
        return self.topology.rank(group, task), ready, ()

    def _where(self, group: int) -> tuple[int | None, bool, int | None]:
        """The clock at which a group resumes or begins, whether it is new, and the batches of the
        pushes before, where they said.
        """
        if not self.mine:
            return None, False, None
        pushes = [kept.n_pushes for kept in self.kept.values()]
        own = self.groups[group]
        if group < self.n_first or own.has_begun:
            clock = min((n[group] for n in pushes), default=0)
            return clock, False, own.batches.get(clock)
        others = [g for g, other in self.groups.items() if other.life >= 0 and g != group]
        there = [g for g in others if not self.groups[g].has_left] or others
        clock, slowest = min(((n[g], g) for n in pushes for g in there), default=(0, group))
        for n in pushes:  # it must not hold up the others until its first pull
            n[group] = clock
        own.least = None
        batches = self.groups[slowest].batches.get(clock)
        own.batches = {} if batches is None else {clock: batches}  # it may come back to this clock
        return clock, True, batches

    def _leave(self, src: int, meta: LeaveServers) -> list[Answer]:
        group, task = divmod(src, self.topology.n_tasks)
        # A task waits for this before it closes its connection, which might lose its last frames.
        heard: list[Answer] = [(src, meta, ())]
        own = self.groups[group]
        leavers = own.leavers
        if self.is_durable and task in leavers:
            return heard
        pull = self.pulls.get(group)
        if task in leavers or (task == 0 and pull is not None and not pull.final):
            what = "a second time" if task in leavers else "while its pull waits"
            raise self._wrong(group, task, f"leaves {what}")
        leavers.add(task)
        own.measures = False
        if len(leavers) == self.topology.n_tasks:  # else the others may still be sending
            own.has_left = True
            here = self.active
            for kept in self.kept.values():
                self._sum(kept, here)
        return self._changed(heard)

    def _thank(self, src: int, meta: LeaveServers) -> list[Answer]:
        group, task = divmod(src, self.topology.n_tasks)
        heard: list[Answer] = [(src, meta, ())] if self.is_durable else []
        if self.is_durable and task in self.final:
            return heard
        if task not in self.groups[0].leavers or group:
            raise self._wrong(group, task, "thanks for an end that it has not got")
        self.final.add(task)
        return self._changed(heard)

    # initial values and gradients

    def _cut(
        self, src: int, meta: PushGradients | ParameterData, block: Array | None
    ) -> list[Array]:
        """Cut a message's block by piece; all of it is checked before any of it counts."""
        bundle = self._bundles.get(meta.part)
        group, task = divmod(src, self.topology.n_tasks)
        if bundle is None or bundle.rank != src or not bundle.is_push:
            raise self._wrong(group, task, f"bundle {meta.part} is not its to send")
        if meta.pieces != tuple(piece.index for piece in bundle.pieces):
            raise self._wrong(group, task, f"pieces {meta.pieces} in bundle {meta.part}")
        if block is None or block.shape != (len(bundle),) or block.dtype != self.dtype:
            got = "nothing" if block is None else f"{block.dtype} {block.shape}"
            expected = f"expected {self.dtype} ({len(bundle)},)"
            raise self._wrong(group, task, f"bundle {meta.part}: got {got}, {expected}")
        return bundle.cut(block)

    def _begin(self, src: int, meta: ParameterData, block: Array | None) -> list[Answer]:
        """Take initial values, from the tasks of group 0."""
        group, task = divmod(src, self.topology.n_tasks)
        arrays = dict(zip(meta.pieces, self._cut(src, meta, block), strict=True))
        answers: list[Answer] = (
            [(src, PushAcknowledged(part=meta.part), ())] if self.is_durable else []
        )
        new = [p for p in self._bundles[meta.part].pieces if p.index not in self.kept]
        if self.is_durable and not new:
            return answers
        for index in arrays:
            if group or (index in self.kept and not self.is_durable):
                what = "are group 0's to say" if group else "were said before"
                raise self._wrong(group, task, f"initial values {what}", index)
        n = self.topology.n_groups
        for piece in new:
            w = np.array(arrays[piece.index])
            slots = {name: np.zeros_like(w) for name in self.optimizer.slots}
            self.kept[piece.index] = ServerPiece(piece, w, slots, 0, [0] * n, [0] * n)
        for known in self.groups.values():
            known.least = None
        return self._changed(answers)

    def _push(self, src: int, meta: PushGradients, block: Array | None) -> list[Answer]:
        group, task = divmod(src, self.topology.n_tasks)
        own = self.groups[group]
        new: list[tuple[ServerPiece, Array]] = []
        for index, array in zip(meta.pieces, self._cut(src, meta, block), strict=True):
            kept = self.kept.get(index)
            if kept is not None and self.is_durable and meta.clock < kept.n_pushes[group]:
                self.n_repeated += 1
            elif task in own.leavers:
                raise self._wrong(group, task, f"pushes pieces {meta.pieces} after it left")
            elif kept is None or meta.clock != kept.n_pushes[group]:
                expected = "initial values" if kept is None else f"push {kept.n_pushes[group]}"
                raise self._wrong(group, task, f"got push {meta.clock}, expected {expected}", index)
            else:
                new.append((kept, array))
        answers: list[Answer] = []
        if self.is_durable:
            answers.append((src, PushAcknowledged(part=meta.part, clock=meta.clock), ()))
            if not new:
                return answers
            own.has_begun = own.has_begun or group >= self.n_first
            own.is_fresh = False  # other pieces of this push may come after its first pull
        self.n_pushes += 1
        own.measures = False
        here = self.active
        for kept, array in new:
            self._apply(kept, group, meta, array, here)
        if own.least == meta.clock:  # these pieces had no more pushes, others may have none yet
            own.n_least -= len(new)
            own.least = own.least if own.n_least else None
        if self.is_durable and meta.batches is not None:
            said = own.batches | {meta.clock + 1: meta.batches}
            least = self._pushed(group)
            own.batches = {clock: n for clock, n in said.items() if clock >= least}
        return self._changed(answers)

    def _apply(
        self,
        kept: ServerPiece,
        group: int,
        meta: PushGradients,
        array: Array,
        here: Sequence[int],
    ) -> None:
        kept.n_pushes[group] += 1
        if self.policy.max_staleness == 0:
            kept.waiting.setdefault(meta.clock, {})[group] = (meta.samples, np.array(array))
            self._sum(kept, here)
            return
        late = kept.n_updates - kept.pulled[group]
        self.staleness[late] += 1
        if meta.samples:
            scale = 1.0 / max(late, 1) if self.policy.scale_by_staleness else 1.0
            kept.step(self.optimizer, array, scale * self._weight(group, meta.clock, len(here)))

    def _weight(self, group: int, clock: int, n_here: int) -> float:
        """The weight of a group's push. It does not grow when others leave, since no group takes
        over their part of the data; later groups count as the first do.
        """
        is_alone = group == 0 and clock < self.policy.warm_start
        if not self.policy.averages or is_alone:
            return 1.0
        return 1.0 / max(self.n_first, n_here)

    def _sum(self, kept: ServerPiece, here: Sequence[int]) -> None:
        """For a synchronous strategy: apply every clock that all groups ``here`` have pushed."""
        complete = min((kept.n_pushes[g] for g in here), default=math.inf)
        if n_applied := kept.apply_waiting(self.optimizer, complete, keeps=self.is_durable):
            self.staleness[0] += n_applied

    # pulls

    def _want(self, src: int, wanted: PullParameters) -> list[Answer]:
        group, task = divmod(src, self.topology.n_tasks)
        own = self.groups[group]
        if not self.is_durable:
            self._check_turn(group, task, wanted)
        else:  # each task pulls: the first may find the server gone
            pulled, waits = own.pulled, self.pulls.get(group)
            if pulled is not None and wanted.turn <= pulled.turn:  # its answer may have been lost
                return self._answers((src,), wanted, own.given)
            if waits is not None and wanted.turn <= waits.turn:
                return []  # the answer to the first one goes to all tasks
            if own.is_fresh:
                own.is_fresh = False
                for kept in self.kept.values():
                    kept.n_pushes[group] = max(kept.n_pushes[group], wanted.clock)
                if wanted.batches is not None:  # another server may have said this clock
                    own.batches[wanted.clock] = wanted.batches
                own.least = None
        self.pulls[group] = wanted
        own.measures = wanted.measures
        return self._changed([])

    def _check_turn(self, group: int, task: int, wanted: PullParameters) -> None:
        pushed = max((kept.n_pushes[group] for kept in self.kept.values()), default=0)
        if task or group in self.pulls:
            what = "task 0 pulls for its group" if task else "its last pull waits still"
            raise self._wrong(group, task, f"pull {wanted.clock}, but {what}")
        if (task in self.groups[group].leavers) != wanted.final or (wanted.final and group):
            when = "of the end" if wanted.final else "after it left"
            raise self._wrong(group, task, f"pull {wanted.clock} {when}, which is not its turn")
        if wanted.clock < pushed:
            raise self._wrong(group, task, f"got pull {wanted.clock}, expected pull {pushed}")

    def _changed(self, answers: list[Answer]) -> list[Answer]:
        """Handle a change: ``answers``, and those to the pulls that need not wait any longer, one
        version to all tasks of a group.
        """
        self.n_changes += 1
        if not self.pulls or len(self.kept) < len(self.mine):  # there are no initial values yet
            return answers
        slowest = min(map(self._pushed, self.active), default=math.inf)
        for group, wanted in list(self.pulls.items()):
            if self._waits(group, wanted, slowest):
                continue
            del self.pulls[group]
            for kept in self.kept.values():
                kept.pulled[group] = kept.n_updates
            answers += self._answers(self.topology.ranks(group), wanted, NOTHING_GIVEN)
            if self.is_durable:
                own = self.groups[group]
                own.pulled = wanted
                shared = {i: k for i, k in self.kept.items() if len(k.piece.holders) > 1}
                own.given = {i: _version(kept, wanted) for i, kept in shared.items()}
        return answers

    def _answers(
        self, ranks: Collection[int], wanted: PullParameters, given: Mapping[int, Array]
    ) -> list[Answer]:
        """The parameters for these ranks; shared pieces as they were ``given`` before."""
        found: list[Answer] = []
        pulled = [bundle for rank in ranks for bundle in self._pulled_by.get(rank, ())]
        for bundle in sorted(pulled, key=lambda bundle: bundle.part):
            indices = tuple(piece.index for piece in bundle.pieces)
            meta = ParameterData(
                pieces=indices, clock=wanted.clock, part=bundle.part, turn=wanted.turn
            )
            arrays = tuple(
                given[k] if k in given else _values(self.kept[k], wanted) for k in indices
            )
            found.append((bundle.rank, meta, arrays))
        return found

    def _pushed(self, group: int) -> float:
        """The pushes of a group that have come for all pieces."""
        own = self.groups[group]
        if own.least is None:
            pushes = [kept.n_pushes[group] for kept in self.kept.values()]
            own.least = min(pushes, default=math.inf)
            own.n_least = sum(n == own.least for n in pushes)
        return own.least

    def _waits(self, group: int, wanted: PullParameters, slowest: float) -> bool:
        """Whether a pull is not answered yet, once there are initial values: whether it has any
        ``_owing``. slowest : of the groups that have not left, what ``_pushed`` is of the one with
        the fewest.
        """
        if wanted.final:
            return bool(self.active)
        if self._pushed(group) < wanted.clock:
            return True
        if group and wanted.clock == 0 and not self.groups[0].has_left:
            if self._pushed(0) < self.policy.warm_start:
                return True
        staleness = self.policy.max_staleness
        return staleness is not None and slowest < wanted.clock - staleness

    def _owing(
        self, group: int, wanted: PullParameters, behind: Callable[[int, int], set[int]]
    ) -> set[int]:
        """The ranks of the tasks that must push or leave before a pull is answered. behind : as
        ``_behind``.
        """
        t = self.topology
        if len(self.kept) < len(self.mine):  # there are no initial values yet
            return set(t.ranks(0))
        others = self.active
        if wanted.final:
            return {rank for g in others for rank in t.ranks(g)}
        # Its other tasks may still be sending, and do not read answers before they have sent.
        least = {group: wanted.clock}
        if group and wanted.clock == 0 and 0 in others:
            least[0] = self.policy.warm_start
        if self.policy.max_staleness is not None:
            for g in others:
                least[g] = max(least.get(g, 0), wanted.clock - self.policy.max_staleness)
        return {rank for g, n in least.items() for rank in behind(g, n)}

    def _behind(self, group: int, clock: int) -> set[int]:
        """The ranks of a group's tasks that have made fewer pushes than this of some piece."""
        if self._pushed(group) >= clock:
            return set()
        kept = self.kept.values()
        owners = {each.piece.owner for each in kept if each.n_pushes[group] < clock}
        return {self.topology.rank(group, task) for task in owners}

    def waiting(self) -> list[tuple[int, str, bool]]:
        """The ranks of tasks whose pulls wait, each with the ranks that they wait for, and whether
        all of these measure the model.
        """
        found, measuring = [], self.measuring
        behind = functools.cache(self._behind)  # many pulls wait for the same clock of a group
        for group, wanted in self.pulls.items():
            owing = self._owing(group, wanted, behind)
            measure = {rank // self.topology.n_tasks for rank in owing} <= measuring
            ranks = " ".join(map(str, sorted(owing)))
            found += [(rank, ranks, measure) for rank in self.topology.ranks(group)]
        return found

    def _verdict(self, group: int, epoch: int, stop: bool) -> bool:
        """Whether a group ends after an epoch: group 0 decides, for all tasks of a group alike. If
        it starts again after that, its decision holds: others may have ended by it.
        """
        if group == 0:
            if stop and self.stop_after is None:
                self.stop_after = epoch
            return self.stop_after is not None and epoch >= self.stop_after
        # The verdict for the first of its tasks holds for the others, which ask later.
        verdicts = self.groups[group].verdicts
        return verdicts.setdefault(epoch, stop or self.stop_after is not None)


def _values(kept: ServerPiece, wanted: PullParameters) -> Array:
    """A piece as a pull of this clock gets it. A group that ended between two pieces of a push
    pulls that clock again: pieces that all groups had pushed are those of the next one by then.
    """
    return kept.w if wanted.final else kept.before.get(wanted.clock, kept.w)


def _version(kept: ServerPiece, wanted: PullParameters) -> Array:
    """The ``_values`` of a pull as they stay, in the array of all groups that get this version."""
    values = _values(kept, wanted)
    return kept.copied() if values is kept.w else values
