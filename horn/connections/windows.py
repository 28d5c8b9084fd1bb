"""Windows over the positions of a layer that has a shape, channels last: (n, c) or (h, w, c).

A window's receiver at position p has the sources at ``p * stride - before + t * dilation`` for each
tap t of the kernel. A tap outside the layer is no synapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from horn.connections import Edges, Index, Placed
from horn.errors import ModelError

Sizes = tuple[int, ...]
MOST_EDGES = 2**31 - 1  # synapses of one connection


class Span(NamedTuple):
    """Windows along one dimension of n positions; ``before`` positions of the first lie outside."""

    n: int
    n_out: int
    kernel: int
    stride: int
    dilation: int
    before: int

    @property
    def after(self) -> int:
        """The number of positions of the last window that lie outside."""
        reach = (self.kernel - 1) * self.dilation + 1
        return max((self.n_out - 1) * self.stride + reach - self.n - self.before, 0)

    @property
    def lacking(self) -> int:
        """The positions after the last window that none reaches; negative if it ends outside."""
        reach = (self.kernel - 1) * self.dilation + 1
        return self.n + self.before - (self.n_out - 1) * self.stride - reach


class Windows:
    """The common part of connections through windows.

    kernel, stride, dilation : a number, or one per dimension. padding : "valid" (windows lie
    inside), "same" (as many positions as sources over stride), or the number of positions outside
    at each end.
    """

    kernel: int | Sizes
    stride: int | Sizes
    padding: str | int | Sizes
    dilation: int | Sizes

    def __post_init__(self) -> None:
        """Check the arguments. Raises ModelError."""
        for name in ("kernel", "stride", "dilation"):
            _check(self, name, 1)
        if isinstance(self.padding, str):
            if self.padding not in ("valid", "same"):
                causal = "; what a neuron may not hear is left out by sequences, horn.Delayed()"
                raise ModelError(
                    f'{type(self).__name__}: padding is "valid", "same" or a number, got '
                    f"{self.padding!r}{causal if self.padding == 'causal' else ''}"
                )
        else:
            _check(self, "padding", 0)

    def spans(self, below: Sizes, where: str) -> list[Span]:
        """The windows along each dimension of the layer ``below``. Raises ModelError if none
        fits.
        """
        name = type(self).__name__
        space = below[:-1]
        if len(space) not in (1, 2):
            raise ModelError(
                f"{where}: horn.{name} looks through windows at a layer of shape (n, channels) or "
                f"(height, width, channels), but the layer below has {below}; give the input such "
                f"a shape, as net.input((28, 28, 1)), and a layer that is heard late, as "
                f"net.layer((28, 28, 8), ...)"
            )
        kernel, stride = self._each("kernel", len(space)), self._each("stride", len(space))
        dilation = self._each("dilation", len(space))
        found = []
        for axis, (n, k, step, apart) in enumerate(
            zip(space, kernel, stride, dilation, strict=True)
        ):
            reach = (k - 1) * apart + 1
            if self.padding == "same":
                n_out = -(-n // step)
                before = max((n_out - 1) * step + reach - n, 0) // 2
            else:
                before = 0 if self.padding == "valid" else self._each("padding", len(space))[axis]
                n_out = (n + 2 * before - reach) // step + 1
            if n_out < 1:
                largest = (n + 2 * before - 1) // apart + 1
                outside = f" with {before} outside at each end" if before else ""
                raise ModelError(
                    f"{where}: a window of {reach} does not fit {n} positions{outside} (dimension "
                    f"{axis} of {below}); what fits is a kernel of at most {largest}, "
                    f'padding={-(-(reach - n) // 2)} or padding="same"'
                )
            found.append(Span(n, n_out, k, step, apart, before))
        return found

    def taps(self, below: Sizes, where: str) -> tuple[Sizes, Index]:
        """The positions of the windows over the layer ``below``, by dimension, and the source
        position of each (position, tap), flat; -1 where there is none.
        """
        places = []
        for span in self.spans(below, where):
            first = np.arange(span.n_out)[:, None] * span.stride - span.before
            at = first + np.arange(span.kernel) * span.dilation
            places.append(np.where((at >= 0) & (at < span.n), at, -1))
        if len(places) == 1:
            return (len(places[0]),), places[0].reshape(len(places[0]), -1)
        rows, columns = places
        at = rows[:, None, :, None] * below[1] + columns[None, :, None, :]
        at = np.where((rows[:, None, :, None] < 0) | (columns[None, :, None, :] < 0), -1, at)
        return (len(rows), len(columns)), at.reshape(len(rows) * len(columns), -1)

    def _each(self, name: str, n: int) -> Sizes:
        value = getattr(self, name)
        found = value if isinstance(value, tuple) else (value,) * n
        if len(found) != n:
            raise ModelError(
                f"{type(self).__name__}: {name}={value} is for {len(found)} dimensions, but the "
                f"layer below has {n}"
            )
        return found


def _check(windows: Any, name: str, least: int) -> None:
    value = getattr(windows, name)
    numbers = value if isinstance(value, (tuple, list)) else (value,)
    fits = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in numbers)
    if not numbers or not fits or min(numbers) < least or max(numbers) > 2**31 - 1:
        raise ModelError(
            f"{type(windows).__name__}: {name} is a whole number from {least}, or one per "
            f"dimension; got {value!r}"
        )
    plain = tuple(map(int, numbers))
    object.__setattr__(windows, name, plain if isinstance(value, (tuple, list)) else plain[0])


def whole(thing: Any, name: str) -> None:
    """Check a number of channels or groups. Raises ModelError."""
    value = getattr(thing, name)
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ModelError(
            f"{type(thing).__name__}: {name} must be a whole number from 1, got {value!r}"
        )
    object.__setattr__(thing, name, int(value))


def placed(
    space: Sizes,
    sources: Index,
    channels: Index,
    n_channels: int,
    where: str,
    weights: Sequence[int] | None = None,
) -> Placed:
    """The synapses of receivers (position, map), in this order.

    sources : (positions, taps) of a layer with ``n_channels``, -1 for none. channels : (maps, each)
    that a map hears at each of them, -1 for none. weights : if all positions share them, the shape
    of their array, whose numbers belong to (map, tap, channel).
    """
    maps, each = channels.shape
    n_taps, n_heard = ((a >= 0).sum(axis=1) for a in (sources, channels))
    counts = np.outer(n_taps, n_heard)
    n = int(counts.sum())
    if n > MOST_EDGES:
        raise ModelError(f"{where}: {n:,} synapses; there may be {MOST_EDGES:,}")
    indptr = np.concatenate([[0], np.cumsum(counts.reshape(-1))]).astype(np.int64)

    def along(found: Any) -> Index:
        """Of an array that spreads to (positions, maps, taps, each), what belongs to synapses."""
        shape = (len(sources), maps, sources.shape[1], each)
        here = (sources >= 0)[:, None, :, None] & (channels >= 0)[None, :, None, :]
        taken: Index = np.broadcast_to(found, shape)[np.broadcast_to(here, shape)]
        return taken

    def indices() -> Index:
        return along(sources[:, None, :, None] * n_channels + channels[None, :, None, :])

    def numbers() -> Index:
        return along(np.arange(maps * sources.shape[1] * each).reshape(1, maps, -1, each))

    if weights is None:
        return Placed((*space, maps), Edges(indptr, indices))
    return Placed((*space, maps), Edges(indptr, indices, numbers, tuple(weights)), maps)
