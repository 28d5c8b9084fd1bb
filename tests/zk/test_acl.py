"""Access lists: what is stored, who passes."""

from __future__ import annotations

import pytest

from zk import acl
from zk.errors import Refused
from zk.wire import Acl, Code

ME = (("ip", "127.0.0.1"), ("digest", "u:hash"))


def test_digest_is_over_bytes_not_text() -> None:
    # echo -n super:test | openssl dgst -sha1 -binary | base64
    assert acl.digest_id(b"super:test") == "super:D/InIHSb7yEEbrWz8b9l71RjZJU="
    assert acl.digest_id(b"u:\xff") != acl.digest_id("u:\xff".encode())


def test_auth_becomes_the_caller_s_own_ids() -> None:
    stored = acl.fix((Acl(31, "auth", ""), Acl(31, "auth", ""), Acl(1, "world", "anyone")), ME)
    assert stored == (Acl(31, "digest", "u:hash"), Acl(1, "world", "anyone"))


@pytest.mark.parametrize(
    "bad",
    [
        (),
        (Acl(31, "auth", ""),),
        (Acl(31, None, "x"),),
        (Acl(31, "world", "nobody"),),
        (Acl(31, "nosuch", "x"),),
        (Acl(31, "digest", "nocolon"),),
        (Acl(31, "digest", "a:b:c"),),
        (Acl(31, "digest", None),),
        (Acl(31, "ip", "1.2.3"),),
        (Acl(31, "ip", "1.2.3.4/33"),),
        (Acl(31, "ip", "1.2.3.4/255.255.0.0"),),
        (Acl(31, "ip", "1.2.3.4/"),),
        (Acl(31, "ip", "::1"),),
    ],
)
def test_list_that_means_nothing_is_refused(bad: acl.Acls) -> None:
    with pytest.raises(Refused) as caught:
        acl.fix(bad, (("ip", "127.0.0.1"),))
    assert caught.value.code == Code.INVALID_ACL


@pytest.mark.parametrize(
    ("entry", "passes"),
    [
        (Acl(1, "world", "anyone"), True),
        (Acl(2, "world", "anyone"), False),
        (Acl(1, "digest", "u:hash"), True),
        (Acl(1, "digest", "v:hash"), False),
        (Acl(1, "ip", "127.0.0.1"), True),
        (Acl(1, "ip", "127.0.0.0/8"), True),
        (Acl(1, "ip", "10.0.0.0/8"), False),
        (Acl(1, "ip", "10.0.0.0/0"), True),
        (Acl(0, "world", "anyone"), False),
    ],
)
def test_who_passes(entry: Acl, passes: bool) -> None:
    assert acl.allows((entry,), acl.READ, ME) is passes
    assert acl.allows((entry,), acl.READ, (*ME, acl.SUPER))


@pytest.mark.parametrize("scheme", [None, "nosuch", "super", "world", "sasl", "x509"])
def test_only_known_schemes_prove_anything(scheme: str | None) -> None:
    assert acl.authenticate(scheme, b"super:test", acl.digest_id(b"super:test")) is None


def test_super_needs_its_digest() -> None:
    digest = acl.digest_id(b"super:test")
    assert acl.SUPER in (acl.authenticate("digest", b"super:test", digest) or ())
    assert acl.SUPER not in (acl.authenticate("digest", b"super:test", None) or ())
    assert acl.SUPER not in (acl.authenticate("digest", b"super:wrong", digest) or ())
