"""``horn.Cluster``: jobs of a real cluster from Python, and from asyncio."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.callbacks import place
from horn.cli import horn as command
from horn.cli._end import ending
from horn.errors import JobError, NotFound, Stopped, Timeout
from tests.cluster.agents import FOREVER, Agents, agents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Leaky(horn.Neuron):
    leak = 0.1

    def forward(self, messages: Any) -> None:
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total if total > 0.0 else self.leak * total)


class Rows(horn.Callback):
    """Writes what it is told and what it has seen into a file that is kept with the job."""

    def __init__(self, path: Path, told: Callable[[float], str]) -> None:
        self.path, self.told = path, told
        self.seen: list[str] = []

    def on_epoch_end(self, context: Any) -> None:
        self.seen.append(self.told(context.row["loss"]))
        place(self.path).write_text(" ".join(self.seen))


def rounded(loss: float) -> str:
    return f"{loss:.3f}"


def count(context: Any) -> None:
    print(f"counted {context.epoch}")


def falling(iteration: int) -> float:
    return 0.3 / (1 + iteration / 40)


def job(**more: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(64)
    net.layer(8, neuron=Leaky, init="he")
    net.output(10, activation="softmax", loss="cross_entropy")
    given = {"epochs": 3, "optimizer": horn.SGD(falling), "validation": 0.2, "name": "digits"}
    return horn.Job(net, **({"data": horn.data.digits().take(400)} | given | more))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """One worker with three slots."""
    with agents(tmp_path_factory.mktemp("cluster")) as made:
        made.start("a", slots=3)
        yield made


@pytest.fixture
def cluster(made: Agents) -> Iterator[horn.Cluster]:
    with horn.Cluster(made.hosts) as cluster:
        yield cluster


def same(one: horn.Model, other: horn.Model) -> None:
    for name, array in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], array, rtol=2e-4, atol=2e-6)


def check_fetch_all(handle: Any, run: horn.Run, place: Path) -> None:
    """All that there is of a job comes into a folder, made with those above it."""
    folder = handle.fetch_all(place / "of" / "it")
    assert folder == place / "of" / "it"
    known = {"model.horn", "history.csv", "result.json", "logs"}
    assert {path.name for path in folder.iterdir()} >= known
    loaded = horn.Model.load(folder / "model.horn")
    for name, array in run.model.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array)
    rows = csv.DictReader((folder / "history.csv").read_text().splitlines())
    assert [float(row["loss"]) for row in rows] == run.history["loss"]
    said = json.loads((folder / "result.json").read_text())
    assert said["job"] == handle.id and said["state"] == "SUCCEEDED"
    assert "Epoch 3/3" in "".join(path.read_text() for path in (folder / "logs").iterdir())
    (place / "file").write_text("")
    with pytest.raises(JobError, match="file"):
        handle.fetch_all(place / "file")


def test_a_job_of_this_process_is_run_there_its_run_comes_back_and_all_files(
    cluster: horn.Cluster, made: Agents, tmp_path: Path
):
    here = horn.train(job())
    callbacks = [Rows(Path("rows.txt"), rounded), horn.CSVLogger("log.csv"), count]
    handle = cluster.submit(job(callbacks=callbacks), tasks=2)
    assert handle.id.startswith("digits-")
    run = handle.result(timeout=90)
    assert handle.state == "SUCCEEDED" and handle.is_over and handle.wait() == "SUCCEEDED"
    same(run.model, here.model)
    assert run.epochs == 3 and run.iterations == here.iterations
    assert run.metrics["validation"]["acc"] == pytest.approx(here.metrics["validation"]["acc"])
    assert list(run.metrics["validation"]) == list(here.metrics["validation"]) == ["loss", "acc"]
    assert [list(row) for row in run.history] == [list(row) for row in here.history]
    assert handle.history["loss"] == run.history["loss"]
    np.testing.assert_allclose(run.history["loss"], here.history["loss"], rtol=1e-4)
    assert handle.progress["iteration"] == run.iterations
    assert "Epoch 3/3" in handle.logs()["a"], made.said()
    assert cluster.job(handle.id[:-1]).id == cluster.job().id == handle.id
    assert handle.id in [each.id for each in cluster.jobs()]
    assert "SubmittedJob digits-" in repr(handle)
    assert "counted 3" in handle.logs()["a"] and callbacks[0].seen == []  # copies ran there
    check_fetch_all(handle, run, tmp_path)
    files = tmp_path / "of" / "it" / "files"
    assert (files / "rows.txt").read_text().split() == [rounded(x) for x in run.history["loss"]]
    assert len((files / "log.csv").read_text().splitlines()) == 1 + 3


def test_labels_that_are_text_and_what_it_begins_with_travel(cluster: horn.Cluster):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 4)).astype("float32")
    y = np.where(x[:, 0] > 0, "up", "down")
    net = horn.Network(seed=1)
    net.input(4)
    net.output(2, activation="softmax", loss="cross_entropy")
    first = horn.train(horn.Job(net, (x, y), epochs=2, normalize=True))
    again = horn.Job(first.model.network, (x, y), epochs=1, initial=first.model)
    run = cluster.submit(again).result(timeout=90)
    same(run.model, horn.train(again).model)
    assert list(run.model.predict(x, labels=True)[:5]) == list(
        horn.train(again).model.predict(x, labels=True)[:5]
    )
    assert list(run.model.classes_) == ["down", "up"]


def test_several_are_awaited_side_by_side(cluster: horn.Cluster):
    async def all_of_them() -> list[horn.Run]:
        handles = [cluster.submit(job(epochs=n)) for n in (1, 2, 3)]
        return list(await asyncio.gather(*handles))

    runs = asyncio.run(all_of_them())
    assert [run.epochs for run in runs] == [1, 2, 3]


def test_an_await_that_is_cancelled_leaves_the_job(cluster: horn.Cluster, made: Agents):
    handle = cluster.submit(made.folder / "job.py", arguments=["--epochs", FOREVER])

    async def impatient() -> None:
        async with asyncio.timeout(0.5):
            await handle

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert not handle.is_over
    with pytest.raises(Timeout, match=f"job {handle.id} is [A-Z]+ after 0.2 s"):
        handle.wait(timeout=0.2)
    made.wait(lambda: handle.history.rows)  # while it runs
    assert handle.cancel()
    with pytest.raises(Stopped, match=f": saved a checkpoint of it; horn resume {handle.id} goes"):
        handle.result(timeout=90)
    assert handle.state == "STOPPED" and not handle.cancel()


def test_a_wait_that_is_too_short_says_what_the_job_waits_for(cluster: horn.Cluster):
    handle = cluster.submit(job(), tasks=8)
    with pytest.raises(Timeout, match=r"is PENDING after 2 s: it waits for 8 slots"):
        handle.wait(timeout=2.0)
    handle.cancel(now=True)
    with pytest.raises(Stopped, match="before the first iteration"):
        handle.result(timeout=60)


@pytest.mark.parametrize("wait", ["wait", "result"])
def test_a_wait_of_words_is_refused(cluster: horn.Cluster, wait: str):
    """A TypeError, after the first look."""
    handle = cluster.submit(job(epochs=int(FOREVER)))
    with pytest.raises(JobError, match="timeout is a number of seconds, as 300 for 5 minutes; got"):
        getattr(handle, wait)(timeout="5m")
    assert handle.cancel(now=True)


def test_the_largest_seed_travels(cluster: horn.Cluster):
    """It was refused above 2**63 - 1, which ``horn.train`` takes."""
    handle = cluster.submit(job(epochs=1), seed=2**64 - 1)
    assert handle.result(timeout=90).model.network.seed == 2**64 - 1


def test_the_age_of_a_job_does_not_go_by_the_clock_of_who_looks(
    cluster: horn.Cluster, monkeypatch: pytest.MonkeyPatch
):
    handle = cluster.submit(job(epochs=1))
    handle.wait(timeout=90)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    assert handle.status.age_s < 3600


def test_a_file_with_settings_and_a_strategy_object(cluster: horn.Cluster, made: Agents):
    handle = cluster.submit(
        made.folder / "job.py", groups=2, strategy=horn.Averaging(every=7), name="mine",
        arguments=["--epochs", "2"], settings={"layer1.size": 5}, seed=9,
    )  # fmt: skip
    run = handle.result(timeout=90)
    assert handle.id.startswith("mine-") and run.model.network.layers[1].size == 5
    assert run.model.facts["seed"] == 9 and len(run.history[0]["group_loss"]) == 2
    submission = cluster.retry(lambda client: client.status(handle.id)).submission
    assert submission is not None and submission.settings[0] == ("strategy.every", "7")


def test_what_fails_there_is_raised_here(cluster: horn.Cluster, tmp_path: Path):
    (tmp_path / "bad.py").write_text("def job():\n    raise ValueError('not today')\n")
    with pytest.raises(horn.JobFailed, match=r"FAILED: bad.py:2(.|\n)*not today"):
        cluster.submit(tmp_path / "bad.py").result(timeout=90)
    with pytest.raises(horn.Diverged):
        cluster.submit(job(optimizer=horn.SGD(1e38))).result(timeout=90)


def adds(context: Any) -> None:
    context.row |= {"gap": 0.5 * context.epoch, "said": "so"}
    if context.epoch == 2:
        raise ValueError("enough")


def test_the_history_of_a_job_that_failed_has_the_columns_of_its_callbacks(
    cluster: horn.Cluster, tmp_path: Path
):
    handle = cluster.submit(job(callbacks=[adds]), tasks=2)
    assert handle.wait(timeout=90) == "FAILED"
    assert handle.history["gap"] == [0.5, 1.0] and handle.history["said"] == ["so", "so"]
    assert handle.progress["gap"] == 1.0 and "said" not in handle.progress
    rows = csv.DictReader((handle.fetch_all(tmp_path) / "history.csv").read_text().splitlines())
    assert [row["gap"] for row in rows] == ["0.5", "1.0"]


def test_what_cannot_be_sent_is_said_at_once(
    cluster: horn.Cluster, monkeypatch: pytest.MonkeyPatch
):
    with (
        open("/dev/null") as file,
        pytest.raises(
            JobError,
            match=r"the callback Rows has told = <_io.*on_train_begin.*submit\('train.py'\)",
        ),
    ):
        cluster.submit(job(callbacks=[Rows(Path("rows.txt"), file)]))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="the callback print has function = <built-in"):
        cluster.submit(job(callbacks=[print]))
    with pytest.raises(JobError, match="submit takes a horn.Job, or the path"):
        cluster.submit(3)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="settings are a dict, as {'epochs': 5}; got 3"):
        cluster.submit(job(), settings=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'epochs'; write horn.Job\(net, "):
        cluster.submit(job(), epochs=3)  # type: ignore[call-arg]
    with pytest.raises(NotFound, match="nothing.py: no such file"):
        cluster.submit("nothing.py")
    with pytest.raises(NotFound):
        cluster.job("nobody-0000")
    with pytest.raises(JobError, match=r'as in cluster.job\("digits-7f3a"\); got 5'):
        cluster.job(5)  # type: ignore[arg-type]
    with pytest.raises(JobError, match='JOB is "": write an id'):
        cluster.job("")
    with pytest.raises(JobError, match=r'as in horn.Cluster\("host:port"\); got 5'):
        horn.Cluster(5)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="key is a path, as a text; got 5"):
        horn.Cluster(cluster.zk, key=5)  # type: ignore[arg-type]
    monkeypatch.delenv("HORN_ZK", raising=False)
    with pytest.raises(JobError, match="no cluster is named"):
        horn.Cluster()


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"groups": 0}, "groups must be a whole number from 1, got 0"),
        ({"tasks": "2"}, "tasks must be a whole number from 1, got '2'"),
        ({"seed": -1}, "seed must be a whole number from 0, got -1"),
        ({"seed": 2**64}, "seed must be below 2**64, got 18446744073709551616"),
        ({"timeout": "5m"}, "timeout must be a number of seconds, got '5m'"),
        ({"timeout": 0}, "timeout 0: expected a number above 0"),
        ({"checkpoint_seconds": "30s"}, "checkpoint_seconds must be a number of seconds above 0"),
        ({"name": 5}, "name is a text, the first part of the job's id; got 5"),
        ({"arguments": "--a 1"}, "arguments are a list, as ['--a', '1']; got one text"),
        ({"working_dir": 5}, "working_dir is a path, as a text; got 5"),
        ({"barrier": "x"}, "barrier is 'x'; choose one of message, zookeeper"),
        ({"transport": "x"}, "no transport is called 'x'; known: inproc, ipc, shm, tcp, or"),
        ({"transport": "inproc"}, "transport inproc carries nothing between processes"),
        ({"backend": "kernel"}, "no backend is called 'kernel'; did you mean kernels? Known: "),
        ({"name": "日本"}, "name is '日本', but a job's id has letters and digits of ASCII"),
        ({"pins": 5}, "pins say of layers where their weights live"),
        ({"strategy": 5}, "strategy must be a name or a horn.Strategy, got 5"),
        ({"name": "x" * 300}, "xxx...: expected a text of length at most 256"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_said_at_once(
    cluster: horn.Cluster, wrong: dict[str, Any], words: str
):
    """It was a TypeError, or a job that failed there and stayed in the list."""
    before = [handle.id for handle in cluster.jobs()]
    with pytest.raises(JobError, match=re.escape(words)):
        cluster.submit(job(), **wrong)
    assert [handle.id for handle in cluster.jobs()] == before


def test_logs_are_there_whatever_a_workers_name(
    cluster_of: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gpu1.horn", "x.json", "y.jsonl"]
    cluster_of.start(*names, slots=1)
    with cluster_of.client() as client, horn.Cluster(cluster_of.hosts) as found:
        cluster_of.wait_known(client)
        job = cluster_of.submit(client, groups=3)
        cluster_of.wait_ended(client, job)
        assert set(names) < set(found.job(job).logs())
    assert ending(command, ["logs", job, "--zk", cluster_of.hosts]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}│ job is made" in said for name in names)
    assert '"epoch"' not in said  # of progress.jsonl
