"""Data: what a job learns from.

    Dataset                 x, y, scale: rows as they are stored, read batch by batch
    as_dataset(data)        a Dataset from arrays, checked
    digits, mnist, cifar10  known sets; digits comes with horn and needs no network
    load(spec)              a known set by name, or files: IDX, .npy, .npz, .csv, folders of shards
    permutation             the order of an epoch, by (seed, epoch)
    check_...               what must hold before a network meets the data

Nothing here imports anything of horn but its errors. To add a format: a file with ``read(path)``,
and its suffix in ``loading.py``.
"""

from horn.data.checks import (
    as_dataset,
    check_features,
    check_finite,
    check_labels,
    check_targets,
)
from horn.data.dataset import Dataset
from horn.data.known import cifar10, digits, mnist
from horn.data.loading import load
from horn.data.order import permutation

__all__ = [
    "Dataset",
    "as_dataset",
    "check_features",
    "check_finite",
    "check_labels",
    "check_targets",
    "cifar10",
    "digits",
    "load",
    "mnist",
    "permutation",
]
