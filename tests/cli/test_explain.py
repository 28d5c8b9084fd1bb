"""horn explain: the program of a job's neurons, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horn.backends import target_kind
from horn.compiler import lower
from horn.readable import readable
from horn.target import load

TUNED = """
import numpy as np
import horn

class Tuned(horn.Neuron):
    gain = horn.Parameter(1.0)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += horn.math.tanh(m.input * m.weight)
        self.feedforward(self.gain * horn.math.exp(-total * total))

def job():
    net = horn.Network(seed=3)
    net.input(2)
    net.layer(4, neuron=Tuned, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).standard_normal((40, 2)).astype("float32")
    return horn.Job(net, (x, (x[:, 0] > 0).astype(int)), optimizer=horn.SGD(0.5))
"""


def test_each_layer_has_its_statements_with_the_users_lines(run: Any, folder: Path) -> None:
    (folder / "tuned.py").write_text(TUNED)
    done = run("explain", "tuned.py")
    assert done.code == 0 and done.err == "" and done.files == set()
    lines = done.out.splitlines()
    assert "layer1 (4 Tuned): fused loop" in lines
    assert "layer2 (2 Standard): matrix products" in lines
    loop = "layer1.sum = sum over messages of tanh(layer0.output * layer1.weight)   # tuned.py:10"
    swapped = loop.replace("layer0.output * layer1.weight", "layer1.weight * layer0.output")
    assert f"  forward   {loop}" in lines or f"  forward   {swapped}" in lines
    (output,) = [line for line in lines if line.startswith("  forward   layer1.output = ")]
    assert "exp(" in output and output.endswith("# tuned.py:12")
    assert any("update    layer2.weight -= learning_rate * mean" in line for line in lines)
    one = run("explain", "tuned.py", "--layer", "layer2").out
    assert "layer2 (2" in one and "layer1 (4" not in one
    assert "update" not in run("explain", "tuned.py", "--inference").out


@pytest.mark.timeout(60)
def test_a_formula_is_written_only_as_far_as_it_is_shown(run: Any, folder: Path) -> None:
    """Each round has the variable twice: its formula doubles 200 times."""
    rounds = "        for _ in range(200):\n            total = 3.2 * total * (1.0 - total)\n"
    text = TUNED.replace("        self.feedforward(", f"{rounds}        self.feedforward(")
    (folder / "tuned.py").write_text(text)
    done = run("explain", "tuned.py", "--layer", "layer1", "--inference")
    (output,) = [line for line in done.out.splitlines() if "layer1.output = " in line]
    said, cut, place = output.partition(" ...   # tuned.py")
    assert cut and len(said.partition(" = ")[2]) == 2000 and "3.2" in said


WINDOWS = """
import horn

class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))

def job():
    net = horn.Network(seed=3)
    net.input((8, 8, 1))
    net.layer(connect=horn.Convolution(2, 3), name="conv")
    net.layer(connect=horn.Window(2, stride=2), neuron=Largest, name="pool")
    net.layer(connect=horn.Convolution(2, 2), neuron=horn.neurons.Standard, name="late")
    net.output(10, activation="softmax", loss="cross_entropy")
    data = horn.data.digits().take(32)
    return horn.Job(net, data, sample_weight=[1.0] * 32)
"""


def test_windows_are_words_too(run: Any, folder: Path) -> None:
    (folder / "windows.py").write_text(WINDOWS)
    done = run("explain", "windows.py")
    lines = done.out.splitlines()
    sums = "conv.sum = sum over messages of layer0.output * conv.weight   (convolution)"
    assert f"  forward   {sums}" in lines
    assert any("conv.bias.each = conv.bias of each neuron" in line for line in lines)
    assert any(line.endswith("sum over those that share it of conv.bias.gradient.sum")
               for line in lines)  # fmt: skip
    assert any("pool.max = max over messages of conv.output " in line for line in lines)
    assert not [line for line in lines if "#" in line.partition("   # ")[0]]
    kinds = {
        row["text"].partition(" ")[2]
        for row in run("explain", "windows.py", "--json").json["statements"]
    }
    assert "" not in kinds  # none is one word alone


def test_every_statement_of_the_program_is_there_once(run: Any, folder: Path) -> None:
    (folder / "tuned.py").write_text(TUNED)
    job = load("tuned.py").job
    kind = target_kind(job.network, job.target, job.data)
    program = lower.training_program(job.network, job.optimizer, kind)
    found = run("explain", "tuned.py", "--json").json
    assert found["schema"] == "horn.explain/1" and found["runs_as"]["layer1"] == "fused loop"
    assert len(found["statements"]) == len(program.statements) == len(readable(program))
    phases = [row["phase"] for row in found["statements"]]
    assert [p for k, p in enumerate(phases) if k == 0 or phases[k - 1] != p][:3] == [
        "forward", "loss", "backward",
    ]  # fmt: skip


def test_what_is_not_there(run: Any, folder: Path) -> None:
    (folder / "tuned.py").write_text(TUNED.replace("class Tuned", "@horn.interpreted\nclass Tuned"))
    done = run("explain", "tuned.py")
    assert done.code == 2 and "become no program; horn trace shows one" in done.err
    (folder / "tuned.py").write_text(TUNED)
    done = run("explain", "tuned.py", "--layer", "layer9")
    assert done.code == 2 and "the layers are layer0, layer1, layer2" in done.err
