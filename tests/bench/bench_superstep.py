"""The superstep against PyTorch's gloo: barrier and all-to-all exchange, interleaved, in one run.

    python -m tests.bench.bench_superstep [--json FILE] [--tasks 2 4] [--rounds N]

n processes on this host. In each round every method has a block of repetitions in turn, so all see
the same machine; a block starts at a barrier of its own method, and takes as long as its slowest
process. Answers are checked before the clock starts. Ratios are of medians of blocks; the limits
are those of issue 4.

gloo's all_gather starts with a block in an array and ends with all blocks in arrays. "copies" does
just that: from an array of the caller's into the outbox, out of the inboxes into arrays of the
caller's. "in place" is how horn is meant to be used: the block has been computed in the outbox, and
is read in the inbox. Over ZeroMQ the bytes travel either way, and the limits are for "in place"; in
shared memory nothing moves in place, so there the limits are for copies.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from horn.transport import Channel, Identity, open_transport
from tests.bench.side_by_side import measured

SCHEMES = {"shm": "shm://", "ipc": "ipc://", "tcp": "tcp://127.0.0.1:0"}
SIZES = {"4 KB": 4096, "400 KB": 409_600, "4 MB": 4_194_304}
REPETITIONS = {"barrier": 100, "4 KB": 60, "400 KB": 15, "4 MB": 5}
LIMITS = {
    ("barrier", "shm", 2): 0.1, ("barrier", "shm", 4): 0.3,
    **{("barrier", scheme, n): 0.75 for scheme in ("ipc", "tcp") for n in (2, 4)},
    **{("4 KB", "shm", n): 0.2 for n in (2, 4)},
    **{("400 KB", "shm", n): 0.4 for n in (2, 4)},
    **{("4 MB", "shm", n): 0.6 for n in (2, 4)},
    **{("4 KB", f"{scheme} in place", n): 0.75 for scheme in ("ipc", "tcp") for n in (2, 4)},
    **{(s, f"{scheme} in place", n): 1.0 for s in ("400 KB", "4 MB")
       for scheme in ("ipc", "tcp") for n in (2, 4)},
}  # fmt: skip
METHODS = ["gloo", *SCHEMES, *(f"{scheme} in place" for scheme in SCHEMES)]
TIMEOUT_S = 60.0


def measure(task: int, n_tasks: int, store: str, pipe: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds per repetition of every case and method, one figure per round."""
    import torch
    import torch.distributed as gloo

    torch.set_num_threads(1)
    gloo.init_process_group("gloo", init_method=f"file://{store}", rank=task, world_size=n_tasks)
    parts = tuple(range(n_tasks))
    others = [t for t in parts if t != task]
    sources = {name: np.random.default_rng([task, size]).random(size // 4, np.float32)
               for name, size in SIZES.items()}  # fmt: skip
    expected = {name: [np.random.default_rng([t, size]).random(size // 4, np.float32)
                       for t in parts] for name, size in SIZES.items()}  # fmt: skip
    opened = {}
    for scheme, url in SCHEMES.items():
        opened[scheme] = open_transport(url, Identity(task, n_tasks, "bench"))
        pipe.send(opened[scheme].endpoint)
        opened[scheme].connect(pipe.recv(), TIMEOUT_S)
    step = 0
    cases: dict[tuple[str, str], tuple[Callable[[], None], list[Any]]] = {}

    def of_transport(scheme: str, name: str, is_view: bool) -> tuple[Callable[[], None], list[Any]]:
        t = opened[scheme]
        at = list(SIZES).index(name) * n_tasks
        ours = tuple(at + p for p in parts)
        source = sources[name]
        out: list[Any] = [np.empty_like(source) for _ in parts]

        def exchange() -> None:
            nonlocal step
            step += 1
            if is_view:
                out[task] = t.outbox(at + task, TIMEOUT_S)
                t.exchange(step, ours, TIMEOUT_S)
                for p in others:
                    out[p] = t.inbox(at + p)
            else:
                np.copyto(t.outbox(at + task, TIMEOUT_S), source)
                t.post(step, ours)
                np.copyto(out[task], source)
                for p in others:  # one by one: copy while the next is on its way
                    # With its own: else it may go, to another transport, before it is sent.
                    t.collect(step, (at + task, at + p), TIMEOUT_S)
                    np.copyto(out[p], t.inbox(at + p))

        return exchange, out

    for scheme, t in opened.items():
        t.open_channels(
            [
                Channel(i * n_tasks + p, p, tuple(q for q in parts if q != p), "<f4", (size // 4,))
                for i, size in enumerate(SIZES.values())
                for p in parts
            ],
            TIMEOUT_S,
        )

        def barrier(t: Any = t) -> None:
            nonlocal step
            step += 1
            t.barrier(step, TIMEOUT_S)

        cases["barrier", scheme] = (barrier, [])
        for name in SIZES:
            cases[name, scheme] = of_transport(scheme, name, False)
            cases[name, f"{scheme} in place"] = of_transport(scheme, name, True)
    cases["barrier", "gloo"] = (gloo.barrier, [])
    for name in SIZES:
        tensor = torch.from_numpy(sources[name])
        gathered = [torch.empty_like(tensor) for _ in parts]

        def all_gather(gathered: Any = gathered, tensor: Any = tensor) -> None:
            gloo.all_gather(gathered, tensor)

        cases[name, "gloo"] = (all_gather, gathered)
    for (name, _), (run, out) in cases.items():  # the answers first
        for _ in range(3):  # after the copies, both slots hold what "in place" has computed
            run()
        if out:
            for got, wanted in zip(out, expected[name], strict=True):
                np.testing.assert_array_equal(np.asarray(got), wanted)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ["barrier", *SIZES]:
            for method in METHODS:
                if (name, method) not in cases:
                    continue
                run = cases[name, method][0]
                cases["barrier", method.partition(" ")[0]][0]()
                n = REPETITIONS[name]
                began = time.perf_counter()
                for _ in range(n):
                    run()
                seconds.setdefault(f"{name}/{method}", []).append((time.perf_counter() - began) / n)
    cases["barrier", "gloo"][0]()
    for t in opened.values():
        t.barrier(0, TIMEOUT_S)
        t.close()
    gloo.destroy_process_group()
    return seconds


def bench(n_tasks: int, rounds: int) -> list[dict[str, Any]]:
    """One row per case: median microseconds by method, ratios to gloo, and whether they hold."""
    found = measured(measure, n_tasks, len(SCHEMES), rounds)
    rows = []
    for name in ["barrier", *SIZES]:
        row: dict[str, Any] = {"tasks": n_tasks, "case": name}
        median = {}
        for key in found[0]:
            case, _, method = key.partition("/")
            if case == name:
                slowest = [max(block) for block in zip(*(f[key] for f in found), strict=True)]
                median[method] = statistics.median(slowest)
                row[f"{method} us"] = round(median[method] * 1e6, 1)
        for method in median:
            if method != "gloo":
                ratio = row[f"{method} ratio"] = round(median[method] / median["gloo"], 3)
                limit = LIMITS.get((name, method, n_tasks))
                if limit is not None and ratio > limit:
                    row.setdefault("fails", []).append(f"{method} {ratio} > {limit}")
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--tasks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed, and gloo is what is compared with", file=sys.stderr)
        return 0
    rows = []
    for n_tasks in asked.tasks:
        for row in bench(n_tasks, asked.rounds):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if asked.json:
        import torch

        machine = {
            "cpu": platform.processor() or platform.machine(),
            "n_cpu": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        with open(asked.json, "w", encoding="utf-8") as out:
            json.dump({"machine": machine, "rows": rows}, out, indent=1)
    return 1 if any("fails" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
