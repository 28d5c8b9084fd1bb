"""Checks of what a machine offers that horn needs, with remedies; printed by ``horn doctor``."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from horn.errors import HornError

SHM_BYTES = 256 * 1024 * 1024  # with less, shared memory is soon full


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    is_well: bool
    text: str


def finding(what: str, look: Callable[[], str]) -> Finding:
    """The finding of a check: its result, or the sentence of its error."""
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
    makes = engine.Tape().products  # for float32; from AVX2 on horn itself by default
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


def two_tasks() -> str:
    """Train a small job on two tasks, and say how long it takes."""
    import horn

    begun = time.perf_counter()
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(8, activation="tanh")
    net.output(10, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, horn.data.digits(), batch_size=100, iterations=3)
    horn.train(job, tasks=2)
    return f"{time.perf_counter() - begun:.1f} s"


THIS_MACHINE: dict[str, Callable[[], str]] = {
    "Compiled kernels": _kernels,
    "BLAS": _blas,
    "Encryption (CURVE)": _curve,
    "Shared memory": _shm,
}
