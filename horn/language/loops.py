"""Loops over messages: the body runs once, with a symbolic message.

Each variable that the loop carries from message to message must turn out to be a monoid (sum,
product, max, min, any, all): that proves that the order of messages cannot matter.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from horn import ir, refusals
from horn.ir import Node, Op, const, leaf, reduce, select
from horn.ir.monoids import peel
from horn.language.expressions import Expressions
from horn.language.names import Names
from horn.language.references import ErrorRef, ErrorsRef, MessageRef, MessagesRef, Unset, elements
from horn.language.scope import Scope
from horn.language.sequences import Sequences
from horn.language.source import assigned

# The remedy where a variable is set with the largest so far, as  if v > best: best, at = v, m.index
_CHOSEN = (
    ". To know which message is the largest write  best = max(messages, key=lambda m: m.input * "
    "m.weight)  (min likewise) and read the fields of best, as best.index"
)


@dataclass(frozen=True)
class MessageLoops:
    """The loops ``for m in messages``, and reductions of comprehensions."""

    scope: Scope
    expressions: Expressions
    names: Names
    sequences: Sequences

    def run(self, node: ast.For, iterated: Any, body: Callable[[], None]) -> None:
        """Run a loop over ``iterated`` and set the values of its variables after it."""
        if self.scope.in_loop and isinstance(iterated, MessagesRef):
            self.scope.fail(
                node,
                "a loop inside the loop over messages is not in the neuron language: a "
                "neuron sees one message at a time",
            )
        if isinstance(iterated, ErrorsRef):
            self.scope.fail(node, "write  sum(e.delta * e.normal() for e in self.error)")
        if not isinstance(iterated, MessagesRef):
            self.scope.fail(
                node.iter,
                "a neuron loops over its messages (for m in messages) and over constants (for k in "
                f"range(3)), not over {ast.unparse(node.iter)!r}",
            )
        if node.orelse:
            problem = "else after a loop is not in the neuron language; write it below the loop"
            self.scope.fail(node.orelse[0], problem)
        if not isinstance(node.target, ast.Name):
            self.scope.fail(node.target, "the loop variable is one name: for m in messages")
        here = ir.of_input(iterated.input) if iterated.input else None
        places = assigned(node.body)
        frame = self.scope.frame
        frame.read = (*frame.read, self.scope.path)
        before = dict(frame.names)
        carried = {  # the variable of a loop over constants begins anew
            name
            for name, place in places.items()
            if isinstance(before.get(name), Node) and not isinstance(place, ast.For)
        }
        for name in places:
            if name in carried:
                # The axes of a carried value are not known yet: the loop body may give it any.
                frame.names[name] = leaf(Op.CARRY, ir.union("boi"), name)
            else:
                known = frame.names.pop(name, None)
                if elements(known) is not None:
                    frame.names[name] = Unset(
                        f"{name!r} has several values, and from one message to the next only "
                        "numbers pass: give each a name of its own, and sum it up there"
                    )
        frame.names[node.target.id] = MessageRef()
        outer_push, frame.pushed = frame.pushed, {}
        traces = dict(frame.traces)
        self.scope.in_loop, self.scope.loop_depth = True, len(self.scope.sources)
        body()
        self.scope.in_loop = False
        frame = self.scope.frame
        for weight, pushed in frame.pushed.items():
            if isinstance(pushed, Unset):
                self.scope.fail(
                    self.scope.push_place or node,
                    f"{pushed.why}; push exactly once per message on every path of the loop",
                )
            others = frame.loop_push.get(weight, ir.ZERO)
            taken = weight in frame.loop_push and here is None
            if taken or not ir.is_const(ir.at_input(others, iterated.input), 0.0):
                self.scope.fail(
                    self.scope.push_place or node,
                    "push is called in two loops; push exactly once per message",
                )
            self.no_carry(pushed, self.scope.push_place or node, "push")
            frame.loop_push[weight] = pushed if here is None else select(here, pushed, others)
        for trace, kept in frame.traces.items():
            self.no_carry(kept, node, f"m.{trace}")
            if here is not None:
                before_it = traces.get(trace, leaf(Op.TRACE, "oi", trace))
                frame.traces[trace] = select(here, kept, before_it)
        frame.pushed = outer_push
        after = dict(frame.names)
        frame.names[node.target.id] = Unset(
            f"{node.target.id!r} is the message of a loop that is over; read its fields inside "
            "the loop"
        )
        for name, place in places.items():
            value = after.get(name)
            if name in carried and not isinstance(value, Node):
                self.scope.fail(place, f"{name!r} is not a number after the loop")
            # A temporary of the loop, perhaps with the name of a variable before it.
            me = leaf(Op.CARRY, "boi", name)
            if not isinstance(value, Node) or name not in carried or not _has(value, me):
                frame.names[name] = Unset(
                    f"{name!r} holds what the last message left, which depends on the order "
                    "of messages; start it before the loop and add to it, or use it inside the "
                    "loop only, and give what you need after the loop another name"
                )
                continue
            frame.names[name] = self.carried(name, before[name], value, place, here)

    def carried(
        self, name: str, start: Node, value: Node, place: ast.AST, here: Node | None
    ) -> Node:
        """The value of a variable after the loop, if its change per message is a monoid.

        here : the condition that selects the loop's messages; None for all.
        """
        me = leaf(Op.CARRY, "boi", name)
        if value is me:
            return start
        for monoid in ("sum", "prod", "max", "min", "any", "all"):
            element = peel(value, me, monoid)
            if element is not None and not ir.contains(element, Op.CARRY):
                if here is not None:
                    element = select(here, element, const(ir.IDENTITY[monoid]))
                found = reduce(monoid, "i", element)
                if monoid not in ("any", "all") or ir.is_truth(start):
                    return ir.combine(monoid, start, found)
                if not any(me in n.args and n.op is not Op.SELECT for n in ir.walk(value)):
                    # if c: found = True, where it was a number before
                    sides = (const(1.0), start) if monoid == "any" else (start, const(0.0))
                    return select(found, *sides)
                self.scope.fail(
                    place,
                    f"{name!r} starts as a number, and each message makes it true or false: Python "
                    "keeps the number where it decides. Start it with True, False or a condition, "
                    f"as  {name} = number != 0",
                )
        for monoid in ("max", "min"):
            if peel(value, me, monoid, lax=True) is not None:
                self.scope.fail(
                    place,
                    f"{name!r} keeps the last of equal messages, so its gradient depends on their "
                    f"order; keep the first: compare with {'>' if monoid == 'max' else '<'}, or "
                    f"put it first, as in {monoid}({name}, ...)",
                )
        others = sorted({n.value for n in ir.walk(value) if n.op is Op.CARRY} - {name})
        also = (
            f" (it also uses {', '.join(map(repr, others))}, which changes from message to message)"
            if others
            else ""
        )
        follows = value.op is Op.SELECT and me in value.args[1:] and not _has(value.args[0], me)
        remedy = _CHOSEN if follows and others and self.scope.kind == "forward" else ""
        self.scope.fail(
            place,
            f"{name!r} depends on the order of messages{also}: from one message to "
            "the next a variable may be summed (+=), multiplied (*=), or "
            f"taken the max, min, any or all of, and nothing else{remedy}",
        )

    def no_carry(self, value: Node, node: ast.AST, what: str) -> None:
        for n in ir.walk(value):
            if n.op is Op.CARRY:
                self.scope.fail(
                    node,
                    f"{what} uses {n.value!r} while it is still being summed up, so it "
                    "depends on the order of messages; use it after the loop, in a second "
                    "loop",
                )

    def reduction(
        self, loops: Sequence[ast.comprehension], node: ast.GeneratorExp | ast.ListComp, monoid: str
    ) -> tuple[Node, Node]:
        """The reduction of a generator over messages, and whether it is empty. ``loops``: the rest
        of the generator's loops, from one of them on.
        """
        identity = ir.IDENTITY[monoid]
        if not loops:
            element = self.expressions.number(node.elt)
            return ir.truth(element) if monoid in ("any", "all") else element, const(0.0)
        comp, names = loops[0], dict(self.scope.frame.names)
        iterated = self.expressions.value(comp.iter)
        items = self.sequences.rounds(iterated, comp.iter)

        def one(here: Node | None = None) -> tuple[Node, Node | None]:
            """One element, and the condition on which it exists: None for always, or ``here``."""
            keep = here
            for test in comp.ifs:
                c = self.expressions.condition(test)
                keep = c if keep is None else ir.make(Op.AND, keep, c)
            element, empty = self.reduction(loops[1:], node, monoid)
            if not ir.is_const(empty, 0.0):
                some = ir.make(Op.NOT, empty)
                keep = some if keep is None else ir.make(Op.AND, keep, some)
            if keep is not None:
                element = select(keep, element, const(identity))
            return element, keep

        if items is not None:
            result, empty = const(identity), const(1.0)
            for item in items:
                self.names.assign(comp.target, item, comp.target)
                element, keep = one()
                result = ir.combine(monoid, result, element)
                no = const(0.0) if keep is None else ir.make(Op.NOT, keep)
                empty = ir.make(Op.AND, empty, no)
            self.scope.frame.names = names
            return result, empty
        if not isinstance(iterated, (MessagesRef, ErrorsRef)):
            self.scope.fail(
                comp.iter,
                "a neuron loops over its messages and over constants (range(3), a tuple), not "
                f"over {ast.unparse(comp.iter)!r}",
            )
        if self.scope.in_loop:
            self.scope.fail(node, refusals.LOOP_IN_LOOP)
        if not isinstance(comp.target, ast.Name):
            self.scope.fail(comp.target, "the loop variable is one name: for m in messages")
        self.scope.frame.read = (*self.scope.frame.read, self.scope.path)
        hears = isinstance(iterated, ErrorsRef)
        self.scope.frame.names[comp.target.id] = ErrorRef() if hears else MessageRef()
        self.scope.in_loop, self.scope.loop_depth = True, len(self.scope.sources)
        name = iterated.input if isinstance(iterated, MessagesRef) else ""
        here = ir.of_input(name) if name else None
        element, keep = one(here)
        self.scope.in_loop = False
        self.scope.frame.names = names
        if hears and ir.contains(element, Op.MESSAGE_DRAW):
            self.scope.fail(
                node,
                "a draw of self in a loop over self.error would be the same number for each output "
                "neuron; draw one for each, with e.normal() or e.uniform(), or one before the loop",
            )
        if hears and not ir.contains(element, Op.ERROR, Op.ERROR_DRAW):
            self.scope.fail(node, "a loop over self.error reads e.delta of each output neuron")
        if keep is None or keep is here:
            count = leaf(Op.COUNT, "o", name or None)
            return reduce(monoid, "i", element), ir.make(Op.EQ, count, const(0.0))
        return reduce(monoid, "i", element), ir.make(Op.NOT, reduce("any", "i", keep))


def _has(root: Node, node: Node) -> bool:
    return any(n is node for n in ir.walk(root))
