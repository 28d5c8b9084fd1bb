"""Everything horn raises on purpose.

HornError
├─ ModelError        the description is wrong           fix the model
│  └─ DataError      the data do not fit the model      fix the data
├─ CompileError      a neuron leaves the language       fix the neuron (has file, line, column)
├─ JobError          a submission is wrong              fix the command
├─ NotFound          no such job, model or file         fix the name
├─ Conflict          wrong state, or a name in use      choose another
│  └─ NotApplied     a transaction met another state    read again, then decide
├─ CheckpointError   cannot be written, read or used    look at the file that it names
├─ Diverged          NaN or infinity in training        what it says: line, cause, remedy
├─ Timeout           a deadline passed                  raise it, or look at who is late
├─ JobFailed         a cluster's job failed             look at its log
├─ Stopped           somebody asked for it              resume it
├─ CallbackError     a callback raised                  fix it (has the run so far)
├─ ProtocolError     peers disagree                     a bug, or mixed versions
├─ JournalError      a server's journal is damaged      go back to the last checkpoint
└─ ClusterError      the machines                       may be retried
   ├─ Unreachable    no ZooKeeper answers               start it, or fix the address
   ├─ AccessDenied   ZooKeeper refuses the key          use the cluster's key
   ├─ NotAllowed     horn refuses it: forged, stale     submit again, with the cluster's key
   ├─ SessionLost    this process lost its place        start it again
   ├─ BarrierTimeout a deadline passed, says who        look at the absent ones
   ├─ MemberLost     a peer has gone                    restart the group
   └─ Fenced         another has taken this place       stop

Each class names the exit code that a command ends with (``horn --help`` lists them) in
``exit_code``.
"""

from __future__ import annotations

import errno
import math
import os
from numbers import Integral, Real
from typing import Any

from horn.own_lines import OwnLines, shell

# Errors of a write: a full disk, a quota that is used up, a terminal that was closed.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def short(text: str) -> str:
    """Shorten paths below the current folder to paths from here."""
    return text if is_removed() else text.replace(os.getcwd() + os.sep, "")


def text_of(error: BaseException) -> str:
    """The text of an error; of one of a user's class ``__str__`` may raise."""
    try:
        return str(error)
    except Exception as failure:  # whatever it is, the first error is to be told
        return f"(no text: its __str__ raised {type(failure).__name__})"


def described(error: BaseException) -> str:
    """The type and the text of an error."""
    return f"{type(error).__name__}: {text_of(error)}"


def is_removed() -> bool:
    """Whether the current folder has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


class HornError(OwnLines):
    """The root: everything that horn raises on purpose, and nothing else.

    model : where it ended training after an update: the ``horn.Model`` of the arrays before it, or
    None; ``iteration`` is the number of its updates.
    """

    exit_code = 1
    model: Any = None
    iteration: int = 0


class ModelError(HornError):
    """A network or a job is described wrongly; the sentence says where and what to write."""

    exit_code = 2


class DataError(ModelError):
    """The data cannot be read, or do not fit the network."""


class JobError(HornError):
    """A command or a setting is wrong."""

    exit_code = 2


# Of bytes that horn did not write, as JSON or msgpack. msgspec's errors are ValueErrors; what is
# nested without end is a RecursionError.
UNREADABLE = (ValueError, RecursionError, OverflowError)


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number, of Python or NumPy, and at least so large; True is none."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    return is_number and bool(value >= least)


def is_finite(value: Any, least: float = -math.inf) -> bool:
    """Whether it is a finite number, of Python or NumPy, and at least so large; True is none."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and bool(value >= least)


def check_finite(of: object, *names: str) -> None:
    """Raise ModelError for an attribute of these names that is no finite number."""
    for name in names:
        if not is_finite(value := getattr(of, name)):
            raise ModelError(
                f"{type(of).__name__}: {name} must be a finite number, got {value!r:.80}"
            )


def check_whole(what: str, value: object, least: int, bits: int = 0) -> None:
    """Raise JobError for a setting that is no whole number from ``least``, below 2**bits if bits
    are given. It is one of Python: settings travel as JSON, as they are.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise JobError(f"{what} must be a whole number from {least}, got {value!r}")
    if bits and value >= 2**bits:
        raise JobError(f"{what} must be below 2**{bits}, got {value}")


def set_once(found: dict[str, Any], key: str, value: Any, what: str, instead: str = "") -> None:
    """Set a key of ``found``. Raises JobError: it has one, as where a user gave a setting twice;
    what : the setting, instead : what else than leaving one out may be meant, in words.
    """
    if key in found:
        raise JobError(
            f"{what}: is given twice, as {found[key]} and as {value}; leave one of them out"
            f"{instead}"
        )
    found[key] = value


class NotFound(HornError):
    """No such job, model or file."""

    exit_code = 4


class Conflict(HornError):
    """The thing is in the wrong state, or its name is taken."""

    exit_code = 6


class CheckpointError(HornError):
    """A checkpoint cannot be written, is missing or damaged, or is another network's.

    path : the file or folder. errno : of the system, or 0. exit_code : 1 not written, 2 damaged or
    another's, 4 missing.
    """

    def __init__(self, path: str, what: str, exit_code: int = 2, errno: int = 0) -> None:
        if len(what) > 1000:  # a text from a file may have any length
            what = f"{what[:900]} ... {what[-90:]}"
        self.path, self.what, self.exit_code, self.errno = path, what, exit_code, errno
        super().__init__(path, what, exit_code, errno)

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Diverged(HornError):
    """Training met NaN or infinity. met, kept : the start of the search for the cause."""

    exit_code = 7
    met: Any = None
    kept: Any = None


class Timeout(HornError):
    """A deadline passed."""

    exit_code = 124


class JobFailed(HornError):
    """A job of a cluster failed; the sentence has the cause that its workers found."""


class Stopped(HornError):
    """A run stopped at a boundary on request. checkpoint : the one of that iteration, "" if it was
    not saved or there was nothing to save (iteration 0). reason : why it could not be saved, "" if
    it was not to be. since : the iteration of the last one that was saved, 0 for none.
    """

    exit_code = 130

    def __init__(self, iteration: int, checkpoint: str, reason: str = "", since: int = 0) -> None:
        self.iteration, self.checkpoint = iteration, checkpoint
        self.reason, self.since = reason, since
        super().__init__(iteration, checkpoint, reason, since)

    @property
    def loss(self) -> str:
        """What could not be saved, in words; "" if nothing was lost so."""
        if not self.reason:
            return ""
        n, lost = self.iteration - self.since, f"all {self.iteration:,} iterations"
        if self.since:
            lost = f"the {n:,} iteration{'s' * (n != 1)} since {self.since:,}"
        return f"its checkpoint could not be saved: {self.reason}; {lost} are not in one"

    def __str__(self) -> str:
        if not self.iteration:
            return "stopped before the first iteration: there was nothing to save"
        saved = f"saved {self.checkpoint}" if self.checkpoint else "its checkpoint was not saved"
        saved = self.loss or saved
        return f"stopped after iteration {self.iteration}: {saved}"


class TaskFailed(HornError):
    """A task of a group ended, and the group with it. where : the place in the run. what : the
    first failure. details : a traceback, unless it was the user's code. name : by default "task"
    and its number.
    """

    def __init__(
        self,
        task: int,
        pid: int,
        where: str,
        what: str,
        hint: str = "",
        n_tasks: int = 1,
        name: str = "",
    ) -> None:
        self.task, self.pid, self.where, self.what = task, pid, where, what
        self.hint, self.n_tasks, self.details = hint, n_tasks, ""
        self.name = name or f"task {task}"
        super().__init__(task, pid, where, what, hint, n_tasks, name)

    def __str__(self) -> str:
        lines = [f"First failure: {self.name} (pid {self.pid})"]
        if self.where:
            lines[0] += f", {self.where}"
        lines.append(f"  {self.what}")
        if self.n_tasks > 1:
            n = self.n_tasks - 1
            others = "other task was" if n == 1 else f"other {n} tasks were"
            lines.append(f"The {others} stopped because of this.")
        return "\n".join([*lines, self.hint] if self.hint else lines)


class CallbackError(HornError):
    """A callback raised an exception, its ``__cause__``. callback, hook : which. when : in words.
    line : file, number and text of the user's line, if known. run : the run so far, with its model
    and history; None before the first update. kept : the path of its saved model, in words.
    """

    def __init__(
        self,
        callback: str,
        hook: str,
        when: str,
        what: str,
        line: tuple[str, int, str] | None = None,
    ) -> None:
        self.callback, self.hook, self.when, self.what = callback, hook, when, what
        self.line = line
        self.run: Any = None
        self.kept = ""
        super().__init__(callback, hook, when, what, line)

    def __str__(self) -> str:
        where = ""
        if self.line is not None:
            file, number, text = self.line
            where = f"\n  {shown_file(file)}:{number}  {text}"
        kept = self.kept or ("" if self.run is None else "the run so far is in the error's .run")
        kept = kept and f"\nTraining ended there; {kept}"
        return f"callback {self.callback}, {self.hook} {self.when}: {self.what}{where}{kept}"


class ProtocolError(HornError):
    """Two peers disagree about what comes next: a bug, or mixed versions."""


class JournalError(HornError):
    """A server's journal, or a state in it, cannot be written or is damaged, from byte ``at``."""

    exit_code = 2

    def __init__(self, path: str, at: int, what: str) -> None:
        self.path, self.at, self.what = path, at, what
        super().__init__(path, at, what)

    def __str__(self) -> str:
        return f"{self.path}, byte {self.at}: {self.what}"


class ClusterError(HornError):
    """The machines failed, or cannot be reached."""

    exit_code = 3


class NotApplied(Conflict):
    """A ZooKeeper transaction was refused as a whole, for step ``index``. reason : "missing",
    "exists", "version", "children" or another word of the server.
    """

    def __init__(self, index: int, path: str, reason: str) -> None:
        self.index, self.path, self.reason = index, path, reason
        super().__init__(index, path, reason)

    def __str__(self) -> str:
        return f"nothing was changed: step {self.index} ({self.path}) was refused: {self.reason}"


class Unreachable(ClusterError):
    """No ZooKeeper server answers. ``code`` is the anchor in the list of common mistakes."""

    code = "HORN-E101"

    def __init__(self, hosts: str, reason: str, tried_s: float) -> None:
        self.hosts, self.reason, self.tried_s = hosts, reason, tried_s
        super().__init__(hosts, reason, tried_s)

    def __str__(self) -> str:
        why = f"{self.reason}, tried for {self.tried_s:.3g} s"
        said = f"Cannot reach ZooKeeper at {self.hosts} ({why})."
        if any(word in f": {self.reason}" for word in (": it ", ": its ")):  # one of them is there
            return said
        first = self.hosts.split("/")[0].split(",")[0].strip()
        host, _, port = first.rpartition(":")
        probe = f"{host.strip('[]') or first} {port if host and port else 2181}"
        return f"{said} Is it running?  nc -z {probe}"


class AccessDenied(ClusterError):
    """ZooKeeper answers, but not to this key."""

    def __init__(self, hosts: str, path: str, reason: str) -> None:
        self.hosts, self.path, self.reason = hosts, path, reason
        super().__init__(hosts, path, reason)

    def __str__(self) -> str:
        return f"ZooKeeper at {self.hosts} refuses access to {self.path}: {self.reason}"


class NotAllowed(ClusterError):
    """Horn itself refuses a request: wrong key, wrong role, too late, or a repetition."""


class SessionLost(ClusterError):
    """The ZooKeeper session is over, and with it every place this process held."""

    def __init__(self, hosts: str, reason: str) -> None:
        self.hosts, self.reason = hosts, reason
        super().__init__(hosts, reason)

    def __str__(self) -> str:
        return (
            f"the session with ZooKeeper at {self.hosts} is over ({self.reason}); others may have "
            f"taken this process's place, so it must stop and register again"
        )


class BarrierTimeout(ClusterError):
    """A wait ended before everybody came. ``absent`` and ``arrived`` are sorted names. absent_ranks
    : the absent tasks and servers of a run; () where others were waited for.
    """

    exit_code = 1  # the job failed; the cluster was reached

    def __init__(
        self,
        where: str,
        absent: tuple[str, ...],
        arrived: tuple[str, ...],
        timeout_s: float,
        hint: str = "",
        absent_ranks: tuple[int, ...] = (),
    ) -> None:
        self.where, self.absent, self.arrived = where, absent, arrived
        self.timeout_s, self.hint, self.absent_ranks = timeout_s, hint, absent_ranks
        super().__init__(where, absent, arrived, timeout_s, hint, absent_ranks)

    def __str__(self) -> str:
        n_expected = len(self.absent) + len(self.arrived)
        hint = self.hint or (
            "Look in the log of an absent one, or raise superstep_timeout (--superstep-timeout)"
        )
        return (
            f"{self.where}: only {len(self.arrived)} of {n_expected} arrived in "
            f"{self.timeout_s:g} s; absent: {', '.join(self.absent)}. {hint}"
        )


class MemberLost(ClusterError):
    """A peer vanished from ZooKeeper while it was waited for. ``lost`` are sorted names.
    lost_ranks : the lost tasks and servers of a run. by : the rank that lost them, if one did.
    """

    exit_code = 1

    def __init__(
        self,
        where: str,
        lost: tuple[str, ...],
        lost_ranks: tuple[int, ...] = (),
        by: int | None = None,
    ) -> None:
        self.where, self.lost, self.lost_ranks, self.by = where, lost, lost_ranks, by
        super().__init__(where, lost, lost_ranks, by)

    def __str__(self) -> str:
        return (
            f"{self.where}: lost {', '.join(self.lost)} (killed, stopped or cut off: the session "
            f"with ZooKeeper ended)"
        )


class Fenced(ClusterError):
    """A newer holder has this place; nothing from here may be applied any more."""

    def __init__(self, who: str, reason: str) -> None:
        self.who, self.reason = who, reason
        super().__init__(who, reason)

    def __str__(self) -> str:
        return f"{self.who} is fenced: {self.reason}"


class CompileError(HornError):
    """A neuron uses syntax or functions outside the neuron language.

    ``file``, ``line`` (from 1), ``column`` and ``end_column`` (from 0) point at the user's own
    text; ``where`` is "Class.method". The message shows the line with a caret and the remedy.
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
        head = f"{shown_file(self.file)}:{self.line}" + (f", in {self.where}" if self.where else "")
        if not self.text:
            return f"{head}\n{self.problem}"
        indent = len(self.text) - len(self.text.lstrip())
        start = max(self.column - indent, 0)
        width = max(min(self.end_column, len(self.text)) - self.column, 1)
        caret = " " * start + "^" * width
        return f"{head}\n    {self.text.strip()}\n    {caret}\n{self.problem}"


def shown_file(file: str) -> str:
    """A notebook's cell by the number shown there, another file by its name."""
    here = shell()
    found = here and here.compile.format_code_name(file)
    return " ".join(found) if found else file


def _compile_error(problem: str, fields: dict[str, object]) -> CompileError:
    error = CompileError(problem)
    error.__dict__.update(fields)
    return error
