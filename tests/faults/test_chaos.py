"""Experiment 26: whatever happens to whomever, the job ends with the same bits and leaves nothing.

Three hosts with a worker each; ZooKeeper is one embedded server that keeps files, or an ensemble
of three on hosts of its own. A run that fails says what was done when; its seed does it again.

    pytest -m slow -s tests/faults/test_chaos.py      some 40 minutes
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.apache import is_available
from tests.faults.chaos import KINDS, Asker, Chaos, Vulnerable, plan
from tests.faults.cluster import HORN, JOB, digest, until
from tests.faults.witness import ROLES, Memory, held, is_at_rest, left
from tests.hosts import hosts, why_not

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif("HORN_DATA" not in os.environ, reason="HORN_DATA does not say where"),
]
N_WORKERS = 3
LEAKS_S = 60.0  # for all that a job had to be gone
MEMORY = 1.3  # times the peak of the undisturbed run
GOODPUT = 0.5
CHAOS_S = 600
BATCHES = 30  # of an epoch
EPOCHS, PACE_S = 680, 0.03  # ten minutes if an iteration took no more than that
SHAPE = ["--groups", "2", "--tasks", "2", "--max-restarts", "1000", "--checkpoint-every", "20"]


def run_of(cluster, epochs, faults=(), *, pace_s=0.0, is_held=False):
    """A job to its end, with faults: its id, its seconds from the first step on, peaks, chaos.
    pace_s : an iteration takes so long at least. is_held : it waits before its last epoch until all
    faults are over.
    """
    mark = cluster.folder / "faults-are-over"
    hold = ["--since", str((epochs - 1) * BATCHES), "--until", str(mark)] if is_held else []
    target = cluster.folder / "mnist.py"
    target.write_text(JOB)
    with cluster.session() as coord:
        before = set(coord.children(coord.paths.jobs()))
        with Memory(cluster.hosts) as memory:
            client = cluster.hosts[0].start(
                *HORN, "submit", *SHAPE, *cluster.options(), str(target), "--",
                "--samples", "3000", "--hidden", "500", "--epochs", str(epochs),
                "--pace", str(pace_s), *hold,
                env=cluster.environment, cwd=cluster.folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            [job] = until(lambda: set(coord.children(coord.paths.jobs())) - before)
            asker = Asker(cluster, job)
            disturbed = Chaos(cluster, asker, client)
            try:
                until(lambda: asker.iteration > 0, 60.0, cluster.told)
                began = time.monotonic()
                disturbed.go_on(faults)
                mark.touch()
                until(asker.is_over.is_set, 1800.0, lambda: "\n".join(disturbed.done))
                seconds = time.monotonic() - began
            finally:
                asker.close()
                disturbed.close()
    return job, seconds, memory.peak, disturbed


def see(net, folder, seed, epochs, *, pace_s=0.0, chaos_s=None, mean_s=None):
    """The experiment; prints its figures. Without times faults come in the first three quarters of
    what the undisturbed run takes, six in all.
    """
    is_held = chaos_s is None  # else faults come as long as the job lasts
    with Vulnerable(net, N_WORKERS, folder, slots=3) as cluster:
        run_of(cluster, 1)  # what is measured once, and kept, is not the job's
        calm, calm_s, calm_peak, _ = run_of(cluster, epochs, pace_s=pace_s)
        assert cluster.status(calm)["state"] == "SUCCEEDED"
        cluster.wait_workers(N_WORKERS)
        until(lambda: is_at_rest(cluster), LEAKS_S, cluster.told)
        before = held(cluster)
        chaos_s = chaos_s or 0.75 * calm_s
        faults = plan(chaos_s, mean_s or chaos_s / 6, seed)
        job, took_s, peak, disturbed = run_of(
            cluster, epochs, faults, pace_s=pace_s, is_held=is_held
        )
        told = "\n".join([f"seed {seed}", *disturbed.done])
        print(told, file=sys.stderr)
        cluster.wait_workers(N_WORKERS)
        ended = time.monotonic()
        until(lambda: not left(before, held(cluster)), LEAKS_S,
              lambda: f"{left(before, held(cluster))}\n{told}")  # fmt: skip
        clean_s = time.monotonic() - ended
        status = cluster.status(job)
        assert status["state"] == "SUCCEEDED", f"{status}\n{told}"
        assert digest(cluster, job) == digest(cluster, calm), told
        ratios = {role: peak[role] / calm_peak[role] for role in ROLES}
        print(
            f"chaos: {len(disturbed.done)} faults in {took_s:.0f} s, {status['restarts']} restarts,"
            f" goodput {calm_s / took_s:.0%} ({calm_s:.0f} s undisturbed), same bits, nothing left "
            f"after {clean_s:.1f} s; peak memory "
            + ", ".join(f"{r} {peak[r] / 1e6:.0f} MB x{ratios[r]:.2f}" for r in ROLES)
            + f"; horn status answered {disturbed.n_answers} times",
            file=sys.stderr,
        )
        assert all(ratio <= MEMORY for ratio in ratios.values()), (ratios, told)
        return disturbed, calm_s / took_s, took_s


@pytest.mark.timeout(600)
def test_some_chaos_changes_no_bit(tmp_path):
    """Of a task, ZooKeeper, the client, the agent with the master, and a host's cable."""
    with hosts(N_WORKERS + 1) as net:
        disturbed, _, _ = see(net, tmp_path, 26571, 12)
    assert len(disturbed.done) == 6


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(5400)
@pytest.mark.skipif(not is_available(), reason="no Apache ZooKeeper here")
def test_ten_minutes_of_chaos_change_no_bit(tmp_path):
    """The job is as long as the chaos, and some of it is left when that is over."""
    with hosts(N_WORKERS + 3) as net:
        disturbed, goodput, took_s = see(
            net, tmp_path, 10, EPOCHS, pace_s=PACE_S, chaos_s=3 * CHAOS_S, mean_s=15
        )
    assert took_s >= CHAOS_S
    assert all(any(kind in line for line in disturbed.done) for kind in KINDS)
    assert goodput >= GOODPUT


def test_a_seed_plans_the_same_faults_again():
    faults = plan(10_000, 15, 1)
    assert faults == plan(10_000, 15, 1) != plan(10_000, 15, 2)
    assert {fault.kind for fault in faults[: len(KINDS)]} == set(KINDS)
    assert 10_000 / len(faults) == pytest.approx(15, rel=0.1)
