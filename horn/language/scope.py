"""The state of a symbolic run: the effects of its paths so far, and their conditions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from horn import ir
from horn.errors import CompileError
from horn.ir import Node, Op, const, leaf, select
from horn.ir.neuron_ir import Kind, NeuronContext
from horn.language.references import (
    ActivationRef,
    MessageRef,
    MessagesRef,
    MethodRef,
    SelfRef,
    Unset,
    Word,
    elements,
)
from horn.language.source import Source
from horn.neuron import MESSAGE_FIELDS, WEIGHT, Parameter, SynapseState, Weight, declared

NO_DICT = "keep each of its values as a constant of its own, or as an attribute of an object"
Path = tuple[tuple[Node, bool], ...]  # conditions and their truth, on the way to a statement


@dataclass(frozen=True)
class Exit:
    """A path that has returned: where ``condition`` has the truth ``holds``, and its frame.
    ``opposite`` : ``condition`` is the negation of the one written at ``node``.
    """

    condition: Node
    holds: bool
    frame: CallFrame
    node: ast.AST
    opposite: bool


@dataclass
class CallFrame:
    """The effects of one path through the code so far."""

    names: dict[str, Any]
    states: dict[str, Node] = field(default_factory=dict)
    traces: dict[str, Node] = field(default_factory=dict)  # the current values of SynapseStates
    fed: Node | Unset | None = None
    delta: Node | Unset | None = None
    pushed: dict[str, Node | Unset] = field(default_factory=dict)  # in this loop, by weight
    loop_push: dict[str, Node] = field(default_factory=dict)  # by finished loops
    parameters: dict[str, Node | Unset] = field(default_factory=dict)
    read: tuple[Path, ...] = ()
    returned: Any = None
    done: bool = False
    exits: list[Exit] = field(default_factory=list)  # the paths that have returned, earliest first

    def copy(self) -> CallFrame:
        return replace(
            self, exits=[], names=dict(self.names), states=dict(self.states),
            traces=dict(self.traces), parameters=dict(self.parameters), pushed=dict(self.pushed),
            loop_push=dict(self.loop_push),
        )  # fmt: skip


class Scope:
    """The place of a run in the text, and the values of its names.

    kind : of the text. context : None for a plain function.
    sources, call_sites : of the functions that are being run, the innermost last. rounds : of the
    loops over constants, likewise. n_calls, n_again : the calls of functions so far, and those by
    themselves. drawn : where each draw was made, its calls, place and rounds. asked : what the text
    asked about its layer.
    """

    def __init__(self, context: NeuronContext | None, kind: Kind) -> None:
        self.context, self.kind = context, kind
        self.frame = CallFrame({})
        self.sources: list[Source] = []
        self.call_sites: tuple[tuple[str, int, int], ...] = ()
        self.rounds: tuple[int, ...] = ()
        self.drawn: dict[tuple[Op, Any], tuple[Any, ...]] = {}
        self.n_calls = self.n_again = 0
        self.asked: set[str] = set()
        self.path: Path = ()
        self.in_loop = False  # over messages
        self.loop_depth = 0  # the number of calls around that loop
        self.push_place: ast.AST | None = None
        self.target_error: CompileError | None = None  # at the first read of self.target

    @property
    def source(self) -> Source:
        return self.sources[-1]

    def of_layer(self, fact: str) -> Any:
        """A fact that layers of the same class and kind, and programs of one layer, may not share:
        "training" or "layer_index". Who asks for it is read for each again.
        """
        self.asked.add(fact)
        return getattr(self.context, fact)

    def fail(self, node: ast.AST, problem: str) -> NoReturn:
        raise self.source.error(node, problem)

    def number(self, value: Any, node: ast.AST) -> Node:
        if isinstance(value, Node):
            return value
        if isinstance(value, Unset):
            self.fail(node, value.why)
        if isinstance(value, MessagesRef):
            self.fail(
                node,
                "messages can only be looped over: for m in messages, or sum(... for m "
                "in messages)",
            )
        if isinstance(value, MessageRef):
            self.fail(
                node,
                f"a message is not a number; read one of its fields: {', '.join(self.fields())}",
            )
        if value is None:
            what = "is None" if isinstance(node, (ast.Name, ast.Constant)) else "gives nothing"
            self.fail(node, f"{ast.unparse(node)!r} {what}; a number is needed here")
        said, remedy = ast.unparse(node), ""
        if isinstance(value, (Parameter, Weight)):
            kind = f"horn.{type(value).__name__}"
            self.fail(
                node,
                f"{said!r} is a {kind} that no class declares: write  {said} = {kind}(...)  in the "
                "class of the neuron",
            )
        if isinstance(value, str):
            remedy = f", but the text {value!r}"
        elif isinstance(value, type):
            remedy = f"; it is the class {value.__name__}: write {value.__name__}(...) there"
        elif isinstance(value, dict):
            remedy = f"; it is a dict: {NO_DICT}"
        elif isinstance(value, int):  # others are numbers
            remedy = (
                f" here: it is a whole number of {value.bit_length()} bits, more than a float "
                "holds, and a neuron computes with floats; write float(...) where it is set"
            )
        elif elements(value) is not None:
            kind = "an array" if hasattr(value, "shape") else f"a {type(value).__name__}"
            remedy = f"; it is {kind}: read an element of it, {said}[0], or loop over it"
        elif hasattr(value, "__float__"):
            kind = "n array without axes" if hasattr(value, "shape") else f" {type(value).__name__}"
            remedy = (
                f"; it is a{kind}, and a neuron computes with floats: write float(...) "
                "where it is set"
            )
        elif callable(value) or isinstance(value, (ActivationRef, MethodRef, Word)):
            whose = self.owned(said)
            remedy = f"; write {whose}" if whose else f"; call it: {said}(...)"
        self.fail(node, f"{said!r} is not a number{remedy}")

    def owned(self, name: str) -> str:
        """The attribute of the message, or of the neuron, that has a name which the text has alone;
        "" if neither has one, or the text has neither.
        """
        if self.context is None:
            return ""
        here = self.frame.names.items()
        message = next((k for k, value in here if isinstance(value, MessageRef)), "")
        if message and name in self.fields():
            return f"{message}.{name}"
        neuron = next((k for k, value in here if isinstance(value, SelfRef)), "")
        is_own = name[:2] != "__" and hasattr(self.context.cls, name)
        return f"{neuron}.{name}" if neuron and is_own else ""

    def condition(self, value: Any, node: ast.AST) -> Node:
        return ir.truth(self.number(value, node))

    def fields(self) -> tuple[str, ...]:
        """The fields of a message, its weights by their names."""
        own = () if self.context is None else self.context.weights(self.kind)
        found: list[str] = []
        for name in MESSAGE_FIELDS[self.kind]:
            found += own or (name,) if name == WEIGHT else (name,)
        return (*found, *self.synapse_states())

    def synapse_states(self) -> tuple[str, ...]:
        """The SynapseStates of the class."""
        return () if self.context is None else tuple(declared(self.context.cls, SynapseState))

    def branch(
        self,
        c: Node,
        if_true: Callable[[], Any],
        if_false: Callable[[], Any],
        node: ast.AST,
        opposite: bool = False,
    ) -> tuple[Any, Any]:
        """Run both sides of a condition and merge their effects; return the value of the side where
        it is true, and that of the other. Of a constant one side alone runs, and has a value.

        opposite : ``c`` is the negation of the condition written at ``node``.
        """
        if c.op is Op.CONST:
            return (if_true(), None) if c.value else (None, if_false())
        if c.op is Op.NOT:  # one form of each condition, so that paths can be compared
            when_false, when_true = self.branch(c.args[0], if_false, if_true, node, not opposite)
            return when_true, when_false
        before, path = self.frame, self.path
        self.frame, self.path = before.copy(), (*path, (c, True))
        when_true = if_true()
        yes = self.joined()
        self.frame, self.path = before.copy(), (*path, (c, False))
        when_false = if_false()
        no = self.joined()
        self.frame, self.path = before, path
        # The statements that follow run once: for the paths that have not returned.
        if yes.done is not no.done:
            gone, self.frame = (yes, no) if yes.done else (no, yes)
            left = [Exit(c, yes.done, gone, node, opposite), *self.frame.exits]
        else:
            left = [_within(c, True, x) for x in yes.exits]
            left += [_within(c, False, x) for x in no.exits]
            self.merge(c, yes, no, node, opposite)
        self.frame.exits = [*before.exits, *left]
        self.path = (*path, *((x.condition, not x.holds) for x in left))
        return when_true, when_false

    def joined(self) -> CallFrame:
        """The frame; after a return with its other exits merged into it."""
        if self.frame.done:
            self.join()
        return self.frame

    def join(self) -> None:
        """Merge the frames of paths that have returned into the current frame, the latest first."""
        exits, self.frame.exits = self.frame.exits, []
        for x in reversed(exits):
            live, self.frame = self.frame, self.frame.copy()
            sides = (x.frame, live) if x.holds else (live, x.frame)
            self.merge(x.condition, *sides, x.node, x.opposite)

    def merge(self, c: Node, yes: CallFrame, no: CallFrame, node: ast.AST, opposite: bool) -> None:
        frame = self.frame
        test = getattr(node, "test", None)
        text = "the condition" if test is None else f"{ast.unparse(test)!r}"

        def both(a: Any, b: Any, what: str, remedy: str = "") -> Any:
            if a is b:
                return a
            if isinstance(a, Node) and isinstance(b, Node):
                return select(c, a, b)
            first, second = elements(a), elements(b)
            if first is not None and second is not None:
                if len(first) == len(second):
                    pairs = zip(first, second, strict=True)
                    return tuple(both(x, y, what, remedy) for x, y in pairs)
                lengths = (len(second), len(first)) if opposite else (len(first), len(second))
                return Unset(other_length(text, *lengths))
            if type(a) is type(b) and not isinstance(a, Node) and a == b:
                return a
            for x, holds in ((a, not opposite), (b, opposite)):
                if isinstance(x, Unset):
                    return x
                if x is None:
                    return Unset(f"{what} where {text} is {'true' if holds else 'false'}{remedy}")
            return Unset(f"{what} the same kind of thing on both sides of {text}{remedy}")

        for name in dict.fromkeys((*yes.names, *no.names)):
            frame.names[name] = both(
                yes.names.get(name),
                no.names.get(name),
                f"{name!r} is not set",
                "; set it before the if, or on both sides",
            )
        for name in dict.fromkeys((*yes.states, *no.states)):
            old = leaf(Op.STATE, "bo", name)
            frame.states[name] = select(c, yes.states.get(name, old), no.states.get(name, old))
        for name in dict.fromkeys((*yes.traces, *no.traces)):
            old = leaf(Op.TRACE, "oi", name)
            frame.traces[name] = select(c, yes.traces.get(name, old), no.traces.get(name, old))
        frame.fed = both(yes.fed, no.fed, "self.feedforward(...) is not called")
        frame.delta = both(yes.delta, no.delta, "self.backpropagate(...) is not called")
        for name in dict.fromkeys((*yes.pushed, *no.pushed)):
            frame.pushed[name] = both(
                yes.pushed.get(name), no.pushed.get(name), f"{push_of(name)} is not called"
            )
        for name in dict.fromkeys((*yes.loop_push, *no.loop_push)):
            # a path that reads no messages pushes nothing
            a, b = (f.loop_push.get(name, const(0.0)) for f in (yes, no))
            frame.loop_push[name] = a if a is b else select(c, a, b)
        for name in dict.fromkeys((*yes.parameters, *no.parameters)):
            frame.parameters[name] = both(
                yes.parameters.get(name),
                no.parameters.get(name),
                f'self.push(..., to="{name}") is not called',
            )
        frame.read = tuple(dict.fromkeys((*yes.read, *no.read)))
        frame.done = yes.done and no.done
        frame.returned = None
        if yes.done or no.done:
            what = f"{self.source.where} returns nothing"
            frame.returned = both(
                yes.returned, no.returned, what, "; return a number on every path"
            )


def other_length(text: str, n_if_true: int, n_if_false: int) -> str:
    """The complaint about a tuple whose length a condition decides."""
    return (
        f"this has {n_if_true} values where {text} is true and {n_if_false} where it is false; "
        "give it the same number of values on both sides"
    )


def push_of(weight: str) -> str:
    """The call of push to a weight, as the user writes it."""
    return f'self.push(..., to="{weight}")' if weight not in ("", WEIGHT) else "self.push(...)"


def _within(c: Node, holds: bool, x: Exit) -> Exit:
    """An exit inside one side of a condition, as an exit of the whole branch."""
    sides = [n if side else ir.make(Op.NOT, n) for n, side in ((c, holds), (x.condition, x.holds))]
    return Exit(ir.make(Op.AND, *sides), True, x.frame, x.node, x.opposite ^ (not x.holds))
