"""A task's messages to servers, over a transport that is slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from horn.errors import BarrierTimeout, ProtocolError
from horn.parameter_server.client import ParameterClient
from horn.parameter_server.mesh import Mesh
from horn.parameter_server.pieces import ParameterPiece
from horn.runtime.group import TaskTimes
from horn.runtime.peers import Peers
from horn.strategies import Pull, Topology
from horn.transport import PeerLost, PeerUnreachable
from horn.wire.frames import WireMessage
from horn.wire.messages import MEASURES, WAITS, Meta, Note, ParameterData, Verdict

PIECES = [ParameterPiece(0, "w", 0, 2, 0, (0,), 0, False)]
PART = 3  # of what the server sends to task 1


class Slow:
    """That of task 1. Nothing comes for so many turns, then what is in ``coming``."""

    task = 1

    def __init__(self, n_empty: int, coming: Sequence[WireMessage] = ()) -> None:
        self.n_empty, self.coming, self.sent = n_empty, list(coming), []
        self.block = np.array([3.0, 4.0])
        self.ended: dict[int, str] = {}

    def send(self, to: int, meta: Meta, *_: Any, **__: Any) -> None:
        self.sent.append((to, meta))

    def open_channels(self, channels: Sequence[Any], timeout_s: float) -> None:
        self.channels = list(channels)

    def post(self, superstep: int, parts: Sequence[int]) -> None:
        self.posted = (superstep, *parts)

    def collect(self, superstep: int, parts: Sequence[int], timeout_s: float) -> None:
        assert self.posted == (superstep, *parts)

    def inbox(self, part: int) -> np.ndarray:
        assert part == PART
        return self.block

    def receive(self, timeout_s: float) -> WireMessage | None:
        self.n_empty -= 1
        return self.coming.pop(0) if self.n_empty < 0 and self.coming else None

    def absent(self) -> dict[int, str]:
        return self.ended


def a_client(transport: Slow, check: Any = None) -> ParameterClient:
    given: Any = transport
    topology = Topology(2, 1, 1)
    peers = Peers(given, topology, 0.0, TaskTimes(), check)
    mesh = Mesh(given, topology, PIECES, "float64", 0.0, receive=peers.from_servers)
    return ParameterClient(mesh, topology, 1, PIECES, "float64", 0.0, TaskTimes(), check)


def answer(turn: int, part: int = PART) -> WireMessage:
    return WireMessage(ParameterData(pieces=(0,), clock=0, part=part, turn=turn), src=2)


def pulled(client: ParameterClient, pull: Pull) -> list[float]:
    arrays = {"w": np.zeros(2)}
    client.pull(pull, arrays)
    client.take_all()
    return arrays["w"].tolist()


def test_the_first_pull_waits_as_long_as_group_0_warms_up():
    assert pulled(a_client(Slow(5, [answer(1)])), Pull(0)) == [3.0, 4.0]


def test_a_wait_without_a_deadline_ends_with_the_server():
    of_server, of_other = Slow(5), Slow(5, [answer(1)])
    of_server.ended, of_other.ended = {2: "it left: out of disk"}, {0: "it left: finished"}
    with pytest.raises(
        PeerLost,
        match="task 1, pull 0: lost server 0 .it left: out of disk; server 0 has not answered Pull",
    ):
        pulled(a_client(of_server), Pull(0))
    assert pulled(a_client(of_other), Pull(0)) == [3.0, 4.0]


def test_the_last_words_of_a_server_that_has_ended_are_heard():
    slow = Slow(1, [answer(1)])
    slow.ended = {2: "it left: finished"}
    assert pulled(a_client(slow), Pull(0)) == [3.0, 4.0]


def test_later_pulls_have_a_deadline():
    with pytest.raises(
        BarrierTimeout, match="task 1, pull 1.*server 0 has not answered PullParameters"
    ):
        pulled(a_client(Slow(5, [answer(1)])), Pull(1))


def test_a_server_that_is_cut_off_is_given_up_after_two_seconds(monkeypatch):
    client, silent_s, waits = a_client(Slow(0)), [0.5], []
    client.timeout_s = 60.0

    def receive(timeout_s: float) -> None:
        waits.append(timeout_s)
        silent_s[0] += timeout_s

    monkeypatch.setattr(client.carrier, "cut_off", lambda: {0: silent_s[0]})
    monkeypatch.setattr(client.carrier, "receive", receive)
    with pytest.raises(PeerUnreachable, match=r"for 2\.0 s nothing has answered"):
        pulled(client, Pull(1))
    assert waits == [1.0, 0.5]


def test_of_a_server_that_waits_the_ones_it_waits_for_are_late():
    note = WireMessage(Note(topic=WAITS, fields={"ranks": "0"}), src=2)
    with pytest.raises(BarrierTimeout, match="waits for task 0") as caught:
        pulled(a_client(Slow(0, [note])), Pull(1))
    assert caught.value.absent == ("task 0",) and caught.value.absent_ranks == (0,)


@pytest.mark.parametrize("measure", [True, False])
def test_a_pull_has_no_deadline_while_those_it_waits_for_measure(measure):
    """The deadline here is two turns: each word of the server begins it anew, or does not."""
    note = WireMessage(Note(topic=WAITS, fields={"ranks": "0", "measure": measure}), src=2)
    coming = [note, None, note, None, note, None, answer(1)]
    transport = Slow(0)
    transport.receive = lambda timeout_s: coming.pop(0)  # type: ignore[method-assign]
    client = a_client(transport)
    client.timeout_s = 1e-9
    if measure:
        assert pulled(client, Pull(1)) == [3.0, 4.0]
        return
    with pytest.raises(BarrierTimeout, match="waits for task 0"):
        pulled(client, Pull(1))


class Telling(Slow):
    """That of group 1: group 0 says what is in ``coming``."""

    n_looks = 0

    def absent(self) -> dict[int, str]:
        self.n_looks += 1
        return self.ended


def waiting_for_group_0(*coming: Meta, n_empty: int = 0) -> tuple[Telling, Peers]:
    transport = Telling(n_empty, [WireMessage(meta, src=0) for meta in coming])
    given: Any = transport
    return transport, Peers(given, Topology(2, 1, 0), 0.0, TaskTimes())


def test_who_hears_that_group_0_measures_waits_for_its_decision_without_a_deadline():
    transport, peers = waiting_for_group_0(Note(topic=MEASURES), Verdict(epoch=3, stop=True))
    given, n_empty = transport.receive, [0, 1, 1, 1, 0]  # turns in which nothing comes
    transport.receive = lambda s: None if n_empty.pop(0) else given(s)  # type: ignore
    assert peers.wait_verdict(3, False) is True and transport.n_looks == 3


def test_who_does_not_hear_it_has_a_deadline():
    _, peers = waiting_for_group_0(n_empty=9)
    with pytest.raises(BarrierTimeout, match="task 0 owes Note"):
        peers.wait_verdict(3, False)


def test_a_group_0_that_ends_while_it_measures_is_lost():
    transport, peers = waiting_for_group_0(Note(topic=MEASURES))
    transport.ended = {0: "killed"}
    with pytest.raises(PeerLost, match="task 1, end of epoch 3: lost task 0 .killed"):
        peers.wait_verdict(3, False)


def test_a_server_may_wait_for_a_group_that_came_later():
    """It numbers tasks without the servers between them: 2 is no server, but group 2's task."""
    note = WireMessage(Note(topic=WAITS, fields={"ranks": "2"}), src=2)
    with pytest.raises(BarrierTimeout, match="waits for group 2's task 0") as caught:
        pulled(a_client(Slow(0, [note])), Pull(1))
    assert caught.value.absent_ranks == (3,)


def test_who_waits_looks_at_what_happens_beside():
    def check() -> None:
        raise RuntimeError("the guest has failed")

    with pytest.raises(RuntimeError, match="the guest has failed"):
        pulled(a_client(Slow(5), check), Pull(3, final=True))


@pytest.mark.parametrize("wrong", [answer(0), answer(1, 7)])
def test_an_answer_to_something_else_is_refused(wrong):
    with pytest.raises(ProtocolError, match="task 1: from server 0: .*bundle"):
        pulled(a_client(Slow(0, [wrong])), Pull(0))


def test_an_answer_that_comes_before_this_task_has_pulled_is_kept_for_its_pull():
    """The group's first task has asked already, and more may come before this one does."""
    said = WireMessage(Verdict(epoch=1, stop=False), src=2)
    transport = Slow(0, [answer(1), said])
    client = a_client(transport)
    assert not client.wait_verdict(1, False)
    transport.block[...] = 0.0  # what comes next is written to the same place
    assert pulled(client, Pull(1)) == [3.0, 4.0]
