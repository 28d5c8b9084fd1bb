"""The cost model: what it counts is exact, what it predicts goes the right way."""

from __future__ import annotations

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import horn
from horn.compiler import lower
from horn.errors import JobError
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS, Placement
from horn.partition.rewrite import partition
from horn.partition.share import Share
from horn.planner import calibration, strip_timings
from horn.planner.assumptions import Assumption
from horn.planner.cost_model import Costs
from horn.planner.machine import Machine
from horn.program import Program
from horn.runtime.exchange import Exchange
from horn.runtime.task import PostInstruction

MACHINE = Machine(n_cores=64)


def network(sparse: bool = False, sizes: tuple[int, ...] = (9, 5, 7, 3)) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(sizes[0], keep=0.8)
    for size in sizes[1:-1]:
        how = {"connect": horn.Sparse(fan_in=3)} if sparse else {}
        net.layer(size, activation="tanh", **how)
    net.output(sizes[-1], activation="softmax", loss="cross_entropy")
    return net


def program(net: horn.Network, placement: Placement) -> Program:
    whole = lower.training_program(net, horn.SGD(0.1, momentum=0.9), "label", thin=False)
    return partition(whole, placement, [whole.loss])


@st.composite
def placements(draw, net: horn.Network) -> Placement:
    links = {(layer.index, 0): draw(st.sampled_from(list(LINK_SPLITS))) for layer in net.layers[1:]}
    return Placement(
        links, {layer.index: draw(st.sampled_from(list(LAYER_SPLITS))) for layer in net.layers}
    )


class Standing:
    """A runner with nothing in it: an Exchange asks for the program only."""

    layout, is_static = "batch", False

    def __init__(self, program: Program) -> None:
        self.program = program


@given(st.data(), st.booleans(), st.sampled_from([1, 2, 3, 5, 8]), st.sampled_from([1, 4, 7]))
@settings(deadline=None, max_examples=40)
def test_messages_and_bytes_are_those_of_the_channels(data, sparse, n_tasks, batch):
    net = network(sparse)
    local = program(net, data.draw(placements(net)))
    cost = Costs(net, MACHINE, n_tasks, batch, "float64").step(local)
    exchange = Exchange(Standing(local), Share(net, 0, n_tasks), batch, np.float64, 0)
    supersteps = [(len(c.dsts), c.n_bytes * len(c.dsts), c.part) for c in exchange.channels]
    assert sum(s.n_messages for s in cost.supersteps) == sum(n for n, _, _ in supersteps)
    assert sum(s.n_bytes for s in cost.supersteps) == sum(n for _, n, _ in supersteps)
    posts = {s.index: s.parts for s in exchange.script if isinstance(s, PostInstruction)}
    for superstep in cost.supersteps:
        mine = [s for s in supersteps if s[2] in posts[superstep.index]]
        assert superstep.n_messages == sum(n for n, _, _ in mine)
        assert superstep.n_bytes == sum(n for _, n, _ in mine)


@given(st.data(), st.booleans(), st.sampled_from([2, 3]))
@settings(deadline=None, max_examples=10)
def test_packed_blocks_are_those_that_are_written(data, sparse, n_tasks):
    net = network(sparse)
    local = program(net, data.draw(placements(net)))
    costs = Costs(net, MACHINE, n_tasks, 4)
    exchange = Exchange(Standing(local), Share(net, 0, n_tasks), 4, np.float32, 0)
    moves = [move for s in local.statements if type(s).__name__ == "Post" for move in s.moves]
    packed = sum(costs.traffic(move, local.buffers).packed.sum() for move in moves)
    written = sum(channel.n_bytes // 4 for channel in exchange.channels)
    assert packed >= written  # a block that happens to suit two tasks is written once
    assert packed <= n_tasks * written


def default_s(machine: Machine = MACHINE, n_tasks: int = 2, **settings) -> float:
    net = network(sizes=(784, 512, 512, 10))
    costs = Costs(net, machine, n_tasks, 100, **settings)
    return costs.seconds(program(net, Placement.default(net)))


def test_more_tasks_than_cores_share_them():
    assert default_s(Machine(n_cores=1)) > 1.8 * default_s(Machine(n_cores=2))


def test_slower_transports_take_longer():
    for slow in (
        Assumption(latency_s=1e-3), Assumption(bandwidth_bytes_per_s=1e7)
    ):  # fmt: skip
        assert default_s(slow.machine(MACHINE, 2, "shm")) > default_s() + 1e-3


def test_what_lies_between_a_post_and_its_collect_hides_waiting():
    """The weight updates of layers above run while deltas travel: latency costs less than it is,
    summed over supersteps.
    """
    net = network(sizes=(784, 512, 512, 10))
    local = program(net, Placement.default(net))
    n = len(Costs(net, MACHINE, 2, 100).step(local).supersteps)
    late = Assumption(latency_s=1e-4).machine(MACHINE, 2, "shm")
    added = default_s(late) - default_s(Assumption(latency_s=1e-9).machine(MACHINE, 2, "shm"))
    assert 0 < added < n * 1e-4 * 0.99


def test_the_slowest_task_counts():
    """Of 90 neurons on 60 tasks some have two, as on 45."""
    net = network(sizes=(1000, 90, 2))
    local = program(net, Placement.default(net))
    odd, even, more = (Costs(net, MACHINE, n, 100).step(local).layers[1] for n in (60, 45, 30))
    assert odd == pytest.approx(even, rel=0.01) and more > 1.1 * even


def test_faster_machines_take_less_and_detail_agrees_with_the_sum():
    fast = Assumption(flops_per_s=1e12).machine(MACHINE, 2, "shm")
    assert default_s(fast) < default_s()
    net = network(sizes=(784, 512, 512, 10))
    local = program(net, Placement.default(net))
    costs = Costs(net, MACHINE, 2, 100)
    assert costs.step(local).seconds == pytest.approx(costs.seconds(local), rel=1e-12)


def test_a_machine_survives_json():
    assert Machine.from_dict(json.loads(json.dumps(dataclasses.asdict(MACHINE)))) == MACHINE


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("call_s"),
        lambda d: d.update(call_s="fast"),
        lambda d: d.update(call_s=-1.0),
        lambda d: d.update(call_s=float("nan")),
        lambda d: d.update(sides=[1.0]),
        lambda d: d.update(lanes=0),
        lambda d: d.update(n_cores=0.5),
        lambda d: d["bandwidth_bytes_per_s"].update(shm=0.0),
        lambda d: d.update(more=1.0),
        lambda d: d["latency_s"].pop("shm"),
        lambda d: d["row_s"].update(forward=3.0),
    ],
)
def test_a_damaged_machine_is_refused(damage):
    values = json.loads(json.dumps(dataclasses.asdict(MACHINE)))
    damage(values)
    with pytest.raises((ValueError, KeyError, TypeError)):
        Machine.from_dict(values)


def test_calibration_is_kept_and_a_damaged_file_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "_known", {})
    measured = []
    monkeypatch.setattr(
        calibration, "measure", lambda dtype: measured.append(dtype) or dataclasses.replace(MACHINE)
    )
    first = calibration.calibrate()
    (file,) = (tmp_path / "horn").iterdir()
    for content in (None, "", "{", "[1]", "null", '{"call_s": 1}', "\x00\xff"):
        if content is not None:
            file.write_text(content)
        calibration._known.clear()
        assert calibration.calibrate() == first
        assert Machine.from_dict(json.loads(file.read_text())) == first
    assert len(measured) == 7  # the first, and six damaged ones
    assert list((tmp_path / "horn").iterdir()) == [file]


def test_calibration_of_a_user_without_a_home_is_kept_by_the_process_alone(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without HOME and passwd
    monkeypatch.setattr(calibration, "_known", {})
    monkeypatch.setattr(calibration, "measure", lambda dtype: MACHINE)
    assert calibration.calibrate() is calibration.calibrate()


def test_calibration_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "horn").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "_known", {})
    monkeypatch.setattr(calibration, "measure", lambda dtype: MACHINE)
    assert calibration.calibrate() is calibration.calibrate()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_measured_figures_are_figures(dtype):
    found = calibration.measure(dtype)
    again = Machine.from_dict(json.loads(json.dumps(dataclasses.asdict(found))))
    assert again == found
    assert 1e9 < found.flops_per_s < 1e14
    assert calibration.rounded(calibration.rounded(found)) == calibration.rounded(found)


@pytest.mark.parametrize(
    "text, field, value",
    [
        ("bandwidth=10Gbit", "bandwidth_bytes_per_s", 1.25e9),
        ("bandwidth=10Gbit/s", "bandwidth_bytes_per_s", 1.25e9),
        ("bandwidth=125MB", "bandwidth_bytes_per_s", 1.25e8),
        ("latency=50us", "latency_s", 50e-6),
        ("latency=0.2ms", "latency_s", 2e-4),
        ("tasks=64", "tasks", 64),
        ("cores=8", "cores", 8),
        ("flops=100G", "flops_per_s", 1e11),
    ],
)
def test_assumptions_have_units(text, field, value):
    assert getattr(Assumption.parse(text), field) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["", "tasks", "tasks=", "tasks=0", "tasks=1.5", "tasks=-2", "bandwidth=10", "bandwidth=fast",
     "latency=50", "latency=5GB", "speed=3", "tasks=2,,cores=1", "latency=infs"],
)  # fmt: skip
def test_a_bad_assumption_says_what_is_allowed(text):
    with pytest.raises(JobError, match=r"write "):
        Assumption.parse(text)


def test_a_processor_that_others_use_is_not_measured_as_a_slow_one(monkeypatch):
    """Three of four calls are interrupted for 30 ms; the loop takes 2 us."""
    wall, own = itertools.count(), [0.0, 0.0]

    def call():
        own[0] += 2e-6
        own[1] += 2e-6 + (0.03 if next(wall) % 4 else 0.0)

    fake = SimpleNamespace(thread_time=lambda: own[0], perf_counter=lambda: own[1])
    monkeypatch.setattr(strip_timings, "time", fake)
    assert strip_timings.best_s(call) == pytest.approx(2e-6)
