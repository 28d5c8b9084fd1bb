"""The main of a task process: one task of a group, from its payload to its final message.

``executor/processes.py`` starts it with the arguments CONTROL STACK PARENT NAME: two inherited
descriptors, the pid of the process that starts it, with which it ends, and a name to be listed by.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from horn.callbacks import release
from horn.data.augment import AugmentedBatch
from horn.job import Job
from horn.partition.rewrite import homes
from horn.partition.share import Share
from horn.process import control
from horn.process.between_updates import BetweenUpdates
from horn.process.decisions import Decisions
from horn.process.exits import outlive_log, outlive_reader, write_last
from horn.process.failure_report import failure_report
from horn.process.job_payload import OpenedPayload, SharedArrays, open_payload
from horn.process.rendezvous import Rendezvous
from horn.process.reporting import Heartbeats, ProgressReporter, TraceRecorder
from horn.runtime.context import TaskContext
from horn.runtime.group import Group
from horn.schedules import SettableRate
from horn.strategies import TaskEngine, Topology, is_of
from horn.strategies._replica import Replica
from horn.training.batches import BatchSource
from horn.training.hooks import in_task, settable
from horn.training.loop import TrainingLoop
from horn.training.loss_journal import LossJournal
from horn.training.progress import Progress
from horn.wire.frames import Array

if TYPE_CHECKING:  # each task would spend a tenth of its start on imports that few need
    from horn.parameter_server.server import ParameterServer
    from horn.parameter_server.serving import ServerThread
    from horn.process.checkpoints import TaskCheckpoints

PR_SET_NAME = 15
STOP_S = 5.0  # for a server in this process to end once it is done
IDLE_TIMEOUTS = 10  # a server may be idle for so many times a task's deadline
COPIED_AT_ONCE = 1 << 20  # numbers


def peak_memory_bytes() -> int:
    """The most memory that this process has held: its own pages and shared memory, without the
    pages of files (the code of libraries, which all tasks of a host share; some 33 MB).

    Not getrusage: its ru_maxrss begins with what the parent held when it started this process.
    """
    held = {}
    for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssFile"):
            held[name] = int(value.split()[0]) * 1024
    return held["VmHWM"] - held["RssFile"]


class TaskProcess:
    """One task: ``run`` runs it to its end; ``failed`` makes its failure report.

    start, opened : what it is to do, once it has heard of it. stack : closes what it opens.
    """

    start: control.StartTask
    opened: OpenedPayload
    stack: ExitStack
    group_index = 0

    def __init__(self, line: control.ControlChannel) -> None:
        self.line = line
        self.began = time.monotonic()
        self.group: Group | None = None
        self.engine: TaskEngine | None = None
        self.loop: TrainingLoop | None = None
        self.guest: ServerThread | None = None
        self.decisions: Decisions | None = None
        self.losses: LossJournal | None = None
        self.recorder: TraceRecorder | None = None
        self.heartbeats: Heartbeats | None = None
        self.leaves = False
        self.doing = control.STEPS[control.READING]
        self._reporting, self._is_reported = threading.Lock(), False

    def run(self) -> None:
        with suppress(OSError):  # the parent has gone: receive returns None below
            self.enter(control.READING)
        found = self.line.receive(None)  # an agent's processes may wait for long
        if found is None:
            raise SystemExit(0)  # the parent has gone
        start, descriptors = found
        assert isinstance(start, control.StartTask)
        name = f"horn-task-{start.task}"  # for ps and top
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])
        with ExitStack() as stack:
            try:
                self.start, self.stack = start, stack
                if start.folder:
                    os.chdir(start.folder)
                    sys.path.insert(0, start.folder)
                self.opened = opened = open_payload(descriptors)
                if start.task < opened.run.n_groups * opened.run.n_tasks:
                    self._train()
                else:
                    self._serve()
            except BaseException as error:
                # Before the others notice, so that the first failure is the first reported.
                guest = self.guest
                self.report(guest.error if guest is not None and guest.error else error)
                raise

    def enter(self, step: int) -> None:
        """Begin a step of the start, and report it."""
        self.doing = control.STEPS[step]
        self.line.send(control.StartPhase(step))

    def _ready(self, doing: str) -> None:
        """Report the end of the start. doing : the task's position from now on, if in no group."""
        self.doing = doing
        self.line.send(control.GroupReady(time.monotonic() - self.began))

    def _join(self) -> Rendezvous:
        self.enter(control.JOINING)
        start, run = self.start, self.opened.run
        topology = Topology(run.n_groups, run.n_tasks, run.n_servers)
        return Rendezvous(
            start.task, self.opened, topology, self.stack, start.key, start.credential, self.enter
        )

    def _train(self) -> None:
        """Train this task's share of the network to the end of the job."""
        opened, run = self.opened, self.opened.run
        job, rate = opened.job, None
        self.group_index, task = divmod(self.start.task, run.n_tasks)
        watching = in_task(job, self.group_index, task)
        self.stack.callback(release, job.callbacks)
        if run.callbacks:
            job, rate = settable(job)
        context = self._context(job)
        self.engine = engine = opened.strategy.engine(context) or Replica(opened.strategy, context)
        if isinstance(engine, Replica):
            self.stack.callback(engine.close)
        augmented = job.batches()
        engine.bind(job.data if augmented is None else augmented.data)
        opened.forget()
        saver = self._saver(engine)
        self.decisions = None if rate is None else self._decisions(rate, saver)
        self._open_losses()
        between = BetweenUpdates(
            context.group, engine, self.guest, watching, self.decisions, saver,
            self.losses if task == 0 else None, self._is_leaving, self.heartbeats,
        )  # fmt: skip
        self.loop = between.loop = self._loop(context, between, augmented)
        self._begin(between)
        self.loop.run()
        self._end(between, context)

    def _context(self, job: Job) -> TaskContext:
        """Join the others; the context that the strategy makes its engine from."""
        opened, run, rendezvous = self.opened, self.opened.run, self._join()
        self.guest = self._guest(rendezvous)
        is_joined = opened.strategy.is_joined
        discovery = None
        if run.journals:
            from horn.process.server_discovery import ServerDiscovery

            discovery = ServerDiscovery(rendezvous)
            self.stack.callback(discovery.close)
        self.group = group = rendezvous.group()
        if run.max_trace_events:
            group.on_trace = self.recorder = TraceRecorder(run.max_trace_events)
        if not is_joined:
            group.on_run = self.heartbeats = Heartbeats(self.line, run.superstep_timeout_s)
        self.enter(control.COMPILING)
        return TaskContext(
            job, rendezvous.topology, rendezvous.rank, opened.placement, group, rendezvous.wire,
            run.backend, run.threads, _Initial(opened, rendezvous.task), run.superstep_timeout_s,
            check=self._check, servers=discovery, n_first=run.n_first,
            start_s=len(control.STEPS) * run.start_timeout_s, reading=opened.reading,
        )  # fmt: skip

    def _check(self) -> None:
        """Called in waits between batches: send heartbeats, raise the failure of the guest."""
        if self.heartbeats is not None:
            self.heartbeats()
        if self.guest is not None:
            self.guest.check()

    def _saver(self, engine: TaskEngine) -> TaskCheckpoints | None:
        if not self.opened.run.checkpoints:
            return None
        from horn.process.checkpoints import TaskCheckpoints

        return TaskCheckpoints(self.line, self.opened.run, self.start.task, engine)

    def _open_losses(self) -> None:
        """Open the file that all tasks of the group go on from, if servers are durable."""
        if self.opened.run.journals:
            path = Path(self.opened.run.journals) / f"losses-{self.group_index}"
            self.losses = LossJournal(path)
            self.stack.callback(self.losses.close)

    def _decisions(self, rate: SettableRate, saver: TaskCheckpoints | None) -> Decisions:
        """The decisions of the parent's callbacks, which come between messages to the saver."""
        take = self._take if saver is None else saver.take
        decisions = Decisions(
            self.line, self.opened.run, self.start.task, self.opened.strategy.is_joined, rate,
            take, self.send_share,
        )  # fmt: skip
        if saver is not None:
            saver.other = decisions.hear
        return decisions

    def _loop(
        self, context: TaskContext, between: BetweenUpdates, augmented: AugmentedBatch | None
    ) -> TrainingLoop:
        run, job, engine, index = self.opened.run, context.job, between.engine, self.group_index
        is_joined, n_first = self.opened.strategy.is_joined, run.n_first or run.n_groups
        watcher = Progress()
        if context.rank % run.n_tasks == 0:
            watcher = ProgressReporter(self.line, run.interval_s, index, lambda: between.loop.own)
        return TrainingLoop(
            job,
            engine,
            watcher,
            run.begun,
            control=between,
            source=BatchSource(
                job, rows_of=engine.rows_of, deal=index // n_first, augmented=augmented
            ),
            is_share=True,
            views=lambda: engine.views()["parameter"],
            is_watcher=is_joined or index == 0,
            is_apart=not is_joined,
        )

    def _begin(self, between: BetweenUpdates) -> None:
        """Bring the loop to where it begins, and wait there for the group."""
        loop, engine, decisions = between.loop, between.engine, between.decisions
        if self.opened.run.resume:
            self.enter(control.RESUMING)
            self._resume(loop)
        if decisions is not None:
            decisions.recall(loop.recalled)
        if isinstance(engine, Replica) and engine.first_batch:
            loop.skip_to(engine.first_batch, self.losses)
        if between.saver is not None:
            between.saver.loop = loop
        self.enter(control.MEETING)
        between.group.cross()
        self._ready("")
        between.watch("on_train_begin")

    def _end(self, between: BetweenUpdates, context: TaskContext) -> None:
        """Send the parent what the task has made: its share of the model, its trace, its times."""
        loop, guest, recorder = between.loop, self.guest, self.recorder
        between.watch("on_train_end")
        self.line.send(control.StartPhase(control.ENDING))
        if between.saver is not None:
            between.saver.close()
        if loop.is_halted:
            self.line.send(control.TaskFinished(loop.iteration, loop.iteration, is_halted=True))
            return
        ending = loop.finish()
        if guest is not None:
            guest.join(STOP_S, self._check)
        if self.group_index == 0:  # its arrays are the model
            self.send_share()
        if recorder is not None:
            self.line.send(control.TraceEvents(tuple(recorder.events), recorder.n_left_out))
        total = dataclasses.asdict(context.group.spent + context.spent)
        total |= context.group.transport.counters.troubles()
        staleness = {} if guest is None else dict(guest.server.staleness)
        self._finish(total, staleness, **dataclasses.asdict(ending))

    def _finish(self, spent: dict[str, Any], staleness: dict[int, int], **ending: Any) -> None:
        spent["peak_memory_bytes"] = peak_memory_bytes()
        self.line.send(control.TaskFinished(spent=spent, staleness=staleness, **ending))

    def _is_leaving(self) -> bool:
        """Whether the parent has said that this group is to leave."""
        while self.line.wait(0.0):
            said = self.line.next_message()
            if self.decisions is None or not self.decisions.hear(said):
                self._take(said)
        return self.leaves

    def _take(self, said: control.ControlMessage, iteration: int = 0) -> None:
        self.leaves |= isinstance(said, control.LeaveRun) and said.group == self.group_index

    def _resume(self, loop: TrainingLoop) -> None:
        """Resume from a checkpoint. Where each group has a model of its own, it takes its own
        parts; from the checkpoint of another strategy, or of other groups (it was changed
        knowingly), the first.
        """
        from horn.checkpoint import Checkpoints
        from horn.training.checkpointing import part_name, restore

        run, strategy, rank = self.opened.run, self.opened.strategy, self.start.task
        path = Path(run.resume)
        saved = Checkpoints(path.parent).open(path, verify=False)
        wrote = str(saved.facts.get("identity", {}).get("strategy", ""))
        is_same = is_of(wrote, strategy.name)
        has_own = not strategy.is_joined and is_same and saved.facts.get("groups") == run.n_groups
        own = rank // run.n_tasks if has_own else None
        topology = Topology(run.n_groups, run.n_tasks, run.n_servers)
        scales = strategy.scales(loop.job, topology)
        facts = restore(loop, saved, part_name(rank), own, run.earlier_s, scales=scales)
        if is_same and "aside" in facts:  # else it was one task, without a strategy
            assert self.engine is not None
            self.engine.recall_aside(facts["aside"])

    def _serve(self) -> None:
        """Run a server to its end."""
        run, rank = self.opened.run, self.start.task
        rendezvous = self._join()
        topology = rendezvous.topology
        server = _server(self.opened, topology, rank - topology.n_workers)
        doing = f"serving as {topology.name(rank)}"
        idle_s = IDLE_TIMEOUTS * run.superstep_timeout_s
        if run.journals:
            from horn.process.server_discovery import served

            self.enter(control.RESUMING)
            spent = served(rendezvous, server, idle_s, lambda: self._ready(doing))
        else:
            from horn.parameter_server.serving import mesh_of, serve

            wire = rendezvous.server_wire()
            self._ready(doing)
            others_s = len(control.STEPS) * run.start_timeout_s  # tasks compile first
            total = serve(server, mesh_of(server, wire, idle_s, others_s), idle_s)
            spent = dataclasses.asdict(total)
        self._finish(spent, dict(server.staleness))

    def _guest(self, rendezvous: Rendezvous) -> ServerThread | None:
        """Start the server in a thread of this task's process; None if there is none."""
        opened, wire = self.opened, rendezvous.guest_wire
        if wire is None:
            return None
        from horn.parameter_server.serving import ServerThread

        server = _server(opened, rendezvous.topology, rendezvous.rank)
        idle_s = IDLE_TIMEOUTS * opened.run.superstep_timeout_s
        guest = ServerThread(server, wire, idle_s, self.report)
        guest.start(rendezvous.wires(), len(control.STEPS) * opened.run.start_timeout_s)
        return guest

    def send_share(self) -> None:
        """Send this task's part of every array, through shared memory."""
        engine = self.engine
        assert engine is not None
        memory = SharedArrays()
        try:
            parts = [(k, n, a) for k, found in engine.views().items() for n, a in found.items()]
            arrays: dict[str, Array] = {}
            for kind, name, array in parts:
                arrays[f"{kind}/{name}"] = array
                for axis, at in enumerate(engine.places(name)):
                    if not isinstance(at, slice):
                        arrays[f"{kind}/{name}@{axis}"] = np.ascontiguousarray(at, np.int64)
            specs = memory.add(arrays, "share")
            described = []
            for kind, name, array in parts:
                key, dtype = f"{kind}/{name}", array.dtype.str
                places = tuple(
                    (at.start or 0, at.stop, at.step or 1)
                    if isinstance(at, slice)
                    else (specs[f"{key}@{axis}"].offset, len(at))
                    for axis, at in enumerate(engine.places(name))
                )
                offset = specs[key].offset
                described.append(control.ArrayPart(kind, name, dtype, array.shape, offset, places))
            self.line.send(control.ArrayShare(tuple(described)), memory.descriptors)
        finally:
            memory.close()

    def report(self, error: BaseException) -> None:
        """Send the final message of a task that failed, once."""
        with self._reporting:
            if self._is_reported:
                return
            self._is_reported = True
            trouble = self.loop.guard.trouble if self.loop is not None else None
            if trouble is not None:  # with all shares the parent can name the neurons
                with suppress(Exception):  # without this one, as many as come
                    self.send_share()
            try:
                said = self.failed(error)
            except Exception as met:  # as of an error of the user's that cannot say what it is
                said = self.failed(met)
            with suppress(OSError):  # the parent has gone
                self.line.send(said)

    def failed(self, error: BaseException) -> control.FailureReport:
        group, loop = self.group, self.loop
        where, label = self.doing, ""
        if group is not None and not self.doing:
            step = group.state.step
            group.state.fail(type(error).__name__, str(error))
            assert group.state.failure is not None
            where, label = group.state.failure.where, "" if step is None else step.label
        trouble = None if loop is None else loop.guard.trouble
        return failure_report(error, where, label, trouble)


def _server(opened: OpenedPayload, topology: Topology, number: int) -> ParameterServer:
    """Server ``number`` of the job's strategy."""
    from horn.parameter_server.pieces import cut_parameters

    job = opened.job
    cut = cut_parameters(job.network, opened.placement, topology, job.dtype)
    return opened.strategy.server(job, number, cut, topology)


class _Initial(Mapping[str, Array]):
    """This task's share of initial arrays, copied in pieces: little of the whole is in memory."""

    def __init__(self, opened: OpenedPayload, task: int) -> None:
        self.opened, network = opened, opened.job.network
        self.share = Share(network, task, opened.run.n_tasks)
        self.at = homes(network, opened.placement)
        self.whole = {**opened.parameters, **opened.states}

    def __getitem__(self, name: str) -> Array:
        part = self.share.part(self.whole[name], self.at[name])
        copy = np.empty(part.shape, part.dtype)
        step = max(COPIED_AT_ONCE * len(part) // max(part.size, 1), 1)
        for start in range(0, len(part), step):
            copy[start : start + step] = part[start : start + step]
            self.opened.forget()
        return copy

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def main() -> int:
    """Run one task; 0 if it went well, else 1, with the reason sent to the parent."""
    gc.freeze()  # imported modules stay; collecting was put off (executor/processes.py)
    gc.enable()
    line_fd, stack_fd = map(int, sys.argv[1:3])
    for fd in (line_fd, stack_fd):
        os.set_inheritable(fd, False)
    outlive_log()
    outlive_reader()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stack_fd)  # whichever thread the signal meets
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    line = control.ControlChannel(socket.socket(fileno=line_fd))
    try:
        TaskProcess(line).run()
    except Exception:  # the parent has its report, if it can receive any
        return 1
    return 0


def end(code: int) -> NoReturn:
    """Exit at once: the teardown of an interpreter takes a tenth of a second."""
    write_last()
    os._exit(code)


if __name__ == "__main__":
    end(main())
