"""What AVX-512 computes in products of float32, on any processor: their text, compiled against its
operations written in C (in_c/immintrin.h), has the bits of sums in order.
"""

import ctypes
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "horn/_kernels"
pytestmark = pytest.mark.slow  # most of it is the compiler's time
ZEROS = {"": 0, "a": 1, "b": 2}  # as in products.h
FLOAT, INT = ctypes.c_float, ctypes.c_int64


@pytest.fixture(scope="module")
def c(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    made = tmp_path_factory.mktemp("in_c") / "products.so"
    include = [f"-I{path}" for path in (HERE / "in_c", KERNELS, sysconfig.get_path("include"))]
    command = ["cc", "-O1", "-ffp-contract=off", "-shared", "-fPIC", *include]
    subprocess.run([*command, HERE / "in_c/products.c", "-o", made, "-lm"], check=True)
    return ctypes.CDLL(str(made))


def at(array):
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def steps(array):
    return [INT(step // array.itemsize) for step in array.strides]


def in_order(c, a, b, result, alpha, beta, depth):
    c.in_order(at(a), *steps(a), at(b), *steps(b), at(result), *map(INT, result.shape),
               INT(a.shape[1]), FLOAT(alpha), FLOAT(beta), INT(depth))  # fmt: skip


def numbers(rng, *shape, density=1.0, order="C"):
    found = rng.standard_normal(shape).astype(np.float32) * (rng.random(shape) < density)
    if density < 1.0:
        found[:, : shape[1] // 3] = 0.0
    return np.asarray(found, np.float32, order=order)


def same_bits(found, expected):
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=200, deadline=None)
@given(
    m=st.sampled_from([1, 2, 11, 13, 50, 241, 260]), n=st.sampled_from([1, 2, 3, 31, 33, 65, 130]),
    k=st.sampled_from([0, 1, 20, 385, 800]), orders=st.tuples(*[st.sampled_from("CF")] * 2),
    zeros=st.sampled_from(["", "a", "b"]), density=st.sampled_from([0.05, 0.3]),
    beta=st.sampled_from([0.0, 0.9]),
)  # fmt: skip
@example(m=1, n=65, k=385, orders="CF", zeros="", density=0.3, beta=0.9)
@example(m=1, n=65, k=385, orders="CC", zeros="", density=0.3, beta=0.9)
@example(m=260, n=130, k=800, orders="FC", zeros="a", density=0.05, beta=0.9)
def test_a_product_has_the_bits_of_sums_in_order(c, m, n, k, orders, zeros, density, beta):
    rng = np.random.default_rng(m + n + k)
    a = numbers(rng, m, k, density=density if zeros == "a" else 1.0, order=orders[0])
    b = numbers(rng, k, n, density=density if zeros == "b" else 1.0, order=orders[1])
    found = np.full((m, n), 2.0 if beta else np.nan, np.float32)
    expected = found.copy()

    c.product(at(a), *steps(a), at(b), *steps(b), at(found), INT(m), INT(n), INT(k), FLOAT(-0.7),
              FLOAT(beta), ZEROS[zeros])  # fmt: skip

    in_order(c, a, b, expected, -0.7, beta, INT.in_dll(c, "WIDE_DEPTH").value)
    same_bits(found, expected)


@settings(max_examples=200, deadline=None)
@given(m=st.integers(1, 40), n=st.sampled_from([1, 15, 16, 17, 32, 33, 70, 129]),
       k=st.sampled_from([1, 2, 5, 12, 13, 32, 100, 256]), has_weights=st.booleans(),
       density=st.sampled_from([0.0, 0.1, 1.0]), zeros=st.booleans())  # fmt: skip
def test_an_update_has_the_bits_of_sums_in_order(c, m, n, k, has_weights, density, zeros):
    rng = np.random.default_rng(m + n + k)
    d, x = numbers(rng, k, m), numbers(rng, k, n, density=density)
    x[rng.random(k) < 0.3] = 0.0
    v, w = numbers(rng, m, n), numbers(rng, m, n) if has_weights else None
    expected = v.copy()
    in_order(c, d.T, x, expected, -0.1, 0.9, k)
    new = w + expected if has_weights else None

    c.gradient(at(d), at(x), INT(m), INT(n), INT(k), FLOAT(-0.1), FLOAT(0.9), at(v), at(w), zeros)

    same_bits(v, expected)
    if has_weights:
        same_bits(w, new)


@settings(max_examples=100, deadline=None)
@given(m=st.integers(1, 40), n_out=st.sampled_from([1, 17, 40, 130]),
       n_in=st.sampled_from([1, 15, 100, 300]), keep=st.sampled_from([0.2, 0.7, 1.0]),
       backward=st.booleans(), beta=st.sampled_from([0.0, 0.9]))  # fmt: skip
def test_live_weights_have_the_bits_of_sums_in_order(c, m, n_out, n_in, keep, backward, beta):
    rng = np.random.default_rng(m + n_out + n_in)
    w = numbers(rng, n_out, n_in)
    rows, cols = (
        np.flatnonzero((rng.random(size) < keep) | (np.arange(size) == size // 2)).astype(np.int32)
        for size in w.shape
    )
    on = np.zeros(-(-n_in // 16) * 16, bool)
    on[cols] = True
    bits = np.packbits(on, bitorder="little").view(np.uint16)
    here = w[np.ix_(rows, cols)]
    b = here if backward else here.T
    a, found = numbers(rng, m, len(b)), np.full((m, b.shape[1]), 2.0, np.float32)
    expected = found.copy()

    c.live(at(a), at(w), at(rows), at(cols), at(bits), int(backward), at(found), INT(m),
           INT(b.shape[1]), INT(len(b)), INT(n_in), FLOAT(beta))  # fmt: skip

    in_order(c, a, b, expected, 1.0, beta, len(b))
    np.testing.assert_array_equal(found, expected)
