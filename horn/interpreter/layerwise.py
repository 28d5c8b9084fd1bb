"""Interlayers and losses: functions of one neuron that may use statistics of the whole layer.

The function runs for each neuron. At a question to the layer, ``output.sum()``, the run ends; when
all neurons have asked, the answer is known, and they run again from the start, that far and on. So
``if`` is about one neuron, as in ``forward``, and statistics are the same for all. All neurons must
ask the same, in the same order: a question of only some of them has no answer.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Sequence
from typing import Any, cast

from horn.autodiff import user_text
from horn.autodiff.tape import (
    Nobody,
    Traced,
    answering,
    below,
    extreme,
    is_number,
    listening,
    make,
    observing,
)
from horn.interpreter.paths import Path, paths

PARTLY = (
    "is of the whole layer, but stands where only some of its neurons come: compute it before the "
    "if"
)


_FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: sum(values, 0.0), "prod": python_math.prod,
    "max": lambda values: extreme(max, values), "min": lambda values: extreme(min, values),
}  # fmt: skip


class _Truth(Traced):
    """The outcome of a comparison for one neuron: a number of it, with arithmetic and with the
    statistics of the layer, as in ``(output > 0).mean()``. To ask whether it is true is no
    comparison.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.value != 0.0


def _truth(outcome: bool, varies: bool) -> bool:
    return cast(bool, _Truth(float(outcome), varies=varies))


def _varies(*values: Any) -> bool:
    """Whether any of the values may differ between the neurons."""
    return any(isinstance(x, Traced) and x.varies for x in values)


class _LayerAsked(BaseException):
    """Ends the run of one neuron at a question to the layer."""

    def __init__(self, word: str, value: Any) -> None:
        self.word, self.value = word, value


class _Layer:
    """The questions of a layer's neurons so far, and the answers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.answers: list[tuple[str, Any]] = []
        self.turn = 0
        self.is_partly = False  # the neurons ask differently: the next question is an error

    def ask(self, word: str, value: Traced) -> Any:
        if word == "len":
            return range(self.size)
        if self.turn < len(self.answers) and self.answers[self.turn][0] == word:
            self.turn += 1
            return self.answers[self.turn - 1][1]
        if self.is_partly or self.turn < len(self.answers):
            raise user_text.error(f"{word} {PARTLY}")
        raise _LayerAsked(word, value)

    def hear(self, f: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run f for every neuron, to its end or to its question."""
        found: list[Any] = []
        with user_text.as_compile_errors(function=f):
            for row in rows:
                self.turn = 0
                try:
                    found.append(f(*row))
                except _LayerAsked as asked:
                    found.append(asked)
        return found


def run(f: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], bool]:
    """The results of f for each neuron's numbers, and whether they are one number of the whole
    layer.

    Numbers of single neurons have ``varies``, those of the layer do not.
    """
    layer, compared = _Layer(len(rows)), False

    def compare(outcome: bool, operands: tuple[Any, ...]) -> bool:
        nonlocal compared
        compared = compared or _varies(*operands)
        return _truth(outcome, _varies(*operands))

    with answering(layer.ask), listening(compare):
        while True:
            found = layer.hear(f, rows)
            asked = [each for each in found if isinstance(each, _LayerAsked)]
            if not asked:
                if _varies(*found):
                    return found, False
                return found, not compared or _is_same_on_all_paths(f, rows[0], layer)
            if len(asked) < len(found) or len({each.word for each in asked}) > 1:
                layer.is_partly = True
                continue
            with listening(lambda outcome, operands: outcome):
                answer = _answer(asked[0].word, [each.value for each in asked])
            layer.answers.append((asked[0].word, answer))


def _is_same_on_all_paths(f: Callable[..., Any], row: tuple[Any, ...], layer: _Layer) -> bool:
    """Whether a neuron makes the same number of the layer's answers, however its own comparisons
    come out: ``(output * (target > 0)).sum()`` is one number of the layer; ``a if output > 0 else
    b`` is a number of each neuron, even where ``a`` and ``b`` are of the layer.
    """
    first = Traced(0.0).serial
    forms: dict[Any, int] = {}  # numbers made alike have one number here

    def form(value: Any) -> int:
        made: dict[int, int] = {}
        for node in reversed(below(value)):
            args = [made[a.serial] if isinstance(a, Traced) else known(a) for a in node.args]
            key: Any = node.serial  # made before, as the answers
            if node.serial > first:
                key = (node.op, *args) if args else repr(node.value)
            made[node.serial] = forms.setdefault(key, len(forms))
        return made[value.serial] if isinstance(value, Traced) else known(value)

    def known(value: Any) -> int:
        return forms.setdefault(repr(float(value)), len(forms))

    found = [value for value in _on_all_paths(f, row, layer) if is_number(value)]
    return not _varies(*found) and len(set(map(form, found))) == 1


def _on_all_paths(f: Callable[..., Any], row: tuple[Any, ...], layer: _Layer) -> list[Any]:
    """The results of f for a neuron on its path, and with each of its comparisons turned around."""
    found: list[Any] = []
    for path in paths():

        def turn(outcome: bool, operands: tuple[Any, ...], path: Path = path) -> bool:
            varies = _varies(*operands)
            return _truth(path.turned(outcome) if varies else outcome, varies)

        layer.turn = 0
        try:
            with listening(turn), observing(Nobody()):
                found.append(f(*row))
        except (_LayerAsked, Exception):
            found.append(None)  # a path that no real number takes; else the real run has raised it
    return found


def _answer(word: str, values: list[Any]) -> Any:
    if word == "iter":
        return [_shared(v) for v in values]
    if word == "mean":
        return _shared(sum(values, 0.0) / len(values))
    return _shared(_FOLDS[word](values))


def _shared(value: Any) -> Any:
    """The number, marked as one of the whole layer."""
    found = make("add", value, 0.0)
    found.varies = False
    return found
