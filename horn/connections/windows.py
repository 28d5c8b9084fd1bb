"""Windows over the positions of a layer that has a shape, channels last: (n, c) or (h, w, c).

A window's receiver at position p has the sources at ``p * stride - before + t * dilation`` for each
tap t of the kernel. A tap outside the layer is no synapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from horn.connections import Edges, Index, Placed
from horn.errors import ModelError, is_whole

Sizes = tuple[int, ...]
Padding = str | int | tuple[int | tuple[int, int], ...]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
MOST_EDGES = 2**31 - 1  # synapses of one connection
MOST_POSITIONS = 2**26  # of windows: 8,192 x 8,192, for which an array of whole numbers is 512 MiB


class Span(NamedTuple):
    """Windows along one dimension of n positions; ``before`` positions of the first lie outside."""

    n: int
    n_out: int
    kernel: int
    stride: int
    dilation: int
    before: int

    @property
    def inside(self) -> tuple[Index, Index]:
        """(n_out,) the first tap of each window that is inside, and the one after the last."""
        at = np.arange(self.n_out) * self.stride - self.before
        first = np.clip(-(at // self.dilation), 0, self.kernel)
        return first, np.clip(-((at - self.n) // self.dilation), first, self.kernel)

    def source(self, position: Index, tap: Index) -> Index:
        """The source of taps of windows, -1 for none."""
        at = position * self.stride - self.before + tap * self.dilation
        return np.where((at >= 0) & (at < self.n), at, -1)

    def window(self, source: Index, tap: Index) -> Index:
        """The position of the window that has a source at a tap, -1 for none."""
        at, over = np.divmod(source + self.before - tap * self.dilation, self.stride)
        return np.where((over == 0) & (at >= 0) & (at < self.n_out), at, -1)

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


@dataclass(frozen=True)
class Taps:
    """Which source position each tap of each window has: what spans say, along all dimensions."""

    spans: Sequence[Span]

    @property
    def space(self) -> Sizes:
        """The positions of windows, by dimension."""
        return tuple(span.n_out for span in self.spans)

    @property
    def counts(self) -> Index:
        """(positions,) the number of taps inside of the layer."""
        found = np.ones(1, np.int64)
        for span in self.spans:
            first, end = span.inside
            found = np.outer(found, end - first).reshape(-1)
        return found

    @property
    def lookers(self) -> Index:
        """(source positions,) the number of windows that look at each."""
        found = np.ones(1, np.int64)
        for span in self.spans:
            seen = span.source(np.arange(span.n_out)[:, None], np.arange(span.kernel))
            counts = np.bincount(seen[seen >= 0], minlength=span.n)
            found = np.outer(found, counts).reshape(-1)
        return found

    @property
    def heard(self) -> Mask:
        """(positions, taps), whether a tap has a source."""
        found = np.ones((1, 1), np.bool_)
        for span in self.spans:
            at = span.source(np.arange(span.n_out)[:, None], np.arange(span.kernel)) >= 0
            both = found[:, None, :, None] & at[None, :, None, :]
            found = both.reshape(len(found) * len(at), -1)
        return found

    @property
    def sources(self) -> Index:
        """(positions, taps), the source position, -1 for none. Of large windows over a large
        picture it takes gigabytes.
        """
        found = np.zeros((1, 1), np.int64)
        for span in self.spans:
            at = span.source(np.arange(span.n_out)[:, None], np.arange(span.kernel))
            outer, inner = found[:, None, :, None], at[None, :, None, :]
            both = np.where((outer < 0) | (inner < 0), -1, outer * span.n + inner)
            found = both.reshape(len(found) * len(at), -1)
        return found


class Windows:
    """The common part of connections through windows.

    kernel, stride, dilation : a number, or one per dimension. padding : "valid" (windows lie
    inside), "same" (as many positions as sources over stride; an odd one outside is after), or the
    number of positions outside at each end: one, or per dimension one or a pair (before, after).
    """

    kernel: int | Sizes
    stride: int | Sizes
    padding: Padding
    dilation: int | Sizes

    def __post_init__(self) -> None:
        """Check the arguments. Raises ModelError."""
        for name in ("kernel", "stride", "dilation"):
            _check(self, name, 1)
        _check_padding(self)

    def outside(self, n: int) -> list[tuple[int, int]]:
        """The positions outside, (before, after), along each of n dimensions; none if padding is
        a word. Raises ModelError if it is for other dimensions.
        """
        each = (0,) * n if isinstance(self.padding, str) else self._each("padding", n)
        return [(ends, ends) if isinstance(ends, int) else ends for ends in each]

    def sizes(self, below: Sizes, where: str) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """The positions of the layer ``below``, and kernel, stride and dilation, by dimension.
        Raises ModelError if it has none.
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
        n = len(space)
        return space, self._each("kernel", n), self._each("stride", n), self._each("dilation", n)

    def spans(self, below: Sizes, where: str) -> list[Span]:
        """The windows along each dimension of the layer ``below``. Raises ModelError if none
        fits, or none hears anything.
        """
        space, kernel, stride, dilation = self.sizes(below, where)
        found, n_windows, n_taps = [], 1, 1
        for axis, (n, k, step, apart, (before, after)) in enumerate(
            zip(space, kernel, stride, dilation, self.outside(len(space)), strict=True)
        ):
            reach = (k - 1) * apart + 1
            if self.padding == "same":
                n_out = -(-n // step)
                before = max((n_out - 1) * step + reach - n, 0) // 2
            else:
                n_out = (n + before + after - reach) // step + 1
            if n_out < 1:
                largest = (n + before + after - 1) // apart + 1
                outside = f" with {at_ends(before, after)} outside" if before or after else ""
                more = -(-(reach - n) // 2)
                enough: Padding = more
                if isinstance(self.padding, tuple):  # the others keep what they have
                    enough = (*self.padding[:axis], more, *self.padding[axis + 1 :])
                raise ModelError(
                    f"{where}: a window of {reach} does not fit {n} positions{outside} (dimension "
                    f"{axis} of {below}); what fits is a kernel of at most {largest}, "
                    f'padding={enough} or padding="same"'
                )
            n_windows, n_taps = n_windows * n_out, n_taps * k
            check_positions(n_windows, n_taps, where)
            span = Span(n, n_out, k, step, apart, before)
            first, end = span.inside
            if (first == end).all():
                raise ModelError(
                    f"{where}: no window hears a neuron: with kernel {k}, stride {step}, dilation "
                    f"{apart} and padding={self.padding!r} all of their taps lie outside of the "
                    f"{n} there are (dimension {axis} of {below}); give less padding, or another "
                    "kernel"
                )
            found.append(span)
        return found

    def taps(self, below: Sizes, where: str) -> Taps:
        """The taps of the windows over the layer ``below``. Raises ModelError as ``spans``."""
        return Taps(self.spans(below, where))

    def _each(self, name: str, n: int) -> tuple[Any, ...]:
        value = getattr(self, name)
        found = value if isinstance(value, tuple) else (value,) * n
        if len(found) != n:
            hint = ""
            if name == "padding" and len(found) == 2 * n and all(isinstance(p, int) for p in found):
                ends = tuple(zip(found[:n], found[n:], strict=True))
                hint = f"; (before, after) are a pair: of ONNX's pads that is padding={ends}"
            raise ModelError(
                f"{type(self).__name__}: {name}={value} is for {len(found)} dimensions, but the "
                f"layer below has {n}{hint}"
            )
        return found


def at_ends(before: int, after: int) -> str:
    """Numbers of positions outside, in words."""
    return f"{before} at each end" if before == after else f"{before} before and {after} after"


def check_positions(n_windows: int, n_taps: int, where: str) -> None:
    """Raise ModelError for more windows, or more of their taps, than arrays of them can have."""
    for n, most, what in (
        (n_windows, MOST_POSITIONS, "positions of windows"),
        (n_windows * n_taps, MOST_EDGES, "taps of windows"),
    ):
        if n > most:
            raise ModelError(
                f"{where}: {n:,} {what}; there may be {most:,}: give another padding, kernel or "
                "stride"
            )


def check_synapses(taps: Taps, n_channels: int, where: str) -> None:
    """Raise ModelError for more synapses than arrays of them can have: before any is made.
    n_channels : those that the maps hear, all together.
    """
    n = int(taps.counts.sum()) * n_channels
    if n > MOST_EDGES:
        raise ModelError(f"{where}: {n:,} synapses; there may be {MOST_EDGES:,}")


def _check(windows: Any, name: str, least: int) -> None:
    value = getattr(windows, name)
    numbers = value if isinstance(value, (tuple, list)) else (value,)
    fits = all(is_whole(n, least) for n in numbers)
    if not numbers or not fits or max(numbers) > 2**31 - 1:
        raise ModelError(
            f"{type(windows).__name__}: {name} is a whole number from {least}, or one per "
            f"dimension; got {value!r}"
        )
    plain = tuple(map(int, numbers))
    object.__setattr__(windows, name, plain if isinstance(value, (tuple, list)) else plain[0])


def _check_padding(windows: Any) -> None:
    given = windows.padding
    if isinstance(given, str) and given in ("valid", "same"):
        return
    is_each = isinstance(given, (tuple, list))
    pairs = [
        ends if isinstance(ends, (tuple, list)) else (ends, ends)
        for ends in (given if is_each else (given,))
    ]
    numbers = [n for ends in pairs for n in ends]
    fits = all(is_whole(n, 0) and n < 2**31 for n in numbers)
    if not pairs or not fits or any(len(ends) != 2 for ends in pairs):
        raise ModelError(
            f'{type(windows).__name__}: padding is "valid", "same" or a number of positions '
            f"outside at each end (0 to {2**31 - 1:,}), or per dimension one or a pair (before, "
            f"after), as ((2, 0), (1, 1)); got {given!r}{_causal(windows)}"
        )
    # a pair of equals is the number: who pads alike is equal
    plain = tuple(int(a) if a == b else (int(a), int(b)) for a, b in pairs)
    object.__setattr__(windows, "padding", plain if is_each else plain[0])


def _causal(windows: Any) -> str:
    """What to write instead of padding="causal"."""
    if not isinstance(windows.padding, str) or windows.padding != "causal":
        return ""
    kernel, apart = (
        value[0] if isinstance(value, tuple) else value
        for value in (windows.kernel, windows.dilation)
    )
    return (
        f". Along a signal (n, channels) that is padding=(({(kernel - 1) * apart}, 0),); steps of "
        "a sequence hear those before them through horn.Delayed()"
    )


def whole(thing: Any, name: str) -> None:
    """Check a number of channels or groups. Raises ModelError."""
    value = getattr(thing, name)
    if not is_whole(value, 1) or value > MOST_EDGES:
        raise ModelError(
            f"{type(thing).__name__}: {name} must be a whole number from 1 to {MOST_EDGES:,}, got "
            f"{value!r}"
        )
    object.__setattr__(thing, name, int(value))


def placed(
    taps: Taps,
    channels: Index,
    n_channels: int,
    where: str,
    weights: Sequence[int] | None = None,
) -> Placed:
    """The synapses of receivers (position, map), in this order.

    taps : those of windows over a layer with ``n_channels``. channels : (maps, each)
    that a map hears at each of them, -1 for none. weights : if all positions share them, the shape
    of their array, whose numbers belong to (map, tap, channel).
    """
    maps, each = channels.shape
    heard = (channels >= 0).sum(axis=1)
    check_synapses(taps, int(heard.sum()), where)
    counts = np.outer(taps.counts, heard)
    indptr = np.concatenate([[0], np.cumsum(counts.reshape(-1))]).astype(np.int64)

    def along(inside: Mask, found: Any) -> Index:
        """Of an array that spreads to (positions, maps, taps, each), what belongs to synapses."""
        here = inside[:, None, :, None] & (channels >= 0)[None, :, None, :]
        shape = (len(inside), maps, inside.shape[1], each)
        taken: Index = np.broadcast_to(found, shape)[np.broadcast_to(here, shape)]
        return taken

    def indices() -> Index:
        sources = taps.sources
        found = sources[:, None, :, None] * n_channels + channels[None, :, None, :]
        return along(sources >= 0, found)

    def numbers() -> Index:
        inside = taps.heard
        number = np.arange(maps * inside.shape[1] * each).reshape(1, maps, -1, each)
        return along(inside, number)

    if weights is None:
        return Placed((*taps.space, maps), Edges(indptr, indices))
    return Placed((*taps.space, maps), Edges(indptr, indices, numbers, tuple(weights)), maps)
