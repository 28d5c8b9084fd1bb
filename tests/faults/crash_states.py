"""What a disk may hold after a crash, enumerated from what a program did to it.

The model keeps no promise that POSIX does not make. Until a file's fsync each of its sectors may
be there or not, whatever its size; until a folder's fsync each change to it (a name made, moved or
removed) may be there or not, in any combination, and so with a rename before the data. The fsync
of a file does not keep its name. A rename is there or not, never half.

Source: Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014 (section 3).
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECTOR_BYTES = 512


class Recorder:
    """``os`` for a module that writes: does everything, and notes what reaches the disk.

    ``forgotten(path)`` says whose fsync is left out of the notes, as if it were not in the program.
    """

    def __init__(self, forgotten: Callable[[Path], bool] = lambda path: False) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self._forgotten = forgotten
        self._paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, *args: Any) -> int:
        descriptor = os.open(path, flags, *args)
        self._paths[descriptor] = Path(path)
        if flags & os.O_CREAT:
            self.steps.append(("create", Path(path)))
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        n = os.write(descriptor, data)
        self.steps.append(("write", self._paths[descriptor], bytes(data[:n])))
        return n

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        if not self._forgotten(self._paths[descriptor]):
            self.steps.append(("fsync", self._paths[descriptor]))

    def mkdir(self, path: Any, *args: Any) -> None:
        os.mkdir(path, *args)
        self.steps.append(("mkdir", Path(path)))

    def rename(self, old: Any, new: Any) -> None:
        os.rename(old, new)
        self.steps.append(("rename", Path(old), Path(new)))

    def unlink(self, path: Any) -> None:
        os.unlink(path)
        self.steps.append(("unlink", Path(path)))

    def rmdir(self, path: Any) -> None:
        os.rmdir(path)
        self.steps.append(("unlink", Path(path)))


@dataclass(eq=False)
class File:
    data: bytes = b""
    n_synced: int = 0


@dataclass(eq=False)
class Folder:
    """``names`` as the program sees them, ``synced`` as they are on the disk for sure."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, changes: dict[str, File | Folder | None]) -> None:
        apply(self.names, changes)
        self.changes.append(changes)

    def sync(self) -> None:
        self.synced, self.changes = dict(self.names), []


def apply(names: dict[str, File | Folder], changes: dict[str, File | Folder | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


State = dict[str, Any]  # by name: bytes, or the state of a folder


def scan(path: Path) -> Folder:
    """A folder that is on the disk, all of it."""
    found = Folder()
    for entry in path.iterdir():
        data = b"" if entry.is_dir() else entry.read_bytes()
        found.names[entry.name] = scan(entry) if entry.is_dir() else File(data, len(data))
    found.sync()
    return found


def interleaved(steps: list[tuple[Any, ...]], seed: int) -> list[tuple[Any, ...]]:
    """The same steps with those of the part files mixed, as tasks do them side by side; each file's
    stay in order.
    """
    chance = random.Random(seed)
    ours = [k for k, step in enumerate(steps) if step[1].suffix == ".safetensors"]
    ours = [k for k in ours if ".tmp" in steps[k][1].parent.name]
    queues: dict[Path, list[tuple[Any, ...]]] = {}
    for k in ours:
        queues.setdefault(steps[k][1], []).append(steps[k])
    mixed = list(steps)
    for k in ours:
        path = chance.choice([path for path, queue in queues.items() if queue])
        mixed[k] = queues[path].pop(0)
    return mixed


def crash_states(
    root: Path,
    start: Folder,
    steps: list[tuple[Any, ...]],
    n_random: int,
    seed: int,
    known: set[int],
) -> Iterator[tuple[int, State]]:
    """States that are not ``known`` after a crash behind each step, with how many steps were done.

    Of the pending changes none, all, each alone and all but each are kept, each with the data of
    all files lost, zero, whole and torn; then ``n_random`` more after each step. ``start`` is what
    the disk holds before; it is left as it is.
    """
    chance = random.Random(seed)
    start = copy.deepcopy(start)
    for done in range(len(steps) + 1):
        if done:
            follow(root, start, steps[done - 1])
        pending = [(folder, k) for folder in folders(start) for k in range(len(folder.changes))]
        kept = [set(), set(pending), *({one} for one in pending)]
        kept += [set(pending) - {one} for one in pending]
        choices = [(keep, how) for keep in kept for how in ("lost", "zero", "whole", "torn")]
        for _ in range(n_random):
            keep = {one for one in pending if chance.random() < 0.5}
            choices.append((keep, "any"))
        for keep, how in choices:
            state = remaining(start, keep, how, chance)
            number = hash((done == len(steps), frozen(state)))
            if number not in known:
                known.add(number)
                yield done, state


def frozen(state: State) -> tuple[Any, ...]:
    return tuple((k, frozen(v) if isinstance(v, dict) else v) for k, v in state.items())


def follow(root: Path, start: Folder, step: tuple[Any, ...]) -> None:
    """Do to the model what was done to the disk."""
    what, path, *rest = step
    if what == "fsync" and path == root:
        start.sync()
        return
    if root not in path.parents:
        return  # above the folder: not ours to lose
    parent: Any = start
    for name in path.relative_to(root).parts[:-1]:
        parent = parent.names[name]
    if what == "create":
        parent.change({path.name: File()})
    elif what == "mkdir":
        parent.change({path.name: Folder()})
    elif what == "unlink":
        parent.change({path.name: None})
    elif what == "rename":
        assert rest[0].parent == path.parent
        parent.change({path.name: None, rest[0].name: parent.names[path.name]})
    elif what == "write":
        parent.names[path.name].data += rest[0]
    else:
        node = parent.names[path.name]
        if isinstance(node, Folder):
            node.sync()
        else:
            node.n_synced = len(node.data)


def folders(node: Folder) -> list[Folder]:
    """All that may still be reached, by whatever changes are kept."""
    below = [*node.synced.values(), *(n for c in node.changes for n in c.values())]
    found = [node]
    for child in dict.fromkeys(n for n in below if isinstance(n, Folder)):
        found += folders(child)
    return found


def remaining(
    folder: Folder, keep: set[tuple[Folder, int]], how: str, chance: random.Random
) -> State:
    names = dict(folder.synced)
    for k, changes in enumerate(folder.changes):
        if (folder, k) in keep:
            apply(names, changes)
    return {
        name: remaining(node, keep, how, chance) if isinstance(node, Folder)
        else data_left(node, how, chance)
        for name, node in sorted(names.items())
    }  # fmt: skip


def data_left(file: File, how: str, chance: random.Random) -> bytes:
    synced, pending = file.data[: file.n_synced], file.data[file.n_synced :]
    if how == "any":
        how = chance.choice(("lost", "zero", "whole", "torn", "torn"))
    if how == "lost" or not pending:
        return synced
    if how == "whole":
        return file.data
    if how == "zero":
        return synced + bytes(len(pending))
    left = bytearray(pending)
    for at in range(0, len(left), SECTOR_BYTES):
        if chance.random() < 0.5:
            n = len(left[at : at + SECTOR_BYTES])
            left[at : at + n] = bytes(n)
    if chance.random() < 0.5:
        del left[SECTOR_BYTES * chance.randint(0, len(left) // SECTOR_BYTES) :]
    return synced + bytes(left)


def lay_out(state: State, folder: Path) -> None:
    """Write a state to a real disk."""
    folder.mkdir()
    for name, value in state.items():
        if isinstance(value, dict):
            lay_out(value, folder / name)
        else:
            (folder / name).write_bytes(value)
