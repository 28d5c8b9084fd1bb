"""horn fetch: the model of a job that ran without its submitter."""

from __future__ import annotations

from pathlib import Path

import click

from horn.cli import _cluster


@click.command(short_help="Get the model of a job that succeeded.")
@click.argument("job")
@_cluster.options
@click.option("-o", "--output", metavar="FILE", help="Where to save it.  [default: JOB.horn]")
def command(job: str, zk_hosts: str | None, key_file: str | None, output: str | None) -> None:
    """Save the model of JOB, which has SUCCEEDED, and print the file's name. For what was submitted
    with --detach, or whose submit has ended before it.
    """
    from horn.coordination.jobs import JobState
    from horn.errors import Conflict
    from horn.modelfile import check_writable

    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        state = cluster.jobs.state(name)
        if state is not JobState.SUCCEEDED:
            raise Conflict(
                f"job {name} is {state.value}: only what has SUCCEEDED has a model; "
                f"horn status {name} --wait waits for its end"
            )
        path = Path(output or f"{name}.horn")
        check_writable(path)
        cluster.fetch_model(name, path)
        click.echo(str(path))
