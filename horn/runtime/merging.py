"""The network that sub-models are cut from, and the small networks that train in their place.

``Parent`` has every array whole, and what the optimizer remembers. A ``Small`` network is compiled
once for all sub-models of one shape: ``gather`` brings a sub-model's weights into it, ``step``
computes their gradients, ``apply`` brings those home. All of it runs on tapes, at places that
change with every draw.

A weight that at most one sub-model can have is updated there and then, at the live places only.
Where several may have it, gradients are summed and counted, in the order of the sub-models, and
``finish`` updates by the mean. Source: Yoon 2016, section 3 (batch averaging).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from horn import random
from horn._kernels.engine import Tape, View
from horn.backends import Array, Setup
from horn.backends.compiled import CompiledEngine
from horn.backends.formulas import Formulas
from horn.backends.kernels import Runner
from horn.compiler import ir
from horn.compiler.ir import Node, Op, Scalar, const, load, make, select
from horn.data import Dataset
from horn.job import Job
from horn.network import Network
from horn.optimizers import SGD, Optimizer, Slots
from horn.schedules import Schedule

# Draws of connections have keys of their own, far from those of layers and of membership.
CONNECTIONS = 2 << 20
GRADIENT = "gradient"
# What formulas load beside weights and slots, whose names have no #.
MEAN, SUM, COUNT, MASK, NORM = "#mean", "#sum", "#count", "#mask", "#norm"
ZERO = const(0.0)


@dataclass(frozen=True)
class Keep(Optimizer):
    """Changes nothing: the gradient is kept for others to use."""

    learning_rate: float | Schedule = 0.0
    slots: ClassVar[tuple[str, ...]] = (GRADIENT,)

    def update(
        self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any
    ) -> tuple[Any, Slots]:
        return w, {GRADIENT: g}


@dataclass(frozen=True)
class Home:
    """Where an array belongs. layers : along each of its axes. link : its position among the
    receiver's, -1 if it is no weight. is_own : at most one sub-model has any number of it.
    """

    name: str
    layers: tuple[int, ...]
    link: int
    is_own: bool

    @property
    def letters(self) -> str:
        return "oi"[: len(self.layers)]


def homes(network: Network, is_disjoint: bool) -> dict[str, Home]:
    """Of all learned arrays and States."""
    found = {}
    for layer in network.layers[1:]:
        axes: dict[str, tuple[int, ...]]
        axes = {link.weight: (layer.index, link.source.index) for link in layer.links}
        links = {link.weight: position for position, link in enumerate(layer.links)}
        if layer.bias is not None:
            axes[layer.bias_name] = (layer.index,)
        for name in (*layer.parameters, *layer.states):
            axes[f"{layer.name}.{name}"] = (layer.index,)
        for name, at in axes.items():
            is_own = is_disjoint and any(network.layers[k].kind == "hidden" for k in at)
            found[name] = Home(name, at, links.get(name, -1), is_own)
    return found


class Parent:
    """The whole network's arrays. ``learned``, ``states`` and ``slots`` by name; the learned ones
    are as sub-models see them, not scaled for inference.
    """

    def __init__(
        self, job: Job, learned: dict[str, Array], states: dict[str, Array], is_disjoint: bool
    ) -> None:
        self.job, self.learned, self.states = job, learned, states
        self.homes = homes(job.network, is_disjoint)
        o = job.optimizer
        idle = isinstance(o, SGD) and type(o) is SGD and not o.momentum
        self.slot_names = () if idle else o.slots
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

    def share(self, names: Sequence[str]) -> None:
        """Make room for the sums of what several sub-models learn, once, and its updates."""
        if len(self.tape) or self.sums:
            return
        for name in names:
            if not self.homes[name].is_own:
                like = self.learned[name]
                self.sums[name], self.counts[name] = np.zeros_like(like), np.zeros_like(like)
                self.norms[name] = np.zeros(len(like), like.dtype)
        for name in self.sums:
            self.append(self.formulas, self.homes[name], {}, norm=True)
        self.first_update = len(self.tape)
        for name in self.sums:
            self.append(self.formulas, self.homes[name], {}, norm=False)

    def append(
        self,
        formulas: Formulas,
        home: Home,
        more: Mapping[str, View],
        norm: bool,
        index: Mapping[str, Array] | None = None,
    ) -> None:
        """The update of one array, or the squares of its gradient, as a pass. more : the views of
        the gradient of one sub-model and its mask; without, it is the mean of the sums.
        """
        o, name, letters = self.job.optimizer, home.name, home.letters
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
        if o.weight_decay and home.link >= 0:
            g = g + o.weight_decay * w
        if o.clip_value is not None:
            g = make(Op.MINIMUM, make(Op.MAXIMUM, g, const(-o.clip_value)), const(o.clip_value))
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
        new, memory = o.update(w, g, slots, Scalar("learning_rate"), Scalar("updates"))
        results = [(name, w, new)]
        results += [(slot, old, ir.lift(memory[slot])) for slot, old in remembered.items()]
        if live is not None:
            results = [(what, old, select(live, value, old)) for what, old, value in results]
        outputs = [(views[what], value) for what, _, value in results]
        formulas.append(axes, outputs, views, label=name)

    def begin(self, learning_rate: float) -> None:
        """An update begins: what its formulas read."""
        self.updates += 1
        self.scalars = {
            "learning_rate": learning_rate, "updates": float(self.updates), "clip": 1.0
        }  # fmt: skip

    def squares(self) -> float:
        """Of what is shared, at the places that took part."""
        self.formulas.set(**self.scalars)
        self.tape.run(0, self.first_update)
        return sum(float(a.sum(dtype=np.float64)) for a in self.norms.values())

    def count(self, members: Sequence[Sequence[Array]], dropconnect: float) -> None:
        """How many sub-models have each number that is shared; members : of each sub-model that
        takes part, by layer. Where connections are dropped, sub-models count for themselves.
        """
        layers = self.job.network.layers
        here = [np.zeros((len(members), layer.size), self.job.dtype) for layer in layers]
        for number, by_layer in enumerate(members):
            for whole, some in zip(here, by_layer, strict=True):
                whole[number, some] = 1.0
        for name, counts in self.counts.items():
            home = self.homes[name]
            if len(home.layers) == 1:
                np.sum(here[home.layers[0]], axis=0, out=counts)
            elif dropconnect == 1.0:
                np.matmul(here[home.layers[0]].T, here[home.layers[1]], out=counts)
            else:
                counts.fill(0)

    def finish(self) -> None:
        """Update what is shared."""
        if self.sums:
            self.formulas.set(**self.scalars)
            self.tape.run(self.first_update, len(self.tape))
        for name in self.sums:
            self.sums[name].fill(0)


class _Engine(CompiledEngine):
    """A small network's engine; its arrays are filled by others."""

    runner = Runner

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        dtype = np.dtype(self.setup.dtype)
        learned: dict[str, Array] = {}
        states: dict[str, Array] = {}
        for home in homes(self.network, True).values():
            array = np.zeros([self.network.layers[k].size for k in home.layers], dtype)
            layer = self.network.layers[home.layers[0]]
            is_state = home.name in {f"{layer.name}.{s}" for s in layer.states}
            (states if is_state else learned)[home.name] = array
        return learned, states


class Small:
    """The sub-models of one shape. sizes : neurons of each layer. batch_size : the most samples of
    one of them.

    ``gradients`` and ``states`` are what the last ``step`` found.
    """

    def __init__(
        self,
        parent: Parent,
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
        keep = Keep(job.optimizer.learning_rate)
        setup = Setup(network, keep, job.target, batch_size, job.dtype, threads)
        self.engine = engine = _Engine(setup)
        engine.bind(data)
        assert engine._training is not None
        runner = engine._training[0]
        assert isinstance(runner, Runner)
        self.places = [np.arange(layer.size, dtype=np.int32) for layer in network.layers]
        self.numbers = {
            k: runner.arrays[f"layer{k}#index"]
            for k in range(len(self.places))
            if f"layer{k}#index" in runner.arrays
        }
        ending = f"/{GRADIENT}"
        self.gradients = {
            name.removesuffix(ending): a
            for name, a in engine.arrays.items()
            if name.endswith(ending)
        }
        self.states = {name: engine.arrays[name] for name in parent.states}
        self.tape = Tape(np.dtype(job.dtype), runner.tape.n_threads)
        self.formulas = Formulas(self.tape)
        self.draw = self.tape.dim(2**32 - 1)
        self.masks: dict[str, Array] = {}
        self.samples: list[tuple[Array, Array]] = []
        self.norms: dict[str, Array] = {}
        parent.share(list(self.gradients))
        self._append(engine.arrays)

    @property
    def n_weights(self) -> dict[str, int]:
        """How many numbers of each learned array a sub-model has: what it computes, and sends."""
        return {name: array.size for name, array in self.gradients.items()}

    def _append(self, arrays: Mapping[str, Array]) -> None:
        """Everything that runs on the tape: draws and gathers, norms, updates."""
        parent, homes = self.parent, self.parent.homes
        if self.dropconnect < 1.0:
            for name in self.gradients:
                if homes[name].link >= 0:
                    self._append_mask(homes[name])
        for name, whole in {**parent.learned, **parent.states}.items():
            home = homes[name]
            array, node = arrays[name], load(name, home.letters)
            views = {name: self._view(whole, home)}
            if name in self.masks:
                views[MASK] = View(self.masks[name], home.letters)
                node = node * load(MASK, home.letters)
            axes = dict(zip(home.letters, array.shape, strict=True))
            self.formulas.append(axes, [(View(array, home.letters), node)], views, label=name)
        shared = [name for name in self.gradients if not homes[name].is_own]
        own = [name for name in self.gradients if homes[name].is_own]
        self.bounds = [len(self.masks), len(self.tape)]  # of gather, norms, sums, updates
        for name in own:
            self._append_update(homes[name], norm=True)
        self.bounds.append(len(self.tape))
        for name in shared:
            self._append_sum(homes[name])
        self.bounds.append(len(self.tape))
        for name in own:
            self._append_update(homes[name], norm=False)
        self.bounds.append(len(self.tape))

    def _view(self, whole: Array, home: Home) -> View:
        """An array of the parent at this sub-model's places."""
        return View(whole, home.letters, self._index(home), ascending=True)

    def _index(self, home: Home) -> dict[str, Array]:
        layers = self.parent.job.network.layers
        return {
            letter: self.places[k]
            for letter, k in zip(home.letters, home.layers, strict=True)
            if layers[k].kind == "hidden"
        }

    def _append_mask(self, home: Home) -> None:
        """The connections of a link that are there: named by sub-model, draw, and the neurons'
        numbers in the sub-model.
        """
        shape = self.gradients[home.name].shape
        mask = self.masks[home.name] = np.ones(shape, self.gradients[home.name].dtype)
        first, samples = np.arange(shape[1], dtype=np.uint64), np.zeros(shape[1], np.uint64)
        self.samples.append((first, samples))
        network = self.parent.job.network
        self.tape.draw(
            mask.T, "bernoulli", key=random.key(network.seed, CONNECTIONS + home.layers[0]),
            site=home.link, iteration=self.draw, samples=samples, below=self.dropconnect,
            label=f"{home.name}, connections",
        )  # fmt: skip

    def _append_update(self, home: Home, norm: bool) -> None:
        name, letters = home.name, home.letters
        gradient = self.gradients[name]
        more = {MEAN: View(gradient, letters)}
        if name in self.masks:
            more[MASK] = View(self.masks[name], letters)
        if norm:
            self.norms[name] = np.zeros(len(gradient), gradient.dtype)
            more[NORM] = View(self.norms[name], "o")
        self.parent.append(self.formulas, home, more, norm, self._index(home))

    def _append_sum(self, home: Home) -> None:
        parent, name, letters = self.parent, home.name, home.letters
        gradient = self.gradients[name]
        views = {MEAN: View(gradient, letters)}
        g = load(MEAN, letters)
        if name in self.masks:
            views[MASK] = View(self.masks[name], letters)
            g = select(make(Op.NE, load(MASK, letters), ZERO), g, ZERO)
        views[SUM] = total = self._view(parent.sums[name], home)
        outputs = [(total, load(SUM, letters) + g)]
        if name in self.masks:
            views[COUNT] = count = self._view(parent.counts[name], home)
            outputs.append((count, load(COUNT, letters) + load(MASK, letters)))
        axes = dict(zip(letters, gradient.shape, strict=True))
        self.formulas.append(axes, outputs, views, label=f"{name}, sum")

    # --- one sub-model

    def place(self, members: Sequence[Array], number: int, draw: int) -> None:
        """From now on this is sub-model ``number``, which has these neurons of each layer."""
        for places, some in zip(self.places, members, strict=True):
            places[...] = some
        for k, array in self.numbers.items():
            array[...] = members[k]
        if self.masks:
            self.tape.dims[self.draw.index] = draw & 0xFFFFFFFF
            for first, samples in self.samples:
                np.add(first, np.uint64(number << 32), out=samples)
            self.tape.run(0, len(self.masks))

    def gather(self) -> None:
        """Bring the sub-model's weights and States here."""
        self.tape.run(self.bounds[0], self.bounds[1])

    def step(self, rows: Array, iteration: int, first_sample: int) -> float:
        """The mean loss of the rows, and the gradients."""
        return self.engine.step(rows, iteration=iteration, first_sample=first_sample)

    def squares(self) -> float:
        """Of the gradients that are this sub-model's alone."""
        self.formulas.set(**self.parent.scalars)
        self.tape.run(self.bounds[1], self.bounds[2])
        return sum(float(a.sum(dtype=np.float64)) for a in self.norms.values())

    def add(self) -> None:
        """Add the gradients that are not this sub-model's alone to the sums."""
        self.tape.run(self.bounds[2], self.bounds[3])

    def update(self) -> None:
        """Update what is this sub-model's alone."""
        self.formulas.set(**self.parent.scalars)
        self.tape.run(self.bounds[3], self.bounds[4])
