"""Neurons that are no matrix product: a training step against PyTorch, and against tiled C.

    python -m tests.bench.bench_loops [--large] [--threads 1] [--seconds 2] [--json FILE] [NAME ...]
    python -m tests.bench.bench_loops --stacked

The network has 784 inputs, 512 neurons of one kind and 10 softmax neurons, no biases; 100 samples,
SGD with momentum, float32; --large: 4,096 inputs and 1,600 neurons. PyTorch runs the fastest of
what its words allow (``cdist``, ``logsumexp``, products where there are any; by as many samples as
is fastest; eager, and with ``torch.compile`` where there is a C++ compiler), C is tiled.c next to
this file with -O3 -march=native -ffast-math -fopenmp, if there is a compiler. The weights after the
first step are compared, but for PyTorch's DropConnect, whose draws are its own; then all run by
turns in one process, a few steps at a time: medians in milliseconds. With several threads horn and
C run on one, too. Exit code 1 if answers differ.

--stacked: a neuron with two weights per synapse against as many neurons with one.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import horn
from horn import ir, math, random
from horn.backends import Setup, make
from horn.data import Dataset
from horn.language.layers import Reading

BATCH, CLASSES, RATE, MOMENTUM = 100, 10, 0.01, 0.9
ORDINARY, LARGE = (784, 512), (4096, 1600)
MOST = 1 << 24  # numbers of a chunk of (sample, neuron, input) that PyTorch may lay out
Array = Any
Step = Callable[[], float]


class Manhattan(horn.Neuron):
    """How far the sample is, along the axes."""

    def forward(self, messages: Any) -> None:
        self.feedforward(math.exp(-0.005 * sum(abs(m.input - m.weight) for m in messages)))


class LogSumExp(horn.Neuron):
    """A soft maximum of the messages."""

    def forward(self, messages: Any) -> None:
        top = math.stop_gradient(max(m.input * m.weight for m in messages))
        total = sum(math.exp(m.input * m.weight - top) for m in messages)
        self.feedforward(math.tanh(top + math.log(total)))


class Largest(horn.Neuron):
    """The largest message."""

    def forward(self, messages: Any) -> None:
        self.feedforward(math.tanh(max(m.input * m.weight for m in messages)))


class Dendrite(horn.Neuron):
    """Each synapse saturates by itself."""

    def forward(self, messages: Any) -> None:
        self.feedforward(math.tanh(sum(math.tanh(m.input * m.weight) for m in messages)))


class Attention(horn.Neuron):
    """The mean of the inputs, by the softmax of the messages."""

    def forward(self, messages: Any) -> None:
        top = math.stop_gradient(max(m.input * m.weight for m in messages))
        total = sum(math.exp(m.input * m.weight - top) for m in messages)
        found = sum(math.exp(m.input * m.weight - top) * m.input for m in messages)
        self.feedforward(math.tanh(found / total))


class NoisyOr(horn.Neuron):
    """On unless every cause that is there fails."""

    def forward(self, messages: Any) -> None:
        off = 1.0
        for m in messages:
            off *= 1.0 - 0.01 * m.input * math.sigmoid(m.weight)
        self.feedforward(1.0 - off)


class PNorm(horn.Neuron):
    """The 3-norm of the messages."""

    def forward(self, messages: Any) -> None:
        total = sum(abs(m.input * m.weight) ** 3 for m in messages)
        self.feedforward(math.tanh((1e-6 + total) ** (1 / 3)))


class Kuramoto(horn.Neuron):
    """How the phases of others pull at the neuron's own."""

    def forward(self, messages: Any) -> None:
        pull = sum(math.sin(m.input - m.weight) for m in messages)
        self.feedforward(math.tanh(pull / len(messages)))


class DropConnect(horn.Neuron):
    """Each message is lost half of the time."""

    def forward(self, messages: Any) -> None:
        total = 0.0
        for m in messages:
            keep = self.bernoulli(0.5) if self.training else 0.5
            total += keep * m.input * m.weight
        self.feedforward(math.tanh(total))


class Gated(horn.Neuron):
    """A gated linear unit: two weights per synapse."""

    value, gate = horn.Weight(), horn.Weight()

    def forward(self, messages: Any) -> None:
        value = sum(m.input * m.value for m in messages)
        self.feedforward(value * math.sigmoid(sum(m.input * m.gate for m in messages)))


class Linear(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(sum(m.input * m.weight for m in messages))


NEURONS: dict[str, type[horn.Neuron]] = {
    c.__name__: c
    for c in (
        Manhattan, LogSumExp, Largest, Dendrite, Attention, NoisyOr, PNorm, Kuramoto, DropConnect,
    )
}  # fmt: skip
TOGETHER = 4  # steps of a turn; the first, which wakes threads, does not count
PAUSE_S = 0.02  # between turns


class Case:
    """Data, and the weights that everybody begins with."""

    def __init__(self, name: str, sizes: tuple[int, int], threads: int) -> None:
        self.name, self.sizes, self.threads = name, sizes, threads
        rng = np.random.default_rng(0)
        self.x = rng.random((BATCH, sizes[0]), np.float32)
        self.labels = np.arange(BATCH) % CLASSES
        net = horn.Network(seed=3)
        net.input(sizes[0])
        net.layer(sizes[1], neuron=NEURONS[name], bias=False)
        net.output(CLASSES, activation="softmax", loss="cross_entropy", bias=False)
        self.net, self.optimizer = net, horn.SGD(RATE, momentum=MOMENTUM)
        self.first = {k: v.copy() for k, v in self._engine(1).parameters().items()}

    def _engine(self, threads: int) -> Any:
        setup = Setup(self.net, self.optimizer, "labels", BATCH, "float32", threads)
        engine = make("kernels", setup)
        engine.bind(Dataset(self.x, self.labels))
        return engine

    def horn(self, threads: int) -> tuple[Step, Callable[[], Array]]:
        engine, rows, count = self._engine(threads), np.arange(BATCH), iter(range(1 << 60))

        def step() -> float:
            t = next(count)
            return float(engine.step(rows, iteration=t, first_sample=t * BATCH))

        return step, lambda: engine.parameters()["layer1.weight"]

    def keys(self) -> Array:
        """What DropConnect's draws are made from, two words a neuron."""
        key = random.key(self.net.seed, 1)
        return random.receiver_keys(key, np.arange(self.sizes[1]), 0).astype(np.uint32)

    def site(self) -> int:
        """The number of the draw in the neuron's source, or 0."""
        forward, *_ = Reading().layer(self.net.layers[1], training=True)
        nodes = ir.walk(forward.output)
        return next((n.value[1] for n in nodes if n.op is ir.Op.MESSAGE_DRAW), 0)


def torch_step(case: Case, chunk: int, how: str) -> tuple[Step, Callable[[], Array]]:
    """PyTorch, "eager" or "compiled"; what does not fit is done for ``chunk`` samples at a time."""
    import torch

    torch.set_num_threads(case.threads)
    w = torch.from_numpy(case.first["layer1.weight"].copy()).requires_grad_()
    w2 = torch.from_numpy(case.first["layer2.weight"].copy()).requires_grad_()
    x, labels = torch.from_numpy(case.x), torch.from_numpy(case.labels)
    optimizer = torch.optim.SGD([w, w2], lr=RATE, momentum=MOMENTUM, foreach=True)

    def neurons(x: Any) -> Any:
        if case.name == "Manhattan":
            return torch.exp(-0.005 * torch.cdist(x, w, p=1.0))
        if case.name == "Kuramoto":
            pull = x.sin() @ w.cos().T - x.cos() @ w.sin().T
            return torch.tanh(pull / len(w[0]))
        if case.name == "PNorm":
            return torch.tanh((1e-6 + x.abs() ** 3 @ (w.abs() ** 3).T) ** (1 / 3))
        if case.name == "NoisyOr":
            return 1 - (1 - (0.01 * x)[:, None] * torch.sigmoid(w)).prod(2)
        if case.name == "DropConnect":
            mask = torch.empty(len(x), *w.shape).bernoulli_(0.5)
            return torch.tanh((x[:, None] * mask * w).sum(2))
        z = x[:, None] * w
        if case.name == "LogSumExp":
            return torch.tanh(z.logsumexp(2))
        if case.name == "Largest":
            return torch.tanh(z.max(2).values)
        if case.name == "Dendrite":
            return torch.tanh(z.tanh().sum(2))
        return torch.tanh((z.softmax(2) * x[:, None]).sum(2))

    if how == "compiled":
        torch._dynamo.reset()  # it compiles one function for few sizes
        neurons = torch.compile(neurons, dynamic=False)

    def step() -> float:
        optimizer.zero_grad()
        total = 0.0
        for begin in range(0, BATCH, chunk):
            here = slice(begin, begin + chunk)
            loss = torch.nn.functional.cross_entropy(
                neurons(x[here]) @ w2.T, labels[here], reduction="sum"
            )
            (loss / BATCH).backward()
            total += float(loss.detach())
        optimizer.step()
        return total / BATCH

    return step, lambda: w.detach().numpy()


class _Net(ctypes.Structure):
    """net_t of tiled.c."""

    _fields_ = [
        *[(name, ctypes.c_int) for name in ("kind", "batch", "n_in", "n_out", "threads")],
        *[(name, ctypes.c_uint32) for name in ("site", "iteration")],
        ("key", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in "w v w2 v2 p z top y g h at delta gw2".split()],
    ]


def compiled(folder: str) -> Any:
    """tiled.c, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source = Path(__file__).with_name("tiled.c")
    library, made = Path(folder) / "tiled.so", Path(folder) / "tiled.o"
    # Linked without -ffast-math: with it, loading the library flushes the whole process's
    # subnormal numbers to zero, for all that runs beside it and after it.
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC"]
    subprocess.run([compiler, *flags, "-c", source, "-o", made], check=True)
    subprocess.run([compiler, "-shared", "-fopenmp", made, "-o", library, "-lm"], check=True)
    found = ctypes.CDLL(str(library))
    found.step.restype = ctypes.c_float
    return found


def c_step(case: Case, library: Any, threads: int) -> tuple[Step, Callable[[], Array]]:
    n_in, n_out = case.sizes
    arrays = {
        "key": case.keys(),
        "w": case.first["layer1.weight"].copy(),
        "w2": case.first["layer2.weight"].copy(),
        **{name: np.zeros((n_out, n_in), np.float32) for name in "vp"},
        **{name: np.zeros((BATCH, n_out), np.float32) for name in ("z", "top", "y", "g", "h")},
        **{name: np.zeros((CLASSES, n_out), np.float32) for name in ("v2", "gw2")},
        "at": np.zeros((BATCH, n_out), np.int32),
        "delta": np.zeros((BATCH, CLASSES), np.float32),
    }
    net = _Net(list(NEURONS).index(case.name), BATCH, n_in, n_out, threads, case.site(), 0)
    for name, array in arrays.items():
        setattr(net, name, array.ctypes.data)
    x, labels = case.x, case.labels.astype(np.int32)
    room = np.zeros((n_out, n_in), np.float32)

    def step() -> float:
        return float(
            library.step(
                ctypes.byref(net), ctypes.c_void_p(x.ctypes.data),
                ctypes.c_void_p(labels.ctypes.data), ctypes.c_float(RATE),
                ctypes.c_float(MOMENTUM), ctypes.c_void_p(room.ctypes.data),
            )
        )  # fmt: skip

    return step, lambda: arrays["w"]


def chunks(case: Case) -> list[int]:
    """How many samples PyTorch may take at once."""
    if case.name in ("Manhattan", "Kuramoto", "PNorm"):
        return [BATCH]
    whole = case.sizes[0] * case.sizes[1]
    return [n for n in (1, 5, 20) if n * whole <= MOST] or [1]


def threads() -> set[int]:
    """The numbers of this process's threads, where the system says."""
    return {int(p.name) for p in Path("/proc/self/task").glob("*")} - {os.getpid()}


def place(started: list[int]) -> None:
    """One processor each for threads that a side has started: woken on the first one's, as happens
    beside other work, they would run one after the other.
    """
    others = sorted(os.sched_getaffinity(0))[1:] if started else []
    for k, thread in enumerate(started if others else ()):
        os.sched_setaffinity(thread, {others[k % len(others)]})


def seconds_of(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def measure(name: str, args: argparse.Namespace, library: Any) -> dict[str, Any]:
    case = Case(name, LARGE if args.large else ORDINARY, args.threads)
    steps = {}
    for n in sorted({args.threads, 1}, reverse=True):
        on = "" if n == args.threads else ", 1 thread"
        steps["horn" + on] = case.horn(n)
        if library is not None:
            steps["C" + on] = c_step(case, library, n)
    how = ""
    if not args.no_torch and importlib.util.find_spec("torch") is not None:
        times = {}
        for ways in ("eager", *(["compiled"] if shutil.which("g++") else [])):
            for n in chunks(case):
                step, _ = torch_step(case, n, ways)
                times[n, ways] = min(seconds_of(step) for _ in range(3))
        chunk, how = min(times, key=lambda way: times[way])
        steps["PyTorch"] = torch_step(case, chunk, how)
    change = {}
    for who, (step, weights) in steps.items():
        before = threads()
        loss = step()
        place(sorted(threads() - before))
        change[who] = weights() - case.first["layer1.weight"]
        assert np.isfinite(loss)
    scale = np.abs(change["horn"]).max()
    assert scale > 0, f"{name} does not learn"
    for who, found in change.items():
        if (name, who) == ("DropConnect", "PyTorch"):
            continue
        worst = np.abs(found - change["horn"]).max() / scale
        # where two messages are the largest but for a rounding, each may take either
        apart = np.mean(np.abs(found - change["horn"]) > 2e-3 * scale)
        assert apart < 1e-4, f"{name}: {who}'s first step differs from horn's by {worst:.1e}"
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    begin = time.perf_counter()
    while len(seconds["horn"]) < 3 or time.perf_counter() - begin < args.seconds:
        for who, (step, _) in steps.items():
            time.sleep(PAUSE_S)  # the pool of who was before spins for a while
            seconds[who] += [seconds_of(step) for _ in range(TOGETHER)][1:]
    os.sched_setaffinity(0, allowed)
    found = {who: 1e3 * statistics.median(s) for who, s in seconds.items()}
    least = {who: 1e3 * min(s) for who, s in seconds.items()}
    return {"neuron": name, "how": how, "least": least, **found}


def stacked(threads: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a step of 512 gated units with 784 inputs, and of 1,024 linear ones."""
    steps: dict[str, Step] = {}
    for neuron, size in ((Gated, 512), (Linear, 1024)):
        net = horn.Network(seed=3)
        net.input(784)
        net.layer(size, neuron=neuron, bias=False)
        net.output(CLASSES, activation="softmax", loss="cross_entropy", bias=False)
        optimizer = horn.SGD(RATE, momentum=MOMENTUM)
        engine = make("kernels", Setup(net, optimizer, "labels", BATCH, "float32", threads))
        x = np.random.default_rng(0).random((BATCH, 784), np.float32)
        engine.bind(Dataset(x, np.arange(BATCH) % CLASSES))
        rows = np.arange(BATCH)
        steps[neuron.__name__] = lambda e=engine, r=rows: float(  # type: ignore[misc]
            e.step(r, iteration=0, first_sample=0)
        )
    taken: dict[str, list[float]] = {who: [] for who in steps}
    begin = time.perf_counter()
    while len(taken["Gated"]) < 20 or time.perf_counter() - begin < seconds:
        for who, step in steps.items():
            taken[who].append(seconds_of(step))
    return {who: 1e3 * statistics.median(s[3:]) for who, s in taken.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Medians in ms; the ratios are of medians, and of the fastest steps."""
    several = any("horn, 1 thread" in row for row in rows)
    pairs = [("PyTorch", "horn"), ("C", "horn")]
    if several:
        pairs += [("horn, 1 thread", "horn"), ("C, 1 thread", "C")]
    pairs = [pair for pair in pairs if any(pair[0] in row for row in rows)]
    lines = [f"{'neuron':<12}{'horn, ms':>9}" + "".join(
        f"{a + ', ms':>19}{'/ ' + b:>8}{'fastest':>8}" for a, b in pairs)]  # fmt: skip
    for row in rows:
        line = f"{row['neuron']:<12}{row['horn']:>9.2f}"
        for a, b in pairs:
            if a in row:
                best = row["least"][a] / row["least"][b]
                line += f"{row[a]:>19.2f}{row[a] / row[b]:>8.2f}{best:>8.2f}"
            else:
                line += 35 * " "
        lines.append(f"{line}  {row['how']}".rstrip())
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *NEURONS], help="only these neurons")
    parser.add_argument("--stacked", action="store_true", help="two weights per synapse")
    parser.add_argument("--large", action="store_true", help="4,096 inputs and 1,600 neurons")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per neuron")
    parser.add_argument("--threads", type=int, default=1, help="of each side")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(arguments)
    if args.stacked:
        found = stacked(args.threads, args.seconds)
        ratio = found["Gated"] / found["Linear"]
        print(f"gated {found['Gated']:.3f} ms, linear {found['Linear']:.3f} ms: {ratio:.2f}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
        if library is None:
            print("no C compiler: horn and PyTorch alone", file=sys.stderr)
        rows = [measure(name, args, library) for name in args.names or NEURONS]
    n_in, n_out = LARGE if args.large else ORDINARY
    print(f"{n_in}-{n_out}-{CLASSES}, {BATCH} samples, {args.threads} threads")
    print(table(rows))
    if args.json:
        where = {"cores": os.cpu_count(), "threads": args.threads, "sizes": [n_in, n_out]}
        Path(args.json).write_text(json.dumps({"where": where, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
