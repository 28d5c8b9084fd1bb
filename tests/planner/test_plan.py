"""The choice of a placement, and what a plan says."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.backends._edge_lists import EdgeLists
from horn.errors import CompileError, JobError, ModelError
from horn.partition.rewrite import partition
from horn.partition.share import Share
from horn.planner import plan
from horn.planner.assumptions import Assumption
from horn.planner.machine import Machine
from horn.planner.search import Search
from horn.scheduling.choices import choose_threads, least_rows
from tests.support.neurons import MaxPool

HERE = Machine(n_cores=64)


def job(net: horn.Network, batch: int = 20, **settings) -> horn.Job:
    rng = np.random.default_rng(0)
    data = (rng.random((40, net.n_inputs)), rng.integers(0, net.last.size, 40))
    return horn.Job(net, data=data, optimizer=horn.SGD(0.1, momentum=0.9), batch_size=batch,
                    **settings)  # fmt: skip


def chain(*sizes: int, **how) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(sizes[0])
    for size in sizes[1:-1]:
        net.layer(size, activation="relu", **how)
    net.output(sizes[-1], activation="softmax", loss="cross_entropy")
    return net


def joined() -> horn.Network:
    """Two paths, one of them sparse, meet."""
    net = horn.Network(seed=1)
    x = net.input(30, keep=0.8)
    a = net.layer(20, activation="relu", inputs=[x])
    b = net.layer(25, activation="tanh", inputs=[x], connect=horn.Sparse(fan_in=4))
    net.output(5, activation="softmax", loss="cross_entropy", inputs=[a, b])
    return net


class Loudest(horn.Neuron):
    """Whose choice among its messages is no monoid."""

    def forward(self, messages):
        self.feedforward(max(m.input * m.weight for m in messages))


class Nearest(horn.Neuron):
    """Whose windows run in patches, or synapse by synapse where tasks divide its layer."""

    def forward(self, messages):
        self.feedforward(min((m.input - m.weight) ** 2 for m in messages))


def windows(neuron: type[horn.Neuron] | None = None) -> horn.Network:
    net = horn.Network(seed=1)
    net.input((6, 6, 2))
    how = {"activation": "relu"} if neuron is None else {"neuron": neuron}
    net.layer(connect=horn.Convolution(4, 3, padding="same"), **how)
    net.layer(connect=horn.Window(2, stride=2), neuron=MaxPool)
    net.output(4, activation="softmax", loss="cross_entropy")
    return net


NETS = {
    "chain": lambda: chain(784, 512, 512, 10),
    "joined": joined,
    "max": lambda: chain(12, 8, 3, neuron=Loudest),
    "sparse": lambda: chain(64, 40, 8, connect=horn.Sparse(fan_in=5)),
    "windows": windows,
    "patches": lambda: windows(Nearest),
}


@pytest.mark.parametrize("name", NETS)
def test_remembered_programs_are_the_partitioned_ones(name):
    search = plan.search(job(NETS[name]()), 3, machine=HERE)
    rng = random.Random(1)
    n_legal = 0
    for _ in range(40):
        choice = tuple(rng.choice(options) for options in search.options)
        try:
            plain = partition(search.program, search.placement(choice), [search.program.loss])
        except CompileError:
            with pytest.raises(CompileError):
                search.program_of(choice)
            continue
        found = search.program_of(choice)
        n_legal += 1
        assert found.statements == plain.statements and found.prologue == plain.prologue
        assert found.buffers == plain.buffers
    assert n_legal


@given(
    st.lists(st.integers(2, 900), min_size=3, max_size=3),
    st.sampled_from([2, 3, 8]),
    st.sampled_from([1, 20, 300]),
    st.sampled_from(["", "latency=1us,bandwidth=100GB", "latency=1ms,bandwidth=100Mbit"]),
)
@settings(deadline=None, max_examples=8)
def test_descent_finds_nearly_the_best_of_all(sizes, n_tasks, batch, assumed):
    machine = HERE
    if assumed:
        machine = Assumption.parse(assumed).machine(HERE, n_tasks, "shm")
    described = job(chain(*sizes), batch)
    search = plan.search(described, n_tasks, machine=machine)
    end = search.best_by_descent()
    best = min(search.seconds(choice) for choice in itertools.product(*search.options))
    assert search.seconds(end) <= 1.03 * best


@pytest.mark.parametrize("name", NETS)
def test_the_same_job_gets_the_same_placement(name):
    first, second = (plan.cheapest(job(NETS[name]()), 2, machine=HERE) for _ in range(2))
    assert first == second


def test_few_placements_are_tried_for_a_deep_network():
    """At a millisecond or two each: well below half a second."""
    search = plan.search(job(chain(784, 500, 400, 300, 200, 100, 10)), 2, machine=HERE)
    search.run()
    assert len(search.least_s) < 250


def test_a_very_deep_network_gets_the_best_of_those_that_there_is_time_for(monkeypatch):
    described = job(chain(*[8] * 20))
    monkeypatch.setattr("horn.planner.search.MAX_STATEMENTS", 4000)
    search = plan.search(described, 2, machine=HERE)
    starts = set(search.starts())
    most = len(starts) + 4000 // len(search.program.statements)
    found, _ = search.run()
    assert len(starts) < len(search.least_s) < most
    best = next(choice for choice in search.costed if search.placement(choice) == found)
    assert search.seconds(best) <= min(map(search.seconds, starts))


def follow_all(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.costs, "least_s", lambda program, limit: 0.0)
    monkeypatch.setattr(search.costs, "further_s", lambda program: 0.0)


@pytest.mark.parametrize("name", [*NETS, "tiny", "deep"])
@pytest.mark.parametrize(("n_tasks", "assumed"), [(2, ""), (3, "latency=1ms,bandwidth=100Mbit")])
def test_placements_that_are_not_followed_would_not_have_been_taken(
    name, n_tasks, assumed, monkeypatch
):
    """The same trials and the same end as of a search that follows all of them."""
    net = NETS[name]() if name in NETS else chain(*[16] * 12) if name == "deep" else chain(4, 8, 3)
    machine = Assumption.parse(assumed).machine(HERE, n_tasks, "shm") if assumed else HERE
    search, whole = (plan.search(job(net), n_tasks, machine=machine) for _ in range(2))
    follow_all(whole, monkeypatch)
    assert search.run() == whole.run()
    assert list(search.least_s) == list(whole.least_s) == list(whole.costed)
    assert all(least <= whole.seconds(choice) for choice, least in search.least_s.items())
    assert set(search.costed) <= set(whole.costed)


def test_few_placements_of_a_small_network_are_followed():
    """Every run on several tasks searches: it took longer than the training of a small network."""
    search = plan.search(job(chain(4, 8, 3)), 2, machine=HERE)
    search.run()
    assert len(search.least_s) == 81 and len(search.costed) < 16


def test_few_placements_of_a_network_with_windows_are_followed():
    """Their sums are most of its work, and are known before it is scheduled."""
    search = plan.search(job(windows()), 2, machine=HERE)
    search.run()
    assert len(search.costed) < 0.3 * len(search.least_s)


def test_a_placement_that_cannot_predict_is_passed_over(monkeypatch):
    """The next best is found, though it was too dear to be followed at first."""
    described = job(chain(4, 8, 3))
    search, whole = (plan.search(described, 2, machine=HERE) for _ in range(2))
    best, _ = search.run()

    def refused(choice: tuple[str, ...]) -> CompileError | None:
        return CompileError("no") if search.placement(choice) == best else None

    for each in (search, whole):
        monkeypatch.setattr(each, "refused", refused)
    follow_all(whole, monkeypatch)
    assert search.run() == whole.run()
    assert search.run()[0] != best


def test_pins_are_honoured():
    pins = {"layer1": "sender", "layer3": "replicated"}
    found = plan.cheapest(job(chain(30, 20, 20, 5)), 2, pins, machine=HERE)
    assert found.placement.links[1, 0] == "sender"
    assert found.placement.links[3, 0] == "replicated"
    with pytest.raises(ModelError, match="layer9"):
        plan.cheapest(job(chain(30, 20, 5)), 2, {"layer9": "sender"}, machine=HERE)


def test_an_illegal_placement_is_never_chosen_and_pinned_it_is_the_error():
    described = job(chain(12, 8, 3, neuron=Loudest))
    search = plan.search(described, 2, machine=HERE)
    illegal = {
        choice[0]
        for choice in itertools.product(*search.options)
        if search.seconds(choice) == float("inf")
    }
    assert illegal == {"sender"}
    assert plan.cheapest(described, 2, machine=HERE).placement.links[1, 0] != "sender"
    said = r"pin layer1.weight=sender: layer1 \(Loudest\) .* pin layer 'layer1' to receiver$"
    for pins in ({"layer1": "sender"}, {"layer1.weight": "sender"}):
        with pytest.raises(CompileError, match=said):
            plan.cheapest(described, 2, pins, machine=HERE)
    assert plan.cheapest(described, 2, {"layer1": "receiver"}, machine=HERE)


def test_slow_networks_and_fast_ones_get_different_placements():
    """Where bandwidth is scarce less is sent."""
    described = job(chain(500, 400, 300, 10), 40)
    slow = Assumption.parse("bandwidth=10Mbit,latency=1us").machine(HERE, 2, "shm")
    dear = plan.cheapest(described, 2, machine=slow)
    others = [
        plan.cheapest(described, 2, {f"layer{k}": where for k in (1, 2, 3)}, machine=slow)
        for where in ("receiver", "sender", "replicated")
    ]
    assert all(dear.n_bytes <= other.n_bytes for other in others)


@pytest.mark.parametrize("n_tasks", [1, 2, 3, 7])
def test_shares_add_up(n_tasks):
    net = joined()
    found = plan.cheapest(job(net), n_tasks, machine=HERE)
    for layer, row in zip(net.layers, found.layers, strict=True):
        assert len(row.neurons) == len(row.weights) == n_tasks
        n = sum(int(np.prod(link.shape(layer.size))) for link in layer.links)
        if "replicated" not in row.placement.values():
            assert sum(row.weights) == n
        if row.work == "neurons" and layer.index:
            assert sum(row.neurons) == layer.size
    assert all(len(each) == n_tasks for each in found.memory_bytes.values())
    assert found.n_bytes == sum(row.n_bytes for row in found.layers)
    if n_tasks == 1:
        assert found.supersteps == () and found.n_bytes == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"pins": ["layer1"]}, "pins say of layers where their weights live, .*; got .'layer1'"),
        ({"assume": 3}, "assume is text, as in .*; got 3"),
        ({"threads": 0}, "threads must be a whole number from 1, got 0"),
        ({"transport": 3}, "no transport is called 3; known"),
        ({"assume": "tasks=8"}, "tasks=2, but assume='tasks=8' says tasks=8; write .* once"),
    ],
)
def test_what_is_no_setting_is_said(how, said):
    with pytest.raises(JobError, match=said):
        plan.plan(job(chain(4, 3, 2)), tasks=2, **how)
    with pytest.raises(ModelError, match="pin layer1=.'sender'.: weights live with"):
        plan.plan(job(chain(4, 3, 2)), tasks=2, pins={"layer1": ["sender"]})


@pytest.mark.parametrize("how", [{"tasks": 3000}, {"assume": "tasks=3000"}])
def test_a_plan_of_too_many_tasks_is_refused_before_it_is_made(how):
    with pytest.raises(JobError, match="a plan of 3,000 tasks: at most 1,024 can be planned"):
        plan.plan(job(chain(4, 3, 2)), **how)


def test_tasks_may_be_given_twice_where_they_are_the_same():
    assert plan.plan(job(chain(4, 3, 2)), tasks=2, assume="tasks=2").n_tasks == 2


def test_interpreted_networks_and_unknown_transports():
    @horn.interpreted
    class Slow(horn.Neuron):
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages))

    with pytest.raises(JobError, match="one task"):
        plan.cheapest(job(chain(4, 3, 2, neuron=Slow)), 2, machine=HERE)
    with pytest.raises(JobError, match="pigeon"):
        plan.cheapest(job(chain(4, 3, 2)), 2, machine=HERE, transport="pigeon")
    for assumed in ("latency=1us", "latency=1us,bandwidth=10Gbit"):
        with pytest.raises(JobError, match="no transport is called 'pigeon'; known"):
            plan.plan(job(chain(4, 3, 2)), tasks=2, transport="pigeon", assume=assumed)


def test_of_a_users_transport_one_figure_may_be_assumed():
    own = "horn.transport.tcp:Tcp"
    for word, figure in (("latency=1us", "latency_s"), ("bandwidth=1kb", "bandwidth_bytes_per_s")):
        machine = Assumption.parse(word).machine(HERE, 2, own)
        found = plan.search(job(chain(4, 3, 2)), 2, machine=machine, transport=own).costs.machine
        for name in ("latency_s", "bandwidth_bytes_per_s"):
            own_figure = getattr(found, name)[own]
            assert (own_figure == getattr(found, name)["tcp"]) is (name != figure)


def test_the_fewest_rows_for_a_second_thread_are_those_that_are_given_one():
    """What a batch of so many samples is given (choose_threads), and a part of one uses."""
    for net in (chain(784, 128, 10), chain(1600, 1200, 10), chain(2100, 2000, 10), chain(2, 2)):
        for n_tasks in (1, 3):
            rows = least_rows(net, n_tasks)
            assert rows >= 1
            assert choose_threads(net, rows, 8, n_tasks) > 1
            assert rows == 1 or choose_threads(net, rows - 1, 8, n_tasks) == 1


def uneven(fans: list[int]) -> horn.Job:
    indptr = np.concatenate([[0], np.cumsum(fans)])
    sources = np.concatenate([np.arange(n) for n in fans])
    net = horn.Network(seed=1)
    net.input(50)
    net.layer(len(fans), activation="tanh", connect=horn.Sparse(csr=(indptr, sources)))
    net.output(4, activation="softmax", loss="cross_entropy")
    return job(net)


def test_a_plan_says_the_synapses_of_tasks_where_neurons_have_unequal_numbers():
    pins = {"layer1": "receiver"}
    found = plan.cheapest(uneven([50] * 10 + [2] * 30), 2, pins, machine=HERE)
    hidden = found.layers[1]
    assert sum(hidden.synapses) == 560
    assert max(hidden.synapses) <= 300  # 520 if each task had as many neurons
    columns, rows = found.rows()
    assert rows[1][columns.index("Synapses")] == " + ".join(map(str, hidden.synapses))
    assert rows[0][columns.index("Synapses")] == "–"
    even = plan.cheapest(uneven([5] * 40), 2, pins, machine=HERE)
    assert even.layers[1].synapses == (100, 100)
    assert "Synapses" not in even.rows()[0]
    assert found.as_dict()["layers"][1]["synapses"] == hidden.synapses


@pytest.mark.parametrize("where", ["receiver", "sender"])
def test_the_memory_of_a_plan_has_the_lists_of_synapses(where):
    described = uneven([50] * 10 + [2] * 30)
    found = plan.cheapest(described, 2, {"layer1": where}, machine=HERE)
    edges = described.network.layers[1].links[0].edges
    for task, n_bytes in enumerate(found.memory_bytes["synapses"]):
        own = Share(described.network, task, 2).edges(1, 0, "i" if where == "sender" else "o")
        lists = vars(EdgeLists.of(own)).values()
        local = [own.sources, *([] if isinstance(own.places, slice) else [own.places])]
        held = sum(array.nbytes for array in (edges.indptr, edges.indices, *local, *lists))
        assert 0.9 * held <= n_bytes <= 1.1 * held
    assert "synapses 1" in found.lines()[1]
    dense = plan.cheapest(job(chain(12, 8, 3)), 2, machine=HERE)
    assert dense.memory_bytes["synapses"] == (0, 0)
    assert "synapses" not in dense.lines()[1]
