"""Tasks on several hosts: ``tcp://host:port``, port 0 for any.

Off loopback there must be a key: what listens where others can reach it is encrypted and knows its
clients, or it does not start.
"""

from __future__ import annotations

from horn.security.tls import listening
from horn.transport import Identity
from horn.transport._zeromq import ZeroMq


class Tcp(ZeroMq):
    """ZeroMQ over TCP."""

    scheme = "tcp"
    default_url = link_url = "tcp://127.0.0.1:0"
    crosses_hosts = True
    fds_per_peer = 6
    latency_s, bytes_per_s = 110e-6, 1.0e9

    def __init__(self, url: str, identity: Identity) -> None:
        host, port = listening(url, identity.key is not None)
        super().__init__(url, identity, f"tcp://{host}:{port}")


TRANSPORT = Tcp
