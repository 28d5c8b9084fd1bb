"""The hosts to blame for a failure, which the next start avoids. Pure.

A task's end is its host's. Where one task lost another, either host may be at fault, or the
network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horn.errors import BarrierTimeout, HornError, MemberLost, TaskFailed


def blamed(
    error: HornError, here: str, ranks: Mapping[str, Sequence[int]], names: Mapping[int, str]
) -> tuple[str, ...]:
    """The host to blame, or two that lost each other. here : the reporter's. names : of ranks."""
    of_rank = {rank: host for host, there in ranks.items() for rank in there}
    of_name = {name: of_rank[rank] for rank, name in names.items() if rank in of_rank}
    of_name |= {f"worker {host}": host for host in ranks}
    match error:
        case TaskFailed():
            return (of_rank.get(error.task, here),)
        case BarrierTimeout():
            return tuple(sorted({of_name[who] for who in error.absent if who in of_name})[:1])
        case MemberLost():
            said_by = of_name.get(error.where.partition(",")[0], here)
            lost = next((of_name[who] for who in error.lost if who in of_name), said_by)
            return tuple(sorted({said_by, lost}))
    return (here,)
