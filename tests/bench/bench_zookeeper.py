"""The embedded server against Apache ZooKeeper 3.8.0, both with a log that is fsynced.

    python -m tests.bench.bench_zookeeper [--json out.json] [--rounds 10]

One exact client in this process; the two servers run side by side and are asked in turns, so that
what else the machine does falls on both. Answers are checked before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import selectors
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import apache
from tests.zk import client_wire
from tests.zk.client import RawClient
from tests.zk.faults import ServerProcess
from zk.acl import OPEN
from zk.wire import Op, Reader

N_WARM, N_TIMED, N_CLIENTS = 3000, 200, 8
LIMITS = {"create": 1.0, "get": 1.0, "set": 1.0, "memory": 0.25}
START_LIMIT_S = 0.3


class Target:
    """One server, its client, and what was measured of it (seconds per request)."""

    def __init__(self, name: str, hosts: str, pid: int) -> None:
        self.name, self.hosts, self.pid = name, hosts, pid
        self.client = RawClient(hosts)
        self.n_created = 0
        self.seconds: dict[str, list[float]] = {"create": [], "get": [], "set": []}
        self.throughput: dict[str, list[float]] = {"create": [], "get": []}
        self._check()

    def _check(self) -> None:
        assert self.client.call(Op.CREATE, "/bench", b"before", OPEN, 0)[0].code == 0
        assert self.client.call(Op.SET_DATA, "/bench", b"x" * 100, -1)[0].code == 0
        reply = self.client.call(Op.GET_DATA, "/bench", False)[0]
        assert Reader(reply.body).buffer() == b"x" * 100

    def create(self) -> None:
        self.n_created += 1
        path = f"/bench/n{self.n_created}"
        assert self.client.call(Op.CREATE, path, b"x" * 100, OPEN, 0)[0].code == 0

    def get(self) -> None:
        assert self.client.call(Op.GET_DATA, "/bench", False)[0].code == 0

    def set(self) -> None:
        assert self.client.call(Op.SET_DATA, "/bench", b"x" * 100, -1)[0].code == 0

    def time(self, what: str, n: int) -> None:
        act: Callable[[], None] = getattr(self, what)
        for _ in range(n):
            start = time.perf_counter()
            act()
            self.seconds[what].append(time.perf_counter() - start)

    def load(self, what: str, seconds: float) -> None:
        """Requests per second of eight clients that each wait for their answer."""
        clients = [RawClient(self.hosts) for _ in range(N_CLIENTS)]
        n_done = 0

        def ask(client: RawClient) -> None:
            if what == "get":
                body = client_wire.encode_body(Op.GET_DATA, ("/bench", False))
                client.send_frame(struct.pack(">ii", 1, Op.GET_DATA) + body)
            else:
                self.n_created += 1
                path = f"/bench/n{self.n_created}"
                body = client_wire.encode_body(Op.CREATE, (path, b"x" * 100, OPEN, 0))
                client.send_frame(struct.pack(">ii", 1, Op.CREATE) + body)

        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, selectors.EVENT_READ, client)
                ask(client)
            start = time.perf_counter()
            while time.perf_counter() - start < seconds:
                for key, _ in selector.select(1):
                    reply = key.data.read()
                    assert reply.code == 0
                    n_done += 1
                    ask(key.data)
            elapsed = time.perf_counter() - start
            for client in clients:
                client.read()
                client.close()
        self.throughput[what].append(n_done / elapsed)


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def start_seconds(n: int) -> dict[str, float]:
    """From the start of the process to its first answer, the median of ``n``."""
    ours, theirs = [], []
    for _ in range(n):
        with tempfile.TemporaryDirectory() as folder:
            server = ServerProcess(Path(folder) / "data")
            ours.append(server.start())
            server.close()
        start = time.monotonic()
        with apache.ApacheServer():
            theirs.append(time.monotonic() - start)
    return {"horn": statistics.median(ours), "apache": statistics.median(theirs)}


def bench(rounds: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-zk-") as folder,
        ServerProcess(Path(folder) / "data") as ours,
        apache.ApacheServer() as theirs,
    ):
        targets = [
            Target("horn", ours.hosts, ours.pid),
            Target("apache", theirs.hosts, theirs.pid),
        ]
        for target in targets:
            for _ in range(N_WARM // 3):  # Java compiles what it has seen often
                target.get()
                target.set()
                target.create()
        for number in range(rounds):
            order = targets if number % 2 else targets[::-1]
            for what in ("get", "set", "create"):
                for target in order:
                    target.time(what, N_TIMED)
            for what in ("get", "create"):
                for target in order:
                    target.load(what, 0.5)
        memory = {t.name: rss_bytes(t.pid) for t in targets}
        for target in targets:
            target.client.close()
    one = {t.name: {w: statistics.median(s) for w, s in t.seconds.items()} for t in targets}
    eight = {t.name: {w: statistics.median(s) for w, s in t.throughput.items()} for t in targets}
    ratios = {w: one["horn"][w] / one["apache"][w] for w in ("create", "get", "set")}
    ratios["memory"] = memory["horn"] / memory["apache"]
    return {
        "where": {
            "cpu_count": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "commit": _commit(),
        },
        "seconds_per_request_of_one_client": one,
        "requests_per_second_of_eight_clients": eight,
        "memory_bytes": memory,
        "start_to_first_answer_s": start_seconds(5),
        "ratio_to_apache": ratios,
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The embedded ZooKeeper against Apache's.")
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args(argv)
    result = bench(args.rounds)
    text = json.dumps(result, indent=2)
    if args.json:
        Path(args.json).write_text(text + "\n")
    print(text)
    missed = [w for w, limit in LIMITS.items() if result["ratio_to_apache"][w] > limit]
    if result["start_to_first_answer_s"]["horn"] > START_LIMIT_S:
        missed.append("start")
    print(f"missed: {', '.join(missed) or 'none'}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
