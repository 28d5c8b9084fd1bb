"""How far the engine's functions are from the truth, at the level that HORN_SIMD names.

    python -m tests.kernels.accuracy

Prints JSON: {"float32": {"exp": [units in the last place, the argument]}, ...}. Truth is NumPy's
double for float and the x87's 64-bit numbers for double; of erf and erfc of double it is the C
library's, which is within one unit.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from horn._kernels.engine import Tape, View
from tests.kernels import reference

Array = np.ndarray[Any, Any]

# Where each is looked at: widely, and closely where its formula changes.
RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-80, 80), (-1, 1)),
    "log": ((1e-6, 1e6), (0.4, 2.5)),
    "log1p": ((-0.99, 1e3), (-1e-3, 1e-3), (-0.5, 1)),
    "expm1": ((-20, 20), (-1, 1), (-1e-3, 1e-3)),
    "tanh": ((-12, 12), (-1, 1), (-1e-3, 1e-3)),
    "sigmoid": ((-80, 80), (-2, 2)),
    "softplus": ((-80, 80), (-2, 2)),
    "sin": ((-9e5, 9e5), (-4, 4), (-1e-3, 1e-3)),
    "cos": ((-9e5, 9e5), (-4, 4)),
    "erf": ((-5, 5), (-1.1, 1.1), (-1e-3, 1e-3)),
    "erfc": ((-5, 9), (0.3, 1.2)),
    "atan": ((-50, 50), (-1.2, 1.2), (-1e-3, 1e-3)),
}
DOUBLE = {"exp": (-700, 700), "expm1": (-30, 700), "log": (1e-290, 1e290), "erfc": (9, 26)}
OF_TWO = ("atan2", "pow")
MEASURED = (*RANGES, *OF_TWO)
N = 20_000


def run(name: str, *arguments: Array) -> Array:
    """A function of the engine at each place of its arguments."""
    result = np.empty_like(arguments[0])
    tape = Tape(result.dtype.type)
    views = [View(x, "i") for x in arguments]
    tape.loop({"i": result.size}, views, [(name, *range(len(views)))],
              [(View(result, "i"), len(views))])  # fmt: skip
    tape.run()
    return result


def units(found: Array, exact: Array) -> Array:
    """The distance in units of the last place of what should be there."""
    return np.abs(found - exact) / np.spacing(np.abs(exact).astype(found.dtype))


def worst(name: str, dtype: Any, rng: np.random.Generator) -> tuple[float, list[float]]:
    """The largest error of a function, and where it was found."""
    wide = np.longdouble if dtype is np.float64 else np.float64
    places = RANGES.get(name, ())
    if dtype is np.float64 and name in DOUBLE:
        places = (*places, DOUBLE[name])
    if name in OF_TWO:
        some = np.concatenate([rng.uniform(0.2, 5, N), np.exp(rng.uniform(-60, 60, N))])
        other = np.concatenate([rng.uniform(-10, 10, N), rng.uniform(-1.3, 1.3, N)])
        x, y = some.astype(dtype), other.astype(dtype)
        if name == "atan2":
            x, y = y, x * rng.choice([-1, 1], x.size).astype(dtype)
        found = run(name, x, y)
        exact = reference.OPERATIONS[name](x.astype(wide), y.astype(wide))
        error = units(found, exact)
        at = int(error.argmax())
        return float(error[at]), [float(x[at]), float(y[at])]
    x = np.concatenate([rng.uniform(*place, N) for place in places]).astype(dtype)
    error = units(run(name, x), reference.OPERATIONS[name](x.astype(wide)))
    at = int(error.argmax())
    return float(error[at]), [float(x[at])]


def main() -> None:
    rng = np.random.default_rng(0)
    found = {
        np.dtype(dtype).name: {f: worst(f, dtype, rng) for f in MEASURED}
        for dtype in (np.float32, np.float64)
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
