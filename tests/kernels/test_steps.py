"""Products that are repeated: weights laid out once for all steps, several of one a as one."""

import itertools

import numpy as np
import pytest

from horn._kernels.engine import Tape, View

STEPS = 4


def made(m, ns, k, steady, n_threads, rng, rounds=2):
    """c of every step of every round, of products with weights that differ by round."""
    tape = Tape(np.float32, n_threads)
    a = rng.standard_normal((STEPS * m, k)).astype(np.float32)
    rows = np.zeros((m, k), np.float32)
    weights = [np.zeros((n, k), np.float32) for n in ns]
    memory = [np.zeros((STEPS * m, n), np.float32) for n in ns]
    for w, out in zip(weights, memory, strict=True):
        c = np.zeros((m, out.shape[1]), np.float32)
        tape.gemm(rows, w.T, c, steady=steady)
        tape.move(c, out, 0, m * out.shape[1] * 4)
    tape.move(rows, a, 0, m * k * 4)
    found = []
    for _ in range(rounds):
        for w in weights:
            w[...] = rng.standard_normal(w.shape)
        tape.repeat(0, len(tape), STEPS)
        found.append([out.copy() for out in memory])
        for out, w in zip(memory, weights, strict=True):
            np.testing.assert_allclose(out, a @ w.T, rtol=0, atol=2e-4)
    return found


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("m", "ns", "k"),
    [(1, [65], 7), (32, [200] * 4, 200), (13, [3, 70, 32], 400), (300, [17, 33], 20),
     (250, [40] * 20, 9)],
)  # fmt: skip
def test_weights_laid_out_once_give_the_same_bits(m, ns, k, n_threads):
    one, other = (
        made(m, ns, k, steady, n_threads, np.random.default_rng(m)) for steady in (True, False)
    )
    for a, b in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
        assert np.array_equal(a, b)


def test_a_product_of_several_waits_for_the_short_loop_before_it():
    """Each product is too small for two threads, all of one a are not: the second thread read a
    before the first had written it.
    """
    m, n, k, steps = 16, 56, 32, 60

    def made(n_threads):
        rng = np.random.default_rng(0)
        tape = Tape(np.float32, n_threads)
        large, long = (rng.standard_normal(s).astype(np.float32) for s in ((160, 160), (k, 3 * n)))
        state, a, total = (np.zeros(s, np.float32) for s in ((m, k), (m, k), (m, n)))
        cs = np.zeros((3, m, n), np.float32)
        tape.gemm(large, large, np.zeros_like(large))  # threads divide steps with so much work
        ops = [("add", 0, 1), ("sin", 2), ("pow", 3, 1), ("sin", 4)]
        outs = [(View(state, "mk"), 2), (View(a, "mk"), 5)]
        tape.loop({"m": m, "k": k}, [View(state, "mk"), 1.0], ops, outs)
        for j, c in enumerate(cs):
            tape.gemm(a, long[:, j * n : (j + 1) * n], c, steady=True)
        ops = [("add", 0, 1), ("add", 4, 2), ("add", 5, 3)]
        each = [View(total, "mn"), *(View(c, "mn") for c in cs)]
        tape.loop({"m": m, "n": n}, each, ops, [(View(total, "mn"), 6)])
        tape.repeat(0, len(tape), steps)
        return total

    one = made(1)
    for _ in range(3):
        assert np.array_equal(made(2), one)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("far", [0, 1])
def test_products_into_one_matrix_are_done_one_after_the_other(far, n_threads, rng):
    """Also where they have only rows in common."""
    m, n, k, times = 64, 512, 64, 12
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    c = np.zeros((m + far, n), np.float32)
    tape = Tape(np.float32, n_threads)
    tape.gemm(a, b, c[:m], steady=True)
    for j in range(times):
        tape.gemm(a, b, c[far * (j % 2) :][:m], beta=1.0, steady=True)
    want = np.zeros(c.shape)
    want[:m] = a @ b * (1 + times / 2 if far else 1 + times)
    want[far:] += a @ b * (times / 2 if far else 0)
    for _ in range(10):
        tape.repeat(0, len(tape), STEPS)
        np.testing.assert_allclose(c[:m], want[:m], rtol=0, atol=1e-2)


def test_a_part_of_the_tape_does_its_products_alone():
    tape = Tape(np.float32, 1)
    a, outs = np.ones((40, 8), np.float32), [np.zeros((40, 8), np.float32) for _ in range(3)]
    for out in outs:
        tape.gemm(a, np.eye(8, dtype=np.float32), out, steady=True)
    tape.repeat(1, 2, STEPS)
    assert [out.any() for out in outs] == [False, True, False]
    tape.repeat(0, 2, STEPS)
    assert [out.any() for out in outs] == [True, True, False]


def test_a_bias_and_a_gate_move_with_the_steps(rng):
    n, batch = 3, 5
    x = rng.standard_normal((STEPS, n, batch)).astype(np.float32)
    gates = rng.standard_normal((STEPS, n, batch)).astype(np.float32)
    biases = rng.standard_normal((STEPS, n)).astype(np.float32)
    outs = np.zeros((2, STEPS, n, batch), np.float32)
    tape = Tape(np.float32)
    moving = [np.zeros_like(part[0]) for part in (x, biases, gates, outs[0], outs[1])]
    here, bias, gate, biased, gated = moving
    lists = {"ptr": np.arange(n + 1), "src": np.arange(n, dtype=np.int32)}
    lists |= {"row": np.zeros(n, np.int32), "length": np.ones(n, np.int32)}
    lists |= {"which": np.arange(n, dtype=np.int32), "first": np.zeros(n, np.int32)}
    lists |= {"base": np.zeros(1, np.int64), "step": 1}
    two = np.full(1, 2, np.float32)
    tape.windows(here, two, biased, **lists, bias=bias)
    tape.windows(here, two, gated, **lists, gate=gate)
    for array, memory in zip(moving, (x, biases, gates, *outs), strict=True):
        tape.move(array, memory, 0, array.nbytes)
    tape.repeat(0, len(tape), STEPS)
    np.testing.assert_array_equal(outs[0], 2 * x + biases[:, :, None])
    np.testing.assert_array_equal(outs[1], np.where(gates > 0, 2 * x, 0))
