"""Somebody without a key who opens connections, says nothing by them, and keeps them.

    python -m tests.faults.half_open ADDRESS N HOST:PORT...

opens N from ADDRESS, to each of the endpoints in turn, and then says how many the kernel has taken;
those that were hung up on are opened again, until its input ends.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

AT_ONCE = 100  # between two looks at what was hung up on
STRANGER = "127.0.0.2"
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def strangers(n: int, *endpoints: str, address: str = STRANGER) -> Iterator[None]:
    """So many connections are open, or opened again, while this lasts."""
    words = [endpoint.removeprefix("tcp://") for endpoint in endpoints]
    made = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.half_open", address, str(n), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert made.stdin is not None and made.stdout is not None
    try:
        assert int(made.stdout.readline()) >= n
        yield
    finally:
        made.stdin.close()
        made.wait(30)
        made.stdout.close()


def knock(source: str, endpoint: tuple[str, int]) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.bind((source, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect(endpoint)
    return made


def main(source: str, number: str, *endpoints: str) -> None:
    n_wanted = int(number)
    ports = deque((host, int(port)) for host, _, port in (e.rpartition(":") for e in endpoints))
    held: dict[int, socket.socket] = {}
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    n_tried, is_told = 0, False
    while True:
        for _ in range(AT_ONCE):
            if len(held) >= n_wanted or n_tried >= 4 * n_wanted:
                break
            ports.rotate()
            try:
                made = knock(source, ports[0])
            except OSError as error:
                if error.errno not in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAGAIN):
                    raise
                continue  # nobody listens there any more
            n_tried += 1
            held[made.fileno()] = made
            poll.register(made, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
        if not is_told and n_tried >= n_wanted:
            is_told = True
            print(n_tried, flush=True)
        for fd, _ in poll.poll(20):
            if fd == sys.stdin.fileno():
                return
            poll.unregister(fd)
            held.pop(fd).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
