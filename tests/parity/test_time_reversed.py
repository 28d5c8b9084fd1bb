"""Sequences heard from their end: bidirectional layers, in three backends and in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import DataError, ModelError
from tests.parity.recurrent import CELLS, GRU, LSTM, SMOOTH, Written
from tests.parity.test_time import OPTIMIZERS, check_gradients, compare, engine_of, run
from tests.parity.test_time_ragged import BACKENDS, cut
from tests.parity.test_time_together import MANY, agree


def both_ways(seed: int, cells: tuple[Any, ...] = CELLS, is_ragged: bool | None = None) -> horn.Job:
    """A job with layers in both directions, one or two above each other, of some cells."""
    rng = np.random.default_rng(seed)
    steps, n_in, n_out = int(rng.integers(1, 6)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    net = horn.Network(seed=seed)
    x = net.input(n_in, steps=steps)
    below: list[Any] = [x]
    for k in range(int(rng.integers(1, 3))):
        there: list[Any] = [below[0], *map(horn.Reversed, below[1:])]
        back: list[Any] = [horn.Reversed(below[0]), *below[1:]]
        made = []
        for name, heard in ((f"f{k}", there), (f"b{k}", back)):
            named = {f"x{i}": one for i, one in enumerate(heard)} | {"h": horn.Delayed()}
            if rng.random() < 0.2:
                named["late"] = horn.Delayed(below[0], 2)
            cell = cells[int(rng.integers(len(cells)))]
            made.append(net.layer(int(rng.integers(2, 4)), neuron=cell, inputs=named, name=name,
                                  activation="tanh"))  # fmt: skip
        below = made
    each = bool(rng.random() < 0.6)
    top = [below[0], horn.Reversed(below[1]) if each else below[1]]
    if rng.random() < 0.3:
        top.append(horn.Delayed("out"))
    net.output(n_out, activation="tanh", loss="squared_error", inputs=top, name="out",
               each_step=each)  # fmt: skip
    x, y = rng.normal(size=(5, steps, n_in)), rng.normal(size=(5, steps, n_out))
    y = y if each else y[:, 0]
    if is_ragged if is_ragged is not None else rng.random() < 0.6:
        x, y = cut(x, y, rng.integers(1, steps + 1, 5), each)
    optimizer = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    job = horn.Job(net, data=(x, y), dtype="float64", batch_size=5, optimizer=optimizer)
    job.check_data()
    return job


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_law(seed):
    job = both_ways(seed)
    found = run(job, "python")
    for backend in BACKENDS[1:]:
        compare(found, run(job, backend), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 260))
def test_the_law_at_length(seed):
    test_the_law(seed)
    agree(both_ways(seed), "kernels", *MANY[seed % len(MANY)])


@pytest.mark.parametrize("many", [(2, 1), (1, 3)])
def test_tasks_and_groups_compute_what_one_process_computes(many):
    agree(both_ways(2), "kernels", *many)
    agree(both_ways(3), "reference", *many)


@pytest.mark.parametrize("seed", [4, 5])
def test_gradients_are_those_of_finite_differences(seed):
    check_gradients(both_ways(seed, SMOOTH[:3], is_ragged=True))


def test_what_is_heard_is_turned_within_each_sequence():
    class Sends(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input for m in messages))

    net = horn.Network(seed=1)
    x = net.input(1, steps=4)
    net.layer(1, neuron=Sends, inputs=horn.Reversed(x), bias=False, name="back")
    net.output(1, neuron=Sends, inputs=horn.Reversed("back"), bias=False, loss="squared_error",
               each_step=True)  # fmt: skip
    data = [np.array([[1.0], [2], [3], [4]]), np.array([[5.0], [6]])]
    job = horn.Job(net, (data, [np.zeros(4), np.zeros(2)]), dtype="float64", batch_size=2)
    for backend in BACKENDS:
        found = engine_of(job, backend).probe(np.arange(2), iteration=0, first_sample=0)
        assert found["back.output"][:, :, 0].tolist() == [[4, 3, 2, 1], [6, 5, 5, 5]]
        assert found["layer2.output"][:, :, 0].tolist() == [[1, 2, 3, 4], [5, 6, 6, 6]]


def test_a_model_is_saved_and_answers(tmp_path):
    job = both_ways(5, (LSTM, GRU), is_ragged=True).with_settings(epochs=2)
    model = horn.train(job, progress=False).model
    model.save(tmp_path / "a.horn")
    read = horn.Model.load(tmp_path / "a.horn")
    assert [link.is_reversed for link in read.network.layers[2].links][:2] == [True, False]
    for one, other in zip(read.predict(job.data), model.predict(job.data), strict=True):
        assert np.array_equal(one, other)
    assert "reversed" in read.network._repr_html_()
    with pytest.raises(ModelError, match="from the end of the sequence"):
        read.stream()
    with pytest.raises(ModelError, match="whole sequences of at most"):
        read.predict(np.zeros((2, 50, read.network.n_inputs)))


def test_what_is_refused():
    net = horn.Network()
    x = net.input(2, steps=3)
    a = net.layer(2, inputs=[x, horn.Delayed("b")], name="a")
    net.output(1, inputs=[horn.Reversed(a)], loss="squared_error", name="b")
    with pytest.raises(ModelError, match="b: hears a from end to beginning, which hears b"):
        net.check()
    net = horn.Network()
    x = net.input(2)
    net.layer(2, inputs=horn.Reversed(x))
    with pytest.raises(ModelError, match=r"net.input\(2, steps=...\)"):
        net.check()
    net = horn.Network()
    x = net.input(2, steps=3)
    with pytest.raises(ModelError, match="no layer is called so yet"):
        net.layer(2, inputs=[x, horn.Reversed("b")])
    with pytest.raises(ModelError, match="which layer"):
        horn.Reversed(None)
    written = net.layer(2, neuron=Written, activation="tanh")
    net.output(1, inputs=horn.Reversed(written), loss="squared_error", each_step=True)
    with pytest.raises(ModelError, match="hears it from end to beginning"):
        net.check()
    net = horn.Network()
    x = net.input(2, steps=3)
    net.output(1, inputs=horn.Reversed(x), loss="squared_error", each_step=True)
    with pytest.raises((ModelError, DataError), match="from the end of the sequence"):
        horn.Job(net, (np.zeros((30, 2)), np.zeros((30, 1))), stateful=True, batch_size=2)
