"""Where a checkpoint has the history, and who goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.callbacks import TrainingContext
from horn.checkpoint import Checkpoints
from horn.training.cursor import Cursor


class Lengths(horn.Callback):
    """Writes how many epochs a task knows of at the end of each."""

    everywhere = True

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_epoch_end(self, context: TrainingContext) -> None:
        epochs = [row["epoch"] for row in context.history]
        (Path(self.folder) / f"{context.task}-{context.epoch}").write_text(str(epochs))


def job(epochs: int, *callbacks: Any) -> horn.Job:
    net = horn.Network(seed=5)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.random.default_rng(0).random((8, 3), np.float32)
    return horn.Job(net, (x, np.arange(8) % 2), batch_size=4, epochs=epochs, callbacks=callbacks)


@pytest.mark.parametrize("n_tasks", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_a_checkpoint_has_the_history_once_and_all_go_on_with_it(n_tasks: int, tmp_path: Path):
    """Each task's part had a copy, and each task read the parts of all."""
    kept, told = tmp_path / "kept", tmp_path / "told"
    told.mkdir()
    first = horn.train(job(2), tasks=n_tasks, checkpoints=kept, checkpoint_every=3)
    newest = Checkpoints(kept).latest()
    assert newest is not None and newest.iteration == 3
    assert [row["epoch"] for row in newest.facts["rows"]] == [1]
    parts = newest.parts()
    assert len(parts) == n_tasks
    assert not any("rows" in facts["cursor"] for facts in parts.values())
    again = horn.train(
        job(2, Lengths(str(told))), tasks=n_tasks, checkpoints=kept, checkpoint_every=3, resume=True
    )
    assert again.history["loss"] == first.history["loss"]
    for path in told.iterdir():
        assert path.read_text() == "[1, 2]"
    assert len([*told.iterdir()]) == n_tasks


def test_a_cursor_of_an_older_horn_has_the_history_too():
    cursor = Cursor(iteration=3, epoch=2)
    assert Cursor.from_json({**cursor.to_json(), "rows": [{"epoch": 1}]}) == cursor
