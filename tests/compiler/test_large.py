"""Large neurons: what is compiled grows as the text does, whatever it is made of.

Counted in nodes and statements, not in seconds: from n to 2 n they may double, and a little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

import horn
from horn import explain, ir
from horn.backends import Setup, _formulas, make
from horn.compiler import lower
from horn.data import Dataset
from horn.ir import Op, const, contraction, derive, leaf, nodes
from horn.language.statements import Statements
from horn.network import Network
from horn.partition.placement import Placement
from horn.partition.rewrite import Partition
from horn.partition.supersteps import reordered
from horn.program import Loop, Program, segments
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.transport import Transport
from tests.language import texts
from tests.support.calls import calls_of
from tests.transport.groups import good, run_threads

SUM = "z = sum(m.input * m.weight for m in messages)"


def forward(lines: Sequence[str], first: str = SUM) -> str:
    body = [first, *lines, "self.feedforward(z)"]
    return "\n".join(("def forward(self, messages):", *(f"    {line}" for line in body)))


def dependent_ifs(n: int) -> str:
    lines = []
    for k in range(n):
        lines += [f"if z > {0.01 * k:.2f}:", f"    z = z * 1.0{k % 9 + 1} + 0.1"]
        lines += ["else:", f"    z = horn.math.tanh(z) - 0.0{k % 9 + 1}"]
    return forward(lines)


def divisions_in_ifs(n: int) -> str:
    lines = []
    for k in range(n):
        lines += [f"if z > {0.01 * k:.2f}:", f"    z = z / (1.{k % 9 + 1} + z * z) + 0.1"]
    return forward(lines)


def ifs_in_the_loop(n: int) -> str:
    lines = ["y = 0.0", "for m in messages:"]
    for k in range(n):
        lines += [f"    if m.input > {0.01 * k:.2f}:", f"        y += m.weight * {0.1 + k:.2f}"]
    return forward([*lines, "z += y"])


def dependent_ifs_in_the_loop(n: int) -> str:
    lines = ["y = 0.0", "for m in messages:", "    v = m.input * m.weight"]
    for k in range(n):
        lines += [f"    if v > {0.01 * k:.2f}:", "        v = v * 1.1 + 0.1"]
    return forward([*lines, "    y += v", "z += y"])


def residual_steps(n: int) -> str:
    lines = ["y = 0.0", "for m in messages:", "    v = m.input - m.weight"]
    lines += [f"    v = v + horn.math.tanh(v) * {0.1 + 0.01 * k:.2f}" for k in range(n)]
    return forward([*lines, "    y += v", "z += y"])


def nested_returns(n: int) -> str:
    lines = []
    for k in range(n):
        lines += [f"if z > {0.1 * k:.2f}:", "    z = z * 0.9", f"    if z > {0.1 * k + 0.05:.2f}:"]
        lines += [f"        self.feedforward(z * {1 + k / 10:.2f})", "        return"]
    return forward(lines)


def returns_of_a_helper(n: int) -> str:
    lines = ["def bend(self, z):"]
    for k in range(n):
        lines += [f"    if z > {0.1 * k:.2f}:", "        z = z * 0.9"]
        lines += [
            f"        if z < {0.1 * k + 0.05:.2f}:",
            f"            return z * {1 + k / 10:.2f}",
        ]
    return "\n".join((*lines, "    return z", forward(["z = self.bend(z)"])))


def early_returns(n: int) -> str:
    lines = []
    for k in range(n):
        lines += [f"if z > {10 - 0.1 * k:.2f}:", f"    self.feedforward(z * {1 + k / 10:.2f})"]
        lines += ["    return"]
    return forward(lines)


def elifs(n: int) -> str:
    lines = ["y = z"]
    for k in range(n):
        lines += [f"{'el' * (k > 0)}if z > {10 - 0.1 * k:.2f}:", f"    y = z * {1 + k / 10:.2f}"]
    return forward([*lines, "z = y"])


def operations(n: int) -> str:
    return forward([f"z = horn.math.tanh(z) * {1 + k / n:.3f}" for k in range(n // 2)])


def one_expression(n: int) -> str:
    return forward(["z = " + " + ".join(f"z * {0.001 * k:.3f}" for k in range(1, n // 2))])


def statistics(n: int) -> str:
    kinds = ("layer", "batch")
    return forward(
        [f'z = horn.math.tanh(z - 0.5 * self.mean(z, over="{kinds[k % 2]}"))' for k in range(n)]
    )


def swapped_sides(n: int) -> str:
    lines = ['u = self.uniform(per="batch")', "y = 0.0"]
    for k in range(n):
        lines += [
            f"z, y = (z if u > {0.01 * k:.2f} else y), (y if u < {0.1 + 0.02 * k:.2f} else z)"
        ]
    return forward(lines)


def parameters(n: int) -> str:
    lines = [f"p{k} = horn.Parameter({1 + k / n:.3f})" for k in range(n)]
    chain = [f"z = horn.math.tanh(z + self.p{k})" for k in range(n)]
    return "\n".join((*lines, forward(chain)))


def weights(n: int) -> str:
    lines, chain = [], ["z = 0.0"]
    for k in range(n):
        lines += [f"w{k} = horn.Weight()"]
        chain += [f"z = horn.math.tanh(z + sum(m.input * m.w{k} for m in messages))"]
    return "\n".join((*lines, forward(chain[1:], chain[0])))


def pushed_parameters(n: int) -> str:
    lines = ["def backward(self, messages):", "    g = sum(m.delta * m.weight for m in messages)"]
    for k in reversed(range(n)):
        lines += [f"    g = horn.math.tanh(g * {1 + k / n:.3f})", f'    self.push(g, to="p{k}")']
    push = ["for m in messages:", "    self.push(m.delta * self.output)"]
    lines += [*(f"    {line}" for line in push), "    self.backpropagate(g)"]
    return "\n".join((parameters(n), *lines))


GROW = [
    parameters, pushed_parameters, weights, statistics, swapped_sides,
    dependent_ifs, divisions_in_ifs, ifs_in_the_loop, dependent_ifs_in_the_loop, residual_steps,
    nested_returns, returns_of_a_helper, early_returns, elifs, operations, one_expression,
]  # fmt: skip


def network(cls: type[horn.Neuron]) -> horn.Network:
    net = horn.Network(seed=1)
    net.input(6)
    net.layer(4, neuron=cls, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy")
    return net


def size(program: Program) -> int:
    """How many nodes the loops compute, and how many statements there are."""
    loops = [s for s in program.statements if isinstance(s, Loop)]
    nodes = sum(len([*ir.walk(*(o.node for o in s.outputs))]) for s in loops)
    return nodes + len(program.statements)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", GROW)
def test_a_program_grows_as_its_text(tmp_path, text: Callable[[int], str], monkeypatch):
    interned: list[int] = []
    plain = nodes._intern
    monkeypatch.setattr(nodes, "_intern", lambda *a: interned.append(1) or plain(*a))
    sizes, calls = [], []
    for n in (20, 40):
        net = network(texts.module(tmp_path, texts.source(text(n))).N)
        interned.clear()
        sizes.append(size(lower.training_program(net, horn.SGD(0.1), "label")))
        calls.append(len(interned))
    assert sizes[1] < 2.5 * sizes[0], sizes
    assert calls[1] < 2.8 * calls[0], calls


def test_what_a_step_keeps_is_compiled_once(tmp_path, monkeypatch):
    """A recurrent layer keeps of each step what takes long to compute: many parts of one chain."""
    calls: list[int] = []
    plain = nodes.rebuild

    def rebuild(*args: object) -> ir.Node:
        calls[-1] += 1
        return plain(*args)

    monkeypatch.setattr(nodes, "rebuild", rebuild)
    for n in (30, 60):
        lines = [f"z = horn.math.tanh(z * 1.0{k % 9 + 1}) + 0.{k + 1} * self.v" for k in range(n)]
        text = texts.source(forward([*lines, "self.v = z"]))
        state = '    v = horn.State(0.0, per="sample")\n\n    def forward'
        cls = texts.module(tmp_path, text.replace("    def forward", state, 1)).N
        net = horn.Network(seed=1)
        inputs = {"x": net.input(6, steps=3), "h": horn.Delayed()}
        net.layer(4, neuron=cls, inputs=inputs)
        net.output(3, activation="softmax", loss="cross_entropy", each_step=True)
        calls.append(0)
        lower.training_program(net, horn.SGD(0.1), "labels")
    assert calls[1] < 2.5 * calls[0], calls


def test_what_messages_ask_of_messages_is_put_in_its_place_once(tmp_path, monkeypatch):
    """Which message is the largest is asked inside of the gradient's messages, for each maximum."""
    lines = [
        f"z = max(horn.math.tanh(m.input * m.weight + 0.{k} * z) for m in messages)"
        for k in range(1, 11)
    ]
    net = network(texts.module(tmp_path, texts.source(forward(lines))).N)
    made: list[int] = []
    plain = nodes.rebuild
    monkeypatch.setattr(nodes, "rebuild", lambda *a: made.append(1) or plain(*a))
    program = lower.training_program(net, horn.SGD(0.1), "label")
    assert len(made) < 0.6 * size(program)  # 0.43; 1.5 where each that asks begins anew


@pytest.mark.parametrize(
    "text, n", [(one_expression, 1000), (operations, 1000), (dependent_ifs, 100)]
)
def test_a_large_neuron_is_compiled_at_once(tmp_path, text: Callable[[int], str], n: int):
    net = network(texts.module(tmp_path, texts.source(text(n))).N)
    begin = time.perf_counter()
    lower.training_program(net, horn.SGD(0.1), "label")
    assert time.perf_counter() - begin < 20.0  # about 0.3; it was minutes, or a RecursionError


def cases(n: int) -> str:
    return forward(["z = " + " else ".join(f"{k} if z > {n - k}" for k in range(n)) + " else z"])


@pytest.mark.parametrize("text, begins", [(cases, "z = 0 if"), (elifs, "if z > ")])
def test_what_is_nested_too_deeply_is_refused_with_its_line(tmp_path, text, begins: str):
    cls = texts.module(tmp_path, texts.source(text(900))).N
    with pytest.raises(horn.CompileError, match="too much is nested here") as e:
        texts.forward(cls)
    assert e.value.text.strip().startswith(begins)


def probed(cls: type[horn.Neuron], backend: str) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(3, 6))
    engine = make(backend, Setup(network(cls), horn.SGD(0.1), "labels", 3, "float64", 1))
    engine.bind(Dataset(x, np.arange(3)))
    return engine.probe(np.arange(3), iteration=0, first_sample=0)


@pytest.mark.parametrize("text", GROW)
def test_large_neurons_mean_what_the_interpreter_does(tmp_path, text: Callable[[int], str]):
    cls = texts.module(tmp_path, texts.source(text(7))).N
    expected, found = probed(cls, "python"), probed(cls, "kernels")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.timeout(60)
def test_a_sum_of_many_products_is_no_tile(tmp_path):
    """Its factors were all looked for: twice as many with each round."""
    lines = ["y = 0.0", "for m in messages:", "    v = horn.math.tanh(m.input * m.weight)"]
    lines += ["    v = v * (v * m.input)"] * 200
    cls = texts.module(tmp_path, texts.source(forward([*lines, "    y += v", "z = y"]))).N
    expected, found = probed(cls, "reference"), probed(cls, "kernels")
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-9)


@pytest.mark.timeout(60)
def test_a_number_of_the_run_is_computed_from_each_part_once():
    """The rate of an optimizer that servers or replicas apply, outside of a program."""
    rate, expected = ir.Scalar("learning_rate"), 0.1
    for _ in range(1500):
        rate, expected = rate * (1.1 - rate), expected * (1.1 - expected)
    assert _formulas._evaluated(rate, {"learning_rate": 0.1}) == expected


def test_the_interpreter_runs_six_hundred_operations(tmp_path):
    cls = texts.module(tmp_path, texts.source(one_expression(1200))).N
    expected, found = probed(cls, "python"), probed(cls, "kernels")
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-9)


def test_what_follows_nested_returns_runs_once(tmp_path, monkeypatch):
    seen: list[str] = []
    plain = Statements.statement
    monkeypatch.setattr(
        Statements, "statement", lambda self, node: seen.append("x") or plain(self, node)
    )
    texts.forward(texts.module(tmp_path, texts.source(nested_returns(12))).N)
    assert len(seen) == 1 + 3 * 12 + 1  # each statement of the text but the ifs


def test_squares_of_squares_are_no_monomial_of_a_million_factors():
    v = ir.mul(leaf(Op.INPUT, "bi"), leaf(Op.WEIGHT, "oi"))
    for _ in range(40):
        v = ir.mul(v, v)
    assert contraction.monomials(v) is None


def test_a_side_of_a_select_is_written_anew_only_where_it_is_small():
    c = leaf(Op.OUTPUT, "bo") > 0.0
    small = ir.select(c, const(2.0), const(3.0)) * leaf(Op.PARAM, "o", "p")
    assert ir.select(c, small, const(0.0)).args[1] is 2.0 * leaf(Op.PARAM, "o", "p")
    large = small
    for _ in range(2 * ir.MOST_COPIED):
        large = ir.make(Op.TANH, large)
    assert ir.select(c, large, const(0.0)).args[1] is large
    assert not ir.contains(ir.assume(large, c, True), Op.SELECT)  # asked for, it is


def deep(n: int) -> Network:
    net = Network(seed=1)
    net.input(2)
    for _ in range(n):
        net.layer(2, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def test_ties_of_a_deep_network_are_looked_for_once(monkeypatch):
    """Which looks at all its links: for each of them it took most of the time of 800 layers."""
    seen, tied = [], Network.tied.fget
    monkeypatch.setattr(Network, "tied", property(lambda net: seen.append(net) or tied(net)))
    lower.training_program(deep(3), horn.SGD(0.1), "label")
    assert len(seen) == 1


def test_what_tasks_say_of_a_deep_network_is_read_off_once(monkeypatch):
    """Of each of its many segments all were looked for anew: 17 s of the first step of 400."""
    seen = []
    monkeypatch.setattr(
        "horn.runtime.exchange.segments", lambda program: seen.append(program) or segments(program)
    )
    net = deep(6)
    setup = Setup(net, horn.SGD(0.1), "labels", 4, "float64", 1)

    def body(transport: Transport) -> None:
        engine = GroupEngine(setup, Placement.default(net), Group(transport, timeout_s=60))
        engine.bind(Dataset(np.ones((4, 2)), np.zeros(4, int)))
        engine.step(np.arange(4), iteration=0, first_sample=0)

    good(run_threads("inproc", 2, body))
    assert len(seen) <= 2 * 2  # and where blocks may be computed in place


def test_the_order_of_a_deep_network_is_found_in_time_that_grows_as_it_does():
    def calls(n: int) -> int:
        net = deep(n)
        program = lower.inference_program(net, "label")
        apart = Partition(program, Placement.default(net), ())
        for statement in program.statements:
            apart.statement(statement)
        program = replace(
            program, buffers=apart.task.buffers, statements=tuple(apart.task.statements)
        )
        return calls_of(lambda: reordered(program, {}))

    assert calls(80) < 2.2 * calls(40)


def test_a_deep_recurrent_network_is_compiled_in_time_that_grows_as_it_does():
    """Whose gradients flow was looked for anew after each layer for which it was found."""

    def calls(n: int) -> int:
        net = Network(seed=1)
        below = net.input(2, steps=3)
        for _ in range(n):
            below = net.layer(2, activation="tanh", inputs=[below, horn.Delayed()])
        net.output(2, activation="softmax", loss="cross_entropy")
        return calls_of(lambda: lower.training_program(net, horn.SGD(0.1), "label"))

    calls(2)  # what all have in common
    short = calls(30)
    assert calls(90) < 3.3 * short  # 2.8; it was 3.8


def mixed_weights(n: int) -> str:
    """The gradient of each weight reads all of them."""
    lines = [f"w{k} = horn.Weight()" for k in range(n)]
    mixed = " + ".join(f"m.w{k} * m.input" for k in range(n))
    text = forward([], f"z = sum(horn.math.tanh({mixed}) for m in messages)")
    return "\n".join((*lines, text))


def mixed_states(n: int) -> str:
    """The gradient of each State comes from all of them."""
    lines = [f"c{k} = horn.State(0.0)" for k in range(n)]
    mixed = " + ".join(f"horn.math.tanh(self.c{k})" for k in range(n))
    kept = [f"self.c{k} = horn.math.tanh(z * {1 + k / n:.3f})" for k in range(n)]
    return "\n".join((*lines, forward([f"z = z + {mixed}", *kept])))


@pytest.mark.parametrize("text", [mixed_weights, mixed_states])
@pytest.mark.parametrize("steps", [None, 3])
def test_what_mixes_many_weights_or_states_is_compiled_in_time_that_grows_as_it_does(
    tmp_path, text, steps
):
    """All of a synapse's gradients were translated by themselves, each with all weights in it."""

    def calls(n: int) -> int:
        net = Network(seed=1)
        below = net.input(2, steps=steps)
        cls = texts.module(tmp_path, texts.source(text(n))).N
        net.layer(2, neuron=cls, inputs=[below, horn.Delayed()] if steps else [below])
        net.output(2, activation="softmax", loss="cross_entropy")
        return calls_of(lambda: lower.training_program(net, horn.SGD(0.1), "label"))

    calls(2)  # what all have in common
    few = calls(24)
    assert calls(48) < 2.25 * few  # of weights it was 3.5, of States 2.4


def test_how_a_deep_network_runs_is_told_in_time_that_grows_as_it_does():
    short, long = deep(40), deep(80)
    calls = calls_of(lambda: explain.runs_as(short))
    assert calls_of(lambda: explain.runs_as(long)) < 2.2 * calls


def test_loops_of_many_outputs_are_searched_once(tmp_path, monkeypatch):
    """A step of many parts keeps values of each for backward."""
    walked: list[int] = []
    plain = ir.walk

    def walk(*roots: ir.Node, **how: set[ir.Node]) -> Iterator[ir.Node]:
        for node in plain(*roots, **how):
            walked[-1] += 1
            yield node

    monkeypatch.setattr(ir, "walk", walk)
    for n in (12, 24):
        lines = [SUM, "a, b = self.a, self.b"]
        for k in range(n):
            lines += [f"r = a + {k}", "r = r / (horn.math.exp(r) - 1.0) if r > 0 else 1 - r"]
            lines += ["b = b + 0.01 * (r * (1.0 - b) - 4.0 * horn.math.exp(-a) * b)"]
            lines += ["a = a + 0.01 * (z - b ** 3 * (a - 50.0))"]
        text = texts.source(forward([*lines[1:], "self.a = a", "self.b = b", "z = a"]))
        states = [f'    {name} = horn.State(0.0, per="sample")\n' for name in "ab"]
        text = text.replace("    def forward", "".join(states) + "\n    def forward", 1)
        net = horn.Network(seed=1)
        inputs = {"x": net.input(6, steps=3), "h": horn.Delayed()}
        net.layer(4, neuron=texts.module(tmp_path, text).N, inputs=inputs)
        net.output(3, activation="softmax", loss="cross_entropy")
        engine = make("kernels", Setup(net, horn.SGD(0.1), "labels", 4, threads=1))
        walked.append(0)
        engine.bind(Dataset(np.ones((4, 18)), np.zeros(4, int)))
    assert walked[1] < 2.3 * walked[0]


def test_a_program_that_predicts_derives_no_gradients(tmp_path, monkeypatch):
    net = network(texts.module(tmp_path, texts.source(operations(8))).N)
    calls: list[int] = []
    plain = derive.gradients
    monkeypatch.setattr(derive, "gradients", lambda *a: calls.append(1) or plain(*a))
    lower.inference_program(net, "label")
    assert not calls
    lower.training_program(net, horn.SGD(0.1), "label")
    assert calls
