"""Frames to and from one peer, each taken exactly once and in order, whatever connections do.

A frame has a number and is kept until it is acknowledged. Repeated and early frames are dropped;
early ones are sent again. Numbers count per incarnation and outlast connections. Pure: no link, no
clock. Source: docs/notes/0063.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from horn.wire.frames import BadFrame, Buffer

ACK_FRAMES = 64  # frames taken before an acknowledgement goes in a message of its own
ASK_FRAMES = 64  # early frames before the missing ones are asked for again


class NumberedFrame:
    """A numbered frame; the arrays in its parts must not be written until ``is_free``."""

    __slots__ = ("gone", "is_known", "n_puts", "parts", "seq")

    def __init__(self, seq: int, parts: Sequence[Buffer]) -> None:
        self.seq, self.parts = seq, parts
        self.n_puts = 0  # times that it was given to the link
        self.gone: list[Callable[[], bool]] = []  # by put: the link no longer reads it
        self.is_known = False  # the peer has it

    def is_free(self) -> bool:
        return self.is_known and all(is_gone() for is_gone in self.gone)


class FrameStream:
    """The frames to and from one peer. ``n_put`` : the last frame given to this connection; it goes
    back when frames are sent again.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.n_out = self.n_put = self.n_known = 0
        self.n_sent = 0  # the highest that n_put was
        self.kept: deque[NumberedFrame] = deque()  # those after n_known
        self.n_in = 0  # every frame of the peer up to this one was taken
        self.n_told = 0  # ... and up to this one was acknowledged
        self.n_early = 0  # frames that came too early since the last that was taken
        self.asks_again = False  # to tell the peer that frames after n_in are missing

    # out

    def add(self, parts: Sequence[Buffer]) -> NumberedFrame:
        """Give a frame the number ``n_out + 1``, and keep it."""
        self.n_out += 1
        frame = NumberedFrame(self.n_out, parts)
        self.kept.append(frame)
        return frame

    def next(self) -> NumberedFrame | None:
        """The next frame for the link, if any."""
        return self.kept[self.n_put - self.n_known] if self.n_put < self.n_out else None

    def put(self, frame: NumberedFrame, is_gone: Callable[[], bool] | None = None) -> None:
        """Record that the link has taken a frame; ``is_gone`` says when it no longer reads it."""
        frame.n_puts += 1
        if is_gone is not None:
            frame.gone.append(is_gone)
        self.n_put = frame.seq
        self.n_sent = max(self.n_sent, frame.seq)

    @property
    def is_repeating(self) -> bool:
        """Whether frames are to be sent again."""
        return self.n_put < self.n_sent

    def known(self, seq: int) -> None:
        """Record that the peer has every frame up to this one."""
        if seq > self.n_sent:
            raise BadFrame(f"{self.where}: acknowledged", f"frame {seq}", f"at most {self.n_sent}")
        while self.n_known < seq:
            frame = self.kept.popleft()
            frame.is_known = True
            frame.parts = ()
            self.n_known = frame.seq
        self.n_put = max(self.n_put, self.n_known)

    def go_back(self) -> None:
        """Send all unacknowledged frames again."""
        self.n_put = self.n_known

    def heed(self, seq: int, sent: int, again: bool) -> bool:
        """Handle an acknowledgement, perhaps an old one: the peer has all up to ``seq``, wants
        later ones ``again``, and sent up to ``sent`` before. Whether to answer with one.
        """
        self.known(seq)
        if again and seq == self.n_known:
            self.go_back()
        if sent > self.n_in:  # frames sent before an acknowledgement arrive before it
            self.asks_again = True
        return self.asks_again

    # in

    def admit(self, seq: int) -> bool:
        """Whether this is the next frame, to be taken. If it is a later one, some are missing."""
        if seq == self.n_in + 1:
            self.n_in = seq
            self.n_early = 0
            self.asks_again = False
            return True
        if seq > self.n_in:
            self.n_early += 1
            self.asks_again |= self.n_early % ASK_FRAMES == 1
        return False

    @property
    def owes_word(self) -> bool:
        """Whether another acknowledgement is due."""
        return self.n_in - self.n_told >= ACK_FRAMES
