"""The way in which the neurons of each layer run, in a user's words."""

from __future__ import annotations

import ast
from typing import Any

from horn import ir
from horn.compiler import lower
from horn.connections.placed import PLACED
from horn.errors import CompileError
from horn.ir import averages, derive
from horn.ir.neuron_ir import BackwardIR, ForwardIR
from horn.language.layers import Reading, is_weighted_sum, why_no_backward
from horn.language.parse import function
from horn.language.source import source_of
from horn.layers import Layer, Link
from horn.losses import LOSSES
from horn.network import Network
from horn.network_checks import of_other_steps
from horn.neuron import Neuron, SynapseState, declared, mentions
from horn.optimizers import SGD, Direct, Optimizer
from horn.program import Convolve, Loop, Matmul, TargetRead, Targets, Update, every


def runs_as(network: Network, reading: Reading | None = None) -> dict[str, str]:
    """The way each layer runs: "matrix products", "fused loop", both, or "message by message".
    Raises CompileError if a neuron cannot be compiled. reading : as for ``lower.training_program``.
    """
    if any(layer.neuron.interpreted for layer in network.layers[1:]):
        return {layer.name: "message by message" for layer in network.layers[1:]}
    reading = reading or Reading()
    optimizer = _optimizer(network, reading)
    program = lower.training_program(network, optimizer, _targets(network), reading=reading)
    products, convolved = set(), set()  # layers, by index
    loops, drawn = set(), set()  # (layer, link)
    for statement in every(program.statements):
        if isinstance(statement, (Matmul, Update)):
            products.add(statement.frame.layer)
        elif isinstance(statement, Convolve):
            convolved.add(statement.frame.layer)
        elif isinstance(statement, Loop) and statement.frame.link is not None:
            wide = (ir.union(o.node.axes, o.axis) for o in statement.outputs)
            if any(len(axes) == 3 for axes in wide):
                place = statement.frame.layer, statement.frame.link
                loops.add(place)
                if any(ir.contains(o.node, ir.Op.MESSAGE_DRAW) for o in statement.outputs):
                    drawn.add(place)
    ways: dict[str, str] = {}
    for layer in network.layers[1:]:
        parts = []
        if layer.index in products:
            parts.append("matrix products")
        if layer.index in convolved:
            parts.append("windows")
        over: dict[str, bool] = {}  # whether draws are inside
        for k, link in enumerate(layer.links):
            if (layer.index, k) in loops:
                kind = _loop_over(link)
                over[kind] = over.get(kind, False) or (layer.index, k) in drawn
        parts += [kind + " (draws inside)" * inside for kind, inside in over.items()]
        way = " + ".join(parts) or "elementwise"
        if layer.index in program.compact:
            way += ", live neurons only"
        ways[layer.name] = way
    return ways


def _loop_over(link: Link) -> str:
    if link.edges is None:
        return "fused loop"
    return f"loop over {'windows' if type(link.connection).__name__ in PLACED else 'edges'}"


def _targets(network: Network) -> Targets:
    """The reads of targets as if all were labels, whatever the data will be."""
    if not network.is_judged:
        return None
    if not network.has_several:
        return "label" if network.compared else ()
    return tuple(TargetRead(name, "label", k) for k, name in enumerate(network.compared))


def _optimizer(network: Network, reading: Reading) -> Optimizer:
    """SGD, or Direct if a neuron reads ``previous_update``, which only Direct remembers."""
    for layer in network.layers[1:]:
        forward, backward, _ = reading.layer(layer, True, receivers=network.receivers(layer))
        roots = [*forward.roots, *([] if backward is None else backward.roots)]
        if any(ir.contains(n, ir.Op.PREVIOUS) for n in roots):
            return Direct()
    return SGD()


def kind(layer: Layer, reading: Reading | None = None) -> str:
    """The path of gradients through a layer: a weighted sum, a local rule, or another formula.
    reading : as for ``lower.training_program``.
    """
    forward, _, _ = (reading or Reading()).layer(layer, True, written=False)
    if forward.pushes:
        return "local rule"
    return "weighted sum" if is_weighted_sum(layer, forward) else "other"


def prints(network: Network) -> list[str]:
    """A sentence for each class whose methods print: compiled neurons do not."""
    classes = dict.fromkeys(layer.neuron for layer in network.layers[1:])
    return [
        f"{cls.__name__} prints, which is left out where neurons are compiled: horn trace shows "
        f'what one neuron does, backend="python" runs all of it'
        for cls in classes
        if not cls.interpreted
        and any(mentions(cls, kind, "print") for kind in ("forward", "backward"))
    ]


def never_learn(network: Network) -> list[str]:
    """A sentence for each layer with weights or Parameters that no gradient and no push reaches.
    Raises CompileError if a neuron cannot be compiled.
    """
    return [sentence for sentence, _ in unreached(network)]


def unreached(network: Network, reading: Reading | None = None) -> list[tuple[str, list[str]]]:
    """The sentences of ``never_learn``, with the names of the arrays that each is about. reading :
    as for ``lower.training_program``.
    """
    layers = network.layers[1:]
    if not network.is_judged or any(layer.neuron.interpreted for layer in layers):
        return []
    reading = reading or Reading()
    read = {k.index: reading.layer(k, True, receivers=network.receivers(k)) for k in layers}
    derived = {k.index: reading.derived(read[k.index][0], k) for k in layers}
    reached = _reached(network, read, derived)
    found: list[tuple[Layer, list[str], bool]] = []
    learned: set[str] = set()  # by one layer, and so by all layers tied to it
    for layer in reversed(layers):
        forward, backward, _ = read[layer.index]
        own = derived[layer.index]
        here = layer.index in reached and not forward.pushes
        if backward is not None:
            here = True
        senders = [read[k.source.index][1] for k in layer.links if k.source.index]
        silent = []
        for name in layer.weights if layer.has_weights else ():
            pushed = bool(forward.pushes)  # weights without a push are left on purpose
            pushed |= any(b and b.push_to(name, layer.weights) is not None for b in senders)
            arrays = [(link.weights[name], link.input) for link in layer.links]
            arrays += [(layer.biases[name], "")] if layer.biases else []
            for array, group in arrays:
                if pushed or (here and _of_weight(own, backward, group, name)):
                    learned.add(array)
                else:
                    silent.append(array)
        of_parameters = own.parameters if backward is None else backward.parameters
        silent += [
            f"{layer.name}.{name}"
            for name in layer.parameters
            if not (here and _flows(of_parameters[name]))
        ]
        if not ir.contains(forward.output, ir.Op.STOP_GRADIENT):  # else the stop is on purpose
            found.append((layer, silent, layer.index in reached))
    sentences = []
    for layer, silent, is_reached in reversed(found):
        if silent := [array for array in silent if array not in learned]:
            forward = read[layer.index][0]
            sentences.append((_unreached(network, layer, silent, is_reached, forward), silent))
    return sentences


def _reached(
    network: Network,
    read: dict[int, tuple[ForwardIR, BackwardIR | None, Any]],
    derived: dict[int, derive.Derived],
) -> set[int]:
    """The layers to which gradients come back; again and again, since who hears a layer late may
    come before it.
    """
    reached = {layer.index for layer in network.judged if _is_steep(layer)}
    before = -1
    while before < len(reached):
        before = len(reached)
        for layer in reversed(network.layers[1:]):
            forward, backward, _ = read[layer.index]
            if backward is None and (layer.index not in reached or forward.pushes):
                continue
            own = derived[layer.index]
            through = (k for k in layer.links if any(_of_messages(own, backward, k.input)))
            reached.update(link.source.index for link in through)
    return reached


def _of_messages(own: derive.Derived, written: BackwardIR | None, group: str) -> list[bool]:
    """Whether gradients flow back to the senders of an input's messages: by weight, or in all."""
    if written is not None:
        return [_flows(written.delta)]
    if own.is_weighted_sum:
        return [_flows(delta) for delta in own.deltas[group].values()]
    return [_flows(ir.at_input(own.input, group))]


def _of_weight(own: derive.Derived, written: BackwardIR | None, group: str, name: str) -> bool:
    """Whether a weight of the messages of an input has a gradient."""
    if written is not None:
        return _flows(written.delta)
    if own.is_weighted_sum:
        return _flows(own.deltas[group][name])
    return _flows(ir.at_input(own.weights[name], group))


def check_memory(
    network: Network, batch_size: int, groups: int = 1, is_compiled: bool = True,
    reading: Reading | None = None,
) -> None:  # fmt: skip
    """Raise CompileError, with the line, for a State or SynapseState whose mean over several
    samples has no meaning. is_compiled : else neurons that are not in the language are left out.
    reading : as for ``lower.training_program``.
    """
    if batch_size * groups == 1:
        return
    reading = reading or Reading()
    for layer in network.layers[1:]:
        cls = layer.neuron
        if cls.interpreted or not (layer.states or declared(cls, SynapseState)):
            continue
        try:
            forward, backward, _ = reading.layer(layer, True, receivers=network.receivers(layer))
        except CompileError:
            if is_compiled:
                raise
            continue
        for name, why in averages.not_means(forward, backward).items():
            known = {**declared(cls, SynapseState), **layer.states}
            if getattr(known.get(name), "per", "run") == "sample":
                continue  # each sample has its own
            at_once = f"batch_size={batch_size}" if batch_size > 1 else f"groups={groups}"
            raise _assigned(
                cls,
                name,
                f"{name!r} {why}, but a batch keeps the mean of what its samples leave, and each "
                f"of them starts from that. With {at_once} there is no such number: take "
                "batch_size=1 and one group, or keep what has a mean: an average, a trace that "
                "fades, a count or a sum. What goes from step to step of a sequence is a "
                'horn.State(..., per="sample")',
            )


def _assigned(cls: type[Neuron], name: str, problem: str) -> CompileError:
    """An error that points at the line where a class assigns a State or SynapseState."""
    for method in ("forward", "backward"):
        function = getattr(cls, method, None)
        if function is None:
            continue
        source = source_of(function)
        for node in ast.walk(source.tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AugAssign) else targets
            if any(isinstance(t, ast.Attribute) and t.attr == name for t in targets):
                return source.error(node, problem)
    source = source_of(cls.forward)
    return source.error(source.tree, problem)


def _flows(gradient: ir.Node) -> bool:
    return not ir.is_const(gradient, 0.0)


def _is_steep(layer: Layer) -> bool:
    """Whether the loss of a layer has a slope."""
    if layer.loss is None or not layer.answers or layer.loss.name in LOSSES:
        return True
    formula = function(layer.loss.f, ir.OUTPUT, ir.TARGET)
    return _flows(derive.gradient(formula, ir.const(1.0), [ir.OUTPUT], layerwide=True)[ir.OUTPUT])


def _unread(layer: Layer, output: ir.Node) -> dict[str, str]:
    """The weights and Parameters that the output does not depend on: their arrays' names, and
    their names in the neuron's source.
    """
    nodes, name = set(ir.walk(output)), layer.name
    unread = {
        f"{name}.{each}": f"self.{each}"
        for each in layer.parameters
        if ir.leaf(ir.Op.PARAM, "o", each) not in nodes
    }
    weights = [each for each in layer.weights if derive.weight(each) not in nodes]
    if len(layer.weights) > 1:  # a single weight's bias is learned
        for each in weights:
            arrays = [link.weights[each] for link in layer.links]
            arrays += [layer.biases[each]] if layer.biases else []
            unread |= dict.fromkeys(arrays, f"m.{each}")
    return unread


def _learned_elsewhere(layer: Layer, silent: list[str]) -> list[str]:
    """The weights of the silent arrays, if other messages teach each of these weights."""
    words, left = [], set(silent)
    for name in layer.weights if layer.has_weights else ():
        arrays = {link.weights[name] for link in layer.links}
        arrays |= {layer.biases[name]} if layer.biases else set()
        if arrays & left and not arrays <= left:
            words.append(f"m.{name}")
            left -= arrays
    return words if not left else []


def _leads_to_no_loss(network: Network, layer: Layer) -> str:
    """Why nothing that a layer sends is ever judged, and what to do; "" where something is."""
    heard = [layer]
    for each in heard:  # which grows
        heard += [listener for listener in network.receivers(each) if listener not in heard]
    if any(each in network.judged for each in heard):
        return ""
    if layer.kind == "output":
        return 'it is an output without a loss. Give it one, as loss="squared_error"'
    others = [each.name for each in network.receivers(layer) if each is not layer]
    if not others:
        return "no layer listens to it. Name it among inputs=[...] of one, or leave it out"
    return (
        f"those that listen to it ({', '.join(others)}) lead to no loss. Name it among inputs=[...]"
        " of one that does, or leave it out"
    )


def _unreached(
    network: Network, layer: Layer, silent: list[str], reached: bool, forward: ForwardIR
) -> str:
    """The sentence on a layer's arrays that never learn. forward : of its neurons."""
    unread = _unread(layer, forward.output)
    name = layer.neuron.__name__
    said = f"layer {layer.index} {layer.name!r}: {', '.join(silent)} will never learn"
    words = ", ".join(dict.fromkeys(unread.values()))
    if unread.keys() >= set(silent):
        return (
            f"{said}: what {name} feeds forward is made without {words}. Use it there, or leave "
            "its declaration out"
        )
    of_parameters = {f"{layer.name}.{each}" for each in layer.parameters}
    read = {each for each in layer.weights if derive.weight(each) in ir.walk(forward.output)}
    if not read and of_parameters.isdisjoint(silent):
        ones = " (the 1 of the bias is among its messages: bias=False leaves it out)"
        return (
            f"{said}: {name}.forward reads no m.{' or m.'.join(layer.weights)}"
            f"{ones if layer.biases else ''}. Where that is meant nothing is wrong, nobody hears "
            "them; through horn.Window such a class has none"
        )
    if elsewhere := _learned_elsewhere(layer, silent):
        return (
            f"{said}: {name}.forward learns by {', '.join(elsewhere)} of other messages, not of "
            "these. Read it there too (the bias has no name: it is in messages alone), say "
            "bias=False where the bias is not read, or leave it as it is"
        )
    without = f". What {name} feeds forward is made without {words}" if unread else ""
    if forward.pushes:  # its weights learn by that
        first = next(each for each in layer.parameters if f"{layer.name}.{each}" in silent)
        write = "Make it"
        if _may_write_backward(network, layer, forward):
            write = f'Write backward with self.push(..., to="{first}"), or make it'
        return (
            f"{said}: {name} pushes in forward, a rule of its own that no gradient passes, and a "
            f"Parameter has no other. {write} a horn.State, which forward "
            f"assigns, or a constant{without}"
        )
    if not reached and (why := _leads_to_no_loss(network, layer)):
        return f"{said}: {why}"
    why = f"{name}.forward has no derivative by them: floor, sign and comparisons pass none"
    if not reached:
        why = "no gradient comes back to the layer from those that listen to it"
        why = f"its loss {layer.loss.name!r} is flat" if layer.loss and layer.answers else why
    backward = " write backward," if _may_write_backward(network, layer, forward) else ""
    return (
        f"{said}: {why}. Let one through, as z + horn.math.stop_gradient(horn.math.sign(z) - z) "
        f"does,{backward} or push in forward{without}"
    )


def _may_write_backward(network: Network, layer: Layer, forward: ForwardIR) -> bool:
    """Whether a backward of a layer's neurons would be called, and accepted."""
    late = bool(network.steps) and of_other_steps(network.layers, layer)
    return layer.kind == "hidden" and not late and not why_no_backward(layer, forward)
