"""horn submit --strategy, --servers, --set strategy.key: what is said, saved and refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from tests.cli.conftest import JOB

pytestmark = [pytest.mark.net, pytest.mark.cluster]

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from horn.errors import JobError
from horn.strategies import Mean, Strategy

@dataclass(frozen=True)
class Average(Strategy):
    """Every so many batches the groups take the mean of their parameters."""

    every: int = 2
    name: ClassVar[str] = "average"

    def __post_init__(self):
        if self.every < 1:
            raise JobError(f"average: every must be 1 or more, got {self.every}")

    def after_batch(self, memory, view):
        if view.n_batches % self.every == 0:
            yield Mean(list(view.parameters.values()))

    def at_epoch_end(self, memory, view):
        yield Mean(list(view.parameters.values()))

class Plain:
    pass
'''


@pytest.fixture
def mine(folder: Path) -> Path:
    """mine.py beside job.py, with a strategy in it."""
    (folder / "mine.py").write_text(MINE)
    return folder


def test_downpour_says_how_late_pushes_were(run: Any) -> None:
    done = run("submit", "job.py", "-g", "2", "--strategy", "downpour", "--servers", "2")
    assert done.code == 0, done.err
    assert re.search(r"^downpour · 2 groups × 1 task$", done.err, re.M)
    assert len(re.findall(r"^Epoch [123]/3  loss .* samples/s$", done.err, re.M)) == 3
    assert re.search(r"^Pushes by how many updates they were late: \d+ [\d.]+ %", done.err, re.M)
    assert re.fullmatch(r"training loss [\d.]+ +acc [\d.]+\n", done.out), done.out
    assert done.files == {"job.horn"}


def test_json_has_staleness_and_the_loss_of_each_group(run: Any) -> None:
    done = run(
        "submit", "job.py", "-g", "2", "--strategy", "downpour", "--json", "--set",
        "strategy.max_staleness=0", "--set", "epochs=2",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert set(found["staleness"]) == {"0"} and found["staleness"]["0"] > 0
    assert [len(row["group_loss"]) for row in found["history"]] == [2, 2]
    assert [row["role"] for row in found["counters"]] == ["task 0", "task 1", "server 0"]
    assert found["iterations"] == 4  # 40 samples, 2 x 10 in each


def test_json_of_one_task_has_no_staleness(run: Any) -> None:
    found = run("submit", "job.py", "--json").json
    assert found["staleness"] == {} and found["history"][0]["group_loss"] is None


def test_no_servers_means_a_guest(run: Any) -> None:
    found = run(
        "submit", "job.py", "-g", "2", "--strategy", "downpour", "--servers", "0", "--json"
    ).json
    assert [row["role"] for row in found["counters"]] == ["task 0", "task 1"]
    assert found["staleness"]


def test_settings_of_a_strategy_are_its_own(run: Any) -> None:
    done = run(
        "submit", "job.py", "-g", "2", "-n", "2", "--strategy", "downpour",
        "--set", "strategy.push_every=2", "--set", "strategy.max_staleness=none",
        "--set", "strategy.scale_by_staleness=yes", "--set", "batch_size=5",
    )  # fmt: skip
    assert done.code == 0, done.err
    words = "downpour (push_every=2, scale_by_staleness=True) · 2 groups × 2 tasks"
    assert words in done.err and "batch 5" in done.err


def test_what_servers_apply_is_a_setting_of_downpour(run: Any, folder: Path) -> None:
    given = ["submit", "job.py", "-g", "2", "--strategy", "downpour",
             "--set", "strategy.max_staleness=0", "-q"]  # fmt: skip
    adagrad = ["--set", "strategy.server_optimizer=adagrad"]
    job = ["--set", "strategy.server_optimizer=job"]  # as it is where nothing is late
    for name, more in (("a.horn", []), ("b.horn", job), ("c.horn", adagrad)):
        assert run(*given, *more, "-o", name).code == 0
    a, b, c = (horn.Model.load(folder / name).parameters for name in ("a.horn", "b.horn", "c.horn"))
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])
    assert any((array != c[name]).any() for name, array in a.items())


def test_a_strategy_from_the_users_own_folder(run: Any, mine: Path) -> None:
    done = run(
        "submit", "job.py", "-g", "2", "--strategy", "mine:Average", "--set", "strategy.every=3"
    )
    assert done.code == 0, done.err
    assert "average (every=3) · 2 groups × 1 task" in done.err
    assert re.fullmatch(r"training loss [\d.]+ +acc [\d.]+\n", done.out), done.out


def test_a_strategy_from_the_file_of_the_job(run: Any, folder: Path) -> None:
    (folder / "job.py").write_text(MINE + JOB)
    done = run("submit", "job.py", "-g", "2", "--strategy", "job:Average", "--json")
    assert done.code == 0, done.err
    assert [len(row["group_loss"]) for row in done.json["history"]] == [2, 2, 2]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--strategy", "downpur"], "no strategy is called 'downpur'; did you mean downpour?"),
        (["--strategy", "nowhere:Thing"], "strategy nowhere:Thing: No module named 'nowhere'"),
        (["--strategy", "mine:Nothing"], "strategy mine:Nothing: "),
        (["--strategy", "mine:Plain"], "no subclass of horn.Strategy"),
        (["--strategy", "mine:Average", "--set", "strategy.every=0"], "every must be 1 or more"),
        (["--strategy", "mine:Average", "--servers", "1"], "strategy average has no servers"),
        (["--servers", "1"], "strategy allreduce has no servers"),
        (["--servers", "-1"], "Invalid value for '--servers'"),
        (
            ["--set", "strategy.push_every=2"],
            "--set strategy.push_every: unknown key; strategy allreduce has no settings: leave it",
        ),
        (
            ["--strategy", "downpour", "--set", "strategy.push_evry=2"],
            "did you mean strategy.push_every? Valid keys: strategy.push_every, ",
        ),
        (
            ["--strategy", "downpour", "--set", "strategy.push_every=often"],
            "strategy.push_every is a whole number or none, got 'often'",
        ),
        (
            ["--strategy", "downpour", "--set", "strategy.push_every=0"],
            "push_every must be a whole number from 1, got 0",
        ),
        (
            ["--strategy", "downpour", "--set", "strategy.max_staleness=-1"],
            "max_staleness must be a whole number from 0, got -1",
        ),
        (["--strategy", "downpour", "--set", "strategy"], "write --set key=value"),
        (["-g", "11", "--strategy", "downpour"], "11 groups share each batch, but it has 10"),
        (
            ["-g", "5", "--strategy", "downpour", "--set", "strategy.server_optimizer=job"],
            "downpour: 5 groups with batches of 10 need 50",
        ),
        (
            ["--strategy", "downpour", "--set", "strategy.server_optimizer=sgd"],
            'server_optimizer must be "average", "adagrad", "job" or an optimizer',
        ),
        (
            ["--strategy", "averaging", "--set", "strategy.every=0"],
            "averaging: every must be a whole number from 1, got 0",
        ),
        (
            ["--strategy", "easgd", "--set", "strategy.moving_rate=2"],
            "easgd: moving_rate must be above 0 and up to 1, got 2.0",
        ),
        (["--strategy", "averaging", "--servers", "1"], "strategy averaging has no servers"),
    ],
)
def test_what_cannot_be_is_said(run: Any, mine: Path, arguments: list[str], words: str) -> None:
    done = run("submit", "job.py", *arguments)
    assert (done.code, done.files, done.out) == (2, set(), "")
    assert words in done.err and "Traceback" not in done.err


def test_help_says_what_there_is(run: Any) -> None:
    text = " ".join(run("submit", "--help").out.split())
    names = "allreduce, averaging, downpour, easgd, parallel-dropout"
    for words in ("--strategy NAME", names, "module:Class",
                  "--set strategy.KEY=VALUE", "--servers", "-g, --groups"):  # fmt: skip
        assert words in text, words
