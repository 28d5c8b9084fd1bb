"""horn scale: more or fewer groups for a job that runs."""

from __future__ import annotations

import click

from horn.cli import _cluster
from horn.training.interrupts import ending_of


@click.command(short_help="Give a job more or fewer groups while it trains.")
@click.argument("job")
@click.option("-g", "--groups", required=True, type=int, metavar="N", help="So many from now on.")
@_cluster.options
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
@click.option("--timeout", default="10m", metavar="TIME", help="Exit code 124 after it.")
def command(job: str, groups: int, zk_hosts: str | None, key_file: str | None, no_wait: bool,
            timeout: str) -> int:  # fmt: skip
    """Have N groups train JOB. Under downpour and easgd new ones go on where the slowest is; those
    that came last leave at the end of their epoch, and their slots come free. Under allreduce all
    save a checkpoint at the next boundary, and N go on from it, to the same result.
    """
    from horn import terminal
    from horn.cli._remote import StandstillNotice
    from horn.cluster.scaling import scale, wait_scaled

    limit_s = terminal.duration(timeout, "--timeout")
    many = f"{groups} group{'s' * (groups > 1)}"
    with _cluster.open_cluster(zk_hosts, key_file) as cluster:
        name = cluster.find(job)
        scale(cluster, name, groups)
        notice = StandstillNotice(f"Job {name}")
        if no_wait:
            terminal.say(f"Job {name} is to have {many}.")
            notice.look(cluster)
            return 0
        try:
            status = wait_scaled(
                cluster, name, groups, limit_s, lambda status: notice.hear(status.standstill)
            )
        except KeyboardInterrupt as error:
            terminal.say(f"\nNot waited for any longer; job {name} is to have {many}.")
            return ending_of(error)[1]
        numbers = ", ".join(map(str, status.record.groups or range(groups)))
        terminal.say(f"Job {name} has {many}: {numbers}")
        return 0
