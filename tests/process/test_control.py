"""The line between a task process and its parent."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from horn.errors import ProtocolError
from horn.process.control import (
    IN_MEMORY,
    INLINE,
    PACKET_BYTES,
    ArrayPart,
    ArrayShare,
    ControlChannel,
    EpochRow,
    FailureReport,
    GroupReady,
    StartPhase,
    StartTask,
    TraceEvents,
    content,
    in_memory,
)
from horn.wire.descriptors import is_sealed


@pytest.fixture
def ends():
    gc.freeze()  # what others left in circles of references may hold files, and is not let go now
    n_open = len(os.listdir("/proc/self/fd"))
    ours, theirs = ControlChannel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == n_open
    gc.unfreeze()


MESSAGES = [
    StartTask(3),
    GroupReady(0.25),
    EpochRow({"epoch": 1, "loss": float("inf"), "acc": None}),
    ArrayShare(
        (ArrayPart("parameter", "layer1.weight", "<f4", (3, 4), 64, ((0, 3, 1), (128, 4))),)
    ),
    FailureReport(kinds=("Diverged", "HornError"), text="it did", when=1.5, trouble=("nan", 3, 1)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_sent_comes_out(ends, message):
    ends[0].send(message)
    assert ends[1].receive(1.0) == (message, [])


def test_a_long_message_goes_in_memory_with_its_descriptors(ends):
    events = tuple(("compute", "layer1, forward", k, float(k), k + 0.5) for k in range(20_000))
    fd = os.memfd_create("with it")
    os.write(fd, b"here")
    ends[0].send(TraceEvents(events, 7), [fd])
    os.close(fd)
    got, (copy,) = ends[1].receive(1.0)
    assert got == TraceEvents(events, 7)
    assert os.pread(copy, 10, 0) == b"here"
    os.close(copy)


def test_a_process_without_a_descriptor_left_is_told_so(ends):
    ours, theirs = ends
    theirs.send(FailureReport(kinds=("A",), text="x" * (2 * PACKET_BYTES), when=0.0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
    try:
        with pytest.raises(ProtocolError, match=f"this process has {free} files open, as many as"):
            ours.receive(5.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_the_end_of_the_other_side_is_none(ends):
    ends[0].send(StartTask(1))
    ends[0].close()
    assert ends[1].receive(1.0) == (StartTask(1), [])
    assert ends[1].receive(1.0) is None
    with pytest.raises(OSError):
        ends[1].send(StartTask(1))


def test_what_was_said_is_heard_of_one_who_has_gone_and_left_something_unread(ends):
    ends[0].send(StartTask(1))
    for message in MESSAGES:
        ends[1].send(message)
    ends[1].close()
    assert [ends[0].receive(1.0) for _ in MESSAGES] == [(message, []) for message in MESSAGES]
    assert ends[0].receive(1.0) is None


def test_silence_ends_at_the_deadline(ends):
    with pytest.raises(TimeoutError):
        ends[1].receive(0.01)


def fill(end: ControlChannel) -> int:
    for n in range(100_000):
        try:
            end.send(MESSAGES[0], timeout_s=0.01)
        except TimeoutError as error:
            assert "the other end has read nothing for 0.01 s" in str(error)
            return n
    raise AssertionError("there is no end to it")


def test_who_does_not_read_blocks_a_sender_until_its_deadline(ends):
    n = fill(ends[0])
    assert n > 10 and fill(ends[0]) == 0
    ends[1].send(MESSAGES[1])
    assert ends[0].receive(1.0) == (MESSAGES[1], []), "the way back is open"
    assert [ends[1].receive(1.0) for _ in range(n)] == [(MESSAGES[0], [])] * n, "nothing is lost"
    ends[0].send(MESSAGES[2], timeout_s=0.01)
    assert ends[1].receive(1.0) == (MESSAGES[2], [])


def test_a_sender_that_waits_keeps_no_other_thread_from_receiving(ends):
    n = fill(ends[0])
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(ends[0].send, MESSAGES[1], (), 60.0)
        ends[1].send(MESSAGES[2])
        assert ends[0].receive(10.0) == (MESSAGES[2], [])
        assert not sending.done()
        assert [ends[1].receive(1.0) for _ in range(n)] == [(MESSAGES[0], [])] * n
        sending.result(60.0)
    assert ends[1].receive(1.0) == (MESSAGES[1], [])


def test_a_sender_that_waits_hears_of_the_end_of_the_other_side(ends):
    fill(ends[0])
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(ends[0].send, MESSAGES[1], (), 60.0)
        ends[1].close()
        with pytest.raises(OSError) as caught:
            sending.result(60.0)
    assert not isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize(
    "packet",
    [
        INLINE,
        INLINE + b"\xc1",
        INLINE + b"\x81\xa4type\xa7Nothing",
        INLINE + b"\x82\xa4type\xa5Start\xa4task\xa3one",
        INLINE + b"\x83\xa4type\xa5Start\xa4task\x01\xa4more\x01",
        INLINE + b"\x82\xa4type\xa5Start\xa4task\xff",
        IN_MEMORY,
        INLINE + b"\0" * (PACKET_BYTES + 10),
    ],
)
def test_what_is_no_message_is_refused(ends, packet):
    ends[0].sock.send(packet)
    with pytest.raises(ProtocolError, match="control message"):
        ends[1].receive(1.0)


@pytest.mark.parametrize("size", [0, 1 << 40])
def test_memory_of_an_absurd_size_is_refused(ends, size):
    fd = os.memfd_create("absurd")
    os.truncate(fd, size)
    socket.send_fds(ends[0].sock, [IN_MEMORY], [fd])
    os.close(fd)
    with pytest.raises(ProtocolError, match="bytes, but"):
        ends[1].receive(1.0)


def test_memory_that_is_cut_short_while_it_is_read_is_refused(ends, monkeypatch):
    """It was mapped: the process that read it ended by SIGBUS."""
    measure = os.fstat

    def measured_and_cut(fd):
        found = measure(fd)
        os.ftruncate(fd, 10)
        return found

    fd = os.memfd_create("cut")
    os.truncate(fd, 1 << 20)
    socket.send_fds(ends[0].sock, [IN_MEMORY], [fd])
    os.close(fd)
    monkeypatch.setattr(os, "fstat", measured_and_cut)
    with pytest.raises(ProtocolError, match="cut short, from 1048576 bytes to 10"):
        ends[1].receive(1.0)


def test_memory_that_is_sent_can_be_changed_by_nobody():
    fd = in_memory("sealed", b"abc")
    try:
        assert is_sealed(fd) and content(fd) == b"abc"
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def test_descriptors_that_come_are_not_inherited(ends):
    fd = os.memfd_create("given")
    ends[0].send(StartPhase(0), [fd])
    os.close(fd)
    _, [found] = ends[1].receive(1.0)
    try:
        assert not os.get_inheritable(found)
    finally:
        os.close(found)


class Crowded:
    """A socket whose first sends fail, as those of a user with too many descriptors under way."""

    def __init__(self, sock, n_failures):
        self.sock, self.n_failures = sock, n_failures

    def sendmsg(self, *args):
        if self.n_failures:
            self.n_failures -= 1
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return self.sock.sendmsg(*args)

    def fileno(self):
        return self.sock.fileno()


def test_a_send_among_too_many_descriptors_under_way_is_tried_again(ends):
    first, ends[0].sock = ends[0].sock, Crowded(ends[0].sock, 3)
    ends[0].send(StartPhase(1))
    assert ends[1].receive(1.0)[0] == StartPhase(1)
    ends[0].sock.n_failures = 1_000_000
    with pytest.raises(TimeoutError, match=r"under way between processes.*ulimit -n"):
        ends[0].send(StartPhase(1), timeout_s=0.01)
    ends[0].sock = first
