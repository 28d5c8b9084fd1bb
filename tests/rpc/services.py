"""A small service for the tests: it echoes, stores, sends and waits."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from horn.rpc.client import ClientKeys, RpcClient
from horn.rpc.server import Quotas, RpcCall, RpcServer
from horn.security.keys import Key

KEY = Key(bytes(range(32)))
OTHER = Key(bytes(range(1, 33)))
URL = "tcp://127.0.0.1:0"
QUOTAS = Quotas(failures_per_s=1e6, failures_burst=1_000_000, connections_per_address=1000)


class Text(msgspec.Struct, frozen=True):
    text: str = ""


class Count(msgspec.Struct, frozen=True):
    n: int = 0


class Echo:
    """The handlers, and what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.texts: list[str] = []
        self.ended = threading.Event()

    def echo(self, call: RpcCall) -> Text:
        self.called.append(call.role)
        self.texts.append(call.request.text)
        return Text(call.request.text)

    def store(self, call: RpcCall) -> Text:
        self.called.append(call.role)
        hashed = hashlib.sha256()
        for data in call.read():
            hashed.update(data)
        return Text(hashed.hexdigest())

    def send(self, call: RpcCall) -> tuple[Text, Iterator[bytes]]:
        def body() -> Iterator[bytes]:
            try:
                for at in range(0, call.request.n, 100_000):
                    yield bytes(min(100_000, call.request.n - at))
            finally:
                self.ended.set()

        return Text("here"), body()

    def wait(self, call: RpcCall) -> Text:
        try:
            for _ in call.read():
                pass
        finally:
            self.ended.set()
        return Text()


@contextmanager
def service(key: Key | None = KEY, quotas: Quotas = QUOTAS, **settings):
    """A running service and its handlers."""
    echo = Echo()
    found = RpcServer(URL, "host-1", key, quotas=quotas, **settings)
    register(found, echo)
    with found:
        yield found, echo


def register(found: RpcServer, echo: Echo) -> None:
    roles = ("client", "worker", "open")
    found.on("echo", Text, echo.echo, roles)
    found.on("order", Text, echo.echo, ("worker",), is_audited=True)
    found.on("store", Text, echo.store, roles, max_body=1 << 26)
    found.on("send", Count, echo.send, roles)
    found.on("wait", Text, echo.wait, roles, max_body=100)


def client(
    found: RpcServer, role: str = "client", key: Key = KEY, name: str = "host-1"
) -> RpcClient:
    return RpcClient(found.endpoint, ClientKeys.of(key, role, name) if found.public else None)
