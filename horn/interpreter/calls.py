"""One run of ``forward`` or ``backward`` by one neuron for one sample, and the rules that it must
keep.

``Call`` is the neuron's host while the method runs: feedforward, backpropagate, push and the draws
arrive here. Every broken rule is a CompileError at the user's line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Never, NoReturn

from horn import random, refusals
from horn.autodiff import user_text
from horn.autodiff.tape import Traced, below, is_number, listening, number
from horn.mistakes import suggest
from horn.neuron import (
    DRAWS,
    MESSAGE_FIELDS,
    OF_A_SAMPLE,
    PERIODS,
    READABLE,
    RUNNING,
    STATISTICS,
    WEIGHT,
    Neuron,
    Synapse,
)


@lru_cache(maxsize=65_536)
def drawn(
    kind: str, seed: int, layer: int, place: int, neuron: int, sample: int, iteration: int
) -> float:
    """The number of one draw (note 0001, point 10). kind : "uniform" or "normal"."""
    draw = random.normal if kind == "normal" else random.uniform
    return float(draw(random.key(seed, layer), place, [neuron], [sample], iteration)[0, 0])


@lru_cache(maxsize=65_536)
def drawn_for(
    kind: str,
    seed: int,
    place: int,
    identity: tuple[int, int, int, int],
    sample: int,
    iteration: int,
) -> float:
    """The number of one draw of a message (docs/notes/0117). identity : that of its Message."""
    layer, neuron, link, source = identity
    (key,) = random.receiver_keys(random.key(seed, layer), [neuron], link)
    return float(random.of_messages(kind, key, place, source, sample, iteration))


def _check_draw(kind: str, args: tuple[Any, ...]) -> None:
    """Raise CompileError for a draw with constants outside of its domain."""
    if not any(isinstance(a, Traced) for a in args) and (wrong := refusals.wrong_draw(kind, args)):
        raise user_text.error(wrong)


@dataclass(frozen=True)
class Moment:
    """The moment of a run. ``sample`` is the sample's global number; ``seed`` the network's.
    ``row`` is its number in the data, for messages.
    """

    seed: int
    training: bool
    iteration: int
    sample: int
    learning_rate: float
    row: int = 0

    def number_of(self, per: str) -> int:
        """The sample number that a draw is keyed by."""
        if per == "sequence":
            return self.sample & ~random.STEP_BITS
        return self.sample if per == "sample" else random.SHARED


class DeltaByWeight:
    """m.delta of a synapse with several weights: the delta of each weight's sum, by its name."""

    def __init__(self, by_weight: dict[str, Any]) -> None:
        vars(self).update(by_weight)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise user_text.error(
            refusals.no_delta(name, ", ".join(f"m.delta.{each}" for each in vars(self)))
        )

    def _no_number(self, *_: Any) -> NoReturn:
        raise user_text.error(
            "m.delta is not one number toward receivers whose synapses have several weights: read "
            f"{', '.join(f'm.delta.{each}' for each in vars(self))}, or m.gradient"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_number
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = __abs__ = __lt__ = __gt__ = _no_number


class Message(Synapse):
    """A Synapse as a neuron sees it. ``fields`` may be read; ``refused`` has the error message of
    each other field.

    no_push : the error message of a push to it, or "". identity : (layer, neuron) of the receiver,
    position of the link, source, for draws made once per synapse (note 0001, point 10).
    weights, traces : the names of its weights and SynapseStates, which are among the fields.
    of_input : the name of the input that it came by, or "".
    """

    _host: Any = None

    def __init__(
        self,
        kind: str,
        fields: dict[str, Any],
        identity: tuple[int, int, int, int] = (0, 0, 0, 0),
        refused: Mapping[str, str] = MappingProxyType({}),
        no_push: str = "",
        weights: tuple[str, ...] = (WEIGHT,),
        traces: tuple[str, ...] = (),
        of_input: str = "",
    ) -> None:
        own = vars(self)
        own.update(fields)
        own.update(_kind=kind, _identity=identity, _refused=refused, _no_push=no_push)
        own["_weights"], own["_traces"], own["_of_input"] = weights, traces, of_input

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"<message {fields}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        fields: list[str] = []
        for field in MESSAGE_FIELDS[self._kind]:
            fields += self._weights if field == WEIGHT else [field]
        fields += self._traces
        known = ", ".join(fields)
        if name in self._refused:
            raise user_text.error(self._refused[name])
        if name == WEIGHT:
            listed = ", ".join(f"m.{each}" for each in self._weights)
            raise user_text.error(
                f"the synapses of this neuron have other weights than m.weight: read {listed}, "
                "or declare  weight = horn.Weight()  too"
            )
        if self._kind == "backward" and name == "input":
            raise user_text.error(
                "in backward a message has no 'input': what this neuron sent is self.output. "
                f"Fields: {known}"
            )
        if self._kind == "forward" and name in MESSAGE_FIELDS["backward"]:
            raise user_text.error(refusals.not_yet(name, known))
        raise user_text.error(refusals.no_field(name, suggest(name, fields, did="Did"), known))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._traces:
            raise user_text.error(refusals.not_assigned(name))
        if not is_number(value):
            raise user_text.error(f"m.{name} is a SynapseState and holds a number, got {value!r}")
        if self not in self._host.current:
            raise user_text.error(f"m.{name} is set outside the loop over messages; set it inside")
        vars(self)[name] = value

    def normal(self, mean: Any = 0.0, std: Any = 1.0) -> Any:
        _check_draw("normal", (mean, std))
        return mean + std * self._draw("normal")

    def uniform(self, low: Any = 0.0, high: Any = 1.0) -> Any:
        _check_draw("uniform", (low, high))
        return low + (high - low) * self._draw("uniform")

    def _draw(self, kind: str) -> Traced:
        layer, neuron, link, source = self._identity
        place, seed = self._place(kind), self._host.moment.seed
        sample = (link << 32) + source
        return Traced(drawn(kind, seed, layer, place, neuron, sample, random.ONCE), "synapse")

    def _place(self, kind: str) -> int:
        """The site of the current draw. The same draw may be made again: it is the synapse's."""
        path = user_text.draw_path(self._host.code)
        place = random.site(path)
        if self._host.synapse_paths.setdefault((type(self), kind, place), path) != path:
            raise user_text.error(refusals.DRAWN_LIKE_ANOTHER)
        return place


class NoMessage:
    """The result of ``max(messages, key=...)`` without messages: its fields are 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Traced(0.0)


class Heard(Message):
    """The error of one output neuron, as a message to a hidden neuron."""

    def _draw(self, kind: str) -> Traced:
        place, seed = self._place(kind), self._host.moment.seed
        return Traced(
            drawn_for(kind, seed, place, self._identity, random.SHARED, random.ONCE), "synapse"
        )


NOT_BY_ALL = (
    "is asked by some neurons or samples only, or not in the same order by all: compute it before "
    "the if"
)


@dataclass(frozen=True)
class Question:
    """A statistic that a neuron asks of its layer or the batch, with its number; or the answer."""

    word: str
    over: str
    value: Any


class QuestionAsked(BaseException):
    """Ends the run of one neuron at its question."""

    def __init__(self, question: Question) -> None:
        self.question = question


class ReceivedMessages:
    """The messages that ``for m in messages`` runs over, and the current one, which ``push`` refers
    to. of_input : the input that all of them came by."""

    def __init__(self, call: Call, items: Sequence[Message], of_input: str = "") -> None:
        self._call, self._items, self._of_input = call, items, of_input

    def __repr__(self) -> str:
        return f"<{len(self._items)} messages>"

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Message]:
        current = self._call.current
        if current and not self._call.neuron.interpreted:
            raise user_text.error(refusals.LOOP_IN_LOOP)
        self._call.read = True
        current.append(None)
        try:
            for message in self._items:
                current[-1] = message
                yield message
        finally:
            current.pop()

    def __getitem__(self, index: Any) -> Any:
        if not self._call.neuron.interpreted:
            raise user_text.error(refusals.NO_ORDER)
        self._call.read = True
        return self._items[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        call, names = self._call, vars(self._call.neuron)["_inputs"]
        if name in names and call.kind == "forward" and not self._of_input:
            call.tells_inputs_apart = True
            return ReceivedMessages(call, [m for m in self._items if m._of_input == name], name)
        raise user_text.error(refusals.no_input(name, names, call.kind, self._of_input))


@dataclass(frozen=True)
class Test:
    """A comparison of these numbers. batch, varies : as of a Traced, where any of them does."""

    numbers: tuple[float, ...]
    batch: bool
    varies: bool

    @classmethod
    def of(cls, operands: tuple[Any, ...]) -> Test:
        traced = [each for each in operands if isinstance(each, Traced)]
        batch, varies = any(each.batch for each in traced), any(each.varies for each in traced)
        return cls(tuple(map(number, operands)), batch, varies)


class Call:
    """The host of one neuron's method during its run, and the record of it.

    fed, delta : the values fed forward and propagated back. pushed : by weight ("": the only one),
    by message. pushed_to : by Parameter.
    conditions : the operands compared before feedforward, by comparison in ``tests``. silent : it
    fed the constant 0 forward after a test of the batch, and may sit out. read : messages were
    looked at before it. tells_inputs_apart : those of one input were.
    """

    def __init__(
        self,
        neuron: Neuron,
        kind: str,
        messages: Sequence[Message],
        moment: Moment,
        answers: Sequence[Question] | None = None,
    ) -> None:
        self.answers, self.turn, self.asked_batch = answers, 0, False
        self.neuron, self.kind, self.moment = neuron, kind, moment
        self.messages = ReceivedMessages(self, messages)
        self.items = messages
        for message in messages:
            vars(message)["_host"] = self
        method = getattr(type(neuron), kind)
        self.method, self.code = method, method.__code__
        self.name = f"{type(neuron).__name__}.{kind}"
        self.current: list[Message | None] = []
        self.fed: Any = None
        self.delta: Any = None
        self.pushed: dict[str, dict[int, Any]] = {}
        self.pushed_to: dict[str, Any] = {}
        self.conditions: list[Any] = []
        self.tests: list[Test] = []
        self.read = self.tells_inputs_apart = False
        self.sites: set[tuple[int, str, str, tuple[int, int, int, int] | None]] = set()
        self.synapse_paths: dict[Any, Any] = {}  # the way to each draw of a synapse
        self.silent = False
        self.assigned: set[str] = set()  # the carried States assigned so far
        self.kept: dict[str, Any] = {}  # the carried States when the method ends

    def run(self, parameters: Sequence[str] = ()) -> Call:
        """Run the method and check its duties at the end. ``parameters`` : those that a written
        backward must push to."""
        vars(self.neuron)["_host"] = self
        with listening(self.compared):
            self.method(self.neuron, self.messages)
        own = vars(self.neuron)
        self.kept = {name: own[name] for name in own["_carried"]}
        for kind, made, word, value, of in (
            ("forward", self.fed, "feedforward", "value", "output"),
            ("backward", self.delta, "backpropagate", "delta", "delta"),
        ):
            if self.kind == kind and made is None:
                raise user_text.error_at(
                    self.method,
                    f"{self.name} never called self.{word}(...), so the neuron has no {of}. End "
                    f"{kind} with self.{word}({value}), on every path",
                )
        for weight, pushed in self.pushed.items():
            reached = {m._of_input for m in self.items if id(m) in pushed}
            if len(pushed) != sum(m._of_input in reached for m in self.items):
                raise user_text.error_at(self.method, self.count(weight))
        for name in parameters:
            if name not in self.pushed_to:
                raise user_text.error_at(
                    self.method,
                    f"{self.name} does not push the gradient of its Parameter {name!r}; call "
                    f'self.push(gradient, to="{name}") once on every path, outside the loop',
                )
        return self

    @property
    def made(self) -> list[Any]:
        """All that a forward has made: what it fed forward, why, its States, traces and pushes."""
        own = vars(self.neuron)
        found = [self.fed, *self.conditions, *(own[name] for name in own["_states"])]
        for message in self.items:
            found += [vars(message)[name] for name in vars(message)["_traces"]]
        return found + [each for pushed in self.pushed.values() for each in pushed.values()]

    def compared(self, outcome: bool, operands: tuple[Any, ...]) -> bool:
        """Record a comparison: it may decide the value that is fed forward."""
        if self.fed is None:
            self.conditions.extend(operands)
            self.tests.append(Test.of(operands))
        return outcome

    # --- the neuron's words

    def feedforward(self, neuron: Neuron, value: Any) -> None:
        self._belongs("feedforward", "forward", self.fed)
        self.fed = self._number(value, "self.feedforward")
        vars(neuron)["output"] = self.fed
        self.silent = (
            self.is_constant_0(value) and not self.read and any(test.batch for test in self.tests)
        )

    @staticmethod
    def is_constant_0(value: Any) -> bool:
        """Whether a value is 0, and made of constants alone."""
        return number(value) == 0.0 and all(
            not made.varies and (made.args or made.op == "number") for made in below(value)
        )

    def backpropagate(self, neuron: Neuron, delta: Any) -> None:
        self._belongs("backpropagate", "backward", self.delta)
        self.delta = self._number(delta, "self.backpropagate")

    def push(self, neuron: Neuron, gradient: Any, to: str | None) -> None:
        gradient = self._number(gradient, "self.push")
        message = self.current[-1] if self.current else None
        has = () if message is None else message._weights
        if to is not None and to not in has:
            self._push_to(to, gradient, message)
            return
        if message is None:
            raise user_text.error(f"push outside the loop over messages: {self.count(more=1)}")
        if message._no_push:
            raise user_text.error(message._no_push)
        if to is None and len(has) > 1:
            named = " or ".join(f'to="{name}"' for name in has)
            raise user_text.error(refusals.which_weight(named))
        pushed = self.pushed.setdefault(
            to or (has[0] if self.kind == "forward" and has else ""), {}
        )
        if id(message) in pushed:
            raise user_text.error(refusals.PUSHED_TWICE)
        pushed[id(message)] = gradient

    def _push_to(self, to: str, gradient: Any, message: Message | None) -> None:
        cls = type(self.neuron)
        names = vars(self.neuron)["_parameters"]
        if to not in names:
            if message is None and to in vars(self.neuron)["_weights"]:
                raise user_text.error(refusals.pushed_outside(to))
            if message is not None and message._weights != (WEIGHT,):
                raise user_text.error(
                    f"there is no Weight or Parameter {to!r}; weights of this message: "
                    f"{', '.join(message._weights)}; Parameters: {', '.join(names) or 'none'}"
                )
            known = ", ".join(names) or "none"
            raise user_text.error(
                f"{cls.__name__} has no Parameter {to!r}. "
                f"{suggest(str(to), names, did='Did')}Parameters: {known}"
            )
        if self.kind == "forward":
            raise user_text.error(refusals.pushed_forward(to))
        if self.current:
            raise user_text.error(refusals.pushed_in_loop(to))
        if to in self.pushed_to:
            raise user_text.error(refusals.pushed_again(to))
        self.pushed_to[to] = gradient

    def draw(self, neuron: Neuron, kind: str, args: tuple[Any, ...], per: str) -> Any:
        if per not in PERIODS:
            allowed = ", ".join(map(repr, PERIODS))
            raise user_text.error(f"per must be one of {allowed}, got {per!r}")
        args = tuple(self._number(a, f"self.{kind}") for a in args)
        _check_draw(kind, args)
        source = "normal" if kind == "normal" else "uniform"
        message = self.current[-1] if self.current else None
        whose = None if message is None else message._identity
        where = (random.site(user_text.draw_path(self.code)), source, per, whose)
        if where in self.sites:
            raise user_text.error(refusals.DRAWN_AGAIN)
        self.sites.add(where)
        moment = self.moment
        sample = moment.number_of(per)
        iteration = random.ONCE if per == "run" else moment.iteration
        if whose is None:
            op = "draw"
            found = drawn(
                source, moment.seed, neuron.layer_index, where[0], neuron.index, sample, iteration
            )
        else:
            op = "message_draw"
            found = drawn_for(source, moment.seed, where[0], whose, sample, iteration)
        varies, batch = per in OF_A_SAMPLE, per == "batch"
        if kind == "bernoulli":
            if isinstance(args[0], Traced):
                varies, batch = varies or args[0].varies, batch or args[0].batch
            return Traced(found < number(args[0]), op, varies=varies, batch=batch)
        random_number = Traced(found, op, varies=varies, batch=batch)
        if kind == "uniform":
            return args[0] + (args[1] - args[0]) * random_number
        return args[0] + args[1] * random_number

    def ask(
        self, neuron: Neuron, word: str, value: Any, over: str, running: str | None,
        others: Mapping[str, Never] = MappingProxyType({}),
    ) -> Any:  # fmt: skip
        """Answer a statistic of the layer or the batch, or end this run at the question. others :
        arguments that it does not have.
        """
        if others:
            raise user_text.error(refusals.no_word(word))
        value = self._number(value, f"self.{word}")
        if over not in STATISTICS or word not in STATISTICS[over]:
            raise user_text.error(refusals.no_statistic(word, over))
        if self.kind != "forward":
            raise user_text.error(refusals.asked_backward(word, over))
        if self.current:
            raise user_text.error(refusals.asked_in_loop(word, over))
        own = vars(neuron)
        if over == "channel" and not own["_positions"]:
            raise user_text.error(refusals.NO_CHANNELS)
        if running is not None and (over != "batch" or running not in own["_states"]):
            raise user_text.error(
                f"running={running!r}: the name of a State of {type(neuron).__name__}, with "
                'over="batch"'
            )
        if over == "batch" and not self.moment.training:
            if running is None:
                raise user_text.error(refusals.NO_BATCH)
            return own[running]
        found = self._answer(word, value, over)
        if running is not None:
            own[running] = RUNNING * own[running] + (1.0 - RUNNING) * found
        return found

    def _answer(self, word: str, value: Any, over: str) -> Any:
        asked = Question(word, over, value)
        self.asked_batch |= over == "batch"
        if self.answers is None:  # a walk along the paths of a class
            # Of what is equal for all samples the batch tells how many they are, and no more.
            is_equal = over == "batch" and not getattr(value, "varies", False)
            op = "counted" if is_equal else "asked"
            return Traced(number(value), op, (value,), variable=True, varies=True)
        if self.turn < len(self.answers):
            found = self.answers[self.turn]
            self.turn += 1
            if (found.word, found.over) != (word, over):
                raise user_text.error(f"self.{word} {NOT_BY_ALL}")
            return found.value
        raise QuestionAsked(asked)

    # --- helpers

    def _belongs(self, word: str, kind: str, before: Any) -> None:
        if self.kind != kind:
            raise user_text.error(refusals.wrong_method(word, kind, self.kind))
        if self.current:
            raise user_text.error(refusals.called_in_loop(word))
        if before is not None:
            raise user_text.error(refusals.called_twice(word))

    def _number(self, value: Any, what: str) -> Any:
        if not is_number(value):
            raise user_text.error(f"{what} takes a number, got {value!r}")
        return value

    def count(self, weight: str = "", more: int = 0) -> str:
        n = len(self.pushed.get(weight, ())) + more
        side = "incoming" if self.kind == "forward" else "outgoing"
        updates = f"{n} weight update{'s' * (n != 1)}"
        return (
            f"{self.name} pushed {updates} for {len(self.items)} {side} "
            f"synapse{'s' * (len(self.items) != 1)}. Call self.push(...) "
            f"once per message, inside the loop over messages"
        )


class Guard:
    """Mixed into a running neuron's class: undeclared names can be neither read nor written, and
    the error message says so."""

    def __getattr__(self, name: str) -> Any:
        cls = type(self)
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "output":
            raise user_text.error(refusals.NO_OUTPUT)
        if name == "activation":
            raise user_text.error("self.activation is not set")
        if name == "target":
            raise user_text.error(
                "self.target: only output neurons have one, in forward; the layer has a loss"
            )
        if name in vars(self)["_weights"] + vars(self)["_traces"]:
            kind = "Weight" if name in vars(self)["_weights"] else "SynapseState"
            raise user_text.error(
                f"self.{name} is a {kind}, of which each synapse has its own: read m.{name} of a "
                "message, inside the loop; for one number per neuron declare a horn.Parameter or a "
                "horn.State"
            )
        if name == "argmin":
            raise user_text.error(refusals.NO_ARGMIN)
        known = [k for c in cls.__mro__[:-1] for k in vars(c) if not k.startswith("_")]
        raise user_text.error(
            f"{cls.__name__} has no {name!r}. {suggest(name, [*known, *READABLE], did='Did')}"
            f"Declare it in the class: a constant ({name} = 1.0), horn.Parameter or horn.State"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        host = own.get("_host")
        if name in own["_states"] and host is not None:
            if host.current:
                raise user_text.error(refusals.state_in_loop(name))
            if not is_number(value):
                raise user_text.error(f"self.{name} is a State and holds a number, got {value!r}")
            if name in own["_carried"]:
                if name in host.assigned:
                    raise user_text.error(refusals.set_twice(name))
                host.assigned.add(name)
            own[name] = value
            return
        if name in own["_weights"] and name != WEIGHT:
            problem = refusals.weight_assigned(name)
        elif name in own["_parameters"]:
            problem = refusals.parameter_assigned(name)
        elif name in READABLE or name in DRAWS:
            word = "call self.feedforward(value)" if name == "output" else "it is read-only"
            problem = f"self.{name} cannot be assigned: {word}"
        else:
            problem = refusals.not_declared(name, type(self))
        raise user_text.error(problem)
