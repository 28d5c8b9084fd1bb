"""What a complaint says to write instead is in the language, and is what was meant."""

from __future__ import annotations

import re

import pytest

import horn
from horn import math
from horn.errors import CompileError
from horn.ir import Op, leaf, reduce
from horn.language import functions, parse
from horn.mistakes import NOT_IN_MATH
from tests.language import texts


def forward(*lines: str) -> str:
    return "\n".join(("def forward(self, messages):", *(f"    {line}" for line in lines)))


REFUSED = [
    (
        ["best = None", "for m in messages:", "    if best is None or m.input > best:",
         "        best = m.input", "self.feedforward(best)"],
        "None is no number; start 'best' with one: 0.0 for a sum, -math.inf for the largest",
    ),
    (["z = 0j", "self.feedforward(abs(z))"], "keep the two parts in two variables"),
    (["self.feedforward(abs(complex(0, 1)))"], "keep the two parts in two variables"),
    (
        ["v = sorted(m.input for m in messages)", "self.feedforward(v[0])"],
        "or put @horn.interpreted on the class, which runs it with all of Python",
    ),
    (["self.feedforward(random.gauss(0, 1))"], "self.normal()"),
    (["self.feedforward(random.random())"], "self.uniform()"),
    (["self.feedforward(np.random.normal())"], "self.normal()"),
    (["self.feedforward(horn.random.normal(0, 1))"], "horn.random.normal is not in the neuron "
     "language; draw with self.uniform(), self.normal()"),
    (["self.feedforward(time.time())"], "self.iteration is the number of the batch"),
    (["self.feedforward(np.clip(sum(m.input for m in messages), 0, 1))"], "min(max(x, low)"),
    (["self.feedforward(horn.math.cosh(0.5))"], "horn.math has no 'cosh'; write  0.5 * (exp(x) +"),
    (["self.feedforward(np.cosh(0.5))"], "write  0.5 * (exp(x) + exp(-x))"),
    (["self.feedforward(math.hypot(0.5, 0.5))"], "write  sqrt(x ** 2 + y ** 2)"),
    (["self.feedforward(messages.sum())"], "write  sum(m.input * m.weight for m in messages)"),
    (["self.feedforward(messages.mean())"], "for m in messages) / len(messages)"),
    (["self.feedforward((z := 0.5))"], "assign on a line of its own"),
    (["k = 10**400 / (10**400 + 1)", "self.feedforward(k)"], "'10 ** 400' is more than 1.8e+308"),
    (["self.feedforward(0.0 * 1" + 400 * "0" + ")"], "a whole number of 1329 bits"),
    (["import random", "self.feedforward(0.5)"], "write it at the top of the file"),
    (
        ["v = total = 0.0", "for m in messages:", "    v = m.input", "    total += v",
         "self.feedforward(total + v)"],
        "'v' holds what the last message left",
    ),
    (
        ["v = total = 0.0", "for m in messages:", "    total += v", "    v = m.input",
         "self.feedforward(total)"],
        "'total' depends on the order of messages (it also uses 'v'",
    ),
    (["self.feedforward = 0.5"], "self.feedforward is called, not assigned: self.feedforward(val"),
    (["self.output(0.5)"], "what a neuron sends is  self.feedforward(value)"),
    (["self.forward(0.5)"], "what a neuron sends is  self.feedforward(value)"),
    (["self.emit(0.5)"], "N has no 'emit'; write a method  def emit(self, ...)  of it; what a "),
    (["self.feed_forward(0.5)"], "N has no 'feed_forward'; did you mean 'feedforward'?"),
    (["z = 0.5", "self.feedforward(z.tanh())"], "a number has no 'tanh'; write horn.math.tanh(z)"),
    (["z = 0.5", "self.feedforward(z.detach())"], "write horn.math.stop_gradient(z)"),
    (["z = 0.5", "self.feedforward(z.item())"], "a neuron has one number here, no array: write z"),
    (["z = 0.5", "z.backward()", "self.feedforward(z)"], "leave it out: gradients are derived"),
    (["self.feedforward(torch.relu(0.5))"], "'torch' is not defined here; a neuron takes its "
     "functions from horn.math"),
    (["self.feedforward(activation(0.5))"], "'activation' is not defined here; write self.activat"),
    (["self.feedforward(sum(m[0] for m in messages))"], "a message has no elements, but fields"),
    (["self.feedforward(0.5 ^ 2)"], "a power is x ** 2"),
    (["self.feedforward(0.5 if 1.0 in (1.0, 2.0) else 0.0)"], "compare numbers with == and !="),
    (["for m in messages: m.push(0.5)", "self.feedforward(0.5)"], "a message has no push; a neur"),
]  # fmt: skip


@pytest.mark.parametrize("lines, said", REFUSED)
def test_a_complaint_says_what_there_is_instead(tmp_path, lines: list[str], said: str):
    made = texts.module(tmp_path, texts.source(forward(*lines), "import random\nimport time"))
    with pytest.raises(CompileError) as caught:
        texts.forward(made.N)
    assert said in str(caught.value)


def test_what_messages_are_called_is_said(tmp_path):
    written = forward("self.feedforward(sum(m.input for m in messages))")
    made = texts.module(tmp_path, texts.source(written.replace("self, messages", "self, x")))
    with pytest.raises(CompileError, match=r"its messages are called 'x': def forward\(self, mes"):
        texts.forward(made.N)
    made = texts.module(tmp_path, texts.source(written.replace("self, messages", "self, *x")))
    with pytest.raises(CompileError, match=r"write it as  def forward\(self, messages\):"):
        texts.forward(made.N)


def test_a_constant_that_is_assigned_is_said_to_be_one(tmp_path):
    text = texts.source(forward("self.count += 1", "self.feedforward(self.count)"))
    made = texts.module(tmp_path, text.replace("def forward", "count = 0\n\n    def forward"))
    with pytest.raises(CompileError, match=r"constant of the class; .* count = horn.State\(0\)"):
        texts.forward(made.N)


CONSTANTS = """
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

THIRD, TENTH, FLAT, ONE = Fraction(1, 3), Decimal("0.1"), np.array(2.5), np.array([2.5])
LONG, LONGER, TAPS, SIZE, BY_NAME = 2**53 + 1, 10**5000, (1.0, 2.0, 3.0), 3.0, {"a": 1.0}
"""
NO_FLOATS = {
    "THIRD": "it is a Fraction, and a neuron computes with floats: write float(...) where it is",
    "TENTH": "it is a Decimal, and a neuron computes with floats",
    "FLAT": "it is an array without axes, and a neuron computes with floats",
    "ONE": "it is an array: read an element of it, ONE[0], or loop over it",
    "ONE.mean()": "compute it where the array is set, and name the number",
    "ONE[0, 0]": "one index at a time; write ONE[0][0]",
    "LONG - 1": "it is a whole number of 54 bits, more than a float holds",
    "LONGER": "it is a whole number of 16610 bits, more than a float holds",
    "TAPS[1.0]": "an index takes whole numbers, and '1.0' is a float in Python",
    "TAPS[-SIZE]": "an index takes whole numbers, and '-SIZE' is a float in Python",
    "sum(k for k in range(SIZE - 1))": "range takes whole numbers, and 'SIZE - 1' is a float",
    "sum(k for k in range(4 / 2))": "range takes whole numbers, and '4 / 2' is a float",
    "TAPS[3]": "they are numbered 0 to 2, got 3",
    "BY_NAME['a']": "'BY_NAME' is a dict; keep each of its values as a constant of its own",
    "BY_NAME": "it is a dict: keep each of its values as a constant of its own",
}


@pytest.mark.parametrize("constant", NO_FLOATS)
def test_a_constant_that_is_no_number_of_the_language_is_refused(tmp_path, constant: str):
    made = texts.module(tmp_path, texts.source(forward(f"self.feedforward({constant})"), CONSTANTS))
    with pytest.raises(CompileError) as caught:
        texts.forward(made.N)
    assert NO_FLOATS[constant] in str(caught.value)
    assert constant in caught.value.text


@pytest.mark.parametrize(
    "before, is_float",
    [
        ("n = 4 / 2", True),
        ("size = 4.0; n = size - 2", True),
        ("n = 4 // 2", False),
        ("n = 4.0; n = 3", False),
        ("n = 2; n = n + 1", False),
        ("m, n = 1.0, 2", False),
    ],
)
def test_range_of_a_variable_that_is_a_float_is_refused(tmp_path, before: str, is_float: bool):
    lines = [before, "total = sum(m.input for m in messages)", "for k in range(n): total += k"]
    made = texts.module(tmp_path, texts.source(forward(*lines, "self.feedforward(total)")))
    if not is_float:
        texts.forward(made.N)
        return
    with pytest.raises(CompileError, match="'n' is a float in Python"):
        texts.forward(made.N)


@pytest.mark.parametrize(
    "body, said",
    [
        (
            ["pair = (0.0, 0.0)", "for m in messages:",
             "    pair = (pair[0] + m.input, pair[1] + m.weight)", "self.feedforward(pair[0])"],
            "'pair' has several values, and from one message to the next only numbers pass",
        ),
        (
            ["total = 0.0", "for m in messages:", "    total += m.input", "else:",
             "    total = -total", "self.feedforward(total)"],
            "write it below the loop",
        ),
        (["raise NotImplementedError('forward')"], "this method is for subclasses: write it in"),
        (["raise ValueError('never')"], "leave it out"),
    ],
)  # fmt: skip
def test_what_a_method_cannot_do_is_said_with_what_to_do(tmp_path, body: list[str], said: str):
    made = texts.module(tmp_path, texts.source(forward(*body)))
    with pytest.raises(CompileError, match=re.escape(said)):
        texts.forward(made.N)


@pytest.mark.parametrize(
    "body, said",
    [
        ("return np.mean((output - target) ** 2)", "write  x.mean()"),
        ("return sum((a - b) ** 2 for a, b in zip(output, target))",
         "zip is not in the neuron language; output and target are numbers of one neuron"),
        ("return output.max() - sorted(output)[0]", "output and target are numbers of one neuron"),
        ("global K; return output - target", "leave it out: a name of the module is read without"),
        ("return (output - target) ** 2, 1.0", "f must return a number, got a tuple of 2; return"),
        ("if output > 0.0: return output", "returns nothing where 'output > 0.0' is false"),
        ("return 'none'", "f must return a number, got 'none'"),
        ("return messages", "'messages' is not defined here"),
    ],
)  # fmt: skip
def test_a_loss_is_told_what_losses_have(tmp_path, body: str, said: str):
    made = texts.module(
        tmp_path, f"{texts.HEADER}K = 1.0\n\n\ndef f(output, target):\n    {body}\n"
    )
    with pytest.raises(CompileError) as caught:
        parse.function(made.f, leaf(Op.OUTPUT, "bo"), leaf(Op.TARGET, "bo"))
    assert said in str(caught.value)
    assert "messages" not in caught.value.problem.replace("'messages'", "")


def test_a_lambda_asks_its_layer_without_axes():
    with pytest.raises(CompileError, match=r"mean\(\) is of all neurons of the layer"):
        parse.function(lambda output: output - output.mean(axis=0), leaf(Op.OUTPUT, "bo"))


def test_what_horn_math_has_is_not_said_to_be_missing():
    assert not {*NOT_IN_MATH} & {*math.FUNCTIONS}


@pytest.mark.parametrize("name", sorted(NOT_IN_MATH))
def test_what_is_said_of_a_function_that_horn_math_has_not_compiles(tmp_path, name: str):
    what = NOT_IN_MATH[name].partition(", or ")[0]
    lines = ["x = sum(m.input for m in messages)", "y, low, high = 2.0, 0.0, 1.0"]
    lines += ["self.feedforward(x + y + low + high + " + f"({what}))"]
    made = texts.source(
        forward(*lines), "from horn.math import erf, exp, floor, log, sigmoid, sqrt"
    )
    texts.forward(texts.module(tmp_path, made).N)


CALLS = {
    **dict.fromkeys(("abs", "bool", "float"), "{}(z)"),
    **dict.fromkeys(("all", "any", "max", "min", "sum", "median", "prod"), "{}(each)"),
    **dict.fromkeys(("atan2", "floordiv", "maximum", "minimum", "mod", "pow"), "{}(z, 0.5)"),
    **dict.fromkeys(("largest", "smallest", "top_sum"), "{}(2, (each))"),
    "len": "len(messages)",
    "where": "{}(z > 0.0, z, 0.5)",
}


def test_every_call_that_is_said_to_be_allowed_is(tmp_path):
    with pytest.raises(CompileError) as caught:
        text = texts.source(forward("self.feedforward(math.gamma(0.5))"))
        texts.forward(texts.module(tmp_path, text).N)
    listed = str(caught.value).partition("calls allowed: ")[2].partition(", and your own")[0]
    python, of_math = listed.split(", of horn.math ")
    names = [*python.split(", "), *(f"horn.math.{name}" for name in of_math.split(", "))]
    assert {"pow", "horn.math.median", "horn.math.asin"} <= set(names)
    for name in names:
        call = CALLS.get(name.rpartition(".")[2], "{}(z)").format(name)
        call = call.replace("each", "m.input * m.weight for m in messages")
        lines = ["z = sum(m.input for m in messages)", f"self.feedforward(1.0 * ({call}))"]
        texts.forward(texts.module(tmp_path, texts.source(forward(*lines))).N)


def test_a_largest_message_starts_at_minus_infinity_as_the_complaint_says(tmp_path):
    lines = ["best = -math.inf", "for m in messages:", "    if m.input > best:"]
    lines += ["        best = m.input", "self.feedforward(best)"]
    found = texts.forward(texts.module(tmp_path, texts.source(forward(*lines))).N)
    assert found.output is reduce("max", "i", leaf(Op.INPUT, "bi"))


def test_a_temporary_of_the_loop_may_have_the_name_of_something_before_it(tmp_path):
    lines = ["v = 0.5", "total = v", "for m in messages:", "    v = m.input * m.weight"]
    lines += ["    total += v * v", "self.feedforward(total)"]
    found = texts.forward(texts.module(tmp_path, texts.source(forward(*lines))).N)
    v = leaf(Op.INPUT, "bi") * leaf(Op.WEIGHT, "oi")
    assert found.output is 0.5 + reduce("sum", "i", v * v)


def test_a_name_that_was_meant_is_said_as_it_is_written(tmp_path):
    body = "Forget = horn.Weight()\n" + forward(
        "self.feedforward(sum(m.input * m.Forgat for m in messages))"
    )
    with pytest.raises(CompileError, match="Did you mean 'Forget'"):
        texts.forward(texts.module(tmp_path, texts.source(body)).N)


OWN = """
slope, gain = 0.1, horn.Parameter(1.0)

def bend(self, z):
    return z

"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("self.feedforward(slope * sum(m.input for m in messages))", "write self.slope"),
        ("self.feedforward(gain * sum(m.input for m in messages))", "write self.gain"),
        ("self.feedforward(bend(sum(m.input for m in messages)))", "write self.bend"),
        ("feedforward(sum(m.input for m in messages))", "write self.feedforward"),
        ("self.feedforward(sum(input * m.weight for m in messages))", "write m.input"),
        ("self.feedforward(sum(each.input * weight for each in messages))", "write each.weight"),
        ("self.feedforward(sum(input(m) for m in messages))", "write m.input"),
        ("self.feedforward(horn.Parameter(1.0) * len(messages))", "is declared in the class, not"),
        ("self.feedforward(horn.State(0.5) * len(messages))", "write  name = horn.State(0.5)"),
    ],
)
def test_a_forgotten_self_or_message_is_recognised(tmp_path, line: str, said: str):
    made = texts.module(tmp_path, texts.source(OWN + forward(line)))
    with pytest.raises(CompileError) as caught:
        texts.forward(made.N)
    assert said in caught.value.problem and "interpreted" not in caught.value.problem


def fails(tmp_path, text: str) -> str:
    with pytest.raises(CompileError) as raised:
        texts.forward(texts.module(tmp_path, texts.source(text)).N)
    return str(raised.value)


@pytest.mark.parametrize("start", ["2.0", "sum(m.input for m in messages)", "self.kept"])
@pytest.mark.parametrize("word", ["or", "and"])
def test_a_number_that_decides_before_the_messages_is_made_a_condition(tmp_path, start, word):
    """Python keeps 2.0 of  2.0 or m.input > 0.0; of a condition it keeps what all compute with."""
    lines = [f"found = {start}", "for m in messages:", f"    found = found {word} m.input > 0.0"]
    kept, sends = "kept = horn.State(0.5)\n", "self.feedforward(found + 0.0)"
    said = fails(tmp_path, kept + forward(*lines, sends))
    assert "as  found = number != 0" in said and f"found = found {word} m.input > 0.0" in said
    lines[0] = f"found = ({start}) != 0"
    texts.forward(texts.module(tmp_path, texts.source(kept + forward(*lines, sends))).N)


def test_what_is_compared_with_0_stands_in_brackets(tmp_path):
    lines = ["seen = False", "for m in messages:", "    seen = seen or (m.input and m.weight > 0)"]
    sends = "self.feedforward(1.0 if seen else 0.0)"
    remedy = "(m.input and m.weight > 0) != 0"
    assert fails(tmp_path, forward(*lines, sends)).endswith(f"write {remedy}")
    lines[-1] = f"    seen = seen or {remedy}"
    texts.forward(texts.module(tmp_path, texts.source(forward(*lines, sends))).N)


def test_an_order_of_a_list_of_messages_is_one_of_messages(tmp_path):
    found = []
    for each in ("(m.input for m in messages)", "[m.input for m in messages]"):
        text = forward(f"self.feedforward(horn.math.smallest(1, {each}))")
        found.append(texts.forward(texts.module(tmp_path, texts.source(text)).N).output)
    assert found[0] is found[1]


@pytest.mark.parametrize("given", ["z, 0.1", "(z, 0.1)"])
@pytest.mark.parametrize("name, sign", [("max", ">="), ("min", "<=")])
def test_numbers_with_a_key_are_chosen_with_an_if(tmp_path, name, sign, given):
    z, remedy = "z = sum(m.input for m in messages)", f"z if abs(z) {sign} abs(0.1) else 0.1"
    said = fails(tmp_path, forward(z, f"self.feedforward({name}({given}, key=abs))"))
    assert said.endswith(f"of numbers write  {remedy}")
    texts.forward(texts.module(tmp_path, texts.source(forward(z, f"self.feedforward({remedy})"))).N)


@pytest.mark.parametrize("calls, most", [("halve", "1,000"), ("other", "500")])
def test_calls_that_double_at_each_level_are_refused_before_they_take_minutes(
    tmp_path, monkeypatch, calls, most
):
    """The remedy calls once, and is compiled."""
    monkeypatch.setattr(functions, "MOST", functions.MOST if calls == "halve" else 500)
    z = "z = sum(m.input for m in messages)"

    def methods(body: str) -> str:
        if calls == "halve":
            names = ["halve"]
            before = ["    if n == 0:", "        return z"]
        else:
            names, before = [f"halve{k}" for k in range(15)], []
        found = forward(z, f"self.feedforward(self.{names[0]}(z, 14))")
        for name, after in zip(names, [*names[1:], names[0]], strict=True):
            last = calls == "other" and after == names[0]
            lines = ["    return z"] if last else [*before, body.replace("halve", after)]
            found += f"\ndef {name}(self, z, n):\n" + "\n".join(lines)
        return found

    twice = (
        "    if z > 1.0:\n        return self.halve(0.5 * z, n - 1)\n"
        "    return self.halve(z + 0.1, n - 1)"
    )
    assert f"these are more than {most} calls" in fails(tmp_path, methods(twice))
    once = "    return self.halve(0.5 * z if z > 1.0 else z + 0.1, n - 1)"
    texts.forward(texts.module(tmp_path, texts.source(methods(once))).N)


def test_super_is_answered_with_the_class_that_is_meant():
    class Plain(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(self.one(m, 1.0) for m in messages))

        def one(self, m, c):
            return c * m.input * m.weight

    class Between(Plain):
        pass

    class Scaled(Between):
        def one(self, m, c):
            return super().one(m, 2.0 * c)

    class Again(Between):
        def forward(self, messages):
            super().forward(messages)
            self.feedforward(2.0 * self.output)

    with pytest.raises(CompileError, match=r"by its name: Plain\.one\(self, m, 2\.0 \* c\)"):
        texts.forward(Scaled)
    with pytest.raises(CompileError, match="Plain.forward calls self.feedforward already, and so"):
        texts.forward(Again)
