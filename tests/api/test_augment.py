"""Job(augment=): images are changed alike in one process, on tasks, in groups, when resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.data import Augment, Dataset
from horn.errors import CheckpointError, DataError, ModelError
from horn.training.diagnosis import Batches

RNG = np.random.default_rng(5)
X = RNG.integers(0, 256, (30, 4, 4, 3)).astype(np.uint8)
Y = np.arange(30) % 3
CHANGED = Augment(flip=True, shift=1, brightness=0.2)


def network(shape: Any = (4, 4, 3), activation: str = "tanh") -> horn.Network:
    net = horn.Network(seed=4)
    net.input(shape)
    net.layer(connect=horn.Convolution(2, 3), activation=activation, name="maps")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def job(**more: Any) -> horn.Job:
    more = {"epochs": 2, "batch_size": 8, "optimizer": horn.SGD(0.3, momentum=0.5),
            "dtype": "float64", "augment": CHANGED} | more  # fmt: skip
    return horn.Job(network(), more.pop("data", (X, Y)), **more)


def by_hand() -> dict[str, Any]:
    """One process that is given every batch as it is changed."""
    mine = job()
    batches = Batches(mine)
    plain, rows = [], []
    for iteration in range(mine.n_iterations):
        here, _ = batches.at(iteration)
        plain.append(batches.data.x[here].copy())
        rows.append(batches.data.y[here].copy())

    def stream() -> Any:
        yield from zip((x.astype(np.uint8) for x in plain), rows, strict=True)

    data = horn.data.Stream(stream, samples=30, scale=1 / 255)
    return dict(horn.train(job(data=data, augment=None)).model.parameters)


@pytest.mark.parametrize("settings", [{}, {"backend": "reference"}, {"backend": "python"},
                         pytest.param({"tasks": 2}, marks=pytest.mark.cluster),
                         pytest.param({"groups": 2}, marks=pytest.mark.cluster)],
                         ids=str)  # fmt: skip
def test_images_are_changed_alike_wherever_it_computes(settings: Any) -> None:
    run = horn.train(job(), **settings)
    for name, array in by_hand().items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-8, atol=1e-10)
    plain = horn.train(job(augment=None)).model.parameters["maps.weight"]
    assert np.abs(plain - run.model.parameters["maps.weight"]).max() > 1e-3


@pytest.mark.cluster
def test_groups_with_servers_learn_from_changed_images() -> None:
    """A group reads its own part of the batch, at its own pace."""
    bright = X // 4
    bright[np.arange(30), :, :, Y] += 150
    run = horn.train(job(data=(bright, Y), epochs=20), groups=2, strategy="averaging")
    assert run.model.evaluate(bright, Y)["acc"] == 1.0


@pytest.mark.cluster
def test_sub_models_that_groups_cannot_share_evenly_learn_from_changed_images() -> None:
    """The groups' rows follow their sub-models, not halves of the batch."""
    net = horn.Network(seed=4)
    net.input((4, 4, 3))
    net.layer(6, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    mine = job().with_settings(network=net)
    dropout = horn.ParallelDropout(sub_models=3)
    alone, groups = (horn.train(mine, strategy=dropout, **more) for more in ({}, {"groups": 2}))
    for name, array in alone.model.parameters.items():
        np.testing.assert_allclose(groups.model.parameters[name], array, rtol=1e-8, atol=1e-10)


def test_a_resumed_job_goes_on_with_the_same_images(tmp_path: Path) -> None:
    whole = horn.train(job())
    horn.train(job(iterations=6, epochs=None), checkpoints=tmp_path, checkpoint_every=3)
    again = horn.train(job(), checkpoints=tmp_path, checkpoint_every=3, resume=True)
    for name, array in whole.model.parameters.items():
        assert np.array_equal(again.model.parameters[name], array)
    with pytest.raises(CheckpointError, match="augment"):
        horn.train(job(augment=Augment(shift=2)), checkpoints=tmp_path, checkpoint_every=3,
                   resume=True)  # fmt: skip


def test_validation_and_accuracy_are_of_the_images_as_they_are() -> None:
    run = horn.train(job(validation=(X, Y)))
    assert run.history["val_loss"][-1] == pytest.approx(run.model.evaluate(X, Y)["loss"], rel=1e-9)
    assert run.history["acc"][-1] == run.model.evaluate(X, Y)["acc"]


class Root(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(horn.math.sqrt(1.1 - max(m.input for m in messages)))


def test_what_made_nan_is_found_in_the_changed_image() -> None:
    """As they are, no image is too bright; a few become so."""
    net = horn.Network(seed=4)
    net.input((2, 2, 1))
    net.layer(connect=horn.Window(1), neuron=Root)
    net.output(3, activation="softmax", loss="cross_entropy")
    data = np.ones((30, 2, 2, 1)), Y
    words = r"(?s)sqrt.-0.* is nan.*Root. feeds forward nan for sample"
    with pytest.raises(horn.Diverged, match=words):
        horn.train(horn.Job(net, data, augment=Augment(brightness=0.5)))


def test_channels_are_normalized_over_all_positions() -> None:
    run = horn.train(job(normalize="channel", augment=None))
    seen = X.astype(np.float64) / 255
    done = (seen - seen.mean((0, 1, 2))) / seen.std((0, 1, 2))
    hand = horn.train(job(data=(done, Y), augment=None))
    for name, array in hand.model.parameters.items():
        np.testing.assert_allclose(run.model.parameters[name], array, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(run.model.predict(X), hand.model.predict(done), rtol=1e-8)


@pytest.mark.parametrize("make, words", [
    (lambda: job(augment=True), r"augment is a horn.data.Augment, as horn.data.Augment.flip=True"),
    (lambda: job(augment=Augment(shift=4)), "moves images by up to 4 rows, but they have 4"),
    (lambda: horn.Job(flat(), (X, Y), augment=CHANGED), r"but the input is .48,.; declare it as"),
    (lambda: horn.Job(flat(), (X, Y), normalize="channel"), "needs an input with channels, as"),
    (lambda: job(data=lambda: iter([(X, Y)]), iterations=2, epochs=None), "augment is for arrays"),
], ids=["no Augment", "too far", "flat", "no channels", "stream"])  # fmt: skip
def test_what_cannot_be_changed_is_said(make: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        make()


def flat() -> horn.Network:
    net = horn.Network()
    net.input(48)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("x, words", [
    (X.transpose(0, 3, 1, 2), r"write x.transpose\(0, 2, 3, 1\)"),
    (X.reshape(30, 8, 2, 3), r"learned from input\(.*; write x.reshape\(-1, 4, 4, 3\)"),
], ids=["channels first", "other"])  # fmt: skip
def test_images_that_lie_otherwise_are_refused(x: Any, words: str) -> None:
    with pytest.raises(DataError, match=r"a sample has the shape .*declares input\(\(4, 4, 3\)\)"):
        horn.train(job(data=(x, Y)))
    model = horn.train(job(epochs=1, augment=None)).model
    with pytest.raises(DataError, match=words):
        model.predict(x)
    assert model.predict(X.reshape(30, -1)).shape == (30, 3)
    grey = horn.train(horn.Job(network((4, 4, 1)), (X[..., 0], Y), epochs=1)).model
    assert grey.predict(Dataset(X[:, :, :, 0].reshape(30, -1).copy(), None, shape=(1, 4, 4))).any()


def test_an_argument_it_has_not_is_answered_with_those_it_has():
    with pytest.raises(TypeError, match=r"'rotate'; it takes flip, shift, brightness$"):
        horn.data.Augment(rotate=10)
    with pytest.raises(TypeError, match="write stride, instead of strides"):
        horn.Window(2, strides=2)


MASK = X.max(axis=3) > 120  # of each pixel


def masks(**more: Any) -> horn.Job:
    net = horn.Network(seed=4)
    net.input((4, 4, 3))
    net.output(connect=horn.Convolution(1, 3, padding="same"), activation="sigmoid",
               loss="binary_cross_entropy")  # fmt: skip
    more = {"epochs": 2, "batch_size": 8, "optimizer": horn.SGD(0.3), "dtype": "float64",
            "augment": Augment(flip="both", shift=1)} | more  # fmt: skip
    return horn.Job(net, (X, MASK), **more)


def read(job: horn.Job, iterations: int = 6) -> Any:
    batches = Batches(job)
    for iteration in range(iterations):
        rows, _ = batches.at(iteration)
        yield batches.data.x[rows].reshape(-1, 4, 4, 3), batches.data.y[rows], batches.data


def test_the_targets_of_each_pixel_are_flipped_and_moved_with_it() -> None:
    moved = [(x.max(axis=3) > 120, y.reshape(-1, 4, 4)) for x, y, _ in read(masks())]
    assert all(np.array_equal(here, y) for here, y in moved)
    came_in = [not mask[0].any() for _, y in moved for mask in y]
    assert 0 < sum(came_in) < len(came_in)  # rows from outside


@pytest.mark.parametrize("settings", [{"backend": "reference"}, {"backend": "python"},
                         pytest.param({"tasks": 2}, marks=pytest.mark.cluster),
                         pytest.param({"groups": 2}, marks=pytest.mark.cluster)],
                         ids=str)  # fmt: skip
def test_targets_are_moved_alike_wherever_it_computes(settings: Any) -> None:
    expected = horn.train(masks()).model.parameters
    found = horn.train(masks(), **settings).model.parameters
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-8, atol=1e-10)


def test_of_several_outputs_those_of_the_image_are_moved() -> None:
    net = horn.Network(seed=4)
    net.input((4, 4, 3))
    maps = net.layer(connect=horn.Convolution(2, 3, padding="same"))
    net.output(3, inputs=maps, activation="softmax", loss="cross_entropy", name="kind")
    net.output(inputs=maps, connect=horn.Convolution(2, 1), loss="squared_error", name="two")
    dark = X // 2
    job = horn.Job(net, (dark, {"kind": Y, "two": dark[..., :2] / 255.0}), batch_size=30,
                   augment=Augment(flip=True, shift=1, brightness=0.5))  # fmt: skip
    ((x, y, data),) = read(job, 1)
    kind, two = (y[:, data.targets_of(name).columns] for name in ("kind", "two"))
    assert sorted(kind.ravel().tolist()) == sorted(Y.tolist())
    two = two.reshape(-1, 4, 4, 2)
    for k in range(30):  # they keep their brightness: a factor of each image is between them
        image, seen = x[k, ..., :2], two[k] > 0.2
        assert not image[two[k] == 0].any()
        assert np.ptp(image[seen] / (255 * two[k][seen])) < 0.05


def places(output: Any, y: Any, **more: Any) -> horn.Job:
    net = horn.Network()
    net.input((4, 4, 3))
    output(net)
    return horn.Job(net, (X, y), augment=Augment(**({"flip": True} | more)))


def halves(net: horn.Network) -> None:
    net.output(connect=horn.Convolution(1, 2, stride=2), loss="squared_error")


def whole(net: horn.Network) -> None:
    net.output(connect=horn.Convolution(1, 1), activation="softmax", loss="cross_entropy")


@pytest.mark.parametrize("output, y, words", [
    (halves, np.ones((30, 2, 2)), r"has \(2, 2\) positions, whose .* brightness alone"),
    (whole, Y, r"labels that are one of its 16 positions.*pass targets of shape \(30, 4, 4, 1\)"),
    (lambda net: net.output(16, loss="squared_error"), MASK,
     r"16 neurons without positions.*write net.output\(\(4, 4, 1\), ...\)"),
], ids=["other size", "labels", "flat"])  # fmt: skip
def test_targets_that_cannot_move_with_their_image_are_refused(
    output: Any, y: Any, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        places(output, y)
    assert places(output, y, flip=False, brightness=0.1)


def test_an_output_of_one_position_answers_for_the_whole_image() -> None:
    def one(net: horn.Network) -> None:
        net.output(connect=horn.Convolution(3, 4), activation="softmax", loss="cross_entropy")

    assert places(one, Y).batches()
