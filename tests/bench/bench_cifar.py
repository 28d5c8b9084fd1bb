"""examples/cifar10.py beside the same net in PyTorch: the curves of docs/results.md.

    python -m tests.bench.bench_cifar [--seeds 1 2 3] [--epochs 10] [--sides horn torch]
    python -m tests.bench.bench_cifar --table --picture docs/cifar10.svg

Both sides begin with the same weights and see the same batches, in the same order, at the same
learning rates; the test images are looked at after each epoch, and nothing is chosen by them. The
losses of the first updates must agree. A line of examples/results/cifar10.jsonl is one training;
what is there is not done again. Exit code 1 if the losses differ, or, with --table, the mean
accuracies by more than a point.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import horn
from examples import cifar10
from horn.data import permutation

FILE = Path(__file__).parents[2] / "examples" / "results" / "cifar10.jsonl"
SIDES = {"horn": "#c0392b", "torch": "#2c5f8a"}
FIRST = 3  # updates whose losses are compared
Row = tuple[float, float, float]  # of an epoch: mean loss; of the test images: loss, accuracy


class Losses(horn.Callback):
    """The loss of every update."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_batch_end(self, context: horn.callbacks.TrainingContext) -> None:
        self.found.append(context.loss)


def ours(job: horn.Job) -> Iterator[Any]:
    """The losses of the first updates, then the rows of all epochs."""
    losses = Losses()
    watched = job.with_settings(validation=job.test, test=None, callbacks=[losses])
    run = horn.train(watched, threads=1)
    yield losses.found[:FIRST]
    for row in run.history:
        yield row["loss"], row["val_loss"], row["val_acc"]


def theirs(job: horn.Job) -> Iterator[Any]:
    """The same, of PyTorch with images channels last in memory."""
    import torch
    from torch.nn import functional as f

    torch.set_num_threads(1)
    weights, biases = [], []
    arrays = job.network.initial_parameters()
    for layer in job.network.layers[1:]:
        if f"{layer.name}.bias" not in arrays:
            continue
        (weight,) = (arrays[link.weight] for link in layer.links)
        if weight.ndim == 4:  # maps, window, channels
            weight = weight.transpose(0, 3, 1, 2)
        weights.append(torch.tensor(np.ascontiguousarray(weight)).requires_grad_())
        biases.append(torch.tensor(arrays[f"{layer.name}.bias"]).requires_grad_())

    def outputs(x: Any) -> Any:
        for k, (w, b) in enumerate(zip(weights[:3], biases, strict=False)):
            x = torch.relu(f.conv2d(x, w, b, padding=2))
            pool = f.avg_pool2d if k else f.max_pool2d
            x = pool(x, 3, 2, ceil_mode=True)
            if k < 2:
                x = f.local_response_norm(x, 3, alpha=0.2, beta=0.75, k=1.0)
        return f.linear(x.permute(0, 2, 3, 1).flatten(1), weights[3], biases[3])

    def images(data: horn.data.Dataset, rows: Any) -> Any:
        x = data.read(rows, np.empty((len(rows), data.n_features), np.float32))
        return torch.tensor(x.reshape(-1, 32, 32, 3)).permute(0, 3, 1, 2)

    learned = [(w, job.optimizer.weight_decay) for w in weights] + [(b, 0.0) for b in biases]
    velocities = [torch.zeros_like(array) for array, _ in learned]
    n, size, iteration, first = len(job.data), job.batch_size, 0, []
    momentum: float = job.optimizer.momentum  # type: ignore[attr-defined]
    found = []
    for epoch in range(job.epochs or 0):
        total, order = 0.0, permutation(n, job.network.seed, epoch)
        for start in range(0, n, size):
            rows = order[start : start + size]
            loss = f.cross_entropy(outputs(images(job.data, rows)), torch.tensor(job.data.y[rows]))
            gradients = torch.autograd.grad(loss, [array for array, _ in learned])
            rate, now = job.optimizer.rate(iteration), float(loss.detach())
            with torch.no_grad():
                for (w, decay), v, g in zip(learned, velocities, gradients, strict=True):
                    v.mul_(momentum).add_(g + decay * w, alpha=-rate)
                    w.add_(v)
            first += [now] * (iteration < FIRST)
            total, iteration = total + now * len(rows), iteration + 1
        with torch.no_grad():
            y = torch.tensor(job.test.y)
            answers = [outputs(images(job.test, part)) for part in np.split(np.arange(len(y)), 20)]
            z = torch.cat(answers)
            right = float((z.argmax(1) == y).double().mean())
            found.append((total / n, float(f.cross_entropy(z, y)), right))
    yield first
    yield from found


def lines() -> dict[tuple[str, int, int], Any]:
    if not FILE.exists():
        return {}
    found = map(json.loads, FILE.read_text().splitlines())
    return {(line["side"], line["seed"], line["epochs"]): line for line in found}


def do(sides: list[str], seeds: list[int], epochs: int) -> None:
    for seed in seeds:
        for side in sides:
            if (side, seed, epochs) in lines():
                continue
            begun = time.process_time()
            first, *rows = (ours if side == "horn" else theirs)(cifar10.job(seed, epochs))
            line = {"side": side, "seed": seed, "epochs": epochs, "first": first,
                    "rows": [[round(number, 5) for number in row] for row in rows],
                    "cpu_s": round(time.process_time() - begun, 1)}  # fmt: skip
            with FILE.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


def is_as_told(seeds: list[int], epochs: int) -> bool:
    """Print a row for each side; whether they agree."""
    known, means, is_same = lines(), {}, True
    print("| | accuracy of the test images, each seed | mean | loss, mean | seconds |")
    print("|---|---|---|---|---|")
    for side in SIDES:
        mine = [known[side, seed, epochs] for seed in seeds]
        last = [line["rows"][-1] for line in mine]
        means[side] = statistics.mean(row[2] for row in last)
        said = ", ".join(f"{row[2]:.4f}" for row in last)
        loss = statistics.mean(row[1] for row in last)
        took = statistics.mean(line["cpu_s"] for line in mine)
        print(f"| {side} | {said} | {means[side]:.4f} | {loss:.3f} | {took:.0f} |")
    for seed in seeds:
        first = [known[side, seed, epochs]["first"] for side in SIDES]
        if not np.allclose(*first, rtol=2e-4):
            print(f"seed {seed}: losses of the first updates differ: {first}")
            is_same = False
    return is_same and abs(means["horn"] - means["torch"]) <= 0.01


def picture(path: Path, epochs: int) -> None:
    """Loss of the training images and accuracy of the test images, a line each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for (side, seed, n), line in sorted(lines().items()):
        if n != epochs:
            continue
        rows = np.array(line["rows"])
        for axes, column in zip(panels, (0, 2), strict=True):
            label = side if seed == 1 else None
            style = "-" if side == "horn" else "--"
            axes.plot(range(1, n + 1), rows[:, column], style, color=SIDES[side], label=label)
    for axes, title in zip(panels, ("loss of the training images", "accuracy of the test images"),
                           strict=True):  # fmt: skip
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    if asked.picture is not None:
        picture(asked.picture, asked.epochs)
    if asked.table:
        return int(not is_as_told(asked.seeds, asked.epochs))
    if asked.picture is None:
        do(asked.sides, asked.seeds, asked.epochs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
