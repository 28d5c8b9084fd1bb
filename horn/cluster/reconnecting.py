"""A client that lives as long as a job: it replaces a lost session by a new one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from horn.cluster.client import ClusterClient
from horn.errors import ClusterError
from horn.security.keys import Key

LOOK_S = 0.1  # between two looks at a job, and two tries for a session
AGAIN_S = 60.0  # of ZooKeeper's absence, at most
SESSIONS = 8  # at once, at most: ZooKeeper takes only so many (by default 60) from a host
T = TypeVar("T")


class ReconnectingClient:
    """A client of a cluster that survives lost sessions. hosts : of ZooKeeper, as
    host:port[,host:port]. Several threads may use it: actions at the same time have a session each,
    SESSIONS at most, so that a long one delays no other.
    """

    def __init__(self, hosts: str, key: Key | None) -> None:
        self.hosts, self.key = hosts, key
        self._idle: list[ClusterClient] = []
        self._was_there = False
        self._n_closed = 0  # calls of ``close``
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(SESSIONS)

    def once(self, action: Callable[[ClusterClient], T]) -> T:
        """Run an action that must not be repeated."""
        with self._places:
            return self._run(action)

    def _run(self, action: Callable[[ClusterClient], T]) -> T:
        with self._lock:
            client, n_closed = self._idle.pop() if self._idle else None, self._n_closed
        if client is None:
            client = ClusterClient(self.hosts, self.key).__enter__()
            self._was_there = True
        is_good = True
        try:
            return action(client)
        except ClusterError:
            is_good = False  # its session may be lost
            raise
        finally:
            with self._lock:
                is_kept = is_good and n_closed == self._n_closed
                if is_kept:
                    self._idle.append(client)
            if not is_kept:
                client.__exit__(None, None, None)

    def retry(self, action: Callable[[ClusterClient], T], stop: threading.Event | None = None) -> T:
        """Run an action that may be repeated, until a stop. Raises ClusterError: ZooKeeper was not
        there at the first use, or has not been there for AGAIN_S or when it was to stop.
        """
        stop = stop or threading.Event()
        since: float | None = None
        while True:
            try:
                return self.once(action)
            except ClusterError:
                now = time.monotonic()
                since = since or now
                if not self._was_there or now - since > AGAIN_S or stop.is_set():
                    raise
                stop.wait(LOOK_S)

    def close(self) -> None:
        """End all sessions, those of running actions with them."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._n_closed += 1
        for client in idle:
            client.__exit__(None, None, None)

    def __enter__(self) -> ReconnectingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
