"""Every instruction of the engine against NumPy: sizes 0 and 1, both dtypes, orders and threads."""

import itertools
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn import random
from horn._kernels import blas
from horn._kernels.engine import Coef, Drawn, Iota, Ragged, Tape, View
from horn.errors import JobError
from tests.kernels import reference

DTYPES = [np.float32, np.float64]
RTOL = {np.float32: 3e-6, np.float64: 1e-13}
BLASES = ["openblas", "numpy", "mkl"]


def some_blas(name):
    try:
        return blas.load(name)
    except JobError as absent:
        pytest.skip(str(absent))


def normal(rng, *shape, dtype=np.float64, order="C"):
    return np.asarray(rng.standard_normal(shape), dtype=dtype, order=order)


# ---- many arrays ----


@pytest.mark.parametrize("n", [3, 47, 64, 65, 300])
@pytest.mark.parametrize("shape", [(1, 1), (7, 40), (300, 70)])
def test_a_loop_has_as_many_arrays_as_it_needs(n, shape, dtype, n_threads, rng):
    given = [normal(rng, *shape, dtype=dtype) for _ in range(n)]
    sums = [np.zeros(shape, dtype) for _ in range(n)]
    total = np.zeros(shape[0], dtype)
    tape = Tape(dtype, n_threads)
    axes = dict(zip("bo", shape, strict=True))
    views = [View(array, "bo") for array in given]
    added = [("copy", 0)] + [("add", n + k, k + 1) for k in range(n - 1)]
    tape.loop(axes, views, added, [(View(out, "bo"), n + k) for k, out in enumerate(sums)])
    tape.loop(axes, views, added, [(View(total, "b"), 2 * n - 1)], reduce=("sum", "o"))
    tape.run()
    expected = np.cumsum(np.stack(given).astype(float), axis=0)
    rtol = n * RTOL[dtype]
    np.testing.assert_allclose(np.stack(sums), expected, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(total, expected[-1].sum(-1), rtol=rtol, atol=shape[1] * rtol)


# ---- products ----


@pytest.mark.parametrize("has_velocity", [True, False])
@pytest.mark.parametrize("n_parts", [0, 1, 3, 9, 127])  # the thin kernel knows 7
@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (13, 33, 7), (64, 50, 100), (20, 64, 300), (30, 333, 110)]
)
def test_update_adds_what_others_have_of_the_product(
    m, n, k, n_parts, has_velocity, dtype, n_threads, rng
):
    d, x = normal(rng, k, m, dtype=dtype), normal(rng, k, n, dtype=dtype)
    w, v = normal(rng, m, n, dtype=dtype), normal(rng, m, n, dtype=dtype)
    parts = [normal(rng, m, n, dtype=dtype) for _ in range(n_parts)]
    total = d.T.astype(float) @ x + sum(part.astype(float) for part in parts)
    new_v = 0.9 * v - 0.1 * total if has_velocity else -0.1 * total
    expected = w + new_v
    tape = Tape(dtype, n_threads)
    rate = tape.scalar(0.1)
    tape.update(d.T, x, w, alpha=Coef(-1.0, rate), v=v if has_velocity else None, decay=0.9,
                parts=parts)  # fmt: skip

    tape.run()

    np.testing.assert_allclose(w, expected, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 100)
    if has_velocity:
        np.testing.assert_allclose(v, new_v, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 100)


@pytest.mark.parametrize("k", [5, 300])
def test_a_thin_product_is_the_product(k, dtype, n_threads, rng):
    a, b = normal(rng, 40, k, dtype=dtype), normal(rng, k, 50, dtype=dtype)
    c = np.full((40, 50), np.nan, dtype)
    tape = Tape(dtype, n_threads)
    tape.gemm(a, b, c, thin=True)
    tape.run()
    np.testing.assert_allclose(c, a @ b, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 100)


def test_an_array_that_moves_takes_its_instructions_along(dtype, rng):
    a, b = normal(rng, 4, 3, dtype=dtype), normal(rng, 3, 5, dtype=dtype)
    c, first, total = np.zeros((4, 5), dtype), np.zeros(5, dtype), np.zeros((4, 5), dtype)
    tape = Tape(dtype)
    tape.gemm(a, b, c)
    tape.loop({"n": 5}, [View(c[1], "n")], [], [(View(first, "n"), 0)])
    tape.loop({"m": 4, "n": 5}, [View(c, "mn"), 1.0], [("add", 0, 1)], [(View(total, "mn"), 2)])
    anchor = tape.anchor(c)
    for _ in range(2):
        there = np.zeros((4, 5), dtype)
        anchor.settle(there)
        tape.run()
        np.testing.assert_allclose(there, a @ b, rtol=RTOL[dtype] * 10)
        np.testing.assert_array_equal(first, there[1])
        np.testing.assert_array_equal(total, there + 1)
    assert not c.any()
    with pytest.raises(ValueError, match="cannot lie in"):
        anchor.settle(np.zeros((4, 4), dtype))
    with pytest.raises(ValueError, match="C-contiguous"):
        tape.anchor(c.T)


def doubled(dtype, n):
    """A tape of y = x + x, and both."""
    x, y, tape = np.ones(n, dtype), np.zeros(n, dtype), Tape(dtype)
    tape.loop({"o": n}, [View(x, "o")], [("add", 0, 0)], [(View(y, "o"), 1)])
    return tape, x, y


def test_an_array_of_which_a_part_moves_stays_with_the_tape(dtype):
    """Its memory was let go with the part's, and read again."""
    tape, x, y = doubled(dtype, 8)
    part, other = x[4:], np.full(4, 3, dtype)
    tape.loop({"o": 4}, [View(other, "o")], [], [(View(part, "o"), 0)])
    alive = weakref.ref(x)
    anchor = tape.anchor(part)
    there = np.zeros(4, dtype)
    anchor.settle(there)
    del x, part
    assert alive() is not None
    tape.run()
    np.testing.assert_array_equal(there, other)
    np.testing.assert_array_equal(y, np.full(8, 2, dtype))


@pytest.mark.parametrize("of", [slice(0, 4), slice(2, 4)], ids=["begins with it", "ends before it"])
def test_an_array_does_not_move_where_another_one_goes_beyond_it(dtype, of):
    """It was moved, too, and read and written behind the new memory."""
    tape, x, _ = doubled(dtype, 8)
    y = np.zeros(6, dtype)
    tape.loop({"o": 6}, [View(x[2:], "o")], [], [(View(y, "o"), 0)])
    part = x[of]
    size = len(part) * x.itemsize
    said = rf"an array of {size} bytes cannot move: instructions have an array of \d+ bytes"
    with pytest.raises(ValueError, match=said):
        tape.anchor(part)
    with pytest.raises(ValueError, match=said):
        tape.move(part, np.zeros(16, dtype), 0, size)
    tape.anchor(x).settle(np.full(8, 2, dtype))
    tape.seek(0)
    tape.run()
    np.testing.assert_array_equal(y, np.full(6, 2, dtype))


def test_an_array_does_not_move_where_one_that_goes_backwards_ends_before_it(dtype):
    x, y, tape = np.ones(8, dtype), np.zeros(6, dtype), Tape(dtype)
    tape.loop({"o": 6}, [View(x[5::-1], "o")], [], [(View(y, "o"), 0)])
    with pytest.raises(ValueError, match="cannot move"):
        tape.anchor(x[4:])


def test_an_array_that_moves_lets_its_memory_go(dtype):
    tape, x, y = doubled(dtype, 8)
    anchor, alive = tape.anchor(x), weakref.ref(x)
    there = np.full(8, 2, dtype)
    anchor.settle(there)
    del x
    assert alive() is None
    tape.run()
    np.testing.assert_array_equal(y, there + there)


def test_what_instructions_write_does_not_settle_in_read_only_memory(dtype):
    tape, x, y = doubled(dtype, 8)
    frozen = bytes(y.nbytes)
    with pytest.raises(ValueError, match=r"cannot lie in read-only memory: give a writable copy"):
        tape.anchor(y).settle(frozen)
    tape.run()
    assert not any(frozen)
    np.testing.assert_array_equal(y, x + x)
    tape.anchor(x).settle(bytes(x.nbytes))  # it is only read
    tape.run()
    assert not y.any()


def test_an_anchor_keeps_the_instructions_that_it_moves(dtype):
    """It wrote their pointers after their tape had freed them."""
    tape, x, y = doubled(dtype, 8)
    anchor, alive = tape.anchor(x), weakref.ref(y)
    del tape, x, y
    assert alive() is not None
    anchor.settle(np.zeros(8, dtype))
    del anchor
    assert alive() is None


def test_rows_are_picked_as_far_as_they_are_given():
    picks = np.full(3, -1, np.int64)
    assert Tape(np.float32).pick([2, 0], picks, 3) and Tape(np.float32).pick([], picks, 3)
    np.testing.assert_array_equal(picks, [2, 0, -1])


def test_types_of_instructions_have_all_their_arguments():
    """Those that type checkers read, and those that the tape takes."""
    found = []
    for suffix, ends in ((".pyx", r"\):\n"), (".pyi", r"\) ->")):
        text = Path(blas.__file__).with_name("engine" + suffix).read_text()
        _, text = text.split("class Tape:")
        methods = re.findall(rf"\n    def ([a-z]\w*)\((.*?){ends}", text, re.DOTALL)
        found.append({name: arguments(told) for name, told in methods})
    in_c, told = found
    assert {name: in_c[name] for name in told} == told


def arguments(text):
    """The names of parameters, in order."""
    text = re.sub(r"\[[^]]*\]|\([^)]*\)", "", text)
    return [re.sub(r"[:=].*", "", part).split()[-1] for part in text.split(",") if part.strip()]


@pytest.mark.parametrize("name", BLASES)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (3, 2, 5), (0, 4, 4), (4, 0, 3), (3, 4, 0),
                                     (1, 70, 33), (130, 1, 20), (257, 64, 100)])  # fmt: skip
def test_gemm_matches_numpy_in_all_orders(name, m, n, k, dtype, n_threads, rng):
    library = some_blas(name)
    for orders in itertools.product("CF", repeat=3):
        a = normal(rng, m, k, dtype=dtype, order=orders[0])
        b = normal(rng, k, n, dtype=dtype, order=orders[1])
        c = normal(rng, m, n, dtype=dtype, order=orders[2])
        a.flags.writeable = b.flags.writeable = False
        expected = 0.5 * (a.astype(float) @ b) + 2.0 * c
        tape = Tape(dtype, n_threads, library)
        tape.gemm(a, b, c, alpha=0.5, beta=tape.scalar(2.0))

        tape.run()

        np.testing.assert_allclose(c, expected, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 100)


def test_gemm_sees_this_runs_extents_and_divides_by_the_rows(dtype, n_threads, rng):
    a, b = normal(rng, 100, 40, dtype=dtype), normal(rng, 40, 30, dtype=dtype)
    c = np.full((100, 30), np.nan, dtype)
    tape = Tape(dtype, n_threads)
    rows, live = tape.dim(100), tape.dim(40)
    rate = tape.scalar(3.0)
    tape.gemm(a, b, c, m=rows, k=live, alpha=Coef(-2.0, rate, per=rows))
    tape.dims[rows.index], tape.dims[live.index] = 7, 11

    tape.run()

    np.testing.assert_allclose(c[:7], -6.0 / 7 * (a[:7, :11] @ b[:11]), rtol=1e-4, atol=1e-5)
    assert np.isnan(c[7:]).all()


def test_gemm_with_beta_zero_ignores_what_was_there(dtype, rng):
    a, b = normal(rng, 4, 3, dtype=dtype), normal(rng, 3, 5, dtype=dtype)
    for name in BLASES:
        c = np.full((4, 5), np.nan, dtype)
        tape = Tape(dtype, 1, some_blas(name))
        tape.gemm(a, b, c)
        tape.run()
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("m, n, k", [(0, 3, 2), (3, 2, 0), (1, 1, 1), (200, 70, 20), (513, 97, 100),
                                     (130, 50, 300), (31, 1041, 40)])  # fmt: skip
def test_gemm_loop_is_the_product_and_then_the_loop(m, n, k, order, dtype, n_threads, rng):
    d, x = normal(rng, k, m, dtype=dtype), normal(rng, k, n, dtype=dtype)
    v = normal(rng, m, n, dtype=dtype, order=order)
    w = normal(rng, m, n, dtype=dtype, order=order)
    velocity = 0.9 * v - 0.1 * (d.T.astype(float) @ x)
    weight = w + velocity
    for name in BLASES:
        v1, w1 = v.copy(order), w.copy(order)
        tape = Tape(dtype, n_threads, some_blas(name))
        momentum = tape.scalar(0.9)
        tape.gemm_loop(d.T, x, v1, alpha=-0.1, beta=momentum,
                       inputs=[View(w1, "mn"), View(v1, "mn")], ops=[("add", 0, 1)],
                       outputs=[(View(w1, "mn"), 2)])  # fmt: skip
        tape.run()
        np.testing.assert_allclose(v1, velocity, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 20)
        np.testing.assert_allclose(w1, weight, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 20)


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.8, 1.0, "range"])
@pytest.mark.parametrize("which", ["mn", "m", "n"])
@pytest.mark.parametrize(
    "m, n, k", [(7, 5, 3), (70, 784, 20), (97, 100, 100), (30, 50, 300), (40, 500, 250)]
)
def test_an_update_of_live_places_leaves_the_others(m, n, k, which, keep, dtype, n_threads,
                                                    rng):  # fmt: skip
    for name, momentum in itertools.product(BLASES, (0.9, None)):
        tape = Tape(dtype, n_threads, some_blas(name))
        lists, kept, dims = {}, {"m": np.arange(m), "n": np.arange(n)}, {"m": m, "n": n}
        for axis in which:
            mask = np.zeros(dims[axis], dtype)
            if keep == "range":
                mask[1 : dims[axis] // 2] = 1
            else:
                mask[rng.random(dims[axis]) < keep] = 1
            kept[axis], lists[axis] = np.flatnonzero(mask), np.zeros(len(mask) + 1, np.int32)
            dims[axis] = tape.dim(len(mask))
            tape.live(mask, lists[axis], dims[axis])
        here = np.ix_(kept["m"], kept["n"])
        d = normal(rng, m, k, dtype=dtype)
        x = normal(rng, k, n, dtype=dtype, order="F")
        v, w = normal(rng, m, n, dtype=dtype), normal(rng, m, n, dtype=dtype)
        step = -0.1 * (d[: len(kept["m"])].astype(float) @ x[:, : len(kept["n"])])
        velocity, weight = v.copy(), w.copy()
        if momentum:
            step += momentum * v[here]
            velocity[here] = step
        weight[here] += step
        c = np.full((m, n), np.nan, dtype)
        wv, vv = (View(a, "mn", lists, ascending=True) for a in (w, v))
        if momentum:
            inputs, ops = [wv, vv, View(c, "mn"), momentum], [("fma", 1, 3, 2), ("add", 0, 4)]
            outputs = [(vv, 4), (wv, 5)]
        else:
            inputs, ops, outputs = [wv, View(c, "mn")], [("add", 0, 1)], [(wv, 2)]
        tape.gemm_loop(d, x, c, alpha=-0.1, inputs=inputs, ops=ops, outputs=outputs,
                       m=dims["m"], n=dims["n"])  # fmt: skip
        tape.run()
        np.testing.assert_allclose(w, weight, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 20)
        np.testing.assert_allclose(v, velocity, rtol=RTOL[dtype] * 10, atol=RTOL[dtype] * 20)
        out = np.ones((m, n), bool)
        out[here] = False
        np.testing.assert_array_equal(w[out], weight[out])
        np.testing.assert_array_equal(v[out], velocity[out])


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.8, 1.0, "range"])
@pytest.mark.parametrize("which", ["nk", "n", "k", ""])
@pytest.mark.parametrize("m, n, k", [(7, 5, 3), (20, 70, 784), (100, 97, 300), (256, 300, 30)])
def test_a_product_reads_live_weights_where_they_lie(m, n, k, which, keep, n_threads, rng):
    if not Tape(np.float32).reads_live:
        pytest.skip("no AVX-512, or no BLAS")
    for turned, order, beta in itertools.product((False, True), "CF", (0.0, 1.0)):
        tape = Tape(np.float32, n_threads)
        lists, kept, dims = {}, {"n": np.arange(n), "k": np.arange(k)}, {"n": n, "k": k}
        for axis in which:
            mask = np.zeros(dims[axis], np.float32)
            if keep == "range":
                mask[1 : dims[axis] // 2] = 1
            else:
                mask[rng.random(dims[axis]) < keep] = 1
            kept[axis], lists[axis] = np.flatnonzero(mask), np.zeros(len(mask) + 1, np.int32)
            dims[axis] = tape.dim(len(mask))
            tape.live(mask, lists[axis], dims[axis])
        a = normal(rng, m, k, dtype=np.float32, order=order)
        b = normal(rng, k, n, dtype=np.float32)
        c = normal(rng, m, n, dtype=np.float32, order=order)
        expected, n_live = c.copy(), len(kept["n"])
        expected[:, :n_live] *= beta
        product = a[:, : len(kept["k"])].astype(float) @ b[np.ix_(kept["k"], kept["n"])]
        expected[:, :n_live] += product
        w = View(np.ascontiguousarray(b.T) if turned else b, "nk" if turned else "kn", lists,
                 ascending=True)  # fmt: skip
        tape.live_gemm(a, w, c, beta=beta, n=dims["n"], k=dims["k"])
        tape.run()
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8), (3, 7), (40, 100), (64, 784)])
def test_copies_of_live_places(shape, dtype, n_threads, rng):
    for rows, keep in itertools.product((False, True), (0.1, 0.5, 1.0)):
        a = normal(rng, *shape, dtype=dtype)
        axes, lists, here = {"m": shape[0], "n": shape[1]}, {}, [np.arange(s) for s in shape]
        tape = Tape(dtype, n_threads)
        for axis, name in enumerate("mn"[0 if rows else 1 :], 0 if rows else 1):
            mask = (rng.random(shape[axis]) < keep).astype(dtype)
            here[axis], axes[name] = np.flatnonzero(mask), tape.dim(shape[axis])
            lists[name] = np.zeros(shape[axis] + 1, np.int32)
            tape.live(mask, lists[name], axes[name])
        out = np.full(shape, np.nan, dtype)
        tape.loop(axes, [View(a, "mn", lists, ascending=True)], [], [(View(out, "mn"), 0)])
        tape.run()
        expected = np.full(shape, np.nan, dtype)
        expected[: len(here[0]), : len(here[1])] = a[np.ix_(*here)]
        np.testing.assert_array_equal(out, expected)


# ---- loops ----

UNARY = "copy neg abs tanh sigmoid softplus sin cos floor sign not relu".split()
BINARY = "add sub mul min max lt le gt ge eq ne and or".split()


@st.composite
def loops(draw):
    """A program over up to three axes: inputs on subsets of them, in any memory order."""
    names = "boi"[: draw(st.integers(1, 3))]
    axes = {n: draw(st.sampled_from([0, 1, 2, 3, 7, 33, 130, 600])) for n in names}
    while np.prod(list(axes.values())) > 60_000:
        axes[max(axes, key=axes.get)] //= 4
    inputs = draw(st.lists(st.tuples(st.permutations(names), st.integers(0, len(names)),
                                     st.booleans()), min_size=1, max_size=4))  # fmt: skip
    n_values = len(inputs)
    ops = []
    for _ in range(draw(st.integers(0, 5))):
        values = st.integers(0, n_values + len(ops) - 1)
        kind = draw(st.sampled_from(["unary", "binary", "select"]))
        if kind == "unary":
            ops.append((draw(st.sampled_from(UNARY)), draw(values)))
        elif kind == "binary":
            ops.append((draw(st.sampled_from(BINARY)), draw(values), draw(values)))
        else:
            ops.append((kind, draw(values), draw(values), draw(values)))
    outputs = draw(st.lists(st.tuples(st.integers(0, n_values + len(ops) - 1),
                                      st.permutations(names)), min_size=1, max_size=3))  # fmt: skip
    fold = draw(st.sampled_from([None, *reference.FOLDS, "argmax"]))
    return axes, inputs, ops, outputs, fold, draw(st.sampled_from(names))


@settings(max_examples=300, deadline=None)
@given(case=loops(), n_threads=st.sampled_from([1, 2]), dtype=st.sampled_from(DTYPES),
       seed=st.integers(0, 2**31), accumulate=st.booleans())  # fmt: skip
def test_any_loop_matches_numpy(case, n_threads, dtype, seed, accumulate):
    axes, inputs, ops, outputs, fold, folded = case
    rng = np.random.default_rng(seed)
    arrays = []
    for names, count, is_strided in inputs:
        names = "".join(names[:count])
        shape = [axes[n] for n in names]
        if is_strided and names:
            array = normal(rng, *shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]
        else:
            array = normal(rng, *shape, dtype=dtype)
        arrays.append((np.asarray(np.round(array, 1)), names))
    values = reference.evaluate(axes, arrays, ops, dtype)
    tape = Tape(dtype, n_threads)
    views = [View(a, n) for a, n in arrays]
    tol = {
        "rtol": 1e-4 if dtype is np.float32 else 1e-9,
        "atol": 1e-4 if dtype is np.float32 else 1e-9,
    }

    if fold is None:
        outs = []
        for value, names in outputs:
            out = np.full([axes[n] for n in names], np.nan, dtype)
            outs.append((View(out, names), value))
        tape.loop(axes, views, ops, outs)
        tape.run()
        for view, value in outs:
            order = [list(axes).index(n) for n in view.axes]
            np.testing.assert_allclose(view.array, values[value].transpose(order), **tol)
        return

    value, names = outputs[0]
    names = [n for n in names if n != folded]
    place = list(axes).index(folded)
    with np.errstate(over="ignore"):
        expected = reference.fold(fold, values[value], place).astype(dtype)
    out = np.ones([axes[n] for n in names], dtype)
    accumulate = accumulate and fold != "argmax"
    if accumulate:
        unit = np.ones_like(expected)
        expected = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
                    "any": np.maximum, "all": np.minimum}[fold](expected, unit)  # fmt: skip
    left = [n for n in axes if n != folded]
    expected = expected.transpose([left.index(n) for n in names])
    tape.loop(axes, views, ops, [(View(out, names), value)], reduce=(fold, folded),
              accumulate=accumulate)  # fmt: skip
    tape.run()
    np.testing.assert_allclose(out, expected, **tol)


def test_elementwise_results_do_not_depend_on_the_threads(dtype, rng):
    x = normal(rng, 301, 517, dtype=dtype)
    results = []
    for n_threads in (1, 2, 3):
        y = np.zeros_like(x)
        s = np.zeros(301, dtype)
        tape = Tape(dtype, n_threads)
        axes = {"b": 301, "o": 517}
        tape.loop(axes, [View(x, "bo")], [("tanh", 0)], [(View(y, "bo"), 1)])
        tape.loop(axes, [View(y, "bo")], [], [(View(s, "b"), 0)], reduce=("sum", "o"))
        tape.run()
        results.append((y.copy(), s.copy()))
    for y, s in results[1:]:
        assert np.array_equal(y, results[0][0]) and np.array_equal(s, results[0][1])


def test_float32_sums_do_not_drift():
    x = np.full((100_000, 3), 0.1, np.float32)
    down, along = np.zeros(3, np.float32), np.zeros(1, np.float32)
    tape = Tape(np.float32)
    tape.loop({"b": 100_000, "o": 3}, [View(x, "bo")], [], [(View(down, "o"), 0)],
              reduce=("sum", "b"))  # fmt: skip
    flat = x.reshape(1, -1)
    tape.loop({"o": 1, "b": 300_000}, [View(flat, "ob")], [], [(View(along, "o"), 0)],
              reduce=("sum", "b"))  # fmt: skip
    tape.run()
    np.testing.assert_allclose(down, 1e4, rtol=2e-7)
    np.testing.assert_allclose(along, 3e4, rtol=2e-7)


def test_an_update_in_place_reads_before_it_writes(dtype, rng):
    w, g, m = (normal(rng, 5000, dtype=dtype) for _ in range(3))
    expected_m = 0.9 * m + g
    expected_w = w - 0.1 * expected_m * np.sign(w)
    tape = Tape(dtype)
    rate = tape.scalar(0.1)
    tape.loop({"i": 5000}, [View(w, "i"), View(g, "i"), View(m, "i"), 0.9, rate],
              [("fma", 2, 3, 1), ("mul", 5, 4), ("sign", 0), ("mul", 6, 7), ("sub", 0, 8),
               ("add", 2, 2)],
              [(View(w, "i"), 9), (View(m, "i"), 5)])  # fmt: skip
    tape.run()
    np.testing.assert_allclose(m, expected_m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w, expected_w, rtol=1e-5, atol=1e-6)


def test_argmax_is_the_first_and_goes_on_from_another_connection(dtype, n_threads):
    x = np.array([[1, 5, 5], [7, 2, 7], [-1, -2, -3]], dtype)
    y = np.array([[5, 6], [7, 0], [-9, -0.5]], dtype)
    where, best = np.zeros(3, np.int32), np.zeros(3, dtype)
    tape = Tape(dtype, n_threads)
    outs = [(View(where, "b"), 0), (View(best, "b"), 0)]
    tape.loop({"b": 3, "i": 3}, [View(x, "bi")], [], outs, reduce=("argmax", "i"))
    tape.loop({"b": 3, "i": 2}, [View(y, "bi")], [], outs, reduce=("argmax", "i"),
              accumulate=True, offset=3)  # fmt: skip
    tape.run()
    assert where.tolist() == [4, 0, 4] and best.tolist() == [6, 7, -0.5]


@pytest.mark.parametrize("layout", ["rows", "columns", "edges"])
def test_the_argmax_of_no_number_is_the_first_such_place(layout, dtype, n_threads):
    x = np.arange(200, dtype=dtype).reshape(4, 50)
    x[1, [7, 30]] = x[2, 0] = x[3, 49] = np.nan
    y = np.full((4, 2), 1000, dtype)
    y[0, 1] = np.nan
    where, best, tape = np.zeros(4, np.int32), np.zeros(4, dtype), Tape(dtype, n_threads)
    outs = [(View(where, "b"), 0), (View(best, "b"), 0)]
    if layout == "edges":
        axes = {"b": 4, "e": Ragged(np.arange(5) * 50, "b")}
        tape.loop(axes, [View(x.ravel(), "e")], [], outs, reduce=("argmax", "e"))
    else:
        array = x if layout == "rows" else np.ascontiguousarray(x.T).T
        tape.loop({"b": 4, "i": 50}, [View(array, "bi")], [], outs, reduce=("argmax", "i"))
    tape.run()
    assert where.tolist() == [49, 7, 0, 49]
    np.testing.assert_array_equal(best, [49, np.nan, np.nan, np.nan])
    first = len(tape)
    tape.loop({"b": 4, "i": 2}, [View(y, "bi")], [], outs, reduce=("argmax", "i"),
              accumulate=True, offset=50)  # fmt: skip
    tape.run(first)
    assert where.tolist() == [51, 7, 0, 49]


def test_iota_and_comparison_make_a_one_hot_target(dtype, n_threads, rng):
    y = np.abs(normal(rng, 50, 10, dtype=dtype))
    label = rng.integers(0, 10, 50).astype(np.int64)
    delta = np.zeros((10, 50), dtype).T
    tape = Tape(dtype, n_threads)
    tape.loop({"b": 50, "o": 10}, [View(y, "bo"), View(label, "b"), Iota("o", 0)],
              [("eq", 1, 2), ("sub", 0, 3)], [(View(delta, "bo"), 4)])  # fmt: skip
    tape.run()
    assert np.array_equal(delta, y - np.eye(10, dtype=dtype)[label])


# ---- live neurons ----


@pytest.mark.parametrize("which", ["random", "range", "none", "all"])
@pytest.mark.parametrize("order", "CF")
def test_gather_and_scatter_touch_only_live_places(which, order, dtype, n_threads, rng):
    w = normal(rng, 70, 50, dtype=dtype, order=order)
    masks = [(rng.random(n) < 0.5).astype(dtype) for n in (70, 50)]
    if which == "range":
        masks = [np.zeros(70, dtype), np.zeros(50, dtype)]
        masks[0][10:40] = 1
        masks[1][3:44] = 1
    elif which != "random":
        masks = [np.full(n, which == "all", dtype) for n in (70, 50)]
    tape = Tape(dtype, n_threads)
    lists = [np.zeros(71, np.int32), np.zeros(51, np.int32)]
    counts = [tape.dim(70), tape.dim(50)]
    compact = np.full((70, 50), np.nan, dtype)
    for mask, kept, count in zip(masks, lists, counts, strict=True):
        tape.live(mask, kept, count)
    places = {"m": lists[0], "n": lists[1]}
    axes = {"m": counts[0], "n": counts[1]}
    tape.loop(axes, [View(w, "mn", places, ascending=True)], [], [(View(compact, "mn"), 0)])
    tape.loop(axes, [View(w, "mn", places, ascending=True), View(compact, "mn"), 10.0],
              [("fma", 1, 2, 0)], [(View(w, "mn", places, ascending=True), 3)])  # fmt: skip
    before = w.copy()
    tape.run()

    live = np.ix_(np.flatnonzero(masks[0]), np.flatnonzero(masks[1]))
    expected = before.copy()
    expected[live] *= 11
    np.testing.assert_allclose(w, expected, rtol=1e-5)
    rows, cols = len(live[0]), live[1].size
    assert tape.dims[[c.index for c in counts]].tolist() == [rows, cols]
    assert np.array_equal(compact[:rows, :cols], before[live])


def test_an_unordered_index_list_is_not_taken_for_a_range(dtype):
    x, out = np.arange(6, dtype=dtype), np.zeros(3, dtype)
    tape = Tape(dtype)
    tape.loop({"i": 3}, [View(x, "i", {"i": np.array([0, 5, 2], np.int32)})], [],
              [(View(out, "i"), 0)])  # fmt: skip
    tape.run()
    assert out.tolist() == [0, 5, 2]


# ---- draws ----


@pytest.mark.parametrize("rows, neurons, first", [(0, 5, 0), (3, 0, 0), (1, 1, 0), (5, 7, 3),
                                                  (100, 67, 2), (17, 784, 0),
                                                  (130, 33, 1)])  # fmt: skip
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shared", [True, False])
def test_draws_are_those_of_horn_random(rows, neurons, first, order, shared, dtype, n_threads):
    samples = np.arange(2**32 - 3, 2**32 - 3 + rows, dtype=np.uint64)
    tape = Tape(dtype, n_threads)
    iteration = tape.dim(2**31)
    tape.dims[iteration.index] = 12345
    key = random.key(7, 3)
    outs = [np.full((rows, neurons), np.nan, dtype, order) for _ in range(3)]
    call = {"key": key, "site": 5, "iteration": iteration, "first": first,
            "samples": None if shared else samples}  # fmt: skip
    tape.draw(outs[0], "uniform", **call)
    tape.draw(outs[1], "normal", **call)
    tape.draw(outs[2], "bernoulli", below=0.3, **call)
    tape.run()

    s = np.full(rows, random.SHARED, np.uint64) if shared else samples
    who = range(first, first + neurons)
    u = random.uniform(key, 5, who, s, 12345)
    assert np.array_equal(outs[0], u.astype(dtype))
    np.testing.assert_allclose(outs[1], random.normal(key, 5, who, s, 12345), rtol=1e-6, atol=1e-7)
    assert np.array_equal(outs[2], (u < dtype(0.3)).astype(dtype))


# ---- batches ----


@pytest.mark.parametrize("source_dtype", [np.uint8, np.float32, np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("rows", [0, 1, 16, 37, 100])
def test_load_gathers_scaled_rows(source_dtype, order, rows, dtype, n_threads, rng):
    source = rng.integers(0, 200, (90, 65)).astype(source_dtype)
    source.flags.writeable = False
    index = rng.integers(0, 90, 100)
    out = np.full((100, 65), np.nan, dtype, order)
    tape = Tape(dtype, n_threads)
    n = tape.dim(100)
    tape.dims[n.index] = rows
    tape.load(source, index, out, rows=n, scale=1 / 255)
    tape.run()
    expected = source[index[:rows]].astype(dtype) * dtype(1 / 255)
    assert np.array_equal(out[:rows], expected) and np.isnan(out[rows:]).all()


@pytest.mark.parametrize("source_dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("rows", [0, 1, 37, 100])
def test_load_normalizes_columns(source_dtype, order, rows, dtype, n_threads, rng):
    source = rng.integers(0, 200, (90, 65)).astype(source_dtype)
    index = rng.integers(0, 90, 100)
    wide = np.float64 if source_dtype == np.float64 else dtype
    center, factor = rng.random((2, 65)).astype(wide)
    if source_dtype == np.float64:
        source += 1e9 + rng.random((90, 65))  # of which a float has no digit behind the 64
        center += 1e9
    out = np.full((100, 65), np.nan, dtype, order)
    tape = Tape(dtype, n_threads)
    n = tape.dim(100)
    tape.dims[n.index] = rows
    number = tape.load(np.zeros_like(source), index, out, rows=n)
    tape.rebind(number, source, center, factor)
    tape.run()
    expected = ((source[index[:rows]].astype(wide) - center) * factor).astype(dtype)
    assert np.array_equal(out[:rows], expected) and np.isnan(out[rows:]).all()
    tape.rebind(number, source)
    tape.run()
    assert np.array_equal(out[:rows], source[index[:rows]].astype(dtype))
    for wrong in (center[:3], center.astype(np.int64), None):
        with pytest.raises(ValueError, match="center and factor are 65 numbers"):
            tape.rebind(number, source, wrong, factor)


@pytest.mark.parametrize("out_dtype", [np.int32, np.int64, np.float32])
def test_load_gathers_labels(out_dtype, n_threads):
    labels, index = np.arange(10, dtype=np.uint8), np.array([3, 9, 0])
    out = np.zeros(3, out_dtype)
    tape = Tape(np.float32, n_threads)
    tape.load(labels, index, out)
    tape.run()
    assert out.tolist() == [3, 9, 0]


# ---- errors ----


def test_mistakes_are_told_when_appending():
    tape = Tape(np.float32)
    x, y = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    z = np.zeros((3, 3), np.float32)
    frozen = y.copy()
    frozen.flags.writeable = False
    axes = {"b": 3, "o": 4}
    v, w = View(x, "bo"), View(y, "bo")
    wrong = {
        "does not give": lambda: tape.gemm(x, y, z),
        "must be contiguous": lambda: tape.gemm(x, np.zeros((8, 6), np.float32)[::2, ::2], z),
        "shares memory": lambda: tape.gemm(z, x, x),
        "matrix of float32": lambda: tape.gemm(x.astype(float), y.T, z),
        "may have 5 places": lambda: tape.loop({"b": 5, "o": 4}, [v], [], [(w, 0)]),
        "read-only": lambda: tape.loop(axes, [v], [], [(View(frozen, "bo"), 0)]),
        "known: copy": lambda: tape.loop(axes, [v], [("relux", 0)], [(w, 1)]),
        "takes 2 values": lambda: tape.loop(axes, [v], [("add", 0)], [(w, 1)]),
        "reads value 1": lambda: tape.loop(axes, [v], [("neg", 1)], [(w, 1)]),
        "exactly the axes": lambda: tape.loop(axes, [v], [], [(w, 0)], reduce=("sum", "o")),
        "no reduction": lambda: tape.loop(axes, [v], [], [(w, 0)], reduce=("mean", "o")),
        "one to three axes": lambda: tape.loop({}, [v], [], [(w, 0)]),
        "cannot lie on": lambda: tape.loop(axes, [View(x, "b")], [], [(w, 0)]),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert len(tape) == 0
    tape.run()


def test_shapes_that_the_loops_would_run_past_are_told_when_appending():
    tape = Tape(np.float32)

    def zeros(*shape, dtype=np.float32):
        return np.zeros(shape, dtype)

    it, out = tape.dim(5), View(zeros(5, 4), "bo")
    axes = {"b": 5, "o": 4, "i": 3}

    def drawn(n_keys, n_sources, n_samples, index=None):
        view = Drawn(
            "uniform", 0, "boi", zeros(n_keys, 2, dtype=np.uint32), np.arange(n_sources),
            None if n_samples is None else zeros(n_samples, dtype=np.uint64), it, index,
        )  # fmt: skip
        tape.loop(axes, [view], [], [(out, 0)], reduce=("sum", "i"))

    lists = {"which": zeros(2, dtype=np.int32), "first": zeros(2, dtype=np.int32)}
    wrong = {
        "'b' may have 5 places": lambda: drawn(4, 3, 4),
        "'b' may have 5": lambda: drawn(4, 3, None),
        "'o' may have 4 places": lambda: drawn(3, 3, 5),
        "'o' may have 4": lambda: drawn(9, 3, 5, {"o": zeros(3, dtype=np.int32)}),
        "'i' may have 3 places": lambda: drawn(4, 2, 5),
        "contiguous int32": lambda: drawn(4, 3, 5, {"o": zeros(4, dtype=np.int64)}),
        "c must be a matrix": lambda: tape.gemm_loop(
            zeros(4, 3), zeros(3, 4), zeros(4), inputs=[], ops=[], outputs=[]
        ),
        "do not give out": lambda: tape.window_gradients(
            zeros(4, 3), zeros(2, 3), zeros(1, 0), src=zeros(1, 0, dtype=np.int32), **lists
        ),
        "instructions 0 to 0, not 0 to 9": lambda: tape.divides_rows(0, 9),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert len(tape) == 0


def test_an_unknown_blas_is_an_error():
    with pytest.raises(JobError, match="mkl, openblas, numpy"):
        blas.load("atlas")


def test_a_tape_runs_again_and_in_parts(n_threads):
    x = np.zeros(20_000, np.float32)
    tape = Tape(np.float32, n_threads)
    for step in (1.0, 10.0):
        tape.loop({"i": x.size}, [View(x, "i"), step], [("add", 0, 1)], [(View(x, "i"), 2)])
    for _ in range(100):
        tape.run()
    tape.run(0, 1)
    assert (x == 1101).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_tape_runs_alone_between_runs_of_all_threads(n_threads):
    x = np.zeros(20_000, np.float32)
    tape = Tape(np.float32, n_threads)
    tape.loop({"i": x.size}, [View(x, "i"), 1.0], [("add", 0, 1)], [(View(x, "i"), 2)])
    for k in range(200):
        tape.run(is_alone=k % 3 > 0)
    assert (x == 200).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_runs_of_parts_of_a_tape_may_follow_at_once(n_threads):
    # given a tape whose parts are short, so that threads come late from the last barrier
    x = np.zeros(20_000)
    tape = Tape(np.float64, n_threads)
    for k in range(4):
        tape.loop({"a": len(x)}, [View(x, "a"), float(k)], [("add", 0, 1)], [(View(x, "a"), 2)])
    # when they run one after the other, again and again
    for _ in range(3000):
        for k in range(4):
            tape.run(k, k + 1)
    # then each has run as often
    assert (x == 3000 * 6).all()


@pytest.mark.cluster
def test_a_fork_runs_a_tape_whose_threads_run_here_and_lets_go_of_it():
    code = """
import os
import numpy as np
from horn._kernels.engine import Tape, View

x = np.ones((512, 512), np.float32)
tape = Tape(np.float32, 3)
tape.loop({"a": 512, "b": 512}, [View(x, "ab"), 1.0], [("add", 0, 1)], [(View(x, "ab"), 2)])
tape.run()
child = os.fork()
if not child:
    tape.run()
    tape.run()
    del tape
    os._exit(0 if (x == 4).all() else 1)
status = os.waitpid(child, 0)[1]
tape.run()
assert status == 0 and (x == 3).all(), status
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.cluster
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it limits threads as Linux does")
def test_a_tape_without_its_threads_says_so_and_starts_them_later():
    # given a tape of three threads, the second of which finds no room for its stack
    code = """
import resource
import numpy as np
from horn._kernels.engine import Tape, View

x = np.zeros((512, 512), np.float32)
tape = Tape(np.float32, 3)
tape.loop({"a": 512, "b": 512}, [View(x, "ab"), 1.0], [("add", 0, 1)], [(View(x, "ab"), 2)])
pages = int(open("/proc/self/statm").read().split()[0])
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
used, stack = pages * resource.getpagesize(), 64 << 20
resource.setrlimit(resource.RLIMIT_AS, (used + stack + stack // 2, hard))
try:
    tape.run()
except MemoryError as error:
    assert "cannot start 3 threads" in str(error), error
else:
    raise AssertionError("it started them")
finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
# when there is room again, it runs
tape.run()
assert (x == 1).all()
"""
    limited = f'ulimit -s {64 << 10} && exec "$@"'  # a thread's stack is as large as this
    subprocess.run(
        ["bash", "-c", limited, "bash", sys.executable, "-c", code], check=True, timeout=60
    )
