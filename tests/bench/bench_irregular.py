"""Large irregular networks that learn from one sample at a time, against PyTorch.

    python -m tests.bench.bench_irregular [--neurons 300000] [--batches 1 20] [--threads 1]
                                          [--seconds 6] [--compile] [NAME ...]

1,000 inputs, a hidden layer whose neurons hear ten others each, a tenth as many of which each hears
ten of these, and two softmax neurons that hear a hundred; SGD, float32. A step is forward, loss,
backward and update. "sums": weighted sums and tanh; "dendrites": each synapse saturates by itself.
PyTorch gathers what each neuron hears (the gradient of its sparse product is a dense matrix, of 36
GB here), with --compile also compiled (it needs a C++ compiler); the fastest counts. The losses of
the first three steps, from the same weights, are compared first; then all run by turns, a step at a
time; medians are of steps that ran while the processors were calm (tests/bench/calm), where they
were calm often enough.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import horn
from horn import math
from horn.backends import Setup, make
from horn.data import Dataset
from tests.bench.calm import interleaved

FEATURES, RATE, SAMPLES = 1000, 0.1, 60
Step = Callable[[int], float]


class Dendrites(horn.Neuron):
    """Each synapse saturates by itself."""

    def forward(self, messages: Any) -> None:
        z = sum(math.tanh(m.input * m.weight) for m in messages)
        self.feedforward(self.activation(z))


def network(neuron: type[horn.Neuron] | None, neurons: int) -> horn.Network:
    own: dict[str, Any] = {} if neuron is None else {"neuron": neuron}
    net = horn.Network(seed=1)
    net.input(FEATURES)
    for size in (neurons, neurons // 10):
        net.layer(size, connect=horn.Sparse(fan_in=10), activation="tanh", **own)
    net.output(2, connect=horn.Sparse(fan_in=100), activation="softmax", loss="cross_entropy")
    return net


def data() -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return Dataset(x, (x[:, 0] > 0).astype(int))


def rows_of(step: int, batch: int) -> np.ndarray[Any, Any]:
    return (np.arange(batch) + step * batch) % SAMPLES


def ours(net: horn.Network, batch: int, threads: int) -> Step:
    engine = make("kernels", Setup(net, horn.SGD(RATE), "labels", batch, "float32", threads))
    engine.bind(data())
    return lambda step: engine.step(rows_of(step, batch), iteration=step, first_sample=0)


def theirs(net: horn.Network, batch: int, kind: str, is_dendrites: bool) -> Step:
    import torch

    arrays = net.initial_parameters()
    learned, layers = [], []
    for layer in net.layers[1:]:
        [link] = layer.links
        edges = link.edges
        weight = torch.nn.Parameter(torch.tensor(arrays[link.weight]))
        bias = torch.nn.Parameter(torch.tensor(arrays[f"{layer.name}.bias"]))
        learned += [weight, bias]
        indices = torch.tensor(edges.indices.astype(np.int64))
        layers.append((weight, bias, indices, layer.size))

    def outputs(x: Any) -> Any:
        for k, (weight, bias, indices, size) in enumerate(layers):
            is_last = k == len(layers) - 1
            messages = x[:, indices] * weight
            if is_dendrites and not is_last:
                messages = torch.tanh(messages)
            z = messages.view(len(x), size, -1).sum(2)
            bias_of = torch.tanh(bias) if is_dendrites and not is_last else bias
            x = z + bias_of if is_last else torch.tanh(z + bias_of)
        return x

    if kind == "compiled":
        outputs = torch.compile(outputs)
    optimizer = torch.optim.SGD(learned, lr=RATE)
    judge = torch.nn.CrossEntropyLoss()
    given = data()
    x, y = torch.tensor(given.x), torch.tensor(given.y)

    def step(number: int) -> float:
        rows = torch.tensor(rows_of(number, batch))
        optimizer.zero_grad()
        loss = judge(outputs(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def timed(step: Step, first: int) -> Callable[[], float]:
    number = first

    def block() -> float:
        nonlocal number
        number += 1
        began = time.perf_counter()
        step(number)
        return time.perf_counter() - began

    return block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["sums", "dendrites"])
    parser.add_argument("--neurons", type=int, default=300_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(asked.threads)
    for name in asked.names:
        net = network(Dendrites if name == "dendrites" else None, asked.neurons)
        for batch in asked.batches:
            steps = {"horn": ours(net, batch, asked.threads)}
            for kind in ("gathered", *["compiled"] * asked.compile):
                steps[kind] = theirs(net, batch, kind, name == "dendrites")
            losses = {who: [step(k) for k in range(3)] for who, step in steps.items()}
            for who, found in losses.items():
                np.testing.assert_allclose(found, losses["horn"], rtol=1e-3, err_msg=who)
            blocks = {who: timed(step, 2) for who, step in steps.items()}
            found, is_calm = interleaved(blocks, asked.seconds, asked.threads == 1)
            ms = {who: 1e3 * statistics.median(times) for who, times in found.items()}
            best = min(ms[who] for who in ms if who != "horn")
            said = ", ".join(f"{who} {value:.1f} ms" for who, value in ms.items())
            ratio = best / ms["horn"]
            disturbed = "" if is_calm else " (DISTURBED)"
            print(f"{name}, batch {batch}, {asked.threads} thread(s): {said}; "
                  f"PyTorch / horn {ratio:.2f}{disturbed}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
