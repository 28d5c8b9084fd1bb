"""Plain values travel as JSON, and come back as they were."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn.plain_values import MOST, NotPlain, decoded, encoded, is_plain

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=20,
)
ARRAYS = [
    np.arange(6).reshape(2, 3),
    np.zeros((0, 3), "float32"),
    np.array(0.1, "float32"),
    np.array([True, False]),
    np.array([np.inf, -0.0, 1e-320]),
    np.array([1, 2], ">i2"),
    np.float32(0.1),
    np.int8(-3),
    np.bool_(True),
    np.float64(0.1),
]


def travelled(value: Any) -> Any:
    return decoded(json.loads(json.dumps(encoded(value))))


@given(VALUES)
def test_a_value_comes_back(value: Any) -> None:
    assert repr(travelled(value)) == repr(value) or travelled(value) == value
    assert type(travelled(value)) is type(value)


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
@pytest.mark.parametrize("inside", [False, True])
def test_arrays_and_their_numbers_come_back(array: Any, inside: bool) -> None:
    found = travelled([array])[0] if inside else travelled(array)
    if inside or type(array) is not np.float64:  # alone it is Python's own float
        assert found.dtype == array.dtype
    assert np.shape(found) == np.shape(array)
    np.testing.assert_array_equal(found, array)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        [len],
        {"a": object()},
        CIRCLE,
        range(3),
        1j,
        np.array(["a"]),
        np.array([len]),
        np.zeros(1, "datetime64[s]"),
        np.zeros(2, np.longdouble),
        list(range(MOST)),
        [np.zeros(MOST)],
        type("Numbers", (list,), {})(),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_what_is_no_plain_value_is_none(value: Any) -> None:
    assert not is_plain(value)
    with pytest.raises(NotPlain):
        encoded(value)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"list": 3},
        {"what": []},
        {"list": [], "tuple": []},
        {"dict": [[1, 2, 3]]},
        {"dict": [[{"list": []}, 1]]},
        {"array": [1.0], "dtype": "O", "shape": [1]},
        {"array": [1.0], "dtype": "float32", "shape": [2]},
        {"array": [[1.0], 2.0], "dtype": "float32", "shape": [2]},
        {"number": "a", "dtype": "float32"},
        {"number": 1.0, "dtype": "no type"},
    ],
    ids=repr,
)
def test_what_was_not_written_so_is_refused(found: Any) -> None:
    with pytest.raises(NotPlain):
        decoded(found)
