"""Membership: who is there, who went, who took whose place, across broken connections."""

from __future__ import annotations

import queue

import pytest
from kazoo.security import make_digest_acl

from horn import errors
from horn.coordination import membership
from horn.coordination.membership import Membership, MembershipChange
from horn.coordination.records import Create, Delete
from tests.cluster.helpers import Call, end_session, stood_still, wait_until
from tests.cluster.relay import Relay

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]
OTHERS = [make_digest_acl("others", "secret", all=True)]  # rights to a node


@pytest.fixture
def folder(zookeeper):
    return f"{zookeeper.root}/members"


def test_members_see_one_another_with_endpoint_and_versions(folder, connect):
    a, b = Membership(connect(), folder), Membership(connect(), folder)
    a.join("a", "tcp://h1:5", versions={"horn": "0.1"}, info={"slots": 4})
    token = b.join("b", "tcp://h2:6")
    found = a.wait_for(["a", "b"], 10)
    assert found["b"].endpoint == "tcp://h2:6" and found["b"].token == token
    assert (found["a"].versions, found["a"].info) == ({"layout": 2, "horn": "0.1"}, {"slots": 4})
    assert found["a"].token < token
    b.leave()
    wait_until(lambda: a.names() == {"a"})
    b.leave()  # nothing happens


def test_waiting_names_the_absent(folder, connect):
    a = Membership(connect(), folder)
    a.join("a", "tcp://h1:5")
    with pytest.raises(errors.BarrierTimeout, match="only 1 of 3 arrived in 0.2 s") as caught:
        a.wait_for(["a", "b", "c"], 0.2)
    assert caught.value.absent == ("b", "c")
    assert "or raise start_timeout (--start-timeout)" in str(caught.value)


def test_who_stood_still_while_others_joined_finds_them(folder, connect, monkeypatch):
    monkeypatch.setattr(membership, "Patience", stood_still)
    a, b = Membership(connect(), folder), Membership(connect(), folder)
    waiting = Call(a.wait_for, ["b"], 60.0)
    b.join("b", "tcp://h1:5")
    assert waiting.result().keys() == {"b"}


def test_a_held_name_is_a_conflict_until_its_session_ends(folder, connect):
    holder, other = connect(), Membership(connect(), folder)
    Membership(holder, folder).join("a", "tcp://old")
    wait_until(lambda: "a" in other.names())
    with pytest.raises(errors.Conflict, match="held by another process, at tcp://old"):
        other.join("a", "tcp://new", timeout_s=0.2)
    waiting = Call(other.join, "a", "tcp://new")
    holder.close()
    token = waiting.result()
    assert other.members()["a"].endpoint == "tcp://new" and token == other.members()["a"].token


def test_who_is_replaced_is_fenced(folder, connect):
    old, new = Membership(connect(), folder), Membership(connect(), folder)
    first = old.join("a", "tcp://old")
    assert new.join("a", "tcp://new", replace=True) > first
    wait_until(lambda: old.departures()["a"] == 1)
    with pytest.raises(errors.Fenced, match="another process took its place"):
        old.check()
    new.check()
    old.leave()  # must not remove the new holder's node
    assert new.names() == {"a"}


@pytest.mark.parametrize("other_joins", [True, False])
def test_who_is_removed_before_it_has_noted_its_place_is_fenced(
    folder, connect, monkeypatch, other_joins
):
    """It stayed a member for itself: its view had told of the change before, or never had it."""
    coord, other = connect(), Membership(connect(), folder)
    member, create = Membership(coord, folder), coord.create
    monkeypatch.setattr("horn.coordination.membership.ANSWER_S", 0.2)
    if not other_joins:  # and before its view has read it
        monkeypatch.setattr(member._view, "_read_soon", lambda names: None)

    def create_and_lose(*args, **options):
        node = create(*args, **options)
        if other_joins:
            token = other.join("a", "tcp://new", replace=True)
            wait_until(lambda: member.members()["a"].token == token)
        else:
            other.coord.delete(f"{folder}/a")
        return node

    monkeypatch.setattr(coord, "create", create_and_lose)
    member.join("a", "tcp://old")
    with pytest.raises(errors.Fenced, match="took its place" if other_joins else "was removed"):
        member.check()


@pytest.mark.parametrize("is_stale", [False, True])
def test_who_replaces_does_not_wait_where_a_server_is_behind(
    folder, connect, monkeypatch, is_stale
):
    """It read that nobody was there, or one who had gone, was refused, and then waited for the one
    whom it was to replace: 10 s, and a Conflict.
    """
    old, coord = Membership(connect(), folder), connect()
    new = Membership(coord, folder)
    old.join("a", "tcp://older")
    old.tell(is_busy=True)
    coord.sync(folder)
    was = coord.get(f"{folder}/a")
    first = old.join("a", "tcp://old")
    wait_until(lambda: new.names() == {"a"} and new.members()["a"].token == first)
    behind, get = [was if is_stale else None], coord.get
    monkeypatch.setattr(coord, "get", lambda *args: behind.pop() if behind else get(*args))
    assert new.join("a", "tcp://new", replace=True) > first
    assert not behind and new.members()["a"].endpoint == "tcp://new"


def test_a_member_may_join_again_in_its_own_session(folder, connect):
    a = Membership(connect(), folder)
    first = a.join("a", "tcp://h:1")
    assert a.join("a", "tcp://h:2") > first
    wait_until(lambda: a.members()["a"].endpoint == "tcp://h:2")
    a.check()


def test_changes_during_a_broken_connection_are_all_seen(zookeeper, folder, connect):
    with Relay(zookeeper.hosts) as relay:
        watcher, stays = Membership(connect(relay.hosts), folder), Membership(connect(), folder)
        going, reborn = connect(), connect()
        stays.join("stays", "tcp://h:1")
        Membership(going, folder).join("goes", "tcp://h:2")
        Membership(reborn, folder).join("reborn", "tcp://h:3")
        watcher.wait_for(["stays", "goes", "reborn"], 10)
        changes = queue.Queue()
        watcher.subscribe(changes.put)
        # when one goes, one comes, and one goes and comes while nothing is heard
        relay.cut()
        going.close()
        reborn.close()
        Membership(connect(), folder).join("comes", "tcp://h:4")
        Membership(connect(), folder).join("reborn", "tcp://h:5")
        relay.mend()
        # then all of it is told, the reborn one as gone and come
        joined, left = set(), set()
        while joined != {"comes", "reborn"} or left != {"goes", "reborn"}:
            change = changes.get(timeout=10)
            joined |= change.joined
            left |= change.left
        assert watcher.names() == {"stays", "comes", "reborn"}
        assert watcher.members()["reborn"].endpoint == "tcp://h:5"
        # and the watches work again
        stays.leave()
        assert changes.get(timeout=10) == MembershipChange(frozenset(), frozenset({"stays"}))


def test_a_thousand_changes_end_in_the_true_picture(folder, connect):
    watcher = Membership(connect(), folder)
    coord = connect()
    for i in range(100):
        coord.create(f"{folder}/m{i % 7}-{i}", b"x", ephemeral=True)
        if i % 3:
            coord.delete(f"{folder}/m{i % 7}-{i}")
    truth = frozenset(coord.children(folder))
    wait_until(lambda: watcher.names() == truth)
    assert len(truth) == 34


@pytest.mark.parametrize("is_made", [False, True])
def test_members_of_a_folder_that_is_made_again_are_seen(folder, connect, is_made):
    coord = connect()
    if is_made:  # and is not there when it is first listed
        coord.ensure(folder.rpartition("/")[0])
    members = Membership(coord, folder, is_made=is_made)
    for name in "abc":
        coord.ensure(folder)
        coord.create(f"{folder}/{name}")
        wait_until(lambda name=name: members.names() == {name})
        coord.delete(f"{folder}/{name}")
        wait_until(lambda: not members.names())
        coord.delete(folder)
    for name in "abc":  # with its members, at once
        coord.commit([Create(folder), Create(f"{folder}/{name}")])
        wait_until(lambda name=name: members.names() == {name})
        coord.commit([Delete(f"{folder}/{name}"), Delete(folder)])
        wait_until(lambda: not members.names())


@pytest.mark.parametrize("data", [b"{}", b"[" * 100_000], ids=["empty", "nested"])
def test_a_stranger_among_the_members_is_named(folder, connect, data):
    a = Membership(connect(), folder)
    connect().create(f"{folder}/odd", data)
    wait_until(lambda: "odd" in a.names())
    with pytest.raises(errors.ProtocolError, match="odd is not a member that horn wrote"):
        a.members()


def test_a_member_that_may_not_be_read_is_named(folder, connect):
    """Nothing of the folder was known then, and ZooKeeper was said not to answer."""
    coord, name = connect(), f"{folder}/odd"
    coord.ensure(folder)
    coord._client.kazoo.create(name, acl=OTHERS)
    a = Membership(coord, folder)
    a.join("a", "tcp://h1:5")
    with pytest.raises(errors.AccessDenied, match=f"{name}: the right to read it is missing"):
        a.members()
    unread: dict[str, errors.HornError] = {}
    assert a.members(unread).keys() == {"a"} and unread.keys() == {"odd"}
    coord.delete(name)
    wait_until(lambda: not a._view.denied())
    assert a.members().keys() == {"a"}


def test_a_folder_that_may_not_be_listed_is_named(folder, connect):
    coord = connect()
    coord.ensure(folder)
    coord._client.kazoo.set_acls(folder, OTHERS)
    with pytest.raises(errors.AccessDenied, match=f"{folder}: the right to list it is missing"):
        Membership(coord, folder).members()


def test_another_layout_is_named(folder, connect):
    a = Membership(connect(), folder)
    data = b'{"endpoint": "x", "info": {}, "versions": {"layout": 9}}'
    connect().create(f"{folder}/new", data)
    wait_until(lambda: "new" in a.names())
    with pytest.raises(errors.ProtocolError, match="layout 9, but this horn reads 2"):
        a.members()


def test_who_waits_for_members_hears_of_its_own_loss(folder, connect):
    coord = connect()
    waiting = Call(Membership(coord, folder).wait_for, ["x"], 30)
    end_session(coord)
    with pytest.raises(errors.SessionLost):
        waiting.result()
