"""A model as a torch.nn.Module: the compiled inference program, computed by PyTorch.

Learned arrays are Parameters of the module, under their names with "_" for "."; gradients flow to
them and to x, so that a neuron of horn can be one part of a network of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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


class TorchGraph:
    """A Graph that computes at once; a value is a tensor."""

    def __init__(self, torch: Any, module: Any, x: Any) -> None:
        self.torch, self.module, self.x = torch, module, x
        self.operations = module.operations

    def array(self, name: str, value: Array) -> Any:
        return self.module.tensor(name, value, self.x.device)

    def number(self, value: float) -> Any:
        return self.torch.tensor(value, dtype=self.x.dtype, device=self.x.device)

    def apply(self, name: str, values: Sequence[Any]) -> Any:
        if name == "number":
            return values[0].to(self.x.dtype)
        return self.operations[name](*values)

    def spread(self, value: Any, places: Sequence[int]) -> Any:
        for place in places:
            value = value.unsqueeze(place)
        return value

    def repeat(self, value: Any, place: int, n: int) -> Any:
        shape = [-1] * value.dim()
        shape[place] = n
        return value.expand(shape)

    def take(self, value: Any, place: int, index: Array) -> Any:
        flat = value.index_select(place, self.module.indices(index, value.device))
        return flat.unflatten(place, index.shape)

    def matmul(self, letters: str, a: Any, b: Any) -> Any:
        return self.torch.einsum(letters, a, b)

    def flat(self, value: Any) -> Any:
        return value.reshape(-1)

    def convolve(
        self, value: Any, weights: Any, below: Sizes, spans: Sequence[Span], groups: int
    ) -> Any:
        f = self.torch.nn.functional
        image = value.unflatten(1, below).movedim(-1, 1)
        pads = [n for span in reversed(spans) for n in (span.before, span.after)]
        convolve = f.conv1d if len(spans) == 1 else f.conv2d
        made = convolve(
            f.pad(image, pads), weights.movedim(-1, 1),
            stride=[span.stride for span in spans], dilation=[span.dilation for span in spans],
            groups=groups,
        )  # fmt: skip
        return made.movedim(1, -1).flatten(1)

    def convolve_back(
        self, value: Any, weights: Any, maps: Sizes, spans: Sequence[Span], groups: int
    ) -> Any:
        f = self.torch.nn.functional
        image = value.unflatten(1, maps).movedim(-1, 1)
        convolve = f.conv_transpose1d if len(spans) == 1 else f.conv_transpose2d
        made = convolve(
            image, weights.movedim(-1, 1),
            stride=[span.stride for span in spans], dilation=[span.dilation for span in spans],
            groups=groups,
        )  # fmt: skip
        pads = [n for span in reversed(spans) for n in (-span.before, span.lacking)]
        return f.pad(made, pads).movedim(1, -1).flatten(1)

    def reduce(self, value: Any, place: int, monoid: str) -> Any:
        if monoid in ("argmax", "argmin"):
            return getattr(self.torch, monoid)(value, dim=place).to(self.x.dtype)
        if monoid in ("max", "min"):  # amax would share the gradient among equals
            return getattr(self.torch, monoid)(value, dim=place).values
        name = {"any": "amax", "all": "amin"}.get(monoid, monoid)
        return getattr(self.torch, name)(value, dim=place)

    def rank(self, value: Any, n: int) -> Any:
        order = self.torch.argsort(value, dim=1, descending=True, stable=True)
        return self.torch.argsort(order, dim=1, stable=True).to(self.x.dtype)

    def in_time(
        self, x: Any, before: Sequence[tuple[int, Any]],
        step: Callable[[Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
    ) -> list[Any]:  # fmt: skip
        heard: Sequence[Any] = [
            (x.new_zeros(n) if array is None else array).expand(len(x), n) for n, array in before
        ]
        found = []
        for here in x.unbind(1):
            heard, sent = step(here, heard)
            found.append(sent)
        return [self.torch.stack(each, 1) for each in zip(*found, strict=True)]


def module(translation: Translation[Any]) -> Any:
    """A torch.nn.Module with ``forward(x)``: (batch, features) -> (batch, outputs), for sequences
    (batch, steps, features) -> (batch, outputs) or (batch, steps, outputs), with any number of
    steps; with several outputs a dict of these by name. Features may have the axes of net.input,
    (batch, height, width, channels); forward raises DataError for other shapes.
    """
    torch = _torch()
    operations = _operations(torch)
    learned = _names({name for layer in translation.network.layers[1:] for name in layer.shapes})
    sizes = {layer.name: layer.size for layer in translation.network.outputs}
    base: Any = torch.nn.Module

    class HornModule(base):  # type: ignore[misc]
        """A model of horn."""

        def __init__(self) -> None:
            super().__init__()
            self.operations = operations
            for name, own in learned.items():
                array = torch.tensor(np.array(translation.arrays[name]))
                self.register_parameter(own, torch.nn.Parameter(array))

        def forward(self, x: Any) -> Any:
            x = _rows(translation.network, x)
            sent = translation.run(TorchGraph(torch, self, x), x)
            if x.dim() == 3:
                places = zip(sent, translation.each_step, strict=True)
                sent = [each if at_all else each[:, -1] for each, at_all in places]
            found = {
                name: each.expand(len(x), *each.shape[1:-1], size)
                for (name, size), each in zip(sizes.items(), sent, strict=True)
            }
            return found if len(found) > 1 else next(iter(found.values()))

        def tensor(self, name: str, value: Array, device: Any) -> Any:
            if name in learned:
                return getattr(self, learned[name])
            return self._kept(f"constant_{name.replace('.', '/')}", value, device)

        def indices(self, index: Array, device: Any) -> Any:
            name = f"index_{index.shape}_{hash(index.tobytes())}"
            return self._kept(name, index.ravel(), device)

        def _kept(self, name: str, value: Array, device: Any) -> Any:
            """A constant of the network, not learned and so not in state_dict."""
            if name not in self._buffers:
                self.register_buffer(name, torch.tensor(value, device=device), persistent=False)
            return self._buffers[name]

    return HornModule()


def _rows(network: Network, x: Any) -> Any:
    """x with all features of a sample, or of a step of one, in one axis. Raises DataError."""
    own, first = network.layers[0], ["batch", "steps"] if network.steps else ["batch"]
    axes, n = tuple(x.shape[len(first) :]), len(first)
    if axes == (own.size,):
        return x
    if axes == own.shape:
        return x.flatten(n)
    forms = [(own.size,), own.shape][: 1 + (len(own.shape) > 1)]
    wanted = " or ".join(f"({', '.join([*first, *map(str, form)])})" for form in forms)
    raise DataError(f"the module of this model takes x of shape {wanted}, got {tuple(x.shape)}")


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
