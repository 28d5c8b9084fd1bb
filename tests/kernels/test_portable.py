"""Plain C, without Python: here, and on aarch64 where a cross compiler and qemu are installed
(Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
"""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from horn._kernels.checksum import sum64

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "horn/_kernels"
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", f"-I{KERNELS}"]
pytestmark = pytest.mark.slow  # most of it is the compiler's time
MACHINES = {"here": ("cc", []), "aarch64": ("aarch64-linux-gnu-gcc", ["qemu-aarch64"])}


def compiler(machine):
    name, runner = MACHINES[machine]
    for tool in (name, *runner):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    return name, runner


@pytest.mark.parametrize("machine", MACHINES)
def test_functions_draws_and_sums_are_the_same_on_every_machine(machine, tmp_path):
    name, runner = compiler(machine)
    program = tmp_path / "portable"
    static = ["-static"] if runner else []
    subprocess.run([name, *FLAGS, *static, HERE / "portable.c", "-o", program, "-lm"], check=True)
    done = subprocess.run([*runner, program], capture_output=True, text=True, timeout=100)
    content = bytes((i * 7 + i // 256) & 255 for i in range(5000))
    assert done.stdout.splitlines() == [f"sum {sum64(content, 3):016x}", "13747 tried, 0 wrong"]


@pytest.mark.parametrize("source", sorted([*KERNELS.glob("*.c"), *KERNELS.glob("*.pyx")]),
                         ids=lambda path: path.name)  # fmt: skip
def test_every_source_compiles_for_aarch64(source, tmp_path):
    """Python's headers are those of this machine: both have 64 bits."""
    name, _ = compiler("aarch64")
    if source.suffix == ".pyx":
        from Cython.Compiler.Main import CompilationOptions, compile_single  # to build, not to test

        made = tmp_path / f"{source.stem}.c"
        options = CompilationOptions(output_file=str(made), language_level=3)
        compile_single(str(source), options, f"horn._kernels.{source.stem}")
        source = made
    include = sysconfig.get_path("include")
    command = [name, *FLAGS, "-fPIC", f"-I{include}", "-c", source, "-o", tmp_path / "made.o"]
    subprocess.run(command, check=True)
