"""Contenders of a benchmark: each has processes of its own, which sleep while another runs."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import horn
from horn.backends import Setup, make
from horn.data import Dataset
from horn.partition.placement import Placement
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Identity, open_transport

N_SAMPLES = 2000
TIMEOUT_S = 120.0
RATE, MOMENTUM = 0.01, 0.9


def network(sizes: str) -> horn.Network:
    first, *hidden, last = map(int, sizes.split("-"))
    net = horn.Network(seed=3)
    net.input(first)
    for size in hidden:
        net.layer(size, activation="relu")
    net.output(last, activation="softmax", loss="cross_entropy")
    return net


def dataset(sizes: str) -> Dataset:
    first, *_, last = map(int, sizes.split("-"))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (N_SAMPLES, first), np.uint8)
    return Dataset(x, rng.integers(0, last, N_SAMPLES), 1 / 255, "noise")


def rows_of(iteration: int, batch: int) -> np.ndarray:
    return np.arange(iteration * batch, (iteration + 1) * batch) % N_SAMPLES


def placement(sizes: str, n_tasks: int, batch: int) -> Placement:
    # Instead of the plan's choice: links, a colon, layers, as in receiver,sender:all,neurons,all
    chosen = os.environ.get("HORN_PLACEMENT")
    if chosen:
        links, layers = (part.split(",") for part in chosen.split(":"))
        return Placement({(k + 1, 0): w for k, w in enumerate(links)}, dict(enumerate(layers)))
    from horn.planner import plan

    data = dataset(sizes)
    job = horn.Job(network(sizes), data=(data.x, data.y),
                   optimizer=horn.SGD(RATE, momentum=MOMENTUM), batch_size=batch)  # fmt: skip
    return plan.cheapest(job, n_tasks, transport="shm").placement


def horn_side(pipe: Any, rank: int, n_ranks: int, job: str, sizes: str, batch: int, threads: int,
              n_groups: int) -> None:  # fmt: skip
    """One task of ``n_groups`` groups; a batch is what all groups compute together."""
    where = None
    if n_ranks > 1:
        where = placement(sizes, n_ranks // n_groups, batch // n_groups)
    setup = Setup(
        network(sizes), horn.SGD(RATE, momentum=MOMENTUM), "labels", batch, "float32", threads
    )
    steps_of_horn(pipe, rank, n_ranks, job, setup, dataset(sizes), n_groups, where)


def steps_of_horn(
    pipe: Any, rank: int, n_ranks: int, job: str, setup: Setup, data: Dataset, n_groups: int,
    where: Placement | None,
) -> None:  # fmt: skip
    """Steps of a task of some groups, whatever the network; ``where`` for more than one."""
    group, batch = None, setup.batch_size
    if n_ranks == 1:
        engine: Any = make("kernels", setup)
    else:
        transport = open_transport("shm://", Identity(rank, n_ranks, job))
        pipe.send(transport.endpoint)
        transport.connect(pipe.recv(), TIMEOUT_S)
        group = Group(transport, timeout_s=TIMEOUT_S)
        assert where is not None
        engine = GroupEngine(setup, where, group, n_groups=n_groups)
    engine.bind(data)
    count = iter(range(1 << 60))

    def step() -> float:
        k = next(count)
        rows = np.arange(k * batch, (k + 1) * batch) % len(data)
        return engine.step(rows, iteration=k, first_sample=k * batch)

    obey(pipe, step)
    if group is not None:
        pipe.send(group.spent)
        group.transport.close()


def obey(pipe: Any, step: Callable[[], float]) -> None:
    """Steps as ordered, (n untimed, n timed): seconds of the timed ones, all losses, and the timed
    ones' seconds of processor time.
    """
    while (order := pipe.recv()) is not None:
        untimed, timed = order
        losses = [step() for _ in range(untimed)]
        begun, spent = time.perf_counter(), time.process_time()
        losses += [step() for _ in range(timed)]
        pipe.send((time.perf_counter() - begun, losses, time.process_time() - spent))


class Contender:
    """``side(pipe, rank, n_ranks, job, *what)`` in so many processes. meets : whether they are
    tasks of horn, which tell each other where they are.
    """

    def __init__(
        self, side: Callable[..., None], n_ranks: int, *what: Any, meets: bool | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        job = f"bench-{secrets.token_hex(4)}"
        self.processor_s = 0.0
        self.pipes, self.processes = [], []
        for rank in range(n_ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=side, args=(theirs, rank, n_ranks, job, *what))
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        if (side is horn_side if meets is None else meets) and n_ranks > 1:
            endpoints = [self._hear(rank) for rank in range(n_ranks)]
            for pipe in self.pipes:
                pipe.send(endpoints)

    def _hear(self, rank: int) -> Any:
        if not self.pipes[rank].poll(TIMEOUT_S):
            raise TimeoutError(f"process {self.processes[rank].pid} says nothing")
        return self.pipes[rank].recv()

    def run(self, timed: int, untimed: int = 0) -> tuple[float, list[float]]:
        """Seconds of the slowest rank, losses of the first. Afterwards ``processor_s`` is the most
        processor time that a rank took.
        """
        for pipe in self.pipes:
            pipe.send((untimed, timed))
        answers = [self._hear(rank) for rank in range(len(self.pipes))]
        self.processor_s = max(seconds for *_, seconds in answers)
        return max(seconds for seconds, *_ in answers), answers[0][1]

    def close(self) -> list[Any]:
        """What horn's groups spent, if it was one."""
        for pipe in self.pipes:
            pipe.send(None)
        spent = []
        for rank, process in enumerate(self.processes):
            process.join(0.2 if rank else 5)
            if self.pipes[rank].poll(5):
                try:
                    spent.append(self.pipes[rank].recv())
                except EOFError:
                    pass
            process.join(TIMEOUT_S)
        return spent


def told(spent: list[Any]) -> None:
    """Where the time of each task went."""
    for task, s in enumerate(spent):
        n = max(s.n_runs, 1)
        words = [
            f"{what} {getattr(s, f'{what}_s') / n * 1e6:.0f}"
            for what in ("compute", "pack", "send", "wait", "unpack")
        ]
        moved = f"{s.n_supersteps / n:g} supersteps, {s.sent_bytes / n / 1e3:.0f} kB sent"
        print(f"  task {task}, us per step: {', '.join(words)}; {moved}")
