"""Function calls: the body runs in place of the call; horn.math becomes operations."""

from __future__ import annotations

import ast
import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horn import ir, texts
from horn import math as horn_math
from horn.errors import CompileError
from horn.ir import Node, Op, select, tracing
from horn.ir.tracing import TracedNumber
from horn.language.names import ONE_NUMBER
from horn.language.references import SelfRef, wrap
from horn.language.scope import Scope
from horn.language.source import Source, column_of, source_of
from horn.language.statements import Statements
from horn.neuron import of_python
from horn.sources import is_user_file

#: Functions that are operations: those of horn.math, and their equivalents in Python's math.
MATH: dict[Any, str] = {
    getattr(horn_math, name): name
    for name in horn_math.OPS
    if hasattr(horn_math, name) and inspect.isfunction(getattr(horn_math, name))
}
MATH |= {horn_math.abs_: "abs", horn_math.pow_: "pow"}
MATH |= {python: MATH[f] for python, f in horn_math.OF_PYTHON.items() if f in MATH}

_ANOTHER = (
    "this is another formula each time: it is read once for the whole run, and may depend on its "
    "arguments and on numbers that stay; what changes from batch to batch is a horn.State of a "
    "neuron, and noise is self.normal() there"
)

# The deepest nesting of calls: of a function in itself, and of any functions; and the most calls of
# one method, likewise: each is written out, and a recursion that branches doubles them each time.
AGAIN, DEEP = 40, 80
MOST_AGAIN, MOST = 1000, 10_000
TOO_DEEP = (
    "too much is nested here: each elif, else and pair of parentheses is inside of the one before; "
    "write it as several statements, or the numbers of its cases as a tuple and a loop over that"
)


@dataclass(frozen=True)
class Functions:
    """Calls of functions, built-in or written by the user."""

    scope: Scope
    statements: Statements

    def call(self, function: types.FunctionType, args: list[Any], node: ast.AST | None) -> Any:
        """Run a function's body in place of the call."""
        scope = self.scope
        if len(scope.sources) > DEEP:
            assert node is not None
            scope.fail(
                node,
                f"{function.__name__} is called by a function that another calls, and so on, more "
                f"than {DEEP} deep; let fewer functions stand between it and the neuron",
            )
        if function.__name__ == "<lambda>":
            return self.trace(function, args, node)
        try:
            source = source_of(function)
        except CompileError as error:
            if node is None:
                raise
            scope.fail(node, str(error))
        assert isinstance(source.tree, ast.FunctionDef)
        n_around = sum(each.tree is source.tree for each in scope.sources)
        if n_around > AGAIN:
            assert node is not None
            scope.fail(
                node,
                f"{function.__name__} calls itself more than {AGAIN} deep: what ends a recursion "
                "must be a constant of the neuron, not a number of its messages",
            )
        scope.n_calls += 1
        scope.n_again += n_around > 0
        if scope.n_again > MOST_AGAIN or scope.n_calls > MOST:
            assert node is not None
            most = MOST_AGAIN if scope.n_again > MOST_AGAIN else MOST
            of_itself = " of functions by themselves" * (most == MOST_AGAIN)
            scope.fail(
                node,
                f"each call is written out, and these are more than {most:,} calls{of_itself}: a "
                "function that calls the next on both sides of an if doubles them at each level; "
                "choose the argument there, and call once",
            )
        names = self.bind(source, args, node)
        outer, path, call_sites = scope.frame, scope.path, scope.call_sites
        if node is not None:
            scope.call_sites = (*call_sites, scope.source.place(node))
        scope.sources.append(source)
        scope.frame = outer.copy()
        scope.frame.names, scope.frame.returned, scope.frame.done = names, None, False
        for statement in source.tree.body:
            try:
                self.statements.block([statement])
            except RecursionError:
                raise source.error(statement, TOO_DEEP) from None
        scope.join()
        inner = scope.frame
        scope.frame, scope.path, scope.call_sites = outer, path, call_sites
        scope.sources.pop()
        done = ("states", "traces", "fed", "delta", "pushed", "loop_push", "parameters", "read")
        for what in done:
            setattr(outer, what, getattr(inner, what))
        return inner.returned

    def bind(self, source: Source, args: list[Any], node: ast.AST | None) -> dict[str, Any]:
        tree = source.tree
        a = tree.args
        if a.vararg or a.kwarg or a.kwonlyargs:
            problem = "helper functions of a neuron take plain arguments only, no * and **"
            if hasattr(source.function, "__wrapped__"):
                problem += "; name in the decorator those of the function that it wraps"
            elif node is None and self.scope.kind in ("forward", "backward"):
                problem = f"write it as  def {self.scope.kind}(self, messages):"
            raise source.error(tree, problem)
        names = [x.arg for x in (*a.posonlyargs, *a.args)]
        defaults = source.function.__defaults__ or ()
        if not len(names) - len(defaults) <= len(args) <= len(names):
            self_too = sum(isinstance(arg, SelfRef) for arg in args[:1])  # the user writes the rest
            own, got = names[self_too:], len(args) - self_too
            listed = f" ({', '.join(own)})" if own else ""
            plural = "" if len(own) == 1 else "s"
            problem = f"{source.where} takes {len(own)} argument{plural}{listed}, got {got}"
            if self_too and names[:1] != ["self"]:
                whole = ", ".join(["self", *names])
                called = source.function.__name__
                problem = f"{source.where} is a method, and has no self: def {called}({whole}):"
            if node is not None:
                self.scope.fail(node, problem)
            if self.scope.kind in ("forward", "backward"):
                problem = f"write it as  def {self.scope.kind}(self, messages):"
            raise source.error(tree, problem)
        missing = [wrap(d) for d in defaults[len(defaults) - (len(names) - len(args)) :]]
        return dict(zip(names, [*args, *missing][: len(names)], strict=True))

    def call_any(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """Call a function of horn.math, a user's function, or any other callable, the last with
        nodes as arguments.
        """
        if hashable(function) and function in MATH:
            return self.math(MATH[function], args, node)
        if isinstance(function, types.FunctionType):
            return self.call(function, args, node)
        return self.trace(function, args, node)

    def math(self, name: str, args: list[Any], node: ast.AST | None) -> Node:
        if len(args) != horn_math.OPS[name]:
            assert node is not None
            n = horn_math.OPS[name]
            base = "; of another base it is log(x) / log(base)" if name == "log" else ""
            self.scope.fail(
                node, f"{name} takes {n} argument{'s' * (n > 1)}, got {len(args)}{base}"
            )
        nodes = [self.scope.number(a, node) if node is not None else a for a in args]
        if name == "where":
            return select(ir.truth(nodes[0]), nodes[1], nodes[2])
        return ir.make(Op(name), *nodes)

    def trace(self, function: Callable[..., Any], args: list[Any], node: ast.AST | None) -> Any:
        """Call a lambda, or another callable, with nodes: its text is hard to find."""
        called = function
        if isinstance(function, types.FunctionType):
            # Python's len must return an int, and its sum goes through elements.
            of_layer = {f.__name__: _of_layer(f) for f in (sum, max, min)}
            own = {"len": self.length} | of_layer | function.__globals__
            called = types.FunctionType(
                function.__code__, {name: of_python(value) for name, value in own.items()},
                function.__name__, tuple(map(of_python, function.__defaults__ or ())),
                tuple(map(_cell_of_python, function.__closure__ or ())),
            )  # fmt: skip
            named = (function.__kwdefaults__ or {}).items()
            called.__kwdefaults__ = {name: of_python(value) for name, value in named}
        try:
            found = wrap(tracing.call(called, *args))
            if not tracing.is_same(found, wrap(tracing.call(called, *args))):
                raise tracing.Wrong(_ANOTHER)
            if self.scope.context is not None and isinstance(found, Node) and _is_layerwide(found):
                raise CompileError(ONE_NUMBER)
            return found
        except CompileError as error:
            if error.file:
                raise
            problem = _of_another_module(function) or error.problem
            cause: Exception = error
        except (TypeError, AttributeError, ValueError) as error:  # the arguments are formulas
            problem = _of_another_module(function)
            problem = problem or f"{error}; write it with + - * / **, abs and horn.math"
            cause = error
        except (ArithmeticError, LookupError, NameError) as error:  # of the user's own Python
            problem, cause = f"{type(error).__name__}: {error}", error
        name = getattr(function, "__name__", type(function).__name__)
        if isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename):
            file, line = function.__code__.co_filename, function.__code__.co_firstlineno
            text = texts.line_of(function.__code__, function.__globals__, line).rstrip()
            at = _lambda_at(function.__code__, text)
            raise CompileError(
                problem, file=file, line=line, column=at, end_column=at + len("lambda"), text=text,
                where=name,
            ) from cause  # fmt: skip
        if node is not None:
            self.scope.fail(node, f"{name}: {problem}")
        raise CompileError(f"{name}: {problem}") from cause

    def length(self, value: Any) -> Any:
        """The value of ``len`` inside a lambda."""
        if not isinstance(value, TracedNumber):
            return len(value)
        if self.scope.context is not None:
            raise CompileError("len of one number; in an interlayer write len(output)")
        return TracedNumber(ir.Scalar("layer_size"), value.way)


def _of_layer(function: Callable[..., Any]) -> Callable[..., Any]:
    """``sum``, ``max`` or ``min`` of Python that may be of a whole layer, as in a function."""

    def ask(*args: Any, **how: Any) -> Any:
        if len(args) == 1 and not how and isinstance(args[0], TracedNumber):
            return getattr(args[0], function.__name__)()
        return function(*args, **how)

    return ask


def _cell_of_python(cell: types.CellType) -> types.CellType:
    """A variable around a lambda as it reads it; one that is not set stays so."""
    empty = types.CellType()
    return empty if cell == empty else types.CellType(of_python(cell.cell_contents))


def _lambda_at(code: types.CodeType, text: str) -> int:
    """The column of a lambda in its first line, which may have several: the last before its body.
    0 where the text has changed.
    """
    columns = [
        column
        for line, _, column, end in code.co_positions()
        if line == code.co_firstlineno and column is not None and end
    ]
    body = column_of(text, min(columns)) if columns else len(text)
    return max(text.rfind("lambda", 0, body), 0)


_OF_NUMBERS = frozenset({"numpy", "math", "cmath", "scipy", "torch"})  # take no formulas


def _of_another_module(function: Any) -> str:
    """The complaint about a lambda's call of a function of numbers only, as np.tanh; else ""."""
    if not isinstance(function, types.FunctionType):
        return ""
    for module, name in itertools.pairwise(function.__code__.co_names):
        found = function.__globals__.get(module)
        package = getattr(found, "__name__", "").partition(".")[0]
        if isinstance(found, types.ModuleType) and package in _OF_NUMBERS:
            if not callable(getattr(found, name, None)):
                continue  # a constant, as np.pi
            known = name in horn_math.OPS and hasattr(horn_math, name)
            write = f"horn.math.{name}" if known else "it with + - * / **, abs and horn.math"
            return f"{module}.{name} is not in the neuron language of a lambda; write {write}"
    return ""


def _is_layerwide(node: Node) -> bool:
    return any(n.op is Op.REDUCE and n.value[1] == "o" for n in ir.walk(node))


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
