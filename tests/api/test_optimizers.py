"""Each optimizer against its paper, written out in NumPy, and the settings that they refuse."""

import numpy as np
import pytest

import horn
from horn.errors import ModelError

LR, STEPS = 0.05, 6


def sgd(w, gradients):
    for g in gradients:
        w = w - LR * g
    return w


def polyak(w, gradients, mu=0.9):
    """Polyak 1964: v <- mu v - lr g; w <- w + v."""
    v = np.zeros_like(w)
    for g in gradients:
        v = mu * v - LR * g
        w = w + v
    return w


def nesterov(w, gradients, mu=0.9):
    """Sutskever et al. 2013, eq. 3-4, told from the point that looks ahead, u = w + mu v."""
    u, v = w.copy(), np.zeros_like(w)
    base = w.copy()
    for g in gradients:
        v = mu * v - LR * g
        base = base + v
        u = base + mu * v
    return u


def adagrad(w, gradients):
    """Duchi et al. 2011: lr / sqrt(sum of squares)."""
    for t in range(1, len(gradients) + 1):
        total = np.sum(gradients[:t] ** 2, axis=0)
        w = w - LR * gradients[t - 1] / (np.sqrt(total) + 1e-10)
    return w


def rmsprop(w, gradients):
    """Tieleman & Hinton 2012: divide by a running root mean square."""
    ms = np.zeros_like(w)
    for g in gradients:
        ms = 0.9 * ms + 0.1 * g**2
        w = w - LR * g / (np.sqrt(ms) + 1e-8)
    return w


def adadelta(w, gradients):
    """Zeiler 2012, algorithm 1, with a learning rate in front of the step."""
    eg, ex = np.zeros_like(w), np.zeros_like(w)
    for g in gradients:
        eg = 0.95 * eg + 0.05 * g**2
        dx = -np.sqrt(ex + 1e-6) / np.sqrt(eg + 1e-6) * g
        ex = 0.95 * ex + 0.05 * dx**2
        w = w + LR * dx
    return w


def adam(w, gradients):
    """Kingma & Ba 2015, algorithm 1."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        w = w - LR * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def direct(w, gradients):
    return w + np.sum(gradients, axis=0)


PAPERS = [
    (horn.SGD(LR), sgd),
    (horn.SGD(LR, momentum=0.9), polyak),
    (horn.SGD(LR, momentum=0.9, nesterov=True), nesterov),
    (horn.Adagrad(LR), adagrad),
    (horn.RMSProp(LR), rmsprop),
    (horn.AdaDelta(LR), adadelta),
    (horn.Adam(LR), adam),
    (horn.Direct(LR), direct),
]


@pytest.mark.parametrize("optimizer, paper", PAPERS, ids=lambda x: getattr(x, "__name__", ""))
def test_updates_are_those_of_the_paper(optimizer, paper, rng):
    w, gradients = rng.normal(size=4), rng.normal(size=(STEPS, 4))
    expected = paper(w, gradients)
    slots = {name: np.zeros(4) for name in optimizer.slots}
    for t, g in enumerate(gradients, 1):
        w, slots = optimizer.update(w, g, slots, optimizer.rate(t - 1), t)
    np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_nesterov_tells_the_weights_where_the_gradient_is_taken():
    """On the bowl w^2 / 2 the gradient is w: two steps by hand."""
    w, slots = 1.0, {"velocity": 0.0}
    optimizer = horn.SGD(0.1, momentum=0.5, nesterov=True)
    for t in (1, 2):
        w, slots = optimizer.update(w, w, slots, 0.1, t)
    # v1 = -0.1, u1 = 1 - 0.1 - 0.05; v2 = -0.05 - 0.085, u2 = 0.9 + v2 + 0.5 v2
    assert w == pytest.approx(0.9 - 0.135 - 0.0675)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: horn.SGD(-0.1), "SGD: learning_rate must be 0 or more, got -0.1"),
        (lambda: horn.SGD(float("nan")), "learning_rate must be 0 or more"),
        (lambda: horn.SGD(momentum=1.0), "SGD: momentum must be at least 0 and below 1, got 1.0"),
        (lambda: horn.Adam(beta2=-0.1), "Adam: beta2 must be at least 0 and below 1"),
        (lambda: horn.RMSProp(rho=2), "RMSProp: rho must be at least 0 and below 1, got 2"),
        (lambda: horn.Adagrad(clip_norm=0), "Adagrad: clip_norm must be above 0, got 0"),
        (lambda: horn.SGD(clip_value=-1), "SGD: clip_value must be above 0, got -1"),
        (lambda: horn.SGD(weight_decay=-1), "SGD: weight_decay must be 0 or more, got -1"),
        (lambda: horn.Direct(weight_decay=0.1), "Direct adds exactly what is pushed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_schedule_gives_the_rate_of_each_iteration():
    optimizer = horn.SGD(horn.Exponential(1.0, 0.5))
    assert [optimizer.rate(k) for k in range(3)] == [1.0, 0.5, 0.25]
