"""A command with a TARGET: where goes what was taken for an option of the command, and how one is
written that is missing.
"""

from __future__ import annotations

import click


class TargetCommand(click.Command):
    """Answers an unknown option with what it may be: a field of the job, an option of submit, one
    that is misspelt, or an argument of TARGET; and a missing option with what its help says.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        target = args[0] if args and not args[0].startswith("-") else "TARGET"
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            name, near = error.option_name, error.possibilities or []
            more = remedy(context, name, near, target)
            said = f"No such option {name!r}{more}"
            raise click.NoSuchOption(name, said, ctx=context) from None
        except click.MissingParameter as error:
            if not isinstance(error.param, click.Option):
                raise
            said = f"{error.param.metavar}: {error.param.help}"
            raise click.MissingParameter(said, context, error.param) from None


def remedy(context: click.Context, name: str, near: list[str], target: str) -> str:
    """What to do about an unknown option. near : options of the command that are like it."""
    from horn.settings import key_like

    if key := key_like(name):
        return f"; write  --set {key}=VALUE"
    command, horn = context.info_name, context.find_root().command
    submit = horn.get_command(context, "submit") if isinstance(horn, click.Group) else None
    if submit is not None and any(name in parameter.opts for parameter in submit.params):
        return f": horn submit has it, horn {command} has not; leave it out"
    if not name.startswith("--"):
        return f"; horn {command} --help has those that there are"
    mean = f"; did you mean {near[0]}?" if near else "."
    return f"{mean} An argument of TARGET goes after --:  horn {command} {target} -- {name}"
