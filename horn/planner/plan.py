"""Plans: the work of a job's tasks, and its predicted cost."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from horn import defaults, summary
from horn import transport as transports
from horn.backends import target_kind
from horn.compiler import lower, parts
from horn.errors import JobError, ModelError, check_whole
from horn.job import Job
from horn.language.layers import Reading
from horn.layers import Layer
from horn.partition.placement import CHANNELS, Placement, pinned
from horn.partition.rewrite import homes
from horn.planner.assumptions import Assumption
from horn.planner.calibration import calibrate
from horn.planner.computing import Array
from horn.planner.cost_model import Costs, Superstep
from horn.planner.machine import Machine
from horn.planner.search import Search
from horn.program import Frame, Loop, Program, letter_axes
from horn.quantities import duration, size
from horn.topology import Topology, largest_share

DIVIDED = ("o", "i", "m", "c")  # the letters of frames along which tasks divide synapses
# Of a plan: traffic is counted for each pair of tasks, 0.4 GB and 20 s at 1,000.
MOST_TASKS = 1024
MAX_SHOWN = 4  # tasks whose shares are named one by one
Pins: TypeAlias = Mapping[str, str] | None  # as ``placement.pinned`` reads them


class RunFigures(Protocol):
    """The figures of a run: rows of the history, and the counters of each task."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def counters(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def iterations(self) -> int: ...


@dataclass(frozen=True)
class LayerPlan(summary.LayerSummary):
    """A layer on its tasks.

    work : "neurons" (each task computes its own), "channels" (those of its channels), "rows" (each
    its rows of the batch) or "all" (every task everything). neurons, synapses, weights : per task;
    a task computes ``neurons`` of them, and passes messages along ``synapses``. placement : by
    weight array, "receiver", "sender", "replicated", "channels" or "input_channels". n_messages,
    n_bytes : in a batch, of all tasks together, in the supersteps that begin here. seconds : of
    computing in a batch, predicted, of the slowest task.
    """

    work: str
    neurons: tuple[int, ...]
    synapses: tuple[int, ...]
    weights: tuple[int, ...]
    placement: dict[str, str]
    supersteps: tuple[int, ...]
    n_messages: int
    n_bytes: int
    seconds: float

    @property
    def partition(self) -> str:
        """The partition in words: 50 + 50, or 64 x 8, or all."""
        if self.work == "all" or (len(self.neurons) > 1 and self.index == 0):
            return "all"
        if self.work == "rows" and len(self.neurons) > 1:
            return "rows"
        return _each(self.neurons)

    @property
    def is_uneven(self) -> bool:
        """Whether a task's part of the synapses is not that of the neurons, by over a tenth of what
        it would have of equal parts.
        """
        n, total = sum(self.neurons), sum(self.synapses)
        return any(
            10 * len(self.neurons) * abs(own * n - neurons * total) > n * total
            for own, neurons in zip(self.synapses, self.neurons, strict=True)
        )


@dataclass(frozen=True)
class MeasuredStep:
    """The measured times of a run. step_s : an update, the median of the epochs. The others per
    update, of the slowest task, with evaluation: computing, packing and sending, waiting,
    unpacking.
    """

    step_s: float
    compute_s: float = 0.0
    send_s: float = 0.0
    wait_s: float = 0.0
    unpack_s: float = 0.0


@dataclass(frozen=True, repr=False)
class Plan:
    """The predicted work of a job on its tasks. Bytes and messages are those of a full batch.

    predicted_s : of an update. memory_bytes : per task, by purpose ("synapses": the lists of who
    hears whom in sparse links), without Python and its libraries; a host's tasks share one copy of
    the data. measured : None before a run (``after``).
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
        """The bytes that all tasks send in a batch; a block for two tasks counts twice."""
        return sum(s.n_bytes for s in self.supersteps)

    @property
    def n_messages(self) -> int:
        """The number of messages that all tasks send in a batch."""
        return sum(s.n_messages for s in self.supersteps)

    def after(self, run: RunFigures) -> Plan:
        """The same plan with the measured times of a run."""
        speeds = (row["samples_per_s"] for row in run.history)  # None of an epoch nobody told of
        rates = [speed for speed in speeds if speed]
        if not rates:
            return self

        def slowest(name: str) -> float:
            return max((row[name] for row in run.counters), default=0.0) / max(run.iterations, 1)

        send_s = slowest("pack_s") + slowest("send_s")
        times = slowest("compute_s"), send_s, slowest("wait_s"), slowest("unpack_s")
        measured = MeasuredStep(self.batch_size / statistics.median(rates), *times)
        return dataclasses.replace(self, measured=measured)

    def as_dict(self) -> dict[str, Any]:
        """The plan as a dictionary for JSON; seconds are floats, bytes whole numbers."""
        return {
            "tasks": self.n_tasks,
            "transport": self.transport,
            "batch_size": self.batch_size,
            "dtype": self.dtype,
            "assumed": self.assumed,
            "placement": {k: v for layer in self.layers for k, v in layer.placement.items()},
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
        columns = ["Layer", "Neuron", "Units", "Params", "Runs as", "Partition", "Placement",
                   "Messages", "Bytes", "Predicted"]  # fmt: skip
        rows = []
        is_uneven = any(layer.is_uneven for layer in self.layers)
        if is_uneven:
            columns.insert(6, "Synapses")
        for layer in self.layers:
            where = list(layer.placement.values())
            where = where[:1] if len(set(where)) == 1 else where
            rows.append(
                [
                    f"{layer.index} {layer.name}", layer.neuron, layer.extent,
                    f"{layer.parameters:,}", layer.runs_as, layer.partition,
                    *([_each(layer.synapses) if layer.index else "–"] if is_uneven else []),
                    ", ".join(where) or "–",
                    f"{layer.n_messages:,}", size(layer.n_bytes), duration(layer.seconds),
                ]
            )  # fmt: skip
        return columns, rows

    def superstep_rows(self) -> tuple[list[str], list[list[str]]]:
        columns = ["Superstep", "Carries", "Messages", "Bytes", "Predicted"]
        return columns, [
            [str(s.index), ", ".join(s.arrays), f"{s.n_messages:,}", size(s.n_bytes),
             duration(s.seconds)]
            for s in self.supersteps
        ]  # fmt: skip

    def lines(self) -> list[str]:
        tasks = f"{self.n_tasks} task{'s' if self.n_tasks > 1 else ''}"
        n = len(self.supersteps)
        said = [
            f"{tasks} over {self.transport} · batch {self.batch_size} · {n} superstep"
            f"{'' if n == 1 else 's'}, {self.n_messages:,} messages and {size(self.n_bytes)} "
            f"per batch"
        ]
        largest = {what: max(each) for what, each in self.memory_bytes.items()}
        data = largest.pop("data")
        if not largest["synapses"]:  # no sparse links
            del largest["synapses"]
        parts = ", ".join(f"{what} {size(n)}" for what, n in largest.items())
        said.append(
            f"Memory per task about {size(sum(largest.values()))}: {parts}; data, once per host, "
            f"{size(data)}"
        )
        took = "" if self.measured is None else f", measured {duration(self.measured.step_s)}"
        where = f" where {self.assumed}" if self.assumed else ""
        said.append(f"Predicted {duration(self.predicted_s)} per batch{where}{took}")
        return said

    def __repr__(self) -> str:
        tables = [self.rows()] + ([self.superstep_rows()] if self.supersteps else [])
        return "\n\n".join([*(in_columns(*table) for table in tables), "\n".join(self.lines())])


def plan(
    job: Job,
    *,
    tasks: int = 1,
    pins: Pins = None,
    transport: str | None = None,
    assume: str | None = None,
    threads: int | None = None,
) -> Plan:
    """Predict a job's work on so many tasks: where weights live, what is sent, how long it takes.

    pins : the homes of a layer's weights, {"layer1": "receiver", "sender", "replicated" or, of
    windows, "channels" or "input_channels"}; the planner chooses the others. transport : "shm" (by
    default), "ipc" or "tcp".
    assume : another machine than this one, "tasks=64,bandwidth=10Gbit,latency=50us,cores=64,
    flops=100G", of which any part may be left out; then ``transport`` is "tcp" by default.
    threads : per task.

    Print the plan, or take ``as_dict()``; ``after(run)`` adds the measured times of a run.

    Raises
    ------
    ModelError, CompileError : a pin that names nothing, or cannot be followed.
    JobError : ``assume`` cannot be read, or says other ``tasks``; they are over 1,024; the network
    is interpreted, on several tasks.
    """
    if not isinstance(job, Job):
        raise JobError(f"horn.plan takes a horn.Job, got {job!r}; write horn.plan(horn.Job(net))")
    if assume is not None and not isinstance(assume, str):
        raise JobError(f'assume is text, as in "tasks=64,bandwidth=10Gbit"; got {assume!r}')
    said = Assumption.parse(assume) if assume else Assumption()
    if threads is not None:
        check_whole("threads", threads, 1)
    check_whole("tasks", tasks, 1)
    if said.tasks is not None and tasks not in (1, said.tasks):
        raise JobError(
            f"tasks={tasks}, but assume={assume!r} says tasks={said.tasks}; write the number of "
            f"tasks once"
        )
    n_tasks = said.tasks or tasks
    if n_tasks > MOST_TASKS:
        raise JobError(
            f"a plan of {n_tasks:,} tasks: at most {MOST_TASKS:,} can be planned, since what each "
            f"sends to each other is counted; plan for fewer"
        )
    carrier = transport or (transports.across_hosts() if assume else defaults.TRANSPORT)
    machine = said.machine(calibrate(job.dtype), n_tasks, carrier)
    if assume and threads is None:
        threads = 1
    found = cheapest(job, n_tasks, pins, machine=machine, transport=carrier, threads=threads)
    return dataclasses.replace(found, assumed=assume or "")


def cheapest(job: Job, n_tasks: int, pins: Pins = None, **settings: Any) -> Plan:
    """The plan of a job on ``n_tasks`` tasks with the cheapest placement. settings : of ``search``.
    Raises as ``search``, and CompileError for a pin that cannot be followed.
    """
    found = search(job, n_tasks, pins, **settings)
    placement, program = found.run()
    return _described(job, placement, program, found.costs)


def advice(
    job: Job,
    topology: Topology,
    pins: Pins = None,
    *,
    shares_batch: bool = True,
    divides: bool = True,
    transport: str = defaults.TRANSPORT,
    threads: int | None = None,
) -> list[str]:
    """Warnings before a start, a line each: more tasks are no faster than one, or exceed the cores.
    shares_batch : groups share every batch. divides : tasks of a group divide the network.
    """
    n_groups, n_tasks = topology.n_groups, topology.n_tasks
    n = n_groups * n_tasks + topology.n_servers
    if n == 1 or any(layer.neuron.interpreted for layer in job.network.layers):
        return []
    machine = calibrate(job.dtype)
    cores = machine.n_cores
    times, is_slower = "", False
    if divides and (n_tasks > 1 or shares_batch):
        size = largest_share(job.batch_size, n_groups) if shares_batch else job.batch_size
        mine = job.with_settings(batch_size=size)
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
    pins: Pins = None,
    *,
    machine: Machine | None = None,
    transport: str = defaults.TRANSPORT,
    threads: int | None = None,
    n_groups: int = 1,
) -> Search:
    """The search for a job's placement.

    machine : by default this one, with so many ``threads`` per task, and so many groups at the same
    time. Raises ModelError for a pin that names nothing, JobError for an interpreted network on
    several tasks and for an unknown transport.
    """
    network = job.network
    if n_tasks > 1 and any(layer.neuron.interpreted for layer in network.layers):
        raise JobError("a network that is interpreted runs on one task; leave tasks out")
    fixed = pinned(network, pins)
    _check_sequences(job, fixed)
    machine = machine or calibrate(job.dtype)
    kind = transports.load(transport)  # perhaps one of the user's, with a figure assumed
    machine = dataclasses.replace(
        machine,
        latency_s={transport: kind.latency_s, **machine.latency_s},
        bandwidth_bytes_per_s={transport: kind.bytes_per_s, **machine.bandwidth_bytes_per_s},
    )
    target = target_kind(job.network, job.target, job.data)
    part = parts.length_of(network.steps) if job.recompute else 0
    reading = Reading()
    program = lower.training_program(
        network, job.optimizer, target, thin=False, part=part, reading=reading
    )
    batch_size = job.most_rows
    each = threads or max(len(os.sched_getaffinity(0)) // n_tasks, 1)
    costs = Costs(network, machine, n_tasks, batch_size, job.dtype, transport, each, n_groups)
    return Search(program, costs, fixed, lower.inference_program(network, target, reading=reading))


def _check_sequences(job: Job, fixed: Mapping[tuple[int, int], str]) -> None:
    """Check the pins of a network of sequences: they divide receivers only, of whole layers, in a
    job without carried state or recomputing. Raises ModelError.
    """
    network = job.network
    divided = {layer for (layer, _), where in fixed.items() if where != "replicated"}
    if not network.steps or not divided:
        return
    for layer in (network.layers[index] for index in sorted(divided)):
        for position in range(len(layer.links)):
            where = fixed.get((layer.index, position), "receiver")
            if where != "receiver":
                raise ModelError(
                    f"pin {layer.called(position)}={where}: tasks of a network of sequences divide "
                    "the rows of each batch, and every task has all weights; or the receivers of a "
                    f"layer, all of whose weights are pinned to them: {layer.name}=receiver, which "
                    f"sends a part of the layer at each of {network.steps} steps"
                )
    one = network.layers[min(divided)].name
    if job.stateful or job.recompute:
        what = "a stateful job" if job.stateful else f'recompute="{job.recompute}"'
        raise ModelError(
            f"pin {one}=receiver: tasks of {what} divide the rows of each batch, and nothing "
            "travels between its steps; leave the pin out"
        )


# --- the description


def _described(job: Job, placement: Placement, program: Program, costs: Costs) -> Plan:
    cost, network = costs.step(program), job.network
    sizes = {name: costs.computing.size(axes) for name, axes in homes(network, placement).items()}

    def described(layer: Layer, row: summary.LayerSummary) -> LayerPlan:
        work = placement.layers.get(layer.index, "all")
        share = {"neurons": "@own", CHANNELS: "@map"}.get(work, "")
        axis = f"n{layer.index}" + (share if layer.index else "")
        sent = [s for s in cost.supersteps if s.layer == layer.index]
        arrays = [array for link in layer.links for array in link.weights.values()]
        weights = sum((sizes[array] for array in arrays), np.zeros(costs.n_tasks))
        frames = [
            placement.at(Frame(layer.index, position)) for position in range(len(layer.links))
        ]
        each = (costs.computing.size(letter_axes(network, frame, "oi")) for frame in frames)
        synapses = sum(each, np.zeros(costs.n_tasks))
        return LayerPlan(
            **vars(row),
            work=work,
            neurons=tuple(map(int, costs.computing.length(axis))),
            synapses=tuple(map(int, synapses)),
            weights=tuple(map(int, weights)),
            placement={
                layer.called(position): placement.links.get((layer.index, position), "replicated")
                for position in range(len(layer.links))
            },
            supersteps=tuple(s.index for s in sent),
            n_messages=sum(s.n_messages for s in sent),
            n_bytes=sum(s.n_bytes for s in sent),
            seconds=cost.layers.get(layer.index, 0.0),
        )

    def n_bytes(arrays: Iterable[Array]) -> tuple[int, ...]:
        return tuple(int(n) * costs.itemsize for n in sum(arrays, np.zeros(costs.n_tasks)))

    states = {f"{layer.name}.{state}" for layer in network.layers for state in layer.states}
    learned = n_bytes(elements for name, elements in sizes.items() if name not in states)
    work = [
        costs.computing.size(b.axes)
        * (1 if b.span is None else program.steps_of_buffers + sum(b.span))
        for b in program.buffers.values()
        if b.role == "work"
    ]
    memory = {
        "parameters": learned,
        "optimizer": tuple(n * len(job.optimizer.slots) for n in learned),
        "activations": n_bytes(work),
        "synapses": _list_bytes(program, costs),
        "data": (summary.memory_bytes(job)["data"],) * costs.n_tasks,
    }
    return Plan(
        costs.n_tasks,
        costs.transport,
        costs.batch_size,
        job.dtype,
        placement,
        tuple(map(described, network.layers, summary.layers(network))),
        cost.supersteps,
        cost.seconds,
        memory,
    )


def _list_bytes(program: Program, costs: Costs) -> tuple[int, ...]:
    """The memory of the lists of who hears whom in sparse links, per task: those of the network,
    and the kernels' own of the task's synapses. Windows run without.
    """
    layers = program.network.layers
    sparse = [
        (layer.index, position)
        for layer in layers
        for position, link in enumerate(layer.links)
        if link.owner.edges is not None and link.owner.edges.has_list
    ]
    whole = {id(e): e for layer, k in sparse if (e := layers[layer].links[k].edges) is not None}
    n_bytes = np.full(costs.n_tasks, sum(8.0 * (e.n + len(e.indptr)) for e in whole.values()))
    frames = {s.frame for s in program.statements if isinstance(s, Loop) and not s.frame.shared}
    splits = {(f.layer, f.link, f.split if f.split in DIVIDED else "") for f in frames}
    for layer, position, split in splits:
        if position is not None and (layer, position) in sparse:
            edges, ends = (
                costs.computing.size(letter_axes(program.network, Frame(layer, position, split), x))
                for x in ("oi", "o")
            )
            # four numbers of 32 bits for a synapse, by receiver and by source; where a task has a
            # part, the sources as numbers of its own, and of a sender's the places too
            n_bytes += edges * (16 + 8 * (split != "") + 8 * (split == "i")) + 8 * ends
    return tuple(map(int, n_bytes))


# --- words


def _each(of_tasks: tuple[int, ...]) -> str:
    """The numbers of tasks in words: 50 + 50, or 64 x 8, or 64 x 7-8."""
    if len(of_tasks) <= MAX_SHOWN:
        return " + ".join(f"{n:,}" for n in of_tasks)
    low, high = min(of_tasks), max(of_tasks)
    return f"{len(of_tasks)} x {low:,}" + (f"-{high:,}" if high > low else "")


def in_columns(columns: list[str], rows: list[list[str]]) -> str:
    """A table of plain text; columns of numbers are aligned to the right."""
    right = {"Units", "Params", "Messages", "Bytes", "Predicted"}
    table = []
    for name, *cells in zip(columns, *rows, strict=True):
        width = max(map(len, (name, *cells)))
        table.append([f"{x:{'>' if name in right else '<'}{width}}" for x in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*table, strict=True))
