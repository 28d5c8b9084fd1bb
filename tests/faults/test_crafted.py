"""Model files and checkpoints that somebody made up, with sums that are right: each is one sentence
and an exit code of a wrong file, at once, or it is good.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn.checkpoint import Checkpoints
from horn.cli._end import ending
from horn.errors import HornError
from horn.training.checkpointing import cursor_of
from tests.support.checkpoints import whole_array

SEED = int(os.environ.get("HORN_SEED", "0"))
FEW_S = 1.0  # of this thread's own time
CODES = {2, 4}
pytestmark = pytest.mark.timeout(300)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 1e308, float("nan"), float("inf"), 0.5,
    "", "x", "\ud800", "\0", "é" * 200, "../../etc/passwd", "a" * 100_000, [], [[]], {}, {"": 0},
    [0] * 1000, [2**40, 2**40], {"name": "x"}, {"name": None, "f": {}},
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    if at:
        yield at
    if isinstance(value, (dict, list)):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from places(inner, (*at, key))


def altered(rng: random.Random, value: Any) -> Any:
    """With something else in one place, or without it, or with something more."""
    found = copy.deepcopy(value)
    where = rng.choice(list(places(found)))
    holder = found
    for key in where[:-1]:
        holder = holder[key]
    match rng.randrange(8):
        case 0:
            del holder[where[-1]]
        case 1 if isinstance(holder, dict):
            holder["more"] = rng.choice(ODD)
        case _:
            holder[where[-1]] = rng.choice(ODD)
    return found


def deep(n: int) -> bytes:
    return b'{"a":' * n + b"1" + b"}" * n


def packed(header: Any, body: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def opened(raw: bytes) -> tuple[dict[str, Any], bytes]:
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def signed(header: dict[str, Any], described: Any) -> dict[str, Any]:
    """A header with another description, and its sum."""
    text = json.dumps(described)
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    metadata = {**header["__metadata__"], "horn": text, "horn_sha256": digest}
    return {**header, "__metadata__": metadata}


def crafted(rng: random.Random, raw: bytes) -> bytes:
    """Another file of this kind."""
    header, body = opened(raw)
    described = json.loads(header["__metadata__"]["horn"])
    match rng.randrange(10):
        case 0:
            return raw[: rng.randrange(len(raw))]
        case 1:
            return struct.pack("<Q", rng.choice((0, 1, 2**31, 2**63, 2**64 - 1))) + raw[8:]
        case 2:
            return packed(deep(rng.choice((10, 10_000, 100_000))), body)
        case 3:
            return packed(altered(rng, header), body)
        case 4:
            at = rng.randrange(len(raw))
            return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
        case _:
            return packed(signed(header, altered(rng, described)), body)


def check(use: Callable[[], Any]) -> bool:
    """Whether it is good; else it is horn's error with one of CODES. Neither takes long."""
    began = time.thread_time()
    try:
        use()
        return True
    except HornError as error:
        assert error.exit_code in CODES, error
        assert len(str(error)) < 5000
        return False
    finally:
        assert time.thread_time() - began < FEW_S


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model file, and a folder of checkpoints."""
    folder = tmp_path_factory.mktemp("crafted")
    rng = np.random.default_rng(0)
    net = horn.Network(seed=3)
    net.input(8)
    net.layer(6, activation="tanh", connect=horn.Sparse(fan_in=3))
    net.output(2, activation="softmax", loss="cross_entropy")
    data = rng.standard_normal((40, 8)).astype("float32"), rng.integers(0, 2, 40)
    job = horn.Job(net, data, optimizer=horn.SGD(0.1, momentum=0.9), batch_size=10, epochs=3)
    run = horn.train(job, checkpoints=folder / "saved", checkpoint_every=4)
    run.model.save(folder / "good.horn")
    return folder / "good.horn", folder / "saved"


@pytest.mark.parametrize("n", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_crafted_models_are_refused_in_a_sentence(trained, tmp_path, n, capsys):
    raw, rng = trained[0].read_bytes(), random.Random(SEED)
    path = tmp_path / "made.horn"
    n_good = 0

    def show() -> None:
        code = ending(show_command(), [str(path)])
        assert code in {0, *CODES}, capsys.readouterr().err

    def use() -> None:
        horn.Model.load(path).predict(np.zeros((3, 8), "float32"))

    for _ in range(n):
        path.write_bytes(crafted(rng, raw))
        check(show)
        n_good += check(use)
        assert "Traceback" not in capsys.readouterr().err
    assert n_good < n


@pytest.mark.parametrize("size", ["a" * 100_000, 0, -3, 1.5, None, 2**40, [8]])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_of_no_size_is_refused_when_the_file_is_read(trained, tmp_path, layer, size):
    header, body = opened(trained[0].read_bytes())
    described = json.loads(header["__metadata__"]["horn"])
    described["network"]["layers"][layer]["size"] = size
    path = tmp_path / "made.horn"
    path.write_bytes(packed(signed(header, described), body))
    with pytest.raises(HornError) as caught:
        horn.Model.load(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "keys, value",
    [(("network", "layers", 0, "name"), {}), (("facts", "metrics"), [1]),
     (("facts", "metrics", "test"), 0.5)],
    ids=str,
)  # fmt: skip
def test_what_is_only_shown_is_checked_when_a_model_is_loaded(keys, value, trained, tmp_path):
    """A notebook that showed the model said AttributeError."""
    header, body = opened(trained[0].read_bytes())
    described = json.loads(header["__metadata__"]["horn"])
    described["facts"]["metrics"] = {"test": {}}
    at = described
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    (tmp_path / "shown.horn").write_bytes(packed(signed(header, described), body))
    with pytest.raises(HornError, match="its description is not one that this horn writes"):
        horn.Model.load(tmp_path / "shown.horn")


def test_half_a_character_in_a_description_is_refused(trained, tmp_path):
    header, body = opened(trained[0].read_bytes())
    described = json.loads(header["__metadata__"]["horn"])
    described["network"]["layers"][1]["name"] = "layer\ud800"
    path = tmp_path / "made.horn"
    path.write_bytes(packed(signed(header, described), body))
    with pytest.raises(HornError, match="not one that this horn writes"):
        horn.Model.load(path)


def show_command():
    from horn.cli.show import command

    return command


def sealed(described: dict[str, Any]) -> bytes:
    """The text of a manifest, with its sum."""
    described = {name: value for name, value in described.items() if name != "sha256"}
    start = json.dumps(described, indent=1).removesuffix("\n}").encode()
    return start + f',\n "sha256": "{hashlib.sha256(start).hexdigest()}"\n}}\n'.encode()


def resigned(rng: random.Random, folder: Path) -> None:
    """A file of a checkpoint, altered; its sums are made right again."""
    manifest = folder / "MANIFEST.json"
    part = rng.choice(sorted(folder.glob("*.safetensors")))
    described = json.loads(manifest.read_text())
    match rng.randrange(6):
        case 0:
            manifest.write_bytes(deep(rng.choice((10, 100_000))))
            return
        case 1 | 2:
            made = altered(rng, described)
            manifest.write_bytes(sealed(made if isinstance(made, dict) else described))
            return
        case _:
            raw = crafted(rng, part.read_bytes())
            part.write_bytes(raw)
            entry = described["files"][part.name]
            entry["bytes"], entry["sha256"] = len(raw), hashlib.sha256(raw).hexdigest()
    manifest.write_bytes(sealed(described))


@pytest.mark.parametrize("n", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_crafted_checkpoints_are_refused_in_a_sentence(trained, tmp_path, n):
    rng, n_good = random.Random(SEED), 0
    newest = sorted(p for p in trained[1].iterdir() if p.name.startswith("ckpt-"))[-1]
    for number in range(n):
        folder = tmp_path / str(number) / newest.name
        shutil.copytree(newest, folder)
        resigned(rng, folder)

        def use(folder: Path = folder) -> None:
            found = Checkpoints(folder.parent).open(folder)
            cursor_of(found)
            for kind in ("parameter", "state", "memory"):
                for name in found.names(kind):
                    for shape in ((6, 3), (18,), (2, 6), (2,), (6,)):
                        try:
                            whole_array(found, kind, name, shape, "float32")
                        except HornError:
                            continue

        n_good += check(use)
        shutil.rmtree(tmp_path / str(number))
    assert n_good < n


def test_what_is_no_regular_file_is_refused_at_once(trained, tmp_path):
    os.mkfifo(tmp_path / "pipe.horn")
    (tmp_path / "folder.horn").mkdir()
    (tmp_path / "loop.horn").symlink_to(tmp_path / "loop.horn")
    (tmp_path / "nowhere.horn").symlink_to(tmp_path / "nothing")
    (tmp_path / "device.horn").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket.horn"))
        for path in sorted(tmp_path.iterdir()):
            assert not check(lambda path=path: horn.Model.load(path)), path
            assert ending(show_command(), [str(path)]) in CODES, path
    newest = sorted(p for p in trained[1].iterdir() if p.name.startswith("ckpt-"))[-1]
    for name in ("MANIFEST.json", sorted(newest.glob("*.safetensors"))[0].name):
        for number, make in enumerate((os.mkfifo, os.mkdir)):
            folder = tmp_path / f"{name}-{number}" / newest.name
            shutil.copytree(newest, folder)
            (folder / name).unlink()
            make(folder / name)
            assert not check(lambda folder=folder: Checkpoints(folder.parent).open(folder))
