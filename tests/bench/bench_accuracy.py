"""What each strategy reaches with 1, 2, 4 and 8 groups: accuracy, samples/s, bytes, staleness.

    python -m tests.bench.bench_accuracy [--sets mnist digits] [--groups 1 2 4 8] [--seeds 3]
        [--strategies NAME ...] [--json FILE] [--claims]

Every run is the same job, with every strategy as it is by default: of MNIST examples/mnist.py
(784-512-10, batches of 100, SGD with momentum 0.9 along a cosine), of the digits in the package
64-128-10 (batches of 32, the same optimizer), of the part of CIFAR-10 in HORN_DATA 3072-256-10
(rate 0.01). What is told is the share of the test set that is right after 4 epochs (of 10, so with
a learning rate that is still 65 % of the first) and after 10. A process has one thread. Runs of one
machine's cores disturb each other, so samples/s say something on a quiet machine only.

--claims ends with 1 unless on MNIST 4 groups are at 0.979 or more after 4 epochs with each
strategy, and within 0.1 points of one group after 10.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import horn

STRATEGIES = ("allreduce", "averaging", "easgd", "downpour")
EARLY, EPOCHS = 4, 10
LEAST, NEAR = 0.979, 0.001


def _cifar() -> tuple[Any, Any]:
    with np.load(Path(os.environ["HORN_DATA"]) / "cifar10-12k.npz") as found:
        parts = [(found[f"x_{p}"], found[f"y_{p}"].astype(np.int64)) for p in ("train", "test")]
    train, test = (horn.data.Dataset(x.reshape(len(x), -1), y, 1 / 255, "cifar") for x, y in parts)
    return train, test


SETS: dict[str, Any] = {  # the data, sizes, learning rate, batch
    "mnist": (lambda: (horn.data.mnist(), horn.data.mnist("test")), (784, 512, 10), 0.1, 100),
    "digits": (lambda: (horn.data.digits(), horn.data.digits("test")), (64, 128, 10), 0.1, 32),
    "cifar": (_cifar, (3072, 256, 10), 0.01, 100),
}


def a_job(name: str, seed: int) -> horn.Job:
    """The test set is looked at after every epoch; nothing is chosen by it."""
    load, sizes, rate, batch = SETS[name]
    data, test = load()
    net = horn.Network(seed=seed)
    net.input(sizes[0])
    for size in sizes[1:-1]:
        net.layer(size, activation="relu")
    net.output(sizes[-1], activation="softmax", loss="cross_entropy")
    schedule = horn.Cosine(rate, iterations=-(-EPOCHS * len(data) // batch))
    return horn.Job(net, data, validation=test, optimizer=horn.SGD(schedule, momentum=0.9),
                    batch_size=batch, epochs=EPOCHS)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One run. early, late : accuracy after EARLY and EPOCHS epochs, late of the run's model.
    sent : bytes that all processes sent each other, per iteration. staleness : mean, None without
    servers.
    """

    data: str
    strategy: str
    groups: int
    seed: int
    early: float
    late: float
    samples_per_s: float
    sent: float
    staleness: float | None


def measured(name: str, strategy: str, groups: int, seed: int) -> Row:
    job = a_job(name, seed)
    run = horn.train(job, groups=groups, strategy=strategy, threads=1)
    assert run.epochs == EPOCHS
    sent = sum(row["sent_bytes"] for row in run.counters)
    late = sum(k * n for k, n in run.staleness.items())
    return Row(
        name, strategy, groups, seed, run.history[EARLY - 1]["val_acc"],
        run.metrics["validation"]["acc"],
        statistics.median(row["samples_per_s"] for row in run.history), sent / run.iterations,
        late / sum(run.staleness.values()) if run.staleness else None,
    )  # fmt: skip


def speeds(sets: Sequence[str], strategies: Sequence[str], groups: Sequence[int]) -> None:
    """Samples per second, of the better of two epochs."""
    for name in sets:
        print(f"\n{name}, samples/s\n| strategy | {' | '.join(map(str, groups))} |")
        print("|---" * (len(groups) + 1) + "|")
        for strategy in strategies:
            found = []
            for n in groups:
                job = a_job(name, 1).with_settings(epochs=2)
                run = horn.train(job, groups=n, strategy=strategy, threads=1)
                found.append(f"{max(row['samples_per_s'] for row in run.history):,.0f}")
            print(f"| {strategy} | {' | '.join(found)} |", flush=True)


def spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def table(rows: Sequence[Row]) -> None:
    print(f"\n| strategy | groups | after {EARLY} epochs | after {EPOCHS} | samples/s | "
          f"bytes per iteration | staleness |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for strategy, groups in dict.fromkeys((r.strategy, r.groups) for r in rows):
        found = [r for r in rows if (r.strategy, r.groups) == (strategy, groups)]
        speed = statistics.median(r.samples_per_s for r in found)
        stale = [r.staleness for r in found if r.staleness is not None]
        late = f"{statistics.mean(stale):.1f}" if stale else ""
        print(f"| {strategy} | {groups} | {spread([r.early for r in found])} | "
              f"{spread([r.late for r in found])} | {speed:,.0f} | "
              f"{statistics.mean(r.sent for r in found) / 1e6:.2f} MB | {late} |")  # fmt: skip


def missed(rows: Sequence[Row]) -> list[str]:
    """What is claimed and not so."""

    def mean(what: str, strategy: str, groups: int) -> float:
        return statistics.mean(
            getattr(r, what) for r in rows
            if (r.data, r.strategy, r.groups) == ("mnist", strategy, groups)
        )  # fmt: skip

    found = []
    for strategy in dict.fromkeys(r.strategy for r in rows):
        early, late = mean("early", strategy, 4), mean("late", strategy, 4)
        if early < LEAST:
            found.append(f"{strategy}: {early:.4f} after {EARLY} epochs, wanted {LEAST}")
        if late < mean("late", "allreduce", 1) - NEAR:
            found.append(f"{strategy}: {late:.4f} after {EPOCHS} epochs, too far from one group")
    return found


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=[*SETS], default=["mnist", "digits"])
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--strategies", nargs="+", default=[*STRATEGIES])
    parser.add_argument("--json", help="where rows are added; what is there is not measured")
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    parser.add_argument("--speed", action="store_true", help="only samples/s, of two epochs each")
    options = parser.parse_args(args)
    if options.speed:
        speeds(options.sets, options.strategies, options.groups)
        return 0
    every: list[Row] = []
    if options.json and os.path.exists(options.json):
        with open(options.json) as file:
            every = [Row(**found) for found in json.load(file)]
    known = {(r.data, r.strategy, r.groups, r.seed) for r in every}
    for name in options.sets:
        for strategy in options.strategies:
            for groups in options.groups:
                for seed in options.seeds:
                    if (name, strategy, groups, seed) in known:
                        continue
                    every.append(measured(name, strategy, groups, seed))
                    print(every[-1], file=sys.stderr, flush=True)
                    if options.json:
                        with open(options.json, "w") as file:
                            json.dump([dataclasses.asdict(row) for row in every], file, indent=1)
        print(f"\n{name}, seeds {options.seeds}", end="")
        table([r for r in every if r.data == name and r.strategy in options.strategies])
    wrong = missed([r for r in every if r.data == "mnist"]) if options.claims else []
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
