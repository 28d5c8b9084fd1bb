"""Servers that last, as pure state machines: groups and servers go and come back in every order.

What is pushed by group g at clock c is a digit of its own in base 4 (``mark``), so that what a
piece has in the end says of each push how often it was applied.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.errors import ProtocolError
from horn.parameter_server.journal import Journal
from horn.parameter_server.pieces import ParameterPiece, bundles
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.server_state import recover, restore, state
from horn.parameter_server.unacknowledged import Unacknowledged
from horn.parameter_server.updates import Policy
from horn.strategies import Pull, Push, Topology
from horn.wire.frames import WireMessage
from horn.wire.messages import (
    Acknowledgement,
    EndOfEpoch,
    JoinServers,
    LeaveServers,
    ParameterData,
    PullParameters,
    PushAcknowledged,
    PushGradients,
    ServersReady,
    Verdict,
)
from tests.strategies.test_server_orders import dealings
from tests.support.calls import calls_of

PLAIN = horn.SGD(1.0)  # what is pushed is taken away
N = 3  # batches of each group
MOST_GROUPS = 4


def mark(group: int, clock: int) -> float:
    return 4.0 ** (group * N + clock)


def digits(value: float) -> list[list[int]]:
    """By group and clock: how often it was applied."""
    rest, found = round(-value), []
    for _ in range(MOST_GROUPS * N):
        found.append(rest % 4)
        rest //= 4
    assert rest == 0
    return [found[g * N : (g + 1) * N] for g in range(MOST_GROUPS)]


def batches(clock: int) -> int:
    """How many a group has computed after so many pushes: some are of fewer."""
    return 3 * clock - clock // 2


class World:
    """Servers, groups, and links between them that may break; ``rng`` says what happens next."""

    def __init__(
        self,
        topology: Topology,
        pieces: tuple[ParameterPiece, ...],
        policy: Policy,
        rng: random.Random,
        *,
        n_faults: int,
        n_later: int = 0,
    ) -> None:
        self.first, self.pieces, self.policy, self.rng = topology, pieces, policy, rng
        self.most = Topology(topology.n_groups + n_later, topology.n_tasks, topology.n_servers)
        self.cut = bundles(pieces, self.most, 8)
        self.servers = [self._server(s) for s in range(topology.n_servers)]
        self.saved: list[Any] = [None] * topology.n_servers
        self.journals: list[list[Any]] = [[] for _ in self.servers]
        self.to: dict[tuple[int, int], deque[Any]] = {}
        self.back: dict[tuple[int, int], deque[Any]] = {}
        self.zombies: list[tuple[int, Any]] = []  # what was under way when its sender died
        self.requests: dict[int, Unacknowledged] = {}
        self.has: dict[int, dict[int, tuple[float, ...]]] = {}
        self.seen: dict[tuple[int, int], set[tuple[float, ...]]] = {}  # by clock and piece
        self.lives: dict[int, int] = {}
        self.running: dict[int, Iterator[Any]] = {}
        self.waits: dict[int, Any] = {}
        self.finished: set[int] = set()
        self.acked: set[tuple[int, int, int]] = set()  # piece, group, clock
        self.n_faults, self.n_sent_stale = n_faults, 0
        self.later = list(range(topology.n_groups, self.most.n_groups))
        for group in range(topology.n_groups):
            self.start(group)

    def _server(self, number: int) -> ParameterServer:
        return ParameterServer(
            number, self.pieces, PLAIN, self.first, self.policy, "float64", is_durable=True
        )

    # groups

    def start(self, group: int) -> None:
        self.lives[group] = self.lives.get(group, 0) + 1
        for task in range(self.most.n_tasks):
            rank = self.most.rank(group, task)
            self.requests[rank] = Unacknowledged(self.most, rank, self.cut)
            for server in range(self.most.n_servers):
                self.to[rank, server], self.back[server, rank] = deque(), deque()
            self.running[rank] = self.task(rank)
            self.waits[rank] = None

    def say(self, rank: int, server: int, meta: Any, values: Any = ()) -> None:
        life = self.lives[rank // self.most.n_tasks]
        self.to[rank, server].append((rank, meta, values[0] if values else None, life))

    def task(self, rank: int) -> Iterator[Any]:
        """One life of a task: yields what it waits for, as a function."""
        own = self.requests[rank]
        group = rank // self.most.n_tasks

        def blocks(bundle: Any, value: float) -> list[np.ndarray]:
            return [np.full(len(bundle), value)]

        for server, meta in own.join():
            self.say(rank, server, meta)
        yield lambda: len(own.welcomes) == self.most.n_servers
        clock = own.clock
        assert own.batches == (batches(clock) if clock else None)
        if group == 0:
            for bundle in own.pushes:
                block = blocks(bundle, 0.0)
                self.say(rank, bundle.server, own.begin(bundle, block), block)
        while clock < N:
            for server, meta in own.pull(Pull(clock)):
                self.say(rank, server, meta)
            yield lambda: not own.awaited
            number = own._n_pulls  # a batch: nobody is through before all have begun
            yield lambda number=number: all(
                (peer._n_pulls, not peer.awaited) >= (number, True) for peer in self.peers(group)
            )
            self.agree(group)
            for index, values in self.has.get(rank, {}).items():
                self.seen.setdefault((clock, index), set()).add(values)
            for bundle in own.pushes:
                yield lambda bundle=bundle: not own.is_full(bundle)
                push = Push(clock, 1, {}, batches=batches(clock + 1))
                block = blocks(bundle, mark(group, clock))
                self.say(rank, bundle.server, own.push(bundle, push, block), block)
            clock += 1
        if group == 0:
            server, meta = own.ask(1, True)
            self.say(rank, server, meta)
            yield lambda: 1 in own.verdicts
        for server, meta in own.leave():
            self.say(rank, server, meta)
        yield lambda: own.is_heard
        if group == 0:
            for server, meta in own.pull(Pull(clock, final=True)):
                self.say(rank, server, meta)
            yield lambda: not own.awaited
            for server, meta in own.thank():
                self.say(rank, server, meta)
            yield lambda: own.is_heard

    def peers(self, group: int) -> list[Unacknowledged]:
        return [self.requests[self.most.rank(group, t)] for t in range(self.most.n_tasks)]

    def agree(self, group: int) -> None:
        """Tasks of a group that have made the same pull have the same."""
        ranks = [self.most.rank(group, task) for task in range(self.most.n_tasks)]
        pulls = {self.requests[r]._n_pulls for r in ranks}
        if len(pulls) == 1 and not any(self.requests[r].awaited for r in ranks):
            for piece in self.pieces:
                assert len({self.has[r][piece.index] for r in ranks if r % self.most.n_tasks in
                            piece.holders}) == 1  # fmt: skip

    # faults

    def break_link(self, rank: int, server: int) -> None:
        """What is under way is lost; on the next link the task says it again."""
        self.to[rank, server].clear()
        self.back[server, rank].clear()
        for meta, values in self.requests[rank].again(server):
            self.say(rank, server, meta, values)

    def kill_server(self, number: int) -> None:
        """It comes back with its last state and its journal."""
        server = self._server(number)
        if self.saved[number] is not None:
            restore(server, *self.saved[number])
        for said in self.journals[number]:
            server.on(*said)
        assert same(server, self.servers[number])
        self.servers[number] = server
        for rank in self.requests:
            self.break_link(rank, number)

    def kill_group(self, group: int) -> None:
        for task in range(self.most.n_tasks):
            rank = self.most.rank(group, task)
            for server in range(self.most.n_servers):
                self.zombies += [(server, said) for said in self.to[rank, server]]
            self.running.pop(rank, None)
            self.finished.discard(rank)
        self.start(group)

    def save(self, number: int) -> None:
        facts, arrays = state(self.servers[number])
        self.saved[number] = (facts, {name: array.copy() for name, array in arrays.items()})
        self.journals[number].clear()

    # what happens

    def deliver(self, number: int, said: Any) -> None:
        server = self.servers[number]
        before = server.n_changes
        answers = server.on(*said)
        if server.n_changes > before:
            src, meta, block, life = said
            self.journals[number].append((src, meta, None if block is None else block.copy(), life))
        for rank, meta, values in answers:
            block = np.concatenate(values) if values else None
            self.back[number, rank].append((meta, block))

    def hear(self, number: int, rank: int) -> None:
        meta, block = self.back[number, rank].popleft()
        own = self.requests[rank]
        if isinstance(meta, PushAcknowledged) and meta.clock is not None:
            bundle = self.cut[meta.part]
            group = rank // self.most.n_tasks
            self.acked |= {(piece.index, group, meta.clock) for piece in bundle.pieces}
        bundle = own.heard(number, meta, block)
        if bundle is not None:
            for piece, values in zip(bundle.pieces, bundle.cut(block), strict=True):
                self.has.setdefault(rank, {})[piece.index] = tuple(values)

    def step(self, rank: int) -> None:
        """A task goes on, if it need not wait."""
        if self.waits[rank] is not None and not self.waits[rank]():
            return
        try:
            self.waits[rank] = next(self.running[rank])
        except StopIteration:
            del self.running[rank]
            self.finished.add(rank)

    def play(self) -> None:
        """To the end, which must come: faults stop after ``n_faults``."""
        rng, n_rounds = self.rng, 0
        while self.running or any(self.to.values()) or self.later:
            n_rounds += 1
            assert n_rounds < 5_000, {rank: self.requests[rank]._pending for rank in self.running}
            if self.n_faults and rng.random() < 0.15:
                self.n_faults -= 1
                self.fault()
            if self.later and (rng.random() < 0.1 or not self.running):
                self.start(self.later.pop(0))
            for rank, number in [key for key, queue in self.to.items() if queue]:
                if rng.random() < 0.5 and self.to[rank, number]:
                    self.deliver(number, self.to[rank, number].popleft())
            for number, rank in [key for key, queue in self.back.items() if queue]:
                if rng.random() < 0.5 and self.back[number, rank]:
                    self.hear(number, rank)
            if self.zombies and rng.random() < 0.3:
                number, said = self.zombies.pop(rng.randrange(len(self.zombies)))
                # Links know who is over: a hello of the next life came before.
                life = self.lives[said[0] // self.most.n_tasks]
                self.servers[number].fence(said[0] // self.most.n_tasks, life)
                before, stale = self.servers[number].n_changes, self.servers[number].n_stale
                assert self.servers[number].on(*said) == []
                assert self.servers[number].n_changes == before
                assert self.servers[number].n_stale == stale + 1
            for rank in list(self.running):
                if rng.random() < 0.5:
                    self.step(rank)

    def fault(self) -> None:
        rng = self.rng
        match rng.randrange(4):
            case 0:
                self.kill_server(rng.randrange(self.most.n_servers))
            case 1:
                alive = {rank // self.most.n_tasks for rank in self.running}
                if alive:  # a group that has finished does not die
                    self.kill_group(rng.choice(sorted(alive)))
            case 2:
                self.save(rng.randrange(self.most.n_servers))
            case 3:
                self.break_link(rng.choice(sorted(self.requests)), rng.randrange(len(self.servers)))


def has(server: ParameterServer) -> tuple[dict[str, Any], dict[str, bytes]]:
    """All that a server knows. What groups were given is told by its values: after a restart,
    groups that get a version once more share another copy of it than those of before.
    """
    facts, arrays = state(server)
    leave = {"fences", "n_repeated"}  # fences come from ZooKeeper again; repeats are no changes
    facts = {name: fact for name, fact in facts.items() if name not in leave}
    held = {name: array.tobytes() for name, array in arrays.items() if name[:6] != "given/"}
    for group, some in facts.pop("given"):
        held |= {f"given/{group}/{i}": arrays[f"given/{g}/{i}"].tobytes() for i, g in some}
    return facts, held


def same(a: ParameterServer, b: ParameterServer) -> bool:
    assert has(a) == has(b)
    return True


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([None, 0, 1, 2]),
    st.integers(0, 12),
    st.integers(0, 2**32 - 1),
)
def test_every_push_counts_once_whoever_dies(
    data, n_groups, n_tasks, n_servers, bound, n_faults, seed
):
    topology = Topology(n_groups, n_tasks, n_servers)
    pieces = data.draw(dealings(n_tasks, n_servers))
    world = World(topology, pieces, Policy(bound), random.Random(seed), n_faults=n_faults)
    world.play()
    assert all(server.is_done for server in world.servers)
    if bound == 0:
        return  # sums are means there: see below
    for piece in pieces:
        counts = digits(world.servers[piece.server].kept[piece.index].w[0])
        assert counts[:n_groups] == [[1] * N] * n_groups
    for rank in range(n_tasks):  # group 0 has the end
        for piece in pieces:
            if rank in piece.holders:
                kept = world.servers[piece.server].kept[piece.index]
                assert world.has[rank][piece.index] == tuple(kept.w)


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([None, 1]),
    st.integers(0, 8),
    st.integers(0, 2**32 - 1),
)
def test_groups_that_come_later_push_each_clock_once_from_where_the_others_are(
    data, n_groups, n_tasks, n_servers, bound, n_faults, seed
):
    topology = Topology(n_groups, n_tasks, n_servers)
    pieces = data.draw(dealings(n_tasks, n_servers))
    play_with_a_later_group(topology, pieces, Policy(bound), seed, n_faults)


def play_with_a_later_group(
    topology: Topology, pieces: tuple[ParameterPiece, ...], policy: Policy, seed: int, n_faults: int
) -> None:
    world = World(topology, pieces, policy, random.Random(seed), n_faults=n_faults, n_later=1)
    world.play()
    n_groups = topology.n_groups
    for piece in pieces:
        kept = world.servers[piece.server].kept[piece.index]
        counts = digits(kept.w[0])
        assert counts[:n_groups] == [[1] * N] * n_groups
        later = counts[n_groups]
        assert set(later) <= {0, 1} and later[-1:] in ([1], [0])
        missing = [c for c in range(N) if not later[c]]
        assert not any((piece.index, n_groups, c) in world.acked for c in missing)


@pytest.mark.parametrize("seed", [1, 88, 319])
def test_a_later_group_that_comes_back_within_its_first_push_has_the_batches_of_its_clock(seed):
    """They were those of the pushes of another group, and forgotten with the welcome."""
    pieces = (
        ParameterPiece(0, "a0", 0, 1, 1, (1,), 0, True),
        ParameterPiece(1, "a1", 0, 1, 0, (0, 1), 0, True),
    )
    play_with_a_later_group(Topology(1, 2, 1), pieces, FREE, seed, n_faults=5)


def synchronous(seed: int, n_faults: int) -> World:
    topology = Topology(3, 2, 2)
    everybody = (0, 1)
    pieces = tuple(
        ParameterPiece(k, f"a{k}", 0, 3, k % 2, everybody, k // 2, False) for k in range(4)
    )
    world = World(topology, pieces, Policy(0), random.Random(seed), n_faults=n_faults)
    world.play()
    return world


def sums(world: World) -> list[bytes]:
    return [kept.w.tobytes() for server in world.servers for kept in server.kept.values()]


def test_synchronous_sums_are_the_same_bits_whoever_dies():
    calm = sums(synchronous(0, 0))
    assert all(sums(synchronous(seed, 10)) == calm for seed in range(1, 25))


def test_synchronous_groups_compute_each_clock_from_the_same_values_whoever_dies():
    """Also a group that comes back in the middle of a push, some pieces of which were applied."""
    calm = synchronous(0, 0).seen
    assert len(calm) == N * 4 and all(len(values) == 1 for values in calm.values())
    assert all(synchronous(seed, 10).seen == calm for seed in range(1, 25))


# one thing at a time

PIECES = (
    ParameterPiece(0, "w", 0, 2, 0, (0,), 0, False),
    ParameterPiece(1, "v", 0, 2, 0, (0, 1), 0, False),
)


TWO, FREE = Topology(2, 1, 1), Policy()


class LaterGroup:
    """Group 1 of two tasks, which comes later, at two servers; it says what it is told to."""

    most, pieces = Topology(2, 2, 2), (
        ParameterPiece(0, "a", 0, 1, 0, (0, 1), 0, False),
        ParameterPiece(1, "b", 0, 1, 1, (0, 1), 0, False),
        ParameterPiece(2, "c", 0, 1, 0, (0, 1), 1, False),
    )  # fmt: skip

    def __init__(self) -> None:
        first = Topology(1, 2, 2)
        self.servers = [
            ParameterServer(s, self.pieces, PLAIN, first, FREE, "float64", is_durable=True)
            for s in range(2)
        ]
        self.cut = bundles(self.pieces, self.most, 8)
        self.join(0, 1)
        for bundle in self.cut:
            if bundle.rank < 2 and bundle.is_push:
                indices = tuple(p.index for p in bundle.pieces)
                meta = ParameterData(pieces=indices, part=bundle.part)
                self.servers[bundle.server].on(bundle.rank, meta, np.zeros(len(bundle)), 1)

    def join(self, group: int, life: int) -> list[Unacknowledged]:
        """The tasks of an attempt, welcomed."""
        ranks = [self.most.rank(group, task) for task in range(2)]
        own = {rank: Unacknowledged(self.most, rank, self.cut) for rank in ranks}
        for rank, each in own.items():
            for number, meta in each.join():
                for to, answer, _ in self.servers[number].on(rank, meta, None, life):
                    own[to].heard(number, answer, None)
        return list(own.values())

    def push(self, piece: int, group: int, clock: int) -> None:
        [bundle] = [
            b for b in self.cut
            if b.is_push and b.rank // 2 == group and b.pieces[0].index == piece
        ]  # fmt: skip
        meta = PushGradients(
            pieces=(piece,), clock=clock, samples=1, part=bundle.part, batches=batches(clock + 1)
        )
        self.servers[bundle.server].on(bundle.rank, meta, np.ones(1), 1)

    def pull(self, task: Unacknowledged, clock: int) -> None:
        for number, meta in task.pull(Pull(clock)):
            self.servers[number].on(task.rank, meta, None, 1)


def test_a_server_knows_the_batches_of_a_clock_that_another_server_gave_a_later_group():
    world = LaterGroup()
    world.push(2, group=0, clock=0)  # those to server 0 are on their way
    tasks = world.join(1, 1)
    assert [(own.clock, own.batches) for own in tasks] == [(1, batches(1))] * 2
    assert {own.welcomes[0].clock for own in tasks} == {0}
    for own in tasks:
        world.pull(own, 1)
    world.push(0, group=1, clock=1)
    world.push(2, group=1, clock=1)  # all that server 1 has, so that it is at clock 2
    tasks = world.join(1, 2)
    assert [(own.clock, own.batches) for own in tasks] == [(1, batches(1))] * 2


def test_a_later_group_may_push_before_it_pulls():
    """What was on its way when it pulled first was taken for a repetition."""
    world = LaterGroup()
    first, _ = world.join(1, 1)
    world.push(0, group=1, clock=0)
    world.pull(first, 1)
    world.push(1, group=1, clock=0)
    assert [kept.w.tolist() for kept in world.servers[0].kept.values()] == [[-1.0], [-1.0]]


def a_server(topology: Topology = TWO, policy: Policy = FREE) -> ParameterServer:
    pieces = PIECES if topology.n_tasks > 1 else PIECES[:1]
    server = ParameterServer(0, pieces, PLAIN, topology, policy, "float64", is_durable=True)
    for group in range(topology.n_groups):
        for task in range(topology.n_tasks):
            server.on(topology.rank(group, task), JoinServers(), None, 5)
    for bundle in bundles(pieces, topology, 8):
        if bundle.rank == 0 and bundle.is_push:
            meta = ParameterData(pieces=tuple(p.index for p in bundle.pieces), part=bundle.part)
            server.on(0, meta, np.ones(len(bundle)), 5)
    return server


def gradients(group: int, clock: int, **more: Any) -> PushGradients:
    [part] = [b.part for b in bundles(PIECES[:1], Topology(4, 1, 1), 8)
              if b.rank == group and b.is_push]  # fmt: skip
    return PushGradients(**{"pieces": (0,), "clock": clock, "samples": 1, "part": part, **more})


def test_a_push_that_comes_again_is_acknowledged_and_not_applied():
    server = a_server()
    for _ in range(3):
        assert server.on(1, gradients(1, 0), np.ones(2), 5) == [
            (1, PushAcknowledged(part=2, clock=0), ())
        ]
    assert server.kept[0].w.tolist() == [0.0, 0.0]
    assert (server.n_repeated, server.n_pushes) == (2, 1)


def test_a_push_that_leaves_one_out_is_refused():
    server = a_server()
    with pytest.raises(
        ProtocolError, match="group 1, task 0, piece 0: got push 1, expected push 0"
    ):
        server.on(1, gradients(1, 1), np.ones(2), 5)


def test_what_has_an_attempt_that_is_over_never_counts():
    server = a_server()
    server.fence(1, 6)
    for meta in (
        gradients(1, 0),
        PullParameters(clock=0, turn=1),
        LeaveServers(),
        JoinServers(),
        EndOfEpoch(epoch=1),
    ):
        assert server.on(1, meta, np.ones(2), 5) == []
    assert (server.n_stale, server.kept[0].w.tolist()) == (5, [1.0, 1.0])
    assert server.on(0, gradients(0, 0), np.ones(2), 5)  # the other group is not concerned


def test_who_has_not_joined_in_its_attempt_is_refused():
    with pytest.raises(
        ProtocolError, match="group 1, task 0: LeaveServers of attempt 6, in which it has not"
    ):
        a_server().on(1, LeaveServers(), None, 6)


def test_all_tasks_of_a_group_go_on_at_one_clock():
    topology = Topology(1, 2, 1)
    server = a_server(topology)
    by_part = {b.part: b for b in bundles(PIECES, topology, 8) if b.is_push}
    for clock in range(2):
        for part, bundle in by_part.items():
            pieces = tuple(p.index for p in bundle.pieces)
            if clock == 0 or part == min(by_part):  # half a push
                meta = PushGradients(pieces=pieces, clock=clock, samples=1, part=part)
                server.on(0, meta, np.ones(len(bundle)), 5)
    assert server.on(0, JoinServers(), None, 6) == []
    assert server.on(1, JoinServers(), None, 6) == [
        (0, ServersReady(clock=1), ()), (1, ServersReady(clock=1), ())
    ]  # fmt: skip
    assert server.on(0, JoinServers(), None, 6) == [(0, ServersReady(clock=1), ())]  # said again


def test_a_new_group_begins_where_the_slowest_is_and_counts_until_it_leaves():
    server = a_server(policy=Policy(1))
    for clock in range(4):
        server.on(0, gradients(0, clock), np.ones(2), 5)
    for clock in range(3):
        server.on(1, gradients(1, clock), np.ones(2), 5)
    [(rank, welcome, _)] = server.on(2, JoinServers(), None, 6)
    assert (rank, welcome) == (2, ServersReady(clock=3, is_new=True))
    server.on(2, PullParameters(clock=3, turn=1), None, 6)
    for clock in range(3, 6):
        server.on(1, gradients(1, clock), np.ones(2), 5)
    server.on(0, gradients(0, 4), np.ones(2), 5)
    assert (
        server.on(0, PullParameters(clock=5, turn=1), None, 5) == []
    )  # it may be ahead by one push
    [_, answer] = server.on(2, gradients(2, 3), np.ones(2), 6)
    assert (answer[0], answer[1].clock) == (0, 5)
    server.on(2, LeaveServers(), None, 6)
    server.on(0, gradients(0, 5), np.ones(2), 5)
    assert (
        len(server.on(0, PullParameters(clock=6, turn=2), None, 5)) == 1
    )  # not waiting for who left
    assert not server.is_done and server.topology.n_groups == 3


def test_the_end_needs_who_is_there_only():
    server = a_server()
    server.on(3, JoinServers(), None, 6)  # nobody has heard of group 2
    server.on(3, LeaveServers(), None, 6)
    server.on(1, LeaveServers(), None, 5)
    server.on(0, LeaveServers(), None, 5)
    assert not server.is_done
    assert server.on(0, LeaveServers(is_thanks=True), None, 5)[0] == (
        0,
        LeaveServers(is_thanks=True),
        (),
    )
    assert server.is_done
    assert server.on(0, LeaveServers(is_thanks=True), None, 5) == [
        (0, LeaveServers(is_thanks=True), ())
    ]
    assert server.on(1, LeaveServers(), None, 5) == [(1, LeaveServers(), ())]


def test_a_group_that_comes_back_after_the_end_has_the_end_once_more():
    server = a_server(Topology(1, 1, 1))
    server.on(0, LeaveServers(), None, 5)
    server.on(0, LeaveServers(is_thanks=True), None, 5)
    assert server.is_done
    server.on(0, JoinServers(), None, 6)
    assert not server.is_done
    server.on(0, LeaveServers(), None, 6)
    [answer] = server.on(0, PullParameters(clock=0, final=True, turn=1), None, 6)
    assert answer[2][0].tolist() == [1.0, 1.0]


def stops(server: ParameterServer, group: int, epoch: int, life: int, stop: bool = False) -> bool:
    [(_, verdict, _)] = server.on(group, EndOfEpoch(epoch=epoch, stop=stop), None, life)
    return verdict.stop


@pytest.mark.parametrize("has_left", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_stop_of_the_run_before_ends_no_group_of_a_run_that_is_resumed(has_left, first):
    server = a_server()
    assert stops(server, 0, 3, 5, stop=True) and stops(server, 1, 2, 5)
    if has_left:
        for group in (0, 1):
            server.on(group, LeaveServers(), None, 5)
        server.on(0, LeaveServers(is_thanks=True), None, 5)
    resumed = a_server()
    restore(resumed, *state(server))
    assert resumed.expect([0, 1], 10)  # which is written
    assert not resumed.expect([0, 1], 10)
    for group in (first, 1 - first):
        resumed.on(group, JoinServers(), None, 10)
        assert not stops(resumed, group, 2, 10) and not stops(resumed, group, 3, 10)
    assert not resumed.expect([0, 1], 10)  # as of a server that starts again
    assert stops(resumed, 0, 4, 10, stop=True) and stops(resumed, 1, 4, 10)
    assert not resumed.expect([0, 1], 10)
    assert stops(resumed, 1, 4, 10)


def test_a_stop_holds_for_a_group_0_that_starts_again_in_the_same_run():
    server = a_server()
    assert stops(server, 0, 3, 5, stop=True)
    server.on(0, JoinServers(), None, 6)  # it has forgotten the best epoch
    assert not stops(server, 0, 2, 6)  # it may be back before the end of its last epochs
    assert stops(server, 0, 3, 6) and stops(server, 1, 2, 5)


def test_all_tasks_of_a_group_agree_on_the_end_of_an_epoch_after_a_return():
    server = a_server()
    assert server.on(1, EndOfEpoch(epoch=1), None, 5) == [(1, Verdict(epoch=1, stop=False), ())]
    server.on(0, EndOfEpoch(epoch=1, stop=True), None, 5)
    server.on(1, JoinServers(), None, 6)
    assert server.on(1, EndOfEpoch(epoch=1), None, 6) == [(1, Verdict(epoch=1, stop=False), ())]
    assert server.on(1, EndOfEpoch(epoch=2), None, 6) == [(1, Verdict(epoch=2, stop=True), ())]


WRONG = {
    "bundle": (gradients(1, 0, part=0), np.ones(2), "group 1, task 0: bundle 0 is not its to send"),
    "answer": (gradients(1, 0, part=3), np.ones(2), "group 1, task 0: bundle 3 is not its to send"),
    "pieces": (gradients(1, 0, pieces=(7,)), np.ones(2), r"pieces \(7,\) in bundle 2"),
    "length": (gradients(1, 0), np.ones(3), r"bundle 2: got float64 \(3,\), expected float64"),
    "nothing": (gradients(1, 0), None, "bundle 2: got nothing, expected float64"),
    "dtype": (gradients(1, 0), np.ones(2, "f4"), r"bundle 2: got float32 \(2,\), expected float64"),
    "type": (Acknowledgement(used=1, seq=1), None, "Acknowledgement is nothing for a server"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_and_changes_nothing(name):
    server = a_server()
    meta, block, sentence = WRONG[name]
    before = server.n_changes
    with pytest.raises(ProtocolError, match=f"^server 0: .*{sentence}"):
        server.on(1, meta, block, 5)
    assert (server.n_changes, server.kept[0].w.tolist()) == (before, [1.0, 1.0])


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"server": 1}, "a state with server 1, expected 0"),
        ({"slots": ["memory"]}, "a state with slots"),
        ({"format": 1}, "a state with format 1, expected 2 to 4; resume it with the horn"),
        ({"format": 5}, "a state with format 5, expected 2 to 4; resume it with the horn"),
        ({"dtype": "<f4"}, "a state with dtype"),
        ({"kept": [[0, 1]]}, "its state lacks"),
        ({"kept": [[9, 1, [0, 0], [0, 0]]]}, "its state lacks"),
    ],
)
def test_a_state_of_another_server_is_refused(change, sentence):
    facts, arrays = state(a_server())
    with pytest.raises(ProtocolError, match=f"server 0: {sentence}"):
        restore(a_server(), {**facts, **change}, arrays)


def test_a_state_of_before_says_of_nobody_that_it_measures():
    facts, arrays = state(a_server())
    del facts["measuring"]
    server = a_server()
    restore(server, {**facts, "format": 2}, arrays)
    assert same(server, a_server())


def given_to(n_groups: int, policy: Policy = FREE) -> ParameterServer:
    """A server whose groups have pulled: one task of each has its answer, the other may ask."""
    server = a_server(Topology(n_groups, 2, 1), policy)
    for group in range(n_groups):
        assert len(server.on(2 * group, PullParameters(clock=0, turn=1), None, 5)) == 3
    return server


def test_groups_that_were_given_one_version_have_one_copy_of_it():
    server = given_to(5)
    facts, arrays = state(server)
    assert [name for name in arrays if name.startswith("given/")] == ["given/0/1"]
    other = a_server(Topology(5, 2, 1))
    restore(other, facts, arrays)
    again = state(other)
    assert again[0] == facts and sorted(again[1]) == sorted(arrays)


@pytest.mark.parametrize("is_restored", [False, True])
def test_what_a_group_was_given_stays_when_others_push(is_restored):
    server = given_to(3)
    [bundle] = [b for b in server._bundles.values() if b.is_push and b.rank == 2 and 1 in {
        piece.index for piece in b.pieces}]  # fmt: skip
    server.on(2, PushGradients(
        pieces=(1,), clock=0, samples=1, part=bundle.part), np.ones(2), 5)  # fmt: skip
    server.on(2, PullParameters(clock=0, turn=2), None, 5)  # group 1: a version of its own
    if is_restored:
        facts, arrays = state(server)
        assert [n for n in arrays if n.startswith("given/")] == ["given/0/1", "given/1/1"]
        server = a_server(Topology(3, 2, 1))
        restore(server, facts, arrays)
    for group, turn, value in ((0, 1, 1.0), (1, 2, 0.0), (2, 1, 1.0)):
        wanted = PullParameters(clock=0, turn=turn)
        [(_, _, (array,))] = server.on(2 * group + 1, wanted, None, 5)
        assert array.tolist() == [value, value]


def test_a_state_of_before_has_what_each_group_was_given():
    facts, arrays = state(given_to(3))
    values = {f"given/{g}/1": np.full(2, float(g)) for g in range(3)}
    old = {**facts, "format": 3, "given": [[g, [1]] for g in range(3)]}
    server = a_server(Topology(3, 2, 1))
    restore(server, old, {**arrays, **values})
    assert [server.groups[g].given[1].tolist() for g in range(3)] == [[g, g] for g in range(3)]


def test_a_state_without_an_array_is_refused():
    facts, arrays = state(a_server())
    with pytest.raises(ProtocolError, match="server 0: its state lacks 'slot/velocity/0'"):
        restore(a_server(), facts, {})
    with pytest.raises(ProtocolError, match="server 0: its state lacks .* for piece 0"):
        restore(a_server(), facts, {**arrays, "parameter/0": np.ones(3)})


def kept(folder: Path) -> Journal:
    """The journal of a server that wrote its state at clock 1, and was told one push since."""
    server, journal = a_server(), Journal(folder)
    recover(blank(), journal)
    for group in (0, 1):
        server.on(group, gradients(group, 0), np.ones(2), 5)
    journal.save(*state(server))
    journal.append(WireMessage(gradients(1, 1), (np.ones(2),), src=1, attempt=5))
    journal.close()
    return Journal(folder)


def blank() -> ParameterServer:
    return ParameterServer(0, PIECES[:1], PLAIN, TWO, FREE, "float64", is_durable=True)


def test_a_server_with_all_of_its_journal_goes_on_without_a_word(tmp_path, caplog):
    server, journal = blank(), kept(tmp_path)
    assert recover(server, journal) == 1
    journal.close()
    assert server.kept[0].n_pushes == [1, 2] and not caplog.messages


@pytest.mark.parametrize("how", ["removed", "torn"])
def test_a_server_that_goes_back_to_an_older_state_says_so(tmp_path, caplog, how):
    """It went on from there without a word."""
    server, journal = blank(), kept(tmp_path)
    path = tmp_path / "journal-1"
    n_bytes = path.stat().st_size
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, n_bytes - 1)
    assert recover(server, journal) == 0
    journal.close()
    assert server.kept[0].n_pushes == [1, 1]
    (said,) = caplog.messages
    what = {
        "removed": "is missing: what came after state-1 is lost, unless",
        "torn": f"ended inside record 1, whose {n_bytes - 1} bytes from byte 0 on were cut off",
    }
    assert said.startswith(f"{path} {what[how]}")
    assert said.endswith("; server 0 goes on from clock 1 of group 0, clock 1 of group 1")


def test_a_server_whose_first_message_is_torn_goes_on_from_its_beginning(tmp_path, caplog):
    (tmp_path / "journal-0").write_bytes(b"HJR")
    journal = Journal(tmp_path)
    recover(blank(), journal)
    journal.close()
    (said,) = caplog.messages
    assert said.endswith("cut off; server 0 goes on from its beginning")


def test_a_task_refuses_what_is_not_for_it():
    topology = Topology(1, 1, 1)
    own = Unacknowledged(topology, 0, bundles(PIECES[:1], topology, 8))
    for meta, block, sentence in (
        (Acknowledgement(used=1, seq=1), None, "Acknowledgement is nothing for a task"),
        (ParameterData(pieces=(0,), part=0), np.ones(2), "bundle 0 is not for it"),
        (
            ParameterData(pieces=(0,), part=1),
            np.ones(3),
            r"bundle 1 with \(3,\) numbers, expected 2",
        ),
    ):
        with pytest.raises(ProtocolError, match=f"task 0: from server 0: {sentence}"):
            own.heard(0, meta, block)


@pytest.mark.parametrize("n_servers", [1, 2])
def test_a_push_and_a_pull_cost_a_task_as_much_per_bundle_however_many_there_are(n_servers):
    """Each push, and each answer to a pull, looked at all that was not acknowledged."""

    def calls_of_a_clock(n: int) -> int:
        topology = Topology(1, 1, n_servers)
        pieces = [
            ParameterPiece(i, f"layer{i}.w", 0, 1, 0, (0,), i % n_servers, False) for i in range(n)
        ]
        own = Unacknowledged(topology, 0, bundles(pieces, topology, 8))
        block = np.ones(1)

        def clock() -> None:
            for number in range(2):
                for bundle in own.pushes:
                    assert not own.is_full(bundle)
                    own.push(bundle, Push(number, 1, {}), [block])
            assert all(map(own.is_full, own.pushes))
            for bundle in own.pushes:
                own.heard(bundle.server, PushAcknowledged(part=bundle.part, clock=0), None)
            assert not any(map(own.is_full, own.pushes))
            own.pull(Pull(1))
            assert all(own.owing(k).endswith("PullParameters") for k in range(n_servers))
            for part, bundle in own.pulls.items():
                indices = tuple(piece.index for piece in bundle.pieces)
                meta = ParameterData(pieces=indices, clock=1, part=part, turn=1)
                assert own.heard(bundle.server, meta, block) is bundle
            assert not own.awaited
            assert {own.owing(k) for k in range(n_servers)} == {"PushGradients"}

        return calls_of(clock)

    assert calls_of_a_clock(120) < 4.5 * calls_of_a_clock(30)
