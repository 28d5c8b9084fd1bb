"""A task process as its parent sees it: a fresh interpreter, never a fork."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

import numpy

from horn.errors import JobError
from horn.executor import preload
from horn.process import limits
from horn.process.control import ControlChannel, ControlMessage
from horn.process_stat import is_stopped

logger = logging.getLogger(__name__)

TELL_S = 30.0  # for a task that has hundreds of messages unread to read one
KILLED_S = 10.0  # for the kernel to end a process: one that waits for a disk cannot be killed
STACK_S = 1.0  # for a late task to write its stack
STACK_BYTES = 20_000
BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
# Before all that takes long: a process is killed when the one that started it ends (1 is
# PR_SET_PDEATHSIG), whose pid is an argument; and it ends here if that has happened already.
PREAMBLE = (
    "import ctypes, os, sys, json; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[{}]) or os._exit(1); "
    "homes, paths = json.loads(os.environ.pop('HORN_TASK_PATH')); "
    "sys.path[:] = [*(home for home in homes if home not in sys.path), *sys.path, *paths]; "
)
# After horn's own imports, which a numpy.py or random.py beside the job's file is not to meet.
PATHS = "sys.path[:] = paths; "
# Collecting garbage while 300 modules are imported finds none, and takes a tenth of that time.
QUICKLY = "import gc; gc.disable(); "
IMPORTS, RUN = "from horn.process.main import end, main; ", "end(main())"


def import_paths() -> list[str]:
    """The folders where this process finds modules, for another process. Like Python, it skips
    entries that are not text, such as a Path, and the current folder if that was removed.
    """
    with suppress(FileNotFoundError):
        return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def paths_for_child() -> str:
    """For HORN_TASK_PATH: where this process has horn and NumPy from, and ``import_paths``."""
    packages = os.path.dirname(os.path.dirname(__file__)), os.path.dirname(str(numpy.__file__))
    return json.dumps([sorted(set(map(os.path.dirname, packages))), import_paths()])


def program(parent: int, imports: str, run: str, code: int | None) -> str:
    """What a child runs. parent : which argument is this process's pid. code : of preload.py."""
    boot, release = ("", "") if code is None else (preload.BOOT.format(code), preload.RELEASE)
    return PREAMBLE.format(parent) + QUICKLY + boot + imports + PATHS + release + run


class ChildProcess:
    """A task process, as its parent sees it. output : a descriptor to print to, by default stderr.
    code : a descriptor of executor/preload.py.
    """

    def __init__(
        self,
        task: int,
        threads: int,
        job_id: str,
        output: int | None = None,
        code: int | None = None,
    ) -> None:
        self.task = task
        self.folder = ""  # the working directory of a task that was started before it was known
        self.code: int | None = None
        self.is_open = True  # there may be more to read
        env = {**os.environ, **dict.fromkeys(BLAS, str(threads))}
        env["HORN_TASK_PATH"] = paths_for_child()
        try:
            with ExitStack() as undo:  # for a start that fails half way
                self.line, theirs = ControlChannel.pair()
                undo.callback(self.line.close)
                with closing(theirs):
                    self.stack = os.memfd_create(f"horn-stack-{task}", os.MFD_CLOEXEC)
                    undo.callback(os.close, self.stack)
                    inherited = [theirs.fileno(), self.stack]
                    arguments = map(str, [*inherited, os.getpid(), f"{job_id}:{task}"])
                    text = program(3, IMPORTS, RUN, code)
                    self.process = subprocess.Popen(
                        [sys.executable, "-P", "-c", text, *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=2 if output is None else output,  # only the parent prints results
                        stderr=output,
                        env=env,
                        pass_fds=inherited if code is None else [*inherited, code],
                        process_group=0,  # Ctrl-C in a terminal is for the parent alone
                    )
                undo.callback(self.process.wait)
                undo.callback(self.process.kill)
                self.pidfd = os.pidfd_open(self.process.pid)
                undo.pop_all()
        except OSError as error:
            why = limits.too_few_processes(error) or error
            raise JobError(f"task {task} cannot be started: {why}") from error

    def tell(self, message: ControlMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message; a task that reads nothing for TELL_S is killed."""
        try:
            self.line.send(message, descriptors, TELL_S)
        except TimeoutError:
            logger.warning(
                "task not told, ended task=%d pid=%d: it has read nothing for %g s; %s",
                self.task, self.process.pid, TELL_S, self.where(),
            )  # fmt: skip
            self.process.kill()
        except OSError:
            pass  # it has ended already: its exit will be noticed

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger has stopped the process."""
        return is_stopped(self.process.pid)

    def where(self) -> str:
        """The task's Python stack, after a short wait."""
        who = f"task {self.task} (pid {self.process.pid})"
        if self.is_stopped:
            return f"{who} is stopped (SIGSTOP, or a debugger), so it cannot say where it is"
        before = os.fstat(self.stack).st_size
        self.process.send_signal(signal.SIGUSR1)
        ends = time.monotonic() + STACK_S
        size = before
        has_ended = select.poll()
        has_ended.register(self.pidfd, select.POLLIN)
        while time.monotonic() < ends and not has_ended.poll(20):
            last, size = size, os.fstat(self.stack).st_size
            if size > before and size == last:
                break
        text = os.pread(
            self.stack, STACK_BYTES, max(before, os.fstat(self.stack).st_size - STACK_BYTES)
        )
        found = main_stack(text.decode(errors="replace"))
        return f"{who} is here:\n{found}" if found else f"{who} does not answer"

    def end(self) -> None:
        """Kill the process at once, and close its descriptors."""
        self.process.kill()
        reap([self])
        self.close()

    def close(self) -> None:
        self.line.close()
        os.close(self.pidfd)
        os.close(self.stack)


def main_stack(text: str) -> str:
    """The main thread's of the stacks that faulthandler wrote: that of the oldest is last."""
    return text.strip().rpartition("\n\n")[2]


def reap(killed: Sequence[ChildProcess]) -> None:
    """Wait for the ends of processes that were killed, but not for what the kernel holds."""
    ends = time.monotonic() + KILLED_S
    for child in killed:
        try:
            child.process.wait(max(ends - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            logger.warning(
                "task left behind task=%d pid=%d: it was killed and has not ended in %g s; it may "
                "wait for a disk, or a folder of another host, that does not answer",
                child.task, child.process.pid, KILLED_S,
            )  # fmt: skip
