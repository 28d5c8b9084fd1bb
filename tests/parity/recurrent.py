"""Recurrent networks, generated: cells, delays, cycles over layers, gates, States, draws."""

from __future__ import annotations

from typing import Any

import numpy as np

import horn
from horn.math import exp, sigmoid, stop_gradient, tanh
from tests.support.neurons import Written


class LSTM(horn.Neuron):
    i, f, g, o = horn.Weight(), horn.Weight(bias=1.0), horn.Weight(), horn.Weight()
    cell = horn.State(0.2, per="sample")

    def forward(self, messages):
        i = sigmoid(sum(m.input * m.i for m in messages))
        f = sigmoid(sum(m.input * m.f for m in messages))
        g = tanh(sum(m.input * m.g for m in messages))
        o = sigmoid(sum(m.input * m.o for m in messages))
        self.cell = f * self.cell + i * g
        self.feedforward(o * tanh(self.cell))


class GRU(horn.Neuron):
    """Its h is what it hears of itself, and what it keeps."""

    r, z, n = horn.Weight(), horn.Weight(), horn.Weight()
    b = horn.Parameter(0.1)
    h = horn.State(0.0, per="sample")

    def forward(self, messages):
        r = sigmoid(sum(m.input * m.r for m in messages))
        z = sigmoid(sum(m.input * m.z for m in messages))
        x = sum(m.input * m.n for m in messages) - sum(m.input * m.n for m in messages.h)
        n = tanh(x + r * (sum(m.input * m.n for m in messages.h) + self.b))
        h = (1.0 - z) * n + z * self.h
        self.h = h
        self.feedforward(h)


class LIF(horn.Neuron):
    """Spikes, with a surrogate of their gradient."""

    v = horn.State(0.1, per="sample")
    leak = horn.Parameter(0.8)

    def forward(self, messages):
        v = self.leak * self.v + sum(m.input * m.weight for m in messages)
        soft = sigmoid(4.0 * (v - 0.5))
        spike = soft + stop_gradient((1.0 if v > 0.5 else 0.0) - soft)
        self.v = v - stop_gradient(spike)
        self.feedforward(spike)


class Distance(horn.Neuron):
    """No weighted sum, and remembers it."""

    near = horn.State(0.3, per="sample")

    def forward(self, messages):
        d = sum((m.input - m.weight) ** 2 for m in messages)
        y = exp(-0.3 * d) + 0.5 * self.near
        self.near = y if y > 0.2 else 0.5 * self.near
        self.feedforward(y)


class Noisy(horn.Neuron):
    """Draws at every step, and keeps a running value between batches."""

    seen = horn.State(0.05)

    def forward(self, messages):
        here = self.bernoulli(0.7) if self.training else 0.7
        total = sum(m.input * m.weight for m in messages)
        self.seen = 0.5 * self.seen + 0.1 * total
        self.feedforward(tanh(total + self.seen) * here)


class DropConnect(horn.Neuron):
    def forward(self, messages):
        total = 0.0
        for m in messages:
            total += m.input * m.weight * (self.bernoulli(0.8) if self.training else 0.8)
        self.feedforward(tanh(total))


class Silent(horn.Neuron):
    """One mask per batch: the same at every step."""

    def forward(self, messages):
        mask = self.bernoulli(0.6, per="batch") if self.training else 0.6
        if mask == 0:
            self.feedforward(0.0)
        else:
            self.feedforward(tanh(sum(m.input * m.weight for m in messages)) * mask)


class Masked(horn.Neuron):
    """Variational dropout: neurons and synapses that are silent in a whole sequence."""

    def forward(self, messages):
        here = self.bernoulli(0.7, per="sequence") if self.training else 0.7
        total = 0.0
        for m in messages:
            one = self.bernoulli(0.8, per="sequence") if self.training else 0.8
            total += m.input * m.weight * one
        self.feedforward(tanh(total + 0.1 * self.normal(per="sequence")) * here)


class Hebb(horn.Neuron):
    """Learns by itself: what it pushes adds up over the steps."""

    def forward(self, messages):
        y = tanh(sum(m.input * m.weight for m in messages))
        for m in messages:
            self.push(0.1 * y * (m.input - y * m.weight))
        self.feedforward(y)


class Winner(horn.Neuron):
    """Asks its layer at every step."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        self.feedforward(tanh(y - self.mean(y, over="layer")))


SMOOTH = (LSTM, GRU, Distance, Winner, horn.Standard)
CELLS = (*SMOOTH, LIF, Noisy, DropConnect, Silent, Masked, Hebb)


def generated(seed: int, cells: tuple[Any, ...] = CELLS, steps: int | None = None) -> Any:
    """A network, and data that fit it."""
    rng = np.random.default_rng(seed)
    steps = steps or int(rng.integers(1, 7))
    n_in, n_out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    net = horn.Network(seed=seed)
    keep = 0.8 if Noisy in cells and rng.random() < 0.2 else 1.0
    last = net.input(n_in, steps=steps, keep=keep, per=rng.choice(["sample", "sequence", "batch"]))
    names = [f"l{k}" for k in range(int(rng.integers(1, 3)))]
    kind = int(rng.integers(4))
    each = bool(rng.random() < 0.5)
    before = []
    for k, name in enumerate(names):
        cell = cells[int(rng.integers(len(cells)))]
        heard: dict[str, Any] = {"x": last, "h": horn.Delayed(steps=int(rng.integers(1, 3)))}
        if rng.random() < 0.4:
            others = [*names[k + 1 :], "out"]
            heard["above"] = horn.Delayed(str(rng.choice(others)), int(rng.integers(1, 4)))
        if rng.random() < 0.3:
            heard["old"] = horn.Delayed(before[-1] if before else last, int(rng.integers(1, 3)))
        if rng.random() < 0.2 and cell is not GRU:
            heard.pop("h")
        connect = {"h": horn.Sparse(fan_in=2)} if rng.random() < 0.3 and "h" in heard else None
        size = int(rng.integers(2, 5))
        plain = "old" not in heard and rng.random() < 0.3 and cell is not GRU
        inputs = list(heard.values()) if plain and connect is None else heard
        made = net.layer(
            size, neuron=cell, inputs=inputs, connect=connect, name=name, bias=rng.random() < 0.8,
            activation="tanh",
        )  # fmt: skip
        before.append(made)
        last = made
        if Silent in cells and kind != 2 and rng.random() < 0.4 and k == len(names) - 1:
            last = net.layer(2, neuron=Written, activation="sigmoid")
    n = 5
    shape = (n, steps) if each else (n,)
    y: Any
    if kind == 0 and n_out > 1:
        net.output(n_out, activation="softmax", loss="cross_entropy", each_step=each, name="out")
        y = rng.integers(0, n_out, shape)
    elif kind == 1:
        net.output(n_out, activation="sigmoid", loss="binary_cross_entropy", each_step=each,
                   name="out")  # fmt: skip
        y = rng.integers(0, 2, (*shape, n_out)).astype(float)
    elif kind == 2:
        net.output(n_out, neuron=cells[0], inputs=[last, horn.Delayed()], loss="squared_error",
                   each_step=each, name="out", activation="tanh")  # fmt: skip
        y = rng.normal(size=(*shape, n_out))
    else:
        net.output(n_out, loss="squared_error", each_step=each, name="out")
        y = rng.normal(size=(*shape, n_out))
    return net, (rng.normal(size=(n, steps, n_in)), y)
