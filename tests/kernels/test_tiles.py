"""The tiles of tiles.h against NumPy: at every level, sizes that no tile fits, infinite numbers."""

import os
import subprocess
import sys

import numpy as np
import pytest

from horn._kernels import tiles
from horn._kernels.engine import LEVEL, Iota, Tape, View

RTOL = {np.float32: 1e-5, np.float64: 1e-12}
SIZES = [(1, 1, 16), (3, 5, 33), (9, 6, 100), (67, 35, 1031), (4, 40, 64), (2, 3, 7), (5, 66, 300)]
if "HORN_SIMD" in os.environ:  # of a lower level than the others run at: every other size
    SIZES = SIZES[1::2]
TERMS = {
    "mul": ([("mul", 0, 1)], np.multiply),
    "add": ([("add", 1, 0)], np.add),
    "sub": ([("sub", 0, 1)], np.subtract),
    "bus": ([("sub", 1, 0)], lambda x, w: w - x),
    "apart": ([("sub", 1, 0), ("abs", 2)], lambda x, w: abs(x - w)),
    "square": ([("sub", 0, 1), ("mul", 2, 2)], lambda x, w: (x - w) ** 2),
}
FOLDS = {"sum": np.sum, "max": np.max, "min": np.min, "argmax": np.argmax}


def matrices(rng, p, q, r, dtype):
    """Rounded, so that there are ties; rows further apart than they are long."""
    x, w = (np.round(rng.standard_normal((n, r + 3)), 1).astype(dtype) for n in (p, q))
    return x[:, :r], w[:, :r]


def rows(x, w, ops, monoid, n_threads, outputs="pq", first="x", accumulate=None):
    (p, r), q = x.shape, len(w)
    shape = [{"p": p, "q": q}[name] for name in outputs]
    out = np.zeros(shape, x.dtype) if accumulate is None else accumulate
    best = np.zeros(shape, x.dtype)
    tape = Tape(x.dtype, n_threads)
    views = [View(x, "pr"), View(w, "qr")]
    to = [(View(out, outputs), 1 + len(ops))]
    if monoid == "argmax":
        to.append((View(best, outputs), 1 + len(ops)))
    tape.loop(
        {"p": p, "q": q, "r": r}, views if first == "x" else views[::-1], ops, to,
        reduce=(monoid, "r"), accumulate=accumulate is not None,
    )  # fmt: skip
    tape.run()
    return out, best


@pytest.mark.parametrize("p, q, r", SIZES)
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("monoid", FOLDS)
def test_rows(monoid, term, p, q, r, dtype, n_threads, rng):
    ops, formula = TERMS[term]
    x, w = matrices(rng, p, q, r, dtype)
    values = formula(x[:, None], w)
    for first in "xw":
        given = values if first == "x" else formula(w, x[:, None])
        found, best = rows(x, w, ops, monoid, n_threads, first=first)
        expected = FOLDS[monoid](given.astype(dtype if monoid != "sum" else float), axis=2)
        np.testing.assert_allclose(found, expected, rtol=RTOL[dtype], atol=RTOL[dtype])
        if monoid == "argmax":
            np.testing.assert_array_equal(best, given.max(2))


@pytest.mark.parametrize("monoid, unit", [("sum", 2.5), ("max", 0.3), ("min", -0.2)])
def test_rows_join_what_was_there(monoid, unit, dtype, n_threads, rng):
    x, w = matrices(rng, 9, 7, 100, dtype)
    found, _ = rows(x, w, TERMS["apart"][0], monoid, n_threads,
                    accumulate=np.full((7, 9), unit, dtype), outputs="qp")  # fmt: skip
    values = abs(x[:, None] - w).astype(float)
    expected = {
        "sum": unit + values.sum(2),
        "max": np.maximum(values.max(2), unit),
        "min": np.minimum(values.min(2), unit),
    }[monoid]
    np.testing.assert_allclose(found, expected.T, rtol=RTOL[dtype])


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("monoid", FOLDS)
@pytest.mark.parametrize("where", "xw")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_no_number_is_seen(where, monoid, what, dtype, rng):
    x, w = matrices(rng, 6, 5, 40, dtype)
    (x if where == "x" else w)[2, 17] = what
    for term in ("apart", "mul"):
        ops, formula = TERMS[term]
        found, _ = rows(x, w, ops, monoid, 1)
        expected = FOLDS[monoid](formula(x[:, None], w), axis=2)
        np.testing.assert_allclose(found, expected, rtol=RTOL[dtype], atol=RTOL[dtype])


SIGNS = {
    "as derived": ([("sub", 1, 2), ("sign", 3), ("mul", 0, 4), ("neg", 5)], -1),
    "turned": ([("sub", 2, 1), ("sign", 3), ("mul", 4, 0)], -1),
    "plain": ([("sub", 1, 2), ("sign", 3), ("mul", 0, 4)], 1),
}


def columns(x, w, u, ops, n_threads, folded):
    axes = {"b": len(x), "o": len(w), "i": x.shape[1]}
    rest = "oi" if folded == "b" else "bi"
    out = np.zeros([axes[name] for name in rest], x.dtype)
    tape = Tape(x.dtype, n_threads)
    tape.loop(axes, [View(u, "bo"), View(x, "bi"), View(w, "oi")], ops,
              [(View(out, rest), 2 + len(ops))], reduce=("sum", folded))  # fmt: skip
    tape.run()
    return out


@pytest.mark.parametrize("p, q, r", [*SIZES, (300, 5, 70), (3, 600, 33), (99, 601, 65)])
@pytest.mark.parametrize("form", SIGNS)
@pytest.mark.parametrize("folded", "bo")
def test_columns(folded, form, p, q, r, dtype, n_threads, rng):
    ops, factor = SIGNS[form]
    x, w = matrices(rng, p, q, r, dtype)
    u = rng.standard_normal((p, q)).astype(dtype)
    found = columns(x, w, u, ops, n_threads, folded)
    values = factor * u[..., None].astype(float) * np.sign(x[:, None] - w)
    expected = values.sum(0 if folded == "b" else 1)
    np.testing.assert_allclose(found, expected, rtol=RTOL[dtype], atol=100 * RTOL[dtype])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_columns_of_what_is_no_number(dtype, rng):
    for what in (np.nan, np.inf):
        x, w = matrices(rng, 6, 5, 40, dtype)
        u = rng.standard_normal((6, 5)).astype(dtype)
        x[2, 17] = w[3, 17] = what
        found = columns(x, w, u, SIGNS["plain"][0], 1, "b")
        expected = (u[..., None] * np.sign(x[:, None] - w)).sum(0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_bits_do_not_depend_on_threads(dtype, rng):
    x, w = matrices(rng, 67, 35, 1031, dtype)
    x += rng.random(x.shape).astype(dtype)
    u = rng.standard_normal((67, 35)).astype(dtype)
    sums = [rows(x, w, TERMS["apart"][0], "sum", n)[0] for n in (1, 2, 3)]
    signs = [columns(x, w, u, SIGNS["plain"][0], n, "b") for n in (1, 2, 3)]
    for found in (sums, signs):
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


LOOPS = {
    "apart": ([("sub", 0, 1), ("abs", 3)], "sum"),
    "largest": ([("mul", 0, 1)], "max"),
    "wave": ([("mul", 0, 1), ("tanh", 3), ("mul", 1, 4)], "sum"),
    "sign": ([("sub", 0, 1), ("sign", 3), ("mul", 2, 4)], "sum"),
    "slope": ([("mul", 0, 1), ("exp", 3), ("mul", 2, 4)], "sum"),
    "square": ([("sub", 0, 1), ("mul", 3, 3), ("mul", 2, 4)], "sum"),
    "strips": ([("mul", 0, 1), ("sin", 3), ("add", 2, 4), ("mul", 4, 5)], "sum"),
}


@pytest.mark.parametrize("folded, rest", [("i", "bo"), ("b", "oi"), ("o", "bi")])
@pytest.mark.parametrize("form", LOOPS)
def test_long_loops_are_the_same_in_any_parts(form, folded, rest, dtype, rng):
    """Several for each thread, taken as it comes; and again, when the tape is run again."""
    ops, monoid = LOOPS[form]
    x, w = matrices(rng, 70, 210, 100, dtype)
    u = rng.standard_normal((70, 210)).astype(dtype)
    axes = {"b": 70, "o": 210, "i": 100}
    views = [View(x, "bi"), View(w, "oi"), View(u, "bo")]
    if all(2 not in v for _, *v in ops):
        views, ops = views[:2], [(n, *(k - (k > 2) for k in v)) for n, *v in ops]
    found = []
    for n_threads in (1, 2, 3):
        out = np.zeros([axes[name] for name in rest], dtype)
        tape = Tape(dtype, n_threads)
        tape.loop(axes, views, ops, [(View(out, rest), len(views) - 1 + len(ops))],
                  reduce=(monoid, folded))  # fmt: skip
        for _ in range(2):
            out[...] = np.nan
            tape.run()
            found.append(out.copy())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert np.isfinite(found[0]).all() and found[0].any()


@pytest.mark.parametrize("folded", "bo")
@pytest.mark.parametrize("p, q, r", [(1, 1, 1), (30, 5, 7), (600, 3, 40)])
def test_places(p, q, r, folded, dtype, n_threads, rng):
    """The gradient of a maximum: nothing but where a view says; -1 is nowhere."""
    x = rng.standard_normal((p, r)).astype(dtype)
    u = rng.standard_normal((p, q)).astype(dtype)
    at = rng.integers(-1, r, (p, q))
    axes, rest = {"b": p, "o": q, "i": r}, "oi" if folded == "b" else "bi"
    out = np.full([axes[name] for name in rest], np.nan, dtype)
    tape = Tape(dtype, n_threads)
    tape.loop(
        axes, [View((at + 5).astype(dtype), "bo"), Iota("i", 5), View(u, "bo"), View(x, "bi"), 0.0],
        [("eq", 0, 1), ("mul", 2, 3), ("select", 5, 6, 4)], [(View(out, rest), 7)],
        reduce=("sum", folded),
    )  # fmt: skip
    tape.run()
    values = np.where(at[..., None] == np.arange(r), u[..., None].astype(float) * x[:, None], 0)
    expected = values.sum(0 if folded == "b" else 1)
    np.testing.assert_allclose(out, expected, rtol=RTOL[dtype], atol=100 * RTOL[dtype])


def test_places_of_a_large_batch_are_summed_in_double():
    """The gradient of a maximum was 1.2e-3 off at 200,000 samples that have the same place."""
    n = 200_000
    at, u, x = np.zeros((n, 1), np.float32), np.full((n, 1), 0.1, np.float32), np.ones((n, 4))
    out = np.full((1, 4), np.nan, np.float32)
    tape = Tape(np.float32)
    tape.loop(
        {"b": n, "o": 1, "i": 4},
        [View(at, "bo"), Iota("i"), View(u, "bo"), View(x.astype(np.float32), "bi"), 0.0],
        [("eq", 0, 1), ("mul", 2, 3), ("select", 5, 6, 4)], [(View(out, "oi"), 7)],
        reduce=("sum", "b"),
    )  # fmt: skip
    tape.run()
    np.testing.assert_allclose(out[0, 0], n * np.float64(np.float32(0.1)), rtol=1e-7)
    assert not out[0, 1:].any()


def test_a_value_that_reads_its_condition_is_computed_everywhere(dtype, rng):
    at, u = rng.integers(0, 40, (3, 5)), rng.standard_normal((3, 5)).astype(dtype)
    out, tape = np.full((3, 40), np.nan, dtype), Tape(dtype)
    tape.loop(
        {"b": 3, "o": 5, "i": 40}, [View(at.astype(dtype), "bo"), Iota("i"), View(u, "bo"), 0.0],
        [("eq", 0, 1), ("mul", 4, 2), ("select", 4, 5, 3)], [(View(out, "bi"), 6)],
        reduce=("sum", "o"),
    )  # fmt: skip
    tape.run()
    expected = np.where(at[..., None] == np.arange(40), u[..., None], 0).sum(1)
    np.testing.assert_allclose(out, expected, rtol=RTOL[dtype])


FACTORS = {
    "mul": ([("mul", 0, 1)], np.multiply),
    "add": ([("add", 1, 0)], np.add),
    "sub": ([("sub", 0, 1)], np.subtract),
    "less": ([("mul", 0, 1), ("sub", 2, 3)], lambda x, w: x.dtype.type(0.75) - x * w),
    "more": ([("mul", 1, 0), ("add", 3, 2)], lambda x, w: x.dtype.type(0.75) + x * w),
}


def factors(x, w, form, n_threads, first="x"):
    """The product over r of the terms: (p, q)."""
    ops, _ = FACTORS[form]
    views = [View(x, "pr"), View(w, "qr")]
    given = [*(views if first == "x" else views[::-1]), *([0.75] if len(ops) == 2 else [])]
    out = np.zeros((len(x), len(w)), x.dtype)
    tape = Tape(x.dtype, n_threads)
    tape.loop({"p": len(x), "q": len(w), "r": x.shape[1]}, given, ops,
              [(View(out, "pq"), len(given) + len(ops) - 1)], reduce=("prod", "r"))  # fmt: skip
    tape.run()
    return out


@pytest.mark.parametrize("p, q, r", SIZES)
@pytest.mark.parametrize("form", FACTORS)
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_products(scale, form, p, q, r, dtype, n_threads, rng):
    """Of factors near 1, and of others: beyond what a float can be on the way, and 0."""
    x, w = (scale * rng.standard_normal((n, r)).astype(dtype) for n in (p, q))
    x[0, 0], w[0, 0] = (0.75, 1.0) if form == "less" else (1.0, -0.75)
    for first in "xw":
        values = FACTORS[form][1](*((x[:, None], w) if first == "x" else (w, x[:, None])))
        with np.errstate(under="ignore", over="ignore"):
            expected = np.prod(values, axis=2, dtype=float).astype(dtype)
        found = factors(x, w, form, n_threads, first)
        np.testing.assert_allclose(found, expected, rtol=10 * RTOL[dtype], atol=1e-37)


def test_products_of_what_is_no_number(dtype):
    x, w = np.full((5, 40), 0.1, dtype), np.full((6, 40), 0.1, dtype)
    x[2, 17], w[3, 5], w[4, 38] = np.nan, np.inf, np.nan
    found = factors(x, w, "less", 1)
    assert np.isnan(found[2]).all() and np.isnan(found[:, 4]).all()
    assert np.isinf(found[[0, 1, 3, 4], 3]).all()


QUOTIENTS = {
    "less": ([("mul", 3, 2), ("sub", 6, 7)], lambda x, w: x.dtype.type(0.75) - x * w),
    "more": ([("mul", 2, 3), ("add", 6, 7)], lambda x, w: x.dtype.type(0.75) + x * w),
    "mul": ([("mul", 2, 3)], np.multiply),
    "sub": ([("sub", 2, 3)], np.subtract),
    "bus": ([("sub", 3, 2)], lambda x, w: w - x),
}


@pytest.mark.parametrize("p, q, r", [(3, 5, 33), (67, 35, 100), (300, 5, 70), (3, 600, 33)])
@pytest.mark.parametrize("form", QUOTIENTS)
@pytest.mark.parametrize("folded, with_y", [("b", True), ("b", False), ("o", True)])
def test_quotients(folded, with_y, form, p, q, r, dtype, n_threads, rng):
    """What a product sends back: a where a factor is 0, b / factor elsewhere, times y."""
    term, formula = QUOTIENTS[form]
    x, w = (rng.choice([0.5, 0.75, -1.25, 1.0, 0.0], (n, r)).astype(dtype) for n in (p, q))
    a, b = (rng.standard_normal((p, q)).astype(dtype) for _ in range(2))
    y = rng.standard_normal((p if folded == "b" else q, r)).astype(dtype)
    axes, rest = {"b": p, "o": q, "i": r}, "oi" if folded == "b" else "bi"
    out = np.full([axes[name] for name in rest], np.nan, dtype)
    given = [View(a, "bo"), View(b, "bo"), View(x, "bi"), View(w, "oi"),
             View(y, "bi" if folded == "b" else "oi"), 0.0, 0.75]  # fmt: skip
    last = 6 + len(term)
    ops = [*term, ("eq", 5, last), ("div", 1, last), ("select", last + 1, 0, last + 2)]
    if with_y:
        ops.append(("mul", last + 3, 4))
    tape = Tape(dtype, n_threads)
    tape.loop(axes, given, ops, [(View(out, rest), 6 + len(ops))], reduce=("sum", folded))
    tape.run()
    factor = formula(x[:, None], w)
    with np.errstate(divide="ignore"):
        values = np.where(factor == 0, a[..., None], b[..., None].astype(float) / factor)
    if with_y:
        values = values * (y[:, None] if folded == "b" else y)
    expected = values.sum(0 if folded == "b" else 1)
    np.testing.assert_allclose(out, expected, rtol=RTOL[dtype], atol=1000 * RTOL[dtype])


def test_bits_of_products_do_not_depend_on_threads(dtype, rng):
    """Nor on which rows lie beside each other: some have factors near 1, some have not."""
    x, w = (rng.random((n, 300)).astype(dtype) for n in (67, 35))
    x[::3] *= 3.0
    found = [factors(x, w, "less", n) for n in (1, 2, 3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[0][5:9], factors(x[5:9].copy(), w, "less", 1))


WAVES = {
    "exp": (np.exp, np.exp),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
    "square": (np.square, lambda z: 2 * z),
}


@pytest.mark.parametrize("p, q, r", [(1, 1, 16), (3, 5, 33), (67, 35, 1031), (5, 66, 300)])
@pytest.mark.parametrize("form", WAVES)
@pytest.mark.parametrize("times, t", [("", ""), ("x", "sub"), ("w", "add"), ("", "sub")])
def test_waves(t, times, form, p, q, r, dtype, n_threads, rng):
    """Sums of F(x w - t), and of x F, w F."""
    x, w = (rng.standard_normal((n, r)).astype(dtype) for n in (p, q))
    shift = rng.standard_normal((q, p)).astype(dtype)
    ops = [("mul", 0, 1), *([(t, 3, 2)] if t else [])]
    z = 2 + len(ops)
    ops.append(("mul", z, z) if form == "square" else (form, z))
    if times:
        ops.append(("mul", "xw".index(times), 2 + len(ops)))
    assert tiles.tile([False] * 3, (), [(n, v) for n, *v in ops], 2 + len(ops), "sum", True)
    out = np.zeros((p, q), dtype)
    tape = Tape(dtype, n_threads)
    tape.loop(
        {"p": p, "q": q, "r": r}, [View(x, "pr"), View(w, "qr"), View(shift, "qp")], ops,
        [(View(out, "pq"), 2 + len(ops))], reduce=("sum", "r"),
    )  # fmt: skip
    tape.run()
    z = x[:, None].astype(float) * w + {"": 0, "sub": -1, "add": 1}[t] * shift.T[..., None]
    values = WAVES[form][0](z) * {"": 1, "x": x[:, None], "w": w}[times]
    scale = abs(values).sum(2).max()
    np.testing.assert_allclose(out, values.sum(2), rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


SLOPES = {  # from F(z), value 9, and 1, value 6: F'(z)
    "exp": [],
    "tanh": [("mul", 9, 9), ("sub", 6, 10)],
    "sigmoid": [("sub", 6, 9), ("mul", 9, 10)],
}


@pytest.mark.parametrize("p, q, r", [(3, 5, 33), (67, 35, 100), (300, 5, 70), (3, 600, 33)])
@pytest.mark.parametrize("form", SLOPES)
@pytest.mark.parametrize("folded", "bo")
@pytest.mark.parametrize("beside", ["", "a", "y", "a y", "(a + b y) y"])
def test_slopes(beside, folded, form, p, q, r, dtype, rng):
    """What sums of functions send back."""
    x, w = (rng.standard_normal((n, r)).astype(dtype) for n in (p, q))
    a, b, t = (rng.standard_normal((p, q)).astype(dtype) for _ in range(3))
    y = rng.standard_normal((p if folded == "b" else q, r)).astype(dtype)
    axes, rest = {"b": p, "o": q, "i": r}, "oi" if folded == "b" else "bi"
    ops = [("mul", 0, 1), ("sub", 7, 4), (form, 8), *SLOPES[form]]
    last = 6 + len(ops)
    if beside in ("a", "a y"):
        ops.append(("mul", last, 2))
    if beside == "(a + b y) y":
        ops += [("mul", 3, 5), ("add", 2, last + 1), ("mul", last, last + 2)]
    if "y" in beside:
        ops.append(("mul", 5, 6 + len(ops)))
    named = [(n, v) for n, *v in ops]
    assert tiles.tile([False] * 6, (1.0,), named, 6 + len(ops), "sum", True)
    out = np.full([axes[name] for name in rest], np.nan, dtype)
    given = [View(x, "bi"), View(w, "oi"), View(a, "bo"), View(b, "bo"), View(t, "bo"),
             View(y, "bi" if folded == "b" else "oi"), 1.0]  # fmt: skip
    tape = Tape(dtype, 2)
    tape.loop(axes, given, ops, [(View(out, rest), 6 + len(ops))], reduce=("sum", folded))
    tape.run()
    z = x[:, None].astype(float) * w - t[..., None]
    each = y[:, None] if folded == "b" else y
    values = WAVES[form][1](z) * {
        "": 1, "a": a[..., None], "y": each, "a y": a[..., None] * each,
        "(a + b y) y": (a[..., None] + b[..., None] * each) * each,
    }[beside]  # fmt: skip
    axis = 0 if folded == "b" else 1
    scale = abs(values).sum(axis).max()
    np.testing.assert_allclose(out, values.sum(axis), rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


@pytest.mark.parametrize("folded, rest", [("i", "bo"), ("b", "oi")])
@pytest.mark.parametrize("monoid, nothing", [("sum", 0.0), ("prod", 1.0), ("max", -np.inf)])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_gated(turned, monoid, nothing, folded, rest, dtype, n_threads, rng):
    """Where a view says that there is nothing, the result is that of nothing."""
    axes = {"b": 6, "o": 9, "i": 700}
    x = rng.random((6, 700)).astype(dtype)
    gate = (rng.random([axes[name] for name in rest]) < 0.5).astype(dtype)
    gate[0] = not turned
    out = np.zeros([axes[name] for name in rest], dtype)
    w = rng.random((9, 700)).astype(dtype)
    sides = (5, 4) if turned else (4, 5)
    tape = Tape(dtype, n_threads)
    tape.loop(
        axes, [View(gate, rest), View(x, "bi"), View(w, "oi"), 0.0, nothing],
        [("add", 1, 2), ("ne", 0, 3), ("select", 6, *sides)], [(View(out, rest), 7)],
        reduce=(monoid, folded),
    )  # fmt: skip
    tape.run()
    values = getattr(np, monoid)(x[:, None].astype(float) + w, axis=2 if folded == "i" else 0)
    expected = np.where((gate != 0) != turned, nothing, values)
    np.testing.assert_allclose(out, expected, rtol=100 * RTOL[dtype], atol=1e-36)


SQUARES = {
    "by weight": ([("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)], "oi", "i"),
    "turned": ([("sub", 2, 1), ("mul", 3, 3), ("mul", 4, 0)], "oi", "i"),
    "by message": ([("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)], "i", "i"),
    "by sample": ([("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)], "bi", "i"),
    "one by one": ([("sub", 1, 2), ("mul", 0, 3), ("mul", 3, 4)], "oi", "i"),
    "back": ([("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)], "bo", "b"),
    "back, turned": ([("sub", 2, 1), ("mul", 3, 3), ("mul", 4, 0)], "bo", "b"),
    "to the senders": ([("sub", 1, 2), ("mul", 3, 3), ("mul", 0, 4)], "bo", "o"),
}


def squares(x, w, form, n_threads, rng):
    """The sum of s (x - w)^2, and what it is."""
    ops, letters, folded = SQUARES[form]
    axes = {"b": len(x), "o": len(w), "i": x.shape[1]}
    s = rng.standard_normal([axes[name] for name in letters]).astype(x.dtype)
    rest = "boi".replace(folded, "")
    out = np.zeros([axes[name] for name in rest], x.dtype)
    tape = Tape(x.dtype, n_threads)
    tape.loop(axes, [View(s, letters), View(x, "bi"), View(w, "oi")], ops,
              [(View(out, rest), 5)], reduce=("sum", folded))  # fmt: skip
    tape.run()
    whole = s.reshape([axes[name] if name in letters else 1 for name in "boi"])
    return out, whole.astype(float) * (x[:, None].astype(float) - w) ** 2, "boi".index(folded)


@pytest.mark.parametrize("p, q, r", [*SIZES, (300, 5, 70), (3, 600, 33), (99, 601, 65)])
@pytest.mark.parametrize("form", SQUARES)
def test_squares(form, p, q, r, dtype, n_threads, rng):
    x, w = matrices(rng, p, q, r, dtype)
    found, values, axis = squares(x, w, form, n_threads, rng)
    scale = abs(values).sum(axis).max()
    np.testing.assert_allclose(found, values.sum(axis), rtol=0.0, atol=RTOL[dtype] * scale)


def test_squares_beside_an_array_that_nothing_reads(dtype, rng):
    """Its views were one more than there was room for: the tape wrote where no array is."""
    x, w = matrices(rng, 20, 24, 64, dtype)
    s, unread = (rng.standard_normal(x.shape).astype(dtype) for _ in range(2))
    out, tape = np.zeros((20, 24), dtype), Tape(dtype)
    tape.loop(
        {"b": 20, "o": 24, "i": 64},
        [View(x, "bi"), View(w, "oi"), View(s, "bi"), View(unread, "bi")],
        [("sub", 0, 1), ("mul", 4, 4), ("mul", 2, 5)], [(View(out, "bo"), 6)],
        reduce=("sum", "i"),
    )  # fmt: skip
    tape.run()
    values = s[:, None].astype(float) * (x[:, None].astype(float) - w) ** 2
    scale = abs(values).sum(2).max()
    np.testing.assert_allclose(out, values.sum(2), rtol=0.0, atol=RTOL[dtype] * scale)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_squares_of_what_is_no_number(dtype, rng):
    for form in SQUARES:
        for what in (np.nan, np.inf):
            x, w = matrices(rng, 6, 5, 40, dtype)
            x[2, 17] = what
            found, values, axis = squares(x, w, form, 1, rng)
            np.testing.assert_allclose(found, values.sum(axis), rtol=1e-3, atol=1e-4)


def test_a_constant_factor_is_no_slope():
    """x (0.3 y), as a sparse sum of products may have it."""
    assert (
        tiles.tile([False, False], [0.3], [("mul", [2, 1]), ("mul", [0, 3])], 4, "sum", True)
        is None
    )


def test_what_is_no_tile():
    def found(ops, iotas=(False, False), consts=(), monoid="sum"):
        first = len(iotas) + len(consts)
        return tiles.tile(iotas, consts, ops, first + len(ops) - 1, monoid, True)

    apart = [("sub", [0, 1]), ("abs", [2])]
    assert found(apart) == tiles.Tile(tiles.ROWS, tiles.APART)
    assert found(apart, monoid="prod") is None
    less = [("mul", [0, 1]), ("sub", [2, 3])]
    assert found(less, consts=(1.0,), monoid="prod") == tiles.Tile(tiles.ROWS, tiles.LESS)
    assert found(less, consts=(1.0,)) is None
    assert found(less, consts=(1.0, 2.0), monoid="prod") is None
    assert found([("mul", [0, 1]), ("sub", [3, 2])], consts=(1.0,), monoid="prod") is None
    assert found([("sub", [0, 0]), ("abs", [2])]) is None
    assert found([("mul", [0, 1])]) is None  # a product is faster
    assert found(apart, consts=(1.0,)) is None
    signs = [("sub", [0, 1]), ("sign", [3]), ("mul", [2, 4])]
    assert found(signs, (False,) * 3) == tiles.Tile(tiles.COLUMNS, 0, (2, 0, 1, 1))
    assert found([*signs[:2], ("mul", [2, 3])], (False,) * 3) is None
    place = [("eq", [0, 1]), ("copy", [2]), ("select", [4, 5, 3])]
    assert found(place, (False, True, False), (0.0,)) == tiles.Tile(tiles.PLACES, 0, (0, 1, 5))
    assert found(place, (False, True, False), (1.0,)) is None
    for value in ([("mul", [2, 4])], [("mul", [4, 4]), ("add", [5, 2])]):  # reads the condition
        again = [place[0], *value, ("select", [4, 4 + len(value), 3])]
        assert found(again, (False, True, False), (0.0,)) is None
    assert found([place[0], ("select", [4, 4, 3])], (False, True, False), (0.0,)) is None
    assert found([("abs", [0]), ("mul", [3, 4])], (False,) * 3, (4.0,)) is None
    assert found([("mul", [0, 1]), ("mul", [3, 4])], (False,) * 3, (4.0,)) is None
    square = [("sub", [0, 1]), ("mul", [3, 3]), ("mul", [2, 4])]
    assert found(square, (False,) * 3) == tiles.Tile(tiles.SQUARES, tiles.SQUARE, (2, 0, 1))
    assert found([*square[:2], ("mul", [0, 4])], (False,) * 3) is None
    wave = [("mul", [0, 1]), ("exp", [4])]  # of arrays 0 to 2 and a number, 3
    three, one = (False,) * 3, (1.0,)
    assert found(wave, three, one) == tiles.Tile(tiles.WAVES, 0, (0, 1, -1, -1, 1))
    assert found([*wave, ("mul", [2, 5])], three, one).fast == tiles.SLOPES
    assert found([("add", [0, 1]), ("exp", [4])], three, one) is None
    assert found([("mul", [0, 1]), ("sub", [3, 4]), ("exp", [5])], three, one) is None
    assert found(wave, three, one, "prod") is None
    tanh = [("mul", [0, 1]), ("tanh", [4]), ("mul", [5, 5]), ("sub", [3, 6])]
    assert found(tanh, three, one).fast == tiles.SLOPES
    assert found(tanh, three, (2.0,)) is None


NOTHING = {  # operations on u (b, o), v (b, o), x (b, i), w (o, i), 0 and 1, values 0 to 5
    "signs": [("sub", 2, 3), ("sign", 6), ("mul", 0, 7)],
    "squares": [("sub", 2, 3), ("mul", 6, 6), ("mul", 0, 7)],
    "slopes": [("mul", 2, 3), ("sub", 6, 0), ("exp", 7), ("mul", 8, 1), ("mul", 9, 2)],
    "quotients": [
        ("mul", 2, 3), ("sub", 5, 6), ("eq", 7, 4), ("div", 1, 7), ("select", 8, 0, 9),
        ("mul", 2, 10),
    ],
    "products": [("mul", 0, 2)],
    "no tile": [("mul", 2, 3), ("sin", 6), ("mul", 0, 7)],
}  # fmt: skip


@pytest.mark.parametrize("form", NOTHING)
def test_sums_of_no_rows_are_written(form, dtype, rng):
    """A short batch leaves the last tasks no rows: the sums of the batch before were kept."""
    x, w = matrices(rng, 6, 5, 40, dtype)
    u, v = (rng.standard_normal((6, 5)).astype(dtype) for _ in range(2))
    out, ops = np.zeros((5, 40), dtype), NOTHING[form]
    tape = Tape(dtype, 1)
    rows, used = tape.dim(6), {value for _, *values in ops for value in values}
    given = [View(u, "bo"), View(v, "bo"), View(x, "bi"), View(w, "oi"), 0.0, 1.0]
    kept = [k for k in range(6) if k in used]
    number = {k: at for at, k in enumerate(kept)}
    number |= {6 + k: len(kept) + k for k in range(len(ops))}
    axes = {"b": rows, "o": 5, "i": 40}
    tape.loop(
        axes, [given[k] for k in kept], [(name, *(number[n] for n in at)) for name, *at in ops],
        [(View(out, "oi"), len(kept) + len(ops) - 1)], reduce=("sum", "b"),
    )  # fmt: skip
    tape.run()
    assert (out != 0).any()
    tape.dims[rows.index] = 0
    tape.run()
    assert (out == 0).all()


@pytest.mark.parametrize("n_r", [1, 4, 40])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_sign_of_0_times_what_is_not_finite_is_nan(bad, turned, n_r, dtype):
    """The sum of u sign(m - f) where m is f: NumPy has 0 * infinity there."""
    u = np.ones((n_r, 3) if turned else (3, n_r), dtype)
    u = u.T if turned else u
    u[1, n_r // 2] = bad
    m, f, out = np.ones((n_r, 33), dtype), np.ones((3, 33), dtype), np.zeros((3, 33), dtype)
    tape = Tape(dtype, 1)
    tape.loop(
        {"p": 3, "r": n_r, "q": 33}, [View(u, "pr"), View(m, "rq"), View(f, "pq")],
        [("sub", 1, 2), ("sign", 3), ("mul", 0, 4)], [(View(out, "pq"), 5)], reduce=("sum", "r"),
    )  # fmt: skip
    tape.run()
    assert np.isnan(out[1]).all() and (out[[0, 2]] == 0).all()


def test_a_tape_has_extents_for_many_layers():
    """Layers that run in patches take up to six each; all had to do with 256."""
    tape, x, out = Tape(np.float64, 1), np.arange(12.0).reshape(3, 4), np.zeros(4)
    *_, rows = (tape.dim(3) for _ in range(1000))
    tape.loop({"b": rows, "i": 4}, [View(x, "bi")], [], [(View(out, "i"), 0)], reduce=("sum", "b"))
    tape.dims[rows.index] = 2
    tape.run()
    np.testing.assert_array_equal(out, x[:2].sum(0))


@pytest.mark.cluster
@pytest.mark.parametrize("level", range(LEVEL))
@pytest.mark.skipif("HORN_SIMD" in os.environ, reason="it is one of these levels")
def test_all_this_at_lower_levels(level):
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "HORN_SIMD": str(level)},
        check=True,
        timeout=300,
    )
