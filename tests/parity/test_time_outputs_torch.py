"""Ragged sequences with an output of each step, one of the whole, and a loss between layers are
PyTorch's, over 40 updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make

torch: Any = pytest.importorskip("torch", reason="PyTorch is what is compared with")

STEPS, LENGTHS = 7, np.array([7, 1, 4, 5, 2, 7])


def square(y):
    return y * y


def test_the_same_weights_after_40_steps() -> None:
    rng, n = np.random.default_rng(0), len(LENGTHS)
    x, whole = rng.normal(size=(n, STEPS, 3)), rng.normal(size=(n, 2))
    tags = rng.integers(0, 4, (n, STEPS))
    net = horn.Network(seed=1)
    below = net.input(3, steps=STEPS)
    one = net.layer(5, activation="tanh", inputs=[below, horn.Delayed()], name="one")
    two = net.layer(5, activation="tanh", inputs=[one, horn.Delayed()], name="two")
    net.output(4, activation="softmax", loss="cross_entropy", each_step=True, name="tag")
    net.output(2, loss="squared_error", inputs=one, weight=0.5, name="whole")
    net.loss(one, two, lambda a, b: (a - b) ** 2, weight=0.3, name="alike")
    net.loss(two, f=square, weight=0.05, each_step=True, name="quiet")
    xs, ys = ([row[:k] for row, k in zip(a, LENGTHS, strict=True)] for a in (x, tags))
    job = horn.Job(net, (xs, {"tag": ys, "whole": whole}), dtype="float64", batch_size=n)
    engine = make("kernels", Setup(net, horn.SGD(0.2, momentum=0.9), "labels", n, "float64", 1))
    engine.bind(job.data)
    given = {name: torch.tensor(a, requires_grad=True) for name, a in engine.parameters().items()}
    optimizer = torch.optim.SGD(given.values(), lr=0.2, momentum=0.9)
    tx, ty, tw = torch.tensor(x), torch.tensor(tags), torch.tensor(whole)
    valid = torch.tensor(np.arange(STEPS) < LENGTHS[:, None])

    def recurrent(name: str, source: str, heard: Any) -> Any:
        own, states = torch.zeros(n, 5, dtype=torch.float64), []
        for t in range(STEPS):
            own = torch.tanh(
                heard[:, t] @ given[f"{name}.weight.{source}"].T
                + own @ given[f"{name}.weight.{name}"].T
                + given[f"{name}.bias"]
            )
            states.append(own)
        return torch.stack(states, dim=1)

    def last(sent: Any) -> Any:
        return sent[torch.arange(n), torch.tensor(LENGTHS - 1)]

    for k in range(40):
        first = recurrent("one", "layer0", tx)
        second = recurrent("two", "one", first)
        said = second @ given["tag.weight"].T + given["tag.bias"]
        answer = last(first) @ given["whole.weight"].T + given["whole.bias"]
        parts = [
            torch.nn.functional.cross_entropy(said[valid], ty[valid]),
            0.5 * ((answer - tw) ** 2).sum(dim=1).mean(),
            ((last(first) - last(second)) ** 2).sum(dim=1).mean(),
            (second**2).sum(dim=2)[valid].mean(),
        ]
        loss = sum(w * part for w, part in zip((1.0, 0.5, 0.3, 0.05), parts, strict=True))
        _, _, _, each = engine.results(job.data)
        np.testing.assert_allclose(np.array(each) / n, [p.item() for p in parts], rtol=1e-9)
        found = engine.step(np.arange(n), iteration=k, first_sample=0)
        assert found == pytest.approx(loss.item(), rel=1e-9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, array in engine.parameters().items():
        np.testing.assert_allclose(array, given[name].detach().numpy(), rtol=1e-8, atol=1e-9)
