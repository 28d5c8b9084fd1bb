"""Statements: assignments, if, for, return; and the remedies for statements not in the language."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from horn import ir
from horn.language.expressions import Expressions
from horn.language.loops import MessageLoops
from horn.language.names import Names
from horn.language.operators import BINARY, instead_of
from horn.language.scope import Scope
from horn.language.sequences import Sequences

_STATEMENTS: dict[type[ast.stmt], str] = {
    ast.FunctionDef: "a function inside a method",
    ast.ClassDef: "a class inside a method",
    ast.ImportFrom: "import",
    ast.Delete: "del",
}
_REMEDIES = {
    "import": "; write it at the top of the file",
    "try": "; nothing raises here, what divides by 0 is infinite or NaN: ask with an if before",
    "match": "; write if and elif",
    "a function inside a method": "; write it as a method, or beside the class",
    "global": "; what a neuron keeps from batch to batch is a horn.State of its class",
    **dict.fromkeys(("del", "assert", "raise"), "; leave it out"),
}


@dataclass(frozen=True)
class Statements:
    """Statements, run in their order."""

    scope: Scope
    expressions: Expressions
    names: Names
    sequences: Sequences
    loops: MessageLoops

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.scope.frame.done:
                return
            if isinstance(statement, ast.If):
                c = self.expressions.condition(statement.test)
                if_true, if_false = (
                    partial(self.block, side) for side in (statement.body, statement.orelse)
                )
                self.scope.branch(c, if_true, if_false, statement)
            elif isinstance(statement, ast.For):
                self.for_each(statement)
            else:
                self.statement(statement)

    def _is_print(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return False
        return node.func.id == "print" and self.expressions.value(node.func) is print

    def for_each(self, node: ast.For) -> None:
        """Run a for loop: over constants round by round, else over messages."""
        iterated = self.expressions.value(node.iter)
        items = self.sequences.rounds(iterated, node.iter)
        if items is None:
            self.loops.run(node, iterated, partial(self.block, node.body))
            return
        for item in items:
            if self.scope.frame.done:
                return
            self.names.assign(node.target, item, node.target)
            self.block(node.body)
        if not self.scope.frame.done:
            self.block(node.orelse)

    def statement(self, node: ast.stmt) -> None:
        frame = self.scope.frame
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return  # a docstring
            if self._is_print(node.value):
                return  # printing runs need the interpreter; horn.explain.prints says so
            self.expressions.value(node.value)
        elif isinstance(node, ast.Assign):
            value = self.expressions.value(node.value)
            for target in node.targets:
                self.names.assign(target, value, node)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.names.assign(node.target, self.expressions.value(node.value), node)
        elif isinstance(node, ast.AugAssign):
            current = self.expressions.value(node.target)
            if type(node.op) not in BINARY:
                self.scope.fail(
                    node,
                    f"{ast.unparse(node)!r}: this operator is not in the neuron language "
                    f"({instead_of(node.op)}",
                )
            value = ir.make(
                BINARY[type(node.op)],
                self.scope.number(current, node.target),
                self.expressions.number(node.value),
            )
            self.names.assign(node.target, value, node)
        elif isinstance(node, ast.Return):
            frame.returned = self.expressions.value(node.value) if node.value is not None else None
            frame.done = True
            if self.scope.in_loop and len(self.scope.sources) == self.scope.loop_depth:
                self.scope.fail(
                    node,
                    "return inside the loop over messages: what is computed would depend on"
                    " the order of messages; use an if instead",
                )
        elif isinstance(node, ast.Pass):
            pass
        elif isinstance(node, (ast.Break, ast.Continue)):
            word = "break" if isinstance(node, ast.Break) else "continue"
            why = "it is not in the neuron language"
            if word == "break" and self.scope.in_loop:
                why = "the result would depend on the order of messages"
            self.scope.fail(node, f"{word} in a loop: {why}; put the rest of the loop under an if")
        elif isinstance(node, ast.While):
            self.scope.fail(
                node,
                "while is not in the neuron language: a neuron loops over its messages "
                "(for m in messages) and over constants (for k in range(3))",
            )
        else:
            word = _STATEMENTS.get(type(node), type(node).__name__.lower())
            remedy = _REMEDIES.get(word, "")
            is_neuron = self.scope.context is not None
            loops = "for m in messages" if is_neuron else "for k in range(3)"
            if word == "raise" and "NotImplementedError" in ast.unparse(node):
                remedy = "; this method is for subclasses: write it in the class of the layer"
            if word == "global" and not is_neuron:
                remedy = "; leave it out: a name of the module is read without it"
            self.scope.fail(
                node,
                f"{word} is not in the neuron language "
                f"(assignments, if, {loops} and calls are){remedy}",
            )
