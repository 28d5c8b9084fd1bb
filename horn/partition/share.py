"""One task's share of each axis of a program (program.py defines the axes)."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from horn.connections import Edges
from horn.layers import Layer
from horn.network import Network
from horn.partition.cuts import cuts, is_tied
from horn.program import base, in_all_groups
from horn.topology import share

Array = np.ndarray[Any, Any]
Places = slice | Array  # int64, ascending


@dataclass(frozen=True, eq=False)
class LocalEdges:
    """A task's synapses of a sparse link, as a sparse matrix of its own.

    indptr (n_receivers + 1,), sources (n_edges,): numbers along the task's receivers and sources.
    places : the positions of these synapses among all of the link.
    """

    indptr: Array
    sources: Array
    n_sources: int
    places: Places

    @cached_property
    def receivers(self) -> Array:
        """(n_edges,) the receiver of each synapse, numbered within the task's."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


# For tasks with all neurons, once for all programs of a network: backends build index lists for
# these, which takes as long as many steps.
_WHOLE: weakref.WeakKeyDictionary[Edges, LocalEdges] = weakref.WeakKeyDictionary()


class Share:
    """One task's part of a network: ``task`` of ``n_tasks``, in a ``group`` of ``n_groups``. One
    task in one group has everything.
    """

    def __init__(
        self, network: Network, task: int = 0, n_tasks: int = 1, group: int = 0, n_groups: int = 1
    ) -> None:
        self.network, self.task, self.n_tasks = network, task, n_tasks
        self.group, self.n_groups = group, n_groups
        self._places: dict[str, Places] = {}
        self._counts: dict[str, int] = {}
        self._edges: dict[tuple[int, int, str], LocalEdges] = {}

    def range(self, n: int) -> tuple[int, int]:
        """The task's share of n things: a range, sizes differing by at most one."""
        return share(n, self.task, self.n_tasks)

    def neurons(self, layer: int) -> tuple[int, int]:
        """The task's share of a layer's neurons: a range, by their synapses (``cuts``); in a layer
        with a shape whole rows of it, or whole positions where there are fewer rows than tasks.
        """
        of = self.network.layers[layer]
        if not has_whole_positions(self.network, of):
            start, stop = cuts(self.network, layer, self.n_tasks)[self.task : self.task + 2]
            return int(start), int(stop)
        rows = of.shape[0] >= self.n_tasks
        each = of.size // (of.shape[0] if rows else of.n_positions)
        start, stop = self.range(of.size // each)
        return start * each, stop * each

    def rows(self, axis: str, n_rows: int, batch_size: int) -> slice:
        """The rows of a batch of ``n_rows`` that the task has along "b" or "b@own".

        A share of the rows begins at the same place in every batch: a short one leaves the last
        tasks fewer.
        """
        if axis == "b":
            return slice(0, n_rows)
        start, stop = self.range(batch_size)
        return slice(min(start, n_rows), min(stop, n_rows))

    def length(self, axis: str, batch_size: int) -> int:
        """The length of an axis in this share; of rows, in a full batch."""
        if base(axis) == "b":
            return count(self.rows(axis, batch_size, batch_size))
        if axis.startswith("e") and "@" in axis and axis not in self._places:
            return self._n_edges(axis)
        return count(self.places(axis))

    def _n_edges(self, axis: str) -> int:
        """The number of synapses in a share, without their list: planners ask for many."""
        if axis not in self._counts:
            layer, link = edge_link(axis)
            edges, of = self._whole_edges(layer, link), axis.partition("@")[2]
            if of in ("i", "c"):
                found = int(np.count_nonzero(self._from_own(layer, link, of == "c")))
            else:
                receivers = self.places(f"n{layer}@{'map' if of == 'm' else 'own'}")
                found = int(np.diff(np.asarray(edges.indptr))[receivers].sum())
            self._counts[axis] = found
        return self._counts[axis]

    def _from_own(self, layer: int, link: int, by_channels: bool = False) -> Array:
        """(n_edges,) whether a synapse comes from own sources, or from own channels of them."""
        indices = np.asarray(self._whole_edges(layer, link).indices)
        source = self.network.layers[layer].links[link].source
        if by_channels:
            indices = indices % source.shape[-1]
        start, stop = self.channels(source.index) if by_channels else self.neurons(source.index)
        return np.asarray((indices >= start) & (indices < stop))

    def whole(self, axis: str) -> int:
        """The length of a whole axis, rows apart."""
        if axis.startswith("n"):
            return self.network.layers[int(axis[1:])].size
        if axis.startswith("m"):
            return self.network.layers[int(axis[1:])].n_kinds
        if axis.startswith("w"):
            layer, link = edge_link(axis)
            return math.prod(self._whole_edges(layer, link).weight_shape or ())
        return self._whole_edges(*edge_link(axis)).n

    def places(self, axis: str) -> Places:
        """The places of the whole axis that a share has. Not for rows."""
        if axis not in self._places:
            self._places[axis] = self._find(axis)
        return self._places[axis]

    def _find(self, axis: str) -> Places:
        outer = in_all_groups(axis)
        if outer != axis:
            mine = self.places(outer)
            start, stop = self._of_group(count(mine), axis)
            if isinstance(mine, slice):
                return slice(mine.start + start, mine.start + stop)
            return mine[start:stop]
        whole, _, kind = axis.partition("@")
        if not kind:
            return slice(0, self.whole(whole))
        if kind == "own":
            return slice(*self.neurons(int(whole[1:])))
        if kind in ("map", "below"):
            return self._of_channels(whole, kind)
        if kind in ("o", "i", "m", "c"):
            return self.edges(*edge_link(whole), kind).places
        layer, link = edge_link(kind.removeprefix("in").removeprefix("out"))
        edges = self._whole_edges(layer, link)
        indptr, indices = np.asarray(edges.indptr), np.asarray(edges.indices)
        if kind.startswith("in"):
            start, stop = self.neurons(layer)
            heard = np.zeros(self.network.layers[layer].links[link].source.size, bool)
            heard[indices[indptr[start] : indptr[stop]]] = True
            return tight(np.flatnonzero(heard))
        before = np.concatenate([[0], np.cumsum(self._from_own(layer, link))])[indptr]
        return tight(np.flatnonzero(np.diff(before)))

    def channels(self, layer: int) -> tuple[int, int]:
        """The task's share of a layer's channels: a range."""
        return self.range(self.network.layers[layer].shape[-1])

    def _of_channels(self, whole: str, kind: str) -> Places:
        """The task's channels of all positions; or the numbers that these, or those below, have."""
        if whole.startswith("w"):
            layer, link = edge_link(whole)
            shape = self._whole_edges(layer, link).weight_shape or ()
            if kind == "below":
                number = np.arange(math.prod(shape)).reshape(-1, shape[-1])
                return tight(number[:, slice(*self.range(shape[-1]))].reshape(-1))
            each = math.prod(shape[1:])
            start, stop = self.range(shape[0])
            return slice(start * each, stop * each)
        layer = int(whole[1:])
        of = self.network.layers[layer]
        first = np.arange(0, of.size, of.shape[-1])
        return tight((first[:, None] + np.arange(*self.channels(layer))).reshape(-1))

    def edges(self, layer: int, link: int, split: str) -> LocalEdges:
        """The task's synapses of a sparse link, for frames with this split."""
        key = (layer, link, split if split in ("o", "i", "m", "c") else "")
        if key not in self._edges:
            self._edges[key] = self._local_edges(*key)
        return self._edges[key]

    def _local_edges(self, layer: int, link: int, split: str) -> LocalEdges:
        edges = self._whole_edges(layer, link)
        indptr = np.asarray(edges.indptr, np.int64)
        indices = np.asarray(edges.indices, np.int64)
        n_sources = self.network.layers[layer].links[link].source.size
        if split == "o":
            start, stop = self.neurons(layer)
            mine = slice(int(indptr[start]), int(indptr[stop]))
            halo = np.zeros(n_sources, bool)
            halo[indices[mine]] = True
            local = (np.cumsum(halo) - 1)[indices[mine]]
            n_heard = int(np.count_nonzero(halo))
            return LocalEdges(indptr[start : stop + 1] - indptr[start], local, n_heard, mine)
        if split == "m":
            source = self.network.layers[layer].links[link].source.index
            heard = f"n{source}" if edges.is_shared else f"n{source}@map"
            of_map, senders = (_numbers(self.places(axis)) for axis in (f"n{layer}@map", heard))
            counts = np.diff(indptr)
            is_mine = np.zeros(len(counts), bool)
            is_mine[of_map] = True
            here = np.flatnonzero(np.repeat(is_mine, counts))
            ends = np.concatenate([[0], np.cumsum(counts[of_map])]).astype(np.int64)
            local = np.searchsorted(senders, indices[here])
            return LocalEdges(ends, local, len(senders), tight(here))
        if split == "c":
            here = np.flatnonzero(self._from_own(layer, link, by_channels=True))
            before = np.zeros(len(indices) + 1, np.int64)
            before[here + 1] = 1
            below = self.network.layers[layer].links[link].source.index
            senders = _numbers(self.places(f"n{below}@map"))
            local = np.searchsorted(senders, indices[here])
            return LocalEdges(np.cumsum(before)[indptr], local, len(senders), tight(here))
        if split == "i":
            start, stop = self.neurons(self.network.layers[layer].links[link].source.index)
            here = np.flatnonzero((indices >= start) & (indices < stop))
            receivers = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))[here]
            reached = np.unique(receivers)
            counts = np.bincount(np.searchsorted(reached, receivers), minlength=len(reached))
            ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            return LocalEdges(ends, indices[here] - start, stop - start, here)
        if edges not in _WHOLE:
            _WHOLE[edges] = LocalEdges(indptr, indices, n_sources, slice(0, len(indices)))
        return _WHOLE[edges]

    def _whole_edges(self, layer: int, link: int) -> Edges:
        edges = self.network.layers[layer].links[link].edges
        assert edges is not None, f"link {link} of layer {layer} is dense"
        return edges

    def numbers(self, axis: str) -> Array:
        """The shared number of each synapse, or neuron, along an axis."""
        places = self.places(axis)
        if axis.startswith("n"):
            kinds = self.network.layers[int(base(axis)[1:])].n_kinds
            mine = np.arange(places.start, places.stop) if isinstance(places, slice) else places
            return np.asarray(mine % kinds, np.int64)
        shared = self._whole_edges(*edge_link(axis)).weight
        assert shared is not None, axis
        return np.asarray(shared[places], np.int64)

    def within(self, axis: str, outer: str, batch_size: int) -> Places:
        """The places of an axis within an outer one: in the whole, in the task's part of all
        groups, or in a range around it.
        """
        if axis == outer:
            return slice(0, self.length(axis, batch_size))
        if base(axis) == "b":
            return self.rows(axis, batch_size, batch_size)
        places = self.places(axis)
        if outer == base(axis):
            return places
        if outer != in_all_groups(axis):
            around = self.places(outer)
            assert isinstance(places, slice) and isinstance(around, slice), (axis, outer)
            return slice(places.start - around.start, places.stop - around.start)
        return slice(*self._of_group(self.length(outer, batch_size), axis))

    def _of_group(self, n: int, axis: str) -> tuple[int, int]:
        """The range of n places that an axis names: this group's, or a later group's."""
        group = (self.group + int(axis.partition("+")[2] or 0)) % self.n_groups
        return share(n, group, self.n_groups)

    def part(self, array: Array, axes: tuple[str, ...]) -> Array:
        """This task's part of a whole array without rows: a view where its places are ranges."""
        for position, axis in enumerate(axes):
            if "@" in axis:
                array = array[(slice(None),) * position + (self.places(axis),)]
        return array


def has_whole_positions(network: Network, layer: Layer) -> bool:
    """Whether tasks divide a layer by its positions, channels together: if it has a shape. Not at
    the ends of dense ties, where the shares of two layers are equal, whatever their shapes.
    """
    return bool(layer.extents) and not is_tied(network, layer, dense_only=True)


def tight(places: Array) -> Places:
    """Convert ascending places to a slice where they are a range."""
    if not len(places):
        return slice(0, 0)
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places.astype(np.int64)


def _numbers(places: Places) -> Array:
    return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def edge_link(name: str) -> tuple[int, int]:
    """The layer and link in a name as "e4.0" or "4.0"."""
    layer, link = base(name).lstrip("ew").split(".")
    return int(layer), int(link)


def count(places: Places) -> int:
    """The number of places."""
    return places.stop - places.start if isinstance(places, slice) else len(places)
