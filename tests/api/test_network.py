"""Networks: how layers are added, named, wired and initialised, and what is refused."""

import copy
import pickle

import numpy as np
import pytest

import horn
from horn.errors import ModelError


def small():
    net = horn.Network(seed=3)
    net.input(4)
    net.layer(3, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def test_a_chain_listens_to_the_layer_before():
    net = small()
    assert [layer.name for layer in net.layers] == ["layer0", "layer1", "layer2"]
    assert [layer.kind for layer in net.layers] == ["input", "hidden", "output"]
    assert [[link.source.index for link in layer.links] for layer in net.layers] == [[], [0], [1]]
    assert net.n_inputs == 4 and net.last.size == 2 and net.last.loss.name == "cross_entropy"
    assert net.last.interlayer is horn.activations.softmax
    assert repr(net.layers[1]) == "<layer1: 3 Standard>"


def test_a_job_says_what_is_not_as_usual():
    data = np.zeros((5, 4)), np.zeros(5, int)
    said = repr(horn.Job(small(), data, epochs=2, sample_weight=np.ones(5)))
    assert said.startswith(
        "Job(<Network 4-3-2, seed 3>, <Dataset data: 5 samples of (4,) float64, lab"
    )
    assert "labels, weights>, opt" in said and said.endswith("epochs=2)")
    assert "keep_best" not in said
    digits = "<Dataset digits:train: 3,823 samples of (8, 8, 1) float32, labels>"
    assert repr(horn.data.digits()) == digits


@pytest.mark.parametrize("backend", ["kernels", "python"])
@pytest.mark.parametrize("size, last", [
    (3, {"activation": "softmax", "loss": "cross_entropy"}),
    (1, {"activation": "sigmoid", "loss": "binary_cross_entropy"}),
])  # fmt: skip
def test_a_copied_network_learns_what_the_first_learns(rng, backend, size, last):
    """Where the output rounds to 0 and its logarithm is not taken."""
    net = horn.Network(seed=3)
    net.input(4)
    net.output(size, **last)
    data = 1000.0 * rng.standard_normal((20, 4)), rng.integers(0, max(size, 2), 20)
    job = horn.Job(net, data, epochs=2, batch_size=10)
    run = horn.train(job, backend=backend)
    assert np.isfinite(run.history["loss"]).all()
    for again in (copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert repr(again) == repr(job)
        assert horn.train(again, backend=backend).history["loss"] == run.history["loss"]


class Redefined(horn.Neuron):
    def forward(self, messages):
        self.feedforward(2.0 * sum(m.input * m.weight for m in messages))


def test_a_pickled_network_tells_that_its_neuron_has_been_defined_again(monkeypatch, caplog):
    class Again(horn.Neuron):
        def forward(self, messages):
            self.feedforward(3.0 * sum(m.input * m.weight for m in messages))

    net = horn.Network()
    net.input(2)
    net.output(1, neuron=Redefined, loss="squared_error", name="out")
    kept = pickle.dumps(net)
    assert vars(pickle.loads(kept)).keys() == vars(net).keys()
    Again.__qualname__ = Again.__name__ = "Redefined"
    monkeypatch.setitem(globals(), "Redefined", Again)
    assert copy.deepcopy(net).layers[1].neuron is net.layers[1].neuron is not Again
    assert not caplog.messages
    assert pickle.loads(kept).layers[1].neuron is Again
    assert "layer out: Redefined has been defined again since the network was" in caplog.text


def test_arrays_have_the_names_and_shapes_of_the_module():
    class Gain(horn.Standard):
        gain = horn.Parameter(2.0)
        trace = horn.State(0.5)

    net = horn.Network()
    x = net.input(4)
    a = net.layer(3, name="a")
    net.layer(5, neuron=Gain, inputs=[x, a], connect={x: horn.Sparse(fan_in=2)}, bias=False)
    net.output(1, loss="squared_error", bias=0.25)

    shapes = {name: array.shape for name, array in net.initial_parameters().items()}

    assert shapes == {
        "a.weight": (3, 4), "a.bias": (3,), "layer2.weight.layer0": (10,),
        "layer2.weight.a": (5, 3), "layer2.gain": (5,),
        "layer3.weight": (1, 5), "layer3.bias": (1,),
    }  # fmt: skip
    arrays = net.initial_parameters(np.float64)
    assert np.all(arrays["layer2.gain"] == 2.0) and np.all(arrays["layer3.bias"] == 0.25)
    assert {k: v.tolist() for k, v in net.initial_states().items()} == {"layer2.trace": [0.5] * 5}
    assert arrays["a.weight"].dtype == np.float64
    assert net.initial_parameters()["a.weight"].dtype == np.float32


def test_initial_numbers_follow_from_the_seed_and_no_other_layer():
    first, again = small().initial_parameters(), small().initial_parameters()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    longer = horn.Network(seed=3)
    longer.input(4)
    longer.layer(3, activation="tanh")
    longer.layer(7)
    assert np.array_equal(longer.initial_parameters()["layer1.weight"], first["layer1.weight"])
    other = horn.Network(seed=4)
    other.input(4)
    other.layer(3, activation="tanh")
    assert not np.array_equal(other.initial_parameters()["layer1.weight"], first["layer1.weight"])


@pytest.mark.parametrize("activation, scale", [("relu", 2.0), ("tanh", None)])
def test_weights_are_he_for_relu_and_glorot_otherwise(activation, scale):
    net = horn.Network()
    net.input(400)
    net.layer(300, activation=activation)
    variance = net.initial_parameters(np.float64)["layer1.weight"].var()
    assert variance == pytest.approx(scale / 400 if scale else 2 / 700, rel=0.03)


def test_a_layer_too_large_for_memory_is_named():
    net = horn.Network()
    net.input(4)
    net.layer(10**12)
    said = r"^layer1: out of memory: its 1,0.* have 5,000,000,000,000 .*, 40,000.0 GB where .* may"
    with pytest.raises(ModelError, match=said) as caught:
        net.initial_parameters()
    assert isinstance(caught.value.__cause__, MemoryError)


def test_initialisers_count_the_synapses_of_all_links():
    net = horn.Network()
    x = net.input(300)
    a = net.layer(100, inputs=x)
    b = net.layer(200, inputs=[x, a], init="lecun", connect={x: horn.Sparse(fan_in=50)})
    assert b.fan_in == 150
    for name in ("layer2.weight.layer0", "layer2.weight.layer1"):
        variance = net.initial_parameters(np.float64)[name].var()
        assert variance == pytest.approx(1 / 150, rel=0.05)


@pytest.mark.parametrize("chosen", ["fan_in", "matrix"])
def test_glorot_counts_the_synapses_of_a_sparse_source(chosen):
    some = np.add.outer(np.arange(300), np.arange(600)) % 30 == 0
    net = horn.Network()
    net.input(600)
    sparse = horn.Sparse(fan_in=20) if chosen == "fan_in" else horn.Sparse(matrix=some)
    net.layer(300, activation="tanh", connect=sparse)
    weights = net.initial_parameters(np.float64)["layer1.weight"]
    assert np.abs(weights).max() == pytest.approx(np.sqrt(6 / (20 + 10)), rel=0.01)  # eq. 16


def test_random_connections_follow_from_the_seed():
    def edges(seed):
        net = horn.Network(seed=seed)
        net.input(20)
        return net.layer(5, connect=horn.Sparse(fan_in=3)).links[0].edges.indices.tolist()

    assert edges(1) == edges(1) != edges(2)


def stranger():
    other = horn.Network()
    return other.input(3)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda n: (n.layer(2), n.input(2)), "input comes first, before other layers"),
        (lambda n: n.layer(0), "layer 1 'layer1': the number of neurons must be a whole number"),
        (lambda n: n.layer(2.5), "must be a whole number from 1, got 2.5"),
        (lambda n: n.layer(True), "must be a whole number from 1, got True"),
        (lambda n: n.layer(3, neuron=int), "neuron must be a subclass of horn.Neuron"),
        (lambda n: n.layer(3, activation="tahn"), "did you mean 'tanh'"),
        (lambda n: n.layer(3, init="hee"), "did you mean 'he'"),
        (lambda n: n.layer(3, name="layer0"), "another layer has this name"),
        (lambda n: n.layer(3, name="a.b"), "has no dot"),
        (lambda n: horn.Network().input(3, name="a.b"), "input 'a.b': a layer's name .* no dot"),
        (lambda n: n.layer(3, name="state/a"), "arrays of its own that begin with state/"),
        (lambda n: n.layer(3, name="a/weight"), "or end with /indptr, /indices, /weight"),
        (lambda n: n.layer(3, inputs=[]), "inputs is empty"),
        (lambda n: n.layer(3, inputs=[n.layers[0], n.layers[0]]), "named twice"),
        (lambda n: n.layer(3, inputs=[stranger()]), "must be layers of this network"),
        (lambda n: n.layer(3, inputs="layer0"), "must be layers of this network"),
        (lambda n: n.layer(3, connect={stranger(): horn.Dense()}), "not among its inputs"),
        (lambda n: n.layer(3, activation="softmax", interlayer=abs), "is an interlayer itself"),
        (lambda n: n.layer(3, interlayer="softmax"), "One that horn has is activation='softmax'"),
        (lambda n: n.layer(3, interlayer=0.5), "interlayer is a function of a neuron's output"),
        (lambda n: n.output(3, loss="cross_entropie"), "did you mean 'cross_entropy'"),
        (lambda n: (n.output(3), n.layer(3)), "if it was run a second time, run net = horn.Net"),
    ],
)
def test_what_makes_no_sense_is_refused(build, message):
    net = horn.Network()
    net.input(4)
    with pytest.raises(ModelError, match=message):
        build(net)


def test_the_first_layer_is_the_input():
    with pytest.raises(ModelError, match=r"call net.input\(n_features\) before"):
        horn.Network().layer(3)


def test_an_input_needs_a_sensible_keep():
    with pytest.raises(ModelError, match="above 0 and up to 1; got 0"):
        horn.Network().input(3, keep=0.0)
    with pytest.raises(ModelError, match='per must be "sample", "sequence" or "batch"'):
        horn.Network().input(3, per="run")


@pytest.mark.parametrize(
    "output, message",
    [
        ({"activation": "sigmoid", "loss": "cross_entropy"}, 'use activation="softmax", or'),
        ({"activation": "relu", "loss": "binary_cross_entropy"}, 'use activation="sigmoid"'),
        ({"activation": "tanh", "loss": "binary_cross_entropy"}, "outputs between 0 and 1"),
    ],
)
def test_a_loss_that_does_not_fit_its_output_is_refused(output, message):
    net = horn.Network()
    net.input(3)
    net.output(2, **output)
    with pytest.raises(ModelError, match=message):
        net.check()


def test_a_network_without_layers_cannot_run():
    net = horn.Network()
    net.input(3)
    with pytest.raises(ModelError, match="has no layers to compute"):
        net.check()


def test_a_network_answers_nothing_and_says_who_does():
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, activation="softmax", loss="cross_entropy")
    with pytest.raises(ModelError, match=r"is a description, and answers nothing: train it"):
        net(np.ones((1, 3)))


def test_a_rebuilt_network_takes_what_a_layer_takes():
    made = small().rebuilt(changes={
        "layer1": {"activation": "relu", "bias": False},
        "layer2": {"activation": "sigmoid", "loss": "binary_cross_entropy", "bias": 1.0},
    })  # fmt: skip
    by_hand = horn.Network(seed=3)
    by_hand.input(4)
    by_hand.layer(3, activation="relu", bias=False)
    by_hand.output(2, activation="sigmoid", loss="binary_cross_entropy", bias=1.0)
    for own, expected in zip(made.layers[1:], by_hand.layers[1:], strict=True):
        for field in ("activation", "activation_name", "interlayer", "loss", "bias"):
            assert getattr(own, field) == getattr(expected, field), field
    assert horn.Model(made, made.initial_parameters()).predict(np.ones((1, 4))).shape == (1, 2)


@pytest.mark.parametrize("changes, words", [
    ({"nope": {"size": 3}}, "'nope' is no layer; this network has layer0, layer1, layer2"),
    ({"layer1": {"connection": 1}}, "'layer1': 'connection' is no field .* these are size, kind,"),
    ({"layer1": {"activation": "rely"}}, "'layer1': unknown activation 'rely'; did you mean"),
    ({"layer2": {"loss": "cross"}}, "'layer2': unknown loss 'cross'"),
], ids=["layer", "field", "activation", "loss"])  # fmt: skip
def test_a_change_that_no_layer_can_have_is_refused(changes, words):
    with pytest.raises(ModelError, match=f"rebuilt: {words}"):
        small().rebuilt(changes=changes)
