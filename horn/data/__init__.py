"""Data sets.

    Dataset                 x, y, scale: rows as they are stored, read batch by batch
    as_dataset(data)        a Dataset from arrays, checked
    digits, mnist, cifar10  known sets; digits comes with horn and needs no network
    convert(csv, folder)    a large .csv file as arrays that are memory-mapped
    Stream(source)          samples that come one after another: generators, DataLoaders
    images(folder)          pictures by class: a folder of PNG or JPEG files for each
    Augment(flip, shift)    random changes of the training images in every epoch
    load(spec)              a known set by name, or files: IDX, .npy, .npz, .csv, folders of shards
    sequences(x, y)         sequences of any lengths
    text(path, steps)       a text as sequences of characters
    permutation             the order of an epoch, by (seed, epoch)

To add a format: a file with ``read`` in ``horn.formats``, and its row in the table there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from horn.data.augment import Augment
from horn.data.checks import (
    check_classes,
    check_features,
    check_finite,
    check_labels,
    check_names,
    check_range,
    check_shape,
    check_targets,
)
from horn.data.conversion import as_dataset
from horn.data.dataset import Dataset
from horn.data.normalization import Normalization
from horn.data.order import permutation
from horn.mistakes import no_attribute

if TYPE_CHECKING:
    from horn.data.characters import text
    from horn.data.in_steps import sequences
    from horn.data.known import cifar10, digits, mnist
    from horn.data.loading import load
    from horn.data.pictures import images
    from horn.data.stream import Stream
    from horn.formats.convert import convert

__all__ = [
    "Augment",
    "Dataset",
    "Normalization",
    "Stream",
    "as_dataset",
    "check_classes",
    "check_features",
    "check_finite",
    "check_labels",
    "check_names",
    "check_range",
    "check_shape",
    "check_targets",
    "cifar10",
    "convert",
    "digits",
    "images",
    "load",
    "mnist",
    "permutation",
    "sequences",
    "text",
]

# Tasks get their data from the start, so the readers of files are imported on demand.
_READERS = {
    "Stream": "horn.data.stream",
    "cifar10": "horn.data.known",
    "convert": "horn.formats.convert",
    "digits": "horn.data.known",
    "images": "horn.data.pictures",
    "load": "horn.data.loading",
    "mnist": "horn.data.known",
    "sequences": "horn.data.in_steps",
    "text": "horn.data.characters",
}


def __getattr__(name: str) -> Any:
    if name not in _READERS:
        raise no_attribute("horn.data", name, __all__)
    value = getattr(importlib.import_module(_READERS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [name for name in __all__ if not name.startswith("check_")]  # those are horn's own
