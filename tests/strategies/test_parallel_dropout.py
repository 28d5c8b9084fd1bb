"""Parallel dropout: its laws, an oracle in NumPy, who takes part, inference, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn import random
from horn.backends import Setup, make
from horn.errors import JobError
from horn.job import Job
from horn.partition.placement import Placement
from horn.runtime.context import TaskContext
from horn.runtime.group import Group
from horn.strategies import Topology, load
from horn.strategies.parallel_dropout import ParallelDropout
from horn.sub_models.engine import SubModels
from horn.sub_models.sub_network import CONNECTIONS, KeepGradient
from horn.transport import Transport
from tests.support.neurons import Written
from tests.transport.groups import good, run_threads

N_SAMPLES, N_STEPS, BATCH = 60, 20, 8
OPTIMIZERS = {
    "sgd": horn.SGD(0.1),
    "momentum": horn.SGD(0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": horn.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": horn.Adagrad(0.05),
    "adam": horn.Adam(0.01, clip_value=0.1),
    "clipped": horn.SGD(0.1, momentum=0.5, clip_norm=0.2, weight_decay=0.01),
}


class Traced(horn.Neuron):
    """Dropout with a learned gain and a State."""

    keep = 0.6
    gain = horn.Parameter(1.2)
    trace = horn.State(0.5)

    def forward(self, messages):
        mask = self.bernoulli(self.keep) if self.training else self.keep
        total = sum(m.input * m.weight for m in messages)
        self.trace = 0.9 * self.trace + 0.1 * total
        self.feedforward(self.activation(total) * mask * self.gain)


def a_network(hidden: tuple[int, ...] = (9, 6), neuron: type = horn.neurons.Dropout) -> Any:
    net = horn.Network(seed=5)
    net.input(7, keep=0.9)
    for size in hidden:
        net.layer(size, neuron=neuron, activation="tanh", bias=0.1)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def a_job(optimizer: Any = OPTIMIZERS["momentum"], net: Any = None, **settings: Any) -> Job:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.integers(0, 3, N_SAMPLES)
    given: dict[str, Any] = {"batch_size": BATCH, "iterations": N_STEPS, "dtype": "float64"}
    return Job(net or a_network(), (x, y), optimizer=optimizer, **{**given, **settings})


def batches(n_steps: int = N_STEPS) -> list[np.ndarray]:
    """One in the middle is short, shorter than there are sub-models in some tests."""
    sizes = [BATCH if step != 3 else 2 for step in range(n_steps)]
    return [(np.arange(n) * 7 + step) % N_SAMPLES for step, n in enumerate(sizes)]


def engines(strategy: ParallelDropout, job: Job, topology: Topology, body: Any) -> list[Any]:
    """What body(engine) is on every rank."""

    def run(transport: Transport) -> Any:
        group = Group(transport, timeout_s=60)
        where = Placement.default(job.network)
        context = TaskContext(job, topology, transport.task, where, group, threads=1)
        engine = strategy.engine(context)
        assert isinstance(engine, SubModels)
        engine.bind(job.data)
        return body(engine)

    return good(run_threads("inproc", topology.n_workers, run))


def alone(strategy: ParallelDropout, job: Job, body: Any) -> Any:
    return engines(strategy, job, Topology(), body)[0]


def trained(engine: Any, n_steps: int = N_STEPS) -> dict[str, Any]:
    losses, owns = [], []
    for k, rows in enumerate(batches(n_steps)):
        losses.append(engine.step(rows, iteration=k, first_sample=100 * k))
        if isinstance(engine, SubModels):
            owns.append((engine.own_loss, engine.own_samples))
    data = a_job().data
    return {
        "losses": np.array(losses), "outputs": engine.outputs(data.x),
        "measured": np.array(engine.losses(data)), **engine.parameters(), **engine.slots(),
        **engine.states(), "owns": owns,
    }  # fmt: skip


def same(found: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if name != "owns":
            np.testing.assert_allclose(found[name], array, rtol=rtol, atol=1e-13, err_msg=name)


# --- laws


@pytest.mark.parametrize("neuron", [horn.neurons.Dropout, Traced])
@pytest.mark.parametrize("keep", [None, 1.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_sub_model_is_one_task_with_the_whole_batch(optimizer, keep, neuron):
    job = a_job(OPTIMIZERS[optimizer], a_network(neuron=neuron))
    one = make("kernels", Setup(job.network, job.optimizer, "labels", BATCH, job.dtype, 1))
    one.bind(job.data)
    strategy = ParallelDropout(sub_models=1, keep=keep)
    expected = trained(one)
    same(alone(strategy, job, trained), expected)
    for found in engines(strategy, job, Topology(2), trained):
        same(found, expected)


class Choosing(horn.SGD):
    """An optimizer whose formula has conditions."""

    def prepared(self, g: Any, w: Any = None) -> Any:
        return max(min(g, 0.05), -0.05) if w is None or abs(w) > 0.3 else g

    def update(self, w: Any, g: Any, slots: Any, lr: Any, t: Any) -> Any:
        return super().update(w, g if t > 2 else 0.5 * g, slots, lr, t)

    def rate(self, iteration: int) -> float:
        return super().rate(iteration) / (1 + iteration)


def test_an_optimizer_that_chooses_does_so_in_a_sub_model():
    job = a_job(Choosing(0.1, momentum=0.5, clip_norm=0.2), a_network(neuron=horn.neurons.Dropout))
    one = make("kernels", Setup(job.network, job.optimizer, "labels", BATCH, job.dtype, 1))
    one.bind(job.data)
    same(alone(ParallelDropout(sub_models=1), job, trained), trained(one))


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "clipped"])
@pytest.mark.parametrize(
    "strategy",
    [
        ParallelDropout(sub_models=4),
        ParallelDropout(sub_models=4, keep=0.6, redraw=3),
        ParallelDropout(sub_models=5, dropconnect=0.7),
        ParallelDropout(sub_models=2, keep=0.5, dropconnect=0.8),
    ],
    ids=["disjoint", "overlapping", "dropconnect", "both"],
)
def test_the_answer_does_not_depend_on_how_many_processes_there_are(strategy, optimizer):
    job = a_job(OPTIMIZERS[optimizer], a_network(neuron=Traced))
    expected = alone(strategy, job, trained)
    for topology in (Topology(2, 1), Topology(1, 3), Topology(3, 1)):
        for found in engines(strategy, job, topology, trained):
            same(found, expected)
            if topology.n_groups == 1:  # its loss is that of all
                np.testing.assert_allclose([a for a, _ in found["owns"]], found["losses"])


def test_a_group_has_the_rows_of_its_sub_models():
    def rows(engine: SubModels) -> list[slice]:
        return [engine.rows_of(n) for n in (2, 7, 8)]

    strategy = ParallelDropout(sub_models=3)
    a, b = engines(strategy, a_job(), Topology(2, 1), rows)
    assert a == [slice(0, 0), slice(0, 2), slice(0, 2)]
    assert b == [slice(0, 2), slice(2, 7), slice(2, 8)]


def test_groups_report_the_losses_of_their_own_samples():
    strategy, job = ParallelDropout(sub_models=3), a_job()
    a, b = engines(strategy, job, Topology(2, 1), trained)
    for (x, n), (y, m), loss in zip(a["owns"], b["owns"], a["losses"], strict=True):
        assert n + m in (BATCH, 2)
        np.testing.assert_allclose(n * x + m * y, (n + m) * loss)


# --- an oracle: networks of live neurons in NumPy, masks over the whole


def oracle(strategy: ParallelDropout, job: Job, n_steps: int) -> dict[str, Any]:
    """The same by masks over whole arrays, and the optimizer's formula on all of them."""
    net, o = job.network, job.optimizer
    n_sub_models = strategy.n_sub_models(Topology())
    w = net.initial_parameters(np.float64)
    states = net.initial_states(np.float64)
    layers = {link.weight: (x.index, link.source.index) for x in net.layers[1:] for link in x.links}
    links = dict(layers)
    for layer in net.layers[1:]:
        for name in ("bias", *layer.parameters, *layer.states):
            layers[f"{layer.name}.{name}"] = (layer.index,)
    names = [slot for slot in o.slots if not (slot == "velocity" and not o.momentum)]
    memory = {f"{name}/{slot}": np.zeros_like(a) for name, a in w.items() for slot in names}
    losses, known = [], {}
    for t, rows in enumerate(batches(n_steps)):
        draw, n = t // strategy.redraw, len(rows)
        members = [strategy.rules(n_sub_models).members(net, x, draw) for x in net.layers]
        total = {name: np.zeros_like(a) for name, a in {**w, **states}.items()}
        count = {name: np.zeros_like(a) for name, a in total.items()}
        sum_of_losses = 0.0
        for k in range(n_sub_models):
            start, stop = n * k // n_sub_models, n * (k + 1) // n_sub_models
            if start == stop:
                continue
            live = [some[k] for some in members]
            at = {name: np.ix_(*(live[i] for i in axes)) for name, axes in layers.items()}
            masks = {name: np.ones(a[at[name]].shape) for name, a in {**w, **states}.items()}
            for name, (to, source) in links.items():
                if strategy.dropconnect < 1:
                    u = random.uniform(
                        random.key(net.seed, CONNECTIONS + to), 0, np.arange(len(live[to])),
                        np.arange(len(live[source])) + (k << 32), draw,
                    )  # fmt: skip
                    masks[name] = (u.T < strategy.dropconnect).astype(float)
            sizes = {x.name: {"size": len(some)} for x, some in zip(net.layers, live, strict=True)}
            shape = tuple(map(len, live))
            if shape not in known:
                setup = Setup(
                    net.rebuilt(changes=sizes), KeepGradient(), "labels", BATCH, "float64", 1
                )
                known[shape] = make("reference", setup)
                known[shape].bind(job.data)
            engine = known[shape]
            engine.load(
                {name: a[at[name]] * masks[name] for name, a in w.items()},
                {name: a[at[name]] for name, a in states.items()},
            )
            part = rows[start:stop]
            loss = engine.step(part, iteration=t, first_sample=100 * t + start)
            sum_of_losses += loss * len(part)
            found = {name: engine.slots()[f"{name}/gradient"] for name in w}
            for name, value in {**found, **engine.states()}.items():
                total[name][at[name]] += value * masks[name]
                count[name][at[name]] += masks[name]
        losses.append(sum_of_losses / n)
        g = {name: total[name] / np.maximum(count[name], 1) for name in total}
        for name in w:
            if o.weight_decay and name in links:
                g[name] = g[name] + o.weight_decay * w[name]
            if o.clip_value is not None:
                g[name] = np.clip(g[name], -o.clip_value, o.clip_value)
        if o.clip_norm is not None:
            norm = np.sqrt(sum((g[x][count[x] > 0] ** 2).sum() for x in w))
            if norm > o.clip_norm:
                g |= {name: g[name] * (o.clip_norm / norm) for name in w}
        for name in w:
            slots = {slot: memory.get(f"{name}/{slot}", 0.0) for slot in o.slots}
            new, kept = o.update(w[name], g[name], slots, o.rate(t), t + 1)
            live_here = count[name] > 0
            w[name] = np.where(live_here, new, w[name])
            for slot in names:
                key = f"{name}/{slot}"
                memory[key] = np.where(live_here, kept[slot], memory[key])
        for name, a in states.items():
            states[name] = np.where(count[name] > 0, g[name], a)
    rules = strategy.rules(n_sub_models)
    rates = {link.weight: rules.rate(link) for x in net.layers[1:] for link in x.links}
    scaled = {name: a * rates.get(name, 1.0) for name, a in w.items()}
    return {"losses": np.array(losses), **scaled, **memory, **states}


@settings(max_examples=25, deadline=None)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    n_sub_models=st.integers(1, 5),
    keep=st.sampled_from([None, None, 0.3, 0.5, 1.0]),
    redraw=st.integers(1, 3),
    dropconnect=st.sampled_from([1.0, 1.0, 0.6]),
    hidden=st.lists(st.integers(5, 9), min_size=1, max_size=3).map(tuple),
    neuron=st.sampled_from([horn.neurons.Standard, horn.neurons.Dropout, Traced]),
    masks=st.booleans(),
)
def test_sub_models_are_masks_over_the_network(
    optimizer, n_sub_models, keep, redraw, dropconnect, hidden, neuron, masks
):
    job = a_job(OPTIMIZERS[optimizer], a_network(hidden, neuron))
    strategy = ParallelDropout(n_sub_models, keep, redraw, dropconnect)
    expected = oracle(strategy, job, 5)
    can = keep is not None and dropconnect == 1.0 and neuron is horn.neurons.Standard
    found = trained_with(masks, strategy, job, expects=masks and can)
    same({name: found[name] for name in expected}, expected, rtol=1e-9)


def trained_with(masks: bool, strategy: ParallelDropout, job: Job, expects: bool) -> dict[str, Any]:
    """As if masks were faster than small networks, or slower. expects : whether there are masks."""

    def body(engine: SubModels) -> dict[str, Any]:
        assert (engine.masked is not None) == expects
        return trained(engine, 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("horn.sub_models.engine.is_faster", lambda *_: masks)
        return alone(strategy, job, body)


class Numbered(horn.Neuron):
    """Neurons differ by their place in the layer."""

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(total) * (1.0 + 0.1 * self.index))


LOSSES = {
    "labels": ("softmax", "cross_entropy"),
    "one number": ("identity", "squared_error"),
    "yes or no": ("sigmoid", "binary_cross_entropy"),
    "values": ("softmax", "squared_error"),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
def test_masks_and_small_networks_do_the_same(loss, dtype):
    n_out = 1 if loss in ("one number", "yes or no") else 3
    net = horn.Network(seed=4)
    first = net.input(7, keep=0.8)
    below = net.layer(9, neuron=Numbered, activation="relu")
    above = net.layer(8, inputs=[first, below], activation="sigmoid", bias=0.1)
    net.output(n_out, inputs=[above, below], activation=LOSSES[loss][0], loss=LOSSES[loss][1])
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N_SAMPLES, 7)), rng.integers(0, 2, (N_SAMPLES, n_out)).astype(float)
    if loss == "labels":
        y = rng.integers(0, 3, N_SAMPLES)
    job = Job(net, (x, y), optimizer=OPTIMIZERS["momentum"], batch_size=BATCH, iterations=5,
              dtype=dtype)  # fmt: skip
    strategy = ParallelDropout(sub_models=3, keep=0.6)
    small = trained_with(False, strategy, job, expects=False)
    assert small["losses"].any()
    found = trained_with(True, strategy, job, expects=True)
    np.testing.assert_allclose(found["owns"], small["owns"], rtol=1e-5)
    same(found, small, 1e-9 if dtype == "float64" else 2e-4)


def test_masks_are_used_where_nothing_else_changes_and_they_are_faster():
    def is_masked(strategy: ParallelDropout, net: Any, batch: int) -> bool:
        job = a_job(net=net, batch_size=batch)
        return alone(strategy, job, lambda engine: engine.masked is not None)

    def network(**layer: Any) -> Any:
        net = horn.Network(seed=4)
        net.input(7)
        net.layer(30, **layer)
        net.layer(30, activation="relu")
        net.output(3, activation="softmax", loss="cross_entropy")
        return net

    many = ParallelDropout(20, keep=0.5)
    assert is_masked(many, network(), 40)
    assert not is_masked(ParallelDropout(2, keep=0.5), network(), 50)
    assert not is_masked(ParallelDropout(20), network(), 40)  # disjoint
    assert not is_masked(ParallelDropout(20, keep=0.5, dropconnect=0.5), network(), 40)
    others: list[dict[str, Any]] = [{"neuron": n} for n in (Traced, horn.Dropout, Written)]
    for other in others:
        assert not is_masked(many, network(**other), 40), other


def test_a_link_past_the_hidden_layers_is_in_every_sub_model():
    net = horn.Network(seed=2)
    first = net.input(7)
    hidden = net.layer(6, activation="tanh")
    net.output(3, inputs=[first, hidden], activation="softmax", loss="cross_entropy")
    job, strategy = a_job(net=net), ParallelDropout(sub_models=3)
    expected = oracle(strategy, job, 5)
    found = alone(strategy, job, lambda engine: trained(engine, 5))
    same({name: found[name] for name in expected}, expected, rtol=1e-9)
    assert strategy.rules(3).rate(net.last.links[0]) == 1.0
    assert strategy.rules(3).rate(net.last.links[1]) == 1 / 3


def test_neurons_know_their_number_in_the_whole_network():
    net = horn.Network(seed=2)
    net.input(2)
    net.layer(4, neuron=Numbered)
    net.output(1, loss="squared_error")
    x, y = np.ones((2, 2)), np.zeros((2, 1))
    job = Job(net, (x, y), optimizer=horn.SGD(0.0), batch_size=2, dtype="float64")
    w1, w2 = (net.initial_parameters(np.float64)[f"layer{k}.weight"] for k in (1, 2))
    strategy = ParallelDropout(sub_models=2)

    def losses(engine: SubModels) -> np.ndarray:
        engine.step(np.arange(2), iteration=0, first_sample=0)
        return engine.losses_of.copy()

    found = alone(strategy, job, losses)
    for k, live in enumerate(strategy.rules(2).members(net, net.layers[1], 0)):
        y = (w1[live].sum(axis=1) * (1 + 0.1 * live)) @ w2[0, live]
        one = make("reference", Setup(net, None, "labels", 2, "float64", 1))
        scale = (
            one.losses(job.data)[0] / (one.outputs(x) ** 2).sum()
        )  # 1/2 or 1, as the loss has it
        np.testing.assert_allclose(found[k], scale * y**2)


# --- who takes part


@settings(deadline=None)
@given(
    size=st.integers(1, 60), n_sub_models=st.integers(1, 12), draw=st.integers(0, 2**40),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_disjoint_sub_models_divide_every_hidden_layer(size, n_sub_models, draw, seed):
    net = horn.Network(seed)
    net.input(3)
    net.layer(size)
    net.output(2, loss="squared_error")
    strategy = ParallelDropout(n_sub_models)
    found = strategy.rules(n_sub_models).members(net, net.layers[1], draw)
    assert sorted(np.concatenate(found).tolist()) == list(range(size))
    assert [len(some) for some in found] == strategy.rules(n_sub_models).sizes(size)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert all((np.diff(some) > 0).all() for some in found)
    ends = strategy.rules(n_sub_models).members(net, net.last, draw)
    assert all(some.tolist() == [0, 1] for some in ends)


def test_overlapping_sub_models_draw_for_themselves():
    net, strategy = a_network((40,)), ParallelDropout(3, keep=0.5)
    for draw in range(5):
        found = strategy.rules(3).members(net, net.layers[1], draw)
        assert [len(some) for some in found] == [20] * 3
        assert len({some.tobytes() for some in found}) == 3


def test_every_neuron_takes_part_as_often_as_the_rate_says():
    net, strategy = a_network((30,)), ParallelDropout(3)
    often = np.zeros(30)
    for draw in range(600):
        often[strategy.rules(3).members(net, net.layers[1], draw)[1]] += 1
    assert abs(often / 600 - 1 / 3).max() < 0.08  # four standard deviations


def test_sub_models_are_drawn_anew_every_so_many_batches():
    net = a_network()
    drawn = []

    def body(engine: SubModels) -> None:
        for k, rows in enumerate(batches(7)):
            engine.step(rows, iteration=k, first_sample=0)
            drawn.append(engine.members[0][1].tobytes())

    alone(ParallelDropout(3, redraw=3), a_job(net=net), body)
    assert drawn[0] == drawn[1] == drawn[2] != drawn[3] == drawn[4] == drawn[5] != drawn[6]


@pytest.mark.parametrize("keep", [None, 0.3])
def test_what_nobody_had_is_not_touched(keep):
    """Neither weights nor what the optimizer remembers: overlapping sub-models leave some neurons
    out, disjoint ones the connections between them.
    """
    job = a_job(horn.Adam(0.01, weight_decay=0.1))
    strategy = ParallelDropout(2, keep=keep)
    net = job.network

    def body(engine: SubModels) -> None:
        engine.step(batches()[0], iteration=0, first_sample=0)
        before = {**engine.parent.learned, **engine.parent.slots}
        before = {name: array.copy() for name, array in before.items()}
        engine.step(batches()[1], iteration=1, first_sample=8)
        members = [strategy.rules(2).members(net, x, 1) for x in net.layers]
        here = np.zeros((6, 9), bool)
        for k in range(2):
            here[np.ix_(members[2][k], members[1][k])] = True
        assert not here.all()
        for name, old in before.items():
            if name.startswith("layer2.weight"):
                new = {**engine.parent.learned, **engine.parent.slots}[name]
                assert ((new != old) == here).all(), name

    alone(strategy, job, body)


# --- what it costs


def test_k_disjoint_sub_models_have_a_kth_squared_of_the_weights_between_hidden_layers():
    job = a_job(net=a_network((16, 32)))
    for n in (2, 4):
        smalls, sent = alone(ParallelDropout(n), job, lambda e: (e.smalls, e.n_sent))
        assert len({id(small) for small in smalls}) == 1  # one shape
        n_weights = {name: array.size for name, array in smalls[0].gradients.items()}
        assert n_weights == {
            "layer1.weight": 7 * 16 // n, "layer1.bias": 16 // n,
            "layer2.weight": 16 * 32 // n**2, "layer2.bias": 32 // n,
            "layer3.weight": 32 * 3 // n, "layer3.bias": 3,
        }  # fmt: skip
        assert sent == [sum(n_weights.values())] * n


def test_only_what_is_live_travels():
    job, strategy = a_job(net=a_network((16, 32))), ParallelDropout(4)

    def body(engine: SubModels) -> tuple[int, int]:
        engine.step(batches()[0], iteration=0, first_sample=0)
        return engine.group.spent.sent_bytes, sum(engine.n_sent[:2])

    for n_bytes, numbers in engines(strategy, job, Topology(2, 1), body):
        assert n_bytes == 8 * numbers + 8 * 2  # float64, and two losses


# --- inference


def test_in_inference_hidden_outputs_count_by_how_often_they_took_part():
    """By hand: relu, weights 1, 2, 3, 4 on an input of 1, all outputs summed, a bias of 5."""
    net = horn.Network(seed=0)
    net.input(1)
    net.layer(4, activation="relu", bias=False)
    net.output(1, init=1.0, bias=5.0, loss="squared_error")
    x, y = np.ones((8, 1)), np.zeros((8, 1))
    job = Job(net, (x, y), optimizer=horn.SGD(0.0), batch_size=8, dtype="float64")
    w = {"layer1.weight": np.array([[1.0], [2.0], [3.0], [4.0]]), "layer2.weight": np.ones((1, 4))}

    def answer(strategy: ParallelDropout) -> float:
        def body(engine: SubModels) -> Any:
            engine.parent.learned["layer1.weight"][...] = w["layer1.weight"]
            engine.step(np.arange(8), iteration=0, first_sample=0)
            model = horn.Model(net, engine.parameters(), dtype="float64")
            assert model.predict(x)[0, 0] == engine.outputs(x)[0, 0]
            return engine.outputs(x)[0, 0]

        return alone(strategy, job, body)

    assert answer(ParallelDropout(1)) == 15.0
    assert answer(ParallelDropout(4)) == 5 + 10 / 4
    assert answer(ParallelDropout(4, keep=0.5)) == 5 + 10 / 2
    assert answer(ParallelDropout(2, keep=0.6)) == 5 + 10 / 2  # two of four
    np.testing.assert_allclose(answer(ParallelDropout(4, dropconnect=0.5)), 5 + 10 / 16)


def test_the_model_is_an_ordinary_one(tmp_path: Path):
    job = a_job()

    def body(engine: SubModels) -> tuple[Any, ...]:
        trained(engine)
        return engine.parameters(), engine.losses(job.data), engine.outputs(job.data.x)

    parameters, (loss, right), outputs = alone(ParallelDropout(3), job, body)
    horn.Model(job.network, parameters, dtype="float64").save(tmp_path / "a.horn")
    model = horn.Model.load(tmp_path / "a.horn")
    np.testing.assert_allclose(model.predict(job.data.x), outputs, rtol=1e-12)
    found = model.evaluate(job.data)
    np.testing.assert_allclose([found["loss"], found["acc"]], np.array([loss, right]) / N_SAMPLES)


def test_what_was_handed_out_can_be_loaded_and_trained_on():
    job, strategy = a_job(net=a_network(neuron=Traced)), ParallelDropout(3)
    expected = alone(strategy, job, trained)

    def halves(engine: SubModels) -> dict[str, Any]:
        for k, rows in enumerate(batches()[:10]):
            engine.step(rows, iteration=k, first_sample=100 * k)
        kept = engine.parameters(), engine.states(), engine.slots(), 10
        engine.step(batches()[10], iteration=10, first_sample=1)  # leads elsewhere
        engine.load(*kept)
        for name, array in {**engine.parameters(), **engine.states()}.items():
            assert array.tobytes() == {**kept[0], **kept[1]}[name].tobytes(), name  # to the bit
        assert engine.views()["parameter"].keys() == kept[0].keys()
        losses = [
            engine.step(rows, iteration=k, first_sample=100 * k)
            for k, rows in list(enumerate(batches()))[10:]
        ]
        return {**engine.parameters(), **engine.states(), **engine.slots(), "losses": losses}

    found = alone(strategy, job, halves)
    expected["losses"] = expected["losses"][10:]
    same(found, {name: expected[name] for name in found})
    with pytest.raises(horn.ModelError, match="no array 'elsewhere'"):
        alone(strategy, job, lambda e: e.load({}, slots={"elsewhere": np.zeros(1)}))


def test_it_has_every_array_whole():
    def body(engine: SubModels) -> None:
        engine.settle()
        engine.conclude()
        assert engine.decide_end(1, True) and not engine.decide_end(1, False)
        assert engine.places("layer1.weight") == (slice(0, 9), slice(0, 7))
        assert engine.places("layer2.bias/velocity") == (slice(0, 6),)
        with pytest.raises(JobError, match="no probes"):
            engine.probe(np.arange(2), iteration=0, first_sample=0)

    alone(ParallelDropout(3), a_job(), body)


# --- what is refused


class Largest(horn.Neuron):
    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Remembering(horn.Neuron):
    """Its next output is no function of its weighted sum."""

    squares = horn.State(0.0)

    def forward(self, messages):
        before = self.squares
        self.squares = sum(m.input * m.input for m in messages)
        self.feedforward(sum(m.input * m.weight for m in messages) + before)


class Counting(horn.Neuron):
    def forward(self, messages):
        n = 0.0
        total = 0.0
        for m in messages:
            total += m.input * m.weight
            n += 1.0
        self.feedforward(total / n)


class Once(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(total * self.uniform(0.5, 1.5, per="run"))


@horn.interpreted
class Slow(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))


class PushingOnce(Written):
    """A push that draws for the whole run: by its number in the sub-model, it drew as another."""

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output * self.uniform(0.5, 1.5, per="run"))
        self.backpropagate(error * self.activation.derivative(self.output))


class PushingByFixedNumbers(Written):
    """The same of each synapse."""

    def backward(self, messages):
        error = 0.0
        for m in messages:
            error += m.delta * m.weight
            self.push(m.delta * self.output * m.uniform(0.5, 1.5))
        self.backpropagate(error * self.activation.derivative(self.output))


def with_layer(neuron: type = horn.neurons.Standard, per: str = "sample", **layer: Any) -> Any:
    net = horn.Network(seed=1)
    net.input(7, keep=0.9, per=per)
    net.layer(6, neuron=neuron, **layer)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def flat() -> Any:
    net = horn.Network(seed=1)
    net.input(7)
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def of_two_inputs() -> Any:
    net = horn.Network(seed=1)
    first, second = net.input(4, name="first"), net.input(3, name="second")
    net.layer(6, inputs=[first, second])
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


@pytest.mark.parametrize(
    ("strategy", "job", "said"),
    [
        (ParallelDropout(2), {"net": flat()}, "no hidden layer"),
        (ParallelDropout(2), {"net": of_two_inputs()}, r"inputs \(4 of first \+ 3 of second\)"),
        (ParallelDropout(7), {"net": with_layer()}, "7 disjoint sub-models cannot divide the 6"),
        (ParallelDropout(9), {}, "9 sub-models need as many samples in every batch, but it has 8"),
        (ParallelDropout(2, keep=0.05), {"net": with_layer()}, "leaves none of the 6 neurons"),
        (ParallelDropout(2), {"optimizer": horn.Direct()}, "but Direct tells what neurons push"),
        (ParallelDropout(2), {"net": with_layer(connect=horn.Sparse(fan_in=2))}, "sparse"),
        (ParallelDropout(2), {"net": with_layer(Slow)}, "is interpreted"),
        (ParallelDropout(2), {"net": with_layer(Largest)}, "more than a function of sum"),
        (ParallelDropout(2), {"net": with_layer(Remembering)}, "more than a function of sum"),
        (ParallelDropout(2), {"net": with_layer(Counting)}, "counts its messages"),
        (ParallelDropout(2), {"net": with_layer(Once)}, "draws for the whole run"),
        (ParallelDropout(2), {"net": with_layer(PushingOnce)}, "draws for the whole run"),
        (ParallelDropout(2), {"net": with_layer(PushingByFixedNumbers)}, "draws for the whole run"),
        (ParallelDropout(2), {"net": with_layer(activation="softmax")}, "which mixes its neurons"),
        (ParallelDropout(2), {"net": with_layer(horn.neurons.BatchDropout)}, "draws per batch who"),
        (ParallelDropout(2), {"net": with_layer(per="batch")}, "the input draws per batch"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(strategy, job, said):
    with pytest.raises(JobError, match=said):
        strategy.check(a_job(**job), Topology(2))


def test_servers_and_other_backends_are_refused():
    with pytest.raises(JobError, match="has no servers"):
        ParallelDropout().check(a_job(), Topology(2, 1, 1))
    context = TaskContext(a_job(), Topology(), 0, Placement(), None, backend="reference")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="runs on backend=kernels"):
        ParallelDropout().engine(context)


@pytest.mark.parametrize(
    "settings",
    [{"sub_models": 0}, {"redraw": 1.5}, {"keep": 0.0}, {"keep": 2}, {"dropconnect": -1.0}],
)
def test_settings_are_checked(settings):
    with pytest.raises(JobError, match=next(iter(settings))):
        ParallelDropout(**settings)


def test_it_is_found_by_name():
    assert load("parallel-dropout") is ParallelDropout
    assert ParallelDropout().n_sub_models(Topology(4, 2)) == 8


def test_an_engine_that_is_bound_again_has_its_masks():
    strategy = ParallelDropout(20, keep=0.5)
    job = a_job(net=a_network(neuron=horn.neurons.Standard), batch_size=40)
    rows = np.arange(40)

    def body(engine: SubModels) -> tuple[float, float]:
        assert engine.masked is not None
        kept = {k: {n: a.copy() for n, a in v.items()} for k, v in engine.memory().items()}
        first = engine.step(rows, iteration=0, first_sample=0)
        engine.bind(job.data)
        engine.recall(kept, 0)
        return first, engine.step(rows, iteration=0, first_sample=0)

    first, again = alone(strategy, job, body)
    assert first == again


def test_the_loss_of_a_sub_model_without_samples_is_not_that_of_an_earlier_batch():
    def two_batches(engine):
        engine.step(np.arange(BATCH), iteration=0, first_sample=0)
        engine.losses_of[0] = np.inf
        return engine.step(np.arange(2), iteration=1, first_sample=BATCH), engine.own_loss

    found = alone(ParallelDropout(5, keep=0.6), a_job(), two_batches)
    assert np.isfinite(found).all()
