"""What a cluster holds: the most memory that its processes had, and what may not be left at the
end of a job.

Memory is VmHWM of /proc/PID/status, the peak as the kernel keeps it: looking now and then misses
what a process takes in its last moments, and never a peak before them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from horn.cluster.agent import MAX_WAITING
from tests.faults.cluster import Cluster
from tests.hosts import Host

LOOK_S, LOOK_FOR_NEW = 0.05, 5  # every fifth time also for processes that are new
ROLES = ("agent", "runner", "task")


def role_of(pid: int) -> str:
    """What a process is of a cluster; empty for others."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().startswith("horn-task-"):
            return "task"
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    if b"-m horn worker " in line:
        return "agent"
    if b"horn.cluster.job_runner" in line:
        return "runner"
    return "waiting task" if b"horn.process.main" in line else ""


def pids_on(hosts: list[Host]) -> dict[Host, list[int]]:
    """The processes of each host, without a command per host."""
    of = {os.stat(f"/run/netns/{host.namespace}").st_ino: host for host in hosts}
    found: dict[Host, list[int]] = {host: [] for host in hosts}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if host := of.get(os.stat(f"/proc/{name}/ns/net").st_ino):
                found[host].append(int(name))
    return found


class Memory:
    """The peaks of a cluster's processes by role, in bytes, while the context lasts."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.peak = dict.fromkeys(ROLES, 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _run(self) -> None:
        known: list[tuple[int, str]] = []
        n_looks = 0
        while not self._is_over.wait(LOOK_S):
            if n_looks % LOOK_FOR_NEW == 0:
                pids = [pid for found in pids_on(self.hosts).values() for pid in found]
                known = [(pid, role) for pid in pids if (role := role_of(pid)) in self.peak]
            n_looks += 1
            for pid, role in known:
                self.peak[role] = max(self.peak[role], _peak(pid))


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def is_at_rest(cluster: Cluster) -> bool:
    """Whether all that the agents keep ready for the next job is there."""
    wanted = Counter({"agent": 1, "runner": 1, "waiting task": min(cluster.slots, MAX_WAITING)})
    return all(
        Counter(role for pid in pids if (role := role_of(pid))) == wanted
        for pids in pids_on(cluster.hosts).values()
    )


def held(cluster: Cluster) -> dict[str, set[str]]:
    """What there is of a cluster that a job could leave: processes, sockets, shared memory, files.

    Of things of which there may be some, each is numbered: sets can be compared.
    """
    found: dict[str, set[str]] = {}
    for host, pids in pids_on(cluster.hosts).items():
        where = host.address
        roles = [role for pid in pids if (role := role_of(pid))]
        found[f"processes of {where}"] = _numbered(roles)
        found[f"listeners of {where}"] = _numbered("tcp" for _ in host.ports())
        told = host.run("ss", "-Htn", "state", "established", check=True).stdout
        found[f"connections of {where}"] = _numbered("tcp" for _ in told.splitlines())
        told = host.run("ss", "-Hxl", check=True).stdout
        found[f"named pipes of {where}"] = _numbered("unix" for _ in told.splitlines())
        for pid in pids:
            if role_of(pid) == "agent":
                found[f"descriptors of the agent on {where}"] = _numbered(_descriptors(pid))
    # Without what tests beside this one have there.
    names = os.listdir("/dev/shm")
    found["shared memory"] = {name for name in names if not name.startswith("horn-test-")}
    found["temporary files"] = set(os.listdir(cluster.environment["TMPDIR"]))
    found["folders of work"] = {str(p) for p in cluster.folder.glob("worker*/jobs/*/work-*")}
    shared = cluster.folder / "shared"
    found["unfinished files"] = {str(p) for p in shared.rglob("*") if p.suffix == ".tmp"}
    return found


def left(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, list[str]]:
    """What is there now and was not before."""
    more = {what: sorted(there - before.get(what, set())) for what, there in after.items()}
    return {what: names for what, names in more.items() if names}


def _descriptors(pid: int) -> Iterator[str]:
    """What an agent has open, by kind."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(entry).partition(":[")[0].partition(" (deleted)")[0]


def _numbered(names: Iterator[str] | list[str]) -> set[str]:
    return {f"{name} {k}" for name, n in Counter(names).items() for k in range(1, n + 1)}
