"""horn explain: the program that is made of a job's neurons."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from horn.cli._target import TargetCommand

if TYPE_CHECKING:
    from horn.readable import ReadableStatement


@click.command(cls=TargetCommand, short_help="The program that neurons become.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--layer", metavar="NAME", help="Of this layer only.")
@click.option("--inference", is_flag=True, help="What predicts, not what trains.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in horn submit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(target: str, args: tuple[str, ...], layer: str | None, inference: bool,
            settings: tuple[str, ...], as_json: bool, verbose: bool) -> None:  # fmt: skip
    """Print what the compiler makes of the neurons of TARGET, layer by layer: for each statement
    what it computes, for all neurons and samples at once, and the line of the neuron that it comes
    from. TARGET and ARGS are as in horn submit; nothing is trained.
    """
    from horn import explain, terminal
    from horn.backends import target_kind
    from horn.compiler import lower
    from horn.errors import JobError
    from horn.readable import readable
    from horn.target import load_job

    with terminal.stdout_of_user(as_json):
        job = load_job(target, args, settings)
    names = [each.name for each in job.network.layers]
    if layer is not None and layer not in names:
        raise JobError(f"--layer {layer}: the layers are {', '.join(names)}")
    ways = explain.runs_as(job.network)
    if "message by message" in ways.values():
        raise JobError("neurons that are interpreted become no program; horn trace shows one")
    kind = target_kind(job.network, job.target, job.data)
    program = (
        lower.inference_program(job.network, kind)
        if inference
        else lower.training_program(job.network, job.optimizer, kind)
    )
    rows = [row for row in readable(program) if layer is None or row.layer == layer]
    if as_json:
        found = [dataclasses.asdict(row) for row in rows]
        terminal.print_json({"schema": "horn.explain/1", "runs_as": ways, "statements": found})
        return
    for each in job.network.layers:
        own = [row for row in rows if row.layer == each.name]
        if own:
            way = f": {ways[each.name]}" if each.name in ways else ""
            click.echo(f"{each.name} ({each.size} {each.neuron.__name__}){way}")
            _show(own)
    if others := [row for row in rows if not row.layer]:
        click.echo("of all layers")
        _show(others)


def _show(rows: list[ReadableStatement]) -> None:
    for row in rows:
        place = f"   # {row.place}" if row.place else ""
        click.echo(f"  {row.phase:<9} {row.text}{place}")
    click.echo()
