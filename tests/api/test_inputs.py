"""Networks with several inputs: by name or side by side, listened to together or apart."""

from __future__ import annotations

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
    run = horn.train(job(net), **settings)
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


def test_tables_of_pandas_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    found = horn.Job(together(), ({"x": pandas.DataFrame(X), "z": pandas.DataFrame(Z)}, Y)).data
    np.testing.assert_array_equal(found.x, np.hstack([X, Z]))


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
    for settings in ({"name": "x"}, {"name": "inputs"}, {"name": "a.b"}):
        other = horn.Network()
        other.input(4, name="x")
        with pytest.raises(ModelError, match="inputs have names of their own, without a dot"):
            other.input(3, **settings)
    with pytest.raises(ModelError, match="keep and per are those of all inputs, 1 and 'sample'"):
        other.input(3, name="z", keep=0.5)
    with pytest.raises(ModelError, match="input comes first, before other layers"):
        net.input(3)


def test_a_single_input_may_be_named_too() -> None:
    net = horn.Network()
    net.input(4, name="x")
    net.output(2, activation="softmax", loss="cross_entropy")
    assert len(horn.Job(net, ({"x": X}, Y)).data) == 60
