"""The loop of a parameter server: in a process of its own, or as a guest in a task's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from horn.errors import BarrierTimeout, ProtocolError
from horn.patience import Patience
from horn.runtime.group import TaskTimes
from horn.strategies.parameter_server.pieces import Bundle, bundles, channels
from horn.strategies.parameter_server.server import Server
from horn.transport import Transport
from horn.wire.frames import WAITS, Array, Note, ParameterData, PushGradients

LOOK_S = 1.0  # how often a server that hears nothing looks at the clock


def serve(
    server: Server, transport: Transport, idle_s: float, agree_timeout_s: float | None = None
) -> TaskTimes:
    """Run a server until it is done; where its time went.

    agree_timeout_s : for all ranks to agree on the channels, before which others compile.

    Raises
    ------
    BarrierTimeout : nobody has said anything for ``idle_s``.
    """
    spent = TaskTimes()
    boxes = _Boxes(server, transport, idle_s)
    transport.plan(
        channels(boxes.all, server.topology, server.dtype.str), agree_timeout_s or idle_s
    )
    told, patience = time.monotonic(), Patience(idle_s)
    while not server.is_done:
        before = time.monotonic()
        message = transport.receive(LOOK_S)
        now = time.monotonic()
        spent.wait_s += now - before
        if now - told > LOOK_S:
            told = now
            for rank, ranks in server.waiting():
                note = Note(topic=WAITS, fields={"ranks": ranks})
                transport.send(rank, note, (), idle_s, wait=False)
        if message is None:
            if patience.left_s() <= 0:
                late = server.unfinished
                raise BarrierTimeout("serving", late, (), idle_s, "nobody pushes or pulls")
            continue
        patience.renew()
        meta = message.meta
        arrays: list[Array] = []
        if isinstance(meta, (PushGradients, ParameterData)):
            arrays = boxes.take(message.src, meta)
            spent.received_bytes += sum(array.nbytes for array in arrays)
        answers = server.on(message.src, meta, arrays)
        between = time.monotonic()
        spent.compute_s += between - now
        for rank, answer, values in answers:
            if isinstance(answer, ParameterData):
                boxes.put(answer, values)
                spent.sent_bytes += sum(array.nbytes for array in values)
            transport.send(rank, answer, (), idle_s, wait=False)
        spent.send_s += time.monotonic() - between
    return spent


class _Boxes:
    """The blocks of a server's channels."""

    def __init__(self, server: Server, transport: Transport, timeout_s: float) -> None:
        self.number, self.transport, self.timeout_s = server.number, transport, timeout_s
        self.all = bundles(server.pieces, server.topology, server.dtype.itemsize)
        mine = [bundle for bundle in self.all if bundle.server == server.number]
        self.pushes = {bundle.part: bundle for bundle in mine if bundle.is_push}
        self.pulls = {bundle.part: bundle for bundle in mine if not bundle.is_push}
        self.n_used = dict.fromkeys((bundle.part for bundle in mine), 0)

    def _next_use(self, bundle: Bundle) -> int:
        self.n_used[bundle.part] += 1
        return self.n_used[bundle.part]

    def take(self, src: int, meta: PushGradients | ParameterData) -> list[Array]:
        """What was posted before this message, a view per piece."""
        bundle = self.pushes.get(meta.part)
        if bundle is None or bundle.rank != src:
            raise ProtocolError(f"server {self.number}: bundle {meta.part} of task {src}")
        use = self._next_use(bundle)
        self.transport.post(use, (bundle.part,))
        self.transport.collect(use, (bundle.part,), self.timeout_s)
        return bundle.cut(self.transport.inbox(bundle.part))

    def put(self, meta: ParameterData, values: Sequence[Array]) -> None:
        """Post an answer."""
        bundle = self.pulls[meta.part]
        block = self.transport.outbox(bundle.part, self.timeout_s)
        for to, array in zip(bundle.cut(block), values, strict=True):
            to[...] = array
        self.transport.post(self._next_use(bundle), (bundle.part,))


class Guest:
    """A server in a thread of a task's process. What it raises is raised by ``check``. on_error :
    is given it first, in that thread, before others hear that the connection ends.
    """

    def __init__(
        self,
        server: Server,
        transport: Transport,
        idle_s: float,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.server, self.transport, self.idle_s = server, transport, idle_s
        self.on_error = on_error
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self, endpoints: list[str], timeout_s: float) -> None:
        self._meet = (endpoints, timeout_s)
        self.thread.start()

    def _run(self) -> None:
        with self.transport as transport:
            try:
                transport.connect(*self._meet)
                serve(self.server, transport, self.idle_s, self._meet[1])
            except BaseException as error:
                self.error = error
                self.on_error(error)

    def check(self) -> None:
        """Raise what the server met, if it did."""
        if self.error is not None:
            raise self.error

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self.thread.join(timeout_s)
        self.check()
