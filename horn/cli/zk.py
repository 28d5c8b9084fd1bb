"""horn zk: the embedded ZooKeeper server, alone."""

from __future__ import annotations

import importlib
import importlib.util

import click

from horn.errors import JobError


@click.command(
    add_help_option=False,
    short_help="Run the embedded ZooKeeper server.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> int:
    """Run the embedded ZooKeeper server until Ctrl-C. See horn zk --help for its own options."""
    if importlib.util.find_spec("zk.__main__") is None:
        raise JobError("the embedded ZooKeeper server is not installed; install horn-bsp again")
    result = importlib.import_module("zk.__main__").main(list(args))
    return result if isinstance(result, int) else 0
