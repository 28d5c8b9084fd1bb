"""horn keygen: the key of a cluster, and certificates of it for a ZooKeeper that is not horn's."""

from __future__ import annotations

import os
from pathlib import Path

import click

from horn.atomic_write import atomic_write
from horn.errors import JobError

SETTINGS = """\
# TLS with the certificates that horn keygen --tls made. Add this to zoo.cfg, take clientPort out,
# and put the files where it says; who has the cluster's key gets in.
secureClientPort=2181
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.clientAuth=need
ssl.keyStore.location={folder}/zookeeper.pem
ssl.keyStore.type=PEM
ssl.trustStore.location={folder}/authority.pem
ssl.trustStore.type=PEM
# The servers of an ensemble among themselves; one alone does not mind.
sslQuorum=true
ssl.quorum.hostnameVerification=false
ssl.quorum.keyStore.location={folder}/zookeeper.pem
ssl.quorum.keyStore.type=PEM
ssl.quorum.trustStore.location={folder}/authority.pem
ssl.quorum.trustStore.type=PEM
"""


@click.command(short_help="Make the key of a cluster.")
@click.argument("path", type=click.Path(dir_okay=False))
@click.option("--tls", "folder", metavar="DIR", type=click.Path(file_okay=False),
              help="Write certificates of the key for an Apache ZooKeeper into DIR, and what its "
              "zoo.cfg needs; of the key in PATH, if it is there.")  # fmt: skip
def command(path: str, folder: str | None) -> None:
    """Make a new key in the file PATH (mode 0600) and print its fingerprint.

    Every worker and whoever submits needs a copy: --key FILE, or HORN_KEY=FILE. A key is never
    overwritten; a new one is a new file. horn's own ZooKeeper needs no certificates, only the key.
    """
    from horn.security.keys import Key, generate

    key = Key.from_file(path) if folder is not None and os.path.lexists(path) else generate(path)
    if folder is not None:
        from horn.security.certificates import CertificateAuthority

        own = CertificateAuthority(key).trust("server")
        try:
            os.makedirs(folder, exist_ok=True)
            settings = SETTINGS.format(folder=os.path.abspath(folder))
            for name, text, mode in (
                ("authority.pem", own.authority, 0o644),
                ("zookeeper.pem", own.identity, 0o600),
                ("zoo.cfg", settings, 0o644),
            ):
                with atomic_write(Path(folder, name), mode=mode) as file:
                    file.write(text.encode())
        except OSError as error:
            raise JobError(f"{error.filename or folder} cannot be written: {error}") from error
    click.echo(key.fingerprint)
