"""Neuron, the class that users subclass, and what it reads: Synapse, Parameter, State.

The methods here are the neuron's words. Under the interpreter they run as written, on one neuron
and one sample at a time; the compiler reads the same source and never calls them.
"""

from __future__ import annotations

import difflib
import dis
import inspect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Never, TypeVar

import numpy as np

from horn import mistakes, texts
from horn.activations import Activation
from horn.errors import ModelError
from horn.sources import CarriedText, is_horn

if TYPE_CHECKING:
    from horn.initializers import Initializer

MESSAGE_FIELDS = {
    "forward": ("input", "weight", "index", "previous_update"),
    "backward": ("delta", "weight", "gradient", "previous_update"),
}
READABLE = (
    "output",
    "training",
    "iteration",
    "learning_rate",
    "layer_index",
    "index",
    "activation",
)
DRAWS = ("bernoulli", "uniform", "normal")
#: Statistics by their extent: over a layer or channel (of one sample), or over the batch.
STATISTICS = {
    "layer": ("sum", "mean", "var", "max", "min", "argmax", "rank"),
    "channel": ("sum", "mean", "var"),
    "batch": ("sum", "mean", "var"),
}
#: The share of its old value that a State keeps per batch when it follows a batch statistic.
RUNNING = 0.9
WEIGHT = "weight"  # the name of the weight of a class that declares none
#: Arrays of a layer: no Parameter, State or SynapseState has their names.
OF_LAYER = (WEIGHT, "bias")
NO_WEIGHT = ("input", "delta", "gradient", "index", "previous_update", *DRAWS)
#: How often a draw is made anew: the first two belong to one sample.
PERIODS = ("sample", "sequence", "batch", "run")
OF_A_SAMPLE = PERIODS[:2]


@mistakes.teaches
class Parameter:
    """A learned number per neuron, set to ``initial`` (a number or an initialiser) at the start."""

    def __init__(self, initial: float | Initializer = 0.0) -> None:
        self.initial = initial
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"horn.{type(self).__name__}({self.initial!r})"

    # To a type checker a Parameter or State reads and writes as the number it holds.
    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type) -> Any: ...
        def __set__(self, instance: Any, value: Any) -> None: ...


class _Remembered(Parameter):
    def __init__(self, initial: float | Initializer = 0.0, per: str = "run") -> None:
        super().__init__(initial)
        if per not in ("run", "sample"):
            name = type(self).__name__
            raise ModelError(f'{name}: per must be "run" or "sample", got {per!r}')
        self.per = per

    def __repr__(self) -> str:
        return f"horn.{type(self).__name__}({self.initial!r}, per={self.per!r})"


@mistakes.teaches
class State(_Remembered):
    """A number per neuron that is remembered between supersteps.

    Within a batch each sample sees its own value, from forward to backward. When a training batch
    ends the neuron keeps the mean over the batch, and every sample of the next batch starts from
    it. Prediction starts from the kept value and does not change it.

    In sequences (``net.input(n, steps=...)``) each sample's value goes on from step to step.
    ``per="sample"``: it begins with ``initial`` in every sequence, nothing is kept, and gradients
    flow back through it from step to step, as through the cell of an LSTM; it is assigned at most
    once on each path. ``per="run"``, the default, is as above, and no gradient flows.
    """


@mistakes.teaches
class Weight:
    """A weight of every incoming synapse: with ``forget = horn.Weight()`` in the class a message
    has ``m.forget``. A class that declares none has ``m.weight``.

    init : the initial values, a number, a name or an initialiser, as for ``init`` of the layer,
    which is the default. bias : the same of the bias synapse's weight, as ``bias`` of the layer; a
    layer with ``bias=False`` has no such synapse.
    """

    def __init__(
        self,
        init: str | float | Initializer | None = None,
        bias: str | float | Initializer | None = None,
    ) -> None:
        self.init, self.bias, self.name = init, bias, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"horn.{mistakes.constructed(self)}"

    def __get__(self, instance: Any, owner: type) -> Weight:
        """Raise AttributeError on a neuron: weights belong to its synapses."""
        if instance is not None:
            raise AttributeError(f"{self.name} is a Weight: read m.{self.name} of a message")
        return self


@mistakes.teaches
class SynapseState(_Remembered):
    """A number per synapse that is remembered: ``m.trace``, read and assigned in the loop over
    messages. ``forward`` has those of the incoming synapses, ``backward`` those of the outgoing
    ones.

    As with State each sample sees its own value; when a training batch ends the synapse keeps the
    mean over the batch. Prediction reads the kept value and does not change it.

    In sequences each sample's value goes on from step to step, without a gradient.
    ``per="sample"``: it begins with ``initial`` in every sequence, and nothing is kept.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        """Raise AttributeError on a neuron: the state belongs to its synapses."""
        if instance is not None:
            raise AttributeError(f"{self.name} is a SynapseState: read m.{self.name} of a message")
        return self


class Synapse:
    """A message to a neuron over one synapse: ``input`` and ``weight`` in forward, ``delta``,
    ``gradient`` and ``weight`` in backward.

    A class with Weights has those instead of ``weight``, by their names; in backward they are the
    receiver's, and ``delta.name`` is the delta of the sum that has the weight of that name.
    ``index`` (in forward) is the number of the neuron's messages before this one: 0 to
    ``len(messages) - 1``, the links in the order of ``inputs``, within a link the senders that this
    neuron listens to in ascending order, the bias last.
    ``previous_update`` is the last change of the weight under ``horn.Direct``. ``normal(mean,
    std)`` is a number drawn once for this synapse; it never changes in a run.
    """

    input: float
    weight: float
    delta: float
    gradient: float
    index: float
    previous_update: float

    def normal(self, mean: float = 0.0, std: float = 1.0) -> float:
        """A normal number that belongs to this synapse: drawn once for the run, from the seed."""
        raise NotImplementedError("a Synapse is made by horn")

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A uniform number that belongs to this synapse: drawn once for the run, from the seed."""
        raise NotImplementedError("a Synapse is made by horn")


def of_python(value: Any) -> Any:
    """A constant as a neuron reads it, however it runs: a number of NumPy is the Python number of
    that value, so that uint8(3) - uint8(5) is -2."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


class Neuron:
    """One neuron: subclass it and write ``forward``; write ``backward`` too, or let horn derive it.

    Readable: ``output`` (the last value it sent on), ``target`` (of an output neuron, in training;
    its layer has a loss), ``training``, ``iteration`` (from 0), ``learning_rate``, ``layer_index``
    (the input layer is 0), ``index`` (within the layer). Class attributes that are numbers are
    constants.

    Source: Yoon, "Horn: A System for Parallel Training and Regularizing of Large-Scale Neural
    Networks", 2016, section 2.1.
    """

    activation: Activation
    output: float
    target: float
    training: bool
    iteration: int
    learning_rate: float
    layer_index: int
    index: int
    interpreted: bool = False
    _host: Any = None  # the interpreter that runs this neuron

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
            if (arguments or keywords) and cls.__init__ is object.__init__:
                said = f"{cls.__name__}() takes no arguments"
                raise mistakes.NoSuchArgument(f"{said}; {mistakes.remedy(said)}")
            return super().__new__(cls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = {*READABLE, *DRAWS, "feedforward", "backpropagate", "push"} & set(vars(cls))
        if taken:
            raise ModelError(
                f"{cls.__name__} defines {', '.join(sorted(taken))}, which every neuron "
                "already has; use another name"
            )
        for name, value in vars(cls).items():
            _check_declaration(cls.__name__, name, value)
        states = declared(cls, SynapseState)
        for name in (*declared(cls, Parameter), *declared(cls, State), *states):
            if name in OF_LAYER:  # one array for two
                raise ModelError(
                    f"{cls.__name__} defines {name}, which every layer already has, an array of "
                    f"its own; use another name, as own_{name}"
                )
        for name in (*declared(cls, Weight), *states):
            if name in NO_WEIGHT:
                kind = "SynapseState" if name in states else "Weight"
                raise ModelError(
                    f"{cls.__name__} declares a {kind} {name!r}, but every message has a "
                    f"{name!r} already; use another name"
                )
        texts.keep(cls)
        if not is_horn(cls.__module__ or ""):
            setattr(cls, texts.CARRIED, CarriedText(cls))

    def forward(self, messages: Iterable[Any]) -> None:
        """Read one message per incoming synapse, then call ``feedforward`` once."""
        raise ModelError(f"{type(self).__name__} has no forward(self, messages); write one")

    def feedforward(self, value: Any) -> None:
        """Set ``self.output`` and send it on. Exactly once on every path of ``forward``."""
        self._host.feedforward(self, value)

    def backpropagate(self, delta: Any) -> None:
        """Set this neuron's delta: d loss / d (summed input). Exactly once on every path of
        ``backward``.
        """
        self._host.backpropagate(self, delta)

    def push(self, gradient: Any, to: str | None = None) -> None:
        """The gradient of the loss with respect to this message's weight, inside the loop over
        messages, once per message; ``to`` names the weight where a synapse has several.

        Outside the loop ``to`` names a Parameter, and the gradient is with respect to that, once
        per path.
        """
        self._host.push(self, gradient, to)

    def bernoulli(self, p: Any, per: str = "sample") -> Any:
        """1.0 with probability p, else 0.0; one draw per sample (of sequences, at every step),
        or ``per="sequence"`` (the same at all its steps), ``per="batch"`` or ``per="run"``.
        """
        return self._host.draw(self, "bernoulli", (p,), per)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, per: str = "sample") -> Any:
        """A number between low (included) and high."""
        return self._host.draw(self, "uniform", (low, high), per)

    def normal(self, mean: Any = 0.0, std: Any = 1.0, per: str = "sample") -> Any:
        """A normal number with this mean and standard deviation."""
        return self._host.draw(self, "normal", (mean, std), per)

    def sum(self, x: Any, over: str, **others: Never) -> Any:
        """The sum of x over all neurons of the layer (``over="layer"``, for this sample), over
        those at all positions of this channel (``over="channel"``), or over this neuron's values
        for all samples (``over="batch"``; at all positions where these are one neuron, as the maps
        of a convolution are).
        """
        return self._host.ask(self, "sum", x, over, None, others)

    def mean(self, x: Any, over: str, running: str | None = None) -> Any:
        """The mean, likewise. ``running``: the name of a State that follows it in training, and
        replaces it at prediction, when there is no batch.
        """
        return self._host.ask(self, "mean", x, over, running)

    def var(self, x: Any, over: str, running: str | None = None) -> Any:
        """The mean of squared differences from the mean, likewise."""
        return self._host.ask(self, "var", x, over, running)

    def max(self, x: Any, over: str, **others: Never) -> Any:
        """The largest x in the layer."""
        return self._host.ask(self, "max", x, over, None, others)

    def min(self, x: Any, over: str, **others: Never) -> Any:
        """The smallest x in the layer."""
        return self._host.ask(self, "min", x, over, None, others)

    def argmax(self, x: Any, over: str, **others: Never) -> Any:
        """The ``index`` of the neuron with the largest x; the first of equals."""
        return self._host.ask(self, "argmax", x, over, None, others)

    def rank(self, x: Any, over: str, **others: Never) -> Any:
        """The rank of this neuron's x in the layer: the number of neurons before it, the largest
        first; of equals the first. 0 is the winner.
        """
        return self._host.ask(self, "rank", x, over, None, others)


def _check_declaration(owner: str, name: str, value: Any) -> None:
    """Raise ModelError where a class attribute holds declarations in a list, a tuple or a dict, or
    is one that was not called: nothing would be declared.
    """
    if isinstance(value, type) and issubclass(value, (Parameter, Weight)):
        kind = f"horn.{value.__name__}"
        raise ModelError(f"{owner}.{name} is {kind}, the class; call it: {name} = {kind}()")
    if isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            if isinstance(each, (Parameter, Weight)):
                kind, held = type(each).__name__, type(value).__name__
                raise ModelError(
                    f"{owner}.{name} holds a {kind} in a {held}, where it declares nothing: each "
                    f"has a name of its own in the class, as  {name}0 = horn.{kind}()"
                )


N = TypeVar("N", bound=type[Neuron])


def interpreted(cls: N) -> N:
    """Class decorator: run this neuron message by message in Python, thousands of times slower,
    outside the neuron language.
    """
    cls.interpreted = True
    return cls


D = TypeVar("D")


def declared(cls: type[Neuron], kind: type[D]) -> dict[str, D]:
    """The declarations of one kind (Parameter, State, Weight) in a neuron class by name, in the
    order of definition, bases first.
    """
    found: dict[str, D] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if type(value) is kind:
                found[name] = value
            elif name in found:
                del found[name]
    return found


def declarations(cls: type[Neuron]) -> dict[type, dict[str, Any]]:
    """All declarations of a neuron class, by kind and name, each kind in their order."""
    kinds: tuple[type, ...] = Parameter, State, SynapseState
    return {**{kind: declared(cls, kind) for kind in kinds}, Weight: weights_of(cls)}


def is_same_declaration(one: Any, other: Any) -> bool:
    """Whether two declarations are of one kind and begin alike, as those of one text do."""
    return one is other or _said(one) == _said(other)


def _said(value: Any) -> Any:
    """A value in words in which no addresses are."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, FunctionType):
        return texts.code_digest(value.__code__)
    if hasattr(value, "__dict__"):  # a declaration, an initialiser
        kept = {name: _said(each) for name, each in vars(value).items() if name != "name"}
        return type(value).__module__, type(value).__qualname__, kept
    return repr(value)


def carried(cls: type[Neuron]) -> tuple[str, ...]:
    """The States that each sequence carries by itself: gradients flow through them."""
    return tuple(name for name, state in declared(cls, State).items() if state.per == "sample")


def weights_of(cls: type[Neuron]) -> dict[str, Weight]:
    """The weights of a synapse toward a neuron of this class, by name: at least one."""
    return declared(cls, Weight) or {WEIGHT: Weight()}


def mentions(cls: type[Neuron], method: str | None, word: str) -> bool:
    """Whether a method, or a function or method that it names, uses the name ``word``. method :
    None for any method of the class.
    """
    pending: list[Any] = [f for c in cls.__mro__ if c is not Neuron for f in vars(c).values()]
    found = {name: f for c in reversed(cls.__mro__) for name, f in vars(c).items()}
    if method is not None:
        pending = [found.get(method)]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        function = getattr(function, "__func__", function)  # a static method
        code = getattr(function, "__code__", None)
        if code is None or id(function) in seen:
            continue
        seen.add(id(function))
        cells = getattr(function, "__closure__", None) or ()
        pending += [cell.cell_contents for cell in cells if cell != CellType()]
        codes = [code]
        for inner in codes:
            codes += [c for c in inner.co_consts if isinstance(c, CodeType)]
            if word in inner.co_names:
                return True
            pending += [found[name] for name in inner.co_names if name in found]
            pending += _looked_up(function, inner)
    return False


def _looked_up(function: Any, code: CodeType) -> Iterator[Any]:
    """What code, of the function or inside it, finds by names outside of it: also what it asks of a
    class or a module, as ``Base.forward``. (co_names has names of attributes of anything.)
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    for is_global, name, *asked in _names_outside(code):
        found: Any = None
        if is_global:
            found = function.__globals__.get(name)
        elif name in cells and cells[name] != CellType():
            found = cells[name].cell_contents
        for attribute in asked:
            if not isinstance(found, (type, ModuleType)):
                break
            found = inspect.getattr_static(found, attribute, None)
        yield found


@lru_cache(maxsize=4096)
def _names_outside(code: CodeType) -> tuple[tuple[Any, ...], ...]:
    """Each name of a global or of a function around: whether it is global, it, and the attributes
    that are asked of it.
    """
    steps = list(dis.get_instructions(code))
    found = []
    for k, step in enumerate(steps, 1):
        if step.opname == "LOAD_GLOBAL" or step.argval in code.co_freevars:
            after = takewhile(lambda s: s.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[k:])
            asked = (each.argval for each in after)
            found.append((step.opname == "LOAD_GLOBAL", step.argval, *asked))
    return tuple(found)


def reads_weights(cls: type[Neuron]) -> bool:
    """Whether forward reads a weight of its synapses, or learns one."""
    words = (*weights_of(cls), "push", "previous_update")
    return any(mentions(cls, "forward", word) for word in words)


def has_backward(cls: type[Neuron]) -> bool:
    """Whether the class, or a base below Neuron, writes its own backward."""
    return hasattr(cls, "backward")


def check_class(cls: object, where: str) -> type[Neuron]:
    """Check that cls is a subclass of Neuron with a forward. Raises ModelError."""
    if not isinstance(cls, type) or not issubclass(cls, Neuron):
        remedy = ""
        if isinstance(cls, Neuron):
            remedy = f"; pass the class itself: neuron={type(cls).__name__}"
        elif isinstance(cls, str):
            remedy = "; pass a class, as neuron=horn.Standard; a function is activation='relu'"
        elif isinstance(cls, (tuple, list)) and any(isinstance(each, type) for each in cls):
            remedy = (
                "; a layer has one class: make a layer of each, a and b, and let the next listen "
                "to both: inputs=[a, b]"
            )
        elif isinstance(cls, (int, tuple, list)):  # scikit-learn's first argument
            remedy = f"; neurons per layer have a name: hidden_layer_sizes={cls!r}"
        elif hasattr(cls, "forward"):
            remedy = f"; write class {getattr(cls, '__name__', 'MyNeuron')}(horn.Neuron)"
        elif callable(cls):
            remedy = (
                "; write a class with forward(self, messages); a function of their weighted sum "
                "is an activation: activation=f"
            )
        raise ModelError(
            f"{where}: neuron must be a subclass of horn.Neuron, got {mistakes.shown(cls)}{remedy}"
        )
    if cls is Neuron:
        raise ModelError(
            f"{where}: horn.Neuron is what neurons are written from; leave neuron= out for the "
            "weighted sum, or write a class Mine(horn.Neuron) with forward(self, messages)"
        )
    if cls.forward is Neuron.forward:
        close = difflib.get_close_matches("forward", vars(cls), 1, 0.8)
        remedy = f"rename {close[0]!r}" if close else "write one"
        raise ModelError(f"{where}: {cls.__name__} has no forward(self, messages); {remedy}")
    for word, else_ in (
        ("forward", "or leave it out, and that of its base runs"),
        ("backward", "or leave it out, and horn derives the gradient"),
    ):
        for base in cls.__mro__:
            if base is Neuron or word in vars(base):
                break
            if name := mistakes.misnamed(base, word):
                raise ModelError(
                    f"{where}: {base.__name__} has a {name!r}, which nothing calls; rename it "
                    f"{word}, {else_}"
                )
    if cls.__init__ is not object.__init__:
        raise ModelError(
            f"{where}: {cls.__name__} has an __init__, which nothing calls: the numbers of a "
            "neuron stand in its class, as  leak = 0.1 , learned ones as  leak = "
            "horn.Parameter(0.1) , and other numbers in a subclass"
        )
    return cls


__all__ = ["Neuron", "Parameter", "State", "Synapse", "SynapseState", "Weight", "interpreted"]
