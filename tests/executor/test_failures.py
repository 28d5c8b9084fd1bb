"""Who failed first, told from what the tasks of a group report."""

from __future__ import annotations

import signal
import socket

import pytest

import horn
from horn.cluster.host_failures import blamed
from horn.errors import (
    BarrierTimeout,
    ClusterError,
    CompileError,
    Diverged,
    JournalError,
    MemberLost,
    ProtocolError,
    TaskFailed,
)
from horn.executor.failures import FailureEvidence, is_repairable, verdict
from horn.parameter_server.client import ParameterClient
from horn.parameter_server.task_links import TaskLinks
from horn.process.control import ControlChannel, FailureReport
from horn.process.main import TaskProcess
from horn.runtime.group import TaskTimes
from horn.topology import Topology
from horn.transport import Identity, PeerLost, PeerUnreachable

WHERE = "iteration 3, superstep 12 (layer1, forward), collect"


def network():
    net = horn.Network()
    net.input(2)
    net.layer(3)
    net.output(1, loss="squared_error")
    return net


def failed(error, when=1.0, **fields):
    kinds = tuple(c.__name__ for c in type(error).__mro__)
    return FailureReport(kinds=kinds, text=str(error), when=when, where=WHERE, **fields)


def lost(task, when=1.0):
    name = f"task {task}"
    return failed(MemberLost("", (name,)), when, lost=(name,), lost_ranks=(task,), reason="it died")


def late(*tasks, when=1.0):
    absent = tuple(f"task {task}" for task in tasks)
    error = BarrierTimeout(WHERE, absent, (), 5.0)
    return failed(
        error,
        when,
        absent=absent,
        absent_ranks=tasks,
        arrived=("task 0",),
        timeout_s=5.0,
        hint="owes it",
    )


def case(n_tasks, failures=(), exits=()):
    return FailureEvidence(
        n_tasks, {t: 100 + t for t in range(n_tasks)}, dict(failures), dict(exits)
    )


def said(found, stacks=None):
    return verdict(found, network(), stacks or {})


def test_a_killed_task_is_the_cause_whoever_lost_it():
    found = case(3, {0: lost(2), 1: lost(2, 0.5)}, {2: -signal.SIGKILL})
    error = said(found)
    assert isinstance(error, TaskFailed) and (error.task, error.pid) == (2, 102)
    assert error.exit_code == 1
    text = str(error)
    assert "was killed by SIGKILL" in text and "superstep 12 (layer1, forward)" in text
    assert "The other 2 tasks were stopped because of this." in text


def test_a_file_that_was_cut_short_under_a_task_is_a_hint():
    found = case(2, {0: lost(1)}, {1: -signal.SIGBUS})
    text = str(said(found))
    assert "was killed by SIGBUS" in text and "as of its data, was cut short" in text


def test_who_is_cut_off_from_another_says_so_and_nobody_waits_for_more():
    """What it names is still there, and others, who lost it because of this, say nothing new."""
    error = PeerUnreachable("task 0, pull 3", ("server 0",), "nothing answers")
    cut = failed(error, 2.0, lost=("server 0",), lost_ranks=(2,), reason="nothing answers")
    found = case(3, {0: cut, 1: lost(0, 1.0)})
    found.names = {2: "server 0"}
    assert found.is_complete and is_repairable(found)
    told = said(found)
    assert type(told) is PeerUnreachable and told.lost == ("server 0",)
    assert str(told) == f"task 0, {WHERE}: lost server 0 (nothing answers)"
    assert blamed(told, "a", {"a": [0, 1], "b": [2]}) == ("a", "b")


def test_an_exit_without_a_word_is_a_failure():
    error = said(case(2, {0: lost(1)}, {1: 3}))
    assert isinstance(error, TaskFailed) and "ended with exit code 3" in str(error)


def test_an_exit_after_a_last_word_says_nothing_new():
    found = case(2, {1: failed(ZeroDivisionError("x"), line=("/a/job.py", 7, "1 / 0"))}, {1: 1})
    assert found.silent == {}
    error = said(found)
    assert isinstance(error, TaskFailed) and error.task == 1
    assert "/a/job.py:7  1 / 0\n  ZeroDivisionError: x" in str(error)


def test_of_several_causes_the_earliest_is_told():
    found = case(2, {0: failed(ValueError("second"), 2.0), 1: failed(ValueError("first"), 1.0)})
    assert "ValueError: first" in str(said(found))


def test_the_class_of_the_neurons_is_named():
    error = said(case(2, {0: failed(ValueError("x"), label="layer1, forward")}))
    assert f"{WHERE}, neuron class Standard" in str(error)
    error = said(case(2, {0: failed(ValueError("x"), label="layer2.output")}))
    assert "neuron class Standard" in str(error)


@pytest.mark.parametrize(
    "error", [Diverged("it did"), CompileError("no"), ProtocolError("what"), ClusterError("where")]
)
def test_what_horn_raises_on_purpose_keeps_its_class(error):
    found = said(case(2, {0: lost(1), 1: failed(error)}))
    assert type(found) is type(error) and str(error) in str(found)


def test_a_full_disk_of_a_server_is_no_bug():
    full = JournalError("servers/server-0/journal-0", 912, "cannot be written: No space left")
    error = said(case(2, {1: failed(full, traceback="Traceback ...")}))
    assert isinstance(error, TaskFailed) and error.exit_code == 1
    assert "task 1" in str(error) and str(full) in str(error)


def test_an_exception_of_horn_itself_is_a_bug_with_its_traceback():
    found = said(case(2, {0: failed(KeyError("k"), traceback="Traceback ...")}))
    assert isinstance(found, TaskFailed) and found.exit_code == 70
    assert found.details == "Traceback ..."


def test_a_thread_that_the_system_does_not_start_is_no_bug():
    error = said(case(2, {0: failed(RuntimeError("can't start new thread"))}))
    assert isinstance(error, TaskFailed) and error.exit_code == 1
    assert "raise ulimit -u" in str(error)


def test_the_task_that_says_nothing_is_the_late_one():
    # task 2 hangs; task 1 waited for it, task 0 for task 1
    found = case(3, {0: late(1, when=1.0), 1: late(2, when=1.1)})
    assert found.late == [2] and found.is_complete
    error = said(found, {2: "task 2 is here:\n  in loop"})
    assert isinstance(error, BarrierTimeout) and error.absent == ("task 2",)
    assert "in loop" in str(error) and "superstep 12" in str(error)


def test_a_lost_peer_is_the_last_resort():
    found = case(2, {0: lost(1)})
    assert not found.is_complete
    error = said(found)
    assert isinstance(error, MemberLost) and error.lost == ("task 1",) and "it died" in str(error)


def test_trouble_begins_with_the_first_word_of_it():
    found = case(2)
    assert not found.has_trouble
    found.finished.add(0)
    found.exits[0] = 0
    assert not found.has_trouble
    found.exits[1] = 0
    assert found.has_trouble


def reported(error):
    """What the parent hears of an error."""
    ours, theirs = socket.socketpair()
    process = TaskProcess(ControlChannel(ours))
    told = process.failed(error)
    process.line.close()
    theirs.close()
    return told


def test_who_waits_for_a_server_names_it_and_its_rank_in_whatever_group():
    """In a group that came later, whose own topology counts the servers after its tasks."""
    first, own = Topology(2, 2, 1), Topology(4, 2, 1)
    identity = Identity(6, 2, "nobody/servers", 0, None)
    links = TaskLinks(identity, 1, lambda server: None)
    client = ParameterClient(links, own, 6, [], "float32", 0.1, TaskTimes(), at_first=first)
    with pytest.raises(BarrierTimeout) as caught:
        client.join(0.05)
    client.close()
    told = reported(caught.value)
    assert told.absent == ("server 0",) and told.absent_ranks == (4,) == (first.server(0),)
    assert str(caught.value).startswith("group 3's task 0, joining")
    assert "server 0 has not answered" in told.hint


def test_a_server_that_takes_nothing_holds_back_no_goodbye_to_another(monkeypatch):
    monkeypatch.setattr("horn.parameter_server.link.LINGER_S", 0.0)
    links = TaskLinks(Identity(0, 1, "nobody/servers", 0, None), 3, lambda server: None)
    asked = []

    def flush(link: object) -> bool:
        asked.append(link)
        return link is not links._links[0]

    monkeypatch.setattr(links, "_flush", flush)
    links.close()
    assert asked == links._links


def test_the_words_of_a_user_are_no_ranks():
    """A peer's last words come to the parent as they are, in whatever group."""
    why = "it left: ValueError: task 1 of my list"
    told = reported(PeerLost("task 2, superstep 3", ("task 3",), why, (3,), 2))
    assert told.reason == why and (told.lost, told.lost_ranks) == (("task 3",), (3,))
