"""horn up: a whole cluster in the foreground, on this machine or on every node of an allocation."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horn.cli import _cluster
from horn.training.interrupts import Ended

if TYPE_CHECKING:
    from horn.cluster.agent import Agent
    from horn.security.keys import Key

PORT = 4675  # of ZooKeeper, where nodes have to find it
START_S = 60.0  # for the nodes to find one another
LEAVE_S = 10.0  # for them to notice the end
END_S = 30.0  # for the agent, which waits for its tasks and for ZooKeeper


@click.command(short_help="All roles on this machine, in the foreground.",
              context_settings={"show_default": True})  # fmt: skip
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- TARGET [OPTIONS]]")
@click.option("--slots", type=click.IntRange(min=1), show_default="the cores",
              help="How many tasks may run on this machine at once.")  # fmt: skip
@click.option("--join", is_flag=True,
              help="Form one cluster with the same command on the other nodes: the first of them "
              "has ZooKeeper. Under Slurm this is known without it.")  # fmt: skip
@click.option("--first", metavar="HOST", help="With --join: the first node, else Slurm says it.")
@click.option("--rank", type=click.IntRange(min=0), help="With --join: this node's number.")
@click.option("--nodes", type=click.IntRange(min=1), help="With --join: how many there are.")
@click.option("--port", type=click.IntRange(0, 65535), help="Of ZooKeeper.",
              show_default=f"{PORT} with several nodes, else a free one")  # fmt: skip
@click.option("--host", "address", metavar="ADDRESS", help="Where others reach this machine.")
@click.option("--dir", "folder", type=click.Path(file_okay=False), metavar="DIR",
              help="For packages, logs and models; by default a folder that goes when the command "
              "ends.")  # fmt: skip
@click.option("--shared", type=click.Path(file_okay=False), metavar="DIR",
              help="A folder that all machines see.")  # fmt: skip
@_cluster.tls_option
@_cluster.key_option
@click.option("--insecure", is_flag=True, help="Accept several nodes without a key.")
def command(words: tuple[str, ...], slots: int | None, join: bool, first: str | None,
            rank: int | None, nodes: int | None, port: int | None, address: str | None,
            folder: str | None, shared: str | None, key_file: str | None,
            insecure: bool) -> int:  # fmt: skip
    """Start ZooKeeper and a worker here, and submit TARGET to them, with the options of horn
    submit; end with its exit code. Without TARGET, run until Ctrl-C.
    """
    from horn.cluster.capacity import HostCapacity, check_address
    from horn.cluster.slurm import slurm

    own, n_nodes, head = slurm(os.environ) or (0, 1, None)
    rank = own if rank is None else rank
    nodes = n_nodes if nodes is None else nodes
    is_joined = join or nodes > 1
    head = first or head
    if is_joined and head is None:
        raise click.UsageError("--join: name the first node with --first HOST")
    _cluster.start_log("WARNING")
    mine = address or (_own_address() if is_joined else "127.0.0.1")
    check_address(mine)
    key = _cluster.key_of(key_file)
    if port is None:
        port = PORT if is_joined else 0
    hosts = f"{head}:{port}" if is_joined else ""
    with ExitStack() as stack:
        if rank == 0:
            here = mine if is_joined else "127.0.0.1"
            hosts = _zookeeper(stack, here, port, hosts, key, insecure)
        capacity = HostCapacity(
            hosts=hosts,
            slots=slots or len(os.sched_getaffinity(0)),
            address=mine,
            name=f"{_cluster.host_name()}-{rank}" if is_joined else "here",
            folder=_cluster.folder("--dir", folder) or _folder(stack),
            shared=_cluster.shared_folder(shared),
            key=key,
            is_insecure=insecure,
        )
        agent = _agent(stack, capacity)
        if rank > 0:
            return _follow(hosts, key_file)
        return _lead(hosts, key_file, agent, nodes, words)


def _own_address() -> str:
    """The address of this machine's name, for the other nodes."""
    import socket

    from horn.errors import JobError
    from horn.security.tls import is_loopback

    name = socket.gethostname()
    try:
        found = socket.gethostbyname(name)
    except OSError as error:
        raise JobError(
            f"this machine's name {name} has no address ({error}); give --host ADDRESS, where the "
            f"other nodes reach it"
        ) from None
    if is_loopback(found):
        raise JobError(
            f"this machine's name {name} is {found} here, which other nodes do not reach; give "
            f"--host ADDRESS, where they do"
        )
    return found


def _zookeeper(
    stack: ExitStack, address: str, port: int, hosts: str, key: Key | None, is_open: bool
) -> str:
    """Start ZooKeeper; off loopback with the key, or --insecure."""
    import zk
    from horn.errors import ClusterError, Conflict, JobError
    from horn.security.tls import is_loopback, is_wanted, server_context

    tls = None
    if key is not None and is_wanted(hosts or f"{address}:{port}"):
        tls = server_context(key)
    elif key is None and not is_open and not is_loopback(address):
        raise JobError(
            f"{address} can be reached from other hosts, and there is no key: make one with  "
            f"horn keygen FILE  and give --key FILE on every node; --insecure does without"
        )
    server = zk.EmbeddedServer(port=port, host=address, tick_ms=500, tls=tls, is_open=is_open)
    try:
        found = stack.enter_context(server).hosts
    except zk.ServerError as error:
        kind = Conflict if error.exit_code == Conflict.exit_code else ClusterError
        raise kind(str(error)) from None
    return hosts or found


def _folder(stack: ExitStack) -> Path:
    """Make a temporary folder."""
    import tempfile

    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="horn-up-")))


def _agent(stack: ExitStack, capacity: Any) -> Agent:
    """Start the agent, in a thread; its failure ends the command, as its error."""
    from horn.cluster.agent import Agent

    agent, failures = Agent(capacity), list[Exception]()

    def run() -> None:
        try:
            agent.run()
        except Exception as error:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)  # wakes the main thread, whatever it waits for

    thread = threading.Thread(target=run, name="horn-agent", daemon=True)

    def end() -> None:
        agent.stop()
        thread.join(END_S)
        if failures:
            raise failures[0]
        if thread.is_alive():
            import logging  # not needed by horn --help

            logging.getLogger(__name__).warning(
                "the worker has not ended within %g s; its tasks end with this command", END_S
            )

    stack.callback(end)
    thread.start()
    return agent


def _lead(
    hosts: str, key_file: str | None, agent: Agent, nodes: int, words: tuple[str, ...]
) -> int:
    """Wait for all nodes, then submit, or wait for Ctrl-C; the others get the exit code."""
    from horn import terminal
    from horn.errors import ClusterError, HornError

    with _cluster.open_cluster(hosts, key_file) as cluster:
        cluster.coord.ensure(f"{cluster.paths.root}/up")
        ends = time.monotonic() + START_S
        while len(cluster.workers()) < nodes:
            if time.monotonic() > ends:
                raise ClusterError(
                    f"{len(cluster.workers())} of {nodes} nodes came within {START_S:g} s"
                )
            time.sleep(0.05)
        code = 130
        try:
            if words:
                members = cluster.workers().values()
                code = _submit(hosts, key_file, words, sum(m.info["slots"] for m in members))
            else:
                terminal.say(
                    f"ZooKeeper {hosts} · {nodes} worker{'s' * (nodes > 1)}. Submit with  "
                    f"horn submit --zk {hosts} FILE   Ctrl-C ends it."
                )
                for_good = threading.Event()
                while not for_good.wait(1.0):  # a signal just before a wait does not end it
                    pass
        except (HornError, Ended) as error:
            code = int(getattr(error, "exit_code", getattr(error, "code", 1)))
            raise
        finally:
            cluster.coord.set(f"{cluster.paths.root}/up", str(code).encode())
            ends = time.monotonic() + LEAVE_S
            while set(cluster.workers()) - {agent.name} and time.monotonic() < ends:
                time.sleep(0.05)
        return code


def _submit(hosts: str, key_file: str | None, words: tuple[str, ...], slots: int) -> int:
    """Run horn submit --zk HOSTS TARGET ...; if it is left, the job ends with the cluster. Raises
    JobError: it needs more slots than there are, and none will come.
    """
    from horn.cli.submit import command as submit
    from horn.errors import JobError

    more = ["--zk", hosts, *(["--key", key_file] if key_file else [])]
    try:
        with submit.make_context("horn submit", [*more, *words]) as context:
            context.meta[_cluster.ENDED_BY] = "horn up"
            asked = context.params
            if asked["detach"]:
                raise JobError("--detach: the job would end with its cluster, at once")
            need = asked["groups"] * asked["tasks"]
            if need > slots and not (asked["local"] or asked["dry_run"]):
                raise JobError(
                    f"--groups {asked['groups']} --tasks {asked['tasks']} need {need} slots, but "
                    f"horn up has started {slots}; ask for fewer, or for more with horn up --slots"
                )
            result = submit.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    return result if isinstance(result, int) else 0


def _follow(hosts: str, key_file: str | None) -> int:
    """Serve until the first node gives the exit code."""
    from horn.errors import ClusterError

    ends = time.monotonic() + START_S
    while True:
        try:
            with _cluster.open_cluster(hosts, key_file) as cluster:
                while True:
                    node = cluster.coord.get(f"{cluster.paths.root}/up")
                    if node is not None and node.data:
                        return int(node.data)
                    ends = time.monotonic() + START_S
                    time.sleep(0.2)
        except ClusterError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
