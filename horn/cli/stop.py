"""horn stop: end jobs, with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from horn.cli import _cluster
from horn.training.interrupts import ending_of

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient
    from horn.cluster.job_status import JobStatus


@click.command(short_help="End jobs: save a checkpoint, then stop.")
@click.argument("jobs", nargs=-1, required=True)
@_cluster.options
@click.option("--now", is_flag=True, help="Do not save first.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
@click.option("--timeout", default="10m", metavar="TIME", help="Exit code 124 after it.")
def command(jobs: tuple[str, ...], zk_hosts: str | None, key_file: str | None, now: bool,
            no_wait: bool, timeout: str) -> int:  # fmt: skip
    """Have JOBS save a checkpoint at the next boundary and stop.

    Exit code 1 if one could not be saved.
    """
    from horn import terminal
    from horn.cli._remote import StandstillNotice, wait
    from horn.coordination.jobs import ENDED
    from horn.errors import Conflict

    limit_s, lost = terminal.duration(timeout, "--timeout"), list[bool]()
    with _cluster.open_lasting(zk_hosts, key_file) as cluster:
        names, refused = cluster.once(lambda client: _asked(client, jobs, now))
        for name in names:
            before = cluster.once(partial(_status, job=name))
            if no_wait or not now:
                saves = _saves(before)
                terminal.say(f"Job {name} is to stop.{'' if now else saves}")
            if no_wait:
                cluster.once(StandstillNotice(f"Job {name}").look)
                continue
            try:
                wait(cluster, name, ENDED, limit_s)
            except KeyboardInterrupt as error:
                terminal.say(
                    f"\nNot waited for any longer; the request to stop stands: "
                    f"horn status {name} --wait"
                )
                return ending_of(error)[1]
            lost.append(_tell(cluster.once(partial(_status, job=name)), before.unkept, now))
    if refused:
        raise Conflict("; ".join(refused))
    return int(any(lost))


def _asked(cluster: ClusterClient, jobs: Sequence[str], now: bool) -> tuple[list[str], list[str]]:
    """Ask jobs to stop; those that will, and why others will not: they have ended."""
    from horn.errors import Conflict

    names, refused = [], []
    for name in dict.fromkeys([cluster.find(job) for job in jobs]):
        try:
            cluster.stop(name, now)
            names.append(name)
        except Conflict as error:
            refused.append(str(error))
    return names, refused


def _status(cluster: ClusterClient, job: str) -> JobStatus:
    return cluster.status(job)


def _saves(status: JobStatus) -> str:
    """Whether a job that is to stop saves first, in words; "" if it has not begun on a worker that
    is up, or its servers keep journals.
    """
    if status.unkept:
        return f" It cannot save: {status.unkept}."
    has_servers = status.submission is not None and status.submission.servers > 0
    if not status.record.allocations or status.standstill or has_servers:
        return ""
    return " It ends its iteration and saves; --now does not."


def _has_journals(status: JobStatus) -> bool:
    """Whether a job has servers that write down what they are told, not those in its tasks."""
    found = status.submission
    return found is not None and found.servers > 0 and not found.options.get("guests")


def _tell(status: JobStatus, unkept: str, now: bool) -> bool:
    """Say how a job ended; whether something of it could not be saved. unkept : why nothing of it
    was kept before, "" if it was. now : that it was not to be saved.
    """
    from horn import terminal
    from horn.coordination.jobs import JobState

    job = status.job
    cause = str(status.result.get("cause", "")) if status.state is JobState.STOPPED else ""
    saved = " · no checkpoint: horn resume would begin anew"
    if status.record.checkpoint >= 0:
        saved = f" · last checkpoint: iteration {status.record.checkpoint:,}"
    elif _has_journals(status) and not unkept:
        saved = " · horn resume goes on from what its servers were told last"
    terminal.say(f"Job {job} {status.state.value}{saved}")
    if cause:
        terminal.say(f"Job {job}: {cause}")
    return bool(cause) or (status.state is JobState.FAILED and not now)
