"""Experiments 27-29: crashes, full and failing disks, kills and damage. What is loaded is whole.

The gate runs a part of each; ``pytest -m slow`` runs the numbers that docs/reliability.md gives.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from horn import atomic_write
from horn.checkpoint import Checkpoints, disk
from horn.errors import CheckpointError
from tests.faults.checkpointing import N_COLUMNS, N_ROWS, check, newest, save
from tests.faults.crash_states import Recorder, crash_states, interleaved, lay_out, scan
from tests.support.checkpoints import whole_array

ROOT = Path(__file__).parents[2]
SHAPE = (N_ROWS, N_COLUMNS)
SEED = 27


def sizes(gate, full):
    """A test at two sizes."""
    return pytest.mark.parametrize(
        "n", [gate, pytest.param(full, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
    )


@pytest.fixture
def quiet():
    """What is passed over is told in the log thousands of times here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# 27: crash states


def old_and(folder: Path) -> int:
    save(folder, 10)
    return 10


def old_and_a_leftover(folder: Path) -> int:
    """An attempt at the same checkpoint was cut off before; its files are replaced."""
    left = Checkpoints(folder).begin(20, 0)
    for name in ("rank-0.safetensors", "rank-7.safetensors", "MANIFEST.json"):
        (left / name).write_bytes(b"half")
    return old_and(folder)


def old_and_a_damaged_one(folder: Path) -> int:
    """The same checkpoint was written, and has been damaged since."""
    path = save(folder, 20)
    os.truncate(path / "rank-0.safetensors", 600)
    return old_and(folder)


def recorded(folder, prepare, keep, monkeypatch, forgotten=lambda path: False):
    """The old iteration, the disk before, and the steps by which 20 is written."""
    old = prepare(folder)
    start, recorder = scan(folder), Recorder(forgotten)
    with monkeypatch.context() as patch:
        for module in (disk, atomic_write):
            patch.setattr(module, "os", recorder)
        patch.setattr(disk, "CHUNK_BYTES", 1024)  # so that a file takes several writes
        save(folder, 20, keep=keep)
    return old, start, recorder.steps


def judge(state, old, is_done, scratch) -> bool:
    """Whether the loader returns the old or the new, and the new if the commit had returned; a
    sweep leaves nothing else.
    """
    lay_out(state, scratch)
    try:
        found = newest(scratch)
        if Checkpoints(scratch).sweep() and newest(scratch) != found:
            return False
        left = [p.name for p in scratch.iterdir() if not re.fullmatch(r"ckpt-\d+-\d+", p.name)]
        return found in ((20,) if is_done else (old, 20)) and not left
    finally:
        shutil.rmtree(scratch)


@pytest.fixture
def scratch():
    """A name for a folder in memory: thousands of states are laid out there."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="horn-test-") as folder:
        yield Path(folder) / "state"


@sizes(1_000, 20_000)
def test_27_after_a_crash_the_old_one_or_the_new_is_loaded(
    tmp_path, scratch, monkeypatch, quiet, n
):
    n_states, bad, seed = 0, [], SEED
    cases = [
        (prepare.__name__, keep, tmp_path / f"{prepare.__name__}-{keep}", set(), prepare)
        for prepare in (old_and, old_and_a_leftover, old_and_a_damaged_one)
        for keep in (1, 3)
    ]
    before = {folder: recorded(folder, how, keep, monkeypatch) for _, keep, folder, _, how in cases}
    while n_states < n:  # with each seed the tasks' steps are mixed in another way
        for name, keep, folder, known, _ in cases:
            old, start, steps = before[folder]
            mixed = interleaved(steps, seed)
            for done, state in crash_states(folder, start, mixed, n // 200, seed, known):
                n_states += 1
                if not judge(state, old, done == len(steps), scratch):
                    bad.append((name, keep, seed, done))
        seed += 1
    n_steps = sum(len(steps) for _, _, steps in before.values())
    print(f"27: {n_states} states of {n_steps} steps, {seed - SEED} orders, {len(bad)} bad")
    assert bad == []


@pytest.mark.parametrize("name", ["rank-0.safetensors", "MANIFEST.json", "folder", "parent"])
def test_27_would_find_an_fsync_that_is_missing(tmp_path, scratch, monkeypatch, quiet, name):
    folder = tmp_path / "job"

    def forgotten(path):
        if name == "parent":
            return path == folder
        return path.name == name or (name == "folder" and path.name.endswith(".tmp"))

    old, start, steps = recorded(folder, old_and, 1, monkeypatch, forgotten)
    states = crash_states(folder, start, steps, 5, SEED, set())
    assert not all(judge(state, old, done == len(steps), scratch) for done, state in states)


# 28: kills, a full disk, a disk that fails


def writer(folder, first, n, n_threads, *before):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    command = [*before, sys.executable, "-m", "tests.faults.checkpointing"]
    return subprocess.Popen(
        [*command, str(folder), str(first), str(n), str(n_threads)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.cluster
@sizes(6, 200)
def test_28_a_writer_killed_at_a_random_moment_leaves_whole_checkpoints(tmp_path, quiet, n):
    chance = random.Random(SEED)
    folder = tmp_path / "job"
    save(folder, 1)
    last, n_torn = 1, 0
    for _ in range(n):
        process = writer(folder, last + 1, 0, 2)
        try:
            assert process.stdout.readline().startswith("written")  # it is at work
            time.sleep(chance.uniform(0, 0.03))  # a checkpoint takes about 10 ms
        finally:
            process.kill()
            # Not communicate: it leaves out what readline has read ahead.
            said, errors = process.stdout.read(), process.stderr.read()
            process.stdout.close()
            process.stderr.close()
            process.wait(timeout=30)
        assert errors == ""
        told = re.findall(r"written (\d+)\n", said)
        acknowledged = int(told[-1]) if told else last + 1
        n_torn += any(p.suffix for p in folder.iterdir())
        found = newest(folder)
        assert found in (acknowledged, acknowledged + 1)  # the last one may not have been told
        last = found
    Checkpoints(folder).sweep()
    left = [p.name for p in folder.iterdir() if p.suffix]
    print(f"28: {n} kills, {n_torn} of them within a checkpoint, {last} iterations, {left} left")
    assert left == []
    assert n_torn > 0 or n < 20


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; its folder."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small tmpfs needs root and mount")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "horn-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip(f"mount is refused: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


@sizes(8, 104)
def test_28_a_full_disk_refuses_and_the_one_before_is_loaded(small_disk, quiet, n):
    folder, page = small_disk / "job", os.statvfs(small_disk).f_frsize
    path = save(folder, 10, n_columns=2048)
    size = sum(file.stat().st_size for file in path.iterdir())
    refused = written = 0
    for k in range(n):
        n_free = 2 * size * k // (n - 1) // page * page
        fill(small_disk / "full", small_disk, n_free)
        try:
            path = save(folder, 20 + k, n_columns=2048)
        except CheckpointError as error:
            refused += 1
            assert (error.errno, error.exit_code) == (errno.ENOSPC, 1)
            assert str(folder) in str(error) and "ENOSPC" in str(error)
            assert newest(folder) == 10
        else:
            written += 1
            assert n_free >= size and newest(folder) == 20 + k
            shutil.rmtree(path)
        assert [p.name for p in folder.iterdir()] == ["ckpt-000000010-0000"]
        (small_disk / "full").unlink()
    print(f"28: free space 0 to {2 * size} B for {size} B, {n} amounts: {refused} refused")
    assert refused and written


def fill(path: Path, disk_folder: Path, n_free: int) -> None:
    """Leave this many bytes, rounded down to pages."""
    with open(path, "wb") as file:
        at = os.statvfs(disk_folder)
        file.write(bytes(max(0, at.f_bavail * at.f_frsize - n_free)))


def traced(folder, log, function, nth):
    """Two checkpoints while the n-th call of a function fails: what was said, the calls."""
    calls = "openat,write,fsync,close,rename"
    strace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}",
              "-e", f"inject={function}:error=EIO:when={nth}"]  # fmt: skip
    process = writer(folder, 20, 2, 1, *strace)  # strace counts the calls of each thread
    try:
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return said, errors, log.read_text() if log.exists() else ""


@pytest.mark.cluster
@sizes(1, 100)
@pytest.mark.parametrize("function", ["fsync", "write", "rename"])
def test_28_a_disk_that_fails_is_named_and_no_fsync_is_tried_again(tmp_path, quiet, function, n):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    runs = refused = 0
    for nth in range(1, n + 1):
        folder, log = tmp_path / f"{function}-{nth}", tmp_path / "log"
        save(folder, 10)
        said, errors, calls = traced(folder, log, function, nth)
        if "PTRACE" in errors or "ptrace" in errors:
            pytest.skip(f"strace may not trace here: {errors.strip()[:100]}")
        if "INJECTED" not in calls:
            break  # the program makes fewer calls
        runs += 1
        hit = next(line for line in calls.splitlines() if "INJECTED" in line)
        if "write(1," in hit:  # it could not say that it was written
            continue
        assert errors == ""
        lines = said.splitlines()
        told = [line for line in lines if line.startswith("refused")]
        refused += len(told)
        assert len(told) == 1 and str(folder) in told[0] and "errno 5 EIO" in told[0], (hit, said)
        written = [int(line.split()[1]) for line in lines if line.startswith("written")]
        assert len(written) == 1 and newest(folder) == written[0]
        assert sorted(p.name for p in folder.iterdir()) == [
            "ckpt-000000010-0000", f"ckpt-{written[0]:09d}-0001"]  # fmt: skip
        if function == "fsync":
            assert_closed_before_the_next_fsync(calls, hit)
    print(f"28: EIO at each of {runs} calls of {function}: {refused} refused by name")
    assert refused


def assert_closed_before_the_next_fsync(calls: str, hit: str) -> None:
    """A later fsync of the number of the descriptor that failed is another file's."""
    lines = calls.splitlines()
    number = re.search(r"fsync\((\d+)", hit)[1]
    for line in lines[lines.index(hit) + 1 :]:
        if re.search(rf"close\({number}[ )]", line):
            return
        assert not re.search(rf"fsync\({number}[ )]", line), line
    raise AssertionError(f"descriptor {number} was not closed")


# 29: damage


@pytest.fixture
def two(tmp_path):
    """A job's folder with an old checkpoint and a new one; the new one's files."""
    folder = tmp_path / "job"
    save(folder, 10)
    path = save(folder, 20)
    files = [path / name for name in ("MANIFEST.json", "rank-0.safetensors", "rank-1.safetensors")]
    assert sorted(files) == sorted(path.iterdir())
    return folder, files


def assert_detected(folder: Path) -> str:
    """The new one is refused, its file named; the old one is loaded instead."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(folder).open(20)
    assert caught.value.exit_code == 2 and "ckpt-000000020-0000" in str(caught.value)
    assert newest(folder) == 10
    return str(caught.value)


@sizes(300, 10_000)
def test_29_every_flipped_bit_is_seen(two, quiet, n):
    folder, files = two
    chance = random.Random(SEED)
    lengths = [file.stat().st_size for file in files]
    for _ in range(n):
        file = chance.choices(files, lengths)[0]
        before = file.read_bytes()
        at, bit = chance.randrange(len(before)), chance.randrange(8)
        after = bytearray(before)
        after[at] ^= 1 << bit
        file.write_bytes(after)
        said = assert_detected(folder)
        assert str(file) in said, (file, at, bit, said)
        file.write_bytes(before)
    assert newest(folder) == 20
    print(f"29: {n} flipped bits in files of {lengths} bytes, all seen")


def test_29_every_truncation_is_seen(two, quiet):
    folder, files = two
    n = 0
    for file in files:
        whole = file.read_bytes()
        for length in [*range(0, len(whole), 512), len(whole) - 1, len(whole) + 1]:
            file.write_bytes((whole + b"\0")[:length])
            assert str(file) in assert_detected(folder)
            n += 1
        file.write_bytes(whole)
    print(f"29: {n} truncations, all seen")


def test_29_swapped_and_missing_files_are_seen(two, quiet, tmp_path):
    folder, (manifest, first, second) = two
    aside = tmp_path / "aside"

    def swap(a, b):
        a.rename(aside)
        b.rename(a)
        aside.rename(b)

    swap(first, second)
    assert "rank-0.safetensors: " in assert_detected(folder)
    swap(first, second)
    other = folder / "ckpt-000000010-0000" / first.name  # the same part of another iteration
    assert other.stat().st_size == first.stat().st_size
    swap(first, other)
    assert "rank-0.safetensors: is damaged (its sha256 is" in refusal(folder, 20)
    assert "rank-0.safetensors: is damaged (its sha256 is" in refusal(folder, 10)
    swap(first, other)
    for file in (manifest, first, second):
        file.rename(aside)
        assert f"{file.name}: no such file" in assert_detected(folder)
        file.mkdir()
        assert f"{file.name}: is not a file" in assert_detected(folder)
        file.rmdir()
        os.mkfifo(file)  # must not be waited for
        assert f"{file.name}: is not a file" in assert_detected(folder)
        file.unlink()
        file.symlink_to(aside)
        assert f"{file.name}: is a link" in assert_detected(folder)
        file.unlink()
        aside.rename(file)
    assert newest(folder) == 20


def refusal(folder, iteration):
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(folder).open(iteration)
    return str(caught.value)


def test_29_another_network_is_refused(two):
    folder, _ = two
    opened = Checkpoints(folder).latest()
    for name, shape, dtype in (
        ("w", (SHAPE[0] + 1, SHAPE[1]), "f4"),
        ("w", SHAPE[::-1], "f4"),
        ("w", (SHAPE[0] * SHAPE[1],), "f4"),
        ("w", SHAPE, "f8"),
        ("v", SHAPE, "f4"),
    ):
        with pytest.raises(CheckpointError, match="resume with the network that wrote"):
            whole_array(opened, "parameter", name, shape, dtype)


@pytest.mark.parametrize("version", [0, 3, "2", None])
def test_29_another_format_falls_back_to_one_that_can_be_read(two, quiet, version):
    folder, (manifest, first, _) = two
    sealed = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(sealed), "version": version}))
    assert f"is of format {version!r}, this horn reads format 2" in assert_detected(folder)
    manifest.write_text(sealed)
    if isinstance(version, int):
        text = first.read_bytes().replace(b'"version":"1"', b'"version":"%d"' % version)
        first.write_bytes(text)
        assert f"is of format {version}, this horn reads format 1" in assert_detected(folder)


WRONG = [None, True, -1, 0, 2**31, 2**64, 10**40, 0.5, "", "w", "I64", "F32", [], [0], [0, 0, 0],
         [0, 10**30, 1], [5, 0, 1], [[[]]], {}, {"dtype": "F32"}, "0.0/places",
         [[0, 24, 0]], [[10**30, 10**30 + 12, 1], [0, 64, 1]], [[0, 64, 1], [2**62, 2**62 + 64, 1]],
         [0, 2**40, 2**40], [0, 10**30], "\ud800"]  # fmt: skip


def false_place(chance):
    """Of the length that an axis here has, wherever it is."""
    start, n = chance.choice([0, 7, -7, 2**31, 2**61, 2**63, 10**30]), chance.choice([12, 64])
    step = chance.choice([1, 2, -1, 2**40, 2**62, 10**30])
    return [start, start + n * step, step]


def mutated(chance, value):
    """A JSON value with one thing in it changed, removed or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        if chance.random() < 0.1:
            return rest
        return {**rest, key: mutated(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        k = chance.randrange(len(value))
        if chance.random() < 0.1:
            return [*value[:k], value[k], *value[k:]]
        return [*value[:k], mutated(chance, value[k]), *value[k + 1 :]]
    return false_place(chance) if chance.random() < 0.2 else chance.choice(WRONG)


@sizes(400, 20_000)
def test_29_a_header_that_says_nonsense_and_has_its_sha256_raises_no_traceback(two, quiet, n):
    """Who wrote it was wrong, or wants to do harm: the checksums are true."""
    folder, (manifest, _, second) = two
    chance = random.Random(SEED)
    sealed, whole = manifest.read_text(), second.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    n_refused = 0
    for _ in range(n):
        header = json.loads(whole[8 : 8 + length])
        if chance.random() < 0.5:
            text = json.dumps(mutated(chance, json.loads(header["__metadata__"]["horn"])))
            digest = hashlib.sha256(text.encode()).hexdigest()
            header["__metadata__"] |= {"horn": text, "horn_sha256": digest}
        else:
            header = mutated(chance, header)
        encoded = json.dumps(header).encode()
        data = len(encoded).to_bytes(8, "little") + encoded + whole[8 + length :]
        second.write_bytes(data)
        seal(manifest, sealed, second.name, data)
        try:
            opened = Checkpoints(folder).open(20)
            check(opened)
        except CheckpointError as error:
            assert str(second.parent) in str(error)
            n_refused += 1
        except AssertionError:
            pass  # other values, truly said: that is what a checksum cannot see
    print(f"29: {n} false headers under true checksums, {n_refused} refused, 0 tracebacks")
    assert n_refused > n // 2


def seal(manifest: Path, sealed: str, name: str, data: bytes) -> None:
    """The manifest with the size and sha256 that a file has now."""
    found = json.loads(sealed)
    del found["sha256"]
    found["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    body = json.dumps(found, indent=1).removesuffix("\n}")
    digest = hashlib.sha256(body.encode()).hexdigest()
    manifest.write_text(f'{body},\n "sha256": "{digest}"\n}}\n')


@sizes(400, 20_000)
def test_29_a_manifest_that_says_nonsense_under_its_seal_raises_no_traceback(two, quiet, n):
    folder, (manifest, _, second) = two
    chance = random.Random(SEED)
    sealed, data = manifest.read_text(), second.read_bytes()
    n_refused = 0
    for _ in range(n):
        found = mutated(chance, json.loads(sealed))
        if not isinstance(found, dict):
            continue
        found.pop("sha256", None)
        body = json.dumps(found, indent=1).removesuffix("\n}")
        digest = hashlib.sha256(body.encode()).hexdigest()
        manifest.write_text(f'{body},\n "sha256": "{digest}"\n}}\n')
        try:
            Checkpoints(folder).open(20)
        except CheckpointError as error:
            assert str(manifest.parent) in str(error)
            n_refused += 1
    assert second.read_bytes() == data
    print(f"29: {n} false manifests under true seals, {n_refused} refused, 0 tracebacks")
    assert n_refused > n // 2


def test_29_a_value_that_nobody_wrote_is_never_invented(two):
    """A cut beyond what the parts cover is refused, not filled up."""
    folder, _ = two
    opened = Checkpoints(folder).latest()
    rows = np.array([0, 5, 24])
    with pytest.raises(CheckpointError, match="has 128 of the 192 values"):
        opened.cut("parameter", "w", (rows, slice(0, 64)), "f4")
