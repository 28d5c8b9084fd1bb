"""horn doctor: whether this machine, or a whole cluster, has what horn needs."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from horn.cli import _cluster

SHM_BYTES = 256 * 1024 * 1024  # less than that is soon too little for shared memory
SKEW_S = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    is_well: bool
    text: str


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

    mine = versions()
    is_new = sys.version_info >= (3, 11)
    yield Finding("Python", is_new, f"{platform.python_version()}, horn {mine['horn']}")
    for what, look in (
        ("Compiled kernels", _kernels),
        ("BLAS", _blas),
        ("Encryption (CURVE)", _curve),
        ("Shared memory", _shm),
        ("Key", lambda: _key(key_file)),
        ("Two tasks train", _two_tasks),
    ):
        yield _finding(what, look)


def _finding(what: str, look: Callable[[], str]) -> Finding:
    from horn.errors import HornError

    try:
        return Finding(what, True, look())
    except (HornError, OSError, ImportError) as error:
        return Finding(what, False, str(error))


def _kernels() -> str:
    import horn._kernels.blas
    import horn._kernels.engine
    import horn._kernels.mailbox

    return str(Path(horn._kernels.engine.__file__).name)


def _blas() -> str:
    import numpy as np
    from threadpoolctl import threadpool_info

    from horn._kernels import engine

    np.dot(np.ones(2), np.ones(2))
    found = [f"{x['internal_api']} {x.get('version')}" for x in threadpool_info()]
    cores = len(os.sched_getaffinity(0))
    makes = engine.Tape().products  # of float32: where there is AVX-512 horn itself, by default
    return f"{', '.join(found) or 'the one of NumPy'} · {cores} cores · products by {makes}"


def _curve() -> str:
    from horn.transport._zeromq import has_curve

    if not has_curve():
        raise OSError("libzmq was built without CURVE; install pyzmq from its wheel")
    return "libzmq has it"


def _shm() -> str:
    usage = shutil.disk_usage("/dev/shm")
    text = f"{usage.free // 1_000_000:,} MB free of {usage.total // 1_000_000:,} MB"
    if usage.free < SHM_BYTES:
        raise OSError(f"{text} in /dev/shm; in a container give it more (--shm-size=1g)")
    return text


def _key(key_file: str | None) -> str:
    key = _cluster.key_of(key_file)
    if key is None:
        return "none: only loopback can be used; horn keygen makes one"
    path = Path(key_file or os.environ["HORN_KEY"])
    return f"{key.fingerprint}, mode {stat.S_IMODE(path.stat().st_mode):04o}"


def _two_tasks() -> str:
    import horn

    begun = time.perf_counter()
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(8, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, horn.data.digits(), batch_size=100, iterations=3)
    horn.train(job, tasks=2)
    return f"{time.perf_counter() - begun:.1f} s"


def _there(zk_hosts: str | None, key_file: str | None) -> Iterator[Finding]:
    from horn.cluster.versions import versions
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
        theirs_s = cluster.now_s()
        skew = theirs_s - min(max(theirs_s, asked_s), time.time())  # the answer took its time
        text = f"ZooKeeper's is {skew:+.1f} s from this one"
        yield Finding("Clock", abs(skew) < SKEW_S, text)
        mine, members = versions(), cluster.workers()
        yield Finding("Workers", bool(members), f"{len(members)} up")
        for name, member in members.items():
            theirs = {k: member.versions.get(k) for k in mine}
            words = ", ".join(f"{k} {v}" for k, v in theirs.items())
            if theirs != mine:
                words += f"; here {', '.join(f'{k} {v}' for k, v in mine.items())}"
            yield Finding(f"Worker {name}, versions", theirs == mine, words)
            yield _finding(f"Worker {name}, service", lambda n=name, m=member: _call(cluster, n, m))  # type: ignore[misc]
    finally:
        cluster.__exit__()


def _call(cluster: Any, name: str, member: Any) -> str:
    from horn.cluster.file_service import PackageKnown, PackageRequest

    begun = time.perf_counter()
    cluster.client(name, member).call("have", PackageRequest("0" * 64), PackageKnown, timeout_s=5.0)
    return f"{member.endpoint} in {1000 * (time.perf_counter() - begun):.0f} ms"
