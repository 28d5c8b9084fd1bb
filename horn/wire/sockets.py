"""Sockets of ZeroMQ to listen with and to connect: their limits, their keys, their addresses.

ZeroMQ's own settings are for ever and without bounds. Source: reference wire, item 8;
docs/notes/0020 and 0063.
"""

from __future__ import annotations

import errno
import os

import zmq

from horn.errors import JobError
from horn.wire.admission import Admission
from horn.wire.zap import ZAP_DOMAIN

LIMITS = {
    zmq.MAXMSGSIZE: 8 * 1024 * 1024,  # [no limit]
    zmq.HANDSHAKE_IVL: 5_000,  # [30,000]
    zmq.LINGER: 2_000,  # [for ever]
    zmq.SNDHWM: 16,  # [1000]
    zmq.RCVHWM: 16,  # [1000]
    zmq.IMMEDIATE: 1,  # [queue for a peer that was never there]
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 5_000,  # [no back-off]
    zmq.SNDTIMEO: 10_000,  # [for ever]
    zmq.RCVTIMEO: 10_000,
    # libzmq (4.3.5) sends a heartbeat also to a connection that broke while it was not read from,
    # and then aborts the process: "Assertion failed: !_io_error", its issue 4841. Somebody on the
    # wire can bring that about (tests/faults/forgers). So it sends none, and the kernel looks after
    # silent connections; whether a silent process lives is for a probe to find out.
    zmq.HEARTBEAT_IVL: 0,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 2,  # seconds
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 6_000,  # [15 minutes: how long what is sent may be without an answer]
}


def limited(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    """Make a socket with LIMITS, to listen at an address or to connect to it."""
    made = context.socket(kind)
    for option, value in LIMITS.items():
        made.set(option, value)
    made.set(zmq.IPV6, int("[" in address))
    return made


def router(
    context: zmq.Context[zmq.Socket[bytes]], bind_to: str, secret: bytes | None
) -> zmq.Socket[bytes]:
    """Make a ROUTER to listen with, with CURVE if there is a secret key."""
    made = limited(context, zmq.ROUTER, bind_to)
    made.set(zmq.IPC_FILTER_UID, os.geteuid())  # [any user who reads /proc/net/unix]
    made.set(zmq.ROUTER_MANDATORY, 1)  # [drops what it cannot send]
    if secret is not None:
        made.set(zmq.CURVE_SERVER, 1)
        made.set(zmq.CURVE_SECRETKEY, secret)
        made.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        made.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return made


def bind(socket: zmq.Socket[bytes], admission: Admission, bind_to: str) -> str:
    """Listen, and return the endpoint for others. Raises JobError."""
    try:
        socket.bind(bind_to)
    except zmq.ZMQError as error:
        why = str(error)
        if error.errno == errno.ENODEV:
            why = "its name has no address, or this machine has not that address; give another"
        raise JobError(f"cannot listen on {bind_to}: {why}") from error
    admission.bound()
    return bytes(socket.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
