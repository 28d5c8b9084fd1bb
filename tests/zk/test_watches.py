"""Who hears of what, and that nothing is kept of who has gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zk.watches import ANY, CHILDREN, DATA, Watches
from zk.wire import Event

ALL_EVENTS = [Event.CREATED, Event.DELETED, Event.CHANGED, Event.CHILDREN]


@pytest.mark.parametrize("kind", ALL_EVENTS)
def test_one_shot_watches_hear_of_their_events_once(kind: Event) -> None:
    watches = Watches()
    watches.add_data("/a", "data")
    watches.add_child("/a", "child")
    expected = {
        Event.CREATED: ["data"],
        Event.CHANGED: ["data"],
        Event.DELETED: ["data", "child"],
        Event.CHILDREN: ["child"],
    }
    assert list(watches.fire(kind, "/a")) == expected[kind]
    assert list(watches.fire(kind, "/a")) == []


@pytest.mark.parametrize("kind", ALL_EVENTS)
def test_recursive_watch_hears_of_all_below_but_not_of_lists(kind: Event) -> None:
    watches = Watches()
    watches.add_persistent("/a", "r", recursive=True)
    heard = ["r"] if kind != Event.CHILDREN else []
    for path in ("/a", "/a/b", "/a/b/c"):
        assert list(watches.fire(kind, path)) == heard
    assert list(watches.fire(kind, "/ab")) == [] == list(watches.fire(kind, "/"))


def test_recursive_watch_on_the_root_hears_of_everything() -> None:
    watches = Watches()
    watches.add_persistent("/", "r", recursive=True)
    assert list(watches.fire(Event.CREATED, "/a/b")) == ["r"]


def test_later_mode_replaces_the_earlier_one() -> None:
    watches = Watches()
    watches.add_persistent("/a", "w", recursive=True)
    watches.add_persistent("/a", "w", recursive=False)
    assert list(watches.fire(Event.CREATED, "/a/b")) == []
    assert list(watches.fire(Event.CHILDREN, "/a")) == ["w"]


def test_watch_is_removed_by_kind() -> None:
    watches = Watches()
    watches.add_data("/a", "w")
    watches.add_child("/a", "w")
    assert not watches.remove("/a", DATA, "other")
    assert watches.remove("/a", CHILDREN, "w") and not watches.has("/a", CHILDREN, "w")
    assert watches.has("/a", ANY, "w")
    assert watches.remove("/a", ANY, "w") and not watches.remove("/a", ANY, "w")
    assert len(watches) == 0


adds = st.tuples(
    st.sampled_from(["data", "child", "persistent", "recursive", "fire", "forget"]),
    st.sampled_from(["/", "/a", "/a/b"]),
    st.integers(0, 2),
)


@given(st.lists(adds, max_size=40))
def test_nothing_is_kept_of_holders_that_were_forgotten(steps: list[tuple[str, str, int]]) -> None:
    watches = Watches()
    for what, path, holder in steps:
        if what == "data":
            watches.add_data(path, holder)
        elif what == "child":
            watches.add_child(path, holder)
        elif what == "fire":
            watches.fire(ALL_EVENTS[holder], path)
        elif what == "forget":
            watches.forget(holder)
        else:
            watches.add_persistent(path, holder, recursive=what == "recursive")
    for holder in range(3):
        watches.forget(holder)
    assert len(watches) == 0
    assert not (watches.data or watches.child or watches.persistent or watches.recursive)
