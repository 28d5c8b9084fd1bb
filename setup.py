"""The extensions and how they are compiled, nothing else; all metadata is in pyproject.toml."""

import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
KERNELS = Path("horn/_kernels")
BUILT = Path("build/cython")
STAMP = BUILT / "stamp.h"  # of which sources the engine is built
# What an extension has besides its .pyx; the longest to compile first.
SOURCES = {
    "engine": [
        "avx512.c",
        "avx2.c",
        "plain.c",
        "wide_avx512.c",
        "wide_avx2.c",
        "thin_avx512.c",
        "thin_avx2.c",
        "tape.c",
        "bands.c",
    ],
}


def write_stamp():
    """Write STAMP where the sources changed, and with it the engine is built again."""
    stamp = runpy.run_path(str(KERNELS / "stamp.py"))["stamp"](KERNELS)
    text = f'#define HORN_STAMP "{stamp}"\n'
    if not STAMP.exists() or STAMP.read_text() != text:
        BUILT.mkdir(parents=True, exist_ok=True)
        STAMP.write_text(text)


class Build(build_ext):
    """Compiles every C file of every extension side by side, a file per core."""

    def build_extensions(self):
        compile_all = self.compiler.compile

        def compile_apart(sources, *args, **options):
            """The object files, in the order of the sources."""
            apart = pool.map(lambda source: compile_all([source], *args, **options), sources)
            return [made for objects in apart for made in objects]

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            self.compiler.compile = compile_apart
            self.parallel = len(self.extensions)  # they only wait for the pool
            super().build_extensions()


write_stamp()
extensions = [
    Extension(
        f"horn._kernels.{path.stem}",
        [str(KERNELS / name) for name in SOURCES.get(path.stem, [])] + [str(path)],
        include_dirs=[str(KERNELS), str(BUILT)],
        depends=[str(p) for p in (*KERNELS.glob("*.h"), *KERNELS.glob("*.px[di]"), STAMP)],
        extra_compile_args=FLAGS,
    )
    for path in sorted(KERNELS.glob("*.pyx"), key=lambda path: path.stem not in SOURCES)
]

setup(
    ext_modules=cythonize(extensions, build_dir=str(BUILT), compiler_directives=DIRECTIVES),
    cmdclass={"build_ext": Build},
    # A folder on the path, as type checkers can follow it, and no finder, as they cannot.
    options={"editable_wheel": {"mode": "compat"}},
)
