"""What a command does while ZooKeeper is gone."""

from __future__ import annotations

import threading

import pytest

from horn.cluster import reconnecting
from horn.cluster.reconnecting import ReconnectingClient
from horn.errors import SessionLost, Unreachable
from tests.cluster.helpers import Call


class Away:
    """A ZooKeeper that is there for one session, and then after ``n`` tries more."""

    def __init__(self, n: int, is_there: bool = True) -> None:
        self.n, self.is_there, self.n_sessions = n, is_there, 0

    def __call__(self, hosts: str, key: object) -> Away:
        return self

    def __enter__(self) -> Away:
        if not self.is_there and self.n:
            self.n -= 1
            raise Unreachable("localhost:1", "refused", 5.0)
        self.n_sessions += 1
        self.is_there = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_there = False


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch):
    def made(away: Away) -> ReconnectingClient:
        monkeypatch.setattr(reconnecting, "ClusterClient", away)
        monkeypatch.setattr(reconnecting, "LOOK_S", 0.0)
        return ReconnectingClient("localhost:1", None)

    return made


def lost(away: Away):
    def look(_: object) -> str:
        if away.n_sessions == 1:
            raise SessionLost("session", "expired")
        return "it goes on"

    return look


def test_who_looks_goes_on_when_zookeeper_comes_back_after_some_tries(looking):
    away = Away(3)
    client = looking(away)
    assert client.retry(lost(away)) == "it goes on"
    assert away.n_sessions == 2 and away.n == 0


def test_who_was_never_there_is_said_at_once(looking):
    away = Away(10, is_there=False)
    with pytest.raises(Unreachable):
        looking(away).retry(lambda _: None)
    assert away.n == 9


def test_who_stays_away_is_said_after_a_time(looking, monkeypatch):
    monkeypatch.setattr(reconnecting, "AGAIN_S", 0.0)
    away = Away(10)
    with pytest.raises((SessionLost, Unreachable)):
        looking(away).retry(lost(away))
    assert away.n > 0


class Counted:
    """A session; ``ended`` after its exit."""

    made: list[Counted]

    def __init__(self, hosts: str, key: object) -> None:
        self.ended = False
        self.made.append(self)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    Counted.made = []
    monkeypatch.setattr(reconnecting, "ClusterClient", Counted)
    return Counted.made


def test_a_long_action_delays_none_of_another_thread(sessions):
    begun, may_end = threading.Event(), threading.Event()

    def fetch(client):
        begun.set()
        assert may_end.wait(60)
        return client

    with ReconnectingClient("localhost:1", None) as client:
        first = Call(client.retry, fetch)
        assert begun.wait(60)
        other = client.retry(lambda its: its)
        assert client.retry(lambda its: its) is other  # one after the other have the same
        may_end.set()
        assert first.result() is sessions[0] and sessions == [first.result(), other]
        assert not any(session.ended for session in sessions)
    assert all(session.ended for session in sessions)


def test_a_session_in_use_ends_after_its_action_when_the_client_is_closed(sessions):
    client = ReconnectingClient("localhost:1", None)

    def closing(its):
        client.close()
        return its.ended

    assert client.once(closing) is False and sessions[0].ended
    assert client.once(lambda its: its) is sessions[1]


def test_what_must_not_be_done_twice_is_not(looking):
    away = Away(0)
    with pytest.raises(SessionLost):
        looking(away).once(lost(away))
    assert away.n_sessions == 1
