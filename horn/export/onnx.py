"""A model as an ONNX file: the compiled inference program as a graph of standard operations.

Opset 17 and IR 10, so that older runtimes read it. Input "x" (batch, features) and output "y"
(batch, outputs) in the type of the model; learned arrays keep their names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horn import version
from horn.atomic_write import atomic_write
from horn.connections.windows import Sizes, Span
from horn.errors import CompileError, ModelError
from horn.export.program import Array, Translation
from horn.mistakes import shown
from horn.modelfile import check_writable
from horn.network import Network

OPSET, IR = 17, 10
MOST_BYTES = 2**31 - 2**20  # the limit of a protocol buffer

Shape = list[str | int]  # an axis of any length has a name

_ONE_NODE = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "lt": "Less",
    "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal", "and": "And",
    "or": "Or", "not": "Not", "select": "Where", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "tanh": "Tanh", "sin": "Sin", "cos": "Cos", "abs": "Abs", "floor": "Floor", "sign": "Sign",
    "softplus": "Softplus", "relu": "Relu", "erf": "Erf", "atan": "Atan",
    "pow": "Pow", "maximum": "Max", "minimum": "Min",
}  # fmt: skip
_REDUCE = {"prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "any": "ReduceMax",
           "all": "ReduceMin"}  # fmt: skip

# Chebyshev coefficients of log(erfc(z) / t) + z * z, t = 2 / (2 + z), for z from 0 on; float32
# takes the first 13. Source: Press et al., "Numerical Recipes", third edition, 2007, section 6.2.2.
_ERFC = (
    -1.3026537197817094, 0.6419697923564902, 0.019476473204185836, -0.009561514786808632,
    -0.0009465953444820369, 0.00036683949785276145, 4.252332480690777e-05, -2.0278578112534242e-05,
    -1.6242900046470256e-06, 1.3036558355805232e-06, 1.5626441722066142e-08, -8.523809591492654e-08,
    6.5290544390988515e-09, 5.059343495551469e-09, -9.91364156493033e-10, -2.273651222931836e-10,
    9.646791102015527e-11, 2.3940380830391146e-12, -6.886027526497553e-12, 8.944879273090725e-13,
    3.130921399342958e-13, -1.1270822361367252e-13, 3.810905255189232e-16, 7.106097613609237e-15,
    -1.5230282014571043e-15, -9.457494571291233e-17, 1.210237189224279e-16, -2.816663087747177e-17,
)  # fmt: skip


class OnnxGraph:
    """A Graph that makes ONNX nodes; a value is its name."""

    def __init__(self, onnx: Any, dtype: str) -> None:
        self.onnx, self.dtype = onnx, np.dtype(dtype)
        self.type = onnx.TensorProto.FLOAT if dtype == "float32" else onnx.TensorProto.DOUBLE
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.indices: dict[tuple[tuple[int, ...], bytes], str] = {}
        self.n_bytes = self.n_made = 0

    def node(self, kind: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        out = name or f"{kind.lower()}.{self.n_made}"  # with a dot, which no output's name has
        self.n_made += 1
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [out], **attributes))
        return out

    def array(self, name: str, value: Array) -> str:
        if name not in self.initializers:
            solid = np.ascontiguousarray(value)
            self.n_bytes += solid.nbytes
            self.initializers[name] = self.onnx.numpy_helper.from_array(solid, name)
        return name

    def whole(self, values: Any) -> str:
        """A constant of whole numbers: shapes, axes, indices."""
        array = np.asarray(values, np.int64)
        name = self.indices.setdefault((array.shape, array.tobytes()), f"whole.{len(self.indices)}")
        return self.array(name, array)

    def number(self, value: float) -> str:
        return self.array(f"#number.{value!r}", np.asarray(value, self.dtype))

    def apply(self, name: str, values: Sequence[str]) -> str:
        if name in ("erf", "atan", "softplus") and self.dtype == "float64":
            return str(getattr(self, f"_double_{name}")(*values))  # onnxruntime has float's alone
        if name in _ONE_NODE:
            return self.node(_ONE_NODE[name], values)
        return str(getattr(self, f"_{name}")(*values))

    def _double_softplus(self, a: str) -> str:
        """max(a, 0) + log(1 + exp(-|a|)), which does not overflow for any a."""
        small = self.node("Exp", [self.node("Neg", [self.node("Abs", [a])])])
        return self.node("Add", [self.node("Relu", [a]), self._log1p(small)])

    def _double_erf(self, a: str) -> str:
        """1 - erfc(a), and the series of small numbers, which keeps their digits."""
        square, found = self.node("Mul", [a, a]), self.number(0.0)
        for n in reversed(range(13)):
            term = (-1) ** n / (math.factorial(n) * (2 * n + 1)) * 2.0 / math.sqrt(math.pi)
            found = self.node("Add", [self.node("Mul", [found, square]), self.number(term)])
        is_small = self.node("Less", [square, self.number(0.25)])
        large = self.node("Sub", [self.number(1.0), self._erfc(a)])
        return self.node("Where", [is_small, self.node("Mul", [a, found]), large])

    def _double_atan(self, a: str) -> str:
        """The angle y of a float, and a step of Newton's for what remains:
        tan(atan(a) - y) = (a cos(y) - sin(y)) / (cos(y) + a sin(y)).
        """
        most = self.number(1e30)  # infinity times 0 is none
        bounded = self.node("Max", [self.node("Min", [a, most]), self.node("Neg", [most])])
        single = self.node("Cast", [bounded], to=self.onnx.TensorProto.FLOAT)
        y = self._number(self.node("Atan", [single]))
        sine, cosine = self.node("Sin", [y]), self.node("Cos", [y])
        over = self.node("Sub", [self.node("Mul", [bounded, cosine]), sine])
        under = self.node("Add", [cosine, self.node("Mul", [bounded, sine])])
        return self.node("Add", [y, self.node("Div", [over, under])])

    def _number(self, a: str) -> str:
        return self.node("Cast", [a], to=self.type)

    def _truth(self, a: str) -> str:
        return self.node("Cast", [a], to=self.onnx.TensorProto.BOOL)

    def _ne(self, a: str, b: str) -> str:
        return self.node("Not", [self.node("Equal", [a, b])])

    def _stop_gradient(self, a: str) -> str:
        return a

    def _log1p(self, a: str) -> str:
        """log(u) a / (u - 1), u = 1 + a: exact for small a. Source: Goldberg 1991, theorem 4."""
        one = self.number(1.0)
        u = self.node("Add", [one, a])
        log = self.node("Log", [u])
        mended = self.node("Div", [self.node("Mul", [log, a]), self.node("Sub", [u, one])])
        large = self.node("Where", [self.node("Equal", [u, a]), log, mended])
        return self.node("Where", [self.node("Equal", [u, one]), a, large])

    def _expm1(self, a: str) -> str:
        """tanh(a / 2) (exp(a) + 1), which keeps the digits of a small a."""
        half = self.node("Tanh", [self.node("Mul", [a, self.number(0.5)])])
        return self.node("Mul", [half, self.node("Add", [self.node("Exp", [a]), self.number(1.0)])])

    def _sigmoid(self, a: str) -> str:
        """e / (1 + e), e = exp(a): onnxruntime's Sigmoid is 0 from -18 down."""
        bounded = self.node("Min", [a, self.number(40.0)])  # where 1 + e is e
        e = self.node("Exp", [bounded])
        return self.node("Div", [e, self.node("Add", [e, self.number(1.0)])])

    def _erfc(self, a: str) -> str:
        """t exp(P(t) - z * z), z = |a|, with the polynomial of _ERFC by Clenshaw's recurrence."""
        two, z = self.number(2.0), self.node("Abs", [a])
        t = self.node("Div", [two, self.node("Add", [two, z])])
        y = self.node("Sub", [self.node("Mul", [t, self.number(4.0)]), two])
        first, *others = _ERFC if self.dtype == "float64" else _ERFC[:13]
        now = before = self.number(0.0)
        for coefficient in reversed(others):
            rest = self.node("Sub", [self.number(coefficient), before])
            now, before = self.node("Add", [self.node("Mul", [y, now]), rest]), now
        half = self.node("Mul", [self.node("Mul", [y, now]), self.number(0.5)])
        rest = self.node("Sub", [self.number(first / 2.0), before])
        power = self.node("Sub", [self.node("Add", [half, rest]), self.node("Mul", [z, z])])
        tail = self.node("Mul", [t, self.node("Exp", [power])])
        is_below = self.node("Less", [a, self.number(0.0)])
        return self.node("Where", [is_below, self.node("Sub", [two, tail]), tail])

    def _floordiv(self, a: str, b: str) -> str:
        """The quotient without the remainder, as in Python: a / b may round up to a whole one."""
        whole = self.node("Div", [self.node("Sub", [a, self._mod(a, b)]), b])
        by_zero = self.node("Equal", [b, self.number(0.0)])
        return self.node("Where", [by_zero, self.node("Div", [a, b]), self.node("Round", [whole])])

    def _mod(self, a: str, b: str) -> str:
        """The remainder with the sign of b, as in Python; fmod's has that of a."""
        zero = self.number(0.0)
        rest = self.node("Mod", [a, b], fmod=1)
        signs = [self.node("Less", [each, zero]) for each in (rest, b)]
        is_other = self.node("And", [self._ne(rest, zero), self.node("Xor", signs)])
        return self.node("Where", [is_other, self.node("Add", [rest, b]), rest])

    def _atan2(self, y: str, x: str) -> str:
        """The angle of y / x, adjusted by the quadrant of (x, y): ONNX has no such operation."""
        zero = self.number(0.0)
        both = [self.node("Less", [each, zero]) for each in (y, self.node("Reciprocal", [y]))]
        is_below = self.node("Or", both)  # -0.0, too
        is_even = self.node("Equal", [self.node("Abs", [each]) for each in (y, x)])  # also infinite
        even = self.node("Mul", [self.node("Sign", [each]) for each in (y, x)])
        slope = self.node("Where", [is_even, even, self.node("Div", [y, x])])
        angle = self.apply("atan", [slope])
        half, quarter = self.number(np.pi), self.number(np.pi / 2)
        signed = self.node("Where", [is_below, self.node("Neg", [half]), half])
        left = self.node("Add", [angle, signed])
        above = self.node("Mul", [quarter, self.node("Sign", [y])])  # 0 for 0, NaN for NaN
        edge = self.node("Where", [self.node("Equal", [x, zero]), above, angle])
        return self.node("Where", [self.node("Less", [x, zero]), left, edge])

    def _halfway(self, a: str, b: str) -> str:
        """A number from a up to below b, to halve the floats between them: 0, the geometric mean
        of numbers far apart, the mean of others. ONNX has no operation on the bits of floats.
        """
        zero, node, limits = self.number(0.0), self.node, np.finfo(self.dtype)
        most, least = self.number(float(limits.max)), self.number(float(limits.tiny))
        low, high = (self._finite(x, most) for x in (a, b))
        is_below = node("Less", [low, zero])
        near = node("Where", [is_below, node("Neg", [high]), low])  # to 0
        near = node("Where", [node("Less", [near, least]), least, near])
        far = node("Where", [is_below, node("Neg", [low]), high])
        root = node("Mul", [node("Sqrt", [x]) for x in (near, far)])
        root = node("Where", [is_below, node("Neg", [root]), root])
        is_wide = node("Greater", [far, node("Mul", [near, self.number(4.0)])])
        half = node("Mul", [node("Sub", [high, low]), self.number(0.5)])
        found = node("Where", [is_wide, root, node("Add", [low, half])])
        is_between = node("And", [is_below, node("Greater", [high, zero])])
        found = node("Where", [is_between, zero, found])
        return node("Where", [node("GreaterOrEqual", [found, b]), a, found])

    def _finite(self, a: str, most: str) -> str:
        """The largest numbers in place of infinite ones; Clip would lose NaN."""
        less = self.node("Neg", [most])
        a = self.node("Where", [self.node("Greater", [a, most]), most, a])
        return self.node("Where", [self.node("Less", [a, less]), less, a])

    def spread(self, value: str, places: Sequence[int]) -> str:
        return self.node("Unsqueeze", [value, self.whole(list(places))])

    def repeat(self, value: str, place: int, n: int) -> str:
        # Expand wants all axes: later ones that are longer keep their length.
        shape = self.node("Shape", [value])
        index = self.whole([place])
        wide = self.node("ScatterElements", [shape, index, self.whole([n])])
        return self.node("Expand", [value, wide])

    def take(self, value: str, place: int, index: Array) -> str:
        return self.node("Gather", [value, self.whole(index)], axis=place)

    def join(self, values: Sequence[str], place: int) -> str:
        return self.node("Concat", values, axis=place)

    def matmul(self, letters: str, a: str, b: str) -> str:
        if letters == "bi,oi->bo":
            return self.node("MatMul", [a, self.node("Transpose", [b], perm=[1, 0])])
        return self.node("Einsum", [a, b], equation=letters)

    def flat(self, value: str) -> str:
        return self.node("Reshape", [value, self.whole([-1])])

    def convolve(
        self, value: str, weights: str, below: Sizes, spans: Sequence[Span], groups: int
    ) -> str:
        if self.dtype == "float64":
            return self._double_windows(value, weights, below, spans, groups)
        made = self.node(
            "Conv", self._channels_first(value, weights, below),
            pads=[*(span.before for span in spans), *(span.after for span in spans)],
            strides=[span.stride for span in spans],
            dilations=[span.dilation for span in spans],
            group=groups,
        )  # fmt: skip
        return self._channels_last(made, len(spans))

    def _double_windows(
        self, value: str, weights: str, below: Sizes, spans: Sequence[Span], groups: int
    ) -> str:
        """A float64 convolution by gathered windows and a product: onnxruntime has float alone."""
        n, channels = len(spans), below[-1] // groups
        image = self.node("Reshape", [value, self.whole([-1, *below[:-1], groups, channels])])
        begins, ends = [span.before for span in spans], [span.after for span in spans]
        if any((*begins, *ends)):
            image = self.node("Pad", [image, self.whole([0, *begins, 0, 0, 0, *ends, 0, 0])])
        for axis, span in enumerate(spans):  # (b, p, t, ...): place and tap of each dimension
            places = np.arange(span.n_out)[:, None] * span.stride
            image = self.take(image, 1 + 2 * axis, places + np.arange(span.kernel) * span.dilation)
        group = 2 * n + 1
        order = [0, *range(1, group, 2), group, *range(2, group, 2), group + 1]
        size = channels * int(np.prod([span.kernel for span in spans]))
        extents = [span.n_out for span in spans]
        windows = self.node("Transpose", [image], perm=order)
        windows = self.node("Reshape", [windows, self.whole([-1, *extents, groups, 1, size])])
        table = self.node("Reshape", [weights, self.whole([groups, -1, size])])
        table = self.node("Transpose", [table], perm=[0, 2, 1])  # (groups, places, maps)
        return self.node("Flatten", [self.node("MatMul", [windows, table])], axis=1)

    def convolve_back(
        self, value: str, weights: str, maps: Sizes, spans: Sequence[Span], groups: int
    ) -> str:
        if self.dtype == "float64":
            raise CompileError(
                "the way back of a convolution (horn.TransposedConvolution, or horn.Tied(..., "
                "transposed=True)) cannot be exported in float64, which onnxruntime has of "
                "float32 alone. Export the model "
                'that the same job learns with dtype="float32"'
            )
        n = len(spans)
        made = self.node(
            "ConvTranspose", self._channels_first(value, weights, maps),
            strides=[span.stride for span in spans],
            dilations=[span.dilation for span in spans],
            group=groups,
        )  # fmt: skip
        if any(span.before or span.lacking for span in spans):
            ends = [max(span.lacking, 0) for span in spans]
            made = self.node("Pad", [made, self.whole([0] * (n + 4) + ends)])
            begins = [span.before for span in spans]
            ends = [span.before + span.n for span in spans]
            axes = self.whole(range(2, n + 2))
            made = self.node("Slice", [made, self.whole(begins), self.whole(ends), axes])
        return self._channels_last(made, n)

    def _channels_first(self, value: str, weights: str, sizes: Sizes) -> list[str]:
        n = len(sizes) - 1
        first = [0, n + 1, *range(1, n + 1)]
        image = self.node("Reshape", [value, self.whole([-1, *sizes])])
        return [self.node("Transpose", [a], perm=first) for a in (image, weights)]

    def _channels_last(self, made: str, n: int) -> str:
        made = self.node("Transpose", [made], perm=[0, *range(2, n + 2), 1])
        return self.node("Flatten", [made], axis=1)

    def reduce(self, value: str, place: int, monoid: str) -> str:
        if monoid == "sum":
            return self.node("ReduceSum", [value, self.whole([place])], keepdims=0)
        if monoid in ("argmax", "argmin"):
            kind = "ArgMax" if monoid == "argmax" else "ArgMin"
            return self._number(self.node(kind, [value], axis=place, keepdims=0))
        found = self.node(_REDUCE[monoid], [value], axes=[place], keepdims=0)
        if monoid not in ("max", "min"):
            return found
        # onnxruntime keeps a NaN only where it comes first.
        is_none = self._number(self.node("IsNaN", [value]))
        is_none = self._truth(self.node("ReduceMax", [is_none], axes=[place], keepdims=0))
        return self.node("Where", [is_none, self.number(float("nan")), found])

    def rank(self, value: str, n: int) -> str:
        """The rank by all pairs of a row: n * n comparisons."""
        mine, other = self.spread(value, [2]), self.spread(value, [1])
        is_more = self.node("Greater", [other, mine])
        place = np.arange(n)
        is_before = self.array(f"#before.{n}", place < place[:, None])
        is_tie = self.node("And", [self.node("Equal", [other, mine]), is_before])
        return self.reduce(self._number(self.node("Or", [is_more, is_tie])), 2, "sum")

    def in_time(
        self, x: str, before: Sequence[tuple[int, str | None]],
        step: Callable[[str, Sequence[str]], tuple[Sequence[str], Sequence[str]]],
    ) -> list[str]:  # fmt: skip
        """Run the step as the body of a Scan over the steps."""
        outside, self.nodes = self.nodes, []
        heard = [f"before.{k}" for k in range(len(before))]
        after, sent = step("#x.step", heard)
        rows, sizes = self.node("Shape", ["#x.step"], start=0, end=1), [n for n, _ in before]
        both = enumerate(zip(after, sizes, strict=True))
        after = [self._wide(a, rows, n, f"after.{k}") for k, (a, n) in both]
        sent = [self.node("Identity", [name], f"sent.{k}") for k, name in enumerate(sent)]
        inside, self.nodes = self.nodes, outside
        value = self.onnx.helper.make_tensor_value_info
        body = self.onnx.helper.make_graph(
            inside,
            "step",
            [value(name, self.type, None) for name in (*heard, "#x.step")],
            [value(name, self.type, None) for name in (*after, *sent)],
        )
        rows = self.node("Shape", [x], start=0, end=1)
        begin = [self._wide(self.number(0.0) if a is None else a, rows, n) for n, a in before]
        made = [f"steps.{k}" for k in range(len(sent))]
        self.nodes.append(self.onnx.helper.make_node(
            "Scan", [*begin, x], [*(f"last.{k}" for k in range(len(before))), *made], body=body,
            num_scan_inputs=1, scan_input_axes=[1],
        ))  # fmt: skip
        # Steps come first: onnxruntime divides by the rows where a Scan puts them second itself.
        return [self.node("Transpose", [name], perm=[1, 0, 2]) for name in made]

    def _wide(self, value: str, rows: str, n: int, name: str = "") -> str:
        """Expand a value that is the same for some rows or neurons to (b, n)."""
        shape = self.node("Concat", [rows, self.whole([n])], axis=0)
        return self.node("Expand", [value, shape], name)


def shapes(network: Network, each_step: Sequence[bool]) -> tuple[Shape, dict[str, Shape]]:
    """The shape of the input "x", and of the outputs by their names; a single one is "y".
    each_step : which of them answer at each step of a sequence.
    """
    steps: Shape = ["steps"] * bool(network.steps)
    names = [layer.name for layer in network.outputs] if len(network.outputs) > 1 else ["y"]
    found: dict[str, Shape] = {
        name: ["batch", *steps * each, layer.size]
        for name, layer, each in zip(names, network.outputs, each_step, strict=True)
    }
    return ["batch", *steps, network.n_inputs], found


def export(
    translation: Translation[str], path: str | os.PathLike[str], doc: str, facts: Mapping[str, str]
) -> None:
    """Write the ONNX file, whole or not at all. doc, facts : its description of the model.

    Raises
    ------
    ModelError : the place is no .onnx, or cannot be written; onnx is not installed, an output is
    named "x", or the file would be over 2 GB.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"export: an ONNX file has a path, as 'model.onnx'; got {shown(path)}")
    if Path(path).suffix != ".onnx":
        raise ModelError(
            f"{os.fspath(path)}: a model is exported as .onnx; name such a file. (model.to_torch() "
            "is a module of PyTorch, model.save(path) writes horn's own file.)"
        )
    check_writable(path)
    try:
        import onnx
    except ModuleNotFoundError:
        raise ModelError(
            "a model is exported with the package onnx: pip install onnx, or the extra onnx of horn"
        ) from None
    network, dtype = translation.network, str(translation.runner.dtype)
    graph = OnnxGraph(onnx, dtype)
    of_x, of_outputs = shapes(network, translation.each_step)
    if "x" in of_outputs:
        raise ModelError(
            "an output of this model is named 'x', as the input of an ONNX file is; give that "
            'layer another name, as in net.output(2, name="answer")'
        )
    sent = translation.run(graph, "x")
    rows, n_steps = (graph.node("Shape", ["x"], start=k, end=k + 1) for k in (0, 1))
    each_of = zip(of_outputs.items(), sent, translation.each_step, strict=True)
    for (name, (*_, size)), found, each in each_of:
        whole = [rows, n_steps] if each else [rows]
        if network.steps and not each:
            last = graph.node("Gather", [found, graph.whole([-1])], axis=1)
            found = graph.node("Squeeze", [last, graph.whole([1])])
        shape = graph.node("Concat", [*whole, graph.whole([size])], axis=0)
        graph.node("Expand", [found, shape], name)  # where no neuron heard the sample
    if graph.n_bytes > MOST_BYTES:
        raise ModelError(
            f"the arrays have {graph.n_bytes:,} bytes, but an ONNX file has {MOST_BYTES:,} at most"
        )
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, "horn", [value("x", graph.type, of_x)],
            [value(name, graph.type, shape) for name, shape in of_outputs.items()],
            [*graph.initializers.values()], doc_string=doc,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR,
        producer_name="horn", producer_version=version.installed(),
    )  # fmt: skip
    onnx.helper.set_model_props(made, dict(facts))
    onnx.checker.check_model(made, full_check=True)
    _write(Path(path), made.SerializeToString())


def _write(target: Path, content: bytes) -> None:
    try:
        with atomic_write(target) as file:
            file.write(content)
    except OSError as error:
        raise ModelError(
            f"{target}: cannot be written ({error.strerror}); choose another place"
        ) from error
