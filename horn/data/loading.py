"""Data by a short text, as in a command line: a known set, a file, a pair of files, a folder.

The formats are the table of ``horn.formats``; here is what only some of them have: the columns of a
.csv, and the parts and lengths of an .npz.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import numpy as np

from horn.data import in_steps, pictures, shards
from horn.data.conversion import as_dataset
from horn.data.dataset import Dataset
from horn.data.known import PARTS, cifar10, digits, mnist
from horn.data.sample_weights import as_weight
from horn.data.units import ASSUMED, Unit
from horn.errors import DataError, NotFound
from horn.formats import csv, format_of, known, npy, npz
from horn.formats.files import near
from horn.formats.npz import Targets
from horn.formats.parts import SampleTable
from horn.mistakes import shown, teaches

_OF_CSV = Unit(1.0, ASSUMED)
KNOWN = ("digits", "mnist", "cifar10")


@teaches
def load(
    spec: str,
    *,
    labels: bool = True,
    download: bool = False,
    label: str | int | None = None,
    ids: str | int | None = None,
) -> Dataset:
    """Load the dataset that a text names, checked.

    digits, mnist, cifar10          a known set; "mnist:test" is its test part, ":train" the default
    rows.npz                        x and y, or "rows.npz:test" for x_test and y_test; also lengths
                                    of sequences, and sample_weight, as ``Job`` takes it
    x.npy · images-idx3-ubyte.gz    x alone, memory-mapped where it can be
    x.npy,y.npy · images,labels     x and y in two files
    rows.csv · rows.tsv             the label in the last column: numbers, or names of classes
    -                               the standard input, as a .csv file
    folder/                         shards, joined in the order of their names
    folder/                         with a folder of PNG or JPEG files per class (Pillow)
    one.png · one.jpg               one picture, without a label

    Bytes are worth 1/255 each, all other numbers keep their values. Without
    ``labels`` y is None, and every column of numbers of a .csv belongs to x. For a .csv ``label``
    and ``ids`` name the column of the label and that of the samples' names (else the first, if it
    is text), by the header's name or a number from 1. ``download`` lets mnist fetch its files. A
    known name wins over a file of that name; ./digits is the file.

    Raises
    ------
    NotFound : no such set or file; proposes a name.
    DataError : the file is of no known format, damaged, or holds data that nothing can learn from.
    """
    if not isinstance(spec, (str, os.PathLike)):
        raise DataError(
            f"horn.data.load reads files, got {shown(spec)}; arrays are data as they are: (x, y)"
        )
    spec = os.fspath(spec)
    if not spec.strip():
        raise NotFound(f"no data are named; give a path, or one of {', '.join(KNOWN)}")
    columns: dict[str, str | int | None] = {"label": label, "ids": ids}
    if spec == "-":
        return _of_table(csv.table(csv.STDIN, labels=labels, **columns), _OF_CSV, "standard input")
    path = Path(os.path.expanduser(spec))
    if _is_csv(path) and path.is_file():
        return _of_table(csv.table(path, labels=labels, **columns), _OF_CSV, spec)
    is_missing = _is_csv(path) and not path.exists()  # the complaint is below
    if (label is not None or ids is not None) and not is_missing:
        raise DataError(f"{spec}: only .csv files have columns with names; leave label and ids out")
    name, _, part = spec.partition(":")
    if name in KNOWN:
        return _known(name, part or "train", labels, download)
    return _file(spec, labels)


def _known(name: str, part: str, labels: bool, download: bool) -> Dataset:
    if name == "mnist":
        dataset = mnist(part, download=download)
    else:
        dataset = {"digits": digits, "cifar10": cifar10}[name](part)
    if not labels:
        dataset = dataset.with_fields(y=None)
    return as_dataset(dataset)


def _file(spec: str, labels: bool) -> Dataset:
    path = Path(os.path.expanduser(spec))
    is_picture = path.is_file() and path.suffix.lower() in pictures.ENDINGS
    if is_picture or (path.is_dir() and pictures.has_pictures(path)):
        return pictures.images(spec, labels=labels)
    if path.is_dir():
        return _of_table(*shards.read(path, labels=labels), spec)
    if path.exists():
        return _read_file(path, None, spec, labels)
    head, _, tail = spec.rpartition(":")
    if tail in PARTS and (path := Path(os.path.expanduser(head))).is_file():
        return _read_file(path, tail, spec, labels)
    head, comma, tail = spec.partition(",")
    if comma:
        paths = Path(os.path.expanduser(head.strip())), Path(os.path.expanduser(tail.strip()))
        for path in paths:
            if not path.is_file():
                raise _not_found(str(path), path)
        x, y = (_array(path) for path in paths)
        found = _of_samples(x, y if labels else None, None, spec)
        return found.with_fields(feature_names=npy.names(paths[0], x))
    raise _not_found(spec, Path(os.path.expanduser(spec)))


def _is_csv(path: Path) -> bool:
    found = format_of(path.name)
    return found is not None and found.reader is csv


def _of_table(found: SampleTable, unit: Unit, spec: str) -> Dataset:
    dataset = as_dataset((found.x, found.y), spec, scale=unit.scale)
    names = found.names if len(set(found.names)) == len(found.names) else ()
    return dataset.with_fields(
        ids=found.ids, id_name=found.id_name, feature_names=names, scale_is=unit.why
    )


def _read_file(path: Path, part: str | None, spec: str, labels: bool) -> Dataset:
    found = format_of(path.name)
    if found is not None and found.reader is npz:
        return _of_arrays(*npz.read_all(path, part, labels=labels), spec)
    if part:
        raise DataError(f"{spec}: only .npz files have parts; leave out :{part}")
    if found is not None and found.is_pair:
        return as_dataset(found.reader.read(path, labels=labels), spec, scale=found.scale)
    x = _array(path)
    return as_dataset((x, None), spec).with_fields(feature_names=npy.names(path, x))


def _of_arrays(
    x: np.ndarray, y: Targets, lengths: np.ndarray | None, weight: np.ndarray | None, spec: str
) -> Dataset:
    found = _of_samples(x, y, lengths, spec)
    if weight is None:
        return found
    steps = found.shape[0] if len(found.shape) == 2 else 0
    return found.with_fields(weight=as_weight(weight, len(x), spec, steps, found.lengths))


def _of_samples(x: np.ndarray, y: Targets, lengths: np.ndarray | None, spec: str) -> Dataset:
    each = y.values() if isinstance(y, dict) else [] if y is None else [y]
    by_step = any(y.ndim == 3 or (y.dtype.kind == "U" and y.shape == x.shape[:2]) for y in each)
    if lengths is None and not (x.ndim == 3 and by_step):
        return as_dataset((x, y), spec)
    return in_steps.sequences(x, y, lengths=lengths, name=spec)


def _array(path: Path) -> np.ndarray:
    found = format_of(path.name)
    if found is None:
        raise DataError(
            f"{path}: is of no format that horn reads; known are {known()}, and folders of shards "
            f"or of pictures by class"
        )
    if found.is_pair:
        raise DataError(f"{path}: has x and y in one file; name it alone")
    array: np.ndarray = found.reader.read(path)
    return array


def _not_found(spec: str, path: Path) -> NotFound:
    """The error, with the nearest name: of the known sets, or of the files of that folder."""
    name, _, part = spec.partition(":")
    if not path.suffix and (known := difflib.get_close_matches(name, KNOWN, 1)):
        return NotFound(
            f"no data set {name!r}; did you mean {known[0] + (':' + part if part else '')!r}?"
        )
    if other := near(path):
        return NotFound(f"{spec}: no such file; did you mean {str(other)!r}?")
    return NotFound(f"{spec}: no such file or data set; give a path, or one of {', '.join(KNOWN)}")
