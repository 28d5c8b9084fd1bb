"""The processes of a group's tasks, as the one that started them sees them.

Fresh interpreters, never forks. When a ProcessGroup is left, none of them is there any more.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from horn.errors import JobError
from horn.executor import preload
from horn.process.control import ControlChannel, Said, StartTask
from horn.security.keys import Credential

STOP_S = 2.0  # from SIGTERM to SIGKILL
LAST_WORD_S = 1.0  # for what a task said before its end to be read
STACK_S = 1.0  # for a late task to say where it is
STACK_BYTES = 20_000
BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
# Before all that takes long: a process is killed when the one that started it ends (1 is
# PR_SET_PDEATHSIG), whose pid is an argument; and it ends here if that has happened already.
PREAMBLE = (
    "import ctypes, os, sys, json; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[{}]) or os._exit(1); "
    "sys.path[:] = json.loads(os.environ.pop('HORN_TASK_PATH')); "
)
# Collecting garbage while 300 modules are imported finds none, and takes a tenth of that time.
QUICKLY = "import gc; gc.disable(); "
PROGRAM = "from horn.process.main import end, main; end(main())"


class ChildProcess:
    """One task process, as its parent sees it. output : a descriptor that it prints to; by default
    it shares its parent's stderr. code : one with what it imports, of executor/preload.py.
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
        self.folder = ""  # to be the current one of a task that was started before it was known
        self.code: int | None = None
        self.is_open = True  # there may be more to read
        self.line, theirs = ControlChannel.pair()
        self.stack = os.memfd_create(f"horn-stack-{task}", os.MFD_CLOEXEC)
        paths = [entry or os.getcwd() for entry in sys.path]
        env = {**os.environ, **dict.fromkeys(BLAS, str(threads))}
        env["HORN_TASK_PATH"] = json.dumps(paths)
        arguments = [theirs.fileno(), self.stack, os.getpid(), f"{job_id}:{task}"]
        boot, inherited = "", [theirs.fileno(), self.stack]
        if code is not None:
            boot = preload.BOOT.format(code)
            inherited.append(code)
        program = PREAMBLE.format(3) + QUICKLY + boot + PROGRAM
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=2 if output is None else output,  # results are the parent's to say
                stderr=output,
                env=env,
                pass_fds=inherited,
                process_group=0,  # Ctrl-C in a terminal is for the parent alone
            )
        except OSError as error:
            os.close(self.stack)
            self.line.close()
            raise JobError(f"task {task} cannot be started: {error}") from error
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.process.pid)

    def start(
        self,
        descriptors: list[int],
        key: bytes | None = None,
        credential: Credential | None = None,
        number: int | None = None,
    ) -> None:
        """number : what it goes by among tasks, if that is not the one it has here."""
        task = self.task if number is None else number
        self.tell(StartTask(task, key, credential, self.folder), descriptors)

    def tell(self, message: Said, descriptors: Sequence[int] = ()) -> None:
        try:
            self.line.send(message, descriptors)
        except OSError:
            pass  # it has ended already: its exit is heard of

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP, or a debugger."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def where(self) -> str:
        """Its Python stack, in words; waits a short time for it."""
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
        text = os.pread(self.stack, STACK_BYTES, before).decode(errors="replace").strip()
        if not text:
            return f"{who} does not answer"
        return f"{who} is here:\n{text}"

    def close(self) -> None:
        self.line.close()
        os.close(self.pidfd)
        os.close(self.stack)


class ProcessGroup:
    """The processes of tasks ``ranks``; ends them when it is left. outputs : of each rank, see
    ChildProcess. standby : processes that wait already, which are taken first; none is left of
    them.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        threads: int,
        job_id: str,
        outputs: Mapping[int, int] | None = None,
        standby: Sequence[ChildProcess] = (),
    ) -> None:
        self.children: list[ChildProcess] = []
        waiting, wanted = list(standby), list(ranks)
        code = preload.memory() if len(wanted) - len(waiting) >= preload.LEAST else None
        try:
            for task in wanted:
                if waiting:
                    child = waiting.pop(0)
                    child.task, child.folder = task, os.getcwd()
                    self.children.append(child)
                else:
                    output = (outputs or {}).get(task)
                    self.children.append(ChildProcess(task, threads, job_id, output, code))
            for child in waiting:
                child.process.kill()
                child.process.wait()
                child.close()
        except BaseException:
            self.stop()
            raise
        finally:
            if code is not None:
                os.close(code)

    def renew(self, ranks: Sequence[int], threads: int, job_id: str) -> None:
        """Others in the place of these, which end at once if they have not."""
        self.drop(ranks)
        for task in ranks:
            self.children.append(ChildProcess(task, threads, job_id))

    def drop(self, ranks: Sequence[int]) -> None:
        """End these at once, if they have not ended, and forget them."""
        old = [child for child in self.children if child.task in ranks]
        for child in old:
            if child.code is None:
                child.process.kill()
        for child in old:
            child.process.wait()
            child.close()
        self.children = [child for child in self.children if child not in old]

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def events(self, timeout_s: float) -> Iterator[tuple[ChildProcess, Any, list[int]]]:
        """What the tasks say within a time: (child, message, descriptors), and (child, exit code)
        as an int once all it said has been passed on.
        """
        poll = select.poll()
        waiting: dict[int, ChildProcess] = {}
        for child in self.children:
            if child.is_open:
                waiting[child.line.fileno()] = child
            if child.code is None:
                waiting[child.pidfd] = child
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(timeout_s, 0.0) * 1000):
            child = waiting[fd]
            if fd == child.pidfd:
                while child.is_open:
                    yield from self._read(child)
                child.code = child.process.wait()
                yield child, child.code, []
            elif child.is_open:
                yield from self._read(child)

    def _read(self, child: ChildProcess) -> Iterator[tuple[ChildProcess, Any, list[int]]]:
        """One message. Of a child that has ended everything is there already, and its end."""
        try:
            got = child.line.receive(LAST_WORD_S)
        except TimeoutError:  # it has ended, but a process of its own holds the line
            got = None
        if got is None:
            child.is_open = False
        else:
            yield child, got[0], got[1]

    def wait(self, timeout_s: float) -> None:
        """For all to end by themselves."""
        ends = time.monotonic() + timeout_s
        for child in self.children:
            if child.code is None:
                try:
                    child.code = child.process.wait(max(ends - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    return

    def kill(self) -> None:
        """End all at once, from any thread; ``events`` tells of it."""
        for child in list(self.children):
            try:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            except OSError:  # it has ended, or is closed
                continue

    def stop(self) -> None:
        """End those that have not ended, and forget all of them."""
        alive = [child for child in self.children if child.code is None]
        for child in alive:
            child.process.terminate()
            if child.is_stopped:
                child.process.kill()  # it could not act on the other
        ends = time.monotonic() + STOP_S
        for child in alive:
            try:
                child.process.wait(max(ends - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        for child in self.children:
            child.close()
        self.children = []
