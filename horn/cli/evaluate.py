"""horn evaluate: how good a model is on a data set."""

from __future__ import annotations

import click

from horn import defaults, registry
from horn.formats import examples


@click.command(
    short_help="How good a model is on data.",
    epilog=f"DATA is digits:test, mnist:test, cifar10:test, or files: {examples()}; - is a .csv "
    "file at standard input, and a folder has shards, or pictures by class. Of a model of "
    "characters (horn.data.text) it may be a .txt file.",
)
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="DATA")
@click.option(
    "--backend",
    default=defaults.BACKEND,
    show_default=True,
    help=f"One of {', '.join(registry.names('horn.backends'))}, or module:Class of yours.",
)
@click.option(
    "--metric", "names", multiple=True, metavar="NAME",
    help="accuracy, precision, recall, f1, auc, top5, mae, mse, rmse or r2; may be repeated. "
    "By default those of its job.",
)  # fmt: skip
@click.option("--label", metavar="COLUMN",
              help="Column of a .csv with the label: a name of the header or a number from 1. By "
              "default the last.")  # fmt: skip
@click.option("--ids", metavar="COLUMN",
              help="Column of a .csv with the samples' names. By default the first, if it is "
              "text.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, data: str, backend: str, names: tuple[str, ...], label: str | None,
            ids: str | None, as_json: bool, verbose: bool) -> None:  # fmt: skip
    """Print the loss of MODEL on DATA, for class labels the fraction that is right, and metrics."""
    from horn import modelfile, terminal
    from horn.cli._samples import samples_of
    from horn.model import Model

    modelfile.read_manifest(model)
    trained = Model.load(model, backend=backend)
    found = samples_of(data, trained, label=label, ids=ids)
    values = trained.evaluate(found, metrics=names or None)
    if as_json:
        head = {"schema": "horn.evaluate/1", "model": model, "data": data, "samples": len(found)}
        terminal.print_json(head | values | head)  # an older file may have a metric called so
    else:
        click.echo(terminal.metrics(values))
