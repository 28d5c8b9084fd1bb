"""Activations: a function of the summed input z, and its derivative.

The derivative is given in terms of the neuron's output y where that is possible (sigmoid y(1-y),
tanh 1-y^2, relu y>0), as the Horn paper does; one without an output form offers only
``derivative_at(z)``. Softmax needs the whole layer and is an interlayer function (`softmax` below);
naming it as an activation means identity plus that interlayer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from horn import math, mistakes, texts
from horn.errors import ModelError

Function = Callable[..., Any]


@mistakes.teaches
@dataclass(frozen=True)
class Activation:
    """A pair: ``f(z)`` and its derivative, as ``derivative(y)`` of the output,
    ``derivative_at(z)``, or both: functions in the neuron language. Without either the compiler
    derives ``derivative_at`` from ``f``.
    """

    n_arguments: ClassVar[int] = 1
    name: str
    f: Function
    df: Function | None = None
    df_at: Function | None = None

    def __post_init__(self) -> None:
        for function in (self.f, self.df, self.df_at):
            texts.keep(function)

    def __repr__(self) -> str:
        return mistakes.constructed(self)

    def __call__(self, *z: Any) -> Any:
        return self.f(*z)

    def derivative(self, y: Any) -> Any:
        """d f / d z, from the output y = f(z)."""
        if self.df is None:
            raise ModelError(
                f"activation {self.name!r} has no derivative of its output; "
                f"use self.activation.derivative_at(z) with the summed input z"
            )
        return self.df(y)

    def derivative_at(self, z: Any) -> Any:
        """d f / d z, from the summed input z."""
        if self.df_at is not None:
            return self.df_at(z)
        if self.df is None:
            raise ModelError(
                f"activation {self.name!r} was given no derivative; horn derives it where a "
                f"network runs, to call it yourself give horn.Activation(name, f, df)"
            )
        return self.df(self.f(z))


class OfTwo(Activation):
    """``f(a, b)`` of the outputs of two layers, for a loss between them."""

    n_arguments = 2


def identity(z: Any) -> Any:
    return z


def one(y: Any) -> Any:
    return 1.0


def sigmoid_slope(y: Any) -> Any:
    return y * (1.0 - y)


def tanh_slope(y: Any) -> Any:
    return 1.0 - y * y


def scaled_tanh(z: Any) -> Any:
    return 1.7159 * math.tanh(2.0 / 3.0 * z)


def scaled_tanh_slope(y: Any) -> Any:
    return 2.0 / 3.0 * (1.7159 - y * y / 1.7159)


def relu_slope(y: Any) -> Any:
    return math.where(y > 0.0, 1.0, 0.0)


def leaky_relu(z: Any) -> Any:
    return math.where(z > 0.0, z, 0.01 * z)


def leaky_relu_slope(y: Any) -> Any:
    return math.where(y > 0.0, 1.0, 0.01)


def softplus_slope(y: Any) -> Any:
    return -math.expm1(-y)


def softmax(output: Any) -> Any:
    """exp(output) normalised over the layer, shifted by the largest so that nothing overflows."""
    e = math.exp(output - output.max())
    return e / e.sum()


# LeCun et al., "Efficient BackProp", 1998, section 4.4, for scaled tanh.
ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        Activation("identity", identity, one, one),
        Activation("sigmoid", math.sigmoid, sigmoid_slope),
        Activation("tanh", math.tanh, tanh_slope),
        Activation("scaled_tanh", scaled_tanh, scaled_tanh_slope),
        Activation("relu", math.relu, relu_slope, relu_slope),
        Activation("leaky_relu", leaky_relu, leaky_relu_slope, leaky_relu_slope),
        Activation("softplus", math.softplus, softplus_slope, math.sigmoid),
    )
}
INTERLAYERS: dict[str, Function] = {"softmax": softmax}


def resolve(
    activation: str | Activation | Function, where: str
) -> tuple[Activation, Function | None]:
    """An activation, and the interlayer that it implies, from its name, itself, or a function f(z).
    Raises ModelError.
    """
    if isinstance(activation, Activation):
        return activation, None
    is_foreign = mistakes.is_foreign(activation)
    if isinstance(activation, FunctionType) and not is_foreign:
        known: dict[Function, str] = {each.f: name for name, each in ACTIVATIONS.items()}
        known |= {f: name for name, f in INTERLAYERS.items()}
        if activation not in known:
            return Activation(activation.__name__, activation), None
        activation = known[activation]
    if isinstance(activation, str) and activation in INTERLAYERS:
        return ACTIVATIONS["identity"], INTERLAYERS[activation]
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return ACTIVATIONS[activation], None
    names = [*ACTIVATIONS, *INTERLAYERS]
    called = activation if isinstance(activation, str) else getattr(activation, "__name__", "")
    called = called or (type(activation).__name__ if is_foreign else str(activation))
    called = called if called in mistakes.ACTIVATIONS else called.lower()
    hint = mistakes.suggest(called, names, mistakes.ACTIVATIONS)
    raise ModelError(
        f"{where}: unknown activation {activation!r}; {hint}known: {', '.join(names)}, or pass a "
        "function f(z), as lambda z: z * horn.math.sigmoid(z)"
    )
