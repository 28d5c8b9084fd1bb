"""A description of a job: layers, how each neuron runs, memory, updates."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from horn import defaults, layer_costs
from horn.backends import Setup, is_compiled, make
from horn.layers import Layer
from horn.network import Network
from horn.neuron import has_backward
from horn.neurons import Standard

if TYPE_CHECKING:
    from horn.job import Job


@dataclass(frozen=True)
class LayerSummary:
    """One row of the plan's table. runs_as : the way its neurons are computed. shape : "28 × 28 ×
    1"; "" of a flat layer. sees : the part of the input that reaches one neuron, "5 × 5" or "all".
    multiply_adds : weighted messages of one sample.
    """

    index: int
    name: str
    neuron: str
    units: int
    parameters: int
    runs_as: str
    shape: str
    sees: str
    multiply_adds: int

    @property
    def extent(self) -> str:
        """The number of its neurons, or their shape."""
        return self.shape or f"{self.units:,}"

    def memory_bytes(self, rows: int, itemsize: int) -> int:
        """The memory in a training step of ``rows`` samples, without the optimizer's."""
        return layer_costs.memory_bytes(self.parameters, self.units, rows, itemsize)


def layers(network: Network, backend: str = defaults.BACKEND) -> list[LayerSummary]:
    if any(layer.neuron.interpreted for layer in network.layers):
        slower = f"message by message, {slowdown(network):,.0f}x slower"
        ways = {layer.name: slower for layer in network.layers[1:]}
    elif not is_compiled(backend, network):
        ways = {layer.name: "message by message" for layer in network.layers[1:]}
    else:
        from horn import explain  # commands without a network do without it

        ways = explain.runs_as(network)
    rows, costs = [], layer_costs.costs([_plain(layer) for layer in network.layers])
    for layer in network.layers:
        neuron, way = f"{layer.neuron.__name__}, {layer.activation_name}", ways.get(layer.name, "")
        if layer.inputs:
            neuron += f" ({', '.join(link.heard for link in layer.links)})"
        if layer.kind == "input":
            neuron, way = "input" if layer.keep == 1.0 else f"input, keep {layer.keep:g}", "–"
        n = n_parameters(layer)
        shape = " × ".join(map(str, layer.shape)) if layer.extents else ""
        cost = costs[layer.index]
        own = (layer.index, layer.name, neuron, layer.size, n, way, shape)
        rows.append(LayerSummary(*own, cost.seen, cost.multiply_adds))
    return rows


def _plain(layer: Layer) -> dict[str, Any]:
    """The facts of a layer that ``layer_costs`` reads."""
    links = [
        {
            "source": link.source.index,
            "weight": link.weight,
            "weights": len(link.names),
            "connection": type(link.connection).__name__,
            "windows": vars(link.connection) if link.is_known else {},
            "synapses": 0 if link.edges is None else link.edges.n,
            "tied": link.tie and {"layer": link.tie.layer.index, "transposed": link.tie.transposed},
        }
        for link in layer.links
    ]
    return {"size": layer.size, "shape": layer.shape if layer.extents else (), "links": links}


def slowdown(network: Network) -> float:
    """Measure how many times slower the interpreter runs a network than compiled code runs its twin
    with standard neurons. Forward only: one sample, and a batch.
    """
    twin = network.rebuilt(
        changes={layer.name: {"neuron": Standard} for layer in network.layers[1:]}
    )
    rng = np.random.default_rng(0)
    x = rng.random((256, network.n_inputs), np.float32)
    seconds = []
    for backend, described, rows in (("python", network, 1), ("kernels", twin, 256)):
        engine = make(backend, Setup(described, None, "labels", rows))
        if backend == "kernels":
            engine.outputs(x[:rows])  # the first call compiles
        begun = perf_counter()
        engine.outputs(x[:rows])
        seconds.append((perf_counter() - begun) / rows)
    return seconds[0] / max(seconds[1], 1e-9)


def n_parameters(layer: Layer) -> int:
    return sum(int(np.prod(shape)) for shape in layer.shapes.values())


def memory_bytes(job: Job) -> dict[str, int]:
    """The predicted memory by purpose: parameters, optimizer, activations, data."""
    item = np.dtype(job.dtype).itemsize
    learned = sum(n_parameters(layer) for layer in job.network.layers[1:])
    units = sum(layer.size for layer in job.network.layers)
    return {
        "parameters": learned * item,
        "optimizer": learned * item * len(job.optimizer.kept_slots),
        # an output, a summed input and a delta per neuron and sample, at each step of a sequence
        "activations": 3 * units * job.most_rows * item * max(job.network.steps, 1),
        "data": sum(
            data.x.nbytes + (0 if data.y is None else data.y.nbytes)
            for data in (job.data, job.validation, job.test)
            if data is not None and not isinstance(data.x, np.memmap)
        ),
    }


def in_words(thing: Any) -> str:
    """A frozen description as a user writes it: SGD(learning_rate=0.1, momentum=0.9)."""
    fields = dataclasses.fields(thing)
    said = [
        f"{field.name}={in_words(value) if dataclasses.is_dataclass(value) else _word(value)}"
        for field in fields
        if (value := getattr(thing, field.name)) != field.default or field is fields[0]
    ]
    return f"{type(thing).__name__}({', '.join(said)})"


def _word(value: Any) -> str:
    return value.__name__ if isinstance(value, types.FunctionType) else repr(value)


def backward_of(layer: Layer) -> str:
    if layer.kind == "output":
        return "derived from the loss"
    return "written" if has_backward(layer.neuron) else "derived"
