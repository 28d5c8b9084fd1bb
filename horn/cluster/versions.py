"""What all hosts of a job must have the same: horn, and Python's minor version."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def versions() -> dict[str, str | int]:
    """By name."""
    try:
        horn = installed("horn-bsp")
    except PackageNotFoundError:
        horn = "unknown"
    return {"horn": horn, "python": ".".join(platform.python_version_tuple()[:2])}
