"""A step of parallel dropout against as many full dropout steps of the same samples, on one core.

    python -m tests.bench.bench_parallel_dropout [--json FILE] [--seconds 10] [--sub-models 4]
        [--threads 1] [--claims] [--profile]

784-2048-2048-10, input keep 0.8 and dropout neurons (keep 0.5 per sample) in both, SGD with
momentum. One step of 4 disjoint sub-models, drawn anew each time, against 4 steps of the whole
network, which see the same samples: 25 or 100 for each sub-model. Rounds are interleaved. Before
timing: with one sub-model both compute the same, and sub-models move no weight that none has. The
limit is that of issue 5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

import horn
from horn._kernels import blas
from horn.backends import Setup, make
from horn.job import Job
from horn.partition.placement import Placement
from horn.runtime.context import TaskContext
from horn.runtime.group import Group
from horn.strategies import Topology
from horn.strategies.parallel_dropout import ParallelDropout
from horn.sub_models.engine import SubModels
from horn.transport import Identity, open_transport
from tests.bench.contenders import dataset

SIZES = "784-2048-2048-10"
N_SAMPLES = 2000
LIMIT = 2.5
N_PROFILED = 20  # runs of each tape whose mean --profile prints


def job(batch: int, sizes: str = SIZES) -> Job:
    first, *hidden, last = map(int, sizes.split("-"))
    net = horn.Network(seed=7)
    net.input(first, keep=0.8)
    for size in hidden:
        net.layer(size, neuron=horn.neurons.Dropout, activation="relu")
    net.output(last, activation="softmax", loss="cross_entropy")
    optimizer = horn.SGD(0.01, momentum=0.9)
    return Job(net, dataset(sizes), optimizer=optimizer, batch_size=batch, iterations=1)


def whole(job: Job, batch: int, threads: int) -> Any:
    setup = Setup(job.network, job.optimizer, "labels", batch, job.dtype, threads)
    engine = make("kernels", setup)
    engine.bind(job.data)
    return engine


def parallel(job: Job, n_sub_models: int, threads: int) -> SubModels:
    transport = open_transport("inproc://", Identity(0, 1, "bench"))
    transport.connect([transport.endpoint], 10)
    context = TaskContext(job, Topology(), 0, Placement.default(job.network), Group(transport),
                threads=threads)  # fmt: skip
    engine = SubModels(ParallelDropout(n_sub_models).rules(n_sub_models), context)
    engine.bind(job.data)
    return engine


def rows_of(k: int, n: int) -> np.ndarray:
    return np.arange(k * n, (k + 1) * n) % N_SAMPLES


def check(threads: int) -> None:
    """One sub-model is the network; of four, weights between two of them do not move."""
    small = job(100, "784-256-256-10")
    a, b = whole(small, 100, threads), parallel(small, 1, threads)
    for k in range(3):
        rows = rows_of(k, 100)
        found = [x.step(rows, iteration=k, first_sample=100 * k) for x in (a, b)]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    four = parallel(small, 4, threads)
    before = four.parent.learned["layer2.weight"].copy()
    four.step(rows_of(0, 100), iteration=0, first_sample=0)
    moved = four.parent.learned["layer2.weight"] != before
    here = np.zeros(moved.shape, bool)
    for members in four.members:
        here[np.ix_(members[2], members[1])] = True
    assert not moved[~here].any() and moved[here].mean() > 0.5


def counts(engine: SubModels) -> dict[str, Any]:
    """What a sub-model has, against the network."""
    small, parent = engine.smalls[0], engine.parent.learned
    weights = {name: a.size for name, a in small.gradients.items() if parent[name].ndim == 2}
    size = np.dtype(engine.job.dtype).itemsize
    return {
        "weights": weights,
        "weights_of_network": {name: parent[name].size for name in weights},
        "bytes_sent": engine.n_sent[0] * size,
        "bytes_of_network": sum(a.size for a in parent.values()) * size,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sub-models", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--claims", action="store_true", help="fail below the limit")
    parser.add_argument("--profile", action="store_true", help="where a step's time goes")
    args = parser.parse_args()
    check(args.threads)
    k_all, results = args.sub_models, []
    for samples in args.samples:
        batch = k_all * samples
        full = whole(job(samples), samples, args.threads)
        parts = parallel(job(batch), k_all, args.threads)
        times: dict[str, list[float]] = {"full": [], "parallel": []}
        end, t = time.perf_counter() + args.seconds, 0
        while time.perf_counter() < end or t < 8:
            rows = rows_of(t, batch)
            begun = time.perf_counter()
            for k in range(k_all):
                part = rows[k * samples : (k + 1) * samples]
                full.step(part, iteration=k_all * t + k, first_sample=t * batch + k * samples)
            between = time.perf_counter()
            parts.step(rows, iteration=t, first_sample=t * batch)
            ended = time.perf_counter()
            if t > 1:
                times["full"].append(between - begun)
                times["parallel"].append(ended - between)
            t += 1
        ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
        median = {name: statistics.median(found) * 1e3 for name, found in times.items()}
        result = {
            "net": SIZES, "sub_models": k_all, "samples_each": samples, "threads": args.threads,
            "blas": blas.load().name, "rounds": len(times["full"]), "full_ms": median["full"],
            "parallel_ms": median["parallel"], "ratio": ratio, **counts(parts),
        }  # fmt: skip
        results.append(result)
        print(f"{SIZES}, {k_all} sub-models of {samples} samples: {median['parallel']:.1f} ms, "
              f"{k_all} full steps {median['full']:.1f} ms, {ratio:.2f}x as fast")  # fmt: skip
        if args.profile:
            profile(parts, rows)
    print(f"weights of a sub-model {results[-1]['weights']}, of the network "
          f"{results[-1]['weights_of_network']}; {results[-1]['bytes_sent'] / 1e6:.2f} MB sent per "
          f"sub-model, of {results[-1]['bytes_of_network'] / 1e6:.2f} MB")  # fmt: skip
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    if args.claims:
        sys.exit(any(r["ratio"] < LIMIT for r in results))


def profile(engine: SubModels, rows: np.ndarray) -> None:
    """Where the time of a sub-model goes: the longest instructions."""
    small, n = engine.smalls[0], len(rows) // engine.n_sub_models
    runner = small.engine.training_runner
    small.step(rows[:n], 0, 0)
    for what, tape, first in (("step", runner.tape, runner.first), ("move", small.tape, 0)):  # type: ignore[attr-defined]
        tape.clock(True)
        for _ in range(N_PROFILED):
            tape.run(first)
        tape.clock(False)
        found = sorted(zip(tape.labels, tape.times(), strict=True), key=lambda x: -x[1])
        for label, seconds in found[:12]:
            print(f"  {what}: {label} {seconds / N_PROFILED * 1e6:.0f} us")


if __name__ == "__main__":
    main()
