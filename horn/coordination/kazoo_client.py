"""kazoo as a session needs it: the only file that imports it.

``ZooKeeperClient`` sends requests and converts their answers; it keeps one session, which may lose
its connection and find another, and never begins a second one. Its handler takes the place of
kazoo's: everything runs in one thread, where replies are read. docs/notes/0098.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.exceptions import WriterNotClosedException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id, Permissions

from horn.coordination.records import Check, Create, Delete, Put, Reply, Step, Znode
from horn.errors import JobError
from horn.host_names import NameLookup
from horn.security.keys import Credential
from horn.security.tls import context_of

logger = logging.getLogger(__name__)
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.addHandler(logging.NullHandler())  # horn reports the same as errors or events
# It writes each request at level DEBUG, the password of the digest in clear among them.
_kazoo_logger.addFilter(lambda record: "auth" not in record.getMessage().lower())
REPEAT_S = 60.0  # between two equal lines of kazoo
_said: dict[str, float] = {}  # when, by the text; few at a time


def _is_news(record: logging.LogRecord) -> bool:
    """Whether kazoo has not just said the same, as it does at each try without ZooKeeper. Where it
    connects to it says without TLS, which is not its own but horn's.
    """
    if str(record.msg).startswith("Connecting to "):
        return False
    if record.levelno < logging.INFO:
        return True
    for text, at in _said.copy().items():  # other sessions' threads add to it meanwhile
        if not 0 <= record.created - at < REPEAT_S:
            _said.pop(text, None)
    return _said.setdefault(record.getMessage(), record.created) == record.created


_kazoo_logger.addFilter(_is_news)

CONNECTED, SUSPENDED = KazooState.CONNECTED, KazooState.SUSPENDED  # any other state: lost
# X.509 errors: a self-signed certificate, alone or in its chain, or an unknown issuer.
UNKNOWN_AUTHORITY = (18, 19, 20, 21)
# Errors of a TLS handshake with a server without TLS; ours hangs up.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
# What a server does that takes connections, in words.
SILENT = (
    "it accepts connections but does not answer: if it speaks TLS, give the cluster's key, "
    "--key FILE or HORN_KEY, and no --zk-tls off; or its ensemble has no quorum, most servers "
    "being down or cut off:  echo srvr | nc HOST PORT  tells of each"
)
SILENT_TLS = (
    "it ends encrypted connections without a word: its ensemble has no quorum, most servers being "
    "down or cut off (zkServer.sh status tells, on the host of each), or its certificates are of "
    "another key, or none"
)
STILL_S = 0.5  # a wait that ends so late ended while this process, or its machine, stood still
OVERDUE = 1 / 2  # part of a session without an answer; then another connection is made
STOP_S = 10.0  # for a thread of a session to end
CONNECT_S = 2.0  # at most this long for one TCP connection, so that a dead host costs no session

REASONS = {
    zk.NoNodeError: "missing",
    zk.NodeExistsError: "exists",
    zk.BadVersionError: "version",
    zk.NotEmptyError: "children",
    zk.NoAuthError: "access",
    zk.AuthFailedError: "access",
}


class ZooKeeperClient:
    """A client of ``hosts``, for one session. Times in seconds.

    on_state : is called with CONNECTED, SUSPENDED, or another word when the session is over; fail :
    with the reason why this client cannot go on; both in the connection's thread. ``acl`` : of the
    nodes that it makes. Raises JobError: the hosts cannot be parsed.
    """

    def __init__(
        self,
        hosts: str,
        session_s: float,
        credential: Credential | None,
        on_state: Callable[[str], None],
        fail: Callable[[str], None],
    ) -> None:
        self.hosts = hosts
        trust = None if credential is None else credential.tls
        context = None if trust is None else context_of(trust)
        self.handler = _Handler(session_s, fail, context)
        self.acl: list[ACL] | None = None
        auth = None
        if credential is not None:
            auth = [("digest", credential.text)]
            who = credential.owner or credential.id
            self.acl = [ACL(Permissions.ALL, Id("digest", who))]
            if credential.job:
                self.acl.append(_use(credential.id))
        try:
            self.kazoo = KazooClient(
                hosts, timeout=session_s, handler=self.handler, default_acl=self.acl,
                auth_data=auth, logger=_kazoo_logger,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5),
            )  # fmt: skip
            for host, _ in self.kazoo.hosts:
                _check_name(host)
        except ValueError as error:
            raise JobError(
                f"ZooKeeper hosts {hosts!r}: {error}; write host:port[,host:port][/folder]"
            ) from error
        self.handler.connect_s = min(session_s / 3 / len(self.kazoo.hosts), CONNECT_S)
        self.kazoo.add_listener(on_state)
        self._hear_the_connection()

    def _hear_the_connection(self) -> None:
        """Take over what kazoo keeps to itself: the time that the server grants, and when that
        which it answers was sent.
        """
        connection, handler = self.kazoo._connection, self.handler
        connect, submit, read = connection._connect, connection._submit, connection._read_header

        def connect_and_learn(*args: Any) -> tuple[float, float]:
            read_ms, connect_ms = connect(*args)
            handler.session_s = read_ms * 1.5 / 1000  # it waits 2/3 of the time for an answer
            return read_ms, connect_ms

        def submit_and_note(request: Any, timeout: float, xid: int | None = None) -> None:
            handler.note_sent(xid)
            submit(request, timeout, xid)

        def read_and_note(timeout: float) -> Any:
            found = read(timeout)
            handler.note_answered(found[0].xid)
            return found

        connection._connect = connect_and_learn
        connection._submit, connection._read_header = submit_and_note, read_and_note

    def start(self, timeout_s: float) -> bool:
        """Connect; whether a connection was made in time."""
        return bool(self.kazoo.start_async().wait(timeout_s))

    def refuse_sessions(self) -> None:
        """Open no other session from here on."""
        self.handler.ended = True

    def stop(self) -> None:
        """End the session and its connection. Can be called again."""
        with self.handler.stopping:
            try:
                self.kazoo.stop()
                self.kazoo.close()
            except WriterNotClosedException:  # its thread hangs, say in a resolver of names
                logger.warning("a connection to ZooKeeper is left behind hosts=%s", self.hosts)

    @property
    def session(self) -> int:
        """The id of the session; only while there is a connection."""
        return int(self.kazoo.client_id[0])

    @property
    def chroot(self) -> str:
        """The folder that is a part of the hosts, "" if none is."""
        return str(self.kazoo.chroot)

    def is_in_callback(self) -> bool:
        return threading.current_thread() in self.handler.threads

    def why_unreachable(self) -> str:
        """What came of each host, in words; once if it is the same of all."""
        hosts = sorted(set(self.kazoo.hosts), key=self.kazoo.hosts.index)
        found: dict[str, list[str]] = {}
        for host, port in hosts:
            found.setdefault(self._why_not(host, port), []).append(f"{host}:{port}")
        if len(found) == 1:
            return next(iter(found))
        return "; ".join(f"{', '.join(several)}: {why}" for why, several in found.items())

    def _why_not(self, host: str, port: int) -> str:
        tried = self.handler.tried
        if (host, port) not in tried:
            try:
                found = NameLookup(host, port).answer(CONNECT_S)
            except OSError:
                return f"no address for the name {host!r}"
            if found is None:
                return (
                    f"no answer about the name {host!r} for {CONNECT_S:g} s from the servers of "
                    f"/etc/resolv.conf; write its address instead"
                )
            self.handler.has_tried.wait(CONNECT_S)
        silent = SILENT if self.handler.context is None else SILENT_TLS
        why = tried.get((host, port), "not tried yet")
        return why or self.handler.alerts.get((host, port), silent)

    def send(
        self, then: Callable[[Reply], None], request: str, path: str, *args: Any, **kwargs: Any
    ) -> None:
        """As ``Session.send``; the reason is "broken" or "lost" as kazoo has it."""
        if "watch" in kwargs:
            watch = kwargs["watch"]
            kwargs["watch"] = lambda event: watch(_WORDS[event.type])
        convert = REQUESTS[request]

        def completed(result: Any) -> None:
            try:
                value = result.get_nowait()
            except zk.ConnectionLoss:
                then(Reply(reason="broken"))
            except (zk.SessionExpiredError, zk.ConnectionClosedError):
                then(Reply(reason="lost"))
            except zk.KazooException as error:
                then(Reply(reason=_reason(error)))
            else:
                then(convert(value))

        with self.handler.order:  # else the answer could be told here, out of its order
            if request == "commit":
                result = self._transaction(*args).commit_async()
            elif request == "create":
                result = self.kazoo.create_async(path, *args, include_data=True, **kwargs)
            else:
                result = getattr(self.kazoo, f"{request}_async")(path, *args, **kwargs)
            result.rawlink(completed)

    def _transaction(self, steps: Sequence[Step]) -> Any:
        transaction = self.kazoo.transaction()
        for step in steps:
            match step:
                case Create(path, data, ephemeral, sequence, guest):
                    acl = [*self.acl, _use(guest)] if self.acl and guest else None
                    transaction.create(path, data, acl, ephemeral, sequence)
                case Put(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with one thread instead of three: callbacks run where the reply is read.

    Also: waits by poll(2) instead of a fresh epoll per wait, notes when was sent what the server
    answered last, gives up a connection on which an answer is overdue (to kazoo requests are as
    good as pings, so a busy client would never notice), and refuses to connect once the session is
    over, so that kazoo cannot start another.
    """

    def __init__(
        self, session_s: float, fail: Callable[[str], None], context: ssl.SSLContext | None
    ) -> None:
        super().__init__()
        self.session_s = session_s  # what the server has granted, once it has
        self.context = context
        if context is not None:
            context.sslsocket_class = _Encrypted
        self.completion_queue = _Inline(fail)
        self.stopping = threading.Lock()
        self.order = threading.RLock()
        self.connect_s = 1.0
        self.answered_at, self.woke_at = time.monotonic(), 0.0  # when the last answered was sent
        self._sent_at: dict[int | None, float] = {}  # what has no answer, by xid; None: connect
        self._asked_at: float | None = None  # since when a request has no answer
        self.failure = ""
        # By host and port, in words: what came of the last connection, "" if it was made; and why
        # the server then refused this end.
        self.tried: dict[tuple[str, int], str] = {}
        self.alerts: dict[tuple[str, int], str] = {}
        self.has_tried = threading.Event()
        self.ended = False
        self._wake_fds: set[int] = set()
        self._connection: Any = None
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = _Thread(target=func, args=args, kwargs=kwargs, daemon=True, name="horn-zk")
        self.threads.append(thread)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def create_socket_pair(self) -> Any:
        wake = _Wake()
        self._wake_fds = {wake.fileno()}
        return wake, wake

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        """Connect, with a TLS handshake if asked for; kazoo's own leaks a failed connection."""
        if self.ended:
            raise ConnectionRefusedError("the session is over")
        place = hostname, address[1]
        try:
            connection = socket.create_connection(address, min(timeout, self.connect_s))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                with contextlib.closing(connection):  # wrapping takes its descriptor away
                    connection = self.context.wrap_socket(connection, server_hostname=hostname)
                if isinstance(connection, _Encrypted):
                    connection.on_alert = partial(self.alerts.__setitem__, place)
        except OSError as error:
            self.failure = self.tried[place] = _words(error)
            self.has_tried.set()
            raise
        self.tried[place] = ""
        self.has_tried.set()
        self.failure, self._connection, self._asked_at = "", connection, None
        self._sent_at.clear()  # what an earlier connection has taken along
        return connection

    def note_sent(self, xid: int | None) -> None:
        """Note that a request is sent now; of several pings without an answer the first counts."""
        self._sent_at.setdefault(xid, time.monotonic())

    def note_answered(self, xid: int | None) -> None:
        """Note that a request was answered; an event of a watch has the xid of none."""
        self.answered_at = max(self.answered_at, self._sent_at.pop(xid, 0.0))

    def hang_up(self) -> None:
        """End the connection from this side, so that no call waits for its answer."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)

    def select(
        self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poll = select.poll()
        readers, writers = {s.fileno(): s for s in rlist}, {s.fileno(): s for s in wlist}
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd in writers:
            poll.register(fd, select.POLLOUT)
        # What came with the frame before lies in the TLS layer, where poll does not see it.
        held = {fd for fd, s in readers.items() if isinstance(s, ssl.SSLSocket) and s.pending()}
        while True:
            now = time.monotonic()
            if writers and self._asked_at is None:
                self._asked_at = now
            overdue_at, wait_s = None, timeout
            if self._asked_at is not None and self._connection in rlist:
                overdue_at = self._asked_at + self.session_s * OVERDUE
                left = max(0.0, overdue_at - now)
                wait_s = left if wait_s is None else min(wait_s, left)
            ready = poll.poll(0 if held else None if wait_s is None else wait_s * 1000)
            if ready or held or wait_s is None or time.monotonic() - now - wait_s < STILL_S:
                break
            # This process stood still, maybe the server with it: neither is late by that.
            self.woke_at = time.monotonic()
            if self._asked_at is not None:
                self._asked_at = self.woke_at
        with self.order:  # the sender has set where the answer goes
            found = sorted(held.union(fd for fd, _ in ready))
        if any(fd in readers and fd not in self._wake_fds for fd in found):
            self._asked_at = None
        elif overdue_at is not None and time.monotonic() >= overdue_at:
            raise TimeoutError("no answer")
        return (
            [readers[fd] for fd in found if fd in readers],
            [writers[fd] for fd in found if fd in writers],
            [],
        )


class _Encrypted(ssl.SSLSocket):
    """A connection that tells ``on_alert`` why the server refuses this end's certificate: with
    TLS 1.3 that comes after the handshake, and kazoo takes it for an end like any other.
    """

    on_alert: Callable[[str], None]

    def recv(self, *given: Any) -> bytes:
        try:
            return super().recv(*given)
        except ssl.SSLError as error:
            if "_ALERT_" in (error.reason or ""):
                self.on_alert(_words(error))
            raise


class _Wake:
    """Replaces kazoo's socket pair, which wakes the connection's thread by a byte per request.
    Linux holds 278 of them, then senders wait, with a lock that the reader needs; a counter is
    never full.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._lock = threading.Lock()  # so that no thread writes to a reused descriptor

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        with self._lock:
            os.eventfd_write(self._fd, len(data))  # OSError once it is closed
        return len(data)

    def recv(self, n_bytes: int) -> bytes:
        os.eventfd_read(self._fd)  # BlockingIOError if there is none, as a socket has it
        return b"\0"

    def close(self) -> None:
        """Close the descriptor once: kazoo closes both ends."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Thread(threading.Thread):
    """A thread whose join has a deadline, unlike kazoo's: resolving a name may take long."""

    def join(self, timeout: float | None = None) -> None:
        super().join(STOP_S if timeout is None else timeout)


class _Inline:
    """Replaces kazoo's completion queue: runs each item at once."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail

    def put(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # top of kazoo's thread: a bug here must not go unseen
            logger.exception("a callback failed")
            self.fail(f"a callback failed: {error!r}")


_WORDS = {
    EventType.CREATED: "created",
    EventType.DELETED: "deleted",
    EventType.CHANGED: "changed",
    EventType.CHILD: "children",
    EventType.NONE: "broken",
}


def _check_name(host: str) -> None:
    """Check that a resolver takes the name. Raises ValueError."""
    try:
        host.encode("idna")
    except UnicodeError:
        problem = "each part between its dots has 1 to 63 characters"
        raise ValueError(f"{host!r} is no name of a host ({problem})") from None


def _use(who: str) -> ACL:
    """An ACL with all permissions but ADMIN."""
    return ACL(Permissions.ALL & ~Permissions.ADMIN, Id("digest", who))


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        of_another = (
            "; it is of another key, or another authority, than what --key or --zk-tls names"
        )
        is_unknown = error.verify_code in UNKNOWN_AUTHORITY
        return f"its certificate is refused: {error.verify_message}{of_another * is_unknown}"
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return (
            "it speaks no TLS there, or has hung up; Apache's gets certificates of the cluster's "
            "key from  horn keygen --tls ; --zk-tls off accepts a password in clear"
        )
    if isinstance(error, ssl.SSLError) and "_ALERT_" in (error.reason or ""):
        said = error.reason.rpartition("_ALERT_")[2].replace("_", " ").lower()
        return (
            f"it refuses this end's certificate ({said}): that is of another key, or another "
            f"authority, than the server's, or is not valid any more, or there is none"
        )
    return (error.strerror or str(error) or "no answer").lower()


def _node(answer: tuple[bytes, Any]) -> Znode:
    data, stat = answer
    return Znode(
        data, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.numChildren,
        stat.ctime / 1000,
    )  # fmt: skip


def _reason(error: Exception) -> str:
    return REASONS.get(type(error), type(error).__name__)


def _judge(answers: list[Any]) -> Reply:
    """A transaction's answers as a Reply: kazoo returns errors, it does not raise them."""
    rolled_back = (zk.RolledBackError, zk.RuntimeInconsistency)
    for step, answer in enumerate(answers):
        if isinstance(answer, Exception) and not isinstance(answer, rolled_back):
            return Reply(reason=_reason(answer), step=step)
    return Reply(answers)


# The requests of ``send``, and how their answers are converted.
REQUESTS: dict[str, Callable[[Any], Reply]] = {
    "exists": lambda stat: Reply(stat is not None),
    "get": lambda answer: Reply(_node(answer)),
    "get_children": Reply,
    "get_acls": Reply,
    "sync": Reply,
    "create": lambda answer: Reply(_node((b"", answer[1]))),
    "set": lambda stat: Reply(stat.mzxid),
    "delete": Reply,
    "commit": _judge,
}
