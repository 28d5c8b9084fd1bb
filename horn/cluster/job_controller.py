"""The masters of a host: a candidate for each job, and ``master``'s decisions for those it leads.

One thread for all jobs looks when ZooKeeper has changed. Each decision is one transaction, with the
leadership and the record's version: an overtaken master writes nothing. Jobs begin in the order of
their nodes in ``/active``, which all masters see (docs/notes/0201).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from horn.cluster.master import (
    RUN,
    Decision,
    HostOrder,
    HostReport,
    JobRecord,
    JobSnapshot,
    could_run,
    decide,
    keep_groups,
    of_orders,
    refuse,
)
from horn.cluster.scheduler import Host, ResourceRequest
from horn.coordination.election import Candidate, Leadership, commit_as
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import FolderView, Member, Membership
from horn.coordination.records import Create, Delete, Put, Step, Znode
from horn.coordination.session import Session
from horn.errors import (
    UNREADABLE,
    ClusterError,
    Conflict,
    Fenced,
    HornError,
    JobError,
    NotFound,
    ProtocolError,
    SessionLost,
)

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two checks of everything, in case a change was missed
AGAIN_S = 0.2  # after a refused transaction
UNFINISHED_S = 60.0  # for a job without a state to get one, or to be removed
WATCHED = ("state", "wish", "record")
NOW = b"now"  # a request: stop without saving; why may follow
GROUPS = b"groups="  # a request: so many groups


class JobTerms:
    """The part of a job's description that its master needs."""

    def __init__(self, need: ResourceRequest, max_restarts: int) -> None:
        self.need, self.max_restarts = need, max_restarts


UNKNOWN = JobTerms(ResourceRequest(0, 0), 0)  # of a job that is refused
Read = Callable[[str, Znode], JobTerms]  # reads a job's spec; raises HornError if it may not run


class JobController:
    """A host's masters, until ``close`` or the session's end. read : gives a job's terms."""

    def __init__(self, coord: Session, workers: Membership, who: str, read: Read) -> None:
        self.coord, self.workers, self.who, self.read = coord, workers, who, read
        self._wake = threading.Event()
        self._closing = False
        self._jobs: dict[str, _Candidacy] = {}
        self._next: str | None = None  # cached: the job to begin next, "" if there is none
        self._left_out: dict[str, str] = {}  # workers that are no hosts, and why
        self._wakes_workers = workers.subscribe(self.wake)
        coord.ensure(coord.paths.jobs(), coord.paths.all_active(), coord.paths.all_orders())
        self._names = FolderView(coord, coord.paths.all_active(), self.wake)
        self.orders = FolderView(coord, coord.paths.all_orders(), self.wake, self.wake)
        self._thread = threading.Thread(target=self._run, name="horn-masters", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop leading; the candidacies go with the session."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.clear()
                self._next = None
                wait_s = LOOK_S
                for job in self._known():
                    if self._closing:
                        return
                    if not self._decide(job):
                        wait_s = AGAIN_S
                self._wake.wait(wait_s)
        except SessionLost:
            logger.info("masters end host=%s reason=session over", self.who)
        except Exception:  # top of the thread: the jobs go to another host's masters
            logger.exception("masters of %s failed", self.who)
            self.coord.close()
        finally:
            self._wakes_workers()
            self._names.close()
            self.orders.close()
            for job in self._jobs.values():
                job.close()

    def _known(self) -> list[_Candidacy]:
        nodes = self._names.nodes()
        names = nodes.keys()
        for gone in self._jobs.keys() - names:
            if self._jobs[gone].retire():
                del self._jobs[gone]
        for name in sorted(names - self._jobs.keys(), key=lambda name: nodes[name].created):
            try:
                self._jobs[name] = _Candidacy(self, name)
            except HornError as error:
                self.coord.check()
                logger.warning("job not watched job=%s reason=%s", name, error)
        return list(self._jobs.values())

    def _decide(self, job: _Candidacy) -> bool:
        """Make decisions while there are any; False to look again soon."""
        try:
            while job.step():
                pass
            return True
        except SessionLost:
            raise
        except Fenced:
            job.candidate = None  # it stands again
        except (Conflict, NotFound) as error:  # the nodes have changed since they were read
            logger.debug("overtaken job=%s reason=%s", job.name, error)
        except (ClusterError, JobError) as error:
            self.coord.check()
            logger.warning("master waits job=%s reason=%s", job.name, error)
        return False

    def hosts(self, but: str) -> tuple[dict[str, Host], Mapping[str, Znode]]:
        """Workers with their free slots, a job's own counted as free; and the nodes with the used
        slots. A worker whose node cannot be read is left out, and one whose used slots cannot has
        none free.
        """
        taken = self.orders.nodes()
        found, unread = {}, dict[str, HornError]()
        for name, member in self.workers.members(unread).items():
            used = allocated(name, taken.get(name))
            try:
                found[name] = host_of(member, used, but)
            except ProtocolError as error:
                unread[name] = error
            if used is None:
                unread.setdefault(name, _unread_slots(self.coord.paths.orders(name)))
        left_out = {name: str(error) for name, error in unread.items()}
        for name, reason in left_out.items():
            if self._left_out.get(name) != reason:
                logger.error("worker left out host=%s reason=%s", name, reason)
        self._left_out = left_out
        return found, taken

    def is_next(self, name: str) -> bool:
        """Whether a PENDING job may begin, as far as others wait. All of them are known: they were
        entered before it was, or have run.
        """
        if self._next is None:
            self._next = self._find_next()
        return self._next in ("", name)

    def decided(self) -> None:
        """A decision was written: another job may be the next."""
        self._next = None

    def _find_next(self) -> str:
        """The job to begin next: of those that the workers could run if they ran nothing else, one
        that has run before, else the oldest that is PENDING; "" if there is none.
        """
        nodes, oldest = self._names.nodes(), ""
        for name in sorted(nodes, key=lambda name: nodes[name].created):
            job = self._jobs.get(name)
            state = None if job is None else job.state
            if job is None or not job.nodes.is_ready:
                oldest = oldest or name  # it may be; its view wakes this thread
            elif state is JobState.RESTARTING and job.could_run(state):
                return name
            elif state is JobState.PENDING and not oldest and job.could_run(state):
                oldest = name
        return oldest

    def free(self, host: str, slots: int) -> int:
        """A host's slots without an order; 0 if its node cannot be read."""
        taken = allocated(host, self.orders.nodes().get(host))
        return 0 if taken is None else slots - sum(taken.values())

    def wake(self, what: object = None) -> None:
        self._wake.set()


class _Candidacy:
    """The candidacy of this host for one job; it may be its master."""

    def __init__(self, controller: JobController, name: str) -> None:
        self.controller, self.name = controller, name
        self.coord, self.paths = controller.coord, controller.coord.paths
        self.candidate: Candidate | None = None
        self.refused = self.unread = ""
        self.known_s = time.monotonic()
        at, touch = self.paths, controller.wake
        # The folders are made with the job; one that is being removed must not come back.
        self.nodes = FolderView(self.coord, at.job(name), touch, self._on_data, is_made=True)
        self.leaders = FolderView(self.coord, at.leader(name), touch, is_made=True)
        self.reports = FolderView(self.coord, at.reports(name), touch, touch, is_made=True)

    def retire(self) -> bool:
        """Stop watching an ended job. False to try again: a candidacy left behind could lead."""
        try:
            self._resign()
        except SessionLost:
            raise
        except ClusterError as error:
            logger.warning("candidacy not given up job=%s reason=%s", self.name, error)
            return False
        self.close()
        return True

    def close(self) -> None:
        for view in (self.nodes, self.leaders, self.reports):
            view.close()

    def _on_data(self, name: str) -> None:
        if name in WATCHED:
            self.controller.wake()

    @property
    def state(self) -> JobState | None:
        return _state(self.nodes.nodes().get("state"))

    def could_run(self, state: JobState) -> bool:
        """Whether a job that has no places in this state had them if nothing else ran."""
        nodes = self.nodes.nodes()
        if not {"spec", "record"} <= set(nodes):
            return False
        try:
            terms = self.controller.read(self.name, nodes["spec"])
        except HornError:  # its master refuses it
            return False
        hosts, _ = self.controller.hosts(self.name)
        record = self._record(nodes, terms.need)
        return record is not None and could_run(JobSnapshot(state, terms.need, record, {}, hosts))

    def _record(self, nodes: Mapping[str, Znode], need: ResourceRequest) -> JobRecord | None:
        """The job's record. One that cannot be read is made anew: what runs keeps its places, by
        the orders of its hosts, which came with it. Its trouble says so in horn status, and once
        the log. None if an order cannot be read either: the job is left as it is.
        """
        node, unread = nodes["record"], self.unread
        self.unread = ""
        if not node.data:
            return JobRecord()
        try:
            return msgspec.json.decode(node.data, type=JobRecord)
        except UNREADABLE as error:
            why = (
                f"{self.paths.record(self.name)} cannot be read ({error}), perhaps since another "
                f"version of horn wrote it: "
            )
        record: JobRecord | None = None
        try:
            orders = self._orders()
        except ProtocolError as error:
            why += (
                f"nor can {error}, so it is left as it is; run the version that wrote them, or "
                f"remove it:  horn rm {self.name}"
            )
        else:
            why += (
                "its checkpoint and failures are not known; it goes on where it runs" if orders
                else "the job's places, groups and checkpoint are not known, and it begins anew as "
                "attempt 1"
            )  # fmt: skip
            record = of_orders(orders, need, why)
        self.unread = why
        if unread != why:
            logger.error("record left out job=%s reason=%s", self.name, why)
        return record

    def _orders(self) -> dict[str, HostOrder]:
        """The job's orders by host, read now. Raises ProtocolError: one cannot be read."""
        hosts = self.coord.children(self.paths.all_orders())
        paths = [self.paths.order(host, self.name) for host in hosts]
        found = {}
        for host, path, node in zip(hosts, paths, self.coord.get_each(paths), strict=True):
            if node is None:
                continue
            try:
                found[host] = msgspec.json.decode(node.data, type=HostOrder)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProtocolError(f"its order {path} ({error})") from error
        return found

    def step(self) -> bool:
        """Make one decision, if this is the master and there is one; whether there was."""
        nodes = self.nodes.nodes()
        state = _state(nodes.get("state"))
        if "state" not in nodes and time.monotonic() - self.known_s > UNFINISHED_S:
            if Jobs(self.coord).remove_unfinished(self.name):
                logger.warning("unfinished job removed job=%s", self.name)
            return False
        if state is None or state.is_over or not {"spec", "record"} <= set(nodes):
            self._resign()
            return False
        if self.candidate is None:
            leader, who = self.paths.leader(self.name), self.controller.who.encode()
            self.candidate = Candidate(self.coord, leader, who)
        if not self.candidate.leads(self.leaders.nodes()):
            return False
        why = ""
        try:
            terms = self.controller.read(self.name, nodes["spec"])
        except HornError as error:
            if self.refused != str(error):
                self.refused = str(error)
                logger.error("job refused job=%s reason=%s", self.name, error)
            terms, why = UNKNOWN, str(error)
        record = self._record(nodes, terms.need)
        if record is None:
            return False
        snapshot, taken = self._snapshot(nodes, state, terms, record)
        found = refuse(snapshot, why) if why else decide(snapshot)
        if found is None and self.unread:
            found = Decision(record)  # so that others can read it
        if found is None:
            return False
        leadership = self.candidate.leadership
        try:
            self._write(nodes, snapshot, found, taken, leadership)
        except JobError as error:  # it is too large for a transaction, and would be again
            why = f"{error}. Ask for fewer groups or tasks, or for workers with more slots each"
            logger.error("job too large job=%s reason=%s", self.name, error)
            found = keep_groups(snapshot, why) or refuse(snapshot, why)
            if found is None:
                return False
            self._write(nodes, snapshot, found, taken, leadership)
        return True

    def _resign(self) -> None:
        if self.candidate is not None:
            self.candidate.resign()
            self.candidate = None

    def _snapshot(
        self,
        nodes: Mapping[str, Znode],
        state: JobState,
        terms: JobTerms,
        record: JobRecord,
    ) -> tuple[JobSnapshot, Mapping[str, Znode]]:
        """The state of the job, and the nodes with the used slots of hosts."""
        at = self.paths
        hosts, taken = self.controller.hosts(self.name)
        reports = {}
        for name, node in self.reports.nodes().items():
            attempt, _, host = name.partition("-")
            report = None
            if attempt == str(record.attempt):
                report = _decoded(node, HostReport, f"{at.reports(self.name)}/{name}")
            if report is not None and report.failure is not None:
                failure = msgspec.structs.replace(report.failure, when=node.changed)
                report = msgspec.structs.replace(report, failure=failure)
            if report is not None:
                reports[host] = report
        wish = nodes["wish"].data if "wish" in nodes else b""
        is_now = wish.startswith(NOW)
        snapshot = JobSnapshot(
            state, terms.need, record, reports, hosts, terms.max_restarts,
            is_now, requested_groups(wish), wish[len(NOW) :].decode(errors="replace") * is_now,
            state is not JobState.PENDING or self.controller.is_next(self.name),
        )  # fmt: skip
        return snapshot, taken

    def _write(
        self,
        nodes: Mapping[str, Znode],
        snapshot: JobSnapshot,
        found: Decision,
        taken: Mapping[str, Znode],
        leadership: Leadership,
    ) -> None:
        commit_as(self.coord, leadership, self._steps(nodes, found, taken, snapshot.need))
        self.controller.decided()
        logger.info(
            "decided job=%s attempt=%d state=%s aim=%s allocations=%s reason=%s",
            self.name, found.record.attempt, (found.state or snapshot.state).value,
            found.record.aim, ",".join(found.record.allocations),
            found.record.reason or found.record.trouble,
        )  # fmt: skip
        self._wait_seen(found)

    def _wait_seen(self, found: Decision) -> None:
        """Read the nodes that were written: the views notice later."""
        record = self.coord.get(self.paths.record(self.name))
        state = self.coord.get(self.paths.state(self.name))
        for name, node in (("record", record), ("state", state)):
            if node is not None:
                self.nodes.learn(name, node)
        for host in found.orders:
            node = self.coord.get(self.paths.orders(host))
            if node is not None:
                self.controller.orders.learn(host, node)

    def _steps(
        self,
        nodes: Mapping[str, Znode],
        found: Decision,
        taken: Mapping[str, Znode],
        need: ResourceRequest,
    ) -> list[Step]:
        at, job = self.paths, self.name
        steps: list[Step] = [Put(at.record(job), _ENCODE(found.record), nodes["record"].version)]
        if found.state is not None:
            steps.append(Put(at.state(job), found.state.value.encode(), nodes["state"].version))
            if found.state.is_over:
                steps += [Put(at.wish(job), b""), Delete(at.active(job))]
        if found.result is not None:
            result = msgspec.json.encode(dict(found.result))  # columns in their order, as a run has
            steps.append(Put(at.result(job), result))
        if found.record.checkpoint >= 0:
            note = {"iteration": found.record.checkpoint}
            steps.append(Put(at.checkpoints(job), _ENCODE(note)))
        for host, order in found.orders.items():
            steps += self._order(host, order, taken, need)
        if any(order is None for order in found.orders.values()):
            steps += (Delete(f"{at.reports(job)}/{name}") for name in self.reports.nodes())
        return steps

    def _order(
        self, host: str, order: HostOrder | None, taken: Mapping[str, Znode], need: ResourceRequest
    ) -> list[Step]:
        """The steps that write an order, and the slots that it takes or gives back."""
        path = self.paths.order(host, self.name)
        used = allocated(host, taken.get(host))
        node = taken.get(host)
        if node is None:
            raise NotFound(f"{self.paths.orders(host)} has not been seen yet")
        if used is None:  # whose they are is not known: no job gets any, and others keep theirs
            return [Delete(path) if order is None else Put(path, _ENCODE(order))]
        before = used.pop(self.name, None)
        if order is not None and before is not None and order.aim != RUN:
            used[self.name] = before  # of a refused job the need is unknown
        elif order is not None:
            is_server = need.topology.is_server
            used[self.name] = sum(not is_server(rank) for rank in order.allocation.ranks)
        slots = Put(self.paths.orders(host), _ENCODE(used), node.version)
        if order is None:
            return [slots, Delete(path)]
        if before is None:
            return [slots, Create(path, _ENCODE(order))]
        return [Put(path, _ENCODE(order)), *([slots] if before != used[self.name] else [])]


_ENCODE = msgspec.json.Encoder(order="deterministic").encode


def _decoded(node: Znode | None, kind: Any, path: str) -> Any:
    """Decode a record of horn; None if there is none, or it cannot be read."""
    if node is None or not node.data:
        return None
    try:
        return msgspec.json.decode(node.data, type=kind)
    except UNREADABLE as error:
        logger.warning("not understood path=%s reason=%s", path, error)
        return None


def _state(node: Znode | None) -> JobState | None:
    try:
        return None if node is None else JobState(node.data.decode())
    except ValueError:
        return None


def requested_groups(wish: bytes) -> int:
    """The number of groups that a request asks for, or 0."""
    number = wish.removeprefix(GROUPS)
    return int(number) if wish.startswith(GROUPS) and number.isdigit() and len(number) < 10 else 0


def allocated(host: str, node: Znode | None) -> dict[str, int] | None:
    """The slots that a host's orders have taken, by job; None if they cannot be read."""
    if node is None or not node.data:
        return {}
    found: dict[str, int] | None = _decoded(node, dict[str, int], f"orders/{host}")
    return found


def _unread_slots(path: str) -> ProtocolError:
    return ProtocolError(
        f"{path} cannot be read, so that none of its slots are given to jobs; once it runs none, "
        f"stop this worker and start it again, which makes it anew"
    )


def host_of(member: Member, taken: Mapping[str, int] | None, but: str = "") -> Host:
    """A worker as it registered, less the slots that jobs have ``taken``, but one; all of them, if
    that is None. Raises ProtocolError.
    """
    info, versions = member.info, member.versions
    slots, files = info.get("slots", 0), info.get("files", 0)
    if not isinstance(slots, int) or not isinstance(files, int):
        raise ProtocolError(
            f"workers/{member.name} is not a worker that horn wrote: slots {slots!r} and files "
            f"{files!r} are to be whole numbers"
        )
    used = slots if taken is None else sum(n for job, n in taken.items() if job != but)
    return Host(
        member.name, str(info.get("address", "")), slots, slots - used,
        str(versions.get("horn", "")), str(versions.get("python", "")),
        str(info.get("shared", "")), member.token, files,
    )  # fmt: skip
