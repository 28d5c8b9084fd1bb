"""Servers and clients in processes of their own, to be killed and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.apache import held_ports
from tests.zk import client_wire
from tests.zk.client import Closed, RawClient
from zk import wire
from zk.acl import OPEN
from zk.wire import Op, Reader


class ServerProcess:
    """``python -m zk`` on a data folder, on a port that stays the same."""

    def __init__(self, data_dir: Path | None, tick_ms: int = 500) -> None:
        self.data_dir, self.tick_ms, self.port = data_dir, tick_ms, 0
        self.process: subprocess.Popen[str] | None = None
        self._held = contextlib.ExitStack()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> float:
        """Seconds until it answers."""
        self.port = self.port or held_ports(1, self._held)[0]
        command = [sys.executable, "-m", "zk", "--port", str(self.port)]
        command += ["--tick-ms", str(self.tick_ms)]
        if self.data_dir is not None:
            command += ["--data-dir", str(self.data_dir)]
        start = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the server did not start (exit {self.process.wait()})")
        assert self.port == int(line.rsplit(":", 1)[1])
        with RawClient(self.hosts, connect=False) as probe:
            probe.socket.sendall(b"ruok")
            assert probe.socket.recv(4) == b"imok"
        return time.monotonic() - start

    def cpu_seconds(self) -> float:
        """What the process has used until now, of one core."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None

    def close(self) -> None:
        self.kill()
        self._held.close()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Writer(threading.Thread):
    """Writes single nodes and multis of three under ``root`` until its server dies.

    ``acknowledged`` are the numbers that the server has answered; ``sent`` is the last one asked.
    Number n makes either /root/s<n>, or /root/m<n>-0, -1 and -2 in one multi.
    """

    def __init__(self, hosts: str, root: str, first: int, *, churn: bool) -> None:
        super().__init__(name=f"writer{root}")
        self.hosts, self.root, self.sent, self.churn = hosts, root, first - 1, churn
        self.acknowledged: list[int] = []
        self.deleted: set[int] = set()
        self.deleting: int | None = None
        self.zxid = 0

    def run(self) -> None:
        try:
            with RawClient(self.hosts) as client:
                while True:
                    self._write(client, self.sent + 1)
        except (Closed, ConnectionError, OSError):
            pass

    def _write(self, client: RawClient, number: int) -> None:
        self.sent = number
        ops = [(Op.CREATE, (path, b"%d" % number, OPEN, 0)) for path in names(self.root, number)]
        if len(ops) == 1:
            reply = client.call(*[ops[0][0], *ops[0][1]])[0]
        else:
            reply = client.multi([*ops, (Op.SET_DATA, (self.root, b"%d" % number, -1))])[0]
        assert reply.code == 0, reply
        self.zxid = reply.zxid
        self.acknowledged.append(number)
        if self.churn and number % 2 == 0:
            # Deletes keep the tree small, and are changes that may be lost too.
            self.deleting = number
            gone: list[tuple[int, tuple[Any, ...]]] = [
                (Op.DELETE, (path, -1)) for path in names(self.root, number)
            ]
            client.multi(gone)
            self.deleted.add(number)
            self.deleting = None


def names(root: str, number: int) -> list[str]:
    if number % 3:
        return [f"{root}/s{number}"]
    return [f"{root}/m{number}-{part}" for part in range(3)]


def children(client: RawClient, path: str) -> set[str]:
    reply, _ = client.call(Op.GET_CHILDREN, path, False)
    assert reply.code == 0, reply
    return {f"{path}/{name}" for name in Reader(reply.body).strings()}


def fill(hosts: str, n_nodes: int) -> None:
    """Nodes under /bulk, in multis of 500."""
    with RawClient(hosts) as client:
        client.call(Op.CREATE, "/bulk", b"", OPEN, 0)
        for start in range(0, n_nodes, 500):
            ops: list[tuple[int, tuple[Any, ...]]] = [
                (Op.CREATE, (f"/bulk/n{i}", b"x" * 100, OPEN, 0)) for i in range(start, start + 500)
            ]
            assert client.multi(ops)[0].code == 0


@contextlib.contextmanager
def client_process(hosts: str, path: str, timeout_ms: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds an ephemeral node and pings three times per timeout."""
    code = (
        "import sys, threading; from tests.zk.client import RawClient; "
        "hosts, path, timeout = sys.argv[1:]; "
        "c = RawClient(hosts, timeout_ms=int(timeout), ephemeral=path); "
        "print('ready', flush=True); "
        "wait = threading.Event(); "
        "\nwhile not wait.wait(c.timeout_ms / 3000): c.ping()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, hosts, path, str(timeout_ms)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_event(client: RawClient) -> float:
    """The moment of the next watch event."""
    while True:
        frame = client.read_frame()
        if client_wire.REPLY_HEADER.unpack_from(frame)[0] == wire.XID_EVENT:
            return time.monotonic()
