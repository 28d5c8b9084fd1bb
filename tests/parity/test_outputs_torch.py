"""Two heads, an auxiliary loss and losses between layers are PyTorch's, over 30 steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.data import as_dataset

torch: Any = pytest.importorskip("torch", reason="PyTorch is what is compared with")


def test_the_same_weights_after_30_steps() -> None:
    rng = np.random.default_rng(0)
    x, labels, sizes = rng.normal(size=(16, 5)), rng.integers(0, 3, 16), rng.normal(size=(16, 2))
    net = horn.Network(seed=1)
    source = net.input(5)
    middle = net.layer(6, activation="tanh", name="middle")
    top = net.layer(5, activation="sigmoid", name="top")
    net.output(3, activation="softmax", loss="cross_entropy", name="digit")
    net.output(3, activation="softmax", loss="cross_entropy", inputs=middle, weight=0.3, name="aux")
    net.output(2, loss="squared_error", inputs=top, weight=0.5, name="sizes")
    net.loss(top, source, lambda a, b: (a - b) ** 2, weight=0.2, name="image")
    net.loss(middle, f=lambda y: abs(y), weight=0.01, name="quiet")
    data = as_dataset((x, {"digit": labels, "aux": labels, "sizes": sizes}))
    engine = make("kernels", Setup(net, horn.SGD(0.3, momentum=0.9), "labels", 16, "float64", 1))
    engine.bind(data)
    given = {name: torch.tensor(a, requires_grad=True) for name, a in engine.parameters().items()}
    optimizer = torch.optim.SGD(given.values(), lr=0.3, momentum=0.9)
    tx, tl, ts = torch.tensor(x), torch.tensor(labels), torch.tensor(sizes)

    def through(name: str, below: Any) -> Any:
        return below @ given[f"{name}.weight"].T + given[f"{name}.bias"]

    for k in range(30):
        one = torch.tanh(through("middle", tx))
        two = torch.sigmoid(through("top", one))
        entropy = torch.nn.functional.cross_entropy
        parts = [
            entropy(through("digit", two), tl),
            entropy(through("aux", one), tl),
            0.5 * ((through("sizes", two) - ts) ** 2).sum(dim=1).mean(),
            ((two - tx) ** 2).sum(dim=1).mean(),
            one.abs().sum(dim=1).mean(),
        ]
        loss = sum(w * part for w, part in zip((1.0, 0.3, 0.5, 0.2, 0.01), parts, strict=True))
        _, _, _, each = engine.results(data)
        np.testing.assert_allclose(np.array(each) / 16, [p.item() for p in parts], rtol=1e-9)
        found = engine.step(np.arange(16), iteration=k, first_sample=0)
        assert found == pytest.approx(loss.item(), rel=1e-9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, array in engine.parameters().items():
        np.testing.assert_allclose(array, given[name].detach().numpy(), rtol=1e-8, atol=1e-10)
