"""TARGET of ``submit`` and ``check``: file.py, file.py:name, package.module or package.module:name.

The name, by default ``job``, is a horn.Job or a function that returns one. ARGS after -- are the
file's sys.argv, and --parameter value for the function, by annotation or default. ``report(run)``
in the file is called after training.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horn import settings
from horn.errors import JobError, NotFound
from horn.formats.files import missing

if TYPE_CHECKING:
    from horn.job import Job
    from horn.run_result import Run

# What to do with a file that is no Python file.
_INSTEAD = {
    ".horn": "give file.py; a model is read by horn show, evaluate and predict",
    ".ipynb": "run a notebook in Jupyter, with horn.train, or copy its job to a file.py with  "
    "def job(): return horn.Job(...)",
}


@dataclass(frozen=True)
class JobTarget:
    """A job, the stem of its file or module, and its report function."""

    job: Job
    stem: str
    report: Callable[[Run], Any] | None


def load(target: str, arguments: Sequence[str] = ()) -> JobTarget:
    """Import a target and get its job.

    Raises
    ------
    NotFound : no such file, module or name.
    JobError : the file does not give a horn.Job, or the arguments do not fit its function.
    """
    from horn.job import Job
    from horn.network import Network

    check_given(target)
    place, name = _split(target)
    with _importing(place, arguments):
        module, stem = _import(place, name)
        found = getattr(module, name, None)
        if found is None:
            raise _no_such_name(module, place, name)
        job = found
        if not isinstance(found, (Job, Network)) and callable(found):
            job = found(**_parameters(found, name, arguments))
    if not isinstance(job, Job):
        raise JobError(
            f"{place}: {name} gives {_kind(job)}, not a horn.Job; end it with "
            f"return horn.Job(net, data=...)"
        )
    report = getattr(module, "report", None)
    return JobTarget(job, stem, report if callable(report) else None)


def load_job(
    target: str, arguments: Sequence[str], changes: Sequence[str], seed: int | None = None
) -> Job:
    """The job of a TARGET, with the changes of --set and --seed."""
    job = settings.apply(load(target, arguments).job, changes)
    return job if seed is None else job.with_settings(network=job.network.rebuilt(seed=seed))


def check_given(target: str) -> None:
    """Raise JobError for an empty text, as of a variable of the shell that is not set."""
    if not target.strip():
        raise JobError(f'TARGET is "{target}": write file.py, or package.module')


def _split(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        return target, "job"
    return place, name


def _import(place: str, name: str) -> tuple[types.ModuleType, str]:
    path = Path(place)
    if path.suffix == ".py" or os.path.exists(path):
        return _import_file(path), path.stem
    if "/" in place or not all(part.isidentifier() for part in place.split(".")):
        raise NotFound(f"{place}: no such file or module; {meant(place, name)}")
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place), place.split(".")[-1]
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(error.name + ".")):
            raise NotFound(f"{place}: no such file or module; {meant(place, name)}") from None
        raise


def meant(place: str, name: str = "job") -> str:
    """What to write for a place that is no Python file and no module. name : of its job."""
    if os.path.isfile(place):
        return _INSTEAD.get(Path(place).suffix, "give file.py")
    if os.path.isfile(f"{place}.py"):
        return f"did you mean {place}.py?"
    stem, _, rest = place.rpartition(".py")  # job.py::first, job.py.first, job.py:first()
    if rest[:1] in (":", ".") and os.path.isfile(f"{stem}.py"):
        more = rest.strip(":.()")
        return f"did you mean {stem}.py:{more if more.isidentifier() else name}?"
    return "give file.py or package.module"


def _import_file(path: Path) -> types.ModuleType:
    if not os.path.isfile(path):  # False too of a name that is too long
        raise missing(path)
    sys.path.insert(0, str(path.parent.resolve()))  # as python file.py does
    name = path.stem if path.stem not in sys.modules else f"horn_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise JobError(f"{path}: is no Python file; {meant(str(path))}")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _TextLoader(name, str(path.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if error.filename != str(path.resolve()):
            raise
        text = (error.text or "").rstrip("\n")
        caret = " " * ((error.offset or 1) - 1) + "^"
        raise JobError(f"{path}:{error.lineno}\n    {text}\n    {caret}\n{error.msg}") from None
    return module


class _TextLoader(SourceFileLoader):
    """Loads the present text of the file, as ``python file.py`` does. Python's cache of compiled
    files goes by seconds and size: after a change of one digit it would run the old text.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


@contextmanager
def _importing(place: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set sys.argv as the file expects it, and refuse horn.train at its top level."""
    train: Any = importlib.import_module("horn.train")
    before = sys.argv
    sys.argv = [place, *arguments]
    train.importing = place
    try:
        yield
    finally:
        sys.argv = before
        train.importing = None


def _no_such_name(module: types.ModuleType, place: str, name: str) -> NotFound:
    from horn.job import Job

    mine = {
        k: v
        for k, v in vars(module).items()
        if isinstance(v, Job) or (inspect.isfunction(v) and v.__module__ == module.__name__)
    }
    near = difflib.get_close_matches(name, mine, 1)
    if near:
        return NotFound(f"{place} has no {name!r}; did you mean {place}:{near[0]}?")
    write = f"write  def {name}(): return horn.Job(...)"
    if not mine:
        return NotFound(f"{place} has no {name!r}; {write}")
    first = next((k for k, v in mine.items() if isinstance(v, Job)), next(iter(mine)))
    return NotFound(
        f"{place} has no {name!r}, but {', '.join(mine)}; name what gives the horn.Job, as in "
        f"{place}:{first}, or {write}"
    )


def _parameters(
    function: Callable[..., Any], name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Parse --key value and --key=value into arguments of the job function."""
    parameters = inspect.signature(function).parameters
    if not parameters:
        return {}  # ARGS are for the file's own sys.argv
    words = list(arguments)
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        if not word.startswith("--"):
            hint = f"; write --{word}" if equals and key in parameters else ""
            raise JobError(
                f"argument {word!r}: {name} takes --parameter value ({_usage(parameters)}){hint}"
            )
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, 1)
            hint = f"did you mean --{near[0]}? " if near else ""
            raise JobError(f"{name} has no parameter {key!r}; {hint}It has {_usage(parameters)}")
        if not equals:
            if not words:
                raise JobError(f"--{key} needs a value ({_usage(parameters)})")
            value = words.pop(0)
        given[key] = _typed(key, value, parameters[key])
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if lacking := [p for p in missing if p not in given]:
        raise JobError(
            f"{name} needs {', '.join('--' + p for p in lacking)}; write them after --, as in "
            f"horn submit FILE -- --{lacking[0]} VALUE"
        )
    return given


def _typed(key: str, text: str, parameter: inspect.Parameter) -> Any:
    kinds = {"int": int, "float": float, "bool": bool, "str": str}
    note = parameter.annotation
    kind = note if isinstance(note, type) else kinds.get(str(note))
    if kind not in kinds.values():
        kind = type(parameter.default)
    if kind is bool:
        if text.lower() in settings.TRUE + settings.FALSE:
            return text.lower() in settings.TRUE
        raise JobError(f"--{key} is true or false, got {text!r}")
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise JobError(f"--{key} is {what}, got {text!r}") from None


def _usage(parameters: Any) -> str:
    return ", ".join(f"--{name}" for name in parameters)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
