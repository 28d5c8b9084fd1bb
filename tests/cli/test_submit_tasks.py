"""horn submit --tasks: the same words as with one task, where the time went, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from tests.cli.conftest import JOB

pytestmark = [pytest.mark.net, pytest.mark.cluster]
ROOT = Path(horn.__file__).parents[1]


def test_two_tasks_say_and_save_what_one_does(run: Any, folder: Path) -> None:
    one = run("submit", "job.py", "-o", "one.horn")
    two = run("submit", "job.py", "-n", "2", "-o", "two.horn", "--trace", "t.json")
    assert two.code == 0, two.err
    assert two.out == one.out and two.files == {"two.horn", "t.json"}
    assert len(re.findall(r"^Epoch [123]/3  loss .* samples/s$", two.err, re.M)) == 3
    assert re.search(
        r"^SUCCEEDED in .* · 12 updates · [\d,]+ supersteps · "
        r"compute \d+ % comm \d+ % wait \d+ %$", two.err, re.M,
    )  # fmt: skip
    assert json.loads((folder / "t.json").read_text())["traceEvents"]
    first, second = (horn.Model.load(folder / name).parameters for name in ("one.horn", "two.horn"))
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=1e-4, atol=1e-6)


def test_how_tasks_talk_changes_no_bit(run: Any, folder: Path) -> None:
    ways: list[list[str]] = [[], ["--barrier", "zookeeper"], ["--transport", "tcp"]]
    saved = []
    for number, way in enumerate(ways):
        name = f"{number}.horn"
        assert run("submit", "job.py", "-n", "2", "-q", "-o", name, *way).code == 0
        arrays = horn.Model.load(folder / name).parameters
        saved.append({k: a.tobytes() for k, a in arrays.items()})
    assert saved[0] == saved[1] == saved[2]


def test_verbose_shows_a_row_per_task(run: Any) -> None:
    done = run("submit", "job.py", "-n", "2", "-v")
    assert "Task  compute s  pack s  send s  wait s  unpack s  Messages" in done.err
    assert len(re.findall(r"^   [01] +[\d.]+ .* k?B +[\d.]+ MB$", done.err, re.M)) == 2


def test_json_has_a_row_of_counters_per_task(run: Any) -> None:
    done = run("submit", "job.py", "-n", "2", "--json", "--pin", "layer1=sender")
    assert [row["task"] for row in done.json["counters"]] == [0, 1]
    names = {"compute_s", "pack_s", "send_s", "wait_s", "unpack_s", "n_sent", "sent_bytes"}
    assert names <= done.json["counters"][0].keys()


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--trace", "t.json"], 2, "trace is for several tasks"),
        (["--pin", "layer1=sender"], 2, "pins is for several tasks"),
        (["-n", "2", "--pin", "layer1"], 2, "write LAYER=receiver"),
        (["-n", "2", "--pin", "layer9=sender"], 2, "no layer with weights is called so"),
        (["-n", "2", "--pin", "layer1=moon"], 2, "pin layer1=moon"),
        (["-n", "2", "--barrier", "magic"], 2, "'magic' is not one of"),
        (["-n", "2", "--transport", "pigeon"], 2, "no transport is called 'pigeon'"),
        (["-n", "2", "--superstep-timeout", "soon"], 2, "no length of time"),
        (["-n", "2", "--trace", "no/t.json"], 2, "the folder no does not exist"),
        (["-n", "2", "--backend", "python"], 2, "runs on one"),
    ],
)
def test_what_cannot_be_is_said(run: Any, arguments: list[str], code: int, words: str) -> None:
    done = run("submit", "job.py", *arguments)
    assert (done.code, done.files) == (code, set())
    assert words in done.err


@pytest.mark.parametrize("words", [["--trace", "t.json"], ["-n", "2", "--profile"]])
def test_what_is_not_of_so_many_processes_is_refused_before_the_table(
    run: Any, words: list[str]
) -> None:
    done = run("submit", "job.py", *words)
    assert done.code == 2 and done.err.startswith("Error: ") and len(done.err.splitlines()) == 1


def test_divergence_has_its_exit_code(run: Any) -> None:
    done = run("submit", "job.py", "-n", "2", "--set", "optimizer.learning_rate=1e200")
    assert done.code == 7 and done.files == {"job.before.horn"}
    assert "at iteration" in done.err and "learning rate is too high" in done.err
    assert "is in job.before.horn" in done.err


def test_a_timeout_has_its_exit_code(run: Any) -> None:
    done = run("submit", "job.py", "-n", "2", "--timeout", "6s", "--set", "epochs=10000000")
    assert done.code == 124 and "the job took more than 6 s" in done.err
    said = re.search(r"The model after (\d+) updates? is in job.before.horn", done.err)
    assert said is not None and done.files == {"job.before.horn"}, "it was gone"
    assert horn.Model.load("job.before.horn").facts["iteration"] == int(said[1])


def started(folder: Path, *more: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A job that never ends, in its second epoch, and pidfds of its tasks."""
    process = subprocess.Popen(
        [sys.executable, "-m", "horn", "submit", str(folder / "job.py"), "-n", "2",
         "-o", str(folder / "m.horn"), "--set", "epochs=10000000", *more],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("Epoch"):
            break
    while len(pids := _children(process.pid)) < 2:  # a thread of it may have gone while we looked
        assert process.poll() is None
    assert len(pids) == 2
    return process, [os.pidfd_open(pid) for pid in pids]


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_processes(folder: Path, number: signal.Signals, code: int) -> None:
    process, tasks = started(folder)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    for fd in tasks:
        assert select.select([fd], [], [], 0.0)[0], "a task is still there"
        os.close(fd)
    kept = {"m.horn"} if number == signal.SIGINT else set()
    assert {p.name for p in folder.iterdir()} - {"__pycache__"} == {"job.py", *kept}


@pytest.mark.parametrize("name", ["numpy", "random"])
def test_a_module_of_another_name_beside_the_file_is_not_horns(folder: Path, name: str) -> None:
    """Both tasks met it before what it hides, failed, and started again."""
    (folder / f"{name}.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "horn", "submit", str(folder / "job.py"), "-n", "2",
         "-o", str(folder / "m.horn"), "--max-restarts", "0"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr


def test_a_killed_task_is_the_first_failure(folder: Path) -> None:
    process, tasks = started(folder, "--max-restarts", "0")
    signal.pidfd_send_signal(tasks[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"First failure: task \d \(pid \d+\), .*iteration \d+", err)
    assert "was killed by SIGKILL" in err and "Traceback" not in err
    for fd in tasks:
        assert select.select([fd], [], [], 0.0)[0], "a task is still there"
        os.close(fd)


SCHEDULE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Faulty:
    def at(self, iteration):
        return {}[iteration] if iteration > 5 else 0.1
"""


def test_the_users_line_is_shown(folder: Path, run: Any) -> None:
    text = SCHEDULE + JOB.replace("horn.SGD(0.5)", "horn.SGD(Faulty())")
    (folder / "job.py").write_text(text)
    done = run("submit", "job.py", "-n", "2")
    assert done.code == 1
    line = text.splitlines().index("        return {}[iteration] if iteration > 5 else 0.1") + 1
    assert f"job.py:{line}  return {{}}[iteration]" in done.err
    assert "KeyError: 6" in done.err and "iteration 6" in done.err and "Traceback" not in done.err
