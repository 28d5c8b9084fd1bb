"""horn check: is each backward the gradient of its forward, and how will each neuron run?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from horn.cli._target import TargetCommand

if TYPE_CHECKING:
    from horn.check import LayerCheck


@click.command(cls=TargetCommand, short_help="Compare backwards with finite differences.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in horn submit.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Instead of the network's own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(target: str, args: tuple[str, ...], settings: tuple[str, ...], seed: int | None,
            as_json: bool, verbose: bool) -> int:  # fmt: skip
    """Check the job of TARGET without training it: data, compilation, optimizer, written backwards.

    Every backward that a class writes is compared with central finite differences of the loss, in
    double precision, on a few samples of the job. Exit code 1 if one differs, unless the job has
    check=False. TARGET and ARGS are as in horn submit.
    """
    from horn import explain, terminal
    from horn.check import check_activations, check_network, describe
    from horn.target import load_job
    from horn.training.checks import check_described

    with terminal.stdout_of_user(as_json):
        job = load_job(target, args, settings, seed)
    check_described(job, "kernels")
    if job.check:
        check_activations(job.network)
    explain.check_memory(job.network, job.batch_size)
    rows = check_network(job)
    # By check=False a job says that a backward differs on purpose.
    wrong = [row for row in rows if not row.ok and job.check]
    silent = explain.never_learn(job.network)
    if as_json:
        terminal.print_json(
            {
                "schema": "horn.check/1",
                "ok": not wrong,
                "layers": [_row_as_json(row) for row in rows],
                "never_learn": silent,
            }
        )
        return 1 if wrong else 0
    terminal.table(
        ["Layer", "Neuron", "Kind", "Runs as", "Backward", "Finite differences"],
        [[r.layer, r.neuron, r.kind, r.runs_as, r.backward, _verdict(r, job.check)] for r in rows],
        err=False,
    )
    for sentence in silent:
        click.echo(f"\nwarning: {sentence}")
    layers = {layer.name: layer for layer in job.network.layers}
    for row in wrong:
        assert row.worst is not None
        click.echo()
        click.echo(describe(layers[row.layer], row.worst))
    return 1 if wrong else 0


def _verdict(row: LayerCheck, must_agree: bool) -> str:
    if row.worst is None:
        return "–"
    word = "agree" if row.ok else "DIFFER" if must_agree else "differ, as check=False allows"
    return f"{word}, worst relative error {row.worst.error:.1e} of {row.compared} compared"


def _row_as_json(row: LayerCheck) -> dict[str, Any]:
    worst = None
    if row.worst is not None:
        worst = {
            "array": row.worst.array,
            "place": list(row.worst.place),
            "written": row.worst.written,
            "expected": row.worst.expected,
            "relative_error": row.worst.error,
        }
    return {
        "layer": row.layer,
        "neuron": row.neuron,
        "kind": row.kind,
        "runs_as": row.runs_as,
        "backward": row.backward,
        "ok": row.ok,
        "compared": row.compared,
        "worst": worst,
    }
