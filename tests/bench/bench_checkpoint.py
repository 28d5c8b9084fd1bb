"""What a checkpoint costs a training of 12 million parameters with momentum, and going on from it.

python -m tests.bench.bench_checkpoint [--json FILE]

The net is 784-2500-2000-1500-1000-500-10. Steps are timed one by one; a checkpoint is saved at some
of them. Its cost is what the steps from there until it is on the disk took more than as many
ordinary ones, copy and background writing included, as a share of 30 s. Going on is from the folder
to a loop that is ready for its next step: every part read and its SHA-256 compared.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import horn
from horn.backends import Setup, make
from horn.checkpoint import Checkpoints
from horn.training.checkpointing import (
    CheckpointSchedule,
    LocalCheckpoints,
    checkpoint_to_resume,
    identity,
    part_name,
    restore,
)
from horn.training.hooks import LocalControl
from horn.training.loop import TrainingLoop
from horn.training.progress import Progress

SIZES = (2500, 2000, 1500, 1000, 500)
EVERY_S = 30.0
COST, RESUME_S = 0.03, 2.0  # at most
N_CHECKPOINTS, N_ORDINARY = 3, 6


def job() -> horn.Job:
    net = horn.Network(seed=1)
    net.input(784)
    for size in SIZES:
        net.layer(size, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (3200, 784), np.uint8), rng.integers(0, 10, 3200)
    return horn.Job(net, data, horn.SGD(0.01, momentum=0.9), batch_size=100, epochs=1000)


class Timed(LocalCheckpoints):
    """Notes when each step ended; saves when the last checkpoint was some ordinary steps ago."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.ends: list[float] = []
        self.saves: list[tuple[int, int, float]] = []  # steps before and after, seconds of the copy
        self._began: tuple[int, float] | None = None

    def __call__(self) -> bool:
        self.ends.append(time.perf_counter())
        n, loop = len(self.ends), self.loop
        assert loop is not None
        since = n - (self.saves[-1][1] if self.saves else 2)
        if self._began is None and since > N_ORDINARY:
            before = time.perf_counter()
            self._save(loop)
            self._began = n, time.perf_counter() - before
        elif self._began is not None and self.last is not None and (
            self.last[0] == self._began[0]
        ):  # fmt: skip
            self.saves.append((self._began[0], n, self._began[1]))
            self._began = None
        return len(self.saves) == N_CHECKPOINTS


def engine_of(given: horn.Job) -> Any:
    setup = Setup(given.network, given.optimizer, given.target, given.batch_size, given.dtype)
    engine = make("kernels", setup)
    engine.bind(given.data)
    return engine


def measure(folder: Path) -> dict[str, Any]:
    given = job()
    mine = identity(given, "allreduce")
    saver = Timed(CheckpointSchedule(folder), mine, 0, threading.Event(), print)
    loop = TrainingLoop(
        given, engine_of(given), Progress(), time.perf_counter(), control=LocalControl(None, saver)
    )
    saver.loop = loop
    loop.run()
    saver.close()
    steps = np.diff(saver.ends)  # steps[k] is step k + 2
    busy = np.zeros(len(steps), bool)
    for first, last, _ in saver.saves:
        busy[first - 1 : last - 1] = True
    ordinary = float(np.median(steps[~busy]))
    costs = [float((steps[a - 1 : b - 1] - ordinary).sum()) for a, b, _ in saver.saves]
    fresh = TrainingLoop(given, engine_of(given), Progress(), time.perf_counter())
    before, cpu = time.perf_counter(), time.process_time()
    opened = checkpoint_to_resume(Checkpoints(folder), True, given, mine)
    assert opened is not None
    restore(fresh, opened, part_name(0))
    resume_s, resume_cpu_s = time.perf_counter() - before, time.process_time() - cpu
    n_bytes = sum(path.stat().st_size for path in opened.path.iterdir())
    learned = loop.engine.memory()["parameter"]
    assert fresh.iteration == opened.iteration
    return {
        "parameters": sum(array.size for array in learned.values()),
        "bytes": n_bytes,
        "step_s": ordinary,
        "copy_s": statistics.median(copy for _, _, copy in saver.saves),
        "checkpoint_s": statistics.median(costs),
        "cost": statistics.median(costs) / EVERY_S,
        "resume_s": resume_s,
        "resume_cpu_s": resume_cpu_s,
    }


def main() -> int:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        found = measure(Path(folder))
    print(
        f"{found['parameters']:,} parameters, {found['bytes'] / 1e6:.0f} MB: step "
        f"{1e3 * found['step_s']:.0f} ms, copy {1e3 * found['copy_s']:.0f} ms, all of it "
        f"{found['checkpoint_s']:.2f} s = {100 * found['cost']:.2f} % of {EVERY_S:g} s (limit "
        f"{100 * COST:g} %); resume {found['resume_s']:.2f} s, of it "
        f"{found['resume_cpu_s']:.2f} s computing (limit {RESUME_S:g} s)"
    )
    if "--json" in sys.argv:
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(found, indent=1))
    return int(found["cost"] > COST or found["resume_s"] > RESUME_S)


if __name__ == "__main__":
    sys.exit(main())
