"""The interface of a link: it carries frames from task to task, below ``_delivery``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from horn.wire.frames import Buffer


class FrameLink(Protocol):
    """A link that carries frames; ``sender`` is the other end's name, its incarnation first."""

    needs_sum: bool

    @property
    def n_mended(self) -> int:
        """The number of connections that broke and were made anew."""

    def connect(self, peers: Sequence[str], incarnation: bytes) -> None:
        """Start connecting to every endpoint but this task's own; does not wait."""

    def put(self, to: int, parts: Sequence[Buffer]) -> Callable[[], bool] | None:
        """Send now; None if the queue to ``to`` is full. The result tells if buffers are free."""

    def get(self, wait_s: float) -> tuple[bytes, Sequence[Buffer]] | None:
        """The next frame, or None after ``wait_s`` or when a full queue may have room again."""

    def answer(self, sender: bytes, parts: Sequence[Buffer]) -> None:
        """Answer a stranger, if it can be done at once."""

    def answers(self) -> list[tuple[int, Sequence[Buffer]]]:
        """The answers of peers, with their tasks."""

    def gone(self) -> dict[int, str]:
        """Check connections; return lost peers, with the reason."""

    def broke(self) -> set[int]:
        """Peers whose connection broke since the last call, and is made anew."""

    def doubt(self, task: int) -> None:
        """Find out whether the peer's process is still there, if that is not known."""

    def close(self, linger_s: float) -> None:
        """Release everything; frames that are not sent after ``linger_s`` are dropped."""


def always() -> bool:
    """The result of ``put`` of a link that has copied the frame."""
    return True
