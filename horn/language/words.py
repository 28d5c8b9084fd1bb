"""Calls of a neuron's own words: feedforward, backpropagate, push, and draws."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horn import ir, refusals
from horn.ir import Node, Op, const, leaf, select
from horn.ir.neuron_ir import NeuronContext
from horn.language.expressions import Expressions
from horn.language.references import Unset, Word
from horn.language.scope import Scope
from horn.mistakes import suggest
from horn.neuron import (
    DRAWS,
    OF_A_SAMPLE,
    PERIODS,
    RUNNING,
    STATISTICS,
    WEIGHT,
    Parameter,
    State,
    declared,
)
from horn.random import site

# The arguments of each draw, with their defaults.
_ARGUMENTS: dict[str, dict[str, float | None]] = {
    "bernoulli": {"p": None},
    "uniform": {"low": 0.0, "high": 1.0},
    "normal": {"mean": 0.0, "std": 1.0},
}
_NO_TEXT = "?"  # of an argument that is no text, or that the text does not write out


@dataclass(frozen=True)
class Words:
    """The effects of a neuron's words on the run's scope."""

    scope: Scope
    expressions: Expressions

    def call(self, word: Word, node: ast.Call) -> Any:
        if word.name in DRAWS or word.of in ("message", "error"):
            return self.draw(word, node)
        if word.name == "push":
            return self.push(node)
        if word.name in STATISTICS["layer"]:
            return self.statistic(word.name, node)
        if node.keywords or len(node.args) != 1:
            self.scope.fail(node, f"self.{word.name} takes one number")
        arg = node.args[0]
        if isinstance(
            arg, ast.IfExp
        ):  # both sides feed forward: the same meaning, and a missing side is noticed
            c = self.expressions.condition(arg.test)
            sides = [
                ast.copy_location(ast.Call(node.func, [x], []), x) for x in (arg.body, arg.orelse)
            ]
            self.scope.branch(
                c, lambda: self.call(word, sides[0]), lambda: self.call(word, sides[1]), arg
            )
            return None
        kind, slot = ("forward", "fed") if word.name == "feedforward" else ("backward", "delta")
        if self.scope.kind != kind:
            self.scope.fail(node, refusals.wrong_method(word.name, kind, self.scope.kind))
        if self.scope.in_loop:
            self.scope.fail(node, refusals.called_in_loop(word.name))
        value = self.expressions.number(arg)
        before = getattr(self.scope.frame, slot)
        if isinstance(before, Unset):
            self.scope.fail(
                node,
                f"self.{word.name} is called a second time here: it was called above already, "
                f"except {before.why[before.why.rfind('where ') :]}; call it exactly once on every "
                "path, with else or return",
            )
        if before is not None:
            self.scope.fail(node, refusals.called_twice(word.name))
        setattr(self.scope.frame, slot, value)
        return None

    def arguments(self, node: ast.Call, takes: Sequence[str], problem: str) -> dict[str, ast.expr]:
        """A call's arguments by name, as Python binds them. Fails with ``problem`` at one too many,
        at an unknown one, and at one that is given twice.
        """
        if len(node.args) > len(takes):
            self.scope.fail(node, f"{problem}; got {len(node.args)} values")
        given = dict(zip(takes, node.args, strict=False))
        for keyword in node.keywords:
            name = keyword.arg
            if name is None or name not in takes:
                self.scope.fail(node, f"{problem}; got {name or ast.unparse(keyword)!r}")
            if name in given:
                self.scope.fail(node, f"{problem}; {name} is given twice")
            given[name] = keyword.value
        return given

    def push(self, node: ast.Call) -> None:
        problem = 'push takes a number, and to="name" for a Parameter'
        given = self.arguments(node, ("gradient", "to"), problem)
        to = _text(given.get("to"))
        if "gradient" not in given or to is _NO_TEXT:
            self.scope.fail(node, problem)
        value = self.expressions.number(given["gradient"])
        assert self.scope.context is not None
        weights = self.scope.context.weights(self.scope.kind)
        if self.scope.in_loop and (to is None or to in weights):
            self.push_to(to, weights, value, node)
            return
        if to is not None:
            assert self.scope.context is not None
            names = [*declared(self.scope.context.cls, Parameter)]
            if to not in names:
                if to in weights:
                    self.scope.fail(node, refusals.pushed_outside(to))
                if weights != (WEIGHT,):
                    self.scope.fail(
                        node,
                        f"there is no Weight or Parameter {to!r}; "
                        f"{suggest(to, [*weights, *names])}weights of a message: "
                        f"{', '.join(weights)}; Parameters: {', '.join(names) or 'none'}",
                    )
                self.scope.fail(
                    node,
                    f"{self.scope.context.cls.__name__} has no Parameter {to!r}; "
                    f"{suggest(to, names)}Parameters: {', '.join(names) or 'none'}",
                )
            if self.scope.kind == "forward":
                self.scope.fail(node, refusals.pushed_forward(to))
            if self.scope.in_loop:
                self.scope.fail(node, refusals.pushed_in_loop(to))
            if self.scope.frame.parameters.get(to) is not None:
                self.scope.fail(node, refusals.pushed_again(to))
            self.scope.frame.parameters[to] = value
            return
        self.scope.fail(
            node,
            f"{self.scope.context.cls.__name__}.{self.scope.kind} pushes outside the loop over "
            "messages, once for all synapses. Call self.push(...) once per message,"
            " inside the loop",
        )

    def push_to(self, to: str | None, weights: tuple[str, ...], value: Node, node: ast.AST) -> None:
        """A push to a weight of the message; ``to`` is None where it has only one."""
        is_forward = self.scope.kind == "forward"
        if to is None and len(weights) > 1 and is_forward:
            named = " or ".join(f'to="{name}"' for name in weights)
            self.scope.fail(node, refusals.which_weight(named))
        name = to or (weights[0] if is_forward else "")
        if name in self.scope.frame.pushed:
            self.scope.fail(node, refusals.PUSHED_TWICE)
        self.scope.frame.pushed[name] = value
        self.scope.push_place = node

    def statistic(self, word: str, node: ast.Call) -> Node:
        """The value of a statistic over the layer, the channel or the batch."""
        scope, context = self.scope, self.scope.context
        assert context is not None
        takes = ("x", "over", "running") if word in ("mean", "var") else ("x", "over")
        given = self.arguments(node, takes, refusals.no_word(word))
        over, name = (_text(given.get(each)) for each in ("over", "running"))
        if "x" not in given:
            scope.fail(node, refusals.no_word(word))
        if over is None or word not in STATISTICS.get(over, ()):
            said = ast.unparse(given["over"]) if over is _NO_TEXT else over
            scope.fail(node, refusals.no_statistic(word, said))
        if scope.kind != "forward":
            scope.fail(node, refusals.asked_backward(word, over))
        if scope.in_loop:
            scope.fail(node, refusals.asked_in_loop(word, over))
        if any(condition.axes for condition, _ in scope.path):
            scope.fail(
                node,
                f"{ast.unparse(node)!r} is of the {over}, but stands where only some of its "
                "neurons or samples come: compute it before the if",
            )
        x = self.expressions.number(given["x"])
        if over == "channel" and not context.positions:
            scope.fail(node, refusals.NO_CHANNELS)
        training = over == "batch" and scope.of_layer("training")
        if over != "batch" or training:
            found = _statistic(word, x, over, context)
        if over != "batch":
            if name is not None:
                scope.fail(node, f'running= is for over="batch": a {over} is there at prediction')
            return found
        if name is None and not training:
            scope.fail(node, refusals.NO_BATCH)
        if name is None:
            return found
        if name not in declared(context.cls, State):
            said = ast.unparse(given["running"])
            how = '; write its name there, as running="average"' * (name is _NO_TEXT)
            scope.fail(node, f"running={said} is no State of {context.cls.__name__}{how}")
        state = scope.frame.states.get(name, leaf(Op.STATE, "bo", name))
        if not training:
            return state
        scope.frame.states[name] = RUNNING * state + (1.0 - RUNNING) * found
        return found

    def draw(self, word: Word, node: ast.Call) -> Node:
        assert self.scope.context is not None
        defaults = _ARGUMENTS[word.name]
        takes = (*defaults, "per") if word.of == "self" else tuple(defaults)
        once = ", and is drawn once for each synapse" * (word.of != "self")
        problem = f"{word.name} takes {', '.join(takes[:-1])} and {takes[-1]}{once}"
        arguments, per = self.arguments(node, takes, problem), PERIODS[0]
        if "per" in arguments:
            said, known = arguments["per"], ", ".join(map(repr, PERIODS))
            per = self.expressions.value(said)
            if per not in PERIODS:
                self.scope.fail(said, f"per must be one of {known}, got {ast.unparse(said)}")
        values = []
        for name, default in defaults.items():
            if name in arguments:
                values.append(self.expressions.number(arguments[name]))
            elif default is not None:
                values.append(const(default))
            else:
                self.scope.fail(node, f"self.{word.name} needs {name}")
        if all(value.op is Op.CONST for value in values):
            if wrong := refusals.wrong_draw(word.name, [value.value for value in values]):
                self.scope.fail(node, wrong)
        calls = (*self.scope.call_sites, self.scope.source.place(node))
        number = site(calls)
        kind = "normal" if word.name == "normal" else "uniform"
        if word.of == "error":
            u = leaf(Op.ERROR_DRAW, "oi", (kind, number))
        elif word.of == "message":
            u = leaf(Op.SYNAPSE_DRAW, "oi", (kind, number))
        elif self.scope.in_loop:
            u = leaf(Op.MESSAGE_DRAW, "boi" if per in OF_A_SAMPLE else "oi", (kind, number, per))
        else:
            u = leaf(Op.DRAW, "bo" if per in OF_A_SAMPLE else "o", (kind, number, per))
        made = (calls, self.scope.rounds if word.of == "self" else ())  # a synapse's may be again
        if self.scope.drawn.setdefault((u.op, u.value), made) != made:
            is_own = word.of == "self"
            self.scope.fail(node, refusals.DRAWN_AGAIN if is_own else refusals.DRAWN_LIKE_ANOTHER)
        if word.name == "bernoulli":
            chosen = ir.drawn if u.op is Op.DRAW and self.scope.kind == "forward" else const
            return select(ir.make(Op.LT, u, values[0]), chosen(1.0), chosen(0.0))
        if word.name == "uniform":
            return ir.add(values[0], ir.mul(values[1] - values[0], u))
        return ir.add(values[0], ir.mul(values[1], u))


def _text(node: ast.expr | None) -> str | None:
    """The text that an argument is, as written; None where it is not given."""
    value = None if node is None else getattr(node, "value", _NO_TEXT)
    return value if isinstance(value, str | None) else _NO_TEXT


def _statistic(word: str, x: Node, over: str, context: NeuronContext) -> Node:
    if over == "channel" or (over == "batch" and context.is_map):
        return _over_channel(word, x, over, context)
    axis = "o" if over == "layer" else "b"
    if word == "rank":
        return ir.rank(x)
    if word not in ("mean", "var"):
        return ir.reduce(word, axis, x)
    share = 1.0 / ir.Scalar("layer_size") if axis == "o" else ir.Scalar("batch_share")
    mean = ir.mul(ir.reduce("sum", axis, x), share)
    if word == "mean":
        return mean
    apart = x - mean
    return ir.mul(ir.reduce("sum", axis, apart * apart), share)


def _over_channel(word: str, x: Node, over: str, context: NeuronContext) -> Node:
    """The statistic over all positions of a channel, for one sample or for all of the batch."""

    def total(value: Node) -> Node:
        return ir.channel_sum(value if over == "channel" else ir.reduce("sum", "b", value))

    share: Node = const(1.0 / context.positions)
    if over == "batch":
        share = ir.mul(ir.Scalar("batch_share"), share)
    if word == "sum":
        return total(x)
    mean = ir.mul(total(x), share)
    if word == "mean":
        return mean
    apart = x - mean
    return ir.mul(total(apart * apart), share)
