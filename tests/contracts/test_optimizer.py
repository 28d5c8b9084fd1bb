"""Every optimizer: pure, one formula for numbers and arrays, downhill, and as its paper says."""

import inspect
import sys

import numpy as np
import pytest

import horn
from horn import optimizers, settings
from horn.errors import JobError
from horn.optimizers import Optimizer

CLASSES = [
    value
    for _, value in inspect.getmembers(optimizers, inspect.isclass)
    if issubclass(value, Optimizer) and value is not Optimizer
]
LR, STEPS = 0.05, 6


# The equations of the papers with arrays, written down apart from horn. Each takes the gradients,
# one after the other, and the first weights, and returns the last.


def momentum(w, gradients):
    """Polyak 1964; Sutskever et al. 2013, eq. 1-2."""
    v = np.zeros_like(w)
    for g in gradients:
        v = 0.9 * v - LR * g
        w = w + v
    return w


def nesterov(w, gradients):
    """Sutskever et al. 2013, eq. 3-4, with the gradients of the point that is looked ahead to: what
    is kept is that point, w + momentum v.
    """
    v, ahead = np.zeros_like(w), w
    for g in gradients:
        inner = ahead - 0.9 * v
        v = 0.9 * v - LR * g
        ahead = inner + v + 0.9 * v
    return ahead


def adagrad(w, gradients):
    """Duchi, Hazan & Singer 2011, section 1.1: the root of the diagonal of summed g g^T."""
    for t in range(len(gradients)):
        w = w - LR * gradients[t] / (np.sqrt(np.sum(np.square(gradients[: t + 1]), axis=0)) + 1e-10)
    return w


def rmsprop(w, gradients):
    """Tieleman & Hinton 2012: the mean square written as a sum with falling weights."""
    for t in range(len(gradients)):
        falling = [(1 - 0.9) * 0.9 ** (t - k) for k in range(t + 1)]
        mean = np.tensordot(falling, np.square(gradients[: t + 1]), 1)
        w = w - LR * gradients[t] / (np.sqrt(mean) + 1e-8)
    return w


def adadelta(w, gradients):
    """Zeiler 2012, algorithm 1; what it multiplies steps by besides is horn's learning_rate."""
    squares, steps = np.zeros_like(w), np.zeros_like(w)
    for g in gradients:
        squares = 0.95 * squares + 0.05 * g**2
        step = -np.sqrt(steps + 1e-6) / np.sqrt(squares + 1e-6) * g
        steps = 0.95 * steps + 0.05 * step**2
        w = w + LR * step
    return w


def adam(w, gradients):
    """Kingma & Ba 2015, algorithm 1, moments as sums with falling weights."""
    for t in range(1, len(gradients) + 1):
        past = np.array(gradients[:t])
        m = np.tensordot([0.1 * 0.9 ** (t - k) for k in range(1, t + 1)], past, 1)
        v = np.tensordot([0.001 * 0.999 ** (t - k) for k in range(1, t + 1)], past**2, 1)
        w = w - LR * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def direct(w, gradients):
    """Yoon 2016, section 2.1: what a neuron pushes is the change."""
    return w + np.sum(gradients, axis=0)


PAPERS = {
    "SGD": [
        (horn.SGD(LR), lambda w, gradients: w - LR * np.sum(gradients, axis=0)),
        (horn.SGD(LR, momentum=0.9), momentum),
        (horn.SGD(LR, momentum=0.9, nesterov=True), nesterov),
    ],
    "Adagrad": [(horn.Adagrad(LR), adagrad)],
    "RMSProp": [(horn.RMSProp(LR), rmsprop)],
    "AdaDelta": [(horn.AdaDelta(LR), adadelta)],
    "Adam": [(horn.Adam(LR), adam)],
    "Direct": [(horn.Direct(LR), direct)],
}


@pytest.mark.parametrize("cls", CLASSES)
def test_it_is_what_its_paper_says(cls, rng):
    assert cls.__name__ in PAPERS, f"{cls.__name__}: write its paper's equation down here"
    for optimizer, paper in PAPERS[cls.__name__]:
        first, gradients = rng.normal(size=7), list(rng.normal(size=(STEPS, 7)))
        w, slots = first, fresh(optimizer, first)
        for t, g in enumerate(gradients, 1):
            w, slots = optimizer.update(w, g, slots, LR, t)
        np.testing.assert_allclose(w, paper(first, gradients), rtol=1e-12, err_msg=f"{optimizer}")


def a_job(optimizer, iterations):
    net = horn.Network(seed=4)
    net.input(6)
    net.layer(5, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(1)
    data = rng.normal(size=(12, 6)), rng.integers(0, 3, 12)
    return horn.Job(net, data, optimizer=optimizer, batch_size=4, iterations=iterations)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_checkpoint_has_all_that_it_remembers(cls, tmp_path):
    """Stopped after any update and resumed, a run comes to the same bits as one that was not."""
    optimizer = PAPERS[cls.__name__][-1][0]
    whole = horn.train(a_job(optimizer, 7), threads=1).model.parameters
    horn.train(a_job(optimizer, 4), threads=1, checkpoints=tmp_path, checkpoint_every=2)
    found = horn.train(a_job(optimizer, 7), threads=1, checkpoints=tmp_path, resume=True)
    assert found.iterations == 7
    for name, array in whole.items():
        np.testing.assert_array_equal(found.model.parameters[name], array, err_msg=name)


@pytest.mark.parametrize("cls", CLASSES)
def test_decay_and_bounds_are_in_the_gradient_that_it_is_given(cls, rng):
    w, g = rng.normal(size=9), 3.0 * rng.normal(size=9)
    plain = cls(LR)
    np.testing.assert_array_equal(plain.prepared(g, w), g)
    bounded = cls(LR, clip_value=1.5)
    np.testing.assert_array_equal(bounded.prepared(g, w), np.clip(g, -1.5, 1.5))
    if cls is not horn.Direct:  # which refuses it
        decaying = cls(LR, weight_decay=0.25, clip_value=1.5)
        expected = np.clip(g + 0.25 * w, -1.5, 1.5)
        np.testing.assert_array_equal(decaying.prepared(g, w), expected)
        np.testing.assert_array_equal(decaying.prepared(g), np.clip(g, -1.5, 1.5))
    scaled = cls(LR, clip_norm=2.0)
    assert [scaled.clip_factor(norm) for norm in (0.0, 1.0, 2.0, 8.0)] == [1.0, 1.0, 1.0, 0.25]


@pytest.mark.parametrize("cls", CLASSES)
def test_slots_that_are_not_kept_are_always_0(cls, rng):
    for optimizer, _ in PAPERS[cls.__name__]:
        w = rng.normal(size=4)
        idle = set(optimizer.slots) - set(optimizer.kept_slots)
        for t in range(1, 4):
            slots = {s: np.zeros(4) if s in idle else rng.random(4) for s in optimizer.slots}
            expected = optimizer.update(w, w, slots, LR, t)[0]
            others = {s: rng.random(4) if s in idle else a for s, a in slots.items()}
            np.testing.assert_array_equal(optimizer.update(w, w, others, LR, t)[0], expected)


THEIRS = """
from dataclasses import dataclass
from typing import ClassVar
import horn
from horn import math
from horn.optimizers import Optimizer, SGD

@dataclass(frozen=True)
class Sign(Optimizer):
    # w -= lr sign(m), m = beta1 m + (1 - beta1) g: Bernstein et al. 2018

    beta1: float = 0.9
    slots: ClassVar[tuple[str, ...]] = ("mean",)

    def update(self, w, g, slots, lr, t):
        m = self.beta1 * slots["mean"] + (1.0 - self.beta1) * g
        return w - lr * math.sign(m), {"mean": m}

@dataclass(frozen=True)
class Slow(SGD):
    def update(self, w, g, slots, lr, t):
        return w - lr * (g + slots["velocity"]), {"velocity": g}
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize("name", ["Sign", "Slow"])
@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_a_class_more_is_an_optimizer_more(name, backend, theirs):
    """--set optimizer=module:Class; every backend does what the interpreter does with it."""
    job = settings.apply(
        a_job(horn.SGD(), 5),
        [f"optimizer=theirs:{name}", "optimizer.learning_rate=0.01", "dtype=float64"],
    )
    assert type(job.optimizer).__name__ == name and job.optimizer.learning_rate == 0.01
    expected = horn.train(job, backend="python").model.parameters
    found = horn.train(job, backend=backend).model.parameters
    for array, value in expected.items():
        np.testing.assert_allclose(found[array], value, rtol=1e-9, err_msg=array)


def test_what_is_no_optimizer_is_refused(theirs):
    with pytest.raises(JobError, match="optimizer theirs:math: is .*, no subclass of"):
        optimizers.named("theirs:math")
    with pytest.raises(JobError, match="no optimizer is called 'adm'; did you mean adam?"):
        optimizers.named("adm")


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def optimizer(request):
    return request.param(learning_rate=0.05)


def fresh(optimizer, like):
    return {name: np.zeros_like(like) for name in optimizer.slots}


def test_update_does_not_write_its_inputs_and_keeps_shape_and_type(optimizer, rng):
    for dtype in (np.float32, np.float64):
        w, g = (rng.normal(size=(3, 4)).astype(dtype) for _ in "wg")
        slots = fresh(optimizer, w)
        for array in (w, g, *slots.values()):
            array.flags.writeable = False
        new, memory = optimizer.update(w, g, slots, 0.05, 1)
        assert new.shape == w.shape and new.dtype == dtype
        assert memory.keys() == slots.keys() == set(optimizer.slots)
        assert all(m.shape == w.shape and m.dtype == dtype for m in memory.values())


def test_arrays_are_updated_number_by_number(optimizer, rng):
    w, slots = rng.normal(size=3), fresh(optimizer, np.zeros(3))
    numbers = [(float(v), dict.fromkeys(optimizer.slots, 0.0)) for v in w]
    for t in range(1, 4):
        g = rng.normal(size=3)
        w, slots = optimizer.update(w, g, slots, 0.05, t)
        numbers = [
            optimizer.update(v, float(d), s, 0.05, t) for (v, s), d in zip(numbers, g, strict=True)
        ]
    np.testing.assert_allclose(w, [v for v, _ in numbers], rtol=1e-14)
    for name in optimizer.slots:
        np.testing.assert_allclose(slots[name], [s[name] for _, s in numbers], rtol=1e-14)


def test_steps_go_downhill_unless_the_neuron_says_the_step_itself(optimizer):
    w, slots = np.array([1.0, -2.0]), fresh(optimizer, np.zeros(2))
    for t in range(1, 101):
        w, slots = optimizer.update(w, w, slots, 0.05, t)  # the slope of w^2 / 2
    smaller = np.all(np.abs(w) < [1.0, 2.0])
    assert smaller != isinstance(optimizer, horn.Direct)


def test_nothing_happens_without_a_gradient(optimizer):
    w = np.array([1.0, -2.0])
    new, memory = optimizer.update(w, np.zeros(2), fresh(optimizer, w), 0.05, 1)
    np.testing.assert_array_equal(new, w)
    assert all(np.all(m == 0) for m in memory.values())


def test_settings_cannot_be_changed(optimizer):
    with pytest.raises(AttributeError):
        optimizer.learning_rate = 1.0


def test_every_optimizer_is_public(optimizer):
    assert getattr(horn, type(optimizer).__name__) is type(optimizer)
