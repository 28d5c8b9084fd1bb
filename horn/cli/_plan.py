"""What horn submit says of a job before it begins, and of --dry-run: its plan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from horn.errors import HornError

if TYPE_CHECKING:
    from horn.job import Job
    from horn.planner.plan import Plan
    from horn.training.run_settings import RunSettings


def show(job: Job, asked: RunSettings) -> None:
    """Print the layers and the size of a job that begins, on stderr."""
    from horn import quantities, summary, terminal

    rows = summary.layers(job.network, asked.backend)
    terminal.table(
        ["Layer", "Neuron", "Units", "Params", "Runs as"],
        [[f"{r.index} {r.name}", r.neuron, r.extent, f"{r.parameters:,}", r.runs_as] for r in rows],
        err=True,
    )
    memory = summary.memory_bytes(job)
    parameters = quantities.size(memory["parameters"])
    terminal.say(
        f"{sum(r.parameters for r in rows):,} parameters, {parameters} · "
        f"{type(job.optimizer).__name__} · batch {job.batch_size} · {len(job.data):,} samples · "
        f"{job.n_iterations:,} updates · seed {job.network.seed}"
        + ("" if asked.groups * asked.tasks == 1 else f"\n{_topology(asked)}")
        + "\n"
    )


def _topology(asked: RunSettings) -> str:
    """The strategy and groups in words: downpour (push_every=4) · 2 groups × 2 tasks"""
    from horn.strategies import in_words

    groups, tasks = asked.groups, asked.tasks
    return (
        f"{in_words(asked.made_strategy)} · {groups} group{'s' * (groups > 1)} × "
        f"{tasks} task{'s' * (tasks > 1)}"
    )


def dry_run(job: Job, asked: RunSettings, as_json: bool, assume: str | None) -> None:
    """Print the plan on stdout: it is the result here."""
    from horn import quantities, summary, terminal

    rows = summary.layers(job.network, asked.backend)
    memory = summary.memory_bytes(job)
    plan = _tasks_plan(job, assume, asked)
    advice = [] if assume else advise(job, asked)
    if as_json:
        terminal.print_json(
            {
                "schema": "horn.plan/1",
                "layers": [dataclasses.asdict(row) for row in rows],
                "memory_bytes": memory,
                "samples": len(job.data),
                "batch_size": job.batch_size,
                "iterations": job.n_iterations,
                "iterations_per_epoch": job.iterations_per_epoch,
                "optimizer": summary.in_words(job.optimizer),
                "dtype": job.dtype,
                "seed": job.network.seed,
                "groups": asked.groups,
                "tasks": asked.tasks,
                "strategy": asked.made_strategy.name,
                "group": None if plan is None else plan.as_dict(),
                "advice": advice,
            }
        )
        return
    if plan is None:
        terminal.table(
            ["Layer", "Neuron", "Units", "Params", "Runs as", "Backward"],
            [
                [f"{r.index} {r.name}", r.neuron, r.extent, f"{r.parameters:,}", r.runs_as,
                 summary.backward_of(job.network.layers[r.index]) if r.index else "–"]
                for r in rows
            ],
            err=False,
        )  # fmt: skip
    else:
        terminal.table(*plan.rows(), err=False)
        if plan.supersteps:
            click.echo()
            terminal.table(*plan.superstep_rows(), err=False)
        click.echo()
    n_parameters = sum(row.parameters for row in rows)
    click.echo(f"{n_parameters:,} parameters · {job.dtype} · {summary.in_words(job.optimizer)}")
    click.echo(
        f"{len(job.data):,} samples · batch {job.batch_size} · {job.n_iterations:,} updates "
        f"({job.iterations_per_epoch:,} per epoch) · seed {job.network.seed}"
    )
    if plan is None:
        parts = ", ".join(f"{name} {quantities.size(value)}" for name, value in memory.items())
        click.echo(f"Memory about {quantities.size(sum(memory.values()))}: {parts}")
        click.echo(_groups_plan(job, n_parameters, asked) if asked.groups > 1 else
                   "1 group of 1 task: nothing is sent.", nl=False)  # fmt: skip
        click.echo(" Dry run: nothing was trained or written.")
        return
    for line in plan.lines():
        click.echo(line)
    if asked.groups > 1:
        click.echo(_groups_plan(job, n_parameters, asked))
    click.echo("Dry run: nothing was trained or written.")


def advise(job: Job, asked: RunSettings) -> list[str]:
    """Print advice before a start; returns its lines."""
    from horn import strategies, terminal
    from horn.backends import is_compiled
    from horn.planner.plan import advice

    if asked.groups * asked.tasks == 1 or not is_compiled(asked.backend, job.network):
        return []
    strategy, topology = asked.made_strategy, asked.topology
    strategy.check(job, topology)
    found = advice(
        job,
        topology,
        dict(asked.pins or {}),
        shares_batch=strategy.prepared(job, topology).batch_size == job.batch_size,
        divides=type(strategy).engine is strategies.Strategy.engine,
        transport=asked.transport,
        threads=asked.threads,
    )
    for line in found:
        terminal.say(f"{line}.")
    return found


def _groups_plan(job: Job, n_parameters: int, asked: RunSettings) -> str:
    """How the groups share the work; the tables above are of one group."""
    from horn import quantities
    from horn.errors import JobError
    from horn.strategies import in_words
    from horn.topology import largest_share

    groups, tasks, strategy = asked.groups, asked.tasks, asked.made_strategy
    if groups > job.batch_size and not strategy.is_asynchronous:
        raise JobError(
            f"{groups} groups share batches of {job.batch_size} samples: each needs one at least; "
            f"use fewer groups, or a larger batch_size"
        )
    size = quantities.size(n_parameters * (8 if job.dtype == "float64" else 4))
    most = largest_share(job.batch_size, groups)
    share = f"they share each batch, at most {most} samples a group"
    if strategy.is_asynchronous:
        share = f"each has batches of {job.batch_size} of its own"
    return (
        f"{groups} groups of {tasks} task{'s' * (tasks > 1)}, {in_words(strategy)}: {share}; a "
        f"replica has {size} of parameters. The plan above is of one group."
    )


def _tasks_plan(job: Job, assume: str | None, asked: RunSettings) -> Plan | None:
    """The plan of several tasks, or on another machine; None for one task here."""
    if asked.tasks == 1 and assume is None:
        return None
    from horn.planner.assumptions import Assumption
    from horn.planner.plan import plan

    if assume is not None:
        try:
            Assumption.parse(assume)
        except HornError as error:
            raise click.UsageError(f"--{error}") from None
    context = click.get_current_context()
    is_given = context.get_parameter_source("transport") != click.core.ParameterSource.DEFAULT
    return plan(
        job,
        tasks=asked.tasks,
        pins=dict(asked.pins or {}),
        transport=asked.transport if is_given or assume is None else None,
        assume=assume,
        threads=asked.threads,
    )
