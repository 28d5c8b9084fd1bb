"""horn sweep: one job with many settings, side by side; a table, and the best model."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn import defaults
from horn.cli import _cluster
from horn.cli._target import TargetCommand
from horn.errors import ClusterError, Conflict, HornError, JobError, NotFound
from horn.process.exits import how_it_ended, outlive_reader
from horn.training.interrupts import ending_of

if TYPE_CHECKING:
    import subprocess

    from horn.cluster.client import ClusterClient
    from horn.job import Job
    from horn.sweep import Combination, Sweep, Trial

LOOK_S = 0.2  # between two looks at a cluster's jobs
LEAVE_S = 10.0  # for a run that is ended to end
STATES = {0: "SUCCEEDED", 5: "STOPPED", 7: "DIVERGED", 124: "TIMEOUT", 130: "STOPPED"}
RESULT = b'{"schema": "horn.run/1"'  # how a run's result begins
SAYS = ("Error: ", "Stopped")  # how a run that ends without a result says why


@click.command(cls=TargetCommand, short_help="Train a job with many settings, and keep the best.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUES", required=True,
    help="What to try: layer1.size=50,100 or optimizer.learning_rate=0.01:0.1:log:5 (also lin). "
    "Repeat for more: every combination is a run.",
)  # fmt: skip
@click.option("-g", "--groups", default=1, type=click.IntRange(min=1), help="Of each run.")
@click.option("-n", "--tasks", default=1, type=click.IntRange(min=1), help="Of each run's group.")
@click.option("--strategy", default=defaults.STRATEGY, metavar="NAME", help="As for horn submit.")
@click.option("--slots", type=click.IntRange(min=1), show_default="the cores",
              help="How many tasks may run here at once.")  # fmt: skip
@click.option("--monitor", metavar="COLUMN", show_default="val_loss, else loss",
              help="The column of the history that says which run is the best.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Instead of the network's own.")
@click.option("--timeout", metavar="TIME", help="Of each run: 90s, 5m or 2h.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, readable=False),
              metavar="FILE", show_default="the target's name with .horn",
              help="The best model.")  # fmt: skip
@_cluster.options
@click.option("--local", is_flag=True, help="On this machine, whatever HORN_ZK says.")
@click.option("--working-dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Send this folder, which TARGET is in, to the cluster.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the table.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(target: str, args: tuple[str, ...], settings: tuple[str, ...], slots: int | None,
            monitor: str | None, output: str | None, zk_hosts: str | None, key_file: str | None,
            local: bool, as_json: bool, quiet: bool, verbose: bool,
            **options: Any) -> int:  # fmt: skip
    """Train the job of TARGET with every combination of the settings, side by side, print a table
    and save the best model. Ctrl-C ends it with the table so far.

    With --zk, or HORN_ZK, the runs are jobs of the cluster, which starts as many at once as it has
    slots for.
    """
    from horn import terminal
    from horn.modelfile import check_not_read, check_writable, data_of
    from horn.sweep import Sweep, Trial, combinations
    from horn.training.deadline import LOADING, Deadline, interrupting

    outlive_reader()
    if options["working_dir"] is not None and (local or not zk_hosts):
        raise _cluster.not_here("--working-dir is", zk_hosts, {"--local": local})
    found = combinations(settings)
    timeout = options["timeout"]
    deadline = Deadline(None if timeout is None else terminal.duration(timeout, "--timeout"))
    with terminal.stdout_of_user(as_json), interrupting(deadline, LOADING, 0.0):
        job, stem = _check(target, args, found, options["strategy"], options["groups"], monitor)
    path = Path(output or f"{stem}.horn")
    check_writable(path)
    check_not_read(path, data_of(job))
    trials = [Trial(k, pairs) for k, pairs in enumerate(found, 1)]
    sweep = Sweep(trials, monitor or "", job.better(monitor or "loss"))

    def tell(trial: Trial) -> None:
        if quiet:
            return
        value = trial.row.get(sweep.monitor)
        said = f"{sweep.monitor} {_number(value)}" if value is not None else trial.reason
        n = len(sweep.trials)
        terminal.say(f"{trial.number}/{n}  {trial.words()}  {trial.state}  {said}".rstrip())

    code = 0
    try:
        if zk_hosts and not local:
            _on_cluster(zk_hosts, key_file, target, args, options, sweep, path, tell)
        else:
            _here(target, args, options, sweep, path, tell, slots)
    except KeyboardInterrupt as error:
        what, code = ending_of(error)
        terminal.say(f"\nStopped by {what}; this is what there is so far.")
    if as_json:
        model = None if sweep.saved is None else str(path)
        terminal.print_json({"schema": "horn.sweep/1", **sweep.as_dict(), "model": model})
    else:
        columns, rows = sweep.table()
        cells = [[c if isinstance(c, str) else _number(c) for c in row] for row in rows]
        terminal.table(columns, cells, err=False)
    if (saved := sweep.saved) is not None and not quiet:
        terminal.say(f"Saved {path}, the model of run {saved.number}: {saved.words()}")
    elif sweep.best is None and not code:
        reason = next((t.reason for t in sweep.trials if t.reason), "")
        why = f"The first said: {reason}" if reason else _unmeasured(sweep)
        terminal.say(f"No run can be the best. {why}")
    return code or (0 if sweep.best is not None and sweep.saved is sweep.best else 1)


def _check(target: str, args: Sequence[str], found: Sequence[Combination], strategy: str,
           groups: int, monitor: str | None) -> tuple[Job, str]:  # fmt: skip
    """Refuse settings that no run could have, before any begins; the target's job and stem."""
    from horn import settings as settings_
    from horn import target as targets
    from horn.aggregates import COLUMNS
    from horn.callbacks import may_add_columns

    loaded = targets.load(target, args)
    for pairs in found:
        texts = [f"{key}={value}" for key, value in pairs]
        try:
            _, others = settings_.strategy(strategy, texts)
            job = settings_.apply(loaded.job, others)
        except HornError as error:
            if str(error).startswith("--set"):  # it names the setting
                raise
            raise type(error)(f"{' '.join(texts)}: {error}") from error
        if not monitor or monitor in (measured := _measured(job, groups)):
            continue
        if monitor in COLUMNS or not may_add_columns(job.callbacks):
            meant = ", ".join(sorted(measured - {"epoch", "iteration"}))
            raise JobError(f"--monitor {monitor} is not measured; there are {meant}")
    return job, loaded.stem


def _measured(job: Job, groups: int) -> set[str]:
    """The columns of a job's history that have numbers, but for those that callbacks add."""
    from horn.data.stream import Stream
    from horn.outputs import has_answers

    found = {*job.columns} - {"groups"} - ({"group_loss"} if groups == 1 else set())
    for name, data in (("acc", job.data), ("val_acc", job.validation)):
        if data is None:
            continue
        if isinstance(data, Stream) or not has_answers(job.network, data, job.target):
            found.discard(name)
    return found


def _number(value: float | None) -> str:
    from horn import terminal

    return terminal.number(value, ".4f" if value is None or abs(value) < 1e6 else ".3g")


def _unmeasured(sweep: Sweep) -> str:
    found = sweep.trials[0].row
    columns = ", ".join(name for name, value in found.items() if isinstance(value, float))
    return f"{sweep.monitor!r} is not measured; --monitor is one of {columns}"


# on this machine


@dataclass
class _Child:
    """A run in a process of its own, with what it prints in files."""

    trial: Trial
    process: subprocess.Popen[bytes]
    pidfd: int
    stem: Path
    begun: float


def _here(
    target: str, args: Sequence[str], options: Mapping[str, Any], sweep: Sweep, path: Path,
    tell: Callable[[Trial], None], slots: int | None,
) -> None:  # fmt: skip
    import tempfile

    from horn.executor.launch import cores
    from horn.modelfile import place_of

    path = place_of(path)
    n_slots = slots or cores()
    each = options["groups"] * options["tasks"]
    at_once = max(n_slots // each, 1)
    threads = max(n_slots // (min(at_once, len(sweep.trials)) * each), 1)
    waiting: Iterator[Trial] = iter(sweep.trials)
    running: dict[int, _Child] = {}
    with tempfile.TemporaryDirectory(prefix=".horn-sweep-", dir=path.parent) as folder:
        try:
            while True:
                while len(running) < at_once and (trial := next(waiting, None)) is not None:
                    child = _start(trial, target, args, options, threads, Path(folder))
                    running[child.pidfd] = child
                if not running:
                    return
                poll = select.poll()
                for fd in running:
                    poll.register(fd, select.POLLIN)
                for fd, _ in poll.poll():
                    child = running.pop(fd)
                    os.close(fd)
                    _ended(child)
                    if sweep.heard(child.trial):
                        os.replace(child.stem.with_suffix(".horn"), path)
                        sweep.saved = child.trial
                    tell(child.trial)
        finally:
            _end(list(running.values()))


def _start(
    trial: Trial, target: str, args: Sequence[str], options: Mapping[str, Any], threads: int,
    folder: Path,
) -> _Child:  # fmt: skip
    import subprocess

    stem = folder / str(trial.number)
    words = ["--json", "--quiet", "--local", "--output", f"{stem}.horn", "--threads", str(threads)]
    for name in ("groups", "tasks", "strategy", "seed", "timeout"):
        if options[name] is not None:
            words += [f"--{name}", str(options[name])]
    for key, value in trial.settings:
        words += ["--set", f"{key}={value}"]
    command = [sys.executable, "-m", "horn", "submit", *words, "--", target, *args]
    with open(f"{stem}.out", "wb") as out, open(f"{stem}.err", "wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    return _Child(trial, process, os.pidfd_open(process.pid), stem, time.monotonic())


def _ended(child: _Child) -> None:
    """Read the results of an ended run."""
    code = child.process.wait()
    result = _result(child.stem.with_suffix(".out").read_bytes())
    told = child.stem.with_suffix(".err").read_text("locale", "replace").strip().splitlines()
    # Lines about files in the sweep's folder go: it is removed.
    said = "\n".join(line for line in told if child.stem.parent.name not in line)
    # The codes are horn's if it has said so; with os._exit the user's code takes any.
    is_horns = bool(result) or (code != 0 and any(line.startswith(SAYS) for line in told))
    state = STATES.get(code, "FAILED") if is_horns else "FAILED"
    reason = said.removeprefix("Error: ") or f"it {how_it_ended(code)[0]}"
    child.trial.ended(state, result, "" if state == "SUCCEEDED" else reason)
    child.trial.seconds = child.trial.seconds or time.monotonic() - child.begun


def _result(out: bytes) -> dict[str, Any]:
    """What a run has said at its end, {} if it has not. The user's code may write there, too, past
    Python's stdout: any bytes, also in the same line.
    """
    import json

    at = out.rfind(RESULT)
    if at < 0:
        return {}
    try:
        found: dict[str, Any] = json.JSONDecoder().raw_decode(out[at:].decode(errors="replace"))[0]
    except ValueError:  # another process of the run wrote in between
        return {}
    return found


def _end(children: Sequence[_Child]) -> None:
    import subprocess

    for child in children:
        child.process.terminate()
    for child in children:
        try:
            child.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                child.process.wait(LEAVE_S)
        os.close(child.pidfd)


# on a cluster


def _on_cluster(
    zk_hosts: str, key_file: str | None, target: str, args: Sequence[str],
    options: Mapping[str, Any], sweep: Sweep, path: Path, tell: Callable[[Trial], None],
) -> None:  # fmt: skip
    """Run the trials as jobs, and save the best model. What cannot be found or fetched of one run
    ends none of the others.
    """
    from horn import terminal
    from horn.cli._remote import StandstillNotice, until_over
    from horn.cluster import remote_files
    from horn.cluster.handles import Cluster

    names = ("groups", "tasks", "strategy", "seed", "working_dir")
    asked = {name: options[name] for name in names}
    if options["timeout"] is not None:
        asked["timeout"] = terminal.duration(options["timeout"], "--timeout")
    jobs: dict[str, Trial] = {}
    job_of: dict[int, str] = {}  # by a trial's number, also once it has ended

    notice = StandstillNotice("The sweep")

    def look(client: ClusterClient) -> bool:
        n_before = len(jobs)
        for job in list(jobs):
            trial = jobs[job]
            try:
                status = client.status(job)
            except NotFound:
                trial.ended("REMOVED", {}, f"somebody has removed job {job}")
            else:
                if not status.state.is_over:
                    continue
                result = status.result
                is_diverged = int(result.get("code") or 0) == 7
                state = "DIVERGED" if is_diverged else status.state.value
                trial.ended(state, result, str(result.get("cause") or ""))
                sweep.heard(trial)
            del jobs[job]
            tell(trial)
        if len(jobs) < n_before and jobs and sweep.best is not sweep.saved:
            with contextlib.suppress(NotFound, ClusterError, JobError):  # the end tries it again
                fetch(sweep.best, client)
        if jobs:
            notice.look(client)
        return not jobs

    def fetch(trial: Trial | None, client: ClusterClient) -> None:
        if trial is not None and trial is not sweep.saved:
            remote_files.fetch_model(client, job_of[trial.number], path)
            sweep.saved = trial

    def fetch_best() -> None:
        """Save the model of the best trial, or else of the next one that can be fetched."""
        for trial in sweep.ranked():
            try:
                return cluster.client.retry(partial(fetch, trial))
            except NotFound as error:
                later = f"horn fetch {job_of[trial.number]} -o FILE"
                terminal.say(f"The model of run {trial.number} is missing: {error}.  {later}")
            except (ClusterError, JobError) as error:
                return terminal.say(f"The model of run {trial.number} is missing: {error}")

    with Cluster(zk_hosts, key_file) as cluster:
        try:
            for trial in sweep.trials:
                settings = dict(trial.settings)
                found = cluster.submit(target, arguments=args, settings=settings, **asked)
                jobs[found.id], job_of[trial.number] = trial, found.id
            until_over(cluster.client, None, look, LOOK_S)
        finally:
            left = list(jobs)
            try:
                if left:
                    cluster.client.once(lambda client: _stop(client, left))
                fetch_best()
            except ClusterError as error:
                terminal.say(f"{error}\nNot stopped:  horn stop --now {' '.join(left)}")


def _stop(client: ClusterClient, jobs: list[str]) -> None:
    while jobs:
        with contextlib.suppress(Conflict, NotFound):  # it has ended, or was removed
            client.stop(jobs[0], now=True)
        del jobs[0]
