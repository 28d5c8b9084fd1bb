"""Submissions: only a holder of the key, only in one place, and only as they were signed."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from horn.cluster import preparation, submission
from horn.cluster.job_names import new_id
from horn.cluster.submission import SPEC_BYTES, Submission, sign, verify
from horn.coordination.records import Znode
from horn.errors import JobError, NotAllowed, ProtocolError
from horn.security.keys import Key

SEED = int(os.environ.get("HORN_SEED", "0"))
KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(1, 33)))
NODE = Znode(b"", 0, 4_294_967_338, 4_294_967_338, 0, 0, 1_700_000_000.25)
JOB = Submission(
    job="mnist-02c1",
    target="job.py:make",
    package="ab" * 32,
    arguments=("--epochs", "3", 'quo"te', "ünï\u2028"),
    settings=(("optimizer.learning_rate", "0.1"),),
    options={"barrier": "message", "superstep_timeout_s": 60.0, "deterministic": True},
    seed=7,
    timeout_s=7200.0,
)


def test_what_is_signed_is_what_is_verified():
    raw = sign(KEY, JOB, NODE)
    signed = verify(KEY, raw, job=JOB.job, origin=NODE)
    assert signed.submission == JOB and signed.key == KEY.fingerprint
    assert sign(KEY, JOB, NODE) == raw


@pytest.mark.parametrize(
    "node",
    [
        replace(NODE, created=NODE.created + 1),
        replace(NODE, made_s=NODE.made_s + 0.001),
        replace(NODE, made_s=NODE.made_s - 3600),
        replace(NODE, created=0, made_s=0.0),
    ],
)
def test_it_holds_in_the_node_that_it_was_signed_for_alone(node):
    raw = sign(KEY, JOB, NODE)
    with pytest.raises(NotAllowed, match="signed for another node .*; submit it again"):
        verify(KEY, raw, job=JOB.job, origin=node)


def test_another_key_and_another_job_are_named():
    raw = sign(OTHER, JOB, NODE)
    with pytest.raises(NotAllowed, match=f"has key {OTHER.fingerprint}, this cluster's is"):
        verify(KEY, raw, job=JOB.job, origin=NODE)
    with pytest.raises(NotAllowed, match="signed for job 'mnist-02c1'"):
        verify(KEY, sign(KEY, JOB, NODE), job="other-1", origin=NODE)


def test_no_altered_byte_passes():
    raw = bytearray(sign(KEY, JOB, NODE))
    rng = random.Random(SEED)
    for at in range(len(raw)):
        for value in {raw[at] ^ 1, raw[at] ^ 0x20, rng.randrange(256)} - {raw[at]}:
            altered = bytes(raw[:at]) + bytes([value]) + bytes(raw[at + 1 :])
            with pytest.raises(NotAllowed):
                verify(KEY, altered, job=JOB.job, origin=NODE)


@pytest.mark.parametrize("field", ["job", "target", "package", "arguments", "groups", "options"])
def test_no_altered_field_passes(field):
    other = msgspec.structs.replace(
        JOB,
        **{
            field: {"job": "other", "target": "x", "package": "cd" * 32, "arguments": (),
                    "groups": 2, "options": {}}[field]
        },
    )  # fmt: skip
    plain = msgspec.json.decode(sign(KEY, JOB, NODE))
    plain["submission"] = msgspec.to_builtins(other)
    with pytest.raises(NotAllowed, match="it was altered"):
        verify(KEY, msgspec.json.encode(plain), job=other.job, origin=NODE)


@pytest.mark.parametrize(
    "alter",
    [
        lambda raw: raw.replace(b'"groups":1', b'"groups": 1'),
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b'"groups":1', b'"groups":1,"groups":1'),
        lambda raw: raw.replace(b"000.25", b"000.250"),
        lambda raw: raw.replace(b'"seed":7', b'"seed":7,"more":1'),
    ],
    ids=["space", "line", "twice", "number", "more"],
)
def test_another_spelling_of_the_same_is_refused(alter):
    raw = sign(KEY, JOB, NODE)
    assert alter(raw) != raw
    with pytest.raises(NotAllowed):
        verify(KEY, alter(raw), job=JOB.job, origin=NODE)


HOSTILE = [
    b"", b"null", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"\xff" * 100, b'"' * 1000,
    b"[" + b"1," * 100_000 + b"1]", b'{"format":1}', b"x" * (SPEC_BYTES + 1), b"1e999", b"NaN",
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_description_is_refused(raw):
    with pytest.raises(NotAllowed):
        verify(KEY, raw, job=JOB.job, origin=NODE)


@pytest.mark.parametrize(
    "change",
    [{"job": "../x"}, {"job": ""}, {"package": "ab"}, {"groups": 0}, {"groups": 10**6},
     {"timeout_s": -1.0}, {"arguments": ("\udcff",)},
     {"arguments": ("x" * 20_000,)}, {"options": {"x": [1]}}],
)  # fmt: skip
def test_what_is_beyond_its_limits_is_not_signed(change):
    with pytest.raises(JobError, match="[Ee]xpected|mnist|surrogates"):
        sign(KEY, msgspec.structs.replace(JOB, **change), NODE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timeout_s": 0.0}, r"timeout 0.0: expected a number above 0 \(--timeout\)"),
        ({"name": "x" * 300}, r"x...: expected a text of length at most 256 \(--name\)"),
        ({"groups": 10**6}, r"groups 1000000: .* whole number of at most 100,000 \(--groups\)"),
        ({"seed": -1}, r"seed -1: expected a whole number from 0 \(--seed\)"),
        ({"arguments": ("x",) * 2000}, "'x'.*: expected a list of length at most 1,000"),
    ],
)
def test_a_limit_is_said_in_words(change, said):
    with pytest.raises(JobError, match=f"{said}$"):
        submission.unsigned(msgspec.structs.replace(JOB, **change))


def test_what_is_too_long_is_not_signed():
    long = msgspec.structs.replace(JOB, arguments=("x" * 15_000,) * 20)
    with pytest.raises(JobError, match="put long arguments into a file of the package"):
        sign(KEY, long, NODE)


def test_an_agent_remembers_the_newest_jobs_it_has_read_and_not_all(monkeypatch):
    monkeypatch.setattr(preparation, "MAX_READ", 3)
    read, n_read = submission.read, []
    monkeypatch.setattr(
        submission, "read", lambda key, job, node: n_read.append(job) or read(key, job, node)
    )
    capacity: Any = SimpleNamespace(key=None)
    preparer = preparation.JobPreparer(capacity, "a", SimpleNamespace(), 1)  # type: ignore[arg-type]

    def ask(job: str, change: int = 1) -> None:
        data = msgspec.json.encode(msgspec.structs.replace(JOB, job=job))
        assert preparer.submission(job, Znode(data, 0, 1, change, 0, 0)).job == job

    for n in range(20):
        ask(f"one-{n}")
        ask(f"one-{n}")
    assert len(n_read) == 20 and len(preparer._read) == 3
    ask("one-19", change=2)
    assert len(n_read) == 21 and set(preparer._read) == {"one-17", "one-18", "one-19"}


def of_horn(form: int, signed: bool, **fields: Any) -> Znode:
    """The node of a description as a horn with other fields writes it. Format 2, unsigned, had no
    number.
    """
    whole = msgspec.to_builtins(JOB) | fields
    if not signed and form == 2:
        return replace(NODE, data=msgspec.json.encode(whole))
    plain = {"format": form, "submission": whole}
    if signed:
        plain |= {"created": NODE.created, "issued": NODE.made_s, "key": KEY.fingerprint}
        bare = msgspec.json.encode(plain | {"mac": ""}, order="deterministic")
        plain["mac"] = hmac.digest(KEY.submission(), bare, hashlib.sha256).hex()
    return replace(NODE, data=msgspec.json.encode(plain, order="deterministic"))


@pytest.mark.parametrize(
    "form, signed, fields",
    [(1, True, {}), (2, True, {"keep": 3}), (2, False, {"keep": 3}), (4, True, {"later": 1}),
     (4, False, {"later": 1})],
)  # fmt: skip
def test_another_horns_job_is_refused_with_what_to_do(form, signed, fields):
    node = of_horn(form, signed, **fields)
    said = f"by another horn: .* of format {form}, .* with the horn that .*, or submit it again$"
    with pytest.raises((NotAllowed, ProtocolError), match=said):
        submission.read(KEY if signed else None, JOB.job, node)
    assert submission.package_of(node.data) == JOB.package


@pytest.mark.parametrize("signed", [False, True])
def test_a_description_of_before_with_the_same_fields_is_read(signed):
    if signed:
        signed_2 = msgspec.json.decode(sign(KEY, JOB, NODE), type=submission.SignedSubmission)
        signed_2 = msgspec.structs.replace(signed_2, format=2)
        signed_2 = msgspec.structs.replace(signed_2, mac=submission._mac(KEY, signed_2))
        node = replace(NODE, data=submission._ENCODE.encode(signed_2))
    else:
        node = of_horn(2, signed)
    assert submission.read(KEY if signed else None, JOB.job, node) == JOB


def test_an_unsigned_description_has_a_number_that_an_older_horn_does_not_know():
    """Without one it would read a description that lacks a field of its own."""
    raw = submission.unsigned(JOB)
    assert msgspec.json.decode(raw)["format"] == submission.FORMAT
    with pytest.raises(msgspec.ValidationError, match="unknown field `format`"):
        msgspec.json.decode(raw, type=Submission)  # as horns of before read it
    assert submission.read(None, JOB.job, replace(NODE, data=raw)) == JOB


def test_a_signed_description_is_not_read_without_the_key():
    node = replace(NODE, data=sign(KEY, JOB, NODE))
    with pytest.raises(ProtocolError, match="its description is signed; give the cluster's key"):
        submission.read(None, JOB.job, node)


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_description_is_refused_without_a_key(raw):
    with pytest.raises(ProtocolError):
        submission.read(None, JOB.job, replace(NODE, data=raw))
    assert submission.package_of(raw) == ""


@pytest.mark.parametrize(
    "name, begins",
    [("ä/ö", "a-o-"), ("Zähler 2", "Zahler-2-"), ("a.b_c", "a.b_c-"), ("日本", "job-"),
     ("--", "job-"), ("é" * 200, "e" * 80 + "-")],
)  # fmt: skip
def test_an_id_begins_with_the_letters_of_a_name(name: str, begins: str):
    """Of letters with accents nothing was left: ä/ö was job-1f3a."""
    assert re.fullmatch(re.escape(begins) + "[0-9a-f]{4}", new_id(name))
