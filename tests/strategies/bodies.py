"""What the spawned processes of test_sums do. Imports little, since each of them pays for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.optimizers import SGD
from horn.parameter_server.client import ParameterClient
from horn.parameter_server.mesh import Mesh
from horn.parameter_server.pieces import ParameterPiece
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.serving import mesh_of, serve
from horn.parameter_server.updates import Policy
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Push, Topology
from horn.transport import Transport

N_NUMBERS, N_PIECES = 60, 6
WAIT_S = 600.0


def dealt(topology: Topology) -> tuple[ParameterPiece, ...]:
    """One array in pieces, each of a task in turn, at a server in turn."""
    at = [N_NUMBERS * k // N_PIECES for k in range(N_PIECES + 1)]
    everybody = tuple(range(topology.n_tasks))
    return tuple(
        ParameterPiece(
            k, "w", at[k], at[k + 1], k % topology.n_tasks, everybody, k % topology.n_servers, True
        )
        for k in range(N_PIECES)
    )


def sums(
    transport: Transport, _pipe: Any, topology: Topology, n_pushes: int, pull_every: int
) -> Any:
    """A group: push ones so many times; group 0 returns what is left in the end. A server: serve;
    returns how many messages with gradients came, and the histogram.
    """
    pieces = dealt(topology)
    if transport.task >= topology.n_workers:
        number = transport.task - topology.n_workers
        server = ParameterServer(number, pieces, SGD(1.0), topology, Policy(), "float64")
        serve(server, mesh_of(server, transport, WAIT_S), WAIT_S)
        return server.n_pushes, dict(server.staleness)
    mesh = Mesh(transport, topology, pieces, "float64", WAIT_S)
    client = ParameterClient(mesh, topology, transport.task, pieces, "float64", WAIT_S, TaskTimes())
    arrays = {"w": np.zeros(N_NUMBERS)}
    ones = {"w": -np.ones(N_NUMBERS)}  # the optimizer takes them away
    if client.group == 0:
        client.begin(arrays)
    for clock in range(n_pushes):
        if clock % pull_every == 0:
            client.pull(Pull(clock), arrays)
            client.take_all()
            assert clock <= arrays["w"].min() <= arrays["w"].max() <= n_pushes * topology.n_groups
        client.push(Push(clock, 1, ones))
        client.give_all()
    client.leave()
    if client.group == 0:
        client.pull(Pull(n_pushes, final=True), arrays)
        client.take_all()
        client.thank()
    return arrays["w"]
