"""What layers see and cost: by formulas of the windows, against the synapses themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import horn
from horn import summary
from horn.cli import horn as commands

GEOMETRIES = [
    ({"kernel": 3}, {"kernel": 2, "stride": 2}),
    ({"kernel": 3, "padding": "same"}, {"kernel": 3, "stride": 2, "padding": "same"}),
    ({"kernel": (3, 2), "dilation": (2, 1)}, {"kernel": 2, "padding": 1}),
    ({"kernel": 2, "stride": (1, 3)}, {"kernel": (1, 2)}),
    ({"kernel": 3, "padding": ((2, 0), (0, 3))}, {"kernel": 2, "padding": (1, (0, 1))}),
    ({"kernel": 5, "padding": 3, "stride": 2}, {"kernel": 3, "dilation": 2, "padding": "same"}),
]


class Pool(horn.Neuron):
    def forward(self, messages: Any) -> None:
        self.feedforward(max(m.input for m in messages))


class Both(horn.Neuron):
    def forward(self, messages: Any) -> None:
        near = sum(m.input for m in messages.near)
        self.feedforward(near * sum(m.input * m.weight for m in messages.own))


def network(first: Any, second: Any, shape: Any = (9, 11, 2)) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(shape)
    net.layer(connect=horn.Convolution(4, groups=2, **first), name="maps")
    pool = net.layer(connect=horn.Window(channels=3, **second), neuron=Pool, name="pool")
    net.layer(connect={"own": horn.OneToOne(), "near": horn.Window(1, channels=3)}, neuron=Both,
              inputs={"own": pool, "near": pool}, name="both")  # fmt: skip
    net.layer(connect=horn.Local(3, 2), name="local")
    net.output(5, activation="softmax", loss="cross_entropy")
    return net


def reach(net: horn.Network) -> list[Any]:
    """Of each layer with a shape, by walking all synapses from each neuron: the largest extent."""
    inputs = net.layers[0]
    seen = [[{k} for k in range(inputs.size)]]
    found: list[Any] = [(1,) * len(inputs.shape[:-1])]
    for layer in net.layers[1:]:
        if any(link.edges is None for link in layer.links):
            break
        mine = [set() for _ in range(layer.size)]
        for link in layer.links:
            starts, sources = link.edges.indptr, link.edges.indices
            for o in range(layer.size):
                for i in sources[starts[o] : starts[o + 1]]:
                    mine[o] |= seen[link.source.index][i]
        seen.append(mine)
        places = [np.stack(np.unravel_index(sorted(one), inputs.shape)) for one in mine if one]
        found.append(tuple(max(int(np.ptp(p[k])) + 1 for p in places)
                           for k in range(len(inputs.shape) - 1)))  # fmt: skip
    return found


@pytest.mark.parametrize("first, second", GEOMETRIES, ids=str)
def test_what_layers_see_and_multiply_is_what_their_synapses_say(first: Any, second: Any) -> None:
    net = network(first, second)
    rows = summary.layers(net)
    for row, layer in zip(rows[1:-1], net.layers[1:], strict=False):
        weighed = [link for link in layer.links if f"{link.weight}" in layer.shapes]
        assert row.multiply_adds == sum(len(link.edges.indices) for link in weighed), layer.name
    assert [row.sees for row in rows[:-1]] == [" × ".join(map(str, n)) for n in reach(net)]
    assert rows[-1].sees == "all" and rows[-1].multiply_adds == 5 * net.layers[-2].size


@pytest.mark.parametrize("told", [{"kernel": 3}, {"kernel": (3, 2), "stride": (2, 1)},
                                  {"kernel": 4, "stride": 2, "padding": 1}], ids=str)  # fmt: skip
def test_ties_see_and_multiply_what_their_owners_do(told: Any, tmp_path: Path) -> None:
    net = horn.Network(seed=1)
    net.input((9, 8, 2))
    maps = net.layer(connect=horn.Convolution(3, **told), activation="tanh", name="maps")
    net.layer(connect=horn.Tied(maps), activation="tanh", name="back")
    code = net.layer(7, activation="tanh", name="code")
    net.output(connect=horn.Tied(code), loss="squared_error", name="end")
    rows = summary.layers(net)
    edges = len(net.layers[1].links[0].edges.indices)
    assert [row.multiply_adds for row in rows] == [0, edges, edges, 7 * 144, 7 * 144]
    assert [row.sees for row in rows[:3]] == [" × ".join(map(str, n)) for n in reach(net)[:3]]
    x = np.random.default_rng(1).random((10, 9, 8, 2))
    run = horn.train(horn.Job(net, x, target="input", epochs=1))
    run.model.save(tmp_path / "m.horn")
    said = CliRunner().invoke(commands, ["show", str(tmp_path / "m.horn")]).output
    assert f" {edges:,} " in said and "2 with the weights of 1" not in said
    assert "1 with the weights of 1" in said and "3 with the weights of 3" in said
    assert horn.plot.weights(run, "code").axes[0].images[0].get_array().shape[0] == 7 * 10 - 1
    with pytest.raises(horn.ModelError, match="'end' has no weights; .* are maps, code"):
        horn.plot.weights(run, "end")


@pytest.mark.parametrize(
    "told",
    [
        {"kernel": 3},
        {"kernel": (3, 2), "stride": (2, 1)},
        {"kernel": 4, "stride": 2, "padding": "same"},
        {"kernel": 4, "stride": 2, "padding": ((2, 0), (1, 3))},
    ],
    ids=str,
)
def test_a_transposed_convolution_sees_where_windows_send(told: Any) -> None:
    net = horn.Network(seed=1)
    net.input((4, 5, 2))
    maps = net.layer(connect=horn.TransposedConvolution(3, **told), activation="tanh")
    net.layer(connect=horn.Tied(maps), activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    rows = summary.layers(net)
    edges = [len(layer.links[0].edges.indices) for layer in net.layers[1:3]]
    assert [row.multiply_adds for row in rows[1:3]] == edges
    assert rows[1].sees == " × ".join(map(str, reach(net)[1]))


def test_along_a_line() -> None:
    net = horn.Network(seed=1)
    net.input((30, 2))
    net.layer(connect=horn.Convolution(4, 5, stride=2), name="maps")
    net.layer(connect=horn.Window(3), neuron=Pool, name="pool")
    net.output(2, activation="softmax", loss="cross_entropy")
    rows = summary.layers(net)
    assert [row.sees for row in rows] == ["1", "5", "9", "all"]
    assert [row.multiply_adds for row in rows] == [0, 13 * 4 * 10, 0, 2 * 11 * 4]
    assert rows[1].memory_bytes(10, 4) == 4 * (4 * 5 * 2 + 4 + 3 * 13 * 4 * 10)


def test_a_model_and_its_file_say_the_same(tmp_path: Path) -> None:
    net = network({"kernel": 3}, {"kernel": 2, "stride": 2}, (8, 8, 1 * 2))
    x = np.random.default_rng(1).random((20, 8, 8, 2))
    model = horn.train(horn.Job(net, (x, np.arange(20) % 5), epochs=1, batch_size=10)).model
    model.save(tmp_path / "m.horn")
    said = CliRunner().invoke(commands, ["show", str(tmp_path / "m.horn")]).output
    lines = {line.split()[1]: line for line in said.splitlines()[2:9] if line}
    assert "Sees" in said and "Multiply-adds" in said
    for row in summary.layers(net)[1:]:
        cells = [row.sees, f"{row.multiply_adds:,}", row.extent, f"{row.parameters:,}"]
        assert all(f" {cell} " in lines[row.name] for cell in cells), (row, lines[row.name])
    assert "0 through Convolution 3" in lines["maps"]
    assert "own: 2 through OneToOne, near: 2 through Window 1" in lines["both"]
    assert all(f" {row.sees} " in model.summary() for row in summary.layers(net))
    flat = horn.Network()
    flat.input(4)
    flat.output(2, activation="softmax", loss="cross_entropy")
    plain = horn.train(horn.Job(flat, (x.reshape(20, -1)[:, :4], np.arange(20) % 2), epochs=1))
    assert "sees" not in plain.model.summary()


def test_parts_of_several_inputs(tmp_path: Path) -> None:
    net = horn.Network(seed=1)
    image, rest = net.input((4, 4, 1), name="image"), net.input(3, name="rest")
    maps = net.layer(connect=horn.Convolution(2, 3), inputs=image, name="maps")
    few = net.layer(5, inputs=rest, name="few")
    net.output(2, activation="softmax", loss="cross_entropy", inputs=[maps, few])
    x = {"image": np.ones((20, 4, 4, 1)), "rest": np.ones((20, 3))}
    job = horn.Job(net, (x, np.arange(20) % 2), epochs=1)
    model = horn.train(job).model
    model.save(tmp_path / "m.horn")
    said = CliRunner().invoke(commands, ["show", str(tmp_path / "m.horn")]).output
    lines = {line.split()[1]: line for line in said.splitlines()[3:9] if line}
    for row in summary.layers(net)[1:]:
        assert f" {row.multiply_adds:,} " in lines[row.name], said
    assert [row.multiply_adds for row in summary.layers(net)] == [0, 0, 72, 0, 15, 26]
    assert horn.plan(job, tasks=2).n_tasks == 2  # which tells of layers, too
