"""The decisions of a job's master. Pure: the state of ZooKeeper in, changes to it out.

All state is in ZooKeeper, so the next master goes on. The tasks of an attempt, or their agents'
sessions, have ended before there is an order with the next attempt. docs/notes/0060.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from horn import defaults
from horn.cluster.scheduler import Host, ResourceRequest, Unschedulable, allocate, differs, grown
from horn.coordination.jobs import JobState

RUN, STOP, END = "run", "stop", "end"  # aims of an order, in the order in which they can follow
AIMS = (RUN, STOP, END)
STARTING, RUNNING = "starting", "running"
FINISHED, FAILED, STOPPED, GONE = "finished", "failed", "stopped", "ended"
ENDED_PHASES = frozenset({FINISHED, FAILED, STOPPED, GONE})  # phases in which no process is left

MAX_PARTED = 4  # pairs to be remembered: all ways to keep them apart are tried
# Not with its place there: each job that leaves the queue would have all others written anew.
QUEUES = "waits for its turn: others are before it in the queue"
NO_FILES = (
    "waits for its files, which no worker that is up has: start one that has them, or send them "
    "again:  horn stop JOB, and then  horn resume JOB --with TARGET"
)
AGAIN = 2  # failures on a host since its last checkpoint, after which one is left where it lies

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class StoredRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of records in ZooKeeper: JSON with checked fields."""


class Allocation(StoredRecord, frozen=True):
    """A host's part. ``member`` : its agent's fencing token. ``shared`` : its folder, or ""."""

    member: _Count
    address: str
    ranks: tuple[_Count, ...]
    shared: str = ""


class HostOrder(StoredRecord, frozen=True):
    """An agent's order for a job, with what is its host's alone: the groups and the allocations of
    all hosts are in the job's record, or each host's order would grow with the number of hosts.
    ``begin`` : the iteration of the checkpoint to resume, -1 for the newest. ``changed`` : the
    checkpoint may be of a changed job. ``n_scaled`` : as in JobRecord.
    """

    attempt: _Count
    aim: str
    allocation: Allocation
    begin: int = -1
    changed: bool = False
    n_scaled: _Count = 0


class HostFailure(StoredRecord, frozen=True):
    """A failure on a host. text : for people. code : exit code. when : the place of its report in
    ZooKeeper's order, as clocks differ; set by its reader. is_secondary : another host's failure
    caused it. is_final : a restart would not help. hosts : at fault, or two that lost each other;
    none for the reporter. kept : the updates of the model from before it that the reporter keeps,
    -1 for none. lacking : the workers that were asked for the job's package, by their fencing
    tokens, if none of them has it.
    """

    text: str
    code: int = 1
    when: _Count = 0
    is_secondary: bool = False
    is_final: bool = False
    hosts: tuple[str, ...] = ()
    details: str = ""
    kept: int = -1
    lacking: tuple[_Count, ...] = ()


class HostReport(StoredRecord, frozen=True):
    """An agent's report of an attempt. checkpoint : the last complete one, -1 for none. From the
    primary host: result, when all have finished; left, groups that left in this attempt; unsaved,
    why checkpoints since the last are not saved, "" if they are.
    """

    phase: str
    member: _Count = 0
    checkpoint: int = -1
    failure: HostFailure | None = None
    result: dict[str, Any] | None = None
    left: tuple[_Count, ...] = ()
    unsaved: str = ""


class JobRecord(StoredRecord, frozen=True):
    """A master's record of its job.

    allocations : hosts with orders. n_failures : since the last checkpoint. hosts : of the last
    attempt. kept : those that made the checkpoint, or the model, each with its shared folder or "".
    blamed : failures by host, parted : pairs of hosts that lost each other, both since a
    checkpoint of theirs. reason : why it waits. begin : the iteration that it was resumed from, -1
    for the newest; changed : that it may be of a changed job; both until the next checkpoint.
    lacking : the workers that have not its package, by fencing tokens, until another comes.

    groups : by number, those that stay; none for those of the submission. n_wanted : groups asked
    for, 0 for none. n_refused : a number of them that could not run. n_scaled : changes of groups
    while the job ran. With servers: leaving : groups that still have allocations. n_ever : numbers
    given so far. Under allreduce: n_before : groups before the present ones made a checkpoint.
    """

    attempt: _Count = 0
    aim: str = RUN
    allocations: dict[str, Allocation] = {}
    checkpoint: int = -1
    failed_at: int = -1  # the checkpoint when a failure was counted last
    n_failures: _Count = 0
    n_restarts: _Count = 0
    hosts: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    blamed: dict[str, int] = {}
    parted: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    trouble: str = ""  # the last failure, in words
    begin: int = -1
    changed: bool = False
    lacking: tuple[_Count, ...] = ()
    groups: tuple[_Count, ...] = ()
    leaving: tuple[_Count, ...] = ()
    n_ever: _Count = 0
    n_wanted: _Count = 0
    n_scaled: _Count = 0
    n_before: _Count = 0
    n_refused: _Count = 0

    @property
    def primary(self) -> str:
        """The primary host of the present attempt; "" without one."""
        return next((name for name, s in self.allocations.items() if 0 in s.ranks), "")


@dataclass(frozen=True)
class JobSnapshot:
    """The state of a job, as read from ZooKeeper. ``reports`` : by host, of this attempt.
    ``hosts`` : workers that are up. wants_groups : asked for, 0 if none are. why : it is to stop,
    "" if somebody wants it to. is_next : no other job is to begin before it.
    """

    state: JobState
    need: ResourceRequest
    record: JobRecord
    reports: Mapping[str, HostReport]
    hosts: Mapping[str, Host]
    max_restarts: int = defaults.MAX_RESTARTS
    wants_now: bool = False
    wants_groups: int = 0
    why: str = ""
    is_next: bool = True


@dataclass(frozen=True)
class Decision:
    """Changes to be written at once. ``orders`` by host, None to withdraw; the rest if changed."""

    record: JobRecord
    orders: Mapping[str, HostOrder | None] = field(default_factory=dict)
    state: JobState | None = None
    result: Mapping[str, Any] | None = None


def decide(snapshot: JobSnapshot) -> Decision | None:
    """The next decision; None if there is nothing to do until something changes."""
    if snapshot.state.is_over:
        return None
    if snapshot.wants_groups and snapshot.wants_groups != snapshot.record.n_wanted:
        return Decision(_changed(snapshot.record, n_wanted=snapshot.wants_groups, n_refused=0))
    if snapshot.record.allocations:
        return _tend(snapshot)
    if snapshot.state is JobState.STOPPING:
        return _stopped(snapshot.record, cause=snapshot.why)
    if snapshot.state is JobState.PENDING and not snapshot.is_next:
        return _queue(snapshot)
    return _place(snapshot)


def refuse(snapshot: JobSnapshot, reason: str) -> Decision | None:
    """The next decision for a job that may not run: it has FAILED, once nothing of it runs any
    more. What it needs is not asked: it may be unknown.
    """
    record = snapshot.record
    if len(ended(snapshot)) < len(record.allocations):
        ending = _changed(record, aim=END)
        return None if record.aim == END else Decision(ending, _orders(ending))
    cause = HostFailure(f"refused: {reason}", code=3)
    return _failed(record, dict.fromkeys(record.allocations), cause, cause.text)


def keep_groups(snapshot: JobSnapshot, reason: str) -> Decision | None:
    """The next decision for a job with a change of groups that cannot be written: it keeps those
    that it has. None if no change is under way.
    """
    record = snapshot.record
    here, refused = len(record.groups) or snapshot.need.topology.n_groups, record.n_wanted
    if refused in (0, here, record.n_refused):
        if not record.n_before or record.allocations:
            return None
        record, refused = _changed(record, groups=tuple(range(record.n_before)), n_before=0), here
    text = f"{refused} groups cannot run it: {reason}"[:1000]
    return Decision(_changed(record, n_refused=refused, trouble=text))


def ended(snapshot: JobSnapshot) -> frozenset[str]:
    """The hosts on which no process of the attempt runs any more, for sure."""
    allocations = snapshot.record.allocations
    done = {h for h, report in _reports(snapshot).items() if report.phase in ENDED_PHASES}
    return frozenset(done | {name for name in allocations if is_gone(snapshot, name)})


def is_gone(snapshot: JobSnapshot, name: str) -> bool:
    """Whether an allocation's agent has lost its session: it ended its tasks before."""
    host = snapshot.hosts.get(name)
    return host is None or host.member != snapshot.record.allocations[name].member


def _leaving(snapshot: JobSnapshot) -> list[str]:
    """Allocations whose agents have gone, or offer no slots any more, as those that go."""
    hosts = snapshot.hosts
    return sorted(
        name for name in snapshot.record.allocations
        if is_gone(snapshot, name) or not hosts[name].slots
    )  # fmt: skip


def _reports(snapshot: JobSnapshot) -> dict[str, HostReport]:
    """Reports of agents with the fencing tokens of the orders."""
    allocations = snapshot.record.allocations
    return {
        name: report
        for name, report in snapshot.reports.items()
        if name in allocations and report.member == allocations[name].member
    }


# Nothing runs


def could_run(snapshot: JobSnapshot) -> bool:
    """Whether the workers that are up had room for a job without allocations if they ran nothing
    else.
    """
    found = _place(_alone(snapshot))
    return found is not None and bool(found.orders)


def _alone(snapshot: JobSnapshot) -> JobSnapshot:
    hosts = {name: replace(host, free=host.slots) for name, host in snapshot.hosts.items()}
    return replace(snapshot, hosts=hosts)


def _queue(snapshot: JobSnapshot) -> Decision | None:
    """Let a job wait for others that begin before it; one that could not run anyway says why."""
    if could_run(snapshot):
        return _waits(snapshot.record, Unschedulable(QUEUES))
    return _place(_alone(snapshot))


def _place(snapshot: JobSnapshot) -> Decision | None:
    up = {host.member for host in snapshot.hosts.values()}
    if up and up <= set(snapshot.record.lacking):
        return _waits(snapshot.record, Unschedulable(NO_FILES))
    record = _regrouped(snapshot)
    need = snapshot.need
    groups = (*(record.groups or range(need.n_groups)), *record.leaving)
    wanted = need.of(len(groups))
    there = seeing(record.kept, snapshot.hosts)
    near = {
        name: host for name, host in there.items()
        if record.blamed.get(name, 0) < AGAIN and not differs(wanted, host)
    }  # fmt: skip
    is_near = sum(host.slots for host in near.values()) >= wanted.n_slots
    hosts = near if is_near else snapshot.hosts
    found = allocate(wanted, hosts, record.hosts, record.blamed, record.parted)
    if isinstance(found, Unschedulable):
        if len(hosts) < len(snapshot.hosts):
            where = f"; its checkpoint is on {', '.join(sorted(hosts))}"
            found = Unschedulable(found.reason + where)
        return _waits(snapshot.record, found)
    if record.kept and not found.keys() <= there.keys():
        record = _changed(record, trouble=_anew(record, need, snapshot.hosts))
    found = {name: need.ranks(ranks, groups) for name, ranks in found.items()}
    allocations = {
        name: Allocation(host.member, host.address, ranks, host.shared)
        for name, ranks in found.items()
        for host in (snapshot.hosts[name],)
    }
    record = _changed(
        record, attempt=record.attempt + 1, aim=RUN, allocations=allocations,
        hosts=tuple(allocations), reason="", lacking=(),
    )  # fmt: skip
    return Decision(record, _orders(record), JobState.RUNNING)


def _anew(record: JobRecord, need: ResourceRequest, hosts: Mapping[str, Host]) -> str:
    """The trouble of a job that begins elsewhere than where its checkpoint is."""
    where = sorted(record.kept.keys() - hosts.keys()) or sorted(record.kept)
    if not hosts.keys() & set(where):
        why = "which is down or cut off"
    elif any(record.blamed.get(name, 0) >= AGAIN for name in where):
        why = "where it failed again and again"
    elif any(differs(need, hosts[name]) for name in where):
        why = "which has another version of horn or Python than the job"
    else:
        why = "which has too few slots now"
    text = (
        f"it begins anew, since its checkpoint of iteration {record.checkpoint:,} is on worker "
        f"{', '.join(where)}, {why}"
    )
    first, newline, rest = record.trouble.partition("\n")
    return f"{first}; {text}{newline}{rest}"[:1000] if first else text


def _waits(record: JobRecord, why: Unschedulable) -> Decision | None:
    """Record why the job waits, unless it is recorded."""
    return Decision(_changed(record, reason=why.reason)) if why.reason != record.reason else None


# Something runs


def _tend(snapshot: JobSnapshot) -> Decision | None:
    record, reports = snapshot.record, _reports(snapshot)
    over = ended(snapshot)
    newest = max((r.checkpoint for r in reports.values()), default=-1)
    is_known = newest == record.checkpoint and _is_there(record)
    if newest != -1 and not is_known:  # lower where others, with older ones, go on
        return Decision(_proven(_changed(record, checkpoint=newest, kept=_folders(record))))
    if len(over) == len(record.allocations):
        return _conclude(snapshot, reports)
    fine = {name for name, report in reports.items() if report.phase in (FINISHED, STOPPED)}
    has_trouble = bool(over - fine)
    aim = record.aim
    if has_trouble:
        aim = END
    elif snapshot.state is JobState.STOPPING:
        aim = END if snapshot.wants_now else STOP
    elif not fine and _leaving(snapshot) and _all_run(snapshot, reports):
        aim = STOP  # with a checkpoint, from which it goes on elsewhere: _conclude
    if aim == record.aim == RUN and not fine:
        if snapshot.need.topology.n_servers:
            return _rescale(snapshot, reports)
        if _regrouped(snapshot) is not record and _all_run(snapshot, reports):
            found = _kept_groups(reports) or _with_other_groups(snapshot)
            if isinstance(found, Unschedulable):
                return _waits(record, found)
            aim = STOP  # with a checkpoint, from which the others go on: _conclude
    if AIMS.index(aim) <= AIMS.index(record.aim):
        return None
    record = _changed(record, aim=aim)
    return Decision(record, _orders(record))


def _rescale(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> Decision | None:
    """Add allocations for new groups; withdraw those of groups that have left."""
    record, need = snapshot.record, snapshot.need
    topology = need.topology
    left = {g for report in reports.values() for g in report.left} & set(record.leaving)
    if left:
        gone = {rank for group in left for rank in topology.ranks(group)}
        allocations = {
            name: _reallocated(s, (r for r in s.ranks if r not in gone))
            for name, s in record.allocations.items()
        }
        leaving = tuple(g for g in record.leaving if g not in left)
        record = _changed(record, allocations=allocations, leaving=leaving)
        return Decision(record, _orders(record))
    new = _regrouped(snapshot)
    if new.groups == record.groups:
        return None if not record.reason else Decision(_changed(record, reason=""))
    before = record.groups or tuple(range(need.n_groups))
    added = [group for group in new.groups if group not in before]
    ranks = [topology.ranks(group) for group in added]
    found = grown(ranks, _room(snapshot))
    if isinstance(found, Unschedulable):
        return _waits(record, found)
    allocations = {
        name: _reallocated(s, (*s.ranks, *found.get(name, ())))
        for name, s in record.allocations.items()
    }
    n_scaled = record.n_scaled + 1
    record = _changed(new, allocations=allocations, n_scaled=n_scaled, reason="")
    return Decision(record, _orders(record))


def _all_run(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> bool:
    phases = [report.phase for report in reports.values()]
    return phases == [RUNNING] * len(snapshot.record.allocations)


def _kept_groups(reports: Mapping[str, HostReport]) -> Unschedulable | None:
    """Why no other groups may come now: they would not go on from where the present ones are."""
    why = unsaved(reports.values())
    return (
        Unschedulable(f"keeps its groups while no checkpoint can be saved: {why}") if why else None
    )


def unsaved(reports: Iterable[HostReport]) -> str:
    """Why an attempt's checkpoints are not saved; "" if they are."""
    return next((report.unsaved for report in reports if report.unsaved), "")


def _with_other_groups(snapshot: JobSnapshot) -> dict[str, tuple[int, ...]] | Unschedulable:
    """Allocations for as many groups as are wanted, where the job's checkpoints are."""
    record = snapshot.record
    need = snapshot.need.of(record.n_wanted)
    near = sharing(record, snapshot.hosts)
    return allocate(need, near, record.hosts, record.blamed, record.parted)


def sharing(record: JobRecord, hosts: Mapping[str, Host]) -> dict[str, Host]:
    """The hosts on which a job runs, and those that share its folder."""
    return seeing(_folders(record), hosts)


def seeing(kept: Mapping[str, str], hosts: Mapping[str, Host]) -> dict[str, Host]:
    """The hosts that see what some have kept. kept : those, each with its shared folder or ""."""
    folders = set(kept.values()) - {""}
    return {name: host for name, host in hosts.items() if name in kept or host.shared in folders}


def _folders(record: JobRecord) -> dict[str, str]:
    return {name: allocation.shared for name, allocation in record.allocations.items()}


def unkept(allocations: Mapping[str, Allocation], servers: int) -> str:
    """In words, that nothing of a job is kept for a restart, as its hosts see no folder in common;
    "" if they do. servers : of the job, which keep journals instead of checkpoints.
    """
    if len({allocation.shared or name for name, allocation in allocations.items()}) <= 1:
        return ""
    what = "its servers keep no journal" if servers else "no checkpoints of it are saved"
    return (
        f"{what}, since its workers {', '.join(sorted(allocations))} have no folder in common "
        f"(horn worker --shared): it can only begin anew"
    )


def _is_there(record: JobRecord) -> bool:
    """Whether the attempt runs where the checkpoint is, or that is not known."""
    here, kept = _folders(record), record.kept
    shared = set(here.values()) & set(kept.values()) - {""}
    return not kept or bool(shared or here.keys() & kept.keys())


def _reallocated(old: Allocation, ranks: Iterable[int]) -> Allocation:
    return msgspec.structs.replace(old, ranks=tuple(sorted(ranks)))


def _regrouped(snapshot: JobSnapshot) -> JobRecord:
    """The record with the wanted number of groups: the last to come leaves first. Servers count on
    each group, so one keeps its allocation until it has left; under allreduce others resume.
    """
    record, topology = snapshot.record, snapshot.need.topology
    if not topology.n_servers and not snapshot.need.guests:
        n, here = record.n_wanted, len(record.groups) or topology.n_groups
        if n in (0, here, record.n_refused):
            return record
        return _changed(record, groups=tuple(range(n)), n_before=here)
    groups = [*record.groups] or [*range(topology.n_groups)]
    n_ever = record.n_ever or topology.n_groups
    if record.n_wanted in (0, record.n_refused) or not topology.n_servers:
        return record
    leaving = list(record.leaving)
    while len(groups) > record.n_wanted:
        leaving.append(max(groups))
        groups.remove(max(groups))
    while len(groups) < record.n_wanted:
        groups.append(topology.next_group(groups, n_ever))
        n_ever = groups[-1] + 1
    return _changed(record, groups=tuple(groups), leaving=tuple(leaving), n_ever=n_ever)


def _room(snapshot: JobSnapshot) -> dict[str, int]:
    """The free slots of the hosts where the job runs."""
    topology, found = snapshot.need.topology, {}
    for name, s in snapshot.record.allocations.items():
        used = sum(not topology.is_server(rank) for rank in s.ranks)
        found[name] = max(snapshot.hosts[name].free - used, 0)
    return found


def _conclude(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> Decision:
    """The decision after an attempt has ended."""
    record = snapshot.record
    withdrawn: dict[str, HostOrder | None] = dict.fromkeys(record.allocations)
    free = _changed(record, allocations={}, aim=RUN)
    phases = {reports[name].phase if name in reports else GONE for name in record.allocations}
    if phases == {FINISHED}:
        result = {"state": JobState.SUCCEEDED.value, "code": 0, "host": record.primary,
                  **(reports[record.primary].result or {})}  # fmt: skip
        free = _changed(free, kept=_folders(record))
        return Decision(_settled(free), withdrawn, JobState.SUCCEEDED, result)
    cause = first_cause(snapshot, reports)
    causes = [r.result["cause"] for r in reports.values() if r.result and "cause" in r.result]
    leaving = _leaving(snapshot)
    is_asked = record.aim == STOP and snapshot.state is not JobState.STOPPING
    if phases == {STOPPED} and is_asked and not leaving:
        if causes:  # found out by the last one, for which there was no room any more
            free = _changed(free, n_restarts=record.n_restarts + 1, trouble=causes[0][:1000])
        return Decision(free, withdrawn, _restarting(snapshot))  # other groups go on
    if cause is not None and cause.is_final and record.n_before:
        text = f"{len(record.groups)} groups cannot run it: {cause.text}"
        back = _changed(
            free, groups=tuple(range(record.n_before)), n_before=0, n_refused=len(record.groups),
            n_restarts=record.n_restarts + 1, trouble=text[:1000],
        )  # fmt: skip
        return Decision(back, withdrawn, _restarting(snapshot))
    if cause is not None and cause.is_final:
        return _failed(record, withdrawn, cause, cause.text)
    if snapshot.state is JobState.STOPPING:
        undone = "" if snapshot.wants_now else _undone(snapshot, reports, cause)
        return _stopped(record, withdrawn, "".join(causes[:1]) or snapshot.why or undone)
    if cause is None:  # an agent was told to leave: nobody's failure
        is_late = is_asked and not _has_saved(snapshot, reports)
        trouble = _who_left(snapshot, reports) + " before the job had saved" * is_late
        trouble = "; ".join([trouble, *causes[:1]])[:1000]  # what could not be saved
        record = _changed(free, n_restarts=record.n_restarts + 1, trouble=trouble)
        return Decision(record, withdrawn, _restarting(snapshot))
    if cause.lacking:  # it would end in the same way until another worker comes
        record = _changed(free, lacking=cause.lacking, reason=NO_FILES)
        return Decision(record, withdrawn, _restarting(snapshot))
    n = 1 if record.checkpoint != record.failed_at else record.n_failures + 1
    if n > snapshot.max_restarts:
        times = f"failed {n} times" if n > 1 else "failed"
        last = (
            "with no checkpoint" if record.checkpoint < 0
            else f"since the checkpoint of iteration {record.checkpoint:,}"
        )  # fmt: skip
        text = f"{cause.text}\nThe job {times} {last}; --max-restarts is {snapshot.max_restarts}."
        return _failed(record, withdrawn, cause, text)
    free = _noted(free, cause.hosts)
    record = _changed(
        free, n_failures=n, failed_at=record.checkpoint, n_restarts=record.n_restarts + 1,
        trouble=cause.text[:1000],
    )  # fmt: skip
    return Decision(record, withdrawn, _restarting(snapshot))


def _who_left(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> str:
    """The end of an attempt that did not fail, in words."""
    over = (n for n in snapshot.record.allocations if n not in reports or reports[n].phase == GONE)
    left = _leaving(snapshot) or sorted(over)
    return f"worker {', '.join(left)} was stopped" if left else "the tasks were ended"


def _has_saved(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> bool:
    """Whether an attempt that was to stop did so by itself; servers have their journals."""
    first = snapshot.record.primary
    phase = reports[first].phase if first in reports else GONE
    return bool(snapshot.need.topology.n_servers) or phase in (STOPPED, FINISHED)


def _undone(
    snapshot: JobSnapshot, reports: Mapping[str, HostReport], cause: HostFailure | None
) -> str:
    """What a stop that saves first left undone, in words; "" if nothing."""
    record, need = snapshot.record, snapshot.need
    if need.guests:  # asked for
        return ""
    lost = unkept(record.allocations, need.n_servers)
    if lost or _has_saved(snapshot, reports):
        return lost
    since = f" after {record.checkpoint:,}" if record.checkpoint >= 0 else ""
    why = _who_left(snapshot, reports) if cause is None else cause.text
    return f"it ended before it had saved, and no checkpoint has its iterations{since}: {why}"


def first_cause(snapshot: JobSnapshot, reports: Mapping[str, HostReport]) -> HostFailure | None:
    """The root cause; a lost host before the secondary failures that it led to."""
    failures = [
        msgspec.structs.replace(r.failure, hosts=r.failure.hosts or (name,))
        for name, r in reports.items()
        if r.failure is not None
    ]
    own = [f for f in failures if not f.is_secondary]
    if own:
        # A failure that would recur is the cause, even if later: the others may follow from it.
        return min(own, key=lambda f: (not f.is_final, f.when))
    over = {name for name, report in reports.items() if report.phase in ENDED_PHASES}
    lost = sorted(
        name for name in snapshot.record.allocations
        if is_gone(snapshot, name) and name not in over
    )  # fmt: skip
    if lost:
        ranks = sum(len(snapshot.record.allocations[name].ranks) for name in lost)
        return HostFailure(
            f"First failure: worker {', '.join(lost)} was lost (killed, stopped or cut off: its "
            f"session with ZooKeeper ended), and {ranks} task{'s' * (ranks > 1)} with it",
            hosts=tuple(lost[:1]),
        )
    return min(failures, key=lambda f: f.when, default=None)


def _noted(record: JobRecord, hosts: tuple[str, ...]) -> JobRecord:
    """Record a failure of one host, or between two."""
    if len(hosts) == 2:
        pair = (hosts[0], hosts[1])
        others = tuple(known for known in record.parted if known != pair)
        return _changed(record, parted=(*others, pair)[-MAX_PARTED:])
    counts = {name: record.blamed.get(name, 0) + 1 for name in hosts}
    return _changed(record, blamed={**record.blamed, **counts})


def _proven(record: JobRecord) -> JobRecord:
    """Record that the attempt has made a checkpoint: its hosts work, alone and together."""
    allocations = record.allocations
    return _changed(
        record,
        blamed={name: n for name, n in record.blamed.items() if name not in allocations},
        parted=tuple(pair for pair in record.parted if not set(pair) <= allocations.keys()),
        begin=-1,
        changed=False,
        n_before=0,
    )


def _restarting(snapshot: JobSnapshot) -> JobState | None:
    return None if snapshot.state is JobState.RESTARTING else JobState.RESTARTING


def _failed(
    record: JobRecord, orders: Mapping[str, HostOrder | None], cause: HostFailure, text: str
) -> Decision:
    result = {"state": JobState.FAILED.value, "code": cause.code, "cause": text,
              "details": cause.details, "checkpoint": record.checkpoint,
              **_host(record)}  # fmt: skip
    if cause.kept >= 0:
        result["kept"] = cause.kept
    return Decision(_settled(record), orders, JobState.FAILED, result)


def _stopped(
    record: JobRecord, orders: Mapping[str, HostOrder | None] | None = None, cause: str = ""
) -> Decision:
    """cause : of the stop, or of what it left undone, if it is known."""
    result = {"state": JobState.STOPPED.value, "code": 5, "checkpoint": record.checkpoint,
              **_host(record)}  # fmt: skip
    if cause:
        result["cause"] = cause
    return Decision(_settled(record), orders or {}, JobState.STOPPED, result)


def _host(record: JobRecord) -> dict[str, str]:
    """The primary host of an attempt that is over, for its result: its log is read first."""
    return {"host": record.primary} if record.primary else {}


def _settled(record: JobRecord) -> JobRecord:
    """Reset all counts, for horn resume."""
    return _changed(
        record, n_failures=0, failed_at=-1, blamed={}, parted=(), reason="", allocations={},
        aim=RUN, lacking=(),
    )  # fmt: skip


def _orders(record: JobRecord) -> dict[str, HostOrder | None]:
    return {
        name: HostOrder(
            record.attempt, record.aim, allocation, record.begin, record.changed, record.n_scaled
        )
        for name, allocation in record.allocations.items()
    }


def of_orders(orders: Mapping[str, HostOrder], need: ResourceRequest, trouble: str) -> JobRecord:
    """A record of what runs, by its hosts' orders, instead of one that cannot be read; an empty one
    without orders. Failures so far, and where checkpoints are, orders do not tell.
    """
    if not orders:
        return JobRecord(n_restarts=1, trouble=trouble)
    newest = max(orders.values(), key=lambda order: order.attempt)
    groups: tuple[int, ...] = ()
    if need.n_tasks:  # else it is refused
        ranks = {rank for order in orders.values() for rank in order.allocation.ranks}
        tasks = [rank for rank in ranks if not need.topology.is_server(rank)]
        groups = tuple(sorted({need.topology.group(rank) for rank in tasks}))
    is_as_submitted = groups == tuple(range(need.n_groups))
    return JobRecord(
        attempt=newest.attempt,
        aim=newest.aim,
        allocations={host: order.allocation for host, order in orders.items()},
        hosts=tuple(orders),
        n_restarts=max(newest.attempt - 1, 1),
        trouble=trouble,
        begin=newest.begin,
        changed=newest.changed,
        groups=() if is_as_submitted else groups,
        n_ever=0 if is_as_submitted else max(groups, default=-1) + 1,
        n_scaled=newest.n_scaled,
    )


def _changed(record: JobRecord, **changes: Any) -> JobRecord:
    return msgspec.structs.replace(record, **changes)
