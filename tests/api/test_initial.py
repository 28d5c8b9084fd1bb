"""Jobs that begin with a model, models that are cut, looked into and pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import horn
from horn.errors import CheckpointError, DataError, JobError, ModelError


class Counting(horn.Neuron):
    """With a Parameter and a State, so that these travel too."""

    gain = horn.Parameter(1.0)
    seen = horn.State(0.0)

    def forward(self, messages):
        self.seen = self.seen + 1.0
        self.feedforward(self.gain * horn.math.tanh(sum(m.input * m.weight for m in messages)))


def network(head: int = 10, name: str = "head", connect: Any = None) -> horn.Network:
    net = horn.Network(seed=4)
    net.input(64)
    net.layer(12, neuron=Counting, name="code", connect=connect)
    net.output(head, activation="softmax", loss="cross_entropy", name=name)
    return net


def job(net: horn.Network | None = None, **more: Any) -> horn.Job:
    settings: dict[str, Any] = {"epochs": 2, "optimizer": horn.SGD(0.1)} | more
    return horn.Job(net or network(), horn.data.digits().take(640), **settings)


@pytest.fixture(scope="module")
def trained() -> horn.Model:
    return horn.train(job()).model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"backend": "python"},
        pytest.param({"tasks": 2}, marks=pytest.mark.cluster),
        pytest.param({"groups": 2}, marks=pytest.mark.cluster),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["model", "path", "arrays"])
def test_a_job_begins_with_what_was_learned(kind, settings, trained, tmp_path):
    """A rate of nothing: what comes out is what went in."""
    trained.save(tmp_path / "m.horn")
    given = {"model": trained, "path": tmp_path / "m.horn", "arrays": dict(trained.parameters)}
    still = job(initial=given[kind], optimizer=horn.SGD(0.0), epochs=None, iterations=1,
                batch_size=4)  # fmt: skip
    still = still.with_settings(data=still.data.take(8))
    found = horn.train(still, **settings).model
    for name, array in trained.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], array)
    if kind != "arrays":
        assert (found.states["code.seen"] == trained.states["code.seen"] + 1.0).all()


def test_two_halves_are_the_whole_where_nothing_else_is_remembered():
    """Batches are drawn by (seed, epoch), so of the same order: one batch an epoch."""
    whole = horn.train(job(batch_size=640, epochs=4))
    half = horn.train(job(batch_size=640, epochs=2))
    rest = horn.train(job(batch_size=640, epochs=2, initial=half.model))
    for name, array in whole.model.parameters.items():
        np.testing.assert_allclose(rest.model.parameters[name], array, rtol=2e-4, atol=1e-6)


def test_another_head_is_drawn_and_said(trained, caplog):
    new = job(network(2, "other"), initial=trained, epochs=None, iterations=1,
              optimizer=horn.SGD(0.0))  # fmt: skip
    new = new.with_settings(data=(new.data.x, (new.data.y > 4).astype(int)))
    found = horn.train(new).model
    np.testing.assert_array_equal(found.parameters["code.gain"], trained.parameters["code.gain"])
    drawn = network(2, "other").initial_parameters()
    np.testing.assert_array_equal(found.parameters["other.bias"], drawn["other.bias"])
    assert "drawn from the seed: other" in caplog.text
    assert "not used: head.weight, head.bias" in caplog.text


@pytest.mark.parametrize(
    "given, said",
    [
        (3, "initial is a horn.Model, the path of a model file, or a dict"),
        ({"nothing": np.zeros(3)}, "has no array of this network: it has nothing; the network has"),
        ({"code.gain": np.zeros(3)}, r"code.gain is \(3,\) there and \(12,\) in this network"),
        ({"code.gain": ["a"] * 12}, "initial: code.gain holds text, but numbers are expected"),
        ({"code.gain": np.full(12, 1j)}, "initial: code.gain holds complex numbers"),
        (
            {"code.gain": np.ma.masked_less(np.arange(12), 1)},
            "initial: code.gain is masked at row 0",
        ),
        ({"code.weight": np.full((12, 64), [np.nan, 1.0] * 32)}, r"code.weight is nan at \(0, 0\)"),
        ({"code.bias": [0.0] * 11 + [np.inf]}, r"code.bias is inf at \(11,\).*leave the array out"),
    ],
)
def test_what_cannot_be_begun_with_is_refused(given, said):
    with pytest.raises((ModelError, DataError), match=said):
        job(initial=given)


def test_weights_in_the_order_of_others_are_turned():
    net = horn.Network(seed=4)
    net.input((8, 8, 2))
    net.layer(connect=horn.Convolution(3, (3, 4)), name="c")
    net.output(10, name="out")
    there = np.zeros((3, 2, 3, 4)), np.zeros((net.layers[1].size, 10))  # as PyTorch, as Keras
    with pytest.raises(ModelError, match=r"pass numpy.transpose\(it, \(0, 2, 3, 1\)\)"):
        horn.Job(net, horn.data.digits(), initial={"c.weight": there[0]})
    with pytest.raises(ModelError, match=r"pass its transpose, it\.T"):
        horn.Job(net, horn.data.digits(), initial={"out.weight": there[1]})
    turned = {"c.weight": np.transpose(there[0], (0, 2, 3, 1)), "out.weight": there[1].T}
    horn.Job(net, horn.data.digits(), initial=turned)


def test_other_sparse_connections_are_refused():
    sparse = network(connect=horn.Sparse(fan_in=5))
    model = horn.train(job(sparse)).model
    other = sparse.rebuilt(seed=9)
    with pytest.raises(ModelError, match="the sparse connections of .* are others"):
        job(other, initial=model)
    assert horn.train(job(model.network, initial=model)).iterations == 40


def heard_late(seed: int = 4) -> horn.Network:
    """Sparse from below, from itself, and from a layer that comes later."""
    net = horn.Network(seed=seed)
    below = net.input(5, steps=3)
    inputs = {"x": below, "own": horn.Delayed(), "top": horn.Delayed("top")}
    some = {name: horn.Sparse(fan_in=2) for name in inputs}
    net.layer(6, inputs=inputs, connect=some, name="code")
    net.layer(4, name="top")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def synapses(net: horn.Network) -> list[list[int]]:
    return [k.edges.indices.tolist() for x in net.layers for k in x.links if k.edges is not None]


def test_another_seed_leaves_learned_weights_on_their_synapses(tmp_path):
    model = horn.Model(heard_late(), heard_late().initial_parameters())
    model.save(tmp_path / "m.horn")
    data = np.ones((4, 3, 5)), np.zeros(4, int)
    for given in (model, horn.Model.load(tmp_path / "m.horn"), dict(model.parameters)):
        begun = horn.Job(heard_late(), data, initial=given)
        other = begun.with_settings(network=begun.network.rebuilt(seed=9))
        again = other.with_settings(network=other.network.rebuilt(seed=10))
        assert synapses(again.network) == synapses(model.network)
        for name, array in again.network.initial_parameters().items():
            np.testing.assert_array_equal(array, model.parameters[name])
    assert synapses(model.network.rebuilt(seed=9)) == synapses(model.network)
    assert synapses(heard_late().rebuilt(seed=9)) == synapses(heard_late(9))
    more = horn.train(begun, seed=9, progress=False).model
    assert synapses(more.network) == synapses(model.network)


def test_learned_synapses_of_layers_of_other_sizes_are_drawn_anew():
    model = horn.Model(heard_late(), heard_late().initial_parameters())
    wide = model.network.rebuilt(seed=9, changes={"top": {"size": 8}})
    drawn = heard_late().rebuilt(seed=9, changes={"top": {"size": 8}})
    kept, anew = synapses(wide), synapses(drawn)
    assert kept[:2] == synapses(model.network)[:2] and kept[2] == anew[2]


@pytest.mark.parametrize("kind", ["model", "parameters", "arrays"])
def test_a_begun_job_takes_no_network_of_other_synapses(kind):
    sparse = network(connect=horn.Sparse(fan_in=5))
    model = horn.Model(sparse, sparse.initial_parameters(), sparse.initial_states())
    parameters = model.parameters
    given = {"model": model, "parameters": parameters, "arrays": dict(parameters)}[kind]
    begun, other = job(sparse, initial=given), sparse.rebuilt(seed=9)
    with pytest.raises(ModelError, match="the sparse connections of .* are others"):
        begun.with_settings(network=other)
    if kind != "arrays":
        with pytest.raises(ModelError, match="the sparse connections of .* are others"):
            job(other, initial=given)


@pytest.mark.parametrize("is_of_maps", [True, False])
def test_states_of_maps_go_on_in_maps_of_another_size(is_of_maps):
    def net(side: int, head: str) -> horn.Network:
        made = horn.Network(seed=4)
        made.input((side, side, 1))
        made.layer(connect=horn.Convolution(3, 3), neuron=Counting, name="code")
        made.output(2, activation="softmax", loss="cross_entropy", name=head)
        return made

    small, large = net(5, "small"), net(6, "large")
    seen = np.tile([1.0, 2.0, 3.0], 9) if is_of_maps else np.arange(27.0)
    model = horn.Model(small, small.initial_parameters(), {"code.seen": seen})
    begun = horn.Job(large, (np.ones((4, 36)), np.zeros(4, int)), initial=model)
    if is_of_maps:
        assert begun.network.initial_states()["code.seen"].tolist() == [1.0, 2.0, 3.0] * 16
        assert begun.initial.resized == ()
    else:
        assert "of another size, so anew: code.seen" in str(begun.initial)


class Ring:
    """Each neuron hears the next one below. order : the numbers of their weights, if said."""

    def __init__(self, order: Any = None) -> None:
        self.order = order

    def edges(self, n_sources: int, n_receivers: int, rng: Any) -> Any:
        there = None if self.order is None else (self.order, (n_receivers,))
        heard = (np.arange(n_receivers) + 1) % n_sources
        return horn.connections.Edges(np.arange(n_receivers + 1), heard, *(there or ()))


MIXED = np.random.default_rng(0).permutation(64)
MIXED_PAIRS = horn.Sparse(edge_list=[(int(k), o) for o, k in enumerate(MIXED)])


@pytest.mark.parametrize("kind", ["model", "path"])
@pytest.mark.parametrize(
    "there, here, is_same",
    [
        (Ring(MIXED), Ring(MIXED), True),
        (Ring(np.arange(64)), Ring(), True),
        (horn.Sparse(edge_list=[(o, o) for o in range(64)]), horn.OneToOne(), True),
        (horn.OneToOne(), horn.Sparse(edge_list=[(o, o) for o in range(64)]), True),
        (Ring(MIXED), Ring(), False),
        (Ring(), Ring(MIXED), False),
        (MIXED_PAIRS, horn.OneToOne(), False),
        (horn.OneToOne(), MIXED_PAIRS, False),
    ],
)
def test_as_many_weights_of_other_synapses_are_not_taken(there, here, is_same, kind, tmp_path):
    def net(connect: Any) -> horn.Network:
        made = horn.Network(seed=4)
        made.input(64)
        made.layer(64, connect=connect, activation="tanh", name="code")
        made.output(10, activation="softmax", loss="cross_entropy", name="head")
        return made

    given: Any = horn.Model(net(there), net(there).initial_parameters())
    if kind == "path":
        given.save(tmp_path / "m.horn")
        given = tmp_path / "m.horn"
    if is_same:
        assert "code.weight" in job(net(here), initial=given).initial.taken
    else:
        with pytest.raises(ModelError, match="the sparse connections of code.weight are others"):
            job(net(here), initial=given)


def test_the_network_of_a_model_alone_starts_afresh_and_says_so(trained, tmp_path, caplog):
    trained.save(tmp_path / "m.horn")
    for model in (trained, horn.Model.load(tmp_path / "m.horn")):
        caplog.clear()
        horn.train(job(model.network, epochs=1))
        assert "trained from the start" in caplog.text
        caplog.clear()
        horn.train(job(model.network, initial=model, epochs=1))
        horn.train(job(network(), epochs=1))
        assert "trained from the start" not in caplog.text


def test_a_models_network_has_nothing_of_the_job_that_made_it(trained):
    """Neither what that one began with, nor what it left as it was."""
    tuned = horn.train(job(initial=trained, frozen=["code"], epochs=1)).model
    assert tuned.network.frozen == frozenset()
    afresh = horn.train(job(tuned.network, epochs=1)).model
    for name, array in horn.train(job(epochs=1)).model.parameters.items():
        np.testing.assert_array_equal(afresh.parameters[name], array)


@pytest.mark.cluster
def test_train_goes_on_with_a_model(trained):
    given = job()
    settings = {"optimizer": given.optimizer, "epochs": 2, "metrics": ["f1"]}
    found = horn.train(trained, given.data, **settings)
    same = horn.train(horn.Job(trained.network, given.data, initial=trained, **settings))
    assert found.history["loss"] == same.history["loss"] and "f1" in found.metrics["training"]
    two = horn.train(trained, given.data, tasks=2, **settings)
    np.testing.assert_allclose(two.history["loss"], found.history["loss"], rtol=1e-4)


def test_train_goes_on_in_the_precision_of_the_model():
    first = horn.train(job(dtype="float64", epochs=1)).model
    data = job().data
    assert horn.train(first, data, epochs=1).model.dtype == "float64"
    assert horn.train(first, data, epochs=1, dtype="float32").model.dtype == "float32"


def test_what_does_not_go_on_says_how_to(trained):
    with pytest.raises(JobError, match=r"horn.train\(model, data\), or"):
        horn.train(trained)
    with pytest.raises(JobError, match=r"has its data in the job"):
        horn.train(job(), horn.data.digits())
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'epochs'"):
        horn.train(job(), epochs=3)
    with pytest.raises(ModelError, match=r"horn.Job\(model.network, data, initial=model\)"):
        horn.Job(trained, horn.data.digits())


def test_a_resumed_job_knows_what_it_began_with(trained, tmp_path):
    begun = {"checkpoints": tmp_path, "checkpoint_every": 20}
    horn.train(job(initial=trained), **begun)
    longer = horn.train(job(initial=trained, epochs=3), resume=True, **begun)
    whole = horn.train(job(initial=trained, epochs=3))
    for name, array in whole.model.parameters.items():
        np.testing.assert_array_equal(longer.model.parameters[name], array)
    with pytest.raises(CheckpointError, match="initial"):
        horn.train(job(epochs=3), resume=True, **begun)


def test_a_cut_sends_what_the_layer_sends(trained):
    x = horn.data.digits("test").take(30)
    code = trained.cut("code")
    assert code.network.last.name == "code" and "head.weight" not in " ".join(code.parameters)
    weights = {n: a.astype(np.float64) for n, a in trained.parameters.items()}
    [weight] = [a for n, a in weights.items() if n.startswith("code.weight")]
    z = x.x.reshape(30, -1) * (x.scale if x.x.dtype == np.uint8 else 1.0) @ weight.T
    expected = weights["code.gain"] * np.tanh(z + weights["code.bias"])
    np.testing.assert_allclose(code.predict(x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(trained.activations(x, "code"), code.predict(x))
    np.testing.assert_array_equal(trained.predict(x, layer="code"), code.predict(x))
    np.testing.assert_array_equal(trained.predict(x, layer="head"), trained.predict(x))
    with pytest.raises(ModelError, match="no layer 'cord'; the layers are layer0, code, head"):
        trained.cut("cord")


def test_a_cut_of_a_graph_leaves_out_what_the_layer_does_not_hear():
    net = horn.Network(seed=1)
    x = net.input(6)
    a = net.layer(5, inputs=x, name="a")
    b = net.layer(4, inputs=x, name="b")
    net.layer(3, inputs=[b, x], name="c")
    net.output(2, inputs=[a, b], activation="identity", loss="squared_error")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(9, 6)), rng.normal(size=(9, 2))
    model = horn.train(horn.Job(net, data, epochs=1)).model
    cut = model.cut("c")
    assert [layer.name for layer in cut.network.layers] == ["layer0", "b", "c"]
    by_hand = model.activations(data[0], "b")
    assert by_hand.shape == (9, 4) and cut.predict(data[0]).shape == (9, 3)


def test_a_model_is_pickled_as_its_file(trained):
    content = pickle.dumps(trained)
    again = pickle.loads(content)
    for name, array in trained.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)
    at = content.index(trained.parameters["code.gain"].tobytes())
    broken = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    with pytest.raises(ModelError, match="is damaged"):
        pickle.loads(broken)


def test_learned_numbers_cannot_be_written_by_accident(trained):
    with pytest.raises(TypeError):
        trained.parameters["code.gain"] = np.zeros(12)
    with pytest.raises(ValueError, match="read-only"):
        trained.parameters["code.gain"][0] = 1.0


@pytest.mark.parametrize("kind", ["model", "path"])
def test_weights_of_other_windows_are_not_taken(kind: str, tmp_path: Any) -> None:
    """As many numbers, of other synapses. Shared ones have shapes that tell, and may move."""

    def net(kernel: Any, kind: Any = horn.Local) -> horn.Network:
        made = horn.Network(seed=1)
        made.input((8, 8, 1))
        made.layer(connect=kind(2, kernel, padding="same"), activation="tanh", name="windows")
        made.output(10, activation="softmax", loss="cross_entropy")
        return made

    model = horn.train(job(net((1, 3)), epochs=1)).model
    model.save(tmp_path / "m.horn")
    given = {"model": model, "path": tmp_path / "m.horn"}[kind]
    assert job(net((1, 3)), initial=given).initial.taken[0] == "windows.weight"
    words = (r"windows.weight is of Local\(channels=2, kernel=\(1, 3\), padding='same'\) over "
             r"\(8, 8, 1\) there and of Local\(channels=2, kernel=\(3, 1\)")  # fmt: skip
    with pytest.raises(ModelError, match=words):
        job(net((3, 1)), initial=given)
    shared = horn.train(job(net(3, horn.Convolution), epochs=1)).model
    wide = horn.Network(seed=1)
    wide.input((8, 8, 1))
    wide.layer(connect=horn.Convolution(2, 3, stride=2), activation="tanh", name="windows")
    wide.output(10, activation="softmax", loss="cross_entropy", name="head")
    begun = job(wide, initial=shared).initial
    assert begun.taken == ("windows.weight", "windows.bias")
    assert str(begun) == (
        "begins with windows.weight, windows.bias; drawn from the seed: head.weight, head.bias; "
        "not used: layer2.weight, layer2.bias"
    )
