"""What a task has asked of servers and not heard of yet: pure. On a new link it is said again, in
the order in which it was said. See docs/notes/0061.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from horn.errors import ProtocolError
from horn.strategies import Array, Pull, Push, Topology
from horn.strategies.parameter_server.pieces import Bundle
from horn.wire.frames import (
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

# Of a bundle so many pushes may be unacknowledged: one is on its way while the next is computed.
AHEAD = 2

_Key = tuple[object, ...]
Said = tuple[Meta, Array | None]


class Asking:
    """One task's side of its talk with all servers.

    awaited : bundles of the pull under way that have not come. welcomes : by server. verdicts : by
    epoch. What its methods return is to be sent to that server, if it has a link.
    """

    def __init__(self, topology: Topology, rank: int, bundles: Sequence[Bundle]) -> None:
        self.topology, self.rank = topology, rank
        self.group, self.task = divmod(rank, topology.n_tasks)
        mine = [bundle for bundle in bundles if bundle.rank == rank]
        self.pushes = [bundle for bundle in mine if bundle.is_push]
        self.pulls = {bundle.part: bundle for bundle in mine if not bundle.is_push}
        self.servers = range(topology.n_servers)
        self.awaited: set[int] = set()
        self.welcomes: dict[int, ServersReady] = {}
        self.verdicts: dict[int, bool] = {}
        self._pending: dict[int, dict[_Key, Said]] = {server: {} for server in self.servers}
        self._n_pulls, self._pull = 0, Pull(0)

    def again(self, server: int) -> list[Said]:
        """What goes first over a new link."""
        return list(self._pending[server].values())

    def owing(self, server: int) -> str:
        """What a server has not answered, in words; nothing if it has."""
        kinds = [type(meta).__name__ for meta, _ in self._pending[server].values()]
        return ", ".join(dict.fromkeys(kinds))

    def is_full(self, bundle: Bundle) -> bool:
        """Whether another push of it has to wait."""
        pending = self._pending[bundle.server]
        return sum(key[:2] == ("push", bundle.part) for key in pending) >= AHEAD

    @property
    def is_heard(self) -> bool:
        """Whether everything was answered."""
        return not any(self._pending.values())

    def _say(self, server: int, key: _Key, meta: Meta, block: Array | None = None) -> Said:
        self._pending[server][key] = (meta, block)
        return meta, block

    def join(self) -> Iterator[tuple[int, Meta]]:
        for server in self.servers:
            yield server, self._say(server, ("join",), JoinServers())[0]

    def begin(self, bundle: Bundle, block: Array) -> Said:
        """What training begins with; the block is kept, and must not change."""
        meta = ParameterData(pieces=tuple(p.index for p in bundle.pieces), part=bundle.part)
        return self._say(bundle.server, ("begin", bundle.part), meta, block)

    def push(self, bundle: Bundle, push: Push, block: Array) -> Said:
        """As for ``begin``."""
        meta = PushGradients(
            pieces=tuple(p.index for p in bundle.pieces),
            clock=push.clock,
            samples=push.samples,
            part=bundle.part,
        )
        return self._say(bundle.server, ("push", bundle.part, push.clock), meta, block)

    def pull(self, pull: Pull) -> Iterator[tuple[int, Meta]]:
        """Every task asks who has something for it; the server answers all of the group at once."""
        self._n_pulls += 1
        self._pull, self.awaited = pull, set(self.pulls)
        meta = PullParameters(clock=pull.clock, final=pull.final, turn=self._n_pulls)
        for server in sorted({bundle.server for bundle in self.pulls.values()}):
            yield server, self._say(server, ("want",), meta)[0]

    def leave(self, is_thanks: bool = False) -> Iterator[tuple[int, Meta]]:
        for server in self.servers:
            yield (
                server,
                self._say(server, ("left", is_thanks), LeaveServers(is_thanks=is_thanks))[0],
            )

    def ask(self, epoch: int, stop: bool) -> tuple[int, Meta]:
        return 0, self._say(0, ("ask", epoch), EndOfEpoch(epoch=epoch, stop=stop))[0]

    def heard(self, server: int, meta: Meta, block: Array | None) -> Bundle | None:
        """A server's message; of parameters that were asked for, the bundle whose block it is.

        Raises
        ------
        ProtocolError : it is none that a server sends to this task.
        """
        pending = self._pending[server]
        match meta:
            case PushAcknowledged(part=part, clock=None):
                pending.pop(("begin", part), None)
            case PushAcknowledged(part=part, clock=clock):
                pending.pop(("push", part, clock), None)
            case ServersReady():
                if pending.pop(("join",), None) is not None:
                    self.welcomes[server] = meta
            case LeaveServers(is_thanks=is_thanks):
                pending.pop(("left", is_thanks), None)
            case Verdict(epoch=epoch, stop=stop):
                if pending.pop(("ask", epoch), None) is not None:
                    self.verdicts[epoch] = stop
            case ParameterData(part=part):
                return self._take(server, meta, block)
            case _:
                raise self._wrong(server, f"{type(meta).__name__} is nothing for a task")
        return None

    def _take(self, server: int, meta: ParameterData, block: Array | None) -> Bundle | None:
        bundle = self.pulls.get(meta.part)
        if bundle is None or bundle.server != server:
            raise self._wrong(server, f"bundle {meta.part} is not for it")
        if block is None or block.shape != (len(bundle),):
            got = "nothing" if block is None else f"{block.shape} numbers"
            raise self._wrong(server, f"bundle {meta.part} with {got}, expected {len(bundle)}")
        if meta.turn != self._n_pulls or meta.part not in self.awaited:
            return None  # it came twice, or for an earlier pull
        self.awaited.discard(meta.part)
        if not any(self.pulls[part].server == server for part in self.awaited):
            self._pending[server].pop(("want",), None)
        return bundle

    def _wrong(self, server: int, what: str) -> ProtocolError:
        return ProtocolError(f"task {self.rank}: from server {server}: {what}")

    @property
    def clock(self) -> int:
        """Where the group goes on, once all servers have welcomed it."""
        said = [w for w in self.welcomes.values() if w.clock is not None]
        clocks = [w.clock for w in said if w.clock is not None]
        if any(w.is_new for w in said):
            return max(clocks)
        return min(clocks, default=0)
