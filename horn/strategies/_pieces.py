"""How parameters are cut into pieces and dealt to servers: everybody computes the same list.

A piece is a range of one array of a task's share, seen flat. All groups have the same placement, so
a piece of group 0's task is one of every other group's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from horn.compiler.partition import homes
from horn.compiler.placement import Placement
from horn.compiler.share import Share
from horn.network import Network
from horn.strategies import Topology

PIECE_BYTES = 4 * 1024 * 1024
PIECES_PER_SERVER = 4  # at least so many, if there are numbers enough: to balance them
MESSAGE_PIECES = 64


@dataclass(frozen=True)
class Piece:
    """Numbers ``start`` to ``stop`` of array ``name`` as its holders have it, flat.

    owner : the task of a group that pushes it. holders : all tasks that have it. server : who keeps
    it. decays : whether weight decay is for it.
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


def pieces(
    network: Network, placement: Placement, topology: Topology, dtype: str
) -> tuple[Piece, ...]:
    """All pieces, in the order of the network's layers, balanced among the servers."""
    learned = set(network.initial_parameters(np.dtype(dtype))) if network.layers else set()
    links = {link.weight for layer in network.layers[1:] for link in layer.links}
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
    cut: list[Piece] = []
    for name, length, owner, holders in found:
        n = -(-length // most)
        for k in range(n):
            span = (length * k // n, length * (k + 1) // n)
            cut.append(Piece(len(cut), name, *span, owner, holders, 0, name in links))
    return _dealt(cut, max(topology.n_servers, 1))


def _dealt(cut: list[Piece], n_servers: int) -> tuple[Piece, ...]:
    """The largest first, each to the server that has least."""
    load = [(0, server) for server in range(n_servers)]
    servers = {}
    for piece in sorted(cut, key=len, reverse=True):
        has, server = heapq.heappop(load)
        servers[piece.index] = server
        heapq.heappush(load, (has + len(piece), server))
    return tuple(replace(piece, server=servers[piece.index]) for piece in cut)


def messages(pieces: Sequence[Piece], itemsize: int) -> list[tuple[Piece, ...]]:
    """Pieces side by side until a message is full."""
    found: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        n_bytes = len(piece) * itemsize
        if not found or n_bytes > room or len(found[-1]) == MESSAGE_PIECES:
            found.append([])
            room = PIECE_BYTES
        found[-1].append(piece)
        room -= n_bytes
    return [tuple(some) for some in found]
