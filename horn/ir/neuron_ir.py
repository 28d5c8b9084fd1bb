"""The IR of one neuron class: its context, and the IR of its methods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from horn import ir
from horn.activations import Activation
from horn.errors import CompileError
from horn.ir import Node, Op
from horn.neuron import WEIGHT, Neuron, weights_of

Kind = Literal["forward", "backward", "interlayer", "loss"]  # of a text that becomes IR


@dataclass(frozen=True)
class NeuronContext:
    """The neuron's fixed surroundings. receivers : the classes of its receivers. inputs : the names
    of its inputs. positions : the number per channel, 0 for a flat layer; is_map : one neuron for
    all positions of a channel.
    """

    cls: type[Neuron]
    activation: Activation
    layer_index: int
    training: bool
    receivers: tuple[type[Neuron], ...] = ()
    is_output: bool = False
    inputs: tuple[str, ...] = ()
    positions: int = 0
    is_map: bool = False

    def weights(self, kind: str) -> tuple[str, ...]:
        """The weights of the messages that "forward" or "backward" reads."""
        classes = (self.cls,) if kind == "forward" else self.receivers
        return tuple(dict.fromkeys(name for cls in classes for name in weights_of(cls))) or (
            WEIGHT,
        )


@dataclass(frozen=True)
class ForwardIR:
    """The IR of a neuron's forward. ``output`` (b, o); ``pushes`` (b, o, i) by weight;
    ``sits_out`` (o): the condition on which a neuron leaves the batch, or None; ``traces`` (b, o,
    i): the values assigned to each SynapseState. ``asked`` : what the text asked about its layer,
    "training" or "layer_index"; it is the same for all else.
    """

    output: Node
    states: dict[str, Node]
    pushes: dict[str, Node]
    sits_out: Node | None
    traces: dict[str, Node] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()

    @property
    def roots(self) -> list[Node]:
        """All that the method computes, in one list."""
        return [self.output, *_nodes(self.states, self.pushes, self.traces)]


@dataclass(frozen=True)
class BackwardIR:
    """The IR of a written backward: ``delta`` (b, o), ``pushes`` (b, o, i) by weight of the
    receiver ("": the only one), ``parameters`` the gradient (b, o) of each.
    """

    delta: Node
    pushes: dict[str, Node]
    parameters: dict[str, Node]
    states: dict[str, Node]
    place: CompileError  # of the method in the class, for complaints
    traces: dict[str, Node] = field(default_factory=dict)  # assigned to SynapseStates (b, o, i)
    asked: frozenset[str] = frozenset()  # as of ForwardIR

    @property
    def roots(self) -> list[Node]:
        """All that the method computes, in one list."""
        return [self.delta, *_nodes(self.pushes, self.parameters, self.states, self.traces)]

    @property
    def reads(self) -> dict[Op, set[str | None]]:
        """The weights, and their deltas, that the method reads; None stands for the only one."""
        found: dict[Op, set[str | None]] = {Op.WEIGHT: set(), Op.DELTA: set()}
        for node in ir.walk(*self.roots):
            if node.op in found:
                found[node.op].add(node.value)
        return found

    def push_to(self, weight: str, names: Collection[str]) -> Node | None:
        """The push to one weight of a receiver whose weights are ``names``, or None."""
        only = self.pushes.get("") if len(names) == 1 else None
        return self.pushes.get(weight, only)

    def error(self, problem: str) -> CompileError:
        """A complaint at the place of the method."""
        error = CompileError(problem)
        error.__dict__.update({**self.place.__dict__, "problem": problem})
        return error


def _nodes(*named: dict[str, Node]) -> list[Node]:
    return [node for each in named for node in each.values()]
