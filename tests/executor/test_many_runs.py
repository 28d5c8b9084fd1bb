"""200 runs of a 3-task job in a row, and one network of 400 MB: nothing hangs, leaks or swells.

pytest -m slow tests/executor/test_many_runs.py
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
import pytest

import horn
import zk
from horn.coordination.session import Session
from horn.executor.launch import launch
from horn.planner.plan import cheapest
from horn.process.job_payload import draft
from horn.training.progress import Progress
from horn.training.run_settings import RunSettings
from tests.support.runs import children, job, what_is_open

pytestmark = [pytest.mark.net, pytest.mark.cluster, pytest.mark.slow]
N_RUNS = 200


@pytest.mark.timeout(1800)
def test_200_runs_of_3_tasks_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # others use the common one
    monkeypatch.setattr(tempfile, "tempdir", None)
    given = job(epochs=1)
    placement = cheapest(given, 3).placement
    first: dict[str, bytes] = {}
    with zk.EmbeddedServer(tick_ms=200) as server, Session(server.hosts) as coord:

        def run() -> dict[str, bytes]:
            settings = RunSettings(tasks=3, hosts=server.hosts, timeout=60.0)
            found = launch(
                given, draft(given), lambda: placement, settings,
                Progress(), time.perf_counter(),
            )  # fmt: skip
            return {name: array.tobytes() for name, array in found.parameters.items()}

        first = run()
        nodes, others = coord.children("/horn"), children()
        before = what_is_open(), os.listdir("/dev/shm"), sorted(os.listdir(tmp_path))
        for number in range(1, N_RUNS):
            assert run() == first, f"run {number} differs"
            assert children() == others, number
            assert coord.children("/horn/jobs") == [] and coord.children("/horn") == nodes, number
            after = (
                what_is_open(),
                os.listdir("/dev/shm"),
                sorted(os.listdir(tmp_path)),
            )
            assert after == before, number


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_tasks", [2, 4])
def test_a_task_holds_its_part_of_a_network_of_400_mb(n_tasks):
    """Peak memory of each process: its weights and their velocity, and at most 60 MB besides (code
    of libraries, which all of them share, not counted).
    """
    net = horn.Network(seed=1)
    net.input(5000)
    net.layer(10_000, activation="relu")
    net.layer(5000, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 5000), np.float32), rng.integers(0, 10, 64)
    optimizer = horn.SGD(0.01, momentum=0.9)
    big = horn.Job(net, (x, y), optimizer=optimizer, batch_size=16, iterations=3, check=False)
    run = horn.train(big, tasks=n_tasks)
    learned = sum(array.nbytes for array in run.model.parameters.values())
    assert learned > 400e6
    share = 2 * learned / n_tasks  # each weight has its velocity
    for row in run.counters:
        assert share < row["peak_memory_bytes"] <= share + 60e6, row
