"""A task's side of callbacks, which run in its parent process (``training/hooks.py``).

At the end of an epoch, and after each update where a callback wants to hear of it, the task waits
for their decision: every task gets the same, so all go on alike. The wait has no deadline: a
callback may save a large model. It ends with the process that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horn.process.control import (
    BatchDone,
    CallbackDecision,
    ControlChannel,
    ControlMessage,
    Heartbeat,
    ModelRequest,
)
from horn.process.job_spec import RunSpec
from horn.schedules import SettableRate

BY_EPOCH, BY_BATCH = 1, 2  # RunSpec.callbacks
HEARTBEAT_S = 1.0  # while callbacks run, whose time nobody knows


@dataclass(eq=False)
class Decisions:
    """The callbacks' decisions, as a task receives them. rate : of its job, to be set. take :
    handles other messages of the parent, with the iteration; send_share : sends this task's part of
    the model. memory : the callbacks' state, for checkpoints.

    Tasks of groups that do not wait for each other follow the decisions of group 0 through its
    servers.
    """

    line: ControlChannel
    run: RunSpec
    rank: int
    is_joined: bool
    rate: SettableRate
    take: Callable[[ControlMessage, int], None]
    send_share: Callable[[], None]

    def __post_init__(self) -> None:
        self.is_first = self.rank < self.run.n_tasks  # of group 0
        self.asks_epoch = self.is_first or not self.run.n_servers
        self.memory: dict[str, Any] = {}
        self._heard: dict[tuple[int, bool], CallbackDecision] = {}

    def recall(self, memory: dict[str, Any]) -> None:
        if memory:
            self.memory, self.rate.number = memory, memory.get("held", memory.get("rate"))

    def batch(self, epoch: int, iteration: int, loss: float | None) -> bool:
        """Wait for the decision after an update; whether training ends with it."""
        if not self.is_joined and not self.is_first:
            return False
        if self.rank == 0:
            self.line.send(BatchDone(epoch, iteration, loss))
        decision = self._wait(iteration, False)
        if self.is_joined:
            self._apply(decision)
            return decision.stop
        # What they decide is for the end of the epoch, which others share. A checkpoint has the
        # rate that holds until then, and the stop that is due then.
        self.memory = decision.memory | {"held": self.rate.number, "stop": decision.stop}
        return False

    def epoch(self, iteration: int) -> bool:
        """Wait for the decision at the end of an epoch; whether training ends with it."""
        if not self.asks_epoch:
            return False
        decision = self._wait(iteration, True)
        self._apply(decision)
        return decision.stop

    def _apply(self, decision: CallbackDecision) -> None:
        self.memory, self.rate.number = decision.memory, decision.rate

    def hear(self, said: ControlMessage) -> bool:
        """Handle a message of the parent; whether it was one for callbacks."""
        if isinstance(said, CallbackDecision):
            self._heard[said.at, said.is_epoch] = said
        elif isinstance(said, ModelRequest):
            self.send_share()
        else:
            return False
        return True

    def _wait(self, iteration: int, is_epoch: bool) -> CallbackDecision:
        key = iteration, is_epoch
        while key not in self._heard:
            if not self.line.wait(HEARTBEAT_S):
                if not self.is_joined:  # its parent expects heartbeats
                    self.line.send(Heartbeat())
                continue
            said = self.line.next_message()
            if not self.hear(said):
                self.take(said, iteration)
        decision = self._heard.pop(key)
        self._heard = {at: one for at, one in self._heard.items() if at[0] >= iteration}
        return decision
