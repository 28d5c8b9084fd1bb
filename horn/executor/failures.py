"""The root cause of several tasks' failures. Pure.

A task that lost a peer, or waited in vain, reports another's failure: that one is the cause, if it
is known. Of several causes the earliest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from horn import errors
from horn.errors import BarrierTimeout, HornError, MemberLost, TaskFailed
from horn.network import Network
from horn.process.control import FailureReport
from horn.process.exits import how_it_ended
from horn.process.limits import too_few_processes
from horn.transport import PeerLost, PeerUnreachable

# Failures of the machines, which need not happen again.
REPAIRABLE = {"SessionLost", "Unreachable", "Fenced"}
# Errors that mean the same with one task and with many: the task's number would not help.
PLAIN = ("ModelError", "CompileError", "JobError")
# Errors that are raised on purpose, as with one task, though they name no line of the user's.
NO_BUGS = {"MemoryError", "HornError"}


@dataclass
class FailureEvidence:
    """The evidence about a failed group, by task. ``exits`` : codes, negative for signals; without
    a report they count as failures. ``names`` : of processes that have no task number.
    """

    n_tasks: int
    pids: Mapping[int, int]
    failures: dict[int, FailureReport] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    names: Mapping[int, str] = field(default_factory=dict)

    def name(self, task: int) -> str:
        return self.names.get(task, f"task {task}")

    @property
    def silent(self) -> dict[int, int]:
        """Exit codes of tasks that ended without a report."""
        spoke = self.failures.keys() | self.finished
        return {task: code for task, code in self.exits.items() if task not in spoke}

    @property
    def has_trouble(self) -> bool:
        return bool(self.failures or self.silent)

    @property
    def causes(self) -> list[int]:
        """Possible root causes: ended tasks, then own failures, the earliest first."""
        own = [task for task, failed in self.failures.items() if not is_secondary(failed)]
        return [*sorted(self.silent), *sorted(own, key=lambda task: self.failures[task].when)]

    @property
    def late(self) -> list[int]:
        """Tasks that others waited for in vain, without a report."""
        named = {task for f in self.failures.values() for task in f.absent_ranks}
        return sorted(named - self.failures.keys() - self.exits.keys() - self.finished)

    @property
    def is_complete(self) -> bool:
        """Whether nothing more can change the verdict."""
        if self.causes:
            return True
        heard = self.failures.keys() | self.exits.keys() | self.finished | set(self.late)
        return len(heard) >= self.n_tasks  # of groups that have left, too


def is_secondary(failed: FailureReport) -> bool:
    """Whether a failure is about another task's."""
    if "PeerUnreachable" in failed.kinds:
        return False
    return "MemberLost" in failed.kinds or "BarrierTimeout" in failed.kinds


def is_repairable(case: FailureEvidence) -> bool:
    """Whether another attempt may do better: a task died, hangs, or lost its connections."""
    causes = case.causes
    if not causes:  # if all wait for others and none hangs, they disagree about the step
        lost = any("MemberLost" in failed.kinds for failed in case.failures.values())
        return lost or bool(case.late)
    if causes[0] in case.silent:
        return True
    return bool({*REPAIRABLE, "PeerUnreachable"} & set(case.failures[causes[0]].kinds))


def verdict(
    case: FailureEvidence, network: Network, stacks: Mapping[int, str], progress: str = ""
) -> HornError:
    """The error of the root cause. ``stacks``: of late tasks. ``progress``: of a task that died."""
    causes = case.causes
    if causes and causes[0] in case.silent:
        return _died(case, causes[0], progress)
    if causes:
        return _failed(case, causes[0], network)
    late = set(case.late)
    echoes = sorted(case.failures.items(), key=lambda item: item[1].when)
    for task, failed in echoes:
        named = failed.absent_ranks
        if "BarrierTimeout" in failed.kinds and (not late or late.intersection(named)):
            hint = "\n".join(filter(None, [failed.hint, *(stacks[t] for t in sorted(stacks))]))
            where = f"{case.name(task)}, {failed.where}"
            arrived, timeout_s = failed.arrived, failed.timeout_s
            return BarrierTimeout(where, failed.absent, arrived, timeout_s, hint, named)
    task, failed = echoes[0]
    where = f"{case.name(task)}, {failed.where}"
    if failed.reason:
        return PeerLost(where, failed.lost, failed.reason, failed.lost_ranks, task)
    return MemberLost(where, failed.lost, failed.lost_ranks, task)


def _died(case: FailureEvidence, task: int, progress: str) -> TaskFailed:
    how, hint = how_it_ended(case.exits[task])
    # Its position is known from the tasks that waited for it.
    first = min((f for f in case.failures.values() if f.where), key=lambda f: f.when, default=None)
    where = progress if first is None else first.where
    name = case.names.get(task, "")
    return TaskFailed(task, case.pids[task], where, how, hint, case.n_tasks, name)


def _failed(case: FailureEvidence, task: int, network: Network) -> HornError:
    failed = case.failures[task]
    if "PeerUnreachable" in failed.kinds:
        where = f"{case.name(task)}, {failed.where}"
        return PeerUnreachable(where, failed.lost, failed.reason, failed.lost_ranks, task)
    kind = next((k for k in failed.kinds if k in _SIMPLE), None)
    if kind is not None:
        told = any(name in failed.kinds for name in PLAIN)
        text = failed.text if told else f"{case.name(task)}, {failed.where}: {failed.text}"
        return _SIMPLE[kind](text)
    what = f"{failed.kinds[0]}: {failed.text}"
    if failed.line is not None:
        file, number, text = failed.line
        what = f"{file}:{number}  {text}\n  {what}"
    few = too_few_processes(RuntimeError(failed.text)) if failed.line is None else ""
    error = TaskFailed(
        task, case.pids[task], _place(failed, network), what, few, case.n_tasks,
        case.names.get(task, ""),
    )  # fmt: skip
    if failed.line is None and not few and not NO_BUGS & set(failed.kinds):
        error.exit_code = 70  # a bug in horn, as with one task
        error.details = failed.traceback
    return error


def _place(failed: FailureReport, network: Network) -> str:
    """The position of the task, with the neuron class."""
    named = [layer for layer in network.layers[1:] if layer.name in _words(failed.label)]
    classes = sorted({layer.neuron.__name__ for layer in named})
    return f"{failed.where}, neuron class {' and '.join(classes)}" if classes else failed.where


def _words(label: str) -> set[str]:
    """The words of a label, and their heads: of layer1.output also layer1."""
    words = set(label.replace(",", " ").split())
    return words | {word.partition(".")[0] for word in words}


# The exceptions that are made from a sentence alone.
_SIMPLE: dict[str, type[HornError]] = {
    name: thing
    for name, thing in vars(errors).items()
    if isinstance(thing, type) and issubclass(thing, HornError) and thing is not HornError
    if thing.__init__ in (Exception.__init__, HornError.__init__) or thing is errors.CompileError
}
