"""Streams of samples: generators, iterators, DataLoaders of PyTorch.

A thread reads ahead into a buffer of fixed size, from which batches are taken, so memory does not
grow. The order is the stream's own, not a permutation; an epoch is a number of samples.
"""

from __future__ import annotations

import array
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from horn.data import arrays, checks, conversion, units
from horn.data.dataset import Dataset
from horn.errors import DataError, HornError, is_whole
from horn.formats import parts, tables
from horn.mistakes import is_function

logger = logging.getLogger(__name__)

AHEAD = 4  # batches in the buffer
LOOK_S = 0.1  # between looks whether a reader still waits for a stream that gives nothing
JOIN_S = 5.0  # for the thread to see that it must end; it is a daemon

Item = tuple[np.ndarray, np.ndarray | None]  # rows of x and of y


class Stream:
    """Samples that are read when training needs them.

    source : a function that returns an iterator (called again when one has ended, so that
    epochs can go on), an object that can be iterated again and again, such as a
    ``torch.utils.data.DataLoader``, one with a length and pairs by number (a map-style data set,
    read from its first to its last), or an iterator, which is read once. It gives (x, y), or x
    alone: one sample (x (features,), y a number or (targets,)), or some (x (k, ...), y (k,) or
    (k, targets)); arrays, tables, tensors or lists, where none of x and y is skipped. They are cut
    into the job's batches anew. Tables have the columns of the first item, in its order.
    samples : of an epoch; by default those of one pass of a DataLoader or of pairs by number, else
    the job needs ``iterations``, which are one epoch. ``head`` : the first item, which shows the
    form of all.

    Raises
    ------
    DataError : the source gives nothing, or no samples, or other columns, or it raises an error,
    which is quoted.
    """

    def __init__(
        self,
        source: Any,
        samples: int | None = None,
        *,
        name: str = "data",
        scale: float | None = None,
    ) -> None:
        if samples is not None and not is_whole(samples, 1):
            raise DataError(
                f"{name}: samples is how many are an epoch, a whole number from 1, got {samples!r}"
            )
        is_map = gives_pairs_by_number(source)
        if samples is None:
            samples = len(source) if is_map else _length(source)
        source = partial(_in_order, source) if is_map else source
        self.source, self.samples, self.name, self._scale = source, samples, name, scale
        if not is_function(source) and not hasattr(source, "__iter__"):
            raise DataError(
                f"{name}: a stream is a function that returns an iterator, an iterator, or what "
                f"can be iterated, got {source!r:.80}"
            )
        self.is_once = isinstance(source, Iterator)
        self._kind: tuple[Any, ...] | None = None  # of all items
        self._names: tuple[str, ...] = ()  # of the columns of the first
        self._check: Callable[[Dataset], None] | None = None
        items = self._pass()
        try:
            first = next(items)
        except StopIteration:
            raise DataError(f"{name}: the stream gives no samples") from None
        # With the head, for the first reader; shared with the copies of ``with_samples``.
        self._waiting: list[Iterator[Item]] = [itertools.chain([first], items)]
        self.head = self._dataset(*first)

    def __len__(self) -> int:
        assert self.samples is not None
        return self.samples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "head":
            raise AttributeError(name)
        return getattr(self.head, name)  # n_features, x, y: the form of the samples

    def __repr__(self) -> str:
        return f"<Stream {self.name}, {self.samples or '?'} samples an epoch>"

    def with_samples(self, samples: int) -> Stream:
        """The stream with so many samples in an epoch."""
        return self._with(samples=samples)

    def with_check(self, check: Callable[[Dataset], None]) -> Stream:
        """The stream with a check of each item as it comes: labels differ from the head's."""
        return self._with(_check=check)

    def _with(self, **changes: Any) -> Stream:
        other = object.__new__(Stream)
        vars(other).update(vars(self), **changes)
        return other

    def whole(self) -> Dataset:
        """Read all samples of an epoch into memory. DataError : no length, or too few samples."""
        if self.samples is None:
            raise DataError(
                f"{self.name}: a stream without a length cannot be read whole; say how many "
                f"samples, horn.data.Stream(source, samples=1000), or pass arrays"
            )
        xs, ys, n = [], [], 0
        for x, y in self.items():
            xs.append(x[: self.samples - n])
            if y is not None:
                ys.append(y[: self.samples - n])
            if (n := n + len(xs[-1])) == self.samples:
                break
        y = parts.join(ys) if ys else None
        return self.head.with_fields(x=parts.join(xs), y=y)

    def items(self) -> Iterator[Item]:
        """Rows without end, beginning with those of the head. DataError : they end."""
        n = 0
        while True:
            items = self._waiting.pop() if self._waiting else self._pass()
            before = n
            for x, y in items:
                if self._check is not None:
                    self._check(self._dataset(x, y))
                n += len(x)
                yield x, y
            if self.is_once or n == before:
                remedy = (
                    "give a function that returns an iterator, which is called for each pass, or "
                    "fewer epochs"
                    if self.is_once
                    else "give one that does not end at once"
                )
                raise DataError(f"{self.name}: the stream ended after {n:,} samples; {remedy}")

    def _pass(self) -> Iterator[Item]:
        """Rows of one pass, checked."""
        try:
            made = self.source() if callable(self.source) else self.source
            if isinstance(made, Dataset):
                called = getattr(self.source, "__name__", "it")
                raise DataError(
                    f"{self.name}: {called} is a function that gives data; call it: {called}()"
                )
            for item in made:
                if (found := self._rows(item)) is None:
                    continue
                x, y, unit, names, shape = found
                now = (x.shape[1], x.dtype == np.uint8, unit, None if y is None else y.shape[1:],
                       None if y is None else y.dtype.kind, shape)  # fmt: skip
                if self._kind is None:
                    self._kind, self._names = now, names
                if now != self._kind:
                    worth = f", worth {unit.scale:g} each," * (x.dtype == np.uint8)
                    raise DataError(
                        f"{self.name}: an item of the stream has x {x.dtype} {x.shape}{worth} and "
                        f"y {None if y is None else (str(y.dtype), y.shape)}, other than those "
                        "before; give all items one kind"
                    )
                if names != self._names:
                    of_item = self._dataset(x, y).with_fields(feature_names=names)
                    checks.check_names(of_item, self._names, "the first item of the stream")
                yield x, y
        except HornError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.name}: the stream raised {type(error).__name__}: {error}"
            ) from error

    def _rows(
        self, item: Any
    ) -> tuple[np.ndarray, np.ndarray | None, units.Unit, tuple[str, ...], tuple[int, ...]] | None:
        """x, y, the unit of x, the names of its columns and the shape of a sample's targets; None
        without any sample.
        """
        if isinstance(item, (tuple, list)) and len(item) == 1:  # of a TensorDataset without y
            item = item[0]
        is_pair = isinstance(item, (tuple, list)) and len(item) == 2
        x, y = item if is_pair else (item, None)
        if isinstance(item, (tuple, list)) and not is_pair:
            raise DataError(
                f"{self.name}: the stream gives {type(item).__name__}s of {len(item)}, but x or "
                "(x, y) is expected"
            )
        if isinstance(x, Mapping):
            raise DataError(
                f"{self.name}: the stream gives several inputs by name; put their columns side by "
                "side, numpy.hstack([x, z]), in the order of net.input"
            )
        if isinstance(y, Mapping):
            raise DataError(
                f"{self.name}: the stream gives targets of several outputs by name "
                f"({', '.join(map(str, y))}), but those of a stream are of one; pass arrays, (x, "
                f"{{{', '.join(f'{str(name)!r}: ...' for name in y)}}}), or one .npz file"
            )
        given, names = x, tables.names_of(x)
        x = arrays.plain(tables.of_table(x, self.name), f"{self.name}: x")
        unit = units.unit_of(given, x, self.name)
        if y is not None:
            y = arrays.plain(tables.of_column(y, self.name), f"{self.name}: y")
        if x.shape[:1] == (0,) and (x.ndim > 1 if y is None else y.shape[:1] == (0,)):
            return None  # a chunk of which nothing is left
        is_one = x.ndim == 1 or (y is not None and y.ndim == 0)
        if is_one:
            x, y = x[None], None if y is None else y[None]
        x, _ = arrays.as_features(x, self.name, unit)
        if y is None:
            checks.check_rows(x, None, self.name)
            return x, None, unit, names, ()
        given, (y, classes) = y, arrays.as_labels_or_targets(y, self.name)
        if classes not in (None, (False, True)):
            raise DataError(
                f"{self.name}: labels of a stream are whole numbers, since nobody knows which "
                "names will come; number them, as in ['cat', 'dog'].index(name)"
            )
        arrays.check_shapes(x, y, self.name)
        checks.check_rows(x, y, self.name)
        return x, y, unit, names, arrays.target_shape(given, y)

    def _dataset(self, x: np.ndarray, y: np.ndarray | None) -> Dataset:
        assert self._kind is not None
        scale, why = self._kind[2] if self._scale is None else (self._scale, units.SAID)
        return Dataset(x, y, scale, self.name, feature_names=self._names, scale_is=why,
                       target_shape=self._kind[-1])  # fmt: skip


class Feed:
    """A stream's buffer, and the thread that fills it. ``ring`` : the data set to which the rows of
    ``take`` belong. limit : the number of samples at which reading stops. Close it.
    """

    def __init__(self, stream: Stream, batch_size: int, limit: int | None = None) -> None:
        head = stream.head
        self.stream, self.size, self.limit = stream, AHEAD * batch_size, limit
        x = np.zeros((self.size, head.n_features), head.x.dtype)
        y = None if head.y is None else np.zeros((self.size, *head.y.shape[1:]), head.y.dtype)
        self.ring = Dataset(x, y, head.scale, head.name)
        self._turn = threading.Condition()
        self._written = self._taken = self._freed = 0
        self._is_closed = self._is_silent = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self, n: int, gives_up: Callable[[], bool]) -> np.ndarray | None:
        """The rows of the next n samples, (n,) int64; rows of the previous call may be overwritten
        from now on. gives_up : asked while they do not come; None if it says so. Raises its errors,
        and the stream's own.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._fill, name="horn-stream", daemon=True)
            self._thread.start()
        with self._turn:
            self._freed = self._taken
            self._turn.notify_all()
            while self._written - self._taken < n:
                if self._error is not None:
                    raise self._error
                self._is_silent = True
                self._turn.wait(LOOK_S)
                if gives_up():
                    return None
                self._is_silent = False
            rows = np.arange(self._taken, self._taken + n, dtype=np.int64) % self.size
            self._taken += n
            return rows

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        if self._thread is None or self._is_silent:  # it may never come back
            return
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            logger.warning(
                "%s: the stream was asked for its next item and has not given it %g s after the "
                "end of training; it cannot be read again until it does",
                self.stream.name, JOIN_S,
            )  # fmt: skip

    def _fill(self) -> None:
        try:
            for x, y in self.stream.items():
                if not self._put(x, y):
                    return
        except BaseException as error:
            with self._turn:
                self._error = error
                self._turn.notify_all()

    def _put(self, x: np.ndarray, y: np.ndarray | None) -> bool:
        """Copy rows into the buffer when there is room; return whether more are needed."""
        start = 0
        while start < len(x):
            with self._turn:
                while not self._is_closed and self._written - self._freed == self.size:
                    self._turn.wait()
                if self._is_closed:
                    return False
                at = self._written % self.size
                room = min(self.size - at, self.size - (self._written - self._freed))
            n = min(room, len(x) - start)
            self._write(self.ring.x, at, x[start : start + n], "x")
            if self.ring.y is not None and y is not None:
                self._write(self.ring.y, at, y[start : start + n], "y")
            with self._turn:
                self._written += n
                self._turn.notify_all()
            start += n
        return self.limit is None or self._written < self.limit

    def _write(self, ring: np.ndarray, at: int, rows: np.ndarray, letter: str) -> None:
        """Copy rows to a place of the buffer, which has the type of the first item."""
        with np.errstate(over="ignore"):
            ring[at : at + len(rows)] = rows
        if rows.dtype == np.float64 != ring.dtype and np.isinf(ring[at : at + len(rows)]).any():
            raise DataError(
                f"{self.stream.name}: an item of the stream has {letter} up to "
                f"{np.abs(rows).max():g} in {rows.dtype}, but the first one is {ring.dtype}, in "
                f"which this is infinity; give all items one type, or divide the numbers"
            )


def is_stream(thing: Any) -> bool:
    """Whether a value is a stream: samples one after another, no array, table or file name."""
    if isinstance(thing, (Stream, Iterator)) or inspect.isgeneratorfunction(thing):
        return True
    if isinstance(thing, (Dataset, np.ndarray, list, tuple, dict, str, bytes, type)):
        return False
    if is_array(thing) or arrays.is_sparse(thing) or hasattr(thing, "__fspath__"):
        return False
    return isinstance(thing, Iterable) or is_function(thing) or gives_pairs_by_number(thing)


def is_array(thing: Any) -> bool:
    """Whether ``numpy.asarray`` reads it at once: an array, a table, or memory of Python."""
    names = ("__array__", "__array_interface__", "dtypes")
    is_memory = isinstance(thing, (memoryview, bytearray, array.array))
    return is_memory or any(hasattr(thing, name) for name in names)


def gives_pairs_by_number(thing: Any) -> bool:
    """Whether it is a map-style data set: a length, and a pair (x, y) for each number below. Items
    that are alike in shape are the rows of an array. A Dataset of PyTorch is not one: it says
    elsewhere which DataLoader shuffles it.
    """
    if isinstance(thing, type) or not all(
        hasattr(type(thing), name) for name in ("__len__", "__getitem__")
    ):
        return False
    is_torchs = any(each.__module__.startswith("torch.utils.data") for each in type(thing).__mro__)
    if is_torchs or hasattr(thing, "__iter__") or is_array(thing) or not len(thing):
        return False
    try:
        return arrays.is_pair(thing[0])
    except Exception:
        return True  # it fails again as a stream, which quotes the error


def _in_order(pairs: Any) -> Iterator[Any]:
    return (pairs[k] for k in range(len(pairs)))  # iter(pairs) would go on to an IndexError


def as_stream(thing: Any, name: str) -> Stream:
    return thing if isinstance(thing, Stream) else Stream(thing, name=name)


def read(data: Any, what: str) -> Dataset:
    """A checked dataset, as ``as_dataset``; a stream that has a length is read whole."""
    return as_stream(data, what).whole() if is_stream(data) else conversion.as_dataset(data, what)


def _length(source: Any) -> int | None:
    """The samples of one pass, if the source knows them, else None."""
    if type(source).__module__.partition(".")[0] == "torch" or hasattr(source, "batch_sampler"):
        try:
            sampler = getattr(source, "sampler", None)  # it may take some, or some twice
            n = len(source.dataset if sampler is None else sampler)
            drops_last = getattr(source, "drop_last", False) and source.batch_size
            return n - n % source.batch_size if drops_last else n
        except (TypeError, AttributeError, NotImplementedError):
            return None  # an IterableDataset
    return None
