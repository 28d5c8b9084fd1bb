"""Initial weights: each initialiser draws an array from a NumPy generator.

Shapes: weights are (fan_out, fan_in), or (n_edges,) of a sparse connection; fan_in counts a
neuron's synapses, the bias apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator

from horn import mistakes
from horn.errors import ModelError, check_finite

Array = np.ndarray[Any, np.dtype[np.float64]]
Shape = tuple[int, ...]


class Initializer(Protocol):
    """Anything with ``values(shape, fan_in, fan_out, rng)``."""

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``, drawn from ``rng``."""
        ...


@mistakes.teaches
@dataclass(frozen=True)
class Constant:
    """Every weight is ``value``, a finite number."""

    value: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, "value")

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        return np.full(shape, self.value)


@mistakes.teaches
@dataclass(frozen=True)
class Uniform:
    """Uniform between low and high, finite numbers."""

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        check_finite(self, "low", "high")
        if self.low > self.high:
            raise ModelError(
                f"Uniform: low must not be above high, got low={self.low!r}, high={self.high!r}"
            )

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        return rng.uniform(self.low, self.high, shape)


@mistakes.teaches
@dataclass(frozen=True)
class Normal:
    """Normal with this mean and standard deviation, finite numbers."""

    mean: float = 0.0
    std: float = 0.05

    def __post_init__(self) -> None:
        check_finite(self, "mean", "std")
        if self.std < 0:
            raise ModelError(f"Normal: std must be 0 or more, got {self.std!r}")

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        return rng.normal(self.mean, self.std, shape)


@mistakes.teaches
@dataclass(frozen=True)
class Glorot:
    """Uniform within sqrt(6 / (fan_in + fan_out)). Source: Glorot & Bengio 2010, eq. 16.

    fan_out : the synapses of a source, on the average. Of a convolution maps * taps of its kernel,
    as PyTorch counts it, whatever the groups, where a source has that over groups and strides.
    """

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        limit = math.sqrt(6.0 / max(fan_in + fan_out, 1))
        return rng.uniform(-limit, limit, shape)


@mistakes.teaches
@dataclass(frozen=True)
class He:
    """Normal with variance 2 / fan_in. Source: He et al. 2015, eq. 10."""

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        return rng.normal(0.0, math.sqrt(2.0 / max(fan_in, 1)), shape)


@mistakes.teaches
@dataclass(frozen=True)
class LeCun:
    """Normal with variance 1 / fan_in. Source: LeCun et al., "Efficient BackProp", 1998, eq. 16."""

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """The initial weights, an array of ``shape``."""
        return rng.normal(0.0, math.sqrt(1.0 / max(fan_in, 1)), shape)


@dataclass(frozen=True)
class Unsaved:
    """In the place of one of the user's own that a model file could not keep. was : what it was."""

    was: str

    def values(self, shape: Shape, fan_in: int, fan_out: int, rng: Generator) -> Array:
        """Raise ModelError: other numbers would be those of another training."""
        raise ModelError(
            f"its initialiser ({self.was}) is not in the model's file, so nothing can be drawn "
            f"from it; begin with what the model learned, horn.Job(..., initial=model), or make "
            f"the network anew with an initialiser"
        )


INITIALIZERS: dict[str, Initializer] = {
    "glorot": Glorot(),
    "he": He(),
    "lecun": LeCun(),
    "uniform": Uniform(),
    "normal": Normal(),
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
}


def resolve(init: str | float | Initializer, where: str) -> Initializer:
    """An initialiser from its name, a number (Constant), or itself."""
    init = mistakes.plain(init)
    if isinstance(init, (int, float)):
        return Constant(float(init))
    if not isinstance(init, str):
        if isinstance(init, type) or not hasattr(init, "values"):
            remedy = f"; write {init.__name__}(...)" if isinstance(init, type) else ""
            if isinstance(init, (list, tuple)) or hasattr(init, "shape"):
                remedy = (
                    ". Arrays are given to the job by name: horn.Job(net, data, initial="
                    '{"layer1.weight": array}), that of sparse connections as a scipy matrix or in '
                    "the order of the synapses; connect=horn.Sparse(matrix=..., values=True) "
                    "begins with the matrix's own numbers"
                )
            raise ModelError(
                f"{where}: init must be a name, a number or an initialiser, got "
                f"{mistakes.shown(init)}{remedy}"
            )
        return init
    if init in INITIALIZERS:
        return INITIALIZERS[init]
    hint = mistakes.suggest(init, INITIALIZERS, mistakes.INITIALIZERS)
    raise ModelError(
        f"{where}: unknown initialiser {init!r}; {hint}known: {', '.join(INITIALIZERS)}"
    )


def generator(seed: int, *path: int) -> Generator:
    """The generator of one array of the network; the sizes of others do not change its numbers."""
    return Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=path)))
