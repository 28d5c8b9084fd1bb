"""horn logs: what a job's processes print."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from horn.cli import _cluster

if TYPE_CHECKING:
    from horn.cluster.client import ClusterClient

TAIL = 200  # lines, unless told otherwise
LOOK_S = 0.3  # between two looks for more


@click.command(short_help="What a job's processes print.")
@click.argument("job")
@_cluster.options
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--task", metavar="NAME", help="Only one process: g0.t1, s0, or a worker's name.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N",
              help="Begin so many lines from the end of each.  [default: 200; all with "
              "--since]")  # fmt: skip
@click.option("--since", metavar="DURATION|TIME",
              help="Only what is not older: 90s, 5m, 2h, or 2026-11-21T16:05 (+00:00 or Z: "
              "UTC).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="A JSON object per line.")
def command(job: str, zk_hosts: str | None, key_file: str | None, follow: bool, task: str | None,
            tail: int | None, since: str | None, as_json: bool) -> None:  # fmt: skip
    """Print the logs of JOB, each line with the process that it is of. A worker's name stands for
    the process that loads the job's file there.
    """
    from horn import terminal
    from horn.cli._remote import until_over
    from horn.errors import NotFound

    begins_s = None if since is None else _moment(since, time.time())
    if tail is None and since is None:
        tail = TAIL
    with _cluster.open_lasting(zk_hosts, key_file) as cluster:
        name = cluster.retry(lambda client: client.find(job))
        reader = _Reader(name, task, tail, as_json, begins_s)
        if follow:
            until_over(cluster, name, reader.follow, LOOK_S)
        else:
            cluster.once(reader.print_new)
        reader.finish()
        down = cluster.retry(lambda client: client.down(name, reader.answered))
        if task is not None and not reader.seen:
            more = f"; {down}" if down else ""
            there = ", ".join(reader.names) or "none that can be read now"
            raise NotFound(f"job {name} has no log of {task!r}; it has {there}{more}")
        if down:
            terminal.say(f"Note: {down}: logs that are only there are left out")


def _moment(text: str, now_s: float) -> float:
    """Seconds since 1970 of a time, or of a duration ago."""
    from horn import terminal
    from horn.errors import JobError

    try:
        return now_s - terminal.duration(text, "--since")
    except JobError:
        pass
    try:
        found = datetime.fromisoformat(text).timestamp()  # without a zone: of this machine
    except ValueError:
        raise JobError(
            f"--since {text!r}: write how long ago, as 90s, 5m or 2h, or a time, as "
            f"2026-11-21T16:05 (of this machine) or 2026-11-21T16:05Z"
        ) from None
    if found > now_s:
        raise JobError(f"--since {text}: that is {found - now_s:,.0f} s from now; give a past time")
    return found


class _Reader:
    """Reads logs on from its last positions. begins_s : sent as an age: clocks of hosts differ."""

    def __init__(self, job: str, task: str | None, tail: int | None, as_json: bool,
                 begins_s: float | None) -> None:  # fmt: skip
        from horn.cli._remote import StandstillNotice

        self.job, self.task, self.tail = job, task, tail
        self.as_json, self.begins_s = as_json, begins_s
        self.offsets: dict[tuple[str, str], int] = {}
        self.partial: dict[tuple[str, str], bytes] = {}
        self.names: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.answered: set[str] = set()  # workers, at the last look
        self._has_ended, self._notice = False, StandstillNotice(f"Job {job}")

    def follow(self, cluster: ClusterClient) -> bool:
        """Print new lines, in this session; whether it is over: no line comes after the end."""
        self.print_new(cluster)
        has_ended, self._has_ended = self._has_ended, cluster.jobs.state(self.job).is_over
        if not self._has_ended:
            self._notice.look(cluster)
        return has_ended

    def print_new(self, cluster: ClusterClient) -> None:
        from horn.cluster import remote_files
        from horn.errors import ClusterError, NotFound

        files = cluster.files(self.job)
        self.answered = set(files)
        logs = remote_files.logs(cluster, self.job, files)
        self.names = list(dict.fromkeys([*self.names, *(log.name for log in logs)]))
        for log in sorted(logs, key=lambda log: log.title == log.name):  # the last attempt's last
            key = (log.host, log.name)
            if self.task is not None and log.name != self.task:
                continue
            self.seen.add(key)
            try:
                while key not in self.offsets or self.offsets[key] < log.size:
                    before = self.offsets.get(key)
                    first = before is None
                    begins_s = self.begins_s
                    age_s = None if begins_s is None else max(time.time() - begins_s, 0.0)
                    start, data = remote_files.read(
                        cluster, self.job, *key, before or 0, tail=self.tail if first else None,
                        age_s=age_s if first else None,
                    )  # fmt: skip
                    self.offsets[key] = start + len(data)
                    rest = self.partial.get(key, b"")
                    *lines, self.partial[key] = (rest + data).split(b"\n")
                    for line in lines:
                        self._line(key, line)
                    if not data:
                        break
            except (NotFound, ClusterError):
                continue  # its worker has just gone

    def finish(self) -> None:
        """Print the rests of logs without a newline."""
        for key, rest in self.partial.items():
            if rest:
                self._line(key, rest)

    def _line(self, key: tuple[str, str], line: bytes) -> None:
        from horn import terminal

        host, name = key
        text = line.decode(errors="replace").rstrip("\r")
        if self.as_json:
            terminal.print_json(
                {"schema": "horn.log/1", "job": self.job, "host": host, "task": name, "text": text}
            )
        else:
            click.echo(f"{name}│ {text}")
