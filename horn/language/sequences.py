"""Sequences that are known before the run: tuples, lists, ranges of constants."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from horn import refusals
from horn.ir import Node, Op
from horn.language.expressions import Expressions
from horn.language.names import Names
from horn.language.references import Elements, MessageRef, MessagesRef, elements
from horn.language.scope import NO_DICT, Scope

#: The most rounds of one method's loops over constants: each becomes separate operations.
MAX_ROUNDS = 1000


class Sequences:
    """Tuples, lists and comprehensions over them, element by element."""

    def __init__(self, scope: Scope, expressions: Expressions, names: Names) -> None:
        self.scope, self.expressions, self.names = scope, expressions, names
        self.n_rounds = 0
        expressions.rules |= {
            ast.Tuple: self.literal, ast.List: self.literal, ast.Subscript: self.subscript,
            ast.ListComp: self.comprehension, ast.GeneratorExp: self.comprehension,
        }  # fmt: skip

    def literal(self, node: ast.Tuple | ast.List) -> Any:
        return tuple(self.expressions.value(e) for e in node.elts)

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        first = node.generators[0]
        if len(node.generators) == 1 and not first.ifs:
            items = self.rounds(self.expressions.value(first.iter), first.iter)
            if items is not None:
                return tuple(self.bound(first.target, item, node.elt) for item in items)
        self.scope.fail(
            node,
            f"{ast.unparse(node)!r}: a neuron keeps no list of its messages; reduce them at once: "
            "sum, max, min, any or all of ... for m in messages",
        )

    def subscript(self, node: ast.Subscript) -> Any:
        value = self.expressions.value(node.value)
        if isinstance(value, MessagesRef):
            self.scope.fail(node, refusals.NO_ORDER)
        items = elements(value)
        if items is not None and isinstance(node.slice, ast.Slice):
            return self.sliced(items, node.slice)
        if items is not None and isinstance(node.slice, ast.Tuple):
            one_by_one = "".join(f"[{ast.unparse(each)}]" for each in node.slice.elts)
            remedy = f"write {ast.unparse(node.value)}{one_by_one}"
            self.scope.fail(node, f"{ast.unparse(node)!r}: one index at a time; {remedy}")
        if items is not None:
            index = self.whole(self.expressions.value(node.slice), node.slice, "an index")
            if not -len(items) <= index < len(items):
                there = f"they are numbered 0 to {len(items) - 1}" if items else "there are none"
                self.scope.fail(node, f"{ast.unparse(node)!r}: {there}, got {index}")
            return items[index]
        if isinstance(value, MessageRef):
            m = ast.unparse(node.value)
            said = f"a message has no elements, but fields with names: {m}.input, {m}.weight"
            self.scope.fail(node, f"{ast.unparse(node)!r}: {said}")
        said = f"a {'number' if isinstance(value, Node) else type(value).__name__}"
        said += f"; {NO_DICT}" * isinstance(value, dict)
        self.scope.fail(
            node,
            f"{ast.unparse(node)!r}: only tuples, lists and arrays have elements here, and "
            f"{ast.unparse(node.value)!r} is {said}",
        )

    def sliced(self, items: Elements, node: ast.Slice) -> Any:
        """A slice of a tuple, as taps[1:3]; its ends are known at compile time."""
        ends = [
            None if each is None else self.whole(self.expressions.value(each), each, "a slice")
            for each in (node.lower, node.upper, node.step)
        ]
        if ends[2] == 0:
            self.scope.fail(node, "the step of a slice is 0; write 1, or -1 for the other way")
        return items[slice(*ends)].raw

    def rounds(self, value: Any, node: ast.AST) -> Iterator[Any] | None:
        """The elements that a loop over constants goes through; each is a round of its own."""
        found = elements(value)
        if found is None:
            return None
        self.n_rounds += len(found)
        self.check_rounds(self.n_rounds, node)
        return self._one_by_one(found)

    def check_rounds(self, n_rounds: int, node: ast.AST) -> None:
        """Fail where loops over constants have more rounds than a neuron may have."""
        if n_rounds > MAX_ROUNDS:
            self.scope.fail(
                node,
                f"loops over constants are written out, round by round, and these are "
                f"{n_rounds} rounds; a neuron may have {MAX_ROUNDS}",
            )

    def _one_by_one(self, items: Iterable[Any]) -> Iterator[Any]:
        outer = self.scope.rounds
        try:
            for number, item in enumerate(items):
                self.scope.rounds = (*outer, number)
                yield item
        finally:  # a return may leave the loop
            self.scope.rounds = outer

    def whole(self, value: Any, node: ast.AST, what: str) -> int:
        """A whole number that is known at compile time."""
        number = self.scope.number(value, node)
        if self.names.is_float(node):
            self.scope.fail(
                node,
                f"{what} takes whole numbers, and {ast.unparse(node)!r} is a float in Python, "
                "which refuses it there: write it without a point, or as int(...) where it is set",
            )
        if number.op is not Op.CONST or not float(number.value).is_integer():
            self.scope.fail(
                node,
                f"{what} takes whole numbers that are known before the run, not "
                f"{ast.unparse(node)!r}: write a number, a constant of the class, or len of a "
                "tuple",
            )
        return int(number.value)

    def bound(self, target: ast.expr, item: Any, element: ast.expr) -> Any:
        """The value of a comprehension's element expression for one item."""
        names = dict(self.scope.frame.names)
        self.names.assign(target, item, target)
        value = self.expressions.value(element)
        self.scope.frame.names = names
        return value
