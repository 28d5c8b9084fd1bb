"""A part file: the arrays of one task as safetensors, described in its metadata. It is mapped to be
read, after its sha256, and every name, dtype, shape and size, was checked. Source of the layout:
github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from horn.checkpoint import disk
from horn.checkpoint.checked_json import as_json, convert, damaged, decode
from horn.checkpoint.places import Array, Axis, Place, axis
from horn.errors import CheckpointError
from horn.formats.header import DTYPES, MAX_HEADER_BYTES

FORMAT = "horn checkpoint part"
VERSION = 1
MAX_PLACE = 1 << 60  # counts stay below 2**63
PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SUFFIX = ".safetensors"
CODES = {np.dtype(name): code for code, name in DTYPES.items()}


@dataclass(frozen=True)
class ArrayPiece:
    """A part of a named array. kind : "parameter", "slot", "state", ... places : along each axis of
    the whole array: a slice of positive step, or an int64 index array. A slice without an end is as
    long as the part.
    """

    kind: str
    name: str
    array: Array
    places: tuple[Place, ...]


@dataclass(frozen=True)
class WrittenPart:
    """A part on the disk."""

    name: str
    n_bytes: int
    sha256: str


class PieceEntry(msgspec.Struct, frozen=True):
    """A piece in the metadata. A place is (start, stop, step) or a tensor of indices."""

    kind: str
    name: str
    tensor: str
    places: list[tuple[int, int, int] | str]


class PartHeader(msgspec.Struct, frozen=True):
    part: str
    facts: dict[str, Any]
    pieces: list[PieceEntry]


class TensorEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def write_part(
    folder: Path, name: str, pieces: Sequence[ArrayPiece], facts: Mapping[str, Any]
) -> WrittenPart:
    """Write ``<folder>/<name>.safetensors`` to the disk. The arrays must not change meanwhile.
    After an error there is no such file, and the folder is to be discarded. Raises CheckpointError.
    """
    path = Path(folder) / f"{name}{SUFFIX}"
    if not PART_NAME.fullmatch(name):
        raise CheckpointError(
            str(path), f"a part is not called {name!r} (allowed: {PART_NAME.pattern})"
        )
    tensors: dict[str, Array] = {}
    entries = []
    for k, piece in enumerate(pieces):
        where = f"{piece.kind} {piece.name!r}"
        array = np.asarray(piece.array)
        if len(piece.places) != array.ndim:
            what = f"{where} has {array.ndim} axes, but places along {len(piece.places)}"
            raise CheckpointError(str(path), what)
        key = f"{k}/{piece.kind}/{piece.name}"
        tensors[key] = array
        places: list[tuple[int, int, int] | str] = []
        for n, place in enumerate(piece.places):
            try:
                found = axis(place, array.shape[n])
            except ValueError as error:
                raise CheckpointError(str(path), f"{where}, axis {n}: {error}") from error
            if isinstance(found, range):
                places.append((found.start, found.stop, found.step))
            else:
                places.append(f"{k}.{n}/places")
                tensors[f"{k}.{n}/places"] = found
        entries.append(PieceEntry(piece.kind, piece.name, key, places))
    head = PartHeader(name, dict(facts), entries)
    size_bytes, sha256 = disk.create(path, _file(path, head, tensors))
    return WrittenPart(name, size_bytes, sha256)


def _file(
    path: Path, head: PartHeader, tensors: Mapping[str, Array]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a part file, wide numbers first, so that mapped arrays are aligned."""
    for name, array in tensors.items():
        if array.dtype.newbyteorder("<") not in CODES:
            raise CheckpointError(str(path), f"{name} is of dtype {array.dtype}, which none holds")
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    text = as_json(
        path, msgspec.structs.asdict(head) | {"pieces": msgspec.to_builtins(head.pieces)}
    )
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "horn": text,
        "horn_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name in order:
        array = tensors[name]
        header[name] = {
            "dtype": CODES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    if len(encoded) > MAX_HEADER_BYTES:
        what = f"its header would take {len(encoded):,} bytes, of {MAX_HEADER_BYTES:,} that can be"
        raise CheckpointError(str(path), f"{what}; make the facts smaller")
    yield len(encoded).to_bytes(8, "little") + encoded
    for name in order:
        yield from _bytes(tensors[name])


def _bytes(array: Array) -> Iterator[memoryview]:
    """Yield an array's values in C order and little-endian, a few MiB at a time."""
    if not array.size:
        return
    rows = array.reshape(1) if array.ndim == 0 else array
    is_plain = rows.flags.c_contiguous and rows.dtype == rows.dtype.newbyteorder("<")
    if is_plain:
        rows = rows.reshape(-1)
    n_rows = max(1, disk.CHUNK_BYTES // (rows.nbytes // len(rows)))
    for k in range(0, len(rows), n_rows):
        chunk = np.ascontiguousarray(rows[k : k + n_rows], rows.dtype.newbyteorder("<"))
        yield chunk.reshape(-1).view(np.uint8).data


@dataclass
class PartFile:
    """A part file of a checkpoint. Its header was checked; its arrays are on first use."""

    path: Path
    size_bytes: int
    sha256: str
    facts: dict[str, Any]
    pieces: list[PieceEntry]
    tensors: dict[str, TensorEntry]
    start: int  # of the arrays in the file, in bytes
    _map: mmap.mmap | None = field(default=None, repr=False)

    def verify(self) -> mmap.mmap:
        """Compare the sha256 and map the file, once. Raises CheckpointError."""
        if self._map is None:
            with disk.reading(self.path, self.size_bytes) as descriptor:
                found = disk.sha256(descriptor)
                if found != self.sha256:
                    what = f"its sha256 is {found[:12]}..., expected {self.sha256[:12]}..."
                    raise damaged(self.path, f"{what} by the manifest")
                self._map = mmap.mmap(descriptor, self.size_bytes, prot=mmap.PROT_READ)
        return self._map

    def array(self, name: str) -> Array:
        found = self.tensors[name]
        at = self.start + found.data_offsets[0]
        dtype, n = np.dtype(DTYPES[found.dtype]), math.prod(found.shape)
        if not n:
            return np.empty(found.shape, dtype)
        return np.frombuffer(self.verify(), dtype, n, at).reshape(found.shape)

    def axes(self, piece: PieceEntry) -> tuple[Axis, ...]:
        shape = self.tensors[piece.tensor].shape
        try:
            return tuple(
                axis(self.array(place) if isinstance(place, str) else range(*place), n)
                for place, n in zip(piece.places, shape, strict=True)
            )
        except ValueError as error:
            raise damaged(self.path, f"{piece.kind} {piece.name!r}: {error}") from error


def open_part(path: Path, size_bytes: int, sha256: str) -> PartFile:
    """Open a part file and check its header. Raises CheckpointError."""
    with disk.reading(path, size_bytes) as descriptor:
        length = int.from_bytes(disk.read_up_to(descriptor, 8), "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size_bytes - 8):
            raise damaged(path, f"its header would take {length:,} of {size_bytes:,} bytes")
        header = disk.read_up_to(descriptor, length)
    found = decode(path, header, "its header")
    metadata = found.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise CheckpointError(str(path), "is no part of a checkpoint that horn wrote")
    if metadata.get("version") != str(VERSION):
        what = f"is of format {metadata.get('version')}, this horn reads format {VERSION}"
        raise CheckpointError(str(path), f"{what}; use the horn that wrote it")
    text = str(metadata.get("horn")).encode(errors="replace")
    if hashlib.sha256(text).hexdigest() != metadata.get("horn_sha256"):
        raise damaged(path, "its description has changed")
    head = convert(path, decode(path, text, "its description"), PartHeader, "its description")
    tensors = convert(path, found, dict[str, TensorEntry], "its header")
    _check_tensors(path, tensors, size_bytes - 8 - length)
    for piece in head.pieces:
        _check_piece(path, piece, tensors)
    if f"{head.part}{SUFFIX}" != path.name:
        raise damaged(path, f"it is part {head.part!r}")
    return PartFile(path, size_bytes, sha256, head.facts, head.pieces, tensors, 8 + length)


def _check_tensors(path: Path, tensors: Mapping[str, TensorEntry], n_bytes: int) -> None:
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, stop = tensor.data_offsets
        if tensor.dtype not in DTYPES:
            raise damaged(path, f"{name!r} is of dtype {tensor.dtype!r}")
        itemsize = np.dtype(DTYPES[tensor.dtype]).itemsize
        most = math.prod(max(1, n) for n in tensor.shape) * itemsize  # as NumPy multiplies
        if min(tensor.shape, default=0) < 0 or len(tensor.shape) > 8 or most > MAX_PLACE:
            raise damaged(path, f"{name!r} is of shape {tensor.shape}")
        expected = math.prod(tensor.shape) * itemsize
        if start != at or stop - start != expected:
            what = f"{name!r} is at {start}:{stop}, expected {at}:{at + expected}"
            raise damaged(path, what)
        at = stop
    if at != n_bytes:
        raise damaged(path, f"its arrays take {at:,} bytes, expected {n_bytes:,}")


def _check_piece(path: Path, piece: PieceEntry, tensors: Mapping[str, TensorEntry]) -> None:
    what = f"{piece.kind} {piece.name!r}"
    tensor = tensors.get(piece.tensor)
    if tensor is None or len(tensor.shape) != len(piece.places):
        raise damaged(path, f"{what} has no tensor, or one with other axes")
    for place, length in zip(piece.places, tensor.shape, strict=True):
        if isinstance(place, str):
            indices = tensors.get(place)
            if indices is None or indices.dtype != "I64" or indices.shape != [length]:
                raise damaged(path, f"{what} has no places, or of another length")
            continue
        start, stop, step = place  # len(range()) would overflow with numbers that a file may have
        is_sane = 0 <= start <= MAX_PLACE and stop <= MAX_PLACE and 1 <= step <= MAX_PLACE
        if not is_sane or max(0, -((start - stop) // step)) != length:
            raise damaged(path, f"{what} is {length} long, but has the places {place}")
