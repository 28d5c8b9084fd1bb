"""Nets that look through windows on two processes, against one and against PyTorch's DDP.

    python -m tests.bench.bench_conv --together [--seconds 15] [NAME ...]

Processes of one thread each, SGD with momentum, float32. Two groups (allreduce) and DDP (gloo, both
memory formats) have 100 samples each in a step; two tasks share 100, as the plan says, by positions
and by channels; one process has 100, and so have two that do not meet: the limit. DDP begins with
horn's weights. Before the clock starts losses of the first steps are compared: those of two tasks
with one process', those of DDP with the groups'. Blocks count that ran while both processors were
calm.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial
from typing import Any

import numpy as np

import horn
from horn.backends import Setup
from horn.data import Dataset
from horn.partition.placement import Placement
from horn.planner import plan
from horn.planner.calibration import calibrate
from tests.bench import bench_conv
from tests.bench.bench_conv import CASES, MOMENTUM, RATE, network, torch_data, torch_model
from tests.bench.calm import interleaved
from tests.bench.contenders import Contender, obey, steps_of_horn, told

N_BATCHES = 4  # that differ
TIMED = 3  # steps of a block


def samples(net: horn.Network, n: int) -> Dataset:
    return bench_conv.samples(net, n)


def pinned(net: horn.Network, how: str) -> Placement:
    """Windows by "positions" or "channels", all else by rows of the batch."""
    words = {"positions": ("receiver", "neurons"), "channels": ("channels", "channels")}[how]
    links, layers = {}, {0: "all"}
    for layer in net.layers[1:]:
        is_window = layer.links[0].is_placed
        links[layer.index, 0] = words[0] if is_window else "sender"
        layers[layer.index] = words[1] if is_window else "rows"
    return Placement(links, layers)


def horn_side(pipe: Any, rank: int, n_ranks: int, job: str, name: str, n_groups: int,
              how: str) -> None:  # fmt: skip
    """One task of ``n_groups`` groups. how : "groups", "planned", "positions",
    "channels" or "alone".
    """
    build, batch = CASES[name]
    net = network(build)
    total = batch * n_groups
    data = samples(net, N_BATCHES * total)
    optimizer = horn.SGD(RATE, momentum=MOMENTUM)
    setup = Setup(net, optimizer, "labels", total, "float32", 1)
    placement = Placement()
    if how in ("positions", "channels"):
        placement = pinned(net, how)
    elif how == "planned":
        job_ = horn.Job(net, data=(data.x, data.y), optimizer=optimizer, batch_size=total)
        placement = plan.cheapest(job_, n_ranks, transport="shm", threads=1).placement
    ranks = 1 if how == "alone" else n_ranks
    steps_of_horn(pipe, rank, ranks, job, setup, data, n_groups, placement)


def ddp_side(pipe: Any, rank: int, n_ranks: int, job: str, name: str, is_last: bool,
             folder: str) -> None:  # fmt: skip
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{job}", rank=rank, world_size=n_ranks
    )
    build, batch = CASES[name]
    net = network(build)
    learned, outputs = torch_model(net, is_last)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k, parameter in enumerate(learned):
                self.register_parameter(f"p{k}", parameter)

        def forward(self, x: Any) -> Any:
            return outputs(x)

    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, foreach=True)
    x, y = torch_data(net, samples(net, N_BATCHES * batch * n_ranks), is_last)
    count = iter(range(1 << 60))

    def step() -> float:
        first = next(count) % N_BATCHES * n_ranks * batch + rank * batch
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(
            model(x[first : first + batch]), y[first : first + batch]
        )
        loss.backward()
        optimizer.step()
        whole = loss.detach() / n_ranks
        dist.all_reduce(whole)
        return float(whole)

    obey(pipe, step)
    dist.destroy_process_group()


def block(contender: Contender) -> float:
    """Seconds per step."""
    return contender.run(TIMED, 1)[0] / TIMED


def bench(name: str, seconds: float, folder: str) -> bool:
    side = partial(Contender, horn_side)
    contenders = {
        "one process": side(1, name, 1, "alone", meets=False),
        "two, apart": side(2, name, 1, "alone", meets=False),
        "two groups": side(2, name, 2, "groups", meets=True),
        "DDP NCHW": Contender(ddp_side, 2, name, False, folder),
        "DDP NHWC": Contender(ddp_side, 2, name, True, folder),
        "two tasks": side(2, name, 1, "planned", meets=True),
        "by positions": side(2, name, 1, "positions", meets=True),
        "by channels": side(2, name, 1, "channels", meets=True),
    }
    first = {what: c.run(3)[1] for what, c in contenders.items()}
    is_same = True
    for what, found in first.items():
        whole = "two groups" if what in ("DDP NCHW", "DDP NHWC") else "one process"
        if what != "two groups" and not np.allclose(found, first[whole], rtol=2e-4):
            print(f"{name}: losses differ: {whole} {first[whole]}, {what} {found}")
            is_same = False
    times, is_calm = interleaved(
        {what: partial(block, c) for what, c in contenders.items()}, seconds, is_alone=False
    )
    spent = {what: c.close() for what, c in contenders.items()}
    medians = {what: statistics.median(found) for what, found in times.items()}
    print(f"{name}: ms per step, median (least) of {min(map(len, times.values()))} blocks"
          f"{'' if is_calm else ', DISTURBED'}")  # fmt: skip
    for what, found in times.items():
        print(f"  {what:12} {medians[what] * 1e3:8.2f} ({min(found) * 1e3:.2f})")
        told(spent[what])
    one, groups = medians["one process"], medians["two groups"]
    ddp = min(medians["DDP NCHW"], medians["DDP NHWC"])
    print(f"  two groups do {2 * one / groups:.2f}x the samples of one process, two that are apart "
          f"{2 * one / medians['two, apart']:.2f}x; {ddp / groups:.2f}x those of DDP")  # fmt: skip
    print(f"  two tasks do {one / medians['two tasks']:.2f}x the steps of one process, "
          f"by positions {one / medians['by positions']:.2f}x, "
          f"by channels {one / medians['by channels']:.2f}x")  # fmt: skip
    return is_same


def run(names: list[str], seconds: float) -> int:
    calibrate()  # before there are processes that would disturb it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        found = [
            bench(name, seconds, folder) for name in CASES if any(word in name for word in names)
        ]
    return int(not all(found))
