"""What a strategy asks for between batches; ``strategies/_replica.py`` does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mean:
    """Ask: these arrays become, in place, their means over all groups. Every group must ask."""

    arrays: Sequence[Array]


@dataclass(frozen=True)
class Push:
    """Ask: give servers these gradients, by the name of the learned array. clock : how many pushes
    this group has made before. samples : what they were computed from. is_early : the coming batch
    computes them; each layer's go as soon as they are there, the rest after the batch.
    """

    clock: int
    samples: int
    gradients: Mapping[str, Array]
    is_early: bool = False


@dataclass(frozen=True)
class Pull:
    """Ask: this task's learned arrays as servers have them. clock : the pushes of this group so
    far. final : when all groups have finished. is_early : do not wait, but take each layer's just
    before the coming batch needs them. into : where they go, by name, contiguous; by default the
    replica has them then, else they are there when the coming batch is over.
    """

    clock: int
    final: bool = False
    is_early: bool = False
    into: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Leave:
    """Ask: tell servers that this group pushes no more."""


Request: TypeAlias = Mean | Push | Pull | Leave
Requests: TypeAlias = Iterator[Request]
