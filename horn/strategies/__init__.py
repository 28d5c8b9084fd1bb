"""Strategies, which keep groups together, each a replica of the network over its tasks.

Each file here is one (``horn.registry``). A strategy is a frozen dataclass of settings; its methods
between batches are generators that yield requests (``Mean``, ``Push``, ``Pull``, ``Leave``) and
touch no socket. ``_replica`` carries the requests out. See docs/notes/0031.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from horn import mistakes, registry
from horn.backends import Engine
from horn.errors import JobError
from horn.job import Job
from horn.optimizers import Optimizer
from horn.runtime.requests import Leave as Leave
from horn.runtime.requests import Mean as Mean
from horn.runtime.requests import Pull as Pull
from horn.runtime.requests import Push as Push
from horn.runtime.requests import Requests as Requests
from horn.topology import Topology as Topology

if TYPE_CHECKING:
    from horn.parameter_server.pieces import ParameterPiece
    from horn.parameter_server.server import ParameterServer
    from horn.runtime.context import TaskContext

Array = np.ndarray[Any, Any]


class TaskEngine(Engine, Protocol):
    """The engine of one task of a group. own_loss : the mean loss of the group's own samples in the
    last batch. own_samples : their number, or that of steps where these count (``Replica``).
    """

    own_loss: float
    own_samples: int

    def views(self) -> Mapping[str, Mapping[str, Array]]:
        """This task's share of {"parameter": {name: array}, "state": ...}, read-only."""

    def rows_of(self, n: int) -> slice:
        """The rows of a batch of n that this task's group learns from; no other row is read."""

    def owns(self, name: str) -> bool:
        """Whether no task of a lower rank has the same part of an array."""

    def aside(self) -> dict[str, Any]:
        """The engine's state besides arrays, for JSON."""

    def recall_aside(self, found: Mapping[str, Any]) -> None:
        """Restore the state that ``aside`` returned."""

    def settle(self) -> None:
        """Called at the end of an epoch, before group 0 measures."""

    def conclude(self) -> None:
        """Called after the last batch."""

    def decide_end(self, epoch: int, stop: bool) -> bool:
        """Whether training ends after this epoch; ``stop`` : this group asks for the end."""


@dataclass
class View:
    """One task's replica for its strategy. Arrays are the task's share, and may be written. Names
    are those of ``Model.parameters``; of a slot "<array>/<slot>". Where groups are joined, arrays
    may move from one batch to the next: take them from the view each time.

    n_batches : that this group has computed. n_samples : of the current batch, in this group; their
    steps, if sequences end early and only steps are judged.
    """

    group: int
    task: int
    topology: Topology
    parameters: Mapping[str, Array]
    slots: Mapping[str, Array]
    n_batches: int = 0
    n_samples: int = 0


@dataclass(frozen=True)
class Strategy:
    """The settings that all strategies share (none), and the interface.

    Every method but ``engine`` is pure. A class of yours needs ``after_batch``, and a ``name`` for
    messages: see docs/strategies.md.
    """

    name: ClassVar[str] = ""
    # Whether tasks of all groups run the same supersteps; else each group has its own.
    is_joined: ClassVar[bool] = False
    # Whether it may pass messages between batches, over a transport of all ranks.
    has_messages: ClassVar[bool] = True
    # Whether groups go on without waiting for each other; then servers must be there.
    is_asynchronous: ClassVar[bool] = False
    default_servers: ClassVar[int] = 0
    # The optimizer's slot that has the gradients to be pushed.
    pushed_slot: ClassVar[str] = ""

    @property
    def changeable(self) -> tuple[str, ...]:
        """The parts of a job that may be changed where it resumes from what its servers were told:
        those on which neither a push depends nor the batch after which a group resumes.
        """
        return ("data", "validation")

    def check(self, job: Job, topology: Topology) -> None:
        """Check that the strategy can run a job. Raises JobError."""
        if topology.n_servers and not self.default_servers:
            others = " or ".join(name for name in names() if load(name).default_servers)
            raise JobError(
                f"strategy {self.name} has no servers, but {topology.n_servers} were asked for; "
                f"leave servers out, or take strategy={others}"
            )
        if topology.n_servers and not self.has_messages:
            raise JobError(
                f"strategy {self.name} has servers, but its class says that it sends no messages; "
                f"leave has_messages = False out"
            )

    def prepared(self, job: Job, topology: Topology) -> Job:
        """The job for the groups to run: its batch is that of all groups together in one iteration,
        of which each computes its part.
        """
        return job

    def advice(self, job: Job) -> str:
        """A warning for the user of a prepared job that can run, or ""."""
        return ""

    def optimizer(self, job: Job) -> Optimizer:
        """The optimizer that a group applies to its gradients after each batch."""
        return job.optimizer

    def engine(self, context: TaskContext) -> TaskEngine | None:
        """Make a task's engine; None for ``_replica.Replica``."""
        return None

    def server(
        self, job: Job, number: int, pieces: Sequence[ParameterPiece], topology: Topology
    ) -> ParameterServer:
        """Make a parameter server, for a strategy that has some."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its servers are")

    def begin(self, view: View) -> Any:
        """Make the strategy's memory of one task, passed to every step. To be in checkpoints it
        must be a dict, a list or a dataclass of numbers, text and arrays; else it is a JobError.
        """
        return None

    def returns(self, memory: Any, clock: int) -> int:
        """The number of batches after which a group resumes if servers have ``clock`` pushes of it
        that did not say their ``batches``; changes its memory accordingly. Needed where servers are
        durable.
        """
        if clock:
            raise JobError(
                f"strategy {self.name} does not say where a group goes on that comes back: write "
                f"returns(), or leave checkpoints out"
            )
        return 0

    def scales(self, job: Job, topology: Topology) -> Mapping[str, float]:
        """The factors of a checkpoint's arrays in the model, by name; 1 for others."""
        return {}

    def resumes_as(self, topology: Topology) -> str:
        """The description of the strategy that must be the same to resume from a checkpoint."""
        same = in_words(self)
        return same if self.is_joined else f"{same}, {topology.n_groups} groups"

    def before_batch(self, memory: Any, view: View) -> Requests:
        """Yield requests before each batch."""
        yield from ()

    def after_batch(self, memory: Any, view: View) -> Requests:
        """Yield requests after each batch."""
        yield from ()

    def at_epoch_end(self, memory: Any, view: View) -> Requests:
        """Yield requests before group 0 measures its replica."""
        yield from ()

    def at_end(self, memory: Any, view: View) -> Requests:
        """Yield requests after the last batch. Group 0's arrays are the model then."""
        yield from ()


def names() -> list[str]:
    return registry.names(__name__)


def load(name: str) -> type[Strategy]:
    """Find a strategy by its name, or by module:Class. Raises JobError with all names."""
    found: type[Strategy] = registry.load(__name__, "strategy", name)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise JobError(f"strategy {name}: is {found!r}, no subclass of horn.Strategy")
    fields, nothing = dataclasses.fields(found), dataclasses.MISSING
    if needed := [f.name for f in fields if f.init and f.default is f.default_factory is nothing]:
        raise JobError(
            f"strategy {name}: its settings need defaults, but {', '.join(needed)} has none"
        )
    return found


def make(strategy: str | Strategy) -> Strategy:
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        is_class = isinstance(strategy, type) and issubclass(strategy, Strategy)
        said = f"the class {strategy.__name__}; write {strategy.__name__}()" if is_class else ""
        raise JobError(
            f"strategy must be a name or a horn.Strategy, got {said or mistakes.shown(strategy)}"
        )
    return load(strategy)()


def in_words(strategy: Strategy) -> str:
    """The strategy with the settings that are not defaults: downpour (push_every=4)."""
    said = [
        f"{f.name}={getattr(strategy, f.name)!r}"
        for f in dataclasses.fields(strategy)
        if getattr(strategy, f.name) != _default(f)
    ]
    return f"{strategy.name} ({', '.join(said)})" if said else strategy.name


def _default(field: dataclasses.Field[Any]) -> Any:
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


def is_of(words: str, name: str) -> bool:
    """Whether what a strategy ``resumes_as`` is said by one of this name, with any settings."""
    return words == name or words.startswith((f"{name} (", f"{name}, "))


def check_takes_gradients(name: str, optimizer: Optimizer, instead: str = "allreduce") -> None:
    """Raise JobError where pushes of neurons are no gradients to the optimizer. instead : what to
    use then.
    """
    if optimizer.tells_pushes_apart:
        raise JobError(
            f"{name} needs gradients, but {type(optimizer).__name__} tells what neurons push from "
            f"gradients (of_derived); use {instead}"
        )


def rare_exchange(job: Job, setting: str, every: int) -> str:
    """Advice where servers, which are measured after an epoch, may get nothing in it."""
    n = job.iterations_per_epoch
    if every <= n or job.n_iterations <= n:
        return ""
    return (
        f"{setting} is {every} batches, but an epoch has {n}: what is measured after an epoch "
        f"(val_loss, and with it early stopping and the best model) stands still for up to "
        f"{-(-every // n)} epochs; set {setting}={n}{' or less' * (n > 1)}, or a smaller batch_size"
    )
