"""horn doctor: whether this machine, or a whole cluster, has what horn needs."""

from __future__ import annotations

import os
import platform
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn.cli import _cluster

if TYPE_CHECKING:
    from horn.doctor import Finding

SKEW_S = 5.0


@click.command(short_help="Check this machine, or a whole cluster.")
@_cluster.options
@click.option("--cluster", "wants_cluster", is_flag=True, help="Every worker of the cluster, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(zk_hosts: str | None, key_file: str | None, wants_cluster: bool, as_json: bool) -> int:
    """Say what is missing, and what to do; exit code 1 if something is."""
    from horn import terminal

    found = [*_here(key_file)]
    if wants_cluster or zk_hosts:
        found += _there(zk_hosts, key_file)
    wrong = [one for one in found if not one.is_well]
    if as_json:
        checks = [{"what": f.what, "ok": f.is_well, "found": f.text} for f in found]
        terminal.print_json({"schema": "horn.doctor/1", "ok": not wrong, "checks": checks})
    else:
        for one in found:
            click.echo(f"{'ok ' if one.is_well else 'BAD'}  {one.what}: {one.text}")
    return 1 if wrong else 0


def _here(key_file: str | None) -> Iterator[Finding]:
    from horn.cluster.versions import versions
    from horn.doctor import THIS_MACHINE, Finding, finding, two_tasks

    mine = versions()
    is_new = sys.version_info >= (3, 11)
    yield Finding("Python", is_new, f"{platform.python_version()}, horn {mine['horn']}")
    yield from (finding(what, look) for what, look in THIS_MACHINE.items())
    yield finding("Key", lambda: _key(key_file))
    yield finding("Two tasks train", two_tasks)


def _key(key_file: str | None) -> str:
    key = _cluster.key_of(key_file)
    if key is None:
        return "none: only loopback can be used; horn keygen makes one"
    path = Path(key_file or os.environ["HORN_KEY"])
    return f"{key.fingerprint}, mode {stat.S_IMODE(path.stat().st_mode):04o}"


def _there(zk_hosts: str | None, key_file: str | None) -> Iterator[Finding]:
    from horn.cluster.job_controller import host_of
    from horn.cluster.versions import versions
    from horn.doctor import Finding, finding
    from horn.errors import HornError

    begun = time.perf_counter()
    try:
        cluster: Any = _cluster.open_cluster(zk_hosts, key_file).__enter__()
    except HornError as error:
        yield Finding("ZooKeeper", False, str(error))
        return
    try:
        yield Finding("ZooKeeper", True, f"{zk_hosts} in {time.perf_counter() - begun:.2f} s")
        asked_s = time.time()
        theirs_s = cluster.reader.now_s()
        skew = theirs_s - min(max(theirs_s, asked_s), time.time())  # the answer took its time
        text = f"ZooKeeper's is {skew:+.1f} s from this one"
        yield Finding("Clock", abs(skew) < SKEW_S, text)
        mine, members = versions(), cluster.workers()
        up = {*members, *cluster.left_out}
        down = sorted({*cluster.coord.children(cluster.paths.all_orders())} - up)
        yield Finding("Workers", bool(members) and not down, _up(len(members), down))
        if len(members) > 1:
            yield _common_folder({n: host_of(m, {}).shared for n, m in members.items()})
        for name, reason in cluster.left_out.items():
            yield Finding(f"Worker {name}", False, f"left out: {reason}")
        for name, member in members.items():
            theirs = {k: member.versions.get(k) for k in mine}
            words = ", ".join(f"{k} {v}" for k, v in theirs.items())
            if theirs != mine:
                words += f"; here {', '.join(f'{k} {v}' for k, v in mine.items())}"
            yield Finding(f"Worker {name}, versions", theirs == mine, words)
            yield finding(f"Worker {name}, service", lambda n=name, m=member: _call(cluster, n, m))  # type: ignore[misc]
    finally:
        cluster.__exit__()


def _up(n: int, down: Sequence[str]) -> str:
    """How many workers are up, in words. down : those that went without giving back their place."""
    if not down:
        return f"{n} up"
    return (
        f"{n} of {n + len(down)} up; {', '.join(down)} was killed or cut off: start it again, or, "
        f"if it will not come back,  horn rm --worker {down[0]}"
    )


def _common_folder(shared: Mapping[str, str]) -> Finding:
    """Whether workers see one folder. shared : the id of that of --shared by worker, or ""."""
    from horn.doctor import Finding

    by_folder = dict[str, list[str]]()
    for name, folder in sorted(shared.items()):
        by_folder.setdefault(folder, []).append(name)
    without = by_folder.pop("", [])
    lost = "a job over several of them saves no checkpoints"
    if not by_folder:  # as it may be meant
        return Finding("Common folder", True, f"none (horn worker --shared): {lost}")
    if len(by_folder) == 1 and not without:
        return Finding("Common folder", True, f"the same on {', '.join(sorted(shared))}")
    kinds = [f"one on {', '.join(names)}" for names in by_folder.values()]
    if without:
        kinds.append(f"none on {', '.join(without)}")
    text = f"{'; '.join(kinds)}: {lost}. See that --shared is mounted, and the same, on all"
    return Finding("Common folder", False, text)


def _call(cluster: Any, name: str, member: Any) -> str:
    from horn.cluster.file_service import PackageKnown, PackageRequest

    begun = time.perf_counter()
    cluster.client(name, member).call("have", PackageRequest("0" * 64), PackageKnown, timeout_s=5.0)
    return f"{member.endpoint} in {1000 * (time.perf_counter() - begun):.0f} ms"
