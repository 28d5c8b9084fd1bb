"""Numbers of tasks, groups and servers, where groups come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horn.topology import Topology

SOME = st.integers(1, 5)


@given(n_groups=SOME, n_tasks=SOME, n_servers=st.integers(0, 3), n_later=st.integers(0, 4))
def test_nobodys_rank_changes_when_groups_come(n_groups, n_tasks, n_servers, n_later):
    t = Topology(n_groups, n_tasks, n_servers)
    groups = range(n_groups + n_later)
    tasks = [rank for group in groups for rank in t.ranks(group)]
    servers = [t.server(number) for number in range(n_servers)]
    assert sorted(tasks + servers) == list(range(len(groups) * n_tasks + n_servers))
    assert tasks[: t.n_workers] == list(range(t.n_workers))
    assert [t.group(rank) for rank in tasks] == [g for g in groups for _ in range(n_tasks)]
    assert [t.link(rank) for rank in tasks] == list(range(len(tasks)))
    assert all(t.is_server(rank) for rank in servers)
    assert not any(t.is_server(rank) for rank in tasks)
    names = [t.name(rank) for rank in (*tasks, *servers)]
    assert len({*names}) == len(names) == len({t.short_name(r) for r in (*tasks, *servers)})


@given(n_groups=SOME, wishes=st.lists(st.integers(1, 8), max_size=8))
def test_no_group_number_is_given_twice_and_every_part_has_a_reader(n_groups, wishes):
    t = Topology(n_groups, 1, 1)
    here, n_ever, given_ = list(range(n_groups)), n_groups, set(range(n_groups))
    for wish in wishes:
        while len(here) > wish:
            here.remove(max(here))
        while len(here) < wish:
            number = t.next_group(here, n_ever)
            assert number not in given_
            given_.add(number)
            here.append(number)
            n_ever = number + 1
        if wish >= n_groups:
            assert {group % n_groups for group in here} == set(range(n_groups))
        assert 0 in here
