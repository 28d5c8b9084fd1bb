"""Where the tasks of a job go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horn.cluster.scheduler import (
    Host,
    ResourceRequest,
    Unschedulable,
    allocate,
    check_files,
    scattered,
)
from horn.errors import JobError
from horn.topology import Topology


def test_too_few_open_files_are_said_before_a_start():
    there = [Host(name, "h", 100, 100, files=1024) for name in ("a", "b")]
    check_files(Topology(1, 100), there)  # on one host
    with pytest.raises(JobError, match="200 tasks: each needs up to 1264 open files.* 1024 on a"):
        check_files(Topology(2, 100), there)
    check_files(Topology(200, 1), [replace(host, files=0) for host in there])  # not known
    check_files(Topology(1000, 1), there)  # it waits for more


def test_a_job_that_only_hosts_without_a_common_folder_have_room_for_is_told_apart():
    apart = hosts(2, 2)
    assert scattered(need(2, 1), apart) == "", "one host has room"
    assert "it takes 3 slots" in scattered(need(3, 1), apart)
    assert "see a folder in common have 2" in scattered(need(1, 4), apart)
    assert scattered(need(5, 1), apart) == "", "it waits for more hosts"
    assert scattered(need(3, 1, 1, guests=True), apart) == "", "nothing is kept of it anyway"
    shared = {name: replace(host, shared="nfs") for name, host in apart.items()}
    assert scattered(need(2, 2), shared) == ""
    two = {name: replace(host, shared=name) for name, host in apart.items()}
    assert scattered(need(2, 2), two)
    others = {name: replace(host, python="3.9") for name, host in hosts(2, 2, 8).items()}
    assert scattered(need(3, 1), apart | {"other": others["node-c"]}), "that one cannot run it"


def hosts(*free: int, slots: int = 0) -> dict[str, Host]:
    return {
        f"node-{'abcdefgh'[k]}": Host(
            f"node-{'abcdefgh'[k]}", "127.0.0.1", slots or n, n, "1", "3.11"
        )
        for k, n in enumerate(free)
    }


def need(groups: int, tasks: int, servers: int = 0, **more: object) -> ResourceRequest:
    return ResourceRequest(groups, tasks, servers, **{"horn": "1", "python": "3.11", **more})  # type: ignore[arg-type]


def test_a_job_goes_to_the_one_host_that_it_fills_best():
    assert allocate(need(2, 2), hosts(8, 4, 6)) == {"node-b": (0, 1, 2, 3)}


def test_groups_stay_whole_where_they_can():
    found = allocate(need(3, 2), hosts(3, 3, 3))
    assert found == {"node-a": (0, 1), "node-b": (2, 3), "node-c": (4, 5)}


def test_only_what_fits_nowhere_is_divided():
    found = allocate(need(3, 2), hosts(3, 3))
    assert found == {"node-a": (0, 1, 4), "node-b": (2, 3, 5)}


def test_servers_are_spread():
    found = allocate(need(2, 2, 3), hosts(2, 2))
    assert found == {"node-a": (0, 1, 4, 6), "node-b": (2, 3, 5)}


def test_servers_that_are_guests_have_no_seat():
    assert allocate(need(2, 1, 2, guests=True), hosts(2)) == {"node-a": (0, 1)}


def test_a_job_goes_back_to_where_it_was():
    assert allocate(need(1, 2), hosts(2, 2), prefer={"node-b"}) == {"node-b": (0, 1)}


def test_a_group_that_fits_on_no_host_is_divided():
    assert allocate(need(1, 4), hosts(2, 2)) == {"node-a": (0, 1), "node-b": (2, 3)}


def test_the_reason_says_how_many_slots_are_short():
    found = allocate(need(4, 2), hosts(2, 1, slots=4))
    assert found == Unschedulable("waits for 8 slots; 3 are free on 2 hosts")


def test_the_reason_says_that_the_cluster_is_too_small():
    found = allocate(need(4, 2), hosts(2, 1))
    assert found == Unschedulable(
        "waits for 8 slots; the 2 usable workers have 3: start more workers"
    )
    assert allocate(need(1, 1), {}) == Unschedulable("waits for 1 slot; no worker is up")


def test_workers_of_another_version_are_not_used_and_the_reason_says_so():
    there = hosts(4) | {"node-d": Host("node-d", "h", 8, 8, "2", "3.13")}
    assert allocate(need(1, 4), there) == {"node-a": (0, 1, 2, 3)}
    found = allocate(need(1, 5), there)
    assert isinstance(found, Unschedulable)
    assert "node-d has Python 3.13 and horn 2" in found.reason
    assert "submitted with Python 3.11 and horn 1" in found.reason
    found = allocate(need(1, 1), {"node-d": there["node-d"]})
    assert isinstance(found, Unschedulable)
    assert found.reason.startswith("waits for 1 slot; no worker that is up can run it. Not used: ")


@given(
    free=st.lists(st.integers(0, 9), max_size=6),
    groups=st.integers(1, 5),
    tasks=st.integers(1, 5),
    servers=st.integers(0, 4),
)
def test_every_rank_has_one_seat_no_host_too_many_and_as_many_groups_as_can_are_whole(
    free: list[int], groups: int, tasks: int, servers: int
):
    there = hosts(*free)
    found = allocate(need(groups, tasks, servers), there)
    if isinstance(found, Unschedulable):
        assert sum(free) < groups * tasks
        return
    assert sorted(r for ranks in found.values() for r in ranks) == [
        *range(groups * tasks + servers)
    ]
    for name, ranks in found.items():
        assert sum(rank < groups * tasks for rank in ranks) <= there[name].free
    of = {rank: name for name, ranks in found.items() for rank in ranks}
    whole = sum(len({of[g * tasks + t] for t in range(tasks)}) == 1 for g in range(groups))
    assert whole == min(groups, sum(n // tasks for n in free))


def test_a_host_on_which_it_failed_is_taken_last():
    there = hosts(2, 2, 4)
    assert allocate(need(1, 2), there, prefer={"node-a"}, blamed={"node-a": 1}) == {
        "node-b": (0, 1)
    }
    both = {"node-a": 1, "node-b": 3}
    assert allocate(need(1, 2), there, blamed=both) == {"node-c": (0, 1)}
    assert allocate(need(3, 2), there, blamed=both) == {"node-a": (4, 5), "node-c": (0, 1, 2, 3)}
    assert len(allocate(need(4, 2), there, blamed=both)) == 3  # type: ignore[arg-type]  # all are needed
    everywhere = {"node-a": 2, "node-b": 1, "node-c": 2}
    assert allocate(need(1, 2), there, {"node-a"}, everywhere) == {"node-b": (0, 1)}


def test_two_hosts_that_lost_each_other_are_not_taken_together():
    there = hosts(2, 2, 2)
    pair = ("node-a", "node-b")
    assert allocate(need(2, 2), there, pair) == {"node-a": (0, 1), "node-b": (2, 3)}
    assert allocate(need(2, 2), there, pair, {}, [pair]) == {"node-b": (0, 1), "node-c": (2, 3)}
    # the third host failed by itself: still better than two that cannot meet
    found = allocate(need(2, 2), there, pair, {"node-c": 2}, [pair])
    assert found == {"node-b": (0, 1), "node-c": (2, 3)}
    triangle = [pair, ("node-a", "node-c"), ("node-b", "node-c")]
    assert allocate(need(1, 2), there, pair, {}, triangle) == {"node-c": (0, 1)}
    # nothing else is left
    assert allocate(need(2, 2), hosts(2, 2), pair, {}, [pair]) == {
        "node-a": (0, 1),
        "node-b": (2, 3),
    }
    assert allocate(need(3, 2), there, pair, {}, triangle) == allocate(need(3, 2), there)


NAMES = [f"node-{letter}" for letter in "abcdef"]


@given(
    free=st.lists(st.integers(0, 5), max_size=6),
    groups=st.integers(1, 4),
    tasks=st.integers(1, 4),
    blamed=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)),
    parted=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=4),
)
def test_blame_never_keeps_a_job_from_running_and_no_more_of_it_is_taken_than_needed(
    free: list[int],
    groups: int,
    tasks: int,
    blamed: dict[str, int],
    parted: list[tuple[str, str]],
):
    there, wanted = hosts(*free), need(groups, tasks)
    pairs = [pair for pair in parted if pair[0] != pair[1]]
    found, calm = allocate(wanted, there, (), blamed, pairs), allocate(wanted, there)
    assert isinstance(found, Unschedulable) == isinstance(calm, Unschedulable)
    if isinstance(found, Unschedulable):
        return
    assert sorted(r for ranks in found.values() for r in ranks) == [*range(groups * tasks)]
    assert all(len(ranks) <= there[name].free for name, ranks in found.items())
    room = sum(host.free for name, host in there.items() if name not in blamed)
    if room >= wanted.n_slots and not pairs:
        assert not found.keys() & blamed.keys()
    alone = [name for name, host in there.items() if host.free >= wanted.n_slots]
    if alone and not blamed:
        assert not any(set(pair) <= found.keys() for pair in pairs)
