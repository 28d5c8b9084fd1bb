"""A superstep in which every task computes some arrays and receives those of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horn.backends import Array
from horn.runtime.task import CollectInstruction, ComputeInstruction, PostInstruction, Script
from horn.transport import Channel

N_PARTS = 3  # channels of a task, over all supersteps


class AllGather:
    """A script and its handler (``runtime.group.ScriptHandler``).

    arrays : those of each task, by rank; received in place. first_part : the channel of a task's
    first array among its ``N_PARTS``. what : the kinds of its arrays. labels : of the script's
    instructions. work : computes this task's arrays; then : called when all arrays are here.
    """

    def __init__(
        self,
        rank: int,
        arrays: Sequence[Sequence[Array]],
        first_part: int,
        what: Sequence[str],
        labels: tuple[str, str, str],
        work: Callable[[], None],
        then: Callable[[], None],
    ) -> None:
        self.rank, self.work, self.then = rank, work, then
        self.arrays = [
            {N_PARTS * r + first_part + k: array for k, array in enumerate(of_task)}
            for r, of_task in enumerate(arrays)
        ]
        self.channels: list[Channel] = []
        for r, of_task in enumerate(self.arrays):
            to = tuple(other for other in range(len(arrays)) if other != r)
            for (part, array), kind in zip(of_task.items(), what, strict=False):
                code = array.dtype.newbyteorder("<").str
                self.channels.append(Channel(part, r, to, code, array.shape, kind))
        parts = tuple(channel.part for channel in self.channels)
        compute, post, collect = labels
        self.script: Script = (
            ComputeInstruction(0, compute),
            PostInstruction(0, parts, post),
            CollectInstruction(0, parts, collect),
        )

    def compute(self, index: int) -> None:
        self.work()

    def pack(self, index: int, outbox: Callable[[int], Array]) -> None:
        for part, array in self.arrays[self.rank].items():
            outbox(part)[...] = array

    def unpack(self, index: int, inbox: Callable[[int], Array]) -> None:
        for rank, of_task in enumerate(self.arrays):
            if rank != self.rank:
                for part, array in of_task.items():
                    array[...] = inbox(part)
        self.then()
