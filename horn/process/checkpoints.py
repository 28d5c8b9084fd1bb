"""A task's side of checkpoints: when it saves its part and stops, as all others do.

Between updates it looks for a message of its parent, which takes a microsecond. To stop it waits at
a boundary until all know: a task that went on would wait in vain for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horn.checkpoint import Checkpoints, WrittenPart
from horn.errors import CheckpointError, Timeout
from horn.process.control import (
    TEXT_CHARACTERS,
    ControlChannel,
    ControlMessage,
    PartSaved,
    SaveReply,
    SaveRequest,
    StopDecision,
)
from horn.process.job_spec import RunSpec
from horn.strategies import TaskEngine
from horn.training.checkpointing import PartWriter, part_name, saved_arrays
from horn.training.loop import TrainingLoop
from horn.wire.text import wire_text


class TaskCheckpoints:
    """Saves a task's part of checkpoints, as the ``at_boundary`` of its loop. Raises Timeout: no
    decision for ``superstep_timeout_s`` while it waits to stop. JobError: the engine has what no
    checkpoint can hold. Fenced: a higher attempt has written a checkpoint.
    """

    def __init__(self, line: ControlChannel, run: RunSpec, rank: int, engine: TaskEngine) -> None:
        self.line, self.run, self.rank, self.engine = line, run, rank, engine
        engine.aside()  # what cannot be saved is told now, not when the first is due
        self.loop: TrainingLoop | None = None
        self.due: SaveRequest | None = None
        self.settled_at = -1  # the boundary where all are to stop
        self.writer = PartWriter(Checkpoints(run.checkpoints), run.attempt)
        self._owned: set[str] | None = None
        # Gets each message first; returns whether the message was for it.
        self.other: Callable[[ControlMessage], bool] | None = None

    def __call__(self) -> bool:
        loop, every = self.loop, self.run.checkpoint_every
        assert loop is not None
        self.writer.check()
        iteration = loop.iteration
        while self.line.wait(0.0):
            self._hear(iteration)
        due = self.due
        is_told = due is not None and due.at == iteration
        if is_told or (every and iteration % every == 0):
            self._save(loop)
        if not is_told:
            return False
        assert due is not None
        return due.stop and self._is_settled(due)

    def _hear(self, iteration: int) -> None:
        said = self.line.next_message()
        if self.other is None or not self.other(said):
            self.take(said, iteration)

    def take(self, said: ControlMessage, iteration: int) -> None:
        """Handle a message of the parent, after ``iteration`` updates."""
        if isinstance(said, SaveRequest):
            is_late = said.at < iteration
            self.line.send(SaveReply(said.at, iteration, is_late))
            self.due = None if is_late else said
        elif isinstance(said, StopDecision):
            if not said.go_on:  # it may come before this task is there
                self.settled_at = said.at
            elif self.due is not None and self.due.at == said.at:
                self.due = None

    def _is_settled(self, due: SaveRequest) -> bool:
        """Wait for the decision at this boundary; True to stop."""
        self.line.send(SaveReply(due.at, due.at, is_waiting=True))
        while self.due is due and self.settled_at != due.at:
            if not self.line.wait(self.run.superstep_timeout_s):
                raise Timeout(
                    f"task {self.rank} is to stop after iteration {due.at}, but has heard for "
                    f"{self.run.superstep_timeout_s:g} s not that all others are"
                )
            self._hear(due.at)
        return self.settled_at == due.at

    def _save(self, loop: TrainingLoop) -> None:
        if self._owned is None:
            names = [name for arrays in self.engine.memory().values() for name in arrays]
            self._owned = {name for name in names if self.engine.owns(name)}
        iteration, line = loop.iteration, self.line
        n_rows = loop.epoch - bool(loop.done)

        def then(found: WrittenPart | CheckpointError) -> None:
            said = PartSaved(iteration, n_rows, error=wire_text(str(found), TEXT_CHARACTERS))
            if isinstance(found, WrittenPart):
                said = PartSaved(iteration, n_rows, found.n_bytes, found.sha256)
            try:
                line.send(said)
            except OSError:
                pass  # the parent has gone

        facts: dict[str, Any] = {
            "rank": self.rank,
            "group": self.rank // self.run.n_tasks,
            "cursor": loop.cursor().to_json(),
            "aside": self.engine.aside(),
        }
        self.writer.write(
            iteration, part_name(self.rank), saved_arrays(loop, self._owned), facts, then
        )

    def close(self) -> None:
        """Wait until the last part is written and reported."""
        self.writer.wait()
