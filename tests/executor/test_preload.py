"""What tasks import is read once and handed over; what is not in it is imported as ever."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import os
import re
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import horn
import horn.executor.launch  # as whoever starts tasks has
from horn import transport as transports
from horn.errors import JobError
from horn.executor import preload
from tests.support.runs import job

pytestmark = [pytest.mark.net, pytest.mark.cluster]
importlib.import_module("horn.train")  # as who starts tasks has, whichever test comes first


NOWHERE = Path(os.devnull, "no", "kept")  # nothing can be kept there


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where code is kept, of a process that has made none."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(preload, "KEPT", tmp_path / "preload.tasks")
    monkeypatch.setattr(preload, "_bundled", None)
    monkeypatch.setattr(preload, "_started", 0)
    return preload.KEPT


def handed(n_tasks: int = 2) -> str | None:
    """What tasks are given: the path of a file, the name of a memfd, or None."""
    found = preload.memory_for(n_tasks)
    if found is None:
        return None
    with open(found, "rb") as file:
        return os.readlink(f"/proc/self/fd/{file.fileno()}")


# The variables of a process that may keep code, as .pyc files.
KEEPS = {n: value for n, value in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}


def say(program: str, before: str = "") -> str:
    """What a process prints that has the code, and has imported what a task does."""
    fd = preload.memory()
    try:
        boot = f"import sys; sys.path[:] = {sys.path!r}; {preload.BOOT.format(fd)}{before}"
        said = subprocess.run(
            [sys.executable, "-P", "-c", boot + "import horn.process.main\n" + program],
            pass_fds=[fd], check=True, capture_output=True, text=True, timeout=60, env=KEEPS,
        )  # fmt: skip
    finally:
        os.close(fd)
    return said.stdout.strip()


def test_a_task_reads_no_source_of_what_is_handed_over():
    program = """
found = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("horn", "zk", "kazoo")}
plain = [m for m in found.values() if (m.__file__ or "").endswith(".py")]
print([m.__name__ for m in plain if type(m.__loader__).__name__ != "Loader"])
"""
    assert say(program) == "[]"


def test_a_task_imports_no_modules_that_it_does_not_use():
    """Of 505 modules 50 were for versions, pages, scratch folders and tables of text; finding the
    BLAS imported most of them once more.
    """
    program = """
from horn._kernels import blas
blas.load()
heavy = ("codeop", "csv", "email", "html", "importlib.metadata", "numpy.typing", "symtable",
         "sysconfig", "tempfile", "zipfile", "asyncio", "zk", "horn.checkpoint", "horn.summary",
         "horn.training.checkpointing", "horn.training.describe_job", "horn.training.identity",
         "horn.training.journals")
print([name for name in heavy if name in sys.modules])
"""
    assert say(program) == "[]"


def test_compiled_modules_are_not_looked_for():
    program = """
found = [m for n, m in sys.modules.items() if n.startswith(("horn.", "numpy.", "msgspec."))]
compiled = [m for m in found if (getattr(m, "__file__", "") or "").endswith(".so")]
print(len(compiled) > 5, sys.meta_path[0].__name__)
print([m.__name__ for m in compiled if m.__spec__.cached or not m.__spec__.has_location])
print([m.__name__ for m in compiled if sys.meta_path[0].find_spec(m.__name__) is None])
"""
    assert say(program).splitlines() == ["True Finder", "[]", "[]"]


def test_modules_are_where_they_are_and_resources_are_found():
    program = """
import importlib.resources, inspect, horn.runtime.task, horn.transport
print(horn.runtime.task.__file__, horn.transport.__path__[0])
print(inspect.getsource(horn.runtime.task.Task).splitlines()[0])
print(importlib.resources.files("horn").joinpath("__init__.py").is_file())
"""
    lines = say(program).splitlines()
    folder = os.path.dirname(horn.__file__)
    assert lines[0] == f"{folder}/runtime/task.py {folder}/transport"
    assert lines[1].startswith("class Task") and lines[2] == "True"


def test_the_code_takes_one_descriptor_of_a_task():
    """With its input, output and errors. Some libffi keep their own file open, for ctypes."""
    files = """
import os
found = {fd: os.path.realpath("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")}
print(sum(os.path.exists("/proc/self/fd/" + fd) and "libffi" not in f for fd, f in found.items()))
"""
    assert int(say(files)) <= 4


# 997 were compiled by each task: a third of the instructions of its imports.
COMPILED = """
texts = []
sys.addaudithook(lambda what, given: texts.append(given[0]) if what == "compile" else None)
"""


def test_methods_of_dataclasses_are_compiled_once_for_all_tasks():
    transports.load("shm")  # as launch.check_room does
    program = """
import horn.backends.kernels, horn.transport.shm
of_classes = [text for text in texts if text and b"__create_fn__" in text]
from horn.optimizers import SGD, Adam
print(len(of_classes))
print(SGD(0.5, momentum=0.25), SGD(0.5) == SGD(0.5), len({Adam(0.1), Adam(0.1)}))
try:
    SGD(0.5).momentum = 1.0
except AttributeError as error:
    print(error)
"""
    n_compiled, said, refused = say(program, COMPILED).splitlines()
    assert int(n_compiled) <= 20, n_compiled
    assert said == f"{horn.SGD(0.5, momentum=0.25)} True 1"
    assert refused.startswith("SGD.momentum cannot be set: ")


@pytest.mark.parametrize("where, name", [("memory", "memfd:horn-code"), ("kept", ".tasks")])
def test_the_code_is_no_memory_of_a_task_once_it_is_imported(where, name, tmp_path, monkeypatch):
    """10 MB of each of 4 tasks and more, beyond what a task may take besides its weights."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(preload, "_bundled", None)
    monkeypatch.setattr(preload, "KEPT", NOWHERE if where == "memory" else tmp_path / "a.tasks")
    program = f"""
def of_code():
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        next(line for line in lines if {name!r} in line)
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
before = of_code()
"""
    before, after = map(int, say(program + preload.RELEASE + "print(before, of_code())").split())
    assert before > 1000 and after < 100, (before, after)  # KiB


def test_who_starts_tasks_makes_dataclasses_as_ever():
    preload._texts()
    assert "exec" not in vars(dataclasses)


def test_the_code_is_handed_over_once_as_many_tasks_were_started_as_it_is_worth_for(monkeypatch):
    read = []
    monkeypatch.setattr(preload, "KEPT", NOWHERE)
    monkeypatch.setattr(preload, "_started", 0)
    monkeypatch.setattr(preload, "_bundled", None)
    monkeypatch.setattr(preload, "_bundle", lambda: read.append(1) or ({}, b"code"))
    for n_tasks, has_code in ((2, False), (0, False), (1, False), (1, True), (0, False), (2, True)):
        found = preload.memory_for(n_tasks)
        assert (found is not None) == has_code
        if found is not None:
            assert os.pread(found, 9, 0) == b"code"
            os.close(found)
    assert read == [1]


def test_threads_that_start_tasks_at_once_read_the_code_once(monkeypatch):
    """Two readers would put back what dataclasses had before them, each the other's."""
    both, read = threading.Barrier(2), []

    def bundle() -> bytes:
        read.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other, who is to come no further than the lock
        return {}, b"code"

    monkeypatch.setattr(preload, "KEPT", NOWHERE)
    monkeypatch.setattr(preload, "_bundled", None)
    monkeypatch.setattr(preload, "_bundle", bundle)
    with ThreadPoolExecutor(2) as threads:
        for found in [threads.submit(preload.memory) for _ in range(2)]:
            os.close(found.result())
    assert len(read) == 1


def test_the_code_is_kept_for_processes_that_start_few_tasks(place, monkeypatch):
    """Each job runner, and each command, has two tasks or so: none of them had code, and each of
    these tasks found, read and compiled its imports.
    """
    assert preload.kept() is None
    assert handed() == str(place) and preload._bundled is None
    assert [path.name for path in place.parent.iterdir()] == [place.name]  # no draft
    assert place.stat().st_mode & 0o022 == 0  # for nobody else to write
    monkeypatch.setattr(preload, "_bundle", None)  # as in a later process, which makes none
    assert handed() == str(place)


def test_code_is_kept_only_where_bytecode_may_be(place, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert handed() is None
    monkeypatch.setattr(preload, "KEPT", NOWHERE)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert handed(1) is None and not place.exists()


def test_code_of_a_file_that_is_another_now_is_made_again(place, tmp_path, monkeypatch):
    source = tmp_path / "horn_of_today.py"
    source.write_text("answer = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(preload, "PACKAGES", (*preload.PACKAGES, source.stem))
    monkeypatch.setattr(preload, "_needed", lambda: {source.stem})
    assert handed() == str(place)
    kept = place.read_bytes()
    before = source.stat()
    source.write_text("answer = 23\n")
    assert preload.kept() is None
    assert handed() == str(place) and place.read_bytes() != kept
    place.write_bytes(kept)
    source.write_text("answer = 1\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert handed() == str(place)
    source.unlink()
    assert preload.kept() is None


def test_code_of_another_installation_is_not_taken(place, monkeypatch):
    assert handed() == str(place)
    elsewhere = ModuleSpec("numpy", None, origin="/elsewhere/numpy/__init__.py")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["numpy"], "__spec__", elsewhere)
        assert preload.kept() is None
    with monkeypatch.context() as patch:
        patch.setattr(preload, "_python", lambda: ["another"])
        assert preload.kept() is None
    with monkeypatch.context() as patch:
        patch.setattr(preload, "BOOT", "of horn as it was when this process began")
        assert preload.kept() is None
    assert handed() == str(place)


def test_what_horn_did_not_write_is_made_again(place):
    for text in (b"", b"short", b"x" * 100, b" [1, 2]" + (6).to_bytes(8, "little")):
        place.write_bytes(text)
        assert preload.kept() is None
    assert handed() == str(place) and place.stat().st_size > 1_000_000


def test_a_full_disk_keeps_nothing_and_tasks_have_their_code(place, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "memfd:horn-code" in (handed() or "") and list(place.parent.iterdir()) == []


def test_who_was_given_code_makes_it_for_others(place):
    """A job runner whose code was removed since; it has let go of the standard library's. As much
    as a process makes that was given none.
    """
    program = """
from horn.executor import preload
from pathlib import Path
import dataclasses, os
run = vars(dataclasses).get("exec")
preload.KEPT = Path(PLACE)
found = preload.memory_for(2)
print(os.readlink(f"/proc/self/fd/{found}"), vars(dataclasses).get("exec") is run)
"""
    assert say(preload.RELEASE + program.replace("PLACE", repr(f"{place}.2"))) == f"{place}.2 True"
    plain = "import horn.process.main\n" + program.replace("PLACE", repr(f"{place}.3"))
    ours = {**KEEPS, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-P", "-c", plain], check=True, timeout=60, env=ours)
    again, whole = os.path.getsize(f"{place}.2"), os.path.getsize(f"{place}.3")
    assert again > 0.95 * whole, (again, whole)


def test_who_has_imported_little_hands_over_all_that_tasks_import():
    """What a command or an agent kept lacked a hundred modules of horn, which every later task of
    anyone read by itself.
    """
    program = """
import sys
from horn.executor import preload
files, _ = preload._bundle()
import horn.process.main
found = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("horn", "kazoo")}
plain = [n for n, m in found.items() if (m.__file__ or "").endswith(".py")]
print(len(plain) > 200, [n for n in (*plain, "difflib", "gzip") if n not in files])
"""
    ours = {**KEEPS, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", program],
        check=True, capture_output=True, text=True, timeout=60, env=ours,
    )  # fmt: skip
    assert said.stdout.strip() == "True []"


def test_a_users_file_may_have_the_name_of_a_module_that_horn_has_not_imported(tmp_path):
    (tmp_path / "colorsys.py").write_text("mine = True\n")
    importlib.import_module("colorsys")  # so that its code is handed over, too
    program = f"{preload.RELEASE}sys.path.insert(0, {str(tmp_path)!r})\n"
    assert say(program + "import colorsys\nprint(hasattr(colorsys, 'mine'))") == "True"


def test_many_tasks_compute_what_one_does():
    assert preload.LEAST == 4
    one, four = horn.train(job()), horn.train(job(), tasks=4)
    assert four.history[-1]["loss"] == pytest.approx(one.history[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("transport, allowed", [("shm", 300), ("tcp", 340)])
def test_too_few_open_files_are_said_before_a_start(transport, allowed, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (allowed, allowed))
    said = r"needs \d+ open files( \(\d+ of them .*\))?, but \d+ are allowed; say ulimit -n"
    with pytest.raises(JobError, match=said):
        horn.train(job(), tasks=50, transport=transport)


def test_files_that_are_open_already_count(monkeypatch):
    """They were found missing in the middle of a start, one at a time, as errors of Python."""
    open_files = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    allowed = len(os.listdir("/proc/self/fd")) + 20
    monkeypatch.setattr(resource, "getrlimit", lambda what: (allowed, allowed))
    try:
        said = rf"open files \((\d+) of them are open already\), but {allowed}"
        with pytest.raises(JobError, match=said) as caught:
            horn.train(job(), tasks=2)
        found = re.search(said, str(caught.value))
        assert found and 100 <= int(found[1]) <= allowed
    finally:
        for fd in open_files:
            os.close(fd)
