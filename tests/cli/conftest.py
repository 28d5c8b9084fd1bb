"""``run("submit", "job.py")`` runs a command in a folder of its own, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from horn.cli import horn
from horn.cli._end import ending
from tests.cluster.agents import Agents, agents

JOB = """
import numpy as np
import horn

def job():
    net = horn.Network(seed=3)
    net.input(2)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    return horn.Job(net, (x, y), optimizer=horn.SGD(0.5), batch_size=10, epochs=3)
"""


@dataclass
class Result:
    """What a command did. ``files`` are those in its folder that were not there before."""

    code: int
    out: str
    err: str
    files: set[str]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of the test, with job.py in it; what it imports is forgotten after."""
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        before = {p.name for p in folder.iterdir()}
        for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None)]:
            if str(folder) in str(sys.modules[name].__file__):
                del sys.modules[name]  # a command is a process: the file is imported anew
        capsys.readouterr()
        code = ending(horn, list(arguments))
        captured = capsys.readouterr()
        files = {p.name for p in folder.iterdir()} - before - {"__pycache__"}
        return Result(code, captured.out, captured.err, files)

    return run


@pytest.fixture(scope="module")
def agent_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """One worker with two slots: each costs processes, and more for the tasks that wait there."""
    with agents(tmp_path_factory.mktemp("cluster")) as made:
        made.start("a")
        yield made


@pytest.fixture
def cluster(agent_of_the_file: Agents, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """That worker, and no jobs; HORN_ZK names the cluster."""
    monkeypatch.setenv("HORN_ZK", agent_of_the_file.hosts)
    yield agent_of_the_file
    agent_of_the_file.forget()


@pytest.fixture
def own_cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Agents]:
    """A cluster of the test's own, with one worker; HORN_ZK names it."""
    with agents(tmp_path_factory.mktemp("cluster")) as made:
        monkeypatch.setenv("HORN_ZK", made.hosts)
        made.start("a")
        yield made
