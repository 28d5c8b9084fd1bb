"""The wheel, as scripts/check_wheel tries it: built, looked into, installed without a compiler."""

import ast
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


def test_an_editable_install_is_a_folder_on_the_path():
    """A type checker reads folders, and not setuptools' finder: it found no module ``horn``."""
    calls = [n for n in ast.walk(ast.parse((ROOT / "setup.py").read_text())) if type(n) is ast.Call]
    (setup,) = [call for call in calls if ast.unparse(call.func) == "setup"]
    options = {k.arg: k.value for k in setup.keywords}["options"]
    assert ast.literal_eval(options) == {"editable_wheel": {"mode": "compat"}}
