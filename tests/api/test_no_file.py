"""Neurons whose text stands in no file: exec, ``python -c``, stdin, a prompt's cells."""

from __future__ import annotations

import copy
import importlib
import linecache
import os
import pty
import select
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import numpy as np
import pytest
from IPython.extensions.autoreload import ModuleReloader

import horn
from horn import texts
from horn.errors import CompileError, JobError, ModelError
from horn.process import job_files

PROGRAM = '''
import horn

GAIN = 0.5
TABLE = (1.0, 2.0)


def scaled(z):
    return GAIN * z


class Typed(horn.Neuron):
    """One that no file has."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(scaled(total)) * TABLE[0])


def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(8, neuron=Typed, activation=horn.Activation("own", lambda z: horn.math.tanh(z)))
    net.output(10, neuron=Typed, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.digits(), optimizer=horn.SGD(0.1), epochs=1, name="typed")
'''
MAIN = """
if __name__ == "__main__":
    import sys
    run = horn.train(job(), tasks=int(sys.argv[1]))
    run.model.save(sys.argv[2])
    print(repr(run.history[-1]["loss"]))
"""


FOUND = """
assert 'GAIN * z' in horn.texts.text_of(Typed.forward.__code__, globals())
"""


def losses_of(run: horn.Run) -> list[float]:
    return [row["loss"] for row in run.history]


def of_a_file(tmp_path: Path) -> tuple[horn.Job, dict[str, np.ndarray]]:
    """The job and the weights that the same text gives from a file."""
    space: dict = {"__name__": "a_file", "__file__": str(tmp_path / "a_file.py")}
    (tmp_path / "a_file.py").write_text(PROGRAM)
    exec(compile(PROGRAM, space["__file__"], "exec"), space)
    job = space["job"]()
    return job, dict(horn.train(job).model.parameters)


def same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("tasks", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_exec_in_a_namespace_without_a_name(tasks, tmp_path):
    """Its functions have no module, its classes "builtins"."""
    space: dict = {}
    exec(PROGRAM, space)
    run = horn.train(space["job"](), tasks=tasks)
    run.model.save(tmp_path / "typed.horn")
    loaded, x = horn.Model.load(tmp_path / "typed.horn"), horn.data.digits("test").x
    np.testing.assert_array_equal(loaded.predict(x), run.model.predict(x))


def test_exec_trains_saves_and_loads_as_a_file_does(tmp_path):
    _, expected = of_a_file(tmp_path)
    space: dict = {"__name__": "anywhere"}
    exec(PROGRAM, space)
    run = horn.train(space["job"]())
    same(run.model.parameters, expected)
    run.model.save(tmp_path / "typed.horn")
    loaded = horn.Model.load(tmp_path / "typed.horn")
    x = horn.data.digits("test").x[:50]
    np.testing.assert_array_equal(loaded.predict(x), run.model.predict(x))


@pytest.mark.parametrize("name", ["read.py", "read.txt"])
def test_exec_of_a_file_that_is_read_in_passing(tmp_path, name):
    file = str(tmp_path / name)
    Path(file).write_text(PROGRAM + "# other\n")
    space: dict = {"__name__": "anywhere"}
    exec(Path(file).read_text(), space)
    assert losses_of(horn.train(space["job"]()))


@pytest.mark.cluster
def test_two_texts_in_one_namespace_and_a_definition_that_was_mended():
    space: dict = {"__name__": "anywhere"}
    exec(PROGRAM, space)
    wrong = "class Later(horn.Neuron):\n    def output(self):\n        return 1\n"
    with pytest.raises(ModelError, match="defines output"):
        exec(wrong, space)
    later = (
        "\n\nclass Later(Typed):\n    def forward(self, messages):\n"
        "        self.feedforward(scaled(max(m.input * m.weight for m in messages)))\n"
    )
    exec(later, space)
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=space["Later"])
    net.output(2, neuron=space["Typed"], activation="identity", loss="squared_error")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 2))
    alone = horn.train(horn.Job(net, (x, y), epochs=2, dtype="float64"))
    together = horn.train(horn.Job(net, (x, y), epochs=2, dtype="float64"), tasks=2)
    for name, array in alone.model.parameters.items():
        np.testing.assert_allclose(together.model.parameters[name], array, rtol=1e-9, atol=1e-12)


AGAIN = """
class Base(horn.Neuron):
    def forward(self, messages):
        self.feedforward(3.0 * sum(m.input * m.weight for m in messages))
"""
ONE = "    def one(self):\n        return 1\n"  # by its methods the text of a class is known
FOUND_WHEN_DEFINED = {
    "a base that was changed since": (AGAIN + "class Mine(Base):\n" + ONE, AGAIN, 9.0),
    "a base of a base": (
        f"{AGAIN}class Middle(Base):\n{ONE}class Mine(Middle):\n{ONE}", AGAIN, 9.0
    ),
    "a base that is no neuron": (
        "class Base:\n    def bend(self, z):\n        return 3.0 * z\n"
        "class Mine(Base, horn.Neuron):\n    def forward(self, messages):\n"
        "        self.feedforward(self.bend(sum(m.input * m.weight for m in messages)))\n",
        "class Base:\n    def bend(self, z):\n        return 3.0 * z\n", 9.0,
    ),
    "a default": (
        "gain = 2.0\n"
        "def times(z, gain=gain):\n    return gain * z\n"
        "class Mine(horn.Neuron):\n    def forward(self, messages):\n"
        "        self.feedforward(times(sum(m.input * m.weight for m in messages)))\n",
        "gain = 5.0", 6.0,
    ),
    "a default of a method": (
        "gain = 2.0\n"
        "class Mine(horn.Neuron):\n    def forward(self, messages, gain=gain):\n"
        "        self.feedforward(gain * sum(m.input * m.weight for m in messages))\n",
        "gain = 5.0", 6.0,
    ),
    "numbers, defaults and a base of the function around it": (
        "def make(gain, more):\n"
        "    def times(z, by=more):\n        return by * z\n"
        "    class Base(horn.Neuron):\n        factor = gain\n"
        "        def forward(self, messages):\n"
        "            z = self.factor * sum(m.input * m.weight for m in messages)\n"
        "            self.feedforward(times(z))\n"
        "    class Inner(Base):\n        def one(self):\n            return 1\n"
        "    return Inner\n"
        "Mine = make(2.0, 0.5)",
        "", 3.0,
    ),
    "what the function around it gives Parameters, States and Weights": (
        "def make(gain, start, first):\n"
        "    class Inner(horn.Neuron):\n"
        "        factor = horn.Parameter(2.0 * gain)\n"
        "        count = horn.State(initial=start, per='run')\n"
        "        own = horn.Weight(first)\n"
        "        def forward(self, messages):\n"
        "            z = sum(m.input * m.own for m in messages)\n"
        "            self.feedforward(self.factor * z + self.count)\n"
        "    return Inner\n"
        "Mine = make(1.0, 0.5, 0.25)",
        "", 2.0,
    ),
    "what a Parameter is given": (
        "gain = 2.0\n"
        "class Mine(horn.Neuron):\n    factor = horn.Parameter(gain)\n"
        "    def forward(self, messages):\n"
        "        self.feedforward(self.factor * sum(m.input * m.weight for m in messages))\n",
        "gain = 5.0", 6.0,
    ),
}  # fmt: skip


def of_ones(neuron):
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, neuron=neuron, init=1.0, bias=False, loss="squared_error")
    return net


def trained_and_loaded(net, folder):
    """Its model, from a file; training changes nothing."""
    job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 2))), horn.SGD(0.0), epochs=1)
    horn.train(job).model.save(folder / "m.horn")
    return horn.Model.load(folder / "m.horn")


@pytest.mark.parametrize("how", FOUND_WHEN_DEFINED)
def test_what_a_definition_found_when_it_ran_is_captured(how, tmp_path):
    text, later, expected = FOUND_WHEN_DEFINED[how]
    changed = later.replace("3.0", "7.0")
    space: dict = {"__name__": "anywhere", "horn": horn}
    exec(text, space)
    exec(changed, space)
    net = of_ones(space["Mine"])
    loaded = trained_and_loaded(net, tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[expected, expected]])
    again = loaded.network.initial_parameters()  # of its text, as tasks have them
    for name, array in net.initial_parameters().items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("factor", ["3.0", "7.0"])
def test_a_base_that_is_called_by_its_name_and_was_defined_again(factor, tmp_path, caplog):
    """Its class inherits from the earlier one and calls the later: no text says both."""
    space: dict = {"__name__": "anywhere", "horn": horn}
    calls = "    def forward(self, messages):\n        Base.forward(self, messages)\n"
    first, again = f"{AGAIN}class Mine(Base):\n{calls}", AGAIN.replace("3.0", factor)
    exec(first, space)
    exec(again, space)
    job = horn.Job(of_ones(space["Mine"]), (np.ones((4, 3)), np.ones((4, 2))), epochs=1)
    model = horn.train(job).model
    if factor == "3.0":  # the same text: the same neuron
        model.save(tmp_path / "m.horn")
        return
    assert "Mine calls Base by its name, which has been defined again since Mine was" in caplog.text
    with pytest.raises(ModelError, match="define Mine again, too, or call super"):
        model.save(tmp_path / "m.horn")


CHANGED = {
    "an item": ("gains = [4.0, 1.0]", "* gains[0]", "gains[0] = 0.5"),
    "an attribute": ("class gains:\n    first = 4.0", "* gains.first", "gains.first = 0.5"),
}


@pytest.mark.parametrize("how", CHANGED)
def test_what_a_later_text_changes_is_captured_with_what_it_changes(how, tmp_path):
    before, factor, after = CHANGED[how]
    space: dict = {"__name__": "anywhere"}
    neuron = (
        "class Changed(horn.Neuron):\n    def forward(self, messages):\n"
        f"        self.feedforward(sum(m.input * m.weight for m in messages) {factor})\n"
    )
    first = f"import horn\n{before}\n{neuron}"
    second = f"{neuron.replace('Changed', 'Other')}{after}\n"
    exec(first, space)
    exec(second, space)
    loaded = trained_and_loaded(of_ones(space["Changed"]), tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[1.5, 1.5]])


@pytest.mark.parametrize("way", ["Mine.forward = other", "setattr(Mine, 'forward', other)"])
def test_a_method_that_was_put_there_later_is_captured_or_named(way, tmp_path):
    space: dict = {"__name__": "anywhere", "horn": horn}
    method = textwrap.dedent(AGAIN.partition(":\n")[2]).replace("forward(self, m", "other(self, m")
    text = f"{AGAIN.replace('Base', 'Mine').replace('3.0', '1.0')}{ONE}{method}{way}\n"
    exec(text, space)
    net = of_ones(space["Mine"])
    if "setattr" not in way:
        loaded = trained_and_loaded(net, tmp_path)
        np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[9.0, 9.0]])
        return
    with pytest.raises(ModelError, match="Mine.forward is other, but no statement of the text"):
        trained_and_loaded(net, tmp_path)


def test_what_python_puts_into_a_class_is_no_method_of_the_users(tmp_path):
    space: dict = {"__name__": "anywhere", "horn": horn}
    text = (
        "import abc, enum, typing\n"
        "class Code(enum.IntEnum):\n    TWICE = 2\n"
        "class Pair(typing.NamedTuple):\n    a: float\n    b: float\n"
        "class Shape(abc.ABC):\n    times = 1.0\n"
        "def gain():\n    return Code.TWICE.value * Pair(1.0, 2.0).a * Shape.times\n"
        "GAINS = [gain()]\n" + AGAIN.replace("Base", "Mine").replace("3.0", "GAINS[0]")
    )
    exec(text, space)
    loaded = trained_and_loaded(of_ones(space["Mine"]), tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[6.0, 6.0]])


def test_of_several_definitions_the_one_that_is_there_counts(tmp_path):
    space: dict = {"__name__": "anywhere"}
    exec(PROGRAM, space)
    first = space["Typed"]
    another = PROGRAM.replace("* TABLE[0]", "* 0.0")
    exec(another, space)
    space["Typed"] = first
    run = horn.train(space["job"]())
    run.model.save(tmp_path / "typed.horn")
    loaded = horn.Model.load(tmp_path / "typed.horn")
    x = horn.data.digits("test").x
    np.testing.assert_array_equal(loaded.predict(x), run.model.predict(x))


@pytest.mark.cluster
def test_what_somebody_put_into_the_namespace_is_imported(tmp_path):
    space: dict = {"__name__": "anywhere", "horn": horn, "maths": horn.math, "np": np}
    text = PROGRAM.replace("import horn\n", "").replace("horn.math.tanh", "maths.tanh")
    exec(text, space)
    run = horn.train(space["job"](), tasks=2)
    run.model.save(tmp_path / "typed.horn")
    assert horn.Model.load(tmp_path / "typed.horn").evaluate(horn.data.digits("test"))["acc"] > 0.3


def test_an_object_that_no_text_defines_is_named(caplog):
    space: dict = {"__name__": "anywhere", "TABLE": range(1, 3)}
    text = PROGRAM.replace("TABLE = (1.0, 2.0)\n", "")
    exec(text, space)
    with pytest.raises(JobError, match=r"'TABLE' \(range\) is read, but no text"):
        horn.train(space["job"](), tasks=2)
    horn.train(space["job"]())  # alone it need not travel, but it is said that it cannot be saved
    assert "'TABLE' (range) is read" in caplog.text


IMPORTED = """
class Filed(horn.Neuron):
    def forward(self, messages):
        self.feedforward(tanh(exp(0.0) * doubled(sum(m.input * m.weight for m in messages))))


def job():
    net = horn.Network(seed=3)
    net.input(64)
    net.layer(8, neuron=Filed)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.digits(), epochs=1)
"""


@pytest.mark.parametrize("tasks", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_names_that_came_by_exec_into_a_file_are_imported(tmp_path, monkeypatch, tasks):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helper.py").write_text("def doubled(z):\n    return 2.0 * z\n")
    (tmp_path / "filed.py").write_text(
        'exec("import horn; from horn.math import tanh; from math import exp")\n'
        'exec("from own_helper import doubled")\n' + IMPORTED
    )
    run = horn.train(importlib.import_module("filed").job(), tasks=tasks)
    run.model.save(tmp_path / "filed.horn")
    for name in ("filed", "own_helper"):
        monkeypatch.delitem(sys.modules, name)
        (tmp_path / f"{name}.py").unlink()
    loaded = horn.Model.load(tmp_path / "filed.horn")
    x = horn.data.digits("test").x[:50]
    np.testing.assert_array_equal(loaded.predict(x), run.model.predict(x))


def test_a_function_that_exec_defines_in_a_file_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_here.py").write_text(
        'exec("import horn; from math import exp; from horn.math import tanh")\n'
        'exec("def doubled(z):\\n    return 2.0 * z")\n'
        + IMPORTED.replace("    def forward", "    rate = doubled(0.5)\n\n    def forward").replace(
            "doubled(sum", "self.rate * (sum"
        )
    )
    job = importlib.import_module("made_here").job()
    with pytest.raises(JobError, match=r"'doubled' \(function\) is read in made_here.py, which"):
        horn.train(job, tasks=2)
    horn.train(job)
    assert "define it in that file" in caplog.text


OF_A_RUNNING_FILE = """import horn
import numpy as np

text = '''class Told(horn.Neuron):
    def forward(self, messages):
        self.feedforward(GAIN * sum(m.input * m.weight for m in messages))
'''
exec(text)
GAIN = 2.0
net = horn.Network(seed=1)
net.input(2)
net.layer(3, neuron=Told)
net.output(1, loss="squared_error")
job = horn.Job(net, (np.ones((4, 2)), np.ones((4, 1))), horn.SGD(0.1), epochs=1)
model = horn.train(job, progress=False).model
model.save("told.horn")
"""


def test_a_class_that_exec_defines_in_a_file_that_runs_still_is_saved(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs_still.py").write_text(OF_A_RUNNING_FILE)
    model = importlib.import_module("runs_still").model
    x = np.ones((1, 2))
    np.testing.assert_array_equal(horn.Model.load("told.horn").predict(x), model.predict(x))


def test_a_class_without_methods_that_exec_defines_in_a_file_is_named(tmp_path, monkeypatch):
    """It has no code by which its text could be found."""
    monkeypatch.syspath_prepend(tmp_path)
    text = OF_A_RUNNING_FILE.replace("exec(text)", "exec(text + 'class Louder(Told): pass')")
    text = text.replace("neuron=Told", "neuron=Louder").replace("model.save", "# ")
    (tmp_path / "runs_on.py").write_text(text)
    model = importlib.import_module("runs_on").model
    with pytest.raises(
        ModelError, match="'Louder' .* is read in runs_on.py, which does not define"
    ):
        model.save(tmp_path / "told.horn")
    assert not (tmp_path / "told.horn").exists()


def test_only_what_is_needed_is_saved(tmp_path):
    space: dict = {"__name__": "anywhere"}
    text = "SECRET = ['not', 'to', 'be', 'told']\n" + PROGRAM
    exec(text, space)
    horn.train(space["job"]()).model.save(tmp_path / "typed.horn")
    raw = (tmp_path / "typed.horn").read_bytes()
    assert b"scaled" in raw and b"SECRET" not in raw


def test_what_is_typed_is_not_of_the_file_of_the_prompt(tmp_path, monkeypatch):
    """Python 3.13.0 names its prompt's own program, as if it were the file of what is typed."""
    main = types.ModuleType("__main__")
    main.__file__ = str(Path(pty.__file__).parent / "_pyrepl" / "__main__.py")
    space = vars(main)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        text = PROGRAM + "def hits(truth, output):\n    return (truth == output.argmax(1)).mean()\n"
        exec(text, space)
        job_files.save(
            space["job"]().with_settings(validation=0.2, metrics=[space["hits"]]), tmp_path
        )
    assert "hits" in horn.train(job_files.load(tmp_path)).metrics["validation"]
    assert texts.title(space) == "typed"


def test_errors_show_the_line_of_a_text_without_a_file():
    space: dict = {"__name__": "anywhere"}
    text = PROGRAM.replace("scaled(total)", "scaled(totle)")
    exec(text, space)
    with pytest.raises(CompileError) as caught:
        horn.train(space["job"]())
    assert "scaled(totle)" in str(caught.value) and "did you mean 'total'" in str(caught.value)


def test_a_text_that_nobody_has_is_said_before_training():
    space: dict = {"__name__": "anywhere"}
    exec(compile(PROGRAM.replace("Typed", "Ty" + "pist"), "<lost>", "exec"), space)
    with pytest.raises(CompileError, match=r"cannot be read \(<lost>\).*define it in a file"):
        horn.train(space["job"]())


def test_a_lookalike_is_not_taken_for_the_text():
    space: dict = {"__name__": "anywhere"}
    lookalike = PROGRAM.replace("0.5", "0.25")
    exec(compile(PROGRAM.replace("GAIN * z", "GAIN * z * " + "1.5"), "<lost>", "exec"), space)
    assert lookalike and texts.text_of(space["scaled"].__code__, space) == ""


@pytest.mark.cluster
@pytest.mark.parametrize("tasks", [1, pytest.param(2, marks=pytest.mark.cluster)])
@pytest.mark.parametrize("way", ["-c", "stdin"])
def test_a_program_that_python_was_told(way, tasks, tmp_path):
    saved = tmp_path / "typed.horn"
    (tmp_path / "program.txt").write_text(PROGRAM + MAIN)
    with open(tmp_path / "program.txt") as stdin:
        first = ["-c", PROGRAM + MAIN] if way == "-c" else ["-"]
        done = subprocess.run(
            [sys.executable, *first, str(tasks), str(saved)],
            stdin=stdin, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert horn.Model.load(saved).evaluate(horn.data.digits("test"))["acc"] > 0.3


@pytest.mark.cluster
@pytest.mark.parametrize(
    "words",
    [
        ("-qc", PROGRAM + FOUND),
        ("-c", "import sys; exec(sys.argv[1])", PROGRAM + FOUND),
        pytest.param(
            ("-c", textwrap.indent(PROGRAM + FOUND, "    ")),
            marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="an indented program"),
        ),
    ],
    ids=["option", "argument", "indented"],
)
def test_the_text_is_found_however_the_command_line_has_it(words):
    """From 3.14 on Python takes away what all lines of ``-c`` are indented by."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
def test_a_pipe_is_said_to_be_lost():
    done = subprocess.run(
        [sys.executable, "-", "1", "none.horn"],
        input=PROGRAM + MAIN, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "in  python -c" in done.stderr


TYPED = """\
def halved(z):
    return gain * z

import horn
gain, table = 0.5, (1.0, 2.0)
class Typed(horn.Neuron):
    def forward(self, messages):
        self.feedforward(wrong(messages))

class Typed(horn.Neuron):
    \"\"\"Typed again,
at a prompt.\"\"\"
    def forward(self, messages):
        self.feedforward(halved(sum(m.input * m.weight for m in messages)) * table[1])

net = horn.Network(seed=3)
layer = net.input(64), net.layer(8, neuron=Typed)
layer = net.output(10, activation="softmax", loss="cross_entropy")
run = horn.train(horn.Job(net, horn.data.digits(), horn.SGD(0.1), epochs=1))
run.model.save("typed.horn")
exit()
"""


@pytest.mark.cluster
def test_what_is_typed_at_pythons_own_prompt(tmp_path):
    ours, theirs = pty.openpty()
    python = subprocess.Popen(
        [sys.executable, "-q"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
        start_new_session=True, close_fds=True,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "PYTHON_BASIC_REPL": "1",
             "PYTHONPATH": str(Path(horn.__file__).parents[1])},
    )  # fmt: skip
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 60
    try:
        for line in TYPED.splitlines():
            seen = len(shown)
            while not shown[seen:].endswith((b">>> ", b"... ")):  # it asks for the next line
                assert select.select([ours], [], [], deadline - time.monotonic())[0], shown.decode()
                shown += os.read(ours, 65536)
            os.write(ours, f"{line}\n".encode())
        assert python.wait(deadline - time.monotonic()) == 0
    finally:
        python.kill()
        python.wait()
        os.close(ours)
    assert b"Error" not in shown, shown.decode()
    loaded = horn.Model.load(tmp_path / "typed.horn")
    assert loaded.evaluate(horn.data.digits("test"))["acc"] > 0.3


BEND = "def bend(z):\n    return 2.0 * TABLE[0] * z\n"
HELPER = f"TABLE = (1.0,)\n{BEND}def other(z):\n    return z\n"
NEURON = (
    "import horn\nfrom helper import bend\nclass Mine(horn.Neuron):\n"
    "    def forward(self, messages):\n"
    "        self.feedforward(bend(sum(m.input * m.weight for m in messages)))\n"
)


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A neuron of a module, and what its model answers after files got other texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("helper.py").write_text(HELPER)
    Path("of_helper.py").write_text(NEURON)
    modules = importlib.import_module("helper"), importlib.import_module("of_helper")

    def answers():
        loaded = trained_and_loaded(of_ones(modules[1].Mine), tmp_path)
        live = horn.Model(of_ones(modules[1].Mine), loaded.parameters)
        return loaded.predict(np.ones((1, 3)))[0, 0], live.predict(np.ones((1, 3)))[0, 0]

    yield (*modules, answers)
    for module in modules:
        del sys.modules[module.__name__]


@pytest.mark.parametrize("change", [("2.0", "30.0"), ("1.0", "15.0"), ("TABLE", "\nTABLE")])
def test_of_a_file_that_was_changed_that_text_counts_which_was_loaded(edited, change):
    helper, module, answers = edited
    assert answers() == (6.0, 6.0)
    Path("helper.py").write_text(HELPER.replace(*change, 1))
    assert answers() == (6.0, 6.0)
    importlib.reload(helper)
    importlib.reload(module)
    expected = 6.0 if "TABLE" in change else 90.0
    assert answers() == (expected, expected)


def test_a_file_that_was_changed_before_its_first_training_is_what_was_loaded(edited):
    _, _, answers = edited
    Path("of_helper.py").write_text(NEURON.replace("bend(", "3.0 * bend(", 1))
    assert answers() == (6.0, 6.0)


@pytest.fixture
def reload(edited):
    """IPython's ``%autoreload 2``: give a module's file another text, and run a cell."""
    reloader = ModuleReloader()
    reloader.enabled, reloader.check_all = True, False
    for module in edited[:2]:
        reloader.mark_module_reloadable(module.__name__)

    def reload(file, text):
        Path(file).write_text(text)
        later = max(reloader.modules_mtimes.values()) + 10
        os.utime(file, (later, later))
        reloader.check()

    return reload


def test_a_method_that_autoreload_puts_into_a_class_is_compiled(edited, reload):
    _, module, answers = edited
    assert answers() == (6.0, 6.0)
    before = module.Mine.forward
    text = NEURON.replace("class", "\n\nclass").replace("forward(bend", "forward(5.0 * bend")
    reload("of_helper.py", text)
    assert module.Mine.forward is before
    assert answers() == (30.0, 30.0)
    assert texts.code_of(module.Mine) is before.__code__
    reload("of_helper.py", text.replace("5.0 * bend(", "horn.activations(7.0, "))
    with pytest.raises(CompileError) as said:
        horn.train(horn.Job(of_ones(module.Mine), (np.ones((4, 3)), np.ones((4, 2))), epochs=1))
    assert said.value.where == "Mine.forward"


def test_a_method_that_autoreload_changed_is_refused_at_its_line_of_the_file(edited, reload):
    _, module, answers = edited
    answers()
    wrong = NEURON.replace("        self.feed", "        # a comment\n        self.feed").replace(
        "feedforward(", "feedforwad("
    )
    for text, line in (wrong, 6), (f"OTHER = 1\n\n{wrong}", 8):  # then the method stays as it was
        reload("of_helper.py", text)
        with pytest.raises(CompileError, match="has no 'feedforwad'") as said:
            job = horn.Job(of_ones(module.Mine), (np.ones((4, 3)), np.ones((4, 2))), epochs=1)
            horn.train(job, backend="python")
        assert (said.value.line, said.value.where) == (line, "Mine.forward")
        assert said.value.text.strip().startswith("self.feedforwad(bend(")


def test_a_method_that_autoreload_changed_draws_the_same_on_every_backend(edited, reload):
    """Draws are told apart by their places in the text; IPython compiles one without comments."""
    _, module, answers = edited
    answers()
    reload("of_helper.py", NEURON.replace(
        "        self.feedforward(",
        "        # a comment\n        self.feedforward( self.uniform() * ",
    ))  # fmt: skip
    job = horn.Job(of_ones(module.Mine), (np.ones((4, 3)), np.eye(4)[:, :2]), epochs=1)
    made = [horn.train(job, backend=backend).history["loss"] for backend in ("python", "kernels")]
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)


DECLARING = """import horn

class Mine(horn.Neuron):
    gain = horn.Parameter(2.0)
    rest = horn.State(horn.initializers.Constant(0.5))
    trace = horn.SynapseState(0.0)
    def forward(self, messages):
        self.rest = 0.9 * self.rest
        for m in messages:
            m.trace = m.input
        self.feedforward(self.gain * sum(m.input * m.weight for m in messages) - self.rest)
"""


@pytest.mark.parametrize("old, new, said", [
    ("Constant(0.5)", "Constant(-2.0)",
     "State 'rest' was horn.State(Constant(value=0.5), per='run') and is "
     "horn.State(Constant(value=-2.0), per='run')"),
    ("    gain", "    bend = horn.Parameter(1.0)\n    gain", "Parameter 'bend' is new"),
    ("    gain = horn.Parameter", "    gain = float", "Parameter 'gain' is gone"),
    ("    gain", "    weight, k = horn.Weight(), horn.Weight()\n    gain", "Weight 'k' is new"),
    ("SynapseState(0.0)", "SynapseState(1.0)",
     "SynapseState 'trace' was horn.SynapseState(0.0, per='run') and is "
     "horn.SynapseState(1.0, per='run')"),
])  # fmt: skip
def test_a_network_whose_class_autoreload_gave_other_declarations_is_refused(
    old, new, said, edited, reload
):
    _, module, _ = edited
    reload("of_helper.py", DECLARING)
    net, data = of_ones(module.Mine), (np.ones((4, 3)), np.ones((4, 2)))
    job = horn.Job(net, data, epochs=1)
    model = horn.train(job).model
    live = horn.Model(net, model.parameters, model.states)
    expected = model.predict(np.ones((1, 3)))
    reload("of_helper.py", DECLARING.replace(old, new, 1))
    for ask in (
        lambda: horn.train(job),
        lambda: horn.train(job, tasks=2),
        lambda: horn.Job(net, data),
        lambda: live.predict(np.ones((1, 3))),
    ):
        with pytest.raises(ModelError, match="layer1: Mine has other declarations") as told:
            ask()
        assert f"as after %autoreload: its {said}; run the cell" in str(told.value)
    np.testing.assert_array_equal(model.predict(np.ones((1, 3))), expected)
    horn.train(horn.Job(of_ones(module.Mine), data, epochs=1))


def test_a_network_whose_class_autoreload_gave_another_forward_has_the_new_one(
    edited, reload, caplog
):
    _, module, _ = edited
    reload("of_helper.py", DECLARING)
    net, data = of_ones(module.Mine), (np.ones((4, 3)), np.ones((4, 2)))
    horn.train(horn.Job(net, data, epochs=1))
    reload("of_helper.py", DECLARING.replace("0.9", "0.1"))
    jobs = (horn.Job(each, data, epochs=2) for each in (net, of_ones(module.Mine)))
    old, new = (horn.train(job).history["loss"] for job in jobs)
    assert old == new
    assert not caplog.records


def test_a_function_that_autoreload_changes_beside_one_whose_lines_moved_is_compiled(
    edited, reload
):
    """IPython 9 leaves ``other``, which has not changed, the lines that it had."""
    _, _, answers = edited
    assert answers() == (6.0, 6.0)
    reload("helper.py", "\n\n" + HELPER.replace(BEND, BEND.replace("2.0", "10.0")))
    assert answers() == (30.0, 30.0)


def test_a_class_of_a_text_that_is_no_longer_there_is_named(edited):
    _, module, answers = edited
    old = module.Mine
    Path("of_helper.py").write_text(NEURON.replace("class", "\n\nclass").replace("bend(", "abs("))
    importlib.reload(module)
    assert answers() == (3.0, 3.0)
    with pytest.raises(CompileError, match=r"Mine.forward is of a text that .* had before") as said:
        horn.train(horn.Job(of_ones(old), (np.ones((4, 3)), np.ones((4, 2))), epochs=1))
    space: dict = {}  # an import alone gives the old class, where nothing has loaded the file again
    exec(said.value.problem.partition("load it again:  ")[2], space)
    module.Mine = space["Mine"]
    assert answers() == (3.0, 3.0)


def test_a_function_of_the_same_name_that_no_statement_says_is_told_as_another(tmp_path):
    """It said "bend is now bend"."""
    neuron = AGAIN.replace("Base", "Mine").replace("3.0 *", "bend(1.0) *")
    space = in_cells(f"def bend(z):\n    return 2.0 * z\n{neuron}")
    exec("def bend(z):\n    return 9.0 * z\n", other := {})
    space["bend"] = other["bend"]
    with pytest.raises(ModelError, match="bend is now another bend than the one that .* defines"):
        trained_and_loaded(of_ones(space["Mine"]), tmp_path)


@pytest.mark.parametrize("first", ["f, g = (lambda z: 9.0 * z), (lambda z: 2.0 * z)",
                                   "def a(z):\n    return 9.0 * z\n"
                                   "def g(z):\n    return 2.0 * z\nf = a"])  # fmt: skip
def test_a_name_that_is_given_to_another_function_is_that(first, tmp_path):
    neuron = AGAIN.replace("Base", "Mine").replace("3.0 *", "f(1.0) *")
    cells = [f"{first}\n{neuron}", "f = g"]
    space = in_cells(*cells)
    loaded = trained_and_loaded(of_ones(space["Mine"]), tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[6.0, 6.0]])


@pytest.mark.parametrize("public, expected", [("", 6.0), ("__all__ = ['other']\n", 15.0)])
def test_a_star_gives_names_that_had_other_values_before(edited, tmp_path, public, expected):
    """It was no statement that says so, and tasks and model files got the value of before."""
    helper, _, _ = edited
    exec(public, vars(helper))
    cells = ["def bend(z):\n    return 5.0 * z\n", NEURON.replace("from helper import bend", "")]
    space = in_cells(*cells, "from helper import *")
    loaded = trained_and_loaded(of_ones(space["Mine"]), tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[expected, expected]])


def test_what_run_i_leaves_is_of_the_notebook_and_a_cell_may_define_it_again(tmp_path):
    """``%run -i`` runs a file in the notebook's own namespace."""
    file = tmp_path / "setup.py"
    file.write_text(BEND.replace("TABLE[0]", "1.0") + NEURON.replace("from helper import bend", ""))
    text = file.read_text()
    ran = f"file, text = {str(file)!r}, {text!r}\nexec(compile(text, file, 'exec'))"
    for cells, expected in (((ran,), 6.0), ((ran, "def bend(z):\n    return 5.0 * z\n"), 15.0)):
        loaded = trained_and_loaded(of_ones(in_cells(*cells)["Mine"]), tmp_path)
        np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[expected, expected]])


def in_cells(*cells):
    """What IPython's cells leave behind."""
    history = types.SimpleNamespace(input_hist_parsed=list(cells))
    shell = types.SimpleNamespace(history_manager=history)
    space: dict = {"__name__": "anywhere", "horn": horn, "get_ipython": lambda: shell}
    for cell in cells:
        exec(cell, space)
    return space


METHOD = (
    "    def {}(self, messages):\n"
    "        self.feedforward({} * sum(m.input * m.weight for m in messages))\n"
)
TWO = "class Mine(horn.Neuron):\n" + METHOD.format("forward", 3.0) + METHOD.format("other", 2.0)
SEVEN, NINE = (textwrap.dedent(METHOD.format("f", n)) for n in (7.0, 9.0))
TWICE = (
    "class Mine(horn.Neuron):\n" + METHOD.format("forward", 2.0) + "    other = forward\n"
    + METHOD.format("forward", 3.0)
)  # fmt: skip
STATIC = (
    "class Mine(horn.Neuron):\n    @staticmethod\n    def bend(z):\n        return 3.0 * z\n"
    "    @staticmethod\n    def other(z):\n        return 2.0 * z\n"
) + METHOD.format("forward", "self.bend(1.0)")


@pytest.mark.parametrize(
    "cells, expected",
    [
        ((TWO,), 9.0),
        ((TWO, "Mine.forward = Mine.other"), 6.0),
        ((TWO + "Mine.forward = Mine.other\n",), 6.0),
        ((TWICE, "Mine.forward = Mine.other"), 6.0),
        ((TWO, "Mine.gain = 2.0\nMine.forward, Mine.count = Mine.other, 1"), 6.0),
        ((TWO, "Mine.forward, Mine.other = Mine.other, Mine.forward"), 6.0),
        ((TWO, f"{SEVEN}Mine.forward = f"), 21.0),
        ((TWO, f"{SEVEN}Mine.forward = f", NINE, "Mine.forward = f"), 27.0),
        ((TWO, "Mine.forward = Mine.other", TWO), 9.0),
        ((STATIC, "Mine.bend = staticmethod(Mine.other)"), 6.0),
    ],
)
def test_a_method_that_a_later_cell_gives_a_class_is_in_its_text(cells, expected, tmp_path):
    loaded = trained_and_loaded(of_ones(in_cells(*cells)["Mine"]), tmp_path)
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[expected, expected]])


@pytest.mark.parametrize(
    "cells, said",
    [
        ((TWO, "for each in (Mine,):\n    each.forward = Mine.other"), "forward is Mine.other"),
        ((TWICE, "setattr(Mine, 'forward', Mine.other)"), "forward is Mine.forward of line 2"),
        ((TWO, f"{SEVEN}Mine.forward = f", NINE), "forward is f"),
        ((STATIC, "setattr(Mine, 'bend', staticmethod(Mine.other))"), "bend is Mine.other"),
    ],
)
def test_a_method_that_no_statement_gives_a_class_is_named(cells, said, tmp_path):
    """What was saved was the method of its text, which had not been trained."""
    with pytest.raises(ModelError, match=rf"Mine.{said}, but no statement of the text says so"):
        trained_and_loaded(of_ones(in_cells(*cells)["Mine"]), tmp_path)


def test_a_method_that_another_file_gives_a_class_is_named(edited):
    _, module, answers = edited
    module.Mine.other = module.Mine.forward
    with pytest.raises(ModelError, match=r"Mine.other is Mine.forward, .* of of_helper.py says"):
        answers()


@pytest.mark.parametrize("is_looked_at", [False, True])
@pytest.mark.parametrize("moved", ["", "\n\n"])
def test_a_network_of_before_its_file_was_loaded_again_is_not_saved(
    edited, moved, is_looked_at, caplog
):
    """The text of now was saved, and without a warning."""
    _, module, _ = edited
    job = horn.Job(of_ones(module.Mine), (np.ones((4, 3)), np.ones((4, 2))), horn.SGD(0.0))
    horn.train(job).model.save("before.horn")
    Path("of_helper.py").write_text(moved + NEURON.replace("(bend", "(5.0 * bend"))
    if is_looked_at:  # as by a traceback
        linecache.checkcache()
    importlib.reload(module)
    assert "defined again" not in caplog.text
    model = horn.train(job).model
    assert "Mine has been defined again since the network was made" in caplog.text
    np.testing.assert_array_equal(model.predict(np.ones((1, 3))), [[6.0, 6.0]])
    with pytest.raises(ModelError, match="of the text that .*of_helper.py had .*import Mine again"):
        model.save("after.horn")
    loaded = horn.Model.load("before.horn")
    np.testing.assert_array_equal(loaded.predict(np.ones((1, 3))), [[6.0, 6.0]])


def test_a_function_of_before_its_file_was_loaded_again_is_named(edited):
    helper, module, answers = edited
    assert answers() == (6.0, 6.0)
    Path("helper.py").write_text(HELPER.replace("2.0", "30.0"))
    importlib.reload(helper)
    with pytest.raises(ModelError, match="bend is of the text that .*helper.py had before"):
        answers()
    module.bend = helper.bend
    assert answers() == (90.0, 90.0)


def test_a_wrapped_function_of_a_file_that_was_loaded_again_is_there(edited):
    helper, module, answers = edited
    wrap = "def twice(f):\n    @wraps(f)\n    def g(z):\n        return 2.0 * f(z)\n    return g\n"
    wrapped = HELPER.replace("def bend", "@twice\ndef bend")
    Path("helper.py").write_text(f"from functools import wraps\n{wrap}{wrapped}")
    importlib.reload(helper)
    importlib.reload(module)
    assert answers() == (12.0, 12.0)


def test_a_base_of_before_its_file_was_loaded_again_is_named(edited, tmp_path):
    _, module, _ = edited
    space = in_cells("import of_helper", f"class Own(of_helper.Mine):\n{ONE}")
    trained_and_loaded(of_ones(space["Own"]), tmp_path)
    Path("of_helper.py").write_text(NEURON.replace("(bend", "(5.0 * bend"))
    importlib.reload(module)
    with pytest.raises(ModelError, match="Mine is of the text that .*of_helper.py had before"):
        trained_and_loaded(of_ones(space["Own"]), tmp_path)


def test_a_file_that_was_changed_and_looked_at_is_what_was_loaded(edited):
    _, _, answers = edited
    Path("of_helper.py").write_text(NEURON.replace("bend(", "3.0 * bend(", 1))
    linecache.checkcache()
    assert answers() == (6.0, 6.0)


def test_what_another_module_put_there_is_named(edited):
    helper, module, answers = edited
    bend, module.bend = helper.bend, lambda z: 7.0 * z
    helper.bend = module.bend
    with pytest.raises(ModelError, match="bend is now .*, but no statement of "):
        answers()
    module.bend = bend


@pytest.mark.parametrize(
    "table",
    [(4.0,), [4.0, [1.0]], np.array([4.0, 1.0]), np.array([4.0], "float32"), [np.int64(4)]],
    ids=repr,
)
def test_tables_are_saved_as_they_are(edited, table):
    helper, _, answers = edited
    helper.TABLE = table
    assert answers() == (24.0, 24.0)


def test_functions_that_use_horn_are_sent_to_other_processes():
    """As joblib, dask and ray do it: a module of a class of its own could not be pickled."""
    cloudpickle = pytest.importorskip("cloudpickle")
    space: dict = {"__name__": "__main__"}
    exec("import horn\n\n\ndef made():\n    return horn.Network(seed=3)", space)
    assert cloudpickle.loads(cloudpickle.dumps(space["made"]))().seed == 3
    assert copy.deepcopy(horn) is horn


def answers_elsewhere(thing, folder):
    """What a process that gets neurons or activations from cloudpickle answers to ones, and tells
    on stderr: of trained models, from their files.
    """
    cloudpickle = pytest.importorskip("cloudpickle")
    code = (
        "import sys, cloudpickle, numpy as np\n"
        "from pathlib import Path\n"
        "from tests.api.test_no_file import of_ones, trained_and_loaded\n"
        "for thing in cloudpickle.load(sys.stdin.buffer):\n"
        f"    loaded = trained_and_loaded(of_ones(thing), Path({str(folder)!r}))\n"
        "    print(loaded.predict(np.ones((1, 3)))[0, 0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(thing), capture_output=True
    )
    return done.stdout.decode().split(), done.stderr.decode()


@pytest.mark.cluster
def test_a_class_that_was_sent_without_its_text_is_told_from_where(tmp_path):
    space: dict = {"__name__": "anywhere", "horn": horn}
    # Nobody has this text afterwards.
    exec("class Mine(horn.Neuron):\n" + METHOD.format("forward", "7.0"), space)
    told, said = answers_elsewhere([space["Mine"]], tmp_path)
    assert told == [] and "the source of Mine.forward cannot be read" in said
    assert "dask and ray send functions of a notebook, and neurons that horn could" in said


CARRIED = (
    "START, SLOPE, SECRET = 0.5, 2.0, 'of nobody else'\n",
    "def bend(z):\n    return SLOPE * z\n",
    "class Base(horn.Neuron):\n    gain = horn.Parameter(START)\n    k = START\n"
    "    def bent(self, z):\n        return self.k * bend(z)\n",
    "class Mine(Base):\n" + METHOD.format("forward", "7.0"),
    "SECRET\nclass Mine(Base):\n" + METHOD.format("forward", "self.gain * self.bent(10.0)"),
    "def made(by):\n    class Inner(Base):\n"
    + textwrap.indent(METHOD.format("forward", "by * self.bent(10.0)"), "    ")
    + "    return Inner\n",
)


@pytest.mark.cluster
def test_a_neuron_of_a_notebook_takes_its_text_to_the_processes_of_joblib(tmp_path):
    """A search over neurons, with n_jobs=, scored one's own NaN, and took another for the best."""
    cloudpickle = pytest.importorskip("cloudpickle")
    space = in_cells(*CARRIED)
    sent = [space["Mine"], space["made"](3.0)]
    assert b"nobody" not in cloudpickle.dumps(sent)
    told, said = answers_elsewhere(sent, tmp_path)
    assert told == ["15.0", "90.0"], said
