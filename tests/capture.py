"""What goes over a wire: ``python -m tests.capture DEVICE FILE`` writes all frames of a device.

Whole frames one after another, as AF_PACKET gives them. Prints ``ready`` when it listens.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
ETH_P_ALL = 3


def main(device: str, file: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: none may be missed
        wire.bind((device, 0))
        print("ready", flush=True)
        with open(file, "wb", buffering=0) as out:
            while True:
                out.write(wire.recv(65536))


if __name__ == "__main__":
    main(*sys.argv[1:3])
