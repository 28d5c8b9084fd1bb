"""Random neurons and networks, as source text: what the law "compiled equals interpreted" is tried
on.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

import horn

_number = itertools.count()
# No two of them make 0 or 1: what folds away would be judged differently by the interpreter.
CONSTANTS = ("0.5", "1.5", "-0.7", "1.9", "0.1")


@st.composite
def message_expression(draw: Any, fields: tuple[str, ...], depth: int = 2) -> str:
    """An expression of one message, bounded where it could explode."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(
            st.sampled_from((*fields, *fields, "self.gain", draw(st.sampled_from(CONSTANTS))))
        )
    a = draw(message_expression(fields, depth - 1))
    form = draw(
        st.sampled_from(
            ("+", "-", "*", "*", "tanh", "square", "abs", "if", "max", "sigmoid", "helper")
        )
    )
    if form in ("+", "-", "*"):
        b = draw(message_expression(fields, depth - 1))
        return f"({a} {form} {b})" if "m." in a + b else a
    if form == "tanh":
        return f"horn.math.tanh({a})"
    if form == "sigmoid":
        return f"horn.math.sigmoid({a})"
    if form == "square":
        return f"horn.math.tanh({a}) ** 2"
    if form == "abs":
        return f"abs({a})"
    if form == "helper":
        return f"soft({a})"
    b = draw(message_expression(fields, depth - 1))
    if b == a:  # a choice between equals is no choice, and only the interpreter takes it for one
        b = f"abs({b})"
    if form == "max":
        return f"max({a}, {b})"
    return f"({a} if {draw(st.sampled_from(fields))} > 0.05 else {b})"


@st.composite
def vertex_expression(draw: Any, names: tuple[str, ...], depth: int = 2) -> str:
    """An expression of what a neuron has gathered."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from((*names, *names, draw(st.sampled_from(CONSTANTS)))))
    a = draw(vertex_expression(names, depth - 1))
    form = draw(
        st.sampled_from(("+", "-", "*", "tanh", "if", "where", "exp", "div", "method", "min"))
    )
    if form in ("+", "-", "*"):
        return f"({a} {form} {draw(vertex_expression(names, depth - 1))})"
    if form == "tanh":
        return f"math.tanh({a})"
    if form == "exp":
        return f"math.exp(-abs({a}))"
    if form == "div":
        return f"({a} / (1.0 + abs({draw(vertex_expression(names, depth - 1))})))"
    if form == "method":
        return f"self.bend({a})"
    b = draw(vertex_expression(names, depth - 1))
    if form == "min":
        return f"min({a}, {b})"
    c = draw(st.sampled_from(names))
    if form == "where":
        return f"horn.math.where({c} > 0.1, {a}, {b})"
    return f"({a} if {c} > 0.1 else {b})"


@st.composite
def neuron_source(draw: Any, name: str, optimizer: str) -> str:
    """A class with forward, and sometimes parameters, state, draws, branches, a written backward,
    or a local rule.
    """
    lines: list[str] = []
    kind = draw(st.sampled_from(("sum", "sum", "any", "any", "written", "local")))
    fields = ["m.input", "m.weight"]
    if draw(st.integers(0, 3)) == 0:
        fields.append(draw(st.sampled_from(("m.normal(0.0, 0.5)", "m.uniform(-1.0, 1.0)"))))
    own = kind == "any" and draw(st.integers(0, 3)) == 0
    if own:
        fields.append("m.own")
    kept = kind in ("any", "local") and draw(st.integers(0, 3)) == 0
    if kept:
        fields.append("m.kept")
    readable = ("self.gain", "self.index", "self.iteration", "self.learning_rate", "len(messages)")
    names = ["self.gain", draw(st.sampled_from(readable))]
    body: list[str] = []
    if draw(st.booleans()):
        per = draw(st.sampled_from(("sample", "sample", "batch", "run")))
        call = draw(
            st.sampled_from(
                (
                    f'self.bernoulli(0.7, per="{per}")',
                    f'self.uniform(-1.0, 1.0, per="{per}")',
                    f'self.normal(0.0, 0.5, per="{per}")',
                    "self.noise()",
                )
            )
        )
        body.append(f"noise = {call} if self.training else 0.7")
        names.append("noise")
    dropped = draw(st.sampled_from(("", "", "sample", "batch")))
    if dropped:
        body.append(f'mask = self.bernoulli(0.6, per="{dropped}") if self.training else 0.6')
        body += ["if mask == 0:", "    self.feedforward(0.0)", "    return"]
        names.append("mask")
    if kind in ("sum", "written", "local"):
        body += ["total = 0.0", "for m in messages:", "    total += m.input * m.weight"]
        names.append("total")
    else:
        for k in range(draw(st.integers(1, 2))):
            e = draw(message_expression(tuple(fields)))
            if (
                "m." not in e
            ):  # a neuron that only counts its messages has no synapse to differentiate
                e = f"({e} * m.input)"
            r = f"r{k}"
            form = draw(
                st.sampled_from(("loop", "sum", "mean", "max", "min", "best", "product", "count"))
            )
            if form == "loop":
                body += [
                    f"{r} = 0.0",
                    "for m in messages:",
                    f"    v = {e}",
                    f"    {r} += v * m.weight",
                ]
            elif form == "best":
                body += [
                    f"{r} = -10.0",
                    "for m in messages:",
                    f"    v = {e}",
                    f"    if v > {r}:",
                    f"        {r} = v",
                ]
            elif form == "product":
                body += [
                    f"{r} = 1.0",
                    "for m in messages:",
                    f"    {r} *= 1.0 + 0.3 * horn.math.tanh({e})",
                ]
            elif form == "count":
                body += [f"{r} = sum({e} for m in messages if m.input > 0.1)"]
            elif form == "mean":
                body += [f"{r} = sum({e} for m in messages) / len(messages)"]
            else:
                body += [f"{r} = {form}({e} for m in messages)"]
            names.append(r)
    states = draw(st.booleans())
    if states:
        names.append("self.trace")
    y = draw(vertex_expression(tuple(names)))
    # What is gathered is used: the two may judge a value that nobody uses differently.
    for unused in [n for n in names if n.startswith("r") and n not in y]:
        y = f"({y} + 0.1 * math.tanh({unused}))"
    if kind in ("sum", "any", "local") and draw(st.booleans()):
        y = f"math.tanh({y})"
    main = names[-2] if states else names[-1]
    if kind == "written":
        y = "total"
    y = (
        f"self.activation(math.tanh({main}) + {y})"
        if kind != "written"
        else "self.activation(total)"
    )
    if draw(st.booleans()):
        body += (
            [f"if {main} > 0.0:", f"    y = {y}", "else:", f"    y = 0.5 * {y}"]
            if kind != "written"
            else [f"y = {y}"]
        )
    else:
        body.append(f"y = {y}")
    if states:
        body.append("self.trace = 0.9 * self.trace + 0.1 * math.tanh(y)")
    if kept:
        e = draw(message_expression(tuple(fields), 1))
        body += [
            "for m in messages:",
            f"    m.kept = 0.7 * m.kept + 0.1 * math.tanh({e} + {main})",
        ]
    body.append("self.feedforward(y)")
    if kind == "local":
        body += [
            "for m in messages:",
            "    self.push(math.tanh(self.output) * (m.input - self.output * m.weight))",
        ]
        if optimizer.startswith("horn.Direct") and draw(st.booleans()):
            body[-1] = body[-1][:-1] + " + 0.5 * m.previous_update)"
    lines += [f"class {name}(horn.Neuron):", "    gain = horn.Parameter(0.8)"]
    if states:
        lines.append("    trace = horn.State(0.2)")
    if own:
        lines.append('    weight, own = horn.Weight(), horn.Weight("normal", bias=0.3)')
    if kept:
        lines.append("    kept = horn.SynapseState(horn.Uniform(-0.3, 0.3))")
    lines += [
        "    def bend(self, v):",
        "        if v > 0.3:",
        "            return math.tanh(v) * self.gain",
        "        return 0.3 * v",
        "    def noise(self):",
        "        wide = self.uniform(-1.0, 1.0)",
        '        return wide * self.bernoulli(0.5, per="run") + self.normal()',
    ]
    lines += ["    def forward(self, messages):", *(f"        {x}" for x in body)]
    if kind == "written":
        e = draw(
            st.sampled_from(
                ("m.gradient", "m.gradient", "m.gradient * 0.5", "horn.math.tanh(m.gradient)")
            )
        )
        lines += [
            "    def backward(self, messages):",
            "        g = 0.0",
            "        for m in messages:",
            f"            g += {e}",
            "        self.backpropagate(g * self.activation.derivative(self.output) * self.gain)",
            '        self.push(g, to="gain")',
        ]
    return "\n".join(lines)


@st.composite
def standard_source(draw: Any, name: str, optimizer: str) -> str:
    """A weighted-sum class that writes backward with delta and push."""
    scale = draw(st.sampled_from(("1.0", "0.5", "math.tanh(m.weight)")))
    back = draw(st.sampled_from(("m.weight", "m.weight", "m.normal(0.0, 0.5)")))
    if optimizer.startswith("horn.Direct") and draw(st.booleans()):
        scale += " + 0.5 * m.previous_update"
    return "\n".join(
        (
            f"class {name}(horn.Neuron):",
            "    def forward(self, messages):",
            "        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))",
            "    def backward(self, messages):",
            "        g = 0.0",
            "        for m in messages:",
            f"            g += m.delta * {back}",
            f"            self.push(m.delta * self.output * {scale})",
            "        self.backpropagate(g * self.activation.derivative(self.output))",
        )
    )


HEADER = """import math
import horn

def soft(v):
    return v / (1.0 + abs(v))

def shrink(output):
    return output / (1.0 + abs(output).sum())

def centred(output):
    return output - output.mean()

def peak(output):
    return output - 0.5 * output.max()

def counted(output):
    spread = output - output.sum() / len(output)
    return spread / (1.0 + (spread * spread).sum() / (len(spread) + 1.5))
"""


@dataclass(frozen=True)
class Case:
    """A module's text with neuron classes N0, N1, ... and a function ``network()``."""

    text: str
    optimizer: str
    batch: int

    def module(self, folder: Path) -> ModuleType:
        name = f"generated_{next(_number)}"
        path = folder / f"{name}.py"
        path.write_text(self.text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


OPTIMIZERS = (
    "horn.SGD(0.1)",
    "horn.SGD(0.1, momentum=0.9)",
    "horn.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "horn.Adam(0.01)",
    "horn.RMSProp(0.01)",
    "horn.Adagrad(0.1, clip_value=0.05)",
    "horn.AdaDelta()",
    "horn.SGD(0.1, momentum=0.5, clip_norm=0.2)",
    "horn.Direct(0.1)",
)


@st.composite
def cases(draw: Any) -> Case:
    """A network of one to three hidden layers of generated neurons."""
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    n_hidden = draw(st.integers(1, 3))
    classes = []
    for k in range(n_hidden):
        maker = draw(
            st.sampled_from((neuron_source, neuron_source, neuron_source, standard_source))
        )
        classes.append(draw(maker(f"N{k}", optimizer)))
    lines = [
        HEADER,
        *classes,
        "def network():",
        f"    net = horn.Network(seed={draw(st.integers(0, 99))})",
    ]
    keep, per = draw(
        st.sampled_from(((1.0, "sample"), (1.0, "sample"), (0.7, "sample"), (0.7, "batch")))
    )
    lines.append(f'    layers = [net.input({draw(st.integers(2, 5))}, keep={keep}, per="{per}")]')
    for k in range(n_hidden):
        inputs = sorted({k, draw(st.integers(0, k))}) if draw(st.booleans()) else [k]
        connect = draw(
            st.sampled_from(
                (
                    "None",
                    "None",
                    "horn.Sparse(fan_in=2)",
                    "horn.Sparse(sources=lambda o: [o % 2, 1 - o % 2])",
                )
            )
        )
        activation = draw(st.sampled_from(("tanh", "relu", "sigmoid", "identity", "leaky_relu")))
        inter = draw(st.sampled_from(("None",) * 4 + ("shrink", "centred", "peak", "counted")))
        if "def backward" in classes[k]:
            inter = "None"
        bias = draw(st.sampled_from(("True", "0.1", "False")))
        lines.append(
            f"    layers.append(net.layer({draw(st.integers(2, 4))}, neuron=N{k}, "
            f"activation={activation!r}, interlayer={inter}, "
            f"inputs=[layers[i] for i in {inputs}], connect={connect}, bias={bias}, "
            "init=horn.Normal(0.1, 0.6)))"
        )
    act, loss = draw(
        st.sampled_from(
            (
                ("softmax", "cross_entropy"),
                ("softmax", "squared_error"),
                ("sigmoid", "binary_cross_entropy"),
                ("tanh", "squared_error"),
            )
        )
    )
    lines.append(f"    net.output(3, activation={act!r}, loss={loss!r})")
    lines.append("    return net")
    return Case("\n".join(lines) + "\n", optimizer, draw(st.integers(1, 5)))


def optimizer(case: Case) -> Any:
    return eval(case.optimizer, {"horn": horn})  # the text is one of OPTIMIZERS
