"""What is interrupted where it is, since the time of its job is over."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import MemberLost, Timeout
from horn.training import deadline
from horn.training import interrupts as interrupting_signals
from horn.training.deadline import Deadline, Interrupted, interrupting
from horn.training.history import History
from horn.training.hooks import Hooks
from horn.training.interrupts import ENDING_SIGNALS, STOPPING, interrupts
from horn.training.progress import Progress


def past() -> Deadline:
    return Deadline(3.0, time.monotonic() - 100.0)


def test_who_waits_is_interrupted_and_says_where():
    with pytest.raises(
        Interrupted,
        match=r"^the job took more than 3 s in a test; raise timeout \(--timeout\)$",
    ):
        with interrupting(past(), "in a test"):
            threading.Event().wait()


def test_nobody_is_interrupted_without_a_timeout_before_it_after_settling_or_in_a_thread():
    with interrupting(Deadline(None)), interrupting(Deadline(100.0)):
        pass
    with interrupting(past(), after_s=1000.0) as settle:
        settle()
    ended = threading.Event()

    def run() -> None:
        with interrupting(past()):
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended.is_set()


def test_what_watches_the_time_ends_with_what_it_watches():
    """A thread was left behind where the machine was loaded."""
    before, pause_s = threading.active_count(), sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # who is woken is late
    try:
        with interrupting(Deadline(100.0)):
            assert threading.active_count() == before + 1
        assert threading.active_count() == before
    finally:
        sys.setswitchinterval(pause_s)


def test_a_signal_that_another_program_handles_is_left_to_it(monkeypatch: pytest.MonkeyPatch):
    """Python, embedded in it, cannot give it back: that was a TypeError at the end of a run."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *given: pytest.fail(f"{given}"))
    with interrupting(Deadline(100.0)), interrupts(threading.Event(), numbers=ENDING_SIGNALS):
        pass


@pytest.mark.parametrize("after_s, n_said", [(0.0, 1), (1000.0, 0)])
def test_who_stops_a_long_update_is_told_once_what_ends_it(
    after_s: float, n_said: int, monkeypatch: pytest.MonkeyPatch
):
    """The stop button of a notebook was silent for the rest of an interpreted update."""
    monkeypatch.setattr(interrupting_signals, "SAY_AFTER_S", after_s)
    said: list[str] = []
    told, stop = threading.Event(), threading.Event()
    n_threads = threading.active_count()

    def warn(text: str) -> None:
        said.append(text)
        told.set()

    logger = logging.getLogger(interrupting_signals.__name__)
    monkeypatch.setattr(logger, "warning", warn)
    with pytest.raises(KeyboardInterrupt), interrupts(stop, waiting=STOPPING):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert not n_said or told.wait(60.0)
        signal.raise_signal(signal.SIGINT)
    assert said == [STOPPING] * n_said and threading.active_count() == n_threads


def test_one_run_within_another_is_interrupted_by_both():
    with pytest.raises(Interrupted, match="in the outer"), interrupting(past(), "in the outer"):
        with interrupting(Deadline(1000.0)):
            threading.Event().wait()


def test_who_catches_that_is_ended_with_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deadline, "END_S", 0.0)
    said: list[str] = []
    ended = threading.Event()

    def end(text: str) -> None:
        said.append(text)
        ended.set()

    with interrupting(Deadline(0.1, end=end), "in a test", after_s=0.0):
        while not ended.is_set():
            try:
                ended.wait()
            except Timeout:
                continue
    place, sentence = said[0].splitlines()
    assert place.startswith(__file__) and sentence == (
        "the job took more than 0.1 s in a test, and could not be interrupted; raise timeout "
        "(--timeout)"
    )


class Waits(horn.Callback):
    """Never returns after five updates, or at the end. expire : called before."""

    def __init__(self, at: int, expire: Callable[[], None] = int) -> None:
        self.at, self.expire = at, expire

    def on_batch_end(self, context: Any) -> None:
        if context.iteration == self.at:
            self.expire()
            threading.Event().wait()

    def on_train_end(self, context: Any) -> None:
        threading.Event().wait()


@pytest.mark.parametrize(
    ("at", "n", "settings"),
    [
        (5, 5, {"timeout": 1.0}),
        (0, 12, {"timeout": 1.0}),
        pytest.param(5, 5, {"timeout": 60.0, "tasks": 2}, marks=pytest.mark.cluster),
    ],
    ids=["batch", "end", "tasks"],
)
def test_a_callback_that_hangs_is_interrupted_and_the_model_is_there(
    at: int, n: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """It was waited for as long as it took."""
    monkeypatch.setattr(deadline, "INTERRUPT_S", 0.0)

    def expire() -> None:
        """Tasks take their time to start: theirs is over when the callback has begun."""
        monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: math.inf))
        signal.raise_signal(deadline.NUMBER)

    net = horn.Network(seed=3)
    net.input(2)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).standard_normal((40, 2))
    given = horn.Job(net, (x, np.arange(40) % 2), batch_size=10, epochs=3)
    hook = "on_batch_end" if at else "on_train_end"
    waits = Waits(at, expire) if "tasks" in settings else Waits(at)
    with pytest.raises(Timeout, match=f"in callback Waits, {hook}; raise timeout") as late:
        horn.train(given.with_settings(callbacks=(waits,)), **settings)
    whole = horn.train(given.with_settings(epochs=None, iterations=n)).model
    assert late.value.iteration == n
    for name, array in late.value.model.parameters.items():
        np.testing.assert_allclose(array, whole.parameters[name], rtol=1e-5, atol=1e-6)


class Asks(horn.Callback):
    """Asks for the model after each epoch; or is interrupted before it can."""

    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first

    def on_epoch_end(self, context: Any) -> None:
        if self.is_first:
            raise Interrupted(3.0)
        _ = context.model


@pytest.mark.parametrize(
    ("is_first", "error"),
    [(False, Interrupted(3.0)), (True, MemberLost("task 0", ("task 1",)))],
    ids=["while it asks", "before"],
)
def test_tasks_that_do_not_give_the_model_are_asked_once(is_first: bool, error: Exception):
    """A callback that was interrupted while it waited for them waited again, without an end."""
    net = horn.Network(seed=3)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.zeros((4, 2)), np.arange(4) % 2
    hooks = Hooks(horn.Job(net, data, batch_size=4, epochs=1, callbacks=(Asks(is_first),)))
    asked = []

    def arrays() -> Any:
        asked.append(error)
        raise error

    hooks.arrays = arrays
    with pytest.raises(Interrupted, match="in callback Asks, on_epoch_end") as late:
        hooks.epoch({"epoch": 1, "iteration": 1}, History(), Progress())
    assert asked == [error] and late.value.model is None
