"""Faults that fall into a start, and into the repair of an earlier fault.

Each point of a task's start (``springs.POINTS``) is met twice: in the first attempt of a run, and
in the attempt that follows a kill, so that a second fault comes while the first is repaired. The
result is that of a run without, the notes name what happened in its order, and nothing is left.

    pytest -m slow -s tests/faults/test_starts.py
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.errors import TaskFailed
from horn.strategies.downpour import Downpour
from tests.cluster.agents import ROOT, alive
from tests.cluster.helpers import wait_until
from tests.faults import clock
from tests.faults.cluster import until
from tests.faults.springs import HELD_S, Damages, Stands, Trap, Traps
from tests.faults.test_checkpoint_storage import fill, small_disk
from tests.faults.test_clock import JUMPS
from tests.faults.test_downpour import Sprung
from tests.faults.test_kills import EVERY, LOADED_S, Watch, job, nothing_is_left, same_history
from tests.faults.test_phases import PINS
from tests.support.runs import bits

pytestmark = [pytest.mark.net, pytest.mark.cluster]
__all__ = ["nothing_is_left", "small_disk"]  # fixtures
N_ITERATIONS = 40
FIRST = ["reading", "joining", "joined", "connecting", "compiling", "compiled", "crossing",
         "beginning", "first checkpoint"]  # fmt: skip
AGAIN = [*FIRST[:-1], "going on", "first checkpoint"]


def trapped(*traps):
    """The job with traps: (file, point, rank) each."""
    schedule = Traps("\n".join(f"{mark}|{point}|{rank}" for mark, point, rank in traps))
    return job(N_ITERATIONS, optimizer=horn.SGD(schedule, momentum=0.9))


def disturbed(folder, traps, **settings):
    """A run whose tasks die there, one after another; what it came to, and its notes."""
    watch = Watch()
    marks = [folder / f"mark{number}" for number in range(len(traps))]
    given = trapped(*((m, point, rank) for m, (point, rank) in zip(marks, traps, strict=True)))
    run = horn.train(given, checkpoints=folder / "c", checkpoint_every=EVERY, progress=watch,
                     **settings)  # fmt: skip
    for mark, (point, _) in zip(marks, traps, strict=True):
        assert mark.exists(), f"no task was killed at {point!r}"
    killed = [float(mark.read_text()) for mark in marks]
    assert killed == sorted(killed)
    assert not list((folder / "c").glob("*.tmp"))
    return run, watch, killed


def notes_name_the_kills(watch, ranks):
    assert len(watch.notes) == len(ranks), watch.notes
    for note, rank in zip(watch.notes, ranks, strict=True):
        assert note.startswith("Restarting from iteration ")
        assert f"First failure: task {rank} " in note and "was killed by SIGKILL" in note


def expect_no_trace(folder, traps, calm, **settings):
    """As a run that nothing disturbed; the seconds from each kill to the note of it."""
    run, watch, killed = disturbed(folder, traps, **settings)
    assert bits(run) == bits(calm)
    same_history(run, calm)
    notes_name_the_kills(watch, [rank for _, rank in traps])
    return [noted - at for noted, at in zip(watch.noted_at, killed, strict=True)]


SHAPES = [{"tasks": 2}, {"groups": 2, "tasks": 2}]


@pytest.fixture(scope="module")
def calm():
    found = {}

    def run(**settings):
        key = str(settings)
        if key not in found:
            found[key] = horn.train(job(N_ITERATIONS), **settings)
        return found[key]

    return run


@pytest.mark.parametrize("point", ["joined", "compiling", "first checkpoint"])
def test_a_kill_in_a_start_leaves_no_trace(point, tmp_path, calm):
    took = expect_no_trace(tmp_path, [(point, 1)], calm(tasks=2), tasks=2)
    assert max(took) <= LOADED_S


@pytest.mark.parametrize("point", ["connecting", "going on"])
def test_a_kill_in_a_recovery_leaves_no_trace(point, tmp_path, calm):
    took = expect_no_trace(tmp_path, [("checkpointed", 1), (point, 0)], calm(tasks=2), tasks=2)
    assert max(took) <= LOADED_S


def test_three_faults_in_a_row_each_in_the_repair_of_the_last(tmp_path, calm):
    traps = [("first checkpoint", 1), ("joining", 0), ("crossing", 1)]
    took = expect_no_trace(tmp_path, traps, calm(tasks=2), tasks=2)
    assert max(took) <= LOADED_S


def test_who_dies_in_each_start_is_given_up_with_the_first_cause(tmp_path):
    """As many faults as attempts; the first is said, not the last."""
    watch = Watch()
    points = ["joined", "compiling", "crossing"]
    marks = [(tmp_path / f"mark{n}", point, 1) for n, point in enumerate(points)]
    with pytest.raises(TaskFailed) as caught:
        horn.train(trapped(*marks), tasks=2, max_restarts=2, progress=watch,
                   checkpoints=tmp_path / "c", checkpoint_every=EVERY)  # fmt: skip
    assert all(mark.exists() for mark, _, _ in marks)
    assert "task 1 " in str(caught.value) and "was killed by SIGKILL" in str(caught.value)
    attempts = [note[: note.index(")") + 1] for note in watch.notes[:-1]]
    assert attempts == [f"Restarting from iteration 0 (attempt {k} of 2)" for k in (1, 2)]
    assert watch.notes[-1] == "Given up: 2 restarts without a new checkpoint between them."


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_kill_at_each_point_of_a_start_and_of_a_recovery(shape, tmp_path, calm):
    """Of each task, and for each pair of points where the second fault meets the repair."""
    n_tasks = shape.get("groups", 1) * shape.get("tasks", 1)
    runs = [[(point, rank)] for point in FIRST for rank in range(n_tasks)]
    runs += [[("checkpointed", 0), (point, n_tasks - 1)] for point in AGAIN]
    runs += [[(one, n_tasks - 1), (two, 0)] for one, two in itertools.product(FIRST, FIRST)]
    took = []
    for number, traps in enumerate(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        took += expect_no_trace(folder, traps, calm(**shape), **shape)
    print(
        f"\n{shape}: {len(runs)} runs, {len(took)} kills; noted after {np.median(took):.2f} s "
        f"(worst {max(took):.2f}); load {os.getloadavg()[0]:.1f}", file=sys.stderr,
    )  # fmt: skip


# clocks that jump


@pytest.mark.skipif(bool(clock.why_not()), reason=clock.why_not())
@pytest.mark.parametrize(
    "point, again",
    [
        ("compiling", True),
        *(
            pytest.param(point, again, marks=pytest.mark.slow)
            for point in ("reading", "joined", "connecting", "compiling", "crossing")
            for again in (False, True)
        ),
    ],
)
def test_tasks_whose_clocks_jump_in_a_start_leave_no_trace(
    point, again, tmp_path, calm, monkeypatch
):
    """Those of all tasks, by hours and years, while one of them stands there."""
    wrong = clock.Clock(tmp_path)
    for name in clock.WANTED:  # for who is started from now on
        monkeypatch.setenv(name, wrong.environment[name])
    mark, watch = tmp_path / "mark", Watch()
    schedule = Stands(str(mark), point, 1, str(tmp_path) if again else "", 25)
    given = job(N_ITERATIONS, optimizer=horn.SGD(schedule, momentum=0.9))
    jumper = threading.Thread(target=jump_and_go, args=(wrong, mark))
    jumper.start()
    run = horn.train(given, tasks=2, checkpoints=tmp_path / "c", checkpoint_every=EVERY,
                     progress=watch)  # fmt: skip
    jumper.join(HELD_S)
    assert Path(f"{mark}.jumped").exists() and len(watch.notes) == again, watch.notes
    assert bits(run) == bits(calm(tasks=2))


def jump_and_go(wrong, mark):
    """As soon as somebody stands there."""
    until(Path(f"{mark}.here").exists, HELD_S)
    jump(wrong)
    Path(f"{mark}.jumped").touch()
    Path(f"{mark}.go").touch()


def jump(wrong):
    pause = threading.Event()
    for error_s in JUMPS:
        wrong.jump(error_s)
        pause.wait(0.6)  # more than a tick of ZooKeeper's, in which it looks at sessions


# frames that are damaged, from the greetings of a start on


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "shape, traps",
    [
        ({"tasks": 2}, [("checkpointed", 1)]),
        *(
            pytest.param(shape, traps, marks=pytest.mark.slow)
            for shape in SHAPES
            for traps in (
                [], *([("checkpointed", 0), (point, 1)] for point in AGAIN)
            )
        ),
    ],
)  # fmt: skip
def test_no_damaged_frame_of_a_start_or_a_recovery_is_applied(shape, traps, tmp_path, calm):
    """Every frame goes out damaged before it goes out as it is."""
    watch = Watch()
    marks = [(tmp_path / f"mark{n}", *trap) for n, trap in enumerate(traps)]
    lines = "\n".join(f"{mark}|{point}|{rank}" for mark, point, rank in marks)
    schedule = Damages(lines, damaged=str(tmp_path / "damaged"))
    given = job(N_ITERATIONS, optimizer=horn.SGD(schedule, momentum=0.9))
    run = horn.train(given, checkpoints=tmp_path / "c", checkpoint_every=EVERY, progress=watch,
                     transport="tcp", **shape)  # fmt: skip
    assert all(mark.exists() for mark, _, _ in marks)
    notes_name_the_kills(watch, [rank for _, rank in traps])
    assert bits(run) == bits(calm(**shape, transport="tcp"))
    n_tasks = shape.get("groups", 1) * shape.get("tasks", 1)
    counts = [int(path.read_text()) for path in tmp_path.glob("damaged.*")]
    n_begun = 1 + any(point == "checkpointed" for point, _ in traps)  # the first, and the last
    assert len(counts) >= n_begun * n_tasks and all(counts), counts
    print(f"\n{shape} {traps}: {counts} damaged before the first batch")


# servers that keep what they were told, and their groups, which start again alone

# (point, rank) each; ranks 0 and 1 are tasks, 2 is a server. Only what ended starts again, so those
# of two are met together.
AGAIN_AND_AGAIN = [
    [("serving", 2), ("coming back", 2)],
    [("coming back", 2), ("serving", 2)],
    [("joined", 1), ("compiling", 1)],
    [("compiling", 0), ("crossing", 0)],
]
TOGETHER = [
    [("crossing", 1), ("serving", 2)],
    [("connecting", 0), ("coming back", 2)],
    [("joined", 0), ("compiling", 1)],
    [("joining", 0), ("crossing", 1), ("serving", 2)],
]
CASES_OF_DOWNPOUR = [
    pytest.param(
        traps,
        together,
        id="_".join(f"{point}_{rank}" for point, rank in traps).replace(" ", "_"),
        marks=() if n == 0 else pytest.mark.slow,
    )
    for together, cases in ((False, AGAIN_AND_AGAIN), (True, TOGETHER))
    for n, traps in enumerate(cases)
]


@pytest.mark.parametrize("traps, together", CASES_OF_DOWNPOUR)
def test_servers_and_groups_that_die_in_their_starts_come_back(traps, together, tmp_path):
    """Under synchronous Downpour: the same bits as if nothing had been."""
    marks = [tmp_path / f"mark{number}" for number in range(len(traps))]
    lines = (f"{m}|{point}|{rank}" for m, (point, rank) in zip(marks, traps, strict=True))
    strategy = Sprung(max_staleness=0, spring=Traps("\n".join(lines), together))
    watch, how = Watch(), {"groups": 2, "servers": 1}
    run = horn.train(job(N_ITERATIONS), strategy=strategy, checkpoints=tmp_path / "c",
                     progress=watch, **how)  # fmt: skip
    assert all(mark.exists() for mark in marks), watch.notes
    units = {0: "group 0", 1: "group 1", 2: "server 0"}
    told = sorted(note.partition(" (")[0] for note in watch.notes)
    assert told == sorted(f"Restarting {units[rank]}" for _, rank in traps), watch.notes
    calm = horn.train(job(N_ITERATIONS), strategy=Downpour(max_staleness=0), **how)
    assert bits(run) == bits(calm)


# whoever started it goes, or wants it to end

LOCAL = """
import horn
from tests.faults.springs import Stands
from tests.faults.test_kills import job as given

def job(mark: str, point: str, folder: str = ""):
    return given(40, optimizer=horn.SGD(Stands(mark, point, 1, folder, 25), momentum=0.9))
"""
WAIT_S, ENDS_S = 120.0, 60.0  # for a start; for an end


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "number, point, again",
    [
        (signal.SIGINT, "compiling", False),
        (signal.SIGKILL, "crossing", True),
        *(
            pytest.param(number, point, again, marks=pytest.mark.slow)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            for point in ("reading", "joined", "connecting", "compiling", "crossing")
            for again in (False, True)
        ),
    ],
)
def test_a_command_that_ends_in_a_start_leaves_nothing(number, point, again, tmp_path):
    (tmp_path / "held.py").write_text(LOCAL)
    mark, words = tmp_path / "mark", ["--mark", str(tmp_path / "mark"), "--point", point]
    words += ["--folder", str(tmp_path)] if again else []
    with subprocess.Popen(
        [sys.executable, "-m", "horn", "submit", "held.py", "-n", "2", "--checkpoint-every", "10",
         "--", *words],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        try:
            wait_until(Path(f"{mark}.here").exists, WAIT_S)
            tasks = [int(pid) for pid in below(process.pid)]
            assert len(tasks) == 2 and Path(f"{mark}.died").exists() == again
            process.send_signal(number)
            _, err = process.communicate(timeout=ENDS_S)
        finally:
            process.kill()
    wait_until(lambda: not alive(tasks), ENDS_S)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert again or "Stopped before the first iteration" in err
        assert ("--resume" in err) == again
        if again:  # the last checkpoint that was whole when the first start ended
            said = re.search(r"Stopped after iteration (\d+): saved (\S+)\.", err)
            assert said is not None and said[1] in ("10", "20") and (tmp_path / said[2]).is_dir()
    assert not list(tmp_path.rglob("*.tmp"))
    # The model of the checkpoint, where there was one.
    assert len(list(tmp_path.glob("*.horn"))) == (number == signal.SIGINT and again)


def below(pid):
    """The processes that one has started."""
    return [word for thread in Path(f"/proc/{pid}/task").iterdir()
            for word in (thread / "children").read_text().split()]  # fmt: skip


# the user's code, in the start of a task


@dataclass(frozen=True)
class Misbegotten:
    """A schedule that misbehaves as soon as a task makes it; ``at`` its first batch otherwise."""

    how: str
    initial: float = 0.05

    def __post_init__(self):
        import tests.faults.springs as springs
        import tests.faults.test_kills as test_kills

        if springs.my_rank() == 1:
            test_kills.misbehave(self.how)

    def at(self, iteration):
        return self.initial


@pytest.mark.parametrize(
    "how, words, n_restarts",
    [
        ("exception", "ValueError: the user's mistake", 0),
        ("exit", "SystemExit: 3", 0),
        ("_exit", "ended with exit code 3", 1),
        ("segfault", "was killed by SIGSEGV", 1),
    ],
)
def test_what_the_users_code_does_in_a_start_is_said(how, words, n_restarts):
    watch = Watch()
    with pytest.raises(TaskFailed) as caught:
        horn.train(job(40, optimizer=horn.SGD(Misbegotten(how))), tasks=2, progress=watch,
                   max_restarts=1)  # fmt: skip
    assert words in str(caught.value) and "task 1" in str(caught.value)
    assert sum("Restarting" in note for note in watch.notes) == n_restarts


# the disk, at the first checkpoint


def test_without_room_for_the_first_checkpoint_a_run_goes_on_and_starts_from_nothing(
    small_disk, tmp_path, calm, caplog
):
    """What could not be saved is said; a task that then dies begins again at the beginning."""
    fill(small_disk / "full", small_disk, 8192)
    watch, mark = Watch(), tmp_path / "mark"
    given = job(N_ITERATIONS, optimizer=horn.SGD(Trap(str(mark), "forward"), momentum=0.9))
    run = horn.train(given, tasks=2, checkpoints=small_disk / "c", checkpoint_every=EVERY,
                     progress=watch, pins=PINS)  # fmt: skip
    assert mark.exists() and bits(run) == bits(calm(tasks=2, pins=PINS))
    [unsaved, note] = watch.notes
    assert unsaved.startswith("The checkpoint of iteration 10 is not saved")
    assert note.startswith("Restarting from iteration 0 (attempt 1 of 3)")
    assert "ENOSPC" in caplog.text and str(small_disk) in caplog.text
    assert list((small_disk / "c").glob("*")) == []
