"""horn list: the jobs of a cluster."""

from __future__ import annotations

import click

from horn.cli import _cluster


@click.command(short_help="The jobs of a cluster, newest first.")
@_cluster.options
@click.option("--state", metavar="STATE", help="Only those, as in RUNNING.")
@click.option("--user", metavar="NAME", help="Only those of a user.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1),
              help="At most so many.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(zk_hosts: str | None, key_file: str | None, state: str | None, user: str | None,
            limit: int, as_json: bool) -> None:  # fmt: skip
    """List jobs, newest first."""
    from horn import terminal

    wanted = None if state is None else _cluster.state_named(state)
    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        found, n_jobs = cluster.reader.newest(limit, wanted, user)
    if n_jobs > limit:
        terminal.say(f"{limit} of {n_jobs} jobs; more with  --limit {n_jobs}")
    if as_json:
        jobs = [_cluster.as_json(status) for status in found]
        terminal.print_json({"schema": "horn.list/1", "jobs": jobs})
    else:
        _cluster.table(_cluster.COLUMNS, [_cluster.row(status) for status in found])
