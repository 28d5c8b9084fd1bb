"""horn keygen: the key of a cluster."""

from __future__ import annotations

import click


@click.command(short_help="Make the key of a cluster.")
@click.argument("path", type=click.Path(dir_okay=False))
def command(path: str) -> None:
    """Make a new key in the file PATH (mode 0600) and print its fingerprint.

    Every worker and whoever submits needs a copy: --key FILE, or HORN_KEY=FILE. A key is never
    overwritten; a new one is a new file.
    """
    from horn.cluster.keys import generate

    click.echo(generate(path).fingerprint)
