"""The kernels' sources by their hash, to know whether the compiled ones are of these.

setup.py runs this file by its path, before horn can be imported.
"""

from hashlib import sha256
from pathlib import Path

SOURCES = ("*.c", "*.h", "*.pyx", "*.px[di]")


def stamp(folder: Path) -> str:
    """16 hex digits of the C and Cython sources in a folder; "" where there are none (a wheel)."""
    files = sorted(path for pattern in SOURCES for path in folder.glob(pattern))
    hashed = sha256()
    for path in files:
        content = path.read_bytes()
        hashed.update(f"{path.name} {len(content)}\n".encode() + content)
    return hashed.hexdigest()[:16] if files else ""


def refuse_others(built: str) -> None:
    """ImportError where sources lie here, and they are not those that were compiled: a number
    that means one operation in C would mean another in Python.
    """
    if stamp(Path(__file__).parent) not in ("", built):
        raise ImportError(
            "horn's compiled kernels are of other sources than those in horn/_kernels (git pull, "
            "or an edit, after they were built). Build them: python setup.py build_ext --inplace."
        )
