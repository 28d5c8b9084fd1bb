"""Admission over CURVE: a thread that answers libzmq's requests (ZAP, RFC 27).

A CURVE server without it lets every key in. Here each public key stands for somebody, and that name
goes with every message as its User-Id: a role is what the key says, not what a message says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from horn.security.audit import AuditLog

ZAP_DOMAIN = b"horn"
_ENDPOINT = "inproc://zeromq.zap.01"
_MAX_PARTS = 16


def pair_of(seed: bytes) -> tuple[bytes, bytes]:
    """The CURVE pair (public, secret, both z85) whose secret is these 32 bytes."""
    secret = z85.encode(seed)
    return zmq.curve_public(secret), secret


class AllowedKeys:
    """The public keys (z85) that are admitted, and their holders. Used from any thread."""

    def __init__(self, audit: AuditLog | None = None, where: str = "") -> None:
        self.audit = audit or AuditLog()
        self.where = where  # of the socket, for the log
        self.n_refused = 0
        self._known: dict[bytes, str] = {}

    def admit(self, public: bytes, who: str) -> None:
        self._known = {**self._known, public: who}  # replaced, not changed: no lock is needed

    def answer(self, parts: Sequence[bytes]) -> list[bytes]:
        """The reply to a ZAP request; anything else is refused."""
        request, address, who, reason = b"", "?", "", "no ZAP request"
        if 6 <= len(parts) <= _MAX_PARTS and parts[0] == b"1.0":
            request, domain = parts[1], parts[2]
            address = parts[3].decode("ascii", "replace")
            mechanism = parts[5]
            if domain != ZAP_DOMAIN:
                reason = "another ZAP domain"
            elif mechanism != b"CURVE" or len(parts) != 7 or len(parts[6]) != 32:
                reason = f"mechanism {mechanism.decode('ascii', 'replace')}, not CURVE"
            else:
                who = self._known.get(z85.encode(parts[6]), "")
                reason = "" if who else "unknown key"
        if who:
            return [b"1.0", request, b"200", b"OK", who.encode(), b""]
        self.audit.line("refused", address=address, reason=reason, at=self.where)
        self.n_refused += 1
        return [b"1.0", request, b"400", b"refused", b"", b""]


class ZapHandler:
    """A context's thread: made before its first server socket, closed after the last."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: AllowedKeys) -> None:
        self.allowed = allowed
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._thread = threading.Thread(target=self._run, name="horn-zap", daemon=True)
        try:
            self._socket.bind(_ENDPOINT)
            self._thread.start()
        except BaseException:
            self._socket.close(0)
            os.close(self._wake)
            raise

    def _run(self) -> None:
        try:
            while True:
                ready = dict(zmq.zmq_poll([(self._socket, zmq.POLLIN), (self._wake, zmq.POLLIN)]))
                if self._wake in ready:
                    return
                self._socket.send_multipart(self.allowed.answer(self._socket.recv_multipart()))
        finally:
            self._socket.close(0)

    def close(self) -> None:
        """Stop and wait for the thread. May be called twice."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            os.close(self._wake)
            self._wake = -1
