"""The cluster's key: 32 random bytes in a file, and what is derived from them.

Whoever holds it may submit, and submitting is running code: it is never an argument, in an
environment (only its path is), in a log, in a node of ZooKeeper, or with a task. Every use has a
key of its own, by HKDF-SHA256 (RFC 5869), so none tells anything about another.
Rotation is a new file and a restart. Pure but for the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec

from horn.atomic_write import sync_folder
from horn.errors import JobError, NotFound

KEY_BYTES = 32
FILE_BYTES = 1024  # more is no key file
PREFIX = "horn-key-1:"  # by it a misplaced key file is recognised
VARIABLE = "HORN_KEY"
MODE = 0o600
MIN_DISTINCT = 12  # of 32 random bytes; fewer were typed. A random key has so few once in 10^25
SERVICE_ROLES = ("client", "worker")
_SALT = b"horn cluster key 1"


class TlsIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificates for one end of TLS to ZooKeeper, in PEM: the authority of the other end's, and
    this end's own with its private key. checks_names : whether the servers' names are checked, not
    only the signatures.
    """

    authority: str
    identity: str = ""
    checks_names: bool = False

    def __repr__(self) -> str:
        return "TlsIdentity()"


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity for ZooKeeper: a name and a password in digest form; the secret itself is not
    sent.

    job : whose tasks it is for; "" for the cluster's own, which reaches everything. owner : the
    cluster's ``id``, which may reach what the job's tasks make. tls : the connection is encrypted.
    """

    secret: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    job: str = ""
    owner: str = ""
    tls: TlsIdentity | None = None

    @property
    def text(self) -> str:
        """The name and password for ZooKeeper."""
        password = hmac.new(self.secret, b"horn zookeeper digest", hashlib.sha256).hexdigest()
        return f"{'job' if self.job else 'horn'}:{password}"

    @property
    def id(self) -> str:
        """The credential's id in ACLs; no secret. The form, with SHA-1, is ZooKeeper's."""
        user = self.text.partition(":")[0]
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).digest()
        return f"{user}:{base64.b64encode(digest).decode()}"

    def __repr__(self) -> str:
        return f"Credential({self.job or 'cluster'})"


class Key:
    """The secret of a cluster. Neither ``repr`` nor an error shows it, and it is not pickled."""

    __slots__ = ("_prk",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise JobError(
                f"the cluster's key has {len(secret)} bytes; make one of {KEY_BYTES} with: "
                f"horn keygen"
            )
        self._prk = hmac.digest(_SALT, secret, hashlib.sha256)  # HKDF-Extract

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Key:
        """Read the key from its owner's file. Raises NotFound. JobError: others may read it, it is
        a link, or no key.
        """
        return cls(_parsed(os.fspath(path), _read(os.fspath(path))))

    @classmethod
    def from_environment(cls) -> Key | None:
        """The key in the file HORN_KEY; None if it is not set."""
        path = os.environ.get(VARIABLE, "")
        if not path:
            return None
        if _decoded(path.removeprefix(PREFIX)) is not None and not os.path.exists(path):
            raise JobError(
                f"{VARIABLE} holds a key; every process of this user can read it there. Save it "
                f"in a file of mode 0600, set {VARIABLE} to the file's path, and make a new key"
            )
        return cls.from_file(path)

    @property
    def fingerprint(self) -> str:
        """16 hex digits by which people tell keys apart; says nothing about the key."""
        return self.derive("fingerprint")[:8].hex()

    def derive(self, purpose: str, name: str = "") -> bytes:
        """Derive 32 bytes for one purpose, and one ``name`` in it."""
        info = f"{purpose}\0{name}".encode()
        return hmac.digest(self._prk, info + b"\x01", hashlib.sha256)  # HKDF-Expand, one block

    def zookeeper(self) -> Credential:
        """The credential of workers and submitters."""
        return Credential(self.derive("zookeeper"))

    def zookeeper_of(self, job: str) -> Credential:
        """The credential of a job's processes."""
        return Credential(self.derive("zookeeper job", job), job, self.zookeeper().id)

    def submission(self) -> bytes:
        """The key of the MAC of submissions."""
        return self.derive("submission")

    def role(self, role: str) -> bytes:
        """The seed of the CURVE pair by which a service knows a "client" or a "worker"."""
        if role not in SERVICE_ROLES:
            raise JobError(f"no key for the role {role!r}; there are {', '.join(SERVICE_ROLES)}")
        return self.derive("role", role)

    def service(self, name: str) -> bytes:
        """The seed of the CURVE pair of the service called ``name``, a host's."""
        return self.derive("service", name)

    def job(self, job: str) -> bytes:
        """The key of one job, for ``Identity(key=)``."""
        return self.derive("job", job)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._prk, other._prk)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Key({self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a cluster's key is not copied by pickle; pass the path of its file")


def generate(path: str | os.PathLike[str]) -> Key:
    """Make a new key in a new file of mode 0600. Raises JobError: the path exists, or cannot be
    written.
    """
    name = os.fspath(path)
    secret = secrets.token_bytes(KEY_BYTES)
    try:
        fd = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE
        )
    except FileExistsError:
        raise JobError(f"{name} is there already; a key is never overwritten") from None
    except OSError as error:
        raise JobError(f"{name} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, MODE)  # an umask may have taken bits away
            file.write(f"{PREFIX}{base64.b64encode(secret).decode()}\n".encode())
            file.flush()
            os.fsync(fd)
        sync_folder(os.path.dirname(os.path.abspath(name)))
    except OSError as error:
        os.unlink(name)
        raise JobError(f"{name} cannot be written: {error.strerror}") from None
    return Key(secret)


def is_key_text(data: bytes) -> bool:
    """Whether a file that begins with ``data`` is a key file made by ``generate``."""
    return data.startswith(PREFIX.encode())


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if not path:
            raise JobError('the file of the key is "": name it, or leave it out') from None
        raise NotFound(f"there is no key file {path}; make one with: horn keygen {path}") from None
    except OSError as error:
        if os.path.islink(path):
            raise JobError(
                f"{path} is a link, so what it names may be another file tomorrow; give the path "
                f"of the key file itself ({Path(path).resolve()})"
            ) from None
        raise JobError(f"the key file {path} cannot be read: {error.strerror}") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise JobError(f"{path} is no regular file; make a key file with: horn keygen")
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o077:
            raise JobError(
                f"the key file {path} has mode {mode:04o}, so others can read or change it; "
                f"chmod 600 {path}, and make a new key if someone may have"
            )
        if facts.st_uid not in (0, os.geteuid()):
            raise JobError(
                f"the key file {path} belongs to uid {facts.st_uid}, not to this user "
                f"({os.geteuid()}), who could not keep it from being changed"
            )
        return os.read(fd, FILE_BYTES + 1)
    finally:
        os.close(fd)


def _parsed(path: str, data: bytes) -> bytes:
    """The 32 bytes of a key file; an error shows nothing of the content."""
    try:
        text = data.decode("ascii").strip().removeprefix(PREFIX)
    except UnicodeDecodeError:
        text = ""
    secret = _decoded(text)
    if len(data) > FILE_BYTES or secret is None:
        raise JobError(
            f"{path} is no key file: it should have one line, {KEY_BYTES} bytes in base64 or hex; "
            f"make one with: horn keygen"
        )
    if len(set(secret)) < MIN_DISTINCT:
        raise JobError(f"the key in {path} is not random; make one with: horn keygen")
    return secret


def _decoded(text: str) -> bytes | None:
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        found = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return found if len(found) == KEY_BYTES else None
