"""Calls of the neuron language: its words, the functions of horn.math, activations, draws, and the
user's own functions.
"""

from __future__ import annotations

import ast
import inspect
import math as python_math
import types
from collections.abc import Callable
from typing import Any

from horn import math as horn_math
from horn.activations import Activation
from horn.errors import CompileError
from horn.language import ir
from horn.language.derive import gradient
from horn.language.expressions import LAYER_WORDS, ONE_NUMBER, Expressions
from horn.language.ir import Node, Op, const, leaf, reduce, select
from horn.language.scope import ActivationRef, Aggregate, Messages, Method, SelfRef, Unset, Word
from horn.language.source import suggest
from horn.neuron import DRAWS, PERIODS, Parameter
from horn.random import site

_FUNCTIONS: dict[Any, str] = {
    getattr(horn_math, name): name
    for name in horn_math.OPS
    if hasattr(horn_math, name) and inspect.isfunction(getattr(horn_math, name))
}
_FUNCTIONS |= {horn_math.abs_: "abs", horn_math.pow_: "pow"}
_FUNCTIONS |= {
    getattr(python_math, name): name
    for name in (
        *("exp", "log", "sqrt", "tanh", "sin", "cos", "floor", "log1p", "expm1", "pow", "erf"),
        *("erfc", "atan", "atan2"),
    )
}
_FUNCTIONS[python_math.fabs] = "abs"
# Python's functions that horn.math writes in the neuron language.
_HELPERS: dict[Any, Callable[..., Any]] = {
    getattr(python_math, name): getattr(horn_math, name)
    for name in ("ceil", "tan", "asin", "acos", "isfinite", "isinf", "isnan")
}
_MONOIDS = {
    sum: "sum", max: "max", min: "min", any: "any", all: "all",
    python_math.prod: "prod", horn_math.prod: "prod",
}  # fmt: skip
_SEQUENCES = (range, enumerate, zip, reversed, list, tuple)  # of what is known before the run
_ORDER = "messages have no order: loop over them with for m in messages"
_REAL = "a neuron computes with real numbers: keep the two parts in two variables"
_INSTEAD: dict[Any, str] = {
    **dict.fromkeys((enumerate, zip, sorted, reversed, list, tuple, iter, next, map), _ORDER),
    sorted: f"{_ORDER}, or put @horn.interpreted on the class, which runs it with all of Python",
    complex: _REAL,
    print: 'leave it out here; a job with backend="python" runs the neuron as it is written',
    round: "write horn.math.floor(x + 0.5)",
    int: "write horn.math.floor(x)",
    super: "call the base class by its name: Base.forward(self, messages)",
}
_DRAWS = "draw with self.uniform(), self.normal() or self.bernoulli(p), which a run repeats"
_INSTEAD_OF_MODULES = {
    "random": _DRAWS,
    "secrets": _DRAWS,
    "time": "a neuron has no clock; self.iteration is the number of the batch",
    "datetime": "a neuron has no clock; self.iteration is the number of the batch",
    "numpy": "a neuron computes with numbers, not with arrays: take its functions from horn.math",
    "cmath": _REAL,
}


class Calls(Expressions):
    """What a call means."""

    def call(self, function: types.FunctionType, args: list[Any], node: ast.AST | None) -> Any:
        raise NotImplementedError

    def generator(
        self, node: ast.GeneratorExp | ast.ListComp, monoid: str, identity: float
    ) -> tuple[Node, Node]:
        raise NotImplementedError

    def visit_Call(self, node: ast.Call) -> Any:
        target = self.expression(node.func)
        if isinstance(target, Word):
            return self.word(target, node)
        if hashable(target):
            target = _HELPERS.get(target, target)
            if target in _MONOIDS or target in (len, abs, float, bool, pow):
                return self.builtin(target, node)
            if target in _SEQUENCES and not node.keywords:
                found = self.constants(target, node)
                if found is not None:
                    return found
        if hashable(target) and target in _INSTEAD:
            name = ast.unparse(node.func)
            self.fail(node.func, f"{name} is not in the neuron language; {_INSTEAD[target]}")
        if node.keywords:
            self.fail(node, "calls in a neuron take plain arguments")
        args = [self.expression(a) for a in node.args]
        if isinstance(target, ActivationRef):
            return self.activate(target, args, node)
        if isinstance(target, Activation):
            return self.call_any(
                target.f, [self.number(a, n) for a, n in zip(args, node.args, strict=True)], node
            )
        if isinstance(target, Method):
            return self.call(target.function, [SelfRef(), *args], node)
        if isinstance(target, Aggregate):
            if args or node.keywords:
                self.fail(node, f"output.{target.name}() takes no arguments")
            return self.over_layer(target.name, target.node, node)
        if hashable(target) and target in _FUNCTIONS:
            return self.math(_FUNCTIONS[target], args, node)
        if isinstance(target, types.FunctionType):
            return self.call(target, args, node)
        known = ", ".join(sorted(n for n in horn_math.OPS))
        name = ast.unparse(node.func)
        twin = getattr(target, "__name__", "")
        if twin in horn_math.OPS and hasattr(horn_math, twin):
            self.fail(node.func, f"{name} is not in the neuron language; write horn.math.{twin}")
        instead = _INSTEAD_OF_MODULES.get(self.module_of(target, node.func))
        if instead is not None:
            if name.startswith(("np.random.", "numpy.random.")):
                instead = _DRAWS
            self.fail(node.func, f"{name} is not in the neuron language; {instead}")
        self.fail(
            node.func,
            f"{name} is not in the neuron language (calls allowed: {known}, and your"
            " own functions).\nWrite it with those, or pass it as Activation(name, "
            "f, df).",
        )

    def module_of(self, target: Any, text: ast.expr) -> str:
        """The package that a function is of, by the name that the text has for it, or its own."""
        while isinstance(text, ast.Attribute):
            text = text.value
        module = self.expression(text) if isinstance(text, ast.Name) else None
        if isinstance(module, types.ModuleType):
            return module.__name__.partition(".")[0]
        owner = (
            getattr(target, "__module__", None) or type(getattr(target, "__self__", 0)).__module__
        )
        return str(owner).partition(".")[0]

    def call_any(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """Call a built-in function of horn.math, a user's function, or anything callable with
        nodes.
        """
        if hashable(function) and function in _FUNCTIONS:
            return self.math(_FUNCTIONS[function], args, node)
        if isinstance(function, types.FunctionType):
            return self.call(function, args, node)
        return self.trace(function, args, node)

    def math(self, name: str, args: list[Any], node: ast.AST | None) -> Node:
        if len(args) != horn_math.OPS[name]:
            assert node is not None
            n = horn_math.OPS[name]
            self.fail(node, f"{name} takes {n} argument{'s' * (n > 1)}, got {len(args)}")
        nodes = [self.number(a, node) if node is not None else a for a in args]
        if name == "where":
            return select(ir.truth(nodes[0]), nodes[1], nodes[2])
        return ir.make(Op(name), *nodes)

    def activate(self, ref: ActivationRef, args: list[Any], node: ast.Call) -> Node:
        assert self.context is not None
        activation = self.context.activation
        if len(args) != 1:
            self.fail(node, f"self.activation takes one number, got {len(args)}")
        arg = self.number(args[0], node.args[0])
        if ref.part == "derivative" and activation.df is None:
            self.fail(
                node,
                f"activation {activation.name!r} has no derivative of its output; use "
                "self.activation.derivative_at(z) with the summed input z",
            )
        if ref.part == "derivative_at":
            return self.slope_at(activation, arg, node)
        function = activation.f if ref.part == "f" else activation.df
        assert function is not None
        return self.number(self.call_any(function, [arg], node), node)

    def slope_at(self, activation: Activation, z: Node, node: ast.AST) -> Node:
        """d f / d z at the summed input: as given, from the output, or derived."""
        if activation.df_at is not None:
            return ir.lift(self.call_any(activation.df_at, [z], node))
        y = ir.lift(self.call_any(activation.f, [z], node))
        if activation.df is not None:
            return ir.lift(self.call_any(activation.df, [y], node))
        return gradient(y, const(1.0), [z])[z]

    def builtin(self, target: Any, node: ast.Call) -> Any:
        name = _MONOIDS.get(target, target.__name__)
        if name == "len":
            return self.count(node)
        first = node.args[0] if node.args else None
        if target in _MONOIDS and isinstance(first, (ast.GeneratorExp, ast.ListComp)):
            return self.reduced(name, first, node)
        if node.keywords:
            self.fail(node, "calls in a neuron take plain arguments")
        args = [self.expression(a) for a in node.args]
        if any(isinstance(a, Messages) for a in args):
            self.fail(
                node,
                f"{name}(messages): say what of each message: {name}(m.input * m.weight "
                "for m in messages)",
            )
        if target in _MONOIDS and len(args) == 1:
            items = self.sequence(args[0])
            if items is not None:
                return self.folded(name, [self.number(x, node) for x in items], node)
            if self.context is None and isinstance(args[0], Node) and name in LAYER_WORDS:
                return self.over_layer(name, args[0], node)
        nodes = [self.number(a, n) for a, n in zip(args, node.args, strict=True)]
        if name in ("max", "min") and len(nodes) >= 2:
            return self.folded(name, nodes, node)
        if name == "abs" and len(nodes) == 1:
            return ir.make(Op.ABS, nodes[0])
        if name == "pow" and len(nodes) == 2:
            return ir.make(Op.POW, *nodes)
        if name == "float" and len(nodes) == 1:
            return (
                nodes[0]
                if nodes[0].op not in ir.BOOLEAN
                else select(nodes[0], const(1.0), const(0.0))
            )
        if name == "bool" and len(nodes) == 1:
            return ir.truth(nodes[0])
        self.fail(node, f"{name} in a neuron is over messages: {name}(... for m in messages)")

    def count(self, node: ast.Call) -> Node:
        """len(messages), len(output) where a whole layer is seen, len of a tuple of constants."""
        counted = self.expression(node.args[0]) if len(node.args) == 1 else None
        if isinstance(counted, Messages):
            return leaf(Op.COUNT, "o")
        items = self.sequence(counted)
        if items is not None:
            return const(float(len(items)))
        if self.context is None and isinstance(counted, Node):
            return ir.Scalar("layer_size")
        what = "messages: len(messages)"
        if self.context is None:
            what = "a layer: len(output)"
        self.fail(node, f"len here is of {what}")

    def reduced(self, name: str, first: ast.GeneratorExp | ast.ListComp, node: ast.Call) -> Node:
        """sum, prod, max, min, any or all of a comprehension."""
        word = {"sum": "start", "prod": "start", "max": "default", "min": "default"}.get(name)
        given = {k.arg: k.value for k in node.keywords}
        if not given.keys() <= {word}:
            takes = f"no other keyword than {word}" if word else "no keywords"
            self.fail(node, f"{name} over messages takes {takes}")
        if len(node.args) == 2 and name == "sum" and not given:
            given["start"] = node.args[1]
        elif len(node.args) > 1:
            self.fail(node, f"{name} takes one generator over messages")
        result, empty = self.generator(first, name, ir.IDENTITY[name])
        if word in given:
            other = self.number(self.expression(given[word]), given[word])
            return (
                select(empty, other, result)
                if word == "default"
                else ir.combine(name, other, result)
            )
        may_be_none = not ir.is_const(empty, 0.0) and any(comp.ifs for comp in first.generators)
        if name in ("max", "min") and (may_be_none or ir.is_const(empty, 1.0)):
            self.fail(
                node,
                f"the {name} of no message at all is no number; say what it is where the if "
                f"lets none through: {name}((... for m in messages if ...), default=0.0)",
            )
        return result

    def folded(self, name: str, nodes: list[Node], node: ast.AST) -> Node:
        """sum, prod, max, min, any or all of some numbers, in their order."""
        if name in ("any", "all"):
            nodes = [ir.truth(x) for x in nodes]
        elif name in ("max", "min") and not nodes:
            self.fail(node, f"the {name} of nothing is no number")
        result: Node = const(ir.IDENTITY[name])
        for each in nodes:
            result = ir.combine(name, result, each)
        return result

    def over_layer(self, name: str, value: Node, node: ast.AST) -> Node:
        """A word of an interlayer or loss about all neurons of the layer: each asks, or none."""
        if any("o" in condition.axes for condition, _ in self.path):
            self.fail(
                node,
                f"{ast.unparse(node)!r} is of the whole layer, but stands where only some of its "
                "neurons come: compute it before the if",
            )
        if name == "mean":
            return reduce("sum", "o", value) / ir.Scalar("layer_size")
        return reduce(name, "o", value)

    def constants(self, target: Any, node: ast.Call) -> Any:
        """range, enumerate, zip, ... of what is known before the run; None if it is not."""
        args = [self.expression(a) for a in node.args]
        if target is range:
            return range(*(self.whole(a, n, "range") for a, n in zip(args, node.args, strict=True)))
        items = [self.sequence(a) for a in args]
        if not items or any(each is None for each in items):
            return None
        return tuple(target(*items))

    def word(self, word: Word, node: ast.Call) -> Any:
        if word.name in DRAWS or word.of == "message":
            return self.draw(word, node)
        if word.name == "push":
            return self.push(node)
        if node.keywords or len(node.args) != 1:
            self.fail(node, f"self.{word.name} takes one number")
        arg = node.args[0]
        if isinstance(
            arg, ast.IfExp
        ):  # feed forward on each side: the same meaning, and a dropped side is seen
            c = self.condition(self.expression(arg.test), arg.test)
            sides = [
                ast.copy_location(ast.Call(node.func, [x], []), x) for x in (arg.body, arg.orelse)
            ]
            self.branch(
                c, lambda: self.word(word, sides[0]), lambda: self.word(word, sides[1]), arg
            )
            return None
        kind, slot = ("forward", "fed") if word.name == "feedforward" else ("backward", "delta")
        if self.kind != kind:
            self.fail(node, f"self.{word.name} belongs in {kind}, not in {self.kind}")
        if self.in_loop:
            self.fail(
                node,
                f"self.{word.name} is called inside the loop over messages; call it "
                "once, after the loop",
            )
        value = self.number(self.expression(arg), arg)
        before = getattr(self.frame, slot)
        if isinstance(before, Unset):
            self.fail(
                node,
                f"self.{word.name} is called a second time here: it was called above already, "
                f"except {before.why[before.why.rfind('where ') :]}; call it exactly once on every "
                "path, with else or return",
            )
        if before is not None:
            self.fail(
                node,
                f"self.{word.name} is called a second time; call it exactly once on every path",
            )
        setattr(self.frame, slot, value)
        return None

    def push(self, node: ast.Call) -> None:
        to: str | None = None
        for keyword in node.keywords:
            if keyword.arg != "to" or not isinstance(keyword.value, ast.Constant):
                self.fail(node, 'push takes a number, and to="name" for a Parameter')
            to = str(keyword.value.value)
        args = node.args
        if len(args) == 2 and to is None and isinstance(args[1], ast.Constant):
            to, args = str(args[1].value), args[:1]
        if len(args) != 1:
            self.fail(node, 'push takes a number, and to="name" for a Parameter')
        value = self.number(self.expression(args[0]), args[0])
        if to is not None:
            assert self.context is not None
            names = [
                n
                for n in dir(self.context.cls)
                if type(inspect.getattr_static(self.context.cls, n)) is Parameter
            ]
            if to not in names:
                self.fail(
                    node,
                    f"{self.context.cls.__name__} has no Parameter {to!r}; "
                    f"{suggest(to, names)}Parameters: {', '.join(names) or 'none'}",
                )
            if self.kind == "forward":
                self.fail(node, f'push(..., to="{to}") belongs in backward')
            if self.in_loop:
                self.fail(
                    node,
                    f'push(..., to="{to}") stands inside the loop over messages; sum up in a'
                    " variable and push once after the loop",
                )
            if self.frame.parameters.get(to) is not None:
                self.fail(node, f'push(..., to="{to}") is called a second time; once on every path')
            self.frame.parameters[to] = value
            return
        if not self.in_loop:
            assert self.context is not None
            self.fail(
                node,
                f"{self.context.cls.__name__}.{self.kind} pushes outside the loop over "
                "messages, once for all synapses. Call self.push(...) once per message,"
                " inside the loop",
            )
        if self.frame.pushed is not None:
            self.fail(
                node,
                "push is called a second time for the same message; push exactly once per message",
            )
        self.frame.pushed = value
        self.push_place = node

    def draw(self, word: Word, node: ast.Call) -> Node:
        assert self.context is not None
        arguments: dict[str, Any] = {}
        order = {"bernoulli": ("p",), "uniform": ("low", "high"), "normal": ("mean", "std")}[
            word.name
        ]
        for name, a in zip((*order, "per"), node.args, strict=False):
            arguments[name] = a
        for keyword in node.keywords:
            if keyword.arg not in (*order, "per"):
                self.fail(
                    node, f"{word.name} takes {', '.join(order)} and per; got {keyword.arg!r}"
                )
            arguments[keyword.arg] = keyword.value
        per_node = arguments.pop("per", None)
        per = "sample" if word.of == "self" else "run"
        if per_node is not None:
            per = self.expression(per_node)
            if per not in PERIODS or (word.of == "message" and per != "run"):
                allowed = PERIODS if word.of == "self" else ("run",)
                self.fail(
                    per_node,
                    f"per must be one of {', '.join(map(repr, allowed))}, got "
                    f"{ast.unparse(per_node)}",
                )
        defaults = {"low": 0.0, "high": 1.0, "mean": 0.0, "std": 1.0}
        values = []
        for name in order:
            if name in arguments:
                values.append(self.number(self.expression(arguments[name]), arguments[name]))
            elif name in defaults:
                values.append(const(defaults[name]))
            else:
                self.fail(node, f"self.{word.name} needs {name}")
        number = site((*self.calls, self.source.place(node)))
        if word.of == "message":
            u = leaf(
                Op.SYNAPSE_DRAW, "oi", ("normal" if word.name == "normal" else "uniform", number)
            )
        else:
            if self.in_loop:
                self.fail(
                    node,
                    f"self.{word.name} is drawn inside the loop over messages; draw once "
                    f"before the loop, or m.{'normal' if word.name == 'normal' else 'uniform'}()"
                    " for a number that belongs to the synapse",
                )
            kind = "normal" if word.name == "normal" else "uniform"
            u = leaf(Op.DRAW, "bo" if per == "sample" else "o", (kind, number, per))
        if word.name == "bernoulli":
            return select(ir.make(Op.LT, u, values[0]), const(1.0), const(0.0))
        if word.name == "uniform":
            return ir.add(values[0], ir.mul(values[1] - values[0], u))
        return ir.add(values[0], ir.mul(values[1], u))

    def length(self, value: Any) -> Any:
        """``len`` as a lambda sees it."""
        if not isinstance(value, Node):
            return len(value)
        if self.context is not None:
            raise CompileError("len of one number; in an interlayer write len(output)")
        return ir.Scalar("layer_size")

    def trace(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """A lambda: its text is hard to find, so it is called with nodes."""
        called = function
        if isinstance(function, types.FunctionType) and "len" not in function.__globals__:
            seen = {**function.__globals__, "len": self.length}  # Python's would want an int
            called = types.FunctionType(
                function.__code__, seen, function.__name__, function.__defaults__,
                function.__closure__,
            )  # fmt: skip
        try:
            found = self.wrap(called(*args))
            if self.context is not None and isinstance(found, Node) and _is_layerwide(found):
                raise CompileError(ONE_NUMBER)
            return found
        except CompileError as error:
            if node is None or error.file:
                raise
            self.fail(node, error.problem)


def _is_layerwide(node: Node) -> bool:
    return any(n.op is Op.REDUCE and n.value[1] == "o" for n in ir.walk(node))


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
