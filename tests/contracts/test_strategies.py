"""Every strategy there is, and one of somebody else: what all of them must do."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import horn
from horn import strategies
from horn.aggregates import COLUMNS
from horn.data import digits, permutation
from horn.errors import JobError
from horn.partition.placement import Placement
from horn.strategies import Mean, Requests, Strategy, Topology, View
from horn.strategies.downpour import Downpour
from tests.strategies.together import TIMEOUT_S, together
from tests.support.combinations import share
from tests.support.runs import nothing_is_left  # noqa: F401 (a fixture)
from tests.transport.groups import good


@dataclass(frozen=True)
class LocalAverage(Strategy):
    """Each group trains on its own; every so many batches all take the mean of their parameters."""

    every: int = 2
    name: ClassVar[str] = "local-average"

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise JobError(f"local-average: every must be a number from 1, got {self.every!r}")

    def after_batch(self, memory: Any, view: View) -> Requests:
        if view.n_batches % self.every == 0:
            yield Mean(list(view.parameters.values()))

    def at_epoch_end(self, memory: Any, view: View) -> Requests:
        yield Mean(list(view.parameters.values()))

    def at_end(self, memory: Any, view: View) -> Requests:
        yield Mean(list(view.parameters.values()))


NAMES = strategies.names()
CASES: dict[str, Strategy] = {
    **{name: strategies.make(name) for name in NAMES},
    "synchronous downpour": Downpour(max_staleness=0),
    "local-average": LocalAverage(),
}
IN_GROUPS = [(2, 1), (2, 2)]


def test_a_checkpoint_is_of_the_strategy_that_it_names_and_of_no_other():
    topology = Topology(2, 1, 0)
    for name, made in CASES.items():
        words = made.resumes_as(topology)
        assert strategies.is_of(words, made.name), name
        others = {other.name for other in CASES.values()} - {made.name}
        for other in (*others, made.name[:-1], f"{made.name}s", ""):
            assert not strategies.is_of(words, other), (words, other)


def is_deterministic(strategy: Strategy) -> bool:
    return not strategy.is_asynchronous or getattr(strategy, "max_staleness", None) == 0


@pytest.fixture(params=CASES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return CASES[request.param]


def a_job(**settings: Any) -> horn.Job:
    net = horn.Network(seed=2)
    net.input(64)
    net.layer(48, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    given: dict[str, Any] = {"optimizer": horn.SGD(0.1, momentum=0.5), "batch_size": 20,
                             "epochs": 3, "validation": digits("test")}  # fmt: skip
    return horn.Job(net, digits(), **{**given, **settings})


# what it is


def test_it_is_found_by_its_name() -> None:
    assert {"allreduce", "downpour"} <= set(NAMES)
    for name in NAMES:
        kind = strategies.load(name)
        assert kind.name == name and isinstance(strategies.make(name), kind)
    theirs = f"{__name__}:LocalAverage"
    assert strategies.load(theirs) is LocalAverage
    assert strategies.make(theirs) == LocalAverage()
    assert strategies.make(LocalAverage(7)) == LocalAverage(7)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("downpur", "no strategy is called 'downpur'; did you mean downpour[?] Known: allreduce"),
        ("xyz", "no strategy is called 'xyz'; known: allreduce, .*or module:Class"),
        ("", "no strategy is called ''"),
        (":LocalAverage", "strategy :LocalAverage: "),
        ("no.such.module:Thing", "strategy no.such.module:Thing: No module named 'no'"),
        ("a_slip_of_a_test:Thing", r"Thing: .*\(a_slip_of_a_test.py, line 1\)"),
        (f"{__name__}:Nothing", "has no attribute 'Nothing'"),
        (f"{__name__}:NAMES", "no subclass of horn.Strategy"),
        ("horn:SGD", "no subclass of horn.Strategy"),
        (f"{__name__}:Needy", "its settings need defaults, but rate has none"),
        (3, "strategy must be a name or a horn.Strategy, got 3"),
        (LocalAverage, "got the class LocalAverage; write LocalAverage()"),
    ],
)
def test_what_is_no_strategy_is_said(
    name: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_slip_of_a_test.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(JobError, match=sentence):
        strategies.make(name)


@dataclass(frozen=True)
class Needy(Strategy):
    """It cannot be made by its name."""

    rate: float


def test_it_is_a_frozen_description_with_a_docstring(strategy: Strategy) -> None:
    assert dataclasses.is_dataclass(strategy) and strategy.name
    assert type(strategy).__doc__ and "dataclass" not in str(type(strategy).__doc__)
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.name = "other"  # type: ignore[misc]
    assert dataclasses.replace(strategy) == strategy and hash(strategy) is not None
    words = strategies.in_words(strategy)
    assert words.startswith(strategy.name)
    assert strategy != type(strategy)() or words == strategy.name
    for field in dataclasses.fields(strategy):
        assert field.name in str(type(strategy).__doc__) or isinstance(strategy, LocalAverage)


@dataclass(frozen=True)
class Listed(Strategy):
    """With defaults that are made."""

    rates: list[float] = dataclasses.field(default_factory=lambda: [0.1, 0.2])
    name: ClassVar[str] = "listed"


def test_a_setting_is_said_where_it_is_not_the_default_that_is_made() -> None:
    assert strategies.in_words(Listed()) == "listed"
    assert strategies.in_words(Listed([0.1])) == "listed (rates=[0.1])"


def test_each_of_its_settings_is_checked(strategy: Strategy) -> None:
    for field in dataclasses.fields(strategy):
        for wrong in ("nonsense", -1, math.nan, [1]):
            with pytest.raises(JobError) as caught:
                dataclasses.replace(strategy, **{field.name: wrong})
            assert strategy.name in str(caught.value) and field.name in str(caught.value)
            assert repr(wrong) in str(caught.value)


def test_the_example_of_the_page_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs/strategies.md"
    [code] = re.findall(r"```python\n(# local\.py\n.*?)```", page.read_text(), re.DOTALL)
    local = types.ModuleType("local")
    monkeypatch.setitem(sys.modules, "local", local)
    exec(code, vars(local))
    test_it_is_a_frozen_description_with_a_docstring(local.Averaged())
    test_each_of_its_settings_is_checked(local.Averaged())


def test_who_has_no_servers_names_who_has() -> None:
    with pytest.raises(JobError, match="leave servers out, or take strategy=downpour or easgd$"):
        strategies.make("averaging").check(a_job(), Topology(2, 1, 1))


# what it makes of a job


@pytest.mark.parametrize("n_groups", [1, 2, 3])
@pytest.mark.parametrize("settings", [{"epochs": 4}, {"epochs": None, "iterations": 50}])
def test_the_prepared_job_sees_as_many_samples(
    strategy: Strategy, n_groups: int, settings: Any
) -> None:
    job = a_job(**settings)
    prepared = strategy.prepared(job, Topology(n_groups, 1, strategy.default_servers))
    assert prepared.data is job.data and prepared.epochs == job.epochs
    n = len(job.data)
    assert prepared.iterations_per_epoch == -(-n // prepared.batch_size)
    if job.iterations is not None and prepared.iterations is not None:
        samples, wanted = prepared.iterations * prepared.batch_size, 50 * job.batch_size
        assert wanted <= samples < wanted + prepared.batch_size


@pytest.mark.parametrize("topology", [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_every_sample_is_seen_once_in_an_epoch(
    strategy: Strategy, topology: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).standard_normal((37, 64))
    job = horn.Job(a_job().network, (x, np.arange(37) % 10), batch_size=6, dtype="float64")
    where = Topology(*topology, strategy.default_servers)
    prepared = strategy.prepared(job, where)
    # Group 0's end is everybody's: without this, a group that is slower would see fewer epochs.
    in_step = threading.Barrier(where.n_workers, timeout=TIMEOUT_S)

    def seen(member: Any) -> list[int]:
        found = []
        for epoch in range(2):
            order, total = permutation(37, 1, epoch), 0
            for at, start in enumerate(range(0, 37, prepared.batch_size)):
                rows = order[start : start + prepared.batch_size]
                iteration = epoch * prepared.iterations_per_epoch + at
                loss = member.step(rows, iteration=iteration, first_sample=epoch * 37 + start)
                assert math.isfinite(loss) and math.isfinite(member.own_loss)
                total += member.own_samples
            member.settle()
            assert member.decide_end(epoch + 1, epoch == 1) == (epoch == 1) or member.group_index
            found.append(total)
            in_step.wait()
        member.conclude()
        return found

    found = good(together(strategy, job, Placement.default(job.network), where, seen))
    firsts = found[: where.n_workers : where.n_tasks]
    assert [sum(group[epoch] for group in firsts) for epoch in range(2)] == [37, 37]


@pytest.mark.parametrize("topology", [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_the_rows_of_groups_are_the_batch(strategy: Strategy, topology: tuple[int, int]) -> None:
    job = a_job()
    where = Topology(*topology, strategy.default_servers)

    def rows(member: Any) -> list[list[int]]:
        found = [list(range(n))[member.rows_of(n)] for n in range(7)]
        member.conclude()
        return found

    found = good(together(strategy, job, Placement.default(job.network), where, rows))
    firsts = found[: where.n_workers : where.n_tasks]
    for n, parts in enumerate(zip(*firsts, strict=True)):
        assert sum(parts, []) == list(range(n))


# how it trains: processes


def trained(strategy: Strategy, job: horn.Job, groups: int, tasks: int, **more: Any) -> Any:
    return horn.train(job, groups=groups, tasks=tasks, strategy=strategy, threads=1, **more)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("name, where", share(2, CASES, IN_GROUPS))
def test_it_learns_digits_and_tells_of_every_group(name: str, where: tuple[int, int]) -> None:
    groups, tasks = where
    run = trained(CASES[name], a_job(), groups, tasks)
    assert run.history[-1]["val_acc"] >= 0.85, run.history["val_acc"]
    found, strategy = run.model.evaluate(digits("test")), CASES[name]
    # The last word is on the model that one gets, not on what groups still pushed to then.
    assert run.metrics["validation"] == pytest.approx(found, rel=1e-4)
    if is_deterministic(strategy):
        assert found["loss"] == pytest.approx(run.history[-1]["val_loss"], rel=1e-4)

    job, n = a_job(), len(digits())
    topology = Topology(groups, tasks, strategy.default_servers)
    prepared = strategy.prepared(job, topology)
    assert run.epochs == 3 and not run.stopped_early
    assert run.iterations == prepared.n_iterations
    assert run.history["epoch"] == [1, 2, 3]
    assert run.history["iteration"] == [prepared.iterations_per_epoch * k for k in (1, 2, 3)]
    for row in run.history:
        for column in COLUMNS:
            assert row[column] is not None, column
        assert len(row["group_loss"]) == groups
        assert all(math.isfinite(loss) for loss in row["group_loss"])
        size = prepared.batch_size
        batches = [min(size, n - start) for start in range(0, n, size)]
        weights = [sum(b * (g + 1) // groups - b * g // groups for b in batches)
                   for g in range(groups)]  # fmt: skip
        mean = np.average(row["group_loss"], weights=weights)
        assert row["loss"] == pytest.approx(mean, rel=1e-5)
        assert row["samples_per_s"] > 0
    assert run.history["seconds"] == sorted(run.history["seconds"])
    assert run.history["loss"] == sorted(run.history["loss"], reverse=True)

    roles = [row["role"] for row in run.counters]
    assert roles == [topology.name(rank) for rank in range(topology.n_ranks)]
    assert bool(run.staleness) == bool(strategy.default_servers)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("name", [name for name, s in CASES.items() if is_deterministic(s)])
def test_two_runs_have_the_same_bits(name: str) -> None:
    runs = [trained(CASES[name], a_job(epochs=1), 2, 2) for _ in range(2)]
    one, two = ({n: a.tobytes() for n, a in r.model.parameters.items()} for r in runs)
    assert one == two
    for column in ("loss", "val_loss", "group_loss", "acc"):
        assert runs[0].history[column] == runs[1].history[column]


@pytest.mark.net
@pytest.mark.cluster
def test_early_stopping_keeps_the_best(strategy: Strategy) -> None:
    stopping = horn.EarlyStopping(patience=1, min_delta=100.0)  # nothing is that much better
    job = a_job(early_stopping=stopping, epochs=6, test=digits("test"))
    run = trained(strategy, job, 2, 1)
    assert (run.stopped_early, run.best_epoch, run.epochs) == (True, 1, 2)
    assert run.model.facts["iteration"] == run.history[0]["iteration"]
    found = run.model.evaluate(digits("test"))
    assert found["loss"] == pytest.approx(run.history[0]["val_loss"], rel=1e-4)
    assert run.test == run.metrics["test"]
    assert run.test["loss"] == pytest.approx(run.history[0]["val_loss"], rel=1e-4)


@pytest.mark.net
@pytest.mark.cluster
def test_the_best_is_kept_without_stopping(strategy: Strategy) -> None:
    run = trained(strategy, a_job(keep_best=True, epochs=3), 2, 1)
    assert not run.stopped_early and run.epochs == 3
    best = int(np.argmin(run.history["val_loss"]))
    assert run.best_epoch == best + 1
    found = run.model.evaluate(digits("test"))
    assert found["loss"] == pytest.approx(run.history[best]["val_loss"], rel=1e-4)
