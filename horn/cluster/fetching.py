"""The files of a job, fetched from its workers into a folder here."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from horn.cluster import remote_files
from horn.cluster.client import UNANSWERED, ClusterClient
from horn.cluster.file_service import JobRequest, SizeReply, WrittenRequest
from horn.cluster.package import check_path
from horn.cluster.remote_files import FILE_BYTES, FILE_S, save
from horn.cluster.store import FILES, MODEL, TRACE
from horn.cluster.written import WrittenFiles
from horn.coordination.jobs import JobState
from horn.errors import UNREADABLE, ClusterError, JobError, NotFound

LIST_BYTES = 16 * 2**20  # of all paths


def fetch_all(client: ClusterClient, job: str, folder: Path, note: Callable[[str], None]) -> None:
    """Fetch all files of a job, in any state: model.horn, history.csv, result.json, trace.json,
    logs/, and in files/ those that its callbacks wrote. note : hears of files that did not come.
    Raises JobError: a file cannot be written here. NotFound: it has SUCCEEDED, but its model is not
    to be had; all else is fetched.
    """
    with _writing(folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        status = client.status(job)  # before: else it may succeed after a look at its files
        files = client.files(job)
        for title, host, name, _ in remote_files.logs(client, job, files):
            check_path(title)  # it comes from another host, and is written here
            path = folder / f"logs/{title}.log"
            path.write_bytes(remote_files.read_all(client, job, host, name))
        traced = [host for host in files if TRACE in files[host]]
        for host in remote_files.last_first(client, job, traced)[:1]:
            (folder / TRACE).write_bytes(remote_files.read_all(client, job, host, TRACE))
        has_model = bool(remote_files.holders(client, job, files))
        if has_model:
            remote_files.fetch_model(client, job, folder / MODEL)
        rows = remote_files.history(client, job)
        with open(folder / "history.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, _columns(rows), extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        found = {"job": job, "state": status.state.value, **status.result}
        (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        _fetch_written(client, job, folder / FILES, note)
    if down := client.down(job, files):
        note(f"{down}: what is only there is left out")
    if status.state is JobState.SUCCEEDED and not has_model:
        why = remote_files.no_model(client, job, files)
        raise NotFound(f"{why}. What is elsewhere is in {folder}")


def _fetch_written(
    client: ClusterClient, job: str, folder: Path, note: Callable[[str], None]
) -> None:
    """Fetch files that callbacks wrote. A path that several workers have (an attempt was on another
    host) is taken from one of the last attempt, if that has it.
    """
    has_come: set[str] = set()
    for host in remote_files.last_first(client, job, client.workers()):
        try:
            listed = _listed(client, job, host)
        except (*UNANSWERED, NotFound):
            continue  # it has just gone, as of logs
        if listed.n_left_out:
            note(f"{listed.n_left_out} files of {host} are left out: {listed.why}")
        for path in sorted(listed.sizes.keys() - has_come):
            has_come.add(path)
            check_path(path)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                _fetch_one(client, job, host, path, folder / path)
            except NotFound:  # renamed or removed while the job runs
                continue
            except ClusterError as error:
                note(f"files/{path} of {host} did not come: {error}")


def _listed(client: ClusterClient, job: str, host: str) -> WrittenFiles:
    _, portions = client.service(host).download(
        "written", JobRequest(job), SizeReply, max_bytes=LIST_BYTES, timeout_s=30.0
    )
    try:
        return msgspec.msgpack.decode(b"".join(portions), type=WrittenFiles)
    except UNREADABLE as error:
        raise ClusterError(f"{host}: {error}") from None


def _fetch_one(client: ClusterClient, job: str, host: str, path: str, target: Path) -> None:
    got, portions = client.service(host).download(
        "read written", WrittenRequest(job, path), SizeReply,
        max_bytes=FILE_BYTES, timeout_s=FILE_S,
    )  # fmt: skip
    with portions:
        save(portions, got.size, target)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise JobError(
            f"{where} cannot be written: {error.strerror}; give another -o DIR"
        ) from None


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("group_loss", "groups")]
