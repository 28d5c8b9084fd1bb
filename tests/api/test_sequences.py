"""Models of sequences, asked in every way, answer alike."""

import copy
import datetime
import pickle
import tracemalloc

import numpy as np
import pytest

import horn
from horn.backends.kernels import Runner
from horn.errors import DataError, ModelError
from horn.math import tanh

STEPS = 6


class Counting(horn.Neuron):
    """Knows how many updates there were."""

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(tanh(z) + 0.01 * self.iteration)


def network(each_step=True, features=2, outputs=2):
    net = horn.Network(seed=3)
    x = net.input(features, steps=STEPS)
    net.layer(3, neuron=Counting, inputs=[x, horn.Delayed()], name="memory")
    net.output(outputs, activation="softmax", loss="cross_entropy", each_step=each_step)
    return net


def sequences(rng, lengths=(3, 6, 2, 5), features=2):
    x = [rng.normal(size=(n, features)) for n in lengths]
    return x, [(each[:, 0] > 0).astype(int) for each in x]


def trained(net, data, **how):
    job = horn.Job(net, data, iterations=5, batch_size=2, dtype="float64", **how)
    return horn.train(job, progress=False).model


def test_a_part_of_a_model_knows_how_many_updates_there_were(rng):
    x, y = sequences(rng, (6, 6, 6, 6))
    model = trained(network(), (np.array(x), np.array(y)))
    found = model.record(x)["memory"]  # of a row at a time, whose products may round otherwise
    np.testing.assert_allclose(model.activations(x, "memory"), found, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(x, layer="layer2"), model.predict(x))


def test_a_tuple_of_sequences_is_a_list_of_them(rng):
    x, y = sequences(rng)
    model = trained(network(), (tuple(x), y))
    for one, other in zip(model.predict(tuple(x)), model.predict(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_steps_of_one_sequence_are_no_sequences_of_one_step(rng):
    x, y = sequences(rng, features=1)
    with pytest.raises(DataError, match=r"x\[None\] if it is one sequence of 6 steps, x\[:, :, No"):
        horn.Job(network(False, 1), (x[1], y[1]))
    each = horn.Job(network(False, 1), (x[1][:, :, None], y[1]))
    assert len(each.data) == 6 and (each.data.lengths == 1).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_truth_values_and_dates_of_each_step_are_labels(rng, outputs):
    x, y = sequences(rng)
    net = network(outputs=2)
    if outputs == 1:
        net = horn.Network(seed=1)
        net.input(2, steps=STEPS)
        net.output(1, activation="sigmoid", loss="binary_cross_entropy", each_step=True)
    found = trained(net, (x, [each > 0 for each in y]))
    assert found.classes == (False, True)
    assert all(set(each.tolist()) <= {True, False} for each in found.predict(x, labels=True))
    days = np.array(["2026-01-01", "2026-01-02"], "datetime64[D]")
    found = trained(network(), (np.array([x[1]] * 2), days[np.array([y[1]] * 2)]))
    assert found.classes == (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2))


def test_columns_of_sequences_come_in_the_order_that_was_learned(rng):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rng.normal(size=(24, 2)), columns=["heat", "wind"])
    other, y = table[["wind", "heat"]], (table.heat > 0).astype(int).to_numpy()
    stateful = {"stateful": True, "truncate": STEPS}
    net = network()
    job = horn.Job(net, (table, y), iterations=2, batch_size=1, dtype="float64", **stateful)
    model = horn.train(job, progress=False).model
    assert model.feature_names == ("heat", "wind")
    order = "another order, 'wind' where 'heat' was"
    for asked in (model.predict, model.record, model.stream(), lambda x: model.evaluate(x, y)):
        asked(table)
        with pytest.raises(DataError, match=order):
            asked(other)
    with pytest.raises(DataError, match=order):
        horn.Job(network(), (table, y), validation=(other, y), batch_size=1, **stateful)
    # a list of tables
    each = [table[:6], table[6:11]]
    listed = trained(network(), (each, [y[:6], y[6:11]]))
    assert listed.feature_names == ("heat", "wind")
    with pytest.raises(DataError, match=order):
        listed.predict([other[:6], other[6:11]])
    with pytest.raises(DataError, match=r"x\[1\] has the columns 'wind', 'heat', but x\[0\]"):
        horn.Job(network(), ([table[:6], other[6:11]], [y[:6], y[6:11]]))


def test_what_a_text_is_continued_with_is_checked(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("she sells sea shells " * 20)
    text = horn.data.text(path, steps=5)
    net = horn.Network(seed=1)
    x = net.input(text.shape[1], steps=5)
    net.layer(4, activation="tanh", inputs=[x, horn.Delayed()])
    net.output(text.shape[1], activation="softmax", loss="cross_entropy", each_step=True)
    writer = horn.train(horn.Job(net, text, iterations=1, batch_size=4), progress=False).model
    assert writer.generate("she", 4, seed=np.int64(3)) == writer.generate("she", 4, seed=3)
    for seed in (-1, "a", 0.5):
        with pytest.raises(DataError, match="seed is a whole number from 0"):
            writer.generate("she", 4, seed=seed)
    with pytest.raises(DataError, match="temperature is from 0"):
        writer.generate("she", 4, temperature="hot")


def test_pictures_of_sequences(rng, tmp_path):
    plot = pytest.importorskip("horn.plot")
    pytest.importorskip("matplotlib")
    x, y = sequences(rng)
    model = trained(network(), (x, y))
    counts = plot.confusion(model, (x, y), path=tmp_path / "a.png").counts
    taken = np.concatenate(model.predict(x, labels=True))
    wanted = np.zeros((2, 2), int)
    np.add.at(wanted, (np.concatenate(y), taken), 1)
    np.testing.assert_array_equal(counts, wanted)
    long = rng.normal(size=(20, 2))
    assert plot.raster(model, long, "memory", path=tmp_path / "b.png").sent.shape == (20, 3)
    last = trained(network(False), (x, [each[-1] for each in y]))
    assert plot.confusion(last, (x, [0, 1, 0, 1]), path=tmp_path / "c.png").counts.sum() == 4


def test_a_confusion_of_long_sequences_has_the_answers_that_evaluate_judges(rng):
    plot = pytest.importorskip("horn.plot")
    pytest.importorskip("matplotlib")
    x, y = rng.normal(size=(4, 24, 2)), rng.integers(0, 2, (4, 24))
    long, labels = rng.normal(size=(3, 22, 2)), rng.integers(0, 2, (3, 22))
    for is_stateful in (False, True):
        steps = 24 if is_stateful else STEPS
        data = x[:, :steps], y[:, :steps]
        job = horn.Job(network(), data, epochs=1, batch_size=4, stateful=is_stateful)
        model = horn.train(job, progress=False).model
        counts = plot.confusion(model, long, labels).counts
        assert np.trace(counts) / counts.sum() == model.evaluate(long, labels)["acc"]
        assert counts.sum() == 3 * (18 if is_stateful else 22)  # judged in whole pieces


@pytest.mark.parametrize("is_stateful", [False, True])
@pytest.mark.parametrize("steps", [90, 107, 192])
def test_a_long_sequence_is_judged_in_pieces_as_long_as_those_it_is_answered_in(
    rng, is_stateful, steps, monkeypatch
):
    x, y = rng.normal(size=(4, 24, 2)), rng.integers(0, 2, (4, 24))
    data = (x, y) if is_stateful else (x[:, :STEPS], y[:, :STEPS])
    model = trained(network(), data, stateful=is_stateful)
    x, y = rng.normal(size=(2, steps, 2)), rng.integers(0, 2, (2, steps))
    runs, run = [], Runner.run
    monkeypatch.setattr(Runner, "run", lambda *given: runs.append(run(*given)))
    model.predict(x)
    n_of_answers = len(runs)
    found = model.evaluate(x, y, metrics=["f1"])
    assert len(runs) == 2 * n_of_answers
    monkeypatch.setattr("horn.model_engines.NUMBERS", 0)  # in pieces of the network's steps
    assert found == pytest.approx(model.evaluate(x, y, metrics=["f1"]), rel=1e-12)
    assert len(runs) > 6 * n_of_answers


class Leaky(horn.Neuron):
    v = horn.State(0.5, per="sample")
    count = horn.State(1.0)

    def forward(self, messages):
        v = 0.9 * self.v + sum(m.input * m.weight for m in messages)
        self.v = v
        self.feedforward(tanh(v * self.count))


def test_what_each_sequence_begins_anew_need_not_be_given(rng):
    x, y = sequences(rng)
    net = horn.Network(seed=3)
    net.input(2, steps=STEPS)
    net.layer(3, neuron=Leaky, name="memory")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    model = trained(net, (x, y))
    kept = {"memory.count": model.states["memory.count"]}
    again = horn.Model(model.network, model.parameters, kept, dtype="float64")
    for one, other in zip(again.predict(x), model.predict(x), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(horn.ModelError, match="states do not fit the network: memory.count"):
        horn.Model(model.network, model.parameters, dtype="float64")


@pytest.mark.parametrize("each_step", [False, True])
def test_one_sequence_is_answered_where_a_layer_hears_the_end_first(rng, each_step):
    x, y = sequences(rng)
    net = horn.Network(seed=3)
    pixels = net.input(2, steps=STEPS)
    ahead = net.layer(3, activation="tanh", inputs=[pixels, horn.Delayed()])
    back = net.layer(3, activation="tanh", inputs=[horn.Reversed(pixels), horn.Delayed()])
    net.output(
        2,
        activation="softmax",
        loss="cross_entropy",
        inputs=[ahead, horn.Reversed(back) if each_step else back],
        each_step=each_step,
    )
    model = trained(net, (x, y if each_step else [each[-1] for each in y]))
    for one, wanted in zip(x, model.predict(x), strict=True):
        np.testing.assert_array_equal(model.predict(one), wanted)
        np.testing.assert_array_equal(model.predict(one, labels=True), wanted.argmax(axis=-1))
    with pytest.raises(horn.ModelError, match="whole sequences of at most 6 steps"):
        model.predict(np.concatenate([x[1], x[0]]))


def test_a_table_with_a_column_of_sequences_holds_sequences(rng):
    pandas = pytest.importorskip("pandas")
    x, y = sequences(rng)
    found = trained(network(), (pandas.DataFrame({"measured": x}), y))
    asked = found.predict(pandas.DataFrame({"measured": x}))
    for one, alone in zip(asked, found.predict(x), strict=True):
        np.testing.assert_array_equal(one, alone)


@pytest.mark.parametrize("shape", [(0, 6, 2), (0, 12)])
def test_no_sequences_are_answered_and_not_learned_from(shape, rng):
    net, none = network(each_step=False), np.empty(shape)
    data = rng.standard_normal((4, 6, 2)), np.arange(4) % 2
    for how in ({"data": (none, [])}, {"data": data, "validation": (none, np.empty(0, int))}):
        with pytest.raises(
            DataError, match=r"x has shape \(0, 12\), so it is empty; pass at least"
        ):
            horn.Job(net, **how)
    model = trained(net, data)
    assert model.predict(none).shape == (0, 2)


@pytest.mark.parametrize("behind", [-1.0, 1e39, np.nan])
@pytest.mark.parametrize("is_named", [False, True])
def test_targets_behind_the_lengths_are_of_no_matter(rng, behind: float, is_named: bool):
    """-1 there was refused as a target that is not between 0 and 1, 1e39 as infinity."""
    ends = np.array([3, 5, 2, 5])
    x, y = rng.normal(size=(4, STEPS, 2)), rng.integers(0, 2, (4, STEPS)).astype(float)
    is_behind = np.arange(STEPS) >= ends[:, None]

    def job(padding: float, **settings):
        net = horn.Network(seed=3)
        hidden = net.layer(3, activation="tanh", inputs=net.input(2, steps=STEPS), name="hidden")
        kinds = {"activation": "sigmoid", "loss": "binary_cross_entropy", "each_step": True}
        for name in ("a", "b") if is_named else ("a",):
            net.output(1, inputs=hidden, name=name, **kinds)
        filled = np.where(is_behind, padding, y)
        given = {"a": filled, "b": filled.copy()} if is_named else filled
        data = horn.data.sequences(x, given, lengths=ends)
        return horn.Job(net, data, epochs=2, validation=data, metrics=["mae"], **settings)

    for settings in ({},) if is_named else ({}, {"class_weight": "balanced"}):
        expected, found = (
            horn.train(job(padding, **settings), progress=False) for padding in (0.0, behind)
        )
        for one, other in zip(expected.history, found.history, strict=True):
            own = [name for name in one if "loss" in name or "mae" in name or "acc" in name]
            assert len(own) > 3 and [one[k] for k in own] == [other[k] for k in own]


def test_a_weight_for_each_step_is_refused_where_the_last_is_judged(rng):
    x, y = sequences(rng)
    each, last = [np.ones(len(one)) for one in x], [one[-1] for one in y]
    with pytest.raises(DataError, match="one per sample is expected; a sequence has one for all"):
        horn.Job(network(each_step=False), (x, last), sample_weight=each)


def test_weights_of_steps_are_a_list_as_long_as_the_sequences(rng, tmp_path):
    x, y = sequences(rng, lengths=(3, 5, 2, 5))
    each = [rng.random(len(one)) for one in x]
    behind = np.full((4, 5), np.nan)
    for row, one in zip(behind, each, strict=True):
        row[: len(one)] = one
    data = horn.data.sequences(x, y)
    whole = horn.data.Dataset(data.x, data.y, weight=behind, lengths=data.lengths, shape=data.shape)
    np.savez(
        tmp_path / "w.npz", x=data.images, y=data.y, lengths=data.lengths, sample_weight=behind
    )
    loaded = horn.data.load(tmp_path / "w.npz")
    expected = None
    for given, weight in (
        ((x, y), each), ((x, y), [list(one) for one in each]), (data, behind), (whole, None),
        (loaded, None),
    ):  # fmt: skip
        job = horn.Job(network(), given, sample_weight=weight, epochs=2, dtype="float64")
        assert job.data.weight.shape == (4, STEPS) and np.isfinite(job.data.weight).all()
        loss = horn.train(job, progress=False).history[-1]["loss"]
        assert loss == (expected := expected or loss)
    plain = horn.Network(seed=3)
    plain.layer(3, activation="tanh", inputs=[plain.input(2, steps=STEPS), horn.Delayed()])
    plain.output(2, activation="softmax", loss="cross_entropy", each_step=True)
    still = horn.Job(plain, (x, y), horn.SGD(0.0), sample_weight=each, epochs=1, dtype="float64")
    run = horn.train(still, progress=False)
    losses = [
        -np.log(p[np.arange(len(p)), own]) for p, own in zip(run.model.predict(x), y, strict=True)
    ]
    total = sum(float((a * w).sum()) for a, w in zip(losses, each, strict=True))
    assert run.history[-1]["loss"] == pytest.approx(total / sum(map(len, x)))


def test_a_wrong_weight_of_a_step_is_told_with_its_place(rng):
    x, y = sequences(rng)
    each = [np.ones(len(one)) for one in x]
    for wrong, said in (
        (
            [*each[:3], each[3] - (np.arange(5) == 4) * 2],
            r"sample_weight\[3, 4\] is -1; .* the step",
        ),
        (
            [*each[:2], each[0], each[3]],
            r"sample_weight\[2\] has shape \(3,\), but .* 2 has 2 steps",
        ),
        (each[:3], "there are 4 sequences, but 3 in sample_weight"),
        (np.ones((4, 3)), r"shape \(4, 3\), but \(4,\) is .* or \(4, 6\): one for each step"),
    ):
        with pytest.raises(DataError, match=said):
            horn.Job(network(), (x, y), sample_weight=wrong)
    with pytest.raises(DataError, match="the weight in row 1, step 2 is 1e.300"):
        job = horn.Job(
            network(), (x, y), sample_weight=[each[0], each[1] * (1, 1, 1e300, 1, 1, 1), *each[2:]]
        )
        horn.train(job, progress=False)


def test_several_stateful_sequences_have_weights_of_steps(rng):
    x, y = rng.normal(size=(2, 24, 2)), rng.integers(0, 2, (2, 24))
    weight = rng.random((2, 24))
    job = horn.Job(network(), (x, y), stateful=True, sample_weight=list(weight))
    assert np.array_equal(job.data.weight, weight.reshape(8, STEPS))


class Drawing(horn.Neuron):
    """Adds a number that is drawn anew at every step."""

    def forward(self, messages):
        self.feedforward(tanh(sum(m.input * m.weight for m in messages)) + self.normal(0.0, 0.1))


@pytest.mark.parametrize("outputs", ["each", "last", "several"])
def test_a_long_sequence_among_short_ones_does_not_fill_them_up(rng, outputs):
    net = horn.Network(seed=3)
    memory = net.layer(
        3, neuron=Drawing, inputs=[net.input(2, steps=STEPS), horn.Delayed()], name="memory"
    )
    names = {"each": ["a"], "last": ["b"], "several": ["a", "b"]}[outputs]
    for name in names:
        net.output(2, activation="softmax", loss="cross_entropy", name=name, inputs=[memory],
                   each_step=name == "a")  # fmt: skip
    model = horn.Model(net, net.initial_parameters(), dtype="float64")
    x = [rng.normal(size=(n, 2)) for n in (3, 2000, 1, 3, 40, 25, *[3] * 100)]
    said = model.record(x, *names)
    model.predict(x[3:6])  # compiles
    tracemalloc.start()
    found = model.predict(x)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < len(x) * x[1].nbytes  # were all as long
    labels = model.predict(x, labels=True)
    for name in names:
        own = found if len(names) == 1 else found[name]
        own_labels = labels if len(names) == 1 else labels[name]
        assert isinstance(own, list) == (name == "a") and len(own) == len(x)
        for k, one in enumerate(x):
            expected = said[name][k] if name == "a" else said[name][k][-1]
            assert own[k].shape == ((len(one), 2) if name == "a" else (2,))
            np.testing.assert_allclose(own[k], expected, rtol=1e-9, atol=1e-12)
            assert np.array_equal(own_labels[k], own[k].argmax(axis=-1))


def test_what_is_wrong_among_long_and_short_sequences_is_told_with_its_row(rng):
    model = trained(network(), sequences(rng))
    x = [rng.normal(size=(n, 2)) for n in (2, 50, 3, 4)]
    bad = [one.copy() for one in x]
    bad[2][1, 0] = np.nan
    odd = [*x[:3], np.ones((4, 3))]
    empty = [*x[:2], np.ones((0, 2)), x[3]]
    for given, said in (
        (bad, r"x has NaN at row 2, x\[2, 1, 0\], the only such value"),
        (odd, r"x\[3\] has 3 numbers per step, but x\[0\] has 2"),
        (empty, r"x\[2\] is empty; leave the sequence out"),
        ([*x[:3], np.ones((4, 2), np.uint8)], "some arrays of the list x are bytes"),
    ):
        with pytest.raises(DataError, match=said):
            model.predict(given)


def test_a_stream_is_not_copied(rng):
    stream = trained(network(), sequences(rng)).stream()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ModelError, match=r"model\.stream\(\) begins another"):
            copied(stream)
