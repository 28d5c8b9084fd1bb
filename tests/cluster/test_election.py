"""Leader election: one leader at a time, in order, with tokens that fence."""

from __future__ import annotations

import pytest

from horn import errors
from horn.coordination.election import Candidate, commit_as
from horn.coordination.records import Create, Put
from tests.cluster.helpers import Call, end_session, wait_until
from tests.cluster.relay import Relay
from tests.support.election import leader_of, wait_elected

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]


@pytest.fixture
def folder(zookeeper):
    return f"{zookeeper.root}/leader"


def test_the_first_leads_and_the_next_follows_with_a_higher_token(folder, connect):
    a, b, c = (Candidate(connect(), folder, name) for name in (b"a", b"b", b"c"))
    first = wait_elected(a, 10)
    assert leader_of(connect(), folder) == b"a"
    with pytest.raises(errors.Timeout, match="was not elected within 0.1 s"):
        wait_elected(b, 0.1)
    waiting = Call(wait_elected, c, 30)
    b.resign()  # one in the middle goes: nobody is elected by that
    assert not waiting.is_done()
    a.resign()
    assert waiting.result().token > first.token
    c.resign()
    with pytest.raises(errors.NotFound, match="nobody leads"):
        leader_of(connect(), folder)


def test_a_leader_whose_session_ended_cannot_change_anything(folder, zookeeper, connect):
    old_coord, new_coord, state = connect(), connect(), f"{zookeeper.root}/state"
    new_coord.create(state, b"0")
    old = Candidate(old_coord, folder)
    leadership = wait_elected(old, 10)
    commit_as(old_coord, leadership, [Put(state, b"old")])
    new = Candidate(new_coord, folder)
    waiting = Call(wait_elected, new, 30)
    end_session(old_coord)
    fresh = waiting.result()
    # then neither the old session, nor a forgetful new one with the old proof, can write
    with pytest.raises(errors.SessionLost):
        commit_as(old_coord, leadership, [Put(state, b"late")])
    with pytest.raises(errors.Fenced, match=f"token {leadership.token} is fenced"):
        commit_as(connect(), leadership, [Put(state, b"late")])
    commit_as(new_coord, fresh, [Put(state, b"new")])
    assert new_coord.get(state).data == b"new"


def test_who_was_removed_leads_no_more(folder, connect):
    coord = connect()
    a = Candidate(coord, folder)
    leadership = wait_elected(a, 10)
    connect().delete(a.path)
    coord.sync(folder)
    assert not a.leads(coord.children(folder))
    with pytest.raises(errors.Fenced, match=f"token {leadership.token} is fenced"):
        commit_as(coord, leadership, [Create(f"{folder}-word", b"")])


def test_a_candidate_survives_a_broken_connection(folder, zookeeper, connect):
    with Relay(zookeeper.hosts) as relay:
        first, coord = Candidate(connect(), folder), connect(relay.hosts)
        second = Candidate(coord, folder)
        waiting = Call(wait_elected, second, 30)
        relay.cut()
        wait_until(lambda: not coord.connected)
        first.resign()
        relay.mend()
        assert waiting.result() == second.leadership


def test_a_transaction_of_the_leader_says_its_own_step(folder, zookeeper, connect):
    coord = connect()
    leadership = wait_elected(Candidate(coord, folder), 10)
    with pytest.raises(errors.NotApplied) as caught:
        commit_as(coord, leadership, [Put(f"{zookeeper.root}/none", b"")])
    assert (caught.value.index, caught.value.reason) == (0, "missing")
