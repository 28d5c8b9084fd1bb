"""The counter-based draws: the published generator, and draws that do not depend on the company."""

import numpy as np
import pytest

from horn import random

KNOWN = [  # the known-answer vectors of the Random123 distribution, philox4x32-10
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF,) * 4,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("key, counter, expected", KNOWN)
def test_philox_gives_the_published_answers(key, counter, expected):
    words = random.philox(key, [np.array([word], np.uint64) for word in counter])
    assert [int(word[0]) for word in words] == list(expected)


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_a_draw_does_not_depend_on_which_others_are_drawn(draw):
    key = random.key(seed=7, layer=1)
    samples = [0, 3, 2**40, random.SHARED]
    everything = draw(key, 2, range(23), samples, 5)

    some = draw(key, 2, [22, 4, 9], [2**40, 3], 5)

    assert np.array_equal(some, everything[[2, 1]][:, [22, 4, 9]])


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_nothing_to_draw_is_an_empty_array(draw):
    assert draw((1, 2), 0, [], [1, 2], 0).shape == (2, 0)
    assert draw((1, 2), 0, [1, 2, 3], [], 0).shape == (0, 3)


def test_uniforms_are_exact_in_float32_and_below_one():
    u = random.uniform(random.key(0, 0), 0, range(1000), range(100), 0)
    assert np.array_equal(u.astype(np.float32).astype(np.float64), u)
    assert 0 <= u.min() and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005


def test_normals_have_mean_zero_and_unit_spread():
    z = random.normal(random.key(0, 0), 0, range(1000), range(100), 0)
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02


@pytest.mark.parametrize("other", [{"site": 1}, {"iteration": 1}, {"key": (1, 3)}])
def test_site_iteration_and_key_each_change_the_draws(other):
    call = {"key": (1, 2), "site": 0, "neurons": range(8), "samples": range(8), "iteration": 0}
    assert not np.array_equal(random.uniform(**call), random.uniform(**(call | other)))
