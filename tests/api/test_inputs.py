"""Networks with several inputs: by name or side by side, listened to together or apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import DataError, ModelError

RNG = np.random.default_rng(4)
X, Z = RNG.normal(size=(60, 4)), RNG.normal(size=(60, 3))
Y = (X[:, 0] * Z[:, 1] > 0).astype(int)


def together(seed: int = 2) -> horn.Network:
    net = horn.Network(seed=seed)
    net.input(4, name="x")
    net.input(3, name="z")
    net.layer(6, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def apart() -> horn.Network:
    net = horn.Network(seed=2)
    x, z = net.input(4, name="x"), net.input(3, name="z")
    a = net.layer(5, activation="tanh", inputs=x, name="a")
    b = net.layer(4, activation="tanh", inputs=z, name="b")
    net.layer(6, activation="tanh", inputs=[a, b], name="c")
    net.output(2, activation="softmax", loss="cross_entropy", name="out")
    return net


def job(net: horn.Network, data: Any = None, **more: Any) -> horn.Job:
    more = {"epochs": 4, "optimizer": horn.SGD(0.3), "dtype": "float64"} | more
    return horn.Job(net, ({"x": X, "z": Z}, Y) if data is None else data, **more)


def test_by_name_is_the_same_as_side_by_side() -> None:
    single = horn.Network(seed=2)
    single.input(7)
    single.layer(6, activation="tanh")
    single.output(2, activation="softmax", loss="cross_entropy")
    both = np.hstack([X, Z])
    expected = horn.train(job(single, (both, Y), validation=(both, Y))).model
    for data in (({"x": X, "z": Z}, Y), ({"z": Z, "x": X}, Y), (both, Y)):
        model = horn.train(job(together(), data, validation=data, test=data)).model
        for name, array in expected.parameters.items():
            np.testing.assert_array_equal(model.parameters[name], array)
        np.testing.assert_array_equal(model.predict({"z": Z, "x": X}), expected.predict(both))
        assert model.evaluate({"x": X, "z": Z}, Y) == expected.evaluate(both, Y)


TASKS = pytest.param({"tasks": 2}, marks=pytest.mark.cluster)


@pytest.mark.parametrize(
    "settings", [{}, {"backend": "reference"}, {"backend": "python"}, TASKS], ids=str
)
def test_layers_listen_to_one_input_each(settings: Any, tmp_path: Path) -> None:
    net = apart()
    assert [layer.name for layer in net.layers] == ["inputs", "x", "a", "z", "b", "c", "out"]
    assert net.inputs == (("x", 4), ("z", 3))
    epochs = 2 if settings.get("backend") == "python" else 4  # message by message
    run = horn.train(job(net, epochs=epochs), **settings)
    model, p = run.model, run.model.parameters
    assert not any(name.startswith(("x.", "z.")) for name in p)  # they only hand on
    a = np.tanh(X @ p["a.weight"].T + p["a.bias"])
    b = np.tanh(Z @ p["b.weight"].T + p["b.bias"])
    c = np.tanh(a @ p["c.weight.a"].T + b @ p["c.weight.b"].T + p["c.bias"])
    logits = c @ p["out.weight"].T + p["out.bias"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict({"x": X, "z": Z}), expected, rtol=1e-9)
    np.testing.assert_allclose(model.activations({"x": X, "z": Z}, "z"), Z)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn", backend=settings.get("backend", "kernels"))
    assert again.network.inputs == net.inputs
    np.testing.assert_array_equal(again.predict({"z": Z, "x": X}), model.predict(np.hstack([X, Z])))


def test_an_input_may_be_heard_with_all_or_be_an_image() -> None:
    net = horn.Network(seed=2)
    image, facts = net.input((3, 3, 1), name="image"), net.input(2, name="facts")
    maps = net.layer(connect=horn.Convolution(2, 2), inputs=image, activation="relu")
    assert maps.shape == (2, 2, 2)
    net.layer(4, inputs=[maps, facts], connect={facts: horn.Sparse(fan_in=1)}, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = {"image": RNG.integers(0, 255, (20, 3, 3)).astype(np.uint8), "facts": Z[:20, :2]}
    run = horn.train(horn.Job(net, (data, Y[:20]), epochs=2, normalize=True))
    assert run.model.predict(data).shape == (20, 2)


def test_bytes_stay_bytes_only_among_themselves() -> None:
    bytes_ = RNG.integers(0, 255, (60, 4)).astype(np.uint8)
    found = horn.Job(together(), ({"x": bytes_, "z": bytes_[:, :3]}, Y)).data
    assert (found.x.dtype, found.scale) == (np.uint8, 1 / 255)
    mixed = horn.Job(together(), ({"x": bytes_, "z": Z}, Y)).data
    np.testing.assert_allclose(mixed.x[:, :4], bytes_ / 255, rtol=1e-6)
    np.testing.assert_array_equal(mixed.x[:, 4:], Z)
    assert mixed.scale == 1.0


def test_tables_of_pandas_by_name(caplog: pytest.LogCaptureFixture) -> None:
    pandas = pytest.importorskip("pandas")
    x, z = pandas.DataFrame(X), pandas.DataFrame(Z)
    found = horn.Job(together(), ({"x": x, "z": z}, Y)).data
    np.testing.assert_array_equal(found.x, np.hstack([X, Z]))
    assert not caplog.records
    horn.Job(together(), ({"x": x, "z": z[::-1]}, Y))
    (record,) = caplog.records
    assert "x['x'] and x['z'] have the same index in different orders" in record.getMessage()


def test_mistakes_are_said() -> None:
    net = together()
    said: list[tuple[Any, str]] = [
        ({"x": X}, "inputs of the network are 'x', 'z', but of the data 'z' missing; they are"),
        ({"x": X, "z": Z, "w": Z}, "but of the data 'w' not known"),
        ({"x": X, "y": Z}, "'z' missing and 'y' not known"),
        ({"x": X, "z": X}, r"input 'z' has 4 features per sample, but the network declares input"),
        ({"x": X, "z": Z[:5]}, r"the inputs have 60 \('x'\), 5 \('z'\) samples"),
        ({"x": X * np.nan, "z": Z}, "x has NaN at row 0, column 0"),
    ]
    for data, words in said:
        with pytest.raises(DataError, match=words):
            horn.Job(net, (data, Y))
    with pytest.raises(DataError, match="the stream gives several inputs by name; put their"):
        horn.Job(net, iter([({"x": X, "z": Z}, Y)]), iterations=1)
    with pytest.raises(DataError, match="test: the inputs of the network"):
        horn.Job(net, ({"x": X, "z": Z}, Y), test=({"x": X}, Y))
    for settings in ({"name": "x"}, {"name": "inputs"}):
        other = horn.Network()
        other.input(4, name="x")
        with pytest.raises(ModelError, match="inputs have names of their own, and not"):
            other.input(3, **settings)
    with pytest.raises(ModelError, match="keep and per are those of all inputs, 1 and 'sample'"):
        other.input(3, name="z", keep=0.5)
    with pytest.raises(ModelError, match="input comes first, before other layers"):
        net.input(3)


@pytest.mark.parametrize("given", [(X, Z), (Z, X), [X, Z]], ids=["pair", "turned", "list"])
def test_arrays_without_names_are_told_of_them(given: Any) -> None:
    net = together()
    model = horn.Model(net, net.initial_parameters())
    said = "of 2 arrays, but several inputs are given by their names: x = {'x': ..., 'z': ...}"
    for ask in (lambda: model.predict(given), lambda: model.evaluate(given, Y),
                lambda: horn.Job(net, (given, Y)), lambda: horn.Job(net, given)):  # fmt: skip
        with pytest.raises(DataError, match=re.escape(said)):
            ask()


def test_a_single_input_may_be_named_too() -> None:
    net = horn.Network()
    net.input(4, name="x")
    net.output(2, activation="softmax", loss="cross_entropy")
    assert len(horn.Job(net, ({"x": X}, Y)).data) == 60


def seen_and_told() -> horn.Network:
    net = horn.Network(seed=1)
    image, facts = net.input((4, 5, 2), name="image"), net.input(3, name="facts")
    h = net.layer(connect=horn.Convolution(channels=2, kernel=3), inputs=image)
    net.output(1, inputs=[h, facts], loss="squared_error")
    return net


def test_an_image_among_inputs_has_the_axes_that_were_declared(tmp_path: Path) -> None:
    """Channels first and transposed images were taken, as other images."""
    images, facts = RNG.random((8, 4, 5, 2)), RNG.random((8, 3))
    y = facts.sum(axis=1)
    model = horn.train(horn.Job(seen_and_told(), ({"image": images, "facts": facts}, y))).model
    model.save(tmp_path / "m.horn")
    for each in (model, horn.Model.load(tmp_path / "m.horn")):
        found = each.predict({"image": images, "facts": facts})
        flat = {"image": images.reshape(8, -1), "facts": facts}
        np.testing.assert_array_equal(each.predict(flat), found)
        for axes, back in (((0, 3, 1, 2), "0, 2, 3, 1"), ((0, 2, 1, 3), "0, 2, 1, 3")):
            given = {"image": images.transpose(axes), "facts": facts}
            said = rf"input 'image': a sample has the shape .* x\.transpose\({back}\)"
            with pytest.raises(DataError, match=said):
                each.predict(given)
            with pytest.raises(DataError, match=said):
                horn.Job(seen_and_told(), (given, y))


def test_a_signal_with_channels_first_is_turned_and_not_declared_so() -> None:
    """net.input((2, 10)) would be heard along the channels, and say nothing."""
    signals, facts, y = RNG.random((8, 10, 2)), RNG.random((8, 3)), np.arange(8.0)
    several = horn.Network(seed=1)
    both = several.input((10, 2), name="signal"), several.input(3, name="facts")
    h = several.layer(connect=horn.Convolution(2, 3), inputs=both[0])
    several.output(1, inputs=[h, both[1]], loss="squared_error")
    alone = horn.Network(seed=1)
    alone.input((10, 2))
    alone.layer(connect=horn.Convolution(2, 3))
    alone.output(1, loss="squared_error")
    turned = signals.transpose(0, 2, 1)
    for net, x, other in (
        (alone, signals, turned),
        (several, {"signal": signals, "facts": facts}, {"signal": turned, "facts": facts}),
    ):
        said = r"input\(\(10, 2\)\), 10 positions of 2 channels; write x\.transpose\(0, 2, 1\)"
        with pytest.raises(DataError, match=f"declares {said}; if x has 2 positions of 10 channe"):
            horn.train(horn.Job(net, (other, y), epochs=1))
        model = horn.train(horn.Job(net, (x, y), epochs=1)).model
        with pytest.raises(DataError, match=f"this model learned from {said}$"):
            model.predict(other)


def test_a_layer_is_not_called_as_an_input_is() -> None:
    """It was heard in the input's place."""
    net = horn.Network(seed=1)
    net.input(2, name="a")
    c = net.input(3, name="c")
    with pytest.raises(ModelError, match="layer 2 'a': an input has this name; names are unique"):
        net.layer(4, name="a", inputs=c)


def test_an_input_that_only_a_later_output_hears_is_said() -> None:
    net = horn.Network(seed=1)
    a, c = net.input(2, name="a"), net.input(3, name="c")
    h = net.layer(4, inputs=a)
    net.output(1, inputs=h, name="one", loss="squared_error")
    with pytest.raises(ModelError, match="'c' is first heard behind an output: add the output tha"):
        net.output(1, inputs=[h, c], name="two", loss="squared_error")


def test_connections_go_by_the_name_of_a_layer_too() -> None:
    net = horn.Network(seed=1)
    a, c = net.input(3, name="a"), net.input(3, name="c")
    layer = net.layer(3, inputs=[a, c], connect={"a": horn.OneToOne()})
    assert [link.n_synapses(3) for link in layer.links] == [(3,), (3, 3)]
    with pytest.raises(ModelError, match="connect names 'b', which is not among its inputs"):
        net.layer(3, inputs=[a, c], connect={"b": horn.OneToOne()})


@pytest.mark.parametrize(
    "connection", [horn.OneToOne(), horn.Convolution(2, 3, padding="same")], ids=repr
)
def test_a_layer_that_looks_at_its_own_places_late_says_its_size(connection) -> None:
    net = horn.Network(seed=1)
    x = net.input((4, 4, 2), steps=3, name="x")
    heard = {"inputs": [x, horn.Delayed()], "connect": connection, "name": "h"}
    with pytest.raises(ModelError) as raised:
        net.layer(**heard)
    assert "looks at the places of 'h', which is heard late and has none" in str(raised.value)
    assert "say the size of the layer, as net.layer((28, 28, 8), ...)" in str(raised.value)
    assert net.layer((4, 4, 2), **heard).shape == (4, 4, 2)
