"""Traps in a task's own process: it kills itself at a certain point of the code, once.

``Trap`` is a schedule, so it comes into the process with the job, and is asked before each batch.
The time of the kill is in the file ``mark``, that of the first batch afterwards in ``mark``.again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUSHING = "pushing"
HELD_S = 60.0  # at most, that another task is held up for


@dataclass(frozen=True)
class Trap:
    """Kills task ``rank`` in a phase of an iteration, or of its start."""

    mark: str
    phase: str
    rank: int = 1
    iteration: int = 25
    initial: float = 0.05

    def __post_init__(self) -> None:
        import tests.faults.springs as springs

        springs.set_in_start(self.phase, self.mark, self.rank, self.iteration)

    def at(self, iteration: int) -> float:
        import tests.faults.springs as springs

        springs.set_at(self.phase, self.mark, self.rank, iteration == self.iteration)
        return self.initial


@dataclass(frozen=True)
class Traps:
    """One after another: ``traps`` has a line "mark|point|rank" for each, of a file, a point of
    ``POINTS`` and a task. Who starts meets the first whose file is not there yet. At the point
    "checkpointed" it dies in ``iteration``, once a checkpoint is complete that is beside the file.
    together : none waits for the one before it.
    """

    traps: str
    together: bool = False
    iteration: int = 25
    initial: float = 0.05

    def __post_init__(self) -> None:
        import tests.faults.springs as springs

        mark, point = springs.next_trap(self.traps, self.together)
        if mark:
            springs.POINTS[point](lambda: springs.die(mark))

    def at(self, iteration: int) -> float:
        if iteration == self.iteration:
            import tests.faults.springs as springs

            mark, point = springs.next_trap(self.traps, self.together)
            if point == "checkpointed":
                springs.wait_for_checkpoint(mark)
                springs.die(mark)
        return self.initial


@dataclass(frozen=True)
class Damages(Traps):
    """Traps in tasks all of whose frames go out damaged first, from their greetings on.
    ``damaged``.PID says how many that were when the first batch began.
    """

    damaged: str = ""

    def __post_init__(self) -> None:
        import tests.faults.springs as springs

        super().__post_init__()
        if springs.my_rank() >= 0:
            springs.damage_frames()

    def at(self, iteration: int) -> float:
        import tests.faults.springs as springs

        springs.note_damage(self.damaged)
        return super().at(iteration)


@dataclass(frozen=True)
class Stops:
    """Task 1 stands at one point after the other, of one start each: ``stops`` has a line
    "mark|point" for each, as ``Stands``. At "running" it stands in ``iteration``, once there is a
    checkpoint beside the file. It has to be ended there.
    """

    stops: str
    iteration: int = 60
    initial: float = 0.05

    def __post_init__(self) -> None:
        import tests.faults.springs as springs

        mark, point = springs.next_stop(self.stops)
        if mark and point != "running":
            springs.POINTS[point](lambda: springs.stand(mark))

    def at(self, iteration: int) -> float:
        if iteration >= self.iteration:
            import tests.faults.springs as springs

            mark, point = springs.next_stop(self.stops)
            if point == "running":
                springs.wait_for_checkpoint(mark)
                springs.stand(mark)
        return self.initial


@dataclass(frozen=True)
class Holds:
    """A schedule whose tasks wait before an iteration until the file ``mark`` is there, so that
    they are not through before something was done to them. Who starts when it is there, waits for
    the file ``second``, if that has a name.
    """

    mark: str
    iteration: int
    second: str = ""
    initial: float = 0.05

    def __post_init__(self) -> None:
        import os

        import tests.faults.springs as springs

        if springs.my_rank() >= 0:
            if self.second and os.path.exists(self.mark):
                springs.wait_for(self.second)
            springs.hold_before(self.iteration, self.mark)

    def at(self, iteration: int) -> float:
        return self.initial


@dataclass(frozen=True)
class Late:
    """A schedule for which tasks, not servers, come ``late_s`` after all others, once there is the
    file ``mark``.
    """

    mark: str
    n_workers: int
    late_s: float = 2.0
    initial: float = 0.05

    def __post_init__(self) -> None:
        import os
        import time

        import tests.faults.springs as springs

        if 0 <= springs.my_rank() < self.n_workers and os.path.exists(self.mark):
            time.sleep(self.late_s)  # being late is what is tested

    def at(self, iteration: int) -> float:
        return self.initial


def hold_before(iteration: int, mark: str) -> None:
    """In this process no batch of that iteration begins until the file is there. Not every strategy
    asks a task's schedule before it.
    """
    from horn.process.between_updates import BetweenUpdates

    before_update = BetweenUpdates.before_update

    def waits(control: BetweenUpdates, number: int) -> None:
        before_update(control, number)
        if number == iteration:
            wait_for(mark)

    BetweenUpdates.before_update = waits  # type: ignore[method-assign]


def wait_for(path: str) -> None:
    """Until a file is there."""
    ends = time.monotonic() + HELD_S
    while not os.path.exists(path):
        if time.monotonic() > ends:
            raise TimeoutError(path)
        time.sleep(0.002)  # between two looks


def my_rank() -> int:
    """-1 in a process that is no task."""
    name = Path("/proc/self/comm").read_text().strip()
    return int(name.rpartition("-")[2]) if name.startswith("horn-task-") else -1


def die(mark: str) -> None:
    """By SIGKILL, if nobody has before."""
    with contextlib.suppress(FileExistsError):
        write(mark)
        os.kill(os.getpid(), signal.SIGKILL)


def write(path: str) -> None:
    """The time, whole or not at all."""
    if os.path.exists(path):
        raise FileExistsError(path)
    Path(f"{path}.new").write_text(repr(time.monotonic()))
    os.rename(f"{path}.new", path)


def set_in_start(phase: str, mark: str, rank: int, iteration: int) -> None:
    """What is set before the job begins. Of servers' schedules no task is asked."""
    if my_rank() != rank:
        return
    if phase == "start" and not os.path.exists(mark):
        from horn.process.rendezvous import Rendezvous

        after(Rendezvous, "join", lambda: die(mark))  # it is listed, and others wait for it
    if phase == PUSHING:
        from horn.parameter_server.client import ParameterClient

        give = ParameterClient.give

        def gives(wire: Any, part: int) -> None:
            """The server has been sent something of a push, and has not answered."""
            give(wire, part)
            if os.path.exists(mark):
                _note_again(mark)
            elif wire._push.clock >= iteration:
                die(mark)

        ParameterClient.give = gives  # type: ignore[method-assign]


def set_at(phase: str, mark: str, rank: int, is_due: bool) -> None:
    """What is set before a batch."""
    mine = my_rank()
    if mine == rank and os.path.exists(mark):
        _note_again(mark)
    elif is_due and mine == rank and phase in SET:
        SET[phase](lambda: die(mark))
    elif is_due and mine >= 0 and phase == "waiting":
        _hold(mark)
    elif is_due and mine >= 0 and phase == "barrier":
        before(_group().barrier, "cross", lambda: _hold(mark))


def _note_again(mark: str) -> None:
    with contextlib.suppress(FileExistsError):
        write(f"{mark}.again")


def _hold(mark: str) -> None:
    """The other task is to wait for this one, until it is dead."""
    ends = time.monotonic() + HELD_S
    while not os.path.exists(mark) and time.monotonic() < ends:
        time.sleep(0.001)  # between two looks


def after(where: Any, name: str, then: Callable[[], None]) -> None:
    """Do something once a method was called."""
    method = getattr(where, name)

    def changed(*args: Any, **named: Any) -> Any:
        found = method(*args, **named)
        then()
        return found

    setattr(where, name, changed)


def before(where: Any, name: str, then: Callable[[], None]) -> None:
    method = getattr(where, name)

    def changed(*args: Any, **named: Any) -> Any:
        then()
        return method(*args, **named)

    setattr(where, name, changed)


def _in_superstep(array: str) -> Callable[[Callable[[], None]], None]:
    """After the first piece of work of a batch that has made this array."""

    def set_(kill: Callable[[], None]) -> None:
        def trace(phase: str, label: str, *_: object) -> None:
            if phase == "compute" and label.endswith(array):
                kill()

        _group().on_trace = trace

    return set_


def _group() -> Any:
    """The group whose member asks for the schedule."""
    frame: Any = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "group"):
        frame = frame.f_back
    return frame.f_locals["self"].group


def _in_collect(kill: Callable[[], None]) -> None:
    """While it waits for blocks of a task that is held up."""
    before(type(_group().transport), "collect", threading.Timer(0.1, kill).start)


def _in_barrier(kill: Callable[[], None]) -> None:
    """It has arrived at the barrier in ZooKeeper, and waits for a task that is held up."""
    wake = _group().barrier._wake
    wait = wake.wait

    def waits(timeout_s: float) -> bool:
        found: bool = wait(min(timeout_s, 0.2))
        if not found:  # nothing has come for so long: all that is missing is the other one
            kill()
        return found

    wake.wait = waits


def _in_checkpoint(kill: Callable[[], None]) -> None:
    """Its part is written, and not on the disk."""
    before(os, "fsync", kill)


def _in_cleanup(kill: Callable[[], None]) -> None:
    """All is trained; what it has is to be handed over."""
    before(sys.modules["horn.process.main"].TaskProcess, "send_share", kill)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Stands:
    """Task ``rank`` waits at a point of its start: it makes the file ``mark``.here and goes on when
    there is ``mark``.go; once. after : a task that dies first, once there is a checkpoint, when the
    iteration is done that ``iteration`` says, so that the start is a second one.
    """

    mark: str
    point: str
    rank: int
    folder: str = ""
    iteration: int = 0
    initial: float = 0.05

    def __post_init__(self) -> None:
        import os

        import tests.faults.springs as springs

        is_due = not self.folder or os.path.exists(f"{self.mark}.died")
        if springs.my_rank() == self.rank and is_due:
            springs.POINTS[self.point](lambda: springs.stand(self.mark))

    def at(self, iteration: int) -> float:
        import tests.faults.springs as springs

        if self.folder and iteration == self.iteration and springs.my_rank() == self.rank:
            springs.wait_for_checkpoint(f"{self.folder}/x")
            springs.die(f"{self.mark}.died")
        return self.initial


def stand(mark: str) -> None:
    """Once: others that come here later go on."""
    with contextlib.suppress(FileExistsError):
        write(f"{mark}.here")
        wait_for(f"{mark}.go")


def next_stop(stops: str) -> tuple[str, str]:
    """The file and the point of the first where nobody has stood; empty if it is not for us."""
    for stop in stops.splitlines():
        mark, point = stop.split("|")
        if not os.path.exists(f"{mark}.here"):
            return (mark, point) if my_rank() == 1 else ("", "")
    return "", ""


_noisy: list[Any] = []  # links of this process


def damage_frames() -> None:
    """Of every transport that is opened in this process from now on, once two have greeted: what
    comes before that is a stranger's, and refused by name.
    """
    from horn.process.rendezvous import Rendezvous
    from tests.faults.noise import Noisy, flipped

    opened = Rendezvous._open

    def opens(meeting: Rendezvous, *of: Any) -> Any:
        found: Any = opened(meeting, *of)
        found.link = Noisy(found.link, _behind_greetings(flipped(my_rank())))
        found.link.is_on = True
        _noisy.append(found.link)
        return found

    Rendezvous._open = opens  # type: ignore[method-assign]


def _behind_greetings(wrong: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    from horn.wire.frames import decode
    from horn.wire.messages import Hello, Welcome

    def behind(parts: Any) -> list[Any]:
        meta = decode([bytes(part) for part in parts]).meta
        return [] if isinstance(meta, (Hello, Welcome)) else wrong(parts)

    return behind


def note_damage(mark: str) -> None:
    """Once."""
    path = Path(f"{mark}.{os.getpid()}")
    if _noisy and not path.exists():
        path.write_text(str(sum(link.n_wrong for link in _noisy)))


def next_trap(traps: str, together: bool) -> tuple[str, str]:
    """The file and the point of the next; empty if it is not for this process. One attempt has one
    trap: who was started before the last went off is of that attempt still.
    """
    for trap in traps.splitlines():
        mark, point, rank = trap.split("|")
        if not os.path.exists(mark) and my_rank() == int(rank):
            return mark, point
        if together:
            continue
        if not os.path.exists(mark):
            return "", ""
        if _started_at() < float(Path(mark).read_text()) - 1 / os.sysconf("SC_CLK_TCK"):
            return "", ""
    return "", ""


def _started_at() -> float:
    """This process, on the monotonic clock, to a tick."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(words[19]) / os.sysconf("SC_CLK_TCK")


def wait_for_checkpoint(mark: str) -> None:
    """Until one is complete in a folder below the file's."""
    ends = time.monotonic() + HELD_S
    # os.walk goes on where a folder that it has seen is renamed before it looks into it.
    while not any(
        "MANIFEST.json" in files and re.search(r"/ckpt-[^/]*[0-9]$", folder)
        for folder, _, files in os.walk(Path(mark).parent)
    ):
        if time.monotonic() > ends:
            raise TimeoutError(f"no checkpoint beside {mark}")
        time.sleep(0.002)  # between two looks


def _at(module: str, name: str, when: Callable[..., None]) -> Callable[[Callable[[], None]], None]:
    """Before or after something that the process has there by this name, Class.method or not."""

    def set_(kill: Callable[[], None]) -> None:
        where: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            where = getattr(where, part)
        when(where, last, kill)

    return set_


POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "reading": lambda kill: kill(),  # its payload
    "joining": _at("horn.process.rendezvous", "Rendezvous.__init__", before),
    "joined": _at("horn.process.rendezvous", "Rendezvous.join", after),  # it is listed: others wait
    "connecting": _at("horn.process.rendezvous", "Rendezvous.group", before),
    "compiling": _at("horn.process.main", "TaskContext", before),
    "compiled": _at("horn.process.main", "TrainingLoop", before),
    "going on": _at("horn.process.main", "TaskProcess._resume", after),
    "crossing": _at("horn.runtime.group", "Group.cross", before),  # all are to begin together
    "beginning": _at("horn.training.loop", "TrainingLoop.run", before),
    "checkpointed": lambda kill: None,  # ``Traps.at``
    "first checkpoint": _at("os", "fsync", before),  # its part is written, and not on the disk
    # of a server that keeps what it was told
    "serving": _at("horn.process.server_discovery", "served", before),
    "coming back": _at("horn.parameter_server.journal", "Journal.recover", after),
}
SET: dict[str, Callable[[Callable[[], None]], None]] = {
    "forward": _in_superstep("layer1.output"),
    "backward": _in_superstep("layer1.gradient"),
    "waiting": _in_collect,
    "barrier": _in_barrier,
    "checkpointing": _in_checkpoint,
    "cleanup": _in_cleanup,
}
