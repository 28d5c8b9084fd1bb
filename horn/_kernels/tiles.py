"""Reductions that tiles.h computes in registers, found by their form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Ops = Sequence[tuple[str, Sequence[int]]]

NONE, DOT, COPY, ROWS, COLUMNS, PLACES, QUOTIENTS, WAVES, SLOPES, SQUARES = range(10)  # FAST_*
MUL, ADD, SUB, BUS, APART, SQUARE, LESS, MORE = range(8)  # T_* of tape.h
MOST_FACTORS = 5  # that a tile has, in SLOPES
FUNCTIONS = ("exp", "tanh", "sigmoid", "square")  # W_* of tape.h
_EXTREMES = (MUL, ADD, SUB, BUS, APART)
_FACTORS = (MUL, ADD, SUB, BUS, LESS, MORE)
_TERMS = {
    "sum": (APART, SQUARE),
    "prod": _FACTORS,
    **dict.fromkeys(("max", "min", "argmax"), _EXTREMES),
}


class Tile(NamedTuple):
    """The tile of a loop: its kind, its term, and the role of each value."""

    fast: int
    term: int = 0
    roles: tuple[int, ...] = ()


def pair(tile: Tile | None) -> tuple[int, int] | None:
    """The two arrays of a tile's term, whose places lie side by side; None where it has none."""
    if tile is None or tile.fast in (NONE, DOT, COPY, PLACES):
        return None
    if tile.fast == ROWS:
        return 0, 1
    first = {WAVES: 0, SQUARES: 1, COLUMNS: 1}.get(tile.fast, 3)
    return tile.roles[first], tile.roles[first + 1]


class _Values:
    """Arrays, constants and operations, numbered in this order."""

    def __init__(self, n_arrays: int, consts: Sequence[Any], ops: Ops) -> None:
        self.n_arrays, self.consts, self.ops = n_arrays, consts, ops
        self.first = n_arrays + len(consts)

    def op(self, value: int) -> tuple[str, list[int]]:
        """The name and arguments of an operation; ("", []) for another value."""
        name, values = self.ops[value - self.first] if value >= self.first else ("", ())
        return name, list(values)

    def is_array(self, value: int) -> bool:
        return value < self.n_arrays

    def const(self, value: int) -> int | None:
        """The index of a value among the constants, or None."""
        return value - self.n_arrays if self.n_arrays <= value < self.first else None

    def term(self, value: int) -> tuple[int, tuple[int, int], int] | None:
        """The term of two arrays: (T_*, the arrays, the constant or -1 for none), or None."""
        name, values = self.op(value)
        if len(values) == 2 and all(map(self.is_array, values)) and values[0] != values[1]:
            found = {"mul": MUL, "add": ADD, "sub": SUB}.get(name)
            return None if found is None else (found, (values[0], values[1]), -1)
        if name == "abs" or (name == "mul" and values[0] == values[1]):
            inside, pair = self.op(values[0])
            if inside != "sub" or not all(map(self.is_array, pair)) or pair[0] == pair[1]:
                return None
            return APART if name == "abs" else SQUARE, (pair[0], pair[1]), -1
        if name in ("add", "sub"):
            number, product = values if name == "sub" else sorted(values)
            const, (inside, pair) = self.const(number), self.op(product)
            if const is None or inside != "mul" or not all(map(self.is_array, pair)):
                return None
            if pair[0] != pair[1]:
                return LESS if name == "sub" else MORE, (pair[0], pair[1]), const
        return None

    def wave(self, value: int) -> tuple[int, tuple[int, int], int, int] | None:
        """F(x w - sign t): (the index of F, x and w, t or -1 for none, the sign), or None."""
        name, args = self.op(value)
        if name == "mul" and args[0] == args[1]:
            name = "square"
        if name not in FUNCTIONS:
            return None
        t, sign, inside = -1, 1, args[0]
        name_of, parts = self.op(inside)
        if name_of == "sub" and self.is_array(parts[1]):
            inside, t = parts
        elif name_of == "add" and self.is_array(min(parts)):
            t, inside = sorted(parts)
            sign = -1
        found = self.term(inside)
        if found is None or found[0] != MUL:
            return None
        return FUNCTIONS.index(name), found[1], t, sign

    def factors(self, value: int) -> list[int]:
        """The factors of a product, none of which is a product itself unless they are more than
        any tile has: ``v = v * (v * x)``, again and again, has twice as many each time.
        """
        found, pending = list[int](), [value]
        while pending and len(found) + len(pending) <= MOST_FACTORS:
            value = pending.pop()
            name, args = self.op(value)
            if name == "mul" and args[0] != args[1]:
                pending += reversed(args)
            else:
                found.append(value)
        return [*found, *reversed(pending)]

    def is_one_less(self, value: int, other: int) -> bool:
        """Whether the value is 1 - other."""
        name, args = self.op(value)
        if name != "sub" or args[1] != other or (at := self.const(args[0])) is None:
            return False
        return bool(self.consts[at] == 1.0)


def tile(
    iotas: Sequence[bool], consts: Sequence[Any], ops: Ops, result: int, monoid: str, is_plain: bool
) -> Tile | None:
    """The tile of a reduction, or None. Its values are arrays, constants and operations, in this
    order.

    iotas : of each array whether it is an Iota. is_plain : it begins from nothing.
    """
    values = _Values(len(iotas), consts, ops)
    if not ops or result != values.first + len(ops) - 1:
        return None
    if any(iotas):
        return _places(iotas, consts, ops) if monoid == "sum" and is_plain else None
    if len(iotas) == 2 and (found := values.term(result)) is not None:
        term, (a, _), const = found
        if term in (SUB, BUS):
            term = SUB if a == 0 else BUS
        is_whole = len(consts) == (const >= 0)  # nothing else is there
        return Tile(ROWS, term) if is_whole and term in _TERMS.get(monoid, ()) else None
    if monoid != "sum":
        return None
    if len(iotas) == 3 and not consts and (signs := _columns(ops, values.first)) is not None:
        return signs
    forms = (_squares, _quotient, _waves, _slopes)
    return next((made for form in forms if (made := form(values, result)) is not None), None)


def _columns(ops: Ops, first: int) -> Tile | None:
    """The tile +-u sign(a - b), or None: roles are u, a, b and the sign."""
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


def _squares(values: _Values, result: int) -> Tile | None:
    """The tile s (a - b)^2, or None: roles are s, a, b."""
    if values.n_arrays != 3:  # it has room for their views
        return None
    by, *rest = sorted(values.factors(result))
    if not values.is_array(by) or len(rest) not in (1, 2) or rest[0] != rest[-1]:
        return None
    found = values.term(rest[0])
    if found is None or found[0] != (SQUARE if len(rest) == 1 else SUB) or by in found[1]:
        return None
    return Tile(SQUARES, SQUARE, (by, *found[1]))


def _quotient(values: _Values, result: int) -> Tile | None:
    """The tile y select(term == 0, a, b / term), or None: roles are a, b, y (-1: it is 1), the
    arrays of the term, and its constant (-1: it has none).
    """
    name, args = values.op(result)
    y = -1
    if name == "mul":
        y, result = sorted(args)
        name, args = values.op(result)
    if name != "select" or not (y == -1 or values.is_array(y)):
        return None
    condition, a, quotient = args
    (is_zero, pair), (over, parts) = values.op(condition), values.op(quotient)
    if is_zero != "eq" or over != "div" or not (values.is_array(a) and values.is_array(parts[0])):
        return None
    b, divisor = parts
    zero, found = [v for v in pair if v != divisor], values.term(divisor)
    if len(zero) != 1 or found is None or found[0] not in _FACTORS:
        return None
    if (at := values.const(zero[0])) is None or values.consts[at] != 0.0:
        return None
    term, (m, f), const = found
    return Tile(QUOTIENTS, term, (a, b, y, m, f, const))


def _waves(values: _Values, result: int) -> Tile | None:
    """The tile F(x w - sign t), perhaps times x or w: roles are x, w, t, other (-1: none), sign."""
    name, args = values.op(result)
    times, value = sorted(args) if name == "mul" and args[0] != args[1] else (-1, result)
    if (found := values.wave(value)) is None or (times >= 0 and times not in found[1]):
        return None
    function, (x, w), t, sign = found
    return Tile(WAVES, function, (x, w, t, times, sign))


def _slopes(values: _Values, result: int) -> Tile | None:
    """The tile y (a + b y) F'(m f - sign t), or None: roles are a, b, y, m, f, t (-1: none; a and y
    may be exchanged) and the sign.
    """
    arrays: list[int] = []
    sums: list[tuple[int, int, int]] = []
    slope: list[int] = []
    for value in values.factors(result):
        name, args = values.op(value)
        if values.is_array(value):
            arrays.append(value)
        elif name == "add":
            a, product = sorted(args)
            times, pair = values.op(product)
            if times != "mul" or not all(map(values.is_array, (a, *pair))):
                return None
            sums.append((a, pair[0], pair[1]))
        else:
            slope.append(value)
    inside = _slope(values, slope)
    if inside is None or (found := values.wave(inside)) is None:
        return None
    function, (m, f), t, sign = found
    if not sums and len(arrays) <= 2:
        a, y = (*arrays, -1, -1)[:2]
        return Tile(SLOPES, function, (a, -1, y, m, f, t, sign))
    if len(sums) == 1 and len(arrays) == 1 and arrays[0] in sums[0][1:]:
        (a, b, other), (y,) = sums[0], arrays
        return Tile(SLOPES, function, (a, other if b == y else b, y, m, f, t, sign))
    return None


def _slope(values: _Values, slope: Sequence[int]) -> int | None:
    """The value F(z), if the product of these factors is F'(z); else None."""
    if len(slope) == 1:
        (value,) = slope
        if values.op(value)[0] == "exp":
            return value
        _, args = values.op(value)
        if not args:  # a constant factor
            return None
        square, pair = values.op(args[-1])
        is_square = square == "mul" and pair[0] == pair[1] and values.op(pair[0])[0] == "tanh"
        return pair[0] if is_square and values.is_one_less(value, args[-1]) else None
    if len(slope) == 2:
        for s, rest in (slope, slope[::-1]):
            if values.op(s)[0] == "sigmoid" and values.is_one_less(rest, s):
                return s
    return None


def _places(iotas: Sequence[bool], consts: Sequence[Any], ops: Ops) -> Tile | None:
    """The tile select(view == iota, value, 0), or None: roles are the view, the iota, the value."""
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
    others_of = [op for k, op in enumerate(ops[:-1]) if k != condition - first]
    others = [value, *(v for _, values in others_of for v in values)]
    # a value is computed at the places alone, where neither of these two is
    if iota not in pair or iota in others or condition in others:
        return None
    (view,) = (v for v in pair if v != iota)
    return Tile(PLACES, 0, (view, iota, value))
