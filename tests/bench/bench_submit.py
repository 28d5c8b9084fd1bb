"""From the command to the end of the first step: horn submit against torchrun, in one run.

    python -m tests.bench.bench_submit [--json FILE] [--rounds N] [--claims]

A cluster of one idle worker on loopback runs already, as a cluster does; ``torchrun --standalone
--nproc-per-node 2`` has nothing to start beforehand. Both train the same net on the bundled digits
in two processes that share every batch (one step is all samples), from the same weights: the loss
of that step is compared before anything is said about time. Limits are those of issue 6.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import horn
from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from tests.cluster.agents import ROOT, Agents, agents

LIMIT_S, LIMIT_RATIO = 2.0, 0.6
JOB = """
import horn

def job():
    net = horn.Network(seed=5)
    net.input(64)
    net.layer(100, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.digits()
    return horn.Job(net, data, optimizer=horn.SGD(0.1), batch_size=len(data), iterations=1)
"""
TORCH = """
import sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, found = dist.get_rank(), np.load(sys.argv[1])
net = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.Tanh(), torch.nn.Linear(100, 10))
with torch.no_grad():
    for layer, name in ((net[0], "layer1"), (net[2], "layer2")):
        layer.weight.copy_(torch.from_numpy(found[f"{name}.weight"]))
        layer.bias.copy_(torch.from_numpy(found[f"{name}.bias"]))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = (torch.from_numpy(found[key][rank::2]) for key in ("x", "y"))
loss = torch.nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
mean = loss.detach() * len(x)
dist.all_reduce(mean)
if rank == 0:
    print("FIRST", time.time(), float(mean) / len(found["x"]), flush=True)
dist.barrier()  # who leaves first may abort the other
dist.destroy_process_group()
"""


def horn_once(made: Agents, cluster: ClusterClient, folder: Path) -> tuple[float, float]:
    """Seconds until the first step was over, and its loss."""
    before = set(cluster.coord.children(cluster.paths.jobs()))
    env = {**os.environ, "HORN_ZK": made.hosts, "PYTHONPATH": str(ROOT)}
    begun = time.time()
    subprocess.run(
        [sys.executable, "-m", "horn", "submit", "job.py", "-g", "2", "-q"],
        cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    (job,) = set(cluster.coord.children(cluster.paths.jobs())) - before
    lines = remote_files.read(cluster, job, "a", "progress.jsonl")[1].decode().splitlines()
    row = next(said for said in map(json.loads, lines) if "row" in said)
    return row["at"] - begun, row["row"]["loss"]


def torch_once(folder: Path) -> tuple[float, float]:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert torchrun is not None, "torchrun is not beside this Python"
    begun = time.time()
    done = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "2", "ddp.py", "start.npz"],
        cwd=folder, capture_output=True, text=True, timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    words = next(x for x in done.stdout.splitlines() if x.startswith("FIRST")).split()
    return float(words[1]) - begun, float(words[2])


def write_files(folder: Path) -> None:
    (folder / "job.py").write_text(JOB)
    (folder / "ddp.py").write_text(TORCH)
    space: dict[str, Any] = {}
    exec(JOB, space)
    job = space["job"]()
    data = job.data
    x = np.asarray(data.x, np.float32) * np.float32(data.scale)
    start = {name: np.asarray(value) for name, value in job.network.initial_parameters().items()}
    np.savez(folder / "start.npz", x=x, y=np.asarray(data.y, np.int64), **start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--claims", action="store_true", help="fail where a limit is missed")
    options = parser.parse_args()
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        with agents(folder) as made:
            write_files(folder)  # the helper has a job.py of its own
            made.start("a")
            with made.client() as cluster:
                for k in range(options.rounds + 1):
                    time.sleep(3.0)  # idle: the worker has made its next job runner ready
                    mine, loss = horn_once(made, cluster, folder)
                    other, expected = torch_once(folder)
                    np.testing.assert_allclose(loss, expected, rtol=1e-4)
                    if k:  # the first round reads files from the disk
                        ours.append(mine)
                        theirs.append(other)
    found = {
        "horn_s": statistics.median(ours),
        "torchrun_s": statistics.median(theirs),
        "all_horn_s": ours,
        "all_torchrun_s": theirs,
        "load": os.getloadavg()[0],
        "horn": getattr(horn, "__version__", ""),
    }
    found["ratio"] = found["horn_s"] / found["torchrun_s"]
    print(
        f"horn submit {found['horn_s']:.2f} s · torchrun {found['torchrun_s']:.2f} s · "
        f"ratio {found['ratio']:.2f} (load {found['load']:.1f})"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    if options.claims:
        assert found["horn_s"] <= LIMIT_S, f"{found['horn_s']:.2f} s, at most {LIMIT_S} s"
        assert found["ratio"] <= LIMIT_RATIO, f"{found['ratio']:.2f}, at most {LIMIT_RATIO}"


if __name__ == "__main__":
    main()
