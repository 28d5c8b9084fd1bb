"""The checkpoint coordinator asks tasks for their parts, completes checkpoints, and stops tasks.

Checkpoints every so many iterations need no request: tasks save by themselves. For one by time, or
to stop, the coordinator tells all tasks an iteration that none has reached; if one has passed it,
all go on and the coordinator chooses another, further ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horn.checkpoint import Checkpoints, WrittenPart
from horn.errors import CheckpointError, Conflict
from horn.process.control import ControlMessage, PartSaved, SaveReply, SaveRequest, StopDecision
from horn.training.checkpointing import SaveNotes, part_name

AHEAD_S = 0.3  # how far ahead a boundary is chosen, at the speed of as long a time before
LEAST_AHEAD = 2  # iterations
MOST_AHEAD_S = 10.0  # for tasks that hear late; longer than any message is under way
HOLD_S = 2.0  # how long a task waits at a boundary that another does not know


@dataclass(eq=False)
class CheckpointCoordinator:
    """The checkpoints of one attempt. n_parts : tasks that save. facts : gives the manifest's facts
    with so many rows of the history. tell : sends a message to all tasks. seconds : between timed
    checkpoints. last : iteration and path of the newest checkpoint. notes : what the user is told.
    """

    checkpoints: Checkpoints
    attempt: int
    n_parts: int
    facts: Callable[[int], Mapping[str, Any]]
    tell: Callable[[ControlMessage], None]
    seconds: float | None = None
    notes: SaveNotes = field(default_factory=lambda: SaveNotes(lambda text: None))
    on_commit: Callable[[int], None] | None = None  # called with the iteration
    last: tuple[int, Path] | None = None
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.is_settled = False
        self._due: SaveRequest | None = None
        self._answers: dict[int, SaveReply] = {}  # by rank
        self._held_at = math.inf  # when the first task reported that it waits
        self._parts: dict[int, dict[int, PartSaved]] = {}  # iteration, rank
        self._next_at: float | None = None
        self._seen = (0.0, 0)  # time and iteration of the last measurement of the speed
        self._speed = 0.0  # iterations per second; 0 where none is known
        self._factor = 1  # doubled for each late answer to this request

    def stop(self) -> None:
        """Have all tasks stop at a boundary, with a checkpoint."""
        if not self.is_stopping:
            self.is_stopping = True
            self._give_up()

    def hear(self, rank: int, said: PartSaved | SaveReply) -> None:
        """Handle a message of a task: a saved part, or a reply to a request. Raises Fenced: a
        higher attempt has written a checkpoint.
        """
        if isinstance(said, SaveReply):
            if self._due is not None and said.at == self._due.at:
                self._answers[rank] = said
            return
        parts = self._parts.setdefault(said.iteration, {})
        parts[rank] = said
        if len(parts) == self.n_parts:
            del self._parts[said.iteration]
            self._commit(said.iteration, parts)
            self._discard(before=said.iteration)
            if self._due is not None and self._due.at == said.iteration and not self._due.stop:
                self._due, self._factor = None, 1

    def advance(self, now: float, iteration: int) -> None:
        """Make requests that are due and settle open ones; call it a few times a second, with the
        latest iteration of the tasks.
        """
        answers = self._answers.values()
        iteration = max([iteration, *(answer.iteration for answer in answers)])
        before, last = self._seen
        if not last:
            self._seen = now, iteration
        elif iteration > last and now - before >= AHEAD_S:
            # Over a shorter time, steps that are reported at once would look like an impossible
            # speed, with a boundary minutes away.
            self._speed = (iteration - last) / (now - before)
            self._seen = now, iteration
        if self._next_at is None:
            self._next_at = math.inf if self.seconds is None else now + self.seconds
        due = self._due
        if due is None:
            if iteration and (self.is_stopping or now >= self._next_at):
                self._ask(now, iteration)
            return
        if any(answer.is_waiting for answer in answers) and self._held_at == math.inf:
            self._held_at = now
        is_whole = len(answers) == self.n_parts
        if any(answer.is_late for answer in answers) or (
            not is_whole and now > self._held_at + HOLD_S
        ):
            self._factor *= 2
            self._give_up()
            self._ask(now, iteration)
        elif due.stop and is_whole and not self.is_settled:
            self.is_settled = True
            self.tell(StopDecision(due.at, go_on=False))

    def _ask(self, now: float, iteration: int) -> None:
        ahead = max(LEAST_AHEAD, math.ceil(self._speed * AHEAD_S)) * self._factor
        if self._speed:
            ahead = min(ahead, max(LEAST_AHEAD, math.ceil(self._speed * MOST_AHEAD_S)))
        self._due = SaveRequest(iteration + ahead, self.is_stopping)
        self._answers, self._held_at = {}, math.inf
        if self.seconds is not None:
            self._next_at = now + self.seconds
        self.tell(self._due)

    def _give_up(self) -> None:
        """Give up a request that is under way."""
        due, self._due = self._due, None
        if due is not None and due.stop:
            self.tell(StopDecision(due.at, go_on=True))

    def close(self) -> None:
        """Discard incomplete checkpoints: all tasks have ended."""
        self._discard(before=math.inf)

    def _discard(self, before: float) -> None:
        """Discard incomplete checkpoints before an iteration of which all tasks have saved: they
        save in order, so who has not saved earlier was too late for it.
        """
        for iteration in [known for known in self._parts if known < before]:
            del self._parts[iteration]
            self.checkpoints.discard(self.checkpoints.temporary(iteration, self.attempt))

    def _commit(self, iteration: int, parts: Mapping[int, PartSaved]) -> None:
        temporary = self.checkpoints.temporary(iteration, self.attempt)
        failed = [rank for rank in sorted(parts) if parts[rank].error]
        if failed:
            self.checkpoints.discard(temporary)
            self.notes.failed(iteration, f"task {failed[0]}: {parts[failed[0]].error}")
            return
        written = [
            WrittenPart(part_name(rank), part.n_bytes, part.sha256)
            for rank, part in sorted(parts.items())
        ]
        facts = self.facts(parts[min(parts)].n_rows)
        try:
            self.last = iteration, self.checkpoints.commit(temporary, iteration, facts, written)
        except (CheckpointError, Conflict) as error:
            self.notes.failed(iteration, error)
            return
        self.notes.saved(iteration)
        if self.on_commit is not None:
            self.on_commit(iteration)
