"""Parameters and gradients over a transport of all ranks: blocks through its channels (on one host,
shared memory), each announced by a message, since no superstep of another group is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from horn.parameter_server.pieces import ParameterBundle, ParameterPiece, bundles, channels
from horn.topology import Topology
from horn.transport import Transport
from horn.wire.frames import Array, WireMessage
from horn.wire.messages import Meta, ParameterData, PushGradients


class Mesh:
    """One end, a task's or a server's. Peers of a server are ranks, those of a task are servers, by
    their numbers. No message is lost: a lost peer ends the job.

    receive : the next message of a peer; by default the transport's. start_timeout_s : for all
    ranks to agree on the channels, before which others compile.
    """

    is_lossy = False

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        pieces: Sequence[ParameterPiece],
        dtype: str,
        timeout_s: float,
        start_timeout_s: float | None = None,
        receive: Callable[[float], WireMessage | None] | None = None,
    ) -> None:
        self.transport, self.timeout_s = transport, timeout_s
        self._receive = receive or transport.receive
        rank = transport.task
        self.is_server = rank >= topology.n_workers
        self.first_peer = 0 if self.is_server else topology.n_workers  # its rank
        every = bundles(pieces, topology, np.dtype(dtype).itemsize)
        mine = [b for b in every if rank in (b.rank, topology.server(b.server))]
        self._bundles = {bundle.part: bundle for bundle in mine}
        self._n_used = dict.fromkeys(self._bundles, 0)
        transport.open_channels(channels(every, topology, dtype), start_timeout_s or timeout_s)

    def _use(self, bundle: ParameterBundle) -> int:
        self._n_used[bundle.part] += 1
        self.transport.post(self._n_used[bundle.part], (bundle.part,))
        return self._n_used[bundle.part]

    def send(self, peer: int, meta: Meta, values: Sequence[Array] = ()) -> None:
        """Send a message, and before it the block of its bundle, which waits until the peer has
        used the last but one. A server never waits for room for a message.
        """
        if isinstance(meta, (PushGradients, ParameterData)):
            bundle = self._bundles[meta.part]
            block = self.transport.outbox(bundle.part, self.timeout_s)
            for to, array in zip(bundle.cut(block), values, strict=True):
                to[...] = array
            self._use(bundle)
        self.transport.send(
            self.first_peer + peer, meta, (), self.timeout_s, wait=not self.is_server
        )

    def receive(self, timeout_s: float) -> WireMessage | None:
        message = self._receive(timeout_s)
        if message is None:
            return None
        peer, meta = message.src - self.first_peer, message.meta
        arrays: tuple[Array, ...] = ()
        if isinstance(meta, (PushGradients, ParameterData)):
            bundle = self._bundles.get(meta.part)
            if bundle is not None and (bundle.is_push, peer) == (
                self.is_server, bundle.rank if self.is_server else bundle.server
            ):  # fmt: skip
                self.transport.collect(self._use(bundle), (bundle.part,), self.timeout_s)
                arrays = (self.transport.inbox(bundle.part),)
        return WireMessage(meta, arrays, peer, message.attempt)

    def ended(self) -> dict[int, str]:
        absent = self.transport.absent().items()
        return {rank - self.first_peer: why for rank, why in absent if rank >= self.first_peer}

    # No link is ever missing: the transport reconnects, or names the lost peer.

    def open(self, again: object) -> None: ...

    def down(self) -> dict[int, str]:
        return {}

    def cut_off(self) -> dict[int, float]:
        return {}

    def close(self) -> None: ...
