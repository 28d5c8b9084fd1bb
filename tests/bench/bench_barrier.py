"""The region barrier against kazoo's DoubleBarrier: enter and leave, on the same server, in one
run.

    python -m tests.bench.bench_barrier [--json FILE] [--n 2 8 32] [--server embedded apache]

n processes, each with one session for horn and one for kazoo. A round is a block of crossings by
each method in turn, so that all see the same machine. "crossing" is one generation: it does what
enter + leave are used for, since a generation is never used again. "strict" is two generations, so
that nobody comes back from leave before all have called it: exactly what the DoubleBarrier
promises. kazoo gets a fresh path each time (it hangs on a used one), made before the clock starts.
Before timing, every crossing is checked: nobody passes before all have arrived.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from typing import Any

import kazoo
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

import zk
from horn.coordination.barrier import GroupBarrier
from horn.coordination.session import Session
from tests.apache import ApacheServer, is_available

METHODS = ("crossing", "strict", "kazoo")
LIMIT = 0.6
TIMEOUT_S, HANG_S = 60.0, 5.0
CROSSINGS = {2: 12, 8: 8, 32: 3}  # of one method in a row
ROUNDS = 8


class Bounded(threading.Event):
    """An event that nobody waits for without end; ``n_hung`` counts who did."""

    n_hung = 0

    def wait(self, timeout: float | None = None) -> bool:
        came = super().wait(HANG_S if timeout is None else timeout)
        Bounded.n_hung += not came and timeout is None
        return came


class BoundedHandler(SequentialThreadingHandler):
    def event_object(self) -> Bounded:
        return Bounded()


def member(hosts: str, root: str, me: int, n: int, block: int, shared: Any, queue: Any) -> None:
    """One of the n processes: all blocks of all methods; puts the seconds of each crossing."""
    start, counters = shared
    name, names = f"t{me}", [f"t{i}" for i in range(n)]
    client = KazooClient(hosts, timeout=30, handler=BoundedHandler())
    client.start(TIMEOUT_S)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    with Session(hosts, session_s=30, root=root, timeout_s=TIMEOUT_S) as coord:
        barrier = GroupBarrier(coord, f"{root}/barrier", name, names)
        generation = round_ = 0

        def arrive() -> None:
            counters[me] += 1

        def check() -> None:
            late = [i for i in range(n) if counters[i] < counters[me]]
            assert not late, f"{name} passed before {late} arrived"

        def cross(method: str, step: int) -> None:
            nonlocal generation
            arrive()
            if method == "kazoo":
                double = client.DoubleBarrier(f"{root}/kazoo/{round_}-{step}", n, name)
                double.enter()
                assert double.participating
                check()
                double.leave()
            else:
                barrier.cross(generation, TIMEOUT_S)
                check()
                if method == "strict":
                    barrier.cross(generation + 1, TIMEOUT_S)
                    generation += 1
                generation += 1

        for round_ in range(ROUNDS + 1):  # the first one is for warming up
            for method in METHODS:
                if method == "kazoo" and me == 0:
                    for step in range(block):
                        client.ensure_path(f"{root}/kazoo/{round_}-{step}")
                start.wait(TIMEOUT_S)
                for step in range(block):
                    began = time.perf_counter()
                    cross(method, step)
                    if round_ > 0:
                        seconds[method].append(time.perf_counter() - began)
    client.stop()
    client.close()
    queue.put((seconds, Bounded.n_hung))


def member_or_error(*args: Any) -> None:
    try:
        member(*args)
    except Exception as error:
        args[-1].put(error)
        raise


def bench(hosts: str, n: int) -> dict[str, float]:
    """Median milliseconds per crossing of each method, and the ratios to kazoo's."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    shared = (context.Barrier(n), context.Array("q", n, lock=False))
    root = f"/bench-{os.getpid()}-{n}"
    block = CROSSINGS.get(n, 10)
    processes = [
        context.Process(
            target=member_or_error, args=(hosts, root, me, n, block, shared, queue), daemon=True
        )
        for me in range(n)
    ]
    for process in processes:
        process.start()
    parts: list[tuple[dict[str, list[float]], int]] = []
    try:
        while len(parts) < n:
            part = queue.get(timeout=300)
            if isinstance(part, Exception):
                raise part
            parts.append(part)
    finally:
        for process in processes:
            process.join(10 if len(parts) == n else 0)
            if process.is_alive():
                process.kill()
                process.join()
    median = {m: statistics.median(s for part, _ in parts for s in part[m]) for m in METHODS}
    row = {f"{m}_ms": round(median[m] * 1e3, 3) for m in METHODS}
    row |= {f"{m}_ratio": round(median[m] / median["kazoo"], 3) for m in METHODS[:2]}
    return row | {"kazoo_hung": sum(hung for _, hung in parts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--n", nargs="+", type=int, default=list(CROSSINGS))
    parser.add_argument("--server", nargs="+", default=["embedded", "apache"])
    asked = parser.parse_args()
    rows = []
    for kind in asked.server:
        if kind == "apache" and not is_available():
            print("apache: not installed here", file=sys.stderr)
            continue
        with zk.EmbeddedServer() if kind == "embedded" else ApacheServer() as server:
            for n in asked.n:
                row = {"server": kind, "n": n, **bench(server.hosts, n)}
                rows.append(row)
                print(json.dumps(row), flush=True)
    if asked.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "n_cpu": os.cpu_count(),
            "python": platform.python_version(),
            "kazoo": kazoo.__version__,
        }
        with open(asked.json, "w", encoding="utf-8") as out:
            json.dump({"machine": machine, "rows": rows}, out, indent=1)
    return 0 if all(row["crossing_ratio"] <= LIMIT for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
