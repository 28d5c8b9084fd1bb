"""What starting costs: the help imports nothing heavy, and training begins soon."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import horn

ROOT = Path(horn.__file__).parents[1]
HEAVY = (
    "numpy", "rich", "safetensors", "kazoo", "zmq", "horn.network", "horn.compiler", "asyncio",
    "logging", "ssl", "subprocess", "horn.doctor", "horn.sweep",
)  # fmt: skip
BUDGET = 2.0  # imports of horn --help, in those of click alone: 150 ms where those take 75
STEP = 8.0  # the first step, in imports of NumPy and Rich: 0.8 s where those take 0.1


def imports(*arguments: str) -> dict[str, int]:
    """Microseconds that each module took to import, by name, in a Python with these arguments."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr)
    return {name: int(own) for own, name in found}


@pytest.mark.cluster
def test_help_imports_nothing_heavy() -> None:
    took = imports("-m", "horn", "--help")
    assert [name for name in HEAVY if name in took] == []


@pytest.mark.cluster
def test_the_package_imports_little_before_ctrl_c_is_answered_by_the_command() -> None:
    """It is a traceback until horn/__main__.py, which is imported later, sets a handler."""
    code = "import sys; before = {*sys.modules}; import horn; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not {"typing", "importlib.util", "re", "contextlib"} & {*done.stdout.split()}


@pytest.mark.cluster
def test_help_stays_within_its_import_budget() -> None:
    ours, its = [], []
    for _ in range(15):  # the best of some: other programs may share the machine
        ours.append(sum(imports("-m", "horn", "--help").values()))
        its.append(sum(imports("-c", "import click").values()))
        if min(ours) < BUDGET * min(its):
            return
    raise AssertionError(
        f"imports took {min(ours) / 1000:.0f} ms, those of click {min(its) / 1000:.0f}"
    )


@pytest.mark.cluster
def test_show_imports_neither_numpy_nor_the_engine(tmp_path: Path) -> None:
    net = horn.Network()
    net.input(2)
    net.output(1)
    horn.Model(net, net.initial_parameters()).save(tmp_path / "m.horn")
    took = imports("-m", "horn", "show", str(tmp_path / "m.horn"), "--json")
    assert [name for name in ("numpy", "horn.model", "safetensors") if name in took] == []


@pytest.mark.cluster
def test_first_step_of_the_digits_example_comes_soon(tmp_path: Path) -> None:
    """In processor time: where other programs share the machine the wall says little."""
    ours, its = [], []
    for _ in range(15):  # the best of some, as above
        done = subprocess.run(
            [sys.executable, "-m", "horn", "submit", "examples/digits.py", "-v",
             "-o", str(tmp_path / "d.horn"), "--set", "iterations=1"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = re.search(r"First step [\d.]+ s after .* \(([\d.]+) s of proc", done.stderr)
        assert found is not None
        ours.append(float(found[1]))
        clock = "import time; import numpy, rich.console; print(time.process_time())"
        its.append(float(subprocess.check_output([sys.executable, "-c", clock])))
        if min(ours) < STEP * min(its):
            return
    raise AssertionError(f"the first step took {min(ours)} s, the imports {min(its)} s")
