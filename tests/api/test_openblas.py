"""What OpenBLAS is told of a processor before NumPy loads it."""

import os
import subprocess
import sys

import pytest

from horn import openblas

ZEN4 = {
    "vendor_id": "AuthenticAMD",
    "cache size": "1024 KB",
    "flags": "fpu avx avx2 fma",  # its AVX-512 is withheld
}


@pytest.mark.parametrize(
    "changed, core, size",
    [
        ({}, "", 1023),
        ({"flags": "fpu avx2 avx512f"}, "", None),  # the kernels that the sizes are for
        ({"flags": "fpu avx2 avx512f"}, "Haswell", 1023),
        ({"vendor_id": "GenuineIntel"}, "", None),
        ({"cache size": "512 KB"}, "", None),
        ({"cache size": ""}, "", 1023),
        ({"flags": "fpu avx"}, "", None),
    ],
)
def test_which_processors_need_telling(changed, core, size):
    assert openblas.size_to_tell({**ZEN4, **changed}, core) == size


@pytest.mark.parametrize("before, after", [(None, "1023"), ("2048", "2048")])
def test_it_is_told_before_numpy_is_loaded(before, after, tmp_path, monkeypatch):
    monkeypatch.delenv(openblas.VARIABLE, raising=False)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if before:
        monkeypatch.setenv(openblas.VARIABLE, before)
    facts = "".join(f"{name}\t: {value}\n" for name, value in ZEN4.items())
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\n{facts}\nprocessor\t: 1\nflags\t: avx512f\n"
    )
    monkeypatch.setattr(openblas, "CPUINFO", str(tmp_path / "cpuinfo"))
    openblas.prepare()
    assert os.environ.get(openblas.VARIABLE) == after


def test_nothing_is_told_where_processors_are_not_listed(monkeypatch, tmp_path):
    monkeypatch.delenv(openblas.VARIABLE, raising=False)
    monkeypatch.setattr(openblas, "CPUINFO", str(tmp_path / "none"))
    openblas.prepare()
    assert openblas.VARIABLE not in os.environ


@pytest.mark.cluster
def test_it_is_the_first_thing_that_horn_does():
    code = (
        "import sys, types; fake = types.ModuleType('horn.openblas'); "
        "fake.prepare = lambda: print('numpy' in sys.modules); "
        "sys.modules['horn.openblas'] = fake; import horn; horn.train"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
