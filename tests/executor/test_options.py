"""What a run did of what it was told: each option of ``horn.train`` is looked for where it shows,
in processes, sockets, memory, nodes of ZooKeeper and files. tests/options.py has the list.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess

import numpy as np
import pytest

import horn
import zk
from horn.checkpoint import Checkpoints
from horn.coordination.session import Session
from horn.partition.placement import Placement
from tests.support.runs import At, Waits, bits, children, data, job, network, nothing_is_left

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left"]  # a fixture
training = importlib.import_module("horn.train")  # horn.train is the function


class Look:
    """What can be seen of a run's tasks while they wait after the first epoch."""

    def __init__(self, hosts):
        self.tasks = {pid: task for pid, task in children().items() if task is not None}
        self.listens, self.memory, self.environment = {}, {}, {}
        for pid, task in self.tasks.items():
            sockets = set()
            for fd in os.listdir(f"/proc/{pid}/fd"):
                found = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
                sockets |= {found[1]} if found else set()
            with open(f"/proc/{pid}/net/tcp") as lines:
                rows = [line.split() for line in lines][1:]
            self.listens[task] = any(row[9] in sockets and row[3] == "0A" for row in rows)
            with open(f"/proc/{pid}/maps") as lines:
                self.memory[task] = {m for line in lines for m in re.findall(r"memfd:(\S+)", line)}
            with open(f"/proc/{pid}/environ") as lines:
                self.environment[task] = dict(
                    word.partition("=")[::2] for word in lines.read().split("\0")
                )
        with Session(hosts) as coord:
            (name,) = coord.children("/horn/jobs")
            region = f"/horn/jobs/{name}/groups/0/barrier"
            (epoch,) = coord.children(region)
            self.generation = max(map(int, coord.children(f"{region}/{epoch}")))


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Trains ``job`` and looks at its tasks, which wait for that."""
    hosts, real = [], zk.EmbeddedServer

    def noting(*given, **settings):
        server = real(*given, **settings)
        hosts.append(server)
        return server

    monkeypatch.setattr(zk, "EmbeddedServer", noting)

    def found(**settings):
        seen, mark = [], tmp_path / f"mark{len(hosts)}"

        def act():
            try:
                seen.append(Look(hosts[-1].hosts))
            finally:
                mark.touch()

        horn.train(job(optimizer=horn.SGD(Waits(str(mark)))), progress=At(act), **settings)
        return seen[0]

    return found


def test_transport_is_what_carries_blocks(look):
    for transport, listens, is_shared in (
        ("tcp", True, False), ("ipc", False, False), ("shm", False, True),
    ):  # fmt: skip
        seen = look(tasks=2, transport=transport)
        assert seen.listens == {0: listens, 1: listens}, transport
        for task in (0, 1):
            assert ("horn-mailboxes" in seen.memory[task]) == is_shared, transport


def test_barrier_is_what_supersteps_pass(look):
    assert look(tasks=2, barrier="message").generation <= 2  # the start, and the epoch's end
    assert look(tasks=2, barrier="zookeeper").generation >= 2 * 4  # of every superstep


@pytest.mark.parametrize("groups, tasks, servers", [(1, 2, 0), (2, 1, 0), (2, 2, 0), (2, 1, 2)])
def test_groups_tasks_and_servers_are_processes(groups, tasks, servers, monkeypatch):
    started, start = [], subprocess.Popen
    settings = {"strategy": "downpour", "servers": servers} if servers else {}

    def starts(*what, **how):
        started.append(start(*what, **how))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", starts)
        run = horn.train(job(), groups=groups, tasks=tasks, **settings)
    assert len(started) == groups * tasks + servers
    roles = [row["role"] for row in run.counters]
    assert sum(role.startswith("server") for role in roles) == servers
    assert len(roles) == groups * tasks + servers


def test_groups_are_replicas_and_tasks_share_one(monkeypatch):
    """What is placed among tasks is placed among those of one group."""
    given = []
    real = training.__dict__["_placement"]
    monkeypatch.setattr(
        training, "_placement", lambda job, told: given.append(told) or real(job, told)
    )
    horn.train(job(), groups=2)
    horn.train(job(), tasks=2)
    assert [(told.groups, told.tasks) for told in given] == [(2, 1), (1, 2)]


def test_threads_bound_those_of_every_task(look, monkeypatch):
    for threads in (1, 3):
        seen = look(tasks=2, threads=threads)
        for task in (0, 1):
            assert seen.environment[task]["OPENBLAS_NUM_THREADS"] == str(threads)
    made, real = [], training.make
    monkeypatch.setattr(
        training, "make", lambda backend, setup: made.append(setup) or real(backend, setup)
    )
    run = horn.train(job(), threads=3)
    assert made[0].threads == 3 and run.model.threads == 3


def test_pins_are_where_weights_are():
    """Each place has its own number of bytes to be sent."""
    given = job(network=dense(), iterations=4, epochs=None)
    sent = {}
    for where in ("receiver", "sender", "replicated"):
        pins = {"layer1": where, "layer2": where}
        run = horn.train(given, tasks=2, pins=pins)
        sent[where] = sum(row["sent_bytes"] for row in run.counters)
    assert len(set(sent.values())) == 3, sent


def dense():
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(40, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def test_backend_is_what_computes_in_tasks(monkeypatch):
    """The two round differently, and each as it does on one task with the same placement."""
    monkeypatch.setattr(training, "_placement", lambda job, _: Placement.default(job.network))
    found = {
        backend: bits(horn.train(job(network=wide(), dtype="float32"), tasks=2, backend=backend))
        for backend in ("kernels", "reference")
    }
    assert found["kernels"] != found["reference"]


def wide():
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(300, activation="tanh")
    net.layer(200, activation="sigmoid")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def test_a_strategy_and_its_settings_are_what_groups_do():
    given = job(network=dense(), epochs=2)
    shared = horn.train(given, groups=2)
    assert shared.staleness == {}
    often = horn.train(given, groups=2, strategy=horn.Downpour(push_every=1))
    seldom = horn.train(given, groups=2, strategy="downpour")
    assert sum(often.staleness.values()) > sum(seldom.staleness.values()) > 0
    parts = horn.train(given, groups=2, strategy="parallel-dropout")
    assert bits(parts) != bits(shared)


def test_seconds_between_checkpoints(tmp_path):
    horn.train(job(), checkpoints=tmp_path / "a", checkpoint_seconds=1e-9)
    assert Checkpoints(tmp_path / "a").iterations() == [6, 7, 8]
    horn.train(job(), checkpoints=tmp_path / "b", checkpoint_seconds=3600.0)
    assert Checkpoints(tmp_path / "b").iterations() == []


def test_so_many_checkpoints_are_kept(tmp_path):
    for keep in (1, 5):
        folder = tmp_path / str(keep)
        horn.train(job(), checkpoints=folder, checkpoint_every=1, keep_checkpoints=keep)
        assert Checkpoints(folder).iterations() == list(range(9 - keep, 9))


# what a Job says


def weights_of(**settings):
    return horn.train(job(network=dense(), epochs=1, **settings)).model.parameters["layer1.weight"]


def test_the_optimizer_is_the_one_that_is_given():
    start = dense().initial_parameters(np.float64)["layer1.weight"]
    once, twice = (weights_of(optimizer=horn.SGD(rate), batch_size=60) for rate in (0.1, 0.2))
    np.testing.assert_allclose(twice - start, 2 * (once - start), rtol=1e-9, atol=1e-14)
    adam = weights_of(optimizer=horn.Adam(0.01), batch_size=60)
    assert np.abs(adam - start).max() == pytest.approx(0.01, rel=1e-3)


def test_the_data_are_those_that_are_given():
    x, y = data()
    assert not np.array_equal(weights_of(), horn.train(
        job(network=dense(), epochs=1).with_settings(data=(x[::-1].copy(), y))
    ).model.parameters["layer1.weight"])  # fmt: skip


def test_the_target_is_what_outputs_are_compared_with():
    net = horn.Network(seed=1)
    net.input(3)
    net.output(3, loss="squared_error")
    x = np.eye(3)
    losses = [
        horn.train(horn.Job(net, (x, y), target=target, iterations=1, batch_size=3)).history["loss"]
        for target, y in (("labels", np.array([1, 2, 0])), ("input", np.array([1, 2, 0])),
                          ("labels", np.array([0, 1, 2])))
    ]  # fmt: skip
    assert losses[1] == losses[2] != losses[0]


def test_the_type_of_numbers_is_that_of_the_model():
    for dtype in ("float32", "float64"):
        model = horn.train(job(dtype=dtype)).model
        assert model.dtype == dtype
        assert {array.dtype.name for array in model.parameters.values()} == {dtype}


def test_the_name_is_in_the_facts():
    assert horn.train(job(name="mine")).model.facts["name"] == "mine"


def test_the_network_is_the_one_that_is_given():
    run = horn.train(job(network=network(hidden=5)))
    assert run.model.parameters["layer1.weight"].shape == (5, 8)
