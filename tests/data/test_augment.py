"""Images of a batch, changed by (seed, epoch, sample)."""

import numpy as np
import pytest

from horn.data import Augment, Dataset
from horn.data.augment import AugmentedBatch
from horn.errors import ModelError

RNG = np.random.default_rng(2)
IMAGES = RNG.integers(1, 256, (40, 6, 5, 3)).astype(np.uint8)
ROWS = np.arange(40)


def changed(images, augment, rows=ROWS, epoch=1, seed=7):
    out = np.empty((len(rows), *images.shape[1:]), images.dtype)
    augment.write(images, np.asarray(rows), epoch, seed, out)
    return out


def ways(image, flips, shifts=(0,)):
    """All that may become of an image, by hand."""
    found = []
    for flip in flips:
        mirrored = image[:: -1 if flip in "vb" else 1, :: -1 if flip in "hb" else 1]
        for dy in shifts:
            for dx in shifts:
                wide = np.zeros((image.shape[0] + 8, image.shape[1] + 8, image.shape[2]), np.uint8)
                wide[4 + dy : 4 + dy + len(image), 4 + dx : 4 + dx + image.shape[1]] = mirrored
                found.append(wide[4:-4, 4:-4])
    return found


@pytest.mark.parametrize("flip, flips", [(True, "0h"), ("vertical", "0v"), ("both", "0hvb")])
def test_flips_are_all_there_and_about_as_many(flip, flips):
    counts = [0] * len(flips)
    for image, given in zip(changed(IMAGES, Augment(flip=flip)), IMAGES, strict=True):
        same = [np.array_equal(image, way) for way in ways(given, flips)]
        assert sum(same) == 1
        counts[same.index(True)] += 1
    assert min(counts) >= 40 / len(flips) / 3


def test_shifts_reach_every_place_and_nothing_else_comes_in():
    seen = set()
    for epoch in range(1, 5):
        for image, given in zip(
            changed(IMAGES, Augment(shift=2), epoch=epoch), IMAGES, strict=True
        ):
            same = [np.array_equal(image, way) for way in ways(given, "0", range(-2, 3))]
            assert sum(same) == 1
            seen.add(same.index(True))
    assert seen == set(range(25))


def test_brightness_is_a_factor_and_bytes_stay_bytes():
    found = changed(IMAGES, Augment(brightness=0.5)).astype(float)
    whole = changed(IMAGES.astype(np.float64), Augment(brightness=0.5))
    factors = (whole / IMAGES).reshape(40, -1)
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-12)
    assert 0.5 <= factors.min() < 0.65 and 1.35 < factors.max() <= 1.5
    np.testing.assert_allclose(found, np.minimum(np.rint(whole), 255))


def test_what_becomes_of_a_sample_is_its_own_by_seed_and_epoch():
    augment = Augment(flip="both", shift=(1, 2), brightness=0.3)
    whole = changed(IMAGES, augment)
    some = np.array([31, 4, 17])
    assert np.array_equal(changed(IMAGES, augment, some), whole[some])
    assert not np.array_equal(changed(IMAGES, augment, epoch=2), whole)
    assert not np.array_equal(changed(IMAGES, augment, seed=8), whole)


def test_a_batch_has_the_labels_and_weights_of_its_samples_and_makes_only_its_part():
    data = Dataset(
        IMAGES.reshape(40, -1), ROWS.astype(np.int64), 1 / 255, weight=ROWS.astype(float)
    )
    batch = AugmentedBatch(Augment(flip=True), data, (6, 5, 3), 7, 10)
    rows = np.array([3, 30, 12, 8])
    assert batch.read(rows, 2).tolist() == [0, 1, 2, 3]
    assert batch.data.y[:4].tolist() == batch.data.weight[:4].tolist() == rows.tolist()
    assert batch.data.scale == 1 / 255
    expected = changed(IMAGES, Augment(flip=True), rows, 2).reshape(4, -1)
    assert np.array_equal(batch.data.x[:4], expected)
    part = AugmentedBatch(Augment(flip=True), data, (6, 5, 3), 7, 10)
    part.read(rows, 2, slice(1, 3))
    assert np.array_equal(part.data.x[1:3], expected[1:3])
    assert not part.data.x[[0, 3]].any()


@pytest.mark.parametrize("given, words", [
    ({"flip": "up"}, 'flip is True, "horizontal", "vertical" or "both", got \'up\''),
    ({"shift": -1}, "shift is a whole number of pixels from 0, or .rows, columns., got -1"),
    ({"shift": (1, 2, 3)}, "shift is a whole number"),
    ({"shift": 1.5}, "shift is a whole number"),
    ({"brightness": 2}, "brightness is a number from 0 to 1, such as 0.2, got 2"),
    ({}, "nothing is changed; give flip=True, shift=4 or brightness"),
], ids=str)  # fmt: skip
def test_what_cannot_be_is_said(given, words):
    with pytest.raises(ModelError, match=words):
        Augment(**given)
