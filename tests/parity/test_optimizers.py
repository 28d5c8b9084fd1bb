"""Optimizers of users: what they override is their formula in every backend, and in plain NumPy."""

import dataclasses

import numpy as np
import pytest

import horn
from horn.parameter_server.updates import PieceUpdate

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


class Warm(horn.Adam):
    """Plain steps at first, and a number of the past that is set back now and then."""

    def update(self, w, g, slots, lr, t):
        if t < 2:
            return w - lr * g, slots
        new, memory = super().update(w, g, slots, lr, t)
        if t % 3 == 0 and self.beta1:
            memory["mean"] = 0.0
        return new, memory


class Upwards(horn.SGD):
    """No weight falls below -0.5, and each moves by its own condition."""

    def update(self, w, g, slots, lr, t):
        step = lr * halved(g) if w > 0.0 else lr * min(g, 0.01, w)
        return max(w - step, -0.5), slots


def halved(g):
    if g == 0.0 or not g > 0.02:
        return 0.5 * g
    return g


class Bounded(horn.SGD):
    def prepared(self, g, w=None):
        return max(min(g, 0.05), -0.05) if w is None or abs(w) > 0.3 else g

    def clip_factor(self, norm):
        return 1.0 if norm < self.clip_norm else self.clip_norm / norm


CONDITIONS = [Warm(0.1), Upwards(0.1, momentum=0.0), Bounded(0.1, momentum=0.5),
              Bounded(0.1, clip_norm=0.1)]  # fmt: skip


def by_weight(o):
    """The optimizer with methods that are called for one weight after the other."""

    class One(type(o)):
        def update(self, w, g, slots, lr, t):
            if np.ndim(w) == 0:
                return super().update(w, g, slots, lr, t)
            names = sorted(slots)
            pairs = zip(w.flat, g.flat, *(slots[name].flat for name in names), strict=True)
            found = [
                self.update(a, b, dict(zip(names, s, strict=True)), lr, t) for a, b, *s in pairs
            ]
            new = np.reshape([x for x, _ in found], w.shape)
            return new, {n: np.reshape([m[n] for _, m in found], w.shape) for n in names}

        def prepared(self, g, w=None):
            if np.ndim(g) == 0:
                return super().prepared(g, w)
            ws = [None] * g.size if w is None else w.flat
            return np.reshape(
                [self.prepared(a, b) for a, b in zip(g.flat, ws, strict=True)], g.shape
            )

    settings = {f.name: getattr(o, f.name) for f in dataclasses.fields(o)}
    return One(**settings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("o", CONDITIONS, ids=lambda o: type(o).__name__)
def test_conditions_of_a_formula_hold_for_each_weight(o, backend):
    expected, found = in_numpy(by_weight(o)), trained(o, backend)
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, rtol=1e-9, atol=1e-12, err_msg=name)


class Votes(horn.SGD):
    """A condition counts as 1 or 0, and is no array that the formula may change."""

    slots = ("half",)

    def update(self, w, g, slots, lr, t):
        step = (g > -9.0) + (w > -9.0) - (g > 9.0)
        if t > 1 and (g > 0.0 or w < 0.0):
            step *= 2.0
        step += max(g > -9.0, g > 9.0) + horn.math.isfinite(g)
        w -= lr * step
        return w, {"half": horn.math.tanh(w > -9.0)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_conditions_in_a_formula_count_as_1_and_0(backend):
    expected, found = in_numpy(of_floats(Votes(0.01))), trained(Votes(0.01), backend)
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, rtol=1e-9, atol=1e-12, err_msg=name)


def of_floats(o):
    """The optimizer with an update that is told Python's numbers, one weight after the other."""

    class One(type(o)):
        def update(self, w, g, slots, lr, t):
            pairs = zip(w.ravel().tolist(), g.ravel().tolist(), strict=True)
            found = [super(One, self).update(a, b, {}, lr, t)[0] for a, b in pairs]
            return np.reshape(found, w.shape), slots

    return One(o.learning_rate)


@pytest.mark.parametrize("o", CONDITIONS[:3], ids=lambda o: type(o).__name__)
def test_conditions_hold_for_each_weight_of_a_server(o):
    rng = np.random.default_rng(2)
    one, w = by_weight(o), rng.normal(size=20)
    expected, slots = w.copy(), {name: np.zeros(20) for name in o.slots}
    kept = {name: np.zeros(20) for name in o.kept_slots}
    update = PieceUpdate(o, w, kept, True)
    for t in range(1, 4):
        g = rng.normal(size=20)
        update(g, 0.1, t)
        expected, slots = one.update(expected, one.prepared(g, expected), slots, 0.1, t)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


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


class Remembering(horn.Neuron):
    """Momentum of the outgoing weights, as the complaint about m.previous_update advises."""

    kept = horn.SynapseState(0.0)

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            m.kept = 0.5 * m.kept + m.delta * self.output
            self.push(m.kept)
        self.backpropagate(error * self.activation.derivative(self.output))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_each_synapse_keeps_can_be_its_momentum(backend):
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Remembering, activation="tanh")
    net.output(2, loss="squared_error")
    given = {"batch_size": len(X), "epochs": STEPS, "dtype": "float64", "frozen": ["layer1"]}
    job = horn.Job(net, (X, Y), horn.SGD(0.1), **given)
    found = horn.train(job, backend=backend).model.parameters["layer2.weight"]
    p = {n: np.array(w, np.float64) for n, w in network().initial_parameters("float64").items()}
    h, velocity = np.tanh(X @ p["layer1.weight"].T + p["layer1.bias"]), 0.0
    for _ in range(STEPS):
        error = (h @ p["layer2.weight"].T + p["layer2.bias"] - Y) / len(X)
        velocity = 0.5 * velocity + error.T @ h
        p["layer2.weight"] -= 0.1 * velocity
        p["layer2.bias"] -= 0.1 * error.sum(0)
    np.testing.assert_allclose(found, p["layer2.weight"], rtol=1e-9)
