"""horn resume: go on with a job that failed or was stopped."""

from __future__ import annotations

import click

from horn.cli import _cluster


@click.command(short_help="Go on with a job that failed or was stopped.")
@click.argument("job")
@_cluster.options
def command(job: str, zk_hosts: str | None, key_file: str | None) -> None:
    """Have JOB go on from its last checkpoint, with the files that it was submitted with."""
    from horn.cli import _screen

    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        cluster.resume(name)
        checkpoint = cluster.status(name).record.checkpoint
        where = f"from iteration {checkpoint:,}" if checkpoint >= 0 else "from the beginning"
        _screen.say(f"Job {name} goes on {where}. horn logs -f {name} · horn status {name}")
