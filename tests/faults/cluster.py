"""A cluster on hosts of this machine: workers with a key, ZooKeeper, and horn's commands.

``Cluster`` is a context: at its end nothing of it runs. Logs of the workers are in ``folder``, and
``told`` gives their ends for the message of a test that fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import horn
import zk
from horn.coordination.session import Session
from horn.security import tls
from horn.security.keys import Key
from horn.security.tls import server_context
from tests.apache import ApacheEnsemble
from tests.hosts import ROOT, Host, Network

HORN = [sys.executable, "-m", "horn"]
SESSION_S = 6.0
DEADLINE_S = 60.0

JOB = """
import os
import time
from dataclasses import dataclass

import horn


@dataclass(frozen=True)
class Held:
    initial: float
    since: int
    until: str
    pace: float

    def at(self, iteration):
        while self.until and iteration >= self.since and not os.path.exists(self.until):
            time.sleep(0.05)  # between two looks
        if self.pace:
            time.sleep(self.pace)  # the pace of an iteration, so that faults fall into it
        return self.initial


def job(hidden=64, epochs=2, rate=0.1, samples=0, since=0, until="", pace=0.0):
    # until : a file that a job waits for before iteration `since`. pace : seconds that an
    # iteration takes at least, so that no machine is too fast for what happens meanwhile.
    net = horn.Network(seed=3)
    net.input(784)
    net.layer(hidden, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.mnist()
    x, y = data.x, data.y
    if samples:
        x, y = x[:samples], y[:samples]
    test = horn.data.mnist("test")
    optimizer = horn.SGD(Held(rate, since, until, pace) if until or pace else rate)
    return horn.Job(net, data=(x, y), test=(test.x, test.y), optimizer=optimizer,
                    batch_size=100, epochs=epochs)
"""


class Cluster:
    """Workers on ``hosts``, all with a folder in common; ZooKeeper on them, or on ``zk_host``."""

    def __init__(
        self, net: Network, hosts: list[Host], folder: Path, *, slots: int = 4,
        zk_host: Host | None = None, has_key: bool = True,
    ) -> None:  # fmt: skip
        self.net, self.hosts, self.folder, self.slots = net, hosts, folder, slots
        self.zk_host = zk_host
        self.key_file, self.tls = folder / "cluster.key", folder / "tls"
        self.has_key = has_key
        self.workers: dict[int, subprocess.Popen[Any]] = {}
        self._stack = contextlib.ExitStack()
        self.n_started = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.key: Key | None = None
            if self.has_key:
                words = ["keygen", str(self.key_file), "--tls", str(self.tls)]
                done = subprocess.run([*HORN, *words], capture_output=True)
                assert done.returncode == 0, done.stderr
                self.key = Key.from_file(str(self.key_file))
            self.address = self._zookeeper(stack)
            stack.callback(self._end_workers)
            for number in range(len(self.hosts)):
                self.start(number)
            self.wait_workers(len(self.hosts))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _zookeeper(self, stack: contextlib.ExitStack) -> str:
        if self.zk_host is None:
            self.ensemble = stack.enter_context(ApacheEnsemble(on=self.hosts, tls=self.tls))
            return self.ensemble.hosts
        context = None if self.key is None else server_context(self.key)
        with self.zk_host.inside():
            server = zk.EmbeddedServer(
                host=self.zk_host.address, tick_ms=500, tls=context, is_open=context is None
            )
            return stack.enter_context(server).hosts

    # workers

    def start(self, number: int, *more: str, environment: Any = None) -> subprocess.Popen[Any]:
        """Start the worker of a host, again or for the first time."""
        host = self.hosts[number]
        (self.folder / "shared").mkdir(exist_ok=True)
        words = [
            *HORN, "worker", "--zk", self.address, "--slots", str(self.slots),
            "--host", host.address, "--name", f"host{number}",
            "--dir", str(self.folder / f"worker{number}"), "--shared", str(self.folder / "shared"),
            "--session", f"{SESSION_S:g}s",
        ]  # fmt: skip
        words += ["--key", str(self.key_file)] if self.has_key else ["--insecure"]
        with (self.folder / f"worker{number}.log").open("ab") as log:
            self.workers[number] = host.start(
                *words, *more, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment or self.environment,
            )  # fmt: skip
        return self.workers[number]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT)}

    def kill(self, number: int, how: int = signal.SIGKILL) -> None:
        self.workers[number].send_signal(how)
        if how != signal.SIGSTOP:
            self.workers[number].wait(20)

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.terminate()
        for worker in self.workers.values():
            try:
                worker.wait(15)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(10)

    @contextlib.contextmanager
    def session(self, host: Host | None = None, timeout_s: float = 30.0) -> Iterator[Session]:
        """A session with ZooKeeper, from a host."""
        own = tls.credential(self.key, self.address)
        with (
            (host or self.zk_host or self.hosts[-1]).inside(),
            Session(self.address, credential=own, timeout_s=timeout_s) as coord,
        ):
            yield coord

    def wait_workers(self, n_workers: int, timeout_s: float = DEADLINE_S) -> None:
        with self.session() as coord:
            until(
                lambda: len(coord.children(coord.paths.workers())) == n_workers,
                timeout_s,
                self.told,
            )

    # commands

    def horn(self, *words: str, host: int = 0, timeout_s: float = DEADLINE_S, **how: Any) -> Done:
        """A command of horn to its end, on a host."""
        done = self.hosts[host].run(
            *HORN, *words, *self.options(), env=self.environment, timeout=timeout_s,
            **({"cwd": self.folder} | how),
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def begin(self, *words: str, host: int = 0, **how: Any) -> subprocess.Popen[Any]:
        """A command of horn that goes on."""
        return self.hosts[host].start(
            *HORN, *words, *self.options(), env=self.environment,
            **({"cwd": self.folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                "text": True} | how),
        )  # fmt: skip

    def options(self) -> list[str]:
        return ["--zk", self.address, *(["--key", str(self.key_file)] if self.has_key else [])]

    def submit(self, *words: str, text: str = JOB, host: int = 0) -> str:
        """Hand a job in and return its id."""
        target = self.folder / "mnist.py"
        target.write_text(text)
        options, _, arguments = " ".join(words).partition("--- ")
        line = ["submit", "--detach", *options.split(), *self.options(), str(target)]
        line += ["--", *arguments.split()] if arguments else []
        done = self.hosts[host].run(*HORN, *line, env=self.environment, cwd=self.folder)
        assert done.returncode == 0, (done.stdout, done.stderr, self.told())
        return done.stdout.strip()

    def status(self, job: str, host: int = 0) -> dict[str, Any]:
        done = self.horn("status", job, "--json", host=host)
        assert done.code == 0, done
        found = json.loads(done.out)
        assert isinstance(found, dict)
        return found

    def wait(self, job: str, state: str, timeout_s: float = 90.0, host: int = 0) -> dict[str, Any]:
        """Until a job is in a state."""
        done = self.horn(
            "status", job, "--json", "--wait", state, "--timeout", f"{timeout_s:g}s",
            host=host, timeout_s=timeout_s + 20,
        )  # fmt: skip
        assert done.code == 0, (done, self.told())
        return self.status(job, host)

    def job_processes(self, number: int) -> list[int]:
        """Those on a host that others of a job can reach. Not the agent, nor the processes that it
        keeps ready for the next job, which listen nowhere yet.
        """
        told = self.hosts[number].run("ss", "-Hltnp", check=True).stdout
        return sorted({int(pid) for pid in re.findall(r"pid=(\d+)", told)}
                      - {self.workers[number].pid})  # fmt: skip

    def stop_all(self) -> None:
        """End every job that goes on."""
        found = json.loads(self.horn("list", "--json").out)["jobs"]
        for job in found:
            if job["state"] not in ("SUCCEEDED", "FAILED", "STOPPED"):
                done = self.horn("stop", "--now", job["id"])
                assert done.code in (0, 6), (done, self.told())

    def ended(self, coord: Session, job: str) -> bool:
        """Whether a job is over, as far as a session says."""
        node = coord.get(coord.paths.state(job))
        return node is not None and node.data.decode() in ("SUCCEEDED", "FAILED", "STOPPED")

    def told(self) -> str:
        """The ends of the workers' logs."""
        parts = []
        for log in sorted(self.folder.glob("worker*.log")):
            parts.append(f"{log.name}: ...{log.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def processes(self) -> dict[int, str]:
        """What runs on the hosts that is a horn's, and not ZooKeeper's: pid and command line."""
        found = {}
        for host in self.hosts:
            for pid in host.pids():
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if line and "java" not in line.split(" ")[0]:
                        found[pid] = line
        return found


def digest(cluster: Cluster, job: str) -> str:
    """Of the model that rank 0 left."""
    [path] = [p for p in cluster.folder.rglob("*.horn") if job in str(p)][:1]
    model = horn.Model.load(path)
    whole = hashlib.sha256()
    for name, array in sorted(model.parameters.items()):
        whole.update(name.encode() + array.tobytes())
    return whole.hexdigest()


class Done:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def until(
    condition: Callable[[], Any], timeout_s: float = DEADLINE_S, told: Callable[[], str] = str
) -> Any:
    """What ``condition`` gives as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not become true; {told()}"
        pause.wait(0.05)
    return value
