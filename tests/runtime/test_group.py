"""The I/O loop on threads: what it measures, what it says when something is missing or wrong."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.errors import BarrierTimeout, ProtocolError
from horn.runtime.group import Group, TaskTimes
from horn.runtime.task import CollectInstruction, ComputeInstruction, PostInstruction
from horn.transport import Channel, Identity, PeerLost
from tests.transport.faulty import CorruptFault, DelayFault, DropFault, DuplicateFault, FaultyInProc
from tests.transport.groups import TIMEOUT_S, all_to_all, good, run_threads

N_SETUP = 3  # frames to each peer before the first block: hello, welcome, plan


class Sums:
    """Every task adds up what all tasks hold: two supersteps, the second under way meanwhile."""

    def __init__(self, task, n_tasks):
        self.task, self.n_tasks = task, n_tasks
        self.mine = np.full(4, task + 1.0, "<f4")
        self.totals = {}
        self.log = []

    def compute(self, index):
        self.log.append(("compute", index))

    def pack(self, index, outbox):
        self.log.append(("pack", index))
        outbox(index * self.n_tasks + self.task)[...] = self.mine * (index + 1)

    def unpack(self, index, inbox):
        self.log.append(("unpack", index))
        total = self.mine * (index + 1)
        for other in range(self.n_tasks):
            if other != self.task:
                total = total + inbox(index * self.n_tasks + other)
        self.totals[index] = total


def script_of(n_tasks):
    first, second = tuple(range(n_tasks)), tuple(range(n_tasks, 2 * n_tasks))
    return (
        ComputeInstruction(0, "layer1, forward"),
        PostInstruction(0, first, "layer1, forward"),
        PostInstruction(1, second, "layer2, backward"),
        ComputeInstruction(1, "layer2, update"),
        CollectInstruction(0, first, "layer1, forward"),
        CollectInstruction(1, second, "layer2, backward"),
    )


def channels_of(n_tasks):
    return [
        Channel(index * n_tasks + c.part, c.src, c.dsts, c.dtype, (4,), label)
        for index, label in enumerate(["layer1, forward", "layer2, backward"])
        for c in all_to_all(n_tasks)
    ]


def of_run(number):
    return f"task {number}", (number,)


def run(n_tasks, body, faults=None, timeout_s=TIMEOUT_S, scheme="inproc", who=of_run, **settings):
    """``body(group, script, work)`` on every task; its results or errors."""

    def made(task):
        place = Identity(task, n_tasks, "test", 7, None, who)
        return FaultyInProc("inproc://", place, faults if task == 0 else None)

    def whole(transport):
        group = Group(transport, timeout_s=timeout_s, **settings)
        group.open_channels(channels_of(n_tasks), TIMEOUT_S)
        return body(group, script_of(n_tasks), Sums(transport.task, n_tasks))

    return run_threads(scheme, n_tasks, whole, made=made if scheme == "inproc" else None)


@pytest.mark.parametrize("scheme", ["inproc", "shm"])
@pytest.mark.parametrize("n_tasks", [2, 3, 5])
def test_every_task_has_the_blocks_of_all(n_tasks, scheme):
    def body(group, script, work):
        for _ in range(20):
            group.run(script, work)
        return work, group.spent

    total = sum(range(1, n_tasks + 1))
    for work, spent in good(run(n_tasks, body, scheme=scheme)):
        np.testing.assert_array_equal(work.totals[0], np.full(4, total))
        np.testing.assert_array_equal(work.totals[1], np.full(4, 2 * total))
        assert work.log[:6] == [
            ("compute", 0), ("pack", 0), ("pack", 1),
            ("compute", 1), ("unpack", 0), ("unpack", 1),
        ]  # fmt: skip
        others = n_tasks - 1
        assert (spent.n_runs, spent.n_supersteps) == (20, 40)
        assert spent.n_sent == spent.n_received == 40 * others
        assert spent.sent_bytes == spent.received_bytes == 40 * others * 16


def test_time_is_measured_by_the_given_clock():
    def body(group, script, work):
        group.clock = itertools.count(0.0, 1.0).__next__  # a second passes from look to look
        group.run(script, work)
        return group.spent

    for spent in good(run(2, body)):
        assert (spent.compute_s, spent.pack_s, spent.send_s) == (2.0, 2.0, 2.0)
        assert (spent.wait_s, spent.unpack_s) == (2.0, 2.0)
    assert TaskTimes(n_runs=1, wait_s=0.5) + TaskTimes(n_runs=2) == TaskTimes(n_runs=3, wait_s=0.5)


def test_a_trace_hears_of_every_piece_of_work():
    def body(group, script, work):
        heard = []
        group.on_trace = lambda *event: heard.append(event)
        group.clock = itertools.count(0.0, 1.0).__next__
        group.run(script, work)
        group.run(script, work)
        return heard

    for heard in good(run(2, body)):
        assert [event[0] for event in heard] == [
            "compute", "pack", "send", "pack", "send",
            "compute", "wait", "unpack", "wait", "unpack",
        ] * 2  # fmt: skip
        assert [event[2] for event in heard[:10]] == [0, 0, 0, 1, 1, 2, 0, 0, 1, 1]
        assert heard[10][2] == 2 and heard[-1][2] == 3
        assert all(a[4] <= b[3] for a, b in itertools.pairwise(heard))


def test_a_second_agreement_keeps_the_count():
    def body(group, script, work):
        group.run(script, work)
        group.open_channels(channels_of(2), TIMEOUT_S)
        again = script_of(2)
        group.run(again, work)
        return group.state.superstep, group.spent.n_supersteps

    assert good(run(2, body)) == [(4, 4)] * 2


class Forgets(Sums):
    def pack(self, index, outbox):
        if self.task or not index:
            super().pack(index, outbox)


class Ignores(Sums):
    def unpack(self, index, inbox):
        if self.task or not index:
            super().unpack(index, inbox)


@pytest.mark.parametrize("work, how", [(Forgets, "outbox"), (Ignores, "unpacked 0 blocks")])
def test_messages_that_are_not_conserved_are_named(work, how):
    def body(group, script, _):
        group.run(script, work(group.task, 2))

    error, _ = run(2, body)
    assert isinstance(error, ProtocolError)
    assert how in str(error) and "superstep 1" in str(error)


@pytest.mark.parametrize(
    "fault",
    [
        DropFault(),
        DuplicateFault(),
        DelayFault(1),
        CorruptFault(part=2, bit=5),
        CorruptFault(0, 100),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_frame_that_goes_wrong_changes_nothing(fault, at):
    assert totals({(0, 1, N_SETUP + at): fault}) == totals({})


@given(at=st.integers(1, 12), bit=st.integers(0, 511), part=st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_no_flipped_bit_is_absorbed(at, bit, part):
    assert totals({(0, 1, N_SETUP + at): CorruptFault(part, bit)}) == totals({})


def totals(faults):
    """What both tasks have after some runs with faults."""

    def body(group, script, work):
        for _ in range(6):
            group.run(script, work)
        return {index: total.tolist() for index, total in work.totals.items()}

    return good(run(2, body, faults))


def test_a_late_task_is_named_with_superstep_phase_and_what_it_owes():
    has_given_up = threading.Event()

    def body(group, script, work):
        group.state.iteration = 3
        group.run(script, work)
        if group.task == 1:
            assert has_given_up.wait(TIMEOUT_S)
            return
        group.timeout_s = 0.3
        try:
            group.run(script, work)
        finally:
            has_given_up.set()

    error, _ = run(2, body)
    assert isinstance(error, BarrierTimeout)
    assert error.absent == ("task 1",)
    assert error.where == "task 0, iteration 3, superstep 2 (layer1, forward), collect"
    assert "task 1 owes part 1 (layer1, forward, <f4 (4,))" in str(error)


def test_the_tasks_of_a_group_are_named_by_their_ranks_in_the_run():
    """Its transport counts them from 0."""
    has_given_up = threading.Event()

    def body(group, script, work):
        if group.task == 1:
            assert has_given_up.wait(TIMEOUT_S)
            raise ZeroDivisionError("task 1 of my list")
        group.timeout_s = 0.3
        try:
            group.run(script, work)
        except BarrierTimeout as error:
            has_given_up.set()
            group.timeout_s = TIMEOUT_S
            with pytest.raises(PeerLost) as lost:
                group.transport.barrier(0, TIMEOUT_S)
            return error, group._located(lost.value)

    (late, lost), _ = run(2, body, who=lambda number: (f"task {4 + number}", (4 + number,)))
    assert (late.absent, late.absent_ranks, late.arrived) == (("task 5",), (5,), ("task 4",))
    assert str(late).startswith("task 4, superstep 0") and "task 5 owes part 1" in str(late)
    assert (lost.lost, lost.lost_ranks, lost.by) == (("task 5",), (5,), 4)
    assert "task 1 of my list" in lost.reason


def test_a_lost_task_is_named_and_the_first_failure_is_kept():
    kept = {}

    def body(group, script, work):
        group.run(script, work)
        if group.task == 1:
            raise ZeroDivisionError("boom")
        kept[0] = group.state
        group.run(script, work)

    lost, root = run(2, body)
    assert isinstance(root, ZeroDivisionError)
    assert isinstance(lost, PeerLost) and "ZeroDivisionError: boom" in str(lost)
    assert "superstep 2 (layer1, forward)" in str(lost)
    assert kept[0].failure.kind == "PeerLost"


class Gate:
    """A barrier that only notes its generations."""

    def __init__(self):
        self.crossed = []

    def cross(self, generation, timeout_s):
        self.crossed.append(generation)


def test_a_barrier_is_crossed_after_every_superstep():
    def body(group, script, work):
        group.barrier = Gate()
        group.cross()
        group.run(script, work)
        group.run(script, work)
        return group.barrier.crossed

    assert good(run(2, body)) == [[0, 1, 2, 3, 4]] * 2


def test_names_at_a_barrier_are_tasks():
    class Late:
        def cross(self, generation, timeout_s):
            raise BarrierTimeout("generation 0 of /horn", ("1",), ("0",), timeout_s)

    def body(group, script, work):
        group.barrier, group.members = Late(), {"0": 0, "1": 1}
        group.run(script, work)

    for error in run(2, body):
        assert isinstance(error, BarrierTimeout)
        assert error.absent == ("task 1",) and error.arrived == ("task 0",)
        assert error.absent_ranks == (1,)
        assert "superstep 0 (layer1, forward), collect" in str(error)

    def between(group, script, work):
        group.barrier, group.members = Late(), {"0": 0, "1": 1}
        group.cross()

    for error in run(2, between):
        assert "superstep 0, barrier: only 1 of 2 arrived" in str(error)
        assert "task 1 owes its arrival" in str(error)
