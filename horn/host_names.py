"""The addresses of a host's name, without waiting for a resolver, which may not answer for minutes.

Such a question cannot be taken back, so it has a thread of its own, which is left behind.
"""

from __future__ import annotations

import socket
import threading
from typing import Any


class NameLookup:
    """A question for the addresses of ``host`` and ``port``; an address needs no resolver."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._answered = threading.Event()
        self._found: list[Any] = []
        self._error: OSError | None = None
        try:
            self._ask(socket.AI_NUMERICHOST)
        except OSError:  # it is a name
            threading.Thread(target=self._resolve, name="horn-resolve", daemon=True).start()

    def _ask(self, flags: int) -> None:
        kind = socket.SOCK_STREAM
        self._found = socket.getaddrinfo(self.host, self.port, type=kind, flags=flags)
        self._answered.set()

    def _resolve(self) -> None:
        try:
            self._ask(0)
        except OSError as error:
            self._error = error
            self._answered.set()

    def answer(self, timeout_s: float = 0.0) -> list[Any] | None:
        """The addresses, as of ``socket.getaddrinfo``; None if they are not known in time. Raises
        OSError: there are none.
        """
        if not self._answered.wait(timeout_s):
            return None
        if self._error is not None:
            raise self._error
        return self._found
