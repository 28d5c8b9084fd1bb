"""Sequences on several tasks and groups: together they compute what one process computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.checkpoint import Checkpoints
from horn.compiler import lower
from horn.data import Dataset
from horn.errors import CompileError, JobError, ModelError
from horn.partition.placement import Placement
from horn.partition.rewrite import partition
from horn.program import Post, Repeat
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.strategies import Strategy, Topology
from horn.strategies._replica import Replica
from horn.strategies.averaging import Averaging
from horn.strategies.downpour import Downpour
from horn.strategies.easgd import EASGD
from horn.transport import Transport
from tests.parity.recurrent import LIF, DropConnect, Masked, Noisy
from tests.parity.test_groups import of_groups
from tests.parity.test_stateful import job_of as job_in_pieces
from tests.parity.test_stateful import net_of, sequences
from tests.parity.test_tasks import Found, compare, of_group, of_one, place
from tests.parity.test_time import BATCHES, elman, job_of, task
from tests.strategies.together import together
from tests.support.runs import bits
from tests.transport.groups import good, run_threads

BACKENDS = ("reference", "kernels")
# groups, tasks of each: among both the rows of a batch are divided
MANY = [(2, 1), (3, 1), (1, 2), (1, 3), (2, 2)]


def alike(found: Any, expected: Any, what: str) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found / scale, expected / scale, 0, 1e-9, err_msg=what)


def agree(job: horn.Job, backend: str, n_groups: int, n_tasks: int) -> None:
    """Losses, answers, weights, States and slots, of batches of which one is short."""
    setup = Setup(job.network, job.optimizer, "labels", len(job.data), "float64", 1)
    one = of_one(backend, setup, job.data, BATCHES)
    placement = Placement.rows(job.network)
    everybody = of_groups(backend, setup, job.data, BATCHES, placement, n_groups, n_tasks)
    for rank, found in enumerate(good(everybody)):
        assert isinstance(found, Found)
        alike(found.losses, one.losses, f"{rank}: losses")
        alike(found.outputs, one.outputs, f"{rank}: outputs")
        alike(found.total, one.total, f"{rank}: loss of the data")
        assert found.arrays.keys() == one.arrays.keys()
        for name, array in found.arrays.items():
            alike(array, one.arrays[name][found.places[name]], f"{rank}: {name}")


@pytest.mark.parametrize("many", MANY)
def test_the_law(many):
    for backend in BACKENDS if many == (2, 2) else BACKENDS[1:]:
        agree(job_of(103), backend, *many)


@pytest.mark.parametrize("many", [(2, 1), (1, 3)])
def test_draws_and_states_do_not_depend_on_who_computes_them(many):
    """A State(per="run") is the mean of the last step over all samples, whoever has them."""
    agree(job_of(10, (Noisy, DropConnect, Masked, LIF)), "kernels", *many)


@pytest.mark.slow
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("seed", range(100, 164))
def test_the_law_at_length(seed, many):
    agree(job_of(seed), BACKENDS[seed % 2], *many)


def test_nothing_travels_between_the_steps():
    """Posts stand before and behind statements over steps; gradients are sums of all steps."""
    net = elman(5, each=True)
    program = lower.training_program(net, horn.SGD(0.1), "label", thin=False)
    found = partition(program, Placement.rows(net), [program.loss])
    posts = [k for k, s in enumerate(found.statements) if isinstance(s, Post)]
    repeats = [k for k, s in enumerate(found.statements) if isinstance(s, Repeat)]
    assert repeats and posts and min(posts) > max(repeats)
    moved = {move.array for k in posts for move in found.statements[k].moves}
    assert {"h.weight.h.gradient", "h.weight.layer0.gradient", "loss"} <= moved


# --- sequences in pieces


def pieces_of(n: int = 7) -> horn.Job:
    """Batches of 4 sequences and of 3, each of three pieces."""
    return job_in_pieces(net_of(steps=3), sequences(n, 9), stateful=True, truncate=3)


def in_pieces(engine: Any, job: horn.Job) -> tuple[list[float], dict[str, np.ndarray], float]:
    engine.bind(job.data)
    losses, at = [], 0
    for first, last in ((0, 4), (4, 7), (3, 7)):
        for piece in range(3):
            rows = np.arange(first, last) * 3 + piece
            losses.append(engine.step(rows, iteration=at, first_sample=100 * first))
            at += 1
    arrays = {name: a.copy() for each in engine.memory().values() for name, a in each.items()}
    return losses, arrays, engine.losses(job.data)[0]


@pytest.mark.parametrize(
    ("many", "backend"), [((2, 1), "kernels"), ((1, 3), "kernels"), ((2, 2), "reference")]
)
def test_sequences_in_pieces_go_on_in_each_group(many, backend):
    """Each has the same rows of every batch, and what their sequences have heard."""
    job, (n_groups, n_tasks) = pieces_of(), many
    setup = Setup(job.network, job.optimizer, "labels", 4, "float64", 1)
    one = in_pieces(make(backend, setup), job)

    def body(transport: Transport) -> Any:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, Placement.rows(job.network), group, backend=backend,
                             n_groups=n_groups)  # fmt: skip
        found = in_pieces(engine, job)
        return *found, {name: engine.places(name) for name in found[1]}

    for losses, arrays, total, places in good(run_threads("inproc", n_groups * n_tasks, body)):
        alike(losses, one[0], "losses")
        alike(total, one[2], "loss of the data")
        assert arrays.keys() == one[1].keys()
        for name, array in arrays.items():
            alike(array, one[1][name][places[name]], name)


@pytest.mark.net
@pytest.mark.cluster
def test_groups_go_on_in_the_middle_of_a_stream(tmp_path):
    """What one process computes; from a checkpoint between two pieces the same bits."""
    job = pieces_of().with_settings(epochs=2)
    how = {"checkpoints": tmp_path, "checkpoint_every": 1, "keep_checkpoints": 99}
    whole = horn.train(job, progress=False, groups=2, **how)
    rest = horn.train(job, progress=False, groups=2, resume=Checkpoints(tmp_path).open(8).path)
    assert bits(rest) == bits(whole)
    for name, array in horn.train(job, progress=False).model.parameters.items():
        alike(whole.model.parameters[name], array, name)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("then", [{}, {"tasks": 3}, {"groups": 3}, {"groups": 2, "tasks": 2}])
def test_another_number_of_groups_goes_on_in_the_middle_of_a_stream(then, tmp_path):
    job = pieces_of().with_settings(epochs=2)
    how = {"checkpoints": tmp_path, "checkpoint_every": 1, "keep_checkpoints": 99}
    whole = horn.train(job, progress=False, groups=2, **how)
    run = horn.train(job, progress=False, resume=Checkpoints(tmp_path).open(8).path, **then)
    for name, array in whole.model.parameters.items():
        alike(run.model.parameters[name], array, name)


# --- strategies

N_STEPS, SIZE = 6, 12


def batches() -> list[np.ndarray]:
    return [(np.arange(SIZE) * 7 + step) % 48 for step in range(N_STEPS)]


def trained(engine: Any) -> dict[str, np.ndarray]:
    for k, rows in enumerate(batches()):
        engine.step(rows, iteration=k, first_sample=100 * k)
    if isinstance(engine, Replica):
        engine.conclude()
    return engine.parameters()


@pytest.mark.parametrize(
    ("strategy", "topology"),
    [
        (Averaging(every=1), Topology(2, 1, 0)),
        (Averaging(every=1), Topology(3, 2, 0)),
        (Downpour(max_staleness=0), Topology(2, 1, 1)),
        (Downpour(push_every=4), Topology(1, 2, 2)),
        (EASGD(every=20, moving_rate=1.0), Topology(1, 2, 1)),
    ],
)
def test_strategies_come_to_what_one_process_computes(strategy, topology):
    """Of the mean after every batch, of a synchronous Downpour, and of one group."""
    job = task(True, dtype="float64").with_settings(
        optimizer=horn.SGD(0.1, momentum=0.9), batch_size=SIZE // of_groups_own(strategy, topology)
    )
    setup = Setup(job.network, job.optimizer, "labels", SIZE, "float64", 1)
    engine = make("kernels", setup)
    engine.bind(job.data)
    one = trained(engine)
    placement = Placement.rows(job.network)
    found = good(together(strategy, job, placement, topology, trained))
    for parameters in found[: topology.n_tasks]:
        for name, array in parameters.items():
            alike(array, one[name], name)


def of_groups_own(strategy: Strategy, topology: Topology) -> int:
    """How many batches of the job's size make one of all groups."""
    is_own = isinstance(strategy, Downpour) and not strategy.averages
    return topology.n_groups if is_own else 1


# --- processes


@pytest.mark.net
@pytest.mark.cluster
def test_groups_of_processes_go_on_exactly(tmp_path):
    """The same as one process; with checkpoints, and from one in the middle, the same bits."""
    given = task(True, dtype="float64")
    one = horn.train(given, progress=False)
    whole = horn.train(given, progress=False, groups=2)
    for name, array in one.model.parameters.items():
        alike(whole.model.parameters[name], array, name)
    assert whole.history[-1]["val_loss"] == pytest.approx(one.history[-1]["val_loss"], abs=1e-9)
    half = {"checkpoints": tmp_path, "checkpoint_every": 3, "groups": 2, "progress": False}
    horn.train(given.with_settings(epochs=2), **half)
    rest = horn.train(given, resume=True, **half)
    assert bits(rest) == bits(whole)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("every", [1, 4])
def test_averaged_groups_go_on_in_the_middle_of_a_stream(every, tmp_path):
    """Each group has weights and sequences of its own between two means."""
    job = pieces_of().with_settings(epochs=2)
    how = {"strategy": Averaging(every=every), "groups": 2, "progress": False}
    keep = {"checkpoints": tmp_path, "checkpoint_every": 1, "keep_checkpoints": 99}
    whole = horn.train(job, **how, **keep)
    rest = horn.train(job, resume=Checkpoints(tmp_path).open(8).path, **how)
    assert bits(rest) == bits(whole)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize(
    "how",
    [
        {"tasks": 3}, {"groups": 2, "tasks": 2}, {"groups": 2, "transport": "tcp"},
        {"groups": 2, "strategy": "averaging"}, {"groups": 2, "strategy": "downpour"},
        {"groups": 2, "strategy": "easgd"},
    ],
)  # fmt: skip
def test_every_strategy_trains_in_processes(how):
    given = task(True, dtype="float64").with_settings(epochs=8)
    one, run = (horn.train(given, progress=False, **each) for each in ({}, how))
    if "strategy" in how:
        assert run.history[-1]["loss"] < 0.9 * run.history[0]["loss"]
        return
    for name, array in one.model.parameters.items():
        alike(run.model.parameters[name], array, name)


# --- plans, and what is refused


def test_a_task_of_the_reference_takes_its_rows_of_all_steps():
    """A layer that every task computes whole, below one of which each has rows."""
    net = horn.Network(seed=41)
    net.input(2, steps=4)
    net.layer(3, activation="sigmoid")
    net.output(2, activation="tanh", loss="squared_error", each_step=True)
    rng = np.random.default_rng(1)
    data = Dataset(rng.standard_normal((8, 8)), rng.integers(0, 2, (8, 4)))
    setup = Setup(net, horn.SGD(0.05), "labels", 3, "float64", 1)
    batches = [np.arange(3), np.arange(5, 7)]
    one = of_one("reference", setup, data, batches)
    for layers in (["all"] * 3, ["rows", "all", "rows"]):
        placement = place(net, ["replicated"] * 2, layers)
        found = of_group("reference", setup, data, batches, placement, 2)
        compare(good(found), one, str(layers))


def test_a_plan_divides_rows_and_counts_steps():
    long, short = (
        horn.plan(horn.Job(elman(steps), ones(steps), optimizer=horn.SGD(0.1), batch_size=16),
                  tasks=2)
        for steps in (100, 10)
    )  # fmt: skip
    assert [layer.partition for layer in long.layers] == ["all", "rows", "rows"]
    assert set(long.as_dict()["placement"].values()) == {"replicated"}
    assert long.n_bytes == short.n_bytes  # gradients, however many steps
    for layer, few in zip(long.layers[1:2], short.layers[1:2], strict=True):
        assert 5 < layer.seconds / few.seconds < 11
    for found in (long, short):
        assert "rows" in str(found)


def ones(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((16, steps, 3), np.float32), np.zeros(16, int)


def test_what_is_refused():
    with pytest.raises(ModelError, match="pin h.weight.h=sender: .* h=receiver"):
        horn.plan(task(True), tasks=2, pins={"h.weight.h": "sender"})
    horn.plan(task(True), tasks=2, pins={"h": "replicated"})
    with pytest.raises(JobError, match="parallel-dropout: the network is one of sequences"):
        horn.train(task(), tasks=2, strategy="parallel-dropout")
    net = elman(3)
    program = lower.training_program(net, horn.SGD(0.1), "label", thin=False)
    by_senders = Placement({(1, 1): "sender"}, {1: "neurons"})
    with pytest.raises(CompileError, match="rows of the batch, or the receivers"):
        partition(program, by_senders, [program.loss])
