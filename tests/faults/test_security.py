"""Experiments 31, 32, 35 and 37 of the threat model: what listens, who gets in, what is executed,
and where the key is found. Experiment 33 is in test_fuzz, 34 in tests/cluster/test_package.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import stat
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from zmq.utils import z85

from horn.coordination.session import Session
from horn.rpc.server import Quotas
from horn.security.keys import Key, generate
from horn.transport._zeromq import keypair
from horn.wire.zap import pair_of
from tests import hosts
from tests.cluster.helpers import wait_until
from tests.faults import audit, forgers
from tests.rpc.services import Text, client, service

SEED = int(os.environ.get("HORN_SEED", "0"))
pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]


# 32: nobody gets in without the key


@pytest.mark.parametrize("kind", forgers.KINDS)
def test_no_forger_is_accepted(kind):
    n = 20 if kind in ("garbage", "replayed bytes", "altered byte") else 2 * forgers.BATCH
    with service() as (found, echo), client(found, "worker") as genuine:
        genuine.call("order", Text("genuine"), Text)
        assert forgers.knock(found, echo, kind, n, random.Random(SEED)) == 0
        genuine.call("order", Text("genuine"), Text)
        assert set(echo.called) == {"worker"}


def test_no_forged_submission_is_accepted():
    assert forgers.submissions(600, random.Random(SEED)) == 0


@pytest.mark.slow
def test_none_of_ten_thousand_forgeries_is_accepted(record_property):
    rng = random.Random(SEED)
    counts = {"garbage": 300, "replayed bytes": 300, "altered byte": 400}
    n_tried = 0
    with service() as (found, echo), client(found, "worker") as genuine:
        for kind in forgers.KINDS:
            n = counts.get(kind, 800)
            assert forgers.knock(found, echo, kind, n, rng) == 0, kind
            genuine.call("order", Text("genuine"), Text)
            n_tried += n
    assert forgers.submissions(10_000 - n_tried, rng) == 0
    record_property("tried", 10_000)


def rate(caller, window_s: float) -> float:
    """Calls a second."""
    n, ends = 0, time.perf_counter() + window_s
    while time.perf_counter() < ends:
        caller.call("echo", Text("x" * 100), Text)
        n += 1
    return n / window_s


@pytest.mark.slow
def test_those_who_are_in_do_not_notice_the_knocking(record_property):
    """Windows with and without in turn, so that other work of the machine falls on both."""
    with service(quotas=Quotas()) as (found, _), client(found) as bystander:
        forger = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forgers", found.endpoint, found.public.decode()]
        )
        try:
            while not found.allowed.n_refused:
                rate(bystander, 0.1)
            with_them, without = [], []
            for _ in range(15):
                forger.send_signal(signal.SIGSTOP)
                without.append(rate(bystander, 0.4))
                forger.send_signal(signal.SIGCONT)
                with_them.append(rate(bystander, 0.4))
        finally:
            forger.kill()
            forger.wait(10)
        alone = statistics.median(without)
        ratio = statistics.median(with_them) / alone
        print(f"{alone:.0f} calls/s alone, ratio {ratio:.3f}, {found.allowed.n_refused} refused, "
              f"{found.admission.n_cut} cut")  # fmt: skip
    assert ratio >= 0.9


# 31: what listens after a default start


ENDLESS = """
import horn
def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(16, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, data=horn.data.digits(), optimizer=horn.SGD(0.1), batch_size=50,
                    iterations=10_000_000)
"""
KNOCK = """
import socket, sys
found = []
for port in map(int, sys.argv[2:]) if sys.argv[2:] else range(1, 65536):
    with socket.socket() as made:
        made.settimeout(1)
        if made.connect_ex((sys.argv[1], port)) == 0:
            found.append(port)
print(found)
"""
SERVE = """
from tests.rpc.services import service
import sys
with service(None) as (found, echo):
    print(found.endpoint, flush=True)
    sys.stdin.read()
"""


def listening(host) -> list[str]:
    """The addresses that ``ss -ltn`` shows."""
    shown = subprocess.run(host.command("ss", "-ltnH"), capture_output=True, text=True, check=True)
    return [line.split()[3] for line in shown.stdout.splitlines()]


@pytest.mark.cluster
@pytest.mark.skipif(bool(hosts.why_not()), reason="there can be no second host here")
@pytest.mark.parametrize("ports", ["open", pytest.param("all", marks=pytest.mark.slow)])
def test_nothing_is_reachable_from_another_host_by_default(tmp_path, ports):
    (tmp_path / "job.py").write_text(ENDLESS)
    root = str(hosts.ROOT)
    env = {**os.environ, "PYTHONPATH": root}
    with hosts.hosts(2) as net:
        here, there = net.hosts
        assert listening(here) == []
        commands = {
            "job": ["-m", "horn", "submit", str(tmp_path / "job.py"), "--tasks", "2",
                    "--transport", "tcp"],
            "zk": ["-m", "horn", "zk", "--port", "0"],
            "service": ["-c", SERVE],
        }  # fmt: skip
        started = [
            subprocess.Popen(
                here.command(sys.executable, *words), cwd=tmp_path, env=env,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for words in commands.values()
        ]  # fmt: skip
        try:
            # ZooKeeper twice, the service, and a socket per task
            wait_until(lambda: len(listening(here)) >= 5, 60.0)
            found = listening(here)
            assert all(p.poll() is None for p in started)
            assert {address.rpartition(":")[0] for address in found} <= {"127.0.0.1", "[::1]"}
            knocked_at = [a.rpartition(":")[2] for a in found] if ports == "open" else []
            knocked = subprocess.run(
                there.command(sys.executable, "-c", KNOCK, here.address, *knocked_at),
                capture_output=True, text=True, check=True, timeout=300,
            )  # fmt: skip
            assert knocked.stdout == "[]\n"
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.communicate(timeout=60)


# 35: nothing is unpickled, unmarshalled or executed


@pytest.mark.cluster
def test_nothing_is_executed_on_paths_that_others_write_to():
    """Those of messages, transports, services, packages, submissions and models, in the allowed."""
    watched(
        "tests/wire/test_frames.py", "tests/process/test_control.py",
        "tests/rpc/test_server.py", "tests/cluster/test_submission.py",
        "tests/cluster/test_package.py", "-k", "not largest and not golden and not bomb",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_executed_in_what_runs_in_processes_either():
    watched(
        "tests/contracts/test_transport.py", "tests/api/test_model.py", "tests/cluster",
        "tests/process/test_job_payload.py", "tests/strategies",
        "tests/faults/test_checkpoint_storage.py", "-k", "not apache and not ensemble",
    )  # fmt: skip


def watched(*arguments: str) -> None:
    """Run tests under the audit hook."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         "-p", "tests.faults.audit", *arguments],
        cwd=hosts.ROOT, capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert "executed on network and checkpoint paths: 0" in done.stdout, done.stdout[-4000:]
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_hook_sees_what_it_looks_for(monkeypatch):
    """In code that pretends to be horn's transport."""
    seen: list[str] = []
    monkeypatch.setattr(audit, "found", seen)
    place = {"hook": audit.hook}
    file = f"{audit.ROOT}horn/transport/evil.py"
    text = "def run():\n    hook('pickle.find_class', ('os', 'system'))\n"
    exec(compile(text, file, "exec"), place)
    place["run"]()  # type: ignore[operator]
    assert seen == ["pickle.find_class below horn/transport/evil.py:2 run: ('os', 'system')"]
    file = f"{audit.ROOT}horn/sources.py"
    exec(compile("def run():\n    hook('exec', ('user',))\n", file, "exec"), place)
    place["run"]()  # type: ignore[operator]
    audit.hook("marshal.loads", (b"",))  # of the test itself
    assert len(seen) == 1


# 37: where the key is found


def forms(secret: bytes) -> list[bytes]:
    """How a secret may look in a log, a file or a process."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    found.append(repr(secret)[2:-1].encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode, base64.b85encode):
        found.append(encode(secret).rstrip(b"="))
    found.append(z85.encode(secret))
    return found


def secrets_of(path, job: str = "a-1", host: str = "host-1") -> list[bytes]:
    """The key in a file, and all that is derived from it."""
    key = Key.from_file(path)
    raw = base64.b64decode(path.read_text().strip().removeprefix("horn-key-1:"))
    zookeeper = [key.zookeeper(), key.zookeeper_of(job)]
    roles = [key.role("client"), key.role("worker"), key.service(host)]
    derived = [*(one.secret for one in zookeeper), key.submission(), *roles, key.job(job), key._prk]
    passwords = [one.text.partition(":")[2].encode() for one in zookeeper]
    curve = [z85.decode(pair_of(seed)[1]) for seed in roles]
    curve.append(z85.decode(keypair(key.job(job), job)[1]))
    return [raw, *derived, *curve, *passwords]


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            for child in map(int, children):
                found += processes(child)
    return found


@pytest.mark.cluster
def test_the_key_is_found_nowhere(tmp_path):
    key_file, folder = tmp_path / "key", tmp_path / "work"
    generate(key_file)
    folder.mkdir(mode=0o700)
    secrets = secrets_of(key_file)
    needles = [form for secret in secrets for form in forms(secret)]
    places: dict[str, bytes] = {}
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.secrets_run", str(folder)],
        cwd=hosts.ROOT, env={**os.environ, "HORN_KEY": str(key_file)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert agent.stdout is not None
        lines = [agent.stdout.readline(), agent.stdout.readline()]
        task, zookeeper = next(line for line in lines if b"ready" in line).decode().split()[1:]
        pids = processes(agent.pid)
        assert int(task) in pids
        for pid in pids:
            for name in ("cmdline", "environ", "status", "limits"):
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    places[f"/proc/{pid}/{name}"] = file.read()
        shown = subprocess.run(["ps", "-efww"], capture_output=True, check=True)
        places["ps"] = shown.stdout
        with Session(zookeeper, credential=Key.from_file(key_file).zookeeper()) as coord:
            todo = [coord.paths.root]
            while todo:
                path = todo.pop()
                node = coord.get(path)
                assert node is not None
                places[f"znode {path}"] = node.data + str(coord._acl_of(path, 5.0)).encode()
                todo += [f"{path}/{name}" for name in coord.children(path)]
        assert any("spec" in place for place in places)
        out, err = agent.communicate(b"\n", timeout=30)
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait(10)
    assert agent.returncode == 1 and b"RuntimeError: the end of Key(" in err
    places |= {"stdout": out, "stderr": err}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert not mode & 0o077, f"{path} has mode {mode:04o}"
        if path.is_file():
            places[str(path)] = path.read_bytes()
    assert any("zk" in place for place in places) and len(places) > 15
    hits = [
        f"{place}: secret {n // 9}, form {n % 9}"
        for place, data in places.items()
        for n, needle in enumerate(needles)
        if needle in data
    ]
    assert hits == []
    # the agent has its path alone, the task not even that; none of them leaves a core file
    assert b"HORN_KEY=" + str(key_file).encode() in places[f"/proc/{agent.pid}/environ"]
    assert b"HORN_KEY" not in places[f"/proc/{task}/environ"]
    for pid in (agent.pid, int(task)):
        core = next(x for x in places[f"/proc/{pid}/limits"].splitlines() if b"core" in x)
        assert core.split()[4:6] == [b"0", b"0"], core


def test_the_search_finds_what_is_there(tmp_path):
    generate(tmp_path / "key")
    secrets = secrets_of(tmp_path / "key")
    assert len(secrets) == 15 and len({form for s in secrets for form in forms(s)}) > 90
    text = (tmp_path / "key").read_bytes()
    assert sum(form in text for form in forms(secrets[0])) >= 1
