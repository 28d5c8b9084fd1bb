"""A job in files is the job: also its labels by name, of all its data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import horn
from horn import errors
from horn.process import job_files


def test_labels_by_name_of_validation_and_test_data_travel(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)) + [1, 2, 3]
    y = np.array(["ant", "bee"])[(x[:, 0] > 1).astype(int)]
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, (x, y), validation=0.2, test=(x[:9], y[:9]), epochs=2, normalize=True,
                   class_weight={"bee": 2.0}, metrics=["f1"])  # fmt: skip
    job_files.save(job, tmp_path)
    here, there = horn.train(job), horn.train(job_files.load(tmp_path))
    assert here.history["val_f1"] == there.history["val_f1"]
    assert here.metrics == there.metrics and list(there.model.classes_) == ["ant", "bee"]


def test_a_file_that_is_cut_while_it_is_sent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 3), np.float32))
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    job = horn.Job(net, (x, np.zeros(1000, np.int64)), epochs=1)
    send = os.sendfile

    def send_and_cut(to: int, of: int, at: int, n: int) -> int:
        if os.readlink(f"/proc/self/fd/{of}").endswith("x.npy"):
            os.truncate(tmp_path / "x.npy", 6000)
        return send(to, of, at, min(n, 5000))

    monkeypatch.setattr(os, "sendfile", send_and_cut)
    (tmp_path / "job").mkdir()
    with pytest.raises(errors.DataError) as caught:
        job_files.save(job, tmp_path / "job")
    assert str(caught.value) == (
        f"{tmp_path}/x.npy: was cut short to 6,000 bytes, expected 12,128; write it again under "
        "another name, and rename that when it is whole"
    )


def test_names_of_columns_travel(tmp_path: Path) -> None:
    """A model of a cluster answered a table of other columns without a word."""
    rng = np.random.default_rng(0)
    (tmp_path / "rows.csv").write_text(
        "long,wide,kind\n"
        + "".join(f"{a:.3f},{b:.3f},{int(a > b)}\n" for a, b in rng.random((60, 2)))
    )
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    rows = horn.data.load(str(tmp_path / "rows.csv"))
    job = horn.Job(net, rows, validation=0.2, test=(rows.x[:9], rows.y[:9]), epochs=1)
    (tmp_path / "job").mkdir()
    job_files.save(job, tmp_path / "job")
    found = job_files.load(tmp_path / "job")
    assert found.data.feature_names == found.validation.feature_names == ("long", "wide")
    assert found.test.feature_names == ()
    assert horn.train(found).model.feature_names == ("long", "wide")
