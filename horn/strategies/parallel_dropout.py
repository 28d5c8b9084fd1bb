"""Parallel dropout: every batch trains several sub-models of the network side by side, each on its
part of the samples, and the network learns from all of them.

A sub-model has the input and the output layer whole, and some neurons of every hidden layer, drawn
at random: a small network, of which only the live rows and columns are computed and sent. Its
gradient is the mean over its samples; a weight and its slots change by the mean over the sub-models
that have it. In inference the whole network computes, with every connection scaled by the
probability that it took part: so are the trained arrays, an ordinary model without a strategy.

Source: Yoon 2016, section 3. DropConnect after Wan et al. 2013, with the mean in inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from horn import ir
from horn.errors import JobError, check_whole
from horn.ir import Op, derive
from horn.job import Job
from horn.language.layers import Reading, asks
from horn.layers import Layer
from horn.mistakes import teaches
from horn.network import Network
from horn.neuron import SynapseState, declared
from horn.neurons import Relay
from horn.refusals import has_interlayer
from horn.strategies import Strategy, TaskEngine, Topology, check_takes_gradients, in_words
from horn.sub_models.rules import SubModelRules


@teaches
@dataclass(frozen=True)
class ParallelDropout(Strategy):
    """Trains sub-models. sub_models : their number; by default one for each task. Tasks train
    several in turn, with the same result.

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
            if value is not None or what == "redraw":
                check_whole(f"parallel-dropout: {what}", value, 1)
        for what in ("keep", "dropconnect"):
            value = getattr(self, what)
            if value is None and what == "keep":
                continue
            if not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
                what = f"{what} is the probability to keep, above 0 and up to 1"
                raise JobError(f"parallel-dropout: {what}; got {value!r}")

    def n_sub_models(self, topology: Topology) -> int:
        """The number of sub-models; one per task where ``sub_models`` does not say it."""
        return self.sub_models or topology.n_workers

    def check(self, job: Job, topology: Topology) -> None:
        super().check(job, topology)
        n = self.n_sub_models(topology)
        size = min(job.batch_size, len(job.data))
        check_takes_gradients(self.name, job.optimizer)
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
        for layer in job.network.layers[1:]:
            for link in layer.links:
                scaled = [a for a in link.weights.values() if a in job.network.frozen]
                if scaled and self.rules(n).rate(link) != 1.0:
                    raise JobError(
                        f"parallel-dropout scales {scaled[0]} at the end, by the probability that "
                        f"its connections take part, so it cannot be frozen; use allreduce"
                    )
        if n > 1 or (self.keep or 1.0) < 1.0 or self.dropconnect < 1.0:
            _check_parts(job.network)

    def scales(self, job: Job, topology: Topology) -> Mapping[str, float]:
        return self.rules(self.n_sub_models(topology)).rates(job.network)

    def resumes_as(self, topology: Topology) -> str:
        return f"{in_words(self)}, {self.n_sub_models(topology)} sub-models"

    def engine(self, context: Any) -> TaskEngine:
        from horn.sub_models.engine import SubModels

        job, topology = context.job, context.topology
        if context.backend != "kernels":
            raise JobError(
                f"parallel-dropout runs on backend=kernels, not {context.backend}; leave it out, "
                f"or use one task without a strategy"
            )
        self.check(job, topology)
        return SubModels(self.rules(self.n_sub_models(topology)), context)

    def rules(self, n: int) -> SubModelRules:
        """The rules that draw the neurons of each of n sub-models."""
        return SubModelRules(n, self.keep, self.redraw, self.dropconnect)


def hidden(network: Network) -> list[Layer]:
    return [layer for layer in network.layers if layer.kind == "hidden"]


def _check_network(network: Network) -> None:
    if not hidden(network):
        raise JobError(
            "parallel-dropout: the network has no hidden layer to make sub-models of; add "
            "net.layer(...), or use allreduce"
        )
    if network.steps:
        raise JobError(
            "parallel-dropout: the network is one of sequences (net.input(n, steps=...)), and "
            "sub-models hear and carry nothing from step to step; use allreduce, and "
            "horn.neurons.Dropout in its layers"
        )
    reading = Reading()
    for layer in network.layers[1:]:
        if layer.neuron is Relay:  # what a layer that names one of several inputs listens to
            sizes = " + ".join(f"{size} of {name}" for name, size in network.inputs)
            raise JobError(
                f"parallel-dropout: the network has several inputs ({sizes}) and layers that "
                f"listen to one of them, {layer.name}, and sub-models have one that is whole; lay "
                "them side by side in one net.input, or use allreduce"
            )
        if not layer.answers:
            raise JobError(
                f"parallel-dropout: {layer.name} is a loss between layers, and sub-models have "
                "parts of them that are not the same; use allreduce, and horn.neurons.Dropout in "
                "the layers"
            )
        if layer.neuron.interpreted:
            raise JobError(
                f"parallel-dropout: {layer.name} is interpreted, and sub-models are compiled; use "
                f"one task without a strategy"
            )
        for link in layer.links:
            if link.tie is not None:
                raise JobError(
                    f"parallel-dropout: {layer.name} has the weights of {link.tie.layer.name}, and "
                    f"sub-models divide the arrays of each layer; use allreduce"
                )
            if link.edges is not None:
                raise JobError(
                    f"parallel-dropout: {layer.name} has a "
                    f"{'window' if link.is_placed else 'sparse'} connection, and sub-models are "
                    f"dense networks; connect it densely (dropconnect thins it out), or use "
                    f"allreduce"
                )
        forward, _, _ = reading.layer(layer, training=True, written=False)
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
    """The scaled outputs of a part of the network must be those of the whole."""
    reading = Reading()
    for layer in network.layers[1:]:
        receivers = network.receivers(layer)
        forward, backward, interlayer = reading.layer(layer, training=True, receivers=receivers)
        name = f"{layer.neuron.__name__} of {layer.name}"
        if interlayer is not None and layer.kind == "hidden":
            raise JobError(
                f"parallel-dropout: {has_interlayer(layer.name)}, of which a sub-model has a part; "
                f"use allreduce"
            )
        roots = [forward.output, *forward.states.values()]
        nodes = list(ir.walk(*forward.roots, *(backward.roots if backward else [])))
        kept = forward.states.values()
        if not derive.weighted_sum(forward.output, layer.weights, layer.inputs, kept)[0]:
            raise JobError(
                f"parallel-dropout: {name} is more than a function of sum(input * weight), so its "
                f"output cannot be scaled for the whole network; use allreduce"
            )
        if asks(forward):
            raise JobError(
                f"parallel-dropout: {name} asks its layer or the batch, of which a sub-model has a "
                f"part; use allreduce"
            )
        if any(ir.contains(root, Op.COUNT) for root in roots):
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
