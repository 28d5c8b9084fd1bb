"""normalize=True: measured on the training data, applied wherever rows are read, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.data import Dataset
from horn.data.normalization import Normalization, measure
from horn.errors import CheckpointError, DataError, ModelError
from tests.support.combinations import share

RNG = np.random.default_rng(5)
RAW = RNG.normal(size=(200, 4)) * [1, 1000, 0.001, 0] + [5, -300, 3, 0.1]
BYTES = RNG.integers(0, 200, (200, 4)).astype(np.uint8)
Y = (RAW[:, 1] > -300).astype(int)


def network(activation: str = "softmax", n: int = 2, loss: str = "cross_entropy") -> horn.Network:
    net = horn.Network(seed=3)
    net.input(4)
    net.layer(5, activation="tanh")
    net.output(n, activation=activation, loss=loss)
    return net


def job(x: Any = RAW, **more: Any) -> horn.Job:
    more = {"epochs": 3, "optimizer": horn.SGD(0.3), "normalize": True, "dtype": "float64"} | more
    return horn.Job(network(), (x, Y), **more)


def by_hand(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    std = np.where(np.ptp(of, axis=0) == 0, 1.0, of.std(axis=0))
    return (x - of.mean(axis=0)) / std


@pytest.mark.cluster
@pytest.mark.parametrize(
    "settings, x",
    share(
        3,
        [{}, {"backend": "reference"}, {"backend": "python"}, {"tasks": 2}, {"groups": 2}],
        [RAW, BYTES, RAW.astype(np.float32)],
    ),
)
def test_features_are_normalized_wherever_it_computes(x: Any, settings: Any) -> None:
    """As if a person had done it before."""
    mine = job(x, validation=(x[:30], Y[:30]), test=(x[30:60], Y[30:60]), epochs=2)
    run = horn.train(mine, **settings)
    seen = x.astype(np.float64) * (1 / 255 if x.dtype == np.uint8 else 1)
    done = by_hand(seen, seen)
    hand = horn.train(job(done, normalize=False, validation=(done[:30], Y[:30]),
                          test=(done[30:60], Y[30:60]), epochs=2))  # fmt: skip
    for name, array in hand.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-8, atol=1e-10)
    for column in ("loss", "val_loss", "acc"):
        np.testing.assert_allclose(run.history[column], hand.history[column], rtol=1e-8)
    assert run.test == pytest.approx(hand.test, rel=1e-8)
    np.testing.assert_allclose(run.model.predict(x), hand.model.predict(done), rtol=1e-8)
    assert run.model.evaluate(x, Y) == pytest.approx(hand.model.evaluate(done, Y), rel=1e-8)


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
def test_times_in_seconds_keep_their_digits_in_single_precision(backend: str) -> None:
    """Doubles whose mean is far away: as float32 they are all alike, to 128 seconds."""
    x = np.column_stack([1.7e9 + 100.0 * RNG.random(60), RNG.normal(size=60)])
    net = horn.Network(seed=3)
    net.input(2)
    net.output(2, loss="squared_error", bias=False)
    alike = {f"{net.last.name}.weight": np.eye(2)}
    zeros = horn.Job(net, (x, np.zeros((60, 2))), horn.SGD(0.0), epochs=1, normalize=True,
                     dtype="float32", initial=alike)  # fmt: skip
    run = horn.train(zeros, backend=backend, threads=1)
    expected = by_hand(x, x)
    np.testing.assert_allclose(run.model.predict(x), expected, rtol=1e-5, atol=1e-6)
    assert run.history["loss"][-1] == pytest.approx(1.0, rel=1e-5)  # of two features of variance 1


def test_a_stream_of_times_in_seconds_keeps_their_digits() -> None:
    x = 1.7e9 + 100.0 * RNG.random((20, 3, 1))
    net = horn.Network(seed=3)
    net.input(1, steps=3)
    net.output(1, loss="squared_error", each_step=True)
    times = horn.Job(net, (x, np.zeros((20, 3, 1))), horn.SGD(0.1), epochs=1, normalize=True,
                     dtype="float32")  # fmt: skip
    model = horn.train(times, threads=1).model
    said = model.predict(x)
    assert len(np.unique(said)) > 50
    np.testing.assert_allclose(model.stream()(x[0]), said[0], rtol=1e-5, atol=1e-6)


def test_the_file_keeps_it(tmp_path: Path) -> None:
    model = horn.train(job()).model
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    assert model.normalization is not None and again.normalization is not None
    np.testing.assert_array_equal(again.normalization.mean, model.normalization.mean)
    np.testing.assert_array_equal(again.normalization.std, model.normalization.std)
    np.testing.assert_array_equal(again.predict(RAW), model.predict(RAW))
    np.testing.assert_allclose(model.activations(RAW, "layer2"), model.predict(RAW))


def test_an_autoencoder_compares_with_what_it_sees() -> None:
    mine = horn.Job(network("identity", 4, "squared_error"), RAW, target="input", normalize=True,
                    dtype="float64", epochs=2)  # fmt: skip
    done = horn.Job(network("identity", 4, "squared_error"), by_hand(RAW, RAW), target="input",
                    dtype="float64", epochs=2)  # fmt: skip
    for backend in ("kernels", "reference", "python"):
        found, expected = (horn.train(each, backend=backend).history["loss"]
                           for each in (mine, done))  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_held_out_part_is_not_measured() -> None:
    mine = job(validation=0.25)
    np.testing.assert_allclose(mine.data.normalization.mean, mine.data.x.mean(axis=0))
    assert mine.validation.normalization is mine.data.normalization
    assert not np.allclose(mine.data.normalization.mean, RAW.mean(axis=0), rtol=1e-9)


def test_what_goes_on_from_a_model_sees_as_the_model_saw(tmp_path: Path) -> None:
    model = horn.train(job()).model
    model.save(tmp_path / "m.horn")
    shifted = RAW + 1.0
    for initial in (model, tmp_path / "m.horn"):
        for normalize in (None, True):
            more = job(shifted, initial=initial, normalize=normalize)
            assert model.normalization is not None
            np.testing.assert_array_equal(more.data.normalization.mean, model.normalization.mean)
    assert job(shifted, initial=model, normalize=False).data.normalization is None


def test_numbers_that_are_infinity_to_a_network_are_refused_where_it_meets_them() -> None:
    far = RAW.copy()
    far[7, 2] = 1e300
    for more in ({"normalize": None}, {}):
        model = horn.train(job(epochs=1, dtype="float32", **more)).model
        for ask in (model.predict, lambda x, ask=model.evaluate: ask((x, Y))):
            with pytest.raises(DataError, match=r"x has 1e\+300 at row 7, column 2, .* divide"):
                ask(far)
    with pytest.raises(DataError, match=r"data: x has 1e\+300 at row 7, column 2, .* float32"):
        horn.train(job(far, epochs=1, normalize=None, dtype="float32"))
    with pytest.raises(DataError, match=r"normalize: the values of column 2 go from .* to 1e\+300"):
        job(far)
    model = horn.train(job(epochs=1, normalize=None)).model
    assert np.isfinite(model.predict(far)).all(), "it has float64"


@pytest.mark.parametrize("x", [RAW, BYTES], ids=["floats", "bytes"])
def test_measured_in_chunks_as_at_once(x: np.ndarray, monkeypatch: Any) -> None:
    from horn.data import normalization

    whole = measure(x, 1 / 3)
    monkeypatch.setattr(normalization, "CHUNK_VALUES", 28)
    found = measure(x, 1 / 3)
    np.testing.assert_allclose(found.mean, x.mean(axis=0) / 3, rtol=1e-12)
    std = np.where(np.ptp(x, axis=0) == 0, 3.0, x.std(axis=0)) / 3
    np.testing.assert_allclose(found.std, std, rtol=1e-10)
    np.testing.assert_allclose(whole.std, found.std, rtol=1e-10)


@pytest.mark.parametrize("kind, size", [(np.float32, 1e-40), (np.float64, 1e-310)])
def test_a_deviation_too_small_to_divide_by_divides_nothing(kind: Any, size: float) -> None:
    """The column was read as infinities."""
    x = np.array([[1, 1], [2, 2], [3, 3], [1, 1]]) * [size, 1.0]
    data = horn.data.as_dataset(x.astype(kind))
    data = data.with_fields(normalization=measure(data.x, data.scale))
    seen = data.read(np.arange(4), np.empty((4, 2), kind))
    assert (np.abs(seen[:, 0]) < 1e-30).all() and abs(seen[:, 1].mean()) < 1e-6


def test_resume_wants_the_same(tmp_path: Path) -> None:
    """The numbers are in the data, which are compared."""
    horn.train(job(epochs=1), checkpoints=tmp_path, checkpoint_every=5)
    whole = horn.train(job(epochs=3))
    resumed = horn.train(job(epochs=3), checkpoints=tmp_path, checkpoint_every=5, resume=True)
    np.testing.assert_array_equal(resumed.model.predict(RAW), whole.model.predict(RAW))
    with pytest.raises(CheckpointError, match="data.normalization is Normalization"):
        horn.train(job(normalize=None), checkpoints=tmp_path, checkpoint_every=5, resume=True)


@pytest.mark.parametrize("by", ["channel", True])
def test_channels_are_normalized_alike_in_pictures_of_another_size(by: Any) -> None:
    def begun(side: int, **how: Any) -> horn.Job:
        net = horn.Network(seed=3)
        net.input((side, side, 3))
        net.layer(connect=horn.Convolution(2, 3), name="maps")
        net.output(2, activation="softmax", loss="cross_entropy", name=f"head{side}")
        x = np.random.default_rng(side).normal(2, 3, (6, side, side, 3))
        return horn.Job(net, (x, np.arange(6) % 2), **how)

    small = begun(5, normalize=by)
    normal = small.data.normalization
    arrays = small.network.initial_parameters()
    model = horn.Model(small.network, arrays, normalization=normal)
    if by == "channel":
        found = begun(6, initial=model).data.normalization
        np.testing.assert_array_equal(found.mean, np.tile(normal.mean[:3], 36))
        np.testing.assert_array_equal(found.std, np.tile(normal.std[:3], 36))
    else:
        with pytest.raises(DataError, match="108 features per sample.* or normalize=False"):
            begun(6, initial=model)
    assert begun(6, initial=model, normalize=False).data.normalization is None


def test_mistakes_are_said() -> None:
    with pytest.raises(ModelError, match="True, \"channel\", False or None, got 'yes'"):
        job(normalize="yes")
    with pytest.raises(DataError, match="test: 3 features per sample, but the training data"):
        job(test=(RAW[:, :3], Y))
    model = horn.train(job(epochs=1)).model
    with pytest.raises(DataError, match="x: 3 features per sample, but this model learned from 4"):
        model.predict(RAW[:, :3])
    with pytest.raises(DataError, match="was to be normalized as data of 2"):
        Dataset(RAW, None, normalization=Normalization(np.zeros(2), np.ones(2)))
    with pytest.raises(DataError, match="std above 0; got"):
        Normalization(np.zeros(2), np.zeros(2))


# --- sequences

STEPS = 6
LENGTHS = np.array([6, 2, 5, 6, 1, 3, 4, 6, 2, 6, 5, 3])
WAVES = RNG.normal(size=(12, STEPS, 3)) * [1, 1000, 0] + [5, -300, 0.1]
UPS = RNG.integers(0, 2, (12, STEPS))
WAYS: dict[str, dict[str, Any]] = {
    "whole": {}, "ragged": {"lengths": LENGTHS}, "bytes": {"x": (WAVES % 200).astype(np.uint8)},
    "pieces": {"stateful": True, "truncate": 2},
}  # fmt: skip


def of_sequences(
    x: Any, lengths: Any = None, normalize: Any = True, **more: Any
) -> tuple[horn.Job, Any]:
    net = horn.Network(seed=3)
    hears = [net.input(3, steps=STEPS), horn.Delayed()]
    net.layer(4, activation="tanh", inputs=hears, name="memory")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    data: Any = (x, UPS)
    if lengths is not None:
        data = horn.data.sequences(x, UPS, lengths=lengths)
    more = {"epochs": 2, "batch_size": 4, "dtype": "float64"} | more
    return horn.Job(net, data, normalize=normalize, optimizer=horn.SGD(0.3), **more), data


@pytest.mark.parametrize("way", WAYS)
def test_of_sequences_features_are_of_all_their_steps(way: str, tmp_path: Path) -> None:
    """As if a person had done it before; what is behind the end of a sequence does not count."""
    given = dict(WAYS[way])
    x, lengths = given.pop("x", WAVES), given.get("lengths")
    seen = x.astype(np.float64) * (1 / 255 if x.dtype == np.uint8 else 1)
    valid = np.arange(STEPS) < np.full((12, 1), STEPS) if lengths is None else lengths[:, None]
    valid = valid if lengths is None else np.arange(STEPS) < valid
    if lengths is not None:
        x = np.where(valid[..., None], x, 1e9)
    asked = seen if lengths is not None else x
    done = by_hand(seen, seen[valid])
    backends = ("kernels", "reference", "python") if way == "whole" else ("kernels",)
    for backend in backends:
        mine, _ = of_sequences(x, **given)
        hand, _ = of_sequences(done, normalize=None, **given)
        run, other = horn.train(mine, backend=backend), horn.train(hand, backend=backend)
        np.testing.assert_allclose(run.history["loss"], other.history["loss"], rtol=1e-8)
        for name, array in other.model.parameters.items():
            np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-8, atol=1e-10)
    assert run.model.normalization.mean.shape == (3,)
    run.model.save(tmp_path / "m.horn")
    model = horn.Model.load(tmp_path / "m.horn", backend=backends[-1])
    near = {"rtol": 1e-8, "atol": 1e-10}
    both = (model, asked), (other.model, done)
    for answers in (
        lambda model, x: model.predict(x[:3]),
        lambda model, x: model.predict(np.concatenate([x[:2], x[2:4]], axis=1)),  # longer ones
        lambda model, x: model.stream()(x[3]),
        lambda model, x: model.record(x[:2], "memory")["memory"],
        lambda model, x: model.evaluate(x, UPS)["loss"],
    ):
        np.testing.assert_allclose(*(answers(*each) for each in both), **near)
    more, _ = of_sequences(x + 1.0 if x.dtype != np.uint8 else x, initial=model, **given)
    np.testing.assert_array_equal(more.data.normalization.mean, model.normalization.mean)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("settings", [{"tasks": 2}, {"groups": 2}])
def test_of_sequences_on_tasks_and_groups(settings: Any) -> None:
    one = horn.train(of_sequences(WAVES, LENGTHS)[0]).model
    found = horn.train(of_sequences(WAVES, LENGTHS)[0], **settings).model
    for name, array in one.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=1e-8, atol=1e-10)


def test_of_sequences_a_model_of_other_features_is_refused() -> None:
    model = horn.train(of_sequences(WAVES)[0]).model
    net = horn.Network()
    net.input(6, steps=3)
    net.layer(4, name="other")
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(horn.HornError, match="6 features in a step, but was to be normalized as d"):
        horn.Job(net, (WAVES.reshape(12, 3, 6), UPS[:, 0]), initial=model, normalize=True)


def test_the_channels_of_each_of_several_inputs() -> None:
    """It was said that the input had no channels."""
    rng = np.random.default_rng(0)
    net = horn.Network(seed=1)
    a, b, facts = (
        net.input((6, 6, 3), name="a"),
        net.input((4, 2), name="b"),
        net.input(3, name="c"),
    )
    maps = [net.layer(connect=horn.Convolution(2, 3), inputs=each) for each in (a, b)]
    net.output(2, activation="softmax", loss="cross_entropy", inputs=[*maps, facts])
    x = {"a": rng.normal(5, 9, (8, 6, 6, 3)), "b": rng.normal(2, 3, (8, 4, 2)),
         "c": rng.normal(7, 4, (8, 3))}  # fmt: skip
    by_hand = {
        name: (each - each.mean(axes)) / each.std(axes)
        for (name, each), axes in zip(x.items(), ((0, 1, 2), (0, 1), 0), strict=True)
    }
    y, settings = np.arange(8) % 2, {"epochs": 2, "dtype": "float64"}
    model = horn.train(horn.Job(net, (x, y), normalize="channel", **settings)).model
    hand = horn.train(horn.Job(net, (by_hand, y), **settings)).model
    np.testing.assert_allclose(model.predict(x), hand.predict(by_hand), rtol=1e-8)
    flat = horn.Network()
    both = [flat.input(3, name="c"), flat.input(2, name="d")]
    flat.output(2, activation="softmax", loss="cross_entropy", inputs=both)
    with pytest.raises(ModelError, match="needs an input with channels, as .* they are "):
        horn.Job(flat, ({"c": x["c"], "d": x["c"][:, :2]}, y), normalize="channel")


def of_two_inputs(side: int, names: str = "ab", **settings: Any) -> horn.Job:
    net = horn.Network(seed=1)
    channels = {"a": 2, "b": 1}
    heard = [net.input((side, side, channels[name]), name=name) for name in names]
    windows = {each: horn.Convolution(3, 3) for each in heard}
    net.layer(inputs=heard, connect=windows, name="maps")
    net.output(2, activation="softmax", loss="cross_entropy", name=f"of_{side}")
    rng = np.random.default_rng(side)
    x = {name: rng.normal(3, 5, (8, side, side, channels[name])) for name in names}
    return horn.Job(net, (x, np.arange(8) % 2), epochs=1, **settings)


@pytest.mark.parametrize("is_file", [True, False])
def test_channels_of_several_inputs_are_normalized_alike_in_another_size_or_order(
    is_file: bool, tmp_path: Path
) -> None:
    model = horn.train(of_two_inputs(5, normalize="channel")).model
    model.save(tmp_path / "m.horn")
    initial: Any = tmp_path / "m.horn" if is_file else model
    mean = model.normalization.mean
    begun = of_two_inputs(6, initial=initial)
    wanted = np.concatenate([np.tile(mean[:2], 36), np.tile(mean[50:51], 36)])
    np.testing.assert_array_equal(begun.data.normalization.mean, wanted)
    again = begun.with_settings(epochs=2)  # from what the job has
    np.testing.assert_array_equal(again.data.normalization.mean, wanted)
    turned = of_two_inputs(5, "ba", initial=initial).data.normalization
    np.testing.assert_array_equal(turned.mean, np.concatenate([mean[50:], mean[:50]]))
    assert "maps.weight.a" in begun.initial.taken
    assert horn.train(begun).iterations == 1


def test_several_inputs_of_another_size_are_told_to_begin_with_the_arrays_alone() -> None:
    model = horn.train(of_two_inputs(5, normalize=True)).model
    with pytest.raises(DataError, match=r"108 features per sample.*initial=model\.parameters"):
        of_two_inputs(6, initial=model)
    begun = of_two_inputs(6, initial=model.parameters, normalize="channel")
    assert begun.data.normalization is not None and len(begun.data.normalization.mean) == 108
    assert "maps.weight.a" in begun.initial.taken
