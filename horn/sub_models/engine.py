"""A task's engine under parallel dropout: it trains its range of the sub-models, one after the
other, and merges all of them into the whole network, of which it has every array. A single task
whose sub-models overlap trains all of them in one pass over the network, if that is faster
(``masked``).

A batch has one superstep: each task sends the losses of its sub-models and, compact, their
gradients and States. Then all tasks merge alike, in the order of the sub-models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.backends import Array, Memory, Setup, check_fits, combined, fitting, make
from horn.backends._compiled import CompiledEngine
from horn.data import Dataset
from horn.errors import JobError, ModelError
from horn.runtime.context import TaskContext
from horn.sub_models.all_gather import AllGather
from horn.sub_models.masked_network import MaskedNetwork, can_mask, is_faster
from horn.sub_models.rules import SubModelRules
from horn.sub_models.sub_network import SubNetwork
from horn.sub_models.whole_network import WholeNetwork
from horn.topology import largest_share, share


class SubModels:
    """One task's engine under parallel dropout. ``parameters``, ``views`` and ``load`` are scaled
    for inference: the weights of a link by the probability that its connections took part. Slots of
    the optimizer are as in training.

    own_loss, own_samples : of the samples of this group's tasks in the last batch. n_sent : the
    numbers that each sub-model sends per batch; empty under ``masked``.
    """

    def __init__(self, rules: SubModelRules, context: TaskContext) -> None:
        job, topology = context.job, context.topology
        self.rules, self.job, self.network = rules, job, job.network
        self.group, self.threads = context.group, context.threads
        self.rank, self.n_ranks = context.group.task, context.group.n_tasks
        n = self.n_sub_models = rules.n
        self.ranges = [range(*share(n, r, self.n_ranks)) for r in range(self.n_ranks)]
        first = context.rank // topology.n_tasks * topology.n_tasks
        mine = self.ranges[first : first + topology.n_tasks]
        self.of_group = range(mine[0].start, mine[-1].stop)
        self.rates = rules.rates(self.network)
        # The engine that measures, has the scaled arrays, and draws the initial ones.
        self.aggregates = tuple(job.aggregates.values())
        setup = Setup(
            self.network, None, job.target, dtype=job.dtype, threads=context.threads,
            aggregates=self.aggregates,
        )  # fmt: skip
        self.inference = make("kernels", setup)
        assert isinstance(self.inference, CompiledEngine)
        whole = {**self.inference.parameters(), **self.inference.states()}
        for name, array in whole.items():
            # a share of another placement does not fit: all tasks draw the same instead
            given = None if context.initial is None else context.initial[name]
            if given is not None and given.shape == array.shape:
                array[...] = given
        states = self.inference.states()
        learned = {name: whole[name] for name in whole if name not in states}
        self.parent = WholeNetwork(
            job, learned, {name: whole[name] for name in states}, rules.keep is None
        )
        self.is_scaled = False  # whether the arrays of ``inference`` are those of ``parent``
        self.own_loss, self.own_samples = 0.0, 0
        self.masked: MaskedNetwork | None = None
        self.n_sent: list[int] = []
        self.smalls: list[SubNetwork] = []  # by sub-model; those of one shape share one
        self.members: list[list[Array]] = []  # sub-model, layer
        self.drawn = -1
        self.counted: tuple[int, ...] = ()  # the sub-models that parent.counts are of
        self.losses_of = np.zeros(n)
        self.blocks: list[Array] = []  # by rank: gradients and States of its sub-models
        self.parts: list[tuple[dict[str, Array], dict[str, Array]]] = []  # the same by sub-model
        # In ``losses`` and ``watch``, by rank: the sum, the count, and aggregates' numbers.
        self.found = np.zeros((self.n_ranks, 2 + len(self.aggregates)))
        self.batch: tuple[Array, int, int] = (np.empty(0, np.int64), 0, 0)
        self.bounds = [0] * (n + 1)

    # --- before training

    def bind(self, data: Dataset) -> None:
        """Compile the small networks, and agree on the channels with all tasks. Collective."""
        n, rules = self.n_sub_models, self.rules
        rows = min(self.job.batch_size, len(self.job.data))
        hidden = [layer for layer in self.network.layers if layer.kind == "hidden"]
        sizes = {layer.name: rules.sizes(layer.size) for layer in hidden}
        shapes = [{name: some[k] for name, some in sizes.items()} for k in range(n)]
        overlap = rules.keep is not None and rules.dropconnect == 1.0
        if self.n_ranks == 1 and overlap and can_mask(self.network):
            if is_faster(self.network, shapes, rows):
                self.masked = MaskedNetwork(self.parent, data, self.threads)
                self.parts = [({}, {})] * n
                return
        rows, dropconnect = largest_share(rows, n), rules.dropconnect
        known: dict[tuple[int, ...], SubNetwork] = {}
        self.smalls = []
        for shape in shapes:
            key = tuple(shape.values())
            if key not in known:
                known[key] = SubNetwork(self.parent, shape, rows, data, self.threads, dropconnect)
            self.smalls.append(known[key])
        self._make_blocks()
        if self.n_ranks > 1:
            self._plan_exchange()

    def _make_blocks(self) -> None:
        dtype = np.dtype(self.job.dtype)
        self.n_sent = [
            sum(a.size for a in (*s.gradients.values(), *s.states.values())) for s in self.smalls
        ]
        self.blocks, self.parts = [], []
        for mine in self.ranges:
            block = np.zeros(sum(self.n_sent[k] for k in mine), dtype)
            self.blocks.append(block)
            start = 0
            for k in mine:
                found: list[dict[str, Array]] = []
                for arrays in (self.smalls[k].gradients, self.smalls[k].states):
                    found.append({})
                    for name, array in arrays.items():
                        part = block[start : start + array.size]
                        found[-1][name] = part.reshape(array.shape)
                        start += array.size
                self.parts.append((found[0], found[1]))

    def _plan_exchange(self) -> None:
        arrays = [
            [self.losses_of[mine.start : mine.stop], block] if len(mine) else []
            for mine, block in zip(self.ranges, self.blocks, strict=True)
        ]
        self.gather_batch = AllGather(
            self.rank, arrays, 0, ("losses of sub-models", "gradients of sub-models"),
            ("sub-models", "gradients", "merge"), self.train, self.merge,
        )  # fmt: skip
        self.gather_losses = AllGather(
            self.rank, [[found] for found in self.found], 2, ("sums of losses",),
            ("inference", "losses", "losses"), self.measure, lambda: None,
        )  # fmt: skip
        self.group.open_channels([*self.gather_batch.channels, *self.gather_losses.channels])

    # --- a batch

    def rows_of(self, n: int) -> slice:
        """The rows of a batch of n that the sub-models of this group have."""
        k = self.n_sub_models
        return slice(share(n, self.of_group.start, k)[0], share(n, self.of_group.stop, k)[0])

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        """Make one update of the whole network; the mean loss over rows, each in its sub-model."""
        if not self.smalls and self.masked is None:
            raise ModelError("step before bind: name the data set first")
        n, k = len(rows), self.n_sub_models
        self.bounds = [0, *(share(n, i, k)[1] for i in range(k))]
        self._draw(iteration // self.rules.redraw)
        self.batch = (rows, iteration, first_sample)
        self.parent.begin(self.job.optimizer.rate(iteration))
        self._count()
        self.is_scaled = False
        if self.masked is not None:
            self._train_masked(self.masked)
        else:
            self.parent.clear()
            if self.n_ranks > 1:
                self.group.run(self.gather_batch.script, self.gather_batch)
            else:
                self.train()
                self.merge()
        sizes = np.diff(self.bounds)
        losses = np.where(sizes > 0, self.losses_of, 0.0) * sizes  # without samples: an old loss
        mine = slice(self.of_group.start, self.of_group.stop)
        self.own_samples = int(sizes[mine].sum())
        self.own_loss = float(losses[mine].sum()) / max(self.own_samples, 1)
        return float(losses.sum()) / n

    def _draw(self, draw: int) -> None:
        if draw == self.drawn:
            return
        self.drawn, self.counted = draw, ()
        layers = self.network.layers
        by_layer = [self.rules.members(self.network, layer, draw) for layer in layers]
        self.members = [[some[k] for some in by_layer] for k in range(self.n_sub_models)]

    def _count(self) -> None:
        """Count the sub-models of this batch that have each weight, if that may have changed."""
        live, dropconnect = tuple(self.live), self.rules.dropconnect
        if live != self.counted or dropconnect < 1.0:
            self.parent.count([self.members[k] for k in live], dropconnect)
            self.counted = live

    @property
    def live(self) -> list[int]:
        """The sub-models that have samples of this batch."""
        return [k for k in range(self.n_sub_models) if self.bounds[k] < self.bounds[k + 1]]

    @property
    def merges_at_once(self) -> bool:
        """Whether a sub-model can be merged before the next one is trained."""
        return self.n_ranks == 1 and self.job.optimizer.clip_norm is None

    def train(self) -> None:
        rows, iteration, first_sample = self.batch
        for k in self.ranges[self.rank]:
            start, stop = self.bounds[k], self.bounds[k + 1]
            if start == stop:  # a short batch has no sample for it
                continue
            small = self.smalls[k]
            small.place(self.members[k], k, self.drawn)
            small.gather()
            self.losses_of[k] = small.step(rows[start:stop], iteration, first_sample + start)
            gradients, states = self.parts[k]
            for name, array in small.states.items():
                states[name][...] = array
            if self.merges_at_once:
                small.add()
                small.update()
                continue
            for name, array in small.gradients.items():
                gradients[name][...] = array

    def _train_masked(self, masked: MaskedNetwork) -> None:
        """Train all sub-models at once, and merge them."""
        rows, iteration, first_sample = self.batch
        sizes = np.diff(self.bounds)
        masked.place(self.drawn, self.members, sizes)
        self.losses_of = masked.step(rows, sizes, iteration, first_sample)
        if self.job.optimizer.clip_norm is not None:
            self._limit(self.parent.squares())
        self.parent.finish()

    def merge(self) -> None:
        live = self.live
        is_clipped = self.job.optimizer.clip_norm is not None
        if is_clipped:
            squares = 0.0
            for k in live:
                self._bring(k)
                squares += self.smalls[k].squares()
                self.smalls[k].add()
            self._limit(squares + self.parent.squares())
        if not self.merges_at_once:
            for k in live:
                self._bring(k)
                if not is_clipped:
                    self.smalls[k].add()
                self.smalls[k].update()
        self.parent.finish()
        self.parent.merge_states([(self.members[k], self.parts[k][1]) for k in live])

    def _bring(self, k: int) -> None:
        small = self.smalls[k]
        small.place(self.members[k], k, self.drawn)
        for name, part in self.parts[k][0].items():
            small.gradients[name][...] = part

    def _limit(self, squares: float) -> None:
        """Clip the merged gradient. squares : the sum of the squares of its numbers."""
        self.parent.scalars["clip"] = self.job.optimizer.clip_factor(float(np.sqrt(squares)))

    # --- the network as it is used

    def _scale(self) -> CompiledEngine:
        """Bring the inference engine up to date, and return it."""
        engine = self.inference
        assert isinstance(engine, CompiledEngine)
        if not self.is_scaled:
            for name, array in self.parent.learned.items():
                np.multiply(array, self.rates.get(name, 1.0), out=engine.arrays[name])
            for name, array in self.parent.states.items():
                engine.arrays[name][...] = array
            engine.updates = self.parent.updates
            self.is_scaled = True
        return engine

    def outputs(self, x: Array, lengths: Array | None = None, *, first: int = 0) -> Array:
        return self._scale().outputs(x, lengths, first=first)

    def losses(self, data: Dataset) -> tuple[float, int]:
        """The sum of losses and the number of right answers, as Engine.losses; each task measures a
        part of the rows. Collective.
        """
        self._scale()
        if self.n_ranks == 1:
            return self.inference.losses(data)
        return self._measure_together(data, False)

    def results(self, data: Dataset) -> tuple[float, int, Array, list[float]]:
        """The results of all rows, as Engine.results, on each task."""
        return self._scale().results(data)

    def watch(self, data: Dataset) -> tuple[float, int, list[float]]:
        """The losses and aggregates, as Engine.watch; each task measures a part. Collective."""
        self._scale()
        if self.n_ranks == 1:
            return self.inference.watch(data)
        total, correct = self._measure_together(data, True)
        numbers = zip(self.aggregates, self.found[:, 2:].T, strict=True)
        return total, correct, [combined(a, a.empty, some) for a, some in numbers]

    def _measure_together(self, data: Dataset, is_watched: bool) -> tuple[float, int]:
        self.measured, self.is_watched = data, is_watched
        self.group.run(self.gather_losses.script, self.gather_losses)
        total, correct = self.found[:, :2].sum(axis=0)
        return float(total), int(correct)

    def measure(self) -> None:
        data, n, found = self.measured, len(self.measured), self.found[self.rank]
        start, stop = share(n, self.rank, self.n_ranks)
        found[...] = [0.0, 0.0, *(aggregate.empty for aggregate in self.aggregates)]
        if start < stop:
            part = data[start:stop]
            if self.is_watched:
                found[0], found[1], found[2:] = self.inference.watch(part)
            else:
                found[:2] = self.inference.losses(part)

    def probe(self, rows: Array, *, iteration: int, first_sample: int) -> dict[str, Array]:
        raise JobError("sub-models have no probes; use one task without a strategy")

    def parameters(self) -> dict[str, Array]:
        return self._scale().parameters()

    def states(self) -> dict[str, Array]:
        return self._scale().states()

    def views(self) -> dict[str, dict[str, Array]]:
        return self._scale().views()

    def slots(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.parent.slots.items()}

    def load(
        self,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        slots: Mapping[str, Array] | None = None,
        updates: int = 0,
    ) -> None:
        """Load arrays, as Engine.load: parameters are scaled as ``parameters`` has them."""
        engine = self._scale()
        engine.load(parameters, states, None, updates)
        for name in parameters:
            array = engine.arrays[name]
            np.divide(array, self.rates.get(name, 1.0), out=self.parent.learned[name])
        for name in states or {}:
            self.parent.states[name][...] = engine.arrays[name]
        for name, array in (slots or {}).items():
            check_fits(self.parent.slots, name, array)
            self.parent.slots[name][...] = array
        self.parent.updates = updates

    @property
    def updates(self) -> int:
        return self.parent.updates

    def memory(self) -> Memory:
        """The arrays as sub-models see them, not scaled."""
        parent = self.parent
        return {"parameter": parent.learned, "state": parent.states, "slot": parent.slots}

    def recall(self, memory: Mapping[str, Mapping[str, Array]], updates: int) -> None:
        for array, new in fitting(self.memory(), memory):
            array[...] = new
        self.parent.updates, self.is_scaled = updates, False

    def owns(self, name: str) -> bool:
        return self.rank == 0

    def places(self, name: str) -> tuple[slice, ...]:
        array = {**self.parent.learned, **self.parent.states, **self.parent.slots}[name]
        return tuple(slice(0, n) for n in array.shape)

    # Every task has the same arrays and measures the same; members are drawn by the iteration.

    def aside(self) -> dict[str, Any]:
        return {}

    def recall_aside(self, found: Mapping[str, Any]) -> None: ...

    def settle(self) -> None: ...

    def conclude(self) -> None: ...

    def decide_end(self, epoch: int, stop: bool) -> bool:
        return stop
