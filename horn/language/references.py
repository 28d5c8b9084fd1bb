"""What a name can stand for while a neuron's code is run symbolically, besides numbers."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from horn.ir import Node, const


class SelfRef:
    """``self``."""


@dataclass(frozen=True)
class MessagesRef:
    """The messages, not yet looped over: all, or those of one input."""

    input: str = ""


class ErrorsRef:
    """``self.error``: what a hidden neuron hears of the output neurons."""


class ErrorRef:
    """One output neuron's error."""


@dataclass(frozen=True)
class MessageRef:
    """The message of the loop being read."""


@dataclass(frozen=True)
class ChosenRef:
    """The message that ``max(messages, key=...)`` has chosen. here : which it is."""

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
    """``self.activation``, or a part of it."""

    part: str = "f"


@dataclass(frozen=True)
class AggregateRef:
    """``output.sum`` in an interlayer function."""

    node: Node
    name: str


@dataclass(frozen=True)
class Unset:
    """A variable without a usable value, and why."""

    why: str


def wrap(value: Any) -> Any:
    """A Python value as the run sees it: numbers become constants."""
    if isinstance(value, types.ModuleType):  # horn's own look for what to write instead of a word
        return value
    if getattr(value, "shape", None) == ():
        return const(float(value))
    is_plain = not isinstance(value, (str, Node, type)) and not hasattr(value, "shape")
    if isinstance(value, bool) or (is_plain and hasattr(value, "__float__")):
        return const(float(value))
    return value
