"""Messages in order of size: the message with the largest key, the median, the k-th largest or
smallest, the sum of the k largest.

Messages are not sorted: that would store all of them. The number is found by bisection: how many
messages are at most the middle? The middle is that of the floats in their order, not of the
distance, so that neither an infinite message nor one far off hides the others. Each step is a sum
over the messages, so that it runs wherever a sum does, and tasks that divide the messages add up
their parts. The message that is found is identified by its place; it gets the gradient, among
equals the first.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from horn import ir, refusals
from horn.ir import Node, Op, const, leaf, make, mul, reduce, select
from horn.language.expressions import Expressions
from horn.language.references import ChosenRef, ErrorsRef, MessageRef, MessagesRef
from horn.language.scope import Scope
from horn.language.sequences import Sequences

# Bisections between the smallest and the largest message. Of float32 they leave one number; of
# float64, after 12 that find the power of two, numbers that differ by 2 ** -40 of themselves.
HALVINGS = 52
_INF = const(float("inf"))
_NONE = const(float("nan"))


@dataclass(frozen=True)
class Messages:
    """A number ``x`` of each message, and the condition ``counts`` on which it takes part."""

    x: Node
    counts: Node

    def count(self, where: Node) -> Node:
        return reduce("sum", "i", select(make(Op.AND, self.counts, where), const(1.0), const(0.0)))

    @property
    def n(self) -> Node:
        return reduce("sum", "i", select(self.counts, const(1.0), const(0.0)))

    def smallest(self, k: Node) -> tuple[Node, Node]:
        """The k-th smallest number, and a bound: at least that number, below all larger ones."""
        x = stop(self.x)
        low = stop(reduce("min", "i", select(self.counts, self.x, _INF)))
        high = stop(reduce("max", "i", select(self.counts, self.x, -_INF)))
        for _ in range(HALVINGS):
            middle = make(Op.HALFWAY, low, high)
            enough = make(Op.GE, self.count(make(Op.LE, x, middle)), k)
            low = make(Op.SELECT, enough, low, middle)
            high = make(Op.SELECT, enough, middle, high)
        # What lies halfway between a bound and itself is it: the compiler stores bounds of these.
        low, high = make(Op.HALFWAY, low, low), make(Op.HALFWAY, high, high)
        # Too few are at most the lower bound, unless the smallest, with which it began, is the one.
        is_least = make(Op.GE, self.count(make(Op.LE, x, low)), k)
        below = select(is_least, _NONE, low)
        here = make(Op.AND, make(Op.NOT, make(Op.LE, x, below)), make(Op.LE, x, high))
        place = leaf(Op.PLACE, "oi")
        first = reduce("min", "i", select(make(Op.AND, self.counts, here), place, _INF))
        is_it = make(Op.AND, self.counts, make(Op.EQ, place, first))
        found = reduce("sum", "i", select(is_it, self.x, const(0.0)))
        return select(make(Op.EQ, high, high), found, high), high  # keeps a NaN of the messages

    def median(self) -> Node:
        """The median; for an even number of messages the mean of the two in the middle."""
        n = self.n
        lower, high = self.smallest(make(Op.FLOOR, 0.5 * (n + 1.0)))
        above = make(Op.AND, self.counts, make(Op.GT, stop(self.x), high))
        upper = reduce("min", "i", select(above, self.x, _INF))
        is_one = make(Op.GE, n - self.count(make(Op.GT, stop(self.x), high)), 0.5 * n + 1.0)
        odd = make(Op.GT, make(Op.MOD, n, const(2.0)), const(0.5))
        upper = select(make(Op.OR, is_one, odd), lower, upper)
        return select(n > 0.0, 0.5 * lower + 0.5 * upper, _NONE)

    def top_sum(self, k: Node) -> Node:
        """The sum of the k largest numbers; of all, where there are fewer."""
        n = self.n
        last, high = self.smallest(n - k + 1.0)
        larger = make(Op.AND, self.counts, make(Op.GT, stop(self.x), high))
        rest = k - self.count(make(Op.GT, stop(self.x), high))
        found = reduce("sum", "i", select(larger, self.x, const(0.0))) + mul(rest, last)
        whole = reduce("sum", "i", select(self.counts, self.x, const(0.0)))
        # For k or fewer messages the plain sum: among equals each then has a gradient of its own.
        return select(n > k, found, whole)


def _key_of_numbers(name: str, node: ast.Call, key: ast.expr) -> str:
    """The complaint about max(x, y, key=abs): what the neuron chooses, it chooses with an if."""
    values = node.args if len(node.args) > 1 else getattr(node.args[0], "elts", [])
    how = "choose with if and else"
    if len(values) == 2 and isinstance(key, (ast.Name, ast.Attribute)):
        (a, b), f = map(ast.unparse, values), ast.unparse(key)
        how = f"write  {a} if {f}({a}) {'>=' if name == 'max' else '<='} {f}({b}) else {b}"
    return f"key= is for messages, {name}(messages, key=lambda m: ...); of numbers {how}"


def stop(x: Node) -> Node:
    return make(Op.STOP_GRADIENT, x)


@dataclass(frozen=True)
class Orders:
    """Calls that find a message by its size."""

    scope: Scope
    expressions: Expressions
    sequences: Sequences

    def chosen(self, name: str, node: ast.Call) -> ChosenRef:
        """The message that max(messages, key=lambda m: ...), or min, chooses."""
        first = node.args[0] if len(node.args) == 1 else None
        is_name = isinstance(first, (ast.Name, ast.Attribute))
        iterated = self.expressions.value(first) if first is not None and is_name else None
        key = node.keywords[0].value
        if len(node.args) > 1 or isinstance(first, (ast.Tuple, ast.List)):
            self.scope.fail(node, _key_of_numbers(name, node, key))
        is_plain = isinstance(key, ast.Lambda) and ast.unparse(key.args).isidentifier()
        if not isinstance(iterated, MessagesRef) or len(node.keywords) > 1 or not is_plain:
            written = "m.input * m.weight"
            if isinstance(iterated, MessagesRef) and isinstance(key, (ast.Name, ast.Attribute)):
                written = f"{ast.unparse(key)}(m)"
            self.scope.fail(
                node,
                f"write  best = {name}(messages, key=lambda m: {written})  and read the fields of "
                "best; of no message they are 0",
            )
        assert isinstance(key, ast.Lambda)
        number, counts = self.element(key.args.args[0].arg, [], key.body, iterated, node)
        at = reduce(f"arg{name}", "i", select(counts, number, const(ir.IDENTITY[name])))
        here = make(Op.AND, make(Op.EQ, leaf(Op.POSITION, "oi"), at), counts)
        return ChosenRef(here)

    def ordered(self, name: str, node: ast.Call) -> Node:
        """The value of median(... for m in messages), largest(k, ...), smallest(k, ...) or
        top_sum(k, ...).
        """
        takes_k = name != "median"
        each = "m.input * m.weight for m in messages"
        example = f"{name}(3, ({each}))" if takes_k else f"{name}({each})"
        args, comprehensions = node.args, (ast.GeneratorExp, ast.ListComp)
        if len(args) != 1 + takes_k or node.keywords or not isinstance(args[-1], comprehensions):
            self.scope.fail(node, f"write  horn.math.{example}")
        [comp, *others] = args[-1].generators
        iterated = self.expressions.value(comp.iter)
        if others or not isinstance(iterated, MessagesRef) or isinstance(iterated, ErrorsRef):
            self.scope.fail(node, f"horn.math.{name} is of messages, in one loop: {example}")
        if not isinstance(comp.target, ast.Name):
            self.scope.fail(comp.target, "the loop variable is one name: for m in messages")
        k = const(1.0)
        if takes_k:
            k = const(float(self.sequences.whole(self.expressions.value(args[0]), args[0], name)))
            if k.value < 1.0:
                self.scope.fail(args[0], f"{name} counts from 1, got {k.value:g}")
        x, counts = self.element(comp.target.id, comp.ifs, args[-1].elt, iterated, node)
        messages = Messages(x, counts)
        if name == "median":
            return messages.median()
        if name == "top_sum":
            return messages.top_sum(k)
        n = messages.n
        if name == "smallest":
            return select(n >= k, messages.smallest(k)[0], _INF)
        return select(n >= k, messages.smallest(n - k + 1.0)[0], -_INF)

    def element(
        self,
        variable: str,
        tests: list[ast.expr],
        element: ast.expr,
        messages: MessagesRef,
        node: ast.AST,
    ) -> tuple[Node, Node]:
        """The number of each message, and the condition on which the message counts."""
        scope = self.scope
        if scope.kind != "forward":
            scope.fail(node, "what is asked of messages in order of size belongs in forward")
        if scope.in_loop:
            scope.fail(node, refusals.LOOP_IN_LOOP)
        names = dict(scope.frame.names)
        scope.frame.read = (*scope.frame.read, scope.path)
        scope.frame.names[variable] = MessageRef()
        scope.in_loop, scope.loop_depth = True, len(scope.sources)
        counts = ir.of_input(messages.input) if messages.input else const(1.0)
        for test in tests:
            counts = make(Op.AND, counts, self.expressions.condition(test))
        x = self.expressions.number(element)
        scope.in_loop = False
        scope.frame.names = names
        return x, counts
