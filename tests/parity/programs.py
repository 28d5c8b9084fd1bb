"""Random programs of the whole documented grammar, as source text, from a number.

``program(seed)`` writes neuron classes, helpers, an interlayer and a loss; ``agree(seed, folder)``
runs them interpreted, on both compiled backends, and forward in plain Python, and compares.
Expressions are bounded, and what decides (comparisons, //, %) looks at numbers that are drawn, so
that rounding decides nothing.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import horn
from horn.backends import Setup, make
from horn.compiler import lower
from horn.data import Dataset
from tests.parity.test_compiled_equals_interpreted import agree as compare

COMPILE_S = 2.0
BATCH = 3
CONSTANTS = ("0.5", "1.5", "-0.7", "1.9", "0.13", "2", "-1.1")
BOUNDED = (
    "math.tanh({})", "hm.sigmoid({})", "math.sin({})", "math.cos({})", "math.atan({})",
    "math.erf({})", "hm.erfc({})", "hm.tanh({})", "hm.erf({})", "math.asin(0.9 * math.tanh({}))",
    "math.acos(0.9 * hm.tanh({}))", "math.exp(-abs({}))", "hm.stop_gradient(math.tanh({}))",
)  # fmt: skip
UNARY = (
    "abs({})", "(-{})", "hm.softplus({})", "hm.relu({})", "math.sqrt(0.2 + abs({}))",
    "math.log(1.1 + abs({}))", "hm.log1p(abs({}))", "math.tan(0.5 * math.tanh({}))",
    "math.floor({})", "math.ceil({})", "hm.sign({})", "float({})", "(+{})", "hm.stop_gradient({})",
    "hm.expm1(math.tanh({}))", "({}) ** 2", "(1.3 + abs({})) ** -1", "(1.1 + abs({})) ** -2",
    "(0.4 + abs({})) ** 0.5", "({}) ** 3", "(2 + math.tanh({})) ** -1.5",
)  # fmt: skip
BINARY = (
    "({} + {})", "({} - {})", "({} * math.tanh({}))", "(math.tanh({}) * {})",
    "({} / (1.2 + abs({})))", "hm.atan2({}, 1.5 + abs({}))", "math.atan2({}, 0.3 + {})",
    "max({}, {})", "min({}, {})", "hm.maximum({}, {})", "hm.minimum({}, {})",
    "(1.4 + abs({})) ** math.tanh({})", "pow(1.2 + abs({}), math.sin({}))",
)  # fmt: skip


class Writer:
    """Writes one program. ``drawn`` are the names in reach that vary from sample to sample."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.helpers: list[str] = []
        self.n_names = 0

    def one(self, *choices: str) -> str:
        return self.r.choice(choices)

    def name(self) -> str:
        self.n_names += 1
        return f"v{self.n_names}"

    # --- expressions

    def number(self, names: list[str], depth: int, loop: bool = False) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.12:
            return self.one(*names, *names, self.one(*CONSTANTS))
        kind = r.randrange(14)
        sub = lambda: self.number(names, depth - 1, loop)  # noqa: E731
        if kind < 3:
            return self.one(*BOUNDED).format(sub())
        if kind < 5:
            return self.one(*UNARY).format(sub())
        if kind < 8:
            return self.one(*BINARY).format(sub(), sub())
        if kind == 8:
            drawn = self.one(*names)
            step = self.one("0.7", "-0.4", "(1.3 + abs(" + self.one(*names) + "))")
            return f"(({drawn} + 0.171 * {sub()}) {self.one('//', '%')} {step})"
        if kind == 9:
            return f"({sub()} if {self.condition(names, depth - 1)} else {sub()})"
        if kind == 10:
            return f"hm.where({self.condition(names, depth - 1)}, {sub()}, {sub()})"
        if kind == 11 and self.helpers:
            return f"{self.one(*self.helpers)}({sub()}, {sub()})"
        if kind == 12:
            form = self.one("sum({0} * k for k in (1, 2, 0.5))", "max({0} + k for k in TAPS)",
                            "sum({0} ** k for k in range(1, 4))",
                            "sum((TAPS[k] * {0} for k in range(2)))",
                            "min(abs({0} - k) for k in TAPS if k > 0.2)",
                            "math.prod(1.0 + 0.2 * math.tanh({0} * k) for k in range(3))",
                            "sum({0} * a - b for a, b in PAIRS)")  # fmt: skip
            return f"{form}".format(f"math.tanh({self.one(*names)})")
        if kind == 13 and not loop:
            a, b = sub(), sub()
            c, x = self.condition(names, 1), self.one(*names)
            joined = self.one(
                f"({c} and {a})",
                f"({c} or {b})",
                f"(math.floor(0.6 * {x}) or {b})",
                f"({a} and {b} or {self.one(*CONSTANTS)})",
                f"(0.0 or {a})",
                f"(0.3 and {b})",
            )
            return joined
        return self.one(*BINARY).format(sub(), sub())

    def condition(self, names: list[str], depth: int) -> str:
        r = self.r
        a = self.one(*names)
        c = self.one("0.05", "-0.3", "0.41", "1.07")
        kind = r.randrange(9)
        if kind < 3 or depth <= 0:
            return f"{a} {self.one('<', '>', '<=', '>=')} {c}"
        if kind == 3:
            return f"-0.61 < {self.number(names, depth - 1, True)} <= {a} + 0.77"
        if kind == 4:
            first, other = (self.condition(names, depth - 1) for _ in range(2))
            return f"({first} {self.one('and', 'or')} {other})"
        if kind == 5:
            return f"(not {self.condition(names, depth - 1)})"
        if kind == 6:
            return f"math.isfinite({self.number(names, depth - 1, True)})"
        if kind == 7:
            return f"({a} != {c})"
        return f"{self.number(names, depth - 1, True)} > {c}"

    # --- statements

    def statements(
        self, names: list[str], count: int, nested: int = 0, loop: bool = False
    ) -> list[str]:
        """Statements that change or add to ``names``."""
        lines: list[str] = []
        for _ in range(count):
            kind = self.r.randrange(9)
            if kind < 3:
                new = self.name()
                lines.append(f"{new} = {self.number(names, 2, loop)}")
                names.append(new)
            elif kind == 3:
                own = [n for n in names if n.startswith("v")]
                if own:
                    op = self.one("+=", "-=", "+=", "*=", "%=", "//=")
                    right = (
                        "0.83"
                        if op in ("%=", "//=")
                        else f"math.tanh({self.number(names, 1, loop)})"
                    )
                    lines.append(f"{self.one(*own)} {op} {right}")
            elif kind == 4 and nested < 2:
                own = [n for n in names if n.startswith("v")]
                if own:
                    set_ = self.one(*own)
                    lines.append(f"if {self.condition(names, 2)}:")
                    inner = list(names)
                    lines += ["    " + x for x in self.statements(inner, 1, nested + 1, loop)]
                    lines.append(f"    {set_} = {self.number(inner, 2, loop)}")
                    if self.r.random() < 0.4:
                        lines.append(f"elif {self.condition(names, 1)}:")
                        lines.append(f"    {set_} = {self.number(names, 1, loop)}")
                    if self.r.random() < 0.6:
                        lines.append("else:")
                        lines.append(f"    {set_} -= {self.number(names, 1, loop)}")
            elif kind == 5 and nested < 2:
                new, k = self.name(), self.name()
                over = self.one(
                    "range(3)", "range(1, 6, 2)", "TAPS", "(0.3, -0.2)", "range(len(TAPS))"
                )
                lines.append(f"{new} = {self.number(names, 1, loop)}")
                lines.append(f"for {k} in {over}:")
                inner = [*names, new, k]
                body = self.statements(inner, self.r.randrange(2), nested + 1, loop)
                lines += ["    " + x for x in body]
                lines.append(
                    f"    {new} {self.one('+=', '-=')} math.tanh({self.number(inner, 2, loop)})"
                )
                names.append(new)
            elif kind == 6:
                a, b = self.name(), self.name()
                lines.append(
                    f"{a}, {b} = {self.number(names, 1, loop)}, {self.number(names, 1, loop)}"
                )
                names += [a, b]
            else:
                new = self.name()
                lines.append(f"{new} = {self.number(names, 3, loop)}")
                names.append(new)
        return lines

    def helper(self, number: int) -> list[str]:
        """A function with early returns."""
        names = ["x", "y"]
        lines = [f"def h{number}(x, y):"]
        body = self.statements(names, self.r.randrange(2))
        for _ in range(self.r.randrange(3)):
            form = self.r.randrange(3)
            if form == 0:
                body += [f"if {self.condition(names, 2)}:", f"    return {self.number(names, 2)}"]
            elif form == 1:
                body += [f"if {self.condition(names, 1)}:", f"    if {self.condition(names, 1)}:",
                         f"        return {self.number(names, 1)}", "    x = 0.7 * x"]  # fmt: skip
            else:
                body += ["for k in range(3):", f"    if {self.one(*names)} > 0.33 + 0.4 * k:",
                         f"        return {self.number(names, 1)} + k"]  # fmt: skip
        body.append(f"return {self.number(names, 2)}")
        return lines + ["    " + x for x in body] + [""]

    # --- programs

    def neuron(self, name: str) -> list[str]:
        r = self.r
        lines = [f"class {name}(horn.Neuron):", "    slope = 0.3", "    taps = (0.4, -0.9)"]
        names = ["self.slope"]
        for k in range(r.randrange(3)):
            lines.append(
                f"    p{k} = horn.Parameter({self.one('0.6', '-0.4', 'horn.Uniform(0.1, 1)')})"
            )
            names.append(f"self.p{k}")
        state = r.random() < 0.3
        if state:
            lines.append("    kept = horn.State(0.21)")
            names.append("self.kept")
        names.append(self.one("self.index", "len(messages)", "self.iteration", "self.layer_index"))
        body: list[str] = []
        gathered: list[str] = []
        for _ in range(r.randrange(1, 4)):
            v, form = self.name(), r.randrange(10)
            fields = [
                "m.input",
                "m.weight",
                "m.input * m.weight",
                *self.one(*["m.index"], "self.slope").split("|"),
            ]
            e = f"(m.input * m.weight + 0.2 * {self.number(fields, 2, True)})"
            if form < 3:
                body.append(f"{v} = sum(m.input * m.weight for m in messages)")
            elif form == 3:
                body.append(f"{v} = sum(math.tanh({e}) for m in messages) / len(messages)")
            elif form == 4:
                body.append(f"{v} = {self.one('max', 'min')}({e} for m in messages)")
            elif form == 5:
                body.append(f"{v} = math.prod(1.0 + 0.3 * math.tanh({e}) for m in messages)")
            elif form == 6:
                low = "m.input > 0.1" if r.random() < 0.5 else "m.index % 2 == 0"
                body.append(f"{v} = sum({e} for m in messages if {low})")
            elif form == 7:
                body += [
                    f"{v} = -9.0",
                    "for m in messages:",
                    f"    u = {e}",
                    f"    if u > {v}:",
                    f"        {v} = u",
                ]
            else:
                w, inner = self.name(), list(fields)
                body += [f"{v}, {w} = 0.1, 1.0", "for m in messages:"]
                body += ["    " + x for x in self.statements(inner, r.randrange(3), 1, True)]
                body.append(f"    {v} += m.weight * {self.number(inner, 2, True)}")
                if r.random() < 0.5:
                    body += [
                        f"    if {self.condition(fields[:3], 1)}:",
                        f"        {w} *= 1.0 + 0.1 * math.tanh({inner[-1]})",
                    ]
                else:
                    body += ["    for k in range(2):", f"        {w} += math.tanh(k * m.input)"]
                gathered.append(w)
            gathered.append(v)
        names += [*gathered, *gathered]
        body += self.statements(names, r.randrange(4))
        if r.random() < 0.25:
            drawn = self.one("bernoulli(0.6)", "uniform(-1.0, 1.0)", "normal(0.0, 0.5)")
            body.append(f"noise = self.{drawn} if self.training else 0.5")
            names.append("noise")
        y = f"math.tanh({self.number(names, 3)}) + " + " + ".join(
            f"0.3 * math.tanh({g})" for g in gathered
        )
        if state:
            body.append(f"self.kept = 0.8 * self.kept + 0.1 * math.tanh({self.one(*gathered)})")
        if r.random() < 0.3:
            body += [
                f"if {self.condition(gathered, 2)}:",
                f"    self.feedforward(self.bent({y}))",
                "    return",
            ]
        body.append(f"self.feedforward({self.one('self.activation({})', '{}').format(y)})")
        lines += ["    def forward(self, messages):", *("        " + x for x in body)]
        lines += ["    def bent(self, z):"]
        inner = ["z", "self.slope"]
        lines += ["        for t in self.taps:", f"            if {self.condition(inner[:1], 1)}:",
                  f"                z = z * t + {self.number(inner, 1)}",
                  f"        return math.tanh({self.number(inner, 2)})", ""]  # fmt: skip
        return lines

    def layerwise(self, name: str, words: list[str]) -> list[str]:
        """An interlayer (output) or a loss (output, target)."""
        r, names = self.r, list(words)
        body: list[str] = []
        for _ in range(r.randrange(3)):
            v, x = self.name(), f"math.tanh(output + {self.number(names, 1)})"
            form = self.one("({}).sum()", "({}).max()", "({}).mean()", "({}).min()", "sum({})",
                            "max({})",
                            "min({})", "(1.0 + 0.3 * {}).prod()", "0.2 * len({})")  # fmt: skip
            body.append(f"{v} = {form.format(x if 'len' not in form else 'output')}")
            names.append(v)
        body += self.statements(names, r.randrange(3))
        if r.random() < 0.4:
            body += [f"if {self.condition(['output'], 1)}:", f"    return {self.tail(name, names)}"]
        body.append(f"return {self.tail(name, names)}")
        return [f"def {name}({', '.join(words)}):", *("    " + x for x in body), ""]

    def tail(self, name: str, names: list[str]) -> str:
        y = f"math.tanh({self.number(names, 2)})"
        if name == "between":
            return f"0.8 * output + 0.3 * {y}"
        return f"(output - target) ** 2 + 0.2 * {y}"

    def program(self) -> str:
        r = self.r
        lines = ["import math", "import horn", "from horn import math as hm", "",
                 "TAPS = (0.25, -0.5, 1.25)", "PAIRS = ((0.5, 0.2), (-1.5, 0.1))", ""]  # fmt: skip
        for k in range(r.randrange(3)):
            lines += self.helper(k)
            self.helpers.append(f"h{k}")
        n_hidden = r.randrange(1, 3)
        for k in range(n_hidden):
            lines += self.neuron(f"N{k}")
        lines += self.layerwise("between", ["output"]) + self.layerwise(
            "judge", ["output", "target"]
        )
        lines += ["def bend(z):", f"    return {self.number(['z'], 2)} + 0.1 * z", ""]
        lines += ["def network():", f"    net = horn.Network(seed={r.randrange(99)})"]
        lines.append(f"    layers = [net.input({r.randrange(2, 5)})]")
        for k in range(n_hidden):
            inputs = sorted({k, r.randrange(k + 1)})
            act = self.one("'tanh'", "'relu'", "'sigmoid'", "horn.Activation('bend', bend)")
            between, connect = (
                self.one("None", "None", "between"),
                self.one("None", "None", "horn.Sparse(fan_in=1)"),
            )
            lines.append(
                f"    layers.append(net.layer({r.randrange(1, 4)}, neuron=N{k}, activation={act}, "
                f"interlayer={between}, inputs=[layers[i] for i in {inputs}], connect={connect}, "
                f"bias={self.one('True', 'False', '0.1')}, init=horn.Normal(0.1, 0.7)))"
            )
        head = self.one(
            "activation='softmax', loss='cross_entropy'",
            "activation='tanh', loss=judge",
            "activation='tanh', interlayer=between, loss=judge",
            "activation='softmax', loss=judge",
        )
        size = self.one("3", "3", "1" if "judge" in head and "soft" not in head else "2")
        lines += [f"    net.output({size}, {head})", "    return net"]
        return "\n".join(lines) + "\n"


def program(seed: int) -> str:
    return Writer(seed).program()


def load(text: str, seed: int, folder: Path) -> ModuleType:
    name = f"random_program_{seed}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Message:
    """A message of plain floats."""

    def __init__(self, x: float, weight: float, index: int) -> None:
        self.input, self.weight, self.index = x, weight, index


class _Host:
    output: Any = None

    def feedforward(self, neuron: Any, value: Any) -> None:
        assert self.output is None
        self.output = value


def in_python(network: Any, arrays: dict[str, Any], x: np.ndarray) -> list[float] | None:
    """What the last hidden layer sends, by the user's methods on plain floats."""
    sent = [[float(v) for v in x]]
    for layer in network.layers[1:-1]:
        if layer.interlayer is not None:
            return None
        made = []
        for o in range(layer.size):
            messages = []
            for link in layer.links:
                weight = np.asarray(arrays[link.weight])
                if link.edges is None:
                    pairs = [(i, weight[o, i]) for i in range(link.source.size)]
                else:
                    places = range(link.edges.indptr[o], link.edges.indptr[o + 1])
                    pairs = [(int(link.edges.indices[e]), weight[e]) for e in places]
                for i, w in pairs:
                    messages.append(_Message(sent[link.source.index][i], float(w), len(messages)))
            if layer.bias is not None:
                bias = float(arrays[layer.biases["weight"]][o])
                messages.append(_Message(1.0, bias, len(messages)))
            neuron = object.__new__(layer.neuron)
            host = _Host()
            vars(neuron).update(
                index=o, layer_index=layer.index, activation=layer.activation, training=False,
                iteration=0, learning_rate=0.0, _host=host,
                **{p: float(arrays[f"{layer.name}.{p}"][o]) for p in layer.parameters},
                **dict.fromkeys(layer.states, 0.21),
            )  # fmt: skip
            neuron.forward(messages)
            made.append(float(host.output))
        sent.append(made)
    return sent[-1]


def agree(seed: int, folder: Path) -> None:
    """AssertionError, or any other exception, where the three do not."""
    text = program(seed)
    network = load(text, seed, folder).network()
    rng = np.random.default_rng(seed)
    size = network.last.size
    labels = rng.integers(0, max(size, 2), 8)
    data = Dataset(rng.standard_normal((8, network.n_inputs)), labels)
    optimizer = horn.SGD(0.05, momentum=0.5)
    names = ("python", "reference", "kernels")
    start = time.process_time()
    lower.training_program(network, optimizer, "label" if size > 1 else "value")
    taken = time.process_time() - start
    assert taken < COMPILE_S, f"{taken:.1f} s to compile"
    engines = [make(b, Setup(network, optimizer, "labels", BATCH, "float64", 1)) for b in names]
    with np.errstate(all="ignore"):
        for x in data.x[:3]:
            try:
                plain = in_python(network, engines[0].parameters(), x)
            except (ArithmeticError, ValueError):
                break  # Python raises where arrays go on with infinity or NaN
            if plain is None:
                break
            sub = engines[0]
            found = _last_hidden(sub, x)
            np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-11, err_msg="plain Python")
        compare(engines, names, data, BATCH)


def _last_hidden(engine: Any, x: np.ndarray) -> list[float]:
    """What the interpreter's last hidden layer sends in inference."""
    from horn.interpreter import engine as of_engine
    from horn.interpreter import passes
    from horn.interpreter.calls import Moment

    moment = Moment(engine.network.seed, False, 0, 0, 0.0)
    states = of_engine._flat(engine._states)
    memory = engine._memory(False)
    [sample] = passes.forward(engine.stages, [x.tolist()], [moment], memory, states)
    return sample.sent[-2]
