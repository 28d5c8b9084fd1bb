"""Rows of mapped files are asked for ahead; what is in memory is left alone."""

from __future__ import annotations

import os

import numpy as np
import pytest

from horn.data import Dataset
from horn.formats import ahead


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6000, dtype=np.float32).reshape(60, 100))
    return np.load(path, mmap_mode="r")


def test_files_are_told_from_memory(mapped):
    assert ahead.is_file(mapped)
    assert ahead.is_file(np.asarray(mapped)[3:])
    assert not ahead.is_file(np.zeros((60, 100), np.float32))


def test_a_file_may_be_mapped_whose_name_is_no_text(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.npy")
    np.save(path, np.zeros((60, 100), np.float32))
    mapped = np.asarray(np.load(path, mmap_mode="r"))
    assert ahead.mapped_at(mapped.__array_interface__["data"][0])[1] == str(path)
    assert ahead.is_file(mapped[3:]) and not ahead.is_file(np.zeros(1000))


def test_only_rows_of_files_are_asked_for(mapped, monkeypatch):
    asked = []
    monkeypatch.setattr(ahead, "want", lambda array, rows: asked.append(list(rows)))
    Dataset(mapped, None).expect(np.array([3, 59]))
    Dataset(np.array(mapped), None).expect(np.array([3, 59]))
    assert asked == [[3, 59]]


def test_asking_changes_nothing(mapped):
    before = np.array(mapped)
    ahead.want(mapped, np.array([0, 59, 17]))
    ahead.want(mapped, np.array([], np.int64))
    np.testing.assert_array_equal(mapped, before)
