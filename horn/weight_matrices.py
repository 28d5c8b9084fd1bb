"""Arrays of weights as scipy's sparse matrices (receivers, sources), and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from horn.connections import Edges
from horn.data.arrays import is_sparse
from horn.errors import ModelError
from horn.layers import Layer, Link
from horn.network import Network

Array = np.ndarray[Any, Any]


def as_matrix(network: Network, parameters: Mapping[str, Array], name: str) -> Any:
    """A scipy.sparse.csr_array with an entry for each synapse whose weight is in the array of this
    name; where several links share it, those of the first. Raises ModelError.
    """
    known = _links(network)
    if name not in known:
        names = ", ".join(sorted(known))
        raise ModelError(f"matrix: no weights {name!r:.80}; there are {names or 'none'}")
    try:
        from scipy.sparse import csr_array  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ModelError("matrix gives a scipy.sparse.csr_array: pip install scipy") from None
    link, layer = known[name]
    edges, array = _edges(link, layer), np.ravel(parameters[name])
    own = array if edges.weight is None else array[edges.weight]
    found = csr_array(
        (own.copy(), edges.indices.copy(), edges.indptr.copy()),
        shape=(layer.size, link.source.size),
    )
    found.sort_indices()
    return found


def of_matrices(network: Network, arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arrays, those that are sparse matrices as arrays of weights of the network. Raises
    ModelError for numbers where there is no synapse, and for weights that synapses share.
    """
    return {
        name: _weights(network, given, f"{where}{name}", name) if is_sparse(given) else given
        for name, given in arrays.items()
    }


def _links(network: Network) -> dict[str, tuple[Link, Layer]]:
    """The first link that has each array of weights, and its layer."""
    return {
        array: (link, layer)
        for layer in reversed(network.layers)
        for link in reversed(layer.links)
        for array in link.weights.values()
    }


def _edges(link: Link, layer: Layer) -> Edges:
    """The synapses of a link, also of one where each neuron hears all."""
    if link.edges is not None:
        return link.edges
    n = link.source.size
    return Edges(n * np.arange(layer.size + 1), np.tile(np.arange(n), layer.size))


def _weights(network: Network, matrix: Any, where: str, name: str) -> Array:
    known = _links(network)
    if name not in known:
        raise ModelError(f"{where} is a sparse matrix, but no array of weights; pass an array")
    link, layer = known[name]
    shape = (layer.size, link.source.size)
    if link.is_shared:
        raise ModelError(
            f"{where} is a sparse matrix, but synapses share the weights of {layer.name}; pass an "
            f"array of shape {link.shape(layer.size)}"
        )
    if matrix.shape != shape:
        turned = "; pass its transpose, it.T" if matrix.shape == shape[::-1] else ""
        raise ModelError(
            f"{where} is a sparse matrix of shape {matrix.shape}; {shape[0]} neurons of "
            f"{layer.name} hear {shape[1]} of {link.source.name}{turned}"
        )
    edges, found = _edges(link, layer), matrix.tocsr()
    receivers = np.repeat(np.arange(layer.size), np.diff(edges.indptr))
    own = np.asarray(found[receivers, edges.indices]).ravel()
    if (n := found.count_nonzero() - np.count_nonzero(own)) > 0:
        raise ModelError(
            f"{where} has {n:,} numbers other than 0 where {layer.name} has no synapse; they must "
            "be at the places of model.matrix(name)"
        )
    return own.reshape(link.shape(layer.size))
