"""The sum of a message's bytes: what it is, and what it finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn._kernels.checksum import WIDEST, sum64

BLOCK, PRIME, POINT = 4096, (1 << 61) - 1, 0x1E3779B97F4A7C15
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def keys():
    state, found = 0, []
    for _ in range(BLOCK // 8):
        state = (state + 0x9E3779B97F4A7C15) & M64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        z ^= z >> 31
        found += [z & M32, z >> 32]
    return found


KEYS = keys()


def reference(data, start=0):
    """As docs/notes/0092 writes it, in Python's own numbers."""
    if not data:
        return start
    low, high = start & M32, start >> 32
    for at in range(0, len(data), BLOCK):
        block = data[at : at + BLOCK]
        block += bytes(-len(block) % 8)
        words = np.frombuffer(block, "<u4").tolist()
        low = (low + sum(words)) & M32
        keyed = [(x + k) & M32 for x, k in zip(words, KEYS, strict=False)]
        total = sum(a * b for a, b in zip(keyed[::2], keyed[1::2], strict=True)) & M64
        high = (high * POINT + total) % PRIME
    high = high * POINT % PRIME
    return (high & M32) << 32 | low


def content(n, seed=0):
    return np.random.default_rng(seed).bytes(n)


@given(st.binary(max_size=100), st.integers(0, M64))
def test_it_is_what_its_note_says(data, start):
    assert sum64(data, start) == reference(data, start)


@pytest.mark.parametrize("n", [1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 50_000])
@pytest.mark.parametrize("way", range(WIDEST + 1))
def test_every_way_finds_the_same_wherever_the_bytes_lie(n, way):
    for data in (content(n), b"\xff" * n, bytes(n)):
        moved = memoryview(b"x" + data)[1:]
        assert sum64(moved, 3, way) == sum64(data, 3, way) == reference(data, 3)


def test_parts_follow_one_another_and_nothing_adds_nothing():
    data = content(10_000)
    assert sum64(b"", 5) == 5
    assert sum64(data[6000:], sum64(data[:6000])) == reference(data[6000:], reference(data[:6000]))
    assert sum64(data[6000:], sum64(data[:6000])) != sum64(data[:6000], sum64(data[6000:]))


datas = st.binary(min_size=1, max_size=300) | st.builds(
    content, st.integers(1, 20_000), st.integers(0, 9)
)


def flipped(data, bits):
    found = bytearray(data)
    for bit in bits:
        found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


@given(datas, st.data())
def test_one_changed_bit_is_always_found(data, drawn):
    bit = drawn.draw(st.integers(0, 8 * len(data) - 1))
    assert (sum64(flipped(data, [bit])) ^ sum64(data)) & M32  # by the half that proves it


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x80"])
def test_any_two_changed_bits_are_found(fill):
    """All pairs; those of one column that go opposite ways are the high half's."""
    data = fill * 64
    right = sum64(data)
    for pair in itertools.combinations(range(8 * len(data)), 2):
        assert sum64(flipped(data, pair)) != right, pair


@given(st.integers(1, 5000), st.integers(0, 31), st.data())
def test_signs_that_change_in_pairs_are_found(n_words, bit, drawn):
    """The sum of the words is the same after two of them."""
    words = np.frombuffer(content(4 * n_words + 4), "<u4").copy()
    at, other = drawn.draw(st.lists(st.integers(0, n_words), min_size=2, max_size=2, unique=True))
    before = sum64(words.tobytes())
    words[[at, other]] ^= np.uint32(1 << bit)
    assert sum64(words.tobytes()) != before


@given(datas, st.integers(1, M32), st.data())
def test_a_burst_of_up_to_32_bits_is_always_found(data, burst, drawn):
    start = drawn.draw(st.integers(0, 8 * len(data) - 1))
    value = int.from_bytes(data, "little") ^ (burst << start)
    if value >> 8 * len(data):  # over the end
        value &= (1 << 8 * len(data)) - 1
    bad = value.to_bytes(len(data), "little")
    if bad != data:
        assert (sum64(bad) ^ sum64(data)) & M32


@given(datas, st.binary(min_size=1, max_size=64), st.data())
def test_any_other_bytes_in_a_place_are_found(data, other, drawn):
    at = drawn.draw(st.integers(0, len(data) - 1))
    bad = data[:at] + other[: len(data) - at] + data[at + len(other) :]
    if bad != data:
        assert sum64(bad) != sum64(data)


@given(datas, st.data())
def test_blocks_that_changed_places_are_found(data, drawn):
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(data)), min_size=4, max_size=4)))
    a, b, c, d = cuts
    bad = data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]
    if bad != data:
        assert sum64(bad) != sum64(data)


@pytest.mark.parametrize("size", [8, 64, BLOCK, 128 * 1024])
@pytest.mark.parametrize("apart", [1, 2, 7, 64])
def test_whole_blocks_of_any_size_that_changed_places_are_found(size, apart):
    """Also such that have the same words, or the same sums."""
    rows = np.frombuffer(content(size * (apart + 1)), np.uint8).reshape(apart + 1, size).copy()
    rows[0, :8] = [1, 0, 0, 0, 2, 0, 0, 0]
    rows[apart] = rows[0]
    rows[apart, :8] = [2, 0, 0, 0, 1, 0, 0, 0]
    bad = rows.copy()
    bad[[0, apart]] = rows[[apart, 0]]
    assert sum64(bad.reshape(-1)) != sum64(rows.reshape(-1))


@given(datas, st.integers(1, 5000))
def test_a_tail_that_was_lost_is_found(data, n_lost):
    kept = data[: max(len(data) - n_lost, 0)]
    for bad in (kept + bytes(len(data) - len(kept)), bytes(len(data) - len(kept)) + kept):
        if bad != data:
            assert sum64(bad) != sum64(data)
    assert sum64(kept) != sum64(data) or not any(data[len(kept) :])  # lengths have their own field
