"""Access control lists: schemes, checks, and the expansion of "auth". Pure.

Ids are (scheme, id) pairs of a connection: its address, and digests after an AUTH. Source:
PrepRequestProcessor.fixupACL and the two authentication providers of Apache 3.8.0.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress

from zk import wire
from zk.errors import Refused
from zk.wire import Acl, Code

READ, WRITE, CREATE, DELETE, ADMIN, ALL = 1, 2, 4, 8, 16, 31

Acls = tuple[Acl, ...]
Ids = tuple[tuple[str, str], ...]

OPEN: Acls = wire.OPEN_ACL
READ_ONLY: Acls = (Acl(READ, "world", "anyone"),)
SUPER = ("super", "")


def digest_id(credential: bytes) -> str:
    """A credential's digest id: user:base64(sha1(user:password)), over the bytes as they came."""
    user = credential.split(b":", 1)[0].decode("utf-8", "replace")
    return user + ":" + base64.b64encode(hashlib.sha1(credential).digest()).decode("ascii")


def authenticate(scheme: str | None, credential: bytes, super_digest: str | None) -> Ids | None:
    """The ids that a credential proves, or None where the scheme is unknown or proves nothing."""
    if scheme == "ip":
        return ()  # the address is known already; Apache says yes and adds it once
    if scheme != "digest":
        return None
    shown = digest_id(credential)
    if super_digest is not None and shown == super_digest:
        return (SUPER, ("digest", shown))
    return (("digest", shown),)


@functools.lru_cache(maxsize=256)
def _network(text: str) -> ipaddress.IPv4Network | None:
    """The IPv4 network of an address, or of one with a number of bits; Apache knows no others."""
    _, slash, bits = text.partition("/")
    if slash and not (bits.isascii() and bits.isdigit()):
        return None
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


def _is_valid(scheme: str, ident: str | None) -> bool:
    if ident is None:
        return False
    if scheme == "digest":
        # Java's split drops empty tails: "a:" has one part, ":b" has two
        return len(ident.rstrip(":").split(":")) == 2
    return scheme == "ip" and _network(ident) is not None


def fix(acls: Acls, ids: Ids) -> Acls:
    """The list as stored: without duplicates, "auth" as the caller's ids. Raises Refused:
    INVALID_ACL for an empty list, an unknown scheme, or "auth" without ids.
    """
    if acls == OPEN:
        return OPEN
    fixed: list[Acl] = []
    for acl in dict.fromkeys(acls):
        scheme = acl.scheme
        if scheme is None:
            raise Refused(Code.INVALID_ACL)
        if scheme == "world" and acl.id == "anyone":
            fixed.append(acl)
        elif scheme == "auth":
            mine = [Acl(acl.perms, s, i) for s, i in ids if s == "digest"]
            if not mine:
                raise Refused(Code.INVALID_ACL)
            fixed.extend(mine)
        elif _is_valid(scheme, acl.id):
            fixed.append(acl)
        else:
            raise Refused(Code.INVALID_ACL)
    if not fixed:
        raise Refused(Code.INVALID_ACL)
    return tuple(fixed)


def allows(acls: Acls, perm: int, ids: Ids) -> bool:
    """Whether one of ``ids`` has any of the permissions in ``perm``."""
    if acls is OPEN or SUPER in ids:
        return True
    for perms, scheme, ident in acls:
        if not perms & perm:
            continue
        if scheme == "world" and ident == "anyone":
            return True
        if scheme == "ip":
            if ident is not None and any(s == "ip" and _in_network(i, ident) for s, i in ids):
                return True
        elif (scheme, ident) in ids:
            return True
    return False


def _in_network(address: str, text: str) -> bool:
    network = _network(text)
    try:
        return network is not None and ipaddress.ip_address(address) in network
    except ValueError:
        return False


def masked(acls: Acls) -> Acls:
    """The list for a reader without ADMIN: no password hashes (CVE-2019-0201)."""
    return tuple(
        [
            Acl(a.perms, a.scheme, a.id.split(":", 1)[0] + ":x")
            if a.scheme == "digest" and a.id is not None and ":" in a.id
            else a
            for a in acls
        ]
    )
