"""From the source of one neuron to IR: the methods are run once, symbolically.

``if`` becomes a select of what the two branches leave behind; a loop over messages is run once with
a symbolic message, and every variable that it carries from message to message must turn out to be a
monoid (sum, product, max, min, any, all): that proves that the order of messages cannot matter.
What is not understood is a CompileError at the user's own line.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from horn.errors import CompileError
from horn.language import ir
from horn.language.calls import Calls
from horn.language.expressions import BINARY, instead_of
from horn.language.ir import Node, Op, const, leaf, reduce, select
from horn.language.scope import (
    BackwardIR,
    Context,
    Exit,
    ForwardIR,
    Frame,
    Message,
    Messages,
    Path,
    SelfRef,
    Unset,
)
from horn.language.source import Source, source_of
from horn.neuron import READABLE, Neuron, Parameter, State

_STATEMENTS: dict[type[ast.stmt], str] = {
    ast.FunctionDef: "a function inside a method",
    ast.ClassDef: "a class inside a method",
    ast.ImportFrom: "import",
    ast.Delete: "del",
}


class Run(Calls):
    """One symbolic run of forward, backward, or a plain function."""

    # -- functions

    def call(self, function: types.FunctionType, args: list[Any], node: ast.AST | None) -> Any:
        """Run a function's body in place of the call."""
        if len(self.sources) > 40:
            assert node is not None
            self.fail(
                node, f"{function.__name__} calls itself; the neuron language has no recursion"
            )
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
        path = self.path
        self.block(tree.body)
        self.join()
        inner, self.frame, self.path = self.frame, outer, path
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
            plural = "" if len(names) == 1 else "s"
            problem = f"{source.where} takes {len(names)} argument{plural}, got {len(args)}"
            if node is None and self.kind in ("forward", "backward"):
                problem = f"write it as  def {self.kind}(self, messages):"
            raise source.error(tree, problem) if node is None else self.source.error(node, problem)
        missing = [self.wrap(d) for d in defaults[len(defaults) - (len(names) - len(args)) :]]
        return dict(zip(names, [*args, *missing][: len(names)], strict=True))

    # -- statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.frame.done:
                return
            if isinstance(statement, ast.If):
                condition = self.expression(statement.test)
                c = self.condition(condition, statement.test)
                then = partial(self.block, statement.body)
                self.branch(c, then, partial(self.block, statement.orelse), statement)
            elif isinstance(statement, ast.For):
                self.for_each(statement)
            else:
                self.statement(statement)

    def for_each(self, node: ast.For) -> None:
        """A loop over constants is its rounds, in order; any other is over messages."""
        items = self.rounds(self.expression(node.iter), node.iter)
        if items is None:
            self.loop(node)
            return
        for item in items:
            if self.frame.done:
                return
            self.assign(node.target, item, node.target)
            self.block(node.body)
        if not self.frame.done:
            self.block(node.orelse)

    def branch(
        self,
        c: Node,
        then: Callable[[], Any],
        other: Callable[[], Any],
        node: ast.AST,
        opposite: bool = False,
    ) -> Any:
        """Run both sides of a condition and merge what they leave behind; their values too.

        opposite : the condition that ``node`` writes is not c.
        """
        if c.op is Op.CONST:
            return then() if c.value else other()
        if c.op is Op.NOT:  # one form of each condition, so that paths can be compared
            result = self.branch(c.args[0], other, then, node, not opposite)
            return result[::-1] if isinstance(result, tuple) else result
        before, path = self.frame, self.path
        self.frame, self.path = before.copy(), (*path, (c, True))
        a = then()
        yes = self.joined()
        self.frame, self.path = before.copy(), (*path, (c, False))
        b = other()
        no = self.joined()
        self.frame, self.path = before, path
        # What follows runs once: for the paths that have not returned.
        if yes.done is not no.done:
            gone, self.frame = (yes, no) if yes.done else (no, yes)
            left = [Exit(c, yes.done, gone, node, opposite), *self.frame.exits]
        else:
            left = [_within(c, True, x) for x in yes.exits]
            left += [_within(c, False, x) for x in no.exits]
            self.merge(c, yes, no, node, opposite)
        self.frame.exits = [*before.exits, *left]
        self.path = (*path, *((x.condition, not x.holds) for x in left))
        return a, b

    def joined(self) -> Frame:
        """The frame; where it has returned it speaks for its other exits too."""
        if self.frame.done:
            self.join()
        return self.frame

    def join(self) -> None:
        """Merge what the paths that have returned left behind into the frame, the latest first."""
        exits, self.frame.exits = self.frame.exits, []
        for x in reversed(exits):
            live, self.frame = self.frame, self.frame.copy()
            sides = (x.frame, live) if x.holds else (live, x.frame)
            self.merge(x.condition, *sides, x.node, x.opposite)

    def merge(self, c: Node, yes: Frame, no: Frame, node: ast.AST, opposite: bool) -> None:
        frame = self.frame
        text = self.condition_text(node)

        def both(a: Any, b: Any, what: str, remedy: str = "") -> Any:
            if a is b:
                return a
            if isinstance(a, Node) and isinstance(b, Node):
                return select(c, a, b)
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
        frame.fed = both(yes.fed, no.fed, "self.feedforward(...) is not called")
        frame.delta = both(yes.delta, no.delta, "self.backpropagate(...) is not called")
        frame.pushed = both(yes.pushed, no.pushed, "self.push(...) is not called")
        if yes.loop_push is not no.loop_push:  # a path that reads no messages pushes nothing
            sides = (const(0.0) if f.loop_push is None else f.loop_push for f in (yes, no))
            frame.loop_push = select(c, *sides)
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
            if type(node.op) not in BINARY:
                self.fail(
                    node,
                    f"{ast.unparse(node)!r}: this operator is not in the neuron language "
                    f"({instead_of(node.op)}",
                )
            value = ir.make(
                BINARY[type(node.op)],
                self.number(current, node.target),
                self.number(self.expression(node.value), node.value),
            )
            self.assign(node.target, value, node)
        elif isinstance(node, ast.Return):
            frame.returned = self.expression(node.value) if node.value is not None else None
            frame.done = True
            if self.in_loop and len(self.sources) == self.loop_depth:
                self.fail(
                    node,
                    "return inside the loop over messages: what is computed would depend on"
                    " the order of messages; use an if instead",
                )
        elif isinstance(node, ast.Pass):
            pass
        elif isinstance(node, (ast.Break, ast.Continue)):
            word = "break" if isinstance(node, ast.Break) else "continue"
            why = "it is not in the neuron language"
            if word == "break" and self.in_loop:
                why = "the result would depend on the order of messages"
            self.fail(node, f"{word} in a loop: {why}; put the rest of the loop under an if")
        elif isinstance(node, ast.While):
            self.fail(
                node,
                "while is not in the neuron language: a neuron loops over its messages "
                "(for m in messages) and over constants (for k in range(3))",
            )
        else:
            word = _STATEMENTS.get(type(node), type(node).__name__.lower())
            remedy = "; write it at the top of the file" if word == "import" else ""
            self.fail(
                node,
                f"{word} is not in the neuron language "
                f"(assignments, if, for m in messages and calls are){remedy}",
            )

    def assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                given = getattr(node, "value", None)
                if isinstance(given, ast.Constant) and given.value is None:
                    self.fail(
                        given,
                        f"None is no number; start {target.id!r} with one: 0.0 for a sum, "
                        "-math.inf for the largest, math.inf for the smallest",
                    )
                self.fail(node, "this call returns nothing")
            self.frame.names[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(
            self.expression(target.value), SelfRef
        ):
            self.assign_attribute(target, value)
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, tuple)
            and len(value) == len(target.elts)
        ):
            for t, v in zip(target.elts, value, strict=True):
                self.assign(t, self.wrap(v), node)
        else:
            self.fail(
                target,
                f"{ast.unparse(target)!r} cannot be assigned in a neuron; assign a "
                "variable or a State of self",
            )

    def assign_attribute(self, target: ast.Attribute, value: Any) -> None:
        assert self.context is not None
        name, cls = target.attr, self.context.cls
        found = inspect.getattr_static(cls, name, None)
        if type(found) is State:
            if self.in_loop:
                self.fail(
                    target,
                    f"self.{name} is set inside the loop over messages, so its value depends"
                    " on their order; sum up in a variable and set it after the loop",
                )
            self.frame.states[name] = self.number(value, target)
        elif type(found) is Parameter:
            self.fail(
                target,
                f"self.{name} is a Parameter: it is learned, not assigned; for a value that you "
                f"set yourself declare  {name} = horn.State(0.0)",
            )
        elif name in READABLE:
            word = "call self.feedforward(value)" if name == "output" else "it is read-only"
            self.fail(target, f"self.{name} cannot be assigned: {word}")
        else:
            self.fail(
                target,
                f"self.{name} is not declared; a value that a neuron keeps is a State: "
                f"write  {name} = horn.State(0.0)  in {cls.__name__}, or use a plain "
                "variable",
            )

    # -- the loop over messages

    def loop(self, node: ast.For) -> None:
        iterated = self.expression(node.iter)
        if self.in_loop and isinstance(iterated, Messages):
            self.fail(
                node,
                "a loop inside the loop over messages is not in the neuron language: a "
                "neuron sees one message at a time",
            )
        if not isinstance(iterated, Messages):
            self.fail(
                node.iter,
                "a neuron loops over its messages (for m in messages) and over constants (for k in "
                f"range(3)), not over {ast.unparse(node.iter)!r}",
            )
        if node.orelse:
            self.fail(node.orelse[0], "else after a loop is not in the neuron language")
        if not isinstance(node.target, ast.Name):
            self.fail(node.target, "the loop variable is one name: for m in messages")
        places = _assigned(node.body)
        frame = self.frame
        frame.read = (*frame.read, self.path)
        before = dict(frame.names)
        carried = {  # the variable of a loop over constants begins anew
            name
            for name, place in places.items()
            if isinstance(before.get(name), Node) and not isinstance(place, ast.For)
        }
        for name in places:
            if name in carried:
                # The axes of a carried value are not known yet: it may be anything that the loop
                # makes of it.
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
            self.fail(
                self.push_place or node,
                f"{frame.pushed.why}; push exactly once per message on every path of the loop",
            )
        if frame.pushed is not None:
            if frame.loop_push is not None:
                self.fail(
                    self.push_place or node,
                    "push is called in two loops; push exactly once per message",
                )
            self.no_carry(frame.pushed, self.push_place or node, "push")
            frame.loop_push = frame.pushed
        frame.pushed = outer_push
        after = dict(frame.names)
        frame.names[node.target.id] = Unset(
            f"{node.target.id!r} is the message of a loop that is over; read its fields inside "
            "the loop"
        )
        for name, place in places.items():
            value = after.get(name)
            if name in carried and not isinstance(value, Node):
                self.fail(place, f"{name!r} is not a number after the loop")
            # A temporary of the loop, perhaps with the name of something before it.
            me = leaf(Op.CARRY, "boi", name)
            if not isinstance(value, Node) or name not in carried or not _has(value, me):
                frame.names[name] = Unset(
                    f"{name!r} holds what the last message left, which depends on the order "
                    "of messages; start it before the loop and add to it, or use it inside the "
                    "loop only, and give what you need after the loop another name"
                )
                continue
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
        for monoid in ("max", "min"):
            if peel(value, me, monoid, lax=True) is not None:
                self.fail(
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
        self.fail(
            place,
            f"{name!r} depends on the order of messages{also}: from one message to "
            "the next a variable may be summed (+=), multiplied (*=), or "
            f"taken the max, min, any or all of, and nothing else",
        )

    def no_carry(self, value: Node, node: ast.AST, what: str) -> None:
        for n in ir.walk(value):
            if n.op is Op.CARRY:
                self.fail(
                    node,
                    f"{what} uses {n.value!r} while it is still being summed up, so it "
                    "depends on the order of messages; use it after the loop, in a second "
                    "loop",
                )

    def generator(
        self, node: ast.GeneratorExp | ast.ListComp, monoid: str, identity: float
    ) -> tuple[Node, Node]:
        """The reduction of a generator over messages, and whether it meets none."""
        return self.comprehended(node.generators, node, monoid, identity)

    def comprehended(
        self,
        loops: Sequence[ast.comprehension],
        node: ast.GeneratorExp | ast.ListComp,
        monoid: str,
        identity: float,
    ) -> tuple[Node, Node]:
        """The same of the loops from one of them on."""
        if not loops:
            element = self.number(self.expression(node.elt), node.elt)
            return ir.truth(element) if monoid in ("any", "all") else element, const(0.0)
        comp, names = loops[0], dict(self.frame.names)
        iterated = self.expression(comp.iter)
        items = self.rounds(iterated, comp.iter)

        def one() -> tuple[Node, Node | None]:
            """An element, and where there is one: None for everywhere."""
            keep: Node | None = None
            for test in comp.ifs:
                c = self.condition(self.expression(test), test)
                keep = c if keep is None else ir.make(Op.AND, keep, c)
            element, empty = self.comprehended(loops[1:], node, monoid, identity)
            if not ir.is_const(empty, 0.0):
                some = ir.make(Op.NOT, empty)
                keep = some if keep is None else ir.make(Op.AND, keep, some)
            if keep is not None:
                element = select(keep, element, const(identity))
            return element, keep

        if items is not None:
            result, empty = const(identity), const(1.0)
            for item in items:
                self.assign(comp.target, item, comp.target)
                element, keep = one()
                result = ir.combine(monoid, result, element)
                no = const(0.0) if keep is None else ir.make(Op.NOT, keep)
                empty = ir.make(Op.AND, empty, no)
            self.frame.names = names
            return result, empty
        if not isinstance(iterated, Messages):
            self.fail(
                comp.iter,
                "a neuron loops over its messages and over constants (range(3), a tuple), not "
                f"over {ast.unparse(comp.iter)!r}",
            )
        if self.in_loop:
            self.fail(
                node,
                "a loop inside the loop over messages is not in the neuron language: "
                "compute it before, in a loop of its own",
            )
        if not isinstance(comp.target, ast.Name):
            self.fail(comp.target, "the loop variable is one name: for m in messages")
        self.frame.read = (*self.frame.read, self.path)
        self.frame.names[comp.target.id] = Message()
        self.in_loop, self.loop_depth = True, len(self.sources)
        element, keep = one()
        self.in_loop = False
        self.frame.names = names
        if keep is None:
            return reduce(monoid, "i", element), ir.make(Op.EQ, leaf(Op.COUNT, "o"), const(0.0))
        return reduce(monoid, "i", element), ir.make(Op.NOT, reduce("any", "i", keep))


_OR_EQUAL = {Op.GT: Op.GE, Op.LT: Op.LE, Op.GE: Op.GT, Op.LE: Op.LT}
_MIRROR = {Op.GT: Op.LT, Op.LT: Op.GT, Op.GE: Op.LE, Op.LE: Op.GE}


def peel(value: Node, me: Node, monoid: str, lax: bool = False) -> Node | None:
    """The element e if value is (me (+) e) for this monoid, under any selects; else None.

    Of equals max and min keep the first, to which the gradient goes; if lax also the last.
    """
    found: dict[Node, Node | None] = {}  # of what is carried from message to message
    for node in ir.walk(value):
        if node is me:
            found[node] = const(ir.IDENTITY[monoid])
        elif node.op is Op.CARRY or any(a in found for a in node.args):
            found[node] = _peeled(node, me, monoid, lax, found)
    return found.get(value)


def _peeled(
    value: Node, me: Node, monoid: str, lax: bool, found: dict[Node, Node | None]
) -> Node | None:
    """``peel`` of a node, where those of its arguments are known; others are not carried."""
    if value.op is Op.SELECT:
        c, a, b = value.args
        if c not in found:
            left, right = found.get(a), found.get(b)
            return None if left is None or right is None else select(c, left, right)
        # if v > best: best = v
        if monoid in ("max", "min"):
            better, worse = (Op.GT, Op.LE) if monoid == "max" else (Op.LT, Op.GE)
            for new, old, op in ((a, b, better), (b, a, worse)):
                ops = (op, _OR_EQUAL[op]) if lax else (op,)
                if old is me and c.op in ops and c.args == (new, me):
                    return new
                if old is me and _MIRROR.get(c.op) in ops and c.args == (me, new):
                    return new
        return None
    if monoid == "sum" and value.op is Op.SUB:
        left = found.get(value.args[0])
        return None if left is None or value.args[1] in found else left - value.args[1]
    if monoid == "prod" and value.op is Op.DIV:
        left = found.get(value.args[0])
        return None if left is None or value.args[1] in found else left / value.args[1]
    if monoid == "prod" and value.op is Op.NEG:
        inner = found[value.args[0]]
        return None if inner is None else -inner
    if monoid in ("any", "all") and value.op is Op.NE:
        for a, b in (value.args, value.args[::-1]):
            if ir.is_const(b, 0.0):
                return found.get(a)
    if value.op is ir.COMBINE[monoid]:
        a, b = value.args
        first_only = monoid in ("max", "min") and not lax
        for mine, other in ((a, b),) if first_only else ((a, b), (b, a)):
            if mine in found and other not in found:
                inner = found[mine]
                return None if inner is None else ir.combine(monoid, inner, other)
    return None


def _has(root: Node, node: Node) -> bool:
    return any(n is node for n in ir.walk(root))


def _within(c: Node, holds: bool, x: Exit) -> Exit:
    """An exit of one side of a condition, as the other side sees it."""
    sides = [n if side else ir.make(Op.NOT, n) for n, side in ((c, holds), (x.condition, x.holds))]
    return Exit(ir.make(Op.AND, *sides), True, x.frame, x.node, x.opposite ^ (not x.holds))


def _assigned(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """The variables that a loop body sets, with the last place of each."""
    found: dict[str, ast.AST] = {}
    for statement in body:
        for n in ast.walk(statement):
            targets = (
                n.targets
                if isinstance(n, ast.Assign)
                else [n.target]
                if isinstance(n, (ast.AugAssign, ast.AnnAssign, ast.For))
                else []
            )
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        found[name.id] = n
    return found


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    return target


def _method(cls: type[Neuron], name: str) -> types.FunctionType:
    function = inspect.getattr_static(cls, name)
    if not isinstance(function, types.FunctionType):
        raise CompileError(
            f"{cls.__name__}.{name} must be a plain method: def {name}(self, messages)"
        )
    return function


def forward(context: Context) -> ForwardIR:
    """The IR of a class's forward. Raises CompileError with the user's line."""
    function = _method(context.cls, "forward")
    run = Run(context, "forward")
    run.call(function, [SelfRef(), Messages()], None)
    source, frame = source_of(function), run.frame
    if frame.fed is None:
        raise source.error(
            source.tree,
            f"{context.cls.__name__}.forward never calls self.feedforward(...), so "
            "the neuron has no output. End forward with self.feedforward(value)",
        )
    if isinstance(frame.fed, Unset):
        raise source.error(
            source.tree, f"{frame.fed.why}; call it exactly once on every path of forward"
        )
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
        why = f"{context.cls.__name__}.backward never calls self.backpropagate(...)"
        if isinstance(frame.delta, Unset):
            why = frame.delta.why
        raise source.error(
            source.tree, f"{why}; end backward with self.backpropagate(delta), once on every path"
        )
    cls = context.cls
    for name in dir(cls):
        if type(inspect.getattr_static(cls, name)) is Parameter:
            pushed = frame.parameters.get(name)
            if not isinstance(pushed, Node):
                why = f"{cls.__name__}.backward does not push the gradient of Parameter {name!r}"
                if isinstance(pushed, Unset):
                    why = pushed.why
                raise source.error(
                    source.tree, f'{why}; call self.push(gradient, to="{name}") once on every path'
                )
    parameters = {k: v for k, v in frame.parameters.items() if isinstance(v, Node)}
    ir.verify(*_roots(frame.delta, *parameters.values(), *frame.states.values(), frame.loop_push))
    place = source.error(source.tree, "")
    return BackwardIR(frame.delta, frame.loop_push, parameters, frame.states, run.uses_delta, place)


def function(f: Callable[..., Any], *args: Node) -> Node:
    """The IR of a plain function: an interlayer (output -> output), a loss (output, target ->
    loss).
    """
    run = Run(None, "interlayer" if len(args) == 1 else "loss")
    result = run.call_any(f, list(args), None)
    if not isinstance(result, Node):
        name = getattr(f, "__name__", repr(f))
        raise CompileError(f"{name} must return a number, got {result!r}")
    return result


def error_of(f: Callable[..., Any], problem: str) -> CompileError:
    """A complaint about a whole function, at its line if it has one."""
    if not isinstance(f, types.FunctionType) or f.__name__ == "<lambda>":
        return CompileError(problem)
    source = source_of(f)
    return source.error(source.tree, problem)


def _roots(*nodes: Node | None) -> list[Node]:
    return [n for n in nodes if n is not None]


def _sitting_out(output: Node, read: tuple[Path, ...]) -> Node | None:
    """The condition (o) on which a neuron leaves the batch: a 0 fed forward for a per-batch reason,
    with no message read.
    """
    zero: list[Path] = []
    pending: list[tuple[Node, Path]] = [(output, ())]
    while pending:
        node, path = pending.pop()
        if ir.is_const(node, 0.0):
            zero.append(path)
        elif node.op is Op.SELECT and node.args[0].axes in ("", "o"):
            c, a, b = node.args
            pending += [(b, (*path, (c, False))), (a, (*path, (c, True)))]
    found: Node | None = None
    for path in zero:
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
