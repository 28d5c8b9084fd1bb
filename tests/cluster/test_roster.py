"""The table of a group: one writes it, all read it; who goes, comes late or is fenced."""

from __future__ import annotations

import itertools
import threading
import types
from typing import Any

import pytest

from horn import errors
from horn.coordination import roster as roster_module
from horn.coordination.membership import Membership, MembershipChange
from horn.coordination.roster import Publication, Registration, Roster
from horn.patience import Patience
from tests.cluster.helpers import Call, end_session, stood_still, wait_until
from tests.cluster.relay import Relay

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]


@pytest.fixture
def folder(zookeeper):
    return f"{zookeeper.root}/members"


class Group:
    """Members 0 (who publishes) to n - 1, each with a session of its own."""

    def __init__(self, folder, connect, n, attempt=0, **more):
        self.folder, self.counts = folder, {folder: n}
        self.path = folder.replace("members", f"table-{attempt}")
        self.coords = [connect() for _ in range(n)]
        self.first = Membership(self.coords[0], folder)
        self.first.join("0", "shm://0", info={"attempt": attempt}, **more)
        self.publication = Publication(self.coords[0], self.path, {folder: self.first}, attempt)
        self.others = [Registration(coord, folder) for coord in self.coords[1:]]
        self.rosters = [
            Roster(coord, self.path, (folder, "0"), own)
            for coord, own in zip(self.coords[1:], self.others, strict=True)
        ]
        self.attempt, self.more = attempt, more

    def join(self, number):
        self.others[number - 1].join(
            str(number), f"shm://{number}", info={"attempt": self.attempt, "wire": "w"}, **self.more
        )

    def meet(self, timeout_s=10.0):
        for number in range(1, len(self.coords)):
            self.join(number)
        table = self.publication.publish(self.counts, timeout_s)
        for roster in self.rosters:
            assert roster.wait(self.counts, timeout_s) == table
        return table


def test_all_read_what_one_has_written(folder, connect):
    table = Group(folder, connect, 3).meet()
    assert [e.endpoint for e in table.folders[folder]] == ["shm://0", "shm://1", "shm://2"]
    assert [e.wire for e in table.folders[folder]] == ["", "w", "w"] and table.gone == []


def test_who_goes_is_known_to_all(folder, connect):
    group = Group(folder, connect, 4)
    group.meet()
    roster = group.rosters[0]
    before, heard = roster.departures(), []
    roster.subscribe(lambda change: heard.append(change.left))
    roster.check()
    assert roster.lost(["0", "1", "2", "3"], before) == ()
    group.coords[3].close()
    wait_until(lambda: bool(heard))
    roster.check()
    assert roster.lost(["0", "1", "2", "3"], before) == ("3",)


def test_the_table_goes_with_its_writer(folder, connect):
    group = Group(folder, connect, 3)
    group.meet()
    roster, heard = group.rosters[1], []
    before = roster.departures()
    roster.subscribe(lambda change: heard.append(change.left))
    group.coords[0].close()
    wait_until(lambda: bool(heard))
    roster.check()
    assert roster.lost(["0", "1"], before) == ("0",)


def test_who_goes_while_others_are_waited_for_is_known_to_all(folder, connect):
    """It was in the table, and never among those who have gone: it was watched too late."""
    group = Group(folder, connect, 3)
    group.join(1)
    group.join(2)

    class Later(Membership):
        def wait_for(self, *given):
            group.coords[2].close()
            wait_until(lambda: group.first.names() == {"0", "1"})
            return super().wait_for(*given)

    later = f"{folder}-later"
    own, other = Registration(group.coords[1], later), Later(group.coords[0], later)
    own.join("0", "shm://0", info={"attempt": 0})
    group.publication.members = {folder: group.first, later: other}
    group.publication.publish({**group.counts, later: 1}, 10.0)
    roster = group.rosters[0]
    group.coords[1].sync(group.path)  # its server may not have heard yet that member 2 has gone
    assert len(roster.wait(group.counts, 10.0).folders[folder]) == 3
    before = roster.departures()
    roster.check()
    assert roster.lost(["0", "1", "2"], before) == ("2",)
    other.close()
    own.close()


def test_waiting_names_the_absent(folder, connect):
    group = Group(folder, connect, 4)
    group.join(1)
    with pytest.raises(errors.BarrierTimeout, match="registration in .*only 2 of 4") as caught:
        group.rosters[0].wait(group.counts, 0.2)
    assert caught.value.absent == ("2", "3")
    assert "or raise start_timeout (--start-timeout)" in str(caught.value)
    with pytest.raises(errors.BarrierTimeout) as caught:
        group.publication.publish(group.counts, 0.2)
    assert caught.value.absent == ("2", "3")


def test_who_stood_still_while_the_table_was_written_reads_it(folder, connect, monkeypatch):
    group = Group(folder, connect, 2)
    group.join(1)
    monkeypatch.setattr(roster_module, "Patience", stood_still)
    waiting = Call(group.rosters[0].wait, group.counts, 60.0)
    assert group.publication.publish(group.counts, 60.0) == waiting.result()


def test_a_place_is_watched_once_however_often_it_is_read(folder, connect):
    coord = connect()
    own = Registration(coord, folder)
    own.join("0", "shm://0")
    for _ in range(10):
        own.confirm()
    watchers = coord._client.kazoo._data_watchers[f"{folder}/0"]
    assert len(watchers) == 1
    # and who takes it is noticed still, also by a watch that is set after another's end
    other = Registration(connect(), folder)
    other.join("0", "shm://1", replace=True)
    wait_until(lambda: own._node.is_stale)
    with pytest.raises(errors.Fenced):
        own.check()
    Registration(connect(), folder).join("0", "shm://2", replace=True)
    wait_until(lambda: own._node.is_stale)


def test_a_table_that_was_not_written_names_its_writer(folder, connect):
    group = Group(folder, connect, 2)
    group.join(1)
    with pytest.raises(errors.BarrierTimeout, match="has not said so") as caught:
        group.rosters[0].wait(group.counts, 0.2)
    assert caught.value.absent == ("0",)


def test_another_attempt_takes_all_places_and_fences_who_had_them(folder, connect):
    old = Group(folder, connect, 3)
    old.meet()
    new = Group(folder, connect, 3, attempt=1, replace=True)
    assert new.meet().attempt == 1  # the table of before does not count
    with pytest.raises(errors.Fenced, match="another process took its place"):
        old.others[1].confirm()
    wait_until(lambda: old.others[0]._node.is_stale)
    for _ in range(2):
        with pytest.raises(errors.Fenced, match="another process took its place"):
            old.rosters[0].check()


def test_a_held_name_is_a_conflict_until_its_session_ends(folder, connect):
    holder, other = connect(), Registration(connect(), folder)
    Registration(holder, folder).join("a", "tcp://old")
    with pytest.raises(errors.Conflict, match="held by another process, at tcp://old"):
        other.join("a", "tcp://new", timeout_s=0.2)
    waiting = Call(other.join, "a", "tcp://new")
    holder.close()
    assert waiting.result() > 0
    other.check()


def test_what_changed_while_the_connection_was_broken_is_seen(zookeeper, folder, connect):
    with Relay(zookeeper.hosts) as relay:
        group = Group(folder, connect, 2)
        cut = connect(relay.hosts)
        own = Registration(cut, folder)
        own.join("2", "shm://2", info={"attempt": 0})
        group.counts[folder] = 3
        group.meet()
        roster = Roster(cut, group.path, (folder, "0"), own)
        roster.wait(group.counts, 10.0)
        before = roster.departures()
        relay.cut()
        wait_until(lambda: not cut.connected)
        group.coords[1].close()
        wait_until(lambda: bool(group.publication._gone))
        relay.mend()
        wait_until(lambda: roster.check() is None and roster.lost(["1"], before) == ("1",))


def test_a_session_that_ends_is_heard_of(folder, connect):
    group = Group(folder, connect, 2)
    group.meet()
    end_session(group.coords[1])
    with pytest.raises(errors.SessionLost):
        wait_until(lambda: group.rosters[0].check())


class LaggingConnection:
    """Of Session what a registration asks for: to create is refused, and nothing is to be read."""

    session = 1

    def __init__(self, refusal: errors.HornError) -> None:
        self.refusal, self.n_tries = refusal, 0

    def create(self, path: str, data: bytes, ephemeral: bool) -> None:
        self.n_tries += 1
        assert self.n_tries < 100, "no deadline"
        raise self.refusal

    def ensure(self, folder: str) -> None:
        pass

    def subscribe(self, callback):
        return lambda: None

    def send(self, *given, **more) -> None:
        pass

    def get(self, path: str, timeout_s: float) -> None:
        return None


class FailingConnection(LaggingConnection):
    """One whose first read fails, with a broken connection that is not heard of."""

    def get(self, path: str, timeout_s: float) -> None:
        self.n_tries += 1
        if self.n_tries == 1:
            raise self.refusal


def test_a_node_whose_reading_failed_is_to_be_read_again():
    """What had changed was known to nobody then: a task waited for one that had gone."""
    coord = FailingConnection(errors.Unreachable("h:2181", "no answer", 10.0))
    node = roster_module.WatchedNode(coord, "/table", lambda: None)  # type: ignore[arg-type]
    with pytest.raises(errors.Unreachable):
        node.read()
    assert node.is_stale
    assert node.read() is None and not node.is_stale


@pytest.mark.parametrize("refusal", [errors.Conflict("there"), errors.NotFound("no folder")])
def test_a_server_that_lags_does_not_hold_a_registration_beyond_its_deadline(monkeypatch, refusal):
    seconds = itertools.count()

    def counting(timeout_s: float) -> Patience:
        return Patience(timeout_s, lambda: float(next(seconds)))

    monkeypatch.setattr(roster_module, "Patience", counting)
    coord = LaggingConnection(refusal)
    with pytest.raises(type(refusal)):
        Registration(coord, "/tasks").join("1", "shm://1", timeout_s=10.0)  # type: ignore[arg-type]
    assert coord.n_tries in {10, 11}


class OneFolder:
    """Of Membership what a publication asks for: who is there, and who has gone since."""

    def __init__(self) -> None:
        self.present: dict[str, Any] = {}

    def members(self) -> dict[str, Any]:
        return self.present

    def wait_for(self, names, timeout_s, wanted, patience) -> dict[str, Any]:
        for name in names:
            self.present[name] = types.SimpleNamespace(name=name, endpoint=name, info={}, token=1)
        return self.present

    def subscribe(self, callback):
        self.callback = callback
        return lambda: None


class OneConnection:
    """Of Session what a publication asks for. What is written is answered by the thread that brings
    news, as ZooKeeper's: after ``begun`` it waits for the news that comes in between.
    """

    def __init__(self) -> None:
        self.begun, self.heard = threading.Event(), threading.Event()
        self.written: list[bytes] = []
        self.failures: list[errors.ClusterError] = []

    def create(self, path: str, data: bytes, ephemeral: bool) -> None:
        pass

    def set(self, path: str, data: bytes) -> None:
        self.begun.set()
        if self.failures:
            raise self.failures.pop()
        assert self.heard.wait(10.0), "the thread that brings the answer waits for the writer"
        self.written.append(data)


def test_who_goes_while_the_table_is_written_does_not_wait_for_it():
    coord, folder = OneConnection(), OneFolder()
    publication = Publication(coord, "/table", {"tasks": folder}, 0)  # type: ignore[arg-type,dict-item]
    publication.publish({"tasks": 3}, 10.0)
    folder.callback(MembershipChange(frozenset(), frozenset({"0"})))
    assert coord.begun.wait(10.0)
    news = threading.Thread(
        target=folder.callback, args=[MembershipChange(frozenset(), frozenset({"1"}))]
    )
    news.start()
    news.join(5.0)
    was_free = not news.is_alive()
    coord.heard.set()
    news.join(10.0)
    assert was_free
    assert wait_until(lambda: len(coord.written) == 2)
    assert b'["tasks","1"]' in coord.written[1]


def test_who_goes_while_zookeeper_does_not_answer_is_written_once_it_does():
    coord, folder = OneConnection(), OneFolder()
    coord.failures = [errors.Unreachable("zk:2181", "no answer", 10.0)]
    coord.heard.set()
    publication = Publication(coord, "/table", {"tasks": folder}, 0)  # type: ignore[arg-type,dict-item]
    publication.publish({"tasks": 3}, 10.0)
    folder.callback(MembershipChange(frozenset(), frozenset({"1"})))
    assert wait_until(lambda: len(coord.written) == 1)
    assert b'["tasks","1"]' in coord.written[0]
