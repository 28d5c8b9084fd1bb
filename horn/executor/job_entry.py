"""The entry of a job of this process in ZooKeeper, while it runs."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

from horn.coordination.jobs import Jobs, JobState
from horn.coordination.session import Session
from horn.errors import ClusterError, Conflict, HornError
from horn.job import Job
from horn.training.run_settings import RunSettings

if TYPE_CHECKING:
    import zk

logger = logging.getLogger(__name__)


class JobEntry:
    """The job's entry in ZooKeeper, while it runs; removed at the end.

    server : an embedded one, which is restarted if it ends; the entry is made anew then, as after a
    lost session. Raises ClusterError at the start; later, the tasks report what is missing.
    """

    def __init__(
        self,
        hosts: str,
        job_id: str,
        job: Job,
        settings: RunSettings,
        server: zk.EmbeddedServer | None = None,
    ) -> None:
        self.hosts, self.job_id, self.server, self.state = hosts, job_id, server, JobState.PENDING
        spec = {"name": job.name, "groups": settings.groups, "tasks": settings.tasks,
                "servers": settings.n_servers, "barrier": settings.barrier,
                "transport": settings.transport,
                "layers": [x.size for x in job.network.layers],
                "parent": os.getpid()}  # fmt: skip
        self._spec = json.dumps(spec).encode()
        self.coord = Session(hosts)
        try:
            self.jobs = Jobs(self.coord)
            self.jobs.create(self.job_id, self._spec)
        except BaseException:
            self.coord.close()
            raise

    def restart_ended_server(self) -> None:
        """Restart an ended server; tasks then learn that their sessions are over."""
        if self.server is not None and not self.server.is_running:
            self._renew("the embedded ZooKeeper has ended")

    def change(self, state: JobState) -> None:
        """Write the job's state; make the entry anew if somebody removed it or wrote there."""
        before, self.state = self.state, state
        try:
            self.jobs.change(self.job_id, before, state)
        except HornError as error:  # training needs no entry
            self._renew(str(error))

    def _renew(self, reason: str) -> None:
        """Open another session, after a restart of this process's server if that has ended."""
        import zk

        logger.info("coordination made anew job=%s reason=%s", self.job_id, reason)
        try:
            self.coord.close()
            if self.server is not None and not self.server.is_running:
                self.server.stop()
                self.server.start()
            self.coord = Session(self.hosts)
            self.jobs = Jobs(self.coord)
            if self.coord.get(self.coord.paths.job(self.job_id)) is None:
                self.jobs.forget(self.job_id)  # what lies elsewhere of an entry removed in part
                self.jobs.create(self.job_id, self._spec)
            self.coord.set(self.coord.paths.state(self.job_id), self.state.value.encode())
        except (HornError, zk.ZkError) as error:
            logger.warning("no coordination job=%s reason=%s", self.job_id, error)

    def mark_restarting(self) -> None:
        """Set the state to RESTARTING: a task has failed, maybe during a restart."""
        if self.state is not JobState.RESTARTING:
            self.change(JobState.RESTARTING)

    def mark_running(self) -> None:
        """Set the state to RUNNING after a restart: all tasks have met again."""
        if self.state is JobState.RESTARTING:
            self.change(JobState.RUNNING)

    def __enter__(self) -> JobEntry:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.jobs.forget(self.job_id)
        except (ClusterError, Conflict) as error:
            if self.server is None:  # else it goes with the server
                logger.warning("job not removed job=%s reason=%s", self.job_id, error)
        finally:
            self.coord.close()
