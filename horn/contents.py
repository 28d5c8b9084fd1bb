"""What a model file says, in words: a row of each layer, what the layers cost, and the facts.

All of it comes from the manifest and the shapes of the arrays; nothing of the model runs.
"""

from __future__ import annotations

import math
from typing import Any

from horn import layer_costs, quantities, terminal


def row(index: int, layer: dict[str, Any], shapes: dict[str, list[int]]) -> list[str]:
    units = " × ".join(map(str, layer.get("shape", ()))) or f"{layer['size']:,}"
    if layer["kind"] == "input":
        keep = "" if layer["keep"] == 1 else f", keep {layer['keep']:g}"
        steps = f", {layer['steps']:,} steps" if "steps" in layer else ""
        return [f"{index} {layer['name']}", f"input{keep}{steps}", units, "0", "–"]
    links = [_heard(link) for link in layer["links"]]
    return [
        f"{index} {layer['name']}",
        f"{layer['neuron_name']}, {layer['activation_name']}"
        + (", each step" if "each_step" in layer else ""),
        units,
        f"{_n_parameters(layer, shapes):,}",
        ", ".join(links),
    ]


def _n_parameters(layer: dict[str, Any], shapes: dict[str, list[int]]) -> int:
    ends = tuple(f"/{part}" for part in layer_costs.EDGE_ARRAYS)
    own = (name for name in shapes if name.startswith(layer["name"] + "."))
    return sum(math.prod(shapes[name]) for name in own if not name.endswith(ends))


def _heard(link: dict[str, Any]) -> str:
    """A link in words: 2 through Convolution 5, sparse 0, x: 1, 3 with the weights of 1, ..."""
    name = f"{link['input']}: {link['source']}" if link.get("input") else str(link["source"])
    if link.get("reversed"):
        name += " reversed"
    if delay := link.get("delay"):
        name += f" {delay} step{'s' * (delay > 1)} ago"
    if "tied" in link:
        return f"{name} with the weights of {link['tied']['layer']}"
    if "windows" not in link:
        return ("sparse " if link["sparse"] else "") + name
    kernel = link["windows"].get("kernel")
    size = "" if kernel is None else f" {kernel if isinstance(kernel, int) else tuple(kernel)}"
    return f"{name} through {link['connection']}{size}"


def costs(manifest: dict[str, Any], shapes: dict[str, list[int]]) -> list[list[str]]:
    """For each layer: what a neuron sees of the input, and the cost of a sample and a batch."""
    layers = manifest["network"]["layers"]
    plain = [{**layer, "links": [_counted(link, shapes) for link in layer.get("links", ())]}
             for layer in layers]  # fmt: skip
    rows = manifest["facts"].get("batch_size", 1)
    itemsize = 8 if manifest["dtype"] == "float64" else 4
    found = []
    for layer, cost in zip(layers, layer_costs.costs(plain), strict=True):
        own = 0 if layer["kind"] == "input" else _n_parameters(layer, shapes)
        memory = layer_costs.memory_bytes(own, layer["size"], rows, itemsize)
        found.append([cost.seen, f"{cost.multiply_adds:,}", quantities.size(memory)])
    return found


def _counted(link: dict[str, Any], shapes: dict[str, list[int]]) -> dict[str, Any]:
    weights = [n for n in shapes if n == link["weight"] or n.startswith(link["weight"] + ".")]
    edges = shapes.get(f"{link['weight']}/indices", [0])
    return {**link, "weights": len(weights), "synapses": math.prod(edges)}


def facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    kept = manifest["facts"]
    judged = [layer for layer in manifest["network"]["layers"] if layer.get("loss")]
    found = [
        ("loss", _losses(judged)),
        *((where, terminal.metrics(values)) for where, values in kept.get("metrics", {}).items()),
        ("data", _data(kept)),
        ("classes", _classes(manifest["classes"]) if "classes" in manifest else None),
        ("features", "normalized by mean and standard deviation" * ("normalization" in manifest)),
        ("optimizer", kept.get("optimizer")),
        ("trained", _trained(kept)),
        ("seed", str(manifest["network"]["seed"])),
        ("saved", f"{manifest['created']} by horn {manifest['horn']}, Python {manifest['python']}"),
    ]
    return [(name, str(text)) for name, text in found if text]


def _losses(judged: list[dict[str, Any]]) -> str:
    """The losses in words: cross_entropy; of several 0.5 * digit (cross_entropy) + quiet (abs)"""
    if len(judged) == 1 and "loss_weight" not in judged[0] and judged[0].get("answers", True):
        return _loss(judged[0]["loss"])
    terms = []
    for layer in judged:
        own = layer["activation_name"] if not layer.get("answers", True) else layer["loss"]["name"]
        factor = f"{layer['loss_weight']:g} * " if "loss_weight" in layer else ""
        terms.append(f"{factor}{layer['name']} ({own})")
    return " + ".join(terms)


def _classes(found: Any) -> str:
    from horn.data.classes import all_from_json, said  # imports NumPy

    known = all_from_json(found)
    if not isinstance(known, dict):
        return said(known)
    return "; ".join(f"{name}: {said(own)}" for name, own in known.items() if own is not None)


def _loss(loss: dict[str, Any]) -> str:
    is_half = loss["name"] == "squared_error" and "f" not in loss
    return f"{loss['name']}{', half of (y - t)^2' if is_half else ''}"


def _data(facts: dict[str, Any]) -> str:
    n = f", {facts['samples']:,} samples" if "samples" in facts else ""
    return f"{facts['data']}{n}" if "data" in facts else ""


def _trained(facts: dict[str, Any]) -> str:
    if "iteration" not in facts:
        return ""
    updates = f"{facts['iteration']:,} updates"
    if "batch_size" not in facts:  # of a part of a model, or of an older horn's checkpoint
        return updates
    best = f", kept epoch {facts['best_epoch']}" if facts.get("best_epoch") else ""
    return (
        f"{updates} of batch {facts['batch_size']}, {facts['epochs']} epochs"
        f"{best}, {facts['seconds']:.1f} s"
    )
