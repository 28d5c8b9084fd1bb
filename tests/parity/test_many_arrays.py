"""A net may use as many arrays in one formula as it likes: the kernels compute what the reference
does.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import horn

N = 60


def neuron(folder, name: str, fields: list[str], lines: list[str]):
    """A neuron class from source, as users write it."""
    body = ["        z = sum(m.input * m.weight for m in messages)", *(" " * 8 + x for x in lines)]
    text = ["import horn", "", "", f"class {name}(horn.Neuron):", *(f"    {x}" for x in fields),
            "    def forward(self, messages):", *body,
            "        self.feedforward(self.activation(z))", ""]  # fmt: skip
    path = folder / f"{name.lower()}.py"
    path.write_text("\n".join(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def chain(hidden) -> horn.Network:
    net = horn.Network(seed=3)
    net.input(12)
    net.layer(5, neuron=hidden, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def many_parameters(folder) -> horn.Network:
    fields = [f"p{k} = horn.Parameter({0.01 * (k + 1):.2f})" for k in range(N)]
    lines = [f"z = z * (1.0 + self.p{k} * 0.01) + self.p{k}" for k in range(N)]
    return chain(neuron(folder, "Parameters", fields, lines))


def many_operations(folder) -> horn.Network:
    lines = [f"z = horn.math.tanh(z) * 1.5 + z * {0.1 + k / 100:.2f}" for k in range(N)]
    return chain(neuron(folder, "Operations", [], lines))


def many_links(folder) -> horn.Network:
    net = horn.Network(seed=3)
    first = net.input(12)
    layers = [net.layer(2, inputs=[first], activation="tanh") for _ in range(N)]
    net.output(3, inputs=layers, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("optimizer", [horn.SGD(0.01, momentum=0.9), horn.Adam(0.01)])
@pytest.mark.parametrize("make", [many_parameters, many_operations, many_links])
def test_a_formula_of_many_arrays_computes_what_the_reference_does(make, optimizer, tmp_path):
    net = make(tmp_path)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((64, 12)), rng.integers(0, 3, 64)
    found = {}
    for backend in ("reference", "kernels"):
        job = horn.Job(net, data=data, optimizer=optimizer, batch_size=16, iterations=3,
                       dtype="float64", check=False)  # fmt: skip
        found[backend] = horn.train(job, backend=backend).model.parameters
    assert found["reference"].keys() == found["kernels"].keys()
    for name, array in found["reference"].items():
        np.testing.assert_allclose(found["kernels"][name], array, rtol=1e-7, atol=1e-9)
