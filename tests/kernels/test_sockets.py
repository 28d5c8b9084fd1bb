"""The hot path of a ZeroMQ socket against pyzmq's own."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest
import zmq

from horn._kernels import sockets
from horn.transport._zeromq import _addresses

pytestmark = pytest.mark.net
LARGE = 300_000


class Memory(bytearray):
    """What can be watched going."""


@pytest.fixture
def pair():
    """A DEALER that sends to a ROUTER, with room for four messages."""
    sockets.use(_addresses())
    with zmq.Context() as context:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for made in (router, dealer):
            made.set(zmq.LINGER, 0)
            made.set(zmq.SNDHWM, 4)
            made.set(zmq.RCVHWM, 4)
            made.set(zmq.RCVTIMEO, 10_000)
        dealer.set(zmq.ROUTING_ID, b"me")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        try:
            yield router, dealer
        finally:
            dealer.close(0)
            router.close(0)


def until(condition, seconds=10.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)  # between two looks


def test_what_one_sends_the_other_has(pair):
    router, dealer = pair
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    large = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    edge = bytes(range(256)) * 256  # the most that is copied
    for parts in ([b"a"], [b"", b""], [b"a", b"", edge], [b"a", large.data, edge + b"x"],
                  [bytearray(b"ab"), memoryview(b"abcd")[1:3]]):  # fmt: skip
        # ZeroMQ may hear a moment late that the four before have gone
        until(lambda parts=parts: outlet.send(parts) is not None)
        assert inlet.wait(10.0)
        sender, *got = inlet.receive()
        assert sender == b"me" and [bytes(p) for p in got] == [bytes(p) for p in parts]
        assert all(memoryview(p).readonly for p in got)
    assert inlet.receive() is None and not inlet.wait(0.0)


def test_it_is_what_pyzmq_sends_and_receives(pair):
    router, dealer = pair
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    parts = [b"head", b"", bytes(LARGE)]
    dealer.send_multipart(parts)
    assert inlet.wait(10.0)
    assert [bytes(p) for p in inlet.receive()] == [b"me", *parts]
    outlet.send(parts)
    assert router.recv_multipart() == [b"me", *parts]


def test_what_is_sent_lives_until_it_has_gone(pair):
    router, dealer = pair
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    memory = Memory(b"x" * LARGE)
    ref = weakref.ref(memory)
    gone = outlet.send([b"head", memory])
    del memory
    gc.collect()
    assert inlet.wait(10.0)
    assert bytes(inlet.receive()[2]) == b"x" * LARGE
    until(gone)
    assert ref() is not None
    outlet.settle()
    del gone
    assert ref() is None


def test_a_copied_message_is_gone_at_once(pair):
    _, dealer = pair
    assert sockets.Socket(dealer.underlying).send([b"a", b"b"]) is True


def test_a_full_way_takes_nothing_and_later_all(pair):
    router, dealer = pair
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    content = np.zeros(4_000_000, np.uint8)
    n_sent = 0
    while outlet.send([n_sent.to_bytes(4, "little"), content.data]) is not None:
        n_sent += 1
        assert n_sent < 1000
    for number in range(n_sent):
        assert inlet.wait(10.0)
        _, head, body = inlet.receive()
        assert int.from_bytes(head, "little") == number and len(body) == content.size
    assert not inlet.wait(0.05)
    until(lambda: outlet.send([b"more"]) is not None)
    assert inlet.wait(10.0) and inlet.receive() == [b"me", b"more"]


def test_a_received_part_outlives_its_socket(pair):
    router, dealer = pair
    dealer.send_multipart([b"x" * LARGE])
    inlet = sockets.Socket(router.underlying)
    assert inlet.wait(10.0)
    array = np.frombuffer(inlet.receive()[1], np.uint8)
    router.close(0)
    assert len(array) == LARGE and (array == ord("x")).all()


def test_an_error_of_the_library_is_an_error_here(pair):
    router, _ = pair
    outlet = sockets.Socket(router.underlying)
    router.set(zmq.ROUTER_MANDATORY, 1)
    with pytest.raises(OSError, match="[Uu]nreachable|route"):
        outlet.send([b"nobody", b"x"])


FAULTS = """
import resource, sys
import zmq
from horn._kernels import sockets
from horn.transport._zeromq import _addresses

sockets.use(_addresses())
block = bytearray(2_000_000)


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


with zmq.Context() as context:
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for made in (router, dealer):
        made.set(zmq.LINGER, 0)
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    for turn in range(12):
        if turn == 4:
            before = faults()
        for _ in range(12):
            outlet.send([block])
        held = []
        while len(held) < 12:
            if inlet.wait(10.0):
                held.append(inlet.receive())
        held.clear()  # all of them are given back at once
    print(faults() - before)
    outlet.settle()
    dealer.close(0)
    router.close(0)
"""


@pytest.mark.cluster
def test_what_is_received_into_is_not_cleared_by_the_system_again_and_again():
    """96 parts of 2 MB: more than 10,000 faults where the C library gives memory back."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) < 1000


def test_a_message_with_a_part_that_cannot_be_sent_is_not_begun(pair):
    """The socket kept what was sent of it, and put it before the next message."""
    router, dealer = pair
    inlet, outlet = sockets.Socket(router.underlying), sockets.Socket(dealer.underlying)
    with pytest.raises(ValueError, match="not C-contiguous"):
        outlet.send([b"first", np.zeros((4, 4), np.uint8)[:, 0]])
    assert outlet.send([b"second", b"message"]) is True
    assert inlet.wait(10.0)
    assert inlet.receive() == [b"me", b"second", b"message"]


@pytest.mark.cluster
def test_a_part_needs_the_library():
    """Without the addresses in it the process died."""
    script = "from horn._kernels import sockets\nsockets.Part()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "RuntimeError: sockets.use() has not been called" in ended.stderr
