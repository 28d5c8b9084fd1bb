"""Files and tables of numbers, read as arrays. ``horn.data`` makes data sets of them.

``FORMATS`` is the table of the files that are read. Beside their readers: ``files`` (errors of
opening), ``parts`` (of one array), ``tables`` (of pandas, polars, pyarrow), ``tensors``,
``convert``, ``ahead``, ``header`` (of safetensors), and ``download`` (known files and their
checksums).
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class FileFormat:
    """A kind of file, and its reader: ``read`` of the module of this name here, which raises
    NotFound or DataError, with the path.

    is_pair : ``read(path, labels=True)`` gives (x, y), y None if there are no labels, or without
    ``labels``; else ``read(path)`` gives one array, and y is in a file of its own. x (n, ...)
    numbers · y (n,) whole numbers or text, the labels, or (n, targets) numbers.
    ending : a pattern of the end of names; has_gz : or of what is before .gz. words : those endings
    in a message. shards : patterns of the files of a folder; for one array each begins with x.
    example : as DATA of a command. scale : of one unit of x; None : by its type, of bytes 1/255.
    """

    name: str
    ending: str
    words: str
    example: str
    is_pair: bool = True
    has_gz: bool = False
    shards: tuple[str, ...] = ()
    scale: float | None = None

    def fits(self, name: str) -> bool:
        """Whether a file of this name is one, whatever the case of its ending."""
        name = name.lower().removesuffix(".gz" * self.has_gz)
        return bool(re.search(f"(?:{self.ending})$", name))

    def is_shard(self, name: str) -> bool:
        """Whether a file of this name is read with the folder that it is in, as x."""
        stem, ending = os.path.splitext(name)
        return any(fnmatchcase(stem + ending.lower(), pattern) for pattern in self.shards)

    @property
    def reader(self) -> Any:
        """The module, imported when a file is read."""
        return importlib.import_module(f"{__name__}.{self.name}")


FORMATS = (
    FileFormat("npz", r"\.npz", ".npz", "rows.npz", shards=("*.npz",)),
    FileFormat("npy", r"\.npy", ".npy", "x.npy,y.npy", is_pair=False, shards=("x*.npy",)),
    FileFormat("csv", r"\.[ct]sv", ".csv and .tsv", has_gz=True, scale=1.0,
               example="rows.csv (the label in the last column, a number or a name)",
               shards=("*.csv", "*.tsv")),
    FileFormat("idx", r"\.idx[0-9]?|ubyte", "IDX (.idx, -ubyte)", is_pair=False, has_gz=True,
               example="images,labels in IDX format, plain or .gz"),
)  # fmt: skip


def format_of(name: str) -> FileFormat | None:
    """The format of a file by its name."""
    return next((each for each in FORMATS if each.fits(name)), None)


def known() -> str:
    """The formats in a message."""
    return ", ".join(each.words + ", also .gz" * each.has_gz for each in FORMATS)


def is_shard(name: str) -> bool:
    """Whether a file of this name is read with the folder that it is in, as x or as its y."""
    x_of = f"x{name[1:]}" if name[:1] == "y" else name
    return any(each.is_shard(name if each.is_pair else x_of) for each in FORMATS)


def shards() -> str:
    """What a folder of shards may have, in a message."""
    return ", ".join(
        pattern if each.is_pair else f"{pattern} with y{pattern[1:]}"
        for each in FORMATS
        for pattern in each.shards
    )


def examples() -> str:
    """How files are named, for the help of commands."""
    return ", ".join(each.example for each in FORMATS)
