"""A layer in the interpreter: its neurons, the synapses between them, and their kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from horn import refusals
from horn.activations import softmax
from horn.autodiff import user_text
from horn.autodiff.tape import Nobody, Traced, below, observing
from horn.errors import HornError, ModelError
from horn.interpreter import neuron_kinds
from horn.interpreter.calls import Call, DeltaByWeight, Heard, Message, Moment
from horn.interpreter.language import Translator, printing
from horn.layers import Layer
from horn.losses import LOSSES, binary_cross_entropy_of_sigmoid, cross_entropy_of_softmax
from horn.network import Network
from horn.neuron import (
    STATISTICS,
    WEIGHT,
    Neuron,
    SynapseState,
    carried,
    declared,
    has_backward,
    mentions,
)

# Calling such a method runs none of its lines.
PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Wire:
    """One synapse. ``arrays`` and ``place`` are the place of its weights, by name, which others may
    share; ``edge`` that of its SynapseStates; ``link`` is the position of its link among the
    receiver's.

    The bias synapse has source -1: nobody sends on it.
    """

    source_layer: int
    source: int
    layer: int
    neuron: int
    arrays: tuple[tuple[str, str], ...]  # (name, array)
    place: int
    edge: int
    link: int
    delay: int = 0
    is_reversed: bool = False

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """The key of draws for the synapse (note 0001, point 10)."""
        return self.layer, self.neuron, self.link, max(self.source, 0)


class Stage:
    """A layer, ready to run: ``neurons`` are real instances of the user's class; ``wires[o]`` lead
    to neuron o, the bias last."""

    def __init__(self, network: Network, layer: Layer, translator: Translator) -> None:
        self.layer, self.index, self.name = layer, layer.index, layer.name
        self.seed = network.seed
        self.is_output = layer in network.outputs
        self.is_judged = layer in network.judged
        self.parameters = {name: f"{layer.name}.{name}" for name in layer.parameters}
        self.states = {name: f"{layer.name}.{name}" for name in layer.states}
        self.carried = carried(layer.neuron)
        self.traces = tuple(declared(layer.neuron, SynapseState))
        # by the key of a synapse: the link's position; in backward with the receiver
        kept = [x for x in network.synapse_states if x.owner is layer]
        self.incoming = {(x.state.name, x.position): x.name for x in kept if x.layer is layer}
        self.outgoing_states = {
            (x.state.name, x.layer.index, x.position): x.name for x in kept if x.layer is not layer
        }
        self.interlayer = translator.value(layer.interlayer)
        self.loss_of_raw = _loss_of_raw(layer)
        for kind in ("forward", "backward"):
            method = inspect.getattr_static(layer.neuron, kind, None)
            if method is not None and not isinstance(method, FunctionType):
                raise ModelError(refusals.no_method(layer.neuron.__name__, kind))
            if method is not None and method.__code__.co_flags & PAUSES:
                raise user_text.error_at(method, refusals.NO_GENERATOR)
        self.cls: type[Neuron] = translator.neuron(layer.neuron)
        self.activation = translator.activation(layer.activation)
        self.neurons = [self._neuron(o) for o in range(layer.size)]
        self.wires = [list(self._wires(o)) for o in range(layer.size)]
        self.outgoing: list[list[Wire]] = [[] for _ in range(layer.size)]
        # The output layer is always derived (note 0001, point 5): a backward that it writes is not
        # called.
        own = layer.neuron
        self.hears_error = not hasattr(own, "error") and mentions(own, None, "error")
        self.hears_loss = not hasattr(own, "loss") and mentions(own, None, "loss")
        self.has_target = self.is_output and not hasattr(layer.neuron, "target")
        self.writes_backward = layer.kind == "hidden" and has_backward(layer.neuron)
        receivers = network.receivers(layer)
        self.sends_to = tuple(dict.fromkeys(w for x in receivers for w in x.weights)) or (WEIGHT,)

    def _neuron(self, index: int) -> Neuron:
        neuron = object.__new__(self.cls)
        vars(neuron).update(
            index=index,
            layer_index=self.index,
            activation=self.activation,
            training=False,
            iteration=0,
            learning_rate=0.0,
            _parameters=self.parameters,
            _weights=tuple(self.layer.weights),
            _inputs=self.layer.inputs,
            _positions=self.layer.n_positions,
            _traces=self.traces,
            _states=self.states,
            _carried=self.carried,
            _host=None,
        )
        return neuron

    def _wires(self, o: int) -> Sequence[Wire]:
        found = []
        for position, link in enumerate(self.layer.links):
            arrays = tuple(link.weights.items())
            if link.edges is None:
                sources = [(i, o * link.source.size + i) for i in range(link.source.size)]
            else:
                start, stop = int(link.edges.indptr[o]), int(link.edges.indptr[o + 1])
                sources = [(int(link.edges.indices[e]), e) for e in range(start, stop)]
            shared = None if link.edges is None else link.edges.weight
            for i, edge in sources:
                place = edge if shared is None else int(shared[edge])
                if link.edges is None and link.tie is not None and link.tie.transposed:
                    place = i * self.layer.size + o
                ends = link.source.index, i, self.index, o
                heard = link.delay, link.is_reversed
                found.append(Wire(*ends, arrays, place, edge, position, *heard))
        if self.layer.bias is not None:
            biases = tuple(self.layer.biases.items())
            links = len(self.layer.links)
            found.append(Wire(-1, -1, self.index, o, biases, self.kind(o), o, links))
        return found

    def kind(self, o: int) -> int:
        """The place of a neuron's Parameters and biases."""
        return o % self.layer.n_kinds

    # --- the kind of its neurons, found only where it matters

    @cached_property
    def _forward_walks(self) -> list[Call] | None:
        return self._walk("forward")

    def _walk(self, kind: str) -> list[Call] | None:
        """The paths of a method, or None if it breaks a rule: the real run will report it, with the
        neuron's own numbers."""
        try:
            with printing(lambda neuron: False), observing(Nobody()):  # of invented numbers
                return list(neuron_kinds.walk(lambda: self._probe(kind)))
        except HornError:
            return None

    def _probe(self, kind: str) -> Call:
        neuron = self._neuron(0)
        fields: dict[str, Any] = {
            name: Traced(0.5, "parameter", variable=True) for name in self.parameters
        }
        fields |= {name: Traced(0.25, "state", varies=True) for name in self.states}
        if kind == "backward":
            fields["output"] = Traced(0.375, "output", varies=True)
            fields |= {"loss": Traced(0.75, varies=True)} if self.hears_loss else {}
            if self.hears_error:
                fields["error"] = [
                    Heard("backward", {"delta": Traced(0.3, varies=True)}, (self.index, 0, 0, k))
                    for k in range(2)
                ]
        elif self.has_target:
            fields["target"] = Traced(0.625, "target", varies=True)
        vars(neuron).update(fields, training=True)
        weights = self.layer.weights if kind == "forward" else self.sends_to
        inputs = self.layer.inputs if kind == "forward" else ()
        messages = neuron_kinds.probes(kind, weights, self.traces, inputs)
        call = Call(neuron, kind, messages, Moment(self.seed, True, 0, 0, 0.1))
        for each in fields["error"] if kind == "backward" and self.hears_error else ():
            vars(each)["_host"] = call
        return call

    def _may_use(self, *words: str) -> bool:
        """Whether a method may use one of these words; one that is interpreted may come to them by
        ways that no text shows.
        """
        own = self.layer.neuron
        return own.interpreted or any(mentions(own, None, word) for word in words)

    @cached_property
    def asks_batch(self) -> bool:
        """Whether forward may ask the batch: then its samples run together."""
        if not self._may_use(*STATISTICS["batch"]):
            return False
        calls = self._forward_walks
        return calls is None or any(call.asked_batch for call in calls)

    @property
    def asks(self) -> bool:
        """Whether forward makes anything of a statistic of the layer or of the batch."""
        if not self._may_use(*{word for words in STATISTICS.values() for word in words}):
            return False
        return any(
            node.op == "asked" for call in self._forward_walks or () for node in below(*call.made)
        )

    @cached_property
    def weighted_sum(self) -> bool:
        """Whether forward depends on its messages through one sum of input * weight (note 0001,
        point 4)."""
        walks = self._forward_walks
        return walks is None or (bool(walks) and neuron_kinds.is_weighted_sum(walks))

    @property
    def local(self) -> bool:
        """Whether forward pushes: a local learning rule (note 0001, point 6)."""
        return bool(self.learns_locally)

    @cached_property
    def learns_locally(self) -> frozenset[tuple[str, str]]:
        """The (input, weight) pairs that forward pushes to."""
        calls = (self._forward_walks or ()) if self._may_use("push") else ()
        return frozenset(
            (message._of_input, weight)
            for call in calls
            for weight, pushed in call.pushed.items()
            for message in call.items
            if id(message) in pushed
        )

    @property
    def pushes_and_remembers(self) -> bool:
        """Whether forward pushes and assigns a SynapseState."""
        return self.local and any(
            getattr(vars(message)[name], "op", "") != "trace"
            for call in self._forward_walks or ()
            for message in call.items
            for name in self.traces
        )

    @cached_property
    def tells_inputs_apart(self) -> bool:
        """Whether forward may read messages.x; an input may be called as a field of messages is."""
        if not any(mentions(self.layer.neuron, None, name) for name in self.layer.inputs):
            return False
        calls = self._forward_walks
        return calls is None or any(call.tells_inputs_apart for call in calls)

    def group(self, wire: Wire) -> str:
        """The name of the input that a synapse belongs to, or ""."""
        return "" if wire.source < 0 else self.layer.links[wire.link].input

    @cached_property
    def pushes(self) -> bool:
        """Whether a written backward pushes to its outgoing synapses."""
        return bool(self.pushes_to)

    @cached_property
    def pushes_to(self) -> frozenset[str]:
        """The weights that a written backward pushes to; "" is the only one."""
        calls = (self._walk("backward") or ()) if self.writes_backward else ()
        return frozenset(weight for call in calls for weight in call.pushed)

    def asking(self, over: str, n_samples: int) -> list[list[tuple[int, int]]]:
        """The (sample, neuron) pairs that get one answer together."""
        size, kinds = self.layer.size, self.layer.n_kinds
        samples = range(n_samples)
        if over == "layer":
            return [[(k, o) for o in range(size)] for k in samples]
        if over == "batch":  # the positions of a map are one neuron
            return [[(k, o) for k in samples for o in range(c, size, kinds)] for c in range(kinds)]
        maps = self.layer.extents[-1]
        return [[(k, o) for o in range(c, size, maps)] for k in samples for c in range(maps)]

    def pushes_weight(self, name: str, names: Sequence[str]) -> bool:
        """Whether its backward pushes to the weight of a receiver with these weights."""
        return name in self.pushes_to or (len(names) == 1 and "" in self.pushes_to)

    def check(self) -> None:
        """Check a written backward: it needs a weighted-sum forward and no interlayer (note 0001,
        point 5)."""
        if not self.writes_backward:
            return
        why = ""
        if self.layer.interlayer is not None:
            why = refusals.has_interlayer(self.name)
        elif self.asks:
            why = refusals.ASKS
        elif len(self.layer.weights) > 1:
            why = refusals.has_weights(len(self.layer.weights))
        elif self.tells_inputs_apart:
            why = refusals.TELLS_APART
        elif not self.weighted_sum:
            why = refusals.NO_WEIGHTED_SUM
        if why:
            method = self.cls.backward  # type: ignore[attr-defined]
            problem = refusals.no_written_backward(self.cls.__name__, why, self.local)
            raise user_text.error_at(method, problem)

    # --- messages

    @cached_property
    def refusals(self) -> tuple[dict[str, str], str]:
        """The error messages of a sender's written backward for synapses to this layer: by field
        that it may not read, and for a push.
        """
        name = self.cls.__name__
        refused, no_push = {}, ""
        if not self.weighted_sum:
            why = (
                f"the receiver {self.name} ({name}) does not depend on its messages through "
                "sum(m.input * m.weight) alone, so a "
                f"synapse to it has no delta"
            )
            refused["delta"] = (
                f"m.delta: {why}; read m.gradient (d loss / d input) and do not push: its weights "
                "are derived"
            )
            no_push = f"push: {why} and its weights are derived; do not push, and read m.gradient"
        if self.local:
            no_push = (
                f"push: the receiver {self.name} ({name}) learns from its own push in forward "
                "(a local rule); do not push to it"
            )
        return refused, no_push


def _loss_of_raw(layer: Layer) -> Callable[[Any, Any], Any] | None:
    """The layer's loss as a function of the input of its softmax or sigmoid, where there is one
    that stays finite: the number is the same, and the compiler takes it, too.
    """
    if layer.interlayer is softmax and layer.loss == LOSSES["cross_entropy"]:
        return cross_entropy_of_softmax
    if layer.interlayer is None and layer.loss == LOSSES["binary_cross_entropy"]:
        return binary_cross_entropy_of_sigmoid
    return None


def forward_message(
    wire: Wire,
    value: float,
    weights: dict[str, float],
    traces: dict[str, float],
    previous: float | str,
    index: int,
    of_input: str,
) -> tuple[Message, Traced, dict[str, Traced]]:
    """The message of a synapse in forward, and its leaves on the tape."""
    x = Traced(value, "input", (), variable=True, varies=True)
    own = {name: Traced(w, "weight", (), variable=True) for name, w in weights.items()}
    fields: dict[str, Any] = {"input": x, **own, "index": Traced(index, "index")}
    fields |= {name: Traced(kept, "trace") for name, kept in traces.items()}
    refused = _previous(fields, previous, own)
    names = tuple(own), tuple(traces), of_input
    return Message("forward", fields, wire.identity, refused, "", *names), x, own


def backward_message(
    wire: Wire,
    deltas: dict[str, float],
    weights: dict[str, float],
    traces: dict[str, float],
    gradient: float,
    previous: float | str,
    refused: dict[str, str],
    no_push: str,
) -> Message:
    """The message of an outgoing synapse in backward."""
    own = {name: Traced(w) for name, w in weights.items()}
    known = {name: Traced(delta) for name, delta in deltas.items()}
    only = known[next(iter(own))] if len(own) == 1 else DeltaByWeight(known)
    fields: dict[str, Any] = {"delta": only, "gradient": Traced(gradient), **own}
    fields |= {name: Traced(kept, "trace") for name, kept in traces.items()}
    for name in refused:
        del fields[name]
    refused = refused | _previous(fields, previous, own)
    names = tuple(own), tuple(traces)
    return Message("backward", fields, wire.identity, refused, no_push, *names)


def _previous(
    fields: dict[str, Any], previous: float | str, weights: Container[str]
) -> dict[str, str]:
    if WEIGHT not in weights:
        return {"previous_update": refusals.NO_PREVIOUS_UPDATE}
    if isinstance(previous, str):
        return {"previous_update": previous}
    fields["previous_update"] = Traced(previous, "previous_update")
    return {}
