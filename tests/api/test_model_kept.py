"""A model answers as it learned, whatever its neurons read by now, and to several threads."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import horn
import horn.model_engines
from horn.errors import JobError, ModelError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 4))
Y = (X[:, 0] > 0).astype(int)
SLOPE = 1.0
TABLE = [1.0, 2.0]


class Scaled(horn.Neuron):
    gain = 0.1
    taps = [1.0]

    def forward(self, messages: Any) -> None:
        scale = self.gain * SLOPE * TABLE[0] * self.taps[0]
        self.feedforward(scale * sum(m.input * m.weight for m in messages))


def trained(backend: str = "kernels", **how: Any) -> horn.Model:
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(5, neuron=Scaled, name="h")
    how = {"activation": "softmax", "loss": "cross_entropy"} | how
    net.output(how.pop("size", 2), **how, name="o")
    return horn.train(horn.Job(net, (X, Y), epochs=1), progress=False, backend=backend).model


ASKED: dict[str, Callable[[horn.Model], Any]] = {
    "predict": lambda model: model.predict(X),
    "evaluate": lambda model: list(model.evaluate(X, Y).values()),
    "activations": lambda model: model.activations(X, "h"),
    "cut": lambda model: model.cut("h").predict(X),
}


@pytest.mark.parametrize("change", ["class", "global", "table", "table of the class"])
@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_what_was_asked_before_does_not_decide(
    backend: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one question the others were answered with the numbers of today."""
    monkeypatch.setitem(globals(), "TABLE", [1.0, 2.0])  # to be changed in place
    monkeypatch.setattr(Scaled, "taps", [1.0])
    expected = {name: np.asarray(ask(trained(backend))) for name, ask in ASKED.items()}
    models = {name: trained(backend) for name in ASKED}
    cuts = {name: model.cut("h") for name, model in models.items()}
    for name, model in models.items():
        ASKED[name](model)
    if change == "class":
        monkeypatch.setattr(Scaled, "gain", 9.0)
    elif "table" in change:
        (TABLE if change == "table" else Scaled.taps)[0] = 9.0
    else:
        monkeypatch.setitem(globals(), "SLOPE", 9.0)
    for first, model in models.items():
        for name, ask in ASKED.items():
            np.testing.assert_array_equal(np.asarray(ask(model)), expected[name], f"{first} {name}")
        np.testing.assert_array_equal(cuts[first].predict(X), expected["cut"])


def test_threads_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """They got the rows of other threads."""
    model = trained()
    expected = model.predict(X)
    engine, entered, go_on = model._engines._engine, threading.Event(), threading.Event()
    outputs = engine.outputs

    def slow(x: Any, **how: Any) -> Any:
        entered.set()
        assert go_on.wait(30.0)
        return outputs(x, **how)

    monkeypatch.setattr(engine, "outputs", slow)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(model.predict, rows) for rows in np.split(X, 20)]
        assert entered.wait(30.0)
        assert not model._engines.lock.acquire(blocking=False)  # one computes, the others wait
        go_on.set()
        found = np.concatenate([each.result(30.0) for each in asked])
        np.testing.assert_array_equal(found, expected)
        losses = pool.map(lambda _: model.evaluate(X, Y)["loss"], range(8), timeout=30.0)
        assert {*losses} == {model.evaluate(X, Y)["loss"]}


@pytest.mark.parametrize("name", ASKED)
def test_engines_are_made_anew_by_who_has_the_lock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thread that compares neurons takes the engine of one that predicts."""
    model, owned = trained(), []
    of = horn.model_engines.Description.of

    def noting(network: Any, *metrics: Any) -> Any:
        if network is model.network:
            owned.append(model._engines.lock._is_owned())  # type: ignore[attr-defined]
        return of(network, *metrics)

    monkeypatch.setattr(horn.model_engines.Description, "of", noting)
    ASKED[name](model)
    assert owned and all(owned)


def test_each_kind_of_target_is_compiled_as_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """``evaluate`` compiles for each; only then it looks whether a neuron has changed."""
    expected = trained().evaluate(X, np.eye(2)[Y])
    model, calls = trained(), []
    model.evaluate(X, Y)
    plain = model._engines.as_learned
    monkeypatch.setattr(model._engines, "as_learned", lambda: calls.append(1) or plain())
    model.evaluate(X, Y)
    assert not calls
    monkeypatch.setattr(Scaled, "gain", 9.0)
    assert model.evaluate(X, np.eye(2)[Y]) == expected


def test_engines_are_made_anew_while_none_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock ``evaluate`` took the engine of a thread that predicted."""
    model = trained()
    model.predict(X)
    monkeypatch.setattr(Scaled, "gain", 9.0)
    owned: list[bool] = []
    plain = horn.model_engines.rebuild

    def rebuild(*given: Any) -> Any:
        owned.append(model._engines.lock._is_owned())  # type: ignore[attr-defined]
        return plain(*given)

    monkeypatch.setattr("horn.model_engines.rebuild", rebuild)
    model.evaluate(X, Y)
    assert owned == [True]


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_a_stream_answers_as_its_model_learned(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream compiled at its first step, and an interpreted one went on with another neuron."""
    net = horn.Network(seed=1)
    x = net.input(4, steps=3)
    net.layer(5, neuron=Scaled, inputs=[x, horn.Delayed()], name="h")
    net.output(2, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, (RNG.normal(size=(40, 3, 4)), Y), epochs=1)
    model = horn.train(job, progress=False, backend=backend).model
    expected = model.stream()(X[:6])
    early, begun = model.stream(), model.stream()
    begun(X[:3])
    monkeypatch.setattr(Scaled, "gain", 9.0)
    np.testing.assert_array_equal(model.stream()(X[:6]), expected)
    if backend == "python":
        for stream in (early, begun):
            with pytest.raises(ModelError, match=r"changed after the stream began; model"):
                stream(X[3:6])
    else:
        np.testing.assert_array_equal(early(X[:6]), expected)
        np.testing.assert_array_equal(begun(X[3:6]), expected[3:])


def test_the_labels_of_an_output_are_those_of_the_model() -> None:
    """A sigmoid was always 0, and classes by name were numbers."""
    model = trained(size=1, activation="sigmoid", loss="binary_cross_entropy")
    labels = model.predict(X, labels=True)
    assert {*labels.tolist()} == {0, 1}
    np.testing.assert_array_equal(model.predict(X, labels=True, layer="o"), labels)
    net = horn.Network(seed=1)
    net.input(4)
    net.output(2, activation="softmax", loss="cross_entropy", name="o")
    names = np.where(Y, "yes", "no")
    model = horn.train(horn.Job(net, (X, names), epochs=2), progress=False).model
    labels = model.predict(X, labels=True)
    assert {*labels.tolist()} == {"yes", "no"}
    np.testing.assert_array_equal(model.predict(X, labels=True, layer="o"), labels)


def test_no_samples_of_several_inputs_have_no_answers() -> None:
    net = horn.Network(seed=1)
    a, b = net.input((2, 2, 1), name="a"), net.input(3, name="b")
    net.output(1, inputs=[a, b], loss="squared_error")
    given = {"a": np.ones((4, 2, 2, 1)), "b": np.ones((4, 3))}
    model = horn.train(horn.Job(net, (given, np.arange(4.0)), epochs=1), progress=False).model
    assert model.predict({name: array[:0] for name, array in given.items()}).shape == (0, 1)


@pytest.mark.parametrize("dtype", ["foo", "float16", np.float64])
def test_a_model_is_of_two_types(dtype: Any) -> None:
    model = trained()
    with pytest.raises(ModelError, match='Model: dtype must be "float32" or "float64", got'):
        horn.Model(model.network, model.parameters, dtype=dtype)
    with pytest.raises(JobError, match="Model: threads must be a whole number from 1, got -3"):
        horn.Model(model.network, model.parameters, threads=-3)


def test_data_and_models_are_freed_as_soon_as_the_user_drops_them(tmp_path: Any) -> None:
    """Nothing keeps the frames that call horn, and what their variables hold, in a circle, which
    only Python's collector of garbage would undo, some time.
    """

    def used() -> list[weakref.ref[Any]]:
        x, y = X.copy(), Y.copy()
        net = horn.Network(seed=1)
        net.input(4), net.layer(3, neuron=Scaled)
        net.output(2, activation="softmax", loss="cross_entropy")
        model = horn.train(horn.Job(net, (x, y), epochs=1), progress=False).model
        model.save(tmp_path / "model.horn")
        loaded = horn.Model.load(tmp_path / "model.horn")
        again = pickle.loads(pickle.dumps(loaded))
        assert again.evaluate(x, y) == loaded.evaluate(x, y) == model.evaluate(x, y)
        return [weakref.ref(thing) for thing in (x, y, model, loaded, again)]

    gc.disable()
    try:
        kept = [thing() for thing in used() if thing() is not None]
    finally:
        gc.enable()
    assert kept == []
