"""The formulas of an optimizer: traced, and what is wrong in them before a backend has them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from horn.errors import CompileError
from horn.ir.nodes import Node, Scalar, load, walk
from horn.ir.tracing import OF_ONE, Wrong, fail, is_same, is_wrong, trace
from horn.optimizers import Optimizer, Slots, Updated

_W, _G = load("w", "oi"), load("g", "oi")


def updated(
    optimizer: Optimizer, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any
) -> Updated:
    """What ``update`` returns, with every slot. Raises Wrong."""
    kind, known = type(optimizer).__name__, optimizer.slots
    try:
        found = optimizer.update(w, g, dict(slots), lr, t)
    except KeyError as error:
        wrong = _no_slot(f"{kind} asks for {error}", kind, known, error.args[0])
        raise wrong.with_traceback(error.__traceback__) from None  # the user's line
    is_pair = isinstance(found, (tuple, list)) and len(found) == 2
    if not is_pair or not isinstance(found[1], Mapping):
        what = "a number" if hasattr(found, "__add__") and not is_pair else repr(found)
        raise Wrong(
            f"{kind}.update returns the new weight and the new slots, as  "
            f"return w - lr * g, {{}} ; got {what}"
        )
    new, memory = found
    for name in memory:
        if name not in known:
            raise _no_slot(f"{kind}.update returns {name!r}", kind, known, name)
    return new, {**slots, **memory}


def _no_slot(said: str, kind: str, known: tuple[str, ...], name: Any) -> Wrong:
    has = f"the slots of {kind} are {', '.join(known)}" if known else f"{kind} has no slots"
    return Wrong(f"{said}, but {has}; write in the class:  slots = {(*known, name)!r}")


def trace_update(
    optimizer: Optimizer, w: Node, g: Node, slots: Mapping[str, Node]
) -> tuple[Node, dict[str, Node]]:
    """The new weight and all slots after an update, as nodes. Raises CompileError."""
    formula = functools.wraps(optimizer.update)(functools.partial(updated, optimizer))
    found: tuple[Node, Slots] = trace(
        formula, w, g, slots, Scalar("learning_rate"), Scalar("updates")
    )
    return found


def check(optimizer: Optimizer, is_compiled: bool) -> None:
    """Check the formulas of an optimizer, each asked twice. is_compiled : else those that are not
    in the language are left to the interpreter.

    Raises
    ------
    CompileError : one takes or returns something else than horn's, is of several weights together,
    has a memory beside the slots, or differs from time to time; at its line.
    """
    slots = optimizer.slots
    kind = type(optimizer).__name__
    if isinstance(slots, str):
        raise CompileError(f"{kind}.slots is a tuple of names, got {slots!r}; write ({slots!r},)")
    before = {name: load(f"w/{name}", "oi") for name in slots}
    rate = Scalar("learning_rate")
    asked: dict[str, Callable[[], Any]] = {
        "of_derived": lambda: trace(optimizer.of_derived, _G, rate),
        "prepared": lambda: tuple(trace(optimizer.prepared, _G, w) for w in (_W, None)),
        "update": lambda: trace_update(optimizer, _W, _G, before),
    }
    if optimizer.clip_norm is not None:
        asked["clip_factor"] = lambda: trace(optimizer.clip_factor, load("norm", ""))
    settings = dict(vars(optimizer))
    try:
        for name, ask in asked.items():
            formula = getattr(optimizer, name)
            _check_arguments(kind, name, formula)
            try:
                first = ask()
                kept = dict(vars(optimizer))
                again = ask()
            except CompileError as error:
                if not is_wrong(error) and not _is_of_one(optimizer, name):
                    cause = Wrong(OF_ONE).with_traceback((error.__cause__ or error).__traceback__)
                    fail(formula, cause, OF_ONE)
                if is_compiled or is_wrong(error):
                    raise
                continue
            now = vars(optimizer)
            changed = [f"self.{n}" for n in now if n not in kept or not _is_kept(kept[n], now[n])]
            if changed or not is_same(first, again):
                what = f"changes {', '.join(changed)}" if changed else "is another each time"
                problem = (
                    f"{kind}.{name} {what}: it is read once for the whole run, and may depend on "
                    "its arguments and the settings alone; what it remembers goes into slots, t "
                    "counts the updates, and noise is a neuron's (self.normal())"
                )
                fail(formula, Wrong(problem), problem)
            if name == "update":
                _check_returned(kind, formula, first, before)
    except BaseException:
        vars(optimizer).clear()
        vars(optimizer).update(settings)
        raise


def _is_of_one(optimizer: Optimizer, name: str) -> bool:
    """Whether a formula that is not in the language makes the same of three numbers as of the last
    of them alone; True where it takes no arrays.
    """
    numbers = np.array([[0.5, -1.5, 0.25], [0.75, 0.125, -0.625]])

    def made(w: Any, g: Any) -> tuple[Any, ...]:
        if name == "update":
            before = {slot: 0.5 * abs(w) for slot in optimizer.slots}
            new, memory = updated(optimizer, w, g, before, 0.1, 1)
            return (new, *memory.values())
        if name == "prepared":
            return (optimizer.prepared(g, w),)
        return (getattr(optimizer, name)(g, *(() if name == "clip_factor" else (0.1,))),)

    try:
        with np.errstate(all="ignore"):
            pairs = zip(made(*numbers), made(*numbers[:, 2:]), strict=True)
        return all(np.allclose(np.ravel(x)[-1], y, equal_nan=True) for x, y in pairs)
    except Exception:  # the interpreter tells it, with numbers of the run
        return True


def _check_arguments(kind: str, name: str, formula: Callable[..., Any]) -> None:
    """Raise CompileError for a method that does not take what horn's takes."""
    wanted = list(inspect.signature(getattr(Optimizer, name)).parameters.values())
    try:
        inspect.signature(formula).bind(*wanted[1:])
    except TypeError as error:
        names = ", ".join(each.name for each in wanted)
        problem = f"{kind}.{name}: {error}; write  def {name}({names}):"
        fail(formula, Wrong(problem), problem)


def _is_kept(before: Any, now: Any) -> bool:
    """Whether an attribute is as before: itself, or an equal number or text."""
    return before is now or (isinstance(now, (int, float, str)) and repr(before) == repr(now))


def _check_returned(
    kind: str, formula: Callable[..., Any], found: Updated, before: Mapping[str, Node]
) -> None:
    """Raise CompileError for a slot that is read and never written: it would stay 0."""
    new, memory = found
    for name, slot in before.items():
        others = [new, *(value for other, value in memory.items() if other != name)]
        if memory[name] is slot and any(node is slot for node in walk(*others)):
            problem = (
                f"{kind}.update reads the slot {name!r}, and does not return it, so that it stays "
                f"0; write  return w, {{{name!r}: ...}}"
            )
            fail(formula, Wrong(problem), problem)
