"""Delay and lose packets: ``python -m tests.tap DEVICE DELAY_MS JITTER_MS LOSS SEED``.

Reads frames from a tap device and writes them back to it when they are due: whoever diverts
frames there, and has a host link behind it, has a slow network. Prints ``ready`` when it reads.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
PR_SET_PDEATHSIG = 1
MAX_WAITING = 20_000  # frames; as with a real queue, more are lost


def main(device: str, delay_s: float, jitter_s: float, loss: float, seed: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    draw = random.Random(seed)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    waiting: list[tuple[float, int, bytes]] = []
    n_frames = 0
    print("ready", flush=True)
    while True:
        wait_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        if select.select([tap], [], [], wait_s)[0]:
            now = time.monotonic()
            try:
                while True:
                    frame = os.read(tap, 65_536)
                    if draw.random() >= loss and len(waiting) < MAX_WAITING:
                        due = now + delay_s + draw.uniform(-jitter_s, jitter_s)
                        n_frames += 1
                        heapq.heappush(waiting, (due, n_frames, frame))
            except BlockingIOError:
                pass
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            try:
                os.write(tap, heapq.heappop(waiting)[2])
            except OSError:
                pass  # the device is down or full: the frame is lost


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[2:5]]
    main(sys.argv[1], numbers[0] / 1000, numbers[1] / 1000, numbers[2], int(sys.argv[5]))
