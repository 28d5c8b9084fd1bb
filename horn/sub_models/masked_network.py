"""Overlapping sub-models in one pass over the whole network, with masks for the neurons that the
sub-model of a sample does not have. Small networks compute less, but copy every weight of every
sub-model and its gradient. Source: Yoon 2016, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from horn import ir
from horn.backends import Array, Setup
from horn.backends._compiled import CompiledEngine
from horn.backends.kernels import Runner
from horn.data import Dataset
from horn.ir import Op
from horn.language.layers import Reading
from horn.network import Network
from horn.program import ROW_WEIGHT, members_of
from horn.sub_models.sub_network import GRADIENT, KeepGradient, gradients
from horn.sub_models.whole_network import WholeNetwork

# Copying a weight to a small network and its gradient back costs as much as the arithmetic of some
# 60 samples (784-512-10: 5.1 ns in a sub-model of 5 samples, 0.08 ns a sample with masks). Fewer
# here, for masks to be faster for certain (docs/notes/0031).
MOVED = 40


def can_mask(network: Network) -> bool:
    """Whether silent neurons have no other effect: then masks compute what small networks do."""
    reading = Reading()
    for layer in network.layers[1:]:
        receivers = network.receivers(layer)
        forward, backward, interlayer = reading.layer(layer, training=True, receivers=receivers)
        if layer.states or forward.pushes or backward is not None:
            return False
        if layer.kind != "hidden":
            continue
        # Draws go by a neuron's place in its sub-model.
        if interlayer is not None or ir.contains(forward.output, Op.DRAW, Op.MESSAGE_DRAW):
            return False
    return True


def is_faster(network: Network, sizes: Sequence[Mapping[str, int]], batch_size: int) -> bool:
    """Whether masks beat small networks; by the network alone, so that every machine trains alike.
    sizes : of each sub-model, the neurons of its hidden layers.
    """
    rows = -(-batch_size // len(sizes))
    links = [(x, link.source, len(link.names)) for x in network.layers[1:] for link in x.links]

    def n_weights(its: Mapping[str, int]) -> int:
        return sum(its.get(a.name, a.size) * its.get(b.name, b.size) * n for a, b, n in links)

    moved = sum(n_weights(some) * (MOVED + rows) for some in sizes)
    return n_weights({}) * (MOVED + batch_size) < moved


class _Engine(CompiledEngine):
    """The engine of the whole network on the parent's own arrays; it also sums the gradients."""

    runner = Runner

    def __init__(self, setup: Setup, learned: dict[str, Array], sums: Mapping[str, Array]) -> None:
        self.learned = learned
        layers = setup.network.layers
        self.masked = frozenset(layer.index for layer in layers if layer.kind == "hidden")
        super().__init__(setup)
        self.arrays |= {f"{name}/{GRADIENT}": array for name, array in sums.items()}

    def initial(self) -> tuple[dict[str, Array], dict[str, Array]]:
        return self.learned, {}


class MaskedNetwork:
    """All sub-models of a single task, in one network. ``step`` leaves the sums of their gradients
    in the parent, for it to ``finish``.
    """

    def __init__(self, parent: WholeNetwork, data: Dataset, threads: int | None) -> None:
        job = parent.job
        size = min(job.batch_size, len(job.data))
        keep = KeepGradient(inner=job.optimizer)
        setup = Setup(job.network, keep, job.target, size, job.dtype, threads)
        self.engine = engine = _Engine(setup, parent.learned, parent.sums)
        engine.bind(data)
        runner = engine.training_runner
        assert isinstance(runner, Runner)
        self.runner, self.loss = runner, runner.program.loss
        # The engine may have moved them to memory that suits its kernels.
        parent.learned.update({name: engine.arrays[name] for name in parent.learned})
        sums = gradients(engine)
        parent.share(list(sums), sums)
        self.masks = {
            k: runner.target_array(members_of(job.network.layers[k])) for k in engine.masked
        }
        self.weights = runner.target_array(ROW_WEIGHT)
        self.placed: tuple[int, tuple[int, ...]] = (-1, ())  # the draw and sizes of the masks

    def place(self, draw: int, members: Sequence[Sequence[Array]], sizes: Array) -> None:
        """Set the masks of batches with ``sizes`` samples of each sub-model, one after the other.
        members : the neurons of each sub-model, by layer, in the ``draw``-th draw.
        """
        if self.placed == (placed := (draw, tuple(sizes))):
            return
        self.placed = placed
        n = int(sizes.sum())
        of = np.repeat(np.arange(len(sizes)), sizes)
        for k, mask in self.masks.items():
            has = np.zeros((len(sizes), mask.shape[1]), mask.dtype)
            for number, by_layer in enumerate(members):
                has[number, by_layer[k]] = 1.0
            mask[:n] = has[of]
        # The step's gradient is a mean over all rows, a sub-model's is the mean over its own.
        self.weights[:n] = n / sizes[of]

    def step(self, rows: Array, sizes: Array, iteration: int, first_sample: int) -> Array:
        """Compute a batch; the mean loss of each sub-model with samples, in double; else 0."""
        self.engine.step(rows, iteration=iteration, first_sample=first_sample)
        found = np.zeros(len(sizes))
        if self.loss is not None:
            losses = self.runner.value(self.loss).astype(np.float64)
            live = sizes > 0
            starts = np.cumsum(sizes) - sizes
            found[live] = np.add.reduceat(losses, starts[live]) / sizes[live]
        return found
