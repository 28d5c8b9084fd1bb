"""A job as text and shared memory, and back: in this process, as it would be in another."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import types
from dataclasses import dataclass, fields

import numpy as np
import pytest

import horn
from horn.data import Dataset
from horn.errors import DataError, JobError, ModelError, ProtocolError
from horn.optimizers import Optimizer
from horn.partition.placement import Placement
from horn.process import job_payload
from horn.process.job_payload import SharedArrays, draft, map_private, open_payload, pack
from horn.process.job_spec import JobSpec, RunSpec

FACTORS = types.SimpleNamespace(scale=0.5)


class Leaky(horn.Neuron):
    slope = 0.25
    gain = horn.Parameter(1.0)
    trace = horn.State(0.5)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.gain * (total if total > 0 else total * self.slope))


@dataclass(frozen=True)
class Halving:
    """A schedule of the user's own."""

    initial: float = 1.0

    def at(self, iteration):
        return self.initial / 2**iteration


@dataclass(frozen=True)
class Signs(Optimizer):
    """An optimizer of the user's own."""

    bias: float = 0.0

    def update(self, w, g, slots, lr, t):
        return w - lr * (g + self.bias), {}


RUN = RunSpec(
    n_tasks=2, n_groups=1, hosts="127.0.0.1:1", job="job-1", url="shm://", backend="kernels",
    threads=1, barrier="message", begun=1.5, interval_s=0.1, superstep_timeout_s=9.0,
    start_timeout_s=9.0, max_trace_events=0,
)  # fmt: skip


def job(**settings):
    net = horn.Network(seed=2**63 + 7)
    net.input(6, keep=0.8)
    net.layer(8, neuron=Leaky, connect=horn.Sparse(fan_in=3))
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    data = (rng.random((20, 6), np.float32), rng.integers(0, 3, 20))
    return horn.Job(net, data, **{"batch_size": 5, "epochs": 2, **settings})


def sent(given, placement=None):
    """The job as another process would get it."""
    made = pack(draft(given), given, RUN, placement or Placement.default(given.network))
    copies = [os.dup(fd) for fd in made.descriptors]
    made.close()
    return open_payload(copies)


def test_a_job_arrives_as_it_was():
    given = job(
        optimizer=horn.Adam(horn.Warmup(3, horn.Cosine(0.1, 50)), weight_decay=1e-3, clip_norm=2.0),
        validation=0.2, early_stopping=horn.EarlyStopping(4, "val_acc", 0.01), dtype="float64",
        name="some job", test=(np.zeros((2, 6), np.float32), np.array([0, 1])),
    )  # fmt: skip
    found = sent(given)
    got = found.job
    assert got.optimizer == given.optimizer and got.early_stopping == given.early_stopping
    for name in ("batch_size", "epochs", "iterations", "target", "dtype", "keep_best", "name"):
        assert getattr(got, name) == getattr(given, name)
    assert found.run == RUN and found.placement == Placement.default(given.network)
    for name in ("data", "validation", "test"):
        mine, its = getattr(given, name), getattr(got, name)
        np.testing.assert_array_equal(mine.x, its.x)
        np.testing.assert_array_equal(mine.y, its.y)
        assert (mine.scale, mine.name) == (its.scale, its.name)
        assert not its.x.flags.writeable
    layer, mine = got.network.layers[1], given.network.layers[1]
    assert layer.neuron.__name__ == "Leaky" and layer.neuron is not Leaky
    np.testing.assert_array_equal(layer.links[0].edges.indices, mine.links[0].edges.indices)
    assert got.network.seed == 2**63 + 7 and got.network.layers[0].keep == 0.8


def test_no_setting_of_a_job_stays_behind():
    """Of ``IN_DATA`` the data say it, of ``BEFORE`` nothing is left to do."""
    IN_DATA, BEFORE = {"normalize", "sample_weight", "class_weight", "truncate"}, {"check"}
    settings = {field.name for field in fields(horn.Job)} - {"network", "initial"}
    assert settings - IN_DATA - BEFORE == {*JobSpec.__struct_fields__}


def test_settings_of_sequences_arrive():
    net = horn.Network()
    net.input(2, steps=7)
    net.output(3, activation="softmax", loss="cross_entropy")
    data = np.zeros((20, 7, 2), np.float32), np.zeros(20, int)
    got = sent(horn.Job(net, data, recompute="sqrt", buckets=2)).job
    assert (got.recompute, got.buckets) == ("sqrt", 2)


def test_initial_arrays_are_drawn_once_and_shared():
    given = job()
    found = sent(given)
    for name, array in given.network.initial_parameters(np.float32).items():
        np.testing.assert_array_equal(found.parameters[name], array)
        assert not found.parameters[name].flags.writeable
    assert found.states.keys() == {"layer1.trace"}


@pytest.mark.parametrize(
    "optimizer",
    [
        horn.SGD(Halving(0.5), momentum=0.9),
        Signs(0.1, bias=0.25),
        horn.SGD(np.float64(0.5)),
        horn.RMSProp(horn.Exponential(0.1, 0.9), clip_value=3.0),
    ],
)
def test_optimizers_and_schedules_of_the_user_travel_as_source(optimizer):
    got = sent(job(optimizer=optimizer)).job.optimizer
    assert type(got).__name__ == type(optimizer).__name__
    assert [got.rate(k) for k in range(5)] == [optimizer.rate(k) for k in range(5)]
    assert got.update(1.0, 0.5, {"velocity": 0.1, "squares": 0.1}, 0.1, 1)[0] == pytest.approx(
        optimizer.update(1.0, 0.5, {"velocity": 0.1, "squares": 0.1}, 0.1, 1)[0]
    )


def test_a_placement_arrives_as_it_was():
    given = job()
    placement = Placement(
        {(1, 0): "sender", (2, 0): "replicated"}, {0: "neurons", 1: "rows", 2: ""}
    )
    with pytest.raises(ProtocolError, match="placement does not fit"):
        sent(given, placement)
    placement = Placement(placement.links, {0: "neurons", 1: "rows", 2: "all"})
    assert sent(given, placement).placement == placement


def test_mapped_data_are_not_copied(tmp_path):
    x = np.arange(600, dtype="<f4").reshape(100, 6)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels = np.arange(100) % 3
    memory = SharedArrays()
    spec = memory.add_data(Dataset(np.asarray(mapped)[10:], labels[10:]))
    file, copied = memory.descriptors
    assert os.fstat(file).st_ino == (tmp_path / "x.npy").stat().st_ino
    assert spec.y.memory == 1 and os.fstat(copied).st_size == labels[10:].nbytes
    memory.close()
    found = sent(job(validation=(mapped[10:], labels[10:])))
    np.testing.assert_array_equal(found.job.validation.x, x[10:])


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_mapped_file_that_was_cut_short_is_named(tmp_path, is_gone):
    """It was said to be no room in memory."""
    np.save(tmp_path / "x.npy", np.ones((2000, 64)))
    given = Dataset(np.asarray(np.load(tmp_path / "x.npy", mmap_mode="r")), None)
    os.truncate(tmp_path / "x.npy", 4096)
    if is_gone:
        (tmp_path / "x.npy").unlink()
    memory = SharedArrays()
    with pytest.raises(
        DataError, match="data: the f.* was cut sh|x.npy: was cut short to 4,096 by"
    ):
        memory.add_data(given)
    memory.close()


def test_a_mapped_file_that_was_replaced_is_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((100, 6), "<f4"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.save(tmp_path / "new.npy", np.zeros((100, 6), "<f4"))
    os.replace(tmp_path / "new.npy", tmp_path / "x.npy")
    memory = SharedArrays()
    spec = memory.add_data(Dataset(np.asarray(mapped), None))
    raw = map_private(memory.descriptors[spec.x.memory])
    assert np.frombuffer(raw, "<f4", 600, spec.x.offset).min() == 1.0
    memory.close()


def test_rows_that_are_not_contiguous_arrive():
    wide = np.random.default_rng(0).random((20, 9), np.float32)
    given = job(validation=(wide[:, 2:8], np.arange(20) % 3))
    np.testing.assert_array_equal(sent(given).job.validation.x, wide[:, 2:8])


class Scaled(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) * FACTORS.scale)


def test_a_number_that_no_statement_says_is_refused_where_the_text_is_read():
    net = horn.Network()
    net.input(6)
    net.layer(4, neuron=Scaled)
    net.output(3, activation="softmax", loss="cross_entropy")
    given = job().with_settings(network=net)
    assert sent(given).job.network.layers[1].neuron is not Scaled
    before, FACTORS.scale = FACTORS.scale, 2.0
    try:
        with pytest.raises(ModelError, match="layer1: the text of Scaled, or of what it calls"):
            sent(given)
    finally:
        FACTORS.scale = before


def test_what_cannot_travel_is_said_before_anything_starts():
    limits = types.SimpleNamespace(low=0.1)

    class Captured(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages) + limits.low)

    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Captured, loss="squared_error")
    given = horn.Job(net, (np.zeros((4, 2)), np.zeros((4, 1))))
    with pytest.raises(JobError, match=r"cannot be given to other processes: .*'limits'"):
        draft(given)

    class Moody:
        def at(self, iteration):
            return 0.1

    with pytest.raises(JobError, match=r"optimizer.learning_rate is .*no dataclass"):
        draft(job(optimizer=horn.SGD(Moody())))


def broken(change):
    """A payload whose text was changed."""
    given = job()
    made = pack(draft(given), given, RUN, Placement.default(given.network))
    text = json.loads(bytes(map_private(made.descriptors[0])))
    change(text)
    memory = SharedArrays()
    memory.add({"text": np.frombuffer(json.dumps(text).encode(), np.uint8)}, "job")
    os.close(made.descriptors.pop(0))
    return open_payload([*memory.descriptors, *made.descriptors])


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.update(format=2), "format 2"),
        (lambda t: t.update(more=1), "unknown field"),
        (lambda t: t["run"].update(n_tasks=-1), "n_tasks"),
        (lambda t: t["job"]["data"]["x"].update(dtype="|O"), "is '|O'"),
        (lambda t: t["job"]["data"]["x"].update(shape=[2**40, 6]), "ends at byte"),
        (lambda t: t["job"]["data"]["x"].update(offset=2**40), "ends at byte"),
        (lambda t: t["job"]["data"]["x"].update(memory=7), "memory 7 of 3"),
        (
            lambda t: t["job"].update(optimizer={"class": {"horn": "horn.job:Job"}, "fields": {}}),
            "",
        ),
        (lambda t: t["job"].update(optimizer={}), "KeyError"),
        (lambda t: t["network"].pop("layers"), "layers"),
        (lambda t: t["arrays"].pop("edges/layer1.weight/indptr"), "KeyError"),
    ],
)
def test_a_payload_that_is_not_ours_is_refused(change, words):
    gc.collect()  # what others left in circles of references may hold files
    n_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError) as caught:
        broken(change)
    assert words in str(caught.value)
    del caught  # its frames hold the memory
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_the_memory_of_a_payload_is_sealed():
    memory = SharedArrays()
    memory.add({"a": np.arange(5)}, "x")
    assert fcntl.fcntl(memory.descriptors[0], fcntl.F_GET_SEALS) == job_payload.SEALS
    with pytest.raises(OSError):
        os.write(memory.descriptors[0], b"x")
    memory.close()
