"""Plain allreduce of two processes against PyTorch's gloo, interleaved, in one run.

    python -m tests.bench.bench_allreduce [--json FILE] [--rounds N] [--claims]

The sum of an array over both processes, in both. gloo's ``all_reduce`` is in place; so is horn's,
made as AllReduce makes it: a process owns half of the array and has computed what it owes the
other in the outbox; it adds what came in the inbox to its own half, straight into the outbox of the
second superstep, from which both have the result. Where the transport shares memory, the result is
one array for both, and the second superstep only says that it is there. Large arrays travel in
pieces, as the layers of a network do. Answers are checked before the clock starts. Ratios are of
medians of blocks, gloo's time over horn's; the limits are those of issue 5, over tcp of issue 13.
"cpu us" is the processor time of a process with all its threads, of the block that took least: the
figure to look at where others use the machine, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from horn.transport import Channel, Identity, Transport, open_transport
from tests.bench.side_by_side import measured

SCHEMES = {"shm": "shm://", "tcp": "tcp://127.0.0.1:0"}
SIZES = {"4 KB": 4096, "400 KB": 409_600, "4 MB": 4_194_304, "48 MB": 50_331_648}
REPETITIONS = {"4 KB": 60, "400 KB": 15, "4 MB": 5, "48 MB": 1}
PIECE_BYTES = 4_194_304  # of the array; a layer of 1,000 x 1,000
LIMITS = {
    "shm": {"4 KB": 10.0, "400 KB": 5.0, "4 MB": 4.0, "48 MB": 3.0},
    "tcp": {"4 KB": 1.2, "400 KB": 1.2, "4 MB": 1.2, "48 MB": 1.2},
}
TIMEOUT_S = 60.0


class Pieces:
    """One array over one transport. ``first`` is its first part, ``n_parts`` how many it takes."""

    def __init__(self, transport: Transport, size: int, first: int) -> None:
        self.transport, self.task = transport, transport.task
        n = -(-size // PIECE_BYTES)
        self.n_numbers = size // 4 // n // 2  # of a half of a piece
        self.n_pieces, self.first = n, first
        self.is_shared = transport.can_share
        self.n_parts = n * (5 if self.is_shared else 4)
        self.owned = np.empty((n, self.n_numbers), np.float32)

    def channels(self) -> list[Channel]:
        found, part = [], self.first
        ends = (np.empty(0) if self.is_shared else self.owned[0]).shape
        for _ in range(self.n_pieces):
            for shape in (self.owned[0].shape, ends):
                for src in (0, 1):
                    found.append(Channel(part, src, (1 - src,), "<f4", shape))
                    part += 1
            if self.is_shared:
                shape = (2, self.n_numbers)
                found.append(Channel(part, 0, (1,), "<f4", shape, common=True))
                part += 1
        return found

    def parts(self, piece: int) -> tuple[tuple[int, int], tuple[int, int], int]:
        at = self.first + piece * self.n_parts // self.n_pieces
        return (at, at + 1), (at + 2, at + 3), at + 4

    def fill(self, content: np.ndarray) -> None:
        """What the program would have computed: its own halves here, the others' in outboxes."""
        halves = content.reshape(self.n_pieces, 2, self.n_numbers)
        self.owned[...] = halves[:, self.task]
        for piece in range(self.n_pieces):
            box = self.transport.outbox(self.parts(piece)[0][self.task], TIMEOUT_S)
            box[...] = halves[piece, 1 - self.task]

    def run(self, superstep: int) -> int:
        """One allreduce; the superstep that comes next."""
        t, task, n = self.transport, self.task, self.n_pieces
        for piece in range(n):
            there = self.parts(piece)[0]
            t.outbox(there[task], TIMEOUT_S)
            t.post(superstep + piece, there)
        for piece in range(n):
            there, back, common = self.parts(piece)
            t.collect(superstep + piece, there, TIMEOUT_S)
            box = t.outbox(back[task], TIMEOUT_S)
            out = t.common(common)[task] if self.is_shared else box
            np.add(self.owned[piece], t.inbox(there[1 - task]), out=out)
            t.post(superstep + n + piece, back)
        for piece in range(n):
            t.collect(superstep + n + piece, self.parts(piece)[1], TIMEOUT_S)
        return superstep + 2 * n

    def result(self) -> np.ndarray:
        """Only right after a run over what was filled in; over ZeroMQ the own half is on its way
        in a box that is no longer this task's, so it is added once more.
        """
        found = np.empty((self.n_pieces, 2, self.n_numbers), np.float32)
        for piece in range(self.n_pieces):
            there, back, common = self.parts(piece)
            if self.is_shared:
                found[piece] = self.transport.common(common)
                continue
            found[piece, 1 - self.task] = self.transport.inbox(back[1 - self.task])
            inbox = self.transport.inbox(there[1 - self.task])
            found[piece, self.task] = self.owned[piece] + inbox
        return found.reshape(-1)


def measure(task: int, n_tasks: int, store: str, pipe: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds per allreduce of every size and method, one figure per round."""
    import torch
    import torch.distributed as gloo

    torch.set_num_threads(1)
    gloo.init_process_group("gloo", init_method=f"file://{store}", rank=task, world_size=n_tasks)
    opened: dict[str, Transport] = {}
    cases: dict[tuple[str, str], Pieces] = {}
    for scheme, url in SCHEMES.items():
        t = opened[scheme] = open_transport(url, Identity(task, n_tasks, "bench"))
        pipe.send(t.endpoint)
        t.connect(pipe.recv(), TIMEOUT_S)
        channels: list[Channel] = []
        for name, size in SIZES.items():
            case = cases[name, scheme] = Pieces(t, size, len(channels))
            channels += case.channels()
        t.open_channels(channels, TIMEOUT_S)
    superstep = 1
    tensors = {}
    for name, size in SIZES.items():  # the answers first
        both = [np.random.default_rng([t, size]).random(size // 4, np.float32) for t in (0, 1)]
        expected = both[0] + both[1]
        tensors[name] = torch.from_numpy(both[task].copy())
        gloo.all_reduce(tensors[name])
        np.testing.assert_array_equal(tensors[name].numpy(), expected)
        tensors[name].zero_()  # summed again and again it stays finite
        for scheme in SCHEMES:
            for _ in range(2):  # both slots
                cases[name, scheme].fill(both[task])
                superstep = cases[name, scheme].run(superstep)
                np.testing.assert_array_equal(cases[name, scheme].result(), expected)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in SIZES:
            n = REPETITIONS[name]
            for method in ("gloo", *SCHEMES):
                if method == "gloo":
                    gloo.barrier()
                    began, used = time.perf_counter(), time.process_time()
                    for _ in range(n):
                        gloo.all_reduce(tensors[name])
                else:
                    case = cases[name, method]
                    superstep = case.run(superstep)
                    opened[method].barrier(superstep, TIMEOUT_S)
                    began, used = time.perf_counter(), time.process_time()
                    for _ in range(n):
                        superstep = case.run(superstep)
                took = (time.perf_counter() - began) / n
                seconds.setdefault(f"{name}/{method}", []).append(took)
                cpu_s = (time.process_time() - used) / n
                seconds.setdefault(f"{name}/{method}/cpu", []).append(cpu_s)
    gloo.barrier()
    for t in opened.values():
        t.barrier(0, TIMEOUT_S)
        t.close()
    gloo.destroy_process_group()
    return seconds


def bench(rounds: int) -> list[dict[str, Any]]:
    """One row per size: median microseconds by method, gloo's over horn's, whether they hold."""
    found = measured(measure, 2, len(SCHEMES), rounds)
    rows = []
    for name in SIZES:
        row: dict[str, Any] = {"case": name}
        median = {}
        for method in ("gloo", *SCHEMES):
            key = f"{name}/{method}"
            slowest = [max(block) for block in zip(*(f[key] for f in found), strict=True)]
            median[method] = statistics.median(slowest)
            row[f"{method} us"] = round(median[method] * 1e6, 1)
            used = [min(f[f"{key}/cpu"]) for f in found]
            row[f"{method} cpu us"] = round(statistics.mean(used) * 1e6, 1)
        for method in SCHEMES:
            ratio = row[f"{method} ratio"] = round(median["gloo"] / median[method], 2)
            limit = LIMITS[method][name]
            if ratio < limit:
                row.setdefault("fails", []).append(f"{method} {ratio} < {limit}")
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--claims", action="store_true", help="end with 1 if a limit is missed")
    asked = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed, and gloo is what is compared with", file=sys.stderr)
        return 0
    rows = bench(asked.rounds)
    for row in rows:
        print(json.dumps(row))
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 1 if asked.claims and any("fails" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
