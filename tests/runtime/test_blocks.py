"""What two tasks have in common, as places along the arrays of each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from horn.partition.share import tight
from horn.runtime.blocks import _intersection

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
