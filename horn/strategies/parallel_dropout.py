"""Parallel dropout: every batch trains several sub-models of the network side by side, each on its
part of the samples, and the network learns from all of them.

A sub-model has the input and the output layer whole, and some neurons of every hidden layer, drawn
at random: a small network of its own, of which only the live rows and columns are computed and
sent. Its gradient is the mean over its samples; a weight changes by the mean over the sub-models
that have it, and one that nobody has stays as it is, with its memory in the optimizer. In inference
the whole network computes, and what a connection delivers is scaled by the probability that it took
part. The trained arrays that horn hands out are scaled so: an ordinary model, which needs no
strategy.

Source: Yoon 2016, section 3. DropConnect after Wan et al. 2013, with the mean in inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from horn import random
from horn.errors import JobError
from horn.job import Job
from horn.language import derive, ir
from horn.language.ir import Op
from horn.language.layers import asks, read_layer
from horn.network import Layer, Link, Network
from horn.neuron import SynapseState, declared
from horn.optimizers import Direct
from horn.strategies import Array, Strategy, TaskEngine, Topology, in_words
from horn.topology import share

# Draws of membership have keys of their own, far from those of layers.
MEMBERS = 1 << 20


@dataclass(frozen=True)
class ParallelDropout(Strategy):
    """sub_models : how many; by default one for each task. More than there are tasks are trained in
    turns, so the answer does not depend on how many tasks there are.
    keep : None divides each hidden layer's neurons among the sub-models, sizes differing by at most
    one; a number gives each sub-model that part of every hidden layer, and sub-models overlap.
    redraw : batches until sub-models are drawn anew. dropconnect : the probability that a
    connection of a sub-model is there, drawn with the sub-models; biases always are.
    """

    sub_models: int | None = None
    keep: float | None = None
    redraw: int = 1
    dropconnect: float = 1.0

    name: ClassVar[str] = "parallel-dropout"
    is_joined: ClassVar[bool] = True
    has_messages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for what in ("sub_models", "redraw"):
            value = getattr(self, what)
            if value is None and what == "sub_models":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise JobError(
                    f"parallel-dropout: {what} must be a whole number from 1, got {value!r}"
                )
        for what in ("keep", "dropconnect"):
            value = getattr(self, what)
            if value is None and what == "keep":
                continue
            if not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
                raise JobError(
                    f"parallel-dropout: {what} is the probability to keep, above 0 and up to 1; "
                    f"got {value!r}"
                )

    def n_sub_models(self, topology: Topology) -> int:
        return self.sub_models or topology.n_workers

    def check(self, job: Job, topology: Topology) -> None:
        super().check(job, topology)
        n = self.n_sub_models(topology)
        size = min(job.batch_size, len(job.data))
        if isinstance(job.optimizer, Direct):
            raise JobError(
                "parallel-dropout needs gradients, but Direct adds what neurons push; use allreduce"
            )
        if n > size:
            raise JobError(
                f"parallel-dropout: {n} sub-models need as many samples in every batch, but it has "
                f"{size}; use a larger batch_size or fewer sub_models"
            )
        _check_network(job.network)
        for layer in hidden(job.network):
            if self.keep is None and n > layer.size:
                raise JobError(
                    f"parallel-dropout: {n} disjoint sub-models cannot divide the {layer.size} "
                    f"neurons of {layer.name}; use fewer sub_models, or keep=0.5, which overlap"
                )
            if self.keep is not None and not round(self.keep * layer.size):
                raise JobError(
                    f"parallel-dropout: keep={self.keep} leaves none of the {layer.size} neurons "
                    f"of {layer.name}; raise it"
                )
        if n > 1 or (self.keep or 1.0) < 1.0 or self.dropconnect < 1.0:
            _check_parts(job.network)

    def resumes_as(self, topology: Topology) -> str:
        return f"{in_words(self)}, {self.n_sub_models(topology)} sub-models"

    def engine(self, context: Any) -> TaskEngine:
        from horn.sub_models.engine import SubModels

        return SubModels(self, context)

    # --- who takes part

    def sizes(self, size: int, n_sub_models: int) -> list[int]:
        """How many neurons of a hidden layer each sub-model has."""
        if self.keep is not None:
            return [round(self.keep * size)] * n_sub_models
        shares = (share(size, k, n_sub_models) for k in range(n_sub_models))
        return [end - first for first, end in shares]

    def members(self, network: Network, layer: Layer, n_sub_models: int, draw: int) -> list[Array]:
        """The neurons of a layer that each sub-model has, int32 and ascending, in the ``draw``-th
        draw of sub-models. The same whoever asks.
        """
        if layer.kind != "hidden":
            return [np.arange(layer.size, dtype=np.int32)] * n_sub_models
        sizes = self.sizes(layer.size, n_sub_models)
        if self.keep is None:
            ends = np.cumsum(sizes)
            (order,) = _orders(network.seed, layer, [random.SHARED], draw)
            chosen: Sequence[Array] = np.split(order, ends[:-1])
        else:
            orders = _orders(network.seed, layer, range(n_sub_models), draw)
            chosen = [order[:n] for order, n in zip(orders, sizes, strict=True)]
        return [np.sort(some).astype(np.int32) for some in chosen]

    def rate(self, link: Link, n_sub_models: int) -> float:
        """The probability that a connection of a link takes part, given that its receiver does."""
        source = link.source
        if source.kind != "hidden":
            return self.dropconnect
        if self.keep is None:
            return self.dropconnect / n_sub_models
        return self.dropconnect * round(self.keep * source.size) / source.size


def hidden(network: Network) -> list[Layer]:
    return [layer for layer in network.layers if layer.kind == "hidden"]


def _orders(seed: int, layer: Layer, samples: Any, draw: int) -> Array:
    """A random order of a layer's neurons for each sample number: (len(samples), n)."""
    key = random.key(seed, MEMBERS + layer.index)
    numbers = random.uniform(key, 0, np.arange(layer.size), samples, draw)
    found: Array = numbers.argsort(axis=1, kind="stable")
    return found


def _check_network(network: Network) -> None:
    if not hidden(network):
        raise JobError(
            "parallel-dropout: the network has no hidden layer to make sub-models of; add "
            "net.layer(...), or use allreduce"
        )
    for layer in network.layers[1:]:
        if layer.neuron.interpreted:
            raise JobError(
                f"parallel-dropout: {layer.name} is interpreted, and sub-models are compiled; use "
                f"one task without a strategy"
            )
        for link in layer.links:
            if link.edges is not None:
                raise JobError(
                    f"parallel-dropout: {layer.name} has a sparse connection, and sub-models are "
                    f"dense networks; connect it densely (dropconnect thins it out), or use "
                    f"allreduce"
                )
        forward, _, _ = read_layer(layer, training=True, written=False)
        if declared(layer.neuron, SynapseState):
            raise JobError(
                f"parallel-dropout: {layer.neuron.__name__} of {layer.name} remembers something "
                "of each synapse (SynapseState), of which sub-models would remember different "
                "things; use allreduce"
            )
        if forward.sits_out is not None:
            raise JobError(
                f"parallel-dropout: {layer.neuron.__name__} of {layer.name} draws per batch who "
                f"sits out, which is what sub-models are; draw per sample, as "
                f"horn.neurons.Dropout does"
            )
    if network.layers[0].keep < 1.0 and network.layers[0].per == "batch":
        raise JobError('parallel-dropout: the input draws per batch; leave per="batch" out')


def _check_parts(network: Network) -> None:
    """What part of a network computes must be, scaled, what all of it does."""
    for layer in network.layers[1:]:
        receivers = network.receivers(layer)
        forward, backward, _ = read_layer(layer, training=True, receivers=receivers)
        name = f"{layer.neuron.__name__} of {layer.name}"
        roots = [forward.output, *forward.states.values()]
        nodes = list(ir.walk(*roots, *([backward.delta] if backward else [])))
        if not derive.weighted_sum(forward.output, layer.weights)[0]:
            raise JobError(
                f"parallel-dropout: {name} is more than a function of sum(input * weight), so its "
                f"output cannot be scaled for the whole network; use allreduce"
            )
        if asks(forward):
            raise JobError(
                f"parallel-dropout: {name} asks its layer or the batch, of which a sub-model has a "
                f"part; use allreduce"
            )
        if any(n.op is Op.COUNT for n in ir.walk(*roots)):
            raise JobError(
                f"parallel-dropout: {name} counts its messages, of which a sub-model has fewer "
                f"than the network; use allreduce"
            )
        drawn = [n for n in nodes if n.op in (Op.DRAW, Op.MESSAGE_DRAW)]
        if any(n.value[2] == "run" for n in drawn) or any(n.op is Op.SYNAPSE_DRAW for n in nodes):
            raise JobError(
                f"parallel-dropout: {name} has draws for the whole run, which belong to neurons "
                f"and synapses of the whole network; use allreduce"
            )


STRATEGY = ParallelDropout
