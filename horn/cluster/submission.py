"""A job as it is submitted: what to run, signed by a holder of the cluster's key.

``spec`` in ZooKeeper is what ``sign`` gives: canonical JSON with a nonce, a time and a MAC. An
agent runs nothing before ``verify`` has accepted it and ``ReplayCache`` has admitted its nonce.
Times are seconds since 1970 of one clock, that of ZooKeeper (the time at which a node was made):
then no host's own clock matters. Pure but for the cache's file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from typing import Annotated, Any, Self

import msgspec

from horn.cluster.keys import Key
from horn.errors import JobError, NotAllowed

FORMAT = 1
LIFETIME_S = 600.0  # from when it is signed until it must have been handed in
MAX_LIFETIME_S = 3600.0
EARLY_S = 60.0  # by which a clock may be behind that of the signer
SPEC_BYTES = 256 * 1024
NONCE_BYTES = 16
MAX_NONCES = 65_536  # 100 a second for 10 minutes, and 10 % more
USE_BYTES = 100
_CACHE_FILE = "nonces"

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Some = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Word = Annotated[str, msgspec.Meta(max_length=256)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}\Z")]
_Text = Annotated[str, msgspec.Meta(max_length=16_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Nonce = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Print = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Plain = bool | int | float | _Text | None


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job is and how it is to be run.

    job : its id. target, arguments : as ``horn submit`` got them, the target relative to the
    package. settings : those of --set, in order. checkpoint_every : iterations. options : what
    else ``horn.train`` is to be told. package : the digest of its manifest. user : who says that
    he is; for people.
    """

    job: _Name
    target: _Word
    package: _Hex
    name: _Word = ""
    arguments: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1000)] = ()
    groups: _Some = 1
    tasks: _Some = 1
    servers: _Count = 0
    strategy: _Word = "allreduce"
    settings: Annotated[tuple[tuple[_Word, _Text], ...], msgspec.Meta(max_length=1000)] = ()
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    checkpoint_every: _Some | None = None
    checkpoint_s: _Seconds | None = None
    keep: _Some = 3
    max_restarts: _Count = 3
    timeout_s: _Seconds | None = None
    resume: _Word | None = None
    options: Annotated[dict[_Word, _Plain], msgspec.Meta(max_length=200)] = {}
    user: _Word = ""


class Signed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submission and what makes it one of this cluster, once. ``key``: the fingerprint."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    submission: Submission
    nonce: _Nonce
    issued: _Time
    expires: _Time
    key: _Print
    mac: _Hex

    @property
    def job(self) -> str:
        return self.submission.job


_DECODE = msgspec.json.Decoder(Signed)
_ENCODE = msgspec.json.Encoder(order="deterministic")


def sign(
    key: Key, submission: Submission, now_s: float, *, lifetime_s: float = LIFETIME_S
) -> bytes:
    """The ``spec`` of a job: hand it in within ``lifetime_s`` of ``now_s``.

    Raises
    ------
    JobError : a field is beyond its limits, or all are too long.
    """
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise JobError(f"lifetime_s={lifetime_s}: must be above 0, at most {MAX_LIFETIME_S:g}")
    signed = Signed(
        format=FORMAT,
        submission=submission,
        nonce=secrets.token_bytes(NONCE_BYTES).hex(),
        issued=float(now_s),
        expires=now_s + lifetime_s,
        key=key.fingerprint,
        mac="0" * 64,
    )
    try:
        raw = _ENCODE.encode(msgspec.structs.replace(signed, mac=_mac(key, signed)))
        if len(raw) <= SPEC_BYTES:
            _DECODE.decode(raw)  # the limits of the fields
    except ValueError as error:  # also text that is no Unicode
        raise JobError(f"job {submission.job!r}: {error}") from None
    if len(raw) > SPEC_BYTES:
        raise JobError(
            f"job {submission.job!r}: its description has {len(raw)} bytes, but at most "
            f"{SPEC_BYTES} are sent; put long arguments into a file of the package"
        )
    return raw


def verify(key: Key, raw: bytes, *, job: str, at_s: float) -> Signed:
    """The submission in ``raw``, if a holder of the key signed it for ``job``, and it was handed in
    in time: ``at_s`` is when its node was made. Its nonce is not looked at: see ReplayCache.

    Raises
    ------
    NotAllowed : it is forged, altered, another job's, or was too late.
    """
    if len(raw) > SPEC_BYTES:
        raise NotAllowed(f"job {job!r}: a description of {len(raw)} bytes, over {SPEC_BYTES}")
    try:
        signed = _DECODE.decode(raw)
    except (ValueError, RecursionError, OverflowError) as error:  # msgspec's errors among them
        raise NotAllowed(f"job {job!r}: its description is none: {error}") from None
    if not hmac.compare_digest(_mac(key, signed), signed.mac):
        reason = (
            "it was altered"
            if signed.key == key.fingerprint
            else f"it has key {signed.key}, this cluster's is {key.fingerprint}"
        )
        raise NotAllowed(f"job {job!r}: its signature is not of this cluster's key: {reason}")
    if _ENCODE.encode(signed) != raw:
        raise NotAllowed(f"job {job!r}: its description is not in its one form")
    if signed.job != job:
        raise NotAllowed(f"job {job!r}: its description was signed for job {signed.job!r}")
    if not 0 < signed.expires - signed.issued <= MAX_LIFETIME_S:
        raise NotAllowed(f"job {job!r}: signed for longer than {MAX_LIFETIME_S:g} s")
    if at_s > signed.expires:
        raise NotAllowed(
            f"job {job!r}: handed in {at_s - signed.expires:.0f} s after its signature expired; "
            f"submit it again"
        )
    if at_s < signed.issued - EARLY_S:
        raise NotAllowed(
            f"job {job!r}: signed {signed.issued - at_s:.0f} s after it was handed in; the clocks "
            f"differ by more than {EARLY_S:g} s"
        )
    return signed


def _mac(key: Key, signed: Signed) -> str:
    """Over the one form of everything but the MAC."""
    bare = _ENCODE.encode(msgspec.structs.replace(signed, mac=""))
    return hmac.digest(key.submission(), bare, hashlib.sha256).hex()


class ReplayCache:
    """Which nonces were used, and for what; kept in a file of ``folder``, so an agent that comes
    back still knows them.

    ``admit`` lets a nonce be used for one thing (the job's node, by its zxid) as often as that is
    started, and for nothing else. It is forgotten when a replay would be too late anyway: by the
    time of later submissions, not by a clock of this host.

    Raises
    ------
    NotAllowed : the nonce was used for something else, or there are too many.
    JobError : the file cannot be used, or another process has it.
    """

    def __init__(self, folder: str | os.PathLike[str], max_nonces: int = MAX_NONCES) -> None:
        self.path = os.path.join(os.fspath(folder), _CACHE_FILE)
        self.max_nonces = max_nonces
        self._used: dict[str, tuple[float, str]] = {}  # nonce: expires, use
        self._latest = 0.0
        self._n_lines = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise JobError(f"{self.path} cannot be used: {error.strerror}") from None
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def admit(self, signed: Signed, at_s: float, use: str) -> None:
        """Take note that ``signed`` was handed in at ``at_s`` for ``use``, before anything is done
        because of it.
        """
        if not re.fullmatch(rf"[!-~]{{1,{USE_BYTES}}}", use):
            raise JobError(f"use {use!r}: write 1 to {USE_BYTES} visible ASCII characters")
        known = self._used.get(signed.nonce)
        if known is not None:
            if known[1] != use:
                raise NotAllowed(
                    f"job {signed.job!r}: its description has been used before (for {known[1]}); "
                    f"submit it again"
                )
            return
        self._latest = max(self._latest, at_s)
        if len(self._used) >= self.max_nonces:
            self._forget()
        if len(self._used) >= self.max_nonces:
            raise NotAllowed(
                f"job {signed.job!r}: {self.max_nonces} submissions cannot be forgotten "
                f"yet; try again in {LIFETIME_S:g} s"
            )
        self._write(self._fd, f"{signed.nonce} {signed.expires!r} {self._latest!r} {use}\n")
        self._used[signed.nonce] = (signed.expires, use)
        self._n_lines += 1
        if self._n_lines > 2 * self.max_nonces:
            self._rewrite()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __len__(self) -> int:
        return len(self._used)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobError(f"{self.path} is in use by another process") from None
        facts = os.fstat(self._fd)
        if not stat.S_ISREG(facts.st_mode) or stat.S_IMODE(facts.st_mode) & 0o022:
            raise JobError(f"{self.path}: others could write it, or it is no file; remove it")
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            whole = file.read(1000 * (2 * self.max_nonces + 2))
        *lines, torn = whole.split(b"\n")  # the last may be torn: nothing came of it
        for line in lines:
            try:
                nonce, expires, latest, use = line.decode("ascii").split(" ")
                self._used[nonce] = (float(expires), use)
                self._latest = max(self._latest, float(latest))
            except ValueError:
                raise JobError(
                    f"{self.path} is damaged; end this cluster's jobs, wait {MAX_LIFETIME_S:g} s "
                    f"and remove it"
                ) from None
        if torn:
            os.ftruncate(self._fd, len(whole) - len(torn))
        self._n_lines = len(lines)
        if len(self._used) > self.max_nonces // 2:
            self._forget()

    def _forget(self) -> None:
        """What has expired, as of the latest submission."""
        self._used = {n: e for n, e in self._used.items() if e[0] >= self._latest - EARLY_S}
        self._rewrite()

    def _rewrite(self) -> None:
        """A new file in place of the old one, with the same lock."""
        temporary = f"{self.path}.{secrets.token_hex(4)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines = (f"{n} {e!r} {self._latest!r} {u}\n" for n, (e, u) in self._used.items())
            self._write(fd, "".join(lines))
            os.rename(temporary, self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        os.close(self._fd)
        self._fd, self._n_lines = fd, len(self._used)

    def _write(self, fd: int, text: str) -> None:
        left = memoryview(text.encode("ascii"))
        try:
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        except OSError as error:
            raise JobError(f"{self.path} cannot be written: {error.strerror}") from None


def as_json(signed: Signed) -> dict[str, Any]:
    """For people and ``--json``: the submission, who signed it and when; not what proves it."""
    found: dict[str, Any] = msgspec.to_builtins(signed.submission)
    return {**found, "key": signed.key, "issued": signed.issued}
