"""Laws of the tree: undo takes back, replay repeats."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zk import client_wire
from tests.zk.state import Talker, facts, new_service
from zk import record, wire
from zk.acl import OPEN
from zk.errors import Refused
from zk.tree import MOST_ACLS, Tree
from zk.wire import Op, Reader

names = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/z"])
data = st.none() | st.binary(max_size=3)
single = st.one_of(
    st.tuples(st.just(Op.CREATE), st.tuples(names, data, st.just(OPEN), st.integers(0, 4))),
    st.tuples(st.just(Op.DELETE), st.tuples(names, st.sampled_from([-1, 0]))),
    st.tuples(st.just(Op.SET_DATA), st.tuples(names, data, st.sampled_from([-1, 0]))),
)
requests = st.lists(single | st.lists(single, max_size=4), max_size=25)


def ask(talker: Talker, request: Any) -> None:
    if isinstance(request, list):
        talker.raw(Op.MULTI, client_wire.encode_multi(request))
    else:
        talker.call(request[0], *request[1])


def change(tree: Tree, request: Any) -> Any:
    op, fields = request
    if op == Op.CREATE:
        return tree.check_create(*fields, 77, ())
    if op == Op.DELETE:
        return tree.check_delete(*fields, ())
    return tree.check_set_data(*fields, ())


def snapshot(tree: Tree) -> Any:
    nodes = {p: (n.data, n.stat(), n.cversion, set(n.children or ())) for p, n in tree.items()}
    owners = {owner: set(paths) for owner, paths in tree.ephemerals.items()}
    return nodes, owners, set(tree.containers)


@given(st.lists(single, max_size=20), st.lists(single, max_size=8))
def test_undo_in_reverse_order_gives_the_same_tree(before: list[Any], then: list[Any]) -> None:
    tree, zxid, undos = Tree(), 0, []
    for number, request in enumerate(before + then):
        if number == len(before):
            expected = snapshot(tree)
        try:
            txn = change(tree, request)
        except Refused:
            continue
        zxid += 1
        undo = tree.apply(txn, zxid, zxid)[1]
        if number >= len(before):
            undos.append(undo)
    for undo in reversed(undos):
        undo()
    if then:
        assert snapshot(tree) == expected


@settings(max_examples=60)
@given(requests, st.lists(st.integers(0, 24), max_size=3))
def test_replay_of_the_journal_gives_the_same_state(asked: list[Any], closes: list[int]) -> None:
    service = new_service()
    talkers = [Talker(service) for _ in range(3)]
    for talker in talkers:
        talker.connect()
    for number, request in enumerate(asked):
        talker = talkers[number % 3]
        if number in closes and talker.client.session is not None:
            talker.call(Op.CLOSE)
            talker.client.session = None
            talkers[number % 3] = talker = Talker(service)
            talker.connect()
        ask(talker, request)
    again = new_service()
    for entry in service.journal:
        again.replay(record.decode(Reader(record.encode(entry))))
    assert facts(again) == facts(service)


def test_new_tree_is_apache_s() -> None:
    tree = Tree()
    shown = {path: (node.cversion * 2 - len(node.children or ())) for path, node in tree.items()}
    assert shown == {"/": -1, "/zookeeper": -2, "/zookeeper/config": 0, "/zookeeper/quota": 0}
    assert tree.nodes["/zookeeper/config"].aversion == -1
    assert tree.count_below("/") == 3


def test_equal_acls_are_kept_once() -> None:
    tree = Tree()
    for number in range(3):
        acl = (wire.Acl(7, "world", "anyone"),)
        tree.apply(tree.check_create(f"/n{number}", b"", acl, 0, 1, ()), number + 1, 0)
    assert len({id(tree.nodes[f"/n{number}"].acl) for number in range(3)}) == 1


def test_lists_of_nodes_that_are_gone_are_forgotten() -> None:
    """Every job has a list of its own, and a server outlives thousands of them."""
    tree, open_acl = Tree(), (wire.Acl(31, "world", "anyone"),)
    for number in range(3 * MOST_ACLS):
        acl = (wire.Acl(31, "ip", f"10.0.{number // 256}.{number % 256}"), *open_acl)
        tree.apply(tree.check_create("/n", b"", acl, 0, 1, ()), 2 * number + 1, 0)
        tree.apply(tree.check_delete("/n", -1, ()), 2 * number + 2, 0)
    assert len(tree._acls) <= MOST_ACLS
    tree.apply(tree.check_create("/n", b"", open_acl, 0, 1, ()), 6 * MOST_ACLS + 1, 0)
    assert tree.nodes["/n"].acl is OPEN
