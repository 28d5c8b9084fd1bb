"""horn zk: the embedded ZooKeeper server, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from horn.cli import _cluster
from horn.errors import JobError

if TYPE_CHECKING:
    import ssl

EPILOG = "With --key FILE, or HORN_KEY, it speaks TLS off loopback, with who has the cluster's key."


@click.command(
    add_help_option=False,
    short_help="Run the embedded ZooKeeper server.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@_cluster.key_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...], key_file: str | None) -> int:
    """Run the embedded ZooKeeper server until Ctrl-C. See horn zk --help for its own options."""
    from zk.__main__ import main

    def tls_for(address: str) -> ssl.SSLContext | None:
        from horn.security.tls import is_loopback, is_wanted, server_context

        key = _cluster.key_of(key_file)
        if not is_wanted(f"{address}:0") or (key is None and is_loopback(address)):
            return None
        if key is None:
            raise JobError(
                f"{address} can be reached from other hosts: the server speaks TLS there, by the "
                f"cluster's key; make one, horn keygen FILE, and give --key FILE, or set HORN_KEY"
            )
        return server_context(key)

    return main(list(args), tls_for, EPILOG, "horn zk")
