"""The connection to one peer over ZeroMQ, which is made anew when it breaks.

Each time there is a new DEALER with a new name; what the old one held is dropped, and
unacknowledged frames are sent again. A peer is lost when nobody listens there, its process is
silent, or the connection cannot be made in time. Source: docs/notes/0063.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Callable
from contextlib import ExitStack

import zmq

from horn._kernels import sockets
from horn.wire.probe import Probe, ProbeResult

logger = logging.getLogger(__name__)

SILENCE_S = 6.0  # a process without a greeting for so long is stopped or cut off
DOUBT_S = 2.0  # between two probes whether it lives
MEND_S = 10.0  # for a connection to be made anew
RETRY_S = 0.1
HANDSHAKE_FAILED = (
    "the handshake failed: it has another key, has gone, or has as many connections as it takes"
)
# For a connection that is made anew: all tries are within that time.
MENDING = {zmq.RECONNECT_IVL_MAX: 500, zmq.CONNECT_TIMEOUT: 1_000, zmq.HANDSHAKE_IVL: 2_000}
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


_numbers = itertools.count(1)


def monitor_of(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Make the socket from which these events of ``socket`` are read. It holds any number of them:
    if it were full libzmq would wait, with a lock that the end of the monitor needs.
    """
    endpoint = f"inproc://monitor-{next(_numbers)}"  # pyzmq's names are used again
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    try:
        monitor.set(zmq.RCVHWM, 0)
        monitor.set(zmq.LINGER, 0)
        socket.monitor(endpoint, events)
        monitor.connect(endpoint)
    except BaseException:
        monitor.close()
        raise
    return monitor


def event_of(monitor: zmq.Socket[bytes], flags: int = zmq.NOBLOCK) -> tuple[int, int]:
    """Read a monitor's event: which it is, and the descriptor of its connection or listener, if it
    has one. pyzmq's reader imports asyncio, a twentieth of a task's start.
    """
    event, fd = struct.unpack("=Hi", monitor.recv_multipart(flags)[0])
    return event, fd


class PeerConnection:
    """The connection to ``endpoint``; ``dial`` makes its n-th DEALER. dealer, outlet, monitor : the
    present ones. is_open : takes frames. lost : why the peer is lost, for good.
    """

    def __init__(self, endpoint: str, dial: Callable[[int], zmq.Socket[bytes]]) -> None:
        self.endpoint, self.dial = endpoint, dial
        self.n_dials = self.n_mended = 0
        self.is_up = False  # the handshake is done
        self.is_open = True  # at first ZeroMQ itself takes nothing before there is a connection
        self.lost = ""
        self._broke_s: float | None = None  # when, until it is mended
        self._probe: Probe | None = None
        self._probed_s = 0.0
        self._retired: list[sockets.Socket] = []  # ZeroMQ may still read what they sent
        self._dial()

    def _dial(self) -> None:
        """Connect anew; what this end had before stays if that fails. Raises zmq.ZMQError."""
        with ExitStack() as stack:  # a socket that stays open would hold up the context's end
            dealer = stack.enter_context(self.dial(self.n_dials))
            monitor = stack.enter_context(monitor_of(dealer, EVENTS))
            stack.callback(dealer.disable_monitor)
            dealer.connect(self.endpoint)
            stack.pop_all()
        self.dealer, self.monitor = dealer, monitor
        self.outlet = sockets.Socket(dealer.underlying)
        self.n_dials += 1
        self.is_up = False

    @property
    def probe_fd(self) -> int | None:
        """The file descriptor of a probe that has no answer yet."""
        return None if self._probe is None else self._probe.fd

    def check(self, now_s: float) -> bool:
        """Check the connection; whether it broke, so that unacknowledged frames are sent again."""
        if self.lost:
            return False
        broke = False
        while not self.lost and self.monitor.poll(0):
            event, _ = event_of(self.monitor)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_up = self.is_open = True
                if self._broke_s is not None:
                    self.n_mended += 1
                    logger.warning("event=mended endpoint=%s after_s=%.2f", self.endpoint,
                                   now_s - self._broke_s)  # fmt: skip
                self._broke_s = None
                self._stop_probe()
            elif event == zmq.EVENT_DISCONNECTED and self.is_up:
                self._break(now_s)
                broke = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or self.n_dials == 1:
                self._lose(HANDSHAKE_FAILED)
            # else ZeroMQ tries again
        self._judge(now_s)
        self._retired = [outlet for outlet in self._retired if not outlet.settle()]
        return broke

    def doubt(self, now_s: float) -> None:
        """Probe whether the process of a silent connection is there."""
        if not self.lost and self._probe is None and now_s - self._probed_s > DOUBT_S:
            self._start_probe(now_s)

    def _break(self, now_s: float) -> None:
        self.is_open = False
        dealer, monitor, outlet = self.dealer, self.monitor, self.outlet
        try:
            self._dial()
        except zmq.ZMQError as error:
            self._lose(f"its connection broke and cannot be made anew: {error}")
            return
        self._retired.append(outlet)
        _hang_up(dealer, monitor, 0)
        self._broke_s = now_s if self._broke_s is None else self._broke_s
        if self._probe is None:  # else how long it has been silent goes on to count
            self._start_probe(now_s)

    def _judge(self, now_s: float) -> None:
        if self._probe is not None:
            match self._probe.poll(now_s):
                case ProbeResult.REFUSED:
                    self._lose("its connection broke: killed, crashed or cut off")
                case ProbeResult.GREETED:
                    self._stop_probe()
                case ProbeResult.NONE if now_s - self._probe.began_s > SILENCE_S:
                    self._lose(f"silent for {SILENCE_S:g} s: stopped or cut off")
        elif self._broke_s is not None and now_s - self._probed_s > RETRY_S:
            self._start_probe(now_s)  # it may end while its connection is made anew
        if self._broke_s is not None and now_s - self._broke_s > MEND_S:
            self._lose(f"its connection broke and could not be made anew within {MEND_S:g} s")

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.is_open = False
        self._stop_probe()

    def _start_probe(self, now_s: float) -> None:
        self._probe, self._probed_s = Probe(self.endpoint, now_s), now_s

    def _stop_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def close(self, linger_ms: int) -> None:
        self._stop_probe()
        _hang_up(self.dealer, self.monitor, 0 if self.lost else linger_ms)

    def settle(self) -> None:
        """Release sent buffers, after the context has ended."""
        for outlet in (*self._retired, self.outlet):
            outlet.settle()


def _hang_up(dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes], linger_ms: int) -> None:
    dealer.disable_monitor()
    monitor.close(0)
    dealer.close(linger_ms)
