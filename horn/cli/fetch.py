"""horn fetch: what a job that ran without its submitter has left."""

from __future__ import annotations

from pathlib import Path

import click

from horn.cli import _cluster


@click.command(short_help="Get the model of a job, or all that it has left.")
@click.argument("job")
@_cluster.options
@click.option("-o", "--output", metavar="PATH",
              help="Where to.  [default: JOB.horn, with --all the folder JOB]")  # fmt: skip
@click.option("--all", "is_all", is_flag=True,
              help="A folder: model.horn, history.csv, result.json, trace.json, logs, and what "
                   "callbacks wrote in files.")  # fmt: skip
def command(job: str, zk_hosts: str | None, key_file: str | None, output: str | None,
            is_all: bool) -> None:  # fmt: skip
    """Save the model of JOB, which has SUCCEEDED, and print the file's name; with --all a folder of
    whatever is there, in any state. For what was submitted with --detach, or whose submit has ended
    before it.
    """
    from horn.cluster.fetching import fetch_all
    from horn.cluster.remote_files import fetch_model
    from horn.coordination.jobs import JobState
    from horn.errors import Conflict
    from horn.modelfile import check_writable

    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        if is_all:
            folder = Path(output or name)
            fetch_all(cluster, name, folder, lambda note: click.echo(f"Note: {note}", err=True))
            click.echo(str(folder))
            return
        state = cluster.jobs.state(name)
        if state is not JobState.SUCCEEDED:
            raise Conflict(
                f"job {name} is {state.value}: only what has SUCCEEDED has a model; "
                f"horn status {name} --wait waits for its end, horn fetch {name} --all gets logs, "
                f"history and what there is of a model"
            )
        path = Path(output or f"{name}.horn")
        check_writable(path)
        fetch_model(cluster, name, path)
        click.echo(str(path))
