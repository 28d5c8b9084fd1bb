"""The tree of jobs and the table of paths."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import msgspec
import pytest

from horn import errors
from horn.cluster import job_names, job_status, submission
from horn.cluster.client import ClusterClient
from horn.cluster.file_service import HoldCount
from horn.cluster.resume import resume
from horn.cluster.submission import Submission
from horn.coordination import paths
from horn.coordination.jobs import NEXT, Jobs, JobState

pytestmark = pytest.mark.timeout(60)


def test_paths_are_those_of_the_design():
    at = paths.Paths()
    assert [at.workers(), at.spec("j"), at.state("j"), at.result("j"), at.leader("j")] == [
        "/horn/workers",
        "/horn/jobs/j/spec",
        "/horn/jobs/j/state",
        "/horn/jobs/j/result",
        "/horn/jobs/j/leader",
    ]
    assert [at.members("j", 2), at.barrier("j", 2), at.servers("j"), at.checkpoints("j")] == [
        "/horn/jobs/j/groups/2/members",
        "/horn/jobs/j/groups/2/barrier",
        "/horn/jobs/j/servers",
        "/horn/jobs/j/checkpoints",
    ]


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "a b", "-x", "x" * 101, "a\0", "ä"])
def test_names_that_are_no_path_part_are_refused(name):
    with pytest.raises(errors.JobError, match="use 1 to 100 letters"):
        paths.Paths().job(name)


@pytest.mark.parametrize("call", [paths.generation, paths.Paths().groups, paths.attempt_folder])
def test_numbers_below_zero_are_refused(call):
    with pytest.raises(errors.JobError):
        call(-1, []) if call is paths.attempt_folder else call(
            -1
        ) if call is paths.generation else call("")


def test_generations_sort_as_numbers():
    assert sorted(map(paths.generation, [10, 9, 100])) == list(map(paths.generation, [9, 10, 100]))


@pytest.mark.net
def test_a_job_from_entry_to_removal(zookeeper, connect):
    coord = connect()
    jobs = Jobs(coord)
    jobs.create("j", b"spec")
    with pytest.raises(errors.Conflict, match="there is a job 'j' already"):
        jobs.create("j", b"other")
    at = coord.paths
    said = [coord.get(path("j")).data for path in (at.spec, at.result, at.checkpoints)]
    assert (jobs.state("j"), said) == (JobState.PENDING, [b"spec", b"", b""])
    jobs.change("j", JobState.PENDING, JobState.RUNNING)
    with pytest.raises(errors.Conflict, match="RUNNING; stop it first"):
        jobs.remove("j")
    jobs.change("j", JobState.RUNNING, JobState.SUCCEEDED)
    assert jobs.state("j") is JobState.SUCCEEDED
    jobs.remove("j")
    assert coord.children(at.jobs()) == []
    with pytest.raises(errors.NotFound, match="no job 'j'"):
        jobs.state("j")


@pytest.mark.net
def test_a_description_is_signed_for_the_node_that_it_is_written_to(zookeeper, connect):
    coord = connect()
    jobs = Jobs(coord)
    seen = []

    def sign(node):
        seen.append(node)
        with pytest.raises(errors.NotFound):
            jobs.state("j")  # no job yet
        return b"signed"

    jobs.create_signed("j", sign)
    found = coord.get(coord.paths.spec("j"))
    assert (found.data, found.created, found.made_s) == (b"signed", seen[0].created, seen[0].made_s)
    assert jobs.state("j") is JobState.PENDING
    assert not jobs.remove_unfinished("j")
    with pytest.raises(errors.Conflict, match="there is a job 'j' already"):
        jobs.create_signed("j", sign)
    jobs.change("j", JobState.PENDING, JobState.FAILED)
    jobs.remove("j")
    jobs.create_signed("j", sign)  # under its old name, in another place
    assert seen[1].created > seen[0].created and seen[1].made_s >= seen[0].made_s


@pytest.mark.net
def test_of_a_slow_submitter_and_who_removes_its_job_one_fails(zookeeper, connect):
    jobs = Jobs(connect())

    def sign(node):
        assert jobs.remove_unfinished("j")
        return b"signed"

    with pytest.raises(errors.Conflict, match="while it was submitted"):
        jobs.create_signed("j", sign)
    assert jobs.coord.children(jobs.paths.jobs()) == []
    with pytest.raises(errors.JobError, match="too long"):
        jobs.create_signed("j", lambda node: _too_long())
    assert jobs.coord.children(jobs.paths.jobs()) == []


def _too_long():
    raise errors.JobError("too long")


@pytest.mark.net
def test_a_change_of_state_must_fit_the_state(zookeeper, connect):
    coord = connect()
    jobs = Jobs(coord)
    jobs.create("j", b"")
    with pytest.raises(errors.Conflict, match="PENDING, not RUNNING"):
        jobs.change("j", JobState.RUNNING, JobState.FAILED)
    with pytest.raises(errors.Conflict, match="PENDING does not lead to SUCCEEDED"):
        jobs.change("j", JobState.PENDING, JobState.SUCCEEDED)
    with pytest.raises(errors.NotFound):
        jobs.change("k", JobState.PENDING, JobState.RUNNING)
    coord.set(coord.paths.state("j"), b"ODD")
    with pytest.raises(errors.ProtocolError, match="unknown state"):
        jobs.state("j")


@pytest.mark.net
def test_a_description_that_does_not_fit_is_refused_before_it_is_sent(embedded, connect_embedded):
    with pytest.raises(errors.JobError, match="at most 900000 fit"):
        Jobs(connect_embedded()).create("j", bytes(900_001))


def test_every_state_is_reachable_and_only_success_is_final():
    reached, todo = {JobState.PENDING}, [JobState.PENDING]
    while todo:
        new = NEXT[todo.pop()] - reached
        reached |= new
        todo += new
    assert reached == set(JobState)
    assert [state for state in JobState if not NEXT[state]] == [JobState.SUCCEEDED]


@pytest.mark.net
@pytest.mark.parametrize(
    "node, data",
    [("state", b"HALTED"), ("record", b"{"), ("result", b"\xff"), ("result", b"[" * 100_000)],
    ids=["state", "record", "result", "nested result"],
)
def test_a_job_that_cannot_be_read_hides_no_other(zookeeper, connect, node, data, caplog):
    coord = connect()
    jobs = Jobs(coord)
    for job in ("good", "bad"):
        jobs.create(job, b"spec")
    path = getattr(coord.paths, node)("bad")
    coord.ensure(path)
    coord.set(path, data)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    with caplog.at_level("WARNING"):
        assert [status.job for status in cluster.reader.newest(1000)[0]] == ["good"]
    said = "job bad: what ZooKeeper at .* has of it below /.*/jobs/bad cannot be read"
    assert [bool(re.match(said, each)) for each in caplog.messages] == [True]
    with pytest.raises(errors.ClusterError, match=said):
        cluster.status("bad")


class Workers:
    """Of one worker, whose packages nobody holds: what it was asked to forget."""

    def __init__(self):
        self.asked = []

    def call(self, method, request, reply):
        if method == "holds":
            return HoldCount(0)
        self.asked.append((method, request.job, request.package))


@pytest.mark.net
@pytest.mark.parametrize(
    "node, data",
    [
        ("record", b"{"),
        ("result", b"\xff"),
        ("spec", b"{"),
        ("state", b"HALTED"),
        ("state", b"\xff"),
    ],
)
def test_a_job_that_cannot_be_read_is_removed_and_keeps_its_package(
    embedded, connect_embedded, monkeypatch, node, data
):
    """It stayed for ever, and its package went with another job that had the same."""
    coord, workers = connect_embedded(), Workers()
    jobs = Jobs(coord)
    for job in ("good", "bad"):
        found = Submission(job=job, target="train.py", package="ab" * 32)
        jobs.create(job, msgspec.json.encode(found))
        coord.set(coord.paths.state(job), JobState.FAILED.value.encode())
    path = getattr(coord.paths, node)("bad")
    coord.ensure(path)
    coord.set(path, data)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    monkeypatch.setattr(cluster, "workers", lambda: {"a": None})
    monkeypatch.setattr(cluster, "client", lambda *_: workers)
    cluster.remove("good")
    cluster.remove("bad")
    package = "" if node == "spec" else "ab" * 32  # of the last that has it
    assert workers.asked == [("forget", "good", ""), ("forget", "bad", package)]
    assert coord.children(coord.paths.jobs()) == coord.children(coord.paths.all_active()) == []


@pytest.mark.net
def test_a_job_without_a_state_that_can_be_read_is_not_removed_where_it_runs(
    embedded, connect_embedded, monkeypatch
):
    class Busy:
        def call(self, method, request, reply):
            raise errors.Conflict(f"job {request.job} still runs here")

    coord = connect_embedded()
    jobs = Jobs(coord)
    jobs.create("bad", b"spec")
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    with pytest.raises(errors.Conflict, match="PENDING; stop it first"):
        cluster.remove("bad")
    coord.set(coord.paths.state("bad"), b"HALTED")
    monkeypatch.setattr(cluster, "workers", lambda: {"a": None})
    monkeypatch.setattr(cluster, "client", lambda *_: Busy())
    with pytest.raises(errors.Conflict, match="job bad still runs here"):
        cluster.remove("bad")
    assert coord.children(coord.paths.jobs()) == ["bad"]
    with pytest.raises(errors.NotFound, match="no job 'none'"):
        cluster.remove("none")


@pytest.mark.net
def test_what_zookeeper_does_not_take_is_refused_before_it_is_sent(zookeeper, connect):
    coord = connect()
    coord.create("/full", b"a")
    with pytest.raises(errors.JobError, match="/full: 1,000,001 bytes, but at most 1,000,000 fit"):
        coord.set("/full", bytes(1_000_001))
    with pytest.raises(errors.JobError, match="1,000,001 bytes"):
        coord.create("/fuller", bytes(1_000_001))
    coord.set("/full", bytes(1_000_000))
    assert coord.get("/full").data == bytes(1_000_000)
    coord.remove("/full")


@pytest.mark.net
def test_who_looks_for_jobs_that_run_asks_nothing_of_those_that_have_ended(
    zookeeper, connect, monkeypatch
):
    """Each took five questions, one after the other: seconds, of hundreds of ended jobs."""
    coord = connect()
    jobs = Jobs(coord)
    for job in ("runs", "ended"):
        jobs.create(job, b"spec")
    jobs.change("ended", JobState.PENDING, JobState.STOPPED)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)
    assert [status.job for status in cluster.reader.newest(1000)[0]] == ["ended", "runs"]
    asked, get_each = [], coord.get_each
    monkeypatch.setattr(coord, "get_each", lambda paths: asked.extend(paths) or get_each(paths))
    assert [status.job for status in cluster.reader.active()] == ["runs"]
    assert asked and not [path for path in asked if "ended" in path]


@pytest.mark.net
def test_other_files_that_no_worker_would_take_are_refused_as_a_job_is_resumed(
    zookeeper, connect, monkeypatch
):
    """Without a key they were not: each worker then refused the job."""
    coord = connect()
    jobs = Jobs(coord)
    found = Submission(job="one", target="train.py", package="ab" * 32, user="ann")
    jobs.create("one", submission.unsigned(found))
    jobs.change("one", JobState.PENDING, JobState.STOPPED)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    monkeypatch.setattr("horn.cluster.resume.held", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "workers", dict)
    package = SimpleNamespace(digest="cd" * 32, target=f"{'a/' * 150}job.py")
    with pytest.raises(errors.JobError, match="target"):
        resume(cluster, "one", package=package)
    assert jobs.state("one") is JobState.STOPPED
    resume(cluster, "one", package=SimpleNamespace(digest="cd" * 32, target="other.py"))
    assert cluster.status("one").submission.target == "other.py"


@pytest.mark.net
def test_another_horns_job_is_not_said_to_go_on(zookeeper, connect, monkeypatch):
    """It was PENDING again, and its master refused it after that."""
    coord = connect()
    jobs = Jobs(coord)
    wanted = Submission(job="one", target="train.py", package="ab" * 32)
    jobs.create("one", msgspec.json.encode(msgspec.to_builtins(wanted) | {"keep": 3}))
    jobs.change("one", JobState.PENDING, JobState.STOPPED)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    monkeypatch.setattr(cluster, "workers", dict)
    with pytest.raises(errors.ProtocolError, match="by another horn: .* submit it again"):
        resume(cluster, "one")
    assert jobs.state("one") is JobState.STOPPED
    assert list(cluster.reader.packages(["one"])) == ["ab" * 32], "horn rm removes it"


@pytest.mark.net
def test_a_list_of_jobs_reads_the_results_of_those_that_it_shows(
    embedded, connect_embedded, monkeypatch
):
    """It read all: hundreds of MB of a long history, for five lines."""
    coord = connect_embedded()
    jobs = Jobs(coord)
    for job, name in (("one", "ann"), ("two", "bob"), ("three", "ann"), ("four", "bob")):
        found = Submission(job=job, target="train.py", package="ab" * 32, user=name)
        jobs.create(job, submission.unsigned(found))
    jobs.change("two", JobState.PENDING, JobState.STOPPED)
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    asked, get_each = list[str](), coord.get_each
    monkeypatch.setattr(coord, "get_each", lambda paths: asked.extend(paths) or get_each(paths))

    def shown(*args) -> tuple[list[str], int]:
        asked.clear()
        found, n_jobs = cluster.reader.newest(*args)
        read = [status.job for status in found]
        assert {coord.paths.result(job) for job in read} == {p for p in asked if "result" in p}
        return read, n_jobs

    assert shown(1) == (["four"], 4)
    assert shown(9, JobState.PENDING) == (["four", "three", "one"], 3)
    assert shown(1, None, "ann") == (["three"], 2) and shown(9, JobState.STOPPED, "ann") == ([], 0)
    assert [status.place for status in cluster.reader.newest(2)[0]] == [3, 2], "of all that wait"
    asked.clear()
    monkeypatch.setattr("horn.cluster.client.user", lambda: "ann")
    assert cluster.find("@last") == "three" and not [p for p in asked if "result" in p]


@pytest.mark.net
def test_many_jobs_are_read_in_few_round_trips(embedded, connect_embedded, monkeypatch):
    """Each took five, one after the other: seconds, of hundreds of jobs and a slow network."""
    coord = connect_embedded()
    jobs = Jobs(coord)
    names = [f"job-{n:03d}" for n in range(job_status.TOGETHER + 1)]
    for job in names:
        found = Submission(job=job, target="train.py", package="ab" * 32, user=job_names.user())
        jobs.create(job, submission.unsigned(found))
    cluster = ClusterClient(coord.hosts)
    cluster.use(coord)  # below this test's root
    cluster.reader.now_s()
    trips, sent = [], coord._sent
    monkeypatch.setattr(
        coord, "_sent", lambda *args, **kwargs: trips.append(args) or sent(*args, **kwargs)
    )
    assert [status.job for status in cluster.reader.newest(1000)[0]] == names[::-1]
    # Their names; of a hundred jobs and the last their states, the rest, and who waits for whom.
    assert len(trips) == 7
    assert cluster.find("@last") == names[-1]
    trips.clear()
    assert cluster.status(names[7]).job == names[7]
    assert len(trips) == 1
    assert coord.get_each([]) == []
