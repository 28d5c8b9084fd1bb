"""Groups of tasks for tests: threads of this process, or spawned processes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import multiprocessing
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horn import transport
from horn.transport import Channel, Identity, Transport, open_transport

SCHEMES = transport.names()
TIMEOUT_S = 60.0


def url_of(scheme: str) -> str:
    return transport.load(scheme).default_url


def run_threads(
    scheme: str,
    n_tasks: int,
    body: Callable[[Transport], Any],
    *,
    made: Callable[[int], Transport] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """``body(transport)`` in a thread per task, connected; what each returned or raised."""
    make = made or (lambda task: open_transport(url_of(scheme), Identity(task, n_tasks, "test", 7)))
    transports = [make(task) for task in range(n_tasks)]
    peers = [t.endpoint for t in transports]
    results: list[Any] = [None] * n_tasks

    def run(task: int) -> None:
        try:
            with transports[task] as t:
                t.connect(peers, timeout_s)
                results[task] = body(t)
        except Exception as error:  # handed to the test
            results[task] = error

    threads = [threading.Thread(target=run, args=(task,), name=f"task {task}")
               for task in range(n_tasks)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 60)
        assert not thread.is_alive(), f"{thread.name} hangs"
    return results


def good(results: Sequence[Any]) -> list[Any]:
    """The results, none of which may be an error."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def all_to_all(n_tasks: int, shape: tuple[int, ...] = (8,), dtype: str = "<f4") -> list[Channel]:
    """Each task owes one block to all others; the part is its number."""
    return [
        Channel(src, src, tuple(t for t in range(n_tasks) if t != src), dtype, shape)
        for src in range(n_tasks)
    ]


DTYPES = ["<f4", "<f8", "<i4", "|u1", "<i8", "|b1"]


def mixed(n_tasks: int, seed: int, biggest: int = 300) -> list[list[Channel]]:
    """Three supersteps with channels of every kind: one to one, one to many, empty, none."""
    rng = np.random.default_rng(seed)
    steps, part = [], 10
    for _ in range(3):
        step = []
        for _ in range(int(rng.integers(0, 3 * n_tasks))):
            src = int(rng.integers(n_tasks))
            others = [t for t in range(n_tasks) if t != src]
            n_dsts = int(rng.integers(1, n_tasks))
            dsts = tuple(sorted(rng.choice(others, n_dsts, replace=False).tolist()))
            shape = tuple(rng.integers(0, biggest, int(rng.integers(1, 3))).tolist())
            step.append(Channel(part, src, dsts, str(rng.choice(DTYPES)), shape))
            part += int(rng.integers(1, 5))
        steps.append(step)
    steps[0].append(Channel(1, 0, (1,), "<f4", (3, 0)))
    steps.append([])
    return steps


def values(channel: Channel, superstep: int) -> np.ndarray:
    """What travels by a channel in a superstep: every bit random, except for truth values."""
    rng = np.random.default_rng([channel.part, superstep])
    if channel.dtype == "|b1":
        return rng.integers(0, 2, channel.shape).astype(bool)
    return np.frombuffer(rng.bytes(channel.n_bytes), channel.dtype).reshape(channel.shape)


def run_steps(t: Transport, steps: list[list[Channel]], n_rounds: int) -> str:
    """All supersteps, in turn; a digest of every block that came."""
    t.open_channels([channel for step in steps for channel in step], TIMEOUT_S)
    seen = hashlib.sha256()
    superstep = 0
    for _ in range(n_rounds):
        for step in steps:
            parts = [c.part for c in step]
            for c in step:
                if c.src == t.task:
                    t.outbox(c.part, TIMEOUT_S)[...] = values(c, superstep)
            t.exchange(superstep, parts, TIMEOUT_S)
            for c in step:
                if t.task in c.dsts:
                    block = t.inbox(c.part)
                    assert block.dtype.str == c.dtype and block.shape == c.shape
                    seen.update(block.tobytes())
            superstep += 1
            if superstep % 4 == 0:
                t.barrier(superstep, TIMEOUT_S)
    return seen.hexdigest()


def expected_digests(n_tasks: int, steps: list[list[Channel]], n_rounds: int) -> list[str]:
    """What ``run_steps`` must return, without any transport."""
    found = []
    for task in range(n_tasks):
        seen = hashlib.sha256()
        for index in range(n_rounds * len(steps)):
            for c in steps[index % len(steps)]:
                if task in c.dsts:
                    seen.update(values(c, index).tobytes())
        found.append(seen.hexdigest())
    return found


# Spawned processes: a body is named "module:function" and takes the connected transport and a pipe.


def _process(url: str, identity: Identity, body: str, args: tuple[Any, ...], pipe: Any) -> None:
    module, _, name = body.partition(":")
    function = getattr(importlib.import_module(module), name)
    result: Any = None
    try:
        with open_transport(url, identity) as t:
            pipe.send(t.endpoint)
            t.connect(pipe.recv(), TIMEOUT_S)
            result = function(t, pipe, *args)
    except Exception as error:
        result = error
    pipe.send(("result", result))


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent again: here all of pytest."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def listeners(endpoints: Sequence[str]) -> set[tuple[str, str]]:
    """Those of these endpoints that are sockets or files now; other groups are not looked at. A
    port's next owner is told from the one before by the socket's inode.
    """
    unix = Path("/proc/net/unix").read_text()
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    tcp = {row[1].rpartition(":")[2]: row[9] for row in rows if row[3] == "0A"}
    found = set()
    for endpoint in endpoints:
        scheme, _, name = endpoint.partition("://")
        if scheme == "tcp":
            inode = tcp.get(f"{int(name.rpartition(':')[2]):04X}", "")
            is_there = bool(inode)
        else:
            inode, bare = "", name.lstrip("@")
            is_there = bare in unix or Path("/dev/shm", bare).exists()
        if is_there:
            found.add((endpoint, inode))
    return found


class Processes:
    """n spawned tasks; ``results`` waits for those that still can answer."""

    def __init__(self, scheme: str, n_tasks: int, body: str, *args: Any, url: str = "") -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for task in range(n_tasks):
            ours, theirs = context.Pipe()
            identity = Identity(task, n_tasks, "test", 7)
            target = (url or url_of(scheme), identity, body, args, theirs)
            process = context.Process(target=_process, args=target, daemon=True)
            with _no_main():
                process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.endpoints = [self.read(task) for task in range(n_tasks)]
        self.listeners = listeners(self.endpoints)
        for pipe in self.pipes:
            pipe.send(self.endpoints)

    def read(self, task: int, timeout_s: float = 60.0) -> Any:
        assert self.pipes[task].poll(timeout_s), f"task {task} says nothing"
        return self.pipes[task].recv()

    def result(self, task: int) -> Any:
        """What a task returned or raised."""
        while True:
            got = self.read(task)
            if isinstance(got, tuple) and got[0] == "result":
                return got[1]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in self.processes:
            process.join(60 if kind is None else 1)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()
