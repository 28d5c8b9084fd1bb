"""The state machine of a task in a group: pure, without clock and transport.

A *script* is what a task does in one run of a program: compute, post blocks, collect blocks. Events
are calls (``open_channels``, ``begin``, ``done``, ``fail``) that return instructions for
``runtime/group.py``. Supersteps are counted over the whole run, within a script from 0. Source:
docs/notes/0021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from horn.errors import ProtocolError
from horn.transport import Channel, checked


@dataclass(frozen=True)
class ComputeInstruction:
    """Run segment ``index`` of the program."""

    index: int
    label: str = ""  # for people: "layer1, forward"


@dataclass(frozen=True)
class PostInstruction:
    """Superstep ``index`` of the script begins: pack and send this task's blocks of ``parts``."""

    index: int
    parts: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True)
class CollectInstruction:
    """Wait for this task's blocks of ``parts``, and unpack them: superstep ``index`` is over."""

    index: int
    parts: tuple[int, ...]
    label: str = ""


Instruction: TypeAlias = ComputeInstruction | PostInstruction | CollectInstruction
Script: TypeAlias = tuple[Instruction, ...]

COMPUTE, POST, COLLECT = "compute", "post", "collect"
_PHASE = {ComputeInstruction: COMPUTE, PostInstruction: POST, CollectInstruction: COLLECT}


class ScriptStep:
    """One instruction as it concerns this task; made once per script.

    ``n_blocks`` to pack or to unpack; ``n_messages`` and ``n_bytes`` count each receiver of a block
    when posting, each block when collecting. ``superstep`` : of the script; a computation belongs
    to the next one posted. ``parts`` are those of all tasks, in their order; ``posted`` the same,
    to look one up when posting.
    """

    __slots__ = (
        "phase", "index", "superstep", "parts", "posted", "label", "n_blocks", "n_messages",
        "n_bytes", "owes",
    )  # fmt: skip

    def __init__(
        self, instruction: Instruction, superstep: int, task: int, channels: Mapping[int, Channel]
    ) -> None:
        self.phase, self.superstep = _PHASE[type(instruction)], superstep
        self.index, self.label = instruction.index, instruction.label
        self.parts: tuple[int, ...] = ()
        self.posted: frozenset[int] = frozenset()
        self.owes: dict[int, tuple[Channel, ...]] = {}  # by the task that has to send it
        mine: list[Channel] = []
        if not isinstance(instruction, ComputeInstruction):
            self.parts = instruction.parts
            wanted = [channels[part] for part in instruction.parts]
            if self.phase == POST:
                self.posted = frozenset(instruction.parts)
                mine = [c for c in wanted if c.src == task]
            else:
                mine = [c for c in wanted if task in c.dsts]
                for c in mine:
                    self.owes[c.src] = (*self.owes.get(c.src, ()), c)
        self.n_blocks = len(mine)
        copies = [len(c.dsts) if self.phase == POST else 1 for c in mine]
        self.n_messages = sum(copies)
        self.n_bytes = sum(c.n_bytes * n for c, n in zip(mine, copies, strict=True))


@dataclass(frozen=True)
class FirstFailure:
    """The first failure, and where the task was."""

    kind: str  # the name of the exception's class
    text: str
    where: str


class Task:
    """The state of one task: its position in the run. iteration : set from outside; -1 outside of
    training.

    Raises
    ------
    ProtocolError : posts and collects of a script do not match; a superstep had other blocks than
    the channels.
    """

    def __init__(self, task: int, n_tasks: int) -> None:
        self.task, self.n_tasks = task, n_tasks
        self.iteration = -1
        self.superstep = 0  # number of the first one of the current script, or of the next
        self.is_at_barrier = False  # between scripts, as at the end of an epoch
        self.failure: FirstFailure | None = None
        self._channels: dict[int, Channel] = {}
        self._known: dict[
            int, tuple[Script, tuple[ScriptStep, ...], int]
        ] = {}  # by id of the script
        self._steps: tuple[ScriptStep, ...] = ()
        self._n_supersteps = 0
        self._at = 0

    # events

    def open_channels(self, channels: Sequence[Channel]) -> None:
        """Take the channels that the group has agreed on; scripts are read anew."""
        self._channels = checked(channels, self.n_tasks)
        self._known.clear()

    def begin(self, script: Script) -> ScriptStep | None:
        """Begin a script and return its first step, None if it is empty."""
        found = self._known.get(id(script))
        if found is None or found[0] is not script:
            found = self._known[id(script)] = self._read(script)
        _, self._steps, self._n_supersteps = found
        self._at = 0
        if self._steps:
            return self._steps[0]
        self._end()
        return None

    def arrive(self) -> None:
        """Record that the task waits at a barrier between scripts, until ``leave``."""
        self.is_at_barrier = True

    def leave(self) -> None:
        self.is_at_barrier = False

    def done(self, n_blocks: int) -> ScriptStep | None:
        """Complete the current step, which moved ``n_blocks``; return the next, or None."""
        steps, at = self._steps, self._at
        if n_blocks != steps[at].n_blocks:
            raise self._not_conserved(steps[at], n_blocks)
        self._at = at = at + 1
        if at < len(steps):
            return steps[at]
        self._end()
        return None

    def fail(self, kind: str, text: str) -> bool:
        """Record a failure, of which only the first is kept; True if this is the first."""
        if self.failure is not None:
            return False
        self.failure = FirstFailure(kind, text, self.where)
        return True

    # where it is

    @property
    def step(self) -> ScriptStep | None:
        return self._steps[self._at] if self._at < len(self._steps) else None

    @property
    def phase(self) -> str:
        """The current phase: compute, post or collect; between scripts barrier or between."""
        step = self.step
        if step is None:
            return "barrier" if self.is_at_barrier else "between"
        return step.phase

    @property
    def superstep_now(self) -> int:
        """The superstep of the current step."""
        step = self.step
        return self.superstep if step is None else self.superstep + step.superstep

    @property
    def where(self) -> str:
        """The position in words: iteration 3, superstep 41 (layer1, forward), collect."""
        step = self.step
        said = [f"iteration {self.iteration}"] if self.iteration >= 0 else []
        label = f" ({step.label})" if step is not None and step.label else ""
        said.append(f"superstep {self.superstep_now}{label}")
        if self.phase != "between":
            said.append(self.phase)
        return ", ".join(said)

    def owed_by(self, absent: Iterable[int], name: Callable[[int], str]) -> str:
        """The blocks that these tasks owe this one in the current step, in words; ``name`` gives
        those of tasks.
        """
        step = self.step
        owes = {} if step is None else step.owes
        return "; ".join(
            f"{name(task)} owes {', '.join(map(str, owes.get(task, ()))) or 'its arrival'}"
            for task in sorted(absent)
        )

    # scripts

    def _read(self, script: Script) -> tuple[Script, tuple[ScriptStep, ...], int]:
        posted: dict[int, tuple[int, ...]] = {}
        collected: set[int] = set()
        under_way: set[int] = set()
        steps: list[ScriptStep] = []
        for at, item in enumerate(script):
            where = f"instruction {at} of a script, {item}"
            if isinstance(item, ComputeInstruction):
                steps.append(ScriptStep(item, len(posted), self.task, self._channels))
                continue
            unknown = [part for part in item.parts if part not in self._channels]
            if unknown:
                raise ProtocolError(f"{where}: parts {unknown} have no channels")
            if len(set(item.parts)) != len(item.parts):
                raise ProtocolError(f"{where}: a part is named twice")
            if isinstance(item, PostInstruction):
                if item.index != len(posted):
                    raise ProtocolError(f"{where}: the superstep to post next is {len(posted)}")
                if busy := under_way.intersection(item.parts):
                    raise ProtocolError(f"{where}: parts {sorted(busy)} are under way")
                posted[item.index] = item.parts
                under_way.update(item.parts)
            else:
                if item.index in collected or posted.get(item.index) != item.parts:
                    raise ProtocolError(f"{where}: these parts were not posted before, or twice")
                collected.add(item.index)
                under_way.difference_update(item.parts)
            steps.append(ScriptStep(item, item.index, self.task, self._channels))
        if missing := sorted(posted.keys() - collected):
            raise ProtocolError(f"a script posts supersteps {missing} and does not collect them")
        return script, tuple(steps), len(posted)

    def _end(self) -> None:
        self.superstep += self._n_supersteps
        self._steps, self._n_supersteps, self._at = (), 0, 0

    def _not_conserved(self, step: ScriptStep, n_blocks: int) -> ProtocolError:
        how = {COMPUTE: "moved", POST: "packed", COLLECT: "unpacked"}[step.phase]
        return ProtocolError(
            f"task {self.task}, {self.where}: {how} {n_blocks} blocks, but its script says "
            f"{step.n_blocks}; messages must be conserved"
        )
