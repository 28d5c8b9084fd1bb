"""A setting that OpenBLAS needs before NumPy loads it, on some AMD processors. docs/notes/0168.

OpenBLAS 0.3.34, NumPy's from 2.5 on, takes an AMD processor with AVX-512, 1 MB of cache (L2) per
core and 32 MB (L3) for one whose AVX-512 it may use. Where the system withholds AVX-512, or
OPENBLAS_CORETYPE asks for less, its products of float64 then end the process. The cache size is
read at one place only, so telling it a KB less keeps the sound block sizes.
"""

from __future__ import annotations

import os

VARIABLE = "OPENBLAS_L2_SIZE"  # in KB
CPUINFO = "/proc/cpuinfo"


def size_to_tell(facts: dict[str, str], core: str) -> int | None:
    """The cache size to set, in KB, or None. facts : /proc/cpuinfo. core : the type asked for."""
    flags = facts.get("flags", "").split()
    if facts.get("vendor_id") != "AuthenticAMD" or "avx2" not in flags:
        return None
    if "avx512f" in flags and not core:
        return None  # the block sizes are right for these kernels
    said = facts.get("cache size", "").split() or ["1024"]  # KB; some systems leave it out
    return 1023 if said[0] == "1024" else None


def prepare() -> None:
    """Set the variable for this process and its children; a value from the environment stays."""
    if VARIABLE in os.environ:
        return
    facts = {}
    try:
        with open(CPUINFO, encoding="utf-8") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break  # the next core
                facts[name.strip()] = value.strip()
    except OSError:
        return
    size = size_to_tell(facts, os.environ.get("OPENBLAS_CORETYPE", ""))
    if size is not None:
        os.environ[VARIABLE] = str(size)
