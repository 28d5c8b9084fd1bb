"""The search for the operation that made a number infinite or NaN: one neuron, loss or sample runs
again, with every operation watched.

The arithmetic of the interpreter is in double precision; numbers beyond the job's float32 count
as infinite here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any

import numpy as np

from horn.autodiff import tape, user_text
from horn.backends import Memory, Setup, number_of_step
from horn.data import Dataset
from horn.errors import CompileError
from horn.interpreter import passes
from horn.interpreter.calls import Moment
from horn.interpreter.engine import Engine
from horn.interpreter.language import Translator
from horn.interpreter.layers import Stage
from horn.interpreter.passes import LearnedNumbers
from horn.interpreter.samples import (
    SampleTargets,
    by_step,
    flat,
    is_judged_at,
    read_sample,
    sample_before,
)
from horn.job import Job
from horn.layers import Layer

Array = np.ndarray[Any, Any]
MOST_SYNAPSES = 2_000_000  # the most of a layer to build: about a second
MOST_OF_ALL = 200_000  # the most of a network to run forward and back

# Files that run neurons, losses and interlayers; their callers are not in the neuron.
_RUNS = passes.__file__

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
          "pow": "**"}  # fmt: skip


@dataclass(frozen=True)
class BrokenOperation:
    """An operation whose arguments are finite and whose result is not. error : at the user's line.
    remedy : a better way to write it. serial : in backward, its number on the tape. step : of a
    sequence, where it is known.
    """

    error: CompileError
    remedy: str
    serial: int = 0
    step: int | None = None


class Watch:
    """The observer of ``watching``: keeps the first operation with an infinite or NaN result.

    limit : the largest number that the job's dtype holds.
    """

    def __init__(self, limit: float, keeps_places: bool) -> None:
        self.limit, self.keeps_places = limit, keeps_places
        self.first: BrokenOperation | None = None
        self.places: dict[int, user_text.Place | None] = {}

    def made(self, op: str, values: Sequence[float], result: float) -> None:
        if self.first is None and self._is_broken(values, result):
            error = user_text.error(self._problem(op, values, result), _RUNS)
            self.first = BrokenOperation(error, _remedy(op, values))

    def placed(self, made: tape.Traced) -> None:
        """Keep the place where a number of the tape was made, for its derivative later."""
        if self.keeps_places:
            self.places[made.serial] = user_text.place(_RUNS)

    def flowed(self, node: tape.Traced, args: Sequence[float], slope: float, flow: float) -> None:
        if self.first is not None or not self._is_broken([*args, flow], slope * flow):
            return
        if node.serial not in self.places:
            return
        given = ", ".join(f"{a:.6g}" for a in args)
        problem = f"The derivative of {_said(node.op, args)} is {slope:.6g}."
        if isfinite(slope):
            problem = f"The gradient through {node.op}({given}) is {slope * flow:.6g}."
        error = user_text.error_in(self.places[node.serial], problem)
        self.first = BrokenOperation(error, _slope_remedy(node.op), node.serial)

    def _is_broken(self, values: Sequence[float], result: float) -> bool:
        return not self._fits(result) and all(map(self._fits, values))

    def _fits(self, value: float) -> bool:
        return isfinite(value) and abs(value) <= self.limit

    def _problem(self, op: str, values: Sequence[float], result: float) -> str:
        what = f"{_said(op, values)} is {result:.6g}"
        if isfinite(result):  # in double precision
            what += f": float32 ends at {self.limit:.3g}"
        return f"{what}."


def _said(op: str, values: Sequence[float]) -> str:
    given = [f"{v:.6g}" for v in values]
    if op in ("largest", "smallest"):
        return f"{op}({values[0]}, ...) of {values[1]} message{'s' * (values[1] != 1)}"
    if op == "median":
        return "median of no message"
    if op in _SIGNS:
        return f" {_SIGNS[op]} ".join(given)
    return f"{op}({', '.join(given)})"


def _remedy(op: str, values: Sequence[float]) -> str:
    if op in ("log", "log1p"):
        low = "0" if op == "log" else "-1"
        safe = "horn.math.maximum(x, 1e-6)" if op == "log" else "horn.math.maximum(x, -0.999999)"
        return f"{op} takes numbers above {low}: write horn.math.{op}({safe})."
    if op == "sqrt":
        return "sqrt takes numbers from 0: write horn.math.sqrt(horn.math.maximum(x, 0.0))."
    if op in ("div", "floordiv", "mod") and values[-1] == 0.0:
        return "It divides by 0: keep the divisor away from it, as x / (y + 1e-6) for y above 0."
    if op in ("largest", "smallest", "median"):
        n = int(values[0]) if values else 1
        return f"Ask before whether there are so many: x if len(messages) >= {n} else 0.0."
    if op == "pow":
        return ("A power of a number below 0, or one of 0 with an exponent below 0, is none: take "
                "abs(x) or a maximum first.")  # fmt: skip
    if op in ("exp", "expm1"):
        return ("exp grows beyond what a number holds: scale the inputs down (pixels / 255), or "
                "bound what it is of: horn.math.minimum(x, 50.0).")  # fmt: skip
    return "The numbers are too large for the dtype: scale the inputs or the targets down."


def _slope_remedy(op: str) -> str:
    if op in ("sqrt", "log", "pow", "div"):
        return f"Keep what {op} is of away from the edge, as horn.math.maximum(x, 1e-6)."
    return "The gradients are too large for the dtype: scale the loss or the inputs down."


@contextmanager
def watching(dtype: str, places: bool = False) -> Iterator[Watch]:
    """Watch every operation of the tape. places : remember where each was made, for derivatives."""
    watch = Watch(float(np.finfo(dtype).max), places)
    with tape.observing(watch):
        yield watch


class BrokenBatch:
    """A training batch with a broken number. arrays : the learned arrays before it; memory : these,
    the states and slots. rows : of ``data``; first_sample : the global number of the first.
    """

    def __init__(
        self,
        job: Job,
        data: Dataset,
        arrays: Mapping[str, Array],
        memory: Memory,
        rows: Array,
        first_sample: int,
        iteration: int,
    ) -> None:
        self.job, self.data, self.network = job, data, job.network
        self.arrays, self.memory = arrays, memory
        self.rows, self.first_sample, self.iteration = rows, first_sample, iteration

    def forward(
        self, layer: Layer, row: int, neuron: int, seen: Mapping[str, Array], step: int = 0
    ) -> BrokenOperation | None:
        """Run one neuron's forward for one sample, its inputs as the backend computed them. step :
        of its sequence.
        """
        if layer.size * max(layer.fan_in, 1) > MOST_SYNAPSES:
            return None
        stage = Stage(self.network, layer, Translator())
        memory, states = self._numbers(layer)
        if self.network.steps:
            return self._forward_in_time(stage, row, neuron, seen, step, memory, states)
        together = range(len(self.rows)) if stage.asks_batch else [row]
        samples = [self._sample(layer, k, seen, states) for k in together]
        here = list(together).index(row)
        with np.errstate(all="ignore"), watching(self.job.dtype) as watch:
            passes.fire_one(stage, neuron, samples, here, memory)
            if watch.first is None and stage.interlayer is not None:
                passes.send(stage, samples, here, memory)
        return watch.first

    def _forward_in_time(
        self, stage: Stage, row: int, neuron: int, seen: Mapping[str, Array], step: int,
        memory: LearnedNumbers, states: dict[str, list[float]],
    ) -> BrokenOperation | None:  # fmt: skip
        """Run it from the first step on where the neuron or its synapses have States; all neurons
        of the layer where an interlayer joins them.
        """
        samples = self._in_time(row, seen, states)
        first = 0 if stage.states or stage.incoming else step
        with np.errstate(all="ignore"), watching(self.job.dtype) as watch:
            for sample in samples[first : step + 1]:
                if stage.interlayer is not None:
                    passes.fire([stage], [sample], memory)
                else:
                    passes.go_on(stage, sample)
                    passes.fire_one(stage, neuron, [sample], 0, memory)
        return watch.first

    def loss(self, row: int, seen: Mapping[str, Array], step: int = 0) -> BrokenOperation | None:
        """Run the losses of one sample. step : of its sequence."""
        targets = self._targets(row, step)
        at = (row, step) if self.network.steps else row
        with np.errstate(all="ignore"), watching(self.job.dtype) as watch:
            for layer in self.network.judged if targets else ():
                sent = np.asarray(seen[f"{layer.name}.output"][at], np.float64).tolist()
                if layer.loss is not None and is_judged_at(layer, step, self.n_steps(row)):
                    judge = Translator().value(layer.loss.f)
                    passes.judge(judge, sent, targets[layer.index])
        return watch.first

    def backward(self, row: int | None) -> BrokenOperation | None:
        """Run all neurons forward and back for one sample."""
        layers = self.network.layers[1:]
        in_all = sum(k.size * max(k.fan_in, 1) for k in layers) * max(self.network.steps, 1)
        if row is None or in_all > MOST_OF_ALL:
            return None
        setup = Setup(self.network, self.job.optimizer, self.job.target, 1, "float64")
        engine = Engine(setup)
        engine.bind(self.data)
        engine.load(self.arrays, self.memory["state"], None, self.iteration)
        for name, array in engine.carried.items():
            array[0] = self.memory["heard"][name][row]
        with np.errstate(all="ignore"), watching(self.job.dtype, places=True) as watch:
            seen, _ = engine.observe(
                self.rows[row : row + 1], 0, iteration=self.iteration,
                first_sample=self.first_sample + row,
            )  # fmt: skip
        if watch.first is None or not self.network.steps:
            return watch.first
        steps = (*reversed(seen.past[: self.n_steps(row) - 1]), seen)
        fed = [(n.call.fed, t) for t, at in enumerate(steps) for n in sum(at.fired[1:], [])]
        made = [(y.serial, t) for y, t in fed if isinstance(y, tape.Traced)]
        later = [(number, t) for number, t in made if number >= watch.first.serial]
        return replace(watch.first, step=min(later)[1] if later else None)

    def _numbers(self, layer: Layer) -> tuple[LearnedNumbers, dict[str, list[float]]]:
        arrays = {name: self.arrays[name] for name in layer.learned}
        slots = self.memory.get("slot", {})
        previous = {
            name: slots.get(f"{name}/previous_update", np.zeros_like(array))
            for name, array in arrays.items()
        }
        return LearnedNumbers(flat(arrays), flat(previous)), flat(self.memory["state"])

    def _sample(
        self, layer: Layer, row: int, seen: Mapping[str, Array], states: dict[str, list[float]]
    ) -> passes.Sample:
        moment = Moment(
            self.network.seed, True, self.iteration, self.first_sample + row,
            self.job.optimizer.rate(self.iteration),
        )  # fmt: skip
        sent = [
            np.asarray(seen[f"{below.name}.output"][row], np.float64).tolist()
            for below in self.network.layers[: layer.index]
        ]
        own = {name: list(values) for name, values in states.items()}
        wanted = self._wanted(row, 0) if layer in self.network.outputs else {}
        return passes.Sample(moment, own, sent, wanted)

    def _wanted(self, row: int, step: int) -> SampleTargets:
        """The targets that output neurons read; NaN where there are none."""
        targets = self._targets(row, step)
        outputs = self.network.outputs
        return {k.index: targets.get(k.index, [nan] * k.size) for k in outputs}

    def _targets(self, row: int, step: int) -> SampleTargets:
        """The targets of a sample, at a step of its sequence."""
        _, targets = read_sample(self.network, self.job.target, self.data, int(self.rows[row]))
        return by_step(self.network, targets, self.n_steps(row))[step]

    def n_steps(self, row: int) -> int:
        """The number of steps in the sequence of a row."""
        lengths = self.data.lengths
        return max(self.network.steps, 1) if lengths is None else int(lengths[self.rows[row]])

    def _in_time(
        self, row: int, seen: Mapping[str, Array], states: dict[str, list[float]]
    ) -> list[passes.Sample]:
        """A sample at each step of its sequence, with layer outputs as the backend has them."""
        network, n = self.network, self.n_steps(row)
        piece = int(self.rows[row]) % self.data.pieces
        number = self.first_sample + row + number_of_step(piece, network.steps)
        rate = self.job.optimizer.rate(self.iteration)
        sent = [np.asarray(seen[f"{k.name}.output"][row], np.float64) for k in network.layers]
        found: list[passes.Sample] = []
        before = sample_before(network, self.memory["heard"], row, states) if piece else None
        for t in range(n):
            moment = Moment(network.seed, True, self.iteration, number + (t << 32), rate)
            own = {name: list(values) for name, values in states.items()}
            sample = passes.Sample(moment, own, [layer[t].tolist() for layer in sent],
                                   self._wanted(row, t))  # fmt: skip
            sample.fired = [[] for _ in network.layers]
            if before is not None:
                sample.past = passes.Chain(before, before.past)
            found.append(sample)
            before = sample
        for sample in found:
            sample.sequence = found
        return found
