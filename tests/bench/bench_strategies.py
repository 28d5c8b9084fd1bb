"""AllReduce of two groups against PyTorch DistributedDataParallel with gloo, in one run.

    python -m tests.bench.bench_strategies [--json FILE] [--seconds N] [--claims] [--only NET]

Two processes of one thread each, 100 samples per process and step, SGD with momentum. Beside them:
one horn process alone, of which two without any communication would do twice the samples (the limit
to approach). The losses of the first steps are compared before the clock starts: DDP starts from
horn's weights and averages over the same 200 samples. Blocks count that ran while both processors
were calm (tests/bench/calm). Limits are those of issue 5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from horn._kernels import blas
from horn.planner.calibration import calibrate
from tests.bench.calm import interleaved
from tests.bench.contenders import (
    MOMENTUM,
    RATE,
    Contender,
    dataset,
    horn_side,
    network,
    obey,
    rows_of,
    told,
)

BIG = "784-2500-2000-1500-1000-500-10"
NETS = {"784-512-512-10": (10, 40), BIG: (1, 4), "784-512-10": (20, 80)}  # steps: not timed, timed
BATCH = 100  # per process
LIMITS = {  # DDP's time over horn's: with the default BLAS, with MKL
    "784-512-512-10": {"openblas": 2.3, "mkl": 2.8},
    BIG: {"openblas": 1.4, "mkl": 1.6},
    "784-512-10": {"openblas": 3.3, "mkl": 3.9},
}


def ddp_side(pipe: Any, rank: int, n_ranks: int, job: str, sizes: str, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{job}", rank=rank, world_size=n_ranks
    )
    start = network(sizes).initial_parameters()
    names = list(start)
    widths = list(map(int, sizes.split("-")))
    layers: list[Any] = []
    for k, (n_in, n_out) in enumerate(zip(widths, widths[1:], strict=False)):
        linear = torch.nn.Linear(n_in, n_out)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(start[names[2 * k]]))
            linear.bias.copy_(torch.from_numpy(start[names[2 * k + 1]]))
        layers.append(linear)
        if k < len(widths) - 2:
            layers.append(torch.nn.ReLU())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    data = dataset(sizes)
    x = torch.from_numpy(data.x.astype(np.float32) * np.float32(data.scale))
    y = torch.from_numpy(data.y)
    count = iter(range(1 << 60))

    def step() -> float:
        rows = rows_of(next(count), n_ranks * BATCH)[rank * BATCH : (rank + 1) * BATCH]
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    obey(pipe, step)
    dist.destroy_process_group()


def block(contender: Contender, timed: int, untimed: int) -> float:
    """Seconds per step."""
    return contender.run(timed, untimed)[0] / timed


def bench(sizes: str, seconds: float, folder: str) -> dict[str, Any]:
    contenders = {
        "horn": Contender(horn_side, 2, sizes, 2 * BATCH, 1, 2),
        "DDP": Contender(ddp_side, 2, sizes, folder),
        "horn alone": Contender(horn_side, 1, sizes, BATCH, 1, 1),
    }
    first = {name: c.run(5)[1] for name, c in contenders.items()}
    # DDP's first rank tells of its own half of the samples; weights agree, so losses stay close
    np.testing.assert_allclose(first["DDP"], first["horn"], rtol=0.1)
    untimed, timed = NETS[sizes]
    blocks = {name: partial(block, c, timed, untimed) for name, c in contenders.items()}
    times, is_calm = interleaved(blocks, seconds, is_alone=False)
    spent = {name: c.close() for name, c in contenders.items()}["horn"]
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratio = medians["DDP"] / medians["horn"]
    limit = LIMITS[sizes].get(blas.load().name, 0.0)
    print(f"\n{sizes}: ms per step of 2 x {BATCH} samples, median (least) of "
          f"{min(map(len, times.values()))} blocks{'' if is_calm else ', DISTURBED'}")  # fmt: skip
    for name, found in times.items():
        print(f"  {name:10} {medians[name] * 1e3:8.3f} ({min(found) * 1e3:.3f})")
    least = min(times["DDP"]) / min(times["horn"])
    samples = 2 * medians["horn alone"] / medians["horn"]
    verdict = "ok" if ratio >= limit else "MISSED"
    print(f"  DDP / horn {ratio:.2f} (least times {least:.2f}), wanted {limit:g}: {verdict}; "
          f"two groups do {samples:.2f}x the samples of one process")  # fmt: skip
    told(spent)
    return {"median_s": medians, "ratio": ratio, "holds": ratio >= limit,
            "is_calm": is_calm}  # fmt: skip


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    parser.add_argument("--only", help="one of the networks")
    options = parser.parse_args(args)
    calibrate()  # before there are processes that would disturb it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        found = {
            sizes: bench(sizes, options.seconds, folder)
            for sizes in NETS
            if options.only in (None, sizes)
        }
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    return 1 if options.claims and not all(r["holds"] for r in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
