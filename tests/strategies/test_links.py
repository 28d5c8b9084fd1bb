"""Links that end and begin again, over real sockets: a server and tasks in this process."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zmq

from horn.errors import Fenced, JobError
from horn.parameter_server import task_links
from horn.parameter_server.server_links import ServerLinks
from horn.parameter_server.task_links import TaskLinks
from horn.runtime.context import ServerAddress
from horn.transport import Identity
from horn.wire.frames import HandshakeRefused, WireMessage, encode
from horn.wire.messages import EndOfEpoch, Verdict
from horn.wire.sockets import LIMITS
from tests.hosts import hosts, why_not
from tests.transport.groups import TIMEOUT_S, url_of

pytestmark = pytest.mark.net
KEY = bytes(range(32))


@pytest.fixture
def slow_ends(monkeypatch):
    """Ends may be late: no link is made anew for that."""
    monkeypatch.setattr(task_links, "WELCOME_S", TIMEOUT_S)
    monkeypatch.setitem(LIMITS, zmq.HANDSHAKE_IVL, int(TIMEOUT_S * 1000))


class Served:
    """A hub in a thread that gives back what it gets, and notes it."""

    def __init__(
        self, scheme: str, *, attempt: int = 1, job: str = "job", key: Any = None, url: str = ""
    ) -> None:
        self.over: dict[int, int] = {}  # by rank: attempts below are over
        identity = Identity(0, 1, job, attempt, key)
        self.hub = ServerLinks(
            url or url_of(scheme), identity, lambda rank, e: e < self.over.get(rank, 0)
        )
        self.found = ServerAddress(self.hub.endpoint, attempt)
        self.heard: list[tuple[int, int]] = []  # rank, number
        self.ends = threading.Event()
        self.is_silent = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.ends.is_set():
            message = self.hub.receive(0.02)
            if message is not None:
                assert isinstance(message.meta, EndOfEpoch)
                self.heard.append((message.src, message.meta.epoch))
                if not self.is_silent:
                    verdict = Verdict(epoch=message.meta.epoch)
                    self.hub.send(message.src, verdict, message.arrays)
        self.hub.close()

    def close(self) -> None:
        self.ends.set()
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()


class Asker:
    """A task: it asks, and asks again what was not answered."""

    def __init__(
        self, find: Callable[[], ServerAddress | None], rank: int = 0, **more: Any
    ) -> None:
        settings = {"job": "job", "attempt": 1, "key": None, **more}
        identity = Identity(rank, 1, settings["job"], settings["attempt"], settings["key"])
        self.pending: dict[int, Any] = {}
        self.links = TaskLinks(identity, 1, lambda server: find())
        self.links.open(
            lambda server: [(EndOfEpoch(epoch=n), some) for n, some in self.pending.items()]
        )

    def ask(self, number: int, block: Any = None) -> None:
        self.pending[number] = () if block is None else (block,)
        self.links.send(0, EndOfEpoch(epoch=number), self.pending[number])

    def hear(self) -> Any:
        """Until all is answered; the last block."""
        ends = time.monotonic() + TIMEOUT_S
        block = None
        while self.pending:
            assert time.monotonic() < ends, (self.pending.keys(), self.links.down())
            message = self.links.receive(0.1)
            if message is not None:
                assert message.src == 0 and isinstance(message.meta, Verdict)
                self.pending.pop(message.meta.epoch, None)
                block = message.arrays[0] if message.arrays else None
        return block


@contextmanager
def closing(*things: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for thing in things:
            (thing.links if isinstance(thing, Asker) else thing).close()


both = pytest.mark.parametrize("scheme", ["ipc", "tcp"])


@both
@pytest.mark.parametrize("key", [None, KEY])
def test_what_is_asked_is_answered_with_blocks_of_any_size(scheme, key):
    server = Served(scheme, key=key)
    task = Asker(lambda: server.found, key=key)
    with closing(task, server):
        for number, n in enumerate((0, 1, 70_000, 1 << 20)):
            sent = np.arange(n, dtype=np.float32)
            task.ask(number, sent)
            assert np.array_equal(task.hear(), sent)
        assert server.heard == [(0, n) for n in range(4)]


def test_a_task_that_may_open_no_more_files_says_so_and_can_leave(monkeypatch):
    def no_descriptor(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    found = ServerAddress("tcp://127.0.0.1:1", 1)
    task = Asker(lambda: found)
    monkeypatch.setattr(task_links, "monitor_of", no_descriptor)
    with pytest.raises(JobError, match="cannot connect to .* Too many open files"):
        task.links.receive(0.0)
    leaving = threading.Thread(target=task.links.close, daemon=True)
    leaving.start()
    leaving.join(TIMEOUT_S)
    assert not leaving.is_alive()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    "one_way", [None, *(pytest.param(way, marks=pytest.mark.slow) for way in ("to it", "from it"))]
)
def test_a_server_that_is_cut_off_is_known_to_be_and_one_that_has_gone_is_not(one_way):
    with hosts(2) as net:
        here, there = net.hosts
        with there.inside():
            server = Served("tcp", key=KEY, url=f"tcp://{there.address}:0")
        with here.inside():
            task = Asker(lambda: server.found, key=KEY)
            with closing(task):
                with closing(server):
                    task.ask(1)
                    task.hear()
                    pair = (there, here) if one_way == "from it" else (here, there)
                    net.cut(*pair, one_way=one_way is not None)
                    task.ask(2)
                    ends = time.monotonic() + TIMEOUT_S
                    while task.links.cut_off().get(0, 0.0) < 1.0:
                        assert time.monotonic() < ends and task.links.receive(0.05) is None
                    assert "cut off" in task.links.down()[0]
                    net.heal()
                    task.hear()
                    assert task.links.cut_off() == {}
                task.ask(3)
                while not task.links.down() or task.links.cut_off():  # it is refused, and that soon
                    assert time.monotonic() < ends and task.links.receive(0.01) is None


@both
def test_a_server_that_comes_back_elsewhere_is_asked_again_what_it_had_not_answered(scheme):
    first = Served(scheme)
    places = [first.found]
    task = Asker(lambda: places[-1])
    with closing(task):
        with closing(first):
            task.ask(0)
            task.hear()
            first.is_silent = True
            task.ask(1, np.ones(300_000))
            task.ask(2)
            ends = time.monotonic() + TIMEOUT_S
            while len(first.heard) < 3:
                assert time.monotonic() < ends and task.links.receive(0.01) is None
        while 0 not in task.links.down():
            assert time.monotonic() < ends and task.links.receive(0.01) is None
        task.ask(3)  # to nobody, for the time being
        second = Served(scheme, attempt=2)
        with closing(second):
            places.append(second.found)
            task.hear()
            assert second.heard == [(0, 1), (0, 2), (0, 3)]


@both
def test_a_tasks_successor_is_welcome_and_what_it_left_behind_is_not(scheme):
    server = Served(scheme)
    old, new = Asker(lambda: server.found), Asker(lambda: server.found, attempt=2)
    with closing(old, new, server):
        old.ask(0)
        old.hear()
        server.over[0] = 2  # its place was given away
        new.ask(1)
        new.hear()
        old.ask(2)
        with pytest.raises(
            Fenced, match="task 0 is fenced: server 0 has seen a later attempt than 1"
        ):
            old.hear()
        new.ask(3)
        new.hear()
        assert server.heard == [(0, 0), (0, 1), (0, 3)] and server.hub.n_stale == 1


@both
@pytest.mark.usefixtures("slow_ends")
def test_a_hello_of_an_attempt_that_is_over_is_refused(scheme):
    server = Served(scheme)
    server.over[0] = 2
    task = Asker(lambda: server.found)
    with closing(task, server):
        task.ask(0)
        with pytest.raises(Fenced):
            task.hear()
        assert server.heard == [] and server.hub.n_stale == 1


@both
@pytest.mark.parametrize("end", ["task", "server"])
@pytest.mark.usefixtures("slow_ends")
def test_a_lost_frame_ends_the_link_and_is_said_again_on_the_next(scheme, end):
    server = Served(scheme)
    task, other = Asker(lambda: server.found), Asker(lambda: server.found, rank=1)
    with closing(task, other, server):
        for number in range(10):
            task.ask(number)
            other.ask(number)
            task.hear()
            other.hear()
            if number % 3 == 1 and end == "task":
                task.links._links[0].end.n_out += 1
            elif number % 3 == 1:
                server.hub._ends[server.hub._of[0]][1].n_out += 1
        assert task.links.n_links == 4 and other.links.n_links == 1
        heard = [number for rank, number in server.heard if rank == 0]
        assert sorted(set(heard)) == list(range(10)) == list(dict.fromkeys(heard))
        assert [number for rank, number in server.heard if rank == 1] == list(range(10))


@pytest.mark.parametrize(
    "more, sentence",
    [({"job": "another"}, "refused by server 0: hello of task 0: job: got another, expected job")],
)
def test_who_has_another_job_is_told_so(more, sentence):
    server = Served("ipc")
    task = Asker(lambda: server.found, **more)
    with closing(task, server):
        task.ask(0)
        with pytest.raises(HandshakeRefused, match=sentence):
            task.hear()


def test_a_server_of_another_attempt_than_is_known_is_not_listened_to():
    server = Served("ipc", attempt=1)
    task = Asker(
        lambda: ServerAddress(server.found.endpoint, 2)
    )  # the old one answers at the new place
    with closing(task, server):
        task.ask(0)
        ends = time.monotonic() + TIMEOUT_S
        while task.links.counters.n_dropped < 2:  # it tries again, in vain
            assert time.monotonic() < ends and task.links.receive(0.02) is None
        assert server.heard == []


def test_another_key_gets_no_link_and_is_told_why():
    server = Served("tcp", key=KEY)
    task = Asker(lambda: server.found, key=KEY[::-1])
    with closing(task, server):
        task.ask(0)
        ends = time.monotonic() + TIMEOUT_S
        while "another key" not in task.links.down().get(0, ""):
            assert time.monotonic() < ends and task.links.receive(0.05) is None
        assert server.heard == []


def test_strangers_are_dropped_and_nobody_else_notices():
    server = Served("tcp")
    task = Asker(lambda: server.found)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    try:
        with closing(task, server):
            stranger.connect(server.found.endpoint)
            junk = [
                [b"x"],
                [b""] * 5,
                [bytes(64), b"\x80"],
                encode(WireMessage(EndOfEpoch(epoch=1), seq=1)),
            ]
            for number in range(200):
                stranger.send_multipart(junk[number % len(junk)])
                task.ask(number)
            task.hear()
            assert [n for _, n in server.heard] == list(range(200))
            ends = time.monotonic() + TIMEOUT_S
            while server.hub.counters.n_dropped < 200:
                assert time.monotonic() < ends
                time.sleep(0.01)  # between two looks
            for _ in range(3):
                assert stranger.poll(TIMEOUT_S * 1000)
                stranger.recv_multipart()
            assert not stranger.poll(50)  # then there is silence
    finally:
        stranger.close(0)
        context.term()


def test_who_does_not_read_holds_up_nobody_else():
    server = Served("ipc")
    lazy, task = Asker(lambda: server.found), Asker(lambda: server.found, rank=1)
    with closing(lazy, task, server):
        ends = time.monotonic() + TIMEOUT_S
        while lazy.links.down():
            assert time.monotonic() < ends and lazy.links.receive(0.01) is None
        for number in range(60):
            lazy.ask(number, np.ones(1 << 18))
        for number in range(20):
            lazy.links._mend()  # sends, and reads nothing
            task.ask(number, np.ones(1 << 16))
            task.hear()
        lazy.hear()
        assert {number for rank, number in server.heard if rank == 0} == set(range(60))
