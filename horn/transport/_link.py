"""What carries frames from task to task, whatever way: the floor of ``_delivery``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from horn.wire.frames import Buffer


class FrameLink(Protocol):
    """Moves frames; ``sender`` is what the other end calls itself, its incarnation first."""

    needs_sum: bool

    @property
    def n_mended(self) -> int:
        """Connections that broke and were made anew."""

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        """Start connecting to every endpoint but this task's own; does not wait."""

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        """Send now, or None if the way to ``to`` is full. The result says: buffers are free."""

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        """The next frame, or None after ``wait_s`` or when a full way may have room again."""

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """Answer a stranger, if it can be done at once."""

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        """Answers of peers."""

    def gone(self) -> dict[int, str]:
        """Look at connections; lost peers, and why."""

    def broke(self) -> set[int]:
        """Peers whose connection broke since the last call, and is made anew."""

    def doubt(self, task: int) -> None:
        """Find out whether the peer's process is still there, if that is not known."""

    def close(self, linger_s: float) -> None:
        """Give everything back; what is not sent after ``linger_s`` is dropped."""


def always() -> bool:
    """The answer of a link that has copied what it was given."""
    return True
