"""The small networks that compute sub-models.

A ``SubNetwork`` is compiled once for all sub-models of one shape: ``gather`` copies the weights of
one into it, ``step`` computes their gradients, ``add`` and ``update`` apply these to the whole
network. All of it runs on tapes, at indices that change with every draw.

Source: Yoon 2016, section 3; dropped connections after Wan et al. 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from horn import random
from horn._kernels.engine import Tape, View
from horn.backends import Array, Setup
from horn.backends._compiled import CompiledEngine
from horn.backends._formulas import Formulas
from horn.backends.kernels import Runner
from horn.data import Dataset
from horn.ir import Op, load, make, select
from horn.network import Network
from horn.optimizers import SGD, Optimizer, Updated
from horn.sub_models.whole_network import (
    COUNT,
    MASK,
    MEAN,
    NORM,
    SUM,
    ZERO,
    ArrayLayout,
    WholeNetwork,
    layouts,
)

# Draws of connections have keys of their own, far from those of layers and of membership.
CONNECTIONS = 2 << 20
GRADIENT = "gradient"


@dataclass(frozen=True)
class KeepGradient(Optimizer):
    """An optimizer that changes nothing and keeps the gradient in its slot. inner : the job's, for
    the learning rate that neurons read.
    """

    inner: Optimizer = field(default_factory=SGD)
    slots: ClassVar[tuple[str, ...]] = (GRADIENT,)

    def rate(self, iteration: int) -> float:
        return self.inner.rate(iteration)

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        return w, {GRADIENT: g}


def gradients(engine: CompiledEngine) -> dict[str, Array]:
    """The gradients that ``KeepGradient`` has kept, by learned array."""
    ending = f"/{GRADIENT}"
    kept = {name: array for name, array in engine.arrays.items() if name.endswith(ending)}
    return {name.removesuffix(ending): array for name, array in kept.items()}


class _Engine(CompiledEngine):
    """The engine of a small network, with empty arrays."""

    runner = Runner

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        dtype = np.dtype(self.setup.dtype)
        learned: dict[str, Array] = {}
        states: dict[str, Array] = {}
        for layout in layouts(self.network, True).values():
            array = np.zeros([self.network.layers[k].size for k in layout.layers], dtype)
            layer = self.network.layers[layout.layers[0]]
            is_state = layout.name in {f"{layer.name}.{s}" for s in layer.states}
            (states if is_state else learned)[layout.name] = array
        return learned, states


class SubNetwork:
    """The sub-models of one shape. sizes : neurons of each layer. batch_size : the most samples of
    one of them.

    ``gradients`` and ``states`` are those of the last ``step``.
    """

    def __init__(
        self,
        parent: WholeNetwork,
        sizes: Mapping[str, int],
        batch_size: int,
        data: Dataset,
        threads: int | None,
        dropconnect: float,
    ) -> None:
        job = parent.job
        self.parent, self.dropconnect = parent, dropconnect
        changes = {name: {"size": size} for name, size in sizes.items()}
        network = job.network.rebuilt(changes=changes)
        keep = KeepGradient(inner=job.optimizer)
        setup = Setup(network, keep, job.target, batch_size, job.dtype, threads)
        self.engine = engine = _Engine(setup)
        engine.bind(data)
        runner = engine.training_runner
        assert isinstance(runner, Runner)
        indices = {n: b for n, b in runner.program.buffers.items() if b.value[:1] == ("index",)}
        self.numbers = [
            (*b.value[1:], runner.arrays[n]) for n, b in indices.items() if n in runner.arrays
        ]
        self.gradients = gradients(engine)
        self.states = {name: engine.arrays[name] for name in parent.states}
        self.tape = Tape(np.dtype(job.dtype), runner.tape.n_threads)
        self.formulas = Formulas(self.tape)
        self.places, self.present = self._append_places(network)
        self.draw = self.tape.dim(2**32 - 1)
        self.masks: dict[str, Array] = {}
        self.samples: list[tuple[Array, Array]] = []
        self.norms: dict[str, Array] = {}
        parent.share(list(self.gradients))
        self._append(engine.arrays)

    def _append_places(self, network: Network) -> tuple[dict[int, Array], dict[int, Array]]:
        """Append the passes that make the neurons' indices from masks. By hidden layer: the indices
        in the parent, and the masks. The tape then reads and writes whole vectors by bits of the
        masks, three times as fast as one number after the other.
        """
        places, present = {}, {}
        for layer in network.layers:
            if layer.kind == "hidden":
                n = self.parent.job.network.layers[layer.index].size
                present[layer.index] = mask = np.zeros(n, np.uint8)
                kept = np.zeros(n + 1, np.int32)
                self.tape.live(mask, kept, self.tape.dim(n), label=f"{layer.name}, places")
                places[layer.index] = kept[: layer.size]
        return places, present

    def _append(self, arrays: Mapping[str, Array]) -> None:
        """Append everything else that runs on the tape: draws and gathers, norms, updates."""
        parent, layouts = self.parent, self.parent.layouts
        if self.dropconnect < 1.0:
            for name in self.gradients:
                if layouts[name].link >= 0:
                    self._append_mask(layouts[name])
        for name, whole in {**parent.learned, **parent.states}.items():
            layout = layouts[name]
            array, node = arrays[name], load(name, layout.letters)
            views = {name: self._view(whole, layout)}
            if name in self.masks:
                views[MASK] = View(self.masks[name], layout.letters)
                node = node * load(MASK, layout.letters)
            axes = dict(zip(layout.letters, array.shape, strict=True))
            self.formulas.append(axes, [(View(array, layout.letters), node)], views, label=name)
        shared = [layouts[name] for name in self.gradients if not layouts[name].is_own]
        own = [layouts[name] for name in self.gradients if layouts[name].is_own]
        # of gather, norms, sums, updates
        self.bounds = [len(self.present) + len(self.masks), len(self.tape)]
        for layout in own:
            self._append_update(layout, norm=True)
        self.bounds.append(len(self.tape))
        for layout in shared:
            self._append_sum(layout)
        self.bounds.append(len(self.tape))
        for layout in own:
            self._append_update(layout, norm=False)
        self.bounds.append(len(self.tape))

    def _view(self, whole: Array, layout: ArrayLayout) -> View:
        return View(whole, layout.letters, self._index(layout), ascending=True)

    def _index(self, layout: ArrayLayout) -> dict[str, Array]:
        return {
            letter: self.places[k]
            for letter, k in zip(layout.letters, layout.layers, strict=True)
            if k in self.places
        }

    def _append_mask(self, layout: ArrayLayout) -> None:
        """Append the draw of a link's mask of connections: by sub-model, draw, and the neurons'
        numbers in the sub-model.
        """
        shape = self.gradients[layout.name].shape
        mask = self.masks[layout.name] = np.ones(shape, self.gradients[layout.name].dtype)
        first, samples = np.arange(shape[1], dtype=np.uint64), np.zeros(shape[1], np.uint64)
        self.samples.append((first, samples))
        network = self.parent.job.network
        self.tape.draw(
            mask.T, "bernoulli", key=random.key(network.seed, CONNECTIONS + layout.layers[0]),
            site=layout.link, iteration=self.draw, samples=samples, below=self.dropconnect,
            label=f"{layout.name}, connections",
        )  # fmt: skip

    def _append_update(self, layout: ArrayLayout, norm: bool) -> None:
        name, letters = layout.name, layout.letters
        gradient = self.gradients[name]
        more = {MEAN: View(gradient, letters)}
        if name in self.masks:
            more[MASK] = View(self.masks[name], letters)
        if norm:
            self.norms[name] = np.zeros(len(gradient), gradient.dtype)
            more[NORM] = View(self.norms[name], "o")
        self.parent.append(self.formulas, layout, more, norm, self._index(layout))

    def _append_sum(self, layout: ArrayLayout) -> None:
        parent, name, letters = self.parent, layout.name, layout.letters
        gradient = self.gradients[name]
        views = {MEAN: View(gradient, letters)}
        g = load(MEAN, letters)
        if name in self.masks:
            views[MASK] = View(self.masks[name], letters)
            g = select(make(Op.NE, load(MASK, letters), ZERO), g, ZERO)
        views[SUM] = total = self._view(parent.sums[name], layout)
        outputs = [(total, load(SUM, letters) + g)]
        if name in self.masks:
            views[COUNT] = count = self._view(parent.counts[name], layout)
            outputs.append((count, load(COUNT, letters) + load(MASK, letters)))
        axes = dict(zip(letters, gradient.shape, strict=True))
        self.formulas.append(axes, outputs, views, label=f"{name}, sum")

    # --- one sub-model

    def place(self, members: Sequence[Array], number: int, draw: int) -> None:
        """Become sub-model ``number``, with these neurons of each layer."""
        for k, present in self.present.items():
            present[...] = 0
            present[members[k]] = 1
        for k, first, array in self.numbers:
            array[...] = members[k] + first
        if self.masks:
            self.tape.dims[self.draw.index] = draw & 0xFFFFFFFF
            for first, samples in self.samples:
                np.add(first, np.uint64(number << 32), out=samples)
        self.tape.run(0, self.bounds[0])

    def gather(self) -> None:
        self.tape.run(self.bounds[0], self.bounds[1])

    def step(self, rows: Array, iteration: int, first_sample: int) -> float:
        """Compute the gradients; return the mean loss of the rows."""
        return self.engine.step(rows, iteration=iteration, first_sample=first_sample)

    def squares(self) -> float:
        """The sum of the squares of the gradients that only this sub-model has."""
        self.formulas.set(**self.parent.scalars)
        self.tape.run(self.bounds[1], self.bounds[2])
        return sum(float(a.sum(dtype=np.float64)) for a in self.norms.values())

    def add(self) -> None:
        self.tape.run(self.bounds[2], self.bounds[3])

    def update(self) -> None:
        self.formulas.set(**self.parent.scalars)
        self.tape.run(self.bounds[3], self.bounds[4])
