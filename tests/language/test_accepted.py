"""What the neuron language accepts: each is run by the interpreter and by both backends, which must
agree.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import horn
from horn import ir
from horn.errors import CompileError
from horn.language import references
from horn.language.parse import forward as parse_forward
from tests.language.texts import context, forward, module, source
from tests.parity.test_compiled_equals_interpreted import compare

BEFORE = """
SCALE = 0.7

def clipped(v, top=1.5):
    if v > top:
        return top
    elif v < -top:
        return -top
    return v

def pair(v):
    return v, 2.0 * v

def ordered(a, b):
    if a < b:
        return a, b
    return b, a

def maker(k):
    def scaled(v):
        return k * v
    return scaled

triple = maker(3.0)
twice = lambda v: 2.0 * v
"""
ACCEPTED = {
    "if else": """
        if total > 0.0:
            y = total
        else:
            y = 0.1 * total
        self.feedforward(y)
    """,
    "elif and early return": """
        if total > 1.0:
            self.feedforward(1.0)
            return
        elif total > 0.0:
            self.feedforward(total)
            return
        self.feedforward(0.0)
    """,
    "an early return two ifs deep": """
        if total > -1.0:
            if total > 0.5:
                self.feedforward(2.0 * total)
                return
            total = total + 0.25
        self.feedforward(total)
    """,
    "conditional expression": "self.feedforward(total if total > 0.0 else 0.01 * total)",
    "helper function with branches": "self.feedforward(clipped(2.0 * total))",
    "helper with a default given": "self.feedforward(clipped(2.0 * total, 0.4))",
    "helper method": "self.feedforward(self.bent(total))",
    "helper method over messages": "self.feedforward(self.mean(messages) + total)",
    "static method": "self.feedforward(self.halved(total))",
    "closure and module constant": "self.feedforward(SCALE * triple(total))",
    "lambda": "self.feedforward(twice(total))",
    "several values": """
        a, b = pair(total)
        a, b = b, a
        self.feedforward(a - b / 3.0)
    """,
    "one pair of two": """
        low, high = (total, 0.2) if total < 0.2 else (0.2, total)
        self.feedforward(low - high / 3.0)
    """,
    "one pair of two, of constants and numbers": """
        taps = (0.5, -0.25) if not total > 0.1 else self.taps[1:]
        (a, b), c = ((total, 1.0), 2.0) if total > 0.3 else ((0.5, total), -1.0)
        self.feedforward(sum(k * total for k in taps) + a - b * c + len(taps))
    """,
    "a helper that returns one pair or another": """
        low, high = ordered(total, 0.3)
        a, b, c = self.three(total)
        self.feedforward(low - high / 3.0 + a * b - c)
    """,
    "a pair set on both sides of an if": """
        if total > 0.1:
            pair = total, 0.5
        else:
            pair = [0.2, total * total]
        self.feedforward(pair[0] - 2.0 * pair[-1])
    """,
    "slices of constants": """
        y = total
        for tap in self.taps[1:]:
            y = y * tap + sum(self.taps[:2]) + self.taps[::-1][0]
        [a, b] = self.taps[-2:]
        self.feedforward(y + a - b)
    """,
    "enumerate from a number, zip of one length": """
        y = total
        for k, tap in enumerate((0.5, 0.25), 1):
            y = y * tap + k
        for k, tap in enumerate((0.5, 0.25), start=-1):
            y = y * tap + k
        self.feedforward(sum(a * b * y for a, b in zip((1, 2), (3, 4), strict=True)))
    """,
    "class constant": "self.feedforward(self.slope * total)",
    "base class": "Half.forward(self, messages)",
    "text as a constant": """
        if self.mode == "soft" and self.mode != "hard":
            self.feedforward(horn.math.softplus(total))
        else:
            self.feedforward(total)
    """,
    "max by if": """
        best = -9.0
        for m in messages:
            v = m.input * m.weight
            if v > best:
                best = v
        self.feedforward(best)
    """,
    "max by the opposite if": """
        best = -9.0
        for m in messages:
            if not m.input * m.weight <= best:
                best = m.input * m.weight
        self.feedforward(best)
    """,
    "min by if": """
        least = 9.0
        for m in messages:
            if least > m.input * m.weight:
                least = m.input * m.weight
        self.feedforward(least)
    """,
    "max of equal messages": """
        best = -1.0
        for m in messages:
            best = max(best, m.weight * 0.0 * m.input)
        self.feedforward(best + total)
    """,
    "running product and count": """
        p, n = 1.0, 0.0
        for m in messages:
            p *= 1.0 + 0.1 * m.input * m.weight
            n += 1
        self.feedforward(p / n)
    """,
    "running any and all": """
        hot, cold = False, True
        for m in messages:
            hot = hot or m.input > 0.5
            cold = cold and m.input < 2.0
        self.feedforward(total * (2.0 if hot else 1.0) * (3.0 if cold else 1.0))
    """,
    "sum under an if": """
        t = 0.0
        for m in messages:
            if m.input > 0.2:
                t += m.input * m.weight
            else:
                t -= m.weight
        self.feedforward(t)
    """,
    "two loops": """
        mean = sum(m.input for m in messages) / len(messages)
        t = 0.0
        for m in messages:
            t += (m.input - mean) * m.weight
        self.feedforward(t)
    """,
    "generators": """
        high = max(m.input * m.weight for m in messages)
        low = min(m.input * m.weight for m in messages)
        self.feedforward(high - low + sum([m.input for m in messages]))
    """,
    "any and all": """
        a = any(m.input > 1.0 for m in messages)
        b = all(m.input > 0.0 for m in messages if m.weight > 0.0)
        self.feedforward((2.0 if a and not b else 0.5) * total)
    """,
    "sum with a start and a condition": """
        self.feedforward(sum((m.input * m.weight for m in messages if m.input > 0.0), 0.3))
    """,
    "max with a condition and a default": """
        self.feedforward(max((m.input * m.weight for m in messages if m.input > 9.0), default=0.3))
    """,
    "counting by comparison": "self.feedforward(total + sum(m.input > 0.0 for m in messages))",
    "chained comparison": "self.feedforward(total if -0.5 < total <= 0.5 else 0.5)",
    "a condition as a number": "self.feedforward(total * (total > 0.0) + math.exp(total > 0.1))",
    "abs, min and max of numbers": "self.feedforward(min(abs(total), 0.8) + max(total, 0.1, -1.0))",
    "the functions of math": "self.feedforward(math.tanh(total) + math.sqrt(1.0 + total * total))",
    "annotations and docstrings": """
        'a docstring'
        y: float = total
        self.feedforward(y)
    """,
    "output after feedforward": """
        self.feedforward(self.activation(total))
        self.trace = 0.9 * self.trace + 0.1 * self.output
    """,
    "a derivative": "self.feedforward(self.activation.derivative_at(total) * total)",
    "what the neuron may read": """
        self.feedforward(total + 0.1 * self.index + 0.01 * self.layer_index + self.learning_rate)
    """,
    "a Parameter": "self.feedforward(self.gain * total)",
    "feedforward of two": "self.feedforward(total if self.training else 0.5 * total)",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name, tmp_path):
    body = f"""
    slope = 0.3
    taps = (0.3, -0.7, 0.2)
    mode = "soft"
    gain = horn.Parameter(0.8)
    trace = horn.State(0.1)

    def bent(self, v):
        if v > 0.3:
            return math.tanh(v) * self.gain
        return self.slope * v

    def three(self, v):
        if v > 0.6:
            return v, 1.0, self.slope
        elif v > 0.0:
            return 2.0, v, 0.5
        return self.taps

    def mean(self, messages):
        total = 0.0
        for m in messages:
            total += m.input
        return total / len(messages)

    @staticmethod
    def halved(v):
        return v / 2.0

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
{_indented(ACCEPTED[name])}
    """
    half = """
class Half(horn.Neuron):
    def forward(self, messages):
        self.feedforward(0.5 * sum(m.input * m.weight for m in messages))
"""
    made = module(tmp_path, source(body, BEFORE + half))
    net = horn.Network(seed=3)
    net.input(3)
    net.layer(2, neuron=made.N, activation="tanh", init=horn.Normal(0.1, 0.6), bias=0.1)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.1), 3, steps=1)


def _indented(text):
    import textwrap

    return textwrap.indent(textwrap.dedent(text).strip("\n"), "        ")


def test_a_lambda_can_be_an_activation():
    act = horn.Activation("square", lambda z: z * z)

    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    output = parse_forward(context(N, activation=act)).output
    assert output.op.value == "mul" and output.args[0] is output.args[1]


def test_a_branch_on_a_value_inside_an_activation_points_at_where():
    act = horn.Activation("steps", lambda z: 1.0 if z > 0 else 0.0)

    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    with pytest.raises(CompileError, match=r"use horn\.math\.where\(c, a, b\)") as caught:
        parse_forward(context(N, activation=act))
    assert caught.value.file == __file__ and caught.value.where == "<lambda>"
    assert caught.value.text.strip().startswith("act = horn.Activation(")


@pytest.mark.parametrize(
    "given, said",
    [
        (lambda z: z * np.tanh(z), "np.tanh is not in .*; write horn.math.tanh$"),
        (lambda z: math.exp(-z), "math.exp is not in .*; write horn.math.exp$"),
        (lambda z: np.clip(z, 0, 6), r"np.clip is not in .*; write it with \+ - \* / \*\*"),
        (lambda z: max(z, 0.0), "or write a def, whose if, max and min are read$"),
        (lambda z: 1.0 if z == 0.0 else z, "or write a def, whose if, max and min are read$"),
        (lambda z: z if z != 0.0 else 1.0, "or write a def, whose if, max and min are read$"),
        (lambda z: max(z, np.pi), "(?m)^a true/false value is asked for"),  # a constant is no fault
    ],
)
def test_what_a_lambda_takes_from_elsewhere_is_named_at_its_line(given, said):
    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    with pytest.raises(CompileError, match=said) as caught:
        parse_forward(context(N, activation=horn.Activation("mine", given)))
    assert (caught.value.file, caught.value.line) == (__file__, given.__code__.co_firstlineno)


def test_equality_in_a_lambda_is_that_of_numbers():
    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    jump = horn.Activation("jump", lambda z: (z == 0.0) * 2.0 + (1.0 != z) * z)
    output = parse_forward(context(N, activation=jump)).output
    total = next(n for n in ir.walk(output) if n.op is ir.Op.REDUCE)
    for z, expected in ((0.0, 2.0), (1.0, 0.0), (3.0, 3.0)):
        found = ir.replace(output, lambda n, z=z: ir.const(z) if n is total else None)
        assert found.op is ir.Op.CONST and found.value == expected


# fmt: off
ON_ONE_LINE = (lambda z: z * 2.0, lambda z: (lambda x: x)(max(z, 0.0)), lambda z: min(z, 1.0))
# fmt: on


@pytest.mark.parametrize("place, number", [(1, 1), (2, 3)])
def test_the_caret_is_under_the_lambda_that_is_meant(place, number):
    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    with pytest.raises(CompileError, match="or write a def") as caught:
        parse_forward(context(N, activation=horn.Activation("mine", ON_ONE_LINE[place])))
    text, column = caught.value.text, caught.value.column
    assert text[column : caught.value.end_column] == "lambda"
    assert text[:column].count("lambda") == number


def test_what_only_a_lambda_cannot_have_a_def_may():
    def bent(z):
        return max(z, 0.0) if z < 6.0 else 6.0

    class N(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    assert parse_forward(context(N, activation=horn.Activation("bent", bent))).output is not None


LONG = "LONG = tuple(float(k) for k in range(2000))\nARRAY = np.arange(2000.0)\n"
OF_LONG = {
    "LONG[3] + ARRAY[-1] + range(2000)[5]": 3.0 + 1999.0 + 5.0,
    "len(LONG) + len(ARRAY) + len(range(2000))": 6000.0,
    "reversed(LONG)[0] + list(ARRAY)[4] + ARRAY[10:][0]": 1999.0 + 4.0 + 10.0,
    "sum(LONG[1:3]) + sum(k for k in ARRAY[:3])": 6.0,
    "sum(k for k in range(2000))": None,
    "len(enumerate(LONG))": None,
    "len(zip(LONG, ARRAY))": None,
    "sum(range(2000))": None,
    "max(LONG)": None,
}


@pytest.mark.parametrize("text, found", OF_LONG.items())
def test_of_a_long_sequence_only_what_is_asked_is_read(text, found, tmp_path, monkeypatch):
    made, wrap = [], references.wrap
    monkeypatch.setattr(references, "wrap", lambda value: made.append(value) or wrap(value))
    body = f"""
    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages) + ({text}))
    """
    cls = module(tmp_path, source(body, LONG)).N
    if found is None:
        with pytest.raises(CompileError, match="these are 2000 rounds; a neuron may have 1000"):
            forward(cls)
    else:
        assert ir.const(found) in forward(cls).output.args
    assert len(made) < 20


def test_a_chain_of_comparisons_ends_at_the_first_that_fails(tmp_path):
    body = """
    taps = (1.0,)

    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        self.feedforward(2.0 * z if 3.0 < 1.0 < self.taps[5] else z)
    """
    cls = module(tmp_path, source(body)).N
    assert forward(cls).output.op is ir.Op.REDUCE


def test_a_variable_around_the_class_that_is_not_set_is_read_by_no_path_that_runs(tmp_path):
    before = """
def made(has_helper):
    if has_helper:
        helper = abs
    class N(horn.Neuron):
        def forward(self, messages):
            z = sum(m.input * m.weight for m in messages)
            self.feedforward(helper(z) if has_helper else z)
    return N
"""
    own = module(tmp_path, source("pass", before))
    assert forward(own.made(False)).output.op is ir.Op.REDUCE
    assert forward(own.made(True)).output.op is ir.Op.ABS
