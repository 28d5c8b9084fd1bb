"""What is read of one neuron class: its surroundings, and the IR of its methods."""

from __future__ import annotations

from dataclasses import dataclass

from horn.activations import Activation
from horn.errors import CompileError
from horn.language.ir import Node
from horn.neuron import Neuron


@dataclass(frozen=True)
class NeuronContext:
    """The neuron's fixed surroundings."""

    cls: type[Neuron]
    activation: Activation
    layer_index: int
    training: bool


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
