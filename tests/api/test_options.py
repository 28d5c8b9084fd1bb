"""Every option has tests that fail if it is ignored: tests/options.py."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import horn
from horn.cli.submit import command
from tests.options import DEEPER, JOB, PLACES, SUBMIT, TRAIN, Guard

training = importlib.import_module("horn.train")  # horn.train is the function
ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = [(where, name) for where, (_, _, guards, *_) in PLACES.items() for name in guards]
MUTATIONS += [("deeper", name) for name in DEEPER]


def test_every_option_of_train_has_a_guard():
    said = inspect.signature(training.train).parameters.values()
    assert set(TRAIN) == {each.name for each in said if each.kind is each.KEYWORD_ONLY}


def test_every_field_of_a_job_has_a_guard():
    assert set(JOB) == {field.name for field in dataclasses.fields(horn.Job)}


def test_every_option_of_submit_has_a_guard():
    assert set(SUBMIT) == {parameter.name for parameter in command.params}


def guards_of(where: str, name: str) -> tuple[str, ...]:
    if where == "deeper":
        return DEEPER[name][3]
    found: Guard = PLACES[where][2][name]
    return found.tests


@pytest.mark.parametrize("where, name", MUTATIONS)
def test_the_guards_are_there(where, name):
    assert guards_of(where, name)
    for test in guards_of(where, name):
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {function.partition('[')[0]}\(", text, re.M), test


def mutated(where: str, name: str, folder: Path) -> None:
    """A copy of horn and its tests in which an option is ignored."""
    for part in ("horn", "zk", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if where == "deeper":
        file, old, new, _ = DEEPER[name]
    else:
        file, old, guards, *after = PLACES[where]
        indent = re.match(r"\s*", old.lstrip("\n"))[0] * (2 if where == "job" else 1)
        new = "".join(f"{indent}{line}\n" for line in (guards[name].ignored, *after)) + old
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
    (folder / file).write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("where, name", MUTATIONS)
def test_an_option_that_is_ignored_is_seen(where, name, tmp_path):
    mutated(where, name, tmp_path)
    tests = guards_of(where, name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", *tests],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=580,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
    for test in tests:
        assert any(one == test or one.startswith(f"{test}[") for one in failed), done.stdout
