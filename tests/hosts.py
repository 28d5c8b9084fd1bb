"""Several hosts on this machine: network namespaces, joined by a host link in one of its own.

    with hosts(3) as net:
        net.hosts[0].run(sys.executable, "-m", ...)
        net.cut(net.hosts[0])

Cables are veth pairs with a rate (tbf). What is cut is dropped at the switch, without a word to
either end; delay and loss are made by ``tests.tap``, since not every kernel has netem. Everything
in the namespaces ends with them, and what a killed run left goes when the next one starts: names
carry the pid and the start of who made them. Needs root, ``ip`` and ``tc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent  # to run modules of tests from
RATE = "1gbit"
STEM = "horn-net"
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Host:
    """A namespace with one address."""

    number: int
    namespace: str
    address: str
    device: str = "eth0"

    def command(self, *words: str) -> list[str]:
        """A command line that runs there."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def run(self, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end, at most a minute; what it says is text."""
        how = {"capture_output": True, "text": True, "timeout": 60, "cwd": ROOT} | how
        return subprocess.run(self.command(*words), **how)

    def start(self, *words: str, **how: Any) -> subprocess.Popen[Any]:
        """Start a command there. The caller ends it; if not, it ends with the namespace."""
        return subprocess.Popen(self.command(*words), **({"cwd": ROOT} | how))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread opens, and threads that it starts, is there."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(here)
        finally:
            os.close(here)
            os.close(there)

    def pids(self) -> list[int]:
        """The processes there."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True)
        return [int(pid) for pid in done.stdout.split()]

    def ports(self, *, only_loopback: bool | None = None) -> list[int]:
        """TCP ports that somebody listens on there; of one kind, if told which."""
        found = set()
        for line in self.run("ss", "-Hltn").stdout.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            is_loopback = address.strip("[]") in ("127.0.0.1", "::1")
            if only_loopback is None or is_loopback is only_loopback:
                found.add(int(port))
        return sorted(found)

    def sent_bytes(self) -> int:
        """What its end of the cable has sent, headers included."""
        where = f"/sys/class/net/{self.device}/statistics/tx_bytes"
        return int(self.run("cat", where, check=True).stdout)


class Network:
    """Hosts at a switch, and what may go wrong between them. Faults add up until ``heal``."""

    def __init__(self, n_hosts: int, rate: str = RATE) -> None:
        stem = f"{STEM}-{os.getpid()}-{_start_of(os.getpid())}-{_serial()}"
        self.switch = f"{stem}-s"
        self.hosts = [Host(n, f"{stem}-{n}", f"10.77.0.{n + 1}") for n in range(n_hosts)]
        self._made: list[str] = []
        self._taps: list[subprocess.Popen[bytes]] = []
        self._n_filters = 0
        try:
            self._build(rate)
        except BaseException:
            self.close()
            raise

    def _build(self, rate: str) -> None:
        self._make(self.switch)
        self._switch("ip", "link", "add", "br0", "type", "bridge")
        self._switch("ip", "link", "set", "br0", "up")
        # A tap that nobody reads drops what comes.
        self._switch("ip", "tuntap", "add", "hole", "mode", "tap")
        self._switch("ip", "link", "set", "hole", "up")
        for host in self.hosts:
            self._make(host.namespace)
            port = f"p{host.number}"
            self._switch("ip", "link", "add", port, "type", "veth",
                         "peer", "name", host.device, "netns", host.namespace)  # fmt: skip
            self._switch("ip", "link", "set", port, "master", "br0", "up")
            self._switch("tc", "qdisc", "add", "dev", port, "clsact")
            inside = ["ip", "-n", host.namespace]
            _call(*inside, "addr", "add", f"{host.address}/24", "dev", host.device)
            _call(*inside, "link", "set", host.device, "up")
            _call(*inside, "link", "set", "lo", "up")
            self._shape(host, "add", rate)

    def _make(self, namespace: str) -> None:
        _call("ip", "netns", "add", namespace)
        self._made.append(namespace)

    def _switch(self, *words: str) -> None:
        _call("ip", "netns", "exec", self.switch, *words)

    # faults

    def rate(self, rate: str, hosts: Sequence[Host] = ()) -> None:
        """The speed of cables in both directions, as tc writes it."""
        for host in hosts or self.hosts:
            self._shape(host, "replace", rate)

    def _shape(self, host: Host, verb: str, rate: str) -> None:
        burst = "256kb" if rate.endswith("gbit") else "32kb"
        limits = ["root", "tbf", "rate", rate, "burst", burst, "latency", "100ms"]
        _call("tc", "-n", host.namespace, "qdisc", verb, "dev", host.device, *limits)
        _call("tc", "-n", self.switch, "qdisc", verb, "dev", f"p{host.number}", *limits)

    def cut(
        self,
        a: Host,
        b: Host | None = None,
        *,
        one_way: bool = False,
        ports: Sequence[int] = (),
    ) -> None:
        """Drop what goes between two hosts, or between ``a`` and all others. ``one_way``: only from
        ``a``. ``ports``: only TCP from or to these.
        """
        others = [b] if b is not None else [host for host in self.hosts if host is not a]
        for other in others:
            self._divert(a, other, "hole", ports)
            if not one_way:
                self._divert(other, a, "hole", ports)

    def _divert(self, src: Host, dst: Host, device: str, ports: Sequence[int] = ()) -> None:
        """What goes from one host to another goes out at ``device`` instead."""
        kinds: list[list[str]] = [[]]
        if ports:
            tcp = ["match", "ip", "protocol", "6", "0xff"]
            kinds = [
                [*tcp, "match", "ip", which, str(port), "0xffff"]
                for port in ports
                for which in ("sport", "dport")
            ]
        for kind in kinds:
            # What is added last is looked at first.
            self._n_filters += 1
            self._switch(
                "tc", "filter", "add", "dev", f"p{src.number}", "ingress",
                "pref", str(20_000 - self._n_filters), "protocol", "ip",
                "u32", "match", "ip", "dst", f"{dst.address}/32", *kind,
                "action", "mirred", "egress", "redirect", "dev", device,
            )  # fmt: skip

    def slow(
        self, delay_ms: float, jitter_ms: float = 0.0, loss: float = 0.0, seed: int = 0
    ) -> None:
        """Every packet between hosts waits ``delay_ms`` +- ``jitter_ms``, so that some overtake
        others, or is lost with probability ``loss``.
        """
        device = f"tap{len(self._taps)}"
        self._switch("ip", "tuntap", "add", device, "mode", "tap")
        self._switch("ip", "link", "set", device, "master", "br0", "up")
        self._switch("bridge", "link", "set", "dev", device, "learning", "off", "flood", "off",
                     "mcast_flood", "off", "bcast_flood", "off")  # fmt: skip
        words = [sys.executable, "-m", "tests.tap", device, *map(str, (delay_ms, jitter_ms))]
        relay = subprocess.Popen(
            ["ip", "netns", "exec", self.switch, *words, str(loss), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        self._taps.append(relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n", "tests.tap did not start"
        for host in self.hosts:
            # What a diverted frame comes from must not be learned where the relay puts it in.
            there = f"/sys/class/net/{host.device}/address"
            mac = host.run("cat", there, check=True).stdout.strip()
            self._switch("bridge", "fdb", "replace", mac, "dev", f"p{host.number}",
                         "master", "static")  # fmt: skip
            for other in self.hosts:
                if other is not host:
                    self._divert(host, other, device)

    def heal(self) -> None:
        """All as at the start, but for rates."""
        for host in self.hosts:
            self._switch("tc", "filter", "del", "dev", f"p{host.number}", "ingress")
        for relay in self._taps:
            _end(relay)

    def unplug(self, host: Host) -> None:
        """Pull the cable out: both ends notice."""
        self._switch("ip", "link", "set", f"p{host.number}", "down")

    def plug(self, host: Host) -> None:
        """Put it back, and wait until the switch forwards again."""
        port = f"p{host.number}"
        self._switch("ip", "link", "set", port, "up")
        deadline = time.monotonic() + 10.0
        pause = threading.Event()
        show = ["ip", "netns", "exec", self.switch, "bridge", "link", "show", "dev", port]
        while "state forwarding" not in (
            seen := subprocess.run(show, capture_output=True, text=True).stdout
        ):
            assert time.monotonic() < deadline, f"{port} does not forward after 10 s: {seen}"
            pause.wait(0.02)

    def break_connections(self, host: Host) -> None:
        """End all TCP connections to other hosts; both ends get an error."""
        others = [other for other in self.hosts if other is not host]
        where = " or ".join(f"dst {other.address}" for other in others)
        host.run("ss", "-K", f"( {where} )", check=True)

    # the end

    def close(self) -> None:
        for relay in self._taps:
            _end(relay)
        for namespace in self._made:
            _remove(namespace)
        self._made = []


@contextlib.contextmanager
def hosts(n_hosts: int, rate: str = RATE) -> Iterator[Network]:
    """So many hosts, gone afterwards with everything in them."""
    sweep()
    network = Network(n_hosts, rate)
    try:
        yield network
    finally:
        network.close()


@functools.cache
def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "ss", "bridge") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here; install iproute2"
    try:
        with hosts(2) as net:
            net.cut(net.hosts[0], ports=[1])
    except AssertionError as error:
        return f"no network namespaces with a switch here: {error}"
    return ""


def sweep() -> None:
    """Remove what killed runs have left."""
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        name = line.split()[0]
        if name.startswith(f"{STEM}-"):
            pid, start = name.removeprefix(f"{STEM}-").split("-")[:2]
            if _start_of(int(pid)) != int(start):
                _remove(name)


def _remove(namespace: str) -> None:
    """A namespace and the processes in it, which would keep it."""
    deadline = time.monotonic() + 10.0
    pause = threading.Event()
    while time.monotonic() < deadline:
        done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        if not done.stdout.split():
            break
        for pid in map(int, done.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pause.wait(0.02)
    done = subprocess.run(["ip", "netns", "del", namespace], capture_output=True, text=True)
    # What a killed run left may be removed by two at once.
    is_gone = not Path(f"/run/netns/{namespace}").exists()
    assert done.returncode == 0 or is_gone, f"{namespace}: {done.stderr.strip()}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


def _start_of(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return -1


_n_networks = 0


def _serial() -> int:
    global _n_networks
    _n_networks += 1
    return _n_networks
