"""What neurons ask their layer or the batch: sums, extremes, ranks, and the numbers of both."""

from __future__ import annotations

from horn import ir
from horn.compiler.storage import Storage
from horn.ir import ZERO, Node, Op, const, make, select
from horn.layers import Layer
from horn.program import BatchSum, ChannelSum, Frame, Rank


class LayerQuestions:
    """The answers, as expressions over buffers, with letters (b, o) of the layer."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def bound(self, end: Node, layer: Layer) -> Node:
        """A bound of a number that is halved in, in a buffer of its own."""
        return self.storage.store(end, Frame(layer.index), end.axes, "bound") if end.axes else end

    def over_all(self, inside: Node, monoid: str, axis: str, layer: Layer) -> Node:
        """A reduction over the neurons of a layer, or over the samples of the batch."""
        frame, stem = Frame(layer.index), f"{layer.name}.{monoid}"
        if axis not in inside.axes:  # a target that is one number, or a State
            if axis == "b":
                return ir.reduce(monoid, axis, inside)
            inside = self.storage.spread(inside, axis, frame)
        if not monoid.startswith("arg"):
            return self.storage.reduction_loop(inside, axis, monoid, frame, stem)
        # The first place of the extreme, or of NaN: tasks can combine both steps. The stored values
        # are compared, to the bit.
        kept = self.storage.store(inside, frame, inside.axes, f"{layer.name}.asked")
        best = self.storage.reduction_loop(kept, axis, monoid[3:], frame, f"{stem}.best")
        found = make(Op.OR, make(Op.EQ, kept, best), make(Op.NE, kept, kept))
        here = select(found, self.index(layer, axis), const(float("inf")))
        return self.storage.reduction_loop(here, axis, "min", frame, stem)

    def over_batch(self, inside: Node, monoid: str, layer: Layer, is_back: bool) -> Node:
        """A sum over the samples of sequences that have the step, at each of them; is_back : of
        gradients, which reach those samples alone.
        """
        if monoid == "any":
            ones = select(inside, const(1.0), ZERO)
            return make(Op.GT, self.over_batch(ones, "sum", layer, is_back), ZERO)
        assert monoid == "sum", monoid
        valid = self.storage.valid
        there = None if valid is None else make(Op.NE, valid, ZERO)
        found = self.batch_sum(inside if there is None else select(there, inside, ZERO), layer)
        return select(there, found, ZERO) if is_back and there is not None else found

    def batch_sum(self, inside: Node, layer: Layer) -> Node:
        """The sum over the rows of a step, at each of them."""
        frame = Frame(layer.index)
        for letter in "bo":
            if letter not in inside.axes:
                inside = self.storage.spread(inside, letter, frame)
        kept = self.storage.store(inside, frame, "bo", f"{layer.name}.asked").value

        def fill(name: str) -> None:
            self.storage.emit(BatchSum(frame, name, kept))

        key, stem = (frame, "batch sum", inside), f"{layer.name}.batch_sum"
        return self.storage.once(key, frame, "bo", stem, fill)

    def samples(self, layer: Layer, is_share: bool) -> Node:
        """The number of samples in the batch; in sequences, of those that have the step. is_share :
        1 / this number.
        """
        valid = self.storage.valid
        if valid is None:
            return ir.Scalar("inv_rows" if is_share else "rows")
        found = self.batch_sum(valid, layer)
        return 1.0 / found if is_share else found

    def rank(self, inside: Node, layer: Layer) -> Node:
        """The rank of each neuron in its layer, the largest first."""
        frame = Frame(layer.index)
        kept = self.storage.store(inside, frame, "bo", f"{layer.name}.asked")

        def fill(name: str) -> None:
            self.storage.emit(Rank(frame, name, kept.value))

        return self.storage.once((frame, "rank", kept), frame, "bo", f"{layer.name}.rank", fill)

    def channel_sum(self, inside: Node, layer: Layer) -> Node:
        """The sum over all positions of each neuron's channel."""
        frame = Frame(layer.index)
        if "o" not in inside.axes:
            inside = self.storage.spread(inside, "o", frame)
        kept = self.storage.store(inside, frame, inside.axes, f"{layer.name}.asked")

        def fill(name: str) -> None:
            self.storage.emit(ChannelSum(frame, name, kept.value))

        key, stem = (frame, "channel sum", kept), f"{layer.name}.channel_sum"
        return self.storage.once(key, frame, kept.axes, stem, fill)

    def index(self, layer: Layer, letter: str, first: int = 0) -> Node:
        """The neurons' numbers, from ``first`` on."""
        name, axis = f"layer{layer.index}#index" + (f"+{first}" if first else ""), f"n{layer.index}"
        self.storage.persistent(name, (axis,), "constant", ("index", layer.index, first))
        return self.storage.learned(name, (axis,), letter)
