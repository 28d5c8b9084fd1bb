"""A task's engine under a strategy: the group's engine, and what the strategy asks for between
batches.

The strategy says what is to be sent and waited for; here it is done. Every wait has a deadline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horn.backends import Setup
from horn.backends._compiled import Runner
from horn.compiler.marks import first_needed, last_made, marked
from horn.compiler.program import Post, Program
from horn.data import Dataset
from horn.runtime.engine import GroupEngine
from horn.runtime.exchange import Exchange
from horn.strategies import Leave, Mean, Pull, Push, Requests, Strategy, View
from horn.strategies._seat import Seat
from horn.strategies.parameter_server.client import Wire
from horn.strategies.parameter_server.pieces import Bundle
from horn.strategies.parameter_server.pieces import pieces as all_pieces
from horn.wire.frames import Array

if TYPE_CHECKING:  # most tasks never need it, nor ZeroMQ
    from horn.strategies.parameter_server.durable import LastingWire


class Replica(GroupEngine):
    """One task's engine. ``own_loss``, ``own_samples`` are of the last batch, in this group."""

    def __init__(self, strategy: Strategy, seat: Seat) -> None:
        job, topology = seat.job, seat.topology
        self.strategy = strategy
        self.wire: Wire | LastingWire | None = None
        self.first_batch = 0  # where this group goes on, if it has come back or came later
        self.start_s = seat.start_s
        self._lasts = seat.servers is not None
        if seat.servers is not None:
            from horn.strategies.parameter_server.durable import LastingWire

            cut = all_pieces(job.network, seat.placement, topology, job.dtype)
            found = seat.servers

            def check() -> None:
                found.check()
                if seat.check is not None:
                    seat.check()

            self.wire = LastingWire(topology, cut, job.dtype, seat.timeout_s, seat.spent,
                                    found.place(), found.find, check)  # fmt: skip
        elif seat.wire is not None:
            cut = all_pieces(job.network, seat.placement, topology, job.dtype)
            self.wire = Wire(
                seat.wire,
                topology,
                cut,
                job.dtype,
                seat.timeout_s,
                seat.spent,
                seat.check,
                seat.group.agree_timeout_s,
            )
        n_joined = topology.n_groups if strategy.is_joined else 1
        self.n_parts = seat.n_first or topology.n_groups  # of a batch
        size = min(job.batch_size, len(job.data))
        if not strategy.is_joined:
            size = -(-size // self.n_parts)
        setup = Setup(
            job.network, strategy.optimizer(job), job.target, size, job.dtype, seat.threads,
            tuple(job.aggregates.values()),
        )  # fmt: skip
        super().__init__(
            setup,
            seat.placement,
            seat.group,
            backend=seat.backend,
            initial=seat.initial,
            owns_initial=True,
            n_groups=n_joined,
        )
        self.topology = topology
        self.own_group, self.own_task = divmod(seat.rank, topology.n_tasks)
        self.is_joined = strategy.is_joined
        self.view = View(self.own_group, self.own_task, topology, {}, {})
        self.remembered: Any = None
        self.own_loss, self.own_samples = 0.0, 0
        self._own_total: str | None = None
        self._stream: Stream | None = None

    def arranged(self, program: Program) -> Program:
        """With marks where parameters are first needed and where gradients are ready."""
        if self.wire is None or not self._has_streams:
            return program
        pulls, pushes = self.wire.pulls.values(), self.wire.pushes
        return marked(program, [b.names for b in pulls], [self._pushed(b) for b in pushes])

    @property
    def _has_streams(self) -> bool:
        """Whether parameters and gradients travel while a batch computes."""
        return self.topology.n_servers > 0 and bool(self.strategy.pushed_slot)

    def _pushed(self, bundle: Bundle) -> frozenset[str]:
        """The slots that have a bundle's gradients."""
        return frozenset(f"{name}/{self.strategy.pushed_slot}" for name in bundle.names)

    def _streamed(self, runner: Runner) -> Stream | None:
        if self.wire is None or not self._has_streams:
            return None
        program, needed, ready = runner.program, dict[int, list[int]](), dict[int, list[int]]()
        for bundle in self.wire.pulls.values():
            first = first_needed(program, bundle.names)
            if first is not None:
                needed.setdefault(first, []).append(bundle.part)
        for bundle in self.wire.pushes:
            last = last_made(program, self._pushed(bundle))
            if last is not None:
                ready.setdefault(last, []).append(bundle.part)
        return Stream(self._exchanges[id(runner)], self.wire, needed, ready)

    def bind(self, data: Dataset) -> None:
        super().bind(data)
        self.view.parameters = {name: self.arrays[name] for name in self._learned}
        self.view.slots = {name: self.arrays[name] for name in self._slots}
        self.remembered = self.strategy.begin(self.view)
        assert self._training is not None
        program = self._training[0].program
        moves = [m for s in program.statements if isinstance(s, Post) for m in s.moves if m.across]
        made_from = {move.out: move.array for move in moves}
        # What this group's samples lose, before what others' do is added: at the foot of the tree.
        self._own_total = made_from.get(program.loss or "")
        while self._own_total in made_from:
            self._own_total = made_from[self._own_total]
        self._stream = self._streamed(self._training[0])
        clock = 0
        if self._lasts:
            assert self.wire is not None and not isinstance(self.wire, Wire)
            clock = self.wire.join(self.start_s)
            self.first_batch = self.strategy.returns(self.remembered, clock)
            self.view.n_batches = self.first_batch
        if self.wire is not None and self.topology.n_servers and self.own_group == 0:
            self.wire.begin(self.view.parameters)
        if clock and self.wire is not None:  # the first batch may not be one that pulls
            self.wire.pull(Pull(clock), self.view.parameters)
            self.wire.take_all()

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """One batch of all groups; the loss is that of all under a joined strategy, else this
        group's own.
        """
        n, part = len(rows), self.own_group % self.n_parts
        start, stop = (n * k // self.n_parts for k in (part, part + 1))
        self.own_samples = self.view.n_samples = stop - start
        self._do(self.strategy.before_batch(self.remembered, self.view))
        if self.is_joined:
            loss = super().step(rows, iteration=iteration, first_sample=first_sample)
        elif start == stop:
            loss = 0.0
        else:
            loss = super().step(
                rows[start:stop], iteration=iteration, first_sample=first_sample + start
            )
        if self.wire is not None:
            self.wire.take_all()
            self.wire.give_all()
        self.own_loss = self._own_loss(loss)
        self.view.n_batches += 1
        self._do(self.strategy.after_batch(self.remembered, self.view))
        return loss

    def _run(
        self, runner: Runner, rows: Array, scalars: Mapping[str, float], first_sample: int
    ) -> None:
        if self._stream is None or self._training is None or runner is not self._training[0]:
            super()._run(runner, rows, scalars, first_sample)
            return
        runner.start(rows, scalars, first_sample)
        self.group.run(self._stream.exchange.script, self._stream)

    def _own_loss(self, loss: float) -> float:
        """The mean loss of this group's own samples."""
        if not self.is_joined or self._own_total is None or not self.own_samples:
            return loss
        assert self._training is not None
        return float(self._training[0].value(self._own_total)) / self.own_samples

    def aside(self) -> dict[str, Any]:
        memory = None if self.remembered is None else dataclasses.asdict(self.remembered)
        return {"batches": self.view.n_batches, "memory": memory}

    def recall_aside(self, found: Mapping[str, Any]) -> None:
        self.view.n_batches = int(found["batches"])
        for name, value in (found["memory"] or {}).items():
            setattr(self.remembered, name, value)

    def settle(self) -> None:
        """Before group 0 measures, at the end of an epoch."""
        self._do(self.strategy.at_epoch_end(self.remembered, self.view))

    def conclude(self) -> None:
        """After the last batch."""
        self._do(self.strategy.at_end(self.remembered, self.view))
        if self.wire is not None:
            self.wire.part()

    def agree(self, epoch: int, stop: bool) -> bool:
        """Whether training ends after this epoch: what group 0 says."""
        if self.is_joined or self.wire is None:
            return stop
        return self.wire.ask(epoch, stop)

    def _do(self, requests: Requests) -> None:
        for request in requests:
            wire = self.wire
            assert wire is not None, f"{self.strategy.name} says that it sends no messages"
            match request:
                case Mean(arrays):
                    wire.mean(list(arrays))
                case Push(is_early=is_early):
                    wire.push(request)
                    if not is_early:
                        wire.give_all()
                case Pull(is_early=is_early, into=into):
                    wire.pull(request, self.view.parameters if into is None else into)
                    if not is_early:
                        wire.take_all()
                    if request.final:
                        wire.thank()
                case Leave():
                    wire.leave()


class Stream:
    """A batch's work, in which parameters are taken just before the segment that first needs them,
    and gradients given as soon as the segment that makes them is over.

    needed, ready : parts of bundles by segment.
    """

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire | LastingWire,
        needed: Mapping[int, list[int]],
        ready: Mapping[int, list[int]],
    ) -> None:
        self.exchange, self.wire, self.needed, self.ready = exchange, wire, needed, ready
        self.pack, self.unpack = exchange.pack, exchange.unpack

    def compute(self, index: int) -> None:
        for part in self.needed.get(index, ()):
            self.wire.take(part)
        self.exchange.compute(index)
        for part in self.ready.get(index, ()):
            self.wire.give(part)
