"""A TCP relay between a client and a server that a test can cut, freeze or make deaf.

One thread and one selector; everything is closed at the end. ``hosts`` is what the client gets.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self


class Relay:
    """``cut``: close all connections and refuse new ones. ``freeze``: keep them, forward nothing.
    ``deafen``: forward to the server only. ``mend``: as at the start."""

    def __init__(self, hosts: str, address: str = "127.0.0.1") -> None:
        host, _, port = hosts.split(",")[0].rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server((address, 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self.hosts = f"{address}:{self.port}"
        self.n_refused = 0
        self._to_server = self._to_client = self._open = True
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._orders: list[tuple[bool, bool, bool]] = []
        self._order_done = threading.Condition()
        self._wake_in, self._wake_out = socket.socketpair()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._wake_in.send(b"x")  # to a thread that may be leaving already: it closes nothing
        self._thread.join(10)
        assert not self._thread.is_alive(), "the relay did not stop within 10 s"
        for s in (self._listener, self._wake_in, self._wake_out):
            s.close()

    def cut(self) -> None:
        self._order(False, False, False)

    def freeze(self) -> None:
        self._order(True, False, False)

    def deafen(self) -> None:
        self._order(True, True, False)

    def mend(self) -> None:
        self._order(True, True, True)

    def _order(self, is_open: bool, to_server: bool, to_client: bool) -> None:
        with self._order_done:
            self._orders.append((is_open, to_server, to_client))
            self._wake_in.send(b"x")
            assert self._order_done.wait_for(lambda: not self._orders, 10)

    def _run(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._wake_out, selectors.EVENT_READ)
            while not self._stopped:
                for key, _ in self._selector.select(10):
                    if key.fileobj is self._wake_out:
                        self._wake_out.recv(100)
                        self._obey()
                    elif key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._forward(key.fileobj)  # type: ignore[arg-type]
            self._close_all()

    def _obey(self) -> None:
        with self._order_done:
            for order in self._orders:
                self._open, self._to_server, self._to_client = order
                if not self._open:
                    self._close_all()
            self._orders.clear()
            for s in self._pairs:
                self._watch(s)
            self._order_done.notify_all()

    def _watch(self, source: socket.socket) -> None:
        """Read from ``source`` only while its direction is open: else the bytes wait there."""
        wanted = self._to_server if source in self._clients else self._to_client
        known = source in self._selector.get_map()
        if wanted and not known:
            self._selector.register(source, selectors.EVENT_READ)
        elif known and not wanted:
            self._selector.unregister(source)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if not self._open:
                raise ConnectionRefusedError
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            self.n_refused += 1
            return
        self._pairs |= {client: server, server: client}
        self._clients.add(client)
        for s in (client, server):
            self._watch(s)

    def _forward(self, source: socket.socket) -> None:
        target = self._pairs[source]
        try:
            data = source.recv(65536)
            if data:
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for s in (source, target):
                self._close(s)

    def _close(self, s: socket.socket) -> None:
        self._pairs.pop(s, None)
        self._clients.discard(s)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(s)
        s.close()

    def _close_all(self) -> None:
        for s in list(self._pairs):
            self._close(s)
