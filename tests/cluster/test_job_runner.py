"""A job runner whose model finds no room on the disk: pure, without its agent."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horn.cluster import job_runner
from horn.cluster.master import FAILED, GONE, STOPPED, Allocation
from horn.cluster.runner_protocol import Assignment
from horn.cluster.submission import Submission
from horn.errors import ModelError
from horn.training.history import History

FULL = "m.horn: cannot be written (No space left on device)"
KEPT = f"{FULL}; the model is kept in /tmp/k/m.horn: move it from there"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    asked = Submission(job="job-1", target="job.py", package="0" * 64)
    given = Assignment(
        job="job-1", attempt=0, host="w3", allocations={"w3": Allocation(0, "127.0.0.1", (0,))},
        work=str(tmp_path), keep=str(tmp_path), logs=str(tmp_path),
        submission=msgspec.to_builtins(asked), zookeeper="zk1:2181", can_save=True, threads=1,
    )  # fmt: skip
    made: Any = job_runner.JobRunner(None, given)  # type: ignore[arg-type]
    made.progress = types.SimpleNamespace(waits=lambda reason: None)
    monkeypatch.setattr(job_runner, "write", Unsaved.write)
    made._run = lambda: made._keep(made.model, tmp_path / "m.horn")
    return made


class Unsaved:
    """A model for which there is no room. meanwhile : happens after the first try."""

    def __init__(self, meanwhile: Any = lambda: None) -> None:
        self.meanwhile = meanwhile

    def write(self, path: Path, keeps: bool) -> None:
        self.meanwhile()
        raise ModelError(KEPT if keeps else FULL) from OSError(28, "No space left on device")


def test_a_model_that_found_no_room_fails_the_job_which_is_not_refused(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with the code of a mistake, and the advice to submit it again, mended."""
    monkeypatch.setattr(job_runner, "ROOM_S", 0.0)
    runner.model = Unsaved()
    said = runner.run()
    assert said.phase == FAILED and said.failure.text.endswith(f"on worker w3: {KEPT}")
    assert said.failure.code == 1 and said.failure.is_final


def test_the_seconds_of_a_job_are_not_only_those_of_its_last_attempt() -> None:
    """A job of 20 s that was restarted had SUCCEEDED in 8.0 s, and 20 in its history."""
    for seconds, rows, said in (
        (8.0, [{"seconds": 9.0}, {"seconds": 20.5}], 20.5),
        (8.00049, [{"seconds": 7.5}], 8.0),
        (8.0, [{"seconds": None}], 8.0),  # it is not known of an epoch before a restart
        (8.0, [], 8.0),
    ):
        run: Any = types.SimpleNamespace(seconds=seconds, history=History(rows))
        assert job_runner._seconds(run) == said


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_a_job_that_is_stopped_while_its_model_waits_is_stopped_and_says_where_that_is(
    runner: Any, has_checkpoints: bool
) -> None:
    """Without checkpoints it ended at once, and the model was lost."""

    def stop() -> None:
        runner.stop_requested.set()
        if not has_checkpoints:
            runner.is_over.set()

    runner.model = Unsaved(stop)
    said = runner.run()
    assert (said.phase, said.failure) == (STOPPED, None)
    assert said.result == {"cause": f"on worker w3: {KEPT}"}


def test_a_job_whose_code_has_closed_the_streams_says_so(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended before it had said anything."""

    def prints() -> None:
        raise ValueError("I/O operation on closed file.")

    runner._run = prints
    monkeypatch.setattr("sys.stderr", None)
    said = runner.run()
    assert said.phase == FAILED and said.failure.is_final
    assert "ValueError: I/O operation on closed file.\n" in said.failure.text
    assert "has closed sys.stdout or sys.stderr, where horn writes as well" in said.failure.text
    assert said.failure.code == 1, "it was called a bug in horn"


def test_an_error_whose_text_raises_is_told_by_its_type(runner: Any) -> None:
    """The process ended before it had said anything, and the job was started again."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fails() -> None:
        raise Mute

    runner._run = fails
    said = runner.run()
    assert said.phase == FAILED and said.failure.is_final
    assert "Mute: (no text: its __str__ raised RuntimeError)" in said.failure.text


@pytest.mark.parametrize("error", [ValueError, ModelError])
def test_an_error_whose_text_names_a_file_that_is_no_text_can_be_sent(
    runner: Any, error: type[Exception]
) -> None:
    """The process ended before it had said anything."""

    def reads() -> None:
        raise error("cannot read " + os.fsdecode(b"x-\xff.csv"))

    runner._run = reads
    said = runner.run()
    assert said.phase == FAILED and "cannot read x-\\udcff.csv" in said.failure.text
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=type(said)) == said


@pytest.mark.parametrize(("saves", "phase"), [(True, GONE), (False, STOPPED)])
def test_a_job_that_is_ended_while_it_saves_is_not_said_to_have_stopped(
    runner: Any, saves: bool, phase: str
) -> None:
    """It was STOPPED as one that had saved."""
    runner.assignment = msgspec.structs.replace(runner.assignment, can_save=saves)
    assert runner.told_to_end().phase == GONE
    runner.stop_requested.set()
    assert runner.told_to_end().phase == phase
