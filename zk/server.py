"""The sockets: one asyncio loop, one protocol object per connection.

Each turn of the loop reads what has come, lets the service answer, writes the journal with one
fsync, and only then sends. The same turn serves every connection that was ready, so the fsync is
shared by all writers (group commit). The only file here that opens a socket. Loopback only unless
TLS is on, since sessions and passwords go over it in plain text (docs/security.md).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import logging
import math
import os
import resource
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from zk.errors import ServerError
from zk.log import Log
from zk.service import FOUR_LETTER_WORDS, Client, Service
from zk.sessions import Awake
from zk.wire import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

# A peer that has not sent its ConnectRequest by then is a stray socket.
HANDSHAKE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
# For an embedded server to read its data folder and to listen, and to end: a disk, or a name
# service, may never answer.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
# Turns of the loop from asyncio's accept to a started connection task. If the listener closes or
# the loop ends earlier, the accepted socket stays open: a task that has not begun closes nothing.
ACCEPT_TURNS = 4
# A client that reads nothing while events pile up is dropped here; one full frame is 1 MiB.
MAX_UNSENT_BYTES = 64 << 20
# A client's requests are not answered while so much of its answers is unsent: one of 30 bytes
# may have an answer of 1 MiB, and thousands of them come in one read.
MAX_AHEAD_BYTES = 1 << 20
# Standstills are logged so often at most, with their sum.
WARN_EVERY_S = 60.0
# Connections from one address (Apache's maxClientCnxns is 60, fewer than a host may have tasks);
# loopback is one address for a whole machine.
MAX_PER_ADDRESS, MAX_PER_LOOPBACK = 250, 1000
# Connections without a session, from one address; and the descriptors that connections leave to the
# process: without one it can write no snapshot.
MAX_WITHOUT_SESSION = 256
RESERVED = 256
# Accepted in one turn of the loop, before they are counted.
BACKLOG = 100


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Connection(asyncio.Protocol):
    """One socket: cuts the stream into frames."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._is_new = True
        self._is_paused = self._is_held = False
        self._is_secured = True  # received bytes may be read
        self.client = Client("")
        self.transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._admit(transport):
            transport.set_write_buffer_limits(high=1 << 20)

    def _admit(self, transport: asyncio.Transport) -> bool:
        """Count the connection; whether there is room for it."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.client = Client(peer[0] if peer else "")
        if not self._server.admit(self):
            transport.abort()
            return False
        self._deadline = self._server.loop.call_later(HANDSHAKE_TIMEOUT_S, self._late)
        return True

    async def secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake. The connection counts before: one that never comes costs that."""
        self._is_secured = False
        if not self._admit(transport):
            self.connection_lost(None)  # its protocol is not this one yet
            return
        loop = self._server.loop
        try:
            secured = await loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except (OSError, ssl.SSLError) as error:
            logger.debug("no TLS address=%s reason=%s", self.client.address, error)
            secured = None
        if secured is None:
            transport.abort()
            self.connection_lost(None)
            return
        if self.transport is None:  # it was lost meanwhile
            return
        self.transport, self._is_secured = secured, True
        secured.set_write_buffer_limits(high=1 << 20)
        data, self._buffer = bytes(self._buffer), bytearray()
        if data:  # it came along with the end of the handshake
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._server.leave(self)
        self.transport = None

    def _late(self) -> None:
        if self.transport is not None and self.client.session is None:
            self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # A client that does not read its answers is not read from, and its open requests wait.

    def pause_writing(self) -> None:
        self._is_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._go_on()

    def _go_on(self) -> None:
        if self.transport is None or self._is_paused:
            return
        self.transport.resume_reading()
        if self._is_held:
            self._is_held = False
            self._cut()
            self._server.settle()

    def data_received(self, data: bytes) -> None:
        if self.client.is_closing:
            return
        buffer = self._buffer
        if not self._is_secured:
            buffer += data
            return
        if not buffer and len(data) >= 4 and not self._is_new:
            # The common case: one whole frame, nothing kept.
            if int.from_bytes(data[:4], "big") == len(data) - 4 <= MAX_FRAME_BYTES:
                self._server.receive(self.client, data[4:])
                self._server.settle()
                return
        buffer += data
        if not self._is_held:
            self._cut()
            self._server.settle()

    def _cut(self) -> None:
        buffer, pos = self._buffer, 0
        while len(buffer) - pos >= 4 and not self.client.is_closing:
            if self._is_paused or self.client.n_unsent > MAX_AHEAD_BYTES:
                self._is_held = True
                if self.transport is not None:
                    self.transport.pause_reading()
                break
            head = bytes(buffer[pos : pos + 4])
            if self._is_new and head in FOUR_LETTER_WORDS:
                self.client.out.append(self._server.service.four_letter_word(head))
                self._server.drop(self.client)
                break
            size = int.from_bytes(head, "big", signed=True)
            if not 0 <= size <= MAX_FRAME_BYTES:
                logger.debug("frame refused address=%s length=%d", self.client.address, size)
                self._server.drop(self.client)
                break
            if len(buffer) - pos < 4 + size:
                break
            self._is_new = False
            self._server.receive(self.client, bytes(buffer[pos + 4 : pos + 4 + size]))
            pos += 4 + size
        del buffer[:pos]

    def flush(self) -> None:
        """Send the service's answers; close if it says so."""
        transport, client = self.transport, self.client
        client.n_unsent = 0
        if transport is None or transport.is_closing():
            # Not closed a second time: a TLS transport knows no buffer after that.
            client.out.clear()
            return
        if client.out:
            transport.write(client.out[0] if len(client.out) == 1 else b"".join(client.out))
            client.out.clear()
        if client.is_closing:
            transport.close()
            if transport.get_write_buffer_size():
                # Its last answer may never be read.
                self._cancel_deadline()
                self._deadline = self._server.loop.call_later(CLOSE_TIMEOUT_S, transport.abort)
        elif self._is_held and not self._is_paused:
            self._server.loop.call_soon(self._go_on)
        elif transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.warning("client dropped address=%s reason=reads_nothing", client.address)
            transport.abort()


class Securing(asyncio.Protocol):
    """A connection until its TLS handshake begins; asyncio tells of it only afterwards."""

    def __init__(self, server: Server, tls: ssl.SSLContext) -> None:
        self._server, self._tls = server, tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # until there is a protocol to read it
        self._server.secure(transport, self._tls)


class Server:
    """One listening socket and its service. warn_every_s : of standstills. Raises ServerError: the
    port is in use, it is not loopback without TLS, or the disk fails.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 2181,
        data_dir: str | os.PathLike[str] | None = None,
        tick_ms: int = 500,
        tls: ssl.SSLContext | None = None,
        tls_port: int | None = None,
        super_digest: str | None = None,
        warn_every_s: float = WARN_EVERY_S,
        is_open: bool = False,
    ) -> None:
        check_bind(host, has_tls=is_open or (tls is not None and tls_port is None))
        self.host, self.port, self.tls, self.tls_port = host, port, tls, tls_port
        self.service = Service(tick_ms, os.urandom, super_digest)
        self._awake = Awake(tick_ms, now_ms())
        self._warn_every_ms, self._warned_ms = warn_every_s * 1000, -math.inf
        self._told_still_ms = 0
        self._data_dir = data_dir
        self._log: Log | None = None
        self.loop: asyncio.AbstractEventLoop
        self._connections: dict[Client, Connection] = {}
        self._per_address: dict[str, int] = {}
        self._without_session: dict[str, set[Client]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._tick: asyncio.TimerHandle | None = None
        self._is_committing = False
        self.failure: ServerError | None = None
        self._done: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._done = self.loop.create_future()
        if self._data_dir is not None:
            self._log = Log(self._data_dir)
            service = self.service
            self._log.recover(service.tree, service.sessions, service.replay)
            self.service.sessions.touch_all(self._now())
        if self.tls is not None and self.tls_port is not None:
            self.port = await self._listen(self.port, None)
            self.tls_port = await self._listen(self.tls_port, self.tls)
        else:
            self.port = await self._listen(self.port, self.tls)
        self._schedule_tick()

    async def _listen(self, port: int, tls: ssl.SSLContext | None) -> int:
        try:
            listener = await self.loop.create_server(
                lambda: Connection(self) if tls is None else Securing(self, tls),
                self.host, port, backlog=BACKLOG,
            )  # fmt: skip
        except OSError as error:
            raise _cannot_listen(self.host, port, error) from error
        self._listeners.append(listener)
        chosen: int = listener.sockets[0].getsockname()[1]
        return chosen

    async def run(self) -> None:
        """Serve until ``stop``; raise the error that ended the server, if any."""
        assert self._done is not None
        await self._done
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def close(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        for listener in self._listeners:
            for waiting in listener.sockets:
                self.loop.remove_reader(waiting)
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections.values()):
            if connection.transport is not None:
                connection.transport.abort()
        while self._connections or self._handshakes:
            await asyncio.sleep(0)
        for listener in self._listeners:
            await listener.wait_closed()
        if self._log is not None:
            if self.failure is None and not self.service.journal:
                try:
                    self._log.seal()
                except ServerError as error:  # nothing is lost; the next start takes it for a crash
                    logger.warning("the log was closed without its end: %s", error)
            self._log.close()
            self._log = None

    # Connections.

    def secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Begin the TLS handshake of a new connection."""
        task = self.loop.create_task(Connection(self).secure(transport, tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def admit(self, connection: Connection) -> bool:
        address = connection.client.address
        count = self._per_address.get(address, 0) + 1
        self._per_address[address] = count
        self._connections[connection.client] = connection
        self.service.n_connections += 1
        new = self._without_session.setdefault(address, set())
        new.add(connection.client)
        if len(new) > MAX_WITHOUT_SESSION:
            new.difference_update([client for client in new if client.session is not None])
        limit = MAX_PER_LOOPBACK if _is_loopback(address) else MAX_PER_ADDRESS
        is_room = len(self._connections) <= most_connections()
        return is_room and count <= limit and len(new) <= MAX_WITHOUT_SESSION

    def leave(self, connection: Connection) -> None:
        client = connection.client
        if self._connections.pop(client, None) is None:
            return
        if (new := self._without_session.get(client.address)) is not None:
            new.discard(client)
            if not new:
                del self._without_session[client.address]
        self.service.n_connections -= 1
        self._per_address[client.address] -= 1
        if not self._per_address[client.address]:
            del self._per_address[client.address]
        self.service.disconnect(client)

    def receive(self, client: Client, payload: bytes) -> None:
        self.service.receive(client, payload, self._now(), wall_ms())

    def drop(self, client: Client) -> None:
        client.is_closing = True
        self.service.dirty[client] = None

    def settle(self) -> None:
        """Send answers: at once, or once the log has their changes."""
        if self._log is None:
            self.service.journal.clear()
            self._flush()
        elif self._is_committing:
            return
        elif self.service.journal:
            # One turn later: other requests of this turn share the fsync.
            self._is_committing = True
            self.loop.call_soon(self._commit)
        else:
            self._flush()

    def _commit(self) -> None:
        self._is_committing = False
        log, service = self._log, self.service
        if log is None or self.failure is not None:
            return
        try:
            log.append(service.journal)
            service.journal.clear()
            self._flush()
            if log.wants_snapshot(len(service.tree)):
                log.snapshot(service.tree, service.sessions)
        except ServerError as error:
            # Changes that could not be kept are not acknowledged: all connections are closed.
            self.failure = error
            self.stop()

    def _flush(self) -> None:
        dirty = self.service.dirty
        while dirty:
            client, _ = dirty.popitem()
            connection = self._connections.get(client)
            if connection is not None:
                connection.flush()

    def _now(self) -> int:
        return self._awake.look(now_ms())

    def _schedule_tick(self) -> None:
        tick_ms, now = self.service.sessions.tick_ms, self._now()
        self._tick = self.loop.call_later((tick_ms - now % tick_ms) / 1000, self._on_tick)

    def _on_tick(self) -> None:
        # Clients back after a standstill wait to be accepted: no session's time ran meanwhile.
        now = self._now()
        self._tell_of_standstills()
        self.service.tick(now, wall_ms())
        self.settle()
        self._schedule_tick()

    def _tell_of_standstills(self) -> None:
        still_ms = self._awake.still_ms - self._told_still_ms
        if still_ms > self.service.sessions.tick_ms and (
            now_ms() - self._warned_ms >= self._warn_every_ms
        ):
            self._warned_ms, self._told_still_ms = now_ms(), self._awake.still_ms
            logger.warning(
                "server stood still for %.1f s in all: stopped, no processor, or a slow disk; "
                "no session ends by that",
                self._awake.still_ms / 1000,
            )


def most_connections() -> int:
    """The limit for all addresses together; the other descriptors are for the process itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(soft - RESERVED, soft // 2)


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, has_tls: bool) -> None:
    """Refuse an address that is not loopback, unless TLS is on."""
    if not has_tls and not _is_loopback(host):
        raise ServerError(
            f"will not bind {host}: it is not loopback, and without TLS every password would cross "
            f"the network in clear. Give --tls-cert and --tls-key, or bind 127.0.0.1"
        )


def _hosts(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> ServerError:
    if error.errno == errno.EADDRINUSE:
        return ServerError(
            f"port {port} on {host} is in use; stop the other server, or take another port with "
            f"--port (0 lets the system choose)",
            exit_code=6,
        )
    return ServerError(f"cannot listen on {host}:{port}: {error.strerror or error}")


def make_tls(cert: str, key: str | None = None, ca: str | None = None) -> ssl.SSLContext:
    """Make a server's TLS settings from PEM files; with ``ca`` clients must show its certificates.
    Raises ServerError: a file cannot be read or used.
    """

    def no_password() -> str:  # OpenSSL would ask the terminal, and a server starts by itself
        raise ServerError(
            f"the private key in {key or cert} is encrypted; write it without a password:  "
            "umask 077; openssl pkey -in KEY -out PLAIN"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, no_password)
        if ca is not None:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        names = ", ".join(name for name in (cert, key, ca) if name)
        raise ServerError(f"cannot use {names} for TLS: {error.strerror or error}") from error
    return context


def serve(server: Server, on_ready: Callable[[str], None]) -> None:
    """Run a server in this thread until SIGINT or SIGTERM. ``on_ready`` gets "host:port"."""

    async def main() -> None:
        try:
            await server.start()
            for number in (signal.SIGINT, signal.SIGTERM):
                server.loop.add_signal_handler(number, server.stop)
            on_ready(_hosts(server.host, server.port))
            await server.run()
        finally:
            await server.close()

    asyncio.run(main())


class EmbeddedServer:
    """A server in a thread of this process, for tests and runs on one machine. It logs a standstill
    once.

    ``port`` 0 lets the system choose; after ``start`` it is the real one, and a later ``start``
    takes it again. ``data_dir`` None keeps everything in memory: another ``start`` begins without
    data, and earlier clients learn that their sessions are over. ``tick_ms`` is the unit of session
    expiry. ``is_open``: it may be reached from other hosts without TLS.

    Raises
    ------
    ServerError : from ``start``, when the port is in use, the data folder cannot be written, or the
    start takes too long.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        data_dir: str | os.PathLike[str] | None = None,
        tick_ms: int = 500,
        *,
        tls: ssl.SSLContext | None = None,
        super_digest: str | None = None,
        is_open: bool = False,
    ) -> None:
        self.host, self.port, self.data_dir, self.tick_ms = host, port, data_dir, tick_ms
        self._make = functools.partial(
            Server, host=host, data_dir=data_dir, tick_ms=tick_ms, tls=tls,
            super_digest=super_digest, warn_every_s=math.inf, is_open=is_open,
        )  # fmt: skip
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def hosts(self) -> str:
        """The address for clients: "host:port"."""
        return _hosts(self.host, self.port)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has neither been stopped nor ended by itself."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        if self._thread is not None:
            return self
        ready = threading.Event()
        self.error = None
        run = functools.partial(self._run, ready)
        self._thread = threading.Thread(target=run, name="zk-server", daemon=True)
        self._thread.start()
        if not ready.wait(START_TIMEOUT_S):
            self._thread = None
            where = self.host if self.data_dir is None else f"{self.host} or {self.data_dir}"
            raise ServerError(
                f"the server has not started in {START_TIMEOUT_S:g} s: {where} does not answer; "
                f"use a folder on a disk of this machine, and an address instead of a name"
            )
        if self.error is not None:
            self._thread.join()
            self._thread = None
            raise self.error
        return self

    def stop(self) -> None:
        """Close all connections and the port; with a data folder, acknowledged changes are kept."""
        if self._thread is None or self._server is None:
            return
        try:
            self._server.loop.call_soon_threadsafe(self._server.stop)
        except RuntimeError:
            pass  # the loop ended by itself
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.warning("server left behind: it has not ended in %g s", STOP_TIMEOUT_S)
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:  # the top of a thread: ``error`` is for the starter
            self.error = error
            if ready.is_set():  # else the starter raises it
                logger.error("server ended reason=%s", error)
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        server = self._make(port=self.port)
        if self._server is not None and self.data_dir is None:
            # Its data are forgotten, but not its zxid: else earlier clients, who know a
            # later zxid, would be hung up on for ever instead of learning that they are over.
            server.service.tree.zxid = self._server.service.tree.zxid
        try:
            await server.start()
            if threading.current_thread() is not self._thread:  # the starter has given up
                return
            self._server, self.port = server, server.port
            ready.set()
            await server.run()
        finally:
            await server.close()
