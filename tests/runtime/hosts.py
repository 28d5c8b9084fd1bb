"""Two hosts on this machine: network namespaces joined by a veth pair of 1 Gbit/s."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RATE = "1gbit"


@dataclass(frozen=True)
class Host:
    """A namespace, its address, and its end of the cable."""

    namespace: str
    address: str
    device: str

    def command(self, *words: str) -> list[str]:
        """A command line that runs there."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def sent_bytes(self) -> int:
        """What the cable's end has sent, headers included."""
        where = f"/sys/class/net/{self.device}/statistics/tx_bytes"
        done = subprocess.run(self.command("cat", where), capture_output=True, check=True)
        return int(done.stdout)


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here; install iproute2"
    name = f"horn-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts, gone afterwards with everything in them."""
    stem = f"horn{os.getpid() % 100_000}"
    hosts = tuple(Host(f"{stem}-{n}", f"10.77.0.{n + 1}", f"{stem}v{n}") for n in range(2))
    made: list[Host] = []
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            made.append(host)
        a, b = hosts
        _ip("link", "add", a.device, "netns", a.namespace, "type", "veth",
            "peer", "name", b.device, "netns", b.namespace)  # fmt: skip
        for host in hosts:
            inside = ("-n", host.namespace)
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", host.device)
            _ip(*inside, "link", "set", host.device, "up")
            _ip(*inside, "link", "set", "lo", "up")
            shape = ("qdisc", "add", "dev", host.device, "root", "tbf")
            limits = ("rate", RATE, "burst", "256kb", "latency", "50ms")
            subprocess.run(["tc", *inside, *shape, *limits], check=True, capture_output=True)
        yield a, b
    finally:
        for host in made:
            _ip("netns", "del", host.namespace)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def in_folder() -> Path:
    """The root of the checkout, to run modules of tests from."""
    return Path(__file__).resolve().parents[2]
