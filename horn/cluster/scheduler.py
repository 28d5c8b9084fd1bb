"""The placement of a job's ranks on hosts. Pure.

Whole groups go to as few hosts as possible, to keep messages on a host; only a group that fits
nowhere whole is divided. A task takes a slot; a server takes none and goes where the job has
fewest. Hosts on which the job failed come last, and pairs that lost each other are kept apart,
while there are others.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from horn import defaults
from horn.errors import JobError
from horn.topology import Topology


@dataclass(frozen=True)
class Host:
    """A registered worker. ``free`` : slots without an order. ``shared`` : the id of its shared
    folder, or "". ``member`` : its fencing token. ``files`` : the number that a job's process may
    open, 0 if unknown.
    """

    name: str
    address: str
    slots: int
    free: int
    horn: str = ""
    python: str = ""
    shared: str = ""
    member: int = 0
    files: int = 0


@dataclass(frozen=True)
class ResourceRequest:
    """A job's request. ``horn``, ``python`` : versions at submission. With ``guests`` servers live
    in the first tasks' processes and have no rank.
    """

    n_groups: int
    n_tasks: int
    n_servers: int = 0
    guests: bool = False
    horn: str = ""
    python: str = ""

    @property
    def n_slots(self) -> int:
        return self.n_groups * self.n_tasks

    @property
    def topology(self) -> Topology:
        """The topology of tasks and servers that have ranks."""
        return Topology(self.n_groups, self.n_tasks, 0 if self.guests else self.n_servers)

    def of(self, n_groups: int) -> ResourceRequest:
        return replace(self, n_groups=n_groups)

    def ranks(self, found: Collection[int], groups: Sequence[int]) -> tuple[int, ...]:
        """Ranks of ``of(len(groups))`` in the numbering of the original job."""
        its, all_of = self.of(len(groups)).topology, self.topology
        return tuple(
            sorted(
                all_of.server(rank - its.n_workers)
                if its.is_server(rank)
                else all_of.rank(groups[its.group(rank)], rank % self.n_tasks)
                for rank in found
            )
        )


@dataclass(frozen=True)
class Unschedulable:
    """No allocations are possible now; the reason is for people."""

    reason: str


def allocate(
    need: ResourceRequest,
    hosts: Mapping[str, Host],
    prefer: Collection[str] = (),
    blamed: Mapping[str, int] | None = None,
    parted: Sequence[tuple[str, str]] = (),
) -> dict[str, tuple[int, ...]] | Unschedulable:
    """Allocate ranks by host, or say why they wait. prefer : hosts of the last attempt. blamed :
    failures by host. parted : pairs of hosts that lost each other.
    """
    fitting = {name: host for name, host in hosts.items() if not differs(need, host)}
    there = {name: host for name, host in fitting.items() if host.free > 0}
    for names in _choices(list(there), blamed or {}, parted):
        if sum(there[name].free for name in names) >= need.n_slots:
            return _allocate(need, {name: there[name] for name in names}, prefer)
    return Unschedulable(_short(need, hosts, fitting))


def _choices(
    names: Sequence[str], blamed: Mapping[str, int], parted: Sequence[tuple[str, str]]
) -> Iterator[list[str]]:
    """Yield choices of hosts, the best first; the last is all."""
    order = sorted(names, key=lambda name: (blamed.get(name, 0), name))
    n_fine = sum(not blamed.get(name, 0) for name in order)
    for n in range(max(n_fine, 1), len(order) + 1):  # one more with each, the least blamed first
        calm = order[:n]
        pairs = [pair for pair in parted if set(pair) <= set(calm)]
        without = {frozenset(left_out) for left_out in itertools.product(*pairs)}
        for left_out in sorted(without, key=lambda some: (len(some), sorted(some))):
            yield [name for name in calm if name not in left_out]
    yield order


def _allocate(
    need: ResourceRequest, hosts: Mapping[str, Host], prefer: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Make allocations on hosts that have room for all."""
    free = {name: host.free for name, host in hosts.items()}
    allocations: dict[str, list[int]] = {}
    left = _allocate_whole(need, free, allocations, prefer)
    for group in left:
        _divide(need, group, free, allocations)
    if not need.guests:
        order = sorted(allocations, key=lambda name: (-hosts[name].slots, name))
        for server in range(need.n_servers):
            allocations[order[server % len(order)]].append(need.n_slots + server)
    return {name: tuple(sorted(ranks)) for name, ranks in sorted(allocations.items())}


def grown(
    groups: Sequence[Sequence[int]], room: Mapping[str, int]
) -> dict[str, list[int]] | Unschedulable:
    """Allocate more groups where a job runs, or say why they wait. room : free slots by host."""
    free, found = dict(room), dict[str, list[int]]()
    n = sum(map(len, groups))
    if n > sum(free.values()):
        where = ", ".join(sorted(room))
        return Unschedulable(
            f"waits for {_count(n, 'slot')} for more groups; {sum(free.values())} free on {where}, "
            f"and a job grows where it runs"
        )
    for ranks in groups:
        left = list(ranks)
        while left:
            enough = [name for name in free if free[name] >= len(left)]
            if enough:
                best = min(enough, key=lambda name: (free[name], name))
            else:
                best = min(free, key=lambda name: (-free[name], name))
            here, left = left[: free[best]], left[free[best] :]
            found.setdefault(best, []).extend(here)
            free[best] -= len(here)
    return found


def _allocate_whole(
    need: ResourceRequest,
    free: dict[str, int],
    allocations: dict[str, list[int]],
    prefer: Collection[str],
) -> list[int]:
    """Allocate groups that fit on a host; returns the others."""
    groups = list(range(need.n_groups))
    while groups:
        room = {name: n // need.n_tasks for name, n in free.items() if n >= need.n_tasks}
        if not room:
            break
        # The last ones go where the least room is left over.
        enough = {name: n for name, n in room.items() if n >= len(groups)}
        sign = 1 if enough else -1
        best = min(enough or room, key=lambda n: (sign * free[n], n not in prefer, n))
        best = min(enough.keys() & set(prefer), default=best)
        taken, groups = groups[: room[best]], groups[room[best] :]
        for group in taken:
            allocations.setdefault(best, []).extend(need.topology.ranks(group))
        free[best] -= len(taken) * need.n_tasks
    return groups


def _divide(
    need: ResourceRequest, group: int, free: dict[str, int], allocations: dict[str, list[int]]
) -> None:
    """Allocate a group on several hosts, those with the most room first."""
    ranks = need.topology.ranks(group)
    while ranks:
        best = min((n for n, room in free.items() if room), key=lambda n: (-free[n], n))
        here, ranks = ranks[: free[best]], ranks[free[best] :]
        allocations.setdefault(best, []).extend(here)
        free[best] -= len(here)


def differs(need: ResourceRequest, host: Host) -> str:
    """A sentence if a host's versions differ from the job's, else ""."""
    if (need.horn and host.horn != need.horn) or (need.python and host.python != need.python):
        return f"{host.name} has Python {host.python} and horn {host.horn}"
    return ""


def _short(need: ResourceRequest, hosts: Mapping[str, Host], fitting: Mapping[str, Host]) -> str:
    total = sum(host.slots for host in fitting.values())
    free = sum(max(host.free, 0) for host in fitting.values())
    text = f"waits for {_count(need.n_slots, 'slot')}; "
    if not hosts:
        text += "no worker is up"
    elif not fitting:
        text += "no worker that is up can run it"
    elif total < need.n_slots:
        text += (
            f"the {_count(len(fitting), 'usable worker')} "
            f"{'has' if len(fitting) == 1 else 'have'} {total}: start more workers"
        )
    else:
        verb = "is" if free == 1 else "are"
        text += f"{free} {verb} free on {_count(len(fitting), 'host')}"
    others = [told for host in hosts.values() if (told := differs(need, host))]
    if others:
        text += (
            f". Not used: {'; '.join(sorted(others))}; this job was submitted with Python "
            f"{need.python} and horn {need.horn}. Use the same environment on all machines; "
            f"horn doctor --cluster lists differences"
        )
    return text


def scattered(need: ResourceRequest, hosts: Mapping[str, Host]) -> str:
    """In words, that only hosts that see no folder in common have slots for a job, so that nothing
    of it can be kept for a restart; "" if others have, or they are still too few for it.
    """
    if need.guests:  # of which nothing is kept anywhere
        return ""
    slots = dict[str, int]()
    for name, host in hosts.items():
        if not differs(need, host):
            place = host.shared or f" {name}"  # no id has a space
            slots[place] = slots.get(place, 0) + host.slots
    if not max(slots.values(), default=0) < need.n_slots <= sum(slots.values()):
        return ""
    return (
        f"it takes {_count(need.n_slots, 'slot')}, and workers that see a folder in common have "
        f"{max(slots.values())}"
    )


def check_files(topology: Topology, hosts: Collection[Host]) -> None:
    """Check that hosts with slots allow as many open files as tasks need. Raises JobError: too few
    do, and none would after other jobs end.
    """
    n = topology.n_workers
    is_one = any(host.slots >= n for host in hosts)
    from horn import transport  # late: it loads NumPy, which commands that only look do not need

    name = defaults.TRANSPORT if is_one else transport.across_hosts()
    need = topology.descriptors(transport.load(name).fds_per_peer)
    few = {host.name: host.files for host in hosts if 0 < host.files < need}
    slots = sum(host.slots for host in hosts)
    if n <= slots and sum(host.slots for host in hosts if host.name not in few) < n:
        allowed = ", ".join(f"{files} on {name}" for name, files in sorted(few.items()))
        raise JobError(
            f"{n} tasks: each needs up to {need} open files, but a process of a job may have "
            f"{allowed}. Ask for fewer groups or tasks, or for no more than one host has slots"
        )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
