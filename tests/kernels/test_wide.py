"""The product that the engine makes itself (wide.h), against NumPy in float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horn._kernels import blas
from horn._kernels.engine import LEVEL, Tape, View
from horn.errors import JobError

# One more and one less than a tile, a panel, a block of rows, of columns, of messages.
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([239, 240, 241, 383, 384, 385, 480, 769, 1023, 1025])
)


@pytest.fixture(autouse=True)
def wide():
    if tape_of(1).products != "horn":
        pytest.skip("horn makes products itself from AVX2 on only, and not beside MKL on Intel's")


def tape_of(n_threads):
    return Tape(np.float32, n_threads)


def lying(rng, rows, cols, order, room):
    """A matrix with `room` more columns (or rows) in memory than it has."""
    whole = rng.standard_normal((rows + room, cols + room)).astype(np.float32, order=order)
    return whole[:rows, :cols]


def same_bits(found, expected):
    """Zeros have a sign, too; what is not a number may have any bits."""
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found) & is_number, np.signbit(expected) & is_number)


@settings(max_examples=150, deadline=None)
@given(
    m=SIZES, n=SIZES, k=SIZES, orders=st.tuples(*[st.sampled_from("CF")] * 3),
    room=st.sampled_from([0, 3]), alpha=st.sampled_from([1.0, -0.3]),
    beta=st.sampled_from([0.0, 1.0, 0.9]), n_threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)  # fmt: skip
@example(m=241, n=1025, k=769, orders="CFC", room=0, alpha=1.0, beta=0.9, n_threads=1, seed=0)
@example(m=13, n=1025, k=2100, orders="CFC", room=0, alpha=1.0, beta=0.0, n_threads=1, seed=0)
@example(m=1025, n=769, k=40, orders="FCC", room=3, alpha=1.0, beta=0.0, n_threads=2, seed=0)
def test_the_product_is_that_of_numpy(m, n, k, orders, room, alpha, beta, n_threads, seed):
    rng = np.random.default_rng(seed)
    a, b = lying(rng, m, k, orders[0], room), lying(rng, k, n, orders[1], room)
    whole = np.full((m + 2, n + 2), np.nan, np.float32, order=orders[2])
    c = whole[:m, :n]
    if beta:
        c[...] = rng.standard_normal((m, n))
    expected = alpha * (a.astype(np.float64) @ b) + (beta * c.astype(np.float64) if beta else 0)
    tape = tape_of(n_threads)
    tape.gemm(a, b, c, alpha=alpha, beta=beta)

    tape.run()

    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5 * np.sqrt(k + 1))
    assert np.isnan(whole[m:]).all() and np.isnan(whole[:, n:]).all()


@settings(max_examples=50, deadline=None)
@given(first=st.integers(0, 300), n_rows=st.integers(1, 300), col=st.integers(0, 90),
       n_threads=st.sampled_from([1, 2]))  # fmt: skip
def test_a_part_of_a_product_has_the_bits_of_the_whole(first, n_rows, col, n_threads):
    rng = np.random.default_rng(first)
    a, b = lying(rng, 600, 500, "C", 0), lying(rng, 500, 130, "F", 0)
    whole, part = np.empty((600, 130), np.float32), np.empty((n_rows, 40), np.float32)
    for x, y, c, threads in (
        (a, b, whole, 1),
        (a[first : first + n_rows], b[:, col : col + 40], part, n_threads),
    ):
        tape = tape_of(threads)
        tape.gemm(x, y, c)
        tape.run()
    same_bits(part, whole[first : first + n_rows, col : col + 40])


@settings(max_examples=100, deadline=None)
@given(k=SIZES, n=SIZES, order=st.sampled_from("CF"), room=st.sampled_from([0, 3]),
       beta=st.sampled_from([0.0, 1.0, 0.9]), bad=st.sampled_from([0.0, 0.0, np.inf, np.nan]),
       n_threads=st.sampled_from([1, 2]))  # fmt: skip
@example(k=1000, n=700, order="C", room=3, beta=0.9, bad=0.0, n_threads=2)
@example(k=1000, n=70, order="F", room=3, beta=0.9, bad=0.0, n_threads=2)
def test_a_row_alone_has_the_bits_that_it_has_among_others(k, n, order, room, beta, bad, n_threads):
    rng = np.random.default_rng(k + n)
    a, b = lying(rng, 3, k, "C", 0), lying(rng, k, n, order, room)
    if bad and k and n:
        b[k // 2, n // 3] = bad
    whole = np.full((3, n), 2.0 if beta else np.nan, np.float32)
    rows = whole.copy()
    for x, c in ((a, whole), *((a[i : i + 1], rows[i : i + 1]) for i in range(3))):
        tape = tape_of(n_threads)
        tape.gemm(x, b, c, alpha=-0.3, beta=beta)
        tape.run()
    same_bits(rows, whole)


DENSITIES = [0.0, 0.015, 0.08, 0.19, 0.25, 0.5]


def mostly_zero(rng, array, density, *, by_columns=False):
    """Spikes, or, by columns, pixels at margins: some columns have none, and some rows more."""
    array *= rng.random(array.shape) < density
    if by_columns:
        array *= rng.random(array.shape[1]) < 0.5
        array[: len(array) // 3] = rng.standard_normal((len(array) // 3, array.shape[1]))


@settings(max_examples=200, deadline=None)
@given(
    m=st.sampled_from([1, 13, 60, 250, 500, 600]),
    n=st.sampled_from([1, 2, 10, 33, 65, 200, 300, 520]),
    k=st.sampled_from([1, 20, 65, 400, 800]), density=st.sampled_from(DENSITIES),
    bad=st.sampled_from([0.0, 0.0, np.inf, np.nan]), is_first=st.booleans(), loads=st.booleans(),
    orders=st.tuples(*[st.sampled_from("CF")] * 3), n_threads=st.integers(1, 2),
    by_columns=st.booleans(),
)  # fmt: skip
@example(m=500, n=65, k=800, density=0.015, bad=0.0, is_first=False, loads=True, orders="FCC",
         n_threads=1, by_columns=False)  # fmt: skip
@example(m=500, n=65, k=800, density=0.015, bad=np.nan, is_first=True, loads=True, orders="FCC",
         n_threads=1, by_columns=True)  # fmt: skip
@example(m=600, n=520, k=800, density=0.08, bad=0.0, is_first=False, loads=False, orders="FCC",
         n_threads=1, by_columns=False)  # fmt: skip
def test_zeros_change_no_bit(m, n, k, density, bad, is_first, loads, orders, n_threads, by_columns):
    """What data are, a `load` says, and of other operands who asks for the product."""
    rng = np.random.default_rng(m + n + k)
    a, b = lying(rng, m, k, orders[0], 0), lying(rng, k, n, orders[1], 0)
    data, other = (a, b) if is_first else (b, a)
    mostly_zero(rng, data, density, by_columns=by_columns)
    if bad:
        other[rng.integers(len(other)), rng.integers(other.shape[1])] = bad
    found = []
    for is_asked in (False, True):
        tape, c = tape_of(n_threads), np.ones((m, n), np.float32, order=orders[2])
        x, zeros = data.copy("K"), ""
        if is_asked and loads:
            x[...] = 7.0
            tape.load(data, np.arange(len(data)), x)
        elif is_asked:
            zeros = "a" if is_first else "b"
        tape.gemm(*(x, b) if is_first else (a, x), c, beta=0.9, zeros=zeros)
        with np.errstate(invalid="ignore"):
            tape.run()
        found.append(c)
    same_bits(*found)


@settings(max_examples=60, deadline=None)
@given(
    m=st.sampled_from([1, 13, 32, 250]), widths=st.lists(st.sampled_from([1, 65, 200, 300]),
                                                         min_size=1, max_size=3),
    k=st.sampled_from([20, 200, 400]), density=st.sampled_from(DENSITIES),
    bad=st.sampled_from([0.0, 0.0, np.inf]), order=st.sampled_from("CF"),
    n_threads=st.integers(1, 2),
)  # fmt: skip
def test_zeros_change_no_bit_of_products_with_panels(m, widths, k, density, bad, order, n_threads):
    """Several weights of one layer, laid out once for all steps."""
    rng = np.random.default_rng(m + k)
    a = lying(rng, m, k, order, 0)
    mostly_zero(rng, a, density)
    weights = [lying(rng, k, n, "F", 0) for n in widths]
    if bad:
        weights[-1][k // 2, -1] = bad
    found = []
    for zeros in ("", "a"):
        tape, sums = tape_of(n_threads), [np.ones((m, n), np.float32) for n in widths]
        for w, c in zip(weights, sums, strict=True):
            tape.gemm(a, w, c, beta=0.9, steady=True, zeros=zeros)
        with np.errstate(invalid="ignore"):
            tape.repeat(0, len(tape), 1)
        found.append(sums)
    for before, now in zip(*found, strict=True):
        same_bits(before, now)


@pytest.mark.parametrize("is_row", [True, False])
@pytest.mark.parametrize("n_samples", [1, 9, 100, 300])  # thin.h updates with at most 256
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan])
def test_zeros_of_an_update_change_no_bit(is_row, n_samples, by_columns, bad):
    rng = np.random.default_rng(0)
    delta, x = lying(rng, n_samples, 70, "C", 0).T, lying(rng, n_samples, 250, "C", 0)
    mostly_zero(rng, x, 0.1, by_columns=by_columns)
    x[:, 40:90] = 0.0
    if bad:
        delta[33, n_samples // 2] = bad
    found = []
    for zeros in ("", "b"):
        w, v = (np.full((70, 250), q, np.float32, order="C" if is_row else "F") for q in (1.0, 2.0))
        tape = tape_of(1)
        tape.gemm_loop(delta, x, v, alpha=-0.1, beta=0.9, zeros=zeros,
                       inputs=[View(w, "mn"), View(v, "mn")], ops=[("add", 0, 1)],
                       outputs=[(View(w, "mn"), 2)])  # fmt: skip
        tape.run()
        found.append((w, v))
    for before, now in zip(*found, strict=True):
        same_bits(now, before)
        assert np.isnan(now).any() == bool(bad)


def test_without_a_library_products_are_horns_too(rng):
    absent = replace(blas.load("numpy"), is_asked=False)
    a, b = lying(rng, 30, 40, "C", 0), lying(rng, 40, 20, "C", 0)
    c = np.empty((30, 20), np.float32)
    tape = Tape(np.float32, 1, absent)
    assert tape.products == "horn" and tape.reads_live == (LEVEL == 2)
    tape.gemm(a, b, c)
    tape.run()
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
    assert Tape(np.float64, 1, absent).products == "numpy"


def test_who_asks_for_a_library_gets_its_products(monkeypatch):
    try:
        asked = blas.load("openblas")
    except JobError as absent:
        pytest.skip(str(absent))
    assert Tape(np.float32, 1, asked).products == "openblas"
    assert Tape(np.float64).products == blas.load().name
    monkeypatch.setenv("HORN_BLAS", "openblas")
    assert Tape(np.float32).products == "openblas"


@pytest.mark.parametrize("zeros", ["", "a", "b"])
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-1.0, 0.0), (1.0, 0.9)])
@pytest.mark.parametrize("n", [3, 128])
def test_a_sum_of_products_that_are_too_small_has_no_sign(zeros, alpha, beta, n):
    """-1e-30 * 1e-30 is -0: it stays if nothing follows, and is 0 if 0 * 1e-30 is added."""
    a, b = np.zeros((1000, 300), np.float32), np.full((300, n), 1e-30, np.float32)
    a[:500], a[500:, 0] = 1.0, -1e-30
    expected = None
    for n_threads in (1, 2, 3):
        tape, c = tape_of(n_threads), np.full((1000, n), -0.0, np.float32)
        if zeros == "b":
            turned = np.ascontiguousarray(c.T)
            tape.gemm(b.T, a.T, turned, alpha=alpha, beta=beta, zeros=zeros)
            tape.run()
            c = turned.T
        else:
            tape.gemm(a, b, c, alpha=alpha, beta=beta, zeros=zeros)
            tape.run()
        assert not np.any(c[500:])
        expected = c if expected is None else expected
        same_bits(c, expected)
    signs = np.signbit(expected[500:])
    assert signs.all() if alpha < 0 else not signs.any()
