"""Whether a neuron that fed the constant 0 forward sits the batch out (note 0001, point 8).

Of the comparisons before ``feedforward`` those count that choose whether it is the 0: one that
chooses another number, or a number of a path that was not taken, does not. Which they are is found
by running the method again, along its other paths, up to where it reads its messages or feeds a
number forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horn.autodiff.tape import Nobody, listening, observing
from horn.interpreter.calls import Call, Test
from horn.interpreter.language import printing
from horn.interpreter.neuron_kinds import without_breakpoints
from horn.interpreter.paths import Path, paths


class _Ended(Exception):
    """The end of a run: whether it fed the constant 0 forward without having read its messages."""

    def __init__(self, is_out: bool) -> None:
        self.is_out = is_out


class _Again(Call):
    """A call whose run is of interest up to its end, as above."""

    def feedforward(self, neuron: Any, value: Any) -> None:
        raise _Ended(self.is_constant_0(value))

    @property
    def read(self) -> bool:
        return False

    @read.setter
    def read(self, is_read: bool) -> None:
        if is_read:
            raise _Ended(False)


@dataclass(frozen=True)
class _Run:
    outcomes: Sequence[bool]
    tests: Sequence[Test]
    is_out: bool


def sits_out(call: Call, before: Mapping[str, Any]) -> bool:
    """Whether a neuron that fed the constant 0 forward sits out. before : its attributes when the
    call began; it has those of the call's end again after this.
    """
    own, runs = vars(call.neuron), list[_Run]()
    after = dict(own)
    with printing(lambda neuron: False), without_breakpoints(), observing(Nobody()):
        for path in paths():
            own.clear()
            own.update(before)
            runs.append(_run(call, path))
    own.clear()
    own.update(after)
    for message in call.items:
        vars(message)["_host"] = call
    _, met = _tree(runs, 0)
    return any(test.batch for test in met) and not any(test.varies for test in met)


def _run(call: Call, path: Path) -> _Run:
    again = _Again(call.neuron, call.kind, call.items, call.moment, call.answers)
    vars(call.neuron)["_host"] = again
    is_out = False

    def turn(outcome: bool, operands: tuple[Any, ...]) -> bool:
        again.compared(outcome, operands)
        return path.turned(outcome)

    try:
        with listening(turn):
            again.method(call.neuron, again.messages)
    except _Ended as ended:
        is_out = ended.is_out
    except Exception:
        pass  # as on a path that no real number takes
    return _Run(path.outcomes, again.tests, is_out)


def _tree(runs: Sequence[_Run], depth: int) -> tuple[Any, list[Test]]:
    """How tests choose whether a neuron is out, without those that choose nothing; and the tests on
    the path of the first run. runs : all that agree in their first ``depth`` outcomes.
    """
    first = runs[0]
    if len(first.outcomes) <= depth:
        return first.is_out, []
    sides = dict[bool, Any]()
    met = list[Test]()
    for outcome in (True, False):
        some = [r for r in runs if len(r.outcomes) > depth and r.outcomes[depth] is outcome]
        sides[outcome], on_it = _tree(some, depth + 1) if some else (None, [])
        if outcome is first.outcomes[depth]:
            met = on_it
    if sides[True] == sides[False]:
        return sides[True], met
    test = first.tests[depth]
    return (test, sides[True], sides[False]), [test, *met]
