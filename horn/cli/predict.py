"""horn predict: what a model says about samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(short_help="What a model says about samples.")
@click.argument("model", metavar="MODEL")
@click.argument("data", metavar="DATA")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write to this .npy or .csv file instead of stdout.")  # fmt: skip
@click.option("--labels", "--classes", "labels", is_flag=True,
              help="The number of the largest output, not the outputs.")  # fmt: skip
@click.option(
    "--backend", default="kernels", show_default=True, help="kernels, reference or python."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, data: str, output: str | None, labels: bool, backend: str,
            as_json: bool, verbose: bool) -> None:  # fmt: skip
    """Print what the output neurons of MODEL send for each sample of DATA, one line per sample.

    DATA is as for horn evaluate; labels in it are not looked at. A .csv file has features only.
    """
    from horn import modelfile
    from horn.cli import _screen
    from horn.data import load
    from horn.errors import JobError
    from horn.model import Model

    if output is not None:
        if not output.endswith((".npy", ".csv")):
            raise JobError(
                f"-o {output}: predictions are written as .npy or .csv; name such a file"
            )
        modelfile.check_writable(output)
    modelfile.read_manifest(model)
    samples = load(data, labels=False)
    found = Model.load(model, backend=backend).predict(samples, labels=labels)
    if output is not None:
        _write(output, found)
        _screen.say(f"Wrote {output}: {' × '.join(f'{n:,}' for n in found.shape)} {found.dtype}.")
    if as_json:
        shown = {} if output else {"outputs": found.tolist()}
        head = {"schema": "horn.predict/1", "model": model, "data": data, "output": output}
        _screen.print_json({**head, "shape": list(found.shape), **shown})
    elif output is None:
        for row in found.tolist():
            click.echo(row if labels else " ".join(f"{value:.6g}" for value in row))


def _write(path: str, found: Any) -> None:
    """All or nothing: to a temporary file, then renamed."""
    import os
    import tempfile

    import numpy as np

    from horn.modelfile import place_of, umask

    target = place_of(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            if target.suffix == ".npy":
                np.save(file, found)
            else:
                np.savetxt(file, found, delimiter=",", fmt="%d" if found.ndim == 1 else "%.9g")
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
