"""What an agent answers for its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn.cluster.file_service import DoneReply, FileService, JobRequest, ReadRequest
from horn.cluster.store import HostStore
from horn.errors import Conflict
from tests.cluster.helpers import Call


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HostStore]:
    made = HostStore(tmp_path / "a", None)
    (tmp_path / "a" / "jobs" / "one-1").mkdir(parents=True, exist_ok=True)
    yield made
    made.close()


def test_the_last_lines_are_all_there_however_long_they_are(store: HostStore, tmp_path: Path):
    """They used to be cut, without a word, at 1 MiB."""
    logs = tmp_path / "a" / "jobs" / "one-1" / "logs"
    logs.mkdir()
    lines = [b"%d %s" % (n, b"x" * 20_000) for n in range(200)]
    (logs / "g0.t0.log").write_bytes(b"before\n" + b"\n".join(lines) + b"\n")
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())
    found, at, tail = b"", 0, 200
    while True:
        request = ReadRequest("one-1", "g0.t0", at, tail=tail)
        got, portions = file_service.read(SimpleNamespace(request=request, is_over=False))
        data = b"".join(portions)
        if not data:
            break
        found, at, tail = found + data, got.offset + got.size, None
    assert found.splitlines() == lines


def test_the_files_of_a_job_go_once_its_runs_have_been_put_away(
    store: HostStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("horn.cluster.file_service.GONE_S", 60.0)
    runs = {"one-1"}
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: runs)
    asked: Any = SimpleNamespace(request=JobRequest("one-1"))
    folder = tmp_path / "a" / "jobs" / "one-1"
    forgetting = Call(file_service.forget, asked)
    assert not forgetting.is_done() and folder.exists()
    runs.clear()
    assert forgetting.result() == DoneReply() and not folder.exists()
    # and it is said when that does not come
    runs.add("one-1")
    file_service.close()
    with pytest.raises(Conflict, match="one-1 still runs here"):
        file_service.forget(asked)
