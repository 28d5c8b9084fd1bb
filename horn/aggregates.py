"""Aggregates: numbers by name that users define over a layer's outputs, after each epoch.

Pure; a command may import it without NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from horn import texts
from horn.errors import ModelError
from horn.mistakes import constructed, teaches

# The columns of a history, before those of a user's aggregates.
COLUMNS = (
    "epoch",
    "iteration",
    "loss",
    "acc",
    "val_loss",
    "val_acc",
    "learning_rate",
    "seconds",
    "samples_per_s",
    "group_loss",
    "groups",
)
# Facts of a job's progress in notes, beside the columns.
FACTS = ("n_epochs", "n_iterations", "per_epoch", "at", "attempt", "note", "waits")
OF_SAMPLES = {"mean": "sum", "sum": "sum", "min": "min", "max": "max"}  # how parts are combined
EMPTY = {"sum": 0.0, "min": float("inf"), "max": -float("inf")}


@teaches
@dataclass(frozen=True)
class Aggregate:
    """One number of a layer's outputs, measured after every epoch.

    layer : the layer, as ``net.layer`` returned it, or its name. of_layer : a function of the
    layer's outputs for one sample, in the language of ``interlayer``, that returns one number, as
    ``def active(output): return (output > 0).mean()``. of_samples : "mean", "sum", "min" or "max"
    of these numbers over the samples.
    """

    layer: Any
    of_layer: Callable[[Any], Any]
    of_samples: str = "mean"

    def __post_init__(self) -> None:
        if not callable(self.of_layer):
            raise ModelError(
                f"Aggregate: of_layer is a function of a layer's outputs, got {self.of_layer!r}; "
                "write  def active(output): return (output > 0).mean()  and pass active"
            )
        texts.keep(self.of_layer)
        if self.of_samples not in OF_SAMPLES:
            known = ", ".join(f'"{name}"' for name in OF_SAMPLES)
            raise ModelError(f"Aggregate: of_samples is one of {known}; got {self.of_samples!r}")

    def __repr__(self) -> str:
        return constructed(self)

    @property
    def monoid(self) -> str:
        """The monoid that combines the numbers of two sets of samples."""
        return OF_SAMPLES[self.of_samples]

    @property
    def empty(self) -> float:
        """The number of no samples, which changes no other in the monoid."""
        return EMPTY[self.monoid]

    def of(self, combined: float, n_samples: int) -> float:
        """The aggregate of so many samples, from their numbers as the monoid combined them."""
        return combined / n_samples if self.of_samples == "mean" else combined


def check_name(name: Any) -> None:
    """Raise ModelError if it cannot be the name of a column."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ModelError(
            f"Job: aggregates: {name!r} cannot be the name of a column; use letters, digits and _, "
            'as in aggregates={"active": horn.Aggregate("layer1", active)}'
        )
    if why := taken(name):
        raise ModelError(f"Job: aggregates: {why}")


def taken(name: str) -> str:
    """Why a user's column cannot have a name, in words: it is one of horn's own; else ""."""
    if name not in COLUMNS and name not in FACTS:
        return ""
    return (
        f"{name!r} is a name of horn's own; choose another (taken: {', '.join((*COLUMNS, *FACTS))})"
    )


def named(row: Mapping[str, Any]) -> dict[str, Any]:
    """The user's columns of a row of the history, or of a note of progress."""
    return {k: v for k, v in row.items() if k not in COLUMNS and k not in FACTS}
