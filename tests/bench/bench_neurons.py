"""Compiled against interpreted: a training step of ten neurons, per connection and sample.

    python -m tests.bench.bench_neurons [--seconds 1] [--threads 1] [--json out.json] [NAME ...]

The same class runs in the interpreter (backend "python", float64) on a small net and in the
compiled program (backend "kernels", float32) on a net of ordinary size. Both times are divided by
connections x samples, since the interpreter would take hours for the large one; what a neuron costs
besides its connections is in both. Before that, outputs, deltas and gradients of the two backends
are compared in float64 on the small net. Exit code 1 if they differ or a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import horn
from horn import explain, math
from horn.backends import Setup, make
from horn.data import Dataset

DENSE_CLAIM, FUSED_CLAIM = 5_000.0, 200.0
SMALL, ROWS = (48, 12, 6), 2  # the interpreter's net: inputs, neurons, outputs; samples
WIDE, MANY = (784, 512, 10), 100  # where matrix products do the work
MIDDLE, SOME = (256, 128, 10), 64  # where a fused loop does: its cost is the connections' own


class Weighted(horn.Neuron):
    """The README's, with its backward written by hand."""

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


class Dropped(horn.Neuron):
    """Dropout, one draw per sample."""

    def forward(self, messages: Any) -> None:
        mask = self.bernoulli(0.5) if self.training else 0.5
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


class Radial(horn.Neuron):
    """A radial basis neuron: three matrix products."""

    sharpness = horn.Parameter(0.05)

    def forward(self, messages: Any) -> None:
        distance = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(math.exp(-self.sharpness * distance))


class Standardised(horn.Neuron):
    """Sees its inputs with their mean taken off and their spread divided out."""

    def forward(self, messages: Any) -> None:
        mean = sum(m.input for m in messages) / len(messages)
        spread = sum((m.input - mean) ** 2 for m in messages) / len(messages)
        total = sum((m.input - mean) * m.weight for m in messages)
        self.feedforward(self.activation(total / math.sqrt(spread + 1e-3)))


class Largest(horn.Neuron):
    """The largest message."""

    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input * m.weight for m in messages))


class Saturating(horn.Neuron):
    """Each synapse saturates by itself."""

    def forward(self, messages: Any) -> None:
        self.feedforward(sum(math.tanh(m.input * m.weight) for m in messages))


class Product(horn.Neuron):
    """Messages multiply."""

    def forward(self, messages: Any) -> None:
        p = 1.0
        for m in messages:
            p *= 1.0 + 0.05 * m.input * m.weight
        self.feedforward(self.activation(p))


class Tuned(horn.Neuron):
    """A sum of Gaussian bumps, one per synapse."""

    def forward(self, messages: Any) -> None:
        self.feedforward(sum(math.exp(-((m.input - m.weight) ** 2)) for m in messages))


class Manhattan(horn.Neuron):
    """How far the sample is, along the axes."""

    def forward(self, messages: Any) -> None:
        self.feedforward(math.exp(-0.05 * sum(abs(m.input - m.weight) for m in messages)))


class Gated(horn.Neuron):
    """A synapse opens where its input is above its weight."""

    def forward(self, messages: Any) -> None:
        total = 0.0
        for m in messages:
            if m.input > m.weight:
                total += m.input * m.weight
            else:
                total += 0.1 * m.input
        self.feedforward(self.activation(total))


NEURONS: dict[str, type[horn.Neuron]] = {
    c.__name__: c
    for c in (
        Weighted,
        Dropped,
        Radial,
        Standardised,
        Largest,
        Saturating,
        Product,
        Tuned,
        Manhattan,
        Gated,
    )
}


@dataclass(frozen=True)
class Row:
    """What was measured of one neuron. Times in nanoseconds per connection and sample."""

    neuron: str
    runs_as: str
    interpreted_net: str
    interpreted_ns: float
    compiled_net: str
    compiled_ns: float
    ratio: float

    @property
    def is_contraction(self) -> bool:
        return "fused loop" not in self.runs_as


def network(neuron: type[horn.Neuron], sizes: tuple[int, ...]) -> horn.Network:
    net = horn.Network(seed=3)
    net.input(sizes[0])
    net.layer(sizes[1], neuron=neuron, activation="tanh")
    net.output(sizes[2], activation="softmax", loss="cross_entropy")
    return net


def engine(net: horn.Network, backend: str, batch: int, dtype: str, threads: int) -> Any:
    rng = np.random.default_rng(0)
    x = rng.random((batch, net.n_inputs)).astype(dtype)
    optimizer = horn.SGD(0.01, momentum=0.9)
    made = make(backend, Setup(net, optimizer, "labels", batch, dtype, threads))
    made.bind(Dataset(x, np.arange(batch) % net.last.size))
    return made


def check(neuron: type[horn.Neuron]) -> None:
    """The two backends say the same of the small net. Raises AssertionError."""
    net = network(neuron, SMALL)
    rows = np.arange(ROWS)
    found = [
        engine(net, backend, ROWS, "float64", 1).probe(rows, iteration=0, first_sample=0)
        for backend in ("python", "kernels")
    ]
    assert set(found[0]) == set(found[1])
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-9, atol=1e-11, err_msg=name)


def stepper(
    net: horn.Network, backend: str, batch: int, dtype: str, threads: int
) -> tuple[Callable[[], float], int]:
    """A training step, and by how many connections x samples to divide its time."""
    made = engine(net, backend, batch, dtype, threads)
    rows = np.arange(batch)
    count = iter(range(1 << 60))

    def step() -> float:
        t = next(count)
        return float(made.step(rows, iteration=t, first_sample=t * batch))

    return step, batch * sum(layer.fan_in * layer.size for layer in net.layers[1:])


def median_seconds(step: Callable[[], float], seconds: float, least: int = 3) -> float:
    assert np.isfinite(step())
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(name: str, seconds: float, threads: int) -> Row:
    neuron = NEURONS[name]
    check(neuron)
    runs_as = explain.runs_as(network(neuron, SMALL))["layer1"]
    sizes, batch = (MIDDLE, SOME) if "fused loop" in runs_as else (WIDE, MANY)
    slow, slow_units = stepper(network(neuron, SMALL), "python", ROWS, "float64", 1)
    fast, fast_units = stepper(network(neuron, sizes), "kernels", batch, "float32", threads)
    slow_ns = 1e9 * median_seconds(slow, seconds) / slow_units
    fast_ns = 1e9 * median_seconds(fast, seconds) / fast_units
    return Row(
        name,
        runs_as,
        _shape(SMALL, ROWS),
        slow_ns,
        _shape(sizes, batch),
        fast_ns,
        slow_ns / fast_ns,
    )


def _shape(sizes: tuple[int, ...], batch: int) -> str:
    return "-".join(map(str, sizes)) + f" x {batch}"


def table(rows: list[Row]) -> str:
    lines = [
        "training step, median, ns per connection and sample",
        f"{'neuron':<13}{'runs as':<31}{'interpreted':>23}{'compiled':>26}{'ratio':>10}",
    ]
    for r in rows:
        slow = f"{r.interpreted_ns:,.0f} ({r.interpreted_net})"
        fast = f"{r.compiled_ns:.3f} ({r.compiled_net})"
        lines.append(f"{r.neuron:<13}{r.runs_as:<31}{slow:>23}{fast:>26}{r.ratio:>10,.0f}")
    return "\n".join(lines)


def claims(rows: list[Row]) -> list[tuple[str, bool]]:
    """Each claim in words, and whether it holds."""
    dense = max((r.ratio for r in rows if r.neuron == "Weighted"), default=0.0)
    fused = max((r.ratio for r in rows if not r.is_contraction), default=0.0)
    return [
        (
            f"a dense neuron is {dense:,.0f}x faster (claim {DENSE_CLAIM:,.0f}x)",
            dense >= DENSE_CLAIM,
        ),
        (
            f"a non-contraction is {fused:,.0f}x faster (claim {FUSED_CLAIM:,.0f}x)",
            fused >= FUSED_CLAIM,
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *NEURONS], help="only these neurons")
    parser.add_argument("--seconds", type=float, default=1.0, help="time per side and neuron")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(arguments)
    rows = [measure(name, args.seconds, args.threads) for name in args.names or NEURONS]
    print(table(rows))
    found = claims(rows) if not args.names else []
    for words, holds in found:
        print(("holds  " if holds else "FAILS  ") + words)
    if args.json:
        where = {"machine": platform.machine(), "cores": os.cpu_count(), "threads": args.threads}
        result = {
            "where": where,
            "rows": [asdict(r) for r in rows],
            "claims": [{"claim": words, "holds": holds} for words, holds in found],
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return 0 if all(holds for _, holds in found) else 1


if __name__ == "__main__":
    sys.exit(main())
