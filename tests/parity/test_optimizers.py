"""Optimizers of users: what they override is their formula in every backend, and in plain NumPy."""

import numpy as np
import pytest

import horn

X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.random.default_rng(1).normal(size=(6, 2))
BACKENDS = ("python", "reference", "kernels")
STEPS = 3


def network():
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, loss="squared_error")
    return net


def in_numpy(o):
    """The parameters after STEPS updates, by the optimizer's methods and gradients of NumPy."""
    p = {
        name: np.array(w, np.float64) for name, w in network().initial_parameters("float64").items()
    }
    slots = {name: {slot: np.zeros_like(w) for slot in o.slots} for name, w in p.items()}
    for t in range(1, STEPS + 1):
        h = np.tanh(X @ p["layer1.weight"].T + p["layer1.bias"])
        error = (h @ p["layer2.weight"].T + p["layer2.bias"] - Y) / len(X)
        delta = (error @ p["layer2.weight"]) * (1.0 - h * h)
        g = {"layer1.weight": delta.T @ X, "layer1.bias": delta.sum(0),
             "layer2.weight": error.T @ h, "layer2.bias": error.sum(0)}  # fmt: skip
        lr = o.rate(t - 1)
        g = {name: o.of_derived(each, lr) for name, each in g.items()}
        g = {n: o.prepared(each, p[n] if n.endswith("weight") else None) for n, each in g.items()}
        if o.clip_norm is not None:
            factor = o.clip_factor(np.sqrt(sum(np.sum(each**2) for each in g.values())))
            g = {name: each * factor for name, each in g.items()}
        for name in p:
            p[name], slots[name] = o.update(p[name], g[name], slots[name], lr, t)
    return p


def trained(o, backend):
    job = horn.Job(network(), (X, Y), o, batch_size=len(X), epochs=STEPS, dtype="float64")
    return horn.train(job, backend=backend).model.parameters


class Signed(horn.SGD):
    def prepared(self, g, w=None):
        return horn.math.sign(super().prepared(g, w))


class Decayed(horn.SGD):
    """A decay of its own, not that of the settings."""

    def prepared(self, g, w=None):
        return g if w is None else g + 0.5 * w


class Halved(horn.SGD):
    def of_derived(self, g, lr):
        return 0.5 * g


class Slowed(horn.SGD):
    def rate(self, iteration):
        return super().rate(iteration) / (1 + iteration)


class Softened(horn.SGD):
    def clip_factor(self, norm):
        return 1.0 / (1.0 + norm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "o",
    [Signed(0.1), Signed(0.1, momentum=0.5), Decayed(0.1), Halved(0.1), Halved(0.1, momentum=0.5),
     Slowed(0.1), Softened(0.1, clip_norm=0.1)],
    ids=lambda o: type(o).__name__ + ("" if not o.momentum else "-momentum"),
)  # fmt: skip
def test_every_method_that_a_subclass_overrides_counts(o, backend):
    expected = in_numpy(o)
    plain = in_numpy(horn.SGD(0.1, momentum=o.momentum))
    assert any(np.abs(expected[name] - plain[name]).max() > 1e-3 for name in plain)
    found = trained(o, backend)
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, rtol=1e-9, atol=1e-12, err_msg=name)


class Scaled(horn.Neuron):
    weight_scale = horn.Parameter(1.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(self.weight_scale * total))


def test_a_parameter_does_not_decay_whatever_its_name():
    found = {}
    for backend in BACKENDS:
        net = horn.Network(seed=1)
        net.input(3)
        net.layer(4, neuron=Scaled, activation="tanh")
        net.output(2, loss="squared_error")
        for decay in (0.0, 0.5):
            o = horn.SGD(0.1, weight_decay=decay)
            job = horn.Job(net, (X, Y), o, batch_size=6, epochs=1, dtype="float64")
            found[backend, decay] = horn.train(job, backend=backend).model.parameters
    for (backend, decay), arrays in found.items():
        scale, of_none = (found[b, 0.0]["layer1.weight_scale"] for b in (backend, "kernels"))
        np.testing.assert_allclose(scale, of_none, rtol=1e-12)
        np.testing.assert_allclose(arrays["layer1.weight_scale"], scale, rtol=1e-12)
        difference = arrays["layer1.weight"] - found["python", decay]["layer1.weight"]
        assert np.abs(difference).max() < 1e-12
