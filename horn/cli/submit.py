"""horn submit: train a job."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import click

from horn import defaults, registry
from horn.cli import _cluster, _plan
from horn.cli._target import TargetCommand
from horn.process.exits import outlive_reader

if TYPE_CHECKING:
    from horn.job import Job
    from horn.model import Model
    from horn.run_result import Run
    from horn.terminal import FirstStepTimer
    from horn.training.deadline import Deadline
    from horn.training.profile import Profile
    from horn.training.run_settings import RunSettings


def _transport(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """Refuse an unknown name before anything is read."""
    if context.get_parameter_source("transport") != click.core.ParameterSource.DEFAULT:
        from horn.transport import between_processes

        between_processes(name)
    return name


@click.command(cls=TargetCommand, short_help="Train a job and save its model.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-g", "--groups", default=1, type=click.IntRange(min=1), help="Replicas of the network."
)
@click.option("-n", "--tasks", default=1, type=click.IntRange(min=1), help="Processes per group.")
@click.option("--servers", type=click.IntRange(min=0), show_default=False,
              help="Servers of downpour and easgd: 1 by default, 0 for one in the process of the "
              "first task.")  # fmt: skip
@click.option("--strategy", default=defaults.STRATEGY, metavar="NAME",
              help=f"How groups stay together: {', '.join(registry.names('horn.strategies'))}, or "
              "module:Class of yours. Its settings are --set strategy.KEY=VALUE.")  # fmt: skip
@click.option("--barrier", default=defaults.BARRIER, type=click.Choice(["message", "zookeeper"]),
              help="How tasks pass supersteps.")  # fmt: skip
@click.option("--transport", default=defaults.TRANSPORT, metavar="NAME", callback=_transport,
              help="What carries blocks between tasks: shm, ipc, tcp, or module:Class of "
              "yours.")  # fmt: skip
@click.option("--pin", "pins", multiple=True, metavar="LAYER=WHERE",
              help="Where a layer's weights live: receiver, sender, replicated or, of windows, "
              "channels or input_channels.")  # fmt: skip
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write what every task did when, for chrome://tracing.")  # fmt: skip
@click.option("--profile", is_flag=False, flag_value="", metavar="[FILE]",
              help="Print where the time of one process goes, statement by statement; in FILE, for "
              "chrome://tracing.")  # fmt: skip
@click.option("--superstep-timeout", metavar="TIME",
              default=f"{defaults.SUPERSTEP_TIMEOUT_S:g}s",
              help="How long a task waits for the others before it says who is late.")  # fmt: skip
@click.option("--start-timeout", metavar="TIME", default=f"{defaults.START_TIMEOUT_S:g}s",
              help="How long each step of the tasks' start may take before who is late in it is "
              "named.")  # fmt: skip
@click.option("--checkpoint-every", metavar="N|TIME",
              help="Save what is needed to go on, every so many iterations, or every 30s or "
              "10m.")  # fmt: skip
@click.option("--checkpoints", type=click.Path(file_okay=False), metavar="DIR",
              help="Where to. By default the target's name with -checkpoints, in the current "
              "folder. With checkpoints Ctrl-C stops at the next iteration and saves "
              "one; without --checkpoint-every there are no others.")  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[RUN]",
              help="Go on from the newest checkpoint in DIR, if there is one, or from RUN: a "
              "checkpoint, or another run's DIR.")  # fmt: skip
@click.option("--changed", is_flag=True,
              help="With --resume: go on though the job is not what wrote the "
              "checkpoint.")  # fmt: skip
@click.option("--max-restarts", default=defaults.MAX_RESTARTS, type=click.IntRange(min=0),
              help="How often tasks that were killed or hang start again without a new checkpoint "
              "between.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="A field of the job, as in optimizer.learning_rate=0.1, batch_size=50, "
              "layer1.size=100. Repeat for more.")  # fmt: skip
@_cluster.options
@click.option("--local", is_flag=True, help="On this machine, whatever HORN_ZK says.")
@click.option("-d", "--detach", is_flag=True, help="Print the job's id and do not wait for it.")
@click.option("--name", metavar="NAME", help="The first part of the job's id in the cluster.")
@click.option("--working-dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Send this folder to the cluster; by default the target and what it imports "
              "beside it. TARGET is in it: its path from DIR, else from here.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Instead of the network's own.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, readable=False),
              metavar="FILE",
              help="The model file. By default the target's name with .horn, in the current "
              "folder.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--assume", metavar="WORDS",
              help="With --dry-run: the plan on machines that are not here, as in "
              "tasks=64,bandwidth=10Gbit,latency=50us,cores=64,flops=100G. Any part may be left "
              "out.")  # fmt: skip
@click.option("--backend", default=defaults.BACKEND,
              help=f"One of {', '.join(registry.names('horn.backends'))}, or module:Class of "
              "yours.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1),
              help="At most so many per task. By default the cores, divided by the "
              "tasks.")  # fmt: skip
@click.option("--timeout", metavar="TIME",
              help="Stop with exit code 124 after 90s, 5m or 2h, loading included; on a cluster "
              "from when the job begins.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result, and why a job waits.")
@click.option("-v", "--verbose", is_flag=True, help="Times, and tracebacks of errors.")
def command(target: str, args: tuple[str, ...], settings: tuple[str, ...], output: str | None,
            dry_run: bool, assume: str | None, timeout: str | None, as_json: bool, quiet: bool,
            verbose: bool,
            seed: int | None, backend: str, pins: tuple[str, ...], superstep_timeout: str,
            zk_hosts: str | None, key_file: str | None, local: bool, detach: bool,
            name: str | None, working_dir: str | None, **options: Any) -> int | None:  # fmt: skip
    """Train the job of TARGET, save the model, print how good it is.

    TARGET is file.py, file.py:name, package.module or package.module:name; the name, job by
    default, is a horn.Job or a function that returns one. ARGS after -- are the file's sys.argv, or
    --parameter value for a function with parameters. If the file has a function report(run), it is
    called at the end; not with --json, nor for a job on a cluster.

    With --zk, or HORN_ZK, the job goes to a cluster's workers, and this command shows how far it is
    until it ends; Ctrl-C leaves it running.
    """
    outlive_reader()
    if assume is not None and not dry_run:
        raise click.UsageError("--assume is for a plan: add --dry-run.")
    if zk_hosts and not local and not dry_run:
        from horn.cli import _remote

        words = click.get_current_context().params
        return _remote.submit(
            target, words, zk_hosts, key_file, output, detach=detach, as_json=as_json, quiet=quiet
        )
    if detach or working_dir is not None:
        raise _cluster.not_here(
            "--detach and --working-dir are", zk_hosts, {"--local": local, "--dry-run": dry_run}
        )
    from pathlib import Path

    from horn import settings as _settings
    from horn import target as _target
    from horn import terminal
    from horn.modelfile import check_not_read, check_writable, data_of
    from horn.summary import memory_bytes
    from horn.training.checks import check_processes
    from horn.training.deadline import LOADING, Deadline, interrupting
    from horn.training.run_settings import RunSettings

    limit_s = None if timeout is None else terminal.duration(timeout, "--timeout")
    deadline = Deadline(limit_s, end=_end)
    with terminal.stdout_of_user(as_json), interrupting(deadline, LOADING, 0.0):
        found = _target.load(target, args)
    strategy, settings = _settings.strategy(str(options["strategy"]), settings)
    options["strategy"] = strategy
    job = _settings.apply(found.job, settings)
    if seed is not None:
        job = job.with_settings(network=job.network.rebuilt(seed=seed))
    _checkpoints(options, found.stem)
    options["profile"] = False if options["profile"] is None else options["profile"] or True
    options["start_timeout"] = terminal.duration(str(options["start_timeout"]), "--start-timeout")
    asked = RunSettings(
        backend=backend,
        timeout=limit_s,
        pins=terminal.pins(pins),
        superstep_timeout=terminal.duration(superstep_timeout, "--superstep-timeout"),
        **options,
    )
    if dry_run:
        job.check_data()
        _plan.dry_run(job, asked, as_json, assume)
        return None
    check_processes(job, asked)  # before the table
    path = Path(f"{Path(found.stem).stem}.horn") if output is None else output
    check_writable(path, memory_bytes(job)["parameters"])
    for written in (path, options["trace"], options["profile"]):
        if isinstance(written, (str, os.PathLike)):
            check_not_read(written, data_of(job))
    if not quiet:
        _plan.show(job, asked)
        _plan.advise(job, asked)
    with terminal.stdout_of_user(as_json):
        run, first = _train(job, asked, quiet, str(path), deadline)
    if verbose:
        terminal.say(
            f"First step {first.seconds:.2f} s after the start of the process "
            f"({first.cpu_s:.2f} s of processor time)."
        )
    run.model.save(path)
    if run.stopped:
        from horn.errors import Stopped

        _say_stopped(run, str(path))
        raise click.exceptions.Exit(Stopped.exit_code)
    if not quiet:
        _say_end(run, str(path))
        if verbose and run.counters:
            _say_counters(run.counters)
    if run.profile is not None and (not quiet or options["profile"] is True):
        _say_profile(run.profile)
    code = 7 if run.state == "DIVERGED" else None  # as of NaN; the model is saved
    if as_json:
        head = {"schema": "horn.run/1", "state": run.state, "model": str(path)}
        terminal.print_json(head | run.as_dict())
        return code
    for where, values in run.metrics.items():
        click.echo(f"{where} {terminal.metrics(values)}")
    if found.report is not None:
        found.report(run)
    if not quiet:
        terminal.say_next(path)
    return code


def _checkpoints(options: dict[str, Any], stem: str) -> None:
    """Rename options for ``train``: --checkpoint-every 100 or 30s, --resume [RUN]."""
    from horn import terminal

    every, resume = options.pop("checkpoint_every"), options.pop("resume")
    options |= terminal.checkpoint_every(every)
    if options["changed"] and resume is None:
        raise click.UsageError("--changed is for going on: add --resume.")
    options["resume"] = False if resume is None else resume or True
    if options["checkpoints"] is None and (every is not None or resume == ""):
        options["checkpoints"] = f"{stem}-checkpoints"


def _end(text: str) -> None:
    """End this process, and its tasks, which end with it: its main thread does not."""
    from horn import terminal
    from horn.errors import Timeout, short

    terminal.say(f"Error: {short(text)}")
    os._exit(Timeout.exit_code)


def _train(
    job: Job, asked: RunSettings, quiet: bool, path: str, deadline: Deadline
) -> tuple[Run, FirstStepTimer]:
    from horn import terminal
    from horn.errors import CallbackError, Diverged, HornError, Stopped
    from horn.train import conduct

    progress = terminal.FirstStepTimer(terminal.progress(quiet))
    before = "{}.before{}".format(*os.path.splitext(path))
    try:
        run = conduct(job, dataclasses.replace(asked, progress=progress), deadline=deadline)
    except Stopped as stopped:
        terminal.say(f"S{str(stopped)[1:]}.")
        raise click.exceptions.Exit(stopped.exit_code) from None
    except Diverged as error:
        if error.model is None:
            raise
        kept = _kept(error.model, before)
        raise Diverged(
            f"{error}\nThe model from just before, after {_updates(error.iteration)}, {kept}."
        ) from error
    except CallbackError as error:
        if error.run is not None:
            kept = _kept(error.run.model, path)
            error.kept = f"{_which(error.run)} {kept}"
        raise
    except HornError as error:
        if error.model is not None:
            kept = _kept(error.model, before)
            error.__notes__ = [f"The model after {_updates(error.iteration)} {kept}."]
        raise
    return run, progress


def _updates(n: int) -> str:
    return f"{n} update{'s' * (n != 1)}"


def _kept(model: Model, path: str) -> str:
    """Save the model; its place in words. Raises nothing, since another failure came first."""
    from horn.errors import ModelError

    try:
        model.save(path)
    except ModelError as error:
        return f"could not be saved as asked: {error}"
    return f"is in {path}"


def _which(run: Run) -> str:
    """The model of a run that ended early, in words: it may be of a better epoch before."""
    if run.best_epoch is not None:
        return f"the model of the best epoch, {run.best_epoch},"
    return f"the model after iteration {run.iterations}"


def _say_stopped(run: Run, path: str) -> None:
    from horn import terminal

    saved = f": saved {run.checkpoint}" if run.checkpoint else ""
    terminal.say(f"Stopped after iteration {run.iterations}{saved}.")
    terminal.say(f"T{_which(run)[1:]} is in {path}.")
    if run.checkpoint:
        terminal.say("Next:  the same command with --resume")


def _say_end(run: Run, path: str) -> None:
    from horn import quantities, terminal

    if run.stopped_early:
        terminal.say("Stopped early: no improvement on the validation data.")
    if run.best_epoch is not None:
        terminal.say(f"Kept the model of epoch {run.best_epoch}, the best of {run.epochs}.")
    terminal.say(f"Saved {path} ({quantities.size(os.path.getsize(path))}).")
    terminal.say(
        f"{run.state} in {run.seconds:.1f} s · {run.iterations:,} updates{_spent(run.counters)}"
    )
    if run.staleness:
        terminal.say(f"Pushes by how many updates they were late: {_histogram(run.staleness)}")


def _spent(counters: list[dict[str, Any]]) -> str:
    """In words: · 966 supersteps · compute 78 % comm 11 % wait 11 %, of the tasks' time."""
    if not counters:
        return ""
    seconds = {
        "compute": sum(row["compute_s"] for row in counters),
        "comm": sum(row["pack_s"] + row["send_s"] + row["unpack_s"] for row in counters),
        "wait": sum(row["wait_s"] for row in counters),
    }
    total = sum(seconds.values()) or 1.0
    shares = " ".join(f"{name} {100 * value / total:.0f} %" for name, value in seconds.items())
    return f" · {counters[0]['n_supersteps']:,} supersteps · {shares}"


def _histogram(counts: dict[int, int]) -> str:
    """Counts in words: 0 21 %, 1 60 %, 2 19 %; the latest together."""
    total = sum(counts.values())
    rows = sorted(counts.items())
    if len(rows) > 8:
        rows, rest = rows[:7], rows[7:]
        tail = f", {rest[0][0]} to {rest[-1][0]} {100 * sum(n for _, n in rest) / total:.2g} %"
    else:
        tail = ""
    return ", ".join(f"{late} {100 * n / total:.3g} %" for late, n in rows) + tail


def _say_counters(counters: list[dict[str, Any]]) -> None:
    """Print a row per task: the parts of its time, its messages and its memory."""
    from horn import quantities, terminal

    phases = ("compute", "pack", "send", "wait", "unpack")
    terminal.table(
        ["Task", *(f"{phase} s" for phase in phases), "Messages", "Sent", "Memory"],
        [
            [row["role"].removeprefix("task "), *(f"{row[f'{phase}_s']:.3f}" for phase in phases),
             f"{row['n_sent']:,}", quantities.size(row["sent_bytes"]),
             quantities.size(row["peak_memory_bytes"])]
            for row in counters
        ],
        err=True,
    )  # fmt: skip


def _say_profile(profile: Profile) -> None:
    """Print a row per statement of a step, the longest first."""
    from horn import terminal

    terminal.say()
    terminal.table(
        ["Share", "us/step", "Layer", "Phase", "Line", "Statement"], profile.rows(), err=True
    )
