"""Expressions of the neuron language: names, fields, arithmetic, comparisons."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn

from horn import math as horn_math
from horn.language import ir
from horn.language.ir import Node, Op, const, leaf, select
from horn.language.scope import (
    ActivationRef,
    Aggregate,
    Context,
    Frame,
    Message,
    Messages,
    Method,
    Path,
    SelfRef,
    Unset,
    Word,
)
from horn.language.source import Source, suggest
from horn.neuron import DRAWS, MESSAGE_FIELDS, READABLE, Parameter, State

BINARY = {
    ast.Add: Op.ADD, ast.Sub: Op.SUB, ast.Mult: Op.MUL, ast.Div: Op.DIV, ast.Pow: Op.POW,
    ast.FloorDiv: Op.FLOORDIV, ast.Mod: Op.MOD,
}  # fmt: skip
_COMPARE = {
    ast.Lt: Op.LT,
    ast.LtE: Op.LE,
    ast.Gt: Op.GT,
    ast.GtE: Op.GE,
    ast.Eq: Op.EQ,
    ast.NotEq: Op.NE,
}


_OPERATORS: dict[type[ast.operator], str] = {
    ast.BitAnd: "write and",
    ast.BitOr: "write or",
    ast.MatMult: "a neuron has no matrices: write sum(m.input * m.weight for m in messages)",
}
_MISSING = object()
ONE_NUMBER = (
    "a neuron has one number here; sum(), max() and the like over a whole layer are for "
    "interlayers and losses"
)
LAYER_WORDS = ("sum", "max", "min", "mean", "prod")
#: Rounds of the loops over constants of one method: each becomes operations of its own.
MAX_ROUNDS = 1000


def instead_of(op: ast.operator) -> str:
    """The end of a complaint about an operator: which there are, and what to write."""
    remedy = _OPERATORS.get(type(op))
    return "+ - * / // % ** are)" + (f"; {remedy}" if remedy else "")


def _is_condition(node: Node) -> bool:
    """Whether it is true or false, as far as a loop's own variables tell before the loop ends."""
    is_reduced = node.op is Op.REDUCE and node.value[0] in ("any", "all")
    is_flag = node.op is Op.CONST and node.value in (0.0, 1.0)
    return node.op in ir.BOOLEAN or is_reduced or is_flag or ir.contains(node, Op.CARRY)


class Expressions:
    """The value of an expression: a node, or one of the things in ``scope``."""

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
        self.n_rounds = 0

    # -- errors

    @property
    def source(self) -> Source:
        return self.sources[-1]

    def fail(self, node: ast.AST, problem: str) -> NoReturn:
        raise self.source.error(node, problem)

    def branch(
        self,
        c: Node,
        then: Callable[[], Any],
        other: Callable[[], Any],
        node: ast.AST,
        opposite: bool = False,
    ) -> Any:
        raise NotImplementedError

    @staticmethod
    def wrap(value: Any) -> Any:
        """A Python value as the run sees it: numbers become constants."""
        if isinstance(value, bool) or (
            not isinstance(value, (str, Node, type))
            and hasattr(value, "__float__")
            and not hasattr(value, "shape")
        ):
            return const(float(value))
        if hasattr(value, "shape") and getattr(value, "shape", None) == ():
            return const(float(value))
        return value

    # -- expressions

    def number(self, value: Any, node: ast.AST) -> Node:
        if isinstance(value, Node):
            return value
        if isinstance(value, Unset):
            self.fail(node, value.why)
        if isinstance(value, Messages):
            self.fail(
                node,
                "messages can only be looped over: for m in messages, or sum(... for m "
                "in messages)",
            )
        if isinstance(value, Message):
            self.fail(
                node,
                f"a message is not a number; read one of its fields: {', '.join(self.fields())}",
            )
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
            self.fail(
                node,
                f"{ast.unparse(node)!r} is not in the neuron language (numbers, + - * / "
                "// % **, comparisons, if-else, and the functions of horn.math are)",
            )
        return method(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, complex):
            self.fail(
                node,
                f"{ast.unparse(node)} is no number of the neuron language: a neuron computes with "
                "real numbers; keep the two parts in two variables",
            )
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
        self.fail(
            node,
            f"{node.id!r} is not defined here; {hint}set it before it is used".replace(
                "; set", ", set"
            )
            if not hint
            else f"{node.id!r} is not defined here; {hint}".rstrip(),
        )

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value, name = self.expression(node.value), node.attr
        if isinstance(value, SelfRef):
            return self.self_attribute(node, name)
        if isinstance(value, Message):
            return self.field(node, name)
        if isinstance(value, ActivationRef):
            if name in ("derivative", "derivative_at"):
                return ActivationRef(name)
            self.fail(
                node,
                f"self.activation has no {name!r}; "
                f"{suggest(name, ['derivative', 'derivative_at'])}"
                "it offers derivative(y) and derivative_at(z)",
            )
        if isinstance(value, Messages):
            self.fail(
                node,
                f"messages has no {name!r}: loop over it (for m in messages), or ask len(messages)",
            )
        if isinstance(value, Node):
            if self.context is None and name in LAYER_WORDS:
                return Aggregate(value, name)
            of = f"; {ONE_NUMBER}" if name in LAYER_WORDS else ""
            self.fail(node, f"a number has no {name!r}{of}")
        if isinstance(value, (types.ModuleType, type)) or hasattr(value, "__dict__"):
            try:
                return self.wrap(getattr(value, name))
            except AttributeError:
                is_of_math = name in horn_math.OPS and hasattr(horn_math, name)
                hint = f"write horn.math.{name}" if is_of_math else suggest(name, dir(value))
                problem = f"{ast.unparse(node.value)} has no {name!r}; {hint}"
                self.fail(node, problem.rstrip("; "))
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
        found = inspect.getattr_static(cls, name, _MISSING)
        if type(found) is State:
            return self.frame.states.get(name, leaf(Op.STATE, "bo", name))
        if type(found) is Parameter:
            return leaf(Op.PARAM, "o", name)
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, types.FunctionType):
            return Method(found)
        if found is None:
            self.fail(node, f"self.{name} is None; give {cls.__name__}.{name} a number")
        if found is not _MISSING:
            return self.wrap(getattr(cls, name))
        known = [k for c in cls.__mro__[:-1] for k in vars(c) if not k.startswith("_")] + [
            *READABLE
        ]
        self.fail(
            node,
            f"{cls.__name__} has no {name!r}; {suggest(name, known)}declare it in "
            f"the class: a constant ({name} = 1.0), horn.Parameter or horn.State",
        )

    def field(self, node: ast.Attribute, name: str) -> Any:
        fields = self.fields()
        if name in ("normal", "uniform"):
            return Word(name, "message")
        if name not in fields:
            if self.kind == "backward" and name == "input":
                self.fail(
                    node,
                    "in backward a message has no 'input': what this neuron sent is "
                    "self.output. Fields: " + ", ".join(fields),
                )
            if self.kind == "forward" and name in MESSAGE_FIELDS["backward"]:
                self.fail(
                    node,
                    f"in forward a message has no {name!r} yet: it comes in backward. "
                    f"Fields: {', '.join(fields)}",
                )
            self.fail(
                node,
                f"message has no field {name!r}. {suggest(name, fields).capitalize()}Fields:"
                f" {', '.join(fields)}".replace("Did you mean", "Did you mean"),
            )
        if name == "input":
            return leaf(Op.INPUT, "bi")
        if name == "weight":
            return leaf(Op.WEIGHT, "oi")
        if name == "previous_update":
            return leaf(Op.PREVIOUS, "oi")
        if name == "index":
            return leaf(Op.PLACE, "oi")
        if name == "gradient":
            return leaf(Op.GRADIENT, "boi")
        self.uses_delta = True
        return leaf(Op.DELTA, "bi")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        chain: list[tuple[Op, ast.BinOp]] = []  # a + b + c + ... leans to the left, however long
        inner: ast.expr = node
        while isinstance(inner, ast.BinOp):
            op = BINARY.get(type(inner.op))
            if op is None:
                self.fail(
                    inner,
                    f"the operator in {ast.unparse(inner)!r} is not in the neuron language "
                    f"({instead_of(inner.op)}",
                )
            chain.append((op, inner))
            inner = inner.left
        value = self.expression(inner)
        for op, part in reversed(chain):
            left = self.number(value, part.left)
            value = ir.make(op, left, self.number(self.expression(part.right), part.right))
        return value

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
            right = self.later(result, True, right_node)
            if isinstance(left, str) and isinstance(right, str) and type(op) in (ast.Eq, ast.NotEq):
                test = const(float((left == right) is isinstance(op, ast.Eq)))
            else:
                if type(op) not in _COMPARE:
                    self.fail(
                        node,
                        f"{ast.unparse(node)!r}: 'in' and 'is' are not in the neuron language (<"
                        " <= > >= == != are)",
                    )
                test = ir.make(
                    _COMPARE[type(op)], self.number(left, where), self.number(right, right_node)
                )
            result = test if result is None else ir.make(Op.AND, result, test)
            left, where = right, right_node
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """As in Python the value is that of the operand which decides, be it a number: only where
        all are conditions it is one, too.
        """
        is_or = isinstance(node.op, ast.Or)
        first, *rest = node.values
        result = self.number(self.expression(first), first)
        for where, part in zip(node.values, rest, strict=False):
            if result.op is Op.CONST:
                if bool(result.value) == is_or:
                    return result  # the rest is not evaluated
                result = self.number(self.expression(part), part)
                continue
            value = self.number(self.later(result, not is_or, part), part)
            if _is_condition(result) and _is_condition(value):
                op = Op.OR if is_or else Op.AND
                result = ir.make(op, ir.truth(result), ir.truth(value))
                continue
            for x, text in ((result, where), (value, part)):
                if ir.contains(result, Op.CARRY) or ir.contains(value, Op.CARRY):
                    if not _is_condition(x):
                        self.fail(
                            text,
                            f"{ast.unparse(node)!r} would keep the first of the messages that "
                            f"decides, but they come in no order; {ast.unparse(text)!r} is a "
                            f"number: write {ast.unparse(text)} != 0",
                        )
            result = select(result, *((result, value) if is_or else (value, result)))
        return result

    def later(self, c: Node | None, holds: bool, node: ast.expr) -> Any:
        """An operand that Python looks at only where the ones before it do not decide."""
        path = self.path
        if c is not None and c.op is not Op.CONST:
            self.path = (*path, (c, holds))
        value = self.expression(node)
        self.path = path
        return value

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        c = self.condition(self.expression(node.test), node.test)
        if c.op is Op.CONST:
            return self.expression(node.body if c.value else node.orelse)
        a, b = self.branch(
            c, lambda: self.expression(node.body), lambda: self.expression(node.orelse), node
        )
        return select(c, self.number(a, node.body), self.number(b, node.orelse))

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.expression(e) for e in node.elts)

    def sequence(self, value: Any) -> list[Any] | None:
        """The elements of what is known when the neuron is compiled: a tuple, a list, a range."""
        if hasattr(value, "shape") and hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (tuple, list, range)):
            return None
        return [self.wrap(each) for each in value]

    def rounds(self, value: Any, node: ast.AST) -> list[Any] | None:
        """The elements that a loop over constants goes through; each is a round of its own."""
        found = self.sequence(value)
        if found is not None:
            self.n_rounds += len(found)
            if self.n_rounds > MAX_ROUNDS:
                self.fail(
                    node,
                    f"loops over constants are written out, round by round, and these are "
                    f"{self.n_rounds} rounds; a neuron may have {MAX_ROUNDS}",
                )
        return found

    def whole(self, value: Any, node: ast.AST, what: str) -> int:
        """A whole number that is known when the neuron is compiled."""
        number = self.number(value, node)
        if number.op is not Op.CONST or number.value != int(number.value):
            self.fail(
                node,
                f"{what} takes whole numbers that are known before the run, not "
                f"{ast.unparse(node)!r}: write a number, a constant of the class, or len of a "
                "tuple",
            )
        return int(number.value)

    def visit_List(self, node: ast.List) -> Any:
        return tuple(self.expression(e) for e in node.elts)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        first = node.generators[0]
        if len(node.generators) == 1 and not first.ifs:
            items = self.rounds(self.expression(first.iter), first.iter)
            if items is not None:
                return tuple(self.bound(first.target, item, node.elt) for item in items)
        self.fail(
            node,
            f"{ast.unparse(node)!r}: a neuron keeps no list of its messages; reduce them at once: "
            "sum, max, min, any or all of ... for m in messages",
        )

    visit_GeneratorExp = visit_ListComp

    def bound(self, target: ast.expr, item: Any, element: ast.expr) -> Any:
        """An element of a comprehension, for one item."""
        names = dict(self.frame.names)
        self.assign(target, item, target)
        value = self.expression(element)
        self.frame.names = names
        return value

    def assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        raise NotImplementedError

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value = self.expression(node.value)
        if isinstance(value, Messages):
            self.fail(
                node,
                "a neuron sees one message at a time and in no fixed order; loop over "
                "them (for m in messages) instead of indexing",
            )
        items = self.sequence(value)
        if items is not None and not isinstance(node.slice, ast.Slice):
            index = self.whole(self.expression(node.slice), node.slice, "an index")
            if not -len(items) <= index < len(items):
                self.fail(node, f"{ast.unparse(node)!r}: there are {len(items)}, got {index}")
            return items[index]
        self.fail(
            node,
            f"{ast.unparse(node)!r}: indexing is not in the neuron language, but of a tuple of "
            "constants",
        )
