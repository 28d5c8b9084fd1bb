"""horn submit to a cluster: hand the job in, show how far it is, fetch its model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn.cli import _cluster, _screen
from horn.errors import ClusterError, JobError, NotFound

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient, JobStatus
    from horn.cluster.submission import Submission
    from horn.training.progress import Progress

LOOK_S = 0.1  # between two looks at the job
AGAIN_S = 60.0  # for which ZooKeeper may be gone while a job is watched


@dataclass(frozen=True)
class SubmitOptions:
    """The arguments of horn submit."""

    target: str
    arguments: tuple[str, ...]
    settings: tuple[str, ...]
    seed: int | None
    backend: str
    pins: tuple[str, ...]
    superstep_timeout: str
    timeout: str | None
    name: str | None
    working_dir: str | None
    options: Mapping[str, Any]


def submit(
    wanted: SubmitOptions,
    zk_hosts: str,
    key_file: str | None,
    output: str | None,
    *,
    detach: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Submit, and unless detached attach; the exit code."""
    from horn.cluster import packing

    package = packing.pack(wanted.target, wanted.working_dir)
    stem = _stem(package.target)
    path = Path(output or f"{stem}.horn")
    is_file = path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()
    if not (detach or is_file):
        raise JobError(f"{path} cannot be written; give another --output FILE")
    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        job = cluster.submit(described(wanted, package.target, package.digest), package)
        if detach:
            click.echo(job)
            if not quiet:
                _screen.say(
                    f"Next:  horn status {job} --wait   horn logs -f {job}   horn fetch {job}"
                )
            return 0
        if not quiet:
            _screen.say(f"Job        {job}")
        trace = wanted.options["trace"]
        return attach(cluster, job, path, as_json=as_json, quiet=quiet, trace=trace)


def described(wanted: SubmitOptions, target: str, digest: str) -> Submission:
    """What a cluster is to run. target : in the package of this digest."""
    from horn import settings as settings_
    from horn.cluster.client import user
    from horn.cluster.submission import Submission
    from horn.cluster.versions import versions

    options = wanted.options
    if options["checkpoints"] is not None:
        raise JobError("--checkpoints is for this machine; a cluster keeps what it needs itself")
    if options.get("resume") is not None:
        raise JobError("--resume is for this machine; on a cluster:  horn resume JOB")
    if options.get("changed"):
        raise JobError("--changed is for this machine; on a cluster:  horn resume JOB --changed")
    strategy, servers = str(options["strategy"]), options["servers"]
    if strategy != "allreduce" or any(s.startswith("strategy.") for s in wanted.settings):
        made, _ = settings_.strategy(strategy, wanted.settings)
        n_servers = servers or made.default_servers
    else:
        n_servers = servers or 0
    text = options["checkpoint_every"]
    is_count = text is not None and text.isdecimal()
    plain: dict[str, bool | int | float | str | None] = {
        **{name: str(value) for name, value in versions().items()},
        "backend": wanted.backend,
        "barrier": str(options["barrier"]),
        "transport": str(options["transport"]),
        "superstep_timeout_s": _screen.duration(wanted.superstep_timeout),
        "start_timeout_s": _screen.duration(str(options["start_timeout"])),
    }
    if options["trace"] is not None:
        plain["trace"] = True
    if options.get("threads"):
        plain["threads"] = int(options["threads"])
    if n_servers and servers == 0:
        plain["guests"] = True
    plain |= {f"pin.{layer}": where for layer, where in _screen.pins(wanted.pins).items()}
    pairs = []
    for setting in wanted.settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise JobError(f"--set {setting}: write KEY=VALUE")
        pairs.append((key, value))
    return Submission(
        job="new",
        name=wanted.name or _stem(target),
        target=target,
        package=digest,
        arguments=wanted.arguments,
        groups=options["groups"],
        tasks=options["tasks"],
        servers=n_servers,
        strategy=strategy,
        settings=tuple(pairs),
        seed=wanted.seed,
        checkpoint_every=int(text) if is_count else None,
        checkpoint_s=None if text is None or is_count else _screen.duration(text),
        max_restarts=options["max_restarts"],
        timeout_s=None if wanted.timeout is None else _screen.duration(wanted.timeout),
        options=plain,
        user=user(),
    )


def _stem(target: str) -> str:
    place = target.rpartition(":")[0] if target.rpartition(":")[2].isidentifier() else target
    place = place or target
    return Path(place).stem if place.endswith(".py") else place.split(".")[-1]


# Attached


@dataclass(frozen=True)
class _Length:
    """What a progress wants to know of a job."""

    n_iterations: int
    iterations_per_epoch: int
    acc_is_of: str


class JobWatcher:
    """Shows the progress of a job: rows from the log of its primary host, steps from ZooKeeper."""

    def __init__(self, cluster: ClusterClient, job: str, progress: Progress, quiet: bool) -> None:
        self.cluster, self.job, self.progress, self.quiet = cluster, job, progress, quiet
        self.is_begun = False
        self._epoch, self._at = 0, (0, -1)
        self._offsets: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}
        self._told = ""

    def look(self, cluster: ClusterClient) -> bool:
        """Show what is new, in this session; whether the job has ended."""
        from horn.coordination.jobs import ENDED

        self.cluster = cluster
        status = cluster.status(self.job)
        host = next((n for n, s in status.record.allocations.items() if 0 in s.ranks), None)
        host = host or str(status.result.get("host") or "")
        if host:
            self._rows(host)
        at = status.progress
        if self.is_begun and "iteration" in at and "loss" in at:
            key = (status.record.attempt, int(at["iteration"]))
            if key > self._at and int(at["epoch"]) > self._epoch:
                self._at = key
                speed = float(at.get("samples_per_s") or 0.0)
                self.progress.step(int(at["epoch"]), key[1], float(at["loss"]), speed)
        self._say(status)
        return status.state in ENDED

    def _say(self, status: JobStatus) -> None:
        """Show why the job waits, or its last failure."""
        text = ""
        if status.record.reason:
            text = f"{status.state.value}: {status.record.reason}"
        elif status.record.trouble and status.state.value in ("RESTARTING", "RUNNING"):
            first = status.record.trouble.splitlines()[0]
            text = f"Restarting (attempt {status.record.n_restarts + 1}): {first}"
        if text and text != self._told and not self.quiet:
            if self.is_begun:
                self.progress.note(text)
            else:
                _screen.say(text)
        self._told = text or self._told

    def _rows(self, host: str) -> None:
        from horn.cluster.store import PROGRESS

        while True:
            offset = self._offsets.get(host, 0)
            try:
                _, data = self.cluster.read(self.job, host, PROGRESS, offset)
            except (NotFound, ClusterError):
                return  # not yet, or not any more
            if not data:
                return
            self._offsets[host] = offset + len(data)
            whole = self._partial.get(host, b"") + data
            *lines, self._partial[host] = whole.split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

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

    def end(self) -> None:
        if self.is_begun:
            self.progress.end()
            self.is_begun = False


def attach(
    cluster: ClusterClient,
    job: str,
    path: Path,
    *,
    as_json: bool,
    quiet: bool,
    trace: str | None = None,
) -> int:
    """Show a job until it ends, fetch its model and, into a file, its trace; the exit code."""
    watch = JobWatcher(cluster, job, _screen.progress(quiet), quiet)
    try:
        until_over(cluster, job, watch.look)
    except KeyboardInterrupt:
        watch.end()
        _screen.say(f"\nDetached; the job goes on. horn logs -f {job} · horn stop {job}")
        return 130
    finally:
        watch.end()
    if trace is not None:
        _fetch_trace(watch.cluster, job, Path(trace))
    return _ended(watch.cluster, job, path, as_json=as_json, quiet=quiet)


def _fetch_trace(cluster: ClusterClient, job: str, path: Path) -> None:
    from horn.cluster.store import TRACE

    for host, sizes in cluster.files(job).items():
        if TRACE in sizes:
            path.write_bytes(cluster.read_all(job, host, TRACE))
            return
    _screen.say(f"There is no trace of {job}: it is written when a job succeeds.")


def until_over(
    cluster: ClusterClient, job: str, look: Callable[[ClusterClient], bool], pause_s: float = LOOK_S
) -> None:
    """Look again and again until the job is over, in a new session when one is lost. Raises
    ClusterError: no ZooKeeper for AGAIN_S.
    """
    failing_since: float | None = None
    while True:
        try:
            if look(cluster):
                return
            failing_since = None
        except ClusterError as error:
            now = time.monotonic()
            failing_since = failing_since or now
            if now - failing_since > AGAIN_S:
                raise ClusterError(
                    f"{error}. The job goes on without this command: horn status {job}"
                ) from error
            cluster = _again(cluster) or cluster
        else:
            time.sleep(pause_s)


def _again(cluster: ClusterClient) -> ClusterClient | None:
    """A new session in place of one that is over; None if there is none to be had now."""
    from horn.cluster.client import ClusterClient

    time.sleep(LOOK_S)
    try:
        made = ClusterClient(cluster.hosts, cluster.key)
        made.__enter__()
        click.get_current_context().call_on_close(lambda: made.__exit__())
        return made
    except ClusterError:
        return None


def _ended(cluster: ClusterClient, job: str, path: Path, *, as_json: bool, quiet: bool) -> int:
    status = cluster.status(job)
    result, state = status.result, status.state.value
    if state == "SUCCEEDED":
        cluster.fetch_model(job, path)
        if not quiet:
            if result.get("stopped_early"):
                _screen.say("Stopped early: no improvement on the validation data.")
            _screen.say(f"Saved {path} ({_screen.size(path.stat().st_size)}).")
            _screen.say(
                f"Job {job} SUCCEEDED in {float(result.get('seconds') or 0.0):.1f} s · "
                f"{result.get('iterations', 0):,} updates"
            )
    elif state == "FAILED":
        for line in _cluster.failure(job, result):
            _screen.say(line)
    elif not quiet:
        _screen.say(f"Job {job} was STOPPED. Continue: horn resume {job}")
    if as_json:
        found = {
            "schema": "horn.run/1", "job": job, "state": state,
            "model": str(path) if state == "SUCCEEDED" else None,
            **{k: v for k, v in result.items() if k not in ("state", "code", "host")},
        }  # fmt: skip
        _screen.print_json(found)
    elif state == "SUCCEEDED":
        for where, values in dict(result.get("metrics") or {}).items():
            click.echo(f"{where} {_screen.metrics(values)}")
        if not quiet:
            _screen.say(
                f"Next:  horn show {path}   horn evaluate {path} DATA   horn predict {path} DATA"
            )
    return int(result.get("code", 1))
