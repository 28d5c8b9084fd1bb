"""JSON of a checkpoint's files: written only as it is read again, and read as what is expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from horn.errors import CheckpointError

T = TypeVar("T")


def as_json(path: Path, value: Any) -> str:
    """Write a value as JSON; refuse values that it would change silently."""
    _check_plain(path, value)
    return json.dumps(value, separators=(",", ":"))


def _check_plain(path: Path, value: Any, where: str = "facts") -> None:
    """Raise CheckpointError for what JSON would change silently, or has not."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                what = f"{where} has the key {key!r}, which is no text; write {str(key)!r}"
                raise CheckpointError(str(path), what)
            _check_plain(path, inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for k, inner in enumerate(value):
            _check_plain(path, inner, f"{where}[{k}]")
    elif type(value) not in (str, int, float, bool, type(None)):
        what = f"{where} is of type {type(value).__name__}, which JSON has not; make it plain"
        raise CheckpointError(str(path), what)


def decode(path: Path, text: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object; with the standard library, because facts may hold inf and nan."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{what} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise damaged(path, f"{what} is no JSON object")
    return found


def convert(path: Path, value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise damaged(path, f"{what}: {error}") from None


def damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(str(path), f"is damaged ({why}); use an older checkpoint")
