"""The loop of a parameter server: in a process of its own, or in a thread of a task's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from horn.errors import BarrierTimeout, ProtocolError
from horn.parameter_server.journal import Journal
from horn.parameter_server.mesh import Mesh
from horn.parameter_server.server import ParameterServer
from horn.parameter_server.server_state import state
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.transport import Transport
from horn.wire.frames import Array, WireMessage
from horn.wire.messages import WAITS, Meta, Note

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # how often an idle server looks at the clock, and says whom pulls wait for,
LOOKS = 40  # or so often in ``idle_s``: tasks wait for a tenth of it
END_S = 10.0  # how long a server that is done waits for tasks without an answer
END_LOOK_S = 0.05


class ServerCarrier(Protocol):
    """Carries a server's messages: a ``Mesh`` or ``ServerLinks``. Peers are ranks."""

    def send(self, rank: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """Send a message; the values are copied, one after the other."""

    def receive(self, timeout_s: float) -> WireMessage | None:
        """The next message, None if there is none in time."""


def serve(
    server: ParameterServer,
    carrier: ServerCarrier,
    idle_s: float,
    *,
    journal: Journal | None = None,
    check: Callable[[], None] | None = None,
    is_needed: Callable[[], bool] | None = None,
) -> TaskTimes:
    """Run a server until it is done; return its times.

    journal : gets each message that changes the server before the answers are sent. check : raises
    failures from elsewhere. is_needed : whether a task may still wait for an answer of a server
    that is done. Raises BarrierTimeout after ``idle_s`` without a message, while no group measures
    the model; JournalError if the journal cannot be written.
    """
    spent = TaskTimes()
    told, patience, look_s = time.monotonic(), Patience(idle_s), min(LOOK_S, idle_s / LOOKS)
    done_at: float | None = None
    while True:
        before = time.monotonic()
        if not server.is_done:
            done_at = None
        elif is_needed is None or not is_needed():
            return spent
        else:
            done_at = done_at or before
            if before - done_at > END_S:
                logger.warning("server ends before all have heard it server=%d", server.number)
                return spent
        message = carrier.receive(look_s if done_at is None else END_LOOK_S)
        now = time.monotonic()
        spent.wait_s += now - before
        if check is not None:
            check()
        if now - told >= look_s:
            told = now
            for rank, ranks, measure in server.waiting():
                note = Note(topic=WAITS, fields={"ranks": ranks, "measure": measure})
                carrier.send(rank, note)
        if message is None:
            if patience.left_s() <= 0 and done_at is None and not server.measuring:
                late, why = server.unfinished, "nobody pushes or pulls"
                names = tuple(map(server.at_first.name, late))
                raise BarrierTimeout("serving", names, (), idle_s, why, late)
            continue
        patience.renew()
        if len(message.arrays) > 1:
            raise ProtocolError(f"task {message.src}: {len(message.arrays)} blocks in a message")
        block = message.arrays[0] if message.arrays else None
        n_changes = server.n_changes
        answers = server.on(message.src, message.meta, block, message.attempt)
        between = time.monotonic()
        spent.compute_s += between - now
        if journal is not None and server.n_changes > n_changes:
            journal.append(message, between - now)
        for rank, meta, values in answers:
            carrier.send(rank, meta, values)
            spent.sent_bytes += sum(array.nbytes for array in values)
        spent.received_bytes += 0 if block is None else block.nbytes
        if journal is not None and journal.is_long:
            journal.shorten(*state(server))
        spent.send_s += time.monotonic() - between


def mesh_of(
    server: ParameterServer,
    transport: Transport,
    timeout_s: float,
    start_timeout_s: float | None = None,
) -> Mesh:
    return Mesh(transport, server.topology, server.pieces, server.dtype.str, timeout_s,
                start_timeout_s)  # fmt: skip


class ServerThread:
    """A server in a thread of a task's process. ``check`` raises its failure. on_error : called
    with the failure first, in that thread, before the connections end.
    """

    def __init__(
        self,
        server: ParameterServer,
        transport: Transport,
        idle_s: float,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.server, self.transport, self.idle_s = server, transport, idle_s
        self.on_error = on_error
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self, endpoints: list[str], timeout_s: float) -> None:
        self._endpoints, self._start_timeout_s = endpoints, timeout_s
        self.thread.start()

    def _run(self) -> None:
        with self.transport as transport:
            try:
                transport.connect(self._endpoints, self._start_timeout_s)
                mesh = mesh_of(self.server, transport, self.idle_s, self._start_timeout_s)
                serve(self.server, mesh, self.idle_s)
            except BaseException as error:
                self.error = error
                self.on_error(error)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def join(self, timeout_s: float, beside: Callable[[], None]) -> None:
        """Wait until the server is done, which others may still need: its own ``idle_s`` bounds
        that. One that is done, and has not ended after ``timeout_s``, is left with a warning.
        beside : called now and then. Raises the server's failure.
        """
        patience: Patience | None = None
        while True:
            self.thread.join(LOOK_S if patience is None else END_LOOK_S)
            self.check()
            if not self.thread.is_alive():
                return
            if self.server.is_done:
                patience = patience or Patience(timeout_s)
                if patience.left_s() <= 0:
                    logger.warning(
                        "server %d, a thread of this task, is done but has not closed its "
                        "connections in %g s; its process ends without that, and a task that "
                        "waits for its last answer may lose it", self.server.number, timeout_s,
                    )  # fmt: skip
                    return
            beside()
