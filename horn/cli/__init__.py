"""The command line: one file per command, found by its name and imported when it is called.

A command parses, calls one function, prints one thing. Results go to stdout, everything else to
stderr. This package imports neither NumPy nor the engine before a command runs.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

import click

from horn.cli._end import OtherPipe, ending
from horn.process.exits import outlive_log, outlives_reader
from horn.training.interrupts import end_on_signals

# What other programs call them.
ELSEWHERE = {
    "cancel": "stop", "delete": "rm", "fit": "submit", "jobs": "list", "kill": "stop", "ls": "list",
    "ps": "list", "run": "submit", "test": "evaluate", "train": "submit",
}  # fmt: skip


class Commands(click.Group):
    """The commands are the files of this package; each has an object ``command``."""

    def list_commands(self, context: click.Context) -> list[str]:
        found = (m.name for m in pkgutil.iter_modules(__path__))
        return sorted(name for name in found if not name.startswith("_"))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        command: click.Command = importlib.import_module(f"horn.cli.{name}").command
        return command

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            name, known = error.option_name, self.list_commands(context)
            command = next((word for word in args if word in known), "COMMAND")
            text = f"No such option {name!r} of horn itself; those of a command go after its name"
            text += f", as in  horn {command} {name}"
            raise click.NoSuchOption(name, text, ctx=context) from None

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        known = self.list_commands(context)
        if args[0] == "help":
            args = [*args[1:2], "--help"]
        if args[0] not in known:
            import difflib

            near = (
                ELSEWHERE.get(args[0]) or (difflib.get_close_matches(args[0], known, 1) or [""])[0]
            )
            if near:
                context.fail(f"No such command {args[0]!r}; did you mean {near}?")
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            if outlives_reader():
                raise OtherPipe from error
            raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-V", "--version", package_name="horn-bsp", prog_name="horn")
def horn() -> None:
    """Write one neuron in plain Python, train networks of it at the speed of matrix code.

    horn COMMAND --help tells more about each command.

    Exit codes: 0 success, 1 job failed, 2 usage or configuration, 3 cluster unreachable or refused,
    4 no such job, model or file, 5 stopped by someone else, 6 conflict, 7 diverged, 70 a bug in
    horn, 124 timeout, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The ``horn`` command. Ends the process with one of the exit codes above."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent has closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a label may hold half a character
    outlive_log()
    end_on_signals()
    sys.exit(ending(horn, list(sys.argv[1:] if arguments is None else arguments)))
