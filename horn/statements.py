"""Statements of a module as syntax trees: which there are, what they bind and read, and their text.

Nothing here knows the values that names have. ``horn.module_source`` finds those statements that
made what is there now.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign)
AROUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)
DEFINED = (*DEFINITIONS, *IMPORTS)
_DECORATORS = ("staticmethod", "classmethod", "property")  # they leave the function what it is
_MAIN = ("__name__ == '__main__'", "'__main__' == __name__")


def statements_of(tree: ast.Module, whole: Iterable[int] = ()) -> Iterator[ast.stmt]:
    """The statements of a module, and one by one those under ``if __name__ == "__main__":``, unless
    that line is among ``whole``: a needed definition there does not need its neighbours.
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


def kept_of(
    statements: Sequence[ast.stmt], lines: Collection[int], places: Collection[tuple[int, ...]]
) -> Iterator[ast.stmt]:
    """Of the statements of a module those on some lines, and those, also inside of others, that
    begin at some places, as ``NeededModule.run`` writes them.
    """
    whole = {*statements}
    for statement in flat(statements):
        if place_of(statement) in places or (statement in whole and statement.lineno in lines):
            yield statement


def flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those inside of them, but not those of functions and classes."""
    for statement in statements:
        yield statement
        if not isinstance(statement, DEFINED):
            yield from flat(_inner_statements(statement))


def _inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(statement):
        inner = child.body if isinstance(child, (ast.ExceptHandler, ast.match_case)) else [child]
        yield from (one for one in inner if isinstance(one, ast.stmt))


def place_of(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def first_line(statement: Any) -> int:
    """The line where a statement begins, with its decorators."""
    above = getattr(statement, "decorator_list", [])
    return min([int(statement.lineno), *(int(d.lineno) for d in above)])


def ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def names_read(node: ast.AST) -> set[str]:
    """The names that a statement or lambda reads from its module: without parameters, variables of
    functions and of comprehensions.
    """
    import symtable

    found: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "", "exec")]
    for table in tables:
        tables += table.get_children()
        of_function = table.get_type() == "function"
        for symbol in table.get_symbols():
            # A class may read a name of the module before it assigns it.
            if symbol.is_global() if of_function else symbol.is_referenced():
                found.add(symbol.get_name())
    return found


def names_in(node: ast.AST) -> set[str]:
    """The names in an expression."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def bound_by(statement: ast.stmt, kept: Collection[tuple[str, str]] = ()) -> set[str]:
    """The module-level names that a statement sets or changes, except for kept attributes."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    if isinstance(statement, IMPORTS):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, ASSIGNMENTS):
        changed = [target for target in targets_of(statement) if attribute_of(target) not in kept]
        return set[str]().union(*map(names_in, changed))
    return set[str]().union(*(bound_by(inner, kept) for inner in _inner_statements(statement)))


def targets_of(statement: ast.stmt) -> list[ast.expr]:
    """The targets of an assignment."""
    if isinstance(statement, ast.Assign):
        several = (ast.Tuple, ast.List)
        parts = (t.elts if isinstance(t, several) else [t] for t in statement.targets)
        return [*itertools.chain.from_iterable(parts)]
    return [statement.target] if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) else []


def attribute_of(target: ast.expr) -> tuple[str, str] | None:
    """(name, attribute) of a target that is an attribute of a name, or a place in one."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.value.id, target.attr
    return None


def attributes_set(statement: ast.stmt) -> set[tuple[str, str]]:
    if isinstance(statement, DEFINED):
        return set()
    found = {a for target in targets_of(statement) if (a := attribute_of(target)) is not None}
    return found.union(*map(attributes_set, _inner_statements(statement)))


def called_by(statement: ast.stmt) -> set[str]:
    """The names whose methods a statement calls for their effect: ``table.append(1)``."""
    if isinstance(statement, DEFINED):
        return set()
    if isinstance(statement, ast.Expr):
        call = statement.value
        while isinstance(call, (ast.Call, ast.Attribute, ast.Subscript)):
            call = call.func if isinstance(call, ast.Call) else call.value
        return {call.id} if isinstance(call, ast.Name) else set()
    return set[str]().union(*map(called_by, _inner_statements(statement)))


def _pairs(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """(target, value) of an assignment; None for a value that no single expression says."""
    if not isinstance(statement, ast.Assign):
        value = statement.value if isinstance(statement, ast.AnnAssign) else None
        yield from ((target, value) for target in targets_of(statement))
        return
    several = (ast.Tuple, ast.List)
    for target in statement.targets:
        if not isinstance(target, several):
            yield target, statement.value
            continue
        values = statement.value.elts if isinstance(statement.value, several) else ()
        same = len(values) == len(target.elts)
        yield from zip(target.elts, values if same else [None] * len(target.elts), strict=True)


def defines(statement: ast.stmt, name: str, alias: bool = False) -> bool:
    """Whether what a statement makes is what the name gets, and not another name's. alias :
    whether it gives that name, and no other, a value, which may be another's.
    """
    targets = targets_of(statement)
    if alias:
        return [t.id if isinstance(t, ast.Name) else "" for t in targets] == [name]
    if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
        return True
    return isinstance(getattr(statement, "value", None), ast.Lambda) and len(targets) == 1


def is_whole(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name to a new value, independent of its old one."""
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, DEFINED)
    changed = (
        each for target in statement.targets for each in ast.walk(target)
        if isinstance(each, (ast.Attribute, ast.Subscript))
    )  # fmt: skip
    return not any(name in names_in(each) for each in (statement.value, *changed))


def replaces(statement: ast.stmt, name: str) -> bool:
    """Whether a statement, or one inside, may bind a name to a new value."""
    return any(is_whole(s, name) and name in bound_by(s) for s in flat([statement]))


def attributes_said(
    name: str, made: ast.ClassDef, later: Iterable[ast.stmt]
) -> dict[str, ast.AST | None]:
    """What the attributes of a class are by its own text and by later statements: a definition, an
    expression, or None for what only running it would tell.
    """
    found: dict[str, ast.AST | None] = {}

    def bind(statement: ast.stmt, own: Callable[[ast.AST | None], str | None]) -> None:
        """own : of an expression that is an attribute of the class its name, else None."""
        pairs = [(own(target), value) for target, value in _pairs(statement)]
        now = [(target, found.get(own(value) or "", value)) for target, value in pairs]
        found.update((target, value) for target, value in now if target is not None)

    for part in made.body:
        if isinstance(part, ASSIGNMENTS):
            bind(part, lambda each: each.id if isinstance(each, ast.Name) else None)
        elif isinstance(part, DEFINITIONS):
            is_plain_one = all(ast.unparse(d) in _DECORATORS for d in part.decorator_list)
            found[part.name] = part if is_plain_one else None
        else:
            found |= dict.fromkeys(bound_by(part))
    for part in later:
        if isinstance(part, ASSIGNMENTS):
            bind(
                part,
                lambda each: (
                    each.attr
                    if isinstance(each, ast.Attribute) and attribute_of(each) == (name, each.attr)
                    else None
                ),
            )
        else:
            found |= {attribute: None for of, attribute in attributes_set(part) if of == name}
    return found


class _Bare(ast.NodeTransformer):
    """Removes docstrings."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node


def without_docstrings(node: ast.AST) -> ast.AST:
    return _Bare().visit(copy.deepcopy(node))


def with_numbers(node: Any, numbers: Mapping[str, Any]) -> Any:
    """A definition with the numbers that it found (``module_source.numbers_of``) for names."""
    if not numbers or not isinstance(node, (*DEFINITIONS, ast.Lambda)):
        return node
    node = copy.deepcopy(node)
    if isinstance(node, ast.ClassDef):
        for k, part in enumerate(node.body):
            if isinstance(part, DEFINITIONS):
                node.body[k] = with_numbers(part, _of(part.name, numbers))
            elif isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value is not None:
                names = [t.id for t in targets_of(part) if isinstance(t, ast.Name)]
                if len(names) == len(targets_of(part)) == 1:
                    part.value = _number(numbers.get(names[0], ...), part.value)
                    _write(part.value, _of(names[0], numbers))
        return node
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    for k, one in enumerate(positional[len(positional) - len(given.defaults) :]):
        given.defaults[k] = _number(numbers.get(one.arg, ...), given.defaults[k])
    for k, (one, value) in enumerate(zip(given.kwonlyargs, given.kw_defaults, strict=True)):
        given.kw_defaults[k] = value and _number(numbers.get(one.arg, ...), value)
    return node


def _of(name: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The entries whose names begin with a name and a point, without this prefix."""
    return {n.removeprefix(f"{name}."): v for n, v in numbers.items() if n.startswith(f"{name}.")}


def _write(call: ast.expr, numbers: Mapping[str, Any]) -> None:
    """Write numbers into the arguments of a call, by name and by place."""
    if isinstance(call, ast.Call) and not any(isinstance(a, ast.Starred) for a in call.args):
        call.args = [_number(numbers.get(str(k), ...), a) for k, a in enumerate(call.args)]
        for keyword in call.keywords:
            keyword.value = _number(numbers.get(keyword.arg or "", ...), keyword.value)


def _number(value: Any, node: ast.expr) -> ast.expr:
    """A constant in place of an expression that reads names."""
    known = value is ... or not names_in(node)
    return node if known else ast.copy_location(ast.Constant(value), node)
