"""Samples and their labels or targets, as they are stored: a dataset is never converted as a whole.
Bytes stay bytes, a memory-mapped file stays a file; a batch becomes floating point when it is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from horn.data import ahead, arrays, order
from horn.data.classes import Classes, recode
from horn.data.normalization import Normalization
from horn.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, one per row, and their labels or targets.

    Shapes
    ------
    x (n, features) uint8, float32 or float64, contiguous rows; memory-mapped or not
    y (n,) int64 labels · (n, n_targets) float32 or float64 targets · None; of sequences also
    (n, steps) int64 labels

    weight (n,) float32 or float64, what each sample counts in the loss that is learned from · None

    Units: ``scale`` is what one unit of x is worth, 1/255 for bytes. It is applied when a batch is
    read; x stays as it is stored. y is not scaled. ``name`` is what messages call the data.
    classes : what the labels are, if they are no whole numbers: label k is ``classes[k]``.
    normalization : applied after ``scale`` when a batch is read. ids (n,) : what the samples are
    called, text, and ``id_name`` what that is called; nothing learns from them. shape : of a sample
    that is more than a row of numbers, as (height, width, channels), or (steps, features); () of
    one that is not. pieces : so many rows in turn are one sequence, piece after piece. lengths (n,)
    int64 : of sequences that end early (``horn.data.sequences``), how many of the steps each has;
    None: all.

    Raises
    ------
    DataError : no samples, other shapes or types, lengths that differ, scale 0 or not finite.
    """

    x: np.ndarray
    y: np.ndarray | None
    scale: float = 1.0
    name: str = "data"
    classes: Classes | None = None
    normalization: Normalization | None = None
    ids: np.ndarray | None = None
    id_name: str = "id"
    weight: np.ndarray | None = None
    shape: tuple[int, ...] = ()
    pieces: int = 1
    lengths: np.ndarray | None = None
    _checked: bool = field(default=False, init=False, repr=False)
    _is_file: bool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        arrays.check_shapes(self.x, self.y, self.name)
        if self.weight is not None:
            arrays.check_weight(self.weight, len(self.x), self.name)
        if not np.isfinite(self.scale) or self.scale == 0:
            raise DataError(
                f"{self.name}: scale is {self.scale}; give what one unit of x is worth, such as "
                "1/255"
            )
        if self.shape and math.prod(self.shape) != self.n_features:
            raise DataError(
                f"{self.name}: has {self.n_features:,} features per sample, which are no sample of "
                f"shape {self.shape}; leave the shape out, or give x of the same samples"
            )
        if self.lengths is not None:
            arrays.check_lengths(self.lengths, len(self.x), self.shape, self.name)
        if self.normalization is not None and len(self.normalization.mean) != self.n_features:
            raise DataError(
                f"{self.name}: has {self.n_features:,} features per sample, but was to be "
                f"normalized as data of {len(self.normalization.mean):,}; give the same features"
            )

    @property
    def has_labels(self) -> bool:
        """Whether y is whole numbers: classes, of each sample or of each step of one."""
        return self.y is not None and self.y.dtype.kind == "i"

    @property
    def n_features(self) -> int:
        """Numbers per sample."""
        return int(self.x.shape[1])

    @property
    def images(self) -> np.ndarray:
        """x as it was given, (n, *shape): images (n, height, width, channels) as they are stored;
        a view. Without a shape it is x.
        """
        return self.x.reshape(-1, *(self.shape or self.x.shape[1:]))

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __getitem__(self, rows: slice) -> Dataset:
        """The samples of a slice, as views."""
        if not isinstance(rows, slice):
            raise TypeError(
                f"{self.name}: index with a slice, data[:100]; for single samples take data.x "
                "and data.y"
            )
        return self._of(rows)

    def take(self, n: int) -> Dataset:
        """The first n samples, as views.

        DataError : n is below 1 or above the number of samples.
        """
        if not 1 <= n <= len(self):
            raise DataError(
                f"{self.name}: asked for the first {n:,} samples of {len(self):,}; take 1 to "
                f"{len(self):,}"
            )
        return self[:n]

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """(the others, about ``fraction`` of the samples): holds out a part, drawn at random.

        Each part is a copy that keeps the type of x and the order of the samples. The same seed
        gives the same parts on every machine.

        DataError : a part would be empty.
        """
        n = len(self)
        n_second = round(n * fraction) if 0 < fraction < 1 else 0
        if not 0 < n_second < n:
            raise DataError(
                f"{self.name}: split({fraction:g}) of {n:,} samples leaves one part empty; "
                f"give a fraction between 0 and 1, such as 0.1"
            )
        rows = order.permutation(n, seed, 0)
        return self._of(np.sort(rows[n_second:])), self._of(np.sort(rows[:n_second]))

    def read(self, rows: Any, out: np.ndarray) -> np.ndarray:
        """Fill ``out`` with x[rows] * scale, normalized if it is to be, and return it: the
        specification of faster gathers.

        rows (n,) int64, 0 <= row < len(self) · out (n, features) float32 or float64, C-contiguous.
        Values are converted to the type of ``out`` before the product, which is rounded once.
        """
        out[...] = self.x[rows]
        if self.normalization is not None:
            center, factor = self.normalization.steps(self.scale, out.dtype)
            out -= center
            out *= factor
        elif self.scale != 1:
            out *= out.dtype.type(self.scale)
        return out

    def with_classes(self, classes: Classes | None, owner: str) -> Dataset:
        """The same samples with the labels coded as the ``owner``'s classes (None: whole numbers).

        DataError : a label is none of them.
        """
        if self.y is None or self.y.ndim != 1 or self.classes == classes:
            return self
        y = recode(self.y, self.classes, classes, self.name, owner)
        return self.with_fields(y=y, classes=classes)

    def with_fields(self, **changes: Any) -> Dataset:
        """A copy with some fields replaced, whose contents need not be checked again."""
        part = replace(self, **changes)
        object.__setattr__(part, "_checked", self._checked)
        return part

    def with_first_pieces(self, n: int) -> Dataset:
        """The first n pieces of each sequence, copied."""
        rows = np.arange(len(self)).reshape(-1, self.pieces)[:, :n].ravel()
        return self._of(rows).with_fields(pieces=n)

    def expect(self, rows: Any) -> None:
        """Let the kernel fetch the rows that are read next, if they are in a mapped file."""
        if self._is_file is None:
            object.__setattr__(self, "_is_file", ahead.is_file(self.x))
        if self._is_file:
            ahead.want(self.x, rows)

    def _of(self, rows: slice | np.ndarray) -> Dataset:
        of_samples = {name: getattr(self, name) for name in ("y", "ids", "weight", "lengths")}
        part = {name: a[rows] for name, a in of_samples.items() if a is not None}
        return self.with_fields(x=self.x[rows], **part)
