"""Sequences: the law, gradients through time, the traps of recurrence, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup, make
from horn.cli import horn as commands
from horn.compiler import lower
from horn.connections import Edges
from horn.errors import CompileError, DataError, JobError, ModelError
from horn.math import tanh
from horn.program import Repeat
from tests.parity.recurrent import CELLS, GRU, LSTM, SMOOTH, Distance, Written, generated

OPTIMIZERS = (
    horn.SGD(0.1), horn.SGD(0.1, momentum=0.9), horn.Adam(0.01), horn.SGD(0.1, clip_norm=0.5),
    horn.SGD(0.1, weight_decay=0.1),
)  # fmt: skip
BATCHES = [np.arange(5), np.array([0, 2]), np.array([4, 3, 1, 0, 2])]  # a short one between


def job_of(seed: int, cells: tuple[Any, ...] = CELLS, dtype: str = "float64", **how: Any) -> Any:
    net, data = generated(seed, cells, **how)
    rng = np.random.default_rng(seed)
    weights = rng.random(5) if rng.random() < 0.3 else None
    optimizer = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    job = horn.Job(net, data=data, dtype=dtype, batch_size=5, optimizer=optimizer,
                   sample_weight=weights)  # fmt: skip
    job.check_data()
    return job


def engine_of(job: Any, backend: str, threads: int = 1) -> Any:
    size = len(job.data)
    setup = Setup(job.network, job.optimizer, "labels", size, job.dtype, threads)
    engine = make(backend, setup)
    engine.bind(job.data)
    return engine


def run(job: Any, backend: str, threads: int = 1) -> dict[str, Any]:
    """All that an engine says of a job: probes, answers, and what three updates leave."""
    engine = engine_of(job, backend, threads)
    found = engine.probe(np.array([3, 1, 0]), iteration=2, first_sample=7)
    found = {f"probe {name}": array for name, array in found.items()}
    found["outputs"] = engine.outputs(job.data.x, job.data.lengths)
    found["losses"] = np.array(engine.losses(job.data))
    found["steps"] = np.array(
        [engine.step(r, iteration=k, first_sample=5 * k) for k, r in enumerate(BATCHES)]
    )
    return found | engine.parameters() | {f"state {k}": v for k, v in engine.states().items()}


def compare(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert np.shape(array) == np.shape(other[name]), name
        scale = max(1.0, np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(other[name] / scale, array / scale, 0, tolerance, err_msg=name)


@pytest.mark.parametrize("seed", [1, 8])
def test_the_law(seed):
    job = job_of(seed)
    found = run(job, "python")
    for backend in ("reference", "kernels"):
        compare(found, run(job, backend), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 420))
def test_the_law_at_length(seed):
    test_the_law(seed)


@pytest.mark.parametrize("seed", [3])
def test_single_precision_and_threads(seed):
    job = job_of(seed, SMOOTH, "float32")
    found = run(job, "reference")
    compare(found, run(job, "kernels"), 2e-4)
    one, two = run(job, "kernels"), run(job, "kernels", threads=2)
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("cell", "steps"), [(LSTM, 1), (LSTM, 2), (LSTM, 7), (GRU, 7), (Distance, 2), (Distance, 7)]
)
def test_gradients_are_those_of_finite_differences(cell, steps):
    net = horn.Network(seed=steps)
    x = net.input(2, steps=steps)
    heard = {"x": x, "h": horn.Delayed(steps=1), "back": horn.Delayed("out", 2)}
    net.layer(3, neuron=cell, inputs=heard)
    net.output(2, activation="tanh", loss="squared_error", name="out")
    rng = np.random.default_rng(steps)
    data = rng.normal(size=(4, steps, 2)), rng.normal(size=(4, 2))
    job = horn.Job(net, data=data, dtype="float64", optimizer=horn.SGD(0.1))
    check_gradients(job)


def check_gradients(job: Any) -> None:
    engine, rows = engine_of(job, "kernels"), np.arange(len(job.data))
    found = engine.probe(rows, iteration=0, first_sample=0)
    arrays = engine.parameters()
    for name, array in arrays.items():
        for place in list(np.ndindex(array.shape))[:: max(1, array.size // 5)]:
            losses = []
            for way in (1e-5, -1e-5):
                moved = {k: v.copy() for k, v in arrays.items()}
                moved[name][place] += way
                engine.load(moved)
                seen = engine.probe(rows, iteration=0, first_sample=0)
                losses.append(float(seen["loss"]))
            expected = (losses[0] - losses[1]) / 2e-5
            assert found[f"{name}.gradient"][place] == pytest.approx(expected, rel=1e-8, abs=1e-8)


# --- traps


def elman(steps: int, size: int = 4, each: bool = False) -> horn.Network:
    net = horn.Network(seed=1)
    x = net.input(3, steps=steps)
    net.layer(size, activation="tanh", inputs=[x, horn.Delayed()], name="h")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each)
    return net


def test_the_last_step_hears_of_the_first():
    """Trap 4: of sums over steps none is overwritten by the next."""
    data = np.zeros((3, 6, 3)), np.array([0, 1, 0])
    data[0][:, 0] = np.random.default_rng(0).normal(size=(3, 3))  # only the first step is not 0
    job = horn.Job(elman(6), data=data, dtype="float64", optimizer=horn.SGD(0.1))
    check_gradients(job)
    engine = engine_of(job, "kernels")
    found = engine.probe(np.arange(3), iteration=0, first_sample=0)
    assert np.abs(found["h.weight.layer0.gradient"]).max() > 1e-4


def test_parameters_do_not_grow_with_steps():
    """Trap 5: one layer, however many steps; a thousand train."""
    few, many = elman(7), elman(1000)
    assert [a.shape for a in few.initial_parameters().values()] == [
        a.shape for a in many.initial_parameters().values()
    ]
    rng = np.random.default_rng(0)
    data = rng.normal(size=(8, 1000, 3)), rng.integers(0, 2, 8)
    job = horn.Job(many, data=data, batch_size=4, epochs=2, optimizer=horn.Adam(0.01))
    found = horn.train(job, progress=False)
    assert np.isfinite(found.history[-1]["loss"])


def test_draws_differ_from_step_to_step():
    """Trap 10: a mask of its own at each step, the same in every backend; of a batch the same."""

    class Mask(horn.Neuron):
        def forward(self, messages):
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(0.0 * total + self.uniform() + 2.0 * self.uniform(per="batch"))

    net = horn.Network(seed=2)
    net.input(1, steps=40)
    net.layer(3, neuron=Mask)
    net.output(1, loss="squared_error")
    data = np.zeros((2, 40, 1)), np.zeros((2, 1))
    job = horn.Job(net, data=data, dtype="float64", optimizer=horn.SGD(0.1))
    found = [
        engine_of(job, backend).probe(np.arange(2), iteration=0, first_sample=0)["layer1.output"]
        for backend in ("python", "reference", "kernels")
    ]
    assert np.array_equal(found[0], found[1]) and np.allclose(found[0], found[2], 0, 1e-15)
    assert len(np.unique(found[0])) == found[0].size
    assert (np.ptp(found[0], axis=(0, 1)) < 1.0).all()  # the second draw is one per batch


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_draws_of_a_sequence_are_the_same_at_all_its_steps(backend):
    """Each sequence has its own, and others in every batch; of one step it is that of the step."""

    class Mask(horn.Neuron):
        def forward(self, messages):
            total, mask = 0.0, self.uniform(per="sequence")
            for m in messages:
                total += 0.0 * m.input * m.weight + 10.0 * self.bernoulli(0.5, per="sequence")
            self.feedforward(total + mask)

    def sent(steps: int, iteration: int = 0) -> Any:
        net = horn.Network(seed=2)
        net.input(4, steps=steps)
        net.layer(8, neuron=Mask)
        net.output(1, loss="squared_error")
        data = np.zeros((3, steps, 4)), np.zeros((3, 1))
        job = horn.Job(net, data=data, dtype="float64", optimizer=horn.SGD(0.1))
        probe = engine_of(job, backend).probe
        return probe(np.arange(3), iteration=iteration, first_sample=6)["layer1.output"]

    found = sent(40)
    assert (found == found[:, :1]).all() and len(np.unique(found)) == 3 * 8
    assert np.array_equal(found[:, :1], sent(1))
    assert not np.isin(found, sent(40, iteration=1)).any()


def test_a_feature_is_silent_in_a_whole_sequence():
    """``net.input(keep=, per="sequence")``, and hidden neurons that drop out per sequence."""
    net = horn.Network(seed=2)
    net.input(9, steps=6, keep=0.5, per="sequence")
    net.layer(9, neuron=horn.neurons.SequenceDropout, name="h", activation="sigmoid")
    net.output(1, loss="squared_error")
    data = np.ones((5, 6, 9)), np.zeros((5, 1))
    job = horn.Job(net, data=data, dtype="float64", optimizer=horn.SGD(0.1))
    for backend in ("python", "reference", "kernels"):
        found = engine_of(job, backend).probe(np.arange(5), iteration=0, first_sample=0)
        for name in ("layer0", "h"):
            mask = found[f"{name}.output"] != 0
            assert (mask == mask[:, :1]).all()
            assert 0.3 < mask.mean() < 0.7 and (mask[0] != mask[1]).any()
    with refused("per must be", ModelError):
        horn.Network().input(2, per="step")


class Deaf(horn.Neuron):
    """Remembers, and listens to one of its inputs."""

    cell = horn.State(0.1, per="sample")

    def forward(self, messages):
        self.cell = 0.5 * self.cell + sum(m.input * m.weight for m in messages.x)
        self.feedforward(self.cell)


@pytest.mark.parametrize("heard", [horn.Delayed(), horn.Delayed("out", 2)])
def test_a_delayed_input_that_nobody_reads(heard):
    net = horn.Network(seed=1)
    net.layer(3, neuron=Deaf, inputs={"x": net.input(2, steps=3), "h": heard})
    net.output(2, loss="squared_error", name="out")
    rng = np.random.default_rng(1)
    job = horn.Job(net, (rng.normal(size=(5, 3, 2)), rng.normal(size=(5, 2))), dtype="float64")
    found = run(job, "python")
    for backend in ("reference", "kernels"):
        compare(found, run(job, backend), 1e-9)


def test_what_is_not_on_a_circle_is_not_repeated():
    """Products with the inputs and gradients of weights are of all steps at once."""
    program = lower.training_program(elman(5, each=True), horn.SGD(0.1), "label")
    loops = [s for s in program.statements if isinstance(s, Repeat)]
    made = {name for s in loops for x in s.body for name in _writes(x)}
    assert "h.output" in made and "h.delta" in made
    assert not any("weight" in name or name.startswith("layer2.delta") for name in made)


def _writes(statement: Any) -> tuple[str, ...]:
    from horn.program import writes

    return writes(statement)


# --- one job, from training to a file


def task(each: bool = False, n: int = 60, steps: int = 5, **how: Any) -> horn.Job:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, steps, 3))
    y = (x[:, :, 0].cumsum(axis=1) > 0).astype(int)
    net = horn.Network(seed=1)
    a = net.input(3, steps=steps)
    net.layer(6, neuron=LSTM, inputs={"x": a, "h": horn.Delayed()}, name="h")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each)
    y = y if each else y[:, -1]
    return horn.Job(net, data=(x, y), validation=0.2, batch_size=16, epochs=4,
                    optimizer=horn.Adam(0.02), **how)  # fmt: skip


@pytest.mark.parametrize("each", [False, True])
def test_training_files_and_resuming(each, tmp_path):
    whole = horn.train(task(each), progress=False)
    assert whole.history[-1]["loss"] < whole.history[0]["loss"]
    assert 0.0 <= whole.history[-1]["acc"] <= 1.0
    whole.model.save(tmp_path / "a.horn")
    read = horn.Model.load(tmp_path / "a.horn")
    x = np.random.default_rng(0).normal(size=(7, 5, 3))
    assert np.array_equal(read.predict(x), whole.model.predict(x))
    assert read.predict(x).shape == ((7, 5, 2) if each else (7, 2))
    assert read.predict(x, labels=True).shape == ((7, 5) if each else (7,))
    answers = whole.model.predict(x, labels=True)
    assert read.evaluate(x, answers)["acc"] == 1.0
    folder = tmp_path / "checkpoints"
    half = task(each).with_settings(epochs=2)
    horn.train(half, progress=False, checkpoints=folder, checkpoint_every=3)
    rest = horn.train(task(each), progress=False, checkpoints=folder, resume=True)
    for name, array in whole.model.parameters.items():
        assert np.array_equal(array, rest.model.parameters[name])


@pytest.mark.cluster
@pytest.mark.parametrize(
    "connect",
    [
        lambda: horn.Convolution(2, 3, padding="same"),
        lambda: horn.Local(2, 3, padding="same"),
        lambda: horn.Window(3, padding="same"),
    ],
    ids=["Convolution", "Local", "Window"],
)
def test_a_layer_that_hears_itself_through_windows_is_kept_by_a_file_and_sent_to_tasks(
    connect, tmp_path
):
    rng = np.random.default_rng(0)
    net = horn.Network(seed=1)
    below = net.input((6, 2), steps=4)
    net.layer((6, 2), activation="tanh", inputs=[below, horn.Delayed()], connect=connect())
    net.output(2, activation="softmax", loss="cross_entropy")
    data = rng.normal(size=(20, 4, 12)), np.arange(20) % 2
    job = horn.Job(net, data, epochs=1, dtype="float64")
    model = horn.train(job, progress=False).model
    model.save(tmp_path / "a.horn")
    again = horn.Model.load(tmp_path / "a.horn")
    assert np.array_equal(again.predict(data[0]), model.predict(data[0]))
    for name, array in horn.train(job, tasks=2, progress=False).model.parameters.items():
        np.testing.assert_allclose(array, model.parameters[name], rtol=1e-9, atol=1e-12)


def test_what_commands_show_and_predict(tmp_path, capsys):
    model = horn.train(task(True).with_settings(epochs=1), progress=False).model
    model.save(tmp_path / "a.horn")
    np.save(tmp_path / "x.npy", np.zeros((2, 5, 3), np.float32))
    names = [str(tmp_path / "a.horn"), str(tmp_path / "x.npy")]
    commands.main(["show", names[0]], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "5 steps" in shown and "h: 1 1 step ago" in shown and "each step" in shown
    commands.main(["predict", *names], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines] == [4, 4]
    with refused("write .npz", JobError):
        commands.main(["predict", *names, "-o", "x.csv"], standalone_mode=False)


def test_a_checkpoint_of_other_delays_is_another_job(tmp_path):
    horn.train(task(), progress=False, checkpoints=tmp_path, checkpoint_every=3)
    job = task()
    links = job.network.layers[1].links
    object.__setattr__(links[1], "delay", 2)
    with pytest.raises(horn.HornError, match="delay"):
        horn.train(job, progress=False, checkpoints=tmp_path, resume=True)


def test_labels_stay_labels_and_bytes_bytes():
    net = elman(4, each=True)
    x = np.zeros((6, 4, 3), np.uint8)
    job = horn.Job(net, data=(x, np.ones((6, 4), np.int32)), optimizer=horn.SGD(0.1))
    assert job.data.x.dtype == np.uint8 and job.data.y.dtype == np.int64
    assert job.data.y.shape == (6, 4)


# --- sparse connections from layers that come later


class Pairs:
    """Each neuron hears two below, with the same two weights."""

    def edges(self, n_sources, n_receivers, rng):
        indices = [(k + j) % n_sources for k in range(n_receivers) for j in (0, 1)]
        shared = np.tile([0, 1], n_receivers)
        return Edges(2 * np.arange(n_receivers + 1), np.array(indices), shared, (2,))


MATRIX = np.eye(6) + np.roll(np.eye(6), 2, axis=1) * 0.5
LATE = {
    "drawn": horn.Sparse(fan_in=2),
    "one to one": horn.OneToOne(),
    "matrix": horn.Sparse(matrix=MATRIX, values=True),
    "shared": Pairs(),
}


def populations(connect: Any) -> horn.Network:
    """Two that hear each other sparsely, and a layer tied to the way back."""
    net = horn.Network(seed=1)
    x = net.input(4, steps=5)
    heard = {"x": x, "b": horn.Delayed("b"), "far": horn.Delayed("b", 2), "own": horn.Delayed()}
    ways = {"b": connect, "far": horn.Sparse(fan_in=2), "own": horn.Sparse(fan_in=3)}
    a = net.layer(6, inputs=heard, connect=ways, activation="tanh", name="a")
    assert a.fan_in and net.layers[-1] is a  # asked for before it is known
    b = net.layer(6, inputs=[a], connect=horn.Sparse(fan_in=2), activation="tanh", name="b")
    net.layer(connect=horn.Tied(a, True, "b"), inputs=[b], activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def sparse_job(net: horn.Network) -> horn.Job:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 5, 4)), rng.integers(0, 2, 5)
    return horn.Job(net, (x, y), dtype="float64", batch_size=5, optimizer=horn.Adam(0.01))


@pytest.mark.parametrize("way", LATE)
def test_layers_may_hear_one_another_sparsely(way, tmp_path):
    """The remedy told was to add each of them before the other."""
    job = sparse_job(populations(LATE[way]))
    found = run(job, "python")
    for backend in ("reference", "kernels"):
        compare(found, run(job, backend), 1e-9)
    check_gradients(job)
    model = horn.train(job, progress=False).model
    model.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    np.testing.assert_array_equal(again.predict(job.data.x), model.predict(job.data.x))


@pytest.mark.cluster
@pytest.mark.parametrize("way", LATE)
def test_two_tasks_train_layers_that_hear_one_another_sparsely(way):
    job = sparse_job(populations(LATE[way])).with_settings(epochs=3)
    one = horn.train(job, progress=False).model.parameters
    for name, array in horn.train(job, tasks=2, progress=False).model.parameters.items():
        np.testing.assert_allclose(array, one[name], rtol=1e-9, atol=1e-12, err_msg=name)


def synapses(net: horn.Network) -> list[Any]:
    links = [link for layer in net.layers for link in layer.links]
    return [None if k.edges is None else k.edges.indices.tolist() for k in links]


@pytest.mark.parametrize("way", LATE)
def test_layers_that_hear_one_another_sparsely_are_made_anew(way):
    net = populations(LATE[way])
    again = net.rebuilt()
    assert synapses(again) == synapses(net)
    arrays = net.initial_parameters()
    for name, array in again.initial_parameters().items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_synapses_follow_the_size_of_a_layer_that_is_heard_late():
    """Of a smaller one kernels read what was beside it."""
    net = horn.Network(seed=1)
    heard = {"x": net.input(4, steps=5), "own": horn.Delayed(), "b": horn.Delayed("b")}
    ways = {"own": horn.Sparse(fan_in=3), "b": horn.Sparse(fan_in=3)}
    net.layer(6, inputs=heard, connect=ways, name="a")
    net.layer(6, inputs={"a": net.layers[1], "own": horn.Delayed()},
              connect={"own": horn.OneToOne()}, name="b")  # fmt: skip
    net.output(2, loss="squared_error")
    for size in (4, 20):
        other = net.rebuilt(changes={"a": {"size": size}, "b": {"size": size}})
        _, own, back = (link.edges for link in other.layers[1].links)
        for edges in (own, back):
            assert edges.n == 3 * size and size - 4 <= edges.indices.max() < size
        assert other.layers[2].links[1].edges.indices.tolist() == [*range(size)]


def test_two_sparse_delays_of_a_layer_are_drawn_apart():
    net = horn.Network(seed=1)
    heard = {"x": net.input(4, steps=5), "one": horn.Delayed("b"), "two": horn.Delayed("b", 2)}
    ways = {"one": horn.Sparse(fan_in=3), "two": horn.Sparse(fan_in=3)}
    net.layer(8, inputs=heard, connect=ways, name="a")
    net.layer(8, name="b")
    _, one, two = synapses(net)[:3]
    assert one != two


def test_what_later_layers_cannot_be_heard_through_is_told():
    def heard(size: Any, connect: Any) -> horn.Network:
        net = horn.Network(seed=1)
        x = net.input(4, steps=5)
        inputs = {"x": x, "b": horn.Delayed("b")}
        net.layer(size, inputs=inputs, connect={"b": connect}, name="a")
        return net

    with refused(r"'b' comes later, and Window\(.* goes by its shape; take horn.Sparse, "):
        heard((6, 1), horn.Window(2))
    net = heard(6, horn.Sparse(fan_in=9))
    with refused("layer 1 'a': Sparse.fan_in=9.: the layer below has 7 neurons"):
        net.layer(7, name="b")
    net = heard(6, horn.OneToOne())
    with refused(r"OneToOne.* from 'b' makes a layer of shape \(7,\), but it has shape \(6,\)"):
        net.layer(7, name="b")
    assert len(net.layers) == 2
    net.layer(6, name="b")  # it may be said again


# --- what is refused


def refused(match: str, error: type[Exception] = ModelError) -> Any:
    return pytest.raises(error, match=match)


def test_a_cycle_without_a_delay_names_the_cycle():
    net = horn.Network()
    x = net.input(2, steps=3)
    net.layer(2, inputs=[x, horn.Delayed("b", steps=0)], name="a")
    with refused("a -> b -> a"):
        net.layer(2, name="b")
    with refused("c -> c"):
        net.layer(2, inputs=[x, horn.Delayed(steps=0)], name="c")


def test_delays_without_steps_and_unknown_layers():
    net = horn.Network()
    x = net.input(2)
    net.layer(2, inputs=[x, horn.Delayed()])
    with refused(r"net.input\(2, steps=...\)"):
        net.check()
    net = horn.Network()
    x = net.input(2, steps=3)
    net.layer(2, inputs=[x, horn.Delayed("nobody")])
    with refused("no layer is called so"):
        net.check()
    with refused("whole number from 1"):
        horn.Delayed(steps=-1)
    with refused('"run" or "sample"'):
        horn.State(0.0, per="step")


def test_labels_of_each_step_for_a_network_that_answers_by_the_last():
    x = np.zeros((6, 4, 3))
    with refused("each_step=True", DataError):
        horn.Job(elman(4), data=(x, np.zeros((6, 4), int)), optimizer=horn.SGD(0.1))
    with refused("each step is asked", DataError):
        horn.Job(elman(4, each=True), data=(x, np.zeros(6, int)), optimizer=horn.SGD(0.1))
    with refused("cut every sequence to 4 steps", DataError):
        horn.Job(elman(4), data=(np.zeros((6, 5, 3)), np.zeros(6, int)), optimizer=horn.SGD(0.1))


class Twice(horn.Neuron):
    v = horn.State(0.0, per="sample")

    def forward(self, messages):
        self.v = tanh(sum(m.input * m.weight for m in messages))
        if self.v > 0.0:
            self.v = 0.0
        self.feedforward(self.v)


def of_cell(cell: type[horn.Neuron], late: bool = True) -> horn.Job:
    net = horn.Network(seed=1)
    x = net.input(2, steps=3)
    net.layer(3, neuron=cell, activation="tanh", inputs=[x, horn.Delayed()] if late else [x])
    net.output(1, loss="squared_error")
    return horn.Job(net, data=(np.ones((4, 3, 2)), np.zeros((4, 1))), optimizer=horn.SGD(0.1))


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_a_state_assigned_twice(backend):
    with refused("assigned a second time", CompileError):
        engine_of(of_cell(Twice), backend).probe(np.arange(4), iteration=0, first_sample=0)


@pytest.mark.parametrize("backend", ["python", "reference", "kernels"])
def test_a_state_that_goes_on_and_is_no_weighted_sum_has_no_delta_for_its_senders(backend):
    class Remembering(horn.Neuron):
        far = horn.State(0.0, per="sample")

        def forward(self, messages):
            before = self.far
            self.far = sum((m.input - m.weight) ** 2 for m in messages)
            self.feedforward(sum(m.input * m.weight for m in messages) + before)

    net = horn.Network(seed=1)
    net.input(2, steps=3)
    net.layer(3, neuron=Written, activation="tanh")
    net.layer(2, neuron=Remembering)
    net.output(1, loss="squared_error")
    data = np.ones((4, 3, 2)), np.zeros((4, 1))
    job = horn.Job(net, data=data, optimizer=horn.SGD(0.1), check=False)
    with refused(r"m\.gradient", CompileError):
        engine_of(job, backend).probe(np.arange(4), iteration=0, first_sample=0)


def test_a_written_backward_that_would_need_later_steps():
    with refused("hears it late"):
        of_cell(Written)
    of_cell(Written, late=False)
