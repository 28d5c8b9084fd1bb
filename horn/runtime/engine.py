"""The Engine of one task of a group, which has a share of the network.

Its methods are collective: every task calls them in the same order with the same arguments. The
results of ``step``, ``losses`` and ``outputs`` are the same on every task; arrays are its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horn import backends, defaults
from horn.backends import Array, Setup
from horn.backends._compiled import CompiledEngine, Runner
from horn.compiler import lower
from horn.data import Dataset
from horn.errors import JobError, ModelError
from horn.partition.placement import Placement
from horn.partition.rewrite import homes, partition, splits
from horn.partition.share import Places, Share
from horn.program import Program, Targets, base, in_all_groups
from horn.runtime.exchange import Exchange
from horn.runtime.group import Group
from horn.topology import largest_share, share
from horn.transport import Channel


class GroupEngine(CompiledEngine):
    """One task's engine.

    initial : this task's share of the learned arrays and States by name (``places`` says which);
    None draws them here, whole, and keeps the share. n_groups : how many groups the transport's
    tasks make (rank = group * tasks + task); each computes its part of a batch's rows.
    owns_initial : ``initial`` is for this engine alone, which need not copy it.

    Raises
    ------
    JobError : a network that is interpreted.
    """

    def __init__(
        self,
        setup: Setup,
        placement: Placement,
        group: Group,
        *,
        backend: str = defaults.BACKEND,
        initial: Mapping[str, Array] | None = None,
        owns_initial: bool = False,
        n_groups: int = 1,
    ) -> None:
        if not backends.is_compiled(backend, setup.network):
            raise JobError(
                "a network that is interpreted runs on one task; leave tasks out, or give its "
                "neurons to the compiler"
            )
        n_tasks = group.n_tasks // n_groups
        # A group of one task moves nothing inside itself, whatever the placement.
        is_alone = n_tasks == 1 and (n_groups > 1 or setup.network.steps > 0)
        self.placement = Placement() if is_alone else placement
        self.group, self.n_groups = group, n_groups
        self.group_index, task = divmod(group.task, n_tasks)
        self.share = Share(setup.network, task, n_tasks, self.group_index, n_groups)
        self.homes = homes(setup.network, placement)
        self.runner = backends.load(backend).runner
        self.channels: list[Channel] = []
        self.slot_axes: dict[str, tuple[str, ...]] = {}  # axes of the optimizer's slots
        self._exchanges: dict[int, Exchange] = {}  # by id of the runner
        self._given, self._owns_given = initial, owns_initial
        self._first_kept = 0  # for sequences in pieces: this task's first row of a batch
        super().__init__(setup)

    def places(self, name: str) -> tuple[Places, ...]:
        """The places along each axis of a learned array, State or slot that this task has."""
        if name in self._kept:  # rows of the batch
            start, n = self._first_kept, len(self._kept[name])
            return (slice(start, start + n), *map(slice, self._kept[name].shape[1:]))
        axes = self.slot_axes.get(name) or self.homes[name]
        if axes[0][0] in "mw":  # shared: all of it, which has a shape
            return tuple(slice(0, n) for n in self.arrays[name].shape)
        return tuple(self.share.places(axis) for axis in axes)

    def owns(self, name: str) -> bool:
        """Whether no task of a lower rank has the same part of an array."""
        if name in self._kept:
            return len(self._kept[name]) > 0
        axes = self.slot_axes.get(name) or self.homes[name]
        inside = [in_all_groups(axis) for axis in axes]
        is_divided = any(axis != base(axis) for axis in inside)
        is_grouped = any(a != b for a, b in zip(axes, inside, strict=True))
        return (is_divided or self.share.task == 0) and (is_grouped or self.group_index == 0)

    def allocate(self, program: Program) -> None:
        for name, buffer in program.buffers.items():
            if buffer.role == "slot" and name not in self.arrays:
                shape = [self.share.length(axis, 0) for axis in buffer.axes]
                if buffer.axes[0][0] in "mw":  # shared
                    shape = [*self.arrays[name.rpartition("/")[0]].shape]
                self.arrays[name] = np.zeros(shape, self.setup.dtype)
                self.slot_axes[name] = buffer.axes
                self._slots.append(name)

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        dtype: Any = np.dtype(self.setup.dtype)
        if self._given is not None:
            copy = None if self._owns_given else True  # None: only if it must
            given = {name: np.array(a, dtype, copy=copy) for name, a in self._given.items()}
            self._given = None
        else:
            whole = {**self.network.initial_parameters(dtype), **self.network.initial_states(dtype)}
            given = {
                name: np.array(self.share.part(whole[name], axes))
                for name, axes in self.homes.items()
                if name in whole
            }
        names = self.network.state_shapes
        states = {name: given.pop(name) for name in list(given) if name in names}
        return given, states

    @property
    def divides_steps(self) -> bool:
        """Whether tasks divide neurons of sequences, and so exchange something at every step."""
        return self.network.steps > 0 and "o" in splits(self.network, self.placement)

    def arranged(self, program: Program) -> Program:
        """The program of a training step, which subclasses may change."""
        return program

    def make_runner(self, kind: str, target: Targets) -> Runner:
        optimizer = self.setup.optimizer
        infers = kind in ("infer", "watch", "stream")
        if infers:
            program = self.inference(kind, target)
        elif optimizer is None:
            raise ModelError("this engine was made to predict: it has no optimizer")
        elif kind == "train":
            program = lower.training_program(
                self.network, optimizer, target, thin=False, weighs=self.weighs,
                ragged=self.is_ragged, part=self.part, reading=self.reading,
            )  # fmt: skip
        else:
            raise JobError("a group of tasks has no probes; use one task")
        results = [] if program.loss is None else [program.loss]
        if infers:
            own = [name for name in program.losses if name != program.loss]
            results += [*program.outputs, *own, *program.aggregates]
        n_groups = 1 if infers else self.n_groups
        # A task that has all weights of a network for sequences predicts all rows by itself.
        is_whole = infers and self.network.steps > 0 and not self.divides_steps
        local = partition(program, Placement() if is_whole else self.placement, results, n_groups)
        if kind == "train":
            local = self.arranged(local)
        self.allocate(local)
        size = self.predict_rows if infers else largest_share(self.setup.batch_size, n_groups)
        runner = self.runner(local, self.arrays, self.setup, size, self.share)
        exchange = Exchange(
            runner,
            self.share,
            size,
            self.setup.dtype,
            len(self.channels),
            self.group.outbox,
            self.group.transport.can_share,
        )
        self._exchanges[id(runner)] = exchange
        self.channels.extend(exchange.channels)
        self.group.open_channels(self.channels)
        self._share()
        return runner

    def _share(self) -> None:
        """Move arrays that groups have in common to shared memory. All write the same values, and
        wait for each other before any restores a checkpoint.
        """
        exchanges = self._exchanges.values()
        pairs = [pair for exchange in exchanges for pair in exchange.common.items()]
        for name, part in pairs:
            memory = self.group.transport.common(part)
            memory[...] = self.arrays[name]
            self.arrays[name] = memory
            for exchange in exchanges:
                exchange.runner.place(name, memory)
                exchange.forget()
        if pairs:
            self.group.wait_all()

    def load(
        self,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        slots: Mapping[str, Array] | None = None,
        updates: int = 0,
    ) -> None:
        """Set parameters, States, slots and the count of updates, as CompiledEngine does:
        collective. If groups have arrays in common, it first waits until no group measures.
        """
        if any(exchange.common for exchange in self._exchanges.values()):
            self.group.wait_all()
        super().load(parameters, states, slots, updates)

    def bind(self, data: Dataset) -> None:
        super().bind(data)
        if self._kept:  # keep this task's rows
            group, n_groups = self.batch_part
            start, stop = share(self.n_whole, group, n_groups)
            axis = "b" if self.share.n_tasks == 1 else "b@own"
            own = self.share.rows(axis, stop - start, largest_share(self.n_whole, n_groups))
            self._first_kept = start + own.start
            n = own.stop - own.start
            self._kept = {name: array[:n].copy() for name, array in self._kept.items()}

    def rows_of(self, n: int) -> slice:
        """The rows of a batch of n that this task's group has. For sequences in pieces they are
        always the same: of a shorter batch, the last groups have fewer rows.
        """
        if not self._kept:
            return slice(*share(n, *self.batch_part))
        start, stop = share(self.n_whole, *self.batch_part)
        return slice(min(start, n), min(stop, n))

    @property
    def batch_part(self) -> tuple[int, int]:
        """The number of this task's group among those that share a batch, and theirs."""
        return self.group_index, self.n_groups

    @property
    def n_whole(self) -> int:
        """The number of rows of a full batch, of all groups together."""
        return self.setup.batch_size

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """Make one update from the rows of the whole batch; this task's group computes its part."""
        if self.n_groups == 1:
            return super().step(rows, iteration=iteration, first_sample=first_sample)
        runner, loss, data = self._learning(rows)
        n = len(rows)
        part = self.rows_of(n)
        mine = rows[part]
        at, begins = self._begin(runner, rows, data, self._kept, len(mine))
        scalars = self._of_rows(rows, iteration, begins)
        self._run(runner, mine, scalars, first_sample + part.start + at)
        self._ending(runner, self._kept)
        self.updates += 1
        return 0.0 if loss is None else float(runner.value(loss)) / n

    def _run(
        self, runner: Runner, rows: Array, scalars: Mapping[str, float],
        first_sample: int | Array,
    ) -> None:  # fmt: skip
        runner.start(rows, scalars, first_sample)
        exchange = self._exchanges[id(runner)]
        self.group.run(exchange.script, exchange)
