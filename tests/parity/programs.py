"""Random programs of the whole documented grammar, as source text, from a number.

``program(seed)`` writes neuron classes, helpers, an interlayer and a loss; ``agree(seed, folder)``
runs them interpreted, on both compiled backends, and forward in plain Python, and compares.
"""

from __future__ import annotations

import importlib.util
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
from tests.parity import plain
from tests.parity.neuron_texts import NeuronWriter
from tests.parity.test_compiled_equals_interpreted import agree as compare

COMPILE_S = 2.0
BATCH = 3


class Writer(NeuronWriter):
    """Writes one program."""

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
        own_output = r.random() < 0.35
        kinds = []
        for k in range(n_hidden):
            is_written = r.random() < 0.25
            kinds.append("written" if is_written else "free")
            name, is_last = f"N{k}", k == n_hidden - 1
            if is_written:
                lines += self.written(name, is_last and not own_output, not own_output)
            else:
                lines += self.free(name)
        if own_output:
            lines += self.free("Out", is_output=True)
        lines += self.layerwise("between", ["output"])
        lines += self.layerwise("judge", ["output", "target"])
        lines += ["def bend(z):", f"    return {self.number(['z'], 2)} + 0.1 * z", ""]
        lines += ["def network():", f"    net = horn.Network(seed={r.randrange(99)})"]
        lines.append(f"    layers = [net.input({r.randrange(2, 5)})]")
        for k, kind in enumerate(kinds):
            inputs = sorted({k, r.randrange(k + 1)})
            act = self.one("'tanh'", "'relu'", "'sigmoid'", "horn.Activation('bend', bend)")
            between = self.one("None", "None", "between") if kind == "free" else "None"
            connect = self.one("None", "None", "horn.Sparse(fan_in=1)")
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
        if own_output:
            head = f"neuron=Out, {head}"
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
    takes: list[float] = []  # again where it is too long: other work slows a processor's time, too
    while not takes or (min(takes) >= COMPILE_S and len(takes) < 3):
        start = time.process_time()
        lower.training_program(network, optimizer, "label" if size > 1 else "value")
        takes.append(time.process_time() - start)
    assert min(takes) < COMPILE_S, f"{min(takes):.1f} s to compile"
    engines = [make(b, Setup(network, optimizer, "labels", BATCH, "float64", 1)) for b in names]
    with np.errstate(all="ignore"):
        for x in data.x[:3]:
            try:
                expected = plain.last_hidden(network, engines[0].parameters(), x)
            except (ArithmeticError, ValueError):
                break  # Python raises where arrays go on with infinity or NaN
            if expected is None:
                break
            found = _last_hidden(engines[0], x)
            np.testing.assert_allclose(
                found, expected, rtol=1e-9, atol=1e-11, err_msg="plain Python"
            )
        compare(engines, names, data, BATCH)


def _last_hidden(engine: Any, x: np.ndarray) -> list[float]:
    """What the interpreter's last hidden layer sends in inference."""
    from horn.interpreter import passes
    from horn.interpreter.calls import Moment
    from horn.interpreter.samples import flat

    moment = Moment(engine.network.seed, False, 0, 0, 0.0)
    states = flat(engine._states)
    memory = engine._memory(False)
    [sample] = passes.forward(engine.stages, [x.tolist()], [moment], memory, states)
    return sample.sent[-2]
