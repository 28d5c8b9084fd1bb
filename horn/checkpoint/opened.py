"""A reader of one checkpoint: any part of an array, from the parts that have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from horn.checkpoint import manifest as manifests
from horn.checkpoint.parts import SUFFIX, PartFile, PieceEntry, open_part
from horn.checkpoint.places import Array, Index, Place, axis, count, cross, intersection
from horn.errors import CheckpointError
from horn.formats.header import DTYPES

if TYPE_CHECKING:
    import numpy.typing as npt

N_READERS = 4  # threads: sha256 takes most of the time, without the interpreter's lock
REMEDY = "resume with the network that wrote the checkpoint"


class CheckpointReader:
    """One checkpoint, its manifest and the headers of its parts checked. The sha256 of a part is
    compared when it is first used, or by ``verify``. Returned arrays are new and writable.

    Raises
    ------
    CheckpointError : by every method, for a damaged part or a missing array; names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = manifests.read(path)
        self.iteration, self.attempt = found.iteration, found.attempt
        self.facts: Mapping[str, Any] = found.facts
        self._parts = {
            name.removesuffix(SUFFIX): open_part(path / name, file.bytes, file.sha256)
            for name, file in found.files.items()
        }
        self._held: dict[tuple[str, str], list[tuple[str, PartFile, PieceEntry]]] = {}
        for part_name, part in self._parts.items():
            for piece in part.pieces:
                key = (piece.kind, piece.name)
                self._held.setdefault(key, []).append((part_name, part, piece))

    def verify(self) -> None:
        """Read every part and compare its sha256."""
        from concurrent.futures import ThreadPoolExecutor  # tasks do without

        with ThreadPoolExecutor(N_READERS) as threads:
            list(threads.map(PartFile.verify, self._parts.values()))

    def parts(self) -> dict[str, Mapping[str, Any]]:
        """The facts that each part was written with, by part name."""
        return {name: part.facts for name, part in self._parts.items()}

    def names(self, kind: str) -> tuple[str, ...]:
        """The arrays of a kind, sorted."""
        return tuple(sorted(name for of, name in self._held if of == kind))

    def cut(
        self,
        kind: str,
        name: str,
        places: Sequence[Place],
        dtype: npt.DTypeLike,
        parts: Collection[str] | None = None,
    ) -> Array:
        """The values at ``places`` of the whole array.

        Where several parts have a value, a part with all of these values is taken, else the first
        by the manifest: replicas are expected to agree. parts : their names, all if None.
        """
        want = [axis(place) for place in places]
        shape = tuple(len(a) for a in want)
        held = self._holding(kind, name, parts)
        dtype = np.dtype(dtype)
        found: list[tuple[PartFile, PieceEntry, list[Index], list[Index]]] = []
        for _, part, piece in held:
            tensor = part.tensors[piece.tensor]
            its = np.dtype(DTYPES[tensor.dtype])
            if its != dtype or len(tensor.shape) != len(want):
                what = f"{kind} {name!r} has {len(tensor.shape)} axes of dtype {its}, but"
                what = f"{what} {len(want)} of {dtype} in this network; {REMEDY}"
                raise CheckpointError(str(part.path), what)
            both = [intersection(have, a) for have, a in zip(part.axes(piece), want, strict=True)]
            entry = (part, piece, [src for src, _ in both], [to for _, to in both])
            n = count(entry[3])
            if n == count([slice(0, k) for k in shape]):
                found = [entry]
                break
            if n:
                found.append(entry)
        out = np.empty(shape, dtype)
        is_there = np.zeros(shape, bool) if len(found) > 1 else None
        for part, piece, source, to in reversed(found):  # the first is written last: it stays
            out[cross(to)] = part.array(piece.tensor)[cross(source)]
            if is_there is not None:
                is_there[cross(to)] = True
        n_found = sum(count(to) for *_, to in found) if is_there is None else int(is_there.sum())
        if n_found != out.size:
            searched = "" if parts is None else f" in {', '.join(sorted(parts))}"
            what = f"has {n_found:,} of the {out.size:,} values of {kind} {name!r}"
            what = f"{what} that are asked for{searched}; {REMEDY}"
            raise CheckpointError(str(self.path), what)
        return out

    def _holding(
        self, kind: str, name: str, parts: Collection[str] | None
    ) -> list[tuple[str, PartFile, PieceEntry]]:
        for wanted in () if parts is None else parts:
            if wanted not in self._parts:
                known = ", ".join(self._parts)
                raise CheckpointError(str(self.path), f"has no part {wanted!r} (it has {known})")
        held = self._held.get((kind, name), [])
        held = [entry for entry in held if parts is None or entry[0] in parts]
        if not held:
            known = ", ".join(self.names(kind)) or "none"
            what = f"has no {kind} {name!r} (of this kind it has: {known}); {REMEDY}"
            raise CheckpointError(str(self.path), what)
        return held
