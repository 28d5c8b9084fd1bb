"""Loops over the edges of sparse links against NumPy: both ways, dtypes, orders and threads."""

import numpy as np
import pytest

from horn._kernels.engine import Iota, Ragged, Tape, View
from tests.kernels import reference
from tests.kernels.test_engine import normal


@pytest.fixture
def graph(rng):
    degrees = rng.integers(0, 9, 40)
    degrees[[0, 7]] = 0
    degrees[3] = 200
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = rng.integers(0, 60, indptr[-1]).astype(np.int32)
    return indptr, indices, np.repeat(np.arange(40), degrees)


@pytest.mark.parametrize("batch", [0, 1, 5, 100, 700])
@pytest.mark.parametrize("fold", ["sum", "max", "argmax"])
@pytest.mark.parametrize("order", "CF")
def test_edges_reduce_to_their_receivers(batch, fold, order, dtype, n_threads, graph, rng):
    indptr, indices, _ = graph
    x = normal(rng, 60, batch, dtype=dtype)
    w = normal(rng, len(indices), dtype=dtype)
    out = np.full((40, batch), np.nan, dtype)
    tape = Tape(dtype, n_threads)
    tape.loop({"o": 40, "e": Ragged(indptr, "o"), "b": tape.dim(batch)},
              [View(x, "eb", {"e": indices}), View(w, "e")], [("mul", 0, 1)],
              [(View(out, "ob"), 2)], reduce=(fold, "e"))  # fmt: skip
    tape.run()
    for r in range(40):
        e = slice(indptr[r], indptr[r + 1])
        expected = reference.fold(fold, x[indices[e]] * w[e, None], 0)
        np.testing.assert_allclose(out[r], expected, rtol=1e-4, atol=1e-5)


def test_edges_without_a_batch_reduce_to_their_receivers(dtype, n_threads, graph, rng):
    indptr, indices, _ = graph
    w = normal(rng, len(indices), dtype=dtype)
    x = normal(rng, 60, dtype=dtype)
    out, count = np.zeros(40, dtype), np.zeros(40, dtype)
    tape = Tape(dtype, n_threads)
    axes = {"o": 40, "e": Ragged(indptr, "o")}
    tape.loop(axes, [View(x, "e", {"e": indices}), View(w, "e")], [("mul", 0, 1), ("tanh", 2)],
              [(View(out, "o"), 3)], reduce=("sum", "e"))  # fmt: skip
    tape.loop(axes, [Iota("e")], [], [(View(count, "o"), 0)], reduce=("max", "e"))
    tape.run()
    for r in range(40):
        e = slice(indptr[r], indptr[r + 1])
        np.testing.assert_allclose(
            out[r], np.tanh(x[indices[e]] * w[e]).sum(), rtol=1e-5, atol=1e-6
        )
        assert count[r] == (e.stop - e.start - 1 if e.stop > e.start else -np.inf)


@pytest.mark.parametrize("batch", [1, 5, 100, 700])
@pytest.mark.parametrize("is_plain", [True, False])
def test_edge_gradients_reduce_over_the_batch(batch, is_plain, dtype, n_threads, graph, rng):
    indptr, indices, receiver = graph
    x = normal(rng, 60, batch, dtype=dtype)
    delta = normal(rng, 40, batch, dtype=dtype)
    grad = np.zeros(len(indices), dtype)
    tape = Tape(dtype, n_threads)
    ops = [("mul", 0, 1)] if is_plain else [("mul", 0, 1), ("tanh", 2)]
    tape.loop({"o": 40, "e": Ragged(indptr, "o"), "b": batch},
              [View(delta, "ob"), View(x, "eb", {"e": indices})], ops,
              [(View(grad, "e"), 1 + len(ops))], reduce=("sum", "b"))  # fmt: skip
    tape.run()
    product = delta[receiver].astype(float) * x[indices]
    expected = (product if is_plain else np.tanh(product)).sum(axis=1)
    np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-4)


def test_edges_may_be_walked_from_the_sending_side(dtype, n_threads, graph, rng):
    indptr, indices, receiver = graph
    perm = np.argsort(indices, kind="stable").astype(np.int32)
    back_ptr = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=60))]).astype(np.int64)
    to = receiver[perm].astype(np.int32)
    delta = normal(rng, 40, 33, dtype=dtype)
    w = normal(rng, len(indices), dtype=dtype)
    out = np.zeros((60, 33), dtype)
    tape = Tape(dtype, n_threads)
    tape.loop({"i": 60, "e": Ragged(back_ptr, "i"), "b": 33},
              [View(delta, "eb", {"e": to}), View(w, "e", {"e": perm})], [("mul", 0, 1)],
              [(View(out, "ib"), 2)], reduce=("sum", "e"))  # fmt: skip
    tape.run()
    expected = np.zeros((60, 33))
    np.add.at(expected, indices, delta[receiver].astype(float) * w[:, None])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_one_sample_has_the_bits_that_it_has_among_others(dtype, n_threads, graph, rng):
    indptr, indices, _ = graph
    x, w = (
        normal(rng, 60, 9, dtype=dtype),
        normal(rng, len(indices), dtype=dtype),
    )
    found = []
    for columns in (slice(0, 9), slice(4, 5)):
        own = np.ascontiguousarray(x[:, columns])
        out = np.full((40, own.shape[1]), np.nan, dtype)
        tape = Tape(dtype, n_threads)
        axes = {"o": 40, "e": Ragged(indptr, "o"), "b": tape.dim(own.shape[1])}
        tape.loop(axes, [View(own, "eb", {"e": indices}), View(w, "e")], [("mul", 0, 1)],
                  [(View(out, "ob"), 2)], reduce=("sum", "e"))  # fmt: skip
        tape.run()
        found.append(out)
    assert found[0][:, 4].tobytes() == found[1][:, 0].tobytes()


@pytest.mark.parametrize("n", [1, 3, 4, 31, 32, 33, 65, 200, 5000])
@pytest.mark.parametrize("has_own", [False, True], ids=["one row with all", "two by two"])
def test_a_product_of_rows_has_the_bits_that_it_has_alone(n, has_own, dtype, rng):
    x, w = normal(rng, 9, n, dtype=dtype), normal(rng, 9, n, dtype=dtype)

    def summed(rows):
        out = np.full(len(rows), np.nan, dtype)
        tape = Tape(dtype)
        left = View(x[rows], "oi") if has_own else View(x[0], "i")
        tape.loop({"o": len(rows), "i": n}, [left, View(w[rows], "oi")], [("mul", 0, 1)],
                  [(View(out, "o"), 2)], reduce=("sum", "i"))  # fmt: skip
        tape.run()
        return out

    found = summed([*range(9)])
    assert found.tobytes() == np.concatenate([summed([row]) for row in range(9)]).tobytes()
    expected = (w.astype(float) * (x if has_own else x[:1])).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * n)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("of_out", [None, "float64"])
def test_a_gradient_of_one_sample_is_one_product(accumulate, of_out, dtype, n_threads, graph, rng):
    indptr, indices, receivers = graph
    receivers = receivers.astype(np.int32)
    x, d = normal(rng, 1, 60, dtype=dtype), normal(rng, 1, 40, dtype=dtype)
    d[0, 3], x[0, indices[0]] = -0.0, 3.0
    start = normal(rng, len(indices), dtype=of_out or dtype)
    out = start.copy()
    tape = Tape(dtype, n_threads)
    tape.loop({"b": tape.dim(1), "e": len(indices)},
              [View(d, "be", {"e": receivers}), View(x, "be", {"e": indices})], [("mul", 0, 1)],
              [(View(out, "e"), 2)], reduce=("sum", "b"), accumulate=accumulate)  # fmt: skip
    tape.run()
    product = 0.0 + d[0, receivers].astype(np.float64) * x[0, indices]
    expected = (start + product if accumulate else product).astype(out.dtype)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("fold", ["sum", "prod", "max", "argmax"])
def test_receivers_of_one_sample_with_few_edges_and_with_more_than_a_strip(
    fold, dtype, n_threads, rng
):
    degrees = np.concatenate([rng.integers(0, 9, 1500), [9000, 0, 3], np.full(400, 7)])
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    n, edges = len(degrees), int(indptr[-1])
    indices = rng.integers(0, 60, edges).astype(np.int32)
    x, y = normal(rng, 1, 60, dtype=dtype), normal(rng, 1, n, dtype=dtype)
    w = normal(rng, edges, dtype=dtype)
    folded, kept = np.full((1, n), np.nan, dtype), np.full(edges, np.nan, dtype)
    summed, named = np.full(edges, np.nan, dtype), np.full((1, n), np.nan, dtype)
    tape = Tape(dtype, n_threads)
    axes = {"b": tape.dim(1), "o": n, "e": Ragged(indptr, "o")}
    views = [View(x, "be", {"e": indices}), View(w, "e"), View(y, "bo")]
    ops = [("mul", 0, 1), ("add", 3, 2), ("tanh", 4)]
    tape.loop(axes, views, ops, [(View(folded, "bo"), 5)], reduce=(fold, "e"))
    tape.loop(axes, views, ops, [(View(summed, "e"), 5)], reduce=("sum", "b"))
    tape.loop({"o": n, "e": axes["e"]}, [View(w, "e"), View(y[0], "o")], [("add", 0, 1)],
              [(View(kept, "e"), 2)])  # fmt: skip
    tape.loop(axes, [*views, Iota("e")], [("mul", 2, 3)], [(View(named, "bo"), 4)],
              reduce=("max", "e"))  # fmt: skip
    tape.run()
    receivers = np.repeat(np.arange(n), degrees)
    values = np.tanh((x[0, indices] * w + y[0, receivers]).astype(np.float64))
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(summed, values, **near)
    np.testing.assert_allclose(kept, w + y[0, receivers], **near)
    for r, (start, stop) in enumerate(zip(indptr, indptr[1:], strict=False)):
        own = values[start:stop, None]
        if fold == "argmax":  # equal but for rounding
            at = int(folded[0, r])
            assert at == -1 if start == stop else own[at] >= own.max() - 1e-5
        else:
            np.testing.assert_allclose(folded[0, r], reference.fold(fold, own, 0)[0], **near)
        places = y[0, r] * np.arange(stop - start)
        assert named[0, r] == pytest.approx(max(places, default=-np.inf), rel=1e-5)


@pytest.mark.parametrize("batch", [2, 4, 9, 17, 40])
@pytest.mark.parametrize("fold", ["sum", "max", "argmax"])
def test_samples_side_by_side_have_each_its_own_result(batch, fold, dtype, n_threads, rng):
    """A strip has the edges of several receivers, of which some have one or none."""
    degrees = np.array([0, 1, 0, 0, 3, 9, 9, 300, 0, 1, 7])
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = rng.integers(0, 60, indptr[-1]).astype(np.int32)
    x, bound = normal(rng, 60, batch, dtype=dtype), normal(rng, len(degrees), batch, dtype=dtype)

    found = np.full((len(degrees), batch), np.nan, dtype)
    tape = Tape(dtype, n_threads)
    axes = {"o": len(degrees), "e": Ragged(indptr, "o"), "b": tape.dim(batch)}
    tape.loop(axes, [View(x, "eb", {"e": indices}), View(bound, "ob")], [("sub", 0, 1)],
              [(View(found, "ob"), 2)], reduce=(fold, "e"))  # fmt: skip
    tape.run()
    for r, (start, stop) in enumerate(zip(indptr, indptr[1:], strict=False)):
        expected = reference.fold(fold, x[indices[start:stop]] - bound[r], 0)
        np.testing.assert_allclose(found[r], expected, rtol=1e-4, atol=1e-5)
