"""A package comes from another host, whatever becomes of the shared folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn.cluster import packing, preparation
from horn.cluster.capacity import HostCapacity
from horn.cluster.file_service import PackageKnown
from horn.cluster.preparation import JobPreparer
from horn.cluster.store import HostStore
from horn.errors import ClusterError


def test_a_package_that_has_come_is_here_while_the_shared_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "job.py").write_text("x = 1\n")
    package = packing.pack(str(tmp_path / "job.py"))
    has, lacks = HostStore(tmp_path / "a"), HostStore(tmp_path / "b", tmp_path / "shared")
    has.put(package.digest, package.packed, iter(package.chunks()))
    lacks.cluster = "cluster"
    (tmp_path / "shared" / "packages" / "cluster").touch()  # no folder: as a full disk
    with pytest.raises(ClusterError, match="--shared"):
        lacks.share(package.digest)

    class Client:
        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def call(self, operation: str, request: Any, kind: Any) -> PackageKnown:
            return PackageKnown(has.has(request.digest))

        def download(self, operation: str, request: Any, kind: Any, **_: Any) -> Any:
            packed, portions = has.get(request.digest)
            return PackageKnown(True, len(packed)), itertools.chain([packed], portions)

    monkeypatch.setattr(preparation, "RpcClient", Client)
    member = SimpleNamespace(endpoint="tcp://a", token=1)
    workers = SimpleNamespace(members=lambda unread: {"a": member, "b": member})
    preparer = JobPreparer(HostCapacity("127.0.0.1:1", 1), "b", lacks, 1)
    preparer._fetch(workers, package.digest)  # type: ignore[arg-type]
    assert lacks.has(package.digest)
    has.close()
    lacks.close()
