"""Each neuron listens to some neurons below: drawn at random, given as a graph, or computed from
its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.connections import Edges
from horn.errors import ModelError


@dataclass(frozen=True, eq=False)
class Sparse:
    """Exactly one of four descriptions.

    fan_in : each receiver listens to this many sources, drawn without replacement from the
    network's seed.
    csr : (indptr, indices), shapes (n_receivers + 1,) and (n_edges,), by receiver.
    edge_list : pairs (source, receiver), in any order.
    sources : a function from a receiver's index to the indices of its sources.

    Raises ModelError for an index outside a layer, or a source named twice for one receiver.
    """

    fan_in: int | None = None
    csr: tuple[Any, Any] | None = None
    edge_list: Iterable[tuple[int, int]] | None = None
    sources: Callable[[int], Sequence[int]] | None = None

    def __post_init__(self) -> None:
        names = ("fan_in", "csr", "edge_list", "sources")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ModelError(
                "Sparse takes exactly one of fan_in, csr, edge_list, sources; got "
                f"{', '.join(given) or 'none'}"
            )
        if self.edge_list is not None:
            pairs = tuple(map(tuple, self.edge_list))
            for pair in pairs:
                if len(pair) != 2:
                    raise ModelError(f"Sparse: an edge is (source, receiver), got {pair!r}")
            object.__setattr__(self, "edge_list", pairs)

    def edges(self, n_sources: int, n_receivers: int, rng: np.random.Generator) -> Edges:
        if self.fan_in is not None:
            if self.fan_in != int(self.fan_in) or not 0 <= self.fan_in <= n_sources:
                raise ModelError(
                    f"Sparse(fan_in={self.fan_in}): the layer below has {n_sources} neurons; "
                    f"choose fan_in between 0 and {n_sources}"
                )
            rows = [
                np.sort(rng.choice(n_sources, int(self.fan_in), replace=False, shuffle=False))
                for _ in range(n_receivers)
            ]
        elif self.sources is not None:
            rows = [_whole(list(self.sources(o)), f"sources({o})") for o in range(n_receivers)]
        elif self.edge_list is not None:
            rows = _by_receiver(self.edge_list, n_receivers)
        else:
            assert self.csr is not None
            indptr = _whole(self.csr[0], "csr: indptr")
            indices = _whole(self.csr[1], "csr: indices")
            if len(indptr) != n_receivers + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
                raise ModelError(
                    f"Sparse(csr): indptr must have {n_receivers + 1} entries from 0 to "
                    f"{len(indices)} (one row per receiver); got {len(indptr)} entries"
                )
            if np.any(np.diff(indptr) < 0):
                raise ModelError("Sparse(csr): indptr must not decrease")
            rows = np.split(indices, indptr[1:-1])
        for receiver, row in enumerate(rows):
            if len(row) and (row.min() < 0 or row.max() >= n_sources):
                outside = int(row.min() if row.min() < 0 else row.max())
                raise ModelError(
                    f"Sparse: neuron {receiver} listens to source {outside}, but the layer below "
                    f"has neurons 0..{n_sources - 1}"
                )
            if len(np.unique(row)) != len(row):
                raise ModelError(
                    f"Sparse: neuron {receiver} names a source twice; one synapse per pair"
                )
        lengths = [len(row) for row in rows]
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        indices = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
        return Edges(indptr, indices)


def _by_receiver(pairs: Iterable[tuple[int, int]], n_receivers: int) -> list[Any]:
    rows: list[list[int]] = [[] for _ in range(n_receivers)]
    for source, receiver in pairs:
        if not 0 <= receiver < n_receivers or receiver != int(receiver):
            raise ModelError(
                f"Sparse: edge ({source}, {receiver}) names receiver {receiver}, but the layer has "
                f"neurons 0..{n_receivers - 1}; an edge is (source, receiver)"
            )
        rows[int(receiver)].append(source)
    return [_whole(row, "edge_list") for row in rows]


def _whole(values: Any, what: str) -> Any:
    """The values as int64, or a ModelError if they are not whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ModelError(f"Sparse({what}): a list of whole numbers is expected, got {values!r}")
    return array.astype(np.int64)


CONNECTION = Sparse
