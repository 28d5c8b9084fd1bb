"""How the neurons of each layer will run, in a user's words."""

from __future__ import annotations

from horn.compiler import derive, ir, lower
from horn.compiler.program import Loop, Matmul, Update
from horn.network import Layer, Network
from horn.optimizers import SGD, Direct, Optimizer


def runs_as(network: Network) -> dict[str, str]:
    """Per layer: "matrix products", "fused loop", both, or "message by message". Raises
    CompileError if a neuron cannot be compiled.
    """
    if any(layer.neuron.interpreted for layer in network.layers[1:]):
        return {layer.name: "message by message" for layer in network.layers[1:]}
    program = lower.training_program(
        network, _optimizer(network), "label" if network.loss else None
    )
    ways: dict[str, str] = {}
    for layer in network.layers[1:]:
        products = loops = False
        for statement in program.statements:
            if isinstance(statement, (Matmul, Update)) and statement.frame.layer == layer.index:
                products = True
            if isinstance(statement, Loop) and statement.frame.layer == layer.index:
                wide = (ir.union(o.node.axes, o.axis) for o in statement.outputs)
                loops |= statement.frame.link is not None and any(
                    "o" in w and "i" in w and "b" in w for w in wide
                )
        parts = []
        if products:
            parts.append("matrix products")
        if loops:
            sparse = all(link.edges is not None for link in layer.links)
            parts.append("loop over edges" if sparse else "fused loop")
            if layer.index in program.exact and not sparse:
                parts[-1] += " (differences as written)"
        way = " + ".join(parts) or "elementwise"
        if layer.index in program.compact:
            way += ", live neurons only"
        ways[layer.name] = way
    return ways


def _optimizer(network: Network) -> Optimizer:
    """SGD, or Direct if a neuron reads what only Direct remembers."""
    for layer in network.layers[1:]:
        forward, backward, _ = lower.read_layer(layer, True)
        pushes = (forward.output, forward.push, backward and backward.push)
        if any(isinstance(n, ir.Node) and ir.contains(n, ir.Op.PREVIOUS) for n in pushes):
            return Direct()
    return SGD()


def kind(layer: Layer) -> str:
    """What decides how gradients pass through a layer: weighted sum, local rule, or other."""
    forward, _, _ = lower.read_layer(layer, True)
    if forward.push is not None:
        return "local rule"
    return "weighted sum" if derive.weighted_sum(forward.output)[0] else "other"
