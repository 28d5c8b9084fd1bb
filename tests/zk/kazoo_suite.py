"""Run kazoo's own test suite against the embedded server, or against Apache's.

    python tests/zk/kazoo_suite.py [--python PYTHON] [--server horn|apache|both] [--runs N]

PYTHON is an interpreter with: kazoo pytest pytest-timeout pyjks "pyopenssl<24" objgraph gevent
eventlet. ``both`` interleaves the two servers and compares their times. The run passes when every
test of kazoo-passes-on-apache-3.8.0.txt passes; LEFT_OUT says which are not run, and why.

The file is also the pytest plugin of that run (``-p kazoo_suite``): it replaces kazoo's cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PASSES = Path(__file__).with_name("kazoo-passes-on-apache-3.8.0.txt")
JAR = ":".join(
    f"/usr/share/java/{name}.jar" for name in ("zookeeper", "netty-codec", "netty-resolver")
)
RUN_TIMEOUT_S = 900

RECONFIG = "the embedded server is one server: no dynamic configuration (reconfig answers -123)"
READ_ONLY = "read-only mode needs an ensemble that has lost its majority"
SASL = "SASL is left out: DIGEST-MD5 is historic (RFC 6331), GSSAPI needs a Kerberos realm"
LEFT_OUT = {
    "kazoo/tests/test_client.py::TestClient::test_update_host_list": RECONFIG,
    "kazoo/tests/test_eventlet_handler.py::TestEventletClient::test_update_host_list": RECONFIG,
    "kazoo/tests/test_gevent_handler.py::TestGeventClient::test_update_host_list": RECONFIG,
    "kazoo/tests/test_client.py::TestReconfig::test_add_remove_observer": RECONFIG,
    "kazoo/tests/test_client.py::TestReconfig::test_bad_input": RECONFIG,
    "kazoo/tests/test_client.py::TestReconfig::test_no_super_auth": RECONFIG,
    "kazoo/tests/test_connection.py::TestReadOnlyMode::test_read_only": READ_ONLY,
    "kazoo/tests/test_sasl.py::TestLegacySASLDigestAuthentication::test_connect_sasl_auth": SASL,
    "kazoo/tests/test_sasl.py::TestLegacySASLDigestAuthentication::test_invalid_sasl_auth": SASL,
    "kazoo/tests/test_sasl.py::TestSASLDigestAuthentication::test_connect_sasl_auth": SASL,
    "kazoo/tests/test_sasl.py::TestSASLDigestAuthentication::test_invalid_sasl_auth": SASL,
    "kazoo/tests/test_sasl.py::TestSASLGSSAPIAuthentication::test_connect_gssapi_auth": SASL,
    "kazoo/tests/test_sasl.py::TestSASLGSSAPIAuthentication::test_invalid_gssapi_auth": SASL,
}


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


# The plugin half: imported by pytest in the other interpreter.


class HornServer:
    """One ``python -m zk`` with the face of kazoo's ManagedZooKeeper."""

    def __init__(self, ssl_configuration: dict[str, Any]) -> None:
        self.client_port, self.secure_client_port = free_ports(2)
        self.address = f"127.0.0.1:{self.client_port}"
        self.secure_address = f"127.0.0.1:{self.secure_client_port}"
        self._ssl = ssl_configuration
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def run(self) -> None:
        if self._process is not None:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="horn-zk-")
            self._write_certificates(Path(self._folder.name))
        folder = self._folder.name
        command = [sys.executable, "-m", "zk"]
        command += ["--port", str(self.client_port), "--data-dir", f"{folder}/data"]
        command += ["--tick-ms", "2000", "--tls-port", str(self.secure_client_port)]
        command += ["--tls-cert", f"{folder}/server.pem", "--tls-ca", f"{folder}/ca.pem"]
        command += ["--super-digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU="]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the embedded server did not start")

    def _write_certificates(self, folder: Path) -> None:
        from OpenSSL import crypto

        server = crypto.dump_certificate(crypto.FILETYPE_PEM, self._ssl["server_cert"])
        key = crypto.dump_privatekey(crypto.FILETYPE_PEM, self._ssl["server_key"])
        (folder / "server.pem").write_bytes(key + server)
        (folder / "ca.pem").write_bytes(self._ssl["ca_cert_pem"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate()
            self._process = None

    def destroy(self) -> None:
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class ClusterClient:
    """One server with the face of kazoo's ZookeeperCluster."""

    def __init__(self) -> None:
        from kazoo.testing.common import ZookeeperCluster

        certificates = ZookeeperCluster(size=0)
        self.get_ssl_client_configuration = certificates.get_ssl_client_configuration
        self._servers = [HornServer(certificates._ssl_configuration)]

    def __getitem__(self, index: int) -> HornServer:
        return self._servers[index]

    def __iter__(self) -> Any:
        return iter(self._servers)

    def start(self) -> None:
        for server in self:
            server.run()

    def terminate(self) -> None:
        for server in self:
            server.destroy()

    def get_logs(self) -> list[str]:
        return []


def pytest_configure(config: Any) -> None:
    import atexit

    from kazoo.testing import harness

    if os.environ["KAZOO_SUITE_SERVER"] == "horn":
        cluster: Any = ClusterClient()
    else:
        from kazoo.testing.common import ZookeeperCluster

        digest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="
        cluster = ZookeeperCluster(
            size=1,
            classpath=JAR,
            port_offset=min(free_ports(1)[0], 60000),
            configuration_entries=["4lw.commands.whitelist=*", "reconfigEnabled=true"],
            java_system_properties=[
                f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest}"
            ],
        )
    atexit.register(cluster.terminate)
    harness.get_global_cluster = lambda: cluster


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Take out what is left out; ids begin with a path that depends on the interpreter."""
    tails = {name.rsplit("/", 1)[1] for name in LEFT_OUT}
    taken = [item for item in items if item.nodeid.rsplit("/", 1)[-1] in tails]
    config.hook.pytest_deselected(items=taken)
    items[:] = [item for item in items if item not in taken]


# The script half.


def run_once(python: str, server: str, extra: list[str]) -> tuple[set[str], float]:
    """Ids that passed, and the seconds it took."""
    environment = {
        **os.environ,
        "KAZOO_SUITE_SERVER": server,
        "ZOOKEEPER_VERSION": "3.8.0",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    with tempfile.TemporaryDirectory(prefix="kazoo-suite-") as folder:
        command = [python, "-m", "pytest", "-p", "kazoo_suite", "-p", "no:cacheprovider"]
        command += ["--timeout=120", "-v", "--tb=short", f"--rootdir={folder}"]
        command += ["--pyargs", "kazoo.tests"]
        start = time.monotonic()
        done = subprocess.run(
            [*command, *extra],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
        seconds = time.monotonic() - start
    pattern = re.compile(r"(?:kazoo/tests/)?(test_\w+\.py::\S+) PASSED")
    passed = {f"kazoo/tests/{name}" for name in pattern.findall(done.stdout)}
    if done.returncode != 0:
        print(done.stdout[-20000:], file=sys.stderr)
    return passed, seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="interpreter with kazoo's needs")
    parser.add_argument("--server", choices=["horn", "apache", "both"], default="horn")
    parser.add_argument("--runs", type=int, default=1)
    args, extra = parser.parse_known_args(argv)
    wanted = set(PASSES.read_text().split())
    servers = ["apache", "horn"] if args.server == "both" else [args.server]
    is_good = True
    for number in range(1, args.runs + 1):
        seconds: dict[str, float] = {}
        for server in servers:
            passed, seconds[server] = run_once(args.python, server, extra)
            missing = wanted - passed
            print(
                f"run {number} {server}: {len(wanted - missing)} of {len(wanted)} passed, "
                f"and {len(passed - wanted)} more, in {seconds[server]:.1f} s",
                flush=True,
            )
            for name in sorted(missing):
                print(f"  did not pass: {name}")
            is_good = is_good and not missing
        if len(seconds) == 2:
            ratio = seconds["horn"] / seconds["apache"]
            print(f"run {number}: {ratio:.2f} of Apache's time", flush=True)
            is_good = is_good and ratio <= 1.3
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
