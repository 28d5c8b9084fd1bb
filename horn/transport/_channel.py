"""The two ends of a channel whose blocks travel in frames: the sending and the receiving one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from horn.transport import Channel
from horn.transport._stream import NumberedFrame
from horn.wire.frames import CHUNK_BYTES, Array, BadFrame, WireMessage
from horn.wire.messages import BlockData

AHEAD = 2  # blocks of a channel that may wait here; the bytes of more are not granted again


@dataclass
class Outlet:
    """The sending end: two buffers to write into by turns; ``frames[at]`` may still be sent from
    one. A buffer with unacknowledged frames is set aside for another: the task waits for no peer,
    and the credit bounds their number.
    """

    channel: Channel
    n_uses: int = 0
    is_open: bool = False  # the outbox was asked for
    n_unsent: list[int] = field(default_factory=lambda: [0, 0])  # not given to the link
    frames: list[list[NumberedFrame]] = field(default_factory=lambda: [[], []])
    buffers: list[Array] = field(default_factory=list)
    resting: list[tuple[Array, list[NumberedFrame]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffers = [self._made() for _ in range(2)]

    def _made(self) -> Array:
        return np.zeros(self.channel.shape, self.channel.dtype)

    def open(self) -> Array:
        """The buffer of the next use, whose earlier frames are all sent."""
        at = (self.n_uses + 1) & 1
        if any(not frame.is_free() for frame in self.frames[at]):
            self.resting.append((self.buffers[at], self.frames[at]))
            for index, (buffer, frames) in enumerate(self.resting):
                if all(frame.is_free() for frame in frames):
                    self.buffers[at] = buffer
                    del self.resting[index]
                    break
            else:
                self.buffers[at] = self._made()
        self.frames[at] = []
        self.is_open = True
        return self.buffers[at]


@dataclass
class Inlet:
    """The receiving end. arrived : superstep, block, and its bytes that are not granted again."""

    channel: Channel
    arrived: deque[tuple[int, Array, int]] = field(default_factory=deque)
    partial: Array | None = None
    filled: int = 0
    current: Array | None = None
    spare: list[Array] = field(default_factory=list)

    def release(self) -> None:
        """Release the block that was collected last."""
        if self.current is not None and self.current.nbytes > CHUNK_BYTES:
            self.spare.append(self.current)  # it was put together here
        self.current = None

    def file(self, message: WireMessage, meta: BlockData, where: str) -> int:
        """Take a block or a piece of one; return how many bytes may be granted again now."""
        channel = self.channel
        array = message.arrays[0]
        if not meta.whole:
            if array.dtype.str != np.dtype(channel.dtype).str or array.shape != channel.shape:
                raise BadFrame(where, f"{array.dtype.str} {array.shape}", channel)
            whole = array
        else:
            fits = array.dtype == np.uint8 and array.ndim == 1 and meta.whole == channel.n_bytes
            if not fits or meta.at != self.filled or meta.at + array.nbytes > meta.whole:
                got = f"{array.nbytes} bytes at {meta.at} of {meta.whole}"
                raise BadFrame(where, got, f"bytes at {self.filled} of {channel}")
            if self.partial is None:
                self.partial = (
                    self.spare.pop() if self.spare else np.empty(channel.shape, channel.dtype)
                )
                self.partial.flags.writeable = True
            flat = self.partial.reshape(-1).view(np.uint8)
            flat[meta.at : meta.at + array.nbytes] = array
            self.filled += array.nbytes
            if self.filled < meta.whole:
                return array.nbytes
            self.partial.flags.writeable = False
            whole, self.partial, self.filled = self.partial, None, 0
        held = array.nbytes if len(self.arrived) >= AHEAD else 0
        self.arrived.append((message.step, whole, held))
        return array.nbytes - held


def chunks(array: Array) -> list[tuple[BlockData, Array]]:
    """Cut a block into pieces that fit a frame."""
    if array.nbytes <= CHUNK_BYTES:
        return [(BlockData(), array)]
    flat = array.reshape(-1).view(np.uint8)
    return [
        (BlockData(at=at, whole=array.nbytes), flat[at : at + CHUNK_BYTES])
        for at in range(0, array.nbytes, CHUNK_BYTES)
    ]
