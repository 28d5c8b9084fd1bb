"""horn export: a model as an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command(short_help="A model as an ONNX file, for other runtimes.")
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", type=click.Path(readable=False), metavar="FILE",
              help="The file to write (by default MODEL with .onnx, in this folder).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(model: str, output: str | None, as_json: bool, verbose: bool) -> None:
    """Write what MODEL predicts as an ONNX graph: "x" (batch, features) to "y" (batch, outputs).

    Of sequences "x" is (batch, steps, features), of any number of steps; several outputs have
    their names.

    Needs the package onnx. A neuron that draws random numbers at prediction, or is interpreted,
    is refused.
    """
    from pathlib import Path

    from horn import modelfile, terminal
    from horn.errors import JobError
    from horn.export.onnx import shapes
    from horn.model import Model

    target = output or f"{Path(model).stem}.onnx"
    if not target.endswith(".onnx"):
        raise JobError(f"-o {target}: a model is exported as .onnx; name such a file")
    modelfile.read_manifest(model)
    found = Model.load(model)
    found.export(target)
    network = found.network
    of_x, of_outputs = shapes(network, [layer.each_step for layer in network.outputs])
    scale = found.facts.get("scale")
    if as_json:
        head = {"schema": "horn.export/1", "model": model, "output": target}
        n_outputs = sum(layer.size for layer in network.outputs)
        sizes = {"features": network.n_inputs, "outputs": n_outputs}
        every = {"shapes": {"x": of_x, **of_outputs}}
        terminal.print_json({**head, **sizes, **every, "dtype": found.dtype, "scale": scale})
        return
    said = " and ".join(f"{name} {_said(shape)}" for name, shape in of_outputs.items())
    terminal.say(f"Wrote {target}: x {_said(of_x)} to {said}, {found.dtype}.")
    if scale is not None and scale != 1:
        terminal.say(f"It learned from bytes times {scale:g}: multiply them before they are x.")


def _said(shape: Sequence[str | int]) -> str:
    return f"({', '.join(n if isinstance(n, str) else f'{n:,}' for n in shape)})"
