"""Faults of every role of a cluster, at the times of a Poisson process, all chosen by a seed.

``plan`` says what is to happen when, so that a run that failed can be had again; ``Chaos`` does it
and writes down what it met. A fault ends by itself: what was killed is started again, what was
stopped goes on, what was cut is joined. Faults may overlap.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horn.coordination.session import Session
from horn.errors import ClusterError, NotFound
from tests.apache import ApacheEnsemble, free_ports
from tests.faults.cluster import SESSION_S, Cluster
from tests.faults.witness import pids_on, role_of
from tests.hosts import Host, Network
from tests.support.election import leader_of

KINDS = (
    "kill task", "kill job runner", "kill agent", "kill the master's agent", "stop task",
    "cut host from zookeeper", "cut host", "kill zookeeper", "stop zookeeper", "kill client",
)  # fmt: skip
Undo = Callable[[], None]
DOWN_S = 3.0  # at most, from a kill to the next start
AWAY_S = 2 * SESSION_S  # at most, of a stop or a cut


@dataclass(frozen=True)
class Fault:
    """``at_s`` from the beginning. ``which`` and ``long`` are shares of what there is to choose
    from and of the longest time; ``is_one_way`` is of cuts.
    """

    at_s: float
    kind: str
    which: float
    long: float
    is_one_way: bool


def plan(seconds: float, mean_s: float, seed: int) -> list[Fault]:
    """Kinds come as from a shuffled deck: each as often as the others, in no order."""
    draw, faults, at_s = random.Random(seed), [], 0.0
    deck: list[str] = []
    while (at_s := at_s + draw.expovariate(1 / mean_s)) < seconds:
        deck = deck or draw.sample(KINDS, len(KINDS))
        faults.append(
            Fault(at_s, deck.pop(), draw.random(), draw.random(), draw.random() < 0.5)
        )  # fmt: skip
    return faults


class OwnServer:
    """An embedded ZooKeeper in a process of its own, as ``horn zk`` starts it, which keeps its data
    in files.
    """

    def __init__(self, host: Host, folder: str, key_file: str) -> None:
        self.host, self.folder, self.key_file = host, folder, key_file
        self.process: subprocess.Popen[bytes] | None = None
        [self.port] = free_ports(1, host)

    def restart(self, index: int = 0) -> None:
        self.process = self.host.start(
            sys.executable, "-m", "horn", "zk", "--key", self.key_file, "--bind", self.host.address,
            "--port", str(self.port), "--data-dir", self.folder, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None and self.process.stdout.readline()

    def pid(self, index: int) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self, index: int = 0) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()


class Vulnerable(Cluster):
    """A cluster whose ZooKeeper can be killed: an ensemble on ``zk_hosts``, or, on a single one, an
    embedded server that keeps files. Temporary files of its processes are in a folder of their own.
    """

    def __init__(self, net: Network, n_workers: int, folder: Any, **more: Any) -> None:
        super().__init__(net, net.hosts[:n_workers], folder, **more)
        self.zk_hosts = net.hosts[n_workers:]
        (folder / "tmp").mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"TMPDIR": str(self.folder / "tmp")}

    @property
    def n_servers(self) -> int:
        return len(self.zk_hosts)

    def _zookeeper(self, stack: contextlib.ExitStack) -> str:
        self.zk_host = self.zk_hosts[0]
        if self.n_servers > 1:
            self.servers: Any = stack.enter_context(ApacheEnsemble(on=self.zk_hosts, tls=self.tls))
            return str(self.servers.hosts)
        self.servers = OwnServer(self.zk_host, str(self.folder / "zk"), str(self.key_file))
        self.servers.restart()
        stack.callback(self.servers.kill)
        return f"{self.zk_host.address}:{self.servers.port}"


class Asker:
    """A test's own view of a job, kept up to date by a thread, since ZooKeeper may not answer."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cluster, self.job = cluster, job
        self.is_over = threading.Event()
        self.iteration, self.master = 0, ""  # as heard last
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asker")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(ClusterError), self.cluster.session(timeout_s=5.0) as coord:
                while not self._stop.wait(0.2):
                    self._look(coord)

    def _look(self, coord: Session) -> None:
        node = coord.get(coord.paths.progress(self.job))
        if node is not None and node.data:
            self.iteration = json.loads(node.data).get("iteration", 0)
        with contextlib.suppress(NotFound):
            self.master = leader_of(coord, coord.paths.leader(self.job)).decode()
        if self.cluster.ended(coord, self.job):
            self.is_over.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


class Chaos:
    """Does what is planned to a cluster with one job.

    client : the ``horn submit`` that waits for it. ``done`` : what was done when, to whom.
    """

    def __init__(self, cluster: Vulnerable, asker: Asker, client: subprocess.Popen[Any]) -> None:
        self.cluster, self.asker, self.client = cluster, asker, client
        self.done: list[str] = []
        self.n_answers = 0  # of horn status, asked by somebody new while the client was dead
        self._cuts: dict[int, Undo] = {}
        self._down: set[int] = set()  # servers
        self._n_away = 0  # faults that ZooKeeper may not be reached for
        self._back_at = 0.0  # when the last of them ended

    def go_on(self, faults: list[Fault]) -> None:
        """Until all is done and undone, or the job is over; then what has begun is undone."""
        self._began = time.monotonic()
        due: list[tuple[float, int, Fault | Undo]] = [
            (fault.at_s, n, fault) for n, fault in enumerate(faults)
        ]
        for serial in itertools.count(len(faults)):
            if not due:
                return
            at_s, _, what = heapq.heappop(due)
            is_over = self.asker.is_over.wait(max(at_s - self._now(), 0.0))
            if not isinstance(what, Fault):
                what()
            elif not is_over:
                long_s, undo = self._do(what)
                if undo is not None:
                    heapq.heappush(due, (self._now() + long_s, serial, undo))

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _do(self, fault: Fault) -> tuple[float, Undo | None]:
        found = getattr(self, "_" + fault.kind.replace("'", "").replace(" ", "_"))(fault)
        whom, long_s, undo = found or ("none there", 0.0, None)
        self._note(f"{fault.kind}: {whom}" + (f" for {long_s:.1f} s" if long_s else ""))
        return long_s, undo

    def _note(self, what: str) -> None:
        self.done.append(f"{self._now():6.1f} s  {what}")

    # tasks and job runners

    def _processes(self, role: str) -> list[int]:
        pids = [pid for pids in pids_on(self.cluster.hosts).values() for pid in pids]
        return sorted(pid for pid in pids if role_of(pid) == role)

    def _signal(self, role: str, fault: Fault, number: int) -> int | None:
        found = self._processes(role)
        if not found:
            return None
        pid = found[int(fault.which * len(found))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def _kill_task(self, fault: Fault) -> Any:
        pid = self._signal("task", fault, signal.SIGKILL)
        return pid and (f"pid {pid}", 0.0, None)

    def _kill_job_runner(self, fault: Fault) -> Any:
        pid = self._signal("runner", fault, signal.SIGKILL)
        return pid and (f"pid {pid}", 0.0, None)

    def _stop_task(self, fault: Fault) -> Any:
        pid = self._signal("task", fault, signal.SIGSTOP)
        return pid and (f"pid {pid}", fault.long * AWAY_S, lambda: _go_on(pid))

    # agents

    def _kill_agent(self, fault: Fault) -> Any:
        return self._end_agent(int(fault.which * len(self.cluster.hosts)), fault)

    def _kill_the_masters_agent(self, fault: Fault) -> Any:
        names = [n for n in range(len(self.cluster.hosts)) if f"host{n}" in self.asker.master]
        return self._end_agent(names[0], fault) if names else None

    def _end_agent(self, number: int, fault: Fault) -> Any:
        if self.cluster.workers[number].poll() is not None:
            return None  # it is down already
        self.cluster.kill(number)

        def start() -> None:
            self.cluster.start(number)

        return f"host {number}", fault.long * DOWN_S, start

    # the network

    def _cut_host_from_zookeeper(self, fault: Fault) -> Any:
        number = int(fault.which * len(self.cluster.hosts))
        host = self.cluster.hosts[number]
        return self._cut(number, fault, self.cluster.zk_hosts, host)

    def _cut_host(self, fault: Fault) -> Any:
        number = int(fault.which * len(self.cluster.hosts))
        host = self.cluster.hosts[number]
        return self._cut(number, fault, [h for h in self.cluster.net.hosts if h is not host], host)

    def _cut(self, number: int, fault: Fault, others: list[Host], host: Host) -> Any:
        serial = len(self.done)

        def cut() -> None:
            for other in others:
                self.cluster.net.cut(host, other, one_way=fault.is_one_way)

        def join() -> None:
            del self._cuts[serial]
            self.cluster.net.heal()
            for again in self._cuts.values():
                again()
            self._is_back()

        cut()
        self._cuts[serial] = cut
        self._n_away += 1
        way = ", one way" if fault.is_one_way else ""
        return f"host {number}{way}", fault.long * AWAY_S, join

    # ZooKeeper

    def _kill_zookeeper(self, fault: Fault) -> Any:
        index = int(fault.which * self.cluster.n_servers)
        if index in self._down:
            return None
        self._down.add(index)
        self._n_away += 1
        self.cluster.servers.kill(index)

        def start() -> None:
            self.cluster.servers.restart(index)
            self._down.discard(index)
            self._is_back()

        return f"server {index}", fault.long * DOWN_S, start

    def _stop_zookeeper(self, fault: Fault) -> Any:
        index = int(fault.which * self.cluster.n_servers)
        if index in self._down:
            return None
        pid = self.cluster.servers.pid(index)
        os.kill(pid, signal.SIGSTOP)
        self._n_away += 1

        def go_on() -> None:
            _go_on(pid)
            self._is_back()

        return f"server {index}", fault.long * AWAY_S, go_on

    def _is_back(self) -> None:
        self._n_away -= 1
        self._back_at = time.monotonic()

    # clients

    def _kill_client(self, fault: Fault) -> Any:
        """Whoever follows the job; then another one follows, and a third one asks how it is."""
        job, whom = self.asker.job, f"pid {self.client.pid}"
        if self.client.poll() is not None:
            whom += f", which had ended with code {self.client.returncode}"
        self.client.kill()
        self.client.wait(10)
        number = int(fault.which * len(self.cluster.hosts))
        self.client = self.cluster.begin(
            "logs", "-f", job, host=number, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        asked = self.cluster.horn("status", job, "--json", host=number)
        if asked.code == 0:
            assert json.loads(asked.out)["id"] == job, asked
            self.n_answers += 1
        else:  # only because there was no way to ZooKeeper
            assert self._n_away or time.monotonic() < self._back_at + AWAY_S, asked
        return f"{whom}; status says {asked.code}", 0.0, None

    def close(self) -> None:
        self.client.kill()
        self.client.wait(10)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
