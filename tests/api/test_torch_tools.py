"""Modules of to_torch in PyTorch's own tools: traced, compiled, exported, copied."""

import copy

import numpy as np
import pytest

import horn
from horn.errors import DataError
from tests.api.test_export import Product, model_of, pairs
from tests.parity import recurrent

torch = pytest.importorskip("torch")


class Centred(horn.Neuron):
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
        mean = self.mean(z, over="layer")
        self.feedforward((z - mean) / (1.0 + self.max(z, over="layer") - mean))


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input for m in messages))


def dense(net):
    net.input(6)
    net.layer(5, activation="tanh", connect=horn.Sparse(fan_in=3), neuron=Product)
    net.output(3, activation="softmax", loss="cross_entropy")


def images(net):
    net.input((6, 5, 2))
    maps = net.layer(connect=horn.Convolution(3, 3, padding="same"), activation="relu")
    net.layer(connect=horn.Window(2, stride=2), neuron=Largest)
    net.layer(connect=horn.Convolution(3, 2))
    net.output(2, inputs=[net.layers[-1], maps], loss="squared_error")


def back(net):
    net.input((6, 2))
    maps = net.layer(connect=horn.Convolution(3, 3, stride=2), activation="tanh")
    net.output(connect=horn.Tied(maps, transposed=True), loss="squared_error")


def statistics(net):
    net.input(6)
    net.layer(5, neuron=Centred)
    net.output(2, loss="squared_error")


def several(net):
    x = net.input(6)
    a = net.layer(4, activation="tanh", inputs=x)
    net.output(2, inputs={"x": x, "h": a}, loss="squared_error", name="value")
    net.output(3, inputs=a, activation="softmax", loss="cross_entropy", name="kind")


def no_input(net):
    net.input(6)
    net.output(2, connect=np.zeros((2, 6)), loss="squared_error")


NETS = [dense, images, back, statistics, several, no_input]


def module_of(build):
    net = horn.Network(seed=1)
    build(net)
    model = model_of(net, "float64")
    return model, model.to_torch()


def rows(network, n, steps=0):
    shape = (n, steps, network.n_inputs) if steps else (n, network.n_inputs)
    return np.random.default_rng(n).standard_normal(shape)


def check(called, model, x):
    for found, wanted in pairs(called(torch.tensor(x)), model.predict(x)):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-9, atol=1e-9)


def traced(module, x):
    with pytest.warns((DeprecationWarning, FutureWarning)):  # torch.jit says that it is deprecated
        return torch.jit.trace(module, torch.tensor(x), strict=False)


@pytest.mark.parametrize("build", NETS)
def test_a_trace_takes_other_numbers_of_rows(build):
    model, module = module_of(build)
    found = traced(module, rows(model.network, 3))
    for n in (1, 7, 0):
        check(found, model, rows(model.network, n))


@pytest.mark.parametrize(("build", "sizes"), [(images, [3]), (statistics, [3]), (several, [3, 7])])
def test_compiled_without_a_break_of_the_graph(build, sizes):
    model, module = module_of(build)
    torch.compiler.reset()
    found = torch.compile(module, backend="eager", fullgraph=True)
    for n in sizes:
        check(found, model, rows(model.network, n))


@pytest.mark.parametrize("build", NETS)
def test_exported_for_any_number_of_rows(build):
    model, module = module_of(build)
    batch = {0: torch.export.Dim("b")}
    x = torch.tensor(rows(model.network, 3))
    found = torch.export.export(module, (x,), dynamic_shapes=(batch,)).module()
    for n in (1, 7, 0):
        check(found, model, rows(model.network, n))


def of_steps(steps=2):
    net = horn.Network(seed=1)
    h = net.layer(
        3, neuron=recurrent.GRU, inputs={"x": net.input(2, steps=steps), "h": horn.Delayed()}
    )
    net.output(2, inputs=h, loss="squared_error", each_step=True)
    model = model_of(net, "float64")
    return model, model.to_torch(), steps


def test_sequences_keep_their_number_of_steps_where_they_are_traced_or_exported():
    model, module, steps = of_steps()
    x = rows(model.network, 3, steps)
    batch = {0: torch.export.Dim("b")}
    exported = torch.export.export(module, (torch.tensor(x),), dynamic_shapes=(batch,)).module()
    for found in (traced(module, x), exported):
        for n in (1, 5):
            check(found, model, rows(model.network, n, steps))
        with pytest.raises((RuntimeError, AssertionError)):  # and not another answer
            found(torch.tensor(rows(model.network, 2, steps + 1)))


def test_sequences_are_compiled_again_for_another_number_of_steps():
    model, module, steps = of_steps()
    torch.compiler.reset()
    found = torch.compile(module, backend="eager", fullgraph=True)
    for n, of in ((3, steps), (3, steps + 1)):
        check(found, model, rows(model.network, n, of))


def test_a_part_of_a_network_of_pytorch_is_compiled_with_it_and_learns():
    model, module = module_of(dense)
    whole = torch.nn.Sequential(torch.nn.Linear(4, 6), module, torch.nn.Linear(3, 1)).double()
    torch.compiler.reset()
    gradients = []
    for called in (whole, torch.compile(whole, backend="eager", fullgraph=True)):
        whole.zero_grad()
        called(torch.tensor(np.random.default_rng(0).standard_normal((5, 4)))).sum().backward()
        gradients.append({name: each.grad.clone() for name, each in whole.named_parameters()})
    assert gradients[0].keys() == {"0.weight", "0.bias", "2.weight", "2.bias"} | {
        "1." + name.replace(".", "_") for name in model.parameters
    }
    for name, wanted in gradients[0].items():
        assert wanted.abs().max() > 0
        np.testing.assert_allclose(gradients[1][name], wanted, rtol=1e-9, atol=1e-12)


def test_a_copy_has_parameters_of_its_own():
    model, module = module_of(statistics)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    check(module, model, rows(model.network, 3))
    x = torch.tensor(rows(model.network, 3))
    assert not torch.equal(other(x), module(x))


def test_what_is_no_batch_of_a_module_is_refused():
    model, module, _ = of_steps()
    n = model.network.n_inputs
    with pytest.raises(DataError, match=rf"got \(2, 0, {n}\); a sequence has at least one step"):
        module(torch.zeros(2, 0, n))
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3, n), torch.zeros(2, n)])
    said = "a tensor, got PackedSequence; run sequences of different lengths one by one, each x"
    with pytest.raises(DataError, match=said):
        module(packed)
    with pytest.raises(DataError, match=r"a tensor, got ndarray; make it one with torch.as_tensor"):
        module(np.zeros((2, 3, n)))


def test_inputs_by_name_are_told_how_they_lie_side_by_side():
    net = horn.Network(seed=1)
    net.input((2, 3), name="a")
    net.input(2, name="b")
    net.output(2, loss="squared_error")
    model = horn.Model(net, net.initial_parameters())
    x = {"a": torch.rand(4, 2, 3), "b": torch.rand(4, 2)}
    module = model.to_torch()
    with pytest.raises(DataError, match="side by side in this order: ") as told:
        module(x)
    side_by_side = eval(str(told.value).split("order: ")[1], {"torch": torch, "x": x})
    expected = model.predict({name: each.numpy() for name, each in x.items()})
    np.testing.assert_allclose(module(side_by_side).detach(), expected, rtol=1e-5, atol=1e-6)
