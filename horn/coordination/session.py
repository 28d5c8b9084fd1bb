"""One session with ZooKeeper.

A Session is one session from start to end. When the session is lost it says so once, as
``SessionExpired`` to subscribers and as SessionLost from every call, and never turns into another
session behind the caller's back; to go on, make a new one. The blocking calls are in ``nodes``, the
requests in ``kazoo_client``. Reads are repeated over a broken connection; a write that may or may
not have landed is looked up. Subscribers, watches and completions run in the connection's thread:
they must be short and neither wait nor send there. What they want to send, ``soon`` sends from
another thread. docs/notes/0098.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from horn.coordination.kazoo_client import CONNECTED, STOP_S, SUSPENDED, ZooKeeperClient
from horn.coordination.nodes import ANSWER_S, Nodes
from horn.coordination.paths import Paths
from horn.coordination.records import (
    ConnectionResumed,
    ConnectionSuspended,
    Event,
    Reply,
    SessionExpired,
)
from horn.errors import AccessDenied, JobError, NotFound, SessionLost, Unreachable
from horn.security.keys import Credential

logger = logging.getLogger(__name__)

CLOSED = "closed here"  # the reason of an orderly end
AWAKE_S = 2.0  # time after a standstill to learn whether the session is over


class Session(Nodes):
    """A session, its primitives and its events. Times in seconds.

    session_s : after which ZooKeeper gives up a silent client; the attribute is what the server
    granted. With a ``credential`` nodes have a digest ACL, for it and, if it is a job's, its owner.
    Without an answer for ``session_s`` the session counts as over, as another may have this place;
    or for ``silence_s``, if that is more and places are given only after a process has ended.
    Raises JobError: the hosts cannot be parsed, or their folder is missing. Unreachable,
    AccessDenied: at the start. SessionLost: from any call, once it is over.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_s: float = ANSWER_S,
        session_s: float = 10.0,
        credential: Credential | None = None,
        root: str = "/horn",
        silence_s: float = 0.0,
    ) -> None:
        hosts = ",".join(entry.strip() for entry in hosts.split(","))
        self.hosts, self.silence_s = hosts, silence_s
        self.paths = Paths(root)
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[Event], None]] = []
        self._session = 0
        self._over = ""  # why the session is over
        self._connected = threading.Event()
        self._timer: threading.Timer | None = None
        self._later: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._latecomer: threading.Thread | None = None  # runs the work of soon(), if any
        self._was_connected = False
        self._client = ZooKeeperClient(hosts, session_s, credential, self._on_state, self._end)
        self._start(timeout_s, credential)

    def _start(self, timeout_s: float, credential: Credential | None) -> None:
        started = time.monotonic()
        try:
            is_live = self._client.start(timeout_s)
            left_s = timeout_s - (time.monotonic() - started)
            if not (is_live and self._connected.wait(max(0.0, left_s))):
                why = self._client.why_unreachable()
                raise Unreachable(self.hosts, why, time.monotonic() - started)
            if credential is not None and credential.job:
                self._check_job(credential.job, timeout_s)
                return
            if self._client.chroot:
                self._check_chroot(self._client.chroot, timeout_s)
            self.ensure(self.paths.root)
            acl = self._client.acl
            if acl is not None and self._acl_of(self.paths.root, timeout_s) != acl:
                self._refuse_open(self.paths.root)
            self.children(self.paths.root)
        except BaseException:
            self.close()
            raise

    def _check_chroot(self, folder: str, timeout_s: float) -> None:
        self.sync("/", timeout_s)  # this server may not have heard of it yet
        if not self._query("exists", "/", timeout_s=timeout_s).value:
            raise JobError(
                f"ZooKeeper at {self.hosts} has no folder {folder}: make it, with  create "
                f"{folder}  in zkCli.sh, or leave it out of --zk and HORN_ZK"
            )

    def _check_job(self, job: str, timeout_s: float) -> None:
        """Check that a job's own folder exists and is the job's."""
        home = self.paths.groups(job)
        self.sync(home, timeout_s)  # this server may not have heard of the job yet
        acl = self._acl_of(home, timeout_s)
        if acl is None:
            raise NotFound(f"no job {job!r}")
        if any(entry.id.scheme != "digest" for entry in acl):
            self._refuse_open(home)

    def _acl_of(self, path: str, timeout_s: float) -> Any:
        """The ACL of a node, None without the node."""
        reply = self._query("get_acls", path, timeout_s=timeout_s)
        return None if reply.reason else reply.value[0]

    def _refuse_open(self, path: str) -> NoReturn:
        why = "it was made without this key, so others can write there"
        raise AccessDenied(self.hosts, path, f"{why}; remove it, or leave out the key")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Can be called again."""
        self._end(CLOSED)
        self._client.stop()
        with self._lock:
            latecomer = self._latecomer
        if latecomer not in (None, threading.current_thread()):
            latecomer.join(STOP_S)

    # Session state

    @property
    def session_s(self) -> float:
        """The time that the server has granted, in seconds."""
        return self._client.handler.session_s

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def session(self) -> int:
        """The session's id; it is the ``owner`` of this process's ephemeral nodes."""
        self.check()
        return self._session

    def check(self) -> None:
        """Raise SessionLost if the session is over."""
        if self._over:
            raise SessionLost(self.hosts, self._over)

    def subscribe(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``subscriber`` with each session event; returns the function that ends it."""
        with self._lock:
            self._subscribers.append(subscriber)
            over = self._over
        if over:
            subscriber(SessionExpired(over))

        def unsubscribe() -> None:
            with self._lock:
                if subscriber in self._subscribers:
                    self._subscribers.remove(subscriber)

        return unsubscribe

    def _tell(self, event: Event) -> None:
        level = logging.DEBUG if self._over == CLOSED else logging.INFO
        logger.log(level, "zookeeper session event=%s hosts=%s", event, self.hosts)
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber(event)

    def _on_state(self, state: str) -> None:
        if self._over:
            return
        handler = self._client.handler
        if state == CONNECTED:
            handler.note_answered(None)
            self._cancel_timer()
            first, self._was_connected = not self._was_connected, True
            self._session = self._client.session
            self._connected.set()
            if not first:
                self._tell(ConnectionResumed())
        elif state == SUSPENDED:
            self._connected.clear()
            # The server counts from what it heard last, not before the last that it answered was
            # sent; from then on, another may take over.
            silence_s = max(self.session_s, self.silence_s)
            ends = max(handler.answered_at + silence_s, handler.woke_at + AWAKE_S)
            left = max(0.0, ends - time.monotonic())
            self._timer = threading.Timer(left, self._end, (f"no answer for {silence_s:g} s",))
            self._timer.daemon = True
            self._timer.start()
            self._tell(ConnectionSuspended())
        else:
            self._end("ZooKeeper ended it")

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _end(self, reason: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = reason
        was_connected = self._connected.is_set()
        self._client.refuse_sessions()
        self._connected.set()  # wakes waiting threads, in which check() raises
        self._cancel_timer()
        self._later.put(None)
        self._tell(SessionExpired(reason))
        if reason != CLOSED or not was_connected:
            self._client.handler.hang_up()
        if reason != CLOSED:
            threading.Thread(target=self._client.stop, name="horn-zk-stop", daemon=True).start()

    # Requests

    def is_in_callback(self) -> bool:
        return self._client.is_in_callback()

    def soon(self, work: Callable[[], None]) -> None:
        """Run ``work`` soon, in order, in another thread, from which it may send; not if over."""
        with self._lock:
            if self._over:
                return
            if self._latecomer is None:
                run = self._do_later
                self._latecomer = threading.Thread(target=run, name="horn-zk-soon", daemon=True)
                self._latecomer.start()
        self._later.put(work)

    def _do_later(self) -> None:
        while (work := self._later.get()) is not None:
            if not self._over:
                self._client.handler.completion_queue.put(work)

    def wait_connected(self, timeout_s: float) -> None:
        """Wait for a connection; Unreachable if there is none in time."""
        if not self._connected.wait(max(0.0, timeout_s)):
            raise Unreachable(self.hosts, self._client.handler.failure or "no answer", timeout_s)
        self.check()

    def send(
        self, then: Callable[[Reply], None], request: str, path: str, *args: Any, **kwargs: Any
    ) -> None:
        """Send one of the requests of ``kazoo_client`` now, and call ``then`` in the connection's
        thread, in the order of answers and events. Only a failure may be told at once, in the
        caller's thread.

        With ``watch=``, for "exists", "get" and "get_children", that function is called once with
        "created", "deleted", "changed" or "children", or with "broken" when the watch went with the
        connection.
        """
        assert not self.is_in_callback(), "a callback must not send: let soon() do it"
        if self._over:
            then(Reply(reason="lost"))
            return

        def completed(reply: Reply) -> None:
            if reply.reason == "lost":
                self._end("ZooKeeper ended it")
            elif reply.reason == "broken" and self._over:
                reply = Reply(reason="lost")
            then(reply)

        self._client.send(completed, request, path, *args, **kwargs)
