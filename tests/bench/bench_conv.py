"""Training steps of nets that look through windows, against PyTorch's best, after answers agree.

    python -m tests.bench.bench_conv [--compile] [--busy] [--threads 1] [--seconds 3] [NAME ...]
    python -m tests.bench.bench_conv --together [--seconds 15] [NAME ...]

Names: lenet 16, lenet 100, cifar 100, "64 to 64", groups (as that, of 4 groups), separable
(depthwise, then 1 x 1), patterns, behind (distances to dense neurons behind a convolution), adder
and dendrites (through windows, and no products), back (a convolutional autoencoder whose decoder
has the weights of its encoder: conv_transpose2d), pooling. A step is forward, loss, backward and
momentum update, float32. PyTorch runs eager in both memory formats, NCHW and NHWC, with --compile
also torch.compile of each (it needs a C++ compiler and a minute);
pooling alone is forward and backward. Both sides begin with the same weights, and the losses of the
first three steps are compared: what differs is not timed. All run by turns in one process;
milliseconds are the fastest tenth of each side's steps, since other work on the machine only adds;
with --busy they are the least processor time, which waiting for one's turn does not count in (of
one thread).
Exit code 1 if losses differ.

--together: two processes (bench_conv_together.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import horn
from horn._kernels.engine import Tape
from horn.backends import Setup, make
from horn.backends._edge_lists import EdgeLists
from horn.data import Dataset
from horn.partition.share import LocalEdges

RATE, MOMENTUM = 0.01, 0.9
Step = Callable[[], float]


class MaxPool(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input for m in messages))


class Pattern(horn.Neuron):
    def forward(self, messages: Any) -> None:
        distance = sum((m.input - m.weight) ** 2 for m in messages)
        self.feedforward(horn.math.exp(-0.05 * distance))


class Distance(horn.Neuron):
    """Of the sizes of differences: dense, and no product."""

    def forward(self, messages: Any) -> None:
        distance = sum(abs(m.input - m.weight) for m in messages)
        self.feedforward(horn.math.exp(-0.02 * distance))


class Dendrites(horn.Neuron):
    """Each synapse saturates by itself."""

    def forward(self, messages: Any) -> None:
        self.feedforward(sum(horn.math.tanh(m.input * m.weight) for m in messages))


def lenet(net: horn.Network) -> None:
    net.input((28, 28, 1))
    net.layer(connect=horn.Convolution(20, 5), activation="relu")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.layer(connect=horn.Convolution(50, 5), activation="relu")
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.layer(500, activation="relu")


def deep(net: horn.Network) -> None:
    """64 channels to 64, below a layer that needs the gradient of its outputs, too."""
    net.input((16, 16, 8))
    net.layer(connect=horn.Convolution(64, 1), activation="relu")
    net.layer(connect=horn.Convolution(64, 3, padding="same"), activation="relu")
    net.layer(connect=horn.Window(4, stride=4), neuron=MaxPool)


def groups(net: horn.Network) -> None:
    """As deep, of 4 groups."""
    net.input((16, 16, 8))
    net.layer(connect=horn.Convolution(64, 1), activation="relu")
    net.layer(connect=horn.Convolution(64, 3, padding="same", groups=4), activation="relu")
    net.layer(connect=horn.Window(4, stride=4), neuron=MaxPool)


def separable(net: horn.Network) -> None:
    """Each channel by itself, then all channels of each position, twice (Howard et al. 2017)."""
    net.input((16, 16, 8))
    net.layer(connect=horn.Convolution(32, 1), activation="relu")
    for maps in (32, 64):
        net.layer(connect=horn.Convolution(maps, 3, padding="same", groups=maps), activation="relu")
        net.layer(connect=horn.Convolution(64, 1), activation="relu")
    net.layer(connect=horn.Window(4, stride=4), neuron=MaxPool)


def cifar(net: horn.Network) -> None:
    """The three convolutions of cuda-convnet's small net, without normalisation."""
    net.input((32, 32, 3))
    for maps in (32, 32, 64):
        net.layer(connect=horn.Convolution(maps, 5, padding="same"), activation="relu")
        net.layer(connect=horn.Window(3, stride=2), neuron=MaxPool)


def patterns(net: horn.Network) -> None:
    net.input((12, 12, 4))
    net.layer(connect=horn.Convolution(16, 3), neuron=Pattern, bias=False)


def behind(net: horn.Network) -> None:
    """Dense neurons that are no products behind a convolution."""
    net.input((14, 14, 1))
    net.layer(connect=horn.Convolution(4, 3), activation="relu")
    net.layer(128, neuron=Distance, bias=False)


def adder(net: horn.Network) -> None:
    """Distances through windows, layer upon layer (Chen et al. 2020)."""
    net.input((16, 16, 8))
    for stride in (1, 2):
        net.layer(connect=horn.Convolution(16, 3, stride), neuron=Distance, bias=False)


def dendrites(net: horn.Network) -> None:
    net.input((16, 16, 8))
    for stride in (1, 2):
        net.layer(connect=horn.Convolution(16, 3, stride), neuron=Dendrites, bias=False)


def back(net: horn.Network) -> None:
    net.input((28, 28, 1))
    first = net.layer(connect=horn.Convolution(16, 5, 2, 2), activation="relu")
    second = net.layer(connect=horn.Convolution(32, 5, 2, 2), activation="relu")
    net.layer(connect=horn.Tied(second), activation="relu")
    net.output(connect=horn.Tied(first), loss="squared_error")


CASES: dict[str, tuple[Callable[[horn.Network], None], int]] = {
    "lenet 16": (lenet, 16),
    "lenet 100": (lenet, 100),
    "cifar 100": (cifar, 100),
    "64 to 64, 32": (deep, 32),
    "groups 32": (groups, 32),
    "separable 32": (separable, 32),
    "patterns 100": (patterns, 100),
    "behind 100": (behind, 100),
    "adder 4": (adder, 4),
    "adder 32": (adder, 32),
    "dendrites 32": (dendrites, 32),
    "back 100": (back, 100),
}


def network(build: Callable[[horn.Network], None]) -> horn.Network:
    net = horn.Network(seed=1)
    build(net)
    if net.layers[-1].kind != "output":
        net.output(10, activation="softmax", loss="cross_entropy")
    return net


def is_about_itself(net: horn.Network) -> bool:
    """Whether the images are the targets, too."""
    return net.last.size == net.n_inputs


def samples(net: horn.Network, batch: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.random((batch, net.n_inputs), np.float32)
    return Dataset(x, rng.integers(0, 10, batch))


def ours(net: horn.Network, data: Dataset, threads: int) -> Step:
    optimizer = horn.SGD(RATE, momentum=MOMENTUM)
    target = "input" if is_about_itself(net) else "labels"
    engine = make("kernels", Setup(net, optimizer, target, len(data), "float32", threads))
    engine.bind(data)
    rows = np.arange(len(data))
    return lambda: engine.step(rows, iteration=0, first_sample=0)


def torch_model(net: horn.Network, is_last: bool) -> tuple[list[Any], Callable[[Any], Any]]:
    """The same network in PyTorch: what it learns, and from images to what the last layer sums;
    channels last in memory or first.
    """
    import torch
    from torch.nn import functional as f

    arrays = net.initial_parameters()
    learned: list[Any] = []
    stages: list[Callable[[Any], Any]] = []

    def parameter(array: Any) -> Any:
        made = torch.tensor(np.ascontiguousarray(array))
        if is_last and made.ndim == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        learned.append(torch.nn.Parameter(made))
        return learned[-1]

    flat = False
    kernels: dict[str, Any] = {}
    for layer in net.layers[1:]:
        link = layer.links[0]
        connection: Any = link.connection
        if link.tie is not None:
            told = link.owner.connection
            w, b = kernels[link.weight], parameter(arrays[f"{layer.name}.bias"])
            end = layer is net.last
            stages.append(lambda x, w=w, b=b, told=told, end=end: (lambda z: z if end else
                          torch.relu(z))(f.conv_transpose2d(x, w, b, told.stride, told.padding,
                                                            told.stride - 1)))  # fmt: skip
            continue
        if isinstance(connection, horn.Window):
            told = connection.kernel, connection.stride
            stages.append(lambda x, told=told: f.max_pool2d(x, *told))
            continue
        if isinstance(connection, horn.Convolution) and layer.neuron in THROUGH_WINDOWS:
            w = parameter(arrays[link.weight].transpose(0, 3, 1, 2).reshape(layer.shape[-1], -1))
            of, step, shape = THROUGH_WINDOWS[layer.neuron], connection.stride, layer.shape
            stages.append(lambda x, w=w, k=connection.kernel, of=of, step=step, shape=shape: of(
                f.unfold(x, k, stride=step), w).reshape(len(x), shape[-1], *shape[:-1])
            )  # fmt: skip
            continue
        if isinstance(connection, horn.Convolution):
            w = kernels[link.weight] = parameter(arrays[link.weight].transpose(0, 3, 1, 2))
            b = parameter(arrays[f"{layer.name}.bias"])
            pad = {"same": connection.kernel // 2, "valid": 0}.get(
                connection.padding, connection.padding
            )
            told = {"stride": connection.stride, "padding": pad, "groups": connection.groups}
            stages.append(lambda x, w=w, b=b, told=told: torch.relu(f.conv2d(x, w, b, **told)))
            continue
        weights = arrays[link.weight]
        if not flat and len(link.source.shape) == 3:  # its order is (channel, row, column)
            h, w_, c = link.source.shape
            weights = weights.reshape(-1, h, w_, c).transpose(0, 3, 1, 2).reshape(len(weights), -1)
        w, flat = parameter(weights), True
        if layer.neuron is Distance:
            stages.append(lambda x, w=w: torch.exp(-0.02 * torch.cdist(x.flatten(1), w, 1.0)))
            continue
        b, last = parameter(arrays[f"{layer.name}.bias"]), layer is net.last
        stages.append(
            lambda x, w=w, b=b, last=last: (lambda z: z if last else torch.relu(z))(
                f.linear(x.flatten(1), w, b)
            )
        )

    def outputs(x: Any) -> Any:
        for stage in stages:
            x = stage(x)
        return x

    return learned, outputs


def torch_data(net: horn.Network, data: Dataset, is_last: bool) -> tuple[Any, Any]:
    """Images and labels."""
    import torch

    x = torch.tensor(data.x.reshape(-1, *net.layers[0].shape).transpose(0, 3, 1, 2).copy())
    x = x.contiguous(memory_format=torch.channels_last) if is_last else x
    return x, torch.tensor(data.y)


def theirs(net: horn.Network, data: Dataset, is_last: bool, compiles: bool) -> Step:
    """A step of the same network in PyTorch."""
    import torch
    from torch.nn import functional as f

    learned, outputs = torch_model(net, is_last)
    x, y = torch_data(net, data, is_last)

    def loss_of(x: Any, y: Any) -> Any:
        if is_about_itself(net):
            return 0.5 * f.mse_loss(outputs(x), x, reduction="sum") / len(x)
        return f.cross_entropy(outputs(x), y)

    judged = torch.compile(loss_of) if compiles else loss_of
    optimizer = torch.optim.SGD(learned, RATE, momentum=MOMENTUM, foreach=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = judged(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _patterns(patches: Any, w: Any) -> Any:
    """By products, the best that PyTorch's words allow. patches : (b, places, positions); the
    result is (b, maps, positions).
    """
    import torch

    squares = (patches * patches).sum(1, keepdim=True) + (w * w).sum(1)[None, :, None]
    distance = squares - 2.0 * torch.einsum("mk,bkp->bmp", w, patches)
    return torch.exp(-0.05 * distance)


def _distances(patches: Any, w: Any) -> Any:
    import torch

    rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    found = torch.exp(-0.02 * torch.cdist(rows, w, 1.0))
    return found.reshape(len(patches), -1, len(w)).transpose(1, 2)


def _dendrites(patches: Any, w: Any) -> Any:
    import torch

    return torch.tanh(patches[:, None] * w[None, :, :, None]).sum(2)


THROUGH_WINDOWS: dict[Any, Callable[[Any, Any], Any]] = {
    Pattern: _patterns, Distance: _distances, Dendrites: _dendrites,
}  # fmt: skip


def pooling(threads: int) -> tuple[dict[str, Step], bool]:
    """The largest of 3 x 3 by two and its gradient, 100 images of 32 maps; whether all agree."""
    import torch
    from torch.nn import functional as f

    batch, below = 100, (32, 32, 32)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, *below)).astype(np.float32)
    net = horn.Network()
    net.input(below)
    layer = net.layer(connect=horn.Window(3, stride=2), neuron=MaxPool)
    edges = layer.links[0].edges
    assert edges is not None
    lists = EdgeLists.of(LocalEdges(edges.indptr, edges.indices, net.layers[0].size, slice(None)))
    x = np.ascontiguousarray(images.reshape(batch, -1).T)
    flows = rng.standard_normal((layer.size, batch)).astype(np.float32)
    sent, where, back = np.zeros_like(flows), np.zeros_like(flows), np.zeros_like(x)
    tape = Tape(np.float32, threads)
    tape.pool(x, sent, "max", ptr=lists.indptr, src=lists.sources, where=where)
    place = np.arange(len(lists.sources)) - lists.indptr[lists.receivers]
    tape.pool(
        flows, back, "sum", ptr=lists.back_indptr, src=lists.back_receivers, upper=where,
        place=place.astype(np.float32)[lists.back_edges],
    )  # fmt: skip

    def ours() -> float:
        tape.run()
        return 0.0

    sides: dict[str, Step] = {"horn": ours}
    ours()
    is_same = True
    for is_last in (False, True):
        form = torch.channels_last if is_last else torch.contiguous_format
        there = torch.tensor(images.transpose(0, 3, 1, 2)).contiguous(memory_format=form)
        there.requires_grad_()
        grad = flows.T.reshape(batch, *layer.shape).transpose(0, 3, 1, 2)
        upstream = torch.tensor(grad.copy()).contiguous(memory_format=form)

        def step(there: Any = there, upstream: Any = upstream) -> float:
            there.grad = None
            f.max_pool2d(there, 3, 2).backward(upstream)
            return 0.0

        step()
        found = there.grad.numpy().transpose(0, 2, 3, 1).reshape(batch, -1)
        is_same &= bool(np.allclose(found, back.T, atol=1e-5))
        sides["NHWC" if is_last else "NCHW"] = step
    return sides, is_same


def fastest(times: list[float], is_busy: bool) -> float:
    return 1e3 * float(np.percentile(times, 0 if is_busy else 10))


def is_one_loss(name: str, sides: dict[str, Step]) -> bool:
    """Whether the losses of each side's first three steps are horn's; says which are not."""
    losses = {label: [step() for _ in range(3)] for label, step in sides.items()}
    wrong = {k: v for k, v in losses.items() if not np.allclose(v, losses["horn"], rtol=2e-4)}
    for label, found in wrong.items():
        print(f"{name}: losses differ: horn {losses['horn']}, {label} {found}")
    return not wrong


def compare(name: str, sides: dict[str, Step], seconds: float, is_busy: bool) -> None:
    """All sides by turns, and a line of what they took."""
    clock = time.process_time if is_busy else time.perf_counter
    times: dict[str, list[float]] = {label: [] for label in sides}
    ends = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < ends:
        for label, step in sides.items():
            for _ in range(3):
                begun = clock()
                step()
                times[label].append(clock() - begun)
    said = {label: fastest(found, is_busy) for label, found in times.items()}
    best = min(ms for label, ms in said.items() if label != "horn")
    rest = "  ".join(f"{label} {ms:.2f}" for label, ms in said.items() if label != "horn")
    print(f"{name:14} horn {said['horn']:7.2f} ms  {rest}  ratio {best / said['horn']:.2f}")


def main() -> int:
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--together", action="store_true")
    asked = parser.parse_args()
    if asked.together:
        from tests.bench import bench_conv_together

        return bench_conv_together.run(asked.names or ["cifar 100"], asked.seconds)
    torch.set_num_threads(asked.threads)
    is_wrong = False
    for name, (build, batch) in CASES.items():
        if asked.names and not any(word in name for word in asked.names):
            continue
        net = network(build)
        data = samples(net, batch)
        sides = {"horn": ours(net, data, asked.threads)}
        for how in (False, True) if asked.compile else (False,):
            for is_last in (False, True):
                label = ("NHWC" if is_last else "NCHW") + (", compiled" if how else "")
                sides[label] = theirs(net, data, is_last, how)
        if is_one_loss(name, sides):
            compare(name, sides, asked.seconds, asked.busy)
        else:
            is_wrong = True
    if not asked.names or "pooling" in asked.names:
        sides, is_same = pooling(asked.threads)
        if is_same:
            compare("pooling", sides, asked.seconds, asked.busy)
        else:
            print("pooling: gradients differ")
            is_wrong = True
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
