"""Counter-based random draws: the same on any partition, in any order, after a restart, and in the
interpreter, the reference and the kernels (the normals but for the last digits of `log` and `cos`).

Philox4x32-10, keyed by (seed, layer); the counter names the neuron, the global sample number, the
iteration and the site (which draw in the neuron's source).

Source: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Key = tuple[Any, Any]  # two words of 32 bits; arrays of them where several keys are used at once

#: The sample number of draws that all samples share: ``per="batch"`` and ``per="run"``.
SHARED = 2**64 - 1

#: The bits of a sample's number that hold its sequence's step; ``per="sequence"`` draws have none.
#: Those above 16 are in the word of a counter that has the site, too, of which both are parts.
STEP_BITS = 0x7FFFFFFF << 32

#: The iteration number of draws that are made once: ``per="run"`` and draws of synapses.
ONCE = 2**32 - 1

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_NORMAL = np.uint64(0x80000000)
_OF_MESSAGES = 0x6D657367  # above every run's iterations: for the keys of receivers


def key(seed: int, layer: int) -> Key:
    """The two words that separate one layer's draws from every other layer's and seed's."""
    words = np.random.SeedSequence(seed, spawn_key=(layer,)).generate_state(2, np.uint32)
    return int(words[0]), int(words[1])


def philox(key: Key, counter: Sequence[Any]) -> list[NDArray[np.uint64]]:
    """Ten rounds over four broadcast arrays of 32-bit words (kept in uint64); four word arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (high >> _HALF) ^ c1 ^ np.uint64(k0),
            high & _MASK,
            (low >> _HALF) ^ c3 ^ np.uint64(k1),
            low & _MASK,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def uniform(
    key: Key, site: int, neurons: ArrayLike, samples: ArrayLike, iteration: int
) -> NDArray[np.float64]:
    """Uniforms in [0, 1), multiples of 2**-24: (len(samples), len(neurons)).

    `samples` are global sample numbers (`SHARED` for a draw per batch or run), `site` < 2**15.
    """
    blocks, block, lane = _blocks(neurons, 4)
    words = np.stack(philox(key, _counter(blocks, samples, iteration, site)), axis=-1)
    return np.asarray((words[:, block, lane] >> np.uint64(8)) * 2.0**-24)


def normal(
    key: Key, site: int, neurons: ArrayLike, samples: ArrayLike, iteration: int
) -> NDArray[np.float64]:
    """Standard normals by Box and Muller, in double: (len(samples), len(neurons))."""
    blocks, block, lane = _blocks(neurons, 2)
    c0, c1, c2, c3 = _counter(blocks, samples, iteration, site)
    words = np.stack(philox(key, (c0, c1, c2, c3 | _NORMAL)), axis=-1)
    u1 = (words[:, block, 2 * lane] + 0.5) * 2.0**-32
    u2 = (words[:, block, 2 * lane + 1] + 0.5) * 2.0**-32
    return np.asarray(np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2))


def numbers(first: int | NDArray[np.int64], n: int) -> NDArray[np.uint64]:
    """The numbers by which n samples draw: they follow the first one's, or are given, (n,)."""
    if isinstance(first, np.ndarray):
        return first.astype(np.uint64)
    return np.arange(first, first + n, dtype=np.uint64)


def of_sequences(samples: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers by which samples draw ``per="sequence"``: the same at every step."""
    return samples & np.uint64(~STEP_BITS & SHARED)


def receiver_keys(key: Key, receivers: ArrayLike, link: int) -> NDArray[np.uint64]:
    """The keys of draws that are one per message: (len(receivers), 2), a receiver's for one link.

    A message needs one more number than a counter has room for; so the receiver is in the key.
    """
    n = np.asarray(receivers, np.uint64)
    counter = [n, *(np.full_like(n, word) for word in (link, _OF_MESSAGES, 0))]
    return np.stack(philox(key, counter)[:2], axis=-1)


def of_messages(
    kind: str,
    keys: NDArray[np.uint64],
    site: int,
    sources: ArrayLike,
    samples: ArrayLike,
    iteration: int,
) -> NDArray[np.float64]:
    """Uniforms or standard normals, one per message. The arguments are broadcast: `keys` without
    its last axis, `sources` the senders' places in their layer, `samples`.
    """
    i, s = np.asarray(sources, np.uint64), np.asarray(samples, np.uint64)
    per = np.uint64(2 if kind == "normal" else 4)
    last = np.uint64((site << 16) & 0xFFFFFFFF) ^ (s >> _HALF)
    if kind == "normal":
        last = last | _NORMAL
    counter = [i // per, s & _MASK, np.uint64(iteration & 0xFFFFFFFF), last]
    words = np.broadcast_arrays(*philox((keys[..., 0], keys[..., 1]), counter))
    lane = np.broadcast_to((i % per).astype(np.intp), words[0].shape)
    if kind != "normal":
        return np.asarray((np.choose(lane, words) >> np.uint64(8)) * 2.0**-24)
    u1 = (np.choose(2 * lane, words) + 0.5) * 2.0**-32
    u2 = (np.choose(2 * lane + 1, words) + 0.5) * 2.0**-32
    return np.asarray(np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2))


def _blocks(
    neurons: ArrayLike, size: int
) -> tuple[NDArray[np.uint64], NDArray[np.intp], NDArray[np.intp]]:
    """The distinct counter blocks of these neurons, and each neuron's place in them."""
    n = np.asarray(neurons, dtype=np.int64)
    blocks, block = np.unique(n // size, return_inverse=True)
    return blocks.astype(np.uint64), block, (n % size).astype(np.intp)


def _counter(
    blocks: NDArray[np.uint64], samples: ArrayLike, iteration: int, site: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    s = np.asarray(samples, dtype=np.uint64)[:, None]
    last = np.uint64((site << 16) & 0xFFFFFFFF) ^ (s >> _HALF)
    when = np.full((1, 1), iteration & 0xFFFFFFFF, dtype=np.uint64)
    return blocks[None, :], s & _MASK, when, last


def site(path: Sequence[tuple[str, int, int]]) -> int:
    """The number of a draw in the source, below 2**15.

    `path` leads from `forward` to the draw: for each call on the way (function name, line relative
    to its ``def`` or first decorator, column in the file). So frames (interpreter) and syntax trees
    (compiler) give the same, and an edit above the method does not change it.
    """
    text = ";".join(f"{name}:{line}:{column}" for name, line, column in path)
    return zlib.crc32(text.encode()) & 0x7FFF
