"""Network: the description of layers and their connections, which grows as they are added. It
never runs anything.

Layers are numbered from 0, the input. A layer's name is "layer<k>" unless given; its arrays are
named after it: "layer1.weight" (fan_out, fan_in), or (n_edges,) for a sparse connection;
"layer1.bias" (fan_out,); "layer1.<parameter>" (fan_out,). A layer with several inputs has one
weight array each: "layer3.weight.layer1", or "layer3.weight.x" of the input that is called x. A
class that declares Weights has an array of each in its place: "layer3.weight.forget",
"layer3.weight.layer1.forget"; "layer3.bias.forget".
The SynapseStates that ``forward`` keeps for incoming synapses are "layer3.trace"
("layer3.trace.layer1" of several inputs) and "layer3.bias.trace", those that ``backward`` keeps for
outgoing ones "layer3.trace.to.layer4"; see docs/notes/0116.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from horn import (
    activations,
    html,
    initial_arrays,
    initializers,
    losses,
    mistakes,
    network_checks,
    texts,
    wiring,
)
from horn.activations import Activation, Function
from horn.aggregates import taken
from horn.connections._matrix import is_matrix
from horn.connections.part import Part
from horn.errors import ModelError, is_whole
from horn.initializers import Initializer
from horn.layers import Connects, InputNeuron, Inputs, Interlayer, Layer, Link, SynapseArray
from horn.losses import Loss
from horn.neuron import Neuron, check_class
from horn.neurons import Comparison, Penalty, Relay, Standard

logger = logging.getLogger(__name__)


@mistakes.teaches
@dataclass(eq=False)
class Network:
    """Layers, added in order: ``input``, any number of ``layer``, then ``output``: none, one or
    several, and ``loss`` between layers.
    """

    seed: int = 0
    layers: tuple[Layer, ...] = field(default=(), init=False)
    # Class variables, no fields: a job's initial arrays are its own, as is being a model's network.
    _given: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    frozen: ClassVar[frozenset[str]] = frozenset()  # arrays that training leaves as they are
    is_of_model: ClassVar[bool] = False
    _inputs: ClassVar[tuple[Layer, ...]] = ()  # the handles of net.input, if it was called again
    _alone: ClassVar[Layer | None] = None  # the output that a view by ``alone`` shows, of several
    # The layers that listen to each, and of which layers that was said.
    _listeners: ClassVar[tuple[tuple[Layer, ...], dict[Layer, list[Layer]]]] = ((), {})

    def __post_init__(self) -> None:
        if not is_whole(self.seed, 0):
            raise ModelError(
                f"Network: seed is a whole number from 0, got {self.seed!r}; layers are added by "
                "net.input(n), net.layer(n) and net.output(n)"
            )
        if self.seed >= 2**64:  # the order of samples has 64 bits of it
            raise ModelError(f"Network: seed must be below 2**64, got {self.seed}")

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise mistakes.no_attribute("a horn.Network", name, dir(self))

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise ModelError(
                "a horn.Network is a description, and answers nothing: train it, run = horn.train("
                "horn.Job(net, (x, y))); then run.model(x)"
            )

    @mistakes.teaches
    def input(
        self,
        size: int | Sequence[int],
        *,
        keep: float = 1.0,
        per: str = "sample",
        steps: int | None = None,
        name: str | None = None,
    ) -> Layer:
        """The layer that holds one sample of ``size`` features, or of a shape with channels last:
        (28, 28, 1). Samples of that shape are read flat, row by row. Called again, before other
        layers, it is one more input: the data are {"x": a, "z": b} by their names, or have their
        columns side by side in the order of the calls. The next layer listens to all of them,
        unless its ``inputs`` names some.

        ``keep`` below 1 silences each feature with probability 1 - keep in training, per sample (of
        sequences, at every step anew), per sequence or per batch; at inference the features are
        scaled by keep.

        ``steps``: a sample is a sequence of so many steps, of ``size`` features each: the data are
        (n, steps, features). Layers run step by step, and may hear what was sent some steps ago
        (``horn.Delayed``).
        """
        if len(self.layers) > 1:
            raise ModelError(
                f"input comes first, before other layers; this network has {self.layers[-1]!r}"
            )
        network_checks.check_input(keep, per, steps)
        made = Layer(
            0,
            name or ("layer0" if not self.layers else f"input{len(self._inputs or (0,)) + 1}"),
            math.prod(extents := wiring.extents(size, "input")),
            "input",
            InputNeuron,
            activations.ACTIVATIONS["identity"],
            "identity",
            keep=float(keep),
            per=per,
            extents=extents if len(extents) > 1 else (),
            steps=int(steps or 0),
        )
        network_checks.check_name(made.name, f"input {made.name!r}")
        return self._beside(made) if self.layers else self._add(made)

    def _beside(self, other: Layer) -> Layer:
        """Add one more input: all inputs are one layer, side by side, and the handle stands for its
        part of that layer.
        """
        first = self.layers[0]
        if first.steps or other.steps:
            raise ModelError(
                f"input {other.name!r}: a network of sequences (steps=) has one input; lay the "
                "features of all side by side; a layer of horn.neurons.Relay with bias=False and "
                "connect=horn.Sparse(sources=lambda k: [first + k]) hands some of them on"
            )
        inputs = (*(self._inputs or (first,)), other)
        if (other.keep, other.per) != (first.keep, first.per):
            raise ModelError(
                f"input {other.name!r}: keep and per are those of all inputs, {first.keep:g} and "
                f"{first.per!r}; give the same, or drop out in a layer behind it"
            )
        parts = tuple((each.name, each.size) for each in inputs)
        names = [name for name, _ in parts]
        if len(set(names)) < len(names) or "inputs" in names:
            raise ModelError(
                f"input {other.name!r}: inputs have names of their own, and not "
                f"'inputs', which is all of them; got {', '.join(map(repr, names))}"
            )
        whole = replace(
            first, name="inputs", size=sum(size for _, size in parts), extents=(), parts=parts
        )
        self.layers = (whole,)
        vars(self)["_inputs"] = inputs
        return other

    def _source(self, given: Any) -> Any:
        """The source of a layer that names one of several inputs: a layer that forwards it."""
        places = [k for k, each in enumerate(self._inputs) if each is given]
        if not places:
            return given
        known = {layer.name: layer for layer in self.layers}
        if given.name in known:
            return known[given.name]
        if self.layers[-1].kind == "output":
            raise ModelError(
                f"input {given.name!r} is first heard behind an output: add the output that hears "
                "it before the others, or name it in the inputs of a layer"
            )
        start = sum(each.size for each in self._inputs[: places[0]])
        part = Part(start, given.shape)
        return self._appended(
            "hidden", neuron=Relay, activation="identity", inputs=self.layers[0], connect=part,
            bias=False, name=given.name,
        )  # fmt: skip

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """Name and size of each input, in the order of their columns."""
        first = self.layers[0]
        return first.parts or ((first.name, first.size),)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a sample of each input, as the layer knows it that hands it on; (size,) of
        several inputs that are heard together alone.
        """
        known = {layer.name: layer.shape for layer in self.layers}
        return {name: known.get(name, (size,)) for name, size in self.inputs}

    @mistakes.teaches
    def layer(
        self,
        size: int | Sequence[int] | None = None,
        *,
        neuron: type[Neuron] = Standard,
        activation: str | Activation | Function = "identity",
        interlayer: Interlayer | None = None,
        inputs: Inputs | None = None,
        connect: Connects | Mapping[Layer, Connects] | Any | None = None,
        init: str | float | Initializer | None = None,
        bias: bool | str | float | Initializer = True,
        name: str | None = None,
    ) -> Layer:
        """A hidden layer of ``size`` neurons listening to the last layer, or to all of ``inputs``:
        layers, or a mapping {"x": a, "h": b}, whose messages neurons tell apart as ``messages.x``
        and ``messages.h``. A layer may have several names: each is a connection of its own.

        ``connect`` is one connection for all inputs, or a mapping from input (or its name) to
        connection; dense by default. A scipy sparse matrix (receivers, sources), a NumPy array or a
        networkx graph is one, too: ``horn.Sparse(matrix=...)``. ``init`` is drawn for every weight:
        He for relu-like activations, else Glorot. ``activation`` is a name, a ``horn.Activation``,
        or a function f(z) in the neuron language, whose slope is derived. ``bias=False`` leaves the
        bias out; a number or an initialiser sets its initial value (0 by default). ``size`` may be
        a shape, channels last; connections that look through windows, as ``horn.Convolution(20,
        5)``, say it themselves. ``interlayer``: a function of a neuron's output, and those of its
        layer, in the neuron language (docs/what-compiles.md); what it returns is sent.
        """
        return self._appended(
            "hidden", size=size, neuron=neuron, activation=activation, interlayer=interlayer,
            inputs=inputs, connect=connect, init=init, bias=bias, name=name,
        )  # fmt: skip

    @mistakes.teaches
    def output(
        self,
        size: int | Sequence[int] | None = None,
        *,
        neuron: type[Neuron] = Standard,
        activation: str | Activation | Function = "identity",
        interlayer: Interlayer | None = None,
        loss: str | Loss | Callable[[Any, Any], Any] | None = None,
        inputs: Inputs | None = None,
        connect: Connects | Mapping[Layer, Connects] | Any | None = None,
        init: str | float | Initializer | None = None,
        bias: bool | str | float | Initializer = True,
        each_step: bool = False,
        weight: float = 1.0,
        name: str | None = None,
    ) -> Layer:
        """Add an output: its layer answers and is judged by a loss (none for local rules).

        Called again, it is one more output, which listens to the last layer that is none, or to
        ``inputs``: the targets are {"digit": a, "side": b} by the outputs' names, or a tuple in the
        order of the calls, and the loss is the sum of each output's loss times its ``weight``.

        ``each_step``: every step of a sequence is judged and answered: labels (n, steps), targets
        (n, steps, size). Without it only the last step: labels (n,), targets (n, size).

        ``loss``: a name, a ``horn.Loss``, or a function f(output, target). ``interlayer`` and the
        other arguments are as for ``layer``.
        """
        found = losses.resolve(loss, "output")
        if size == 1 and activation == "softmax":
            raise ModelError(
                'output: softmax of 1 neuron is always 1; write output(1, activation="sigmoid", '
                'loss="binary_cross_entropy"), or output(2, ...) for two classes'
            )
        return self._appended(
            "output", size=size, neuron=neuron, activation=activation, interlayer=interlayer,
            inputs=inputs, connect=connect, init=init, bias=bias, name=name, loss=found,
            each_step=each_step, loss_weight=_weight(weight, "output"),
        )  # fmt: skip

    @mistakes.teaches
    def loss(
        self,
        a: Layer,
        b: Layer | None = None,
        f: str | Loss | Callable[..., Any] | None = None,
        *,
        each_step: bool = False,
        weight: float = 1.0,
        name: str | None = None,
    ) -> Layer:
        """Add a loss between two layers of the same size to those of the outputs: the sum over
        their neurons of ``f(a, b)``, times ``weight``; or, for one layer, of ``f(a)``. Gradients
        flow to both; ``horn.math.stop_gradient`` in f keeps one of them as it is.

        ``f``: a function in the neuron language, or for two layers the name of a loss, where b is
        the target. Comes after all layers. A penalty of activity is
        ``net.loss(code, f=lambda y: abs(y), weight=0.01)``. ``each_step``: as for ``output``, the
        mean over the steps of sequences; without it f reads the outputs of the last step.
        """
        where = "loss" if name is None else f"loss {name!r}"
        pair = (a,) if b is None else (a, b)
        for each in pair:
            if not isinstance(each, Layer):
                raise ModelError(
                    f"{where}: takes layers, as net.input and net.layer return them; got {each!r}; "
                    "a function is f=..."
                )
        if len({each.size for each in pair}) > 1:
            raise ModelError(
                f"{where}: compares neuron by neuron, but {a.name} has {a.size} and "
                f"{pair[-1].name} has {pair[-1].size}; take layers of the same size"
            )
        if isinstance(f, (str, Loss)) and b is not None:
            found = losses.resolve(f, where)
            assert found is not None
            called, function = found.name, found.f
        else:
            called, function = getattr(f, "__name__", "f"), f  # type: ignore[assignment]
        if not callable(function) or not _takes(function, len(pair)):
            wanted = "f(a, b), or the name of a loss" if b is not None else "f(a), of one number"
            raise ModelError(f"{where}: f is a function {wanted}; got {f!r}")
        pairwise = (activations.Activation if b is None else activations.OfTwo)(called, function)
        name = name or f"loss{1 + sum(not layer.answers for layer in self.layers)}"
        if why := taken(name):
            raise ModelError(f"{where}: {why}")
        sources: Any = {"a": a, "b": b} if b is not None else [a]
        return self._appended(
            "output", neuron=Penalty if b is None else Comparison, activation=pairwise,
            inputs=sources, connect=Part(0, (a.size,)), bias=False, name=name, loss=losses.BETWEEN,
            each_step=each_step, loss_weight=_weight(weight, where), answers=False,
        )  # fmt: skip

    def _appended(
        self,
        kind: str,
        *,
        size: int | Sequence[int] | None = None,
        neuron: type[Neuron],
        activation: str | Activation | Function,
        interlayer: Interlayer | None = None,
        inputs: Any,
        connect: Connects | Mapping[Layer, Connects] | Any | None,
        init: str | float | Initializer | None = None,
        bias: bool | str | float | Initializer,
        name: str | None,
        loss: Loss | None = None,
        each_step: bool = False,
        loss_weight: float = 1.0,
        answers: bool = True,
    ) -> Layer:
        if isinstance(inputs, (str, int, float)):
            inputs = (inputs,)  # a wrong type, refused with the inputs below
        if inputs is None and kind == "output":
            inputs = [each for each in self.layers if each.kind != "output"][-1:] or None
        if self._inputs and inputs is not None:
            if isinstance(inputs, Mapping):
                inputs = {key: self._source(each) for key, each in inputs.items()}
            else:
                given = (inputs,) if isinstance(inputs, Layer) else tuple(inputs)
                inputs = [self._source(each) for each in given]
            if isinstance(connect, Mapping) and not is_matrix(connect):
                connect = {self._source(key): value for key, value in connect.items()}
        index = len(self.layers)
        name = name or f"layer{index}"
        where = f"layer {index} {name!r}"
        taken = [] if isinstance(connect, Part) else [each.name for each in self._inputs]
        network_checks.check_next(self.layers, kind, name, where, taken)
        check_class(neuron, where)
        network_checks.check_interlayer(interlayer, where)
        function, implied = activations.resolve(activation, where)
        if implied is not None and interlayer is not None:
            raise ModelError(
                f"{where}: activation={activation!r} is an interlayer itself; give one of the two"
            )
        usual = "he" if function.name in ("relu", "leaky_relu", "softplus") else "glorot"
        initial = usual if init is None else init
        links, found = wiring.linked(
            (index, name), inputs, connect, size, init, initial, neuron, self.layers, self.seed
        )
        bias_init = None
        if bias is None:
            raise ModelError(f"{where}: bias=False leaves the bias out; got None")
        if bias is not False:
            bias_init = initializers.resolve(0.0 if bias is True else bias, where)
        label = function.name if implied is None else implied.__name__
        return self._add(
            Layer(
                index,
                name,
                math.prod(found.shape),
                kind,
                neuron,
                function,
                label,
                interlayer or implied,
                links,
                bias_init,
                loss,
                extents=found.shape if len(found.shape) > 1 else (),
                kinds=found.kinds,
                each_step=each_step,
                loss_weight=loss_weight,
                answers=answers,
            )
        )

    @property
    def remembered(self) -> dict[str, tuple[int, int]]:
        """The buffers of a program that a sequence carries from step to step, by name: the number
        of steps that are kept, and the size of one. They hold delayed outputs, States, and
        SynapseStates.
        """
        found = {f"{x.name}.now": (1, math.prod(x.shape)) for x in self.synapse_states}
        for layer in self.layers:
            found |= {f"{layer.name}.{name}.now": (1, layer.size) for name in layer.states}
            for link in layer.links:
                if link.delay:
                    name = f"{link.source.name}.output"
                    steps = max(found.get(name, (0, 0))[0], link.delay)
                    found[name] = steps, link.source.size
        return found

    def of_steps(self, steps: int, *, asks_each: bool = True) -> Network:
        """The same layers for sequences of another number of steps; learned arrays fit both.
        asks_each : every step has an answer; else the steps that this network answers.
        """
        network = Network(self.seed)
        for layer in self.layers:
            links = tuple(wiring.moved(k, network.layers) for k in layer.links)
            here = steps if layer.index == 0 else layer.steps
            each = layer.each_step or (asks_each and layer in self.outputs)
            network._add(replace(layer, links=links, steps=here, each_step=each))
        return network

    def rebuilt(
        self, *, seed: int | None = None, changes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Network:
        """The same description with another seed, or with other fields of some layers: {"layer1":
        {"size": 100}}. An activation, a loss or a bias is given as to ``layer`` and ``output``.

        Random connections are drawn anew from the seed, but not between layers of the same sizes
        whose weights are learned: of a model's network, or of arrays that a job begins with.
        Handles of the old layers are not layers of the new network.

        ModelError : there is no such layer or field, or no such activation or loss.
        """
        changes = _changed_fields(changes or {}, self.layers)
        network = Network(self.seed if seed is None else seed)
        resized = {name for name, each in changes.items() if "size" in each}
        for layer in self.layers:
            links = tuple(wiring.moved(k, network.layers) for k in layer.links)
            changed = changes.get(layer.name, {})
            if not layer.answers:  # as large as the layers that it compares
                links = tuple(replace(k, connection=Part(0, (k.source.size,))) for k in links)
            was = layer
            keeps = [
                self._is_learned(old) and not {was.name, new.source.name} & resized
                and old.source.size == new.source.size
                for old, new in zip(was.links, links, strict=True)
            ]  # fmt: skip
            layer = replace(layer, links=links, **changed)
            if links:
                links = tuple(
                    k if is_kept else wiring.drawn_later(k, layer.index)
                    for k, is_kept in zip(links, keeps, strict=True)
                )
                layer = replace(layer, links=links)
                placed = [k.source.kind for k in links if k.is_placed]
                size = None if placed and "later" not in placed else layer.shape
                if "size" in changed:
                    size = (layer.size,)
                wired = [(k.connection, k.source) for k in links]
                found = wiring.wired(wired, size, layer.index, layer.name, network.seed)
                drawn = (
                    link if is_kept and math.prod(found.shape) == was.size
                    else replace(link, edges=edges)
                    for link, edges, is_kept in zip(links, found.edges, keeps, strict=True)
                )  # fmt: skip
                extents = found.shape if len(found.shape) > 1 else ()
                layer = replace(
                    layer, links=tuple(drawn), size=math.prod(found.shape), extents=extents
                )
            elif "size" in changed:
                layer = replace(layer, size=wiring.whole_size(layer.size, layer.name), extents=())
            network._add(layer)
        return network.freezing(self.frozen)

    def _is_learned(self, link: Link) -> bool:
        """Whether a link has learned weights, and its connection alone does not say of which
        synapses.
        """
        given = self.is_of_model or not self._given.keys().isdisjoint(link.weights.values())
        return given and bool(link.kept_edges)

    def _add(self, layer: Layer) -> Layer:
        if self.is_of_model:
            raise ModelError(
                f"{layer.name}: a model's network has the layers of its arrays; make another one, "
                "which begins with what this one learned: horn.Job(net, (x, y), initial=model)"
            )
        names = tuple(layer.weights) if layer.has_weights else ()
        if not names:
            layer = replace(layer, bias=None)  # without weights there is no bias
        layer = replace(layer, links=tuple(replace(link, names=names) for link in layer.links))
        late = [
            (listener, k, link)
            for listener in (*self.layers, layer)
            for k, link in enumerate(listener.links)
            if link.source.kind == "later" and link.source.name == layer.name
        ]
        for listener, k, link in late:  # that layer is added after its listener
            if not link.delay:
                way = wiring.path(listener, layer)
                raise ModelError(wiring.cycle([*way, listener.name] if way else [layer.name]))
            if link.source.index < 0:
                edges = wiring.late_edges(listener, k, layer, self.seed)
                object.__setattr__(link, "edges", edges)
        for listener, _, link in late:
            object.__setattr__(link, "source", layer)
            vars(listener).pop("fan_in", None)  # it may have been asked for before
            vars(listener).pop("typical_fan_in", None)
        self.layers = (*self.layers, layer)
        return layer

    def __repr__(self) -> str:
        return f"<Network {'-'.join(str(layer.size) for layer in self.layers)}, seed {self.seed}>"

    def _repr_html_(self) -> str:
        rows = [
            [
                layer.name,
                "input" if layer.kind == "input" else layer.neuron.__name__,
                layer.size,
                layer.activation_name,
                sum(math.prod(shape) for shape in layer.shapes.values()),
                ", ".join(link.heard for link in layer.links),
            ]
            for layer in self.layers
        ]
        header = ("layer", "neuron", "units", "activation", "parameters", "listens to")
        loss = self.loss_in_words if self.layers else None
        return html.table(header, rows) + html.facts({"seed": self.seed, "loss": loss})

    @property
    def n_inputs(self) -> int:
        """The number of input neurons; of a sequence those of one step."""
        return self.layers[0].size

    @property
    def steps(self) -> int:
        """The number of steps of a sample; 0 if it is no sequence."""
        return self.layers[0].steps if self.layers else 0

    @property
    def n_features(self) -> int:
        """The number of values in a sample, over all steps."""
        return self.n_inputs * max(self.steps, 1)

    @property
    def answers(self) -> tuple[int, ...]:
        """The shape of the answer for one sample; several outputs lie side by side."""
        size = sum(layer.size for layer in self.outputs)
        return (self.steps, size) if self.answers_each else (size,)

    @property
    def answers_each(self) -> bool:
        """Whether every step is answered, by one of several outputs at least."""
        return any(layer.each_step for layer in self.outputs)

    @property
    def judges_each(self) -> bool:
        """Whether all losses judge every step."""
        return all(layer.each_step for layer in self.judged)

    @property
    def target_shapes(self) -> dict[str, tuple[bool, int]]:
        """Whether each step has targets, and the size: for every output with targets, or else for
        the only one.
        """
        several = [layer for layer in self.outputs if layer.name in self.compared]
        layers = several if self.has_several else [self.last]
        return {layer.name: (layer.each_step, layer.size) for layer in layers}

    @property
    def columns(self) -> dict[str, slice]:
        """The columns of each output in the answer, by its name."""
        ends = itertools.accumulate((layer.size for layer in self.outputs), initial=0)
        return {
            layer.name: slice(start, start + layer.size)
            for layer, start in zip(self.outputs, ends, strict=False)
        }

    @property
    def shared(self) -> set[str]:
        """The learned arrays whose numbers are shared by several synapses or neurons."""
        found = set[str]()
        for layer in self.layers[1:]:
            found |= layer.vertex_shapes.keys() if layer.kinds else set()
            for link in layer.links:
                is_shared = link.is_shared or link.tie is not None
                found |= set(link.weights.values()) if is_shared else set()
        return found

    @property
    def tied(self) -> frozenset[str]:
        """The learned arrays that several links share."""
        links = [link for layer in self.layers for link in layer.links if link.tie is not None]
        return frozenset(array for link in links for array in link.weights.values())

    def receivers(self, layer: Layer) -> tuple[Layer, ...]:
        """The layers that listen to a layer."""
        of, listeners = self._listeners
        if of is not self.layers:
            listeners = {}
            for each in self.layers:
                for source in dict.fromkeys(link.source for link in each.links):
                    listeners.setdefault(source, []).append(each)
            vars(self)["_listeners"] = self.layers, listeners
        return tuple(listeners.get(layer, ()))

    @property
    def outputs(self) -> tuple[Layer, ...]:
        """The layers that answer; the last layer of a network without an output."""
        if self._alone is not None:
            return (self._alone,)
        answering = [layer for layer in self.layers if layer.answers]
        return tuple(layer for layer in answering if layer.kind == "output") or (answering[-1],)

    @property
    def last(self) -> Layer:
        """The last output layer, or the last layer of a network without outputs."""
        return self.outputs[-1]

    @property
    def judged(self) -> tuple[Layer, ...]:
        """The layers with a loss: outputs, and those added by ``loss``."""
        if self._alone is not None:
            return () if self._alone.loss is None else (self._alone,)
        return tuple(layer for layer in self.layers if layer.loss is not None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the outputs that are compared with targets."""
        return tuple(layer.name for layer in self.judged if layer.answers)

    @property
    def has_several(self) -> bool:
        """Whether there are several outputs, so that each has targets by its name."""
        return len(self.outputs) > 1

    @property
    def is_judged(self) -> bool:
        """Whether there is any loss."""
        return bool(self.judged)

    @property
    def loss_in_words(self) -> str | None:
        """The losses in words: a single output's loss by name; None without any."""
        if not self.judged:
            return None
        if len(self.judged) == 1 and self.judged[0].answers:
            return self.judged[0].loss.name  # type: ignore[union-attr]
        said = [
            (f"{each.loss_weight:g} * " if each.loss_weight != 1.0 else "") + each.name
            for each in self.judged
        ]
        return " + ".join(said)

    def alone(self, output: Layer) -> Network:
        """The same layers with this output alone, without other losses, so that functions for a
        network with one output serve each of several.
        """
        if self.outputs == (output,) and len(self.judged) < 2:
            return self
        network = Network(self.seed)
        vars(network).update(vars(self), _alone=output)
        return network

    def check(self) -> None:
        """Raise ModelError unless the network can be run."""
        network_checks.check(self.layers, self.steps)

    def beginning_with(self, arrays: Mapping[str, Any], states: Mapping[str, Any]) -> Network:
        """The same layers with these initial parameters and states, where they have one by that
        name.
        """
        network = Network(self.seed)
        given = {**arrays, **{f"state/{name}": value for name, value in states.items()}}
        vars(network).update(vars(self), _given=given)
        vars(network).pop("is_of_model", None)
        return network

    def freezing(self, arrays: Collection[str]) -> Network:
        """The same layers with these learned arrays frozen in training."""
        if self.frozen == frozenset(arrays):
            return self
        network = Network(self.seed)
        vars(network).update(vars(self), frozen=frozenset(arrays))
        return network

    def of_model(self) -> Network:
        """The same layers as a model's network: without a job's initial arrays and frozen ones."""
        network = Network(self.seed)
        vars(network).update(vars(self), is_of_model=True)
        for of_job in ("_given", "frozen"):
            vars(network).pop(of_job, None)
        return network

    def until(self, layer: str) -> Network:
        """A network that ends with a layer and has every layer below that it depends on."""
        known = {each.name: each for each in self.layers}
        if not isinstance(layer, str):
            raise ModelError(
                f"a layer is given by its name, got {layer!r:.40} (of type "
                f"{type(layer).__name__}); the layers are {', '.join(known)}"
            )
        if layer not in known:
            raise ModelError(f"no layer {layer!r}; the layers are {', '.join(known)}")
        wanted, waiting = set(), [known[layer]]
        while waiting:
            if (each := waiting.pop()) not in wanted:
                wanted.add(each)
                waiting += [link.source for link in each.links]
                waiting += [link.tie.layer for link in each.links if link.tie is not None]
        if (above := max(wanted, key=lambda one: one.index)) is not known[layer]:
            raise ModelError(
                f"{layer} hears {above.name} late, which comes later: no network ends with it "
                f"alone; model.record(x, {layer!r}) says what it sends at each step"
            )
        network = Network(self.seed)
        new: dict[Layer, Layer] = {}
        for each in sorted({*wanted, self.layers[0]}, key=lambda one: one.index):
            places = {layer.index: moved for layer, moved in new.items()}
            links = tuple(wiring.moved(link, places) for link in each.links)
            of_steps = self.answers_each and each is known[layer]
            changed = replace(
                each, index=len(network.layers), links=links, loss=None, each_step=of_steps,
                loss_weight=1.0,
            )  # fmt: skip
            new[each] = network._add(changed)
        return network

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, which keeps of classes their names alone: with a digest of each neuron."""
        state = {name: value for name, value in vars(self).items() if name != "_listeners"}
        return {**state, "_neurons": [texts.methods_digest(x.neuron) for x in self.layers]}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        for layer, was in zip(self.layers, vars(self).pop("_neurons", ()), strict=False):
            now = texts.methods_digest(layer.neuron)
            if now != was and now[0] == was[0]:
                logger.warning(
                    "layer %s: %s has been defined again since the network was pickled, which now "
                    "has the new one: pickle keeps its name alone, and a model file its text",
                    layer.name, layer.neuron.__name__,
                )  # fmt: skip

    def initial_parameters(self, dtype: Any = np.float32) -> dict[str, Any]:
        """Every learned array by name, drawn from the seed unless it is given. Shapes as in the
        module's docstring.
        """
        return initial_arrays.parameters(self.layers, self.seed, dtype, self._given)

    def initial_states(self, dtype: Any = np.float32) -> dict[str, Any]:
        """Every State array (fan_out,) by name, and every SynapseState in the shape of weights;
        drawn unless it is given.
        """
        arrays = initial_arrays.states(self.layers, self.seed, dtype)
        given = {name: self._given[f"state/{name}"] for name in arrays
                 if f"state/{name}" in self._given}  # fmt: skip
        return arrays | {name: np.array(a, dtype, order="C") for name, a in given.items()}

    @property
    def synapse_states(self) -> list[SynapseArray]:
        """The arrays of the SynapseStates that methods name."""
        return initial_arrays.synapse_states(self.layers)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every State and SynapseState, by name."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{layer.name}.{name}": (layer.size,)
            for layer in self.layers[1:]
            for name in layer.states
        }
        return shapes | {found.name: found.shape for found in self.synapse_states}


def _changed_fields(
    changes: Mapping[str, Mapping[str, Any]], layers: Sequence[Layer]
) -> dict[str, dict[str, Any]]:
    """The changes of ``rebuilt`` as layers have them, by names. Raises ModelError."""
    known = [layer.name for layer in layers]
    settable = [each.name for each in fields(Layer) if each.name not in ("index", "name", "links")]
    found = {}
    for name, given in changes.items():
        where = f"rebuilt: {name!r}"
        if name not in known:
            raise ModelError(f"{where} is no layer; this network has {', '.join(known)}")
        if unknown := [key for key in given if key not in settable]:
            raise ModelError(
                f"{where}: {unknown[0]!r} is no field of a layer that can be changed; these are "
                f"{', '.join(settable)}"
            )
        changed = dict(given)
        if "activation" in given:
            function, implied = activations.resolve(given["activation"], where)
            label = function.name if implied is None else implied.__name__
            changed = {"activation_name": label, **changed, "activation": function}
            own = layers[known.index(name)].interlayer
            if implied is not None or own in activations.INTERLAYERS.values():  # softmax is one
                changed = {"interlayer": implied, **changed}
        if "loss" in given:
            changed["loss"] = losses.resolve(given["loss"], where)
        if isinstance(given.get("bias"), (bool, str, int, float)):
            bias = 0.0 if given["bias"] is True else given["bias"]
            changed["bias"] = None if bias is False else initializers.resolve(bias, where)
        found[name] = changed
    return found


def _weight(weight: Any, where: str) -> float:
    """Check a factor of a loss. Raises ModelError."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
        said = "; what weights begin with is init=" if where == "output" else ""
        raise ModelError(f"{where}: weight is a factor of the loss, a number, got {weight!r}{said}")
    if not 0.0 <= weight < math.inf:
        raise ModelError(f"{where}: weight is a factor of the loss, from 0, got {weight:g}")
    return float(weight)


def _takes(f: Callable[..., Any], n: int) -> bool:
    """Whether a function can be called with n numbers."""
    try:
        inspect.signature(f).bind(*([0.0] * n))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True
