"""MANIFEST.json: the files of a checkpoint. Its last line is the sha256 of all before it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from horn.checkpoint import disk
from horn.checkpoint.checked_json import as_json, convert, damaged, decode
from horn.checkpoint.parts import PART_NAME, SUFFIX, WrittenPart
from horn.errors import CheckpointError

FILE = "MANIFEST.json"
FORMAT = "horn checkpoint"
VERSION = 2
MAX_BYTES = 64 << 20
SEALED = re.compile(rb'(.*),\n "sha256": "([0-9a-f]{64})"\n\}\n', re.DOTALL)
SHA256 = re.compile(r"[0-9a-f]{64}")


class FileFacts(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class CheckpointManifest(msgspec.Struct, frozen=True):
    """The content of a manifest. ``files`` by file name."""

    iteration: int
    attempt: int
    facts: dict[str, Any]
    files: dict[str, FileFacts]


def write(
    folder: Path,
    iteration: int,
    attempt: int,
    facts: Mapping[str, Any],
    parts: Sequence[WrittenPart],
) -> None:
    """Write a manifest. Raises CheckpointError if the disk refuses, or JSON cannot hold a fact."""
    path = folder / FILE
    said = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": iteration,
        "attempt": attempt,
        "facts": dict(facts),
        "files": {f"{p.name}{SUFFIX}": {"bytes": p.n_bytes, "sha256": p.sha256} for p in parts},
    }
    # A line each: json indents in Python, which takes four times as long for a long history.
    lines = (f' "{name}": {as_json(path, value)}' for name, value in said.items())
    start = ("{\n" + ",\n".join(lines)).encode()
    seal = f',\n "sha256": "{hashlib.sha256(start).hexdigest()}"\n}}\n'.encode()
    if len(start) + len(seal) > MAX_BYTES:
        what = f"would take {len(start):,} bytes, of {MAX_BYTES:,} that can be"
        raise CheckpointError(str(path), f"{what}; make the facts smaller")
    disk.create(path, [start, seal])


def read(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint. Raises CheckpointError."""
    path = folder / FILE
    text = disk.read(path, MAX_BYTES)
    found = decode(path, text, "its text")
    if found.get("format") != FORMAT:
        raise CheckpointError(str(path), "is no manifest of a checkpoint that horn wrote")
    if found.get("version") != VERSION:
        what = f"is of format {found.get('version')!r}, this horn reads format {VERSION}"
        raise CheckpointError(str(path), f"{what}; use the horn that wrote it")
    sealed = SEALED.fullmatch(text)
    if sealed is None or hashlib.sha256(sealed[1]).hexdigest() != sealed[2].decode():
        raise damaged(path, "its text does not have the sha256 that its last line says")
    manifest = convert(path, found, CheckpointManifest, "its text")
    for name, file in manifest.files.items():
        stem = name.removesuffix(SUFFIX)
        if stem == name or not PART_NAME.fullmatch(stem):
            raise damaged(path, f"{name!r} is no name of a part")
        if file.bytes < 0 or not SHA256.fullmatch(file.sha256):
            raise damaged(path, f"{name!r} has size {file.bytes} and sha256 {file.sha256!r}")
    return manifest
