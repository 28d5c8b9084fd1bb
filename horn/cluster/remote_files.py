"""The files of a job on its workers: logs, what it tells of its progress, its model.

All of them in a folder, with those that its callbacks wrote: ``fetching``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from horn.atomic_write import atomic_write
from horn.cluster.client import ClusterClient
from horn.cluster.file_service import READ_BYTES, ReadReply, ReadRequest
from horn.cluster.master import JobRecord
from horn.cluster.store import MODEL, NO_LOGS, PROGRESS
from horn.errors import UNREADABLE, ClusterError, JobError, NotFound

FILE_S = 600.0  # for a file of a job to come
FILE_BYTES = 2**40  # of one at most


class JobLog(NamedTuple):
    """A log of a job: file ``name`` of a worker, ``size`` bytes. title : its name, and of an
    attempt before, on another host, name.host.
    """

    title: str
    host: str
    name: str
    size: int


def last_first(client: ClusterClient, job: str, hosts: Iterable[str]) -> list[str]:
    """The same workers, those of the job's last attempt before others: first its primary host,
    where its result says which that was.
    """
    status = client.status(job)
    first, last = status.result.get("host"), status.record.hosts
    return sorted(hosts, key=lambda name: (name != first, name not in last, name))


def logs(client: ClusterClient, job: str, files: Mapping[str, Mapping[str, int]]) -> list[JobLog]:
    """The logs among a job's files, those of its last attempt first."""
    found, taken = [], set[str]()
    for host in last_first(client, job, files):
        for name in sorted(files[host].keys() - set(NO_LOGS)):
            title = f"{name}.{host}" if name in taken else name
            taken.add(name)
            found.append(JobLog(title, host, name, files[host][name]))
    return found


def read(
    client: ClusterClient,
    job: str,
    host: str,
    name: str,
    offset: int = 0,
    wait_s: float = 0.0,
    tail: int | None = None,
    age_s: float | None = None,
    answer_s: float = 30.0,
) -> tuple[int, bytes]:
    """Bytes of a file from ``offset``, or its ``tail`` or ``age_s``; and their offset. wait_s :
    for more of it to be written; answer_s : for the worker to answer then.
    """
    got, portions = client.service(host).download(
        "read", ReadRequest(job, name, offset, wait_s, tail, age_s), ReadReply,
        max_bytes=READ_BYTES, timeout_s=wait_s + answer_s,
    )  # fmt: skip
    found = b"".join(portions)
    if len(found) != got.size:
        raise ClusterError(
            f"{len(found)} of {got.size} bytes of {name} of job {job} came from {host}; ask again"
        )
    return got.offset, found


def read_all(client: ClusterClient, job: str, host: str, name: str) -> bytes:
    """The whole content of a file at present."""
    found = bytearray()
    while data := read(client, job, host, name, len(found))[1]:
        found += data
    return bytes(found)


def history(client: ClusterClient, job: str) -> list[dict[str, Any]]:
    """The rows of the history so far, of the worker of the last attempt that has the most, or
    of the result.
    """
    status = client.status(job)
    longest: list[dict[str, Any]] = []
    for host, sizes in client.files(job).items():
        if PROGRESS not in sizes or not _sees(client, status.record.hosts, status.record, host):
            continue
        rows: dict[int, dict[str, Any]] = {}
        for said in notes(read_all(client, job, host, PROGRESS).splitlines()):
            if "row" in said:
                row = said["row"]
                while rows and next(reversed(rows)) >= row["epoch"]:  # of an attempt before
                    rows.popitem()
                rows[row["epoch"]] = row
            elif "added" in said and said.get("epoch") in rows:
                rows[said["epoch"]] |= said["added"]
        longest = max(longest, list(rows.values()), key=len)
    return longest or list(status.result.get("history") or [])


def _sees(client: ClusterClient, hosts: Sequence[str], record: JobRecord, name: str) -> bool:
    """Whether a worker sees the files that the job's last attempt has left on hosts; on others
    are those of attempts before. Of a job that nobody has placed yet, any.
    """
    if not hosts or name in hosts:
        return True
    folders = {n: a.shared for n, a in record.allocations.items()} or record.kept
    member = client.workers().get(name)
    shared = "" if member is None else str(member.info.get("shared", ""))
    return shared != "" and shared in {folders.get(host, "") for host in hosts}


def holders(client: ClusterClient, job: str, files: Mapping[str, Container[str]]) -> list[str]:
    """The workers of those with files that have the model of the job's last attempt, first the
    one that made it.
    """
    status = client.status(job)
    first = str(status.result.get("host", ""))
    hosts = [first] if first else status.record.hosts
    found = [
        name for name, names in files.items()
        if MODEL in names and _sees(client, hosts, status.record, name)
    ]  # fmt: skip
    return sorted(found, key=lambda name: name != first)


def no_model(client: ClusterClient, job: str, answered: Container[str]) -> str:
    """The sentence about a model that none of the workers that answered has."""
    down = client.down(job, answered)
    more = f"; {down}: start it there again" if down else ""
    return f"job {job}: no worker that is up has its model{more}"


def fetch_model(client: ClusterClient, job: str, path: Path) -> None:
    """Write the model of a job that succeeded into a file. Raises JobError if it cannot be
    written: the disk may be full, or the folder have gone while the job ran.
    """
    files = client.files(job)
    found = holders(client, job, files)
    if not found:
        raise NotFound(no_model(client, job, files))
    got, portions = client.service(found[0]).download(
        "read", ReadRequest(job, MODEL), ReadReply, max_bytes=FILE_BYTES, timeout_s=FILE_S
    )
    try:
        with portions:
            save(portions, got.size, path)
    except OSError as error:
        raise JobError(
            f"{path} cannot be written ({error.strerror or error}); the cluster has the model "
            f"still:  horn fetch {job} -o FILE"
        ) from error


def notes(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines of progress.jsonl. A line that is cut, by a host that lost its
    power or because it is being written, is left out.
    """
    for line in lines:
        with contextlib.suppress(*UNREADABLE):
            said = json.loads(line)
            if isinstance(said, dict):
                yield said


def save(portions: Iterator[bytes], size: int, path: Path) -> None:
    """Write a body of ``size`` bytes into a file: whole, or not at all. Raises ClusterError."""
    with atomic_write(path) as file:
        for portion in portions:
            file.write(portion)
        if file.tell() != size:
            raise ClusterError(f"{file.tell()} of {size} bytes of {path.name} came")
