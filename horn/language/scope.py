"""What a name can stand for while a neuron's code is run symbolically, and what one path through it
has done so far.
"""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass, field
from typing import Any

from horn.activations import Activation
from horn.errors import CompileError
from horn.language.ir import Node
from horn.neuron import Neuron

Path = tuple[tuple[Node, bool], ...]  # conditions and their truth, on the way to a statement


@dataclass(frozen=True)
class ForwardIR:
    """What a neuron's forward does. ``output`` (b, o); ``push`` (b, o, i) or None; ``sits_out``
    (o): who left the batch, or None.
    """

    output: Node
    states: dict[str, Node]
    push: Node | None
    sits_out: Node | None


@dataclass(frozen=True)
class BackwardIR:
    """What a written backward does: ``delta`` (b, o), ``push`` (b, o, i), ``parameters`` the
    gradient (b, o) of each.
    """

    delta: Node
    push: Node | None
    parameters: dict[str, Node]
    states: dict[str, Node]
    uses_delta: bool
    place: CompileError  # where the class writes it

    def error(self, problem: str) -> CompileError:
        """A complaint at that place."""
        error = CompileError(problem)
        error.__dict__.update({**self.place.__dict__, "problem": problem})
        return error


@dataclass(frozen=True)
class Context:
    """The neuron's fixed surroundings."""

    cls: type[Neuron]
    activation: Activation
    layer_index: int
    training: bool


class SelfRef:
    """``self``."""


class Messages:
    """The messages, not yet looped over."""


@dataclass(frozen=True)
class Message:
    """The message of the loop being read."""


@dataclass(frozen=True)
class Method:
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
class Aggregate:
    """``output.sum`` in an interlayer function."""

    node: Node
    name: str


@dataclass(frozen=True)
class Unset:
    """A variable without a usable value, and why."""

    why: str


@dataclass(frozen=True)
class Exit:
    """A path that has returned: where ``condition`` holds (or not), and what it has left behind.
    ``opposite``: the condition that ``node`` writes is not this one.
    """

    condition: Node
    holds: bool
    frame: Frame
    node: ast.AST
    opposite: bool


@dataclass
class Frame:
    """What one path through the code has done so far."""

    names: dict[str, Any]
    states: dict[str, Node] = field(default_factory=dict)
    fed: Node | Unset | None = None
    delta: Node | Unset | None = None
    pushed: Node | Unset | None = None  # in this loop
    loop_push: Node | None = None  # by a finished loop
    parameters: dict[str, Node | Unset] = field(default_factory=dict)
    read: tuple[Path, ...] = ()
    returned: Any = None
    done: bool = False
    exits: list[Exit] = field(default_factory=list)  # the paths that have returned, earliest first

    def copy(self) -> Frame:
        return Frame(
            dict(self.names),
            dict(self.states),
            self.fed,
            self.delta,
            self.pushed,
            self.loop_push,
            dict(self.parameters),
            self.read,
            self.returned,
            self.done,
        )
