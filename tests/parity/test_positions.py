"""Windows on tasks that have rows of the image each: the law, with the kernels of windows, and the
bytes that travel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.backends import Setup
from horn.compiler.lower import training_program
from horn.errors import ModelError
from horn.partition.placement import CHANNELS, INPUT_CHANNELS, Placement, pinned
from horn.partition.rewrite import partition
from horn.planner.cost_model import Costs
from horn.planner.machine import Machine
from horn.program import Convolve, Expand, Loop
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Transport
from tests.parity.test_compiled_equals_interpreted import samples
from tests.parity.test_targets_and_errors import Aligned
from tests.parity.test_tasks import compare as compare_tasks
from tests.parity.test_tasks import of_group, of_one, trained
from tests.support.combinations import share
from tests.support.neurons import MaxPool
from tests.transport.groups import good, run_threads

BATCHES = [np.array([0, 3, 4, 9]), np.array([1, 2, 5])]  # the last one is short
NETS: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "28 rows": ((28, 28, 1), [horn.Convolution(4, 3, padding="same"), horn.Window(2, stride=2),
                              horn.Convolution(5, 5)]),
    "overlapping pools": ((9, 7, 2), [horn.Convolution(3, 3), horn.Window(3, stride=2)]),
    "stride, padding": ((11, 6, 3), [horn.Convolution(4, (4, 3), stride=(2, 1), padding=2),
                                     horn.Convolution(3, 3, stride=2, padding=1)]),
    "pairs": ((11, 6, 3), [horn.Convolution(4, (4, 3), stride=(2, 1), padding=((0, 3), (2, 1))),
                           horn.Convolution(3, 3, stride=2, padding=((2, 0), 1))]),
    "dilation": ((10, 5, 2), [horn.Convolution(3, (3, 2), dilation=(2, 1), padding="same"),
                              horn.Convolution(2, 2, stride=3)]),
    "1-D": ((17, 2), [horn.Convolution(3, 4, stride=2, padding="same"), horn.Window(3, stride=1)]),
    "two rows": ((2, 6, 2), [horn.Convolution(3, (1, 3), padding="same"), horn.Convolution(2, 2)]),
}  # fmt: skip


def network(below: tuple[int, ...], connections: list[Any]) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(below)
    for connection in connections:
        if isinstance(connection, horn.Window):
            net.layer(connect=connection, neuron=MaxPool)
        else:
            net.layer(connect=connection, activation="relu")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def everywhere(net: horn.Network, where: str) -> Placement:
    """All windows with the receiver, the sender, or by channels of either end; neurons with their
    owners.
    """
    links = {(layer.index, 0): where for layer in net.layers[1:]}
    if where == INPUT_CHANNELS:  # those within a channel have the same channels at both ends
        pools = {(x.index, 0): CHANNELS for x in net.layers[1:] if x.neuron is MaxPool}
        links = {**links, **pools}
    work = "channels" if CHANNELS in where else "neurons"
    layers = {layer.index: work for layer in net.layers}
    last = net.last.index
    return Placement({**links, (last, 0): "sender"}, {**layers, 0: "all", last: "all"})


@pytest.mark.parametrize(
    "name, where, n_tasks",
    share(3, NETS, ["receiver", "sender", CHANNELS, INPUT_CHANNELS], [2, 3]),
)
def test_tasks_that_have_rows_or_channels_of_the_image_do_what_one_does(name, where, n_tasks):
    net = network(*NETS[name])
    if where == "sender" and any(isinstance(c, horn.Window) for c in NETS[name][1]):
        pytest.skip("the place of a maximum cannot be divided by senders")
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    data, placement = samples(net), everywhere(net, where)
    for backend in ("kernels", "reference")[: 4 - n_tasks]:
        group = good(of_group(backend, setup, data, BATCHES, placement, n_tasks))
        compare_tasks(group, of_one("kernels", setup, data, BATCHES), name)


@pytest.mark.parametrize("where, n_tasks", [("receiver", 2), ("receiver", 3), ("sender", 2)])
def test_tasks_that_have_rows_of_grouped_maps_do_what_one_does(where, n_tasks):
    """A position has all its groups, wherever it is: they have the kernels of windows, too."""
    net = network((9, 5, 4), [horn.Convolution(8, 3, padding="same", groups=4),
                              horn.Convolution(6, (3, 2), stride=2, groups=2)])  # fmt: skip
    setup = Setup(net, horn.SGD(0.1, momentum=0.5), "labels", 4, "float64", 1)
    data, placement = samples(net), everywhere(net, where)
    group = good(of_group("kernels", setup, data, BATCHES, placement, n_tasks))
    compare_tasks(group, of_one("reference", setup, data, BATCHES), where)
    program = partition(training_program(net, horn.SGD(0.1), "labels", thin=False), placement)
    assert not any(isinstance(s, Expand) and s.frame.link is not None for s in program.statements)


def test_a_pin_by_channels_is_of_windows_that_have_some():
    net = network((9, 7, 2), [horn.Convolution(4, 3, groups=2), horn.Window(3, stride=2)])
    assert pinned(net, {"layer2": CHANNELS}) == {(2, 0): CHANNELS}
    with pytest.raises(ModelError, match="pin layer1=channels: only convolutions without groups"):
        pinned(net, {"layer1": CHANNELS})
    for layer in ("layer1", "layer2", "layer3"):
        with pytest.raises(ModelError, match=f"pin {layer}=input_channels: .*pin it to sender"):
            pinned(net, {layer: INPUT_CHANNELS})


@pytest.mark.parametrize("work", ["neurons", "channels"])
def test_divided_channels_hear_all_errors_of_the_output(work):
    net = horn.Network(seed=1)
    net.input((6, 4, 2))
    net.layer(connect=horn.Convolution(3, 3), neuron=Aligned)
    net.output(3, activation="softmax", loss="cross_entropy")
    placement = Placement({(1, 0): work if work == "channels" else "receiver", (2, 0): "sender"},
                          {0: "all", 1: work, 2: "neurons"})  # fmt: skip
    setup, data = Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1), samples(net)
    group = good(of_group("kernels", setup, data, BATCHES, placement, 2))
    compare_tasks(group, of_one("kernels", setup, data, BATCHES), work)


@pytest.mark.parametrize("where", ["receiver", "sender"])
def test_tasks_that_have_rows_run_the_kernels_of_windows(where):
    net = network((9, 7, 2), [horn.Convolution(3, 3), horn.Convolution(2, 3)])
    program = training_program(net, horn.SGD(0.1), "label", thin=False)
    found = partition(program, everywhere(net, where), [])
    sums = [s for s in found.statements if isinstance(s, Convolve) and s.frame.split]
    assert len(sums) == 5  # three of each, but the input hears nothing back
    loops = [s.frame for s in found.statements if isinstance(s, Loop) and not s.frame.shared]
    assert all(frame.link is None or frame.layer == 3 for frame in loops)
    assert not any(isinstance(s, Expand) and s.frame.link is not None for s in found.statements)


@pytest.mark.parametrize("n_tasks", [2, 3])
@pytest.mark.parametrize("kernel, padding", [(3, 1), (5, 2)])
def test_what_travels_is_the_halo(kernel, padding, n_tasks):
    """Of each border between two tasks: kernel // 2 rows of all channels and samples go each way,
    forward, and as many deltas backward; besides them every task's sums of the shared gradients go
    to all others.
    """
    height, width, maps, batch, itemsize = 28, 28, 4, 4, 8
    net = network((height, width, 1), [horn.Convolution(maps, kernel, padding=padding)] * 2)
    placement = everywhere(net, "receiver")
    halo = kernel // 2 * width * maps * batch * itemsize
    borders = n_tasks - 1
    of_windows = 2 * 2 * borders * halo
    shared = sum(np.prod(shape) for layer in net.layers[1:3] for shape in layer.shapes.values())
    of_sums = n_tasks * (n_tasks - 1) * int(shared) * itemsize
    of_last = n_tasks * (n_tasks - 1) * 3 * batch * itemsize  # what the last layer sums

    setup = Setup(net, horn.SGD(0.1), "labels", batch, "float64", 1)
    data = samples(net)

    def body(transport: Transport) -> int:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, placement, group)
        trained(engine, data, BATCHES[:1])
        return group.spent.sent_bytes

    sent = sum(good(run_threads("inproc", n_tasks, body)))
    assert sent == of_windows + of_sums + of_last
    assert sent == planned_bytes(setup, placement, n_tasks)


def planned_bytes(setup: Setup, placement: Placement, n_tasks: int) -> int:
    net = setup.network
    program = partition(training_program(net, setup.optimizer, "label", thin=False), placement)
    planned = Costs(net, Machine(), n_tasks, setup.batch_size, "float64").step(program)
    return sum(superstep.n_bytes for superstep in planned.supersteps)


@pytest.mark.parametrize("n_tasks", [2, 3])
def test_what_travels_by_input_channels_are_parts_of_sums_and_deltas(n_tasks):
    """The maps of the first layer stay where they are. Of the second everybody has a part of each
    sum, and hears all deltas; of both weights a task has its own part of the gradient, whole.
    """
    maps, more, batch, itemsize = 4, 6, 4, 8
    net = network((12, 10, 1), [horn.Convolution(n, 3, padding=1) for n in (maps, more)])
    links = {(1, 0): CHANNELS, (2, 0): INPUT_CHANNELS, (3, 0): "sender"}
    placement = Placement(links, {0: "all", 1: CHANNELS, 2: "neurons", 3: "all"})
    setup = Setup(net, horn.SGD(0.1), "labels", batch, "float64", 1)
    data = samples(net)

    def body(transport: Transport) -> int:
        group = Group(transport, timeout_s=60)
        engine = GroupEngine(setup, placement, group)
        trained(engine, data, BATCHES[:1])
        return group.spent.sent_bytes

    sent = sum(good(run_threads("inproc", n_tasks, body)))
    once, each = n_tasks - 1, n_tasks * (n_tasks - 1)
    sums_and_deltas = 2 * once * net.layers[2].size * batch
    weights = once * (9 * maps + 9 * maps * more)
    biases, last = each * (maps + more), each * 3 * batch
    assert sent == itemsize * (sums_and_deltas + weights + biases + last)
    assert sent == planned_bytes(setup, placement, n_tasks)
