"""The embedded server and Apache's, asked the same by three sessions, answer the same.

Results, codes, stats (times and absolute zxids aside) and the order of events, for every operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import zk
from tests import apache
from tests.zk import client_wire
from tests.zk.parity import TICK_MS, Side
from zk import wire
from zk.acl import digest_id
from zk.tree import Tree
from zk.wire import Acl, Op

pytestmark = [
    pytest.mark.net,
    pytest.mark.java,
    pytest.mark.skipif(not apache.is_available(), reason="no Apache ZooKeeper on this machine"),
]

N_SESSIONS = 3
SUPER = b"super:test"

# Only one session sets persistent watches: in 3.8.0 one on the same path as a one-shot watch of
# the same session replaces it (ZOOKEEPER-4466), here they are two.
PERSISTENT_SESSION = 2

OPEN = (Acl(31, "world", "anyone"),)
ACLS = [
    OPEN,
    OPEN,
    OPEN,
    (Acl(1, "world", "anyone"),),
    (Acl(30, "world", "anyone"),),
    (Acl(15, "world", "anyone"), Acl(31, "digest", digest_id(b"u1:p1"))),
    (Acl(31, "auth", ""),),
    (Acl(31, "digest", digest_id(b"u1:p1")),),
    (Acl(31, "ip", "127.0.0.1"),),
    (Acl(31, "ip", "10.0.0.0/8"), Acl(1, "world", "anyone")),
    (Acl(31, "digest", digest_id(b"u2:p2")), Acl(5, "world", "anyone")),
    (),
    OPEN + OPEN,
    (Acl(31, "nosuch", "x"),),
    (Acl(31, "world", "nobody"),),
    (Acl(31, "digest", "nocolon"),),
    (Acl(31, "ip", "300.1.1.1"),),
]
NAMES = ["", "/a", "/b", "/a/x", "/a/y", "/a/x/z"]
WILD = [
    "",
    "/",
    "noslash",
    "no/slash",
    "/a/",
    "//a",
    "/a//x",
    "/a/.",
    "/a/..",
    "/./a",
    "/a/../b",
    "/\x01",
    "/a\x00b",
    "/a\x7f",
    "/\ufff5",
    "/\ue000",
    "/\U0001f600",
    "/zookeeper",
    "/zookeeper/quota",
    "/zookeeper/config",
    "/missing",
    "/missing/child",
]

sessions = st.integers(0, N_SESSIONS - 1)
plain = st.sampled_from(NAMES).map(lambda name: "@" + name)
paths = st.one_of(
    plain,
    plain,
    plain,
    plain,
    st.sampled_from(WILD),
    st.sampled_from(["@/é", "@/a/", "@//a", "@/a/.", "@/\x01", "@/\U0001f600", "@/a/x/z/q"]),
)
versions = st.sampled_from([-1, -1, -1, 0, 1, 2, -2, 2**31 - 1])
data = st.sampled_from([None, b"", b"x", b"longer data"])
flags = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, -1])
acls = st.sampled_from(ACLS)
watch = st.booleans()

creates = st.tuples(
    st.sampled_from([Op.CREATE, Op.CREATE, Op.CREATE2]), st.tuples(plain, data, acls, flags)
)
# With other flags Apache writes one sort of record and reads another: what comes out varies.
containers = st.tuples(st.just(Op.CREATE_CONTAINER), st.tuples(plain, data, acls, st.just(4)))
wild_creates = st.tuples(
    st.sampled_from([Op.CREATE, Op.CREATE2]), st.tuples(paths, data, acls, flags)
)
deletes = st.tuples(st.just(Op.DELETE), st.tuples(paths, versions))
sets = st.tuples(st.just(Op.SET_DATA), st.tuples(paths, data, versions))
checks = st.tuples(st.just(Op.CHECK), st.tuples(paths, versions))
reads = st.one_of(
    st.tuples(
        st.sampled_from([Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2]),
        st.tuples(paths, watch),
    ),
    st.tuples(
        st.sampled_from([Op.GET_ACL, Op.SYNC, Op.GET_ALL_CHILDREN_NUMBER, Op.GET_EPHEMERALS]),
        # Java's writer turns a character beyond U+FFFF, which sync echoes, into two broken ones.
        st.tuples(paths.filter(lambda path: "\U0001f600" not in path)),
    ),
)
requests = st.one_of(
    creates,
    creates,
    containers,
    wild_creates,
    deletes,
    sets,
    st.tuples(st.just(Op.SET_ACL), st.tuples(paths, acls, versions)),
    reads,
    reads,
    st.tuples(st.just(Op.REMOVE_WATCHES), st.tuples(plain, st.sampled_from([1, 2, 3]))),
    st.tuples(st.sampled_from([Op.WHO_AM_I]), st.just(())),
    # With other flags one such request ends Apache's process (IllegalArgumentException).
    st.tuples(
        st.just(Op.CREATE_TTL),
        st.tuples(plain, data, acls, st.sampled_from([5, 6]), st.sampled_from([1, 5])),
    ),
)
multis = st.lists(
    st.one_of(creates, creates, containers, deletes, sets, checks, wild_creates), max_size=5
)
multi_reads = st.lists(
    st.tuples(st.sampled_from([Op.GET_DATA, Op.GET_CHILDREN]), st.tuples(paths, watch)),
    max_size=4,
)
path_lists = st.lists(plain, max_size=3).map(tuple)
credentials = st.sampled_from(
    [
        ("digest", b"u1:p1"),
        ("digest", b"u2:p2"),
        ("digest", b"nocolon"),
        ("digest", SUPER),
        ("ip", b"anything"),
        ("nosuch", b"x"),
    ]
)


class Pair:
    """Both servers; ``n_operations`` counts what was compared."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.n_examples = self.n_operations = 0


def machine(pair: Pair) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            pair.n_examples += 1
            self.root = f"/p{pair.n_examples}"
            self.sides = [Side(hosts, N_SESSIONS) for hosts in pair.hosts]
            body = client_wire.encode_body(Op.CREATE, (self.root, b"", OPEN, 0))
            self.compare("create root", lambda side: side.call(0, Op.CREATE, body))

        def teardown(self) -> None:
            try:
                for side in self.sides:
                    for index, client in enumerate(side.clients):
                        if client.socket.fileno() >= 0:  # else what failed before is what counts
                            side.call(index, Op.CLOSE, b"")
            finally:
                for side in self.sides:
                    side.close()

        def compare(self, what: Any, act: Any, *, ordered: bool = True) -> Any:
            pair.n_operations += 1
            ours, theirs = [act(side) for side in self.sides]
            assert ours == theirs, f"{what}: answer {ours}, Apache's {theirs}"
            ours_events, theirs_events = [side.settle() for side in self.sides]
            if not ordered:
                # The nodes of a closed session go in no certain order.
                ours_events = [sorted(map(repr, e)) for e in ours_events]
                theirs_events = [sorted(map(repr, e)) for e in theirs_events]
            assert ours_events == theirs_events, (
                f"{what}: events {ours_events}, Apache's {theirs_events}"
            )
            return ours

        def full(self, path: Any) -> Any:
            return path.replace("@", self.root, 1) if isinstance(path, str) else path

        def body(self, op: int, fields: tuple[Any, ...]) -> bytes:
            if not fields:
                return b""
            return client_wire.encode_body(op, (self.full(fields[0]), *fields[1:]))

        def finish(self, index: int, seen: Any) -> None:
            """The server hung up on both: the session goes on with a new connection."""
            if seen[-1] == "closed":
                self.compare("resume", lambda side: side.resume(index))

        @rule(index=sessions, request=requests)
        def ask(self, index: int, request: Any) -> None:
            op, fields = request
            body = self.body(op, fields)
            seen = self.compare((op, fields), lambda side: side.call(index, op, body))
            self.finish(index, seen)

        @rule(index=sessions, ops=multis)
        def multi(self, index: int, ops: Any) -> None:
            ops = [(op, (self.full(fields[0]), *fields[1:])) for op, fields in ops]
            body = client_wire.encode_multi(ops)
            self.compare(("multi", ops), lambda side: side.call(index, Op.MULTI, body))

        @rule(index=sessions, ops=multi_reads)
        def multi_read(self, index: int, ops: Any) -> None:
            ops = [(op, (self.full(fields[0]), *fields[1:])) for op, fields in ops]
            body = client_wire.encode_multi(ops)
            self.compare(("multi read", ops), lambda side: side.call(index, Op.MULTI_READ, body))

        @rule(index=sessions, request=requests, cut=st.integers(0, 20))
        def ask_malformed(self, index: int, request: Any, cut: int) -> None:
            op, fields = request
            body = self.body(op, fields)[: -1 - cut]
            what = ("malformed", op, fields, cut)
            seen = self.compare(what, lambda side: side.call(index, op, body))
            self.finish(index, seen)

        @rule(index=sessions, credential=credentials)
        def authenticate(self, index: int, credential: tuple[str, bytes]) -> None:
            body = client_wire.encode_body(Op.AUTH, (0, *credential))
            seen = self.compare(
                credential, lambda side: side.call(index, Op.AUTH, body, wire.XID_AUTH)
            )
            self.finish(index, seen)

        @rule(mode=st.sampled_from([0, 1, 2, -1]), path=plain)
        def add_watch(self, mode: int, path: str) -> None:
            body = self.body(Op.ADD_WATCH, (path, mode))
            self.compare(
                ("add watch", path, mode),
                lambda side: side.call(PERSISTENT_SESSION, Op.ADD_WATCH, body),
            )

        @rule(
            index=sessions,
            lists=st.tuples(path_lists, path_lists, path_lists),
            age=st.integers(0, 6),
        )
        def set_watches(self, index: int, lists: Any, age: int) -> None:
            full = [tuple(self.full(p) for p in paths) for paths in lists]

            def act(side: Side) -> Any:
                seen = sorted(side.zxids)
                zxid = seen[max(0, len(seen) - 1 - age)]
                body = client_wire.encode_body(Op.SET_WATCHES, (zxid, *full))
                return side.call(index, Op.SET_WATCHES, body, client_wire.XID_SET_WATCHES)

            self.compare(("set watches", full, age), act)

        @rule(index=sessions, op=st.sampled_from([Op.EXISTS, Op.GET_CHILDREN, Op.GET_DATA]))
        def watch_own(self, index: int, op: int) -> None:
            body = self.body(op, (f"@/own{index}", True))
            self.compare(("watch own", op), lambda side: side.call(index, op, body))

        @rule(index=sessions, kind=st.sampled_from([0, 1, 2, 3]))
        def check_own_watches(self, index: int, kind: int) -> None:
            # Only where no other session watches: Apache 3.8.0 counts the watches of all sessions.
            body = self.body(Op.CHECK_WATCHES, (f"@/own{index}", kind))
            self.compare(("check own", kind), lambda side: side.call(index, Op.CHECK_WATCHES, body))

        @rule(index=sessions)
        def create_or_delete_own(self, index: int) -> None:
            create = self.body(Op.CREATE, (f"@/own{index}", b"", OPEN, 0))
            seen = self.compare("create own", lambda side: side.call(index, Op.CREATE, create))
            if seen[-1] != (0, f"{self.root}/own{index}"):
                delete = self.body(Op.DELETE, (f"@/own{index}", -1))
                self.compare("delete own", lambda side: side.call(index, Op.DELETE, delete))

        @rule(index=sessions)
        def resume(self, index: int) -> None:
            self.compare("resume", lambda side: side.resume(index))

        @rule(index=sessions)
        def move(self, index: int) -> None:
            self.compare("move", lambda side: side.move(index))

        @rule(index=sessions)
        def close_and_reopen(self, index: int) -> None:
            def act(side: Side) -> Any:
                # Its own events come before the answer, in no certain order.
                return sorted(map(repr, side.call(index, Op.CLOSE, b"")))

            self.compare("close", act, ordered=False)
            self.compare("reopen", lambda side: side.reopen(index))

        @rule(index=sessions, op=st.sampled_from([999, 0, 10]))
        def ask_the_unknown(self, index: int, op: int) -> None:
            seen = self.compare(("unknown", op), lambda side: side.call(index, op, b""))
            self.finish(index, seen)

    return Machine


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    digest = digest_id(SUPER)
    properties = (
        f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest}",
        "-Dznode.container.checkIntervalMs=3600000",
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        zk.EmbeddedServer(tick_ms=TICK_MS, super_digest=digest) as embedded,
        apache.ApacheServer(tick_ms=TICK_MS, properties=properties) as real,
    ):
        # Each looks after empty containers in a minute of its own: here neither does.
        patch.setattr(Tree, "empty_containers", lambda tree: [])
        yield Pair([embedded.hosts, real.hosts])


def explore(pair: Pair, n_examples: int, n_steps: int) -> None:
    run_state_machine_as_test(
        machine(pair),
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=n_steps,
            deadline=None,
            derandomize="HORN_SEED" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.timeout(120)
def test_embedded_and_apache_answer_the_same(pair: Pair) -> None:
    explore(pair, n_examples=12, n_steps=40)
    assert pair.n_operations >= 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_embedded_and_apache_answer_the_same_ten_thousand_times(pair: Pair) -> None:
    explore(pair, n_examples=200, n_steps=80)
    print(f"operations compared: {pair.n_operations}")
    assert pair.n_operations >= 10_000
