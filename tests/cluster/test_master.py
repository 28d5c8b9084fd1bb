"""What a master decides, one snapshot after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from horn.cluster.host_failures import blamed
from horn.cluster.master import (
    END,
    FAILED,
    FINISHED,
    GONE,
    QUEUES,
    RUN,
    RUNNING,
    STARTING,
    STOP,
    STOPPED,
    Decision,
    HostFailure,
    HostReport,
    JobRecord,
    JobSnapshot,
    decide,
    of_orders,
)
from horn.cluster.scheduler import Host, ResourceRequest
from horn.coordination.jobs import JobState
from horn.errors import BarrierTimeout, HornError, MemberLost, ProtocolError, TaskFailed
from horn.transport import PeerLost


def hosts(**slots: int) -> dict[str, Host]:
    return {name: Host(name, "h", n, n, member=1 + k) for k, (name, n) in enumerate(slots.items())}


def start(**more: Any) -> JobSnapshot:
    return JobSnapshot(
        JobState.PENDING, ResourceRequest(2, 1), JobRecord(), {}, hosts(a=1, b=1), **more
    )


def after(snapshot: JobSnapshot, decision: Decision | None) -> JobSnapshot:
    assert decision is not None
    return replace(snapshot, record=decision.record, state=decision.state or snapshot.state)


def saying(snapshot: JobSnapshot, **said: HostReport) -> JobSnapshot:
    members = {name: allocation.member for name, allocation in snapshot.record.allocations.items()}
    reports = {n: msgspec.structs.replace(r, member=members[n]) for n, r in said.items()}
    return replace(snapshot, reports={**snapshot.reports, **reports})


def running(**more: Any) -> JobSnapshot:
    first = start(**more)
    return saying(after(first, decide(first)), a=HostReport(RUNNING), b=HostReport(RUNNING))


def test_orders_tell_what_runs_where_and_which_groups():
    first = start()
    found = decide(replace(first, record=JobRecord(attempt=4, groups=(1, 5), n_scaled=2)))
    assert found is not None
    orders = {host: order for host, order in found.orders.items() if order}
    again = of_orders(orders, first.need, "why")
    assert again == msgspec.structs.replace(
        found.record, groups=(1, 5), n_ever=6, n_restarts=4, trouble="why"
    )
    assert decide(replace(first, state=JobState.RUNNING, record=again)) is None
    assert of_orders({}, first.need, "why") == JobRecord(n_restarts=1, trouble="why")


def test_a_job_is_placed_with_the_next_attempt():
    found = decide(start())
    assert found is not None and found.state is JobState.RUNNING
    assert found.record.attempt == 1
    assert {h: (o.aim, o.attempt) for h, o in found.orders.items() if o} == {
        "a": (RUN, 1),
        "b": (RUN, 1),
    }
    assert decide(after(start(), found)) is None


def test_why_it_waits_is_noted_once():
    snapshot = replace(start(), hosts=hosts(a=1))
    found = decide(snapshot)
    assert found is not None and "waits for 2 slots" in found.record.reason
    assert found.state is None and decide(after(snapshot, found)) is None


def test_a_job_that_is_not_the_next_waits_and_says_what_is_missing_for_it_in_any_case():
    snapshot = replace(start(), is_next=False)
    found = decide(snapshot)
    assert found is not None and not found.orders and found.record.reason == QUEUES
    assert decide(after(snapshot, found)) is None
    few = decide(replace(snapshot, hosts=hosts(a=1)))
    assert few is not None and few.record.reason.endswith("has 1: start more workers")
    restarting = decide(replace(snapshot, state=JobState.RESTARTING))
    assert restarting is not None and restarting.state is JobState.RUNNING


def test_when_all_have_finished_it_has_succeeded_with_the_result_of_rank_0():
    snapshot = saying(running(), a=HostReport(FINISHED, result={"model": "m"}))
    assert decide(snapshot) is None
    found = decide(saying(snapshot, b=HostReport(FINISHED)))
    assert found is not None and found.state is JobState.SUCCEEDED
    assert found.result == {"state": "SUCCEEDED", "code": 0, "host": "a", "model": "m"}
    assert found.orders == {"a": None, "b": None} and not found.record.allocations


def test_after_a_failure_the_others_are_ended_before_the_next_attempt_starts():
    snapshot = saying(running(), a=HostReport(FAILED, failure=HostFailure("task 0 was killed")))
    found = decide(snapshot)
    assert found is not None and found.state is None
    assert [order.aim for order in found.orders.values() if order] == [END, END]
    snapshot = after(snapshot, found)
    assert decide(snapshot) is None
    snapshot = saying(snapshot, b=HostReport(GONE))
    found = decide(snapshot)
    assert found is not None and found.state is JobState.RESTARTING
    assert found.record.n_failures == 1 and not found.record.allocations
    snapshot = replace(after(snapshot, found), reports={})
    found = decide(snapshot)
    assert found is not None and found.record.attempt == 2 and found.state is JobState.RUNNING


def test_what_would_come_again_is_not_repeated():
    failure = HostFailure("AttributeError", code=1, is_final=True)
    echo = HostFailure("lost task 0", is_secondary=True)
    snapshot = saying(
        running(), a=HostReport(FAILED, failure=echo), b=HostReport(FAILED, failure=failure)
    )
    found = decide(snapshot)
    assert found is not None and found.state is JobState.FAILED and found.result is not None
    assert found.result["cause"] == "AttributeError" and found.result["code"] == 1


def test_the_result_of_what_failed_or_was_stopped_has_its_primary_host():
    """The logs of other hosts came first, and the last lines of a short job not at all."""
    failure = HostFailure("AttributeError", is_final=True)
    reports = {"a": HostReport(STOPPED), "b": HostReport(FAILED, failure=failure)}
    failed = decide(saying(running(), **reports))
    assert failed is not None and failed.result is not None
    assert (failed.state, failed.result["host"]) == (JobState.FAILED, "a")
    stopped = replace(running(), state=JobState.STOPPING, wants_now=True)
    stopped = after(stopped, decide(stopped))
    found = decide(saying(stopped, a=HostReport(STOPPED), b=HostReport(STOPPED)))
    assert found is not None and found.result is not None
    assert (found.state, found.result["host"]) == (JobState.STOPPED, "a")
    waits = decide(replace(start(), state=JobState.STOPPING))
    assert waits is not None and waits.result is not None and "host" not in waits.result


def test_the_failure_that_zookeeper_heard_of_first_is_the_cause():
    first, second = HostFailure("task 3 crashed", when=11), HostFailure("task 0 crashed", when=12)
    reports = {"a": HostReport(FAILED, failure=second), "b": HostReport(FAILED, failure=first)}
    found = decide(saying(running(max_restarts=0), **reports))
    assert found is not None and found.result is not None
    assert found.result["cause"].startswith("task 3 crashed")


def test_a_host_that_went_is_the_cause_and_not_those_who_missed_it():
    echo = HostFailure("lost task 1", is_secondary=True)
    snapshot = saying(running(max_restarts=0), a=HostReport(FAILED, failure=echo))
    snapshot = after(snapshot, decide(snapshot))
    assert decide(snapshot) is None, "its tasks may still run"
    found = decide(replace(snapshot, hosts=hosts(a=1)))
    assert found is not None and found.state is JobState.FAILED and found.result is not None
    assert "worker b was lost" in found.result["cause"]


def test_an_agent_that_came_back_is_not_the_one_that_had_the_order():
    back = hosts(a=1, b=1)
    back["b"] = replace(back["b"], member=9)
    snapshot = replace(running(), hosts=back)
    found = decide(snapshot)
    assert found is not None and found.record.aim == END


def test_failures_are_counted_since_the_last_checkpoint():
    snapshot = replace(start(max_restarts=1), need=ResourceRequest(1, 1), hosts=hosts(a=1))
    bad = HostFailure("task 0 was killed by SIGKILL")

    def fail(snapshot: JobSnapshot, checkpoint: int) -> JobSnapshot:
        snapshot = replace(after(snapshot, decide(snapshot)), reports={})
        snapshot = saying(snapshot, a=HostReport(RUNNING, checkpoint=checkpoint))
        if checkpoint > snapshot.record.checkpoint:
            snapshot = after(snapshot, decide(snapshot))
        snapshot = saying(snapshot, a=HostReport(FAILED, checkpoint=checkpoint, failure=bad))
        aimed = decide(snapshot)
        if aimed is not None and aimed.record.allocations:
            snapshot = after(snapshot, aimed)
            aimed = decide(snapshot)
        return after(snapshot, aimed)

    for checkpoint in (10, 20, 30, 30):
        assert snapshot.state is not JobState.FAILED
        snapshot = fail(snapshot, checkpoint)
    assert snapshot.state is JobState.FAILED
    assert snapshot.record.n_failures == 0, "horn resume begins anew"


def test_a_checkpoint_of_others_that_began_before_it_counts():
    """The one that was lost with its host was named for ever, also by horn resume; and failures
    with ever newer checkpoints between them ended the job."""
    snapshot = running()
    lost = {"checkpoint": 6229, "failed_at": 6229, "n_failures": 3}
    record = msgspec.structs.replace(snapshot.record, **lost)
    snapshot = saying(replace(snapshot, record=record), a=HostReport(RUNNING, checkpoint=50))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.checkpoint == 50
    bad = HostFailure("task 0 was killed by SIGKILL")
    failed = dict.fromkeys(
        snapshot.record.allocations, HostReport(FAILED, checkpoint=50, failure=bad)
    )
    snapshot = saying(snapshot, **failed)
    snapshot = after(snapshot, decide(snapshot))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.n_failures == 1 and snapshot.state is not JobState.FAILED


def test_to_stop_tasks_are_told_to_save_first_and_with_now_they_are_not():
    there = {name: replace(host, shared="nfs") for name, host in hosts(a=1, b=1).items()}
    first = placed(replace(start(), hosts=there))
    snapshot = saying(first, a=HostReport(RUNNING), b=HostReport(RUNNING))
    snapshot = replace(snapshot, state=JobState.STOPPING)
    found = decide(snapshot)
    assert found is not None and found.record.aim == STOP
    snapshot = after(snapshot, found)
    assert decide(snapshot) is None
    now = decide(replace(snapshot, wants_now=True))
    assert now is not None and now.record.aim == END
    found = decide(saying(snapshot, a=HostReport(STOPPED, checkpoint=7), b=HostReport(STOPPED)))
    assert found is not None
    snapshot = saying(snapshot, a=HostReport(STOPPED, checkpoint=7), b=HostReport(STOPPED))
    found = decide(after(snapshot, found))
    assert found is not None and found.state is JobState.STOPPED and found.result is not None
    assert found.result["checkpoint"] == 7 and found.result["code"] == 5
    assert "cause" not in found.result
    waiting = replace(start(), state=JobState.STOPPING, wants_now=True, why="it took too long")
    late = decide(waiting)
    assert late is not None and late.result is not None
    assert late.result == {"state": "STOPPED", "code": 5, "checkpoint": -1,
                           "cause": "it took too long"}  # fmt: skip
    kept = HostReport(STOPPED, result={"cause": "the model is kept"})  # one of no checkpoint
    found = decide(saying(snapshot, a=kept, b=HostReport(FINISHED)))
    assert found is not None and found.state is JobState.STOPPED and found.result is not None
    assert found.result["cause"] == "the model is kept"


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (ResourceRequest(2, 1), "no checkpoints of it are saved, since its workers a, b have no"),
        (ResourceRequest(2, 1, 1), "its servers keep no journal, since its workers a, b have no"),
        (ResourceRequest(2, 1, 1, guests=True), ""),  # that nothing is kept was asked for
    ],
)
def test_that_a_job_over_hosts_without_a_common_folder_could_not_be_saved_is_said_at_its_stop(
    need: ResourceRequest, said: str
) -> None:
    """It was STOPPED as one that had saved, with exit code 0."""
    first = placed(replace(start(), need=need))
    snapshot = saying(first, a=HostReport(STOPPED), b=HostReport(STOPPED))
    snapshot = replace(snapshot, state=JobState.STOPPING)
    found = decide(snapshot)
    assert found is not None and found.result is not None and found.state is JobState.STOPPED
    cause = found.result.get("cause", "")
    assert cause.startswith(said) and bool(said) == bool(cause)
    now = decide(replace(snapshot, wants_now=True))
    assert now is not None and now.result is not None and "cause" not in now.result


KILLED = HostReport(FAILED, failure=HostFailure("task 1 was killed"))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (None, "First failure: worker a was lost (killed, stopped or cut off"),
        (HostReport(GONE), "worker a was stopped"),
        (KILLED, "task 1 was killed"),
    ],
)
def test_a_stop_that_ended_a_job_before_it_had_saved_says_so(first: HostReport | None, why: str):
    """It was STOPPED as one that had saved, and horn stop ended with 0."""
    there = {name: replace(host, shared="nfs") for name, host in hosts(a=1, b=1).items()}
    snapshot = placed(replace(start(), hosts=there))
    record = msgspec.structs.replace(snapshot.record, checkpoint=1000, aim=END)
    snapshot = replace(snapshot, state=JobState.STOPPING, record=record)
    snapshot = saying(snapshot, b=HostReport(GONE))
    if first is None:
        snapshot = replace(snapshot, hosts={"b": there["b"]})
    else:
        away = {**there, "a": replace(there["a"], slots=0)} if first.phase == GONE else there
        snapshot = replace(saying(snapshot, a=first), hosts=away)
    found = decide(snapshot)
    assert found is not None and found.state is JobState.STOPPED and found.result is not None
    undone = "it ended before it had saved, and no checkpoint has its iterations after 1,000: "
    assert found.result["cause"].startswith(undone + why)
    now = decide(replace(snapshot, wants_now=True))
    assert now is not None and now.result is not None and "cause" not in now.result


def test_a_job_that_waits_is_stopped_at_once():
    found = decide(replace(start(), state=JobState.STOPPING))
    assert found is not None and found.state is JobState.STOPPED


def test_a_job_that_finished_while_it_was_to_stop_has_succeeded():
    snapshot = replace(running(), state=JobState.STOPPING)
    found = decide(saying(snapshot, a=HostReport(FINISHED), b=HostReport(FINISHED)))
    assert found is not None and found.state is JobState.SUCCEEDED


# groups that come and leave


def downpour(**slots: int) -> JobSnapshot:
    """Two groups of two tasks and a server, on hosts with so many slots, running."""
    all_of = hosts(**slots)
    snapshot = JobSnapshot(JobState.PENDING, ResourceRequest(2, 2, 1), JobRecord(), {}, all_of)
    snapshot = after(snapshot, decide(snapshot))
    return saying(snapshot, **dict.fromkeys(snapshot.record.allocations, HostReport(RUNNING)))


def ranks_of(snapshot: JobSnapshot) -> dict[str, tuple[int, ...]]:
    return {name: allocation.ranks for name, allocation in snapshot.record.allocations.items()}


def wishing(snapshot: JobSnapshot, n_groups: int) -> JobSnapshot:
    """The wish is noted first: whoever is master next knows it."""
    snapshot = replace(snapshot, wants_groups=n_groups)
    found = decide(snapshot)
    assert found is not None and found.record.n_wanted == n_groups and not found.orders
    return after(snapshot, found)


def test_more_groups_get_seats_where_the_job_runs_in_the_same_attempt():
    snapshot = wishing(downpour(a=4, b=4), 4)
    assert ranks_of(snapshot) == {"a": (0, 1, 2, 3, 4)}, "b has no part in it"
    found = decide(snapshot)
    assert found is not None and "waits for 4 slots for more groups; 0 free on a" in (
        found.record.reason
    )
    assert decide(after(snapshot, found)) is None
    snapshot = wishing(downpour(a=8, b=3), 4)
    found = decide(snapshot)
    assert found is not None and found.record.groups == (0, 1, 2, 3)
    assert found.record.allocations["a"].ranks == tuple(range(9)) and found.record.attempt == 1
    (order,) = found.orders.values()
    assert order is not None and order.n_scaled == found.record.n_scaled == 1 and order.aim == RUN
    assert decide(after(snapshot, found)) is None


def test_a_group_keeps_its_seat_until_it_has_left():
    snapshot = wishing(downpour(a=4), 1)
    found = decide(snapshot)
    assert found is not None and found.record.groups == (0,) and found.record.leaving == (1,)
    assert found.record.allocations["a"].ranks == (0, 1, 2, 3, 4)
    snapshot = after(snapshot, found)
    assert decide(snapshot) is None
    found = decide(saying(snapshot, a=HostReport(RUNNING, left=(1,))))
    assert found is not None and found.record.leaving == ()
    assert found.record.allocations["a"].ranks == (0, 1, 4)


def test_a_number_is_not_given_again_and_a_start_has_the_groups_that_are_wanted():
    snapshot = wishing(downpour(a=4), 1)
    snapshot = after(snapshot, decide(snapshot))
    snapshot = saying(snapshot, a=HostReport(RUNNING, left=(1,)))
    snapshot = wishing(after(snapshot, decide(snapshot)), 2)
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.groups == (0, 3) and snapshot.record.allocations["a"].ranks == (
        0,
        1,
        4,
        7,
        8,
    )
    snapshot = saying(snapshot, a=HostReport(FAILED, failure=HostFailure("killed")))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.state is JobState.RESTARTING and not snapshot.record.allocations
    snapshot = replace(snapshot, reports={}, hosts=hosts(c=2, d=2))
    found = decide(snapshot)
    assert found is not None and found.record.attempt == 2
    assert {n: s.ranks for n, s in found.record.allocations.items()} == {
        "c": (0, 1, 4),
        "d": (7, 8),
    }
    assert found.record.groups == (0, 3)


def test_a_group_that_is_to_leave_is_started_again_with_the_others_and_then_leaves():
    """Else servers would wait for it."""
    snapshot = wishing(downpour(a=4), 1)
    snapshot = after(snapshot, decide(snapshot))
    snapshot = saying(snapshot, a=HostReport(FAILED, failure=HostFailure("killed")))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.state is JobState.RESTARTING and snapshot.record.leaving == (1,)
    found = decide(replace(snapshot, reports={}))
    assert found is not None and found.record.allocations["a"].ranks == (0, 1, 2, 3, 4)
    assert found.record.groups == (0,)
    snapshot = saying(after(snapshot, found), a=HostReport(RUNNING, left=(1,)))
    found = decide(snapshot)
    assert found is not None and found.record.allocations["a"].ranks == (0, 1, 4)


def test_a_job_that_has_not_begun_begins_with_all_of_its_groups():
    snapshot = JobSnapshot(JobState.PENDING, ResourceRequest(2, 1, 1), JobRecord(), {}, hosts(a=4))
    found = decide(wishing(snapshot, 1))
    assert found is not None and found.record.groups == (0,) and found.record.leaving == (1,)
    assert found.record.allocations["a"].ranks == (0, 1, 2)


def test_groups_whose_servers_are_in_their_processes_are_left_as_they_are():
    first = JobSnapshot(
        JobState.PENDING, ResourceRequest(2, 1, 1, guests=True), JobRecord(), {}, hosts(a=1, b=1)
    )
    snapshot = after(first, decide(first))
    snapshot = wishing(saying(snapshot, a=HostReport(RUNNING), b=HostReport(RUNNING)), 1)
    assert decide(snapshot) is None


def test_an_agent_that_was_told_to_leave_is_no_failure():
    snapshot = saying(running(max_restarts=0), a=HostReport(GONE))
    snapshot = after(snapshot, decide(snapshot))
    found = decide(saying(snapshot, b=HostReport(GONE)))
    assert found is not None and found.state is JobState.RESTARTING
    assert found.record.n_failures == 0 and "worker" in found.record.trouble


def leaving(snapshot: JobSnapshot, name: str) -> JobSnapshot:
    host = replace(snapshot.hosts[name], slots=0, free=0)
    return replace(snapshot, hosts={**snapshot.hosts, name: host})


def test_a_job_saves_before_its_worker_goes_and_goes_on_elsewhere():
    snapshot = leaving(running(max_restarts=0), "a")
    found = decide(snapshot)
    assert found is not None and found.record.aim == STOP and found.state is None
    snapshot = saying(after(snapshot, found), a=HostReport(STOPPED, checkpoint=7))
    snapshot = saying(snapshot, b=HostReport(FINISHED))  # which follows the primary host
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.checkpoint == 7
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.state is JobState.RESTARTING and snapshot.record.n_failures == 0
    assert (snapshot.record.trouble, snapshot.record.n_restarts) == ("worker a was stopped", 1)
    free = hosts(b=2) | {"a": snapshot.hosts["a"]}
    found = decide(replace(snapshot, hosts=free))
    assert found is not None and set(found.orders) == {"b"}


def test_a_job_that_starts_has_nothing_to_save_when_its_worker_goes():
    first = start()
    snapshot = leaving(after(first, decide(first)), "a")
    assert decide(saying(snapshot, a=HostReport(RUNNING), b=HostReport(STARTING))) is None


def test_a_worker_that_went_before_its_job_had_saved_is_said_to_have_done_so():
    first = JobSnapshot(JobState.PENDING, ResourceRequest(1, 1), JobRecord(), {}, hosts(a=1, b=1))
    snapshot = leaving(saying(placed(first), a=HostReport(RUNNING)), "a")
    snapshot = after(snapshot, decide(snapshot))
    found = decide(saying(snapshot, a=HostReport(GONE)))
    assert found is not None and found.state is JobState.RESTARTING
    assert found.record.trouble == "worker a was stopped before the job had saved"


def test_what_could_not_be_saved_before_a_worker_went_is_told():
    snapshot = leaving(running(), "b")
    snapshot = after(snapshot, decide(snapshot))
    lost = HostReport(STOPPED, result={"cause": "the disk is full"})
    found = decide(saying(snapshot, a=lost, b=HostReport(STOPPED)))
    assert found is not None and found.record.trouble == "worker b was stopped; the disk is full"


def test_only_the_worker_that_leaves_is_said_to_have_been_stopped():
    """The tasks of the others end with its own, as they are told."""
    snapshot = saying(running(), a=HostReport(GONE))
    snapshot = after(snapshot, decide(snapshot))
    leaving = replace(snapshot.hosts["a"], slots=0)
    snapshot = replace(snapshot, hosts={**snapshot.hosts, "a": leaving})
    found = decide(saying(snapshot, b=HostReport(GONE)))
    assert found is not None and found.record.trouble == "worker a was stopped"


FULL = "/s/ckpt: cannot be written (No space left on device)"


def test_groups_are_kept_while_no_checkpoint_can_be_saved():
    """Else what was trained since the last one is lost."""
    first = JobSnapshot(JobState.PENDING, ResourceRequest(2, 1), JobRecord(), {}, hosts(a=2))
    snapshot = wishing(saying(after(first, decide(first)), a=HostReport(RUNNING)), 1)
    full = saying(snapshot, a=HostReport(RUNNING, unsaved=FULL))
    found = decide(full)
    assert found is not None and found.record.aim == RUN and found.record.reason.endswith(FULL)
    assert decide(after(full, found)) is None
    found = decide(saying(after(full, found), a=HostReport(RUNNING, checkpoint=50)))
    assert found is not None  # the checkpoint is noted
    found = decide(replace(snapshot, record=found.record))
    assert found is not None and found.record.aim == STOP


def test_what_a_change_of_groups_could_not_save_is_told():
    first = JobSnapshot(JobState.PENDING, ResourceRequest(2, 1), JobRecord(), {}, hosts(a=2))
    snapshot = wishing(saying(after(first, decide(first)), a=HostReport(RUNNING)), 1)
    snapshot = after(snapshot, decide(snapshot))
    found = decide(saying(snapshot, a=HostReport(STOPPED, result={"cause": FULL})))
    assert found is not None and found.state is JobState.RESTARTING
    assert (found.record.trouble, found.record.n_restarts) == (FULL, 1)


# Where it goes after a failure


def failing(snapshot: JobSnapshot, host: str, failure: HostFailure) -> JobSnapshot:
    """As its master leaves it when nothing runs any more after a failure said by ``host``."""
    snapshot = saying(snapshot, **{host: HostReport(FAILED, failure=failure)})
    others = [name for name in snapshot.record.allocations if name != host]
    if others:
        snapshot = after(snapshot, decide(snapshot))
        snapshot = saying(snapshot, **{name: HostReport(GONE) for name in others})
    return replace(after(snapshot, decide(snapshot)), reports={})


def placed(snapshot: JobSnapshot) -> JobSnapshot:
    return replace(after(snapshot, decide(snapshot)), reports={})


def test_a_poison_host_is_left_for_another_and_comes_last_until_it_has_proven_itself():
    one = replace(start(), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    snapshot = placed(one)
    assert set(snapshot.record.allocations) == {"a"}
    snapshot = failing(snapshot, "a", HostFailure("task 0 was killed"))
    assert snapshot.record.blamed == {"a": 1}
    snapshot = placed(snapshot)
    assert set(snapshot.record.allocations) == {"b"}
    # elsewhere it makes a checkpoint: that says nothing for the host that is blamed
    snapshot = saying(snapshot, b=HostReport(RUNNING, checkpoint=10))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.blamed == {"a": 1}
    # it is not excluded: with nothing else it is taken, and with a checkpoint it is as any other
    snapshot = failing(snapshot, "b", HostFailure("task 0 was killed"))
    snapshot = placed(replace(snapshot, hosts=hosts(a=1)))
    assert set(snapshot.record.allocations) == {"a"}
    snapshot = saying(snapshot, a=HostReport(RUNNING, checkpoint=20))
    assert after(snapshot, decide(snapshot)).record.blamed == {"b": 1}


def test_after_a_failure_it_goes_first_where_its_checkpoint_is_and_says_if_it_begins_anew():
    one = replace(start(), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    snapshot = saying(placed(one), a=HostReport(RUNNING, checkpoint=10))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.kept == {"a": ""}
    once = failing(snapshot, "a", HostFailure("task 0 was killed"))
    assert set(placed(once).record.allocations) == {"a"}
    busy = replace(once, hosts={**once.hosts, "a": replace(once.hosts["a"], free=0)})
    waits = decide(busy)
    assert waits is not None and not waits.record.allocations
    assert waits.record.reason == "waits for 1 slot; 0 are free on 1 host; its checkpoint is on a"
    down = placed(replace(once, hosts={"b": once.hosts["b"]})).record
    assert set(down.allocations) == {"b"} and down.kept == {"a": ""}
    assert down.trouble == (
        "task 0 was killed; it begins anew, since its checkpoint of iteration 10 is on worker a, "
        "which is down or cut off"
    )
    twice = placed(failing(placed(once), "a", HostFailure("task 0 was killed")))
    assert set(twice.record.allocations) == {"b"}
    assert "is on worker a, where it failed again and again" in twice.record.trouble
    # a worker of another version never fits: it is not waited for
    other = {name: replace(host, horn="1") for name, host in once.hosts.items()}
    other["a"] = replace(other["a"], horn="2")
    elsewhere = placed(replace(once, hosts=other, need=ResourceRequest(1, 1, horn="1"))).record
    assert set(elsewhere.allocations) == {"b"}
    assert elsewhere.trouble.endswith(
        "is on worker a, which has another version of horn or Python than the job"
    )
    # there it makes one of the same iteration: from then on that is its own
    snapshot = saying(twice, b=HostReport(RUNNING, checkpoint=10))
    assert after(snapshot, decide(snapshot)).record.kept == {"b": ""}


def test_who_shares_the_folder_of_a_checkpoint_has_it():
    there = hosts(a=1, b=1, c=1)
    there |= {name: replace(there[name], shared="nfs") for name in "ac"}
    one = replace(start(), need=ResourceRequest(1, 1), hosts=there)
    snapshot = saying(placed(one), a=HostReport(RUNNING, checkpoint=10))
    snapshot = failing(after(snapshot, decide(snapshot)), "a", HostFailure("task 0 was killed"))
    snapshot = placed(snapshot)
    assert set(snapshot.record.allocations) == {"c"} and "anew" not in snapshot.record.trouble
    assert decide(saying(snapshot, c=HostReport(RUNNING, checkpoint=10))) is None


def test_the_host_of_the_task_is_blamed_and_not_the_one_that_tells_of_it():
    snapshot = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    snapshot = failing(placed(snapshot), "a", HostFailure("task 1 was killed", hosts=("b",)))
    assert snapshot.record.blamed == {"b": 1}
    assert set(placed(snapshot).record.allocations) == {"a", "c"}


def test_a_host_that_was_lost_is_blamed_for_it():
    snapshot = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    snapshot = saying(
        placed(snapshot), a=HostReport(FAILED, failure=HostFailure("lost", is_secondary=True))
    )
    snapshot = after(snapshot, decide(snapshot))
    there = {name: host for name, host in snapshot.hosts.items() if name != "b"}
    snapshot = placed(replace(snapshot, hosts=there))
    assert snapshot.record.blamed == {"b": 1}
    there["b"] = Host("b", "h", 1, 1, member=99)
    assert set(placed(replace(snapshot, hosts=there)).record.allocations) == {"a", "c"}


def test_two_hosts_that_lost_each_other_are_not_asked_again_while_there_is_a_third():
    snapshot = replace(start(), need=ResourceRequest(2, 1), hosts=hosts(a=1, b=1, c=1))
    lost = HostFailure("lost task 1", is_secondary=True, hosts=("a", "b"))
    snapshot = failing(placed(snapshot), "a", lost)
    assert snapshot.record.parted == (("a", "b"),) and not snapshot.record.blamed
    without_c = replace(snapshot, hosts=hosts(a=1, b=1))
    assert set(placed(without_c).record.allocations) == {"a", "b"}
    snapshot = placed(snapshot)
    assert set(snapshot.record.allocations) == {"b", "c"}
    together = saying(placed(without_c), a=HostReport(RUNNING, checkpoint=5))
    assert after(together, decide(together)).record.parted == ()


def test_what_is_resumed_begins_without_blame():
    snapshot = replace(start(max_restarts=0), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    snapshot = failing(placed(snapshot), "a", HostFailure("task 0 was killed"))
    assert snapshot.state is JobState.FAILED and not snapshot.record.blamed


RANKS = {"a": (0, 1), "b": (2, 3, 4)}


@pytest.mark.parametrize(
    "error, expected",
    [
        (TaskFailed(2, 1, "starting", "was killed"), ("b",)),
        (TaskFailed(4, 1, "", "was killed", name="server 0"), ("b",)),
        (MemberLost("task 1, superstep 7", ("task 2",), (2,), 1), ("a", "b")),
        (MemberLost("task 2, superstep 7", ("task 3",), (3,), 2), ("b",)),
        (PeerLost("task 3, superstep 7", ("server 0",), "it was silent", (4,), 3), ("b",)),
        (PeerLost("the job", ("worker b",), "it was silent", (2, 3, 4)), ("a", "b")),
        (BarrierTimeout("task 0, superstep 7", ("task 3",), (), 60.0, "", (3,)), ("b",)),
        (BarrierTimeout("superstep 7", ("group 3's task 0",), (), 60.0, "", (3,)), ("b",)),
        (ProtocolError("they disagree"), ("a",)),
    ],
)
def test_whose_failure_it_was(error: HornError, expected: tuple[str, ...]):
    assert blamed(error, "a", RANKS) == expected


def test_it_goes_on_from_the_checkpoint_it_was_resumed_from_until_there_is_a_newer_one():
    snapshot = replace(start(), need=ResourceRequest(1, 1), hosts=hosts(a=1, b=1))
    snapshot = replace(snapshot, record=JobRecord(attempt=3, checkpoint=100, begin=100))
    found = decide(snapshot)
    assert found is not None
    assert [order.begin for order in found.orders.values() if order] == [100]
    snapshot = failing(placed(snapshot), "a", HostFailure("task 0 was killed"))
    snapshot = placed(snapshot)
    assert snapshot.record.begin == 100, "after a failure, too"
    snapshot = saying(snapshot, b=HostReport(RUNNING, checkpoint=110))
    assert after(snapshot, decide(snapshot)).record.begin == -1


# groups that share every batch: others go on from a checkpoint


def sharing(**slots: int) -> JobSnapshot:
    """Two groups of two tasks without servers, running."""
    snapshot = JobSnapshot(JobState.PENDING, ResourceRequest(2, 2), JobRecord(), {}, hosts(**slots))
    snapshot = after(snapshot, decide(snapshot))
    return saying(
        snapshot, **dict.fromkeys(snapshot.record.allocations, HostReport(RUNNING, checkpoint=7))
    )


def regrouped(snapshot: JobSnapshot, n_groups: int) -> JobSnapshot:
    """As many groups have been started as were wished for."""
    snapshot = after(snapshot, decide(snapshot))  # the checkpoint is noted
    snapshot = wishing(snapshot, n_groups)
    found = decide(snapshot)
    assert found is not None and found.state is None and found.record.aim == STOP
    assert {order and order.aim for order in found.orders.values()} == {STOP}
    snapshot = after(snapshot, found)
    assert decide(snapshot) is None, "they are saving"
    stopped = dict.fromkeys(snapshot.record.allocations, HostReport(STOPPED, checkpoint=9))
    snapshot = saying(snapshot, **stopped)
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.record.checkpoint == 9
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.state is JobState.RESTARTING and not snapshot.record.allocations
    assert (snapshot.record.n_restarts, snapshot.record.n_failures) == (0, 0)
    snapshot = replace(snapshot, reports={})
    found = decide(snapshot)
    assert found is not None and found.record.groups == tuple(range(n_groups))
    return after(snapshot, found)


@pytest.mark.parametrize("n_groups", [1, 3])
def test_other_groups_go_on_from_a_checkpoint_in_a_new_attempt(n_groups):
    snapshot = regrouped(sharing(a=6), n_groups)
    assert snapshot.record.attempt == 2 and ranks_of(snapshot) == {"a": tuple(range(2 * n_groups))}
    snapshot = saying(snapshot, a=HostReport(RUNNING))
    assert decide(snapshot) is None
    snapshot = saying(snapshot, a=HostReport(RUNNING, checkpoint=12))
    snapshot = after(snapshot, decide(snapshot))
    assert (snapshot.record.checkpoint, snapshot.record.n_before) == (12, 0)
    assert decide(snapshot) is None


def test_nothing_is_stopped_before_there_is_room_and_all_run():
    snapshot = sharing(a=5, b=5)
    snapshot = wishing(after(snapshot, decide(snapshot)), 3)
    found = decide(snapshot)
    assert found is not None and not found.orders, "b's folder is another"
    assert "waits for" in found.record.reason and decide(after(snapshot, found)) is None
    wider = replace(snapshot, hosts=hosts(a=6, b=5))
    found = decide(wider)
    assert found is not None and found.record.aim == STOP
    assert decide(saying(wider, a=HostReport(STARTING, checkpoint=7))) is None


def test_a_job_that_is_to_stop_while_it_changes_its_groups_stops():
    snapshot = sharing(a=6)
    snapshot = wishing(after(snapshot, decide(snapshot)), 3)
    snapshot = replace(after(snapshot, decide(snapshot)), state=JobState.STOPPING)
    assert decide(snapshot) is None
    found = decide(saying(snapshot, a=HostReport(STOPPED, checkpoint=7)))
    assert found is not None and found.state is JobState.STOPPED


def test_what_so_many_groups_cannot_run_goes_on_with_those_that_it_had():
    snapshot = regrouped(sharing(a=6), 3)
    refused = HostFailure("a batch has 2 samples", 2, is_final=True)
    snapshot = saying(snapshot, a=HostReport(FAILED, failure=refused))
    snapshot = after(snapshot, decide(snapshot))
    assert snapshot.state is JobState.RESTARTING
    assert snapshot.record.trouble == "3 groups cannot run it: a batch has 2 samples"
    snapshot = replace(snapshot, reports={})
    snapshot = after(snapshot, decide(snapshot))
    assert ranks_of(snapshot) == {"a": (0, 1, 2, 3)} and snapshot.record.n_refused == 3
    snapshot = saying(snapshot, a=HostReport(RUNNING))
    assert decide(snapshot) is None, "it is not tried again"
    found = decide(saying(snapshot, a=HostReport(FAILED, failure=refused)))
    assert found is not None and found.state is JobState.FAILED


def test_groups_that_fail_after_a_checkpoint_are_no_reason_to_go_back():
    snapshot = regrouped(sharing(a=6), 3)
    snapshot = saying(snapshot, a=HostReport(RUNNING, checkpoint=20))
    snapshot = after(snapshot, decide(snapshot))
    refused = HostFailure("ZeroDivisionError", 1, is_final=True)
    found = decide(saying(snapshot, a=HostReport(FAILED, failure=refused, checkpoint=20)))
    assert found is not None and found.state is JobState.FAILED


def test_a_job_whose_files_no_worker_has_waits_for_another_worker_and_counts_no_failure():
    """It failed again until it was FAILED, though its checkpoint was there."""
    snapshot = running(max_restarts=0)
    lacking = HostFailure("worker a cannot begin", lacking=(1, 2))
    said = saying(snapshot, a=HostReport(FAILED, failure=lacking), b=HostReport(GONE))
    snapshot = after(said, decide(said))
    assert snapshot.state is JobState.RESTARTING and snapshot.record.n_failures == 0
    assert "horn resume JOB --with TARGET" in snapshot.record.reason
    snapshot = replace(snapshot, reports={})
    assert decide(snapshot) is None, "it would end in the same way"
    none = decide(replace(snapshot, hosts={}))
    assert none is not None and none.record.reason.endswith("no worker is up")
    stopped = decide(replace(snapshot, state=JobState.STOPPING))
    assert stopped is not None and not stopped.record.lacking, "it may be resumed with them"
    again = decide(replace(snapshot, hosts=hosts(a=1, b=1, c=1)))
    assert again is not None and again.state is JobState.RUNNING and not again.record.lacking
