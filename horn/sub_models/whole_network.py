"""The whole network: its arrays and slots, and the merge of the sub-models' gradients.

A weight that at most one sub-model can have is updated by that one's gradient, at the live indices
only (``SubNetwork.update``). Where several may have it, gradients are summed, in the order of the
sub-models, and ``finish`` updates by the mean. Weights and slots that no sub-model had stay as they
are. Source: Yoon 2016, section 3 (batch averaging).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from horn._kernels.engine import Tape, View
from horn.backends import Array
from horn.backends._formulas import Formulas
from horn.ir import Node, Op, Scalar, const, load, make, select
from horn.ir.formulas import trace_update
from horn.ir.tracing import trace
from horn.job import Job
from horn.network import Network

# Operands of formulas beside weights and slots, whose names have no #.
MEAN, SUM, COUNT, MASK, NORM = "#mean", "#sum", "#count", "#mask", "#norm"
ZERO = const(0.0)


@dataclass(frozen=True)
class ArrayLayout:
    """The layout of an array. layers : along each axis of it. link : its position among the
    receiver's, -1 if it is no weight. is_own : at most one sub-model has any number of it.
    """

    name: str
    layers: tuple[int, ...]
    link: int
    is_own: bool

    @property
    def letters(self) -> str:
        return "oi"[: len(self.layers)]


def layouts(network: Network, is_disjoint: bool) -> dict[str, ArrayLayout]:
    found = {}
    for layer in network.layers[1:]:
        axes: dict[str, tuple[int, ...]]
        axes, links = {}, {}
        for position, link in enumerate(layer.links):
            for name in link.weights.values():
                axes[name], links[name] = (layer.index, link.source.index), position
        states = (f"{layer.name}.{name}" for name in layer.states)
        axes |= dict.fromkeys((*layer.vertex_shapes, *states), (layer.index,))
        for name, at in axes.items():
            is_own = is_disjoint and any(network.layers[k].kind == "hidden" for k in at)
            found[name] = ArrayLayout(name, at, links.get(name, -1), is_own)
    return found


class WholeNetwork:
    """The whole network's arrays. ``learned``, ``states`` and ``slots`` by name; the learned ones
    are as sub-models see them, not scaled for inference.
    """

    def __init__(
        self, job: Job, learned: dict[str, Array], states: dict[str, Array], is_disjoint: bool
    ) -> None:
        self.job, self.learned, self.states = job, learned, states
        self.layouts = layouts(job.network, is_disjoint)
        self.slot_names = job.optimizer.kept_slots
        self.slots = {
            f"{name}/{slot}": np.zeros_like(array)
            for name, array in learned.items()
            for slot in self.slot_names
        }
        self.updates = 0
        self.sums: dict[str, Array] = {}
        self.counts: dict[str, Array] = {}
        self.norms: dict[str, Array] = {}
        self.tape = Tape(np.dtype(job.dtype), 1)
        self.formulas = Formulas(self.tape)
        self.first_update = 0
        self.scalars: dict[str, float] = {}

    def share(self, names: Sequence[str], sums: Mapping[str, Array] | None = None) -> None:
        """Allocate the sums of arrays that several sub-models learn, once, and append their
        updates. sums : arrays to use instead.
        """
        if len(self.tape) or self.sums:
            return
        for name in names:
            if not self.layouts[name].is_own:
                array = np.zeros_like(self.learned[name]) if sums is None else sums[name]
                self.sums[name], self.counts[name] = array, np.zeros_like(array)
                self.norms[name] = np.zeros(len(array), array.dtype)
        for name in self.sums:
            self.append(self.formulas, self.layouts[name], {}, norm=True)
        self.first_update = len(self.tape)
        for name in self.sums:
            self.append(self.formulas, self.layouts[name], {}, norm=False)

    def append(
        self,
        formulas: Formulas,
        layout: ArrayLayout,
        more: Mapping[str, View],
        norm: bool,
        index: Mapping[str, Array] | None = None,
    ) -> None:
        """Append a pass that updates one array, or sums the squares of its gradient. more : the
        views of the gradient of one sub-model and its mask; by default it is the mean of the sums.
        """
        o, name, letters = self.job.optimizer, layout.name, layout.letters
        if norm and o.clip_norm is None:
            return

        def here(array: Array) -> View:
            return View(array, letters, dict(index or {}), ascending=True)

        views = {name: here(self.learned[name]), **more}
        for slot in self.slot_names:
            views[slot] = here(self.slots[f"{name}/{slot}"])
        live: Node | None = None
        if MEAN in more:
            g = load(MEAN, letters)
            if MASK in more:
                live = make(Op.NE, load(MASK, letters), ZERO)
        else:
            views[SUM], views[COUNT] = here(self.sums[name]), here(self.counts[name])
            count = load(COUNT, letters)
            g = load(SUM, letters) / make(Op.MAXIMUM, count, const(1.0))
            live = make(Op.GT, count, ZERO)
        w = load(name, letters)
        g = trace(o.prepared, g, w if layout.link >= 0 else None)
        first = next(iter(views.values()))
        lengths = zip(letters, first.array.shape, strict=True)
        axes = {a: len(index[a]) if index and a in index else n for a, n in lengths}
        if norm:
            square = g * g if live is None else select(live, g * g, ZERO)
            out = View(more[NORM].array if NORM in more else self.norms[name], "o")
            reduce = ("sum", "i") if letters == "oi" else None
            formulas.append(axes, [(out, square)], views, reduce, f"{name}, norm")
            return
        if o.clip_norm is not None:
            g = g * Scalar("clip")
        remembered = {slot: load(slot, letters) for slot in self.slot_names}
        slots = {slot: remembered.get(slot, ZERO) for slot in o.slots}
        new, memory = trace_update(o, w, g, slots)
        results = [(views[name], w, new)]
        results += [(views[slot], old, memory[slot]) for slot, old in remembered.items()]
        outputs = [(v, new if live is None else select(live, new, old)) for v, old, new in results]
        formulas.append(axes, outputs, views, label=name)

    def begin(self, learning_rate: float) -> None:
        self.updates += 1
        self.scalars = {
            "learning_rate": learning_rate, "updates": float(self.updates), "clip": 1.0
        }  # fmt: skip

    def squares(self) -> float:
        """The sum of the squares of shared gradients."""
        self.formulas.set(**self.scalars)
        self.tape.run(0, self.first_update)
        return sum(float(a.sum(dtype=np.float64)) for a in self.norms.values())

    def count(self, members: Sequence[Sequence[Array]], dropconnect: float) -> None:
        """Count the sub-models that have each shared number. members : of each sub-model that takes
        part, by layer. With dropped connections sub-models add to the counts themselves.
        """
        layers = self.job.network.layers
        here = [np.zeros((len(members), layer.size), self.job.dtype) for layer in layers]
        for number, by_layer in enumerate(members):
            for whole, some in zip(here, by_layer, strict=True):
                whole[number, some] = 1.0
        for name, counts in self.counts.items():
            layout = self.layouts[name]
            if len(layout.layers) == 1:
                np.sum(here[layout.layers[0]], axis=0, out=counts)
            elif dropconnect == 1.0:
                np.matmul(here[layout.layers[0]].T, here[layout.layers[1]], out=counts)
            else:
                counts.fill(0)

    def finish(self) -> None:
        if self.sums:
            self.formulas.set(**self.scalars)
            self.tape.run(self.first_update, len(self.tape))

    def clear(self) -> None:
        for array in self.sums.values():
            array.fill(0)

    def merge_states(self, parts: Sequence[tuple[Sequence[Array], Mapping[str, Array]]]) -> None:
        """Make each State the mean over the sub-models that had its neuron. parts : of each
        sub-model that took part its members, by layer, and its States.
        """
        for name, whole in self.states.items():
            (layer,) = self.layouts[name].layers
            total, count = np.zeros(len(whole)), np.zeros(len(whole))
            for members, states in parts:
                total[members[layer]] += states[name]
                count[members[layer]] += 1
            here = count > 0
            whole[here] = total[here] / count[here]
