"""NaN is told with the line, the neuron, the sample, the operation, and the cause by evidence."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import Diverged
from horn.training import diagnosis
from horn.training.checkpointing import RecoverySettings
from horn.training.divergence import KeptArrays, NonFinite, grown, of_guessing, unlearned
from horn.training.history import History
from horn.training.run_settings import RunSettings


class Log(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(horn.math.log(total + 4.5))  # log


class Divides(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(1.0 / horn.math.relu(total))  # div


class Exp(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(math.exp(total * 50.0))  # exp


class Backward(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))

    def backward(self, messages):
        gradient = 0.0
        for m in messages:
            gradient += m.delta * m.weight
            self.push(m.delta * self.output)
        self.backpropagate(gradient / horn.math.relu(self.output))  # back


class Centred(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        mean = self.mean(total, over="batch")
        self.feedforward(horn.math.sqrt(total - mean))  # batch


def likelihood(output: Any, target: Any) -> Any:
    return -target * horn.math.log(output - 0.02)  # loss


def share(output: Any) -> Any:
    return output / (output - output.max())  # between


def job(neuron: Any = horn.Standard, rate: float = 0.1, **given: Any) -> horn.Job:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 5)).astype("float32")
    net = horn.Network(seed=3)
    net.input(5)
    net.layer(4, neuron=neuron, activation="tanh" if neuron is horn.Standard else "identity",
              interlayer=given.pop("interlayer", None))  # fmt: skip
    net.output(2, activation=given.pop("activation", "softmax"),
               loss=given.pop("loss", "cross_entropy"))  # fmt: skip
    y = (x[:, 0] > 0).astype(int)
    optimizer = horn.SGD(rate)
    return horn.Job(net, (x, y), optimizer=optimizer, epochs=20, check=False, **given)


SQUARES = {"loss": "squared_error", "activation": "identity"}
CASES: dict[str, tuple[Callable[[], horn.Job], str, str]] = {  # job, the line's mark, what is said
    "log": (lambda: job(Log), "log", r"^log\(-0.*\) is nan(.|\n)*Neuron 2 of layer1 \(Log\) feeds "
            r"forward nan for sample \d+ of the data.*log takes numbers above 0.*not the learning"),
    "division": (lambda: job(Divides), "div", r"^1 / 0 is inf(.|\n)*feeds forward inf for sample "
                 r"\d+.*, as 3 more of the layer do.\nIt divides by 0.*not the learning rate"),
    "exp": (lambda: job(Exp), "exp", r"^exp\(\d+.*\) is .*: float32 ends at 3.4e\+38"
            r"(.|\n)*scale the inputs down.*not the learning rate"),
    "a written backward": (lambda: job(Backward), "back", r" / 0 is -?inf(.|\n)*sample \d+ .* 20 "
                           "of 20 gradients are not finite.\nIt divides by 0"),
    "what asks the batch": (lambda: job(Centred), "batch", r"^sqrt\(-.*\) is nan"),
    "a loss": (lambda: job(loss=likelihood), "loss", r"^log\(-0.*\) is nan(.|\n)*The loss "
               r"'likelihood' of sample \d+ of the data is nan.*not the learning rate"),
    "an interlayer": (lambda: job(interlayer=share), "between", r" / 0 is -?inf"),
    "a rate": (lambda: job(rate=1e10, **SQUARES), "", r"The loss 'squared_error' of sample \d+ .* "
               r"the learning rate is too high \(1e\+10\). Try a learning rate of 0\.1, or "
               r"clip_norm=1.0 in the optimizer, horn.SGD\(..., clip_norm=1.0\)$"),
}  # fmt: skip


class Sums(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.log(1.0 + sum(m.input for m in messages)))  # heard


class Falls(horn.Neuron):
    level = horn.State(1.0, per="sample")

    def forward(self, messages):
        self.level = self.level - 0.3
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(0.1 * total + horn.math.log(self.level))  # fallen


class Steep(horn.Neuron):
    shift = horn.Parameter(0.0)

    def forward(self, messages):
        once = horn.math.tanh(1e25 * (self.shift + sum(m.input for m in messages)))  # steep
        self.feedforward(horn.math.tanh(1e25 * once))


def in_time(neuron: Any, hears: Any = None, last: Any = None, **given: Any) -> horn.Job:
    """Sequences of ones, but for the 6th, of which the third step is not."""
    x = np.full((8, 9, 1), 0.25)
    x[5, 2] = given.pop("number", -2.0)
    net = horn.Network(seed=3)
    first = net.input(1, steps=9)
    net.layer(2, neuron=neuron, inputs=hears(first) if hears else first, name="here", bias=False)
    out = {"activation": "softmax", "loss": "cross_entropy"} if last is None else last
    net.output(2, **out, each_step=True)
    y = np.zeros((8, 9), int)
    lengths = given.pop("lengths", None)
    data = (x, y) if lengths is None else horn.data.sequences(x, y, lengths=lengths)
    given = {"batch_size": 8, "optimizer": horn.SGD(0.01), **given}
    return horn.Job(net, data, epochs=2, check=False, **given)


def below(output: Any, target: Any) -> Any:
    return -target * horn.math.log(output)  # judged


ENDS = [2, 3, 4, 5, 6, 7, 8, 9]
IN_TIME: dict[str, tuple[Callable[[], horn.Job], str, str]] = {
    "what it hears": (lambda: in_time(Sums), "heard", "step 2 of sample 5"),
    "what it hears late": (lambda: in_time(Sums, lambda x: horn.Delayed(x, 4)), "heard",
                           "step 6 of sample 5"),
    "what it hears from the end": (lambda: in_time(Sums, horn.Reversed), "heard",
                                   "step 6 of sample 5"),
    "what it remembers": (lambda: in_time(Falls, number=1.0), "fallen", "step 3 of sample 6"),
    "sequences that end early": (lambda: in_time(Falls, number=1.0, lengths=ENDS), "fallen",
                                 "step 3 of sample 6"),
    "what goes on in a lane": (lambda: in_time(Falls, number=1.0, stateful=True, truncate=3),
                               "fallen", "step 3 of lane 0"),
    "a loss": (lambda: in_time(Sums, number=0.0, last={"activation": "relu", "loss": below}),
               "judged", "step 2 of sample 5"),
    "what comes back": (lambda: in_time(Steep, number=0.0), "steep", "step 2 of sample 5"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_TIME)
def test_of_a_sequence_the_step(case: str) -> None:
    made, mark, where = IN_TIME[case]
    with pytest.raises(Diverged) as caught:
        horn.train(made(), progress=False)
    text = str(caught.value)
    assert f"{where} of the data" in text, text
    lines = Path(__file__).read_text().splitlines()
    (line,) = [k for k, row in enumerate(lines, 1) if row.endswith(f"  # {mark}")]
    assert f"test_diagnosis.py:{line}, in " in text, text


@pytest.mark.parametrize("case", CASES)
def test_the_line_the_neuron_the_sample_and_the_cause(case: str) -> None:
    made, mark, said = CASES[case]
    given = made()
    with pytest.raises(Diverged) as caught:
        horn.train(given)
    text = str(caught.value)
    assert re.search(said, text, re.M | re.S), text
    lines = Path(__file__).read_text().splitlines()
    if mark:
        (line,) = [k for k, row in enumerate(lines, 1) if row.endswith(f"  # {mark}")]
        assert f"test_diagnosis.py:{line}, in " in text, text
    else:
        assert "test_diagnosis.py" not in text
    assert all(np.isfinite(a).all() for a in caught.value.model.parameters.values())


def test_the_model_is_what_it_was_before_the_batch() -> None:
    with pytest.raises(Diverged) as caught:
        horn.train(job(Log))
    before = horn.train(job(Log).with_settings(epochs=None, iterations=caught.value.iteration))
    for name, array in before.model.parameters.items():
        np.testing.assert_array_equal(caught.value.model.parameters[name], array)


def test_the_model_reads_data_and_names_classes_as_that_of_a_whole_training_does() -> None:
    """It had no normalization: what it answered about the samples of the job was of others."""
    x = np.random.default_rng(0).normal(100.0, 30.0, (40, 3))
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(8, activation="relu")
    net.output(2, loss="cross_entropy", activation="softmax")
    data = x, np.array(["no", "yes"])[(x[:, 0] > 100.0).astype(int)]
    settings = {"batch_size": 10, "normalize": True, "optimizer": horn.SGD(1e30)}
    with pytest.raises(Diverged) as caught:
        horn.train(horn.Job(net, data, epochs=3, metrics=["f1"], **settings))
    found = caught.value.model
    iterations = max(caught.value.iteration, 1)
    whole = horn.train(horn.Job(net, data, iterations=iterations, metrics=["f1"], **settings)).model
    assert found.normalization is not None
    np.testing.assert_array_equal(found.normalization.mean, whole.normalization.mean)
    np.testing.assert_array_equal(found.classes_, whole.classes_)
    assert (found.metrics, found.feature_names) == (whole.metrics, whole.feature_names)


@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2), horn.Convolution(2, 2)])
def test_weights_of_two_layers_are_looked_at_once(connect: Any) -> None:
    """Of a tied layer they have the other's shape."""
    net = horn.Network(seed=3)
    net.input((3, 4, 1))
    first = net.layer(size=None if isinstance(connect, horn.Convolution) else 7, connect=connect)
    net.output(connect=horn.Tied(first, transposed=True), loss="squared_error",
               size=None if isinstance(connect, horn.Convolution) else 12)  # fmt: skip
    x = np.random.default_rng(0).standard_normal((40, 3, 4, 1)).astype("float32")
    given = horn.Job(net, x, target="input", optimizer=horn.SGD(1e6), epochs=20, check=False)
    with pytest.raises(Diverged, match=r"The weights grew"):
        horn.train(given)


def test_after_many_steps_only_the_last_are_repeated() -> None:
    """A copy is kept at the start of an epoch, after a hundred steps."""
    slow = job(Log, rate=0.004).with_settings(epochs=400)
    with pytest.raises(Diverged) as caught:
        horn.train(slow)
    error = caught.value
    assert error.iteration > 500 and "log takes numbers above 0" in str(error)


class Positive(horn.Neuron):
    level = horn.Parameter(-2.0)  # the interpreter tries what forward does with 0.5

    def forward(self, messages):
        once = horn.math.tanh(1e25 * sum(m.input * m.weight for m in messages))  # first
        self.feedforward(horn.math.log(-self.level) * horn.math.tanh(1e25 * once))


def of_zeros(neuron: Any) -> horn.Job:
    net = horn.Network(seed=3)
    net.input(2)
    net.layer(2, neuron=neuron, bias=False)
    net.output(2, loss="squared_error")
    return horn.Job(net, (np.zeros((4, 2)), np.ones((4, 2))), epochs=1, check=False)


def test_numbers_that_are_tried_alone_are_no_cause() -> None:
    with pytest.raises(Diverged) as caught:
        horn.train(of_zeros(Positive), threads=1)
    assert "# first" in str(caught.value) and "log(" not in str(caught.value)


def test_the_text_of_a_long_neuron_is_read_for_what_is_said_alone(tmp_path, monkeypatch) -> None:
    """Not for each of its operations: that took minutes of one with a thousand lines."""
    steps = ["        z = 1e3 * z"] * 60
    text = ["import horn", "class Long(horn.Neuron):", "    def forward(self, messages):",
            "        z = sum(m.input * m.weight for m in messages)", *steps,
            "        self.feedforward(z)"]  # fmt: skip
    (tmp_path / "long_neuron.py").write_text("\n".join(text))
    monkeypatch.syspath_prepend(tmp_path)
    long = of_zeros(importlib.import_module("long_neuron").Long)
    n_calls: Counter[str] = Counter()

    def count(frame: Any, event: str, what: Any) -> None:
        n_calls[what.__qualname__ if event == "c_call" else frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        with pytest.raises(Diverged) as caught:
            horn.train(long, threads=1)
    finally:
        sys.setprofile(None)
    said = r"long_neuron.py:\d+, in .*\n +z = 1e3 .*\n.*\nThe gradient through mul\(1000, 0\) is"
    assert re.search(said, str(caught.value))
    assert n_calls["Watch.placed"] > 60  # of each
    assert n_calls["code.co_positions"] + n_calls["line_of"] < 20


@pytest.mark.cluster
def test_tasks_say_the_same() -> None:
    with pytest.raises(Diverged) as alone:
        horn.train(job(Divides))
    with pytest.raises(Diverged) as together:
        horn.train(job(Divides), tasks=2)
    assert str(together.value) == str(alone.value)
    assert together.value.model.parameters.keys() == alone.value.model.parameters.keys()


@pytest.mark.parametrize(
    "losses, is_grown",
    [
        ([1.0, 0.5, 2.0], False),
        ([1.0, 0.5, 501.0], True),
        ([1.0, 1e-9, 0.9], False),  # no worse than it began
        ([1.0, 1e5, 0.5], False),  # it came back
        ([1e20], False),
        ([None, None], False),
        ([-5.0, 1e9], False),  # of what may be negative a multiple says nothing
    ],
)
def test_a_loss_has_grown_a_thousandfold(losses: list[Any], is_grown: bool) -> None:
    rows = [{"epoch": k, "loss": loss} for k, loss in enumerate(losses, 1)]
    assert bool(grown(History(rows))) is is_grown


@pytest.mark.parametrize("activation, loss, y, guessing", [
    ("softmax", "cross_entropy", np.array([0, 1, 2, 0]), np.log(3)),
    ("sigmoid", "binary_cross_entropy", np.eye(3)[:, [0, 1, 2]], 3 * np.log(2)),
    ("identity", "squared_error", np.array([[1.0, 2.0, 2.0]] * 4), 4.5),
    ("identity", "squared_error", np.array([0, 1, 2, 0]), 0.5),
    ("identity", "squared_error", np.array([0, 300, 100, 200]), 17500.0),  # of one output: numbers
])  # fmt: skip
def test_a_loss_beyond_that_of_guessing_has_grown_within_its_epoch(
    activation: str, loss: str, y: Any, guessing: float, caplog: pytest.LogCaptureFixture
) -> None:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(3 if y.max() < 9 else 1, activation=activation, loss=loss)
    job = horn.Job(net, (np.ones((len(y), 2)), y), horn.SGD(0.01), epochs=1)
    assert of_guessing(job) == pytest.approx(guessing)
    assert horn.train(job).state == "SUCCEEDED"
    rows = [{"epoch": 1, "loss": 1.84e30}, {"epoch": 2, "loss": 1.01e3 * guessing}]
    assert grown(History(rows), guessing).startswith("the loss is ")
    assert not grown(History([{"epoch": 1, "loss": 0.99e3 * guessing}]), guessing)
    if loss == "squared_error":
        far = job.with_settings(optimizer=horn.SGD(50.0), batch_size=1)
        assert horn.train(far).state == "DIVERGED"
        assert "where guessing has" in caplog.text
        far = far.with_settings(optimizer=horn.SGD(horn.Cosine(80.0, 4)))  # 12 in the last update
        assert horn.train(far).state == "DIVERGED"
        assert "Try a learning rate of 8, or" in caplog.text
        assert ("or smaller targets, y / 300" in caplog.text) is bool(y.max() == 300)


def far_features(activation: str = "softmax", loss: str = "cross_entropy", **more: Any) -> Any:
    """A job of classes that a layer of relu learns only where the features are normalized."""
    data = horn.data.digits()
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(12, activation="relu")
    net.output(10, activation=activation, loss=loss)
    given = {"batch_size": 32, "epochs": 3} | more
    return horn.Job(net, (data.x[:400] * 255.0, data.y[:400]), horn.SGD(0.1), **given)


def test_classes_that_are_not_learned_of_large_features_are_told_to_normalize(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert horn.train(far_features()).state == "SUCCEEDED"
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("learned nothing: the loss is 2.3")
    assert "guessing has 2.3, and features reach 255. Try smaller features: normalize=True" in said


def test_what_is_learned_or_may_not_be_for_other_reasons_is_not_told_to_normalize(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = np.random.default_rng(0)
    horn.train(far_features(epochs=2))  # too early to say
    horn.train(far_features(normalize=True))
    horn.train(far_features("sigmoid", "squared_error"))
    job = far_features()
    noise = job.with_settings(data=(job.data.x / 255.0, rng.integers(0, 10, 400)))
    horn.train(noise.with_settings(optimizer=horn.SGD(1e-6)))
    horn.train(job.with_settings(optimizer=horn.Adam(0.001), epochs=10))
    assert not caplog.records


def test_of_unequal_classes_guessing_is_by_how_often_each_comes() -> None:
    job = far_features()
    rare = job.with_settings(data=(job.data.x, (job.data.y == 0).astype(int)))
    share = np.bincount(rare.data.y)[:2] / 400
    guessing = float(-(share * np.log(share)).sum())
    rows = [{"epoch": k, "loss": guessing} for k in (1, 2, 3)]
    assert guessing < 0.4 and unlearned(rare, History(rows))
    assert not unlearned(rare, History([*rows, {"epoch": 4, "loss": 0.9 * guessing}]))
    assert not unlearned(rare, History([*rows[:2], {"epoch": 3, "loss": None}]))


class Oja(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * (m.input - y * m.weight))
        self.feedforward(y)


class HeedsRate(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(self.learning_rate * y * (m.input - y * m.weight))
        self.feedforward(y)


@pytest.mark.parametrize("neuron, optimizer, said", [
    (Oja, horn.Direct(1e-9), "what is pushed is too large. Try smaller pushes (horn.Direct adds"),
    (HeedsRate, horn.Direct(5.0), "the learning rate is too high (5). Try a learning rate of 0.5"),
    (Oja, horn.SGD(5.0), "the learning rate is too high (5). Try a learning rate of 0.5"),
])  # fmt: skip
def test_a_rate_that_nothing_goes_by_is_not_blamed(neuron: Any, optimizer: Any, said: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 4)) * 2
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, neuron=neuron)
    with pytest.raises(Diverged) as caught:
        horn.train(horn.Job(net, x, optimizer, target=None, batch_size=1, epochs=1))
    assert said in str(caught.value)
    assert ("learning rate" in str(caught.value)) is ("learning rate" in said)


def test_targets_and_features_that_reach_far_are_named() -> None:
    x = np.random.default_rng(0).integers(0, 256, (200, 16)).astype(np.uint8)

    def said(x: Any, y: Any, **given: Any) -> str:
        net = horn.Network(seed=1)
        net.input(16)
        net.output(y.shape[1], loss="squared_error")
        with pytest.raises(Diverged) as caught:
            horn.train(horn.Job(net, (x, y), horn.SGD(9.0), epochs=9, **given))
        return str(caught.value)

    of_bytes, of_numbers = said(x, x), said(x.astype(float), x / 255)  # inputs in bytes are divided
    assert "or smaller targets, y / 255: they reach 255" in of_bytes and "features" not in of_bytes
    assert "or smaller features, which reach 255: normalize=True" in of_numbers
    assert "targets" not in of_numbers
    assert "features" not in said(x.astype(float), x / 255, normalize=True)


class Weighted(horn.Neuron):
    """A mean by the sizes of inputs, which has no number where a window lies outside."""

    def forward(self, messages):
        total = sum(abs(m.input) for m in messages)
        self.feedforward(sum(abs(m.input) * m.weight for m in messages) / total)


class Logarithm(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.log(sum(abs(m.input * m.weight) for m in messages)))


class Second(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.largest(2, (m.input * m.weight for m in messages)))


class Median(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.median(m.input * m.weight for m in messages))


@pytest.mark.parametrize(
    "neuron, line, error, fed",
    [
        (Weighted, "/ total)", "ZeroDivisionError: division by zero", "nan"),
        (Logarithm, "horn.math.log(", "log(0) is -inf.", "-inf"),
        (Second, "horn.math.largest(2", "largest(2, ...) of 0 messages is -inf.", "-inf"),
        (Median, "horn.math.median(", "median of no message is nan.", "nan"),
    ],
)
def test_what_has_no_number_where_nothing_is_heard_is_told_by_its_line(neuron, line, error, fed):
    net = horn.Network(seed=1)
    net.input((3, 3, 1))
    net.layer(connect=horn.Convolution(1, 1, padding=1), neuron=neuron, bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.random.default_rng(0).random((6, 3, 3, 1)), np.arange(6) % 2
    with pytest.raises(horn.Diverged) as caught:
        horn.train(horn.Job(net, data, horn.SGD(0.1), batch_size=3, epochs=1))
    said = str(caught.value)
    assert f"in {neuron.__name__}.forward" in said and line in said
    assert error in said and f"feeds forward {fed}" in said


def test_the_time_of_a_step_is_that_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the runs before had taken no time: a search that is too long was begun."""
    training, step_s = importlib.import_module("horn.train"), []
    monkeypatch.setattr(diagnosis, "look_again", lambda *given: step_s.append(given[-1]))
    error = Diverged("")
    error.met = NonFinite("the loss became nan", iteration=99, epoch=1)
    error.kept = KeptArrays(98, 98, {"parameter": {}, "state": {}})
    start: Any = SimpleNamespace(iteration=90)
    monkeypatch.setattr(training, "_model_before", lambda *given: None)
    for recovery in (RecoverySettings(), RecoverySettings(start=start)):
        training._explained(error, job(Log), RunSettings(), recovery, None, 100.0)
    assert step_s == [1.0, 10.0]


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


def test_a_maximum_of_no_message_is_told_of_the_padding() -> None:
    """It was told to look for a logarithm."""
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.layer(connect=horn.Window(2, padding=2), neuron=Largest, name="pool")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.random.default_rng(0).normal(size=(6, 4, 4, 1)), np.arange(6) % 2
    with pytest.raises(Diverged) as caught:
        horn.train(horn.Job(net, data, horn.SGD(0.1), batch_size=3, epochs=1))
    said = str(caught.value)
    assert "Neuron 0 of pool (Largest) feeds forward -inf" in said
    assert "hears no message: its window, of kernel=2 with padding=2, lies outside" in said
    assert "log" not in said
