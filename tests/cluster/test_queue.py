"""The order in which jobs begin: masters of two hosts, and a worker that is played here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import pytest

from horn.cluster.client import ClusterClient
from horn.cluster.job_controller import JobController, JobTerms, allocated
from horn.cluster.job_status import JobStatus
from horn.cluster.master import (
    END,
    FAILED,
    FINISHED,
    GONE,
    QUEUES,
    RUNNING,
    STOP,
    STOPPED,
    HostFailure,
    HostReport,
    JobRecord,
)
from horn.cluster.scaling import wait_scaled
from horn.cluster.scheduler import ResourceRequest
from horn.coordination import nodes
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import Membership
from horn.coordination.records import Put, Znode
from horn.coordination.session import Session
from horn.errors import Conflict, NotAllowed
from tests.cluster.helpers import wait_until

pytestmark = [pytest.mark.net, pytest.mark.timeout(120)]


class Cluster:
    """A worker with four slots, which runs nothing, and the masters of two hosts."""

    n_servers = 0  # of each job

    def __init__(self, connect) -> None:
        self.connect, self.coord = connect, connect()
        self.jobs, self.at = Jobs(self.coord), self.coord.paths
        self.workers: list[Membership] = []
        self.masters: dict[str, tuple[Session, Membership, JobController]] = {}
        self.join("w", 4)

    def join(self, name: str, slots: int) -> None:
        self.coord.ensure(self.at.orders(name))
        self.workers.append(Membership(self.coord, self.at.workers()))
        self.workers[-1].join(name, f"tcp://{name}", info={"slots": slots})

    def start_masters(self, who: str) -> None:
        coord = self.connect()
        members = Membership(coord, coord.paths.workers())

        def read(job: str, node: Znode) -> JobTerms:
            if not node.data.isdigit():
                raise NotAllowed("its description is none")
            return JobTerms(ResourceRequest(int(node.data), 1, self.n_servers), 5)

        self.masters[who] = coord, members, JobController(coord, members, who, read)

    def end_masters(self, who: str) -> None:
        coord, members, controller = self.masters.pop(who)
        controller.close()
        members.close()
        coord.close()

    def enter(self, *jobs: str, slots: int = 4) -> None:
        for job in jobs:
            self.jobs.create(job, str(slots).encode())

    def record(self, job: str) -> JobRecord:
        data = self.coord.get(self.at.record(job)).data
        return msgspec.json.decode(data, type=JobRecord) if data else JobRecord()

    def wait(self, job: str, state: JobState, attempt: int = 0) -> JobRecord:
        """Until a job is in a state; its record then."""

        def is_there() -> bool:
            return self.jobs.state(job) is state and self.record(job).attempt >= attempt

        wait_until(is_there)
        return self.record(job)

    def wait_reason(self, job: str, reason: str) -> None:
        wait_until(lambda: reason in self.record(job).reason)

    def report(self, job: str, report: HostReport, is_again: bool = False) -> None:
        """Let all workers of a job that runs report how its tasks are."""
        record = self.wait(job, JobState.RUNNING)
        for host, allocation in record.allocations.items():
            said = msgspec.structs.replace(report, member=allocation.member)
            path = self.at.report(job, record.attempt, host)
            write = self.coord.set if is_again else self.coord.create
            write(path, msgspec.json.encode(said))

    def finish(self, job: str) -> None:
        self.report(job, HostReport(FINISHED))
        self.wait(job, JobState.SUCCEEDED)

    def states(self, *jobs: str) -> list[str]:
        return [self.jobs.state(job).value for job in jobs]

    def client(self) -> ClusterClient:
        client = ClusterClient("here")
        client.use(self.coord)
        return client


@pytest.fixture
def cluster(connect_embedded) -> Iterator[Cluster]:
    made = Cluster(connect_embedded)
    with contextlib.ExitStack() as stack:
        for worker in made.workers:
            stack.callback(worker.close)
        stack.callback(lambda: [made.end_masters(who) for who in list(made.masters)])
        yield made


def test_jobs_begin_in_the_order_of_their_submission_whatever_their_names_and_masters(cluster):
    names = ["filler", "zz", "mm", "aa"]
    cluster.start_masters("h1")
    cluster.enter(*names[:2])
    cluster.wait("filler", JobState.RUNNING)
    cluster.start_masters("h2")
    cluster.enter(*names[2:])
    for k, name in enumerate(names):
        cluster.wait(name, JobState.RUNNING)
        assert cluster.states(*names[k + 1 :]) == ["PENDING"] * (3 - k)
        cluster.finish(name)


def test_jobs_that_wait_begin_in_order_after_the_death_of_their_master(cluster):
    cluster.start_masters("h1")
    cluster.enter("filler", "zz", "mm", "aa")
    cluster.wait_reason("aa", QUEUES)
    cluster.wait("filler", JobState.RUNNING)  # its first placing may have been overtaken
    cluster.end_masters("h1")
    cluster.report("filler", HostReport(FINISHED))
    cluster.start_masters("h2")
    for name in ("zz", "mm"):
        cluster.wait(name, JobState.RUNNING)
        assert cluster.states("aa") == ["PENDING"]
        cluster.finish(name)
    cluster.wait("aa", JobState.RUNNING)


def test_a_large_job_is_not_overtaken_by_small_ones_that_were_submitted_later(cluster):
    cluster.start_masters("h1")
    cluster.start_masters("h2")
    cluster.enter("first", slots=2)
    cluster.enter("big", slots=4)
    cluster.enter("late", slots=2)
    cluster.wait_reason("late", QUEUES)
    cluster.wait_reason("big", "waits for 4 slots; 2 are free")
    cluster.finish("first")
    cluster.wait("big", JobState.RUNNING)
    assert cluster.states("late") == ["PENDING"]
    cluster.finish("big")
    assert cluster.wait("late", JobState.RUNNING).reason == ""


def test_a_job_that_no_workers_could_run_holds_up_nobody_until_they_can(cluster):
    cluster.start_masters("h1")
    cluster.enter("huge", slots=8)
    cluster.wait_reason("huge", "start more workers")
    cluster.enter("small", slots=4)
    cluster.wait("small", JobState.RUNNING)
    cluster.join("v", 4)
    cluster.wait_reason("huge", "waits for 8 slots; 4 are free")
    cluster.enter("last", slots=2)
    cluster.wait_reason("last", QUEUES)
    cluster.finish("small")
    cluster.wait("huge", JobState.RUNNING)
    assert cluster.states("last") == ["PENDING"]


def test_a_job_that_lost_its_places_has_them_again_before_those_that_wait(cluster):
    cluster.start_masters("h1")
    cluster.enter("huge", slots=8)
    cluster.enter("runs", slots=4)
    cluster.wait("runs", JobState.RUNNING)
    cluster.join("v", 4)
    cluster.wait_reason("huge", "waits for 8 slots; 4 are free")
    cluster.report("runs", HostReport(FAILED, failure=HostFailure("killed")))
    cluster.wait("runs", JobState.RUNNING, attempt=2)
    assert cluster.states("huge") == ["PENDING"]


def test_a_job_that_is_stopped_or_refused_holds_up_nobody(cluster):
    cluster.start_masters("h1")
    cluster.enter("filler", slots=2)
    cluster.wait("filler", JobState.RUNNING)
    cluster.enter("big", slots=4)
    cluster.enter("late", slots=2)
    cluster.wait_reason("late", QUEUES)
    cluster.client().stop("big", now=False)
    cluster.wait("late", JobState.RUNNING)


def test_a_job_that_is_refused_while_it_runs_is_ended_first_and_leaves_its_slots(cluster):
    coord, at = cluster.coord, cluster.at
    cluster.start_masters("h1")
    cluster.enter("runs", slots=3)
    cluster.wait("runs", JobState.RUNNING)
    coord.set(at.spec("runs"), b"of another version")
    wait_until(lambda: cluster.record("runs").aim == END)
    order = msgspec.json.decode(coord.get(at.order("w", "runs")).data)
    assert order["aim"] == END and cluster.states("runs") == ["RUNNING"]
    assert allocated("w", coord.get(at.orders("w"))) == {"runs": 3}
    cluster.report("runs", HostReport(GONE))
    cluster.wait("runs", JobState.FAILED)
    result = msgspec.json.decode(coord.get(at.result("runs")).data)
    assert result["cause"] == "refused: its description is none" and result["code"] == 3
    assert not allocated("w", coord.get(at.orders("w"))) and not coord.get(at.order("w", "runs"))
    cluster.enter("next", slots=4)
    cluster.wait("next", JobState.RUNNING)


def test_a_record_that_cannot_be_read_is_told_once_with_what_follows(cluster, caplog):
    """The job lost its places, groups and checkpoint without a word to those who wait for it."""
    cluster.enter("one", slots=8)  # more than there are: its master looks again and again
    cluster.coord.set(cluster.at.record("one"), b'{"attempt": 3, "novel": 1}')
    cluster.start_masters("h1")
    wait_until(lambda: cluster.coord.get(cluster.at.record("one")).version > 1)
    cluster.wait_reason("one", "waits for 8 slots")
    record = cluster.record("one")
    what = f"{cluster.at.record('one')} cannot be read (Object contains unknown field `novel`)"
    assert record.trouble.startswith(what) and record.n_restarts == 1
    assert "it begins anew as attempt 1" in record.trouble
    assert [r.getMessage() for r in caplog.records].count(
        f"record left out job=one reason={record.trouble}"
    ) == 1


def test_a_job_whose_record_cannot_be_read_goes_on_where_it_runs(cluster):
    """It was placed anew as attempt 1, beside its tasks of a later one, for which nobody waited."""
    coord, at = cluster.coord, cluster.at
    cluster.start_masters("h1")
    cluster.enter("runs", slots=3)
    cluster.report("runs", HostReport(FAILED, failure=HostFailure("killed")))
    before = cluster.wait("runs", JobState.RUNNING, attempt=2)
    order = coord.get(at.order("w", "runs"))
    coord.set(at.record("runs"), b'{"attempt": 2, "novel": 1}')
    wait_until(lambda: b'"novel"' not in coord.get(at.record("runs")).data)
    record = cluster.record("runs")
    assert (record.attempt, record.allocations) == (2, before.allocations)
    assert "(Object contains unknown field `novel`)" in record.trouble
    assert record.trouble.endswith("are not known; it goes on where it runs")
    cluster.enter("next", slots=4)
    cluster.wait_reason("next", "waits for 4 slots; 1 is free")
    assert coord.get(at.order("w", "runs")).version == order.version
    cluster.finish("runs")
    cluster.wait("next", JobState.RUNNING)


def test_a_job_of_which_neither_record_nor_orders_can_be_read_is_left_as_it_is(cluster, caplog):
    coord, at = cluster.coord, cluster.at
    cluster.start_masters("h1")
    cluster.enter("runs", slots=3)
    cluster.wait("runs", JobState.RUNNING)
    cluster.end_masters("h1")
    for path in (at.order("w", "runs"), at.record("runs")):
        coord.set(path, b'{"novel": 1}')
    cluster.start_masters("h2")
    wait_until(lambda: "nor can its order " in caplog.text)
    cluster.enter("next", slots=4)
    cluster.wait_reason("next", "waits for 4 slots; 1 is free")
    assert coord.get(at.record("runs")).data == b'{"novel": 1}'
    assert cluster.states("runs") == ["RUNNING"]


def test_slots_of_a_host_that_cannot_be_read_are_given_to_nobody(cluster, caplog):
    """They counted as free, while jobs ran in them."""
    coord, at = cluster.coord, cluster.at
    cluster.start_masters("h1")
    cluster.enter("runs", slots=3)
    cluster.wait("runs", JobState.RUNNING)
    coord.set(at.orders("w"), b"\xff{")
    cluster.enter("next", slots=1)
    cluster.wait_reason("next", "waits for 1 slot; 0 are free")
    wait_until(lambda: "so that none of its slots are given to jobs" in caplog.text)
    cluster.finish("runs")
    assert coord.get(at.orders("w")).data == b"\xff{" and not coord.get(at.order("w", "runs"))
    coord.set(at.orders("w"), b"")  # as the worker does that is started again
    cluster.wait("next", JobState.RUNNING)


def test_an_order_has_what_is_its_hosts_alone_however_many_hosts_there_are(cluster):
    hosts = [f"v{k}" for k in range(40)]
    for host in hosts:
        cluster.join(host, 64)
    cluster.start_masters("h1")
    cluster.enter("wide", slots=40 * 64)
    cluster.wait("wide", JobState.RUNNING)
    sizes = [len(cluster.coord.get(cluster.at.order(host, "wide")).data) for host in hosts]
    assert max(sizes) < 600


def test_a_job_too_large_for_a_transaction_fails_and_holds_up_nobody(cluster, monkeypatch):
    monkeypatch.setattr(nodes, "MAX_DATA_BYTES", 20_000)
    cluster.join("v", 5000)
    cluster.start_masters("h1")
    cluster.enter("big", slots=5000)
    cluster.wait("big", JobState.FAILED)
    cause = msgspec.json.decode(cluster.coord.get(cluster.at.result("big")).data)["cause"]
    assert "fit into a transaction" in cause and "fewer groups or tasks" in cause
    cluster.enter("small", slots=4)
    cluster.wait("small", JobState.RUNNING)


def test_a_host_whose_slots_cannot_be_read_has_none_to_keep_warm(cluster):
    cluster.start_masters("h1")
    _, _, controller = cluster.masters["h1"]
    path = cluster.at.orders("w")
    wait_until(lambda: "w" in controller.orders.nodes())
    for data, n_free in ((b"", 8), (b'{"one": 3}', 5), (b"\xff{", 0)):
        cluster.coord.set(path, data)
        controller.orders.learn("w", cluster.coord.get(path))
        assert controller.free("w", 8) == n_free


@pytest.mark.parametrize("n_servers", [0, 1])
def test_a_change_of_groups_too_large_for_a_transaction_is_refused_and_the_job_goes_on(
    cluster, monkeypatch, n_servers
):
    """It FAILED, though it ran."""
    monkeypatch.setattr(nodes, "MAX_DATA_BYTES", 20_000)
    cluster.n_servers = n_servers
    cluster.join("v", 5000)
    cluster.start_masters("h1")
    cluster.enter("grows", slots=5)
    cluster.report("grows", HostReport(RUNNING))
    cluster.coord.set(cluster.at.wish("grows"), b"groups=5000")
    if not n_servers:  # others go on from a checkpoint
        wait_until(lambda: cluster.record("grows").aim == STOP)
        cluster.report("grows", HostReport(STOPPED, checkpoint=7), is_again=True)
    wait_until(lambda: cluster.record("grows").n_refused == 5000)
    record = cluster.wait("grows", JobState.RUNNING, attempt=1 if n_servers else 2)
    assert "fit into a transaction" in record.trouble and "5000 groups" in record.trouble
    assert [len(allocation.ranks) for allocation in record.allocations.values()] == [5 + n_servers]
    with pytest.raises(Conflict, match="goes on with .*: 5000 groups cannot run it"):
        wait_scaled(cluster.client(), "grows", 5000, 5.0)
    cluster.coord.set(cluster.at.wish("grows"), b"groups=6")
    wait_until(lambda: cluster.record("grows").n_wanted == 6)
    assert not cluster.record("grows").n_refused


def test_what_a_job_waits_as_is_told_and_one_that_is_resumed_waits_at_the_end(cluster):
    client, at = cluster.client(), cluster.at
    cluster.enter("zz", "mm", "aa")

    def places() -> dict[str, int]:
        found = {status.job: status.place for status in client.reader.newest(1000)[0]}
        active = {status.job: status.place for status in client.reader.active()}
        assert active == {job: place for job, place in found.items() if place}
        assert {job: one(job).place for job in found} == found
        return found

    def one(job: str) -> JobStatus:
        return client.reader.placed(client.status(job))

    assert places() == {"zz": 1, "mm": 2, "aa": 3}
    cluster.jobs.change("zz", JobState.PENDING, JobState.STOPPED)
    assert places() == {"zz": 0, "mm": 1, "aa": 2}
    cluster.jobs.change("zz", JobState.STOPPED, JobState.PENDING)
    assert places() == {"zz": 3, "mm": 1, "aa": 2}
    cluster.coord.commit([Put(at.state("mm"), b"RUNNING")])
    with_mm = {status.job: status.place for status in client.reader.active()}
    assert with_mm == {"zz": 2, "mm": 0, "aa": 1}
