"""Downpour: what a second group brings, and what a stopped group costs the other.

    python -m tests.bench.bench_downpour [--json FILE] [--rounds N] [--claims]

Throughput: 784-512-10, batches of 100 per group, 1 thread per process: one group that talks to
nobody, one group and a server, two groups and a server; each run is one epoch of noise, in turn.
With fewer than three cores two groups and a server share them; then what they would do with a core
each is predicted from what one group and a server took, which had one each: a group's batch takes
its own time and the wait for its pull, and the server can serve no more than its own time per push
allows.

Stopped: of two groups with a server one gets SIGSTOP for some seconds. What counts is how many
batches of the other are in these seconds, against as long a time before. Nobody may be slower than
95 % of that; where cores are few the other is faster, since it has them for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import horn
from horn.planner.calibration import calibrate
from horn.training.progress import Progress

N_SAMPLES, BATCH, SIZES = 40_000, 100, (784, 512, 10)
EVERY = (1, 4)  # push and pull every so many batches
SCALE_LIMIT, STOP_LIMIT = 1.7, 0.95
STOP_S = 5.0


def a_job(epochs: int) -> horn.Job:
    net = horn.Network(seed=3)
    net.input(SIZES[0])
    net.layer(SIZES[1], activation="relu")
    net.output(SIZES[2], activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (N_SAMPLES, SIZES[0]), np.uint8)
    return horn.Job(
        net, (x, rng.integers(0, SIZES[2], N_SAMPLES)), optimizer=horn.SGD(0.01), batch_size=BATCH,
        epochs=epochs,
    )  # fmt: skip


def throughput(n_groups: int, every: int | None) -> tuple[float, dict[str, float]]:
    """Samples per second, and per batch of a group (or push, at a server) the seconds it took."""
    if every is None:
        run = horn.train(a_job(1), threads=1)
        return run.history[0]["samples_per_s"], {}
    strategy = horn.Downpour(every, every, server_optimizer="adagrad")
    run = horn.train(a_job(1), groups=n_groups, strategy=strategy, threads=1)
    n_batches = N_SAMPLES / BATCH / n_groups
    worker, server = run.counters[0], run.counters[-1]
    return run.history[0]["samples_per_s"], {
        "group_s": (worker["compute_s"] + worker["send_s"]) / n_batches,
        "wait_s": worker["wait_s"] / n_batches,
        "server_s": (server["compute_s"] + server["send_s"]) * every / n_batches / n_groups,
    }


def predicted(n_groups: int, every: int, found: dict[str, float]) -> float:
    """Samples per second with a core for each process: a pull takes at least what the server needs
    for a push, and groups take their turns at it.
    """
    group = found["group_s"] + found["server_s"] / every
    return BATCH * min(n_groups / group, every / found["server_s"])


class Watch(Progress):
    """When group 0 had how many batches."""

    interval_s = 0.02

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
        self.seen.append((time.monotonic(), iteration))

    def rate(self, begin: float, end: float) -> float:
        """Batches per second between two times."""
        inside = [(when, n) for when, n in self.seen if begin <= when <= end]
        if len(inside) < 2:
            raise RuntimeError(f"group 0 said {len(inside)} things in {end - begin:.1f} s")
        (first, a), (last, b) = inside[0], inside[-1]
        return (b - a) / (last - first)


def tasks_of(pid: int) -> dict[int, int]:
    """The task processes that a process has started, by their rank."""
    found = {}
    for child in os.listdir("/proc"):
        if not child.isdecimal():
            continue
        try:
            with open(f"/proc/{child}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{child}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if parent == pid and b"horn.process.main" in b" ".join(words):
            found[int(words[-2].rpartition(b":")[2])] = int(child)
    return found


def stopped(seconds: float) -> tuple[float, float, float]:
    """Group 0's batches per second before, while, and after group 1 is stopped."""
    watch = Watch()
    times: dict[str, float] = {}
    failed: list[BaseException] = []

    def interfere() -> None:
        try:
            ends = time.monotonic() + 60
            while len(watch.seen) < 50 and time.monotonic() < ends:
                time.sleep(0.05)  # between two looks
            times["begin"] = time.monotonic()
            time.sleep(seconds)  # what is measured is how much is done in this time
            pid = tasks_of(os.getpid())[1]
            times["stop"] = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(seconds)  # the same, with group 1 stopped
            finally:
                times["go"] = time.monotonic()
                os.kill(pid, signal.SIGCONT)
            time.sleep(seconds)  # and after it goes on
            times["end"] = time.monotonic()
        except BaseException as error:  # shown by the main thread
            failed.append(error)

    thread = threading.Thread(target=interfere)
    thread.start()
    try:
        horn.train(a_job(1000), groups=2, strategy="downpour", threads=1, progress=watch,
                   timeout=4 * seconds + 10)  # fmt: skip
    except horn.HornError as error:
        if "took more than" not in str(error):
            raise
    finally:
        thread.join()
    if failed:
        raise failed[0]
    before = watch.rate(times["begin"], times["stop"])
    return before, watch.rate(times["stop"], times["go"]), watch.rate(times["go"], times["end"])


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=STOP_S)
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    options = parser.parse_args(args)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    calibrate()  # before there are processes that would disturb it
    cases: list[tuple[str, int, int | None]] = [("one group, no server", 1, None)]
    for every in EVERY:
        cases += [(f"{g} group{'s' * (g > 1)}, every {every}", g, every) for g in (1, 2)]
    speeds: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in cases}
    for _ in range(options.rounds):
        for name, n_groups, every in cases:
            speed, part = throughput(n_groups, every)
            speeds[name].append(speed)
            parts[name].append(part)
    cores = len(os.sched_getaffinity(0))
    missed = []
    rows: dict[str, Any] = {}
    apart: dict[str, float] = {}  # of one group and a server, which disturb each other least
    for name, n_groups, every in cases:
        row: dict[str, Any] = {"samples_per_s": round(statistics.median(speeds[name]))}
        if every is not None:
            found = {k: statistics.median(p[k] for p in parts[name]) for k in parts[name][0]}
            row |= {k: round(1e6 * v) for k, v in found.items()}
            if n_groups == 1:
                apart = found
            row["predicted with a core each"] = round(predicted(n_groups, every, apart))
        if n_groups == 2:
            alone = f"1 group, every {every}"
            row["over one group"] = round(row["samples_per_s"] / rows[alone]["samples_per_s"], 2)
            row["predicted over one group"] = round(
                row["predicted with a core each"] / rows[alone]["predicted with a core each"], 2
            )
            scale = row["over one group" if cores > 2 else "predicted over one group"]
            if scale < SCALE_LIMIT:
                missed.append(f"{name}: {scale} < {SCALE_LIMIT}")
        rows[name] = row
        print(f"{name:24}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    before, during, after = stopped(options.seconds)
    rows["stopped"] = {"before": before, "during": during, "after": after}
    print(
        f"group 0, batches/s: {before:.0f} with group 1, {during:.0f} while it is stopped "
        f"({during / before:.2f} of that), {after:.0f} after"
    )
    if during < STOP_LIMIT * before:
        missed.append(f"stopped: {during / before:.2f} < {STOP_LIMIT}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cores": cores, "rows": rows}, file, indent=1)
    for what in missed:
        print(f"MISSED {what}", file=sys.stderr)
    return 1 if missed and options.claims else 0


if __name__ == "__main__":
    sys.exit(main())
