"""The requests of strategies between batches; ``strategies/_replica.py`` carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mean:
    """Replace arrays of floating point numbers, in place, by their means over all groups; every
    group must ask for it.
    """

    arrays: Sequence[Array]


@dataclass(frozen=True)
class Push:
    """Send gradients to the servers, by the name of the learned array. clock : earlier pushes of
    this group. samples : how many samples they are of. is_early : the coming batch
    computes them; each layer's are sent as soon as they are ready, the rest after the batch.
    batches : of the group since its job began, with those of this push; a group that comes back to
    durable servers goes on after them. None: where ``Strategy.returns`` says.
    """

    clock: int
    samples: int
    gradients: Mapping[str, Array]
    is_early: bool = False
    batches: int | None = None


@dataclass(frozen=True)
class Pull:
    """Fetch this task's learned arrays from the servers. clock : the pushes of this group so far.
    final : when all groups have finished. is_early : take each layer's just before the coming batch
    needs them. into : contiguous arrays, by name, filled when the coming batch is over; by default
    the replica's.
    """

    clock: int
    final: bool = False
    is_early: bool = False
    into: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Leave:
    """Tell servers that this group pushes no more."""


Request: TypeAlias = Mean | Push | Pull | Leave
Requests: TypeAlias = Iterator[Request]
