"""Frames that are corrupted, lost, doubled or overtaken on real sockets: none is applied.

Experiment 15. What the way does to a frame is mended by dropping it and sending it again; what no
accident makes of it has a name. Everything at once: tests/transport/test_faults.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from horn.errors import BarrierTimeout
from horn.transport import Identity, PeerLost, open_transport
from horn.wire.frames import BadFrame, WireMessage, decode, encode
from horn.wire.messages import Note
from tests.faults.noise import Noisy, flipped
from tests.transport.groups import TIMEOUT_S, all_to_all, good, run_threads

pytestmark = [pytest.mark.net, pytest.mark.timeout(100)]
N_FRAMES = 10_000


def received(t, n_wanted):
    """What comes to so many good messages: their numbers, and the complaints about others."""
    values, complaints = [], []
    ends = time.monotonic() + 60.0
    while len(values) < n_wanted and time.monotonic() < ends:
        try:
            message = t.receive(0.5)
        except BadFrame as error:
            complaints.append(error)
            continue
        if message is not None:
            values.append(int(message.arrays[0].sum()))
    return values, complaints


def talk(scheme, wrong, n_frames=N_FRAMES):
    """One task sends numbers to another over a link that adds wrong frames."""

    def made(task):
        t = open_transport(f"{scheme}://127.0.0.1:0" if scheme == "tcp" else f"{scheme}://",
                           Identity(task, 2, "test", 7))  # fmt: skip
        if task == 0:
            t.link = Noisy(t.link, wrong)
        return t

    def body(t):
        if t.task == 1:
            found = received(t, n_frames)
            t.send(0, Note(topic="done"), (), TIMEOUT_S)
            return *found, t.counters
        t.link.is_on = True
        for n in range(n_frames):
            t.send(1, Note(topic="n"), (np.full(3, n, "<i4"),), TIMEOUT_S)
        t.link.is_on = False
        while t.receive(TIMEOUT_S) is None:
            pass
        return t.link.n_wrong

    n_wrong, (values, complaints, counters) = good(
        run_threads(scheme, 2, body, made=made, timeout_s=60.0)
    )
    assert values == [3 * n for n in range(n_frames)]  # each once, in order
    return n_wrong, complaints, counters


@pytest.mark.parametrize("scheme", ["tcp", pytest.param("ipc", marks=pytest.mark.slow)])
def test_of_10_000_corrupt_frames_none_is_applied(scheme):
    n_wrong, complaints, counters = talk(scheme, flipped(scheme))
    assert n_wrong >= 0.99 * N_FRAMES and counters.n_damaged == n_wrong
    assert not complaints and counters.n_repeated == 0


def test_a_frame_that_comes_again_is_not_applied_again():
    last = []

    def again(parts):
        if not decode([bytes(part) for part in parts]).seq:  # a word on how far frames have come
            return []
        before, last[:] = list(last), [bytes(part) for part in parts]
        return [before] if before else []

    n_wrong, complaints, counters = talk("tcp", again, 2000)
    assert counters.n_repeated >= n_wrong >= 1999 and not complaints


def test_an_old_attempt_is_refused():
    def old(parts):
        return [_in_attempt(parts, 6)]

    n_wrong, complaints, _ = talk("tcp", old, 500)
    assert n_wrong == len(complaints) >= 500
    assert all("attempt of task 0: got 6, expected 7" in str(error) for error in complaints)


def _in_attempt(parts, attempt):
    m = decode([bytes(part) for part in parts])
    return encode(WireMessage(m.meta, m.arrays, m.src, attempt, m.seq, m.step, m.part, m.flags))


class Flipper:
    """A TCP relay that changes one bit of what goes to the server, after so many bytes."""

    def __init__(self, endpoint, after_bytes):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.target, self.after = (host, int(port)), after_bytes
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = [self.listener]
        self.threads = []
        self._begin(self._accept)

    def _begin(self, body, *args):
        self.threads.append(threading.Thread(target=body, args=args, daemon=True))
        self.threads[-1].start()

    def _accept(self):
        try:
            while True:
                client, _ = self.listener.accept()
                self.open.append(client)
                server = socket.create_connection(self.target)
                self.open.append(server)
                self._begin(self._carry, client, server, True)
                self._begin(self._carry, server, client, False)
        except OSError:
            pass  # closed, or nobody is there any more

    def _carry(self, source, target, is_noisy):
        n_bytes = 0
        try:
            while data := bytearray(source.recv(65_536)):
                if is_noisy and n_bytes <= self.after < n_bytes + len(data):
                    data[self.after - n_bytes] ^= 4
                n_bytes += len(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # who waits there goes on, and opens no more
        self.threads[0].join(10)
        for end in self.open[1:]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self.threads[1:]:
            thread.join(10)
        for end in self.open:
            end.close()


@pytest.mark.parametrize("key", [pytest.param(bytes(range(32)), marks=pytest.mark.slow), None],
                         ids=["encrypted", "open"])  # fmt: skip
def test_a_bit_that_changes_on_the_cable_is_never_computed_with(key, rng):
    """Anywhere: in the greeting, in a length, in a block. The run goes on with what was sent, or
    ends with a name: a length that is larger keeps its reader waiting for what will not come.
    """
    n_finished = 0
    for _ in range(8):
        after = int(rng.integers(64, 30_000))
        results = run_over(lambda end, after=after: Flipper(end, after), key)
        kinds = (BadFrame, PeerLost, BarrierTimeout)
        is_good = results == [None, None]
        assert is_good or any(isinstance(error, kinds) for error in results), (after, results)
        assert not any(isinstance(error, Wrong) for error in results), (after, results)
        n_finished += is_good
    print(f"\n{n_finished} of 8 went on")


class Wrong(Exception):
    """A block was not what was sent."""


def run_over(relay, key):
    """100 supersteps of two tasks, what goes to the second by a relay; what each one raised."""
    flippers = []

    def made(task):
        t = open_transport("tcp://127.0.0.1:0", Identity(task, 2, "test", 7, key))
        if task == 1:
            flippers.append(relay(t.endpoint))
            t.endpoint = flippers[0].endpoint
        return t

    def body(t):
        t.open_channels(all_to_all(2, (100,), "<i4"), 2.0)
        for step in range(100):
            t.outbox(t.task, 2.0)[...] = 7 * step
            t.exchange(step, (0, 1), 2.0)
            if (t.inbox(1 - t.task) != 7 * step).any():
                raise Wrong(step)

    try:
        return run_threads("tcp", 2, body, made=made, timeout_s=2.0)
    finally:
        for flipper in flippers:
            flipper.close()
