"""The reductions that tiles.h does in registers, found by their form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Ops = Sequence[tuple[str, Sequence[int]]]

ROWS, COLUMNS, PLACES = 3, 4, 5  # loop_t.fast
MUL, ADD, SUB, BUS, APART, SQUARE = range(6)  # T_* of tape.h
_EXTREMES = (MUL, ADD, SUB, BUS, APART)
_TERMS = {"sum": (APART, SQUARE), **dict.fromkeys(("max", "min", "argmax"), _EXTREMES)}


class Tile(NamedTuple):
    """Which tile, of what term, and which values play which role."""

    fast: int
    term: int = 0
    roles: tuple[int, ...] = ()


def tile(
    iotas: Sequence[bool], consts: Sequence[Any], ops: Ops, result: int, monoid: str, is_plain: bool
) -> Tile | None:
    """The tile of a reduction, or None. Its values are arrays, constants and operations, in this
    order.

    iotas : of each array whether it is an Iota. is_plain : it begins from nothing.
    """
    first = len(iotas) + len(consts)
    if result != first + len(ops) - 1 or not ops:
        return None
    if any(iotas):
        return _places(iotas, consts, ops) if monoid == "sum" and is_plain else None
    if consts:
        return None
    if len(iotas) == 2:
        term = _term(ops, first)
        return Tile(ROWS, term) if term is not None and term in _TERMS.get(monoid, ()) else None
    return _columns(ops, first) if len(iotas) == 3 and monoid == "sum" else None


def _term(ops: Ops, first: int) -> int | None:
    """Of two inputs, 0 and 1."""
    name, values = ops[0][0], list(ops[0][1])
    if sorted(values) != [0, 1]:
        return None
    if len(ops) == 1:
        return {"mul": MUL, "add": ADD, "sub": SUB if values == [0, 1] else BUS}.get(name)
    if len(ops) == 2 and name == "sub":
        return {("abs", 1): APART, ("square", 1): SQUARE, ("mul", 2): SQUARE}.get(
            (ops[1][0], list(ops[1][1]).count(first))
        )
    return None


def _columns(ops: Ops, first: int) -> Tile | None:
    """+-u sign(a - b): roles are u, a, b and the sign."""
    sign = 1
    if ops[-1][0] == "neg" and list(ops[-1][1]) == [first + 2]:
        ops, sign = ops[:-1], -1
    if [name for name, _ in ops] != ["sub", "sign", "mul"]:
        return None
    (a, b), inside, product = (list(values) for _, values in ops)
    if a == b or not {a, b} < {0, 1, 2}:
        return None
    (u,) = {0, 1, 2} - {a, b}
    if inside != [first] or sorted(product) != [u, first + 1]:
        return None
    return Tile(COLUMNS, 0, (u, a, b, sign))


def _places(iotas: Sequence[bool], consts: Sequence[Any], ops: Ops) -> Tile | None:
    """select(view == iota, value, 0): roles are the view, the iota and the value."""
    first = len(iotas) + len(consts)
    if ops[-1][0] != "select" or sum(iotas) != 1:
        return None
    condition, value, rest = ops[-1][1]
    if condition < first or value < first or not len(iotas) <= rest < first:
        return None
    name, pair = ops[condition - first]
    if consts[rest - len(iotas)] != 0.0 or name != "eq" or max(pair) >= len(iotas):
        return None
    iota = iotas.index(True)
    others = [v for k, (_, values) in enumerate(ops) if k != condition - first for v in values]
    if iota not in pair or iota in others:
        return None
    (view,) = (v for v in pair if v != iota)
    return Tile(PLACES, 0, (view, iota, value))
