"""What a master decides, and that whatever happens no two attempts of a job run at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.cluster.host_failures import blamed
from horn.cluster.master import (
    END,
    FAILED,
    FINISHED,
    GONE,
    LAST,
    RUN,
    RUNNING,
    STARTING,
    STOP,
    STOPPED,
    Decision,
    HostFailure,
    HostOrder,
    HostReport,
    JobRecord,
    JobSnapshot,
    decide,
)
from horn.cluster.scheduler import Host, ResourceRequest
from horn.coordination.jobs import ENDED, NEXT, JobState
from horn.errors import BarrierTimeout, HornError, MemberLost, ProtocolError, TaskFailed
from horn.transport import PeerLost


def hosts(**slots: int) -> dict[str, Host]:
    return {name: Host(name, "h", n, n, member=1 + k) for k, (name, n) in enumerate(slots.items())}


def start(**more: Any) -> JobSnapshot:
    return JobSnapshot(
        JobState.PENDING, ResourceRequest(2, 1), JobRecord(), {}, hosts(a=1, b=1), **more
    )


def after(picture: JobSnapshot, decision: Decision | None) -> JobSnapshot:
    assert decision is not None
    return replace(picture, record=decision.record, state=decision.state or picture.state)


def saying(picture: JobSnapshot, **said: HostReport) -> JobSnapshot:
    members = {name: seat.member for name, seat in picture.record.seats.items()}
    reports = {n: msgspec.structs.replace(r, member=members[n]) for n, r in said.items()}
    return replace(picture, reports={**picture.reports, **reports})


def running(**more: Any) -> JobSnapshot:
    first = start(**more)
    return saying(after(first, decide(first)), a=HostReport(RUNNING), b=HostReport(RUNNING))


def test_a_job_is_placed_with_the_next_attempt():
    found = decide(start())
    assert found is not None and found.state is JobState.RUNNING
    assert found.record.attempt == 1
    assert {h: (o.aim, o.attempt) for h, o in found.orders.items() if o} == {
        "a": (RUN, 1),
        "b": (RUN, 1),
    }
    assert decide(after(start(), found)) is None


def test_why_it_waits_is_noted_once():
    picture = replace(start(), hosts=hosts(a=1))
    found = decide(picture)
    assert found is not None and "waits for 2 slots" in found.record.reason
    assert found.state is None and decide(after(picture, found)) is None


def test_when_all_have_finished_it_has_succeeded_with_the_result_of_rank_0():
    picture = saying(running(), a=HostReport(FINISHED, result={"model": "m"}))
    assert decide(picture) is None
    found = decide(saying(picture, b=HostReport(FINISHED)))
    assert found is not None and found.state is JobState.SUCCEEDED
    assert found.result == {"state": "SUCCEEDED", "code": 0, "host": "a", "model": "m"}
    assert found.orders == {"a": None, "b": None} and not found.record.seats


def test_after_a_failure_the_others_are_ended_before_the_next_attempt_starts():
    picture = saying(running(), a=HostReport(FAILED, failure=HostFailure("task 0 was killed")))
    found = decide(picture)
    assert found is not None and found.state is None
    assert [order.aim for order in found.orders.values() if order] == [END, END]
    picture = after(picture, found)
    assert decide(picture) is None
    picture = saying(picture, b=HostReport(GONE))
    found = decide(picture)
    assert found is not None and found.state is JobState.RESTARTING
    assert found.record.n_failures == 1 and not found.record.seats
    picture = replace(after(picture, found), reports={})
    found = decide(picture)
    assert found is not None and found.record.attempt == 2 and found.state is JobState.RUNNING


def test_what_would_come_again_is_not_repeated():
    failure = HostFailure("AttributeError", code=1, is_final=True)
    echo = HostFailure("lost task 0", is_echo=True)
    picture = saying(
        running(), a=HostReport(FAILED, failure=echo), b=HostReport(FAILED, failure=failure)
    )
    found = decide(picture)
    assert found is not None and found.state is JobState.FAILED and found.result is not None
    assert found.result["cause"] == "AttributeError" and found.result["code"] == 1


def test_the_failure_that_zookeeper_heard_of_first_is_the_cause():
    first, second = HostFailure("task 3 crashed", when=11), HostFailure("task 0 crashed", when=12)
    reports = {"a": HostReport(FAILED, failure=second), "b": HostReport(FAILED, failure=first)}
    found = decide(saying(running(max_restarts=0), **reports))
    assert found is not None and found.result is not None
    assert found.result["cause"].startswith("task 3 crashed")


def test_a_host_that_went_is_the_cause_and_not_those_who_missed_it():
    echo = HostFailure("lost task 1", is_echo=True)
    picture = saying(running(max_restarts=0), a=HostReport(FAILED, failure=echo))
    picture = after(picture, decide(picture))
    assert decide(picture) is None, "its tasks may still run"
    found = decide(replace(picture, hosts=hosts(a=1)))
    assert found is not None and found.state is JobState.FAILED and found.result is not None
    assert "worker b was lost" in found.result["cause"]


def test_an_agent_that_came_back_is_not_the_one_that_had_the_order():
    back = hosts(a=1, b=1)
    back["b"] = replace(back["b"], member=9)
    picture = replace(running(), hosts=back)
    found = decide(picture)
    assert found is not None and found.record.aim == END


def test_failures_are_counted_since_the_last_checkpoint():
    picture = replace(start(max_restarts=1), need=ResourceRequest(1, 1), hosts=hosts(a=1))
    bad = HostFailure("task 0 was killed by SIGKILL")

    def fail(picture: JobSnapshot, checkpoint: int) -> JobSnapshot:
        picture = replace(after(picture, decide(picture)), reports={})
        picture = saying(picture, a=HostReport(RUNNING, checkpoint=checkpoint))
        if checkpoint > picture.record.checkpoint:
            picture = after(picture, decide(picture))
        picture = saying(picture, a=HostReport(FAILED, checkpoint=checkpoint, failure=bad))
        aimed = decide(picture)
        if aimed is not None and aimed.record.seats:
            picture = after(picture, aimed)
            aimed = decide(picture)
        return after(picture, aimed)

    for checkpoint in (10, 20, 30, 30):
        assert picture.state is not JobState.FAILED
        picture = fail(picture, checkpoint)
    assert picture.state is JobState.FAILED
    assert picture.record.n_failures == 0, "horn resume begins anew"


def test_to_stop_tasks_are_told_to_save_first_and_with_now_they_are_not():
    picture = replace(running(), state=JobState.STOPPING)
    found = decide(picture)
    assert found is not None and found.record.aim == STOP
    picture = after(picture, found)
    assert decide(picture) is None
    now = decide(replace(picture, wants_now=True))
    assert now is not None and now.record.aim == END
    found = decide(saying(picture, a=HostReport(STOPPED, checkpoint=7), b=HostReport(STOPPED)))
    assert found is not None
    picture = saying(picture, a=HostReport(STOPPED, checkpoint=7), b=HostReport(STOPPED))
    found = decide(after(picture, found))
    assert found is not None and found.state is JobState.STOPPED and found.result is not None
    assert found.result["checkpoint"] == 7 and found.result["code"] == 5


def test_a_job_that_waits_is_stopped_at_once():
    found = decide(replace(start(), state=JobState.STOPPING))
    assert found is not None and found.state is JobState.STOPPED


def test_a_job_that_finished_while_it_was_to_stop_has_succeeded():
    picture = replace(running(), state=JobState.STOPPING)
    found = decide(saying(picture, a=HostReport(FINISHED), b=HostReport(FINISHED)))
    assert found is not None and found.state is JobState.SUCCEEDED


# groups that come and leave


def downpour(**slots: int) -> JobSnapshot:
    """Two groups of two tasks and a server, on hosts with so many slots, running."""
    all_of = hosts(**slots)
    picture = JobSnapshot(JobState.PENDING, ResourceRequest(2, 2, 1), JobRecord(), {}, all_of)
    picture = after(picture, decide(picture))
    return saying(picture, **dict.fromkeys(picture.record.seats, HostReport(RUNNING)))


def ranks_of(picture: JobSnapshot) -> dict[str, tuple[int, ...]]:
    return {name: seat.ranks for name, seat in picture.record.seats.items()}


def wishing(picture: JobSnapshot, n_groups: int) -> JobSnapshot:
    """The wish is noted first: whoever is master next knows it."""
    picture = replace(picture, wants_groups=n_groups)
    found = decide(picture)
    assert found is not None and found.record.n_wanted == n_groups and not found.orders
    return after(picture, found)


def test_more_groups_get_seats_where_the_job_runs_in_the_same_attempt():
    picture = wishing(downpour(a=4, b=4), 4)
    assert ranks_of(picture) == {"a": (0, 1, 2, 3, 4)}, "b has no part in it"
    found = decide(picture)
    assert found is not None and "waits for 4 slots for more groups; 0 free on a" in (
        found.record.reason
    )
    assert decide(after(picture, found)) is None
    picture = wishing(downpour(a=8, b=3), 4)
    found = decide(picture)
    assert found is not None and found.record.groups == (0, 1, 2, 3)
    assert found.record.seats["a"].ranks == tuple(range(9)) and found.record.attempt == 1
    (order,) = found.orders.values()
    assert order is not None and order.groups == (0, 1, 2, 3) and order.aim == RUN
    assert decide(after(picture, found)) is None


def test_a_group_keeps_its_seat_until_it_has_left():
    picture = wishing(downpour(a=4), 1)
    found = decide(picture)
    assert found is not None and found.record.groups == (0,) and found.record.leaving == (1,)
    assert found.record.seats["a"].ranks == (0, 1, 2, 3, 4)
    picture = after(picture, found)
    assert decide(picture) is None
    found = decide(saying(picture, a=HostReport(RUNNING, left=(1,))))
    assert found is not None and found.record.leaving == ()
    assert found.record.seats["a"].ranks == (0, 1, 4)


def test_a_number_is_not_given_again_and_a_start_has_the_groups_that_are_wanted():
    picture = wishing(downpour(a=4), 1)
    picture = after(picture, decide(picture))
    picture = saying(picture, a=HostReport(RUNNING, left=(1,)))
    picture = wishing(after(picture, decide(picture)), 2)
    picture = after(picture, decide(picture))
    assert picture.record.groups == (0, 3) and picture.record.seats["a"].ranks == (0, 1, 4, 7, 8)
    picture = saying(picture, a=HostReport(FAILED, failure=HostFailure("killed")))
    picture = after(picture, decide(picture))
    assert picture.state is JobState.RESTARTING and not picture.record.seats
    picture = replace(picture, reports={}, hosts=hosts(c=2, d=2))
    found = decide(picture)
    assert found is not None and found.record.attempt == 2
    assert {n: s.ranks for n, s in found.record.seats.items()} == {"c": (0, 1, 4), "d": (7, 8)}
    assert all(order and order.groups == (0, 3) for order in found.orders.values())


def test_a_group_that_is_to_leave_is_started_again_with_the_others_and_then_leaves():
    """Else servers would wait for it."""
    picture = wishing(downpour(a=4), 1)
    picture = after(picture, decide(picture))
    picture = saying(picture, a=HostReport(FAILED, failure=HostFailure("killed")))
    picture = after(picture, decide(picture))
    assert picture.state is JobState.RESTARTING and picture.record.leaving == (1,)
    found = decide(replace(picture, reports={}))
    assert found is not None and found.record.seats["a"].ranks == (0, 1, 2, 3, 4)
    assert found.orders["a"] is not None and found.orders["a"].groups == (0,)
    picture = saying(after(picture, found), a=HostReport(RUNNING, left=(1,)))
    found = decide(picture)
    assert found is not None and found.record.seats["a"].ranks == (0, 1, 4)


def test_a_job_that_has_not_begun_begins_with_all_of_its_groups():
    picture = JobSnapshot(JobState.PENDING, ResourceRequest(2, 1, 1), JobRecord(), {}, hosts(a=4))
    found = decide(wishing(picture, 1))
    assert found is not None and found.record.groups == (0,) and found.record.leaving == (1,)
    assert found.record.seats["a"].ranks == (0, 1, 2)


def test_groups_whose_servers_are_in_their_processes_are_left_as_they_are():
    first = JobSnapshot(
        JobState.PENDING, ResourceRequest(2, 1, 1, guests=True), JobRecord(), {}, hosts(a=1, b=1)
    )
    picture = after(first, decide(first))
    picture = wishing(saying(picture, a=HostReport(RUNNING), b=HostReport(RUNNING)), 1)
    assert decide(picture) is None


def test_an_agent_that_was_told_to_leave_is_no_failure():
    picture = saying(running(max_restarts=0), a=HostReport(GONE))
    picture = after(picture, decide(picture))
    found = decide(saying(picture, b=HostReport(GONE)))
    assert found is not None and found.state is JobState.RESTARTING
    assert found.record.n_failures == 0 and "worker" in found.record.trouble


# Whatever happens


@dataclass
class Agent:
    """An agent as horn/cluster/agent.py behaves: it does what its order says, and when its session
    ends its tasks have ended before."""

    name: str
    member: int
    slots: int
    runs: int | None = None  # the attempt of its tasks
    aim: str = RUN


@dataclass
class World:
    """ZooKeeper and the agents."""

    need: ResourceRequest
    max_restarts: int
    is_poison: bool
    agents: dict[str, Agent] = field(default_factory=dict)
    state: JobState = JobState.PENDING
    record: JobRecord = field(default_factory=JobRecord)
    reports: dict[tuple[int, str], HostReport] = field(default_factory=dict)
    orders: dict[str, HostOrder] = field(default_factory=dict)
    wants_now: bool = False
    n_members: int = 0
    n_failures: int = 0

    def join(self, name: str, slots: int) -> None:
        if name not in self.agents:
            self.n_members += 1
            self.agents[name] = Agent(name, self.n_members, slots)

    def lose(self, name: str) -> None:
        self.agents.pop(name, None)

    def picture(self) -> JobSnapshot:
        there = {
            a.name: Host(
                a.name, "h", a.slots,
                a.slots - sum(
                    rank < self.need.n_slots
                    for rank in (self.record.seats[a.name].ranks if a.name in self.orders else ())
                ),
                member=a.member,
            )
            for a in self.agents.values()
        }  # fmt: skip
        reports = {h: r for (e, h), r in self.reports.items() if e == self.record.attempt}
        return JobSnapshot(
            self.state, self.need, self.record, reports, there, self.max_restarts, self.wants_now
        )

    def master(self) -> bool:
        found = decide(self.picture())
        if found is None:
            return False
        if found.state is not None and found.state is not self.state:
            assert found.state in NEXT[self.state], (self.state, found.state)
            self.state = found.state
        assert found.record.attempt >= self.record.attempt
        assert (found.result is not None) == (found.state in ENDED)
        self.record = found.record
        for host, order in found.orders.items():
            if order is None:
                del self.orders[host]
            else:
                self.orders[host] = order
        self.check()
        return True

    def agent(self, name: str) -> None:
        """Look at the orders."""
        agent, order = self.agents.get(name), self.orders.get(name)
        if agent is None:
            return
        if order is None or order.seats[name].member != agent.member:
            agent.runs = None
        elif (order.attempt, name) not in self.reports and agent.runs is None:
            if order.aim == RUN:
                agent.runs = order.attempt
                self.report(agent, STARTING)
            else:  # it was never started
                self.reports[order.attempt, name] = HostReport(GONE, member=agent.member)
        elif agent.runs == order.attempt and order.aim != RUN:
            phase = STOPPED if order.aim == STOP else GONE
            self.report(agent, phase)
        self.check()

    def report(self, agent: Agent, phase: str, failure: HostFailure | None = None) -> None:
        assert agent.runs is not None
        old = self.reports.get((agent.runs, agent.name))
        assert old is None or old.phase not in LAST
        self.reports[agent.runs, agent.name] = HostReport(
            phase, member=agent.member, failure=failure,
            checkpoint=-1 if old is None else old.checkpoint,
        )  # fmt: skip
        if phase in LAST:
            agent.runs = None

    def fail(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None and agent.runs is not None:
            self.n_failures += 1
            self.report(agent, FAILED, HostFailure("killed"))

    def finish(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None and agent.runs is not None and not self.is_poison:
            self.report(agent, FINISHED)

    def save(self, name: str, iteration: int) -> None:
        agent = self.agents.get(name)
        if agent is not None and agent.runs is not None and not self.is_poison:
            old = self.reports[agent.runs, name]
            self.reports[agent.runs, name] = msgspec.structs.replace(
                old, checkpoint=max(old.checkpoint, iteration)
            )

    def check(self) -> None:
        attempts = {a.runs for a in self.agents.values()} - {None}
        assert len(attempts) <= 1, f"attempts {attempts} at once"
        if self.state in ENDED:
            assert not self.orders and not attempts


NAMES = st.sampled_from("abc")
EVENTS = st.one_of(
    st.tuples(st.just("join"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("lose"), NAMES),
    st.tuples(st.just("agent"), NAMES),
    st.tuples(st.just("fail"), NAMES),
    st.tuples(st.just("finish"), NAMES),
    st.tuples(st.just("save"), NAMES, st.integers(0, 50)),
    st.tuples(st.just("master")),
    st.tuples(st.just("stop"), st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(
    events=st.lists(EVENTS, max_size=80),
    groups=st.integers(1, 3),
    tasks=st.integers(1, 2),
    max_restarts=st.integers(0, 3),
)
def test_no_two_epochs_run_at_once_and_every_job_can_end(
    events: list[Any], groups: int, tasks: int, max_restarts: int
):
    world = World(ResourceRequest(groups, tasks), max_restarts, is_poison=False)
    for what, *arguments in events:
        if what == "stop":
            if JobState.STOPPING in NEXT[world.state]:
                world.state, world.wants_now = JobState.STOPPING, arguments[0]
        else:
            getattr(world, what)(*arguments)
    # From wherever it is: enough workers, and nothing more goes wrong.
    for name in "abcd":
        world.join(name, 6)
    for _ in range(200):
        if world.state in ENDED:
            break
        while world.master():
            pass
        for name in "abcd":
            world.agent(name)
        if all(o.aim == RUN for o in world.orders.values()):
            for name in "abcd":
                world.finish(name)
    assert world.state in ENDED


@settings(max_examples=200, deadline=None)
@given(
    order=st.lists(NAMES, min_size=3, max_size=60),
    groups=st.integers(1, 3),
    max_restarts=st.integers(0, 4),
)
def test_a_job_that_always_fails_is_started_only_so_often(
    order: list[str], groups: int, max_restarts: int
):
    world = World(ResourceRequest(groups, 1), max_restarts, is_poison=True)
    for name in "abc":
        world.join(name, 1)
    order = [*order, *"abc"]
    for k in range(100 * (max_restarts + 2)):
        while world.master():
            pass
        if world.state in ENDED:
            break
        world.agent(order[k % len(order)])
        world.fail(order[k % len(order)])
        for name in "abc":
            world.agent(name)
    assert world.state is JobState.FAILED
    assert world.record.attempt == max_restarts + 1


# Where it goes after a failure


def failing(picture: JobSnapshot, host: str, failure: HostFailure) -> JobSnapshot:
    """As its master leaves it when nothing runs any more after a failure said by ``host``."""
    picture = saying(picture, **{host: HostReport(FAILED, failure=failure)})
    others = [name for name in picture.record.seats if name != host]
    if others:
        picture = after(picture, decide(picture))
        picture = saying(picture, **{name: HostReport(GONE) for name in others})
    return replace(after(picture, decide(picture)), reports={})


def placed(picture: JobSnapshot) -> JobSnapshot:
    return replace(after(picture, decide(picture)), reports={})


def test_a_poison_host_is_left_for_another_and_comes_last_until_it_has_proven_itself():
    one = replace(start(), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    picture = placed(one)
    assert set(picture.record.seats) == {"a"}
    picture = failing(picture, "a", HostFailure("task 0 was killed"))
    assert picture.record.blamed == {"a": 1}
    picture = placed(picture)
    assert set(picture.record.seats) == {"b"}
    # elsewhere it makes a checkpoint: that says nothing for the host that is blamed
    picture = saying(picture, b=HostReport(RUNNING, checkpoint=10))
    picture = after(picture, decide(picture))
    assert picture.record.blamed == {"a": 1}
    # it is not excluded: with nothing else it is taken, and with a checkpoint it is as any other
    picture = failing(picture, "b", HostFailure("task 0 was killed"))
    picture = placed(replace(picture, hosts=hosts(a=1)))
    assert set(picture.record.seats) == {"a"}
    picture = saying(picture, a=HostReport(RUNNING, checkpoint=20))
    assert after(picture, decide(picture)).record.blamed == {"b": 1}


def test_the_host_of_the_task_is_blamed_and_not_the_one_that_tells_of_it():
    picture = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    picture = failing(placed(picture), "a", HostFailure("task 1 was killed", hosts=("b",)))
    assert picture.record.blamed == {"b": 1}
    assert set(placed(picture).record.seats) == {"a", "c"}


def test_a_host_that_was_lost_is_blamed_for_it():
    picture = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    picture = saying(
        placed(picture), a=HostReport(FAILED, failure=HostFailure("lost", is_echo=True))
    )
    picture = after(picture, decide(picture))
    there = {name: host for name, host in picture.hosts.items() if name != "b"}
    picture = placed(replace(picture, hosts=there))
    assert picture.record.blamed == {"b": 1}
    there["b"] = Host("b", "h", 1, 1, member=99)
    assert set(placed(replace(picture, hosts=there)).record.seats) == {"a", "c"}


def test_two_hosts_that_lost_each_other_are_not_asked_again_while_there_is_a_third():
    picture = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    lost = HostFailure("lost task 1", is_echo=True, hosts=("a", "b"))
    picture = failing(placed(picture), "a", lost)
    assert picture.record.parted == (("a", "b"),) and not picture.record.blamed
    without_c = replace(picture, hosts=hosts(a=1, b=1))
    assert set(placed(without_c).record.seats) == {"a", "b"}
    picture = placed(picture)
    assert set(picture.record.seats) == {"b", "c"}
    together = saying(placed(without_c), a=HostReport(RUNNING, checkpoint=5))
    assert after(together, decide(together)).record.parted == ()


def test_what_is_resumed_begins_without_blame():
    picture = replace(start(max_restarts=0), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    picture = failing(placed(picture), "a", HostFailure("task 0 was killed"))
    assert picture.state is JobState.FAILED and not picture.record.blamed


RANKS = {"a": (0, 1), "b": (2, 3, 4)}
CALLED = {0: "task 0", 1: "task 1", 2: "task 2", 3: "task 3", 4: "server 0"}


@pytest.mark.parametrize(
    "error, expected",
    [
        (TaskFailed(2, 1, "starting", "was killed"), ("b",)),
        (TaskFailed(4, 1, "", "was killed", name="server 0"), ("b",)),
        (MemberLost("task 1, superstep 7", ("task 2",)), ("a", "b")),
        (MemberLost("task 2, superstep 7", ("task 3",)), ("b",)),
        (PeerLost("task 3, superstep 7", ("server 0",), "it was silent"), ("b",)),
        (PeerLost("the job", ("worker b",), "it was silent"), ("a", "b")),
        (BarrierTimeout("task 0, superstep 7", ("task 3",), (), 60.0), ("b",)),
        (ProtocolError("they disagree"), ("a",)),
    ],
)
def test_whose_failure_it_was(error: HornError, expected: tuple[str, ...]):
    assert blamed(error, "a", RANKS, CALLED) == expected


def test_it_goes_on_from_the_checkpoint_it_was_resumed_from_until_there_is_a_newer_one():
    picture = replace(start(), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    picture = replace(picture, record=JobRecord(attempt=3, checkpoint=100, begin=100))
    found = decide(picture)
    assert found is not None
    assert [order.begin for order in found.orders.values() if order] == [100]
    picture = failing(placed(picture), "a", HostFailure("task 0 was killed"))
    picture = placed(picture)
    assert picture.record.begin == 100, "after a failure, too"
    picture = saying(picture, b=HostReport(RUNNING, checkpoint=110))
    assert after(picture, decide(picture)).record.begin == -1


# groups that share every batch: others go on from a checkpoint


def sharing(**slots: int) -> JobSnapshot:
    """Two groups of two tasks without servers, running."""
    picture = JobSnapshot(JobState.PENDING, ResourceRequest(2, 2), JobRecord(), {}, hosts(**slots))
    picture = after(picture, decide(picture))
    return saying(picture, **dict.fromkeys(picture.record.seats, HostReport(RUNNING, checkpoint=7)))


def regrouped(picture: JobSnapshot, n_groups: int) -> JobSnapshot:
    """As many groups have been started as were wished for."""
    picture = after(picture, decide(picture))  # the checkpoint is noted
    picture = wishing(picture, n_groups)
    found = decide(picture)
    assert found is not None and found.state is None and found.record.aim == STOP
    assert {order and order.aim for order in found.orders.values()} == {STOP}
    picture = after(picture, found)
    assert decide(picture) is None, "they are saving"
    stopped = dict.fromkeys(picture.record.seats, HostReport(STOPPED, checkpoint=9))
    picture = saying(picture, **stopped)
    picture = after(picture, decide(picture))
    assert picture.record.checkpoint == 9
    picture = after(picture, decide(picture))
    assert picture.state is JobState.RESTARTING and not picture.record.seats
    assert (picture.record.n_restarts, picture.record.n_failures) == (0, 0)
    picture = replace(picture, reports={})
    found = decide(picture)
    assert found is not None and found.record.groups == tuple(range(n_groups))
    assert all(order and order.groups == found.record.groups for order in found.orders.values())
    return after(picture, found)


@pytest.mark.parametrize("n_groups", [1, 3])
def test_other_groups_go_on_from_a_checkpoint_in_a_new_attempt(n_groups):
    picture = regrouped(sharing(a=6), n_groups)
    assert picture.record.attempt == 2 and ranks_of(picture) == {"a": tuple(range(2 * n_groups))}
    picture = saying(picture, a=HostReport(RUNNING))
    assert decide(picture) is None
    picture = saying(picture, a=HostReport(RUNNING, checkpoint=12))
    picture = after(picture, decide(picture))
    assert (picture.record.checkpoint, picture.record.n_before) == (12, 0)
    assert decide(picture) is None


def test_nothing_is_stopped_before_there_is_room_and_all_run():
    picture = sharing(a=5, b=5)
    picture = wishing(after(picture, decide(picture)), 3)
    found = decide(picture)
    assert found is not None and not found.orders, "b's folder is another"
    assert "waits for" in found.record.reason and decide(after(picture, found)) is None
    wider = replace(picture, hosts=hosts(a=6, b=5))
    found = decide(wider)
    assert found is not None and found.record.aim == STOP
    assert decide(saying(wider, a=HostReport(STARTING, checkpoint=7))) is None


def test_a_job_that_is_to_stop_while_it_changes_its_groups_stops():
    picture = sharing(a=6)
    picture = wishing(after(picture, decide(picture)), 3)
    picture = replace(after(picture, decide(picture)), state=JobState.STOPPING)
    assert decide(picture) is None
    found = decide(saying(picture, a=HostReport(STOPPED, checkpoint=7)))
    assert found is not None and found.state is JobState.STOPPED


def test_what_so_many_groups_cannot_run_goes_on_with_those_that_it_had():
    picture = regrouped(sharing(a=6), 3)
    refused = HostFailure("a batch has 2 samples", 2, is_final=True)
    picture = saying(picture, a=HostReport(FAILED, failure=refused))
    picture = after(picture, decide(picture))
    assert picture.state is JobState.RESTARTING
    assert picture.record.trouble == "3 groups cannot run it: a batch has 2 samples"
    picture = replace(picture, reports={})
    picture = after(picture, decide(picture))
    assert ranks_of(picture) == {"a": (0, 1, 2, 3)} and picture.record.n_refused == 3
    picture = saying(picture, a=HostReport(RUNNING))
    assert decide(picture) is None, "it is not tried again"
    found = decide(saying(picture, a=HostReport(FAILED, failure=refused)))
    assert found is not None and found.state is JobState.FAILED


def test_groups_that_fail_after_a_checkpoint_are_no_reason_to_go_back():
    picture = regrouped(sharing(a=6), 3)
    picture = saying(picture, a=HostReport(RUNNING, checkpoint=20))
    picture = after(picture, decide(picture))
    refused = HostFailure("ZeroDivisionError", 1, is_final=True)
    found = decide(saying(picture, a=HostReport(FAILED, failure=refused, checkpoint=20)))
    assert found is not None and found.state is JobState.FAILED
