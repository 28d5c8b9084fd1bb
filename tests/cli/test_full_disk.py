"""The disk of the output is full when the model is to be saved: nothing is lost, and what failed
first is what is said.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import horn
from horn.errors import Stopped
from horn.training.progress import Progress
from tests.faults.test_checkpoint_storage import small_disk

__all__ = ["small_disk"]  # a fixture

FILE = '''
import horn

class Fill(horn.Callback):
    """Leaves no room: what was free before the start is gone."""

    def on_{when}(self, context):
        with open("{full}", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

def job():
    net = horn.Network(seed=7)
    net.input(64)
    net.output(10, activation="{activation}", loss="{loss}")
    return horn.Job(net, horn.data.digits(), epochs=2, callbacks=[Fill(), {callback}],
                    optimizer=horn.SGD({rate}))
'''


@pytest.fixture
def filling(small_disk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a job that fills the disk, at its end if nothing else is said."""
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))  # there is room in the current folder

    def make(**changed: str) -> str:
        how = {"when": "train_end", "activation": "softmax", "loss": "cross_entropy",
               "callback": "", "rate": "0.1"}  # fmt: skip
        text = FILE.format(full=small_disk / "full", **(how | changed))
        (folder / "filling.py").write_text(text)
        return str(small_disk / "m.horn")

    return make


def kept(said: str, folder: Path) -> horn.Model:
    """The model where the message says that it is."""
    found = re.search(r"kept in (\S+): move it from there", said)
    assert found is not None, said
    return horn.Model.load(folder / found[1])


def test_a_model_that_has_no_room_is_kept_elsewhere(filling, run, folder):
    output = filling()
    done = run("submit", "filling.py", "-o", output)
    assert done.code == 2 and "m.horn: cannot be written (" in done.err, done
    assert kept(done.err, folder).evaluate(horn.data.digits("test"))["acc"] > 0.85
    assert not list(Path(output).parent.glob("*.horn"))


def test_a_callback_that_has_no_room_is_what_is_said(filling, run, folder, small_disk):
    log = small_disk / "log.csv"
    output = filling(when="epoch_end", callback=f'horn.CSVLogger("{log}")')
    done = run("submit", "filling.py", "-o", output)
    assert "callback CSVLogger, on_epoch_end of epoch 1: OSError" in done.err, done
    assert "No space left" in done.err and done.code == 1
    assert kept(done.err, folder).facts["epochs"] == 1
    assert sorted(path.name for path in small_disk.iterdir()) == ["full"]


def test_a_run_that_diverged_is_what_is_said(filling, run, folder):
    output = filling(when="batch_end", activation="identity", loss="squared_error", rate="1e30")
    done = run("submit", "filling.py", "-o", output)
    assert done.code == 7 and "cannot be written" in done.err, done
    assert kept(done.err, folder).parameters


@pytest.mark.cluster
def test_output_that_cannot_be_written_is_said(folder: Path) -> None:
    (folder / "filling.py").write_text(
        "import horn\n\ndef job():\n    net = horn.Network(seed=7)\n    net.input(64)\n"
        '    net.output(10, activation="softmax", loss="cross_entropy")\n'
        "    return horn.Job(net, horn.data.digits(), epochs=1)\n"
    )
    call = [sys.executable, "-m", "horn", "explain", str(folder / "filling.py")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "Error: the output cannot be written (No space left on device); send it elsewhere\n"
    )
    assert "Traceback" not in done.stderr
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *call]  # a daemon's
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.cluster
def test_a_full_disk_of_the_log_or_a_terminal_that_was_closed_costs_words_and_no_run(
    folder: Path,
) -> None:
    """Training ended at the next word, and all was lost."""
    (folder / "filling.py").write_text(
        "import horn\n\ndef job():\n    net = horn.Network(seed=7)\n    net.input(64)\n"
        '    net.output(10, activation="softmax", loss="cross_entropy")\n'
        "    return horn.Job(net, horn.data.digits(), epochs=2)\n"
    )
    call = [sys.executable, "-m", "horn", "submit", str(folder / "filling.py"), "-o"]
    master, terminal = pty.openpty()
    os.close(master)  # what is written to it is refused with EIO
    with open("/dev/full", "w") as full, os.fdopen(terminal, "w") as gone:
        for number, where in enumerate((full, gone)):
            done = subprocess.run(
                [*call, str(folder / f"{number}.horn")], stdout=subprocess.PIPE, stderr=where,
                text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout[:13]) == (0, "training loss")
            assert horn.Model.load(folder / f"{number}.horn").facts["epochs"] == 2


class FullForAnEpoch(horn.Callback):
    """There is no room from the start to the end of the first epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, context):
        with pytest.raises(OSError, match="No space"), open(self.path, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def on_epoch_end(self, context):
        self.path.unlink(missing_ok=True)


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.cluster
@pytest.mark.parametrize("tasks", [1, 2])
def test_checkpoints_that_have_no_room_are_told_once_and_those_that_have_it_again(
    small_disk: Path, tasks: int
) -> None:
    """On a cluster nobody was told; on a terminal each failure was a line, and no success was."""
    net, told = horn.Network(seed=7), Notes()
    net.input(64)
    net.output(10, activation="softmax", loss="cross_entropy")
    full = FullForAnEpoch(small_disk / "full")
    job = horn.Job(net, horn.data.digits(), epochs=2, batch_size=100, callbacks=[full])
    horn.train(job, tasks=tasks, checkpoints=small_disk / "c", checkpoint_every=5, progress=told)
    failed, again = told.notes
    assert "The checkpoint of iteration 5 is not saved" in failed and "ENOSPC" in failed
    assert "Checkpoints are saved again" in again


class FullThenStopped(horn.Callback):
    """There is no room after the first epoch, and then somebody stops the run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_epoch_end(self, context):
        if context.epoch == 1:
            with pytest.raises(OSError), open(self.path, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        if context.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.cluster
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_run_that_is_stopped_with_no_room_for_its_checkpoint_says_why_and_what_is_lost(
    small_disk: Path, tasks: int
) -> None:
    net, told = horn.Network(seed=7), Notes()
    net.input(64)
    net.output(10, activation="softmax", loss="cross_entropy")
    full = FullThenStopped(small_disk / "full")
    job = horn.Job(net, horn.data.digits(), epochs=50, batch_size=100, callbacks=[full])
    how = {"tasks": tasks, "checkpoints": small_disk / "c", "checkpoint_every": 5}
    said = ""
    try:
        run = horn.train(job, progress=told, **how)
    except Stopped as error:
        said = str(error)
    else:
        assert tasks == 1 and run.stopped and not run.checkpoint
        said = told.notes[-1]
    assert re.search(
        r"checkpoint could not be saved: .*ENOSPC.*; the [\d,]+ iterations since", said
    )
