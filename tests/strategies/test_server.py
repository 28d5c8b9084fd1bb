"""The server as a pure state machine: what it says to one message after the other."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

import horn
from horn.errors import BarrierTimeout, ProtocolError
from horn.parameter_server import serving
from horn.parameter_server.pieces import ParameterBundle, ParameterPiece, bundles
from horn.parameter_server.server import Answer, ParameterServer
from horn.parameter_server.server_state import restore, state
from horn.parameter_server.serving import ServerThread, serve
from horn.parameter_server.updates import Policy
from horn.strategies import Topology
from horn.wire.messages import (
    Acknowledgement,
    EndOfEpoch,
    JoinServers,
    LeaveServers,
    ParameterData,
    PullParameters,
    PushGradients,
    Verdict,
)
from tests.support.calls import calls_of

PLAIN = horn.SGD(1.0)  # what is pushed is taken away


TWO = Topology(2, 1, 1)


def say(server: ParameterServer, rank: int, meta: Any, arrays: Any = ()) -> list[Answer]:
    """A task's message, with its arrays as the block of the bundle that they are."""
    if not arrays:
        return server.on(rank, meta)
    every = bundles(server.pieces, server.topology, server.dtype.itemsize)
    [part] = [
        b.part
        for b in every
        if b.rank == rank and b.is_push and tuple(p.index for p in b.pieces) == meta.pieces
    ]
    meta = msgspec.structs.replace(meta, part=part)
    return server.on(rank, meta, np.concatenate(arrays))


def a_server(
    policy: Policy = Policy(),  # noqa: B008 (frozen)
    optimizer: horn.Optimizer = PLAIN,
    topology: Topology = TWO,
    n_pieces: int = 1,
) -> ParameterServer:
    """With pieces of two numbers, 1.0 each; only that of even number decays."""
    holders = tuple(range(topology.n_tasks))
    pieces = [
        ParameterPiece(k, "w", 2 * k, 2 * k + 2, 0, holders, 0, k % 2 == 0) for k in range(n_pieces)
    ]
    server = ParameterServer(0, pieces, optimizer, topology, policy, "float64")
    say(server, 0, ParameterData(pieces=tuple(range(n_pieces))), [np.ones(2)] * n_pieces)
    return server


def push(
    server: ParameterServer, group: int, clock: int, value: float, samples: int = 1
) -> list[Any]:
    n = len(server.kept)
    meta = PushGradients(pieces=tuple(range(n)), clock=clock, samples=samples)
    return say(server, group * server.topology.n_tasks, meta, [np.full(2, value)] * n)


def leave(server: ParameterServer, rank: int) -> list[Any]:
    """What comes of it besides the word that it was heard."""
    heard, *others = say(server, rank, LeaveServers())
    assert heard == (rank, LeaveServers(), ())
    return others


def pull(server: ParameterServer, group: int, clock: int, final: bool = False) -> list[Any]:
    return say(server, group * server.topology.n_tasks, PullParameters(clock=clock, final=final))


def test_a_push_that_is_late_counts_less_where_it_is_asked_for():
    for scaled, wanted in ((False, [-1.0, -2.0, -3.0]), (True, [-1.0, -1.5, -11 / 6])):
        server = a_server(Policy(scale_by_staleness=scaled), topology=Topology(4, 1, 1))
        for group in range(4):
            assert pull(server, group, 0)
        push(server, 0, 0, 1.0)  # 0 late: whole
        found = []
        for group in (1, 2, 3):  # 1, 2 and 3 late
            push(server, group, 0, 1.0)
            found.append(server.kept[0].w[0])
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
        assert server.staleness == {0: 1, 1: 1, 2: 1, 3: 1}
        pull(server, 1, 1)
        push(server, 1, 1, 1.0)
        assert server.staleness[0] == 2


def test_where_servers_average_a_push_counts_as_one_groups_part():
    server = a_server(Policy(averages=True), topology=Topology(4, 1, 1))
    for group in range(4):
        pull(server, group, 0)
    push(server, 0, 0, 1.0)
    assert server.kept[0].w.tolist() == [0.75, 0.75]
    leave(server, 0)
    leave(server, 1)  # nobody else has their part of the data now
    push(server, 2, 0, 1.0)
    assert server.kept[0].w.tolist() == [0.5, 0.5]
    server.grow(10)  # six more than began, and two have left
    push(server, 3, 0, 4.0)
    assert server.kept[0].w.tolist() == [0.0, 0.0]


def test_group_0_counts_whole_while_it_warms_up():
    server = a_server(Policy(warm_start=2, averages=True))
    pull(server, 0, 0)
    pull(server, 1, 0)
    for clock, wanted in ((0, 0.0), (1, -1.0), (2, -1.5)):
        push(server, 0, clock, 1.0)
        assert server.kept[0].w.tolist() == [wanted, wanted]
    push(server, 1, 0, 1.0)
    assert server.kept[0].w.tolist() == [-2.0, -2.0]


def test_a_push_of_no_samples_is_no_update():
    server = a_server(optimizer=horn.SGD(1.0, momentum=0.5))
    pull(server, 0, 0)
    push(server, 0, 0, 5.0, samples=0)
    assert server.kept[0].w.tolist() == [1.0, 1.0] and server.kept[0].n_updates == 0
    assert pull(server, 0, 1)  # but it is a push


def test_others_begin_when_group_0_has_warmed_up():
    server = a_server(Policy(warm_start=2), topology=Topology(3, 1, 1))
    assert pull(server, 1, 0) == [] and pull(server, 2, 0) == []
    assert [rank for rank, _, _ in pull(server, 0, 0)] == [0]
    assert push(server, 0, 0, 1.0) == [] and len(pull(server, 0, 1)) == 1
    answers = push(server, 0, 1, 1.0)
    assert sorted(rank for rank, _, _ in answers) == [1, 2]
    assert all(arrays[0].tolist() == [-1.0, -1.0] for _, _, arrays in answers)


def test_a_group_0_that_ends_before_it_is_warm_lets_the_others_begin():
    server = a_server(Policy(warm_start=100))
    assert pull(server, 1, 0) == []
    pull(server, 0, 0)
    push(server, 0, 0, 1.0)
    assert [rank for rank, _, _ in leave(server, 0)] == [1]


def test_weight_decay_is_for_links_only():
    server = a_server(optimizer=horn.SGD(0.5, weight_decay=0.25), n_pieces=2)
    pull(server, 0, 0)
    push(server, 0, 0, 1.0)
    assert server.kept[0].w.tolist() == [1 - 0.5 * 1.25] * 2
    assert server.kept[1].w.tolist() == [0.5, 0.5]


def test_each_gradient_is_bounded_after_weight_decay():
    server = a_server(optimizer=horn.SGD(1.0, weight_decay=10.0, clip_value=2.0), n_pieces=2)
    pull(server, 0, 0)
    push(server, 0, 0, 1.0)
    assert server.kept[0].w.tolist() == [-1.0, -1.0]  # 1 + 10 is bounded
    assert server.kept[1].w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "optimizer",
    [
        horn.Adam(0.1),
        horn.Adam(horn.Step(0.1, 2, 0.5)),
        horn.SGD(0.1, momentum=0.9, nesterov=True),
        horn.AdaDelta(),
        horn.RMSProp(),
    ],
)
def test_updates_count_from_1_by_piece_and_rates_from_0(optimizer):
    server = a_server(optimizer=optimizer)
    pull(server, 0, 0)
    pull(server, 1, 0)
    w, slots = np.ones(2), {name: np.zeros(2) for name in optimizer.slots}
    order = [(0, 0, 1.0), (1, 0, -2.0), (1, 1, 0.5), (0, 1, 3.0), (0, 2, 0.1)]
    for t, (group, clock, value) in enumerate(order, 1):
        w, slots = optimizer.update(w, np.full(2, value), slots, optimizer.rate(t - 1), float(t))
        push(server, group, clock, value)
        assert server.kept[0].w.tobytes() == w.tobytes()


def test_a_piece_beyond_what_is_updated_at_once_is_updated_whole():
    n = (1 << 15) * 2 + 7
    piece = ParameterPiece(0, "w", 0, n, 0, (0,), 0, True)
    server = ParameterServer(0, [piece], horn.Adam(0.1), Topology(1, 1, 1), Policy(), "float32")
    say(server, 0, ParameterData(pieces=(0,)), [np.zeros(n, "f4")])
    pull(server, 0, 0)
    say(server, 0, PushGradients(pieces=(0,), clock=0, samples=1), [np.ones(n, "f4")])
    w = server.kept[0].w
    assert w.dtype == np.float32 and len(set(w.tolist())) == 1 and w[0] == pytest.approx(-0.1)


def test_what_was_sent_is_not_kept_by_a_server():
    server = a_server(Policy(0))
    start, gradient = np.ones(2), np.ones(2)
    fresh = ParameterServer(0, server.mine, PLAIN, TWO, Policy(0), "float64")
    say(fresh, 0, ParameterData(pieces=(0,)), [start])
    start[:] = 99.0
    pull(fresh, 0, 0)
    say(fresh, 0, PushGradients(pieces=(0,), clock=0, samples=1), [gradient])
    gradient[:] = 99.0
    pull(fresh, 1, 0)
    say(fresh, 1, PushGradients(pieces=(0,), clock=0, samples=1), [np.full(2, 3.0)])
    assert fresh.kept[0].w.tolist() == [-1.0, -1.0]


def test_all_tasks_of_a_group_get_one_version():
    topology = Topology(2, 2, 1)
    pieces = [
        ParameterPiece(0, "x.a", 0, 2, 1, (0, 1), 0, False),
        ParameterPiece(1, "x.b", 0, 3, 0, (0,), 0, False),
    ]
    server = ParameterServer(0, pieces, PLAIN, topology, Policy(), "float64")
    assert pull(server, 1, 0) == []  # before anybody has said what they are
    say(server, 0, ParameterData(pieces=(1,)), [np.zeros(3)])
    answers = say(server, 1, ParameterData(pieces=(0,)), [np.ones(2)])
    found = [(rank, meta.pieces, [a.tolist() for a in arrays]) for rank, meta, arrays in answers]
    assert found == [(2, (0, 1), [[1.0, 1.0], [0.0] * 3]), (3, (0,), [[1.0, 1.0]])]


def test_a_pull_waits_for_the_pushes_of_all_tasks_of_its_group():
    topology = Topology(1, 2, 1)
    pieces = [
        ParameterPiece(0, "x.a", 0, 1, 0, (0, 1), 0, False),
        ParameterPiece(1, "x.b", 0, 1, 1, (0, 1), 0, False),
    ]
    server = ParameterServer(0, pieces, PLAIN, topology, Policy(), "float64")
    say(server, 0, ParameterData(pieces=(0,)), [np.zeros(1)])
    say(server, 1, ParameterData(pieces=(1,)), [np.zeros(1)])
    pull(server, 0, 0)
    say(server, 0, PushGradients(pieces=(0,), clock=0, samples=1), [np.ones(1)])
    assert pull(server, 0, 1) == []
    answers = say(server, 1, PushGradients(pieces=(1,), clock=0, samples=1), [np.ones(1)])
    assert [rank for rank, _, _ in answers] == [0, 1]


def test_a_group_that_left_holds_nobody_up():
    server = a_server(Policy(1), topology=Topology(3, 1, 1))
    for group in range(3):
        pull(server, group, 0)
    push(server, 0, 0, 1.0)
    assert pull(server, 0, 1)
    push(server, 0, 1, 1.0)
    assert pull(server, 0, 2) == []  # the others have pushed nothing
    assert leave(server, 1) == []
    assert [rank for rank, _, _ in leave(server, 2)] == [0]
    assert server.unfinished == (0,)


def test_synchronous_sums_go_on_without_a_group_that_left():
    server = a_server(Policy(0))
    for group in range(2):
        pull(server, group, 0)
        push(server, group, 0, 1.0)
    assert server.kept[0].w[0] == 0.0
    pull(server, 0, 1)
    push(server, 0, 1, 1.0)
    assert server.kept[0].w[0] == 0.0  # group 1 may still push
    leave(server, 1)
    assert server.kept[0].w[0] == -1.0


def test_the_end_comes_when_all_have_left_and_is_thanked_for_by_all_tasks_of_group_0():
    topology = Topology(2, 2, 1)
    server = a_server(topology=topology)
    pull(server, 0, 0)
    pull(server, 1, 0)
    push(server, 0, 0, 1.0)
    leave(server, 0)
    assert pull(server, 0, 1, final=True) == []
    leave(server, 1)
    push(server, 1, 0, 1.0)
    assert leave(server, 2) == []
    assert server.unfinished == (2, 3)
    answers = leave(server, 3)
    assert [(rank, arrays[0][0]) for rank, _, arrays in answers] == [(0, -1.0), (1, -1.0)]
    say(server, 0, LeaveServers(is_thanks=True))
    assert not server.is_done
    say(server, 1, LeaveServers(is_thanks=True))
    assert server.is_done


def test_who_waits_for_a_group_that_measures_hears_that_it_does():
    server = a_server(Policy(0), topology=Topology(3, 1, 1))
    for group in range(3):
        pull(server, group, 0)
    push(server, 1, 0, 1.0)
    push(server, 2, 0, 1.0)
    pull(server, 1, 1)
    assert server.waiting() == [(1, "0", False)]
    push(server, 0, 0, 1.0)
    say(server, 0, PullParameters(clock=1, measures=True))
    push(server, 1, 1, 1.0)
    pull(server, 1, 2)
    assert server.waiting() == [(1, "0 2", False)]  # group 2 does not measure
    pull(server, 2, 1)
    push(server, 2, 1, 1.0)
    assert server.waiting() == [(1, "0", True)]
    facts, arrays = state(server)
    restored = ParameterServer(0, server.mine, PLAIN, server.topology, Policy(0), "float64")
    restore(restored, facts, arrays)
    assert restored.waiting() == [(1, "0", True)]
    pull(server, 0, 1)
    assert server.waiting() == [(1, "0", False)]
    say(restored, 0, PushGradients(pieces=(0,), clock=1, samples=1), [np.ones(2)])
    assert restored.waiting() == [] and restored.measuring == set()


@pytest.mark.parametrize("measures", [True, False])
def test_a_server_may_be_idle_as_long_as_a_group_measures(measures):
    server, n_looks = a_server(), 0
    say(server, 0, PullParameters(clock=0, measures=measures))

    class Silent:
        def send(self, rank: int, meta: Any, values: Any = ()) -> None: ...

        def receive(self, timeout_s: float) -> None:
            nonlocal n_looks
            n_looks += 1
            if n_looks > 10:
                raise InterruptedError

    ends = InterruptedError if measures else BarrierTimeout
    with pytest.raises(ends):
        serve(server, Silent(), 1e-9)


def calls_of_a_clock(n_groups: int) -> int:
    """The functions that a synchronous server calls in a clock of so many groups."""
    server = a_server(Policy(0), topology=Topology(n_groups, 1, 1), n_pieces=8)
    answers: list[Answer] = []
    every = bundles(server.pieces, server.topology, server.dtype.itemsize)
    parts = {b.rank: b.part for b in every if b.is_push}
    block, pieces = np.ones(16), tuple(range(8))

    def clock() -> None:
        for group in range(n_groups):
            meta = PushGradients(pieces=pieces, clock=0, samples=1, part=parts[group])
            answers.extend(server.on(group, meta, block))
            answers.extend(server.on(group, PullParameters(clock=1, turn=1)))

    n_calls = calls_of(clock)
    assert [rank for rank, _, _ in answers] == list(range(n_groups))
    assert server.kept[0].w.tolist() == [0.0, 0.0]
    return n_calls


def test_a_clock_costs_at_most_the_square_of_the_groups():
    assert calls_of_a_clock(32) < 5 * calls_of_a_clock(16)


def of_layers(n_layers: int, n_groups: int = 2) -> tuple[ParameterServer, list[ParameterBundle]]:
    """A synchronous server with initial values of one piece per layer; and its pushes."""
    pieces = [ParameterPiece(k, f"l{k}.w", 0, 2, 0, (0,), 0, False) for k in range(n_layers)]
    server = ParameterServer(0, pieces, PLAIN, Topology(n_groups, 1, 1), Policy(0), "float64")
    pushes = [b for b in bundles(pieces, server.topology, 8) if b.is_push]
    for bundle in pushes[:n_layers]:
        server.on(0, ParameterData(pieces=(bundle.pieces[0].index,), part=bundle.part), np.ones(2))
    return server, pushes


def tell(server: ParameterServer, bundle: ParameterBundle, clock: int = 0) -> list[Answer]:
    pieces = (bundle.pieces[0].index,)
    meta = PushGradients(pieces=pieces, clock=clock, samples=1, part=bundle.part)
    return server.on(bundle.rank, meta, np.ones(2))


def test_a_push_costs_as_many_calls_as_it_has_layers_while_another_group_waits():
    def calls_of_a_push(n_layers: int) -> int:
        server, pushes = of_layers(n_layers)
        server.on(1, PullParameters(clock=1, turn=1))
        return calls_of(lambda: [tell(server, bundle) for bundle in pushes[:n_layers]])

    assert calls_of_a_push(90) < 3.5 * calls_of_a_push(30)


def test_initial_values_cost_as_many_calls_as_there_are_layers():
    def calls_of_a_beginning(n_layers: int) -> int:
        return calls_of(lambda: of_layers(n_layers))

    assert calls_of_a_beginning(90) < 3.5 * calls_of_a_beginning(30)


def test_pulls_that_wait_for_the_same_group_look_at_its_pieces_once():
    def calls_of_a_look(n_layers: int) -> int:
        n_groups = 31
        server, pushes = of_layers(n_layers, n_groups)
        for bundle in pushes[n_layers:]:
            tell(server, bundle)
        for group in range(1, n_groups):
            server.on(group, PullParameters(clock=1, turn=1))
        found: list[Any] = []
        n_calls = calls_of(lambda: found.extend(server.waiting()))
        assert found == [(group, "0", False) for group in range(1, n_groups)]
        return n_calls

    assert calls_of_a_look(60) - calls_of_a_look(20) < 10 * (60 - 20)


@pytest.mark.parametrize("seed", range(5))
def test_the_fewest_pushes_of_a_group_are_those_of_a_search_after_every_message(seed):
    r, n_layers = random.Random(seed), 5
    server, pushes = of_layers(n_layers, n_groups=3)
    server.policy = Policy(r.choice([None, 1]))
    clocks = dict.fromkeys(range(len(pushes)), 0)
    for _ in range(80):
        at = r.randrange(len(pushes))
        if clocks[at] < 4:
            tell(server, pushes[at], clocks[at])
            clocks[at] += 1
        for group in range(3):
            pushed = [kept.n_pushes[group] for kept in server.kept.values()]
            assert pushed == [clocks[group * n_layers + k] for k in range(n_layers)]
            if r.random() < 0.7:
                assert server._pushed(group) == min(pushed)


def test_a_server_without_pieces_ends_too():
    server = ParameterServer(
        1, [ParameterPiece(0, "w", 0, 1, 0, (0,), 0, False)], PLAIN, TWO, Policy(2), "float64"
    )
    assert pull(server, 0, 0) == [] and pull(server, 0, 1) == []
    leave(server, 0)
    leave(server, 1)
    pull(server, 0, 1, final=True)
    say(server, 0, LeaveServers(is_thanks=True))
    assert server.is_done


def test_all_tasks_of_a_group_hear_the_same_of_the_end():
    server = a_server(topology=Topology(2, 2, 1))

    def asked(rank: int, epoch: int, stop: bool = False) -> bool:
        [(to, verdict, arrays)] = say(server, rank, EndOfEpoch(epoch=epoch, stop=stop))
        assert isinstance(verdict, Verdict)
        assert (to, verdict.epoch, arrays) == (rank, epoch, ())
        return verdict.stop

    assert not asked(2, 1)
    assert not asked(0, 1) and not asked(1, 1)
    assert asked(0, 2, True) and asked(1, 2, True)
    assert not asked(3, 1)  # as task 2 has heard
    assert asked(3, 2) and asked(2, 2)


# messages out of their turn


def gradients(clock: int = 0, pieces: tuple[int, ...] = (0, 1)) -> PushGradients:
    """Of task 2, where there are two groups of two."""
    return PushGradients(pieces=pieces, clock=clock, samples=1, part=3)


GROUP_1 = "group 1, task 0"
WRONG = {
    "clock": (2, gradients(1), np.ones(4), f"{GROUP_1}, piece 0: got push 1, expected"),
    "piece": (2, gradients(0, (0, 7)), np.ones(4), rf"{GROUP_1}: pieces \(0, 7\) in bundle 3"),
    "owner": (3, gradients(), np.ones(4), "group 1, task 1: bundle 3 is not its to send"),
    "dtype": (
        2, gradients(), np.ones(4, "f4"),
        rf"{GROUP_1}: bundle 3: got float32 \(4,\), expected float64 \(4,\)",
    ),
    "shape": (
        2, gradients(), np.ones((4, 1)),
        rf"{GROUP_1}: bundle 3: got float64 \(4, 1\), expected float64 \(4,\)",
    ),
    "length": (2, gradients(), np.ones(5), rf"{GROUP_1}: bundle 3: got float64 \(5,\)"),
    "nothing": (2, gradients(), None, rf"{GROUP_1}: bundle 3: got nothing"),
    "too few": (2, gradients(0, (0,)), np.ones(2), rf"{GROUP_1}: pieces \(0,\) in bundle 3"),
    "twice": (2, gradients(0, (0, 0)), np.ones(4), rf"{GROUP_1}: pieces \(0, 0\) in bundle 3"),
    "unknown": (
        2, Acknowledgement(used=1, seq=1), None,
        f"{GROUP_1}: Acknowledgement is nothing for a server",
    ),
    "join": (2, JoinServers(), None, f"{GROUP_1}: JoinServers is nothing for a server"),
    "a server's": (
        4, LeaveServers(), None, "LeaveServers of server 0, expected one of tasks 0 to 3"
    ),
    "begin": (
        2, ParameterData(pieces=(0, 1), part=3), np.ones(4), f"{GROUP_1}, piece 0: initial values"
    ),
    "again": (
        0, ParameterData(pieces=(0, 1), part=0), np.ones(4),
        "group 0, task 0, piece 0: initial values",
    ),
    "thanks": (0, LeaveServers(is_thanks=True), None, "group 0, task 0: thanks for an end"),
    "thanks of another": (2, LeaveServers(is_thanks=True), None, f"{GROUP_1}: thanks for an end"),
    "pull of task 1": (
        3, PullParameters(clock=0), None, "group 1, task 1: pull 0, but task 0 pulls"
    ),
    "end of group 1": (
        2, PullParameters(clock=0, final=True), None, f"{GROUP_1}: pull 0 of the end"
    ),
    "end too early": (
        0, PullParameters(clock=0, final=True), None, "group 0, task 0: pull 0 of the end"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_out_of_turn_is_refused_with_its_group_and_piece(name):
    server = a_server(topology=Topology(2, 2, 1), n_pieces=2)
    pull(server, 0, 0)
    rank, meta, block, sentence = WRONG[name]
    with pytest.raises(ProtocolError, match=f"^server 0: {sentence}"):
        server.on(rank, meta, block)
    assert [kept.w.tolist() for kept in server.kept.values()] == [[1.0, 1.0]] * 2
    assert all(kept.n_updates == 0 for kept in server.kept.values())


def test_nothing_of_a_push_counts_where_one_piece_does_not_fit():
    server = a_server(n_pieces=2)
    pull(server, 0, 0)
    with pytest.raises(ProtocolError, match="group 0, task 0: bundle 0: got float64"):
        say(server, 0, gradients(), [np.ones(2), np.ones(5)])
    assert server.kept[0].w.tolist() == [1.0, 1.0] and server.kept[0].n_pushes == [0, 0]


def test_a_push_before_initial_values_is_refused():
    server = ParameterServer(
        0, [ParameterPiece(0, "w", 0, 2, 0, (0,), 0, False)], PLAIN, TWO, Policy(), "float64"
    )
    with pytest.raises(ProtocolError, match="group 1, task 0, piece 0: .*expected initial values"):
        say(server, 1, gradients(0, (0,)), [np.ones(2)])


@pytest.mark.parametrize(
    "meta, arrays, sentence",
    [
        (gradients(1, (0,)), [np.ones(2)], r"pushes pieces \(0,\) after it left"),
        (PullParameters(clock=1), (), "pull 1 after it left"),
        (LeaveServers(), (), "leaves a second time"),
    ],
)
def test_a_group_that_left_says_no_more(meta, arrays, sentence):
    server = a_server()
    pull(server, 1, 0)
    push(server, 1, 0, 1.0)
    leave(server, 1)
    with pytest.raises(ProtocolError, match=f"server 0: group 1, task 0: {sentence}"):
        say(server, 1, meta, arrays)


def test_a_pull_of_a_clock_that_is_over_is_refused():
    server = a_server()
    pull(server, 1, 0)
    push(server, 1, 0, 1.0)
    with pytest.raises(ProtocolError, match="group 1, task 0: got pull 0, expected pull 1"):
        pull(server, 1, 0)


def test_two_pulls_at_once_are_refused():
    server = a_server(Policy(0))
    pull(server, 1, 0)
    push(server, 1, 0, 1.0)
    assert pull(server, 1, 1) == []
    with pytest.raises(ProtocolError, match="group 1, task 0: pull 1, but its last pull waits"):
        pull(server, 1, 1)
    with pytest.raises(ProtocolError, match="group 1, task 0: leaves while its pull waits"):
        leave(server, 1)


def test_every_order_of_two_synchronous_groups():
    """All 20 ways to mix three pushes of each."""
    seen = set()
    for order in set(itertools.permutations([0, 0, 0, 1, 1, 1])):
        server = a_server(Policy(0), horn.SGD(0.1, momentum=0.9))
        clocks = [0, 0]
        for group in order:
            push(server, group, clocks[group], 0.1 * (1 + group) + clocks[group], 1 + group)
            clocks[group] += 1
        seen.add(server.kept[0].w.tobytes())
    assert len(seen) == 1


# a server in a thread of a task


class Held:
    """A transport that lets its server end when ``may_end`` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end.wait(60.0)

    def connect(self, endpoints: list[str], timeout_s: float) -> None:
        raise InterruptedError


def a_thread(monkeypatch: pytest.MonkeyPatch, is_done: bool) -> ServerThread:
    monkeypatch.setattr(serving, "LOOK_S", 0.001)
    monkeypatch.setattr(serving, "END_LOOK_S", 0.001)
    monkeypatch.setattr(Held, "connect", lambda *_: None)
    monkeypatch.setattr(serving, "mesh_of", lambda *_: None)
    monkeypatch.setattr(serving, "serve", lambda *_: None)
    monkeypatch.setattr(ParameterServer, "is_done", is_done)
    guest = ServerThread(a_server(), Held(), 60.0, lambda error: None)  # type: ignore[arg-type]
    guest.start([], 60.0)
    return guest


def test_a_task_waits_for_a_server_in_its_process_that_others_still_need(monkeypatch, caplog):
    """It went after 5 s without a word, and the server with it: the run failed."""
    guest, n_looks = a_thread(monkeypatch, is_done=False), 0

    def look():
        nonlocal n_looks
        n_looks += 1
        if n_looks == 10:
            guest.transport.may_end.set()

    guest.join(0.0, look)
    assert n_looks >= 10 and not guest.thread.is_alive() and not caplog.messages


def test_a_server_that_is_done_and_does_not_end_is_left_with_a_word(monkeypatch, caplog):
    guest = a_thread(monkeypatch, is_done=True)
    guest.join(0.0, lambda: None)
    (said,) = caplog.messages
    assert said.startswith("server 0, a thread of this task, is done but has not closed its")
    guest.transport.may_end.set()
    guest.thread.join()


def test_a_task_that_waits_for_its_server_has_the_failure_of_that():
    guest = ServerThread(a_server(), Held(), 60.0, lambda error: None)  # type: ignore[arg-type]
    guest.transport.may_end.set()
    guest.start([], 60.0)
    with pytest.raises(InterruptedError):
        guest.join(0.0, lambda: None)
