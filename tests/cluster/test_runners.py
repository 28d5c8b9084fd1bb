"""An agent's side of one epoch of a job: whose word counts when it is ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from horn.cluster import job_runner
from horn.cluster.agent import Agent
from horn.cluster.job_runner import MAX_COUNTERS_BYTES, JobRunner, _fitting, _last_rows
from horn.cluster.master import (
    END,
    FAILED,
    GONE,
    RUN,
    RUNNING,
    STARTING,
    STOP,
    Allocation,
    HostFailure,
    HostOrder,
    HostReport,
)
from horn.cluster.relay import ProgressWriter
from horn.cluster.runner_protocol import (
    CUT_OFF,
    REPORT_BYTES,
    AddStandby,
    AgentLease,
    CheckpointComplete,
    CheckpointFailed,
    JobProgress,
    RunnerConnection,
    RunnerFinished,
    TasksRunning,
)
from horn.cluster.runners import JobRun, RunnerProcess, used_by
from horn.coordination import nodes
from horn.coordination.nodes import MAX_DATA_BYTES
from horn.coordination.paths import Paths
from horn.errors import ModelError, ProtocolError

HERE = Allocation(1, "127.0.0.1", (0,))
SIGKILLED = RunnerFinished(
    FAILED, HostFailure("First failure: task 0 of group 1 was killed by signal SIGKILL")
)


def test_what_an_agent_kills_is_not_blamed_on_the_signal():
    """The agent was cut off and ends a job; its job runner sees its tasks go first, and says so."""
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    words: list[list[Any] | None] = [[SIGKILLED], None]
    runner: Any = SimpleNamespace(
        is_open=True,
        kill=lambda: None,
        line=SimpleNamespace(read=lambda waits: words.pop(0)),
        reap=lambda: (-9, {}),
    )
    run.runner = runner
    run.kill("First failure: 2 tasks on worker a were ended: its agent was cut off from ZooKeeper")
    run.kill("and again")
    run.ended()
    failure = run.report.failure
    assert run.is_over and failure is not None
    assert "cut off from ZooKeeper" in failure.text and "SIGKILL" not in failure.text


def test_a_job_that_is_told_to_stop_may_save_for_as_long_as_it_takes():
    """After two minutes it was killed with nothing saved, and said to have been by the kernel."""
    run, said = JobRun("one", HostOrder(1, RUN, HERE), member=1), list[str]()
    words: list[list[Any] | None] = [None]
    run.runner = SimpleNamespace(  # type: ignore[assignment]
        is_open=True,
        is_stopped=False,
        send=lambda word: said.append(type(word).__name__),
        kill=lambda: said.append("killed"),
        line=SimpleNamespace(read=lambda waits: words.pop(0)),
        reap=lambda: (-9, {}),
    )
    run.aim_at(STOP)
    run.tick(1e12)
    assert said == ["StopJob"]
    run.aim_at(END)
    run.tick(1e12)
    run.ended()
    assert said == ["StopJob", "EndJob", "killed"] and run.report.phase == GONE


def test_what_ended_before_has_its_own_cause():
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    words: list[list[Any] | None] = [[SIGKILLED], None]
    run.runner = SimpleNamespace(  # type: ignore[assignment]
        is_open=True,
        line=SimpleNamespace(read=lambda waits: words.pop(0)),
        reap=lambda: (1, {}),
    )
    run.ended()
    assert run.report.failure is not None and "SIGKILL" in run.report.failure.text


def test_a_job_runner_that_reads_nothing_keeps_its_agent_waiting_for_nothing():
    """It is stopped, and its assignment larger than what a socket takes."""
    line, theirs = RunnerConnection.pair()
    runner = RunnerProcess.__new__(RunnerProcess)
    runner.line, words = line, [CheckpointComplete(number) for number in range(100_000)]
    sending = threading.Thread(target=lambda: [runner.send(word) for word in words], daemon=True)
    sending.start()
    sending.join(10.0)
    is_free = not sending.is_alive()
    got: list[Any] = []
    while is_free and len(got) < len(words):
        got += theirs.read() or ()
        runner.flush()
    assert is_free and got == words and not line.is_behind
    theirs.close()
    runner.send(words[0])  # it has ended: its exit is heard of
    line.close()
    sending.join(10.0)


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\n",
        b'"\xff"\n',
        b'{"type": "EndJob"}\n',
        b"[" * 9_000 + b"\n",
        b'{"type": "JobProgress", "progress": {"note": "%s"}}\n' % (b"x" * 20_000),
    ],
)
@pytest.mark.parametrize("has_ended", [False, True])
def test_what_a_jobs_file_writes_into_the_line_ends_the_job_and_not_its_agent(
    said: bytes, has_ended: bool
):
    line, theirs = RunnerConnection.pair()
    assert line.max_bytes < MAX_DATA_BYTES, "a node takes it"
    line.max_bytes = 10_000
    run, ends = JobRun("one", HostOrder(1, RUN, HERE), member=1), list[str]()
    runner: Any = SimpleNamespace(
        is_open=True, line=line, output=None, pidfd=-1,
        kill=lambda: ends.append("killed"), reap=lambda: (-9, {}),
    )  # fmt: skip
    run.runner = runner
    agent = Agent.__new__(Agent)
    theirs.sock.sendall(said)
    if not has_ended:
        agent._hear(line.fileno(), run, runner)
        assert ends == ["killed"] and not runner.is_open
    run.ended()
    theirs.close()
    line.close()
    failure = run.report.failure
    assert run.is_over and failure is not None and "not to write to desc" in failure.text


def test_a_warm_job_runner_that_says_nonsense_is_ended_and_not_its_agent():
    line, theirs = RunnerConnection.pair()
    ends = list[str]()
    runner: Any = SimpleNamespace(
        is_open=True, line=line, output=None, pidfd=-1, kill=lambda: ends.append("killed")
    )
    agent = Agent.__new__(Agent)
    agent._warm = runner
    theirs.sock.sendall(b"nonsense\n")
    agent._hear(line.fileno(), None, runner)
    theirs.close()
    line.close()
    assert ends == ["killed"] and not runner.is_open


def _told(written: dict[str, bytes]) -> Any:
    def put(path: str, data: bytes) -> None:
        nodes._check_size(path, data)
        written[path] = data

    return SimpleNamespace(connected=True, paths=Paths("/horn"), set=put)


def test_a_report_that_no_node_takes_is_a_failure_of_its_job_and_no_other():
    """It ended the agent, and every job of the host."""
    runs = {name: JobRun(name, HostOrder(1, RUN, HERE), member=1) for name in ("large", "good")}
    agent, written, ends = Agent.__new__(Agent), dict[str, bytes](), list[str]()
    agent.name, agent.runs, agent.coord = "a", runs, _told(written)
    large = runs["large"]
    large.runner = SimpleNamespace(kill=lambda: ends.append("killed"))  # type: ignore[assignment]
    large.hear(CheckpointComplete(7))
    large.hear(CheckpointFailed("x" * MAX_DATA_BYTES))
    large.hear(JobProgress({"note": "x" * MAX_DATA_BYTES}))
    runs["good"].hear(TasksRunning())
    path = agent.coord.paths.report("large", 1, "a")
    agent._tell()
    assert ends == ["killed"] and path not in written, "while its processes run"
    large.runner = None  # it has ended
    agent._tell()
    report = msgspec.json.decode(written[path], type=HostReport)
    assert report.phase == FAILED and report.checkpoint == 7 and report.failure is not None
    assert "cannot be written: /horn/jobs/large" in report.failure.text
    good = msgspec.json.decode(written[agent.coord.paths.report("good", 1, "a")])
    assert good["phase"] == RUNNING and large.is_told and runs["good"].is_told


def test_the_counters_of_many_tasks_fit_into_a_result():
    counters = [{"task": n, "role": f"g{n}.t0", "compute_s": n / 3} for n in range(10_000)]
    kept = _fitting(counters, MAX_COUNTERS_BYTES)
    assert kept == counters[: len(kept)] and len(kept) > 1000
    assert len(msgspec.json.encode(kept)) < REPORT_BYTES / 2
    assert _fitting(counters[:3], MAX_COUNTERS_BYTES) == counters[:3]


def test_an_error_with_a_long_text_fits_into_a_report():
    runner = JobRunner.__new__(JobRunner)
    runner.kept, runner.from_before = -1, ""
    runner._is_in_rendezvous, runner.on_cluster = False, None
    allocations = {"a": Allocation(1, "127.0.0.1", (0,))}
    runner.assignment = SimpleNamespace(  # type: ignore[assignment]
        host="a", groups=(), allocations=allocations, work="/w"
    )
    runner.submission = SimpleNamespace(groups=1, tasks=1, servers=0)  # type: ignore[assignment]
    long = "x" * 5_000_000
    for found in (runner._failure(ProtocolError(long)), runner._unexpected(ValueError(long))):
        assert found.text.endswith("characters more") and len(found.text) < 30_000
        assert len(found.details) < 30_000


def test_the_last_rows_of_a_history_fit_into_a_result():
    """A job of a hundred classes has a metric for each, and every epoch has a row."""
    few = [{"epoch": n, "loss": 0.5} for n in range(3000)]
    assert _last_rows(few) == few[-1000:] and _last_rows(few[:3]) == few[:3] and not _last_rows([])
    many = [{"epoch": n, **{f"recall of {c}": n / 3 for c in range(100)}} for n in range(1000)]
    kept = _last_rows(many)
    assert kept == many[-len(kept) :] and 50 < len(kept) < 1000
    assert len(msgspec.json.encode(kept)) < MAX_DATA_BYTES / 2


class LeavingRun(JobRun):
    """The agent's thread takes its runner away once it was looked at so often."""

    looks = 0

    @property
    def runner(self) -> Any:
        self.looks -= 1
        return SimpleNamespace(kill=lambda: None) if self.looks >= 0 else None

    @runner.setter
    def runner(self, value: Any) -> None:
        pass


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_who_is_cut_off_says_nothing_of_a_job_runner_that_has_just_ended(looks: int):
    """Its own report is about to be made, by the agent's thread."""
    run = LeavingRun("one", HostOrder(1, RUN, HERE), member=1)
    run.looks = looks
    agent = Agent.__new__(Agent)
    agent._suspended, agent._wake, agent.runs = True, 0, {"one": run}
    agent._is_cut_off = lambda: True  # type: ignore[method-assign]
    agent._ended = lambda run, why: why  # type: ignore[method-assign]
    agent._fence()
    assert run.report.phase == STARTING


def test_a_job_runner_ends_once_its_agent_has_no_lease_any_more(monkeypatch: pytest.MonkeyPatch):
    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end)
    ours, theirs = RunnerConnection.pair()
    with pytest.raises(SystemExit) as ended:
        job_runner._listen(theirs, SimpleNamespace(), [AgentLease(0.0)])  # type: ignore[arg-type]
    assert ended.value.code == CUT_OFF
    ours.send(AgentLease(0.0))  # unread, though it came in time
    assert theirs.wait(0.0)
    ours.close()
    theirs.close()


def test_the_end_of_a_lease_is_told_as_that_of_an_agent_that_stood_still():
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    words: list[list[Any] | None] = [None]
    run.runner = SimpleNamespace(  # type: ignore[assignment]
        is_open=True,
        line=SimpleNamespace(read=lambda waits: words.pop(0)),
        reap=lambda: (CUT_OFF, {}),
    )
    run.ended()
    failure = run.report.failure
    assert failure is not None and not failure.is_final and "horn worker" in failure.text


def test_of_a_job_that_is_gone_an_agent_keeps_nothing():
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    run.say(FAILED)
    agent = Agent.__new__(Agent)
    agent.runs = {"one": run}
    agent._is_cut_off = lambda: False  # type: ignore[method-assign]
    agent._reconcile({})
    assert not agent.runs


def test_the_last_progress_of_an_attempt_is_there_before_its_final_report():
    """A job that failed in its fifth epoch was shown in its first, for good: its progress was kept
    for half a second, and then dropped with the attempt.
    """
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    agent, paths = Agent.__new__(Agent), Paths("/horn")
    written: list[tuple[str, Any]] = []
    agent.name, agent.runs = "a", {"one": run}
    agent.coord = SimpleNamespace(  # type: ignore[assignment]
        connected=True, paths=paths,
        set=lambda path, data: written.append((path, msgspec.json.decode(data))),
    )  # fmt: skip
    progress, report = paths.progress("one"), paths.report("one", 1, "a")
    run.hear(JobProgress({"epoch": 1}))
    agent._tell()
    run.hear(JobProgress({"epoch": 5}))
    agent._tell()
    assert [(path, said.get("epoch")) for path, said in written] == [(progress, 1), (report, None)]
    run.say(FAILED)
    del written[:]
    agent._tell()
    agent._tell()
    assert [path for path, _ in written] == [progress, report]
    assert written[0][1] == {"epoch": 5} and written[1][1]["phase"] == FAILED


def test_a_job_that_was_stopped_says_how_far_it_came(tmp_path: Path):
    """It was shown behind its last checkpoint."""
    said: list[Any] = []
    writer = ProgressWriter(said.append, 1, tmp_path / "progress.jsonl")
    writer.stopped(0)
    writer.stopped(7)
    assert said == [], "it had not begun"
    writer.facts = {"per_epoch": 10}
    writer.step(1, 9, 0.5, 100.0)
    writer.stopped(20)
    at = {k: v for k, v in said[-1].progress.items() if k not in ("at", "attempt")}
    assert at == {"per_epoch": 10, "epoch": 2, "iteration": 20, "loss": 0.5, "samples_per_s": 100.0}


def test_what_waits_for_a_job_is_as_much_as_there_are_free_slots():
    """It was as many tasks as there are slots, also where none was free: twice the memory, and the
    time of a processor while a job ran.
    """
    agent = Agent.__new__(Agent)
    agent.runs, agent._warm, agent._n_standby = {}, None, 0
    agent._suspended = agent._stopping = False
    words: list[Any] = []
    runner = SimpleNamespace(send=words.append)
    agent._runner = lambda n: words.append(n) or runner  # type: ignore[method-assign]
    agent._keep_warm(0)
    agent._keep_warm(-1)
    assert agent._warm is None
    agent.runs["one"] = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    agent._keep_warm(2)
    assert agent._warm is None, "it would slow down a start"
    agent.runs["one"].hear(TasksRunning())
    agent._keep_warm(1)
    assert words == [1] and agent._warm is runner
    agent._keep_warm(3)
    agent._keep_warm(3)
    agent._keep_warm(1)
    assert words == [1, AddStandby(2)]


def test_the_last_words_of_a_warm_job_runner_may_begin_within_a_letter():
    agent = Agent.__new__(Agent)
    runner: Any = SimpleNamespace(
        pidfd=7, output=None, unlogged="é".encode() * 1500 + b"x", reap=lambda: (1, {})
    )
    agent._warm = runner
    agent._hear(7, None, runner)
    assert agent._warm is None


def test_who_holds_a_dead_job_runners_line_keeps_nobody_waiting():
    """A job that forks, as multiprocessing does, leaves a process with all that it had open."""
    run = JobRun("one", HostOrder(1, RUN, HERE), member=1)
    line, theirs = RunnerConnection.pair()
    theirs.send(TasksRunning())
    theirs.send(SIGKILLED)
    run.runner = SimpleNamespace(  # type: ignore[assignment]
        is_open=True, line=line, reap=lambda: (-9, {})
    )
    ending = threading.Thread(target=run.ended, daemon=True)
    ending.start()
    ending.join(10.0)
    is_over = run.is_over
    theirs.close()
    ending.join(10.0)
    line.close()
    assert is_over and run.report.failure is not None and "SIGKILL" in run.report.failure.text


def test_a_model_that_cannot_be_written_is_not_computed_again():
    runner = JobRunner.__new__(JobRunner)
    runner.kept, runner.from_before = -1, ""
    runner._is_in_rendezvous = False
    runner.on_cluster = SimpleNamespace(is_repairable=True)  # type: ignore[assignment]
    allocations = {"a": Allocation(1, "127.0.0.1", (0,))}
    runner.assignment = SimpleNamespace(host="a", groups=(), allocations=allocations)  # type: ignore[assignment]
    runner.submission = SimpleNamespace(groups=1, tasks=1, servers=0)  # type: ignore[assignment]
    found = runner._failure(ModelError("model.horn: cannot be written (No space left on device)"))
    assert found.is_final and found.code == 2 and "model.horn" in found.text
    assert not runner._failure(ProtocolError("torn")).is_final


@pytest.mark.cluster
def test_what_a_job_used_is_not_what_an_earlier_one_did():
    """The peak was the largest of any process that the agent ever had: it never fell."""
    code = (
        "import subprocess, sys; from horn.cluster.runners import used_by\n"
        "for n in (400_000_000, 1):\n"
        "    part = [sys.executable, '-I', '-S', '-c', f'bytearray({n})']\n"
        "    print(*used_by(subprocess.Popen(part))[1].values())"
    )  # in a process of its own: the peak of a child is never below what its parent holds
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    large, small = (float(line.split()[2]) for line in done.stdout.splitlines())
    assert small < 350e6 < large


@pytest.mark.cluster
def test_a_process_that_somebody_waited_for_has_its_exit_code():
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"])
    process.wait()
    assert used_by(process) == (3, {})
