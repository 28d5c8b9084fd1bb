"""A server's pieces and their updates: the optimizer's formula, as in a group's program, in one
compiled pass over a piece. A pass of NumPy per operation takes six times as long for Adagrad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from horn._kernels.engine import Tape, View
from horn.backends import Array
from horn.backends._formulas import Formulas
from horn.ir import const, load
from horn.ir.formulas import trace_update
from horn.ir.tracing import trace
from horn.optimizers import Optimizer
from horn.parameter_server.pieces import ParameterPiece

GRADIENT, W = "#gradient", "#w"
ALONG = "o"


class PieceUpdate:
    """Updates ``w`` and ``slots`` of one piece, flat, in place. decays : whether ``w`` decays."""

    def __init__(
        self, optimizer: Optimizer, w: Array, slots: Mapping[str, Array], decays: bool
    ) -> None:
        self.w, self.slots = w, dict(slots)
        self.tape = Tape(w.dtype, 1)
        self.formulas = Formulas(self.tape)
        o, gradient = optimizer, np.zeros_like(w)
        arrays = {W: w, GRADIENT: gradient} | (self.slots if o.kept_slots else {})
        loads = {name: load(name, ALONG) for name in arrays}
        g = trace(o.prepared, loads[GRADIENT], loads[W] if decays else None)
        before = {slot: loads.get(slot, const(0.0)) for slot in o.slots}
        new, memory = trace_update(o, loads[W], g, before)
        after = {W: new} | {slot: memory[slot] for slot in o.slots if slot in loads}
        views = {name: View(array, ALONG) for name, array in arrays.items()}
        outputs = [(views[n], value) for n, value in after.items() if value is not loads[n]]
        if outputs:
            self.formulas.append({ALONG: len(w)}, outputs, views, label="server")
        self.gradient = self.tape.anchor(gradient)

    def __call__(self, gradient: Array, rate: float, updates: int) -> None:
        """Apply a contiguous gradient. updates : their number, this one included."""
        self.gradient.settle(gradient)
        self.formulas.set(learning_rate=rate, updates=float(updates))
        self.tape.run()


@dataclass
class ServerPiece:
    """A piece on its server: values, slots and clocks. before : of a durable synchronous server,
    the values of one clock ago, for a group that ended while it pushed some of its pieces.
    ``copied`` and ``before`` never change: all that were given one version have one array.
    """

    piece: ParameterPiece
    w: Array
    slots: dict[str, Array]
    n_updates: int = 0
    n_pushes: list[int] = field(default_factory=list)  # by group
    pulled: list[int] = field(default_factory=list)  # by group: n_updates when it pulled last
    waiting: dict[int, dict[int, tuple[int, Array]]] = field(default_factory=dict)  # clock, group
    before: dict[int, Array] = field(default_factory=dict)  # by clock
    update: PieceUpdate | None = None
    _copy: Array | None = None  # of ``w``, until the next update

    def copied(self) -> Array:
        """A copy of the values, the same one until they change."""
        if self._copy is None:
            self._copy = self.w.copy()
        return self._copy

    def step(self, optimizer: Optimizer, gradient: Array, scale: float) -> None:
        """Make one update. scale : of the rate."""
        self._copy = None
        rate = optimizer.rate(self.n_updates) * scale
        self.n_updates += 1
        if self.update is None or self.update.w is not self.w:
            self.update = PieceUpdate(optimizer, self.w, self.slots, self.piece.decays)
        self.update(np.ascontiguousarray(gradient), rate, self.n_updates)

    def apply_waiting(self, optimizer: Optimizer, below: float, *, keeps: bool = False) -> int:
        """Make one update for each clock below this, by the mean of the waiting gradients over all
        samples, in the order of groups. Return the number of pushes that were applied. keeps :
        whether values of before the last one are kept.
        """
        n_applied = 0
        for clock in sorted(clock for clock in self.waiting if clock < below):
            found = self.waiting.pop(clock)
            n_applied += len(found)
            n = sum(samples for samples, _ in found.values())
            if keeps:
                self.before = {clock: self.copied()}
            if n:
                total = np.zeros_like(self.w)
                for _, (samples, gradient) in sorted(found.items()):
                    total += (samples / n) * gradient
                self.step(optimizer, total, 1.0)
        return n_applied


@dataclass(frozen=True)
class Policy:
    """A strategy's settings for servers; as in Downpour, but warm_start in pushes. averages :
    pushes are changes, and count divided by the number of groups.
    """

    max_staleness: int | None = None
    scale_by_staleness: bool = False
    warm_start: int = 0
    averages: bool = False
