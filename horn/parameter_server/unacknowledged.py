"""A task's unacknowledged messages to servers: pure.

Over a lossy carrier every message is kept until it is acknowledged, and sent again, in its order,
on a new link (docs/notes/0061). Over another, requests are kept without their numbers, to know who
owes an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from horn.errors import ProtocolError
from horn.parameter_server.pieces import ParameterBundle
from horn.runtime.requests import Array, Pull, Push
from horn.topology import Topology
from horn.wire.messages import (
    EndOfEpoch,
    JoinServers,
    LeaveServers,
    Meta,
    ParameterData,
    PullParameters,
    PushAcknowledged,
    PushGradients,
    ServersReady,
    Verdict,
)

AHEAD = 2  # unacknowledged pushes of a bundle: one is on its way while the next is computed

Arrays = Sequence[Array]
ToServer = tuple[int, Meta]


class Unacknowledged:
    """One task's messages to all servers; methods return messages to send.

    is_lossy : whether messages may be lost. awaited : missing bundles of the pull under way.
    welcomes : by server. verdicts : by epoch.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        bundles: Sequence[ParameterBundle],
        is_lossy: bool = True,
    ) -> None:
        self.topology, self.rank, self.is_lossy = topology, rank, is_lossy
        self.group, self.task = divmod(rank, topology.n_tasks)
        mine = [bundle for bundle in bundles if bundle.rank == rank]
        self.pushes = [bundle for bundle in mine if bundle.is_push]
        self.pulls = {bundle.part: bundle for bundle in mine if not bundle.is_push}
        self.servers = range(topology.n_servers)
        self.awaited: set[int] = set()
        self.welcomes: dict[int, ServersReady] = {}
        self.verdicts: dict[int, bool] = {}
        self._pending: dict[int, dict[tuple[object, ...], tuple[Meta, Arrays]]] = {
            server: {} for server in self.servers
        }
        # Counted beside what they count, or each push and answer would walk all bundles:
        self._pushing: defaultdict[int, set[int]] = defaultdict(set)  # by bundle, clocks of pushes
        self._n_awaited = Counter[int]()  # by server, bundles of ``awaited``
        self._n_pulls, self._pull = 0, Pull(0)

    def again(self, server: int) -> list[tuple[Meta, Arrays]]:
        return list(self._pending[server].values())

    def owing(self, server: int) -> str:
        kinds = [type(meta).__name__ for meta, _ in self._pending[server].values()]
        return ", ".join(dict.fromkeys(kinds))

    def is_full(self, bundle: ParameterBundle) -> bool:
        return len(self._pushing[bundle.part]) >= AHEAD

    @property
    def is_heard(self) -> bool:
        return not any(self._pending.values())

    def _to_all(self, key: tuple[object, ...], meta: Meta) -> list[ToServer]:
        for server in self.servers:
            self._pending[server][key] = meta, ()
        return [(server, meta) for server in self.servers]

    def join(self) -> list[ToServer]:
        return self._to_all(("join",), JoinServers())

    def begin(self, bundle: ParameterBundle, values: Arrays) -> Meta:
        """Make the message of initial values, which must not change until they are acknowledged."""
        meta = ParameterData(pieces=tuple(p.index for p in bundle.pieces), part=bundle.part)
        if self.is_lossy:
            self._pending[bundle.server]["begin", bundle.part] = meta, values
        return meta

    def push(self, bundle: ParameterBundle, push: Push, values: Arrays) -> Meta:
        indices = tuple(p.index for p in bundle.pieces)
        meta = PushGradients(
            pieces=indices, clock=push.clock, samples=push.samples, part=bundle.part,
            batches=push.batches,
        )  # fmt: skip
        if self.is_lossy:
            self._pending[bundle.server]["push", bundle.part, push.clock] = meta, values
            self._pushing[bundle.part].add(push.clock)
        return meta

    def pull(self, pull: Pull, measures: bool = False) -> list[ToServer]:
        """Make the messages of a pull. A server answers all tasks of the group at once: so task 0
        asks all servers, but over a lossy carrier every task asks those that have bundles for it.
        measures : the group measures what it gets before it goes on.
        """
        self._n_pulls += 1
        self._pull, self.awaited = pull, set(self.pulls)
        batches = self.batches if pull.clock == self.clock else None
        meta = PullParameters(
            clock=pull.clock, final=pull.final, turn=self._n_pulls, measures=measures,
            batches=batches,
        )  # fmt: skip
        self._n_awaited = Counter(bundle.server for bundle in self.pulls.values())
        owing = sorted(self._n_awaited)
        for server in owing:
            self._pending[server]["want",] = meta, ()
        asked = owing if self.is_lossy else self.servers if self.task == 0 else ()
        return [(server, meta) for server in asked]

    def leave(self) -> list[ToServer]:
        return self._to_all(("left", False), LeaveServers())

    def thank(self) -> list[ToServer]:
        meta = LeaveServers(is_thanks=True)
        if self.is_lossy:
            return self._to_all(("left", True), meta)
        return [(server, meta) for server in self.servers]

    def ask(self, epoch: int, stop: bool) -> ToServer:
        meta = EndOfEpoch(epoch=epoch, stop=stop)
        self._pending[0]["ask", epoch] = meta, ()
        return 0, meta

    def is_early(self, meta: ParameterData) -> bool:
        """Whether a message answers a pull that is yet to be made; if it is lost, it is resent."""
        return not self.is_lossy and meta.turn > self._n_pulls

    def heard(self, server: int, meta: Meta, block: Array | None) -> ParameterBundle | None:
        """Handle a server's message; of parameters that were asked for, return the bundle whose
        block it is. Raises ProtocolError if it is not for this task or, unless the carrier is
        lossy, if this task has not asked for it.
        """
        match meta:
            case PushAcknowledged(part=part, clock=clock):
                key: tuple[object, ...] = ("push", part, clock)
                key = key if clock is not None else ("begin", part)
            case ServersReady():
                key = ("join",)
            case LeaveServers(is_thanks=is_thanks):
                key = ("left", is_thanks)
            case Verdict(epoch=epoch):
                key = ("ask", epoch)
            case ParameterData():
                return self._take(server, meta, block)
            case _:
                raise self._wrong(server, f"{type(meta).__name__} is nothing for a task")
        if self._pending[server].pop(key, None) is None:
            if not self.is_lossy:
                raise self._wrong(server, f"{meta} answers nothing that was asked")
        elif isinstance(meta, PushAcknowledged) and meta.clock is not None:
            self._pushing[meta.part].discard(meta.clock)
        elif isinstance(meta, ServersReady):
            self.welcomes[server] = meta
        elif isinstance(meta, Verdict):
            self.verdicts[meta.epoch] = meta.stop
        return None

    def _take(
        self, server: int, meta: ParameterData, block: Array | None
    ) -> ParameterBundle | None:
        bundle = self.pulls.get(meta.part)
        if bundle is None or bundle.server != server:
            raise self._wrong(server, f"bundle {meta.part} is not for it")
        if block is None or block.shape != (len(bundle),):
            got = "nothing" if block is None else f"{block.shape} numbers"
            raise self._wrong(server, f"bundle {meta.part} with {got}, expected {len(bundle)}")
        if meta.turn != self._n_pulls or meta.part not in self.awaited:
            if self.is_lossy:
                return None  # it came twice, or for an earlier pull
            turns = f"got bundle {meta.part} of turn {meta.turn}, expected one of {self._n_pulls}"
            raise self._wrong(server, f"pull {self._pull.clock}: {turns}")
        self.awaited.discard(meta.part)
        self._n_awaited[server] -= 1
        if not self._n_awaited[server]:
            self._pending[server].pop(("want",), None)
        return bundle

    def _wrong(self, server: int, what: str) -> ProtocolError:
        return ProtocolError(f"task {self.rank}: from server {server}: {what}")

    @property
    def clock(self) -> int:
        """The clock at which the group resumes, once all servers have welcomed it."""
        welcomes = [w for w in self.welcomes.values() if w.clock is not None]
        choose = max if any(w.is_new for w in welcomes) else min
        return choose((w.clock for w in welcomes if w.clock is not None), default=0)

    @property
    def batches(self) -> int | None:
        """After how many batches it resumes; None if its pushes did not say."""
        of_clock = (w.batches for w in self.welcomes.values() if w.clock == self.clock)
        return next((n for n in of_clock if n is not None), None)
