"""The recipes of docs/operations.md, run on hosts of their own: no address is on loopback.

Nobody handles a certificate, and nothing that is secret is on the wire. docs/notes/0099.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horn.cluster.client import ClusterClient
from horn.security.keys import Key
from tests.cluster.agents import JOB, ROOT
from tests.cluster.helpers import wait_until
from tests.hosts import Host, Network, hosts, why_not

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
HORN = [sys.executable, "-m", "horn"]
PORT = 4675


@pytest.fixture
def net() -> Iterator[Network]:
    with hosts(3) as found:
        yield found


@pytest.fixture
def key(tmp_path: Path) -> Key:
    """Made as an operator does."""
    subprocess.run([*HORN, "keygen", str(tmp_path / "cluster.key")], check=True, cwd=ROOT)
    (tmp_path / "job.py").write_text(JOB)
    return Key.from_file(tmp_path / "cluster.key")


def environment(folder: Path, **more: str) -> dict[str, str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("HORN_", "SLURM_"))}
    own = {"PYTHONPATH": str(ROOT), "HORN_KEY": str(folder / "cluster.key")}
    return known | own | {"HORN_DATA": os.environ.get("HORN_DATA", "")} | more


@contextlib.contextmanager
def started(host: Host, folder: Path, *words: str, **more: Any) -> Iterator[subprocess.Popen[Any]]:
    """A command of horn on a host, ended at the end as an operator does; it must end in order."""
    name = f"{host.number}-{words[0]}"
    with open(folder / f"{name}.out", "ab") as out:
        process = host.start(
            *HORN, *words, env=environment(folder, **more), stdout=out, stderr=out,
            stdin=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{name} did not end\n{said(folder)}") from None


@contextlib.contextmanager
def captured(net: Network, folder: Path) -> Iterator[Path]:
    """All that goes through the switch, in a file."""
    file = folder / "wire"
    words = [sys.executable, "-m", "tests.capture"]
    recorders = []
    for host in net.hosts:
        enter = ["ip", "netns", "exec", net.switch]
        where = [f"p{host.number}", f"{file}{host.number}"]
        recorders.append(
            subprocess.Popen([*enter, *words, *where], cwd=ROOT, stdout=subprocess.PIPE)
        )
    try:
        for recorder in recorders:
            assert recorder.stdout is not None and recorder.stdout.readline() == b"ready\n"
        yield file
    finally:
        for recorder in recorders:
            recorder.kill()
            recorder.communicate()
        parts = [Path(f"{file}{host.number}").read_bytes() for host in net.hosts]
        file.write_bytes(b"".join(parts))


def said(folder: Path) -> str:
    return "\n".join(f"{p.name}:\n{p.read_text()[-4000:]}" for p in folder.glob("*.out"))


def secrets_of(key: Key, jobs: list[str]) -> list[bytes]:
    """What must not be seen: passwords of ZooKeeper, and keys, raw and as text."""
    credentials = [key.zookeeper(), *map(key.zookeeper_of, jobs)]
    raw = [key._prk, key.submission(), key.role("client"), key.role("worker")]
    raw += [key.derive("zookeeper tls authority"), *map(key.job, jobs)]
    raw += [credential.secret for credential in credentials]
    return [
        *(credential.text.partition(":")[2].encode() for credential in credentials),
        *raw,
        *(secret.hex().encode() for secret in raw),
    ]


def test_three_hosts_with_horn_zk_and_a_key_nothing_else(net: Network, key: Key, tmp_path: Path):
    a, b, c = net.hosts
    zk = f"{a.address}:2181"
    more = {"HORN_ZK": zk}
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(captured(net, tmp_path))
        stack.enter_context(
            started(a, tmp_path, "zk", "--bind", a.address, "--data-dir", str(tmp_path / "zk"))
        )
        wait_until(lambda: 2181 in a.ports())
        (tmp_path / "s").mkdir()
        for host in net.hosts:
            words = ["worker", "--host", host.address, "--slots", "2", "--name", f"w{host.number}"]
            places = ["--dir", str(tmp_path / f"d{host.number}"), "--shared", str(tmp_path / "s")]
            stack.enter_context(started(host, tmp_path, *words, *places, **more))
        with b.inside(), ClusterClient(zk, key, timeout_s=20.0) as cluster:
            wait_until(lambda: len(cluster.workers()) == 3, 60)
        words = ["submit", "job.py", "--groups", "3", "--tasks", "2", "--output", "m.horn"]
        done = c.run(*HORN, *words, env=environment(tmp_path, **more), cwd=tmp_path, timeout=120)
        assert done.returncode == 0, (done.stderr, said(tmp_path))
        assert (tmp_path / "m.horn").exists()
        with b.inside(), ClusterClient(zk, key, timeout_s=20.0) as cluster:
            (job,) = cluster.coord.children(cluster.paths.jobs())
            assert len(cluster.status(job).record.allocations or cluster.files(job)) >= 1
        doctor = b.run(*HORN, "doctor", "--cluster", env=environment(tmp_path, **more), timeout=60)
        assert "ZooKeeper" in doctor.stdout and "3 up" in doctor.stdout, doctor
        # who has no key, or says that TLS is off, is told in a sentence
        for wrong in ({"HORN_KEY": ""}, {"HORN_ZK_TLS": "off"}):
            done = b.run(*HORN, "list", env=environment(tmp_path, **more, **wrong), timeout=60)
            assert done.returncode == 3 and "Traceback" not in done.stderr, done
        for host in net.hosts:
            assert host.ports(only_loopback=True) == []
    seen = wire.read_bytes()
    assert len(seen) > 100_000 and job.encode() not in seen
    assert [secret for secret in secrets_of(key, [job]) if secret in seen] == []


def test_without_tls_the_capture_sees_the_password(net: Network, key: Key, tmp_path: Path):
    """So that its silence above says something."""
    import zk

    with captured(net, tmp_path) as wire, net.hosts[0].inside():
        server = zk.EmbeddedServer(host=net.hosts[0].address, is_open=True).start()
        try:
            with net.hosts[1].inside(), pytest.MonkeyPatch.context() as patch:
                patch.setenv("HORN_ZK_TLS", "off")
                with ClusterClient(server.hosts, key, timeout_s=20.0) as cluster:
                    cluster.workers()
        finally:
            server.stop()
    assert key.zookeeper().text.partition(":")[2].encode() in wire.read_bytes()


def test_under_slurm_the_nodes_of_a_step_are_a_cluster(net: Network, key: Key, tmp_path: Path):
    """A fake srun: the same command on each node, with what Slurm says in the environment."""
    names = "".join(f"{host.address} node{host.number}\n" for host in net.hosts)
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (tmp_path / "s").mkdir()
    nodes: list[subprocess.Popen[str]] = []
    try:
        with captured(net, tmp_path) as wire:
            for host in net.hosts:
                slurm = {
                    "SLURM_PROCID": str(host.number), "SLURM_STEP_NUM_TASKS": "3",
                    "SLURM_STEP_NODELIST": "node[0-2]",
                }  # fmt: skip
                words = ["up", "--join", "--slots", "2", "--shared", str(tmp_path / "s")]
                job = ["--", "job.py", "--groups", "3", "--tasks", "2", "--output", "m.horn"]
                of_node = f"mount --bind {tmp_path}/hosts /etc/hosts && hostname node{host.number}"
                unshare = ["unshare", "--uts", "--mount", "--propagation", "private"]
                line = ["sh", "-c", f'{of_node} && exec "$@"', "sh", *HORN, *words, *job]
                nodes.append(
                    host.start(
                        *unshare,
                        *line,
                        env=environment(tmp_path, **slurm),
                        cwd=tmp_path,
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )  # fmt: skip
                )
            texts = [node.communicate(timeout=150)[0] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0, 0], "\n".join(texts)
        assert (tmp_path / "m.horn").exists()
        seen = wire.read_bytes()
        assert len(seen) > 50_000
        assert [secret for secret in secrets_of(key, []) if secret in seen] == []
    finally:
        for node in nodes:
            if node.poll() is None:
                node.kill()
                node.communicate()


def test_up_join_without_a_key_or_a_reachable_name_is_a_sentence(net: Network, tmp_path: Path):
    host = net.hosts[0]
    known = environment(tmp_path, HORN_KEY="")
    words = [*HORN, "up", "--join", "--nodes", "2", "--rank", "0", "--first", host.address]
    done = host.run(*words, "--host", host.address, env=known)
    assert done.returncode == 2 and "there is no key: make one with  horn keygen" in done.stderr
    done = host.run(*HORN, "zk", "--bind", host.address, env=known)
    assert done.returncode == 2 and "horn keygen" in done.stderr and "Traceback" not in done.stderr
