"""Sequences of any lengths as data: what is made of them, and what is refused."""

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest

import horn
from horn.data import in_steps, load, sequences
from horn.data.in_steps import of_steps
from horn.errors import DataError

RAGGED = [np.arange(6.0).reshape(3, 2), np.ones((1, 2)), np.full((2, 2), 7.0)]


def test_lists_are_filled_up_with_their_last_steps():
    data = sequences(RAGGED, [0, 1, 1])
    assert data.shape == (3, 2) and data.lengths.tolist() == [3, 1, 2]
    assert data.images[1].tolist() == [[1, 1]] * 3 and data.images[0].tolist() == RAGGED[0].tolist()
    assert data.y.tolist() == [0, 1, 1]
    assert sequences(RAGGED, steps=5).shape == (5, 2)
    assert sequences([[1, 2], [3]]).images[:, :, 0].tolist() == [[1, 2], [3, 3]]
    assert sequences(np.array([None, *RAGGED], object)[1:]).lengths.tolist() == [3, 1, 2]


def test_one_long_sequence_among_short_ones_is_warned_of(monkeypatch, caplog) -> None:
    short, long = [np.ones((2, 2))] * 30, np.zeros((40, 2))
    sequences([*short, long])
    assert not caplog.messages  # a little memory
    monkeypatch.setattr(in_steps, "MANY_BYTES", 10_000)
    sequences([*short, *short, np.zeros((10, 2))])
    assert not caplog.messages  # not many times as much
    sequences([*short, long])
    assert "as each is filled up to 40 steps: sequence 30 has 40; cut or split it" in caplog.text
    caplog.clear()
    horn.Job(_each_step(steps=60), ([*short, long[:3]], [np.zeros(2, int)] * 30 + [[0, 0, 0]]))
    assert "filled up to 60 steps: the network takes 60 steps, which may be fewer" in caplog.text


def test_lists_are_filled_up_in_the_memory_that_they_are_kept_in() -> None:
    short, long = [np.ones((2, 64))] * 30, np.zeros((400, 64))
    tracemalloc.start()
    data = sequences([*short, long], [*([np.zeros(2)] * 30), np.ones(400)])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.5 * data.x.nbytes
    assert data.images[0].min() == 1.0


def test_labels_and_targets_of_each_step():
    data = sequences(RAGGED, [np.array([0, 1, 0]), np.array([2]), np.array([1, 1])])
    assert data.y.tolist() == [[0, 1, 0], [2, 2, 2], [1, 1, 1]] and data.y.dtype == np.int64
    targets = [np.ones((3, 2)), np.zeros((1, 2)), np.ones((2, 2))]
    assert sequences(RAGGED, targets).y.shape == (3, 6)
    assert sequences(RAGGED, [[0.5, 1, 2], [3], [4, 5]]).y.tolist()[2] == [4, 5, 5]
    assert sequences(RAGGED, np.zeros((3, 4))).y.shape == (3, 4)  # four numbers of each sequence


@pytest.mark.parametrize(
    "labels", [list, tuple, np.array, lambda y: np.array(y, object), pd.Series]
)
def test_a_text_is_one_label_however_long(labels) -> None:
    net = horn.Network()
    net.output(2, inputs=net.input(2, steps=3), activation="softmax", loss="cross_entropy")
    data = horn.Job(net, data=(RAGGED, labels(["spam", "ham", "spam"]))).data
    assert data.classes == ("ham", "spam") and data.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("y", [[0, 1, 1], [[0, 1, 0], [2], [1, 1]]], ids=["each", "each step"])
def test_a_column_of_arrays_is_a_list_of_them(y: list) -> None:
    rows = range(7, 10)  # of a part of a table
    found = sequences(pd.Series(RAGGED, rows), pd.Series(y, rows))
    plain = sequences(RAGGED, y)
    assert found.lengths.tolist() == [3, 1, 2]
    np.testing.assert_array_equal(found.x, plain.x)
    np.testing.assert_array_equal(found.y, plain.y)
    net = horn.Network()
    net.output(3, inputs=net.input(2, steps=3), activation="softmax", loss="cross_entropy",
               each_step=isinstance(y[0], list))  # fmt: skip
    assert horn.Job(net, data=(pd.Series(RAGGED, rows), pd.Series(y, rows))).data.shape == (3, 2)
    model = horn.Model(net, net.initial_parameters())
    for one, other in zip(model.predict(pd.Series(RAGGED, rows)), model.predict(RAGGED),
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other)
    whole = pd.Series(RAGGED[:1] * 2, rows[:2])
    long = [np.ones((5, 2)), np.zeros((7, 2))]  # more steps than the network has
    for each in (long, [one[:5] for one in long]):
        for column in (pd.Series(each, rows[:2]), np.array([None, *each], object)[1:]):
            for one, other in zip(model.predict(column), model.predict(each), strict=True):
                np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.predict(whole), model.predict(RAGGED[:1] * 2))


def test_a_column_of_long_sequences_is_cut_into_pieces() -> None:
    long, y = [np.arange(12.0).reshape(6, 2), np.ones((6, 2))], np.zeros((2, 6), int)
    net = horn.Network()
    net.output(2, inputs=net.input(2, steps=3), activation="softmax", loss="cross_entropy",
               each_step=True)  # fmt: skip
    found = [horn.Job(net, (x, y), stateful=True).data for x in (long, pd.Series(long))]
    assert found[1].pieces == 2
    np.testing.assert_array_equal(found[1].x, found[0].x)


def test_a_table_may_have_a_column_of_any_name() -> None:
    table = pd.DataFrame({"dtype": [0.0, 1.0], "ndim": [2.0, 3.0]})
    net = horn.Network()
    net.output(1, inputs=net.input(2, steps=1), loss="squared_error")
    data = horn.Job(net, data=(table, np.zeros((2, 1)))).data
    assert data.x.tolist() == [[0, 2], [1, 3]]


def test_bytes_stay_bytes_and_whole_arrays_have_no_lengths():
    data = sequences([np.zeros((2, 3), np.uint8), np.zeros((1, 3), np.uint8)])
    assert data.x.dtype == np.uint8 and data.scale == 1 / 255
    assert sequences(np.zeros((4, 3, 2)), np.zeros(4, int)).lengths is None
    assert sequences(RAGGED[:1] * 2).lengths is None


def test_what_is_behind_the_lengths_is_not_read():
    x = np.full((2, 3, 1), np.nan)
    x[0], x[1, :2] = 1.0, 2.0
    data = sequences(x, np.array([[1, 0, 1], [1, 1, -100]]), lengths=[3, 2])
    assert data.images[1].ravel().tolist() == [2, 2, 2] and data.y[1].tolist() == [1, 1, 1]
    y = np.array([[0.5, 1, 2], [3, 4, np.nan]])
    data = sequences(x, y, lengths=[3, 2])
    assert of_steps(data, 3, (1,), {"out": (True, 1)}, "data").y[1].tolist() == [3, 4, 0]


@pytest.mark.parametrize("is_named", [False, True])
def test_an_answer_of_as_many_numbers_as_there_are_steps_is_read_whole(is_named: bool):
    """NaN in it was learned as 0.0: it was taken for what is behind the end of a sequence."""
    y = np.array([[0.5, 1, 2], [3, 4, np.nan]])
    given = {"out": y, "side": np.zeros(2, int)} if is_named else y
    data = sequences(np.zeros((2, 3, 1)), given, lengths=[3, 2])
    for each in (False, True):
        shapes = {"out": (each, 1 if each else 3)} | ({"side": (False, 2)} if is_named else {})
        if each:
            assert of_steps(data, 3, (1,), shapes, "data").y[1, :3].tolist() == [3, 4, 0]
        else:
            with pytest.raises(DataError, match="y has NaN at row 1, column 2, the only such"):
                of_steps(data, 3, (1,), shapes, "data")


def test_lengths_go_with_their_samples(tmp_path):
    rng = np.random.default_rng(0)
    x = [np.full((n, 1), n) for n in rng.integers(1, 9, 40)]
    data = sequences(x, np.arange(40))

    def agree(part):
        own = [one[0, 0] for one in part.images]
        assert part.lengths.tolist() == own and len(part) == len(part.y)

    for part in (*data.split(0.3, seed=2), data[3:20:2], data.take(5)):
        agree(part)
    np.savez(tmp_path / "a.npz", x=data.images, y=data.y, lengths=data.lengths)
    read = load(str(tmp_path / "a.npz"))
    agree(read)
    assert read.name == str(tmp_path / "a.npz")


def test_files_have_targets_of_each_step_for_several_outputs(tmp_path):
    rng = np.random.default_rng(0)
    x, tags, sizes = rng.normal(size=(4, 3, 2)), rng.integers(0, 2, (4, 3)), np.ones((4, 3, 2))
    np.savez(tmp_path / "a.npz", x=x, **{"y.tag": tags, "y.size": sizes})
    read, made = load(str(tmp_path / "a.npz")), sequences(x, {"size": sizes, "tag": tags})
    assert read.targets == made.targets and read.name == str(tmp_path / "a.npz")
    np.testing.assert_array_equal(read.y, made.y)


@pytest.mark.parametrize("x", [RAGGED, [one[:1] for one in RAGGED]], ids=["ragged", "equal"])
def test_a_file_as_the_docs_write_it_is_the_dataset(x: list, tmp_path) -> None:
    """Lengths that are None, too, which NumPy writes as an object; text labels, of each step."""
    path = str(tmp_path / "w.npz")
    for y in ([0, 1, 1], ["b", "a", "a"], [["b", "a", "b"][: len(one)] for one in x]):
        data = sequences(x, y)
        y = data.y if data.classes is None else np.array(data.classes)[data.y]
        np.savez(path, x=data.images, y=y, lengths=data.lengths)
        found = load(path)
        assert (found.shape, found.classes) == (data.shape, data.classes)
        for one in ("x", "y", "lengths"):
            np.testing.assert_array_equal(getattr(found, one), getattr(data, one))
    np.savez(path, x=data.images, lengths=np.array([3, 1, None], object))
    with pytest.raises(DataError, match="'lengths' holds Python objects, which horn never unpick"):
        load(path)


@pytest.mark.parametrize("spec", ["t.npz", "x.npy,y.npy", "both.npz"])
def test_files_without_lengths_have_text_labels_of_each_step(spec: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).normal(size=(4, 3, 2)), np.full((4, 3), "neg")
    y[1:, 1] = "pos"
    np.savez("t.npz", x=x, y=y)
    np.savez("both.npz", x=x, **{"y.mood": y, "y.size": x.sum(axis=2, keepdims=True)})
    np.save("x.npy", x)
    np.save("y.npy", y)
    data = load(spec)
    assert data.name == spec and data.lengths is None and data.shape == (3, 2)
    data = data if spec != "both.npz" else data.of_output("mood")
    assert data.classes == ("neg", "pos") and data.y.tolist() == (y == "pos").astype(int).tolist()
    assert load(spec, labels=False).y is None


def test_an_iterator_is_the_list_of_its_sequences():
    made, listed = sequences(each for each in RAGGED), sequences(RAGGED, steps=np.int64(3))
    np.testing.assert_array_equal(made.x, listed.x)
    assert made.lengths.tolist() == [3, 1, 2] and type(listed.shape[0]) is int


def test_a_sequence_without_steps_is_told_alone_too():
    net = horn.Network()
    net.input(2, steps=np.int64(5))
    net.output(1, loss="squared_error")
    assert type(net.steps) is int
    model = horn.Model(net, net.initial_parameters())
    with pytest.raises(DataError, match="^x: the sequences have no steps; leave out those that"):
        model.predict([np.zeros((0, 2))])


def test_networks_with_more_steps_take_them():
    net = horn.Network()
    net.input(2, steps=5)
    net.output(1, loss="squared_error", each_step=True)
    targets = [np.ones(3), np.zeros(1), np.ones(2)]
    for data in ((RAGGED, targets), sequences(RAGGED, targets)):
        job = horn.Job(net, data)
        assert job.data.shape == (5, 2) and job.data.lengths.tolist() == [3, 1, 2]
        assert job.data.y.shape == (3, 5)
    short = horn.Job(net, (np.zeros((4, 3, 2)), np.zeros((4, 3))))
    assert short.data.lengths.tolist() == [3] * 4


@pytest.mark.parametrize(
    ("args", "how", "match"),
    [
        ((np.zeros((2, 3, 1)),), {"lengths": [3, 4]}, r"lengths\[1\] is 4, but the array"),
        ((np.zeros((2, 3, 1)),), {"lengths": [0, 3]}, r"lengths\[0\] is 0.*leave the sequence out"),
        ((np.zeros((2, 3, 1)),), {"lengths": [3]}, r"\(2,\) whole numbers are expected"),
        ((np.zeros((2, 3, 1)),), {"lengths": [1.5, 2]}, "whole numbers are expected"),
        ((RAGGED,), {"lengths": [3, 1, 2]}, "leave lengths out"),
        (([np.zeros((2, 3)), np.zeros((0, 3))],), {}, r"x\[1\] is empty; leave the sequence out"),
        (([np.zeros((2, 3)), np.zeros((2, 4))],), {}, r"x\[1\] has 4 numbers per step, but x\[0\]"),
        (([np.zeros((2, 3)), np.zeros(())],), {}, r"x\[1\] has shape \(\)"),
        (([np.zeros((2, 3, 1)), np.zeros((2, 1, 3))],), {}, r"of x\[1\] has the shape \(1, 3\)"),
        (([["a"], ["b", "c"]],), {}, r"x\[0\] holds text"),
        (([],), {}, "there are no sequences; pass at least one"),
        ((RAGGED,), {"steps": True}, "steps is how many there are at most, from 1; got True"),
        ((RAGGED,), {"steps": np.int64(2)}, "sequence 0 has 3 steps, but steps=2"),
        ((RAGGED,), {"steps": 2}, "sequence 0 has 3 steps, but steps=2"),
        ((RAGGED, [0, 1]), {}, "3 sequences, but 2 in y"),
        ((RAGGED, [np.zeros(3), np.zeros(2), np.zeros(2)]), {}, r"y\[1\] has 2 entries"),
        ((np.zeros(3),), {}, r"\(n, steps, features\) is expected"),
    ],
)  # fmt: skip
def test_what_is_refused(args, how, match):
    with pytest.raises(DataError, match=match):
        sequences(*args, **how)


def test_answers_that_do_not_fit_the_network():
    def net(each, steps=3):
        made = horn.Network()
        made.input(2, steps=steps)
        made.output(3, activation="softmax", loss="cross_entropy", each_step=each)
        return made

    of_steps = [np.array([0, 1, 0]), np.array([2]), np.array([1, 1])]
    for data in ((RAGGED, of_steps), sequences(RAGGED, of_steps)):
        with pytest.raises(DataError, match="answers by its last step"):
            horn.Job(net(False), data).check_data()
    for data in ((RAGGED, [0, 1, 2]), sequences(RAGGED, [0, 1, 2])):
        with pytest.raises(DataError, match="each step is asked|of 3 steps is asked"):
            horn.Job(net(True), data).check_data()
    with pytest.raises(DataError, match=r"x\[0\] is the longest.*let the network take more"):
        horn.Job(net(False, 2), (RAGGED, [0, 1, 2]))
    with pytest.raises(DataError, match="longest of the sequences has 3 steps"):
        horn.Job(net(False, 2), sequences(RAGGED, [0, 1, 2]))
    with pytest.raises(DataError, match=r"lengths\[1\] is 9"):
        sequences(RAGGED).with_fields(lengths=np.array([3, 9, 1]))


def frames(shape: tuple[int, ...] = (4, 4, 2)) -> horn.Network:
    net = horn.Network(seed=1)
    seen = net.input(shape, steps=5)
    maps = net.layer(connect=horn.Convolution(channels=3, kernel=3), activation="relu")
    net.layer(8, activation="tanh", inputs=[maps, horn.Delayed()])
    net.output(3, activation="softmax", loss="cross_entropy")
    assert seen.shape == shape
    return net


@pytest.mark.parametrize("each", [False, True])
def test_sequences_of_one_step_are_as_many_samples(each: bool, tmp_path) -> None:
    """A dataset of them was answered as one sequence, whose steps they were."""
    net = horn.Network(seed=1)
    heard = net.layer(3, inputs=[net.input(2, steps=4), horn.Delayed()], activation="tanh")
    net.output(2, inputs=heard, activation="softmax", loss="cross_entropy", each_step=each)
    model = horn.Model(net, net.initial_parameters())
    x, y = np.random.default_rng(0).normal(size=(5, 1, 2)), np.array([0, 1, 1, 0, 1])
    y = y[:, None] if each else y
    np.savez(tmp_path / "one.npz", x=x, y=y)
    for data in (horn.data.sequences(list(x), list(y)), load(str(tmp_path / "one.npz"))):
        np.testing.assert_array_equal(model.predict(data), model.predict(x))
        assert not model.is_one_sequence(data)
        assert model.evaluate(data) == model.evaluate(x, y)
    if each:
        with pytest.raises(DataError, match="nothing goes on from piece to piece: 1 steps each"):
            horn.Job(net, horn.data.sequences(list(x), list(y)), stateful=True)


@pytest.mark.parametrize("is_list", [False, True])
def test_a_step_may_be_a_picture(is_list: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 5, 4, 4, 2)).astype("float32"), rng.integers(0, 3, 20)
    lengths = rng.integers(1, 6, 20)
    pictures = [row[:n] for row, n in zip(x, lengths, strict=True)] if is_list else x
    flat = [row.reshape(len(row), 32) for row in pictures]
    plain = flat if is_list else np.array(flat)
    one, other = (
        horn.train(horn.Job(frames(), (given, y), batch_size=5, epochs=2)).model
        for given in (pictures, plain)
    )
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(array, other.parameters[name])
    np.testing.assert_array_equal(one.predict(pictures), other.predict(plain))
    assert one.evaluate(pictures, y) == other.evaluate(plain, y)
    step = one.stream(), other.stream()
    np.testing.assert_array_equal(step[0](x[0]), step[1](x[0].reshape(5, 32)))
    np.testing.assert_array_equal(step[0](x[0, 0]), step[1](x[0, 0].ravel()))


def films() -> horn.Model:
    """Of four steps, each of which is answered."""
    net = horn.Network(seed=1)
    seen = net.layer(3, inputs=[net.input((5, 4, 2), steps=4), horn.Delayed()], activation="tanh")
    net.output(2, inputs=seen, loss="squared_error", each_step=True)
    return horn.Model(net, net.initial_parameters())


FILMS = np.random.default_rng(0).standard_normal((2, 9, 5, 4, 2)).astype("float32")


def in_rows(x: Any) -> Any:
    if isinstance(x, list):
        return [in_rows(one) for one in x]
    return x.reshape(*x.shape[:-3], 40)


@pytest.mark.parametrize("x", [
    FILMS[0], FILMS[0, :4], FILMS[0, :3], FILMS[:1], FILMS, FILMS[:, :3], [FILMS[0]],
    [FILMS[0], FILMS[1, :2]], [FILMS[0, :3], FILMS[1, :2]], list(FILMS), list(FILMS[0]),
])  # fmt: skip
def test_pictures_are_answered_as_rows_of_numbers_are(x: Any) -> None:
    """One sequence and several, also where they are longer than the network's."""
    model = films()
    for ask in (
        model.predict,
        lambda x: model.activations(x, "layer1"),
        lambda x: model.record(x)["layer1"],
    ):
        found, expected = ask(x), ask(in_rows(x))
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_steps_of_one_row_are_one_sequence() -> None:
    """(k, 1, c) of an input (1, c) was k sequences of one step, which heard nothing late."""
    net = horn.Network(seed=2)
    x = net.input((1, 4), steps=3)
    late = {"x": x, "late": horn.Delayed(x)}
    net.layer(connect=horn.Convolution(2, 1), inputs=late, name="a")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    model = horn.Model(net, net.initial_parameters())
    one = FILMS[0, :3, 0, :1].reshape(3, 1, 2).repeat(2, axis=2)
    expected = model.predict(one[None])[0]
    assert model.is_one_sequence(one) and not model.is_one_sequence(one[:, None])
    np.testing.assert_array_equal(model.predict(one), expected)
    np.testing.assert_allclose(model.stream()(one), expected, rtol=1e-6)
    np.testing.assert_array_equal(model.record(one, "layer2")["layer2"], expected)
    alone = model.activations(one[None], "a")[0]
    for found in (model.activations(one, "a"), model.predict(one, layer="a")):
        np.testing.assert_array_equal(found, alone)
    steps = one[:, None]  # as sequences of one step each
    for layer in ("a", None):
        of_each = [model.predict(step[None], layer=layer)[0] for step in steps]
        np.testing.assert_allclose(model.predict(steps, layer=layer), of_each, rtol=1e-6)
    y, jobs = np.array([0, 1, 1, 0, 1, 0]), []
    for given in (np.concatenate([one, one]), np.concatenate([one, one])[None]):
        targets = y if given.ndim == 3 else y[None]
        how = {"stateful": True, "batch_size": 1, "epochs": 1}
        jobs.append(horn.train(horn.Job(net, (given, targets), **how)).history["loss"])
    assert jobs[0] == jobs[1]


@pytest.mark.parametrize("x", [FILMS[0], FILMS[0, :3], FILMS, FILMS[:, :3]])
def test_pictures_are_judged_as_rows_of_numbers_are(x: np.ndarray) -> None:
    model, y = films(), np.ones((*x.shape[:-3], 2))
    assert model.evaluate(x, y) == model.evaluate(in_rows(x), y)


@pytest.mark.parametrize("x", [FILMS[0], FILMS])
def test_a_stateful_job_takes_pictures(x: np.ndarray) -> None:
    network, y = films().network, np.ones((*x.shape[:-3], 2))
    one, other = (
        horn.train(horn.Job(network, (given, y), stateful=True, batch_size=1, epochs=1))
        for given in (x, in_rows(x))
    )
    assert one.history["loss"] == other.history["loss"]


def test_pictures_of_different_numbers_are_sequences(tmp_path) -> None:
    x, model = [FILMS[0, :3], FILMS[1, :2]], films()
    data = sequences(x, [np.ones((3, 2)), np.ones((2, 2))])
    assert data.shape == (3, 40) and data.lengths.tolist() == [3, 2]
    np.testing.assert_array_equal(data.images[0], FILMS[0, :3].reshape(3, 40))
    for found, expected in zip(model.predict(data), model.predict(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.savez(tmp_path / "films.npz", x=FILMS[:, :3], y=np.ones((2, 3, 2)), lengths=[3, 2])
    assert model.evaluate(load(str(tmp_path / "films.npz"))) == model.evaluate(data)


@pytest.mark.parametrize("x", [FILMS[0], FILMS[:, :4], FILMS[:, :3]])
def test_files_hold_pictures(x: np.ndarray, tmp_path) -> None:
    np.save(tmp_path / "x.npy", x)
    data, model = load(str(tmp_path / "x.npy")), films()
    np.testing.assert_array_equal(model.predict(data), model.predict(x))
    assert model.is_one_sequence(data) == (x.ndim == 4)
    if x.ndim == 4:
        np.testing.assert_array_equal(model.stream()(data), model.stream()(x))
    else:
        said = r"x has shape \(2, \d, 5, 4, 2\), but a step has 40 .* shape \(5, 4, 2\)"
        with pytest.raises(DataError, match=said):
            model.stream()(data)


def test_no_sequences_are_called_so() -> None:
    net = horn.Network(seed=1)
    net.output(1, inputs=net.input(1, steps=4), loss="squared_error", each_step=True)
    model = horn.Model(net, net.initial_parameters())
    for ask in (model.predict, model.record, lambda x: model.evaluate(x, [])):
        with pytest.raises(DataError, match="there are no sequences; pass at least one"):
            ask([])


def test_pictures_with_channels_first_are_refused(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((9, 2, 5, 4)))
    with pytest.raises(
        DataError, match=r"sample has the shape \(2, 5, 4\), .*channels last; write"
    ):
        films().stream()(load(str(tmp_path / "x.npy")))
    with pytest.raises(DataError, match=r"x has shape \(9, 2, 5, 4\), but"):
        films().predict(np.zeros((9, 2, 5, 4)))
    for ask in (films().predict, lambda x: horn.Job(films().network, (x, [np.ones(2)] * 2))):
        for steps in (2, 9):
            each = [np.zeros((steps, 2, 5, 4)), np.zeros((1, 2, 5, 4))]
            with pytest.raises(DataError, match=r"sequence is \(steps, 5, 4, 2\), or .*, 40\)"):
                ask(each)
    x = np.zeros((6, 5, 2, 4, 4), "float32")
    with pytest.raises(DataError, match=r"pass 32 features in the shape \(4, 4, 2\) at each step"):
        horn.Job(frames(), (x, np.zeros(6, int)))


def test_one_step_of_an_input_with_one_row_is_a_step_as_before() -> None:
    net = horn.Network(seed=1)
    net.layer(3, inputs=[net.input((1, 5), steps=2), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy")
    x, y = np.zeros((4, 2, 5), "float32"), np.array([0, 1, 0, 1])
    stream = horn.train(horn.Job(net, (x, y), epochs=1)).model.stream()
    assert stream(x[0, 0]).shape == (2,) and stream(x[0, :1]).shape == (1, 2)


def each_answered() -> horn.Model:
    net = horn.Network(seed=1)
    heard = net.layer(3, inputs=[net.input(2, steps=4), horn.Delayed()], activation="tanh")
    net.output(2, inputs=heard, activation="softmax", loss="cross_entropy", each_step=True)
    return horn.Model(net, net.initial_parameters())


@pytest.mark.parametrize(("shape", "said"), [
    ((5, 4, 3), "a step has 3 features, but a step of net.input.2, steps=4. has 2"),
    ((5, 9, 3), "a step has 3 features, but"),
    ((5, 3), "a row has 3 features, but a step of net.input.2, steps=4. has 2; pass as many"),
])  # fmt: skip
def test_the_width_of_a_step_is_told(shape: tuple[int, ...], said: str, tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.ones(shape))
    data = load(str(tmp_path / "x.npy"))
    for ask in (each_answered().predict, each_answered().evaluate):
        with pytest.raises(DataError, match=f"x.npy: {said}"):
            ask(data)


@pytest.mark.parametrize(("steps", "y", "said"), [
    (7, (3, 5), r"y has shape \(3, 5\), but each of 7 steps is asked: labels \(3, 7\), or"),
    (8, (3,), r"y has shape \(3,\), but each of 8 steps is asked"),
    (4, (3, 7, 2), "y has 7 steps, but x 4; give an entry for each step"),
    (7, (3, 4, 2), "y has 4 steps, but x 7"),
])  # fmt: skip
def test_answers_of_other_steps_are_told_with_the_file(steps, y, said, tmp_path, monkeypatch):
    """They were raw errors, or told shapes that nobody gave; or what was too long was cut off."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((3, steps, 2)))
    np.save("y.npy", np.zeros(y, int if len(y) == 1 else float))
    with pytest.raises(DataError, match=f"^x.npy,y.npy: {said}"):
        each_answered().evaluate(load("x.npy,y.npy"))


def test_a_file_of_sequences_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("w.npz", x=np.ones((3, 7, 2)), lengths=[1, 11, 2])
    with pytest.raises(DataError, match=r"^w.npz: lengths\[1\] is 11"):
        load("w.npz")
    np.savez("w.npz", x=np.ones((3, 7, 2)), y=np.zeros((3, 7), int), lengths=[1, 7, 2])
    with pytest.raises(DataError, match="^w.npz: the longest of the sequences has 7 steps"):
        each_answered().evaluate(load("w.npz"))


@pytest.mark.parametrize("is_list", [True, False])
def test_labels_of_steps_that_are_floats_are_told_to_be_whole_numbers(is_list: bool) -> None:
    x, y = np.zeros((3, 4, 2)), np.zeros((3, 4))
    missing = y.copy()
    missing[1, 2] = np.nan
    said = "y is float64 of shape .* pass labels as whole numbers, y.astype.int., of a list"
    for given, match in ((y, said), (missing, "y has NaN at row 1, step 2, which is no label")):
        data = ([*x, x[0, :1]], [*given, given[0, :1]]) if is_list else (x, given)
        with pytest.raises(DataError, match=match):
            horn.Job(_each_step(steps=4), data)
    with pytest.raises(DataError, match=said):  # in pieces
        horn.Job(_each_step(steps=2), (x[0], y[0]), stateful=True)


def _each_step(steps: int) -> horn.Network:
    net = horn.Network(seed=1)
    net.layer(3, activation="tanh", inputs=[net.input(2, steps=steps), horn.Delayed()])
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    return net
