"""Which horn this is."""


def installed() -> str:
    """The version that was installed; "0" in a folder of sources that was not."""
    from importlib.metadata import PackageNotFoundError, version  # 40 modules, for few processes

    try:
        return version("horn-bsp")
    except PackageNotFoundError:
        return "0"
