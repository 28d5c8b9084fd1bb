"""The kind of a neuron class: whether it is a weighted sum, whether it has a local rule, whether
its backward pushes.

The answers are about the class, not about one sample, so every path of the method is walked: it is
run on three made-up messages again and again, each time with one more comparison turned the other
way. The neuron's prints happen on these walks too; breakpoint() does nothing. A class whose
answers are not needed is not walked.

Weighted sum (note 0001, point 4): on every path the value fed forward, the values compared before
and the States that a sequence carries on depend on ``m.input`` and ``m.weight`` through
sum(m.input * m.weight) over all messages, or all of one input, alone, each product taken once. A
path that reads neither is one too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from horn.autodiff.tape import Traced, below
from horn.errors import HornError
from horn.interpreter.calls import Call, DeltaByWeight, Message
from horn.interpreter.paths import Path, paths
from horn.neuron import WEIGHT

PROBES = 3
_WALKING = threading.RLock()  # Python has one breakpointhook for all threads

FREE, FULL, BAD = "free", "full", "bad"


def walk(make: Callable[[], Call]) -> Iterator[Call]:
    """Run a method along its paths. The first run takes the comparisons as they are, and its errors
    count; the others turn comparisons around, perhaps beyond the method's assumptions, so that an
    error there means nothing."""
    for number, path in enumerate(paths()):
        call = make()
        listen = call.compared

        def turn(
            outcome: bool,
            operands: tuple[Any, ...],
            path: Path = path,
            listen: Callable[..., bool] = listen,
        ) -> bool:
            listen(outcome, operands)
            return path.turned(outcome)

        call.compared = turn  # type: ignore[method-assign]
        try:
            with without_breakpoints():
                call.run()
        except HornError:
            if number == 0:
                raise
        except Exception:
            pass  # as on a path that no real number takes; else the real run raises it
        else:
            yield call


@contextmanager
def without_breakpoints() -> Iterator[None]:
    with _WALKING:
        hook, sys.breakpointhook = sys.breakpointhook, lambda *a, **k: None
        try:
            yield
        finally:
            sys.breakpointhook = hook


def probes(
    kind: str,
    weights: Iterable[str] = (WEIGHT,),
    traces: tuple[str, ...] = (),
    inputs: Sequence[str] = (),
) -> list[Message]:
    """Artificial messages, distinct on the tape by number: some of each input, and without."""
    fields = {"forward": ("input",), "backward": ("delta", "gradient")}[kind]
    found, names = [], tuple(weights)
    groups = [group for group in (*inputs, "") for _ in range(PROBES)]
    for i, group in enumerate(groups):
        values: dict[str, Any] = {
            name: Traced(0.25 + 0.5 * i + 0.25 * k, name, (i,), variable=True, varies=True)
            for k, name in enumerate(fields)
        }
        for k, name in enumerate(names):
            start = 0.375 + 0.5 * i + 0.0625 * k
            values[name] = Traced(start, "weight", (i, name), variable=True, varies=True)
        if kind == "backward" and len(names) > 1:
            values["delta"] = DeltaByWeight(dict.fromkeys(names, values["delta"]))
        if kind == "forward":
            values["index"] = Traced(i, "index")
        values["previous_update"] = Traced(0.0, "previous_update", (i,))
        values |= {name: Traced(0.5, "trace", (i, name)) for name in traces}
        found.append(
            Message(kind, values, (0, 0, 0, i), weights=names, traces=traces, of_input=group)
        )
    return found


def is_weighted_sum(calls: Sequence[Call]) -> bool:
    """Whether every path uses messages through the one sum alone."""
    return not any(
        BAD
        in kinds(
            [message._of_input for message in call.items],
            call.fed, *call.conditions, *call.kept.values(),
        )
        for call in calls
    )  # fmt: skip


def kinds(groups: Sequence[str], *roots: Any) -> list[str]:
    """The dependence of each root on messages: FREE, FULL (a function of weighted sums of all
    messages, or of all of some inputs), or BAD. groups : the input of each message.
    """
    table: dict[int, Any] = {}
    for node in reversed(below(*roots)):
        table[node.serial] = _kind(node, table, groups)
    found = [table[root.serial] if isinstance(root, Traced) else FREE for root in roots]
    return [each if each == FREE or _settled(each, groups) == FULL else BAD for each in found]


def _settled(kind: Any, groups: Sequence[str]) -> Any:
    """The kind of a finished sum: FULL if it has all messages, or all of some inputs."""
    if kind[0] not in ("product", "sum"):
        return kind
    names = {groups[i] for i in kind[1]}
    meant = len(groups) if "" in names else sum(group in names for group in groups)
    return FULL if len(kind[1]) == meant else kind


def _kind(node: Traced, kinds: dict[int, Any], groups: Sequence[str]) -> Any:
    """FREE, FULL, BAD, ("input", i), ("weight", i, name), ("product", {i}, name) or ("sum", {some
    of the messages}, name), for one weight."""
    if node.op in ("input", "weight"):
        return node.op, *node.args
    if node.op in ("previous_update", "synapse", "message_draw", "index", "trace"):
        return BAD
    args: list[Any] = [kinds[a.serial] if isinstance(a, Traced) else FREE for a in node.args]
    if all(a is FREE for a in args):
        return FREE
    if all(a == FREE or _settled(a, groups) == FULL for a in args):
        return FULL
    if node.op in ("mul", "add"):
        neutral = 1.0 if node.op == "mul" else 0.0
        plain = [i for i, a in enumerate(node.args) if not isinstance(a, Traced) and a == neutral]
        if plain:
            return args[1 - plain[0]]
        left, right = args
        if node.op == "mul" and {left[0], right[0]} == {"input", "weight"} and left[1] == right[1]:
            name = (left if left[0] == "weight" else right)[2]
            return "product", frozenset([left[1]]), name
        if node.op == "add":
            # A sum that runs over the messages takes one bare product at a time, and may start
            # anywhere.
            for a, b in ((left, right), (right, left)):
                if a[0] != "product":
                    continue
                if b[0] in ("product", "sum") and a[2] == b[2] and not a[1] & b[1]:
                    return "sum", a[1] | b[1], a[2]
                if _settled(b, groups) in (FREE, FULL):
                    return "sum", a[1], a[2]
    return BAD
