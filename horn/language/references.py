"""The values that a name can have in a symbolic run, besides numbers."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn.ir import Node, const
from horn.neuron import of_python


class SelfRef:
    """``self``."""


@dataclass(frozen=True)
class MessagesRef:
    """The messages, outside a loop: all, or those of one input."""

    input: str = ""


class ErrorsRef:
    """The value of ``self.error``: the errors of output neurons, as a hidden neuron sees them."""


class ErrorRef:
    """One output neuron's error, in a loop over ``self.error``."""


@dataclass(frozen=True)
class MessageRef:
    """The current message of the loop."""


@dataclass(frozen=True)
class ChosenRef:
    """The message that ``max(messages, key=...)`` has chosen. here : the condition for it."""

    here: Node


@dataclass(frozen=True)
class MethodRef:
    """A method of the neuron, bound."""

    function: types.FunctionType


@dataclass(frozen=True)
class Word:
    """One of the neuron's words (feedforward, push, ...), or a method of a message, called next."""

    name: str
    of: str = "self"


@dataclass(frozen=True)
class ActivationRef:
    """The value of ``self.activation``, or a part of it."""

    part: str = "f"


@dataclass(frozen=True)
class AggregateRef:
    """The value of ``output.sum`` and the like in an interlayer function."""

    node: Node
    name: str


@dataclass(frozen=True)
class Unset:
    """A variable without a usable value, and the reason."""

    why: str


@dataclass(frozen=True)
class Elements(Sequence[Any]):
    """The elements of a sequence as values of the run, each made when it is asked for."""

    raw: Any  # a tuple, a list, a range or an array

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Any]:
        return map(wrap, self.raw.tolist() if isinstance(self.raw, np.ndarray) else self.raw)

    def __getitem__(self, index: Any) -> Any:
        """The element at a place; of a slice its elements."""
        if isinstance(index, slice):
            return Elements(self.raw[index])
        if isinstance(self.raw, np.ndarray):
            return wrap(self.raw[[index]].tolist()[0])
        return wrap(self.raw[index])


def elements(value: Any) -> Elements | None:
    """The elements of a sequence known at compile time (a tuple, a list, a range), or None."""
    if isinstance(value, np.ndarray):
        value = np.asarray(value)  # a row of a matrix has one axis less, too
        return Elements(value) if value.ndim else None
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        value = value.tolist()
    return Elements(value) if isinstance(value, (tuple, list, range)) else None


def wrap(value: Any) -> Any:
    """A Python value as a value of the run: numbers become constants, but for whole numbers that
    no float holds."""
    if isinstance(value, types.ModuleType):  # horn's own suggest a remedy
        return value
    value = of_python(value)
    if isinstance(value, float) or (isinstance(value, int) and is_exact(value)):
        return const(float(value))
    return value


def is_exact(value: int) -> bool:
    """Whether a float holds this whole number."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
