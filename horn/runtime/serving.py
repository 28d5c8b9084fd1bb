"""The loop of a parameter server: in a process of its own, or as a guest in a task's."""

from __future__ import annotations

import threading
import time

from horn.errors import BarrierTimeout
from horn.runtime.group import Spent
from horn.strategies._server import Server
from horn.transport import Transport

LOOK_S = 1.0  # how often a server that hears nothing looks at the clock


def serve(server: Server, transport: Transport, idle_s: float) -> Spent:
    """Run a server until it is done; where its time went.

    Raises
    ------
    BarrierTimeout : nobody has said anything for ``idle_s``.
    """
    spent = Spent()
    heard = time.monotonic()
    while not server.is_done:
        before = time.monotonic()
        message = transport.receive(LOOK_S)
        now = time.monotonic()
        spent.wait_s += now - before
        if message is None:
            if now - heard > idle_s:
                late = server.unfinished
                raise BarrierTimeout("serving", late, (), idle_s, "nobody pushes or pulls")
            continue
        heard = now
        spent.received_bytes += sum(a.nbytes for a in message.arrays)
        answers = server.on(message.src, message.meta, message.arrays)
        between = time.monotonic()
        spent.compute_s += between - now
        for rank, meta, arrays in answers:
            transport.send(rank, meta, arrays, idle_s, wait=False)
            spent.sent_bytes += sum(a.nbytes for a in arrays)
        spent.send_s += time.monotonic() - between
    return spent


class Guest:
    """A server in a thread of a task's process. What it raises is raised by ``check``."""

    def __init__(self, server: Server, transport: Transport, idle_s: float) -> None:
        self.server, self.transport, self.idle_s = server, transport, idle_s
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self, endpoints: list[str], timeout_s: float) -> None:
        self._meet = (endpoints, timeout_s)
        self.thread.start()

    def _run(self) -> None:
        with self.transport as transport:
            try:
                transport.connect(*self._meet)
                serve(self.server, transport, self.idle_s)
            except BaseException as error:
                self.error = error  # before others hear that the connection ends

    def check(self) -> None:
        """Raise what the server met, if it did."""
        if self.error is not None:
            raise self.error

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self.thread.join(timeout_s)
        self.check()
