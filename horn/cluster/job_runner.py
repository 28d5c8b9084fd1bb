"""The job runner of one host: the process that loads a job's file and starts its tasks there.

An agent runs ``main`` with LINE PARENT NAME WAITS: a descriptor, the agent's pid, with which it
ends, a name for ps, and a StandbySize. It imports all it needs before it has a job, so that jobs
start sooner. It is the first process that runs user code: limits are set before, and it never has
the cluster's key.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

import horn.train  # noqa: F401  what follows needs it, and it takes long
from horn import callbacks, defaults, transport
from horn import settings as settings_
from horn import target as targets
from horn.checkpoint import Checkpoints
from horn.cluster import runner_protocol as protocol
from horn.cluster.capacity import bracketed
from horn.cluster.host_failures import blamed
from horn.cluster.master import (
    FAILED,
    FINISHED,
    GONE,
    STOPPED,
    Allocation,
    HostFailure,
    unkept,
)
from horn.cluster.relay import (
    OutputRelay,
    ProgressWriter,
    StandbyProcess,
    drop,
    start_standby,
)
from horn.cluster.store import CHECKPOINTS, FILES, LOG_BYTES, MODEL, PROGRESS, TRACE
from horn.cluster.submission import Submission
from horn.coordination.membership import Membership
from horn.coordination.session import Session
from horn.errors import (
    BarrierTimeout,
    CallbackError,
    ClusterError,
    HornError,
    JobError,
    MemberLost,
    ModelError,
    NotFound,
    ProtocolError,
    Stopped,
    Timeout,
    described,
)
from horn.executor.attempts import JobAttempt, ScaleRequest
from horn.executor.remote_pool import PRIMARY, HostLink, RemoteTaskPool, attend
from horn.executor.task_pool import TaskPool
from horn.job import Job
from horn.model import Model, write
from horn.own_lines import OwnLines
from horn.process import limits
from horn.process.exits import CLOSED, write_last
from horn.process.job_payload import draft
from horn.process.job_spec import RunSpec
from horn.run_result import Run
from horn.sources import line_of
from horn.strategies import Strategy, Topology
from horn.terminal import plain
from horn.train import conduct
from horn.training.deadline import LOADING, Deadline, interrupting
from horn.training.identity import differences, identity, in_words
from horn.training.run_settings import RunSettings
from horn.transport import Identity, PeerUnreachable
from horn.wire.text import wire_text

logger = logging.getLogger(__name__)

CHECKPOINT_S = 30.0  # between checkpoints, unless told otherwise
ROOM_S, ROOM_LOOK_S = 600.0, 0.5  # for room for the model on a full disk
LEAVE_S = 1.0  # for the run to end once it is told to
MAX_TEXT = 20_000  # characters of an error
MAX_UNSAVED = 1000  # characters of why a checkpoint is not saved
MAX_ROWS, MAX_ROWS_BYTES = 1000, 400_000  # of the history in a result; the file has all
MAX_COUNTERS_BYTES = 200_000  # of the counters in a result: of some 500 tasks
MEETING = "meeting of the job's hosts"
LATE = (
    "The job goes on elsewhere if there are slots. If they only need longer (a large package, "
    "a slow disk), raise start_timeout (--start-timeout)"
)
REPAIRS = 1000  # attempts of tasks within one of the job: a unit that ended alone restarts alone


class JobRunner:
    """The run of one assignment."""

    def __init__(
        self,
        line: protocol.RunnerConnection,
        assignment: protocol.Assignment,
        standby: Sequence[StandbyProcess] = (),
    ) -> None:
        self.line, self.assignment = line, assignment
        self.standby = standby
        self.submission = msgspec.convert(assignment.submission, Submission)
        self.is_over = threading.Event()  # end now
        self.stop_requested = threading.Event()  # save, then end
        self.changes: queue.SimpleQueue[ScaleRequest] = queue.SimpleQueue()
        progress = Path(assignment.keep) / PROGRESS
        self.progress = ProgressWriter(self.say, assignment.attempt, progress)
        self.checkpoint = -1
        self.kept, self.from_before = -1, ""  # the model from before a failure: updates, in words
        self.on_cluster: JobAttempt | None = None
        self._is_in_rendezvous = False  # with other hosts, before any of the job's own code runs
        self._has_run = threading.Event()
        self._lock = threading.Lock()

    @property
    def topology(self) -> Topology:
        found = self.submission
        return Topology(self.n_groups, found.tasks, found.servers)

    @property
    def n_groups(self) -> int:
        """The number of groups; with servers as submitted: later groups are not among its ranks."""
        mine, found = self.assignment, self.submission
        return found.groups if found.servers else len(mine.groups) or found.groups

    @property
    def n_hosts(self) -> int:
        return len(self.assignment.allocations)

    @property
    def lasts(self) -> bool:
        """Whether checkpoints, or the servers' journals, are kept for a restart."""
        return self.assignment.can_save and not self.submission.options.get("guests")

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints of this job, by which it can stop."""
        return self.lasts and not self.submission.servers

    @property
    def start_s(self) -> float:
        """The deadline of each step of a start, in seconds."""
        return float(self.submission.options.get("start_timeout_s") or defaults.START_TIMEOUT_S)

    def say(self, word: protocol.RunnerMessage) -> None:
        with self._lock:
            try:
                self.line.send(word)
            except OSError:
                os._exit(1)  # the agent has gone, and PDEATHSIG is on its way

    def run(self) -> protocol.RunnerFinished:
        """Run the assignment, and return the final message."""
        try:
            return self._run()
        except Stopped as error:
            self.progress.stopped(error.iteration)
            result: dict[str, Any] = {"iteration": error.iteration}
            if error.loss:
                result["cause"] = self._said(_short(error.loss))
                self.progress.note(f"Stopped after iteration {error.iteration:,}: {error.loss}")
            return protocol.RunnerFinished(STOPPED, checkpoint=self.checkpoint, result=result)
        except HornError as error:
            if isinstance(error, _NotSaved) and self.stop_requested.is_set():
                result = {"cause": self._said(_short(str(error)))}
                return protocol.RunnerFinished(STOPPED, checkpoint=self.checkpoint, result=result)
            return protocol.RunnerFinished(FAILED, self._failure(error), checkpoint=self.checkpoint)
        except BaseException as error:  # the top of this process: from the user's file, or a bug
            return protocol.RunnerFinished(
                FAILED, self._unexpected(error), checkpoint=self.checkpoint
            )
        finally:
            self._has_run.set()

    def _failure(self, error: HornError) -> HostFailure:
        on_cluster = self.on_cluster
        is_repairable = on_cluster is not None and on_cluster.is_repairable
        if self._is_in_rendezvous and isinstance(error, ClusterError):
            is_repairable = True  # none of the job's code has run: on other hosts it may
        host = self.assignment.host
        ranks = {name: allocation.ranks for name, allocation in self.assignment.allocations.items()}
        text = f"{self._line(error, called=True)}{error}{_of_package(error)}"
        return HostFailure(
            self._said(_short(text) + self.from_before),
            error.exit_code,
            is_secondary=isinstance(error, MemberLost) and not isinstance(error, PeerUnreachable),
            # A model that cannot be written would have to be computed again for nothing.
            is_final=not is_repairable or isinstance(error, ModelError),
            hosts=blamed(error, host, ranks),
            details=wire_text(str(getattr(error, "details", "")), MAX_TEXT),
            kept=self.kept,
        )

    def _said(self, text: str) -> str:
        """A failure in words, with the worker where there are several."""
        text = wire_text(text, 3 * MAX_TEXT)  # a line of the user's, an error, what became of it
        return text if self.n_hosts == 1 else f"{text}\n(said by worker {self.assignment.host})"

    def _unexpected(self, error: BaseException) -> HostFailure:
        import traceback

        text = "".join(traceback.format_exception(error))
        is_written = write_last(text)
        place = self._line(error, called=isinstance(error, OwnLines))
        kind = _short(f"{described(error)}{_of_package(error)}")
        if not is_written:
            kind += f"\n{CLOSED}"
        if isinstance(error, MemoryError):
            said = limits.out_of_memory(error, is_ours=not place)
            return HostFailure(self._said(f"{place}{_short(said)}"), is_final=True)
        if not place and (few := limits.too_few_processes(error)):
            return HostFailure(self._said(f"{kind}: {few}"))
        if not place:
            is_theirs = isinstance(error, SystemExit) or not is_written
            code = 1 if is_theirs else 70
            details = wire_text(text[-MAX_TEXT:], MAX_TEXT)
            return HostFailure(self._said(kind), code, is_final=True, details=details)
        return HostFailure(self._said(f"{place}{kind}"), is_final=True)

    def _line(self, error: BaseException, called: bool) -> str:
        """The user's line of an error, as a line; "" without one, or if its text has one."""
        found = None if getattr(error, "file", "") else line_of(error, called)
        if found is None:
            return ""
        file, number, line = found
        return f"{file.removeprefix(self.assignment.work + '/')}:{number}  {_short(line)}\n"

    def _run(self) -> protocol.RunnerFinished:
        mine, submission = self.assignment, self.submission
        deadline = Deadline(submission.timeout_s, end=self._end)
        with ExitStack() as stack:
            allocation = mine.allocations[mine.host]
            topology = self.topology
            names = {rank: topology.short_name(rank) for rank in allocation.ranks}
            threads = int(submission.options.get("threads") or mine.threads)
            standby = [s for s in self.standby if s.child.process.poll() is None]
            if threads != mine.threads or len(standby) < len(self.standby):
                standby = drop(self.standby)
            output_relay = OutputRelay(Path(mine.logs), names, LOG_BYTES, standby)
            stack.callback(output_relay.wait)
            children = [spare.child for spare in standby]
            pool = TaskPool(
                allocation.ranks, threads, mine.job, output_relay.outputs, children, mine.key,
                mine.credential,
            )  # fmt: skip
            stack.callback(pool.stop)
            threading.Thread(target=self._watch, args=(pool,), name="horn-end", daemon=True).start()
            host_link = None if self.n_hosts == 1 else self._host_link(stack)
            with interrupting(deadline, LOADING, 0.0):
                job, strategy = self._load()
            if host_link is not None and host_link.number != PRIMARY:
                return self._attend(pool, host_link, job, strategy, threads)
            self.on_cluster = on_cluster = self._on_cluster(pool, host_link, job, strategy, threads)
            try:
                run = self._conduct(on_cluster, job, strategy, deadline)
            except HornError as error:
                self._keep_from_before(error)
                raise
            if self.is_over.is_set():
                return protocol.RunnerFinished(GONE)
            if not self._keep(run.model, Path(mine.keep) / MODEL):
                return protocol.RunnerFinished(GONE)
            self.progress.end()  # for which there is room by now
            result = plain(run.as_dict())  # the model is a file
            result["seconds"] = _seconds(run)
            result["history"] = _last_rows(result["history"])
            result["counters"] = _fitting(result["counters"], MAX_COUNTERS_BYTES)
            return protocol.RunnerFinished(FINISHED, result=result, checkpoint=self.checkpoint)

    def _keep(self, model: Model, path: Path) -> bool:
        """Write the model once there is room, as it would be lost; False if the job is to end.
        Raises _NotSaved: there is none, or the job is to stop.
        """
        ends = time.monotonic() + ROOM_S
        is_said = False
        while True:
            is_last = self.stop_requested.is_set() or time.monotonic() >= ends
            try:
                write(model, path, keeps=is_last)  # elsewhere, once: each try would fill that, too
                return True
            except ModelError as error:
                if error.__cause__ is None:  # it is not the disk's fault
                    raise
                if is_last:
                    raise _NotSaved(f"on worker {self.assignment.host}: {error}") from error
                if not is_said:
                    logger.warning(
                        "model waits to be written, for %g s at most: make room reason=%s",
                        ROOM_S, error,
                    )  # fmt: skip
                    host = self.assignment.host
                    self.progress.waits(
                        f"waits, for {ROOM_S:g} s at most, to write its model on {host}; make room "
                        f"there: {error}"
                    )
                is_said = True
            if self.is_over.wait(ROOM_LOOK_S) and not self.stop_requested.is_set():
                return False

    def _keep_from_before(self, error: HornError) -> None:
        """Keep the model from before an error that ended training, which is what is told."""
        if isinstance(error, CallbackError) and error.run is not None:
            error.model = error.run.model
            error.iteration = error.model.facts["iteration"]  # the best one, or the last
        if error.model is None:
            return
        try:
            if not self._keep(error.model, Path(self.assignment.keep) / MODEL):
                return
            self.kept, how = error.iteration, f"is kept (horn fetch {self.assignment.job} --all)"
        except ModelError as failure:
            how = f"could not be kept: {failure}"
        n = error.iteration
        self.from_before = f"\nThe model after {n} update{'s' * (n != 1)} {how}."

    def _watch(self, pool: TaskPool) -> None:
        """End the tasks when the agent says so; the run then ends by itself."""
        self.is_over.wait()
        pool.kill()
        if not self._has_run.wait(LEAVE_S):  # tasks of Downpour that were killed are started again
            self.say(self.told_to_end())
            os._exit(0)

    def told_to_end(self) -> protocol.RunnerFinished:
        """The final message of a runner that the agent ended."""
        is_stopped = self.stop_requested.is_set() and not self.saves  # else it has not saved
        return protocol.RunnerFinished(STOPPED if is_stopped else GONE, checkpoint=self.checkpoint)

    def _load(self) -> tuple[Job, Strategy]:
        submission = self.submission
        found = targets.load(submission.target, submission.arguments)
        pairs = tuple(f"{key}={value}" for key, value in submission.settings)
        strategy, others = settings_.strategy(submission.strategy, pairs)
        job = settings_.apply(found.job, others)
        if submission.seed is not None:
            job = job.with_settings(network=job.network.rebuilt(seed=submission.seed))
        if not job.name:
            job = job.with_settings(name=submission.name)
        return job, strategy

    def _described(self, job: Job, strategy: Strategy) -> dict[str, Any]:
        """The job as this host has loaded it, but for its folder, for comparison with others."""
        said = identity(job, strategy.resumes_as(self.topology), strategy)
        said |= {"epochs": job.epochs, "iterations": job.iterations}
        folder = msgspec.json.encode(self.assignment.work).strip(b'"')
        found: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(said).replace(folder, b"FOLDER")
        )
        return found

    def _compare(self, theirs: Mapping[str, Any], mine: Mapping[str, Any], first: str) -> None:
        """Check that this host has loaded the job that the first has. Raises JobError if not."""
        found = differences(theirs, mine)
        if not found:
            return
        assert self.on_cluster is not None
        self.on_cluster.is_repairable = False  # it would load the same again
        raise JobError(
            f"worker {self.assignment.host} has loaded another job than worker {first}: of the one "
            f"on {first} {in_words(found)}. Every worker runs the job's file: "
            f"give random numbers a seed, and see that the files that it reads are the same on all"
        )

    def _on_cluster(
        self, pool: TaskPool, host_link: HostLink | None, job: Job, strategy: Strategy, threads: int
    ) -> JobAttempt:
        mine = self.assignment
        pools: TaskPool | RemoteTaskPool = pool
        if host_link is not None:
            elsewhere = {
                number: mine.allocations[name].ranks
                for number, name in enumerate(host_link.names)
                if number != PRIMARY
            }
            pools = RemoteTaskPool(pool, host_link, elsewhere, self._described(job, strategy))
        return JobAttempt(
            mine.zookeeper, mine.job, mine.attempt * REPAIRS, pools, self._url(), threads,
            self.stop_requested, self.is_over, self._saved,
            groups=self._allocated(), changes=self.changes,
            on_left=lambda group: self.say(protocol.GroupLeft(group)),
            on_unsaved=lambda reason: self.say(protocol.CheckpointFailed(reason[:MAX_UNSAVED])),
        )  # fmt: skip

    def _allocated(self) -> tuple[int, ...] | None:
        """The present groups, leaving ones included; None for all."""
        mine = self.assignment
        if not mine.groups or not self.submission.servers:
            return None
        self.changes.put(ScaleRequest(mine.groups, _hosts(mine.allocations)))
        ranks = (rank for allocation in mine.allocations.values() for rank in allocation.ranks)
        topology = self.topology
        return tuple(sorted({topology.group(r) for r in ranks if not topology.is_server(r)}))

    def _url(self) -> str:
        if self.n_hosts > 1:
            return f"{self._transport()}://{self._address()}:0"
        return transport.load(self._transport()).default_url

    def _address(self) -> str:
        return bracketed(self.assignment.allocations[self.assignment.host].address)

    def _transport(self) -> str:
        """The transport: as submitted, if all tasks are here."""
        if self.n_hosts > 1:
            return transport.across_hosts()
        return str(self.submission.options.get("transport", defaults.TRANSPORT))

    def _saved(self, iteration: int) -> None:
        self.checkpoint = iteration
        self.say(protocol.CheckpointComplete(iteration))

    def _end(self, text: str) -> None:
        """End this process, and its tasks, which end with it: its main thread does not."""
        failure = HostFailure(self._said(_short(text)), Timeout.exit_code, is_final=True)
        self.say(protocol.RunnerFinished(FAILED, failure, checkpoint=self.checkpoint))
        write_last()
        os._exit(0)

    def _conduct(
        self, on_cluster: JobAttempt, job: Job, strategy: Strategy, deadline: Deadline
    ) -> Run:
        mine, submission = self.assignment, self.submission
        options = submission.options
        pins = {k[4:]: str(v) for k, v in options.items() if k.startswith("pin.")}
        saves = self.saves
        lost = unkept(mine.allocations, submission.servers)
        if lost and not options.get("guests"):
            self.progress.note(lost)
        seconds = submission.checkpoint_s
        if seconds is None and submission.checkpoint_every is None:
            seconds = CHECKPOINT_S
        guests = bool(options.get("guests", False))
        settings = RunSettings(
            groups=self.n_groups,
            tasks=submission.tasks,
            servers=0 if guests else submission.servers or None,
            strategy=strategy,
            backend=str(options.get("backend", defaults.BACKEND)),
            threads=on_cluster.threads,
            progress=self.progress,
            timeout=submission.timeout_s,
            barrier=str(options.get("barrier", defaults.BARRIER)),
            transport=self._transport(),
            pins=pins or None,
            trace=Path(mine.keep) / TRACE if options.get("trace") else None,
            superstep_timeout=float(
                options.get("superstep_timeout_s") or defaults.SUPERSTEP_TIMEOUT_S
            ),
            start_timeout=self.start_s,
            checkpoints=Path(mine.keep) / CHECKPOINTS if self.lasts else None,
            checkpoint_every=submission.checkpoint_every if saves else None,
            checkpoint_seconds=seconds if saves else None,
            resume=self._begin(),
            changed=mine.changed and self.lasts,
            max_restarts=submission.max_restarts if submission.servers else 0,
        )
        return conduct(job, settings, on_cluster, deadline=deadline)

    def _begin(self) -> bool | Path:
        """Whether to resume, or the checkpoint to resume from."""
        at = self.assignment.begin
        if at < 0 or not self.saves:
            return self.lasts
        return Checkpoints(Path(self.assignment.keep) / CHECKPOINTS).open(at, verify=False).path

    # several hosts

    def _host_link(self, stack: ExitStack) -> HostLink:
        """Connect to the other hosts' job runners, found through ZooKeeper."""
        mine = self.assignment
        names = sorted(mine.allocations, key=lambda name: min(mine.allocations[name].ranks))
        ranks = {name: tuple(mine.allocations[name].ranks) for name in names}
        place = Identity(
            names.index(mine.host), len(names), f"{mine.job}/runners", mine.attempt, mine.key,
            lambda number: (f"worker {names[number]}", ranks[names[number]]),
        )  # fmt: skip
        self._is_in_rendezvous = True
        host_link = HostLink(f"tcp://{self._address()}:0", place, names)
        stack.callback(host_link.close)
        coord = stack.enter_context(Session(mine.zookeeper, credential=mine.credential))
        here = Membership(coord, coord.paths.runners(mine.job))
        stack.callback(here.close)
        here.join(mine.host, host_link.endpoint, info={"attempt": mine.attempt}, replace=True)
        try:
            found = here.wait_for(
                names, self.start_s, lambda m: int(m.info["attempt"]) >= mine.attempt
            )
        except BarrierTimeout as error:
            absent, arrived = (
                tuple(f"worker {name}" for name in some) for some in (error.absent, error.arrived)
            )
            lost = tuple(rank for name in error.absent for rank in ranks[name])
            raise BarrierTimeout(MEETING, absent, arrived, self.start_s, LATE, lost) from error
        try:
            host_link.connect([found[name].endpoint for name in names], self.start_s)
        except BarrierTimeout as error:
            raise BarrierTimeout(
                MEETING, error.absent, error.arrived, error.timeout_s, LATE, error.absent_ranks
            ) from error
        self._is_in_rendezvous = False
        return host_link

    def _attend(
        self, pool: TaskPool, host_link: HostLink, job: Job, strategy: Strategy, threads: int
    ) -> protocol.RunnerFinished:
        mine, described = self.assignment, self._described(job, strategy)
        job = strategy.prepared(job, self.topology)
        folder = str((Path(mine.keep) / CHECKPOINTS).absolute())

        def change(run: RunSpec) -> RunSpec:
            here = Path(folder) / Path(run.resume).name
            return msgspec.structs.replace(
                run,
                url=self._url(),
                threads=threads,
                begun=time.monotonic(),
                checkpoints=folder if run.checkpoints else "",
                resume=str(here) if run.resume else "",
                journals=str(Path(folder) / Path(run.journals).name) if run.journals else "",
            )

        self.on_cluster = JobAttempt("", "", 0, pool, "", 1, is_repairable=True)
        is_done = attend(
            pool, host_link, job, draft(job, strategy), change,
            lambda theirs: self._compare(theirs, described, host_link.names[PRIMARY]), self.is_over,
            lambda: self.say(protocol.TasksRunning()),
        )  # fmt: skip
        return protocol.RunnerFinished(FINISHED if is_done else GONE)


class _NotSaved(ModelError):
    """The model of a job that has been computed is not written: nothing of the job is wrong."""

    exit_code = 1


def _short(text: str) -> str:
    """The part of an error's text that fits into a report, which is a node of ZooKeeper."""
    n_more = len(text) - MAX_TEXT
    return text if n_more <= 0 else f"{text[:MAX_TEXT]} ... and {n_more:,} characters more"


def _seconds(run: Run) -> float:
    """The seconds of a job with its earlier attempts, which the history's count: the run is this
    attempt alone.
    """
    last = run.history[-1]["seconds"] if run.history else None
    return round(max(run.seconds, last or 0.0), 3)


def _last_rows(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last rows that fit into a result, a node of ZooKeeper: metrics may be many."""
    return _fitting(history[: -MAX_ROWS - 1 : -1], MAX_ROWS_BYTES)[::-1]


def _fitting(rows: Sequence[Mapping[str, Any]], left: int) -> list[Mapping[str, Any]]:
    """The first rows, as many as fit into ``left`` bytes."""
    found = []
    for row in rows:
        left -= len(msgspec.json.encode(row)) + 1
        if left < 0:
            break
        found.append(row)
    return found


def _of_package(error: BaseException) -> str:
    """For an error about a missing file: a hint how files come to a job; else ""."""
    if not isinstance(error, (NotFound, FileNotFoundError)):
        return ""
    name = error.filename if isinstance(error, FileNotFoundError) else str(error)
    if os.path.isabs(str(name)):
        return ""
    return (
        ". A job's file comes to the workers with what it imports and with no other files: send "
        "its folder with --working-dir DIR, or give a path that every worker has"
    )


def _hosts(allocations: Mapping[str, Allocation]) -> dict[int, str]:
    """Host names by rank."""
    return {rank: name for name, allocation in allocations.items() for rank in allocation.ranks}


def main() -> None:
    """Run one job runner: wait for an assignment, run it, report its end."""
    gc.freeze()  # imported modules stay; collecting was put off (runners.py)
    gc.enable()
    fd, parent = map(int, sys.argv[1:3])
    waits = msgspec.json.decode(sys.argv[4], type=protocol.StandbySize)
    limits.apply(waits.limits, keep=[fd], parent=parent)  # also of the tasks that wait
    os.set_inheritable(fd, False)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = protocol.RunnerConnection(socket.socket(fileno=fd))
    standby = start_standby(waits.n_tasks, waits.threads)
    line.send(protocol.RunnerReady())
    assignment: protocol.Assignment | None = None
    waiting: list[protocol.RunnerMessage] = []
    while assignment is None:
        words = line.read()
        if words is None:
            os._exit(0)
        for word in words:
            if isinstance(word, protocol.Assignment):
                assignment = word
            elif isinstance(word, protocol.AddStandby):
                standby += start_standby(word.n_tasks, waits.threads)
            else:
                waiting.append(word)
    logging.basicConfig(
        level=(os.environ.get("HORN_LOG_LEVEL") or "WARNING").upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    os.chdir(assignment.work)
    sys.path.insert(0, assignment.work)
    os.environ["HORN_JOB_ID"] = assignment.job
    os.environ[callbacks.FOLDER] = str(Path(assignment.keep).absolute() / FILES)
    runner = JobRunner(line, assignment, standby)
    threading.Thread(target=_listen, args=(line, runner, waiting), daemon=True).start()
    over = runner.run()
    if runner.is_over.is_set() and over.phase in (FAILED, GONE) and not _is_own(over):
        over = runner.told_to_end()
    runner.say(over)
    write_last()
    os._exit(0)


def _is_own(over: protocol.RunnerFinished) -> bool:
    """Whether a runner failed by itself, and not because it was told to end."""
    return over.failure is not None and over.failure.is_final and not over.failure.is_secondary


def _listen(
    line: protocol.RunnerConnection, runner: JobRunner, first: Sequence[protocol.RunnerMessage]
) -> None:
    """Handle the agent's messages while the job runs. The tasks, which end with this process, have
    ended before an agent that stands still loses its place: it cannot end them itself.
    """
    words: Sequence[protocol.RunnerMessage] | None = first
    until: float | None = None
    while words is not None:
        for word in words:
            if isinstance(word, protocol.EndJob):
                runner.is_over.set()
            elif isinstance(word, protocol.ChangeGroups):
                runner.changes.put(ScaleRequest(word.groups, _hosts(word.allocations)))
            elif isinstance(word, protocol.AgentLease):
                until = word.until
            elif isinstance(word, protocol.StopJob):
                runner.stop_requested.set()
                if not runner.saves:  # then there is nothing to wait for
                    runner.is_over.set()
            else:
                raise ProtocolError(f"the agent says {type(word).__name__}")
        if not line.wait(until):
            os._exit(protocol.CUT_OFF)  # without a word: the agent takes none from the pipe
        words = line.read()
    os._exit(1)
