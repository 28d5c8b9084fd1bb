"""Checkpoints: what is written comes back, to any division; what was altered does not."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import math
import os
import stat
import tempfile
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from horn import atomic_write
from horn.checkpoint import ArrayPiece, Checkpoints, write_part
from horn.checkpoint import disk as disk_module
from horn.checkpoint.places import axis, cross, intersection
from horn.errors import CheckpointError, Conflict, Fenced, HornError
from tests.support.checkpoints import whole_array

FACTS = {"network": "abc", "best": float("inf"), "rate": 0.1, "history": [1, 2.5, None, True]}


def pieces(rng, rows=slice(0, 4), columns=slice(0, 3)):
    return [ArrayPiece("parameter", "layer1.weight", rng.standard_normal((4, 3)), (rows, columns))]


def save(folder, iteration, parts=None, attempt=0, facts=FACTS, keep=3):
    """A checkpoint of these parts by name; by default two, of three rows each of (6, 3)."""
    if parts is None:
        whole = np.arange(18.0).reshape(6, 3) + iteration
        parts = {
            f"rank-{k}": [ArrayPiece("parameter", "w", whole[3 * k :][:3],
                                     (slice(3 * k, 3 * k + 3), slice(0, 3)))]
            for k in range(2)
        }  # fmt: skip
    checkpoints = Checkpoints(folder, keep)
    temporary = checkpoints.begin(iteration, attempt)
    written = [write_part(temporary, name, given, {"part": name}) for name, given in parts.items()]
    return checkpoints.commit(temporary, iteration, facts, written)


def test_what_is_written_comes_back(tmp_path, rng):
    weight = rng.standard_normal((5, 7)).astype(np.float32)
    arrays = {
        "weight": weight,
        "transposed": weight.T,
        "strided": weight[::2, 1::3],
        "big-endian": weight.astype(">f4"),
        "half": weight.astype(np.float16),
        "mask": weight > 0,
        "counts": np.arange(4, dtype=np.uint64),
        "scalar": np.array(3.25),
        "empty": np.empty((0, 3), np.float32),
        "nan": np.array([np.nan, -0.0, np.inf]),
    }
    given = [
        ArrayPiece("parameter", name, a, tuple(slice(0, n) for n in a.shape))
        for name, a in arrays.items()
    ]
    path = save(tmp_path / "job", 12, {"rank-0": given})

    opened = Checkpoints(tmp_path / "job").latest()
    assert (opened.iteration, opened.attempt, opened.path) == (12, 0, path)
    assert opened.facts == FACTS and opened.parts() == {"rank-0": {"part": "rank-0"}}
    assert opened.names("parameter") == tuple(sorted(arrays)) and opened.names("slot") == ()
    for name, a in arrays.items():
        native = a.dtype.newbyteorder("=")
        got = whole_array(opened, "parameter", name, a.shape, native)
        assert got.tobytes() == a.astype(native).tobytes() and got.dtype == native, name
        assert got.shape == a.shape and got.flags.writeable


def test_a_part_is_a_safetensors_file_with_a_true_sha256(tmp_path, rng):
    a, b = rng.standard_normal((300, 5000)), rng.integers(0, 9, 5).astype(np.uint8)  # 12 MB: chunks
    indices = np.array([4, 0, 2, 9, 7])
    given = [
        ArrayPiece("state", "b", b, (indices,)),
        ArrayPiece("state", "a", a.T, (slice(None),) * 2),
    ]
    written = write_part(tmp_path, "rank-3", given, {})
    path = tmp_path / "rank-3.safetensors"
    found = load_file(path)
    assert found["1/state/a"].tobytes() == np.ascontiguousarray(a.T).tobytes()
    assert found["0/state/b"].tobytes() == b.tobytes()
    assert written.n_bytes == path.stat().st_size
    with disk_module.reading(path) as descriptor:
        assert disk_module.sha256(descriptor) == written.sha256


def test_nobody_else_can_read_it(tmp_path):
    path = save(tmp_path / "job", 1)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)} == {0o700}


def test_parts_are_cut_to_another_division(tmp_path, rng):
    whole = rng.standard_normal((10, 6))
    odd, even = np.arange(1, 10, 2), slice(0, 10, 2)
    parts = {
        "rank-0": [ArrayPiece("parameter", "w", whole[odd], (odd, slice(0, 6)))],
        "rank-1": [ArrayPiece("parameter", "w", whole[even, :2], (even, slice(0, 2)))],
        "rank-2": [ArrayPiece("parameter", "w", whole[even, 2:], (even, slice(2, 6)))],
    }
    save(tmp_path, 1, parts)
    opened = Checkpoints(tmp_path).latest()
    some = np.array([7, 0, 3, 3])
    got = opened.cut("parameter", "w", (some, slice(1, 6, 2)), np.float64)
    assert np.array_equal(got, whole[some, 1:6:2])
    assert np.array_equal(whole_array(opened, "parameter", "w", (10, 6), np.float64), whole)
    mine = opened.cut("parameter", "w", (even, slice(0, 2)), np.float64, parts=["rank-1"])
    assert np.array_equal(mine, whole[::2, :2])


def test_what_is_not_there_is_said(tmp_path):
    save(tmp_path, 5)
    opened = Checkpoints(tmp_path).latest()
    cases = {
        "has no parameter 'v' (of this kind it has: w)": ("v", (6, 3), "f8"),
        "has 18 of the 21 values of parameter 'w'": ("w", (7, 3), "f8"),
        "2 axes of dtype float64, but 2 of float32": ("w", (6, 3), "f4"),
        "2 axes of dtype float64, but 1 of float64": ("w", (18,), "f8"),
    }
    for expected, (name, shape, dtype) in cases.items():
        with pytest.raises(CheckpointError) as caught:
            whole_array(opened, "parameter", name, shape, dtype)
        assert expected in str(caught.value)
    with pytest.raises(CheckpointError, match="has 9 of the 18 values .* in rank-1"):
        opened.cut("parameter", "w", (slice(0, 6), slice(0, 3)), "f8", parts=["rank-1"])
    with pytest.raises(CheckpointError, match="has no part 'rank-7' .it has rank-0, rank-1"):
        opened.cut("parameter", "w", (slice(0, 6), slice(0, 3)), "f8", parts=["rank-7"])


def test_the_last_are_kept_and_a_later_attempt_is_newer(tmp_path):
    for iteration in (10, 20, 30, 40):
        save(tmp_path, iteration)
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.iterations() == [20, 30, 40] and checkpoints.next_attempt() == 1
    save(tmp_path, 25, attempt=1)  # gone on from 20 again
    assert checkpoints.iterations() == [30, 40, 25] and checkpoints.latest().iteration == 25
    with pytest.raises(Fenced, match="attempt 0 .* attempt 1 has written"):
        checkpoints.begin(50, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "ckpt-000000025-0001", "ckpt-000000030-0000", "ckpt-000000040-0000"]  # fmt: skip


def test_an_attempt_that_is_overtaken_while_it_writes_is_fenced(tmp_path, rng):
    old = Checkpoints(tmp_path)
    temporary = old.begin(10, 0)
    written = [write_part(temporary, "rank-0", pieces(rng), {})]
    save(tmp_path, 9, attempt=1)
    with pytest.raises(Fenced):
        old.commit(temporary, 10, {}, written)
    assert old.latest().iteration == 9 and not temporary.exists()


def test_leftovers_are_swept_and_nothing_else(tmp_path):
    save(tmp_path, 10, attempt=2)
    (tmp_path / "ckpt-000000020-0002.tmp").mkdir()
    (tmp_path / "ckpt-000000020-0002.tmp" / "rank-0.safetensors").write_bytes(b"half")
    (tmp_path / "ckpt-000000005-0001.old").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for other in ("notes.tmp", "ckpt-12.tmp", "model.horn"):
        (tmp_path / other).mkdir()
    (tmp_path / "ckpt-000000030-0002.tmp").symlink_to(tmp_path / "elsewhere")
    checkpoints = Checkpoints(tmp_path)
    assert [p.name for p in checkpoints.sweep(below_attempt=2)] == ["ckpt-000000005-0001.old"]
    assert [p.name for p in checkpoints.sweep()] == ["ckpt-000000020-0002.tmp"]
    assert len(list(tmp_path.iterdir())) == 6 and checkpoints.latest().iteration == 10


def test_a_leftover_of_which_one_file_cannot_be_removed_loses_the_others(
    tmp_path, caplog, monkeypatch
):
    left = Checkpoints(tmp_path).begin(10, 0)
    names = [f"rank-{rank}.safetensors" for rank in range(3)]
    for name in names:
        (left / name).write_bytes(b"much")
    unlink = os.unlink

    def refuses(path):
        if str(path).endswith(names[1]):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuses)
    assert Checkpoints(tmp_path).sweep() == [] and "left behind" in caplog.text
    assert [path.name for path in left.iterdir()] == [names[1]]


def test_a_leftover_with_somebodys_file_stays(tmp_path, caplog):
    left = Checkpoints(tmp_path).begin(10, 0)
    (left / "thesis.txt").write_text("mine")
    assert Checkpoints(tmp_path).sweep() == [] and (left / "thesis.txt").exists()
    assert "left behind" in caplog.text and str(left) in caplog.text


def test_a_damaged_one_is_passed_over_and_named(tmp_path, caplog):
    for iteration in (10, 20, 30):
        save(tmp_path, iteration)
    (tmp_path / "ckpt-000000030-0000" / "rank-1.safetensors").unlink()
    flip(tmp_path / "ckpt-000000020-0000" / "rank-0.safetensors", -1)
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(tmp_path).latest().iteration == 10
    first, second = (record.getMessage() for record in caplog.records)
    assert "ckpt-000000030-0000/rank-1.safetensors: no such file" in first
    assert "ckpt-000000020-0000/rank-0.safetensors: is damaged (its sha256 is " in second


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_missing_and_damaged_have_their_exit_codes(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None and Checkpoints(tmp_path / "none").latest() is None
    path = save(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"no checkpoint of iteration 11 .*: 10\)") as e:
        checkpoints.open(11)
    assert e.value.exit_code == 4
    with pytest.raises(CheckpointError, match="no such checkpoint") as e:
        checkpoints.open(tmp_path / "ckpt-1")
    assert e.value.exit_code == 4
    assert checkpoints.open(path).iteration == checkpoints.open(10).iteration == 10
    flip(path / "rank-1.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"rank-1.safetensors: is damaged") as e:
        checkpoints.open(10)
    assert e.value.exit_code == 2 and isinstance(e.value, HornError)


def test_a_task_verifies_what_it_uses_before_it_does(tmp_path):
    path = save(tmp_path, 10)
    flip(path / "rank-1.safetensors", -1)
    opened = Checkpoints(tmp_path).open(10, verify=False)
    opened.cut("parameter", "w", (slice(0, 3), slice(0, 3)), "f8")  # rank 0's alone
    with pytest.raises(CheckpointError, match=r"rank-1.safetensors: is damaged"):
        opened.cut("parameter", "w", (slice(2, 4), slice(0, 3)), "f8")


def test_another_format_is_refused_in_a_sentence(tmp_path):
    path = save(tmp_path, 10) / "MANIFEST.json"
    whole = json.loads(path.read_text())
    for changed, expected in (
        ({"version": 0}, "is of format 0, this horn reads format 2; use the horn that wrote it"),
        ({"version": 1}, "is of format 1, this horn reads format 2; use the horn that wrote it"),
        ({"version": 3}, "is of format 3, this horn reads format 2; use the horn that wrote it"),
        ({"format": "other"}, "is no manifest of a checkpoint that horn wrote"),
        ({"iteration": 11}, "does not have the sha256 that its last line says"),
    ):
        path.write_text(json.dumps(whole | changed, indent=1))
        with pytest.raises(CheckpointError) as caught:
            Checkpoints(tmp_path).open(10)
        assert expected in str(caught.value) and str(path) in str(caught.value)


def test_a_manifest_that_was_indented_all_the_way_is_read(tmp_path):
    path = save(tmp_path, 10, facts={"rows": [{"loss": 0.5}]}) / "MANIFEST.json"
    whole = json.loads(path.read_text())
    del whole["sha256"]
    start = json.dumps(whole, indent=1).removesuffix("\n}")
    seal = hashlib.sha256(start.encode()).hexdigest()
    path.write_text(f'{start},\n "sha256": "{seal}"\n}}\n')
    assert Checkpoints(tmp_path).latest().facts == {"rows": [{"loss": 0.5}]}


def test_a_folder_renamed_to_another_iteration_is_refused(tmp_path):
    save(tmp_path, 10).rename(tmp_path / "ckpt-000000011-0000")
    with pytest.raises(CheckpointError, match="is the checkpoint of iteration 10, attempt 0"):
        Checkpoints(tmp_path).open(11)


def test_a_good_one_is_not_written_twice_a_damaged_one_is(tmp_path):
    path = save(tmp_path, 10)
    with pytest.raises(Conflict, match="go on with another attempt"):
        save(tmp_path, 10)
    assert Checkpoints(tmp_path).latest().iteration == 10
    flip(path / "rank-1.safetensors", -1)
    save(tmp_path, 10)
    assert Checkpoints(tmp_path).latest().iteration == 10
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"a": {1: 2}}, r"facts\['a'\] has the key 1, which is no text"),
        ({"a": [np.float32(1)]}, r"facts\['a'\]\[0\] is of type float32, which JSON has not"),
        ({"a": b"x"}, r"facts\['a'\] is of type bytes"),
    ],
)
def test_facts_that_would_not_read_back_are_refused(tmp_path, facts, said):
    with pytest.raises(CheckpointError, match=said):
        save(tmp_path, 1, facts=facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ((slice(0, 4),), "has 2 axes, but places along 1"),
        ((slice(0, 5), slice(0, 3)), "axis 0: 5 places are given for 4 values"),
        ((np.array([0, 1, 2, -1]), slice(0, 3)), "axis 0: indices begin at -1"),
        ((slice(4, 0, -1), slice(0, 3)), "axis 0: .* does not count upward"),
        ((np.array([0.0, 1, 2, 3]), slice(0, 3)), "axis 0: indices have dtype float64"),
    ],
)
def test_places_that_do_not_fit_are_refused_when_they_are_written(tmp_path, rng, places, said):
    with pytest.raises(CheckpointError, match=said):
        write_part(tmp_path, "rank-0", pieces(rng, *places), {}) if len(places) == 2 else (
            write_part(tmp_path, "rank-0", [ArrayPiece("p", "w", np.ones((4, 3)), places)], {})
        )
    assert list(tmp_path.iterdir()) == []


def test_a_part_is_not_called_as_a_path(tmp_path, rng):
    for name in ("../x", "a/b", "", ".x", "x\0"):
        with pytest.raises(CheckpointError, match="a part is not called"):
            write_part(tmp_path, name, pieces(rng), {})


def test_commit_refuses_a_part_that_is_not_as_written(tmp_path, rng):
    checkpoints = Checkpoints(tmp_path)
    temporary = checkpoints.begin(10, 0)
    written = write_part(temporary, "rank-0", pieces(rng), {})
    os.truncate(temporary / "rank-0.safetensors", written.n_bytes - 1)
    with pytest.raises(CheckpointError, match=r"rank-0.safetensors: is not as its task wrote it"):
        checkpoints.commit(temporary, 10, {}, [written])
    assert list(tmp_path.iterdir()) == []


OF_FILES = (disk_module, atomic_write)  # modules by which a checkpoint comes to the disk


class Refusing:
    """``os``, but the n-th call of one function fails with an errno."""

    def __init__(self, function, n, number):
        self.function, self.left, self.number = function, n, number

    def __getattr__(self, name):
        if name != self.function:
            return getattr(os, name)

        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.number, os.strerror(self.number))
            return getattr(os, name)(*args, **kwargs)

        return call


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("function", ["open", "write", "fsync", "close", "rename", "mkdir"])
def test_a_step_that_the_disk_refuses_voids_the_attempt(tmp_path, monkeypatch, function, number):
    save(tmp_path, 10)
    with monkeypatch.context() as patch:
        n = 1
        while True:
            refusing = Refusing(function, n, number)
            for module in OF_FILES:
                patch.setattr(module, "os", refusing)
            try:
                save(tmp_path, 20)
            except CheckpointError as error:
                assert str(tmp_path) in str(error) and errno.errorcode[number] in str(error)
                assert (error.errno, error.exit_code) == (number, 1)
                for module in OF_FILES:
                    patch.setattr(module, "os", os)
                Checkpoints(tmp_path).sweep()  # a part's task dies, nobody discards
                assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000010-0000"]
                n += 1
            else:
                assert refusing.left > 0 and n > 1
                break
    assert Checkpoints(tmp_path).latest().iteration == 20


def test_the_next_attempt_follows_a_failed_one_in_the_same_folder(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        refusing = Refusing("fsync", 3, errno.EIO)  # rank 1's
        for module in OF_FILES:
            patch.setattr(module, "os", refusing)
        with pytest.raises(CheckpointError, match=r"rank-1.safetensors: cannot be written .*EIO"):
            save(tmp_path, 10)
    save(tmp_path, 10)
    assert Checkpoints(tmp_path).latest().iteration == 10


def test_a_checkpoint_that_is_there_is_not_said_to_have_failed(tmp_path, monkeypatch, caplog):
    """The folder could not be read when the oldest were to be removed, after the rename."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    temporary = checkpoints.begin(10, 0)
    written = write_part(temporary, "rank-0", pieces(np.random.default_rng(0)), {})
    found = Checkpoints._found

    def fails_after_the_rename(self):
        if not temporary.exists():
            raise CheckpointError(str(tmp_path), "cannot be read", 1, errno.EIO)
        return found(self)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_found", fails_after_the_rename)
        assert checkpoints.commit(temporary, 10, {}, [written]).is_dir()
    assert "left behind: " in caplog.text
    assert checkpoints.latest().iteration == 10


ends = st.integers(0, 40)
place = st.one_of(
    st.builds(lambda a, n, s: range(a, a + n * s, s), ends, st.integers(0, 12), st.integers(1, 4)),
    st.lists(ends, unique=True, max_size=12).map(lambda found: np.array(found, np.int64)),
)


@given(have=place, want=place)
def test_what_two_places_have_in_common_is_what_sets_have(have, want):
    have, want = axis(have), axis(want)
    source, to = intersection(have, want)
    both = set(map(int, have)) & set(map(int, want))
    a, b = np.asarray(have)[source], np.asarray(want)[to]
    assert a.tolist() == b.tolist() and sorted(a.tolist()) == sorted(both)


def test_two_index_arrays_select_a_grid():
    a = np.arange(12).reshape(3, 4)
    assert a[cross((np.array([2, 0]), np.array([3, 1])))].tolist() == [[11, 9], [3, 1]]


@st.composite
def divisions(draw, n):
    """An axis of n values among 1 to 4 tasks: blocks, every k-th, or whatever numbers."""
    n_tasks = draw(st.integers(1, 4))
    how = draw(st.sampled_from(["blocks", "strides", "numbers"]))
    if how == "blocks":
        ends = [n * k // n_tasks for k in range(n_tasks + 1)]
        return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
    if how == "strides":
        return [slice(k, max(n, k), n_tasks) for k in range(n_tasks)]
    owners = np.array(draw(st.lists(st.integers(0, n_tasks - 1), min_size=n, max_size=n)), int)
    order = np.array(draw(st.permutations(range(n))), np.int64)
    return [order[owners[order] == k] for k in range(n_tasks)]


@st.composite
def saved_and_wanted(draw):
    """The shape of an array, who wrote what of it, and who wants what."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    written, wanted = (
        list(itertools.product(*(draw(divisions(n)) for n in shape))) for _ in range(2)
    )
    twice = draw(st.lists(st.sampled_from(written), max_size=2))  # replicas
    return shape, [*written, *twice], wanted


@settings(max_examples=60, deadline=None)
@given(given=saved_and_wanted(), dtype=st.sampled_from(["f4", "f8", "i8", "?", "f2"]))
def test_any_division_is_read_by_any_other(given, dtype):
    shape, written, wanted = given
    whole = (np.arange(math.prod(shape)) * 7 % 31).astype(dtype).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            f"rank-{k}": [ArrayPiece("state", "w", whole[cross(places)], places)]
            for k, places in enumerate(written)
        }
        with unsynced():
            save(folder, 1, parts)
        opened = Checkpoints(folder).open(1, verify=False)
        assert np.array_equal(whole_array(opened, "state", "w", shape, dtype), whole)
        for places in wanted:
            got = opened.cut("state", "w", places, dtype)
            assert np.array_equal(got, whole[cross(places)]) and got.dtype == whole.dtype


class Unsynced:
    """``os`` without fsync, for what is not about crashes."""

    def __getattr__(self, name):
        return (lambda descriptor: None) if name == "fsync" else getattr(os, name)


@contextmanager
def unsynced():
    with pytest.MonkeyPatch.context() as patch:
        for module in OF_FILES:
            patch.setattr(module, "os", Unsynced())
        yield


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[::2], lambda a: a[:, 1:]])
def test_no_second_copy_is_made_of_what_is_written(tmp_path, view):
    array = view(np.ones((3000, 2000)))  # 48 MB
    places = tuple(slice(0, n) for n in array.shape)
    tracemalloc.start()
    try:
        write_part(tmp_path, "rank-0", [ArrayPiece("parameter", "w", array, places)], {})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.5 * disk_module.CHUNK_BYTES


def test_a_whole_checkpoint_is_not_read_into_memory(tmp_path):
    whole = np.ones((2000, 1500))  # 24 MB
    save(tmp_path, 1, {"rank-0": [ArrayPiece("parameter", "w", whole, (slice(None),) * 2)]})
    tracemalloc.start()
    try:
        opened = Checkpoints(tmp_path).latest()
        got = opened.cut("parameter", "w", (slice(0, 2000, 50), slice(0, 1500)), "f8")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.nbytes == whole.nbytes // 50
    assert most < 2 * disk_module.CHUNK_BYTES
