"""A task's engine under a strategy: the group's engine, and the strategy's requests between
batches. Every wait has a deadline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from horn.backends import Setup
from horn.backends._compiled import Runner
from horn.data import Dataset
from horn.errors import JobError
from horn.parameter_server.client import ClientCarrier, ParameterClient
from horn.parameter_server.mesh import Mesh
from horn.parameter_server.pieces import ParameterBundle, cut_parameters
from horn.partition.segment_marks import marked, uses_by_segment
from horn.plain_values import MOST, NotPlain, decoded, encoded
from horn.program import Post, Program
from horn.runtime.context import TaskContext
from horn.runtime.engine import GroupEngine
from horn.runtime.exchange import Exchange
from horn.runtime.peers import Peers
from horn.strategies import Leave, Mean, Pull, Push, Requests, Strategy, View
from horn.topology import largest_share
from horn.wire.frames import Array


def _connected(context: TaskContext) -> tuple[Peers | None, ParameterClient | None]:
    job, topology, found = context.job, context.topology, context.servers
    peers, check = None, context.check
    if context.wire is not None:
        peers = Peers(context.wire, topology, context.timeout_s, context.spent, check)
    if not topology.n_servers:
        return peers, None
    cut = cut_parameters(job.network, context.placement, topology, job.dtype)
    carrier: ClientCarrier
    if found is not None:
        from horn.parameter_server.task_links import TaskLinks  # other tasks need no ZeroMQ

        carrier = TaskLinks(found.identity(), topology.n_servers, found.find)
        beside = context.check

        def check() -> None:
            found.check()
            if beside is not None:
                beside()
    else:
        assert context.wire is not None and peers is not None
        carrier = Mesh(context.wire, topology, cut, job.dtype, context.timeout_s,
                       context.group.start_timeout_s, peers.from_servers)  # fmt: skip
    client = ParameterClient(carrier, topology, context.rank, cut, job.dtype, context.timeout_s,
                             context.spent, check, context.at_first)  # fmt: skip
    return peers, client


class Replica(GroupEngine):
    """One task's engine. ``own_loss``, ``own_samples`` are of the last batch, in this group; its
    loss is the mean of ``own_samples`` (or ``view.n_samples``) numbers: see ``_counts``.
    """

    def __init__(self, strategy: Strategy, context: TaskContext) -> None:
        job, topology = context.job, context.topology
        self.strategy = strategy
        self.first_batch = 0  # where this group resumes, or begins later than others
        self.start_s = context.start_s
        self._is_durable = context.servers is not None
        self.peers, self.client = _connected(context)
        n_joined = topology.n_groups if strategy.is_joined else 1
        self.n_parts = context.n_first or topology.n_groups  # of a batch
        size = self._n_whole = job.most_rows
        if not strategy.is_joined:
            size = largest_share(size, self.n_parts)
        setup = Setup(
            job.network, strategy.optimizer(job), job.target, size, job.dtype, context.threads,
            tuple(job.aggregates.values()), job.recompute, context.reading,
        )  # fmt: skip
        super().__init__(
            setup, context.placement, context.group, backend=context.backend,
            initial=context.initial, owns_initial=True, n_groups=n_joined,
        )  # fmt: skip
        self.topology = topology
        # Not ``group_index``, which is 0 where groups do not run the same supersteps.
        self.own_group, own_task = divmod(context.rank, topology.n_tasks)
        self.is_joined = strategy.is_joined
        self.view = View(self.own_group, own_task, topology, {}, {})
        self.remembered: Any = None
        self.own_loss, self.own_samples = 0.0, 0
        self._own_total: str | None = None
        self._stream: ParameterStream | None = None

    @property
    def batch_part(self) -> tuple[int, int]:
        return self.own_group % self.n_parts, self.n_parts

    @property
    def n_whole(self) -> int:
        return self._n_whole

    def arranged(self, program: Program) -> Program:
        """Mark where the program first needs parameters and where its gradients are ready."""
        if self.client is None or not self.strategy.pushed_slot:
            return program
        pulls, pushes = self.client.pulls.values(), self.client.pushes
        return marked(program, [b.names for b in pulls], [self._pushed(b) for b in pushes])

    def _pushed(self, bundle: ParameterBundle) -> frozenset[str]:
        return frozenset(f"{name}/{self.strategy.pushed_slot}" for name in bundle.names)

    def _streamed(self, runner: Runner) -> ParameterStream | None:
        if self.client is None or not self.strategy.pushed_slot:
            return None
        uses = uses_by_segment(runner.program)
        needed, ready = dict[int, list[int]](), dict[int, list[int]]()
        for bundle in self.client.pulls.values():
            first = uses.first(bundle.names)
            if first is not None:
                needed.setdefault(first, []).append(bundle.part)
        for bundle in self.client.pushes:
            last = uses.last_made(self._pushed(bundle))
            if last is not None:
                ready.setdefault(last, []).append(bundle.part)
        return ParameterStream(self._exchanges[id(runner)], self.client, needed, ready)

    def bind(self, data: Dataset) -> None:
        super().bind(data)
        self.remembered = self.strategy.begin(self.view)
        program = self.training_runner.program
        moves = [m for s in program.statements if isinstance(s, Post) for m in s.moves if m.across]
        made_from = {move.out: move.array for move in moves}
        # The loss of this group's samples: at the foot of the tree that adds up all groups'.
        self._own_total = made_from.get(program.loss or "")
        while self._own_total in made_from:
            self._own_total = made_from[self._own_total]
        self._stream = self._streamed(self.training_runner)
        if self.client is not None:
            self._join_servers(self.client)

    def _share(self) -> None:
        """Move arrays, as GroupEngine does for each new program; the view is of where they are."""
        super()._share()
        moving = [name for name in self._learned if name not in self.network.frozen]
        self.view.parameters = {name: self.arrays[name] for name in moving}
        self.view.slots = {name: self.arrays[name] for name in self._slots}

    def _join_servers(self, client: ParameterClient) -> None:
        clock = 0
        if self._is_durable:
            clock, told = client.join(self.start_s)
            usual = self.strategy.returns(self.remembered, clock)
            # The last push of a run that ended may have been of fewer batches than others.
            self.view.n_batches = self.first_batch = usual if told is None else told
        if self.own_group == 0:
            client.begin(self.view.parameters)
        if clock:  # the first batch may not be one that pulls
            client.pull(Pull(clock), self.view.parameters)
            client.take_all()

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """Compute one batch; return the loss of all groups if they are joined, else this one's."""
        part = self.rows_of(len(rows))
        mine = rows[part]
        self.own_samples = self.view.n_samples = self._counts(mine)
        self._do(self.strategy.before_batch(self.remembered, self.view))
        if self.is_joined:
            loss = super().step(rows, iteration=iteration, first_sample=first_sample)
        elif not len(mine):
            loss = 0.0
        else:
            first = first_sample + part.start
            loss = super().step(mine, iteration=iteration, first_sample=first)
        if self.client is not None:
            self.client.take_all()
            self.client.give_all()
        self.own_loss = loss
        if self.is_joined and self._own_total is not None and self.own_samples:
            # The sum is one over steps that count 1 / their mean number in the whole batch.
            per = self._counts(rows) / len(rows)
            own_sum = float(self.training_runner.value(self._own_total)) * per
            self.own_loss = own_sum / self.own_samples
        self.view.n_batches += 1
        self._do(self.strategy.after_batch(self.remembered, self.view))
        return loss

    def _counts(self, rows: Array) -> int:
        """The number of samples whose mean is the loss of these rows; if sequences end early and
        only steps are judged, the number of steps.
        """
        assert self._data is not None
        lengths = self._data.lengths
        if lengths is None or not self.network.judges_each:
            return len(rows)
        return int(lengths[rows].sum())

    def _run(
        self, runner: Runner, rows: Array, scalars: Mapping[str, float],
        first_sample: int | Array,
    ) -> None:  # fmt: skip
        if self._stream is None or runner is not self.training_runner:
            super()._run(runner, rows, scalars, first_sample)
            return
        runner.start(rows, scalars, first_sample)
        self.group.run(self._stream.exchange.script, self._stream)

    def aside(self) -> dict[str, Any]:
        memory: Any = self.remembered
        try:
            if dataclasses.is_dataclass(memory):
                kept: Any = {f.name: encoded(getattr(memory, f.name)) for f in fields(memory)}
            else:
                kept = encoded(memory)
        except NotPlain:
            raise JobError(
                f"strategy {self.strategy.name}: its memory, {memory!r:.200}, cannot be in "
                f"checkpoints; begin() is to return a dict, a list or a dataclass of numbers, text "
                f"and arrays, {MOST:,} numbers at most; or leave checkpoints out"
            ) from None
        return {"batches": self.view.n_batches, "memory": kept}

    def recall_aside(self, found: Mapping[str, Any]) -> None:
        self.view.n_batches = int(found["batches"])
        if not dataclasses.is_dataclass(self.remembered):
            self.remembered = decoded(found["memory"])
            return
        for name, value in (found["memory"] or {}).items():
            setattr(self.remembered, name, decoded(value))

    def settle(self) -> None:
        """Do what comes before a model is measured: by group 0, where groups are not joined, of
        which the others hear. They wait for it as long as it measures.
        """
        measures = not self.is_joined and self.own_group == 0
        self._do(self.strategy.at_epoch_end(self.remembered, self.view), measures)
        if measures and self.peers is not None and self.client is None:
            self.peers.begin_measuring()

    def conclude(self) -> None:
        self._do(self.strategy.at_end(self.remembered, self.view))
        if self.peers is not None and self.client is None:
            self.peers.wait_finished()

    def decide_end(self, epoch: int, stop: bool) -> bool:
        """Whether training ends after this epoch, by the decision of group 0."""
        decider = self.client or self.peers
        return stop if self.is_joined or decider is None else decider.wait_verdict(epoch, stop)

    def _do(self, requests: Requests, measures: bool = False) -> None:
        for request in requests:
            if isinstance(request, Mean):
                self._mean(request)
                continue
            client = self.client
            if client is None:
                raise JobError(
                    f"strategy {self.strategy.name} asks servers, but there are none; give its "
                    f"class default_servers = 1"
                )
            match request:
                case Push(is_early=is_early):
                    client.push(request)
                    if not is_early:
                        client.give_all()
                case Pull(is_early=is_early, into=into):
                    into = self.view.parameters if into is None else into
                    client.pull(request, into, measures)
                    if not is_early:
                        client.take_all()
                    if request.final:
                        client.thank()
                case Leave():
                    client.leave()

    def _mean(self, request: Mean) -> None:
        if self._is_durable:
            raise JobError(
                "this strategy takes means over groups, which then cannot survive each other; "
                "leave checkpoints out, or let servers have what is to be shared"
            )
        if self.peers is None:
            raise JobError(
                f"strategy {self.strategy.name} asks for a mean over groups, but its class says "
                f"that it sends no messages; leave has_messages = False out"
            )
        self.peers.mean(list(request.arrays))

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


class ParameterStream:
    """A batch's script handler that takes parameters just before the segment that first needs them,
    and gives gradients just after the segment that makes them.

    needed, ready : parts of bundles by segment.
    """

    def __init__(
        self,
        exchange: Exchange,
        client: ParameterClient,
        needed: Mapping[int, list[int]],
        ready: Mapping[int, list[int]],
    ) -> None:
        self.exchange, self.client, self.needed, self.ready = exchange, client, needed, ready
        self.pack, self.unpack = exchange.pack, exchange.unpack

    def compute(self, index: int) -> None:
        for part in self.needed.get(index, ()):
            self.client.take(part)
        self.exchange.compute(index)
        for part in self.ready.get(index, ()):
            self.client.give(part)
