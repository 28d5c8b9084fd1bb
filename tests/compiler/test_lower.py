"""What a program consists of: statements for statements, for networks whose best form is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import horn
from horn import ir
from horn.backends import Setup, reference
from horn.compiler import lower
from horn.errors import CompileError
from horn.neurons import BatchDropout, Dropout, Standard
from horn.optimizers import Optimizer
from horn.program import Draw, Live, Loop, Matmul, Take, Update
from horn.scheduling.passes import passes


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Pulled(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(horn.math.sin(m.input - m.weight) for m in messages))


class Hebb(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * m.input)
        self.feedforward(y)


class Remembers(horn.Neuron):
    trace = horn.State(0.0)

    def forward(self, messages):
        self.trace = 0.9 * self.trace
        if self.training and self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(0.0)
            return
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))


class TwoDraws(horn.Neuron):
    """Sits out per batch, and draws per sample too."""

    def forward(self, messages):
        if self.training and self.bernoulli(0.5, per="batch") == 0:
            self.feedforward(0.0)
        else:
            noise = self.normal(0.0, 0.1)
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)) + noise)


def squash(output):
    return output / (1.0 + abs(output).sum())


def network(neuron=Standard, n=4, **settings):
    net = horn.Network(seed=1)
    net.input(5)
    net.layer(n, neuron=neuron, activation="relu", **settings)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def program(net, optimizer: Optimizer | None = None, **settings):
    made = lower.training_program(
        net, optimizer or horn.SGD(0.1, momentum=0.9), "label", **settings
    )
    lower.verify(made)
    return made


def of(statements, kind, layer=None):
    found = [s for s in statements if isinstance(s, kind)]
    return found if layer is None else [s for s in found if s.frame.layer == layer]


def test_a_standard_layer_forward_is_one_product_and_one_loop():
    made = lower.inference_program(network(), None)
    lower.verify(made)
    assert len(of(made.statements, Matmul, 1)) == 1 and len(of(made.statements, Loop, 1)) == 1
    loop = of(made.statements, Loop, 1)[0]
    assert loop.frame.link is None and [o.buffer for o in loop.outputs] == ["layer1.output"]


def test_plain_sgd_fuses_the_update_into_the_gradients_product():
    for momentum in (0.0, 0.9):
        made = program(network(), horn.SGD(0.1, momentum=momentum))
        updates = of(made.statements, Update)
        assert {u.weight for u in updates} == {"layer1.weight", "layer2.weight"}
        assert all((u.velocity is None) == (momentum == 0.0) for u in updates)
        assert not any(
            "gradient" in s.out for s in of(made.statements, Matmul) if "weight" in s.out
        )
        assert ("layer1.weight/velocity" in made.buffers) == bool(momentum)


@pytest.mark.parametrize(
    "optimizer",
    [
        horn.Adam(0.1),
        horn.SGD(0.1, weight_decay=0.1),
        horn.SGD(0.1, clip_value=1.0),
        horn.SGD(0.1, clip_norm=1.0),
        horn.SGD(0.1, momentum=0.9, nesterov=True),
        horn.Direct(0.1),
    ],
    ids=repr,
)
def test_other_optimizers_do_not(optimizer):
    assert not of(program(network(), optimizer).statements, Update)


def test_probes_ask_for_the_gradients_themselves():
    made = program(network(), fuse=False)
    assert not of(made.statements, Update)
    assert {
        "layer1.output",
        "layer1.delta",
        "layer1.weight.gradient",
        "layer2.bias.gradient",
    } <= set(made.probes)


def test_the_backward_of_the_first_layer_stops_there():
    made = program(network())
    backs = [s for s in of(made.statements, Matmul) if s.axis == "o"]
    assert [s.frame.layer for s in backs] == [2]  # nothing asks for d loss / d data


def test_a_maximum_is_a_fused_loop_and_never_stores_every_message():
    made = program(network(Largest))
    assert not of(made.statements, Matmul, 1)
    for name, buffer in made.buffers.items():
        assert len(buffer.axes) < 3, name


def test_a_sine_that_forward_stored_is_not_computed_again():
    made = lower.training_program(network(Pulled, bias=False), horn.SGD(0.1), "label")
    lower.verify(made)
    nodes = [o.node for loop in of(made.statements, Loop, 1) for o in loop.outputs]
    waves = [n for root in nodes for n in ir.walk(root) if n.op in (ir.Op.SIN, ir.Op.COS)]
    assert sorted(n.axes for n in waves) == ["bi", "bi", "oi", "oi"]


def test_a_sine_and_a_cosine_of_the_same_are_side_by_side_in_one_loop():
    made = lower.training_program(network(Pulled, bias=False), horn.SGD(0.1), "label")
    found = [each.ops for s in of(made.statements, Loop) for each in passes(s)]
    names = [[name for name, *_ in ops] for ops in found if any(o[0] == "sin" for o in ops)]
    assert names == [["sin", "cos"], ["neg", "sin", "cos"]]


def test_sparse_links_loop_over_edges():
    made = program(network(connect=horn.Sparse(fan_in=2)))
    assert not of(made.statements, Matmul, 1)
    assert made.buffers["layer1.weight"].axes == ("e1.0",)


# --- per-batch dropout


def compact(net, optimizer=None):
    return program(net, optimizer).compact


def test_per_batch_dropout_computes_live_neurons_only():
    made = program(network(BatchDropout))
    assert made.compact == {1}
    assert [s.layer for s in of(made.statements, Live)] == [1]
    taken = {s.array for s in of(made.statements, Take)}
    assert {"layer1.weight", "layer1.bias", "layer2.weight"} <= taken
    scattered = {o.buffer for s in of(made.statements, Loop) if s.scatter for o in s.outputs}
    assert "layer1.bias" in scattered and "layer2.bias" not in scattered
    assert {s.weight for s in of(made.statements, Update)} == {"layer1.weight", "layer2.weight"}
    live = made.statements.index(of(made.statements, Live)[0])
    assert all(made.statements.index(s) > live for s in of(made.statements, Take))
    adaptive = program(network(BatchDropout), horn.Adam(0.1)).statements
    scattered = {o.buffer for s in of(adaptive, Loop) if s.scatter for o in s.outputs}
    assert {"layer1.weight", "layer2.weight"} <= scattered and not of(adaptive, Update)


def test_a_dropped_input_per_batch_is_compact_too():
    net = horn.Network(seed=1)
    net.input(5, keep=0.8, per="batch")
    net.layer(4, neuron=BatchDropout, activation="relu")
    net.output(3, activation="softmax", loss="cross_entropy")
    assert compact(net) == {0, 1}


def test_inference_drops_nothing():
    made = lower.inference_program(network(BatchDropout), None)
    assert not made.compact and not of(made.statements, Live) and not of(made.statements, Draw)


@pytest.mark.parametrize(
    ("why", "net"),
    [
        ("drawn per sample", lambda: network(Dropout)),
        ("an interlayer sees the silent ones", lambda: network(BatchDropout, interlayer=squash)),
        ("sparse links", lambda: network(BatchDropout, connect=horn.Sparse(fan_in=2))),
        ("a State is kept while sitting out", lambda: network(Remembers)),
        ("draws per sample are named by neuron", lambda: network(TwoDraws)),
        ("a maximum sees inputs of 0", lambda: above(Largest)),
        ("a local rule above sees inputs of 0", lambda: above(Hebb)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_where_silent_neurons_matter_arrays_stay_whole(why, net):
    made = program(net())
    assert made.compact == frozenset() and not of(made.statements, Take)
    assert ("layer1#live" in made.buffers) == (why != "drawn per sample")


def above(neuron):
    net = horn.Network(seed=1)
    net.input(5)
    net.layer(4, neuron=BatchDropout, activation="relu")
    net.layer(4, neuron=neuron)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


# --- order


OPTIMIZERS = (horn.SGD(0.1, momentum=0.9), horn.Adam(0.1), horn.SGD(0.1, clip_norm=1.0))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("neuron", [Standard, Dropout, BatchDropout, Largest, Hebb, Remembers])
@pytest.mark.parametrize("connect", [None, horn.Sparse(fan_in=2)], ids=["dense", "sparse"])
def test_programs_never_read_what_is_not_written(neuron, connect, optimizer):
    net = horn.Network(seed=1)
    x = net.input(5, keep=0.8)
    a = net.layer(4, neuron=neuron, connect=connect)
    b = net.layer(3, inputs=[x, a], activation="tanh", interlayer=squash)
    net.output(3, inputs=[a, b], activation="softmax", loss="cross_entropy")
    for fuse in (True, False):
        program(net, optimizer, fuse=fuse)
    lower.verify(lower.inference_program(net, "label"))


def test_verify_sees_a_missing_statement():
    made = program(network())
    broken = lower.Program(
        made.network, made.buffers, made.prologue, made.statements[1:], made.outputs, made.loss
    )
    with pytest.raises(AssertionError):
        lower.verify(broken)


def test_verify_sees_a_gradient_that_reads_what_an_update_changed():
    made = program(network())
    early = next(s for s in made.statements if isinstance(s, Update) and s.frame.layer == 2)
    others = [s for s in made.statements if s is not early]
    place = next(k for k, s in enumerate(others) if isinstance(s, Matmul) and s.axis == "o")
    broken = replace(made, statements=(*others[:place], early, *others[place:]))
    with pytest.raises(AssertionError, match=r"layer2\.weight is read after its update"):
        lower.verify(broken)


SAMPLED = (Standard, Dropout, BatchDropout, Hebb, Remembers, TwoDraws)


@pytest.mark.parametrize(
    ("neuron", "steps"),
    [*((neuron, None) for neuron in SAMPLED), *((x, 3) for x in (Standard, Dropout, Hebb))],
)
def test_the_loss_of_a_step_alone_is_that_of_the_step_and_changes_nothing(neuron, steps):
    net = horn.Network(seed=2)
    net.input(4, steps=steps) if steps else net.input(4, keep=0.7)
    net.layer(6, neuron=neuron, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    rng = np.random.default_rng(0)
    data = horn.Job(net, (rng.random((8, steps or 1, 4)).squeeze(), np.arange(8) % 3)).data
    setup = Setup(net, horn.SGD(0.1), batch_size=8, dtype="float64")
    scalars = {"learning_rate": 0.1, "iteration": 5.0, "updates": 6.0, "rows": 8, "inv_rows": 1 / 8}
    found = []
    for make in lower.loss_program, lower.training_program:
        made = make(net, horn.SGD(0.1), "label")
        engine = reference.Engine(setup)
        runner = reference.Runner(made, engine.arrays, setup, 8)
        runner.bind(data)
        runner.run(np.arange(8), scalars, 0)
        begun = reference.Engine(setup).arrays
        found.append(
            (runner.value("loss"), [(a != begun[k]).any() for k, a in engine.arrays.items()])
        )
    (alone, changed), (whole, learned) = found
    assert (alone == whole).all() and len(set(alone)) == 8
    assert not any(changed) and any(learned)


def test_a_draw_for_the_run_is_made_once():
    class Fixed(horn.Neuron):
        def forward(self, messages):
            total = sum(m.input * m.weight * m.normal() for m in messages)
            self.feedforward(total * self.uniform(0.5, 1.5, per="run"))

    made = program(network(Fixed))
    assert {s.per for s in made.prologue} == {"run", "synapse"}
    assert not of(made.statements, Draw)


# --- what a written backward may not say


class Sum(horn.Neuron):
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))


class UsesDelta(Sum):
    def backward(self, messages):
        self.backpropagate(sum(m.delta * m.weight for m in messages))


class Pushes(Sum):
    def backward(self, messages):
        for m in messages:
            self.push(m.gradient)
        self.backpropagate(0.0)


class WritesForTheLargest(Largest):
    def backward(self, messages):
        self.backpropagate(sum(m.gradient for m in messages))


class UsesPrevious(Sum):
    def backward(self, messages):
        for m in messages:
            self.push(m.previous_update)
        self.backpropagate(0.0)


def stacked(neuron, receiver, **settings):
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, neuron=neuron, **settings)
    net.layer(3, neuron=receiver)
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    ("net", "neuron", "problem"),
    [
        (
            lambda: stacked(UsesDelta, Largest),
            UsesDelta,
            "UsesDelta.backward uses m.delta toward layer2, but Largest.forward is more than a "
            "function of sum(input * weight) and has no one delta: read m.gradient, and do not "
            "push, or leave backward out",
        ),
        (lambda: stacked(Pushes, Largest), Pushes, "Pushes.backward uses push toward layer2"),
        (
            lambda: stacked(Pushes, Hebb),
            Pushes,
            "Pushes.backward pushes toward layer2, but Hebb learns from its own push in forward: "
            "leave the push out of Pushes.backward",
        ),
        (
            lambda: stacked(WritesForTheLargest, Standard),
            WritesForTheLargest,
            "WritesForTheLargest writes backward, but its forward is more than a function of "
            "sum(input * weight), so it has no one delta: leave backward out and horn derives it, "
            "or push in forward if it is to learn without a gradient",
        ),
        (
            lambda: stacked(UsesDelta, Standard, interlayer=squash),
            UsesDelta,
            "UsesDelta writes backward, but layer1 has an interlayer, which mixes its neurons: "
            "leave backward out and horn derives it",
        ),
    ],
)
def test_a_backward_that_does_not_fit_is_refused_at_its_place(net, neuron, problem):
    with pytest.raises(CompileError) as caught:
        program(net())
    error = caught.value
    assert problem in error.problem
    assert (error.file, error.line) == (__file__, neuron.backward.__code__.co_firstlineno)
    assert error.text.strip() == "def backward(self, messages):" and "^" in str(error)


def test_previous_updates_are_directs():
    with pytest.raises(CompileError) as caught:
        program(stacked(UsesPrevious, Standard))
    assert caught.value.text.strip() == "self.push(m.previous_update)"
    assert str(caught.value).endswith(
        "m.previous_update is what horn.Direct() last added to the weight; this job's optimizer "
        "is SGD: keep what you need of each synapse in a horn.SynapseState"
    )
    program(stacked(UsesPrevious, Standard), horn.Direct(0.1))
