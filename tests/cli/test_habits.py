"""What people do with a cluster besides: fetch all, trace, choose a port, look at the bar."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import terminal
from horn.errors import NotFound
from tests.cli.test_cluster import Run
from tests.cluster.agents import FOREVER, ROOT, Agents, agents, own_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_fetch_all_brings_model_history_result_logs_and_trace(cluster: Agents, run: Run):
    done = run("submit", "job.py", "-n", "2", "--detach", "--trace", "t.json")
    job = done.out.strip()
    assert done.code == 0 and done.out.count("\n") == 1
    assert f"Its trace is trace.json of  horn fetch {job} --all\n" in done.err
    assert f"horn fetch {job}" in done.err and f"horn status {job} --wait" in done.err
    assert run("submit", "job.py", "--detach", "-q").err == ""
    assert run("status", job, "--wait", "--timeout", "90s").code == 0
    done = run("fetch", job, "--all")
    assert done.code == 0, done.err
    folder = Path(done.out.strip())
    assert folder == Path(job)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kept = {"model.horn", "history.csv", "result.json", "trace.json"}
    assert kept | {"logs/a.log", "logs/g0.t0.log", "logs/g0.t1.log"} == names
    result = json.loads((folder / "result.json").read_text())
    with open(folder / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in result["history"]]
    assert (result["job"], result["state"], len(rows)) == (job, "SUCCEEDED", 3)
    assert horn.Model.load(folder / "model.horn").facts["iteration"] == 12
    assert "Epoch 3/3" in (folder / "logs" / "a.log").read_text()
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    work = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert work == {(0, 0), (0, 1)}  # of group 0: both tasks


def test_fetch_all_of_a_job_that_failed_has_what_there_is(cluster: Agents, run: Run, folder: Path):
    (folder / "bad.py").write_text("def job():\n    raise ValueError('not today')\n")
    job = run("submit", "bad.py", "--detach").out.strip()
    assert run("status", job, "--wait", "--timeout", "90s").code == 1
    refused = run("fetch", job)
    assert refused.code == 6 and f"horn fetch {job} --all" in refused.err
    done = run("fetch", job, "--all", "-o", "post")
    assert done.code == 0, done.err
    assert "not today" in (folder / "post" / "result.json").read_text()
    assert not (folder / "post" / "model.horn").exists()


def test_what_a_worker_that_is_down_has_of_a_job_is_named_and_not_left_out_silently(
    own_cluster: Agents, run: Run, tmp_path: Path
):
    """``horn fetch JOB --all && horn rm JOB`` said that all was well, and the model was lost."""
    job = run("submit", "job.py", "--detach", "-q").out.strip()
    assert run("status", job, "--wait", "--timeout", "90s").code == 0
    assert run("logs", job).err == ""
    own_cluster.kill("a", signal.SIGTERM)
    assert own_cluster.processes["a"].wait(60) == 0
    down = f"worker a, which ran job {job}, is down or cut off"
    for words in (["logs", job], ["logs", "-f", job]):
        done = run(*words)
        assert (done.code, done.out) == (0, "")
        assert done.err == f"Note: {down}: logs that are only there are left out\n"
    done = run("logs", job, "--task", "a")
    assert done.code == 4 and f"it has none that can be read now; {down}" in done.err
    lost = f"job {job}: no worker that is up has its model; {down}: start it there again"
    done = run("fetch", job)
    assert done.code == 4 and lost in done.err
    done = run("fetch", job, "--all", "-o", "all")
    assert done.code == 4 and done.out == ""
    assert f"Note: {down}: what is only there is left out" in done.err
    assert f"{lost}. What is elsewhere is in all" in done.err
    with open("all/history.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    with horn.Cluster(own_cluster.hosts) as there:
        handle = there.job(job)
        with pytest.warns(UserWarning, match=down), pytest.raises(NotFound, match=lost):
            handle.fetch_all(tmp_path / "handle")
        assert (tmp_path / "handle" / "result.json").exists()
        with pytest.warns(UserWarning, match=f"{down}: logs"):
            assert handle.logs() == {}
    done = run("rm", job)
    assert (done.code, done.out) == (0, f"{job}\n")
    assert done.err == f"Note: {down}: what is there stays, in jobs/{job} of --dir\n"
    assert (own_cluster.folder / "a" / "jobs" / job / "kept" / "model.horn").exists()


def test_a_trace_of_a_cluster_is_fetched_by_who_waits(cluster: Agents, run: Run):
    done = run("submit", "job.py", "-n", "2", "-q", "--trace", "here.json")
    assert done.code == 0, done.err
    assert done.files == {"job.horn", "here.json"}
    assert json.loads(Path("here.json").read_text())["traceEvents"]


def test_a_callbacks_error_on_a_cluster_keeps_the_model(cluster: Agents, run: Run, folder: Path):
    text = (folder / "job.py").read_text().replace("epochs=3)", "epochs=9, callbacks=[odd, log])")
    text += "\nlog = horn.CSVLogger('log.csv')\n\ndef odd(context):\n    if context.epoch == 2:\n"
    (folder / "odd.py").write_text(text + "        raise ValueError('enough')\n")
    done = run("submit", "odd.py", "-n", "2")
    assert done.code == 1
    assert "callback odd, on_epoch_end of epoch 2: ValueError: enough" in done.err, done.err
    job = run("status", "@last", "--json").json["id"]
    assert run("fetch", job, "--all", "-o", "post").code == 0
    assert horn.Model.load(folder / "post" / "model.horn").facts["iteration"] == 8
    log = folder / "post" / "files" / "log.csv"
    assert len(log.read_text().splitlines()) == 2  # of the first epoch: it comes after the error


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("--set", "optimizer.learning_rate=1e30"), 7, horn.Diverged),
        (("--timeout", "4s"), 124, horn.JobFailed),
    ],
    ids=["diverged", "timeout"],
)
def test_a_cluster_keeps_the_model_from_before_an_end_in_the_middle(
    words: tuple[str, ...], code: int, kind: type[horn.JobFailed], cluster: Agents, run: Run,
    folder: Path,
):  # fmt: skip
    """It was gone, though docs say that nothing is lost."""
    text = (folder / "job.py").read_text()
    head = '"softmax", loss="cross_entropy"', '"identity", loss="squared_error"'
    (folder / "job.py").write_text(text.replace(*head))
    done = run("submit", "job.py", "--set", f"epochs={FOREVER}", *words)
    said = re.search(r"after (\d+) updates? is kept \(horn fetch job-\w+ --all\)", done.err)
    assert done.code == code and said is not None, done.err
    with horn.Cluster() as client, pytest.raises(kind) as failed:
        client.job().result()
    assert failed.value.iteration == failed.value.model.facts["iteration"] == int(said[1]) > 0
    assert run("fetch", "@last", "--all", "-o", "post").code == 0
    fetched = horn.Model.load(folder / "post" / "model.horn")
    for name, array in failed.value.model.parameters.items():
        assert np.isfinite(array).all() and np.array_equal(array, fetched.parameters[name])


def test_a_file_that_loads_for_ever_ends_with_the_timeout_and_frees_its_slot(
    cluster: Agents, run: Run, folder: Path
):
    """It was RUNNING for ever, and held its slot."""
    (folder / "ever.py").write_text(
        "import threading\n\ndef job():\n    threading.Event().wait()\n"
    )
    done = run("submit", "ever.py", "--timeout", "0.2s")
    assert done.code == 124, done.err
    assert "ever.py:4  threading.Event().wait()\nthe job took more than 0.2 s while its" in done.err
    with cluster.client() as client:
        assert client.status(client.find("@last")).record.allocations == {}


WRITES = """
import os

class Traps(horn.Callback):
    def on_train_end(self, context):
        folder = horn.callbacks.place("odd")
        folder.mkdir()
        (folder / "link").symlink_to("/etc/hostname")
        (folder / "folder").symlink_to("/etc")
        os.mkfifo(folder / "pipe")
        (folder / "empty").touch()

watching = [horn.CSVLogger("log.csv"), horn.TensorBoard("runs/one"), Traps(),
            horn.ModelCheckpoint("best/{epoch}.horn", save_best_only=False)]
"""


def test_fetch_all_brings_what_callbacks_wrote(cluster: Agents, run: Run, folder: Path):
    text = (folder / "job.py").read_text().replace("epochs=3)", "epochs=3, callbacks=watching)")
    (folder / "seen.py").write_text(text.replace("import horn\n", f"import horn\n{WRITES}", 1))
    done = run("submit", "seen.py", "-n", "2")
    assert done.code == 0, done.err
    job = run("status", "@last", "--json").json["id"]
    (folder / "all" / "files").mkdir(parents=True)
    (folder / "all" / "files" / "log.csv").write_text("of another day")
    done = run("fetch", job, "--all", "-o", "all")
    assert done.code == 0, done.err
    assert "Note: 3 files of a are left out: 'odd/" in done.err
    files = folder / "all" / "files"
    names = {str(path.relative_to(files)) for path in files.rglob("*") if not path.is_dir()}
    [events] = (name for name in names if "tfevents" in name)
    models = {"best/1.horn", "best/2.horn", "best/3.horn"}
    assert names == models | {"log.csv", "odd/empty", events} and events.startswith("runs/one/")
    assert [horn.Model.load(files / name).facts["iteration"] for name in sorted(models)] == [
        4,
        8,
        12,
    ]
    with open(files / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    with open(folder / "all" / "history.csv", newline="") as file:
        history = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == [row["loss"] for row in history]
    assert "log" not in run("logs", job).out.split()


def up(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k != "HORN_ZK"} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "horn", "up", *words], cwd=folder, env=env,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def test_up_listens_on_the_port_that_it_is_given(run: Run, folder: Path):
    port = own_port()
    with up(folder, "--slots", "1", "--port", str(port)) as process:
        assert process.stderr is not None
        said = ""
        while "Submit with" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert f"ZooKeeper 127.0.0.1:{port} " in said
        assert run("status", "--zk", f"127.0.0.1:{port}", "--json").json["slots"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_up_says_that_its_port_is_taken(folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with up(folder, "--port", str(port)) as process:
            _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert f"Error: port {port} on 127.0.0.1 is in use" in err and "Traceback" not in err


def test_the_bar_ends_at_its_end(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        bar = terminal.ProgressBar()
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    job = horn.Job(net, ([[0.0, 1.0]] * 10, [[0.0]] * 10), batch_size=3, epochs=2)
    shown: list[Any] = []
    monkeypatch.setattr(bar.rich, "start", lambda: None)
    monkeypatch.setattr(bar.console, "print", lambda *words, **more: None)
    bar.begin(job)
    row = {"loss": 0.1, "samples_per_s": 1.0}
    for epoch in (1, 2):
        bar.step(epoch, 4 * epoch - 1, 0.1, 1.0)
        bar.epoch({"epoch": epoch, "iteration": 4 * epoch, **row})
        shown.append((bar.rich.tasks[0].description, bar.rich.tasks[0].completed))
    assert shown == [("Epoch 2/2", 0), ("Epoch 2/2", 4)]
    os.close(ours)


def test_resume_with_a_mended_file(cluster: Agents, run: Run, folder: Path):
    """It fails in its third epoch, by a helper beside it, and goes on from its checkpoint."""
    text = (folder / "job.py").read_text().replace("epochs=3)", "epochs=5, callbacks=[look])")
    text = text.replace("import horn\n", "import horn\nfrom helper import look\n", 1)
    (folder / "job.py").write_text(text)
    (folder / "helper.py").write_text("def look(c):\n    assert c.epoch < 3, 'a mistake'\n")
    done = run("submit", "job.py", "-n", "2", "--checkpoint-every", "4")
    assert done.code == 1 and "a mistake" in done.err and "--with FILE" in done.err
    job = run("status", "@last", "--json").json["id"]
    assert run("resume", job).code == 0  # with what it has
    assert run("status", job, "--wait", "--timeout", "90s").code == 1
    (folder / "helper.py").write_text("def look(c):\n    print('looked at', c.epoch)\n")
    wrong = run("resume", job, "--with", "nothing.py")
    assert wrong.code == 4 and "nothing.py: no such file" in wrong.err
    done = run("resume", job, "--with", "job.py")
    assert done.code == 0 and "goes on from iteration" in done.err
    assert run("status", job, "--wait", "--timeout", "90s").code == 0, run("status", job).err
    assert "looked at 5" in run("logs", job).out and "looked at 1" not in run("logs", job).out
    assert run("fetch", job, "-o", "m.horn").code == 0
    assert horn.Model.load(folder / "m.horn").facts["iteration"] == 20
    assert run("resume", job, "--working-dir", ".").code == 2


def test_resume_with_other_files_is_signed_with_the_clusters_key(
    tmp_path_factory: pytest.TempPathFactory, run: Run, folder: Path
):
    with agents(tmp_path_factory.mktemp("cluster")) as made:
        made.make_key()
        made.start("a")
        there = ["--zk", made.hosts, "--key", str(made.key_file)]
        (folder / "bad.py").write_text("def job():\n    raise ValueError('not today')\n")
        job = run("submit", "bad.py", "--detach", *there).out.strip()
        assert run("status", job, "--wait", "--timeout", "90s", *there).code == 1
        done = run("resume", job, "--with", "job.py", *there)
        assert done.code == 0, done.err
        assert run("status", job, "--wait", "--timeout", "90s", *there).code == 0, made.said()
        assert run("fetch", job, *there).files == {f"{job}.horn"}


@pytest.mark.parametrize("cell", ["a[/b]", "enc[left]", ":smile:", "\x1b]0;title\x07N"])
def test_the_cells_of_a_table_are_text(cell: str, capsys: pytest.CaptureFixture[str]):
    """A layer "a[/b]" ended horn show, check and submit with code 70; "[left]" was left out."""
    terminal.table(["RUN", cell], [["1", cell]], err=False)
    shown = repr(cell)[1:-1]
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [shown, shown]


def test_the_lines_above_the_bar_are_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    bar = terminal.ProgressBar()
    bar.note("[red]a[/b] :smile:")
    assert shown.getvalue() == "[red]a[/b] :smile:\n"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_narrow_terminal_cuts_no_word_and_no_number(width: int, monkeypatch: pytest.MonkeyPatch):
    """0.1245 was 0.12 above 45, a column one letter wide."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    rows = [["1", "Standard, softmax", "0.1245", "30.5 kB"], ["12", "one", "1,024.5", "512 B"]]
    terminal.table(["RUN", "Neuron", "Loss", "Memory per task"], rows, err=False)
    words = re.sub("\x1b.[0-9]*m", "", shown.getvalue()).split()
    assert {word for row in rows for cell in row for word in cell.split()} <= set(words)
    assert ("Standard, softmax" in shown.getvalue()) == (width == 80)
    assert "30.5 kB" in shown.getvalue()
