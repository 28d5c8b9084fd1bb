"""ZooKeeper is away for longer than a session: tasks are ended by their agents, and who says why
says that, not which signal it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horn.coordination.jobs import JobState
from tests.cluster.agents import alive, restartable
from tests.cluster.test_downpour import DOWNPOUR, PER_EPOCH

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
SESSION_S = 3.0


@pytest.mark.parametrize("kind", ["downpour", "allreduce"])
@pytest.mark.parametrize(
    "names",
    [pytest.param("a", marks=pytest.mark.slow, id="one_host"), pytest.param("ab", id="two_hosts")],
)
def test_after_an_outage_no_job_blames_a_signal(tmp_path: Path, kind: str, names: str):
    how: dict[str, Any] = {"checkpoint_every": 20}
    if kind == "downpour":
        how = DOWNPOUR | {"servers": 1}
    with restartable(tmp_path, tmp_path / "zk", SESSION_S) as (server, made):
        made.start(*names, slots=2 // len(names), shared=True)
        with made.client() as client:
            made.wait_known(client)
            job = made.submit(client, "--epochs", "60", *made.held(2 * PER_EPOCH), groups=2,
                              max_restarts=0, **how)  # fmt: skip
            made.wait_running(client, job, 2 * PER_EPOCH)
            tasks = [pid for name in names for pid in made.tasks(name)]
            server.stop()
            made.wait(lambda: not alive(tasks))
            server.start()
            status = made.wait_ended(client, job)
        assert status.state is JobState.FAILED, (status.result, made.said())
        cause = status.result["cause"]
        assert "SIGKILL" not in cause and "ZooKeeper" in cause, (cause, made.said())
