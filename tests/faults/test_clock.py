"""The wall clock jumps by hours and years: nothing that waits looks at it (experiment 25)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time

import pytest

from horn.coordination.records import ConnectionSuspended, SessionExpired
from horn.coordination.session import Session
from tests.faults import clock
from tests.faults.network_task import Spec, Tasks
from tests.hosts import ROOT, hosts, why_not

HOUR_S, YEAR_S = 3600, 365 * 24 * 3600
JUMPS = [HOUR_S, -HOUR_S, YEAR_S, -YEAR_S]
# What is written down for people, or kept in ZooKeeper's nodes as its protocol has it.
# Dates, ages, when a line of a log was written, the skew that ``horn doctor`` looks for, and
# whether a certificate is valid.
ALLOWED = {
    "horn/model.py": 2, "zk/server.py": 1, "horn/cli/doctor.py": 2,
    "horn/cluster/job_status.py": 1, "horn/cluster/relay.py": 2, "horn/cluster/store.py": 2,
    "horn/cli/logs.py": 2, "horn/security/tls.py": 1,
}  # fmt: skip
WALL = re.compile(
    r"time\.time\(|time_ns\(|\.now\(|\.utcnow\(|\.today\(|gmtime|localtime|CLOCK_REAL"
)

needs_clock = pytest.mark.skipif(bool(clock.why_not()), reason=clock.why_not())


def test_only_dates_for_people_come_from_the_wall_clock():
    found = {}
    for path in sorted([*ROOT.glob("horn/**/*.py"), *ROOT.glob("zk/**/*.py")]):
        lines = [line for line in path.read_text().splitlines() if WALL.search(line)]
        lines = [line for line in lines if "monotonic" not in line]
        if lines:
            found[str(path.relative_to(ROOT))] = len(lines)
    assert {name: n for name, n in found.items() if n > ALLOWED.get(name, 0)} == {}


@pytest.fixture
def wrong(tmp_path):
    return clock.Clock(tmp_path)


@pytest.mark.cluster
@needs_clock
def test_a_process_has_the_wrong_clock_and_its_monotonic_one_is_right(wrong):
    wrong.jump(YEAR_S)
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), "
    code += "time.monotonic())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=wrong.environment, capture_output=True, text=True
    )
    wall, date, monotonic = map(float, done.stdout.split())
    assert abs(wall - time.time() - YEAR_S) < 30 and abs(date - wall) < 30
    assert abs(monotonic - time.monotonic()) < 30


@pytest.mark.cluster
@needs_clock
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_task_whose_clock_jumps_trains_as_ever(wrong):
    pause = threading.Event()
    with hosts(2) as net:
        digests = []
        for jumps in ([], JUMPS):
            net.slow(10)
            with Tasks(net.hosts, Spec(n_steps=12), wrong.environment) as tasks:
                tasks.go()
                for jump in jumps:
                    wrong.jump(jump)
                    pause.wait(0.2)
                results = tasks.results()
            net.heal()
            assert all("error" not in result for result in results), results
            digests.append([result["digest"] for result in results])
    assert digests[0] == digests[1]


CLIENT = """
import json, sys, threading
from horn.coordination.session import Session
from horn.coordination.membership import Membership
events = []
with Session(sys.argv[1], session_s=10.0) as coord:
    coord.subscribe(lambda event: events.append(type(event).__name__))
    members = Membership(coord, "/horn/workers")
    members.join("jumper", "here")
    print("here", flush=True)
    while sys.stdin.readline() != "end\\n":
        print(*members.members(), flush=True)
    found = [coord.session_s, sorted(members.members()), list(events)]
    print(json.dumps(found), flush=True)
"""


@pytest.mark.cluster
@needs_clock
@pytest.mark.parametrize("who", ["server", "client"])
def test_no_session_ends_because_a_clock_jumps(wrong, who):
    pause = threading.Event()
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    words = [sys.executable, "-m", "zk", "--port", "0", "--tick-ms", "500"]
    env = wrong.environment
    with subprocess.Popen(words, env=env if who == "server" else None, **how) as server:
        try:
            address = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline()).group()
            words = [sys.executable, "-c", CLIENT, address]
            with (
                subprocess.Popen(words, env=env if who == "client" else None, **how) as client,
                Session(address, session_s=10.0) as coord,
            ):
                events = []
                coord.subscribe(events.append)
                assert client.stdout.readline() == "here\n"
                for jump in JUMPS:
                    wrong.jump(jump)
                    pause.wait(0.7)  # more than a tick
                    print(file=client.stdin, flush=True)
                    assert client.stdout.readline() == "jumper\n"
                print("end", file=client.stdin, flush=True)
                session_s, names, theirs = json.loads(client.stdout.readline())
                assert not [
                    event
                    for event in events
                    if isinstance(event, (SessionExpired, ConnectionSuspended))
                ]
                client.communicate(timeout=20)
            assert session_s == 10.0 and names == ["jumper"] and theirs == []
        finally:
            server.terminate()
