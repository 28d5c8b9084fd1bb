"""What is said to ``horn submit`` arrives: at ``horn.train`` on this machine, and on a cluster in
the submission and from there at what a worker trains with. What ``train`` does with it is looked at
in tests/executor/test_options.py; tests/options.py has the list.
"""

from __future__ import annotations

import importlib
import os
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import horn
from horn.cli import _cluster, _remote
from horn.cluster import handles, job_runner
from horn.cluster.master import Allocation
from horn.cluster.runner_protocol import Assignment
from horn.errors import JobError
from horn.security.keys import generate

# Words of the command, and what train is told by them: a name and a value of ``heard``.
WORDS: dict[str, tuple[list[str], str, Any]] = {
    "groups": (["-g", "2"], "groups", 2),
    "tasks": (["-n", "3"], "tasks", 3),
    "servers": (["--strategy", "downpour", "--servers", "2"], "servers", 2),
    "guests": (["--strategy", "downpour", "--servers", "0"], "servers", 0),
    "strategy": (["--strategy", "parallel-dropout"], "strategy", horn.ParallelDropout()),
    "barrier": (["--barrier", "zookeeper"], "barrier", "zookeeper"),
    "transport": (["--transport", "ipc"], "transport", "ipc"),
    "pins": (["-n", "2", "--pin", "layer1=sender"], "pins", {"layer1": "sender"}),
    "superstep_timeout": (["--superstep-timeout", "7s"], "superstep_timeout", 7.0),
    "start_timeout": (["--start-timeout", "8s"], "start_timeout", 8.0),
    "checkpoint_every": (["--checkpoint-every", "9"], "checkpoint_every", 9),
    "checkpoint_seconds": (["--checkpoint-every", "9s"], "checkpoint_seconds", 9.0),
    "max_restarts": (["--strategy", "downpour", "--max-restarts", "5"], "max_restarts", 5),
    "settings": (["--set", "batch_size=20"], "batch_size", 20),
    "settings of the optimizer": (["--set", "optimizer.momentum=0.5"], "momentum", 0.5),
    "settings of the strategy": (
        ["--strategy", "downpour", "--set", "strategy.push_every=2"],
        "strategy",
        horn.Downpour(push_every=2),
    ),
    "seed": (["--seed", "17"], "seed", 17),
    "backend": (["--backend", "reference"], "backend", "reference"),
    "threads": (["--threads", "3"], "threads", 3),
    "timeout": (["--timeout", "8m"], "timeout", 480.0),
    "args": (["--", "--size", "6"], "size", 6),
}
HERE: dict[str, tuple[list[str], str, Any]] = {
    "trace": (["-n", "2", "--trace", "t.json"], "trace", "t.json"),
    "profile": (["--profile"], "profile", True),
    "profile in a file": (["--profile", "p.json"], "profile", "p.json"),
    "checkpoints": (["--checkpoints", "there"], "checkpoints", "there"),
    "resume": (["--resume"], "resume", True),
    "resume from": (["--resume", "run1"], "resume", "run1"),
    "changed": (["--resume", "--changed"], "changed", True),
}
SIZED = """
import numpy as np
import horn

def job(size: int = 4):
    net = horn.Network(seed=3)
    net.input(2)
    net.layer(size, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).standard_normal((40, 2))
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), optimizer=horn.SGD(0.5), batch_size=10)
"""


def heard(job: horn.Job, options: dict[str, Any]) -> dict[str, Any]:
    """What of a run can be told by words."""
    net, optimizer = job.network, job.optimizer
    seed = options.get("seed")
    return {
        "batch_size": job.batch_size, "size": net.layers[1].size, **options,
        "seed": net.seed if seed is None else seed, "momentum": getattr(optimizer, "momentum", 0),
    }  # fmt: skip


@pytest.fixture
def locally(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a run is told by a command."""
    (folder / "job.py").write_text(SIZED)
    told: list[dict[str, Any]] = []

    def conduct(job: horn.Job, settings: Any, deadline: Any) -> Any:
        told.append(heard(job, vars(settings)))
        raise JobError("that was all")

    monkeypatch.setattr(importlib.import_module("horn.train"), "conduct", conduct)

    def found(*words: str) -> dict[str, Any]:
        done = run("submit", "job.py", "-q", *words)
        assert done.code == 2 and "that was all" in done.err, done.err
        return told[-1]

    return found


class FakeCluster:
    """Takes what is handed in."""

    def __init__(self) -> None:
        self.submission: Any = None
        self.package: Any = None

    def submit(self, submission: Any, package: Any) -> str:
        self.submission, self.package = submission, package
        return "job-1"


@pytest.fixture
def remotely(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a cluster is handed by a command, and what a worker's job runner makes of it."""
    (folder / "job.py").write_text(SIZED)
    cluster, asked = FakeCluster(), []

    def opened(hosts: str, key: Any) -> Any:
        asked.append((hosts, key))
        return types.SimpleNamespace(once=lambda action: action(cluster), close=lambda: None)

    def handed_in(client: FakeCluster, wanted: Any, package: Any) -> str:
        return client.submit(wanted, package)

    monkeypatch.setattr(handles, "ReconnectingClient", opened)
    monkeypatch.setattr(handles, "submit", handed_in)

    def found(*words: str, zk: tuple[str, ...] = ("--zk", "zk1:2181")) -> Any:
        done = run("submit", "job.py", "-d", *zk, *words)
        assert done.code == 0 and done.out == "job-1\n", done.err
        return types.SimpleNamespace(
            submission=cluster.submission, package=cluster.package, asked=asked[-1]
        )

    return found


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """What a job runner trains with, of a submission."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(
        job_runner,
        "conduct",
        lambda job, settings, _, deadline: told.append(heard(job, vars(settings))),
    )

    def found(submission: Any) -> dict[str, Any]:
        given = Assignment(
            job="job-1", attempt=0, host="a", allocations={"a": Allocation(0, "127.0.0.1", (0,))},
            work=str(tmp_path), keep=str(tmp_path / "kept"), logs=str(tmp_path),
            submission=msgspec.to_builtins(submission), zookeeper="zk1:2181", can_save=True,
            threads=2,
        )  # fmt: skip
        boss = job_runner.JobRunner(None, given)  # type: ignore[arg-type]
        threads = int(boss.submission.options.get("threads") or given.threads)
        boss._conduct(types.SimpleNamespace(threads=threads), *boss._load(), None)  # type: ignore[arg-type]
        return told[-1]

    yield found


@pytest.mark.parametrize("what", [*WORDS, *HERE])
def test_what_is_said_to_submit_reaches_train(what: str, locally: Any) -> None:
    words, name, value = {**WORDS, **HERE}[what]
    assert locally().get(name) != value
    assert locally(*words)[name] == value


@pytest.mark.parametrize("what", WORDS)
def test_what_is_said_to_submit_reaches_what_a_worker_trains_with(
    what: str, remotely: Any, trained: Any
) -> None:
    words, name, value = WORDS[what]
    assert trained(remotely().submission).get(name) != value
    assert trained(remotely(*words).submission)[name] == value


def test_a_cluster_is_asked_where_and_with_the_key_that_is_said(
    remotely: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = generate(folder / "key")
    assert remotely("--key", str(folder / "key")).asked == ("zk1:2181", key)
    monkeypatch.setenv("HORN_ZK", "zk2:2181")
    assert remotely(zk=()).asked == ("zk2:2181", None)


def test_zookeeper_is_asked_by_tls_where_that_is_said(
    remotely: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORN_ZK_TLS", "")
    remotely("--zk-tls", str(folder))
    assert os.environ["HORN_ZK_TLS"] == str(folder)


def test_the_key_of_a_file_is_that_of_the_cluster(folder: Path) -> None:
    made = generate(folder / "key")
    assert _cluster.open_cluster("zk1:2181", str(folder / "key")).key == made


def test_local_is_here_whatever_the_environment_says(
    locally: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORN_ZK", "nowhere.invalid:1")
    assert locally("--local")["size"] == 4


def test_the_name_is_that_of_the_submission(remotely: Any) -> None:
    assert remotely().submission.name == "job"
    assert remotely("--name", "mine").submission.name == "mine"


def test_the_folder_that_is_sent(remotely: Any, folder: Path) -> None:
    (folder / "more.txt").write_text("not imported")
    names = [
        {file.path for file in remotely(*words).package.manifest.files}
        for words in ((), ("--working-dir", "."))
    ]
    assert "more.txt" not in names[0] and "more.txt" in names[1]


@pytest.mark.parametrize(
    ("words", "zk", "said"),
    [
        (["submit", "--local", "-d"], "nowhere.invalid:1", "leave --local out"),
        (["submit", "--dry-run", "--working-dir", "."], "nowhere.invalid:1",
         "leave --dry-run out"),
        (["submit", "-d"], "", "give --zk HOSTS"),
        (["sweep", "--working-dir", "."], "", "give --zk HOSTS"),
        (["sweep", "--local", "--working-dir", "."], "", "give --zk HOSTS and leave --local out"),
    ],
)  # fmt: skip
def test_options_of_a_cluster_are_refused_with_what_is_in_their_way(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], zk: str, said: str
) -> None:
    monkeypatch.setenv("HORN_ZK", zk)
    (folder / "job.py").write_text(SIZED)
    done = run(*words, "job.py", *([] if words[0] == "submit" else ["--set", "batch_size=10,20"]))
    assert done.code == 2 and f"for a cluster: {said}." in done.err


def test_checkpoints_every_zero_updates_are_refused_on_a_cluster_as_here():
    def asked(every: str | None) -> dict[str, Any]:
        options = defaultdict(lambda: None, pins=(), settings=(), checkpoint_every=every)
        return {k: v for k, v in _remote._as_asked(options).items() if k.startswith("checkpoint")}

    assert (asked(None), asked("9")) == ({}, {"checkpoint_every": 9})
    assert asked("9s") == {"checkpoint_seconds": 9.0}
    with pytest.raises(JobError, match="--checkpoint-every 0: write how many iterations, from 1"):
        asked("0")
