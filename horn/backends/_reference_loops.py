"""The computation of a Loop in plain NumPy: expressions, broadcast only over their own axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from horn import ir, math, random
from horn.backends import Array
from horn.ir import Node, Op
from horn.ir.nodes import halfway
from horn.network import Network
from horn.partition.share import Share, count
from horn.program import (
    Frame,
    Loop,
    Output,
    Program,
    base,
    layer_of,
    letter_axes,
    link_of,
    out_letters,
)

CHUNK = 1 << 21  # elements of a (b, o, i) domain that are computed at once

_UFUNC: dict[Op, Any] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.NEG: np.negative,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GT: np.greater,
    Op.GE: np.greater_equal,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.AND: np.logical_and,
    Op.OR: np.logical_or,
    Op.NOT: np.logical_not,
    Op.SELECT: np.where,
    Op.HALFWAY: halfway,
}
_REDUCE: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


class BatchRunner(Protocol):
    """The runner of the program, at a step of a batch. alive : the live neurons of compact layers.
    orders : of evaluation, by root.
    """

    program: Program
    network: Network
    share: Share
    dtype: np.dtype[Any]
    alive: dict[int, Array]
    scalars: Mapping[str, float]
    orders: dict[Node, list[Node]]

    def array(self, name: str) -> Array:
        """The content of a buffer."""

    def places(self, name: str) -> Any:
        """The places of the live part in a full array."""

    def here(self, axis: str) -> slice:
        """The rows of this batch along "b" or "b@own"."""

    def numbers(self, axis: str, per: str = "sample") -> Array:
        """The numbers of the samples, which key their draws."""


def result(runner: BatchRunner, s: Loop, output: Output) -> Array:
    """One output of a loop, along the axes of its buffer. In a domain with three letters CHUNK
    elements are computed at once.
    """
    node, frame = output.node, s.frame
    letters = out_letters(runner.network, frame, output, runner.program.buffers)
    domain = ir.union(node.axes, output.axis, letters)
    if frame.link is not None and "o" in domain and "i" in domain:
        if link_of(runner.network, frame).edges is not None:
            return on_edges(runner, frame, output)
    size = sizes(runner, frame)
    n = int(np.prod([size[a] for a in domain if a != "b"], dtype=np.int64))
    rows = size["b"] if "b" in domain else 1
    step = max(1, CHUNK // max(n, 1)) if len(domain) == 3 else max(rows, 1)
    kept = domain.replace(output.axis, "")
    parts = []
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        value = evaluate(runner, node, frame, domain, here, s.scatter)
        full = tuple((here.stop - here.start) if a == "b" else size[a] for a in domain)
        value = np.broadcast_to(value, full)
        if output.axis:
            axis = domain.index(output.axis)
            if output.monoid.startswith("arg"):
                arg = np.argmax if output.monoid == "argmax" else np.argmin
                value = arg(value, axis=axis).astype(runner.dtype)
            else:
                value = reduced(output.monoid, value, axis)
        parts.append(value)
    if not parts:
        value = np.zeros([size[a] for a in kept], runner.dtype)
    elif "b" in kept:
        value = np.concatenate(parts, axis=0)
    else:
        value = parts[0]
        for part in parts[1:]:
            value = _REDUCE[output.monoid or "sum"](value, part)
    return np.array(value, runner.dtype)


def reduced(monoid: str, value: Array, axis: int) -> Array:
    """A reduction over an axis; sums and products in double, as in the kernels: a running sum of a
    million floats keeps three digits.
    """
    dtype = np.float64 if monoid in ("sum", "prod") else None
    initial = ir.IDENTITY[monoid]
    if value.dtype == bool and monoid in ("max", "min"):  # as a truth value -inf is 1
        value = value.astype(np.float32)
    found = _REDUCE[monoid].reduce(value, axis=axis, initial=initial, dtype=dtype)
    return np.asarray(found)


def sizes(runner: BatchRunner, frame: Frame) -> dict[str, int]:
    """The length of each letter's axis in a frame: of compact layers, the live neurons."""
    size = {}
    letters = "o" if frame.shared else "bo" if frame.link is None else "boi"
    for letter in letters:
        (axis,) = letter_axes(runner.network, frame, letter)
        k = layer_of(axis)
        if letter == "b":
            size[letter] = count(runner.here(axis))
        else:
            size[letter] = (
                len(runner.alive[k]) if k in runner.alive else runner.share.length(axis, 0)
            )
    return size


def order(runner: BatchRunner, root: Node) -> list[Node]:
    """All nodes below a node, arguments first."""
    found = runner.orders.get(root)
    if found is None:
        found = runner.orders[root] = list(ir.walk(root))
    return found


def evaluate(
    runner: BatchRunner, root: Node, frame: Frame, domain: str, here: slice, scatter: bool
) -> Array:
    """The expression over the domain, broadcast only as far as its own axes go."""
    done: dict[Node, Any] = {}
    for node in order(runner, root):
        if node.op is Op.MESSAGE_DRAW:
            value = message_draws(runner, node, frame)
            if "b" in node.axes:
                value = value[here]
            done[node] = value[tuple(slice(None) if a in node.axes else None for a in domain)]
        elif node.op is Op.LOAD:
            value = runner.array(node.value)
            buffer = runner.program.buffers[node.value]
            if scatter and buffer.full and buffer.axes:
                value = value[runner.places(node.value)]
            if "b" in node.axes:
                value = value[here]
            index = tuple(slice(None) if a in node.axes else None for a in domain)
            done[node] = value[index] if domain else value
        else:
            done[node] = operate(runner, node, done)
    return np.asarray(done[root])


def operate(runner: BatchRunner, node: Node, done: Mapping[Node, Any]) -> Any:
    args = [done[a] for a in node.args]
    if node.op is Op.CONST:
        return runner.dtype.type(node.value)
    if node.op is Op.SCALAR:
        return runner.dtype.type(runner.scalars[node.value])
    if node.op in _UFUNC:
        if node.op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.NEG):
            args = [a.astype(runner.dtype) if np.asarray(a).dtype == bool else a for a in args]
        return _UFUNC[node.op](*args)
    # NumPy would compute a function of truth values in half precision.
    arrays = [np.asarray(a) for a in args]
    floats = [a.astype(runner.dtype) if a.dtype == bool else a for a in arrays]
    return math.apply(node.op.value, *floats)


def message_draws(runner: BatchRunner, node: Node, frame: Frame) -> Array:
    """The draws of a frame's messages, of this task's rows, along the node's axes or on edges."""
    kind, site, per, number, position = node.value
    layer, letters = runner.network.layers[number], node.axes
    key = random.key(runner.network.seed, number)
    iteration = random.ONCE if per == "run" else int(runner.scalars["iteration"])
    link = layer.links[position] if position < len(layer.links) else None
    keys = random.receiver_keys(key, np.arange(layer.size), position)
    if link is not None and link.edges is not None:
        (axis,) = letter_axes(runner.network, frame, "oi")
        places = runner.share.places(axis)
        keys = keys[receivers_of(link.edges.indptr)[places]]
        sources = np.asarray(link.edges.indices)[places]
        shape: tuple[int, ...] = (-1, 1)
    else:
        (axis,) = letter_axes(runner.network, frame, "o")
        keys, sources, shape = keys[runner.share.places(axis)], np.zeros(1, np.int64), (-1, 1)
        if "i" in letters:
            (axis,) = letter_axes(runner.network, frame, "i")
            sources = np.arange(runner.share.whole(base(axis)))[runner.share.places(axis)]
            keys, shape = keys[:, None], (-1, 1, 1)
    samples = np.array(random.SHARED)
    if "b" in letters:
        (axis,) = letter_axes(runner.network, frame, "b")
        samples = runner.numbers(axis, per).reshape(shape)
    drawn = random.of_messages(kind, keys, site, sources, samples, iteration)
    return drawn.astype(runner.dtype)


def on_edges(runner: BatchRunner, frame: Frame, output: Output) -> Array:
    """The output of a loop in the frame of a sparse link: all values are taken at the edges, then
    reduced by receiver or source.
    """
    node = output.node
    edges = runner.share.edges(frame.layer, frame.link or 0, frame.split)
    receivers, sources = edges.receivers, edges.sources
    n, rows = len(sources), sizes(runner, frame)["b"]
    done: dict[Node, Any] = {}
    for x in order(runner, node):
        if x.op is Op.MESSAGE_DRAW:
            done[x] = message_draws(runner, x, frame)
            continue
        if x.op is not Op.LOAD:
            done[x] = operate(runner, x, done)
            continue
        value = runner.array(x.value)
        rest = x.axes.replace("b", "")
        if rest == "oi" or not rest:
            at = value
        else:
            at = value[..., receivers if rest == "o" else sources]
        done[x] = at[:, None] if x.axes == "b" else at
    value = np.asarray(done[node])
    if output.axis == "b":
        value = np.broadcast_to(value, (rows, n))
        return np.asarray(value.sum(axis=0, dtype=np.float64), runner.dtype)
    has_b = "b" in node.axes
    value = np.broadcast_to(value, (rows, n) if has_b else (n,))
    if not output.axis:
        return np.array(value, runner.dtype)
    place, n_places = (
        (receivers, len(edges.indptr) - 1) if output.axis == "i" else (sources, edges.n_sources)
    )
    out = np.zeros((*value.shape[:-1], n_places), runner.dtype)
    by_place = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[by_place], np.arange(n_places + 1))
    for k in range(n_places):
        mine = by_place[bounds[k] : bounds[k + 1]]  # ascending
        part = value[..., mine]
        if output.monoid.startswith("arg"):
            arg = np.argmax if output.monoid == "argmax" else np.argmin
            out[..., k] = arg(part, axis=-1) if len(mine) else 0
        else:
            out[..., k] = reduced(output.monoid, part, -1)
    return out


def receivers_of(indptr: Array) -> Array:
    """The receiver of each edge."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
