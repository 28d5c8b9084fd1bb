"""Experiments 35 and 37 over a cluster: what the processes of a job execute, and what of the key is
found in and around them. A job runs with a key on two hosts, is stopped and resumed, so that
checkpoints are written and read.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from horn.cluster.client import ClusterClient
from horn.cluster.resume import resume
from horn.coordination.jobs import JobState
from horn.errors import NotFound
from tests.cluster.agents import FOREVER, Agents, agents
from tests.faults import watch
from tests.faults.test_security import forms, processes, secrets_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FILES = ("cmdline", "environ", "status", "limits")


@dataclass
class Traces:
    """What a job left, and what its processes looked like while it ran."""

    folder: Path
    job: str
    places: dict[str, bytes]
    runners: list[int]
    tasks: list[int]
    notes: dict[str, list[str]]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    folder, hook = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("hook") / "h"
    with agents(folder) as made:
        made.make_key()
        made.environment |= {"HORN_LOG_LEVEL": "DEBUG", **watch.environment(hook)}
        made.start("a", "b", shared=True)
        with made.client() as cluster:
            found = _run(made, cluster)
        made.stop()
        for path in folder.rglob("*"):
            if path.is_file() and path != made.key_file:
                found.places[str(path)] = path.read_bytes()
        found.notes = watch.notes(hook)
        yield found


def _run(made: Agents, cluster: ClusterClient) -> Traces:
    job = made.submit(cluster, "--epochs", FOREVER, groups=2, tasks=2, checkpoint_every=50)
    made.wait_running(cluster, job, 120)
    places: dict[str, bytes] = {}
    tasks = [pid for name in ("a", "b") for pid in made.tasks(name)]
    everyone = [pid for name in ("a", "b") for pid in processes(made.processes[name].pid)]
    for pid in everyone:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for name in FILES:
                places[f"/proc/{pid}/{name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
    lines = {pid: places.get(f"/proc/{pid}/cmdline", b"") for pid in everyone}
    runners = [pid for pid, line in lines.items() if b"horn.cluster.job_runner" in line]
    _read_tree(made, cluster, job, places)
    cluster.stop(job, now=False)
    assert made.wait_ended(cluster, job).state is JobState.STOPPED, made.said()
    resume(cluster, job)
    made.wait_running(cluster, job, int(cluster.status(job).record.checkpoint) + 10)
    cluster.stop(job, now=True)
    made.wait_ended(cluster, job)
    _read_tree(made, cluster, job, places)
    return Traces(made.folder, job, places, runners, tasks, {})


def _read_tree(made: Agents, cluster: ClusterClient, job: str, places: dict[str, bytes]) -> None:
    """Every node below the root, and its ACL."""
    todo = [cluster.paths.root]
    while todo:
        path = todo.pop()
        node = cluster.coord.get(path)
        if node is not None:  # else it has just gone
            acl = cluster.coord._acl_of(path, 10.0)
            places[f"znode {path} {node.changed}"] = node.data + str(acl).encode()
            with contextlib.suppress(NotFound):
                todo += [f"{path}/{name}" for name in cluster.coord.children(path)]


def test_nothing_of_the_key_is_found_around_a_job(traces: Traces):
    secrets = secrets_of(traces.folder / "key", traces.job, "a")
    secrets += secrets_of(traces.folder / "key", traces.job, "b")
    needles = [form for secret in secrets for form in forms(secret)]
    places = traces.places
    assert len(traces.runners) >= 2 and len(traces.tasks) == 4
    for what in ("ckpt-", ".log", "a.out", "znode /horn/jobs", "/members/", "/orders/", "job.py"):
        assert any(what in place for place in places), what
    # they say at level DEBUG what they do
    assert any(b" DEBUG horn." in data for data in places.values())
    hits = [
        f"{place}: secret {n // 9}, form {n % 9}"
        for place, data in places.items()
        for n, needle in enumerate(needles)
        if needle in data
    ]
    assert hits == []
    for pid in (*traces.runners, *traces.tasks):
        assert b"HORN_KEY" not in places[f"/proc/{pid}/environ"]
        assert str(traces.folder / "key").encode() not in places[f"/proc/{pid}/cmdline"]
        core = next(x for x in places[f"/proc/{pid}/limits"].splitlines() if b"core" in x)
        assert core.split()[4:6] == [b"0", b"0"], core


def test_what_a_job_leaves_is_not_for_others(traces: Traces):
    """The shared folder itself is the user's, as it was before."""
    a, b, shared = (traces.folder / name for name in ("a", "b", "shared"))
    left = [a, b, *(path for root in (a, b, shared) for path in root.rglob("*"))]
    assert any(shared in path.parents for path in left)
    for path in left:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert not mode & 0o077, f"{path} has mode {mode:04o}"


def test_the_processes_of_a_job_execute_nothing_but_its_code(traces: Traces):
    """Also while they write checkpoints, and read those that they go on from."""
    noted: dict[str, set[str]] = {}
    for who, lines in traces.notes.items():
        noted.setdefault(who.partition(" ")[0], set()).update(lines)
    assert noted.keys() >= {"agent", "runner", "task"}
    assert {"wrote rank", "read rank"} <= noted["task"] and "wrote MANI" in noted["runner"]
    expected = {"wrote rank", "read rank", "wrote MANI", "read MANI"}
    assert {role: lines - expected for role, lines in noted.items()} == {
        role: set() for role in noted
    }


def test_the_hook_would_say_so_in_a_file(tmp_path: Path):
    """As an agent's child would: another process, started with that environment."""
    import os
    import subprocess
    import sys

    evil = tmp_path / "horn" / "transport" / "evil.py"
    evil.parent.mkdir(parents=True)
    evil.write_text("import pickle\nfrom pathlib import Path\npickle.loads(pickle.dumps(Path))\n")
    text = (
        f"from tests.faults import audit; audit.GUARDED = ({str(evil)!r},); "
        f"code = compile(open({str(evil)!r}).read(), {str(evil)!r}, 'exec'); eval(code)"
    )
    env = os.environ | watch.environment(tmp_path / "h")
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [lines] = watch.notes(tmp_path / "h").values()
    assert any("pickle.find_class below" in line for line in lines), lines
