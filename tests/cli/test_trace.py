"""horn trace: one neuron, one sample, one step, as the interpreter sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import target
from horn.backends import Setup, make
from horn.training.diagnosis import batch

TALKING = """
import numpy as np
import horn

class Talking(horn.Neuron):
    gain = horn.Parameter(1.5)
    mean = horn.State(0.25)

    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        print("forward", self.index)
        self.mean = 0.5 * self.mean + 0.5 * total
        self.feedforward(self.gain * self.activation(total))

class Gated(horn.Neuron):
    keep, new = horn.Weight(bias=1.0), horn.Weight()
    cell = horn.State(0.25, per="sample")

    def forward(self, messages):
        keep = horn.math.sigmoid(sum(m.input * m.keep for m in messages))
        self.cell = keep * self.cell + horn.math.tanh(sum(m.input * m.new for m in messages))
        self.feedforward(self.cell)

class Pushing(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output)
        print("backward", self.index)
        self.backpropagate(error * self.activation.derivative(self.output))

def job():
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(4, neuron=Talking, activation="tanh")
    net.layer(3, neuron=Pushing, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    return horn.Job(net, (x, y), optimizer=horn.SGD(0.5, momentum=0.5), batch_size=1, epochs=3)

def sequences(**how):
    net = horn.Network(seed=3)
    x = net.input(2, steps=6)
    hears = {"x": x, "h": horn.Delayed(), "back": horn.Delayed("out", 2)}
    cell = net.layer(3, neuron=Gated, inputs=hears, name="cell")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True, name="out")
    rng = np.random.default_rng(0)
    data = rng.standard_normal((8, 6, 2)), rng.integers(0, 2, (8, 6))
    return horn.Job(net, data, optimizer=horn.SGD(0.5, momentum=0.5), batch_size=1, epochs=3, **how)

def in_pieces():
    return sequences(stateful=True, truncate=3)

def to_their_end():
    given = sequences().data
    data = horn.data.sequences(given.images, given.y, lengths=[3, 4, 5, 6, 6, 5, 4, 3])
    return horn.Job(sequences().network, data, batch_size=1, epochs=3)
"""


@pytest.fixture
def job(folder: Path) -> horn.Job:
    (folder / "talking.py").write_text(TALKING)
    return target.load("talking.py").job


def probed(job: horn.Job, step: int) -> tuple[Any, dict[str, np.ndarray]]:
    engine = make("kernels", Setup(job.network, job.optimizer, job.target, 1, job.dtype))
    engine.bind(job.data)
    for iteration in range(step):
        rows, first = batch(job, iteration)
        engine.step(rows, iteration=iteration, first_sample=first)
    rows, first = batch(job, step)
    return engine, engine.probe(rows, iteration=step, first_sample=first)


@pytest.mark.parametrize("of", ["sequences", "in_pieces", "to_their_end"])
def test_of_a_sequence_it_is_every_step(run: Any, folder: Path, of: str) -> None:
    """As the compiled engine has it, with what goes on from an earlier piece."""
    (folder / "talking.py").write_text(TALKING)
    job = target.load(f"talking.py:{of}").job
    _, seen = probed(job, 5)
    shown = ["trace", f"talking.py:{of}", "--neuron", "cell:1", "--step", "5"]
    found = run(*shown, "--at", "1", "--json").json
    n = job.network.steps if job.data.lengths is None else int(job.data.lengths[found["row"]])
    assert (found["at"], len(found["steps"])) == (1, n)
    near = {"rel": 1e-4, "abs": 1e-6}
    assert sum(each["loss"] for each in found["steps"]) == pytest.approx(found["loss"], **near)
    assert found["loss"] == pytest.approx(float(seen["loss"]), **near)
    for t, each in enumerate(found["steps"]):
        assert each["output"] == pytest.approx(seen["cell.output"][0, t, 1], **near)
        assert each["states"]["cell"] == pytest.approx(each["output"], **near)
        for name in ("keep", "new"):
            assert each["delta"][name] == pytest.approx(seen[f"cell.delta.{name}"][0, t, 1], **near)
    before = found["steps"][0]["output"]
    assert found["states"]["cell"] == pytest.approx([before, found["output"]], **near)
    late = {m["source"]: m for m in found["incoming"] if m["heard"] == "1 step ago"}
    assert late["cell:1"]["input"] == pytest.approx(before, **near)
    expected = seen["cell.weight.h.new.gradient"][1, 1]
    assert late["cell:1"]["gradients"]["new"] == pytest.approx(expected, **near)
    there = {m["receiver"]: m for m in found["outgoing"] if m["heard"] == "1 step later"}
    for k in range(3):
        deltas = there[f"cell:{k}"]["deltas"]
        assert deltas["new"] == pytest.approx(seen["cell.delta.new"][0, 2, k], **near)
    said = run(*shown).out
    assert "update 5, sample 0" in said and f"At step {n - 1}; gradients of weights" in said
    assert "cell:0, 1 step ago" in said and "out:0, 2 steps ago" in said
    done = run(*shown, "--at", "6")
    assert done.code == 2 and f"has the steps 0 to {n - 1}, got --at 6" in done.err


def test_it_is_what_the_compiled_step_computes(run: Any, job: horn.Job) -> None:
    engine, seen = probed(job, 5)
    found = run("trace", "talking.py", "--neuron", "layer2:1", "--step", "5", "--json").json
    assert found["schema"] == "horn.trace/1" and found["kind"] == "Pushing"
    near = {"rel": 1e-4, "abs": 1e-6}
    weights = engine.parameters()
    assert found["fed"] == pytest.approx(seen["layer2.output"][0, 1], **near)
    assert found["delta"]["weight"] == pytest.approx(seen["layer2.delta"][0, 1], **near)
    sources = [m["source"] for m in found["incoming"]]
    assert sources == ["layer1:0", "layer1:1", "layer1:2", "layer1:3", "bias"]
    for k, m in enumerate(found["incoming"][:4]):
        assert m["input"] == pytest.approx(seen["layer1.output"][0, k], **near)
        assert m["weights"]["weight"] == pytest.approx(weights["layer2.weight"][1, k], **near)
        expected = seen["layer2.weight.gradient"][1, k]
        assert m["gradients"]["weight"] == pytest.approx(expected, **near)
    assert [m["receiver"] for m in found["outgoing"]] == ["layer3:0", "layer3:1"]
    for k, m in enumerate(found["outgoing"]):
        assert m["weights"]["weight"] == pytest.approx(weights["layer3.weight"][k, 1], **near)
        assert m["deltas"]["weight"] == pytest.approx(seen["layer3.delta"][0, k], **near)
        expected = seen["layer3.weight.gradient"][k, 1]
        assert m["pushed"]["weight"] == pytest.approx(expected, **near)


def test_the_table_has_every_message_parameter_and_state(run: Any, job: horn.Job) -> None:
    engine, seen = probed(job, 2)
    done = run("trace", "talking.py", "--neuron", "layer1:3", "--step", "2")
    assert done.code == 0 and done.files == set()
    assert done.out.startswith("layer1:3 (Talking), step 2, sample 0 of the batch: row ")
    rows = [line.split()[0] for line in done.out.splitlines() if line]
    wanted = ["layer0:0", "layer0:1", "layer0:2", "bias", "layer2:0", "layer2:1", "layer2:2"]
    assert [row for row in rows if ":" in row or row == "bias"][1:] == wanted
    facts = dict(line.rsplit(None, 1) for line in done.out.splitlines() if len(line.split()) > 1)
    gain = float(engine.parameters()["layer1.gain"][3])
    assert float(facts["Parameter gain"]) == pytest.approx(gain, rel=1e-4)
    assert float(facts["  its gradient"]) == pytest.approx(
        seen["layer1.gain.gradient"][3], rel=1e-3, abs=1e-6
    )
    assert float(facts["State mean before"]) == pytest.approx(
        engine.states()["layer1.mean"][3], rel=1e-4
    )
    assert done.err.splitlines() == ["forward 3"]


def test_a_neuron_of_a_convolution_says_where_it_is_and_who_shares_its_weights(
    run: Any, folder: Path
) -> None:
    (folder / "windows.py").write_text(
        "import horn\n"
        "def job():\n"
        "    net = horn.Network(seed=3)\n"
        "    net.input((8, 8, 1))\n"
        "    net.layer(connect=horn.Convolution(4, 3), name='conv')\n"
        "    net.output(10, activation='softmax', loss='cross_entropy')\n"
        "    return horn.Job(net, horn.data.digits().take(64))\n"
    )
    done = run("trace", "windows.py", "--neuron", "conv:57")
    assert done.out.startswith("conv:57 (Standard at 2, 2 in channel 1), step 0, sample 0 of")
    assert "36 neurons share these weights; a gradient is the sum over all of them" in done.out
    found = run("trace", "windows.py", "--neuron", "conv:57", "--json").json
    assert (found["place"], found["sharing"]) == ([2, 2, 1], 36)


def test_only_the_neuron_that_is_asked_about_prints(run: Any, job: horn.Job) -> None:
    done = run("trace", "talking.py", "--neuron", "layer2:0")
    assert done.err == "backward 0\n" and "backward" not in done.out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--neuron", "layer9:0"], "the layers are layer1, layer2, layer3"),
        (["--neuron", "layer1"], "is written LAYER:NUMBER, as in layer3:0"),
        (["--neuron", "layer1:4"], "layer1 has the neurons 0 to 3, got '4'"),
        (["--neuron", "layer1:0", "--step", "120"], "the job has the steps 0 to 119, got 120"),
        (["--neuron", "layer1:0", "--sample", "1"], "has the samples 0 to 0, got 1"),
    ],
)
def test_what_is_not_there(run: Any, job: horn.Job, arguments: list[str], said: str) -> None:
    done = run("trace", "talking.py", *arguments)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err
