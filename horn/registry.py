"""Backends, strategies and transports by name, without a list of them.

Each file of the kind's package is one: its name (with - for _) is the user's, its last line the
class, ``STRATEGY = Downpour``, or "module:Class". Subpackages and files with an underscore hold
shared code. A class of the user's own goes by ``module:Class``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from typing import Any

from horn.errors import JobError


def names(package: str) -> list[str]:
    """The names of a kind, without importing its package: if it is there, of its own path."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    module = sys.modules.get(package)
    found = pkgutil.iter_modules(
        spec.submodule_search_locations if module is None else module.__path__
    )
    return sorted(m.name.replace("_", "-") for m in found if not m.ispkg and m.name[0] != "_")


def load(package: str, kind: str, name: str) -> Any:
    """The kind's constant in the file of this name, or the user's ``module:Class``. Raises
    JobError, which lists the names.
    """
    known = names(package)
    if name in known:
        file = importlib.import_module(f"{package}.{name.replace('-', '_')}")
        found = getattr(file, kind.upper())
        if not isinstance(found, str):
            return found
        name = found
    return of_module(kind, name, known)


def of_module(kind: str, name: str, known: list[str]) -> Any:
    """The user's ``module:Class``. known : the kind's names, for the message."""
    module, colon, attribute = str(name).partition(":")
    if not colon:
        near = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {near[0]}? Known" if near else "known"
        raise JobError(
            f"no {kind} is called {name!r}; {hint}: {', '.join(known)}, or module:Class for "
            f"one of yours"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise JobError(f"{kind} {name}: {error}") from error
