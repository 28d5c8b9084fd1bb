"""The hosts to blame for a failure, which the next start avoids. Pure.

A task's end is its host's. Where one task lost another, either host may be at fault, or the
network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horn.errors import BarrierTimeout, HornError, MemberLost, TaskFailed


def blamed(error: HornError, here: str, ranks: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The host to blame, or two that lost each other. here : the reporter's. ranks : by host."""
    of_rank = {rank: host for host, there in ranks.items() for rank in there}
    match error:
        case TaskFailed():
            return (of_rank.get(error.task, here),)
        case BarrierTimeout():
            late = {of_rank[rank] for rank in error.absent_ranks if rank in of_rank}
            return tuple(sorted(late)[:1])
        case MemberLost():
            said_by = here if error.by is None else of_rank.get(error.by, here)
            lost = next((of_rank[rank] for rank in error.lost_ranks if rank in of_rank), said_by)
            return tuple(sorted({said_by, lost}))
    return (here,)
