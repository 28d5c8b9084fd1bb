"""The values of expressions, by a rule for each form of syntax."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from horn import refusals
from horn.ir import Node, Op
from horn.language.scope import Scope

Rule = Callable[[Any], Any]  # from a syntax tree of one form to its value
_REMEDIES: dict[type[ast.expr], str] = {
    ast.NamedExpr: "; assign on a line of its own",
    ast.Lambda: "; write it as a method, or as a function beside the class",
    ast.Starred: "; write the values one by one, as values[0], values[1]",
    ast.JoinedStr: "; text is for print(...) on a line of its own",
    **dict.fromkeys((ast.Yield, ast.YieldFrom, ast.Await), f"; {refusals.NO_GENERATOR}"),
}


class Expressions:
    """The rules of the neuron language for expressions, each set by another part of the run. A
    value is a node, a reference, or a Python value that is known before the run.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.rules: dict[type[ast.expr], Rule] = {}

    def value(self, node: ast.expr) -> Any:
        rule = self.rules.get(type(node))
        if rule is None:
            remedy = _REMEDIES.get(type(node), "")
            self.scope.fail(
                node,
                f"{ast.unparse(node)!r} is not in the neuron language (numbers, + - * / "
                f"// % **, comparisons, if-else, and the functions of horn.math are){remedy}",
            )
        return rule(node)

    def number(self, node: ast.expr) -> Node:
        return self.scope.number(self.value(node), node)

    def condition(self, node: ast.expr) -> Node:
        return self.scope.condition(self.value(node), node)

    def later(self, c: Node | None, holds: bool, node: ast.expr) -> Any:
        """The value of an operand that Python evaluates only if those before do not decide."""
        path = self.scope.path
        if c is not None and c.op is not Op.CONST:
            self.scope.path = (*path, (c, holds))
        value = self.value(node)
        self.scope.path = path
        return value
