"""The translation of a neuron's source to IR: its methods run once, symbolically.

``if`` becomes a select between the results of the two branches; a loop over messages runs once
with a symbolic message. Code outside the language is a CompileError at the user's own line.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from typing import Any

from horn import ir, refusals
from horn.errors import CompileError
from horn.ir import Node, Op, const
from horn.ir.neuron_ir import BackwardIR, ForwardIR, Kind, NeuronContext
from horn.language.calls import Calls
from horn.language.expressions import Expressions
from horn.language.functions import Functions
from horn.language.loops import MessageLoops
from horn.language.names import Names
from horn.language.operators import Operators
from horn.language.orders import Orders
from horn.language.references import MessagesRef, SelfRef, Unset, elements
from horn.language.scope import Path, Scope
from horn.language.sequences import Sequences
from horn.language.source import Source, source_of
from horn.language.statements import Statements
from horn.language.words import Words
from horn.neuron import Parameter, declared


class SymbolicRun:
    """One symbolic run of a neuron's method, or of a plain function, with its parts: ``scope`` has
    the run's place and variables, ``expressions`` the rules of syntax, ``functions`` the calls.
    """

    def __init__(self, context: NeuronContext | None, kind: Kind) -> None:
        self.scope = scope = Scope(context, kind)
        self.expressions = expressions = Expressions(scope)
        self.names = Names(scope, expressions)
        self.operators = Operators(scope, expressions)
        self.sequences = Sequences(scope, expressions, self.names)
        self.loops = MessageLoops(scope, expressions, self.names, self.sequences)
        self.statements = Statements(scope, expressions, self.names, self.sequences, self.loops)
        self.functions = Functions(scope, self.statements)
        self.words = Words(scope, expressions)
        self.orders = Orders(scope, expressions, self.sequences)
        self.calls = Calls(
            scope, expressions, self.sequences, self.loops, self.orders, self.functions, self.words
        )

    def method(self) -> Source:
        """Run the method that ``kind`` names, and return its source."""
        context, name = self.scope.context, self.scope.kind
        assert context is not None
        function = inspect.getattr_static(context.cls, name)
        if not isinstance(function, types.FunctionType):
            raise CompileError(refusals.no_method(context.cls.__name__, name))
        if function.__name__ == "<lambda>":
            raise CompileError(
                f"{context.cls.__name__}.{name} is a lambda; write  def {name}(self, messages):",
                file=function.__code__.co_filename,
                line=function.__code__.co_firstlineno,
            )
        self.functions.call(function, [SelfRef(), MessagesRef()], None)
        return source_of(function)


def forward(context: NeuronContext) -> ForwardIR:
    """The IR of a class's forward. Raises CompileError with the user's line."""
    run = SymbolicRun(context, "forward")
    source, frame = run.method(), run.scope.frame
    if frame.fed is None:
        returned = ""
        if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(source.tree)):
            returned = ", not with return, whose value nobody gets"
        raise source.error(
            source.tree,
            f"{context.cls.__name__}.forward never calls self.feedforward(...), so "
            f"the neuron has no output. End forward with self.feedforward(value){returned}",
        )
    if isinstance(frame.fed, Unset):
        raise source.error(
            source.tree, f"{frame.fed.why}; call it exactly once on every path of forward"
        )
    if not context.training and run.scope.target_error is not None:
        kept = (frame.fed, *frame.states.values())
        if any(ir.contains(node, Op.TARGET) for node in kept):
            raise run.scope.target_error
    # What reads its target is refused at prediction alone.
    asked = run.scope.asked | ({"training"} if run.scope.target_error is not None else set())
    done: dict[Node, Node] = {}

    def plain(node: Node) -> Node:
        return ir.replace(node, lambda n: const(n.value) if ir.is_drawn(n) else None, done)

    out = _sitting_out(frame.fed, frame.read)
    output, out = plain(frame.fed), None if out is None else plain(out)
    states, pushes, traces = (
        {name: plain(node) for name, node in each.items()}
        for each in (frame.states, frame.loop_push, frame.traces)
    )
    ir.verify(output, *states.values(), *pushes.values(), *traces.values())
    return ForwardIR(output, states, pushes, out, traces, frozenset(asked))


def backward(context: NeuronContext) -> BackwardIR:
    """The IR of a class's written backward."""
    run = SymbolicRun(context, "backward")
    source, frame = run.method(), run.scope.frame
    if not isinstance(frame.delta, Node):
        why = f"{context.cls.__name__}.backward never calls self.backpropagate(...)"
        if isinstance(frame.delta, Unset):
            why = frame.delta.why
        raise source.error(
            source.tree, f"{why}; end backward with self.backpropagate(delta), once on every path"
        )
    cls = context.cls
    for name in declared(cls, Parameter):
        pushed = frame.parameters.get(name)
        if not isinstance(pushed, Node):
            why = f"{cls.__name__}.backward does not push the gradient of Parameter {name!r}"
            if isinstance(pushed, Unset):
                why = pushed.why
            raise source.error(
                source.tree, f'{why}; call self.push(gradient, to="{name}") once on every path'
            )
    parameters = {k: v for k, v in frame.parameters.items() if isinstance(v, Node)}
    found = BackwardIR(
        frame.delta, frame.loop_push, parameters, frame.states, source.error(source.tree, ""),
        frame.traces, frozenset(run.scope.asked),
    )  # fmt: skip
    ir.verify(found.delta, *parameters.values(), *found.states.values(), *found.pushes.values())
    ir.verify(*found.traces.values())
    return found


def function(f: Callable[..., Any], *args: Node) -> Node:
    """The IR of a plain function: an interlayer (output -> output), a loss (output, target)."""
    run = SymbolicRun(None, "interlayer" if len(args) == 1 else "loss")
    result = run.functions.call_any(f, list(args), None)
    if not isinstance(result, Node):
        name = getattr(f, "__name__", repr(f))
        if isinstance(result, Unset):
            raise error_of(f, result.why)
        raise error_of(f, f"{name} must return a number, got {_said(result)}")
    return result


def _said(value: Any) -> str:
    """A result that is no number, for a sentence."""
    items = elements(value)
    if items is not None:
        return f"a {type(value).__name__} of {len(items)}; return one number"
    return repr(value) if value is None or isinstance(value, str) else f"a {type(value).__name__}"


def error_of(f: Callable[..., Any], problem: str) -> CompileError:
    """A complaint about a whole function, at its line if it has one."""
    if not isinstance(f, types.FunctionType) or f.__name__ == "<lambda>":
        return CompileError(problem)
    source = source_of(f)
    return source.error(source.tree, problem)


#: What a constant of the text, a number of the neuron and a number of the run are.
_CONSTANTS = frozenset({Op.CONST, Op.INDEX, Op.COUNT, Op.SCALAR})
_OTHER = ir.UPSTREAM  # stands for every number that is made of others
#: Constants of several ifs meet in formulas: their number is the product. Of a formula with more
#: the rest counts as other numbers.
MOST_MET = 256


def _constants(output: Node) -> Node:
    """The output as ifs between what the text makes of constants alone and ``_OTHER``. A comparison
    is an if that chooses 1 or 0.
    """
    done: dict[Node, Node] = {}
    for node in ir.walk(output):
        if node.op in _CONSTANTS and not ir.is_drawn(node):
            done[node] = node
        elif node.op in ir.BOOLEAN:
            done[node] = ir.make(Op.SELECT, node, const(1.0), const(0.0))
        elif node.op is Op.SELECT:
            done[node] = ir.select(node.args[0], *(done[a] for a in node.args[1:]))
        elif node.op in ir.ELEMENTWISE:
            done[node] = _of_each(node.op, tuple(done[a] for a in node.args), {})
        else:
            done[node] = _OTHER
    return done[output]


def _of_each(op: Op, args: tuple[Node, ...], known: dict[tuple[Node, ...], Node]) -> Node:
    """An operation on such ifs, as one. known : the results so far, by arguments; it grows."""
    if args in known:
        return known[args]
    asked = args[:1] if op is Op.SELECT else args
    if len(known) >= MOST_MET or _OTHER in asked:
        return _OTHER
    known[args] = _OTHER
    conditions = [a.args[0] for a in asked if a.op is Op.SELECT]
    condition = max(conditions, key=_varies, default=None)  # so that what is 0 either way meets
    if condition is not None:
        yes = _of_each(op, tuple(_where(a, condition, True) for a in args), known)
        no = _of_each(op, tuple(_where(a, condition, False) for a in args), known)
        found = ir.select(condition, yes, no)
    else:
        found = ir.select(*args) if op is Op.SELECT else ir.make(op, *args)
    known[args] = found
    return found


def _where(node: Node, condition: Node, holds: bool) -> Node:
    if node.op is Op.SELECT and node.args[0] is condition:
        return node.args[1 if holds else 2]
    return ir.assume(node, condition, holds, ir.MOST_COPIED)


def _varies(condition: Node) -> bool:
    """Whether a condition may differ between the samples of a batch."""
    return "b" in condition.axes


def _zeros(output: Node) -> Node:
    """The ifs of ``_constants``, with 0 and ``_OTHER`` for all constants: a condition that chooses
    between two others, or two zeros, is none.
    """
    done: dict[Node, Node] = {}
    for node in ir.walk(output):
        if node.op is Op.SELECT:
            c, a, b = node.args
            done[node] = ir.select(c, done.get(a, a), done.get(b, b))
        elif node.op is Op.CONST and node.value != 0.0:
            done[node] = _OTHER
    return done.get(output, output)


def _sitting_out(output: Node, read: tuple[Path, ...]) -> Node | None:
    """The condition (o) on which a neuron leaves the batch: a 0 made of constants alone is fed
    forward for a per-batch reason, with no message read.
    """
    if not any(n.op is Op.DRAW and n.value[2] == "batch" for n in ir.walk(output)):
        return None
    output = _zeros(_constants(output))
    drawn: set[Node] = set()  # what is made of a draw per batch
    for node in ir.walk(output):
        if (node.op is Op.DRAW and node.value[2] == "batch") or not drawn.isdisjoint(node.args):
            drawn.add(node)
    if output not in drawn:
        return None
    # Of the ways to a node it matters whether a draw decides and which reads they exclude. Those
    # that agree are one: two variables that swap sides, again and again, have millions.
    reads, always = [set(way) for way in read], ir.const(1.0)
    ways: dict[Node, dict[tuple[bool, frozenset[int]], Node]] = {
        output: {(False, frozenset()): always}
    }
    found: Node | None = None
    for node in reversed([*ir.walk(output)]):  # a node after all that choose it
        here = ways.pop(node, {})
        if node.op is not Op.SELECT and node is not _OTHER:
            condition = here.get((True, frozenset(range(len(reads)))))
            if condition is not None:
                condition = ir.make(Op.AND, condition, ir.make(Op.EQ, node, const(0.0)))
                found = condition if found is None else ir.make(Op.OR, found, condition)
        if node.op is not Op.SELECT or _varies(node.args[0]):
            continue
        c, a, b = node.args
        for x, side in ((a, True), (b, False)):
            term, there = c if side else ir.make(Op.NOT, c), ways.setdefault(x, {})
            excluded = {k for k, way in enumerate(reads) if (c, not side) in way}
            for (decides, apart), condition in here.items():
                key = (decides or c in drawn, apart | excluded)
                both = ir.make(Op.AND, condition, term)
                there[key] = both if key not in there else ir.make(Op.OR, there[key], both)
    return found
