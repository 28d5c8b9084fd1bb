"""Which hosts a failure is put down to, so that the next start may do without them. Pure.

A task that ended is its host's. Where one lost another and nothing else is known, it may be either
of the two, or what is between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horn.errors import BarrierTimeout, HornError, MemberLost, TaskFailed


def blamed(
    error: HornError, here: str, ranks: Mapping[str, Sequence[int]], names: Mapping[int, str]
) -> tuple[str, ...]:
    """One host, or the two that lost each other. here : who says it. ranks : by host. names : what
    errors call a rank.
    """
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
