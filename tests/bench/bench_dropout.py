"""A training step with per-batch dropout against the same net without: what sits out costs nothing.

    python -m tests.bench.bench_dropout [--batch 100] [--threads 1 2] [--seconds 4]

784-512-512-10, input keep 0.8 and hidden keep 0.5, one mask per neuron and batch; gathers and
scatters are included. Blocks count that ran while the machine was calm (tests/bench/calm). Before
timing: the loss goes down, and the weights of a dropped neuron do not move.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np

import horn
from horn._kernels import blas
from horn._kernels.engine import Tape
from horn.backends import Setup, make
from horn.data import Dataset
from tests.bench.calm import interleaved

SIZES = [784, 512, 512, 10]
TARGET = 2.0
UNTIMED_S, TIMED_S = 0.03, 0.06  # of a block


class Plain(horn.Neuron):
    """A weighted sum through the activation."""

    def forward(self, messages: Any) -> None:
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))


class BatchDropout(horn.Neuron):
    """The paper's dropout neuron with one draw per batch."""

    keep = 0.5

    def forward(self, messages: Any) -> None:
        mask = self.bernoulli(self.keep, per="batch") if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


def engine(dropout: bool, data: Dataset, batch: int, threads: int) -> Any:
    net = horn.Network(seed=7)
    if dropout:
        net.input(SIZES[0], keep=0.8, per="batch")
    else:
        net.input(SIZES[0])
    for size in SIZES[1:-1]:
        net.layer(size, neuron=BatchDropout if dropout else Plain, activation="relu")
    net.output(SIZES[-1], neuron=Plain, activation="softmax", loss="cross_entropy")
    optimizer = horn.SGD(0.01, momentum=0.9)
    runs = make("kernels", Setup(net, optimizer, "labels", batch, "float32", threads))
    runs.bind(data)
    return runs


def check(runs: Any, batch: int) -> None:
    rows = np.arange(batch)
    before = runs.parameters()
    name = next(iter(before))
    first = runs.step(rows, iteration=0, first_sample=0)
    moved = (runs.parameters()[name] != before[name]).any(axis=1).mean()
    assert 0.4 < moved < 0.6, f"{moved:.2f} of the neurons moved; half of them were dropped"
    losses = [runs.step(rows, iteration=t, first_sample=t * batch) for t in range(1, 200)]
    assert np.mean(losses[-20:]) < first, "the loss does not go down"


def block(runs: Any, rows: np.ndarray, iterations: Iterator[int]) -> float:
    """Seconds per step."""
    for seconds in (UNTIMED_S, TIMED_S):  # its threads slept while the other side ran
        n_steps, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < seconds:
            runs.step(rows, iteration=next(iterations), first_sample=0)
            n_steps += 1
    return spent / n_steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.random((args.batch, SIZES[0]), dtype=np.float32)
    data = Dataset(x, rng.integers(0, 10, args.batch))
    rows = np.arange(args.batch)
    results = []
    for threads in args.threads:
        sides = {d: engine(d, data, args.batch, threads) for d in (False, True)}
        check(sides[True], args.batch)
        cpus = os.sched_getaffinity(0)
        if threads == 1:
            os.sched_setaffinity(0, {max(cpus)})
        blocks = {
            "without": partial(block, sides[False], rows, count()),
            "with": partial(block, sides[True], rows, count()),
        }
        times, is_calm = interleaved(blocks, args.seconds, is_alone=threads == 1)
        os.sched_setaffinity(0, cpus)
        median = {side: statistics.median(v) * 1e6 for side, v in times.items()}
        result = {
            "batch": args.batch, "threads": threads, "blas": blas.load().name,
            "products": Tape().products,
            "without_us": median["without"], "with_us": median["with"],
            "ratio": median["without"] / median["with"],
            "ratio_of_fastest": min(times["without"]) / min(times["with"]),
            "blocks": min(map(len, times.values())), "is_calm": is_calm,
        }  # fmt: skip
        results.append(result)
        disturbed = "" if result["is_calm"] else ", DISTURBED"
        print(
            f"b{args.batch} threads {threads}, products by {result['products']} "
            f"({result['blas']}): "
            f"without {median['without']:.0f} us, with {median['with']:.0f} us, "
            f"{result['ratio']:.2f}x as fast, {result['ratio_of_fastest']:.2f}x by the fastest "
            f"({result['blocks']} blocks{disturbed})"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    sys.exit(any(r["ratio"] < TARGET for r in results))


if __name__ == "__main__":
    main()
