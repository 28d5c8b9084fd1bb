"""A group over two hosts: TCP with encryption, 1 Gbit/s. The answer is that of one task, and what
goes over the cable is what the plan says.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from horn.backends import make
from tests.executor.host_task import BATCH, N_STEPS, rows, setup
from tests.hosts import hosts, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(100)]
WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_two_hosts_equal_one_task_and_send_what_was_planned():
    described, data = setup()
    alone = make("kernels", described)
    alone.bind(data)
    losses = [alone.step(rows(k), iteration=k, first_sample=k * BATCH) for k in range(N_STEPS)]
    with hosts(2) as net:
        pair = net.hosts
        tasks = [
            host.start(
                sys.executable, "-m", "tests.executor.host_task", str(n), host.address,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for n, host in enumerate(pair)
        ]  # fmt: skip
        try:
            endpoints = [task.stdout.readline().strip() for task in tasks]
            assert all(endpoint.startswith("tcp://10.77.0.") for endpoint in endpoints)
            for task in tasks:
                print(json.dumps(endpoints), file=task.stdin, flush=True)
            assert [task.stdout.readline() for task in tasks] == ["ready\n"] * 2
            before = [host.sent_bytes() for host in pair]
            for task in tasks:
                print(file=task.stdin, flush=True)
            found = [json.loads(task.stdout.readline()) for task in tasks]
            sent = [host.sent_bytes() - b for host, b in zip(pair, before, strict=True)]
            for task in tasks:
                task.communicate("\n", timeout=60)
            assert [task.returncode for task in tasks] == [0, 0]
        finally:
            for task in tasks:
                if task.poll() is None:
                    task.kill()
                    task.wait(10)
    whole = alone.parameters()
    for mine, wire in zip(found, sent, strict=True):
        np.testing.assert_allclose(mine["losses"], losses, rtol=1e-10)
        for name, part in mine["parameters"].items():
            here = tuple(slice(*ends) for ends in mine["places"][name])
            np.testing.assert_allclose(part, whole[name][here], rtol=1e-10, atol=1e-14)
        assert mine["sent_bytes"] > 1_000_000
        assert 1.0 <= wire / mine["sent_bytes"] <= 1.05
