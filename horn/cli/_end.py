"""The end of every command: its exit code, and one sentence instead of a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

import click

from horn.errors import FULL, HornError, described, is_removed, short, text_of
from horn.process.exits import CLOSED, write_last
from horn.training.interrupts import ending_of

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INTERNAL = 70
VERBOSE = re.compile("-[dfhq]*v")  # after options that have no value: what follows others is theirs


class OtherPipe(Exception):
    """A BrokenPipeError, its cause, that is not of the command's output: click takes every one for
    a reader that has gone.
    """


def ending(command: click.Command, arguments: list[str]) -> int:
    """Run a command and return the exit code; errors go to stderr."""
    verbose = _is_verbose(arguments)
    try:
        result = command.main(arguments, prog_name="horn", standalone_mode=False)
        print(end="", flush=True)  # also where there is no stdout
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for Ctrl-D at a question of ours
            return _unexpected(error.__cause__, arguments, verbose)
        return _stopped(error.__cause__ if isinstance(error, click.Abort) else error)
    except HornError as error:
        if error.exit_code == INTERNAL:  # in a task of a group
            _say(getattr(error, "details", ""))
            _say(_bug_report(str(error), arguments))
            return INTERNAL
        _say_error(short(_placed(error)))
        if verbose:
            _traceback()
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has gone, such as head
        _write_no_more()
        return 0
    except OtherPipe as error:
        return _unexpected(error.__cause__ or error, arguments, verbose)
    except SystemExit as error:
        if "PacifyFlush" in type(sys.stdout).__name__:  # click's, once the reader has gone
            return 0
        if _is_users(error) and not _is_of_parser(error):
            return _unexpected(error, arguments, verbose)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except MemoryError as error:
        _say_error(_of_memory(error))
        if verbose:
            _traceback()
        return 1
    except ImportError as error:
        if not (error.name or "").startswith("horn._kernels"):
            return _unexpected(error, arguments, verbose)
        _say_error(
            f"the compiled part of horn is missing ({error.name}): {_HERE} is a source folder. "
            f"Install it with  pip install -e .  or run the installed horn from another folder"
        )
        return 2
    except OSError as error:
        if isinstance(error, FileNotFoundError) and is_removed():
            _say_error("the current folder was removed; go to another, or give absolute paths")
            return 2
        # Errors of horn's own files name them: this one is of the command's output.
        if error.errno not in FULL or error.filename is not None or _is_users(error):
            return _unexpected(error, arguments, verbose)
        _write_no_more()
        _say_error(f"the output cannot be written ({error.strerror}); send it elsewhere")
        return 1
    except BaseException as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # it came while a class was made
            return _stopped(error.__cause__)
        return _unexpected(error, arguments, verbose)


def _stopped(error: BaseException | None) -> int:
    """Say what has stopped a command, Ctrl-C if it is not known; its exit code."""
    what, code = ending_of(error)
    _say(f"\nStopped by {what}.")
    return code


def _of_memory(error: MemoryError) -> str:
    """Where memory ran out: in a line of the user's, or in horn."""
    from horn.process.limits import out_of_memory

    found = _line_of(error)
    if found is None:
        return out_of_memory(error, is_ours=True)
    return f"{short(found[0])}:{found[1]}  {found[2]}\n{out_of_memory(error)}"


def _write_no_more() -> None:
    """Discard unwritten output, so that Python does not complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _line_of(error: BaseException, called: bool = False) -> tuple[str, int, str] | None:
    """The user's line of an error; None also where horn's files are being replaced, as when another
    version is installed: the error itself is to be told.
    """
    try:
        from horn.sources import line_of
    except Exception:
        return None
    return line_of(error, called)


def _is_users(error: BaseException) -> bool:
    return _line_of(error) is not None


def _is_of_parser(error: SystemExit) -> bool:
    """Whether argparse, to which a file gave its arguments, has shown its help or its complaint."""
    import traceback

    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__") == "argparse"


def _placed(error: HornError) -> str:
    """The message and its notes, after the line of the user's file whose call was refused, if there
    is one.
    """
    found = None if getattr(error, "file", "") else _line_of(error, called=True)
    place = [] if found is None else ["{}:{}  {}".format(*found)]
    return "\n".join([*place, str(error), *getattr(error, "__notes__", ())])


def _unexpected(error: BaseException, arguments: list[str], verbose: bool) -> int:
    """An exception that horn did not raise on purpose: from the user's code, or a bug in horn."""
    kind = described(error)
    try:
        place, hint = _place_and_hint(error)
    except Exception:  # horn's files are being replaced: the error itself is to be told
        place = hint = ""
    if isinstance(error, (ValueError, OSError)) and not (place or hint or write_last()):
        _write_no_more()
        _say_error(f"{kind}\n{CLOSED}")
        return 1
    if place or hint:
        _say_error(f"{place}{kind}" + (f"; {hint}" if hint else ""))
        if verbose:
            _traceback()
        return 1
    _traceback()
    _say(_bug_report(kind, arguments))
    return INTERNAL


def _place_and_hint(error: BaseException) -> tuple[str, str]:
    """The user's line of an error, as a line, and what to do; each "" if it is not known."""
    from horn.mistakes import NoSuchArgument, no_attribute, remedy
    from horn.own_lines import OwnLines
    from horn.process.limits import too_few_processes
    from horn.sources import hiding

    found = _line_of(error, called=isinstance(error, OwnLines))
    place = "" if found is None else f"{short(found[0])}:{found[1]}  {found[2]}\n"
    hint = short(hiding(error)) or too_few_processes(error)
    if place and isinstance(error, TypeError) and not isinstance(error, NoSuchArgument):
        hint = hint or remedy(text_of(error))
    if place and isinstance(error, ImportError) and f"{error.name}.".startswith("horn."):
        name, module = re.match(r"cannot import name '(\w+)'", text_of(error)), str(error.name)
        if name and not hint:
            hint = str(no_attribute(module, name[1], dir(sys.modules[module])))
    return place, hint


def _bug_report(kind: str, arguments: list[str]) -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for name in ("horn-bsp", "numpy", "safetensors", "click"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} missing")
    return (
        f"\nThis is a bug in horn. Please report it with the traceback above and these lines:\n"
        f"  {kind}\n"
        f"  command: horn {' '.join(arguments)}\n"
        f"  python {platform.python_version()}, {', '.join(versions)}, {platform.platform()}"
    )


def _is_verbose(arguments: list[str]) -> bool:
    """Whether -v is given, also for errors that come before the options are parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(a == "--verbose" or VERBOSE.match(a) for a in own)


def _traceback() -> None:
    import traceback

    traceback.print_exc()


def _say_error(text: str) -> None:
    _say(f"Error: {text}")  # without colour: click knows neither NO_COLOR nor TERM=dumb


def _say(text: Any) -> None:
    with contextlib.suppress(ValueError, OSError):  # stderr is closed: the exit code tells it alone
        click.echo(text, err=True)
