"""The wheel, as scripts/check_wheel tries it: built, looked into, installed without a compiler."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_trains_digits_where_there_is_no_compiler(tmp_path):
    done = subprocess.run([ROOT / "scripts/check_wheel", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "manylinux" in wheel.name
    assert "digits are learned with plain C (HORN_SIMD=0): accuracy 0.9" in done.stdout
