"""Text as sequences: characters, one-hot, and at each step the next character."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horn.data.classes import said
from horn.data.dataset import Dataset
from horn.errors import DataError, is_whole
from horn.formats.files import missing

SHOWN = 20  # characters on each side of the one that a message is about
MOST_OF_A_PATH = 4096  # as of Linux


def text(
    source: Any,
    steps: int | None = None,
    *,
    level: str = "char",
    alphabet: Sequence[str] | None = None,
    stride: int | None = None,
) -> Dataset:
    """Pieces of a text, ``steps`` characters each, with the next character at each step. Without
    ``steps`` the whole text as one sequence, for ``Job(stateful=True)``.

    source : the path of a UTF-8 file, read as by ``open(path)``: lines end with \\n (a byte order
    mark is left out, too); or an object open for reading text. level : the unit of a
    step; "char" is a character. alphabet : the characters, as ``data.classes`` of the training
    text or ``model.classes``; by default those that occur, sorted. stride : from the beginning of
    one piece to that of the next, by default ``steps``: adjacent pieces, of which a short last one
    is left out.

    x (n, steps * characters) uint8, one hot, for ``net.input(characters, steps=steps)`` · y (n,
    steps) int64 places in the alphabet, which is ``classes``; of the whole text x (n, characters),
    y (n,), a row for each character but the last. The text is kept one hot, a byte for
    each of its characters and each of the alphabet's; pieces that overlap share it.

    Raises
    ------
    NotFound : no such file. DataError : no UTF-8, a character that is not in the alphabet, too
    short a text.
    """
    if level != "char":
        raise DataError(f'text: level={level!r} is not known; "char" is there')
    name, found = _read(source)
    if steps is None:
        if stride is not None:
            raise DataError(f"{name}: stride is from piece to piece; say how long one is: steps=")
        return _whole(found, alphabet, name)
    if not is_whole(steps, 1):
        raise DataError(f"{name}: steps is how long a piece is, from 1; got {steps!r}")
    stride = steps if stride is None else stride
    if not is_whole(stride, 1):
        raise DataError(f"{name}: stride is from piece to piece, in steps from 1; got {stride!r}")
    steps, stride = int(steps), int(stride)
    if len(found) <= steps:
        most = f", or at most steps={len(found) - 1}" if len(found) > 1 else ""
        raise DataError(
            f"{name}: has {len(found):,} characters, but pieces of {steps:,} and what follows are "
            f"asked for; give a longer text{most}"
        )
    letters, places = _numbered(found, alphabet, name)
    hot = one_hot(places[:-1], len(letters))
    n = (len(places) - 1 - steps) // stride + 1
    rows = np.lib.stride_tricks.as_strided(
        hot, (n, steps * len(letters)), (stride * len(letters), 1), writeable=False
    )
    starts = np.arange(n)[:, None] * stride
    following = places[starts + np.arange(1, steps + 1)]
    return Dataset(
        rows, following, 1.0, name, classes=letters, shape=(steps, len(letters)), is_text=True
    )


def _whole(found: str, alphabet: Sequence[str] | None, name: str) -> Dataset:
    """A row for each character, with the next character as its label."""
    if len(found) < 2:
        raise DataError(f"{name}: has {len(found)} characters, and none that follows another")
    letters, places = _numbered(found, alphabet, name)
    hot = one_hot(places[:-1], len(letters))
    return Dataset(hot, places[1:], 1.0, name, classes=letters, is_text=True)


def _numbered(
    found: str, alphabet: Sequence[str] | None, name: str
) -> tuple[tuple[str, ...], np.ndarray]:
    if not isinstance(alphabet, (Iterable, type(None))):
        raise DataError(f"{name}: the alphabet is a text of its characters; got {alphabet!r:.80}")
    letters = tuple(sorted(set(found))) if alphabet is None else tuple(alphabet)
    if not letters:
        raise DataError(f"{name}: the alphabet is empty; give each character once, as a text")
    for letter in letters:
        if not isinstance(letter, str) or len(letter) != 1:
            raise DataError(f"{name}: the alphabet is of characters, one each; got {letter!r}")
    if repeated := [letter for letter, n in Counter(letters).items() if n > 1]:
        raise DataError(
            f"{name}: the alphabet repeats {said(repeated)}; give each character once, as "
            "sorted(set(text))"
        )
    return letters, codes(found, letters, name)


def codes(found: str, alphabet: Sequence[str], name: str) -> np.ndarray:
    """The place of each character in the alphabet, which may have any order: (len(found),) int64.

    DataError : a character is not in it.
    """
    points = _points(found)
    letters = np.array([ord(letter) for letter in alphabet], np.uint32)
    order = np.argsort(letters)
    at = np.minimum(np.searchsorted(letters[order], points), len(letters) - 1)
    places = order[at]
    unknown = letters[places] != points
    if unknown.any():
        first = int(unknown.argmax())
        line = found.count("\n", 0, first) + 1
        around = found[max(first - SHOWN, 0) : first + SHOWN]
        raise DataError(
            f"{name}: character {found[first]!r} (line {line:,}, in {around!r}) is not among the "
            f"{len(alphabet)} of the alphabet ({int(unknown.sum()):,} such characters in all); "
            "leave it out of the text, or train with an alphabet that has it"
        )
    return places.astype(np.int64)


def one_hot(places: np.ndarray, n: int) -> np.ndarray:
    """An array (len(places), n) uint8 with a 1 at the place of each."""
    hot = np.zeros((len(places), n), np.uint8)
    hot[np.arange(len(places)), places] = 1
    return hot


def _points(found: str) -> np.ndarray:
    # A file may hold half a character (a lone surrogate) only if it was read so; it is one too.
    return np.frombuffer(found.encode("utf-32-le", "surrogatepass"), np.uint32)


def _read(source: Any) -> tuple[str, str]:
    """The name of the text in messages, and the text."""
    if hasattr(source, "read"):
        found = source.read()
        if not isinstance(found, str):
            raise DataError("text: what is read is bytes; open the file as text")
        return str(getattr(source, "name", "text")), found
    if not isinstance(source, (str, os.PathLike)):
        raise DataError(f"text takes the path of a file, or something open; got {source!r}")
    if "\n" in str(source) or len(str(source)) > MOST_OF_A_PATH:
        raise DataError(
            f"text takes the path of a file; got what looks like the text itself, "
            f"{str(source)[:SHOWN]!r}...; pass io.StringIO(it)"
        )
    path = Path(os.path.expanduser(source))
    try:
        return path.name, path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no UTF-8 (byte {error.start:,}); convert it, or pass "
            "open(path, encoding=...)"
        ) from None
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read ({why})") from None
