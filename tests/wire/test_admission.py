"""How many connections a listening socket holds: strangers who open many and say nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horn.transport import Identity, open_transport
from horn.wire.admission import RESERVED
from tests.cluster.helpers import wait_until
from tests.faults.half_open import strangers

pytestmark = [pytest.mark.net, pytest.mark.timeout(120)]
KEY = bytes(range(32))
ROOT = Path(__file__).parents[2]
# A process of a job: it listens, computes in Python, and writes a file now and then.
TASK = """
import os, resource, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from horn.transport import Identity, open_transport
from horn.parameter_server.server_links import ServerLinks
key = bytes(range(32))
task = open_transport("tcp://127.0.0.1:0", Identity(0, 2, "test", 7, key))
hub = ServerLinks("tcp://127.0.0.1:0", Identity(0, 2, "test", 7, key), lambda rank, epoch: False)
print(task.endpoint, hub.endpoint, flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
most = n_files = 0
while not ended.is_set():
    sum(n * n for n in range(20_000))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]  # the 100 files of a save
    most = max(most, len(os.listdir("/proc/self/fd")) - 101)
    n_files += 1
    for fd in opened:
        os.close(fd)
print(most, n_files, task.sockets.admission.n_cut + hub._context.admission.n_cut, flush=True)
hub.close()
task.close()
"""


@pytest.mark.cluster
@pytest.mark.parametrize("n", [3000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_half_open_connections_leave_a_task_its_descriptors(n):
    task = subprocess.Popen(
        [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert task.stdin is not None and task.stdout is not None
    endpoints = task.stdout.readline().decode().split()
    with strangers(n, *endpoints):
        # who belongs here comes in meanwhile, from another address
        with open_transport("tcp://127.0.0.1:0", Identity(1, 2, "test", 7, KEY)) as peer:
            way = peer.sockets
            way.connect([endpoints[0], peer.endpoint], bytes(16))
            wait_until(lambda: (way.gone(), way.connections[0].is_up)[1])
            assert not way.gone()
    task.stdin.close()
    said = task.stdout.readline().split()
    task.stdout.close()
    assert task.wait(30) == 0
    most, n_saves, n_cut = map(int, said)
    assert most <= 1024 - RESERVED + 100, f"{most} descriptors"
    assert n_saves > 0 and n_cut > 0
