"""An agent's side of job runners, one per job: the process, and a ``JobRun`` for each attempt.

All calls but ``kill_runner`` and ``extend`` come from one thread of the agent: a job runner ends
with it (PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from horn.cluster import runner_protocol as protocol
from horn.cluster.master import (
    END,
    ENDED_PHASES,
    FAILED,
    GONE,
    RUN,
    RUNNING,
    STARTING,
    STOP,
    STOPPED,
    HostFailure,
    HostOrder,
    HostReport,
    JobRecord,
)
from horn.cluster.store import LogFile
from horn.errors import JobError, ProtocolError
from horn.executor import preload
from horn.executor.processes import paths_for_child, program
from horn.patience import Patience
from horn.process.exits import how_it_ended
from horn.process.limits import environment, too_few_processes
from horn.process_stat import SESSION, STATE, is_stopped, process_stat

logger = logging.getLogger(__name__)

END_S = 5.0  # for a job runner to end its tasks once it is told
LOOK_S = 1.0  # between two checks whether a job runner is stopped
LAST_S = 5.0  # for it to exit after its final message
SILENT = (
    "First failure: the tasks of a host were ended: horn worker there stood still (SIGSTOP, a "
    "debugger, or no processor for it) for nearly as long as its session with ZooKeeper lasts, "
    "after which others get their places"
)
IMPORTS = "from horn.cluster.job_runner import main; "


class RunnerProcess:
    """The process of a job runner: its line, its output, its end. more : for its environment."""

    def __init__(self, name: str, waits: protocol.StandbySize, more: Mapping[str, str]) -> None:
        self.line, theirs = protocol.RunnerConnection.pair()
        self.is_open = True
        own = {"HORN_TASK_PATH": paths_for_child(), "PYTHONUNBUFFERED": "1"}
        env = environment({**more, **own})
        words = [str(theirs.fileno()), str(os.getpid()), name, msgspec.json.encode(waits).decode()]
        # An agent does not make the code of imports, which takes 31 MB; its first job runner does.
        code = preload.kept()
        given = [theirs.fileno()] if code is None else [theirs.fileno(), code]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program(2, IMPORTS, "main()", code), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=given,
                start_new_session=True,
            )
        except OSError as error:
            self.line.close()
            why = too_few_processes(error) or error
            raise JobError(f"no process can be started: {why}") from error
        finally:
            theirs.sock.close()
            if code is not None:
                os.close(code)
        assert self.process.stdout is not None
        self.output: int | None = self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.log: LogFile | None = None
        self.unlogged = b""  # output, while there is no log

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process."""
        return is_stopped(self.process.pid)

    def send(self, word: protocol.RunnerMessage) -> None:
        """Send a message without waiting: the process may be stopped, and an assignment large."""
        with contextlib.suppress(OSError):  # it has ended: its exit will be noticed
            self.line.send_soon(word)

    def extend(self, until: float) -> None:
        """Send the agent's lease, from any thread, unless the process is behind: it may be stopped,
        and leases would gather.
        """
        if not self.line.is_behind:
            self.send(protocol.AgentLease(until))

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.line.flush()

    def log_to(self, path: Path) -> None:
        self.log = LogFile(path)
        self.log.write(self.unlogged)
        self.unlogged = b""

    def read_output(self) -> None:
        """Copy the output into the log, up to its end."""
        while self.output is not None:
            try:
                data = os.read(self.output, 65536)
            except BlockingIOError:
                return
            if not data:
                self.output = None
            elif self.log is not None:
                self.log.write(data)
            else:
                self.unlogged = (self.unlogged + data)[-65536:]

    def kill(self) -> None:
        """Kill the process, its tasks and all of its session."""
        end_session(self.process.pid)

    def reap(self) -> tuple[int, dict[str, float]]:
        """Collect an ended process: its exit code, and what it used, as ``used_by`` has it."""
        self.kill()  # its leftovers; its pid cannot be another's before it is waited for
        self.read_output()
        code, used = used_by(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.line.close()
        os.close(self.pidfd)
        if self.log is not None:
            self.log.close()
        return code, used


def used_by(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, float]]:
    """Wait for a process: its exit code, and the time that it and the children that it waited for
    used, with the peak of the one of them that held most (a run's counters have each task's).

    Not RUSAGE_CHILDREN, whose peak is that of any child that this process ever had. A child begins
    as a copy of this process: its peak is never below what is held here.
    """
    if process.returncode is not None:  # somebody has waited for it
        return process.returncode, {}
    _, status, spent = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, {
        "user_s": round(spent.ru_utime, 3),
        "system_s": round(spent.ru_stime, 3),
        "largest_process_bytes": spent.ru_maxrss * 1024,
    }


def end_session(leader: int) -> None:
    """Kill every process of a session."""
    for _ in range(20):  # a process killed while it forks leaves one more
        found = [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _session(pid) == leader
        ]  # fmt: skip
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def _session(pid: int) -> int:
    """The session of a process; 0 if it has ended."""
    fields = process_stat(pid)
    return 0 if not fields or fields[STATE] in (b"Z", b"X") else int(fields[SESSION])


class JobRun:
    """An attempt of a job on this host. ``report`` and ``progress`` are for ZooKeeper, which had
    progress last at ``written_s``.
    """

    def __init__(self, job: str, order: HostOrder, member: int) -> None:
        self.job, self.order, self.attempt = job, order, order.attempt
        self.n_scaled = order.n_scaled  # of the groups that its job runner has, or is to have
        self._scaled: JobRecord | None = None
        self.report = HostReport(STARTING, member=member)
        self.is_told = False
        self.progress: dict[str, Any] | None = None
        self.written_s = 0.0
        self.runner: RunnerProcess | None = None
        self.used: dict[str, float] = {}
        self.aim = RUN
        self._deadline: float | None = None
        self._stopped: Patience | None = None  # with a stopped job runner
        self._may_stop_s = 60.0
        self._last: protocol.RunnerFinished | None = None
        self._is_killed = False  # by this agent, which knows why

    @property
    def is_over(self) -> bool:
        """Whether the last report is made, and no process is left."""
        return self.report.phase in ENDED_PHASES and self.runner is None

    def begin(self, runner: RunnerProcess, assignment: protocol.Assignment) -> None:
        self.runner = runner
        options = assignment.submission.get("options") or {}
        self._may_stop_s = float(options.get("start_timeout_s") or self._may_stop_s)
        runner.log_to(Path(assignment.logs) / f"{assignment.host}.log")
        runner.send(assignment)
        if self._scaled is not None and self._scaled.n_scaled > assignment.n_scaled:
            self._regroup(self._scaled)
        self.n_scaled = max(self.n_scaled, assignment.n_scaled)

    def extend(self, until: float) -> None:
        """Let the job runner live until a time of the monotonic clock, from any thread."""
        runner = self.runner  # read once: the agent's thread takes it away as it ends
        if runner is not None:
            runner.extend(until)

    def scale(self, record: JobRecord) -> None:
        """Change the groups to those of the job's record."""
        self.n_scaled, self._scaled = record.n_scaled, record
        if self.runner is not None:
            self._regroup(record)

    def _regroup(self, record: JobRecord) -> None:
        assert self.runner is not None
        self.runner.send(protocol.ChangeGroups(record.groups, record.allocations))

    def aim_at(self, aim: str) -> None:
        """Stop or end the job runner, if it has not ended."""
        if self.is_over or self.aim == aim or self.aim == END:
            return
        self.aim = aim
        if self.runner is None:  # still being prepared
            self.say(GONE if aim == END else STOPPED)
            return
        if aim == STOP:  # it saves first, which takes as long as its iterations do
            self.runner.send(protocol.StopJob())
            return
        self.runner.send(protocol.EndJob())
        self._deadline = time.monotonic() + END_S

    def listen(self, runner: RunnerProcess, *, waits: bool = True) -> None:
        """Handle messages that have come. The user's code is in that process, too: a message that
        is not a job runner's ends this job and no other.
        """
        try:
            words = runner.line.read(waits=waits)
            for word in words or ():
                self.hear(word)
        except ProtocolError as error:
            words = None
            self.kill(
                f"First failure: the job's own process, which loads its file, was ended: {error}. "
                f"A job's file is not to write to descriptors that it has not opened"
            )
        if words is None:
            runner.is_open = False

    def hear(self, word: protocol.RunnerMessage) -> None:
        match word:
            case protocol.RunnerReady():
                pass
            case protocol.TasksRunning():
                self.say(RUNNING)
            case protocol.JobProgress(progress):
                self.progress = progress
            case protocol.CheckpointComplete(iteration):
                self.say(self.report.phase, checkpoint=iteration, unsaved="")
            case protocol.CheckpointFailed(reason):
                self.say(self.report.phase, unsaved=reason)
            case protocol.GroupLeft(group):
                self.say(self.report.phase, left=(*self.report.left, group))
            case protocol.RunnerFinished() if self._is_killed:
                pass  # it reports the end of its tasks, whose cause is known here
            case protocol.RunnerFinished():
                self._last = word
                self._deadline = time.monotonic() + LAST_S
            case _:
                raise ProtocolError(f"a job runner says {type(word).__name__}")

    def say(
        self,
        phase: str,
        *,
        checkpoint: int = -1,
        failure: HostFailure | None = None,
        result: dict[str, Any] | None = None,
        left: tuple[int, ...] = (),
        unsaved: str | None = None,
    ) -> None:
        old = self.report
        if old.phase in ENDED_PHASES:
            return
        checkpoint = max(checkpoint, old.checkpoint)
        unsaved = old.unsaved if unsaved is None else unsaved
        self.report = HostReport(
            phase, old.member, checkpoint, failure, result, left or old.left, unsaved
        )
        self.is_told = False

    def replace_report(self, error: Exception) -> None:
        """End the attempt: its report cannot be written for this reason, which the next one has."""
        why = f"First failure: what the job's own process reports cannot be written: {error}"
        logger.error("report not written job=%s reason=%s", self.job, error)
        self.kill_runner(why)
        checkpoint = self.report.checkpoint
        self.report = HostReport(FAILED, self.report.member, checkpoint, HostFailure(why))
        self.is_told = False

    def tick(self, now: float) -> float | None:
        """Act on deadlines; returns when to call again."""
        if self.runner is None:
            return None
        self._look_at(self.runner)
        if self._deadline is None:
            return now + LOOK_S
        if now >= self._deadline:
            self._deadline = None
            logger.warning(
                "job runner killed job=%s attempt=%d aim=%s", self.job, self.attempt, self.aim
            )
            self.runner.kill()
            return None
        return self._deadline

    def _look_at(self, runner: RunnerProcess) -> None:
        """End a job runner that stays stopped, since it reports nothing of its tasks."""
        if not runner.is_stopped:
            self._stopped = None
        elif self._stopped is None:
            self._stopped = Patience(self._may_stop_s)
        elif self._stopped.left_s() <= 0 and self._last is None:
            self.kill(
                f"the job's own process on this host (pid {runner.process.pid}) was stopped "
                f"(SIGSTOP, or a debugger) for {self._may_stop_s:g} s; it was ended. "
                f"--start-timeout is how long it may be"
            )

    def ended(self) -> None:
        """Handle the end of the job runner's process."""
        runner, self.runner = self.runner, None
        assert runner is not None
        while runner.is_open:  # not to its end: a forked process may hold the other end open
            self.listen(runner, waits=False)
        code, self.used = runner.reap()
        last = self._last
        if last is not None:
            self.say(
                last.phase, checkpoint=last.checkpoint, failure=last.failure, result=last.result
            )
        elif self.aim == END:
            self.say(GONE)
        elif code == protocol.CUT_OFF:
            self.say(FAILED, failure=HostFailure(SILENT))
        else:
            self.say(FAILED, failure=HostFailure(_died(code)))

    def kill(self, why: str, lacking: tuple[int, ...] = ()) -> None:
        """End the attempt at once; ``why`` is the failure. lacking : as HostFailure has it."""
        if not self.kill_runner(why):
            self.say(FAILED, failure=HostFailure(why, lacking=lacking))

    def kill_runner(self, why: str) -> bool:
        """Kill the job runner for the reason ``why``, from any thread; False if there is none."""
        runner = self.runner  # read once: the agent's thread takes it away as it ends
        if runner is None:
            return False
        if not self._is_killed:
            self._is_killed = True
            self._last = protocol.RunnerFinished(FAILED, HostFailure(why))
        runner.kill()
        return True


def _died(code: int) -> str:
    how, hint = how_it_ended(code)
    return f"First failure: the job's own process, which loads its file, {how}. {hint}".rstrip()
