"""horn fetch: what a job that ran without its submitter has left."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn.cli import _cluster

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient


@click.command(short_help="Get the model of a job, or all that it has left.")
@click.argument("job")
@_cluster.options
@click.option("-o", "--output", metavar="PATH",
              help="Where to.  [default: JOB.horn, with --all the folder JOB]")  # fmt: skip
@click.option("--all", "is_all", is_flag=True,
              help="A folder: model.horn, history.csv, result.json, logs, trace.json.")  # fmt: skip
def command(
    job: str, zk_hosts: str | None, key_file: str | None, output: str | None, is_all: bool
) -> None:
    """Save the model of JOB, which has SUCCEEDED, and print the file's name; with --all a folder of
    whatever is there, in any state. For what was submitted with --detach, or whose submit has ended
    before it.
    """
    from horn.coordination.jobs import JobState
    from horn.errors import Conflict
    from horn.modelfile import check_writable

    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        if is_all:
            folder = Path(output or name)
            _fetch_all(cluster, name, folder)
            click.echo(str(folder))
            return
        state = cluster.jobs.state(name)
        if state is not JobState.SUCCEEDED:
            raise Conflict(
                f"job {name} is {state.value}: only what has SUCCEEDED has a model; "
                f"horn status {name} --wait waits for its end, horn fetch {name} --all gets logs "
                f"and history as they are"
            )
        path = Path(output or f"{name}.horn")
        check_writable(path)
        cluster.fetch_model(name, path)
        click.echo(str(path))


def _fetch_all(cluster: ClusterClient, job: str, folder: Path) -> None:
    from horn.cluster.store import MODEL, PROGRESS, TRACE
    from horn.errors import JobError

    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"{folder} cannot be made: {error.strerror}; give another -o DIR") from None
    files = cluster.files(job)
    for host, sizes in files.items():
        for name in sizes:
            if name not in (MODEL, PROGRESS, TRACE):
                (folder / "logs" / f"{name}.log").write_bytes(cluster.read_all(job, host, name))
            elif name == TRACE:
                (folder / TRACE).write_bytes(cluster.read_all(job, host, name))
    status = cluster.status(job)
    if any(MODEL in sizes for sizes in files.values()):
        cluster.fetch_model(job, folder / MODEL)
    rows = cluster.history(job)
    with open(folder / "history.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, _columns(rows), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    found = {"job": job, "state": status.state.value, **status.result}
    (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n")


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("group_loss", "groups")]
