"""What a job's own credential reaches in ZooKeeper: where its tasks meet, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.exceptions import NoAuthError

from horn import errors
from horn.coordination.barrier import GroupBarrier
from horn.coordination.jobs import Jobs, JobState
from horn.coordination.membership import Membership
from horn.coordination.paths import Paths
from horn.coordination.records import Check, Create, Delete, Put
from horn.coordination.session import Session
from horn.security.keys import Key
from tests.cluster.conftest import Connect, Zookeeper
from tests.cluster.helpers import Call

pytestmark = [pytest.mark.net, pytest.mark.timeout(60)]

KEY = Key(bytes(range(32)))
OURS, THEIRS = "ours-1", "theirs-2"


class Tree:
    """Two jobs of one cluster, a worker with an order, and a session with the first job's
    credential.
    """

    def __init__(self, connect: Connect) -> None:
        self.cluster: Session = connect(credential=KEY.zookeeper())
        self.at: Paths = self.cluster.paths
        jobs = Jobs(self.cluster)
        for job in (OURS, THEIRS):
            jobs.create(job, b"spec", KEY.zookeeper_of(job).id)
        at = self.at
        self.cluster.ensure(at.order("node-a", THEIRS), f"{at.root}/clock-1")
        self.cluster.create(f"{at.workers()}/node-a", b"offer", ephemeral=True)
        self.cluster.set(at.orders("node-a"), b'{"theirs-2":4}')
        with connect(credential=KEY.zookeeper_of(THEIRS)) as other:
            other.ensure(f"{at.members(THEIRS, 0)}/0")
        self.cluster.sync(at.root)
        self.task: Session = connect(credential=KEY.zookeeper_of(OURS))

    def forbidden(self) -> list[str]:
        """Nodes that are there and none of the job's tasks' business."""
        at = self.at
        found = [
            at.root, at.workers(), f"{at.workers()}/node-a", at.all_orders(), at.orders("node-a"),
            at.order("node-a", THEIRS), f"{at.root}/clock-1", at.jobs(),
            f"{at.members(THEIRS, 0)}/0",
        ]  # fmt: skip
        for job in (OURS, THEIRS):
            found += [
                at.job(job), at.spec(job), at.state(job), at.result(job), at.leader(job),
                at.record(job), at.wish(job), at.progress(job), at.reports(job),
                at.checkpoints(job),
            ]  # fmt: skip
        return [*found, at.groups(THEIRS), at.servers(THEIRS), at.runners(THEIRS)]


@pytest.fixture
def tree(connect: Connect) -> Tree:
    return Tree(connect)


def let_in(coord: Session, path: str) -> None:
    """What horn itself never asks for."""
    try:
        coord._client.kazoo.set_acls(path, coord._client.acl)
    except NoAuthError:
        raise errors.AccessDenied(coord.hosts, path, "refused") from None


ACTS: dict[str, Callable[[Session, str], object]] = {
    "read": lambda coord, path: coord.get(path),
    "list": lambda coord, path: coord.children(path),
    "write": lambda coord, path: coord.set(path, b"evil"),
    "add": lambda coord, path: coord.create(f"{path}/evil"),
    "add for a session": lambda coord, path: coord.create(f"{path}/evil", ephemeral=True),
    "delete": lambda coord, path: coord.delete(path),
    "let oneself in": lambda coord, path: let_in(coord, path),
    "see who may": lambda coord, path: coord._query("get_acls", path, timeout_s=20.0),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_jobs_credential_reaches_nothing_of_others(tree: Tree, act: str):
    for path in tree.forbidden():
        if (path, act) == (tree.at.root, "delete"):
            continue  # below ZooKeeper's own root, which is everybody's; it is not empty
        before = tree.cluster.get(path)
        with pytest.raises(errors.AccessDenied):
            ACTS[act](tree.task, path)
            pytest.fail(f"{act} of {path}")
        assert before is not None and tree.cluster.get(path) == before
        assert "evil" not in tree.cluster.children(path)


@pytest.mark.parametrize("step", [Put, Check, Delete, Create])
def test_a_transaction_is_no_way_round(tree: Tree, step: type):
    """Not even with a step that is allowed before."""
    own = Create(f"{tree.at.groups(OURS)}/7")
    for path in tree.forbidden():
        if path == tree.at.root and step is Delete:
            continue
        made = {Put: Put(path, b"evil"), Create: Create(f"{path}/evil")}.get(step) or step(path)
        before = tree.cluster.get(path)
        with pytest.raises(errors.AccessDenied) as caught:
            tree.task.commit([own, made])
        assert str(caught.value).startswith(
            f"ZooKeeper at {tree.task.hosts} refuses access to {made.path}: "
        )
        assert tree.cluster.get(path) == before
        assert tree.cluster.children(tree.at.groups(OURS)) == []


def test_a_watch_tells_nothing_of_others(tree: Tree):
    """Neither data nor names come with it."""
    told: list[object] = []
    for request in ("get", "get_children"):
        for path in tree.forbidden():
            with pytest.raises(errors.AccessDenied):
                tree.task._query(request, path, timeout_s=20.0, watch=told.append)
    tree.cluster.set(tree.at.state(THEIRS), JobState.RUNNING.value.encode())
    tree.cluster.sync(tree.at.root)
    tree.task.sync(tree.at.groups(OURS))
    assert told == []


def test_tasks_meet_and_the_cluster_clears_up_after_them(tree: Tree, connect: Connect):
    at, cluster = tree.at, tree.cluster
    coords = [tree.task, connect(credential=KEY.zookeeper_of(OURS))]
    barriers = []
    members = [Membership(coord, at.members(OURS, 0)) for coord in coords]
    servers = Membership(coords[0], at.servers(OURS))
    pools = Membership(coords[1], at.runners(OURS))
    for number, (coord, membership) in enumerate(zip(coords, members, strict=True)):
        membership.join(str(number), f"tcp://127.0.0.1:{number}")
        barriers.append(
            GroupBarrier(
                coord, at.barrier(OURS, 0), str(number), "01", attempt=3, membership=membership
            )
        )
    servers.join("0", "tcp://127.0.0.1:9")
    pools.join("node-a", "tcp://127.0.0.1:10")
    for generation in range(5):
        calls = [Call(barrier.cross, generation, 20.0) for barrier in barriers]
        for call in calls:
            call.result()
    cluster.sync(at.root)
    # whoever has the cluster's key reads, changes and removes all of it
    assert cluster.children(at.members(OURS, 0)) == ["0", "1"]
    cluster.set(f"{at.members(OURS, 0)}/0", b"{}")
    acl = cluster._acl_of(at.barrier(OURS, 0), 5.0)
    assert [(entry.id.id, entry.perms) for entry in acl] == [
        (KEY.zookeeper().id, 31),
        (KEY.zookeeper_of(OURS).id, 15),  # not to let others in
    ]
    for barrier in barriers:
        barrier.close()
    for membership in (*members, servers, pools):
        membership.close()
    jobs = Jobs(cluster)
    jobs.change(OURS, JobState.PENDING, JobState.FAILED)
    jobs.remove(OURS)
    assert cluster.children(at.jobs()) == [THEIRS]


def test_another_jobs_credential_is_refused_at_the_start(
    zookeeper: Zookeeper, tree: Tree, connect: Connect
):
    with pytest.raises(errors.AccessDenied, match="the key is another one"):
        connect(credential=Key(bytes(range(1, 33))).zookeeper_of(OURS))
    with pytest.raises(errors.NotFound, match="no job 'gone-3'"):
        connect(credential=KEY.zookeeper_of("gone-3"))
    open_root = f"{zookeeper.root}-open"
    Jobs(connect(root=open_root)).create(OURS, b"spec")
    with pytest.raises(errors.AccessDenied, match="made without this key"):
        connect(root=open_root, credential=KEY.zookeeper_of(OURS))
