"""Each number's place in the order of its row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn._kernels.engine import Tape
from tests.kernels import reference

ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-300, -1e-40, 1.0, np.nextafter(1.0, 2.0)]
DTYPES = [np.float32, np.float64]


def lying(array, turned):
    return np.ascontiguousarray(array.T).T if turned else array


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    n=st.sampled_from([1, 2, 7, 191, 192, 193, 300, 1000]), rows=st.integers(1, 9),
    levels=st.sampled_from([1, 3, 50, 10**6]), is_odd=st.booleans(), turned=st.booleans(),
    n_threads=st.integers(1, 3), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_places_are_those_of_a_stable_sort(dtype, n, rows, levels, is_odd, turned, n_threads, seed):
    rng = np.random.default_rng(seed)
    array = (rng.integers(-levels, levels, (rows, n)) / 7).astype(dtype)
    if is_odd:
        place = rng.random(array.shape) < 0.3
        array[place] = rng.choice(ODD, place.sum()).astype(dtype)
    tape = Tape(dtype, n_threads)
    there, out = tape.dim(rows), lying(np.full_like(array, -1), turned)
    tape.rank(lying(array, turned), out, rows=there)
    for now in {rows, 1}:
        tape.dims[there.index] = now
        tape.run()
        np.testing.assert_array_equal(out[:now], reference.ranks(array[:now]))
        out[:] = -1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("n", [5, 250])
def test_threads_take_rows_through_all_steps(dtype, turned, n, rng):
    steps, rows = 4, 30
    whole = rng.standard_normal((steps * rows, n)).astype(dtype)
    given = np.ascontiguousarray(whole.T) if turned else whole
    found = np.full_like(given, -1)
    tape = Tape(dtype, 2)
    there = tape.dim(rows)
    x, out = (
        np.empty_like(memory)[:, :rows].T if turned else np.empty((rows, n), dtype)
        for memory in (given, found)
    )
    tape.rank(x, out, rows=there)
    for array, memory in ((x, given), (out, found)):
        tape.move(array, memory, 0, whole.itemsize * (1 if turned else n), there)
    tape.dims[there.index] = rows
    assert tape.divides_rows(0, 1)
    tape.repeat(0, 1, steps)
    np.testing.assert_array_equal(found.T if turned else found, reference.ranks(whole))


def test_shapes_and_types_that_do_not_fit_are_told():
    tape = Tape(np.float32)
    array = np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"rows of equal length, got \(3, 4\) and \(3, 5\)"):
        tape.rank(array, np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match="must be float32, got float32 and float64"):
        tape.rank(array, np.zeros((3, 4)))
