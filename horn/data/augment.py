"""Augmentation: random changes of the images of a batch: mirrored, moved, brighter or darker.

The change of a sample follows from (seed, epoch, sample) alone: not from its place in a batch,
the tasks and groups, or the point where a job resumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from horn import mistakes, random
from horn.data.dataset import Dataset
from horn.errors import DataError, ModelError, is_whole

FLIPS = {True: "horizontal", False: ""}
KINDS = ("", "horizontal", "vertical", "both")
STREAM = 0x617567  # "aug" in ASCII: a layer that no network has, so no other draw has its key
_LOW = np.uint64(0xFFFF_FFFF)


@mistakes.teaches
@dataclass(frozen=True)
class Augment:
    """Random changes of the images of a job's training data, new in every epoch.

    flip : True mirrors half of the images left to right; "vertical" upside down, "both" each with
    a probability of one half. shift : the largest move in each direction in pixels, a number or
    (rows, columns); pixels from outside are 0. brightness : each image is multiplied by a number
    between 1 - brightness and 1 + brightness; bytes stay between 0 and 255.

    It changes images as they are stored, before ``normalize``. Targets of an output with the rows
    and columns of the images are flipped and moved with them, 0 coming in from outside; they keep
    their brightness. Labels, validation and test data stay as they are, and so do the samples that
    ``acc`` is measured on.
    """

    flip: bool | str = False
    shift: int | tuple[int, int] = 0
    brightness: float = 0.0

    def __post_init__(self) -> None:
        flip = FLIPS.get(self.flip, self.flip) if isinstance(self.flip, bool) else self.flip
        if flip not in KINDS:
            raise ModelError(
                f'Augment: flip is True, "horizontal", "vertical" or "both", got {self.flip!r}'
            )
        object.__setattr__(self, "flip", flip)
        shift = self.shift if isinstance(self.shift, (tuple, list)) else (self.shift, self.shift)
        if len(shift) != 2 or not all(is_whole(n, 0) for n in shift):
            raise ModelError(
                f"Augment: shift is a whole number of pixels from 0, or (rows, columns), got "
                f"{self.shift!r}"
            )
        object.__setattr__(self, "shift", tuple(map(int, shift)))
        is_number = isinstance(self.brightness, (int, float, np.number))
        if not is_number or not 0 <= self.brightness <= 1:
            raise ModelError(
                f"Augment: brightness is a number from 0 to 1, such as 0.2, got {self.brightness!r}"
            )
        if not (flip or any(shift) or self.brightness):
            raise ModelError("Augment: nothing is changed; give flip=True, shift=4 or brightness")

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ModelError if samples of this shape are no images, or too small."""
        if len(shape) != 3:
            raise ModelError(
                f"Job: augment changes images, (height, width, channels), but the input is {shape};"
                f" declare it as in net.input((32, 32, 3)), or leave augment out"
            )
        for size, most, name in zip(shape, self._shift, ("rows", "columns"), strict=False):
            if most >= size:
                raise ModelError(
                    f"Job: augment moves images by up to {most} {name}, but they have {size}; give "
                    f"a smaller shift"
                )

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return bool(self.flip) or any(self._shift)

    @property
    def _shift(self) -> tuple[int, int]:
        assert isinstance(self.shift, tuple)
        return self.shift

    def write(
        self, x: np.ndarray, rows: np.ndarray, epoch: int, seed: int, out: np.ndarray
    ) -> None:
        """Write the images x[rows], changed, into ``out``.

        x (n, h, w, c), any type · rows (k,) samples · epoch from 1 · out (k, h, w, c) of x's type
        """
        words = _draws(rows, epoch, seed)
        self._move(x, rows, words, out)
        if not self.brightness:
            return
        factors = 1.0 + self.brightness * (2.0**-31 * words[3].astype(np.float64) - 1.0)
        if x.dtype == np.uint8:  # the new value of each byte, a row for each image
            levels = np.rint(np.arange(256.0) * factors[:, None])
            for known, changed in zip(np.minimum(levels, 255.0).astype(np.uint8), out, strict=True):
                known.take(changed, out=changed, mode="clip")
        else:
            out *= factors.astype(out.dtype).reshape(-1, 1, 1, 1)

    def move(
        self, maps: np.ndarray, rows: np.ndarray, epoch: int, seed: int, out: np.ndarray
    ) -> None:
        """Write maps[rows] into ``out``, flipped and moved as the images of the same samples.

        maps (n, h, w, c), any type · rows (k,) samples · out (k, h, w, c) of its type
        """
        self._move(maps, rows, _draws(rows, epoch, seed), out)

    def _move(
        self, x: np.ndarray, rows: np.ndarray, words: Sequence[np.ndarray], out: np.ndarray
    ) -> None:
        height, width = x.shape[1:3]
        down, right = (
            (word * np.uint64(2 * most + 1) >> np.uint64(32)).astype(np.int64) - most
            for word, most in zip(words[1:3], self._shift, strict=True)
        )
        bits, ways = words[0].astype(np.int64), np.array([1, -1])
        by_row = ways[bits & 1 if self.flip in ("vertical", "both") else bits & 0]
        by_column = ways[bits >> 1 & 1 if self.flip in ("horizontal", "both") else bits & 0]
        each = zip(*(a.tolist() for a in (rows, by_row, by_column, down, right)), strict=True)
        # one image after another: half of the time of index arrays over the whole batch
        for k, (row, vertical, horizontal, dy, dx) in enumerate(each):
            image, changed = x[row, ::vertical, ::horizontal], out[k]
            if dy or dx:
                changed[...] = 0
                changed[max(dy, 0) : height + dy, max(dx, 0) : width + dx] = image[
                    max(-dy, 0) : height - dy, max(-dx, 0) : width - dx
                ]
            else:
                changed[...] = image


def _draws(rows: np.ndarray, epoch: int, seed: int) -> Sequence[np.ndarray]:
    """Four words for each sample."""
    samples = rows.astype(np.uint64)
    counter = [samples & _LOW, samples >> np.uint64(32), np.uint64(epoch), np.uint64(0)]
    return random.philox(random.key(seed, STREAM), counter)


class AugmentedBatch:
    """The changed rows of one batch, in ``data``, the data set that an engine is bound to.

    maps : the columns of y that are flipped and moved with the images, of each output that has
    their rows and columns, and its shape.
    """

    def __init__(
        self,
        augment: Augment,
        data: Dataset,
        shape: tuple[int, ...],
        seed: int,
        size: int,
        maps: Sequence[tuple[slice, tuple[int, ...]]] = (),
    ) -> None:
        if math.prod(shape) != data.n_features:
            raise DataError(
                f"{data.name}: has {data.n_features:,} features per sample, which are no images of "
                f"{shape}; pass data that fit the input of the network"
            )
        self.augment, self.shape, self.seed, self._whole = augment, shape, seed, data
        self._maps = maps
        rows = {
            name: np.zeros((size, *array.shape[1:]), array.dtype)
            for name in ("x", "y", "weight")
            if (array := getattr(data, name)) is not None
        }
        self.data = data.with_fields(**rows, ids=None)

    def read(self, rows: np.ndarray, epoch: int, part: slice = slice(None)) -> np.ndarray:
        """Change the samples of a batch, and return their rows in ``data``.

        part : of the batch, the only part to be changed; this process reads nothing of the rest.
        """
        places = np.arange(len(rows))
        mine, here = rows[part], places[part]
        if len(mine):
            first, last = int(here[0]), int(here[-1]) + 1
            x = self._whole.x.reshape(-1, *self.shape)
            out = self.data.x[first:last].reshape(-1, *self.shape)
            self.augment.write(x, mine, epoch, self.seed, out)
            for name in ("y", "weight"):
                if (array := getattr(self._whole, name)) is not None:
                    getattr(self.data, name)[first:last] = array[mine]
            for columns, places_of in self._maps:
                y, found = self._whole.y, self.data.y
                assert y is not None and found is not None
                self.augment.move(
                    y[:, columns].reshape(-1, *places_of), mine, epoch, self.seed,
                    found[first:last, columns].reshape(-1, *places_of),
                )  # fmt: skip
        return places
