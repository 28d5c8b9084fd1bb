"""The rule of each operation's nodes, and the check of it."""

from __future__ import annotations

from collections.abc import Callable

from horn.ir.nodes import ELEMENTWISE, MONOIDS, Node, Op, union, walk

_LEAF_AXES: dict[Op, tuple[str, ...]] = {
    Op.CONST: ("",),
    Op.SCALAR: ("",),
    Op.INPUT: ("bi",),
    Op.WEIGHT: ("oi",),
    Op.PREVIOUS: ("oi",),
    Op.TRACE: ("oi",),
    Op.DELTA: ("bi",),
    Op.GRADIENT: ("boi",),
    Op.OUTPUT: ("bo",),
    Op.PARAM: ("o",),
    Op.STATE: ("bo",),
    Op.INDEX: ("o",),
    Op.COUNT: ("o",),
    Op.POSITION: ("oi",),
    Op.PLACE: ("oi",),
    Op.OF_INPUT: ("oi",),
    Op.DRAW: ("bo", "o"),
    Op.SYNAPSE_DRAW: ("oi",),
    Op.MESSAGE_DRAW: ("boi", "oi", "bo", "o"),
    Op.UPSTREAM: ("bo",),
    Op.ERROR: ("bi",),
    Op.ERROR_DRAW: ("oi",),
    Op.LOSS: ("b",),
    Op.TARGET: ("bo",),
}


def _is_leaf(node: Node) -> bool:
    return not node.args and node.axes in _LEAF_AXES[node.op]


def _is_elementwise(node: Node) -> bool:
    whole = union(*(a.axes for a in node.args))
    return len(node.args) == ELEMENTWISE[node.op] and node.axes == whole


def _is_reduction(node: Node) -> bool:
    monoid, axis = node.value
    (arg,) = node.args
    return monoid in MONOIDS and axis in arg.axes and node.axes == arg.axes.replace(axis, "")


def _is_product(node: Node) -> bool:
    a, b = node.args
    rest = union(a.axes, b.axes).replace(node.value, "")
    pairs = all(node.value in x.axes and len(x.axes) == 2 for x in (a, b))
    return pairs and node.axes == rest and len(rest) == 2


SPEC: dict[Op, Callable[[Node], bool]] = {
    **dict.fromkeys(_LEAF_AXES, _is_leaf),
    **dict.fromkeys(ELEMENTWISE, _is_elementwise),
    Op.LOAD: lambda n: not n.args and isinstance(n.value, str),
    Op.CARRY: lambda n: not n.args,
    Op.REDUCE: _is_reduction,
    Op.RANK: lambda n: len(n.args) == 1 and n.axes == union(n.args[0].axes, "o"),
    Op.CHANNEL_SUM: lambda n: len(n.args) == 1 and n.axes == union(n.args[0].axes, "o"),
    Op.MATMUL: _is_product,
}


def verify(*roots: Node, seen: set[Node] | None = None) -> list[Node]:
    """Check all nodes below the roots against SPEC, and return them. Raises AssertionError, which
    only a bug in horn can cause. Nodes in ``seen``, which grows, are skipped.
    """
    found = list(walk(*roots, seen=seen))
    for node in found:
        assert node.op in SPEC and SPEC[node.op](node), f"{node!r} breaks the rule of {node.op}"
    return found
