"""Horn in a notebook: cells that a real kernel runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

import horn
from horn import html
from horn.training import notebook
from tests.notebook.execute import DEAD

EXAMPLE = Path(horn.__file__).parents[1] / "examples" / "notebook.ipynb"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def start(found: nbformat.NotebookNode, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run all cells in a kernel, in a folder; out.ipynb is there if it has not been killed."""
    shutil.rmtree(folder / "jupyter", ignore_errors=True)
    nbformat.write(found, folder / "in.ipynb")
    root = str(Path(horn.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "tests.notebook.execute", "in.ipynb", "out.ipynb"],
        cwd=folder, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True,
        timeout=220, check=False,
    )  # fmt: skip


def execute(found: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """What the cells of a kernel that lives on have said."""
    done = start(found, folder)
    assert done.returncode == 0, done.stderr
    return nbformat.read(folder / "out.ipynb", 4)


def cells(*sources: str) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return made


def text(cell: nbformat.NotebookNode) -> str:
    """What a cell printed."""
    return "".join(out["text"] for out in cell.outputs if out.output_type == "stream"
                   and out.name == "stdout")  # fmt: skip


def result(cell: nbformat.NotebookNode, kind: str = "text/plain") -> str:
    """The value of a cell's last line."""
    [found] = [out for out in cell.outputs if out.output_type == "execute_result"]
    return str(found.data[kind])


def test_the_example_runs_from_the_first_cell_to_the_last(tmp_path):
    found = [c for c in execute(nbformat.read(EXAMPLE, 4), tmp_path).cells if c.cell_type == "code"]
    shape, run, two, again = found[2], found[3], found[4], found[5]
    assert "<td>Leaky</td><td>100</td>" in result(shape, "text/html")
    assert "SUCCEEDED" in result(run, "text/html") and "val_loss" in result(run, "text/html")
    *bar, shown = [out for out in run.outputs if out.output_type == "display_data"]
    assert "val_loss" in shown.data["text/html"]
    # The bar is a widget where there are widgets, as with the extra notebook.
    assert len(bar) == (find_spec("ipywidgets") is not None) == ("<progress" not in str(shown))
    assert all("application/vnd.jupyter.widget-view+json" in out.data for out in bar)
    accuracies = [json.loads(result(cell).replace("'", '"'))["acc"] for cell in (two, again)]
    assert min(accuracies) > 0.9 and abs(accuracies[0] - accuracies[1]) < 0.01
    # The model file has the neuron, and nothing else of the notebook.
    raw = (tmp_path / "leaky.horn").read_bytes()
    assert b"self.leak * total" in raw and b"leaky.horn" not in raw
    model = horn.Model.load(tmp_path / "leaky.horn")
    assert model.evaluate(horn.data.digits("test"))["acc"] == pytest.approx(accuracies[1])


NET = """
def train(**settings):
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(8, neuron=Mine)
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.train(horn.Job(net, horn.data.digits(), epochs=1), progress=False, **settings)
"""
MINE = """
class Mine(horn.Neuron):
    def forward(self, messages):
        self.feedforward(bent(sum(m.input * m.weight for m in messages)))
"""


def test_cells_that_were_mended_changed_and_run_again(tmp_path):
    done = execute(
        cells(
            "from __future__ import annotations\nimport horn\nFACTOR = 1.0",
            "%%time\ndef bent(z):\n    return z * 0.0",
            "try:\n    class Mine(horn.Neuron):\n        def output(self):\n            pass\n"
            "except horn.ModelError as error:\n    print(error)",
            "%%time\n" + MINE.replace("m.weight", "m.wieght"),  # mended in the next cell
            MINE,
            NET,
            "import horn",  # the first cell again
            "flat = train(tasks=2).history[-1]['loss']",
            "def bent(z):\n    return FACTOR * horn.math.tanh(z)",
            # The class has not changed; what it calls has, and is called as Python calls it.
            "first = train().history[-1]['loss']\nprint(round(flat, 1), first < 1.9)",
            "FACTOR = 2.0\nsecond, both = train(), train(tasks=2)\n"
            "print(abs(second.history[-1]['loss'] - both.history[-1]['loss']) < 1e-4)",
        ),
        tmp_path,
    )
    assert "defines output" in text(done.cells[2])
    assert text(done.cells[9]).split() == ["2.3", "True"]
    assert text(done.cells[10]).strip() == "True"


def test_functions_and_classes_that_came_by_run(tmp_path):
    """They are imported from their file; its numbers are those that it had."""
    (tmp_path / "2-setup.py").write_text(
        "import horn, types\nhalf, TABLE = 0.5, (1.0, 2.0)\nSET = types.SimpleNamespace(gain=2.0)\n"
        "def bent(z):\n    return half * TABLE[0] * z\n"
        "class FromRun(horn.Neuron):\n    gain = 2.0\n    def forward(self, messages):\n"
        "        self.feedforward(self.gain * bent(sum(m.input * m.weight for m in messages)))\n"
    )
    both = (
        "one, two = train(), train(tasks=2)\none.model.save('a.horn')\n"
        "loaded = horn.Model.load('a.horn')\nx = horn.data.digits('test').x[:9]\n"
        "print(abs(one.history[-1]['loss'] - two.history[-1]['loss']) < 1e-4,\n"
        "      (loaded.predict(x) == one.model.predict(x)).all())"
    )
    wrong = MINE.replace("bent(", "SET.gain * (")
    ran = "%run 2-setup.py\n"
    done = execute(
        cells(
            "import horn\ndef bent(z):\n    return z * 0.0",
            ran + MINE + NET + both,  # where a cell defined that name before, too
            "class Mine(FromRun):\n    gain = 3.0\n" + both,
            "class FromRun(FromRun):\n    gain = 3.0\nMine = FromRun\n" + both,
            f"{ran}{wrong}train(tasks=2)",
            "%run -i 2-setup.py\nclass Mine(FromRun):\n    gain = 3.0\n" + both,
        ),
        tmp_path,
    )
    assert [text(cell).split() for cell in done.cells if text(cell)] == [["True", "True"]] * 4
    said = done.cells[4].outputs[-1].evalue
    assert "'SET' (SimpleNamespace) is read" in said and "write  SET = ...  in one" in said


def test_a_class_that_was_run_again_after_the_network(tmp_path):
    """The network has the one that it was made with: horn says so, where the text is another."""
    job = "horn.Job(net, data=horn.data.digits(), batch_size=50, epochs=1)"
    done = execute(
        cells(
            "import horn\ndef bent(z):\n    return horn.math.tanh(z)",
            MINE,
            "net = horn.Network(seed=1)\nnet.input(64)\nnet.layer(8, neuron=Mine)\n"
            "net.output(10, activation='softmax', loss='cross_entropy')",
            f"horn.train({job}, progress=False, checkpoints='c', checkpoint_every=9)\n"
            "print('trained')",
            MINE + "    # the same",
            f"horn.train({job}, progress=False, checkpoints='c', checkpoint_every=9, resume=True)\n"
            "print('resumed')",
            MINE.replace("bent(", "2 * bent("),
            f"horn.train({job}, progress=False)\nprint('once more')",
        ),
        tmp_path,
    )
    assert [text(done.cells[k]).split() for k in (3, 5, 7)] == [
        ["trained"], ["resumed"], ["once", "more"],
    ]  # fmt: skip
    assert "defined again" not in str([done.cells[k].outputs for k in (3, 5)])
    [said] = [out.text for out in done.cells[7].outputs if out.get("name") == "stderr"]
    assert "Mine has been defined again since the network was made, which has the one" in said


def test_the_stop_button_keeps_the_run_so_far(tmp_path):
    done = execute(
        cells(
            "import horn, signal\n"
            "def stop(row):\n    if row['epoch'] == 2:\n"
            "        signal.raise_signal(signal.SIGINT)\n"
            "net = horn.Network(seed=1)\nnet.input(64)\n"
            "net.output(10, activation='softmax', loss='cross_entropy')\n"
            "run = horn.train(horn.Job(net, horn.data.digits(), epochs=500), progress=stop)",
            "print(run.stopped, len(run.history), run.model.facts['iteration'] == run.iterations)",
        ),
        tmp_path,
    )
    assert text(done.cells[1]).split() == ["True", "2", "True"]


KILLED = """
import os, signal, pathlib, horn
class Mine(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))
class Kill(horn.Callback):
    def on_epoch_end(self, context):
        if context.epoch == 3 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(KERNEL, signal.SIGKILL)
net = horn.Network(seed=1)
net.input(64)
net.layer(8, neuron=Mine, activation="tanh")
net.output(10, activation="softmax", loss="cross_entropy")
best = horn.ModelCheckpoint("best.horn", monitor="loss")
job = horn.Job(net, horn.data.digits().take(320), epochs=5, callbacks=[best, Kill()])
"""


@pytest.mark.parametrize("tasks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_kernel_that_is_killed_loses_nothing(tmp_path, tasks):
    """The best model so far is there, and the same cells go on from the last checkpoint."""
    job = KILLED.replace("KERNEL", "int(os.environ['KERNEL'])")
    train = (
        f"os.environ['KERNEL'] = str(os.getpid())\n"
        f"run = horn.train(job, tasks={tasks}, progress=False, checkpoints='run',\n"
        f"                 checkpoint_every=5, resume=True)\n"
        f"print(run.state, len(run.history), run.history[-1]['loss'])"
    )
    assert start(cells(job, train), tmp_path).returncode == DEAD
    assert horn.Model.load(tmp_path / "best.horn").facts["iteration"] in (10, 20, 30)
    again = text(execute(cells(job, train), tmp_path).cells[1])
    (tmp_path / "run").rename(tmp_path / "before")
    assert again.split()[:2] == ["SUCCEEDED", "5"]
    assert text(execute(cells(job, train), tmp_path).cells[1]) == again  # as nobody had killed it


def test_an_error_in_a_cell_shows_its_line(tmp_path):
    wrong = MINE.replace("bent(", "bemt(")
    bent = "import horn\ndef bent(z):\n    return z"
    [said] = execute(cells(bent, wrong, NET, "train()"), tmp_path).cells[-1].outputs
    assert said.ename == "CompileError"
    assert "bemt(sum(m.input" in said.evalue and "did you mean 'bent'" in said.evalue
    whole = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(said.traceback))
    assert said.evalue.startswith("Cell In[2]:3, in Mine.forward")
    assert "Cell In[4]" in whole and "Cell In[3]" in whole  # where it was called
    assert "horn/train.py" not in whole and "horn/language" not in whole


def test_a_wrong_gradient_and_a_failing_callback_name_their_cells(tmp_path):
    wrong = (
        "import horn\nclass Mine(horn.Neuron):\n    def forward(self, messages):\n"
        "        self.feedforward(sum(m.input * m.weight for m in messages))\n"
        "    def backward(self, messages):\n        for m in messages:\n"
        "            self.push(2.0 * m.delta * self.output)\n"
        "        self.backpropagate(sum(m.gradient for m in messages))"
    )
    fails = "def fails(context):\n    return context.row['none']\n"
    job = (
        "net = horn.Network(seed=1)\nnet.input(64)\n"
        "net.output(10, activation='softmax', loss='cross_entropy')\n"
        "horn.train(horn.Job(net, horn.data.digits(), epochs=1, callbacks=[fails]), progress=False)"
    )
    done = execute(cells(wrong, NET, "train()", fails, job), tmp_path)
    assert done.cells[2].outputs[-1].evalue.startswith("Cell In[1]:7, in Mine.backward: self.push(")
    assert "\n  Cell In[4]:2  return context.row['none']\n" in done.cells[4].outputs[-1].evalue


@pytest.mark.parametrize("wrong, ename", [
    ("horn.Network().fit", "NoSuchAttribute"),
    ("horn.Network().layer(100, units=3)", "NoSuchArgument"),
    ("History([]).acc", "NoSuchAttribute"),
    ("History([])[0]", "NoSuchRow"),
    ("History([])['accuracy']", "NoSuchKey"),
    ("horn.SGD(-0.1)", "ModelError"),
])  # fmt: skip
def test_what_is_wrong_shows_the_line_that_asks_for_it(tmp_path, wrong, ename):
    first = "import horn\nfrom horn.training.history import History"
    [said] = execute(cells(first, wrong), tmp_path).cells[-1].outputs
    whole = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(said.traceback))
    assert said.ename == ename and "Cell In[2]" in whole
    assert "horn/" not in whole and "__init__(self" not in whole


def test_what_is_shown_is_escaped_and_short():
    rows = [{"epoch": k, "loss": 1.0 / k, "acc": None, "seconds": 1.0} for k in range(1, 100)]
    shown = html.epochs(rows)
    assert shown.count("<tr>") == 1 + html.MOST_ROWS + 1 and "acc" not in shown
    assert html.table(["<a>"], [["<b>"]]).count("<b>") == 0


def test_outside_of_a_notebook_nothing_of_it_is_imported():
    program = "import horn, sys; horn.train; print('IPython' in sys.modules, 'html' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "False"
    assert not notebook.is_here()


def test_a_live_plot_is_one_picture_that_is_drawn_again(tmp_path):
    """Also where the callbacks are of a cell, and the tasks elsewhere."""
    pytest.importorskip("matplotlib")
    job = (
        "import horn\n"
        "seen = []\n"
        "class Note(horn.Callback):\n"
        "    def on_epoch_end(self, context):\n"
        "        seen.append((context.epoch, context.model.facts['iteration']))\n"
        "net = horn.Network(seed=1)\n"
        "net.input(64)\n"
        "net.output(10, activation='softmax', loss='cross_entropy')\n"
        "job = horn.Job(net, horn.data.digits().take(320), epochs=3, validation=0.2,\n"
        "               callbacks=[horn.plot.live(), Note()])"
    )
    train = "horn.train(job, progress=False, tasks=2)\nprint(seen)"
    cell = execute(cells(job, train), tmp_path).cells[1]
    shown = [out for out in cell.outputs if out.output_type == "display_data"]
    assert len(shown) == 1 and shown[0].data["image/png"]
    assert text(cell).strip() == "[(1, 8), (2, 16), (3, 24)]"
