"""horn resume: go on with a job that failed or was stopped."""

from __future__ import annotations

import os

import click

from horn.cli import _cluster


def _checked(context: click.Context, option: click.Parameter, value: str) -> str:
    if value and value not in ("last", "best") and not value.isdecimal():
        raise click.BadParameter(f"{value!r}: write last, best, or the iteration of a checkpoint")
    return value


@click.command(short_help="Go on with a job that failed or was stopped.")
@click.argument("job")
@_cluster.options
@click.option("--from", "begin", metavar="last|best|N", default="", callback=_checked,
              help="The newest checkpoint, that of the best model, or that of iteration "
              "N.")  # fmt: skip
@click.option("--changed", is_flag=True,
              help="Go on though the job is no more what wrote the checkpoint, as where its data "
              "changed.")  # fmt: skip
@click.option("--with", "target", metavar="TARGET",
              help="With other files: this file, as mended, and what it imports. Its arguments and "
              "settings are those of before.")  # fmt: skip
@click.option("--working-dir", type=click.Path(file_okay=False), metavar="DIR",
              help="With --with: send this folder, which TARGET is in.")  # fmt: skip
def command(job: str, zk_hosts: str | None, key_file: str | None, begin: str, changed: bool,
            target: str | None, working_dir: str | None) -> None:  # fmt: skip
    """Have JOB go on from its last checkpoint, with the files that it was submitted with, or others
    (--with). What its checkpoint is of must be the same, but with --changed.
    """
    from horn import terminal
    from horn.cluster.resume import resume

    if not zk_hosts and os.path.exists(job):
        raise click.UsageError(
            f"JOB is a job of a cluster, and {job} a file or a folder here. A run on this machine "
            "goes on with  horn submit TARGET --resume DIR"
        )
    if working_dir is not None and target is None:
        raise click.UsageError("--working-dir is for other files: add --with TARGET.")
    package = None
    if target is not None:
        from horn.cluster import packing

        package = packing.pack(target, working_dir)

    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        checkpoint = resume(cluster, name, begin, changed, package)
        where = f"from iteration {checkpoint:,}" if checkpoint >= 0 else "from the beginning"
        submission = cluster.status(name).submission
        if checkpoint < 0 and submission is not None and submission.servers:
            where = "from what its servers were told last"
        terminal.say(f"Job {name} goes on {where}. horn logs -f {name} · horn status {name}")
