"""The source text of code objects, also of code without a file.

IPython keeps a notebook's cells and a prompt's lines, and Python's own prompt (from 3.13) its lines
in ``linecache``; before, they are in readline's history. For ``python -c``, ``exec`` and a
script on stdin Python keeps nothing: their text is sought where it must have been, in the
command line, in the strings of the callers and in the files that these name, and a text is taken
only if compiling it again gives the code in question. The search must come while the text is
there, so ``keep`` is called when a neuron is defined.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import io
import linecache
import os
import re
import stat
import sys
import textwrap
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from horn import prompt
from horn.errors import shown_file

# The key of a namespace for the texts of code that ran in it without a file: they live as long.
KEPT = "__horn_texts__"
# The attribute of a class of a captured module that has its globals.
GLOBALS = "__horn_globals__"
REMEDY = (
    "define it in a file, in a notebook, in  python -c , or in a text given to exec by a variable: "
    "exec(text)"
)
# The attribute of a class that takes its text along where it is pickled by value: a CarriedText.
CARRIED = "__horn_carried__"
# A class that cloudpickle, of joblib, dask and ray, sent from a notebook has this file.
_SENT = "<dynamic-code>"
# Texts that came with such classes, in order, and values of variables that they read.
_ARRIVED: dict[tuple[str, ...], dict[str, Any]] = {}
_FILE = re.compile(r"[^\n]{1,1000}\.(py|pyw|ipy|txt)")  # a file name that may be a program's
_MOST_BYTES = 4 * 1024 * 1024  # a longer string is no program
_MAGICS = ("time", "capture", "prun", "memit", "mprun", "lprun")  # they run a cell in place
_PROMPTS = ("<python-input-", "<stdin-")  # Python's file names of typed code, from 3.13, from 3.14
_PROMPT_FILE = f"{os.sep}_pyrepl{os.sep}__main__.py"
_RELOADED = "__autoreload_class__."  # where IPython's %autoreload compiles a class's method
_ANNOTATIONS = __future__.annotations.compiler_flag
_PARSING = threading.Lock()
_LOADED: dict[str, str] = {}  # the texts of files, which linecache forgets when these change
_CHANGED: set[str] = set()  # files that were loaded again, with another text


def parsed(text: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Parse a text as ``ast.parse``, one thread after the other: tasks may be threads.

    Python has one depth counter of the tree under construction for all threads. If the garbage
    collector lets another thread run in the middle of one, both counts are wrong and it raises
    ``SystemError: AST constructor recursion depth mismatch`` (seen on 3.11 and 3.12).
    """
    with _PARSING:
        return ast.parse(text, file)


@dataclass(frozen=True)
class _Unit:
    """A compiled text, and every code object in it (whose equality leaves names out)."""

    text: str
    codes: frozenset[tuple[str, types.CodeType]]


def code_of(thing: Any) -> types.CodeType | None:
    """The code of a function, or of the first method of a class."""
    if isinstance(thing, types.FunctionType):
        return thing.__code__
    found = _method_of(thing)
    return None if found is None else found.__code__


def qualname_of(function: types.FunctionType) -> str:
    """The qualified name of a function's code, which the result of a decorator does not have."""
    own = function.__code__.co_qualname
    return function.__qualname__ if own.startswith(_RELOADED) else own


def namespace_of(thing: Any) -> dict[str, Any]:
    """The globals of a function, or of a class's methods."""
    found = thing if isinstance(thing, types.FunctionType) else _method_of(thing)
    if found is not None:
        return found.__globals__
    if isinstance(thing, type) and GLOBALS in vars(thing):
        own: dict[str, Any] = vars(thing)[GLOBALS]
        return own
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return {} if module is None else module.__dict__


def _method_of(thing: Any) -> types.FunctionType | None:
    for value in vars(thing).values() if isinstance(thing, type) else ():
        value = getattr(value, "__func__", value)
        # The result of a decorator may be from another file. None: exec(text, {}) has no __name__.
        own = (thing.__module__, None)
        if isinstance(value, types.FunctionType) and value.__module__ in own:
            if qualname_of(value).startswith(f"{thing.__qualname__}."):
                return value
    return None


def is_file(name: str) -> bool:
    """Whether a code's file name is that of a file, not of a cell."""
    return not name.startswith("<") and f"{os.sep}ipykernel_" not in name


def file_of(namespace: Mapping[str, Any]) -> str | None:
    """The file of a namespace; None for typed code, where 3.13.0 names the prompt's own file."""
    file = namespace.get("__file__")
    return file if isinstance(file, str) and not file.endswith(_PROMPT_FILE) else None


def remedy(file: str) -> str:
    """What to do where code of this file has no text."""
    if file == _SENT:
        return (
            "joblib, dask and ray send functions of a notebook, and neurons that horn could not "
            "save, without their text: define it in a .py file, and import it in the notebook and "
            "there"
        )
    return REMEDY


def keep(thing: Any) -> None:
    """Look for the text of a class or function now: nobody else may keep it, or a file change."""
    code = code_of(thing)
    if code is not None:
        text_of(code, namespace_of(thing))


def text_of(code: types.CodeType, namespace: dict[str, Any]) -> str:
    """The whole text that ``code`` was compiled from, as of a file or a cell; "" if it is lost.

    namespace : its globals.
    """
    file = code.co_filename
    if is_file(file) or _is_cell(file):
        return of_file(file, namespace) or _of_prompt().get(file, "")
    units: list[_Unit] = namespace.get(KEPT, [])
    for unit in units:
        if (code.co_qualname, code) in unit.codes:
            return unit.text
    if file == _SENT and (text := _arrived(code, namespace)):
        return text
    for text in (*_candidates(file), *parts(namespace)):
        for flags in (0, _ANNOTATIONS):
            codes = _codes(text, file, flags)
            if (code.co_qualname, code) in codes:
                namespace.setdefault(KEPT, []).append(_Unit(text, codes))
                return text
    return ""


def arrive(parts: tuple[str, ...], values: dict[str, Any]) -> None:
    """Keep the texts that a class needs which was sent here: ``_arrived`` finds them."""
    _ARRIVED.pop(parts, None)
    _ARRIVED[parts] = values


def _arrived(code: types.CodeType, namespace: dict[str, Any]) -> str:
    """The text of a code that came with its class, the last one first. All that came with it are
    the namespace's from now on, and what they read and cloudpickle has not sent.
    """
    for parts, values in reversed([*_ARRIVED.items()]):
        for flags in (0, _ANNOTATIONS):
            units = [_Unit(text, _codes(text, _SENT, flags)) for text in parts]
            own = next((unit.text for unit in units if (code.co_qualname, code) in unit.codes), "")
            if own:
                namespace.setdefault(KEPT, []).extend(units)
                namespace.update({n: v for n, v in values.items() if n not in namespace})
                return own
    return ""


def of_file(file: str, namespace: dict[str, Any]) -> str:
    """The text of a file, or a cell, that a namespace was made by. Of a file that has changed since
    it was read that text which fits what the namespace has: it may have been loaded again, or not.
    """
    text = _LOADED.get(file) or "".join(linecache.getlines(file, namespace))
    linecache.checkcache(file)  # as every traceback does
    now = "".join(linecache.getlines(file, namespace))
    if now and now != text and _fitting(now, file, namespace) > _fitting(text, file, namespace):
        _CHANGED.add(file)
        text = now
    if text:
        _LOADED[file] = text
    return text


def _fitting(text: str, file: str, namespace: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the functions, methods and plain values of a namespace are what a text says, and
    how many of the codes have its lines, too: those that IPython's %autoreload makes may not.
    """
    codes = {(name, _without_lines(code)): code for name, code in _codes(text, file, 0)}
    found = exact = 0
    for value in [*namespace.values()]:
        for each in (value, *(vars(value).values() if isinstance(value, type) else ())):
            code = getattr(each, "__code__", None)
            if isinstance(code, types.CodeType):
                same = codes.get((each.__qualname__, _without_lines(code)))
                found, exact = found + (same is not None), exact + (same == code)
    for statement in parsed(text).body if codes else ():
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                value = ast.literal_eval(statement.value)
            except (ValueError, TypeError):  # no plain value
                continue
            kept = namespace.get(statement.targets[0].id)
            found += type(kept) is type(value) and bool(kept == value)
    return found, exact


def first_line_of(function: types.FunctionType) -> int:
    """Where the function begins in its text; 0 if that is of a later function. IPython's
    %autoreload makes code that counts other lines than its file has.
    """
    code = function.__code__
    if not is_file(code.co_filename):
        return code.co_firstlineno
    text = of_file(code.co_filename, function.__globals__)
    if code.co_filename not in _CHANGED:
        return code.co_firstlineno
    found = _codes(text, code.co_filename, 0)
    codes = [each for name, each in found if name == qualname_of(function)]
    same = [each for each in codes if _without_lines(each) == _without_lines(code)]
    return code.co_firstlineno if code in same else same[0].co_firstlineno if same else 0


def as_written(code: types.CodeType) -> types.CodeType:
    """The code that the text of its file has for a code, with its lines and its qualified name;
    the code itself where the text is as it was, or has none. As of the last ``of_file``.
    """
    file = code.co_filename
    if file not in _CHANGED:
        return code
    return _as_written(code, code.co_qualname, _LOADED[file])


@lru_cache(maxsize=256)
def _as_written(code: types.CodeType, name: str, text: str) -> types.CodeType:
    found = _codes(text, code.co_filename, 0)
    if (name, code) in found:
        return code
    own, plain = "." + name.removeprefix(_RELOADED), _without_lines(code)
    same = [c for n, c in found if f".{n}".endswith(own) and _without_lines(c) == plain]
    return min(same, key=lambda each: each.co_firstlineno, default=code)


def has(text: str, code: types.CodeType) -> bool:
    """Whether compiling a text gives a code."""
    both = (_codes(text, code.co_filename, flags) for flags in (0, _ANNOTATIONS))
    return any((code.co_qualname, code) in codes for codes in both)


def outdated(thing: Any) -> str:
    """The file of a class or function that is of a text which its file had before it was loaded
    again; "" of all others.
    """
    for value in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and not first_line_of(function):
            return function.__code__.co_filename
    return ""


def around(function: types.FunctionType) -> dict[str, Any]:
    """The values of the variables of functions around it that a function reads; without those that
    have none yet, or no longer.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def code_digest(code: types.CodeType) -> str:
    """A digest of a code, whatever lines it counts; another Python may give another."""
    found = hashlib.sha256(code.co_code)
    found.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, frozenset):  # each process has them in an order of its own
            constant = sorted(map(repr, constant))
        inner = isinstance(constant, types.CodeType)
        found.update((code_digest(constant) if inner else repr(constant)).encode())
    return found.hexdigest()[:16]


def methods_digest(cls: type) -> tuple[str, ...]:
    """Digests of the methods of a class and its bases, without horn's own; of this Python."""
    functions = (
        (name, getattr(value, "__func__", value))
        for base in cls.__mro__
        if not f"{base.__module__}.".startswith("horn.")
        for name, value in sorted(vars(base).items(), key=lambda item: item[0])
    )
    return sys.implementation.cache_tag or "", *(
        f"{name} {code_digest(function.__code__)}"
        for name, function in functions
        if isinstance(function, types.FunctionType)
    )


def _without_lines(code: types.CodeType) -> types.CodeType:
    consts = [_without_lines(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=tuple(consts))


def lines_of(code: types.CodeType, namespace: dict[str, Any]) -> list[str]:
    """The lines of ``text_of``, with their ends. Only a newline ends one, as for Python."""
    return list(io.StringIO(text_of(code, namespace)))


def line_of(code: types.CodeType, namespace: dict[str, Any], number: int) -> str:
    """A line, from 1, without its end; "" if it is lost."""
    lines = lines_of(code, namespace)
    return lines[number - 1].rstrip("\n") if 0 < number <= len(lines) else ""


def shown(function: Any, number: int) -> str:
    """A line of a user's function, under a sentence; "" of horn's own."""
    code = getattr(function, "__code__", None)
    if code is None or f"{function.__module__}.".startswith("horn."):
        return ""
    text = line_of(code, namespace_of(getattr(function, "__func__", function)), number).strip()
    return f"\n  {shown_file(code.co_filename)}:{number}  {text}"


def parts(namespace: Mapping[str, Any]) -> list[str]:
    """The texts that ran in a namespace, in order: a file, cells, lines of Python's prompt."""
    found = []
    file = file_of(namespace)
    if file is not None and file.endswith(".py"):
        found.append(of_file(file, dict(namespace)))
    shell = namespace.get("get_ipython")
    if callable(shell):
        found += [_of_magic(cell) for cell in shell().history_manager.input_hist_parsed]
    elif namespace.get("__name__") == "__main__":
        found += list(_of_prompt().values()) or prompt.typed()
    known = {text.rstrip("\n") for text in found}
    kept = [unit.text for unit in namespace.get(KEPT, ())]
    return [t for t in (*found, *(k for k in kept if k.rstrip("\n") not in known)) if t.strip()]


def _of_magic(cell: str) -> str:
    """A cell from IPython's history; if it begins with ``%%time`` or the like, the part below."""
    if not cell.startswith("get_ipython().run_cell_magic("):
        return cell
    try:
        value = getattr(parsed(cell).body[0], "value", None)
        arguments = [ast.literal_eval(a) for a in value.args] if isinstance(value, ast.Call) else []
    except (SyntaxError, ValueError):
        return cell
    inside = len(arguments) == 3 and arguments[0] in _MAGICS
    return str(arguments[2]) if inside else cell


def title(namespace: Mapping[str, Any]) -> str:
    """A name for the texts of ``parts``."""
    if "get_ipython" in namespace:
        return "notebook"
    file = file_of(namespace)
    return "typed" if file is None else Path(file).stem


def _is_cell(file: str) -> bool:
    """Whether IPython or Python's prompt, which ran the code, keeps its text."""
    of_ipython = f"{os.sep}ipykernel_" in file
    return of_ipython or file.startswith(("<ipython-input-", *_PROMPTS))


def _of_prompt() -> dict[str, str]:
    """The typed texts that Python's prompt keeps, by the file names of the codes, in order.

    3.13 keeps them where ``linecache`` keeps files, 3.14 beside it, by code; older ones do not.
    """
    entries = {name: linecache.getlines(name) for name in [*linecache.cache] if _is_typed(name)}
    beside: dict[tuple[str, str, int], Any] = getattr(linecache, "_interactive_cache", {})
    for (name, _, _), entry in [*beside.items()]:
        if _is_typed(name) and len(entry) > 2:
            entries.setdefault(name, entry[2])
    return {name: "".join(lines) for name, lines in entries.items()}


def _is_typed(name: str) -> bool:
    return name.startswith(_PROMPTS)


def _candidates(file: str) -> Iterator[str]:
    """Strings that may be the text of a code whose file has this name."""
    seen: set[int] = set()
    read: set[str] = set()

    def new(value: Any) -> bool:
        if not isinstance(value, str) or id(value) in seen or len(value) > _MOST_BYTES:
            return False
        seen.add(id(value))
        return "def " in value or "class " in value or "lambda" in value

    def files(values: list[Any]) -> Iterator[str]:
        for name in values:
            if (
                isinstance(name, (str, Path))
                and _FILE.fullmatch(str(name))
                and str(name) not in read
            ):
                read.add(str(name))
                yield from filter(new, _read(str(name)))

    told = [*filter(new, sys.orig_argv)]  # with an indented -c as Python runs it, from 3.14
    yield from (*told, *filter(new, map(textwrap.dedent, told)))
    if file in linecache.cache:
        yield "".join(linecache.getlines(file))
    if file == "<stdin>":
        yield from filter(new, _stdin())
        yield from filter(new, prompt.typed_ever())
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        for values in (frame.f_locals.values(), frame.f_globals.values(), frame.f_code.co_consts):
            yield from filter(new, list(values))
            yield from files(list(values))
        frame = frame.f_back


def _stdin() -> Iterator[str]:
    """The text of Python's program on stdin, if it can be read twice."""
    yield from _read("/proc/self/fd/0")


def _read(file: str) -> Iterator[str]:
    """The text of a regular file, or nothing."""
    try:
        if stat.S_ISREG(os.stat(file).st_mode):
            with open(file, encoding="utf-8") as text:
                yield text.read(_MOST_BYTES)
    except (OSError, ValueError):
        return


@lru_cache(maxsize=16)
def _codes(text: str, file: str, flags: int) -> frozenset[tuple[str, types.CodeType]]:
    """Every code object in a text, with its qualified name; none if it is no program."""
    try:
        waiting = [compile(text, file, "exec", flags, dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found = set()
    while waiting:
        code = waiting.pop()
        found.add((code.co_qualname, code))
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return frozenset(found)
