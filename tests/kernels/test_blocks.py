"""Zeros that share blocks of memory."""

import numpy as np

from horn.backends._step_buffers import BLOCK_BYTES, LINE, SHARED_BYTES, Blocks, is_aligned


def place(array):
    return array.__array_interface__["data"][0]


def test_buffers_that_share_a_block_are_zeros_of_their_own():
    blocks = Blocks()
    found = [blocks.zeros((700, 501), np.float32), blocks.zeros((501, 300), np.float64)]
    for k, array in enumerate(found):
        assert is_aligned(array) and not array.any()
        array[...] = k + 1
    assert all((array == k + 1).all() for k, array in enumerate(found))
    begin, then = map(place, found)
    assert 0 <= then - (begin + found[0].nbytes) < LINE  # one behind the other


def test_more_than_a_block_holds_lies_in_several():
    blocks, n_bytes = Blocks(), SHARED_BYTES[-1]
    found = [blocks.zeros([n_bytes], np.uint8) for _ in range(BLOCK_BYTES // n_bytes + 2)]
    assert not any(array.any() for array in found)
    for k, array in enumerate(found):
        array[...] = k
    assert [int(array[0]) for array in found] == [int(array[-1]) for array in found]
    assert [int(array[0]) for array in found] == list(range(len(found)))


def test_small_ones_and_large_ones_do_not_keep_a_block():
    for n_bytes in (SHARED_BYTES[0] - 1, SHARED_BYTES[-1] + 1):
        array = Blocks().zeros([n_bytes], np.uint8)
        assert array.base is not None and array.base.nbytes < n_bytes + 2 * LINE
