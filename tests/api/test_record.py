"""What layers send and States are at each step of a sequence, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import ModelError

RNG = np.random.default_rng(3)
X = RNG.integers(0, 256, (5, 4, 3)).astype(np.uint8)


class Leaky(horn.Neuron):
    v = horn.State(0.25, per="sample")
    far = horn.State(0.0, per="sample")

    def forward(self, messages: Any) -> None:
        v = 0.5 * self.v + sum(m.input * m.weight for m in messages)
        self.v = v
        self.far = max(self.far, abs(v))
        self.feedforward(1.0 if v > 0.2 else 0.0)


def network(each_step: bool = False) -> horn.Network:
    """ "below" hears one that comes later: no network can be cut there."""
    net = horn.Network(seed=5)
    x = net.input(3, steps=4)
    below = net.layer(6, neuron=Leaky, inputs=[x, horn.Delayed("top")], name="below")
    net.layer(4, activation="tanh", inputs=[below, horn.Delayed(steps=2)], name="top")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each_step, name="out")
    return net


def model(backend: str = "kernels", each_step: bool = False) -> horn.Model:
    net = network(each_step)
    return horn.Model(net, net.initial_parameters(), net.initial_states(), backend=backend)


def test_who_cannot_ask_for_activations_is_told_of_the_record() -> None:
    with pytest.raises(ModelError, match=r"alone; model.record\(x, 'below'\) says what it sends"):
        model().activations(X, "below")


def test_names_may_be_a_list() -> None:
    made = model()
    found = made.record(X, ["top", "below.v"])
    assert list(found) == ["top", "below.v"]
    np.testing.assert_array_equal(found["top"], made.record(X, "top")["top"])


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_each_layer_and_state_is_as_a_person_computes_it(backend: str) -> None:
    made = model(backend)
    found = made.record(X)
    assert {name: array.shape for name, array in found.items()} == {
        "layer0": (5, 4, 3), "below": (5, 4, 6), "top": (5, 4, 4), "out": (5, 4, 2),
        "below.v": (5, 4, 6), "below.far": (5, 4, 6),
    }  # fmt: skip
    w = made.parameters
    v, far = np.full((5, 6), 0.25), np.zeros((5, 6))
    tops = [np.zeros((5, 4)), np.zeros((5, 4))]
    for t in range(4):
        v = 0.5 * v + X[:, t] / 255 @ w["below.weight.layer0"].T
        v += tops[-1] @ w["below.weight.top"].T + w["below.bias"]
        far = np.maximum(far, abs(v))
        total = (v > 0.2) @ w["top.weight.below"].T + tops[-2] @ w["top.weight.top"].T
        tops.append(np.tanh(total + w["top.bias"]))
        for name, expected in (("below", v > 0.2), ("below.v", v), ("below.far", far)):
            np.testing.assert_allclose(found[name][:, t], expected, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(found["top"][:, t], tops[-1], atol=1e-6)
    np.testing.assert_allclose(found["out"][:, -1], made.predict(X), atol=1e-6)
    each = model(backend, each_step=True)
    np.testing.assert_allclose(each.record(X, "out")["out"], each.predict(X), atol=1e-6)


def test_sequences_of_other_lengths() -> None:
    """Each as if it were alone; longer ones than the network has steps to the end."""
    made, x = model(), X / 255
    whole = made.record(x, "top", "below.v")
    short = made.record([x[0, :2], x[1], x[2, :3]], "top", "below.v")
    for name, each in whole.items():
        assert [len(found) for found in short[name]] == [2, 4, 3]
        for k, found in enumerate(short[name]):
            np.testing.assert_array_equal(found, each[k, : len(found)])
    longer = made.record(np.concatenate([x, x], axis=1), "top")["top"]
    assert longer.shape == (5, 8, 4)
    np.testing.assert_array_equal(longer[:, :4], whole["top"])
    of_both = made.record([np.concatenate([x[0], x[0, :2]]), x[1]], "top")["top"]
    np.testing.assert_array_equal(of_both[0], longer[0, :6])
    np.testing.assert_array_equal(of_both[1], whole["top"][1])


class Noisy(horn.Neuron):
    def forward(self, messages: Any) -> None:
        kept = sum(m.input * m.weight * self.bernoulli(0.5, per="sequence") for m in messages)
        self.feedforward(kept + self.normal(0.0, 1.0))


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_each_sequence_draws_as_it_does_at_prediction(backend: str) -> None:
    net = horn.Network(seed=5)
    noisy = net.layer(6, neuron=Noisy, inputs=[net.input(3, steps=4), horn.Delayed()], name="noisy")
    net.output(2, inputs=noisy, loss="squared_error", each_step=True)
    made = horn.Model(net, net.initial_parameters(), backend=backend)
    longer = np.concatenate([X, X[::-1]], axis=1) / 255
    for x in (X, longer, [longer[0], longer[1, :3]]):
        found, expected = made.record(x, "noisy")["noisy"], made.activations(x, "noisy")
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    stream = made.stream()
    stream.reset(sample=2)
    np.testing.assert_allclose(stream(X[2]), made.predict(X)[2], atol=1e-5)


class Ramp(horn.Neuron):
    """Weighs its messages by their places: an array as large as the layer that it hears."""

    def forward(self, messages: Any) -> None:
        y = sum(m.input * m.weight for m in messages)
        top = self.max(y, over="layer")
        self.feedforward(y + sum(m.weight * horn.math.tanh(m.index * top) for m in messages))


@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_what_a_layer_sent_is_not_overwritten_by_those_that_hear_it(backend: str) -> None:
    net = horn.Network(seed=1)
    net.input(3, steps=4)
    net.layer(4, activation="tanh", name="below")
    net.layer(5, neuron=Ramp, name="ramp")
    net.output(2, loss="squared_error", each_step=True)
    made, judge = (
        horn.Model(net, net.initial_parameters(), backend=b) for b in (backend, "python")
    )
    found, expected = made.record(X / 255), judge.record(X / 255)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)


class Traced(horn.Neuron):
    mean = horn.State(0.5)
    gain = horn.State(2.0)
    trace = horn.SynapseState(0.25, per="sample")
    still = horn.SynapseState(0.5)

    def forward(self, messages: Any) -> None:
        z = self.gain * sum(m.input * m.weight * m.still for m in messages)
        for m in messages:
            self.push(m.trace)
            m.trace = 0.5 * m.trace + m.input * z
        self.mean = 0.5 * self.mean + z
        self.feedforward(z)


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_every_state_and_what_synapses_remember_are_told(backend: str) -> None:
    net = horn.Network(seed=5)
    net.layer(2, neuron=Traced, inputs=net.input(3, steps=4), name="traced")
    made = horn.Model(net, net.initial_parameters(), net.initial_states(), backend=backend)
    x = X / 255
    assert list(made.record(x)) == ["layer0", "traced", "traced.mean", "traced.gain"]
    names = "traced.trace", "traced.bias.trace", "traced.mean", "traced.gain", "traced.still"
    found = made.record(x, *names)
    stream = made.stream()
    stream(x[0])
    trace, bias, mean = np.full((5, 2, 3), 0.25), np.full((5, 2), 0.25), np.full((5, 2), 0.5)
    for t in range(4):
        z = x[:, t] @ made.parameters["traced.weight"].T + made.parameters["traced.bias"]
        trace = 0.5 * trace + z[..., None] * x[:, t, None]
        bias, mean = 0.5 * bias + z, 0.5 * mean + z
        here = trace.reshape(5, -1), bias, mean, np.full((5, 2), 2.0), np.full((5, 6), 0.5)
        for name, expected in zip(names, here, strict=True):
            np.testing.assert_allclose(found[name][:, t], expected, atol=1e-6, err_msg=name)
    for name in names:
        np.testing.assert_allclose(stream.last(name), found[name][0, -1], atol=1e-6)


@pytest.mark.parametrize("steps", [2, 4, 7])
@pytest.mark.parametrize("each_step", [False, True])
def test_one_sequence_alone_has_the_shape_that_predict_gives_it(
    steps: int, each_step: bool, tmp_path: Path
) -> None:
    made, x = model(each_step=each_step), np.concatenate([X, X], axis=1)[0, :steps] / 255
    found, whole = made.record(x), made.record(x[None])
    for name, array in found.items():
        np.testing.assert_array_equal(array, whole[name][0], err_msg=name)
    expected = found["out"] if each_step else found["out"][-1]
    assert made.predict(x).shape == expected.shape
    np.testing.assert_allclose(made.predict(x), expected, atol=1e-6)
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, the extra plot")
    figure = horn.plot.raster(made, x, "below", path=tmp_path / "r.png")
    assert len(figure.axes) == 1 and figure.axes[0].images[0].get_array().shape == (6, steps)


def test_of_no_sequences_the_steps_and_sizes_are_told() -> None:
    made = model()
    for steps in (2, 4, 8):
        found = made.record(np.zeros((0, steps, 3)), "top", "below.v")
        assert {name: each.shape for name, each in found.items()} == {
            "top": (0, steps, 4), "below.v": (0, steps, 6),
        }  # fmt: skip
    with pytest.raises(ModelError, match="'below.w' is neither a layer nor a State"):
        made.record(np.zeros((0, 4, 3)), "below.w")


@pytest.mark.parametrize("each_step", [False, True])
def test_what_hears_the_end_first_is_not_recorded(each_step: bool) -> None:
    net = horn.Network(seed=1)
    x = net.input(3, steps=4)
    net.layer(2, activation="tanh", inputs=[horn.Reversed(x), horn.Delayed()], name="back")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each_step)
    made = horn.Model(net, net.initial_parameters())
    with pytest.raises(ModelError, match=r"^record goes .*: model.activations\(x, layer\) tells"):
        made.record(X, "back")
    assert made.activations(X, "back").shape == ((5, 4, 2) if each_step else (5, 2))


@pytest.mark.parametrize("backend", ["kernels", "python"])
def test_a_loss_between_layers_sends_nothing(backend: str) -> None:
    net = network(each_step=True)
    net.loss(net.layers[1], f=lambda y: y * y, each_step=True, name="quiet")
    made = horn.Model(net, net.initial_parameters(), net.initial_states(), backend=backend)
    assert list(made.record(X[:1])) == ["layer0", "below", "top", "out", "below.v", "below.far"]
    with pytest.raises(ModelError, match="'quiet' is neither a layer nor a State or"):
        made.record(X[:1], "quiet")


def test_a_stream_tells_what_its_last_step_was() -> None:
    made = model()
    stream = made.stream()
    with pytest.raises(ModelError, match="below: nothing was heard yet; call the stream"):
        stream.last("below")
    stream(X[1, :2] / 255)
    expected = made.record(X[1:2], "below.v", "top")
    # A stream's sums may be rounded another way, as its docstring says.
    for name in ("below.v", "top"):
        np.testing.assert_allclose(stream.last(name), expected[name][0, 1], rtol=1e-5, atol=1e-6)


def test_what_is_not_there_is_said_with_what_is() -> None:
    words = "'below.w' is neither a layer nor a State or SynapseState; there are layer0, below"
    with pytest.raises(ModelError, match=words):
        model().record(X, "top", "below.w")
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    flat = horn.Model(net, net.initial_parameters())
    with pytest.raises(ModelError, match=r"activations\(x, layer\) tells what a layer sends"):
        flat.record(X[:, 0])


def test_a_raster_is_a_panel_for_each_sequence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, the extra plot")
    figure = horn.plot.raster(model(), X[:2], "below", path=tmp_path / "r.png")
    found = model().record(X[:2], "below")["below"]
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    assert len(figure.axes) == 2 and set(np.unique(found)) == {0.0, 1.0}
    np.testing.assert_array_equal(figure.sent, found)
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), found[1].T)
    assert figure.axes[0].images[0].get_clim() == (0.0, 1.0)
    signed = horn.plot.raster(model(), X, "below.v").axes[0].images[0]
    assert signed.get_clim()[0] == -signed.get_clim()[1] < 0


def test_a_raster_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"raster needs matplotlib; pip install 'horn-bsp\[plot\]"):
        horn.plot.raster(model(), X, "below")
