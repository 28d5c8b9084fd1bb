"""Jobs: what they take, what they fill in, and what they refuse before anything runs."""

import numpy as np
import pytest

import horn
from horn.errors import DataError, JobError, ModelError


def network(n_outputs=2, **output):
    net = horn.Network(seed=3)
    net.input(4)
    net.output(n_outputs, **(output or {"activation": "softmax", "loss": "cross_entropy"}))
    return net


def arrays(n=20, classes=2):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)), np.arange(n) % classes


def test_a_job_is_ten_epochs_unless_told_otherwise():
    job = horn.Job(network(), arrays(), batch_size=8)
    assert (job.epochs, job.iterations_per_epoch, job.n_iterations) == (10, 3, 30)
    job = horn.Job(network(), arrays(), batch_size=8, iterations=7)
    assert (job.epochs, job.n_iterations) == (None, 7)


def test_a_fraction_of_the_data_is_held_out_for_validation():
    x, y = arrays(100)
    job = horn.Job(network(), (x, y), validation=0.2)
    assert (len(job.data), len(job.validation)) == (80, 20)
    seen = {tuple(row) for part in (job.data, job.validation) for row in part.x}
    assert len(seen) == 100
    again = horn.Job(network(), (x, y), validation=0.2)
    np.testing.assert_array_equal(job.validation.x, again.validation.x)


def test_a_weight_with_the_name_of_a_slot_is_refused():
    net = horn.Network(seed=3)
    one = net.layer(3, inputs=net.input(4), name="a")
    two = net.layer(3, name="a/velocity")
    net.output(2, inputs=[one, two], activation="softmax", loss="cross_entropy", name="out")
    with pytest.raises(ModelError, match=r"out.weight.a/velocity is a weight, and what SGD keeps"):
        horn.Job(net, arrays(), horn.SGD(0.1, momentum=0.9))
    assert horn.Job(net, arrays(), horn.Adam(0.1)).network is not None


def test_settings_are_changed_in_a_copy():
    job = horn.Job(network(), arrays())
    other = job.with_settings(batch_size=4)
    assert (job.batch_size, other.batch_size) == (32, 4)
    with pytest.raises(JobError, match="batchsize"):
        job.with_settings(batchsize=4)


RARE = (np.arange(100) % 10 == 0).astype(int)
OF_SAMPLES = np.arange(100.0) + 1


@pytest.mark.parametrize(
    "given, changes",
    [
        ({"validation": 0.2}, {"validation": 0.5}),
        ({"validation": 0.2}, {"validation": None}),
        ({"validation": 0.2}, {"data": (3 * np.ones((50, 4), np.float32), RARE[:50])}),
        ({"validation": 0.2, "sample_weight": OF_SAMPLES}, {"validation": 0.1}),
        ({"validation": 0.2, "sample_weight": OF_SAMPLES}, {"sample_weight": None}),
        ({"validation": 0.2, "normalize": True}, {"validation": 0.5}),
        ({"class_weight": "balanced"}, {"class_weight": "balanced"}),
        ({"class_weight": "balanced"}, {"class_weight": None}),
        ({"class_weight": "balanced"}, {"validation": 0.3}),
        ({"class_weight": {1: 3.0}}, {"data": (np.ones((50, 4), np.float32), RARE[50:])}),
        ({"sample_weight": OF_SAMPLES}, {"class_weight": {1: 2.0}}),
        ({"normalize": True}, {"normalize": None}),
        ({"normalize": True, "test": (arrays(7)[0], RARE[:7])}, {"normalize": False}),
    ],
)  # fmt: skip
def test_other_settings_of_data_are_those_of_a_new_job(given, changes):
    x, _ = arrays(100)
    base = {"data": (x, RARE)} | given
    job = horn.Job(network(), **base).with_settings(batch_size=8)  # of a copy, too
    found, new = job.with_settings(**changes), horn.Job(network(), **base | changes)
    back = found.with_settings(**{name: base.get(name) for name in changes})
    for one, other in ((found, new), (back, horn.Job(network(), **base))):
        for what in ("data", "validation", "test"):
            mine, its = getattr(one, what), getattr(other, what)
            assert (mine is None) == (its is None)
            for name in ("x", "y", "weight") if mine is not None else ():
                np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))
            if mine is not None:
                assert repr(mine.normalization) == repr(its.normalization)


def test_a_job_keeps_no_second_copy_of_its_data():
    job = horn.Job(network(), arrays(100), validation=0.2, normalize=True)
    given, held = job._given.data
    assert (given.x is job.data.x, held.x is job.validation.x) == (True, True)
    assert job.with_settings(batch_size=8, network=job.network.rebuilt(seed=2)).data.x is given.x


def test_another_beginning_begins_with_nothing_of_the_first():
    model = horn.train(horn.Job(network(), arrays(), epochs=1), progress=False).model
    job = horn.Job(network(), arrays(), initial=model)
    name, drawn = next(iter(network().initial_parameters().items()))
    np.testing.assert_array_equal(job.network.initial_parameters()[name], model.parameters[name])
    job = job.with_settings(initial=None)
    np.testing.assert_array_equal(job.network.initial_parameters()[name], drawn)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"optimizer": "sgd"}, "optimizer must be an optimizer, got"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"batch_size": None}, "batch_size must be a whole number from 1, got None"),
        ({"epochs": 1.5}, "epochs must be a whole number from 1"),
        ({"iterations": True}, "iterations must be a whole number from 1"),
        ({"epochs": 1, "iterations": 1}, "give epochs or iterations, not both"),
        ({"dtype": "float16"}, 'dtype must be "float32" or "float64"'),
        ({"target": "output"}, 'target must be "labels", "input" or None'),
        ({"validation": 1.5}, "must be a fraction between 0 and 1"),
        ({"early_stopping": horn.EarlyStopping()}, "need validation data"),
        ({"keep_best": True}, "need validation data"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ModelError, match=message):
        horn.Job(network(), arrays(), **settings)


def test_early_stopping_watches_the_validation():
    with pytest.raises(ModelError, match='monitor must be "val_loss" or "val_acc", got \'loss\''):
        horn.EarlyStopping(monitor="loss")
    with pytest.raises(ModelError, match="patience must be a whole number of epochs from 1, got 0"):
        horn.EarlyStopping(patience=0)
    for wrong in ("x", float("nan"), None):
        with pytest.raises(ModelError, match="EarlyStopping: min_delta must be a finite number"):
            horn.EarlyStopping(min_delta=wrong)


def test_a_network_that_cannot_run_is_refused_at_once():
    with pytest.raises(ModelError, match="the first argument is a horn.Network"):
        horn.Job("net", arrays())
    with pytest.raises(ModelError, match="needs outputs that are positive and sum to 1"):
        horn.Job(network(loss="cross_entropy", activation="sigmoid"), arrays())


@pytest.mark.parametrize(
    "net, data, settings, message",
    [
        (network(), (np.zeros((3, 5)), np.zeros(3, int)), {}, r"declares input\(4\)"),
        (network(), (np.zeros((3, 4)), np.array([0, 1, 2])), {}, "labels contain 2"),
        (network(), (np.zeros((3, 4)), None), {}, "has no labels"),
        (network(), np.zeros((3, 4)), {"target": "input"}, "make them equal"),
        (network(loss="squared_error"), (np.zeros((3, 4)), np.zeros((3, 3))), {}, r"pass \(3, 2\)"),
    ],
)
def test_data_that_do_not_fit_the_network_are_refused(net, data, settings, message):
    with pytest.raises(DataError, match=message):
        horn.Job(net, data, **settings).check_data()


@pytest.mark.parametrize(
    "net, data, settings",
    [
        (network(), arrays(), {}),
        (network(1, loss="squared_error"), arrays(), {}),
        (network(2, loss="squared_error"), (np.zeros((3, 4)), np.zeros((3, 2))), {}),
        (network(4, loss="squared_error"), np.zeros((3, 4)), {"target": "input"}),
        (network(2, activation="tanh"), np.zeros((3, 4)), {"target": None}),
    ],
)
def test_data_that_fit_are_taken(net, data, settings):
    horn.Job(net, data, **settings).check_data()


def test_labels_are_whole_numbers_in_one_column():
    assert horn.data.as_dataset(arrays()).has_labels
    assert not horn.data.as_dataset((np.zeros((3, 4)), np.zeros((3, 1)))).has_labels


def test_validation_and_test_data_in_other_units_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raw, y = np.arange(0, 240, 3, dtype=np.uint8).reshape(40, 2), np.arange(40) % 2
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    horn.Job(net, (raw, y), validation=(raw, y), test=(raw / 255, y))
    assert not caplog.records
    horn.Job(net, (raw.astype(float), y), validation=(raw, y), test=(raw.astype(float), y))
    horn.Job(net, (raw, y), validation=0.2, test=(raw.astype(float), y))
    assert [record.getMessage() for record in caplog.records] == [
        "validation: bytes count 0.00392157 each, 1 at most, but the training data have numbers up "
        "to 237: pass x.astype(float), or x in this unit",
        "test: has numbers up to 237, but the bytes of the training data count 0.00392157 each, 1 "
        "at most: pass bytes, or x in this unit",
    ]


@pytest.mark.parametrize(
    "shape, sample, kind, is_told",
    [
        ((6, 6), (6, 6), np.uint8, True),
        ((6, 6, 1), (6, 6), np.uint8, False),
        ((6, 5), (6, 5), np.uint8, False),
        ((6, 6), (6, 6), np.float64, False),
    ],
)
def test_pictures_whose_columns_are_taken_for_channels_are_warned_of(
    shape, sample, kind, is_told, caplog
):
    net = horn.Network(seed=1)
    net.input(shape)
    net.layer(connect=horn.Convolution(2, 3), activation="relu")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.arange(8 * np.prod(sample)).reshape(8, *sample).astype(kind)
    horn.train(horn.Job(net, (x, np.arange(8) % 2), epochs=1))
    told = (
        "data: net.input((6, 6)) is 6 positions of 6 channels, and windows go along one axis; if "
        "a sample is a picture of 6 x 6 pixels, write net.input((6, 6, 1))"
    )
    assert [record.getMessage() for record in caplog.records] == [told] * is_told
