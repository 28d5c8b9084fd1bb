"""horn trace: what one neuron does for one sample of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import click

from horn import defaults
from horn.cli._target import TargetCommand

if TYPE_CHECKING:
    from horn.training.neuron_trace import NeuronTrace


@click.command(cls=TargetCommand, short_help="What one neuron does, message by message.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--neuron", required=True, metavar="LAYER:NUMBER", help="Such as layer1:17.")
@click.option("--sample", default=0, type=click.IntRange(min=0), help="Of the batch, from 0.")
@click.option("--step", default=0, type=click.IntRange(min=0), help="Which update, from 0.")
@click.option("--at", type=click.IntRange(min=0), help="Of a sequence; by default the last.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As in horn submit.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Instead of the network's own.")
@click.option("--backend", default=defaults.BACKEND, help="What makes the steps before.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks of errors.")
def command(target: str, args: tuple[str, ...], neuron: str, sample: int, step: int,
            at: int | None, settings: tuple[str, ...], seed: int | None, backend: str,
            as_json: bool, verbose: bool) -> None:  # fmt: skip
    """Train the job of TARGET up to a step, and show what one neuron does for a sample of it.

    Each message that comes in, with its weight and the gradient of that; what is fed forward; each
    synapse to the layers above, with the delta that comes back and what is pushed. The neuron runs
    in the interpreter, as it is written, and what it prints goes to stderr. Nothing is saved.

    Of a sequence: what the neuron does at each step, and the messages of the step --at.
    """
    import contextlib
    import sys

    from horn import terminal
    from horn.backends import make
    from horn.target import load_job
    from horn.training import neuron_trace

    with terminal.stdout_of_user(as_json):
        job = load_job(target, args, settings, seed)
        job.check_data()
    with contextlib.redirect_stdout(sys.stderr):
        found = neuron_trace.trace(
            job, lambda setup: make(backend, setup), neuron, sample, step, at
        )
    if as_json:
        terminal.print_json({"schema": "horn.trace/1", **dataclasses.asdict(found)})
        return
    _show(found)


def _show(found: NeuronTrace) -> None:
    from horn import terminal

    *at, channel = found.place or [0]
    where = f" at {', '.join(map(str, at))} in channel {channel}" if at else ""
    update = "step" if found.at is None else "update"
    click.echo(
        f"{found.neuron} ({found.kind}{where}), {update} {found.step}, sample {found.sample} of "
        f"the batch: row {found.row} of the data\n"
    )
    if found.at is not None:
        first = found.steps[0]
        deltas = [_named("delta", name, first.delta) for name in first.delta]
        terminal.table(
            ["Step", "sent", *deltas, "loss", *(f"State {name} after" for name in first.states)],
            [
                [str(t), *map(_said, (s.output, *s.delta.values(), s.loss, *s.states.values()))]
                for t, s in enumerate(found.steps)
            ],
            err=False,
        )  # fmt: skip
        click.echo(f"\nAt step {found.at}; gradients of weights are sums over all steps\n")
    names = list(found.incoming[0].weights) if found.incoming else []
    terminal.table(
        ["Message from", "input", *names, *(f"gradient of {name}" for name in names)],
        [
            [_from(m.source, m.heard), _said(m.input), *map(_said, m.weights.values()),
             *map(_said, m.gradients.values())]
            for m in found.incoming
        ],
        err=False,
    )  # fmt: skip
    click.echo()
    if found.sharing > 1:
        click.echo(
            f"{found.sharing} neurons share these weights; a gradient is the sum over all of them\n"
        )
    facts: list[tuple[str, Any]] = [("fed forward", found.fed)]
    if found.output != found.fed:
        facts.append(("after the interlayer", found.output))
    facts += [(_named("delta", name, found.delta), value) for name, value in found.delta.items()]
    facts += [] if found.target is None else [("target", found.target)]
    facts += [("loss of the sample", found.loss), ("learning rate", found.learning_rate)]
    for name, (value, gradient) in found.parameters.items():
        facts += [(f"Parameter {name}", value), ("  its gradient", gradient)]
    for name, (before, after) in found.states.items():
        facts += [(f"State {name} before", before), ("  and after", after)]
    for name, value in facts:
        click.echo(f"{name:<22}{_said(value)}")
    if found.outgoing:
        click.echo()
        several = list(dict.fromkeys(name for m in found.outgoing for name in m.weights))
        pushed = list(dict.fromkeys(name for m in found.outgoing for name in m.pushed))
        columns = [*several, "delta", "gradient", *(f"pushed to {name}" for name in pushed)]
        terminal.table(
            ["Synapse to", *columns],
            [
                [_from(m.receiver, m.heard), *(_said(m.weights.get(name)) for name in several),
                 " ".join(map(_said, m.deltas.values())) or "–", _said(m.gradient),
                 *(_said(m.pushed.get(name)) for name in pushed)]
                for m in found.outgoing
            ],
            err=False,
        )  # fmt: skip


def _named(what: str, name: str, among: Sized) -> str:
    return what if len(among) == 1 else f"{what} of {name}"


def _from(neuron: str, heard: str) -> str:
    return f"{neuron}, {heard}" if heard else neuron


def _said(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
