"""Convolutions the other way round: their sizes, sums, kernels, ties, tasks and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.compiler.lower import training_program
from horn.errors import ModelError
from horn.explain import runs_as
from horn.partition.placement import CHANNELS, INPUT_CHANNELS, Placement
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

SGD = horn.SGD(0.1, momentum=0.5)
BATCHES = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]
Shape = tuple[int, ...]
Case = tuple[Shape, horn.TransposedConvolution, Shape]  # below, the connection, the maps
CASES: dict[str, Case] = {
    "valid": ((4, 3, 2), horn.TransposedConvolution(3, 2, 2), (8, 6, 3)),
    "overlapping": ((3, 4, 2), horn.TransposedConvolution(2, 3, 2), (7, 9, 2)),
    "same": ((3, 2, 2), horn.TransposedConvolution(3, (3, 4), 2, "same"), (6, 4, 3)),
    "cut": ((3, 2, 1), horn.TransposedConvolution(2, 4, 2, 1), (6, 4, 2)),
    "gaps": ((3, 2), horn.TransposedConvolution(2, 2, 3), (8, 2)),
    "same with gaps": ((3, 2), horn.TransposedConvolution(2, 2, 3, "same"), (9, 2)),
    "dilation": ((5, 2), horn.TransposedConvolution(3, 3, dilation=2, padding=1), (7, 3)),
    "pairs": ((3, 4, 2), horn.TransposedConvolution(2, 4, 2, ((2, 0), (0, 3))), (6, 7, 2)),
    "before": ((4, 2), horn.TransposedConvolution(3, 3, 2, ((2, 0),)), (7, 3)),
    "groups": ((2, 2, 4), horn.TransposedConvolution(4, (3, 2), 2, groups=2), (5, 4, 4)),
    "one position": ((1, 1, 5), horn.TransposedConvolution(4, 3), (3, 3, 4)),
}


def decoder(name: str, neuron: Any = horn.neurons.Standard) -> horn.Network:
    """Larger maps, between a layer of the shape below and an output."""
    below, connection, _ = CASES[name]
    net = horn.Network(seed=1)
    net.input(below)
    net.layer(connect=horn.OneToOne(), activation="tanh", name="code")
    net.layer(connect=connection, neuron=neuron, activation="tanh", name="maps")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def in_loops(x: Any, w: Any, connection: horn.TransposedConvolution, shape: Shape) -> Any:
    """Each neuron below (position p, channel c) adds w[c, tap] to p * stride + tap * dilation."""
    n_dims, each = x.ndim - 1, connection.channels // connection.groups

    def of(name: str, k: int) -> Any:
        value = getattr(connection, name)
        return value[k] if isinstance(value, tuple) else value

    before = []
    for k in range(n_dims):
        reach = (of("kernel", k) - 1) * of("dilation", k) + 1
        cut = max((x.shape[k] - 1) * of("stride", k) + reach - shape[k], 0) // 2
        left_out = cut if isinstance(connection.padding, str) else of("padding", k)
        before.append(left_out[0] if isinstance(left_out, tuple) else left_out)
    out = np.zeros(shape)
    for *p, c in np.ndindex(x.shape):
        group = c // (x.shape[-1] // connection.groups)
        for *t, m in np.ndindex(w.shape[1:]):
            at = tuple(p[k] * of("stride", k) + t[k] * of("dilation", k) - before[k]
                       for k in range(n_dims))  # fmt: skip
            if all(0 <= a < n for a, n in zip(at, shape, strict=False)):
                out[(*at, group * each + m)] += x[(*p, c)] * w[(c, *t, m)]
    return out


@pytest.mark.parametrize("name", CASES)
def test_each_neuron_below_sends_to_a_window(name):
    below, connection, shape = CASES[name]
    net = horn.Network(seed=1)
    net.input(below)
    maps = net.layer(connect=connection, bias=False, name="maps")
    assert maps.shape == shape and maps.n_kinds == connection.channels
    x = np.random.default_rng(0).standard_normal((2, *below))
    engine = make("kernels", Setup(net, None, None, 2, "float64", 1))
    w = engine.parameters()["maps.weight"]
    kernel = connection.kernel
    taps = kernel if isinstance(kernel, tuple) else (kernel,) * (len(below) - 1)
    assert w.shape == (below[-1], *taps, connection.channels // connection.groups)
    found = engine.outputs(x.reshape(2, -1)).reshape(2, *shape)
    for one, sample in zip(found, x, strict=True):
        np.testing.assert_allclose(one, in_loops(sample, w, connection, shape), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_are_those_of_pytorch(data):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    n_dims = data.draw(st.sampled_from([1, 2]))
    kernel, stride, dilation = (data.draw(st.integers(1, most)) for most in (4, 3, 2))
    padding, groups = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([1, 2]))
    below = (*(data.draw(st.integers(1, 6)) for _ in range(n_dims)), 2 * groups)
    maps = groups * data.draw(st.integers(1, 9))
    net = horn.Network(seed=1)
    net.input(below)
    told = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    longer = data.draw(st.integers(0, min(padding, max(stride, dilation) - 1)))
    given = told | {"padding": ((padding, padding - longer),) * n_dims}
    told["output_padding"] = longer  # less is left out after
    try:
        layer = net.layer(connect=horn.TransposedConvolution(maps, kernel, **given), name="maps")
    except ModelError:  # nothing is left
        return
    x = np.random.default_rng(0).standard_normal((3, *below))
    engine = make("kernels", Setup(net, None, None, 3, "float64", 1))
    w = torch.tensor(np.moveaxis(engine.parameters()["maps.weight"], -1, 1))
    back = (f.conv_transpose1d, f.conv_transpose2d)[n_dims - 1]
    theirs = back(torch.tensor(np.moveaxis(x, -1, 1)), w, **told).numpy()
    ours = engine.outputs(x.reshape(3, -1)).reshape(3, *layer.shape)
    np.testing.assert_allclose(ours, np.moveaxis(theirs, 1, -1), rtol=1e-10, atol=1e-12)


NEURONS = [horn.neurons.Standard, RBF, Product, Gated, Written, Silenced]


@pytest.mark.parametrize("name, neuron", share(2, CASES, NEURONS))
def test_the_interpreter_is_the_law(name, neuron):
    compare(decoder(name, neuron), SGD, 3, steps=1)


@pytest.mark.parametrize("name, neuron", share(2, CASES, [horn.neurons.Standard, RBF]))
def test_derived_gradients_are_finite_differences(name, neuron):
    setup = Setup(decoder(name, neuron), horn.SGD(0.1), "labels", 5, "float64", 1)
    check_gradients("kernels", setup, samples(setup.network), 6)


def test_it_is_the_way_back_of_its_convolution():
    """With the weights of the convolution from its maps, as a tie has them."""
    tied, own = horn.Network(seed=1), horn.Network(seed=1)
    tied.input((7, 5, 2))
    code = tied.layer(connect=horn.Convolution(4, 3, 2), name="code", bias=False)
    tied.layer(connect=horn.Tied(code, transposed=True), bias=False)
    own.input(code.shape)
    own.layer(connect=horn.TransposedConvolution(2, 3, 2), name="maps", bias=False)
    engine = make("kernels", Setup(tied, None, None, 3, "float64", 1))
    x = np.random.default_rng(0).standard_normal((3, 70))
    until = make("kernels", Setup(tied.until("code"), None, None, 3, "float64", 1))
    other = make("kernels", Setup(own, None, None, 3, "float64", 1))
    other.load({"maps.weight": engine.parameters()["code.weight"]})
    np.testing.assert_array_equal(other.outputs(until.outputs(x)), engine.outputs(x))


class Passes(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input for m in messages))


def test_without_weights_it_repeats_what_it_hears():
    net = horn.Network(seed=1)
    net.input((3, 2, 2))
    net.layer(connect=horn.TransposedConvolution(2, 2, 2, groups=2), neuron=Passes, name="large")
    net.output(2, activation="softmax", loss="cross_entropy")
    x = np.arange(24.0).reshape(2, 3, 2, 2)
    model = horn.Model(net, net.initial_parameters())
    assert not [name for name in model.parameters if name.startswith("large")]
    found = model.activations(x, "large").reshape(2, 6, 4, 2)
    np.testing.assert_array_equal(found, x.repeat(2, axis=1).repeat(2, axis=2))


def there_and_back(neuron: Any = horn.neurons.Standard) -> horn.Network:
    """Larger maps, back with the same weights, and there with them once more."""
    net = horn.Network(seed=1)
    net.input((2, 2, 2))
    larger = horn.TransposedConvolution(3, (3, 2), 2)
    maps = net.layer(connect=larger, neuron=neuron, activation="tanh")
    net.layer(connect=horn.Tied(maps), neuron=neuron, activation="tanh")
    net.layer(connect=horn.Tied(maps, transposed=False), neuron=neuron, activation="tanh")
    net.output(connect=horn.Tied(maps), loss="squared_error")
    return net


@pytest.mark.parametrize("neuron", [horn.neurons.Standard, RBF])
def test_others_are_tied_to_it_both_ways(neuron):
    net = there_and_back(neuron)
    assert [layer.shape for layer in net.layers] == [(2, 2, 2), (5, 4, 3)] * 2 + [(2, 2, 2)]
    compare(net, SGD, 3, target="input", steps=1)
    check_gradients("kernels", Setup(net, SGD, "input", 4, "float64", 1), samples(net), 4)


def test_it_has_the_kernels_of_windows():
    """Sums, deltas and gradients; nothing goes synapse by synapse."""
    for net, target in ((decoder("groups"), "labels"), (there_and_back(), "input")):
        program = training_program(net, SGD, target)
        assert {s.axis for s in program.statements if isinstance(s, Convolve)} == {"b", "i", "o"}
        wide = (s for s in program.statements if isinstance(s, Expand) and s.frame.link is not None)
        assert not [s for s in wide if s.frame.layer != 1 or target == "input"]
        assert "windows" in runs_as(net).values()


def test_it_needs_no_list_of_its_synapses(monkeypatch):
    def refuse(*args: Any) -> Any:
        raise AssertionError("synapses were listed")

    monkeypatch.setattr("numpy.lexsort", refuse)
    net = horn.Network(seed=1)
    net.input((4, 4, 2))
    net.output(connect=horn.TransposedConvolution(1, 3, 2, "same"), loss="squared_error")
    x = np.random.default_rng(0).random((8, 32), np.float32)
    horn.train(horn.Job(net, (x, np.ones((8, 64), np.float32)), horn.SGD(0.1), epochs=1))


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("where", ["receiver", "sender", "replicated", CHANNELS, INPUT_CHANNELS])
@pytest.mark.parametrize("name", ["overlapping", "same", "pairs", "groups"])
def test_tasks_do_what_one_does(name, where, n_tasks):
    net = decoder(name)
    placement = place(net, ["receiver", where, "receiver"], ["all", "neurons", "neurons", "rows"])
    placement = placement.within(net)
    setup, data = Setup(net, SGD, "labels", 4, "float64", 1), samples(net)
    group = good(of_group("kernels", setup, data, BATCHES, placement, n_tasks))
    compare_tasks(group, of_one("kernels", setup, data, BATCHES), where)
    if where in (CHANNELS, INPUT_CHANNELS) and name != "groups":
        local = partition(training_program(net, SGD, "labels", thin=False), placement)
        wide = [s for s in local.statements if isinstance(s, Expand) and s.frame.layer == 2]
        assert not [s for s in wide if s.frame.link is not None]


@pytest.mark.parametrize("n_groups, n_tasks", [(2, 1), (2, 2)])
def test_groups_share_a_batch(n_groups, n_tasks):
    net = decoder("same")
    setup, data = Setup(net, SGD, "labels", 4, "float64", 1), samples(net)
    found = good(
        of_groups("kernels", setup, data, BATCHES, Placement.default(net), n_groups, n_tasks)
    )
    one = of_one("kernels", setup, data, BATCHES)
    for group in range(n_groups):
        compare_tasks(found[group * n_tasks : (group + 1) * n_tasks], one, f"group {group}")


def test_steps_of_a_sequence_are_made_larger():
    net = horn.Network(seed=1)
    net.input((2, 2, 1), steps=3)
    net.layer(
        (4, 4, 2), activation="tanh", name="maps", inputs={"x": net.layers[0], "h": horn.Delayed()},
        connect={"x": horn.TransposedConvolution(2, 3, 2, "same"),
                 "h": horn.Convolution(2, 3, 1, "same")},
    )  # fmt: skip
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.random.default_rng(0).normal(size=(6, 3, 4)), np.arange(6) % 2
    job = horn.Job(net, data, SGD, epochs=1, batch_size=3, dtype="float64")
    law, *others = (
        horn.train(job, backend=backend).model.parameters
        for backend in ("python", "reference", "kernels")
    )
    for found in others:
        for name, array in law.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)


def test_initial_weights_go_by_the_messages_of_a_neuron():
    """Of a window of 9 taps with stride 2 a neuron hears a quarter, in the mean over positions."""
    net = horn.Network(seed=1)
    net.input((8, 8, 40))
    layer = net.layer(connect=horn.TransposedConvolution(30, 4, 2, 1), init="he", bias=False)
    heard = layer.links[0].edges.n / layer.size  # 4 taps of 16, fewer at the border
    assert layer.typical_fan_in == -(-heard // 1) and 140 < layer.typical_fan_in <= 160
    weights = net.initial_parameters()["layer1.weight"]
    assert weights.std() == pytest.approx((2 / layer.typical_fan_in) ** 0.5, rel=0.02)
    assert layer.links[0].fan_out(layer.size) == 16 * 30


def test_a_file_keeps_what_it_was_told(tmp_path):
    net = decoder("groups")
    data = samples(net)
    run = horn.train(horn.Job(net, data, horn.SGD(0.1), epochs=1, batch_size=4))
    run.model.save(tmp_path / "m.horn")
    model = horn.Model.load(tmp_path / "m.horn")
    assert model.network.layers[2].links[0].connection == CASES["groups"][1]
    np.testing.assert_array_equal(model.predict(data.x), run.model.predict(data.x))


@pytest.mark.parametrize(
    "below, make_it, sentence",
    [
        ((4, 4, 3), lambda: horn.TransposedConvolution(2, 3, groups=3),
         "groups=3 must divide the 3 channels below and the 2 maps"),
        ((2, 1), lambda: horn.TransposedConvolution(2, 2, padding=2),
         "makes 3 positions of the 2 below .* padding=2 leaves out 2 at each end; what leaves one "
         "is a padding of at most 1"),
        ((2, 1), lambda: horn.TransposedConvolution(2, 2, padding=((3, 1),)),
         r"padding=\(\(3, 1\),\) leaves out 3 before and 1 after; what leaves one is .* most 1"),
        ((16,), lambda: horn.TransposedConvolution(2, 2),
         r"horn.TransposedConvolution looks through windows at a layer of shape \(n, channels\)"),
        ((4, 1), lambda: horn.TransposedConvolution(2, 0), "kernel is a whole number from 1"),
        ((4, 1), lambda: horn.TransposedConvolution(0, 2), "channels must be a whole number"),
        ((4, 1), lambda: horn.TransposedConvolution(2, 2, padding="full"), 'padding is "valid"'),
        ((4, 1), lambda: horn.TransposedConvolution(2, 2, strides=2), "stride"),
        ((2000, 2000, 3), lambda: horn.TransposedConvolution(8, 5), "synapses; there may be"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(below, make_it, sentence):
    net = horn.Network(seed=1)
    net.input(below)
    with pytest.raises((ModelError, TypeError), match=sentence):
        net.layer(connect=make_it())
