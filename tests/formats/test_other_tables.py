"""Tables of polars and pyarrow: as those of pandas."""

import numpy as np
import pytest

from horn.data import as_dataset
from horn.errors import DataError

X = np.arange(12.0).reshape(4, 3)
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}


def test_columns_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(COLUMNS)
    found = as_dataset((frame, polars.Series([0, 1, 0, 1])))
    np.testing.assert_array_equal(found.x, X)
    assert found.feature_names == ("a", "b", "c")
    dated = frame.with_columns(polars.date(2024, 1, 1).alias("b"), polars.lit("red").alias("c"))
    with pytest.raises(DataError, match=r"no numbers: 'b' \(Date\), 'c' \(String\). df.to_dummies"):
        as_dataset(dated)
    with pytest.raises(DataError, match=r"x is a LazyFrame of polars; pass x.collect\(\)"):
        as_dataset(frame.lazy())


def test_columns_of_pyarrow():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(COLUMNS)
    for found in (
        as_dataset((table, arrow.array([0, 1, 0, 1]))),
        as_dataset(table.to_batches()[0]),
    ):
        np.testing.assert_array_equal(found.x, X)
        assert found.feature_names == ("a", "b", "c")
    dated = arrow.table({"a": X[:, 0], "when": arrow.array([0, 1, 2, 3], arrow.date32())})
    with pytest.raises(
        DataError, match=r"'when' \(date32\[day\]\). table.drop_columns\(\['when'\]"
    ):
        as_dataset(dated)
