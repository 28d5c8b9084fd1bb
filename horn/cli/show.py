"""horn show: what is in a model file. Runs nothing of it."""

from __future__ import annotations

import math
import os
from typing import Any

import click


@click.command(short_help="What is in a model file.")
@click.argument("model", metavar="MODEL")
@click.option("--source", is_flag=True, help="Print the source of its neurons too.")
@click.option("--json", "as_json", is_flag=True, help="The whole manifest, one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, source: bool, as_json: bool, verbose: bool) -> None:
    """Print the layers of MODEL, where it comes from and how good it was. Nothing in it is run."""
    from horn import modelfile

    with modelfile.understood(model):
        _show(model, source, as_json)


def _show(model: str, source: bool, as_json: bool) -> None:
    from horn import modelfile
    from horn.cli import _screen

    manifest = modelfile.read_manifest(model)
    if as_json:
        _screen.print_json({"schema": "horn.model/1", "file": model, **manifest})
        return
    click.echo(f"{model}  {_screen.size(os.path.getsize(model))}, {manifest['dtype']}\n")
    shapes = modelfile.shapes(model)
    rows = [_row(index, layer, shapes) for index, layer in enumerate(manifest["network"]["layers"])]
    _screen.table(["Layer", "Neuron", "Units", "Params", "Listens to"], rows, err=False)
    click.echo()
    for name, text in _facts(manifest):
        click.echo(f"{name:<10} {text}")
    for name, found in manifest["sources"].items():
        click.echo(f"{'source':<10} {found['file']} ({name}), sha256 {found['sha256'][:16]}")
        if source:
            click.echo("\n" + found["text"].rstrip() + "\n")


def _row(index: int, layer: dict[str, Any], shapes: dict[str, list[int]]) -> list[str]:
    if layer["kind"] == "input":
        keep = "" if layer["keep"] == 1 else f", keep {layer['keep']:g}"
        return [f"{index} {layer['name']}", f"input{keep}", f"{layer['size']:,}", "0", "–"]
    own = (name for name in shapes if name.startswith(layer["name"] + ".") and "/" not in name)
    n_parameters = sum(math.prod(shapes[name]) for name in own)
    links = [("sparse " if link["sparse"] else "") + str(link["source"]) for link in layer["links"]]
    return [
        f"{index} {layer['name']}",
        f"{layer['neuron_name']}, {layer['activation_name']}",
        f"{layer['size']:,}",
        f"{n_parameters:,}",
        ", ".join(links),
    ]


def _facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    from horn.cli import _screen
    from horn.data.classes import from_json, said

    facts = manifest["facts"]
    loss = manifest["network"]["layers"][-1].get("loss")
    found = [
        ("loss", loss and _loss(loss)),
        *((where, _screen.metrics(values)) for where, values in facts.get("metrics", {}).items()),
        ("data", _data(facts)),
        ("classes", said(from_json(manifest["classes"])) if "classes" in manifest else None),
        ("features", "normalized by mean and standard deviation" * ("normalization" in manifest)),
        ("optimizer", facts.get("optimizer")),
        ("trained", _trained(facts)),
        ("seed", str(manifest["network"]["seed"])),
        ("saved", f"{manifest['created']} by horn {manifest['horn']}, Python {manifest['python']}"),
    ]
    return [(name, str(text)) for name, text in found if text]


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
