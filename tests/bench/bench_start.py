"""What a start costs as jobs grow: time, packets to ZooKeeper, descriptors, processor time.

    python -m tests.bench.bench_start [--json FILE] [--sizes 8,16,...] [--kinds tasks,groups]

A tiny job, two iterations: nearly all of it is starting. Packets are those that ZooKeeper's server
received, by its own count; descriptors those of the task that has most, while all train.
tests/executor/test_growth.py holds the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import horn
import zk
from horn.executor.launch import launch
from horn.planner.plan import cheapest
from horn.process.job_payload import draft
from horn.strategies.allreduce import AllReduce
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings
from tests.support.runs import children

HIDDEN = 256


@dataclass(frozen=True)
class Started:
    """What one run took. cpu_s : of all its tasks together."""

    groups: int
    tasks: int
    seconds: float
    ready_s: float  # until the first iteration was over
    packets: int
    descriptors: int
    cpu_s: float
    losses: tuple[float, ...]


def tiny() -> horn.Job:
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(HIDDEN, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    data = rng.standard_normal((512, 64)).astype("float32"), rng.integers(0, 10, 512)
    return horn.Job(net, data, optimizer=horn.SGD(0.1), batch_size=256, epochs=1)


def packets(hosts: str) -> int:
    """How many the server has received from its clients."""
    host, _, port = hosts.partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(b"mntr")
        text = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    found = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return int(found["zk_packets_received"])


class Count(Progress):
    """Counts descriptors when the first epoch is over, while all tasks are there."""

    def __init__(self) -> None:
        self.began, self.ready_s, self.descriptors = time.perf_counter(), 0.0, 0
        self.interval_s = 0.0

    def epoch(self, row: Any) -> None:
        self.ready_s = self.ready_s or time.perf_counter() - self.began
        for pid, task in children().items():
            if task is not None:
                try:
                    here = len(os.listdir(f"/proc/{pid}/fd"))
                except FileNotFoundError:  # it has finished meanwhile
                    continue
                self.descriptors = max(self.descriptors, here)


def start(groups: int, tasks: int) -> Started:
    """Run the job once; what it took."""
    given = tiny()
    placement = cheapest(given, tasks).placement
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with zk.EmbeddedServer(tick_ms=1000) as server:
        count, begun = Count(), time.perf_counter()
        settings = RunSettings(groups=groups, tasks=tasks, hosts=server.hosts)
        strategy = AllReduce() if groups > 1 else None
        outcome = launch(given, draft(given, strategy), lambda: placement, settings, count, begun)
        seconds = time.perf_counter() - begun
        n_packets = packets(server.hosts)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    losses = tuple(row["loss"] for row in outcome.rows)
    return Started(
        groups, tasks, seconds, count.ready_s, n_packets, count.descriptors, cpu_s, losses
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", default="8,16,32,64,128")
    parser.add_argument("--kinds", default="tasks,groups")
    given = parser.parse_args()
    alone = start(1, 1)
    rows = []
    print(f"{'groups':>6} {'tasks':>6} {'s':>6} {'packets':>8} {'descriptors':>11} {'cpu s':>6}")
    for kind in given.kinds.split(","):
        for n in map(int, given.sizes.split(",")):
            row = start(n, 1) if kind == "groups" else start(1, n)
            np.testing.assert_allclose(row.losses, alone.losses, rtol=1e-4)
            rows.append(asdict(row))
            print(f"{row.groups:6} {row.tasks:6} {row.seconds:6.1f} {row.packets:8} "
                  f"{row.descriptors:11} {row.cpu_s:6.1f}", flush=True)  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
