"""The losses of outputs, and the gradients that they send back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from horn import ir, losses
from horn.activations import softmax
from horn.compiler.layer_code import LayerCode, NetworkCode
from horn.compiler.messages import MessageExpressions
from horn.compiler.storage import Storage
from horn.errors import ModelError
from horn.ir import OUTPUT, TARGET, ZERO, Node, Op, Scalar, const, derive, load, make, select
from horn.language.parse import function as parse_function
from horn.layers import Layer
from horn.network import Network
from horn.program import ROW_WEIGHT, Frame, Output, Target, TargetRead

WEIGHT = "sample_weight"  # the buffer (b,) of the samples' weights
LAST = "last"  # 1 at the last of the sample's own steps, else 0


class Judged(NamedTuple):
    """What a loss says of an output's neurons: each one's part of it, or, if ``is_whole``, all of
    it, and d loss / d output (before its interlayer).
    """

    loss: Node
    adjoint: Node
    is_whole: bool = False


class Losses:
    """Writes targets, and the loss of each sample.

    reads : how the targets of outputs are read, by name. weighs, ragged, masked, fuse : as for
    ``training_program``. sends : whether outputs get gradients.
    """

    def __init__(
        self,
        network: Network,
        storage: Storage,
        messages: MessageExpressions,
        code: NetworkCode,
        reads: Mapping[str, TargetRead],
        *,
        weighs: str,
        ragged: bool,
        masked: bool,
        fuse: bool,
        sends: bool,
    ) -> None:
        self.network, self.storage, self.messages = network, storage, messages
        self.code, self.reads = code, reads
        self.weighs, self.ragged, self.masked = weighs, ragged, masked
        self.fuse, self.sends = fuse, sends
        self.targets: dict[int, Node] = {}  # by the output's layer

    def target(self, layer: Layer) -> Node:
        """The targets of an output's neurons."""
        if layer.index not in self.targets:
            self.targets[layer.index] = self._read(layer)
        return self.targets[layer.index]

    def _read(self, last: Layer) -> Node:
        read = self.reads.get(last.name)
        if read is None:
            raise ModelError(
                f"{last.name}: {last.neuron.__name__} reads self.target, which is what the loss "
                'compares with: give net.output a loss, as loss="squared_error", and the data '
                "labels. Where the neuron pushes in forward the loss is measured only"
            )
        axis, each = f"n{last.index}", last.each_step
        name = "target" if read.first < 0 else self.storage.apart(f"{last.name}.target")
        if read.kind == "label":
            name = self.storage.buffer(name, ("b",), full=True)
            self.storage.emit(Target(name, "label", each, read.first))
            is_label = make(Op.EQ, load(name, "b"), self.messages.questions.index(last, "o"))
            return select(is_label, const(1.0), ZERO)
        if read.kind == "value":
            name = self.storage.buffer(name, ("b",), full=True)
            self.storage.emit(Target(name, "value", each, read.first))
            return load(name, "b")
        name = self.storage.buffer(name, ("b", axis), full=True)
        self.storage.emit(Target(name, read.kind, each, read.first))
        return load(name, "bo")

    def write(self, last: Layer) -> str:
        """Write each sample's loss of one output, and d loss / d output of its neurons; returns the
        loss's buffer.
        """
        code, frame = self.code.layers[last.index], Frame(last.index)
        by_steps = last.each_step or self.ragged
        own = self._name(last)
        name = self.storage.buffer(f"{own}.step" if by_steps else own, ("b",))
        loss, adjoint, is_whole = self._judged(last, code)
        if self.weighs:
            weight = self._weight()
            loss, adjoint = loss * weight, adjoint * weight
        if is_whole:
            self.storage.loop(frame, [Output(name, loss)])
        else:
            wide = loss if "o" in loss.axes else self.storage.spread(loss, "o", frame)
            self.storage.loop(frame, [Output(name, wide, "o", "sum")])
        if by_steps:
            part, share = load(name, "b"), self._share_of_a_step(last)
            if self.ragged:
                valid = self.storage.valid
                assert valid is not None
                counts = make(Op.NE, valid, ZERO) if last.each_step else self.at_last()
                part, adjoint = select(counts, part, ZERO), select(counts, adjoint, ZERO)
            name = self.summed(own, frame, part * share)
            adjoint = adjoint * share
        if last.loss_weight != 1.0:
            adjoint = adjoint * last.loss_weight
        if self.masked:
            adjoint = adjoint * load(self.storage.buffer(ROW_WEIGHT, ("b",), "given"), "b")
        if self.sends:
            code.upstream = (
                self.storage.store(adjoint, frame, "bo", f"{last.name}.upstream")
                if not self.fuse
                else adjoint
            )
        return name

    def _judged(self, last: Layer, code: LayerCode) -> Judged:
        target = self.target(last) if last.answers else ZERO
        output = load(self.messages.output_name(last), "bo")
        if last.interlayer is softmax and last.loss == losses.LOSSES["cross_entropy"]:
            return self._softmax(last, output, target)
        if code.stable:
            z = self.messages.at_vertex(code.forward.output.args[0], code, "forward")
            loss = parse_function(losses.binary_cross_entropy_of_sigmoid, z, target)
            return Judged(loss, output - target)
        return self._formula(last, code, output, target)

    def _softmax(self, last: Layer, output: Node, target: Node) -> Judged:
        """Cross entropy of a softmax: log output without taking output, as log sum exp. d loss /
        d raw = output * sum(target) - target; the sum is 1 for labels.
        """
        frame = Frame(last.index)
        raw = load(self.storage.apart(f"{last.name}.raw"), "bo")
        top = self.storage.reduction_loop(raw, "o", "max", frame, f"{last.name}.max")
        total = self.storage.reduction_loop(
            make(Op.EXP, raw - top), "o", "sum", frame, f"{last.name}.sum"
        )
        own = select(make(Op.NE, target, ZERO), raw - top, ZERO)  # 0 * -inf is none
        loss = target * (make(Op.LOG, total) - own)
        if self.reads[last.name].kind == "label":
            return Judged(loss, output - target)
        wide = target if "o" in target.axes else self.storage.spread(target, "o", frame)
        sums = self.storage.reduction_loop(wide, "o", "sum", frame, f"{last.name}.target.sum")
        return Judged(loss, output * sums - target)

    def _formula(self, last: Layer, code: LayerCode, output: Node, target: Node) -> Judged:
        assert last.loss is not None
        formula = parse_function(last.loss.f, OUTPUT, TARGET)
        for abstract, here in ((OUTPUT, output), (TARGET, target)):
            self.messages.known[last.index, "loss", abstract] = here
        loss = self.messages.at_vertex(formula, code, "loss")
        slope = derive.gradient(formula, const(1.0), [OUTPUT], layerwide=True)[OUTPUT]
        adjoint = self.messages.at_vertex(slope, code, "loss")
        if last.interlayer is not None:
            adjoint = self.messages.through_interlayer(code, adjoint)
        return Judged(loss, adjoint, is_whole="o" not in formula.axes)

    def _weight(self) -> Node:
        target = Target(WEIGHT, "weight", self.weighs == "step")
        return load(self.storage.filled(WEIGHT, ("b",), target, full=True), "b")

    def at_last(self) -> Node:
        """Whether a step is the last one of the sample, in sequences that end early."""
        self.storage.filled(LAST, ("b",), Target(LAST, LAST, True), full=True)
        return make(Op.NE, load(LAST, "b"), ZERO)

    @property
    def _adds_up(self) -> bool:
        """Whether the loss is a sum of several, or has a weight."""
        return len(self.network.judged) > 1 or self.network.judged[0].loss_weight != 1.0

    def total(self, written: Sequence[str]) -> str:
        """Write each sample's loss, the sum over outputs: of the buffers that ``write`` gave."""
        if not self._adds_up:
            return written[0]
        node: Node = ZERO
        for layer, name in zip(self.network.judged, written, strict=True):
            node = ir.add(node, load(name, "b") * layer.loss_weight)
        total = self.storage.buffer("loss", ("b",))
        self.storage.loop(Frame(self.network.last.index), [Output(total, node)])
        return total

    def _name(self, layer: Layer) -> str:
        """The buffer of each sample's loss of one output."""
        return self.storage.apart(f"{layer.name}.loss") if self._adds_up else "loss"

    def _share_of_a_step(self, judged: Layer) -> Node:
        """The factor of a step's loss in its sample's."""
        if not judged.each_step:
            return const(1.0)
        return Scalar("inv_steps") if self.ragged else const(1.0 / self.storage.steps)

    def summed(self, name: str, frame: Frame, part: Node) -> str:
        """Write each sample's sum over its steps."""
        self.storage.buffer(name, ("b",))
        with self.storage.at("first"):
            self.storage.loop(frame, [Output(name, ZERO)])
        self.storage.loop(frame, [Output(name, load(name, "b") + part)])
        return name
