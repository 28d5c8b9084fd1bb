"""The folder of a run with servers: what it refuses before any process starts."""

from __future__ import annotations

import errno
import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import CheckpointError, Conflict, TaskFailed
from horn.partition.placement import Placement
from horn.strategies.downpour import Downpour
from horn.strategies.easgd import EASGD
from horn.training.identity import identity
from horn.training.journals import JournalFolder
from horn.training.run_settings import RunSettings


def job(seed: int = 0, n: int = 10, **settings: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(seed).random((n, 3), np.float32)
    return horn.Job(net, (x, np.arange(n) % 2), **{"batch_size": 4, "epochs": 1, **settings})


@pytest.fixture
def mine() -> dict[str, Any]:
    return identity(job(), "downpour")


def test_a_run_whose_folder_cannot_be_written_any_more_goes_on(
    mine: dict[str, Any], tmp_path: Path, caplog: Any
):
    """It ended, and its model was gone."""
    kept = JournalFolder(tmp_path / "c", mine, resume=False)
    (tmp_path / "c").rename(tmp_path / "there")
    (tmp_path / "c").write_text("")
    kept.keep([{"epoch": 1}])
    kept.keep([{"epoch": 1}, {"epoch": 2}])
    (said,) = caplog.messages
    assert said.startswith("history of the run not kept, which goes on") and str(tmp_path) in said
    (tmp_path / "c").unlink()
    kept.keep([{"epoch": 1}, {"epoch": 2}, {"epoch": 3}])
    assert len(JournalFolder(tmp_path / "c", mine, resume=True).rows) == 3


def test_a_history_that_met_a_full_disk_is_written_once_there_is_room(
    mine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only another epoch was; there may be none."""

    def full(*_: Any) -> None:
        raise CheckpointError("run.new", "cannot be written: No space left on device")

    kept, rows = JournalFolder(tmp_path, mine, resume=False), [{"epoch": 1}, {"epoch": 2}]
    with monkeypatch.context() as changed:
        changed.setattr("horn.checkpoint.disk.create", full)
        changed.setattr(os, "write", lambda descriptor, line: 3)  # and then there is no room
        kept.keep(rows)
    kept.keep(rows)
    assert JournalFolder(tmp_path, mine, resume=True).rows == rows


def test_what_an_epoch_writes_does_not_grow_with_the_epochs_before_it(
    mine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All of the history was written: after 10,000 epochs it took longer than many of them."""
    write, n_bytes = os.write, 0

    def counted(descriptor: int, data: Any) -> int:
        nonlocal n_bytes
        n_bytes += len(data)
        return write(descriptor, data)

    kept = JournalFolder(tmp_path, mine, resume=False)
    monkeypatch.setattr(os, "write", counted)
    rows, each = [], list[int]()
    for epoch in range(1, 401):
        rows.append({"epoch": epoch, "iteration": 3 * epoch, "loss": 1 / epoch})
        before = n_bytes
        kept.keep(rows, [{"group": 0, "epoch": epoch + 1}])
        each.append(n_bytes - before)
    assert max(each) < 200
    found = JournalFolder(tmp_path, mine, resume=True)
    assert (found.rows, found.incomplete) == (rows, [{"group": 0, "epoch": 401}])
    assert not (found.path / "history").exists()  # run.json has all of it again


def test_lines_of_the_history_are_in_the_file_of_the_run_once_they_are_longer_than_it(
    mine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reports of many groups on an epoch are each written with those before it."""
    monkeypatch.setattr("horn.training.journals.LEAST_BYTES", 500)
    kept = JournalFolder(tmp_path, mine, resume=False)
    most_bytes = 3 * (kept.path / "run.json").stat().st_size
    for n in range(100):
        kept.keep([{"epoch": 1}], [{"group": n, "epoch": 2}])
        size = sum(path.stat().st_size for path in kept.path.iterdir())
        assert size < most_bytes, n
    found = JournalFolder(tmp_path, mine, resume=True)
    assert (found.rows, found.incomplete) == ([{"epoch": 1}], [{"group": 99, "epoch": 2}])


def test_a_column_that_a_callback_adds_to_a_row_that_is_kept_is_kept_as_well(
    mine: dict[str, Any], tmp_path: Path
):
    kept, rows = JournalFolder(tmp_path, mine, resume=False), [{"epoch": 1}, {"epoch": 2}]
    kept.keep(rows)
    kept.keep([rows[0], {"epoch": 2, "mine": 3.5}])
    assert JournalFolder(tmp_path, mine, resume=True).rows == [
        {"epoch": 1},
        {"epoch": 2, "mine": 3.5},
    ]


def test_a_run_that_is_killed_as_it_writes_the_history_goes_on_with_all_before(
    mine: dict[str, Any], tmp_path: Path
):
    kept = JournalFolder(tmp_path, mine, resume=False)
    kept.keep([{"epoch": 1}])
    file = kept.path / "history"
    line = file.read_bytes()
    kept.keep([{"epoch": 1}, {"epoch": 2}])
    file.write_bytes(file.read_bytes()[:-5])  # killed within the last line
    found = JournalFolder(tmp_path, mine, resume=True)
    assert found.rows == [{"epoch": 1}]
    found.keep([{"epoch": 1}, {"epoch": 3}])
    found.take_over()
    found.placement(lambda: Placement({}, {}))  # run.json has it,
    file.write_bytes(line)  # and the lines of before are still there: killed before that
    assert JournalFolder(tmp_path, mine, resume=True).rows == [{"epoch": 1}, {"epoch": 3}]


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"after": 1, "at": 0, "rows": 3, "told": []}'])
def test_a_damaged_line_of_the_history_is_refused(line: str, mine: dict[str, Any], tmp_path: Path):
    kept = JournalFolder(tmp_path, mine, resume=False)
    (kept.path / "history").write_text(line + "\n")
    with pytest.raises(CheckpointError, match="history: cannot be read: "):
        JournalFolder(tmp_path, mine, resume=True)


@pytest.mark.cluster
def test_a_server_whose_journal_is_missing_does_not_begin_anew(tmp_path: Path):
    """It had the first weights, with the history of what had been learned."""
    asked = {"checkpoints": tmp_path, "strategy": "downpour", "servers": 1}
    horn.train(job(), **asked)
    (tmp_path / "servers" / "server-0").rename(tmp_path / "elsewhere")
    with pytest.raises(TaskFailed, match=r"server-0, byte 0: the journal is missing, and nobody"):
        horn.train(job(epochs=2), resume=True, **asked)


@pytest.mark.parametrize("strategy", ["downpour", "easgd"])
def test_servers_do_not_begin_anew_in_a_folder_of_checkpoints(strategy: str, tmp_path: Path):
    """As if nothing had been trained, while the checkpoints lie beside."""
    horn.train(job(), checkpoints=tmp_path, checkpoint_every=1)
    with pytest.raises(CheckpointError, match="cannot go on from each other; take the strategy"):
        horn.train(job(), checkpoints=tmp_path, resume=True, groups=2, strategy=strategy)
    with pytest.raises(Conflict, match="has checkpoints of a run without servers, the newest of"):
        horn.train(job(), checkpoints=tmp_path, groups=2, strategy=strategy)
    assert not (tmp_path / "servers").exists()


def test_a_run_without_servers_does_not_begin_in_the_folder_of_one_with(tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    with pytest.raises(CheckpointError, match="servers of another run were told, and downpour"):
        horn.train(job(), checkpoints=tmp_path, resume=True)
    with pytest.raises(Conflict, match="has what servers of another run were told; choose"):
        horn.train(job(), checkpoints=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["servers"]


@pytest.mark.parametrize(
    "change",
    [
        {"identity": None},
        {"rows": [3]},
        {"told": 3},
        {"n_starts": "x"},
        {"n_starts": -1},
        {"n_written": "x"},
    ],
)
def test_an_odd_file_of_the_run_is_refused(change: dict[str, Any], tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    file = tmp_path / "servers" / "run.json"
    whole = json.loads(file.read_text())
    for found in (whole | change, {k: v for k, v in whole.items() if k not in change}, []):
        file.write_text(json.dumps(found))
        with pytest.raises(CheckpointError, match="run.json: cannot be read: "):
            JournalFolder(tmp_path, {}, resume=True)


def test_a_folder_of_another_format_is_refused_with_what_to_do_and_one_of_before_goes_on(
    tmp_path: Path,
):
    """A horn that does not know a message of a journal left out what was in it."""
    mine = identity(job(), "downpour")
    JournalFolder(tmp_path, mine, resume=False)
    file = tmp_path / "servers" / "run.json"
    whole = json.loads(file.read_text())
    for form in (0, 5, "2", None):
        file.write_text(json.dumps(whole | {"format": form}))
        with pytest.raises(CheckpointError, match="reads formats 1 to 4; resume it with the horn"):
            JournalFolder(tmp_path, mine, resume=True)
    rows = [{"epoch": 1, "iteration": 3}]
    before = {key: value for key, value in whole.items() if key != "n_written"} | {"rows": rows}
    for form in (1, 2, 3):
        file.write_text(json.dumps(before | {"format": form}))
        assert JournalFolder(tmp_path, mine, resume=True).rows == rows
        assert json.loads(file.read_text())["format"] == 4, "a horn of before refuses it now"


def test_the_file_of_the_run_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a loss of power it was empty, and refused; the first one most likely."""
    done: list[str] = []
    fsync, rename, names = os.fsync, os.rename, ("run.new", "servers", tmp_path.name)

    def synced(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(old: Any, new: Any) -> None:
        done.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    made = JournalFolder(tmp_path, {}, resume=False)
    new, servers, above = names
    assert done == [above, new, "renamed", servers]
    assert [path.name for path in made.path.iterdir()] == ["run.json"]


def test_a_file_of_the_run_that_cannot_be_written_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = JournalFolder(tmp_path, {}, resume=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"run.new: cannot be written .*; free some space"):
        made.placement(lambda: Placement({}, {}))
    assert json.loads((made.path / "run.json").read_text())["rows"] == []


# what is of another job


def begun(folder: Path, given: horn.Job, **settings: Any) -> Path:
    """Write the folder as a run does before its processes start; returns run.json."""
    made = RunSettings(**settings, checkpoints=folder)
    prepared = made.made_strategy.prepared(given, made.topology)
    importlib.import_module("horn.train")._recovery(prepared, made, made.schedule(), None)
    return folder / "servers" / "run.json"


GRADIENTS = Downpour(server_optimizer="job")


@pytest.mark.parametrize(
    "strategy, of_run, of_job, words",
    [
        ("downpour", {"groups": 3}, {}, "downpour, 2 groups, here downpour, 3 groups"),
        ("easgd", {"groups": 3}, {}, "its strategy is easgd, 2 groups, here easgd, 3 groups"),
        ("downpour", {"tasks": 2}, {}, "its number of tasks is 1, here 2"),
        ("downpour", {"servers": 2}, {}, "its number of servers is 1, here 2"),
        ("downpour", {"pins": {"layer1": "sender"}}, {}, r"its pins is \{\}, here \{'layer1'"),
        ("downpour", {"strategy": "easgd"}, {}, "its strategy is downpour, 2 groups, here easgd"),
        ("downpour", {"strategy": Downpour(push_every=2)}, {}, r"here downpour \(push_every=2\)"),
        ("easgd", {"strategy": EASGD(every=2)}, {}, r"here easgd \(every=2\), 2 groups"),
        ("downpour", {"strategy": GRADIENTS}, {}, "here downpour .*server_optimizer='job'"),
        ("downpour", {}, {"batch_size": 5}, "its batch size is 4, here 5"),
        ("downpour", {}, {"n": 12}, "its number of samples is 10, here 12"),
        (GRADIENTS, {}, {"optimizer": horn.SGD(0.2)}, r"its optimizer is SGD\(.*, here SGD\(0?"),
        (GRADIENTS, {}, {"optimizer": horn.Adam(0.1)}, r"its optimizer is SGD\(.*, here Adam"),
        (Downpour(max_staleness=0), {}, {"optimizer": horn.SGD(0.2)}, "its optimizer is SGD"),
    ],
)
def test_what_alters_what_servers_were_told_is_refused_before_anything_starts(
    strategy: Any, of_run: dict[str, Any], of_job: dict[str, Any], words: str, tmp_path: Path
):
    """Old pushes were replayed by other servers, or counted as other batches: what was learned was
    lost without a word. And the run that wrote the folder was refused afterwards.
    """
    settings = {"groups": 2, "strategy": strategy}
    file = begun(tmp_path, job(), **settings)
    before = file.read_bytes()
    for resume in (True, "changed"):
        with pytest.raises(CheckpointError, match=words) as caught:
            horn.train(job(**of_job), checkpoints=tmp_path, resume=resume, **(settings | of_run))
        said = str(caught.value)
        assert "What its servers were told does not fit this one" in said
        assert ('--changed (resume="changed") cannot help' in said) == (resume == "changed")
        assert "go on knowingly" not in said and "Job(initial=...)" in said
        assert caught.value.exit_code == 2
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["run.json"]


def test_an_attempt_with_a_changed_job_leaves_the_folder_to_the_first_one_until_servers_are_ready(
    tmp_path: Path,
):
    """It failed, and the job that wrote the folder was refused."""
    first, other = (identity(job(seed), "downpour, 2 groups") for seed in (0, 1))
    JournalFolder(tmp_path, first, resume=False)
    with pytest.raises(CheckpointError, match="its data.x is .* go on knowingly with --changed"):
        JournalFolder(tmp_path, other, True, changeable=("data",))
    made = JournalFolder(tmp_path, other, True, is_changed=True, changeable=("data",))
    made.keep([{"epoch": 1, "iteration": 3}])
    again = JournalFolder(tmp_path, first, resume=True)
    assert (made.n_starts, again.n_starts) == (2, 3)  # no attempt has the number of another
    made.take_over()
    JournalFolder(tmp_path, other, resume=True)
    with pytest.raises(CheckpointError, match="its data.x is "):
        JournalFolder(tmp_path, first, resume=True)


def test_weights_stay_where_they_were_when_servers_were_told_of_them(tmp_path: Path):
    """Over another transport another placement was the cheapest, and pushes fitted no piece."""
    first = Placement({(1, 0): "receiver", (2, 0): "sender"}, {1: "neurons", 2: "rows"})
    mine = identity(job(), "downpour, 2 groups")
    made = JournalFolder(tmp_path, mine, resume=False)
    assert made.placement(lambda: first) == first
    for _ in range(2):
        again = JournalFolder(tmp_path, mine, resume=True)
        assert again.placement(Placement) == first
    file = made.path / "run.json"
    for odd in (3, None, {"links": [[1, 0]], "layers": []}, {"layers": []}):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"placement": odd}))
        with pytest.raises(CheckpointError, match="run.json: cannot be read: "):
            JournalFolder(tmp_path, mine, resume=True)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy, change",
    [
        (Downpour(push_every=3), {"optimizer": horn.Adam(0.01)}),  # an epoch has 3 batches
        (EASGD(every=3), {"optimizer": horn.Adam(0.01)}),
        (Downpour(max_staleness=0), {"seed": 1}),
    ],
)
def test_what_may_be_changed_changes_nothing_of_what_was_learned(
    strategy: Any, change: dict[str, Any], tmp_path: Path
):
    settings = {"groups": 2, "strategy": strategy, "checkpoints": tmp_path, "timeout": 60}
    first = horn.train(job(epochs=2), **settings)
    same = horn.train(job(epochs=2, **change), resume="changed", **settings)
    for name, array in first.model.parameters.items():
        np.testing.assert_array_equal(same.model.parameters[name], array)
    more = horn.train(job(epochs=4, **change), resume=True, **settings)  # it is its folder now
    assert more.history["loss"][:2] == first.history["loss"]
    assert more.history["epoch"] == [1, 2, 3, 4] and None not in more.history["loss"]
