"""What layers carry from step to step of sequences: States, SynapseStates, and the last outputs of
sequences that end early.
"""

from __future__ import annotations

from horn import ir
from horn.compiler.backward import Backward
from horn.compiler.layer_code import LayerCode
from horn.compiler.messages import MessageExpressions, StepTrace
from horn.compiler.steps import on_circles
from horn.compiler.storage import COSTLY, Storage
from horn.ir import ZERO, Node, Op, Scalar, load, make, select
from horn.layers import Layer
from horn.program import Frame, Output


class StepValues:
    """Writes the values that a step hands to the next one. training : None in inference.
    ragged : as for ``lower.training_program``.
    """

    def __init__(
        self,
        storage: Storage,
        messages: MessageExpressions,
        training: Backward | None,
        ragged: bool,
    ) -> None:
        self.storage, self.messages, self.training = storage, messages, training
        self.on_circles = on_circles(storage.network) if ragged else frozenset[int]()

    def start_states(self, code: LayerCode) -> None:
        """Set the initial States of a layer: in a sequence that continues, those of its last
        piece.
        """
        layer, axis = code.layer, f"n{code.layer.index}"
        for name in code.forward.states:
            full = f"{layer.name}.{name}"
            self.storage.persistent(full, (axis,), "state")
            before = self.storage.late(f"{full}.now", ("b", axis), 1)
            begins = make(Op.GT, Scalar("begins"), ZERO)
            value = select(begins, load(full, "o"), load(before, "bo"))
            with self.storage.at("first"):
                self.storage.loop(Frame(layer.index), [Output(before, value)])

    def start_traces(self, code: LayerCode) -> None:
        """Make buffers for the SynapseStates that each sample carries from step to step, and their
        beginnings. Without gradients they have one step, which is overwritten.
        """
        layer, storage = code.layer, self.storage
        for name in code.forward.traces:
            for position in positions(layer):
                array, frame = layer.incoming(name, position), Frame(layer.index, position)
                letters = "o" if position is None else "oi"
                axes, own = storage.axes_of(frame, "b" + letters), storage.axes_of(frame, letters)
                storage.persistent(array, own, "state")
                is_one = code.is_local or self.training is None
                now = storage.buffer(f"{array}.now", axes, "carried" if is_one else "work")
                start = now if is_one else storage.late(now, axes, 1)
                before = load(start, "b" + letters)
                begins = make(Op.GT, Scalar("begins"), ZERO)
                value = select(begins, load(array, letters), before)
                explicit = storage.explicit_letters(frame, "b" + letters)
                with storage.at("first"):
                    storage.loop(frame, [Output(start, value, letters=explicit)])
                self.messages.traces[array] = StepTrace(frame, letters, before, now)

    def assign_traces(self, code: LayerCode) -> None:
        """Assign the SynapseStates of a step, after all reads of their old values."""
        layer = code.layer
        if not code.forward.traces:
            return
        if self.training is not None and code.is_local:
            with self.messages.together():
                self.training.updates.gather(code)
        for position in positions(layer):
            outputs = []
            for name, node in code.forward.traces.items():
                trace = self.messages.traces[layer.incoming(name, position)]
                value = (
                    self.messages.at_bias(node, code)
                    if position is None
                    else self.messages.at_link(node, code, position)
                )
                if (valid := self.storage.valid) is not None:  # behind the end nothing changes
                    value = select(make(Op.NE, valid, ZERO), value, trace.before)
                explicit = self.storage.explicit_letters(trace.frame, "b" + trace.letters)
                outputs.append(Output(trace.now, value, letters=explicit))
            self.storage.loop(Frame(layer.index, position), outputs)

    def kept(self, layer: Layer, value: Node) -> Node:
        """The outputs of a layer; behind the end of a sequence a layer on a circle repeats its
        last ones, so that nothing grows beyond the values of the sequence itself.
        """
        if layer.index not in self.on_circles:
            return value
        return self.kept_behind_end(
            self.messages.output_name(layer), ("b", f"n{layer.index}"), value
        )

    def kept_behind_end(self, name: str, axes: tuple[str, ...], value: Node) -> Node:
        """A value at the steps of a sequence; behind its end the last one."""
        if self.storage.valid is None:
            return value
        before = self.storage.late(name, axes, 1)
        return select(make(Op.NE, self.storage.valid, ZERO), value, load(before, "bo"))

    def parts_of_gradients(self, code: LayerCode) -> dict[str, Node]:
        """The costly values of sequences that gradients need, by the name of a buffer. They are
        kept for each step, instead of the sums that they are computed from.
        """
        if self.training is None or not self.storage.steps or code.backward is not None:
            return {}
        again = set(ir.walk(*code.derived.roots))
        pending = [code.forward.output, *code.forward.states.values()]
        seen = dict.fromkeys(pending)
        while pending:
            node = pending.pop()
            if node.op is not Op.REDUCE:  # its nodes belong to single messages
                new = [arg for arg in node.args if arg not in seen]
                seen |= dict.fromkeys(new)
                pending += new
        costly = [n for n in seen if n.op in COSTLY and n.axes == "bo" and n in again]
        found = self.messages.all_at_vertex(costly, code, "forward")
        return {f"{code.layer.name}.part.{k}": node for k, node in enumerate(found)}


def positions(layer: Layer) -> list[int | None]:
    """The positions of a layer's links, and None for the bias."""
    return [*range(len(layer.links)), *([] if layer.bias is None else [None])]
