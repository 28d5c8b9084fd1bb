"""User code as text: captured from live classes and functions, rebuilt where their file is missing.

Model files and workers get the source of a neuron, never a pickle: the whole text of its module,
so that messages can show lines, and the places of the needed statements, which alone run
again. Numbers and strings that it reads from the module, or from a function around it, and lists,
tuples, dicts and arrays of them, are kept as values.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import linecache
import math
import os
import re
import site
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from horn import texts
from horn.errors import ModelError, described, shown_file
from horn.module_source import (
    CAPTURED,
    NeededModule,
    TypedModule,
    is_of_run_file,
    numbers_of,
    unsaid_method,
)
from horn.plain_values import NotPlain, Scalar, decoded, encoded, is_plain
from horn.statements import (
    DEFINITIONS,
    IMPORTS,
    ended,
    first_line,
    kept_of,
    names_read,
    place_of,
    statements_of,
    with_numbers,
    without_docstrings,
)

Reference = dict[str, Any]
_CODE = "__horn_code__"  # in a captured module the CapturedCode that it is of
# The file whose captured text is running again at the moment; ``train`` must not run then.
running: ContextVar[str] = ContextVar("running", default="")
_ROOT = Path(__file__).resolve().parent.parent
_OWN = f"{_ROOT}/horn/", f"{_ROOT}/zk/"
_NAMING = threading.Lock()
_RUN: set[str] = set()  # the names of the captured modules that run now, in any thread


@functools.cache
def _installed() -> tuple[str, ...]:
    """The folders of Python and of installed packages."""
    # Not sysconfig: a task that fails because it cannot open a file could not import it.
    folders = os.path.dirname(os.__file__), *site.getsitepackages()
    return tuple(str(Path(folder).resolve()) for folder in folders)


def is_horn(module_name: str) -> bool:
    return module_name == "horn" or module_name.startswith("horn.")


def is_user_file(file: str) -> bool:
    """Whether a file belongs to the user: not to horn, to Python, or to an installed package."""
    if file.startswith("<frozen"):
        return False
    found = Path(file).resolve()
    # Packages of a user (pip install --user), of another environment or of Debian count, too.
    if "site-packages" in found.parts or "dist-packages" in found.parts:
        return False
    return not str(found).startswith((*_OWN, *(f"{folder}/" for folder in _installed())))


def hiding(error: BaseException) -> str:
    """The sentence about a file of the user that was imported instead of the module, of Python or
    of a package, that an error names; "" without one.
    """
    for name in re.findall(r"'(\w+)", described(error)):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or not is_user_file(file):
            continue
        finder = importlib.machinery.PathFinder
        if name in sys.stdlib_module_names or finder.find_spec(name, _installed()):
            return f"{file} hides the module {name} that horn needs: give that file another name"
    return ""


class SourceCapture:
    """The sources that some classes and functions need.

    other : the value to write for a variable of an enclosing function that is neither number nor
    string; by default a function or a plain value is captured, and anything else an error.

    Raises
    ------
    ModelError : a source cannot be read, or reads such a variable.
    """

    def __init__(self, other: Callable[[Any], Any] | None = None) -> None:
        self._modules: dict[str, NeededModule] = {}
        self._other = other
        self._under_way: list[Any] = []  # what is captured now, each by the one before

    def reference(self, thing: Any) -> Reference:
        """Capture a class or function; JSON for ``CapturedCode.resolve``."""
        self._under_way.append(thing)
        try:
            return self._reference(thing)
        finally:
            self._under_way.pop()

    def _reference(self, thing: Any) -> Reference:
        if isinstance(thing, types.BuiltinFunctionType) and thing.__module__ == "math":
            return {"math": thing.__name__}
        if not isinstance(thing, (type, types.FunctionType)):
            raise ModelError(
                f"{thing!r} is neither a function nor a class, so its source cannot be saved; "
                f"write it as  def"
            )
        module_name, name = thing.__module__ or "", thing.__qualname__
        if is_horn(module_name):
            if _lookup(vars(importlib.import_module(module_name)), name) is thing:
                return {"horn": f"{module_name}:{name}"}
            raise ModelError(
                f"{module_name}.{name} is not a public part of horn; it cannot be saved"
            )
        needed = self._module_of(thing)
        _check_loaded(thing)
        node: ast.AST | None = None
        bases: list[tuple[str, Any]] = []
        is_global = _lookup(needed.namespace, name) is thing
        if not is_global or isinstance(needed, TypedModule):
            node, bases = _definition(thing, needed)
        if is_global and not bases:
            self._need(needed, {name.split(".")[0]})
            return {"module": needed.name, "name": name}
        if node is None:
            raise ModelError(
                f"{name} of {needed.name} was not found in its source; define it at the top level "
                f"of its file"
            )
        _check_said(needed, name, thing, [node] if isinstance(node, ast.ClassDef) else [])
        for base_name, base in bases:  # what its methods call by this name is what is there now
            now = successor(base)
            if now is not None and not now[1] and _is_read_inside(node, base_name):
                raise ModelError(
                    f"{name} calls {base_name} by its name, which has been defined again since "
                    f"{name} was; define {name} again, too, or call super()"
                )
        numbers = numbers_of(thing, node, inner=True)
        around = [*_free_variables(thing), *bases]
        names = names_read(with_numbers(node, numbers))
        self._need(needed, names - {variable for variable, _ in around})
        needed.inner[place_of(node)] = node
        free = {}
        for variable, value in around:
            if value is thing and variable == thing.__name__:
                continue  # a function that calls itself: its own statement defines it
            if isinstance(value, Scalar):
                free[variable] = {"value": value}
            elif self._other is not None:
                free[variable] = self._other(value)
            elif isinstance(value, types.FunctionType) and value not in self._under_way:
                free[variable] = self.reference(value)
            elif (variable, value) in bases:
                free[variable] = self.reference(value)
            elif is_plain(value):
                free[variable] = {"value": encoded(value)}
            else:
                raise ModelError(
                    f"{name} reads {variable!r} of the function around it "
                    f"({type(value).__name__}), which a model file cannot carry; define {name} at "
                    f"the top level of its file"
                )
        found = {"module": needed.name, "name": name, "at": [*place_of(node)], "free": free}
        return found | ({"numbers": numbers} if numbers else {})

    def sources(self, *, whole_paths: bool = False) -> dict[str, dict[str, Any]]:
        """The captured modules as JSON; "run" has the places of the statements to run.
        whole_paths : of the files, for messages on this machine; else their names alone.
        """
        return {
            name: {
                "file": needed.place if whole_paths else Path(needed.file).name,
                "sha256": hashlib.sha256(needed.saved_text.encode()).hexdigest(),
                "text": needed.saved_text,
                "package": needed.namespace.get("__package__") or "",
                "run": needed.run(),
                "constants": needed.constants,
                **({"imports": needed.imports} if needed.imports else {}),
                **({"attributes": found} if (found := needed.attributes()) else {}),
                **({"numbers": needed.numbers} if needed.numbers else {}),
            }
            for name, needed in self._modules.items()
        }

    def texts(self) -> dict[str, tuple[dict[str, str], dict[str, Any]]]:
        """The needed statements of every captured module, by the names that they define, without
        comments, docstrings and layout; and the values of the variables that they read.
        """
        return {name: needed.texts() for name, needed in self._modules.items()}

    def inner_text(self, reference: Reference) -> str:
        node = self._modules[reference["module"]].inner[tuple(reference["at"])]
        return ast.unparse(without_docstrings(node))

    def _module_of(self, thing: Any) -> NeededModule:
        """The module whose text defines a thing: a file's, or text that ran without one."""
        code, namespace = texts.code_of(thing), texts.namespace_of(thing)
        if (captured := namespace.get(_CODE)) is not None:
            own = captured.modules[thing.__module__.partition(".")[2]]
            return self._captured(own, thing.__qualname__)
        if code is None and texts.file_of(namespace) and "get_ipython" not in namespace:
            return self._module(thing.__module__ or "", thing.__qualname__)
        is_in_notebook = "get_ipython" in namespace  # by %run -i, if its code has a file
        if code is not None and texts.is_file(code.co_filename) and not is_in_notebook:
            module = sys.modules.get(thing.__module__ or "")
            if module is None or (thing.__module__ == "__main__" and namespace is not vars(module)):
                # Pickled by value, or run by %run: the main module here is another program.
                name = re.sub(r"\W|^(?=\d)", "_", Path(code.co_filename).stem)
                while name in self._modules and self._modules[name].namespace is not namespace:
                    name += "_"
                return self._text_of(name, code.co_filename, namespace, thing.__qualname__)
            return self._module(thing.__module__ or "", thing.__qualname__)
        own = "" if code is None else texts.text_of(code, namespace)
        if code is not None and not own:
            raise ModelError(
                f"the source of {thing.__qualname__} cannot be read ({code.co_filename}); "
                f"{texts.remedy(code.co_filename)}"
            )
        for needed in self._modules.values():
            if isinstance(needed, TypedModule) and needed.namespace is namespace:
                break
        else:
            name = texts.title(namespace)
            while name in self._modules:
                name += "_"
            needed = self._modules[name] = TypedModule(name, namespace, texts.parts(namespace))
        if own and ended(own) not in needed.parts:
            needed.add(own)
        return needed

    def _module(self, module_name: str, wanted: str) -> NeededModule:
        module = sys.modules.get(module_name)
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            raise ModelError(
                f"the source of {wanted} cannot be read (module {module_name!r} has no file); "
                f"{texts.REMEDY}"
            )
        # A script's own module is named after its file; __main__ means nothing elsewhere.
        name = Path(file).stem if module_name == "__main__" else module_name
        return self._text_of(name, file, module.__dict__, wanted)

    def _captured(self, module: types.ModuleType, wanted: str) -> NeededModule:
        """A captured module, under its short name: not that of ``sys.modules``, which may be of
        another load of the same source, that another thread is in the middle of.
        """
        name = module.__name__.partition(".")[2]
        text = texts.of_file(str(module.__file__), vars(module))
        while (known := self._modules.get(name)) is not None:
            if known.namespace is vars(module) or known.text == text:
                return known
            name += "_"
        return self._text_of(name, str(module.__file__), vars(module), wanted)

    def _text_of(
        self, name: str, file: str, namespace: dict[str, Any], wanted: str
    ) -> NeededModule:
        if name not in self._modules:
            text = texts.of_file(file, namespace)
            if not text:
                raise ModelError(f"the source of {wanted} cannot be read from {file}")
            try:
                self._modules[name] = NeededModule(name, namespace, file, text)
            except SyntaxError as error:  # the file has changed since it was imported
                raise ModelError(f"the source of {wanted} cannot be read: {error}") from None
        return self._modules[name]

    def _need(self, needed: NeededModule, names: Iterable[str]) -> None:
        """Keep the statements that bind these names, and their dependencies."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in needed.done:
                continue
            needed.done.add(name)
            value = needed.namespace.get(name, needed)
            if name == "__name__":  # in a module that runs again it differs
                continue
            try:
                needed.constants[name] = encoded(value)
                continue
            except NotPlain:
                pass
            if is_of_run_file(name, value, needed.namespace):
                origin = self._module_of(value)
                needed.imports.append(f"from {origin.name} import {name}")
                self._need(origin, {name})
                continue
            _check_loaded(value)
            statements = needed.binding(name)
            if not statements and value is not needed:
                n_before = len(needed.imports)
                statements = needed.found(name, value)
                for text in needed.imports[n_before:]:
                    for statement in texts.parsed(text).body:
                        assert isinstance(statement, IMPORTS)
                        self._need_import(needed, statement)
            _check_said(needed, name, value, statements)
            if needed.is_unsaid(name, value, statements):
                raise needed.said_by_none(name, value)
            for statement in statements:
                if place_of(statement) in needed.places:
                    continue
                needed.places.add(place_of(statement))
                inside = statement not in needed.statements
                if isinstance(statement, DEFINITIONS):
                    if numbers := numbers_of(value, statement, inside):
                        needed.numbers[name] = numbers
                waiting.extend(names_read(with_numbers(statement, needed.numbers.get(name, {}))))
                for inner in ast.walk(statement):
                    if isinstance(inner, IMPORTS):
                        self._need_import(needed, inner)

    def _need_import(self, needed: NeededModule, statement: ast.Import | ast.ImportFrom) -> None:
        # In a captured module an import looks in captured modules first.
        code = needed.namespace.get(_CODE)
        modules = sys.modules if code is None else {**sys.modules, **code.modules}
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                self._need_user_module(modules, alias.name, None)
            return
        package = needed.namespace.get("__package__") or ""
        origin = "." * statement.level + (statement.module or "")
        absolute = importlib.util.resolve_name(origin, package) if statement.level else origin
        for alias in statement.names:
            if f"{absolute}.{alias.name}" in modules:
                self._need_user_module(modules, f"{absolute}.{alias.name}", None)
            else:
                names = None if alias.name == "*" else {alias.name}
                self._need_user_module(modules, absolute, names)

    def _need_user_module(
        self, modules: Mapping[str, types.ModuleType], name: str, wanted: set[str] | None
    ) -> None:
        module = modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or is_horn(name) or file is None or not file.endswith(".py"):
            return
        if _CODE in vars(module):
            needed = self._captured(module, name)
            if needed.name != name:
                raise ModelError(
                    f"two model files have modules named {name} that differ, and one file cannot "
                    f"keep both: give one of them another name"
                )
        elif is_user_file(file):
            needed = self._module(name, name)
        else:
            return
        self._need(needed, needed.bound if wanted is None else wanted)


class CarriedText:
    """The text of a class that stands in no file, where it is pickled by value, as cloudpickle does
    it for joblib, dask and ray: an attribute of the class, which goes there with it.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __reduce__(self) -> tuple[Any, ...]:
        capture = SourceCapture()
        try:
            capture.reference(self.cls)
        except ModelError:  # told there, if it is trained
            return CarriedText, (self.cls,)
        typed = [m for m in capture._modules.values() if isinstance(m, TypedModule)]
        parts = tuple(p for needed in typed for p in (*needed.imports, *needed.needed_parts))
        constants = {name: v for needed in typed for name, v in needed.constants.items()}
        return CarriedText, (self.cls,), (self.cls.__qualname__, parts, constants)

    def __setstate__(self, state: tuple[str, tuple[str, ...], dict[str, Any]]) -> None:
        self.cls.__qualname__, parts, constants = state  # cloudpickle leaves the first out
        texts.arrive(parts, {name: decoded(value) for name, value in constants.items()})


def _check_loaded(thing: Any) -> None:
    """Raise ModelError for a class or function of a text that is no longer that of its file, and
    for a class with such a base.
    """
    for each in thing.__mro__ if isinstance(thing, type) else (thing,):
        code = texts.code_of(each)
        if code is None or not texts.is_file(code.co_filename):
            continue
        if is_user_file(code.co_filename) and (file := texts.outdated(each)):
            name, *_ = each.__qualname__.split(".")
            raise ModelError(
                f"{name} is of the text that {shown_file(file)} had before it was loaded again; "
                f"import {name} again, and make the network again"
            )


def _check_said(
    needed: NeededModule, name: str, value: Any, statements: Sequence[ast.stmt]
) -> None:
    """Raise ModelError for a class with a method by no statement of those that are kept."""
    found = unsaid_method(needed, name, value, statements) if isinstance(value, type) else ("", "")
    if found[0]:
        text = "the text" if isinstance(needed, TypedModule) else Path(needed.file).name
        raise ModelError(
            f"{name}.{found[0]} is {found[1]}, but no statement of {text} says so; write  "
            f"{name}.{found[0]} = ...  as one of its own, or define it in the class"
        )


def _lookup(namespace: Mapping[str, Any], name: str) -> Any:
    first, *rest = name.split(".")
    thing: Any = namespace.get(first)
    for part in rest:
        thing = getattr(thing, part, None)
    return thing


def successor(thing: Any) -> tuple[Any, bool] | None:
    """What has the name of a user's class or function by now, as after a cell was run again, if
    that is another, and whether its text is the same but for comments; None too if none is known.
    """
    name = thing.__qualname__
    other = _lookup(texts.namespace_of(thing), name)
    is_code = isinstance(other, (type, types.FunctionType))
    if "<" in name or other is thing or not is_code or is_horn(thing.__module__ or ""):
        return None
    if texts.outdated(thing):  # its file was loaded again
        return other, False
    capture = SourceCapture()
    try:
        own, now = capture._module_of(thing), capture._module_of(other)
    except ModelError:
        return None
    nodes = [_find(m.tree, t, m.lines_before(t)) for m, t in ((own, thing), (now, other))]
    found = [None if n is None else ast.unparse(without_docstrings(n)) for n in nodes]
    if own is not now or None in found:
        return None
    bases = zip(getattr(thing, "__bases__", ()), getattr(other, "__bases__", ()), strict=False)
    return other, found[0] == found[1] and all(
        base is its or (base.__qualname__ == its.__qualname__ and successor(base) == (its, True))
        for base, its in bases
    )


def _free_variables(thing: Any) -> Iterator[tuple[str, Any]]:
    functions = [thing] if isinstance(thing, types.FunctionType) else vars(thing).values()
    for function in functions:
        if isinstance(function, types.FunctionType):
            for variable, value in texts.around(function).items():
                if variable != "__class__":
                    yield variable, value


def _definition(thing: Any, needed: NeededModule) -> tuple[ast.AST | None, list[tuple[str, Any]]]:
    """The node that defines a class or function, and the bases that its module does not have under
    their names, or no longer: of the function around it, or of a cell that changed since.
    """
    node = _find(needed.tree, thing, needed.lines_before(thing))
    if not isinstance(node, ast.ClassDef) or not isinstance(thing, type):
        return node, []
    return node, [
        (name.id, base)
        for name, base in zip(node.bases, thing.__bases__, strict=False)
        if isinstance(name, ast.Name)
        if needed.namespace.get(name.id, getattr(builtins, name.id, None)) is not base
        or (texts.namespace_of(base) is needed.namespace and _definition(base, needed)[1])
    ]


def _is_read_inside(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and any(name in names_read(each) for each in node.body)


def _find(tree: ast.Module, thing: Any, before: int) -> ast.AST | None:
    """The node that defines a class or function which is not a global of its module. before : the
    number of lines before those that its code counts.
    """
    code: Any = getattr(thing, "__code__", None)
    if code is None:  # a class: the last of its name, or the one around its first method
        method = texts.code_of(thing)
        classes = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
        found = [n for n in classes if n.name == thing.__name__]
        if method is not None:
            line = method.co_firstlineno + before
            found = [n for n in found if n.lineno <= line <= (n.end_lineno or 0)]
        return found[-1] if found else None
    first = code.co_firstlineno + before
    if thing.__name__ == "<lambda>":
        spans = {(p[0] + before, p[2]) for p in code.co_positions() if p[0] is not None}
        lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == first]
        exact = [n for n in lambdas if (n.body.lineno, n.body.col_offset) in spans]
        return next(iter(exact or lambdas), None)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == thing.__name__:
            if first_line(node) == first:
                return node
    return None


class CapturedCode:
    """Captured sources. Nothing runs before ``resolve``.

    origin : the place in error messages, such as the model file: origin/file.py:12. If it is empty,
    captured whole paths are kept.

    Raises
    ------
    ModelError : a source does not have its sha256, or does not run.
    """

    def __init__(
        self, sources: Mapping[str, Mapping[str, Any]], origin: str, salt: Any = None
    ) -> None:
        for name, source in sources.items():
            if hashlib.sha256(source["text"].encode()).hexdigest() != source["sha256"]:
                raise ModelError(f"{origin}: the source of {name!r} is not what was saved")
        self.origin = origin
        self._sources = sources
        self.modules: dict[str, types.ModuleType] = {}  # by the names that their source knows
        digest = hashlib.sha256(json.dumps([sources, salt], sort_keys=True).encode()).hexdigest()
        self._prefix = f"{CAPTURED}{digest[:12]}"
        self._nested: dict[str, Any] = {}

    def resolve(self, reference: Reference) -> Any:
        """The class or function of a reference."""
        if "horn" in reference:
            module_name, name = str(reference["horn"]).split(":")
            if not is_horn(module_name):
                raise ModelError(f"{self.origin}: {module_name} is not a part of horn")
            thing = _lookup(vars(importlib.import_module(module_name)), name)
        elif "value" in reference:
            return self._plain(reference["value"])
        elif "math" in reference:
            thing = getattr(math, reference["math"], None)
        else:
            module = self.module(reference["module"])
            if "at" in reference:
                thing = self._inner(module, reference)
            else:
                thing = _lookup(vars(module), reference["name"])
        if thing is None:
            raise ModelError(
                f"{self.origin}: {json.dumps(reference)} was not found in the saved source"
            )
        return thing

    def module(self, name: str) -> types.ModuleType:
        if name in self.modules:
            return self.modules[name]
        # Classes find their module by its name while it runs: threads that load the same source at
        # the same time have a name each.
        with _NAMING:
            names = (f"{self._prefix}{'_' * k}.{name}" for k in itertools.count())
            own = next(each for each in names if each not in _RUN)
            _RUN.add(own)
        before = sys.modules.get(own)
        try:
            return self._executed(name, types.ModuleType(own))
        except BaseException:  # as Python does: what has not run is no module
            self.modules.pop(name, None)
            if before is None:
                sys.modules.pop(own, None)
            else:
                sys.modules[own] = before
            raise
        finally:
            _RUN.discard(own)

    def _executed(self, name: str, module: types.ModuleType) -> types.ModuleType:
        """A module after its statements have run."""
        source = self._sources[name]
        self.modules[name] = module
        file = f"{self.origin}/{source['file']}" if self.origin else source["file"]
        if linecache.getlines(file) not in ([], source["text"].splitlines(keepends=True)):
            file = f"{self.origin}/{self._prefix[-12:]}/{source['file']}"
        module.__file__ = file
        module.__package__ = source["package"]
        linecache.cache[file] = (
            len(source["text"]), None, source["text"].splitlines(keepends=True), file,
        )  # fmt: skip
        # inspect and the compiler find a class's source through its module.
        sys.modules[module.__name__] = module
        module.__dict__[_CODE] = self
        own = {"__import__": self._import, "__build_class__": _class}
        module.__dict__["__builtins__"] = {**vars(builtins), **own}
        module.__dict__.update({n: self._plain(v) for n, v in source["constants"].items()})
        if imports := source.get("imports"):
            self._run(texts.parsed("; ".join(imports), file).body, module.__dict__, file)
        tree = texts.parsed(source["text"], file)
        lines = {at for at in source["run"] if isinstance(at, int)}
        places = {tuple(at) for at in source["run"] if not isinstance(at, int)}
        # Cells are one text here: ``from __future__`` lines come first.
        future = [
            s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"
        ]
        of = source.get("numbers", {})
        needed = [
            with_numbers(s, of.get(getattr(s, "name", ""), {}))
            for s in kept_of([*statements_of(tree, lines)], lines, places)
            if s not in future
        ]
        self._run(needed, module.__dict__, file, future)
        for thing, attributes in source.get("attributes", {}).items():
            for attribute, value in attributes.items():
                setattr(vars(module)[thing], attribute, self._plain(value))
        return module

    def _plain(self, found: Any) -> Any:
        """The value that ``encoded`` wrote. Raises ModelError if it did not."""
        try:
            return decoded(found)
        except NotPlain as error:
            raise ModelError(f"{self.origin}: {found!r:.80} is no value ({error})") from None

    def _run(
        self,
        statements: Sequence[ast.stmt],
        namespace: dict[str, Any],
        file: str,
        future: Sequence[ast.stmt] = (),
    ) -> None:
        """Run statements in their order; a statement that needs a later one, since a cell ran
        again, waits for it.
        """
        begun = running.set(file)
        try:
            while statements:
                late = []
                for statement in statements:
                    try:
                        tree = ast.Module([*future, statement], [])
                        exec(compile(tree, file, "exec"), namespace)
                    except NameError as error:
                        late.append(statement)
                        if len(late) == len(statements):
                            raise error
                statements = late
        except Exception as error:
            place = line_of(error, called=True)
            line = f", line {place[1]}, {place[2]}," if place and place[0] == file else ""
            origin = f"{self.origin}: " if self.origin else ""
            raise ModelError(
                f"{origin}the saved source of {Path(file).name}{line} does not run here "
                f"({type(error).__name__}: {error})"
            ) from error
        finally:
            running.reset(begun)

    def _inner(self, module: types.ModuleType, reference: Reference) -> Any:
        """Define a class, function or lambda that was defined inside a function."""
        key = json.dumps(reference, sort_keys=True)
        if key in self._nested:
            return self._nested[key]
        file = str(module.__file__)
        tree = texts.parsed(self._sources[reference["module"]]["text"], file)
        namespace = dict(module.__dict__)
        namespace.update({k: self.resolve(v) for k, v in reference["free"].items()})
        thing: Any = None
        at = tuple(reference["at"])
        for node in ast.walk(tree):
            if not isinstance(node, (*DEFINITIONS, ast.Lambda)) or place_of(node) != at:
                continue
            node = with_numbers(node, reference.get("numbers", {}))
            if isinstance(node, ast.Lambda):
                thing = eval(compile(ast.Expression(node), file, "eval"), namespace)
            else:
                self._run([node], namespace, file)
                thing = namespace[node.name]
            thing.__qualname__ = reference["name"]
            break
        self._nested[key] = thing
        return thing

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        """``import`` in a captured module: looks in captured modules first, then in others."""
        absolute = name
        if level:
            absolute = importlib.util.resolve_name("." * level + name, globals["__package__"])
        if not any(f"{source}.".startswith(f"{absolute}.") for source in self._sources):
            if level:
                return importlib.import_module(absolute)
            return builtins.__import__(name, globals, locals, fromlist, 0)
        parts = absolute.split(".")
        module = top = self._module_or_empty(parts[0])
        for k, part in enumerate(parts[1:], 2):
            below = self._module_or_empty(".".join(parts[:k]))
            setattr(module, part, below)
            module = below
        for item in fromlist or ():
            if f"{absolute}.{item}" in self._sources:
                setattr(module, item, self.module(f"{absolute}.{item}"))
        return module if fromlist else top

    def _module_or_empty(self, name: str) -> types.ModuleType:
        if name in self._sources:
            return self.module(name)
        return self.modules.setdefault(name, types.ModuleType(f"{self._prefix}.{name}"))


def _class(body: types.FunctionType, *arguments: Any, **keywords: Any) -> Any:
    """``class`` in a captured module: one without methods would not tell whose it is."""
    made = builtins.__build_class__(body, *arguments, **keywords)
    if isinstance(made, type):
        setattr(made, texts.GLOBALS, body.__globals__)
    return made


def line_of(error: BaseException, called: bool = False) -> tuple[str, int, str] | None:
    """(file, line, text) of the user's line that an exception came from, or None. called : also
    the line that called horn, where horn raised it.
    """
    found = None
    for frame in inspect.getinnerframes(error.__traceback__) if error.__traceback__ else ():
        path = str(Path(frame.filename).resolve())
        of_module = frame.frame.f_globals.get("__name__", "")  # dataclasses generate code, too
        if path.startswith(_OWN) or of_module.partition(".")[0] == "horn":
            found = found if called else None
        elif is_user_file(frame.filename):
            text = (frame.code_context or [""])[0].strip()
            found = (frame.filename, frame.lineno, text)
    return found
