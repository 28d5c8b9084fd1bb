"""A parameter server: a pure state machine, a message in, messages out.

It keeps its pieces of the parameters and the optimizer's memory of them. Each piece is on its own:
no lock, no clock of the whole. Sums are taken in the order of groups, never of arrival, where the
strategy is synchronous; else gradients count as they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from horn.backends import Array
from horn.errors import ProtocolError
from horn.optimizers import Optimizer
from horn.strategies.parameter_server.pieces import Piece, bundles
from horn.strategies.parameter_server.updates import Update
from horn.topology import Topology
from horn.wire.frames import (
    EndOfEpoch,
    LeaveServers,
    Meta,
    ParameterData,
    PullParameters,
    PushGradients,
    Verdict,
)

Answer = tuple[int, Meta, tuple[Array, ...]]


@dataclass
class _Kept:
    """A piece as the server has it."""

    piece: Piece
    w: Array
    slots: dict[str, Array]
    n_updates: int = 0
    n_pushes: list[int] = field(default_factory=list)  # by group
    pulled: list[int] = field(default_factory=list)  # by group: n_updates when it pulled last
    waiting: dict[int, dict[int, tuple[int, Array]]] = field(default_factory=dict)  # clock, group
    update: Update | None = None


@dataclass(frozen=True)
class Policy:
    """What of a strategy a server has to know; as in Downpour, warm_start in pushes. averages :
    what is pushed is one group's part, and counts divided by the number of groups.
    """

    max_staleness: int | None = None
    scale_by_staleness: bool = False
    warm_start: int = 0
    averages: bool = False

    @property
    def is_synchronous(self) -> bool:
        return self.max_staleness == 0


class Server:
    """One server. ``staleness`` counts pushed pieces by how many updates they were late.

    Raises
    ------
    ProtocolError : a message that does not fit the pieces, or that comes out of its turn.
    """

    def __init__(
        self,
        number: int,
        pieces: Sequence[Piece],
        optimizer: Optimizer,
        topology: Topology,
        policy: Policy,
        dtype: str,
    ) -> None:
        self.number, self.topology, self.policy = number, topology, policy
        self._n_first = topology.n_groups  # the groups that share the data
        self.optimizer, self.dtype = optimizer, np.dtype(dtype)
        self.pieces = tuple(pieces)
        self.mine = tuple(piece for piece in pieces if piece.server == number)
        self._by_index = {piece.index: piece for piece in self.mine}
        self.kept: dict[int, _Kept] = {}
        self.staleness: Counter[int] = Counter()
        self.n_pushes = 0
        self.left: set[int] = set()  # groups that push no more
        self._pulls: dict[int, PullParameters] = {}  # by group: what waits
        self._leavers: dict[int, set[int]] = {}  # by group: its tasks that have said so
        self._final: set[int] = set()  # tasks of group 0 that have the end
        self._verdicts: dict[tuple[int, int], bool] = {}  # group, epoch -> stop
        self._stop_after: int | None = None
        mine = bundles(self.pieces, topology, self.dtype.itemsize)
        self._answered = [b for b in mine if b.server == number and not b.is_push]

    def grow(self, n_groups: int) -> None:
        """There may be so many groups now; the new ones have pushed nothing."""
        n_more = n_groups - self.topology.n_groups
        self.topology = replace(self.topology, n_groups=n_groups)
        for kept in self.kept.values():
            kept.n_pushes += [0] * n_more
            kept.pulled += [0] * n_more
        mine = bundles(self.pieces, self.topology, self.dtype.itemsize)
        self._answered = [b for b in mine if b.server == self.number and not b.is_push]

    @property
    def is_done(self) -> bool:
        """All groups have left, and every task of group 0 has thanked for the end."""
        return len(self.left) == self.topology.n_groups and len(self._final) == (
            self.topology.n_tasks
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Tasks of groups that have not left, as they are called."""
        t = self.topology
        return tuple(
            t.name(t.rank(group, task))
            for group in range(t.n_groups)
            if group not in self.left
            for task in range(t.n_tasks)
        )

    def on(self, src: int, meta: Meta, arrays: Sequence[Array]) -> list[Answer]:
        """A message of rank ``src``, with an array per piece; what to send, and to which rank. What
        it answers with are the server's own arrays, to be copied before the next message.
        """
        if not 0 <= src < self.topology.n_workers:
            raise ProtocolError(
                f"server {self.number}: {type(meta).__name__} of {self.topology.name(src)}, "
                f"expected one of tasks 0 to {self.topology.n_workers - 1}"
            )
        group, task = divmod(src, self.topology.n_tasks)
        match meta:
            case ParameterData(pieces=pieces):
                self._begin(group, task, pieces, arrays)
            case PushGradients():
                self._push(group, task, meta, arrays)
            case PullParameters():
                self._want(group, task, meta)
            case LeaveServers(is_thanks=True):
                if task not in self._leavers.get(0, ()) or group:
                    raise self._wrong(group, task, "thanks for an end that it has not got")
                self._final.add(task)
            case LeaveServers():
                self._leave(group, task)
                # Who closes its connection before it hears this might take its last words with it.
                return [(src, LeaveServers(), ()), *self._answers()]
            case EndOfEpoch(epoch=epoch, stop=stop):
                return [(src, Verdict(epoch=epoch, stop=self._verdict(group, epoch, stop)), ())]
            case _:
                raise self._wrong(group, task, f"{type(meta).__name__} is nothing for a server")
        return self._answers()

    def _wrong(self, group: int, task: int, what: str, piece: int | None = None) -> ProtocolError:
        where = f"server {self.number}: group {group}, task {task}"
        return ProtocolError(f"{where}{'' if piece is None else f', piece {piece}'}: {what}")

    def _fitting(
        self, group: int, task: int, indices: Sequence[int], arrays: Sequence[Array]
    ) -> list[tuple[Piece, Array]]:
        """What a task sends, by piece; all of it is looked at before any of it counts."""
        if len(indices) != len(arrays) or len(set(indices)) != len(indices):
            raise self._wrong(group, task, f"{len(arrays)} arrays for pieces {tuple(indices)}")
        found = []
        for index, array in zip(indices, arrays, strict=True):
            piece = self._by_index.get(index)
            if piece is None or piece.owner != task:
                owner = "another server's" if piece is None else f"task {piece.owner}'s"
                raise self._wrong(group, task, f"is {owner} to have", index)
            if array.shape != (len(piece),) or array.dtype != self.dtype:
                raise self._wrong(
                    group,
                    task,
                    f"got {array.dtype} {array.shape}, expected {self.dtype} ({len(piece)},)",
                    index,
                )
            found.append((piece, array))
        return found

    def _begin(
        self, group: int, task: int, indices: Sequence[int], arrays: Sequence[Array]
    ) -> None:
        """Initial values, from the tasks of group 0."""
        for piece, array in self._fitting(group, task, indices, arrays):
            if group or piece.index in self.kept:
                what = "are group 0's to say" if group else "were said before"
                raise self._wrong(group, task, f"initial values {what}", piece.index)
            w = np.array(array)
            slots = {name: np.zeros_like(w) for name in self.optimizer.slots}
            n = self.topology.n_groups
            self.kept[piece.index] = _Kept(piece, w, slots, 0, [0] * n, [0] * n)

    def _leave(self, group: int, task: int) -> None:
        leavers = self._leavers.setdefault(group, set())
        pull = self._pulls.get(group)
        if task in leavers or (task == 0 and pull is not None and not pull.final):
            what = "a second time" if task in leavers else "while its pull waits"
            raise self._wrong(group, task, f"leaves {what}")
        leavers.add(task)
        if len(leavers) == self.topology.n_tasks:  # else the others may still be sending
            self.left.add(group)
            for kept in self.kept.values():
                self._sum(kept)

    # pushes

    def _push(self, group: int, task: int, meta: PushGradients, arrays: Sequence[Array]) -> None:
        self.n_pushes += 1
        if task in self._leavers.get(group, ()):
            raise self._wrong(group, task, f"pushes pieces {meta.pieces} after it left")
        found = self._fitting(group, task, meta.pieces, arrays)
        for piece, _ in found:
            kept = self.kept.get(piece.index)
            if kept is None or meta.clock != kept.n_pushes[group]:
                expected = "initial values" if kept is None else f"push {kept.n_pushes[group]}"
                raise self._wrong(
                    group, task, f"got push {meta.clock}, expected {expected}", piece.index
                )
        for piece, array in found:
            kept = self.kept[piece.index]
            kept.n_pushes[group] += 1
            if self.policy.is_synchronous:
                kept.waiting.setdefault(meta.clock, {})[group] = (meta.samples, np.array(array))
                self._sum(kept)
                continue
            late = kept.n_updates - kept.pulled[group]
            self.staleness[late] += 1
            if meta.samples:
                scale = 1.0 / max(late, 1) if self.policy.scale_by_staleness else 1.0
                self._update(kept, array, scale * self._weight(group, meta.clock))

    def _weight(self, group: int, clock: int) -> float:
        """What a group's push counts. Where some have left nobody trains on their part of the data,
        so the others do not count more; those that came later count as those who began.
        """
        is_alone = group == 0 and clock < self.policy.warm_start
        if not self.policy.averages or is_alone:
            return 1.0
        return 1.0 / max(self._n_first, self.topology.n_groups - len(self.left))

    def _sum(self, kept: _Kept) -> None:
        """Of a synchronous strategy: the clock's mean over all samples, once all groups are in."""
        while kept.waiting:
            clock = min(kept.waiting)
            found = kept.waiting[clock]
            if any(
                kept.n_pushes[g] <= clock and g not in self.left
                for g in range(self.topology.n_groups)
            ):
                return
            del kept.waiting[clock]
            n = sum(samples for samples, _ in found.values())
            self.staleness[0] += len(found)
            if not n:
                continue
            total = np.zeros_like(kept.w)
            for group in sorted(found):
                samples, gradient = found[group]
                total += (samples / n) * gradient
            self._update(kept, total, 1.0)

    def _update(self, kept: _Kept, gradient: Array, scale: float) -> None:
        rate = self.optimizer.rate(kept.n_updates) * scale
        kept.n_updates += 1
        if kept.update is None or kept.update.w is not kept.w:
            kept.update = Update(self.optimizer, kept.w, kept.slots, kept.piece.decays)
        kept.update(np.ascontiguousarray(gradient), rate, kept.n_updates)

    # pulls

    def _want(self, group: int, task: int, wanted: PullParameters) -> None:
        pushed = max((kept.n_pushes[group] for kept in self.kept.values()), default=0)
        if task or group in self._pulls:
            what = "task 0 pulls for its group" if task else "its last pull waits still"
            raise self._wrong(group, task, f"pull {wanted.clock}, but {what}")
        if (task in self._leavers.get(group, ())) != wanted.final or (wanted.final and group):
            when = "of the end" if wanted.final else "after it left"
            raise self._wrong(group, task, f"pull {wanted.clock} {when}, which is not its turn")
        if wanted.clock < pushed:
            raise self._wrong(group, task, f"got pull {wanted.clock}, expected pull {pushed}")
        self._pulls[group] = wanted

    def _answers(self) -> list[Answer]:
        """To every pull that need not wait any longer: to all tasks of the group, one version."""
        found: list[Answer] = []
        for group, wanted in list(self._pulls.items()):
            if self._owing(group, wanted):
                continue
            del self._pulls[group]
            for kept in self.kept.values():
                kept.pulled[group] = kept.n_updates
            for bundle in self._answered:
                if bundle.rank // self.topology.n_tasks == group:
                    indices = tuple(piece.index for piece in bundle.pieces)
                    meta = ParameterData(pieces=indices, clock=wanted.clock, part=bundle.part)
                    found.append((bundle.rank, meta, tuple(self.kept[k].w for k in indices)))
        return found

    def _owing(self, group: int, wanted: PullParameters) -> set[int]:
        """The ranks of the tasks that must push or leave before a pull is answered."""
        t = self.topology
        if len(self.kept) < len(self.mine):  # nobody has said yet what they are
            return {t.rank(0, task) for task in range(t.n_tasks)}
        others = [g for g in range(t.n_groups) if g not in self.left]
        if wanted.final:
            return {t.rank(g, task) for g in others for task in range(t.n_tasks)}
        # Its other tasks may still be sending; and an answer to who does not read would be stuck.
        least = {group: wanted.clock}
        if group and wanted.clock == 0 and 0 in others:
            least[0] = self.policy.warm_start
        if self.policy.max_staleness is not None:
            for g in others:
                least[g] = max(least.get(g, 0), wanted.clock - self.policy.max_staleness)
        return {
            t.rank(g, kept.piece.owner)
            for kept in self.kept.values()
            for g, n in least.items()
            if kept.n_pushes[g] < n
        }

    def waiting(self) -> list[tuple[int, str]]:
        """The ranks of tasks whose pulls are not answered yet, each with what it waits for."""
        t = self.topology
        found = []
        for group, wanted in self._pulls.items():
            ranks = " ".join(map(str, sorted(self._owing(group, wanted))))
            found += [(t.rank(group, task), ranks) for task in range(t.n_tasks)]
        return found

    # epochs

    def _verdict(self, group: int, epoch: int, stop: bool) -> bool:
        """Whether a group ends after an epoch: group 0 decides, all tasks of a group hear alike."""
        if group == 0:
            if stop:
                self._stop_after = epoch
            return stop
        key = (group, epoch)
        if key not in self._verdicts:
            # A group that wants to stop is to leave: all of its tasks hear the same, although
            # some of them may not have heard of it yet.
            self._verdicts[key] = stop or self._stop_after is not None
        return self._verdicts[key]
