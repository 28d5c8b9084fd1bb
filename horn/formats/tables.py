"""Tables of pandas, polars and pyarrow, without importing them: their numbers as arrays, complaints
about other columns, and the names of columns.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from horn.errors import DataError

logger = logging.getLogger(__name__)

SHOWN = 8  # columns that a message names
DAYS = "days since a date: (df[column] - start) / pandas.Timedelta(days=1)"  # instead of dates
LOOKED_AT = 100  # values of a column of text, to see whether they are numbers
# Beginnings of the names of numeric column types of polars and pyarrow, in small letters.
NUMBERS = ("int", "uint", "float", "double", "halffloat", "bool", "decimal")


def is_pandas(thing: Any) -> bool:
    return _library(thing) == "pandas"


def is_table(thing: Any) -> bool:
    """Whether it is of pandas, polars or pyarrow: a table, or a column of one."""
    return _library(thing) in ("pandas", "polars", "pyarrow")


def names_of(x: Any) -> tuple[str, ...]:
    """The names of a table's columns, as text; () for anything else, and for a table whose columns
    are numbered from 0, as nobody named them, or have one name twice.
    """
    if not is_table(x) or hasattr(x, "collect"):
        return ()
    given = tuple(getattr(x, "column_names" if _library(x) == "pyarrow" else "columns", ()))
    names = tuple(map(str, given))
    is_named = len(set(names)) == len(names) and given != tuple(range(len(given)))
    return names if is_named else ()


def names_of_all(x: Any, what: str) -> tuple[str, ...]:
    """The names of a table's columns, or of those of every table in a list; () without any.

    DataError : two tables of a list have other columns.
    """
    if not isinstance(x, (list, tuple)):
        return names_of(x)
    found = [names_of(one) for one in x]
    for k, names in enumerate(found):
        if names != found[0]:
            raise DataError(
                f"{what}: x[{k}] has the columns {first_few(names)}, but x[0] "
                f"{first_few(found[0])}; give all of them the same, in the same order"
            )
    return found[0] if found else ()


def warn_of_order(x: Any, y: Any, what: str) -> None:
    """Warn where tables and columns of pandas, or those of {name: table}, have the same index in
    different orders: their rows are paired as they lie.
    """
    given: dict[str, Any] = {}
    for letter, side in (("x", x), ("y", y)):
        named = side.items() if isinstance(side, Mapping) else ()
        given |= {f"{letter}[{name!r}]": one for name, one in named} or {letter: side}
    found = {n: one.index for n, one in given.items() if is_pandas(one) and hasattr(one, "iloc")}
    first, *others = found or ("",)
    for name in others:
        a, b = found[first], found[name]
        if len(a) != len(b) or a.equals(b) or not (a.is_unique and b.is_unique):
            continue
        if b.isin(a).all():
            logger.warning(
                "%s: %s and %s have the same index in different orders, and their rows are paired "
                "as they lie; to pair them by the index pass %s.loc[%s.index], and %s.to_numpy() "
                "if it means nothing", what, first, name, name, first, name,
            )  # fmt: skip


def difference(got: tuple[str, ...], expected: tuple[str, ...]) -> str:
    """What two unequal lists of columns differ in, in words."""
    more, absent = sorted(set(got) - set(expected)), sorted(set(expected) - set(got))
    if more and absent:
        return f"{first_few(more)} instead of {first_few(absent)}"
    if len(got) != len(expected):
        return f"{len(got):,} columns instead of {len(expected):,}"
    at = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
    return f"another order, {got[at]!r} where {expected[at]!r} was"


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def _check_columns(x: Any, what: str) -> None:
    """Check the columns of a polars or pyarrow table. DataError : a column holds no numbers; NumPy
    would turn dates into days since 1970.
    """
    if _library(x) == "polars" and callable(getattr(x, "collect", None)):
        raise DataError(f"{what}: x is a LazyFrame of polars; pass x.collect()")
    if _library(x) == "polars":
        kinds = dict(getattr(x, "schema", {}))
        remedy = "df.to_dummies({0}) writes a column of 0 and 1 per category, df.drop({0}) leaves "
    elif _library(x) == "pyarrow" and hasattr(x, "column_names"):
        kinds = dict(zip(x.column_names, x.schema.types, strict=True))
        remedy = "table.drop_columns({0}) leaves "
    else:
        return
    odd = {n: kind for n, kind in kinds.items() if not str(kind).lower().startswith(NUMBERS)}
    if odd:
        shown = first_few(odd, lambda name: f"{name!r} ({odd[name]})")
        raise DataError(
            f"{what}: x has columns that hold no numbers: {shown}. "
            f"{remedy.format(list(odd)[:SHOWN])}them out"
        )


def of_table(x: Any, what: str) -> Any:
    """The numbers of a DataFrame (n, columns); anything else unchanged.

    DataError : a column holds text, categories, dates or other objects, or a value is missing. All
    such columns are named, with the call that helps.
    """
    if not is_pandas(x) or not hasattr(x, "columns"):
        _check_columns(x, what)
        return x
    names, kinds = list(x.columns), [str(kind) for kind in x.dtypes]
    odd = {
        at: kind
        for at, kind in enumerate(kinds)
        if not _is_numeric(x.dtypes.iloc[at]) and not _holds_numbers(x.iloc[:, at])
    }
    if odd:
        shown = first_few(odd, lambda at: f"{names[at]!r} ({odd[at]})")
        every = {at: _remedy(kind) or _of_text(x.iloc[:, at]) for at, kind in odd.items()}
        remedies = []
        of_words = {
            at for at, kind in odd.items() if kind.startswith(("object", "category", "str"))
        }
        if categories := [n for at, n in enumerate(names) if at in of_words and not every[at]]:
            remedies.append(f"a column of 0 and 1 per category: pandas.get_dummies(df, "
                            f"columns={categories[:SHOWN]!r})")  # fmt: skip
        remedies += dict.fromkeys(filter(None, every.values()))
        write = f"Write {'; '.join(remedies)}; or leave" if remedies else "Leave"
        raise DataError(
            f"{what}: x has columns that hold no numbers: {shown}. {write} them out: "
            f"df.drop(columns={[names[at] for at in odd][:SHOWN]!r})"
        )
    absent = x.isna().sum()
    holes = {n: int(k) for n, k in zip(names, absent.tolist(), strict=True) if k}
    if holes:
        shown = first_few(holes, lambda name: f"{name!r} ({holes[name]:,} of {len(x):,})")
        raise DataError(
            f"{what}: x has missing values in columns {shown}. Drop those rows, "
            "df.dropna(), or fill them in, df.astype(float).fillna(df.mean())"
        )
    if len(set(kinds)) == 1 and isinstance(x.dtypes.iloc[0], np.dtype) and kinds[0] != "object":
        return x.to_numpy()
    small = all(kind.lower() in ("float32", "float16", "bool", "boolean", "int8", "uint8",
                                 "int16", "uint16") for kind in kinds)  # fmt: skip
    return x.to_numpy(dtype=np.float32 if small else np.float64)


def of_column(y: Any, what: str) -> Any:
    """The values of a Series or a Categorical, or of a DataFrame of targets; else unchanged."""
    if not is_pandas(y):
        return y
    if hasattr(y, "columns"):
        if len(y.columns) == 1 and not _is_float(y.dtypes.iloc[0]):
            return of_column(y.iloc[:, 0], what)
        return of_table(y, f"{what}: y")
    dtype = y.dtype
    if _is_numeric(dtype) and not isinstance(dtype, np.dtype):  # Int64, Float64, boolean
        if y.isna().any():
            return np.asarray(y, object)
        kind = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64}[dtype.kind]
        return y.to_numpy(dtype=kind)
    return np.asarray(y) if isinstance(dtype, np.dtype) else np.asarray(y, object)


def _remedy(kind: str) -> str:
    """What makes numbers of a column of pandas of this kind; "" if nothing does."""
    if kind.startswith(("timedelta", "duration")):
        return "days: df[column] / pandas.Timedelta(days=1)"
    if kind.startswith(("date", "time", "period")):
        return DAYS
    if kind.startswith("complex"):
        return "the absolute value: df[column].abs(), or the real part: numpy.real(df[column])"
    if kind.startswith("decimal"):
        return "numbers: df[column].astype(float)"
    return ""


def _of_text(column: Any) -> str:
    """What makes numbers of a column of text most of which is numbers; "" of another."""
    text = column.iloc[:0] if str(column.dtype) == "category" else column.dropna()
    given = [str(one).strip() for one in text.iloc[:LOOKED_AT]]
    with_comma = [one for one in given if re.fullmatch(r"[+-]?\d+,\d+", one)]
    plain = [one for one in given if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", one)]
    if not given or 2 * (len(with_comma) + len(plain)) <= len(given):
        return ""
    if with_comma:
        return (
            "numbers of text with decimal commas: pandas.to_numeric(df[column].str.replace(',', "
            "'.'), errors='coerce')"
        )
    return "numbers of text: pandas.to_numeric(df[column], errors='coerce')"


def _holds_numbers(column: Any) -> bool:
    """Whether a column of pandas has the type of objects, and numbers for all values."""
    return column.dtype == np.object_ and all(
        isinstance(one, (Real, Decimal, np.bool_)) for one in column.dropna()
    )


def _is_numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category"


def _is_float(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") == "f"


def first_few(names: Collection[Any], said: Callable[[Any], str] = repr) -> str:
    """The first few names in words, and the number of the others."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(said, itertools.islice(names, SHOWN))) + more
