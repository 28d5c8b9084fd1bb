"""The BLAS that is loaded: MKL if its package is installed, else NumPy's OpenBLAS, else NumPy.

`load()` finds the library once per process and gives the addresses of its C interface; nothing is
linked at build time. HORN_BLAS=mkl|openblas|numpy overrides the choice, and then a library that
is not there is an error, never a silent other one; without it the engine makes products of float32
itself where it is faster than the library (wide.c). The numpy choice has no addresses: the engine
goes back to Python for its products.
"""

import ctypes
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from horn.errors import JobError

NAMES = ("mkl", "openblas", "numpy")
_LOADED = {}


@dataclass(frozen=True)
class Blas:
    """One library: where its functions are, and how wide its integers.

    sgemm, dgemm : addresses of cblas_sgemm and cblas_dgemm, 0 for numpy.
    get_threads, set_threads : addresses, 0 where the library needs no telling.
    is_asked : somebody asked for this library, so that nothing else may take its products.
    """

    name: str
    path: str
    sgemm: int = 0
    dgemm: int = 0
    is_ilp64: bool = False
    get_threads: int = 0
    set_threads: int = 0
    is_asked: bool = False


def load(name=None):
    """The BLAS called `name`, or the best one here (HORN_BLAS, else mkl, openblas, numpy).

    JobError : no library is called that, or it is not here.
    """
    wanted = name or os.environ.get("HORN_BLAS") or ""
    if wanted and wanted not in NAMES:
        raise JobError(f"no BLAS is called {wanted!r}; HORN_BLAS is one of {', '.join(NAMES)}")
    if wanted in _LOADED:
        return _LOADED[wanted]
    for candidate in [wanted] if wanted else NAMES:
        found = {"mkl": _mkl, "openblas": _openblas, "numpy": _numpy}[candidate]()
        if found is not None:
            _LOADED[wanted] = replace(found, is_asked=bool(wanted))
            return _LOADED[wanted]
    raise JobError(
        f"the BLAS {wanted!r} is not here; "
        + (
            "install it with: pip install 'horn-bsp[mkl]'"
            if wanted == "mkl"
            else "NumPy did not load one: leave HORN_BLAS unset"
        )
    )


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def _mkl():
    for path in _mkl_paths():
        try:
            library = ctypes.CDLL(str(path))
            # 1 = sequential: the engine has its own threads, and MKL then needs no OpenMP.
            library.MKL_Set_Threading_Layer(1)
            return Blas(
                "mkl", str(path), _address(library.cblas_sgemm), _address(library.cblas_dgemm)
            )
        except (OSError, AttributeError):
            continue
    return None


def _mkl_paths():
    from importlib import metadata

    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libmkl_rt"):
            yield Path(str(file.locate())).resolve()
    yield from sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))


def _openblas():
    for path in _openblas_paths():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for head in ("scipy_", ""):
            for tail in ("64_", "_64", ""):
                try:
                    return Blas(
                        "openblas",
                        str(path),
                        _address(getattr(library, f"{head}cblas_sgemm{tail}")),
                        _address(getattr(library, f"{head}cblas_dgemm{tail}")),
                        bool(tail),
                        _address(getattr(library, f"{head}openblas_get_num_threads{tail}")),
                        _address(getattr(library, f"{head}openblas_set_num_threads{tail}")),
                    )
                except AttributeError:
                    continue
    return None


def _openblas_paths():
    import numpy

    wheel = Path(numpy.__file__).parent.parent / "numpy.libs"
    yield from sorted(wheel.glob("lib*openblas*"))
    import threadpoolctl

    for info in threadpoolctl.threadpool_info():
        if info["internal_api"] == "openblas":
            yield info["filepath"]


def _numpy():
    return Blas("numpy", "")
