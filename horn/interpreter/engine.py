"""The interpreter's engine: batches of samples, their mean gradients, and the update."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn import backends, random, refusals
from horn.answers import answer_kind, n_right
from horn.autodiff import user_text
from horn.autodiff.tape import number
from horn.backends import Setup
from horn.connections import tied
from horn.data import Dataset
from horn.errors import CompileError, ModelError
from horn.interpreter import backward, elementwise, passes
from horn.interpreter.calls import Moment
from horn.interpreter.language import Snapshot, Translator
from horn.interpreter.layers import Stage
from horn.interpreter.passes import Gradients, LearnedNumbers, Numbers, Sample
from horn.interpreter.samples import (
    SampleTargets,
    by_reversals,
    by_step,
    flat,
    is_judged_at,
    longest,
    read_sample,
    sample_before,
)
from horn.ir import formulas
from horn.ir.tracing import REMEDY
from horn.optimizers import PREVIOUS_UPDATE, Optimizer, no_previous

Array = np.ndarray[Any, Any]
_REMEDY = f"; {REMEDY}"  # of an optimizer


@dataclass
class Batch:
    """The means over a training batch, and who sat it out: True for numbers without an update.

    gradients : of the arrays that learn. sent, deltas : by sample, step, layer and neuron. heard :
    the numbers that sequences carry on, as in ``Network.remembered``, (samples, steps, n).
    """

    loss: float
    gradients: dict[str, Array]
    states: dict[str, Array]
    sits_out: dict[str, Array]
    sent: list[list[list[list[float]]]]
    deltas: list[list[list[list[passes.DeltaNumbers]]]]
    heard: dict[str, Array]


class Engine:
    """A network that runs as its neurons are written. ``horn.backends.Engine`` documents the
    methods.

    Arithmetic is in double precision; with dtype "float32" the stored arrays are rounded after
    each update.
    """

    runner = None

    def __init__(self, setup: Setup) -> None:
        setup.network.check()
        self.setup, self.network, translator = setup, setup.network, Translator()
        given = setup.optimizer
        self.optimizer = None if given is None else Snapshot().optimizer(given)
        self.dtype = np.dtype(setup.dtype)
        self.stages = [Stage(self.network, layer, translator) for layer in self.network.layers]
        wires = [
            wire
            for stage in self.stages
            for wires in stage.wires
            for wire in wires
            if wire.source >= 0
        ]
        for wire in sorted(wires, key=lambda w: (w.layer, w.link, w.neuron)):
            self.stages[wire.source_layer].outgoing[wire.source].append(wire)
        for stage in self.stages:
            stage.check()
            if setup.recompute and stage.pushes_and_remembers:
                raise CompileError(refusals.ONE_STEP)
        self._levels = self._by_reversals()
        judged = self.network.judged if setup.target is not None else ()
        self._losses = {
            layer.index: translator.value(layer.loss.f) for layer in judged if layer.loss
        }
        names = {stage.name: stage.index for stage in self.stages}
        self._aggregates = [
            (aggregate, names[aggregate.layer], translator.value(aggregate.of_layer))
            for aggregate in setup.aggregates
        ]
        self._arrays: dict[str, Array] = self.network.initial_parameters(self.dtype)
        self._states: dict[str, Array] = self.network.initial_states(self.dtype)
        self._learning = self._find_learning()
        self._slots: dict[str, Array] = {
            f"{name}/{slot}": np.zeros_like(self._arrays[name])
            for name in self._learning
            for slot in (self.optimizer.slots if self.optimizer is not None else ())
        }
        self._updates = 0
        self._data: Dataset | None = None
        self._before: list[Sample] = []  # of a sequence that continues
        self.carried: dict[str, Array] = {}  # numbers of sequences in pieces, by batch row
        self._longest = longest(self.network)

    # --- the face

    def bind(self, data: Dataset) -> None:
        self._data, self.carried = data, {}
        if data.pieces > 1:
            self.carried = {
                name: np.zeros((self.setup.batch_size, *shape))
                for name, shape in self.network.remembered.items()
            }

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        if self.optimizer is None:
            raise ModelError("this engine only predicts: it was made without an optimizer")
        batch = self._run(rows, iteration, first_sample)
        with np.errstate(all="ignore"):  # the loss tells of what overflows
            self._states = {name: array.astype(self.dtype) for name, array in batch.states.items()}
            for name, array in self.carried.items():
                array[: len(rows)] = batch.heard[name]
            self._update(self.optimizer, batch, iteration)
        return batch.loss

    def probe(self, rows: Array, *, iteration: int, first_sample: int) -> dict[str, Array]:
        batch = self._run(rows, iteration, first_sample, want_deltas=True)
        found: dict[str, Array] = {"loss": np.array(batch.loss)}
        steps = self.network.steps
        for stage in self.stages:
            sent = [[at[stage.index] for at in self._filled(each)] for each in batch.sent]
            found[f"{stage.name}.output"] = np.array(sent if steps else [at for (at,) in sent])
        for stage in self.stages:
            if stage.index in self._sends and stage.weighted_sum:
                layer = stage.layer
                for group, name in itertools.product(layer.groups, layer.weights):
                    each = [
                        [
                            [d.get(group, {}).get(name, 0.0) for d in at[stage.index]]
                            for at in sample
                        ]
                        + [[0.0] * layer.size] * (steps - len(sample) if steps else 0)
                        for sample in batch.deltas
                    ]
                    deltas = np.array(each if steps else [at for (at,) in each])
                    found[f"{stage.name}.delta{layer.end_of(group, name)}"] = deltas
        return found | {f"{name}.gradient": gradient for name, gradient in batch.gradients.items()}

    def outputs(
        self, x: Array, lengths: Array | None = None, pieces: int = 1, *, first: int | Array = 0
    ) -> Array:
        rows = (row.tolist() for row in np.asarray(x, np.float64))
        found = [self._answer(steps) for steps, _ in self._predict(rows, pieces, lengths, first)]
        return np.array(found, self.dtype).reshape(len(found), *self.network.answers)

    def go_on(self, x: Array, at: int, sample: int = 0) -> Array:
        memory, states = self._memory(training=False), flat(self._states)
        keep, sent = self.network.layers[0].keep, []
        for t, here in enumerate(self._steps(np.asarray(x, np.float64)[0].tolist()), at):
            number_of = sample + backends.number_of_step(t, 1)
            moment = Moment(self.network.seed, False, self._updates, number_of, 0.0)
            self._before = passes.forward(
                self.stages, [[v * keep for v in here]], [moment], memory, states,
                before=self._before,
            )  # fmt: skip
            self._forget_early(self._before)
            sent.append(self._before[0].sent)
        return np.array(self._answer(sent), self.dtype)

    def last(self, name: str) -> Array:
        [sample] = self._before
        if name in sample.states:
            return np.array(sample.states[name], self.dtype)
        [place] = [stage.index for stage in self.stages if stage.name == name]
        return np.array(sample.sent[place], self.dtype)

    def forget(self) -> None:
        self._before = []

    def _forget_early(self, samples: Sequence[Sample]) -> None:
        """Drop the steps that no delay reaches any more."""
        for sample in samples:
            sample.past = sample.past[: self._longest]
            for earlier in sample.past:
                earlier.past = ()

    def _goes_on(self, rows: Array, first_sample: int) -> tuple[list[Sample], int]:
        """The samples of a batch one step before it, where their sequences continue, and the number
        by which the first one draws.
        """
        assert self._data is not None
        piece = int(rows[0]) % self._data.pieces if len(rows) else 0
        if not piece:
            return [], first_sample
        states, steps = flat(self._states), self.network.steps
        before = [sample_before(self.network, self.carried, k, states) for k in range(len(rows))]
        return before, first_sample + backends.number_of_step(piece, steps)

    def _heard(self, samples: Sequence[Sample]) -> dict[str, Array]:
        """The numbers that the sequences of samples carry on after their last step."""
        found = {}
        places = {layer.name: layer.index for layer in self.network.layers}
        for name, shape in self.network.remembered.items():
            found[name] = np.zeros((len(samples), *shape))
            for own, sample in zip(found[name], samples, strict=True):
                whole, _, what = name.rpartition(".")
                if what == "now":
                    own[-1] = sample.states[whole]
                    continue
                for ago, at in enumerate((sample, *sample.past)[: shape[0]], 1):
                    own[-ago] = at.sent[places[whole]] or 0.0
        return found

    def losses(self, data: Dataset) -> tuple[float, int]:
        return self._judged(data, lambda sent: None)

    def results(self, data: Dataset) -> tuple[float, int, Array, list[float]]:
        found: list[list[float]] = []
        each = dict.fromkeys(self._losses, 0.0)
        total, right = self._judged(data, lambda steps: found.append(self._answer(steps)), each)
        outputs = np.array(found, self.dtype).reshape(len(found), *self.network.answers)
        return total, right, outputs, list(each.values())

    def _answer(self, steps: list[list[list[float]]]) -> list[Any]:
        """The answer to a sample: by its last step, or by each; several outputs side by side."""
        outputs = [layer.index for layer in self.network.outputs]
        each = [[v for index in outputs for v in layers[index]] for layers in self._filled(steps)]
        return each if self.network.answers_each else each[-1]

    def _filled(self, steps: list[Any]) -> list[Any]:
        """The values of a sequence at each step; behind its end those of its last step."""
        return steps + [steps[-1]] * (self.network.steps - len(steps))

    def _judged(
        self, data: Dataset, look: Callable[[list[list[list[float]]]], None],
        each: dict[int, float] | None = None,
    ) -> tuple[float, int]:  # fmt: skip
        """The sum of the losses and the right answers; ``look`` gets the outputs of all layers,
        step by step. each : the sum of each loss by itself is added here, by the layer.
        """
        total, right = 0.0, 0
        answered = answer_kind(self.network, self.setup.target, data.y)
        samples = (self._read(data, row)[0] for row in range(len(data)))
        lengths = data.lengths
        n_steps = self._mean_steps(data, range(len(data)))
        for row, (steps, raw) in enumerate(self._predict(samples, data.pieces, lengths)):
            look(steps)
            _, targets = self._read(data, row)
            by_steps = by_step(self.network, targets, len(steps))
            for t, (layers, before, wanted) in enumerate(zip(steps, raw, by_steps, strict=True)):
                for index, target in wanted.items():
                    layer = self.network.layers[index]
                    if not is_judged_at(layer, t, len(steps)):
                        continue
                    judged = (
                        passes.judge(self.stages[index].loss_of_raw, before[index], target)
                        if index in before
                        else passes.judge(self._losses[index], layers[index], target)
                    )
                    part = number(judged) / (n_steps if layer.each_step else 1.0)
                    total += part * layer.loss_weight
                    if each is not None:
                        each[index] += part
            if answered is not None and data.y is not None:
                outputs = np.array([self._answer(steps)])
                own = None if lengths is None else lengths[row : row + 1]
                right += n_right(answered, outputs, data.y[row : row + 1], own)
        return total, right

    def _mean_steps(self, data: Dataset, rows: Sequence[int] | Array) -> float:
        """The mean number of steps of these samples."""
        return sum(self._n_steps(data, row) for row in rows) / max(len(rows), 1)

    def _n_steps(self, data: Dataset, row: int) -> int:
        """The number of steps of a sample."""
        steps = max(self.network.steps, 1)
        return steps if data.lengths is None else int(data.lengths[row])

    def watch(self, data: Dataset) -> tuple[float, int, list[float]]:
        found = [aggregate.empty for aggregate, _, _ in self._aggregates]

        def look(steps: list[list[list[float]]]) -> None:
            for k, (aggregate, layer, function) in enumerate(self._aggregates):
                value = passes.one_number(aggregate.of_layer, function, steps[-1][layer])
                found[k] = backends.combined(aggregate, found[k], np.array([value]))

        total, right = self._judged(data, look)
        return total, right, found

    def parameters(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._arrays.items()}

    def states(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._states.items()}

    def slots(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._slots.items()}

    def load(
        self,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        slots: Mapping[str, Array] | None = None,
        updates: int = 0,
    ) -> None:
        given = [
            (parameters, self._arrays),
            (states or {}, self._states),
            (slots if slots and self.optimizer is not None else {}, self._slots),
        ]
        for new, own in given:
            for name, array in new.items():
                backends.check_fits(own, name, array)
        for new, own in given:
            own.update({name: np.array(array, self.dtype) for name, array in new.items()})
        self._updates = updates

    def memory(self) -> backends.Memory:
        found = {"parameter": self._arrays, "state": self._states, "slot": self._slots}
        return {**found, "heard": self.carried} if self.carried else found

    def recall(self, memory: Mapping[str, Mapping[str, Array]], updates: int) -> None:
        for array, new in list(backends.fitting(self.memory(), memory)):
            array[...] = new
        self._updates = updates

    def places(self, name: str) -> tuple[slice, ...]:
        array = {**self._arrays, **self._states, **self._slots, **self.carried}[name]
        return tuple(slice(0, n) for n in array.shape)

    @property
    def updates(self) -> int:
        return self._updates

    # --- samples

    def _read(self, data: Dataset, row: int) -> tuple[list[float], SampleTargets]:
        return read_sample(self.network, self.setup.target, data, row)

    def _memory(self, training: bool) -> LearnedNumbers:
        """The learned numbers, and their previous updates, which are 0 at inference."""
        previous: Numbers = {name: [0.0] * array.size for name, array in self._arrays.items()}
        if training and self.optimizer is not None:
            if PREVIOUS_UPDATE not in self.optimizer.slots:
                return LearnedNumbers(flat(self._arrays), no_previous(self.optimizer))
            for name in self._learning:
                previous[name] = self._slots[f"{name}/{PREVIOUS_UPDATE}"].ravel().tolist()
        return LearnedNumbers(flat(self._arrays), previous)

    def _input_mask(self, moment: Moment) -> list[float]:
        """Input dropout: site 0 of layer 0 (note 0001, point 10)."""
        layer = self.network.layers[0]
        key, sample = random.key(moment.seed, 0), moment.number_of(layer.per)
        drawn = random.uniform(key, 0, range(layer.size), [sample], moment.iteration)[0]
        return [float(u < layer.keep) for u in drawn]

    def _predict(
        self,
        samples: Iterable[Sequence[float]],
        pieces: int = 1,
        lengths: Array | None = None,
        first: int | Array = 0,
    ) -> Iterator[tuple[list[list[list[float]]], list[dict[int, list[float]]]]]:
        """The outputs of all layers for each sample in turn, step by step, in inference, and their
        raw values for a ``loss_of_raw``. pieces : the number of samples in turn that are one
        sequence. first : the number of the first one, or of each, for draws.
        """
        memory, states = self._memory(training=False), flat(self._states)
        keep, before = self.network.layers[0].keep, list[Sample]()
        for row, x in enumerate(samples):
            k, piece = divmod(row, pieces)
            self._forget_early(before)
            sent, raw, before = [], [], before if piece else []
            k = first + k if isinstance(first, int) else int(first[k])
            k += backends.number_of_step(piece, self.network.steps or 1)
            own, in_time = self._steps(x), list[dict[int, Sample]]()
            for t, here in enumerate(own if lengths is None else own[: lengths[row]]):
                moment = Moment(self.network.seed, False, self._updates, k + (t << 32), 0.0, row)
                before = passes.forward(
                    self.stages, [[v * keep for v in here]], [moment], memory, states,
                    before=before, fires=self._levels[0],
                )  # fmt: skip
                in_time.append({0: before[0]})
                sent.append(before[0].sent)
                raw.append(before[0].raw)
            self._go_through(in_time, memory)
            yield sent, raw

    def _by_reversals(self) -> list[list[Stage]]:
        """The layers, by the number of reversals between them and the input."""
        levels = by_reversals(self.network)
        return [
            [stage for stage in self.stages[1:] if levels[stage.index] == k]
            for k in range(max(levels) + 1)
        ]

    def _go_through(self, in_time: Sequence[dict[int, Sample]], memory: LearnedNumbers) -> None:
        """Run the layers that hear others reversed, after these have run at all steps."""
        if len(self._levels) == 1:
            return
        for k in in_time[0]:
            each = tuple(samples[k] for samples in in_time if k in samples)
            for sample in each:
                sample.sequence = each
        for level in self._levels[1:]:
            for samples in in_time:
                passes.fire(level, list(samples.values()), memory)

    def _steps(self, x: Sequence[float]) -> list[Sequence[float]]:
        """The features of each step."""
        n = self.network.n_inputs
        return [x[start : start + n] for start in range(0, max(len(x), 1), n)]

    # --- a batch

    def _run(
        self, rows: Array, iteration: int, first_sample: int, want_deltas: bool = False
    ) -> Batch:
        """Forward and backward for every sample of a training batch. Changes nothing."""
        if self._data is None:
            raise ModelError("bind(data) comes before step and probe")
        backends.check_batch(rows, self.setup.batch_size)
        backends.check_rows(rows, len(self._data))
        memory, states = self._memory(training=True), flat(self._states)
        gradients = {name: np.zeros(self._arrays[name].size) for name in self._learning}
        last_states = {name: np.zeros(array.size) for name, array in self._states.items()}
        silent: dict[tuple[int, int], int] = {}
        loss, sent, deltas, ends = 0.0, [], [], list[Sample]()
        earlier, first_sample = self._goes_on(rows, first_sample)
        steps, mean_steps = max(self.network.steps, 1), self._mean_steps(self._data, rows)
        asks = any(stage.asks_batch for stage in self.stages[1:])
        together = len(rows) if asks else 1
        for first in range(0, len(rows), max(together, 1)):
            these = range(first, min(first + together, len(rows)))
            samples, backs = self._pass(
                rows, these, iteration, first_sample, memory, states, silent, want_deltas,
                mean_steps, [earlier[k] for k in these if earlier],
            )  # fmt: skip
            ends += samples
            for sample, back in zip(samples, backs, strict=True):
                with np.errstate(all="ignore"):
                    for name in gradients:
                        gradients[name] += back.arrays[name]
                    for name, values in sample.states.items():
                        last_states[name] += values
                in_time = (*reversed(sample.past[: steps - 1]), sample)
                each = (back, *back.later)
                for layer in range(len(self.stages)):
                    each_fired = zip(*(one.fired[layer] for one in in_time), strict=True)
                    for o, neurons in enumerate(each_fired):
                        at_all = all(fired.call.silent for fired in neurons)
                        silent[layer, o] = silent.get((layer, o), 0) + at_all
                loss += sum(one.loss for one in each)
                sent.append([one.sent for one in in_time])
                deltas.append([one.deltas for one in each])
        for stage in self.stages[1:]:
            for name in stage.carried:
                last_states[stage.states[name]] = np.array(states[stage.states[name]]) * len(rows)
        for kept in self.network.synapse_states:
            if kept.state.per == "sample":
                last_states[kept.name] = np.array(states[kept.name]) * len(rows)
        n = max(len(rows), 1)
        sits_out = self._sits_out({who for who, times in silent.items() if times == len(rows)})
        return Batch(
            loss / n,
            {
                k: np.where(sits_out[k], 0.0, (v / n).reshape(self._arrays[k].shape))
                for k, v in gradients.items()
            },
            {k: (v / n).reshape(self._states[k].shape) for k, v in last_states.items()},
            sits_out,
            sent,
            deltas,
            self._heard(ends) if self.carried else {},
        )

    def _pass(
        self, rows: Array, these: Sequence[int], iteration: int, first_sample: int,
        memory: LearnedNumbers, states: Numbers, silent: dict[tuple[int, int], int],
        want_deltas: bool, mean_steps: float, earlier: Sequence[Sample] = (),
    ) -> tuple[list[Sample], list[Gradients]]:  # fmt: skip
        """Run some samples of a batch together, forward and back: the last step of each, and the
        gradients at its first step. silent : input neurons that sit the batch out are added.
        mean_steps : of the whole batch. earlier : the same samples one step before, where their
        sequences continue.
        """
        assert self._data is not None
        n_steps = {k: self._n_steps(self._data, rows[k]) for k in these}
        read = {k: self._by_step(int(rows[k]), n_steps[k]) for k in these}
        latest = dict(zip(these, earlier, strict=False))
        in_time = list[dict[int, Sample]]()  # for each step the samples that have it
        for t in range(max(n_steps.values())):
            here = [k for k in these if t < n_steps[k]]
            before = [latest[k] for k in here if k in latest]
            made = self._forward(
                rows, {k: read[k][t] for k in here}, iteration, first_sample, memory, states,
                silent, t, before,
            )  # fmt: skip
            for sample in made:
                sample.mean_steps = mean_steps
            in_time.append(dict(zip(here, made, strict=True)))
            latest |= in_time[-1]
        self._go_through(in_time, memory)
        each = list[dict[int, Gradients]]()  # the last step first
        later = dict[int, Gradients]()
        for samples in reversed(in_time):
            after = [later.get(k) for k in samples]
            backs = backward.begun(self.stages, list(samples.values()), memory, after)
            each.append(dict(zip(samples, backs, strict=True)))
            later |= each[-1]
        for k in these:
            of_sample = tuple(at[k] for at in reversed(each) if k in at)
            for back in of_sample:
                back.sequence = of_sample
        for level in reversed(self._levels):
            for samples, at in zip(reversed(in_time), each, strict=True):
                backward.come_back(
                    self.stages, level, list(samples.values()), memory, self._losses, want_deltas,
                    list(at.values()),
                )  # fmt: skip
        return [latest[k] for k in these], [later[k] for k in these]

    def _by_step(self, row: int, n_steps: int) -> list[tuple[Sequence[float], SampleTargets]]:
        """The features and the targets of a sample at each step."""
        assert self._data is not None
        x, targets = self._read(self._data, row)
        return [*zip(self._steps(x), by_step(self.network, targets, n_steps), strict=False)]

    def _forward(
        self, rows: Array, these: Mapping[int, tuple[Sequence[float], SampleTargets]],
        iteration: int, first_sample: int, memory: LearnedNumbers, states: Numbers,
        silent: dict[tuple[int, int], int], step: int, before: Sequence[Sample],
    ) -> list[Sample]:  # fmt: skip
        """Run some samples of a batch forward at one step. these : by place in the batch, what
        each has at the step."""
        assert self._data is not None
        xs, moments, targets = [], [], []
        keep = self.network.layers[0].keep
        lr = self.optimizer.rate(iteration) if self.optimizer is not None else 0.0
        for k, (here, target) in these.items():
            x = list(here)
            number_of = first_sample + k + (step << 32)
            moment = Moment(self.network.seed, True, iteration, number_of, lr, int(rows[k]))
            if keep < 1.0:
                mask = self._input_mask(moment)
                x = [v if m else 0.0 for v, m in zip(x, mask, strict=True)]
                if self.network.layers[0].per == "batch":
                    silent |= {(0, i): len(rows) for i, m in enumerate(mask) if m == 0.0}
            xs.append(x)
            moments.append(moment)
            targets.append(target)
        samples = passes.forward(
            self.stages, xs, moments, memory, states, targets, before, self._levels[0]
        )
        silent_inputs = frozenset(o for layer, o in silent if not layer)
        for sample, k in zip(samples, these, strict=True):
            sample.weight = self._data.weight_of(int(rows[k]), step)
            sample.silent_inputs = silent_inputs
        return samples

    def observe(
        self, rows: Array, k: int, *, iteration: int, first_sample: int
    ) -> tuple[Sample, Gradients]:
        """The calls and gradients of every neuron for sample k of a training batch. Changes
        nothing. For a sequence the last step, which has those before it, and the gradients at the
        first, likewise.
        """
        these = range(len(rows)) if any(stage.asks_batch for stage in self.stages[1:]) else [k]
        memory, states = self._memory(training=True), flat(self._states)
        earlier, first_sample = self._goes_on(rows, first_sample)
        assert self._data is not None
        samples, backs = self._pass(
            rows, these, iteration, first_sample, memory, states, {}, True,
            self._mean_steps(self._data, rows), [earlier[i] for i in these if earlier],
        )  # fmt: skip
        at = list(these).index(k)
        return samples[at], backs[at]

    def _sits_out(self, silent: set[tuple[int, int]]) -> dict[str, Array]:
        """The numbers that belong to neurons which sat the batch out: their synapses, in and out,
        and their Parameters."""
        found = {name: np.zeros(array.size, bool) for name, array in self._arrays.items()}
        shared = self.network.shared  # other neurons still learn these
        for stage in self.stages:
            for o, wires in enumerate(stage.wires):
                for wire in wires:
                    if (stage.index, o) in silent or (wire.source_layer, wire.source) in silent:
                        for _, array in wire.arrays:
                            found[array][wire.place] = array not in shared
                for array in stage.parameters.values():
                    found[array][stage.kind(o)] = array not in shared and (stage.index, o) in silent
        return {name: array.reshape(self._arrays[name].shape) for name, array in found.items()}

    def _find_learning(self) -> dict[str, str]:
        """The arrays that learn, and whether their gradient is "pushed" or "derived".

        The other arrays are out of reach of any gradient: below a local rule, or without a loss
        above. They are left alone.
        """
        sends: set[int] = set()  # layers that gradients flow back through
        late = sum(link.delay > 0 for stage in self.stages for link in stage.layer.links)
        for stage in [*reversed(self.stages[1:])] * (1 + late):  # a later layer may hear an earlier
            from_above = stage.index in self._losses
            from_above |= any(
                other in sends
                and any(k.source is stage.layer for k in self.stages[other].layer.links)
                for other in range(1, len(self.stages))
            )
            if stage.writes_backward or (from_above and not stage.local):
                sends.add(stage.index)
        self._sends = sends
        found: dict[str, str] = {}
        for stage in self.stages[1:]:
            for link in stage.layer.links:
                sender = self.stages[link.source.index]
                for name, array in link.weights.items():
                    before = found.get(array)
                    pushed = (link.input, name) in stage.learns_locally
                    if pushed or sender.pushes_weight(name, link.names):
                        found[array] = "pushed"
                    elif stage.index in sends and not stage.local:
                        found[array] = "derived"
                    tells = self.optimizer is not None and self.optimizer.tells_pushes_apart
                    if tells and before is not None and found[array] != before:
                        raise ModelError(tied.one_rule(array))
            for name, array in stage.layer.biases.items():
                if ("", name) in stage.learns_locally:
                    found[array] = "pushed"
                elif stage.index in sends and not stage.local:
                    found[array] = "derived"
            if stage.index in sends:
                how = "pushed" if stage.writes_backward else "derived"
                found |= dict.fromkeys(stage.parameters.values(), how)
        return {name: how for name, how in found.items() if name not in self.network.frozen}

    def _update(self, optimizer: Optimizer, batch: Batch, iteration: int) -> None:
        """Decay, clip, and apply the optimizer's formula to every learned number, except those that
        sat out (note 0001, points 7 and 8)."""
        lr = optimizer.rate(iteration)
        stored = {name: np.asarray(array, np.float64) for name, array in self._arrays.items()}
        gradients = dict(batch.gradients)
        links = (link for stage in self.stages[1:] for link in stage.layer.links)
        weights = {array for link in links for array in link.weights.values()}
        for name, g in gradients.items():
            w = stored[name]

            def prepared(g: Any, w: Any, name: str = name) -> tuple[Any]:
                if self._learning[name] == "derived":
                    g = optimizer.of_derived(g, lr)
                return (optimizer.prepared(g, w if name in weights else None),)

            with user_text.as_compile_errors(_REMEDY):
                (g,) = elementwise.apply(prepared, g, w)
            gradients[name] = np.where(batch.sits_out[name], 0.0, g)
        if optimizer.clip_norm is not None:
            norm = float(np.sqrt(sum(float(np.sum(g * g)) for g in gradients.values())))
            with user_text.as_compile_errors():
                factor = optimizer.clip_factor(norm)
            gradients = {name: g * factor for name, g in gradients.items()}
        self._updates += 1
        for name, g in gradients.items():
            slots = [np.asarray(self._slots[f"{name}/{s}"], np.float64) for s in optimizer.slots]
            old = stored[name], *slots

            def updated(g: Any, w: Any, *slots: Any) -> tuple[Any, ...]:
                before = dict(zip(optimizer.slots, slots, strict=True))
                new, memory = formulas.updated(optimizer, w, g, before, lr, self._updates)
                return (new, *(memory[slot] for slot in optimizer.slots))

            with user_text.as_compile_errors(_REMEDY):
                new = elementwise.apply(updated, g, *old)
            self._arrays[name], *after = (
                np.where(batch.sits_out[name], x, y).astype(self.dtype)
                for x, y in zip(old, new, strict=True)
            )
            self._slots |= {
                f"{name}/{slot}": x for slot, x in zip(optimizer.slots, after, strict=True)
            }
