"""The IR of a layer: its neuron's methods, its interlayer, its aggregates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from horn import ir, refusals
from horn.aggregates import Aggregate
from horn.errors import CompileError
from horn.ir import OUTPUT, Node, Op, derive
from horn.ir.derive import Derived
from horn.ir.neuron_ir import BackwardIR, ForwardIR, NeuronContext
from horn.language import parse
from horn.layers import Layer
from horn.neuron import carried, has_backward

LayerIR = tuple[ForwardIR, BackwardIR | None, Node | None]  # with the backward and the interlayer
M = TypeVar("M", ForwardIR, BackwardIR)


class Reading:
    """The text of layers as it is at one time, for all programs of an engine: what many layers
    share is read once. Another engine reads again what users may have changed.
    """

    def __init__(self) -> None:
        # Of each method: the contexts that it was read in, which differ in what it asked.
        self._methods: dict[Hashable, list[tuple[NeuronContext, Any]]] = {}
        self._interlayers: dict[int, tuple[Any, Node]] = {}  # by id, with what keeps it
        self._checked: set[Hashable] = set()
        self._derived: dict[Hashable, Derived] = {}

    def layer(
        self, layer: Layer, training: bool, written: bool = True, receivers: Iterable[Layer] = ()
    ) -> LayerIR:
        """Parse one layer's neuron: its forward, its backward and its interlayer. written : whether
        to read a written backward. receivers : the layers that receive its messages, whose weights
        a written backward reads.
        """
        classes = tuple(dict.fromkeys(receiver.neuron for receiver in receivers))
        context = NeuronContext(
            layer.neuron, layer.activation, layer.index, training, classes, layer.kind == "output",
            layer.inputs, layer.n_positions, bool(layer.kinds),
        )  # fmt: skip
        forward = self._method(parse.forward, context)
        backward, interlayer = None, layer.interlayer
        if training and written and has_backward(layer.neuron) and layer.kind != "output":
            backward = self._method(parse.backward, context, classes)
            key = (id(forward), id(backward), interlayer is None, *layer.weights, layer.inputs)
            if key not in self._checked:
                _check_written(layer, forward, backward)
                self._checked.add(key)
        if interlayer is None:
            return forward, backward, None
        if id(interlayer) not in self._interlayers:
            self._interlayers[id(interlayer)] = interlayer, parse.function(interlayer, OUTPUT)
        return forward, backward, self._interlayers[id(interlayer)][1]

    def _method(
        self, read: Callable[[NeuronContext], M], context: NeuronContext, receivers: Hashable = ()
    ) -> M:
        # By identity: users' functions may compare as they like. Their contexts keep them.
        key = (
            read, receivers, context.cls, id(context.activation), context.is_output, context.inputs,
            context.positions, context.is_map,
        )  # fmt: skip
        known = self._methods.setdefault(key, [])
        for other, found in known:
            if all(getattr(other, fact) == getattr(context, fact) for fact in found.asked):
                return found  # type: ignore[no-any-return]
        found = read(context)
        known.append((context, found))
        return found

    def derived(self, forward: ForwardIR, layer: Layer, carried: Iterable[str] = ()) -> Derived:
        """The gradients of a layer's forward. carried : as for ``derive``."""
        given = tuple(layer.parameters), tuple(layer.weights), layer.groups, tuple(carried)
        key = (forward.output, *forward.states.items(), *given)
        if key not in self._derived:
            self._derived[key] = derive.derive(forward, *given)
        return self._derived[key]


def digest(
    layer: Layer, receivers: Iterable[Layer] = (), reading: Reading | None = None
) -> str:  # fmt: skip
    """A digest of all that ``Reading.layer`` reads of a layer, the same in every process; "" if it
    does not compile.
    """
    reading = reading or Reading()
    try:
        forward, backward, interlayer = reading.layer(layer, True, receivers=receivers)
    except CompileError:
        return ""
    whole: dict[str, Any] = {"interlayer": interlayer}
    for kind, read in (("forward", forward), ("backward", backward)):
        for name, part in vars(read).items() if read else ():
            of = part if isinstance(part, dict) else {"": part}
            whole |= {f"{kind}.{name} {key}": node for key, node in of.items()}
    return "\n".join(
        f"{what}: {node.place[1].hex()}" for what, node in whole.items() if isinstance(node, Node)
    )


def asks(forward: ForwardIR) -> bool:
    """Whether a neuron's forward uses a statistic of its layer or of the batch."""
    return any(
        n.op in (Op.RANK, Op.CHANNEL_SUM) or (n.op is Op.REDUCE and n.value[1] in "ob")
        for n in ir.walk(*forward.roots)
    )


def is_weighted_sum(layer: Layer, forward: ForwardIR) -> bool:
    """Whether the output, and the States that a sequence carries on, are functions of the sums of
    input * weight alone."""
    kept = [forward.states[name] for name in carried(layer.neuron) if name in forward.states]
    return derive.weighted_sum(forward.output, layer.weights, layer.inputs, kept)[0]


def _check_written(layer: Layer, forward: ForwardIR, backward: BackwardIR) -> None:
    if why := why_no_backward(layer, forward):
        name, pushes = layer.neuron.__name__, bool(forward.pushes)
        raise backward.error(refusals.no_written_backward(name, why, pushes))


def why_no_backward(layer: Layer, forward: ForwardIR) -> str:
    """Why no backward can be written for a layer's neurons; "" where one can."""
    if layer.interlayer is not None:
        return refusals.has_interlayer(layer.name)
    if asks(forward):
        return refusals.ASKS
    if len(layer.weights) > 1:
        return refusals.has_weights(len(layer.weights))
    if ir.contains(forward.output, Op.OF_INPUT):
        return refusals.TELLS_APART
    return "" if is_weighted_sum(layer, forward) else refusals.NO_WEIGHTED_SUM


def read_aggregate(aggregate: Aggregate) -> Node:
    """The expression of an aggregate: one number per sample, from a layer's outputs.

    Raises
    ------
    CompileError : it is not in the language of interlayers, or makes a number per neuron.
    """
    function = aggregate.of_layer
    node = parse.function(function, OUTPUT)
    if "o" not in node.axes:
        return node
    name = getattr(function, "__name__", repr(function))
    problem = refusals.several_numbers(name)
    raise parse.error_of(function, problem)
