"""The common parts of commands for a cluster: options, the session, words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from horn.errors import JobError

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient
    from horn.cluster.job_status import JobStatus
    from horn.cluster.reconnecting import ReconnectingClient
    from horn.coordination.jobs import JobState
    from horn.security.keys import Key

F = TypeVar("F", bound=Callable[..., Any])
ENDED_BY = "horn.ends"  # in a command's context: what ends the cluster, and its jobs with it


def options(function: F) -> F:
    """Add --zk and --key to a command."""
    zk = click.option(
        "--zk",
        "zk_hosts",
        envvar="HORN_ZK",
        metavar="HOSTS",
        help="ZooKeeper, as host:port[,host:port]. HORN_ZK says it as well.",
    )
    return zk(tls_option(key_option(function)))


def not_here(what: str, zk_hosts: str | None, here: Mapping[str, bool]) -> click.UsageError:
    """Make the error of options that only a cluster heeds: ``here`` has those that keep the job on
    this machine, and whether they are given.
    """
    ways = [] if zk_hosts else ["give --zk HOSTS"]
    ways += [f"leave {option} out" for option, is_given in here.items() if is_given]
    return click.UsageError(f"{what} for a cluster: {' and '.join(ways)}.")


def tls_option(function: F) -> F:
    """Add --zk-tls, which sets HORN_ZK_TLS of this process."""

    def set_variable(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            os.environ["HORN_ZK_TLS"] = value

    return click.option(
        "--zk-tls",
        metavar="auto|key|off|FILES",
        expose_value=False,
        callback=set_variable,
        help="Encrypt what goes to ZooKeeper: off loopback if there is a key (auto), always, "
        "never, or with the PEM files AUTHORITY[,OWN]. HORN_ZK_TLS says it as well.",
    )(function)


def key_option(function: F) -> F:
    return click.option(
        "--key",
        "key_file",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="The cluster's key, from horn keygen. HORN_KEY says it as well.",
    )(function)


def key_of(path: str | None) -> Key | None:
    """The cluster's key, from --key or HORN_KEY."""
    from horn.security.keys import Key

    return Key.from_environment() if path is None else Key.from_file(path)


def folder(option: str, text: str | None) -> Path | None:
    """The folder of an option, not one of an empty text: it would be the current one."""
    if text == "":
        raise JobError(f'{option} is "": name a folder, or leave it out')
    return None if text is None else Path(text).absolute()


def shared_folder(text: str | None) -> Path | None:
    """The folder of --shared, which is there: one that is made would be this machine's own, where
    the disk that all see is not mounted.
    """
    found = folder("--shared", text)
    if found is not None and not found.is_dir():
        raise JobError(
            f"--shared {text}: there is no such folder. Mount the disk that all machines see, or "
            f"make the folder there once with mkdir"
        )
    return found


def open_cluster(zk_hosts: str | None, key_file: str | None) -> ClusterClient:
    """Open the cluster of a command."""
    from horn.cluster.client import ClusterClient

    return ClusterClient(_named(zk_hosts), key_of(key_file))


def open_lasting(zk_hosts: str | None, key_file: str | None) -> ReconnectingClient:
    """Open the cluster of a command that may take longer than a session."""
    from horn.cluster.reconnecting import ReconnectingClient

    return ReconnectingClient(_named(zk_hosts), key_of(key_file))


def start_log(default: str, form: str | None = None) -> None:
    """Write log records to stderr, of the level HORN_LOG_LEVEL, else the default, and above."""
    import logging

    level = (os.environ.get("HORN_LOG_LEVEL") or default).upper()
    if level not in (known := logging.getLevelNamesMapping()):
        raise JobError(f"HORN_LOG_LEVEL is {level!r}; choose one of {', '.join(known)}")
    logging.basicConfig(level=level, format=form or logging.BASIC_FORMAT)


def _named(zk_hosts: str | None) -> str:
    if not zk_hosts:
        raise JobError(
            "no cluster is named: give --zk host:port, or set HORN_ZK. A cluster on this machine "
            "alone is started with  horn up"
        )
    return zk_hosts


COLUMNS = ("JOB", "STATE", "STRATEGY", "G×T", "EPOCH", "STEP", "LOSS", "VAL_ACC", "AGE", "QUEUE")


def state_named(text: str) -> JobState:
    """The state of this name, in upper or lower case."""
    from horn.coordination.jobs import JobState

    if text.upper() not in JobState.__members__:
        raise JobError(f"no state is called {text!r}; there are {', '.join(JobState.__members__)}")
    return JobState[text.upper()]


def n_groups(status: JobStatus) -> int | None:
    """The present number of groups."""
    found = status.submission
    return len(status.record.groups) or (found.groups if found else None)


def row(status: JobStatus) -> list[str]:
    """A job's line for horn status and horn list."""
    from horn import terminal

    found, at = status.submission, status.reached
    of = f"/{at['n_epochs']}" if "n_epochs" in at else ""
    return [
        status.job,
        status.state.value,
        found.strategy if found else "–",
        f"{n_groups(status)}×{found.tasks}" if found else "–",
        f"{at['epoch']}{of}" if "epoch" in at else "–",
        f"{at['iteration']:,}" if "iteration" in at else "–",
        terminal.number(at.get("loss")),
        terminal.number(at.get("val_acc"), ".3f"),
        terminal.age(status.age_s),
        str(status.place or "–"),
    ]


def as_json(status: JobStatus) -> dict[str, Any]:
    """A job in the JSON form horn.job/1."""
    from datetime import UTC, datetime

    from horn.aggregates import named

    submitted = datetime.fromtimestamp(status.submitted_s, UTC)
    found, at, result = status.submission, status.reached, status.result
    metrics = {k: at[k] for k in ("loss", "acc", "val_loss", "val_acc") if k in at}
    metrics |= {k: v for k, v in named(at).items() if isinstance(v, (int, float))}
    return {
        "schema": "horn.job/1",
        "id": status.job,
        "state": status.state.value,
        "queue": status.place or None,
        "strategy": found.strategy if found else None,
        "groups": n_groups(status),
        "tasks": found.tasks if found else None,
        "servers": found.servers if found else None,
        "user": found.user if found else None,
        "epoch": at.get("epoch"),
        "epochs": at.get("n_epochs"),
        "iteration": at.get("iteration"),
        "iterations": at.get("n_iterations"),
        "metrics": metrics,
        "attempt": status.record.attempt,
        "restarts": status.record.n_restarts,
        "hosts": {
            name: list(allocation.ranks) for name, allocation in status.record.allocations.items()
        },
        "checkpoint": status.record.checkpoint if status.record.checkpoint >= 0 else None,
        "group_numbers": list(status.record.groups) or None,
        "groups_leaving": list(status.record.leaving) or None,
        "reason": status.reason or None,
        "trouble": status.record.trouble or None,
        "note": status.note or None,
        "cause": result.get("cause"),
        "result": result.get("metrics"),
        "exit_code": result.get("code"),
        "submitted": submitted.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def failure(job: str, result: Mapping[str, Any], ends: str = "") -> list[str]:
    """The lines about a failed job. ends : what ends its cluster with it, if anything does."""
    lines = [f"Job {job} FAILED", str(result.get("cause", "the reason is not known"))]
    if result.get("details") and result.get("code") == 70:
        lines.append(str(result["details"]))
    if ends:
        return [*lines, f"Its cluster and its log end with it: mend it, and run {ends} again"]
    checkpoint = result.get("checkpoint", -1)
    if isinstance(checkpoint, int) and checkpoint >= 0:
        lines.append(f"Last checkpoint: iteration {checkpoint:,}.")
    more = f"Continue with the files it has: horn resume {job}; with mended ones:"
    if result.get("code") == 2:  # the same files and settings would be refused again
        more = "Submit it again with what is refused mended; where that is in its file:"
    lines.append(f"Full log: horn logs {job}      {more} horn resume {job} --with FILE")
    return lines


def host_name() -> str:
    return os.uname().nodename.split(".")[0] or "host"


def table(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print columns of text on stdout; plain, so that nothing need be imported for it."""
    widths = [max(len(line[k]) for line in [list(columns), *rows]) for k in range(len(columns))]
    for line in [list(columns), *rows]:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("   ".join(cells).rstrip())
