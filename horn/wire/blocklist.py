"""A blocklist: addresses whose packets do not reach a listening socket for a while.

Cutting a connection costs the kernel, libzmq and this process work, hundreds of times a second. So
the kernel drops the packets of an address: a classic BPF program on the socket (socket(7),
SO_ATTACH_FILTER), without privileges. Present connections go on; new ones retry after a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from typing import TypeAlias

MOST = 256  # addresses at once; connections of others are only cut
ATTACH, DETACH = 26, 27  # SO_ATTACH_FILTER, SO_DETACH_FILTER of asm-generic/socket.h
# linux/filter.h. Offsets from NETWORK on count from the beginning of the IP header.
NETWORK = 0x1_0000_0000 - 0x10_0000
LOAD_WORD, LOAD_BYTE, SHIFT_RIGHT, IF_EQUAL, JUMP, RETURN = 0x20, 0x30, 0x74, 0x15, 0x05, 0x06
VERSION, SOURCE_4, SOURCE_6 = NETWORK, NETWORK + 12, NETWORK + 8
DROP, PASS = (RETURN, 0, 0, 0), (RETURN, 0, 0, 0xFFFF_FFFF)
Step: TypeAlias = tuple[int, int, int, int]  # code, steps to skip if so, if not, a number


def program(addresses: Iterable[str]) -> list[Step]:
    """The BPF program that drops packets from these addresses and lets all others pass."""
    found = [_parsed(address) for address in addresses]
    plain: list[Step] = [(LOAD_WORD, 0, 0, SOURCE_4)]
    long: list[Step] = []
    for one in found:
        mapped = one.ipv4_mapped if isinstance(one, ipaddress.IPv6Address) else one
        if mapped is not None:  # IPv4 is IPv4 in a packet, whatever the socket calls it
            plain += [(IF_EQUAL, 0, 1, int(mapped)), DROP]
            continue
        for n, word in enumerate(struct.unpack("!4I", one.packed)):
            long += [(LOAD_WORD, 0, 0, SOURCE_6 + 4 * n), (IF_EQUAL, 0, 7 - 2 * n, word)]
        long.append(DROP)
    plain.append(PASS)
    begin: list[Step] = [(LOAD_BYTE, 0, 0, VERSION), (SHIFT_RIGHT, 0, 0, 4), (IF_EQUAL, 1, 0, 4),
                         (JUMP, 0, 0, len(plain))]  # fmt: skip
    return [*begin, *plain, *long, PASS]


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])  # without its scope


def _is_address(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


class Blocklist:
    """The blocklist of a listening socket, which may be closed by then. Times are the caller's."""

    def __init__(self, fd: int) -> None:
        self.listener = socket.socket(fileno=os.dup(fd))
        self._until: dict[str, float] = {}

    @property
    def is_any(self) -> bool:
        return bool(self._until)

    def __contains__(self, address: str) -> bool:
        return address in self._until

    def add(self, address: str, until: float) -> None:
        """Block an address until a time; other names are ignored."""
        is_new = address not in self._until
        if is_new and (len(self._until) >= MOST or not _is_address(address)):
            return
        self._until[address] = until
        if is_new:
            self._attach()

    def unblock_due(self, now: float) -> None:
        """Unblock addresses whose time is over."""
        over = [address for address, until in self._until.items() if until <= now]
        for address in over:
            del self._until[address]
        if over:
            self._attach()

    def _attach(self) -> None:
        with contextlib.suppress(OSError):  # no such filters here: connections are only cut
            if not self._until:
                self.listener.setsockopt(socket.SOL_SOCKET, DETACH, 0)
                return
            steps = program(self._until)
            packed = b"".join(struct.pack("=HBBI", *step) for step in steps)
            buffer = ctypes.create_string_buffer(packed, len(packed))
            head = struct.pack("@HP", len(steps), ctypes.addressof(buffer))  # struct sock_fprog
            self.listener.setsockopt(socket.SOL_SOCKET, ATTACH, head)

    def close(self) -> None:
        self.listener.close()
