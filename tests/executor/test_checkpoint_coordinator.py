"""When checkpoints are asked for and what becomes of them: the parent's side without processes,
then stopping for real.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

import horn
from horn.checkpoint import ArrayPiece, Checkpoints, write_part
from horn.errors import Fenced
from horn.executor.checkpoint_coordinator import HOLD_S, CheckpointCoordinator
from horn.process.checkpoints import TaskCheckpoints
from horn.process.control import ControlChannel, PartSaved, SaveReply, SaveRequest, StopDecision
from horn.training import checkpointing
from horn.training.checkpointing import SaveNotes, part_name
from horn.training.loop import TrainingLoop
from horn.training.progress import Progress
from tests.process.test_job_payload import RUN
from tests.support.checkpoints import whole_array
from tests.support.runs import bits, children, endless, job

N = 2
ROOT = Path(__file__).resolve().parents[2]


class Board:
    """A checkpoint coordinator whose tasks are written down here."""

    def __init__(self, folder, seconds=None):
        self.said, self.folder, self.notes = [], folder, []
        self.checkpoints = Checkpoints(folder)
        self.coordinator = CheckpointCoordinator(
            self.checkpoints, 4, N, lambda epoch: {"until": epoch}, self.tell, seconds,
            SaveNotes(self.notes.append),
        )  # fmt: skip

    def tell(self, message):
        self.said.append(message)

    def save(self, rank, iteration, epoch=1, error=""):
        if error:
            self.coordinator.hear(rank, PartSaved(iteration, epoch, error=error))
            return
        piece = ArrayPiece("parameter", "w", np.arange(3.0), (slice(3 * rank, 3 * rank + 3),))
        folder = self.checkpoints.begin(iteration, 4)
        written = write_part(folder, part_name(rank), [piece], {"rank": rank})
        self.coordinator.hear(rank, PartSaved(iteration, epoch, written.n_bytes, written.sha256))


def test_a_checkpoint_is_there_when_all_parts_are(tmp_path):
    board = Board(tmp_path)
    board.save(1, 10, epoch=3)
    board.save(1, 20)
    assert board.checkpoints.iterations() == [] and board.coordinator.last is None
    board.save(0, 10, epoch=3)
    assert board.checkpoints.iterations() == [10] and board.said == []
    opened = board.checkpoints.open(10)
    assert board.coordinator.last == (10, opened.path) and opened.facts["until"] == 3
    assert whole_array(opened, "parameter", "w", (6,), "float64").tolist() == [0, 1, 2, 0, 1, 2]
    board.coordinator.close()
    assert not list(tmp_path.glob("*.tmp"))


def test_parts_that_others_were_too_late_for_go_with_the_next_checkpoint(tmp_path):
    """They stayed to the end of the job: as much again as the job keeps, for each late answer."""
    board = Board(tmp_path)
    board.save(0, 10)
    board.save(0, 20)
    board.save(1, 20)
    board.save(0, 30)  # which may still be completed
    assert [path.name[:14] for path in tmp_path.glob("*.tmp")] == ["ckpt-000000030"]
    board.save(1, 30)
    assert board.checkpoints.iterations() == [20, 30] and not list(tmp_path.glob("*.tmp"))


def test_a_part_that_was_not_written_costs_the_checkpoint_and_a_warning(tmp_path, caplog):
    board = Board(tmp_path)
    board.save(0, 10)
    with caplog.at_level(logging.WARNING):
        board.save(1, 10, error="/disk/x: no room")
    assert board.checkpoints.iterations() == [] and not list(tmp_path.glob("*.tmp"))
    assert "iteration=10" in caplog.text and "task 1: /disk/x: no room" in caplog.text
    board.save(0, 20)
    board.save(1, 20)
    assert board.checkpoints.iterations() == [20]


def test_the_user_is_told_once_that_checkpoints_fail_and_once_that_they_are_saved(tmp_path):
    board = Board(tmp_path)
    for iteration, error in ((10, ""), (20, "no room"), (30, "no room"), (40, ""), (50, "")):
        for rank in range(N):
            board.save(rank, iteration, error=error)
    failed, again = board.notes
    assert "of iteration 20 is not saved" in failed and failed.endswith(": task 0: no room")
    assert "that of iteration 40" in again


def overtake(folder):
    """A checkpoint of a higher attempt than that of all others here."""
    piece, others = ArrayPiece("parameter", "w", np.zeros(3), (slice(0, 3),)), Checkpoints(folder)
    temporary = others.begin(1, 9)
    return others.commit(temporary, 1, {}, [write_part(temporary, part_name(0), [piece], {})])


def test_a_checkpoint_of_an_attempt_that_was_overtaken_ends_the_run(tmp_path):
    board = Board(tmp_path)
    board.save(0, 10)
    piece = ArrayPiece("parameter", "w", np.arange(3.0), (slice(3, 6),))
    folder = board.checkpoints.temporary(10, 4)
    written = write_part(folder, part_name(1), [piece], {})
    overtake(tmp_path)
    with pytest.raises(Fenced, match="attempt 4 of .*: attempt 9 has written a checkpoint there"):
        board.coordinator.hear(1, PartSaved(10, 1, written.n_bytes, written.sha256))
    assert not board.notes


def test_by_time_tasks_are_told_an_iteration_that_none_has_reached(tmp_path):
    board = Board(tmp_path, seconds=5.0)
    coordinator = board.coordinator
    for k in range(41):  # 128 iterations per second
        coordinator.advance(100.0 + k / 8, 16 * k)
    assert board.said == [SaveRequest(679)]  # 0.3 s ahead
    for rank in range(N):
        coordinator.hear(rank, SaveReply(679, 642))
        board.save(rank, 679)
    coordinator.advance(106.0, 700)
    assert board.checkpoints.iterations() == [679] and len(board.said) == 1
    coordinator.advance(110.1, 1000)
    assert len(board.said) == 2


def test_steps_that_are_told_all_at_once_are_not_taken_for_a_speed(tmp_path):
    board = Board(tmp_path)
    for k in range(20):  # 100 iterations per second, told by fifty
        board.coordinator.advance(1.0 + k / 2, 26 + 50 * k)
        board.coordinator.advance(1.0001 + k / 2, 51 + 50 * k)
    board.coordinator.stop()
    board.coordinator.advance(10.6, 1001)
    assert board.said == [SaveRequest(1031, stop=True)]


def test_who_is_late_makes_the_next_boundary_further_ahead(tmp_path):
    board = Board(tmp_path)
    board.coordinator.stop()
    board.coordinator.advance(1.0, 7)
    assert board.said == [SaveRequest(9, stop=True)]
    board.coordinator.hear(0, SaveReply(9, 8))
    board.coordinator.hear(1, SaveReply(9, 11, is_late=True))
    board.coordinator.advance(1.1, 7)
    assert board.said[1:] == [StopDecision(9, go_on=True), SaveRequest(15, stop=True)]
    board.coordinator.hear(0, SaveReply(9, 9, is_waiting=True))  # of the old one: it does not count
    board.coordinator.hear(0, SaveReply(15, 12))
    board.coordinator.advance(1.2, 7)
    assert len(board.said) == 3
    board.coordinator.hear(1, SaveReply(15, 13))
    board.coordinator.advance(1.3, 7)
    board.coordinator.advance(1.4, 7)
    assert board.said[3:] == [StopDecision(15, go_on=False)]


def run_at_128(board, begin, end, late=()):
    """Advance through eighths of a second, 16 iterations each; every answer in ``late`` is late."""
    for k in range(begin, end):
        board.coordinator.advance(k / 8, 16 * k)
        if k in late:
            for rank in range(N):
                board.coordinator.hear(rank, SaveReply(board.said[-1].at, 16 * k, is_late=True))


def test_late_answers_to_one_request_do_not_put_off_the_next(tmp_path):
    board = Board(tmp_path, seconds=20.0)
    run_at_128(board, 8, 173, late=range(168, 172))
    asked = [said.at for said in board.said]
    ahead = [at - 16 * k for k, at in zip(range(168, 173), asked, strict=True)]
    assert ahead == [39, 78, 156, 312, 624]  # 0.3 s, and twice as much each time
    for rank in range(N):
        board.save(rank, asked[-1])
    run_at_128(board, 332, 333)
    assert board.said[5:] == [SaveRequest(16 * 332 + 39)]


def test_no_number_of_late_answers_puts_a_boundary_off_beyond_seconds(tmp_path):
    board = Board(tmp_path)
    run_at_128(board, 8, 16)
    board.coordinator.stop()
    run_at_128(board, 16, 37, late=range(16, 36))
    asked = [said.at for said in board.said if isinstance(said, SaveRequest)]
    assert len(asked) == 21 and asked[-1] == 16 * 36 + 1280  # 10 s


def test_who_waits_is_let_go_if_another_has_not_heard(tmp_path):
    """It may be in the next superstep already, where it waits for the first."""
    board = Board(tmp_path)
    board.coordinator.stop()
    board.coordinator.advance(1.0, 7)
    board.coordinator.hear(0, SaveReply(9, 9, is_waiting=True))
    board.coordinator.advance(1.1, 7)
    board.coordinator.advance(1.0 + HOLD_S, 7)
    assert len(board.said) == 1
    board.coordinator.advance(1.2 + HOLD_S, 7)
    assert board.said[1:] == [StopDecision(9, go_on=True), SaveRequest(13, stop=True)]


class Engine:
    """What a TaskCheckpoints asks of an engine."""

    def __init__(self):
        self.w = np.zeros(3)

    def memory(self):
        return {"parameter": {"w": self.w}}

    def parameters(self):
        return {"w": self.w}

    def owns(self, name):
        return True

    def places(self, name):
        return (slice(0, 3),)

    def aside(self):
        return {}

    updates = 0


def saver(tmp_path, every=0):
    ours, theirs = ControlChannel.pair()
    run = msgspec.structs.replace(
        RUN, checkpoints=str(tmp_path), checkpoint_every=every, superstep_timeout_s=60.0
    )
    made = TaskCheckpoints(theirs, run, 0, Engine())
    made.loop = TrainingLoop(job(), made.engine, Progress(), time.perf_counter())
    return made, ours


def reach(made, iteration):
    made.loop.iteration, made.loop.epoch, made.loop.done = iteration, 1, 1
    made.engine.w += 1.0
    return made()


def heard(line):
    said, _ = line.receive(60.0)
    return said


def test_a_task_saves_by_itself_what_was_there_at_the_boundary(tmp_path):
    made, line = saver(tmp_path, every=2)
    assert [reach(made, k) for k in range(1, 4)] == [False] * 3
    said = heard(line)
    assert isinstance(said, PartSaved) and said.iteration == 2 and not said.error
    made.close()
    parts = tmp_path / "ckpt-000000002-0000.tmp"
    assert (parts / "rank-0.safetensors").stat().st_size == said.n_bytes
    (w,) = load_file(parts / "rank-0.safetensors").values()
    assert w.tolist() == [2.0] * 3  # a later step did not change it
    line.close()
    made.line.close()


def test_a_task_whose_attempt_was_overtaken_ends_at_its_next_boundary(tmp_path):
    made, line = saver(tmp_path, every=2)
    overtake(tmp_path)
    assert not reach(made, 2)
    made.writer._thread.join()
    with pytest.raises(Fenced, match="attempt 0 of .*: attempt 9 has written"):
        reach(made, 3)
    with pytest.raises(Fenced):
        made.close()
    line.close()
    made.line.close()


def test_a_part_that_meets_an_unforeseen_error_costs_the_checkpoint(tmp_path, monkeypatch):
    made, line = saver(tmp_path, every=2)

    def write_part(*given):
        raise MemoryError(os.fsdecode(b"\xff"))  # as of a folder whose name is no UTF-8

    logged: list[str] = []  # not caplog, whose text goes into a report, that such a name breaks
    monkeypatch.setattr(checkpointing, "write_part", write_part)
    monkeypatch.setattr(checkpointing.logger, "exception", lambda text, *n: logged.append(text % n))
    assert not reach(made, 2)
    said = heard(line)
    assert said.iteration == 2 and said.error.endswith(
        "ckpt-000000002-0000.tmp: cannot be written (MemoryError: \\udcff); the log has more"
    )
    made.close()
    assert logged == ["part not written iteration=2"]
    monkeypatch.undo()
    assert not reach(made, 4) and not heard(line).error
    made.close()
    line.close()
    made.line.close()


def test_a_task_that_is_told_to_stop_waits_for_the_others(tmp_path):
    made, line = saver(tmp_path)
    line.send(SaveRequest(3, stop=True))
    assert not reach(made, 1) and heard(line) == SaveReply(3, 1)
    assert not reach(made, 2)
    result = []
    thread = threading.Thread(target=lambda: result.append(reach(made, 3)))
    thread.start()
    found = [heard(line), heard(line)]
    assert SaveReply(3, 3, is_waiting=True) in found
    assert any(isinstance(said, PartSaved) and said.iteration == 3 for said in found)
    line.send(StopDecision(3, go_on=False))
    thread.join(60)
    assert result == [True]
    line.close()
    made.line.close()


def test_a_task_may_hear_that_all_stop_before_it_is_there(tmp_path):
    made, line = saver(tmp_path)
    line.send(SaveRequest(3, stop=True))
    assert not reach(made, 1)
    line.send(StopDecision(3, go_on=False))
    assert not reach(made, 2)
    assert reach(made, 3)
    line.close()
    made.line.close()


def test_a_task_that_is_let_go_goes_on(tmp_path):
    made, line = saver(tmp_path)
    line.send(SaveRequest(2, stop=True))
    assert not reach(made, 1)
    line.send(StopDecision(2, go_on=True))
    line.send(SaveRequest(4, stop=True))
    line.send(StopDecision(4, go_on=False))
    assert [reach(made, k) for k in (2, 3, 4)] == [False, False, True]
    made.close()
    line.close()
    made.line.close()


def test_a_task_that_has_passed_the_boundary_says_so(tmp_path):
    made, line = saver(tmp_path)
    assert not reach(made, 4)
    line.send(SaveRequest(3, stop=True))
    assert not reach(made, 5) and heard(line) == SaveReply(3, 5, is_late=True)
    assert not reach(made, 6)
    line.close()
    made.line.close()


# for real


class Interrupt(Progress):
    """Ctrl-C, once or twice, after some iterations."""

    interval_s = 0.0

    def __init__(self, at, times=1):
        self.at, self.times, self.notes = at, times, []

    def step(self, epoch, iteration, loss, samples_per_s):
        while iteration >= self.at and self.times:
            self.times -= 1
            os.kill(os.getpid(), signal.SIGINT)

    def note(self, text):
        self.notes.append(text)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize(
    "settings",
    [{}, {"tasks": 2}, pytest.param({"groups": 2, "tasks": 2}, marks=pytest.mark.slow)],
)
def test_ctrl_c_saves_and_the_run_goes_on_exactly(settings, tmp_path):
    given, watcher = endless(batch_size=16), Interrupt(30)
    before, others = signal.getsignal(signal.SIGINT), children()
    stopped = horn.train(given, checkpoints=tmp_path, progress=watcher, **settings)
    assert signal.getsignal(signal.SIGINT) is before and children().keys() <= others.keys()
    opened = Checkpoints(tmp_path).latest()
    assert stopped.stopped and stopped.iterations == opened.iteration >= 30
    assert stopped.checkpoint == str(opened.path)
    assert not settings or "Stopping at the next iteration" in watcher.notes[0]
    end = given.with_settings(epochs=None, iterations=opened.iteration + 9)
    assert bits(horn.train(end, resume=tmp_path, **settings)) == bits(horn.train(end, **settings))
    until = given.with_settings(epochs=None, iterations=opened.iteration)
    assert bits(stopped) == bits(horn.train(until, **settings))


@pytest.mark.net
@pytest.mark.cluster
def test_ctrl_c_twice_ends_it_at_once(tmp_path):
    others = children()
    with pytest.raises(KeyboardInterrupt):
        horn.train(endless(), checkpoints=tmp_path, progress=Interrupt(10, 2))
    with pytest.raises(KeyboardInterrupt):
        horn.train(endless(), tasks=2, checkpoints=tmp_path, progress=Interrupt(10, 2))
    assert children().keys() <= others.keys()


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("settings", [{}, {"tasks": 2, "max_restarts": 3}])
def test_a_run_that_was_overtaken_ends_and_is_not_restarted(settings, tmp_path):
    class Overtaken(Progress):
        interval_s = 0.0
        theirs = None

        def step(self, epoch, iteration, loss, samples_per_s):
            self.theirs = self.theirs or overtake(tmp_path)

    watcher = Overtaken()
    with pytest.raises(Fenced, match="attempt 9 has written a checkpoint there"):
        horn.train(endless(), checkpoints=tmp_path, checkpoint_every=50, progress=watcher,
                   timeout=60.0, **settings)  # fmt: skip
    assert watcher.theirs.exists()


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("settings", [{}, {"tasks": 2}])
def test_checkpoints_by_time(settings, tmp_path):
    class Until(Progress):
        """Until two are there; then it is stopped."""

        interval_s = 0.01

        def step(self, epoch, iteration, loss, samples_per_s):
            if len(found := Checkpoints(tmp_path).iterations()) > 1 and not self.done:
                self.done.extend(found)
                os.kill(os.getpid(), signal.SIGINT)

        done: list[int] = []

    given, watcher = endless(), Until()
    watcher.done = []
    horn.train(given, checkpoints=tmp_path, checkpoint_seconds=0.2, progress=watcher, **settings)
    iteration = watcher.done[0]
    end = given.with_settings(epochs=None, iterations=iteration + 5)
    start = Checkpoints(tmp_path, 99)
    if iteration in start.iterations():
        run = horn.train(end, resume=start.open(iteration).path, **settings)
        assert bits(run) == bits(horn.train(end, **settings))


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_command_stops_with_a_checkpoint_and_resumes(tmp_path):
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""
        import numpy as np
        import horn

        def job():
            net = horn.Network(seed=1)
            net.input(4)
            net.layer(8, neuron=horn.Dropout)
            net.output(2, activation="softmax", loss="cross_entropy")
            x = np.random.default_rng(0).standard_normal((40, 4))
            return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), batch_size=4, epochs=10_000_000)
    """)
    )
    command = [sys.executable, "-m", "horn", "submit", "job.py", "-n", "2", "-o", "m.horn",
               "--checkpoint-every", "10m"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("Epoch"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert "Stopping at the next iteration" in err and "--resume" in err
    at = Checkpoints(tmp_path / "job-checkpoints").latest().iteration
    assert f"Stopped after iteration {at}: saved" in err
    more = ["--resume", "--set", f"iterations={at + 5}", "--set", "epochs=none"]
    done = subprocess.run([*command, *more], cwd=tmp_path, env=env, capture_output=True, text=True,
                          timeout=100)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{at + 5:,} updates" in done.stderr and (tmp_path / "m.horn").exists()
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True,
                           timeout=100)  # fmt: skip
    assert again.returncode == 6 and "has checkpoints of another run" in again.stderr
