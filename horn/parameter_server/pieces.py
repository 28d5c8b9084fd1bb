"""The pieces of parameters and their servers: a list that every process computes alike.

A piece is a range of one array of a task's share, seen flat. All groups have the same placement, so
a piece of group 0's task is one of every other group's.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from horn.backends import Array
from horn.network import Network
from horn.partition.placement import Placement
from horn.partition.rewrite import homes
from horn.partition.share import Share
from horn.topology import Topology
from horn.topology import share as share_of
from horn.transport import Channel

PIECE_BYTES = 4 * 1024 * 1024
PIECES_PER_SERVER = 4  # at least so many, to balance servers
MESSAGE_PIECES = 64


@dataclass(frozen=True)
class ParameterPiece:
    """Numbers ``start`` to ``stop`` of array ``name`` as its holders have it, flat.

    owner : the task of a group that pushes it. holders : all tasks that have it. decays : whether
    weight decay is for it.
    """

    index: int
    name: str
    start: int
    stop: int
    owner: int
    holders: tuple[int, ...]
    server: int
    decays: bool

    def __len__(self) -> int:
        return self.stop - self.start


def cut_parameters(
    network: Network, placement: Placement, topology: Topology, dtype: str
) -> tuple[ParameterPiece, ...]:
    """Cut parameters into pieces, in the order of the network's layers, balanced among servers."""
    learned = {name for layer in network.layers[1:] for name in layer.shapes} - network.frozen
    links = {a for x in network.layers[1:] for link in x.links for a in link.weights.values()}
    shares = [Share(network, task, topology.n_tasks) for task in range(topology.n_tasks)]
    found: list[tuple[str, int, int, tuple[int, ...]]] = []  # name, length, owner, holders
    n_shared = 0
    for name, axes in homes(network, placement).items():
        if name not in learned:
            continue
        lengths = [math.prod(share.length(axis, 0) for axis in axes) for share in shares]
        if any("@" in axis for axis in axes):
            found.extend((name, n, task, (task,)) for task, n in enumerate(lengths) if n)
        else:
            found.append((name, lengths[0], n_shared % topology.n_tasks, tuple(range(len(shares)))))
            n_shared += 1
    total = sum(length for _, length, _, _ in found)
    per_server = -(-total // (max(topology.n_servers, 1) * PIECES_PER_SERVER))
    most = max(min(PIECE_BYTES // np.dtype(dtype).itemsize, per_server), 1)
    cut: list[ParameterPiece] = []
    for name, length, owner, holders in found:
        n = -(-length // most)
        for k in range(n):
            span = share_of(length, k, n)
            cut.append(ParameterPiece(len(cut), name, *span, owner, holders, 0, name in links))
    return _dealt(cut, max(topology.n_servers, 1))


def _dealt(cut: list[ParameterPiece], n_servers: int) -> tuple[ParameterPiece, ...]:
    """Give pieces to servers, the largest first, each to the server that has least."""
    load = [(0, server) for server in range(n_servers)]
    servers = {}
    for piece in sorted(cut, key=len, reverse=True):
        has, server = heapq.heappop(load)
        servers[piece.index] = server
        heapq.heappush(load, (has + len(piece), server))
    return tuple(replace(piece, server=servers[piece.index]) for piece in cut)


@dataclass(frozen=True)
class ParameterBundle:
    """Pieces in one block between a task's rank and a server's. part : its channel."""

    part: int
    rank: int
    server: int
    pieces: tuple[ParameterPiece, ...]
    is_push: bool

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(piece.name for piece in self.pieces)

    def cut(self, block: Array) -> list[Array]:
        ends = np.cumsum([0, *map(len, self.pieces)])
        return [block[start:stop] for start, stop in itertools.pairwise(ends)]


def bundles(
    pieces: Sequence[ParameterPiece],
    topology: Topology,
    itemsize: int,
    *,
    ranks: Iterable[int] | None = None,
    server: int | None = None,
) -> tuple[ParameterBundle, ...]:
    """Make the pushes (of owned parameters) and pulls (of held ones) of all tasks; or only those of
    the tasks with these ranks, of one server, which have the same parts.
    """
    of_task = _of_first_group(pieces, topology, itemsize)
    n_parts = sum(map(len, of_task))
    found: list[ParameterBundle] = []
    for rank in range(topology.n_workers) if ranks is None else ranks:
        group, task = divmod(rank, topology.n_tasks)
        found += [
            ParameterBundle(group * n_parts + b.part, rank, b.server, b.pieces, b.is_push)
            for b in of_task[task]
            if server in (None, b.server)
        ]
    return tuple(found)


def _of_first_group(
    pieces: Sequence[ParameterPiece], topology: Topology, itemsize: int
) -> list[list[ParameterBundle]]:
    """The bundles of each task of group 0, of whose pieces every group has its own bundles."""
    # by task and server: the pieces to push, and those to pull
    mine: list[list[tuple[list[ParameterPiece], list[ParameterPiece]]]] = [
        [([], []) for _ in range(topology.n_servers)] for _ in range(topology.n_tasks)
    ]
    for piece in pieces:
        mine[piece.owner][piece.server][0].append(piece)
        for task in piece.holders:
            mine[task][piece.server][1].append(piece)
    part = itertools.count()
    return [
        [
            ParameterBundle(next(part), task, server, some, is_push)
            for server, both in enumerate(of_servers)
            for is_push, those in zip((True, False), both, strict=True)
            for _, layer in itertools.groupby(those, lambda p: p.name.partition(".")[0])
            for some in messages(list(layer), itemsize)
        ]
        for task, of_servers in enumerate(mine)
    ]


def channels(found: Sequence[ParameterBundle], topology: Topology, dtype: str) -> list[Channel]:
    name = np.dtype(dtype).str
    made = []
    for bundle in found:
        ends = bundle.rank, topology.server(bundle.server)
        src, dst = ends if bundle.is_push else ends[::-1]
        made.append(Channel(bundle.part, src, (dst,), name, (len(bundle),), "parameters"))
    return made


def messages(pieces: Sequence[ParameterPiece], itemsize: int) -> list[tuple[ParameterPiece, ...]]:
    """Put pieces one after the other into messages, until each is full."""
    found: list[list[ParameterPiece]] = []
    room = 0
    for piece in pieces:
        n_bytes = len(piece) * itemsize
        if not found or n_bytes > room or len(found[-1]) == MESSAGE_PIECES:
            found.append([])
            room = PIECE_BYTES
        found[-1].append(piece)
        room -= n_bytes
    return [tuple(some) for some in found]
