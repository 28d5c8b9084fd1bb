"""The functions of the neuron language: where the tests of each look at it.

tests/parity/test_functions.py asserts that this list is that of horn.math; the tests of the kernels
and of exports go through it too.
"""

from __future__ import annotations

from pathlib import Path

import horn
from tests.language import texts

#: function -> the lowest and the highest of each of its arguments; ``where`` has a condition
RANGES: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-3.0, 3.0),),
    "log": ((0.1, 5.0),),
    "sqrt": ((0.1, 5.0),),
    "tanh": ((-3.0, 3.0),),
    "sin": ((-4.0, 4.0),),
    "cos": ((-4.0, 4.0),),
    "abs": ((-3.0, 3.0),),
    "floor": ((-3.0, 3.0),),
    "sign": ((-3.0, 3.0),),
    "log1p": ((-0.8, 4.0),),
    "expm1": ((-3.0, 3.0),),
    "sigmoid": ((-5.0, 5.0),),
    "softplus": ((-5.0, 5.0),),
    "relu": ((-3.0, 3.0),),
    "erf": ((-2.0, 2.0),),
    "erfc": ((-2.0, 2.0),),
    "atan": ((-3.0, 3.0),),
    "stop_gradient": ((-3.0, 3.0),),
    "pow": ((0.2, 4.0), (-2.0, 2.0)),
    "atan2": ((-3.0, 3.0), (-3.0, 3.0)),
    "floordiv": ((-5.0, 5.0), (0.5, 2.0)),
    "mod": ((-5.0, 5.0), (0.5, 2.0)),
    "maximum": ((-3.0, 3.0), (-3.0, 3.0)),
    "minimum": ((-3.0, 3.0), (-3.0, 3.0)),
}
#: Functions that no gradient flows through.
FLAT = frozenset({"floor", "sign", "stop_gradient", "floordiv"})


ONE, TWO = ([name for name, places in RANGES.items() if len(places) == n] for n in (1, 2))


def neuron_of(name: str, args: list[str], folder: Path, more: str = "") -> type[horn.Neuron]:
    """A neuron that says what the function is of these arguments, as a user writes it."""
    called = name if name in ("abs", "pow") else f"horn.math.{name}"
    say = f"self.feedforward({called}({', '.join(args)}){more})"
    made = texts.module(folder, texts.source(f"def forward(self, messages):\n    {say}"))
    found: type[horn.Neuron] = made.N
    return found
