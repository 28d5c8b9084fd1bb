"""A model as a torch.nn.Module: the compiled inference program, computed by PyTorch.

Learned arrays are Parameters of the module, under their names with "_" for "."; gradients flow to
them and to x, so that a neuron of horn can be one part of a network of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from horn.connections.windows import Sizes, Span
from horn.errors import DataError, ModelError
from horn.export.program import Array, Translation
from horn.network import Network


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise ModelError(
            "to_torch needs PyTorch, which horn does not install: see pytorch.org"
        ) from None
    return torch


def _operations(torch: Any) -> dict[str, Callable[..., Any]]:
    same = ("add", "sub", "mul", "div", "neg", "lt", "le", "gt", "ge", "eq", "ne", "exp", "log",
            "sqrt", "tanh", "sin", "cos", "abs", "floor", "log1p", "expm1", "sigmoid",
            "relu", "erf", "erfc", "atan", "pow", "atan2")  # fmt: skip
    return {
        **{name: getattr(torch, name) for name in same},
        # Of equals the first, with its gradient; NaN is not lost.
        "maximum": lambda a, b: torch.where((b > a) | (b != b), b, a),
        "minimum": lambda a, b: torch.where((b < a) | (b != b), b, a),
        "sign": lambda z: torch.where(z != z, z, torch.sign(z)),  # NaN has no sign
        "and": torch.logical_and,
        "or": torch.logical_or,
        "not": torch.logical_not,
        "select": torch.where,
        "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
        "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "mod": torch.remainder,
        "halfway": lambda a, b: _halfway(torch, a, b),
        "stop_gradient": lambda z: z.detach(),
        "truth": lambda z: z != 0,
    }


def _halfway(torch: Any, a: Any, b: Any) -> Any:
    """The float in the middle of two, in the order of all floats (horn/_kernels/functions.h)."""
    whole = torch.int64 if a.dtype == torch.float64 else torch.int32
    least = torch.iinfo(whole).min

    def turned(n: Any) -> Any:
        return torch.where(n < 0, least - n, n)

    both = [x.detach().contiguous() for x in torch.broadcast_tensors(a, b)]
    i, j = (turned(x.view(whole)) for x in both)
    found = turned((i & j) + ((i ^ j) >> 1)).view(a.dtype)
    return torch.where(torch.isnan(a) | torch.isnan(b), a + b, found)


Value = int | str  # the number of what is computed, or the name of an array of the module


@dataclass(frozen=True)
class TensorCall:
    """A function of tensors. of : its values; done : those that nobody reads after it."""

    function: Callable[..., Any]
    of: Sequence[Value]
    done: Sequence[int]


@dataclass(frozen=True)
class TensorCalls:
    """Functions in their order, of what is given and of one another: neither NumPy nor anything of
    the network is left for PyTorch to trace or compile. made : the values that are returned.
    """

    calls: Sequence[TensorCall]
    made: Sequence[Value]

    def run(self, given: Sequence[Any], array: Callable[[str], Any]) -> list[Any]:
        """The values made of those given, and of arrays by their names."""
        values = [*given]
        for call in self.calls:
            of = [array(k) if isinstance(k, str) else values[k] for k in call.of]
            values.append(call.function(*of))
            for k in call.done:
                values[k] = None  # memory of what was read is free again
        return [array(k) if isinstance(k, str) else values[k] for k in self.made]


class TorchGraph:
    """A Graph that notes functions of tensors. names : of learned arrays in the module; constants :
    its other arrays, by names of their own.
    """

    def __init__(self, torch: Any, dtype: Any, names: Mapping[str, str]) -> None:
        self.torch, self.dtype, self.names = torch, dtype, names
        self.operations = _operations(torch)
        self.constants: dict[str, Array] = {}
        self.known: dict[tuple[str, Sizes, bytes], str] = {}
        self.noted: list[tuple[Callable[..., Any], Sequence[Value]]] = []
        self.n_given = 1

    def calls(self, made: Sequence[Value]) -> TensorCalls:
        """What was noted, of the values that are needed then."""
        last = {k: place for place, (_, of) in enumerate(self.noted) for k in of}
        done: list[list[int]] = [[] for _ in self.noted]
        for k, place in last.items():
            if isinstance(k, int) and k not in made:
                done[place].append(k)
        both = zip(self.noted, done, strict=True)
        return TensorCalls([TensorCall(function, of, free) for (function, of), free in both], made)

    def call(self, function: Callable[..., Any], *values: Value) -> Value:
        self.noted.append((function, values))
        return self.n_given + len(self.noted) - 1

    def array(self, name: str, value: Array) -> Value:
        return self.names.get(name) or self.constant(value)

    def constant(self, value: Array) -> Value:
        key = str(value.dtype), value.shape, value.tobytes()
        if key not in self.known:
            self.known[key] = f"constant_{len(self.known)}"
            self.constants[self.known[key]] = value
        return self.known[key]

    def number(self, value: float) -> Value:
        return self.constant(np.asarray(value, self.dtype))

    def apply(self, name: str, values: Sequence[Value]) -> Value:
        if name == "number":
            return self._like(values[0])
        return self.call(self.operations[name], *values)

    def _like(self, value: Value) -> Value:
        """The value in the type of numbers, which is that of the module's."""
        return self.call(lambda value, zero: value.to(zero.dtype), value, self.number(0.0))

    def spread(self, value: Value, places: Sequence[int]) -> Value:
        def spread(value: Any) -> Any:
            for place in places:
                value = value.unsqueeze(place)
            return value

        return self.call(spread, value)

    def repeat(self, value: Value, place: int, n: int) -> Value:
        def repeat(value: Any) -> Any:
            shape = [-1] * value.dim()
            shape[place] = n
            return value.expand(shape)

        return self.call(repeat, value)

    def take(self, value: Value, place: int, index: Array) -> Value:
        def take(value: Any, flat: Any) -> Any:
            return value.index_select(place, flat).unflatten(place, shape)

        shape = index.shape
        return self.call(take, value, self.constant(np.asarray(index, np.int64).ravel()))

    def join(self, values: Sequence[Value], place: int) -> Value:
        return self.call(lambda *values: self.torch.cat(values, place), *values)

    def matmul(self, letters: str, a: Value, b: Value) -> Value:
        return self.call(lambda a, b: self.torch.einsum(letters, a, b), a, b)

    def flat(self, value: Value) -> Value:
        return self.call(lambda value: value.reshape(-1), value)

    def convolve(
        self, value: Value, weights: Value, below: Sizes, spans: Sequence[Span], groups: int
    ) -> Value:
        f = self.torch.nn.functional
        convolution = f.conv1d if len(spans) == 1 else f.conv2d
        pads = [n for span in reversed(spans) for n in (span.before, span.after)]
        settings = _settings(spans, groups)

        def convolve(value: Any, weights: Any) -> Any:
            image = f.pad(value.unflatten(1, below).movedim(-1, 1), pads)
            return convolution(image, weights.movedim(-1, 1), **settings).movedim(1, -1).flatten(1)

        return self.call(convolve, value, weights)

    def convolve_back(
        self, value: Value, weights: Value, maps: Sizes, spans: Sequence[Span], groups: int
    ) -> Value:
        f = self.torch.nn.functional
        convolution = f.conv_transpose1d if len(spans) == 1 else f.conv_transpose2d
        pads = [n for span in reversed(spans) for n in (-span.before, span.lacking)]
        settings = _settings(spans, groups)

        def convolve(value: Any, weights: Any) -> Any:
            image = value.unflatten(1, maps).movedim(-1, 1)
            made = convolution(image, weights.movedim(-1, 1), **settings)
            return f.pad(made, pads).movedim(1, -1).flatten(1)

        return self.call(convolve, value, weights)

    def reduce(self, value: Value, place: int, monoid: str) -> Value:
        if monoid in ("max", "min"):  # amax would share the gradient among equals
            order = getattr(self.torch, monoid)
            return self.call(lambda value: order(value, dim=place).values, value)
        function = getattr(self.torch, {"any": "amax", "all": "amin"}.get(monoid, monoid))
        made = self.call(lambda value: function(value, dim=place), value)
        return self._like(made) if monoid in ("argmax", "argmin") else made

    def rank(self, value: Value, n: int) -> Value:
        def rank(value: Any) -> Any:
            order = value.argsort(dim=1, descending=True, stable=True)
            return order.argsort(dim=1, stable=True)

        return self._like(self.call(rank, value))

    def in_time(
        self, x: Value, before: Sequence[tuple[int, Value | None]],
        step: Callable[[Value, Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]],
    ) -> list[Value]:  # fmt: skip
        sizes = [n for n, _ in before]
        outside = self.noted, self.n_given
        self.noted, self.n_given = [], 1 + len(sizes)
        after, sent = step(0, range(1, self.n_given))
        body = self.calls([*after, *sent])
        self.noted, self.n_given = outside
        inner = [k for call in body.calls for k in call.of] + [*body.made]
        names = sorted({k for k in inner if isinstance(k, str)})

        def run(x: Any, *given: Any) -> list[Any]:
            heard, found = [*given[: len(sizes)]], []
            arrays = dict(zip(names, given[len(sizes) :], strict=True))
            for here in x.unbind(1):
                both = zip(heard, sizes, strict=True)
                wide = [value.expand(x.shape[0], n) for value, n in both]
                made = body.run([here, *wide], arrays.__getitem__)
                heard = made[: len(sizes)]
                found.append(made[len(sizes) :])
            return [self.torch.stack(each, 1) for each in zip(*found, strict=True)]

        begins = [self.number(0.0) if array is None else array for _, array in before]
        made = self.call(run, x, *begins, *names)
        return [self.call(lambda made, k=k: made[k], made) for k in range(len(sent))]


def _settings(spans: Sequence[Span], groups: int) -> dict[str, Any]:
    """What convolutions of PyTorch are told."""
    return {
        "stride": [span.stride for span in spans],
        "dilation": [span.dilation for span in spans],
        "groups": groups,
    }


def module(translation: Translation[Any]) -> Any:
    """A torch.nn.Module with ``forward(x)``: (batch, features) -> (batch, outputs), for sequences
    (batch, steps, features) -> (batch, outputs) or (batch, steps, outputs), with any number of
    steps; with several outputs a dict of these by name. Features may have the axes of net.input,
    (batch, height, width, channels); forward raises DataError for other shapes.
    """
    torch = _torch()
    network, each_step = translation.network, translation.each_step
    learned = _names({name for layer in network.layers[1:] for name in layer.shapes})
    sizes = {layer.name: layer.size for layer in network.outputs}
    graph = TorchGraph(torch, translation.runner.dtype, learned)
    calls = graph.calls(translation.run(graph, 0))
    rows, has_steps = _Rows(torch, network), bool(network.steps)
    base: Any = torch.nn.Module

    class HornModule(base):  # type: ignore[misc]
        """A model of horn."""

        def __init__(self) -> None:
            super().__init__()
            for name, own in learned.items():
                array = torch.tensor(np.array(translation.arrays[name]))
                self.register_parameter(own, torch.nn.Parameter(array))
            for name, value in graph.constants.items():  # not learned, so not in state_dict
                self.register_buffer(name, torch.tensor(value), persistent=False)

        def forward(self, x: Any) -> Any:
            x = rows(x)
            sent = calls.run([x], lambda name: getattr(self, name))
            if has_steps:
                sent = [
                    each if at_all else each[:, -1]
                    for each, at_all in zip(sent, each_step, strict=True)
                ]
            found = {
                name: each.expand(x.shape[0], *[-1] * (each.dim() - 2), size)
                for (name, size), each in zip(sizes.items(), sent, strict=True)
            }
            return found if len(found) > 1 else next(iter(found.values()))

    return HornModule()


class _Rows:
    """x with all features of a sample, or of a step of one, in one axis. Raises DataError."""

    def __init__(self, torch: Any, network: Network) -> None:
        own, first = network.layers[0], ["batch", "steps"] if network.steps else ["batch"]
        forms = [(own.size,), own.shape][: 1 + (len(own.shape) > 1)]
        wanted = " or ".join(f"({', '.join([*first, *map(str, form)])})" for form in forms)
        self.takes = f"the module of this model takes x of shape {wanted}"
        self.torch, self.forms, self.place = torch, forms, len(first)
        self.parts = [name for name, _ in own.parts]

    def __call__(self, x: Any) -> Any:
        if self.torch.jit.is_tracing():  # sizes are tensors then, which a comparison makes constant
            return x.flatten(self.place)
        if not isinstance(x, self.torch.Tensor):
            self.refuse(f", a tensor, got {type(x).__name__}{self.instead(x)}")
        if tuple(x.shape[self.place :]) not in self.forms:
            self.refuse(f", got {tuple(x.shape)}")
        if self.place == 2 and x.shape[1] == 0:
            self.refuse(f", got {tuple(x.shape)}; a sequence has at least one step")
        return x.flatten(self.place)

    def refuse(self, what: str) -> NoReturn:
        raise DataError(self.takes + what)

    def instead(self, x: Any) -> str:
        if not isinstance(x, self.torch.nn.utils.rnn.PackedSequence):
            if isinstance(x, Mapping) and self.parts:
                return (
                    f"; its inputs are side by side in this order: torch.cat([x[name].flatten("
                    f"{self.place}) for name in {self.parts}], {self.place})"
                )
            return "; make it one with torch.as_tensor"
        return (
            "; run sequences of different lengths one by one, each x[None] of "
            "torch.nn.utils.rnn.unpack_sequence"
        )


def _names(arrays: Iterable[str]) -> dict[str, str]:
    """The names of arrays in a module: with "_" for ".", and one more "_" where that is taken, as
    with layers "h-1" and "h_1".
    """
    found: dict[str, str] = {}
    for name in sorted(arrays):
        own = _plain(name)
        while own in found.values():
            own += "_"
        found[name] = own
    return found


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
