"""Matrices and graphs as synapses: scipy sparse matrices, arrays of two axes, networkx graphs.

None of these packages is imported: the module of an object's type identifies it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn.errors import ModelError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Matrix:
    """Synapses by receiver: row o has the sources of receiver o, ascending.

    indptr (n_receivers + 1,) int64 · indices, values (n_edges,) int64 and float64.
    """

    indptr: Array = field(repr=False)
    indices: Array = field(repr=False)
    values: Array = field(repr=False)
    shape: tuple[int, int]
    what: str


def is_masked(thing: Any) -> bool:
    """Whether something is masked in an array; ``numpy.ma`` is not imported for that."""
    return bool(np.any(getattr(thing, "mask", False)))


def is_matrix(thing: Any) -> bool:
    """Whether ``matrix_of`` accepts the object."""
    module = type(thing).__module__.partition(".")[0]
    return isinstance(thing, np.ndarray) or (
        (module == "scipy" and hasattr(thing, "tocsr"))
        or (module == "networkx" and hasattr(thing, "is_directed"))
    )


def matrix_of(thing: Any, has_values: bool = True) -> Matrix:
    """The synapses that a matrix or graph describes. has_values : its numbers are weights, so that
    each edge of a graph needs one. Raises ModelError.
    """
    if isinstance(thing, np.ndarray):
        if thing.ndim != 2 or thing.dtype.kind not in "biuf":
            raise ModelError(
                f"Sparse(matrix): an array of numbers (receivers, sources) is expected, got "
                f"{thing.dtype} of shape {thing.shape}"
            )
        if is_masked(thing):
            raise ModelError(
                "Sparse(matrix): the array has masked entries; fill them in, as .filled(0) does "
                "where they are no synapses"
            )
        rows, columns = np.nonzero(thing)
        # of a np.matrix, as of todense() of scipy, all that is taken has two axes
        values = np.asarray(thing[rows, columns]).reshape(-1)
        return _matrix(rows, columns, values, thing.shape, "the array")
    if hasattr(thing, "tocsr"):
        found = thing.tocsr(copy=True)
        found.has_canonical_format = False  # arrays written by others may be in any order
        found.sum_duplicates()  # and sorts
        if found.ndim != 2 or found.dtype.kind not in "biuf":
            raise ModelError(
                f"Sparse(matrix): a matrix of numbers (receivers, sources) is expected, got "
                f"{found.dtype} of shape {found.shape}"
            )
        rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
        return _matrix(rows, found.indices, found.data, found.shape, "the matrix")
    if is_matrix(thing):
        return _of_graph(thing, has_values)
    raise ModelError(
        f"Sparse(matrix): a scipy sparse matrix, an array of two axes or a networkx graph is "
        f"expected, got {thing!r:.80}"
    )


def _matrix(rows: Any, columns: Any, values: Any, shape: Any, what: str) -> Matrix:
    """The matrix from entries sorted by row, and by column within a row."""
    ends = np.cumsum(np.bincount(rows, minlength=shape[0]), dtype=np.int64)
    weights = np.asarray(values, np.float64)
    if not np.isfinite(weights).all():
        raise ModelError(f"Sparse(matrix): {what} has NaN or infinity; give finite numbers")
    return Matrix(
        np.concatenate([[0], ends]),
        np.asarray(columns, np.int64),
        weights,
        (int(shape[0]), int(shape[1])),
        what,
    )


def _of_graph(graph: Any, has_values: bool) -> Matrix:
    """The synapses of a graph: one per edge u -> v, two per undirected edge. The k-th node is
    neuron k of both layers; if all nodes are marked as in networkx's bipartite graphs, those of
    part 0 are the sources and those of part 1 the receivers, each in their order.
    """
    parts = dict(graph.nodes(data="bipartite"))
    is_bipartite = bool(parts) and all(part in (0, 1) for part in parts.values())
    senders = [node for node in parts if not is_bipartite or parts[node] == 0]
    receivers = [node for node in parts if not is_bipartite or parts[node] == 1]
    of_sender = {node: k for k, node in enumerate(senders)}
    of_receiver = {node: k for k, node in enumerate(receivers)}
    found: dict[tuple[int, int], Any] = {}
    for u, v, weight in graph.edges(data="weight", default=1.0):
        ways = {(u, v)} if graph.is_directed() else {(u, v), (v, u)}
        ways = {(a, b) for a, b in ways if a in of_sender and b in of_receiver}
        if not ways:
            raise ModelError(
                f"Sparse(matrix): the edge from {u!r} to {v!r} does not go from bipartite=0 to "
                "bipartite=1; turn it round, or mark its nodes otherwise"
            )
        for a, b in ways:
            if (pair := (of_receiver[b], of_sender[a])) in found:
                raise ModelError(
                    f"Sparse(matrix): the graph has two edges from {a!r} to {b!r}; one synapse per "
                    "pair"
                )
            found[pair] = weight if has_values else 1.0
    odd = [w for w in found.values() if not isinstance(w, (int, float, np.number))]
    if odd:
        raise ModelError(f"Sparse(matrix): a weight of the graph is {odd[0]!r}; give numbers")
    pairs = np.array(list(found), np.int64).reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    values, shape = np.array([*found.values()], np.float64), (len(receivers), len(senders))
    return _matrix(pairs[order, 0], pairs[order, 1], values[order], shape, "the graph")
