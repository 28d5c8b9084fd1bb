"""AllReduce: the groups share every batch and sum their gradients, so they compute what one group
computes with the whole batch.

Nothing happens between batches: the sums are part of the compiled program, and overlap the rest of
backward (docs/notes/0030).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from horn.strategies import Strategy


@dataclass(frozen=True)
class AllReduce(Strategy):
    """No settings."""

    name: ClassVar[str] = "allreduce"
    is_joined: ClassVar[bool] = True
    has_messages: ClassVar[bool] = False


STRATEGY = AllReduce
