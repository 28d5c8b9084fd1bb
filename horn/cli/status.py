"""horn status: a cluster, or one job of it."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import click

from horn.cli import _cluster
from horn.process.exits import outlive_reader

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient
    from horn.cluster.job_status import JobStatus

LEAST_S = 0.1  # between two looks of --watch, which ask ZooKeeper for all jobs


@click.command(short_help="How a cluster, or one job of it, is doing.")
@click.argument("job", required=False)
@_cluster.options
@click.option("--watch", "watch_s", is_flag=False, flag_value="2s", metavar="TIME",
              help="Show it again every 2s, or so often.")  # fmt: skip
@click.option("--wait", "wait_for", is_flag=False, flag_value="ENDED", metavar="STATE",
              help="Until the job is in that state; by default until it has ended.")  # fmt: skip
@click.option("--timeout", metavar="TIME", help="Of --wait; exit code 124 after it.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout; a line each with --watch.")
def command(job: str | None, zk_hosts: str | None, key_file: str | None, watch_s: str | None,
            wait_for: str | None, timeout: str | None, as_json: bool) -> int:  # fmt: skip
    """Show the jobs that have not ended and the workers, or one JOB: its id, the beginning of one,
    or @last.

    With --wait the exit code is 0 once the state is there that is waited for, and that of the job
    if it has ended, or ends, in another.
    """
    from horn import terminal
    from horn.cli._remote import until_over, wait
    from horn.coordination.jobs import ENDED
    from horn.errors import JobError

    if wait_for is not None and job is None:
        raise JobError("--wait is for one job: name it")
    if timeout is not None and wait_for is None:
        raise JobError("--timeout is of --wait: add it")
    every_s = LEAST_S if watch_s is None else terminal.duration(watch_s, "--watch")
    if every_s < LEAST_S:
        raise JobError(
            f"--watch {watch_s}: at least {LEAST_S:g} s, as ZooKeeper is asked each time"
        )
    limit_s = None if timeout is None else terminal.duration(timeout, "--timeout")
    if wait_for is not None and watch_s is None:
        outlive_reader()  # the code is what is waited for
    with _cluster.open_lasting(zk_hosts, key_file) as cluster:
        name = None if job is None else cluster.retry(lambda client: client.find(job))
        code = 0
        if wait_for is not None and name is not None:
            wanted = ENDED
            if wait_for.upper() != "ENDED":
                wanted = frozenset({_cluster.state_named(wait_for)})
            state = wait(cluster, name, wanted | ENDED, limit_s)
            if wanted == ENDED or state not in wanted:
                code = int(cluster.once(lambda client: client.status(name)).result.get("code", 1))

        def show(client: ClusterClient) -> bool:
            if name is None:
                _show_cluster(client, as_json)
            else:
                _show_job(client, name, as_json)
            return False

        if watch_s is None:
            cluster.once(show)
        else:
            until_over(cluster, name, show, every_s)
        return code


def _show_cluster(cluster: ClusterClient, as_json: bool) -> None:
    from horn import terminal
    from horn.cluster.master import QUEUES  # the column says it

    statuses = [s for s in cluster.reader.active() if not s.state.is_over]
    hosts = cluster.free(cluster.workers())
    slots, free = (sum(getattr(h, what) for h in hosts.values()) for what in ("slots", "free"))
    known = len(cluster.coord.children(cluster.paths.all_orders()))  # there now, or before
    if as_json:
        workers = [
            {"name": h.name, "address": h.address, "slots": h.slots, "free": h.free,
             "horn": h.horn, "python": h.python}
            for h in hosts.values()
        ]  # fmt: skip
        terminal.print_json(
            {"schema": "horn.status/1", "jobs": [_cluster.as_json(s) for s in statuses],
             "workers": workers, "workers_known": known, "slots": slots, "free": free,
             "zookeeper": cluster.hosts}
        )  # fmt: skip
        return
    _cluster.table(_cluster.COLUMNS, [_cluster.row(status) for status in statuses])
    if len(hosts) > 1:
        shares = (f"{h.name} {h.free} of {h.slots}" for h in hosts.values())
        terminal.say(f"Free slots: {', '.join(shares)}")
    line = [
        f"Workers {len(hosts)} of {known} up",
        f"{free} of {slots} slots free",
        f"ZooKeeper {cluster.hosts}",
        *(f"{s.job} {s.reason}" for s in statuses if s.reason not in ("", QUEUES)),
    ]
    terminal.say(" · ".join(line))


def _show_job(cluster: ClusterClient, job: str, as_json: bool) -> None:
    from horn import terminal

    status = cluster.reader.placed(cluster.status(job))
    if as_json:
        terminal.print_json(_cluster.as_json(status))
        return
    _cluster.table(_cluster.COLUMNS, [_cluster.row(status)])
    for line in _details(status, cluster.coord.children(cluster.paths.workers())):
        click.echo(line)


def _details(status: JobStatus, up: Container[str]) -> list[str]:
    from horn import terminal
    from horn.coordination.jobs import JobState

    record, result = status.record, status.result
    lines: list[Any] = []
    if status.reason:
        lines.append(f"It {status.reason}.")
    if status.place:
        lines.append(f"Place in the queue: {status.place}")
    if record.groups:
        leaving = f"; {', '.join(map(str, record.leaving))} to leave" if record.leaving else ""
        lines.append(f"Groups: {', '.join(map(str, record.groups))}{leaving}")
    for name, allocation in sorted(record.allocations.items()):
        ranks = ", ".join(map(str, allocation.ranks))
        down = "" if name in up else ", which is down or cut off"
        lines.append(f"On {name}{down}: ranks {ranks}")
    if record.checkpoint >= 0:
        lines.append(f"Last checkpoint: iteration {record.checkpoint:,}")
    if record.n_restarts:
        lines.append(f"Restarts: {record.n_restarts}; the last after: {record.trouble}")
    if status.unkept:
        lines.append(f"Note: {status.unkept}")
    if status.note and status.note != status.unkept:
        lines.append(f"Noted last: {status.note}")
    if status.state is JobState.FAILED:
        lines += _cluster.failure(status.job, result)
    elif result.get("cause"):
        lines.append(f"{status.state.value}: {result['cause']}")
    for where, values in dict(result.get("metrics") or {}).items():
        words = "  ".join(f"{k} {terminal.number(v)}" for k, v in values.items())
        lines.append(f"{where} {words}")
    return [str(line) for line in lines]
