"""The manifests of examples/kubernetes, run: Apache's servers and workers, each in its own pod.

Their configuration, commands, variables and volumes are those of the manifests, the Secrets those
of the commands in their README. What is in the images is what is installed here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horn.cluster.client import ClusterClient
from horn.security.keys import Key
from tests.apache import CODEC_JAR, LOGGER_JAR, is_available
from tests.cluster.agents import JOB, ROOT
from tests.cluster.helpers import wait_until
from tests.cluster.test_recipes import HORN, captured, environment, secrets_of
from tests.hosts import hosts, why_not
from tests.pods import Pod, has_bash
from tests.test_kubernetes import FOLDER, documents

SERVER = Path("/usr/share/zookeeper/bin/zkServer.sh")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.java,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(
        not (is_available() and SERVER.exists() and has_bash()),
        reason="no Apache ZooKeeper with its scripts on this machine",
    ),
]
N_SERVERS, N_WORKERS = 3, 2
# What the image zookeeper:3.8 has: its scripts in PATH, and the jars that Debian's package forgets.
IMAGE = {
    "PATH": f"{SERVER.parent}:{os.environ['PATH']}",
    "JVMFLAGS": f"-cp /usr/share/java/zookeeper.jar:{LOGGER_JAR}:{CODEC_JAR}",
    "ZOO_LOG_DIR": "/tmp",
}


def stateful_set(name: str) -> Any:
    [found] = [d for d in documents(name) if d["kind"] == "StatefulSet"]
    return found


def given(folder: Path) -> dict[str, Any]:
    """What the README has made, and what the manifests have."""
    subprocess.run(
        [*HORN, "keygen", "horn.key", "--tls", "tls"],
        check=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    told = (FOLDER / "README.md").read_text()
    found: dict[str, Any] = {}
    for line in (line for line in told.splitlines() if "create secret generic" in line):
        words = line.split()
        files = [folder / w.removeprefix("--from-file=") for w in words if "--from-file=" in w]
        name = words[words.index("generic") + 1]
        found[name] = {path.name: path.read_bytes() for path in files}
    for document in documents("zookeeper.yaml"):
        if document["kind"] == "ConfigMap":
            data = document["data"]
            found[document["metadata"]["name"]] = {k: text.encode() for k, text in data.items()}
    (folder / "shared").mkdir()
    return found | {"horn-shared": folder / "shared"}


def test_a_job_on_an_ensemble_and_workers_as_the_manifests_have_them(tmp_path: Path):
    made = given(tmp_path)
    key = Key.from_file(tmp_path / "horn.key")
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(hosts(N_SERVERS + N_WORKERS))
        wire = stack.enter_context(captured(net, tmp_path))
        places = net.hosts[:N_SERVERS]
        names = {f"zookeeper-{n}.zookeeper": host.address for n, host in enumerate(places)}
        for number, host in enumerate(places):
            pod = Pod(stateful_set("zookeeper.yaml"), number, host, tmp_path, made, names)
            stack.callback(ended, pod.start([], **IMAGE))
        for host in places:
            wait_until(lambda host=host: 2181 in host.ports(), 60)
        workers = []
        for number, host in enumerate(net.hosts[N_SERVERS:]):
            # Python may be where only root can read it.
            pod = Pod(stateful_set("worker.yaml"), number, host, tmp_path, made, names, user=0)
            stack.callback(ended, pod.start(HORN, PYTHONPATH=str(ROOT)))
            workers.append(pod)
        zk = ",".join(f"{host.address}:2181" for host in places)
        with net.hosts[-1].inside(), ClusterClient(zk, key, timeout_s=60.0) as cluster:
            wait_until(lambda: len(cluster.workers()) == N_WORKERS, 60)
        (tmp_path / "shared" / "job.py").write_text(JOB)
        words = ["submit", "/shared/job.py", "--groups", "2", "--tasks", "2", "--output",
                 "/shared/m.horn"]  # fmt: skip
        [spec] = workers[0].spec["containers"]
        inside = workers[0].words(spec | {"name": "exec", "args": words}, HORN,
                                  {"PYTHONPATH": str(ROOT)})  # fmt: skip
        done = workers[0].host.run(*inside, timeout=120)
        assert done.returncode == 0, (done.stderr, said(tmp_path))
        assert (tmp_path / "shared" / "m.horn").exists()
        # who has no key is not let in by a server
        (tmp_path / "other").mkdir()
        subprocess.run([*HORN, "keygen", str(tmp_path / "other" / "cluster.key")], check=True,
                       cwd=ROOT)  # fmt: skip
        done = net.hosts[-1].run(
            sys.executable, "-m", "horn", "list", "--zk", zk, env=environment(tmp_path / "other")
        )
        assert done.returncode == 3 and "certificate" in done.stderr, done
    seen = wire.read_bytes()
    assert len(seen) > 100_000 and b"/horn" not in seen  # among the servers neither
    assert [secret for secret in secrets_of(key, []) if secret in seen] == []


def said(folder: Path) -> str:
    return "\n".join(f"{p}: {p.read_text()[-3000:]}" for p in folder.glob("*/log.out"))


def ended(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
