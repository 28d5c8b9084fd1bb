"""The version of horn."""


def installed() -> str:
    """The installed version; "0" in a folder of sources that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 40 modules, for few processes

    try:
        return version("horn-bsp")
    except PackageNotFoundError:
        return "0"
