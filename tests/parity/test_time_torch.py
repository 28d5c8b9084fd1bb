"""Recurrent cells written as one neuron are PyTorch's, both biases, over 50 updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.math import sigmoid, tanh

torch: Any = pytest.importorskip("torch", reason="PyTorch is what is compared with")

STEPS, FEATURES, SIZE, CLASSES, SAMPLES = 6, 3, 5, 4, 8


class RNN(horn.Neuron):
    second = horn.Parameter(0.0)

    def forward(self, messages):
        self.feedforward(tanh(sum(m.input * m.weight for m in messages) + self.second))


class LSTM(horn.Neuron):
    i, f, g, o = horn.Weight(), horn.Weight(), horn.Weight(), horn.Weight()
    second_i, second_f = horn.Parameter(0.0), horn.Parameter(0.0)
    second_g, second_o = horn.Parameter(0.0), horn.Parameter(0.0)
    cell = horn.State(0.0, per="sample")

    def forward(self, messages):
        i = sigmoid(sum(m.input * m.i for m in messages) + self.second_i)
        f = sigmoid(sum(m.input * m.f for m in messages) + self.second_f)
        g = tanh(sum(m.input * m.g for m in messages) + self.second_g)
        o = sigmoid(sum(m.input * m.o for m in messages) + self.second_o)
        self.cell = f * self.cell + i * g
        self.feedforward(o * tanh(self.cell))


class GRU(horn.Neuron):
    r, z, n = horn.Weight(), horn.Weight(), horn.Weight()
    second_r, second_z = horn.Parameter(0.0), horn.Parameter(0.0)
    second_n = horn.Parameter(0.0)
    h = horn.State(0.0, per="sample")

    def forward(self, messages):
        r = sigmoid(sum(m.input * m.r for m in messages) + self.second_r)
        z = sigmoid(sum(m.input * m.z for m in messages) + self.second_z)
        heard = sum(m.input * m.n for m in messages.h)
        rest = sum(m.input * m.n for m in messages) - heard  # the inputs, and the bias
        n = tanh(rest + r * (heard + self.second_n))
        h = (1.0 - z) * n + z * self.h
        self.h = h
        self.feedforward(h)


CELLS = {RNN: ("",), LSTM: ("i", "f", "g", "o"), GRU: ("r", "z", "n")}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fifty_updates(cell, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, STEPS, FEATURES))
    y = rng.integers(0, CLASSES, (SAMPLES, STEPS))
    net = horn.Network(seed=1)
    below = net.input(FEATURES, steps=STEPS)
    net.layer(SIZE, neuron=cell, inputs={"x": below, "h": horn.Delayed()}, name="h")
    net.output(CLASSES, activation="softmax", loss="cross_entropy", each_step=True, name="out")
    made = torch.nn
    layer = getattr(made, cell.__name__)(FEATURES, SIZE, batch_first=True)
    out = made.Linear(SIZE, CLASSES)
    theirs = {"x": layer.weight_ih_l0, "h": layer.weight_hh_l0}
    first, second = layer.bias_ih_l0, layer.bias_hh_l0
    for module in (layer, out):
        module.to(getattr(torch, dtype))
    arrays = net.initial_parameters(dtype)
    with torch.no_grad():
        for k, gate in enumerate(CELLS[cell]):
            rows, end = slice(k * SIZE, (k + 1) * SIZE), f".{gate}" if gate else ""
            for name, weight in theirs.items():
                weight[rows] = torch.tensor(arrays[f"h.weight.{name}{end}"])
            first[rows] = torch.tensor(arrays[f"h.bias{end}"])
            second[rows] = 0.0
        out.weight[:], out.bias[:] = torch.tensor(arrays["out.weight"]), 0.0
    optimizer = torch.optim.SGD([*layer.parameters(), *out.parameters()], lr=0.1, momentum=0.9)
    inputs, labels = torch.tensor(x, dtype=getattr(torch, dtype)), torch.tensor(y)
    for _ in range(50):
        optimizer.zero_grad()
        said = out(layer(inputs)[0]).reshape(-1, CLASSES)
        torch.nn.functional.cross_entropy(said, labels.reshape(-1)).backward()
        optimizer.step()
    job = horn.Job(net, data=(x, y), batch_size=SAMPLES, iterations=50, dtype=dtype,
                   optimizer=horn.SGD(0.1, momentum=0.9))  # fmt: skip
    found = horn.train(job, progress=False).model.parameters
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    for k, gate in enumerate(CELLS[cell]):
        rows, end = slice(k * SIZE, (k + 1) * SIZE), f".{gate}" if gate else ""
        for name, weight in theirs.items():
            near(found[f"h.weight.{name}{end}"], weight[rows], tolerance)
        near(found[f"h.bias{end}"], first[rows], tolerance)
        near(found[f"h.second_{gate}" if gate else "h.second"], second[rows], tolerance)
    near(found["out.weight"], out.weight, tolerance)


def near(ours: Any, theirs: Any, tolerance: float) -> None:
    np.testing.assert_allclose(ours, theirs.detach().numpy(), 0, tolerance)
