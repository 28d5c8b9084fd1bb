"""horn submit on one task."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from tests.cli.conftest import JOB

ROOT = Path(horn.__file__).parents[1]


def test_result_goes_to_stdout_and_all_else_to_stderr(run: Any) -> None:
    done = run("submit", "job.py")
    assert done.code == 0, done.err
    assert re.fullmatch(r"training loss \d\.\d{4}  acc [01]\.\d{4}\n", done.out)
    assert len(re.findall(r"^Epoch [123]/3  loss .* samples/s$", done.err, re.M)) == 3
    assert "1 layer1  Standard, tanh" in done.err
    assert "22 parameters, 88 B · SGD · batch 10 · 40 samples · 12 updates · seed 3" in done.err
    assert "Saved job.horn (" in done.err and "SUCCEEDED in" in done.err
    assert done.files == {"job.horn"}
    assert "\x1b" not in done.out + done.err


def test_quiet_says_the_result_only(run: Any) -> None:
    done = run("submit", "job.py", "-q")
    assert done.err == "" and done.out.startswith("training loss") and done.files == {"job.horn"}


def test_json_is_one_object(run: Any) -> None:
    done = run("submit", "job.py", "--json")
    assert next(iter(done.json)) == "schema" and done.json["schema"] == "horn.run/1"
    assert done.json["state"] == "SUCCEEDED" and done.json["iterations"] == 12
    assert [row["epoch"] for row in done.json["history"]] == [1, 2, 3]
    assert set(done.json["metrics"]["training"]) == {"loss", "acc"}


def test_output_names_the_model_file(run: Any) -> None:
    assert run("submit", "job.py", "-o", "other.horn").files == {"other.horn"}


def test_what_comes_next_can_be_typed_as_it_stands(run: Any) -> None:
    done = run("submit", "job.py", "-o", "my model.horn")
    assert "Next:  horn show 'my model.horn'   horn evaluate 'my model.horn' DATA " in done.err
    done = run("submit", "job.py", "--output=-dash.horn")
    assert "Next:  horn show ./-dash.horn   horn evaluate ./-dash.horn DATA " in done.err


def test_dry_run_prints_the_plan_and_writes_nothing(run: Any) -> None:
    done = run("submit", "job.py", "--dry-run")
    assert done.code == 0 and done.files == set()
    assert "Dry run: nothing was trained or written." in done.out
    assert "12 updates (4 per epoch)" in done.out and "Memory about" in done.out
    plan = run("submit", "job.py", "--dry-run", "--json").json
    assert plan["schema"] == "horn.plan/1"
    assert [layer["parameters"] for layer in plan["layers"]] == [0, 12, 10]
    assert plan["memory_bytes"]["parameters"] == 88


def test_same_seed_gives_bitwise_the_same_weights_and_another_does_not(run: Any) -> None:
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        assert run("submit", "job.py", "-q", "--seed", seed, "-o", f"{name}.horn").code == 0
    a, b, c = (horn.Model.load(f"{name}.horn").parameters for name in "abc")
    for name in a:
        assert a[name].tobytes() == b[name].tobytes()
    assert not np.array_equal(a["layer1.weight"], c["layer1.weight"])


def test_set_changes_job_optimizer_and_layers(run: Any) -> None:
    done = run(
        "submit", "job.py", "--dry-run", "--json",
        "--set", "batch_size=20", "--set", "iterations=7",
        "--set", "optimizer.momentum=0.5", "--set", "layer1.size=9",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["batch_size"] == 20 and done.json["iterations"] == 7
    assert "momentum=0.5" in done.json["optimizer"]
    assert done.json["layers"][1]["units"] == 9


def test_report_of_the_file_has_the_last_word(run: Any, folder: Path) -> None:
    (folder / "job.py").write_text(JOB + "\ndef report(run):\n    print('epochs', run.epochs)\n")
    assert run("submit", "job.py").out.splitlines()[-1] == "epochs 3"


def test_arguments_after_the_dashes_reach_the_job_function(run: Any, folder: Path) -> None:
    text = JOB.replace("def job():", "def job(units: int = 4, kind='tanh', bias=True):")
    text = text.replace("net.layer(4, activation", "net.layer(units, bias=bias, activation")
    (folder / "job.py").write_text(text)
    done = run("submit", "job.py", "--dry-run", "--json", "--", "--units", "6", "--bias=false")
    assert done.code == 0, done.err
    assert done.json["layers"][1]["parameters"] == 12
    assert run("submit", "job.py", "--", "--unit", "6").err == (
        "Error: job has no parameter 'unit'; did you mean --units? It has --units, --kind, --bias\n"
    )
    assert (
        "--units is a whole number, got 'six'" in run("submit", "job.py", "--", "--units=six").err
    )


def test_arguments_reach_the_files_own_argv(run: Any, folder: Path) -> None:
    text = JOB.replace("import horn", "import horn, sys\nUNITS = int(sys.argv[1])", 1)
    (folder / "job.py").write_text(text.replace("layer(4", "layer(UNITS"))
    done = run("submit", "job.py", "--dry-run", "--json", "--", "7")
    assert done.json["layers"][1]["units"] == 7


def test_a_target_is_a_file_a_module_or_a_name_in_one(run: Any, folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "nets.py").write_text(JOB + "\nready = job()\n")
    for target in ("mine.nets", "mine.nets:ready", "mine/nets.py:ready"):
        assert run("submit", target, "--dry-run").code == 0
    assert run("submit", "mine.nets:ready", "-q").files == {"nets.horn"}


def test_a_file_may_import_its_neighbour(run: Any, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour_of_job.py").write_text("UNITS = 5\n")
    (folder / "sub" / "job2.py").write_text(
        JOB.replace("import horn", "import horn\nfrom neighbour_of_job import UNITS").replace(
            "layer(4", "layer(UNITS"
        )
    )
    done = run("submit", "sub/job2.py", "--dry-run", "--json")
    assert done.json["layers"][1]["units"] == 5


def test_a_file_that_was_changed_within_a_second_is_read_again(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's cache of compiled files goes by the second and the size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = folder / "job.py"
    units = []
    for text in ("layer(4", "layer(7"):
        file.write_text(JOB.replace("layer(4", text))
        os.utime(file, (1e9, 1e9))
        units.append(run("submit", "job.py", "--dry-run", "--json").json["layers"][1]["units"])
    assert units == [4, 7]


def test_resume_refuses_a_changed_job_and_goes_on_with_it_where_that_is_said(
    run: Any, folder: Path
) -> None:
    again = ("submit", "job.py", "--checkpoint-every", "4", "--resume")
    assert run(*again, "--set", "epochs=1").code == 0
    (folder / "job.py").write_text(JOB.replace("default_rng(0)", "default_rng(1)"))
    done = run(*again)
    assert done.code == 2
    assert "is of another job: its data.x is float32 (40, 2)" in done.err
    assert "Resume with the job that wrote it, or go on knowingly with --changed" in done.err
    done = run(*again, "--changed", "--json")
    assert done.code == 0 and done.json["iterations"] == 12
    assert [row["epoch"] for row in done.json["history"]] == [1, 2, 3]
    done = run(*again)
    assert done.code == 0, "what it saved since is of the job that it is now"
    assert "Going on from iteration 12.\n" in done.err
    done = run("submit", "job.py", "--changed")
    assert done.code == 2 and "--changed is for going on: add --resume" in done.err


def test_timeout_ends_with_124_and_keeps_the_model_so_far(run: Any) -> None:
    done = run("submit", "job.py", "--set", "epochs=100000", "--timeout", "0.1s")
    assert done.code == 124 and done.files == {"job.before.horn"}
    n = re.search(r"the job took more than 0.1 s; stopped at iteration (\d+) ", done.err)
    assert n is not None
    updates = "1 update" if n[1] == "1" else f"{n[1]} updates"
    assert f"The model after {updates} is in job.before.horn." in done.err
    assert run("show", "job.before.horn").code == 0


def test_a_file_that_loads_for_ever_ends_with_the_timeout(run: Any, folder: Path) -> None:
    """It went on for ever."""
    (folder / "ever.py").write_text(
        "import threading\n\ndef job():\n    threading.Event().wait()\n"
    )
    done = run("submit", "ever.py", "--timeout", "0.1s")
    assert done.code == 124 and done.err == (
        "Error: ever.py:4  threading.Event().wait()\n"
        "the job took more than 0.1 s while its file was loaded; raise timeout (--timeout)\n"
    )


def test_divergence_ends_with_7_and_keeps_the_model_from_before(run: Any, folder: Path) -> None:
    text = JOB.replace('"softmax", loss="cross_entropy"', '"identity", loss="squared_error"')
    (folder / "job.py").write_text(text)
    done = run("submit", "job.py", "--set", "optimizer.learning_rate=1e30", "--set", "epochs=50")
    assert done.code == 7 and done.files == {"job.before.horn"}
    assert "at iteration" in done.err and "(1e+30). Try a learning rate of 0.1, or " in done.err
    assert "The model from just before, after 1 update, is in job.before.horn." in done.err
    assert "Traceback" not in done.err
    assert run("show", "job.before.horn").code == 0


def test_a_loss_that_grew_a_thousandfold_is_no_success(
    run: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = JOB.replace('"softmax", loss="cross_entropy"', '"identity", loss="squared_error"')
    (folder / "job.py").write_text(text)
    done = run("submit", "job.py", "--set", "optimizer.learning_rate=1.6", "--json")
    assert done.code == 7 and done.files == {"job.horn"}
    assert done.json["state"] == "DIVERGED"
    assert "diverged: the loss grew from" in caplog.text
    assert "Try a learning rate of 0.16" in caplog.text
    better = ["--set", "keep_best=true", "--set", "validation=0.2"]
    kept = run("submit", "job.py", "--set", "optimizer.learning_rate=1.6", *better, "--json")
    assert kept.code == 0 and kept.json["state"] == "SUCCEEDED"
    assert "the model is that of epoch" in caplog.text


@pytest.mark.parametrize(
    "place, why",
    [
        ("/dev/full", "is a device or a pipe, and would be replaced; name a file"),
        ("/proc/job.horn", "the folder /proc cannot be written to"),
        ("below", "'below' is a directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_known_before(
    run: Any, folder: Path, place: str, why: str
) -> None:
    (folder / "below").mkdir()
    done = run("submit", "job.py", "-o", place)
    assert done.code == 2 and done.files == set()
    assert why in done.err and "Epoch" not in done.err


VANISHING = """
import shutil
class Vanishing:
    def at(self, iteration):
        shutil.rmtree("models", ignore_errors=True)
        return 0.5
"""


def test_a_trained_model_is_kept_where_its_folder_has_gone(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    (folder / "models").mkdir()
    text = JOB.replace("def job", VANISHING + "def job")
    text = text.replace("horn.SGD(0.5)", "horn.SGD(Vanishing())")
    (folder / "job.py").write_text(text)
    done = run("submit", "job.py", "-o", "models/job.horn")
    assert done.code == 2, done.err
    (kept,) = re.findall("the model is kept in (.*): move it", done.err)
    assert run("show", str(folder / kept)).code == 0


def test_an_exception_in_the_users_file_names_its_line(run: Any, folder: Path) -> None:
    (folder / "job.py").write_text(JOB.replace("rng = np", "rng = nq"))
    done = run("submit", "job.py")
    assert done.code == 1 and done.files == set()
    assert "job.py:10  rng = nq.random.default_rng(0)" in done.err
    assert "NameError: name 'nq' is not defined" in done.err and "Traceback" not in done.err
    assert "Traceback" in run("submit", "job.py", "-v").err


@pytest.mark.parametrize(
    ("where", "words"),
    [("file", ["submit", "-q"]), ("job", ["check"]), ("callback", ["submit", "--json"]),
     ("report", ["submit", "-q"])],
)  # fmt: skip
def test_an_exit_of_the_users_is_a_failure(
    run: Any, folder: Path, where: str, words: list[str]
) -> None:
    """Its code was the command's: 0, without a model, or 3, as where no cluster is reached."""
    (folder / "leaves.py").write_text(f"""
import sys
import job as plain
where = {where!r}
def leave(at, code):
    if at == where:
        sys.exit(code)
leave("file", 124)
def job():
    leave("job", 3)
    return plain.job().with_settings(callbacks=[callback])
def callback(context):
    leave("callback", 0)
def report(run):
    leave("report", 0)
""")
    done = run(words[0], "leaves.py", *words[1:])
    assert done.code == 1, done
    assert "leaves.py:7  sys.exit(code)\nSystemExit: " in done.err
    assert done.files == ({"leaves.horn"} if where == "report" else set())


def test_the_help_of_the_files_own_parser_is_no_failure(run: Any, folder: Path) -> None:
    (folder / "parses.py").write_text(
        "import argparse\nimport job as plain\nparser = argparse.ArgumentParser('parses')\n"
        "parser.parse_args()\njob = plain.job()\n"
    )
    done = run("submit", "parses.py", "--", "--help")
    assert done.code == 0 and done.out.startswith("usage: parses")
    done = run("submit", "parses.py", "--", "--what")
    assert done.code == 2 and "unrecognized arguments: --what" in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("made.epochs = 2", "Job.epochs cannot be set: job.with_settings(epochs=...) is a copy"),
        ("made.optimizer.momentum = 0.5", "SGD.momentum cannot be set: give it where the SGD is"),
        ("horn.training.history.History()[9]", "history[9]: the history has 0 epochs; it has no"),
    ],
)
def test_what_horn_refuses_at_a_line_of_the_users_is_no_bug(
    run: Any, folder: Path, line: str, said: str
) -> None:
    text = (folder / "job.py").read_text()
    (folder / "set.py").write_text(
        f"import horn.training.history\n{text}\nbase = job\n"
        f"def job():\n    made = base()\n    {line}\n    return made\n"
    )
    done = run("submit", "set.py")
    assert done.code == 1 and f"set.py:19  {line}" in done.err and said in done.err
    assert "bug in horn" not in done.err


def test_memory_that_is_out_names_the_line(run: Any, folder: Path) -> None:
    """It was told to use smaller batches, without a place, and -v showed no traceback."""
    (folder / "large.py").write_text("def job():\n    return bytearray(10**15)\n")
    done = run("submit", "large.py", "-v")
    assert done.code == 1 and "batch_size" not in done.err
    assert "large.py:2  return bytearray(10**15)\nout of memory" in done.err
    assert "Traceback" in done.err


def test_a_bug_in_horn_ends_with_70_and_a_report(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horn.summary.layers", None)
    done = run("submit", "job.py")
    assert done.code == 70 and done.files == set()
    assert "This is a bug in horn" in done.err and "TypeError" in done.err
    assert "command: horn submit job.py" in done.err


def test_training_at_the_top_level_of_a_file_is_refused(run: Any, folder: Path) -> None:
    (folder / "job.py").write_text(JOB + "\nhorn.train(job())\n")
    done = run("submit", "job.py")
    assert done.code == 2 and 'put it under if __name__ == "__main__":' in done.err


@pytest.mark.cluster
@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_cleanly(folder: Path, number: signal.Signals, code: int) -> None:
    # As from a terminal; under nohup SIGHUP is ignored, and children inherit that.
    begin = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    with subprocess.Popen(
        [sys.executable, "-c", begin + "os.execv(sys.argv[1], sys.argv[1:])",
         sys.executable, "-m", "horn", "submit", str(folder / "job.py"),
         "-o", str(folder / "m.horn"), "--set", "epochs=10000000"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            for text in process.stderr:  # wait for the first epoch
                if text.startswith("Epoch"):
                    break
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Traceback" not in err
    left = {p.name for p in folder.iterdir() if p.suffix != ".py" and p.name != "__pycache__"}
    assert left == ({"m.horn"} if number == signal.SIGINT else set())
    if left:  # what it had learned
        assert f"is in {folder / 'm.horn'}" in err
        facts = horn.Model.load(folder / "m.horn").facts
        assert f"Stopped after iteration {facts['iteration']}." in err


@pytest.mark.cluster
def test_a_terminal_gets_a_bar(folder: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "horn", "submit", str(folder / "job.py"), "-o", str(folder / "m")],
        cwd=ROOT, stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    shown = bytearray()
    with contextlib.suppress(OSError):  # how Linux says that the other side has gone
        while piece := os.read(master, 4096):
            shown.extend(piece)
    os.close(master)
    text = shown.decode()
    assert process.wait(timeout=60) == 0, text
    assert "━━━━" in text and "Epoch 3/3" in text and "training loss" in text


def test_a_callback_that_raises_leaves_the_model_where_it_was_to_be(run: Any, folder: Path) -> None:
    odd = JOB.replace("epochs=3)", "epochs=9, callbacks=[odd])")
    odd += "\ndef odd(context):\n    if context.epoch == 2:\n        raise ValueError('enough')\n"
    (folder / "odd.py").write_text(odd)
    result = run("submit", "odd.py", "-q")
    assert result.code == 1
    assert "callback odd, on_epoch_end of epoch 2: ValueError: enough" in result.err
    assert "raise ValueError('enough')" in result.err and "Traceback" not in result.err
    assert "the model after iteration 8 is in odd.horn" in result.err
    assert horn.Model.load(folder / "odd.horn").facts["iteration"] == 8


ENDS = """
import signal
from horn.callbacks import Callback

class Ends(Callback):
    def on_batch_end(self, context):
        if context.iteration == 10:
            {does}
"""


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("signal.raise_signal(signal.SIGINT)", 130, "The model of the best epoch, 1, is in m.horn"),
        ("raise ValueError('enough')", 1, "there; the model of the best epoch, 1, is in m.horn"),
    ],
)
def test_a_run_that_ends_early_says_that_its_model_is_of_the_best_epoch(
    run: Any, folder: Path, does: str, code: int, said: str
) -> None:
    best = "callbacks=[Ends()], keep_best=True, epochs=9, validation=(x, 1 - y))"
    text = JOB.replace("epochs=3)", best) + ENDS.format(does=does)
    (folder / "worse.py").write_text(text)
    result = run("submit", "worse.py", "-q", "-o", "m.horn")
    assert result.code == code and said in result.err
    facts = horn.Model.load(folder / "m.horn").facts
    assert facts["best_epoch"] == 1 and facts["iteration"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--set", "epochs=2", "--set", "epochs= 3"],
            "--set epochs: is given twice, as 2 and as 3;",
        ),
        (["--set", "strategy.x=1", "--set", "strategy.x=2"], "--set strategy.x: is given twice"),
        (["--pin", "layer1=receiver", "--pin", "layer1=sender"], "--pin layer1: is given twice"),
        (["--dry-run", "--assume", "tasks=2,tasks=4"], "assume tasks: is given twice, as 2"),
    ],
)
def test_a_setting_that_is_given_twice_is_refused(run: Any, words: list[str], said: str) -> None:
    result = run("submit", "job.py", *words)
    assert result.code == 2 and said in result.err and not result.files


def test_arrays_that_callbacks_put_into_the_history_are_lists_in_json(
    run: Any, folder: Path
) -> None:
    text = (
        JOB.replace("epochs=3)", "epochs=2, callbacks=[Arrays()])")
        + """
class Arrays(horn.Callback):
    def on_epoch_end(self, context):
        context.row["mine"] = numpy.array([context.epoch, numpy.nan])

    def on_train_end(self, context):
        context.history[-1]["last"] = numpy.float32([numpy.inf, 0.5])
"""
    )
    (folder / "arrays.py").write_text("import numpy\n" + text)
    result = run("submit", "arrays.py", "-q", "--json", "--checkpoint-every", "2")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["history"]
    assert [row["mine"] for row in rows] == [[1.0, None], [2.0, None]]
    assert rows[-1]["last"] == [None, 0.5]


@pytest.mark.parametrize(
    "words", ["submit --json --local", "submit --json --dry-run", "check --json", "explain --json"]
)
def test_what_the_file_prints_is_no_json(run: Any, folder: Path, words: str) -> None:
    (folder / "job.py").write_text("print('at load')\n" + (folder / "job.py").read_text())
    done = run(*words.split(), "job.py")
    assert done.code == 0 and done.json["schema"] and "at load" in done.err
