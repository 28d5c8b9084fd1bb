"""What the spawned processes of test_sums do. Imports little, since each of them pays for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.optimizers import SGD
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Push, Topology
from horn.strategies.parameter_server.client import Wire
from horn.strategies.parameter_server.pieces import Piece
from horn.strategies.parameter_server.server import Policy, Server
from horn.strategies.parameter_server.serving import serve
from horn.transport import Transport

N_NUMBERS, N_PIECES = 60, 6
WAIT_S = 600.0


def dealt(topology: Topology) -> tuple[Piece, ...]:
    """One array in pieces, each of a task in turn, at a server in turn."""
    at = [N_NUMBERS * k // N_PIECES for k in range(N_PIECES + 1)]
    everybody = tuple(range(topology.n_tasks))
    return tuple(
        Piece(k, "w", at[k], at[k + 1], k % topology.n_tasks, everybody, k % topology.n_servers,
              True)
        for k in range(N_PIECES)
    )  # fmt: skip


def sums(
    transport: Transport, _pipe: Any, topology: Topology, n_pushes: int, pull_every: int
) -> Any:
    """A group: push ones so many times; group 0 returns what is left in the end. A server: serve;
    returns how many messages with gradients came, and the histogram.
    """
    pieces = dealt(topology)
    if transport.task >= topology.n_workers:
        number = transport.task - topology.n_workers
        server = Server(number, pieces, SGD(1.0), topology, Policy(), "float64")
        serve(server, transport, WAIT_S)
        return server.n_pushes, dict(server.staleness)
    wire = Wire(transport, topology, pieces, "float64", WAIT_S, TaskTimes())
    arrays = {"w": np.zeros(N_NUMBERS)}
    ones = {"w": -np.ones(N_NUMBERS)}  # the optimizer takes them away
    if wire.group == 0:
        wire.begin(arrays)
    for clock in range(n_pushes):
        if clock % pull_every == 0:
            wire.pull(Pull(clock), arrays)
            wire.take_all()
            assert clock <= arrays["w"].min() <= arrays["w"].max() <= n_pushes * topology.n_groups
        wire.push(Push(clock, 1, ones))
        wire.give_all()
    wire.leave()
    if wire.group == 0:
        wire.pull(Pull(n_pushes, final=True), arrays)
        wire.take_all()
        wire.thank()
    return arrays["w"]
