"""Delayed and reversed inputs: a layer hears a layer some steps ago, or from end to beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from horn.errors import ModelError
from horn.mistakes import teaches

MAX_STEPS = 65_535  # the most steps of a sequence that is heard at once


@teaches
@dataclass(frozen=True, eq=False)
class Delayed:
    """A member of ``inputs``: the output of a layer ``steps`` steps ago, 0 before the first step.

    layer : None is the layer that listens; another layer as ``net.layer`` returned it, or, if it is
    added later, its name. For a network with ``net.input(n, steps=...)``.

    Raises
    ------
    ModelError : steps is no whole number from 0 to 65,535, the most steps of a sequence (0 is
    refused with the cycle that it would close).
    """

    layer: Any = None
    steps: int = 1

    def __post_init__(self) -> None:
        whole = isinstance(self.steps, int) and not isinstance(self.steps, bool)
        if not whole or not 0 <= self.steps <= MAX_STEPS:
            raise ModelError(
                f"Delayed: steps is how many steps ago, a whole number from 1 to {MAX_STEPS:,}; "
                f"got {self.steps!r}"
            )

    def __repr__(self) -> str:
        ago = f", steps={self.steps}" if self.steps != 1 else ""
        name = getattr(self.layer, "name", self.layer)
        return f"Delayed({name or ''}{ago if name else ago[2:]})"


@teaches
@dataclass(frozen=True, eq=False)
class Reversed:
    """A member of ``inputs``: the outputs of a layer, from the sequence's last step to its first.

    At its first step the layer that listens hears the output of the last step of the sequence
    (of each sequence its own last), then of the one before it. layer : as ``net.layer`` or
    ``net.input`` returned it, or its name.

    Raises
    ------
    ModelError : it is no layer.
    """

    layer: Any

    def __post_init__(self) -> None:
        if not isinstance(self.layer, str) and not hasattr(self.layer, "links"):
            raise ModelError(
                f"Reversed: which layer? horn.Reversed(words), as net.input or net.layer returned "
                f"it; got {self.layer!r}"
            )

    def __repr__(self) -> str:
        return f"Reversed({getattr(self.layer, 'name', self.layer)})"


def reversals(inputs: Any) -> list[bool]:
    """Whether each of ``inputs`` is heard from end to beginning."""
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    several = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [isinstance(each, Reversed) for each in several]


def hears_reversed(layers: Iterable[Any]) -> bool:
    """Whether a layer hears another from end to beginning: no step is answered before the end."""
    return any(link.is_reversed for layer in layers for link in layer.links)


def delays(inputs: Any) -> list[int]:
    """The delay of each of ``inputs``, in steps."""
    if isinstance(inputs, Delayed):
        return [inputs.steps]
    if isinstance(inputs, Mapping):
        return delays(list(inputs.values()))
    if isinstance(inputs, (list, tuple)):
        return [each.steps if isinstance(each, Delayed) else 0 for each in inputs]
    return []


__all__ = ["Delayed", "Reversed"]
