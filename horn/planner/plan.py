"""Plans: what a job will do on its tasks, and what that will cost.

``cheapest`` finds the cheapest placement by the cost model; ``plan`` is ``horn.plan``.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from horn import summary
from horn import transport as transports
from horn.compiler import lower
from horn.compiler.partition import homes
from horn.compiler.placement import Placement, pinned
from horn.compiler.program import Program
from horn.errors import JobError
from horn.job import Job
from horn.network import Layer
from horn.planner.assumptions import Assumption
from horn.planner.calibration import calibrate
from horn.planner.cost_model import Costs, Machine, StepCost, Superstep
from horn.planner.search import Search
from horn.topology import Topology, largest_share

MAX_SHOWN = 4  # tasks whose shares are named one by one


class RunFigures(Protocol):
    """What a run says of itself: rows of the history, and the counters of each task."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def counters(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def iterations(self) -> int: ...


@dataclass(frozen=True)
class LayerPlan:
    """A layer on its tasks.

    work : "neurons" (each task computes its own), "rows" (each its rows of the batch) or "all"
    (every task everything). neurons, weights : per task; a task has ``neurons`` of them to compute.
    placement : by weight array, "receiver", "sender" or "replicated". n_messages, n_bytes : in a
    batch, of all tasks together, in the supersteps that begin here. seconds : computing in a batch,
    predicted, of the slowest task.
    """

    index: int
    name: str
    neuron: str
    units: int
    parameters: int
    runs_as: str
    work: str
    neurons: tuple[int, ...]
    weights: tuple[int, ...]
    placement: dict[str, str]
    supersteps: tuple[int, ...]
    n_messages: int
    n_bytes: int
    seconds: float

    @property
    def partition(self) -> str:
        """In words: 50 + 50, or 64 x 8, or all."""
        if self.work == "all" or (len(self.neurons) > 1 and self.index == 0):
            return "all"
        if self.work == "rows" and len(self.neurons) > 1:
            return "rows"
        if len(self.neurons) <= MAX_SHOWN:
            return " + ".join(map(str, self.neurons))
        low, high = min(self.neurons), max(self.neurons)
        return f"{len(self.neurons)} x {low if low == high else f'{low}-{high}'}"


@dataclass(frozen=True)
class MeasuredStep:
    """What a run took. step_s : an update, the median of the epochs. The rest per update, of the
    slowest task, evaluation included: computing, packing and sending, waiting, unpacking.
    """

    step_s: float
    compute_s: float = 0.0
    send_s: float = 0.0
    wait_s: float = 0.0
    unpack_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What a job will do on its tasks. Bytes and messages are those of a full batch.

    predicted_s : an update. memory_bytes : per task, by what for; the data are there once for all
    tasks of a host. measured : None before a run (``after``).
    """

    n_tasks: int
    transport: str
    batch_size: int
    dtype: str
    placement: Placement
    layers: tuple[LayerPlan, ...]
    supersteps: tuple[Superstep, ...]
    predicted_s: float
    memory_bytes: dict[str, tuple[int, ...]]
    assumed: str = ""
    measured: MeasuredStep | None = None

    @property
    def n_bytes(self) -> int:
        """What all tasks send in a batch; a block for two tasks counts twice."""
        return sum(s.n_bytes for s in self.supersteps)

    @property
    def n_messages(self) -> int:
        """How many messages all tasks send in a batch."""
        return sum(s.n_messages for s in self.supersteps)

    def after(self, run: RunFigures) -> Plan:
        """The same with what a run of it took."""
        rates = [row["samples_per_s"] for row in run.history if row["samples_per_s"] > 0]
        if not rates:
            return self
        each = {
            name: max((row[name] for row in run.counters), default=0.0) / max(run.iterations, 1)
            for name in ("compute_s", "pack_s", "send_s", "wait_s", "unpack_s")
        }
        measured = MeasuredStep(
            self.batch_size / statistics.median(rates),
            each["compute_s"],
            each["pack_s"] + each["send_s"],
            each["wait_s"],
            each["unpack_s"],
        )
        return dataclasses.replace(self, measured=measured)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; seconds are floats, bytes whole numbers."""
        links = {name: where for layer in self.layers for name, where in layer.placement.items()}
        return {
            "tasks": self.n_tasks,
            "transport": self.transport,
            "batch_size": self.batch_size,
            "dtype": self.dtype,
            "assumed": self.assumed,
            "placement": links,
            "layers": [
                {**dataclasses.asdict(layer), "partition": layer.partition} for layer in self.layers
            ],
            "supersteps": [dataclasses.asdict(superstep) for superstep in self.supersteps],
            "messages_per_batch": self.n_messages,
            "bytes_per_batch": self.n_bytes,
            "predicted_s": self.predicted_s,
            "memory_bytes_per_task": {k: list(v) for k, v in self.memory_bytes.items()},
            "measured": None if self.measured is None else dataclasses.asdict(self.measured),
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The table of layers: its columns, its rows."""
        columns = ["Layer", "Neuron", "Units", "Params", "Runs as", "Partition", "Placement",
                   "Messages", "Bytes", "Predicted"]  # fmt: skip
        rows = []
        for layer in self.layers:
            where = ", ".join(dict.fromkeys(layer.placement.values())) or "–"
            if len(set(layer.placement.values())) > 1:
                where = ", ".join(layer.placement.values())
            rows.append(
                [
                    f"{layer.index} {layer.name}", layer.neuron, f"{layer.units:,}",
                    f"{layer.parameters:,}", layer.runs_as, layer.partition, where,
                    f"{layer.n_messages:,}", size(layer.n_bytes), duration(layer.seconds),
                ]
            )  # fmt: skip
        return columns, rows

    def superstep_rows(self) -> tuple[list[str], list[list[str]]]:
        """The table of supersteps."""
        columns = ["Superstep", "Carries", "Messages", "Bytes", "Predicted"]
        return columns, [
            [str(s.index), ", ".join(s.arrays), f"{s.n_messages:,}", size(s.n_bytes),
             duration(s.seconds)]
            for s in self.supersteps
        ]  # fmt: skip

    def lines(self) -> list[str]:
        """What is said below the tables."""
        tasks = f"{self.n_tasks} task{'s' if self.n_tasks > 1 else ''}"
        n = len(self.supersteps)
        said = [
            f"{tasks} over {self.transport} · batch {self.batch_size} · {n} superstep"
            f"{'' if n == 1 else 's'}, {self.n_messages:,} messages and {size(self.n_bytes)} "
            f"per batch"
        ]
        parts = [
            f"{what} {size(max(each))}"
            for what, each in self.memory_bytes.items()
            if what != "data"
        ]
        total = sum(max(each) for what, each in self.memory_bytes.items() if what != "data")
        said.append(
            f"Memory per task about {size(total)}: {', '.join(parts)}; data, once per host, "
            f"{size(max(self.memory_bytes['data']))}"
        )
        took = "" if self.measured is None else f", measured {duration(self.measured.step_s)}"
        where = f" where {self.assumed}" if self.assumed else ""
        said.append(f"Predicted {duration(self.predicted_s)} per batch{where}{took}")
        return said

    def __str__(self) -> str:
        tables = [self.rows()] + ([self.superstep_rows()] if self.supersteps else [])
        return "\n\n".join([*(in_columns(*table) for table in tables), "\n".join(self.lines())])


def plan(
    job: Job,
    *,
    tasks: int = 1,
    pins: Mapping[str, str] | None = None,
    transport: str | None = None,
    assume: str | None = None,
    threads: int | None = None,
) -> Plan:
    """What a job will do on so many tasks: where weights live, what is sent, how long it takes.

    pins : where the weights of a layer live, {"layer1": "receiver", "sender" or "replicated"}; the
    rest is chosen. transport : "shm" (by default), "ipc" or "tcp". assume : a machine that is not
    here, "tasks=64,bandwidth=10Gbit,latency=50us,cores=64,flops=100G", of which any part may be
    left out; then ``transport`` is "tcp" by default. threads : per task.

    Print it, or take ``as_dict()``; ``after(run)`` adds what a run took.

    Raises
    ------
    ModelError, CompileError : a pin that names nothing, or cannot be followed.
    JobError : what is assumed cannot be read; the network is interpreted, on several tasks.
    """
    if not isinstance(job, Job):
        raise JobError(f"horn.plan takes a horn.Job, got {job!r}; write horn.plan(horn.Job(net))")
    said = Assumption.parse(assume) if assume else Assumption()
    n_tasks = said.tasks or tasks
    if not isinstance(n_tasks, int) or isinstance(n_tasks, bool) or n_tasks < 1:
        raise JobError(f"tasks must be a whole number from 1, got {n_tasks!r}")
    carrier = transport or (transports.across_hosts() if assume else transports.DEFAULT)
    machine = said.machine(calibrate(job.dtype), n_tasks, carrier)
    if assume and threads is None:
        threads = 1
    found = cheapest(job, n_tasks, pins, machine=machine, transport=carrier, threads=threads)
    return dataclasses.replace(found, assumed=assume or "")


def cheapest(
    job: Job,
    n_tasks: int,
    pins: Mapping[str, str] | None = None,
    *,
    machine: Machine | None = None,
    transport: str = transports.DEFAULT,
    threads: int | None = None,
    n_groups: int = 1,
) -> Plan:
    """The plan of a job on ``n_tasks`` tasks.

    pins : placements that are given, as ``placement.pinned`` reads them. machine : by default this
    one, with so many ``threads`` per task, and so many groups at the same time.

    Raises
    ------
    ModelError : a pin that names nothing. CompileError : a pin that cannot be followed.
    JobError : a network that is interpreted, on several tasks; no such transport.
    """
    found = search(
        job, n_tasks, pins, machine=machine, transport=transport, threads=threads, n_groups=n_groups
    )
    placement, program = found.run()
    return _described(job, placement, program, found.costs)


def advice(
    job: Job,
    topology: Topology,
    pins: Mapping[str, str] | None = None,
    *,
    shares_batch: bool = True,
    divides: bool = True,
    machine: Machine | None = None,
    transport: str = transports.DEFAULT,
    threads: int | None = None,
) -> list[str]:
    """What is better known before a start, in a line each: that more tasks are no faster than one,
    that there are more of them than cores. What groups send one another is not counted.

    shares_batch : groups share every batch. divides : tasks of a group divide the network.
    """
    n_groups, n_tasks = topology.n_groups, topology.n_tasks
    n = n_groups * n_tasks + topology.n_servers
    if n == 1 or any(layer.neuron.interpreted for layer in job.network.layers):
        return []
    machine = machine or calibrate(job.dtype)
    cores = machine.n_cores
    size = largest_share(job.batch_size, n_groups) if shares_batch else job.batch_size
    mine = job.with_settings(batch_size=size)
    times = ""
    is_slower = False
    if divides and (n_tasks > 1 or shares_batch):
        alone = cheapest(job, 1, machine=machine, threads=threads or cores).predicted_s
        this = cheapest(
            mine, n_tasks, pins, machine=machine, transport=transport,
            threads=threads or max(cores // (n_groups * n_tasks), 1), n_groups=n_groups,
        ).predicted_s  # fmt: skip
        is_slower = this >= alone
        times = f": predicted {duration(this)} per batch, {duration(alone)} on 1 task"
    if n > cores:
        which = f"{n} processes on {cores} core{'s' * (cores > 1)} take turns"
        return [f"{which}{times}. At most {cores} can work at the same time"]
    if is_slower:
        return [f"This network is too small to be faster on {n} tasks{times}"]
    return []


def search(
    job: Job,
    n_tasks: int,
    pins: Mapping[str, str] | None = None,
    *,
    machine: Machine | None = None,
    transport: str = transports.DEFAULT,
    threads: int | None = None,
    n_groups: int = 1,
) -> Search:
    """What ``cheapest`` looks for its placement with."""
    network = job.network
    if n_tasks > 1 and any(layer.neuron.interpreted for layer in network.layers):
        raise JobError("a network that is interpreted runs on one task; leave tasks out")
    machine = machine or calibrate(job.dtype)
    if transport not in machine.latency_s:  # then one of the user's
        kind = transports.load(transport)
        machine = dataclasses.replace(
            machine,
            latency_s={**machine.latency_s, transport: kind.latency_s},
            bandwidth_bytes_per_s={**machine.bandwidth_bytes_per_s, transport: kind.bytes_per_s},
        )
    fixed = pinned(network, pins)
    target = target_kind(job)
    program = lower.training_program(network, job.optimizer, target, thin=False)
    batch_size = min(job.batch_size, len(job.data))
    each = threads or max(len(os.sched_getaffinity(0)) // n_tasks, 1)
    costs = Costs(network, machine, n_tasks, batch_size, job.dtype, transport, each, n_groups)
    return Search(program, costs, fixed, lower.inference_program(network, target))


def target_kind(job: Job) -> str | None:
    """What the Target statement of a job's program reads."""
    if job.network.loss is None or job.target is None:
        return None
    if job.target == "input":
        return "input"
    if job.data.y is None:
        return None
    if job.data.y.ndim == 1:
        return "label" if job.network.last.size > 1 else "value"
    return "values"


# --- the description


def _described(job: Job, placement: Placement, program: Program, costs: Costs) -> Plan:
    cost = costs.step(program)
    network = job.network
    where = homes(network, placement)
    sizes = {name: [int(n) for n in costs.size(axes)] for name, axes in where.items()}
    rows = {row.index: row for row in summary.layers(network)}
    layers = tuple(
        _layer(layer, rows[layer.index], placement, sizes, cost, costs) for layer in network.layers
    )
    item = costs.itemsize
    learned = [
        item * sum(n[task] for name, n in sizes.items() if not _is_state(network.layers, name))
        for task in range(costs.n_tasks)
    ]
    work = [0] * costs.n_tasks
    for buffer in program.buffers.values():
        if buffer.role == "work":
            for task, n in enumerate(costs.size(buffer.axes)):
                work[task] += int(n) * item
    memory = {
        "parameters": tuple(learned),
        "optimizer": tuple(n * len(job.optimizer.slots) for n in learned),
        "activations": tuple(work),
        "data": (summary.memory_bytes(job)["data"],) * costs.n_tasks,
    }
    return Plan(
        costs.n_tasks,
        costs.transport,
        costs.batch_size,
        job.dtype,
        placement,
        layers,
        cost.supersteps,
        cost.seconds,
        memory,
    )


def _is_state(layers: tuple[Layer, ...], name: str) -> bool:
    return any(name == f"{layer.name}.{state}" for layer in layers for state in layer.states)


def _layer(
    layer: Layer,
    row: summary.LayerSummary,
    placement: Placement,
    sizes: Mapping[str, list[int]],
    cost: StepCost,
    costs: Costs,
) -> LayerPlan:
    work = placement.layers[layer.index]
    axis = f"n{layer.index}" + ("@own" if work == "neurons" and layer.index else "")
    sent = [s for s in cost.supersteps if s.layer == layer.index]
    weights = [sizes[array] for link in layer.links for array in link.weights.values()]
    return LayerPlan(
        layer.index,
        layer.name,
        row.neuron,
        row.units,
        row.parameters,
        row.runs_as,
        work,
        tuple(int(n) for n in costs.length(axis)),
        tuple(int(n) for n in np.sum(weights, axis=0)) if weights else (0,) * costs.n_tasks,
        {
            link.weight: placement.links[layer.index, position]
            for position, link in enumerate(layer.links)
        },
        tuple(s.index for s in sent),
        sum(s.n_messages for s in sent),
        sum(s.n_bytes for s in sent),
        cost.layers.get(layer.index, 0.0),
    )


# --- words


def size(n_bytes: float) -> str:
    """512 B, 30.5 kB, 2.3 MB"""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def duration(seconds: float) -> str:
    """12 us, 3.4 ms, 1.2 s"""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def in_columns(columns: list[str], rows: list[list[str]]) -> str:
    """A table of plain text; all columns but words stand to the right."""
    widths = [max(len(line[k]) for line in [columns, *rows]) for k in range(len(columns))]
    right = {"Units", "Params", "Messages", "Bytes", "Predicted"}
    lines = []
    for line in [columns, *rows]:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
