"""Settings of optimizers; against their papers they are in tests/contracts/test_optimizer.py."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

import horn
from horn import summary
from horn.backends import Setup, make
from horn.data import Dataset
from horn.errors import ModelError


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
        (lambda: horn.SGD(-0.1), "SGD: learning_rate must be 0 or more, and finite, got -0.1"),
        (lambda: horn.SGD(float("nan")), "learning_rate must be 0 or more"),
        (lambda: horn.SGD(1e400), "SGD: learning_rate must be 0 or more, and finite, got inf"),
        (lambda: horn.SGD(10**400), "SGD: learning_rate must be 0 or more, and finite, got 1000"),
        (lambda: horn.SGD(momentum=1.0), "SGD: momentum must be at least 0 and below 1, got 1.0"),
        (lambda: horn.Adam(beta2=-0.1), "Adam: beta2 must be at least 0 and below 1"),
        (lambda: horn.RMSProp(rho=2), "RMSProp: rho must be at least 0 and below 1, got 2"),
        (lambda: horn.Adagrad(clip_norm=0), "clip_norm must be above 0, and finite, .* got 0"),
        (lambda: horn.SGD(clip_norm=1e400), "clip_norm must be above 0, .*None for no .* inf"),
        (lambda: horn.SGD(clip_value=-1), "SGD: clip_value must be above 0, got -1"),
        (lambda: horn.SGD(weight_decay=1e400), "SGD: weight_decay must be 0 or more, and finite"),
        (lambda: horn.SGD(weight_decay=-1), "weight_decay must be 0 or more, and finite, got -1"),
        (lambda: horn.SGD(momentum="0.9"), "SGD: momentum must be a number, got '0.9'"),
        (lambda: horn.SGD(0.1, True), "SGD: momentum must be a number, got True"),
        (lambda: horn.Adam(beta1=None), "Adam: beta1 must be a number, got None"),
        (lambda: horn.Adam(clip_norm="1"), "Adam: clip_norm must be a number, got '1'"),
        (lambda: horn.Adagrad(eps=[1e-8]), "Adagrad: eps must be a number, got "),
        (lambda: horn.Adam(eps=-1e-8), "Adam: eps must be 1e-37 or more, .*0 / 0, got -1e-08"),
        (lambda: horn.Adam(eps=0), "Adam: eps must be 1e-37 or more, .*0 / 0, got 0"),
        (lambda: horn.Adam(eps=1e-50), "Adam: eps must be 1e-37 or more, .* float32, .*1e-50"),
        (lambda: horn.Adagrad(eps=0), "Adagrad: eps must be 1e-37 or more, .*, and finite: "),
        (lambda: horn.RMSProp(eps=0.0), "RMSProp: eps must be 1e-37 or more"),
        (lambda: horn.AdaDelta(eps=0.0), "AdaDelta: eps must be 1e-37 or more"),
        (lambda: horn.SGD(nesterov=True), r"nesterov looks ahead .* horn.SGD\(0.1, momentum=0.9"),
        (lambda: horn.SGD(0.1, 0.9, 0.9), "SGD: nesterov is True or False, got 0.9"),
        (lambda: horn.Direct(weight_decay=0.1), "Direct adds exactly what is pushed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_memory_is_of_the_slots_that_are_kept():
    """Plain SGD was said to keep a velocity."""
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    kept = {}
    for optimizer in (horn.SGD(0.1), horn.SGD(0.1, 0.9), horn.Adam()):
        job = horn.Job(net, (np.eye(3), [0, 1, 0]), optimizer)
        found = summary.memory_bytes(job)
        kept[len(optimizer.kept_slots)] = found["optimizer"] / found["parameters"]
    assert kept == {0: 0, 1: 1, 2: 2}


def test_a_schedule_gives_the_rate_of_each_iteration():
    optimizer = horn.SGD(horn.Exponential(1.0, 0.5))
    assert [optimizer.rate(k) for k in range(3)] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_decay_comes_before_both_clips(backend):
    """In float64 to the last digits; nothing is added to the norm that divides."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    net = horn.Network(seed=1)
    net.input(4)
    net.output(2, loss="squared_error")
    rmsprop = horn.RMSProp(0.01, weight_decay=0.1, clip_value=0.2, clip_norm=0.3)
    engine = make(backend, Setup(net, rmsprop, "labels", 6, "float64", 1))
    engine.bind(Dataset(x, y))
    w, b = engine.parameters().values()
    squares, clipped = [np.zeros_like(w), np.zeros_like(b)], 0
    for k in range(30):
        rows = (np.arange(6) * 5 + k) % 12
        delta = (x[rows] @ w.T + b - y[rows]) / 6
        bounded = [np.clip(g, -0.2, 0.2) for g in (delta.T @ x[rows] + 0.1 * w, delta.sum(0))]
        norm = np.sqrt(sum((g * g).sum() for g in bounded))
        clipped += norm > 0.3
        g = [each * min(1.0, 0.3 / norm) for each in bounded]
        squares = [0.9 * s + 0.1 * each**2 for s, each in zip(squares, g, strict=True)]
        w, b = (
            each - 0.01 * d / (np.sqrt(s) + 1e-8)
            for each, d, s in zip((w, b), g, squares, strict=True)
        )
        engine.step(rows, iteration=k, first_sample=6 * k)
    assert clipped
    for name, expected in zip(("layer1.weight", "layer1.bias"), (w, b), strict=True):
        np.testing.assert_allclose(engine.parameters()[name], expected, 0, 1e-13)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "updates",
            "Mine has a 'updates', which nothing calls; write  def update(self, w, g, slots, ",
        ),
        ("Update", "Mine has a 'Update', which nothing calls"),
        ("step", "Mine has a 'step', which nothing calls; write  def update("),
        ("prepare", "write  def prepared(self, g, w=None):"),
    ],
)
def test_a_method_that_nothing_calls_is_refused(name, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        type("Mine", (horn.SGD,), {name: lambda self, *given: None})


def test_a_method_that_another_calls_may_have_nearly_its_name():
    class Mine(horn.SGD):
        def updates(self, g):
            return 2.0 * g

        def prepared(self, g, w=None):
            return self.updates(g)

    assert Mine(0.1).prepared(3.0) == 6.0


def test_a_method_called_rates_is_no_slip_of_rate():
    class Mine(horn.SGD):
        def rates(self):
            return [self.rate(k) for k in range(3)]

    assert Mine(0.1).rates() == [0.1, 0.1, 0.1]


class Plain(horn.SGD):
    momentum = 0.9


class Annotated(horn.SGD):
    weight_decay: float = 0.5


@dataclass(frozen=True)
class Set(horn.SGD):
    momentum: float = 0.9


def test_a_setting_in_the_class_that_changes_nothing_is_refused():
    with pytest.raises(ModelError, match="Plain: momentum = 0.9 in the class changes nothing"):
        Plain(0.1)
    with pytest.raises(ModelError, match=re.escape("or pass it: Annotated(weight_decay=0.5)")):
        Annotated(0.1)
    assert Set(0.1).momentum == Plain(0.1, 0.9).momentum == 0.9


@pytest.mark.parametrize("backend", ["kernels", "reference"])
@pytest.mark.parametrize("kind", [horn.Adagrad, horn.RMSProp, horn.AdaDelta, horn.Adam])
def test_a_gradient_of_0_is_no_step_under_the_smallest_eps(kind, backend):
    """The third feature is 0 in all samples: its step was 0 / 0 where float32 has eps as 0."""
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    rows = np.eye(3, dtype=np.float32)[:2]
    job = horn.Job(net, (rows, [0, 1]), kind(eps=1e-37), iterations=3, batch_size=2)
    run = horn.train(job, backend=backend)
    assert np.isfinite(run.model.predict(np.eye(3))).all()
