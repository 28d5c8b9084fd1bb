"""From the source of one neuron to IR: the methods are run once, symbolically.

``if`` becomes a select of what the two branches leave behind; a loop over messages is run once with a symbolic message, and every
variable that it carries from message to message must turn out to be a monoid (sum, product, max, min, any, all): that proves that
the order of messages cannot matter. What is not understood is a CompileError at the user's own line.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import linecache
import math as python_math
import textwrap
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn

from horn import math as horn_math
from horn.activations import Activation
from horn.compiler import ir
from horn.compiler.ir import Node, Op, const, leaf, reduce, select
from horn.errors import CompileError
from horn.neuron import DRAWS, MESSAGE_FIELDS, PERIODS, READABLE, Neuron, Parameter, State
from horn.random import site

Path = tuple[tuple[Node, bool], ...]  # conditions and their truth, on the way to a statement

_FUNCTIONS: dict[Any, str] = {
    getattr(horn_math, name): name
    for name in horn_math.OPS
    if hasattr(horn_math, name) and inspect.isfunction(getattr(horn_math, name))
}
_FUNCTIONS |= {horn_math.abs_: "abs", horn_math.pow_: "pow"}
_FUNCTIONS |= {
    getattr(python_math, name): name
    for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "floor", "log1p", "expm1", "pow")
}
_FUNCTIONS[python_math.fabs] = "abs"
_BINARY = {ast.Add: Op.ADD, ast.Sub: Op.SUB, ast.Mult: Op.MUL, ast.Div: Op.DIV, ast.Pow: Op.POW}
_COMPARE = {
    ast.Lt: Op.LT, ast.LtE: Op.LE, ast.Gt: Op.GT, ast.GtE: Op.GE, ast.Eq: Op.EQ, ast.NotEq: Op.NE,
}  # fmt: skip


@dataclass(frozen=True)
class ForwardIR:
    """What a neuron's forward does. ``output`` (b, o); ``push`` (b, o, i) or None; ``sits_out`` (o): who left the batch, or None."""

    output: Node
    states: dict[str, Node]
    push: Node | None
    sits_out: Node | None


@dataclass(frozen=True)
class BackwardIR:
    """What a written backward does: ``delta`` (b, o), ``push`` (b, o, i), ``parameters`` the gradient (b, o) of each."""

    delta: Node
    push: Node | None
    parameters: dict[str, Node]
    states: dict[str, Node]
    uses_delta: bool
    place: CompileError  # where the class writes it, for later complaints


@dataclass(frozen=True)
class Context:
    """The neuron's fixed surroundings."""

    cls: type[Neuron]
    activation: Activation
    layer_index: int
    training: bool


# --- where the user's text is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One function's syntax tree and how to point into its file."""

    function: types.FunctionType
    tree: ast.FunctionDef | ast.Lambda
    file: str
    first_line: int
    indent: int
    where: str

    def error(self, node: ast.AST, problem: str) -> CompileError:
        line = self.first_line + getattr(node, "lineno", 1) - 1
        text = linecache.getline(self.file, line).rstrip("\n")
        start = getattr(node, "col_offset", 0) + self.indent
        end = (getattr(node, "end_col_offset", 0) or 0) + self.indent
        if getattr(node, "end_lineno", None) != getattr(node, "lineno", None):
            end = len(text)
        return CompileError(
            problem, file=self.file, line=line, column=start, end_column=end, text=text, where=self.where
        )

    def place(self, node: ast.AST) -> tuple[str, int, int]:
        """Where a call stands, for ``horn.random.site``."""
        name = getattr(self.tree, "name", "<lambda>")
        return name, node.lineno - 1, node.col_offset + self.indent  # type: ignore[attr-defined]


@lru_cache(maxsize=512)
def source_of(function: types.FunctionType) -> Source:
    """The syntax tree of a function. Raises CompileError where the text cannot be had."""
    name = function.__qualname__.replace("<locals>.", "")
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise CompileError(
            f"the source of {name} cannot be read ({function.__code__.co_filename}); horn compiles the text of a neuron: "
            f"write it in a file"
        ) from None
    text = "".join(lines)
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = ast.parse(textwrap.dedent(text)).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise CompileError(
            f"{name} is not a plain function; write it with def", file=file, line=first, where=name,
            text=lines[0].rstrip("\n"),
        )  # fmt: skip
    return Source(function, tree, file, first, indent, name)


def suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""


# --- values that are not numbers ----------------------------------------------------------------------------------------------


class SelfRef:
    """``self``."""


class Messages:
    """The messages, not yet looped over."""


@dataclass(frozen=True)
class Message:
    """The message of the loop being read."""


@dataclass(frozen=True)
class Method:
    """A method of the neuron, bound."""

    function: types.FunctionType


@dataclass(frozen=True)
class Word:
    """One of the neuron's words (feedforward, push, ...), or a method of a message, called next."""

    name: str
    of: str = "self"


@dataclass(frozen=True)
class ActivationRef:
    """``self.activation``, or a part of it."""

    part: str = "f"


@dataclass(frozen=True)
class Aggregate:
    """``output.sum`` in an interlayer function."""

    node: Node
    name: str


@dataclass(frozen=True)
class Unset:
    """A variable without a usable value, and why."""

    why: str


@dataclass
class Frame:
    """What one path through the code has done so far."""

    names: dict[str, Any]
    states: dict[str, Node] = field(default_factory=dict)
    fed: Node | Unset | None = None
    delta: Node | Unset | None = None
    pushed: Node | Unset | None = None  # in this loop
    loop_push: Node | None = None  # by a finished loop
    parameters: dict[str, Node | Unset] = field(default_factory=dict)
    read: tuple[Path, ...] = ()
    returned: Any = None
    done: bool = False

    def copy(self) -> Frame:
        return Frame(dict(self.names), dict(self.states), self.fed, self.delta, self.pushed,
                     self.loop_push, dict(self.parameters), self.read, self.returned, self.done)  # fmt: skip


class Run:
    """One symbolic run of forward, backward, or a plain function."""

    def __init__(self, context: Context | None, kind: str) -> None:
        self.context, self.kind = context, kind
        self.frame = Frame({})
        self.sources: list[Source] = []
        self.path: Path = ()
        self.calls: tuple[tuple[str, int, int], ...] = ()
        self.in_loop = False
        self.loop_depth = 0  # how many calls deep the loop over messages stands
        self.uses_delta = False
        self.push_place: ast.AST | None = None

    # -- errors

    @property
    def source(self) -> Source:
        return self.sources[-1]

    def fail(self, node: ast.AST, problem: str) -> NoReturn:
        raise self.source.error(node, problem)

    # -- functions

    def call(self, function: types.FunctionType, args: list[Any], node: ast.AST | None) -> Any:
        """Run a function's body in place of the call."""
        if len(self.sources) > 40:
            assert node is not None
            self.fail(node, f"{function.__name__} calls itself; the neuron language has no recursion")
        if function.__name__ == "<lambda>":
            return self.trace(function, args, node)
        try:
            source = source_of(function)
        except CompileError as error:
            if node is None:
                raise
            self.fail(node, str(error))
        tree = source.tree
        assert isinstance(tree, ast.FunctionDef)
        names = self.bind(source, args, node)
        calls = self.calls
        if node is not None:
            self.calls = (*calls, self.source.place(node))
        outer = self.frame
        self.sources.append(source)
        self.frame = outer.copy()
        self.frame.names, self.frame.returned, self.frame.done = names, None, False
        self.block(tree.body)
        inner, self.frame = self.frame, outer
        result = inner.returned
        for what in ("states", "fed", "delta", "pushed", "loop_push", "parameters", "read"):
            setattr(outer, what, getattr(inner, what))
        self.sources.pop()
        self.calls = calls
        return result

    def bind(self, source: Source, args: list[Any], node: ast.AST | None) -> dict[str, Any]:
        tree = source.tree
        a = tree.args
        if a.vararg or a.kwarg or a.kwonlyargs:
            raise source.error(tree, "helper functions of a neuron take plain arguments only")
        names = [x.arg for x in (*a.posonlyargs, *a.args)]
        defaults = source.function.__defaults__ or ()
        if not len(names) - len(defaults) <= len(args) <= len(names):
            problem = f"{source.where} takes {len(names)} arguments, got {len(args)}"
            raise source.error(tree, problem) if node is None else self.source.error(node, problem)
        missing = [self.wrap(d) for d in defaults[len(defaults) - (len(names) - len(args)) :]]
        return dict(zip(names, [*args, *missing][: len(names)], strict=True))

    def trace(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """A lambda: its text is hard to find, so it is called with nodes."""
        try:
            return self.wrap(function(*args))
        except CompileError as error:
            if node is None or error.file:
                raise
            self.fail(node, error.problem)

    @staticmethod
    def wrap(value: Any) -> Any:
        """A Python value as the run sees it: numbers become constants."""
        if isinstance(value, bool) or (
            not isinstance(value, (str, Node)) and hasattr(value, "__float__") and not hasattr(value, "shape")
        ):
            return const(float(value))
        if hasattr(value, "shape") and getattr(value, "shape", None) == ():
            return const(float(value))
        return value

    # -- statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        for position, statement in enumerate(body):
            if self.frame.done:
                return
            if isinstance(statement, ast.If):
                condition = self.expression(statement.test)
                c = self.condition(condition, statement.test)
                rest = body[position + 1 :]
                if _leaves(statement):  # a branch that returns: the rest belongs to the other
                    self.branch(
                        c, lambda s=statement, r=rest: self.block([*s.body, *r]),
                        lambda s=statement, r=rest: self.block([*s.orelse, *r]), statement,
                    )  # fmt: skip
                    return
                self.branch(
                    c, lambda s=statement: self.block(s.body), lambda s=statement: self.block(s.orelse), statement
                )  # fmt: skip
            else:
                self.statement(statement)

    def branch(self, c: Node, then: Callable[[], Any], other: Callable[[], Any], node: ast.AST) -> Any:
        """Run both sides of a condition and merge what they leave behind; their values too."""
        if c.op is Op.CONST:
            return then() if c.value else other()
        if c.op is Op.NOT:  # one form of each condition, so that paths can be compared
            result = self.branch(c.args[0], other, then, node)
            return result[::-1] if isinstance(result, tuple) else result
        before, path = self.frame, self.path
        self.frame, self.path = before.copy(), (*path, (c, True))
        a = then()
        yes = self.frame
        self.frame, self.path = before.copy(), (*path, (c, False))
        b = other()
        no = self.frame
        self.frame, self.path = before, path
        self.merge(c, yes, no, node)
        return a, b

    def merge(self, c: Node, yes: Frame, no: Frame, node: ast.AST) -> None:
        frame = self.frame
        text = self.condition_text(node)

        def both(a: Any, b: Any, what: str) -> Any:
            if a is b:
                return a
            if isinstance(a, Node) and isinstance(b, Node):
                return select(c, a, b)
            if type(a) is type(b) and not isinstance(a, Node) and a == b:
                return a
            for x, side in ((a, "true"), (b, "false")):
                if isinstance(x, Unset):
                    return x
                if x is None:
                    return Unset(f"{what} where {text} is {side}")
            return Unset(f"{what} the same kind of thing on both sides of {text}")

        for name in {*yes.names, *no.names}:
            frame.names[name] = both(yes.names.get(name), no.names.get(name), f"{name!r} is not set")
        for name in {*yes.states, *no.states}:
            old = leaf(Op.STATE, "bo", name)
            frame.states[name] = select(c, yes.states.get(name, old), no.states.get(name, old))
        frame.fed = both(yes.fed, no.fed, "self.feedforward(...) is not called")
        frame.delta = both(yes.delta, no.delta, "self.backpropagate(...) is not called")
        frame.pushed = both(yes.pushed, no.pushed, "self.push(...) is not called")
        if yes.loop_push is not no.loop_push:  # a path that reads no messages pushes nothing
            sides = (const(0.0) if f.loop_push is None else f.loop_push for f in (yes, no))
            frame.loop_push = select(c, *sides)
        for name in {*yes.parameters, *no.parameters}:
            frame.parameters[name] = both(
                yes.parameters.get(name), no.parameters.get(name), f'self.push(..., to="{name}") is not called'
            )
        frame.read = tuple(dict.fromkeys((*yes.read, *no.read)))
        frame.done = yes.done and no.done
        frame.returned = both(yes.returned, no.returned, "nothing is returned") if yes.done or no.done else None  # fmt: skip

    def condition_text(self, node: ast.AST) -> str:
        test = getattr(node, "test", None)
        return f"{ast.unparse(test)!r}" if test is not None else "the condition"

    def statement(self, node: ast.stmt) -> None:
        frame = self.frame
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return  # a docstring
            self.expression(node.value)
        elif isinstance(node, ast.Assign):
            value = self.expression(node.value)
            for target in node.targets:
                self.assign(target, value, node)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.expression(node.value), node)
        elif isinstance(node, ast.AugAssign):
            current = self.expression(_as_load(node.target))
            if type(node.op) not in _BINARY:
                self.fail(node, f"{ast.unparse(node)!r}: this operator is not in the neuron language (+ - * / ** are)")  # fmt: skip
            value = ir.make(_BINARY[type(node.op)], self.number(current, node.target), self.number(self.expression(node.value), node.value))  # fmt: skip
            self.assign(node.target, value, node)
        elif isinstance(node, ast.For):
            self.loop(node)
        elif isinstance(node, ast.Return):
            frame.returned = self.expression(node.value) if node.value is not None else None
            frame.done = True
            if self.in_loop and len(self.sources) == self.loop_depth:
                self.fail(node, "return inside the loop over messages: what is computed would depend on the order of messages; use an if instead")  # fmt: skip
        elif isinstance(node, ast.Pass):
            pass
        elif isinstance(node, (ast.Break, ast.Continue)):
            word = "break" if isinstance(node, ast.Break) else "continue"
            why = "the result would depend on the order of messages" if word == "break" else "it is not in the neuron language"  # fmt: skip
            self.fail(node, f"{word} in the loop over messages: {why}; put the rest of the loop under an if")
        elif isinstance(node, ast.While):
            self.fail(node, "while is not in the neuron language: a neuron loops over its messages (for m in messages)")
        else:
            self.fail(node, f"{type(node).__name__.lower()} is not in the neuron language (assignments, if, for m in messages and calls are)")  # fmt: skip

    def assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                self.fail(node, "this call returns nothing")
            self.frame.names[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(self.expression(target.value), SelfRef):
            self.assign_attribute(target, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for t, v in zip(target.elts, value, strict=True):
                self.assign(t, v, node)
        else:
            self.fail(target, f"{ast.unparse(target)!r} cannot be assigned in a neuron; assign a variable or a State of self")  # fmt: skip

    def assign_attribute(self, target: ast.Attribute, value: Any) -> None:
        assert self.context is not None
        name, cls = target.attr, self.context.cls
        found = inspect.getattr_static(cls, name, None)
        if type(found) is State:
            if self.in_loop:
                self.fail(target, f"self.{name} is set inside the loop over messages, so its value depends on their order; sum up in a variable and set it after the loop")  # fmt: skip
            self.frame.states[name] = self.number(value, target)
        elif type(found) is Parameter:
            self.fail(target, f"self.{name} is a Parameter: it is learned from push(gradient, to={name!r}), not assigned; for a value that you set yourself declare  {name} = horn.State(0.0)")  # fmt: skip
        elif name in READABLE:
            word = "call self.feedforward(value)" if name == "output" else "it is read-only"
            self.fail(target, f"self.{name} cannot be assigned: {word}")
        else:
            self.fail(target, f"self.{name} is not declared; a value that a neuron keeps is a State: write  {name} = horn.State(0.0)  in {cls.__name__}, or use a plain variable")  # fmt: skip

    # -- the loop over messages

    def loop(self, node: ast.For) -> None:
        if self.in_loop:
            self.fail(node, "a loop inside the loop over messages is not in the neuron language: a neuron sees one message at a time")  # fmt: skip
        iterated = self.expression(node.iter)
        if not isinstance(iterated, Messages):
            self.fail(node.iter, f"a neuron loops over its messages (for m in messages), not over {ast.unparse(node.iter)!r}")
        if node.orelse:
            self.fail(node.orelse[0], "else after a loop is not in the neuron language")
        if not isinstance(node.target, ast.Name):
            self.fail(node.target, "the loop variable is one name: for m in messages")
        places = _assigned(node.body)
        frame = self.frame
        frame.read = (*frame.read, self.path)
        before = dict(frame.names)
        carried = {name for name in places if isinstance(before.get(name), Node)}
        for name in places:
            if name in carried:
                # The axes of a carried value are not known yet: it may be anything that the loop makes of it.
                frame.names[name] = leaf(Op.CARRY, ir.union("boi"), name)
            else:
                frame.names.pop(name, None)
        frame.names[node.target.id] = Message()
        outer_push, frame.pushed = frame.pushed, None
        self.in_loop, self.loop_depth = True, len(self.sources)
        self.block(node.body)
        self.in_loop = False
        frame = self.frame
        if isinstance(frame.pushed, Unset):
            self.fail(self.push_place or node, f"{frame.pushed.why}; push exactly once per message on every path of the loop")  # fmt: skip
        if frame.pushed is not None:
            if frame.loop_push is not None:
                self.fail(self.push_place or node, "push is called in two loops; push exactly once per message")
            self.no_carry(frame.pushed, self.push_place or node, "push")
            frame.loop_push = frame.pushed
        frame.pushed = outer_push
        after = dict(frame.names)
        frame.names.pop(node.target.id, None)
        for name, place in places.items():
            if name not in carried:
                frame.names[name] = Unset(
                    f"{name!r} holds what the last message left, which depends on the order of messages; "
                    f"start it before the loop and add to it, or use it inside the loop only"
                )
                continue
            value = after[name]
            if not isinstance(value, Node):
                self.fail(place, f"{name!r} is not a number after the loop")
            frame.names[name] = self.carried(name, before[name], value, place)

    def carried(self, name: str, start: Node, value: Node, place: ast.AST) -> Node:
        """What a variable holds after the loop, if its message-by-message change is a monoid."""
        me = leaf(Op.CARRY, "boi", name)
        if value is me:
            return start
        for monoid in ("sum", "prod", "max", "min", "any", "all"):
            element = peel(value, me, monoid)
            if element is not None and not ir.contains(element, Op.CARRY):
                return ir.combine(monoid, start, reduce(monoid, "i", element))
        others = sorted({n.value for n in ir.walk(value) if n.op is Op.CARRY} - {name})
        also = f" (it also uses {', '.join(map(repr, others))}, which changes from message to message)" if others else ""
        self.fail(place, f"{name!r} depends on the order of messages{also}: from one message to the next a variable may be summed (+=), multiplied (*=), or "
                         f"taken the max, min, any or all of, and nothing else")  # fmt: skip

    def no_carry(self, value: Node, node: ast.AST, what: str) -> None:
        for n in ir.walk(value):
            if n.op is Op.CARRY:
                self.fail(node, f"{what} uses {n.value!r} while it is still being summed up, so it depends on the order of messages; use it after the loop, in a second loop")  # fmt: skip

    def generator(self, node: ast.GeneratorExp | ast.ListComp, monoid: str, identity: float) -> Node:
        """The reduction of a generator over messages."""
        if len(node.generators) != 1:
            self.fail(node, "one loop over messages at a time: sum(... for m in messages)")
        comp = node.generators[0]
        if self.in_loop:
            self.fail(node, "a loop inside the loop over messages is not in the neuron language: compute it before, in a loop of its own")  # fmt: skip
        if not isinstance(self.expression(comp.iter), Messages):
            self.fail(comp.iter, f"a neuron loops over its messages, not over {ast.unparse(comp.iter)!r}")
        if not isinstance(comp.target, ast.Name):
            self.fail(comp.target, "the loop variable is one name: for m in messages")
        self.frame.read = (*self.frame.read, self.path)
        saved = self.frame.names.get(comp.target.id)
        self.frame.names[comp.target.id] = Message()
        self.in_loop, self.loop_depth = True, len(self.sources)
        keep: Node | None = None
        for test in comp.ifs:
            c = self.condition(self.expression(test), test)
            keep = c if keep is None else ir.make(Op.AND, keep, c)
        element = self.number(self.expression(node.elt), node.elt)
        if monoid in ("any", "all"):
            element = ir.truth(element)
        self.in_loop = False
        self.frame.names.pop(comp.target.id)
        if saved is not None:
            self.frame.names[comp.target.id] = saved
        if keep is not None:
            element = select(keep, element, const(identity))
        return reduce(monoid, "i", element)

    # -- expressions

    def number(self, value: Any, node: ast.AST) -> Node:
        if isinstance(value, Node):
            return value
        if isinstance(value, Unset):
            self.fail(node, value.why)
        if isinstance(value, Messages):
            self.fail(node, "messages can only be looped over: for m in messages, or sum(... for m in messages)")
        if isinstance(value, Message):
            self.fail(node, f"a message is not a number; read one of its fields: {', '.join(self.fields())}")
        if value is None:
            self.fail(node, f"{ast.unparse(node)!r} gives nothing; a number is needed here")
        self.fail(node, f"{ast.unparse(node)!r} is not a number")

    def condition(self, value: Any, node: ast.AST) -> Node:
        return ir.truth(self.number(value, node))

    def fields(self) -> tuple[str, ...]:
        return MESSAGE_FIELDS[self.kind]

    def expression(self, node: ast.expr) -> Any:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            self.fail(node, f"{ast.unparse(node)!r} is not in the neuron language (numbers, + - * / **, comparisons, if-else, and the functions of horn.math are)")  # fmt: skip
        return method(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self.wrap(node.value)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self.frame.names:
            value = self.frame.names[node.id]
            if isinstance(value, Unset):
                self.fail(node, value.why)
            if value is not None:
                return value
        function = self.source.function
        closure = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
        for space in (closure, function.__globals__, vars(builtins)):
            if node.id in space:
                return self.wrap(space[node.id])
        known = [*self.frame.names, *function.__globals__]
        hint = suggest(node.id, [k for k in known if not k.startswith("__")])
        self.fail(node, f"{node.id!r} is not defined here; {hint}set it before it is used".replace("; set", ", set") if not hint else f"{node.id!r} is not defined here; {hint}".rstrip())  # fmt: skip

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value, name = self.expression(node.value), node.attr
        if isinstance(value, SelfRef):
            return self.self_attribute(node, name)
        if isinstance(value, Message):
            return self.field(node, name)
        if isinstance(value, ActivationRef):
            if name in ("derivative", "derivative_at"):
                return ActivationRef(name)
            self.fail(node, f"self.activation has no {name!r}; {suggest(name, ['derivative', 'derivative_at'])}it offers derivative(y) and derivative_at(z)")  # fmt: skip
        if isinstance(value, Messages):
            self.fail(node, f"messages has no {name!r}: loop over it (for m in messages), or ask len(messages)")
        if isinstance(value, Node):
            if self.context is None and name in ("sum", "max", "min", "mean"):
                return Aggregate(value, name)
            self.fail(node, f"a number has no {name!r}")
        if isinstance(value, (types.ModuleType, type)) or hasattr(value, "__dict__"):
            try:
                return self.wrap(getattr(value, name))
            except AttributeError:
                self.fail(node, f"{ast.unparse(node.value)} has no {name!r}; {suggest(name, dir(value))}")
        self.fail(node, f"{ast.unparse(node)!r} is not in the neuron language")

    def self_attribute(self, node: ast.Attribute, name: str) -> Any:
        assert self.context is not None
        context, cls = self.context, self.context.cls
        if name == "activation":
            return ActivationRef()
        if name == "output":
            if self.kind == "backward":
                return leaf(Op.OUTPUT, "bo")
            if isinstance(self.frame.fed, Node):
                return self.frame.fed
            self.fail(node, "self.output is read before self.feedforward(...) has set it")
        if name == "training":
            return const(float(context.training))
        if name in ("iteration", "learning_rate"):
            return ir.Scalar(name)
        if name == "layer_index":
            return const(float(context.layer_index))
        if name == "index":
            return leaf(Op.INDEX, "o")
        if name in ("feedforward", "backpropagate", "push", *DRAWS):
            return Word(name)
        found = inspect.getattr_static(cls, name, None)
        if type(found) is State:
            return self.frame.states.get(name, leaf(Op.STATE, "bo", name))
        if type(found) is Parameter:
            return leaf(Op.PARAM, "o", name)
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, types.FunctionType):
            return Method(found)
        if found is not None:
            return self.wrap(getattr(cls, name))
        known = [k for c in cls.__mro__[:-1] for k in vars(c) if not k.startswith("_")] + [*READABLE]
        self.fail(node, f"{cls.__name__} has no {name!r}; {suggest(name, known)}declare it in the class: a constant ({name} = 1.0), horn.Parameter or horn.State")  # fmt: skip

    def field(self, node: ast.Attribute, name: str) -> Any:
        fields = self.fields()
        if name in ("normal", "uniform"):
            return Word(name, "message")
        if name not in fields:
            if self.kind == "backward" and name == "input":
                self.fail(node, "in backward a message has no 'input': what this neuron sent is self.output. Fields: " + ", ".join(fields))  # fmt: skip
            if self.kind == "forward" and name in MESSAGE_FIELDS["backward"]:
                self.fail(node, f"in forward a message has no {name!r} yet: it comes in backward. Fields: {', '.join(fields)}")  # fmt: skip
            self.fail(node, f"message has no field {name!r}. {suggest(name, fields).capitalize()}Fields: {', '.join(fields)}".replace("Did you mean", "Did you mean"))  # fmt: skip
        if name == "input":
            return leaf(Op.INPUT, "bi")
        if name == "weight":
            return leaf(Op.WEIGHT, "oi")
        if name == "previous_update":
            return leaf(Op.PREVIOUS, "oi")
        if name == "gradient":
            return leaf(Op.GRADIENT, "boi")
        self.uses_delta = True
        return leaf(Op.DELTA, "bi")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        op = _BINARY.get(type(node.op))
        if op is None:
            self.fail(node, f"the operator in {ast.unparse(node)!r} is not in the neuron language (+ - * / ** are)")
        left = self.number(self.expression(node.left), node.left)
        return ir.make(op, left, self.number(self.expression(node.right), node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.number(self.expression(node.operand), node.operand)
        if isinstance(node.op, ast.USub):
            return ir.make(Op.NEG, value)
        if isinstance(node.op, ast.Not):
            return ir.make(Op.NOT, ir.truth(value))
        if isinstance(node.op, ast.UAdd):
            return value
        self.fail(node, "~ is not in the neuron language; use not")

    def visit_Compare(self, node: ast.Compare) -> Any:
        result: Node | None = None
        left, where = self.expression(node.left), node.left
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.expression(right_node)
            if not isinstance(left, Node) and not isinstance(right, Node) and isinstance(left, str):
                test = const(float(left == right if isinstance(op, ast.Eq) else left != right))
            else:
                if type(op) not in _COMPARE:
                    self.fail(node, f"{ast.unparse(node)!r}: 'in' and 'is' are not in the neuron language (< <= > >= == != are)")  # fmt: skip
                test = ir.make(_COMPARE[type(op)], self.number(left, where), self.number(right, right_node))
            result = test if result is None else ir.make(Op.AND, result, test)
            left, where = right, right_node
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        op = Op.AND if isinstance(node.op, ast.And) else Op.OR
        result: Node | None = None
        for part in node.values:
            value = self.number(self.expression(part), part)
            if value.op not in ir.BOOLEAN and not (value.op is Op.CONST):
                word = "and" if op is Op.AND else "or"
                if not ir.contains(value, Op.CARRY) and value.op is not Op.REDUCE:
                    self.fail(part, f"{word!r} joins conditions; {ast.unparse(part)!r} is a number: write {ast.unparse(part)} != 0")  # fmt: skip
            value = ir.truth(value)
            result = value if result is None else ir.make(op, result, value)
            if result.op is Op.CONST and bool(result.value) == (op is Op.OR):
                return result  # the rest is not evaluated, as in Python
        return result

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        c = self.condition(self.expression(node.test), node.test)
        if c.op is Op.CONST:
            return self.expression(node.body if c.value else node.orelse)
        a, b = self.branch(c, lambda: self.expression(node.body), lambda: self.expression(node.orelse), node)
        return select(c, self.number(a, node.body), self.number(b, node.orelse))

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.expression(e) for e in node.elts)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value = self.expression(node.value)
        if isinstance(value, Messages):
            self.fail(node, "a neuron sees one message at a time and in no fixed order; loop over them (for m in messages) instead of indexing")  # fmt: skip
        self.fail(node, f"{ast.unparse(node)!r}: indexing is not in the neuron language")

    # -- calls

    def visit_Call(self, node: ast.Call) -> Any:
        target = self.expression(node.func)
        if isinstance(target, Word):
            return self.word(target, node)
        if target in (sum, max, min, any, all, len, abs, float, bool, pow) if _hashable(target) else False:
            return self.builtin(target, node)
        if node.keywords:
            self.fail(node, "calls in a neuron take plain arguments")
        args = [self.expression(a) for a in node.args]
        if isinstance(target, ActivationRef):
            return self.activate(target, args, node)
        if isinstance(target, Activation):
            return self.call_any(target.f, [self.number(a, n) for a, n in zip(args, node.args, strict=True)], node)
        if isinstance(target, Method):
            return self.call(target.function, [SelfRef(), *args], node)
        if isinstance(target, Aggregate):
            if args:
                self.fail(node, f"output.{target.name}() takes no arguments")
            if target.name == "mean":
                return reduce("sum", "o", target.node) / ir.Scalar("layer_size")
            return reduce(target.name, "o", target.node)
        if _hashable(target) and target in _FUNCTIONS:
            return self.math(_FUNCTIONS[target], args, node)
        if isinstance(target, types.FunctionType):
            return self.call(target, args, node)
        known = ", ".join(sorted(n for n in horn_math.OPS))
        name = ast.unparse(node.func)
        self.fail(node.func, f"{name} is not in the neuron language (calls allowed: {known}, and your own functions).\nWrite it with those, or pass it as Activation(name, f, df).")  # fmt: skip

    def call_any(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """Call a built-in function of horn.math, a user's function, or anything callable with nodes."""
        if _hashable(function) and function in _FUNCTIONS:
            return self.math(_FUNCTIONS[function], args, node)
        if isinstance(function, types.FunctionType):
            return self.call(function, args, node)
        return self.trace(function, args, node)

    def math(self, name: str, args: list[Any], node: ast.AST | None) -> Node:
        if len(args) != horn_math.OPS[name]:
            assert node is not None
            self.fail(node, f"{name} takes {horn_math.OPS[name]} arguments, got {len(args)}")
        nodes = [self.number(a, node) if node is not None else a for a in args]
        if name == "where":
            return select(ir.truth(nodes[0]), nodes[1], nodes[2])
        return ir.make(Op(name), *nodes)

    def activate(self, ref: ActivationRef, args: list[Any], node: ast.Call) -> Node:
        assert self.context is not None
        activation = self.context.activation
        if len(args) != 1:
            self.fail(node, f"self.activation takes one number, got {len(args)}")
        arg = self.number(args[0], node.args[0])
        if ref.part == "derivative" and activation.df is None:
            self.fail(node, f"activation {activation.name!r} has no derivative of its output; use self.activation.derivative_at(z) with the summed input z")  # fmt: skip
        if ref.part == "derivative_at":
            return slope_at(activation, arg, self, node)
        function = activation.f if ref.part == "f" else activation.df
        assert function is not None
        return self.number(self.call_any(function, [arg], node), node)

    def builtin(self, target: Any, node: ast.Call) -> Any:
        name = target.__name__
        if name == "len":
            if len(node.args) == 1 and isinstance(self.expression(node.args[0]), Messages):
                return leaf(Op.COUNT, "o")
            self.fail(node, "len is for messages: len(messages)")
        first = node.args[0] if node.args else None
        if isinstance(first, (ast.GeneratorExp, ast.ListComp)) and name in ("sum", "max", "min", "any", "all"):
            default = [k for k in node.keywords if k.arg == "default"]
            if len(default) != len(node.keywords):
                self.fail(node, f"{name} over messages takes no other keywords than default")
            result = self.generator(first, name, ir.IDENTITY[name])
            if default:
                value = self.number(self.expression(default[0].value), default[0].value)
                empty = ir.make(Op.EQ, leaf(Op.COUNT, "o"), const(0.0))
                return select(empty, value, result)
            if name == "sum" and len(node.args) == 2:
                return ir.add(self.number(self.expression(node.args[1]), node.args[1]), result)
            if len(node.args) > 1:
                self.fail(node, f"{name} takes one generator over messages")
            return result
        if node.keywords:
            self.fail(node, "calls in a neuron take plain arguments")
        args = [self.expression(a) for a in node.args]
        if any(isinstance(a, Messages) for a in args):
            self.fail(node, f"{name}(messages): say what of each message: {name}(m.input * m.weight for m in messages)")
        nodes = [self.number(a, n) for a, n in zip(args, node.args, strict=True)]
        if name in ("max", "min") and len(nodes) >= 2:
            op = Op.MAXIMUM if name == "max" else Op.MINIMUM
            result = nodes[0]
            for other in nodes[1:]:
                result = ir.make(op, result, other)
            return result
        if name == "abs" and len(nodes) == 1:
            return ir.make(Op.ABS, nodes[0])
        if name == "pow" and len(nodes) == 2:
            return ir.make(Op.POW, *nodes)
        if name == "float" and len(nodes) == 1:
            return nodes[0] if nodes[0].op not in ir.BOOLEAN else select(nodes[0], const(1.0), const(0.0))
        if name == "bool" and len(nodes) == 1:
            return ir.truth(nodes[0])
        self.fail(node, f"{name} in a neuron is over messages: {name}(... for m in messages)")

    def word(self, word: Word, node: ast.Call) -> Any:
        if word.name in DRAWS or word.of == "message":
            return self.draw(word, node)
        if word.name == "push":
            return self.push(node)
        if node.keywords or len(node.args) != 1:
            self.fail(node, f"self.{word.name} takes one number")
        arg = node.args[0]
        if isinstance(arg, ast.IfExp):  # feed forward on each side: the same meaning, and a dropped side is seen
            c = self.condition(self.expression(arg.test), arg.test)
            sides = [ast.copy_location(ast.Call(node.func, [x], []), x) for x in (arg.body, arg.orelse)]
            self.branch(c, lambda: self.word(word, sides[0]), lambda: self.word(word, sides[1]), arg)
            return None
        kind, slot = ("forward", "fed") if word.name == "feedforward" else ("backward", "delta")
        if self.kind != kind:
            self.fail(node, f"self.{word.name} belongs in {kind}, not in {self.kind}")
        if self.in_loop:
            self.fail(node, f"self.{word.name} is called inside the loop over messages; call it once, after the loop")
        value = self.number(self.expression(arg), arg)
        before = getattr(self.frame, slot)
        if isinstance(before, Unset):
            self.fail(node, f"self.{word.name} is called a second time here on some path (the other: {before.why.replace(' is not called', ' is missing')}); call it exactly once on every path, with else or return")  # fmt: skip
        if before is not None:
            self.fail(node, f"self.{word.name} is called a second time; call it exactly once on every path")
        setattr(self.frame, slot, value)
        return None

    def push(self, node: ast.Call) -> None:
        to: str | None = None
        for keyword in node.keywords:
            if keyword.arg != "to" or not isinstance(keyword.value, ast.Constant):
                self.fail(node, 'push takes a number, and to="name" for a Parameter')
            to = keyword.value.value
        args = node.args
        if len(args) == 2 and to is None and isinstance(args[1], ast.Constant):
            to, args = args[1].value, args[:1]
        if len(args) != 1:
            self.fail(node, 'push takes a number, and to="name" for a Parameter')
        value = self.number(self.expression(args[0]), args[0])
        if to is not None:
            assert self.context is not None
            names = [n for n in dir(self.context.cls) if type(inspect.getattr_static(self.context.cls, n)) is Parameter]  # fmt: skip
            if to not in names:
                self.fail(node, f"{self.context.cls.__name__} has no Parameter {to!r}; {suggest(str(to), names)}Parameters: {', '.join(names) or 'none'}")  # fmt: skip
            if self.kind == "forward":
                self.fail(node, f'push(..., to="{to}") belongs in backward')
            if self.in_loop:
                self.fail(node, f'push(..., to="{to}") stands inside the loop over messages; sum up in a variable and push once after the loop')  # fmt: skip
            if self.frame.parameters.get(to) is not None:
                self.fail(node, f'push(..., to="{to}") is called a second time; once on every path')
            self.frame.parameters[to] = value
            return
        if not self.in_loop:
            assert self.context is not None
            self.fail(node, f"{self.context.cls.__name__}.{self.kind} pushes outside the loop over messages, once for all synapses. Call self.push(...) once per message, inside the loop")  # fmt: skip
        if self.frame.pushed is not None:
            self.fail(node, "push is called a second time for the same message; push exactly once per message")
        self.frame.pushed = value
        self.push_place = node

    def draw(self, word: Word, node: ast.Call) -> Node:
        assert self.context is not None
        arguments: dict[str, Any] = {}
        order = {"bernoulli": ("p",), "uniform": ("low", "high"), "normal": ("mean", "std")}[word.name]
        for name, a in zip((*order, "per"), node.args, strict=False):
            arguments[name] = a
        for keyword in node.keywords:
            if keyword.arg not in (*order, "per"):
                self.fail(node, f"{word.name} takes {', '.join(order)} and per; got {keyword.arg!r}")
            arguments[keyword.arg] = keyword.value
        per_node = arguments.pop("per", None)
        per = "sample" if word.of == "self" else "run"
        if per_node is not None:
            per = self.expression(per_node)
            if per not in PERIODS or (word.of == "message" and per != "run"):
                allowed = PERIODS if word.of == "self" else ("run",)
                self.fail(per_node, f"per must be one of {', '.join(map(repr, allowed))}, got {ast.unparse(per_node)}")
        defaults = {"low": 0.0, "high": 1.0, "mean": 0.0, "std": 1.0}
        values = []
        for name in order:
            if name in arguments:
                values.append(self.number(self.expression(arguments[name]), arguments[name]))
            elif name in defaults:
                values.append(const(defaults[name]))
            else:
                self.fail(node, f"self.{word.name} needs {name}")
        number = site((*self.calls, self.source.place(node)))
        if word.of == "message":
            u = leaf(Op.SYNAPSE_DRAW, "oi", ("normal" if word.name == "normal" else "uniform", number))
        else:
            if self.in_loop:
                self.fail(node, f"self.{word.name} is drawn inside the loop over messages; draw once before the loop, or m.{'normal' if word.name == 'normal' else 'uniform'}() for a number that belongs to the synapse")  # fmt: skip
            kind = "normal" if word.name == "normal" else "uniform"
            u = leaf(Op.DRAW, "bo" if per == "sample" else "o", (kind, number, per))
        if word.name == "bernoulli":
            return select(ir.make(Op.LT, u, values[0]), const(1.0), const(0.0))
        if word.name == "uniform":
            return ir.add(values[0], ir.mul(values[1] - values[0], u))
        return ir.add(values[0], ir.mul(values[1], u))


def slope_at(activation: Activation, z: Node, run: Run | None = None, node: ast.AST | None = None) -> Node:
    """d f / d z at the summed input: as given, from the output, or derived."""
    run = run or Run(None, "function")
    if activation.df_at is not None:
        return ir.lift(run.call_any(activation.df_at, [z], node))
    y = ir.lift(run.call_any(activation.f, [z], node))
    if activation.df is not None:
        return ir.lift(run.call_any(activation.df, [y], node))
    from horn.compiler.derive import gradient

    return gradient(y, const(1.0), [z])[z]


def peel(value: Node, me: Node, monoid: str) -> Node | None:
    """The element e if value is (me (+) e) for this monoid, under any selects; None if it is not."""
    if value is me:
        return const(ir.IDENTITY[monoid])
    if value.op is Op.SELECT:
        c, a, b = value.args
        if not ir.contains(c, Op.CARRY):
            left, right = peel(a, me, monoid), peel(b, me, monoid)
            return None if left is None or right is None else select(c, left, right)
        # if v > best: best = v
        if monoid in ("max", "min"):
            greater = (Op.GT, Op.GE) if monoid == "max" else (Op.LT, Op.LE)
            smaller = (Op.LT, Op.LE) if monoid == "max" else (Op.GT, Op.GE)
            for new, old, ops in ((a, b, (greater, smaller)), (b, a, (smaller, greater))):
                if old is me and c.op in ops[0] and c.args[0] is new and c.args[1] is me:
                    return new
                if old is me and c.op in ops[1] and c.args[0] is me and c.args[1] is new:
                    return new
        return None
    if monoid == "sum" and value.op is Op.SUB:
        left = peel(value.args[0], me, "sum")
        if left is not None and not ir.contains(value.args[1], Op.CARRY):
            return left - value.args[1]
        return None
    if monoid == "prod" and value.op is Op.DIV:
        left = peel(value.args[0], me, "prod")
        if left is not None and not ir.contains(value.args[1], Op.CARRY):
            return left / value.args[1]
        return None
    if monoid == "prod" and value.op is Op.NEG:
        inner = peel(value.args[0], me, "prod")
        return None if inner is None else -inner
    if monoid in ("any", "all") and value.op is Op.NE and ir.is_const(value.args[1], 0.0):
        return peel(value.args[0], me, monoid)
    if value.op is ir.COMBINE[monoid]:
        a, b = value.args
        for mine, other in ((a, b), (b, a)):
            if ir.contains(mine, Op.CARRY) and not ir.contains(other, Op.CARRY):
                inner = peel(mine, me, monoid)
                return None if inner is None else ir.combine(monoid, inner, other)
    return None


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _leaves(node: ast.If) -> bool:
    """Whether a branch returns from the function."""
    return any(isinstance(n, ast.Return) for part in (*node.body, *node.orelse) for n in ast.walk(part))


def _assigned(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """The variables that a loop body sets, with the last place of each."""
    found: dict[str, ast.AST] = {}
    for statement in body:
        for n in ast.walk(statement):
            targets = n.targets if isinstance(n, ast.Assign) else [n.target] if isinstance(n, (ast.AugAssign, ast.AnnAssign)) else []  # fmt: skip
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found[name.id] = n
    return found


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    return target


# --- entry points -------------------------------------------------------------------------------------------------------------


def _method(cls: type[Neuron], name: str) -> types.FunctionType:
    function = inspect.getattr_static(cls, name)
    if not isinstance(function, types.FunctionType):
        raise CompileError(f"{cls.__name__}.{name} must be a plain method: def {name}(self, messages)")
    return function


def forward(context: Context) -> ForwardIR:
    """The IR of a class's forward. Raises CompileError with the user's line."""
    function = _method(context.cls, "forward")
    run = Run(context, "forward")
    run.call(function, [SelfRef(), Messages()], None)
    source, frame = source_of(function), run.frame
    if frame.fed is None:
        raise source.error(source.tree, f"{context.cls.__name__}.forward never calls self.feedforward(...), so the neuron has no output. End forward with self.feedforward(value)")  # fmt: skip
    if isinstance(frame.fed, Unset):
        raise source.error(source.tree, f"{frame.fed.why}; call it exactly once on every path of forward")
    outs = _sitting_out(frame.fed, frame.read) if context.training else None
    result = ForwardIR(frame.fed, frame.states, frame.loop_push, outs)
    ir.verify(*_roots(frame.fed, *frame.states.values(), frame.loop_push))
    return result


def backward(context: Context) -> BackwardIR:
    """The IR of a class's written backward."""
    function = _method(context.cls, "backward")
    run = Run(context, "backward")
    run.call(function, [SelfRef(), Messages()], None)
    source, frame = source_of(function), run.frame
    if not isinstance(frame.delta, Node):
        why = frame.delta.why if isinstance(frame.delta, Unset) else f"{context.cls.__name__}.backward never calls self.backpropagate(...)"  # fmt: skip
        raise source.error(source.tree, f"{why}; end backward with self.backpropagate(delta), once on every path")
    cls = context.cls
    for name in dir(cls):
        if type(inspect.getattr_static(cls, name)) is Parameter:
            pushed = frame.parameters.get(name)
            if not isinstance(pushed, Node):
                why = pushed.why if isinstance(pushed, Unset) else f'{cls.__name__}.backward does not push the gradient of its Parameter {name!r}'  # fmt: skip
                raise source.error(source.tree, f'{why}; call self.push(gradient, to="{name}") once on every path')
    parameters = {k: v for k, v in frame.parameters.items() if isinstance(v, Node)}
    ir.verify(*_roots(frame.delta, *parameters.values(), *frame.states.values(), frame.loop_push))
    place = source.error(source.tree, "")
    return BackwardIR(frame.delta, frame.loop_push, parameters, frame.states, run.uses_delta, place)


def function(f: Callable[..., Any], *args: Node) -> Node:
    """The IR of a plain function: an interlayer (output -> output), a loss (output, target -> loss)."""
    run = Run(None, "function")
    result = run.call_any(f, list(args), None)
    if not isinstance(result, Node):
        name = getattr(f, "__name__", repr(f))
        raise CompileError(f"{name} must return a number, got {result!r}")
    return result


def _roots(*nodes: Node | None) -> list[Node]:
    return [n for n in nodes if n is not None]


def _sitting_out(output: Node, read: tuple[Path, ...]) -> Node | None:
    """The condition (o) on which a neuron leaves the batch: a 0 fed forward for a per-batch reason, with no message read."""
    zero: list[Path] = []

    def visit(node: Node, path: Path) -> None:
        if ir.is_const(node, 0.0):
            zero.append(path)
        elif node.op is Op.SELECT:
            c, a, b = node.args
            visit(a, (*path, (c, True)))
            visit(b, (*path, (c, False)))

    visit(output, ())
    found: Node | None = None
    for path in zero:
        if any(c.axes not in ("", "o") for c, _ in path):
            continue
        if not any(n.op is Op.DRAW and n.value[2] == "batch" for c, _ in path for n in ir.walk(c)):
            continue
        apart = all(any((c, not side) in way for c, side in path) for way in read)
        if not apart:
            continue
        here: Node | None = None
        for c, side in path:
            term = c if side else ir.make(Op.NOT, c)
            here = term if here is None else ir.make(Op.AND, here, term)
        assert here is not None
        found = here if found is None else ir.make(Op.OR, found, here)
    return found
