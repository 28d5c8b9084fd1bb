"""``python -m zk``: one server in this process, until SIGINT or SIGTERM.

Prints "host:port" on stdout once it answers; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import logging
import ssl
import sys
from collections.abc import Callable

from zk.errors import LogError, ServerError
from zk.server import Server, make_tls, serve


def main(
    argv: list[str] | None = None,
    tls_for: Callable[[str], ssl.SSLContext | None] | None = None,
    epilog: str | None = None,
    program: str = "python -m zk",
) -> int:
    """Run a server; returns the exit code: 2 usage, 3 disk, 6 port or folder in use.
    ``tls_for`` : gives the TLS settings for an address without a certificate.
    """
    p = argparse.ArgumentParser(
        prog=program,
        description="An embedded ZooKeeper server in pure Python.",
        epilog=epilog,
    )
    p.add_argument("--port", type=int, default=2181, help="0 lets the system choose (2181)")
    p.add_argument("--bind", default="127.0.0.1", help="address; loopback unless TLS is on")
    p.add_argument("--data-dir", help="keep the data here; without it they are in memory only")
    p.add_argument("--tick-ms", type=int, default=500, help="unit of session timeouts (500)")
    p.add_argument("--tls-cert", help="certificate chain of this server, PEM")
    p.add_argument("--tls-key", help="its key, PEM; default: in the same file")
    p.add_argument("--tls-ca", help="ask clients for a certificate signed by this one, PEM")
    p.add_argument("--tls-port", type=int, help="a second port for TLS; --port stays plain")
    p.add_argument("--super-digest", help="super:<hash>: who shows this digest passes every ACL")
    args = p.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        ports = [args.port] if args.tls_port is None else [args.port, args.tls_port]
        if args.tick_ms < 1 or not all(0 <= port <= 65535 for port in ports):
            raise ServerError(
                "--tick-ms is at least 1, and --port and --tls-port are from 0 to 65535"
            )
        if args.bind.count(":") == 1 or "]:" in args.bind:
            raise ServerError(
                f"--bind {args.bind}: an address has no port here; give the port with --port"
            )
        if args.data_dir == "":  # as of a variable of the shell that is not set
            raise ServerError('--data-dir is "": name a folder; without it data are in memory')
        if args.tls_cert is None and (args.tls_key or args.tls_ca):
            raise ServerError("--tls-key and --tls-ca need the certificate: --tls-cert FILE")
        tls = make_tls(args.tls_cert, args.tls_key, args.tls_ca) if args.tls_cert else None
        if tls is None and tls_for is not None:
            tls = tls_for(args.bind)
        if tls is None and args.tls_port is not None:
            raise ServerError(
                "--tls-port needs a certificate: name its file with --tls-cert, or leave it out"
            )
        server = Server(
            host=args.bind, port=args.port, data_dir=args.data_dir, tick_ms=args.tick_ms,
            tls=tls, tls_port=args.tls_port, super_digest=args.super_digest,
        )  # fmt: skip
        serve(server, lambda hosts: print(hosts, flush=True))
    except (ServerError, LogError) as error:
        print(f"zk: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
