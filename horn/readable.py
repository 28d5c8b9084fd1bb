"""A program in words: the inputs, output, layer and source line of each statement."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from horn import ir
from horn.errors import CompileError, shown_file
from horn.ir import Node, Op
from horn.language.source import source_of
from horn.layers import Layer
from horn.neuron import has_backward
from horn.program import (
    BatchSum,
    ChannelSum,
    Convolve,
    Draw,
    Expand,
    Input,
    Live,
    Loop,
    Matmul,
    Pick,
    Program,
    Rank,
    Reverse,
    ScatterAdd,
    Statement,
    Take,
    Target,
    Turn,
    Update,
    every,
    layer_of,
    writes,
)
from horn.sources import is_user_file

_SIGNS = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/", Op.LT: "<", Op.LE: "<=", Op.GT: ">",
    Op.GE: ">=", Op.EQ: "==", Op.NE: "!=", Op.AND: "and", Op.OR: "or", Op.FLOORDIV: "//",
    Op.MOD: "%", Op.POW: "**",
}  # fmt: skip
_OVER = {"b": "samples", "o": "neurons", "i": "messages"}
_LONGEST = 2000  # characters of an expression


@dataclass(frozen=True)
class ReadableStatement:
    """A statement in words. layer : its name, or "". phase : "forward", "loss", "backward" or
    "update". text : as "layer1.sum = sum over messages of ...". place : "file.py:12", the loop or
    the last call of the method that it comes from, or "".
    """

    layer: str
    phase: str
    text: str
    place: str


def readable(program: Program) -> list[ReadableStatement]:
    """The statements of a batch in words, in order."""
    found, phase = [], "forward"
    names = {layer.name: layer for layer in program.network.layers}
    for statement in every(program.statements):
        phase = _phase(program, statement, phase)
        layer = _layer(program, statement, names)
        place = "" if layer is None else place_of(layer, phase, _folds(statement))
        name = "" if layer is None else layer.name
        found.append(ReadableStatement(name, phase, said(statement), place))
    return found


def _phase(program: Program, statement: Statement, before: str) -> str:
    roles = {program.buffers[name].role for name in writes(statement) if name in program.buffers}
    if isinstance(statement, Update) or roles & {"learned", "slot", "state"}:
        return "update"
    if program.loss is None or before in ("backward", "update"):
        return "backward" if before in ("backward", "update") else "forward"
    if isinstance(statement, Target):
        return "loss"
    if before == "loss" and any(".delta" in name or ".gradient" in name
                                for name in writes(statement)):  # fmt: skip
        return "backward"
    return before


def _layer(program: Program, statement: Statement, names: dict[str, Layer]) -> Layer | None:
    for name in writes(statement):
        if (found := names.get(name.partition(".")[0])) is not None:
            return found
    if isinstance(statement, (Loop, Matmul, Rank)):
        return program.network.layers[statement.frame.layer]
    for name in writes(statement):
        for axis in program.buffers[name].axes if name in program.buffers else ():
            if layer_of(axis) >= 0:
                return program.network.layers[layer_of(axis)]
    return None


def _folds(statement: Statement) -> bool:
    """Whether it reduces over messages, by a sum or another monoid."""
    frame = getattr(statement, "frame", None)
    return frame is not None and frame.link is not None


def place_of(layer: Layer, phase: str, folds: bool) -> str:
    """The line of the neuron's method: of its loop over messages, or of the call that ends it."""
    if layer.kind == "input" or phase in ("update", "loss"):
        return ""
    written = phase == "backward" and layer.kind == "hidden" and has_backward(layer.neuron)
    method = getattr(layer.neuron, "backward" if written else "forward")
    code = getattr(method, "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return ""
    try:
        source = source_of(method)
    except CompileError:
        return ""
    nodes = list(ast.walk(source.tree))
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.GeneratorExp))]
    calls = [
        n for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("feedforward", "backpropagate")
    ]  # fmt: skip
    chosen: Sequence[ast.expr | ast.stmt] = loops if folds and loops else calls
    line = chosen[0].lineno if chosen else 1
    return f"{Path(shown_file(source.file)).name}:{source.first_line + line - 1}"


def said(s: Statement) -> str:
    """A statement as a line of text."""
    if isinstance(s, Input):
        return f"{s.out} = the samples of the batch"
    if isinstance(s, Target):
        return f"{s.out} = the {s.kind} of each sample"
    if isinstance(s, Draw):
        return f"{s.out} = {s.kind} draws, one per {s.per}"
    if isinstance(s, Matmul):
        return f"{s.out} = sum over {_OVER[s.axis]} of {s.a} * {s.b}   (matrix product)"
    if isinstance(s, Update):
        parts = "".join(f" + {part}" for part in s.parts)
        change = f"learning_rate * mean over samples of {s.a} * {s.b}{parts}"
        if s.velocity is None:
            return f"{s.weight} -= {change}   (matrix product)"
        return (f"{s.velocity} = {s.momentum:g} * {s.velocity} - {change}; {s.weight} += "
                f"{s.velocity}   (matrix product)")  # fmt: skip
    if isinstance(s, Loop):
        return "; ".join(_output(o.buffer, o.node, o.axis, o.monoid) for o in s.outputs)
    if isinstance(s, Rank):
        return f"{s.out} = how many neurons have more {s.array}"
    if isinstance(s, Live):
        return f"the live neurons are those of {s.mask}"
    if isinstance(s, ChannelSum):
        return f"{s.out} = sum over the positions of each channel of {s.array}"
    if isinstance(s, BatchSum):
        return f"{s.out} = sum over the samples of a step of {s.array}"
    if isinstance(s, Reverse):
        return f"{s.out} = {s.array}, each sequence from its last step to its first"
    if isinstance(s, Turn):
        return f"{s.out} = {s.array}, {'transposed' if s.transposed else 'as it is'}"
    if isinstance(s, (Take, Pick)):
        return f"{s.out} = the part of {s.array} that is needed"
    if isinstance(s, Convolve):
        over = {"i": "messages", "o": "receivers", "b": "samples and places"}[s.axis]
        return f"{s.out} = sum over {over} of {s.a} * {s.b}   (convolution)"
    if isinstance(s, Expand):
        return f"{s.out} = {s.array} of each {'neuron' if s.frame.link is None else 'synapse'}"
    if isinstance(s, ScatterAdd):
        return f"{s.out} = sum over those that share it of {s.array}"
    return type(s).__name__.lower()


def _output(buffer: str, node: Node, axis: str, monoid: str) -> str:
    text = expression(node)
    return f"{buffer} = {monoid} over {_OVER[axis]} of {text}" if axis else f"{buffer} = {text}"


def _name(name: str) -> str:
    """The name of a scalar or an array for people: ``layer2#index`` is the index of the neuron."""
    kind, _, first = name.partition("#")[2].partition("+")
    if first:
        return f"(index + {first})"
    kind = kind.rstrip("0123456789")
    return {
        "": "(1 / samples)" if name == "inv_rows" else name,
        "index": "index",
        "edge": "the message's index",
        "ones": "1",
        "row_weight": "the sample's weight",
    }.get(kind, name)


def expression(node: Node) -> str:
    """A node as a formula, of its first ``_LONGEST`` characters if it is longer. No more than these
    are written: of a variable that is used twice, again and again, a formula has no end.
    """
    ones: set[Node] = set()  # a factor only in name
    for n in ir.walk(node):
        if ones.issuperset(n.args) if n.op is Op.MUL else _leaf(n) == "1":
            ones.add(n)
    text, length = list[str](), 0
    pending: list[Node | str] = [node]
    while pending and length <= _LONGEST:
        part = pending.pop()
        if isinstance(part, Node):
            pending += reversed(_formula(part, ones))
        else:
            text.append(part)
            length += len(part)
    found = "".join(text)
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]} ..."


def _leaf(node: Node) -> str | None:
    """The text of a node without arguments; None for others."""
    if node.op is Op.LOAD or node.op is Op.SCALAR:
        return _name(str(node.value))
    if node.op is Op.CONST:
        return f"{node.value:g}"
    return f"{node.value[0]} draw" if node.op is Op.MESSAGE_DRAW else None


def _formula(node: Node, ones: Set[Node]) -> list[Node | str]:
    """The formula of a node, with its arguments in their places. ones : the nodes that are 1."""
    leaf, args = _leaf(node), node.args
    if leaf is not None:
        return [leaf]
    if node.op is Op.MUL and not ones.isdisjoint(args):
        return [next((a for a in args if a not in ones), "1")]
    if node.op in _SIGNS:
        found: list[Node | str] = []
        for a in args:
            is_plain = a.op not in _SIGNS or a.op is node.op is Op.ADD
            found += [f" {_SIGNS[node.op]} "] if found else []
            found += [a] if is_plain else ["(", a, ")"]
        return found
    if node.op is Op.NEG:
        return ["-(", args[0], ")"] if args[0].op in _SIGNS else ["-", args[0]]
    if node.op is Op.NOT:
        return ["not (", args[0], ")"]
    if node.op is Op.SELECT:
        return ["(", args[1], " if ", args[0], " else ", args[2], ")"]
    listed = [each for a in args for each in (", ", a)]
    return [f"{node.op.value}(", *listed[1:], ")"]
