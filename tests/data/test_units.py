"""What one unit of x is worth: by what the user gave, not by what it is stored as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import DataError

N = 4
TRUTH = np.ones((N, 2), bool)
BYTES = np.full((N, 2), 255, np.uint8)
Y = np.zeros((N, 1))


def summing(steps: int | None = None) -> horn.Network:
    """A network that answers the sum of a sample's numbers, or that of the last step."""
    net = horn.Network()
    net.input(2, steps=steps)
    net.output(1, bias=False, init="ones", loss="squared_error")
    return net


def model_of(x: Any, steps: int | None = None) -> horn.Model:
    data = x if isinstance(x, horn.data.Dataset) else (x, Y)
    job = horn.Job(summing(steps), data, horn.SGD(0.0), epochs=1)
    return horn.train(job, progress=False).model


@pytest.fixture(scope="module")
def models() -> dict[str, horn.Model]:
    """Models that learned from bytes, from floating-point numbers, and from truth values."""
    return {"bytes": model_of(BYTES), "floats": model_of(BYTES * 1.0), "truth": model_of(TRUTH)}


@pytest.mark.parametrize("learned", ["bytes", "floats", "truth"])
def test_truth_values_count_one_whatever_a_model_learned_from(models, learned, tmp_path):
    model = models[learned]
    stream = horn.data.Stream(lambda: iter([([True, True], [0.0])] * N), samples=N)
    np.save(tmp_path / "x.npy", TRUTH)
    np.savez(tmp_path / "rows.npz", x=TRUTH)
    files = [horn.data.load(str(tmp_path / name)) for name in ("x.npy", "rows.npz")]
    for x in (TRUTH, TRUTH.tolist(), list(TRUTH), stream, *files):
        np.testing.assert_array_equal(model.predict(x), np.full((N, 1), 2.0))
    np.testing.assert_array_equal(model.activations(TRUTH, "layer1"), np.full((N, 1), 2.0))
    assert model.evaluate(TRUTH, Y)["loss"] == 2.0  # half of 2 squared
    # bytes are what they were worth when the model learned; of truth values, one
    expected = {"bytes": 2.0, "floats": 2.0, "truth": 510.0}[learned]
    np.testing.assert_array_equal(model.predict(BYTES), np.full((N, 1), np.float32(expected)))


@pytest.mark.parametrize("x", [BYTES, BYTES * 1.0], ids=["bytes", "floats"])
def test_truth_values_of_sequences_count_one(x):
    model = model_of(x[:, None].repeat(3, axis=1), steps=3)
    flags = [np.ones((3, 2), bool), np.ones((2, 2), bool)]
    for given in (flags, np.ones((2, 3, 2), bool)):
        np.testing.assert_array_equal(model.predict(given), [[2.0], [2.0]])
    assert model.predict(np.ones((5, 2), bool)) == [2.0]  # one, in pieces
    assert horn.data.sequences(flags).scale == 1.0
    assert model.stream()([True, True]) == [2.0]


def test_a_stream_of_truth_values_counts_one_where_it_trains_and_validates():
    def truth() -> Any:
        return iter([([True, True], [0.0])] * N)

    held = horn.data.Stream(truth, samples=N)
    job = horn.Job(
        summing(), horn.data.Stream(truth, samples=N), horn.SGD(0.0), epochs=1, validation=held
    )
    [row] = horn.train(job, progress=False).history.rows
    assert row["loss"] == row["val_loss"] == 2.0
    with pytest.raises(DataError, match="uint8 .1, 2., worth 0.00392157 each, and y .*one kind"):
        horn.data.Stream(lambda: iter([(TRUTH[:1], Y[:1]), (BYTES[:1], Y[:1])]), samples=2).whole()


@pytest.mark.parametrize("other", [bool, float, np.int16])
def test_bytes_beside_others_in_a_list_are_refused(models, other):
    ragged = [np.ones((3, 2), np.uint8), np.ones((2, 2), other)]
    for ask in (
        lambda: horn.data.sequences(ragged),
        lambda: horn.Job(summing(steps=3), (ragged, Y[:2])),
        lambda: models["floats"].predict([*BYTES, np.ones(2, other)]),
    ):
        with pytest.raises(DataError, match=r"list x are bytes \(uint8\), which count 1/255 each"):
            ask()


def test_validation_data_count_as_the_bytes_of_the_training_data():
    data = horn.data.as_dataset((BYTES, Y), scale=1.0)
    job = horn.Job(summing(), data, validation=(BYTES, Y), test=(TRUTH, Y))
    assert job.validation.scale == job.test.scale == 1.0
    job = horn.Job(summing(), (BYTES, Y), validation=(TRUTH, Y))
    assert (job.data.scale, job.validation.scale) == (1 / 255, 1.0)


@pytest.mark.parametrize("learned", ["bytes", "floats"])
def test_the_numbers_of_a_table_are_themselves_whatever_stands_beside(models, learned):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.full((N, 2), 100, np.uint8), columns=["a", "b"])
    model = models[learned]
    for x, expected in (
        (frame, 200),
        (frame.astype({"b": "int16"}), 200),
        (frame.astype({"b": "UInt8"}), 200),
        (frame.assign(b=True), 101),
        (frame.astype(bool), 2),
    ):
        np.testing.assert_array_equal(model.predict(x), np.full((N, 1), expected))
    assert model_of(frame).predict(frame[:1]) == [[200.0]]
    assert model_of(frame).predict(frame.to_numpy()[:1]) == [[200.0]]
    heard = model_of(BYTES[:, None].repeat(3, axis=1), steps=3)
    np.testing.assert_array_equal(heard.predict([frame[:3], frame[:2]]), [[200.0], [200.0]])
    assert heard.stream()(frame[:1]) == [[200.0]]
    assert heard.stream()(frame.iloc[0]) == [200.0]


def test_a_model_that_learned_from_the_bytes_of_a_table_at_1_255_reads_them_so(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(BYTES, columns=["a", "b"])
    older = horn.data.Dataset(BYTES, Y, 1 / 255, feature_names=("a", "b"))  # as files have it
    path = tmp_path / "older.horn"
    model_of(older).save(path)
    assert horn.Model.load(path).predict(frame[:1]) == [[2.0]]


@pytest.mark.parametrize("learned", ["bytes", "floats", "truth"])
def test_a_scale_that_somebody_said_holds(models, learned, caplog):
    said = horn.data.Dataset(BYTES, Y, scale=0.5)
    np.testing.assert_array_equal(models[learned].predict(said), np.full((N, 1), 255.0))
    assert models[learned].evaluate(said)["loss"] == 255.0**2 / 2


def test_a_said_scale_that_is_another_than_the_training_data_had_is_told(caplog):
    model_of(BYTES).predict(horn.data.Dataset(BYTES, Y, scale=0.5))
    assert "has numbers up to 127.5, but the bytes of the training data count" in caplog.text
    caplog.clear()
    model_of(horn.data.Dataset(BYTES, Y)).predict(horn.data.Dataset(BYTES, Y, scale=1 / 255))
    assert "bytes count 0.00392157 each, 1 at most, but the training data have" in caplog.text


def test_shards_of_bytes_beside_truth_values_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=TRUTH, y=Y)
    np.savez(tmp_path / "b.npz", x=BYTES, y=Y)
    with pytest.raises(DataError, match=r"b.npz: x is uint8, worth 0.00392157 each, but .*a.npz"):
        horn.data.load(str(tmp_path))
