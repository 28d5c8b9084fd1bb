"""Submissions: only a holder of the key, only once, only in time, and only as they were signed."""

from __future__ import annotations

import os
import random
import stat

import msgspec
import pytest

from horn.cluster.keys import Key
from horn.cluster.submission import (
    EARLY_S,
    LIFETIME_S,
    SPEC_BYTES,
    ReplayCache,
    Submission,
    as_json,
    sign,
    verify,
)
from horn.errors import JobError, NotAllowed

SEED = int(os.environ.get("HORN_SEED", "0"))
KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(1, 33)))
NOW = 1_700_000_000.25
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
    raw = sign(KEY, JOB, NOW)
    signed = verify(KEY, raw, job=JOB.job, at_s=NOW + 1)
    assert signed.submission == JOB and signed.key == KEY.fingerprint
    assert as_json(signed)["target"] == "job.py:make" and "mac" not in as_json(signed)
    assert sign(KEY, JOB, NOW) != raw  # another nonce


@pytest.mark.parametrize(
    ("at_s", "sentence"),
    [
        (NOW + LIFETIME_S, ""),
        (NOW + LIFETIME_S + 1, "handed in 1 s after its signature expired; submit it again"),
        (NOW - EARLY_S, ""),
        (NOW - EARLY_S - 5, "signed 65 s after it was handed in; the clocks differ"),
    ],
)
def test_it_holds_for_a_time(at_s, sentence):
    raw = sign(KEY, JOB, NOW)
    if not sentence:
        assert verify(KEY, raw, job=JOB.job, at_s=at_s)
        return
    with pytest.raises(NotAllowed, match=sentence):
        verify(KEY, raw, job=JOB.job, at_s=at_s)


def test_another_key_and_another_job_are_named():
    raw = sign(OTHER, JOB, NOW)
    with pytest.raises(NotAllowed, match=f"has key {OTHER.fingerprint}, this cluster's is"):
        verify(KEY, raw, job=JOB.job, at_s=NOW)
    with pytest.raises(NotAllowed, match="signed for job 'mnist-02c1'"):
        verify(KEY, sign(KEY, JOB, NOW), job="other-1", at_s=NOW)


def test_no_altered_byte_passes():
    raw = bytearray(sign(KEY, JOB, NOW))
    rng = random.Random(SEED)
    for at in range(len(raw)):
        for value in {raw[at] ^ 1, raw[at] ^ 0x20, rng.randrange(256)} - {raw[at]}:
            altered = bytes(raw[:at]) + bytes([value]) + bytes(raw[at + 1 :])
            with pytest.raises(NotAllowed):
                verify(KEY, altered, job=JOB.job, at_s=NOW)


@pytest.mark.parametrize("field", ["job", "target", "package", "arguments", "groups", "options"])
def test_no_altered_field_passes(field):
    other = msgspec.structs.replace(
        JOB,
        **{
            field: {"job": "other", "target": "x", "package": "cd" * 32, "arguments": (),
                    "groups": 2, "options": {}}[field]
        },
    )  # fmt: skip
    plain = msgspec.json.decode(sign(KEY, JOB, NOW))
    plain["submission"] = msgspec.to_builtins(other)
    with pytest.raises(NotAllowed, match="it was altered"):
        verify(KEY, msgspec.json.encode(plain), job=other.job, at_s=NOW)


@pytest.mark.parametrize(
    "alter",
    [
        lambda raw: raw.replace(b'"groups":1', b'"groups": 1'),
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b'"groups":1', b'"groups":1,"groups":1'),
        lambda raw: raw.replace(b"600.25", b"600.250"),
        lambda raw: raw.replace(b'"seed":7', b'"seed":7,"more":1'),
    ],
    ids=["space", "line", "twice", "number", "more"],
)
def test_another_spelling_of_the_same_is_refused(alter):
    raw = sign(KEY, JOB, NOW)
    assert alter(raw) != raw
    with pytest.raises(NotAllowed):
        verify(KEY, alter(raw), job=JOB.job, at_s=NOW)


HOSTILE = [
    b"", b"null", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"\xff" * 100, b'"' * 1000,
    b"[" + b"1," * 100_000 + b"1]", b'{"format":1}', b"x" * (SPEC_BYTES + 1), b"1e999", b"NaN",
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_description_is_refused(raw):
    with pytest.raises(NotAllowed):
        verify(KEY, raw, job=JOB.job, at_s=NOW)


@pytest.mark.parametrize(
    "change",
    [{"job": "../x"}, {"job": ""}, {"package": "ab"}, {"groups": 0}, {"groups": 10**6},
     {"timeout_s": -1.0}, {"arguments": ("\udcff",)},
     {"arguments": ("x" * 20_000,)}, {"options": {"x": [1]}}],
)  # fmt: skip
def test_what_is_beyond_its_limits_is_not_signed(change):
    with pytest.raises(JobError, match="Expected|mnist|surrogates"):
        sign(KEY, msgspec.structs.replace(JOB, **change), NOW)


def test_what_is_too_long_is_not_signed():
    long = msgspec.structs.replace(JOB, arguments=("x" * 15_000,) * 20)
    with pytest.raises(JobError, match="put long arguments into a file of the package"):
        sign(KEY, long, NOW)
    with pytest.raises(JobError, match="lifetime_s=7200: must be above 0, at most 3600"):
        sign(KEY, JOB, NOW, lifetime_s=7200)


# replays


def signed(now=NOW, **change):
    job = msgspec.structs.replace(JOB, **change)
    return verify(KEY, sign(KEY, job, now), job=job.job, at_s=now)


def test_a_submission_is_used_for_one_thing(tmp_path):
    with ReplayCache(tmp_path) as cache:
        one = signed()
        cache.admit(one, NOW, "41")
        cache.admit(one, NOW, "41")  # the same job starts again
        cache.admit(signed(), NOW, "42")
        with pytest.raises(NotAllowed, match="has been used before \\(for 41\\); submit it again"):
            cache.admit(one, NOW, "43")


def test_an_agent_that_comes_back_still_knows(tmp_path):
    ones = [signed() for _ in range(50)]
    with ReplayCache(tmp_path) as cache:
        for n, one in enumerate(ones):
            cache.admit(one, NOW, str(n))
    assert stat.S_IMODE(os.stat(tmp_path / "nonces").st_mode) == 0o600
    with ReplayCache(tmp_path) as cache:
        for one in ones:
            with pytest.raises(NotAllowed, match="has been used before"):
                cache.admit(one, NOW, "other")


def test_a_line_that_a_crash_tore_is_dropped_and_damage_is_named(tmp_path):
    one, two = signed(), signed()
    with ReplayCache(tmp_path) as cache:
        cache.admit(one, NOW, "1")
    whole = (tmp_path / "nonces").read_bytes()
    for n_bytes in range(1, len(whole)):  # nothing was started because of it
        (tmp_path / "nonces").write_bytes(whole + whole[:n_bytes].replace(b"\n", b""))
        with ReplayCache(tmp_path) as cache:
            assert len(cache) == 1
            cache.admit(two, NOW, "2")
        with ReplayCache(tmp_path) as cache:
            assert len(cache) == 2
    (tmp_path / "nonces").write_bytes(b"nonsense\n" + whole)
    with pytest.raises(JobError, match="is damaged"):
        ReplayCache(tmp_path)


def test_it_is_bounded_and_forgets_only_what_is_too_late_anyway(tmp_path):
    with ReplayCache(tmp_path, max_nonces=10) as cache:
        old = [signed() for _ in range(10)]
        for n, one in enumerate(old):
            cache.admit(one, NOW, str(n))
        with pytest.raises(NotAllowed, match="10 submissions cannot be forgotten yet"):
            cache.admit(signed(), NOW, "11")
        later = NOW + LIFETIME_S + EARLY_S + 1
        cache.admit(signed(later), later, "12")
        assert len(cache) == 1
        for one in old:  # what was forgotten cannot be handed in any more
            with pytest.raises(NotAllowed, match="expired"):
                verify(KEY, sign_again(one), job=JOB.job, at_s=later)
        for n in range(13, 100):
            later += LIFETIME_S + EARLY_S + 1
            cache.admit(signed(later), later, str(n))
    assert os.stat(tmp_path / "nonces").st_size < 100 * 40
    assert os.listdir(tmp_path) == ["nonces"]


def sign_again(one):
    return msgspec.json.encode(one, order="deterministic")


def test_a_host_whose_clock_jumps_forgets_nothing(tmp_path):
    """Only the times of submissions count, which are of ZooKeeper's clock."""
    with ReplayCache(tmp_path, max_nonces=4) as cache:
        one = signed()
        cache.admit(one, NOW, "1")
        for n in (2, 3, 4):
            cache.admit(signed(), NOW, str(n))
        with pytest.raises(NotAllowed, match="cannot be forgotten"):
            cache.admit(signed(), NOW, "5")
        with pytest.raises(NotAllowed, match="used before"):
            cache.admit(one, NOW, "9")


def test_two_agents_do_not_share_a_folder_and_links_are_not_followed(tmp_path):
    other_folder = tmp_path / "third"
    other_folder.mkdir()
    with ReplayCache(tmp_path), pytest.raises(JobError, match="in use by another process"):
        ReplayCache(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "nonces").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobError, match="cannot be used"):
        ReplayCache(tmp_path / "other")
    (tmp_path / "nonces").chmod(0o666)
    with pytest.raises(JobError, match="others could write it"):
        ReplayCache(tmp_path)
    with pytest.raises(JobError, match="visible ASCII"), ReplayCache(other_folder) as cache:
        cache.admit(signed(), NOW, "a b")
