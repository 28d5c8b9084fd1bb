"""What the cost model counts of loops is what the engine does, and what is dearer costs more."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import horn
from horn import math
from horn._kernels import loops
from horn._kernels.operands import OPS, Ragged, maximum_of
from horn._kernels.walks import Lie, walk
from horn.backends import Setup
from horn.backends.kernels import Runner
from horn.compiler import lower
from horn.planner import plan as planning
from horn.planner.machine import Machine
from horn.program import Loop
from horn.scheduling.passes import Shape, passes

HERE = Machine(n_cores=64)


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Saturating(horn.Neuron):
    """No tile."""

    def forward(self, messages):
        self.feedforward(sum(math.tanh(m.input - m.weight) for m in messages))


class Metric(horn.Neuron):
    centre = horn.Weight()
    scale = horn.Weight()

    def forward(self, messages):
        self.feedforward(sum(m.scale * (m.input - m.centre) ** 2 for m in messages))


class Spread(horn.Neuron):
    def forward(self, messages):
        mean = sum(m.input * m.weight for m in messages) / len(messages)
        self.feedforward(sum((m.input * m.weight - mean) ** 2 for m in messages))


class Dendrite(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(math.tanh(m.input * m.weight) for m in messages))


class Adding(horn.Neuron):
    """As many messages, cheaper ones, that are no product."""

    def forward(self, messages):
        self.feedforward(sum(abs(m.input - m.weight) for m in messages))


class Product(horn.Neuron):
    gain = horn.Parameter(0.5)

    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 + self.gain * m.input * m.weight
        self.feedforward(self.activation(p))


class Squashed(horn.Neuron):
    def forward(self, messages):
        p = 1.0
        for m in messages:
            p *= 1.0 + math.tanh(m.input * m.weight)
        self.feedforward(self.activation(p))


class NoisyOr(horn.Neuron):
    def forward(self, messages):
        off = 1.0
        for m in messages:
            off *= 1.0 - 0.01 * m.input * m.weight
        self.feedforward(1.0 - off)


def centred(output):
    c = output - output.mean()
    return c / math.sqrt((c * c).mean() + 1e-3)


def net(neuron, sizes=(20, 70, 3), **how) -> horn.Network:
    found = horn.Network(seed=1)
    found.input(sizes[0])
    found.layer(sizes[1], neuron=neuron, activation="tanh", **how)
    found.output(sizes[2], activation="softmax", loss="cross_entropy")
    return found


NETS = {
    "max": lambda: net(Largest),
    "wide max": lambda: net(Largest, (300, 7, 3)),
    "product": lambda: net(Product, (600, 5, 2)),
    "sum": lambda: net(Saturating, (90, 70, 3)),
    "sparse": lambda: net(Saturating, connect=horn.Sparse(fan_in=4)),
    "interlayer": lambda: net(Largest, interlayer=centred),
}


def predicted_s(network: horn.Network, batch: int = 64, **changes) -> float:
    rng = np.random.default_rng(0)
    data = (rng.random((batch, network.n_inputs)), rng.integers(0, network.last.size, batch))
    job = horn.Job(network, data=data, optimizer=horn.SGD(0.1), batch_size=batch)
    machine = dataclasses.replace(HERE, **changes)
    return planning.cheapest(job, 1, machine=machine, threads=1).predicted_s


@pytest.mark.parametrize("layout", ["batch", "neuron"])
@pytest.mark.parametrize("name", NETS)
def test_loops_are_counted_as_the_engine_cuts_them(name, layout, monkeypatch):
    network, batch = NETS[name](), 30
    program = lower.training_program(network, horn.SGD(0.1), "label", thin=False)
    made = []
    monkeypatch.setattr("horn.backends.kernels.choose_layout", lambda *_: layout)
    plan = loops.plan

    def noting(*args):
        made.append((args[0], plan(*args)))
        return made[-1][1]

    monkeypatch.setattr(loops, "plan", noting)
    arrays = {
        b.name: np.zeros([network.layers[int(a[1:])].size if a[0] == "n" else 280 for a in b.axes])
        for b in program.buffers.values()
        if b.role in ("learned", "slot")
    }
    Runner(program, arrays, Setup(network, horn.SGD(), "labels", batch, "float64", 1), batch)
    counted = [(s.frame, p) for s in program.statements if isinstance(s, Loop) for p in passes(s)]
    shapes = [Shape.of(each, network, f, program.buffers, layout) for f, each in counted]
    copies = sum(array.is_copied for shape in shapes for array in shape.seen)
    assert len(made) - copies == len(counted) > 10
    assert bool(copies) == (layout == "neuron" and name != "sparse")
    following = iter(made)
    for shape in shapes:
        each = shape.each
        n_in = len(shape.seen) - len(each.outputs)
        before, after = (
            sum(array.is_copied for array in part)
            for part in (shape.seen[:n_in], shape.seen[n_in:])
        )
        *_, (axes, real) = itertools.islice(following, before + 1)
        assert all(len(copy.views) == 2 for _, copy in itertools.islice(following, after))
        lengths = {
            a: int(e.indptr[-1]) if isinstance(e, Ragged) else maximum_of(e)
            for a, e in axes.items()
        }
        assert set(lengths) == set(shape.axes)
        assert tuple(shape.order(lengths)) == tuple(real.order)
        names = [name for name, *_ in each.ops]
        codes = {code: name for name, (code, _) in OPS.items()}
        assert names == [codes[code] for code, _ in real.program if code][: len(names)]
        assert n_in == len(real.views) - len(each.outputs)
        assert each.n_constants == len(real.consts)
        if real.direct:
            assert each.is_direct() == real.direct
        elements = np.prod([n for a, n in lengths.items() if a != shape.ragged])
        w = shape.walk(lengths, 8, 8)
        if not shape.ragged:
            assert w.elements == elements


def lie(*strides: int, listed: int = -1) -> Lie:
    return Lie(list(strides), [axis == listed for axis in range(3)])


def test_strips_of_a_matrix_that_is_whole():
    """Arrays that are walked as one are one row: 100 x 30 are six strips of 512, the last short."""
    w = walk((1, 100, 30), [lie(0, 30, 1), lie(0, 30, 1)], 1, 0, n_ops=1, direct=[True])
    assert (w.strips, w.elements, w.left, w.fetches) == (6, 3000, 3000 % 512 % 16, 0)


def test_strips_with_a_row_that_all_share():
    """A bias of 100 is copied for each row unless that costs more than to begin anew at each row,
    as where three rows are: shorter rows go together.
    """

    def strips(n, rows=1, **told):
        lies = [lie(0, n, 1), *(lie(0, 0, 1) for _ in range(rows)), lie(0, n, 1)]
        return walk((1, 40, n), lies, 1 + rows, 0, direct=[True], **told)

    w = strips(100, n_ops=2)
    assert (w.strips, w.fetched, w.fetches) == (8, {"copy": 40 * 100}, 40)
    w = strips(100, rows=3, n_ops=2)
    assert (w.strips, w.left, w.fetches) == (40, 40 * 4, 0)
    w = strips(32, n_ops=1)
    assert (w.strips, w.fetched, w.fetches) == (3, {"copy": 40 * 32}, 40)


def test_what_a_reduction_begins_anew():
    """100 samples x 7 neurons, each over 300 inputs; then each weight over 100 samples."""
    w = walk((100, 7, 300), [lie(300, 0, 1), lie(0, 300, 1), lie(7, 1, 0)], 2, 2, n_ops=1)
    assert (w.strips, w.folds, w.folded, w.results, w.crossed) == (700, 700, 210_000, 700, 0)
    w = walk((7, 100, 300), [lie(0, 300, 1), lie(1, 7, 0), lie(300, 0, 1)], 2, 1, n_ops=1)
    assert (w.strips, w.folds, w.crossed, w.results) == (700, 0, 210_000, 2100)
    assert w.fetched == {"fill": 210_000}


def test_rows_of_edges():
    """Ten receivers with four synapses each, a batch of 100: sources are looked up, not copied."""
    w = walk((10, 4, 100), [lie(0, 100, 1, listed=1), lie(0, 1, 0), lie(100, 0, 1)], 2, 1,
             n_ops=1, is_ragged=True)  # fmt: skip
    assert (w.strips, w.crossed, w.results, w.fetched) == (40, 4000, 1000, {"fill": 4000})


def test_dearer_operations_take_longer():
    assert predicted_s(net(Saturating, (256, 128, 10))) > 1.3 * predicted_s(
        net(Adding, (256, 128, 10))
    )


@pytest.mark.parametrize(
    "figure, key, neuron",
    [
        ("operation_s", "tanh", Saturating), ("tile_s", "max", Largest),
        ("tile_s", "argmax", Largest), ("fold_s", "prod", Squashed), ("tile_s", "columns", Adding),
        ("tile_s", "near", Product), ("tile_s", "quotients", Product),
        ("tile_s", "tanh", Dendrite), ("tile_s", "tanh slope", Dendrite),
        ("tile_s", "squares", Metric), ("tile_s", "square columns", Metric),
        ("tile_s", "square", Spread), ("cross_s", "sum", Saturating),
        ("tile_result_s", "argmax", Largest), ("tile_result_s", "square", Spread),
    ],
)  # fmt: skip
def test_every_figure_counts_where_its_operation_is(figure, key, neuron):
    given = getattr(HERE, figure)
    more = {figure: {**given, key: 10 * given[key]}}
    network = net(neuron, (256, 128, 10))
    added = predicted_s(network, **more) - predicted_s(network)
    assert added > 0.2 * predicted_s(network)
    plain = net(horn.neurons.Standard, (256, 128, 10))
    assert predicted_s(plain, **more) - predicted_s(plain) < 0.05 * added


def test_a_maximum_and_its_place_are_two_passes():
    """Twice what one takes, not one: a figure of before counted a loop's first output only."""
    network = net(Largest, (256, 128, 10))
    once = 64 * 128 * 256 * HERE.tile_s["max"]
    assert predicted_s(network) > once + 64 * 128 * 256 * HERE.tile_s["argmax"]


def test_zeros_that_are_not_looked_for_cost_nothing():
    """A product has four passes, two of them only where it is 0."""
    network, element = net(NoisyOr, (256, 128, 10)), 64 * 128 * 256
    figures = HERE.tile_s["near"] + HERE.tile_s["quotients"]
    plain = predicted_s(net(horn.neurons.Standard, (256, 128, 10)))
    assert predicted_s(network) - plain < 1.5 * element * figures


def test_all_operations_of_the_engine_have_a_figure():
    assert set(OPS) == set(HERE.operation_s) == set(HERE.left_s)
