"""Interlayers and losses: functions of one neuron of a layer that may ask something of all neurons.

The function is run for each neuron. Where it asks, ``output.sum()``, its run ends; when all neurons
have asked the answer is there, and they run again from the start, that far and on. So ``if`` is
about one neuron, as in ``forward``, and what is of the layer is the same for all. All neurons ask
the same, in the same order: what only some of them ask has no answer.
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
    """What a comparison says of one neuron; the layer can be asked of it, as in
    ``(output > 0).mean()``.
    """

    sum, mean, prod, max, min = map(_asks, OF_LAYER)


class _Asked(BaseException):
    """The run of one neuron ends: it asks the layer."""

    def __init__(self, word: str, value: Any) -> None:
        self.word, self.value = word, value


class _Layer:
    """What the neurons of a layer have asked so far, and the answers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.answers: list[tuple[str, Any]] = []
        self.turn = 0
        self.is_partly = False  # not all ask the same: whoever asks now is told

    def ask(self, word: str, value: Traced) -> Any:
        if word == "len":
            return range(self.size)
        if self.turn < len(self.answers) and self.answers[self.turn][0] == word:
            self.turn += 1
            return self.answers[self.turn - 1][1]
        if self.is_partly or self.turn < len(self.answers):
            raise user_text.error(f"{word} {PARTLY}")
        raise _Asked(word, value)

    def hear(self, f: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Every neuron's run, to its end or to where it asks."""
        found: list[Any] = []
        for row in rows:
            self.turn = 0
            try:
                found.append(f(*row))
            except _Asked as asked:
                found.append(asked)
        return found


def run(f: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], bool]:
    """What f makes of each neuron's numbers, and whether that is one number of the whole layer.

    What is a neuron's own ``varies``, what is of the layer does not.
    """
    layer, compared = _Layer(len(rows)), False

    def compare(outcome: bool, operands: tuple[Any, ...]) -> bool:
        nonlocal compared
        compared = compared or any(isinstance(x, Traced) and x.varies for x in operands)
        return cast(bool, _Truth(outcome))

    with answering(layer.ask), listening(compare):
        while True:
            found = layer.hear(f, rows)
            asked = [each for each in found if isinstance(each, _Asked)]
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
    """The number, as one of the whole layer."""
    found = make("add", value, 0.0)
    found.varies = False
    return found
