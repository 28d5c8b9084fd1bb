"""Real agents on loopback, each a process, for the tests of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horn
import zk
from horn.cluster import packing
from horn.cluster.client import ClusterClient
from horn.cluster.job_status import JobStatus
from horn.cluster.submission import Submission
from horn.cluster.submitting import submit
from horn.cluster.versions import versions
from horn.coordination.jobs import ENDED, JobState
from horn.security.keys import Key, generate

ROOT = Path(horn.__file__).parents[1]
DEADLINE_S = 90.0
FOREVER = "10000000"  # epochs of a job that a test ends

JOB = """
import os
import time
from dataclasses import dataclass

import numpy as np
import horn

@dataclass(frozen=True)
class Held:
    since: int
    until: str

    def at(self, iteration):
        if iteration >= self.since and not os.path.exists(self.until):
            time.sleep(0.05)  # slow iterations, so that what is done to agents falls between them
        return 0.1

def job(epochs: int = 6, layer: int = 16, since: int = 0, until: str = ""):
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(layer, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 8)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    print("job is made", flush=True)
    rate = Held(since, until) if until else 0.1
    return horn.Job(net, (x, y), optimizer=horn.SGD(rate), batch_size=20, epochs=epochs)
"""


class Agents:
    """An embedded ZooKeeper, agents, and a client's session."""

    def __init__(self, folder: Path, hosts: str) -> None:
        self.folder, self.hosts = folder, hosts
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.session_s = 10.0  # however slow they are: only a test of a lost session wants less
        self.key: Key | None = None
        self.environment = dict(os.environ)
        self.before: list[str] = []  # words before an agent's command
        self.options: list[str] = []  # and after it
        self.key_file = folder / "key"
        (folder / "job.py").write_text(JOB)

    def make_key(self) -> None:
        """From now on a key is needed."""
        self.key = generate(self.key_file)

    def held(self, since: int = 0) -> tuple[str, ...]:
        """Arguments of a job that hardly goes on from an iteration on, until ``let_go``: what a
        test does to it meanwhile comes in time, however slow the test is.
        """
        return "--since", str(since), "--until", str(self.folder / "go")

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def client(self) -> ClusterClient:
        return ClusterClient(self.hosts, self.key, timeout_s=20.0)

    def start(self, *names: str, slots: int = 2, shared: bool = False) -> None:
        """Start agents and wait until they are registered."""
        for name in names:
            command = [sys.executable, "-m", "horn", "worker", "--zk", self.hosts,
                       "--slots", str(slots), "--name", name, "--dir", str(self.folder / name),
                       "--session", f"{self.session_s:g}s"]  # fmt: skip
            if self.key is not None:
                command += ["--key", str(self.key_file)]
            command += self.options
            if shared:
                (self.folder / "shared").mkdir(exist_ok=True)
                command += ["--shared", str(self.folder / "shared")]
            with open(self.folder / f"{name}.out", "ab") as out:
                self.processes[name] = subprocess.Popen(
                    [*self.before, *command],
                    cwd=ROOT,
                    stdout=out,
                    stderr=out,
                    stdin=subprocess.DEVNULL,
                    env=self.environment,
                )
        with self.client() as cluster:
            self.wait(lambda: set(names) <= self.living(cluster))

    def living(self, cluster: ClusterClient) -> set[str]:
        """Agents that are registered with the process that was started last."""
        pids = {name: process.pid for name, process in self.processes.items()}
        found = cluster.workers()
        dead = [name for name, process in self.processes.items() if process.poll()]
        assert not dead, f"agents {dead} ended\n{self.said()}"
        return {name for name, m in found.items() if m.info.get("pid") == pids.get(name)}

    def wait_known(self, cluster: ClusterClient) -> None:
        """Until a client has heard of all agents that run: ``start`` asked in another session."""
        running = {name for name, process in self.processes.items() if process.poll() is None}
        self.wait(lambda: running <= self.living(cluster))

    def submit(self, cluster: ClusterClient, *arguments: str, **fields: Any) -> str:
        target = str(fields.pop("target", self.folder / "job.py"))
        package = packing.pack(target)
        options = {**{k: str(v) for k, v in versions().items()}, **fields.pop("options", {})}
        wanted = Submission(
            job="new", name="test", target=package.target, package=package.digest,
            arguments=arguments, options=options, **fields,
        )  # fmt: skip
        return submit(cluster, wanted, package)

    def wait(self, condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not become true\n{self.said()}")
            time.sleep(0.03)  # between two looks
        return value

    def wait_ended(self, cluster: ClusterClient, job: str) -> JobStatus:
        self.wait(lambda: cluster.jobs.state(job) in ENDED)
        return cluster.status(job)

    def wait_running(self, cluster: ClusterClient, job: str, iteration: int = 1) -> JobStatus:
        """Until its tasks have come so far."""

        def there() -> JobStatus | None:
            status = cluster.status(job)
            assert status.state not in ENDED, (status, self.said())
            so_far = int(status.progress.get("iteration", 0))
            is_there = status.state is JobState.RUNNING and so_far >= iteration
            return status if is_there else None

        found: JobStatus = self.wait(there)
        return found

    def forget(self) -> None:
        """End and remove all jobs, so that the next test finds a cluster in which none was."""
        with self.client() as cluster:
            for job in cluster.coord.children(cluster.paths.jobs()):
                if cluster.jobs.state(job) not in ENDED:
                    cluster.stop(job, now=True)
                    self.wait_ended(cluster, job)
                cluster.remove(job)
        (self.folder / "go").unlink(missing_ok=True)

    def said(self) -> str:
        """The agents' logs, for a message."""
        texts = [f"{p.stem}:\n{p.read_text()[-4000:]}" for p in self.folder.glob("*.out")]
        return "\n".join(texts)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        below = [pid for pid, _ in self.descendants(name)]
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait(60)
            self.wait(lambda: not alive(below))

    def descendants(self, name: str) -> list[tuple[int, str]]:
        """Processes below an agent, and their command lines."""
        found, todo = [], [self.processes[name].pid]
        while todo:
            parent = todo.pop()
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
                for pid in map(int, text.split()):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append((pid, line))
                    todo.append(pid)
        return found

    def tasks(self, name: str) -> list[int]:
        """The pids of the tasks that run there."""
        pids = [pid for pid, _ in self.descendants(name)]
        return [pid for pid in pids if _comm(pid).startswith("horn-task-")]

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGINT)  # the second: no job is to be saved first
        for name, process in self.processes.items():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"agent {name} did not end\n{self.said()}") from None


def own_port() -> int:
    """A port that nobody is given by chance while its server is away: below those that the system
    chooses from. The processes of a run of tests begin at different ones.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = int(file.read().split()[0])
    for step in range(1, 8000):
        port = lowest - 1 - (os.getpid() * 61 + step) % 8000
        with contextlib.suppress(OSError), socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no free port below {lowest}")


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def alive(pids: list[int]) -> list[int]:
    """Those that have not ended."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append(pid)
    return found


@contextlib.contextmanager
def agents(folder: Path) -> Iterator[Agents]:
    """Leaves nothing: no process that was started here, nor any that those started."""
    with zk.EmbeddedServer(tick_ms=500) as server:
        made = Agents(folder, server.hosts)
        children: list[int] = []
        try:
            yield made
            children = [pid for name in made.processes for pid, _ in made.descendants(name)]
        finally:
            made.stop()
        made.wait(lambda: not alive(children))


@contextlib.contextmanager
def restartable(
    folder: Path, data_dir: Path | None, session_s: float = 5.0
) -> Iterator[tuple[zk.EmbeddedServer, Agents]]:
    """Agents, and a ZooKeeper that is to be stopped and to start again on its port, with the data
    of ``data_dir`` or with nothing.
    """
    server = zk.EmbeddedServer(own_port(), tick_ms=500, data_dir=data_dir)
    server.start()
    made = Agents(folder, server.hosts)
    made.session_s = session_s
    try:
        yield server, made
    finally:
        made.stop()
        server.stop()
