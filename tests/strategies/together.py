"""Groups, tasks and servers as threads of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from horn.job import Job
from horn.parameter_server.pieces import cut_parameters
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.serving import mesh_of, serve
from horn.partition.placement import Placement
from horn.patience import Patience
from horn.runtime.context import TaskContext
from horn.runtime.group import Group
from horn.strategies import Strategy, Topology
from horn.strategies._replica import Replica
from horn.transport import Identity, Transport, open_transport
from tests.transport.groups import url_of

TIMEOUT_S = 60.0


def together(
    strategy: Strategy,
    job: Job,
    placement: Placement,
    topology: Topology,
    body: Callable[[Replica], Any],
    *,
    scheme: str = "inproc",
    backend: str = "kernels",
) -> list[Any]:
    """``body(replica)`` in a thread per rank, servers beside them; what each returned or raised: of
    a server, the server.
    """
    job = strategy.prepared(job, topology)
    n_each = topology.n_workers if strategy.is_joined else topology.n_tasks

    def made(rank: int, n: int, name: str) -> Transport:
        return open_transport(url_of(scheme), Identity(rank, n, name, 3))

    steps = [
        made(rank % n_each, n_each, f"steps-{rank // n_each}") for rank in range(topology.n_workers)
    ]
    wires = [made(rank, topology.n_ranks, "wire") for rank in range(topology.n_ranks)]
    if not strategy.has_messages:
        for wire in wires:
            wire.close()
        wires = []
    ends = [wire.endpoint for wire in wires]
    results: list[Any] = [None] * topology.n_ranks
    failures: list[Exception] = []  # the first one first

    def worker(rank: int) -> Any:
        first = rank // n_each * n_each
        with steps[rank] as step:
            step.connect([t.endpoint for t in steps[first : first + n_each]], TIMEOUT_S)
            wire = None
            if wires:
                wire = wires[rank]
                wire.connect(ends, TIMEOUT_S)
            group = Group(step, timeout_s=TIMEOUT_S)
            context = TaskContext(
                job, topology, rank, placement, group, wire, backend, 1, timeout_s=TIMEOUT_S
            )
            try:
                replica = strategy.engine(context) or Replica(strategy, context)
                replica.bind(job.data)
                return body(replica)
            finally:
                if wire is not None:
                    wire.close()

    def served(rank: int) -> ParameterServer:
        with wires[rank] as wire:
            wire.connect(ends, TIMEOUT_S)
            cut = cut_parameters(job.network, placement, topology, job.dtype)
            server = strategy.server(job, rank - topology.n_workers, cut, topology)
            serve(server, mesh_of(server, wire, TIMEOUT_S, TIMEOUT_S), TIMEOUT_S)
            return server

    def run(rank: int) -> None:
        try:
            results[rank] = worker(rank) if rank < topology.n_workers else served(rank)
        except Exception as error:  # handed to the test
            results[rank] = error
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(rank,), name=topology.name(rank))
        for rank in range(topology.n_ranks)
    ]
    for thread in threads:
        thread.start()
    patience = Patience(TIMEOUT_S + 30)
    for thread in threads:
        thread.join(patience.left_s())
    hanging = [thread.name for thread in threads if thread.is_alive()]
    assert not hanging, f"{hanging} hang; of the others: {failures}"
    return results
