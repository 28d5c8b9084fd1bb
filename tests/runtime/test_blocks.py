"""What two tasks have in common, as places along the arrays of each."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import horn
from horn.partition.share import Share, tight
from horn.program import Buffer, Move
from horn.runtime.blocks import _intersection, blocks_of
from tests.support.calls import calls_of

RANGES = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda p: slice(p[0], sum(p)))
LISTS = st.sets(st.integers(0, 30), max_size=30).map(lambda s: np.array(sorted(s), np.int64))


def numbers(places):
    if isinstance(places, slice):
        return np.arange(places.start, places.stop)
    assert len(places) and places.dtype == np.int64, "what is empty is a slice"
    return places


@given(st.one_of(RANGES, LISTS), st.one_of(RANGES, LISTS))
def test_places_meet_where_both_have_them(a, b):
    a, b = (tight(x) if isinstance(x, np.ndarray) else x for x in (a, b))
    mine, theirs = ([*range(x.start, x.stop)] if isinstance(x, slice) else [*x] for x in (a, b))
    both = sorted({*mine} & {*theirs})

    at_a, at_b = _intersection(a, b)

    assert [mine[i] for i in numbers(at_a)] == both
    assert [theirs[i] for i in numbers(at_b)] == both


def a_move(n_groups, have, want):
    """Its ``blocks_of``: between the first of two tasks of so many groups."""
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.layer(activation="relu", connect=horn.Convolution(2, 3))
    net.output(256, activation="softmax", loss="cross_entropy")
    shares = {group: Share(net, 0, 2, group, n_groups) for group in range(n_groups)}
    program = SimpleNamespace(buffers={"a": Buffer("a", have), "b": Buffer("b", want)})
    return lambda: blocks_of(Move("b", "a"), program, shares, 8, "<f4")


def test_pairs_of_groups_with_nothing_in_common_are_passed_over():
    """Each group has a part for one other; all pairs were met, one by one."""
    have, want = ("n2@own.grp+1", "n1"), ("n2@own.grp", "n1")
    channels, wanted = a_move(8, have, want)()
    assert [(c.src, c.dsts) for c in channels] == [(g, ((g + 1) % 8,)) for g in range(8)]
    assert all(len(blocks) == 1 for blocks in wanted.values())
    few, many = (calls_of(a_move(n, have, want)) for n in (8, 32))
    assert many < 4.5 * few


def test_groups_without_a_part_of_a_map_send_and_get_nothing():
    channels, wanted = a_move(9, ("n1@map.grp+1",), ("n1@map.grp",))()  # a map of four numbers
    assert len(channels) == 4 and all(c.dsts == ((c.src + 1) % 9,) for c in channels)
    assert [sum(map(len, wanted.values()))] == [4]


def test_numbers_without_axes_go_from_all_to_all():
    channels, wanted = a_move(3, (), ())()
    assert [(c.src, c.dsts) for c in channels] == [(0, (1, 2)), (1, (0, 2)), (2, (0, 1))]
    assert [[b.part for b in wanted[rank]] for rank in range(3)] == [
        [None, 1, 2], [0, None, 2], [0, 1, None]
    ]  # fmt: skip
