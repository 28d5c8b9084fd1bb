"""Everything horn raises on purpose.

HornError
├─ ModelError        the description is wrong           fix the model
│  └─ DataError      the data do not fit the model      fix the data
├─ CompileError      a neuron leaves the language       fix the neuron (has file, line, column)
├─ JobError          a submission is wrong              fix the command
├─ NotFound          no such job, model or file         fix the name
├─ Conflict          wrong state, or a name in use      choose another
├─ Diverged          NaN or infinity in training        lower the learning rate
├─ Timeout           a deadline passed                  raise it, or look at who is late
├─ ProtocolError     peers disagree                     a bug, or mixed versions
└─ ClusterError      the machines                       may be retried

Each class names the exit code that a command ends with (DESIGN 8) in ``exit_code``.
"""

from __future__ import annotations


class HornError(Exception):
    """The root: everything that horn raises on purpose, and nothing else."""

    exit_code = 1


class ModelError(HornError):
    """A network or a job is described wrongly; the sentence says where and what to write."""

    exit_code = 2


class DataError(ModelError):
    """The data cannot be read, or do not fit the network."""


class JobError(HornError):
    """A command or a setting is wrong."""

    exit_code = 2


class NotFound(HornError):
    """No such job, model or file."""

    exit_code = 4


class Conflict(HornError):
    """The thing is in the wrong state, or its name is taken."""

    exit_code = 6


class Diverged(HornError):
    """Training met NaN or infinity."""

    exit_code = 7


class Timeout(HornError):
    """A deadline passed."""

    exit_code = 124


class ProtocolError(HornError):
    """Two peers disagree about what comes next: a bug, or mixed versions."""


class ClusterError(HornError):
    """The machines failed, or cannot be reached."""

    exit_code = 3


class CompileError(HornError):
    """A neuron leaves the neuron language.

    ``file``, ``line`` (from 1), ``column`` and ``end_column`` (from 0) point at the user's own text; ``where`` is
    "Class.method". The message shows the line with a caret, what is not understood, and what to write instead.
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        file: str = "",
        line: int = 0,
        column: int = 0,
        end_column: int = 0,
        text: str = "",
        where: str = "",
    ) -> None:
        self.problem, self.file, self.line, self.text, self.where = problem, file, line, text, where
        self.column, self.end_column = column, end_column
        super().__init__(problem)

    def __reduce__(self) -> tuple[object, ...]:
        return (_compile_error, (self.problem, self.__dict__.copy()))

    def __str__(self) -> str:
        if not self.file:
            return self.problem
        head = f"{self.file}:{self.line}" + (f", in {self.where}" if self.where else "")
        if not self.text:
            return f"{head}\n{self.problem}"
        indent = len(self.text) - len(self.text.lstrip())
        start = max(self.column - indent, 0)
        width = max(min(self.end_column, len(self.text)) - self.column, 1)
        caret = " " * start + "^" * width
        return f"{head}\n    {self.text.strip()}\n    {caret}\n{self.problem}"


def _compile_error(problem: str, fields: dict[str, object]) -> CompileError:
    error = CompileError(problem)
    error.__dict__.update(fields)
    return error
