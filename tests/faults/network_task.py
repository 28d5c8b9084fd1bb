"""A task of a group on a host: ``python -m tests.faults.network_task TASK ADDRESS SPEC``.

Says where it listens, reads all endpoints, says ``ready``, reads a line, trains, says what came of
it; each is a line of JSON. Task 0 says its step and reads a line before each of ``pauses``.
``Tasks`` runs them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from tests.hosts import Host

KEY = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class Spec:
    """What all tasks do. ``sizes``: of the layers."""

    n_tasks: int = 2
    sizes: tuple[int, ...] = (40, 60, 40, 10)
    batch: int = 20
    n_steps: int = 10
    timeout_s: float = 60.0
    pauses: tuple[int, ...] = ()


def train(task: int, address: str, spec: Spec) -> dict[str, Any]:
    import horn
    from horn.backends import Setup
    from horn.data import Dataset
    from horn.partition.placement import Placement
    from horn.runtime.engine import GroupEngine
    from horn.runtime.group import Group
    from horn.transport import Identity, open_transport

    rng = np.random.default_rng(2)
    first, *hidden, last = spec.sizes
    n_samples = spec.batch * 8
    data = Dataset(rng.random((n_samples, first)), rng.integers(0, last, n_samples), 1.0, "noise")
    net = horn.Network(seed=5)
    net.input(first, keep=0.9)
    for size in hidden:
        net.layer(size, activation="relu")
    net.output(last, activation="softmax", loss="cross_entropy")
    setup = Setup(net, horn.SGD(0.05, momentum=0.9), "labels", spec.batch, "float64", 1)
    url = f"tcp://{address}:0"
    step = 0
    with open_transport(url, Identity(task, spec.n_tasks, "hosts", key=KEY)) as transport:
        say(transport.endpoint)
        transport.connect(json.loads(sys.stdin.readline()), spec.timeout_s)
        group = Group(transport, timeout_s=spec.timeout_s)
        engine = GroupEngine(setup, Placement.default(net), group, backend="reference")
        engine.bind(data)
        say("ready")
        sys.stdin.readline()
        losses = []
        try:
            for step in range(spec.n_steps):
                if task == 0 and step in spec.pauses:
                    say(step)
                    sys.stdin.readline()
                at = np.arange(step * spec.batch, (step + 1) * spec.batch) % n_samples
                losses.append(engine.step(at, iteration=step, first_sample=step * spec.batch))
            transport.barrier(10_000, spec.timeout_s)
        except horn.HornError as error:
            return {"error": type(error).__name__, "text": str(error), "when": time.monotonic(),
                    "step": step}  # fmt: skip
        whole = hashlib.sha256()
        for name, array in sorted(engine.parameters().items()):
            whole.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return {"digest": whole.hexdigest(), "losses": losses, "when": time.monotonic(),
                "n_mended": transport.counters.n_mended}  # fmt: skip


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


class Tasks:
    """A task on each host, which have met and wait for ``go``."""

    def __init__(self, hosts: Sequence[Host], spec: Spec, environment: Any = None) -> None:
        words = [sys.executable, "-m", "tests.faults.network_task"]
        spec = dataclasses.replace(spec, n_tasks=len(hosts))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [
            host.start(
                *words, str(task), host.address, json.dumps(dataclasses.asdict(spec)),
                env=environment if task == 0 else None, **pipes,
            )
            for task, host in enumerate(hosts)
        ]  # fmt: skip
        self.began = 0.0
        endpoints = [self.hear(task) for task in range(len(hosts))]
        for process in self.processes:
            print(json.dumps(endpoints), file=process.stdin, flush=True)
        for task in range(len(hosts)):
            assert self.hear(task) == "ready"

    def hear(self, task: int) -> Any:
        """The next that a task says; pytest's timeout is the deadline."""
        line = self.processes[task].stdout.readline()  # type: ignore[union-attr]
        assert line, f"task {task} ended without a word"
        return json.loads(line)

    def go(self) -> None:
        self.began = time.monotonic()
        for task in range(len(self.processes)):
            self.go_on(task)

    def go_on(self, task: int) -> None:
        print(file=self.processes[task].stdin, flush=True)

    def results(self) -> list[dict[str, Any]]:
        """What came of it, by task."""
        return [self.hear(task) for task in range(len(self.processes))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    found = json.loads(sys.argv[3])
    tuples = {name: tuple(found[name]) for name in ("sizes", "pauses")}
    say(train(int(sys.argv[1]), sys.argv[2], Spec(**found | tuples)))
