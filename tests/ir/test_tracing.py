"""Formulas in Python: each way through their conditions, merged by selects."""

import math

import numpy as np
import pytest

import horn
from horn.errors import CompileError
from horn.ir import Op, is_const, load, make, select, walk
from horn.ir.tracing import MOST_WAYS, trace
from tests.language.values import evaluate

X, Y = load("x", "o"), load("y", "o")
NUMBERS = (-math.inf, -2.0, -0.0, 0.0, 1.0, 3.0, math.nan)


def helper(a, b):
    if a == b:
        return 10.0
    elif not (a < 0.0 or b <= 1.0):
        return a % 2
    return b


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b: max(a, b),
        lambda a, b: min(a, 1.0, b),
        lambda a, b: a if a else b,
        lambda a, b: a and b,
        lambda a, b: a or 5.0,
        lambda a, b: a if 0.0 <= a <= 1.0 else -b,
        lambda a, b: a if a != 1 and np.float64(0.5) < b else abs(a) ** 2 // 3,
        helper,
    ],
)
def test_a_formula_of_nodes_is_the_formula_of_numbers(formula):
    found = trace(formula, X, Y)
    for x in NUMBERS:
        for y in NUMBERS:
            got = evaluate(found, {"x": np.array([x]), "y": np.array([y])})
            np.testing.assert_array_equal(np.ravel(got)[0], float(formula(x, y)))


def test_a_formula_without_conditions_is_its_nodes():
    slots = {"v": Y}
    new, memory = trace(lambda w, s, none: (w - 0.5 * s["v"], {"v": 2.0}), X, slots, None)
    assert new is X - 0.5 * Y and is_const(memory["v"], 2.0)
    assert trace(lambda c: 2.0 if c < 1.0 else 3.0, horn.ir.const(0.5)).value == 2.0


def test_the_same_condition_is_asked_once():
    asked = []

    def formula(x, y):
        asked.append(0)
        return (x if x > 0.0 else y), {"a": 1.0 if x > 0.0 else 2.0}

    new, slots = trace(formula, X, Y)
    above = make(Op.GT, X, horn.ir.const(0.0))
    assert new is select(above, X, Y) and slots["a"].op is Op.SELECT and len(asked) == 2
    assert sum(n.op is Op.GT for n in walk(new, slots["a"])) == 1


def endless(x, y):
    while abs(x) > 1.0:
        x = x * 0.5
    return x


def of_all_powers(x, y):
    for k in range(30):
        y = y + 1.0 if x > k else y * 2.0
    return y


def of_numpy(x, y):
    return np.sign(x)


def of_text(x, y):
    return "no number" if x is y else "none"


def of_two(x, y):
    return (x, y) if x > 0.0 else x


@pytest.mark.parametrize(
    "formula, said, line",
    [
        (endless, rf"this has more than {MOST_WAYS} ways through its conditions; choose", 1),
        (of_all_powers, r"more than \d+ ways .* horn\.math\.where\(c, a, b\)$", 0),
        (of_numpy, r"; write it with \+ - .*, if, max, min, abs and horn\.math$", 1),
        (of_text, "a number is needed here, got 'none'$", 0),
        (of_two, "this returns other values where a condition holds than where it does not$", 0),
    ],
)
def test_what_cannot_be_traced_is_told_at_its_line(formula, said, line):
    with pytest.raises(CompileError, match=said) as caught:
        trace(formula, X, Y)
    error, first = caught.value, formula.__code__.co_firstlineno
    assert (error.file, error.line, error.where) == (__file__, first + line, formula.__name__)
    assert error.text.strip()
