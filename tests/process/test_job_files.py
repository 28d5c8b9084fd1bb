"""A job in files is the job: also its labels by name, of all its data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import horn
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
