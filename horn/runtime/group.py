"""The only loop of a task: it carries out the instructions of the state machine
(``runtime/task.py``) over a transport: compute, send, wait, receive. Nothing else waits. All tasks
of a group run alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from horn import defaults
from horn.errors import BarrierTimeout, MemberLost
from horn.runtime.task import COMPUTE, POST, Script, Task
from horn.transport import Channel, PeerLost, Transport
from horn.wire.frames import Array


class ScriptHandler(Protocol):
    """The work of a program for each instruction of a script: compute, pack, unpack."""

    def compute(self, index: int) -> None:
        """Run a segment. It may write blocks of coming supersteps into ``Group.outbox``."""

    def pack(self, index: int, outbox: Callable[[int], Array]) -> None:
        """Write every block that this task owes in superstep ``index`` and that no computation has
        written, calling ``outbox(part)`` once for each.
        """

    def unpack(self, index: int, inbox: Callable[[int], Array]) -> None:
        """Use every block of superstep ``index``, calling ``inbox(part)`` once for each."""


class Barrier(Protocol):
    """A barrier that tasks cross besides their messages, such as coordination/barrier.py."""

    def cross(self, generation: int, timeout_s: float) -> None: ...


@dataclass
class TaskTimes:
    """Totals of one task: seconds, messages (a block for two tasks is two) and bytes.

    compute : running the program. pack : writing blocks, with the wait for room. send : passing
    them to the transport. wait : for the others' blocks, and at barriers. unpack : using them.
    """

    n_runs: int = 0
    n_supersteps: int = 0
    compute_s: float = 0.0
    pack_s: float = 0.0
    send_s: float = 0.0
    wait_s: float = 0.0
    unpack_s: float = 0.0
    n_sent: int = 0
    sent_bytes: int = 0
    n_received: int = 0
    received_bytes: int = 0

    def __add__(self, other: TaskTimes) -> TaskTimes:
        return TaskTimes(**{name: n + getattr(other, name) for name, n in vars(self).items()})


# phase ("compute", "pack", "send", "wait", "unpack"), label, superstep, begin and end in seconds
OnTrace = Callable[[str, str, int, float, float], None]


class Group:
    """One task's membership of its group, ready to run scripts.

    ``timeout_s`` bounds every wait for the others, ``start_timeout_s`` that in ``open_channels``
    and in the first ``cross``, before which others may still compile. ``barrier`` is crossed by
    ``cross``, and with ``every_superstep`` also at the end of each; ``members`` are the tasks by
    their names there. ``on_trace`` is called for every step of a script, ``on_run`` after each
    script.

    Raises
    ------
    BarrierTimeout : names the late tasks, the superstep and phase, and what they owe. PeerLost,
    MemberLost : a task is lost. ProtocolError : messages were not conserved, or a frame was lost,
    doubled, reordered or corrupted.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.perf_counter,
        timeout_s: float = defaults.SUPERSTEP_TIMEOUT_S,
        start_timeout_s: float | None = None,
        barrier: Barrier | None = None,
        members: Mapping[str, int] | None = None,
        every_superstep: bool = True,
        on_trace: OnTrace | None = None,
        on_run: Callable[[], None] | None = None,
    ) -> None:
        self.transport, self.clock, self.timeout_s = transport, clock, timeout_s
        self.start_timeout_s = timeout_s if start_timeout_s is None else start_timeout_s
        self.barrier, self.every_superstep, self.on_trace = barrier, every_superstep, on_trace
        self.on_run, self.members = on_run, members or {}
        self.task, self.n_tasks = transport.task, transport.n_tasks
        self.state = Task(self.task, self.n_tasks)
        self._spent = TaskTimes()
        self._n_crossed = 0
        self._written: list[int] = []  # parts whose outbox is being filled, not posted yet
        self._n_read = 0

    @property
    def spent(self) -> TaskTimes:
        """A copy of the totals of all scripts so far."""
        return replace(self._spent)

    def open_channels(self, channels: Sequence[Channel], timeout_s: float | None = None) -> None:
        """Agree on the channels with all tasks: collective. Earlier channels no longer hold."""
        timeout_s = self.start_timeout_s if timeout_s is None else timeout_s
        self.transport.open_channels(channels, timeout_s)
        self.state.open_channels(channels)
        self._written.clear()

    def wait_all(self) -> None:
        """Wait for all tasks: collective, between scripts."""
        self.transport.barrier(self.state.superstep, self.start_timeout_s)

    def run(self, script: Script, work: ScriptHandler) -> None:
        """Run a script on ``work``: collective."""
        try:
            self._run(script, work)
        except (BarrierTimeout, MemberLost) as error:
            raise self._failed(error) from error
        except BaseException as error:
            self.state.fail(type(error).__name__, str(error))
            raise

    def _run(self, script: Script, work: ScriptHandler) -> None:
        state, transport, clock, trace = self.state, self.transport, self.clock, self.on_trace
        timeout_s, base = self.timeout_s, state.superstep
        compute, pack, unpack = work.compute, work.pack, work.unpack
        outbox, inbox = self.outbox, self._inbox
        compute_s = pack_s = send_s = wait_s = unpack_s = 0.0
        n_supersteps = n_sent = sent_bytes = n_received = received_bytes = 0
        step = state.begin(script)
        then = clock()
        while step is not None:
            index = step.index
            if step.phase is COMPUTE:
                compute(index)
                now = clock()
                compute_s += now - then
                if trace is not None:
                    trace("compute", step.label, state.superstep_now, then, now)
                then = now
                step = state.done(0)
                continue
            superstep = base + index
            if step.phase is POST:
                pack(index, outbox)
                n_boxes = self._n_written(step.posted)
                between = clock()
                transport.post(superstep, step.parts)
                now = clock()
                pack_s += between - then
                send_s += now - between
                n_sent += step.n_messages
                sent_bytes += step.n_bytes
                first, second = "pack", "send"
            else:
                transport.collect(superstep, step.parts, timeout_s)
                if self.barrier is not None and self.every_superstep:
                    self._cross()
                between = clock()
                self._n_read = 0
                unpack(index, inbox)
                n_boxes = self._n_read
                now = clock()
                wait_s += between - then
                unpack_s += now - between
                n_supersteps += 1
                n_received += step.n_messages
                received_bytes += step.n_bytes
                first, second = "wait", "unpack"
            if trace is not None:
                trace(first, step.label, superstep, then, between)
                trace(second, step.label, superstep, between, now)
            then = now
            step = state.done(n_boxes)
        spent = self._spent
        spent.n_runs += 1
        spent.n_supersteps += n_supersteps
        spent.compute_s += compute_s
        spent.pack_s += pack_s
        spent.send_s += send_s
        spent.wait_s += wait_s
        spent.unpack_s += unpack_s
        spent.n_sent += n_sent
        spent.sent_bytes += sent_bytes
        spent.n_received += n_received
        spent.received_bytes += received_bytes
        if self.on_run is not None:
            self.on_run()

    def cross(self) -> None:
        """Wait for all tasks at the barrier, if there is one; at the start, and between epochs."""
        if self.barrier is None:
            return
        self.state.arrive()
        try:
            self._cross()
        except (BarrierTimeout, MemberLost) as error:
            raise self._failed(error) from error
        self.state.leave()

    def _cross(self) -> None:
        # Generations must grow: they count crossings, since supersteps may end in another order.
        generation = self._n_crossed
        self._n_crossed += 1
        assert self.barrier is not None
        self.barrier.cross(generation, self.timeout_s if generation else self.start_timeout_s)

    def outbox(self, part: int) -> Array:
        self._written.append(part)
        return self.transport.outbox(part, self.timeout_s)

    def _n_written(self, parts: frozenset[int]) -> int:
        """The number of outboxes of these parts that were asked for since the last call."""
        n_before = len(self._written)
        self._written = [part for part in self._written if part not in parts]
        return n_before - len(self._written)

    def _inbox(self, part: int) -> Array:
        self._n_read += 1
        return self.transport.inbox(part)

    def _failed(self, error: BarrierTimeout | MemberLost) -> BarrierTimeout | MemberLost:
        located = self._located(error)
        self.state.fail(type(located).__name__, str(located))
        return located

    def _located(self, error: BarrierTimeout | MemberLost) -> BarrierTimeout | MemberLost:
        """The same error with the position of this task, and the blocks that it waits for."""
        name, [by] = self.transport.identity.who(self.task)
        where = f"{name}, {self.state.where}"
        if isinstance(error, PeerLost):
            return type(error)(where, error.lost, error.reason, error.lost_ranks, by)
        if isinstance(error, MemberLost):  # of the barrier, which has names of its own
            lost, ranks = self._called(error.lost)
            return MemberLost(where, lost, ranks, by)
        absent, arrived, ranks = error.absent, error.arrived, error.absent_ranks
        hint = error.hint
        if not ranks:
            tasks = [self.members[member] for member in absent]
            hint = hint or self.state.owed_by(tasks, self.transport.identity.name)
            (absent, ranks), (arrived, _) = self._called(absent), self._called(arrived)
        return BarrierTimeout(where, absent, arrived, error.timeout_s, hint, ranks)

    def _called(self, members: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The names of members of the barrier, and their ranks."""
        found = [self.transport.identity.who(self.members[member]) for member in members]
        return tuple(name for name, _ in found), tuple(rank for _, ranks in found for rank in ranks)
