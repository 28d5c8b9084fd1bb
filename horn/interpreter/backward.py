"""The way of samples back through all layers: each neuron in turn, each message in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horn.autodiff import user_text
from horn.autodiff.tape import Traced, adjoints, below, number
from horn.interpreter.calls import Call
from horn.interpreter.layers import Stage, backward_message
from horn.interpreter.passes import (
    Chain,
    DeltaNumbers,
    Fired,
    Gradients,
    LearnedNumbers,
    Sample,
    judge,
    remember,
    run_method,
)


def begun(
    stages: Sequence[Stage], samples: Sequence[Sample], memory: LearnedNumbers,
    after: Sequence[Gradients | None],
) -> list[Gradients]:  # fmt: skip
    """Empty gradients of samples. after : for each sample the gradients of its next step, if it has
    one; gradients of learned numbers are added to those.
    """
    last = _last(stages)
    return [
        Gradients(
            {name: [0.0] * len(values) for name, values in memory.learned.items()}
            if then is None
            else then.arrays,
            [[{} for _ in range(stage.layer.size)] for stage in stages],
            is_apart=last.tells_inputs_apart,
            last=last.index,
            later=() if then is None else Chain(then, then.later),
        )
        for _, then in zip(samples, after, strict=True)
    ]


def _last(stages: Sequence[Stage]) -> Stage:
    """The output layer, of several the last."""
    return next(stage for stage in reversed(stages) if stage.layer.answers)


def come_back(
    stages: Sequence[Stage],
    some: Sequence[Stage],
    samples: Sequence[Sample],
    memory: LearnedNumbers,
    losses: Mapping[int, Any],
    want_deltas: bool,
    backs: Sequence[Gradients],
) -> None:
    """Run some of the layers backward, the last first: the gradients of each sample go to
    ``backs``. losses : by the index of the judged layer; without any nothing comes from above,
    and local rules still push. backs : from ``begun``.
    """
    last = _last(stages)
    for stage in reversed(some):
        flows = [
            _flows(stage, sample, back, losses) for sample, back in zip(samples, backs, strict=True)
        ]
        shared = None
        if any(f.call.turn for sample in samples for f in sample.fired[stage.index]):
            shared = _shared(stage, samples, flows, backs)
        needs_delta = stage.index and (
            want_deltas
            or (stage is last and any(other.hears_error for other in stages[1:]))
            or any(stages[k.source.index].writes_backward for k in stage.layer.links)
        )
        for sample, back, flow in zip(samples, backs, flows, strict=True):
            for o, fired in enumerate(sample.fired[stage.index]):
                # A neuron that sits out has left the network: no gradient, delta 0, and no call of
                # its backward.
                if not fired.call.silent:
                    _come_back(
                        stages, stage, o, fired, flow[o], sample, memory, back, bool(needs_delta),
                        shared,
                    )  # fmt: skip


def _flows(stage: Stage, sample: Sample, back: Gradients, losses: Mapping[int, Any]) -> list[float]:
    """d loss / d (the value that each neuron of the layer fed forward)."""
    arrived = [sum(map(back.of_input, wires)) for wires in stage.outgoing]
    loss, target = losses.get(stage.index), sample.targets.get(stage.index)
    is_judged = stage.layer.each_step or not back.later
    if loss is not None and target is not None and is_judged:
        raw = sample.raw.get(stage.index)
        judge_of, judged_values = (
            (loss, sample.sent[stage.index]) if raw is None else (stage.loss_of_raw, raw)
        )
        leaves = [Traced(v, variable=True, varies=True) for v in judged_values]
        judged = judge(judge_of, leaves, target)
        share = sample.mean_steps if stage.layer.each_step else 1.0
        weight = sample.weight / share * stage.layer.loss_weight
        back.loss += weight * number(judged)
        table = adjoints([(judged, weight)])
        own = [table.get(leaf.serial, 0.0) for leaf in leaves]
        if raw is not None:
            return _added(own, _before_interlayer(stage, sample, arrived))
        arrived = _added(own, arrived)
    return _before_interlayer(stage, sample, arrived)


def _before_interlayer(stage: Stage, sample: Sample, flows: list[float]) -> list[float]:
    """d loss / d each value fed forward, from the derivatives of the outputs."""
    if stage.index not in sample.between or not any(flows):
        return flows
    leaves, made = sample.between[stage.index]
    table = adjoints(zip(made, flows, strict=True))
    return [table.get(leaf.serial, 0.0) for leaf in leaves]


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass
class _Shared:
    """The gradients in a layer whose neurons have asked one another, or the batch: the adjoints of
    all, and the products on the way.
    """

    table: Mapping[int, float]
    products: list[Traced]


def _shared(
    stage: Stage,
    samples: Sequence[Sample],
    flows: Sequence[list[float]],
    backs: Sequence[Gradients],
) -> _Shared:
    seeds = [
        seed
        for sample, row, back in zip(samples, flows, backs, strict=True)
        for o, (fired, flow) in enumerate(zip(sample.fired[stage.index], row, strict=True))
        for seed in fired.seeds(flow, back.of_states(stage, o))
    ]
    products = [node for node in below(*(made for made, _ in seeds)) if node.op == "mul"]
    return _Shared(adjoints(seeds), products)


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
    shared: _Shared | None,
) -> None:
    """One neuron's gradients: to its senders, its incoming weights, its Parameters, and its own
    pushes."""
    passes = stage.writes_backward or not stage.local
    if stage.writes_backward:
        call = _written(stages, stage, o, sample, memory, back)
        delta, (name,) = number(call.delta), stage.layer.weights
        of_input = [delta * w[name].value for _, _, w in fired.leaves]
        of_weight = [{name: delta * x.value} for _, x, _ in fired.leaves]
        deltas = {group: {name: delta} for group in stage.layer.groups}
        of_parameter = {name: number(g) for name, g in call.pushed_to.items()}
    else:
        seeds = fired.seeds(flow, back.of_states(stage, o))
        table = adjoints(seeds) if shared is None else shared.table
        for name, leaf in fired.carried.items():
            of_layer = back.states.setdefault((stage.index, name), [0.0] * stage.layer.size)
            of_layer[o] = table.get(leaf.serial, 0.0)
        of_input = [table.get(x.serial, 0.0) for _, x, _ in fired.leaves]
        of_weight = [
            {name: table.get(leaf.serial, 0.0) for name, leaf in w.items()}
            for _, _, w in fired.leaves
        ]
        of_parameter = {
            name: table.get(leaf.serial, 0.0) for name, leaf in fired.parameters.items()
        }
        deltas = _deltas(stage, fired, table, shared) if needs_delta and stage.weighted_sum else {}
    back.deltas[stage.index][o] = deltas
    for position, (wire, _, _) in enumerate(fired.leaves):
        if wire.source >= 0:
            own = deltas.get(stage.group(wire), {})
            back.arrived[wire] = (of_input[position], own) if passes else (0.0, {})
            if sample.sits_out(wire.source_layer, wire.source):
                continue  # synapses that share its weights still learn them
        for name, array in wire.arrays:
            if stage.local:
                pushed = fired.call.pushed.get(name, {})
                message = fired.call.items[position]
                back.arrays[array][wire.place] += number(pushed.get(id(message), 0.0))
            elif wire.source < 0 or not stages[wire.source_layer].pushes_weight(
                name, tuple(stage.layer.weights)
            ):
                back.arrays[array][wire.place] += of_weight[position][name]
    for name, array in stage.parameters.items():
        back.arrays[array][stage.kind(o)] += of_parameter[name]


def _deltas(
    stage: Stage, fired: Fired, table: Mapping[int, float], shared: _Shared | None
) -> DeltaNumbers:
    """d loss / d sum(input * weight) of each weight: the adjoint of any one of the products of an
    input's messages, here the first.
    """
    firsts: dict[str, Any] = {}
    for wire, x, weights in fired.leaves:
        firsts.setdefault(stage.group(wire), (x, weights))
    if shared is None:
        made = (fired.call.fed, *fired.call.kept.values())
        products = [n for n in below(*made) if n.op == "mul"]
    else:
        products = shared.products
    return {
        group: {
            name: sum(table.get(n.serial, 0.0) for n in products if _is_of(n, x, w))
            for name, w in weights.items()
        }
        for group, (x, weights) in firsts.items()
    }


def _is_of(product: Traced, x: Traced, w: Traced) -> bool:
    a, b = product.args
    return (a is x and b is w) or (a is w and b is x)


def _written(
    stages: Sequence[Stage],
    stage: Stage,
    o: int,
    sample: Sample,
    memory: LearnedNumbers,
    back: Gradients,
) -> Call:
    """Run a written backward; its pushes are the gradients of the outgoing synapses."""
    messages, states = [], []
    for wire in stage.outgoing[o]:
        gradient, deltas = back.arrived.get(wire, (0.0, {}))
        weights = memory.weights(wire)
        kept = {
            name: array
            for (name, receiver, link), array in stage.outgoing_states.items()
            if (receiver, link) == (wire.layer, wire.link)
        }
        states.append(kept)
        messages.append(
            backward_message(
                wire,
                {name: deltas.get(name, 0.0) for name in weights},
                weights,
                {name: sample.states[array][wire.edge] for name, array in kept.items()},
                gradient,
                memory.previous_of(wire),
                *stages[wire.layer].refusals,
            )
        )
    kind = stage.kind(o)
    parameters = {
        n: Traced(memory.learned[a][kind], "parameter") for n, a in stage.parameters.items()
    }
    call = run_method(stage, o, "backward", messages, parameters, sample, (), back)
    remember(sample, stage.outgoing[o], messages, states)
    for wire, message in zip(stage.outgoing[o], messages, strict=True):
        is_out = sample.sits_out(wire.layer, wire.neuron)
        for name, array in () if is_out else wire.arrays:
            pushed = call.pushed.get(name, {})
            if not pushed and len(wire.arrays) == 1:
                pushed = call.pushed.get("", {})
            if id(message) in pushed:
                back.arrays[array][wire.place] += number(pushed[id(message)])
    if stage.pushes and messages and not call.pushed:
        raise user_text.error_at(
            call.method, call.count() + "; this path pushes nothing, another does"
        )
    return call
