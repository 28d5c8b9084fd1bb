"""Operators: arithmetic, comparisons, and, or, not, if-else."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import dataclass
from typing import Any

from horn import ir
from horn.ir import Node, Op, const, select
from horn.language.expressions import Expressions
from horn.language.references import elements
from horn.language.scope import Scope, other_length

BINARY = {
    ast.Add: Op.ADD, ast.Sub: Op.SUB, ast.Mult: Op.MUL, ast.Div: Op.DIV, ast.Pow: Op.POW,
    ast.FloorDiv: Op.FLOORDIV, ast.Mod: Op.MOD,
}  # fmt: skip
_COMPARE = {
    ast.Lt: Op.LT, ast.LtE: Op.LE, ast.Gt: Op.GT, ast.GtE: Op.GE, ast.Eq: Op.EQ, ast.NotEq: Op.NE
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {
    ast.BitAnd: "write and",
    ast.BitOr: "write or",
    ast.BitXor: "a power is x ** 2",
    ast.MatMult: "a neuron has no matrices: write sum(m.input * m.weight for m in messages)",
}


def instead_of(op: ast.operator) -> str:
    """The end of a complaint about an operator: the operators that exist, and a remedy."""
    remedy = _OPERATORS.get(type(op))
    return "+ - * / // % ** are)" + (f"; {remedy}" if remedy else "")


def _is_condition(node: Node) -> bool:
    """Whether the node is true or false, as far as is known inside a loop of carried variables."""
    return ir.is_truth(node) or ir.contains(node, Op.CARRY)


def _decided(first: Node, second: Node, is_or: bool) -> Node:
    """The value of ``or``, else ``and``, of two conditions. Of a draw it is the 1 or the 0 that was
    drawn, which is no constant of the text.
    """
    c = ir.make(Op.OR if is_or else Op.AND, ir.truth(first), ir.truth(second))
    a, b = _ends(first), _ends(second)
    if not any(map(ir.is_drawn, (*a, *b))):
        return c
    if len(a) > 2 or len(b) > 2:
        return select(first, *((first, second) if is_or else (second, first)))
    if is_or:
        return select(c, select(first, a[0], b[0]), b[1])
    return select(c, b[0], select(first, b[1], a[1]))


def _ends(condition: Node) -> tuple[Node, ...]:
    """What a condition is where it holds, and where it does not; more where these are several."""
    found: dict[Node, None] = {}
    stack = [condition]
    while stack and len(found) <= 2:
        n = stack.pop()
        if n.op is Op.SELECT:
            stack.extend(n.args[1:])
        elif n.op is Op.CONST:
            found[n] = None
        else:
            found |= dict.fromkeys((const(1.0), const(0.0)))
    return tuple(sorted(found, key=lambda n: -n.value)) if len(found) > 1 else (*found, *found)


@dataclass(frozen=True)
class Operators:
    """The values of expressions with operators."""

    scope: Scope
    expressions: Expressions

    def __post_init__(self) -> None:
        self.expressions.rules |= {
            ast.BinOp: self.arithmetic, ast.UnaryOp: self.unary, ast.Compare: self.comparison,
            ast.BoolOp: self.and_or, ast.IfExp: self.if_else,
        }  # fmt: skip

    def arithmetic(self, node: ast.BinOp) -> Any:
        chain: list[tuple[Op, ast.BinOp]] = []  # a + b + c + ... leans to the left, however long
        inner: ast.expr = node
        while isinstance(inner, ast.BinOp):
            op = BINARY.get(type(inner.op))
            if op is None:
                self.scope.fail(
                    inner,
                    f"the operator in {ast.unparse(inner)!r} is not in the neuron language "
                    f"({instead_of(inner.op)}",
                )
            chain.append((op, inner))
            inner = inner.left
        value = self.expressions.value(inner)
        for op, part in reversed(chain):
            left = self.scope.number(value, part.left)
            right = self.expressions.number(part.right)
            value = ir.make(op, left, right)
            if (
                op is Op.POW
                and ir.is_const(value, math.inf)
                and math.inf not in (left.value, right.value)
            ):
                self.scope.fail(
                    part,
                    f"{ast.unparse(part)!r} is more than {sys.float_info.max:.2g}, the largest "
                    "number that a neuron computes with",
                )
        return value

    def unary(self, node: ast.UnaryOp) -> Any:
        value = self.expressions.number(node.operand)
        if isinstance(node.op, ast.USub):
            return ir.make(Op.NEG, value)
        if isinstance(node.op, ast.Not):
            return ir.make(Op.NOT, ir.truth(value))
        if isinstance(node.op, ast.UAdd):
            return value
        self.scope.fail(node, "~ is not in the neuron language; use not")

    def comparison(self, node: ast.Compare) -> Any:
        result: Node | None = None
        left, where = self.expressions.value(node.left), node.left
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if result is not None and ir.is_const(result, 0.0):
                return result  # the rest is not evaluated
            right = self.expressions.later(result, True, right_node)
            if isinstance(left, str) and isinstance(right, str) and type(op) in (ast.Eq, ast.NotEq):
                test = const(float((left == right) is isinstance(op, ast.Eq)))
            else:
                if type(op) not in _COMPARE:
                    self.scope.fail(
                        node,
                        f"{ast.unparse(node)!r}: 'in' and 'is' are not in the neuron language (<"
                        " <= > >= == != are); compare numbers with == and !=",
                    )
                test = ir.make(
                    _COMPARE[type(op)],
                    self.scope.number(left, where),
                    self.scope.number(right, right_node),
                )
            result = test if result is None else ir.make(Op.AND, result, test)
            left, where = right, right_node
        return result

    def and_or(self, node: ast.BoolOp) -> Any:
        """The value of ``and`` or ``or``: as in Python that of the operand which decides, perhaps a
        number; a condition only where all operands are conditions.
        """
        is_or = isinstance(node.op, ast.Or)
        first, *rest = node.values
        result = self.expressions.number(first)
        for where, part in zip(node.values, rest, strict=False):
            if result.op is Op.CONST:
                if bool(result.value) == is_or:
                    return result  # the rest is not evaluated
                result = self.expressions.number(part)
                continue
            value = self.scope.number(self.expressions.later(result, not is_or, part), part)
            if _is_condition(result) and _is_condition(value):
                result = _decided(result, value, is_or)
                continue
            for x, text in ((result, where), (value, part)):
                if ir.contains(result, Op.CARRY) or ir.contains(value, Op.CARRY):
                    if not _is_condition(x):
                        said = ast.unparse(text)
                        is_open = isinstance(text, (ast.BoolOp, ast.IfExp))
                        self.scope.fail(
                            text,
                            f"{ast.unparse(node)!r} would keep the first of the messages that "
                            f"decides, but they come in no order; {said!r} is a number: write "
                            f"{f'({said})' if is_open else said} != 0",
                        )
            result = select(result, *((result, value) if is_or else (value, result)))
        return result

    def if_else(self, node: ast.IfExp) -> Any:
        c = self.expressions.condition(node.test)
        if c.op is Op.CONST:
            return self.expressions.value(node.body if c.value else node.orelse)
        a, b = self.scope.branch(
            c,
            lambda: self.expressions.value(node.body),
            lambda: self.expressions.value(node.orelse),
            node,
        )
        return self.either(c, a, b, node)

    def either(self, c: Node, a: Any, b: Any, node: ast.IfExp) -> Any:
        """``a`` where the condition holds, else ``b``; of tuples element by element."""
        first, second = elements(a), elements(b)
        if first is None or second is None:
            return select(c, self.scope.number(a, node.body), self.scope.number(b, node.orelse))
        if len(first) != len(second):
            text = repr(ast.unparse(node.test))
            self.scope.fail(node, other_length(text, len(first), len(second)))
        return tuple(self.either(c, x, y, node) for x, y in zip(first, second, strict=True))
