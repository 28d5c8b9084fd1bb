"""User code as text: captured from live classes and functions, rebuilt where their file is not.

Model files and workers get the source of a neuron, never a pickle: the whole text of its module,
so that messages can show lines, and the numbers of the statements that it needs, which alone run
again. Numbers and strings that it reads from the module, or from a function around it, are kept as
values.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from horn import texts
from horn.errors import ModelError

Reference = dict[str, Any]
Scalar = (bool, int, float, str, type(None))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINED = (*_DEFINITIONS, *_IMPORTS)
_MAIN = ("__name__ == '__main__'", "'__main__' == __name__")
CAPTURED = "horn_source_"  # what the names of modules begin with whose text a file had
# The file whose captured text is being run again, while it is; ``train`` must not run then.
running: ContextVar[str] = ContextVar("running", default="")
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_HORN = str(Path(__file__).resolve().parent)


@functools.cache
def _installed() -> tuple[str, ...]:
    """The folders of Python and of what was installed."""
    import sysconfig  # with all variables of Python's own build, for few processes

    paths = sysconfig.get_paths()
    return tuple(str(Path(paths[key]).resolve()) for key in _INSTALLED)


def is_horn(module_name: str) -> bool:
    return module_name == "horn" or module_name.startswith("horn.")


def is_user_file(file: str) -> bool:
    """Whether a file belongs to the user: not to horn, to Python, or to an installed package."""
    path = str(Path(file).resolve())
    return not file.startswith("<frozen") and not path.startswith((_HORN + "/", *_installed()))


class SourceCapture:
    """The sources that some classes and functions need.

    other : the value to write for a variable of an enclosing function that is neither number,
    string nor function; by default that is an error.

    Raises
    ------
    ModelError : a source cannot be read, or reads such a variable.
    """

    def __init__(self, other: Callable[[Any], Any] | None = None) -> None:
        self._modules: dict[str, _Needed] = {}
        self._other = other

    def reference(self, thing: Any) -> Reference:
        """Capture a class or function; JSON for ``CapturedCode.resolve``."""
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
        if _lookup(needed.namespace, name) is thing:
            self._need(needed, {name.split(".")[0]})
            return {"module": needed.name, "name": name}
        node = _find(needed.tree, thing, needed.lines_before(thing))
        if node is None:
            raise ModelError(
                f"{name} of {needed.name} was not found in its source; define it at the top level "
                f"of its file"
            )
        self._need(needed, _reads(node) - {variable for variable, _ in _free_variables(thing)})
        needed.inner[tuple(_at(node))] = node
        free = {}
        for variable, value in _free_variables(thing):
            if isinstance(value, Scalar):
                free[variable] = {"value": value}
            elif isinstance(value, types.FunctionType) and value is not thing:
                free[variable] = self.reference(value)
            elif self._other is not None:
                free[variable] = self._other(value)
            else:
                raise ModelError(
                    f"{name} reads {variable!r} of the function around it "
                    f"({type(value).__name__}), which a model file cannot carry; define {name} at "
                    f"the top level of its file"
                )
        return {"module": needed.name, "name": name, "at": _at(node), "free": free}

    def sources(self, *, whole_paths: bool = False) -> dict[str, dict[str, Any]]:
        """Every captured module, as JSON; "run" has the first lines of the statements to run.
        whole_paths : of the files, for messages on this machine; else their names alone.
        """
        return {
            name: {
                "file": needed.place if whole_paths else Path(needed.file).name,
                "sha256": hashlib.sha256(needed.saved_text.encode()).hexdigest(),
                "text": needed.saved_text,
                "package": needed.namespace.get("__package__") or "",
                "run": sorted(needed.lines),
                "constants": needed.constants,
            }
            for name, needed in self._modules.items()
        }

    def texts(self) -> dict[str, tuple[dict[str, str], dict[str, Any]]]:
        """Of every captured module: the needed statements, by what they define, without comments,
        docstrings and layout; and the values of the variables that they read.
        """
        return {name: needed.texts() for name, needed in self._modules.items()}

    def inner_text(self, reference: Reference) -> str:
        node = self._modules[reference["module"]].inner[tuple(reference["at"])]
        return ast.unparse(_plain(node))

    def _module_of(self, thing: Any) -> _Needed:
        """The module whose text a thing is in: of a file, or of what was run without one."""
        code, namespace = texts.code_of(thing), texts.namespace_of(thing)
        if code is None and isinstance(namespace.get("__file__"), str):
            return self._module(thing.__module__ or "", thing.__qualname__)
        if code is not None and texts.is_file(code.co_filename):
            module = sys.modules.get(thing.__module__ or "")
            if thing.__module__ == "__main__" and namespace is not vars(module):
                # Pickled by value: the main module here is another program's.
                name = Path(code.co_filename).stem
                return self._text_of(name, code.co_filename, namespace, thing.__qualname__)
            return self._module(thing.__module__ or "", thing.__qualname__)
        own = "" if code is None else texts.text_of(code, namespace)
        if code is not None and not own:
            raise ModelError(
                f"the source of {thing.__qualname__} cannot be read ({code.co_filename}); "
                f"{texts.REMEDY}"
            )
        for needed in self._modules.values():
            if isinstance(needed, _Typed) and needed.namespace is namespace:
                break
        else:
            name = texts.title(namespace)
            while name in self._modules:
                name += "_"
            needed = self._modules[name] = _Typed(name, namespace, texts.parts(namespace))
        if own and _ended(own) not in needed.parts:
            needed.add(own)
        return needed

    def _module(self, module_name: str, wanted: str) -> _Needed:
        module = sys.modules.get(module_name)
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            raise ModelError(
                f"the source of {wanted} cannot be read (module {module_name!r} has no file); "
                f"{texts.REMEDY}"
            )
        # A script's own module is called after its file; __main__ means nothing elsewhere.
        name = Path(file).stem if module_name == "__main__" else module_name
        if module_name.startswith(CAPTURED):  # a capture of a capture has no longer name
            known = self._modules.get(short := module_name.partition(".")[2])
            name = short if known is None or known.namespace is vars(module) else name
        return self._text_of(name, file, module.__dict__, wanted)

    def _text_of(self, name: str, file: str, namespace: dict[str, Any], wanted: str) -> _Needed:
        if name not in self._modules:
            lines = linecache.getlines(file, namespace)
            if not lines:
                raise ModelError(f"the source of {wanted} cannot be read from {file}")
            try:
                self._modules[name] = _Needed(name, namespace, file, "".join(lines))
            except SyntaxError as error:  # the file has changed since it was imported
                raise ModelError(f"the source of {wanted} cannot be read: {error}") from None
        return self._modules[name]

    def _need(self, needed: _Needed, names: Iterable[str]) -> None:
        """Keep the statements that bind these names, and their dependencies."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in needed.done:
                continue
            needed.done.add(name)
            value = needed.namespace.get(name, needed)
            if name == "__name__":  # where the text runs again it is not the program
                continue
            if isinstance(value, Scalar):
                needed.constants[name] = value
                continue
            statements = needed.binding(name)
            if not statements and value is not needed and isinstance(needed, _Typed):
                statements = needed.found(name, value)
            for statement in statements:
                if statement.lineno in needed.lines:
                    continue
                needed.lines.add(statement.lineno)
                waiting.extend(_reads(statement))
                for inner in ast.walk(statement):
                    if isinstance(inner, _IMPORTS):
                        self._need_import(needed, inner)

    def _need_import(self, needed: _Needed, statement: ast.Import | ast.ImportFrom) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                self._need_user_module(alias.name, None)
            return
        package = needed.namespace.get("__package__") or ""
        origin = "." * statement.level + (statement.module or "")
        absolute = importlib.util.resolve_name(origin, package) if statement.level else origin
        for alias in statement.names:
            if f"{absolute}.{alias.name}" in sys.modules:
                self._need_user_module(f"{absolute}.{alias.name}", None)
            else:
                self._need_user_module(absolute, None if alias.name == "*" else {alias.name})

    def _need_user_module(self, name: str, wanted: set[str] | None) -> None:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if is_horn(name) or file is None or not file.endswith(".py") or not is_user_file(file):
            return
        needed = self._module(name, name)
        self._need(needed, needed.bound if wanted is None else wanted)


class _Needed:
    """One module, and its needed statements."""

    def __init__(self, name: str, namespace: dict[str, Any], file: str, text: str) -> None:
        self.name, self.namespace, self.file, self.text = name, namespace, file, text
        self.done: set[str] = set()
        self.lines: set[int] = set()
        self.constants: dict[str, Any] = {}
        self.inner: dict[tuple[int, ...], ast.AST] = {}  # needed, and no global
        self._read()

    def _read(self) -> None:
        self.tree = texts.parsed(self.text)
        main = self.namespace.get("__name__") == "__main__"
        self.statements = list(_statements(self.tree) if main else self.tree.body)
        self._bound = [(_bound(statement), statement) for statement in self.statements]
        variables = {n for names, s in self._bound if not isinstance(s, _DEFINED) for n in names}
        for names, statement in self._bound:
            names |= _asked(statement) & variables
        self.bound = {name for names, _ in self._bound for name in names if name != "*"}

    @property
    def place(self) -> str:
        """What messages on this machine call it."""
        return str(Path(self.file).resolve())

    @property
    def saved_text(self) -> str:
        return self.text

    def lines_before(self, thing: Any) -> int:
        """How many lines are before the text that a thing's own line numbers count."""
        return 0

    def binding(self, name: str) -> list[ast.stmt]:
        found = [s for names, s in self._bound if name in names]
        if not found and not hasattr(builtins, name):
            found = [s for names, s in self._bound if "*" in names]
        return found

    def texts(self) -> tuple[dict[str, str], dict[str, Any]]:
        found: dict[str, str] = {}
        for statement in self.statements:
            if statement.lineno not in self.lines:
                continue
            for key, text in self._parts(statement):
                while key in found:  # defined twice
                    key += "'"
                found[key] = text
        plain = {n for names, s in self._bound if not isinstance(s, _DEFINED) for n in names}
        values = {n: self.namespace[n] for n in self.done & plain if n in self.namespace}
        return found, values

    def _parts(self, statement: ast.stmt) -> Iterator[tuple[str, str]]:
        """(what it defines, its text); of imports the needed names."""
        if not isinstance(statement, _IMPORTS):
            text = ast.unparse(_plain(statement))
            yield getattr(statement, "name", text), text
            return
        for alias in statement.names:
            name = (alias.asname or alias.name).split(".")[0]
            if name == "*" or name in self.done:
                one = copy.copy(statement)
                one.names = [alias]
                yield name, ast.unparse(one)


class _Typed(_Needed):
    """What was run without a file: cells of a notebook, lines of a prompt, texts of ``exec``, as if
    they were one file. Only what is needed of them is saved, on the lines where it stands.
    """

    def __init__(self, name: str, namespace: dict[str, Any], parts: list[str]) -> None:
        # The first line is for names that somebody put there, as a program that embeds a prompt.
        self.parts: list[str] = ["\n"]
        self.imports: list[str] = []
        super().__init__(name, namespace, f"{name}.py", "\n")
        for part in parts:
            self.add(part)

    def add(self, part: str) -> None:
        """Another text, after the others, unless it is no Python."""
        try:
            texts.parsed(part)
        except (SyntaxError, ValueError):
            return
        self.parts.append(_ended(part))
        self.text = "".join(self.parts)
        self._read()

    def found(self, name: str, value: Any) -> list[ast.stmt]:
        """The statements of what the namespace has and no text so far defines, or none, and it is
        imported.
        """
        code = texts.code_of(value)
        defined = isinstance(value, (type, types.FunctionType))
        here = defined and texts.namespace_of(value) is self.namespace
        text = texts.text_of(code, self.namespace) if here and code is not None else ""
        if text:
            self.add(text)
            return self.binding(name)
        if isinstance(value, types.ModuleType):
            text = f"import {value.__name__} as {name}"
        elif defined and not here and value.__module__ in sys.modules:
            text = f"from {value.__module__} import {value.__qualname__} as {name}"
        else:
            raise ModelError(
                f"{name!r} ({type(value).__name__}) is read, but no text that was run here defines "
                f"it; {texts.REMEDY}"
            )
        self.imports.append(text)
        self.lines.add(1)
        return []

    @property
    def place(self) -> str:
        return self.file

    @property
    def saved_text(self) -> str:
        wanted = {line for line, _ in self.inner} | self.lines
        kept: set[int] = set()
        for statement in self.tree.body:
            first, last = _first_line(statement), statement.end_lineno or 0
            if any(first <= line <= last for line in wanted):
                kept.update(range(first, last + 1))
        lines = self.text.split("\n")
        saved = [text if k in kept else "" for k, text in enumerate(lines, 1)]
        return "\n".join(["; ".join(self.imports), *saved[1:]])

    def lines_before(self, thing: Any) -> int:
        code = texts.code_of(thing)
        own = "" if code is None else texts.text_of(code, self.namespace)
        return self._span(own)[0]

    def _span(self, text: str) -> tuple[int, int]:
        """How many lines are before a text that was run here, and with it; of a text that was run
        again the last.
        """
        if _ended(text) not in self.parts:
            return 0, 0
        k = len(self.parts) - 1 - self.parts[::-1].index(_ended(text))
        before = sum(part.count("\n") for part in self.parts[:k])
        return before, before + self.parts[k].count("\n")

    def binding(self, name: str) -> list[ast.stmt]:
        """Of several definitions that of the class or function itself, or the last: an earlier one
        may be a mistake that was mended.
        """
        found = super().binding(name)
        value = self.namespace.get(name)
        if isinstance(value, (type, types.FunctionType)):
            code = texts.code_of(value)
            before, after = self._span(texts.text_of(code, self.namespace) if code else "")
            found = [s for s in found if before < s.lineno <= after] or found
        whole = (*_DEFINED, ast.Assign)
        last = max((k for k, s in enumerate(found) if isinstance(s, whole)
                    and not (isinstance(s, ast.Assign) and name in _names(s.value))),
                   default=0)  # fmt: skip
        return found[last:]


class _Bare(ast.NodeTransformer):
    """Docstrings taken away."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node


def _plain(node: ast.AST) -> ast.AST:
    return _Bare().visit(copy.deepcopy(node))


def _bound(statement: ast.stmt) -> set[str]:
    """The module-level names that a statement sets or changes."""
    if isinstance(statement, _DEFINITIONS):
        return {statement.name}
    if isinstance(statement, _IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {name for target in statement.targets for name in _names(target)}
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return _names(statement.target)
    return set[str]().union(*map(_bound, _inner_statements(statement)))


def _asked(statement: ast.stmt) -> set[str]:
    """The names whose methods a statement calls for what they do: ``table.append(1)``."""
    if isinstance(statement, _DEFINED):
        return set()
    if isinstance(statement, ast.Expr):
        call = statement.value
        while isinstance(call, (ast.Call, ast.Attribute, ast.Subscript)):
            call = call.func if isinstance(call, ast.Call) else call.value
        return {call.id} if isinstance(call, ast.Name) else set()
    return set[str]().union(*map(_asked, _inner_statements(statement)))


def _inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(statement):
        inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
        yield from (one for one in inner if isinstance(one, ast.stmt))


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _statements(tree: ast.Module, whole: Iterable[int] = ()) -> Iterator[ast.stmt]:
    """The statements of a module, and one by one those under ``if __name__ == "__main__":``, unless
    that line is among ``whole``: what one of them defines does not need the others.
    """
    for statement in tree.body:
        if (
            isinstance(statement, ast.If)
            and statement.lineno not in whole
            and ast.unparse(statement.test) in _MAIN
        ):
            yield from statement.body
        else:
            yield statement


def _reads(node: ast.AST) -> set[str]:
    """The names that a statement or lambda reads from its module: no parameter, no variable of a
    function, not what a comprehension counts with.
    """
    import symtable

    found: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "", "exec")]
    for table in tables:
        tables += table.get_children()
        of_function = table.get_type() == "function"
        for symbol in table.get_symbols():
            # What a class assigns may have been read before, from the module.
            if symbol.is_global() if of_function else symbol.is_referenced():
                found.add(symbol.get_name())
    return found


def _names(node: ast.AST) -> set[str]:
    """The names in an expression."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _lookup(namespace: Mapping[str, Any], name: str) -> Any:
    first, *rest = name.split(".")
    thing: Any = namespace.get(first)
    for part in rest:
        thing = getattr(thing, part, None)
    return thing


def _first_line(statement: ast.stmt) -> int:
    """Where a statement begins, with its decorators."""
    above = getattr(statement, "decorator_list", [])
    return min([int(statement.lineno), *(int(d.lineno) for d in above)])


def _free_variables(thing: Any) -> Iterator[tuple[str, Any]]:
    functions = [thing] if isinstance(thing, types.FunctionType) else vars(thing).values()
    for function in functions:
        if isinstance(function, types.FunctionType):
            names, cells = function.__code__.co_freevars, function.__closure__ or ()
            for variable, cell in zip(names, cells, strict=True):
                if variable != "__class__":
                    yield variable, cell.cell_contents


def _find(tree: ast.Module, thing: Any, before: int) -> ast.AST | None:
    """The node that defines a class or function which is not a global of its module. before : the
    lines before those that its code counts.
    """
    code: Any = getattr(thing, "__code__", None)
    if code is None:  # a class: the last of its name, or the one around its forward
        method = getattr(vars(thing).get("forward"), "__code__", None)
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
            if _first_line(node) == first:
                return node
    return None


def _at(node: Any) -> list[int]:
    return [node.lineno, node.col_offset]


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
        self._modules: dict[str, types.ModuleType] = {}
        digest = hashlib.sha256(json.dumps([sources, salt], sort_keys=True).encode()).hexdigest()
        self._prefix = f"{CAPTURED}{digest[:12]}"
        self._nested: dict[str, Any] = {}

    def resolve(self, reference: Reference) -> Any:
        """The class or function that a reference names."""
        if "horn" in reference:
            module_name, name = str(reference["horn"]).split(":")
            if not is_horn(module_name):
                raise ModelError(f"{self.origin}: {module_name} is not a part of horn")
            thing = _lookup(vars(importlib.import_module(module_name)), name)
        elif "value" in reference:
            return reference["value"]
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
        if name in self._modules:
            return self._modules[name]
        source = self._sources[name]
        module = types.ModuleType(f"{self._prefix}.{name}")
        self._modules[name] = module
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
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        module.__dict__.update(source["constants"])
        tree = texts.parsed(source["text"], file)
        run = set(source["run"])
        # Cells are one text here: what is said to the compiler comes first.
        future = [
            s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"
        ]
        needed = [s for s in _statements(tree, run) if s.lineno in run and s not in future]
        self._run(needed, module.__dict__, file, future)
        return module

    def _run(
        self,
        statements: Sequence[ast.stmt],
        namespace: dict[str, Any],
        file: str,
        future: Sequence[ast.stmt] = (),
    ) -> None:
        """Run statements in their order; what needs one that comes later, since a cell was run
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
        """A class or function that was defined inside a function, or a lambda."""
        key = json.dumps(reference, sort_keys=True)
        if key in self._nested:
            return self._nested[key]
        file = str(module.__file__)
        tree = texts.parsed(self._sources[reference["module"]]["text"], file)
        namespace = dict(module.__dict__)
        namespace.update({k: self.resolve(v) for k, v in reference["free"].items()})
        thing: Any = None
        for node in ast.walk(tree):
            if not isinstance(node, (*_DEFINITIONS, ast.Lambda)) or _at(node) != reference["at"]:
                continue
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
        """``import`` in a captured module: of captured modules first, then of others."""
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
        return self._modules.setdefault(name, types.ModuleType(f"{self._prefix}.{name}"))


def line_of(error: BaseException, called: bool = False) -> tuple[str, int, str] | None:
    """(file, line, text) of the user's line that an exception came from, or None. called : also
    where horn raised it, which the line called.
    """
    found = None
    for frame in inspect.getinnerframes(error.__traceback__) if error.__traceback__ else ():
        path = str(Path(frame.filename).resolve())
        of_module = frame.frame.f_globals.get("__name__", "")  # also where a dataclass wrote it
        if path.startswith(_HORN + "/") or of_module.partition(".")[0] == "horn":
            found = found if called else None
        elif is_user_file(frame.filename):
            text = (frame.code_context or [""])[0].strip()
            found = (frame.filename, frame.lineno, text)
    return found
