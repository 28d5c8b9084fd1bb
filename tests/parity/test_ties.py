"""Weights that are another layer's: the law, one update of what several have, tasks, files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.compiler.lower import training_program
from horn.data import Dataset
from horn.errors import JobError, ModelError
from horn.explain import never_learn, runs_as
from horn.partition.placement import CHANNELS, INPUT_CHANNELS, PLACES, Placement
from horn.partition.rewrite import partition
from horn.program import Convolve, Expand
from tests.parity.differences import check_gradients
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one, place
from tests.support.combinations import share
from tests.support.neurons import RBF, Gated, Product, Silenced, Written
from tests.transport.groups import good


def autoencoder(neuron: Any = horn.neurons.Standard, tied: bool = True) -> horn.Network:
    """6-5-3-5-6, the second half with the weights of the first, or with its own."""
    net = horn.Network(seed=1)
    net.input(6)
    first = net.layer(5, neuron=neuron, activation="tanh")
    second = net.layer(3, neuron=neuron, activation="tanh")
    sizes = [None, None] if tied else [5, 6]
    connect = [horn.Tied(second), horn.Tied(first)] if tied else [None, None]
    net.layer(sizes[0], neuron=neuron, connect=connect[0], activation="tanh")
    net.output(sizes[1], connect=connect[1], loss="squared_error")
    return net


def images(neuron: Any = horn.neurons.Standard) -> horn.Network:
    """A convolution, the way back, the way there once more, and back."""
    net = horn.Network(seed=1)
    net.input((4, 3, 2))
    maps = net.layer(connect=horn.Convolution(3, 2), activation="tanh", neuron=neuron)
    net.layer(connect=horn.Tied(maps), activation="tanh", neuron=neuron)
    net.layer(connect=horn.Tied(maps, transposed=False), activation="tanh", neuron=neuron)
    net.output(connect=horn.Tied(maps), loss="squared_error")
    return net


def sparse(neuron: Any = horn.neurons.Standard) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(6)
    below = net.layer(5, connect=horn.Sparse(fan_in=3), activation="tanh", neuron=neuron)
    net.output(connect=horn.Tied(below), loss="squared_error")
    return net


def siblings(neuron: Any = horn.neurons.Standard) -> horn.Network:
    """Two towers of one kind, of the same weights."""
    net = horn.Network(seed=1)
    a = net.input(4)
    left = net.layer(4, neuron=neuron, activation="tanh", inputs={"x": a}, name="left")
    right = net.layer(
        neuron=neuron, activation="tanh", name="right", inputs={"x": left, "y": a},
        connect={"x": horn.Tied(left, transposed=False), "y": horn.Tied(left, transposed=True)},
    )  # fmt: skip
    net.output(4, inputs=[left, right], loss="squared_error")
    return net


NETS = {net.__name__: net for net in (autoencoder, images, sparse, siblings)}
SGD = horn.SGD(0.1, momentum=0.5)


@pytest.mark.parametrize(
    "name, neuron", share(2, NETS, [horn.neurons.Standard, RBF, Gated, Written, Silenced])
)
def test_the_interpreter_is_the_law(name, neuron):
    if neuron is Gated:  # the output of a network of these must declare the same
        with pytest.raises(ModelError, match="of Standard have weight, and those of .*gate, value"):
            NETS["sparse"](Gated)
        if name != "siblings":
            return
    net = NETS[name](neuron)
    compare(net, SGD, 4, target="input", steps=1 if name == "images" else 2)


@pytest.mark.parametrize(
    "optimizer",
    [horn.Adam(0.01), horn.SGD(0.1, clip_norm=0.1, weight_decay=0.01)],
    ids=["adam", "clipped"],
)
@pytest.mark.parametrize("name", NETS)
def test_the_optimizer_sees_one_gradient(name, optimizer):
    compare(NETS[name](), optimizer, 3, target="input", steps=1)


@pytest.mark.parametrize("neuron", [horn.neurons.Standard, Product])
@pytest.mark.parametrize("name", NETS)
def test_derived_gradients_are_finite_differences(name, neuron):
    setup = Setup(NETS[name](neuron), horn.SGD(0.1), "input", 5, "float64", 1)
    check_gradients("kernels", setup, samples(setup.network), 6)


@pytest.mark.parametrize("backend", ["python", "kernels"])
def test_a_tied_weight_is_updated_once_after_its_last_reader(backend):
    """Trap 3: three steps with momentum, as two arrays each, whose gradients are summed."""
    net, apart = autoencoder(), autoencoder(tied=False)
    data = samples(net)
    engine = make(backend, Setup(net, SGD, "input", 4, "float64", 1))
    engine.bind(data)
    weights = engine.parameters()
    pairs = {"layer1.weight": "layer4.weight", "layer2.weight": "layer3.weight"}
    speed = {name: np.zeros_like(array) for name, array in weights.items()}
    other = make("kernels", Setup(apart, SGD, "input", 4, "float64", 1))
    other.bind(data)
    for step in range(3):
        rows, at = (np.arange(4) * 5 + step) % 12, {"iteration": step, "first_sample": 4 * step}
        copies = {twin: weights[name].T for name, twin in pairs.items()}
        other.load({**weights, **copies})
        found = other.probe(rows, **at)
        engine.step(rows, **at)
        for name, array in weights.items():
            gradient = found[f"{name}.gradient"]
            if name in pairs:
                gradient = gradient + found[f"{pairs[name]}.gradient"].T
            speed[name] = 0.5 * speed[name] - 0.1 * gradient
            weights[name] = array + speed[name]
            np.testing.assert_allclose(engine.parameters()[name], weights[name], rtol=1e-10)


def test_what_is_tied_is_there_once():
    net = autoencoder()
    assert {n: a.shape for n, a in net.initial_parameters().items() if "weight" in n} == {
        "layer1.weight": (5, 6), "layer2.weight": (3, 5)
    }  # fmt: skip
    assert [layer.shape for layer in net.layers] == [(6,), (5,), (3,), (5,), (6,)]
    assert [layer.shape for layer in images().layers] == [(4, 3, 2), (3, 2, 3)] * 2 + [(4, 3, 2)]
    assert [layer.n_kinds for layer in images().layers] == [24, 3, 2, 3, 2]
    assert images().initial_parameters().keys() >= {"layer1.weight", "layer4.bias"}


# the way back of a convolution

BACK: dict[str, tuple[tuple[int, ...], horn.Convolution]] = {
    "stride, same": ((5, 4, 2), horn.Convolution(3, (3, 2), stride=2, padding="same")),
    "1-D, dilation": ((8, 2), horn.Convolution(3, 3, stride=2, dilation=2, padding=1)),
    "kernel larger than the image": ((3, 3, 1), horn.Convolution(2, 5, padding=2)),
    "some hear nothing": ((7, 6, 2), horn.Convolution(2, 2, stride=3)),
    "17 channels": ((3, 2, 17), horn.Convolution(14, 2, padding="same")),
    "groups": ((4, 5, 6), horn.Convolution(4, (2, 3), stride=2, padding="same", groups=2)),
}


def deconvolution(name: str, neuron: Any = horn.neurons.Standard) -> horn.Network:
    below, connection = BACK[name]
    net = horn.Network(seed=1)
    net.input(below)
    maps = net.layer(connect=connection, activation="tanh", neuron=neuron, name="maps")
    net.output(connect=horn.Tied(maps, transposed=True), loss="squared_error", name="back")
    return net


@pytest.mark.parametrize("name, neuron", share(2, BACK, [horn.neurons.Standard, RBF]))
def test_the_way_back_of_a_convolution_is_the_graph(name, neuron):
    net = deconvolution(name, neuron)
    compare(net, SGD, 3, target="input", steps=1)
    setup = Setup(net, horn.SGD(0.1), "input", 5, "float64", 1)
    check_gradients("kernels", setup, samples(net), 4)


def test_tied_convolutions_have_the_kernels_of_windows():
    """Sums, deltas and gradients of all three; nothing goes synapse by synapse."""
    program = training_program(images(), SGD, "input")
    found = [(s.frame.layer, s.axis) for s in program.statements if isinstance(s, Convolve)]
    first, *others = (sorted(axis for at, axis in found if at == k) for k in (1, 2, 3, 4))
    assert first == ["b", "i"] and others == [["b", "i", "o"]] * 3
    assert not any(isinstance(s, Expand) and s.frame.link is not None for s in program.statements)
    assert runs_as(images())["layer2"] == "windows"


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("where", ["receiver", "sender"])
def test_tasks_that_have_rows_of_the_image_go_back_with_the_kernels(where, n_tasks):
    for name in ("stride, same", "1-D, dilation", "groups"):
        net = deconvolution(name)
        placement = place(net, [where] * 2, ["all", "neurons", "neurons"])
        setup, data = Setup(net, SGD, "input", 4, "float64", 1), samples(net)
        for backend in ("kernels", "reference")[: 4 - n_tasks]:
            group = good(of_group(backend, setup, data, BATCHES, placement, n_tasks))
            compare_tasks(group, of_one("kernels", setup, data, BATCHES), name)
        local = partition(training_program(net, SGD, "input", thin=False), placement)
        assert not any(isinstance(s, Expand) and s.frame.link is not None for s in local.statements)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_ways_are_those_of_pytorch(data):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    n_dims = data.draw(st.sampled_from([1, 2]))
    space = tuple(data.draw(st.integers(3, 9)) for _ in range(n_dims))
    kernel, stride, dilation = (data.draw(st.integers(1, most)) for most in (4, 3, 2))
    padding = data.draw(st.integers(0, (kernel - 1) * dilation))
    channels, maps = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 18))
    net = horn.Network(seed=1)
    net.input((*space, channels))
    try:
        code = net.layer(connect=horn.Convolution(maps, kernel, stride, padding, dilation),
                         bias=False, name="maps")  # fmt: skip
    except ModelError:
        return
    net.layer(connect=horn.Tied(code, transposed=True), bias=False)
    x = np.random.default_rng(0).standard_normal((5, *space, channels))
    engine = make("kernels", Setup(net, None, None, 5, "float64", 1))
    w = torch.tensor(np.moveaxis(engine.parameters()["maps.weight"], -1, 1))
    there, back = ((f.conv1d, f.conv_transpose1d), (f.conv2d, f.conv_transpose2d))[n_dims - 1]
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    z = there(torch.tensor(np.moveaxis(x, -1, 1)), w, **given)
    first = make("kernels", Setup(net.until("maps"), None, None, 5, "float64", 1))
    maps_of_x = np.moveaxis(first.outputs(x.reshape(5, -1)).reshape(5, *code.shape), -1, 1)
    np.testing.assert_allclose(maps_of_x, z.numpy(), rtol=1e-10, atol=1e-11)
    ends = back(z, w, **given).shape[2:]  # where theirs ends, if it is not told more
    given["output_padding"] = [n - end for n, end in zip(space, ends, strict=True)]
    theirs = np.moveaxis(back(z, w, **given).numpy(), 1, -1)
    ours = engine.outputs(x.reshape(5, -1)).reshape(x.shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


BATCHES = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", NETS)
def test_tasks_do_what_one_does(name, where, n_tasks):
    net = NETS[name]()
    n_links = sum(len(layer.links) for layer in net.layers)
    splits = [where, *(["receiver", "sender", "replicated"] * n_links)[: n_links - 1]]
    if where in (CHANNELS, INPUT_CHANNELS):
        splits = [where] * n_links
    layers = ["all", *(["neurons", "rows", "neurons", "rows"][: len(net.layers) - 1])]
    setup, data = Setup(net, SGD, "input", 4, "float64", 1), samples(net)
    group = good(of_group("kernels", setup, data, BATCHES, place(net, splits, layers), n_tasks))
    compare_tasks(group, of_one("kernels", setup, data, BATCHES), where)


@pytest.mark.parametrize("n_groups, n_tasks", [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("name", ["autoencoder", "images"])
def test_groups_share_a_batch(name, n_groups, n_tasks):
    net = NETS[name]()
    setup, data = Setup(net, SGD, "input", 4, "float64", 1), samples(net)
    found = good(
        of_groups("kernels", setup, data, BATCHES, Placement.default(net), n_groups, n_tasks)
    )
    one = of_one("kernels", setup, data, BATCHES)
    for group in range(n_groups):
        compare_tasks(found[group * n_tasks : (group + 1) * n_tasks], one, f"group {group}")


# what the optimizer remembers of shared and tied weights


class GoesOn(horn.Neuron):
    """A local rule that reads, per sample, what the optimizer of its weights remembers."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(0.01 * y * m.input + 0.5 * m.previous_update * self.activation(y))
        self.feedforward(self.activation(y))


class Momentum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(0.5 * m.previous_update - 0.1 * m.delta * self.output)
        self.backpropagate(error * self.activation.derivative(self.output))


OWNERS: dict[str, tuple[int | None, Any]] = {
    "dense": (5, None),
    "sparse": (5, horn.Sparse(fan_in=3)),
    "windows": (None, horn.Convolution(3, 2, padding="same")),
}


def there_and_back(owner: str, neuron: Any) -> horn.Network:
    """A convolution, the owner of weights, and two layers that have them, turned and not."""
    size, connect = OWNERS[owner]
    net = horn.Network(seed=1)
    net.input((3, 3, 1))
    net.layer(connect=horn.Convolution(2, 2), activation="tanh", neuron=neuron)
    code = net.layer(size, connect=connect, activation="tanh", neuron=neuron)
    net.layer(connect=horn.Tied(code), activation="tanh", neuron=neuron)
    last = horn.neurons.Standard if neuron is Momentum else neuron
    again = horn.Tied(code, transposed=False)
    net.output(connect=again, activation="tanh", neuron=last, loss="squared_error")
    return net


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("neuron", [GoesOn, Momentum])
def test_the_previous_update_of_a_synapse_is_that_of_its_weight(owner, neuron):
    compare(there_and_back(owner, neuron), horn.Direct(0.1), 3)


def test_the_previous_update_of_a_kernel_by_hand():
    """The sum over the positions, of which each says half of what was last added."""
    net = horn.Network(seed=1)
    net.input((3, 1))
    net.layer(connect=horn.Convolution(1, 2), neuron=GoesOn, activation="identity", name="maps",
              bias=False)  # fmt: skip
    x = np.random.default_rng(0).normal(size=(4, 3))
    engine = make("kernels", Setup(net, horn.Direct(), None, 4, "float64", 1))
    engine.bind(Dataset(x, None))
    w, before = engine.parameters()["maps.weight"].ravel().copy(), np.zeros(2)
    for step in range(3):
        engine.step(np.arange(4), iteration=step, first_sample=4 * step)
        heard = np.stack([x[:, :2], x[:, 1:]])  # (positions, samples, taps)
        y = (heard * w).sum(axis=2, keepdims=True)
        before = (0.01 * y * heard + 0.5 * before * y).sum(axis=0).mean(axis=0)
        w = w + before
        np.testing.assert_allclose(engine.parameters()["maps.weight"].ravel(), w, rtol=1e-12)


@pytest.mark.parametrize("owner, where", [("dense", "sender"), ("windows", CHANNELS)])
def test_tasks_and_groups_read_the_previous_updates_of_one(owner, where):
    net = there_and_back(owner, GoesOn)
    setup, data = Setup(net, horn.Direct(0.1), "labels", 4, "float64", 1), samples(net)
    one = of_one("kernels", setup, data, BATCHES)
    layers = ["all", "neurons", "rows", "neurons", "rows"]
    placement = place(net, [where, "receiver", where, "replicated"], layers)
    compare_tasks(good(of_group("kernels", setup, data, BATCHES, placement, 2)), one, where)
    found = good(of_groups("kernels", setup, data, BATCHES, Placement.default(net), 2, 2))
    for group in range(2):
        compare_tasks(found[2 * group : 2 * group + 2], one, f"group {group}")


def test_a_decoder_whose_weights_lie_with_the_encoder_moves_none_of_them():
    """Receivers of the one are senders of the other: the same share."""
    net = autoencoder()
    split = {(1, 0): "receiver", (2, 0): "receiver", (3, 0): "sender", (4, 0): "sender"}
    from horn.program import Post

    program = training_program(net, SGD, "input")
    local = partition(program, Placement(split, dict.fromkeys(range(1, 5), "all")))
    moved = {m.array for s in local.statements if isinstance(s, Post) for m in s.moves}
    assert moved and not any("weight" in name for name in moved), moved


def digits_job(**more: Any) -> horn.Job:
    net = horn.Network(seed=2)
    net.input(64)
    code = net.layer(20, activation="sigmoid", name="code")
    net.output(connect=horn.Tied(code), activation="sigmoid", loss="squared_error")
    given: dict[str, Any] = {"epochs": 3, "optimizer": horn.SGD(0.5, momentum=0.9)} | more
    return horn.Job(net, horn.data.digits().x, target="input", **given)


@pytest.mark.cluster
@pytest.mark.net
@pytest.mark.timeout(120)
def test_files_processes_and_checkpoints_keep_ties(tmp_path):
    job = digits_job(epochs=2, dtype="float64")
    whole = horn.train(job).model
    horn.train(
        digits_job(epochs=1, dtype="float64"), tasks=2, checkpoints=tmp_path, checkpoint_every=10
    )
    rest = horn.train(digits_job(epochs=2, dtype="float64"), checkpoints=tmp_path, resume=True)
    for name, array in whole.parameters.items():
        np.testing.assert_allclose(rest.model.parameters[name], array, rtol=1e-7, atol=1e-10)
    assert whole.parameters.keys() == {"code.weight", "code.bias", "layer2.bias"}
    whole.save(tmp_path / "m.horn")
    again = horn.Model.load(tmp_path / "m.horn")
    x = horn.data.digits("test").x[:20]
    np.testing.assert_array_equal(again.predict(x), whole.predict(x))
    tie = again.network.layers[2].links[0].tie
    assert tie.layer is again.network.layers[1] and tie.transposed
    more = horn.train(horn.Job(again.network, x, target="input", epochs=1, initial=again))
    assert more.model.parameters.keys() == whole.parameters.keys()
    np.testing.assert_array_equal(whole.cut("code").predict(x), whole.activations(x, "code"))


def test_a_sparse_or_shared_tie_is_kept_by_a_file(tmp_path):
    for net in (sparse(), images()):
        model = horn.Model(net, net.initial_parameters())
        model.save(tmp_path / "m.horn")
        again = horn.Model.load(tmp_path / "m.horn")
        x = np.random.default_rng(0).random((3, net.n_inputs))
        np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_rebuilt_networks_tie_their_own_layers():
    net = autoencoder().rebuilt(seed=5)
    tie = net.layers[4].links[0].tie
    assert tie.layer is net.layers[1]
    compare(net, SGD, 4, target="input", steps=1)


def test_a_frozen_weight_is_frozen_for_all():
    net = autoencoder()
    job = horn.Job(net, np.random.default_rng(0).random((20, 6)), target="input", epochs=1,
                   frozen=["layer1.weight"])  # fmt: skip
    model = horn.train(job).model
    before = net.initial_parameters()
    np.testing.assert_array_equal(model.parameters["layer1.weight"], before["layer1.weight"])
    assert (model.parameters["layer2.weight"] != before["layer2.weight"]).any()


def towers(neuron: Any = horn.neurons.Standard, steps: int = 0) -> horn.Network:
    """Two, above inputs, of which the second has no array of its own; as in docs/outputs.md."""
    net = horn.Network(seed=1)
    if steps:
        left = right = net.input(4, steps=steps)
    else:
        left, right = net.input(4, name="left"), net.input(4, name="right")
    one = net.layer(3, activation="tanh", inputs=left, neuron=neuron, name="one")
    two = net.layer(3, activation="tanh", inputs=right, neuron=neuron, connect=horn.Tied(one),
                    bias=False, name="two")  # fmt: skip
    net.output(2, inputs=[one, two], activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("neuron", [horn.neurons.Standard, RBF, Gated])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_tied_layer_without_arrays_of_its_own_asks_for_its_part_of_the_gradient(neuron, steps):
    net = towers(neuron, steps)
    data = None
    if steps:
        rng = np.random.default_rng(1)
        data = Dataset(rng.standard_normal((12, 4 * steps)), rng.integers(0, 2, 12))
    compare(net, horn.SGD(0.5), 4, data=data)


def test_of_a_layer_that_nobody_hears_what_another_is_tied_to_learns():
    net = horn.Network(seed=1)
    below = net.input(6)
    first = net.layer(4, activation="tanh", name="a")
    net.layer(4, activation="tanh", inputs=below, connect=horn.Tied(first), bias=False)
    net.output(2, activation="softmax", loss="cross_entropy")
    compare(net, horn.SGD(0.5), 4)
    (said,) = never_learn(net)
    assert "'a': a.bias will never learn" in said


# what does not fit


class PushesIn(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(m.input * y)
        self.feedforward(y)


@pytest.mark.parametrize(
    "tie, sentence",
    [
        (lambda net, a, b: horn.Tied(a), r"Tied.a.: its weights are between 6 and 5 neurons, but "
         "the layer below has 3; tie it to a layer of these sizes"),
        (lambda net, a, b: horn.Tied(b, transposed=False), "Tied.b, transposed=False.: its weights "
         "are between 5 and 3"),
        (lambda net, a, b: horn.Tied(net.layers[0]), "Tied takes an earlier layer with weights"),
        (lambda net, a, b: horn.Tied("b"), "'b' is a name, maybe of a layer that comes later: of"),
        (lambda net, a, b: horn.Tied(b, input="x"), "Tied.b.: which of its inputs. say input='a'"),
        (lambda net, a, b: horn.Tied(net.layers[3]), "the weights of back are those of b; write "
         "Tied.b."),
        (lambda net, a, b: horn.Tied(net.layers[5]), "so they fit both ways; say transposed=True"),
    ],
)  # fmt: skip
def test_ties_that_do_not_fit_are_said(tie, sentence):
    net = horn.Network()
    net.input(6)
    a = net.layer(5, name="a")
    b = net.layer(3, name="b")
    net.layer(connect=horn.Tied(b), name="back")
    net.layer(3, name="square", inputs=net.layer(3, name="three"))
    with pytest.raises(ModelError, match=f"layer 6 'here': .*{sentence}"):
        net.layer(connect=tie(net, a, b), name="here", inputs=b)


def test_one_rule_teaches_what_is_tied():
    net = horn.Network()
    net.input(6)
    below = net.layer(5, neuron=PushesIn)
    net.output(connect=horn.Tied(below), loss="squared_error")
    data = Dataset(np.ones((4, 6)), None)
    for backend in ("python", "kernels"):
        with pytest.raises(ModelError, match="layer1.weight is tied: some of its connections push"):
            engine = make(backend, Setup(net, horn.Direct(), "input", 4, "float64", 1))
            engine.bind(data)
            engine.step(np.arange(4), iteration=0, first_sample=0)


def test_sub_models_have_arrays_of_their_own():
    with pytest.raises(JobError, match="layer2 has the weights of code.*use allreduce"):
        horn.train(digits_job(), strategy=horn.ParallelDropout(2))
