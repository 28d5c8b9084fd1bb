"""The folder of a run with servers: what it refuses before any process starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import CheckpointError, Conflict
from horn.training.journals import JournalFolder


def job() -> horn.Job:
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).random((10, 3), np.float32)
    return horn.Job(net, (x, np.arange(10) % 2), batch_size=4, epochs=1)


@pytest.mark.parametrize("strategy", ["downpour", "easgd"])
def test_servers_do_not_begin_anew_in_a_folder_of_checkpoints(strategy: str, tmp_path: Path):
    """As if nothing had been trained, while the checkpoints lie beside."""
    horn.train(job(), checkpoints=tmp_path, checkpoint_every=1)
    with pytest.raises(CheckpointError, match="cannot go on from each other; take the strategy"):
        horn.train(job(), checkpoints=tmp_path, resume=True, groups=2, strategy=strategy)
    with pytest.raises(Conflict, match="has checkpoints of a run without servers, the newest of"):
        horn.train(job(), checkpoints=tmp_path, groups=2, strategy=strategy)
    assert not (tmp_path / "servers").exists()


def test_a_run_without_servers_does_not_begin_in_the_folder_of_one_with(tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    with pytest.raises(CheckpointError, match="servers of another run were told, and downpour"):
        horn.train(job(), checkpoints=tmp_path, resume=True)
    with pytest.raises(Conflict, match="has what servers of another run were told; choose"):
        horn.train(job(), checkpoints=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["servers"]


@pytest.mark.parametrize(
    "change",
    [{"identity": None}, {"rows": [3]}, {"told": 3}, {"n_starts": "x"}, {"n_starts": -1}],
)
def test_an_odd_file_of_the_run_is_refused(change: dict[str, Any], tmp_path: Path):
    JournalFolder(tmp_path, {}, resume=False)
    file = tmp_path / "servers" / "run.json"
    whole = json.loads(file.read_text())
    for found in (whole | change, {k: v for k, v in whole.items() if k not in change}, []):
        file.write_text(json.dumps(found))
        with pytest.raises(CheckpointError, match="run.json: cannot be read: "):
            JournalFolder(tmp_path, {}, resume=True)
