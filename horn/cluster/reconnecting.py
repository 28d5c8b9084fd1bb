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
T = TypeVar("T")


class ReconnectingClient:
    """A client of a cluster that survives lost sessions; several threads may use it. hosts : of
    ZooKeeper, as host:port[,host:port].
    """

    def __init__(self, hosts: str, key: Key | None) -> None:
        self.hosts, self.key = hosts, key
        self._client: ClusterClient | None = None
        self._was_there = False
        self._lock = threading.RLock()

    def once(self, action: Callable[[ClusterClient], T]) -> T:
        """Run an action that must not be repeated."""
        with self._lock:
            if self._client is None:
                self._client = ClusterClient(self.hosts, self.key).__enter__()
                self._was_there = True
            return action(self._client)

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
                self.close()
                stop.wait(LOOK_S)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.__exit__(None, None, None)

    def __enter__(self) -> ReconnectingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
