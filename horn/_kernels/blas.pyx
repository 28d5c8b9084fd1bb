"""The BLAS that is loaded: MKL if its package is installed, else NumPy's OpenBLAS, else NumPy.

`load()` finds the library once per process and gives the addresses of its C interface; nothing is
linked at build time. HORN_BLAS=mkl|openblas|numpy overrides the choice, and then a library that
is not there is an error, never a silent other one; without it the engine makes products of float32
itself where it is faster than the library (wide.h). The numpy choice has no addresses: the engine
goes back to Python for its products.
"""

import ctypes
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from libc.stdint cimport int64_t, uintptr_t

from horn.errors import JobError

NAMES = ("mkl", "openblas", "numpy")
_LOADED = {}


@dataclass(frozen=True)
class Blas:
    """One library: the addresses of its functions, and the width of its integers.

    sgemm, dgemm : addresses of cblas_sgemm and cblas_dgemm, 0 for numpy.
    get_threads, set_threads : addresses, 0 where the library needs no telling.
    is_asked : somebody asked for this library, so that nothing else may take its products.
    said : of an OpenBLAS, what it says of itself: version and options, and its processor.
    in_pieces : its cblas_dgemm is called through `pieces` below.
    """

    name: str
    path: str
    sgemm: int = 0
    dgemm: int = 0
    is_ilp64: bool = False
    get_threads: int = 0
    set_threads: int = 0
    is_asked: bool = False
    said: tuple = ("", "")
    in_pieces: bool = False


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
    # Where packages are installed each has a folder that begins with its name. Asking importlib
    # takes 40 modules, which each process would import only to hear that there is no MKL.
    if not any(name.lower().startswith("mkl-") for folder in sys.path for name in _names(folder)):
        return
    from importlib import metadata

    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libmkl_rt"):
            yield Path(str(file.locate())).resolve()
    yield from sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))


def _names(folder):
    try:
        return os.listdir(folder or ".")
    except OSError:  # a zip file, or a missing folder
        return ()


def _openblas():
    found = filter(None, map(openblas_at, _openblas_paths()))
    blas = next(found, None)
    return pieces(blas) if blas is not None and is_unsure(blas) else blas


def openblas_at(path):
    """The OpenBLAS in a file, or None if there is none."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
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
                    said=tuple(
                        _said(library, f"{head}openblas_get_{what}{tail}")
                        for what in ("config", "corename")
                    ),
                )
            except AttributeError:
                continue
    return None


def _said(library, name):
    function = getattr(library, name, None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode(errors="replace")


def is_unsure(blas):
    """Whether an OpenBLAS may crash in a product of float64.

    0.3.34, and the versions that led to it, take the block sizes of a kernel for AVX-512 on any AMD
    processor that has AVX-512, also for the kernel for AVX2, where the system or OPENBLAS_CORETYPE
    withholds AVX-512. That kernel has room for 298 rows on its stack and is then given up to 512
    (issues 6013, 6021 and 6026 of OpenMathLib/OpenBLAS; docs/notes/0168).
    """
    config, core = blas.said
    return bool(re.match(r"OpenBLAS 0\.3\.3[34]\b", config)) and core in ("Haswell", "Zen")


def pieces(blas):
    """`blas` with its products of float64 along longer inner sides computed in pieces.

    They are the pieces that a sound OpenBLAS itself makes of them on one thread
    (driver/level3/level3.c), so that the sums are the same, bit by bit.
    """
    global _whole32, _whole64
    if blas.in_pieces:
        return blas
    if blas.is_ilp64:
        _whole64 = <dgemm64_t><uintptr_t>blas.dgemm
        return replace(blas, dgemm=<uintptr_t>&_pieces64, in_pieces=True)
    _whole32 = <dgemm32_t><uintptr_t>blas.dgemm
    return replace(blas, dgemm=<uintptr_t>&_pieces32, in_pieces=True)


ctypedef void (*dgemm32_t)(int, int, int, int, int, int, double, const double *, int,
                           const double *, int, double, double *, int) noexcept nogil
ctypedef void (*dgemm64_t)(int, int, int, int64_t, int64_t, int64_t, double, const double *,
                           int64_t, const double *, int64_t, double, double *,
                           int64_t) noexcept nogil
cdef dgemm32_t _whole32 = NULL
cdef dgemm64_t _whole64 = NULL
# DGEMM_DEFAULT_Q and the rows of the kernel, of Haswell and Zen in OpenBLAS's param.h
cdef enum: DEPTH = 256, ROWS = 4
cdef enum: BY_ROWS = 101, AS_IT_IS = 111  # of cblas.h


cdef inline int64_t _piece(int64_t left) noexcept nogil:
    if left >= 2 * DEPTH:
        return DEPTH
    return left if left <= DEPTH else (left // 2 + ROWS - 1) // ROWS * ROWS


cdef void _pieces64(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha,
                    const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
                    double *c, int64_t ldc) noexcept nogil:
    # the distance of the next inner index in a and in b, in numbers
    cdef int64_t step_a = 1 if (order == BY_ROWS) == (ta == AS_IT_IS) else lda
    cdef int64_t step_b = ldb if (order == BY_ROWS) == (tb == AS_IT_IS) else 1
    cdef int64_t at = _piece(k), size
    _whole64(order, ta, tb, m, n, at, alpha, a, lda, b, ldb, beta, c, ldc)
    while at < k:
        size = _piece(k - at)
        _whole64(order, ta, tb, m, n, size, alpha, a + at * step_a, lda, b + at * step_b, ldb, 1.0,
                 c, ldc)
        at += size


cdef void _pieces32(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a,
                    int lda, const double *b, int ldb, double beta, double *c,
                    int ldc) noexcept nogil:
    cdef int64_t step_a = 1 if (order == BY_ROWS) == (ta == AS_IT_IS) else lda
    cdef int64_t step_b = ldb if (order == BY_ROWS) == (tb == AS_IT_IS) else 1
    cdef int64_t at = _piece(k), size
    _whole32(order, ta, tb, m, n, <int>at, alpha, a, lda, b, ldb, beta, c, ldc)
    while at < k:
        size = _piece(k - at)
        _whole32(order, ta, tb, m, n, <int>size, alpha, a + at * step_a, lda, b + at * step_b, ldb,
                 1.0, c, ldc)
        at += size


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
