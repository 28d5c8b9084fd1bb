"""One sample forward and back through all layers: each neuron in turn, each message in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horn.errors import ModelError
from horn.interpreter import layerwise, user_text
from horn.interpreter.calls import Call, Moment
from horn.interpreter.layers import Stage, Wire, backward_message, forward_message
from horn.interpreter.tape import Traced, adjoints, below, is_number, number
from horn.neuron import WEIGHT

Numbers = dict[str, list[float]]  # arrays by name, flat


@dataclass
class LearnedNumbers:
    """What a pass reads: the learned numbers, and the last update of each weight, or why it cannot
    be had."""

    learned: Numbers
    previous: Numbers | str

    def previous_of(self, wire: Wire) -> float | str:
        return (
            self.previous
            if isinstance(self.previous, str)
            else self.previous[dict(wire.arrays).get(WEIGHT, wire.arrays[0][1])][wire.place]
        )

    def weights(self, wire: Wire) -> dict[str, float]:
        """The weights of a synapse by name."""
        return {name: self.learned[array][wire.place] for name, array in wire.arrays}


@dataclass
class Fired:
    """What one neuron did in forward: the call, and its leaves on the tape by synapse and by
    Parameter."""

    call: Call
    leaves: list[tuple[Wire, Traced, dict[str, Traced]]]
    parameters: dict[str, Traced]


@dataclass
class Sample:
    """One sample on its way. Lists by layer index; ``states`` are per sample, from forward to
    backward.

    between : of a layer with an interlayer its leaves (what was fed forward) and what it made of
    them.
    """

    moment: Moment
    states: Numbers
    sent: list[list[float]]
    fired: list[list[Fired]] = field(default_factory=lambda: [[]])
    between: dict[int, tuple[list[Traced], list[Any]]] = field(default_factory=dict)


@dataclass
class Gradients:
    """What came back from one sample: by array (flat), the loss, and each neuron's deltas by layer
    index: of each weight.

    arrived : by synapse, d loss / d input and the receiver's deltas.
    """

    arrays: Numbers
    deltas: list[list[dict[str, float]]]
    loss: float = 0.0
    arrived: dict[Wire, tuple[float, dict[str, float]]] = field(default_factory=dict)


def forward(
    stages: Sequence[Stage], x: list[float], moment: Moment, memory: LearnedNumbers, states: Numbers
) -> Sample:
    """Send one sample through the network."""
    sample = Sample(moment, {name: list(values) for name, values in states.items()}, [x])
    for stage in stages[1:]:
        fired = [_fire(stage, o, sample, memory) for o in range(stage.layer.size)]
        sent = [number(f.call.fed) for f in fired]
        if stage.interlayer is not None:
            leaves = [Traced(v, variable=True, varies=True) for v in sent]
            made = _between(stage, leaves)
            sample.between[stage.index] = leaves, made
            sent = [number(v) for v in made]
        sample.fired.append(fired)
        sample.sent.append(sent)
    return sample


def _fire(stage: Stage, o: int, sample: Sample, memory: LearnedNumbers) -> Fired:
    """Run one neuron's forward."""
    leaves, messages = [], []
    states = []
    for index, wire in enumerate(stage.wires[o]):
        value = (
            1.0 if wire.source < 0 else sample.sent[wire.source_layer][wire.source]
        )  # the bias always says 1
        position = None if wire.source < 0 else wire.link
        kept = {name: array for (name, at), array in stage.incoming.items() if at == position}
        states.append(kept)
        message, x, w = forward_message(
            wire,
            value,
            memory.weights(wire),
            {name: sample.states[array][wire.place] for name, array in kept.items()},
            memory.previous_of(wire),
            index,
        )
        messages.append(message)
        leaves.append((wire, x, w))
    parameters = {
        n: Traced(memory.learned[a][o], "parameter", variable=True)
        for n, a in stage.parameters.items()
    }
    call = _run(stage, o, "forward", messages, parameters, sample)
    _remember(sample, [wire for wire, _, _ in leaves], messages, states)
    return Fired(call, leaves, parameters)


def _run(
    stage: Stage,
    o: int,
    kind: str,
    messages: list[Any],
    parameters: dict[str, Traced],
    sample: Sample,
) -> Call:
    """Run a method of one neuron, with its parameters and the sample's states as attributes."""
    own, moment = vars(stage.neurons[o]), sample.moment
    own.pop("output", None)
    own.update(
        parameters,
        training=moment.training,
        iteration=moment.iteration,
        learning_rate=moment.learning_rate,
    )
    for name, array in stage.states.items():
        own[name] = Traced(sample.states[array][o], "state", varies=True)
    if kind == "backward":
        own["output"] = Traced(sample.sent[stage.index][o], "output", varies=True)
    call = Call(stage.neurons[o], kind, messages, moment).run(
        tuple(parameters) if kind == "backward" else ()
    )
    for name, array in stage.states.items():
        sample.states[array][o] = number(own[name])
    return call


def _remember(
    sample: Sample, wires: Sequence[Wire], messages: Sequence[Any], states: Sequence[dict[str, str]]
) -> None:
    """What the messages' SynapseStates are now, by the names of their arrays."""
    for wire, message, kept in zip(wires, messages, states, strict=True):
        for name, array in kept.items():
            sample.states[array][wire.place] = number(vars(message)[name])


def _between(stage: Stage, leaves: list[Traced]) -> list[Any]:
    """What the layer's interlayer function makes of its outputs."""
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
    """What an aggregate's function makes of a layer's outputs."""
    leaves = [Traced(v, variable=True, varies=True) for v in layer]
    made, _ = layerwise.run(translated, [(leaf,) for leaf in leaves])
    wrong = [value for value in made if not is_number(value)]
    varies = any(isinstance(value, Traced) and value.varies for value in made)
    if not wrong and not varies and len({repr(number(value)) for value in made}) == 1:
        return number(made[0])
    name = getattr(function, "__name__", repr(function))
    problem = (
        f"{name} must return one number of the whole layer, as output.mean(), output.sum(), "
        f"output.max() or output.min(); got {wrong[0]!r}"
        if wrong
        else f"{name} makes one number per neuron, but an aggregate is one number of the whole "
        "layer; return output.mean(), output.sum(), output.max() or output.min() of it"
    )
    if hasattr(function, "__code__"):
        raise user_text.error_at(function, problem)
    raise ModelError(problem)


def judge(loss: Any, sent: Sequence[Any], target: Sequence[float]) -> Any:
    """The loss of one sample: summed over the output neurons, if it is not one number for all."""
    rows = [
        (y if isinstance(y, Traced) else Traced(y, varies=True), Traced(t, varies=True))
        for y, t in zip(sent, target, strict=True)
    ]
    values, is_whole = layerwise.run(loss, rows)
    for value in values:
        if not is_number(value):
            raise ModelError(f"the loss must return a number, got {value!r}")
    return values[0] if is_whole else sum(values, 0.0)


def backward(
    stages: Sequence[Stage],
    sample: Sample,
    memory: LearnedNumbers,
    loss: Any,
    target: Sequence[float] | None,
    want_deltas: bool = False,
) -> Gradients:
    """Come back with the gradients of one sample. Without a loss nothing comes from above, and
    local rules still push."""
    back = Gradients(
        {name: [0.0] * len(values) for name, values in memory.learned.items()},
        [[{} for _ in range(stage.layer.size)] for stage in stages],
    )
    flows = [0.0] * stages[-1].layer.size  # d loss / d output of the last layer
    if loss is not None and target is not None:
        leaves = [Traced(v, variable=True, varies=True) for v in sample.sent[-1]]
        judged = judge(loss, leaves, target)
        back.loss = number(judged)
        table = adjoints([(judged, 1.0)])
        flows = [table.get(leaf.serial, 0.0) for leaf in leaves]
    for stage in reversed(stages[1:]):
        if not stage.is_last:
            flows = [
                sum(back.arrived.get(wire, (0.0, {}))[0] for wire in wires)
                for wires in stage.outgoing
            ]
        if stage.index in sample.between:
            leaves, made = sample.between[stage.index]
            table = adjoints(zip(made, flows, strict=True))
            flows = [table.get(leaf.serial, 0.0) for leaf in leaves]
        needs_delta = stage.index and (
            want_deltas or any(stages[k.source.index].writes_backward for k in stage.layer.links)
        )
        for o, fired in enumerate(sample.fired[stage.index]):
            # One that sits out has left the network: no gradient, delta 0, and its backward is not
            # called.
            if not fired.call.silent:
                _come_back(
                    stages, stage, o, fired, flows[o], sample, memory, back, bool(needs_delta)
                )
    return back


def _come_back(
    stages: Sequence[Stage],
    stage: Stage,
    o: int,
    fired: Fired,
    flow: float,
    sample: Sample,
    memory: LearnedNumbers,
    back: Gradients,
    needs_delta: bool,
) -> None:
    """One neuron's gradients: to its senders, its incoming weights, its Parameters, and what it
    pushes itself."""
    passes = stage.writes_backward or not stage.local
    if stage.writes_backward:
        call = _written(stages, stage, o, fired, sample, memory, back)
        delta, (name,) = number(call.delta), stage.layer.weights
        of_input = [delta * w[name].value for _, _, w in fired.leaves]
        of_weight = [{name: delta * x.value} for _, x, _ in fired.leaves]
        deltas = {name: delta}
        of_parameter = {name: number(g) for name, g in call.pushed_to.items()}
    else:
        table = adjoints([(fired.call.fed, flow)])
        of_input = [table.get(x.serial, 0.0) for _, x, _ in fired.leaves]
        of_weight = [
            {name: table.get(leaf.serial, 0.0) for name, leaf in w.items()}
            for _, _, w in fired.leaves
        ]
        of_parameter = {
            name: table.get(leaf.serial, 0.0) for name, leaf in fired.parameters.items()
        }
        deltas = _deltas(fired, table) if needs_delta and stage.weighted_sum else {}
    back.deltas[stage.index][o] = deltas
    # in the order of messages, or none
    pushes = {
        name: [number(g) for g in found.values()] for name, found in fired.call.pushed.items()
    }
    for position, (wire, _, _) in enumerate(fired.leaves):
        if wire.source >= 0:
            back.arrived[wire] = (of_input[position], deltas) if passes else (0.0, {})
        for name, array in wire.arrays:
            if stage.local:
                found = pushes[name][position] if pushes.get(name) else 0.0
                back.arrays[array][wire.place] = found
            elif wire.source < 0 or not stages[wire.source_layer].pushes_weight(
                name, tuple(stage.layer.weights)
            ):
                back.arrays[array][wire.place] = of_weight[position][name]
    for name, array in stage.parameters.items():
        back.arrays[array][o] = of_parameter[name]


def _deltas(fired: Fired, table: dict[int, float]) -> dict[str, float]:
    """d loss / d sum(input * weight) of each weight: what flows to any one of the products, here
    the first.
    """
    if not fired.leaves:
        return {}
    _, x, weights = fired.leaves[0]
    products = [n for n in below(fired.call.fed) if n.op == "mul"]
    return {
        name: sum(table.get(n.serial, 0.0) for n in products if n.args in ((x, w), (w, x)))
        for name, w in weights.items()
    }


def _written(
    stages: Sequence[Stage],
    stage: Stage,
    o: int,
    fired: Fired,
    sample: Sample,
    memory: LearnedNumbers,
    back: Gradients,
) -> Call:
    """Run a written backward; what it pushes is the gradient of the outgoing synapses."""
    messages, states = [], []
    for wire in stage.outgoing[o]:
        gradient, deltas = back.arrived.get(wire, (0.0, {}))
        weights = memory.weights(wire)
        kept = {
            name: array
            for (name, receiver), array in stage.outgoing_states.items()
            if receiver == wire.layer
        }
        states.append(kept)
        messages.append(
            backward_message(
                wire,
                {name: deltas.get(name, 0.0) for name in weights},
                weights,
                {name: sample.states[array][wire.place] for name, array in kept.items()},
                gradient,
                memory.previous_of(wire),
                *stages[wire.layer].refusals,
            )
        )
    parameters = {n: Traced(memory.learned[a][o], "parameter") for n, a in stage.parameters.items()}
    call = _run(stage, o, "backward", messages, parameters, sample)
    _remember(sample, stage.outgoing[o], messages, states)
    for wire, message in zip(stage.outgoing[o], messages, strict=True):
        for name, array in wire.arrays:
            pushed = call.pushed.get(name, {})
            if not pushed and len(wire.arrays) == 1:
                pushed = call.pushed.get("", {})
            if id(message) in pushed:
                back.arrays[array][wire.place] = number(pushed[id(message)])
    if stage.pushes and messages and not call.pushed:
        raise user_text.error_at(
            call.method, call.count() + "; this path pushes nothing, another does"
        )
    return call
