"""The region barrier: laws, failures, and what it leaves behind. docs/notes/0011."""

from __future__ import annotations

import signal
import threading
from collections import Counter

import pytest

from horn.coordination import barrier, paths
from horn.coordination.barrier import GroupBarrier
from horn.coordination.membership import Membership
from horn.coordination.records import Create
from horn.coordination.session import Session
from horn.errors import (
    BarrierTimeout,
    Conflict,
    Fenced,
    JobError,
    MemberLost,
    ProtocolError,
    SessionLost,
    Unreachable,
)
from horn.patience import Patience
from tests.cluster.conftest import KINDS, Zookeeper
from tests.cluster.helpers import Call, end_session, members, wait_arrived, wait_until
from tests.cluster.relay import Relay

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]
LONG_S = 30.0


class Clock:
    """In place of time, for crossings that do not wait LONG_S: theirs is up when a test says so."""

    def __init__(self) -> None:
        self._is_up = threading.Event()
        self.n_late = 0  # looks that found it up

    def strike(self) -> None:
        self._is_up.set()

    def left_s(self, timeout_s: float) -> float:
        if timeout_s == LONG_S or not self._is_up.is_set():
            return timeout_s
        self.n_late += 1
        return 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """However slow ZooKeeper is, who is late is what the test has decided."""
    made = Clock()

    class Told(Patience):
        def left_s(self) -> float:
            return made.left_s(self.timeout_s)

    monkeypatch.setattr(barrier, "Patience", Told)
    monkeypatch.setattr(barrier, "LOOK_S", LONG_S)
    return made


def folder_of(zookeeper: Zookeeper) -> str:
    return f"{zookeeper.root}/barrier"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_nobody_passes_before_all_have_arrived_and_little_is_left(zookeeper, connect, n):
    # given n members in n sessions
    names = [f"t{i}" for i in range(n)]
    arrivals, folder, generations = [0] * n, folder_of(zookeeper), 12
    barriers = [GroupBarrier(connect(), folder, name, names) for name in names]

    def run(i):
        for generation in range(generations):
            arrivals[i] = generation + 1
            barriers[i].cross(generation, LONG_S)
            # then all have arrived at whatever this one has passed
            assert min(arrivals) >= generation + 1

    # when all cross again and again
    for call in [Call(run, i) for i in range(n)]:
        call.result()
    # then four generations are left: two done, one emptied, one made ahead
    coord = connect()
    (region,) = coord.children(folder)
    left = [paths.generation(g) for g in range(generations - 3, generations + 1)]
    assert wait_until(lambda: coord.children(f"{folder}/{region}") == left)


def test_a_timeout_names_the_absent_and_the_late_one_can_still_come(zookeeper, connect, clock):
    names, folder = ["a", "b", "c"], folder_of(zookeeper)
    a, b, c = (GroupBarrier(connect(), folder, name, names) for name in names)
    other, waiting = Call(b.cross, 3, LONG_S), Call(a.cross, 3, 0.5)
    for name in "ab":
        wait_arrived(connect(), folder, 3, name)
    # when c does not come in time
    clock.strike()
    with pytest.raises(BarrierTimeout) as caught:
        waiting.result()
    # then it is named, at once
    assert clock.n_late == 1
    assert (caught.value.absent, caught.value.arrived) == (("c",), ("a", "b"))
    assert "only 2 of 3 arrived in 0.5 s; absent: c" in str(caught.value)
    # and the same generation can still be passed by all
    calls = [Call(c.cross, 3, LONG_S), Call(a.cross, 3, LONG_S), other]
    assert [call.result() for call in calls] == [None] * 3


def harm(fault, victim, relay):
    if fault == "expired":
        relay.freeze()  # its session expires, the process lives
    else:
        victim.signal({"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fault])


@pytest.mark.cluster
def test_killed_stopped_and_expired_members_are_named_at_the_deadline(zookeeper, connect, clock):
    # given one that waits for three others, processes, one of them behind a relay
    faults = ["expired", "killed", "stopped"]
    with (
        Relay(zookeeper.hosts) as relay,
        members(zookeeper.hosts, zookeeper.root, faults[1:], ["a", *faults]) as [killed, stopped],
        members(relay.hosts, zookeeper.root, faults[:1], ["a", *faults]) as [expired],
    ):
        a = GroupBarrier(connect(), folder_of(zookeeper), "a", ["a", *faults])
        waiting = Call(a.cross, 0, 1.0)
        wait_arrived(connect(), folder_of(zookeeper), 0, "a")
        # when they are lost
        for fault, victim in zip(faults, [expired, killed, stopped], strict=True):
            harm(fault, victim, relay)
        clock.strike()
        # then it is told who, at once
        with pytest.raises(BarrierTimeout, match="absent: expired, killed, stopped") as caught:
            waiting.result()
        assert clock.n_late == 1
        assert caught.value.absent == tuple(faults)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "fault", ["killed", pytest.param("stopped", marks=pytest.mark.slow), "expired"]
)
def test_a_lost_member_is_named_as_soon_as_its_session_ends(zookeeper, connect, fault, monkeypatch):
    # given two that only news can wake, and a third with a short session; should that end before
    # the third is harmed, the two have been there before it
    forever_s = 600.0
    monkeypatch.setattr(barrier, "TURN_S", forever_s)
    folder, names = folder_of(zookeeper), ["a", "b", "victim"]
    pair, seen = [], []
    for name in "ab":
        coord = connect()
        seen.append(Membership(coord, f"{zookeeper.root}/members"))
        pair.append(GroupBarrier(coord, folder, name, names, membership=seen[-1]))
    with (
        Relay(zookeeper.hosts) as relay,
        members(relay.hosts, zookeeper.root, ["victim"], names, session_s=2.4) as [victim],
    ):
        for membership in seen:
            wait_until(lambda m=membership: "victim" in m.names() or m.departures()["victim"])
        calls = [Call(one.cross, 0, forever_s) for one in pair]
        # when the third is lost
        harm(fault, victim, relay)
        # then both are told who, long before their deadline
        for call in calls:
            with pytest.raises(MemberLost, match="lost victim") as caught:
                call.result()
            assert caught.value.lost == ("victim",)


@pytest.mark.cluster
def test_a_fast_member_may_enter_the_next_generation_while_a_slow_one_leaves(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["fast", "slow"]
    coord = connect()
    fast = GroupBarrier(coord, folder, "fast", names)
    with members(zookeeper.hosts, zookeeper.root, ["slow"], names) as [slow]:
        # given a slow one that stops while it waits
        slow.tell("cross", 0, LONG_S)
        wait_arrived(coord, folder, 0, "slow")
        slow.signal(signal.SIGSTOP)
        # when the fast one passes and enters the next
        fast.cross(0, LONG_S)
        next_ = Call(fast.cross, 1, LONG_S)
        wait_arrived(coord, folder, 1, "fast")
        # then it waits there, the slow one passes the first, and both pass the second
        assert not next_.is_done()
        slow.signal(signal.SIGCONT)
        assert slow.answer() is None
        assert not next_.is_done()
        assert slow.ask("cross", 1, LONG_S) is None
        assert next_.result() is None


@pytest.mark.cluster
def test_a_member_that_passes_and_exits_does_not_strand_a_slower_one(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["fast", "slow"]
    with members(zookeeper.hosts, zookeeper.root, ["slow"], names) as [slow]:
        coord = connect()
        membership = Membership(coord, f"{zookeeper.root}/members")
        membership.join("fast", "tcp://here")
        fast = GroupBarrier(coord, folder, "fast", names, membership=membership)
        slow.tell("cross", 0, LONG_S)
        wait_arrived(coord, folder, 0, "slow")
        slow.signal(signal.SIGSTOP)
        # when the fast one is through and ends its session
        fast.cross(0, LONG_S)
        coord.close()
        slow.signal(signal.SIGCONT)
        # then the slow one passes all the same
        assert slow.answer() is None


def test_a_cut_connection_changes_nothing(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a", "b"]
    with Relay(zookeeper.hosts) as relay:
        a = GroupBarrier(connect(relay.hosts), folder, "a", names)
        b = GroupBarrier(connect(), folder, "b", names)
        waiting = Call(a.cross, 0, LONG_S)
        wait_arrived(connect(), folder, 0, "a")
        # when the last one arrives while a is cut off
        relay.cut()
        b.cross(0, LONG_S)
        assert not waiting.is_done()
        relay.mend()
        # then a passes as soon as it is back
        assert waiting.result() is None


def test_an_arrival_whose_answer_is_lost_counts_once(zookeeper, connect, clock):
    folder, names = folder_of(zookeeper), ["a", "b", "c"]
    with Relay(zookeeper.hosts) as relay:
        coord = connect(relay.hosts)
        a = GroupBarrier(coord, folder, "a", names)
        b, c = (GroupBarrier(connect(), folder, name, names) for name in "bc")
        # given an arrival that lands, but whose answer never comes
        first = Call(b.cross, 0, LONG_S)
        wait_arrived(connect(), folder, 0, "b")
        relay.deafen()
        waiting = Call(a.cross, 0, LONG_S)
        wait_arrived(connect(), folder, 0, "a")
        # when the connection breaks and is repaired, so that a arrives again
        relay.cut()
        relay.mend()
        wait_until(lambda: coord.connected)
        # then two have arrived, not three
        other = Call(GroupBarrier(connect(), folder, "c", [*names, "d"]).cross, 0, 0.2)
        wait_arrived(connect(), folder, 0, "c")
        clock.strike()
        with pytest.raises(BarrierTimeout) as caught:
            other.result()
        assert not waiting.is_done()
        assert "tasks disagree" in str(caught.value)
        # and the marks of the repeated arrival are cleaned up like any other
        c.cross(0, LONG_S)
        for call in (first, waiting):
            call.result()
        calls = [Call(lambda m=m: [m.cross(g, LONG_S) for g in range(1, 6)]) for m in (a, b, c)]
        for call in calls:
            call.result()
        region = paths.attempt_folder(0, names)
        assert wait_until(lambda: len(connect().children(f"{folder}/{region}")) == 4)


def test_other_lists_of_members_never_meet(zookeeper, connect, clock):
    folder = folder_of(zookeeper)
    a = GroupBarrier(connect(), folder, "a", ["a", "b"])
    b = GroupBarrier(connect(), folder, "b", ["b", "c"])
    calls = [Call(a.cross, 0, 0.5), Call(b.cross, 0, 0.5)]
    for name in "ab":
        wait_arrived(connect(), folder, 0, name)
    clock.strike()
    for call, absent in zip(calls, [("b",), ("c",)], strict=True):
        with pytest.raises(BarrierTimeout, match="disagree about who belongs") as caught:
            call.result()
        assert caught.value.absent == absent


def test_a_generation_that_is_over_fences_who_comes_to_it(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a"]
    a = GroupBarrier(connect(), folder, "a", names)
    for generation in range(5):
        a.cross(generation, LONG_S)
    late = GroupBarrier(connect(), folder, "a", names)
    with pytest.raises(Fenced, match="the group is past it"):
        late.cross(1, LONG_S)


def test_two_processes_under_one_name_conflict(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a", "b"]
    first = GroupBarrier(connect(), folder, "a", names)
    second = GroupBarrier(connect(), folder, "a", names)
    b = GroupBarrier(connect(), folder, "b", names)
    waiting = Call(first.cross, 0, LONG_S)
    wait_arrived(connect(), folder, 0, "a")
    with pytest.raises(Conflict, match="as another process"):
        second.cross(0, LONG_S)
    b.cross(0, LONG_S)
    waiting.result()


def test_a_new_attempt_may_repeat_generations_and_removes_the_old_ones(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a"]
    coord = connect()
    GroupBarrier(coord, folder, "a", names, attempt=5).cross(7, LONG_S)
    again = GroupBarrier(coord, folder, "a", names, attempt=6)
    again.cross(7, LONG_S)
    assert coord.children(folder) == [paths.attempt_folder(6, names)]


def requests(coord: Session, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a session sends from now on, counted by its name."""
    sent, send = Counter[str](), coord.send

    def counted(then, request, path, *args, **kwargs):
        sent[request] += 1
        send(then, request, path, *args, **kwargs)

    monkeypatch.setattr(coord, "send", counted)
    return sent


def test_one_member_alone_removes_what_an_earlier_attempt_left(zookeeper, connect, monkeypatch):
    # given the marks of an earlier attempt
    folder, names = folder_of(zookeeper), ["a", "b", "c"]
    coord = connect()
    old = f"{folder}/{paths.attempt_folder(0, names)}/{paths.generation(0)}"
    coord.ensure(*(f"{old}/{mark}-{name}" for mark in ("in", "n") for name in names))
    # when all come to the next one
    sessions = [connect() for _ in names]
    sent = [requests(session, monkeypatch) for session in sessions]
    group = [
        GroupBarrier(s, folder, name, names, attempt=1)
        for s, name in zip(sessions, names, strict=True)
    ]
    assert paths.attempt_folder(0, names) in coord.children(folder)  # nobody's start waits for that
    for call in [Call(member.cross, 0, LONG_S) for member in group]:
        call.result()
    # then one has removed it, while the others went on
    coord.sync(folder)
    assert coord.children(folder) == [paths.attempt_folder(1, names)]
    assert sum("delete" in requests for requests in sent) == 1


def test_a_crossing_does_not_fail_by_what_cannot_be_removed(zookeeper, connect, monkeypatch):
    folder, names = folder_of(zookeeper), ["a"]
    coord = connect()
    GroupBarrier(coord, folder, "a", names, attempt=5).cross(7, LONG_S)
    again = GroupBarrier(coord, folder, "a", names, attempt=6)

    def late(path, timeout_s):
        assert timeout_s <= barrier.TIDY_S
        raise Unreachable(coord.hosts, "no answer", timeout_s)

    with monkeypatch.context() as slow:
        slow.setattr(coord, "remove", late)
        again.cross(7, LONG_S)
    assert len(coord.children(folder)) == 2
    GroupBarrier(coord, folder, "a", names, attempt=7).cross(7, LONG_S)
    assert coord.children(folder) == [paths.attempt_folder(7, names)]


def test_an_arrival_without_an_answer_is_found_by_few_reads(zookeeper, connect, monkeypatch):
    # given many that have arrived, one of them without hearing so
    folder, names = folder_of(zookeeper), [f"t{i}" for i in range(60)]
    coord, other = connect(), connect()
    member = GroupBarrier(coord, folder, "t37", names)
    at = f"{folder}/{paths.attempt_folder(0, names)}/{paths.generation(0)}"
    coord.ensure(at)
    for name in names:
        data = member._token() if name == "t37" else b"another"
        steps = [Create(f"{at}/in-{name}", data), Create(f"{at}/n-", data, sequence=True)]
        other.commit(steps)
    # when it arrives again
    coord.sync(at)
    sent = requests(coord, monkeypatch)
    member.cross(0, LONG_S)
    # then it knows its two marks
    assert member._past[-1].marks == [f"{at}/in-t37", f"{at}/n-{2 * 38 - 1:010d}"]
    assert sent["get"] <= 10


def test_generations_may_jump_and_what_lies_before_is_removed(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a", "b"]
    pair = [GroupBarrier(connect(), folder, name, names) for name in names]
    for generation in (0, 1, 2, 100, 101, 102):
        for call in [Call(m.cross, generation, LONG_S) for m in pair]:
            call.result()
    coord, region = connect(), paths.attempt_folder(0, names)
    left = [paths.generation(g) for g in range(100, 104)]
    assert wait_until(lambda: coord.children(f"{folder}/{region}") == left)


def test_a_member_whose_session_ends_is_told_so(zookeeper, connect):
    coord = connect()
    a = GroupBarrier(coord, folder_of(zookeeper), "a", ["a", "b"])
    waiting = Call(a.cross, 0, LONG_S)
    wait_arrived(connect(), folder_of(zookeeper), 0, "a")
    end_session(coord)
    with pytest.raises(SessionLost, match="must stop and register again"):
        waiting.result()


def test_a_member_whose_place_is_taken_is_fenced_while_it_waits(zookeeper, connect):
    folder, names = folder_of(zookeeper), ["a", "b"]
    coord, successor = connect(), connect()
    membership = Membership(coord, f"{zookeeper.root}/members")
    membership.join("a", "tcp://old")
    a = GroupBarrier(coord, folder, "a", names, membership=membership)
    waiting = Call(a.cross, 0, LONG_S)
    wait_arrived(successor, folder, 0, "a")
    Membership(successor, f"{zookeeper.root}/members").join("a", "tcp://new", replace=True)
    with pytest.raises(Fenced, match="another process took its place"):
        waiting.result()


def test_without_zookeeper_the_deadline_still_holds(embedded, connect_embedded, monkeypatch):
    lefts = []

    class Noted(Patience):
        def left_s(self):
            lefts.append(super().left_s())
            return lefts[-1]

    monkeypatch.setattr(barrier, "Patience", Noted)
    with Relay(embedded.hosts) as relay:
        coord = connect_embedded(relay.hosts)
        a = GroupBarrier(coord, folder_of(embedded), "a", ["a", "b"])
        relay.cut()
        with pytest.raises(Unreachable):
            a.cross(0, 0.5)
        relay.mend()
    assert [left <= 0 for left in lefts] == [False] * (len(lefts) - 1) + [True]


def test_wrong_use_is_refused(embedded, connect_embedded):
    coord, folder = connect_embedded(), folder_of(embedded)
    with pytest.raises(JobError, match="not among the members"):
        GroupBarrier(coord, folder, "x", ["a"])
    with pytest.raises(JobError, match="letters"):
        GroupBarrier(coord, folder, "a/b", ["a/b"])
    a = GroupBarrier(coord, folder, "a", ["a"])
    a.cross(3, LONG_S)
    with pytest.raises(ProtocolError, match="has crossed 3 already"):
        a.cross(3, LONG_S)
    a.close()


@pytest.mark.parametrize("zookeeper", [KINDS[-1]], indirect=True)
def test_an_ensemble_that_loses_its_leader_loses_no_crossing(zookeeper, servers, connect):
    names, halfway = ["a", "b", "c"], threading.Event()
    group = [GroupBarrier(connect(), folder_of(zookeeper), name, names) for name in names]

    def run(member):
        for generation in range(40):
            member.cross(generation, 2 * LONG_S)
            if generation == 20:
                halfway.set()

    calls = [Call(run, member) for member in group]
    assert halfway.wait(LONG_S)
    ensemble = servers("ensemble")
    leader = ensemble.leader()
    ensemble.kill(leader)
    try:
        for call in calls:
            call.result()
    finally:
        ensemble.restart(leader)
