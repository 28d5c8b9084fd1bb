"""The versions that all hosts of a job must share: horn's, and Python's minor version."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def versions() -> dict[str, str | int]:
    """The versions by name."""
    try:
        horn = installed("horn-bsp")
    except PackageNotFoundError:
        horn = "unknown"
    return {"horn": horn, "python": ".".join(platform.python_version_tuple()[:2])}
