"""A connection to ZooKeeper that breaks and comes back, again and again, with much to look at.

docs/notes/0098.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import zk
from horn.cluster import submission
from horn.cluster.client import ClusterClient
from horn.cluster.job_controller import JobController, JobTerms
from horn.cluster.resume import resume
from horn.cluster.scheduler import ResourceRequest
from horn.cluster.submission import Submission
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import FolderView, Membership, MembershipChange, described
from horn.coordination.records import ConnectionResumed, Create
from horn.coordination.session import Session
from horn.errors import Unreachable
from tests.cluster.agents import FOREVER, Agents, alive, own_port
from tests.cluster.helpers import Call, wait_until
from tests.cluster.relay import Relay

MANY = 600  # more than the bytes that fit into a pair of Unix sockets, 278 on Linux


def make_nodes(coord: Session, folder: str, n: int, data: bytes = b"") -> None:
    coord.ensure(folder)
    for start in range(0, n, 100):
        names = range(start, min(n, start + 100))
        coord.commit([Create(f"{folder}/m{i}", data) for i in names])


def end_jobs(jobs: Jobs, n: int) -> None:
    """Jobs that have failed, as a cluster has them after a while."""
    for i in range(n):
        job = f"old-{i:04}"
        jobs.create(job, submission.unsigned(Submission(job=job, target="a.py", package="ab" * 32)))
        jobs.change(f"old-{i:04}", JobState.PENDING, JobState.FAILED)


@pytest.mark.net
@pytest.mark.timeout(60)
def test_what_is_sent_without_a_connection_never_blocks_the_sender(zookeeper, connect):
    with Relay(zookeeper.hosts) as relay:
        coord, replies = connect(relay.hosts), queue.Queue()
        relay.cut()
        wait_until(lambda: not coord.connected)

        def send() -> None:
            for _ in range(MANY):
                coord.send(replies.put, "exists", zookeeper.root)

        Call(send).result(20)
        relay.mend()
        reasons = {replies.get(timeout=20).reason for _ in range(MANY)}
        assert reasons <= {"", "broken"}
        assert Call(coord.get, zookeeper.root).result(20) is not None
        coord.close()


@pytest.mark.net
@pytest.mark.timeout(60)
def test_a_view_of_many_nodes_lives_through_broken_connections(zookeeper, connect):
    folder = f"{zookeeper.root}/many"
    make_nodes(connect(), folder, MANY)
    with Relay(zookeeper.hosts) as relay:
        coord, changes, events = connect(relay.hosts), queue.Queue(), queue.Queue()
        view = FolderView(coord, folder, changes.put)
        view.wait_ready(20)
        coord.subscribe(
            lambda event: events.put(event) if isinstance(event, ConnectionResumed) else None
        )
        for i in range(5):
            relay.cut()
            connect().create(f"{folder}/new-{i}")
            relay.mend()
            events.get(timeout=20)
            Call(coord.get, folder).result(20)
            while f"new-{i}" not in changes.get(timeout=20).joined:
                pass
        assert len(view.nodes()) == MANY + 5
        # and every node is watched again
        connect().delete(f"{folder}/m{MANY - 1}")
        assert changes.get(timeout=20) == MembershipChange(frozenset(), frozenset({f"m{MANY - 1}"}))
        view.close()
        coord.close()


@pytest.mark.net
@pytest.mark.timeout(60)
def test_a_folder_that_is_not_read_in_time_is_as_any_question_without_an_answer(
    embedded, connect_embedded
):
    """An agent goes on after these; of a barrier that nobody came to it ended, with its jobs."""
    folder = f"{embedded.root}/silent"
    connect_embedded().ensure(folder)
    with Relay(embedded.hosts) as relay:
        coord = connect_embedded(relay.hosts)
        relay.deafen()
        view = FolderView(coord, folder, lambda change: None, is_made=True)
        with pytest.raises(Unreachable, match=f"no answer about {folder}"):
            view.wait_ready(0.05)
        relay.mend()
        view.wait_ready(20)
        view.close()
        coord.close()


@pytest.mark.net
def test_a_callback_must_not_send(embedded, connect_embedded):
    coord, seen = connect_embedded(), queue.Queue()

    def careless(reply):
        try:
            coord.send(seen.put, "exists", embedded.root)
        except AssertionError as error:
            seen.put(str(error))

    coord.send(careless, "exists", embedded.root)
    assert seen.get(timeout=10) == "a callback must not send: let soon() do it"


@pytest.mark.net
def test_what_a_callback_leaves_for_soon_is_done_in_order_and_not_by_the_reader(
    embedded, connect_embedded
):
    coord, seen = connect_embedded(), queue.Queue()

    def later(number):
        coord.send(lambda reply: seen.put((number, reply.value)), "exists", embedded.root)

    def heard(reply):
        for number in range(50):
            coord.soon(lambda number=number: later(number))

    coord.send(heard, "exists", embedded.root)
    assert [seen.get(timeout=10) for _ in range(50)] == [(n, True) for n in range(50)]
    coord.close()
    coord.soon(lambda: seen.put("after the end"))
    assert seen.empty()


@pytest.mark.net
@pytest.mark.timeout(60)
def test_who_waits_for_members_before_the_first_picture_keeps_nobody_from_it(
    zookeeper, connect, monkeypatch
):
    """It held the lock that the reader needs to show it."""
    folder = f"{zookeeper.root}/members"
    Membership(connect(), folder).join("a", "tcp://h:1")
    coord, is_waiting = connect(), threading.Event()
    heard, waits = FolderView._on_names, FolderView.wait_ready

    def hear_late(self, *reply):
        is_waiting.wait(20)
        heard(self, *reply)

    def wait(self, timeout_s):
        is_waiting.set()
        waits(self, timeout_s)

    monkeypatch.setattr(FolderView, "_on_names", hear_late)
    monkeypatch.setattr(FolderView, "wait_ready", wait)
    watcher = Membership(coord, folder)
    found = Call(watcher.wait_for, ["a"], 8.0, lambda member: True).result(20)
    assert set(found) == {"a"}


@pytest.mark.net
@pytest.mark.timeout(60)
def test_masters_watch_no_job_that_has_ended_and_hear_when_one_goes_on(tmp_path):
    with zk.EmbeddedServer(tick_ms=500) as server:
        with Session(server.hosts) as coord, Session(server.hosts) as other:
            jobs, workers = Jobs(other), Membership(coord, coord.paths.workers())
            end_jobs(jobs, 30)
            jobs.create("new-0001", b"{}")
            read = queue.Queue()

            def terms(job, node):
                read.put(job)
                return JobTerms(ResourceRequest(1, 1, 0, False, "", ""), 0)

            controller = JobController(coord, workers, "here", terms)
            try:
                assert read.get(timeout=20) == "new-0001"
                assert _watched_jobs(server) == {"new-0001"}
                with ClusterClient(server.hosts) as cluster, pytest.MonkeyPatch.context() as patch:
                    # There is no worker to send it to.
                    patch.setattr("horn.cluster.resume.held", lambda *_: nullcontext())
                    given = SimpleNamespace(digest="cd" * 32, target="a.py")
                    resume(cluster, "old-0007", package=given)
                while read.get(timeout=20) != "old-0007":
                    pass
                assert _watched_jobs(server) == {"new-0001", "old-0007"}
                # one that ends is let go, with the candidacy
                jobs.change("old-0007", JobState.PENDING, JobState.STOPPED)
                leader = coord.paths.leader("old-0007")
                wait_until(lambda: not other.children(leader))
                wait_until(lambda: set(controller._jobs) == {"new-0001"})
            finally:
                controller.close()
                workers.close()


UNREADABLE = {
    "a": b"{}",
    "b": b"\xff",
    "c": described("tcp://c", {"layout": 99}, {"slots": 1}),
    "d": described("tcp://d", {}, {"slots": "two"}),
    "e": described("tcp://e", {}, {"slots": 1, "files": None}),
    "f": b"[" * 100_000,
}


@pytest.mark.net
@pytest.mark.timeout(60)
@pytest.mark.parametrize("taken", [b'{"old-0001": null}', b'{"old-0001": "2"}', b"\xff", b"[1]"])
def test_workers_whose_nodes_cannot_be_read_are_left_out_and_the_others_get_jobs(taken, caplog):
    with zk.EmbeddedServer(tick_ms=500) as server:
        with Session(server.hosts) as coord, Session(server.hosts) as other:
            at, workers = coord.paths, Membership(coord, coord.paths.workers())
            workers.join("good", "tcp://good", info={"slots": 1})
            for name, data in UNREADABLE.items():
                other.create(f"{at.workers()}/{name}", data, ephemeral=True)
            unclear = described("tcp://u", {}, {"slots": 2})  # what it runs cannot be read
            other.create(f"{at.workers()}/unclear", unclear, ephemeral=True)
            wait_until(lambda: len(workers.names()) == 2 + len(UNREADABLE))
            for name, orders in (("good", b"{}"), ("unclear", taken)):
                other.ensure(at.orders(name))
                other.set(at.orders(name), orders)
            Jobs(other).create("new-0001", b"{}")
            terms = JobTerms(ResourceRequest(1, 1, 0, False, "", ""), 0)
            controller = JobController(coord, workers, "here", lambda job, node: terms)
            try:
                wait_until(lambda: other.children(at.orders("good")) == ["new-0001"])
                coord.check()
                said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
                assert any("path=orders/unclear " in r.getMessage() for r in caplog.records)
                assert other.children(at.orders("unclear")) == []
                for name in UNREADABLE:  # once, by its name
                    assert sum(f"workers/{name} " in text for text in said) == 1, said
            finally:
                controller.close()
                workers.close()


def _watched_jobs(server: zk.EmbeddedServer) -> set[str]:
    watches = server._server.service.watches
    paths = [*watches.data, *watches.child]
    return {path.split("/")[3] for path in paths if path.startswith("/horn/jobs/")}


@pytest.mark.cluster
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "fault",
    [Relay.freeze, *(pytest.param(f, marks=pytest.mark.slow) for f in (Relay.cut, Relay.deafen))],
    ids=lambda f: f.__name__,
)
def test_sigterm_ends_an_agent_whose_zookeeper_is_silent_and_what_it_runs(
    cluster_of: Agents, client: ClusterClient, fault
):
    cluster_of.session_s = 2.0
    with Relay(cluster_of.hosts) as relay:
        direct, cluster_of.hosts = cluster_of.hosts, relay.hosts
        cluster_of.start("a")
        cluster_of.hosts = direct
        job = cluster_of.submit(client, "--epochs", FOREVER, tasks=2)
        cluster_of.wait_running(client, job)
        below = [pid for pid, _ in cluster_of.descendants("a")]
        assert len(below) >= 3
        fault(relay)
        cluster_of.kill("a", signal.SIGTERM)
        assert cluster_of.processes["a"].wait(40) == 0, cluster_of.said()
        cluster_of.wait(lambda: not alive(below))


# The main thread waits for good, and hears of no signal.
STUCK = """
import signal
import threading
from pathlib import Path

import horn.cli.worker
from horn.cli import main
from horn.cluster.agent import Agent

def stuck(agent):
    agent._keep_warm(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM])
    print(agent._warm.process.pid, flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

Agent._session = stuck
horn.cli.worker.END_S = 0.2
main(["worker", "--zk", "127.0.0.1:1", "--slots", "1", "--dir", "a", "--grace", "0s"])
"""


@pytest.mark.cluster
@pytest.mark.timeout(100)
def test_sigterm_ends_an_agent_that_hangs_for_good_and_what_it_started(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", STUCK],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        runner = int(agent.stdout.readline())
        agent.terminate()
        _, errors = agent.communicate(timeout=60)
    assert agent.returncode == 3
    assert "could not end in order within 0.2 s" in errors
    wait_until(lambda: not alive([runner]))


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_an_agent_with_500_ended_jobs_comes_back_from_20_kills_of_zookeeper(tmp_path: Path):
    """As it was found: horn zk is killed and started again on its data."""
    port = own_port()

    def serve() -> subprocess.Popen[str]:
        words = ["zk", "--port", str(port), "--data-dir", str(tmp_path / "zk")]
        process = subprocess.Popen(
            [sys.executable, "-m", "horn", *words], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline().startswith("127.0.0.1")
        return process

    server = serve()
    made = Agents(tmp_path, f"127.0.0.1:{port}")
    try:
        with made.client() as cluster:
            end_jobs(cluster.jobs, 500)
        made.start("a")
        out = tmp_path / "a.out"
        for kill in range(1, 21):
            server.kill()
            server.communicate()
            made.wait(lambda kill=kill: out.read_text().count("=ConnectionSuspended()") >= kill)
            server = serve()
            made.wait(lambda kill=kill: out.read_text().count("=ConnectionResumed()") >= kill)
        with made.client() as cluster:
            made.wait_known(cluster)
            job = made.submit(cluster, tasks=2)
            assert made.wait_ended(cluster, job).state is JobState.SUCCEEDED, made.said()
        made.kill("a", signal.SIGTERM)
        assert made.processes["a"].wait(40) == 0, made.said()
    finally:
        made.stop()
        server.kill()
        server.communicate()
