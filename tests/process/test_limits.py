"""What a job's process may not: each limit is met in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from horn.process.limits import ALLOWED, ProcessLimits, environment

pytestmark = pytest.mark.cluster

BEGIN = """
import json, os, resource, sys
from horn.process.limits import ProcessLimits, apply, out_of_memory, guard
def tell(**found):
    print(json.dumps(found))
"""


def run(text, *, new_session=True, env=None, pass_fds=(), code=0):
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + text],
        capture_output=True,
        timeout=60,
        start_new_session=new_session,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"} if env is None else env,
        pass_fds=pass_fds,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def test_all_of_it_holds_after_apply():
    found = run("""
apply(ProcessLimits(n_files=200, n_processes=50, file_bytes=10_000_000, memory_bytes=1 << 30,
             address_bytes=8 << 30))
status = dict(l.split(":", 1) for l in open("/proc/self/status").read().splitlines())
limits = {n: resource.getrlimit(getattr(resource, "RLIMIT_" + n))
          for n in ("CORE", "NOFILE", "FSIZE", "DATA", "AS", "NPROC")}
before = os.umask(0)
tell(sid=os.getsid(0) == os.getpid(), group=os.getpgrp() == os.getpid(), umask=before,
     privs=status["NoNewPrivs"].strip(), limits=limits)
""")
    assert found["sid"] and found["group"] and found["umask"] == 0o077 and found["privs"] == "1"
    limits = found["limits"]
    assert limits["CORE"] == [0, 0] and limits["NOFILE"] == [200, 200]
    assert limits["FSIZE"] == [10_000_000] * 2 and limits["DATA"] == [1 << 30] * 2
    assert limits["AS"] == [8 << 30] * 2 and limits["NPROC"][0] >= 50


def test_a_session_is_begun_where_there_is_none():
    assert run(
        "apply(ProcessLimits()); tell(sid=os.getsid(0) == os.getpid())", new_session=False
    ) == {"sid": True}


def test_too_much_memory_is_a_memory_error():
    found = run("""
import numpy as np
apply(ProcessLimits(memory_bytes=1 << 30))
try:
    np.ones(10 << 27)
except MemoryError as error:
    tell(said=out_of_memory(error), small=float(np.ones(1 << 20).sum()))
""")
    assert found["small"] == float(1 << 20)
    assert found["said"].startswith(
        "out of memory: a process may have 1,074 MB here (horn worker --memory, or ulimit -d); "
    )


def test_shared_memory_counts_where_the_address_space_is_limited():
    found = run("""
import mmap
apply(ProcessLimits(address_bytes=4 << 30))
fd = os.memfd_create("x")
os.ftruncate(fd, 8 << 30)
try:
    mmap.mmap(fd, 8 << 30)
except OSError as error:
    tell(error=error.strerror)
""")
    assert found == {"error": "Cannot allocate memory"}


def test_a_file_that_grows_too_large_is_an_error_and_no_death(tmp_path):
    found = run(f"""
apply(ProcessLimits(file_bytes=1000))
try:
    with open({str(tmp_path / "file")!r}, "wb") as file:
        file.write(bytes(5000))
except OSError as error:
    tell(error=error.strerror)
""")
    assert found == {"error": "File too large"}


def test_descriptors_run_out_at_their_number():
    found = run("""
apply(ProcessLimits(n_files=64))
fds = []
try:
    while True:
        fds.append(os.dup(0))
except OSError as error:
    tell(n=len(fds), error=error.strerror)
""")
    assert 40 < found["n"] < 64 and found["error"] == "Too many open files"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_as_another_user_there_is_no_way_back_and_forks_run_out():
    found = run("""
apply(ProcessLimits(uid=54321, gid=54321, n_processes=5))
pids, error = [], ""
for _ in range(50):
    try:
        pid = os.fork()
    except OSError as e:
        error = e.strerror
        break
    if pid == 0:
        import signal
        signal.pause()
        os._exit(0)
    pids.append(pid)
import signal
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
back = ""
try:
    os.setuid(0)
except PermissionError:
    back = "no"
tell(ids=[os.getresuid(), os.getresgid(), os.getgroups()], n=len(pids), error=error, back=back)
""")
    assert found["ids"] == [[54321] * 3, [54321] * 3, []] and found["back"] == "no"
    assert found["n"] <= 5 and found["error"] == "Resource temporarily unavailable"


def test_another_user_is_for_root_alone():
    if os.geteuid() == 0:
        text = "os.setresuid(54321, 54321, 54321)\n"
    else:
        text = ""
    found = run(
        text
        + """
try:
    apply(ProcessLimits(uid=54322))
except Exception as error:
    tell(kind=type(error).__name__, text=str(error))
"""
    )
    assert found["kind"] == "JobError" and "only an agent that runs as root" in found["text"]


def test_descriptors_of_the_agent_are_closed():
    ours, theirs = os.pipe()
    kept = os.dup(ours)
    try:
        found = run(
            f"apply(ProcessLimits(), keep=[{kept}]); "
            "tell(fds=sorted(int(fd) for fd in os.listdir('/proc/self/fd')))",
            pass_fds=(ours, theirs, kept),
        )
    finally:
        for fd in (ours, theirs, kept):
            os.close(fd)
    assert [fd for fd in found["fds"] if fd > 2 and fd != kept] in ([], [3])  # the listing's own


def test_only_what_is_allowed_of_the_environment_comes_along():
    base = {"PATH": "/bin", "LC_ALL": "C", "HORN_KEY": "/key", "AWS_SECRET_ACCESS_KEY": "x",
            "HORN_ZK": "zk:2181", "LD_PRELOAD": "evil.so", "PYTHONSTARTUP": "x.py"}  # fmt: skip
    found = environment({"HORN_JOB_ID": "a-1"}, base)
    assert found == {"PATH": "/bin", "LC_ALL": "C", "HORN_JOB_ID": "a-1"}
    assert not {"HORN_KEY", "HORN_ZK", "LD_PRELOAD", "PYTHONSTARTUP"} & ALLOWED
    os.environ["HORN_NOT_ALLOWED"] = "x"
    try:
        assert "HORN_NOT_ALLOWED" not in environment()
    finally:
        del os.environ["HORN_NOT_ALLOWED"]


def test_it_ends_with_its_parent():
    """Also as another user, which takes the wish back."""
    ids = "uid=54321, gid=54321" if os.geteuid() == 0 else ""
    text = (
        BEGIN
        + f"""
apply(ProcessLimits({ids}), parent=os.getppid())
print("ready", os.getpid(), flush=True)
import signal
signal.pause()
"""
    )
    between = subprocess.Popen(
        [sys.executable, "-c",
         f"import subprocess, sys\n"
         f"done = subprocess.Popen([sys.executable, '-c', {text!r}], start_new_session=True)\n"
         f"done.wait()"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert between.stdout is not None
    pid = int(between.stdout.readline().split()[1])
    pidfd = os.pidfd_open(pid)
    between.send_signal(signal.SIGKILL)
    between.wait()
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(60_000), "it lives on"
    os.close(pidfd)
    between.stdout.close()


def test_a_guarded_process_cannot_be_looked_into():
    found = run("""
guard()
path = f"/proc/{os.getpid()}"
tell(owner=[os.stat(f"{path}/environ").st_uid, os.stat(f"{path}/mem").st_uid],
     core=resource.getrlimit(resource.RLIMIT_CORE))
""")
    assert found == {"owner": [0, 0], "core": [0, 0]}


def test_a_limit_is_never_raised():
    found = run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
apply(ProcessLimits(n_files=5000))
tell(limit=resource.getrlimit(resource.RLIMIT_NOFILE))
""")
    assert found == {"limit": [100, 100]}


def test_a_group_leader_of_another_session_is_told_how_to_start():
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + "apply(ProcessLimits())"],
        capture_output=True, process_group=0, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0 and "start it with start_new_session=True" in done.stderr


def test_a_process_whose_name_is_no_text_is_counted_as_any_other():
    """One such process of anybody on the host, and no process of a job could start."""
    found = run("""
from horn.process.main import peak_memory_bytes
open("/proc/self/comm", "wb").write(b"\\xff\\xfe")
apply(ProcessLimits(n_processes=50))
tell(limit=resource.getrlimit(resource.RLIMIT_NPROC)[0], peak=peak_memory_bytes())
""")
    assert found["limit"] > 50 and found["peak"] > 1e6


def test_limits_are_checked_when_they_are_read():
    import msgspec

    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"memory": 1}', type=ProcessLimits)
