"""Training steps of recurrent nets against PyTorch's best, and what a model of text learns in both.

    python -m tests.bench.bench_recurrent [--compile] [--threads 1] [--seconds 3] [NAME ...]
    python -m tests.bench.bench_recurrent --sizes [--compile] [--threads 1] [mgu] [lif]
    python -m tests.bench.bench_recurrent --groups 2 [--seconds 3]
    python -m tests.bench.bench_recurrent --learn [--seeds 1 2 3] [--updates 1000]

A step is forward, loss, backward and momentum update of 65-200-65 over 100 steps, 32 samples,
float32; "lstm, a step" is the answer to one step of a sequence that comes. PyTorch runs its own
LSTM and GRU; of "mgu" and "lif" (spiking, with a surrogate gradient), for which it has none, a loop
in eager mode, with --compile also compiled (it needs a C++ compiler and minutes).
Both sides begin with the same weights, and the losses of the first three steps, or the answers, are
compared. All run by turns in one process; milliseconds are the fastest tenth of each side's steps,
since other work on the machine only adds. Exit code 1 if answers differ.

--sizes times the two at SIZES units and BATCHES samples, a line each: small layers are where a
user's own cells are at home, and where a loop in Python costs most. How many times as fast as a
side horn is stands in brackets behind it. --compile takes a minute or more for each line.

--groups runs the LSTM in so many processes of one thread, as groups and as tasks of one group, 32
samples for each, by turns with one process alone: how many of its samples they do in the same time,
wanted 0.9 times as many as they are, and per processor time, which other work changes less. So many
processes "apart", which do not meet, say how much of that the processors allow. Blocks count while
processors were calm (calm.py).

--learn trains examples/shakespeare.py in both, the same weights, batches, order and rates, and says
the bits per character of the text's last tenth; it needs HORN_DATA.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import horn
from examples import shakespeare
from examples.gru import GRU
from examples.shakespeare import LSTM
from horn.backends import Setup, make
from horn.data import Dataset, permutation
from horn.data.characters import one_hot
from horn.math import sigmoid, stop_gradient, tanh
from horn.partition.placement import Placement
from tests.bench.calm import interleaved
from tests.bench.contenders import Contender, steps_of_horn, told

STEPS, LETTERS, UNITS, BATCH = 100, 65, 200, 32
SIZES, BATCHES = (32, 64, 128, 200), (1, 8, 32)
RATE, MOMENTUM = 0.01, 0.9
# Of spiking neurons: what each gets at every step, without which none fires, and how much of a
# slope goes back, without which gradients of 100 steps explode (Bellec et al. 2018).
CURRENT, DAMPING = 0.2, 0.3
Step = Callable[[], Any]


class MGU(horn.Neuron):
    """Minimal gated unit with the gate at the sender: no library has a kernel for it."""

    f, n = horn.Weight(bias=1.0), horn.Weight()
    h = horn.State(0.0, per="sample")

    def forward(self, messages: Any) -> None:
        f = sigmoid(sum(m.input * m.f for m in messages))
        h = (1.0 - f) * self.h + f * tanh(sum(m.input * m.n for m in messages))
        self.h = h
        self.feedforward(h)


class LIF(horn.Neuron):
    """Leaks, fires above 1, is reset; where it fires the gradient of a sigmoid stands in."""

    v = horn.State(0.0, per="sample")

    def forward(self, messages: Any) -> None:
        v = 0.8 * self.v + CURRENT + sum(m.input * m.weight for m in messages)
        soft = DAMPING * sigmoid(4.0 * (v - 1.0))
        spike = soft + stop_gradient((1.0 if v > 1.0 else 0.0) - soft)
        self.v = v - stop_gradient(spike)
        self.feedforward(spike)


WEIGHTS = {LSTM: (".i", ".f", ".g", ".o"), GRU: (".r", ".z", ".n"), MGU: (".f", ".n"), LIF: ("",)}


def network(
    cell: type[horn.Neuron], steps: int = STEPS, seed: int = 1, units: int = UNITS
) -> horn.Network:
    net = horn.Network(seed=seed)
    letters = net.input(LETTERS, steps=steps)
    net.layer(units, neuron=cell, inputs={"x": letters, "h": horn.Delayed()}, name="h")
    net.output(LETTERS, activation="softmax", loss="cross_entropy", each_step=True, name="out")
    return net


def samples(n: int = BATCH) -> Dataset:
    rng = np.random.default_rng(0)
    x = one_hot(rng.integers(0, LETTERS, n * STEPS), LETTERS).reshape(n, -1)
    return Dataset(x, rng.integers(0, LETTERS, (n, STEPS)))


def setup_of(net: horn.Network, batch: int, threads: int) -> Setup:
    optimizer = horn.SGD(RATE, momentum=MOMENTUM)
    return Setup(net, optimizer, "labels", batch, "float32", threads)


def ours(net: horn.Network, data: Dataset, threads: int) -> Step:
    engine = make("kernels", setup_of(net, len(data), threads))
    engine.bind(data)
    rows = np.arange(len(data))
    return lambda: engine.step(rows, iteration=0, first_sample=0)


class Theirs:
    """The same network in PyTorch, with horn's initial weights."""

    def __init__(self, net: horn.Network, cell: type[horn.Neuron], compiles: bool) -> None:
        import torch

        arrays = net.initial_parameters()
        units = arrays["out.weight"].shape[1]
        self.out = torch.nn.Linear(units, LETTERS)
        x, h, bias = (
            torch.tensor(np.concatenate([arrays[f"h.{what}{end}"] for end in WEIGHTS[cell]]))
            for what in ("weight.x", "weight.h", "bias")
        )
        if cell in LOOPS:
            self.learned = [w.requires_grad_() for w in (x, h, bias)]
            loop = LOOPS[cell]
            if compiles:  # each size anew: after some recompilations PyTorch gives up, and is eager
                torch._dynamo.reset()
            run = torch.compile(loop, dynamic=False) if compiles else loop
            self.run = lambda x: run(x, *self.learned[:3])
        else:
            layer = getattr(torch.nn, cell.__name__)(LETTERS, units, batch_first=True)
            with torch.no_grad():
                layer.weight_ih_l0[:], layer.weight_hh_l0[:], layer.bias_ih_l0[:] = x, h, bias
                layer.bias_hh_l0[:] = 0.0
            layer.bias_hh_l0.requires_grad_(cell is GRU)
            if cell is GRU:  # horn's has the second bias where it is not the same as the first
                layer.bias_hh_l0.register_hook(_only_last)
            self.learned = [w for w in layer.parameters() if w.requires_grad]
            self.layer, self.run = layer, lambda x: layer(x)[0]
        with torch.no_grad():
            self.out.weight[:] = torch.tensor(arrays["out.weight"])
            self.out.bias[:] = torch.tensor(arrays["out.bias"])
        self.learned += [*self.out.parameters()]

    def loss(self, x: Any, y: Any) -> Any:
        import torch

        said = self.out(self.run(x))
        return torch.nn.functional.cross_entropy(said.reshape(-1, LETTERS), y.reshape(-1))


def mgu_loop(x: Any, w: Any, u: Any, b: Any) -> Any:
    import torch

    from_below = x @ w.T + b
    h, found = torch.zeros(len(x), u.shape[1]), []
    for t in range(x.shape[1]):
        f, n = (from_below[:, t] + h @ u.T).chunk(2, 1)
        f = torch.sigmoid(f)
        h = (1.0 - f) * h + f * torch.tanh(n)
        found.append(h)
    return torch.stack(found, 1)


def lif_loop(x: Any, w: Any, u: Any, b: Any) -> Any:
    import torch

    from_below = x @ w.T + b
    v, spike, found = torch.zeros(len(x), u.shape[1]), torch.zeros(len(x), u.shape[1]), []
    for t in range(x.shape[1]):
        v = 0.8 * v + CURRENT + (from_below[:, t] + spike @ u.T)
        soft = DAMPING * torch.sigmoid(4.0 * (v - 1.0))
        spike = soft + ((v > 1.0).float() - soft).detach()
        v = v - spike.detach()
        found.append(spike)
    return torch.stack(found, 1)


LOOPS = {MGU: mgu_loop, LIF: lif_loop}


def _only_last(gradient: Any) -> Any:
    found = gradient.clone()
    found[: 2 * UNITS] = 0.0
    return found


def their_step(net: horn.Network, cell: type[horn.Neuron], data: Dataset, compiles: bool) -> Step:
    import torch

    made = Theirs(net, cell, compiles)
    x = torch.tensor(data.x.reshape(len(data), STEPS, LETTERS).astype(np.float32))
    y = torch.tensor(data.y)
    optimizer = torch.optim.SGD(made.learned, RATE, momentum=MOMENTUM, foreach=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = made.loss(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def streams(threads: int) -> dict[str, Step]:
    """One step of a sequence that comes, in both."""
    import torch

    net = network(LSTM)
    model = horn.Model(net, net.initial_parameters(), net.initial_states(), threads=threads)
    stream, letters = model.stream(), np.eye(LETTERS, dtype=np.float32)
    made, memory = Theirs(net, LSTM, False), [None]
    theirs, at = torch.eye(LETTERS).reshape(LETTERS, 1, 1, LETTERS), [0, 0]

    def our_step() -> Any:
        at[0] += 1
        return stream(letters[at[0] % LETTERS])

    def their_step() -> Any:
        at[1] += 1
        with torch.no_grad():
            sent, memory[0] = made.layer(theirs[at[1] % LETTERS], memory[0])
            return torch.softmax(made.out(sent[0, 0]), 0).numpy()

    return {"horn": our_step, "PyTorch": their_step}


def is_asked(cell: type[horn.Neuron], asked: argparse.Namespace) -> bool:
    name = cell.__name__.lower()
    return not asked.names or any(word in name for word in asked.names)


def sides_of(
    cell: type[horn.Neuron], asked: argparse.Namespace, units: int = UNITS, batch: int = BATCH
) -> dict[str, Step]:
    net, data = network(cell, units=units), samples(batch)
    found = {"horn": ours(net, data, asked.threads)}
    found["PyTorch"] = their_step(net, cell, data, False)
    if cell in LOOPS and asked.compile:
        found["compiled"] = their_step(net, cell, data, True)
    return found


def cases(asked: argparse.Namespace) -> Iterator[tuple[str, dict[str, Step]]]:
    """Made one after the other: what is not timed has no memory, and no threads."""
    if asked.sizes:
        for cell in LOOPS:
            if is_asked(cell, asked):
                for units in SIZES:
                    for batch in BATCHES:
                        name = f"{cell.__name__.lower()} {units:3} x {batch:2}"
                        yield name, sides_of(cell, asked, units, batch)
        return
    for cell in WEIGHTS:
        if is_asked(cell, asked):
            yield cell.__name__.lower(), sides_of(cell, asked)
    if not asked.names or "stream" in asked.names:
        yield "lstm, a step", streams(asked.threads)


def timed(asked: argparse.Namespace) -> bool:
    """Print the times of all cases; whether answers agree."""
    is_right = True
    for name, sides in cases(asked):
        answers = {label: [step() for _ in range(3)] for label, step in sides.items()}
        for label, found in answers.items():
            if not np.allclose(found, answers["horn"], rtol=2e-4, atol=1e-6):
                print(f"{name}: answers differ: horn {answers['horn']}, {label} {found}")
                is_right = False
        times: dict[str, list[float]] = {label: [] for label in sides}
        ends = time.perf_counter() + asked.seconds * len(sides)
        while time.perf_counter() < ends:
            for label, step in sides.items():
                for _ in range(3):
                    begun = time.perf_counter()
                    step()
                    times[label].append(time.perf_counter() - begun)
        said = {label: 1e3 * float(np.percentile(each, 10)) for label, each in times.items()}
        rest = "  ".join(
            f"{label} {ms:.3f} ({ms / said['horn']:.2f})"
            for label, ms in said.items() if label != "horn"
        )  # fmt: skip
        best = min(ms for label, ms in said.items() if label != "horn")
        print(f"{name:14} horn {said['horn']:8.3f} ms  {rest}  ratio {best / said['horn']:.2f}",
              flush=True)  # fmt: skip
    return is_right


def part(pipe: Any, rank: int, n_ranks: int, job: str, batch: int, n_groups: int) -> None:
    """A process of those that have a batch together."""
    net = network(LSTM)
    setup, where = setup_of(net, batch, 1), Placement.rows(net)
    steps_of_horn(pipe, rank, n_ranks, job, setup, samples(batch), n_groups, where)


def apart(pipe: Any, rank: int, n_ranks: int, job: str, batch: int) -> None:
    """One of several processes that do not meet, each of which has a batch of its own."""
    part(pipe, 0, 1, job, batch, 1)


def block(contender: Contender, processor_s: list[float]) -> float:
    """Seconds of a step; of the processor in the list."""
    seconds = contender.run(8, 1)[0] / 8
    processor_s.append(contender.processor_s / 8)
    return seconds


def together(n: int, seconds: float) -> bool:
    """Print what n processes do in the time of one; whether they begin with the same losses."""
    contenders = {
        "groups": Contender(part, n, n * BATCH, n, meets=True),
        "tasks": Contender(part, n, n * BATCH, 1, meets=True),
        "apart": Contender(apart, n, BATCH),
        "one, their batch": Contender(part, 1, n * BATCH, 1),
        "one": Contender(part, 1, BATCH, 1),
    }
    first = {name: c.run(3)[1] for name, c in contenders.items()}
    expected = first["one, their batch"]
    is_right = all(np.allclose(first[name], expected, rtol=2e-4) for name in ("groups", "tasks"))
    if not is_right:
        print(f"answers differ: {first}")
    processor_s: dict[str, list[float]] = {name: [] for name in ("groups", "tasks", "apart", "one")}
    blocks = {name: partial(block, contenders[name], found) for name, found in processor_s.items()}
    times, is_calm = interleaved(blocks, seconds, is_alone=False)
    spent = {name: c.close() for name, c in contenders.items()}
    ms = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    processor_ms = {name: 1e3 * statistics.median(found) for name, found in processor_s.items()}
    least = {name: 1e3 * min(found) for name, found in times.items()}
    for name in ("groups", "tasks", "apart"):
        ratio, best, own = (n * each["one"] / each[name] for each in (ms, least, processor_ms))
        print(f"lstm, {n} {name}, {n} x {BATCH} samples: {ms[name]:.2f} ms, one process of {BATCH} "
              f"{ms['one']:.2f}{'' if is_calm else ', DISTURBED'}; {ratio:.2f} times the samples "
              f"of one (least times {best:.2f}); of processor time {own:.2f}")  # fmt: skip
        told(spent[name])
    return is_right


def learned(seeds: list[int], updates: int) -> None:
    """Bits per character of the last tenth, by seed, of both sides."""
    import torch

    found: dict[str, list[float]] = {"horn": [], "PyTorch": []}
    for seed in seeds:
        job = shakespeare.job()
        net = network(LSTM, seed=seed)
        job = job.with_settings(network=net, epochs=None, iterations=updates)
        run = horn.train(job, threads=torch.get_num_threads())
        found["horn"].append(run.test["loss"] / math.log(2.0))
        made, rate = Theirs(net, LSTM, False), float(job.optimizer.learning_rate)
        optimizer = torch.optim.Adam(made.learned, rate)
        n, done, epoch = len(job.data), 0, 0
        while done < updates:
            order = permutation(n, seed, epoch)
            for start in range(0, n, job.batch_size):
                if done == updates:
                    break
                optimizer.zero_grad()
                made.loss(*_tensors(job.data, order[start : start + job.batch_size])).backward()
                torch.nn.utils.clip_grad_norm_(made.learned, job.optimizer.clip_norm)
                optimizer.step()
                done += 1
            epoch += 1
        rows = np.arange(len(job.test))
        with torch.no_grad():
            losses = [float(made.loss(*_tensors(job.test, rows[k : k + 1]))) for k in rows]
        found["PyTorch"].append(statistics.mean(losses) / math.log(2.0))
        print(
            f"seed {seed}: " + "  ".join(f"{k} {v[-1]:.4f}" for k, v in found.items()), flush=True
        )
    means = {side: statistics.mean(each) for side, each in found.items()}
    print(f"{updates} updates, bits per character: "
          + "  ".join(f"{side} {mean:.4f}" for side, mean in means.items()))  # fmt: skip


def _tensors(data: Dataset, rows: Any) -> tuple[Any, Any]:
    import torch

    x = torch.tensor(data.x[rows].reshape(len(rows), STEPS, LETTERS).astype(np.float32))
    return x, torch.tensor(data.y[rows])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=1000)
    asked = parser.parse_args()
    if asked.groups:
        return int(not together(asked.groups, asked.seconds))
    import torch

    torch.set_num_threads(asked.threads)
    if asked.learn:
        learned(asked.seeds, asked.updates)
        return 0
    return int(not timed(asked))


if __name__ == "__main__":
    sys.exit(main())
