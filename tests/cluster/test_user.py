"""Jobs run as another user than the agent, which is root and holds the key: what they cannot reach,
and that it does not follow what they leave.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.cluster.file_service import FileService, ReadRequest
from horn.cluster.resume import resume
from horn.cluster.store import HostStore, LogFile
from horn.cluster.user import JobUser, opened
from horn.coordination.jobs import JobState
from horn.errors import JobError, NotFound
from horn.process.limits import environment
from tests.cluster.agents import FOREVER, Agents, agents
from tests.passable import can_be_another_user, open_folder, passable

UID = 54321
SOMEBODY = JobUser(str(UID), UID, UID, "/")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

# Beside training, the job says who it is, and what it gets of what is the agent's.
JOB = """
import os
from dataclasses import dataclass

import horn
import job as plain

@dataclass(frozen=True)
class Spy:
    key: str
    ours: str

    def at(self, iteration):
        if self.key and iteration == 3:
            for path in (self.key, self.ours, self.ours + "/packages", self.ours + "/lock"):
                try:
                    found = os.listdir(path) if os.path.isdir(path) else open(path).read()
                except PermissionError as error:
                    found = error.strerror
                print("spied", os.getresuid(), os.getresgid(), os.getgroups(), path, found)
            print("home at", os.environ["HOME"], flush=True)
        return 0.1

def job(key: str = "", ours: str = "", epochs: int = 3):
    return plain.job(epochs).with_settings(optimizer=horn.SGD(Spy(key, ours)))
"""


def test_who_does_not_exist_or_may_not_be_is_said(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(JobError, match="--user nobody-of-that-name: this machine has no such user"):
        JobUser.named("nobody-of-that-name")
    with pytest.raises(JobError, match=r"--user -1: this machine has no such user"):
        JobUser.named("-1")
    with pytest.raises(JobError, match="--user 99999999999: this machine has no such user"):
        JobUser.named("99999999999")
    for root in ("root", "0"):
        with pytest.raises(JobError, match="that is root; name a user who may do less"):
            JobUser.named(root)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(JobError, match="only a worker that runs as root .* has uid 1000"):
        JobUser.named(str(UID))


@as_root
def test_a_user_is_found_by_name_and_by_number():
    entry = next(e for e in pwd.getpwall() if e.pw_uid)
    by_name = JobUser.named(entry.pw_name)
    assert by_name == JobUser.named(str(entry.pw_uid))
    assert (by_name.uid, by_name.gid, by_name.home) == (entry.pw_uid, entry.pw_gid, entry.pw_dir)
    assert JobUser.named(str(UID)) == SOMEBODY
    assert SOMEBODY.environment["HOME"] == "/" and SOMEBODY.environment["USER"] == str(UID)


@as_root
def test_what_is_given_is_given_whole_and_no_link_is_followed(tmp_path: Path):
    (tmp_path / "mine").write_text("root's")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(tmp_path / "mine")
    (tree / "a" / "folder").symlink_to(tmp_path)
    SOMEBODY.give(tree)
    for path in (tree, tree / "a", tree / "a" / "b", tree / "a" / "b" / "file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (UID, UID)
    assert tmp_path.stat().st_uid == (tmp_path / "mine").stat().st_uid == 0
    SOMEBODY.give(tree)  # it is already
    with pytest.raises(JobError, match=f"belongs to uid {UID}, and jobs run as other"):
        JobUser("other", UID + 1, UID + 1, "/").give(tree)
    (tmp_path / "another").symlink_to(tmp_path)
    with pytest.raises(JobError, match="belongs to uid 0"):
        SOMEBODY.give(tmp_path / "another")


@as_root
def test_only_what_a_job_writes_is_its_users(tmp_path: Path):
    store = HostStore(tmp_path / "a", tmp_path / "shared", SOMEBODY)
    try:
        made = {store.logs("j"), store.kept("j")}
        assert {path.stat().st_uid for path in made} == {UID}
        for folder in (tmp_path / "a", tmp_path / "shared"):
            for path in (folder, *folder.rglob("*")):
                found = path.stat()
                mode = stat.S_IMODE(found.st_mode)
                assert (found.st_uid == UID) == (path in made), path
                # others may at most pass through
                assert mode & 0o077 in ((0o011, 0) if path.is_dir() else (0,)), (path, oct(mode))
        assert stat.S_IMODE((tmp_path / "a" / "packages").stat().st_mode) == 0o700
    finally:
        store.close()


@as_root
def test_folders_that_others_may_change_are_refused(tmp_path: Path):
    """Whoever may rename the folder of a worker puts another in its place."""
    folder = tmp_path / "theirs" / "a"
    folder.mkdir(parents=True)
    (tmp_path / "theirs").chmod(0o770)
    with pytest.raises(JobError, match=f"{tmp_path}/theirs has mode 0770 .*chmod go-w"):
        HostStore(folder, None, SOMEBODY)
    (tmp_path / "theirs").chmod(0o1777)  # there nobody renames what is root's
    HostStore(folder, None, SOMEBODY).close()
    os.chown(tmp_path / "theirs", UID, UID)
    with pytest.raises(JobError, match=f"{tmp_path}/theirs has .* belongs to uid {UID}"):
        HostStore(folder, None, SOMEBODY)
    HostStore(folder).close()


@pytest.fixture(params=["link", "hard link", "pipe", "folder"])
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """In the place of a log, made by a job that would like to see what the agent sees."""
    (tmp_path / "secret").write_text("a line that the agent may read\n")
    store = HostStore(tmp_path / "a")
    path = store.logs("j") / "g0.t0.log"
    store.close()
    if request.param == "link":
        path.symlink_to(tmp_path / "secret")
    elif request.param == "hard link":
        path.hardlink_to(tmp_path / "secret")
    elif request.param == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    yield path


@pytest.mark.timeout(20)
def test_a_trap_is_neither_read_nor_written(trap: Path, tmp_path: Path):
    with pytest.raises(JobError, match="cannot be opened|is a link or no regular file"):
        LogFile(trap)
    with pytest.raises(JobError, match="cannot be opened|is a link or no regular file"):
        opened(trap, os.O_RDONLY)
    store = HostStore(tmp_path / "a")
    service: Any = SimpleNamespace(on=lambda *_, **__: None)
    file_service = FileService(store, service, lambda: ())
    try:
        assert store.files("j") == {}
        call: Any = SimpleNamespace(request=ReadRequest("j", "g0.t0"), is_over=False)
        with pytest.raises(NotFound, match="there is no g0.t0 here"):
            file_service.read(call)
    finally:
        file_service.close()
        store.close()
    assert (tmp_path / "secret").read_text() == "a line that the agent may read\n"


def test_a_file_and_no_file(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"abc")
    with open(tmp_path / "file", "rb", opener=opened) as file:
        assert file.read() == b"abc"
    with pytest.raises(NotFound, match="there is no .*missing"):
        opened(tmp_path / "missing", os.O_RDONLY)


@pytest.fixture
def cluster() -> Iterator[Agents]:
    if not can_be_another_user():
        pytest.skip("needs root, and a mount namespace with overlay file systems")
    with open_folder() as folder, passable() as before, agents(folder) as made:
        made.before, made.options = before, ["--user", str(UID)]
        made.make_key()
        (folder / "spy.py").write_text(JOB)
        yield made


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_job_of_another_user_trains_stops_and_goes_on_and_sees_no_key(
    cluster: Agents, tmp_path: Path
):
    cluster.start("a")
    spied = ("--key", str(cluster.key_file), "--ours", str(cluster.folder / "a"))
    with cluster.client() as client:
        job = cluster.submit(client, *spied, "--epochs", FOREVER, tasks=2, checkpoint_every=50,
                             target=cluster.folder / "spy.py")  # fmt: skip
        cluster.wait_running(client, job, 60)
        agent = cluster.processes["a"].pid
        tasks = cluster.tasks("a")
        runners = {_of(pid, "PPid")[0] for pid in tasks}
        owners = {_of(pid, "Uid") for pid in (*tasks, *runners)}
        client.stop(job, now=False)
        assert cluster.wait_ended(client, job).state is JobState.STOPPED, cluster.said()
        resume(client, job)
        saved = int(client.status(job).record.checkpoint)
        cluster.wait_running(client, job, saved + 10)
        text = _log(client, job)
        client.stop(job, now=True)
        assert cluster.wait_ended(client, job).state is JobState.STOPPED, cluster.said()
        ended = cluster.submit(client, tasks=2, target=cluster.folder / "spy.py")
        assert cluster.wait_ended(client, ended).state is JobState.SUCCEEDED, cluster.said()
        remote_files.fetch_model(client, ended, tmp_path / "m.horn")
        client.remove(ended)
    assert _of(agent, "Uid") == (0,) * 4 and len(tasks) == 2 and owners == {(UID,) * 4}
    assert len(runners) == 1 and agent not in runners
    who = re.escape(f"spied {(UID,) * 3} {(UID,) * 3} []")
    refused = re.findall(rf"{who} (\S+) Permission denied", text)
    ours = str(cluster.folder / "a")
    assert refused[:4] == [str(cluster.key_file), ours, f"{ours}/packages", f"{ours}/lock"], text
    assert "home at /\n" in text
    kept = cluster.folder / "a" / "jobs" / job / "kept"
    assert {path.lstat().st_uid for path in (kept, *kept.rglob("*"))} == {UID}
    assert not (cluster.folder / "a" / "jobs" / ended).exists()


def _of(pid: int, what: str) -> tuple[int, ...]:
    """Numbers of a line of its status. Uid: real, effective, saved, of the file system."""
    (found,) = re.findall(rf"^{what}:\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return tuple(map(int, found.split()))


def _log(client: ClusterClient, job: str) -> str:
    return remote_files.read(client, job, "a", "g0.t0")[1].decode()


@as_root
@pytest.mark.cluster
def test_what_the_user_cannot_read_is_said_at_the_start(tmp_path: Path):
    """pytest's folders are root's alone."""
    tmp_path.chmod(0o700)
    with pytest.raises(JobError) as caught:
        SOMEBODY.check(tmp_path, environment(SOMEBODY.environment))
    assert f"jobs cannot run as {UID} (uid {UID}): " in str(caught.value)
    assert "Permission denied" in str(caught.value) and str(tmp_path) in str(caught.value)
