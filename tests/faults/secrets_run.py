"""An agent, a submission, a task and their failures, for the search for the key. Experiment 37.

    HORN_KEY=FILE python -m tests.faults.secrets_run FOLDER

uses the key in all ways there are, writes all logs there are to stderr, ends with a traceback when
it is told to (a line on stdin), and keeps its ZooKeeper's data in FOLDER.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys

import zk
from horn.cluster.packing import pack
from horn.cluster.submission import Submission, sign, verify
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.session import Session
from horn.errors import HornError
from horn.process.limits import environment, guard
from horn.rpc.client import ClientKeys, RpcClient
from horn.rpc.server import RpcServer
from horn.security.keys import Key
from horn.transport import Identity, open_transport
from tests.rpc.services import Echo, Text, register

TASK = "import sys; print('task', flush=True); sys.stdin.read()"


def main(folder: str) -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    guard()
    os.umask(0o077)
    key = Key.from_environment()
    assert key is not None
    print(key, repr(key), file=sys.stderr)
    server = zk.EmbeddedServer(data_dir=os.path.join(folder, "zk"))
    with server, Session(server.hosts, credential=key.zookeeper()) as coord:
        jobs = Jobs(coord)
        with open(os.path.join(folder, "job.py"), "w") as file:
            file.write("def job(): ...\n")
        package = pack(os.path.join(folder, "job.py"))
        submission = Submission(job="a-1", target=package.target, package=package.digest)
        jobs.create_signed("a-1", lambda node: sign(key, submission, node))
        spec = coord.get(coord.paths.spec("a-1"))
        assert spec is not None
        raw, node = spec.data, spec
        verify(key, raw, job="a-1", origin=node)
        jobs.change("a-1", JobState.PENDING, JobState.RUNNING)
        service, echo = RpcServer("tcp://127.0.0.1:0", "host-1", key), Echo()
        register(service, echo)
        identity = Identity(0, 1, "a-1", key=key.job("a-1"))
        print(identity, file=sys.stderr)
        access = ClientKeys.of(key, "client", "host-1")
        print(access, file=sys.stderr)
        with service, open_transport("tcp://127.0.0.1:0", identity) as transport:
            print(transport, vars(transport).keys(), file=sys.stderr)
            with RpcClient(service.endpoint, access) as client:
                client.call("echo", Text("x"), Text)
            other = ClientKeys.of(Key(hashlib.sha256(b"other").digest()), "client", "host-1")
            with RpcClient(service.endpoint, other) as client:
                try:
                    client.call("echo", Text("x"), Text)
                except HornError:
                    logging.exception("refused")
            task = subprocess.Popen(
                [sys.executable, "-c", TASK], stdin=subprocess.PIPE,
                env=environment({"HORN_JOB_ID": "a-1"}), start_new_session=True,
            )  # fmt: skip
            print("ready", task.pid, server.hosts, flush=True)
            sys.stdin.readline()
            task.communicate(timeout=10)
        bad = raw.replace(b"a-1", b"b-1")
        try:
            verify(key, bad, job="b-1", origin=node)
        except HornError:
            logging.exception("forged")
        for wrong in (lambda: key.role("admin"), lambda: Key(b"x"), lambda: key + 1):
            try:
                wrong()
            except Exception:
                logging.exception("wrong")
    raise RuntimeError(f"the end of {key!r}")


if __name__ == "__main__":
    main(sys.argv[1])
