"""Tensors of PyTorch, without importing it, and sequences that come as one object."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from horn.errors import DataError


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch; a Parameter is one, too."""
    made_of = (each.__module__.partition(".")[0] for each in type(value).__mro__)
    return hasattr(value, "detach") and "torch" in made_of


def of_tensor(value: Any, what: str) -> Any:
    """The array of a PyTorch tensor, on any device, with gradients or without; floats below 32
    bits, as bfloat16, which NumPy lacks, become float32. Anything else unchanged.

    DataError : a tensor that is no array: sparse, nested, or without data.
    """
    if not is_tensor(value):
        return value
    if getattr(value, "is_nested", False):
        raise DataError(
            f"{what} is a nested tensor, but an array is expected; for sequences of different "
            "lengths write net.input(features, steps=...)"
        )
    try:
        found = value.detach().cpu().resolve_conj().resolve_neg()
        is_small = found.is_floating_point() and found.element_size() < 4
        return (found.float() if is_small else found).numpy()
    except (RuntimeError, TypeError) as error:  # as PyTorch says why
        raise DataError(f"{what} cannot be read as an array: {error}") from error


def apart(x: Any) -> Any:
    """The sequences of a PackedSequence or a nested tensor of PyTorch, or of a column or an array
    of objects, as a list; anything else unchanged.
    """
    if hasattr(x, "iloc") and x.shape[1:] == (1,) and len(x) and np.ndim(x.iloc[0, 0]):
        x = x.iloc[:, 0]  # a table of pandas whose only column holds sequences
    if getattr(x, "ndim", 0) == 1 and x.dtype == np.object_:
        return list(x)
    if getattr(x, "is_nested", False):
        return list(x.unbind())
    rnn = sys.modules.get("torch.nn.utils.rnn")
    if rnn is not None and isinstance(x, rnn.PackedSequence):
        return rnn.unpack_sequence(x)
    return x
