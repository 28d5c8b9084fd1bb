"""One sample in a pass through all layers, and its way forward: each neuron in turn, each message
in turn. The way back is in ``backward.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from typing import Any, TypeVar

from horn import refusals
from horn.autodiff import user_text
from horn.autodiff.tape import Traced, below, extreme, foremost, is_number, make, number
from horn.errors import HornError, ModelError
from horn.interpreter import layerwise
from horn.interpreter.calls import NOT_BY_ALL, Call, Heard, Moment, Question, QuestionAsked
from horn.interpreter.layers import Stage, Wire, forward_message
from horn.interpreter.sitting_out import sits_out
from horn.neuron import WEIGHT

T = TypeVar("T")
Numbers = dict[str, list[float]]  # arrays by name, flat
DeltaNumbers = dict[str, dict[str, float]]  # d loss / d sum, by names of input and weight

# The remedy of Python's ZeroDivisionError: numbers of the tape divide as NumPy's.
PLAIN_DIVISION = (
    "Two plain numbers, in which no message has a part, are divided by Python itself, which raises "
    "at 0: begin the sums with numbers of messages, or compare before dividing: x / y if y else 0.0"
)


@dataclass
class LearnedNumbers:
    """The numbers that a pass reads: the learned ones, and the last update of each weight, or the
    error message of a read."""

    learned: Numbers
    previous: Numbers | str

    def previous_of(self, wire: Wire) -> float | str:
        return (
            self.previous
            if isinstance(self.previous, str)
            else "m.previous_update: this synapse has no weight"
            if not wire.arrays
            else self.previous[dict(wire.arrays).get(WEIGHT, wire.arrays[0][1])][wire.place]
        )

    def weights(self, wire: Wire) -> dict[str, float]:
        """The weights of a synapse by name."""
        return {name: self.learned[array][wire.place] for name, array in wire.arrays}


@dataclass
class Fired:
    """A neuron's forward: the call, and its leaves on the tape by synapse, by Parameter and by
    carried State. is_judged_raw : the loss is a function of its sigmoid's input."""

    call: Call
    leaves: list[tuple[Wire, Traced, dict[str, Traced]]]
    parameters: dict[str, Traced]
    carried: dict[str, Traced]
    is_judged_raw: bool = False

    def seeds(self, flow: float, of_states: Mapping[str, float]) -> list[tuple[Any, float]]:
        """The values fed forward and the States, each with its derivative of the loss."""
        fed = self.call.fed.args[0] if self.is_judged_raw else self.call.fed
        return [(fed, flow), *((self.call.kept[n], d) for n, d in of_states.items())]


class Chain(Sequence[T]):
    """The steps before one, or after it, the nearest first. It shares those of the nearest one."""

    def __init__(self, nearest: T, others: Sequence[T]) -> None:
        self._nearest, self._others, self._n = nearest, others, 1 + len(others)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[T]:
        at: Sequence[T] = self
        while isinstance(at, Chain):
            yield at._nearest
            at = at._others
        yield from at

    def __getitem__(self, index: Any) -> Any:
        """The step at a place from 0; of a slice a tuple."""
        if isinstance(index, slice):
            return tuple(islice(self, *index.indices(self._n)))
        return next(islice(self, index, None))


@dataclass
class Sample:
    """One sample in a pass. Lists by layer index; ``states`` are per sample, from forward to
    backward.

    targets : by the index of the output. mean_steps : the mean number of steps in the batch, which
    divides the losses of each step. between : for a layer with an interlayer its leaves (the values
    fed forward) and its results. raw : for a layer with a ``loss_of_raw`` the argument of that
    loss. past : in a sequence, the same sample at the steps before, the last one first.
    sequence : with reversed links, the same sample at every step. silent_inputs : input neurons
    that sit the batch out.
    """

    moment: Moment
    states: Numbers
    sent: list[list[float]]
    targets: Mapping[int, Sequence[float]] = field(default_factory=dict)
    weight: float = 1.0
    mean_steps: float = 1.0
    fired: list[list[Fired]] = field(default_factory=lambda: [[]])
    past: Sequence[Sample] = ()
    sequence: Sequence[Sample] = ()
    between: dict[int, tuple[list[Traced], list[Any]]] = field(default_factory=dict)
    raw: dict[int, list[float]] = field(default_factory=dict)
    silent_inputs: frozenset[int] = frozenset()

    def sits_out(self, layer: int, neuron: int) -> bool:
        """Whether a neuron has left the network for the batch, with its synapses."""
        return self.fired[layer][neuron].call.silent if layer else neuron in self.silent_inputs


@dataclass
class Gradients:
    """The gradients of one sample: by array (flat), the loss, and each neuron's deltas by layer
    index.

    arrived : by synapse, d loss / d input and the receiver's deltas of its sum, by weight. states :
    by layer and State, d loss / d its value before forward. later : in a sequence, the gradients
    of the steps after this one, the next first.
    """

    arrays: Numbers
    deltas: list[list[DeltaNumbers]]
    loss: float = 0.0
    is_apart: bool = False  # the output's neurons tell their inputs apart
    last: int = -1  # the output's layer
    arrived: dict[Wire, tuple[float, dict[str, float]]] = field(default_factory=dict)
    states: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    later: Sequence[Gradients] = ()
    sequence: Sequence[Gradients] = ()  # of every step, with reversed links

    def of_states(self, stage: Stage, o: int) -> dict[str, float]:
        """d loss / d each carried State of a neuron after forward."""
        if not self.later:
            return {}
        none = [0.0] * stage.layer.size
        return {
            name: self.later[0].states.get((stage.index, name), none)[o] for name in stage.carried
        }

    def of_input(self, wire: Wire) -> float:
        """d loss / d the input that a synapse delivered from this step."""
        return self.along(wire)[0]

    def along(self, wire: Wire) -> tuple[float, dict[str, float]]:
        """The gradient along a wire and the receiver's deltas, at the step that it delivers to."""
        there = self
        if wire.is_reversed:
            there = self.sequence[len(self.later)]
        elif wire.delay > len(self.later):
            return 0.0, {}
        elif wire.delay:
            there = self.later[wire.delay - 1]
        return there.arrived.get(wire, (0.0, {}))


def forward(
    stages: Sequence[Stage],
    xs: Sequence[list[float]],
    moments: Sequence[Moment],
    memory: LearnedNumbers,
    states: Numbers,
    targets: Sequence[Mapping[int, Sequence[float]]] | None = None,
    before: Sequence[Sample] = (),
    fires: Sequence[Stage] | None = None,
) -> list[Sample]:
    """Send samples through the network, layer by layer. Where a neuron asks its layer or the batch,
    these samples are the batch. before : in sequences, the same samples one step earlier. fires :
    only these layers.
    """
    samples = [
        Sample(moment, {name: list(values) for name, values in states.items()}, [x], target)
        for x, moment, target in zip(xs, moments, targets or [{}] * len(xs), strict=True)
    ]
    for sample, earlier in zip(samples, before, strict=False):
        sample.states = {name: list(values) for name, values in earlier.states.items()}
        sample.past = Chain(earlier, earlier.past)
    for sample in samples:
        sample.sent += [[] for _ in stages[1:]]
        sample.fired = [[] for _ in stages]
    fire(stages[1:] if fires is None else fires, samples, memory)
    return samples


def fire(stages: Sequence[Stage], samples: Sequence[Sample], memory: LearnedNumbers) -> None:
    """Run some layers forward for samples in a pass."""
    for stage in stages:
        for sample in samples:
            go_on(stage, sample)
        for sample, fired in zip(samples, _fire_all(stage, samples, memory), strict=True):
            sent = [number(f.call.fed) for f in fired]
            if stage.interlayer is not None:
                leaves = [Traced(v, variable=True, varies=True) for v in sent]
                made = between(stage, leaves)
                sample.between[stage.index] = leaves, made
                raw, sent = sent, [number(v) for v in made]
                if stage.loss_of_raw:
                    sample.raw[stage.index] = raw
            elif stage.loss_of_raw and not any(stage.outgoing) and all(map(_is_sigmoid, fired)):
                for each in fired:
                    each.is_judged_raw = True
                sample.raw[stage.index] = [number(each.call.fed.args[0]) for each in fired]
            sample.fired[stage.index], sample.sent[stage.index] = fired, sent


def _is_sigmoid(fired: Fired) -> bool:
    """Whether a neuron feeds the sigmoid of something forward."""
    fed = fired.call.fed
    return isinstance(fed, Traced) and fed.op == "sigmoid"


def go_on(stage: Stage, sample: Sample) -> None:
    """Take over the States of a layer and its synapses from one step before, in a sequence."""
    for array in (*stage.states.values(), *stage.incoming.values()) if sample.past else ():
        sample.states[array] = list(sample.past[0].states[array])


def _fire_all(stage: Stage, samples: Sequence[Sample], memory: LearnedNumbers) -> list[list[Fired]]:
    """Run the forward of all neurons for all samples. A question ends a neuron's run; when all have
    asked they run again, with the answers.
    """
    size = range(stage.layer.size)
    answers: list[list[list[Question]]] = [[[] for _ in size] for _ in samples]
    made: list[list[_Leaves]] = [
        [_Leaves.of(stage, o, sample, memory) for o in size] for sample in samples
    ]
    while True:
        found: list[list[Any]] = []
        for k, sample in enumerate(samples):
            found.append([])
            for o in size:
                try:
                    found[k].append(made[k][o].fire(stage, o, sample, answers[k][o]))
                except QuestionAsked as asked:
                    found[k].append(asked.question)
        asked_all = [each for row in found for each in row if isinstance(each, Question)]
        if not asked_all:
            return found
        first = asked_all[0]
        same = all((q.word, q.over) == (first.word, first.over) for q in asked_all)
        if not same or len(asked_all) < len(samples) * stage.layer.size:
            method: Any = stage.cls.forward
            raise user_text.error_at(method, f"self.{first.word} {NOT_BY_ALL}")
        for places in stage.asking(first.over, len(samples)):
            replies = statistic(first.word, [found[k][o].value for k, o in places])
            for (k, o), value in zip(places, replies, strict=True):
                answers[k][o].append(Question(first.word, first.over, value))


def fire_one(
    stage: Stage, o: int, samples: Sequence[Sample], k: int, memory: LearnedNumbers
) -> None:
    """Run the forward of one neuron for samples[k]; at a question all neurons for all samples."""
    try:
        _Leaves.of(stage, o, samples[k], memory).fire(stage, o, samples[k], [])
    except QuestionAsked:
        _fire_all(stage, samples, memory)


def send(stage: Stage, samples: Sequence[Sample], k: int, memory: LearnedNumbers) -> list[float]:
    """The outputs of all neurons of a layer for samples[k], after its interlayer if it has one."""
    sent = [number(fired.call.fed) for fired in _fire_all(stage, samples, memory)[k]]
    if stage.interlayer is None:
        return sent
    leaves = [Traced(v, variable=True, varies=True) for v in sent]
    return [number(v) for v in between(stage, leaves)]


def statistic(word: str, values: Sequence[Any]) -> list[Any]:
    """The answer to each neuron that asked with one of these numbers."""
    if word == "rank":
        before = sorted(range(len(values)), key=lambda k: _falling(number(values[k])))
        places = {k: place for place, k in enumerate(before)}
        return [Traced(places[k], varies=True) for k in range(len(values))]
    if word == "argmax":
        first = foremost(max, [number(v) for v in values])
        answer: Any = Traced(first, varies=True)
    elif word in ("max", "min"):
        python = max if word == "max" else min
        answer = extreme(lambda all_: python(all_, key=number), values)
    else:
        answer = make("add", sum(values, 0.0), 0.0)
        if word != "sum":
            answer = answer / len(values)
        if word == "var":
            answer = sum(((v - answer) * (v - answer) for v in values), 0.0) / len(values)
    return [answer] * len(values)


def _falling(value: float) -> tuple[bool, float]:
    """A key that sorts the largest number first, and NaN last."""
    return (True, 0.0) if value != value else (False, -value)


def _heard(wire: Wire, sample: Sample) -> float:
    """The input that a synapse delivers: 1 from the bias, 0 before the first step."""
    if wire.source < 0:
        return 1.0
    if wire.is_reversed:  # as far from the other end
        ahead = sample.sequence[len(sample.sequence) - 1 - len(sample.past)]
        return ahead.sent[wire.source_layer][wire.source]
    if not wire.delay:
        return sample.sent[wire.source_layer][wire.source]
    if wire.delay > len(sample.past):
        return 0.0
    return sample.past[wire.delay - 1].sent[wire.source_layer][wire.source]


@dataclass
class _Leaves:
    """The tape's leaves for one neuron and sample: the same ones however often it runs.

    carried : its States that a sequence carries on. states : by message, the arrays of its
    SynapseStates. traces : their values before.
    """

    messages: list[Any]
    leaves: list[tuple[Wire, Traced, dict[str, Traced]]]
    parameters: dict[str, Traced]
    carried: dict[str, Traced]
    states: list[dict[str, str]]
    traces: list[dict[str, Any]]

    @classmethod
    def of(cls, stage: Stage, o: int, sample: Sample, memory: LearnedNumbers) -> _Leaves:
        leaves, messages, states, traces = [], [], [], []
        for index, wire in enumerate(stage.wires[o]):
            value = _heard(wire, sample)
            position = None if wire.source < 0 else wire.link
            kept = {name: array for (name, at), array in stage.incoming.items() if at == position}
            states.append(kept)
            message, x, w = forward_message(
                wire,
                value,
                memory.weights(wire),
                {name: sample.states[array][wire.edge] for name, array in kept.items()},
                memory.previous_of(wire),
                index,
                stage.group(wire),
            )
            messages.append(message)
            traces.append({name: vars(message)[name] for name in kept})
            leaves.append((wire, x, w))
        parameters = {
            n: Traced(memory.learned[a][stage.kind(o)], "parameter", variable=True)
            for n, a in stage.parameters.items()
        }
        own = {
            name: Traced(sample.states[stage.states[name]][o], "state", variable=True, varies=True)
            for name in stage.carried
        }
        return cls(messages, leaves, parameters, own, states, traces)

    def fire(self, stage: Stage, o: int, sample: Sample, answers: Sequence[Question]) -> Fired:
        """Run one neuron's forward."""
        for message, before in zip(self.messages, self.traces, strict=True):
            vars(message).update(before)
        read = self.parameters | self.carried
        call = run_method(stage, o, "forward", self.messages, read, sample, answers)
        remember(sample, [wire for wire, _, _ in self.leaves], self.messages, self.states)
        return Fired(call, self.leaves, self.parameters, self.carried)


def run_method(
    stage: Stage,
    o: int,
    kind: str,
    messages: list[Any],
    parameters: dict[str, Traced],
    sample: Sample,
    answers: Sequence[Question] = (),
    back: Any = None,
) -> Call:
    """Run a method of one neuron, with its parameters and the sample's states as attributes."""
    own, moment = vars(stage.neurons[o]), sample.moment
    own.pop("output", None)
    for name, array in stage.states.items():
        own[name] = Traced(sample.states[array][o], "state", varies=True)
    own.update(
        parameters,
        training=moment.training,
        iteration=moment.iteration,
        learning_rate=moment.learning_rate,
    )
    if kind == "backward":
        own["output"] = Traced(sample.sent[stage.index][o], "output", varies=True)
    elif stage.has_target and (stage.index in sample.targets or not moment.training):
        known = sample.targets[stage.index] if moment.training else None
        own["target"] = Traced(nan if known is None else known[o], "target", varies=True)
    before = dict(own)
    call = Call(stage.neurons[o], kind, messages, moment, answers)
    if kind == "backward" and stage.hears_loss:
        own["loss"] = Traced(back.loss, "loss", varies=True)
    if kind == "backward" and stage.hears_error:
        own["error"] = _errors(stage, o, back, call)
    try:
        call.run(tuple(parameters) if kind == "backward" else ())
    except HornError:
        raise
    except Exception as error:  # of the user's own Python
        whose = f"neuron {o} of {stage.name}, sample {moment.row}"
        remedy = f"\n{PLAIN_DIVISION}" if isinstance(error, ZeroDivisionError) else ""
        raise user_text.error_of(error, f"; {whose}{remedy}") from error
    if call.silent:
        call.silent = sits_out(call, before)
    if kind == "forward" and stage.has_target and not moment.training:
        kept = (call.fed, *(own[name] for name in stage.states))
        if any(node.op == "target" for node in below(*kept)):
            raise user_text.error_at(call.method, refusals.TARGET_AT_PREDICTION)
    for name, array in stage.states.items():
        sample.states[array][o] = number(own[name])
    return call


def _errors(stage: Stage, o: int, back: Gradients, call: Call) -> list[Heard]:
    """The messages of a hidden neuron from the output neurons, with their errors."""
    found = []
    for k, of_groups in enumerate(back.deltas[back.last]):
        deltas = next(iter(of_groups.values()), {})
        if len(deltas) > 1 or back.is_apart:
            raise ModelError(f"{stage.name} reads self.error, but the output has no one delta")
        delta = next(iter(deltas.values()), 0.0)
        fields = {"delta": Traced(delta, "delta", varies=True)}
        found.append(Heard("backward", fields, (stage.index, o, len(stage.layer.links) + 1, k)))
        vars(found[-1])["_host"] = call
    return found


def remember(
    sample: Sample, wires: Sequence[Wire], messages: Sequence[Any], states: Sequence[dict[str, str]]
) -> None:
    """Store the messages' SynapseStates, by the names of their arrays."""
    for wire, message, kept in zip(wires, messages, states, strict=True):
        for name, array in kept.items():
            sample.states[array][wire.edge] = number(vars(message)[name])


def between(stage: Stage, leaves: list[Traced]) -> list[Any]:
    """The results of the layer's interlayer function for its outputs."""
    function: Any = stage.layer.interlayer
    made, _ = layerwise.run(stage.interlayer, [(leaf,) for leaf in leaves])
    wrong = [value for value in made if not is_number(value)]
    if not wrong:
        return made
    name = getattr(function, "__name__", repr(function))
    problem = f"{name} must return one number per neuron, made from output; got {wrong[0]!r}"
    if hasattr(function, "__code__"):
        raise user_text.error_at(function, problem)
    raise ModelError(f"{stage.name}: {problem}")


def one_number(function: Any, translated: Any, layer: Sequence[float]) -> float:
    """The number that an aggregate's function computes from a layer's outputs."""
    leaves = [Traced(v, variable=True, varies=True) for v in layer]
    made, is_whole = layerwise.run(translated, [(leaf,) for leaf in leaves])
    wrong = [value for value in made if not is_number(value)]
    if not wrong and is_whole:
        return number(made[0])
    name = getattr(function, "__name__", repr(function))
    problem = (
        f"{name} must return one number of the whole layer, as output.mean(), output.sum(), "
        f"output.max() or output.min(); got {wrong[0]!r}"
        if wrong
        else refusals.several_numbers(name)
    )
    if hasattr(function, "__code__"):
        raise user_text.error_at(function, problem)
    raise ModelError(problem)


def judge(loss: Any, sent: Sequence[Any], target: Sequence[float]) -> Any:
    """The loss of one output for one sample: summed over its neurons, unless it is one number for
    the layer. sent : the outputs of the neurons, or for a ``loss_of_raw`` the values before.
    """
    rows = [
        (y if isinstance(y, Traced) else Traced(y, varies=True), Traced(t, varies=True))
        for y, t in zip(sent, target, strict=True)
    ]
    values, is_whole = layerwise.run(loss, rows)
    for value in values:
        if not is_number(value):
            raise ModelError(f"the loss must return a number, got {value!r}")
    return values[0] if is_whole else sum(values, 0.0)
