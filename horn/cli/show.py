"""horn show: what is in a model file. Runs nothing of it."""

from __future__ import annotations

import math
import os
from typing import Any

import click


@click.command(short_help="What is in a model file.")
@click.argument("model", metavar="MODEL")
@click.option("--source", is_flag=True, help="Print the source of its neurons too.")
@click.option("--plot", metavar="PICTURE", help="Draw the weights of a layer (.png, .svg, .pdf).")
@click.option("--layer", metavar="NAME", help="Which one; by default the first with weights.")
@click.option("--json", "as_json", is_flag=True, help="The whole manifest, one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, source: bool, plot: str | None, layer: str | None, as_json: bool,
            verbose: bool) -> None:  # fmt: skip
    """Print the layers of MODEL, where it comes from and how good it was. Nothing in it is run."""
    from horn import modelfile

    if layer is not None and plot is None:
        raise click.UsageError("--layer says what --plot draws; add --plot out.png")
    with modelfile.understood(model):
        _show(model, source, as_json)
    if plot is not None:
        _draw(model, layer, plot)
        click.echo(f"{'picture':<10} {plot}", err=as_json)


def _draw(model: str, layer: str | None, path: str) -> None:
    """Draw the weights as ``horn.plot.weights`` does, from the file's arrays."""
    from horn import modelfile, plot
    from horn.connections import Edges
    from horn.connections.placed import PLACED

    manifest, arrays = modelfile.read(model)
    layers = manifest["network"]["layers"]
    names: dict[str, list[str]] = {}
    below: dict[str, tuple[int, ...]] = {}
    edges: dict[str, Edges | None] = {}
    for each in layers:
        for link in each.get("links", ()):
            if "tied" in link:  # the weights are another's
                continue
            source = layers[link["source"]]
            shape = tuple(source.get("shape", ())) or (source["size"],)
            kind, told = PLACED.get(link["connection"]), link.get("windows")
            own: Edges | None = None
            if f"{link['weight']}/indices" in arrays:
                indptr, indices = (arrays[f"{link['weight']}/{n}"] for n in ("indptr", "indices"))
                own = Edges(indptr, indices, arrays.get(f"{link['weight']}/weight"))
            elif kind is not None and told is not None:
                words = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
                own = kind(**words).at(shape, each["name"]).edges
            for name in arrays:
                if name == link["weight"] or name.startswith(link["weight"] + "."):
                    names.setdefault(each["name"], []).append(name)
                    below[name] = shape
                    edges[name] = None if own is None or own.weight is not None else own
    plot.draw(arrays, names, below, edges, layer, path)


def _show(model: str, source: bool, as_json: bool) -> None:
    from horn import modelfile, terminal

    manifest = modelfile.read_manifest(model)
    if as_json:
        terminal.print_json({"schema": "horn.model/1", "file": model, **manifest})
        return
    click.echo(f"{model}  {terminal.size(os.path.getsize(model))}, {manifest['dtype']}\n")
    shapes = modelfile.shapes(model)
    layers = manifest["network"]["layers"]
    rows = [_row(index, layer, shapes) for index, layer in enumerate(layers)]
    columns = ["Layer", "Neuron", "Units", "Params", "Listens to"]
    if any("shape" in layer for layer in layers):
        columns[4:4] = ["Sees", "Multiply-adds", "Memory"]
        for row, cells in zip(rows, _costs(manifest, shapes), strict=True):
            row[4:4] = cells
    terminal.table(columns, rows, err=False)
    click.echo()
    for name, text in _facts(manifest):
        click.echo(f"{name:<10} {text}")
    for name, found in manifest["sources"].items():
        click.echo(f"{'source':<10} {found['file']} ({name}), sha256 {found['sha256'][:16]}")
        if source:
            click.echo("\n" + found["text"].rstrip() + "\n")


def _row(index: int, layer: dict[str, Any], shapes: dict[str, list[int]]) -> list[str]:
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
    own = (name for name in shapes if name.startswith(layer["name"] + ".") and "/" not in name)
    return sum(math.prod(shapes[name]) for name in own)


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


def _costs(manifest: dict[str, Any], shapes: dict[str, list[int]]) -> list[list[str]]:
    """For each layer: what a neuron sees of the input, and the cost of a sample and a batch."""
    from horn import layer_costs, terminal

    layers = manifest["network"]["layers"]
    plain = [{**layer, "links": [_told(link, shapes) for link in layer.get("links", ())]}
             for layer in layers]  # fmt: skip
    rows = manifest["facts"].get("batch_size", 1)
    itemsize = 8 if manifest["dtype"] == "float64" else 4
    found = []
    for layer, cost in zip(layers, layer_costs.costs(plain), strict=True):
        own = 0 if layer["kind"] == "input" else _n_parameters(layer, shapes)
        memory = layer_costs.memory_bytes(own, layer["size"], rows, itemsize)
        found.append([cost.seen, f"{cost.multiply_adds:,}", terminal.size(memory)])
    return found


def _told(link: dict[str, Any], shapes: dict[str, list[int]]) -> dict[str, Any]:
    weights = [n for n in shapes if n == link["weight"] or n.startswith(link["weight"] + ".")]
    edges = shapes.get(f"{link['weight']}/indices", [0])
    return {**link, "weights": len(weights), "synapses": math.prod(edges)}


def _facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    from horn import terminal

    facts = manifest["facts"]
    judged = [layer for layer in manifest["network"]["layers"] if layer.get("loss")]
    found = [
        ("loss", _losses(judged)),
        *((where, terminal.metrics(values)) for where, values in facts.get("metrics", {}).items()),
        ("data", _data(facts)),
        ("classes", _classes(manifest["classes"]) if "classes" in manifest else None),
        ("features", "normalized by mean and standard deviation" * ("normalization" in manifest)),
        ("optimizer", facts.get("optimizer")),
        ("trained", _trained(facts)),
        ("seed", str(manifest["network"]["seed"])),
        ("saved", f"{manifest['created']} by horn {manifest['horn']}, Python {manifest['python']}"),
    ]
    return [(name, str(text)) for name, text in found if text]


def _losses(judged: list[dict[str, Any]]) -> str:
    """The losses in words: cross_entropy; of several 0.5 * digit (cross_entropy) + quiet (abs)"""
    if len(judged) == 1 and "loss_weight" not in judged[0] and judged[0].get("answers", True):
        return _loss(judged[0]["loss"])
    said = []
    for layer in judged:
        own = layer["activation_name"] if not layer.get("answers", True) else layer["loss"]["name"]
        factor = f"{layer['loss_weight']:g} * " if "loss_weight" in layer else ""
        said.append(f"{factor}{layer['name']} ({own})")
    return " + ".join(said)


def _classes(found: Any) -> str:
    from horn.data.classes import all_from_json, said

    known = all_from_json(found)
    if not isinstance(known, dict):
        return said(known)
    return "; ".join(f"{name}: {said(own)}" for name, own in known.items() if own is not None)


def _loss(loss: dict[str, Any]) -> str:
    is_half = loss["name"] == "squared_error" and "f" not in loss
    return f"{loss['name']}{', half of (y - t)^2' if is_half else ''}"


def _data(facts: dict[str, Any]) -> str:
    return f"{facts['data']}, {facts['samples']:,} samples" if "data" in facts else ""


def _trained(facts: dict[str, Any]) -> str:
    if "iteration" not in facts:
        return ""
    best = f", kept epoch {facts['best_epoch']}" if facts.get("best_epoch") else ""
    return (
        f"{facts['iteration']:,} updates of batch {facts['batch_size']}, {facts['epochs']} epochs"
        f"{best}, {facts['seconds']:.1f} s"
    )
