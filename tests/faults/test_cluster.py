"""Three hosts with a key, a job over all of them, and what may happen to each part meanwhile.

Experiments 13, 16, 17, 19 and 31. A run that was disturbed ends with the same bits as one that was
not. The times are those of the list of faults, at a session of 6 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import msgspec
import pytest

import horn
from horn.cluster.master import JobRecord
from horn.coordination.session import Session
from horn.errors import NotFound, Unreachable
from tests.apache import is_available
from tests.faults.cluster import HORN, JOB, SESSION_S, Cluster, digest, until
from tests.faults.witness import pids_on, role_of
from tests.hosts import hosts, why_not
from tests.support.election import leader_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif("HORN_DATA" not in os.environ, reason="HORN_DATA does not say where"),
]
SHAPE = ["--groups", "4", "--tasks", "2"]
SMALL = ["--groups", "2", "--tasks", "2"]
LONG = ["--checkpoint-every", "20", "---", "--samples", "3000", "--epochs", "10"]
HEAVY = [*LONG, "--hidden", "500"]  # half a minute or more
TEXT = JOB.replace("import horn\n", "import horn\n\nprint('the job file is read', flush=True)\n", 1)


@pytest.fixture(scope="module")
def net():
    with hosts(4) as found:
        yield found


@pytest.fixture(scope="module")
def shared(net, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(net, net.hosts[:3], folder, slots=3, zk_host=net.hosts[3]) as found:
        yield found


@pytest.fixture
def cluster(shared):
    """The cluster as at the start: workers that a test has ended are there again."""
    yield shared
    shared.net.heal()
    for number, worker in list(shared.workers.items()):
        worker.send_signal(signal.SIGCONT)
        if worker.poll() is not None:
            shared.start(number)
    shared.wait_workers(3)
    shared.stop_all()


@pytest.fixture(scope="module")
def undisturbed(shared):
    job = shared.submit(*SMALL, *HEAVY, text=TEXT)
    shared.wait(job, "SUCCEEDED")
    return digest(shared, job)


def begun(cluster, job, at=25):
    """Until a job has got so far, so that there is something to go back to."""
    with cluster.session() as coord:
        until(lambda: progress(coord, job).get("iteration", 0) >= at, 90.0, cluster.told)


def progress(coord, job):
    node = coord.get(coord.paths.progress(job))
    return json.loads(node.data) if node is not None and node.data else {}


def record(coord, job):
    return msgspec.json.decode(coord.get(coord.paths.record(job)).data, type=JobRecord)


def in_shared_memory():
    return {name for name in os.listdir("/dev/shm") if "horn" in name}


def gone(pids, timeout_s):
    """Until none of these processes runs: one that ended has no line, though its parent, which
    stood still with it, may not have asked for its status yet.
    """
    until(lambda: not any(map(_line, pids)), timeout_s, lambda: str(list(map(_line, pids))))


def _line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_life_of_a_job(cluster):
    job = cluster.submit(*SHAPE, "--name", "life", *LONG[:-1], "1000000", text=TEXT)
    assert job.startswith("life-") and "\n" not in job
    begun(cluster, job)
    status = cluster.status(job)
    assert status["state"] == "RUNNING" and status["groups"] == 4 and status["tasks"] == 2
    assert sorted(rank for ranks in status["hosts"].values() for rank in ranks) == list(range(8))
    table = cluster.horn("status", host=1)
    assert job in table.out and "RUNNING" in table.out and "4×2" in table.out
    assert "Workers 3 of 3 up · 1 of 9 slots free" in table.err
    following = cluster.begin("logs", "-f", job, host=2)
    stopped = cluster.horn("stop", job, host=1)
    assert stopped.code == 0, stopped
    status = cluster.status(job)
    assert status["state"] == "STOPPED" and status["checkpoint"] >= 25
    at = status["checkpoint"]
    out, _ = following.communicate(timeout=30)
    assert "the job file is read" in out and following.returncode == 0
    assert cluster.horn("stop", job).code == 6  # it has ended already
    assert cluster.horn("status", "none-0000").code == 4
    assert cluster.horn("resume", job, host=2).code == 0
    begun(cluster, job, at + 10)
    assert cluster.horn("resume", job).code == 6
    found = cluster.horn("stop", "--now", job)
    assert found.code == 0 and cluster.status(job)["state"] == "STOPPED"
    listed = cluster.horn("list", "--state", "STOPPED")
    assert listed.out.splitlines()[1].split()[:3] == [job, "STOPPED", "allreduce"]
    assert cluster.horn("rm", job).code == 0
    assert cluster.horn("status", job).code == 4


@pytest.mark.slow
def test_a_killed_agent_leaves_nothing_and_its_job_goes_on(cluster, undisturbed):
    job = cluster.submit(*SMALL, *HEAVY, text=TEXT)
    begun(cluster, job)
    number = next(int(name[-1]) for name in cluster.status(job)["hosts"])
    host = cluster.hosts[number]
    its, shared = host.pids(), in_shared_memory()
    assert len(its) >= 3 and len(host.ports()) >= 2
    cluster.kill(number)
    ends = time.monotonic() + 2.0
    gone(its, 2.0)
    until(lambda: not host.pids() and not host.ports(), ends - time.monotonic(), cluster.told)
    assert in_shared_memory() <= shared
    work = cluster.folder / f"worker{number}" / "jobs" / job
    assert list(work.glob("work-*"))  # there is nobody who could remove it
    cluster.start(number)
    until(lambda: not list(work.glob("work-1")), 20.0, cluster.told)  # the next agent has
    status = cluster.wait(job, "SUCCEEDED")
    assert status["restarts"] == 1 and digest(cluster, job) == undisturbed
    until(lambda: not list(work.glob("work-*")), 5.0, cluster.told)


@pytest.mark.slow
def test_a_client_that_is_killed_or_interrupted_takes_nothing_with_it(cluster, undisturbed):
    target = cluster.folder / "mnist.py"
    target.write_text(TEXT)
    words = ["submit", *SMALL, "--checkpoint-every", "20"]
    for number in (signal.SIGKILL, signal.SIGINT):
        client = cluster.hosts[1].start(
            *HORN, *words, *cluster.options(), str(target), "--", *HEAVY[3:],
            env=cluster.environment, cwd=cluster.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with cluster.session() as coord:
            jobs = set(coord.children(coord.paths.jobs()))
            [job] = until(lambda c=coord, j=jobs: set(c.children(c.paths.jobs())) - j)
        begun(cluster, job)
        client.send_signal(number)
        _, err = client.communicate(timeout=20)
        if number == signal.SIGINT:
            assert client.returncode == 130 and f"horn logs -f {job}" in err
        assert cluster.wait(job, "SUCCEEDED")["restarts"] == 0
        assert digest(cluster, job) == undisturbed


def leader(coord, job):
    try:
        return leader_of(coord, coord.paths.leader(job)).decode()
    except NotFound:
        return ""


@pytest.mark.slow
def test_another_master_takes_over(cluster, undisturbed):
    job = cluster.submit(*SMALL, *HEAVY, text=TEXT)
    begun(cluster, job)
    with cluster.session() as coord:
        first = leader(coord, job)
        number = next(n for n in range(3) if f"host{n}" in first)
        killed_at = time.monotonic()
        cluster.kill(number)
        until(lambda: leader(coord, job) not in ("", first), SESSION_S + 3.0)
        took_s = time.monotonic() - killed_at
    print(f"another master after {took_s:.1f} s")
    assert took_s <= SESSION_S + 3.0
    cluster.wait(job, "SUCCEEDED")
    assert digest(cluster, job) == undisturbed


PARTITIONS = ["zookeeper", "all", "one way", "workers"]


@pytest.mark.slow
@pytest.mark.parametrize("what", PARTITIONS)
def test_a_partition_does_not_let_two_epochs_overlap(cluster, undisturbed, what):
    """Who is cut off has ended its tasks before others have their places."""
    job = cluster.submit(*SMALL, *HEAVY, text=TEXT)
    begun(cluster, job)
    number, second = (int(name[-1]) for name in cluster.status(job)["hosts"])
    host, other = cluster.hosts[number], cluster.hosts[second]
    its = cluster.job_processes(number)
    assert len(its) >= 3
    with cluster.session() as coord:
        attempt = record(coord, job).attempt
        cut_at = time.monotonic()
        match what:
            case "zookeeper":
                cluster.net.cut(host, cluster.zk_host)
            case "all":
                cluster.net.cut(host)
            case "one way":
                cluster.net.cut(host, cluster.zk_host, one_way=True)
            case "workers":
                cluster.net.cut(host, other)
        until(lambda: record(coord, job).attempt > attempt, 12.0, cluster.told)
        ordered_s = time.monotonic() - cut_at
        alive = [_line(pid) for pid in its if Path(f"/proc/{pid}").exists()]
        if what == "workers":  # the third host is there to do without one of the two
            assert len({number, second} & {int(h[-1]) for h in record(coord, job).allocations}) == 1
        before = coord.get(coord.paths.progress(job)).changed
        until(lambda: coord.get(coord.paths.progress(job)).changed > before, 40.0, cluster.told)
        resumed_s = time.monotonic() - cut_at
    cluster.net.heal()
    print(f"{what}: new attempt after {ordered_s:.1f} s, its first step after {resumed_s:.1f} s")
    assert what == "workers" or not any(alive), (ordered_s, alive, cluster.told())
    cluster.wait(job, "SUCCEEDED", 150.0)
    assert digest(cluster, job) == undisturbed
    assert resumed_s <= 12.0 or what == "workers"


def reachable(host, address, ports):
    """Ports that somebody on ``host`` gets a connection to."""
    found, ports = [], list(ports)
    with host.inside():
        while ports:
            part, ports = ports[:400], ports[400:]
            poll, trying = select.poll(), {}
            for port in part:
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex((address, port))
                trying[s.fileno()] = (s, port)
                poll.register(s, select.POLLOUT)
            ends = time.monotonic() + 2.0
            while trying and time.monotonic() < ends:
                for fd, _ in poll.poll(100):
                    poll.unregister(fd)
                    s, port = trying.pop(fd)
                    if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        found.append(port)
                    s.close()
            for s, _ in trying.values():
                s.close()
    return found


def test_nothing_can_be_reached_from_another_host_by_default(net, tmp_path):
    """A worker, an embedded ZooKeeper and a job with two tasks over tcp, all as they start."""
    here, there = net.hosts[0], net.hosts[1]
    (tmp_path / "mnist.py").write_text(JOB)
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    environment = os.environ | {"PYTHONPATH": str(Path(horn.__file__).parents[1])}
    before = set(here.ports())
    zookeeper = here.start(*HORN, "zk", "--port", "0", env=environment, **how)
    processes = [zookeeper]
    try:
        until(lambda: set(here.ports()) - before, 30.0)
        [port] = set(here.ports()) - before
        words = [
            "worker",
            "--zk",
            f"127.0.0.1:{port}",
            "--slots",
            "2",
            "--dir",
            str(tmp_path / "w"),
        ]
        processes.append(here.start(*HORN, *words, env=environment, **how))
        until(lambda: len(set(here.ports()) - before) >= 2, 30.0)
        words = ["submit", "--local", "--tasks", "2", "--transport", "tcp", "mnist.py", "--"]
        words += ["--samples", "2000", "--epochs", "1000000"]
        processes.append(here.start(*HORN, *words, env=environment, **how))
        until(lambda: len(set(here.ports()) - before) >= 5, 60.0)
        found = set(here.ports(only_loopback=False)) - before
        assert found == set()
        # A process that stands still is reached all the same, and leaves the search the processor.
        tasks = [pid for pid in pids_on([here])[here] if role_of(pid) == "task"]
        assert len(tasks) == 2
        for pid in tasks:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert set(reachable(there, here.address, range(1, 65_536))) <= before
        finally:
            for pid in tasks:
                os.kill(pid, signal.SIGCONT)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=30)


@pytest.mark.slow
def test_hosts_without_a_key_work_together_where_their_user_accepts_that(net, tmp_path):
    two, other = net.hosts[:2], net.hosts[3]
    with Cluster(net, two, tmp_path, slots=2, zk_host=other, has_key=False) as cluster:
        job = cluster.submit(*SMALL, "---", "--samples", "2000", "--epochs", "1")  # two on each
        assert cluster.wait(job, "SUCCEEDED", 120.0)["result"]["test"]["acc"] > 0.5


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.skipif(not is_available(), reason="no Apache ZooKeeper here")
def test_with_an_ensemble_of_three_the_answer_is_that_of_one_machine(tmp_path):
    with hosts(3) as net, Cluster(net, net.hosts, tmp_path) as cluster:
        job = cluster.submit(*SHAPE, "--checkpoint-every", "200", "---", "--epochs", "1", text=TEXT)
        begun(cluster, job)
        cluster.ensemble.kill(0)  # two of three are enough
        stopped = cluster.horn("stop", job, host=1)
        assert stopped.code == 0, stopped
        cluster.ensemble.restart(0)
        assert cluster.horn("resume", job, host=2).code == 0
        result = cluster.wait(job, "SUCCEEDED", 200.0)["result"]["test"]
        scope: dict = {}
        exec(compile(JOB, "mnist.py", "exec"), scope)
        alone = horn.train(scope["job"](epochs=1), progress=False).test
        assert abs(result["acc"] - alone["acc"]) < 0.002
        assert abs(result["loss"] - alone["loss"]) < 0.001
        with net.hosts[0].inside(), pytest.raises(Unreachable):  # without the key
            Session(cluster.address, timeout_s=5.0)


@pytest.mark.slow
def test_a_host_that_stands_still_for_two_sessions_is_fenced(cluster, undisturbed):
    """All of it is stopped; when it goes on, what it was is over, and it says so itself."""
    job = cluster.submit(*SMALL, *HEAVY, text=TEXT)
    begun(cluster, job)
    number = next(int(name[-1]) for name in cluster.status(job)["hosts"])
    its, whole = cluster.job_processes(number), cluster.hosts[number].pids()
    assert len(its) >= 3
    for pid in whole:
        os.kill(pid, signal.SIGSTOP)
    with cluster.session() as coord:
        attempt = record(coord, job).attempt
        threading.Event().wait(2 * SESSION_S)
        found = record(coord, job)
    assert found.attempt > attempt, found
    for pid in whole:
        with contextlib.suppress(ProcessLookupError):  # its parent has ended it
            os.kill(pid, signal.SIGCONT)
    gone(its, 2.0)
    cluster.wait(job, "SUCCEEDED", 150.0)
    assert digest(cluster, job) == undisturbed
    assert cluster.workers[number].poll() is None  # the agent has registered again
    cluster.wait_workers(3)
