"""Whatever happens to a master and its agents, no two attempts of a job run at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.cluster.master import (
    ENDED_PHASES,
    FAILED,
    FINISHED,
    GONE,
    RUN,
    STARTING,
    STOP,
    STOPPED,
    HostFailure,
    HostOrder,
    HostReport,
    JobRecord,
    JobSnapshot,
    decide,
)
from horn.cluster.scheduler import Host, ResourceRequest
from horn.coordination.jobs import ENDED, NEXT, JobState


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

    def _ranks_on(self, name: str) -> tuple[int, ...]:
        return self.record.allocations[name].ranks if name in self.orders else ()

    def join(self, name: str, slots: int) -> None:
        if name not in self.agents:
            self.n_members += 1
            self.agents[name] = Agent(name, self.n_members, slots)

    def lose(self, name: str) -> None:
        self.agents.pop(name, None)

    def snapshot(self) -> JobSnapshot:
        there = {
            a.name: Host(
                a.name, "h", a.slots,
                a.slots - sum(
                    rank < self.need.n_slots
                    for rank in self._ranks_on(a.name)
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
        found = decide(self.snapshot())
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
        if order is None or order.allocation.member != agent.member:
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
        assert old is None or old.phase not in ENDED_PHASES
        self.reports[agent.runs, agent.name] = HostReport(
            phase, member=agent.member, failure=failure,
            checkpoint=-1 if old is None else old.checkpoint,
        )  # fmt: skip
        if phase in ENDED_PHASES:
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
def test_no_two_attempts_run_at_once_and_every_job_can_end(
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
