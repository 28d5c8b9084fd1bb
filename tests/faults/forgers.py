"""Those who have no key, another key, a used one or an altered message. Experiment 32.

    python -m tests.faults.forgers ENDPOINT PUBLIC

knocks at a service with keys that it does not know, as fast as it can, until it is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import zmq

from horn.cluster.submission import Submission, sign, verify
from horn.coordination.records import Znode
from horn.errors import NotAllowed
from horn.rpc import protocol as calls
from horn.rpc.client import ClientKeys, RpcClient
from horn.rpc.server import RpcServer
from horn.security.keys import Key
from horn.wire.zap import pair_of
from tests.cluster.helpers import wait_until
from tests.rpc.services import KEY, OTHER, Echo, Text

BATCH = 40
# What means nothing and is not protected: ZMTP's greeting, and padding in CURVE's first command;
# also single bits of frames' flags, so that one attempt in a hundred or so changes nothing.
GREETING_BYTES, UNPROTECTED = 64, set(range(74, 146))
MOST_UNCHANGED = 0.05
KINDS = ("no key", "PLAIN", "another key", "random key", "another service", "wrong role",
         "the key of a job", "garbage", "replayed bytes", "altered byte")  # fmt: skip


def order(number: int = 1, op: str = "order") -> bytes:
    request = msgspec.Raw(msgspec.msgpack.encode(Text("forged")))
    return calls.encode(calls.CallRequest(number, calls.VERSION, op, 5.0, request, 0))


@contextlib.contextmanager
def dealers(endpoint: str, n: int, dress: Callable[[zmq.Socket], None]) -> Iterator[list]:
    """So many sockets that connect once, each with an order under way."""
    context = zmq.Context()
    made = []
    try:
        for _ in range(n):
            dealer = context.socket(zmq.DEALER)
            made.append(dealer)
            dealer.set(zmq.LINGER, 0)
            dealer.set(zmq.RECONNECT_IVL, -1)
            dress(dealer)
            dealer.connect(endpoint)
            with contextlib.suppress(zmq.Again):  # it was hung up on already
                dealer.send(order(), zmq.DONTWAIT)
        yield made
    finally:
        for dealer in made:
            dealer.close(0)
        context.term()


def dress(kind: str, public: bytes, rng: random.Random) -> Callable[[zmq.Socket], None]:
    """What a forger of this kind wears."""
    pairs = {
        "genuine": (pair_of(KEY.role("worker")), public),
        "another key": (pair_of(OTHER.role("worker")), public),
        "random key": (pair_of(rng.randbytes(32)), public),
        "another service": (pair_of(KEY.role("worker")), pair_of(KEY.service("host-9"))[0]),
        "wrong role": (pair_of(KEY.role("client")), public),
        "the key of a job": (pair_of(KEY.job("other")), public),
    }

    def put_on(dealer: zmq.Socket) -> None:
        if kind == "PLAIN":
            dealer.set(zmq.PLAIN_USERNAME, b"worker")
            dealer.set(zmq.PLAIN_PASSWORD, b"worker")
        elif kind in pairs:
            (own, secret), server = pairs[kind]
            dealer.set(zmq.CURVE_PUBLICKEY, own)
            dealer.set(zmq.CURVE_SECRETKEY, secret)
            dealer.set(zmq.CURVE_SERVERKEY, server)

    return put_on


def knock(found: RpcServer, echo: Echo, kind: str, n: int, rng: random.Random) -> int:
    """So many attempts of a kind; how many were accepted. Each is seen to be refused."""
    if kind in ("garbage", "replayed bytes", "altered byte"):
        return {"garbage": _garbage, "replayed bytes": _replayed, "altered byte": _altered}[kind](
            found, echo, n, rng
        )
    counts: Callable[[], int] = {
        "wrong role": lambda: found.n_refused,
        "another key": lambda: found.allowed.n_refused,
        "random key": lambda: found.allowed.n_refused,
        "the key of a job": lambda: found.allowed.n_refused,
    }.get(kind, lambda: found.admission.n_failed)
    n_accepted, n_called = 0, len(echo.called)
    for begin in range(0, n, BATCH):
        size = min(BATCH, n - begin)
        before = counts()
        with dealers(found.endpoint, size, dress(kind, found.public, rng)) as made:
            wait_until(lambda want=before + size: counts() >= want)
            for dealer in made:
                with contextlib.suppress(zmq.Again):
                    n_accepted += b"CallError" not in dealer.recv_multipart(zmq.DONTWAIT)[0]
    return n_accepted + len(echo.called) - n_called


def _address(found: RpcServer) -> tuple[str, int]:
    host, _, port = found.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def _say(found: RpcServer, data: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(_address(found), 5) as made:
        made.sendall(data)
        made.settimeout(0.05)
        while made.recv(10_000):
            pass


def _garbage(found: RpcServer, echo: Echo, n: int, rng: random.Random) -> int:
    before = len(echo.called)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(48)
    for _ in range(n):
        _say(found, rng.choice((b"", greeting)) + rng.randbytes(rng.randrange(1, 300)))
    return len(echo.called) - before


class Middle:
    """Somebody on the wire between a client and the service, for one connection: keeps what the
    client says, and may alter a byte of it.
    """

    def __init__(self, to: tuple[str, int], alter_at: int = -1) -> None:
        self.to, self.alter_at, self.heard = to, alter_at, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(5)
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            ours, _ = self.listener.accept()
            with ours, socket.create_connection(self.to) as theirs:
                back = threading.Thread(target=self._back, args=(theirs, ours), daemon=True)
                back.start()
                with contextlib.suppress(OSError):
                    while data := bytearray(ours.recv(65_536)):
                        at = self.alter_at - len(self.heard)
                        self.heard += data
                        if 0 <= at < len(data):
                            data[at] ^= 1 << self.alter_at % 8
                        theirs.sendall(data)
                with contextlib.suppress(OSError):
                    theirs.shutdown(socket.SHUT_RDWR)
                back.join(5)

    @staticmethod
    def _back(theirs: socket.socket, ours: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := theirs.recv(65_536):
                ours.sendall(data)
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.close()
        self.thread.join(5)


def _heard(found: RpcServer) -> bytes:
    """All that a real caller says over the wire."""
    middle = Middle(_address(found))
    with RpcClient(middle.endpoint, ClientKeys.of(KEY, "worker", "host-1")) as caller:
        caller.call("order", Text("genuine"), Text)
    middle.close()
    return middle.heard


def _replayed(found: RpcServer, echo: Echo, n: int, rng: random.Random) -> int:
    said = _heard(found)
    before = len(echo.called)
    for _ in range(n):
        _say(found, said)
    return len(echo.called) - before


def _altered(found: RpcServer, echo: Echo, n: int, rng: random.Random) -> int:
    """A genuine call with one bit changed on the way: nothing arrives, or what was sent if the bit
    meant nothing. How many arrived altered.
    """
    middle = Middle(_address(found))
    with dealers(middle.endpoint, 1, dress("genuine", found.public, rng)) as (dealer,):
        dealer.recv()
    middle.close()
    n_bytes, before = len(middle.heard), len(echo.texts)
    for _ in range(n):
        places = set(range(GREETING_BYTES, n_bytes)) - UNPROTECTED
        at = rng.choice(sorted(places))
        middle = Middle(_address(found), at)
        with dealers(middle.endpoint, 1, dress("genuine", found.public, rng)) as (dealer,):
            dealer.set(zmq.RCVTIMEO, 100)
            with contextlib.suppress(zmq.Again):
                dealer.recv()
        middle.close()
    arrived = echo.texts[before:]
    assert len(arrived) <= max(MOST_UNCHANGED * n, 2), f"{len(arrived)} of {n} arrived"
    return sum(text != "forged" for text in arrived)


def submissions(n: int, rng: random.Random) -> int:
    """Forged and altered submissions, and good ones in other places; how many were accepted."""
    node, n_accepted = Znode(b"", 0, 41, 41, 0, 0, 1_700_000_000.0), 0
    job = Submission(job="a-1", target="job.py", package="ab" * 32, seed=3)
    good = sign(KEY, job, node)
    verify(KEY, good, job="a-1", origin=node)
    for number in range(n):
        raw, wanted, where = good, "a-1", node
        match number % 6:
            case 0:  # by another key
                raw = sign(Key(rng.randbytes(32)), job, node)
            case 1:  # altered
                at = rng.randrange(len(good))
                raw = good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
            case 2:  # in a node that was made at another time
                late_ms = rng.choice((-1, 1)) * rng.randrange(1, 10**9)
                where = replace(node, made_s=node.made_s + late_ms / 1e3)
            case 3:  # another job's
                wanted = f"a-{rng.randrange(2, 100)}"
            case 4:  # cut
                raw = good[: rng.randrange(len(good))]
            case _:  # recorded, and put into another node
                where = replace(node, created=42 + number)
        try:
            verify(KEY, raw, job=wanted, origin=where)
            n_accepted += 1
        except NotAllowed:
            pass
    return n_accepted


def main(endpoint: str, public: str) -> None:
    os.nice(19)  # on a machine of its own it would take nothing from the service's
    rng = random.Random(os.getpid())
    while True:
        kind = rng.choice(("another key", "random key", "no key"))
        with dealers(endpoint, 10, dress(kind, public.encode(), rng)):
            time.sleep(0.02)  # so long each batch of strangers stays


if __name__ == "__main__":
    main(*sys.argv[1:])
