"""The cluster's key: whose file it is, and what is made of it."""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import hmac
import os
import pickle
import stat

import pytest

from horn.errors import JobError, NotFound
from horn.security.keys import Key, generate, is_key_text

SECRET = bytes(range(100, 132))
KEY = Key(SECRET)
TEXT = base64.b64encode(SECRET).decode() + "\n"


class Refusing:
    """``os``, but a folder cannot be written to the disk."""

    def __init__(self, function, number):
        self.function, self.number = function, number

    def __getattr__(self, name):
        if name != self.function:
            return getattr(os, name)

        def call(*args):
            raise OSError(self.number, os.strerror(self.number))

        return call


@pytest.fixture
def file(tmp_path):
    """A key file, made by hand."""

    def made(text=TEXT, mode=0o600):
        path = tmp_path / "key"
        path.write_text(text)
        path.chmod(mode)
        return path

    return made


def test_a_new_key_is_random_and_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        keys = [generate(tmp_path / name) for name in "ab"]
    finally:
        os.umask(before)
    assert keys[0] != keys[1] and keys[0].fingerprint != keys[1].fingerprint
    facts = os.stat(tmp_path / "a")
    assert stat.S_IMODE(facts.st_mode) == 0o600 and facts.st_size == 56
    assert Key.from_file(tmp_path / "a") == keys[0]
    assert is_key_text((tmp_path / "a").read_bytes())


def test_a_key_is_never_overwritten(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    generate(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    for name in ("key", "link"):
        with pytest.raises(JobError, match="is there already; a key is never overwritten"):
            generate(tmp_path / name)
    assert (tmp_path / "key").read_bytes() == before and not (tmp_path / "elsewhere").exists()
    with pytest.raises(JobError, match="cannot be written: No such file or directory"):
        generate(tmp_path / "no" / "key")


def test_what_a_folder_says_of_a_new_key_leaves_it_whole_or_not_there(tmp_path, monkeypatch):
    """It was a bare PermissionError, and the key file stayed."""
    with monkeypatch.context() as patch:  # a folder that may be written to, and not read
        patch.setattr("horn.atomic_write.os", Refusing("open", errno.EACCES))
        made = generate(tmp_path / "key")
    assert Key.from_file(tmp_path / "key") == made
    monkeypatch.setattr("horn.atomic_write.os", Refusing("fsync", errno.EIO))
    with pytest.raises(JobError, match="other cannot be written: Input/output error"):
        generate(tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "text",
    [base64.b64encode(SECRET).decode(), SECRET.hex(), SECRET.hex().upper() + "\n", "horn-key-1:"
     + base64.b64encode(SECRET).decode() + "\n\n"],
)  # fmt: skip
def test_base64_and_hex_are_read(file, text):
    assert Key.from_file(file(text)) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777])
def test_a_file_that_others_may_read_or_change_is_refused(file, mode):
    with pytest.raises(JobError, match=f"mode {mode:04o}, so others can read or change it; chmod"):
        Key.from_file(file(mode=mode))


def test_links_folders_and_pipes_are_refused(file, tmp_path):
    path = file()
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    with pytest.raises(JobError, match="is a link, so what it names may be another file tomorrow"):
        Key.from_file(tmp_path / "link")
    for name in ("pipe", "folder"):
        with pytest.raises(JobError, match="no regular file"):
            Key.from_file(tmp_path / name)
    with pytest.raises(NotFound, match="there is no key file .*horn keygen"):
        Key.from_file(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_refused(file):
    path = file()
    os.chown(path, 12345, 12345)
    with pytest.raises(JobError, match="belongs to uid 12345, not to this user"):
        Key.from_file(path)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "short", base64.b64encode(SECRET[:31]).decode(), SECRET.hex()[:-1],
     SECRET.hex() + "\n" + SECRET.hex(), "ä" * 44, "x" * 2000,
     base64.b64encode(SECRET).decode() + "\n" * 2000],
)  # fmt: skip
def test_what_is_no_key_is_refused_without_showing_it(file, text):
    path = file(text)
    with pytest.raises(JobError, match="is no key file: it should have one line") as caught:
        Key.from_file(path)
    assert len(text.strip()) < 8 or text.strip()[:8] not in str(caught.value)


@pytest.mark.parametrize("secret", [bytes(32), b"password" * 4, b"0123456789abcdef"[:11] * 3])
def test_a_key_that_was_typed_is_refused(file, secret):
    with pytest.raises(JobError, match="is not random; make one with: horn keygen"):
        Key.from_file(file(secret[:32].hex()))


def test_the_environment_has_a_path_and_never_a_key(file, monkeypatch):
    monkeypatch.delenv("HORN_KEY", raising=False)
    assert Key.from_environment() is None
    monkeypatch.setenv("HORN_KEY", str(file()))
    assert Key.from_environment() == KEY
    for text in (SECRET.hex(), "horn-key-1:" + base64.b64encode(SECRET).decode()):
        monkeypatch.setenv("HORN_KEY", text)
        with pytest.raises(JobError, match="HORN_KEY holds a key; every process of this user"):
            Key.from_environment()


def test_every_use_has_a_key_of_its_own():
    made = [
        KEY.zookeeper().secret, KEY.zookeeper_of("a").secret, KEY.zookeeper_of("b").secret,
        KEY.submission(), KEY.role("client"), KEY.role("worker"),
        KEY.service("a"), KEY.service("b"), KEY.job("a"), KEY.job("b"), KEY.job(""),
        KEY.derive("job", "a\0b"), KEY.derive("job\0a", "b"), SECRET,
    ]  # fmt: skip
    assert {len(one) for one in made} == {32}
    assert len(set(made[:-2])) == len(made) - 2 and SECRET not in made[:-1]
    assert Key(SECRET).job("a") == KEY.job("a") != Key(bytes(32)).job("a")
    with pytest.raises(JobError, match="no key for the role 'admin'; there are client, worker"):
        KEY.role("admin")


def test_the_derivation_is_hkdf_sha256_and_stays_what_it_is():
    prk = hmac.digest(b"horn cluster key 1", SECRET, hashlib.sha256)
    expanded = hmac.digest(prk, b"job\0mnist\x01", hashlib.sha256)
    assert KEY.job("mnist") == expanded
    assert KEY.fingerprint == "f1b34795627ef3b7"


def test_a_key_is_not_shown_copied_or_pickled():
    forms = [SECRET.hex(), base64.b64encode(SECRET).decode(), repr(SECRET)]
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY])):
        assert KEY.fingerprint in text and not any(form in text for form in forms)
    for copier in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not copied"):
            copier(KEY)
    assert not hasattr(KEY, "__dict__")
    with pytest.raises(JobError, match="has 3 bytes; make one of 32 with: horn keygen"):
        Key(b"abc")


def test_the_command_prints_the_fingerprint_and_nothing_else(tmp_path, capsys):
    from horn.cli import horn
    from horn.cli._end import ending

    path = tmp_path / "key"
    assert ending(horn, ["keygen", str(path)]) == 0
    assert capsys.readouterr() == (Key.from_file(path).fingerprint + "\n", "")
    assert ending(horn, ["keygen", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "is there already" in err
