"""Parameter servers with groups as small machines beside them: laws that hold in any order."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.parameter_server.pieces import ParameterPiece, bundles
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.updates import Policy
from horn.strategies import Topology
from horn.wire.messages import LeaveServers, ParameterData, PullParameters, PushGradients

PLAIN = horn.SGD(1.0)  # what is pushed is taken away


@st.composite
def dealings(draw: Any, n_tasks: int, n_servers: int) -> tuple[ParameterPiece, ...]:
    """Pieces of any length, with any owner, at any server."""
    everybody = tuple(range(n_tasks))
    found = []
    for index in range(draw(st.integers(1, 6))):
        owner = draw(st.integers(0, n_tasks - 1))
        holders = draw(st.sampled_from([(owner,), everybody]))
        length, server = draw(st.integers(1, 4)), draw(st.integers(0, n_servers - 1))
        found.append(
            ParameterPiece(index, f"a{index}", 0, length, owner, holders, server, index % 2 == 0)
        )
    return tuple(found)


class Run:
    """Servers and the tasks of groups. Each pair has a queue each way; ``rng`` says which moves.

    n_batches : of each group, which leaves then. gradient(group, clock, piece) : what is pushed.
    """

    def __init__(
        self,
        topology: Topology,
        pieces: tuple[ParameterPiece, ...],
        policy: Policy,
        n_batches: list[int],
        gradient: Any,
        *,
        optimizer: horn.Optimizer = PLAIN,
        pull_every: int = 1,
        samples: Any = lambda group, clock: 1,
    ) -> None:
        self.topology, self.pieces, self.policy = topology, pieces, policy
        self.n_batches, self.gradient, self.samples = n_batches, gradient, samples
        self.pull_every = pull_every
        self.servers = [
            ParameterServer(s, pieces, optimizer, topology, policy, "float64")
            for s in range(topology.n_servers)
        ]
        self.bundles = [b for b in bundles(pieces, topology, 8) if b.is_push]
        ranks, servers = range(topology.n_workers), range(topology.n_servers)
        self.to = {(r, s): deque[Any]() for r in ranks for s in servers}
        self.back = {(s, r): deque[Any]() for s in servers for r in ranks}
        self.awaited: dict[int, set[int]] = {r: set() for r in ranks}  # by rank: pieces
        self.clock = dict.fromkeys(ranks, 0)
        self.n_pulls = dict.fromkeys(ranks, 0)
        self.has = {r: {} for r in ranks}  # by rank: pieces as they came last
        self.delivered = [Counter[int]() for _ in servers]  # by server: pushes of each rank
        self.gone = [set() for _ in servers]  # by server: ranks that have left
        self.tasks = {r: self._task(*divmod(r, topology.n_tasks)) for r in ranks}

    def _task(self, group: int, task: int) -> Iterator[None]:
        """One task's life; it yields where it may wait."""
        rank = self.topology.rank(group, task)
        everywhere = range(self.topology.n_servers)
        mine = [b for b in self.bundles if b.rank == rank]
        if group == 0:
            for bundle in mine:
                meta = ParameterData(pieces=tuple(p.index for p in bundle.pieces), part=bundle.part)
                start = np.concatenate([np.arange(float(len(p))) for p in bundle.pieces])
                self.to[rank, bundle.server].append((meta, start))
        yield
        for batch in range(self.n_batches[group]):
            if batch % self.pull_every == 0:
                yield from self._pull(rank, task, False)
                self.n_pulls[rank] += 1
                yield  # a batch: nobody is through before all have begun
            for bundle in mine:
                clock = self.clock[rank]
                said = PushGradients(
                    pieces=tuple(p.index for p in bundle.pieces),
                    clock=clock,
                    samples=self.samples(group, clock),
                    part=bundle.part,
                )
                arrays = [self.gradient(group, clock, p) for p in bundle.pieces]
                self.to[rank, bundle.server].append((said, np.concatenate(arrays)))
            self.clock[rank] += 1
            yield
        for s in everywhere:
            self.to[rank, s].append((LeaveServers(), None))
        self.awaited[rank] = {-1 - s for s in everywhere}  # their word that they have heard it
        yield
        if group == 0:
            yield from self._pull(rank, task, True)
            for s in everywhere:
                self.to[rank, s].append((LeaveServers(is_thanks=True), None))

    def _pull(self, rank: int, task: int, final: bool) -> Iterator[None]:
        if task == 0:
            for s in range(self.topology.n_servers):
                self.to[rank, s].append((PullParameters(clock=self.clock[rank], final=final), None))
        self.awaited[rank] = {p.index for p in self.pieces if task in p.holders}
        yield

    def _may_go_on(self, rank: int) -> bool:
        first = rank // self.topology.n_tasks * self.topology.n_tasks
        peers = range(first, first + self.topology.n_tasks)
        is_behind = any(self.n_pulls[peer] < self.n_pulls[rank] for peer in peers)
        return not self.awaited[rank] and not is_behind

    def play(self, rng: random.Random) -> None:
        """To the end, which must come."""
        running = dict(self.tasks)
        while True:
            moves: list[Any] = [rank for rank in running if self._may_go_on(rank)]
            moves += [key for key, queue in self.to.items() if queue]
            answers = [(s, r) for (s, r), queue in self.back.items()
                       if queue and self.awaited[r].issuperset(queue[0][0].pieces)]  # fmt: skip
            if not moves and not answers:
                break
            move = rng.choice([*moves, *((s, r, "back") for s, r in answers)])
            if isinstance(move, int):
                if next(running[move], "over") == "over":
                    del running[move]
            elif len(move) == 3:
                self._answer(*move[:2])
            else:
                self._deliver(*move)
        assert not running, f"tasks {sorted(running)} wait for ever: {self.awaited}"
        assert all(server.is_done and not server.unfinished for server in self.servers)

    def _deliver(self, rank: int, s: int) -> None:
        meta, block = self.to[rank, s].popleft()
        if isinstance(meta, PushGradients):
            self.delivered[s][rank] = meta.clock + 1
        if meta == LeaveServers():
            self.gone[s].add(rank)
        answers = self.servers[s].on(rank, meta, block)
        assert all(owing for _, owing, _ in self.servers[s].waiting())  # else it is answered
        for to, found, answer in answers:
            if isinstance(found, LeaveServers):
                assert to == rank and meta == LeaveServers() and not answer
                found = ParameterData(pieces=(-1 - s,), clock=self.clock[rank])
            else:
                assert isinstance(found, ParameterData)
                self._check_pull(s, to, found)
            self.back[s, to].append((found, answer))

    def _answer(self, s: int, rank: int) -> None:
        meta, arrays = self.back[s, rank].popleft()
        assert meta.clock == self.clock[rank] and self.awaited[rank].issuperset(meta.pieces)
        self.awaited[rank].difference_update(meta.pieces)
        self.has[rank].update(zip(meta.pieces, arrays, strict=False))  # a word has no arrays

    def _check_pull(self, s: int, to: int, meta: ParameterData) -> None:
        """Whether the server may answer it now, as the test has counted."""
        t = self.topology
        asking = to // t.n_tasks
        is_over = self.clock[to] == self.n_batches[asking] and to in self.gone[s]
        for rank in range(t.n_workers):
            group, task = divmod(rank, t.n_tasks)
            if not any((p.owner, p.server) == (task, s) for p in self.pieces):
                continue
            if group == asking:
                assert self.delivered[s][rank] == meta.clock
            elif rank not in self.gone[s]:
                assert not is_over, "the end came before all had left"
                bound = self.policy.max_staleness
                assert bound is None or self.delivered[s][rank] >= meta.clock - bound

    def whole(self) -> dict[int, np.ndarray]:
        """All pieces as servers have them."""
        return {i: kept.w for server in self.servers for i, kept in server.kept.items()}


def integers(group: int, clock: int, piece: ParameterPiece) -> np.ndarray:
    """What a group pushes, different each time, and exact in float64."""
    rng = np.random.default_rng([group, clock, piece.index])
    return rng.integers(-(2**40), 2**40, len(piece)).astype("float64")


def sums(run: Run) -> dict[int, np.ndarray]:
    """What integer pushes must leave."""
    found = {}
    for piece in run.pieces:
        found[piece.index] = np.arange(float(len(piece)))
        for group, n in enumerate(run.n_batches):
            for clock in range(n):
                found[piece.index] -= integers(group, clock, piece)
    return found


@st.composite
def runs(draw: Any, policy: Policy | None = None, **more: Any) -> Run:
    topology = Topology(*(draw(st.integers(1, n)) for n in (4, 3, 3)))
    if policy is None:
        policy = Policy(draw(st.sampled_from([None, 1, 2])))
        if policy.max_staleness is None:
            policy = Policy(warm_start=draw(st.integers(0, 3)))
    pieces = draw(dealings(topology.n_tasks, topology.n_servers))
    n_batches = draw(
        st.lists(st.integers(0, 7), min_size=topology.n_groups, max_size=topology.n_groups)
    )
    more.setdefault("pull_every", draw(st.integers(1, 3)))
    gradient = more.pop("gradient", integers)
    return Run(topology, pieces, policy, n_batches, gradient, **more)


seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(runs(), seeds)
def test_any_order_of_pushes_leaves_the_exact_sums(run, seed):
    run.play(random.Random(seed))
    wanted = sums(run)
    assert run.whole().keys() == wanted.keys()
    for index, array in run.whole().items():
        np.testing.assert_array_equal(array, wanted[index])
    for rank in range(run.topology.n_tasks):  # group 0 has the end
        for index, array in run.has[rank].items():
            np.testing.assert_array_equal(array, wanted[index])


@settings(deadline=None)
@given(runs(), seeds)
def test_no_group_gets_farther_ahead_than_the_bound(run, seed):
    run.play(random.Random(seed))  # which checks each pull
    bound, n_groups = run.policy.max_staleness, run.topology.n_groups
    for server in run.servers:
        pushed = sum(run.n_batches) * len(server.mine)
        assert sum(server.staleness.values()) == pushed
        if bound is not None and run.pull_every == 1:
            # Another group had pushed c - s at least when this one pulled at c; when it pushes, the
            # other has pushed c + s + 1 at most.
            assert max(server.staleness, default=0) <= (n_groups - 1) * (2 * bound + 1)


def real(group: int, clock: int, piece: ParameterPiece) -> np.ndarray:
    """Numbers whose sum depends on the order."""
    rng = np.random.default_rng([group, clock, piece.index])
    return rng.standard_normal(len(piece)) * 10.0 ** rng.integers(-8, 8, len(piece))


def some_samples(group: int, clock: int) -> int:
    """Uneven, and sometimes none."""
    return (3 * group + clock) % 4


@settings(deadline=None)
@given(st.data(), st.sampled_from([horn.SGD(0.1, momentum=0.9), horn.Adam(0.1), horn.Adagrad(0.1)]))
def test_synchronous_bits_do_not_depend_on_the_order(data, optimizer):
    run = data.draw(runs(Policy(0), gradient=real, samples=some_samples, optimizer=optimizer))
    more = {"optimizer": optimizer, "samples": some_samples, "pull_every": run.pull_every}
    again = Run(run.topology, run.pieces, run.policy, run.n_batches, real, **more)
    run.play(random.Random(data.draw(seeds)))
    again.play(random.Random(data.draw(seeds)))
    first, second = run.whole(), again.whole()
    assert {k: a.tobytes() for k, a in first.items()} == {k: a.tobytes() for k, a in second.items()}
    for server, other in zip(run.servers, again.servers, strict=True):
        assert server.staleness == other.staleness and set(server.staleness) <= {0}


@settings(deadline=None)
@given(runs(Policy(0), samples=some_samples), seeds)
def test_synchronous_updates_are_means_over_the_samples_of_all_groups(run, seed):
    run.play(random.Random(seed))
    for piece in run.pieces:
        wanted = np.arange(float(len(piece)))
        for clock in range(max(run.n_batches)):
            there = [g for g, n in enumerate(run.n_batches) if clock < n]
            n = sum(some_samples(g, clock) for g in there)
            for g in there if n else ():
                wanted -= some_samples(g, clock) / n * integers(g, clock, piece)
        np.testing.assert_allclose(run.whole()[piece.index], wanted, rtol=1e-12, atol=1e-2)
