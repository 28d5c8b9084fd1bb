"""The agent of a host: it offers slots, runs orders (``/orders/<host>``), and stands for master.

It runs no user code: a job runner per job does. All its processes end with it, however it ends.
After five sixths of the session time without ZooKeeper it ends its tasks, before others can have
their places; then it registers again. If it stands still itself, its job runners end soon after
that time: its lease, which each answer of ZooKeeper extends, is over then. docs/notes/0060, 0199.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import msgspec

from horn.cluster.capacity import HostCapacity, bracketed, default_folder, terms
from horn.cluster.file_service import FileService
from horn.cluster.job_controller import JobController
from horn.cluster.master import ENDED_PHASES, GONE, RUN, STARTING, HostOrder
from horn.cluster.preparation import JobPreparer, PackageMissing, record_of
from horn.cluster.runner_protocol import AddStandby, Assignment, StandbySize
from horn.cluster.runners import JobRun, RunnerProcess
from horn.cluster.store import HostStore
from horn.cluster.versions import versions
from horn.coordination.membership import FolderView, Membership
from horn.coordination.records import ConnectionSuspended, Event, Reply, SessionExpired, Znode
from horn.coordination.session import Session
from horn.errors import (
    UNREADABLE,
    ClusterError,
    Conflict,
    HornError,
    JobError,
    NotFound,
    ProtocolError,
    SessionLost,
    Unreachable,
)
from horn.process.limits import environment
from horn.rpc.server import RpcServer
from horn.security.audit import AuditLog
from horn.security.tls import INSECURE, credential, is_loopback

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two checks of everything
AGAIN_S = 1.0  # between attempts to reach ZooKeeper
PROGRESS_S = 0.5  # between two writes of a job's progress
# In sessions: between questions to ZooKeeper, and without an answer until jobs here are ended. A
# silent connection is replaced after half a session, which costs nothing.
BEAT, FENCE = 1 / 12, 5 / 6
WITHDRAWN_S = 5.0  # for the orders of an agent that leaves to be withdrawn
KILLED_S = 10.0  # for a process that was killed to end
# A report that ZooKeeper does not take, or that cannot be encoded: it is too large, or too deep.
UNWRITABLE = (JobError, RecursionError)
MAX_WAITING = 8  # tasks that wait for a job, of 50 MB each


class Agent:
    """The agent. ``stop`` ends ``run``, from any thread or signal handler. on_registered : called
    whenever a cluster has taken it. Raises JobError: it would be open to other hosts. Conflict:
    another agent has its folder or name.
    """

    def __init__(self, capacity: HostCapacity) -> None:
        if capacity.key is None and not capacity.is_insecure and not is_loopback(capacity.address):
            raise JobError(
                f"{capacity.address} can be reached from other hosts, and there is no key: whoever "
                f"reaches it could run code here. Make a key with horn keygen and give --key FILE, "
                f"or leave --host out; --insecure accepts it"
            )
        if capacity.is_insecure:
            os.environ[INSECURE] = "1"  # for the job runners and tasks that it starts, too
        self.capacity = capacity
        self.name = capacity.name or f"{platform.node().split('.')[0] or 'host'}"
        threads = max(len(os.sched_getaffinity(0)) // capacity.slots, 1)
        limits, self.user_environment = capacity.limits, dict[str, str]()
        if capacity.user is not None:
            limits = msgspec.structs.replace(limits, uid=capacity.user.uid, gid=capacity.user.gid)
            self.user_environment = capacity.user.environment
        self.waits = StandbySize(0, threads, limits)
        self.runs: dict[str, JobRun] = {}
        self.on_registered: Callable[[], None] = lambda: None
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._save_until = 0.0  # by the monotonic clock: for the jobs here, once it is stopping
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._warm: RunnerProcess | None = None
        self._n_standby = 0  # its tasks
        self._suspended = False
        self._sure_at = 0.0  # time of the last request that ZooKeeper answered: the session lived
        self._stack = ExitStack()
        try:
            folder = capacity.folder or default_folder(self.name)
            self.store = HostStore(folder, capacity.shared, capacity.user)
            self._stack.callback(self.store.close)
            if capacity.user is not None:
                capacity.user.check(folder / "jobs", environment(self.user_environment))
            self.preparer = JobPreparer(capacity, self.name, self.store, threads)
            self.service = RpcServer(
                f"tcp://{bracketed(capacity.address)}:0", self.name, capacity.key,
                audit=AuditLog(), on_failed=self._poke,
            )  # fmt: skip
            self._stack.callback(self.service.close)
            self.file_service = FileService(self.store, self.service, self.runs.keys)
            self._stack.callback(self.file_service.close)
            self.service.start()
        except BaseException:
            self._stack.close()
            os.close(self._wake)
            raise

    def stop(self, save_s: float = 0.0) -> None:
        """End ``run``, once the jobs here are saved and stopped, or after ``save_s`` seconds. A
        second call sets that time anew.
        """
        self._save_until = time.monotonic() + save_s
        self._stopping = True
        self._poke()

    def _poke(self, what: object = None) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _do(self, work: Callable[[], None]) -> None:
        """Run ``work`` soon, in the agent's thread."""
        self._todo.put(work)
        self._poke()

    def run(self) -> None:
        """Serve until ``stop``; end everything that was started. Raises ServiceFailed: a bug ended
        its service.
        """
        try:
            while not self._stopping:
                try:
                    self._session()
                except (SessionLost, Unreachable) as error:
                    logger.warning("agent without ZooKeeper host=%s reason=%s", self.name, error)
                    self._kill_all("its agent lost the connection to ZooKeeper")
                    self._turn(time.monotonic() + AGAIN_S)
        finally:
            self._kill_all("its agent ended")
            if self._warm is not None:
                self._warm.kill()
                self._warm.reap()
            self._stack.close()
            wake, self._wake = self._wake, -1
            os.close(wake)

    # a session with ZooKeeper

    def _session(self) -> None:
        capacity = self.capacity
        own = credential(capacity.key, capacity.hosts)
        self._sure_at = time.monotonic()
        with ExitStack() as stack:
            session = Session(capacity.hosts, session_s=capacity.session_s, credential=own)
            self.coord = coord = stack.enter_context(session)
            if abs(coord.session_s - capacity.session_s) > 0.01 * capacity.session_s:
                logger.warning(
                    "--session %gs: ZooKeeper keeps sessions for 2 to 20 times its tickTime, "
                    "and this one for %gs",
                    capacity.session_s, coord.session_s,
                )  # fmt: skip
            self._suspended = False
            stack.callback(coord.subscribe(self._on_event))
            stack.enter_context(self._beating(coord))
            coord.ensure(coord.paths.jobs(), coord.paths.orders(self.name))
            self.store.cluster = _cluster_id(coord)
            self.workers = Membership(coord, coord.paths.workers())
            stack.callback(self.workers.close)
            member = self._register()
            if member is None:
                return
            self.member = member
            orders = FolderView(coord, coord.paths.orders(self.name), self._poke, self._poke)
            stack.callback(orders.close)
            orders.wait_ready(capacity.session_s)
            controller = JobController(
                coord, self.workers, self.name,
                lambda job, node: terms(self.preparer.submission(job, node)),
            )  # fmt: skip
            stack.callback(controller.close)
            logger.info("agent registered host=%s slots=%d endpoint=%s member=%d", self.name,
                        capacity.slots, self.service.endpoint, self.member)  # fmt: skip
            self.on_registered()
            while not self._stopping:
                self.workers.check()
                self.service.check()  # no agent stays registered that answers nobody
                self._reconcile(orders.nodes())
                self._tell()
                self._keep_warm(controller.free(self.name, capacity.slots))
                self._turn(time.monotonic() + self._patience())
            self._leave(orders)

    def _register(self) -> int | None:
        """Take the host's place, also from an earlier agent of this folder, which has ended; None
        if it was stopped before.
        """
        capacity = self.capacity
        info = {
            "slots": capacity.slots, "address": capacity.address, "pid": os.getpid(),
            "id": self.store.id, "shared": self.store.shared_id, "files": capacity.limits.n_files,
        }  # fmt: skip
        old = self.workers.members({}).get(self.name)  # masters log the workers that they leave out
        is_own = old is not None and old.info.get("id") == self.store.id
        if old is not None and not is_own:
            logger.warning(
                "worker %s is up already, at %s with another --dir; waiting for it to go, at most "
                "%g s; if it is to stay, give this one another --name",
                self.name, old.endpoint, 2 * capacity.session_s,
            )  # fmt: skip
        ends = time.monotonic() + 2 * capacity.session_s
        while not self._stopping:
            try:
                return self.workers.join(
                    self.name, self.service.endpoint, versions=versions(), info=info,
                    replace=is_own, timeout_s=AGAIN_S,
                )  # fmt: skip
            except Conflict:
                if time.monotonic() > ends:
                    raise
        return None

    def _on_event(self, event: Event) -> None:
        self._suspended = isinstance(event, ConnectionSuspended)
        if self._suspended:
            threading.Thread(target=self._fence, name="horn-fence", daemon=True).start()
        if isinstance(event, (ConnectionSuspended, SessionExpired)):
            self._poke()

    def _fence(self) -> None:
        """End jobs when the agent is cut off; in a thread: the agent's may wait for ZooKeeper."""
        pause = threading.Event()
        while self._suspended and self._wake >= 0:
            if self._is_cut_off():
                for run in list(self.runs.values()):
                    run.kill_runner(self._ended(run, "its agent was cut off from ZooKeeper"))
                return
            pause.wait(0.05)

    def _patience(self) -> float:
        """Seconds until the next look."""
        if self._suspended:
            return 0.1
        is_news = any(run.progress is not None for run in self.runs.values())
        return PROGRESS_S if is_news else LOOK_S

    # orders

    def _reconcile(self, nodes: dict[str, Znode]) -> None:
        """Start and end jobs as the orders say."""
        if self._is_cut_off():
            self._kill_all("its agent was cut off from ZooKeeper")
            return
        orders: dict[str, HostOrder] = {}
        for job, node in nodes.items():
            try:
                orders[job] = msgspec.json.decode(node.data, type=HostOrder)
            except UNREADABLE as error:
                logger.error("order not understood job=%s reason=%s", job, error)
        for job, order in orders.items():
            if order.allocation.member != self.member:
                continue  # it was for an agent before this one
            run = self.runs.get(job)
            if run is not None and run.attempt < order.attempt:
                run.aim_at("end")
                if not run.is_over:
                    continue
                run = None
            if run is None:
                run = self.runs[job] = JobRun(job, order, self.member)
                if order.aim == RUN:
                    self._prepare(run)
                else:
                    run.say(GONE)
            if run.attempt == order.attempt:
                run.order = order
                if order.n_scaled > run.n_scaled and self.coord.connected:
                    self._scale(run)
            run.aim_at(order.aim)
        for job, run in list(self.runs.items()):
            found = orders.get(job)
            if found is None or found.attempt > run.attempt:
                run.aim_at("end")
                if run.is_over and (found is None or run.is_told):
                    del self.runs[job]

    def _scale(self, run: JobRun) -> None:
        try:
            run.scale(record_of(self.coord, run.job, run.attempt))
        except (NotFound, ProtocolError) as error:  # as when its attempt has just ended
            logger.warning("groups not changed job=%s reason=%s", run.job, error)

    @contextlib.contextmanager
    def _beating(self, coord: Session) -> Iterator[None]:
        """Send ZooKeeper frequent requests, to know how long the session is sure to last; in a
        thread: the agent's may wait for ZooKeeper, or for a disk.
        """
        is_over = threading.Event()

        def beat() -> None:
            while not is_over.wait(coord.session_s * BEAT):
                if not self._suspended:
                    answered = partial(self._answered, time.monotonic())
                    coord.send(answered, "exists", coord.paths.root)

        thread = threading.Thread(target=beat, name="horn-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _answered(self, asked_at: float, reply: Reply) -> None:
        if not reply.reason:
            self._sure_at = max(self._sure_at, asked_at)
            for run in list(self.runs.values()):
                self._extend(run)

    @property
    def _lease_ends(self) -> float:
        """Until when nobody else can have this agent's place, whatever happens to it."""
        return self._sure_at + self.coord.session_s * FENCE

    def _extend(self, run: JobRun) -> None:
        """Send a job runner the lease, a little longer: an agent that is cut off ends it first, and
        says why. Not one that is over, as before the first answer of a ZooKeeper that came back.
        """
        until = self._lease_ends + self.coord.session_s * BEAT / 2
        if time.monotonic() < until:
            run.extend(until)

    def _is_cut_off(self) -> bool:
        return self._suspended and time.monotonic() > self._lease_ends

    def _prepare(self, run: JobRun) -> None:
        """Fetch a job's files in a thread; then begin it."""
        job, order = run.job, run.order

        def prepare() -> None:
            lacking: tuple[int, ...] = ()
            try:
                assignment = self.preparer.assignment(self.coord, self.workers, job, order)
            except PackageMissing as error:
                why, lacking = str(error), error.workers
            except HornError as error:
                why = str(error)
            except OSError as error:  # a full disk, or a folder that is no longer mounted
                why = (
                    f"{error.filename or 'a file'}: {error.strerror}; see that the folders of its "
                    f"--dir and --shared are there, are its own to write, and have room"
                )
            except Exception as error:  # the top of this thread
                logger.exception("prepare failed job=%s", job)
                why = repr(error)
            else:
                self._do(lambda: self._begin(run, assignment))
                return
            self._do(lambda: self._cannot_begin(run, why, lacking))

        threading.Thread(target=prepare, name="horn-prepare", daemon=True).start()

    def _begin(self, run: JobRun, assignment: Assignment) -> None:
        if run.report.phase in ENDED_PHASES:
            self.store.drop_work(run.job, run.attempt)
            return
        runner, self._warm = self._warm, None
        if runner is not None and runner.process.poll() is not None:
            runner.reap()
            runner = None
        try:
            run.begin(runner or self._runner(0), assignment)  # its tasks are known by now
            self._extend(run)
        except (HornError, OSError) as error:  # no room for its log
            self._cannot_begin(run, error)

    def _cannot_begin(self, run: JobRun, why: object, lacking: tuple[int, ...] = ()) -> None:
        run.kill(f"First failure: worker {self.name} cannot begin: {why}", lacking)

    def _keep_warm(self, n_free: int) -> None:
        """Start a job runner for the next job, with a standby task for each free slot; not while a
        job starts here, which it would slow down, nor without a slot that it could serve.
        """
        n_tasks = min(n_free, MAX_WAITING)
        if n_tasks <= 0 or self._suspended or self._stopping:
            return
        if any(run.report.phase == STARTING for run in self.runs.values()):
            return
        if self._warm is None:
            self._warm = self._runner(n_tasks)
        elif n_tasks > self._n_standby:
            self._warm.send(AddStandby(n_tasks - self._n_standby))
        else:
            return
        self._n_standby = n_tasks

    def _runner(self, n_tasks: int) -> RunnerProcess:
        size = msgspec.structs.replace(self.waits, n_tasks=n_tasks)
        return RunnerProcess(self.name, size, self.user_environment)

    def _tell(self) -> None:
        """Write progress and reports into ZooKeeper; the last progress before the final report,
        after which nobody waits for it.
        """
        if not self.coord.connected:
            return
        paths, now = self.coord.paths, time.monotonic()
        for run in list(self.runs.values()):
            said = run.progress
            if said is not None and (run.is_over or now - run.written_s >= PROGRESS_S):
                try:
                    self.coord.set(paths.progress(run.job), msgspec.json.encode(said))
                except NotFound:
                    pass  # the job is gone
                except UNWRITABLE as error:
                    logger.error("progress not written job=%s reason=%s", run.job, error)
                run.progress, run.written_s = None, now
            if run.is_told or (run.report.phase in ENDED_PHASES and not run.is_over):
                continue  # the final report is sent once nothing runs any more
            run.is_told = True
            path = paths.report(run.job, run.attempt, self.name)
            try:
                self._put(path, msgspec.json.encode(run.report))
            except UNWRITABLE as error:
                run.replace_report(error)
            except NotFound:
                logger.info("job is gone job=%s", run.job)
                run.aim_at("end")
            except BaseException:
                run.is_told = False
                raise

    def _put(self, path: str, data: bytes) -> None:
        try:
            self.coord.set(path, data)
        except NotFound:
            try:
                self.coord.create(path, data)
            except Conflict:
                self.coord.set(path, data)

    # the loop

    def _turn(self, until: float) -> None:
        """Wait for an event, or until a time, and handle it."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        watched: dict[int, tuple[JobRun | None, RunnerProcess]] = {}
        for run, runner in [(None, self._warm), *((r, r.runner) for r in self.runs.values())]:
            if runner is None:
                continue
            line = runner.line.fileno()
            for fd in (runner.pidfd, runner.output, line):
                if fd is not None and (fd != line or runner.is_open):
                    watched[fd] = (run, runner)
                    is_behind = fd == line and runner.line.is_behind
                    poll.register(fd, select.POLLIN | (select.POLLOUT if is_behind else 0))
        now = time.monotonic()
        for run in self.runs.values():
            at = run.tick(now)
            until = until if at is None else min(until, at)
        for fd, event in poll.poll(max(until - now, 0.0) * 1000):
            if fd == self._wake:
                os.eventfd_read(self._wake)
                continue
            if event & select.POLLOUT:
                watched[fd][1].flush()
            if event & ~select.POLLOUT:
                self._hear(fd, *watched[fd])
        while not self._todo.empty():
            self._todo.get()()

    def _hear(self, fd: int, run: JobRun | None, runner: RunnerProcess) -> None:
        if runner is not (self._warm if run is None else run.runner):
            return  # it has just ended
        if fd == runner.output:
            runner.read_output()
        elif fd == runner.pidfd:
            if run is not None:
                run.ended()
                self.store.drop_work(run.job, run.attempt)
                logger.info("job runner ended job=%s attempt=%d phase=%s used=%s", run.job,
                            run.attempt, run.report.phase, run.used)  # fmt: skip
            else:
                runner.reap()
                self._warm = None
                said = runner.unlogged[-2000:].decode(errors="replace")  # cut in a letter, perhaps
                logger.error("the warm job runner ended: %s", said)
        elif runner.is_open:
            if run is None:
                self._hear_warm(runner)
            else:
                run.listen(runner)

    def _hear_warm(self, runner: RunnerProcess) -> None:
        """It says that it is ready. A process that says anything else is killed: its exit is heard
        of, and another takes its place.
        """
        try:
            runner.is_open = runner.line.read() is not None
        except ProtocolError as error:
            logger.error("the warm job runner was ended: %s", error)
            runner.is_open = False
            runner.kill()

    def _kill_all(self, why: str) -> None:
        """End all jobs, now."""
        for run in self.runs.values():
            run.kill(self._ended(run, why))
        for run in self.runs.values():
            if run.runner is not None:
                poll = select.poll()
                poll.register(run.runner.pidfd, select.POLLIN)
                poll.poll(KILLED_S * 1000)
                run.ended()
                self.store.drop_work(run.job, run.attempt)

    def _ended(self, run: JobRun, why: str) -> str:
        n_ranks = len(run.order.allocation.ranks)
        return f"First failure: {n_ranks} tasks on worker {self.name} were ended: {why}"

    def _let_save(self, orders: FolderView) -> None:
        """Do as orders say until no job is left here, or the time is over: the masters see that
        this host offers no slots, and have its jobs save, stop and go on elsewhere.
        """
        left_s = self._save_until - time.monotonic()
        if self.runs and left_s > 0:
            logger.info(
                "agent leaves host=%s jobs=%s; they may save for %.0f s; a second signal ends them",
                self.name, ",".join(sorted(self.runs)), left_s,
            )  # fmt: skip
        while time.monotonic() < self._save_until:
            self._reconcile(orders.nodes())
            for run in self.runs.values():
                if run.report.phase == STARTING:  # nothing is to be saved
                    run.aim_at("end")
            self._tell()
            if all(run.is_over for run in self.runs.values()):
                return
            self._turn(min(time.monotonic() + self._patience(), self._save_until))

    def _leave(self, orders: FolderView) -> None:
        """Leave in order: offer no slots, let jobs save, end those that do not, report, give the
        place back. With its orders' folder goes what ``horn status`` knows a worker by; one that
        still has orders stays known.
        """
        try:
            self.workers.tell(slots=0)  # or ended jobs would be placed here again at once
            self._let_save(orders)
        except ClusterError as error:
            logger.warning("agent leaves, slots kept host=%s reason=%s", self.name, error)
        for run in self.runs.values():
            run.aim_at("end")
        ends = time.monotonic() + 10.0
        while time.monotonic() < ends and not all(r.is_over for r in self.runs.values()):
            self._turn(time.monotonic() + 0.2)
        try:
            self._tell()
            ends = time.monotonic() + WITHDRAWN_S
            while orders.nodes() and time.monotonic() < ends:  # its master does that
                self._turn(time.monotonic() + 0.2)
            orders.close()
            with contextlib.suppress(Conflict):  # it has orders still
                self.coord.delete(self.coord.paths.orders(self.name))
            self.workers.leave()  # last: the next of this name makes its folder after it
        except ClusterError as error:
            logger.warning("agent leaves without a word host=%s reason=%s", self.name, error)


def _cluster_id(coord: Session) -> str:
    """A name of this cluster that no other has: its first node, and when that was made. An ensemble
    may have several clusters, and the first nodes of two ensembles one number.
    """
    coord.sync(coord.paths.root)
    root = coord.get(coord.paths.root)
    assert root is not None, "its folders are below it"
    return f"{root.created:x}-{round(root.made_s * 1000):x}"
