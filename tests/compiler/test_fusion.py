"""What runs step by step in few passes, and the memory that all steps take."""

import pytest

import horn
from horn import ir
from horn.compiler import lower
from horn.partition.placement import Placement
from horn.partition.rewrite import partition
from horn.program import (
    AllSteps,
    Collect,
    Frame,
    Loop,
    Output,
    Post,
    Repeat,
    every,
    reads,
    writes,
)
from horn.scheduling.lifetimes import _one_after_another, rooms
from tests.parity.recurrent import GRU, LSTM


def program(cell, each=True, fuse=True, divide=None):
    """divide : what makes the network's placement, of what several tasks do."""
    net = horn.Network(seed=1)
    x = net.input(3, steps=6)
    net.layer(5, neuron=cell, inputs={"x": x, "h": horn.Delayed()}, name="h")
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each)
    found = lower.training_program(
        net, horn.SGD(0.1, momentum=0.9), "label", fuse=fuse, thin=divide is None
    )
    return partition(found, divide(net), [found.loss]) if divide else found


def by_receivers(net):
    return Placement.receivers(net.layers[1:2])


def wide(program):
    """Buffers of all steps that have neurons and memory of their own."""
    shared = rooms(program)
    return {
        name for name, b in program.buffers.items()
        if b.span is not None and len(b.axes) == 2 and b.role == "work" and name not in shared
    }  # fmt: skip


def test_what_flows_back_in_a_step_is_one_pass_and_what_is_told():
    back = [s for s in program(LSTM).statements if isinstance(s, Repeat) and s.reverse]
    loops = [s for s in back[0].body if isinstance(s, Loop)]
    assert [len(s.outputs) for s in loops] == [5, 1]  # 4 deltas and the cell's; what is told


def test_gates_and_deltas_lie_where_sums_were():
    found = program(LSTM)
    shared = rooms(found)
    sums = {name for name in found.buffers if name.startswith("h.sum")}
    deltas = {name for name in found.buffers if name.startswith("h.delta")}
    assert len(deltas) == 4 and {shared[name] for name in deltas} < sums
    own = {name for name in wide(found) if name.startswith("h.")}
    # four gates; the cell, its tanh, what is sent, and what comes from above
    assert len(own) == 8
    for name in deltas:  # what flows back to the step before has one step
        assert found.buffers[name].span == (0, 0)
    assert found.buffers["h.cell.back"].span is None


def test_what_is_asked_for_afterwards_keeps_its_memory():
    found = program(LSTM, fuse=False)
    assert not rooms(found).keys() & set(found.probes.values())
    assert not {*found.outputs} & {*rooms(found), *rooms(found).values()}


def test_tasks_that_have_rows_need_as_many_places_as_one_task():
    """They had twice as many: rows of 200 units and 100 steps went to memory and came back."""
    own = {name for name in wide(program(LSTM, divide=Placement.rows)) if name.startswith("h.")}
    assert own == {name for name in wide(program(LSTM)) if name.startswith("h.")}


def test_what_tasks_exchange_has_a_place_of_its_own():
    found = program(LSTM, divide=by_receivers)
    exchanged = {
        name for s in every(found.statements) if isinstance(s, (Post, Collect))
        for move in s.moves for name in (move.array, move.out)
    }  # fmt: skip
    shared = rooms(found)
    assert shared and any(found.buffers[name].span is not None for name in exchanged)
    assert not exchanged & {*shared, *shared.values()}


@pytest.mark.parametrize("divide", [None, Placement.rows, by_receivers])
@pytest.mark.parametrize("cell", [LSTM, GRU])
@pytest.mark.parametrize("each", [False, True])
def test_two_buffers_in_one_place_are_never_needed_at_once(cell, each, divide):
    """As the statements go, step by step: what is read is what was written there last."""
    found = program(cell, each, divide=divide)
    shared, held = rooms(found), dict[tuple[str, int], str]()

    def do(statement, steps):
        read, written = reads(statement), writes(statement)
        for name in (*read, *written):
            buffer = found.buffers[name]
            if buffer.span != (0, 0) or len(buffer.axes) != 2 or name in found.kept:
                continue
            for step in steps:
                place = shared.get(name, name), step
                if name in written:
                    held[place] = name
                assert held[place] == name, name

    for s in found.statements:
        if isinstance(s, Repeat):
            for step in range(found.steps)[:: -1 if s.reverse else 1]:
                for each_of in s.body:
                    do(each_of, [step])
        elif isinstance(s, AllSteps):
            for each_of in s.body:
                do(each_of, range(found.steps))


class Middle(horn.Neuron):
    def forward(self, messages):
        self.feedforward(horn.math.median(m.input for m in messages))


def test_each_halving_reads_the_last_bounds_alone():
    net = horn.Network(seed=1)
    net.input((5, 5, 1))
    net.layer(connect=horn.Window(3), neuron=Middle)
    net.output(2, activation="softmax", loss="cross_entropy")
    found = lower.training_program(net, horn.SGD(0.1), "label")
    loops = [s for s in found.statements if isinstance(s, Loop)]
    assert max(len(set(reads(s))) for s in loops) < 9


def test_what_one_pass_writes_has_two_places_where_one_of_both_is_never_read():
    def one_pass(source, *outs):
        node = ir.load(source, "bo") * 2.0
        return Loop(Frame(1), tuple(Output(out, node) for out in outs))

    passes = [one_pass("x", "a"), one_pass("a", "unread", "b"), one_pass("b", "c")]
    shared = _one_after_another(passes, dict.fromkeys(("a", "unread", "b", "c"), ("b", "o")), True)
    assert shared == {"unread": "a", "c": "b"}
