"""One module of the user's, and those of its statements that are needed elsewhere.

Which of them made what a name has now, as values and syntax trees tell. ``horn.sources`` finds the
needed names, and saves and runs the source.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import itertools
import math
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from horn import texts
from horn.errors import ModelError
from horn.plain_values import Scalar, encoded, is_plain
from horn.statements import (
    AROUND,
    ASSIGNMENTS,
    DEFINED,
    DEFINITIONS,
    IMPORTS,
    attributes_said,
    attributes_set,
    bound_by,
    called_by,
    defines,
    ended,
    first_line,
    flat,
    is_whole,
    names_in,
    place_of,
    replaces,
    statements_of,
    targets_of,
    without_docstrings,
)

CAPTURED = "horn_source_"  # the prefix of the names of captured modules
_PURE = (  # expressions that may be computed again at any time
    ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.IfExp, ast.Compare,
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Dict, ast.List, ast.Tuple, ast.Lambda,
)  # fmt: skip


class NeededModule:
    """One module, and its needed statements."""

    def __init__(self, name: str, namespace: dict[str, Any], file: str, text: str) -> None:
        self.name, self.namespace, self.file, self.text = name, namespace, file, text
        self.done: set[str] = set()
        self.places: set[tuple[int, int]] = set()  # where the needed statements begin
        self.constants: dict[str, Any] = {}
        self.numbers: dict[str, dict[str, Any]] = {}  # of definitions: numbers_of
        self.inner: dict[tuple[int, ...], ast.AST] = {}  # needed definitions that are no globals
        self.imports: list[str] = []  # for names that no statement binds
        self._read()

    def _read(self) -> None:
        self.tree = texts.parsed(self.text)
        main = self.namespace.get("__name__") == "__main__"
        found = statements_of(self.tree) if main else self.tree.body
        first, last = self._to_come()
        self.statements = [s for s in found if not first < s.lineno <= last]
        self._set = {a for s in self.statements for a in attributes_set(s) if self._is_kept(*a)}
        self._bound = [
            (bound_by(s) if isinstance(s, ASSIGNMENTS) else bound_by(s, self._set), s)
            for s in self.statements
        ]
        variables = {n for names, s in self._bound if not isinstance(s, DEFINED) for n in names}
        for names, statement in self._bound:
            names |= called_by(statement) & variables
        self.bound = {name for names, _ in self._bound for name in names if name != "*"}

    def _to_come(self) -> tuple[float, float]:
        """The lines after the first of these, up to the other, have not run, and say nothing of
        what is there.
        """
        return self._line(self.file), math.inf

    def _line(self, file: str) -> float:
        """The line of the module's file that runs now, in any thread; infinity if all has run."""
        frames = sys._current_frames()
        # Not this frame itself: that would be a circle, which keeps all callers' arrays.
        frames[threading.get_ident()] = sys._getframe(1)
        for frame in frames.values():
            at: types.FrameType | None = frame
            while at is not None:
                code = at.f_code
                if at.f_globals is self.namespace and code.co_name == "<module>":
                    if os.path.abspath(code.co_filename) == os.path.abspath(file):
                        return at.f_lineno
                at = at.f_back
        return math.inf

    def _is_kept(self, name: str, attribute: str) -> bool:
        """Whether an attribute that a statement sets is kept with its present value: a loop that
        sets it, to train once for each value, need not run again.
        """
        thing = self.namespace.get(name)
        own: Any = {} if isinstance(thing, types.ModuleType) else getattr(thing, "__dict__", {})
        return attribute in own and is_plain(own[attribute])

    def attributes(self) -> dict[str, dict[str, Any]]:
        """The attributes of needed things that statements set later, and the lists and the like of
        classes, which may be changed in place, with their present values.
        """
        kept = {(name, attribute) for name, attribute in self._set if name in self.done}
        for name in self.done:
            if type(thing := self.namespace.get(name)) is type:
                of_class = (n for n, v in vars(thing).items() if not isinstance(v, Scalar))
                kept |= {(name, n) for n in of_class if n[0] != "_" and self._is_kept(name, n)}
        found: dict[str, dict[str, Any]] = {}
        for name, attribute in sorted(kept):
            value = vars(self.namespace[name])[attribute]
            found.setdefault(name, {})[attribute] = encoded(value)
        return found

    @property
    def place(self) -> str:
        """The name of the module in messages on this machine."""
        return str(Path(self.file).resolve())

    @property
    def saved_text(self) -> str:
        return self.text

    def lines_before(self, thing: Any) -> int:
        """The number of lines before the text that a thing's own line numbers count."""
        return 0

    def found(self, name: str, value: Any) -> list[ast.stmt]:
        """The statements that bind a name of the namespace which no statement so far binds, as
        after ``exec`` of a text in it; or none: it is imported, or is left to those who run the
        text.

        ModelError : it is a class or function, which nothing there would define.
        """
        if name.startswith("__"):  # every module's own
            return []
        if text := import_of(name, value, self.namespace):
            self.imports.append(text)
        elif isinstance(value, (type, types.FunctionType)):
            if value.__name__ != name:  # a loop's variable, as an example
                raise self.said_by_none(name, value)
            raise ModelError(
                f"{name!r} ({type(value).__name__}) is read in {Path(self.file).name}, which does "
                f"not define it: it was run there as a text, by exec, say, or put there through "
                f"globals(); define it in that file"
            )
        return []

    def said_by_none(self, name: str, value: Any) -> ModelError:
        """The complaint of a function or class that no statement gives a name."""
        file, other = Path(self.file).name, getattr(value, "__qualname__", value)
        if other == name:
            return ModelError(
                f"{name} is now another {name} than the one that {file} defines, and none of its "
                "statements says so; define it there again, together with what calls it"
            )
        return ModelError(
            f"{name} is now {other}, but no statement of {file} says so, run again with what it "
            f"reads now; write  {name} = ...  as one of its own"
        )

    def run(self) -> list[int | list[int]]:
        """The statements to run, by their first lines; where several share one, by column, too."""
        sharing = Counter(statement.lineno for statement in self.statements)
        whole = {place_of(statement) for statement in self.statements}
        return [
            at[0] if at in whole and sharing[at[0]] == 1 else list(at) for at in sorted(self.places)
        ]

    def binding(self, name: str) -> list[ast.stmt]:
        """The statements that bind a name. What an ``if``, a loop, ``with`` or ``try`` defined is
        its definition there alone: the statement may take another way next time, and train.
        """
        found = self._binding(name)
        earlier, kept = self._making(name, found)
        return [*earlier, *kept] if kept else found

    def _binding(self, name: str) -> list[ast.stmt]:
        """The statements of the module itself that bind a name."""
        found = [
            s for names, s in self._bound
            if name in names or ("*" in names and any(self._gives(i, name) for i in flat([s])))
        ]  # fmt: skip
        if not found and not hasattr(builtins, name):
            found = [s for names, s in self._bound if "*" in names]
        return found

    def _making(
        self, name: str, found: Sequence[ast.stmt]
    ) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Of the statements that bind a name those before the one that made the function or class
        which it has now; and that one, which may be inside of them, with what changed this later:
        both empty where none is known to have made it.
        """
        value = self.namespace.get(name)
        if not isinstance(value, (type, types.FunctionType)):
            return [], []
        makers = [s for s in flat(found) if self._makes(s, name, value)]
        if not makers:
            return [], []
        made = makers[-1]
        earlier = [*itertools.takewhile(lambda s: made not in flat([s]), found)]
        around, *rest = found[len(earlier) :]
        inside = (s for s in flat([around]) if place_of(s) > place_of(made))
        later = [s for s in inside if not isinstance(s, AROUND) and name in bound_by(s, self._set)]
        later += [s for s in rest if not (isinstance(s, AROUND) and replaces(s, name))]
        return earlier, [made, *itertools.takewhile(lambda s: not is_whole(s, name), later)]

    def _gives(self, statement: ast.stmt, name: str) -> bool:
        """Whether ``from module import *`` gives a name, as far as the module is known."""
        if not isinstance(statement, ast.ImportFrom) or statement.names[0].name != "*":
            return False
        origin = None if statement.level else sys.modules.get(statement.module or "")
        own: dict[str, Any] = {} if origin is None else vars(origin)
        return name in own.get("__all__", [n for n in own if n[:1] != "_"])

    def _makes(self, statement: ast.stmt, name: str, value: type | types.FunctionType) -> bool:
        """Whether a statement made the function or class that a name has now, by its place."""
        if isinstance(statement, DEFINITIONS):
            return statement.name == name and self._is_definition(statement, value)
        if isinstance(statement, ast.ImportFrom):
            origin = None if statement.level else sys.modules.get(statement.module or "")
            if self._gives(statement, name):
                return getattr(origin, name, None) is value
            return any(
                (a.asname or a.name) == name and getattr(origin, a.name, None) is value
                for a in statement.names
            )
        if not isinstance(statement, ast.Assign) or not defines(statement, name, alias=True):
            return False
        if isinstance(statement.value, ast.Lambda):
            return isinstance(value, types.FunctionType) and self.is_of(value, statement.value)
        return is_same(self._live(statement.value), value)

    def _is_definition(self, node: ast.stmt, value: type | types.FunctionType) -> bool:
        if isinstance(value, types.FunctionType):
            return not isinstance(node, ast.ClassDef) and self.is_of(value, node)
        if not isinstance(node, ast.ClassDef):
            return False
        functions = filter(None, map(_function_of, vars(value).values()))
        own = [f for f in functions if texts.qualname_of(f).startswith(f"{value.__qualname__}.")]
        return any(self.is_of(f, n) for f in own for n in node.body if isinstance(n, DEFINITIONS))

    def _live(self, said: ast.AST | None) -> Any:
        """What an expression gives now, if computing it again does nothing else, or calls one
        function that makes others, as a decorator does; else None.
        """
        if not isinstance(said, ast.expr) or not self._is_pure(said):
            return None
        try:
            return eval(compile(ast.Expression(said), self.file, "eval"), self.namespace)
        except Exception:  # a name that is gone, say
            return None

    def _is_pure(self, said: ast.expr) -> bool:
        parts = [said]
        if isinstance(said, ast.Call) and isinstance(said.func, ast.Name):
            called = self.namespace.get(said.func.id)
            if not (isinstance(called, types.FunctionType) and _makes_functions(called)):
                return False
            parts = [*said.args, *(keyword.value for keyword in said.keywords)]
        waiting = list(parts)
        for part in waiting:
            if not isinstance(part, _PURE):
                return False
            if not isinstance(part, ast.Lambda):
                waiting += [n for n in ast.iter_child_nodes(part) if isinstance(n, ast.expr)]
        return True

    def is_unsaid(self, name: str, value: Any, statements: Sequence[ast.stmt]) -> bool:
        """Whether a function was put there by none of the statements that bind its name, as by
        another module or through ``globals()``.
        """
        is_own = isinstance(value, types.FunctionType) and not hasattr(value, "__wrapped__")
        if not is_own or self._making(name, statements)[1]:
            return False
        is_here = texts.namespace_of(value) is self.namespace
        if not statements:
            return is_here
        made = statements[-1]
        if isinstance(made, ast.FunctionDef):
            return not made.decorator_list
        if isinstance(made, ast.Assign) and defines(made, name, alias=True):
            if isinstance(made.value, ast.Name):  # another definition of that name, since
                others = self.binding(made.value.id)
                return all(isinstance(s, ast.FunctionDef) for s in others) and not any(
                    self.is_of(value, other) for other in others
                )
            is_lambda = isinstance(made.value, ast.Lambda)
            return is_lambda or (is_here and is_whole(made, name) and self._is_pure(made.value))
        is_global = self.namespace.get(value.__name__) is value
        return isinstance(made, AROUND) and is_global

    def is_said(self, function: types.FunctionType, said: ast.AST | None) -> bool:
        """Whether a function is what a definition or an expression of this text gives."""
        if isinstance(said, (*DEFINITIONS, ast.Lambda)):
            return self.is_of(function, said)
        is_named = isinstance(said, (ast.Name, ast.Attribute))
        live = _function_of(self._live(said)) if is_named else None
        if live is None or live is function:
            return True
        if not isinstance(said, ast.Name):
            return False
        made = (s for s in self.binding(said.id) if isinstance(s, DEFINITIONS))
        return any(self.is_of(function, each) for each in made)

    def is_of(self, function: types.FunctionType, node: ast.AST) -> bool:
        """Whether a function was made by a definition or lambda of this text."""
        file = function.__code__.co_filename
        is_here = function.__globals__ is self.namespace and texts.is_file(file)
        if not is_here and os.path.abspath(file) != os.path.abspath(self.file):
            return False
        return texts.first_line_of(function) == first_line(node)

    def texts(self) -> tuple[dict[str, str], dict[str, Any]]:
        found: dict[str, str] = {}
        for statement in flat(self.statements):
            if place_of(statement) not in self.places:
                continue
            for key, text in self._parts(statement):
                while key in found:  # defined twice
                    key += "'"
                found[key] = text
        plain = {n for names, s in self._bound if not isinstance(s, DEFINED) for n in names}
        known = self.done & (plain | self.constants.keys())
        values = {n: self.namespace[n] for n in known if n in self.namespace}
        return found, values

    def _parts(self, statement: ast.stmt) -> Iterator[tuple[str, str]]:
        """(defined name, its text) of a statement; of imports only the needed names."""
        if not isinstance(statement, IMPORTS):
            text = ast.unparse(without_docstrings(statement))
            yield getattr(statement, "name", text), text
            return
        for alias in statement.names:
            name = (alias.asname or alias.name).split(".")[0]
            if name == "*" or name in self.done:
                one = copy.copy(statement)
                one.names = [alias]
                yield name, ast.unparse(one)


class TypedModule(NeededModule):
    """Text that ran without a file: cells of a notebook, lines of a prompt, texts of ``exec``, as
    if they were one file. Only needed statements are saved, on their own lines.
    """

    def __init__(self, name: str, namespace: dict[str, Any], parts: list[str]) -> None:
        self.parts: list[str] = []
        super().__init__(name, namespace, f"{name}.py", "\n")
        for part in parts:
            self.add(part)

    def add(self, part: str) -> None:
        """Append another text, unless it is no Python."""
        try:
            texts.parsed(part)
        except (SyntaxError, ValueError):
            return
        self.parts.append(ended(part))
        self.text = "".join(self.parts)
        self._read()

    def found(self, name: str, value: Any) -> list[ast.stmt]:
        """The statements that bind a name of the namespace which no text so far defines; or none,
        and it is imported.
        """
        code = texts.code_of(value)
        defined = isinstance(value, (type, types.FunctionType))
        here = defined and texts.namespace_of(value) is self.namespace
        text = texts.text_of(code, self.namespace) if here and code is not None else ""
        if text:
            self.add(text)
            return self.binding(name)
        text = import_of(name, value, self.namespace)
        if not text:
            raise ModelError(
                f"{name!r} ({type(value).__name__}) is read, but no text that was run here defines "
                f"it; "
                + (texts.REMEDY if defined else f"write  {name} = ...  in one, or import it")
            )
        self.imports.append(text)
        return []

    def _to_come(self) -> tuple[float, float]:
        """Those of the file, the first of the texts, if it runs still: the others, which it ran,
        come after it here.
        """
        file = texts.file_of(self.namespace)
        text = ended(texts.of_file(file, self.namespace)) if file else ""
        if file and self.parts[:1] == [text]:
            return self._line(file), text.count("\n")
        return 0, 0

    @property
    def place(self) -> str:
        return self.file

    @property
    def saved_text(self) -> str:
        wanted = {line for line, _ in (*self.inner, *self.places)}
        kept: set[int] = set()
        for statement in self.tree.body:
            first, last = first_line(statement), statement.end_lineno or 0
            if any(first <= line <= last for line in wanted):
                kept.update(range(first, last + 1))
        lines = self.text.split("\n")
        return "\n".join(text if k in kept else "" for k, text in enumerate(lines, 1))

    @property
    def needed_parts(self) -> tuple[str, ...]:
        """The texts of what is needed, each with the lines that it had, and no others."""
        lines = iter(self.saved_text.split("\n"))
        found = ("\n".join(itertools.islice(lines, part.count("\n"))) for part in self.parts)
        return tuple(text for text in found if text.strip())

    def lines_before(self, thing: Any) -> int:
        code = texts.code_of(thing)
        own = "" if code is None else texts.text_of(code, self.namespace)
        return self._span(own)[0]

    def is_of(self, function: types.FunctionType, node: ast.AST) -> bool:
        line, code = first_line(node), function.__code__
        for part in self.parts:
            n = part.count("\n")
            if line <= n:
                own = texts.text_of(code, self.namespace)
                return code.co_firstlineno == line and (ended(own) == part or texts.has(part, code))
            line -= n
        return False

    def _span(self, text: str) -> tuple[int, int]:
        """The numbers of lines before a text that ran here, and up to its end; of a text that ran
        several times the last one's.
        """
        if ended(text) not in self.parts:
            return 0, 0
        k = len(self.parts) - 1 - self.parts[::-1].index(ended(text))
        before = sum(part.count("\n") for part in self.parts[:k])
        return before, before + self.parts[k].count("\n")

    def binding(self, name: str) -> list[ast.stmt]:
        """Of several definitions that of the class or function itself, or the last: an earlier one
        may be a mistake that was mended. A name given to what has another (``f = g``) is the last.
        """
        found = self._binding(name)
        if kept := self._making(name, found)[1]:
            return kept
        value = self.namespace.get(name)
        if isinstance(value, (type, types.FunctionType)):
            code = texts.code_of(value)
            before, after = self._span(texts.text_of(code, self.namespace) if code else "")
            own = [s for s in found if before < s.lineno <= after and defines(s, name)]
            later = itertools.takewhile(
                lambda s: not is_whole(s, name), (s for s in found if s.lineno > after)
            )
            # What sets attributes that are no plain values runs again: those are kept as they are.
            found = [*own, *(s for s in later if name in bound_by(s, self._set))] if own else found
        return found[max((k for k, s in enumerate(found) if is_whole(s, name)), default=0) :]


def _makes_functions(function: types.FunctionType) -> bool:
    """Whether a function defines others inside."""
    inner = (code for code in function.__code__.co_consts if isinstance(code, types.CodeType))
    return any(code.co_name == "<lambda>" or code.co_name[0] != "<" for code in inner)


def is_same(one: Any, other: Any, within: Sequence[tuple[Any, Any]] = ()) -> bool:
    """Whether two things are one, or two functions that compute the same. within : the pairs that
    hold these, for functions that hold themselves.
    """
    if one is other or not (isinstance(one, types.FunctionType) and type(one) is type(other)):
        is_scalar = isinstance(one, Scalar) and type(one) is type(other)
        return one is other or (is_scalar and bool(one == other))
    if any(one is a and other is b for a, b in within):
        return True  # unless something else of theirs differs
    within = [*within, (one, other)]
    pairs = zip(_held(one), _held(other), strict=False)
    digests = {texts.code_digest(each.__code__) for each in (one, other)}
    return len(digests) == 1 and all(is_same(a, b, within) for a, b in pairs)


def _held(function: types.FunctionType) -> list[Any]:
    """What a function has of its own beside its code: variables around it, and defaults."""
    around = texts.around(function).values()
    return [*around, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def unsaid_method(
    needed: NeededModule, name: str, value: type, statements: Sequence[ast.stmt]
) -> tuple[str, str]:
    """The name of a method that a class has by none of the statements that are kept of it, but by
    ``setattr`` or a statement of another file, say, and what it is; ("", "") without one.
    """
    made = next((s for s in reversed(statements) if isinstance(s, ast.ClassDef)), None)
    if made is None:
        return "", ""
    later = statements[statements.index(made) + 1 :]
    if any(name in names_in(t) for s in later for t in targets_of(s) if isinstance(t, ast.Name)):
        return "", ""  # the name is another's
    said = attributes_said(name, made, later)
    # Metaclasses and decorators, as Enum's and ABC's, may add methods.
    is_as_written = type(value) is type and not made.decorator_list and not made.keywords
    plain = (*DEFINED, *ASSIGNMENTS, ast.Expr, ast.Pass)
    is_plain_body = all(isinstance(part, plain) for part in made.body)
    for attribute, method in vars(value).items():
        function = _function_of(method)
        if function is None:
            continue
        is_own = texts.qualname_of(function).startswith(f"{value.__qualname__}.")
        if attribute in said:
            is_right = not (is_as_written or is_own) or needed.is_said(function, said[attribute])
        else:
            is_right = not (is_as_written and is_plain_body) or attribute.startswith("_")
        if not is_right:
            what = function.__qualname__
            line = f" of line {function.__code__.co_firstlineno}"
            return attribute, what + line * (what == f"{name}.{attribute}")
    return "", ""


def _function_of(method: Any) -> types.FunctionType | None:
    """The function of a method, also of a static one, of a class's own and of a property."""
    for part in ("__func__", "fget"):
        method = getattr(method, part, method)
    return method if isinstance(method, types.FunctionType) else None


def import_of(name: str, value: Any, namespace: dict[str, Any]) -> str:
    """The statement that imports a module, or a member of one, under a name of a namespace; "" for
    other things, for those of that namespace alone, of the program's own module, and of captured
    modules, whose names mean nothing in another process.
    """
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != "__main__" else ""
    origin, own = (getattr(value, a, None) for a in ("__module__", "__name__"))
    if not isinstance(origin, str) or not isinstance(own, str) or origin == "__main__":
        return ""
    if origin.startswith(CAPTURED):
        return ""
    places = list(itertools.accumulate(origin.split("."), "{}.{}".format))
    for place in places:  # horn.Neuron rather than horn.neuron.Neuron
        module = sys.modules.get(place)
        if getattr(module, own, None) is value and vars(module) is not namespace:
            return f"from {place} import {own} as {name}"
    return ""


def is_of_run_file(name: str, value: Any, namespace: dict[str, Any]) -> bool:
    """Whether a function or class of a namespace came from a file that was run but is no module, as
    by ``%run``, which leaves there what the file has under the same names.
    """
    code = texts.code_of(value)
    if code is None or not texts.is_file(code.co_filename):
        return False
    origin = texts.namespace_of(value)
    is_put = origin is not namespace and origin.get(name) is value
    return is_put and not import_of(name, value, namespace)


def numbers_of(thing: Any, node: ast.AST, inner: bool = False) -> dict[str, Any]:
    """The numbers that a definition found when it ran, which it may not find again: defaults of
    arguments, as "slope", of methods "forward.slope", the arguments of a class's Parameters, States
    and Weights, "gain.initial" and "gain.0"; inner : also a class's own attributes.
    """
    found: dict[str, Any] = {}
    if isinstance(node, ast.ClassDef) and isinstance(thing, type):
        for name, value in vars(thing).items():
            methods = [n for n in node.body if isinstance(n, DEFINITIONS) and n.name == name]
            numbers = numbers_of(getattr(value, "__func__", value), methods[-1]) if methods else {}
            if type(value).__module__.startswith("horn."):
                numbers = _given(value)
            found |= {f"{name}.{argument}": number for argument, number in numbers.items()}
            if inner and isinstance(value, Scalar) and not name.startswith("__"):
                found[name] = value
        return found
    if not isinstance(thing, types.FunctionType):
        return {}
    code, values = thing.__code__, thing.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    found = {**dict(zip(names, values, strict=True)), **(thing.__kwdefaults__ or {})}
    return {name: value for name, value in found.items() if isinstance(value, Scalar)}


def _given(thing: Any) -> dict[str, Any]:
    """The numbers among the arguments of an object of horn, which keeps them under their names: by
    name and by place.
    """
    names = list(inspect.signature(type(thing)).parameters)
    values = [getattr(thing, name, None) for name in names]
    known = [(k, v) for k, v in enumerate(values) if isinstance(v, Scalar) and v is not None]
    return {str(k): v for k, v in known} | {names[k]: v for k, v in known}
