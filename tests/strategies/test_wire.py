"""A task's messages to servers, over a transport that is slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from horn.errors import BarrierTimeout, ProtocolError
from horn.runtime.group import Spent
from horn.runtime.messages import Message, Meta, Parameters
from horn.runtime.replica import Wire
from horn.strategies import Pull, Topology
from horn.strategies._pieces import Piece

PIECES = [Piece(0, "w", 0, 2, 0, (0,), 0, False)]


class Slow:
    """That of task 1. Nothing comes for so many turns, then what is in ``coming``."""

    task = 1

    def __init__(self, n_empty: int, coming: Sequence[Message] = ()) -> None:
        self.n_empty, self.coming, self.sent = n_empty, list(coming), []

    def send(self, to: int, meta: Meta, *_: Any, **__: Any) -> None:
        self.sent.append((to, meta))

    def receive(self, timeout_s: float) -> Message | None:
        self.n_empty -= 1
        return self.coming.pop(0) if self.n_empty < 0 and self.coming else None


def a_wire(transport: Slow, check: Any = None) -> Wire:
    given: Any = transport
    return Wire(given, Topology(2, 1, 1), PIECES, "float64", 0.0, Spent(), check)


def answer(clock: int, pieces: tuple[int, ...] = (0,)) -> Message:
    return Message(Parameters(pieces=pieces, clock=clock), (np.array([3.0, 4.0]),), src=2)


def test_the_first_pull_waits_as_long_as_group_0_warms_up():
    arrays = {"w": np.zeros(2)}
    a_wire(Slow(5, [answer(0)])).pull(Pull(0), arrays)
    assert arrays["w"].tolist() == [3.0, 4.0]


def test_later_pulls_have_a_deadline():
    with pytest.raises(BarrierTimeout, match="task 1, pull 1.*server 0 owes Parameters"):
        a_wire(Slow(5, [answer(1)])).pull(Pull(1), {"w": np.zeros(2)})


def test_who_waits_looks_at_what_happens_beside():
    def check() -> None:
        raise RuntimeError("the guest has failed")

    with pytest.raises(RuntimeError, match="the guest has failed"):
        a_wire(Slow(5), check).pull(Pull(3, final=True), {"w": np.zeros(2)})


@pytest.mark.parametrize("wrong", [answer(1), answer(0, (7,))])
def test_an_answer_to_something_else_is_refused(wrong):
    with pytest.raises(ProtocolError, match="task 1, pull 0: got pieces .* from server 0"):
        a_wire(Slow(0, [wrong])).pull(Pull(0), {"w": np.zeros(2)})
