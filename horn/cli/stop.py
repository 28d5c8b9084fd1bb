"""horn stop: end jobs, with a checkpoint."""

from __future__ import annotations

import click

from horn.cli import _cluster


@click.command(short_help="End jobs: save a checkpoint, then stop.")
@click.argument("jobs", nargs=-1, required=True)
@_cluster.options
@click.option("--now", is_flag=True, help="Do not save first.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
@click.option("--timeout", default="10m", metavar="TIME", help="Exit code 124 after it.")
def command(jobs: tuple[str, ...], zk_hosts: str | None, key_file: str | None, now: bool,
            no_wait: bool, timeout: str) -> None:  # fmt: skip
    """Have JOBS save a checkpoint at the next boundary and stop."""
    from horn import terminal
    from horn.coordination.jobs import ENDED
    from horn.errors import Conflict

    limit_s = terminal.duration(timeout)
    refused: dict[str, Conflict] = {}
    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        names = dict.fromkeys(cluster.find(job) for job in jobs)
        for name in names:
            try:
                cluster.stop(name, now)
            except Conflict as error:  # it has ended; the others are to stop all the same
                refused[name] = error
        for name in (name for name in names if name not in refused):
            if no_wait or not now:
                saves = "" if now else " It ends its iteration and saves; --now does not."
                terminal.say(f"Job {name} is to stop.{saves}")
            if no_wait:
                continue
            state = cluster.wait(name, ENDED, limit_s)
            found = cluster.status(name)
            saved = " · no checkpoint: horn resume would begin anew"
            if found.record.checkpoint >= 0:
                saved = f" · last checkpoint: iteration {found.record.checkpoint:,}"
            elif found.submission is not None and found.submission.servers:
                saved = ""  # they keep a journal
            terminal.say(f"Job {name} {state.value}{saved}")
    if refused:
        raise Conflict("; ".join(map(str, refused.values())))
