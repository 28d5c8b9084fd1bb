"""One network over 2 tasks against 1 task: training steps, interleaved, in one run.

    python -m tests.bench.bench_model_parallel [--json FILE] [--rounds N] [--claims]

Contenders: a group of 2 tasks with 1 thread each over shared memory, placed as the plan chooses;
1 task with 1 thread; 1 task with 2 threads. The losses of the first steps are compared before the
clock starts. A round gives each contender a block of steps; a group's block takes as long as its
slowest task. Ratios are of medians; the limits are those of issue 4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from horn.planner.calibration import calibrate
from tests.bench.contenders import Contender, horn_side, told

# steps in a block: not timed, timed
NETS = {"4096-4096-4096-10": (1, 6), "784-512-512-10": (15, 50)}
BATCH = 100
# (net, opponent): how many times faster 2 tasks must be
LIMITS = {
    ("4096-4096-4096-10", "1 thread"): 1.75,
    ("4096-4096-4096-10", "2 threads"): 0.95,
    ("784-512-512-10", "1 thread"): 1.5,
}


def bench(sizes: str, rounds: int) -> dict[str, Any]:
    contenders = {
        "2 tasks": Contender(horn_side, 2, sizes, BATCH, 1, 1),
        "1 thread": Contender(horn_side, 1, sizes, BATCH, 1, 1),
        "2 threads": Contender(horn_side, 1, sizes, BATCH, 2, 1),
    }
    checked = {name: c.run(5)[1] for name, c in contenders.items()}
    for name, losses in checked.items():
        np.testing.assert_allclose(losses, checked["1 thread"], rtol=2e-4, err_msg=name)
    untimed, timed = NETS[sizes]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, c in contenders.items():
            times[name].append(c.run(timed, untimed)[0] / timed)
    spent = {name: c.close() for name, c in contenders.items()}["2 tasks"]
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
    told(spent)
    return {"median_s": medians, "ratios": ratios}


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    parser.add_argument("--only", help="one of the networks")
    options = parser.parse_args(args)
    calibrate()  # before there are processes that would disturb it
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
