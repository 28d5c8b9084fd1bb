"""What a strategy is shown of its replica, and what it may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import horn
from horn.errors import JobError
from horn.partition.placement import Placement
from horn.strategies import Mean, Strategy, Topology
from tests.strategies.together import together
from tests.transport.groups import good


def a_job(n_inputs: int = 8, batch_size: int = 6) -> horn.Job:
    net = horn.Network(seed=3)
    net.input(n_inputs)
    net.layer(12, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, n_inputs)), rng.integers(0, 3, 12)
    return horn.Job(net, (x, y), horn.SGD(0.1), batch_size=batch_size, dtype="float64")


def in_groups(strategy: Strategy, job: horn.Job, body: Any, scheme: str = "inproc") -> list[Any]:
    where = Placement.default(job.network)
    return together(strategy, job, where, Topology(2), body, scheme=scheme)


@dataclass(frozen=True)
class Zeroed(Strategy):
    """Weights are 0 after every batch."""

    name: ClassVar[str] = "zeroed"
    is_joined: ClassVar[bool] = True
    has_messages: ClassVar[bool] = False

    def after_batch(self, memory: Any, view: Any) -> Any:
        for array in view.parameters.values():
            array[...] = 0.0
        yield from ()


@pytest.mark.parametrize("scheme", ["inproc", "shm"])
def test_a_strategy_that_writes_weights_writes_them_after_the_model_was_measured(scheme: str):
    """Groups that have arrays in common move them for each program that is made."""

    def body(replica: Any) -> float:
        replica.losses(job.data)
        replica.step(np.arange(6), iteration=0, first_sample=0)
        return max(float(np.abs(a).max()) for a in replica.parameters().values())

    job = a_job(2000)  # more numbers than groups send each other
    assert good(in_groups(Zeroed(), job, body, scheme)) == [0.0, 0.0]


@dataclass(frozen=True)
class Silent(Zeroed):
    """Asks for a mean without messages."""

    is_joined: ClassVar[bool] = False

    def after_batch(self, memory: Any, view: Any) -> Any:
        yield Mean(list(view.parameters.values()))


def test_a_mean_without_messages_is_refused_with_what_to_change():
    def body(replica: Any) -> None:
        replica.step(np.arange(6), iteration=0, first_sample=0)

    for error in in_groups(Silent(), a_job(), body):
        assert isinstance(error, JobError) and "leave has_messages = False out" in str(error)


@dataclass(frozen=True)
class Served(Silent):
    """Has servers without messages."""

    default_servers: ClassVar[int] = 1


def test_servers_without_messages_are_refused_with_what_to_change():
    with pytest.raises(JobError, match="has servers.* leave has_messages = False out"):
        Served().check(a_job(), Topology(2, 1, 1))
