"""TLS of the connection to ZooKeeper: when it is used, and with which certificates.

With the cluster's key it is, wherever a server is not on loopback, and nobody handles certificates:
both ends make theirs from the key (``certificates``). docs/notes/0099.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl

import msgspec

from horn.errors import JobError, NotFound
from horn.security.keys import Credential, Key, TlsIdentity

VARIABLE = "HORN_ZK_TLS"
SAID = f"--zk-tls or {VARIABLE}"  # which of them, nobody knows here
INSECURE = "HORN_INSECURE"  # "1": what --insecure says to a worker, for what it starts
AUTO, KEY, OFF = "auto", "key", "off"


def credential(key: Key | None, hosts: str, job: str = "") -> Credential | None:
    """The credential for ZooKeeper at ``hosts``, with TLS where it is wanted; None without a key.
    job : of its tasks. Raises JobError: TLS without a key. NotFound: a named file is missing.
    """
    mode = os.environ.get(VARIABLE) or AUTO
    if key is None:
        if mode not in (AUTO, OFF):
            raise JobError(
                f"{SAID} is {mode}: TLS to ZooKeeper is for clusters with a key, which is its "
                f"password there; make one with  horn keygen FILE"
            )
        return None
    own = key.zookeeper_of(job) if job else key.zookeeper()
    return msgspec.structs.replace(own, tls=_trust(key, hosts, mode))


def _trust(key: Key, hosts: str, mode: str) -> TlsIdentity | None:
    if not is_wanted(hosts):
        return None
    if mode in (AUTO, KEY):
        from horn.security.certificates import CertificateAuthority

        return CertificateAuthority(key).trust("client")
    authority, _, own = mode.partition(",")
    identity = _text(own) if own else ""
    if identity:
        _check_valid(own, identity)
    return TlsIdentity(_text(authority), identity, checks_names=True)


def _check_valid(path: str, identity: str) -> None:
    """Check that a certificate is valid now, as every server would. Raises JobError."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(identity.encode())
    except ValueError as error:
        raise JobError(f"{SAID}: {path} has no certificate in PEM: {error}") from None
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not begin <= now <= end:
        times = (f"{at:%Y-%m-%d %H:%M}" for at in (begin, end, now))
        said = "is valid from {} to {} (UTC), and now it is {}".format(*times)
        raise JobError(
            f"{SAID}: the certificate in {path} {said}: have its authority make another, or set "
            f"the clock"
        )


def is_wanted(hosts: str) -> bool:
    """Whether holders of the key speak TLS to these servers."""
    mode = os.environ.get(VARIABLE) or AUTO
    return mode != OFF and (mode != AUTO or not is_on_loopback(hosts))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        raise NotFound(
            f"{SAID}: there is no file {path}; write {AUTO}, {KEY}, {OFF}, or the PEM files "
            f"AUTHORITY[,OWN] of the servers' authority and of a certificate with its key"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise JobError(f"{SAID}: {path} cannot be read as PEM: {why}") from None


def is_on_loopback(hosts: str) -> bool:
    """Whether no server of "host:port[,host:port][/folder]" is on another machine."""
    return all(
        is_loopback(entry.rpartition(":")[0].strip() or entry.strip())
        for entry in hosts.split("/")[0].split(",")
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listening(url: str, has_key: bool) -> tuple[str, str]:
    """Host and port of "tcp://host:port" to listen on. Raises JobError: it is no such URL, or
    others can reach it and there is no key, nor an agent whose user accepts that.
    """
    host, separator, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not separator or not port.isdigit():
        raise JobError(f"{url!r}: write tcp://host:port, port 0 for any free one")
    if not has_key and not is_loopback(host) and os.environ.get(INSECURE) != "1":
        raise JobError(
            f"{url!r} can be reached from other hosts, and there is no key: make one with "
            f"horn keygen, or listen on 127.0.0.1"
        )
    return host, port


def context_of(trust: TlsIdentity, *, is_server: bool = False) -> ssl.SSLContext:
    """The TLS settings of one end. A server admits certificates of its authority. Raises JobError:
    the certificates cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not is_server:
        context.check_hostname = trust.checks_names
    try:
        context.load_verify_locations(cadata=trust.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        if trust.identity:
            _load(context, trust.identity)
    except (ssl.SSLError, ValueError) as error:
        raise JobError(f"the certificates for ZooKeeper are not usable: {error}") from error
    return context


def server_context(key: Key) -> ssl.SSLContext:
    """The TLS settings of a server that admits holders of the key and tasks of their jobs."""
    from horn.security.certificates import CertificateAuthority

    return context_of(CertificateAuthority(key).trust("server"), is_server=True)


def _load(context: ssl.SSLContext, identity: str) -> None:
    """Load a certificate and key through a memfd: the ssl module reads keys only from files."""
    fd = os.memfd_create("horn-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(identity.encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=_no_password)
    finally:
        os.close(fd)


def _no_password() -> str:
    """Called for the password of a private key, which OpenSSL would ask the terminal for."""
    raise JobError(
        f"the private key of {SAID} is encrypted, and workers and tasks have nobody to type its "
        f"password; write it without one, for its user alone:  umask 077; openssl pkey -in KEY "
        f"-out PLAIN"
    )
