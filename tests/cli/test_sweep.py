"""horn sweep: combinations, a table, the best model; here and on a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.cli import _remote, sweep
from horn.cluster import remote_files
from horn.cluster.client import ClusterClient
from horn.coordination.jobs import ENDED, JobState
from horn.errors import ClusterError, JobError, NotFound, Unreachable
from horn.sweep import Sweep, Trial, combinations
from tests.cluster.agents import FOREVER, ROOT, Agents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


CALLED = """
import horn
import job as plain
class Called(horn.Callback):
    def {hook}(self, context):
        {does}
def job():
    return plain.job().with_settings(callbacks=[Called()])
"""


def values(text: str) -> list[str]:
    return [value for ((_, value),) in combinations([text])]


def test_every_combination_is_tried_the_last_setting_first():
    found = combinations(["layer1.size=50,100", "epochs=1,2"])
    pairs = [("50", "1"), ("50", "2"), ("100", "1"), ("100", "2")]
    assert found == [(("layer1.size", size), ("epochs", n)) for size, n in pairs]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a=0.01:0.1:log:3", ["0.01", "0.0316228", "0.1"]),
        ("a=0:1.0:lin:5", ["0", "0.25", "0.5", "0.75", "1"]),
        ("a=1e-4:1e-2:log:3", ["0.0001", "0.001", "0.01"]),
        ("a=10:100:log:3", ["10", "32", "100"]),
        ("a=0.12345678:0.5:log:2", ["0.12345678", "0.5"]),
        ("a=1000000.5:2000000.5:lin:3", ["1000000.5", "1500000.5", "2000000.5"]),
        ("a=1.0:1.0000003:lin:4", ["1", "1.0000001", "1.0000002", "1.0000003"]),
        ("a=0.5:0.5:lin:4", ["0.5"]),
        ("a=3:1:lin:3", ["3", "2", "1"]),
        ("a=1:3:lin:9", ["1", "2", "3"]),
        ("a= sgd , adam,sgd", ["sgd", "adam"]),
        ("initial=C:/m.horn", ["C:/m.horn"]),
    ],
)
def test_values(text, expected):
    assert values(text) == expected


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1:2", "a=1:2:3", "a=1:2:exp:3", "a=1:2:log:1",
                                  "a=0:1:log:3", "a=1:2:log:x"])  # fmt: skip
def test_what_is_no_range_says_how_one_is_written(text):
    with pytest.raises(JobError, match=r"--set .*(KEY=VALUES|FIRST:LAST|numbers above 0)"):
        combinations([text])


@pytest.mark.parametrize("text", ["a=1e400:2:lin:2", "a=1:1e400:log:3", "a=-1e308:1e308:lin:3"])
def test_the_values_of_a_range_are_finite(text: str):
    with pytest.raises(JobError, match=r"--set .*finite numbers"):
        combinations([text])


def test_a_sweep_has_no_more_runs_than_somebody_waits_for():
    with pytest.raises(JobError, match="with N from 2 to 10,000"):
        combinations(["a=0.1:1:log:100000000"])
    with pytest.raises(JobError, match="there are 1,000,000,000 combinations, each .* 10,000 at"):
        combinations([f"{name}=0.1:1:lin:1000" for name in "abc"])


def test_a_run_whose_score_is_undefined_is_never_the_best():
    trials = [Trial(k, (("a", str(k)),)) for k in (1, 2, 3)]
    sweep = Sweep(trials, "val_own", "max")
    for trial, value in zip(trials, (float("nan"), 0.5, 0.7), strict=True):
        trial.ended("SUCCEEDED", {"history": [{"epoch": 1, "val_own": value}], "best_epoch": None})
    assert [sweep.heard(trial) for trial in trials] == [False, True, True]
    assert sweep.ranked() == [trials[2], trials[1]] and sweep.best is trials[2]


def test_a_sweep_prints_a_table_and_keeps_the_best_model(run: Any) -> None:
    rates = "optimizer.learning_rate=0.001:0.5:log:3"
    done = run("sweep", "job.py", "--set", rates, "--set", "layer1.size=4,6")
    assert done.code == 0, done.err
    assert done.files == {"job.horn"}
    head, *rows = done.out.splitlines()
    for name in ("RUN", "optimizer.learning_rate", "layer1.size", "LOSS", "EPOCHS", "STATE"):
        assert name in head
    assert len(rows) == 6 and rows[0].endswith("best")
    losses = [float(row.split()[3]) for row in rows]
    assert losses == sorted(losses)
    assert "6/6" in done.err and "Saved job.horn, the model of run" in done.err
    _, rate, size = rows[0].split()[:3]
    best = horn.Model.load("job.horn").parameters
    settings = [f"optimizer.learning_rate={rate}", f"layer1.size={size}"]
    alone = run("submit", "job.py", "-q", "-o", "alone.horn", "--threads", "1",
                *(word for text in settings for word in ("--set", text)))  # fmt: skip
    assert alone.code == 0
    for name, array in horn.Model.load("alone.horn").parameters.items():
        np.testing.assert_allclose(best[name], array, rtol=1e-5, atol=1e-7)


def test_the_best_model_goes_where_a_link_leads(run: Any, folder: Path) -> None:
    """The link was replaced by a file, which horn submit does not."""
    (folder / "models").mkdir()
    (folder / "link.horn").symlink_to("models/real.horn")
    assert run("sweep", "job.py", "--set", "epochs=1", "-o", "link.horn", "-q").code == 0
    assert (folder / "link.horn").is_symlink()
    assert horn.Model.load("models/real.horn").facts["epochs"] == 1


def test_json_has_every_run_and_monitor_says_what_is_better(run: Any) -> None:
    done = run("sweep", "job.py", "--set", "epochs=1,4", "--monitor", "acc", "--json", "-q",
               "-o", "m.horn", "--slots", "1", "--seed", "4")  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert found["schema"] == "horn.sweep/1" and found["model"] == "m.horn"
    assert [r["settings"] for r in found["runs"]] == [{"epochs": "1"}, {"epochs": "4"}]
    assert [r["epochs"] for r in found["runs"]] == [1, 4]
    accuracies = [r["row"]["acc"] for r in found["runs"]]
    assert found["best"] == 1 + int(accuracies[1] > accuracies[0])
    assert horn.Model.load("m.horn").facts["seed"] == 4 and done.err == ""


def test_a_loss_between_layers_is_better_where_it_is_less(run: Any, folder: Path) -> None:
    """The run with the largest was kept, since the name does not speak of a loss."""
    (folder / "held.py").write_text("""
import job as plain
def job():
    given = plain.job()
    net = given.network
    net.loss(net.layers[1], f=lambda y: y * y, weight=10.0, name="reg")
    return given
""")
    done = run("sweep", "held.py", "--set", "epochs=1,6", "--monitor", "reg", "--json", "-q")
    assert done.code == 0, done.err
    first, last = (r["row"]["reg"] for r in done.json["runs"])
    assert last < first and done.json["best"] == 2


def test_runs_that_diverge_or_fail_are_rows_and_the_rest_goes_on(run: Any, folder: Path) -> None:
    done = run("sweep", "job.py", "--set", "optimizer.learning_rate=0.5,1e38", "--set", "epochs=3")
    assert done.code == 0, done.err
    assert "DIVERGED" in done.out and "best" in done.out
    assert ".horn-sweep-" not in done.err  # the folder has gone
    bad = run("sweep", "job.py", "--set", "optimizer.learning_rate=1e38,3e38", "-o", "bad.horn")
    assert bad.code == 1 and "No run can be the best. The first said:" in bad.err
    assert not (folder / "bad.horn").exists()


def test_a_run_that_the_users_code_ends_is_a_failure_whatever_its_code(
    run: Any, folder: Path
) -> None:
    """os._exit(7) was a run that diverged, and os._exit(0) one that succeeded."""
    (folder / "leaves.py").write_text("""
import os
import job as plain
def leave(context):
    if context.n_epochs != 9:
        os._exit(context.n_epochs)
def job():
    return plain.job().with_settings(callbacks=[leave], epochs=9)
""")
    done = run("sweep", "leaves.py", "--set", "epochs=7,9", "--json", "-q")
    assert done.code == 0, done.err
    runs = done.json["runs"]
    assert [r["state"] for r in runs] == ["FAILED", "SUCCEEDED"]
    assert runs[0]["reason"] == "it ended with exit code 7"


def test_what_a_run_writes_past_pythons_stdout_ends_no_other(run: Any, folder: Path) -> None:
    """A byte that is no UTF-8, or a line with a brace, ended the sweep as a bug in horn."""
    (folder / "writes.py").write_text("""
import os
import job as plain
def write(context):
    os.write(1, b"\\xff\\n{no JSON")
def job():
    return plain.job().with_settings(callbacks=[write])
""")
    done = run("sweep", "writes.py", "--set", "epochs=1,2", "-q", "-o", "best.horn")
    assert done.code == 0, done.err
    assert "best" in done.out and "SUCCEEDED" in done.out and (folder / "best.horn").exists()


@pytest.mark.parametrize(
    "said, epochs",
    [
        (b'{"schema": "horn.run/1", "epochs": 3}\n', 3),
        (b'\xff{"schema": "horn.run/1", "epochs": 3, "name": "\xff"}{\n', 3),
        (b'{"schema": "horn.run/1", "ep', None),
        (b'{"history": [{}]}\n', None),
        (b"", None),
    ],
)
def test_the_result_of_a_run_is_found_in_what_it_wrote(said: bytes, epochs: int | None) -> None:
    assert sweep._result(said).get("epochs") == epochs


@pytest.mark.parametrize(
    "setting, words",
    [
        ("layer1.siez=3,4", "unknown key; did you mean layer1.size"),
        ("layer1.size=3,many", "layer1.size=many: .*layer1.size is a whole number"),
        ("epochs=1:9", "a range is FIRST:LAST:log:N"),
        ("batch_size=10,x", "^Error: --set batch_size=x: batch_size is a whole number"),
        (
            "epochs=1,2 epochs=3",
            "--set epochs: is given twice, as 1,2 and as 3; leave one of them out, or write all "
            "values in one, as KEY=50,100",
        ),
        ("batch_size=10,0", "batch_size=0: Job: batch_size must be a whole number"),
    ],
)
def test_a_setting_that_no_run_could_have_is_refused_before_any(
    run: Any, setting: str, words: str
) -> None:
    settings = [word for text in setting.split() for word in ("--set", text)]
    done = run("sweep", "job.py", *settings)
    assert done.code == 2 and done.out == "" and not done.files
    assert re.search(words, done.err), done.err


@pytest.mark.parametrize("monitor", ["val_auc", "val_acc", "val_loss", "group_loss", "groups"])
def test_a_column_that_is_not_measured_is_refused_before_any_run(
    run: Any, folder: Path, monitor: str
) -> None:
    """A callback of the user's, which may add columns, let all runs come to nothing."""
    (folder / "called.py").write_text(CALLED.format(hook="on_batch_end", does="pass"))
    done = run("sweep", "called.py", "--set", "epochs=1,2", "--monitor", monitor)
    assert done.code == 2 and done.err == (
        f"Error: --monitor {monitor} is not measured; there are acc, learning_rate, loss, "
        f"samples_per_s, seconds\n"
    )


def test_accuracy_without_classes_and_what_no_callback_can_add_are_not_measured(
    run: Any, folder: Path
) -> None:
    (folder / "called.py").write_text(CALLED.format(hook="on_epoch_end", does="pass"))
    done = run("sweep", "called.py", "--set", "epochs=1,2", "--monitor", "val_acc")
    assert done.code == 2 and "--monitor val_acc is not measured; there are acc" in done.err
    (folder / "fits.py").write_text("""
import numpy as np
import horn
def job():
    net = horn.Network(seed=3)
    net.input(2)
    net.output(1, loss="squared_error")
    return horn.Job(net, (np.ones((8, 2)), np.ones((8, 1)) / 3), epochs=1, validation=0.5)
""")
    for monitor in ("acc", "val_acc"):
        done = run("sweep", "fits.py", "--set", "epochs=1,2", "--monitor", monitor)
        assert done.code == 2 and f"--monitor {monitor} is not measured; there are l" in done.err


def test_a_column_that_a_callback_adds_decides_or_is_named_if_it_does_not(
    run: Any, folder: Path
) -> None:
    text = CALLED.format(hook="on_epoch_end", does='context.row["mine_loss"] = -context.n_epochs')
    (folder / "called.py").write_text(text)
    done = run("sweep", "called.py", "--set", "epochs=1,2", "--monitor", "mine_loss", "--json")
    assert done.code == 0 and done.json["best"] == 2
    done = run("sweep", "called.py", "--set", "epochs=1", "--monitor", "val_mine")
    assert done.code == 1
    assert "'val_mine' is not measured; --monitor is one of loss, acc" in done.err


def test_initial_is_a_key(run: Any) -> None:
    assert run("submit", "job.py", "-q", "-o", "first.horn").code == 0
    done = run("sweep", "job.py", "--set", "initial=none,first.horn", "--json", "-q")
    assert done.code == 0, done.err
    fresh, begun = (r["row"]["loss"] for r in done.json["runs"])
    assert begun < fresh and done.json["best"] == 2


PIECES = """
import numpy as np
import horn

def job():
    net = horn.Network(seed=1)
    net.layer(3, activation="tanh", inputs=[net.input(1, steps=8), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    x = np.random.default_rng(0).standard_normal((4, 16, 1))
    return horn.Job(net, (x, (x[:, :, 0] > 0).astype(int)), batch_size=4, epochs=1, stateful=True)

def report(run):
    print(run.model.network.steps, run.iterations)
"""


def test_how_sequences_are_cut_is_tried(run: Any, folder: Path) -> None:
    """truncate was an unknown key, taken for name."""
    (folder / "pieces.py").write_text(PIECES)
    done = run("sweep", "pieces.py", "--json", "-q", "--set", "truncate=2,4,none")
    assert done.code == 0, done.err
    assert [each["row"]["iteration"] for each in done.json["runs"]] == [8, 4, 2]
    done = run("submit", "pieces.py", "-q", "--set", "truncate=4", "--set", "recompute=sqrt")
    assert done.code == 0 and done.out.endswith("4 4\n"), done.err
    done = run("submit", "pieces.py", "--set", "buckets=2")
    assert done.code == 2 and "leave it out where samples are no sequences, in a" in done.err


def test_ctrl_c_ends_it_with_the_table_so_far(folder: Path) -> None:
    words = ["sweep", "job.py", "--set", "epochs=2,100000000", "--slots", "2", "--local"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-m", "horn", *words], cwd=folder, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.readline()  # the short one has ended
        assert said.startswith("1/2  epochs=2  SUCCEEDED  loss "), said + process.stderr.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    head, row = out.splitlines()
    assert row.split()[:2] == ["1", "2"] and row.endswith("best")
    assert "so far" in err and "Saved job.horn" in err
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"job.py", "job.horn"}
    assert horn.Model.load(folder / "job.horn").facts["epochs"] == 2


def test_a_sweep_on_a_cluster(cluster: Agents, run: Any) -> None:
    done = run("sweep", "job.py", "--set", "epochs=1,4", "--set", "layer1.size=3,5", "--json")
    assert done.code == 0, done.err + cluster.said()
    assert [r["state"] for r in done.json["runs"]] == ["SUCCEEDED"] * 4
    best = done.json["runs"][done.json["best"] - 1]
    assert best["settings"]["epochs"] == "4"
    model = horn.Model.load("job.horn")
    assert model.network.layers[1].size == int(best["settings"]["layer1.size"])
    assert len(run("list", "--json").json["jobs"]) == 4


def test_a_sweep_that_is_left_stops_its_runs_or_says_how(
    cluster: Agents, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ZooKeeper it was silent for a minute for each run, and named none."""

    def until_over(*_: object) -> None:
        raise KeyboardInterrupt

    def stop(self: ClusterClient, job: str, now: bool) -> None:
        raise Unreachable(self.hosts, "connection refused", 5.0)

    words = ["sweep", "job.py", "--set", f"epochs={FOREVER}", "--set", "layer1.size=3,5"]
    monkeypatch.setattr(_remote, "until_over", until_over)
    assert run(*words).code == 130
    jobs = [job["id"] for job in run("list", "--json").json["jobs"]]
    with cluster.client() as client:
        for job in jobs:
            assert cluster.wait_ended(client, job).state is JobState.STOPPED
    monkeypatch.setattr(ClusterClient, "stop", stop)
    done = run(*words)
    monkeypatch.undo()
    monkeypatch.setenv("HORN_ZK", cluster.hosts)
    left = [job["id"] for job in run("list", "--json").json["jobs"] if job["id"] not in jobs]
    assert done.code == 130 and f"Not stopped:  horn stop --now {left[1]} {left[0]}\n" in done.err


def test_a_sweep_fetches_the_best_model_again_where_that_failed(
    cluster: Agents, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, n_times = remote_files.fetch_model, []

    def failing(client: ClusterClient, job: str, path: Path) -> None:
        n_times.append(job)
        if len(n_times) == 1:
            raise ClusterError("the worker has just gone")
        fetch(client, job, path)

    monkeypatch.setattr(remote_files, "fetch_model", failing)
    done = run("sweep", "job.py", "--set", "epochs=1")
    assert done.code == 0 and done.files == {"job.horn"} and len(n_times) == 2, done
    assert done.err.count("SUCCEEDED") == 1


def test_a_run_that_was_removed_or_whose_model_is_away_ends_no_other(
    cluster: Agents, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep ended with 4, without a table, and stopped the other runs."""
    fetch, status, jobs = remote_files.fetch_model, ClusterClient.status, list[str]()

    def failing(client: ClusterClient, job: str, path: Path) -> None:
        if job == jobs[2]:
            raise NotFound(remote_files.no_model(client, job, []))
        fetch(client, job, path)

    def looked(self: ClusterClient, job: str) -> Any:
        found = status(self, job)
        if job not in jobs:
            jobs.append(job)
        if job == jobs[0] and found.state in ENDED:
            with cluster.client() as other:
                other.remove(job)
            return status(self, job)
        return found

    monkeypatch.setattr(remote_files, "fetch_model", failing)
    monkeypatch.setattr(ClusterClient, "status", looked)
    done = run("sweep", "job.py", "--set", "epochs=1,2,6,3", "--json")
    assert done.code == 1 and done.files == {"job.horn"}, done
    assert [r["state"] for r in done.json["runs"]] == ["REMOVED"] + ["SUCCEEDED"] * 3
    assert (done.json["best"], done.json["saved"], done.json["model"]) == (3, 4, "job.horn")
    assert f"somebody has removed job {jobs[0]}" in done.err
    assert "The model of run 3 is missing: job" in done.err and "run 4: epochs=3" in done.err
    assert f"horn fetch {jobs[2]} -o FILE" in done.err
    assert horn.Model.load("job.horn").facts["epochs"] == 3


@pytest.mark.parametrize("where", ["--local", "--json"])
def test_what_the_file_prints_is_no_json(
    cluster: Agents, run: Any, folder: Path, where: str
) -> None:
    (folder / "job.py").write_text("print('at load')\n" + (folder / "job.py").read_text())
    done = run("sweep", "job.py", "--set", "epochs=1", "--json", "-q", where)
    assert done.code == 0 and done.json["best"] == 1 and "at load" in done.err
