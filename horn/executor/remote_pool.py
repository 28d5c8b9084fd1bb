"""The task pools of a job on several hosts as one pool, for the primary host, which has rank 0.

That host chooses the placement, hears all tasks and tells all; the job runners of the others pass
messages on, over a transport of their own. Arrays leave shared memory at one end and are back in it
at the other.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from horn.errors import HornError, ProtocolError
from horn.executor.task_pool import TaskPool
from horn.job import Job
from horn.partition.placement import Placement
from horn.process import control
from horn.process.control import ControlMessage
from horn.process.job_payload import JobDraft
from horn.process.job_spec import RunSpec
from horn.transport import Identity, peer_lost
from horn.transport._framed import FramedTransport
from horn.transport.tcp import Tcp
from horn.wire.messages import Note

logger = logging.getLogger(__name__)

PRIMARY = 0  # its number among the hosts
SLICE_S = 0.01  # wait for one of two sources of messages, by turns
CHUNK_BYTES = 1024 * 1024
MAX_BYTES = 4 * 1024**3  # of one task's message
START, SAID, EXIT, TELL, PIDS, DONE = "start", "said", "exit", "tell", "pids", "done"
RENEW, DROP = "renew", "drop"


class StartRanks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The primary host's order to start ``ranks``. job : its description of the job."""

    run: RunSpec
    links: list[tuple[int, int, str]]
    layers: list[tuple[int, str]]
    ranks: list[int]
    job: dict[str, Any]


class RestartRanks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to renew ranks; messages of an earlier ``incarnation`` may come later."""

    ranks: list[int]
    incarnation: int


@dataclass(frozen=True)
class RemoteMessage:
    """A message from or to another host. incarnation : of the rank's process."""

    host: int
    topic: str
    rank: int
    incarnation: int
    blob: bytes
    memory: bytes


class HostLink:
    """The link between the hosts of a job. A thread owns the transport; use the link from one other
    thread. url : to listen at. number : of this host in ``names``. Raises PeerLost from
    ``receive``: another host's runner has gone.
    """

    def __init__(self, url: str, identity: Identity, names: Sequence[str]) -> None:
        self.names, self.number = tuple(names), identity.rank
        self.transport: FramedTransport = Tcp(url, identity)
        self.endpoint = self.transport.endpoint
        self._out: queue.SimpleQueue[RemoteMessage] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[RemoteMessage | HornError] = queue.SimpleQueue()
        self._partial: dict[int, bytearray] = {}
        self._closing = threading.Event()
        self._is_done = False
        self._thread: threading.Thread | None = None

    def connect(self, endpoints: Sequence[str], timeout_s: float) -> None:
        self.transport.connect(endpoints, timeout_s)
        self._thread = threading.Thread(target=self._run, name="horn-host-link", daemon=True)
        self._thread.start()

    def send(
        self,
        to: int,
        topic: str,
        rank: int = 0,
        blob: bytes = b"",
        memory: bytes = b"",
        incarnation: int = 0,
    ) -> None:
        self._out.put(RemoteMessage(to, topic, rank, incarnation, blob, memory))

    def tell(self, topic: str, blob: bytes = b"") -> None:
        """Send to all other hosts."""
        for host in range(len(self.names)):
            if host != self.number:
                self.send(host, topic, blob=blob)

    def receive(self, timeout_s: float) -> RemoteMessage | None:
        try:
            found = self._in.get(timeout=timeout_s) if timeout_s > 0 else self._in.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, HornError):
            raise found
        return found

    def finish(self) -> None:
        """Allow other hosts to leave from now on."""
        self._is_done = True

    def close(self, reason: str = "finished") -> None:
        """Send all queued messages, and leave."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.transport.close(reason)

    def _run(self) -> None:
        try:
            while True:
                is_closing = self._closing.is_set()
                while not self._out.empty():
                    self._send(self._out.get())
                if is_closing:
                    return
                message = self.transport.receive(SLICE_S)
                if message is not None:
                    self._take(message.src, message.meta, message.arrays)
                    continue
                for host, why in self.transport.absent().items():
                    if not self._is_done:
                        raise peer_lost(self.transport.identity, "the job", host, why)
        except HornError as error:
            self._in.put(error)
        except Exception as error:  # the top of this thread
            logger.exception("the link between hosts failed")
            self._in.put(ProtocolError(f"the link between the hosts failed: {error!r}"))

    def _send(self, m: RemoteMessage) -> None:
        whole = np.frombuffer(m.blob + m.memory, np.uint8)
        fields: dict[str, bool | int | float | str | None] = {
            "rank": m.rank, "blob": len(m.blob), "size": len(whole), "incarnation": m.incarnation,
        }  # fmt: skip
        for at in range(0, max(len(whole), 1), CHUNK_BYTES):
            piece = whole[at : at + CHUNK_BYTES]
            arrays = [piece] if len(piece) else []
            self.transport.send(m.host, Note(topic=m.topic, fields=fields), arrays, 30.0)

    def _take(self, host: int, meta: Any, arrays: Sequence[Any]) -> None:
        if not isinstance(meta, Note):
            raise ProtocolError(f"{self.names[host]} sends {type(meta).__name__}, expected a Note")
        size, n_blob = int(meta.fields["size"] or 0), int(meta.fields["blob"] or 0)
        if not 0 <= n_blob <= size <= MAX_BYTES:
            raise ProtocolError(f"{self.names[host]} sends {n_blob} of {size} bytes")
        got = self._partial.setdefault(host, bytearray())
        for array in arrays:
            got += array.tobytes()
        if len(got) < size:
            return
        del self._partial[host]
        whole = bytes(got)
        rank, incarnation = (int(meta.fields[name] or 0) for name in ("rank", "incarnation"))
        self._in.put(
            RemoteMessage(host, meta.topic, rank, incarnation, whole[:n_blob], whole[n_blob:size])
        )


class RemoteTaskPool:
    """All task pools of a job, as one TaskPool. pool : this host's. elsewhere : ranks by host.
    described : the job, as this host loaded it; others compare theirs.
    """

    def __init__(
        self,
        pool: TaskPool,
        host_link: HostLink,
        elsewhere: Mapping[int, Sequence[int]],
        described: Mapping[str, Any],
    ) -> None:
        self.pool, self.host_link, self.described = pool, host_link, dict(described)
        self._host_of = {rank: host for host, ranks in elsewhere.items() for rank in ranks}
        self._incarnations: dict[int, int] = {}  # by rank, of those that were renewed
        self._n_renewed = 0
        self._pids = {**pool.pids, **dict.fromkeys(self._host_of, 0)}

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank; 0 until its host has reported it. Updated in place; of a rank that
        was dropped the last one stays, for its row of the counters.
        """
        return self._pids

    def place(self, hosts: Mapping[int, str]) -> None:
        """Record other hosts of ranks, by name. Raises ProtocolError: such a host is not linked."""
        for rank, name in hosts.items():
            if name not in self.host_link.names:
                hosts_of_job = ", ".join(self.host_link.names)
                raise ProtocolError(
                    f"rank {rank} on {name}, but the job's hosts are {hosts_of_job}"
                )
            host = self.host_link.names.index(name)
            if host == PRIMARY:
                self._host_of.pop(rank, None)
            else:
                self._host_of[rank] = host

    def drop(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks, on their hosts, and forget them."""
        for host, there in self._by_host(ranks).items():
            if host == PRIMARY:
                self.pool.drop(there)
            else:
                self.host_link.send(host, DROP, blob=msgspec.json.encode(there))

    def _by_host(self, ranks: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self._host_of.get(rank, PRIMARY), []).append(rank)
        return found

    def renew(self, ranks: Sequence[int]) -> None:
        """End the processes of these ranks and start others, on their hosts."""
        self._n_renewed += 1
        self._incarnations.update(dict.fromkeys(ranks, self._n_renewed))
        for host, there in self._by_host(ranks).items():
            if host == PRIMARY:
                self.pool.renew(there)
                self._pids.update(self.pool.pids)
            else:
                self._pids.update(dict.fromkeys(there, 0))
                said = msgspec.json.encode(RestartRanks(there, self._n_renewed))
                self.host_link.send(host, RENEW, blob=said)

    def start(
        self,
        draft: JobDraft,
        job: Job,
        run: RunSpec,
        placement: Placement,
        ranks: Sequence[int] | None = None,
    ) -> None:
        links = [(layer, at, where) for (layer, at), where in sorted(placement.links.items())]
        everyone = [*self._pids] if ranks is None else [*ranks]
        by_host = self._by_host(everyone)
        here = by_host.pop(PRIMARY, [])
        for host, there in by_host.items():
            layers = sorted(placement.layers.items())
            begin = StartRanks(run, links, layers, there, self.described)
            self.host_link.send(host, START, blob=msgspec.json.encode(begin))
        if here:
            self.pool.start(draft, job, run, placement, here)

    def events(self, timeout_s: float) -> Iterator[tuple[int, Any, list[int]]]:
        ends = time.monotonic() + timeout_s
        while True:
            found = False
            for event in self.pool.events(min(SLICE_S, max(timeout_s, 0.0))):
                found = True
                yield event
            while (heard := self.host_link.receive(0.0)) is not None:
                told = self._event(heard)
                if told is not None:
                    found = True
                    yield told
            if found or time.monotonic() >= ends:
                return

    def _event(self, heard: RemoteMessage) -> tuple[int, Any, list[int]] | None:
        is_late = heard.incarnation < self._incarnations.get(heard.rank, 0)
        if is_late and heard.topic in (SAID, EXIT):
            return None  # another process has its place
        if heard.topic == SAID:
            fds = [control.in_memory("horn-share", heard.memory)] if heard.memory else []
            return heard.rank, control.parsed(heard.blob), fds
        if heard.topic == EXIT:
            return heard.rank, int(heard.blob), []
        if heard.topic == PIDS:
            self._pids.update(msgspec.json.decode(heard.blob, type=dict[int, int]))
            return None
        raise ProtocolError(
            f"{self.host_link.names[heard.host]} says {heard.topic!r} to the primary host"
        )

    def tell(self, message: ControlMessage) -> None:
        self.host_link.tell(TELL, control.packed(message))
        self.pool.tell(message)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        found = self.pool.stacks(ranks)
        return {rank: found.get(rank, f"task {rank} is on another host") for rank in ranks}

    def stopped(self, ranks: Sequence[int]) -> list[int]:
        """Stopped tasks of this host; others' are not known."""
        return self.pool.stopped(ranks)

    def wait(self, timeout_s: float = 2.0) -> None:
        self.host_link.finish()
        self.host_link.tell(DONE)
        self.pool.wait(timeout_s)

    def stop(self) -> None:
        self.pool.stop()


def attend(
    pool: TaskPool,
    host_link: HostLink,
    job: Job,
    draft: JobDraft,
    change: Callable[[RunSpec], RunSpec],
    compare: Callable[[Mapping[str, Any]], None],
    is_over: threading.Event,
    on_ready: Callable[[], None],
) -> bool:
    """Run the task pool of a host other than the primary one, until that reports the end; False if
    ``is_over`` was set before. change : adapts a RunSpec of the primary host to this host. compare
    : raises an error if the primary host's description of the job is of another one. on_ready :
    called when this host's tasks train. Raises PeerLost: another host has gone.
    """
    host_link.send(PRIMARY, PIDS, blob=msgspec.json.encode(pool.pids))
    incarnations: dict[int, int] = {}
    ready: set[int] = set()
    while not is_over.is_set():
        for rank, said, descriptors in pool.events(SLICE_S):
            incarnation = incarnations.get(rank, 0)
            if isinstance(said, int):
                if not is_over.is_set():  # else it was ended, which is no failure
                    code = str(said).encode()
                    host_link.send(PRIMARY, EXIT, rank, code, incarnation=incarnation)
                continue
            try:
                memory = b"".join(map(control.content, descriptors))
            finally:
                for fd in descriptors:
                    os.close(fd)
            host_link.send(PRIMARY, SAID, rank, control.packed(said), memory, incarnation)
            if isinstance(said, control.GroupReady):
                ready.add(rank)
                if len(ready) == len(pool.pids):
                    on_ready()
        while (heard := host_link.receive(0.0)) is not None:
            if heard.topic == START:
                begin = msgspec.json.decode(heard.blob, type=StartRanks)
                compare(begin.job)
                links = {(layer, at): where for layer, at, where in begin.links}
                placement = Placement(links, dict(begin.layers))
                pool.start(draft, job, change(begin.run), placement, begin.ranks)
            elif heard.topic == RENEW:
                renew = msgspec.json.decode(heard.blob, type=RestartRanks)
                pool.renew(renew.ranks)
                incarnations.update(dict.fromkeys(renew.ranks, renew.incarnation))
                host_link.send(PRIMARY, PIDS, blob=msgspec.json.encode(pool.pids))
            elif heard.topic == DROP:
                pool.drop(msgspec.json.decode(heard.blob, type=list[int]))
            elif heard.topic == TELL:
                pool.tell(control.parsed(heard.blob))
            elif heard.topic == DONE:
                host_link.finish()
                pool.wait()
                return True
            else:
                raise ProtocolError(f"the primary host says {heard.topic!r}")
    return False
