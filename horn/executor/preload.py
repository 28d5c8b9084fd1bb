"""The code of modules that tasks import, found and read once for all of them.

Each task is a fresh interpreter with the same 400 imports: finding, reading and, without .pyc,
compiling them takes half a second. A parent of many tasks, of one start or of several, does it
once and passes the code in a memfd; other modules are imported as usual. The code is that of the
files a task would read.

The methods of a dataclass are texts that the standard library writes and compiles while a module is
imported: a third of a task's imports. The parent has the same classes, writes the same texts, and
passes their code as well; a text that is not among them is compiled as usual.
docs/notes/0097, 0178, 0180
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import marshal
import pkgutil
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from types import CodeType
from typing import Any

from horn.process.control import in_memory

LEAST = 4  # tasks of this process so far; reading takes as long as it saves two of them
PACKAGES = ("horn", "numpy", "kazoo", "zmq", "msgspec", "typing_extensions")
# What tasks import of horn; the parent has not imported all of it.
PARTS = ("horn._kernels", "horn.backends", "horn.checkpoint", "horn.compiler", "horn.language",
         "horn.partition", "horn.process", "horn.runtime", "horn.strategies",
         "horn.parameter_server", "horn.sub_models", "horn.training", "horn.transport",
         "horn.wire")  # fmt: skip
MORE = ("horn.coordination.barrier", "horn.coordination.membership", "horn.coordination.roster",
        "horn.patience")  # fmt: skip
BACKEND = "horn.backends.kernels"  # its classes, too: a parent need not have imported it

# What a task runs first; memory and start are given. dataclasses looks for exec in its own names
# before the builtin ones, so that it runs the code of a text that is known.
FINDER = """
import json, marshal, sys
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


sys.meta_path.insert(0, Finder)
import dataclasses
dataclasses.exec = run
"""
# In a task's program: {0} is the descriptor.
BOOT = (
    "import marshal, mmap, os; m = mmap.mmap({0}, 0, prot=mmap.PROT_READ); os.close({0}); "
    "n = int.from_bytes(m[:8], 'little'); "
    "exec(marshal.loads(m[8 : 8 + n]), {{'memory': m, 'start': 8 + n, '__name__': 'preload'}}); "
)
# After the imports: pages that were read no longer count as the task's; a later import reads again.
RELEASE = "m.madvise(mmap.MADV_DONTNEED); "
_bundled: bytes | None = None
_started = 0
_bundling = threading.Lock()  # one at a time: bundling patches dataclasses for a while


def memory_for(n_tasks: int) -> int | None:
    """``memory()``, or None while this process has started, with these, fewer than LEAST tasks."""
    global _started
    _started += n_tasks
    return memory() if n_tasks and _started >= LEAST else None


def memory() -> int:
    """Make a memfd with the code; the descriptor is the caller's."""
    global _bundled
    with _bundling:
        if _bundled is None:
            _bundled = _bundle()
    return in_memory("horn-code", _bundled)


def _bundle() -> bytes:
    importlib.import_module("horn.coordination.session")  # and kazoo, if not yet
    index: dict[str, tuple[str, str, str | None, int, int]] = {}
    codes: list[bytes] = []
    end = 0
    known = {*PACKAGES, *sys.stdlib_module_names}
    loaded = {name for name in sys.modules if name.partition(".")[0] in known}
    for name in sorted(loaded | _needed()):
        found = _code_of(name)
        if found is None:
            continue
        file, folder, cached, code = found
        index[name] = (file, folder, cached, end, end + len(code) if code else 0)
        end += len(code)
        codes.append(code)
    finder = marshal.dumps(compile(FINDER, "<preload>", "exec"))
    parts = finder, json.dumps(index).encode(), marshal.dumps(_texts())
    sized = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return b"".join([*sized, *codes])


def _needed() -> set[str]:
    found = {*MORE}
    for part in PARTS:
        spec = importlib.util.find_spec(part)
        places = None if spec is None else spec.submodule_search_locations
        found |= {part, *(f"{part}.{m.name}" for m in pkgutil.iter_modules(places))}
    return found


def _code_of(name: str) -> tuple[str, str, str | None, bytes] | None:
    """The file, folder if it is a package, .pyc and code of a module of plain Python; the file of a
    compiled one, without code; else None.
    """
    try:
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
        if spec is None or spec.name != name or spec.origin is None:
            return None
        if type(spec.loader) is ExtensionFileLoader:
            return spec.origin, "", None, b""
        if type(spec.loader) is not SourceFileLoader:
            return None
        code = spec.loader.get_code(name)
    except (ImportError, AttributeError, ValueError, SyntaxError, OSError):
        return None  # the task will report its fault, if it imports the module at all
    if code is None:
        return None
    folder = (spec.submodule_search_locations or [""])[0]
    return spec.origin, folder, spec.cached, marshal.dumps(code)


def _texts() -> dict[str, CodeType]:
    """The texts from which dataclasses makes methods of horn's classes, with the code of each."""
    found: dict[str, CodeType] = {}

    def run(text: str | CodeType, *spaces: Any) -> None:
        code = compile(text, "<string>", "exec") if isinstance(text, str) else text
        if isinstance(text, str):
            found[text] = code
        exec(code, *spaces)

    importlib.import_module(BACKEND)
    here: dict[str, Any] = vars(dataclasses)
    here["exec"] = run
    try:
        for cls in _dataclasses():
            _made_again(cls)
    finally:
        del here["exec"]
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
