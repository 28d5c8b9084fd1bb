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
from horn.autodiff.tape import OF_LAYER, Traced, answering, extreme, listening, make

PARTLY = (
    "is of the whole layer, but stands where only some of its neurons come: compute it before the "
    "if"
)


_FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: sum(values, 0.0), "prod": python_math.prod,
    "max": lambda values: extreme(max, values), "min": lambda values: extreme(min, values),
}  # fmt: skip


def _asks(word: str) -> Callable[[Any], Any]:
    return lambda truth: getattr(Traced(float(truth), varies=True), word)()


class _Truth(int):
    """The outcome of a comparison for one neuron, with the statistics of the layer, as in
    ``(output > 0).mean()``.
    """

    sum, mean, prod, max, min = map(_asks, OF_LAYER)


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
        compared = compared or any(isinstance(x, Traced) and x.varies for x in operands)
        return cast(bool, _Truth(outcome))

    with answering(layer.ask), listening(compare):
        while True:
            found = layer.hear(f, rows)
            asked = [each for each in found if isinstance(each, _LayerAsked)]
            if not asked:
                varies = any(isinstance(x, Traced) and x.varies for x in found)
                return found, not (compared or varies)
            if len(asked) < len(found) or len({each.word for each in asked}) > 1:
                layer.is_partly = True
                continue
            with listening(lambda outcome, operands: outcome):
                answer = _answer(asked[0].word, [each.value for each in asked])
            layer.answers.append((asked[0].word, answer))


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
