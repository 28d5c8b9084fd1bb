"""horn worker: the agent of this host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import click

from horn.cli import _cluster

if TYPE_CHECKING:
    from horn.cluster.agent import Agent

GRACE = "25s"  # Kubernetes kills after 30
END_S = 10.0  # of it, to end in order
UNREACHABLE = 3  # the exit code
LEAST_BYTES = 1 << 28  # with half of it a job's own process cannot start its threads


@click.command(
    short_help="Offer this machine's slots to a cluster.", context_settings={"show_default": True}
)
@_cluster.options
@click.option("--slots", type=click.IntRange(min=1), show_default="the cores",
              help="How many tasks may run here at once.")  # fmt: skip
@click.option("--host", "address", default="127.0.0.1", metavar="ADDRESS",
              help="Where others reach this machine; it is listened on.")  # fmt: skip
@click.option("--name", metavar="NAME", show_default="the machine's", help="In the cluster.")
@click.option("--dir", "folder", type=click.Path(file_okay=False), metavar="DIR",
              show_default="~/.local/state/horn/NAME",
              help="For packages, logs, checkpoints and models.")  # fmt: skip
@click.option("--shared", type=click.Path(file_okay=False), metavar="DIR",
              help="A folder that all machines see: checkpoints go there, so that a job outlives "
              "the loss of a machine.")  # fmt: skip
@click.option("--session", default="6s", metavar="TIME",
              help="After so long without a word a machine is given up.")  # fmt: skip
@click.option("--grace", default=GRACE, metavar="TIME",
              help="After SIGTERM or Ctrl-C it ends within this time; until 10s before, jobs may "
              "save and go on elsewhere. A second signal ends them.")  # fmt: skip
@click.option("--memory", metavar="BYTES", type=click.IntRange(min=LEAST_BYTES),
              help="At most so much private memory per process of a job.")  # fmt: skip
@click.option("--user", metavar="NAME",
              help="Of a worker that runs as root: jobs run as this user instead.")  # fmt: skip
@click.option("--insecure", is_flag=True,
              help="Accept that whoever reaches this machine can run code on it.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Only warnings.")
def command(zk_hosts: str | None, key_file: str | None, slots: int | None, address: str,
            name: str | None, folder: str | None, shared: str | None, session: str, grace: str,
            memory: int | None, user: str | None, insecure: bool, quiet: bool) -> int:  # fmt: skip
    """Run tasks of a cluster's jobs on this machine, until Ctrl-C.

    Off loopback (--host) it needs the cluster's key: make one with horn keygen, copy it to every
    machine, and give --key FILE.
    """
    from horn import terminal
    from horn.cluster.agent import Agent
    from horn.cluster.capacity import HostCapacity
    from horn.cluster.user import JobUser
    from horn.coordination import paths
    from horn.errors import JobError
    from horn.process.limits import ProcessLimits, guard

    if not zk_hosts:
        raise JobError("horn worker needs a ZooKeeper: --zk host:port[,host:port], or HORN_ZK")
    _cluster.start_log("WARNING" if quiet else "INFO", "%(asctime)s %(levelname)s %(message)s")
    key = _cluster.key_of(key_file)
    if key is not None:
        guard()
    capacity = HostCapacity(
        hosts=zk_hosts,
        slots=slots or len(os.sched_getaffinity(0)),
        address=address,
        name=paths.checked("worker", name or _cluster.host_name()),
        folder=_cluster.folder("--dir", folder),
        shared=_cluster.shared_folder(shared),
        key=key,
        is_insecure=insecure,
        session_s=terminal.duration(session, "--session"),
        limits=ProcessLimits(memory_bytes=memory),
        user=None if user is None else JobUser.named(user),
    )
    if user is None and os.geteuid() == 0:
        import logging

        logging.getLogger(__name__).warning(
            "jobs run as root here%s; --user NAME runs them as somebody else",
            "" if key is None else " and can read the key",
        )
    save_s = max(terminal.duration(grace, "--grace") - END_S, 0.0)
    agent = Agent(capacity)

    _end_on_signals(agent, save_s)
    many = f"{capacity.slots} slot{'s' * (capacity.slots > 1)}"
    if not quiet:
        agent.on_registered = lambda: terminal.say(
            f"Worker {agent.name} offers {many} to {zk_hosts}. Ctrl-C ends it."
        )
    agent.run()
    return 0


def _end_on_signals(agent: Agent, save_s: float) -> None:
    """Stop the agent when a signal comes: its jobs have ``save_s`` to save, or until the next one.
    END_S later the process ends, whatever it waits for.

    A thread hears of it from Python's handler in C: the main thread does not if it waits for good,
    or if the signal comes just before it begins to wait.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    heard, told = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(told, False)

    def wait(timeout_s: float | None = None) -> None:
        """Until a signal comes."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while select.select([heard], [], [], ends and max(ends - time.monotonic(), 0.0))[0]:
            if os.read(heard, 1)[0] in numbers:
                return

    def listen() -> NoReturn:
        wait()
        with contextlib.suppress(OSError):  # it ends already
            agent.stop(save_s)
        if save_s > 0:
            wait(save_s)
            with contextlib.suppress(OSError):
                agent.stop()
        time.sleep(END_S)
        text = (
            f"Worker {agent.name} could not end in order within {END_S:g} s; what it started ends"
        )
        os.write(2, f"{text} with it. Its place in ZooKeeper goes with its session.\n".encode())
        os._exit(UNREACHABLE)

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(told)
    for number in numbers:
        signal.signal(number, lambda number, frame: None)
