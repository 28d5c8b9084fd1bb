"""Learning-rate schedules, as numbers."""

from dataclasses import dataclass

import numpy as np
import pytest

import horn
from horn import Cosine, Exponential, Step, Warmup
from horn.errors import HornError, ModelError
from horn.schedules import rate


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Step(1.0, every=2, factor=0.5), [1.0, 1.0, 0.5, 0.5, 0.25]),
        (Exponential(2.0, 0.5), [2.0, 1.0, 0.5, 0.25, 0.125]),
        (Cosine(1.0, 4, final=0.2), [1.0, 0.2 + 0.8 * (1 + 0.5**0.5) / 2, 0.6,
                                     0.2 + 0.8 * (1 - 0.5**0.5) / 2, 0.2]),
        (Warmup(4, 0.8), [0.2, 0.4, 0.6, 0.8, 0.8]),
        (Warmup(2, Exponential(1.0, 0.5)), [0.5, 0.5, 0.25, 0.125, 0.0625]),
        (0.3, [0.3] * 5),
        (1, [1.0] * 5),
    ],
)  # fmt: skip
def test_rates(schedule, expected):
    assert [rate(schedule, k) for k in range(5)] == pytest.approx(expected, rel=1e-14)


def test_cosine_stays_at_its_end():
    assert rate(Cosine(1.0, 4, final=0.2), 1000) == 0.2


def test_step_needs_a_positive_interval():
    with pytest.raises(ModelError, match="every must be at least 1 iteration, got 0"):
        Step(1.0, every=0)


@pytest.mark.parametrize(
    "given, name",
    [
        (lambda: Cosine("0.1", 10), "initial"),
        (lambda: Cosine(0.1, 10, final=float("nan")), "final"),
        (lambda: Step(0.1, "10"), "every"),
        (lambda: Step(0.1, 10, [0.5]), "factor"),
        (lambda: Exponential(0.1, None), "decay"),
    ],
)
def test_what_is_no_number_is_refused_where_it_is_given(given, name):
    with pytest.raises(ModelError, match=rf"{name} must be a finite number, got "):
        given()


@pytest.mark.parametrize("given", [(Cosine(0.1, 10), 5), (0.1, 5)])
def test_the_iterations_of_a_warmup_come_first(given):
    with pytest.raises(ModelError, match=r"which come first.* horn.Warmup\(100, horn.Cosine\(0.1"):
        Warmup(*given)
    with pytest.raises(ModelError, match="Warmup: then: learning_rate is a number, a schedule"):
        Warmup(5, "cosine")
    with pytest.raises(ModelError, match=r"Cosine: iterations, which come second, .* got 0.1"):
        Cosine(1000, 0.1)
    Cosine(0.1, 1e3)
    Warmup(np.int64(5), np.float32(0.1))


@pytest.mark.parametrize("function", [lambda: 0.1, lambda epoch, loss: 0.1], ids=["0", "2"])
def test_a_function_that_does_not_take_the_iteration_is_refused_where_it_is_given(function):
    with pytest.raises(horn.ModelError, match=r"SGD: a learning_rate that is a function takes the"):
        horn.SGD(function)
    horn.SGD(lambda iteration, scale=2.0: scale / (1 + iteration))
    horn.SGD(lambda *all: 0.1)


def falling(iteration):
    return 1.0 / (40 - iteration)


@dataclass
class Below:
    def at(self, iteration):
        return 0.1 - 0.01 * iteration


@pytest.mark.cluster
@pytest.mark.parametrize(
    "schedule, words",
    [
        (falling, r"of falling\(40\) must be .* but it raised ZeroDivisionError: .*\n"
                  r"  .*test_schedules.py:\d+  return 1.0 / \(40 - iteration\)"),
        (Warmup(2, falling), r"of falling\(40\) must be"),
        (Below(), r"of Below.at\(11\) must be a number from 0, got -0.00.*\n"
                  r"  .*test_schedules.py:\d+  def at\(self, iteration\):"),
        (lambda iteration: None, r"of .*<lambda>\(0\) must be a number from 0, got None\n"),
    ],
)  # fmt: skip
def test_a_rate_that_is_no_number_from_0_names_the_function_and_the_iteration(schedule, words):
    """On one task and on two: some were an exception of the function's alone."""
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    job = horn.Job(
        net, (np.ones((6, 2)), np.ones((6, 1))), horn.SGD(schedule), batch_size=2, epochs=20
    )
    for tasks in (1, 2):
        with pytest.raises(HornError, match=words):
            horn.train(job, tasks=tasks)
    with pytest.raises(
        HornError, match=r"of Exponential.at\(35\) .* it raised OverflowError: .*\)$"
    ):
        rate(Exponential(0.1, 1e9), 35)


RATES = [0.1]


def of_a_list(iteration):
    return RATES[0]


@dataclass
class OfItsOwn:
    initial: float = 0.1

    def at(self, iteration):
        return self.initial


class Counts:
    asked = 0

    def __call__(self, iteration):
        self.asked += 1
        return 0.1 / self.asked


class RandomRate(horn.SGD):
    def rate(self, iteration):
        return 0.1 * np.random.rand()


def regression(optimizer, *callbacks, **more):
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    data = np.ones((6, 2)), np.ones((6, 1))
    settings = {"batch_size": 2, "epochs": 3} | more
    return horn.Job(net, data, optimizer, callbacks=callbacks, **settings)


@pytest.mark.parametrize(
    "optimizer, called",
    [
        (horn.SGD(lambda iteration: 0.1 * np.random.rand()), "<lambda>"),
        (horn.SGD(Counts()), "Counts"),
        (horn.SGD(Warmup(2, Counts())), "Warmup.at"),
        (RandomRate(), "RandomRate.rate"),
    ],
)
def test_a_rate_that_is_another_each_time_is_refused(optimizer, called):
    """Each task, and history, had one of its own."""
    with pytest.raises(ModelError, match=rf"of {called}\(0\) was .* a function of the iteration"):
        horn.train(regression(optimizer))


def test_a_rate_that_is_another_each_time_only_later_is_refused_after_that_epoch():
    shaken = horn.SGD(lambda iteration: 0.1 if iteration < 5 else 0.1 * np.random.rand())
    with pytest.raises(ModelError, match=r"<lambda>\(5\) was .*, and is .* when it is asked again"):
        horn.train(regression(shaken))


def test_a_rate_that_something_else_than_a_callback_changes_is_refused(tmp_path):
    (tmp_path / "rate").write_text("0.1")
    read = horn.SGD(lambda iteration: float((tmp_path / "rate").read_text()) * (iteration > 0))

    def progress(row):
        (tmp_path / "rate").write_text(str(0.1 / row["epoch"]))

    with pytest.raises(ModelError, match=r"<lambda>\(5\) was 0.1, and is 0.05 when"):
        horn.train(regression(read), progress=progress)


@pytest.mark.cluster
@pytest.mark.parametrize("where", [{}, {"tasks": 2}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("schedule", [of_a_list, OfItsOwn()], ids=["list", "attribute"])
def test_a_callback_that_changes_what_a_schedule_reads_is_refused_on_every_path(where, schedule):
    """One task followed the change, several did not."""

    def halve(context):
        RATES[0] /= 2
        if not callable(schedule):
            schedule.initial /= 2

    RATES[0] = 0.1
    if not callable(schedule):
        schedule.initial = 0.1
    job = regression(horn.SGD(schedule), halve)
    told = (
        r"halve, on_epoch_end of epoch 1: .*\(0\) was 0.1, and is 0.05 .* context.learning_rate ="
    )
    with pytest.raises(horn.CallbackError, match=told) as caught:
        horn.train(job, **where)
    assert caught.value.run.history["learning_rate"] == [0.1]


@pytest.mark.parametrize("value", ["0.1", b"0.1", True, np.True_])
def test_a_text_or_a_bool_is_no_rate(value):
    with pytest.raises(ModelError, match="must be a number from 0, got"):
        rate(lambda iteration: value, 0)
    assert rate(lambda iteration: np.float32(0.5), 0) == 0.5
