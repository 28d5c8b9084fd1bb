"""A job's submission, signed by a holder of the cluster's key.

``sign`` makes the ``spec`` node's canonical JSON with a MAC, for the zxid and creation time of that
one node, which no client can choose. So a recorded submission is worth nothing elsewhere, and
agents need not remember used ones. They run nothing before ``verify``. Pure. docs/notes/0101.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Annotated

import msgspec

from horn import defaults
from horn.coordination.records import Znode
from horn.errors import UNREADABLE, JobError, NotAllowed, ProtocolError
from horn.security.keys import Key

# Raised with each change of Submission's fields: an older horn refuses a higher number. Of OLDEST
# there are descriptions with the fields of now, and older ones with others, which are refused.
FORMAT, OLDEST = 3, 2
SPEC_BYTES = 256 * 1024

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Some = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Word = Annotated[str, msgspec.Meta(max_length=256)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}\Z")]
_Text = Annotated[str, msgspec.Meta(max_length=16_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Zxid = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Print = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Format = Annotated[int, msgspec.Meta(ge=OLDEST, le=FORMAT)]
_Plain = bool | int | float | _Text | None


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job and how to run it. job : its id. target, arguments : of ``horn submit``; the target is
    relative to the package. settings : of --set, in order. checkpoint_every : iterations. options :
    others of ``horn.train``. package : the digest of its manifest. user : for people.
    """

    job: _Name
    target: _Word
    package: _Hex
    name: _Word = ""
    arguments: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1000)] = ()
    groups: _Some = 1
    tasks: _Some = 1
    servers: _Count = 0
    strategy: _Word = defaults.STRATEGY
    settings: Annotated[tuple[tuple[_Word, _Text], ...], msgspec.Meta(max_length=1000)] = ()
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    checkpoint_every: _Some | None = None
    checkpoint_s: _Seconds | None = None
    max_restarts: _Count = defaults.MAX_RESTARTS
    timeout_s: _Seconds | None = None
    options: Annotated[dict[_Word, _Plain], msgspec.Meta(max_length=200)] = {}
    user: _Word = ""


class SignedSubmission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submission with its node and MAC. ``key`` : the signing key's fingerprint."""

    format: _Format
    submission: Submission
    created: _Zxid
    issued: _Time
    key: _Print
    mac: _Hex


class UnsignedSubmission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submission in a cluster without a key. Those of format 2 were bare."""

    format: _Format
    submission: Submission


class _Named(msgspec.Struct, frozen=True):
    package: str = ""


class _AnyHorns(msgspec.Struct, frozen=True):
    """What tells the descriptions of all horns apart. ``package`` : of a bare submission."""

    format: int = OLDEST
    mac: str = ""
    package: str = ""
    submission: _Named | None = None


# The words of msgspec for what it expected, and those for people.
KINDS = {"float": "a number", "int": "a whole number", "str": "a text", "array": "a list"}
LIMITS = {">": "above", ">=": "from", "<=": "of at most", "of length <=": "of length at most"}

OPTIONS = {  # of horn submit, for fields that have another name there, or none
    "settings": "--set", "checkpoint_s": "--checkpoint-every", "arguments": "",
    "target": "", "package": "", "options": "", "user": "", "job": "--name",
}  # fmt: skip

_DECODE = msgspec.json.Decoder(SignedSubmission)
_ENCODE = msgspec.json.Encoder(order="deterministic")


def sign(key: Key, submission: Submission, origin: Znode) -> bytes:
    """Make the ``spec`` of a job, for the node ``origin`` alone. Raises JobError: too long."""
    signed = SignedSubmission(
        format=FORMAT,
        submission=submission,
        created=origin.created,
        issued=float(origin.made_s),
        key=key.fingerprint,
        mac="0" * 64,
    )
    try:
        raw = _ENCODE.encode(msgspec.structs.replace(signed, mac=_mac(key, signed)))
        if len(raw) <= SPEC_BYTES:
            _DECODE.decode(raw)  # the limits of the fields
    except ValueError as error:  # also text that is no Unicode
        raise _refused(submission, error) from None
    if len(raw) > SPEC_BYTES:
        raise JobError(
            f"job {submission.job!r}: its description has {len(raw)} bytes, but at most "
            f"{SPEC_BYTES} are sent; put long arguments into a file of the package"
        )
    return raw


def unsigned(submission: Submission) -> bytes:
    """The ``spec`` node's bytes in a cluster without a key. Raises JobError."""
    raw = msgspec.json.encode(UnsignedSubmission(format=FORMAT, submission=submission))
    try:
        msgspec.json.decode(raw, type=UnsignedSubmission)  # the limits of the fields
    except ValueError as error:
        raise _refused(submission, error) from None
    return raw


def _refused(submission: Submission, error: ValueError) -> JobError:
    """The error of a description with a field that no worker would take, with the field's value."""
    what, _, place = str(error).partition(" - at `$.")
    name = re.split(r"\W", place.removeprefix("submission."))[0]
    if not name:
        return JobError(f"job {submission.job!r}: {what}")
    value = repr(getattr(submission, name))
    shown = value if len(value) <= 100 else f"{value[:97]}..."
    limit = re.fullmatch(rf"Expected `({'|'.join(KINDS)})` ({'|'.join(LIMITS)}) ([\d.]+)", what)
    if limit is not None:
        what = f"expected {KINDS[limit[1]]} {LIMITS[limit[2]]} {float(limit[3]):,g}"
    word = name.removesuffix("_s")
    option = OPTIONS.get(name, f"--{word.replace('_', '-')}")
    return JobError(f"{word} {shown}: {what}{f' ({option})' if option else ''}")


def verify(key: Key, raw: bytes, *, job: str, origin: Znode) -> SignedSubmission:
    """Check the submission in ``raw``: signed by a holder of the key for ``job`` and the node it
    was found in. Raises NotAllowed: forged, altered, of another job, or recorded and put elsewhere.
    """
    if len(raw) > SPEC_BYTES:
        raise NotAllowed(f"job {job!r}: a description of {len(raw)} bytes, over {SPEC_BYTES}")
    try:
        signed = _DECODE.decode(raw)
    except UNREADABLE as error:
        raise NotAllowed(f"job {job!r}: {_why_not(raw, error)}") from None
    if not hmac.compare_digest(_mac(key, signed), signed.mac):
        reason = (
            "it was altered"
            if signed.key == key.fingerprint
            else f"it has key {signed.key}, this cluster's is {key.fingerprint}"
        )
        raise NotAllowed(f"job {job!r}: its signature is not of this cluster's key: {reason}")
    if _ENCODE.encode(signed) != raw:
        raise NotAllowed(f"job {job!r}: its description is not in its one form")
    if (its := signed.submission.job) != job:
        raise NotAllowed(f"job {job!r}: its description was signed for job {its!r}")
    if (signed.created, signed.issued) != (origin.created, origin.made_s):
        raise NotAllowed(
            f"job {job!r}: its description was signed for another node of ZooKeeper (made by "
            f"change {signed.created}, found in one of change {origin.created}): somebody has "
            f"recorded it and entered it again; submit it again if that is wanted"
        )
    return signed


def read(key: Key | None, job: str, node: Znode) -> Submission:
    """Read a job's description, if this cluster may run it. Raises NotAllowed, ProtocolError."""
    if key is not None:
        return verify(key, node.data, job=job, origin=node).submission
    head = _head(node.data)
    if head.mac:
        raise ProtocolError(
            f"job {job!r}: its description is signed; give the cluster's key (--key, HORN_KEY)"
        )
    try:
        if head.submission is None:
            found = msgspec.json.decode(node.data, type=Submission)
        else:
            found = msgspec.json.decode(node.data, type=UnsignedSubmission).submission
    except UNREADABLE as error:
        raise ProtocolError(f"job {job!r}: {_why_not(node.data, error)}") from None
    if found.job != job:
        raise ProtocolError(f"job {job!r}: its description is that of job {found.job!r}")
    return found


def package_of(raw: bytes) -> str:
    """The package that a description names, of any horn's and whoever signed it; "" if none."""
    head = _head(raw)
    return head.package if head.submission is None else head.submission.package


def _head(raw: bytes) -> _AnyHorns:
    try:
        return msgspec.json.decode(raw, type=_AnyHorns)
    except UNREADABLE:
        return _AnyHorns()


def _why_not(raw: bytes, error: Exception) -> str:
    """Why a description cannot be read, and what to do where it is another horn's."""
    head = _head(raw)
    if not package_of(raw) or head.format == FORMAT:
        return f"its description is none: {error}"
    return (
        f"it was submitted by another horn: its description is of format {head.format}, this horn "
        f"writes format {FORMAT} ({error}). Resume it with the horn that submitted it, on workers "
        f"of that horn, or submit it again"
    )


def _mac(key: Key, signed: SignedSubmission) -> str:
    """The MAC of the canonical form of everything else."""
    bare = _ENCODE.encode(msgspec.structs.replace(signed, mac=""))
    return hmac.digest(key.submission(), bare, hashlib.sha256).hex()
