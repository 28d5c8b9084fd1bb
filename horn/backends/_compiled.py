"""The shared engine of compiled backends: it builds programs and hands them to a Runner.

A backend is a Runner: it takes a Program, the persistent arrays and the data, and runs one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from horn.aggregates import Aggregate
from horn.answers import answer_kind, n_right
from horn.backends import (
    Array,
    Memory,
    Places,
    Setup,
    check_batch,
    check_fits,
    combined,
    fitting,
    number_of_step,
    target_kind,
)
from horn.compiler import lower, parts
from horn.data import Dataset
from horn.data.in_steps import filled
from horn.errors import ModelError
from horn.language.layers import Reading
from horn.network import Network
from horn.partition.share import Share
from horn.program import Program, Targets

PREDICT_ROWS = 256  # samples per batch of inference, at most,
PREDICT_NUMBERS = 1 << 20  # and outputs of all neurons in a batch, about
_ONE = np.zeros(1, np.int64)  # the row of a sequence that continues


class Runner(Protocol):
    """One program, or a task's share of it, ready to run on batches of a data set."""

    program: Program
    layout: str  # "neuron": each neuron's values for the batch lie together; or "batch"
    is_static: bool  # a buffer is the same memory in every batch, as long as the largest

    def __init__(
        self,
        program: Program,
        arrays: dict[str, Array],
        setup: Setup,
        batch_size: int,
        share: Share | None = None,
    ) -> None: ...

    def bind(self, data: Dataset) -> None:
        """Set the data set that rows are indices into."""

    def run(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        """Run one batch. scalars: learning_rate, iteration, updates, rows, inv_rows; begins, 0
        where sequences continue, else 1. first_sample : the number of the first row, for draws; of
        sequences also (n,) those of all rows.
        """

    def start(self, rows: Array, scalars: Mapping[str, float], first_sample: int | Array) -> None:
        """Begin a batch that runs by segments: statements between exchanges with other tasks."""

    @property
    def n_rows(self) -> int:
        """The number of rows of the batch that was begun last."""

    @property
    def n_steps(self) -> int:
        """The number of steps of its longest sequence."""

    def compute(self, segment: int, step: int = -1) -> None:
        """Run one segment of the program (``program.segments``); if ``step`` is given, only that
        step of a repeated segment. ``array`` then has that step, too.
        """

    def array(self, name: str) -> Array:
        """A buffer's array as it lies in memory: it may have more rows than the batch."""

    def target_array(self, name: str) -> Array:
        """The array of ``array``, for writing from outside."""

    def settle(self, name: str, memory: Array) -> None:
        """Move an ``is_static`` buffer into this memory; ``array`` returned what is old now."""

    def place(self, name: str, memory: Array) -> None:
        """Move a learned array into this memory, for good."""

    def value(self, name: str) -> Array:
        """A buffer after a run, in the program's axes; zeros at a compact layer's silent ones."""

    def carry(self) -> None:
        """Let the next sequence continue this one, of one row."""

    def forget(self) -> None:
        """Let the next sequence begin: no output is before it."""

    def heard(self) -> dict[str, Array]:
        """Copies of the numbers that the sequences of the last batch carry on: (rows, steps, n),
        with as many steps as a buffer has before the first one.
        """

    def hear(self, rows: int, heard: Mapping[str, Array]) -> None:
        """Set the carried numbers before the next batch of so many rows; 0 where none are given."""

    def mean(self, name: str) -> float:
        """The mean of a buffer that has one number for each sample of the batch, in double."""

    def push(self) -> None:
        """Take over changes of the persistent arrays from outside."""

    def pull(self) -> None:
        """Bring the persistent arrays up to date."""


class CompiledEngine:
    """The Engine of a compiled backend. Persistent arrays are in ``arrays``, as users see them."""

    runner: type[Runner]
    masked: frozenset[int] = frozenset()  # layers, as in lower.training_program

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.reading = setup.reading or Reading()
        self.network: Network = setup.network
        self._answers_each = self.network.answers_each
        self.updates = 0
        learned, states = self.initial()
        self.arrays: dict[str, Array] = {**learned, **states}
        self._learned, self._states = list(learned), list(states)
        del learned, states  # the arrays may move to other memory
        self._slots: list[str] = []
        self._data: Dataset | None = None
        self.weighs = ""  # what has a weight in the data of ``step``
        self.is_ragged = False  # whether the next data are sequences of different lengths
        self._training: Runner | None = None  # the runner of a step
        self._runners: dict[object, Runner] = {}
        self._heard: Array | None = None  # the data of a sequence that continues
        self._kept: dict[str, Array] = {}  # carried numbers of sequences in pieces
        n_neurons = sum(layer.size for layer in self.network.layers) * max(self.network.steps, 1)
        self.predict_rows = min(PREDICT_ROWS, max(PREDICT_NUMBERS // n_neurons, 16))

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The learned arrays and the States that the engine begins with."""
        dtype = np.dtype(self.setup.dtype)
        return self.network.initial_parameters(dtype), self.network.initial_states(dtype)

    # --- programs

    def target_kind(self, data: Dataset) -> Targets:
        """The function ``target_kind`` for this engine's network."""
        return target_kind(self.network, self.setup.target, data)

    def _runner(self, kind: str, target: Targets) -> Runner:
        key = (kind, target, kind in ("train", "probe") and self.weighs, self.is_ragged)
        if key not in self._runners:
            self._runners[key] = self.make_runner(kind, target)
        return self._runners[key]

    def _reading(self, kind: str, target: Targets, data: Dataset) -> Runner:
        """The runner of a program that reads these data."""
        self.is_ragged = data.lengths is not None
        runner = self._runner(kind, target)
        runner.bind(data)
        return runner

    @property
    def part(self) -> int:
        """The steps of a part whose forward is computed again; 0 without such parts."""
        is_again = self.setup.recompute and self.network.steps
        return parts.length_of(self.network.steps) if is_again else 0

    def make_runner(self, kind: str, target: Targets) -> Runner:
        """The runner of "train", "infer", "watch" (with the aggregates, too), "stream" (of one
        sequence, whose numbers stay in its memory), or "probe".
        """
        optimizer = self.setup.optimizer
        infers = kind in ("infer", "watch", "stream")
        if infers:
            program = self.inference(kind, target)
        elif optimizer is None:
            raise ModelError("this engine was made to predict: it has no optimizer")
        else:
            program = lower.training_program(
                self.network, optimizer, target, fuse=kind == "train", masked=self.masked,
                weighs=self.weighs, ragged=self.is_ragged,
                part=self.part if kind == "train" else 0, reading=self.reading,
            )  # fmt: skip
        self.allocate(program)
        size = self.predict_rows if infers else self.setup.batch_size
        return self.runner(program, self.arrays, self.setup, 1 if kind == "stream" else size)

    def inference(self, kind: str, target: Targets) -> Program:
        aggregates = self.setup.aggregates if kind == "watch" else ()
        return lower.inference_program(
            self.network, target, aggregates, self.is_ragged, self.reading
        )

    def allocate(self, program: Program) -> None:
        for name, buffer in program.buffers.items():
            if buffer.role == "slot" and name not in self.arrays:
                self.arrays[name] = np.zeros_like(self.arrays[name.rsplit("/", 1)[0]])
                self._slots.append(name)

    # --- Engine

    def bind(self, data: Dataset) -> None:
        target = self.target_kind(data)
        self.weighs = "" if target is None else data.weighs
        runner = self._reading("train", target, data)
        self._data, self._training = data, runner
        self._kept = {}
        if data.pieces > 1:
            self._kept = {
                name: np.zeros((self.setup.batch_size, *shape), self.setup.dtype)
                for name, shape in self.network.remembered.items()
            }

    @property
    def training_runner(self) -> Runner:
        """The runner of a step. Raises ModelError before data are bound."""
        if self._training is None:
            raise ModelError("step before bind: name the data set first")
        return self._training

    def _run(
        self, runner: Runner, rows: Array, scalars: Mapping[str, float],
        first_sample: int | Array,
    ) -> None:  # fmt: skip
        runner.run(rows, scalars, first_sample)

    def _scalars(
        self, rows: int, iteration: int, begins: bool = True, steps: float = 1.0
    ) -> dict[str, float]:
        """The scalars of a batch. steps : the mean number, of sequences that end early."""
        optimizer = self.setup.optimizer
        return {
            "learning_rate": 0.0 if optimizer is None else optimizer.rate(iteration),
            "iteration": float(iteration),
            "updates": float(self.updates + 1),
            "rows": float(rows),
            "inv_rows": 1.0 / rows,
            "begins": float(begins),
            "inv_steps": 1.0 / steps,
        }

    def _begin(
        self, runner: Runner, rows: Array, data: Dataset, heard: Mapping[str, Array],
        here: int | None = None,
    ) -> tuple[int, bool]:  # fmt: skip
        """Let the sequences of a batch begin, or continue from their carried numbers. Returns the
        offset to the numbers of its samples, and whether they begin. here : the number of this
        engine's rows, by default all.
        """
        if data.pieces == 1:
            return 0, True
        piece = int(rows[0]) % data.pieces
        runner.hear(len(rows) if here is None else here, heard if piece else {})
        return number_of_step(piece, self.network.steps), not piece

    def _ending(self, runner: Runner, kept: Mapping[str, Array]) -> None:
        """Keep the numbers that the sequences of a batch carry on to the next one."""
        if kept:
            for name, array in runner.heard().items():
                kept[name][: len(array), -array.shape[1] :] = array

    def step(self, rows: Array, *, iteration: int, first_sample: int) -> float:
        runner, loss, data = self._learning(rows)
        at, begins = self._begin(runner, rows, data, self._kept)
        self._run(runner, rows, self._of_rows(rows, iteration, begins), first_sample + at)
        self._ending(runner, self._kept)
        self.updates += 1
        return 0.0 if loss is None else runner.mean(loss)

    def _learning(self, rows: Array) -> tuple[Runner, str | None, Dataset]:
        runner = self.training_runner
        check_batch(rows, self.setup.batch_size)
        assert self._data is not None
        return runner, runner.program.loss, self._data

    def _of_rows(self, rows: Array, iteration: int, begins: bool = True) -> dict[str, float]:
        """The scalars of a training batch of these rows."""
        assert self._data is not None
        lengths = self._data.lengths
        steps = 1.0 if lengths is None else float(lengths[rows].mean())
        return self._scalars(len(rows), iteration, begins, steps)

    def outputs(
        self, x: Array, lengths: Array | None = None, pieces: int = 1, *, first: int | Array = 0
    ) -> Array:
        if not len(x):  # which are no data set
            return np.empty((0, *self.network.answers), self.setup.dtype)
        shape = (self.network.steps, self.network.n_inputs) if lengths is not None else ()
        x = np.ascontiguousarray(x)
        data = Dataset(x, None, 1.0, "x", pieces=pieces, shape=shape, lengths=lengths)
        runner = self._reading("infer", None, data)
        result = np.empty((len(data), *self.network.answers), self.setup.dtype)
        for rows in self._inferred(runner, data, first):
            result[rows] = self._answers(runner, data, rows)
        return result

    def go_on(self, x: Array, at: int, sample: int = 0) -> Array:
        runner = self._step_runner()
        if self._heard is None or self._heard.shape != x.shape:
            self._heard = np.empty(x.shape, self.setup.dtype)
            runner.bind(Dataset(self._heard, None, 1.0, "x"))
        self._heard[...] = x
        scalars = self._inference_scalars(1, not at)
        self._run(runner, _ONE, scalars, sample + number_of_step(at, 1))
        runner.carry()
        sent = self._sent(runner)
        return np.array(sent[0] if self._answers_each else sent[0, -1])

    def last(self, name: str) -> Array:
        runner = self._step_runner()
        for buffer in (f"{name}.output", f"{name}.now"):
            if buffer in runner.program.buffers:
                return runner.value(buffer)
        return self.arrays[name]  # a State that is only read

    def forget(self) -> None:
        self._step_runner().forget()

    def _step_runner(self) -> Runner:
        """The runner of ``go_on`` alone: other data would take the place of what it carries on."""
        self.is_ragged = False
        return self._runner("stream", None)

    def _answers(self, runner: Runner, data: Dataset, rows: Array) -> Array:
        """The outputs, side by side; at the last step alone, unless each step is answered."""
        found = self._sent(runner)
        if data.lengths is not None:
            found = filled(found, data.lengths[rows], self.network.steps)
        is_last = found.ndim == 3 and not self._answers_each
        return found[:, -1] if is_last else found

    def _sent(self, runner: Runner) -> Array:
        """The outputs of a program, side by side."""
        found = [runner.value(name) for name in runner.program.outputs]
        if len(found) == 1:
            return found[0]
        if any(a.ndim < 3 for a in found):  # some outputs answer at the last step alone
            found = [a[:, -1] if a.ndim == 3 else a for a in found]
        return np.concatenate(found, axis=-1)

    def _inference_scalars(
        self, rows: int, begins: bool = True, steps: float = 1.0
    ) -> dict[str, float]:
        return {**self._scalars(rows, self.updates, begins, steps), "learning_rate": 0.0}

    def _inferred(self, runner: Runner, data: Dataset, first: int | Array = 0) -> Iterator[Array]:
        """All rows, batch by batch, each after its run; pieces of a sequence one after another.
        first : the number of the first row, or of each sequence, for draws.
        """
        n, pieces = len(data) // data.pieces, data.pieces
        steps = 1.0 if data.lengths is None else float(data.lengths.mean())
        for start in range(0, n, self.predict_rows):
            firsts = pieces * np.arange(start, min(start + self.predict_rows, n), dtype=np.int64)
            heard: dict[str, Array] = {}
            number = first + start if isinstance(first, int) else first[start:][: len(firsts)]
            for piece in range(pieces):
                rows = firsts + piece
                at, begins = self._begin(runner, rows, data, heard)
                scalars = self._inference_scalars(len(rows), begins, steps)
                self._run(runner, rows, scalars, number + at)
                if pieces > 1:
                    heard = runner.heard()
                yield rows
            if pieces > 1:
                runner.hear(len(firsts), {})

    def losses(self, data: Dataset) -> tuple[float, int]:
        return self._measured("infer", data, ())[:2]

    def results(self, data: Dataset) -> tuple[float, int, Array, list[float]]:
        outputs = np.empty((len(data), *self.network.answers), self.setup.dtype)
        total, correct, _, each = self._measured("infer", data, (), outputs)
        return total, correct, outputs, each

    def watch(self, data: Dataset) -> tuple[float, int, list[float]]:
        return self._measured("watch", data, self.setup.aggregates)[:3]

    def _measured(
        self,
        kind: str,
        data: Dataset,
        aggregates: Sequence[Aggregate],
        outputs_out: Array | None = None,
    ) -> tuple[float, int, list[float], list[float]]:
        target = self.target_kind(data)
        runner = self._reading(kind, target, data)
        answered = answer_kind(self.network, self.setup.target, data.y)
        total, correct = 0.0, 0
        found = [aggregate.empty for aggregate in aggregates]
        losses = runner.program.losses if outputs_out is not None else ()
        of_each = [0.0] * len(losses)
        for rows in self._inferred(runner, data):
            if runner.program.loss is not None:
                total += float(runner.value(runner.program.loss).sum(dtype=np.float64))
            for k, name in enumerate(losses):
                of_each[k] += float(runner.value(name).sum(dtype=np.float64))
            if answered is not None or outputs_out is not None:
                outputs = self._answers(runner, data, rows)
                if answered is not None and data.y is not None:
                    lengths = None if data.lengths is None else data.lengths[rows]
                    correct += n_right(answered, outputs, data.y[rows], lengths)
                if outputs_out is not None:
                    outputs_out[rows] = outputs
            for k, aggregate in enumerate(aggregates):
                numbers = runner.value(runner.program.aggregates[k])
                found[k] = combined(aggregate, found[k], numbers)
        return total, correct, found, of_each

    def probe(self, rows: Array, *, iteration: int, first_sample: int) -> dict[str, Array]:
        data = self._data
        if data is None:
            raise ModelError("probe before bind: name the data set first")
        check_batch(rows, self.setup.batch_size)
        target = self.target_kind(data)
        self.is_ragged = data.lengths is not None
        runner = self._runner("probe", target)
        for other in self._runners.values():
            other.pull()
        saved = {name: array.copy() for name, array in self.arrays.items()}
        runner.bind(data)
        runner.push()
        at, begins = self._begin(runner, rows, data, self._kept)
        runner.run(rows, self._of_rows(rows, iteration, begins), first_sample + at)
        program = runner.program
        found = {name: np.array(runner.value(buffer)) for name, buffer in program.probes.items()}
        if data.lengths is not None:  # behind the end of a sequence its last value is repeated
            for name in found:
                if found[name].ndim == 3 and name.endswith(".output"):
                    found[name] = filled(found[name], data.lengths[rows], self.network.steps)
                elif found[name].ndim == 3:
                    behind = self.network.steps - found[name].shape[1]
                    found[name] = np.pad(found[name], ((0, 0), (0, behind), (0, 0)))
        for name, array in self.arrays.items():  # shared weights are flat in the program
            if (gradient := f"{name}.gradient") in found:
                found[gradient] = found[gradient].reshape(array.shape)
        loss = 0.0 if target is None else runner.value("loss").mean(dtype=np.float64)
        found["loss"] = np.asarray(loss)
        for name, array in saved.items():
            self.arrays[name][...] = array
        for other in self._runners.values():
            other.push()
        return found

    def views(self) -> dict[str, dict[str, Array]]:
        """The arrays themselves, to read before the next step: parameters and states, by name."""
        for runner in self._runners.values():
            runner.pull()
        return {
            "parameter": {name: self.arrays[name] for name in self._learned},
            "state": {name: self.arrays[name] for name in self._states},
        }

    def memory(self) -> Memory:
        for runner in self._runners.values():
            runner.pull()
        kinds = {"parameter": self._learned, "state": self._states, "slot": self._slots}
        found = {kind: {name: self.arrays[name] for name in names} for kind, names in kinds.items()}
        return {**found, "heard": self._kept} if self._kept else found

    def recall(self, memory: Mapping[str, Mapping[str, Array]], updates: int) -> None:
        for array, new in fitting(self.memory(), memory):
            array[...] = new
        self.updates = updates
        for runner in self._runners.values():
            runner.push()

    def places(self, name: str) -> tuple[Places, ...]:
        array = self._kept[name] if name in self._kept else self.arrays[name]
        return tuple(slice(0, n) for n in array.shape)

    def _copies(self, names: list[str]) -> dict[str, Array]:
        for runner in self._runners.values():
            runner.pull()
        return {name: self.arrays[name].copy() for name in names}

    def parameters(self) -> dict[str, Array]:
        return self._copies(self._learned)

    def states(self) -> dict[str, Array]:
        return self._copies(self._states)

    def slots(self) -> dict[str, Array]:
        if self.setup.optimizer is not None and not self._slots and self._data is not None:
            self.is_ragged = self._data.lengths is not None
            self._runner("train", self.target_kind(self._data))
        return self._copies(self._slots)

    def _new_slots(self, slots: Iterable[str]) -> dict[str, Array]:
        """Zeros for slots that no program has needed so far: of an array that learns."""
        optimizer, found = self.setup.optimizer, {}
        for name in slots:
            of, _, slot = name.rpartition("/")
            is_one = optimizer is not None and of in self._learned and slot in optimizer.slots
            if is_one and name not in self.arrays:
                found[name] = np.zeros_like(self.arrays[of])
        return found

    def load(
        self,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        slots: Mapping[str, Array] | None = None,
        updates: int = 0,
    ) -> None:
        states = states or {}
        slots = slots if slots and self.setup.optimizer is not None else {}
        new = self._new_slots(slots)
        arrays = {**self.arrays, **new}
        for given, names in (
            (parameters, self._learned), (states, self._states), (slots, [*self._slots, *new])
        ):  # fmt: skip
            own = {name: arrays[name] for name in names}
            for name, array in given.items():
                check_fits(own, name, array)
        self.arrays.update(new)
        self._slots += new
        for name, array in {**parameters, **states, **slots}.items():
            self.arrays[name][...] = array
        self.updates = updates
        for runner in self._runners.values():
            runner.push()
