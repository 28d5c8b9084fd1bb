"""One network over 2 tasks against 1 task: training steps, interleaved, in one run.

    python -m tests.bench.bench_model_parallel [--json FILE] [--rounds N] [--claims]

Contenders, each in processes of its own that sleep while another runs: a group of 2 tasks with 1
thread each over shared memory, placed as the plan chooses; 1 task with 1 thread; 1 task with 2
threads. The losses of the first steps are compared before the clock starts. A round gives each
contender a block of steps; a group's block takes as long as its slowest task. Ratios are of
medians; the limits are those of issue 4.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import horn
from horn.backends import Setup, make
from horn.compiler.placement import Placement
from horn.data import Dataset
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Place, open_transport

NETS = {"4096-4096-4096-10": 8, "784-512-512-10": 60}  # sizes: steps in a block
BATCH = 100
N_SAMPLES = 2000
TIMEOUT_S = 120.0
# (net, opponent): how many times faster 2 tasks must be
LIMITS = {
    ("4096-4096-4096-10", "1 thread"): 1.75,
    ("4096-4096-4096-10", "2 threads"): 0.95,
    ("784-512-512-10", "1 thread"): 1.5,
}


def network(sizes: str) -> horn.Network:
    first, *hidden, last = map(int, sizes.split("-"))
    net = horn.Network(seed=3)
    net.input(first)
    for size in hidden:
        net.layer(size, activation="relu")
    net.output(last, activation="softmax", loss="cross_entropy")
    return net


def dataset(sizes: str) -> Dataset:
    first, *_, last = map(int, sizes.split("-"))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (N_SAMPLES, first), np.uint8)
    return Dataset(x, rng.integers(0, last, N_SAMPLES), 1 / 255, "noise")


def contender(sizes: str, task: int, n_tasks: int, threads: int, job: str, pipe: Any) -> None:
    """Runs blocks of steps when told to; sends losses or seconds."""
    net, data = network(sizes), dataset(sizes)
    setup = Setup(net, horn.SGD(0.01, momentum=0.9), "labels", BATCH, "float32", threads)
    transport = None
    if n_tasks == 1:
        engine: Any = make("kernels", setup)
    else:
        transport = open_transport("shm://", Place(task, n_tasks, job))
        pipe.send(transport.endpoint)
        transport.connect(pipe.recv(), TIMEOUT_S)
        group = Group(transport, timeout_s=TIMEOUT_S)
        engine = GroupEngine(setup, placement(sizes, n_tasks), group)
    engine.bind(data)
    iteration = 0
    while True:
        n_steps = pipe.recv()
        if n_steps is None:
            break
        losses = []
        begun = time.perf_counter()
        for _ in range(n_steps):
            rows = np.arange(iteration * BATCH, (iteration + 1) * BATCH) % N_SAMPLES
            losses.append(engine.step(rows, iteration=iteration, first_sample=iteration * BATCH))
            iteration += 1
        pipe.send((time.perf_counter() - begun, losses))
    if transport is not None:
        spent = group.spent
        pipe.send(spent)
        transport.close()


def placement(sizes: str, n_tasks: int) -> Placement:
    chosen = os.environ.get(
        "HORN_PLACEMENT"
    )  # as in receiver,sender,sender:all,neurons,neurons,all
    if chosen:
        links, layers = (part.split(",") for part in chosen.split(":"))
        return Placement({(k + 1, 0): w for k, w in enumerate(links)}, dict(enumerate(layers)))
    from horn.runtime import planning

    data = dataset(sizes)
    job = horn.Job(network(sizes), data=(data.x, data.y), optimizer=horn.SGD(0.01, momentum=0.9),
                   batch_size=BATCH)  # fmt: skip
    return planning.choose(job, n_tasks, transport="shm").placement


class Contender:
    def __init__(self, sizes: str, n_tasks: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        job = f"bench-{os.getpid()}"
        self.pipes, self.processes = [], []
        for task in range(n_tasks):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=contender, args=(sizes, task, n_tasks, threads, job, theirs)
            )
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        if n_tasks > 1:
            endpoints = [pipe.recv() for pipe in self.pipes]
            for pipe in self.pipes:
                pipe.send(endpoints)

    def run(self, n_steps: int) -> tuple[float, list[float]]:
        for pipe in self.pipes:
            pipe.send(n_steps)
        answers = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if not pipe.poll(TIMEOUT_S):
                raise TimeoutError(f"process {process.pid} says nothing")
            answers.append(pipe.recv())
        return max(seconds for seconds, _ in answers), answers[0][1]

    def close(self) -> list[Any]:
        spent = []
        for pipe in self.pipes:
            pipe.send(None)
        if len(self.pipes) > 1:
            spent = [pipe.recv() for pipe in self.pipes]
        for process in self.processes:
            process.join(TIMEOUT_S)
        return spent


def bench(sizes: str, rounds: int) -> dict[str, Any]:
    contenders = {
        "2 tasks": Contender(sizes, 2, 1),
        "1 thread": Contender(sizes, 1, 1),
        "2 threads": Contender(sizes, 1, 2),
    }
    checked = {name: c.run(5)[1] for name, c in contenders.items()}
    for name, losses in checked.items():
        np.testing.assert_allclose(losses, checked["1 thread"], rtol=2e-4, err_msg=name)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, c in contenders.items():
            times[name].append(c.run(NETS[sizes])[0] / NETS[sizes])
    spent = contenders["2 tasks"].close()
    for name in ("1 thread", "2 threads"):
        contenders[name].close()
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"\n{sizes}, batch {BATCH}: ms per step, median (least) of {rounds} blocks")
    ratios = {name: median / medians["2 tasks"] for name, median in medians.items()}
    for name, found in times.items():
        limit = LIMITS.get((sizes, name))
        verdict = "MISSED" if limit is not None and ratios[name] < limit else "ok"
        wanted = "" if limit is None else f"  (wanted {limit:g}: {verdict})"
        print(f"  {name:10} {medians[name] * 1e3:8.3f} ({min(found) * 1e3:.3f})  2 tasks take "
              f"1/{ratios[name]:.2f} of it, by least times 1/"
              f"{min(found) / min(times['2 tasks']):.2f}{wanted}")  # fmt: skip
    for task, s in enumerate(spent):
        n = max(s.n_runs, 1)
        words = [
            f"{what} {getattr(s, f'{what}_s') / n * 1e6:.0f}"
            for what in ("compute", "pack", "send", "wait", "unpack")
        ]
        moved = f"{s.n_supersteps / n:g} supersteps, {s.sent_bytes / n / 1e3:.0f} kB sent"
        print(f"  task {task}, us per step: {', '.join(words)}; {moved}")
    return {"median_s": medians, "ratios": ratios}


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    parser.add_argument("--only", help="one of the networks")
    options = parser.parse_args(args)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads are horn's own, one BLAS call each
    found = {sizes: bench(sizes, options.rounds) for sizes in NETS if options.only in (None, sizes)}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    missed = [
        (sizes, name)
        for (sizes, name), limit in LIMITS.items()
        if sizes in found and found[sizes]["ratios"][name] < limit
    ]
    return 1 if missed and options.claims else 0


if __name__ == "__main__":
    sys.exit(main())
