"""Every bad input: a clear message with place and remedy, the exit code, nothing written."""

from __future__ import annotations

import gzip
import inspect
import io
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from horn import cli, settings, target
from horn.cli import _end
from horn.cluster import packing
from horn.errors import JobError, NotFound
from tests.cli.conftest import JOB, Result
from tests.cluster.agents import ROOT


def assert_refused(done: Result, code: int, *sentences: str) -> None:
    assert done.code == code, (done.code, done.out, done.err)
    for sentence in sentences:
        assert sentence in done.err, done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert done.files == set()


def job_with(folder: Path, **replacements: str) -> None:
    """job.py with the line that sets a name replaced: x="np.ones((4, 3))"."""
    text = JOB
    for name, value in replacements.items():
        text, n = re.subn(rf"^    {name} = .*$", f"    {name} = {value}", text, flags=re.M)
        assert n == 1
    (folder / "job.py").write_text(text)


# --- data ---


def test_wrong_feature_count(run: Any, folder: Path) -> None:
    job_with(folder, x='rng.standard_normal((40, 3)).astype("float32")')
    done = run("submit", "job.py")
    assert_refused(done, 2, "input has 3 features per sample, but", "declares input(2)")
    assert "Use net.input(3) or pass matching data" in done.err


def test_labels_outside_the_output(run: Any, folder: Path) -> None:
    job_with(folder, y="(x[:, 0] > 0) * 2")
    done = run("submit", "job.py")
    assert_refused(done, 2, "labels contain 2", "classes 0..1", "Use net.output(3, ...) or remap y")


def test_negative_labels(run: Any, folder: Path) -> None:
    job_with(folder, y="np.where(x[:, 0] > 0, 1, -1)")
    assert_refused(run("submit", "job.py"), 2, "label -1 in row", "classes count from 0")


@pytest.mark.parametrize("value, name", [("nan", "NaN"), ("inf", "infinity")])
def test_values_that_are_not_finite(run: Any, folder: Path, value: str, name: str) -> None:
    job_with(folder, y=f"(x[:, 0] > 0).astype(int); x[7, 1] = np.{value}")
    done = run("submit", "job.py")
    assert_refused(done, 2, f"x has {name} at row 7, column 1", "drop those rows or fill them in")


def test_empty_data(run: Any, folder: Path) -> None:
    job_with(folder, x="np.empty((0, 2))")
    assert_refused(run("submit", "job.py"), 2, "it is empty; pass at least one sample")


def test_labels_and_samples_of_different_number(run: Any, folder: Path) -> None:
    job_with(folder, y="(x[:30, 0] > 0).astype(int)")
    assert_refused(run("submit", "job.py"), 2, "x has 40 samples, but y has 30")


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return struct.pack(f">I{len(shape)}I", 0x0800 + len(shape), *shape) + content


@pytest.fixture
def model(run: Any) -> str:
    """A model of two features and two classes."""
    assert run("submit", "job.py", "-q").code == 0
    return "job.horn"


DATA: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated-idx3-ubyte": (
        lambda p: p.write_bytes(idx((5, 1, 2), b"1234567")),
        "is cut short: got 7 bytes of values, expected 10 by its header; fetch the file again",
    ),
    "truncated-idx3-ubyte.gz": (
        lambda p: p.write_bytes(gzip.compress(idx((5, 1, 2), b"1234567"))),
        "is cut short: got 7 bytes of values, expected 10 by its header",
    ),
    "objects.npy": (
        lambda p: np.save(p, np.array([1, "a", None], dtype=object), allow_pickle=True),
        "Python objects",
    ),
    "nan.npy": (lambda p: np.save(p, np.array([[1.0, np.nan]])), "x has NaN at row 0, column 1"),
    "empty.npy": (lambda p: np.save(p, np.empty((0, 2))), "pass at least one sample"),
    "wide.npy": (
        lambda p: np.save(p, np.ones((3, 5))),
        "5 features per sample, but this model learned from 2",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_predict_from_a_bad_file(run: Any, folder: Path, model: str, name: str) -> None:
    write, sentence = DATA[name]
    write(folder / name)
    assert_refused(run("predict", model, name, "-o", "out.npy"), 2, name, sentence)


def test_evaluate_on_labels_outside_the_output(run: Any, folder: Path, model: str) -> None:
    np.savez(folder / "rows.npz", x=np.ones((2, 2)), y=np.array([0, 7]))
    assert_refused(run("evaluate", model, "rows.npz"), 2, "labels contain 7", "classes 0..1")


def test_evaluate_without_labels(run: Any, folder: Path, model: str) -> None:
    np.save(folder / "x.npy", np.ones((2, 2)))
    assert_refused(
        run("evaluate", model, "x.npy"), 2, "there are no labels", "in a file as of np.savez("
    )


def test_data_that_are_not_there(run: Any, model: str) -> None:
    assert_refused(run("evaluate", model, "digit"), 4, "did you mean 'digits'")
    assert_refused(run("predict", model, "rows.npz"), 4, "no such file")


# --- neurons ---

SUM = """
        total = 0.0
        for m in messages:
            total += m.input * m.weight"""
FORWARD = SUM + "\n        self.feedforward(self.activation(total))"
END = "        self.backpropagate(error * self.activation.derivative(self.output))"


def backward(loop: str, after: str = "") -> str:
    body = "".join(f"\n            {line}" for line in loop.split("\n"))
    end = after + "\n" + END if after else "\n" + END
    return (
        f"{FORWARD}\n\n    def backward(self, messages):\n        error = 0.0\n"
        f"        for m in messages:\n            error += m.delta * m.weight{body}{end}"
    )


NEURONS: dict[str, tuple[str, int, str, str]] = {  # source, line, what is underlined, sentence
    "no feedforward": (
        SUM, 6, "def forward(self, messages):",
        "Mine.forward never calls self.feedforward(...), so the neuron has no output. "
        "End forward with self.feedforward(value)",
    ),
    "feedforward twice": (
        FORWARD + "\n        self.feedforward(total)", 11, "self.feedforward(total)",
        "self.feedforward is called a second time; call it exactly once on every path",
    ),
    "feedforward on one path": (
        SUM + "\n        if total > 0.0:\n            self.feedforward(total)", 6,
        "def forward(self, messages):",
        "self.feedforward(...) is not called where 'total > 0.0' is false",
    ),
    "push outside the loop": (
        backward("pass", "\n        self.push(error * self.output)"), 17,
        "self.push(error * self.output)",
        "Call self.push(...) once per message, inside the loop",
    ),
    "push for some messages": (
        backward("if m.delta > 0.0:\n    self.push(m.delta * self.output)"), 17,
        "self.push(m.delta * self.output)",
        "push exactly once per message on every path of the loop",
    ),
    "push twice for a message": (
        backward("self.push(m.delta * self.output)\nself.push(m.delta * self.output)"), 17,
        "self.push(m.delta * self.output)",
        "push is called a second time for the same message",
    ),
    "what an earlier message said": (
        """
        total = 0.0
        last = 0.0
        for m in messages:
            total += m.input * last
            last = m.weight
        self.feedforward(total)""", 10, "total += m.input * last",
        "'total' depends on the order of messages",
    ),
    "a later message": (
        """
        total = 0.0
        for m in messages:
            total += m.input * next(messages).weight
        self.feedforward(total)""", 9, "next",
        "next is not in the neuron language",
    ),
    "an unknown field": (
        backward("self.push(m.detla * self.output)"), 16, "m.detla",
        "message has no field 'detla'. Did you mean 'delta'?",
    ),
}  # fmt: skip


def neuron_job(folder: Path, source: str) -> None:
    neuron = f"class Mine(horn.Neuron):\n    def forward(self, messages):{source}"
    text = JOB.replace("def job", f"{neuron}\n\ndef job", 1)
    (folder / "job.py").write_text(text.replace("net.layer(4, ", "net.layer(4, neuron=Mine, "))


@pytest.mark.parametrize("what", NEURONS)
@pytest.mark.parametrize("command", ["submit", "check"])
def test_a_neuron_outside_the_language(run: Any, folder: Path, what: str, command: str) -> None:
    source, line, underlined, sentence = NEURONS[what]
    neuron_job(folder, source)
    done = run(command, "job.py")
    method = "backward" if "def backward" in source else "forward"
    assert_refused(done, 2, f"Error: job.py:{line}, in Mine.{method}\n", sentence)
    text, caret = done.err.splitlines()[1:3]
    shown = "".join(a for a, b in zip(text, caret.ljust(len(text)), strict=False) if b == "^")
    assert shown == underlined


@pytest.mark.parametrize("how", [("submit",), ("submit", "--backend=python"), ("check",)])
def test_an_optimizer_of_several_weights(run: Any, folder: Path, how: tuple[str, ...]) -> None:
    update = "def update(self, w, g, slots, lr, t):\n        return w - lr * (g - g.mean()), {}\n"
    text = JOB.replace("def job", f"class Centred(horn.SGD):\n    {update}\n\ndef job", 1)
    (folder / "job.py").write_text(text.replace("optimizer=horn.SGD(", "optimizer=Centred("))
    done = run(how[0], "job.py", *how[1:])
    said = "return w - lr * (g - g.mean()), {}", "an optimizer's formula is of one weight"
    assert_refused(done, 2, "in Centred.update", *said)


def test_a_backward_with_a_wrong_gradient(run: Any, folder: Path) -> None:
    neuron_job(folder, backward("self.push(-m.delta * self.output)"))
    done = run("submit", "job.py")
    assert_refused(
        done, 2, "job.py:16, in Mine.backward: self.push(...) is not the gradient of the loss",
        "by finite differences, but backward gives", "leave backward out and horn derives it",
    )  # fmt: skip
    done = run("check", "job.py")
    assert done.code == 1 and done.files == set()
    assert "DIFFER" in done.out and "self.push(...) is not the gradient of the loss" in done.out


def test_a_wrong_gradient_that_is_meant_is_not_checked(run: Any, folder: Path) -> None:
    neuron_job(folder, backward("self.push(-m.delta * self.output)"))
    assert run("submit", "job.py", "--set", "check=false").code == 0


# --- the command line and its files ---


@pytest.mark.parametrize(
    "setting, message",
    [
        (
            "batchsize=5",
            "--set batchsize: unknown key; did you mean batch_size? Valid keys: batch_",
        ),
        ("learning_rate=5", "unknown key; did you mean optimizer.learning_rate?"),
        ("optimizer.momentun=0.5", "did you mean optimizer.momentum?"),
        ("lr=0.5", "--set lr: unknown key; did you mean optimizer.learning_rate? Valid keys: "),
        ("optimizer.lr=0.5", "did you mean optimizer.learning_rate? Valid keys: "),
        ("optimizer.rate=0.5", "did you mean optimizer.learning_rate?"),
        ("clip_norm=1", "did you mean optimizer.clip_norm?"),
        ("seed=3", "--set seed: no field of the job; horn submit has  --seed VALUE\n"),
        ("strategy=downpour", "--set strategy: no field of the job; horn submit has  --strategy"),
        (
            "which=B",
            "unknown key; a parameter of the job's function goes after --:  -- --which "
            "VALUE. Valid keys: ",
        ),
        ("metrics=f1", "--set metrics: a field of the job that is not set by --set; write it in"),
        ("sample_weight=2", "a field of the job that is not set by --set"),
        ("truncate=5", "truncate is of stateful jobs; write stateful=True, too"),
        ("layer9.size=5", "did you mean layer2.size?"),
        ("batch_size=many", "batch_size is a whole number, got 'many'"),
        ("batch_size=2.5", "batch_size is a whole number, got '2.5'"),
        ("batch_size=0", "batch_size must be a whole number from 1, got 0"),
        ("optimizer.learning_rate=-1", "learning_rate must be 0 or more, and finite, got -1.0"),
        ("keep_best=maybe", "keep_best is true or false, got 'maybe'"),
        ("optimizer=sdg", "no optimizer is called 'sdg'; did you mean sgd?"),
        ("dtype=float16", 'dtype must be "float32" or "float64"'),
        ("early_stopping.patience=3", "add validation=0.1"),
        ("batch_size", "write --set key=value"),
    ],
)
def test_a_setting_that_does_not_fit(run: Any, setting: str, message: str) -> None:
    assert_refused(run("submit", "job.py", "--set", setting), 2, message)


@pytest.mark.parametrize("word", ["true", "YES", "on", "1", "false", "No", "off", "0"])
def test_a_setting_is_true_by_the_words_that_a_parameter_is_true_by(
    word: str, folder: Path
) -> None:
    """``-- --flag 1`` was, and ``--set check=1`` was refused."""
    by_setting = target.load_job(str(folder / "job.py"), (), [f"check={word}"]).check
    assert by_setting is (word.lower() in settings.TRUE)
    parameter = inspect.Parameter("flag", inspect.Parameter.KEYWORD_ONLY, default=False)
    assert target._typed("flag", word, parameter) is by_setting


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["jop.py"], 4, "; did you mean job.py?"),
        (["work/job"], 4, "work/job: no such file or module; give file.py or package.module"),
        (["job.py:jop"], 4, "job.py has no 'jop'; did you mean job.py:job?"),
        (["no.such.module"], 4, "no.such.module: no such file or module"),
        (["."], 4, "is a folder; name a file in it"),
        (["job.py", "-g", "9999"], 2, "use fewer groups, or a larger batch_size"),
        (["job.py", "--strategy", "downpur"], 2, "did you mean downpour?"),
        (["job.py", "--servers", "2"], 2, "strategy allreduce has no servers"),
        (["job.py", "--strategy", "easgd", "--checkpoint-every", "1s"], 2,
         "leave checkpoint_every and checkpoint_seconds out (--checkpoint-every)"),
        (["job.py", "--strategy", "easgd", "--resume", "r"], 2, "(--resume without RUN)"),
        (["job.py", "--backend", "cuda"], 2, "no backend is called 'cuda'; known: kernels"),
        (["job.py", "--timeout", "soon"], 2, "--timeout 'soon' is no length of time; write 90s, 5m "
         "or 2h"),
        (["job.py", "--checkpoint-every", "x"], 2, "--checkpoint-every 'x' is no length of time; "
         "write 100, 30s or 10m"),
        (["job.py", "--start-timeout", "x"], 2, "--start-timeout 'x' is no length of time"),
        (["job.py", "--superstep-timeout", "x"], 2, "--superstep-timeout 'x' is no length of"),
        (["job.py", "--zk", "h:1", "--start-timeout", "x"], 2, "--start-timeout 'x' is no length"),
        (["job.py", "--timeout", "9" * 400], 2, "is longer than 30 years; leave it out"),
        (["job.py", "--start-timeout", "100d"], 2, "got 8640000.0; 1e+06 are the most"),
        (["job.py", "-o", "no/where.horn"], 2, "the folder no does not exist; make it first"),
        (["job.py", "--batch", "5"], 2, "No such option '--batch'; write  --set batch_size=VALUE"),
        (["job.py", "--lr=0.1"], 2, "'--lr'; write  --set optimizer.learning_rate=VALUE"),
        (["job.py", "--epoch", "5"], 2, "No such option '--epoch'; write  --set epochs=VALUE"),
        (["job.py", "--task", "2"], 2, "No such option '--task'; did you mean --tasks?"),
        (["job.py", "--zk", "h:1", "-d", "-o", "a b.horn"], 2, "horn fetch JOB -o 'a b.horn'"),
        (["job.py", "--zk", "h:1", "--resume"], 2, "on a cluster:  horn resume JOB"),
        (["job.py", "--zk", "h:1", "--resume", "r"], 2, "on a cluster:  horn resume JOB"),
        (["job.py", "--zk", "h:1", "--changed"], 2, "horn resume JOB --changed"),
        (["job.py", "--zk", "h:1", "--checkpoints", ""], 2, "a cluster keeps what it needs"),
        (["job.py", "--zk", "h:1", "--profile"], 2, "--profile is for this machine; add --local"),
        (["job.py", "--zk", "h:1", "--assume", "tasks=2"], 2, "add --dry-run"),
        ([], 2, "Missing argument"),
        ([""], 2, 'TARGET is "": write file.py, or package.module'),
    ],
)  # fmt: skip
def test_a_command_that_does_not_fit(
    run: Any, arguments: list[str], code: int, message: str
) -> None:
    assert_refused(run("submit", *arguments), code, message)


@pytest.mark.parametrize("command", ["submit", "check", "explain", "trace", "sweep"])
def test_an_unknown_option_of_every_command_with_a_target_is_told_its_place(
    run: Any, command: str
) -> None:
    own = "An argument of TARGET goes after --:  horn"
    for words, said in (
        (["job.py", "--which", "B"], f"{own} {command} job.py -- --which\n"),
        (["--which=B", "job.py"], f"{own} {command} TARGET -- --which\n"),
        (["job.py", "--epochs", "3"], "No such option '--epochs'; write  --set epochs=VALUE"),
        (["job.py", "-x"], f"No such option '-x'; horn {command} --help has those that there are"),
    ):
        assert_refused(run(command, *words), 2, said)


@pytest.mark.parametrize(
    "target, said",
    [
        ("two.py", "two.py has no 'job', but first, second; name what gives the horn.Job, as in "
         "two.py:first, or write  def job(): return horn.Job(...)\n"),
        ("made.py", "as in made.py:mine, or write"),
        ("two.py::second", "no such file or module; did you mean two.py:second?"),
        ("two.py:second()", "no such file or module; did you mean two.py:second?"),
        ("two.py.second", "no such file or module; did you mean two.py:second?"),
        ("two.py:", "no such file or module; did you mean two.py:job?"),
        ("two", "two has no 'job', but first, second;"),
        ("work/two", "no such file or module; did you mean work/two.py?"),
        ("no.such", "no.such: no such file or module; give file.py or package.module"),
    ],
)  # fmt: skip
def test_a_target_that_is_nearly_right_is_told_how_it_is_written(
    run: Any, folder: Path, target: str, said: str
) -> None:
    two = "def first(): pass\ndef second(): pass\n"
    (folder / "two.py").write_text(two)
    (folder / "work").mkdir()
    (folder / "work" / "two.py").write_text(two)
    job_with(folder)
    (folder / "made.py").write_text("import job as j\ndef helper(): pass\nmine = j.job()\n")
    assert_refused(run("check", target), 4, said)


def test_a_notebook_as_target_is_told_what_to_do(run: Any, folder: Path) -> None:
    (folder / "mine.ipynb").write_text("{}")
    said = "run a notebook in Jupyter, with horn.train, or copy its job to a file.py"
    assert_refused(run("check", "mine.ipynb"), 2, f"mine.ipynb: is no Python file; {said}")
    with pytest.raises(NotFound, match=f"mine.ipynb: no such file or module in .*; {said}"):
        packing.pack("mine.ipynb")


def test_an_argument_of_a_target_without_its_dashes_is_told_how_it_is_written(
    run: Any, folder: Path
) -> None:
    (folder / "sized.py").write_text("def job(size=3): pass\n")
    for words in (["--", "size=5"], ["size=5"]):
        said = "argument 'size=5': job takes --parameter value (--size); write --size=5\n"
        assert_refused(run("explain", "sized.py", *words), 2, said)


@pytest.mark.parametrize("command", ["check", "explain", "trace"])
def test_an_option_of_submit_alone_is_told_so(run: Any, command: str) -> None:
    said = f"No such option '-n': horn submit has it, horn {command} has not; leave it out"
    assert_refused(run(command, "job.py", "-n", "2"), 2, said)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--json", "check", "job.py"], "'--json' of horn itself; those of a command go after its "
         "name, as in  horn check --json"),
        (["-v", "submit", "job.py"], "as in  horn submit -v"),
        (["--nosuch"], "as in  horn COMMAND --nosuch"),
    ],
)  # fmt: skip
def test_an_option_before_the_command_is_told_its_place(
    run: Any, words: list[str], said: str
) -> None:
    assert_refused(run(*words), 2, said)


@pytest.mark.parametrize("word, meant", [("train", "submit"), ("sumbit", "submit"), ("ps", "list")])
def test_a_command_that_there_is_not(run: Any, word: str, meant: str) -> None:
    """train was answered with trace."""
    assert_refused(run(word, "job.py"), 2, f"No such command {word!r}; did you mean {meant}?")


def test_help_is_a_command_too(run: Any) -> None:
    assert run("help").out == run("--help").out
    assert run("help", "submit").out == run("submit", "--help").out


def test_a_file_with_a_syntax_error(run: Any, folder: Path) -> None:
    (folder / "job.py").write_text("import horn\ndef job(:\n    pass\n")
    assert_refused(run("submit", "job.py"), 2, "job.py:2\n    def job(:\n            ^")


@pytest.mark.parametrize("ending, kind", [("None", "nothing"), ("42", "an int")])
def test_a_job_function_that_returns_something_else(
    run: Any, folder: Path, ending: str, kind: str
) -> None:
    (folder / "job.py").write_text(f"def job():\n    return {ending}\n")
    assert_refused(run("submit", "job.py"), 2, f"job gives {kind}, not a horn.Job")


@pytest.mark.parametrize("command", ["evaluate", "predict", "show"])
def test_a_model_that_is_damaged_foreign_or_missing(
    run: Any, folder: Path, model: str, command: str
) -> None:
    more = [] if command == "show" else ["digits:test"]
    (folder / "cut.horn").write_bytes((folder / model).read_bytes()[:-9])
    (folder / "text.horn").write_text("not a model at all, but long enough to look at it twice")
    assert_refused(run(command, "cut.horn", *more), 2, "cut.horn: is cut short")
    whole = (folder / model).read_bytes()
    (folder / "flipped.horn").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_refused(run(command, "flipped.horn", *more), 2, "flipped.horn: is damaged (its numbers")
    assert_refused(run(command, "text.horn", *more), 2, "text.horn: is no model file")
    assert_refused(run(command, "none.horn", *more), 4, "none.horn: no such file")


def test_predictions_go_to_a_known_kind_of_file(run: Any, model: str) -> None:
    done = run("predict", model, "digits:test", "-o", "out.parquet")
    assert_refused(done, 2, "predictions are written as .npy, .npz or .csv")


# --- the machine ---


def test_a_blas_that_nobody_has(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORN_BLAS", "opnblas")
    done = run("submit", "job.py")
    assert_refused(done, 2, "no BLAS is called 'opnblas'; HORN_BLAS is one of mkl, openblas, numpy")


@pytest.mark.parametrize("option", ["--dir", "--shared"])
@pytest.mark.parametrize("command", [("worker", "--zk", "localhost:1"), ("up",)])
def test_a_worker_whose_folder_is_an_empty_text(
    run: Any, command: tuple[str, ...], option: str
) -> None:
    """As of a variable of the shell that is not set: it took the current folder."""
    assert_refused(run(*command, option, ""), 2, f'{option} is "": name a folder, or leave it out')


@pytest.mark.parametrize("command", [("worker", "--zk", "localhost:1"), ("up",)])
def test_a_shared_folder_that_is_not_there(run: Any, command: tuple[str, ...]) -> None:
    """It was made, on each machine by itself, where the disk of all was not mounted."""
    done = run(*command, "--shared", "nfs/horn")
    assert_refused(done, 2, "--shared nfs/horn: there is no such folder. Mount the disk that all")


def test_a_worker_of_a_user_without_a_home(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose uid has no entry in passwd: it was called a bug in horn."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    done = run("worker", "--zk", "localhost:1")
    assert_refused(done, 2, "this user has no home folder, where a worker keeps its files; give")


def test_a_thread_that_the_system_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Where ulimit -u is low: it was called a bug in horn."""
    assert _end._unexpected(RuntimeError("can't start new thread"), [], verbose=False) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: RuntimeError: can't start new thread; this user may have no ")
    assert "raise ulimit -u" in said


def test_a_stdout_that_the_users_code_has_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called a bug in horn, after training."""
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    monkeypatch.setattr(_end, "_write_no_more", lambda: None)  # that of the tests goes on
    failure = ValueError("I/O operation on closed file.")
    assert _end._unexpected(failure, [], verbose=False) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: ValueError: I/O operation on closed file.\nThe job's code has ")
    assert "contextlib.redirect_stdout" in said


def test_a_stdout_that_the_users_code_has_taken_away(run: Any, folder: Path) -> None:
    """It was called a bug in horn, after the model was saved."""
    (folder / "job.py").write_text(f"import sys\nsys.stdout = None\n{JOB}")
    before = sys.stdout
    try:
        done = run("submit", "job.py", "-q")
    finally:
        sys.stdout = before
    assert done.code == 0 and done.files == {"job.horn"} and done.err == ""


@pytest.mark.parametrize("kind", "Exception ImportError OSError RuntimeError TypeError".split())
def test_an_error_whose_text_raises(kind: str, run: Any, folder: Path) -> None:
    (folder / "mute.py").write_text(
        f"class Mute({kind}):\n    def __str__(self): raise RuntimeError('no text')\n"
        "def job(): raise Mute\n"
    )
    done = run("submit", "mute.py")
    assert_refused(
        done, 1, "mute.py:3  def job(): raise Mute\nMute: (no text: its __str__ raised Ru"
    )


@pytest.mark.parametrize("missing", ["horn.sources", "horn.mistakes"])
def test_an_error_is_told_where_files_of_horn_are_being_replaced(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second traceback, of the import, took its place, and the exit code was 1."""
    monkeypatch.setitem(sys.modules, missing, None)

    @click.command()
    @click.option("--how", type=int)
    def command(how: int) -> None:
        if how == _end.INTERNAL:
            raise ImportError("cannot import name 'a' from 'horn.b'")
        raise JobError("what is wrong")

    assert _end.ending(command, [f"--how={_end.INTERNAL}"]) == _end.INTERNAL
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1 and "ImportError: cannot import name 'a'" in said
    assert _end.ending(command, ["--how=2"]) == 2
    assert capsys.readouterr().err.endswith("what is wrong\n")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "[::]", "*"])
@pytest.mark.parametrize(
    "command", [("worker", "--zk", "localhost:1"), ("up",), ("up", "--join", "--first", "a")]
)
def test_a_worker_at_an_address_that_is_no_place_to_go_to(
    run: Any, command: tuple[str, ...], address: str
) -> None:
    """It was there with tcp://0.0.0.0:46441, where another machine finds only itself."""
    done = run(*command, "--host", address, "--insecure")
    assert_refused(done, 2, f'--host "{address}" is all addresses of this machine, of which others')


def test_a_key_file_whose_name_is_an_empty_text(run: Any) -> None:
    assert_refused(run("list", "--zk", "localhost:1", "--key", ""), 2, 'file of the key is ""')


def test_a_worker_whose_memory_is_not_in_bytes(run: Any) -> None:
    """Each job failed there, "with exit code 1"."""
    done = run("worker", "--zk", "localhost:1", "--memory", "8")
    assert_refused(done, 2, "Invalid value for '--memory': 8 is not in the range x>=268435456")


@pytest.mark.parametrize("session, seconds", [("0s", "0"), ("100d", "8.64e+06")])
def test_a_worker_whose_session_has_no_time_or_more_than_there_is(
    run: Any, session: str, seconds: str
) -> None:
    """It tried for ever, as if ZooKeeper were not there."""
    done = run("worker", "--zk", "127.0.0.1:1", "--session", session)
    assert_refused(done, 2, f"--session {seconds} s: a time above 0, 1e+06 s at most, such as 6s")


def test_a_worker_for_a_user_that_nobody_is(run: Any) -> None:
    done = run("worker", "--zk", "127.0.0.1:1", "--user", "nobody-of-that-name")
    assert_refused(done, 2, "--user nobody-of-that-name: this machine has no such user")


@pytest.mark.parametrize("command", ["worker --zk 127.0.0.1:1", "up"])
def test_a_level_of_logs_that_is_none(
    command: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORN_LOG_LEVEL", "loud")
    done = run(*command.split())
    assert_refused(done, 2, "HORN_LOG_LEVEL is 'LOUD'; choose one of CRITICAL")


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["queue", "zmq"])
def test_a_file_with_the_name_of_a_module_that_is_needed(name: str, folder: Path) -> None:
    """It was found instead of the module, and the AttributeError was called a bug in horn."""
    (folder / f"{name}.py").write_text("")
    words = [sys.executable, "-P", "-m", "horn", "submit", "job.py", "--tasks", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    said = f"{name}.py hides the module {name} that horn needs: give that file another name"
    assert said in done.stderr, done.stderr


@pytest.mark.parametrize(
    "command",
    ["submit", "submit --checkpoint-every 9", pytest.param("up --", marks=pytest.mark.cluster)],
)
def test_a_current_folder_that_was_removed(
    command: str, run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    done = run(*command.split(), str(folder / "job.py"))
    assert done.code in (1, 2, 4) and "SUCCEEDED" not in done.err, done.err
    assert "Traceback" not in done.err, done.err
    assert "Error: " in done.err and "bug in horn" not in done.err


def test_a_relative_folder_of_a_worker_in_a_removed_one(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    done = run("worker", "--zk", "127.0.0.1:1", "--dir", "mine")
    assert_refused(done, 2, "the current folder was removed; go to another, or give absolute paths")


@pytest.mark.parametrize(
    "word, is_asked",
    [("-v", True), ("-qv", True), ("-vq", True), ("--verbose", True), ("-ov.horn", False),
     ("-qoconv.horn", False), ("-nv", False), ("--vx", False), ("v", False)],
)  # fmt: skip
def test_verbose_is_an_option_and_no_letter_of_another_ones_value(
    word: str, is_asked: bool
) -> None:
    """-oconv.horn asked for tracebacks."""
    assert _end._is_verbose(["submit", "job.py", word]) is is_asked
    assert not _end._is_verbose(["submit", "job.py", "--", word])


def test_the_options_before_a_short_verbose_are_those_without_a_value() -> None:
    known = {}
    for name in cli.horn.list_commands(click.Context(cli.horn)):
        command = cli.horn.get_command(click.Context(cli.horn), name)
        for option in command.params if command else ():
            known |= dict.fromkeys((o for o in option.opts if len(o) == 2 and o[0] == "-"), option)
    flags = {word[1] for word, option in known.items() if getattr(option, "is_flag", False)}
    assert {word for word in "dfhqv" if _end.VERBOSE.match(f"-{word}v")} == flags | {"h"}
    assert not any(_end.VERBOSE.match(f"{word}v") for word in known if word[1] not in flags)
