"""Commands in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.agents import ROOT


@contextlib.contextmanager
def started(*arguments: str, folder: Path, zk: str = "") -> Iterator[subprocess.Popen[str]]:
    """A command, which does not outlive the test. zk : the hosts of its cluster, if it has one."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "horn", *arguments], cwd=folder, text=True,
        env=env | ({"HORN_ZK": zk} if zk else {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """What it said on stderr until its end. Raises AssertionError: where it is, if it goes on."""
    try:
        return process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        raise AssertionError(f"it goes on: {process.communicate()[1][-4000:]}") from None
