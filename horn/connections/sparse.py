"""Sparse connections: each neuron receives some neurons below, drawn at random, given as a graph or
a matrix, or computed from its index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn.connections import Connection, Edges, Index
from horn.connections._matrix import Matrix, is_matrix, matrix_of
from horn.errors import ModelError, is_whole
from horn.layer_costs import EDGE_ARRAYS
from horn.mistakes import shown, teaches

_SHUFFLED = 10_000  # from more sources than this, NumPy draws many by shuffling
_FEW, _AT_ONCE = 64, 1 << 16


@teaches
@dataclass(frozen=True, eq=False)
class Sparse:
    """Each neuron receives some neurons below: exactly one of five descriptions.

    fan_in : the number of sources of each receiver, drawn without replacement from the network's
    seed.
    csr : (indptr, indices), shapes (n_receivers + 1,) and (n_edges,), by receiver.
    edge_list : pairs (source, receiver), in any order, or an array of them (n_edges, 2).
    sources : a function from a receiver's index to the indices of its sources.
    matrix : (n_receivers, n_sources), as a weight array: a synapse for each stored number of a
    scipy sparse matrix, or each number other than 0 of a NumPy array. Or a networkx graph: a
    synapse from u to v for each edge, both ways if it is undirected; its k-th node is neuron k of
    both layers, or nodes with bipartite=0 are the layer below and nodes with bipartite=1 this
    layer.
    values : the numbers of the matrix (an edge's "weight") are the initial weights; edge_list has
    triples (source, receiver, weight) then, or is a dict of weights by (source, receiver).

    Raises ModelError for an index outside a layer, or a source named twice for one receiver.
    """

    fan_in: int | None = None
    csr: tuple[Any, Any] | None = None
    edge_list: Iterable[tuple[Any, ...]] | Index | None = None
    sources: Callable[[int], Sequence[int]] | None = None
    matrix: Any = None
    values: bool = False
    _weights: Any = field(default=None, init=False, repr=False)  # of the edges, by receiver

    def __post_init__(self) -> None:
        names = ("fan_in", "csr", "edge_list", "sources", "matrix")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ModelError(
                "Sparse takes exactly one of fan_in, csr, edge_list, sources, matrix; got "
                f"{', '.join(given) or 'none'}"
            )
        if self.values and self.matrix is None and self.edge_list is None:
            raise ModelError(
                "Sparse: values=True takes the numbers of matrix= or edge_list=; neither is there"
            )
        if self.matrix is not None and not isinstance(self.matrix, Matrix):
            object.__setattr__(self, "matrix", matrix_of(self.matrix, self.values))
        if self.csr is not None:
            _check_pair(self.csr)
        if self.edge_list is not None:
            edges, weights = _weighed(self.edge_list) if self.values else (self.edge_list, None)
            pairs = _pairs(edges)
            object.__setattr__(self, "edge_list", pairs)
            if weights is not None:
                order = np.argsort([receiver for _, receiver in pairs], kind="stable")
                object.__setattr__(self, "_weights", weights[order])

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges:
        """The synapses between layers of these sizes; ``fan_in`` draws from ``rng``."""
        if self.fan_in is not None:
            fan_in = _fan_in(self.fan_in, n_sources)
            drawn = _drawn(rng, n_sources, n_receivers, fan_in)
            return Edges(np.arange(n_receivers + 1, dtype=np.int64) * fan_in, drawn.ravel())
        elif self.sources is not None:
            rows = [self._heard_by(o) for o in range(n_receivers)]
            indices = np.concatenate([*rows, np.empty(0, np.int64)])
            lengths = np.fromiter(map(len, rows), np.int64, n_receivers)
        elif self.matrix is not None:
            return self._of_matrix(n_sources, n_receivers)
        elif self.edge_list is not None:
            indices, lengths = _by_receiver(self.edge_list, n_receivers)
        else:
            assert self.csr is not None
            indptr = _whole(self.csr[0], "csr: indptr")
            indices = _whole(self.csr[1], "csr: indices")
            lengths = _lengths(indptr, len(indices), n_receivers, "Sparse(csr)")
        _check(np.repeat(np.arange(n_receivers), lengths), indices, n_sources)
        return Edges(np.concatenate([[0], np.cumsum(lengths)]), indices)

    def _heard_by(self, receiver: int) -> Any:
        assert self.sources is not None
        try:
            found = self.sources(receiver)
            listed = list(found) if isinstance(found, Iterable) else found
        except Exception as error:
            name = getattr(self.sources, "__name__", "sources")
            raise ModelError(
                f"Sparse(sources={name}): {name}({receiver}) raised {type(error).__name__}: "
                f"{error}; it is called with the number of each neuron of the layer, and gives "
                f"the numbers of those below that it hears"
            ) from error
        return _whole(listed, f"sources({receiver})")

    def _of_matrix(self, n_sources: int, n_receivers: int) -> Edges:
        found: Matrix = self.matrix
        if found.shape != (n_receivers, n_sources):
            remedy = "one row per receiver, one column per source"
            if found.what == "the graph":
                remedy = (
                    "the nodes are those of both layers, or have bipartite=0 (the layer below) and "
                    "bipartite=1"
                )
            elif found.shape == (n_sources, n_receivers):
                remedy = "write matrix.T"
            raise ModelError(
                f"Sparse(matrix): {found.what} is {found.shape[0]} x {found.shape[1]}, but "
                f"{n_receivers} neurons listen to {n_sources}; {remedy}"
            )
        return Edges(found.indptr, found.indices)

    @property
    def initial(self) -> MatrixValues | None:
        """The initialiser with the matrix's numbers; None if they are not the initial weights."""
        if not self.values:
            return None
        return MatrixValues(self._weights if self.matrix is None else self.matrix.values)


@dataclass(frozen=True, eq=False)
class MatrixValues:
    """An initialiser: the numbers of a matrix or of edges (n_edges,)."""

    weights: Any = field(repr=False)

    def values(self, shape: tuple[int, ...], fan_in: int, fan_out: int, rng: Any) -> Any:
        if shape != self.weights.shape:
            raise ModelError(f"Sparse(matrix): {self.weights.shape} values for {shape} synapses")
        return self.weights


def as_connection(given: Any, where: str) -> Connection:
    """The connection for an argument of ``connect``: a connection, a matrix or a graph."""
    if is_matrix(given):
        return Sparse(matrix=given)
    if isinstance(given, (list, tuple)):
        raise ModelError(
            f"{where}: connect is a {type(given).__name__}; a connection for each input goes by "
            'its name: inputs={"x": a, "h": b}, connect={"h": horn.OneToOne()}; rows of numbers '
            "are a matrix as np.array(rows)"
        )
    is_one = hasattr(given, "edges") or callable(getattr(given, "at", None))
    if isinstance(given, type) or not is_one:
        remedy = f"; write {given.__name__}(...)" if isinstance(given, type) else ""
        raise ModelError(
            f"{where}: connect must be a connection such as horn.Sparse(fan_in=8), a scipy sparse "
            f"or NumPy matrix or a networkx graph, got {given!r:.80}{remedy}"
        )
    found: Connection = given
    return found


def checked(found: Any, n_sources: int, n_receivers: int, whose: str) -> Edges | None:
    """The synapses that a connection of the user's gave, since kernels check no index.

    whose : the name of its class. Raises ModelError for what is no CSR between layers of these
    sizes, or has a pair twice, and for a weight that is not there.
    """
    if found is None:
        return None
    if not isinstance(found, Edges):
        raise ModelError(
            f"{whose}: its synapses must be horn.connections.Edges(indptr, indices), or None if "
            f"every neuron hears every neuron below; got {shown(found)}"
        )
    indptr = _whole(found.indptr, "indptr", whose)
    indices = _whole(found.indices, "indices", whose)
    n = len(indices)
    lengths = _lengths(indptr, n, n_receivers, whose)
    _check(np.repeat(np.arange(n_receivers), lengths), indices, n_sources, whose)
    shape, weight = found.weight_shape, found.weight
    if (shape is None) != (weight is None):
        raise ModelError(
            f"{whose}: weight= (the number of each synapse's weight) and weight_shape= (the shape "
            f"of the array of weights) go together; got only one of them"
        )
    if shape is None or weight is None:
        return Edges(indptr, indices)
    if not isinstance(shape, tuple) or not all(is_whole(extent, 1) for extent in shape):
        raise ModelError(f"{whose}: weight_shape is a tuple of whole numbers, got {shown(shape)}")
    weight, n_weights = _whole(weight, "weight", whose), math.prod(shape)
    if len(weight) != n:
        raise ModelError(
            f"{whose}: weight has {len(weight)} entries for {n} synapses; it is the number of each "
            f"one's weight, in the order of indices"
        )
    outside = weight[(weight < 0) | (weight >= n_weights)]
    if len(outside):
        raise ModelError(
            f"{whose}: a synapse has weight {outside[0]}, but weight_shape={shape} has weights "
            f"0..{n_weights - 1}"
        )
    return Edges(indptr, indices, weight, shape)


def edges_in_file(
    link: Mapping[str, Any], arrays: Mapping[str, Any], n_sources: int, n_receivers: int
) -> Edges:
    """The synapses of a sparse link, of the arrays of a file, which may be damaged: kernels check
    no index. Raises ValueError, or KeyError for an array that is not there.
    """
    weight, shape = link["weight"], link.get("weight_shape")
    parts = EDGE_ARRAYS[: 2 if shape is None else 3]
    given: list[Any] = [arrays[f"{weight}/{part}"] for part in parts]
    given += [] if shape is None else [tuple(shape)]
    try:
        edges = checked(Edges(*given), n_sources, n_receivers, f"the synapses of {weight}")
    except ModelError as error:
        raise ValueError(str(error)) from error
    assert edges is not None
    return edges


def _lengths(indptr: Any, n: int, n_receivers: int, whose: str) -> Any:
    """How many of the ``n`` indices each receiver has (n_receivers,). Raises ModelError for what
    divides them otherwise.
    """
    if len(indptr) != n_receivers + 1 or indptr[0] != 0 or indptr[-1] != n:
        ends = f" from {indptr[0]} to {indptr[-1]}" if len(indptr) else ""
        raise ModelError(
            f"{whose}: indptr must have {n_receivers + 1} entries from 0 to {n}, the number of "
            f"indices (one row per receiver); got {len(indptr)} entries{ends}"
        )
    lengths = np.diff(indptr)
    if np.any(lengths < 0):
        raise ModelError(f"{whose}: indptr must not decrease")
    return lengths


def _check(receivers: Any, sources: Any, n_sources: int, whose: str = "Sparse") -> None:
    """Raise ModelError for the first receiver with a missing source, or the same source twice."""
    outside = np.flatnonzero((sources < 0) | (sources >= n_sources))
    # Sources outside are alike here: whether they are told before the first pair depends on theirs.
    pairs = receivers * (n_sources + 2) + np.clip(sources, -1, n_sources) + 1
    if np.any(pairs[1:] <= pairs[:-1]):
        pairs.sort()
    twice = pairs[1:][pairs[1:] == pairs[:-1]] // (n_sources + 2)
    if len(outside) and (not len(twice) or receivers[outside[0]] <= twice[0]):
        receiver = receivers[outside[0]]
        row = sources[receivers == receiver]
        source = row.min() if row.min() < 0 else row.max()
        raise ModelError(
            f"{whose}: neuron {receiver} listens to source {source}, but the layer below "
            f"has neurons 0..{n_sources - 1}"
        )
    if len(twice):
        raise ModelError(f"{whose}: neuron {twice[0]} names a source twice; one synapse per pair")


def _check_pair(csr: Any) -> None:
    """Raise ModelError for what is no pair (indptr, indices)."""
    remedy = ""
    if hasattr(csr, "tocsr"):
        remedy = "; write matrix= for a scipy sparse matrix"
    elif isinstance(csr, (tuple, list)) and len(csr) == 3:
        remedy = (
            "; with values write matrix=scipy.sparse.csr_matrix((data, indices, indptr)), "
            "values=True"
        )
    elif isinstance(csr, (tuple, list)) and len(csr) == 2:
        return
    elif isinstance(csr, np.ndarray) and csr.shape[:1] == (2,):
        return
    raise ModelError(f"Sparse(csr): a pair (indptr, indices) is expected, got {shown(csr)}{remedy}")


def _fan_in(fan_in: Any, n_sources: int) -> int:
    """The number of sources of each receiver. Raises ModelError."""
    is_number = isinstance(fan_in, (int, float, np.integer, np.floating))
    if not is_number or isinstance(fan_in, bool) or fan_in % 1 != 0:
        raise ModelError(
            f"Sparse(fan_in={fan_in!r:.80}): fan_in is how many neurons below each neuron "
            f"hears, a whole number between 0 and {n_sources}"
        )
    if not 0 <= fan_in <= n_sources:
        raise ModelError(
            f"Sparse(fan_in={fan_in}): the layer below has {n_sources} neurons; "
            f"choose fan_in between 0 and {n_sources}"
        )
    return int(fan_in)


def _drawn(rng: np.random.Generator, n_sources: int, n_receivers: int, fan_in: int) -> Any:
    """Ascending sources (n_receivers, fan_in), as ``rng.choice`` without replacement draws them
    for one receiver after another. That takes some 20 us per receiver; for many receivers with few
    sources its own method, Floyd's algorithm, is applied to many receivers at once (Bentley and
    Floyd, "A sample of brilliance", CACM 30(9), 1987).
    """
    found = np.empty((n_receivers, fan_in), np.int64)
    is_floyds = n_sources <= _SHUFFLED or fan_in <= n_sources // 20
    if not is_floyds or fan_in > _FEW:
        for row in found:
            row[:] = rng.choice(n_sources, fan_in, replace=False, shuffle=False)
    else:
        last = np.arange(n_sources - fan_in, n_sources)
        for begin in range(0, n_receivers, _AT_ONCE):
            some = found[begin : begin + _AT_ONCE]
            some[:] = rng.integers(0, np.broadcast_to(last + 1, some.shape))
            for k in range(1, fan_in):  # a source drawn before is replaced by the last one
                is_there = (some[:, :k] == some[:, k, None]).any(axis=1)
                some[is_there, k] = last[k]
    found.sort(axis=1)
    return found


def _weighed(edges: Iterable[Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """The pairs of edges with weights, and the weights (n_edges,). Raises ModelError."""
    triples = list(edges)
    if isinstance(edges, Mapping):
        triples = [(*(p if isinstance(p, tuple) else (p,)), w) for p, w in edges.items()]
    for k, edge in enumerate(triples):
        is_one = isinstance(edge, Iterable) and not isinstance(edge, str)
        triples[k] = tuple(edge) if is_one else ()
        if len(triples[k]) != 3 or not isinstance(triples[k][2], (int, float, np.number)):
            raise ModelError(
                "Sparse(edge_list): with values=True an edge is (source, receiver, weight), got "
                f"{shown(edge)} as edge {k}"
            )
    pairs: list[tuple[Any, ...]] = [(source, receiver) for source, receiver, _ in triples]
    if isinstance(edges, np.ndarray) and edges.dtype.kind == "f":  # the weights made all so
        pairs = [tuple(int(k) if k % 1 == 0 else k for k in pair) for pair in pairs]
    weights = np.array([weight for *_, weight in triples], np.float64)
    odd = np.flatnonzero(~np.isfinite(weights))
    if len(odd):
        raise ModelError(
            f"Sparse(edge_list): edge {odd[0]} has weight {weights[odd[0]]}; give finite numbers"
        )
    return pairs, weights


def _pairs(edges: Iterable[Any]) -> tuple[tuple[Any, ...], ...] | Index:
    """The edges as pairs of numbers; an array (n_edges, 2) of whole numbers is copied as it is.
    Raises ModelError.
    """
    if isinstance(edges, np.ndarray) and edges.shape[1:] == (2,) and edges.dtype.kind in "iu":
        array = edges.copy()
        array.flags.writeable = False
        return array
    if isinstance(edges, Mapping):
        raise ModelError(
            "Sparse(edge_list): a dict has a value for each edge; write values=True if these are "
            "the initial weights, and edge_list=list(edges) if they are not"
        )
    # an edge may be an iterator, as of map, which is read once
    edges = tuple(tuple(edge) if isinstance(edge, Iterator) else edge for edge in edges)
    for edge in edges:
        if not isinstance(edge, Iterable) or isinstance(edge, str) or len(tuple(edge)) != 2:
            raise ModelError(f"Sparse: an edge is (source, receiver), got {edge!r}")
    pairs = tuple(map(tuple, edges))
    odd = {type(k) for pair in pairs for k in pair if not isinstance(k, (int, float, np.number))}
    if odd:
        pair = next(pair for pair in pairs if odd & {*map(type, pair)})
        raise ModelError(
            f"Sparse: an edge is (source, receiver), the numbers of two neurons; got {pair}"
        )
    return pairs


def _by_receiver(pairs: Any, n_receivers: int) -> tuple[Any, Any]:
    """The sources (n_edges,) by receiver, each receiver's in the order of the pairs, and how many
    each has (n_receivers,).
    """
    is_array = isinstance(pairs, np.ndarray)
    empty = np.empty((2, 0), np.int64)
    sources, receivers = (
        pairs.T if is_array else map(np.array, zip(*pairs, strict=True) if pairs else empty)
    )
    wrong = np.flatnonzero((receivers < 0) | (receivers >= n_receivers) | (receivers % 1 != 0))
    if len(wrong):
        source, receiver = pairs[wrong[0]]
        raise ModelError(
            f"Sparse: edge ({source}, {receiver}) names receiver {receiver}, but the layer has "
            f"neurons 0..{n_receivers - 1}; an edge is (source, receiver)"
        )
    receivers = receivers.astype(np.int64)
    order = np.argsort(receivers, kind="stable")
    lengths = np.bincount(receivers, minlength=n_receivers)
    if sources.dtype.kind not in "iu" and len(sources):
        of_numbers = (not isinstance(s, (int, np.integer)) or isinstance(s, bool) for s, _ in pairs)
        k = next((k for k, is_odd in enumerate(of_numbers) if is_odd), 0)
        source, receiver = pairs[k]
        raise ModelError(
            f"Sparse(edge_list): edge {k} is ({source}, {receiver}), but the numbers of neurons "
            "are whole numbers of an integer type, as int(source)"
        )
    return _whole(sources[order], "edge_list"), lengths


def _whole(values: Any, what: str, whose: str = "") -> Any:
    """The values as int64, or a ModelError if they are not whole numbers. whose : for it."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        where = f"{whose}: {what}" if whose else f"Sparse({what})"
        raise ModelError(f"{where}: a list of whole numbers is expected, got {values!r:.80}")
    return array.astype(np.int64)
