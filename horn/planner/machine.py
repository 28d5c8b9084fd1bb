"""The speed of a machine: the figures that the cost model multiplies its counts by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from horn._kernels.operands import OPS
from horn.transport import load, names

Figures: TypeAlias = Mapping[str, float]

# The kinds of products: forward, backward, gradient, and updates without and with momentum.
PRODUCTS = ("forward", "backward", "gradient", "update", "momentum")
# Seconds per element, of many, of operations slower than an addition.
_SLOW = {
    "sqrt": 7e-11, "exp": 1.7e-10, "log": 2.8e-10, "log1p": 3.6e-10, "expm1": 2.3e-10,
    "tanh": 3.4e-10, "sigmoid": 1.8e-10, "softplus": 1e-9, "sin": 3.5e-10, "cos": 3.5e-10,
    "pow": 1.3e-9, "erf": 6e-10, "erfc": 1.1e-9, "atan": 2e-10, "atan2": 6e-10,
    "floordiv": 7e-10, "mod": 6e-10,
}  # fmt: skip
FOLDS = ("sum", "prod", "max", "min", "any", "all", "argmax")


def _by(names: Iterable[str], default: Any, **others: Any) -> Any:
    """A dataclass field with a figure for each name."""
    return field(default_factory=lambda: {**dict.fromkeys(names, default), **others})


@dataclass(frozen=True)
class Machine:
    """The speed of one thread: seconds, for one dtype. ``calibration`` measures them; the defaults
    are those of a 2-core Xeon.

    together : the slowdown of computing when every core computes: cores that share units with each
    other, or a host with others, are slower then. products : the library of products, as
    ``Tape.products``. call_s : an instruction of the engine, whatever it does. product_s : the same
    of a product, by kind. row_s, weight_s : a weight of a product, for every row of the batch and
    once; by kind, and for square weights of each of ``sides``. edge_s : an element of the other two
    arrays. stream_s : an element of a loop over an array as large as those weights, read or
    written. operation_s, left_s : an element of an operation, in a whole vector of ``lanes`` and
    left over after the last. apply_s, view_s : an operation, an array, for each strip. strip_s : a
    strip besides. fetch_s : an element that is copied into a strip, by its layout
    (``walks.Walk``). fetch_row_s : a row of these. fold_s, cross_s : an element that is reduced,
    along a strip and across, by monoid. fold_row_s : a row that is reduced along the strip.
    result_s : a result of a reduction. tile_s, tile_result_s : an element of a tile (tiles.h), and
    a result besides, by monoid or kind: "near" of a product of factors near 1; of "places" a sample
    and neuron.
    window_s : a synapse of a sum of products over windows, for a number of whole vectors of the
    batch (a gradient: of maps), by kind of product; "squares": of squared differences. pool_s : the
    same of a fold over windows: "sum", "both" (an extreme and its place), "slope" (its gradient).
    synapse_s, synapse_once_s : a synapse of a sparse sum of products, by the letter that is
    reduced, for every sample and once; synapse_alone_s : of one sample. draw_s : a random number,
    by kind. input_s : a feature of a sample. batch_s, superstep_s, block_s : the Python of a batch,
    of an exchange, of a block in it.
    pack_bytes_per_s, unpack_bytes_per_s : copies into and out of mailboxes. latency_s,
    bandwidth_bytes_per_s : of a transport, from a post to the wake-up of the other task; of one
    task.
    """

    n_cores: int = 2
    together: float = 1.0
    products: str = "horn"
    lanes: int = 16
    call_s: float = 2e-7
    product_s: Figures = _by(PRODUCTS, 5e-7)
    sides: tuple[float, ...] = (192, 640, 2048)
    row_s: Mapping[str, tuple[float, ...]] = _by(PRODUCTS, (1.5e-11, 1.5e-11, 1.7e-11))
    weight_s: Mapping[str, tuple[float, ...]] = _by(PRODUCTS, (2e-10, 3e-10, 5e-10))
    edge_s: Figures = _by(PRODUCTS, 1e-10)
    stream_s: tuple[float, ...] = (3e-11, 1e-10, 3e-10)
    operation_s: Figures = _by(OPS, 3e-11, **_SLOW)
    left_s: Figures = _by(OPS, 1e-10, **{name: 6 * seconds for name, seconds in _SLOW.items()})
    apply_s: float = 5e-9
    strip_s: float = 1e-8
    view_s: float = 3e-9
    fetch_s: Figures = _by(("copy", "fill", "list", "step"), 5e-10, copy=4e-11, fill=3e-11)
    fetch_row_s: float = 4e-9
    fold_s: Figures = _by(FOLDS, 5e-10, sum=5e-11, prod=1e-9, max=2e-10, min=2e-10, argmax=4e-10)
    fold_row_s: Figures = _by(FOLDS, 1e-8, max=4e-8, min=4e-8, argmax=6e-8)
    cross_s: Figures = _by(FOLDS, 1e-10, argmax=3e-10)
    result_s: float = 3e-9
    tile_s: Figures = _by(
        ("sum", "max", "min", "near", "squares", "square columns", "square"), 5e-11,
        argmax=1e-10, prod=1e-10, columns=7e-11, places=5e-9,
        quotients=8e-11, exp=1.6e-10, tanh=2.4e-10, sigmoid=2e-10,
        **{"exp slope": 2e-10, "tanh slope": 2.8e-10, "sigmoid slope": 2.4e-10},
    )  # fmt: skip
    tile_result_s: Figures = _by(
        ("sum", "max", "min", "near", "squares", "square", "exp", "tanh", "sigmoid"), 8e-9,
        argmax=3e-8, prod=2e-9, places=0.0,
        **dict.fromkeys(
            ("columns", "square columns", "quotients", "exp slope", "tanh slope", "sigmoid slope"),
            3e-10,
        ),
    )  # fmt: skip
    window_s: Figures = _by((*PRODUCTS[:3], "squares"), 1.1e-11, squares=1.8e-11)
    pool_s: Figures = _by(("sum", "both", "slope"), 1e-10)
    synapse_s: Figures = _by("iob", 4e-10)
    synapse_once_s: Figures = _by("iob", 2e-9, b=4e-9)
    synapse_alone_s: Figures = _by("iob", 1.5e-9)
    draw_s: Figures = _by(("uniform", "normal"), 2e-9, normal=6e-9)
    input_s: float = 3e-10
    batch_s: float = 30e-6
    superstep_s: float = 10e-6
    block_s: float = 3e-6
    pack_bytes_per_s: float = 5e9
    unpack_bytes_per_s: float = 5e9
    latency_s: Figures = field(default_factory=lambda: {n: load(n).latency_s for n in names()})
    bandwidth_bytes_per_s: Figures = field(
        default_factory=lambda: {name: load(name).bytes_per_s for name in names()}
    )

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second of one task, in large products."""
        return 2.0 / self.row_s["forward"][1]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Machine:
        """A machine from the dictionary of ``dataclasses.asdict``, through JSON. Raises ValueError
        if figures are missing, unknown or no finite numbers: times from 0, all others above 0.
        """
        plain = cls()
        found = {f.name: _like(getattr(plain, f.name), values[f.name], f.name) for f in fields(cls)}
        if len(values) != len(found):
            raise ValueError("there are figures that no Machine has")
        return cls(**found)


def _like(model: Any, value: Any, name: str) -> Any:
    """Check that the value has the same structure as ``model``, with finite numbers: times from 0;
    others are divided by.
    """
    if isinstance(model, Mapping):
        if set(value) != set(model):
            raise ValueError(f"{name} has {sorted(value)}")
        part = next(iter(model.values()))
        return {str(key): _like(part, item, name) for key, item in value.items()}
    if isinstance(model, tuple):
        if len(value) != len(model):
            raise ValueError(f"{name} has {len(value)} figures")
        return tuple(_like(model[0], item, name) for item in value)
    if isinstance(model, str) and isinstance(value, str):
        return value
    if isinstance(model, str) or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r}")
    number = type(model)(value)
    is_time = name.endswith("_s") and not name.endswith("per_s")
    if not (0 <= number < float("inf") and (is_time or number)):
        raise ValueError(f"{name} is {value!r}")
    return number
