"""A task's messages to servers, over a transport that is slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from horn.errors import BarrierTimeout, ProtocolError
from horn.runtime.group import TaskTimes
from horn.strategies import Pull, Topology
from horn.strategies.parameter_server.client import Wire
from horn.strategies.parameter_server.pieces import Piece
from horn.wire.frames import WAITS, Meta, Note, ParameterData, WireMessage

PIECES = [Piece(0, "w", 0, 2, 0, (0,), 0, False)]
PART = 3  # of what the server sends to task 1


class Slow:
    """That of task 1. Nothing comes for so many turns, then what is in ``coming``."""

    task = 1

    def __init__(self, n_empty: int, coming: Sequence[WireMessage] = ()) -> None:
        self.n_empty, self.coming, self.sent = n_empty, list(coming), []

    def send(self, to: int, meta: Meta, *_: Any, **__: Any) -> None:
        self.sent.append((to, meta))

    def plan(self, channels: Sequence[Any], timeout_s: float) -> None:
        self.channels = list(channels)

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        self.posted = (superstep, *parts)

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        assert self.posted == (superstep, *parts)

    def inbox(self, part: int) -> np.ndarray:
        assert part == PART
        return np.array([3.0, 4.0])

    def receive(self, timeout_s: float) -> WireMessage | None:
        self.n_empty -= 1
        return self.coming.pop(0) if self.n_empty < 0 and self.coming else None


def a_wire(transport: Slow, check: Any = None) -> Wire:
    given: Any = transport
    return Wire(given, Topology(2, 1, 1), PIECES, "float64", 0.0, TaskTimes(), check)


def answer(clock: int, part: int = PART) -> WireMessage:
    return WireMessage(ParameterData(pieces=(0,), clock=clock, part=part), src=2)


def pulled(wire: Wire, pull: Pull) -> list[float]:
    arrays = {"w": np.zeros(2)}
    wire.pull(pull, arrays)
    wire.take_all()
    return arrays["w"].tolist()


def test_the_first_pull_waits_as_long_as_group_0_warms_up():
    assert pulled(a_wire(Slow(5, [answer(0)])), Pull(0)) == [3.0, 4.0]


def test_later_pulls_have_a_deadline():
    with pytest.raises(BarrierTimeout, match="task 1, pull 1.*server 0 owes ParameterData"):
        pulled(a_wire(Slow(5, [answer(1)])), Pull(1))


def test_of_a_server_that_waits_the_ones_it_waits_for_are_late():
    note = WireMessage(Note(topic=WAITS, fields={"ranks": "0"}), src=2)
    with pytest.raises(BarrierTimeout, match="and waits for task 0") as caught:
        pulled(a_wire(Slow(0, [note])), Pull(1))
    assert caught.value.absent == ("task 0",)


def test_who_waits_looks_at_what_happens_beside():
    def check() -> None:
        raise RuntimeError("the guest has failed")

    with pytest.raises(RuntimeError, match="the guest has failed"):
        pulled(a_wire(Slow(5), check), Pull(3, final=True))


@pytest.mark.parametrize("wrong", [answer(1), answer(0, 7)])
def test_an_answer_to_something_else_is_refused(wrong):
    with pytest.raises(ProtocolError, match="task 1, pull 0: got bundle .* from server 0"):
        pulled(a_wire(Slow(0, [wrong])), Pull(0))
