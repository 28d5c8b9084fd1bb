"""Calls: the function that a call means, and the remedy where it is not in the language."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from horn import ir, refusals
from horn import math as horn_math
from horn import random as horn_random
from horn.activations import Activation
from horn.ir import Node, Op, const, leaf, reduce, select
from horn.ir.derive import gradient
from horn.language.expressions import Expressions
from horn.language.functions import MATH, Functions, hashable
from horn.language.loops import MessageLoops
from horn.language.names import LAYER_WORDS
from horn.language.orders import Orders
from horn.language.references import (
    ActivationRef,
    AggregateRef,
    MessagesRef,
    MethodRef,
    SelfRef,
    Word,
    elements,
)
from horn.language.scope import Scope
from horn.language.sequences import Sequences
from horn.language.words import Words
from horn.mistakes import NOT_IN_MATH
from horn.neuron import Neuron, Parameter, State, SynapseState, Weight

# Functions of Python that horn.math defines with operations of the neuron language.
_HELPERS: dict[Any, Callable[..., Any]] = {
    python: f for python, f in horn_math.OF_PYTHON.items() if f not in MATH
}
_MONOIDS = {
    sum: "sum", max: "max", min: "min", any: "any", all: "all", horn_math.prod: "prod",
}  # fmt: skip
_OF_NUMBERS: tuple[Any, ...] = (len, abs, float, bool, pow)
_ORDERS = {
    horn_math.median: "median", horn_math.largest: "largest", horn_math.smallest: "smallest",
    horn_math.top_sum: "top_sum",
}  # fmt: skip
_CALLED = (ActivationRef, Activation, MethodRef, AggregateRef, types.FunctionType)
_DECLARED = (Parameter, State, SynapseState, Weight)
_SEQUENCES = (range, enumerate, zip, reversed, list, tuple)  # of known values
_ORDER = "messages have no order: loop over them with for m in messages"
_REAL = "a neuron computes with real numbers: keep the two parts in two variables"
_OR_PYTHON = ", or put @horn.interpreted on the class, which runs it with all of Python"
_DRAWS = "draw with self.uniform(), self.normal() or self.bernoulli(p), which a run repeats"
_INSTEAD: dict[Any, str] = {
    **dict.fromkeys((horn_random.uniform, horn_random.normal), _DRAWS),
    **dict.fromkeys((isinstance, type, hasattr), "all values are numbers here: leave it out"),
    **dict.fromkeys((enumerate, zip, sorted, reversed, list, tuple, iter, next, map), _ORDER),
    sorted: f"{_ORDER}, ask horn.math.median or horn.math.largest(k, ...) of them{_OR_PYTHON}",
    complex: _REAL,
    print: "it gives nothing: write it on a line of its own, which is left out where neurons are "
    "compiled",
    round: "write horn.math.floor(x + 0.5), which rounds halves up: 2.5 gives 3, not 2",
    int: "write horn.math.floor(x), which rounds down: -0.5 gives -1, not 0",
    super: "call the base class by its name: Base.forward(self, messages)",
}
_ONE_NEURON = (
    "output and target are numbers of one neuron: write what it makes of them; of the whole layer "
    "there are x.sum(), x.mean(), x.max(), x.min() and x.prod() of any number x"
)
_OF_LAYER = {  # instead of what has a remedy with messages
    **{name: f"x.{name}()" for name in LAYER_WORDS},
    "logsumexp": "log(exp(x).sum())", "softmax": "exp(x) / exp(x).sum()",
}  # fmt: skip
_ROUND_DIGITS = (
    "write horn.math.floor(x * 100.0 + 0.5) / 100.0 for 2 digits, which rounds halves up: 0.125 "
    "gives 0.13, not 0.12"
)
_OF_PYTHON = sorted(f.__name__ for f in (*_MONOIDS, *_OF_NUMBERS) if f.__module__ == "builtins")
_PLAIN = (
    "calls in a neuron take plain arguments: write them in their order, without names; a function "
    "with arguments after a * cannot be called"
)
_INSTEAD_OF_MODULES = {
    "random": _DRAWS,
    "secrets": _DRAWS,
    "time": "a neuron has no clock; self.iteration is the number of the batch",
    "datetime": "a neuron has no clock; self.iteration is the number of the batch",
    "numpy": "a neuron computes with numbers, not with arrays: take its functions from horn.math",
    "cmath": _REAL,
}


@dataclass(frozen=True)
class Calls:
    """Expressions that are calls."""

    scope: Scope
    expressions: Expressions
    sequences: Sequences
    loops: MessageLoops
    orders: Orders
    functions: Functions
    words: Words

    def __post_init__(self) -> None:
        self.expressions.rules[ast.Call] = self.call

    def call(self, node: ast.Call) -> Any:
        self.no_super(node)
        target = self.expressions.value(node.func)
        if isinstance(target, Word):
            return self.words.call(target, node)
        if hashable(target):
            target = _HELPERS.get(target, target)
            if target in (max, min) and any(k.arg == "key" for k in node.keywords):
                return self.orders.chosen(target.__name__, node)
            if target in _ORDERS:
                return self.orders.ordered(_ORDERS[target], node)
            if target in _MONOIDS or target in _OF_NUMBERS:
                return self.builtin(target, node)
            if target in _SEQUENCES:
                found = self.constants(target, node)
                if found is not None:
                    return found
        if target is type and [type(self.expressions.value(a)) for a in node.args] == [SelfRef]:
            assert self.scope.context is not None
            return self.scope.context.cls
        if hashable(target) and target in _INSTEAD:
            name, remedy = ast.unparse(node.func), _INSTEAD[target]
            if self.scope.context is None and remedy.startswith(_ORDER):
                remedy = _ONE_NEURON
            if target is round and len(node.args) + len(node.keywords) > 1:
                remedy = _ROUND_DIGITS
            self.scope.fail(node.func, f"{name} is not in the neuron language; {remedy}")
        is_math = hashable(target) and target in MATH
        if not is_math and not isinstance(target, _CALLED):
            self.refuse(target, node)
        if node.keywords:
            self.scope.fail(node, _PLAIN)
        args = [self.expressions.value(a) for a in node.args]
        if isinstance(target, ActivationRef):
            return self.activate(target, args, node)
        if isinstance(target, Activation):
            return self.functions.call_any(target.f, self.numbers(args, node), node)
        if isinstance(target, MethodRef):
            return self.functions.call(target.function, [SelfRef(), *args], node)
        if isinstance(target, AggregateRef):
            if args or node.keywords:
                self.scope.fail(node, f"output.{target.name}() takes no arguments")
            return self.over_layer(target.name, target.node, node)
        if is_math:
            return self.functions.math(MATH[target], args, node)
        return self.functions.call(target, args, node)

    def refuse(self, target: Any, node: ast.Call) -> NoReturn:
        """Fail at a call of what is not in the language, with what to write."""
        name = ast.unparse(node.func)
        twin = getattr(target, "__name__", "")
        if name in _OF_PYTHON and self.module_of(target, node.func) == "numpy":
            self.scope.fail(
                node.func,
                f"{name} here is numpy.{name}, as after  from numpy import *  or %pylab, and a "
                f"neuron calls Python's own: write  from builtins import {name}  below that, or  "
                "import numpy as np  instead of it",
            )
        if twin in horn_math.OPS and hasattr(horn_math, twin):
            self.scope.fail(
                node.func, f"{name} is not in the neuron language; write horn.math.{twin}"
            )
        if self.module_of(target, node.func) in ("math", "numpy") and twin in NOT_IN_MATH:
            instead = NOT_IN_MATH[twin]
            if self.scope.context is None:
                instead = _OF_LAYER.get(twin, instead)
            said = f"{name} is not in the neuron language; write  {instead}"
            self.scope.fail(node.func, said)
        of_module = _INSTEAD_OF_MODULES.get(self.module_of(target, node.func))
        if of_module is not None:
            if name.startswith(("np.random.", "numpy.random.")):
                of_module = _DRAWS
            self.scope.fail(node.func, f"{name} is not in the neuron language; {of_module}")
        if isinstance(target, type) and issubclass(target, _DECLARED):
            self.scope.fail(
                node,
                f"{name}(...) is declared in the class, not in a method: write  name = "
                f"{ast.unparse(node)}  above it, a line of the class, and read self.name here",
            )
        if isinstance(node.func, ast.Name) and (whose := self.scope.owned(name)):
            self.scope.fail(node.func, f"{name} is not in the neuron language; write {whose}")
        if hasattr(target, "__wrapped__"):
            self.scope.fail(
                node.func,
                f"{name} is a function inside a {type(target).__name__}; leave its decorator out",
            )
        self.scope.fail(
            node.func,
            f"{name} is not in the neuron language (calls allowed: {', '.join(_OF_PYTHON)}, of "
            f"horn.math {', '.join(self.of_math())}, and your own functions).\n"
            f"Write it with those{_OR_PYTHON * (self.scope.context is not None)}.",
        )

    def of_math(self) -> list[str]:
        """The functions of horn.math that may be called here."""
        of_messages = {f.__name__ for f in _ORDERS} if self.scope.context is None else set()
        return [name for name in sorted(horn_math.FUNCTIONS) if name not in of_messages]

    def no_super(self, node: ast.Call) -> None:
        """Fail at super().method(...), and name the call that is meant."""
        method = node.func
        if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Call):
            return
        called = method.value.func
        if isinstance(called, ast.Name) and self.expressions.value(called) is super:
            given = ", ".join(["self", *map(ast.unparse, (*node.args, *node.keywords))])
            name, word = self.base_with(method.attr), method.attr
            said = f"call the base class by its name: {name}.{word}({given})"
            ends = {"forward": "feedforward", "backward": "backpropagate"}.get(word)
            if ends and any(
                _calls_of_self(each, ends) for each in ast.walk(self.scope.source.tree)
            ):
                said = (
                    f"{name}.{word} calls self.{ends} already, and so does this method: put what "
                    f"both compute into a method of {name} that returns it, and call that"
                )
            self.scope.fail(called, f"super is not in the neuron language; {said}")

    def base_with(self, method: str) -> str:
        """The class whose method super() calls in the function that is being run; else Base."""
        classes = () if self.scope.context is None else self.scope.context.cls.__mro__
        running, bases = self.scope.source.function, iter(classes)
        for cls in bases:
            if any(each is running for each in vars(cls).values()):
                break
        found = (cls.__name__ for cls in bases if method in vars(cls) and cls is not Neuron)
        return next(found, "Base")

    def numbers(self, values: list[Any], node: ast.Call) -> list[Node]:
        """The values of a call's arguments, all of which must be numbers."""
        return [self.scope.number(v, n) for v, n in zip(values, node.args, strict=True)]

    def module_of(self, target: Any, text: ast.expr) -> str:
        """The package of a function: that of the module written in the text, else its own."""
        while isinstance(text, ast.Attribute):
            text = text.value
        module = self.expressions.value(text) if isinstance(text, ast.Name) else None
        if isinstance(module, types.ModuleType):
            return module.__name__.partition(".")[0]
        owner = (
            getattr(target, "__module__", None) or type(getattr(target, "__self__", 0)).__module__
        )
        return str(owner).partition(".")[0]

    def activate(self, ref: ActivationRef, args: list[Any], node: ast.Call) -> Node:
        assert self.scope.context is not None
        activation = self.scope.context.activation
        if len(args) != activation.n_arguments:
            self.scope.fail(node, f"self.activation takes one number, got {len(args)}")
        if activation.n_arguments > 1:
            several = self.numbers(args, node)
            return self.scope.number(self.functions.call_any(activation.f, several, node), node)
        arg = self.scope.number(args[0], node.args[0])
        if ref.part == "derivative" and activation.df is None:
            self.scope.fail(node, refusals.no_derivative(activation.name))
        if ref.part == "derivative_at":
            return self.slope_at(activation, arg, node)
        function = activation.f if ref.part == "f" else activation.df
        assert function is not None
        return self.scope.number(self.functions.call_any(function, [arg], node), node)

    def slope_at(self, activation: Activation, z: Node, node: ast.AST) -> Node:
        """The derivative d f / d z at the summed input: given, from the output, or derived."""
        if activation.df_at is not None:
            return ir.lift(self.functions.call_any(activation.df_at, [z], node))
        if activation.df is not None:
            y = ir.lift(self.functions.call_any(activation.f, [z], node))
            return ir.lift(self.functions.call_any(activation.df, [y], node))
        # At a leaf of its own: what z is made of may be folded into the formula, and z be gone.
        at = ir.load("z", z.axes)
        y = ir.lift(self.functions.call_any(activation.f, [at], node))
        return ir.replace(gradient(y, const(1.0), [at])[at], {at: z})

    def builtin(self, target: Any, node: ast.Call) -> Any:
        name = _MONOIDS.get(target, target.__name__)
        if name == "len":
            return self.count(node)
        first = node.args[0] if node.args else None
        if target in _MONOIDS and isinstance(first, (ast.GeneratorExp, ast.ListComp)):
            return self.reduced(name, first, node)
        if node.keywords:
            self.scope.fail(node, _PLAIN)
        if isinstance(first, ast.Starred) and len(node.args) == 1 and target in _MONOIDS:
            values = ast.unparse(first.value)
            self.scope.fail(first, f"{name} takes the values of a tuple at once: {name}({values})")
        args = [self.expressions.value(a) for a in node.args]
        if any(isinstance(a, MessagesRef) for a in args):
            self.scope.fail(
                node,
                f"{name}(messages): say what of each message: {name}(m.input * m.weight "
                "for m in messages)",
            )
        if target in _MONOIDS and len(args) == 1:
            items = elements(args[0])
            if items is not None:
                self.sequences.check_rounds(len(items), node)
                return self.folded(name, [self.scope.number(x, node) for x in items], node)
            if self.scope.context is None and isinstance(args[0], Node) and name in LAYER_WORDS:
                return self.over_layer(name, args[0], node)
        nodes = self.numbers(args, node)
        if name in ("max", "min") and len(nodes) >= 2:
            return self.folded(name, nodes, node)
        if name == "abs" and len(nodes) == 1:
            return ir.make(Op.ABS, nodes[0])
        if name == "pow" and len(nodes) == 2:
            return ir.make(Op.POW, *nodes)
        if name == "float" and len(nodes) == 1:
            is_condition = nodes[0].op in ir.BOOLEAN
            return select(nodes[0], const(1.0), const(0.0)) if is_condition else nodes[0]
        if name == "bool" and len(nodes) == 1:
            return ir.truth(nodes[0])
        self.scope.fail(node, f"{name} in a neuron is over messages: {name}(... for m in messages)")

    def count(self, node: ast.Call) -> Node:
        """The value of len(messages), len(output) of a whole layer, or len of constants."""
        is_one = len(node.args) == 1 and not node.keywords
        counted = self.expressions.value(node.args[0]) if is_one else None
        if isinstance(counted, MessagesRef):
            return leaf(Op.COUNT, "o", counted.input or None)
        items = elements(counted)
        if items is not None:
            return const(float(len(items)))
        if self.scope.context is None and isinstance(counted, Node):
            return ir.Scalar("layer_size")
        is_layer = self.scope.context is None
        what = "a layer: len(output)" if is_layer else "messages: len(messages)"
        self.scope.fail(node, f"len here is of {what}")

    def reduced(self, name: str, first: ast.GeneratorExp | ast.ListComp, node: ast.Call) -> Node:
        """The value of sum, prod, max, min, any or all over a comprehension."""
        word = {"sum": "start", "prod": "start", "max": "default", "min": "default"}.get(name)
        given = {k.arg: k.value for k in node.keywords}
        if not given.keys() <= {word} - {None}:
            takes = f"no other keyword than {word}" if word else "no keywords"
            self.scope.fail(node, f"{name} over messages takes {takes}")
        if len(node.args) == 2 and name == "sum" and not given:
            given["start"] = node.args[1]
        elif len(node.args) > 1:
            self.scope.fail(node, f"{name} takes one generator over messages")
        result, empty = self.loops.reduction(first.generators, first, name)
        if word in given:
            other = self.expressions.number(given[word])
            if word == "default":
                return select(empty, other, result)
            return ir.combine(name, other, result)
        may_be_none = not ir.is_const(empty, 0.0) and any(comp.ifs for comp in first.generators)
        if name in ("max", "min") and (may_be_none or ir.is_const(empty, 1.0)):
            self.scope.fail(
                node,
                f"the {name} of no message at all is no number; say what it is where the if "
                f"lets none through: {name}((... for m in messages if ...), default=0.0)",
            )
        return result

    def folded(self, name: str, nodes: list[Node], node: ast.AST) -> Node:
        """The value of sum, prod, max, min, any or all of some numbers, in their order."""
        if name in ("any", "all"):
            nodes = [ir.truth(x) for x in nodes]
        elif name in ("max", "min") and not nodes:
            self.scope.fail(node, f"the {name} of nothing is no number")
        result: Node = const(ir.IDENTITY[name])
        for each in nodes:
            result = ir.combine(name, result, each)
        return result

    def over_layer(self, name: str, value: Node, node: ast.AST) -> Node:
        """The reduction of a value over all neurons of the layer, in an interlayer or loss.

        Fails under a condition that differs between neurons: all neurons take part, or none.
        """
        if any("o" in condition.axes for condition, _ in self.scope.path):
            self.scope.fail(
                node,
                f"{ast.unparse(node)!r} is of the whole layer, but stands where only some of its "
                "neurons come: compute it before the if",
            )
        if name == "mean":
            return reduce("sum", "o", value) / ir.Scalar("layer_size")
        return reduce(name, "o", value)

    def constants(self, target: Any, node: ast.Call) -> Any:
        """The value of range, enumerate, zip, ... of constants; None if they are not constants."""
        args = [self.expressions.value(a) for a in node.args]
        options = {str(k.arg): (self.expressions.value(k.value), k.value) for k in node.keywords}
        if target is range:
            if any(isinstance(a, Node) and ir.contains(a, Op.COUNT) for a in args):
                index = ", where m.index is the number of each, from 0"
                self.scope.fail(
                    node,
                    f"{ast.unparse(node)!r}: a neuron loops over the messages themselves: for m in "
                    f"messages{index * (self.scope.kind == 'forward')}",
                )
            given = zip(args, node.args, strict=True)
            items: list[Any] = [self.sequences.whole(*each, "range") for each in given]
        else:
            n = 1 if target is enumerate else len(args)  # its second is a number, the start
            items = [elements(a) for a in args[:n]]
            if not items or any(each is None for each in items):
                return None
            if target in (enumerate, zip):
                self.sequences.check_rounds(min(map(len, items)), node)
            starts = zip(args[n:], node.args[n:], strict=True)
            items += [self.sequences.whole(*each, "start") for each in starts]
        how = {name: self.sequences.whole(*given, name) for name, given in options.items()}
        try:
            if target in (list, tuple, reversed) and len(items) == 1 and not how:
                return items[0][:: -1 if target is reversed else 1].raw
            found = target(*items, **how)
            return found if target is range else tuple(found)
        except (TypeError, ValueError) as error:  # range(2, 5, 0), zip(strict=True) of 2 lengths
            self.scope.fail(node, f"{ast.unparse(node)!r}: {error}")


def _calls_of_self(node: ast.AST, word: str) -> bool:
    """Whether the node is a call of self.word."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{word}"
