"""The audit hook in processes that no test starts itself: agents, job runners, tasks. Experiment
35.

``environment`` gives what an agent has to be started with. Each process then has a file in the
folder: what it is, which files of checkpoints it opened, and what ``audit`` found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.faults import audit

ROLES = {"horn.cluster.job_runner": "runner", "horn.process.main": "task", "worker": "agent"}
WRITING = os.O_WRONLY | os.O_RDWR
CUSTOM = "from tests.faults import watch\nwatch.begin({folder!r})\n"


def environment(folder: Path) -> dict[str, str]:
    """Python imports sitecustomize first of all, and jobs' processes keep PYTHONPATH."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(CUSTOM.format(folder=str(notes)))
    return {"PYTHONPATH": os.pathsep.join([str(folder), audit.ROOT])}


def notes(folder: Path) -> dict[str, list[str]]:
    """What each process noted, by what it is and its pid."""
    told = {}
    for path in (folder / "notes").iterdir():
        role, *lines = path.read_text().splitlines()
        told[f"{role} {path.name}"] = lines
    return told


class _Notes(list[str]):
    """Kept in a file: processes of a job end without a word."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def append(self, line: str) -> None:
        if line not in self:
            super().append(line)
            with open(self.path, "a") as file:
                file.write(line.replace("\n", " ") + "\n")


def begin(folder: str) -> None:
    """In a process, before anything else of it runs."""
    words = " ".join(sys.orig_argv)
    role = next((role for word, role in ROLES.items() if word in words), "other")
    noted = _Notes(f"{folder}/{os.getpid()}")
    noted.append(role)
    audit.found = noted

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            name = os.fsdecode(arguments[0]).rpartition("/")[2]
            if name.startswith("rank-") or name == "MANIFEST.json":
                noted.append(f"{'wrote' if arguments[2] & WRITING else 'read'} {name[:4]}")

    sys.addaudithook(audit.hook)
    sys.addaudithook(opened)
