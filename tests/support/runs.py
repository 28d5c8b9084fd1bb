"""Jobs for groups of task processes, displays of their progress, and a check for leftovers."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.training.progress import Progress

DEADLINE_S = 60.0
CLOSED_S = 5.0  # until what closes in a thread beside a test has closed
# A superstep's deadline where a task is stopped or hangs: no other task may ever be so late.
LATE_S = 5.0
NEVER_S = 3600.0  # the deadline of a superstep where something else is to end a run long before


class Leaky(horn.Neuron):
    slope = 0.25
    gain = horn.Parameter(1.0)
    count = horn.State(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.count = self.count + 1.0
        self.feedforward(self.gain * (total if total > 0 else total * self.slope))


def network(seed=3, hidden=13, fan_in=4):
    net = horn.Network(seed=seed)
    net.input(8, keep=0.9)
    net.layer(hidden, neuron=Leaky)
    net.layer(7, activation="tanh", connect=horn.Sparse(fan_in=fan_in))
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 8))
    return x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


def job(**settings):
    given = {"optimizer": horn.SGD(0.1, momentum=0.9), "batch_size": 16, "epochs": 2,
             "dtype": "float64"}  # fmt: skip
    return horn.Job(settings.pop("network", None) or network(), data(), **{**given, **settings})


def endless(**settings):
    """A job that ends only if something ends it."""
    return job(**{"epochs": 1_000_000, "batch_size": 2, **settings})


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def children(parent="self"):
    """The processes that this one, or ``parent``, has started and not waited for: pid -> task, None
    for others.
    """
    found = {}
    for thread in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended by now
            for pid in (thread / "children").read_text().split():
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                name = words[-2].decode() if len(words) > 1 else ""
                number = name.rpartition(":")[2]
                found[int(pid)] = int(number) if number.isdecimal() else None
    return found


def pid_of(task):
    return next(pid for pid, number in children().items() if number == task)


def stop(pid):
    """Stop a child, and return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def what_is_open():
    """The descriptors of this process besides files: sockets, memory, event descriptors."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
        except OSError:  # that of the listing
            pass
    return sorted(name for name in names if not name.startswith(("/dev/", "/tmp/", "/proc/")))


def in_shared_memory():
    """The files of horn in shared memory, without those of transport tests beside these."""
    names = os.listdir("/dev/shm")
    return sorted(name for name in names if "horn" in name and not name.startswith("horn-test-"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.freeze()  # earlier reference cycles may hold files, and are not collected now
    before, shared, threads = what_is_open(), in_shared_memory(), threading.active_count()
    others = children()  # fixtures that live as long as the session have children, too
    yield
    assert children() == others
    # A client of the session may be connecting again, in a thread of its own, after a fault.
    ends = time.monotonic() + CLOSED_S
    while what_is_open() != before and time.monotonic() < ends:
        time.sleep(0.01)  # between two looks
    now = what_is_open()
    assert now == before, f"{Counter(now) - Counter(before)} - {Counter(before) - Counter(now)}"
    assert in_shared_memory() == shared
    assert threading.active_count() == threads
    gc.unfreeze()


@pytest.fixture
def patient(monkeypatch):
    """Give every process the time to report what it knows of a failure."""
    monkeypatch.setattr("horn.executor.monitor.GRACE_S", DEADLINE_S)


def same(one, many, rtol=1e-10):
    assert one.model.parameters.keys() == many.model.parameters.keys()
    for name, array in one.model.parameters.items():
        np.testing.assert_allclose(many.model.parameters[name], array, rtol=rtol, atol=1e-12)
    for name, array in one.model.states.items():
        np.testing.assert_allclose(many.model.states[name], array, rtol=rtol, atol=1e-12)
    for mine, its in zip(one.history, many.history, strict=True):
        for column in ("epoch", "iteration", "loss", "acc", "val_loss", "val_acc", "learning_rate"):
            assert its[column] == (mine[column] if mine[column] is None
                                   else pytest.approx(mine[column], rel=rtol)), column  # fmt: skip


def bits(run):
    return {name: array.tobytes() for name, array in run.model.parameters.items()}


# the same answer


class At(Progress):
    """A progress that calls a function once, after the first epoch."""

    def __init__(self, act):
        self.act, self.done = act, False

    def epoch(self, row):
        if not self.done:
            self.done = True
            self.act()


class Notes(At):
    """An At that keeps the notes of the run."""

    def __init__(self, act):
        super().__init__(act)
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@dataclass(frozen=True)
class Waits:
    """A schedule that goes on beyond epoch 1 of ``job`` once there is a file."""

    mark: str
    initial: float = 0.1

    def at(self, iteration):
        while iteration > 4 and not os.path.exists(self.mark):
            time.sleep(0.001)  # between two looks
        return self.initial
