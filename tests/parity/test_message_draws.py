"""Draws inside the loop over messages: one per message, whoever makes it (docs/notes/0117)."""

import numpy as np
import pytest

import horn
from horn import explain, math, random
from horn._kernels.engine import Drawn, Ragged, Tape, View
from horn.backends import Setup, make
from horn.compiler import lower
from horn.errors import CompileError
from horn.partition.placement import Placement
from tests.language import texts
from tests.parity.test_compiled_equals_interpreted import COMPILED, compare, samples
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import labelled, of_group, of_one, steps
from tests.support.combinations import share
from tests.transport.groups import good


class PerSample(horn.Neuron):
    keep = 0.6

    def forward(self, messages):
        total = 0.0
        for m in messages:
            mask = self.bernoulli(self.keep) if self.training else self.keep
            total += m.input * m.weight * mask
        self.feedforward(self.activation(total))


class PerBatch(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight * self.bernoulli(0.5, per="batch") for m in messages)
        self.feedforward(self.activation(total))


class PerRun(horn.Neuron):
    def forward(self, messages):
        far = sum(abs(m.input - m.weight) * self.uniform(0.5, 1.5, per="run") for m in messages)
        self.feedforward(self.activation(1.0 - 0.1 * far))


class Loudest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(math.tanh(max(m.input * m.weight + self.normal(0, 0.3) for m in messages)))


class Backward(horn.Neuron):
    """Draws for its outgoing synapses."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        error = 0.0
        for m in messages:
            kept = self.bernoulli(0.7)
            error += m.delta * m.weight * kept
            self.push(m.delta * self.output * kept)
        self.backpropagate(error * self.activation.derivative(self.output))


class Local(horn.Neuron):
    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(y * (m.input - y * m.weight) * self.bernoulli(0.5))
        self.feedforward(y)


CLASSES = [PerSample, PerBatch, PerRun, Loudest, Backward, Local]


def network(neuron, connect=None, bias=True, size=5):
    net = horn.Network(seed=3)
    x = net.input(7)
    hidden = net.layer(11, activation="tanh")
    net.layer(
        size, neuron=neuron, inputs=[x, hidden], connect=connect, activation="tanh", bias=bias
    )
    net.layer(4, neuron=neuron, activation="tanh", bias=bias)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("neuron, connect", share(2, CLASSES, [None, horn.Sparse(fan_in=3)]))
def test_a_compiled_draw_is_the_interpreters(neuron, connect, bias):
    compare(network(neuron, connect, bias), horn.SGD(0.1), 5)


@pytest.mark.parametrize(
    "neuron",
    [pytest.param(c, marks=() if k < 2 else pytest.mark.slow) for k, c in enumerate(CLASSES)],
)
def test_wide_layers_and_dropout_per_batch_below_and_above(neuron):
    net = horn.Network(seed=5)
    net.input(150, keep=0.8, per="batch")
    net.layer(9, neuron=horn.neurons.Dropout)
    net.layer(37, neuron=neuron, activation="tanh")
    net.output(3, neuron=neuron, activation="tanh", loss="squared_error")
    compare(net, horn.SGD(0.1), 3, steps=1)


@pytest.mark.parametrize(
    "neuron, connect, where",
    share(
        3,
        [PerSample, PerBatch, Loudest, Backward],
        [None, horn.Sparse(fan_in=3)],
        ["receiver", "sender", "replicated"],
    ),
)
def test_tasks_and_groups_draw_what_one_task_draws(neuron, connect, where):
    if (neuron, where) == (Loudest, "sender"):
        pytest.skip("whose senders are with several tasks: refused, as any gradient of a maximum")
    net = network(neuron, connect, size=13)
    setup = Setup(net, horn.SGD(0.1), "labels", 6, "float64", 1)
    data, batches = labelled(net), steps(6, 3)
    links = {(k.index, p): where for k in net.layers for p in range(len(k.links))}
    placement = Placement(links, {k.index: "neurons" for k in net.layers})
    one = of_one("kernels", setup, data, batches)
    for backend in ("reference", "kernels"):
        tasks = of_group(backend, setup, data, batches, placement, 3)
        compare_tasks(good(tasks), one, f"{backend}, tasks")
    groups = of_groups("kernels", setup, data, batches, placement, 2, 2)
    compare_tasks(good(groups), one, "groups")


class Shows(horn.Neuron):
    """Its output names every draw of its messages: the n-th is in the n-th place of base 2."""

    def forward(self, messages):
        self.feedforward(sum(2.0**m.index * self.bernoulli(0.5) for m in messages))


def test_every_message_of_every_sample_and_step_has_a_draw_of_its_own():
    net = horn.Network(seed=2)
    net.input(9)
    net.layer(6, neuron=Shows)
    net.output(2, activation="softmax", loss="cross_entropy")
    data = samples(net)
    engine = make("kernels", Setup(net, horn.SGD(0.1), "labels", 12, "float64", 1))
    engine.bind(data)
    rows = np.arange(12)
    found = [
        engine.probe(rows, iteration=k, first_sample=12 * k)["layer1.output"] for k in range(2)
    ]
    assert len(np.unique(found)) > 120  # of 144 numbers below 1024: 10 messages each
    bits = [int(v) >> k & 1 for v in np.ravel(found) for k in range(10)]
    assert 0.45 < np.mean(bits) < 0.55


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_engines_numbers_are_those_of_horn_random(kind, dtype):
    """Rows that begin and end within a block, whole strips, a layer of few sources."""

    for n_o, n_i, n_b in ((5, 3, 4), (3, 67, 2), (2, 700, 3), (17, 8, 1)):
        tape = Tape(dtype)
        iteration = tape.dim(9)
        keys = random.receiver_keys(random.key(1, 2), np.arange(n_o), 1)
        sources = np.arange(5, 5 + n_i)
        rows = np.arange(n_b, dtype=np.uint64) + np.uint64(2**40)
        out = np.zeros((n_b, n_o, n_i), dtype)
        view = Drawn(kind, 77, "boi", keys.astype(np.uint32), sources, rows, iteration)
        tape.loop({"b": n_b, "o": n_o, "i": n_i}, [view], [], [(View(out, "boi"), 0)])
        tape.run()
        expected = random.of_messages(kind, keys[:, None], 77, sources, rows.reshape(-1, 1, 1), 9)
        tolerance = 0 if kind == "uniform" else (1e-6 if dtype == "float32" else 1e-12)
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_draws_of_edges_are_those_of_horn_random(kind, dtype):
    """Edges that share a counter and edges that do not, in any order, by few samples and by many;
    samples side by side and edges side by side, whose rows are one axis; numbers of a batch.
    """
    rng = np.random.default_rng(1)
    for n_o, fan_in, n_b in ((3, 1, 1), (1, 1, 9), (9, 30, 1), (5, 67, 3), (40, 5, 15), (6, 9, 70)):
        indptr = np.arange(n_o + 1) * fan_in
        of = np.repeat(np.arange(n_o), fan_in)
        keys = random.receiver_keys(random.key(1, 2), np.arange(n_o), 1)[of]
        sources = np.sort(
            rng.permuted(np.tile(np.arange(2 * fan_in), (n_o, 1)), axis=1)[:, :fan_in]
        )
        sources = sources.ravel()
        rows = rng.permutation(n_b).astype(np.uint64) + np.uint64(2**33 - 3)
        for numbers in (rows, None):
            seen = rows if numbers is not None else np.full(n_b, random.SHARED, np.uint64)
            expected = random.of_messages(kind, keys, 77, sources, seen[:, None], 9).T
            for axes, order in (("eb", None), ("be", None), ("eb", rng.permutation(len(of)))):
                tape = Tape(dtype)
                index = {} if order is None else {"e": order.astype(np.int32)}
                view = Drawn(
                    kind, 77, "e" if numbers is None else "be", keys.astype(np.uint32), sources,
                    numbers, tape.dim(9), index,
                )  # fmt: skip
                extents = {"e": len(of), "b": n_b}
                out = np.zeros([extents[a] for a in axes], dtype)
                summed = np.zeros((n_o, n_b), dtype)
                tape.loop(extents, [view], [], [(View(out, axes), 0)])
                tape.loop(
                    {"o": n_o, "e": Ragged(indptr, "o"), "b": n_b}, [view], [],
                    [(View(summed, "ob"), 0)], reduce=("sum", "e"),
                )  # fmt: skip
                tape.run()
                want = expected if order is None else expected[order]
                tolerance = 0 if kind == "uniform" else (1e-6 if dtype == "float32" else 1e-12)
                got = out if axes == "eb" else out.T
                np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
                sums = want.reshape(n_o, fan_in, n_b).sum(1)
                np.testing.assert_allclose(summed, sums, rtol=1e-5, atol=1e-5)


def test_nothing_of_the_size_of_all_messages_is_stored():
    net = network(PerSample)
    program = lower.training_program(net, horn.SGD(0.1), "label")
    assert all(len(buffer.axes) < 3 for buffer in program.buffers.values())
    assert explain.runs_as(net)["layer2"] == "fused loop (draws inside)"
    assert explain.runs_as(network(PerBatch))["layer2"] == "matrix products"
    net = horn.Network(seed=3)
    net.input(7)
    net.layer(11, neuron=PerBatch, activation="relu")  # whose slope is 0 in places
    net.output(3, activation="softmax", loss="cross_entropy")
    assert explain.runs_as(net)["layer1"] == "matrix products"


# Two places of draws in a method that have one number, of 32,768.
LIKE = ((4, 8), (7, 50))


def draws_at(*places):
    """A forward that draws for its synapses at these lines and columns, counted as sites are."""
    lines, sums = ["    def forward(self, messages):"], []
    for line, column in places:
        name = f"sum{line}"
        lines += [""] * (line - len(lines) - 1)
        lines += [f"        {name} = sum(m.weight * (", " " * column + "m.normal(0.0, 1.0)"]
        lines += ["        ) for m in messages)"]
        sums.append(name)
    return "\n".join([*lines, f"        self.feedforward({' - '.join(sums)})"])


@pytest.mark.parametrize("backend", ["python", *COMPILED])
def test_two_draws_of_a_synapse_that_would_be_one_number_are_refused(backend, tmp_path):
    assert len({random.site([("forward", *place)]) for place in LIKE}) == 1
    text = f"{texts.HEADER}class N(horn.Neuron):\n{draws_at(*LIKE)}\n"
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, neuron=texts.module(tmp_path, text).N)
    net.output(2, loss="squared_error")
    with pytest.raises(CompileError, match="write it on another line"):
        engine = make(backend, Setup(net, horn.SGD(0.1), "labels", 3, "float64", 1))
        engine.bind(samples(net))
        engine.step(np.arange(3), iteration=0, first_sample=0)


def test_one_draw_of_a_synapse_may_be_made_again():
    class Again(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.noisy(messages) + self.noisy(messages))

        def noisy(self, messages):
            total = 0.0
            for _ in range(2):
                total += sum(m.input * m.normal(0.0, 1.0) for m in messages)
            return total

    net = horn.Network(seed=1)
    net.input(3)
    net.layer(2, neuron=Again)
    net.output(2, loss="squared_error")
    compare(net, horn.SGD(0.1), 3)
