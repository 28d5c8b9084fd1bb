"""Tasks over shared memory connect to one of them, and to whom they have something to say."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import threading

import numpy as np
import pytest

from horn.errors import BarrierTimeout, JobError
from horn.patience import Patience
from horn.transport import Identity, PeerLost, open_transport
from horn.wire import descriptors
from horn.wire.messages import Note
from tests.transport.groups import TIMEOUT_S, Processes, all_to_all, good, run_steps, run_threads

pytestmark = pytest.mark.net


def n_descriptors(n_tasks: int) -> int:
    """Of a whole group, all of whose tasks exchange with all."""
    before = len(os.listdir("/proc/self/fd"))
    found = []

    def body(t):
        run_steps(t, [all_to_all(n_tasks)], 2)
        t.barrier(100, TIMEOUT_S)
        if t.task == 0:
            found.append(len(os.listdir("/proc/self/fd")) - before)
        t.barrier(101, TIMEOUT_S)

    good(run_threads("shm", n_tasks, body))
    return found[0]


def test_a_group_has_as_many_descriptors_for_each_task_however_many_they_are():
    few, many = n_descriptors(8), n_descriptors(24)
    assert many <= 3.3 * few, (few, many)
    assert many <= 10 * 24, many


def test_who_has_something_to_say_connects_and_both_may_at_once():
    """In their order, whoever made the connection."""

    def body(t):
        others = [task for task in range(3) if task != t.task]
        for number in range(20):
            for task in others:
                t.send(task, Note(topic=f"{number}"), (), TIMEOUT_S)
        heard = {task: [] for task in others}
        while any(len(found) < 20 for found in heard.values()):
            message = t.receive(TIMEOUT_S)
            heard[message.src].append(int(message.meta.topic))
        t.barrier(0, TIMEOUT_S)
        return heard

    for heard in good(run_threads("shm", 3, body)):
        assert all(found == [*range(20)] for found in heard.values()), heard


@pytest.mark.cluster
def test_a_death_is_seen_when_the_hub_has_left():
    with Processes("shm", 4, "tests.transport.bodies:wait_without_the_hub") as group:
        assert [group.read(task) for task in (1, 2)] == ["here"] * 2
        assert group.result(0) == "left"
        group.processes[0].join(60)
        for task in (1, 3):
            group.pipes[task].send("go on")
        os.kill(group.processes[2].pid, signal.SIGKILL)
        error = group.result(1)
    assert isinstance(error, PeerLost) and error.lost == ("task 2",), error
    assert "killed" in str(error)


class Refusing:
    """A socket on which one send fails."""

    def __init__(self, sock, code):
        self.sock, self.code = sock, code

    def sendmsg(self, *args):
        if self.code:
            code, self.code = self.code, 0
            raise OSError(code, os.strerror(code))
        return self.sock.sendmsg(*args)

    def fileno(self):
        return self.sock.fileno()

    def close(self):
        self.sock.close()


@pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.EAGAIN])
def test_a_send_for_which_there_is_no_room_is_tried_again(code):
    def body(t):
        if t.task == 0:
            peer = t._peers._peers[1]
            peer.sock = Refusing(peer.sock, code)
            t.send(1, Note(topic="word"), (), TIMEOUT_S)
            assert not peer.sock.code
        else:
            assert t.receive(TIMEOUT_S).meta.topic == "word"
        t.barrier(0, TIMEOUT_S)

    good(run_threads("shm", 2, body))


def test_a_send_that_fails_here_names_no_living_task_as_ended():
    def body(t):
        if t.task == 0:
            peer = t._peers._peers[1]
            peer.sock = Refusing(peer.sock, errno.ENOBUFS)
            with pytest.raises(JobError, match="sending Note to task 1: No buffer space available"):
                t.send(1, Note(topic="word"), (), TIMEOUT_S)
            assert not t.absent()
        t.barrier(0, TIMEOUT_S)

    good(run_threads("shm", 2, body))


@pytest.mark.cluster
def test_more_messages_than_a_user_may_have_under_way_arrive():
    with Processes("shm", 2, "tests.transport.bodies:crowd") as group:
        found = [group.result(task) for task in range(2)]
    assert all(isinstance(n_open, int) and n_open < 64 for n_open in found), found


@pytest.mark.cluster
def test_a_deadline_among_too_many_descriptors_under_way_names_their_limit():
    with Processes("shm", 2, "tests.transport.bodies:crowd_one_that_does_not_read") as group:
        error = group.result(0)
        group.pipes[1].send("go on")
        assert group.result(1) == "go on"
    assert isinstance(error, BarrierTimeout) and error.absent == ("task 1",), error
    assert "64 open files of this user are under way" in str(error) and "ulimit -n" in str(error)


@contextlib.contextmanager
def no_descriptors_left(monkeypatch, call):
    """For ``call``, as its process may open no more; the kernel says it so."""

    def refusing(*args, **settings):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(call, refusing)
        yield


@pytest.mark.parametrize("call", ["os.memfd_create", "select.epoll", "os.pipe2"])
def test_a_group_for_which_there_are_no_more_files_names_the_limit(monkeypatch, call):
    with no_descriptors_left(monkeypatch, call):
        ends = run_threads("shm", 2, lambda t: None)
    assert any(isinstance(end, JobError) and "ulimit -n" in str(end) for end in ends), ends


@pytest.mark.parametrize("call", ["accept", "memfd", "dial"])
def test_a_task_that_may_open_no_more_files_names_the_limit(monkeypatch, call):
    said = r"this process has \d+ files open, as many as it may \(ulimit -n\)"
    with open_transport("shm://", Identity(0, 2, "test")) as t:
        if call == "accept":
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.connect("\0" + t.endpoint.removeprefix("shm://"))
                with (
                    no_descriptors_left(monkeypatch, "socket.socket.accept"),
                    pytest.raises(JobError, match=f"task 0: a connection of another: {said}"),
                ):
                    t._peers.read_all()
        elif call == "memfd":
            with (
                no_descriptors_left(monkeypatch, "os.memfd_create"),
                pytest.raises(JobError, match=f"sending Note to task 1: {said}"),
            ):
                t._peers.send(1, Note(topic="big"), [np.zeros(100_000)], Patience(TIMEOUT_S))
        else:
            t._peers._endpoints = [t.endpoint, "shm://nobody"]
            with (
                no_descriptors_left(monkeypatch, "socket.socket"),
                pytest.raises(JobError, match=f"connecting to task 1: {said}"),
            ):
                t._peers.send(1, Note(topic="small"), (), Patience(TIMEOUT_S))


def test_a_message_whose_descriptor_finds_no_place_is_not_blamed_on_its_sender(monkeypatch):
    receive, is_short = descriptors.receive, threading.Event()

    def dropping(sock, n_bytes, most):
        packet, fds, flags = receive(sock, n_bytes, most)
        if not (fds and is_short.is_set()):
            return packet, fds, flags
        for fd in fds:
            os.close(fd)
        return packet, [], flags | socket.MSG_CTRUNC

    def body(t):
        if t.task == 0:
            t.barrier(0, TIMEOUT_S)
            is_short.set()
            t.send(1, Note(topic="big"), [np.zeros(100_000)], TIMEOUT_S)
            return
        with pytest.raises(JobError, match=r"task 1: a message from task 0: .*ulimit -n"):
            t.barrier(0, TIMEOUT_S)  # it may be read here already
            t.receive(TIMEOUT_S)

    monkeypatch.setattr(descriptors, "receive", dropping)
    good(run_threads("shm", 2, body))


def test_descriptors_that_come_with_a_hello_are_closed():
    with open_transport("shm://", Identity(0, 2, "test")) as t:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect("\0" + t.endpoint.removeprefix("shm://"))
            before = len(os.listdir("/proc/self/fd"))
            socket.send_fds(stranger, [b"no hello"], [0, 1])
            t._peers.read_all()  # accepts
            t._peers.read_all()  # hears it, and hangs up
            assert len(os.listdir("/proc/self/fd")) == before


def test_another_user_who_connects_is_not_heard_and_told_of(monkeypatch, caplog):
    """It ended a job that was starting."""
    with open_transport("shm://", Identity(0, 2, "test")) as t:
        t._peers._is_connecting = True
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect("\0" + t.endpoint.removeprefix("shm://"))
            t._peers.read_all()
            stranger.settimeout(TIMEOUT_S)
            assert stranger.recv(1) == b""
    said = f'event=refused address="user {user}" reason="another user" at="task 0 of test"'
    assert said in caplog.messages


def test_descriptors_of_others_are_not_inherited():
    def body(t):
        held = [*t._peers._held, t._peers._ends.fileno()]
        t.barrier(0, TIMEOUT_S)
        return [os.get_inheritable(fd) for fd in held]

    assert good(run_threads("shm", 2, body)) == [[False] * 3] * 2
