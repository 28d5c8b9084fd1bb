"""Every transport in its folder: what goes in comes out, bit for bit, and what fails has a name."""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest

import horn
from horn import defaults, transport
from horn.errors import BarrierTimeout, JobError, ProtocolError
from horn.transport import (
    Channel,
    Identity,
    PeerLost,
    Transport,
    across_hosts,
    between_processes,
    load,
    open_transport,
)
from horn.wire.frames import BadFrame, HandshakeRefused
from horn.wire.messages import Note
from tests.transport.groups import (
    SCHEMES,
    TIMEOUT_S,
    all_to_all,
    expected_digests,
    good,
    mixed,
    run_steps,
    run_threads,
    url_of,
)

pytestmark = pytest.mark.net
NEVER_S = 600.0  # a deadline that no test lives to see


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


def test_the_file_is_the_registration():
    assert {"inproc", "ipc", "tcp", "shm"} <= set(SCHEMES)
    for name in SCHEMES:
        cls = load(name)
        assert issubclass(cls, Transport) and cls.scheme == name
        assert cls.default_url.startswith(f"{name}://")
        assert cls.latency_s > 0 and cls.bytes_per_s > 0
        assert (cls.fds_per_peer > 0) == cls.crosses_processes
    assert load(across_hosts()).crosses_hosts
    # what train and submit say when nobody says which
    assert between_processes(defaults.TRANSPORT).can_share


THEIRS = """
import os
from horn.transport.ipc import Ipc

class Mine(Ipc):
    scheme = "SCHEME"
    default_url = "SCHEME://"

    def __init__(self, url, identity):
        assert url == self.default_url
        open(os.path.join(os.path.dirname(__file__), f"task-{identity.rank}"), "w").close()
        super().__init__("ipc://", identity)

TRANSPORT = Mine
"""


def test_one_file_more_is_one_transport_more(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(THEIRS.replace("SCHEME", "mine"))
    monkeypatch.setattr(transport, "__path__", [*transport.__path__, str(tmp_path)])
    try:
        assert "mine" in transport.names()
        steps = mixed(2, seed=1)
        got = good(run_threads("mine", 2, lambda t: run_steps(t, steps, 2)))
    finally:
        sys.modules.pop("horn.transport.mine", None)
    assert got == expected_digests(2, steps, 2)
    assert {"task-0", "task-1"} <= set(os.listdir(tmp_path))


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_transport_of_the_users_carries_blocks_between_tasks(tmp_path, monkeypatch):
    (tmp_path / "carrier.py").write_text(THEIRS.replace("SCHEME", "carrier:Mine"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    net = horn.Network(seed=2)
    net.input(64)
    net.layer(16, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, horn.data.digits(), batch_size=50, iterations=3)
    found, expected = (
        horn.train(job, tasks=2, transport=name).model.parameters
        for name in ("carrier:Mine", "ipc")
    )
    assert {"task-0", "task-1"} <= set(os.listdir(tmp_path))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_unknown_urls_are_refused_with_what_there_is():
    identity = Identity(0, 2, "test")
    with pytest.raises(JobError, match="no transport is called 'rdma'; known: inproc, ipc"):
        open_transport("rdma://", identity)
    with pytest.raises(JobError, match="'tcp' is no transport: write "):
        open_transport("tcp", identity)
    with pytest.raises(JobError, match="task 2 of 2"):
        open_transport("shm://", Identity(2, 2, "test"))


@pytest.mark.parametrize("n_tasks", [2, 3, 4])
def test_blocks_arrive_bit_for_bit_in_their_superstep(scheme, n_tasks):
    steps = mixed(n_tasks, seed=n_tasks)
    got = good(run_threads(scheme, n_tasks, lambda t: run_steps(t, steps, 4)))
    assert got == expected_digests(n_tasks, steps, 4)


def test_a_task_alone_is_a_group(scheme):
    def body(t):
        t.open_channels([], TIMEOUT_S)
        t.exchange(0, (), TIMEOUT_S)
        t.barrier(0, TIMEOUT_S)
        return True

    assert good(run_threads(scheme, 1, body)) == [True]


def test_blocks_larger_than_a_frame_arrive_whole(scheme):
    n = 9 * 1024 * 1024 // 4 + 3

    def body(t):
        t.open_channels(all_to_all(2, (n,), "<i4"), TIMEOUT_S)
        for step in range(4):
            t.outbox(t.task, TIMEOUT_S)[...] = np.arange(n) + 10 * step + t.task
            t.exchange(step, (0, 1), TIMEOUT_S)
            other = 1 - t.task
            np.testing.assert_array_equal(t.inbox(other), np.arange(n) + 10 * step + other)
        return t.counters.received_bytes

    assert good(run_threads(scheme, 2, body)) == [4 * 4 * n] * 2


def test_a_block_stays_whole_until_its_part_is_posted_again(scheme):
    ahead, checked = threading.Event(), threading.Event()

    def body(t):
        t.open_channels([Channel(1, 0, (1,), "<f8", (1000,))], TIMEOUT_S)
        if t.task == 0:
            for step in range(2):  # the second while the reader still looks at the first
                t.outbox(1, TIMEOUT_S)[...] = step
                t.exchange(step, (1,), TIMEOUT_S)
            ahead.set()
            assert checked.wait(TIMEOUT_S)
            t.barrier(2, TIMEOUT_S)
        else:
            t.exchange(0, (1,), TIMEOUT_S)
            block = t.inbox(1)
            assert ahead.wait(TIMEOUT_S)
            np.testing.assert_array_equal(block, 0.0)
            with pytest.raises(ValueError):
                block[0] = 1.0
            t.exchange(1, (1,), TIMEOUT_S)
            np.testing.assert_array_equal(t.inbox(1), 1.0)
            checked.set()
            t.barrier(2, TIMEOUT_S)

    good(run_threads(scheme, 2, body))


def test_posting_and_collecting_may_be_apart(scheme):
    def body(t):
        t.open_channels(all_to_all(3), TIMEOUT_S)
        for step in range(5):
            t.outbox(t.task, TIMEOUT_S)[...] = t.task + step
            t.post(step, range(3))
            others = [task for task in range(3) if task != t.task]
            t.collect(step, range(3), TIMEOUT_S)
            assert [t.inbox(task)[0] for task in others] == [task + step for task in others]

    good(run_threads(scheme, 3, body))


@pytest.mark.parametrize("n_tasks", [2, 3])
def test_nobody_passes_the_barrier_before_all_have_come(scheme, n_tasks):
    count = [0] * n_tasks

    def body(t):
        for step in range(30):
            count[t.task] += 1
            t.barrier(step, TIMEOUT_S)
            assert min(count) >= step + 1
            t.barrier(step, TIMEOUT_S)

    good(run_threads(scheme, n_tasks, body))


def test_a_plan_can_be_replaced(scheme):
    def body(t):
        for shape in [(3,), (2, 5), (0,)]:
            t.open_channels(all_to_all(2, shape), TIMEOUT_S)
            for step in range(3):
                t.outbox(t.task, TIMEOUT_S)[...] = step
                t.exchange(step, (0, 1), TIMEOUT_S)
                assert t.inbox(1 - t.task).shape == shape
                assert np.all(t.inbox(1 - t.task) == step)

    good(run_threads(scheme, 2, body))


def test_notes_travel_beside_the_plan(scheme, rng):
    sent = (rng.standard_normal((40, 50)), np.arange(3))

    def body(t):
        if t.task == 0:
            t.send(1, Note(topic="weights", fields={"layer": 2}), sent, TIMEOUT_S)
            t.send(1, Note(topic="no"), (), TIMEOUT_S)
            t.barrier(0, TIMEOUT_S)
            return None
        note, second = t.receive(TIMEOUT_S), t.receive(TIMEOUT_S)
        assert t.receive(0.0) is None
        t.barrier(0, TIMEOUT_S)
        assert second.meta.topic == "no" and second.src == 0
        assert note.meta.topic == "weights" and note.meta.fields == {"layer": 2}
        return note.arrays

    got = good(run_threads(scheme, 2, body))[1]
    for a, b in zip(got, sent, strict=True):
        np.testing.assert_array_equal(a, b)


def both(results, kind, sentence):
    for error in results:
        assert isinstance(error, kind), results
    assert any(sentence in str(error) for error in results), results


@pytest.mark.parametrize(
    "other, sentence",
    [
        (Identity(1, 2, "other", 7), "job"),
        (Identity(1, 2, "test", 6), "attempt"),
    ],
)
def test_who_does_not_belong_is_refused_at_both_ends_at_once(scheme, other, sentence):
    places = [Identity(0, 2, "test", 7), other]

    def made(task):
        return open_transport(url_of(scheme), places[task])

    results = run_threads(scheme, 2, lambda t: None, made=made, timeout_s=NEVER_S)
    both(results, HandshakeRefused, sentence)


def test_there_must_be_an_endpoint_for_each_task(scheme):
    with open_transport(url_of(scheme), Identity(0, 3, "test")) as t:
        with pytest.raises(HandshakeRefused, match="endpoints: got 1, expected 3"):
            t.connect([t.endpoint], 1.0)


def test_another_plan_is_refused_at_both_ends(scheme):
    def body(t):
        t.open_channels(all_to_all(2, (3 + t.task,)), TIMEOUT_S)

    both(run_threads(scheme, 2, body), HandshakeRefused, "channels of task")


def test_a_late_task_is_named_with_what_it_owes(scheme):
    done = threading.Event()

    def body(t):
        t.open_channels(all_to_all(3), TIMEOUT_S)
        if t.task == 2:
            assert done.wait(TIMEOUT_S)
            return None
        t.outbox(t.task, TIMEOUT_S)
        if t.task == 1:  # its word comes after its block
            t.post(5, (0, 1, 2))
            t.send(0, Note(topic="posted"), (), TIMEOUT_S)
            assert done.wait(TIMEOUT_S)
            return None
        try:
            assert t.receive(TIMEOUT_S).meta.topic == "posted"
            t.exchange(5, (0, 1, 2), 0.3)
        finally:
            done.set()

    results = run_threads(scheme, 3, body)
    error = results[0]
    assert isinstance(error, BarrierTimeout)
    assert (error.absent, error.arrived) == (("task 2",), ("task 0", "task 1"))
    assert "superstep 5, exchange" in str(error) and "task 2 owes part 2 (<f4 (8,))" in str(error)


def test_a_late_task_at_the_barrier_is_named(scheme):
    done = threading.Event()

    def body(t):
        if t.task == 1:
            assert done.wait(TIMEOUT_S)
            return
        try:
            t.barrier(3, 0.2)
        finally:
            done.set()

    error = run_threads(scheme, 2, body)[0]
    assert isinstance(error, BarrierTimeout) and error.absent == ("task 1",)
    assert "superstep 3, barrier" in str(error)


def test_a_task_that_left_is_named_with_its_reason_before_the_deadline(scheme):
    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        if t.task == 1:
            raise ValueError("no more")
        t.outbox(0, TIMEOUT_S)
        t.exchange(0, (0, 1), NEVER_S)

    error = run_threads(scheme, 2, body)[0]
    assert isinstance(error, PeerLost) and error.lost == ("task 1",)
    assert "it left: ValueError: no more; it owes part 1" in str(error)


def test_what_was_sent_before_leaving_still_counts(scheme):
    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        t.outbox(t.task, TIMEOUT_S)[...] = 5.0
        if t.task == 1:
            t.post(0, (0, 1))
            t.collect(0, (0, 1), TIMEOUT_S)
            return None
        t.exchange(0, (0, 1), TIMEOUT_S)
        return t.inbox(1).copy()

    np.testing.assert_array_equal(good(run_threads(scheme, 2, body))[0], 5.0)


def test_what_was_said_before_leaving_is_heard_though_something_was_left_unread(scheme):
    is_here, has_word, has_left = (threading.Event() for _ in range(3))

    def body(t):
        if t.task == 0:
            assert is_here.wait(TIMEOUT_S)  # what comes before may be read with the channels
            t.send(1, Note(topic="unread"), (), TIMEOUT_S)
            has_word.set()
            assert has_left.wait(TIMEOUT_S)
            return t.receive(TIMEOUT_S).meta.topic
        is_here.set()
        assert has_word.wait(TIMEOUT_S)
        t.send(0, Note(topic="last"), (), TIMEOUT_S)
        t.close()
        has_left.set()

    assert good(run_threads(scheme, 2, body))[0] == "last"


def test_tasks_in_different_supersteps_are_named(scheme):
    def exchange(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        t.outbox(t.task, TIMEOUT_S)
        t.exchange(4 + t.task, (0, 1), TIMEOUT_S)

    errors = run_threads(scheme, 2, exchange)
    assert any(isinstance(e, BadFrame) and "superstep 5, expected superstep 4" in str(e)
               for e in errors), errors  # fmt: skip

    errors = run_threads(scheme, 2, lambda t: t.barrier(4 + t.task, TIMEOUT_S))
    assert any(isinstance(e, BadFrame) and "superstep 5, expected superstep 4" in str(e)
               for e in errors), errors  # fmt: skip


def test_mistakes_of_the_caller_are_named(scheme):
    def body(t):
        t.open_channels(all_to_all(2), TIMEOUT_S)
        with pytest.raises(ProtocolError, match="got 9, expected one of the 2 channels"):
            t.outbox(9, TIMEOUT_S)
        with pytest.raises(ProtocolError, match="got no outbox, expected a new block"):
            t.post(0, (0, 1))
        with pytest.raises(ProtocolError, match="got nothing, expected a collected block"):
            t.inbox(1 - t.task)
        with pytest.raises(ProtocolError, match="receiver: got task 5"):
            t.send(5, Note(topic="x"), (), TIMEOUT_S)
        t.barrier(0, TIMEOUT_S)

    good(run_threads(scheme, 2, body))


@pytest.mark.parametrize(
    "channel",
    [
        Channel(1, 0, (0,), "<f4", (3,)),
        Channel(1, 0, (2,), "<f4", (3,)),
        Channel(1, 0, (), "<f4", (3,)),
        Channel(1, 0, (1,), "<c8", (3,)),
        Channel(-1, 0, (1,), "<f4", (3,)),
    ],
)
def test_channels_that_cannot_be_are_refused(scheme, channel):
    errors = run_threads(scheme, 2, lambda t: t.open_channels([channel], TIMEOUT_S))
    assert all(isinstance(e, BadFrame) and str(e).startswith("channels: part") for e in errors)


def test_common_memory_is_the_same_for_all_who_have_it(scheme):
    if not load(scheme).can_share:
        pytest.skip("it shares no memory")
    channels = [*all_to_all(2), Channel(2, 0, (1,), "<f4", (2, 3), common=True)]

    def body(t):
        t.open_channels(channels, TIMEOUT_S)
        found = []
        for step in range(4):
            t.common(2)[t.task] = 10 * step + t.task
            t.outbox(t.task, TIMEOUT_S)[...] = 0
            t.exchange(2 * step, (0, 1), TIMEOUT_S)
            found.append(t.common(2)[:, 0].tolist())
            t.barrier(step, TIMEOUT_S)
        with pytest.raises(ProtocolError, match="a common channel"):
            t.common(0)
        return found

    for found in good(run_threads(scheme, 2, body)):
        assert found == [[10 * step, 10 * step + 1] for step in range(4)]


def test_nothing_is_left_of_20_groups(scheme):
    def once():
        good(run_threads(scheme, 2, lambda t: run_steps(t, [all_to_all(2)] * 1, 2)))

    gc.collect()  # what others left in circles of references may hold files
    once()  # pyzmq keeps the one collector thread that its first zero-copy message starts
    n_fds = len(os.listdir("/proc/self/fd"))
    before = set(threading.enumerate())
    for _ in range(20):
        once()
    assert len(os.listdir("/proc/self/fd")) == n_fds
    assert set(threading.enumerate()) - before == set()


def test_peers_that_lay_blocks_out_differently_do_not_agree(scheme):
    def body(t):
        order = "turned" if t.task else ""
        t.open_channels([Channel(1, 0, (1,), "<f4", (4, 4), order=order)], TIMEOUT_S)

    errors = run_threads(scheme, 2, body)
    assert any(isinstance(e, ProtocolError) for e in errors), errors


def test_nobody_waits_for_blocks_of_one_who_has_collected_and_is_elsewhere(scheme):
    """Six blocks of 4 MB are more than may be under way at a time."""
    is_done = threading.Event()
    large = [Channel(part, 0, (1,), "<f4", (1_000_000,)) for part in range(1, 7)]
    parts = tuple(range(1, 8))

    def body(t):
        t.open_channels([*large, Channel(7, 1, (0,), "<f4", (4,))], TIMEOUT_S)
        for part in parts[:-1] if t.task == 0 else parts[-1:]:
            t.outbox(part, TIMEOUT_S)[...] = part
        t.exchange(0, parts, TIMEOUT_S)
        if t.task == 1:
            is_done.set()
            return [float(t.inbox(part)[-1]) for part in parts[:-1]]
        assert is_done.wait(TIMEOUT_S), "the other still waits"  # at a barrier of ZooKeeper, say
        return list(t.inbox(7))

    assert good(run_threads(scheme, 2, body)) == [[7.0] * 4, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
