"""Neurons as text, for the tests of the compiler: written to a file, imported, and parsed."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import horn
from horn.activations import ACTIVATIONS, Activation
from horn.ir.neuron_ir import BackwardIR, ForwardIR, NeuronContext
from horn.language import parse

_number = itertools.count()
HEADER = "import math\n\nimport numpy as np\n\nimport horn\n\n\n"


def module(folder: Path, text: str) -> ModuleType:
    """The text as an imported file."""
    name = f"neurons_{next(_number)}"
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def source(body: str, before: str = "") -> str:
    """A file with a class N of this body."""
    inside = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return f"{HEADER}{textwrap.dedent(before)}\n\nclass N(horn.Neuron):\n{inside}\n"


def context(
    cls: type[horn.Neuron], training: bool = True, activation: str | Activation = "tanh"
) -> NeuronContext:
    function = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    return NeuronContext(cls, function, 1, training)


def forward(cls: type[horn.Neuron], training: bool = True) -> ForwardIR:
    return parse.forward(context(cls, training))


def backward(cls: type[horn.Neuron]) -> BackwardIR:
    return parse.backward(context(cls))
