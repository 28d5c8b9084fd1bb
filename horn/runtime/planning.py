"""The choice of a placement: the cheapest by the cost model.

All placements where they are few, else descent from several starts, one choice at a time. The same
job gets the same placement every time on one machine: the order of trials is fixed, and a choice
changes only for a gain that is worth naming.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from horn.compiler import lower
from horn.compiler.partition import partition
from horn.compiler.placement import LAYER_SPLITS, LINK_SPLITS, Placement, pinned
from horn.compiler.program import Loop, Program
from horn.errors import CompileError, JobError
from horn.job import Job
from horn.network import Network
from horn.runtime.costs import Costs, Machine, StepCost

MAX_ALL = 100  # placements that are simply all tried
GAIN = 0.999  # a change is one if the time is less than this part of the old

Choice = tuple[str, ...]  # a word per link, then one per layer, in their order


@dataclass(frozen=True)
class Plan:
    """What a job will do on its tasks."""

    placement: Placement
    cost: StepCost


def choose(
    job: Job,
    n_tasks: int,
    pins: Mapping[str, str] | None = None,
    *,
    machine: Machine | None = None,
    transport: str = "shm",
) -> Plan:
    """The plan of a job on ``n_tasks`` tasks.

    pins : placements that are given, as ``placement.pinned`` reads them.

    Raises
    ------
    ModelError : a pin that names nothing. CompileError : a pin that cannot be followed.
    JobError : a network that is interpreted, on several tasks.
    """
    network = job.network
    if n_tasks > 1 and any(layer.neuron.interpreted for layer in network.layers):
        raise JobError("a network that is interpreted runs on one task; leave tasks out")
    fixed = pinned(network, pins)
    program = lower.training_program(network, job.optimizer, target_kind(job), thin=False)
    costs = Costs(
        network,
        machine or Machine(),
        n_tasks,
        min(job.batch_size, len(job.data)),
        job.dtype,
        transport,
        len(job.optimizer.slots),
    )
    found = Search(program, costs, fixed).run()
    return Plan(found[0], found[1])


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


class Search:
    """Tries placements of one program; remembers what each costs."""

    def __init__(
        self, program: Program, costs: Costs, fixed: Mapping[tuple[int, int], str]
    ) -> None:
        self.program, self.costs = program, costs
        self.network: Network = program.network
        self.links = [
            (layer.index, position)
            for layer in self.network.layers
            for position in range(len(layer.links))
        ]
        worked = {
            s.frame.layer
            for s in program.statements
            if isinstance(s, Loop) and s.frame.link is None
        }
        self.layers = [layer.index for layer in self.network.layers if layer.index in worked]
        self.options: list[tuple[str, ...]] = [
            (fixed[link],) if link in fixed else tuple(LINK_SPLITS) for link in self.links
        ] + [tuple(LAYER_SPLITS)] * len(self.layers)
        self.known: dict[Choice, StepCost | CompileError] = {}

    def run(self) -> tuple[Placement, StepCost]:
        if self.costs.n_tasks == 1:
            self.options = [options[:1] for options in self.options]
        best = self.all() if self.is_small() else self.descent()
        if best is None:
            raise next(e for e in self.known.values() if isinstance(e, CompileError))
        cost = self.known[best]
        assert isinstance(cost, StepCost)
        return self.placement(best), cost

    def is_small(self) -> bool:
        n = 1
        for options in self.options:
            n *= len(options)
        return n <= MAX_ALL

    def all(self) -> Choice | None:
        best: Choice | None = None
        for choice in itertools.product(*self.options):
            if best is None or self.seconds(choice) < GAIN * self.seconds(best):
                best = choice if self.seconds(choice) < float("inf") else best
        return best

    def descent(self) -> Choice | None:
        best: Choice | None = None
        for start in self.starts():
            end = self.down(start)
            if self.seconds(end) == float("inf"):
                continue
            if best is None or self.seconds(end) < GAIN * self.seconds(best):
                best = end
        return best

    def starts(self) -> Iterator[Choice]:
        n, m = len(self.links), len(self.layers)
        plain = ["receiver"] * n
        turns = [("receiver", "sender")[layer % 2 == 0] for layer, _ in self.links]
        for links in (turns, plain, ["replicated"] * n):
            words = [
                word if word in options else options[0]
                for word, options in zip(links, self.options, strict=False)
            ]
            mode = "rows" if words[:1] == ["replicated"] else "neurons"
            yield (*words, *[mode] * m)

    def down(self, choice: Choice) -> Choice:
        """The best that single changes lead to."""
        last = None
        while last != choice:
            last = choice
            for at, options in enumerate(self.options):
                for word in options:
                    other = (*choice[:at], word, *choice[at + 1 :])
                    if self.seconds(other) < GAIN * self.seconds(choice):
                        choice = other
        return choice

    def seconds(self, choice: Choice) -> float:
        """What a batch takes; infinite if the placement is illegal."""
        if choice not in self.known:
            self.known[choice] = self.cost(choice)
        found = self.known[choice]
        return float("inf") if isinstance(found, CompileError) else found.seconds

    def cost(self, choice: Choice) -> StepCost | CompileError:
        results = [] if self.program.loss is None else [self.program.loss]
        try:
            local = partition(self.program, self.placement(choice), results)
        except CompileError as error:
            return error
        return self.costs.step(local)

    def placement(self, choice: Choice) -> Placement:
        n = len(self.links)
        layers = dict(zip(self.layers, choice[n:], strict=True))
        idle = {layer.index: "neurons" for layer in self.network.layers}
        return Placement(dict(zip(self.links, choice[:n], strict=True)), {**idle, **layers})
