"""Compiled and interpreted, the words of a neuron take the arguments that Python gives them."""

import inspect

import numpy as np
import pytest

import horn
from horn import math as hm
from horn.backends import Setup, make
from tests.language.texts import module, source
from tests.parity.test_compiled_equals_interpreted import samples

AFTER = """
def forward(self, messages):
    z = sum(m.input * m.weight for m in messages)
    self.feedforward(z + CALL)
"""
OF_MESSAGES = """
def forward(self, messages):
    self.feedforward(CALL)
"""
EACH = """
def forward(self, messages):
    self.feedforward(sum(m.input * m.weight * CALL for m in messages))
"""
FORWARD = """
def forward(self, messages):
    z = sum(m.input * m.weight for m in messages)
    CALL
"""
LEARN = """
def forward(self, messages):
    z = 0.0
    for m in messages:
        z += m.input * m.weight
        CALL
    self.feedforward(z)
"""
BACKWARD = """
gain = horn.Parameter(1.0)

def forward(self, messages):
    self.feedforward(self.gain * sum(m.input * m.weight for m in messages))

def backward(self, messages):
    g = 0.0
    for m in messages:
        g += m.delta * m.weight
        PUSH
    self.push(g, to="gain")
    BACK
"""
PUSH, BACK = "self.push(m.delta * self.output)", "self.backpropagate(g)"
PUSHED = BACKWARD.replace("PUSH", "CALL").replace("BACK", BACK)
BROUGHT_BACK = BACKWARD.replace("PUSH", PUSH).replace("BACK", "CALL")
TO_GAIN = BROUGHT_BACK.replace("CALL", BACK).replace('self.push(g, to="gain")', "CALL")
ERRORS = BROUGHT_BACK.replace("CALL", "self.backpropagate(sum(e.delta * CALL for e in self.error))")
TWICE = """
def twice(x, y=1.0):
    return x * y
"""

#: A word: the neuron around it, its arguments by name, and how many of them it must have.
WORDS: dict[str, tuple[str, dict[str, str], int]] = {
    "self.bernoulli": (AFTER, {"p": "0.5", "per": '"batch"'}, 1),
    "self.uniform": (AFTER, {"low": "0.0", "high": "1.0", "per": '"batch"'}, 0),
    "self.normal": (AFTER, {"mean": "0.0", "std": "1.0", "per": '"batch"'}, 0),
    "m.uniform": (EACH, {"low": "0.0", "high": "1.0"}, 0),
    "m.normal": (EACH, {"mean": "0.0", "std": "1.0"}, 0),
    "e.uniform": (ERRORS, {"low": "0.0", "high": "1.0"}, 0),
    "e.normal": (ERRORS, {"mean": "0.0", "std": "1.0"}, 0),
    **{
        f"self.{word}": (AFTER, {"x": "z", "over": '"layer"'}, 2)
        for word in ("sum", "max", "min", "argmax", "rank", "mean", "var")
    },
    "self.feedforward": (FORWARD, {"value": "z"}, 1),
    "self.push": (LEARN, {"gradient": "m.input", "to": '"weight"'}, 1),
    "push in backward": (PUSHED, {"gradient": "m.delta * self.output"}, 1),
    "push to a Parameter": (TO_GAIN, {"gradient": "g", "to": '"gain"'}, 1),
    "self.backpropagate": (BROUGHT_BACK, {"delta": "g"}, 1),
    "self.activation": (AFTER, {"z": "z"}, 1),
    "self.activation.derivative": (AFTER, {"y": "z"}, 1),
    "self.activation.derivative_at": (AFTER, {"z": "z"}, 1),
    "twice": (AFTER, {"x": "z", "y": "2.0"}, 1),
    "self.of_two": (AFTER + "\ndef of_two(self, x, y=1.0): return x * y\n", {"x": "z"}, 1),
    "len": (AFTER, {"obj": "messages"}, 1),
    "abs": (AFTER, {"x": "z"}, 1),
    "float": (AFTER, {"x": "z"}, 0),
    "pow": (AFTER, {"base": "2.0", "exp": "z"}, 2),
    "enumerate": (AFTER.replace("CALL", "len(CALL)"), {"iterable": "(1, 2)", "start": "1"}, 1),
    "range": (AFTER.replace("CALL", "len(CALL)"), {"start": "0", "stop": "4", "step": "2"}, 1),
    **{
        f"horn.math.{name}": (AFTER, dict.fromkeys(inspect.signature(f).parameters, "z"), n)
        for name, n in hm.OPS.items()
        if (f := getattr(hm, name, None)) is not None
    },
    **{
        f: (OF_MESSAGES, {"values": "[m.input * m.weight for m in messages]"}, 1)
        for f in ("sum", "max", "any", "horn.math.prod", "horn.math.median")
    },
    "horn.math.largest": (OF_MESSAGES, {"k": "1", "values": "[m.input for m in messages]"}, 2),
}  # fmt: skip
EXTRA = {"self.mean": 2, "self.var": 2, "self.of_two": 2, "range": 2, "sum": 2, "max": 2}
NAMES = {"push in backward": "self.push", "push to a Parameter": "self.push"}


def wrong_calls(word):
    """Calls of a word that Python refuses."""
    _, arguments, least = WORDS[word]
    name, values = NAMES.get(word, word), list(arguments.values())
    first = next(iter(arguments))
    calls = {
        "surplus": [*values, *["9.0"] * EXTRA.get(word, 3)],
        "twice": [*values, f"{first}={values[0]}"],
        "unknown": [*values, "junk=1.0"],
        "unknown in a dict": [*values, '**{"junk": 1.0}'],
    }
    if least:
        calls["missing"] = values[: least - 1]
    return {how: f"{name}({', '.join(given)})" for how, given in calls.items()}


def made(backend, cls):
    """One step of a network with a layer of these neurons, as far as it comes."""
    net = horn.Network(seed=1)
    net.input(2)
    net.layer(2, neuron=cls, activation="tanh")
    net.output(2, loss="squared_error")
    engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 2, "float64", 1))
    engine.bind(samples(net))
    engine.step(np.arange(2), iteration=0, first_sample=0)


def neuron(tmp_path, word, call):
    return module(tmp_path, source(WORDS[word][0].replace("CALL", call), TWICE)).N


@pytest.mark.parametrize("word", WORDS)
def test_a_call_that_python_refuses_is_refused_compiled_too(word, tmp_path):
    right = f"{NAMES.get(word, word)}({', '.join(WORDS[word][1].values())})"
    made("kernels", neuron(tmp_path, word, right))
    for how, call in wrong_calls(word).items():
        cls = neuron(tmp_path, word, call)
        for backend in ("python", "kernels"):
            with pytest.raises(horn.CompileError):
                made(backend, cls)
                pytest.fail(f"{backend} takes {call}, with {how} arguments")


@pytest.mark.parametrize("backend", ["python", "kernels"])
@pytest.mark.parametrize(
    "body",
    [
        "self.feedforward(z * scaled(z))",
        "z = z * scale\n    scale = 1.0\n    self.feedforward(z * scale)",
        "for m in messages:\n        z += m.input * scale\n        scale = 1.0\n"
        "    self.feedforward(z)",
    ],
)
def test_a_variable_without_a_number_is_not_the_global_of_its_name(tmp_path, backend, body):
    before = "scale = 3.0\n\ndef scaled(x, scale=None):\n    return x * scale\n"
    forward = FORWARD.replace("CALL", body)
    with pytest.raises(horn.CompileError, match="scale"):
        made(backend, module(tmp_path, source(forward, before)).N)


def test_the_state_that_follows_a_statistic_is_named_in_the_text(tmp_path):
    body = "average = horn.State(0.0)\n" + AFTER.replace(
        "CALL", 'self.mean(z, over="batch", running=NAME)'
    )
    cls = module(tmp_path, source(body, 'NAME = "average"')).N
    with pytest.raises(horn.CompileError, match="write its name there"):
        made("kernels", cls)


@pytest.mark.parametrize(
    "call",
    [
        "len(enumerate((1.0, 2.0), 1, start=2))",
        "max(messages, key=lambda m, *, k=1.0: m.input * k).index",
        'any((m.input > 0 for m in messages), **{"junk": 1})',
    ],
)
def test_an_argument_is_not_left_out_silently(tmp_path, call):
    cls = module(tmp_path, source(AFTER.replace("CALL", call), "k = 2.0\n")).N
    with pytest.raises(horn.CompileError):
        made("kernels", cls)
