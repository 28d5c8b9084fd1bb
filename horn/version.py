"""Which horn this is."""

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """The version that was installed; "0" in a folder of sources that was not."""
    try:
        return version("horn-bsp")
    except PackageNotFoundError:
        return "0"
