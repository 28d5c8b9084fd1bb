"""One training step of a user-written neuron against PyTorch, interleaved, after the losses agree.

    python -m tests.bench.bench_step [--nets A B C] [--batches 20 100 1000] [--threads 1 2]
                                     [--dropout] [--eager] [--seconds 12] [--json out.json]
                                     [--claims]

A step is forward, loss, backward and momentum update. All sides are given the same batch; horn
also gathers it from the data by row numbers. Each side has a process of its own, which sleeps while
another runs: in one process the pools of PyTorch, NumPy and horn spin on each other's cores. A
block is a pause (an idle OpenBLAS spins for a tenth of a second after its last product), some steps
that do not count, then some that do; it counts if the machine was calm (tests/bench/calm), where it
is calm often enough. With 1 thread all sides run on one processor. The opponent is the fastest of
PyTorch's eager mode and torch.compile, each with SGD foreach and SGD fused (--eager leaves
torch.compile out: it needs a C++ compiler and half a minute to start). HORN_BLAS chooses horn's
library; without it products may be horn's own (docs/notes/0070). Beside it runs the same arithmetic
written by hand with np.dot(out=) and no allocation, on NumPy's own BLAS. --claims prints what is
promised (issue 2) and whether it holds, by the medians of the blocks. The exit code is 1 where a
claim does not hold.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import horn
from horn._kernels import blas, engine
from horn.backends import Setup, make
from horn.data import Dataset
from tests.bench.calm import interleaved

NETS = {
    "A": [784, 512, 10],
    "B": [784, 512, 512, 10],
    "C": [784, 2500, 2000, 1500, 1000, 500, 10],
}
RATE, MOMENTUM = 0.01, 0.9
# PyTorch's time over horn's, at least; of C, which is measured at batch 100 only, by threads
TARGETS = {
    "openblas": {20: 1.2, 100: 1.1, 1000: 0.9, "dropout": 1.6, "C": {1: 0.9, 2: 0.85}},
    "mkl": {20: 1.7, 100: 1.3, 1000: 1.1, "dropout": 2.0, "C": {1: 1.0, 2: 1.0}},
}
UNTIMED_S, TIMED_S = 0.03, 0.06  # of a block
OVER_NUMPY = 1.05  # horn's time over that of the hand-written NumPy step, at most


class MyNeuron(horn.Neuron):
    """What a user writes."""

    def forward(self, messages: Any) -> None:
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))

    def backward(self, messages: Any) -> None:
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(gradient * self.activation.derivative(self.output))


class MyDropout(horn.Neuron):
    """Dropout as a user writes it, one draw per sample."""

    keep = 0.5

    def forward(self, messages: Any) -> None:
        mask = self.bernoulli(self.keep) if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


def network(sizes: list[int], dropout: bool) -> horn.Network:
    net = horn.Network(seed=7)
    net.input(sizes[0], keep=0.8 if dropout else 1.0)
    for size in sizes[1:-1]:
        net.layer(size, neuron=MyDropout if dropout else MyNeuron, activation="relu")
    net.output(sizes[-1], neuron=MyNeuron, activation="softmax", loss="cross_entropy")
    return net


Step = Callable[[], float]


def horn_step(net: horn.Network, data: Dataset, batch: int, threads: int) -> Step:
    optimizer = horn.SGD(RATE, momentum=MOMENTUM)
    runs = make("kernels", Setup(net, optimizer, "labels", batch, "float32", threads))
    runs.bind(data)
    rows = np.arange(batch)
    count = iter(range(1 << 60))

    def step() -> float:
        t = next(count)
        return runs.step(rows, iteration=t, first_sample=t * batch)

    return step


def torch_step(sizes: list[int], start: dict[str, Any], x: Any, y: Any, dropout: bool,
               fused: bool, compiled: bool) -> Step:  # fmt: skip
    import torch

    layers: list[Any] = [torch.nn.Dropout(0.2)] if dropout else []
    for k, (n_in, n_out) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
        linear = torch.nn.Linear(n_in, n_out)
        names = list(start)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(start[names[2 * k - 2]]))
            linear.bias.copy_(torch.from_numpy(start[names[2 * k - 1]]))
        layers.append(linear)
        if k < len(sizes) - 1:
            layers.append(torch.nn.ReLU())
            if dropout:
                layers.append(torch.nn.Dropout(0.5))
    model = torch.nn.Sequential(*layers)
    how = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, **how)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def forward() -> Any:
        return torch.nn.functional.cross_entropy(model(tx), ty)

    run = torch.compile(forward) if compiled else forward

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = run()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def numpy_step(sizes: list[int], start: dict[str, Any], x: Any, y: Any) -> Step:
    """The step by hand: np.dot and ufuncs into arrays made once."""
    batch, layers = len(x), range(len(sizes) - 1)
    names = list(start)
    w = [start[names[2 * k]].copy() for k in layers]
    b = [start[names[2 * k + 1]].copy() for k in layers]
    vw, vb = [np.zeros_like(a) for a in w], [np.zeros_like(a) for a in b]
    gw, gb = [np.empty_like(a) for a in w], [np.empty_like(a) for a in b]
    outputs = [np.empty((batch, n), np.float32) for n in sizes]
    deltas = [np.empty((batch, n), np.float32) for n in sizes]
    live = [np.empty((batch, n), bool) for n in sizes]
    column = np.empty((batch, 1), np.float32)
    rows = np.arange(batch)

    def step() -> float:
        np.take(x, rows, 0, outputs[0])
        for k in layers:
            z = outputs[k + 1]
            np.dot(outputs[k], w[k].T, out=z)
            z += b[k]
            if k < layers[-1]:
                np.maximum(z, 0, out=z)
        z, delta = outputs[-1], deltas[-1]
        np.max(z, axis=1, keepdims=True, out=column)
        np.subtract(z, column, out=z)
        np.exp(z, out=delta)
        np.sum(delta, axis=1, keepdims=True, out=column)
        loss = float(np.mean(np.log(column[:, 0]) - z[rows, y]))
        np.divide(delta, column, out=delta)
        delta[rows, y] -= 1
        delta *= np.float32(1 / batch)
        for k in reversed(layers):
            if k:
                np.dot(deltas[k + 1], w[k], out=deltas[k])
                np.greater(outputs[k], 0, out=live[k])
                deltas[k] *= live[k]
            np.dot(deltas[k + 1].T, outputs[k], out=gw[k])
            np.sum(deltas[k + 1], axis=0, out=gb[k])
            for p, v, g in ((w[k], vw[k], gw[k]), (b[k], vb[k], gb[k])):
                v *= np.float32(MOMENTUM)
                g *= np.float32(RATE)
                v -= g
                p += v
        return loss

    return step


def set_numpy_threads(n: int) -> bool:
    """Tell the OpenBLAS that NumPy loaded; False if there is none."""
    try:
        library = blas.load("openblas")
    except ValueError:
        return False
    ctypes.CFUNCTYPE(None, ctypes.c_int)(library.set_threads)(n)
    return True


def make_side(label: str, name: str, batch: int, threads: int, dropout: bool) -> Step | None:
    """One side's step, in the process that it has for itself; None if it cannot be here."""
    sizes = NETS[name]
    rng = np.random.default_rng(0)
    x = rng.random((batch, sizes[0]), dtype=np.float32)
    y = rng.integers(0, sizes[-1], batch)
    net = network(sizes, dropout)
    if label == "horn":
        return horn_step(net, Dataset(x, y), batch, threads)
    start = net.initial_parameters()
    if label == "numpy":
        return numpy_step(sizes, start, x, y) if set_numpy_threads(threads) else None
    import torch

    torch.set_num_threads(threads)
    compiled, fused = label.startswith("compile"), label.endswith("fused")
    return torch_step(sizes, start, x, y, dropout, fused, compiled)


def side_main(pipe: Any, label: str, *what: Any) -> None:
    """Does as it is told: (n untimed, n timed) -> seconds of the timed steps, their last loss."""
    step = make_side(label, *what)
    if step is None:
        pipe.send(None)
        return
    pipe.send([step() for _ in range(5)])
    threads = what[2]
    if threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    while (order := pipe.recv()) is not None:
        untimed, timed = order
        for _ in range(untimed):
            step()
        begin = time.perf_counter()
        for _ in range(timed):
            step()
        pipe.send(time.perf_counter() - begin)


class Side:
    """The process of one side."""

    def __init__(self, label: str, *what: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=side_main, args=(theirs, label, *what), daemon=True)
        self.process.start()
        self.losses = self.hear()

    def hear(self) -> Any:
        if not self.pipe.poll(300):
            raise TimeoutError("a side says nothing")
        return self.pipe.recv()

    def run(self, untimed: int, timed: int) -> float:
        self.pipe.send((untimed, timed))
        return float(self.hear())

    def close(self) -> None:
        if self.process.is_alive() and self.losses is not None:
            self.pipe.send(None)
        self.process.join(30)


def bench(name: str, batch: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    labels = ["horn", "foreach", "fused"]
    if not args.eager:
        labels += ["compile foreach", "compile fused"]
    if not args.dropout:
        labels.append("numpy")
    sides = {label: Side(label, name, batch, threads, args.dropout) for label in labels}
    if "numpy" in sides and sides["numpy"].losses is None:
        sides.pop("numpy").close()
    try:
        return measure(sides, name, batch, threads, args)
    finally:
        for side in sides.values():
            side.close()


def block(side: Side, untimed: int, timed: int) -> float:
    """Seconds per step."""
    return side.run(untimed, timed) / timed


def measure(
    sides: dict[str, Side], name: str, batch: int, threads: int, args: argparse.Namespace
) -> dict[str, Any]:
    for label, side in sides.items():
        if args.dropout:
            assert np.isfinite(side.losses).all()
        else:
            np.testing.assert_allclose(side.losses, sides["horn"].losses, rtol=2e-4, err_msg=label)
    once = min(sides["foreach"].run(2, 3) / 3 for _ in range(3))
    untimed, timed = (max(1, round(s / once)) for s in (UNTIMED_S, TIMED_S))
    blocks = {label: partial(block, side, untimed, timed) for label, side in sides.items()}
    cpus = os.sched_getaffinity(0)
    if threads == 1:  # where the sides are
        os.sched_setaffinity(0, {max(cpus)})
    times, is_calm = interleaved(blocks, args.seconds, is_alone=threads == 1)
    os.sched_setaffinity(0, cpus)
    median = {label: statistics.median(t) for label, t in times.items()}
    opponents = [label for label in median if label not in ("horn", "numpy")]
    best = min(opponents, key=lambda k: median[k])
    result = {
        "net": name, "batch": batch, "threads": threads, "dropout": args.dropout,
        "blas": blas.load().name, "products": engine.Tape().products, "simd": engine.LEVEL,
        "horn_us": median["horn"] * 1e6,
        "best": best, "best_us": median[best] * 1e6, "ratio": median[best] / median["horn"],
        "ratio_of_fastest": min(min(times[k]) for k in opponents) / min(times["horn"]),
        "horn_fastest_us": min(times["horn"]) * 1e6, "blocks": min(map(len, times.values())),
        "is_calm": is_calm,
    }  # fmt: skip
    if "numpy" in times:
        result["numpy_us"] = median["numpy"] * 1e6
        result["over_numpy"] = median["horn"] / median["numpy"]
    return result


def claims(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is promised of these results, and whether it holds."""
    rows = []
    for r in results:
        targets: dict[Any, Any] = TARGETS.get(r["blas"], {})
        target = targets.get(r["batch"])
        if r["net"] == "C":
            target = targets.get("C", {}).get(r["threads"]) if r["batch"] == 100 else None
        if r["dropout"]:
            target = targets.get("dropout") if r["batch"] == 100 and r["net"] != "C" else None
        what = {key: r[key] for key in ("net", "batch", "threads", "blas")}
        if target is not None:
            measured = r["ratio"]
            rows.append({**what, "claim": f"PyTorch / horn >= {target:g}", "measured": measured,
                         "holds": measured >= target})  # fmt: skip
        if "over_numpy" in r:
            measured = r["over_numpy"]
            rows.append({**what, "claim": f"horn / NumPy <= {OVER_NUMPY:g}", "measured": measured,
                         "holds": measured <= OVER_NUMPY})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--nets", nargs="+", default=["A", "B", "C"], choices=list(NETS))
    parser.add_argument("--batches", nargs="+", type=int, default=[20, 100, 1000])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dropout", action="store_true", help="input keep 0.8, hidden keep 0.5")
    parser.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--claims", action="store_true", help="the table of what is promised")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = []
    for threads in args.threads:
        for name in args.nets:
            for batch in args.batches:
                if name == "C" and batch != 100 and len(args.nets) > 1:
                    continue
                r = bench(name, batch, threads, args)
                results.append(r)
                disturbed = "" if r["is_calm"] else ", DISTURBED"
                numpy = f"{r['over_numpy']:.2f} of NumPy's" if "over_numpy" in r else ""
                made = r["blas"] if r["products"] == r["blas"] else f"{r['products']} ({r['blas']})"
                print(f"{name} b{batch:<5} threads {threads}  products by {made:15} horn "
                      f"{r['horn_us']:9.0f} us   PyTorch {r['best']:8} {r['best_us']:9.0f} us   "
                      f"ratio {r['ratio']:.2f}  of the fastest "
                      f"{r['ratio_of_fastest']:.2f} ({r['blocks']} blocks{disturbed})  {numpy}",
                      flush=True)  # fmt: skip
    promised = claims(results)
    if args.claims:
        print(
            f"\n{'net':4}{'batch':>6}{'threads':>8}  {'BLAS':9}{'claim':24}{'measured':>9}  holds"
        )
        for c in promised:
            print(f"{c['net']:4}{c['batch']:6}{c['threads']:8}  {c['blas']:9}{c['claim']:24}"
                  f"{c['measured']:9.2f}  {'yes' if c['holds'] else 'NO'}")  # fmt: skip
    if args.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
        where = {"commit": commit.stdout.strip(), "cpu": _cpu(), "cores": os.cpu_count()}
        with open(args.json, "w") as file:
            json.dump({"where": where, "results": results, "claims": promised}, file, indent=1)
    sys.exit(not all(c["holds"] for c in promised))


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return "unknown"


if __name__ == "__main__":
    main()
