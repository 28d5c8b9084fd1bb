"""Apache ZooKeeper servers for tests: one, or an ensemble of three (marker ``java``).

They come from Debian's package ``zookeeper``; each runs in its own folder under the temporary
directory, on ports that are held for it, and is killed at the end; on loopback, or on hosts of
``tests.hosts``. ``is_available()`` says whether this machine has them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.hosts import Host
from tests.late import LateWay

JAR = Path("/usr/share/java/zookeeper.jar")
# With it the server's warnings are in output.log; without it nothing is.
LOGGER_JAR = Path("/usr/share/java/slf4j-simple.jar")
# TLS needs it, and the manifest of Debian's zookeeper.jar forgets it.
CODEC_JAR = Path("/usr/share/java/netty-codec.jar")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
START_TIMEOUT_S = 60.0


def is_available() -> bool:
    return JAR.exists() and shutil.which("java") is not None


def free_ports(n: int, host: Host | None = None) -> list[int]:
    """Ports that the system chose; all held open together, so that no two are equal."""
    with contextlib.ExitStack() as stack:
        return held_ports(n, stack, host)


def held_ports(n: int, stack: contextlib.ExitStack, host: Host | None = None) -> list[int]:
    """Ports that the system chose and gives to nobody else until ``stack`` ends. Who asks for one
    of them by its number, and for SO_REUSEADDR, may listen there.
    """
    with _on(host):
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
    for s in sockets:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((_address(host), 0))
    return [s.getsockname()[1] for s in sockets]


def _on(host: Host | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if host is None else host.inside()


def _address(host: Host | None) -> str:
    return "127.0.0.1" if host is None else host.address


def four_letter_word(
    port: int, word: bytes, timeout_s: float = 5.0, host: Host | None = None, address: str = ""
) -> bytes:
    """A server's answer to a four-letter word; empty where nobody answers."""
    try:
        with _on(host):
            where = (address or _address(host), port)
            s = socket.create_connection(where, timeout=timeout_s)
        with s:
            s.sendall(word)
            parts = []
            while part := s.recv(65536):
                parts.append(part)
            return b"".join(parts)
    except OSError:
        return b""


class _Process:
    """One Java process with its folder."""

    def __init__(
        self,
        folder: Path,
        port: int,
        tick_ms: int,
        settings: list[str],
        properties: list[str],
        host: Host | None = None,
        tls: tuple[Path, int] | None = None,
    ) -> None:
        self.folder, self.port, self.host = folder, port, host
        (folder / "data").mkdir(parents=True, exist_ok=True)
        address = _address(host)
        if tls is not None:
            # Clients that come to this port speak TLS, those on loopback, such as ``says``, not.
            kept = (tls[0] / "zoo.cfg").read_text().replace("=2181\n", f"={port}\n")
            settings = [*settings, kept, f"secureClientPortAddress={address}"]
            port, address = tls[1], "127.0.0.1"
        self.asked = address, port
        self.config = folder / "zoo.cfg"
        self.config.write_text(
            "\n".join(
                [
                    f"tickTime={tick_ms}",
                    f"dataDir={folder / 'data'}",
                    f"clientPort={port}",
                    f"clientPortAddress={address}",
                    "maxClientCnxns=0",
                    "admin.enableServer=false",
                    "4lw.commands.whitelist=*",
                    *settings,
                    "",
                ]
            )
        )
        self.properties = properties
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        prefix = [] if self.host is None else self.host.command()
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    "java",
                    "-cp",
                    f"{JAR}:{LOGGER_JAR}:{CODEC_JAR}",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-Xmx256m",
                    "-Dfile.encoding=UTF-8",
                    "-Djava.awt.headless=true",
                    *self.properties,
                    MAIN,
                    str(self.config),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )

    def says(self, word: bytes) -> bytes:
        """Its answer to a four-letter word; empty where nobody answers."""
        address, port = self.asked
        return four_letter_word(port, word, host=self.host, address=address)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        pause = threading.Event()
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            if b"Mode:" in self.says(b"srvr"):
                return
            pause.wait(0.05)
        tail = (self.folder / "output.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(
            f"Apache ZooKeeper on port {self.port} is not up; its output ends:\n{tail}"
        )

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
            self.process.wait()
            self.process = None


class ApacheServer:
    """One Apache ZooKeeper, standalone.

    ``settings`` are lines for zoo.cfg, ``properties`` are -D options.
    """

    def __init__(
        self,
        port: int = 0,
        tick_ms: int = 500,
        settings: tuple[str, ...] = (),
        properties: tuple[str, ...] = (),
    ) -> None:
        self.port, self.tick_ms = port, tick_ms
        self.settings, self.properties = list(settings), list(properties)
        self._held = contextlib.ExitStack()
        self._folder: Path | None = None
        self._server: _Process | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._server is not None and self._server.process is not None
        return self._server.process.pid

    def start(self) -> Self:
        """Start, or start again on the same data and port after ``kill``."""
        if self._server is None:
            self.port = self.port or held_ports(1, self._held)[0]
            self._folder = Path(tempfile.mkdtemp(prefix="apache-zk-"))
            self._server = _Process(
                self._folder, self.port, self.tick_ms, self.settings, self.properties
            )
        try:
            self._server.start()
            self._server.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process, keep the data; ``start`` brings it back."""
        assert self._server is not None
        self._server.stop(number)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._held.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class ApacheEnsemble:
    """Three (or ``size``) Apache servers that elect a leader; one on each of ``on``, if given.

    ``kill(i)`` and ``restart(i)`` act on one. ``late_s`` : so late, in seconds, followers hear what
    their leader says; on loopback only. ``tls`` : what ``horn keygen --tls`` wrote; the
    servers then speak TLS, to clients and among themselves, as it says.
    """

    def __init__(
        self,
        size: int = 3,
        tick_ms: int = 500,
        on: Sequence[Host] = (),
        tls: Path | None = None,
        late_s: float = 0.0,
    ) -> None:
        self.size, self.tick_ms, self.tls, self.late_s = len(on) or size, tick_ms, tls, late_s
        self.places: list[Host | None] = list(on) or [None] * size
        self.ports: list[int] = []
        self._held = contextlib.ExitStack()
        self._folder: Path | None = None
        self._servers: list[_Process] = []

    @property
    def hosts(self) -> str:
        pairs = zip(self.places, self.ports, strict=True)
        return ",".join(f"{_address(place)}:{port}" for place, port in pairs)

    def start(self) -> Self:
        if self.places[0] is None:
            free = held_ports(4 * self.size, self._held)  # no two equal: they share an address
            ports = [free[i :: self.size] for i in range(self.size)]
        else:
            ports = [held_ports(4, self._held, place) for place in self.places]
        self.ports = [port for port, *_ in ports]
        self._folder = Path(tempfile.mkdtemp(prefix="apache-zk-"))
        own = [port for _, port, _, _ in ports]
        others = own
        if self.late_s:
            ways = [self._held.enter_context(LateWay(port, self.late_s)) for port in own]
            others = [way.port for way in ways]
        votes = [port for _, _, port, _ in ports]
        try:
            for i, (place, (port, _, _, plain)) in enumerate(zip(self.places, ports, strict=True)):
                peers = [
                    f"server.{j + 1}={_address(self.places[j])}:{own[j] if j == i else others[j]}"
                    f":{votes[j]}"
                    for j in range(self.size)
                ]
                settings = ["initLimit=20", "syncLimit=10", *peers]
                folder = self._folder / str(i + 1)
                tls = None if self.tls is None else (self.tls, plain)
                server = _Process(folder, port, self.tick_ms, settings, [], place, tls)
                (server.folder / "data" / "myid").write_text(str(i + 1))
                self._servers.append(server)
                server.start()
            for server in self._servers:
                server.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        self._servers[index].stop(number)

    def pid(self, index: int) -> int:
        process = self._servers[index].process
        assert process is not None
        return process.pid

    def restart(self, index: int) -> None:
        self._servers[index].start()
        self._servers[index].wait_ready()

    def leader(self) -> int:
        """The index of the server that leads now, or -1."""
        for i, server in enumerate(self._servers):
            if b"Mode: leader" in server.says(b"srvr"):
                return i
        return -1

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
        self._servers = []
        self._held.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
