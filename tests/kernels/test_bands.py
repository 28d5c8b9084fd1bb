"""Steps divided among threads by rows of the batch: who may, and to the same bits."""

import numpy as np
import pytest

from horn._kernels.engine import Tape, View

STEPS, UNITS = 5, 6


class Cell:
    """s = tanh(s_before w' + x + its sum over neurons), step by step, and its memory."""

    def __init__(self, n_threads, rows, dtype, turned, rng, mixes=False):
        self.tape = tape = Tape(dtype, n_threads)
        n = tape.dim(rows)
        self.rows, self.dtype = rows, dtype
        self.w = rng.standard_normal((UNITS, UNITS)).astype(dtype)
        self.memory = [self._lying(rng, k, turned) for k in (STEPS, STEPS + 1, STEPS)]
        x, here, z = (self._one(memory, turned) for memory in self.memory)
        before, total = self._one(self.memory[1], turned), np.zeros(rows, dtype)
        lead = np.zeros(UNITS, dtype)
        self.w_here = self.w.copy()
        tape.gemm(before, self.w_here.T, z, m=n, steady=True)
        tape.loop({"b": n, "o": UNITS}, [View(x, "bo")], [], [(View(total, "b"), 0)],
                  reduce=("sum", "o"))  # fmt: skip
        if mixes:
            tape.loop({"b": n, "o": UNITS}, [View(x, "bo")], [], [(View(lead, "o"), 0)],
                      reduce=("sum", "b"))  # fmt: skip
        tape.loop({"b": n, "o": UNITS},
                  [View(z, "bo"), View(x, "bo"), View(total, "b"), View(lead, "o")],
                  [("add", 0, 1), ("add", 4, 2), ("add", 5, 3), ("tanh", 6)],
                  [(View(here, "bo"), 7)])  # fmt: skip
        self.last = len(tape)
        self.weights = tape.anchor(self.w_here)
        unit = self.w.itemsize * (1 if turned else UNITS)
        for array, memory, first in ((x, 0, 0), (here, 1, 1), (z, 2, 0), (before, 1, 0)):
            tape.move(array, self.memory[memory], first, unit, n)
        self.turned, self.n = turned, n

    def _lying(self, rng, steps, turned):
        whole = rng.standard_normal((steps * self.rows, UNITS)).astype(self.dtype)
        return np.ascontiguousarray(whole.T) if turned else whole

    def _one(self, memory, turned):
        if turned:
            return np.empty_like(memory)[:, : self.rows].T
        return np.empty((self.rows, UNITS), self.dtype)

    def run(self, rows, reverse=False):
        self.tape.dims[self.n.index] = rows
        self.tape.repeat(0, self.last, STEPS, reverse)
        return self.memory[1].copy()

    def expected(self, rows, mixes=False):
        whole = [(m.T if self.turned else m)[: rows * k] for m, k in
                 zip(self.memory, (STEPS, STEPS + 1, STEPS), strict=True)]  # fmt: skip
        x, s = (whole[k].reshape(-1, rows, UNITS).astype(np.float64) for k in (0, 1))
        for t in range(STEPS):
            lead = x[t].sum(0) if mixes else 0.0
            s[t + 1] = np.tanh(s[t] @ self.w.T + x[t] + x[t].sum(1)[:, None] + lead)
        return s


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_rows_go_through_all_steps_by_themselves(n_threads, dtype, turned, rng):
    rows = 50
    seed = int(rng.integers(2**31))
    cell = Cell(n_threads, rows, dtype, turned, np.random.default_rng(seed))
    one = Cell(1, rows, dtype, turned, np.random.default_rng(seed))
    for now in (rows, rows - 1, 3, rows):  # a batch that ends early, one of too few rows to divide
        expected = cell.expected(now)
        found = cell.run(now)
        assert np.array_equal(found, one.run(now))
        here = (found.T if turned else found)[: now * (STEPS + 1)].reshape(expected.shape)
        np.testing.assert_allclose(
            here, expected, rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12
        )
        assert cell.tape.divides_rows(0, cell.last) == (n_threads if now > 40 else 1)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_mixes_rows_is_done_together(n_threads, rng):
    cell = Cell(n_threads, 40, np.float64, False, rng, mixes=True)
    expected = cell.expected(40, mixes=True)
    assert cell.tape.divides_rows(0, cell.last) == 0
    np.testing.assert_allclose(cell.run(40).reshape(expected.shape), expected, rtol=0, atol=1e-12)


def test_arrays_that_settle_elsewhere_are_found_there(rng):
    cell = Cell(2, 32, np.float64, False, rng)
    cell.run(32)
    elsewhere = rng.standard_normal(cell.w.shape)
    cell.weights.settle(elsewhere)
    cell.w = elsewhere
    expected = cell.expected(32)
    np.testing.assert_allclose(cell.run(32).reshape(expected.shape), expected, rtol=0, atol=1e-12)


def test_steps_may_go_backwards(rng):
    """Each step reads what forward left before it, whichever comes first."""
    cell = Cell(2, 32, np.float64, False, rng)
    x, s = (cell.memory[k].reshape(-1, 32, UNITS).copy() for k in (0, 1))
    found = cell.run(32, reverse=True).reshape(s.shape)
    for t in reversed(range(STEPS)):
        s[t + 1] = np.tanh(s[t] @ cell.w.T + x[t] + x[t].sum(1)[:, None])
    np.testing.assert_allclose(found, s, rtol=0, atol=1e-12)


def test_instructions_that_come_later_have_their_bands_too(rng):
    cell = Cell(2, 32, np.float64, False, rng)
    cell.run(32)
    twice, n = np.zeros((32, UNITS)), cell.n
    source = np.zeros((32, UNITS))
    cell.tape.loop({"b": n, "o": UNITS}, [View(source, "bo")], [("add", 0, 0)],
                   [(View(twice, "bo"), 1)])  # fmt: skip
    cell.tape.move(source, cell.memory[1], 1, 8 * UNITS, n)
    expected = cell.expected(32)
    cell.tape.repeat(0, len(cell.tape), STEPS)
    np.testing.assert_allclose(twice, 2 * expected[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_draws_and_loads_are_of_a_threads_own_rows(n_threads, rng):
    rows, columns = 30, 4
    tape = Tape(np.float64, n_threads)
    n, iteration = tape.dim(rows), tape.dim(7)
    samples = np.arange(rows * STEPS, dtype=np.uint64)
    source = rng.standard_normal((60, columns * STEPS))
    picks = rng.permutation(60)[:rows].astype(np.int64)
    drawn, read = np.empty((2, rows * STEPS, columns))
    out, x = np.empty((rows, columns)), np.empty((rows, columns))
    numbers = np.empty(rows, np.uint64)
    tape.draw(out, "uniform", key=(1, 2), site=3, iteration=iteration, rows=n, samples=numbers)
    load = tape.load(source[:, :columns], picks, x, rows=n)
    tape.step_load(load, columns)
    tape.rebind(load, source[:, :columns])
    for array, memory, unit in ((out, drawn, 8 * columns), (x, read, 8 * columns),
                                (numbers, samples, 8)):  # fmt: skip
        tape.move(array, memory, 0, unit, n)
    assert tape.divides_rows(0, 2) == n_threads
    tape.repeat(0, 2, STEPS)
    steps = source[picks].reshape(rows, STEPS, columns).swapaxes(0, 1)
    assert np.array_equal(read.reshape(STEPS, rows, columns), steps)
    alone, whole = Tape(np.float64), np.empty((rows * STEPS, columns))
    alone.draw(whole, "uniform", key=(1, 2), site=3, iteration=alone.dim(7), samples=samples)
    alone.run()
    assert np.array_equal(drawn, whole)
