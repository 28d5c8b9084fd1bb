"""The rules of the protocol, one by one, without a socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zk import client_wire
from tests.zk.client import Stat, read_stat
from tests.zk.state import Talker, facts, new_service
from zk import wire
from zk.acl import OPEN, digest_id
from zk.service import FOUR_LETTER_WORDS, Service
from zk.wire import Acl, Code, Connect, Event, Op, Reader

READ = (Acl(1, "world", "anyone"),)
CREATOR = (Acl(31, "auth", ""),)


def talkers(n: int) -> tuple[Service, list[Talker]]:
    service = new_service()
    found = [Talker(service) for _ in range(n)]
    for talker in found:
        talker.connect()
    return service, found


def create(talker: Talker, path: str, flags: int = 0, acl: Any = OPEN, data: bytes = b"") -> Any:
    return talker.call(Op.CREATE, path, data, acl, flags)[-1]


def code(answer: list[Any]) -> int:
    value: int = answer[-1][0]
    return value


def stat_of(talker: Talker, path: str) -> Stat:
    return read_stat(Reader(talker.call(Op.EXISTS, path, False)[-1][1]))


def test_shown_cversion_counts_creates_and_deletes() -> None:
    _, (a,) = talkers(1)
    create(a, "/p")
    for name in "xyz":
        create(a, f"/p/{name}")
    a.call(Op.DELETE, "/p/x", -1)
    stat = stat_of(a, "/p")
    assert (stat.cversion, stat.n_children) == (4, 2)
    assert stat.pzxid > stat.mzxid == stat.czxid


def test_sequence_counts_every_create_and_wraps_nothing_at_ten_digits() -> None:
    service, (a,) = talkers(1)
    create(a, "/p")
    create(a, "/p/plain")
    assert create(a, "/p/s-", flags=2)[1].endswith(b"/p/s-0000000001")
    service.tree.nodes["/p"].cversion = 2**31 - 1
    assert create(a, "/p/s-", flags=2)[1].endswith(b"/p/s-2147483647")
    assert create(a, "/p/s-", flags=2)[1].endswith(b"/p/s--2147483648")


def test_version_skips_minus_one() -> None:
    service, (a,) = talkers(1)
    create(a, "/p")
    service.tree.nodes["/p"].version = -2
    a.call(Op.SET_DATA, "/p", b"", -1)
    assert service.tree.nodes["/p"].version == 0


@pytest.mark.parametrize(
    "path",
    ["", "a", "/a/", "//a", "/a//b", "/.", "/a/../b", "/\x1f", "/\x7f", "/\x00", "/\ue000"]
    + ["/\uffff", "/\U0001f600"],
)
def test_path_that_is_not_plain_is_a_bad_argument(path: str) -> None:
    _, (a,) = talkers(1)
    assert code(a.call(Op.CREATE, path, b"", OPEN, 0)) in (Code.BAD_ARGUMENTS, Code.NO_NODE)
    assert code(a.call(Op.SET_DATA, path, b"", -1)) == Code.BAD_ARGUMENTS


@pytest.mark.parametrize("path", ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"])
def test_the_server_s_own_nodes_stay(path: str) -> None:
    _, (a,) = talkers(1)
    assert code(a.call(Op.DELETE, path, -1)) == Code.BAD_ARGUMENTS


def test_event_comes_before_the_answer_that_shows_the_change() -> None:
    _, (a,) = talkers(1)
    a.call(Op.EXISTS, "/p", True)
    a.call(Op.GET_CHILDREN, "/", True)
    answer = a.call(Op.CREATE, "/p", b"", OPEN, 0)
    assert answer[:2] == [(Event.CREATED, "/p"), (Event.CHILDREN, "/")]
    assert code(answer) == 0


def test_deletion_is_told_once_to_a_holder_of_both_watches() -> None:
    _, (a, b) = talkers(2)
    create(a, "/p")
    b.call(Op.GET_DATA, "/p", True)
    b.call(Op.GET_CHILDREN, "/p", True)
    a.call(Op.DELETE, "/p", -1)
    assert b.events() == [(Event.DELETED, "/p")]


def test_one_shot_watch_fires_once_and_persistent_ones_stay() -> None:
    _, (a, b, c) = talkers(3)
    create(a, "/p")
    a.call(Op.GET_DATA, "/p", True)
    b.call(Op.ADD_WATCH, "/p", 0)
    c.call(Op.ADD_WATCH, "/", 1)
    a.call(Op.SET_DATA, "/p", b"1", -1)
    a.call(Op.SET_DATA, "/p", b"2", -1)
    create(a, "/p/q")
    assert b.events() == [(Event.CHANGED, "/p")] * 2 + [(Event.CHILDREN, "/p")]
    assert c.events() == [(Event.CHANGED, "/p")] * 2 + [(Event.CREATED, "/p/q")]


def test_who_may_not_read_a_node_does_not_hear_of_it() -> None:
    # CVE-2024-23944
    _, (owner, stranger) = talkers(2)
    owner.raw(Op.AUTH, client_wire.encode_body(Op.AUTH, (0, "digest", b"u:p")))
    stranger.call(Op.ADD_WATCH, "/", 1)
    assert create(owner, "/secret", acl=CREATOR)[0] == 0
    owner.call(Op.SET_DATA, "/secret", b"x", -1)
    owner.call(Op.DELETE, "/secret", -1)
    assert stranger.events() == []


def test_password_hashes_are_shown_to_admins_only() -> None:
    # CVE-2019-0201
    _, (a, b) = talkers(2)
    secret = Acl(16, "digest", digest_id(b"u:p"))
    create(a, "/p", acl=(secret, *READ))
    (shown, _) = Reader(b.call(Op.GET_ACL, "/p")[-1][1]).acls()
    assert shown.id == "u:x"
    b.raw(Op.AUTH, client_wire.encode_body(Op.AUTH, (0, "digest", b"u:p")))
    assert Reader(b.call(Op.GET_ACL, "/p")[-1][1]).acls()[0] == secret


def test_failed_multi_changes_nothing_and_says_where() -> None:
    service, (a, b) = talkers(2)
    create(a, "/p")
    b.call(Op.GET_DATA, "/p", True)
    b.call(Op.GET_CHILDREN, "/p", True)
    before = facts(service)
    ops: list[tuple[int, tuple[Any, ...]]] = [
        (Op.CREATE, ("/p/a", b"", OPEN, 1)),
        (Op.SET_DATA, ("/p", b"new", 0)),
        (Op.DELETE, ("/p/a", -1)),
        (Op.CREATE, ("/p/a", b"", OPEN, 2)),
        (Op.CHECK, ("/p", 7)),
        (Op.DELETE, ("/p", -1)),
    ]
    answer = a.raw(Op.MULTI, client_wire.encode_multi(ops))[-1]
    reader = Reader(answer[1])
    codes = []
    while True:
        kind, is_done, shown = reader.int32(), reader.boolean(), reader.int32()
        if is_done:
            break
        assert kind == -1 and shown == reader.int32()
        codes.append(shown)
    assert answer[0] == 0 and codes == [0, 0, 0, 0, Code.BAD_VERSION, -2]
    assert facts(service) == before
    assert b.events() == []


def test_multi_read_with_an_answer_beyond_the_limit_is_refused_and_the_connection_stays() -> None:
    """Twenty kilobytes of reads of one large node took a gigabyte."""
    _, (a,) = talkers(1)
    create(a, "/large", data=bytes(1_000_000))

    def read(n_times: int) -> Any:
        ops = [(Op.GET_DATA, ("/large", False))] * n_times
        return a.raw(Op.MULTI_READ, client_wire.encode_multi(ops))[-1]

    assert read(1200) == (Code.MARSHALLING, b"")
    assert read(4)[0] == Code.OK
    assert read(5) == (Code.MARSHALLING, b"")
    assert stat_of(a, "/large").n_children == 0 and not a.client.is_closing


@pytest.mark.parametrize(
    "change", [(Op.CREATE, ("/p", b"", OPEN, 0)), (Op.DELETE, ("/p", -1)), (Op.CHECK, ("/p", -1))]
)
def test_multi_read_of_changes_is_refused_as_by_apache_and_the_connection_stays(
    change: tuple[int, Any],
) -> None:
    _, (a,) = talkers(1)
    end = b"\xff\xff\xff\xff\1\xff\xff\xff\xff"
    refused = a.raw(Op.MULTI_READ, client_wire.encode_multi([change, change]))[-1]
    assert refused == (Code.MARSHALLING, end)
    assert code(a.call(Op.EXISTS, "/p", False)) == Code.NO_NODE
    assert not a.client.is_closing


def test_ephemerals_go_with_their_session_and_others_hear_of_it() -> None:
    _, (a, b) = talkers(2)
    create(a, "/e", flags=1)
    b.call(Op.EXISTS, "/e", True)
    assert a.call(Op.CLOSE) == [(0, b"")]
    assert b.events() == [(Event.DELETED, "/e")]
    assert a.client.is_closing


def test_session_ends_at_its_deadline_rounded_up_to_a_tick() -> None:
    service = new_service(tick_ms=500)
    a, b = Talker(service), Talker(service)
    a.connect(now_ms=1200, timeout_ms=1000)
    b.connect(now_ms=1200, timeout_ms=10_000)
    create(a, "/e", flags=1)
    a.call(Op.EXISTS, "/e", False, now_ms=1700)
    service.tick(2999, 0)
    assert stat_of(b, "/e").owner
    service.tick(3000, 0)
    assert code(b.call(Op.EXISTS, "/e", False)) == Code.NO_NODE
    assert a.client.is_closing


@pytest.mark.parametrize(("asked", "given"), [(0, 1000), (5000, 5000), (2**31 - 1, 10_000)])
def test_timeout_is_kept_within_two_and_twenty_ticks(asked: int, given: int) -> None:
    answer = Talker(new_service(tick_ms=500)).connect(timeout_ms=asked)
    assert Reader(answer, 4).int32() == given


def reconnect(service: Service, session: int, password: bytes, zxid: int = 0) -> Talker:
    talker = Talker(service)
    talker.send(client_wire.encode_connect(Connect(0, zxid, 5000, session, password, False)))
    return talker


def test_wrong_password_does_not_touch_the_connection_of_the_victim() -> None:
    service, (a,) = talkers(1)
    create(a, "/e", flags=1)
    session = a.client.session
    assert session is not None
    for guess in (bytes(16), b"", session.password[:-1], session.password + b"x"):
        thief = Talker(service)
        answer = thief.send(
            client_wire.encode_connect(Connect(0, 0, 5000, session.id, guess, False))
        )
        assert answer == [wire.encode_connected(0, 0, bytes(16), False)[4:]]
        assert thief.client.is_closing and not a.client.is_closing
    assert code(a.call(Op.EXISTS, "/e", False)) == 0


def test_session_moves_to_its_new_connection_and_the_old_one_is_closed() -> None:
    service, (a,) = talkers(1)
    session = a.client.session
    assert session is not None
    a.call(Op.EXISTS, "/p", True)
    b = reconnect(service, session.id, session.password)
    assert a.client.is_closing and not b.client.is_closing
    create(b, "/p")
    assert a.events() == [] and b.events() == [], "watches are per connection"


def test_client_from_the_future_is_sent_away_without_a_word() -> None:
    service, _ = talkers(1)
    late = reconnect(service, 0, bytes(16), zxid=service.tree.zxid + 1)
    assert late.client.is_closing and late.take() == []


def test_read_only_flag_is_left_out_for_clients_that_leave_it_out() -> None:
    talker = Talker(new_service())
    (answer,) = talker.send(client_wire.encode_connect(Connect(0, 0, 5000, 0, bytes(16), None)))
    assert len(answer) == 36
    (answer,) = Talker(new_service()).send(
        client_wire.encode_connect(Connect(0, 0, 5000, 0, bytes(16), True))
    )
    assert len(answer) == 37


def test_unknown_operation_is_answered_and_hung_up_on() -> None:
    _, (a,) = talkers(1)
    assert a.raw(77, b"") == [(Code.UNIMPLEMENTED, b"")] and a.client.is_closing


def test_malformed_body_is_answered_and_the_connection_stays() -> None:
    _, (a,) = talkers(1)
    assert a.raw(Op.GET_DATA, b"\0\0") == [(Code.MARSHALLING, b"")]
    assert not a.client.is_closing and create(a, "/p")[0] == 0


def test_unknown_auth_scheme_is_refused_and_hung_up_on() -> None:
    _, (a,) = talkers(1)
    answer = a.raw(Op.AUTH, client_wire.encode_body(Op.AUTH, (0, "kerberos", b"x")))
    assert answer == [(Code.AUTH_FAILED, b"")] and a.client.is_closing


def test_set_watches_tells_what_was_missed_and_arms_the_rest() -> None:
    service, (a, b) = talkers(2)
    for path in ("/same", "/changed", "/gone", "/kids", "/calm"):
        create(a, path)
    zxid = service.tree.zxid
    a.call(Op.SET_DATA, "/changed", b"x", -1)
    a.call(Op.DELETE, "/gone", -1)
    create(a, "/kids/k")
    create(a, "/born")
    body = client_wire.encode_body(
        Op.SET_WATCHES,
        (zxid, ("/same", "/changed", "/gone"), ("/born", "/unborn"), ("/kids", "/calm", "/gone")),
    )
    assert b.raw(Op.SET_WATCHES, body)[:-1] == [
        (Event.CHANGED, "/changed"),
        (Event.DELETED, "/gone"),
        (Event.CREATED, "/born"),
        (Event.CHILDREN, "/kids"),
        (Event.DELETED, "/gone"),
    ]
    a.call(Op.SET_DATA, "/same", b"x", -1)
    create(a, "/unborn")
    create(a, "/calm/k")
    assert b.events() == [
        (Event.CHANGED, "/same"),
        (Event.CREATED, "/unborn"),
        (Event.CHILDREN, "/calm"),
    ]


def test_container_goes_when_its_last_child_went() -> None:
    service, (a,) = talkers(1)
    a.call(Op.CREATE_CONTAINER, "/c", b"", OPEN, 4)
    service.tick(1000, 0)
    assert code(a.call(Op.EXISTS, "/c", False)) == 0, "it never had a child"
    create(a, "/c/k")
    a.call(Op.DELETE, "/c/k", -1)
    service.tick(60_999, 0)
    assert "/c" in service.tree.nodes, "it is looked for once a minute"
    service.tick(61_000, 0)
    assert "/c" not in service.tree.nodes


def test_what_is_left_out_says_so() -> None:
    _, (a,) = talkers(1)
    assert code(a.call(Op.RECONFIG)) == Code.RECONFIG_DISABLED
    assert code(a.call(Op.CREATE_TTL, "/t", b"", OPEN, 5, 100)) == Code.UNIMPLEMENTED


def test_super_user_passes_every_acl() -> None:
    service = new_service()
    service._super_digest = digest_id(b"super:s")
    a, b = Talker(service), Talker(service)
    a.connect()
    b.connect()
    a.raw(Op.AUTH, client_wire.encode_body(Op.AUTH, (0, "digest", b"u:p")))
    create(a, "/p", acl=CREATOR)
    assert code(b.call(Op.GET_DATA, "/p", False)) == Code.NO_AUTH
    b.raw(Op.AUTH, client_wire.encode_body(Op.AUTH, (0, "digest", b"super:s")))
    assert code(b.call(Op.GET_DATA, "/p", False)) == 0


@pytest.mark.parametrize("word", sorted(FOUR_LETTER_WORDS))
def test_every_four_letter_word_is_answered(word: bytes) -> None:
    service, _ = talkers(1)
    answer = service.four_letter_word(word).decode()
    expected = {
        "ruok": "imok",
        "isro": "rw",
        "srvr": "Mode: standalone",
        "stat": "Clients:",
        "envi": "zookeeper.version=3.8.0-",
        "mntr": "zk_znode_count\t4",
    }
    wanted = expected.get(word.decode(), "is not executed because it is not in the whitelist.")
    assert wanted in answer
