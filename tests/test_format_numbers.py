"""A number moves with what it numbers: where the fields of what is stored change and its number
does not, an older horn reads it, and leaves out what it does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import modelfile
from horn.cluster import master, submission
from horn.description import network_to_json
from horn.parameter_server import server_state
from horn.partition.placement import Placement
from horn.sources import SourceCapture
from horn.training import journals, loss_journal
from horn.wire import messages
from tests.strategies.test_durable import a_server


def of_classes(classes: Iterable[type]) -> list[str]:
    """The names and annotations of all fields, those of bases too."""
    return [
        f"{cls.__name__}.{name}: {kind}"
        for cls in classes
        for base in cls.__mro__
        for name, kind in vars(base).get("__annotations__", {}).items()
    ]


def keys(found: Any, path: str = "") -> set[str]:
    """The places of all plain values; those of a list are one place."""
    if isinstance(found, dict):
        return {path}.union(*(keys(value, f"{path}.{key}") for key, value in found.items()))
    if isinstance(found, list):
        return {path}.union(*(keys(value, f"{path}[]") for value in found))
    return {path}


def ramp(z: float) -> float:
    return z


def of_model_file(tmp_path: Path) -> list[str]:
    """Of models with much of what a file can say."""
    net = horn.Network(seed=1)
    image = net.input((6, 6, 1), keep=0.9, name="image")
    maps = net.layer((4, 4, 2), connect=horn.Convolution(2, 3), inputs=image, name="maps")
    few = net.layer(5, activation="tanh", connect=horn.Sparse(4), inputs=maps, name="few")
    own = net.layer(3, activation=horn.Activation("ramp", ramp), inputs=few, name="own")
    back = net.layer(5, connect=horn.Tied(own), inputs=own, name="back")
    net.output(2, activation="softmax", loss="cross_entropy", inputs=own, name="kind")
    net.output(5, loss="squared_error", inputs=back, weight=0.5, bias=0.1, name="again")
    net.loss(few, back, "squared_error", weight=0.1)
    x = np.random.default_rng(0).random((8, 6, 6, 1))
    data = x, {"kind": np.array(["no", "yes"] * 4), "again": x.reshape(8, 36)[:, :5]}
    job = horn.Job(net, data, normalize=True, metrics=["f1"], iterations=1)
    horn.train(job).model.save(tmp_path / "m.horn")
    said = modelfile.read_manifest(tmp_path / "m.horn")
    again = horn.Network(seed=1)
    sequence = again.input(2, steps=3)
    again.layer(4, inputs=[sequence, horn.Delayed()])
    again.output(1, loss="squared_error", each_step=True)
    said["again"] = json.loads(json.dumps(network_to_json(again, SourceCapture())))
    return sorted(keys({key: said[key] for key in said if key not in ("facts", "sources")}))


def of_job(_: Path) -> list[str]:
    records = [
        found for found in vars(master).values()
        if isinstance(found, type) and issubclass(found, master.StoredRecord)
    ]  # fmt: skip
    signed = submission.SignedSubmission, submission.UnsignedSubmission, submission.Submission
    return sorted(of_classes([*signed, *records]))


def of_journals(tmp_path: Path) -> list[str]:
    """Of the messages of servers, which they may write down, and of the files beside."""
    said = [
        kind for number, kind in messages.TYPES.items() if number >= 48 or kind is messages.Note
    ]
    journals.JournalFolder(tmp_path, {}, resume=False).placement(lambda: Placement({}, {}))
    run = json.loads((tmp_path / "servers" / "run.json").read_text())
    return sorted([*of_classes([*said, loss_journal.EpochSums]), *run])


def of_state(_: Path) -> list[str]:
    facts, arrays = server_state.state(a_server())
    return sorted([*facts, *arrays])


# The number of each format, and the digest of its fields.
KNOWN: list[tuple[Any, Callable[[Path], list[str]], int, str]] = [
    (modelfile, of_model_file, 4, "7c874a5d74522004"),
    (submission, of_job, 3, "1338faa161517d64"),
    (journals, of_journals, 4, "38c7d4664419f8f5"),
    (server_state, of_state, 4, "b1f66e948f997026"),
]


@pytest.mark.parametrize("module, fields, number, digest", KNOWN)
def test_other_fields_have_another_number(module, fields, number, digest, tmp_path):
    found = fields(tmp_path)
    now = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
    assert (module.FORMAT, now) == (number, digest), (
        f"what {module.__name__} numbers has other fields: raise its FORMAT, see that files of "
        f"before are read or refused with what to do, and write both here: {found}"
    )
