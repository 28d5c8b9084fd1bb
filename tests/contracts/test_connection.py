"""Every connection in its folder: it says who listens to whom, from the seed alone."""

import importlib
import pkgutil

import numpy as np
import pytest

from horn import connections
from horn.connections.sparse import Sparse

FOUND = {
    info.name: importlib.import_module(f"horn.connections.{info.name}").CONNECTION
    for info in pkgutil.iter_modules(connections.__path__)
}
# Connections that need to be told something.
MADE = {Sparse: lambda: Sparse(fan_in=2)}


@pytest.fixture(params=FOUND)
def connection(request):
    cls = FOUND[request.param]
    return MADE.get(cls, cls)()


@pytest.mark.parametrize("n_sources, n_receivers", [(5, 3), (3, 5), (2, 1), (100, 1)])
def test_edges_are_rows_of_sources_each_once(connection, n_sources, n_receivers, rng):
    edges = connection.edges(n_sources, n_receivers, rng)
    if edges is None:
        return  # all listen to all
    assert edges.indptr.dtype == edges.indices.dtype == np.int64
    assert edges.indptr.shape == (n_receivers + 1,) and edges.indptr[0] == 0
    assert edges.indptr[-1] == len(edges.indices)
    for start, stop in zip(edges.indptr, edges.indptr[1:], strict=False):
        row = edges.indices[start:stop]
        assert len(set(row.tolist())) == len(row)
        assert np.all((0 <= row) & (row < n_sources))


def test_the_same_seed_wires_the_same(connection):
    a, b = (connection.edges(6, 4, np.random.default_rng(7)) for _ in "ab")
    if a is not None:
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_array_equal(a.indices, b.indices)
