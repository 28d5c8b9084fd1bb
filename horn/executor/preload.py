"""The code of modules that tasks import, found and read once for all of them.

Each task is a fresh interpreter with the same 400 imports: finding, reading and, without .pyc,
compiling them takes half a second. A parent does it once and passes the code in a descriptor; other
modules are imported as usual. The code is that of the files a task would read. Like a .pyc it is
kept in ``__pycache__`` and read by those that start tasks later, as long as the files are the same;
where nothing can be kept there, a parent of many tasks makes it for itself, in a memfd.

The methods of a dataclass are texts that the standard library writes and compiles while a module is
imported: a third of a task's imports. The parent has the same classes, writes the same texts, and
passes their code as well; a text that is not among them is compiled as usual.
docs/notes/0097, 0178, 0180, 0187
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import marshal
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from horn.atomic_write import atomic_write
from horn.process.control import in_memory

LEAST = 4  # tasks of this process so far; reading takes as long as it saves two of them
PACKAGES = ("horn", "numpy", "kazoo", "zmq", "msgspec", "typing_extensions")
# What tasks and job runners import of horn; the parent has not imported all of it.
PARTS = ("horn._kernels", "horn.backends", "horn.checkpoint", "horn.compiler", "horn.language",
         "horn.partition", "horn.process", "horn.runtime", "horn.strategies",
         "horn.parameter_server", "horn.sub_models", "horn.training", "horn.transport",
         "horn.wire", "horn.cluster", "horn.coordination", "horn.executor",
         "horn.security")  # fmt: skip
MORE = ("horn.coordination.barrier", "horn.coordination.membership", "horn.coordination.roster",
        "horn.patience", "horn.settings", "horn.target")  # fmt: skip
# Kept for later processes; the name says which Python, and at which optimization.
KEPT = Path(importlib.util.cache_from_source(__file__)).with_suffix(".tasks")
STANDARD = os.path.dirname(os.__file__) + os.sep
# Whose code is handed over with all that they import, and whose classes are made again.
OF_TASKS = ("horn.process.main", "horn.backends.kernels", "horn.transport.shm")

# What a task runs first; memory and start are given. dataclasses looks for exec in its own names
# before the builtin ones, so that it runs the code of a text that is known.
FINDER = """
import json, marshal, mmap, sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader

size = int.from_bytes(memory[start : start + 8], "little")
index = json.loads(memory[start + 8 : start + 8 + size])
start += 8 + size
size = int.from_bytes(memory[start : start + 8], "little")
texts = marshal.loads(memory[start + 8 : start + 8 + size])
start += 8 + size


def run(text, *spaces):
    code = texts.get(text)
    exec(text if code is None else code, *spaces)


class Loader(SourceFileLoader):
    def get_code(self, fullname):
        if fullname not in index:
            return super().get_code(fullname)
        first, last = index[fullname][3:]
        return marshal.loads(memory[start + first : start + last])


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        found = index.get(name)
        if found is None:
            return None
        file, folder, cached, first, last = found
        loader = (Loader if last else ExtensionFileLoader)(name, file)
        spec = ModuleSpec(name, loader, origin=file, is_package=bool(folder))
        spec.has_location, spec.cached = True, cached
        if folder:
            spec.submodule_search_locations.append(folder)
        return spec


def release():
    for name in [name for name in index if name.partition(".")[0] in sys.stdlib_module_names]:
        del index[name]
    memory.madvise(mmap.MADV_DONTNEED)


sys.meta_path.insert(0, Finder)
import dataclasses
dataclasses.exec = run
"""
# In a task's program: {0} is the descriptor.
BOOT = (
    "import marshal, mmap, os; m = mmap.mmap({0}, 0, mmap.MAP_PRIVATE, mmap.PROT_READ); "
    "os.close({0}); "
    "n = int.from_bytes(m[:8], 'little'); "
    "code = {{'memory': m, 'start': 8 + n, '__name__': 'preload'}}; "
    "exec(marshal.loads(m[8 : 8 + n]), code); "
)
# After the imports: pages that were read no longer count as the task's; a later import reads again.
# A user's file may have the name of a module of the standard library that horn has not imported.
RELEASE = "code['release'](); "
_bundled: bytes | None = None
_started = 0
_bundling = threading.Lock()  # one at a time: bundling patches dataclasses for a while


def memory_for(n_tasks: int) -> int | None:
    """A descriptor of the code for so many tasks, the caller's; None while making it takes longer
    than it saves: it cannot be kept, and this process has started, with these, less than LEAST.
    """
    global _started
    _started += n_tasks
    is_worth_it = _started >= LEAST or _can_be_kept()
    return memory() if n_tasks and is_worth_it else None


def memory() -> int:
    """A descriptor of the code, the caller's: of what is kept, else of a memfd that is made."""
    global _bundled
    with _bundling:
        if _bundled is None:
            if (found := kept()) is None:
                files, code = _bundle()
                if _can_be_kept():
                    _keep(code + _described(files))
                    found = kept()
            if found is not None:
                return found
            _bundled = code
    return in_memory("horn-code", _bundled)


def kept() -> int | None:
    """A descriptor of the code that is kept, the caller's; None if there is none, or a file of
    which it was made is another now, or not the one that this process has.
    """
    try:
        fd = os.open(KEPT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        end = os.fstat(fd).st_size - 8
        size = int.from_bytes(os.pread(fd, 8, end), "little")
        is_good = size < end and _holds(json.loads(os.pread(fd, size, end - size)))
    except (OSError, ValueError, TypeError, ImportError, AttributeError):  # nothing of ours
        is_good = False
    if not is_good:
        os.close(fd)
    return fd if is_good else None


def _described(files: dict[str, tuple[str, int, int]]) -> bytes:
    """The end of what is kept: of what it was made."""
    text = json.dumps([_python(), files]).encode()
    return text + len(text).to_bytes(8, "little")


def _python() -> list[str]:
    """Who can read it: a process that runs since before horn was another has its own BOOT."""
    return [sys.version, importlib.util.MAGIC_NUMBER.hex(), BOOT + RELEASE]


def _holds(description: Any) -> bool:
    """Whether the files are as they were, and are those that this process imports."""
    python, files = description
    if python != _python():
        return False
    for name, (path, *state) in files.items():
        module = sys.modules.get(name)
        if module is None:  # a package says where its modules are
            is_here = name not in PACKAGES or _origin(importlib.util.find_spec(name)) == path
        else:
            is_here = _origin(module.__spec__) == path
        if not is_here or _state(path) != tuple(state):
            return False
    return True


def _origin(spec: Any) -> str | None:
    return None if spec is None else spec.origin


def _state(path: str) -> tuple[int, int]:
    """What changes with a file's content, as .pyc files have it. Raises OSError: there is none."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


def _can_be_kept() -> bool:
    return not sys.dont_write_bytecode and os.access(KEPT.parent, os.W_OK)


def _keep(data: bytes) -> None:
    """Write what later processes read, whole or not at all: it only saves time."""
    with suppress(OSError), atomic_write(KEPT, mode=0o644, is_synced=False) as file:
        file.write(data)


def _bundle() -> tuple[dict[str, tuple[str, int, int]], bytes]:
    """The files, their time and size, by module; and the code."""
    for name in OF_TASKS:  # what tasks import, whatever this parent has
        importlib.import_module(name)
    files: dict[str, tuple[str, int, int]] = {}
    index: dict[str, tuple[str, str, str | None, int, int]] = {}
    codes: list[bytes] = []
    end = 0
    known = {*PACKAGES, *sys.stdlib_module_names}
    loaded = {name for name in sys.modules if name.partition(".")[0] in known}
    for name in sorted(loaded | _needed()):
        found = _code_of(name)
        if found is None:
            continue
        state, file, folder, cached, code = found
        files[name] = (file, *state)
        index[name] = (file, folder, cached, end, end + len(code) if code else 0)
        end += len(code)
        codes.append(code)
    finder = marshal.dumps(compile(FINDER, "<preload>", "exec"))
    parts = finder, json.dumps(index).encode(), marshal.dumps(_texts())
    sized = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return files, b"".join([*sized, *codes])


def _needed() -> set[str]:
    found = {*MORE}
    for part in PARTS:
        spec = importlib.util.find_spec(part)
        places = None if spec is None else spec.submodule_search_locations
        found |= {part, *(f"{part}.{m.name}" for m in pkgutil.iter_modules(places))}
    return found


def _code_of(name: str) -> tuple[tuple[int, int], str, str, str | None, bytes] | None:
    """The state of the file, the file, folder if it is a package, .pyc and code of a module of
    plain Python; of a compiled one without code; else None.
    """
    try:
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
        if spec is None or spec.name != name or spec.origin is None:
            return None
        if name.partition(".")[0] not in PACKAGES and not spec.origin.startswith(STANDARD):
            return None  # a user's file of that name, for whoever imports it
        state = _state(spec.origin)  # before its code: what changes meanwhile is seen later
        if type(spec.loader) is ExtensionFileLoader:
            return state, spec.origin, "", None, b""
        # In a process that was itself given code, FINDER's loader.
        is_given = type(spec.loader).__module__ == "preload"
        if not isinstance(spec.loader, SourceFileLoader):
            return None
        if type(spec.loader) is not SourceFileLoader and not is_given:
            return None
        code = spec.loader.get_code(name)
    except (ImportError, AttributeError, ValueError, SyntaxError, OSError):
        return None  # the task will report its fault, if it imports the module at all
    if code is None:
        return None
    folder = (spec.submodule_search_locations or [""])[0]
    return state, spec.origin, folder, spec.cached, marshal.dumps(code)


def _texts() -> dict[str, CodeType]:
    """The texts from which dataclasses makes methods of horn's classes, with the code of each."""
    found: dict[str, CodeType] = {}

    def run(text: str | CodeType, *spaces: Any) -> None:
        code = compile(text, "<string>", "exec") if isinstance(text, str) else text
        if isinstance(text, str):
            found[text] = code
        exec(code, *spaces)

    here: dict[str, Any] = vars(dataclasses)
    before = here.get("exec")  # FINDER's, in a process that was itself given code
    here["exec"] = run
    try:
        for cls in _dataclasses():
            _made_again(cls)
    finally:
        del here["exec"]
        if before is not None:
            here["exec"] = before
    return found


def _dataclasses() -> Iterator[type]:
    """The dataclasses that loaded modules of horn define."""
    modules = [(n, m) for n, m in sys.modules.items() if n.partition(".")[0] == "horn"]
    for name, module in modules:
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and cls.__module__ == name and dataclasses.is_dataclass(cls):
                yield cls


def _made_again(cls: type) -> None:
    """Make a class of the same fields, for its texts; it has none of the methods of ``cls``."""
    names: dict[str, Any] = {"__annotations__": {}}
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING
        given: dict[str, Any] = {"default": None} if has_default else {}
        if field.default_factory is not dataclasses.MISSING:
            given["default_factory"] = list
        flags = ("init", "repr", "hash", "compare", "kw_only")
        given |= {flag: getattr(field, flag) for flag in flags}
        names["__annotations__"][field.name] = Any
        names[field.name] = dataclasses.field(**given)
    if hasattr(cls, "__post_init__"):
        names["__post_init__"] = cls.__post_init__
    has = vars(cls)
    dataclasses.dataclass(
        frozen="__delattr__" in has,
        eq="__eq__" in has,
        order="__lt__" in has,
        slots="__slots__" in has,
        unsafe_hash="__hash__" in has and has["__hash__"] is not None and "__eq__" not in has,
    )(type(cls.__name__, (), names))
