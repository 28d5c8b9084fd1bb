"""One task of a group on a host of its own: ``python -m tests.executor.host_task TASK ADDRESS``.

Prints its endpoint, reads all endpoints (a JSON line), trains, prints what came of it (JSON).
"""

from __future__ import annotations

import json
import sys

import numpy as np

import horn
from horn.backends import Setup
from horn.data import Dataset
from horn.partition.placement import Placement
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Identity, open_transport

KEY = bytes(range(32))
BATCH, N_SAMPLES, N_STEPS = 50, 400, 24
TIMEOUT_S = 60.0


def setup() -> tuple[Setup, Dataset]:
    net = horn.Network(seed=5)
    net.input(300, keep=0.9)
    net.layer(400, activation="relu")
    net.layer(200, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(2)
    data = Dataset(rng.random((N_SAMPLES, 300)), rng.integers(0, 10, N_SAMPLES), 1.0, "noise")
    return Setup(net, horn.SGD(0.05, momentum=0.9), "labels", BATCH, "float64", 1), data


def rows(step: int) -> np.ndarray:
    return np.arange(step * BATCH, (step + 1) * BATCH) % N_SAMPLES


def main(task: int, address: str) -> None:
    transport = open_transport(f"tcp://{address}:0", Identity(task, 2, "hosts", key=KEY))
    print(transport.endpoint, flush=True)
    with transport:
        transport.connect(json.loads(sys.stdin.readline()), TIMEOUT_S)
        group = Group(transport, timeout_s=TIMEOUT_S)
        described, data = setup()
        engine = GroupEngine(
            described, Placement.default(described.network), group, backend="reference"
        )
        engine.bind(data)
        print("ready", flush=True)
        sys.stdin.readline()
        losses = [engine.step(rows(k), iteration=k, first_sample=k * BATCH) for k in range(N_STEPS)]
        places = {
            name: [[p.start, p.stop] for p in engine.places(name)]  # dense: ranges
            for name in engine.parameters()
        }
        found = {
            "losses": losses,
            "sent_bytes": group.spent.sent_bytes,
            "parameters": {name: a.tolist() for name, a in engine.parameters().items()},
            "places": places,
        }
        print(json.dumps(found), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
