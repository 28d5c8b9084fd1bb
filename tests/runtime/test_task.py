"""The state machine of a task: groups of them on no transport at all, in every order."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.errors import ProtocolError
from horn.runtime import task as task_module
from horn.runtime.task import CollectInstruction, ComputeInstruction, PostInstruction, Task
from horn.transport import Channel


@st.composite
def plans(draw):
    """A group's size, its channels by superstep, a script that posts early, collects late."""
    n_tasks = draw(st.integers(2, 4))
    steps, part = [], 0
    for _ in range(draw(st.integers(0, 5))):
        step = []
        for _ in range(draw(st.integers(0, 4))):
            src = draw(st.integers(0, n_tasks - 1))
            others = [t for t in range(n_tasks) if t != src]
            dsts = draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
            step.append(Channel(part, src, tuple(dsts), "<f4", (draw(st.integers(0, 3)),)))
            part += 1
        steps.append(step)
    script, waiting = [], []
    for index, step in enumerate(steps):
        script.append(ComputeInstruction(len(script), f"before {index}"))
        script.append(PostInstruction(index, tuple(c.part for c in step), f"step {index}"))
        waiting.append(CollectInstruction(index, tuple(c.part for c in step), f"step {index}"))
        while waiting and draw(st.booleans()):
            script.append(waiting.pop(draw(st.integers(0, len(waiting) - 1))))
    script += waiting
    return n_tasks, [c for step in steps for c in step], tuple(script)


class World:
    """Tasks that do what they are told, with a net that delivers at once."""

    def __init__(self, n_tasks, channels, script):
        self.channels = {c.part: c for c in channels}
        self.tasks = [Task(task, n_tasks) for task in range(n_tasks)]
        self.sent: set[tuple[int, int]] = set()  # (part, superstep)
        self.seen: list[list[tuple[str, int]]] = [[] for _ in self.tasks]
        for task in self.tasks:
            task.open_channels(channels)
        self.script = script
        self.steps = [task.begin(script) for task in self.tasks]

    def may_go(self, number):
        step = self.steps[number]
        if step is None or step.phase != "collect":
            return step is not None
        superstep = self.tasks[number].superstep_now
        owed = [c for cs in step.owes.values() for c in cs]
        return all((c.part, superstep) in self.sent for c in owed)

    def go(self, number):
        task, step = self.tasks[number], self.steps[number]
        superstep = task.superstep_now
        mine = [self.channels[part] for part in step.parts if self.channels[part].src == number]
        if step.phase == "post":
            self.sent |= {(c.part, superstep) for c in mine}
        if step.phase != "compute":
            self.seen[number].append((step.phase, superstep))
        self.steps[number] = task.done(step.n_blocks)


@given(plans(), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_tasks_never_wait_for_one_another_in_a_circle(plan, n_runs, random):
    world = World(*plan)
    for run in range(n_runs):
        while any(step is not None for step in world.steps):
            ready = [k for k in range(len(world.tasks)) if world.may_go(k)]
            assert ready, "every task waits"
            world.go(random.choice(ready))
        n_supersteps = sum(isinstance(i, PostInstruction) for i in world.script)
        assert {task.superstep for task in world.tasks} == {(run + 1) * n_supersteps}
        assert {task.phase for task in world.tasks} == {"between"}
        if run < n_runs - 1:
            world.steps = [task.begin(world.script) for task in world.tasks]
    # all went through the same supersteps in the same order, each posted before it was collected
    assert all(seen == world.seen[0] for seen in world.seen)
    for phase, superstep in world.seen[0]:
        assert phase == "post" or ("post", superstep) in world.seen[0]


@given(plans())
@settings(max_examples=50, deadline=None)
def test_what_all_tasks_send_is_what_all_tasks_receive(plan):
    world = World(*plan)
    sent = received = (0, 0)
    for task in world.tasks:
        step = task.begin(world.script)
        while step is not None:
            counts = (step.n_messages, step.n_bytes)
            if step.phase == "post":
                sent = tuple(a + b for a, b in zip(sent, counts, strict=True))
            else:
                received = tuple(a + b for a, b in zip(received, counts, strict=True))
            step = task.done(step.n_blocks)
    assert sent == received


@given(plans(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_superstep_with_other_blocks_than_planned_is_named(plan, data):
    n_tasks, channels, script = plan
    task = Task(data.draw(st.integers(0, n_tasks - 1)), n_tasks)
    task.open_channels(channels)
    steps = [task.begin(script)]
    while (step := steps[-1]) is not None:
        if step.phase != "compute" and data.draw(st.booleans()):
            with pytest.raises(ProtocolError, match=r"conserved") as caught:
                task.done(step.n_blocks + data.draw(st.sampled_from([-1, 1, 2])))
            assert f"superstep {step.index}" in str(caught.value)
            return
        steps.append(task.done(step.n_blocks))


def planned():
    """Three tasks; task 2 is owed parts 0 and 1, and owes part 2."""
    task = Task(2, 3)
    task.open_channels(
        [
            Channel(0, 0, (1, 2), "<f4", (2, 3), "layer1, forward"),
            Channel(1, 1, (2,), "<f8", (4,)),
            Channel(2, 2, (0,), "<f4", (5,)),
        ]
    )
    return task


SCRIPT = (
    ComputeInstruction(0, "layer1, forward"),
    PostInstruction(0, (0, 1), "layer1, forward"),
    PostInstruction(1, (2,), "layer2, backward"),
    ComputeInstruction(1, "layer1, update"),
    CollectInstruction(0, (0, 1), "layer1, forward"),
    CollectInstruction(1, (2,), "layer2, backward"),
)


def test_steps_know_what_the_task_owes_and_is_owed():
    task = planned()
    steps = [task.begin(SCRIPT)]
    while steps[-1] is not None:
        steps.append(task.done(steps[-1].n_blocks))
    told = [(s.phase, s.n_blocks, s.n_messages, s.n_bytes) for s in steps[:-1]]
    assert told == [
        ("compute", 0, 0, 0), ("post", 0, 0, 0), ("post", 1, 1, 20),
        ("compute", 0, 0, 0), ("collect", 2, 2, 24 + 32), ("collect", 0, 0, 0),
    ]  # fmt: skip


def test_the_superstep_of_a_computation_is_the_next_one_posted():
    task = planned()
    step, found = task.begin(SCRIPT), []
    while step is not None:
        found.append((step.phase, step.superstep, task.superstep_now))
        step = task.done(step.n_blocks)
    assert found == [
        ("compute", 0, 0), ("post", 0, 0), ("post", 1, 1),
        ("compute", 2, 2), ("collect", 0, 0), ("collect", 1, 1),
    ]  # fmt: skip
    assert task.begin(SCRIPT).superstep == 0 and task.superstep_now == 2


def test_a_script_is_read_and_traced_in_time_proportional_to_its_length():
    def n_lines(n):
        """Lines of the state machine that run, which a clock would count worse."""
        task, count = Task(0, 2), itertools.count()
        task.open_channels([Channel(0, 0, (1,), "<f4", (1,))])
        script = [
            made
            for i in range(n)
            for made in (
                ComputeInstruction(i), PostInstruction(i, (0,)), CollectInstruction(i, (0,)),
            )
        ]  # fmt: skip

        def trace(frame, event, arg):
            if frame.f_code.co_filename == task_module.__file__:
                next(count)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            step = task.begin(tuple(script))
            while step is not None:
                assert task.superstep_now == step.index
                step = task.done(step.n_blocks)
        finally:
            sys.settrace(before)
        return next(count)

    assert n_lines(80) < 2.1 * n_lines(40)
    task = planned()
    task.iteration = 7
    assert task.where == "iteration 7, superstep 0"
    task.begin(SCRIPT)
    assert task.where == "iteration 7, superstep 0 (layer1, forward), compute"
    for n_blocks in (0, 0, 1):
        task.done(n_blocks)
    assert task.where == "iteration 7, superstep 2 (layer1, update), compute"
    task.done(0)
    assert task.where == "iteration 7, superstep 0 (layer1, forward), collect"
    assert task.owed_by([1, 0], "rank {}".format) == (
        "rank 0 owes part 0 (layer1, forward, <f4 (2, 3)); rank 1 owes part 1 (<f8 (4,))"
    )
    task.done(2)
    assert task.owed_by([0], "task {}".format) == "task 0 owes its arrival"
    task.done(0)
    assert task.phase == "between" and task.superstep == 2
    task.begin(SCRIPT)
    assert task.where == "iteration 7, superstep 2 (layer1, forward), compute"


def test_only_the_first_failure_is_kept():
    task = planned()
    task.begin(SCRIPT)
    assert task.fail("Diverged", "the loss became nan")
    task.done(0)
    assert not task.fail("PeerLost", "lost task 1")
    assert task.failure is not None and task.failure.kind == "Diverged"
    assert task.failure.where == "superstep 0 (layer1, forward), compute"


@pytest.mark.parametrize(
    "script, words",
    [
        ((CollectInstruction(0, (0,)),), "not posted before"),
        ((PostInstruction(0, (0,)),), r"supersteps \[0\] and does not collect"),
        ((PostInstruction(0, (0,)), CollectInstruction(0, (1,))), "not posted before"),
        (
            (PostInstruction(0, (0,)), CollectInstruction(0, (0,)), CollectInstruction(0, (0,))),
            "or twice",
        ),
        ((PostInstruction(1, (0,)), CollectInstruction(1, (0,))), "to post next is 0"),
        ((PostInstruction(0, (0, 0)), CollectInstruction(0, (0, 0))), "named twice"),
        (
            (PostInstruction(0, (9,)), CollectInstruction(0, (9,))),
            r"parts \[9\] have no channels",
        ),
        (
            (
                PostInstruction(0, (0,)),
                PostInstruction(1, (0,)),
                CollectInstruction(0, (0,)),
                CollectInstruction(1, (0,)),
            ),
            "under way",
        ),
    ],
)
def test_a_script_that_cannot_end_well_is_refused(script, words):
    with pytest.raises(ProtocolError, match=words):
        planned().begin(script)
