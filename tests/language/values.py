"""The value of an expression of IR, from what its operations mean: axes b, o, i as 3 dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from horn import ir
from horn.backends._reference_loops import operate
from horn.ir import Node, Op

B, O, I = 3, 4, 5  # noqa: E741  rows, neurons, synapses
SIZES = {"b": B, "o": O, "i": I}
REDUCE = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
    "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip


def shape(axes: str) -> tuple[int, ...]:
    return tuple(SIZES[a] if a in axes else 1 for a in "boi")


def evaluate(root: Node, env: Mapping[Any, Any]) -> np.ndarray:
    """``env`` maps leaves, or the names of LOADs, to arrays that broadcast to (B, O, I)."""
    host: Any = SimpleNamespace(dtype=np.dtype(float), scalars={})
    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in ir.walk(root):
            if node in env:
                done[node] = env[node]
            elif node.op is Op.LOAD:
                done[node] = env[node.value]
            elif node.op is Op.COUNT:
                done[node] = np.full((1, 1, 1), float(I))
            elif node.op is Op.POSITION:
                done[node] = np.arange(I, dtype=float).reshape(1, 1, I)
            elif node.op is Op.INDEX:
                done[node] = np.arange(O, dtype=float).reshape(1, O, 1)
            elif node.op is Op.REDUCE:
                monoid, axis = node.value
                done[node] = REDUCE[monoid](
                    done[node.args[0]], axis="boi".index(axis), keepdims=True
                )
            elif node.op is Op.MATMUL:
                a, b = (done[x] for x in node.args)
                done[node] = np.sum(a * b, axis="boi".index(node.value), keepdims=True)
            else:
                done[node] = operate(host, node, done)
    return np.asarray(done[root], float)


def arrays(rng: np.random.Generator, **axes: str) -> dict[str, np.ndarray]:
    """A random array for each name, along its axes."""
    return {name: rng.standard_normal(shape(letters)) for name, letters in axes.items()}
