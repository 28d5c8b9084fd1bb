"""The layout of ``shm``: slots of channels in the segments of their senders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from horn._kernels.mailbox import CONTROL_BYTES, LINE_BYTES
from horn.transport import Channel
from horn.wire.frames import Array

PAGE_BYTES = 4096


@dataclass
class Slot:
    """One channel: its two buffers, as this task may see them."""

    index: int
    channel: Channel
    buffers: tuple[Array, Array] | None = None
    is_open: bool = False
    is_full: bool = False

    def __post_init__(self) -> None:
        self.n_bytes, self.n_dsts = self.channel.n_bytes, len(self.channel.dsts)
        self.dsts = list(self.channel.dsts)

    @classmethod
    def of(cls, index: int, channel: Channel, segment: memoryview, offset: int, task: int) -> Slot:
        """The slot of a channel, with its buffers if it is one of this task's."""
        slot = cls(index, channel)
        if task == channel.src or task in channel.dsts:
            first, second = (
                _view(segment, channel, offset + at * stride(channel) + LINE_BYTES)
                for at in ((0, 0) if channel.common else (0, 1))
            )
            for view in (first, second):
                view.flags.writeable = channel.common or channel.src == task
            slot.buffers = (first, second)
        return slot


def _round_up(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit


def stride(channel: Channel) -> int:
    return LINE_BYTES + _round_up(channel.n_bytes, LINE_BYTES)


def layout(channels: list[Channel], n_tasks: int) -> tuple[list[int], list[int]]:
    """The offset of each channel's first slot in its sender's segment, and the segments' sizes."""
    start = _round_up(CONTROL_BYTES + LINE_BYTES * len(channels), PAGE_BYTES)
    ends = [start] * n_tasks
    offsets = []
    for channel in channels:
        offsets.append(ends[channel.src])
        ends[channel.src] += (1 if channel.common else 2) * stride(channel)
    return offsets, [_round_up(end, PAGE_BYTES) for end in ends]


def _view(segment: memoryview, channel: Channel, offset: int) -> Array:
    if not channel.n_bytes:
        return np.empty(channel.shape, channel.dtype)
    count = channel.n_bytes // np.dtype(channel.dtype).itemsize
    return np.frombuffer(segment, channel.dtype, count, offset).reshape(channel.shape)
