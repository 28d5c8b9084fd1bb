"""horn show: what is in a model file. Runs nothing of it."""

from __future__ import annotations

import os

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
        with modelfile.understood(model):
            _draw(model, layer, plot)
        click.echo(f"{'picture':<10} {plot}", err=as_json)


def _draw(model: str, layer: str | None, path: str) -> None:
    """Draw the weights as ``horn.plot.weights`` does, from the file's arrays."""
    from horn import modelfile, plot
    from horn.connections import Edges
    from horn.connections.placed import PLACED
    from horn.connections.sparse import edges_in_file

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
            own: Edges | None = None
            if (windows := link.get("windows")) is not None:
                words = {k: tuple(v) if isinstance(v, list) else v for k, v in windows.items()}
                own = PLACED[link["connection"]](**words).at(shape, each["name"]).edges
            elif link["sparse"]:
                own = edges_in_file(link, arrays, source["size"], each["size"])
            for name in arrays:
                if name == link["weight"] or name.startswith(link["weight"] + "."):
                    names.setdefault(each["name"], []).append(name)
                    below[name] = shape
                    is_window = own is not None and own.is_shared and windows is not None
                    edges[name] = None if is_window else own
    plot.draw(arrays, names, below, edges, layer, path)


def _show(model: str, source: bool, as_json: bool) -> None:
    from horn import contents, modelfile, quantities, terminal

    manifest = modelfile.read_manifest(model)
    modelfile.check_arrays(model)
    if as_json:
        terminal.print_json({"schema": "horn.model/1", "file": model, **manifest})
        return
    dtype = terminal.printable(manifest["dtype"])
    click.echo(f"{model}  {quantities.size(os.path.getsize(model))}, {dtype}\n")
    shapes = modelfile.shapes(model)
    layers = manifest["network"]["layers"]
    rows = [contents.row(index, layer, shapes) for index, layer in enumerate(layers)]
    columns = ["Layer", "Neuron", "Units", "Params", "Listens to"]
    if any("shape" in layer for layer in layers):
        columns[4:4] = ["Sees", "Multiply-adds", "Memory"]
        for row, cells in zip(rows, contents.costs(manifest, shapes), strict=True):
            row[4:4] = cells
    terminal.table(columns, rows, err=False)
    click.echo()
    for name, text in contents.facts(manifest):
        click.echo(terminal.printable(f"{name:<10} {text}"))
    for name, found in manifest["sources"].items():
        said = f"{'source':<10} {found['file']} ({name}), sha256 {found['sha256'][:16]}"
        click.echo(terminal.printable(said))
        if source:
            click.echo("\n" + terminal.printable(found["text"].rstrip()) + "\n")
