"""An OpenBLAS whose block sizes are wrong: that no product of horn's dies of it."""

import itertools
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from horn._kernels import blas
from horn._kernels.engine import Tape
from horn.errors import JobError

DEPTHS = [1, 255, 256, 257, 300, 509, 511, 512, 513, 770, 1030]

# 512 where Haswell's kernel of float64 has 256, as 0.3.34 itself writes it on some processors;
# {} is the address of the table in the file of the library.
WRONG = """
import ctypes, sys
import numpy as np
from horn._kernels import blas
from horn._kernels.engine import Tape

here = blas.openblas_at(sys.argv[1])
base = next(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if here.path in line)
table = (ctypes.c_int * (int(sys.argv[3]) // 4)).from_address(base + int(sys.argv[2]))
sizes = (i for i in range(len(table)) if table[i:i+2] == [512, 256] and table[i+3:i+5] == [4, 8])
at = next(sizes, None)
if at is None:
    sys.exit("other sizes")
table[at + 1] = 512
if sys.argv[4] == "pieces":
    here = blas.pieces(here)
a, b, c = np.ones((64, 512)), np.ones((512, 64)), np.zeros((64, 64))
tape = Tape(np.float64, 1, here)
tape.gemm(a, b, c)
print("now", flush=True)
tape.run()
assert (c == 512).all()
print("made")
"""


def library(of):
    """NumPy's OpenBLAS, whose integers have 64 bits, or SciPy's, whose have 32."""
    if of == "numpy":
        try:
            return blas.load("openblas")
        except JobError as absent:
            pytest.skip(str(absent))
    scipy = Path(pytest.importorskip("scipy").__file__)
    for path in sorted((scipy.parent.parent / "scipy.libs").glob("lib*openblas*")):
        if found := blas.openblas_at(path):
            return found
    pytest.skip("this SciPy has no OpenBLAS of its own")


def symbol(path, name):
    """Where a symbol of an ELF file is, and its size in bytes; None: it is not told."""
    file = Path(path).read_bytes()
    if file[:5] != b"\x7fELF\x02":
        return None
    (start,), (size, n) = struct.unpack_from("<Q", file, 40), struct.unpack_from("<HH", file, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", file, start + i * size) for i in range(n)]
    for _, kind, _, _, offset, length, link, *_ in heads:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = heads[link]
        known = file[strings[4] : strings[4] + strings[5]]
        wanted = known.find(b"\0" + name + b"\0") + 1
        for entry in range(offset, offset + length, 24):
            of, _, _, _, value, n_bytes = struct.unpack_from("<IBBHQQ", file, entry)
            if of == wanted != 0:
                return value, n_bytes
    return None


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["whole", "pieces"])
def test_block_sizes_of_another_kernel_end_a_process_but_not_in_pieces(how):
    """Fails without `pieces`: it dies as NumPy 2.5's OpenBLAS does on a Zen 4 without AVX-512."""
    path = os.path.realpath(library("numpy").path)
    table = symbol(path, b"gotoblas_HASWELL")
    if table is None or " avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this OpenBLAS or processor has no kernel of Haswell to give wrong sizes")
    done = subprocess.run(
        [sys.executable, "-c", WRONG, path, *map(str, table), how],
        env={**os.environ, "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "other sizes" in done.stderr:
        pytest.skip("this OpenBLAS has other block sizes on this processor from the start")
    if how == "whole":  # that the sizes are wrong is no supposition
        assert done.returncode < 0 and done.stdout == "now\n", done
    else:
        assert done.returncode == 0 and done.stdout == "now\nmade\n", done


@pytest.mark.parametrize("of", ["numpy", "scipy"])
def test_pieces_have_the_bits_of_a_sound_library(of, rng):
    whole = blas.openblas_at(library(of).path)
    pieces = blas.pieces(whole)
    same = whole.said[1] in ("Haswell", "Zen") and not blas.is_unsure(whole)
    for k, order, turned in itertools.product(DEPTHS, "CF", itertools.product([0, 1], [0, 1])):
        a, b = rng.standard_normal((13, k)), rng.standard_normal((k, 9))
        a, b = (
            np.ascontiguousarray(x.T).T if t else x for x, t in zip((a, b), turned, strict=True)
        )
        start = rng.standard_normal((13, 9))
        made = []
        for each in (whole, pieces):
            c = np.array(start, order=order)
            tape = Tape(np.float64, 1, each)
            tape.gemm(a, b, c, alpha=0.5, beta=0.25)
            tape.run()
            made.append(c)
        np.testing.assert_allclose(made[1], 0.5 * (a @ b) + 0.25 * start, rtol=1e-11, atol=1e-11)
        if same:
            np.testing.assert_array_equal(made[1], made[0], err_msg=f"{k} {order} {turned}")


@pytest.mark.parametrize(
    "config, core, unsure",
    [
        ("OpenBLAS 0.3.34.237.2  USE64BITINT DYNAMIC_ARCH", "Haswell", True),
        ("OpenBLAS 0.3.34 DYNAMIC_ARCH", "Zen", True),
        ("OpenBLAS 0.3.33.112.0 DYNAMIC_ARCH", "Haswell", True),
        ("OpenBLAS 0.3.34.237.2  USE64BITINT DYNAMIC_ARCH", "SkylakeX", False),
        ("OpenBLAS 0.3.31.188.0  USE64BITINT DYNAMIC_ARCH", "Haswell", False),
        ("OpenBLAS 0.3.35 DYNAMIC_ARCH", "Haswell", False),
        ("OpenBLAS 0.3.3 DYNAMIC_ARCH", "Haswell", False),
        ("", "", False),
    ],
)
def test_which_library_is_not_trusted(config, core, unsure):
    assert blas.is_unsure(blas.Blas("openblas", "", said=(config, core))) is unsure


def test_the_library_that_is_loaded_is_in_pieces_if_it_is_not_trusted():
    here = library("numpy")
    assert here.in_pieces is blas.is_unsure(here)
    assert blas.pieces(here) == blas.pieces(blas.pieces(here))
