"""horn submit to a cluster: submit the job, show its progress, fetch its model."""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn import quantities, settings, terminal
from horn.cli import _cluster
from horn.errors import ClusterError, JobError, NotFound, Timeout
from horn.training.interrupts import ENDING_SIGNALS, ending_of, exception_of, interrupts

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient
    from horn.cluster.job_status import JobStatus
    from horn.cluster.reconnecting import ReconnectingClient
    from horn.coordination.jobs import JobState
    from horn.training.progress import Progress

LOOK_S = 0.1  # between two looks at the job
HERE = {  # options for this machine, and what to do instead
    "checkpoints": "a cluster keeps what it needs itself",
    "resume": "on a cluster:  horn resume JOB",
    "changed": "on a cluster:  horn resume JOB --changed",
    "profile": "add --local",
}


def submit(
    target: str, options: Mapping[str, Any], zk_hosts: str, key_file: str | None,
    output: str | None, *, detach: bool, as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Submit with the arguments of horn submit, and attach unless detached; the exit code."""
    from horn.cluster import packing
    from horn.cluster.handles import Cluster
    from horn.modelfile import check_writable

    for name, instead in HERE.items():
        if options[name] not in (None, False):  # --resume alone is ""
            raise JobError(f"--{name} is for this machine; {instead}")
    path, trace = Path(output or f"{packing.stem(target)}.horn"), options["trace"]
    if detach and output is not None:
        raise JobError(
            f"--output {output} is for who waits for the job: without --detach, or later with  "
            f"horn fetch JOB -o {shlex.quote(output)}"
        )
    for written in () if detach else (path,) if trace is None else (path, trace):
        check_writable(written)
    with Cluster(zk_hosts, key_file) as cluster:
        asked = _as_asked(options)
        submitted = cluster.submit(target, trace=trace is not None, **asked)
        job = submitted.id
        if not quiet and packing.has_report(target, options["working_dir"]):
            terminal.say(
                f"report(run) is not called: the file runs on the workers. In Python  "
                f'horn.Cluster(...).job("{job}").result()  is the run'
            )
        if detach:
            if as_json:
                head = {"schema": "horn.run/1", "job": job, "state": submitted.state}
                terminal.print_json({**head, "model": None})
            else:
                click.echo(job)
            if not quiet:
                terminal.say(
                    f"Next:  horn status {job} --wait   horn logs -f {job}   horn fetch {job}"
                )
                if trace is not None:
                    terminal.say(f"Its trace is trace.json of  horn fetch {job} --all")
            return 0
        if not quiet:
            terminal.say(f"Job        {job}")
        return attach(cluster.client, job, path, as_json=as_json, quiet=quiet, trace=trace,
                      limit_s=asked["timeout"])  # fmt: skip


def _as_asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of horn submit, for ``Cluster.submit``."""
    names = ("groups", "tasks", "servers", "strategy", "barrier", "transport", "backend", "seed",
             "threads", "max_restarts", "name", "working_dir")  # fmt: skip
    found = {name: options[name] for name in names}
    found["arguments"], found["pins"] = options["args"], terminal.pins(options["pins"])
    for name in ("timeout", "superstep_timeout", "start_timeout"):
        option, given = f"--{name.replace('_', '-')}", options[name]
        found[name] = None if given is None else terminal.duration(given, option)
    found |= terminal.checkpoint_every(options["checkpoint_every"])
    found["settings"] = settings.by_key(options["settings"])
    return found


# Attached


@dataclass(frozen=True)
class _Length:
    """The facts of a job that a progress display needs."""

    n_iterations: int
    iterations_per_epoch: int
    acc_is_of: str


class JobWatcher:
    """Shows the progress of a job: rows and notes from the log of its primary host, steps from
    ZooKeeper.
    limit_s : for it to begin; its own timeout counts from there.
    """

    def __init__(self, job: str, progress: Progress, quiet: bool,
                 limit_s: float | None = None) -> None:  # fmt: skip
        self.job, self.progress, self.quiet = job, progress, quiet
        self.ends = math.inf if limit_s is None else time.monotonic() + limit_s
        self.is_begun = False
        self._epoch, self._at = 0, (0, -1)
        self._offsets: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}
        self._waits = self._failed = self._host = ""
        self._noted: set[tuple[float, str]] = set()  # hosts may share a log

    def show_news(self, cluster: ClusterClient) -> bool:
        """Show the job's news, in this session; whether it has ended. Raises horn's Timeout."""
        from horn.coordination.jobs import JobState

        status = cluster.status(self.job)
        if status.state is JobState.PENDING and time.monotonic() > self.ends:
            why = f": it {status.reason}" if status.reason else ""
            cluster.stop(self.job, now=True, why=f"it did not begin within --timeout{why}")
            raise Timeout(f"job {self.job} did not begin within --timeout, and is stopped{why}")
        host = status.record.primary or str(status.result.get("host") or "")
        self._host = host or self._host
        if self._host:  # also once it has ended: the last lines say why
            self._read(cluster, self._host)
        at = status.progress
        if self.is_begun and "iteration" in at and "loss" in at:
            key = (status.record.attempt, int(at["iteration"]))
            if key > self._at and int(at["epoch"]) > self._epoch:
                self._at = key
                speed = float(at.get("samples_per_s") or 0.0)
                self.progress.step(int(at["epoch"]), key[1], float(at["loss"]), speed)
        self._say(status)
        return status.state.is_over

    def _say(self, status: JobStatus) -> None:
        """Show why the job waits, once each time it begins to, or its last failure; if quiet only
        the reason of a wait, which may last for ever.
        """
        from horn.coordination.jobs import JobState

        waits, failed = "", self._failed
        if status.standstill:
            waits = f"Job {self.job} {status.standstill}"
        elif status.reason:
            waits = f"{status.state.value}: {status.reason}"
        elif status.record.trouble and status.state in (JobState.RESTARTING, JobState.RUNNING):
            first = status.record.trouble.splitlines()[0]
            failed = f"Restarting (attempt {status.record.n_restarts + 1}): {first}"
        runs = status.state is JobState.RUNNING and not status.standstill
        is_halted = not runs or not status.record.reason
        if waits not in ("", self._waits) and (is_halted or not self.quiet):
            self._note(waits, is_needed=True)
        if failed != self._failed:
            self._note(failed)
        self._waits, self._failed = waits, failed

    def _note(self, text: str, *, is_needed: bool = False) -> None:
        """Show a line; if quiet only one that is needed."""
        if self.is_begun and not self.quiet:
            self.progress.note(text)
        elif is_needed or not self.quiet:
            terminal.say(text)

    def _read(self, cluster: ClusterClient, host: str) -> None:
        from horn.cluster import remote_files
        from horn.cluster.client import SHORT_S
        from horn.cluster.file_service import READ_BYTES
        from horn.cluster.store import PROGRESS

        data = b" " * READ_BYTES
        while len(data) == READ_BYTES:  # the lines that come meanwhile are of the next look
            offset = self._offsets.get(host, 0)
            try:
                # Of a worker that has been killed nothing comes, and the job's state is to be told.
                _, data = remote_files.read(
                    cluster, self.job, host, PROGRESS, offset, answer_s=SHORT_S
                )
            except (NotFound, ClusterError):
                return  # not yet, or not any more
            self._offsets[host] = offset + len(data)
            whole = self._partial.get(host, b"") + data
            *lines, self._partial[host] = whole.split(b"\n")
            for said in remote_files.notes(lines):
                self._hear(said)

    def _hear(self, said: Mapping[str, Any]) -> None:
        if "begin" in said:
            facts = said["begin"]
            if not self.is_begun:
                self.is_begun = True
                words = facts.get("acc_is_of", "")
                length: Any = _Length(facts["n_iterations"], facts["per_epoch"], words)
                self.progress.begin(length)
        elif "row" in said and said["row"]["epoch"] > self._epoch:
            self._epoch = said["row"]["epoch"]
            self.progress.epoch(said["row"])
        elif "note" in said and (key := (said.get("at", 0.0), said["note"])) not in self._noted:
            self._noted.add(key)
            self._note(said["note"])

    def end(self) -> None:
        if self.is_begun:
            self.progress.end()
            self.is_begun = False


def attach(
    cluster: ReconnectingClient, job: str, path: Path, *, as_json: bool, quiet: bool,
    trace: str | None = None, limit_s: float | None = None,
) -> int:  # fmt: skip
    """Show a job until it ends, fetch its model and, into a file, its trace; the exit code."""
    try:
        watch = JobWatcher(job, terminal.progress(quiet), quiet, limit_s)
        try:
            until_over(cluster, job, watch.show_news)
        finally:
            watch.end()
    except KeyboardInterrupt as error:
        ends = click.get_current_context().meta.get(_cluster.ENDED_BY)
        goes_on = f"Detached; the job goes on. horn logs -f {job} · horn stop {job}"
        terminal.say(f"\nThe job {job} ends with {ends}." if ends else f"\n{goes_on}")
        return ending_of(error)[1]
    if trace is not None:
        cluster.retry(lambda client: _fetch_trace(client, job, Path(trace)))
    return cluster.retry(lambda client: _ended(client, job, path, as_json=as_json, quiet=quiet))


def _fetch_trace(cluster: ClusterClient, job: str, path: Path) -> None:
    from horn.cluster import remote_files
    from horn.cluster.store import TRACE

    files = cluster.files(job)
    traced = [name for name in files if TRACE in files[name]]
    for host in remote_files.last_first(cluster, job, traced):
        found = remote_files.read_all(cluster, job, host, TRACE)
        try:
            path.write_bytes(found)
        except OSError as error:  # the model is still to be fetched
            terminal.say(f"{path} cannot be written ({error.strerror}): there is no trace.")
        return
    why = cluster.down(job, files) or "it is written when a job succeeds"
    terminal.say(f"There is no trace of {job}: {why}.")


def until_over(
    cluster: ReconnectingClient, job: str | None, look: Callable[[ClusterClient], bool],
    pause_s: float = LOOK_S,
) -> None:  # fmt: skip
    """Look again and again until it is over, in a new session when one is lost. Ctrl-C, SIGTERM and
    SIGHUP are exceptions after a look: it holds locks, and a finalizer may hear of them.
    """
    with interrupts(stop := threading.Event(), numbers=ENDING_SIGNALS) as heard:
        try:
            while not cluster.retry(look, stop):
                if stop.wait(pause_s):
                    break
            else:
                return
        except ClusterError as error:
            on = "" if job is None else f". The job goes on without this command: horn status {job}"
            if not heard:
                raise ClusterError(f"{error}{on}") from error
        except NotFound as error:
            if job is None:
                raise
            lost = "somebody has removed it, or ZooKeeper has lost its data"
            raise NotFound(f"{error} any more: {lost}") from error
    if heard:
        raise exception_of(heard[0])


class StandstillNotice:
    """Says of ``whom`` that it stands still for want of a worker: once each time it begins."""

    def __init__(self, whom: str) -> None:
        self.whom, self.told = whom, ""

    def look(self, cluster: ClusterClient) -> None:
        self.hear(cluster.standstill())

    def hear(self, standstill: str) -> None:
        before, self.told = self.told, standstill
        if self.told and not before:
            terminal.say(f"{self.whom} {self.told}")


def wait(
    cluster: ReconnectingClient, job: str, wanted: frozenset[JobState], timeout_s: float | None
) -> JobState:
    """Wait for one of these states, and say when nobody works on it. Raises horn's Timeout."""
    from horn.coordination.jobs import JobState

    ends, state = math.inf if timeout_s is None else time.monotonic() + timeout_s, JobState.PENDING
    notice = StandstillNotice(f"Job {job}")

    def is_there(client: ClusterClient) -> bool:
        nonlocal state
        state = client.jobs.state(job)
        if state in wanted:
            return True
        notice.look(client)
        if time.monotonic() > ends:
            why = f": it {notice.told}" if notice.told else ""
            raise Timeout(f"job {job} is {state.value} after {timeout_s:g} s{why}")
        return False

    until_over(cluster, job, is_there)
    return state


def _ended(cluster: ClusterClient, job: str, path: Path, *, as_json: bool, quiet: bool) -> int:
    from horn.cluster import remote_files
    from horn.coordination.jobs import JobState

    status = cluster.status(job)
    result, state = status.result, status.state
    ends = click.get_current_context().meta.get(_cluster.ENDED_BY, "")
    if state is JobState.SUCCEEDED:
        remote_files.fetch_model(cluster, job, path)
        if not quiet:
            if result.get("stopped_early"):
                terminal.say("Stopped early: no improvement on the validation data.")
            terminal.say(f"Saved {path} ({quantities.size(path.stat().st_size)}).")
            terminal.say(
                f"Job {job} SUCCEEDED in {float(result.get('seconds') or 0.0):.1f} s · "
                f"{result.get('iterations', 0):,} updates"
            )
    elif state is JobState.FAILED:
        for line in _cluster.failure(job, result, ends):
            terminal.say(line)
    elif not quiet or result.get("cause"):
        if result.get("cause"):  # where its model is kept
            terminal.say(str(result["cause"]))
        asked = status.submission
        has_servers = asked is not None and asked.servers > 0  # which count no checkpoints
        is_kept = status.record.checkpoint >= 0 or has_servers
        goes_on = f" {'Continue' if is_kept else 'Begin anew'}: horn resume {job}"
        terminal.say(f"Job {job} was STOPPED.{'' if ends else goes_on}")
    if as_json:
        found = {
            "schema": "horn.run/1", "job": job, "state": state.value,
            "model": str(path) if state is JobState.SUCCEEDED else None,
            **{k: v for k, v in result.items() if k not in ("state", "code", "host")},
        }  # fmt: skip
        terminal.print_json(found)
    elif state is JobState.SUCCEEDED:
        for where, values in dict(result.get("metrics") or {}).items():
            click.echo(f"{where} {terminal.metrics(values)}")
        if not quiet:
            terminal.say_next(path)
    return int(result.get("code", 1))
