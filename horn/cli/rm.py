"""horn rm: forget jobs that have ended."""

from __future__ import annotations

import click

from horn.cli import _cluster
from horn.process.exits import outlive_reader


@click.command(short_help="Forget jobs that have ended, and their files.")
@click.argument("jobs", nargs=-1)
@_cluster.options
@click.option("--worker", "workers", multiple=True, metavar="NAME",
              help="Forget a worker that was killed and will not come back. Repeat for "
              "more.")  # fmt: skip
def command(jobs: tuple[str, ...], zk_hosts: str | None, key_file: str | None,
            workers: tuple[str, ...]) -> None:  # fmt: skip
    """Remove JOBS that have ended from the cluster: logs, checkpoints, model."""
    from horn import terminal

    if not (jobs or workers):
        raise click.UsageError("Name a job, or a worker with --worker NAME.")
    outlive_reader()
    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        for name in dict.fromkeys(workers):
            cluster.forget_worker(name)
            click.echo(name)
        for name in dict.fromkeys(cluster.find(job) for job in jobs):
            down = cluster.remove(name)
            click.echo(name)
            if down:
                terminal.say(f"Note: {down}: what is there stays, in jobs/{name} of --dir")
