"""Samples and their labels or targets, as they are stored: a dataset is never converted as a whole.
Bytes stay bytes, a memory-mapped file stays a file; a batch becomes floating point when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from horn.data import arrays, order, sample_weights, units
from horn.data.classes import Classes, recode
from horn.data.normalization import Normalization
from horn.data.targets import OutputTargets, Parts, by_part, own, recoded, side_by_side
from horn.errors import DataError, is_whole
from horn.formats import ahead
from horn.mistakes import DATA_ATTRIBUTES, no_attribute, shown

OfRows = Callable[[np.ndarray], np.ndarray]
OfSteps = Callable[[np.ndarray, str | None], np.ndarray]
OF_SAMPLES = ("y", "ids", "weight", "lengths")  # arrays with a row for each sample, besides x
FIRST_ROWS = 1024  # which show in what units numbers are: more of a mapped file are not read for it


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, one per row, and their labels or targets.

    Shapes
    ------
    x (n, features) uint8, float32 or float64, contiguous rows; memory-mapped or not
    y (n,) int64 labels · (n, n_targets) float32 or float64 targets · None; of sequences also
    (n, steps) int64 labels

    weight (n,) float32 or float64, the weight of each sample in the training loss; of sequences
    also (n, steps), of each step, not read behind ``lengths``; where the rows are the steps of one
    sequence, of these · None

    Units: ``scale`` is the value of one unit of x, 1/255 for bytes. It is applied when a batch is
    read; x stays as it is stored. y is not scaled. scale_is : "said", also for numbers that are
    themselves; "assumed" for bytes of arrays and files, about which nobody said anything: a model
    that learned from bytes takes them for such; "table" for the bytes of a table, which are
    numbers. ``name`` is the name of the data in messages.
    classes : the labels' meanings, if they are no whole numbers: label k is ``classes[k]``.
    normalization : applied after ``scale`` when a batch is read. ids (n,) : the names of the
    samples, text, and ``id_name`` the name of that column; nothing learns from them. shape : of a
    sample that is more than a row of numbers, as (height, width, channels), or (steps, features);
    () of a plain row. pieces : the number of successive rows that are one sequence. lengths (n,)
    int64 : the number of steps of each sequence, where sequences end early
    (``horn.data.sequences``); None: all steps. targets : for a network with several outputs, the
    columns of y of each; y is then (n, columns), labels too. feature_names : the names of the
    columns of x, from a table or the header of a .csv file: a model that learned from named
    features refuses other names, and another order. target_shape : of a sample's targets that are
    more than a row of numbers, as (height, width, channels); () of a plain row. is_text : it is as
    ``horn.data.text`` makes it, x one-hot characters and y the next ones: other classes would be
    another alphabet.

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
    targets: Parts = ()
    feature_names: tuple[str, ...] = ()
    scale_is: str = units.SAID
    target_shape: tuple[int, ...] = ()
    is_text: bool = False
    _checked: bool = field(default=False, init=False, repr=False)
    _is_file: bool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for what in ("x", "y", "weight", "lengths"):
            given = getattr(self, what)
            if not isinstance(given, np.ndarray) and (given is not None or what == "x"):
                raise DataError(
                    f"{self.name}: {what} is {shown(given)}, but an array is expected; write "
                    "numpy.array(...), or horn.data.as_dataset((x, y)), which converts x and y"
                )
        arrays.check_shapes(self.x, self.y, self.name)
        if self.targets:
            n = sum(part.size for part in self.targets)
            if self.y is None or self.y.shape[1:] != (n,):
                raise DataError(
                    f"{self.name}: y has shape {None if self.y is None else self.y.shape}, but the "
                    f"targets of {', '.join(part.name for part in self.targets)} are {n} columns"
                )
        is_number = isinstance(self.scale, (int, float, np.number))
        if not is_number or not np.isfinite(self.scale) or self.scale == 0:
            raise DataError(
                f"{self.name}: scale is {self.scale!r:.80}; give what one unit of x is worth, such "
                "as 1/255"
            )
        if self.shape and math.prod(self.shape) != self.n_features:
            raise DataError(
                f"{self.name}: has {self.n_features:,} features per sample, which are no sample of "
                f"shape {self.shape}; leave the shape out, or give x of the same samples"
            )
        if self.lengths is not None:
            arrays.check_lengths(self.lengths, len(self.x), self.shape, self.name)
        if self.weight is not None:
            weight = sample_weights.checked_weight(
                self.weight, len(self), self.name, ends=self.lengths
            )
            object.__setattr__(self, "weight", weight)
        if self.normalization is not None and not self.normalization.fits(self.n_features):
            raise DataError(
                f"{self.name}: has {self.n_features:,} features per sample, but was to be "
                f"normalized as data of {len(self.normalization.mean):,}; give the same features"
            )

    def __repr__(self) -> str:
        shape = self.shape or (self.n_features,)
        of = "sequences" if self.lengths is not None else "samples"
        answers = "no answers"
        if self.y is not None:
            names = [part.name for part in self.targets]
            answers = ", ".join(names) or ("labels" if self.has_labels else "targets")
            answers += f" {self.target_shape or self.y.shape[1:]}" if self.y.ndim > 1 else ""
        answers += ", weights" if self.weight is not None else ""
        return f"<Dataset {self.name}: {len(self):,} {of} of {shape} {self.x.dtype}, {answers}>"

    def weight_of(self, row: int, step: int) -> float:
        """The weight of a sample in the training loss, at a step."""
        if self.weight is None:
            return 1.0
        return float(self.weight[row] if self.weighs == "sample" else self.weight[row, step])

    @property
    def weighs(self) -> str:
        """What has a weight in the training loss: a "sample", a "step" of a sequence, or "",
        nothing.
        """
        return "" if self.weight is None else ("sample", "step")[self.weight.ndim - 1]

    @property
    def has_labels(self) -> bool:
        """Whether y is whole numbers: classes, of each sample or of each step of one."""
        return self.y is not None and self.y.dtype.kind == "i"

    def with_targets(self, y: Any) -> Dataset:
        """The same samples with other labels or targets, as ``horn.data.as_dataset`` takes them:
        {"digit": labels, "odd": numbers} for several outputs.
        """
        classes: Classes | None = None
        parts: Parts = ()
        shape: tuple[int, ...] = ()
        if isinstance(y, Mapping):
            y, parts = side_by_side(y, self.name)
        elif y is not None:
            given, (y, classes) = y, arrays.as_labels_or_targets(y, self.name)
            shape = arrays.target_shape(given, y)
        return replace(self, y=y, classes=classes, targets=parts, target_shape=shape)

    def of_output(self, name: str) -> Dataset:
        """The same samples with the targets of one of several outputs, as if it were the only one.

        DataError : there are no targets of this name.
        """
        part = self.targets_of(name)
        assert self.y is not None
        y = own(self.y, part)
        return self.with_fields(y=y, classes=part.classes, targets=(), target_shape=part.shape)

    def targets_of(self, name: str) -> OutputTargets:
        """The columns of y with one output's targets. DataError : there are none."""
        for part in self.targets:
            if part.name == name:
                return part
        if self.y is None:
            raise DataError(f"{self.name}: has no targets; pass (x, {{{name!r}: ...}})")
        raise DataError(
            f"{self.name}: has no targets of {name!r}, but of "
            f"{', '.join(repr(part.name) for part in self.targets) or 'one output without a name'}"
        )

    def of_outputs(self, names: Sequence[str], several: bool) -> Dataset:
        """The same samples with the targets that a network needs: those of the outputs with losses,
        by ``names``. several : the network has more than one output, with targets by name; else the
        targets are those of its only output.

        DataError : there are none of an output, or they are of several that are not told apart.
        """
        if self.y is None or not names:
            return self
        if not several:
            return self.of_output(names[0]) if self.targets else self
        has = [part.name for part in self.targets]
        if not self.targets and len(names) == 1:
            by_step = self.has_labels and self.y.ndim > 1
            size = 1 if self.y.ndim == 1 else self.y.shape[1]
            kind = self.has_labels, self.classes, by_step, self.target_shape
            part = OutputTargets(names[0], 0, size, *kind)
            y = self.y.astype(np.float64) if self.y.dtype.kind == "i" else self.y
            return self.with_fields(y=y.reshape(len(y), -1), targets=(part,), classes=None)
        if missing := [repr(name) for name in names if name not in has]:
            got = f"those of {', '.join(map(repr, has))}"
            if not self.targets:
                got = f"y of shape {self.y.shape}, without a name"
            raise DataError(
                f"{self.name}: the targets of {', '.join(missing)} are missing: the network has "
                f"the outputs {', '.join(map(repr, names))}, and the data have {got}; pass "
                f"(x, {{{', '.join(f'{name!r}: ...' for name in names)}}})"
            )
        return self

    @property
    def n_features(self) -> int:
        """The numbers per sample."""
        return int(self.x.shape[1])

    @property
    def images(self) -> np.ndarray:
        """x in its original shape (n, *shape), as images (n, height, width, channels), as stored; a
        view. Without a shape it is x.
        """
        return self.x.reshape(-1, *(self.shape or self.x.shape[1:]))

    @property
    def units(self) -> dict[str, Any]:
        """What a model keeps to know data in other units by: the ``scale`` of bytes, else None, and
        the ``highest`` number.
        """
        return {"scale": self.scale if self.x.dtype == np.uint8 else None, "highest": self.highest}

    @property
    def highest(self) -> float:
        """The largest number of the first samples, in its unit."""
        return float(self.x[:FIRST_ROWS].max(initial=0)) * abs(self.scale)

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("a data set", name, dir(self), DATA_ATTRIBUTES)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __getitem__(self, rows: slice) -> Dataset:
        """The samples of a slice, as views."""
        if not isinstance(rows, slice):
            raise TypeError(
                f"{self.name}: index with a slice, data[:100]; its arrays are  x, y = data.x, "
                'data.y , and test data are asked for: horn.data.digits("test")'
            )
        return self._of(rows)

    def take(self, n: int) -> Dataset:
        """The first n samples, as views.

        DataError : n is below 1 or above the number of samples.
        """
        if not is_whole(n, 1) or n > len(self):
            said = f"asked for the first {n!r} samples of {len(self):,}; take 1 to {len(self):,}"
            raise DataError(f"{self.name}: {said}")
        return self[:n]

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """The two parts of a random split: (the others, about ``fraction`` of the samples).

        Each part is a copy that keeps the type of x and the order of the samples. The same seed
        gives the same parts on every machine.

        DataError : a part would be empty.
        """
        n = len(self)
        is_part = isinstance(fraction, float | np.floating) and 0 < fraction < 1
        n_second = round(n * fraction) if is_part else 0
        if not 0 < n_second < n:
            raise DataError(
                f"{self.name}: split({fraction}) of {n:,} samples leaves one part empty; "
                f"give a fraction between 0 and 1, such as 0.1"
            )
        if not is_whole(seed, 0) or seed >= 2**64:
            raise DataError(
                f"{self.name}: split with seed {shown(seed)}: it is a whole number from 0, below "
                "2**64"
            )
        rows = order.permutation(n, seed, 0)
        return self._of(np.sort(rows[n_second:])), self._of(np.sort(rows[:n_second]))

    def joined(self, held: Dataset, seed: int) -> Dataset:
        """The data of which ``split`` with this seed made this part and ``held``: a copy."""
        rows = order.permutation(len(self) + len(held), seed, 0)
        places = np.sort(rows[len(held) :]), np.sort(rows[: len(held)])
        found = {}
        for name in ("x", *OF_SAMPLES):
            if (first := getattr(self, name)) is not None:
                found[name] = np.empty((len(rows), *first.shape[1:]), first.dtype)
                for at, part in zip(places, (self, held), strict=True):
                    found[name][at] = getattr(part, name)
        return self.with_fields(**found)

    def read(self, rows: Any, out: np.ndarray) -> np.ndarray:
        """Fill ``out`` with x[rows] * scale, normalized if the dataset is, and return it: the
        specification of faster gathers.

        rows (n,) int64, 0 <= row < len(self) · out (n, features) float32 or float64, C-contiguous.
        Values are converted to the type of ``out`` before the product, which is rounded once; for
        normalized doubles only the result is converted.
        """
        if self.normalization is not None:
            center, factor = self.normalization.steps(self.scale, self.x.dtype, out.dtype)
            seen = self.x[rows].astype(center.dtype).reshape(-1, len(center))  # a copy; each step
            seen -= center
            seen *= factor
            out[...] = seen.reshape(out.shape)
            return out
        out[...] = self.x[rows]
        if self.scale != 1:
            out *= out.dtype.type(self.scale)
        return out

    @property
    def all_classes(self) -> Classes | Mapping[str, Classes | None] | None:
        """The classes; for several outputs, by name, those of each that has labels."""
        if not self.targets:
            return self.classes
        return {part.name: part.classes for part in self.targets if part.is_labels}

    def with_classes(
        self, classes: Classes | Mapping[str, Classes | None] | None, owner: str
    ) -> Dataset:
        """The same samples with the labels coded as the ``owner``'s classes (None: whole numbers);
        for several outputs, by their names.

        DataError : a label is none of the classes.
        """
        if self.targets or isinstance(classes, Mapping):
            if self.y is None or not isinstance(classes, Mapping):
                return self
            y, targets = recoded(self.y, self.targets, classes, self.name, owner)
            return self.with_fields(y=y, targets=targets)
        if self.y is not None and self.y.dtype.kind == "f" and self.y.shape[1:] == (1,):
            if classes and {*map(type, classes)} <= {int, float}:  # labels, not targets
                own, codes = np.unique(self.y, return_inverse=True)
                labels = self.with_fields(y=codes.reshape(-1), classes=tuple(own.tolist()))
                return labels.with_classes(classes, owner)
        if self.y is None or not self.has_labels or self.classes == classes:
            return self
        if self.is_text:
            raise DataError(
                f"{self.name}: was read with another alphabet than {owner}; write "
                "horn.data.text(..., alphabet=data.classes), of the training data, or model.classes"
            )
        y = recode(self.y, self.classes, classes, self.name, owner)
        return self.with_fields(y=y, classes=classes)

    def called(self, classes: Classes | Mapping[str, Classes | None]) -> Dataset:
        """The same labels, as numbers of these classes; for several outputs, by name."""
        if not isinstance(classes, Mapping):
            return self.with_fields(classes=classes)
        parts = (replace(each, classes=classes.get(each.name)) for each in self.targets)
        return self.with_fields(targets=tuple(parts))

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
        """Ask the kernel to fetch the next rows, if they are in a mapped file."""
        if self._is_file is None:
            object.__setattr__(self, "_is_file", ahead.is_file(self.x))
        if self._is_file:
            ahead.want(self.x, rows)

    def _of(self, rows: slice | np.ndarray) -> Dataset:
        return self.mapped(self.x[rows], of_rows=lambda each: each[rows])

    def mapped(
        self, x: np.ndarray, *, of_rows: OfRows, of_steps: OfSteps | None = None, **changes: Any
    ) -> Dataset:
        """The dataset with other samples x, and what belongs to them. of_rows : of what there is
        one of each sample, the new one. of_steps : the same of the targets of an output, (n,
        columns), whose name it is told, and of weights of steps, (n, steps), of None; by default
        also ``of_rows``. changes : fields that have other values.
        """
        y, targets, weight = self.y, self.targets, self.weight
        f: OfSteps = of_steps or (lambda each, _: of_rows(each))
        if y is not None and targets:
            y, targets = by_part(y, targets, f)
        elif y is not None:
            y = f(y, "")
        if weight is not None:
            weight = of_rows(weight) if self.weighs == "sample" else f(weight, None)
        ids, lengths = (
            each if each is None else of_rows(each) for each in (self.ids, self.lengths)
        )
        found = {"y": y, "targets": targets, "weight": weight, "ids": ids, "lengths": lengths}
        return self.with_fields(x=x, **{**found, **changes})
