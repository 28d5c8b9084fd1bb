"""What the processes of test_servers do: tasks that push ones, and servers, without a network.

Each is started with the arguments ROLE and one line of JSON, and says what happens in lines of
JSON on its standard output. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np

from horn.errors import ClusterError
from horn.optimizers import SGD
from horn.parameter_server.client import ParameterClient
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.task_links import TaskLinks
from horn.parameter_server.updates import Policy
from horn.process.job_spec import RunSpec
from horn.process.rendezvous import Rendezvous
from horn.process.server_discovery import ServerDiscovery, served
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Push, Topology
from tests.strategies.bodies import N_NUMBERS, dealt

WAIT_S = 60.0


def say(**what: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)


def wait_for(path: str) -> None:
    """Until the file is there, for who must not be through before something has happened."""
    ends = time.monotonic() + WAIT_S
    while not os.path.exists(path):
        if time.monotonic() > ends:
            raise TimeoutError(path)
        time.sleep(0.01)  # between two looks


def met(given: Any, stack: ExitStack) -> tuple[Rendezvous, Topology]:
    """The rank in ZooKeeper."""
    topology = Topology(*given.topology)
    run = RunSpec(
        n_tasks=topology.n_tasks, n_groups=topology.n_groups, n_servers=topology.n_servers,
        n_first=given.n_first, hosts=given.hosts, job=given.job, url=given.url,
        attempt=given.attempt, journals=given.journals, start_timeout_s=WAIT_S,
        superstep_timeout_s=WAIT_S, backend="", threads=1, barrier="", begun=0.0, interval_s=0.0,
        max_trace_events=0,
    )  # fmt: skip
    strategy = SimpleNamespace(is_joined=False, has_messages=True)
    opened: Any = SimpleNamespace(run=run, strategy=strategy)
    return Rendezvous(given.rank, opened, topology, stack), topology


def server(given: Any, stack: ExitStack) -> None:
    """Serve until it is done."""
    meeting, topology = met(given, stack)
    number = given.rank - topology.n_workers
    policy = Policy(given.max_staleness)
    made = ParameterServer(number, dealt(topology), SGD(1.0), topology, policy, "float64")
    spent = served(meeting, made, WAIT_S, lambda: say(ready=made.n_changes))
    say(
        spent=spent,
        n_pushes=made.n_pushes,
        w={index: kept.w.tolist() for index, kept in made.kept.items()},
    )


def task(given: Any, stack: ExitStack) -> None:
    """Push ones: the optimizer takes them away, so minus ones."""
    meeting, topology = met(given, stack)
    discovery = ServerDiscovery(meeting)
    stack.callback(discovery.close)
    spent = TaskTimes()
    links = TaskLinks(discovery.identity(), topology.n_servers, discovery.find)
    wire = ParameterClient(links, topology, given.rank, dealt(topology), "float64",
                           given.timeout_s, spent, discovery.check)  # fmt: skip
    stack.callback(wire.close)
    arrays = {"w": np.zeros(N_NUMBERS)}
    ones = {"w": -np.ones(N_NUMBERS)}
    begin, _ = wire.join(WAIT_S)
    if wire.group == 0:
        wire.begin(arrays)
    say(clock=begin)
    for clock in range(begin, given.n_pushes):
        if clock % given.pull_every == 0:
            wire.pull(Pull(clock), arrays)
            wire.take_all()
        if hold := given.holds.get(str(clock)):
            wait_for(hold)
        if clock % given.say_every == 0:
            say(clock=clock)
        wire.push(Push(clock, 1, ones))
        wire.give_all()
    wire.leave()
    if wire.group == 0:
        wire.pull(Pull(given.n_pushes, final=True), arrays)
        wire.take_all()
        wire.thank()
    say(done=True, w=arrays["w"].tolist(), spent=dataclasses.asdict(spent))


def main() -> int:
    role, given = sys.argv[1], SimpleNamespace(**json.loads(sys.argv[2]))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != given.parent:
        return 1
    try:
        with ExitStack() as stack:
            {"server": server, "task": task}[role](given, stack)
    except ClusterError as error:
        say(error=type(error).__name__, text=str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
