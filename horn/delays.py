"""What a layer hears late: itself or another layer, some steps ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horn.errors import ModelError


@dataclass(frozen=True, eq=False)
class Delayed:
    """A member of ``inputs``: what a layer sent ``steps`` steps ago, 0 before the first step.

    layer : None is the layer that listens; another one as ``net.layer`` returned it, or, of one
    that comes later, its name. Of a network with ``net.input(n, steps=...)``.

    Raises
    ------
    ModelError : steps is no whole number from 0 (0 is refused with the cycle that it would close).
    """

    layer: Any = None
    steps: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 0:
            raise ModelError(
                f"Delayed: steps is how many steps ago, a whole number from 1; got {self.steps!r}"
            )

    def __repr__(self) -> str:
        ago = f", steps={self.steps}" if self.steps != 1 else ""
        name = getattr(self.layer, "name", self.layer)
        return f"Delayed({name or ''}{ago if name else ago[2:]})"


def delays(inputs: Any) -> list[int]:
    """How many steps late each of ``inputs`` is heard."""
    if isinstance(inputs, Delayed):
        return [inputs.steps]
    if isinstance(inputs, Mapping):
        return delays(list(inputs.values()))
    if isinstance(inputs, (list, tuple)):
        return [each.steps if isinstance(each, Delayed) else 0 for each in inputs]
    return []


__all__ = ["Delayed"]
