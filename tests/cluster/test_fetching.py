"""What a job has left is fetched from workers that come and go meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn.cluster import fetching
from horn.cluster.client import ClusterClient
from horn.coordination.jobs import JobState
from horn.errors import HornError, NotFound
from horn.rpc.client import RpcClient


class Going(ClusterClient):
    """A cluster whose one worker is there when it is looked at first, and then no more."""

    def __init__(self, names: tuple[str, ...] = ("model.horn",)) -> None:
        self.looks: list[dict[str, Any]] = [{"a": None}]
        self.names = names

    def workers(self) -> dict[str, Any]:
        return self.looks.pop() if self.looks else {}

    def client(self, name: str, member: Any) -> RpcClient:
        raise AssertionError(f"{name} has gone")

    def files(self, job: str) -> dict[str, dict[str, int]]:
        return {"a": dict.fromkeys(self.names, 3)}

    def status(self, job: str) -> Any:
        return SimpleNamespace(result={"host": "a"}, state=JobState.FAILED)


def test_files_of_a_worker_that_has_just_gone_are_not_there(tmp_path: Path):
    assert fetching._fetch_written(Going(), "one-1", "a", tmp_path) == []
    assert not [*tmp_path.iterdir()]


def test_a_model_whose_worker_has_just_gone_is_not_found(tmp_path: Path):
    client = Going()
    client.workers()
    with pytest.raises(NotFound, match="worker a is not up"):
        client.fetch_model("one-1", tmp_path / "model.horn")


def test_no_name_of_a_log_leads_out_of_the_folder(tmp_path: Path):
    """Names are a worker's, and are written here."""
    client = Going(names=("../../told",))
    client.read_all = lambda *_: b"text"  # type: ignore[method-assign]
    with pytest.raises(HornError, match="path '../../told'"):
        fetching.fetch_all(client, "one-1", tmp_path / "here")
    assert not (tmp_path / "told.log").exists()
