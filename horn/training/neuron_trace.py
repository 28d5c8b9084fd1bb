"""The trace of one neuron for one sample of one update: every message, and the results; of a
sequence the results at each step, and the messages of one of them.

The updates before are computed by the job's backend, this one by the interpreter, as the neuron is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from horn.autodiff.tape import number
from horn.backends import Engine, Setup
from horn.data import Stream
from horn.errors import JobError
from horn.interpreter import Engine as Interpreter
from horn.interpreter.language import printing
from horn.interpreter.layers import Stage, Wire
from horn.interpreter.passes import Fired, Gradients, Sample
from horn.job import Job
from horn.layers import Layer
from horn.model import Array
from horn.network import Network
from horn.training.diagnosis import Batches, batch


@dataclass(frozen=True)
class IncomingMessage:
    """A message in forward, and the gradients that come back along it. source : "layer0:3", or
    "bias". gradient : by weight, of the loss of this sample, or the pushed number. heard : of a
    sequence, where it is not of the same step: "1 step ago", "from the end".
    """

    source: str
    input: float
    weights: dict[str, float]
    gradients: dict[str, float]
    heard: str = ""


@dataclass(frozen=True)
class OutgoingMessage:
    """A synapse to a neuron above: the delta of its receiver by weight, the gradient of the loss by
    the number sent along it, and the number pushed to each of its weights.
    """

    receiver: str
    weights: dict[str, float]
    deltas: dict[str, float]
    gradient: float
    pushed: dict[str, float]
    heard: str = ""


@dataclass(frozen=True)
class AtStep:
    """The results of a neuron at one step of a sequence. loss : of that step. states : after it."""

    output: float
    delta: dict[str, float]
    loss: float
    states: dict[str, float]


@dataclass(frozen=True)
class NeuronTrace:
    """The computation of one neuron for one sample of one update.

    row : of the data. fed : what forward fed forward; output : what it sent (of a layer with an
    interlayer, what that made of it). delta : by weight; empty where nobody asks for one. states :
    before and after. place : in a layer with a shape, [row, column, channel]. sharing : how many
    neurons have these weights and Parameters, all of which their gradients are of. at : of a
    sequence, the step that all this is of, but for gradients of weights and Parameters, which are
    sums over all steps, and the loss, which is of the sample; steps : what it did at each.
    """

    neuron: str
    kind: str
    step: int
    sample: int
    row: int
    learning_rate: float
    loss: float
    incoming: list[IncomingMessage]
    outgoing: list[OutgoingMessage]
    fed: float
    output: float
    delta: dict[str, float]
    target: float | None
    parameters: dict[str, tuple[float, float]] = field(default_factory=dict)
    states: dict[str, tuple[float, float]] = field(default_factory=dict)
    place: list[int] = field(default_factory=list)
    sharing: int = 1
    at: int | None = None
    steps: list[AtStep] = field(default_factory=list)


def find(network: Network, name: str) -> tuple[Layer, int]:
    """The layer and the index of "layer1:17". Raises JobError."""
    layer_name, _, index = name.rpartition(":")
    layers = {layer.name: layer for layer in network.layers[1:]}
    if layer_name not in layers:
        raise JobError(
            f"neuron {name!r} is written LAYER:NUMBER, as in {network.last.name}:0; the layers are "
            f"{', '.join(layers)}"
        )
    layer = layers[layer_name]
    if not index.isdecimal() or int(index) >= layer.size:
        raise JobError(f"{layer_name} has the neurons 0 to {layer.size - 1}, got {index!r}")
    return layer, int(index)


def trace(
    job: Job, make: Callable[[Setup], Engine], neuron: str, sample: int = 0, step: int = 0,
    at: int | None = None,
) -> NeuronTrace:  # fmt: skip
    """Trace a neuron for a sample of an update. make : makes the engine of the updates before.

    sample : of the batch, from 0. step : the number of the update, from 0. at : the step of a
    sequence, by default its last.

    Raises
    ------
    JobError : there is no such neuron, sample or step.
    """
    layer, o = find(job.network, neuron)
    rows = _rows(job, sample, step, at)
    engine, interpreter, batches = _run_to(job, make, step)
    now, first = batches.at(step)
    place = (layer.index, o)
    with printing(lambda who: who is not None and (who.layer_index, who.index) == place):
        seen, back = interpreter.observe(now, sample, iteration=step, first_sample=first)
    in_time = _in_time(seen, back)
    last = len(in_time) - 1
    if at is not None and not 0 <= at <= last:
        raise JobError(f"sample {sample} of the batch has the steps 0 to {last}, got --at {at}")
    seen, back = in_time[last if at is None else at]
    stage, arrays = interpreter.stages[layer.index], engine.parameters()
    begun = {name: array.ravel() for name, array in engine.states().items()}
    before: Mapping[str, Sequence[float] | Array] = seen.past[0].states if seen.past else begun
    names, fired = [each.name for each in job.network.layers], seen.fired[layer.index][o]
    kind, targets = stage.kind(o), seen.targets.get(layer.index) if layer.answers else None
    is_sequence = bool(job.network.steps)
    return NeuronTrace(
        neuron=neuron,
        kind=layer.neuron.__name__,
        step=step,
        sample=sample,
        row=int(rows[sample]),
        learning_rate=job.optimizer.rate(step),
        loss=sum(each.loss for _, each in in_time),
        incoming=_incoming(names, fired, back),
        outgoing=_outgoing(names, stage, o, arrays, back),
        fed=number(fired.call.fed),
        output=seen.sent[layer.index][o],
        delta=_deltas(stage, o, back),
        target=None if targets is None else targets[o],
        parameters={
            name: (float(arrays[array][kind]), back.arrays[array][kind])
            for name, array in stage.parameters.items()
        },
        states={n: (float(before[a][o]), seen.states[a][o]) for n, a in stage.states.items()},
        place=[int(k) for k in np.unravel_index(o, layer.shape)] if len(layer.shape) > 1 else [],
        sharing=layer.size // layer.n_kinds,
        at=None if not is_sequence else last if at is None else at,
        steps=[_at_step(stage, o, *each) for each in in_time] if is_sequence else [],
    )


def _rows(job: Job, sample: int, step: int, at: int | None) -> Array:
    """The rows of the batch of an update. Raises JobError: it has no such sample."""
    if at is not None and not job.network.steps:
        raise JobError("--at is a step of a sequence, and the job's samples are none; leave it out")
    if isinstance(job.data, Stream):
        raise JobError("a stream is read once, and cannot be traced: trace on arrays or a file")
    if not 0 <= step < job.n_iterations:
        raise JobError(f"the job has the steps 0 to {job.n_iterations - 1}, got {step}")
    rows, _ = batch(job, step)
    if not 0 <= sample < len(rows):
        raise JobError(f"the batch of step {step} has the samples 0 to {len(rows) - 1}, got "
                       f"{sample}")  # fmt: skip
    return rows


def _run_to(
    job: Job, make: Callable[[Setup], Engine], step: int
) -> tuple[Engine, Interpreter, Batches]:
    """Compute the updates before ``step``: the engine that has, and an interpreter to go on."""
    size = min(job.batch_size, len(job.data))
    setup = Setup(job.network, job.optimizer, job.target, size, job.dtype)
    engine = make(setup)
    batches = Batches(job)
    engine.bind(batches.data)
    for iteration in range(step):
        before, first_sample = batches.at(iteration)
        engine.step(before, iteration=iteration, first_sample=first_sample)
    interpreter = Interpreter(setup)
    interpreter.bind(batches.data)
    interpreter.load(engine.parameters(), engine.states(), engine.slots(), engine.updates)
    if job.data.pieces > 1:
        interpreter.recall(engine.memory(), engine.updates)
    return engine, interpreter, batches


def _in_time(seen: Sample, back: Gradients) -> list[tuple[Sample, Gradients]]:
    """The sample and its gradients at every step of a sequence. back : of the first one."""
    backs = (back, *back.later)
    return list(zip((*reversed(seen.past[: len(backs) - 1]), seen), backs, strict=True))


def _at_step(stage: Stage, o: int, seen: Sample, back: Gradients) -> AtStep:
    states = {name: seen.states[array][o] for name, array in stage.states.items()}
    return AtStep(seen.sent[stage.index][o], _deltas(stage, o, back), back.loss, states)


def _incoming(names: Sequence[str], fired: Fired, back: Gradients) -> list[IncomingMessage]:
    return [
        IncomingMessage(
            "bias" if wire.source < 0 else f"{names[wire.source_layer]}:{wire.source}",
            number(x),
            {name: number(w) for name, w in weights.items()},
            _gradients(wire, back),
            _heard(wire, "ago"),
        )
        for wire, x, weights in fired.leaves
    ]


def _outgoing(
    names: Sequence[str], stage: Stage, o: int, arrays: Mapping[str, Array], back: Gradients
) -> list[OutgoingMessage]:
    pushes, found = stage.writes_backward and stage.pushes, []
    for wire in stage.outgoing[o]:
        gradient, deltas = back.along(wire)
        found.append(
            OutgoingMessage(
                f"{names[wire.layer]}:{wire.neuron}",
                {name: float(np.ravel(arrays[array])[wire.place]) for name, array in wire.arrays},
                deltas,
                gradient,
                _gradients(wire, back) if pushes else {},
                _heard(wire, "later"),
            )
        )
    return found


def _gradients(wire: Wire, back: Gradients) -> dict[str, float]:
    """The gradients of a synapse's weights by name."""
    return {name: back.arrays[array][wire.place] for name, array in wire.arrays}


def _deltas(stage: Stage, o: int, back: Gradients) -> dict[str, float]:
    """The deltas of a neuron by weight, of several inputs by "input.weight"."""
    return {
        f"{group}.{name}" if group else name: value
        for group, of_weights in back.deltas[stage.index][o].items()
        for name, value in of_weights.items()
    }


def _heard(wire: Wire, seen_from: str) -> str:
    if wire.delay:
        return f"{wire.delay} step{'s' * (wire.delay > 1)} {seen_from}"
    return "from the end" if wire.is_reversed else ""
